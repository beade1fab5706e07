"""All that is shown of an analysis, as plain numbers and texts: what summaries, pages and saved models are made of."""

from __future__ import annotations

from dataclasses import dataclass

from bgmiv.trust.diagnosis import Diagnosis
from bgmiv.trust.verdict import Verdict

__all__ = ["Analysis", "ColumnSummary", "Curve", "CurveSource", "EffectRow", "HistoryLine", "MethodRow", "Question"]


@dataclass(frozen=True)
class ColumnSummary:
    """A column of the data.

    Args:
        name: as the analyst calls it.
        role: "outcome", "treatment", "instrument", "covariate", "weights" or "groups".
        kind: "continuous", "binary", "categorical", "vector" or "image".
        text: what it holds, such as "mean 12.3, deviation 2.7, from 1 to 18".
    """

    name: str
    role: str
    kind: str
    text: str


@dataclass(frozen=True)
class Question:
    """What was asked of which data.

    Args:
        outcome, treatment: names.
        instruments, covariates: names.
        outcome_meaning: what g is: the outcome's mean, or the probability of a level.
        treatment_levels: names of the treatment's levels, in the order of their codes; empty for a number.
        formula: the formula, if there was one.
        source: the file or table the rows came from, if that is known.
        n_rows: rows used.
        n_dropped: rows left out for missing values.
        weights, groups: names of these columns; empty if there are none.
        columns: a summary of each.
    """

    outcome: str
    treatment: str
    instruments: tuple[str, ...]
    covariates: tuple[str, ...]
    outcome_meaning: str
    treatment_levels: tuple[str, ...]
    formula: str
    source: str
    n_rows: int
    n_dropped: int
    weights: str
    groups: str
    columns: tuple[ColumnSummary, ...]


@dataclass(frozen=True)
class CurveSource:
    """One source of a curve's uncertainty.

    Args:
        name: such as "sampling" or "network".
        freedom: degrees of freedom of its variance.
        deviations: any number of curves, m values each; the covariance of the curve at two treatments is the sum of
            their products there.
    """

    name: str
    freedom: float
    deviations: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Curve:
    """The structural function along treatments, averaged over some people.

    Args:
        label: who: "everyone", or such as "region = south".
        n_rows: how many they are.
        treatment: m treatments; codes 0, 1, ... of the levels where there are levels.
        estimate: g at each.
        lower, upper: the interval's ends; empty for a method without intervals.
        in_support: the share of these people for whom the data show such a treatment, from 0 to 1.
        sources: what its uncertainty comes from; empty for a method without intervals.
    """

    label: str
    n_rows: int
    treatment: tuple[float, ...]
    estimate: tuple[float, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    in_support: tuple[float, ...]
    sources: tuple[CurveSource, ...] = ()


@dataclass(frozen=True)
class EffectRow:
    """The average effect of one treatment against another for some people.

    Args:
        label: who.
        n_rows: how many they are.
        t0, t1: the treatments, as they are shown.
        estimate: the mean of g(t1, v) - g(t0, v).
        lower, upper: the interval's ends; None for a method without intervals.
        sources: standard deviations by where they come from, such as {"sampling": 0.02, "network": 0.01}.
        in_support: the share of these people for whom the data show both treatments.
    """

    label: str
    n_rows: int
    t0: str
    t1: str
    estimate: float
    lower: float | None
    upper: float | None
    sources: dict[str, float]
    in_support: float


@dataclass(frozen=True)
class MethodRow:
    """One method's answer to the same question.

    Args:
        name: such as "BGM-IV", "2SLS", "BGM-IV without the instrument".
        estimate: its average effect of t1 against t0.
        lower, upper: the interval's ends, where there is one.
        curve: its average curve at the treatments of the first curve of the analysis; may be empty.
        note: what to know of it.
    """

    name: str
    estimate: float
    lower: float | None
    upper: float | None
    curve: tuple[float, ...]
    note: str


@dataclass(frozen=True)
class HistoryLine:
    """A training loss along its steps.

    Args:
        name: of the loss, such as "outcome".
        phase: of training.
        steps: where it was noted.
        values: the losses.
    """

    name: str
    phase: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Analysis:
    """All that is shown.

    Args:
        title: of the analysis.
        question: what was asked of which data.
        method: the method's name.
        settings: its arguments that differ from their defaults, as texts.
        level: of every interval, such as 0.95.
        interval_kind: what the intervals are, in a sentence; empty without intervals.
        curves: the first is everyone's, the others those of chosen groups.
        effects: the first is everyone's, the others those of the same groups.
        diagnosis: checks with readings.
        verdict: what held-out rows say about the fit; None for methods without one.
        methods: the same effect by this and other methods.
        history: losses along training.
        versions: of bgmiv and what it stands on.
        seed: of the fit.
    """

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
