"""A saved model as a folder of two files, written whole or not at all, and read whoever wrote it."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from bgmiv._io import exchange, write_new
from bgmiv._version import VERSION
from bgmiv.data.messages import setting
from bgmiv.errors import ModelFileError

__all__ = ["DTYPES", "Arrays", "ModelFiles", "check_free", "read_model", "write_model"]

_FORMAT, _VERSION = "bgmiv model", 10
_JSON, _ARRAYS = "model.json", "arrays.safetensors"
_MAX_JSON = 1 << 26
# A save takes seconds: an older folder beside is that of a process that was killed.
_STRAY_SECONDS = 600.0
_MAX_READS = 5
_ENTRIES = ("format", "version", "written_by", "method", "arrays", "model", "sha256")
DTYPES = ("float32", "float64", "int64", "int32", "bool")
"""The types of saved arrays."""

Arrays = dict[str, NDArray[Any]]


def _read_file(path: Path, max_bytes: float = float("inf")) -> bytes:
    """The bytes of a plain file: no link, folder or device, and not too large."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError(f"{path} is not a plain file; links, folders and devices are never followed.")
        if status.st_size > max_bytes:
            raise ModelFileError(f"{path} has {status.st_size:,} bytes, more than the {max_bytes:,} it may have here.")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ModelFileError(f"{path} does not exist: {path.parent} holds no saved model.") from error
    except ModelFileError:
        raise
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def write_model(
    folder: Path, method: str, raw: Any, arrays: Arrays, *, overwrite: bool, check: Callable[[Path], None]
) -> None:
    """Write a model's JSON and arrays to a folder: all of it, or nothing.

    They are written to a new folder beside, which takes the place of `folder` once it is whole and `check` has read it.
    `check_free` says what it may replace.

    Raises:
        ModelFileError: it cannot be saved or written, or the folder may not be replaced.
    """
    data = bytes(save(arrays))
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "written_by": f"bgmiv {VERSION}",
        "method": method,
        "arrays": _fingerprint(data),
        "model": raw,
    }
    document["sha256"] = _checksum(document)
    try:
        text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1).encode()
        target = Path(os.path.realpath(folder))
        check_free(target, overwrite=overwrite)
        target.parent.mkdir(parents=True, exist_ok=True)
        for left in _siblings(target, "new"):
            # Another process may have removed it by now.
            with suppress(FileNotFoundError):
                if time.time() - left.lstat().st_mtime >= _STRAY_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)
        new = target.with_name(f".{target.name}.{secrets.token_hex(6)}.new")
        try:
            new.mkdir()
            for name, content in {_ARRAYS: data, _JSON: text}.items():
                write_new(new / name, content)
            check(new)
            # Another process may have written there in the meantime.
            check_free(target, overwrite=overwrite)
            _take_place(new, target)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    except ModelFileError:
        raise
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ModelFileError(
            f"{folder} cannot be written: {why}. Nothing was changed; choose another folder or make room."
        ) from error


def _checksum(document: Mapping[str, Any]) -> str:
    """Of all entries but itself, however they are laid out."""
    content = {name: value for name, value in document.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class ModelFiles(NamedTuple):
    """What a folder holds: the method's name, the JSON of the model, and its arrays."""

    method: str
    raw: Any
    arrays: Arrays


def read_model(folder: Path) -> ModelFiles:
    """Read a folder that anyone may have written; one that is replaced meanwhile is read anew.

    Raises:
        ModelFileError: it holds no saved model, a damaged one, or one of another version of the format.
    """
    for _ in range(_MAX_READS):
        with suppress(ModelFileError):
            return _read_once(folder)
    return _read_once(folder)


def _read_once(folder: Path) -> ModelFiles:
    if not os.path.lexists(folder):
        # Where names cannot be exchanged, a kill between two renames leaves the old model there.
        folder = next(iter(_siblings(folder, "old")), folder)
    document = _read_document(folder)
    _check_document(document, folder / _JSON)
    data = _read_file(folder / _ARRAYS)
    if document["arrays"] != _fingerprint(data):
        raise ModelFileError(f"{folder / _ARRAYS} is damaged, truncated, or belongs to another model than {_JSON}.")
    try:
        arrays = load(data)
    except Exception as error:
        raise ModelFileError(f"{folder / _ARRAYS} cannot be read: {error}.") from error
    for name, array in arrays.items():
        if str(array.dtype) not in DTYPES or not np.isfinite(array).all():
            raise ModelFileError(f"{folder / _ARRAYS}: {name[:80]} holds other numbers than finite ones of {DTYPES}.")
    return ModelFiles(str(document["method"]), document["model"], arrays)


def _read_document(folder: Path) -> dict[str, Any]:
    """The JSON of a saved model, of any version."""
    path = folder / _JSON
    data = _read_file(path, _MAX_JSON)
    try:
        document = json.loads(data.decode("utf-8"))
    except (RecursionError, ValueError) as error:
        raise ModelFileError(f"{path} is no usable JSON, damaged or not written by bgmiv: {error}.") from error
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ModelFileError(f"{path} is not that of a saved model: its format is not '{_FORMAT}'.")
    return document


def _check_document(document: dict[str, Any], path: Path) -> None:
    """Refuse what this version has not written."""
    number = document.get("version")
    if number != _VERSION:
        newer = isinstance(number, int) and number > _VERSION
        fix = "Upgrade bgmiv to open it" if newer else "Fit the model again"
        raise ModelFileError(f"{path} has version {str(number)[:20]} of the format, not {_VERSION}. {fix}.")
    if set(document) != {*_ENTRIES}:
        raise ModelFileError(f"{path} must hold {', '.join(_ENTRIES)}, nothing else.")
    try:
        checksum = _checksum(document)
    except RecursionError:
        checksum = ""
    if document["sha256"] != checksum:
        raise ModelFileError(f"{path} is damaged or was changed: its checksum does not match.")


def _fingerprint(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def check_free(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that no model may be written to.

    With `overwrite` a saved model may be replaced; nothing else, nor a folder that holds further files, ever is.

    Raises:
        ModelFileError: there is something else, or a model that is to be kept.
    """
    target = Path(os.path.realpath(folder))
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise ModelFileError(f"{folder} is a file; give the name of a folder.")
    inside = {entry.name for entry in os.scandir(target)}
    if not inside:
        return
    try:
        _read_document(target)
        is_model = inside <= {_ARRAYS, _JSON}
    except ModelFileError:
        is_model = False
    if not is_model:
        raise ModelFileError(
            f"{folder} is not the folder of a saved model, or holds other files too, and is left as it is. "
            "Choose another folder."
        )
    if not overwrite:
        raise ModelFileError(f"{folder} holds a saved model. Say {setting('overwrite', True)} to replace it.")


def _take_place(new: Path, target: Path) -> None:
    """Put the new folder in its place: the name holds the old model or the new one at every moment."""
    if not os.path.lexists(target):
        os.rename(new, target)
    elif not exchange(new, target):
        # A kill in between leaves the old model beside it, where it is read.
        old = target.with_name(f".{target.name}.{secrets.token_hex(6)}.old")
        os.rename(target, old)
        try:
            os.rename(new, target)
        except BaseException:
            os.rename(old, target)
            raise
    for left in _siblings(target, "old"):
        shutil.rmtree(left, ignore_errors=True)


def _siblings(target: Path, kind: str) -> list[Path]:
    """What savings of this folder have left beside it."""
    pattern = f".{glob.escape(target.name)}.{'[0-9a-f]' * 12}.{kind}"
    # Path.glob raises for a name that is too long.
    return list(target.parent.glob(pattern)) if os.path.isdir(target.parent) else []
