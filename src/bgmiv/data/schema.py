"""Roles and typed covariate blocks: what a fit remembers of its data, and what predict checks against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bgmiv.data.blocks import BlockKind, BlockSpec, CovariateBlock, Level
from bgmiv.data.checks import FloatArray, check_binary, check_finite, common_float, numeric
from bgmiv.data.columns import Table, check_same_rows, read_column, read_table
from bgmiv.data.encode import check_flat, encode, level_codes
from bgmiv.errors import DataError

__all__ = ["BlockKind", "BlockSpec", "CovariateBlock", "Schema", "Variable"]


@dataclass(frozen=True)
class Variable:
    """The outcome or the treatment: its name, and whether it is continuous, binary or categorical.

    Args:
        name: the column's name.
        kind: what it holds.
        levels: the names of its levels, in the order of their codes 0, 1, ...; None for numbers. Those of a treatment
            and of an outcome with three or more come in order of their frequency, those of an outcome with two sorted.

    >>> Variable("price", BlockKind.continuous).width
    1
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


@dataclass(frozen=True)
class Schema:
    """The names, kinds and layout of one data set; hashable, and free of data.

    Args:
        outcome: the outcome's name and kind.
        treatment: the treatment's name and kind.
        instruments: the instruments' names.
        blocks: the covariates' blocks, in the order of the flat matrix.
        named: whether the covariates came with names, so that tables given later must have the same.

    >>> from bgmiv.data.ivdata import IVData
    >>> data = IVData.from_arrays(
    ...     [1.0, 2.0, 4.0], [0.5, 0.1, 0.2], instruments=[3.0, 1.0, 2.0], covariates={"age": [30, 40, 50]}
    ... )
    >>> data.schema.check_covariates({"age": [35]})
    array([[35.]])
    >>> data.schema.check_treatment(0.3, n_rows=2)
    array([0.3, 0.3])
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

    def check_query(self, treatment: Any, covariates: Any = None) -> tuple[FloatArray, FloatArray]:
        """Validate the rows of a prediction: treatment (m,) and covariates (m, p).

        A scalar treatment is repeated for every row of covariates.

        >>> schema = Schema(Variable("y", BlockKind.continuous), Variable("x", BlockKind.continuous), ("w",))
        >>> treatment, covariates = schema.check_query([1.0, 2.0])
        >>> treatment.shape, covariates.shape
        ((2,), (2, 0))
        """
        if _is_scalar(treatment):
            flat = self.check_covariates(covariates, n_rows=None if self.blocks else 1)
            return self.check_treatment(treatment, len(flat)), flat
        _, table = read_column(treatment, "treatment")
        values = self.check_treatment(treatment, table.n_rows)
        if self.blocks and covariates is not None:
            given = read_table(covariates, "covariates", "covariate")
            check_same_rows({"treatment": table, "covariates": given})
        return values, self.check_covariates(covariates, n_rows=table.n_rows)

    def check_covariates(self, values: Any, n_rows: int | None = None) -> FloatArray:
        """Validate covariates given after the fit, in any container accepted at the fit.

        A plain array is read by position, with the width of the input columns or of the flat matrix.

        Args:
            values: the covariates, or None if the fit had none.
            n_rows: the number of rows they must have.

        Returns:
            The flat matrix (m, p).
        """
        if not self.blocks:
            return self._no_covariates(values, n_rows)
        if values is None:
            raise DataError(f"covariates are missing. Pass those of the fit: {_listed(self.covariate_names)}.")
        table = read_table(values, "covariates", "covariate")
        self._check_names(table)
        if table.n_rows == 0:
            raise DataError("covariates have no rows. Pass at least one.")
        if n_rows is not None and table.n_rows != n_rows:
            raise DataError(
                f"covariates have {_rows(table.n_rows)} but the treatment has {n_rows}. Pass the same rows."
            )
        if self._is_flat(table):
            assert table.matrix is not None
            return check_flat(table.matrix, self.blocks)
        return encode(table, self.blocks)

    def check_treatment(self, values: Any, n_rows: int) -> FloatArray:
        """Validate a treatment given after the fit; a scalar is repeated `n_rows` times.

        Returns:
            The treatment (n_rows,); the codes of its levels if the fit's treatment has levels.
        """
        label = "treatment"
        if _is_scalar(values):
            values = np.full(n_rows, values)
        column, _ = read_column(values, label)
        levels = self.treatment.levels
        array = column.values if levels else numeric(column.values, label)
        if len(array) == 0:
            raise DataError("treatment has no rows. Pass at least one.")
        if len(array) != n_rows:
            raise DataError(
                f"treatment has {_rows(len(array))} but the covariates have {n_rows}. "
                "Pass one value a row, or a single value for all."
            )
        if levels:
            return level_codes(column, levels, label).astype(np.float64)
        treatment = np.array(array, dtype=common_float([array]))
        check_finite(treatment[:, None], [label])
        if self.treatment.kind == BlockKind.binary:
            check_binary(treatment, label, "The fit declared a binary treatment: pass 0 or 1.")
        return treatment

    def _no_covariates(self, values: Any, n_rows: int | None) -> FloatArray:
        rows = n_rows
        if values is not None:
            table = read_table(values, "covariates", "covariate")
            if table.columns:
                width = len(table.columns)
                plural = "s" if width != 1 else ""
                raise DataError(f"covariates have {width} column{plural}, but the fit had none. Leave them out.")
            rows = table.n_rows if rows is None else rows
        if rows is None:
            raise DataError("the fit had no covariates, so the number of rows must be given as n_rows.")
        return np.zeros((rows, 0))

    def _is_flat(self, table: Table) -> bool:
        width = len(table.columns)
        numbers = table.matrix is not None and table.matrix.dtype.kind in "biuf"
        return numbers and width == self.n_covariates and width != len(self.covariate_names)

    def _check_names(self, table: Table) -> None:
        expected = tuple(name for block in self.blocks for name in block.input_names)
        if self.named and table.named:
            _check_same_names(table.names, expected)
            self._check_widths(table)
            return
        width, wanted = len(table.columns), len(self.covariate_names)
        if any(column.values.ndim > 1 for column in table.columns):
            raise DataError("covariates must be an array or a table of single columns, as at the fit.")
        if width != wanted and not self._is_flat(table):
            one_row = width == 1 and table.n_rows == wanted
            raise DataError(
                f"covariates have {width} column{'s' if width != 1 else ''} but the fit had {wanted}: "
                f"{_listed(self.covariate_names)}. "
                f"{'For one row, pass values.reshape(1, -1).' if one_row else 'Pass these columns.'}"
            )

    def _check_widths(self, table: Table) -> None:
        arrays = {column.name: column.values for column in table.columns}
        for block in self.blocks:
            wanted: list[tuple[int, ...]] = [(block.width,)] if block.from_array else [()]
            if block.shape is not None and block.from_array:
                wanted += [block.shape] + ([block.shape[:2]] if block.shape[2] == 1 else [])
            for name in block.input_names:
                inner = arrays[name].shape[1:]
                if inner not in wanted:
                    raise DataError(
                        f"covariates entry {name!r} has rows of shape {inner} but the fit had {wanted[-1]}. "
                        "Pass rows of that shape."
                    )


def _check_same_names(names: tuple[str, ...], expected: tuple[str, ...]) -> None:
    missing = [name for name in expected if name not in set(names)]
    extra = [name for name in names if name not in set(expected)]
    if missing or extra:
        parts = [f"lack {_listed(missing)}"] if missing else []
        parts += [f"have {_listed(extra)}, which the fit had not"] if extra else []
        raise DataError(f"covariates {' and '.join(parts)}. Pass the columns {_listed(expected)}.")
    if names != expected:
        raise DataError(f"covariates are not in the order of the fit. Reorder them: {_listed(expected)}.")


def _is_scalar(values: Any) -> bool:
    return bool(np.isscalar(values)) or getattr(values, "ndim", None) == 0


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:10])
    return f"{shown}, ... ({len(names)} in all)" if len(names) > 10 else shown


def _rows(count: int) -> str:
    return f"{count} row{'s' if count != 1 else ''}"
