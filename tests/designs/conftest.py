"""A small set of files that takes MNIST's place, and sources that need no network."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from bgmiv.designs import mnist_files
from bgmiv.designs.idx import pack_idx
from bgmiv.designs.mnist_files import MnistImages
from bgmiv.designs.mnist_sources import FILES


@pytest.fixture(autouse=True)
def _fresh_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The user's own files are neither read nor written."""
    monkeypatch.delenv("BGMIV_MNIST", raising=False)
    monkeypatch.setenv("BGMIV_DATA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> MnistImages:
    """Twelve training and five test pictures whose files have the right checksums."""
    rng = np.random.default_rng(0)
    images = MnistImages(
        rng.integers(0, 256, (12, 28, 28), dtype=np.uint8),
        np.arange(12, dtype=np.uint8) % 10,
        rng.integers(0, 256, (5, 28, 28), dtype=np.uint8),
        np.arange(5, dtype=np.uint8),
    )
    sums = {name: hashlib.sha256(pack_idx(part)).hexdigest() for name, part in zip(FILES, images, strict=True)}
    monkeypatch.setattr(mnist_files, "CHECKSUMS", sums)
    return images


@pytest.fixture
def contents(small: MnistImages) -> dict[str, bytes]:
    """The content of the four files."""
    return {name: pack_idx(part) for name, part in zip(FILES, small, strict=True)}


@pytest.fixture
def write() -> Callable[[Path, Mapping[str, bytes]], Path]:
    """Puts files into a folder."""

    def run(folder: Path, files: Mapping[str, bytes]) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return folder

    return run
