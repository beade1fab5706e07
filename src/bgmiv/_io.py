"""The package's own files: writing whole files, cache folders, and the persistent compilation cache.

Compiled programs are kept in the user's cache folder unless JAX has a cache folder already, so that a second fit of
similar size starts at once. Set `BGMIV_COMPILATION_CACHE` to another folder, or to `off`.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import os
import secrets
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from bgmiv.errors import BGMIVError, BGMIVWarning, ConfigError, ForkedProcessError, StoreError

__all__ = [
    "append_lines", "cache_folder", "cache_path", "check_file", "check_process", "check_writable",
    "enable_compilation_cache", "exchange", "remove_strays", "safe_name", "write_new", "write_whole", "writing",
]  # fmt: skip

_VARIABLE = "BGMIV_COMPILATION_CACHE"
# What must fit on a disk before a fit begins whose results are to be written there.
_ROOM = 1 << 20
_jax_process: int | None = None
_ADVICE = "Make room, or name another place."


@contextmanager
def writing(path: Path, advice: str = _ADVICE) -> Iterator[None]:
    """What the operating system says against writing there becomes a `StoreError` with that advice."""
    try:
        yield
    except BGMIVError:
        raise
    # Names with a zero byte are a ValueError.
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise StoreError(f"{path} cannot be written: {why}. {advice}") from error


def check_writable(folder: Path, advice: str = _ADVICE) -> None:
    """Write a megabyte to a folder, or to the nearest one above it if it is still to be made, and take it back.

    Permissions tell less: of a full disk, of one mounted read-only, or of what the superuser may do.

    Raises:
        StoreError: it cannot be written.
    """
    with writing(folder, advice):
        above = (folder.absolute(), *folder.absolute().parents)
        nearest = next(parent for parent in above if os.path.lexists(parent))
        if nearest.is_file():
            raise StoreError(f"{nearest} is a file; name a folder. {advice}")
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(bytes(_ROOM))
            file.flush()
            os.fsync(file.fileno())


def check_file(path: str | os.PathLike[str]) -> Path:
    """The path of a file to write; checked before anything slow is done.

    Raises:
        ConfigError: the path is a folder, a device or a pipe, or its folder does not exist.
        StoreError: nothing can be written there.
    """
    target = Path(path)
    with writing(target, "Choose another name."):
        is_folder = target.is_dir()
        real = Path(os.path.realpath(target))
    if is_folder:
        raise ConfigError(f"path {str(target)!r} is a folder. Name a file in it.")
    if os.path.lexists(real) and not real.is_file():
        raise ConfigError(f"path {str(target)!r} is a device or a pipe, or links to itself. Name a file.")
    folder = real.parent
    if not folder.is_dir():
        raise ConfigError(f"path {str(target)!r}: the folder {folder} does not exist. Make it first.")
    check_writable(folder)
    return target


def write_whole(path: Path, content: bytes, advice: str = _ADVICE) -> None:
    """Write to a temporary file beside it and move it into place; a crash leaves the old file or the new one.

    A link stays, and what it leads to is replaced.

    Raises:
        StoreError: it cannot be written, or is no file; the old file is as it was.
    """
    with writing(path):
        path = Path(os.path.realpath(path))
    if os.path.lexists(path) and not path.is_file():
        raise StoreError(f"{path} is no file, and is not replaced. Name a file.")
    temporary = path.with_name(f".{path.name[:100]}-{secrets.token_hex(6)}.tmp")
    with writing(path, advice):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_new(temporary, content)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def write_new(path: Path, content: bytes) -> None:
    """Write a file that is not there yet, down to the disk."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def append_lines(path: Path, lines: Iterable[bytes], advice: str = _ADVICE) -> None:
    """Add lines to a file by one write, under a lock of the caller's.

    A crash leaves a torn last line at most, which the next call drops with a warning.

    Raises:
        StoreError: they cannot be written; the file is as it was.
    """
    content = b"".join(line + b"\n" for line in lines)
    with writing(path, advice), path.open("a+b", buffering=0) as file:
        whole = file.seek(0, os.SEEK_END)
        # Only a torn line needs the rest of the file.
        file.seek(max(whole - 1, 0))
        if file.read() not in (b"", b"\n"):
            file.seek(0)
            whole = file.read().rfind(b"\n") + 1
            warnings.warn(f"{path} ended in a torn line, which a killed process left; it is dropped", BGMIVWarning, 4)
        try:
            file.truncate(whole)
            if file.write(content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
        except BaseException:
            with suppress(OSError):
                file.truncate(whole)
                if not whole:
                    path.unlink()
            raise


def safe_name(name: str) -> str:
    """A name for files and anchors: a design's name may come from a stranger's store."""
    return "".join(sign if sign.isascii() and (sign.isalnum() or sign in "-_") else "-" for sign in name)[:80]


def remove_strays(path: Path, older_than: float = 600.0) -> None:
    """Remove what killed processes have left of writing that file: a write takes milliseconds, not so many seconds."""
    path = Path(os.path.realpath(path))
    for stray in path.parent.glob(f".{glob.escape(path.name[:100])}-{'[0-9a-f]' * 12}.tmp"):
        with suppress(OSError):
            if time.time() - stray.stat().st_mtime >= older_than:
                stray.unlink()


def exchange(one: Path, two: Path) -> bool:
    """Swap two names in one step, so that neither is ever absent; False where the system cannot."""
    paths = os.fsencode(one), os.fsencode(two)
    library: Any = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
    here, swap = -100, 2
    if hasattr(library, "renameat2"):  # Linux
        failed = library.renameat2(here, paths[0], here, paths[1], swap)
    elif hasattr(library, "renamex_np"):  # macOS
        failed = library.renamex_np(*paths, swap)
    else:
        return False
    # Network file systems know nothing of it.
    if failed and (code := ctypes.get_errno()) not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        raise OSError(code, os.strerror(code), str(one), None, str(two))
    return not failed


def check_process() -> None:
    """Note that this process runs compiled programs; refuse them in one forked from a process that has.

    JAX works with threads, which a forked process does not have: a compiled program would wait for them for ever.

    Raises:
        ForkedProcessError: this is such a process.
    """
    global _jax_process
    if _jax_process in (None, os.getpid()):
        _jax_process = os.getpid()
    else:
        raise ForkedProcessError(
            "this process was forked from one that has used JAX, and networks would wait in it for ever. Start "
            "processes with multiprocessing.get_context('spawn') or by joblib, or fork before the first fit."
        )


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
    """Switch the cache on, unless the user has set one up for JAX, switched ours off, or the folder is not writable.

    Raises:
        ForkedProcessError: compiled programs would wait for ever in this process.
    """
    check_process()
    import jax

    folder = cache_folder()
    if folder is None or jax.config.values.get("jax_compilation_cache_dir") is not None:
        return
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
