"""The package's own files: writing whole files, cache folders, and the persistent compilation cache.

Compiled programs are kept in the user's cache folder unless JAX has a cache folder already, so that a second fit of
similar size starts at once. Set `BGMIV_COMPILATION_CACHE` to another folder, or to `off`.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from platformdirs import user_cache_path

__all__ = ["cache_folder", "cache_path", "enable_compilation_cache", "write_whole"]

_VARIABLE = "BGMIV_COMPILATION_CACHE"


def write_whole(path: Path, content: bytes) -> None:
    """Write to a temporary file beside it and move it into place; a crash leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name[:100]}-{secrets.token_hex(6)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def cache_path(name: str, variable: str) -> Path:
    """The folder for one kind of cached file; an environment variable may name another one."""
    chosen = os.environ.get(variable, "")
    return Path(chosen).expanduser() if chosen else user_cache_path("bgmiv") / name


def cache_folder() -> Path | None:
    """Where compiled programs are kept, or None when the cache is off."""
    if os.environ.get(_VARIABLE, "").lower() == "off":
        return None
    return cache_path("xla", _VARIABLE)


def enable_compilation_cache() -> None:
    """Switch the cache on, unless the user has set one up for JAX, switched ours off, or the folder is not writable."""
    import jax

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
