"""What is shipped."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_source_archive_has_every_file_at_the_root() -> None:
    """Without the root conftest.py the tests that it ships would run with other settings of JAX."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]
    files = {path.name for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".")}
    assert "conftest.py" in files
    # hatchling adds these itself.
    assert files - {"pyproject.toml", "PKG-INFO"} <= set(settings["include"])
