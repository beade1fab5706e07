"""All that an analysis shows, as plain numbers and texts, of which summaries and pages are made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from bgmiv.analysis.instruments import InstrumentViews, Numbers, Records
from bgmiv.analysis.markup import shortened
from bgmiv.data.files import Tabular
from bgmiv.diagnostics.checks import Diagnosis
from bgmiv.diagnostics.explanations import Severity
from bgmiv.diagnostics.verdict import Verdict
from bgmiv.errors import ConfigError, DataError
from bgmiv.intervals import (
    ANDERSON_RUBIN,
    NO_INTERVAL,
    Estimate,
    Interval,
    Source,
    check_level,
    coefficient_table,
    interval_of,
)  # fmt: skip
from bgmiv.numerals import number

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Analysis",
    "AnalysisArguments",
    "AnalysisRequest",
    "Answer",
    "ColumnSummary",
    "Curve",
    "EffectRow",
    "Estimand",
    "Group",
    "HistoryLine",
    "MethodRow",
    "Question",
    "contrast",
    "with_sets",
]


Names = tuple[str, ...]


class AnalysisArguments(TypedDict, total=False):
    """The arguments of an estimator's `analysis`, and of all that shows one; None stands for the default."""

    by: str | Sequence[str] | Mapping[str, Any] | None
    treatments: Any
    t0: Any
    t1: Any
    level: float | None
    compare: Mapping[str, Any] | None
    title: str | None
    source: str | None
    no_instrument: bool | None
    units: str | None


@dataclass(frozen=True)
class AnalysisRequest:
    """Everything that decides what an analysis of a fit holds; equal requests have equal answers.

    The fields are the arguments of `analysis`, where None stands for the default. `compare` has only the names of the
    other methods. `labels` has one label a row for names in `by` that are no covariates; analyses do not keep them.
    `units` is what the rows are called, such as "flights".

    Raises:
        ConfigError: only one of t0 and t1 is given, the level is not between 0 and 1, or the units have no name.
    """

    by: Names | None = None
    treatments: tuple[Any, ...] | None = None
    t0: Any = None
    t1: Any = None
    level: float = 0.95
    no_instrument: bool = True
    title: str = ""
    source: str = ""
    compare: Names = ()
    labels: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    units: str = "rows"

    def __post_init__(self) -> None:
        """Refuse what has no meaning."""
        check_level(self.level)
        if (self.t0 is None) != (self.t1 is None):
            raise ConfigError("t0 and t1 are given together or not at all.")
        if not isinstance(self.units, str) or not self.units.strip():
            raise ConfigError(f"units must be what the rows are called, such as 'flights', got {self.units!r}.")

    @classmethod
    def of(cls, *, by: Any = None, treatments: Any = None, compare: Any = (), **others: Any) -> AnalysisRequest:
        """A request from arguments as users give them; `by` may be a mapping of names to one label a row.

        Example:
            >>> AnalysisRequest.of(by="region", level=0.9) == AnalysisRequest.of(by=["region"], level=0.9)
            True
        """
        labels: tuple[tuple[str, tuple[Any, ...]], ...] = ()
        if isinstance(by, Mapping):
            labels = tuple((str(name), tuple(np.asarray(values).tolist())) for name, values in by.items())
        names = None if by is None else (by,) if isinstance(by, str) else tuple(map(str, by))
        doses = None if treatments is None else tuple(np.atleast_1d(treatments).tolist())
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in others.items()}
        return cls(by=names, treatments=doses, compare=tuple(map(str, compare)), labels=labels, **plain)


@dataclass(frozen=True)
class ColumnSummary:
    """A column of the data: its role ("outcome", ...), its kind ("continuous", ...), and a text on its values."""

    name: str
    role: str
    kind: str
    text: str


