"""The one validated input: outcome, treatment, instruments and covariates of the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from bgmiv.arrays import TINY
from bgmiv.data.blocks import BlockKind, BlockSpec, Declaration, category_entries, encode, is_flag, plan_blocks
from bgmiv.data.messages import (
    Array,
    Codes,
    Column,
    FloatArray,
    Floats,
    check_finite,
    counted,
    finite_columns,
    listed,
    naming_rows,
    numeric,
    plural,
    quoted,
    role_label,
    setting,
    shown,
    warn_user,
)
from bgmiv.data.schema import RoleKind, Schema, Variable, read_role, with_levels
from bgmiv.data.table import (
    Missing,
    Table,
    check_same_rows,
    first_index,
    read_column,
    read_columns,
    select_columns,
    without_missing,
)
from bgmiv.errors import ConfigError, DataError, FitWarning, KindWarning, printable

__all__ = ["Covariance", "IVData", "check_names", "column_arguments", "from_frame", "read_weights"]

Covariance = Literal["auto", "classical", "robust", "cluster"]
"""What standard errors and tests allow for: errors of equal variance, of any variance, or dependent within groups."""

_ARRAYS = ("outcome", "treatment", "covariates", "instruments", "weights", "groups", "second_groups")
_FLOAT32_TINY = float(np.finfo(np.float32).tiny)
# Rows at which two columns are compared before all of them are.
_N_PROBES = 64
# Roles whose columns another may not have. Clustering on a covariate or an instrument is common, and so is a covariate
# that decides the sampling.
_FORBIDDEN = {
    "treatment": ("outcome",),
    "instruments": ("outcome", "treatment"),
    "covariates": ("outcome", "treatment", "instruments"),
    "sample_weight": ("outcome", "treatment", "instruments"),
    "clusters": ("outcome", "treatment"),
    "second clusters": ("outcome", "treatment"),
}
# Columns that are looked at one by one, as opposed to pixels and embeddings, and how many of them at most.
_PLAIN = (BlockKind.continuous, BlockKind.binary, BlockKind.categorical)
_MAX_DETERMINING = 500
# What is left of a treatment below this share of its standard deviation is rounding.
_REDUNDANT = 1e-7
# The same share for what covariates leave of an outcome; and for what they must leave of a treatment without a warning.
_EXPLAINED, _NEARLY_REDUNDANT = 1e-5, 0.03
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
        second_groups: (n,) codes of a second clustering, which has as many clusters or more; None if there is none.
        weights_name, groups_name, second_groups_name: what their columns are called; empty if there are none.
        covariance: what standard errors and tests allow for, as in `from_arrays`.
        index: pandas' row labels, if the rows came with some.

    Example:
        >>> data = IVData.from_arrays([1.0, 2.0, 4.0], [0.0, 1.0, 3.0], instruments={"cost": [0.0, 1.0, 1.5]})
        >>> data.n_rows, data.schema.instruments
        (3, ('cost',))
    """

    outcome: FloatArray
    treatment: FloatArray
    covariates: FloatArray
    instruments: FloatArray
    schema: Schema
    weights: FloatArray | None = None
    groups: Codes | None = None
    weights_name: str = ""
    groups_name: str = ""
    index: Any = None
    second_groups: Codes | None = None
    second_groups_name: str = ""
    covariance: Covariance = "auto"

    def __post_init__(self) -> None:
        """Make the arrays read-only."""
        for name in _ARRAYS:
            if getattr(self, name) is not None:
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
        sample_weight: Any = None,
        clusters: Any = None,
        covariance: Covariance = "auto",
    ) -> IVData:
        """Validate arrays, lists, series or data frames of the same rows.

        Args:
            outcome, treatment: one column, not constant.
            instruments: one or more columns, none constant.
            covariates: columns, or a mapping of names to arrays: (n,) for a column, (n, d) for a vector,
                (n, H, W) or (n, H, W, C) for images with pixels from 0 to 255 or from 0 to 1 (kept as 0 to 1).
            blocks: kinds of covariates that the data do not tell, such as `{"region": "categorical"}`.
            treatment_kind, outcome_kind: "binary" for 0 and 1 or two named levels, "categorical" for several levels,
                "continuous" otherwise; "auto" takes booleans and numbers that are 0 and 1 only for binary, strings and
                categories for categorical (binary, if there are two) and other numbers for continuous.
            sample_weight: one column of numbers of at least 0, how many rows each row stands for; rescaled to mean one.
            clusters: one column of numbers, strings or categories: rows of one cluster (a state, a household) are not
                independent of one another, which matters to intervals and tests. Two columns, `[firm, year]`, cluster
                them two ways; folds then take whole clusters of the column with fewer of them.
            covariance: what standard errors and tests allow for: "classical", errors of equal variance; "robust", of
                any variance; "cluster", errors that depend on one another within clusters (CR1); "auto", robust without
                clusters, and with clusters the jackknife over them (CR3) up to 50 of them and CR1 beyond. All have the
                usual small-sample corrections, and clusters t quantiles with one degree of freedom less than clusters.

        Raises:
            DataError: if the data cannot be used; the message names the column and the fix.
            ConfigError: there is no such covariance.

        Warns:
            KindWarning: numbers that are 0 and 1 only were taken for binary.
            FitWarning: the covariates leave less than a thousandth of the treatment's variance.

        >>> covariates = {"age": [30, 40, 50], "region": ["n", "s", "s"]}
        >>> IVData.from_arrays(
        ...     outcome=[1.0, 2.0, 4.0],
        ...     treatment=[0.5, 0.1, 0.2],
        ...     instruments=[3.0, 1.0, 2.0],
        ...     covariates=covariates,
        ...     blocks={"region": "categorical"},
        ... )
        IVData(3 rows: outcome, treatment, instrument_0 | age, region)
        """
        if covariance not in get_args(Covariance):
            raise ConfigError(f"covariance must be one of {', '.join(get_args(Covariance))}, got {covariance!r}.")
        roles = {"outcome": read_column(outcome, "outcome"), "treatment": read_column(treatment, "treatment")}
        roles["instruments"] = _read_instruments(instruments)
        known = read_columns({} if covariates is None else covariates, "covariates")
        if known.columns:
            roles["covariates"] = known
        clusterings = {} if clusters is None else _read_clusterings(clusters)
        sampling = dict(clusterings)
        if sample_weight is not None:
            sampling["sample_weight"] = read_column(sample_weight, "sample_weight")
        check_same_rows(roles | sampling)
        if roles["outcome"].n_rows < 2:
            raise DataError(f"outcome has {plural(roles['outcome'].n_rows, 'row')}. Pass at least two.")
        check_names({role: table.names if table.named else () for role, table in (roles | sampling).items()})

        kinds = {"outcome": outcome_kind, "treatment": treatment_kind}
        values: dict[str, FloatArray] = {}
        variables: dict[str, Variable] = {}
        for role, kind in kinds.items():
            (column,) = roles[role].columns
            values[role], variables[role] = read_role(column, kind)
            _check_varies(values[role][:, None], [column.label])
        y, x = values.values()
        w = finite_columns(roles["instruments"].columns, _INDICATORS)
        _check_varies(w, [column.label for column in roles["instruments"].columns])
        layout = plan_blocks(known, blocks)
        v = encode(known._replace(n_rows=len(y)), layout)
        for block in layout:
            label = role_label("covariates", block.name)
            if block.levels is not None and len(block.levels) == 1:
                raise DataError(f"{label} is constant, {block.levels[0]!r} in every row, and tells nothing. Drop it.")
            if block.kind in (BlockKind.continuous, BlockKind.binary):
                labels = [role_label("covariates", name) for name in block.flat_names]
                _check_varies(v[:, block.start : block.stop], labels, "Drop it.")
        _tell_binary([roles[role].columns[0] for role in kinds if kinds[role] == "auto"], known.columns, blocks or {})
        schema = Schema(**variables, instruments=roles["instruments"].names, blocks=layout, named=known.named)
        columns = [(role, roles[role].columns[0].label, values[role]) for role in kinds]
        columns += [("instruments", column.label, w[:, i]) for i, column in enumerate(roles["instruments"].columns)]
        columns += [("covariates", role_label("covariates", name), v[:, j]) for j, name in enumerate(schema.flat_names)]
        columns += [(role, table.columns[0].label, table.columns[0].values) for role, table in sampling.items()]
        _check_distinct_numbers(columns)
        weights: Floats | None = None
        weights_name = ""
        used: Any = slice(None)
        if sample_weight is not None:
            (column,) = sampling["sample_weight"].columns
            weights, weights_name = read_weights(column, 2), column.name
            weights /= weights.mean()
            used = weights > 0
        _check_determined(y[used], x[used], v[used], w[used], schema)
        groups = [(_read_clusters(table.columns[0]), table.names[0]) for table in clusterings.values()]
        groups.sort(key=lambda each: int(each[0].max()))
        first, second = [*groups, (None, ""), (None, "")][:2]
        return cls(
            *(y, x, v, w, schema),
            weights=weights,
            groups=first[0],
            weights_name=weights_name,
            groups_name=first[1],
            second_groups=second[0],
            second_groups_name=second[1],
            covariance=covariance,
            index=first_index(roles.values()),
        )

    @property
    def n_rows(self) -> int:
        """Number of rows n."""
        return len(self.outcome)

    @property
    def full_weights(self) -> Floats:
        """The weight of each row, `(n,)`: one without weights."""
        return np.ones(self.n_rows) if self.weights is None else np.asarray(self.weights, np.float64)

    def take(self, rows: Array | Sequence[int] | slice) -> IVData:
        """The same data at the given rows (positions, a mask, or a slice), with their weights and groups as they are.

        >>> data = IVData.from_arrays([1.0, 2.0, 4.0], [0.5, 0.1, 0.2], instruments=[3.0, 1.0, 2.0])
        >>> data.take(np.array([2, 0])).outcome
        array([4., 1.])
        """
        arrays = {name: getattr(self, name) for name in (*_ARRAYS, "index")}
        return replace(self, **{name: array[rows] for name, array in arrays.items() if array is not None})

    def outcome_parts(self) -> tuple[IVData, ...]:
        """These data, or for an outcome of three or more levels those of each level's indicator, a binary outcome."""
        variable = self.schema.outcome
        if variable.width == 1:
            return (self,)
        schema = replace(self.schema, outcome=Variable(variable.name, BlockKind.binary))
        return tuple(replace(self, outcome=part, schema=schema) for part in variable.columns(self.outcome).T)

    def without_instruments(self) -> IVData:
        """The same data with no instruments, for a fit that ignores them."""
        return replace(self, instruments=self.instruments[:, :0].copy(), schema=replace(self.schema, instruments=()))

    def __repr__(self) -> str:
        """Names and sizes, no numbers."""
        names = [name for block in self.schema.blocks for name in block.input_names]
        roles = [self.schema.outcome.name, self.schema.treatment.name, *self.schema.instruments]
        return printable(f"IVData({self.n_rows} rows: {', '.join(roles)} | {listed(names, 10)})")


