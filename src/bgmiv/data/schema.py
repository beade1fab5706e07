"""What a fit remembers of its data: roles and blocks, by which rows are read, and later ones checked and encoded."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from bgmiv.arrays import Floats
from bgmiv.data.blocks import (
    BlockKind,
    BlockSpec,
    CovariateBlock,
    Level,
    category_entries,
    encode,
    is_flag,
    level_codes,
    ordered_levels,
)
from bgmiv.data.messages import (
    Column,
    FloatArray,
    check_binary,
    counted,
    finite_columns,
    is_number,
    plural,
    quoted,
    setting,
    shown,
    warn_user,
)
from bgmiv.data.table import Table, read_column, read_columns
from bgmiv.errors import DataError

__all__ = [
    "BlockKind",
    "BlockSpec",
    "CovariateBlock",
    "RoleKind",
    "Schema",
    "Variable",
    "is_categorical",
    "is_scalar",
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

    def regressors(self, values: FloatArray) -> Floats:
        """The same in double precision, without the first level, the reference of a regression with a constant."""
        columns = self.columns(values).astype(np.float64)
        return columns if self.width == 1 else columns[:, 1:]


def read_role(column: Column, declared: str) -> tuple[FloatArray, Variable]:
    """The values `(n,)` of the outcome or the treatment, and what they are.

    Numbers stay as they are. Strings and categories become codes: two levels are 0 and 1, K levels 0 to K - 1.
    `declared` is what the user says it is; "auto" goes by the dtype, and numbers that are 0 and 1 only are binary.
    """
    label, argument = column.label, f"{column.role}_kind"
    if declared not in get_args(RoleKind):
        raise DataError(f"{argument} must be one of {quoted(get_args(RoleKind))}, got {declared!r}.")
    as_levels, as_number = setting(argument, "categorical"), setting(argument, "continuous")
    if declared == "categorical" or (declared != "continuous" and is_categorical(column)):
        entries = category_entries(column)
        if declared == "auto" and not column.categorical:
            _check_are_levels(entries, label, f"Convert it to numbers, or say {as_levels}.")
        return _read_levels(column, entries, declared == "binary")
    values = finite_columns([column], f"convert it to numbers first, or say {as_levels}")[:, 0]
    if declared == "auto":
        boolean = column.values.dtype.kind == "b"
        kind = BlockKind.binary if boolean or is_flag(column) else BlockKind.continuous
        # Most columns are told by their first values, and of very few rows two values say nothing.
        few = kind is BlockKind.continuous and len(values) >= _MIN_ROWS and len(np.unique(values[:1000])) <= 2
        if few and len(pair := np.unique(values)) == 2:
            warn_user(
                f"{label} has two values only, {pair[0]:g} and {pair[1]:g}, and is taken for a number. Say {as_levels} "
                f"if they are levels, or {as_number} to silence this warning."
            )
        return values, Variable(column.name, kind)
    if declared == "binary":
        check_binary(values, label, f"Recode it as 0 and 1, or use {as_number}.")
    return values, Variable(column.name, BlockKind(declared))


def _read_levels(column: Column, entries: Sequence[Level], is_binary: bool) -> tuple[FloatArray, Variable]:
    """Codes of levels; zeros and ones need no names."""
    label, levels = column.label, ordered_levels(entries)
    n_levels = len(levels)
    if n_levels == 1:
        raise DataError(f"{label} is constant, {levels[0]!r} in every row, and tells nothing. Use one that varies.")
    if n_levels > _MAX_LEVELS:
        fix = f"Group them into fewer, or pass numbers with {setting(f'{column.role}_kind', 'continuous')}."
        raise DataError(f"{label} has {n_levels} levels, more than {_MAX_LEVELS}. {fix}")
    if is_binary and n_levels > 2:
        fix = f"Recode it, or say {setting(f'{column.role}_kind', 'categorical')}."
        raise DataError(f"{label} is binary but has {n_levels} levels: {quoted(levels, 5)}. {fix}")
    kind = BlockKind.binary if n_levels == 2 else BlockKind.categorical
    if n_levels == 2 and all(not isinstance(level, str) and level in (0, 1) for level in levels):
        return np.array(entries, dtype=float), Variable(column.name, kind)
    if column.role == "outcome" and n_levels == 2:
        # What is predicted is the probability of the second level, which must not depend on how often it is seen.
        levels = tuple(sorted(levels, key=lambda level: (isinstance(level, str), level)))
    return level_codes(column, levels).astype(float), Variable(column.name, kind, levels)


def is_categorical(column: Column) -> bool:
    """Whether a column holds levels by itself: its dtype says so, or there are strings in it."""
    values = column.values
    if column.categorical or values.dtype.kind in "UST":
        return True
    return values.dtype.kind == "O" and any(isinstance(entry, str) for entry in values.ravel())


def with_levels(column: Column, declared: Container[str]) -> Column:
    """The covariate, known as categorical if it holds undeclared strings that are no numbers or identifiers."""
    if column.name in declared or column.categorical or column.values.ndim != 1 or not is_categorical(column):
        return column
    column = column._replace(role="covariates", categorical=True)
    fix = f"Convert it to numbers, or declare it with {setting('blocks', 'categorical', column.name)}."
    _check_are_levels(category_entries(column), column.label, fix)
    return column


def _check_are_levels(entries: Sequence[Level], label: str, fix: str) -> None:
    """Refuse undeclared strings that look like numbers, like numbers with a few odd cells, or like identifiers."""
    levels = set(entries)
    texts = {level for level in levels if not is_number(level)}
    if not texts:
        raise DataError(f"{label} holds strings that are numbers. {fix}")
    odd = np.array([entry in texts for entry in entries], dtype=bool)
    text = entries[int(odd.argmax())]
    first = shown(text)
    if all(_DECIMAL_COMMA.fullmatch(str(text)) for text in texts):
        raise DataError(
            f"{label} holds numbers with commas, such as {first}. If these are decimal commas of a file, say "
            f"{setting('decimal', ',')}; else remove them. {fix}"
        )
    if 2 * int(odd.sum()) <= len(entries):
        raise DataError(
            f"{label} holds numbers, but {first} is not one: {counted(odd, 'value')} to correct. If it is from a file, "
            f"{setting('na_values', [str(text)])} reads it as missing. {fix}"
        )
    if 2 * len(levels) > len(entries):
        raise DataError(f"{label} holds strings, {len(levels)} different ones in {len(entries)} rows. {fix}")


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
    def has_one_effect(self) -> bool:
        """Whether treatment and outcome are one number or two levels each."""
        return self.treatment.width == self.outcome.width == 1

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

    def check_covariates(self, values: Any, n_rows: int = 1) -> FloatArray:
        """The flat matrix (m, p) of covariates given after the fit, in any container accepted at the fit.

        A table's columns may stand in any order. A plain array is read by position, one column for each of the fit's: a
        categorical column holds its levels. If the fit had no covariates, `n_rows` is how many rows there are.
        """
        table = None if values is None else read_columns(values, "covariates")
        if not self.blocks:
            if table is not None and table.columns:
                raise DataError(
                    f"covariates have {plural(len(table.columns), 'column')}, but the fit had none. Leave them out."
                )
            return np.zeros((n_rows, 0))
        if table is None:
            raise DataError(f"covariates are missing. Pass those of the fit: {quoted(self.covariate_names)}.")
        if table.n_rows == 0:
            raise DataError("covariates have no rows. Pass at least one.")
        table = self._by_name(table) if self.named and table.named else self._by_position(table)
        return encode(table, self.blocks, at_fit=False)

    def check_treatment(self, values: Any, n_rows: int) -> FloatArray:
        """The treatment (n_rows,) given after the fit, as codes if it has levels; a scalar is repeated."""
        table = read_column(np.full(n_rows, values) if is_scalar(values) else values, "treatment")
        if table.n_rows == 0:
            raise DataError("treatment has no rows. Pass at least one.")
        if table.n_rows != n_rows:
            raise DataError(
                f"treatment has {plural(table.n_rows, 'row')} but the covariates have {n_rows}. Pass one value a row, "
                "or a single value for all."
            )
        (column,) = table.columns
        if self.treatment.levels:
            return level_codes(column, self.treatment.levels).astype(np.float64)
        treatment: FloatArray = finite_columns([column])[:, 0]
        if self.treatment.kind is BlockKind.binary:
            check_binary(treatment, column.label, "The fit declared a binary treatment: pass 0 or 1.")
        return treatment

    def _by_name(self, table: Table) -> Table:
        """The columns of the fit, in its order."""
        expected = [name for block in self.blocks for name in block.input_names]
        missing = [name for name in expected if name not in set(table.names)]
        extra = [name for name in table.names if name not in set(expected)]
        if missing or extra:
            parts = [f"lack {quoted(missing)}"] if missing else []
            parts += [f"have {quoted(extra)}, which the fit had not"] if extra else []
            raise DataError(f"covariates {' and '.join(parts)}. Pass the columns {quoted(expected)}.")
        table = table.part(expected)
        shapes = [_row_shapes(block) for block in self.blocks for _ in block.input_names]
        for column, known in zip(table.columns, shapes, strict=True):
            rows = column.values.shape[1:]
            if rows not in known:
                raise DataError(
                    f"covariates entry {column.name!r} has rows of shape {rows} but the fit had {known[-1]}. Pass rows "
                    "of that shape."
                )
        return table

    def _by_position(self, table: Table) -> Table:
        """The columns of a table or an array without names, or for a fit without names."""
        width, wanted = len(table.columns), len(self.covariate_names)
        if any(column.values.ndim > 1 for column in table.columns):
            raise DataError("covariates must be an array or a table of single columns, as at the fit.")
        if width != wanted:
            one_row = width == 1 and table.n_rows == wanted
            raise DataError(
                f"covariates have {plural(width, 'column')} but the fit had {wanted}: {quoted(self.covariate_names)}. "
                + ("For one row, pass values.reshape(1, -1)." if one_row else "Pass these columns.")
            )
        return table


def _row_shapes(block: CovariateBlock) -> list[tuple[int, ...]]:
    """The shapes that an entry of a block may have in a row, that of the fit last."""
    flat, shape = (block.width,), block.shape
    if not block.from_array:
        return [()]
    if shape is None:
        return [flat]
    return [flat, shape, shape[:2]] if shape[2] == 1 else [flat, shape]


def is_scalar(values: Any) -> bool:
    """Whether this is one value, to be repeated for every row."""
    return bool(np.isscalar(values)) or getattr(values, "ndim", None) == 0
