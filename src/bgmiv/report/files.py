"""Files written whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

__all__ = ["write_all", "write_whole"]


def write_whole(path: Path, content: bytes) -> None:
    """Write to a temporary file beside it and move it into place; a crash leaves the old file or the new one.

    Args:
        path: its folder is made if absent.
        content: of the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(6)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_all(folder: Path, files: Mapping[str, bytes]) -> tuple[Path, ...]:
    """Write several files, by their names relative to the folder; the paths in order."""
    paths = tuple(folder / name for name in files)
    for path, content in zip(paths, files.values(), strict=True):
        write_whole(path, content)
    return paths
