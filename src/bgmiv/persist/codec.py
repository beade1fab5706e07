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

from bgmiv.errors import BGMIVError, ModelFileError
from bgmiv.persist.folder import DTYPES

__all__ = ["Codec", "reachable", "unsaved"]

Arrays = dict[str, NDArray[Any]]

_CLASS, _ARRAY = "is", "array"
_MAX_INTEGER = 2**64
_SPECIAL = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def unsaved(default: Any = None) -> Any:
    """A dataclass field that is left out of files; a loaded object has the default."""
    return field(default=default, metadata={"saved": False})


def reachable(*roots: type) -> tuple[type, ...]:
    """The classes that objects of these classes are made of, by the declared types of their saved fields.

    What stands for a protocol or a base class has to be among the roots.

    Example:
        >>> from bgmiv.data.scaling import Scaler
        >>> [kind.__name__ for kind in reachable(Scaler)]
        ['Scaler', 'Affine']
    """
    found: dict[type, None] = {}
    waiting: list[Any] = list(reversed(roots))
    while waiting:
        hint = waiting.pop()
        waiting += get_args(hint)
        if isinstance(hint, type) and hint not in found and (is_dataclass(hint) or hasattr(hint, "_fields")):
            found[hint] = None
            waiting += reversed(list(_hints(hint).values()))
    return tuple(found)


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
        self._classes = {kind.__name__: kind for kind in dict.fromkeys(classes)}
        self._functions = dict(functions or {})

    def encode(self, value: Any) -> tuple[Any, Arrays]:
        """The JSON of a value and the arrays it refers to.

        Raises:
            ModelFileError: it is, or holds, something that is not in the lists.
        """
        arrays: Arrays = {}
        return self._written(value, "model", arrays), arrays

    def _written(self, value: Any, where: str, arrays: Arrays) -> Any:
        value = value.item() if isinstance(value, np.generic) else value
        if value is None or isinstance(value, bool | str | Enum | Path):
            return value.value if isinstance(value, Enum) else (str(value) if isinstance(value, Path) else value)
        if isinstance(value, int | float):
            return value if isfinite(value) else str(value)
        if type(value).__name__ in self._classes and type(value) is self._classes[type(value).__name__]:
            kept = {
                name: self._written(getattr(value, name), f"{where}.{name}", arrays) for name in _hints(type(value))
            }
            return {_CLASS: type(value).__name__} | kept
        if isinstance(value, (np.ndarray, *_of_networks("jax", "Array"))):
            return self._written_array(np.asarray(value), where, arrays)
        if isinstance(value, tuple | list):
            return [self._written(entry, f"{where}.{i}", arrays) for i, entry in enumerate(value)]
        if isinstance(value, Mapping):
            pairs = enumerate(value.items())
            return [[name, self._written(entry, f"{where}.{i}", arrays)] for i, (name, entry) in pairs]
        for name, function in self._functions.items():
            if value is function:
                return name
        raise ModelFileError(
            f"{where} is a {type(value).__name__} and cannot be saved; only plain values and bgmiv's own classes can."
        )

    @staticmethod
    def _written_array(array: NDArray[Any], where: str, arrays: Arrays) -> dict[str, str]:
        if str(array.dtype) not in DTYPES:
            raise ModelFileError(f"{where} has the type {array.dtype}, which is not saved.")
        arrays[where] = np.ascontiguousarray(array)
        # Sums are rounded in another order if a matrix lies otherwise in memory.
        by_columns = array.ndim > 1 and array.flags.f_contiguous and not array.flags.c_contiguous
        return {_ARRAY: where} | ({"order": "F"} if by_columns else {})

    def decode(self, raw: Any, arrays: Arrays, kind: Any) -> Any:
        """The value of JSON, of a declared type; every array must be used once.

        Raises:
            ModelFileError: it is not of that type, or its class refuses it.
        """
        reader = _Reader(self._classes, self._functions, arrays)
        value = reader.structure(raw, kind, "model")
        spare = set(arrays) - reader.used
        if spare:
            raise ModelFileError(f"the arrays {', '.join(sorted(spare)[:5])} belong to nothing in the model.")
        return value