@naming_rows()
def from_frame(
    data: Any,
    *,
    outcome: str,
    treatment: str,
    instruments: str | Sequence[str],
    covariates: str | Sequence[str] | None = None,
    missing: Missing = "raise",
    blocks: Mapping[str, Declaration] | None = None,
    sample_weight: str | None = None,
    clusters: str | Sequence[str] | None = None,
    **options: Any,
) -> IVData:
    """Validated data from the named columns of a table; covariates of strings are categorical.

    Args:
        data: a pandas, polars or pyarrow table, or a mapping of names to arrays; other columns are not looked at.
        outcome, treatment, instruments, covariates: columns' names.
        missing: "raise" to refuse missing values in these columns, "drop" to leave out rows that have one.
        blocks: kinds of covariates, as in `IVData.from_arrays`.
        sample_weight: the name of the column of sample weights; it may be a covariate too.
        clusters: the name of the column of clusters, or two names to cluster two ways; they may be covariates or
            instruments too.
        **options: treatment_kind, outcome_kind and covariance, as in `IVData.from_arrays`.
    """
    for argument, name in (("outcome", outcome), ("treatment", treatment)):
        if not isinstance(name, str):
            raise DataError(f"{argument} must be the name of a column of the table, got {name!r}.")
    names = column_arguments(
        outcome=outcome,
        treatment=treatment,
        instruments=instruments,
        covariates=covariates,
        sample_weight=sample_weight,
        clusters=clusters,
    )
    table = without_missing(select_columns(data, [name for each in names.values() for name in each]), missing)
    given: dict[str, Any] = {argument: table.part(each) for argument, each in names.items()}
    if "covariates" in given:
        columns = tuple(with_levels(column, blocks or ()) for column in given["covariates"].columns)
        given["covariates"] = given["covariates"]._replace(columns=columns)
    return IVData.from_arrays(**given, blocks=blocks, **options)


