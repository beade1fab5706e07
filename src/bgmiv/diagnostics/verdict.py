"""A verdict on a fit from held-out rows, which needs one data set and no truth.

Training losses do not tell a good fit from one that has memorised its rows; held-out rows do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from bgmiv.diagnostics.explanations import SEVERITIES, Limits, Severity, html_table, worst
from bgmiv.fitted import FitEvidence, FittedMethod, Measured
from bgmiv.linear_iv import VERY_WEAK

__all__ = [
    "FINDINGS", "FIRST_STAGE_GAIN", "MOMENT_EXCESS", "NOT_MEASURED", "Finding", "Verdict", "judge",
    "not_measured_remark", "verdict_of",
]  # fmt: skip

FIRST_STAGE_GAIN = Limits(0.02, 0.005)
"""Of what the instruments add to the treatment's log-likelihood."""
MOMENT_EXCESS = Limits(0.002, 0.02)
"""Of a moment risk beyond that of a simple model, as a share of the outcome's variance."""
# Of an outcome's variance: a smaller share is not told from chance.
_MIN_EXPLAINED, _EVERYTHING = 0.02, 1.0 - 1e-6
# Below two, a line alone: the instruments could not have shown any curvature.
_MIN_VISIBLE = 2
# A curve's error, as a share of the outcome's variance, that has to be visible for a line to be called enough.
_MAX_UNSEEN = 0.1
_MAX_P = 0.01
_BEHIND = Limits(1.25, 2.5)
_NEVER = float("inf")

FINDINGS: dict[str, tuple[Limits, str]] = {
    "held_out": (Limits(40, -_NEVER), "Only {value:.0f} rows were held out to check the fit."),
    "steps": (
        Limits(500, -_NEVER),
        "Training took only {value:.0f} steps, too few for the held-out checks to mean much.",
    ),
    "instrument_f": (
        Limits(VERY_WEAK, VERY_WEAK),
        "The instruments are weak (effective F {value:.1f}): use the Anderson-Rubin set of the linear effect, or find "
        "stronger instruments or more rows.",
    ),
    "first_stage_gain": (
        FIRST_STAGE_GAIN,
        "The instruments hardly help to predict the treatment of held-out rows (log-likelihood gain {value:.3g} per "
        "row).",
    ),
    "explained": (
        Limits(0.05, 0.0),
        "Instruments and covariates explain only {value:.1%} of the outcome's variance in held-out rows.",
    ),
    "behind_linear": (
        _BEHIND,
        "The fit leaves {value:.1f} times as much of the outcome unexplained in held-out rows as a linear regression.",
    ),
    "behind_flexible": (
        _BEHIND,
        "The fit leaves {value:.1f} times as much of the outcome unexplained in held-out rows as a kernel regression.",
    ),
    "missed": (
        Limits(0.25, 0.75),
        "The fit misses {value:.0%} of what a linear or kernel regression explains of the outcome in held-out rows.",
    ),
    "covariates_gain": (
        Limits(0.005, -_NEVER),
        "The covariates explain only {value:.2%} of the outcome's held-out variance beyond the instruments; check that "
        "they belong to these rows and are needed.",
    ),
    "moment_linear": (
        MOMENT_EXCESS,
        "Linear 2SLS satisfies the held-out moment condition E[y - g | w, v] = 0 better, by {value:.2%} of the "
        "outcome's variance.",
    ),
    "moment_p": (
        Limits(_MAX_P, -_NEVER),
        "Instruments or covariates predict the residuals of held-out rows (moment test, p = {value:.2g}), so the curve "
        "is wrong by more than chance.",
    ),
    "control_error": (
        Limits(MOMENT_EXCESS.doubtful, _NEVER),
        "Given a control variable for confounding (what the first stage leaves of the treatment), treatment and "
        "covariates predict the errors of held-out rows: if confounding works through this variable alone, the curve "
        "misses {value:.2%} of the outcome's variance.",
    ),
    "moment_treatment": (
        MOMENT_EXCESS,
        "A cubic in the treatment alone satisfies the held-out moment condition E[y - g | w, v] = 0 better, by "
        "{value:.2%} of the outcome's variance, so what the fit adds to it does harm.",
    ),
    "outcome_gap": (
        Limits(4.0, 15.0),
        "The outcome's loss is {value:.1f} times larger in held-out rows than in training, so the model has memorised "
        "rows.",
    ),
    "treatment_gap": (
        Limits(1.0, 4.0),
        "The treatment's log-likelihood is {value:.2f} per row lower in held-out rows than in training, so the model "
        "has memorised rows.",
    ),
    "disagreement": (
        Limits(0.12, 0.35),
        "The ensemble's members differ by {value:.0%} of the outcome's standard deviation, so the fit depends on "
        "chance.",
    ),
    "near_floor": (
        Limits(0.05, 0.5),
        "{value:.0%} of the treatment variances are at their lower bound: the treatment is predicted without error.",
    ),
    "latent_spread": (
        Limits(0.4, 0.1),
        "The latents have a mean standard deviation of {value:.2f} (the prior has 1), so they carry little "
        "information.",
    ),
    "penalised_covariates": (
        Limits(0.0, _NEVER),
        "The {value:.0f} covariate columns are more than a quarter of the rows and are penalised, so the fit adjusts "
        "for them only in part.",
    ),
    "failed_members": (Limits(0.0, 0.5), "Training failed for {value:.0%} of the ensemble's members."),
}
"""What can speak against a fit: limits of the measurement, and what it means.

They were chosen on development seeds (benchmarks/default-preset.md, benchmarks/verdicts.md). What the regression given
a control variable has against a fit makes it doubtful at most, because confounding may work otherwise.
"""

