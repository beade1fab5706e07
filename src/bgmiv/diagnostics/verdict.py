"""A verdict on a fit from held-out rows, which needs one data set and no truth.

Training losses do not tell a good fit from one that has memorised its rows; held-out rows do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from bgmiv.diagnostics.check import SEVERITIES, Severity, worst
from bgmiv.diagnostics.readings import (
    NETWORKS,
    NOT_MEASURED,
    VERDICTS,
    as_sentence,
    html_table,
    line_remark,
    not_measured_remark,
    read_finding,
)
from bgmiv.diagnostics.strength import VERY_WEAK, Strength

__all__ = ["FIRST_STAGE_GAIN", "MOMENT_EXCESS", "Finding", "FitEvidence", "Limits", "Networks", "Verdict", "judge"]

Networks = Literal["trained", "nothing left", "not wanted", "few rows"]
"""Whether a method that may do without networks trained them, or why not."""


@dataclass(frozen=True)
class FitEvidence:
    """What held-out rows show about a fit; None for what could not be measured.

    Args:
        n_held_out: rows held out by some member and used here.
        outcome_explained: share of the outcome's held-out variance that E[y | w, v] explains.
        linear_explained, flexible_explained: the same for a linear and a kernel regression on w and v.
        covariates_gain: by how much the better of these two exceeds the better of the same on instruments alone.
        moment_risk: held-out violation of E[y - g | w, v] = 0, as a share of the outcome's variance.
        linear_moment_risk, treatment_moment_risk: the same for linear 2SLS, and for a cubic in the treatment alone.
        outcome_gap: held-out loss of the outcome divided by its training loss.
        treatment_gap: training minus held-out log-likelihood of the treatment, per row.
        first_stage_gain: what the instruments add to the held-out log-likelihood of the treatment, per row.
        disagreement: standard deviation of g between members at held-out rows, in standard deviations of the outcome.
        near_floor: share of rows whose treatment variance is at its lower bound.
        latent_spread: mean standard deviation of the latent coordinates; 1 under the prior.
        n_steps: training steps of the member with the fewest.
        n_members, n_failed: members whose average is the estimate, and those left out because training failed.
        discrete_outcome: whether the outcome has levels, whose variance is mostly noise even for a good fit.
        instrument_f, instrument_critical: effective F of the instruments, and its critical value.
        network_weight: of the networks' function in the last regression; None for a fit without one.
        networks: whether networks were trained, or why not; None for other methods.
        left_for_networks: how much of the outcome's variance may have been left for them, by the check on left-out rows
            (`bgmiv.bgm.network_check`); None where that was not asked.
        linear: whether a method that can bend found a line: the data support nothing else.
        moment_p, moment_statistic: of `moment_test` on held-out rows.
        control_error, control_p: the squared error of g that held-out errors show given a control variable, as a share
            of the outcome's variance, and the p-value of there being none (`bgmiv.diagnostics.control`).
        control_visible: the least such share that would have been told from none.
        visible_shapes, shapes: how many shapes of a curve, a line among them, the instruments show, and of how many.
        n_penalised: covariate columns that are penalised because they are more than a quarter of the rows.

    Example:
        >>> evidence = FitEvidence(n_held_out=400, outcome_explained=0.3, linear_explained=0.2, flexible_explained=0.3)
        >>> judge(evidence).not_measured
        ('the moment condition', 'the error of the curve given a control variable')
    """

    n_held_out: int = 0
    outcome_explained: float | None = None
    linear_explained: float | None = None
    flexible_explained: float | None = None
    covariates_gain: float | None = None
    moment_risk: float | None = None
    linear_moment_risk: float | None = None
    treatment_moment_risk: float | None = None
    outcome_gap: float | None = None
    treatment_gap: float | None = None
    first_stage_gain: float | None = None
    disagreement: float | None = None
    near_floor: float | None = None
    latent_spread: float | None = None
    n_steps: int | None = None
    n_members: int = 1
    n_failed: int = 0
    discrete_outcome: bool = False
    instrument_f: float | None = None
    instrument_critical: float | None = None
    network_weight: float | None = None
    networks: Networks | None = None
    left_for_networks: float | None = None
    linear: bool = False
    n_penalised: int = 0
    moment_p: float | None = None
    moment_statistic: float | None = None
    visible_shapes: int | None = None
    shapes: int | None = None
    control_error: float | None = None
    control_p: float | None = None
    control_visible: float | None = None

    def with_strength(self, strength: Strength | None) -> FitEvidence:
        """The evidence with the strength of the instruments, where it is known."""
        if strength is None:
            return self
        return replace(self, instrument_f=strength.f, instrument_critical=strength.critical)

    def with_last_stage(self, explained: float, weight: float, linear: bool, strength: Strength | None) -> FitEvidence:
        """The evidence on an estimate by a last regression, without what is about networks that do not enter.

        Their share of the explained variance says nothing of the estimate. Nor does a small one: a regression has the
        noise of its data. And the strength of instruments is tested instead of compared with a fixed gain. A line or a
        sieve is the same for all members, so that these cannot disagree.
        """
        found = replace(
            self,
            outcome_explained=explained,
            covariates_gain=None,
            first_stage_gain=None,
            outcome_gap=None,
            network_weight=weight,
            linear=linear,
        ).with_strength(strength)
        if weight:
            return found
        return replace(
            found, treatment_gap=None, near_floor=None, latent_spread=None, n_steps=None, n_failed=0, disagreement=None
        )


class Finding(NamedTuple):
    """One reason for a verdict below good: what was measured, "doubtful" or "failed", and the measurement."""

    key: str
    severity: Severity
    value: float

    @property
    def text(self) -> str:
        """The finding in words, without a capital or a full stop."""
        return read_finding(self.key, self.value)


@dataclass(frozen=True)
class Verdict:
    """The judgement on a fit.

    Args:
        severity: "doubtful" or "failed", that of the worst finding; "good" if there is none and all was measured;
            "note" if not all was, or if a line was found and no check could have shown a curve.
        findings: the reasons; empty for a good fit.
        evidence: the measurements behind them.

    Example:
        >>> verdict = judge(FitEvidence(n_held_out=400, outcome_explained=0.9, first_stage_gain=0.0))
        >>> verdict.severity, [finding.key for finding in verdict.findings]
        ('failed', ['first_stage_gain'])
    """

    severity: Severity
    findings: tuple[Finding, ...] = ()
    evidence: FitEvidence = field(default_factory=FitEvidence)

    @property
    def worst_first(self) -> tuple[Finding, ...]:
        """The findings, worst first."""
        return tuple(sorted(self.findings, key=lambda finding: -SEVERITIES.index(finding.severity)))

    @property
    def reasons(self) -> tuple[str, ...]:
        """One sentence per finding, worst first."""
        return tuple(as_sentence(finding.text) for finding in self.worst_first)

    @property
    def not_measured(self) -> tuple[str, ...]:
        """What held-out rows could not show."""
        return tuple(words for name, words in NOT_MEASURED.items() if getattr(self.evidence, name) is None)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences that are neither for nor against the fit: what could not be seen."""
        e = self.evidence
        line = [line_remark(e.visible_shapes, e.shapes, e.control_visible if _shown(e) else None)] if e.linear else []
        networks = [NETWORKS[e.networks]] if e.networks in NETWORKS else []
        missing = [not_measured_remark(self.not_measured)] if self.not_measured else []
        return (*line, *networks, *missing)

    @property
    def start(self) -> str:
        """The verdict without its reasons."""
        if self.severity in ("doubtful", "failed"):
            return VERDICTS[self.severity]
        return VERDICTS["good" if not self.not_measured else "note" if self.evidence.n_held_out else "unchecked"]

    @property
    def sentence(self) -> str:
        """The verdict with its reasons."""
        if self.severity in ("good", "note"):
            return " ".join([self.start, *self.remarks])
        start = "This fit failed its held-out checks" if self.severity == "failed" else "This fit is doubtful"
        return " ".join([f"{start}: {'; '.join(finding.text for finding in self.worst_first)}.", *self.remarks])

    @property
    def lines(self) -> tuple[str, ...]:
        """The verdict in sentences: its reasons and what could not be seen, or that nothing is against the fit."""
        return (*self.reasons, *self.remarks) if self.findings else (self.sentence,)

    def __str__(self) -> str:
        """The severity, then one reason per line."""
        return "\n".join([self.severity, *(f"- {line}" for line in self.lines)])

    def _repr_html_(self) -> str:
        rows = [(finding.severity, as_sentence(finding.text)) for finding in self.worst_first]
        notes = self.remarks if rows else (self.sentence,)
        return html_table(f"Held-out checks: {self.severity}", rows, notes=notes)


