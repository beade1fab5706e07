"""Typed blocks of covariates: their kinds, how a user declares them, and the matrix that a table becomes by them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count, groupby
from typing import Any

import numpy as np

from bgmiv.data.messages import (
    Column,
    FloatArray,
    Positions,
    check_binary,
    check_finite,
    counted,
    float_matrix,
    is_zero_one,
    listed,
    missing_rows,
    numeric,
    quoted,
    role_label,
    setting,
    warn_user,
)
from bgmiv.data.table import Table
from bgmiv.errors import DataError

__all__ = [
    "BlockKind",
    "BlockSpec",
    "CovariateBlock",
    "Declaration",
    "Level",
    "category_entries",
    "encode",
    "is_flag",
    "level_codes",
    "ordered_levels",
    "plan_blocks",
]

Level = str | int | float | bool

_MAX_LEVELS = 1000


class BlockKind(StrEnum):
    """What a block of covariates holds, hence how it is scaled and modelled."""

    continuous = "continuous"
    binary = "binary"
    categorical = "categorical"
    vector = "vector"
    image = "image"


@dataclass(frozen=True)
class BlockSpec:
    """A user's declaration of one block of covariates.

    Args:
        kind: one of the names in `BlockKind`.
        columns: the table's columns that form the block, next to each other and in the table's order; None for
            the single column or array that the declaration is keyed by.
        shape: height, width and (optionally) channels of an image that comes as flat columns.

    >>> BlockSpec("vector", columns=["proxy_0", "proxy_1"]).columns
    ('proxy_0', 'proxy_1')
    >>> BlockSpec("image", shape=(28, 28)).shape
    (28, 28, 1)
    """

    kind: BlockKind | str
    columns: Sequence[str] | None = None
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Normalise the kind, the columns and the shape, refusing what no block can be."""
        try:
            object.__setattr__(self, "kind", BlockKind(self.kind))
        except ValueError:
            known = quoted(kind.value for kind in BlockKind)
            raise DataError(f"blocks: unknown kind {self.kind!r}; use one of {known}.") from None
        if self.columns is not None:
            columns = (self.columns,) if isinstance(self.columns, str) else tuple(map(str, self.columns))
            if not columns or len(set(columns)) < len(columns):
                raise DataError(f"blocks: give one or more distinct column names, got {list(columns)}.")
            object.__setattr__(self, "columns", columns)
        if self.shape is not None:
            if self.kind != BlockKind.image:
                kind = str(self.kind)
                raise DataError(f"blocks: a shape is for images only, not for a {kind!r} block; leave it out.")
            sizes = tuple(int(size) for size in self.shape)
            if len(sizes) not in (2, 3) or min(sizes) < 1:
                raise DataError(f"blocks: give an image's shape as (height, width, channels), got {self.shape}.")
            object.__setattr__(self, "shape", sizes if len(sizes) == 3 else (*sizes, 1))


Declaration = BlockKind | str | BlockSpec


