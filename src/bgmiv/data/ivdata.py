"""The one validated input: outcome, treatment, instruments and covariates of the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgmiv.data.checks import FloatArray, check_finite, common_float, numeric, role_label
from bgmiv.data.columns import Table, check_same_rows, read_column, read_table
from bgmiv.data.encode import covariate_label, encode
from bgmiv.data.layout import Declaration, plan_blocks
from bgmiv.data.overlap import check_names, check_overlap
from bgmiv.data.roles import RoleKind, read_role
from bgmiv.data.sampling import check_sampling_names, check_sampling_values, read_groups, read_weights
from bgmiv.data.schema import BlockKind, CovariateBlock, Schema, Variable
from bgmiv.errors import DataError

__all__ = ["IVData"]

_SMALLEST = float(np.finfo(np.float32).tiny)
_INDICATORS = "turn it into 0/1 columns, one for each level but the first"


@dataclass(frozen=True, eq=False, repr=False)
class IVData:
    """Validated data: every array is read-only, finite, and of the same number of rows.

    Build it with [`from_arrays`][bgmiv.data.ivdata.IVData.from_arrays], which holds all the checks.

    Args:
        outcome: (n,); the codes of its levels if it is categorical.
        treatment: (n,), likewise.
        covariates: the flat matrix (n, p).
        instruments: (n, q).
        schema: names, kinds and layout.
        weights: (n,) how many rows each row stands for, of mean one; None for one each.
        groups: (n,) codes of the groups that rows were sampled in; None if each was sampled by itself.
        weights_name, groups_name: what their columns are called; empty if there are none.
    """

    outcome: FloatArray
    treatment: FloatArray
    covariates: FloatArray
    instruments: FloatArray
    schema: Schema
    weights: FloatArray | None = None
    groups: NDArray[np.int64] | None = None
    weights_name: str = ""
    groups_name: str = ""

    def __post_init__(self) -> None:
        """Make the arrays read-only."""
        for name in ("outcome", "treatment", "covariates", "instruments", "weights", "groups"):
            if getattr(self, name) is None:
                continue
            view = getattr(self, name).view()
            view.setflags(write=False)
            object.__setattr__(self, name, view)

    @classmethod
    def from_arrays(
        cls,
        outcome: Any,
        treatment: Any,
        *,
        instruments: Any,
        covariates: Any = None,
        blocks: Mapping[str, Declaration] | None = None,
        treatment_kind: RoleKind = "auto",
        outcome_kind: RoleKind = "auto",
        weights: Any = None,
        groups: Any = None,
    ) -> IVData:
        """Validate arrays, lists, series or data frames and put them together.

        Args:
            outcome: one column.
            treatment: one column, not constant.
            instruments: one or more columns, none constant.
            covariates: columns, or a mapping of names to arrays: (n,) for a column, (n, d) for a vector,
                (n, H, W) or (n, H, W, C) for images, whose pixels from 0 to 255 or from 0 to 1 are kept as from
                0 to 1.
            blocks: kinds of covariates that the data do not tell, such as `{"region": "categorical"}`.
            treatment_kind: "binary" for a treatment of 0 and 1 or of two named levels, "categorical" for one of
                several levels, "continuous" otherwise; "auto" takes booleans for binary, strings and categories for
                categorical (binary, if there are two) and numbers for continuous.
            outcome_kind: the same for the outcome.
            weights: one column of numbers of at least 0, how many rows each row stands for; they are rescaled to mean
                one.
            groups: one column of numbers, strings or categories: rows of one group (a state, a household) are not
                independent of one another, which matters to intervals and tests.

        Raises:
            DataError: if the data cannot be used; the message names the column and the fix.

        >>> data = IVData.from_arrays(
        ...     outcome=[1.0, 2.0, 4.0],
        ...     treatment=[0.5, 0.1, 0.2],
        ...     instruments=[3.0, 1.0, 2.0],
        ...     covariates={"age": [30, 40, 50], "region": ["n", "s", "s"]},
        ...     blocks={"region": "categorical"},
        ... )
        >>> data
        IVData(3 rows: outcome, treatment, instrument_0 | age, region)
        >>> data.covariates
        array([[30.,  0.,  1.],
               [40.,  1.,  0.],
               [50.,  1.,  0.]])
        >>> data.schema.flat_names
        ('age', 'region=s', 'region=n')
        """
        outcome_column, outcome_table = read_column(outcome, "outcome")
        treatment_column, treatment_table = read_column(treatment, "treatment")
        tables = {"outcome": outcome_table, "treatment": treatment_table}
        tables["instruments"] = _read_instruments(instruments)
        if covariates is not None:
            table = read_table(covariates, "covariates", "covariate")
            if table.columns:
                tables["covariates"] = table
        sampled = {"weights": weights, "groups": groups}
        columns = {name: read_column(values, name) for name, values in sampled.items() if values is not None}
        _check_rows(tables | {name: table for name, (_, table) in columns.items()})
        check_names(tables)

        y, outcome_variable = read_role(outcome_column, "outcome", outcome_kind)
        x, treatment_variable = read_role(treatment_column, "treatment", treatment_kind)
        _check_varies(y[:, None], [role_label("outcome", outcome_column.name)])
        _check_varies(x[:, None], [role_label("treatment", treatment_column.name)])
        w = _instruments(tables["instruments"])

        known = tables.get("covariates", Table((), len(y), False))
        layout = plan_blocks(known, blocks)
        v = encode(known, layout)
        _check_covariates_vary(v, layout)
        schema = Schema(
            outcome=outcome_variable,
            treatment=treatment_variable,
            instruments=tables["instruments"].names,
            blocks=layout,
            named=known.named,
        )
        check_overlap(y, x, v, w, schema)
        weight, group = (columns[name][0] if name in columns else None for name in ("weights", "groups"))
        given = {name: table.columns[0].name for name, (_, table) in columns.items() if table.named}
        named = {argument: table.names for argument, table in tables.items() if table.named}
        check_sampling_names(given.get("weights"), given.get("groups"), named)
        check_sampling_values(weight, group, {"outcome": y[:, None], "treatment": x[:, None], "instruments": w})
        return cls(
            outcome=y,
            treatment=x,
            covariates=v,
            instruments=w,
            schema=schema,
            weights=None if weight is None else read_weights(weight),
            groups=None if group is None else read_groups(group),
            weights_name="" if weight is None else weight.name,
            groups_name="" if group is None else group.name,
        )

    @property
    def n_rows(self) -> int:
        """Number of rows n."""
        return len(self.outcome)

    def take(self, rows: NDArray[Any] | Sequence[int] | slice) -> IVData:
        """The same data at the given rows (positions, a mask, or a slice), with their weights and groups as they are.

        >>> data = IVData.from_arrays([1.0, 2.0, 4.0], [0.5, 0.1, 0.2], instruments=[3.0, 1.0, 2.0])
        >>> data.take(np.array([2, 0])).outcome
        array([4., 1.])
        """
        return replace(
            self,
            outcome=self.outcome[rows],
            treatment=self.treatment[rows],
            covariates=self.covariates[rows],
            instruments=self.instruments[rows],
            weights=None if self.weights is None else self.weights[rows],
            groups=None if self.groups is None else self.groups[rows],
        )

    def outcome_parts(self) -> tuple[IVData, ...]:
        """These data; or, for an outcome of three or more levels, the data of each level's indicator, a binary outcome.

        >>> data = IVData.from_arrays(
        ...     ["a", "b", "c"], [0.5, 0.1, 0.2], instruments=[3.0, 1.0, 2.0], outcome_kind="categorical"
        ... )
        >>> [part.outcome.tolist() for part in data.outcome_parts()]
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
        """
        variable = self.schema.outcome
        if variable.width == 1:
            return (self,)
        schema = replace(self.schema, outcome=Variable(variable.name, BlockKind.binary))
        return tuple(replace(self, outcome=part, schema=schema) for part in variable.columns(self.outcome).T)

    def without_instruments(self) -> IVData:
        """The same data with no instruments, for a fit that ignores them.

        >>> data = IVData.from_arrays([1.0, 2.0, 4.0], [0.5, 0.1, 0.2], instruments=[3.0, 1.0, 2.0])
        >>> data.without_instruments().instruments.shape
        (3, 0)
        """
        return replace(self, instruments=self.instruments[:, :0].copy(), schema=replace(self.schema, instruments=()))

    def __repr__(self) -> str:
        """Names and sizes, no numbers."""
        names = [name for block in self.schema.blocks for name in block.input_names]
        shown = names if len(names) <= 10 else [*names[:10], f"... {len(names)} in all"]
        roles = [self.schema.outcome.name, self.schema.treatment.name, *self.schema.instruments]
        return f"IVData({self.n_rows} rows: {', '.join(roles)} | {', '.join(shown)})"


def _read_instruments(instruments: Any) -> Table:
    table = None if instruments is None else read_table(instruments, "instruments", "instrument")
    if table is None or not table.columns:
        raise DataError("instruments are missing: there must be at least one. Pass one or more columns.")
    for column in table.columns:
        if column.values.ndim != 1:
            raise DataError(f"instruments entry {column.name!r} has shape {column.values.shape}. Pass single columns.")
    return table


def _check_rows(tables: Mapping[str, Table]) -> None:
    for argument, table in tables.items():
        if table.n_rows == 0:
            raise DataError(f"{argument}: empty, there are no rows. Pass at least two.")
    check_same_rows(tables)
    if tables["outcome"].n_rows == 1:
        raise DataError("outcome has one row. Pass at least two.")


def _instruments(table: Table) -> FloatArray:
    labels = [f"instruments column {name!r}" for name in table.names]
    columns = [numeric(column.values, label, _INDICATORS) for column, label in zip(table.columns, labels, strict=True)]
    flat = np.empty((table.n_rows, len(columns)), dtype=common_float(columns))
    with np.errstate(over="ignore"):
        for i, values in enumerate(columns):
            flat[:, i] = values
    check_finite(flat, labels)
    _check_varies(flat, labels)
    return flat


def _check_varies(values: FloatArray, labels: Sequence[str], fix: str = "Use one that varies.") -> None:
    low, high = values.min(axis=0), values.max(axis=0)
    for i in np.flatnonzero(low == high)[:1]:
        raise DataError(f"{labels[i]} is constant, {values[0, i]:g} in every row, and tells nothing. {fix}")
    with np.errstate(over="ignore"):
        spread = high - low
    for i in np.flatnonzero(spread < _SMALLEST)[:1]:
        raise DataError(
            f"{labels[i]} varies by {spread[i]:.1e} at most, and such numbers vanish in single precision. Use smaller "
            "units."
        )


def _check_covariates_vary(values: FloatArray, blocks: Sequence[CovariateBlock]) -> None:
    for block in blocks:
        if block.levels is not None and len(block.levels) == 1:
            label = covariate_label(block.name)
            raise DataError(f"{label} is constant, {block.levels[0]!r} in every row, and tells nothing. Drop it.")
        if block.kind in (BlockKind.continuous, BlockKind.binary):
            columns = values[:, block.start : block.stop]
            _check_varies(columns, [covariate_label(name) for name in block.flat_names], "Drop it.")