def column_arguments(**arguments: Any) -> dict[str, tuple[str, ...]]:
    """The names of columns, one or several each, that those of the arguments hold which are not None."""
    names: dict[str, tuple[str, ...]] = {}
    for argument, given in arguments.items():
        if given is None:
            continue
        several = isinstance(given, Iterable) and not isinstance(given, str)
        names[argument] = tuple(given) if several else (given,)
        for name in names[argument]:
            if not isinstance(name, str):
                raise DataError(f"{argument} must be names of columns of the table, got {shown(name)} among them.")
            if names[argument].count(name) > 1:
                raise DataError(f"{argument} name the column {name!r} twice. Name it once.")
    return names


def _tell_binary(roles: Sequence[Column], covariates: Sequence[Column], blocks: Mapping[str, Declaration]) -> None:
    """One line on all undeclared columns of numbers that were taken for binary."""
    declared = set(blocks)
    for spec in blocks.values():
        declared.update(spec.columns or () if isinstance(spec, BlockSpec) else ())
    told = [(column.label, setting(f"{column.role}_kind", "continuous")) for column in roles if is_flag(column)]
    flags = [column.name for column in covariates if column.name not in declared and is_flag(column)]
    if flags:
        told.append((f"covariates {quoted(flags, 5)}", setting("blocks", "continuous", flags[0])))
    if told:
        which, how = "; ".join(label for label, _ in told), " or ".join(fix for _, fix in told)
        warn_user(f"taken as binary, for they hold only 0 and 1: {which}. To change it say {how}.", KindWarning)


