"""Arrays in a safetensors file, of which names, shapes and types are known before it is read."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from bgmiv.errors import ModelFileError
from bgmiv.persist.files import parse_json

__all__ = ["ArraySpec", "pack_arrays", "total_bytes", "unpack_arrays"]

_DTYPES = {"float32": "F32", "float64": "F64", "int64": "I64"}
_LENGTH = 8
_SHOWN = 5


class ArraySpec(NamedTuple):
    """What an array must be.

    Attributes:
        shape: its shape.
        dtype: "float32", "float64" or "int64".
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def n_bytes(self) -> int:
        """Bytes of its numbers."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


def total_bytes(specs: Mapping[str, ArraySpec]) -> int:
    """Bytes of all numbers.

    Example:
        >>> total_bytes({"a": ArraySpec((2, 3), "float32"), "b": ArraySpec((1,), "int64")})
        32
    """
    return sum(spec.n_bytes for spec in specs.values())


def pack_arrays(arrays: Mapping[str, NDArray[Any]], where: str) -> bytes:
    """The bytes of a safetensors file.

    Raises:
        ModelFileError: an array is of another type than those of `ArraySpec`, or holds numbers that are not finite.

    Example:
        >>> data = pack_arrays({"a": np.ones(2)}, "arrays")
        >>> unpack_arrays(data, {"a": ArraySpec((2,), "float64")}, "arrays")["a"]
        array([1., 1.])
    """
    for name, array in arrays.items():
        if str(array.dtype) not in _DTYPES:
            raise ModelFileError(f"{where}: {name} has the type {array.dtype}, which is not saved.")
    _check_finite(arrays, where)
    # The library writes memory as it lies, whatever its order.
    return bytes(save({name: np.array(array, order="C") for name, array in arrays.items()}))


def unpack_arrays(data: bytes, specs: Mapping[str, ArraySpec], where: str) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file, if it holds exactly those that are wanted, and finite numbers alone.

    Args:
        data: the file's bytes.
        specs: what must be there, by name.
        where: what errors call the file.

    Raises:
        ModelFileError: something else is there.
    """
    length = int.from_bytes(data[:_LENGTH], "little")
    if len(data) < _LENGTH or length != len(data) - _LENGTH - total_bytes(specs):
        raise ModelFileError(
            f"{where} has {len(data):,} bytes and says that {length:,} of them describe the arrays, which hold "
            f"{total_bytes(specs):,}: it is truncated or was not written for this model."
        )
    header = parse_json(data[_LENGTH : _LENGTH + length], f"{where}'s header", most_nested=3)
    _check_header(header, specs, where)
    try:
        arrays = load(data)
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise ModelFileError(f"{where} cannot be read: {error}.") from error
    _check_finite(arrays, where)
    return {name: np.array(arrays[name]) for name in specs}


def _check_header(header: Any, specs: Mapping[str, ArraySpec], where: str) -> None:
    if type(header) is not dict:
        raise ModelFileError(f"{where}'s header is no object: the file is damaged.")
    absent, extra = [n for n in specs if n not in header], [n[:80] for n in header if n not in specs]
    if absent or extra:
        parts = [f"lacks {', '.join(absent[:_SHOWN])}"] if absent else []
        parts += [f"holds {', '.join(map(repr, extra[:_SHOWN]))}, which this model has not"] if extra else []
        raise ModelFileError(f"{where} {' and '.join(parts)}.")
    for name, spec in specs.items():
        found = header[name]
        if type(found) is not dict or set(found) != {"dtype", "shape", "data_offsets"}:
            raise ModelFileError(f"{where}: {name} is not described by dtype, shape and data_offsets.")
        if found["dtype"] != _DTYPES[spec.dtype]:
            raise ModelFileError(f"{where}: {name} must be {_DTYPES[spec.dtype]}, got {str(found['dtype'])[:40]}.")
        if _plain_shape(found["shape"]) != spec.shape:
            raise ModelFileError(f"{where}: {name} must have shape {spec.shape}, got {str(found['shape'])[:80]}.")


def _plain_shape(shape: Any) -> tuple[int, ...] | None:
    return tuple(shape) if type(shape) is list and all(type(side) is int for side in shape) else None


def _check_finite(arrays: Mapping[str, NDArray[Any]], where: str) -> None:
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ModelFileError(f"{where}: {name} holds numbers that are not finite.")