@dataclass(frozen=True)
class Question:
    """What was asked of which data.

    Args:
        outcome, treatment, instruments, covariates: names.
        outcome_meaning: what g is: the outcome's mean, or the probability of a level.
        treatment_levels: names of the treatment's levels, in the order of their codes; empty for a number.
        formula, source: the formula, and where the rows came from; empty if there is none or it is not known.
        n_rows, n_dropped: rows used, and rows left out for missing values.
        weights, groups: names of these columns; empty if there are none.
        columns: a summary of each.
        n_effective: by Kish, how many rows of equal weight would tell as much of a mean; `n_rows` without weights.
    """

    outcome: str
    treatment: str
    instruments: Names
    covariates: Names
    outcome_meaning: str
    treatment_levels: Names
    formula: str
    source: str
    n_rows: int
    n_dropped: int
    weights: str
    groups: str
    columns: tuple[ColumnSummary, ...]
    n_effective: float = math.nan

    @property
    def level_names(self) -> Names:
        """The treatment's levels in the order of their codes, "0" and "1" of a binary one; empty for a number."""
        return self.treatment_levels or (("0", "1") if self._kind("treatment") == "binary" else ())

    @property
    def changed(self) -> str:
        """What an effect is a change of: the outcome, or the probability of one of its levels."""
        return self.outcome if self._kind("outcome") == "continuous" else self.outcome_meaning

    def _kind(self, role: str) -> str:
        return next((column.kind for column in self.columns if column.role == role), "continuous")

    def treatment_text(self, treatment: float, width: int = 60) -> str:
        """A treatment as it is read: a number, or the name of a level."""
        return shortened(self.level_names[int(treatment)], width) if self.level_names else number(treatment, 6)

    def change_text(self, row: EffectRow) -> str:
        """What is changed, such as "educ 12 → 16"."""
        t0, t1 = (self.treatment_text(t, 24) for t in (row.t0, row.t1))
        return f"{shortened(self.treatment, 24)} {t0} → {t1}"


@dataclass(frozen=True)
class Estimand:
    """What decides the meaning of the estimate in this data set.

    Args:
        binary_instrument: whether there is one instrument, of two values.
        treated: for a binary treatment and such an instrument, the shares treated at its lower and higher value, in the
            order in which the share rises.
    """

    binary_instrument: bool = False
    treated: tuple[float, float] | None = None


@dataclass(frozen=True)
class Group:
    """Rows that are averaged over.

    Args:
        column: that divides them; empty for all rows.
        label: such as "x = 1".
        n_rows: how many they are.
        treatment: the treatment that all of them have, if they were chosen by it.
        n_groups: how many groups the column makes, of which the largest are shown; 0 if all are.
    """

    column: str
    label: str
    n_rows: int
    treatment: float | None = None
    n_groups: int = 0


@dataclass(frozen=True)
class Curve(Tabular):
    """The structural function along treatments, averaged over a group of rows.

    Args:
        group: the rows.
        treatment: m treatments in rising order, those of the contrast among them; codes 0, 1, ... of levels.
        estimate: g at each.
        lower, upper, sources: the interval's ends and its sources; empty for a method without intervals.
        in_support: the share of the rows for which the data show such a treatment, from 0 to 1.
        band_lower, band_upper: the ends of the uniform band, which is meant to hold the whole curve.
    """

    group: Group
    treatment: Numbers
    estimate: Numbers
    lower: Numbers
    upper: Numbers
    in_support: Numbers
    sources: tuple[Source, ...] = field(default=(), compare=False)
    band_lower: Numbers = ()
    band_upper: Numbers = ()

    def records(self) -> Records:
        """One row for each treatment: estimate, ends of the interval and of the uniform band, share in support."""
        return self.to_frame().reset_index().to_dict("records")

    def to_frame(self) -> pd.DataFrame:
        """The same as a table, by treatment."""
        import pandas as pd

        names = ("treatment", "estimate", "lower", "upper", "band_lower", "band_upper", "in_support")
        return pd.DataFrame({name: getattr(self, name) or math.nan for name in names}).set_index("treatment")