NOT_MEASURED = {
    "linear_explained": "the comparison with a linear regression",
    "flexible_explained": "the comparison with a kernel regression",
    "moment_risk": "the moment condition",
    "control_error": "the error of the curve given a control variable",
}
"""What a verdict says of a check that could not be made, by the evidence that it lacks."""

_VERDICTS = {
    "good": "This fit passed its held-out checks.",
    "note": "No held-out check that could be made speaks against this fit.",
    "doubtful": "This fit is doubtful.",
    "failed": "This fit failed its held-out checks; do not use it.",
}
_NETWORKS = {
    "nothing left": "Networks were not trained: nothing was left for them in held-out rows.",
    "not wanted": "Networks were not trained, as asked (networks=False).",
    "few rows": "Networks were not trained: there are too few rows to hold out any that tell whether to use them.",
}


class Finding(NamedTuple):
    """One reason for a verdict below good: what was measured, "doubtful" or "failed", and the measurement."""

    key: str
    severity: Severity
    value: float

    @property
    def text(self) -> str:
        """The finding in a sentence."""
        if math.isnan(self.value):
            return f"The measurement {self.key!r} is not a number."
        if self.key == "held_out" and not self.value:
            return "No rows were held out, so the fit could not be checked."
        return FINDINGS[self.key][1].format(value=self.value)