def _read_instruments(instruments: Any) -> Table:
    table = None if instruments is None else read_columns(instruments, "instruments")
    if table is None or not table.columns:
        raise DataError("instruments are missing: there must be at least one. Pass one or more columns.")
    for column in table.columns:
        if column.values.ndim != 1:
            raise DataError(f"instruments entry {column.name!r} has shape {column.values.shape}. Pass single columns.")
    return table


def _check_varies(values: FloatArray, labels: Sequence[str], fix: str = "Use one that varies.") -> None:
    """Refuse columns that are constant in single precision."""
    with np.errstate(over="ignore"):
        spread = values.max(axis=0) - values.min(axis=0)
    for i in np.flatnonzero(spread < _FLOAT32_TINY)[:1]:
        raise DataError(f"{labels[i]} is constant, {values[0, i]:g} in every row, and tells nothing. {fix}")


def check_names(roles: Mapping[str, Iterable[str]]) -> None:
    """Refuse a column that two roles have that may not share one."""
    for role, others in _FORBIDDEN.items():
        for other in others:
            for name in set(roles.get(role, ())) & set(roles.get(other, ())):
                raise DataError(f"{name!r} is given both as {role} and as {other}. Use another column for one of them.")


def _check_distinct_numbers(columns: Sequence[tuple[str, str, Array]]) -> None:
    """Refuse a column (role, label, values) with the numbers of one of a role with which it may not share them."""
    # Other roles may share the numbers of covariates, of which there may be thousands.
    others = [column for column in columns if column[0] != "covariates"]
    for role, label, values in columns:
        for other_role, other, numbers in others:
            if other_role in _FORBIDDEN.get(role, ()) and _same_numbers(values, numbers):
                raise DataError(f"{label} is identical to {other} in every row. Pass the right columns.")


def _same_numbers(one: Array, other: Array) -> bool:
    """Whether columns hold the same numbers, in single precision if one of them is so; a few rows tell most apart."""
    if one.dtype.kind not in "biuf" or other.dtype.kind not in "biuf":
        return False
    dtype = np.float32 if np.float32 in (one.dtype, other.dtype) else np.float64
    with np.errstate(over="ignore"):
        pairs = ((one[rows].astype(dtype), other[rows].astype(dtype)) for rows in (slice(_N_PROBES), slice(None)))
        return all(np.array_equal(*pair) for pair in pairs)


def _check_determined(y: FloatArray, x: FloatArray, v: FloatArray, w: FloatArray, schema: Schema) -> None:
    """Refuse an outcome that covariates determine, and a treatment that they and the instruments determine.

    Nothing is left to explain of the one, and nothing of the other is endogenous. A treatment of which covariates leave
    next to nothing is announced. Half as many instruments as rows would predict any treatment, and leave nothing to
    judge them by.
    """
    n, n_instruments = w.shape
    if 2 * n_instruments > max(n, 4):
        raise DataError(
            f"{n_instruments} instruments for {n} rows predict any treatment, endogenous or not. Pass at least "
            f"{2 * n_instruments} rows, or fewer instruments."
        )
    plain = [j for block in schema.blocks if block.kind in _PLAIN for j in range(block.start, block.stop)]
    n_columns = 1 + n_instruments + len(plain)
    if n < n_columns + 2 or n_columns > _MAX_DETERMINING:
        return
    exogenous = [(role_label("covariates", schema.flat_names[j]), v[:, j]) for j in plain]
    known = exogenous + [(role_label("instruments", name), w[:, i]) for i, name in enumerate(schema.instruments)]
    outcome, treatment = role_label("outcome", schema.outcome.name), role_label("treatment", schema.treatment.name)
    advice = "Drop the column that was computed from it, or that it was computed from."
    for part in schema.outcome.columns(y).T if plain else ():
        if explained := _explained(part, exogenous, _EXPLAINED):
            raise DataError(
                f"{outcome} is an exact linear combination of {explained[0]}, so the treatment has nothing to explain. "
                f"{advice}"
            )
    for part in schema.treatment.columns(x).T:
        if explained := _explained(part, known, _REDUNDANT):
            raise DataError(
                f"{treatment} is an exact linear combination of {explained[0]}, so nothing of it is endogenous and "
                f"there is nothing to instrument. {advice}"
            )
        enough = plain and n >= 4 * n_columns
        if enough and (explained := _explained(part, exogenous, _NEARLY_REDUNDANT)):
            left = explained[1] ** 2
            warn_user(
                f"{treatment} is nearly a linear combination of {explained[0]}: the covariates leave {left:.1g} of "
                f"its variance (R² {1.0 - left:.6f}), and any effect is an extrapolation from that. Drop the column "
                "that was computed from it.",
                FitWarning,
            )


