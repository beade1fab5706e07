"""From a table's columns and the user's declarations to typed blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bgmiv.data.blocks import BlockKind, BlockSpec, CovariateBlock, Level
from bgmiv.data.checks import is_zero_one, warn_user
from bgmiv.data.columns import Column, Table
from bgmiv.data.encode import category_entries, covariate_label, ordered_levels
from bgmiv.errors import DataError

__all__ = ["Declaration", "plan_blocks"]

Declaration = BlockKind | str | BlockSpec

_MOST_LEVELS = 1000
_SHOWN = 5
_DEFAULT = {1: BlockKind.continuous, 2: BlockKind.vector, 3: BlockKind.image, 4: BlockKind.image}


def plan_blocks(table: Table, declared: Mapping[str, Declaration] | None) -> tuple[CovariateBlock, ...]:
    """Lay the columns of a table out as blocks, in the table's order.

    Plain numeric columns next to each other form one continuous block; a boolean column is a binary block of
    its own, one whose dtype is categories a categorical one; a two-dimensional entry of a mapping is a vector, one
    of three or four dimensions an image. A declaration overrides all this. Undeclared numbers that are 0 and 1 only
    are asked about by a warning.

    >>> import numpy as np
    >>> from bgmiv.data.columns import read_table
    >>> columns = {"age": [30, 40], "income": [1.0, 2.0], "proxy": np.zeros((2, 3))}
    >>> table = read_table(columns, "covariates", "covariate")
    >>> [(block.name, str(block.kind), block.width) for block in plan_blocks(table, None)]
    [('covariates', 'continuous', 2), ('proxy', 'vector', 3)]
    """
    if declared is not None and not isinstance(declared, Mapping):
        raise DataError(
            f"blocks must be a mapping of names to kinds, such as {{'region': 'categorical'}}, got "
            f"{type(declared).__name__}."
        )
    specs = {str(key): _spec(key, value) for key, value in (declared or {}).items()}
    groups = _groups(table, specs)
    blocks: list[CovariateBlock] = []
    run: list[str] = []
    taken = set(table.names) | set(specs)

    def add(name: str, spec: BlockSpec, columns: Sequence[Column]) -> None:
        close_run()
        blocks.append(_block(name, spec, columns, blocks[-1].stop if blocks else 0))

    def close_run() -> None:
        if run:
            start = blocks[-1].stop if blocks else 0
            name = run[0] if len(run) == 1 else _free_name(taken)
            taken.add(name)
            blocks.append(CovariateBlock(name, BlockKind.continuous, tuple(run), start, start + len(run)))
            run.clear()

    position = 0
    while position < len(table.columns):
        column = table.columns[position]
        if column.name in groups:
            name = groups[column.name]
            width = len(specs[name].columns or ())
            columns = table.columns[position : position + width]
            _check_group(name, specs[name], columns)
            add(name, specs[name], columns)
            position += width
            continue
        spec = specs.get(column.name) or BlockSpec(_default_kind(column))
        if column.values.ndim == 1 and spec.kind == BlockKind.continuous:
            run.append(column.name)
        else:
            add(column.name, spec, (column,))
        position += 1
    close_run()
    _ask_about_zero_one(table, set(specs) | set(groups))
    return tuple(blocks)


def _default_kind(column: Column) -> BlockKind:
    if column.categorical:
        return BlockKind.categorical
    if column.values.ndim == 1 and column.values.dtype.kind == "b":
        return BlockKind.binary
    return _DEFAULT[column.values.ndim]


def _ask_about_zero_one(table: Table, declared: set[str]) -> None:
    plain = [c for c in table.columns if c.name not in declared and c.values.ndim == 1 and c.values.dtype.kind in "iuf"]
    flags = [c.name for c in plain if is_zero_one(c.values) and len(c.values) and c.values.min() < c.values.max()]
    if flags:
        shown, more = flags[:_SHOWN], ", ..." if len(flags) > _SHOWN else ""
        kinds = ", ".join(f"{name!r}: 'binary'" for name in shown)
        warn_user(
            f"covariates {', '.join(map(repr, shown))}{more}: only 0 and 1, taken for continuous. Say "
            f"blocks={{{kinds}{more}}} to model such a column as binary, or 'continuous' there to silence this warning."
        )


def _spec(key: Any, value: Declaration) -> BlockSpec:
    if isinstance(value, BlockSpec):
        return value
    if isinstance(value, str):
        return BlockSpec(value)
    raise DataError(f"blocks[{key!r}] must be a kind such as 'categorical' or a BlockSpec, got {value!r}.")


def _groups(table: Table, specs: Mapping[str, BlockSpec]) -> dict[str, str]:
    known = dict.fromkeys(table.names)
    groups: dict[str, str] = {}
    for name, spec in specs.items():
        columns: Iterable[str] = (name,) if spec.columns is None else spec.columns
        absent = [column for column in columns if column not in known]
        if absent:
            names = ", ".join(list(known)[:20]) or "none"
            raise DataError(f"blocks[{name!r}]: no covariate named {', '.join(absent)}; there are {names}.")
        if spec.columns is None:
            continue
        if name in known and name not in spec.columns:
            raise DataError(f"blocks[{name!r}] has the name of a column outside the block. Use another name.")
        for column in spec.columns:
            if column in groups or (column in specs and column != name):
                other = groups.get(column, column)
                raise DataError(f"blocks: column {column!r} is declared in {other!r} and {name!r}. Keep one.")
            groups[column] = name
    return groups


def _check_group(name: str, spec: BlockSpec, columns: Sequence[Column]) -> None:
    if tuple(column.name for column in columns) != spec.columns:
        raise DataError(
            f"blocks[{name!r}]: its columns must be next to each other in the covariates, in the same order. "
            "Reorder the covariates or the declaration."
        )
    deep = [column.name for column in columns if column.values.ndim > 1]
    if deep:
        raise DataError(
            f"blocks[{name!r}]: {', '.join(deep)} is an array, hence a block of its own. "
            f"Declare it as blocks[{deep[0]!r}], without columns."
        )


def _block(name: str, spec: BlockSpec, columns: Sequence[Column], start: int) -> CovariateBlock:
    kind, first = BlockKind(spec.kind), columns[0]
    if kind == BlockKind.categorical:
        if len(columns) > 1 or first.values.ndim > 1:
            raise DataError(f"blocks[{name!r}]: a categorical block is one column. Declare them one by one.")
        levels = _levels(first)
        return CovariateBlock(name, kind, (first.name,), start, start + len(levels), levels=levels)
    inner = first.values.shape[1:]
    width = math.prod(inner) if inner else len(columns)
    if width == 0:
        raise DataError(f"{covariate_label(name)} has shape {first.values.shape}, no columns. Leave it out.")
    shape = _shape(name, spec, inner, width) if kind == BlockKind.image else None
    names = tuple(f"{name}[{i}]" for i in range(width)) if inner else tuple(column.name for column in columns)
    return CovariateBlock(name, kind, names, start, start + width, shape=shape, from_array=bool(inner))


def _shape(name: str, spec: BlockSpec, inner: tuple[int, ...], width: int) -> tuple[int, ...]:
    if spec.shape is None:
        if len(inner) < 2:
            raise DataError(
                f"blocks[{name!r}]: an image from flat columns needs its shape, "
                f"BlockSpec('image', shape=(height, width, channels))."
            )
        return inner if len(inner) == 3 else (*inner, 1)
    full = (*inner, 1) if len(inner) == 2 else inner
    if math.prod(spec.shape) != width or (len(inner) > 1 and full != spec.shape):
        have = f"shape {inner}" if inner else f"{width} columns"
        raise DataError(
            f"blocks[{name!r}]: the declared shape {spec.shape} does not fit the data's {have}. Correct it."
        )
    return spec.shape


def _levels(column: Column) -> tuple[Level, ...]:
    levels = ordered_levels(category_entries(column, covariate_label(column.name)))
    kinds = sorted({type(level).__name__ for level in levels})
    if "str" in kinds and len(kinds) > 1:
        raise DataError(
            f"{covariate_label(column.name)} mixes levels of types {', '.join(kinds)}. Convert it with .astype(str)."
        )
    if len(levels) > _MOST_LEVELS:
        raise DataError(
            f"{covariate_label(column.name)} has {len(levels)} levels, more than {_MOST_LEVELS}. "
            "Group them into fewer, or drop the column if it is an identifier."
        )
    return levels


def _free_name(taken: set[str]) -> str:
    name, count = "covariates", 1
    while name in taken:
        count += 1
        name = f"covariates_{count}"
    return name