class Limits(NamedTuple):
    """Beyond which values a measurement is doubtful, and beyond which the fit has failed.

    They are upper limits if failing is above being doubtful, and lower limits otherwise.
    """

    doubtful: float
    failed: float

    def severity(self, value: float) -> Severity:
        """The severity of a measurement; one that is not a number has failed."""
        sign = 1 if self.failed > self.doubtful else -1
        if sign * value <= sign * self.doubtful:
            return "good"
        return "doubtful" if sign * value <= sign * self.failed else "failed"


FIRST_STAGE_GAIN = Limits(0.02, 0.005)
"""Of what the instruments add to the treatment's log-likelihood."""
MOMENT_EXCESS = Limits(0.002, 0.02)
"""Of a moment risk beyond that of a simple model, as a share of the outcome's variance."""
# Of an outcome's variance: a smaller share is not told from chance.
_MIN_EXPLAINED = 0.02
# Below two, a line alone: the instruments could not have shown any curvature.
_MIN_VISIBLE = 2
# A curve's error, as a share of the outcome's variance, that has to be visible for a line to be called enough.
_MAX_UNSEEN = 0.1
_MAX_P = 0.01


def judge(evidence: FitEvidence) -> Verdict:
    """The verdict on a fit: as bad as its worst finding.

    What the regression given a control variable has against a fit makes it doubtful at most, because confounding may
    work otherwise. The limits were chosen on development seeds (benchmarks/default-preset.md, benchmarks/verdicts.md).
    """
    e, never = evidence, -float("inf")
    n_tried = e.n_failed + e.n_members
    behind = Limits(1.25, 2.5)
    measured: dict[str, tuple[float | None, Limits]] = {
        "held_out": (e.n_held_out, Limits(40, never)),
        "steps": (e.n_steps, Limits(500, never)),
        "instrument_f": (e.instrument_f, Limits(e.instrument_critical or VERY_WEAK, VERY_WEAK)),
        "first_stage_gain": (e.first_stage_gain, FIRST_STAGE_GAIN),
        "explained": (
            e.outcome_explained if e.network_weight is None and e.n_steps is not None else None,
            Limits(0.01 if e.discrete_outcome else 0.05, 0.0),
        ),
        "behind_linear": (_behind(e.outcome_explained, e.linear_explained), behind),
        "behind_flexible": (_behind(e.outcome_explained, e.flexible_explained), behind),
        "missed": (_missed(e.outcome_explained, e.linear_explained, e.flexible_explained), Limits(0.25, 0.75)),
        "covariates_gain": (e.covariates_gain, Limits(0.005, never)),
        "moment_linear": (_excess(e.moment_risk, e.linear_moment_risk), MOMENT_EXCESS),
        "moment_p": (e.moment_p, Limits(_MAX_P, never)),
        "control_error": (_error_given_control(e), Limits(MOMENT_EXCESS.doubtful, float("inf"))),
        "moment_treatment": (_excess(e.moment_risk, e.treatment_moment_risk), MOMENT_EXCESS),
        "outcome_gap": (e.outcome_gap, Limits(4.0, 15.0)),
        "treatment_gap": (e.treatment_gap, Limits(1.0, 4.0)),
        "disagreement": (e.disagreement, Limits(0.12, 0.35)),
        "near_floor": (e.near_floor, Limits(0.05, 0.5)),
        "latent_spread": (e.latent_spread, Limits(0.4, 0.1)),
        "penalised_covariates": (e.n_penalised, Limits(0.0, float("inf"))),
        "failed_members": (e.n_failed / n_tried if n_tried else None, Limits(0.0, 0.5)),
    }
    found = tuple(
        Finding(key, limits.severity(value), float(value))
        for key, (value, limits) in measured.items()
        if value is not None and limits.severity(value) != "good"
    )
    unseen = e.linear and e.visible_shapes is not None and e.visible_shapes < _MIN_VISIBLE and not _shown(e)
    incomplete = any(getattr(e, name) is None for name in NOT_MEASURED)
    least: Severity = "note" if unseen or incomplete else "good"
    return Verdict(worst([least, *(finding.severity for finding in found)]), found, evidence)


