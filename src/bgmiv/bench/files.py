"""Checked JSON files, written whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bgmiv.bench.plan import canonical_json
from bgmiv.errors import StoreError

__all__ = ["TEMPORARY_SUFFIX", "cannot_write", "is_whole", "put_new", "put_over", "read_checked", "sync_folder"]

TEMPORARY_SUFFIX = ".tmp"

# What file systems without hard links answer.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def put_new(path: Path, kind: str, content: Mapping[str, Any]) -> bool:
    """Write the content to a file that is not there yet; whether it was this call that made it.

    The text goes to a temporary file beside it, is flushed to the disk, and is linked into place, which only one
    of several writers can do; then the folder is flushed. A crash leaves the whole file or none.

    Raises:
        StoreError: it cannot be written; what was there before is still there.
    """
    temporary = _written(path, kind, content)
    try:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if path.exists():
                return False
            os.replace(temporary, path)
        sync_folder(path.parent)
        return True
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def put_over(path: Path, kind: str, content: Mapping[str, Any]) -> None:
    """As :func:`put_new`, in place of whatever is there.

    Raises:
        StoreError: it cannot be written; what was there before is still there.
    """
    temporary = _written(path, kind, content)
    try:
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def read_checked(path: Path, kind: str) -> dict[str, Any]:
    """The content of a file written here.

    Raises:
        StoreError: it cannot be read, is damaged, or holds something else; the message says which.
    """
    damaged = f"{path} is damaged"
    try:
        # Read once: a second look could find another runner's newer file.
        found = path.read_bytes()
        stored = json.loads(found)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{damaged} (not valid JSON)") from error
    if not isinstance(stored, dict) or set(stored) != {"kind", "content", "sha256"}:
        raise StoreError(f"{damaged} (not a file of a store)")
    if stored["kind"] != kind:
        raise StoreError(f"{path} holds {stored['kind']!r}; this version reads {kind!r}")
    content = stored["content"]
    try:
        whole = isinstance(content, dict) and stored["sha256"] == _checksum(kind, content)
    except ValueError:
        # NaN or infinity: nothing that was ever written here.
        whole = False
    if not whole:
        raise StoreError(f"{damaged} (its checksum does not match)")
    # A flipped bit can hide in white space or in a key's second copy, which the values do not show.
    if found != _text(kind, content):
        raise StoreError(f"{damaged} (it is not as it was written)")
    return content


def is_whole(path: Path, kind: str | None = None) -> bool:
    """Whether a file is as it was written; of that kind, or of any: one of another version is not damaged."""
    try:
        read_checked(path, str(json.loads(path.read_bytes())["kind"]) if kind is None else kind)
    except (StoreError, OSError, ValueError, RecursionError, KeyError, TypeError):
        return False
    return True


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk; Windows cannot open folders and needs no flush."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _written(path: Path, kind: str, content: Mapping[str, Any]) -> Path:
    temporary = path.with_name(f".{path.stem}-{secrets.token_hex(6)}{TEMPORARY_SUFFIX}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            file.write(_text(kind, content))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise cannot_write(path, error) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _text(kind: str, content: Mapping[str, Any]) -> bytes:
    stored = {"kind": kind, "content": content, "sha256": _checksum(kind, content)}
    return (json.dumps(stored, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _checksum(kind: str, content: Mapping[str, Any]) -> str:
    return hashlib.sha256(f"{kind}\n{canonical_json(content)}".encode()).hexdigest()


def cannot_write(path: Path, error: OSError) -> StoreError:
    """The error to raise when a file of a store cannot be written: it names the file and the cure.

    >>> print(cannot_write(Path("rows/a.json"), OSError(errno.EACCES, "Permission denied")))
    cannot write rows/a.json: Permission denied
    """
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason += "; free some space and run the same command again: all rows so far are kept"
    return StoreError(f"cannot write {path}: {reason}")
