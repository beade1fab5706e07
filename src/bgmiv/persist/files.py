"""Reading files of a folder that a stranger may have written, and writing a folder as a whole or not at all."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from bgmiv.errors import ModelFileError

__all__ = ["file_size", "parse_json", "read_file", "write_folder"]

# Strings are skipped whole; one that never ends is skipped to the end of the text.
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|([\[{])|([\]}])', re.DOTALL)


def parse_json(data: bytes, where: str, *, most_nested: int = 40) -> Any:
    """JSON of a stranger: UTF-8, no key twice, no numbers that are not finite, and no nesting beyond a depth.

    Args:
        data: the bytes.
        where: what errors call it.
        most_nested: lists and objects inside one another.

    Raises:
        ModelFileError: it is none of this.

    Example:
        >>> parse_json(b'{"a": [1, 2.5]}', "model.json")
        {'a': [1, 2.5]}
        >>> parse_json(b'{"a": 1, "a": 2}', "model.json")
        Traceback (most recent call last):
        bgmiv.errors.ModelFileError: model.json is no usable JSON: the key 'a' is there twice. ...
    """

    def refuse(why: str) -> NoReturn:
        raise ModelFileError(f"{where} is no usable JSON: {why}. The file is damaged or was not written by bgmiv.")

    def no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                refuse(f"the key {name[:80]!r} is there twice")
            found[name] = value
        return found

    depth = 0
    for token in _TOKENS.finditer(data):
        depth += (token[1] is not None) - (token[2] is not None)
        if depth > most_nested:
            refuse(f"lists and objects are nested more than {most_nested} deep")
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=no_key_twice,
            parse_constant=lambda name: refuse(f"{name} is no number"),
        )
    except (ValueError, RecursionError) as error:
        refuse(str(error)[:200])


def file_size(folder: Path, name: str) -> int:
    """The size of a plain file of the folder.

    Raises:
        ModelFileError: it is absent, or a link, a folder or a device.
    """
    with _opened(folder, name) as descriptor:
        return os.fstat(descriptor).st_size


def read_file(folder: Path, name: str, *, most: int) -> bytes:
    """The bytes of a plain file of the folder.

    Args:
        folder: the folder; it may itself be reached through links.
        name: the file's name; links are not followed.
        most: a larger file is refused before it is read.

    Raises:
        ModelFileError: the file is absent, too large, a link, a folder or a device, or cannot be read.
    """
    with _opened(folder, name) as descriptor:
        size = os.fstat(descriptor).st_size
        if size > most:
            raise ModelFileError(f"{folder / name} has {size:,} bytes, more than the {most:,} it may have here.")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(most + 1)
    if len(data) != size:
        raise ModelFileError(f"{folder / name} changed while it was read; read it again.")
    return data


@contextmanager
def _opened(folder: Path, name: str) -> Iterator[int]:
    if name in ("", ".", "..") or Path(name).name != name:
        raise ModelFileError(f"{name!r} is not the name of a file in {folder}.")
    path = folder / name
    # Without O_NONBLOCK a pipe in the file's place would make this wait for ever.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        plain = stat.S_ISREG(path.lstat().st_mode)
        descriptor = os.open(path, flags) if plain else None
    except FileNotFoundError as error:
        raise ModelFileError(f"{path} does not exist: {folder} holds no saved model.") from error
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path} cannot be read: {_reason(error)}.") from error
    if descriptor is None:
        raise ModelFileError(f"{path} is not a plain file but a link, a folder or a device, which is never followed.")
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ModelFileError(f"{path} is not a plain file.")
        yield descriptor
    except ModelFileError:
        raise
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {_reason(error)}.") from error
    finally:
        os.close(descriptor)


def write_folder(
    folder: Path,
    files: Mapping[str, bytes],
    *,
    overwrite: bool,
    is_ours: Callable[[Path], bool],
    check: Callable[[Path], None],
) -> None:
    """Write a folder of files: all of them, or nothing.

    They are written to a new folder beside, which takes the place of `folder` once it is whole.

    Args:
        folder: what is written; folders above it are made.
        files: by name.
        overwrite: replace a folder that is there.
        is_ours: whether a folder that is there was written by this function for the same purpose; no other one, nor one
            that holds further files, is ever replaced. An empty one is taken.
        check: called with the new folder before it takes its place; what it raises stops the writing.

    Raises:
        ModelFileError: there is a folder that may not be replaced, or the files cannot be written.
    """
    try:
        target = Path(os.path.realpath(folder))
        _check_free(target, files, overwrite, is_ours)
        target.parent.mkdir(parents=True, exist_ok=True)
        new = target.with_name(f".{target.name}.{secrets.token_hex(6)}.new")
        try:
            _fill(new, files)
            check(new)
            _check_free(target, files, overwrite, is_ours)
            _take_place(new, target)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    except ModelFileError:
        raise
    except (OSError, ValueError) as error:
        raise ModelFileError(
            f"{folder} cannot be written: {_reason(error)}. Nothing was changed; choose another folder or make room."
        ) from error


def _check_free(target: Path, files: Mapping[str, bytes], overwrite: bool, is_ours: Callable[[Path], bool]) -> None:
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise ModelFileError(f"{target} is a file; give the name of a folder.")
    inside = {entry.name for entry in os.scandir(target)}
    if not inside:
        return
    if not inside <= set(files) or not is_ours(target):
        raise ModelFileError(
            f"{target} is not the folder of a saved model, or holds other files too, and is left as it is. "
            "Choose another folder."
        )
    if not overwrite:
        raise ModelFileError(f"{target} holds a saved model. Say overwrite=True to replace it.")


def _fill(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir()
    for name, data in files.items():
        with (folder / name).open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def _take_place(new: Path, target: Path) -> None:
    if not os.path.lexists(target):
        os.rename(new, target)
        return
    old = target.with_name(f".{target.name}.{secrets.token_hex(6)}.old")
    os.rename(target, old)
    try:
        os.rename(new, target)
    except BaseException:
        os.rename(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
