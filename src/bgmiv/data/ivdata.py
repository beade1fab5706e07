"""The one validated input: outcome, treatment, instruments and covariates of the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bgmiv.data.blocks import BlockKind, BlockSpec, Declaration, category_entries, covariate_label, is_flag, plan_blocks
from bgmiv.data.messages import FloatArray, counted, finite_columns, listed, naming_rows, role_label, setting, warn_user
from bgmiv.data.schema import RoleKind, Schema, Variable, encode, read_role, with_levels
from bgmiv.data.table import (
    Column,
    Missing,
    Table,
    check_same_rows,
    read_column,
    read_columns,
    select_columns,
    without_missing,
)
from bgmiv.errors import ConfigError, DataError, FitWarning, KindWarning, printable

__all__ = ["Covariance", "IVData", "checked_sampling", "from_frame"]

Covariance = Literal["auto", "classical", "robust", "cluster"]
"""What standard errors and tests allow for: errors of equal variance, of any variance, or dependent within groups."""

_ARRAYS = ("outcome", "treatment", "covariates", "instruments", "weights", "groups", "second_groups")
_FLOAT32_TINY = float(np.finfo(np.float32).tiny)
# Rows at which two columns are compared before all of them are.
_N_PROBES = 64
# Roles that weights and clusters may not have besides. Clustering on a covariate or an instrument is common, and so
# is a covariate that decides the sampling.
_FORBIDDEN = {"sample_weight": ("outcome", "treatment", "instruments"), "clusters": ("outcome", "treatment")}
_CLUSTERINGS = ("clusters", "second clusters")
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
    groups: NDArray[np.int64] | None = None
    weights_name: str = ""
    groups_name: str = ""
    index: Any = None
    second_groups: NDArray[np.int64] | None = None
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
        outcome_column, outcome_table = read_column(outcome, "outcome")
        treatment_column, treatment_table = read_column(treatment, "treatment")
        tables = {"outcome": outcome_table, "treatment": treatment_table}
        tables["instruments"] = _read_instruments(instruments)
        table = read_columns({} if covariates is None else covariates, "covariates", "covariate")
        if table.columns:
            tables["covariates"] = table
        columns = {} if sample_weight is None else {"sample_weight": read_column(sample_weight, "sample_weight")}
        columns |= {} if clusters is None else _read_clusterings(clusters)
        _check_rows(tables | {name: table for name, (_, table) in columns.items()})
        _check_names(tables)

        y, outcome_variable = read_role(outcome_column, "outcome", outcome_kind)
        x, treatment_variable = read_role(treatment_column, "treatment", treatment_kind)
        for argument, values, variable in (("outcome", y, outcome_variable), ("treatment", x, treatment_variable)):
            _check_varies(values[:, None], [role_label(argument, variable.name)])
        labels = [f"instruments column {name!r}" for name in tables["instruments"].names]
        w = finite_columns([column.values for column in tables["instruments"].columns], labels, _INDICATORS)
        _check_varies(w, labels)

        known = tables.get("covariates", Table((), len(y), False))
        layout = plan_blocks(known, blocks)
        v = encode(known, layout)
        for block in layout:
            if block.levels is not None and len(block.levels) == 1:
                label = covariate_label(block.name)
                raise DataError(f"{label} is constant, {block.levels[0]!r} in every row, and tells nothing. Drop it.")
            if block.kind in (BlockKind.continuous, BlockKind.binary):
                labels = [covariate_label(name) for name in block.flat_names]
                _check_varies(v[:, block.start : block.stop], labels, "Drop it.")
        roles = (("outcome", outcome_column, outcome_kind), ("treatment", treatment_column, treatment_kind))
        _tell_binary({role: column for role, column, kind in roles if kind == "auto"}, known.columns, blocks or {})
        schema = Schema(outcome_variable, treatment_variable, tables["instruments"].names, layout, known.named)
        _check_overlap(y, x, v, w, schema)
        _check_sampling(columns, tables, {"outcome": y[:, None], "treatment": x[:, None], "instruments": w})
        sampling = {name: column for name, (column, _) in columns.items()}
        counts = _read_weights(sampling["sample_weight"]) if "sample_weight" in sampling else None
        used = slice(None) if counts is None else counts > 0
        _check_determined(y[used], x[used], v[used], w[used], schema)
        codes = [(_read_clusters(sampling[name]), sampling[name].name) for name in _CLUSTERINGS if name in sampling]
        codes.sort(key=lambda each: int(each[0].max()))
        first, second = [*codes, (None, ""), (None, "")][:2]
        return cls(
            *(y, x, v, w, schema),
            weights=counts,
            groups=first[0],
            weights_name=sampling["sample_weight"].name if "sample_weight" in sampling else "",
            groups_name=first[1],
            second_groups=second[0],
            second_groups_name=second[1],
            covariance=covariance,
            index=next((table.index for table in tables.values() if table.index is not None), None),
        )

    @property
    def n_rows(self) -> int:
        """Number of rows n."""
        return len(self.outcome)

    @property
    def full_weights(self) -> NDArray[np.float64]:
        """The weight of each row, `(n,)`: one without weights."""
        return np.ones(self.n_rows) if self.weights is None else np.asarray(self.weights, np.float64)

    def take(self, rows: NDArray[Any] | Sequence[int] | slice) -> IVData:
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
        shown = names if len(names) <= 10 else [*names[:10], f"... {len(names)} in all"]
        roles = [self.schema.outcome.name, self.schema.treatment.name, *self.schema.instruments]
        return printable(f"IVData({self.n_rows} rows: {', '.join(roles)} | {', '.join(shown)})")


@naming_rows
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
    asked = {"instruments": _names(instruments, "instruments"), "covariates": _names(covariates, "covariates")}
    for argument, name in (("outcome", outcome), ("treatment", treatment)):
        if not isinstance(name, str):
            raise DataError(f"{argument} must be the name of a column of the table, got {name!r}.")
    sampling = checked_sampling(sample_weight, clusters, {"outcome": [outcome], "treatment": [treatment], **asked})
    used = (outcome, treatment, *asked["instruments"], *asked["covariates"])
    used += tuple(name for names in sampling.values() for name in names)
    table = without_missing(select_columns(data, used), missing)
    options |= {argument: table.part(names) for argument, names in sampling.items()}
    known = table.part(asked["covariates"])
    known = known._replace(columns=tuple(with_levels(column, blocks or ()) for column in known.columns))
    return IVData.from_arrays(
        table.part([outcome]),
        table.part([treatment]),
        instruments=table.part(asked["instruments"]),
        covariates=known if known.columns else None,
        blocks=blocks,
        **options,
    )


def _tell_binary(roles: Mapping[str, Column], covariates: Sequence[Column], blocks: Mapping[str, Declaration]) -> None:
    """One line on all undeclared columns of numbers that were taken for binary."""
    declared = set(blocks)
    for spec in blocks.values():
        declared.update(spec.columns or () if isinstance(spec, BlockSpec) else ())
    flags = [column.name for column in covariates if column.name not in declared and is_flag(column)]
    labels = {f"{role}_kind": role_label(role, column.name) for role, column in roles.items() if is_flag(column)}
    fixes = [setting(argument, "continuous") for argument in labels]
    if flags:
        labels["blocks"] = f"covariates {listed(map(repr, flags))}"
        fixes.append(setting("blocks", "continuous", flags[0]))
    if labels:
        which, how = "; ".join(labels.values()), " or ".join(fixes)
        warn_user(f"taken as binary, for they hold only 0 and 1: {which}. To change it say {how}.", KindWarning)


def _read_instruments(instruments: Any) -> Table:
    table = None if instruments is None else read_columns(instruments, "instruments", "instrument")
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


def _check_varies(values: FloatArray, labels: Sequence[str], fix: str = "Use one that varies.") -> None:
    low, high = values.min(axis=0), values.max(axis=0)
    for i in np.flatnonzero(low == high)[:1]:
        raise DataError(f"{labels[i]} is constant, {values[0, i]:g} in every row, and tells nothing. {fix}")
    with np.errstate(over="ignore"):
        spread = high - low
    for i in np.flatnonzero(spread < _FLOAT32_TINY)[:1]:
        raise DataError(
            f"{labels[i]} varies by {spread[i]:.1e} at most, and such numbers vanish in single precision. Use smaller "
            "units."
        )


def _check_names(tables: Mapping[str, Table]) -> None:
    """Refuse a name that came with two arguments."""
    seen: dict[str, str] = {}
    for argument, table in tables.items():
        names = table.names if table.named else ()
        for name in (name for name in names if name in seen):
            role = "among the covariates" if argument == "covariates" else f"as {argument}"
            raise DataError(f"{name!r} is given both as {seen[name]} and {role}. Drop one of them.")
        seen.update(dict.fromkeys(names, argument))


def _check_overlap(y: FloatArray, x: FloatArray, v: FloatArray, w: FloatArray, schema: Schema) -> None:
    """Refuse columns with the same numbers in two roles."""
    columns = [(role_label("outcome", schema.outcome.name), y), (role_label("treatment", schema.treatment.name), x)]
    columns += [(role_label("instrument", name), w[:, i]) for i, name in enumerate(schema.instruments)]
    for i, (label, values) in enumerate(columns):
        # Instruments are compared with the outcome and the treatment, not with one another.
        for other, others in columns[: min(i, 2)]:
            if _find_equal(values, others[:, None]) is not None:
                raise DataError(f"{label} is identical to {other} in every row. Pass the right columns.")
        position = _find_equal(values, v)
        if position is not None:
            name = schema.flat_names[position]
            raise DataError(f"{label} is identical to covariates column {name!r} in every row. Drop the covariate.")


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
    instruments = [role_label("instrument", name) for name in schema.instruments]
    covariates = [covariate_label(schema.flat_names[j]) for j in plain]
    eps = max(float(np.finfo(values.dtype).eps) for values in (y, x, v, w))
    outcome, treatment = role_label("outcome", schema.outcome.name), role_label("treatment", schema.treatment.name)
    advice = "Drop the column that was computed from it, or that it was computed from."

    exogenous = [(v, plain)]
    everything = [(w, list(range(n_instruments))), *exogenous]
    for part in schema.outcome.columns(y).T if plain else ():
        if determined := _explained(part, exogenous, covariates, _EXPLAINED, eps):
            why = "so the treatment has nothing to explain"
            raise DataError(f"{outcome} is an exact linear combination of {determined[0]}, {why}. {advice}")
    for part in schema.treatment.columns(x).T:
        if determined := _explained(part, everything, instruments + covariates, _REDUNDANT, eps):
            why = "so nothing of it is endogenous and there is nothing to instrument"
            raise DataError(f"{treatment} is an exact linear combination of {determined[0]}, {why}. {advice}")
        enough = plain and n >= 4 * n_columns
        if enough and (determined := _explained(part, exogenous, covariates, _NEARLY_REDUNDANT, eps)):
            left = determined[1] ** 2
            warn_user(
                f"{treatment} is nearly a linear combination of {determined[0]}: the covariates leave {left:.1g} of "
                f"its variance (R² {1.0 - left:.6f}), and any effect is an extrapolation from that. Drop the column "
                "that was computed from it.",
                FitWarning,
            )


def _explained(
    part: FloatArray, parts: Sequence[tuple[FloatArray, list[int]]], labels: Sequence[str], limit: float, eps: float
) -> tuple[str, float] | None:
    """Which columns of matrices predict a column but for this share of its standard deviation, and what they leave."""
    part = part.astype(np.float64)

    def design(rows: NDArray[np.intp] | slice) -> NDArray[np.float64]:
        chosen = [matrix[rows][:, columns] for matrix, columns in parts]
        return np.column_stack([np.ones(len(part[rows])), *chosen]).astype(np.float64)

    # Some rows nearly always show that they do not; all of them are needed to show that they do.
    n_some = min(len(part), 4 * (len(labels) + 1) + 1000)
    some = np.linspace(0, len(part) - 1, n_some).astype(np.intp)
    few = design(some)
    scale = np.maximum(np.abs(few).max(axis=0), np.finfo(np.float64).tiny)
    coefficients = np.linalg.lstsq(few / scale, part[some], rcond=1e-12)[0] / scale
    most = limit * part.std() + 4.0 * eps * np.abs(part).max()
    if np.sqrt(np.mean((part[some] - few @ coefficients) ** 2)) > most:
        return None
    left = float(np.sqrt(np.mean((part - design(slice(None)) @ coefficients) ** 2)))
    if left > most:
        return None
    moved = np.abs(coefficients * few.std(axis=0))[1:]
    names = [labels[i] for i in np.flatnonzero(moved > max(1e-6, limit) * moved.max()).tolist()]
    return listed(names), left / part.std()


def _find_equal(values: FloatArray, matrix: FloatArray) -> int | None:
    """Which column of a matrix holds the same numbers in every row."""
    dtype = np.float32 if np.float32 in (values.dtype, matrix.dtype) else np.float64
    probes = np.linspace(0, len(values) - 1, _N_PROBES).astype(np.intp)
    same = matrix[probes].astype(dtype) == values[probes, None].astype(dtype)
    for position in np.flatnonzero(same.all(axis=0)):
        if np.array_equal(matrix[:, position].astype(dtype), values.astype(dtype)):
            return int(position)
    return None


def _read_weights(column: Column) -> FloatArray:
    """Sample weights `(n,)` of mean one: numbers of at least zero, two or more of them positive."""
    label = role_label("sample_weight", column.name)
    values = finite_columns([column.values], [label])[:, 0].astype(np.float64)
    if (values < 0).any():
        raise DataError(
            f"{label}: {counted(values < 0, 'negative value')}. A weight says how many rows a row stands for: pass "
            "numbers of at least 0."
        )
    if np.count_nonzero(values) < 2:
        raise DataError(f"{label}: fewer than two rows have a positive weight. Give one to the rows to be used.")
    # The largest is divided out first, so that their sum does not overflow.
    values = values / values.max()
    return values / np.mean(values)


def _read_clusters(column: Column) -> NDArray[np.int64]:
    """The cluster of each row `(n,)` as a code from 0, in order of appearance; there are two or more."""
    label = role_label("clusters", column.name)
    codes: dict[Any, int] = {}
    entries = category_entries(column, label)
    found = np.array([codes.setdefault(entry, len(codes)) for entry in entries], dtype=np.int64)
    if len(codes) < 2:
        raise DataError(f"{label}: every row is in one cluster, {entries[0]!r}. Pass at least two clusters, or none.")
    return found


def _read_clusterings(clusters: Any) -> dict[str, tuple[Column, Table]]:
    """One or two columns of clusters: one container, or a list of two columns."""
    pair = isinstance(clusters, list | tuple) and len(clusters) == 2 and all(np.ndim(each) == 1 for each in clusters)
    if pair:
        tables = [read_columns(each, "clusters", "clusters") for each in clusters]
    else:
        table = read_columns(clusters, "clusters", "clusters")
        tables = [table._replace(columns=(column,), matrix=None) for column in table.columns]
    if not 1 <= len(tables) <= 2 or any(len(table.columns) != 1 for table in tables):
        raise DataError("clusters must be one column, or two to cluster two ways. Pass a one-dimensional array or two.")
    found = {}
    for name, table in zip(_CLUSTERINGS, tables, strict=False):
        column = table.columns[0] if table.named else table.columns[0]._replace(name=name)
        if column.values.ndim != 1:
            raise DataError(
                f"{name} must be one column, got shape {column.values.shape}. Pass a one-dimensional array."
            )
        found[name] = column, table
    return found


def checked_sampling(
    sample_weight: str | None, clusters: str | Sequence[str] | None, roles: Mapping[str, Iterable[str]]
) -> dict[str, tuple[str, ...]]:
    """The columns of sample weights and of clusters by argument; none may have a role that forbids it."""
    given: dict[str, tuple[Any, ...]] = {} if sample_weight is None else {"sample_weight": (sample_weight,)}
    if clusters is not None:
        given["clusters"] = tuple(clusters) if isinstance(clusters, list | tuple) else (clusters,)
    for argument, names in given.items():
        for name in names:
            if not isinstance(name, str):
                raise DataError(f"{argument} must be the name of a column of the table, got {type(name).__name__}.")
            for role in _FORBIDDEN[argument]:
                if name in roles.get(role, ()):
                    fix = f"Use another column for {argument}."
                    raise DataError(f"{name!r} is given both as {argument} and as {role}. {fix}")
        if argument == "clusters" and not (1 <= len(names) <= 2 and len(set(names)) == len(names)):
            raise DataError(f"clusters must name one column, or two to cluster two ways, got {list(names)!r}.")
    return given


def _check_sampling(
    sampling: Mapping[str, tuple[Column, Table]], tables: Mapping[str, Table], numbers: Mapping[str, FloatArray]
) -> None:
    """Refuse weights or clusters that are a column of a role that forbids it, by name or by numbers `(n, k)`."""
    for name, (column, table) in sampling.items():
        argument = "clusters" if name in _CLUSTERINGS else name
        for role in _FORBIDDEN[argument]:
            if table.named and tables[role].named and column.name in tables[role].names:
                fix = f"Use another column for {argument}."
                raise DataError(f"{column.name!r} is given both as {argument} and as {role}. {fix}")
            plain = column.values.dtype.kind in "biuf"
            if plain and _find_equal(column.values.astype(np.float64), numbers[role]) is not None:
                label = role_label(argument, column.name)
                raise DataError(f"{label}: identical to the {role} in every row. Pass the right column.")


def _names(names: str | Sequence[str] | None, argument: str) -> tuple[str, ...]:
    if names is None:
        return ()
    listed = (names,) if isinstance(names, str) else tuple(names)
    for name in listed:
        if not isinstance(name, str):
            raise DataError(f"{argument} must be names of columns of the table, got {name!r} among them.")
        if listed.count(name) > 1:
            raise DataError(f"{argument} name the column {name!r} twice. Name it once.")
    return listed
