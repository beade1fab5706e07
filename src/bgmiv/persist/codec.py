"""Objects as JSON and arrays: a closed list of classes, and every field checked by its declared type.

An object of a listed class (a dataclass, a named tuple or an Equinox module) becomes `{"is": class name, field: ...}`,
an array a reference into a table of arrays, a dictionary a list of pairs. Reading looks the class name up in the list
and wants exactly its fields; nothing is imported or called by a name from the file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
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
        found = reader.structure(raw, kind, "model")
        left = set(arrays) - reader.used
        if left:
            raise ModelFileError(f"the arrays {', '.join(sorted(left)[:5])} belong to nothing in the model.")
        return found


class _Reader:
    """One reading, which knows where it stands."""

    def __init__(
        self, classes: Mapping[str, type], functions: Mapping[str, Callable[..., Any]], arrays: Arrays
    ) -> None:
        self.classes, self.functions, self.arrays = classes, functions, arrays
        self.used: set[str] = set()
        self.path: list[str] = []
        self.readers: dict[Any, Callable[[Any, Any], Any]] = {
            Literal: self.literal, tuple: self.tuple, Callable: self.function, np.ndarray: self.array,
            **dict.fromkeys(_of_networks("jax", "Array"), self.array),
        }  # fmt: skip

    def structure(self, raw: Any, hint: Any, name: str) -> Any:
        """The value of JSON; errors say where it stands."""
        self.path.append(name)
        found = self.value(raw, hint)
        self.path.pop()
        return found

    def value(self, raw: Any, hint: Any) -> Any:
        """The value of JSON where the reading stands."""
        if isinstance(hint, type) and issubclass(hint, Enum):
            return self.enum(raw, hint)
        if hint in (bool, int):
            right = _is_whole(raw) if hint is int else type(raw) is bool
            return raw if right else self.refuse("a whole number" if hint is int else "a boolean", raw)
        if hint in (str, Path):
            return hint(self.text(raw))
        if hint is float:
            return self.number(raw)
        origin = get_origin(hint) or hint
        if origin in (Union, UnionType):
            return self.union(raw, hint)
        if origin in (dict, Mapping):
            return self.pairs(raw, hint)
        if origin in self.readers:
            return self.readers[origin](raw, hint)
        return self.object(raw, hint) if self.is_object(hint) else self.refuse("of a type that is saved", raw)

    def refuse(self, wanted: str, raw: Any) -> NoReturn:
        """An error that says where and what."""
        tag = raw.get(_CLASS) if isinstance(raw, dict) else raw
        shown = repr(tag[:60] if isinstance(tag, str) else tag)[:80]
        raise ModelFileError(f"{'.'.join(self.path)} must be {wanted}, got {shown}.")

    def number(self, raw: Any) -> float:
        """A float; those that JSON does not have are texts."""
        if isinstance(raw, str) and raw in _SPECIAL:
            return _SPECIAL[raw]
        if type(raw) is float and isfinite(raw):
            return raw
        return float(raw) if _is_whole(raw) else self.refuse("a number", raw)

    def text(self, raw: Any) -> str:
        """A text without halves of surrogate pairs."""
        if type(raw) is not str or any("\ud800" <= letter <= "\udfff" for letter in raw):
            self.refuse("a text", raw)
        return raw

    def literal(self, raw: Any, hint: Any) -> Any:
        """One of a few values."""
        known = [value for value in get_args(hint) if type(value) is type(raw) and value == raw]
        return known[0] if known else self.refuse(f"one of {', '.join(map(repr, get_args(hint)))}", raw)

    def enum(self, raw: Any, hint: Any) -> Any:
        """A member of an enumeration."""
        values = [entry.value for entry in hint]
        return hint(raw) if raw in values else self.refuse(f"one of {', '.join(map(repr, values))}", raw)

    def pairs(self, raw: Any, hint: Any) -> dict[Any, Any]:
        """A dictionary."""
        key, value = get_args(hint) or (str, Any)
        if not isinstance(raw, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in raw):
            self.refuse("a list of pairs", raw)
        found = {self.structure(k, key, "key"): self.structure(v, value, str(k)[:40]) for k, v in raw}
        return found if len(found) == len(raw) else self.refuse("a list of pairs with different keys", raw)

    def tuple(self, raw: Any, hint: Any) -> tuple[Any, ...]:
        """A tuple of given or of any length."""
        arms = get_args(hint)
        if not isinstance(raw, list):
            self.refuse("a list", raw)
        if not arms:
            arms = (Any,) * len(raw)
        elif len(arms) == 2 and arms[1] is Ellipsis:
            arms = (arms[0],) * len(raw)
        if len(arms) != len(raw):
            self.refuse(f"a list of {len(arms)} entries", len(raw))
        return tuple(self.structure(entry, arm, str(i)) for i, (entry, arm) in enumerate(zip(raw, arms, strict=True)))

    def function(self, raw: Any, hint: Any) -> Callable[..., Any]:
        """A function of the closed list."""
        if not isinstance(raw, str) or raw not in self.functions:
            self.refuse(f"one of {', '.join(self.functions)}", raw)
        return self.functions[raw]

    def is_object(self, hint: Any) -> bool:
        """Whether a listed class stands there: one itself, or a protocol or base class of some."""
        if hint is Any or hint in self.classes.values():
            return True
        return isinstance(hint, type) and (getattr(hint, "_is_protocol", False) or bool(self.below(hint)))

    def below(self, hint: type) -> list[type]:
        """The listed classes that derive from a base class."""
        return [kind for kind in self.classes.values() if kind is not hint and _is_subclass(kind, hint)]

    def object(self, raw: Any, hint: Any) -> Any:
        """An object of a listed class."""
        if hint is Any and not isinstance(raw, dict):
            return self.plain(raw)
        name = raw.get(_CLASS) if isinstance(raw, dict) else None
        kind = self.classes.get(name) if isinstance(name, str) else None
        fits = kind is hint or hint is Any or getattr(hint, "_is_protocol", False) or kind in self.below(hint)
        if kind is None or not fits:
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

    def plain(self, raw: Any) -> Any:
        """A value whose type is not declared."""
        if raw is None or isinstance(raw, bool | str) or _is_whole(raw) or type(raw) is float:
            return raw
        return self.refuse("a plain value", raw)

    def union(self, raw: Any, hint: Any) -> Any:
        """The first alternative whose outermost layer the JSON has."""
        arms = get_args(hint)
        for arm in arms:
            if self.fits(raw, arm):
                return self.value(raw, arm) if arm is not NoneType else None
        return self.refuse(" or ".join(getattr(arm, "__name__", str(arm)) for arm in arms), raw)

    def fits(self, raw: Any, arm: Any) -> bool:
        """Whether the outermost layer of the JSON is of a type."""
        if arm is NoneType or raw is None:
            return arm is NoneType and raw is None
        if arm in (bool, int, str, Path):
            return type(raw) is {bool: bool, int: int}.get(arm, str)
        if arm is float:
            return type(raw) in (int, float) or (type(raw) is str and raw in _SPECIAL)
        if _is_array(arm):
            return isinstance(raw, dict) and _ARRAY in raw
        if self.is_object(arm):
            name = raw.get(_CLASS) if isinstance(raw, dict) else None
            kind = self.classes.get(name) if isinstance(name, str) else None
            return kind is not None and (kind is arm or arm not in self.classes.values())
        if get_origin(arm) is Literal:
            return raw in get_args(arm)
        return isinstance(raw, list)

    def array(self, raw: Any, hint: Any) -> Any:
        """An array of the table, each for one place."""
        name = raw.get(_ARRAY) if isinstance(raw, dict) else None
        if not isinstance(name, str) or name not in self.arrays or set(raw) - {_ARRAY, "order"}:
            self.refuse("an array", raw)
        if name in self.used:
            raise ModelFileError(f"{'.'.join(self.path)}: the array {name!r} is used twice.")
        self.used.add(name)
        found = self.arrays[name]
        if hint in _of_networks("jax", "Array"):
            return sys.modules["jax"].device_put(found)
        return np.asfortranarray(found) if raw.get("order") == "F" else found


def _assembled(kind: Any, values: dict[str, Any]) -> Any:
    if not any(_is_subclass(kind, module) for module in _of_networks("equinox", "Module")):
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


def _is_subclass(kind: Any, base: Any) -> bool:
    """Whether a class derives from another; false where Python cannot tell, as for protocols with data."""
    try:
        return issubclass(kind, base)
    except TypeError:
        return False


def _is_array(hint: Any) -> bool:
    return hint in (np.ndarray, *_of_networks("jax", "Array")) or get_origin(hint) is np.ndarray


def _of_networks(module: str, name: str) -> tuple[Any, ...]:
    """A class of a library that only networks need: none unless their classes, which import it, are there."""
    found = sys.modules.get(module)
    return () if found is None else (getattr(found, name),)


def _is_whole(raw: Any) -> bool:
    return type(raw) is int and abs(raw) < _MAX_INTEGER
