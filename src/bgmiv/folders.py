"""Where this package keeps files of its own: the user's cache folder, or another one that a variable names."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path

__all__ = ["cache_path"]


def cache_path(name: str, variable: str) -> Path:
    """The folder for one kind of cached file.

    Args:
        name: the kind; its folder has that name below the package's cache folder.
        variable: the environment variable with which a user names another folder.

    Example:
        >>> cache_path("data", "BGMIV_NOT_SET").parts[-2:]
        ('bgmiv', 'data')
    """
    chosen = os.environ.get(variable, "")
    return Path(chosen).expanduser() if chosen else user_cache_path("bgmiv") / name
