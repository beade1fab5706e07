"""From columns to the flat matrix of a layout of blocks; the same code at fit and at predict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgmiv.data.blocks import BlockKind, CovariateBlock, Level
from bgmiv.data.checks import (
    FloatArray,
    check_binary,
    check_finite,
    common_float,
    counted,
    is_missing,
    numeric,
    rows_text,
)
from bgmiv.data.columns import Column, Table
from bgmiv.data.pixels import to_unit_range
from bgmiv.errors import DataError

__all__ = ["category_entries", "check_flat", "covariate_label", "encode", "level_codes", "ordered_levels"]

_PLAIN = (str, int, float, bool)


def covariate_label(name: str) -> str:
    """How messages call a covariate.

    >>> covariate_label("age")
    "covariates column 'age'"
    """
    return f"covariates column {name!r}"


def encode(table: Table, blocks: Sequence[CovariateBlock]) -> FloatArray:
    """Fill the flat matrix (n, p) from a table whose columns are the blocks' columns, in order.

    Images are brought to pixels from 0 to 1 ([`to_unit_range`][bgmiv.data.pixels.to_unit_range]).

    >>> from bgmiv.data.columns import read_table
    >>> table = read_table({"region": ["s", "n", "s"]}, "covariates", "covariate")
    >>> encode(table, [CovariateBlock("region", BlockKind.categorical, ("region",), 0, 2, levels=("n", "s"))])
    array([[0., 1.],
           [1., 0.],
           [0., 1.]])
    """
    parts = _assign(table, blocks)
    arrays = {
        column.name: numeric(column.values, covariate_label(column.name), _declare(column.name))
        for block, columns in parts
        if block.levels is None
        for column in columns
    }
    width = blocks[-1].stop if blocks else 0
    dtype = common_float(list(arrays.values()))
    plain = all(block.levels is None for block in blocks)
    if plain and table.matrix is not None and table.matrix.dtype.kind in "biuf":
        with np.errstate(over="ignore"):
            flat = np.array(table.matrix, dtype=dtype, order="C")
    else:
        flat = np.zeros((table.n_rows, width), dtype=dtype)
        for block, columns in parts:
            _fill(flat[:, block.start : block.stop], block, columns, arrays)
    labels = [covariate_label(name) for block in blocks for name in block.flat_names]
    check_finite(flat, labels)
    _check_binaries(flat, blocks, labels)
    for block, columns in parts:
        if block.holds_pixels:
            integers = all(arrays[column.name].dtype.kind in "iu" for column in columns)
            to_unit_range(flat[:, block.start : block.stop], block.name, integers=integers)
    return flat


def check_flat(matrix: NDArray[Any], blocks: Sequence[CovariateBlock]) -> FloatArray:
    """Validate a matrix that is flat already, one-hot columns included, and bring its images to pixels from 0 to 1.

    >>> block = CovariateBlock("region", BlockKind.categorical, ("region",), 0, 2, levels=("n", "s"))
    >>> check_flat(np.array([[1, 1]]), [block])
    Traceback (most recent call last):
    ...
    bgmiv.errors.DataError: covariates column 'region' is not one-hot (row 0). Each row needs a single 1.
    """
    labels = [covariate_label(name) for block in blocks for name in block.flat_names]
    flat = np.array(matrix, dtype=common_float([matrix]), order="C")
    check_finite(flat, labels)
    _check_binaries(flat, blocks, labels)
    for block in blocks:
        if block.holds_pixels:
            to_unit_range(flat[:, block.start : block.stop], block.name, integers=matrix.dtype.kind in "iu")
        if block.levels is not None:
            part = flat[:, block.start : block.stop]
            bad = ((part != 0) & (part != 1)).any(axis=1) | (part.sum(axis=1) != 1)
            if bad.any():
                raise DataError(
                    f"{covariate_label(block.name)} is not one-hot ({rows_text(bad)}). Each row needs a single 1."
                )
    return flat


def category_entries(column: Column, label: str) -> list[Level]:
    """The entries of a categorical column as Python scalars, none missing; `label` is how messages call it.

    >>> category_entries(Column("region", np.array([2, 1])), "region")
    [2, 1]
    """
    if column.values.dtype.kind in "Mmc":
        numeric(column.values, label)
    entries = column.values.tolist()
    types = set(map(type, entries))
    if any(issubclass(kind, np.generic) for kind in types):
        entries = [entry.item() if isinstance(entry, np.generic) else entry for entry in entries]
        types = set(map(type, entries))
    if types <= {str, int, bool}:
        return list(entries)
    missing = np.array([is_missing(entry) for entry in entries], dtype=bool)
    if missing.any():
        raise DataError(
            f"{label} has {counted(missing, 'missing value')}. Drop these rows, or give them their own level."
        )
    odd = sorted(kind.__name__ for kind in types if not issubclass(kind, _PLAIN))
    if odd:
        raise DataError(f"{label} holds entries of type {', '.join(odd)}. Convert it with .astype(str).")
    infinite = np.array([isinstance(entry, float) and math.isinf(entry) for entry in entries], dtype=bool)
    if infinite.any():
        raise DataError(f"{label} has {counted(infinite, 'infinite value')}. Drop or fill these rows first.")
    return list(entries)


def _declare(name: str) -> str:
    return f"declare it with blocks={{{name!r}: 'categorical'}}, or drop it"


def _assign(table: Table, blocks: Sequence[CovariateBlock]) -> list[tuple[CovariateBlock, tuple[Column, ...]]]:
    parts, position = [], 0
    for block in blocks:
        first = table.columns[position]
        # A plain matrix carries an array block as that many columns.
        count = block.width if block.from_array and first.values.ndim == 1 else len(block.input_names)
        parts.append((block, table.columns[position : position + count]))
        position += count
    return parts


def _fill(
    target: FloatArray, block: CovariateBlock, columns: Sequence[Column], arrays: dict[str, NDArray[Any]]
) -> None:
    if block.levels is not None:
        codes = level_codes(columns[0], block.levels, covariate_label(columns[0].name))
        target[np.arange(len(target)), codes] = 1
        return
    with np.errstate(over="ignore"):
        if columns[0].values.ndim > 1:
            target[:] = arrays[columns[0].name].reshape(len(target), -1)
        else:
            for i, column in enumerate(columns):
                target[:, i] = arrays[column.name]


def ordered_levels(entries: Sequence[Level]) -> tuple[Level, ...]:
    """The levels, the most frequent first; of equally frequent ones that which is seen first.

    The order does not look at the names, so that renaming levels renames the result of a fit and changes nothing else.

    >>> ordered_levels(["b", "c", "a", "c"])
    ('c', 'b', 'a')
    """
    return tuple(level for level, _ in Counter(entries).most_common())


def level_codes(column: Column, levels: tuple[Level, ...], label: str) -> NDArray[np.intp]:
    """Each entry's place among the levels; another level is an error that lists the known ones.

    >>> level_codes(Column("region", np.array(["s", "n"])), ("n", "s"), "region")
    array([1, 0])
    """
    code = {level: i for i, level in enumerate(levels)}
    entries = category_entries(column, label)
    try:
        return np.array([code[entry] for entry in entries], dtype=np.intp)
    except KeyError:
        unseen = np.array([entry not in code for entry in entries], dtype=bool)
        new = sorted({repr(entry) for entry in entries if entry not in code})[:5]
        known = ", ".join(map(repr, levels[:20])) + (", ..." if len(levels) > 20 else "")
        raise DataError(
            f"{label} has levels unseen at fit, {', '.join(new)}, in "
            f"{counted(unseen, 'row')}. Drop these rows or recode them to the known levels: {known}."
        ) from None


def _check_binaries(flat: FloatArray, blocks: Sequence[CovariateBlock], labels: Sequence[str]) -> None:
    for block in blocks:
        if block.kind == BlockKind.binary:
            for i in range(block.start, block.stop):
                check_binary(flat[:, i], labels[i], "Recode it as 0 and 1, or declare another kind.")