@dataclass(frozen=True)
class CovariateBlock:
    """One typed block of covariates and its place in the flat matrix.

    Args:
        name: the block's name.
        kind: what it holds.
        columns: names of its input columns (an array entry `proxy` of width two has `proxy[0]`, `proxy[1]`).
        start, stop: its columns of the flat matrix.
        shape: height, width and channels of an image; None for scores that stand for images.
        levels: of a categorical column, in the order of its one-hot columns, the most frequent first.
        from_array: whether the block was one two- or more-dimensional entry of a mapping.
        source: the table's column that a term of a formula stands for under another name: `region` for `C(region)`.
        pixel_max: the value of a white pixel in the images of the fit, 255 or 1. The flat matrix holds pixels from 0
            to 1 in either case, so it does not count when blocks are compared.
    """

    name: str
    kind: BlockKind
    columns: tuple[str, ...]
    start: int
    stop: int
    shape: tuple[int, ...] | None = None
    levels: tuple[Level, ...] | None = None
    from_array: bool = False
    source: str = ""
    pixel_max: float = field(default=1.0, compare=False)

    @property
    def width(self) -> int:
        """Number of columns in the flat matrix."""
        return self.stop - self.start

    @property
    def flat_names(self) -> tuple[str, ...]:
        """One name for each column of the flat matrix."""
        if self.levels is None:
            return self.columns
        return tuple(f"{self.name}={level}" for level in self.levels)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names a table or mapping uses for this block."""
        return (self.name,) if self.from_array else self.columns

    @property
    def holds_pixels(self) -> bool:
        """Whether it holds images themselves; an image block without a shape holds scores of images."""
        return self.kind is BlockKind.image and self.shape is not None

    @property
    def scaled(self) -> bool:
        """Whether scaling applies; zeros and ones, and pixels from 0 to 1, are left as they are."""
        return self.kind in (BlockKind.continuous, BlockKind.vector)


def category_entries(column: Column) -> list[Level]:
    """The entries of a categorical column as Python scalars, none missing or infinite."""
    label = column.label
    if column.values.dtype.kind in "Mmc":
        numeric(column)
    missing = missing_rows(column.values)
    if missing.any():
        have = counted(missing, "missing value")
        raise DataError(f"{label} has {have}. Drop these rows, or give them their own level.")
    entries = [entry.item() if isinstance(entry, np.generic) else entry for entry in column.values.tolist()]
    odd = sorted(kind.__name__ for kind in set(map(type, entries)) if not issubclass(kind, Level))
    if odd:
        raise DataError(f"{label} holds entries of type {', '.join(odd)}. Convert it with .astype(str).")
    levels = set(entries)
    texts = [level for level in levels if isinstance(level, str)]
    if any(text.endswith("\0") for text in texts):
        raise DataError(f"{label} has words that end in a zero byte, which NumPy leaves out. Remove it.")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise DataError(f"{label} has words that are no text (a broken encoding). Read it in its encoding.") from None
    if levels & {math.inf, -math.inf}:
        infinite = np.array([entry in (math.inf, -math.inf) for entry in entries])
        raise DataError(f"{label} has {counted(infinite, 'infinite value')}. Drop or fill these rows first.")
    return entries


def ordered_levels(entries: Sequence[Level]) -> tuple[Level, ...]:
    """The levels, the most frequent first; of equally frequent ones, the one seen first."""
    # The order does not depend on the names: renaming levels changes nothing else of a fit.
    return tuple(level for level, _ in Counter(entries).most_common())


def level_codes(column: Column, levels: tuple[Level, ...]) -> Positions:
    """Each entry's place among the levels; another level is an error that lists the known ones."""
    code = {level: i for i, level in enumerate(levels)}
    entries = category_entries(column)
    codes = np.array([code.get(entry, -1) for entry in entries], dtype=np.intp)
    if (unseen := codes < 0).any():
        new = sorted({repr(entry) for entry in entries if entry not in code})[:5]
        raise DataError(
            f"{column.label} has levels unseen at fit, {', '.join(new)}, in {counted(unseen, 'row')}. Drop these rows "
            f"or recode them to the known levels: {quoted(levels, 20)}."
        )
    return codes


def plan_blocks(table: Table, declared: Mapping[str, Declaration] | None) -> tuple[CovariateBlock, ...]:
    """Lay the columns of a table out as blocks, in the table's order.

    Plain numeric columns next to each other form one continuous block, those of 0 and 1 only a binary one. A boolean
    column is a binary block of its own, and one whose dtype is categories a categorical block. A two-dimensional entry
    of a mapping is a vector, one of three or four dimensions images. A declaration overrides all this.
    """
    specs = _declarations(declared)
    groups = _groups(table, specs)

    def block_of(column: Column) -> tuple[str, BlockSpec]:
        name = groups.get(column.name, column.name)
        spec = specs.get(name) or BlockSpec(_default_kind(column))
        single = column.name not in groups and column.values.ndim == 1
        plain = single and (spec.kind is BlockKind.continuous or (name not in specs and is_flag(column)))
        return "" if plain else name, spec

    blocks: list[CovariateBlock] = []
    taken = {*table.names, *specs}
    for (name, spec), run in groupby(table.columns, block_of):
        columns = list(run)
        if not name and len(columns) > 1:
            free = ("covariates" if i == 1 else f"covariates_{i}" for i in count(1))
            name = next(each for each in free if each not in taken)
            taken.add(name)
        blocks.append(_block(name or columns[0].name, spec, columns, blocks[-1].stop if blocks else 0))
    return tuple(blocks)


