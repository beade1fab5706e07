"""The compilation cache stays out of the user's way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bgmiv._io import cache_folder

SHOW = (
    "import jax; from bgmiv._io import enable_compilation_cache as on; on(); "
    "print(jax.config.jax_compilation_cache_dir)"
)


def _shown(**variables: str) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "BGMIV_"))} | variables
    return subprocess.run(
        [sys.executable, "-c", SHOW], env=env, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_chosen_folder_is_made_and_used(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "cache"
    assert _shown(BGMIV_COMPILATION_CACHE=str(folder)) == str(folder)
    assert folder.is_dir()


def test_off_and_the_users_own_setting_are_respected(tmp_path: Path) -> None:
    assert _shown(BGMIV_COMPILATION_CACHE="off") == "None"
    own = _shown(BGMIV_COMPILATION_CACHE=str(tmp_path / "ours"), JAX_COMPILATION_CACHE_DIR=str(tmp_path / "own"))
    assert own == str(tmp_path / "own")
    assert not (tmp_path / "ours").exists()


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert _shown(BGMIV_COMPILATION_CACHE=str(tmp_path / "file" / "cache")) == "None"


def test_default_is_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BGMIV_COMPILATION_CACHE", raising=False)
    folder = cache_folder()
    assert folder is not None
    assert folder.parts[-2:] == ("bgmiv", "xla")
