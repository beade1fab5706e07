"""What a fit remembers of its data: roles and blocks, by which rows are read, and later ones checked and encoded."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bgmiv.data.blocks import (
    BlockKind,
    BlockSpec,
    CovariateBlock,
    Level,
    category_entries,
    covariate_label,
    is_flag,
    level_codes,
    ordered_levels,
)
from bgmiv.data.messages import (
    FloatArray,
    check_binary,
    check_finite,
    common_float,
    counted,
    finite_columns,
    is_number,
    numeric,
    plural,
    role_label,
    setting,
    shown,
    warn_user,
)
from bgmiv.data.table import Column, Table, check_same_rows, read_column, read_columns
from bgmiv.errors import DataError

__all__ = [
    "BlockKind",
    "BlockSpec",
    "CovariateBlock",
    "RoleKind",
    "Schema",
    "Variable",
    "check_are_levels",
    "encode",
    "holds_words",
    "read_role",
    "with_levels",
]

RoleKind = Literal["auto", "continuous", "binary", "categorical"]

_MAX_LEVELS = 50
# Of fewer rows two values say nothing.
_MIN_ROWS = 10
_DECIMAL_COMMA = re.compile(r"\s*[-+]?\d+,\d+\s*")


@dataclass(frozen=True)
class Variable:
    """The outcome or the treatment: its name, and whether it is continuous, binary or categorical.

    Args:
        name: the column's name.
        kind: what it holds.
        levels: the names of its levels, in the order of their codes 0, 1, ...; None for numbers. They come in order of
            frequency, those of an outcome with two sorted.

    >>> dose = Variable("dose", BlockKind.categorical, ("none", "low", "high"))
    >>> dose.width, dose.columns(np.array([2.0, 0.0])).tolist()
    (3, [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    """

    name: str
    kind: BlockKind
    levels: tuple[Level, ...] | None = None

    @property
    def discrete(self) -> bool:
        """Whether it is binary or categorical; such a variable is never scaled."""
        return self.kind in (BlockKind.binary, BlockKind.categorical)

    @property
    def width(self) -> int:
        """Columns that stand for it in a regression: one, or an indicator for each of three or more levels."""
        return len(self.levels) if self.kind is BlockKind.categorical and self.levels else 1

    def columns(self, values: FloatArray) -> FloatArray:
        """Numbers or codes (n,) as the (n, width) columns that stand for them."""
        if self.width == 1:
            return values[:, None]
        return np.asarray(values[:, None] == np.arange(self.width), dtype=values.dtype)


def read_role(column: Column, argument: str, declared: str) -> tuple[FloatArray, Variable]:
    """The values `(n,)` of the outcome or the treatment, and what they are.

    Numbers stay as they are. Strings and categories become codes: two levels are 0 and 1, K levels 0 to K - 1.
    `argument` is "outcome" or "treatment"; `declared` is what the user says it is, "auto" goes by the dtype,
    and takes numbers that are 0 and 1 only for binary.
    """
    label = role_label(argument, column.name)
    if declared not in get_args(RoleKind):
        known = ", ".join(repr(kind) for kind in get_args(RoleKind))
        raise DataError(f"{argument}_kind must be one of {known}, got {declared!r}.")
    as_levels, as_number = (setting(f"{argument}_kind", kind) for kind in ("categorical", "continuous"))
    if declared == "categorical" or (declared != "continuous" and (column.categorical or holds_words(column))):
        entries = category_entries(column, label)
        if declared == "auto" and not column.categorical:
            check_are_levels(entries, label, f"Convert it to numbers, or say {as_levels}.")
        values, kind, levels = _levelled(entries, argument, label, declared)
        return values, Variable(column.name, kind, levels)
    advice = f"convert it to numbers first, or say {as_levels}"
    values = finite_columns([column.values], [label], advice)[:, 0]
    kind = BlockKind.binary if column.values.dtype.kind == "b" else BlockKind.continuous
    if declared != "auto":
        kind = BlockKind(declared)
        if declared == "binary":
            check_binary(values, label, f"Recode it as 0 and 1, or use {as_number}.")
    elif is_flag(column):
        kind = BlockKind.binary
    elif kind is BlockKind.continuous and len(pair := _two_values(values)) == 2:
        warn_user(
            f"{label} has two values only, {pair[0]:g} and {pair[1]:g}, and is taken for a number. Say {as_levels} "
            f"if they are levels, or {as_number} to silence this warning."
        )
    return values, Variable(column.name, kind)


def _two_values(values: FloatArray) -> FloatArray:
    """The two values of a column that has no others; nothing for any other column, or a very short one."""
    # Most columns are told by their first values.
    if len(values) < _MIN_ROWS or len(np.unique(values[:1000])) > 2:
        return values[:0]
    found = np.unique(values)
    return found if len(found) == 2 else values[:0]


def holds_words(column: Column) -> bool:
    """Whether there are strings in the column."""
    values = column.values
    return values.dtype.kind in "UST" or (values.dtype.kind == "O" and any(isinstance(v, str) for v in values.ravel()))


def check_are_levels(entries: Sequence[Level], label: str, fix: str) -> None:
    """Refuse undeclared strings that look like numbers, like numbers with a few odd cells, or like identifiers."""
    levels = set(entries)
    words = {level for level in levels if not is_number(level)}
    if not words:
        raise DataError(f"{label} holds strings that are numbers. {fix}")
    odd = np.array([entry in words for entry in entries], dtype=bool)
    word = entries[int(odd.argmax())]
    first = shown(word)
    if all(_DECIMAL_COMMA.fullmatch(str(word)) for word in words):
        what = f"{label} holds numbers with commas, such as {first}"
        say = setting("decimal", ",")
        raise DataError(f"{what}. If these are decimal commas of a file, say {say}; else remove them. {fix}")
    if 2 * int(odd.sum()) <= len(entries):
        raise DataError(
            f"{label} holds numbers, but {first} is not one: {counted(odd, 'value')} to correct. If it is from a file, "
            f"{setting('na_values', [str(word)])} reads it as missing. {fix}"
        )
    if 2 * len(levels) > len(entries):
        raise DataError(f"{label} holds strings, {len(levels)} different ones in {len(entries)} rows. {fix}")


def with_levels(column: Column, declared: Container[str]) -> Column:
    """The covariate, known as categorical if it holds undeclared strings that are no numbers or identifiers."""
    if column.name in declared or column.categorical or column.values.ndim != 1 or not holds_words(column):
        return column
    label = covariate_label(column.name)
    fix = f"Convert it to numbers, or declare it with {setting('blocks', 'categorical', column.name)}."
    check_are_levels(category_entries(column, label), label, fix)
    return column._replace(categorical=True)


def _levelled(
    entries: Sequence[Level], argument: str, label: str, declared: str
) -> tuple[FloatArray, BlockKind, tuple[Level, ...] | None]:
    """Codes of levels; zeros and ones need no names."""
    levels = ordered_levels(entries)
    if len(levels) == 1:
        raise DataError(f"{label} is constant, {levels[0]!r} in every row, and tells nothing. Use one that varies.")
    if len(levels) > _MAX_LEVELS:
        fix = f"Group them into fewer, or pass numbers with {setting(f'{argument}_kind', 'continuous')}."
        raise DataError(f"{label} has {len(levels)} levels, more than {_MAX_LEVELS}. {fix}")
    kind = BlockKind.binary if len(levels) == 2 else BlockKind.categorical
    if declared == "binary" and len(levels) > 2:
        shown = ", ".join(map(repr, levels[:5]))
        fix = f"Recode it, or say {setting(f'{argument}_kind', 'categorical')}."
        raise DataError(f"{label} is binary but has {len(levels)} levels: {shown}. {fix}")
    if len(levels) == 2 and all(not isinstance(level, str) and level in (0, 1) for level in levels):
        return np.array(entries, dtype=float), kind, None
    if argument == "outcome" and len(levels) == 2:
        # What is predicted is the probability of the second level, which must not depend on how often it is seen.
        levels = tuple(sorted(levels, key=lambda level: (isinstance(level, str), level)))
    code = {level: float(i) for i, level in enumerate(levels)}
    return np.array([code[entry] for entry in entries]), kind, levels


@dataclass(frozen=True)
class Schema:
    """The names, kinds and layout of one data set; hashable, and free of data.

    Args:
        outcome: the outcome's name and kind.
        treatment: the treatment's name and kind.
        instruments: the instruments' names.
        blocks: the covariates' blocks, in the order of the flat matrix.
        named: whether the covariates came with names, so that tables given later must have the same.
    """

    outcome: Variable
    treatment: Variable
    instruments: tuple[str, ...]
    blocks: tuple[CovariateBlock, ...] = ()
    named: bool = False

    @property
    def n_covariates(self) -> int:
        """Width p of the flat matrix, one-hot columns counted one by one."""
        return self.blocks[-1].stop if self.blocks else 0

    @property
    def covariate_names(self) -> tuple[str, ...]:
        """Names of the input columns; a categorical column counts once."""
        return tuple(name for block in self.blocks for name in block.columns)

    @property
    def flat_names(self) -> tuple[str, ...]:
        """Names of the p columns of the flat matrix."""
        return tuple(name for block in self.blocks for name in block.flat_names)

    @property
    def has_wide_block(self) -> bool:
        """Whether there is a vector or image block."""
        return any(block.kind in (BlockKind.vector, BlockKind.image) for block in self.blocks)

    def check_query(self, treatment: Any, covariates: Any = None) -> tuple[FloatArray, FloatArray]:
        """Treatment (m,) and covariates (m, p) of a prediction, validated; a scalar is repeated for every row."""
        if _is_scalar(treatment):
            flat = self.check_covariates(covariates, n_rows=None if self.blocks else 1)
            return self.check_treatment(treatment, len(flat)), flat
        _, table = read_column(treatment, "treatment")
        values = self.check_treatment(treatment, table.n_rows)
        if self.blocks and covariates is not None:
            covariates = read_columns(covariates, "covariates", "covariate")
            check_same_rows({"treatment": table, "covariates": covariates})
        return values, self.check_covariates(covariates, n_rows=table.n_rows)

    def check_covariates(self, values: Any, n_rows: int | None = None) -> FloatArray:
        """The flat matrix (m, p) of covariates given after the fit, in any container accepted at the fit.

        A table's columns may stand in any order. A plain array is read by position, one column for each of the fit's: a
        categorical column holds its levels. `values` is None if the fit had none; `n_rows` is the number of rows they
        must have.
        """
        table = None if values is None else read_columns(values, "covariates", "covariate")
        if not self.blocks:
            if table is not None and table.columns:
                have = plural(len(table.columns), "column")
                raise DataError(f"covariates have {have}, but the fit had none. Leave them out.")
            n_rows = table.n_rows if table is not None and n_rows is None else n_rows
            if n_rows is None:
                raise DataError("the fit had no covariates, so the number of rows must be given as n_rows.")
            return np.zeros((n_rows, 0))
        if table is None:
            raise DataError(f"covariates are missing. Pass those of the fit: {_listed(self.covariate_names)}.")
        if table.n_rows == 0:
            raise DataError("covariates have no rows. Pass at least one.")
        if n_rows is not None and table.n_rows != n_rows:
            rows = plural(table.n_rows, "row")
            raise DataError(f"covariates have {rows} but the treatment has {n_rows}. Pass the same rows.")
        table = self._by_name(table) if self.named and table.named else self._by_position(table)
        return encode(table, self.blocks, at_fit=False)

    def check_treatment(self, values: Any, n_rows: int) -> FloatArray:
        """The treatment (n_rows,) given after the fit, as codes if it has levels; a scalar is repeated."""
        label = "treatment"
        column, table = read_column(np.full(n_rows, values) if _is_scalar(values) else values, label)
        if table.n_rows == 0:
            raise DataError("treatment has no rows. Pass at least one.")
        if table.n_rows != n_rows:
            have = f"treatment has {plural(table.n_rows, 'row')} but the covariates have {n_rows}"
            raise DataError(f"{have}. Pass one value a row, or a single value for all.")
        if self.treatment.levels:
            return level_codes(column, self.treatment.levels, label).astype(np.float64)
        treatment: FloatArray = finite_columns([column.values], [label])[:, 0]
        if self.treatment.kind == BlockKind.binary:
            check_binary(treatment, label, "The fit declared a binary treatment: pass 0 or 1.")
        return treatment

    def _by_name(self, table: Table) -> Table:
        """The columns of the fit, in its order."""
        expected = [name for block in self.blocks for name in block.input_names]
        missing = [name for name in expected if name not in set(table.names)]
        extra = [name for name in table.names if name not in set(expected)]
        if missing or extra:
            parts = [f"lack {_listed(missing)}"] if missing else []
            parts += [f"have {_listed(extra)}, which the fit had not"] if extra else []
            raise DataError(f"covariates {' and '.join(parts)}. Pass the columns {_listed(expected)}.")
        table = table.part(expected)
        arrays = {column.name: column.values for column in table.columns}
        for block in self.blocks:
            for name in block.input_names:
                rows = arrays[name].shape[1:]
                if rows not in _row_shapes(block):
                    wanted = _row_shapes(block)[-1]
                    what = f"covariates entry {name!r} has rows of shape {rows} but the fit had {wanted}"
                    raise DataError(f"{what}. Pass rows of that shape.")
        return table

    def _by_position(self, table: Table) -> Table:
        """The columns of a table or an array without names, or for a fit without names."""
        width, wanted = len(table.columns), len(self.covariate_names)
        if any(column.values.ndim > 1 for column in table.columns):
            raise DataError("covariates must be an array or a table of single columns, as at the fit.")
        if width != wanted:
            one_row = width == 1 and table.n_rows == wanted
            fix = "For one row, pass values.reshape(1, -1)." if one_row else "Pass these columns."
            names = _listed(self.covariate_names)
            raise DataError(f"covariates have {plural(width, 'column')} but the fit had {wanted}: {names}. {fix}")
        return table


def _row_shapes(block: CovariateBlock) -> list[tuple[int, ...]]:
    """The shapes that an entry of a block may have in a row, that of the fit last."""
    if not block.from_array:
        return [()]
    shape = block.shape
    if shape is None:
        return [(block.width,)]
    return [(block.width,), shape, *([shape[:2]] if shape[2] == 1 else [])]


def _is_scalar(values: Any) -> bool:
    return bool(np.isscalar(values)) or getattr(values, "ndim", None) == 0


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:10])
    return f"{shown}, ... ({len(names)} in all)" if len(names) > 10 else shown


def encode(table: Table, blocks: Sequence[CovariateBlock], *, at_fit: bool = True) -> FloatArray:
    """The flat matrix (n, p) of a table whose columns are the blocks' columns, in order; after the fit kinds are fixed.

    Pixels are divided by their block's `pixel_max`, so that they lie between 0 and 1.
    """
    parts: list[tuple[CovariateBlock, Sequence[Column]]] = []
    arrays: dict[str, NDArray[Any]] = {}
    position = 0
    for block in blocks:
        # A plain matrix carries an array block as that many columns.
        flat_array = block.from_array and table.columns[position].values.ndim == 1
        stop = position + (block.width if flat_array else len(block.input_names))
        parts.append((block, table.columns[position:stop]))
        position = stop
        for column in () if block.levels is not None else parts[-1][1]:
            declare = f"declare it with {setting('blocks', 'categorical', column.name)}, or drop it"
            advice = declare if at_fit else "correct them, or leave such rows out: it held numbers at the fit"
            arrays[column.name] = numeric(column.values, covariate_label(column.name), advice)
    dtype = common_float(list(arrays.values()))
    plain = all(block.levels is None for block in blocks)
    with np.errstate(over="ignore"):
        if plain and table.matrix is not None and table.matrix.dtype.kind in "biuf":
            flat = np.array(table.matrix, dtype=dtype, order="C")
        else:
            flat = np.zeros((table.n_rows, blocks[-1].stop if blocks else 0), dtype=dtype)
            for block, columns in parts:
                _fill(flat[:, block.start : block.stop], block, columns, arrays)
    labels = [covariate_label(name) for block in blocks for name in block.flat_names]
    check_finite(flat, labels)
    for block in blocks:
        if block.kind == BlockKind.binary:
            for i in range(block.start, block.stop):
                check_binary(flat[:, i], labels[i], f"Recode it as 0 and 1{', or declare another kind' * at_fit}.")
        if block.holds_pixels and len(flat):
            _scale_pixels(flat[:, block.start : block.stop], block)
    return flat


def _fill(
    target: FloatArray, block: CovariateBlock, columns: Sequence[Column], arrays: dict[str, NDArray[Any]]
) -> None:
    if block.levels is not None:
        codes = level_codes(columns[0], block.levels, covariate_label(columns[0].name))
        target[np.arange(len(target)), codes] = 1
    elif columns[0].values.ndim > 1:
        target[:] = arrays[columns[0].name].reshape(len(target), -1)
    else:
        for i, column in enumerate(columns):
            target[:, i] = arrays[column.name]


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