def _declarations(declared: Any) -> dict[str, BlockSpec]:
    if not isinstance(declared, Mapping | None):
        raise DataError(
            "blocks must be a mapping of names to kinds, such as {'region': 'categorical'}, "
            f"got {type(declared).__name__}."
        )
    specs: dict[str, BlockSpec] = {}
    for key, value in (declared or {}).items():
        spec = BlockSpec(value) if isinstance(value, str) else value
        if not isinstance(spec, BlockSpec):
            raise DataError(f"blocks[{key!r}] must be a kind such as 'categorical' or a BlockSpec, got {value!r}.")
        specs[str(key)] = spec
    return specs


def is_flag(column: Column) -> bool:
    """Whether a column of numbers holds 0 and 1 only, and both."""
    values = column.values
    plain = values.ndim == 1 and values.dtype.kind in "iuf" and not column.categorical
    return plain and len(values) > 0 and is_zero_one(values) and bool(values.min() < values.max())


def _default_kind(column: Column) -> BlockKind:
    if column.categorical:
        return BlockKind.categorical
    if (column.values.ndim == 1 and column.values.dtype.kind == "b") or is_flag(column):
        return BlockKind.binary
    return (BlockKind.continuous, BlockKind.vector, BlockKind.image, BlockKind.image)[column.values.ndim - 1]


def _groups(table: Table, specs: Mapping[str, BlockSpec]) -> dict[str, str]:
    """The block of each column that is declared as one of several."""
    known = table.by_name
    groups: dict[str, str] = {}
    for name, spec in specs.items():
        absent = [column for column in spec.columns or (name,) if column not in known]
        if absent:
            raise DataError(
                f"{setting('blocks', column=name)}: no covariate named {', '.join(absent)}; there are "
                f"{listed(known, 20) or 'none'}."
            )
        if spec.columns is None:
            continue
        where = f"blocks[{name!r}]"
        if name in known and name not in spec.columns:
            raise DataError(f"{where} has the name of a column outside the block. Use another name.")
        start = table.names.index(spec.columns[0])
        if table.names[start : start + len(spec.columns)] != tuple(spec.columns):
            raise DataError(
                f"{where}: its columns must be next to each other in the covariates, in the same order. Reorder the "
                "covariates or the declaration."
            )
        for column in spec.columns:
            if column in groups or (column in specs and column != name):
                other = groups.get(column, column)
                raise DataError(f"blocks: column {column!r} is declared in {other!r} and {name!r}. Keep one.")
            if known[column].values.ndim > 1:
                raise DataError(
                    f"{where}: {column} is an array, hence a block of its own. Declare it as blocks[{column!r}], "
                    "without columns."
                )
            groups[column] = name
    return groups


def _block(name: str, spec: BlockSpec, columns: Sequence[Column], start: int) -> CovariateBlock:
    kind, first = BlockKind(spec.kind), columns[0]
    if kind == BlockKind.categorical:
        if len(columns) > 1 or first.values.ndim > 1:
            raise DataError(f"blocks[{name!r}]: a categorical block is one column. Declare them one by one.")
        levels = ordered_levels(category_entries(first))
        kinds = sorted({type(level).__name__ for level in levels})
        if "str" in kinds and len(kinds) > 1:
            raise DataError(f"{first.label} mixes levels of types {', '.join(kinds)}. Convert it with .astype(str).")
        if len(levels) > _MAX_LEVELS:
            raise DataError(
                f"{first.label} has {len(levels)} levels, more than {_MAX_LEVELS}. Group them into fewer, or drop the "
                "column if it is an identifier."
            )
        stop = start + len(levels)
        return CovariateBlock(name, kind, (first.name,), start, stop, levels=levels, source=first.source)
    inner = first.values.shape[1:]
    width = math.prod(inner) if inner else len(columns)
    if width == 0:
        raise DataError(f"{first.label} has shape {first.values.shape}, no columns. Leave it out.")
    names = tuple(f"{name}[{i}]" for i in range(width)) if inner else tuple(column.name for column in columns)
    source = first.source if len(columns) == 1 else ""
    block = CovariateBlock(name, kind, names, start, start + width, from_array=bool(inner), source=source)
    if kind != BlockKind.image:
        return block
    brightest = max(float(numeric(column).max(initial=0)) for column in columns)
    return replace(block, shape=_shape(name, spec, inner, width), pixel_max=255.0 if brightest > 1 else 1.0)


