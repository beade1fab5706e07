"""The persistent compilation cache: a second fit of similar size starts at once, in this process or the next.

Compiled programs are kept in the user's cache folder unless JAX has a cache folder already. Set the environment
variable `BGMIV_COMPILATION_CACHE` to another folder, or to `off`.
"""

from __future__ import annotations

import os
from pathlib import Path

import jax

from bgmiv.folders import cache_path

__all__ = ["cache_folder", "enable_compilation_cache"]

_VARIABLE = "BGMIV_COMPILATION_CACHE"


def cache_folder() -> Path | None:
    """Where compiled programs are kept, or None when the cache is off.

    Example:
        >>> folder = cache_folder()
        >>> folder is None or isinstance(folder, Path)
        True
    """
    if os.environ.get(_VARIABLE, "").lower() == "off":
        return None
    return cache_path("xla", _VARIABLE)


def enable_compilation_cache() -> None:
    """Switch the cache on, unless the user has set one up for JAX, switched ours off, or the folder is not writable."""
    folder = cache_folder()
    if folder is None or jax.config.values.get("jax_compilation_cache_dir") is not None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if not os.access(folder, os.W_OK):
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
