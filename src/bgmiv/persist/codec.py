"""Objects as JSON and arrays: a closed list of classes, and every field checked by its declared type.

An object of a listed class (a dataclass, a named tuple or an Equinox module) becomes `{"is": class name, field: ...}`,
an array a reference into a table of arrays, a dictionary a list of pairs. Reading looks the class name up in the list
and wants exactly its fields; nothing is imported or called by a name from the file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import field, fields, is_dataclass
from enum import Enum
from math import isfinite
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from bgmiv.data.messages import shown
from bgmiv.errors import BGMIVError, ModelFileError
from bgmiv.persist.folder import DTYPES, Arrays

__all__ = ["Codec", "reachable", "unsaved"]

Hints = tuple[Any, ...]

_CLASS, _ARRAY = "is", "array"
_MAX_INTEGER = 2**64
# What values without parts are called, and the types of JSON that they may have.
_PLAIN: dict[Any, tuple[str, tuple[type, ...]]] = {
    bool: ("a boolean", (bool,)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    str: ("a text", (str,)),
    Path: ("a text", (str,)),
    NoneType: ("nothing", (NoneType,)),
    Any: ("a plain value", (NoneType, bool, int, float, str)),
}


def unsaved() -> Any:
    """A dataclass field that is left out of files; it is None in a loaded object."""
    return field(default=None, metadata={"saved": False})


def reachable(*roots: type) -> tuple[type, ...]:
    """The classes that objects of these classes are made of, by the declared types of their saved fields.

    What stands for a protocol or a base class has to be among the roots.

    Example:
        >>> from bgmiv.data.scaling import Scaler
        >>> [kind.__name__ for kind in reachable(Scaler)]
        ['Scaler', 'Affine']
    """
    classes: dict[type, None] = {}
    waiting: list[Any] = list(reversed(roots))
    while waiting:
        hint = waiting.pop()
        waiting += get_args(hint)
        if isinstance(hint, type) and hint not in classes and (is_dataclass(hint) or hasattr(hint, "_fields")):
            classes[hint] = None
            waiting += reversed(list(_hints(hint).values()))
    return tuple(classes)


class Codec:
    """What may be written and read.

    Args:
        classes: the closed list; class names must differ.
        functions: functions that fields may hold, by the name they are saved under.

    Example:
        >>> from bgmiv.integrate import GaussHermite
        >>> codec = Codec([GaussHermite])
        >>> codec.encode(GaussHermite(3))
        ({'is': 'GaussHermite', 'n_nodes': 3}, {})
        >>> codec.decode({"is": "GaussHermite", "n_nodes": 3}, {}, GaussHermite)
        GaussHermite(n_nodes=3)
        >>> codec.decode({"is": "GaussHermite", "n_nodes": "3"}, {}, GaussHermite)
        Traceback (most recent call last):
        bgmiv.errors.ModelFileError: model.n_nodes must be a whole number, got '3'.
        >>> codec.decode({"is": "os.system"}, {}, GaussHermite)
        Traceback (most recent call last):
        bgmiv.errors.ModelFileError: model must be a GaussHermite, got 'os.system'.
    """

    def __init__(self, classes: Iterable[type], functions: Mapping[str, Callable[..., Any]] | None = None) -> None:
        """Keep the lists."""
        self.classes = {kind.__name__: kind for kind in classes}
        self.functions = dict(functions or {})

    def encode(self, value: Any) -> tuple[Any, Arrays]:
        """The JSON of a value and the arrays it refers to.

        Raises:
            ModelFileError: it is, or holds, something that is not in the lists.
        """
        arrays: Arrays = {}
        return self._written(value, "model", arrays), arrays

    def _written(self, value: Any, where: str, arrays: Arrays) -> Any:
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, Enum):
            return value.value
        if isinstance(value, Path) or (isinstance(value, float) and not isfinite(value)):
            return str(value)
        if value is None or isinstance(value, bool | int | float | str):
            return value
        kind = type(value)
        if kind is self.classes.get(kind.__name__):
            names = _hints(kind)
            kept = {name: self._written(getattr(value, name), f"{where}.{name}", arrays) for name in names}
            return {_CLASS: kind.__name__} | kept
        if isinstance(value, (np.ndarray, *_of_networks("jax", "Array"))):
            array = np.asarray(value)
            if str(array.dtype) not in DTYPES:
                raise ModelFileError(f"{where} has the type {array.dtype}, which is not saved.")
            arrays[where] = np.ascontiguousarray(array)
            # Sums are rounded in another order if a matrix lies otherwise in memory.
            by_columns = array.ndim > 1 and array.flags.f_contiguous and not array.flags.c_contiguous
            return {_ARRAY: where} | ({"order": "F"} if by_columns else {})
        if isinstance(value, tuple | list):
            return [self._written(entry, f"{where}.{i}", arrays) for i, entry in enumerate(value)]
        if isinstance(value, Mapping):
            entries = self._written(tuple(value.values()), where, arrays)
            return [list(pair) for pair in zip(value, entries, strict=True)]
        for name, function in self.functions.items():
            if value is function:
                return name
        raise ModelFileError(
            f"{where} is a {kind.__name__} and cannot be saved; only plain values and bgmiv's own classes can."
        )

    def decode(self, raw: Any, arrays: Arrays, kind: Any) -> Any:
        """The value of JSON, of a declared type.

        Raises:
            ModelFileError: it is not of that type, or its class refuses it.
        """
        return _Reader(self, arrays).value(raw, kind, "model")


class _Reader:
    """One reading: a method for each kind of type, which takes the JSON, the type's arguments, and where it stands."""

    def __init__(self, codec: Codec, arrays: Arrays) -> None:
        self.codec, self.arrays = codec, arrays
        self.readers: dict[Any, Callable[[Any, Hints, str], Any]] = {
            Union: self.union, UnionType: self.union, tuple: self.sequence, dict: self.pairs, Mapping: self.pairs,
            Literal: self.one_of, Callable: self.function, np.ndarray: self.array,
        }  # fmt: skip
        self.readers |= dict.fromkeys(_of_networks("jax", "Array"), self.device_array)

    def value(self, raw: Any, hint: Any, where: str) -> Any:
        """The value of JSON, of a declared type."""
        reader = self.readers.get(get_origin(hint) or hint)
        if reader is not None:
            return reader(raw, get_args(hint), where)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return hint(self.one_of(raw, tuple(entry.value for entry in hint), where))
        if hint in _PLAIN and not (hint is Any and isinstance(raw, dict)):
            return self.plain(raw, hint, where)
        return self.object(raw, hint, where)

    def plain(self, raw: Any, hint: Any, where: str) -> Any:
        """A value without parts; floats that JSON does not have are texts."""
        if hint is float and raw in ("nan", "inf", "-inf"):
            return float(raw)
        wanted, kinds = _PLAIN[hint]
        # JSON from a file has integers without end, and infinity for 1e999.
        limit = _MAX_INTEGER if type(raw) is int else np.inf
        too_large = isinstance(raw, int | float) and not abs(raw) < limit
        if type(raw) not in kinds or too_large:
            _refuse(where, wanted, raw)
        return hint(raw) if hint in (float, Path) else raw

    def one_of(self, raw: Any, known: tuple[Any, ...], where: str) -> Any:
        """One of a few values."""
        for value in known:
            if type(value) is type(raw) and value == raw:
                return value
        return _refuse(where, f"one of {', '.join(map(repr, known))}", raw)

    def function(self, raw: Any, _: Hints, where: str) -> Any:
        """A function of the list."""
        return self.codec.functions[self.one_of(raw, tuple(self.codec.functions), where)]

    def union(self, raw: Any, hints: Hints, where: str) -> Any:
        """The first alternative that fits; an object is that of its class."""
        arms = [arm for arm in hints if (arm is NoneType) == (raw is None)]
        arms = [arm for arm in arms if getattr(arm, "__name__", "") == _tag(raw)] or arms
        if len(arms) == 1:
            return self.value(raw, arms[0], where)
        for arm in arms:
            with suppress(ModelFileError):
                return self.value(raw, arm, where)
        return _refuse(where, " or ".join(getattr(arm, "__name__", str(arm)) for arm in hints), raw)

    def pairs(self, raw: Any, hints: Hints, where: str) -> dict[Any, Any]:
        """A dictionary."""
        if not isinstance(raw, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in raw):
            _refuse(where, "a list of pairs", raw)
        key, value = hints or (str, Any)
        return {self.value(k, key, f"{where}.key"): self.value(v, value, f"{where}.{str(k)[:40]}") for k, v in raw}

    def sequence(self, raw: Any, hints: Hints, where: str) -> tuple[Any, ...]:
        """A tuple of given or of any length."""
        if not isinstance(raw, list):
            _refuse(where, "a list", raw)
        if not hints or hints[-1] is Ellipsis:
            hints = (*hints, Any)[:1] * len(raw)
        if len(hints) != len(raw):
            _refuse(where, f"a list of {len(hints)} entries", len(raw))
        return tuple(self.value(entry, hints[i], f"{where}.{i}") for i, entry in enumerate(raw))

    def object(self, raw: Any, hint: Any, where: str) -> Any:
        """An object of a listed class: the declared one, or one that derives from it or stands for a protocol."""
        tag = _tag(raw)
        kind = self.codec.classes.get(tag) if isinstance(tag, str) else None
        is_open = hint is Any or getattr(hint, "_is_protocol", False)
        if kind is None or not (is_open or issubclass(kind, get_origin(hint) or hint)):
            _refuse(where, f"a {getattr(hint, '__name__', hint)}", raw)
        hints = _hints(kind)
        if set(raw) != {_CLASS, *hints}:
            raise ModelFileError(f"{where} must have the fields {', '.join(hints)}, nothing else.")
        values = {name: self.value(raw[name], declared, f"{where}.{name}") for name, declared in hints.items()}
        try:
            return _assembled(kind, values)
        except (BGMIVError, TypeError, ValueError, ArithmeticError) as error:
            raise ModelFileError(f"{where} is refused: {error}") from error

    def array(self, raw: Any, _: Hints, where: str) -> NDArray[Any]:
        """An array of the table."""
        name = raw.get(_ARRAY) if isinstance(raw, dict) else None
        if not isinstance(name, str) or name not in self.arrays:
            _refuse(where, "an array", raw)
        array = self.arrays[name]
        return np.asfortranarray(array) if raw.get("order") == "F" else array

    def device_array(self, raw: Any, _: Hints, where: str) -> Any:
        """An array of JAX."""
        return sys.modules["jax"].device_put(np.ascontiguousarray(self.array(raw, (), where)))


def _tag(raw: Any) -> Any:
    """The class that JSON of an object names."""
    return raw.get(_CLASS) if isinstance(raw, dict) else None


def _refuse(where: str, wanted: str, raw: Any) -> NoReturn:
    tag = _tag(raw) if isinstance(raw, dict) else raw
    raise ModelFileError(f"{where} must be {wanted}, got {shown(tag)}.")


def _assembled(kind: Any, values: dict[str, Any]) -> Any:
    if not issubclass(kind, _of_networks("equinox", "Module")):
        return kind(**values)
    # The constructors of modules draw weights; what is read here has them.
    module = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(module, name, value)
    return module


def _hints(kind: Any) -> dict[str, Any]:
    """The saved fields of a dataclass or named tuple, with their types."""
    hints = get_type_hints(kind)
    if not is_dataclass(kind):
        return {name: hints[name] for name in kind._fields}
    return {one.name: hints[one.name] for one in fields(kind) if one.metadata.get("saved", True)}


def _of_networks(module: str, name: str) -> tuple[Any, ...]:
    """A class of a library that only networks need: none unless their classes, which import it, are there."""
    library = sys.modules.get(module)
    return () if library is None else (getattr(library, name),)
