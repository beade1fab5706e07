"""The codec: what it writes it reads back, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Protocol

import equinox as eqx
import jax
import numpy as np
import pytest

from bgmiv.errors import ModelFileError
from bgmiv.nn.layers import MLP, Dense, leaky_relu
from bgmiv.persist.codec import Codec, unsaved


class Colour(StrEnum):
    red = "red"
    blue = "blue"


class Shape(Protocol):
    def area(self) -> float: ...


@dataclass(frozen=True)
class Square:
    side: float

    def __post_init__(self) -> None:
        if self.side < 0:
            raise ValueError("a side is not below 0")

    def area(self) -> float:
        return self.side**2


class Point(NamedTuple):
    x: int
    y: float


@dataclass(frozen=True)
class Everything:
    flag: bool
    count: int
    size: float
    name: str
    maybe: int | None
    level: str | int | float | bool
    kind: Literal["a", "b"]
    colour: Colour
    pair: tuple[int, str]
    many: tuple[float, ...]
    table: dict[str, float]
    point: Point
    shape: Shape
    values: np.ndarray
    cache: Any = unsaved()


CODEC = Codec([Everything, Point, Square, MLP, Dense], {"leaky_relu": leaky_relu})


def example(**changes: Any) -> Everything:
    fields: dict[str, Any] = {
        "flag": True, "count": 3, "size": 2.0, "name": "é", "maybe": None, "level": 1, "kind": "a",
        "colour": Colour.red, "pair": (1, "b"), "many": (1.0, float("inf")), "table": {"is": 1.0},
        "point": Point(1, 2.0), "shape": Square(2.0), "values": np.arange(6.0).reshape(2, 3), "cache": object(),
    }  # fmt: skip
    return Everything(**(fields | changes))


def test_round_trip_of_every_kind_of_field() -> None:
    raw, arrays = CODEC.encode(example())
    again = CODEC.decode(raw, arrays, Everything)
    assert again.colour is Colour.red
    assert again.table == {"is": 1.0}
    assert again.many == (1.0, float("inf"))
    assert again.cache is None
    np.testing.assert_array_equal(again.values, example().values)
    for name in ("flag", "count", "size", "name", "maybe", "level", "kind", "pair", "point", "shape"):
        assert getattr(again, name) == getattr(example(), name)


def test_order_in_memory_is_kept() -> None:
    raw, arrays = CODEC.encode(example(values=np.asfortranarray(np.arange(6.0).reshape(2, 3))))
    assert CODEC.decode(raw, arrays, Everything).values.flags.f_contiguous


def test_networks_predict_the_same() -> None:
    net = MLP(3, (8, 4), 2, key=jax.random.key(0))
    raw, arrays = CODEC.encode(net)
    again = CODEC.decode(raw, arrays, MLP)
    assert isinstance(again, eqx.Module)
    x = jax.numpy.arange(3.0)
    np.testing.assert_array_equal(net(x), again(x))


@pytest.mark.parametrize("value", [object(), lambda: 0, np.array(["a"]), {1, 2}])
def test_other_values_are_not_written(value: object) -> None:
    with pytest.raises(ModelFileError, match=r"model\.level"):
        CODEC.encode(example(level=value))


BAD: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "boolean": (lambda raw: raw.update(flag=1), "flag must be a boolean"),
    "whole number": (lambda raw: raw.update(count=3.0), "count must be a whole number"),
    "too large": (lambda raw: raw.update(count=2**70), "count must be a whole number"),
    "number": (lambda raw: raw.update(size="2"), "size must be a number"),
    "text": (lambda raw: raw.update(name=3), "name must be a text"),
    "literal": (lambda raw: raw.update(kind="c"), "kind must be one of"),
    "enumeration": (lambda raw: raw.update(colour="green"), "colour must be one of"),
    "union": (lambda raw: raw.update(maybe="x"), "maybe must be"),
    "length": (lambda raw: raw.update(pair=[1]), "pair must be a list of 2"),
    "unknown class": (lambda raw: raw["shape"].update({"is": "Popen"}), "shape must be a Shape, got 'Popen'"),
    "no class": (lambda raw: raw.update(shape=3), "shape must be a Shape"),
    "wrong class": (lambda raw: raw.update(point={"is": "Square", "side": 1.0}), "point must be a Point"),
    "missing field": (lambda raw: raw["point"].pop("x"), "point must have the fields x, y"),
    "extra field": (lambda raw: raw["point"].update(z=1), "point must have the fields x, y, nothing else"),
    "unsaved field": (lambda raw: raw.update(cache=1), "must have the fields .* nothing else"),
    "refused by its class": (lambda raw: raw["shape"].update(side=-1.0), "shape is refused"),
    "unknown array": (lambda raw: raw["values"].update(array="other"), "values must be an array"),
    "no array": (lambda raw: raw.update(values=[1.0]), "values must be an array"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_json_is_refused(name: str) -> None:
    change, message = BAD[name]
    raw, arrays = CODEC.encode(example())
    change(raw)
    with pytest.raises(ModelFileError, match=message):
        CODEC.decode(raw, arrays, Everything)