class _Reader:
    """One reading, which knows where it stands."""

    def __init__(
        self, classes: Mapping[str, type], functions: Mapping[str, Callable[..., Any]], arrays: Arrays
    ) -> None:
        self.classes, self.functions, self.arrays = classes, functions, arrays
        self.used: set[str] = set()
        self.path: list[str] = []

    def structure(self, raw: Any, hint: Any, name: str) -> Any:
        """The value of JSON; errors say where it stands."""
        self.path.append(name)
        try:
            return self.value(raw, hint)
        finally:
            self.path.pop()

    def refuse(self, wanted: str, raw: Any) -> NoReturn:
        """An error that says where and what."""
        tag = raw.get(_CLASS) if isinstance(raw, dict) else raw
        shown = repr(tag[:60] if isinstance(tag, str) else tag)[:80]
        raise ModelFileError(f"{'.'.join(self.path)} must be {wanted}, got {shown}.")

    def value(self, raw: Any, hint: Any) -> Any:
        """The value of JSON where the reading stands."""
        origin = get_origin(hint) or hint
        if origin in (Union, UnionType):
            return self.union(raw, hint)
        if origin is tuple:
            return self.tuple(raw, get_args(hint))
        if origin in (dict, Mapping):
            return self.pairs(raw, *(get_args(hint) or (str, Any)))
        if origin in (np.ndarray, *_of_networks("jax", "Array")):
            return self.array(raw, hint)
        if origin is Literal:
            return self.one_of(raw, get_args(hint))
        if origin is Callable:
            return self.functions[self.one_of(raw, tuple(self.functions))]
        if isinstance(hint, type) and issubclass(hint, Enum):
            return hint(self.one_of(raw, tuple(entry.value for entry in hint)))
        if hint in (bool, int, float, str, Path, NoneType) or (hint is Any and not isinstance(raw, dict)):
            return self.plain(raw, hint)
        return self.object(raw, hint)

    def plain(self, raw: Any, hint: Any) -> Any:
        """A value without parts; floats that JSON does not have are texts."""
        if hint is float and isinstance(raw, str) and raw in _SPECIAL:
            return _SPECIAL[raw]
        is_whole = type(raw) is int and abs(raw) < _MAX_INTEGER
        is_number = is_whole or (type(raw) is float and isfinite(raw))
        is_text = type(raw) is str and not any("\ud800" <= letter <= "\udfff" for letter in raw)
        kinds = {
            bool: ("a boolean", type(raw) is bool),
            int: ("a whole number", is_whole),
            float: ("a number", is_number),
            str: ("a text", is_text),
            Path: ("a text", is_text),
            NoneType: ("nothing", raw is None),
            Any: ("a plain value", raw is None or type(raw) is bool or is_text or is_number),
        }
        wanted, fits = kinds[hint]
        if not fits:
            self.refuse(wanted, raw)
        return hint(raw) if hint in (float, Path) else raw

    def one_of(self, raw: Any, known: tuple[Any, ...]) -> Any:
        """One of a few values."""
        for value in known:
            if type(value) is type(raw) and value == raw:
                return value
        return self.refuse(f"one of {', '.join(map(repr, known))}", raw)

    def union(self, raw: Any, hint: Any) -> Any:
        """The first alternative that fits; an object is that of its class."""
        arms = [arm for arm in get_args(hint) if (arm is NoneType) == (raw is None)]
        tag = raw.get(_CLASS) if isinstance(raw, dict) else None
        arms = [arm for arm in arms if tag is not None and getattr(arm, "__name__", "") == tag] or arms
        if len(arms) == 1:
            return self.value(raw, arms[0])
        for arm in arms:
            with suppress(ModelFileError):
                return self.value(raw, arm)
        return self.refuse(" or ".join(getattr(arm, "__name__", str(arm)) for arm in get_args(hint)), raw)

    def pairs(self, raw: Any, key: Any, value: Any) -> dict[Any, Any]:
        """A dictionary."""
        if not isinstance(raw, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in raw):
            self.refuse("a list of pairs", raw)
        entries = {self.structure(k, key, "key"): self.structure(v, value, str(k)[:40]) for k, v in raw}
        return entries if len(entries) == len(raw) else self.refuse("a list of pairs with different keys", raw)

    def tuple(self, raw: Any, arms: tuple[Any, ...]) -> tuple[Any, ...]:
        """A tuple of given or of any length."""
        if not isinstance(raw, list):
            self.refuse("a list", raw)
        if len(arms) == 2 and arms[1] is Ellipsis:
            arms = (arms[0],) * len(raw)
        arms = arms or (Any,) * len(raw)
        if len(arms) != len(raw):
            self.refuse(f"a list of {len(arms)} entries", len(raw))
        return tuple(self.structure(entry, arm, str(i)) for i, (entry, arm) in enumerate(zip(raw, arms, strict=True)))

    def object(self, raw: Any, hint: Any) -> Any:
        """An object of a listed class: the declared one, or one that derives from it or stands for a protocol."""
        name = raw.get(_CLASS) if isinstance(raw, dict) else None
        kind = self.classes.get(name) if isinstance(name, str) else None
        if kind is None or not (hint in (Any, kind) or getattr(hint, "_is_protocol", False) or _derives(kind, hint)):
            self.refuse(f"a {getattr(hint, '__name__', hint)}", raw)
        hints = _hints(kind)
        absent, extra = sorted(set(hints) - set(raw)), sorted(set(raw) - set(hints) - {_CLASS})
        if absent or extra:
            parts = [f"lacks {', '.join(absent)}"] if absent else []
            parts += [f"has the unknown {', '.join(repr(name[:40]) for name in extra[:5])}"] if extra else []
            raise ModelFileError(f"{'.'.join(self.path)} {' and '.join(parts)}.")
        values = {name: self.structure(raw[name], declared, name) for name, declared in hints.items()}
        try:
            return _assembled(kind, values)
        except (BGMIVError, TypeError, ValueError, ArithmeticError) as error:
            raise ModelFileError(f"{'.'.join(self.path)} is refused: {error}") from error

    def array(self, raw: Any, hint: Any) -> Any:
        """An array of the table, each for one place."""
        name = raw.get(_ARRAY) if isinstance(raw, dict) else None
        if not isinstance(name, str) or name not in self.arrays or set(raw) - {_ARRAY, "order"}:
            self.refuse("an array", raw)
        if name in self.used:
            raise ModelFileError(f"{'.'.join(self.path)}: the array {name!r} is used twice.")
        self.used.add(name)
        array = self.arrays[name]
        if hint in _of_networks("jax", "Array"):
            return sys.modules["jax"].device_put(array)
        return np.asfortranarray(array) if raw.get("order") == "F" else array


def _assembled(kind: Any, values: dict[str, Any]) -> Any:
    if not any(_derives(kind, module) for module in _of_networks("equinox", "Module")):
        return kind(**values)
    # The constructors of modules draw weights; what is read here has them.
    module = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(module, name, value)
    return module


def _hints(kind: Any) -> dict[str, Any]:
    """The saved fields of a dataclass or named tuple, with their types."""
    names = (
        [one.name for one in fields(kind) if one.metadata.get("saved", True)]
        if is_dataclass(kind)
        else list(getattr(kind, "_fields", ()))
    )
    hints: dict[str, Any] = get_type_hints(kind)
    return {name: hints[name] for name in names}


def _derives(kind: Any, base: Any) -> bool:
    """Whether a class derives from another; false where Python cannot tell, as for protocols with data."""
    try:
        return issubclass(kind, base)
    except TypeError:
        return False


def _of_networks(module: str, name: str) -> tuple[Any, ...]:
    """A class of a library that only networks need: none unless their classes, which import it, are there."""
    found = sys.modules.get(module)
    return () if found is None else (getattr(found, name),)