def _behind(own: float | None, other: float | None) -> float | None:
    """The ratio of unexplained shares; None beside a model that explains everything, which is no benchmark."""
    if own is None or other is None or other > 1.0 - 1e-6:
        return None
    return (1.0 - own) / (1.0 - other)


def _missed(own: float | None, *others: float | None) -> float | None:
    """The share of what the best of others explains that a fit does not; None where that is next to nothing or all.

    With much noise this shows what the ratio of unexplained shares does not.
    """
    best = max((other for other in others if other is not None and other <= 1.0 - 1e-6), default=0.0)
    return None if own is None or not best > _MIN_EXPLAINED else (best - own) / best


def _excess(risk: float | None, other: float | None) -> float | None:
    """By how much a moment risk exceeds another; an estimate below zero counts as zero."""
    return None if risk is None or other is None else risk - max(other, 0.0)


def _error_given_control(e: FitEvidence) -> float | None:
    """The error that the regression given a control variable shows; 0 where that is chance."""
    if e.control_error is None or e.control_p is None:
        return None
    if math.isnan(e.control_error) or math.isnan(e.control_p):
        return math.nan
    return e.control_error if e.control_p < _MAX_P else 0.0


def _shown(e: FitEvidence) -> bool:
    """Whether the regression given a control variable would have shown a curve."""
    return e.control_visible is not None and e.control_visible <= _MAX_UNSEEN