@dataclass(frozen=True)
class Verdict:
    """The judgement on a fit.

    Args:
        severity: "doubtful" or "failed", that of the worst finding; "good" if there is none and all was measured;
            "note" if not all was, or if the fit is linear and no check could have shown a curve.
        findings: the reasons; empty for a good fit.
        evidence: the measurements behind them.

    Example:
        >>> verdict = judge(FitEvidence(n_held_out=400, outcome_explained=0.9, first_stage_gain=0.0))
        >>> verdict.severity, [finding.key for finding in verdict.findings]
        ('failed', ['first_stage_gain'])
    """

    severity: Severity
    findings: tuple[Finding, ...] = ()
    evidence: FitEvidence = FitEvidence()

    @property
    def reasons(self) -> tuple[str, ...]:
        """One sentence per finding, worst first."""
        ordered = sorted(self.findings, key=lambda finding: -SEVERITIES.index(finding.severity))
        return tuple(finding.text for finding in ordered)

    @property
    def not_measured(self) -> tuple[str, ...]:
        """What held-out rows could not show."""
        return tuple(check for name, check in NOT_MEASURED.items() if getattr(self.evidence, name) is None)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences that are neither for nor against the fit: what could not be seen."""
        remarks = [_line_remark(self.evidence)] if self.evidence.linear else []
        if self.evidence.networks in _NETWORKS:
            remarks.append(_NETWORKS[self.evidence.networks])
        if self.not_measured:
            remarks.append(not_measured_remark(self.not_measured))
        return tuple(remarks)

    @property
    def sentence(self) -> str:
        """The verdict with its reasons."""
        start = _VERDICTS[self.severity]
        if not self.findings and not self.not_measured:
            start = _VERDICTS["good"]
        elif self.severity == "note" and not self.evidence.n_held_out:
            start = "This fit was not checked on held-out rows."
        return " ".join([start, *self.reasons, *self.remarks])

    @property
    def lines(self) -> tuple[str, ...]:
        """The verdict in sentences: its reasons and what could not be seen, or that nothing is against the fit."""
        return (*self.reasons, *self.remarks) if self.findings else (self.sentence,)

    def __str__(self) -> str:
        """The severity, then one reason per line."""
        return "\n".join([self.severity, *(f"- {line}" for line in self.lines)])

    def _repr_html_(self) -> str:
        return html_table(f"Held-out checks: {self.severity}", "", [(line,) for line in self.lines])


def verdict_of(fitted: FittedMethod) -> Verdict | None:
    """What held-out rows say of a fit; None if nobody has looked at any."""
    return None if fitted.evidence is None else judge(fitted.evidence)


def judge(evidence: FitEvidence) -> Verdict:
    """The verdict on a fit: as bad as its worst finding."""
    e = evidence
    only_networks = e.network_weight is None and e.n_steps is not None
    # A model that explains everything is no benchmark.
    linear, flexible = (
        None if other is None or other > _EVERYTHING else other for other in (e.linear_explained, e.flexible_explained)
    )
    # Most findings are a measurement by the same name.
    measured = {key: getattr(e, key, None) for key in FINDINGS} | {
        "held_out": e.n_held_out,
        "steps": e.n_steps,
        "explained": e.outcome_explained if only_networks else None,
        "behind_linear": _behind(e.outcome_explained, linear),
        "behind_flexible": _behind(e.outcome_explained, flexible),
        "missed": _missed(e.outcome_explained, linear, flexible),
        "moment_linear": _excess(e.moment_risk, e.linear_moment_risk),
        "control_error": _error_given_control(e),
        "moment_treatment": _excess(e.moment_risk, e.treatment_moment_risk),
        "penalised_covariates": e.n_penalised,
        "failed_members": e.n_failed / (e.n_failed + e.n_members),
    }
    limits = {key: usual for key, (usual, _) in FINDINGS.items()}
    limits["instrument_f"] = Limits(e.instrument_critical or VERY_WEAK, VERY_WEAK)
    if e.discrete_outcome:
        limits["explained"] = Limits(0.01, 0.0)
    findings = tuple(
        Finding(key, limits[key].severity(value), float(value))
        for key, value in measured.items()
        if value is not None and limits[key].severity(value) != "good"
    )
    unseen = e.linear and e.visible_shapes is not None and e.visible_shapes < _MIN_VISIBLE and not _shown(e)
    verdict = Verdict("good", findings, evidence)
    least: Severity = "note" if unseen or verdict.not_measured else "good"
    return replace(verdict, severity=worst([least, *(finding.severity for finding in findings)]))


def _behind(own: Measured, other: Measured) -> Measured:
    """The ratio of unexplained shares; None without a benchmark."""
    return None if own is None or other is None else (1.0 - own) / (1.0 - other)


def _missed(own: Measured, *others: Measured) -> Measured:
    """The share of what the best of others explains that a fit does not; None where that is next to nothing.

    With much noise this shows what the ratio of unexplained shares does not.
    """
    best = max((other for other in others if other is not None), default=0.0)
    return None if own is None or not best > _MIN_EXPLAINED else (best - own) / best


def _excess(risk: Measured, other: Measured) -> Measured:
    """By how much a moment risk exceeds another; an estimate below zero counts as zero."""
    return None if risk is None or other is None else risk - max(other, 0.0)


def _error_given_control(e: FitEvidence) -> Measured:
    """The error that the regression given a control variable shows; 0 where that is chance."""
    if e.control_error is None or e.control_p is None:
        return None
    if math.isnan(e.control_error) or math.isnan(e.control_p):
        return math.nan
    return e.control_error if e.control_p < _MAX_P else 0.0


def _shown(e: FitEvidence) -> bool:
    """Whether the regression given a control variable would have shown a curve."""
    return e.control_visible is not None and e.control_visible <= _MAX_UNSEEN


def _line_remark(e: FitEvidence) -> str:
    """What it says of the effect that a method which can fit curves has fitted a line."""
    if e.visible_shapes is None or e.shapes is None:
        return "The data show no interaction, so the estimate is that of linear two-stage least squares."
    if e.visible_shapes >= _MIN_VISIBLE:
        return (
            "A linear model is enough here: the data show no curvature and no interaction, so the estimate is that of "
            f"linear two-stage least squares. The instruments could have shown {e.visible_shapes} of {e.shapes} shapes "
            "of a curve; finer ones they could not."
        )
    if _shown(e):
        return (
            "A linear model is enough here if confounding works through what the first stage leaves of the treatment: "
            f"given this control variable, a curve that misses {e.control_visible:.1%} of the outcome's variance would "
            f"have been seen. The instruments alone show {e.visible_shapes} of {e.shapes} shapes of a curve clearly."
        )
    return (
        "The estimate is that of linear two-stage least squares, because the instruments could not have shown any "
        f"curvature: of {e.shapes} shapes of a curve they show {e.visible_shapes} clearly. This does not say that the "
        "effect is linear."
    )


def not_measured_remark(names: Iterable[str]) -> str:
    """What held-out rows could not show."""
    return f"Not measured on held-out rows: {', '.join(names)}."