def _explained(part: FloatArray, columns: Sequence[tuple[str, FloatArray]], limit: float) -> tuple[str, float] | None:
    """Which columns predict another but for this share of its standard deviation, and what share they leave."""
    eps = max(float(np.finfo(values.dtype).eps) for values in (part, *(values for _, values in columns)))
    n, part = len(part), part.astype(np.float64)
    most = limit * part.std() + 4.0 * eps * np.abs(part).max()
    some = np.linspace(0, n - 1, min(n, 4 * (len(columns) + 1) + 1000)).astype(np.intp)
    few = np.column_stack([values[some] for _, values in columns]).astype(np.float64)
    scale = np.maximum(np.abs(few).max(axis=0), TINY)
    design = np.column_stack([np.ones(len(few)), few / scale])
    constant, *slopes = np.linalg.lstsq(design, part[some], rcond=1e-12)[0]
    coefficients = np.array(slopes) / scale
    left = 0.0
    # Some rows nearly always show that they do not; all of them are needed to show that they do.
    for rows in (some, slice(None)):
        residual = part[rows] - constant
        for slope, (_, values) in zip(coefficients, columns, strict=True):
            residual -= slope * values[rows]
        left = float(np.sqrt(np.mean(residual**2)))
        if left > most:
            return None
    moved = np.abs(coefficients * few.std(axis=0))
    names = [columns[i][0] for i in np.flatnonzero(moved > max(1e-6, limit) * moved.max()).tolist()]
    return listed(names), left / part.std()


def read_weights(column: Column, min_positive: int = 1) -> Floats:
    """Sample weights `(n,)`, at most one: numbers of at least zero, so many of them positive."""
    values = numeric(column).astype(np.float64)
    largest = np.max(np.abs(values), initial=1.0)
    if np.isfinite(largest):
        # Only their ratios count: neither they nor their sum may overflow.
        values = values / largest
    check_finite(values[:, None], [column.label])
    if (values < 0).any():
        raise DataError(
            f"{column.label}: {counted(values < 0, 'negative value')}. A weight says how many rows a row stands for: "
            "pass numbers of at least 0."
        )
    if (n_positive := int(np.count_nonzero(values))) < min_positive:
        have = f"{plural(n_positive, 'row')} with a positive weight"
        raise DataError(f"{column.label}: {have}, at least {min_positive} needed. Give one to the rows to be used.")
    return values / values.max()


def _read_clusters(column: Column) -> Codes:
    """The cluster of each row `(n,)` as a code from 0, in order of appearance; there are two or more."""
    entries = category_entries(column)
    codes = {entry: i for i, entry in enumerate(dict.fromkeys(entries))}
    if len(codes) < 2:
        have = f"{column.label}: every row is in one cluster, {entries[0]!r}"
        raise DataError(f"{have}. Pass at least two clusters, or none.")
    return np.array([codes[entry] for entry in entries], dtype=np.int64)


def _read_clusterings(clusters: Any) -> dict[str, Table]:
    """One or two columns of clusters: one container, or a list of two columns."""
    pair = isinstance(clusters, list | tuple) and len(clusters) == 2 and all(np.ndim(each) == 1 for each in clusters)
    read = [read_columns(each, "clusters") for each in (clusters if pair else [clusters])]
    tables = [table._replace(columns=(column,)) for table in read for column in table.columns]
    if not 1 <= len(tables) <= 2 or any(table.columns[0].values.ndim != 1 for table in tables):
        raise DataError("clusters must be one column, or two to cluster two ways. Pass a one-dimensional array or two.")
    names = ("clusters", "second clusters")
    return {name: table.named_at_least(name) for name, table in zip(names, tables, strict=False)}
