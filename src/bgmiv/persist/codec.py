"""Settings as JSON: a closed list of classes, each with a short tag, and every field checked by its declared type."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from math import isfinite, isnan
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from bgmiv.errors import BGMIVError, ModelFileError

__all__ = ["Codec"]

# A field of some classes is called "kind".
_TAG = "is"
_NOT_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
# Widths of layers, filters and the like; longer lists of them describe no network.
_MOST_NUMBERS = 1000
_LARGEST = 2**64


@dataclass(frozen=True)
class Codec:
    """What may be written and read: dataclasses and named tuples of a closed list.

    A value of one of them becomes an object with its tag as "is" and its fields. Reading looks the tag up in the
    list, wants exactly the fields of that class, each of its declared type, and then constructs; nothing is imported or
    called by name.

    Args:
        kinds: the classes by tag.
        plugs: for a protocol that fields are declared with, the classes that may stand there.
        with_nan: classes whose numbers may be NaN: what was measured, as opposed to what was set.

    Example:
        >>> from bgmiv.integrate import GaussHermite, IntegrationRule
        >>> codec = Codec({"gauss-hermite": GaussHermite}, {IntegrationRule: (GaussHermite,)})
        >>> codec.encode(GaussHermite(3))
        {'is': 'gauss-hermite', 'n_nodes': 3}
        >>> codec.decode({"is": "gauss-hermite", "n_nodes": 3}, IntegrationRule)
        GaussHermite(n_nodes=3)
        >>> codec.decode({"is": "gauss-hermite", "n_nodes": "3"}, GaussHermite)
        Traceback (most recent call last):
        bgmiv.errors.ModelFileError: value.n_nodes must be a whole number, got '3'.
        >>> codec.decode({"is": "os.system"}, GaussHermite)
        Traceback (most recent call last):
        bgmiv.errors.ModelFileError: value must be a 'gauss-hermite', got 'os.system'.
    """

    kinds: Mapping[str, type]
    plugs: Mapping[type, tuple[type, ...]]
    with_nan: tuple[type, ...] = ()

    def encode(self, value: Any, where: str = "value") -> Any:
        """The JSON of a value.

        Raises:
            ModelFileError: it is, or holds, something that is not in the list.
        """
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, Enum):
            return value.value
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return str(value)
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value) if isfinite(value) else {_TAG: "float", "value": str(float(value))}
        tag = next((tag for tag, kind in self.kinds.items() if type(value) is kind), None)
        if tag is not None:
            names = _field_hints(self.kinds[tag])
            return {_TAG: tag} | {name: self.encode(getattr(value, name), f"{where}.{name}") for name in names}
        if type(value) in (tuple, list):
            return [self.encode(entry, f"{where}[{i}]") for i, entry in enumerate(value)]
        if type(value) is dict and all(isinstance(name, str) for name in value):
            return {name: self.encode(entry, f"{where}.{name}") for name, entry in value.items()}
        raise ModelFileError(
            f"{where} is a {type(value).__name__} and cannot be saved; only plain values and bgmiv's own settings can."
        )

    def decode(self, raw: Any, hint: Any, where: str = "value", *, nan: bool = False) -> Any:
        """The value of JSON, of a declared type.

        Args:
            raw: what the JSON holds.
            hint: the declared type.
            where: what errors call it.
            nan: whether a number may be NaN.

        Raises:
            ModelFileError: it is not of that type, or its class refuses it.
        """
        origin = get_origin(hint)
        if origin in (Union, types.UnionType):
            arm = next((arm for arm in get_args(hint) if self._fits(raw, arm)), None)
            if arm is None:
                raise _mismatch(raw, self._words(hint), where)
            return self.decode(raw, arm, where, nan=nan)
        if not self._fits(raw, hint):
            raise _mismatch(raw, self._words(hint), where)
        if origin is tuple:
            return self._tuple(raw, get_args(hint), where, nan)
        if origin is dict:
            value = get_args(hint)[1]
            return {_text(name, where): self.decode(raw[name], value, f"{where}.{name[:40]}", nan=nan) for name in raw}
        if hint is float:
            return _number(raw, where, nan)
        if hint is str:
            return _text(raw, where)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return hint(raw)
        kinds = self._classes(hint)
        return self._instance(raw, self.kinds[raw[_TAG]], where) if kinds else raw

    def _instance(self, raw: dict[str, Any], kind: type, where: str) -> Any:
        hints = _field_hints(kind)
        given = set(raw) - {_TAG}
        if given != set(hints):
            absent, extra = sorted(set(hints) - given), sorted(given - set(hints))
            parts = [f"lacks {', '.join(absent)}"] if absent else []
            parts += [f"has the unknown {', '.join(repr(name[:40]) for name in extra[:5])}"] if extra else []
            raise ModelFileError(f"{where} {' and '.join(parts)}.")
        nan = kind in self.with_nan
        values = {name: self.decode(raw[name], hint, f"{where}.{name}", nan=nan) for name, hint in hints.items()}
        try:
            return kind(**values)
        except ModelFileError:
            raise
        except (BGMIVError, TypeError, ValueError, ArithmeticError) as error:
            raise ModelFileError(f"{where} is refused: {error}") from error

    def _tuple(self, raw: list[Any], arms: tuple[Any, ...], where: str, nan: bool) -> tuple[Any, ...]:
        if len(arms) == 2 and arms[1] is Ellipsis:
            if arms[0] in (int, float) and len(raw) > _MOST_NUMBERS:
                raise ModelFileError(f"{where} holds {len(raw)} numbers, more than {_MOST_NUMBERS}.")
            arms = (arms[0],) * len(raw)
        if len(raw) != len(arms):
            raise ModelFileError(f"{where} must hold {len(arms)} entries, got {len(raw)}.")
        pairs = enumerate(zip(raw, arms, strict=True))
        return tuple(self.decode(entry, arm, f"{where}[{i}]", nan=nan) for i, (entry, arm) in pairs)

    def _classes(self, hint: Any) -> tuple[type, ...]:
        """The classes of the list that may stand for a hint."""
        if hint in self.plugs:
            return self.plugs[hint]
        return (hint,) if hint in self.kinds.values() else ()

    def _tags(self, hint: Any) -> list[str]:
        return [tag for tag, kind in self.kinds.items() if kind in self._classes(hint)]

    def _fits(self, raw: Any, hint: Any) -> bool:
        """Whether the outermost layer of the JSON is of the type."""
        origin = get_origin(hint)
        if origin is Literal:
            return any(type(raw) is type(known) and raw == known for known in get_args(hint))
        if hint in _PLAIN:
            return _PLAIN[hint][1](raw)
        if origin in (tuple, dict):
            return type(raw) is (list if origin is tuple else dict)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return type(raw) is str and raw in [entry.value for entry in hint]
        tags = self._tags(hint)
        if not tags:
            raise TypeError(f"no way to read a {hint}")
        return type(raw) is dict and type(raw.get(_TAG)) is str and raw[_TAG] in tags

    def _words(self, hint: Any) -> str:
        origin = get_origin(hint)
        if origin in (Union, types.UnionType):
            return " or ".join(dict.fromkeys(self._words(arm) for arm in get_args(hint)))
        if origin is Literal:
            return "one of " + ", ".join(repr(known) for known in get_args(hint))
        if hint in _PLAIN:
            return _PLAIN[hint][0]
        if origin in (tuple, dict):
            return "a list" if origin is tuple else "an object"
        if isinstance(hint, type) and issubclass(hint, Enum):
            return "one of " + ", ".join(repr(entry.value) for entry in hint)
        return "a " + " or a ".join(repr(tag) for tag in self._tags(hint))


def _is_whole(raw: Any) -> bool:
    return type(raw) is int and abs(raw) < _LARGEST


def _is_number(raw: Any) -> bool:
    if type(raw) is dict:
        return set(raw) == {_TAG, "value"} and raw[_TAG] == "float" and type(raw["value"]) is str
    return type(raw) is float or _is_whole(raw)


_PLAIN: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    type(None): ("null", lambda raw: raw is None),
    bool: ("true or false", lambda raw: type(raw) is bool),
    int: ("a whole number", _is_whole),
    float: ("a number", _is_number),
    str: ("a text", lambda raw: type(raw) is str),
}


@lru_cache(maxsize=256)
def _field_hints(kind: Any) -> dict[str, Any]:
    """The fields of a dataclass or named tuple, with their types."""
    names = [entry.name for entry in fields(kind)] if is_dataclass(kind) else list(getattr(kind, "_fields", ()))
    hints: dict[str, Any] = get_type_hints(kind)
    return {name: hints[name] for name in names}


def _number(raw: Any, where: str, nan: bool) -> float:
    if type(raw) is not dict:
        # A float that does not fit, such as 1e999, is read as infinite.
        if not isfinite(raw):
            raise ModelFileError(f"{where} is too large a number.")
        return raw
    value = _NOT_FINITE.get(raw["value"])
    if value is None or (isnan(value) and not nan):
        raise ModelFileError(f"{where} must be a number, got {raw['value'][:40]!r}.")
    return value


def _text(raw: str, where: str) -> str:
    if any("\ud800" <= letter <= "\udfff" for letter in raw):
        raise ModelFileError(f"{where} holds half of a surrogate pair, which is no text.")
    return raw


def _mismatch(raw: Any, wanted: str, where: str) -> ModelFileError:
    if type(raw) is dict:
        tag = raw.get(_TAG)
        got = repr(tag[:60]) if isinstance(tag, str) else "an object that does not say what it is"
    else:
        got = f"a list of {len(raw)}" if type(raw) is list else _shown(raw)
    return ModelFileError(f"{where} must be {wanted}, got {got}.")


def _shown(raw: Any) -> str:
    if type(raw) is int and abs(raw) >= _LARGEST:
        return "a number that is too large"
    return repr(raw[:60] if isinstance(raw, str) else raw)