class Answer:
    """An average effect with its interval, as every table and figure shows it."""

    interval: Interval

    @property
    def estimate(self) -> float:
        """The average effect."""
        return float(self.interval.estimate)

    @property
    def lower(self) -> float | None:
        """The lower end of its interval; None for a method without intervals."""
        return None if self.interval.method == NO_INTERVAL else float(self.interval.lower)

    @property
    def upper(self) -> float | None:
        """The upper end of its interval; None for a method without intervals."""
        return None if self.interval.method == NO_INTERVAL else float(self.interval.upper)

    @property
    def robust(self) -> bool:
        """Whether the interval is a set that is robust to weak instruments."""
        return self.interval.method == ANDERSON_RUBIN

    @property
    def in_support(self) -> float:
        """The share of the rows for which the data show both treatments."""
        return float(self.interval.in_support)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with those of the interval among them."""
        own = {name: value for name, value in vars(self).items() if name != "interval"}
        return own | self.interval.to_dict()


def with_sets(records: Records, rows: Sequence[Answer]) -> Records:
    """The rows of a table of these, with a column `set` if two ends do not tell one of the intervals."""
    cells = [row.interval.set_text for row in rows]
    return [record | {"set": cell} for record, cell in zip(records, cells, strict=True)] if any(cells) else records


@dataclass(frozen=True)
class EffectRow(Answer):
    """The average effect of one treatment against another in a group of rows.

    Args:
        group: the rows.
        t0, t1: the treatments: numbers, or codes of levels.
        interval: the mean of g(t1, v) - g(t0, v), with its interval and the share of the rows for which the data show
            both treatments.
    """

    group: Group
    t0: float
    t1: float
    interval: Interval


@dataclass(frozen=True)
class MethodRow(Answer):
    """One method's answer to the same question.

    Args:
        name: such as "BGM-IV", "2SLS", "BGM-IV without the instrument".
        interval: its average effect of t1 against t0.
        curve: its average curve at the treatments of the first curve of the analysis.
        note: what kind it is: "no-instrument", "line", "line-without-instrument", "truth" (of simulated data), or empty
            for a fitted method.
        severity, n_held_out: what held-out rows say about its fit, and how many they are; None and 0 for none.
    """

    name: str
    interval: Interval
    curve: Numbers
    note: str = ""
    severity: Severity | None = None
    n_held_out: int = 0


@dataclass(frozen=True)
class HistoryLine:
    """A training loss in one phase of training, along its steps."""

    name: str
    phase: str
    steps: tuple[int, ...]
    values: Numbers


@dataclass(frozen=True, repr=False)
class Analysis(Tabular):
    """All that is shown: print it, show it in a notebook, or take its effects as a table with `to_frame`.

    Args:
        request: what was asked for, without the labels of rows.
        title, question: of the analysis.
        method, settings: the method's name, and its arguments that differ from their defaults, as texts.
        level: of every interval, such as 0.95.
        interval_kind: what the intervals are, in a sentence; empty without intervals.
        curves, effects: the first is that of all rows, the others those of chosen groups, in the same order.
        diagnosis: checks, and what they mean.
        verdict: what held-out rows say about the fit; None for methods without one.
        methods: the same effect by this and other methods.
        history: losses along training.
        versions: of bgmiv and its dependencies.
        seed: of the fit.
        estimand: what decides the meaning of the estimate.
        instruments: what the data show of the instruments.
        made: the day it was made, such as "2026-11-17".

    Example:
        >>> from bgmiv import TSLS
        >>> w, u, e = np.random.default_rng(0).normal(size=(3, 500))
        >>> model = TSLS().fit(2 * (w + u) - u + e, w + u, instruments=w)
        >>> analysis = model.analysis(t0=0.0, t1=1.0)
        >>> analysis.to_frame()[["group", "t1"]].values.tolist(), analysis.verdict.severity
        ([['all rows', 1.0]], 'good')
    """

    request: AnalysisRequest
    title: str
    question: Question
    method: str
    settings: dict[str, str]
    level: float
    interval_kind: str
    curves: tuple[Curve, ...]
    effects: tuple[EffectRow, ...]
    diagnosis: Diagnosis
    verdict: Verdict | None
    methods: tuple[MethodRow, ...]
    history: tuple[HistoryLine, ...]
    versions: dict[str, str]
    seed: int
    estimand: Estimand = Estimand()
    instruments: InstrumentViews = InstrumentViews()
    made: str = ""

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together, as a damaged file may hold."""
        if not self.curves or len(self.curves) != len(self.effects):
            raise DataError("an analysis needs a curve for all rows, and one effect for each curve.")
        grid, names = self.curves[0].treatment, self.question.level_names
        asked = {t for row in self.effects for t in (row.t0, row.t1)}
        together = all(curve.treatment == grid for curve in self.curves) and asked <= set(grid)
        together = together and all(len(row.curve) == len(grid) for row in self.methods)
        if not together or (names and grid != tuple(range(len(names)))):
            raise DataError("the curves, effects and methods of an analysis have different treatments.")

    @property
    def units(self) -> str:
        """What the rows are called, in the plural."""
        return shortened(self.request.units, 40)

    @property
    def others(self) -> list[tuple[int, MethodRow]]:
        """The other methods with their numbers; the first method is that of the analysis itself."""
        return list(enumerate(self.methods))[1:]

    @property
    def weak(self) -> bool:
        """Whether intervals from standard errors are too narrow: by a check, or because effects have robust sets."""
        return self.diagnosis.weak_instruments or self.effects[0].robust

    def records(self) -> Records:
        """The average effects, a row for each group of rows; `set` is there where two ends do not tell an interval."""
        levels = self.question.treatment_levels
        records = [
            {
                "column": row.group.column,
                "group": row.group.label,
                "n_rows": row.group.n_rows,
                "t0": levels[int(row.t0)] if levels else row.t0,
                "t1": levels[int(row.t1)] if levels else row.t1,
                "estimate": row.estimate,
                "std_error": float(row.interval.std_error),
                "lower": row.interval.lower,
                "upper": row.interval.upper,
                "in_support": row.in_support,
            }
            for row in self.effects
        ]
        return with_sets(records, self.effects)

    def to_frame(self) -> pd.DataFrame:
        """The same as a table."""
        import pandas as pd

        return pd.DataFrame(self.records())

    def __repr__(self) -> str:
        """The summary's text."""
        from bgmiv.analysis.text import summary_text

        return summary_text(self)

    def _repr_html_(self) -> str:
        from bgmiv.analysis.text import summary_html

        return summary_html(self)

    @property
    def __maketables_coef_table__(self) -> pd.DataFrame:
        rows, change, frame = self.effects, self.question.change_text, self.to_frame()
        names = [change(row) + (f", {row.group.label}" if row.group.column else "") for row in rows]
        return coefficient_table(names, frame["estimate"], frame["std_error"], [row.interval.dof for row in rows])

    @property
    def __maketables_depvar__(self) -> str:
        return self.question.outcome

    def __maketables_stat__(self, key: str) -> Any:
        return {"N": self.question.n_rows, "method": self.method}.get(key)

    @property
    def __maketables_default_stat_keys__(self) -> list[str]:
        return ["N"]


