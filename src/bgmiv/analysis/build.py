"""An analysis put together from a fitted method: the treatments and groups it shows, its answers, and its checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from platform import python_version
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from bgmiv._version import versions
from bgmiv.analysis.analysis import (
    Analysis,
    AnalysisRequest,
    ColumnSummary,
    Curve,
    EffectRow,
    Estimand,
    Group,
    HistoryLine,
    MethodRow,
    Question,
)
from bgmiv.analysis.instruments import Numbers, instrument_views
from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Query, Rows
from bgmiv.data.schema import BlockKind, CovariateBlock, Schema
from bgmiv.diagnostics.checks import Diagnosis, changes_of, diagnose
from bgmiv.diagnostics.held_out import cross_fitted, held_out_evidence
from bgmiv.diagnostics.moments import MAX_TESTED
from bgmiv.diagnostics.verdict import verdict_of
from bgmiv.effects import Average, FitRows, average, effect_of
from bgmiv.errors import ConfigError, DataError
from bgmiv.fitted import FitEvidence, FittedMethod, MethodConfig
from bgmiv.intervals import NO_INTERVAL, Band, Floats, Interval, interval_of
from bgmiv.linear_iv import LinearEstimate, LinearIV, scaled, strength_of
from bgmiv.progress import HistoryRow, reporter_for, task

__all__ = [
    "FitOnRows",
    "Grid",
    "answered",
    "build_analysis",
    "grid_of",
    "groups_by_treatment",
    "groups_of",
    "method_row",
]

_N_DOSES = 41
_MAX_GROUPS = 8
_MAX_LEVELS = 6
_MAX_DEFAULT_COLUMNS = 2
_MAX_LISTED = 6
_PACKAGES = ("jax", "equinox", "numpy", "scipy", "linearmodels")
_LABELS = {"BGMIV": "BGM-IV", "TSLS": "2SLS"}
_NOT_SHOWN = ("checkpoint", "progress")


class Grid(NamedTuple):
    """The treatments of the curves in rising order, the two of them that are compared, and the level of intervals."""

    doses: Floats
    t0: float
    t1: float
    level: float

    @property
    def places(self) -> tuple[int, int]:
        """Where the two treatments stand among the doses."""
        first, last = np.searchsorted(self.doses, [self.t0, self.t1]).tolist()
        return first, last


def grid_of(schema: Schema, data: IVData | None, request: AnalysisRequest) -> Grid:
    """The treatments asked about as numbers or codes; those compared are always among the doses.

    Raises:
        ConfigError: there are no rows to choose the treatments by.
    """
    if request.t0 is not None:
        t0, t1 = (float(schema.check_treatment(t, 1)[0]) for t in (request.t0, request.t1))
    elif data is not None:
        t0, t1, _ = changes_of(data)[0]
    else:
        raise ConfigError("t0 and t1 are missing, and no model holds its rows. Give both.")
    if schema.treatment.discrete:
        doses = np.arange(float(len(schema.treatment.levels or (0, 1))))
    elif request.treatments is not None:
        doses = schema.check_treatment(np.asarray(request.treatments), len(request.treatments))
    else:
        low, high = (t0, t1) if data is None else np.quantile(data.treatment.astype(np.float64), [0.01, 0.99]).tolist()
        doses = np.linspace(low, high, _N_DOSES)
    return Grid(np.union1d(doses, [t0, t1]), t0, t1, request.level)


GroupRows = tuple[Group, NDArray[np.intp]]
"""Some of the rows: what an analysis keeps of them, and their positions."""


def groups_by_treatment(data: IVData) -> list[GroupRows]:
    """The rows that have a binary treatment and those that do not, whose average effects may differ."""
    variable = data.schema.treatment
    if variable.kind is not BlockKind.binary or not data.schema.blocks:
        return []
    names, groups = variable.levels or (0, 1), []
    for t, status in ((1.0, "treated"), (0.0, "untreated")):
        rows = np.flatnonzero(data.treatment == t)
        if len(rows):
            groups.append((Group(variable.name, f"{variable.name} = {names[int(t)]} ({status})", len(rows), t), rows))
    return groups


def groups_of(data: IVData, request: AnalysisRequest) -> list[GroupRows]:
    """The groups to be shown apart.

    Raises:
        DataError: a name is no covariate that divides the rows, or labels do not fit the rows.
    """
    columns = {name: (block, name) for block in data.schema.blocks for name in block.columns}
    few = [
        name
        for name, (block, _) in columns.items()
        if block.kind is BlockKind.binary or 2 <= len(block.levels or ()) <= _MAX_LEVELS
    ]
    names = few[:_MAX_DEFAULT_COLUMNS] if request.by is None else request.by
    # A formula's term such as C(region) also goes by the name of its column.
    columns = {block.source or name: (block, name) for block, name in columns.values()} | columns
    labels, groups = dict(request.labels), []
    for name in names:
        if name in labels:
            groups += _by_value(name, np.asarray(labels[name]), data.n_rows)
        elif name in columns:
            groups += _of_column(data, *columns[name])
        else:
            known = ", ".join(repr(each) for each in list(columns)[:10])
            raise DataError(f"by={name!r} is no covariate of the fit. It has {known or 'none'}.")
    return groups if request.by is not None else groups[:_MAX_GROUPS]


def _of_column(data: IVData, block: CovariateBlock, column: str) -> list[GroupRows]:
    name = block.source or column
    if block.levels is not None:
        labels = [f"{name} = {level}" for level in block.levels]
        return _of_codes(name, labels, np.argmax(data.covariates[:, block.start : block.stop], axis=1))
    if block.kind not in (BlockKind.binary, BlockKind.continuous):
        raise DataError(f"by={name!r} is a {block.kind} block, which does not divide the rows. Name a single column.")
    values = data.covariates[:, block.start + block.columns.index(column)]
    return _by_value(name, values.astype(np.float64), data.n_rows)


def _by_value(name: str, values: NDArray[Any], n: int) -> list[GroupRows]:
    """A group for each value; of many numbers, thirds."""
    if values.shape != (n,):
        raise DataError(f"by={name!r} has labels of shape {values.shape}; pass one for each of the {n} rows.")
    numeric = values.dtype.kind in "iuf"
    kinds, codes = np.unique(values if numeric else values.astype(str), return_inverse=True)
    labels = [f"{name} = {kind:g}" if values.dtype.kind == "f" else f"{name} = {kind}" for kind in kinds]
    if numeric and len(kinds) > _MAX_GROUPS:
        low, high = np.quantile(values.astype(np.float64), [1 / 3, 2 / 3])
        labels = [f"{name} below {low:.4g}", f"{name} {low:.4g} to {high:.4g}", f"{name} above {high:.4g}"]
        codes = np.add(values >= low, values > high, dtype=np.intp)
    return _of_codes(name, labels, codes)


def _of_codes(name: str, labels: Sequence[str], codes: NDArray[np.intp]) -> list[GroupRows]:
    """The largest groups, as many as are shown, in the order of their labels."""
    counts = np.bincount(codes, minlength=len(labels))
    n_groups = int(np.count_nonzero(counts))
    largest = np.sort(np.argsort(-counts, kind="stable")[:_MAX_GROUPS])
    of = n_groups if n_groups > _MAX_GROUPS else 0
    return [
        (Group(name, labels[i], int(counts[i]), None, of), np.flatnonzero(codes == i)) for i in largest if counts[i]
    ]


@dataclass(frozen=True, eq=False)
class FitOnRows:
    """A fit and the rows it was made of, with what is worked out of both when it is first asked for.

    Attributes:
        fitted, data, config, seed: the fit, its rows, its method, and its seed.
        estimator: the name of its class.
        settings: its arguments that differ from their defaults, as texts.
        formula: of the fit, if it had one.
        n_dropped: rows left out for missing values.
        progress: whether other fits show progress bars; None for notebooks only.
        diagnoses, analyses: those that were asked for before, by what was asked.
    """

    fitted: FittedMethod
    data: IVData
    config: MethodConfig
    seed: int
    estimator: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    formula: str = ""
    n_dropped: int = 0
    progress: bool | None = None
    diagnoses: dict[tuple[bool, float], Diagnosis] = field(default_factory=dict, init=False)
    analyses: dict[tuple[Any, ...], Analysis] = field(default_factory=dict, init=False)

    @property
    def use_instrument(self) -> bool:
        """False for a fit that ignores its instruments."""
        return getattr(self.config, "use_instrument", True)

    @cached_property
    def rows(self) -> Rows:
        """The covariates of the rows, with what was computed of them."""
        return Rows(self.data.covariates, self.data.weights, self.data.index)

    @property
    def instrumented(self) -> FitRows | None:
        """The rows, if the fit uses their instruments."""
        return FitRows(self.data, self.rows) if self.use_instrument else None

    @property
    def weak(self) -> bool:
        """Whether the instruments are so weak that an average effect has a robust set."""
        return self.instrumented is not None and self.instrumented.prefer_robust(self.fitted)

    @cached_property
    def judged(self) -> FittedMethod:
        """The fit with all that held-out rows say of it; one in closed form holds rows out now."""
        fitted, data = self.fitted, self.data
        known = fitted.evidence or FitEvidence()
        if self.use_instrument:
            known = replace(known, linear=known.linear or fitted.is_linear)
            with reporter_for(self.progress, self.estimator) as reporter, task(reporter, "held-out rows"):
                predicted = fitted.held_out_predictions(data, self.rows, MAX_TESTED)
                if predicted is None and fitted.closed_form:
                    predicted = cross_fitted(data, lambda part: self.config.fit(part, self.seed).at, MAX_TESTED)
                strength = strength_of(data, fitted.first_stage_f)
                known = held_out_evidence(known, predicted, data, self.seed, strength)
        return replace(fitted, evidence=known)

    @property
    def known(self) -> FittedMethod:
        """The fit, with what held-out rows say of it if that was asked for."""
        return self.judged if "judged" in vars(self) else self.fitted

    @property
    def refit_config(self) -> Any:
        """The method for another fit, which keeps no unfinished one."""
        config: Any = self.config
        return replace(config, checkpoint=None) if hasattr(config, "checkpoint") else config

    @cached_property
    def without_instrument(self) -> FittedMethod | None:
        """The same method fitted without the instruments; None if this one ignores them already."""
        if not self.use_instrument:
            return None
        config, evidence = self.refit_config, self.fitted.evidence
        if evidence is not None and evidence.networks not in (None, "trained"):
            # The two are compared: nothing but the instruments may differ between them.
            config = replace(config, networks=False)
        with reporter_for(self.progress, f"{self.estimator} (no instrument)") as reporter:
            return config.without_instrument().fit(self.data, self.seed, reporter)

    def diagnosis(self, *, no_instrument: bool, level: float) -> Diagnosis:
        """Its checks, with or without the same method fitted without the instruments."""
        key = (no_instrument, level)
        if key not in self.diagnoses:
            other = self.without_instrument if no_instrument else None
            self.diagnoses[key] = diagnose(
                self.data, self.rows, self.judged, no_instrument=other, level=level, seed=self.seed
            )
        return self.diagnoses[key]

    def analysis(self, request: AnalysisRequest, others: Mapping[str, FitOnRows]) -> Analysis:
        """What is shown of it, and of other fits by name, which are asked the same."""
        key = (request, *others.values())
        if key not in self.analyses:
            self.analyses[key] = build_analysis(request, self, others)
        return self.analyses[key]

    @property
    def label(self) -> str:
        """What the method is called."""
        name = _LABELS.get(self.estimator, self.estimator)
        return name if self.use_instrument else f"{name} without the instrument"

    @property
    def note(self) -> str:
        """The key of what to know of it, as in `MethodRow`."""
        line = "line" if self.estimator == "TSLS" else ""
        return line if self.use_instrument else f"{line}-without-instrument" if line else "no-instrument"


def build_analysis(request: AnalysisRequest, fit: FitOnRows, others: Mapping[str, FitOnRows]) -> Analysis:
    """Everything that is shown of a fit, and of other fits by name, which are asked the same.

    Raises:
        DataError: another method was fitted on another outcome or treatment.
    """
    data, schema, fitted = fit.data, fit.data.schema, fit.judged
    diagnosis = fit.diagnosis(no_instrument=request.no_instrument, level=request.level)
    grid = grid_of(schema, data, request)
    groups = [(Group("", f"all {request.units}", data.n_rows), fit.rows)]
    chosen = [*groups_by_treatment(data), *groups_of(data, request)]
    groups += [(group, fit.rows.take(positions)) for group, positions in chosen]
    answers = [answered(fitted, rows, fit.instrumented, grid) for _, rows in groups]
    beside = _beside(fit, diagnosis.linear, grid, no_instrument=request.no_instrument)
    methods = [method_row(fit.label, fitted, answers[0], fit.note), *beside]
    for name, other in others.items():
        asked = other.data.schema
        if asked.treatment != schema.treatment or asked.outcome.name != schema.outcome.name:
            raise DataError(f"{name!r} was fitted on another outcome or treatment. Compare fits of the same columns.")
        methods = [row for row in methods if row is methods[0] or row.name != name]
        answer = answered(other.judged, other.rows, other.instrumented, grid)
        methods.append(method_row(name, other.judged, answer, other.note))
    curves, effects = [], []
    for (group, _), (averages, interval) in zip(groups, answers, strict=True):
        curves.append(_curve(group, averages, grid, schema.outcome.discrete))
        effects.append(EffectRow(group, grid.t0, grid.t1, interval))
    return Analysis(
        request=replace(request, labels=()),
        title=request.title or f"The effect of {schema.treatment.name} on {schema.outcome.name}",
        question=_question(fit, request.source),
        method=fit.label,
        settings={name: text for name, text in fit.settings.items() if name not in _NOT_SHOWN},
        level=request.level,
        interval_kind=fitted.interval_kind,
        curves=tuple(curves),
        effects=tuple(effects),
        diagnosis=diagnosis,
        verdict=verdict_of(fitted),
        methods=tuple(methods),
        history=_history(fitted.history),
        versions={"Python": python_version()} | versions(*_PACKAGES),
        seed=fit.seed,
        estimand=_estimand(fit),
        instruments=instrument_views(data, request.level, linear=diagnosis.linear is not None),
        made=datetime.now(UTC).date().isoformat(),
    )


Answered = tuple[Average, Interval]
"""g along a grid averaged over rows, and the average effect."""


def answered(fitted: FittedMethod, rows: Rows, own: FitRows | None, grid: Grid, *, intervals: bool = True) -> Answered:
    """As `dose_response_interval` and `ate_interval` answer; of an outcome of several levels, about the first.

    `own` is None where the fit ignores its instruments or its rows are not known.
    """
    intervals = intervals and bool(fitted.interval_kind)
    averages = average(fitted, Query(grid.doses[:, None], rows), intervals=intervals)
    if averages.estimate.values.ndim > 1:
        averages = averages._replace(estimate=averages.estimate.map(lambda values: values[:, 0]))
    interval = effect_of(averages, grid.places, grid.t1 - grid.t0, fitted, grid.level, own)
    if not averages.estimate.sources:
        interval = replace(interval, lower=np.nan, upper=np.nan, method=NO_INTERVAL)
    return averages, interval


def _curve(group: Group, averages: Average, grid: Grid, discrete: bool) -> Curve:
    doses, values, shares = _plain(grid.doses), _plain(averages.estimate.values), _plain(averages.support)
    if not averages.estimate.sources:
        return Curve(group, doses, values, (), (), shares)
    ends: list[Numbers] = []
    for kind in get_args(Band):
        ends += map(_plain, interval_of(averages.estimate, grid.level, probability=discrete, band=kind))
    lower, upper, *band = ends
    return Curve(group, doses, values, lower, upper, shares, averages.estimate.pointwise().sources, *band)


def method_row(name: str, fitted: FittedMethod, answer: Answered, note: str = "") -> MethodRow:
    """What a fitted method answers, and what held-out rows say about it."""
    verdict = verdict_of(fitted)
    severity, n_held_out = (None, 0) if verdict is None else (verdict.severity, verdict.evidence.n_held_out)
    averages, interval = answer
    return MethodRow(name, interval, _plain(averages.estimate.values), note, severity, n_held_out)


def _beside(fit: FitOnRows, linear: LinearEstimate | None, grid: Grid, *, no_instrument: bool) -> list[MethodRow]:
    """What the diagnosis has fitted beside the method: its no-instrument version, and straight lines."""
    data, change, rows = fit.data, grid.t1 - grid.t0, []
    if no_instrument and fit.without_instrument is not None:
        answer = answered(fit.without_instrument, fit.rows, None, grid, intervals=False)
        name = f"{fit.label} without the instrument"
        rows.append(method_row(name, fit.without_instrument, answer, "no-instrument"))
    if linear is None or fit.estimator == "TSLS":
        return rows
    x, y = (float(np.average(values, weights=data.weights)) for values in (data.treatment, data.outcome))
    slopes: tuple[tuple[Any, ...], ...] = (
        ("2SLS", "line", linear.coefficient, linear.std_error, linear.lower, linear.upper),
        ("OLS", "line-without-instrument", linear.ols, linear.ols_std_error, *linear.ols_interval),
    )
    for name, note, slope, error, *ends in slopes:
        lower, upper = sorted(end * change for end in ends)
        interval = Interval(slope * change, lower, upper, grid.level, {"sampling": abs(error * change)})
        if note == "line" and LinearIV.of(data).strength.usual_is_too_short:
            interval = interval.with_set(scaled(linear.robust_set, change))
        rows.append(MethodRow(name, interval, _plain(y + slope * (grid.doses - x)), note))
    return rows


def _question(fit: FitOnRows, source: str) -> Question:
    data = fit.data
    schema, outcome = data.schema, data.schema.outcome
    meaning = f"the mean of {outcome.name}"
    if outcome.discrete:
        # Of two levels the probability of the second is modelled, of more that of the first is shown.
        names = outcome.levels or (0, 1)
        meaning = f"the probability that {outcome.name} is {names[1 if outcome.kind is BlockKind.binary else 0]}"
    return Question(
        outcome=outcome.name,
        treatment=schema.treatment.name,
        instruments=tuple(schema.instruments),
        covariates=tuple(name for block in schema.blocks for name in block.input_names),
        outcome_meaning=meaning,
        treatment_levels=tuple(str(each) for each in schema.treatment.levels or ()),
        formula=" ".join(fit.formula.split()),
        source=source,
        n_rows=data.n_rows,
        n_dropped=fit.n_dropped,
        weights=data.weights_name if data.weights is not None else "",
        groups=" and ".join(name for name in (data.groups_name, data.second_groups_name) if name),
        columns=_columns(fit),
        n_effective=float(1.0 / np.sum(fit.rows.shares**2)),
    )


def _estimand(fit: FitOnRows) -> Estimand:
    data, w, shares = fit.data, fit.data.instruments, fit.rows.shares
    values = np.unique(w)
    two = w.shape[1] == 1 and len(values) == 2
    if not two or data.schema.treatment.kind is not BlockKind.binary:
        return Estimand(two)
    low, high = sorted(float(np.average(data.treatment, weights=shares * (w[:, 0] == value))) for value in values)
    return Estimand(two, (low, high))


def _columns(fit: FitOnRows) -> tuple[ColumnSummary, ...]:
    """The columns by role, blocks of one kind with levels or of many columns as one."""
    data, schema = fit.data, fit.data.schema
    outcome, treatment = schema.outcome, schema.treatment
    columns = []

    def add(name: str, role: str, kind: BlockKind, values: NDArray[Any], levels: Sequence[Any] | None = None) -> None:
        columns.append(ColumnSummary(name, role, kind.value, _column_text(kind, values, levels, fit.rows.shares)))

    add(outcome.name, "outcome", outcome.kind, data.outcome, outcome.levels)
    add(treatment.name, "treatment", treatment.kind, data.treatment, treatment.levels)
    for name, values in zip(schema.instruments, data.instruments.T, strict=True):
        add(name, "instrument", BlockKind.continuous, values)
    for block in schema.blocks:
        values = data.covariates[:, block.start : block.stop]
        if block.levels is not None:
            add(block.name, "covariate", block.kind, np.argmax(values, axis=1), block.levels)
        elif block.kind in (BlockKind.continuous, BlockKind.binary):
            for name, column in zip(block.columns, values.T, strict=True):
                add(name, "covariate", block.kind, column)
        else:
            add(block.name, "covariate", block.kind, values)
    return tuple(columns)


def _column_text(kind: BlockKind, values: NDArray[Any], levels: Sequence[Any] | None, shares: Floats) -> str:
    if values.ndim > 1:
        return f"{values.shape[1]} columns"
    if levels is not None:
        counts = np.bincount(values.astype(np.int64), shares, len(levels))
        listed = [f"{level} {share:.0%}" for level, share in zip(levels, counts, strict=True)]
        more = f", and {len(listed) - _MAX_LISTED} more" if len(listed) > _MAX_LISTED else ""
        return ", ".join(listed[:_MAX_LISTED]) + more
    v = values.astype(np.float64)
    mean = float(shares @ v)
    if kind is BlockKind.binary:
        return f"{mean:.1%} are 1"
    spread = float(np.sqrt(shares @ (v - mean) ** 2))
    return f"mean {mean:.4g}, standard deviation {spread:.3g}, from {v.min():.4g} to {v.max():.4g}"


def _history(rows: tuple[HistoryRow, ...]) -> tuple[HistoryLine, ...]:
    lines: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in rows:
        for name, value in row.metrics.items():
            lines.setdefault((name, row.phase), []).append((int(row.step), float(value)))
    return tuple(HistoryLine(*names, *zip(*points, strict=True)) for names, points in lines.items())


def _plain(values: Any) -> Numbers:
    return tuple(np.asarray(values, np.float64).tolist())
