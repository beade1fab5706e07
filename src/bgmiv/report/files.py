"""Several files of a report, each written whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bgmiv.writing import write_whole

__all__ = ["write_all"]


def write_all(folder: Path, files: Mapping[str, bytes]) -> tuple[Path, ...]:
    """Write several files, by their names relative to the folder; the paths in order."""
    paths = tuple(folder / name for name in files)
    for path, content in zip(paths, files.values(), strict=True):
        write_whole(path, content)
    return paths