def contrast(curve: Curve, t0: float, t1: float, level: float) -> tuple[Interval, bool]:
    """The average effect of t1 against t0 by a stored curve, and whether it was read between the curve's points.

    At the points it is what `ate_interval(method="usual")` gives, but for `in_support`, the smaller of the two shares.
    Between them the curve is read along straight lines. Without intervals, the interval has no width and no sources.

    Raises:
        DataError: a treatment lies outside the curve.

    Example:
        >>> line = Curve(Group("", "all rows", 10), (0.0, 1.0, 2.0), (0.0, 2.0, 4.0), (), (), (1.0, 1.0, 0.5))
        >>> effect, interpolated = contrast(line, 0.5, 1.5, 0.95)
        >>> effect.estimate, effect.in_support, interpolated
        (2.0, 0.75, True)
    """
    low, high = curve.treatment[0], curve.treatment[-1]
    if not (low <= t0 <= high and low <= t1 <= high):
        raise DataError(
            f"the stored curve goes from {low:.4g} to {high:.4g}. For other treatments give the rows to average over: "
            "ate_interval(covariates, ...), or --data DATA on the command line."
        )

    def at(values: Any) -> NDArray[np.float64]:
        return np.interp([t0, t1], curve.treatment, values)

    along = Estimate(np.asarray(curve.estimate), curve.sources)
    change = along.map(lambda values: np.asarray(np.diff(at(values))[0]))
    interval = interval_of(change, level, in_support=float(at(curve.in_support).min()), name="average effect")
    return interval, not {t0, t1} <= set(curve.treatment)