def _shape(name: str, spec: BlockSpec, inner: tuple[int, ...], width: int) -> tuple[int, ...]:
    """Height, width and channels of images, as declared or as the array has them."""
    full = (*inner, 1) if len(inner) == 2 else inner
    if spec.shape is None and len(inner) < 2:
        raise DataError(
            f"blocks[{name!r}]: an image from flat columns needs its shape, "
            "BlockSpec('image', shape=(height, width, channels))."
        )
    shape = spec.shape or full
    if math.prod(shape) != width or (len(inner) > 1 and full != shape):
        have = f"shape {inner}" if inner else f"{width} columns"
        raise DataError(f"blocks[{name!r}]: the declared shape {shape} does not fit the data's {have}. Correct it.")
    return shape


def encode(table: Table, blocks: Sequence[CovariateBlock], *, at_fit: bool = True) -> FloatArray:
    """The flat matrix (n, p) of a table whose columns are the blocks' columns, in order; after the fit kinds are fixed.

    Pixels are divided by their block's `pixel_max`, so that they lie between 0 and 1.
    """
    parts = [np.zeros((table.n_rows, 0), dtype=bool)]
    position = 0
    for block in blocks:
        # A plain matrix carries an array block as that many columns.
        flat_array = block.from_array and table.columns[position].values.ndim == 1
        stop = position + (block.width if flat_array else len(block.input_names))
        for column in table.columns[position:stop]:
            declare = f"declare it with {setting('blocks', 'categorical', column.name)}, or drop it"
            advice = declare if at_fit else "correct them, or leave such rows out: it held numbers at the fit"
            if block.levels is None:
                parts.append(numeric(column, advice).reshape(table.n_rows, -1))
            else:
                parts.append(level_codes(column, block.levels)[:, None] == np.arange(block.width))
        position = stop
    flat = float_matrix(parts)
    labels = [role_label("covariates", name) for block in blocks for name in block.flat_names]
    check_finite(flat, labels)
    for block in blocks:
        if block.kind is BlockKind.binary:
            for i in range(block.start, block.stop):
                check_binary(flat[:, i], labels[i], f"Recode it as 0 and 1{', or declare another kind' * at_fit}.")
        if block.holds_pixels:
            _scale_pixels(flat[:, block.start : block.stop], block)
    return flat


def _scale_pixels(pixels: FloatArray, block: CovariateBlock) -> None:
    """Divide the pixels of a block by its `pixel_max`, in place."""
    outside = (pixels.min(axis=1) < 0) | (pixels.max(axis=1) > block.pixel_max)
    if outside.any():
        raise DataError(
            f"covariates block {block.name!r} holds images with pixels below 0 or above {block.pixel_max:g} in "
            f"{counted(outside, 'row')}. Pass pixels from 0 to {block.pixel_max:g} as at the fit, perhaps divided by "
            "255, or declare the block as 'vector' if these are not pixels."
        )
    if block.pixel_max != 1 and pixels.max() <= 1 and (pixels % 1 != 0).any():
        warn_user(
            f"covariates block {block.name!r}: no pixel exceeds 1, and the images of the fit have pixels from 0 to "
            f"{block.pixel_max:g}, so these are nearly black. Multiply them by {block.pixel_max:g} if their white is 1."
        )
    pixels /= block.pixel_max
