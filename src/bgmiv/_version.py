"""The version of this package and of those that decide its numbers.

The distribution has another name than the package, so the version is read from here and not from what pip installed.
"""

from __future__ import annotations

from importlib.metadata import version

__all__ = ["VERSION", "versions"]

VERSION = "0.2.0"


def versions(*packages: str) -> dict[str, str]:
    """This package's version and those of installed packages, by name.

    Example:
        >>> list(versions("numpy"))
        ['bgmiv', 'numpy']
    """
    return {"bgmiv": VERSION} | {name: version(name) for name in packages}
