"""A verdict on a fit from held-out rows, for one who has one data set and no truth.

Training losses do not tell a good fit from one that has memorised its rows; rows that were left out do. Every number
here needs only such rows and the fit itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

__all__ = ["Finding", "FitEvidence", "Level", "Pair", "Thresholds", "Verdict", "judge"]

Level = Literal["good", "doubtful", "failed"]
_ORDER: tuple[Level, ...] = ("good", "doubtful", "failed")


@dataclass(frozen=True)
class FitEvidence:
    """What is known about a fit without knowing the truth; None where it could not be measured.

    Args:
        n_held_out: rows left out by some member and looked at.
        outcome_explained: share of the outcome's held-out variance that E[y | w, v] explains.
        linear_explained: the same of a linear model of the outcome given instruments and covariates.
        flexible_explained: the same of a kernel regression on a few hundred rows.
        covariates_gain: by how much the better of these two exceeds the better of the same on instruments alone.
        moment_risk: held-out violation of E[y - g | w, v] = 0, as a share of the outcome's variance.
        linear_moment_risk: the same of the linear 2SLS fit.
        treatment_moment_risk: the same of a cubic in the treatment alone, without covariates or latents.
        outcome_gap: held-out over training loss of the outcome.
        treatment_gap: training minus held-out log-likelihood of the treatment, a row.
        first_stage_gain: what knowing the instruments adds to the held-out log-likelihood of the treatment, a row.
        disagreement: deviation between members' g at held-out rows, as a share of the outcome's deviation.
        near_floor: share of rows whose treatment variance is kept up by its floor alone.
        latent_spread: mean deviation of the latent coordinates; one under the prior.
        n_steps: training steps of the member that had the fewest.
        n_members: members whose average is the estimate.
        n_failed: members left out because training failed.
        discrete_outcome: whether the outcome has levels, of which most is chance however well they are understood.
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


class Finding(NamedTuple):
    """One reason for a verdict below good."""

    level: Level
    text: str


@dataclass(frozen=True)
class Verdict:
    """The judgement on a fit.

    Args:
        level: "good", "doubtful" or "failed"; that of the worst finding.
        findings: the reasons; none for a good fit.
        evidence: the numbers behind them.

    Example:
        >>> verdict = judge(FitEvidence(n_held_out=400, outcome_explained=0.9, first_stage_gain=0.0))
        >>> verdict.level, len(verdict.findings)
        ('failed', 1)
    """

    level: Level
    findings: tuple[Finding, ...] = ()
    evidence: FitEvidence = field(default_factory=FitEvidence)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The findings' texts, worst first."""
        return tuple(f.text for f in sorted(self.findings, key=lambda f: -_ORDER.index(f.level)))

    def __str__(self) -> str:
        """The level and its reasons in a line each."""
        return "\n".join([self.level, *(f"- {reason}" for reason in self.reasons)])


class Pair(NamedTuple):
    """From where on a number is doubtful, and from where on the fit has failed."""

    doubtful: float
    failed: float


@dataclass(frozen=True)
class Thresholds:
    """Where evidence turns against a fit; chosen on development seeds (benchmarks/default-preset.md).

    Args:
        fewest_held_out: with fewer held-out rows a fit cannot be called good.
        fewest_steps: after fewer training steps a fit cannot be called good.
        explained: least share of the outcome's held-out variance explained.
        explained_discrete: the same for an outcome with levels.
        behind: most that may be left unexplained of the outcome, as a multiple of what a linear or a kernel regression
            leaves unexplained.
        covariates_gain: least that covariates add to what instruments explain of the outcome; with less a fit is
            doubtful.
        moment_excess: most that the moment risk may exceed the linear or the treatment-only fit's, as a share of the
            outcome's variance.
        outcome_gap, treatment_gap: most by which training may look better than held-out rows.
        first_stage_gain: least gain of the instruments.
        disagreement: most deviation between members.
        near_floor: largest share of treatment variances at their floor.
        latent_spread: least spread of the latents.
    """

    fewest_held_out: int = 40
    fewest_steps: int = 500
    explained: Pair = Pair(0.05, 0.0)
    explained_discrete: Pair = Pair(0.01, 0.0)
    behind: Pair = Pair(1.25, 2.5)
    covariates_gain: float = 0.005
    moment_excess: Pair = Pair(0.002, 0.02)
    outcome_gap: Pair = Pair(4.0, 15.0)
    treatment_gap: Pair = Pair(1.0, 4.0)
    first_stage_gain: Pair = Pair(0.02, 0.005)
    disagreement: Pair = Pair(0.12, 0.35)
    near_floor: Pair = Pair(0.05, 0.5)
    latent_spread: Pair = Pair(0.4, 0.1)


def judge(evidence: FitEvidence, thresholds: Thresholds | None = None) -> Verdict:
    """Weigh the evidence; the verdict is as bad as the worst finding."""
    thresholds = thresholds or Thresholds()
    found = [finding for finding in _findings(evidence, thresholds) if finding is not None]
    level = _ORDER[max((_ORDER.index(finding.level) for finding in found), default=0)]
    return Verdict(level, tuple(found), evidence)


def _findings(e: FitEvidence, t: Thresholds) -> list[Finding | None]:
    return [
        _few(e, t),
        _short(e, t),
        _above(e.first_stage_gain, t.first_stage_gain, -1, _FIRST_STAGE),
        _above(e.outcome_explained, t.explained_discrete if e.discrete_outcome else t.explained, -1, _EXPLAINED),
        _above(_behind(e.outcome_explained, e.linear_explained), t.behind, +1, _BEHIND_LINEAR),
        _above(_behind(e.outcome_explained, e.flexible_explained), t.behind, +1, _BEHIND_FLEXIBLE),
        _above(e.covariates_gain, Pair(t.covariates_gain, -float("inf")), -1, _COVARIATES),
        _above(_excess(e.moment_risk, e.linear_moment_risk), t.moment_excess, +1, _MOMENT_LINEAR),
        _above(_excess(e.moment_risk, e.treatment_moment_risk), t.moment_excess, +1, _MOMENT_TREATMENT),
        _above(e.outcome_gap, t.outcome_gap, +1, _OUTCOME_GAP),
        _above(e.treatment_gap, t.treatment_gap, +1, _TREATMENT_GAP),
        _above(e.disagreement, t.disagreement, +1, _DISAGREEMENT),
        _above(e.near_floor, t.near_floor, +1, _FLOOR),
        _above(e.latent_spread, t.latent_spread, -1, _COLLAPSE),
        _members(e),
    ]


_FIRST_STAGE = "the instruments add {value:.3g} to the treatment's held-out log-likelihood: they hardly move it."
_EXPLAINED = "instruments and covariates explain {value:.1%} of the outcome's variance in held-out rows."
_BEHIND_LINEAR = "{value:.1f} times as much of the outcome is unexplained in held-out rows as by a linear regression."
_BEHIND_FLEXIBLE = "{value:.1f} times as much of the outcome is unexplained in held-out rows as by a kernel regression."
_COVARIATES = (
    "the covariates add {value:.2%} to what the instruments explain of the outcome in held-out rows: are they of these "
    "rows, and needed?"
)
_MOMENT_LINEAR = "linear 2SLS meets the held-out moment E[y - g | w, v] = 0 better, by {value:.2%} of the variance."
_MOMENT_TREATMENT = (
    "a curve in the treatment alone meets the held-out moment E[y - g | w, v] = 0 better, by {value:.2%} of the "
    "variance: the latents harm."
)
_OUTCOME_GAP = "the outcome's loss is {value:.1f} times larger in held-out rows than in training: rows were memorised."
_TREATMENT_GAP = (
    "the treatment's log-likelihood is {value:.2f} a row lower in held-out rows than in training: rows were memorised."
)
_DISAGREEMENT = "members differ by {value:.0%} of the outcome's deviation: the fit depends on chance."
_FLOOR = "{value:.0%} of the treatment variances are at their floor: the treatment is predicted without error."
_COLLAPSE = "the latents have a mean deviation of {value:.2f}, where the prior has one: they carry little."


def _few(e: FitEvidence, t: Thresholds) -> Finding | None:
    if e.n_held_out >= t.fewest_held_out:
        return None
    if e.n_held_out == 0:
        return Finding("doubtful", "no rows were held out, so that the fit could not be checked.")
    return Finding("doubtful", f"only {e.n_held_out} rows were held out to check the fit.")


def _short(e: FitEvidence, t: Thresholds) -> Finding | None:
    if e.n_steps is None or e.n_steps >= t.fewest_steps:
        return None
    return Finding("doubtful", f"training took only {e.n_steps} steps: what was not learned yet cannot be seen.")


def _above(value: float | None, limits: Pair, sign: int, text: str) -> Finding | None:
    """A finding if the value is beyond a limit in the direction of `sign`; a value that is not a number has failed."""
    if value is None:
        return None
    for level, limit in (("failed", limits.failed), ("doubtful", limits.doubtful)):
        if not sign * value <= sign * limit:
            return Finding("failed" if level == "failed" else "doubtful", text.format(value=value))
    return None


def _behind(own: float | None, other: float | None) -> float | None:
    """How many times more is left unexplained than by another model; one that explains all is not a yardstick."""
    if own is None or other is None or other > 1.0 - 1e-6:
        return None
    return (1.0 - own) / (1.0 - other)


def _excess(risk: float | None, other: float | None) -> float | None:
    """By how much a moment risk exceeds another; an estimate below zero counts as zero."""
    return None if risk is None or other is None else risk - max(other, 0.0)


def _members(e: FitEvidence) -> Finding | None:
    if e.n_failed == 0:
        return None
    level: Level = "doubtful" if e.n_failed <= e.n_members else "failed"
    return Finding(level, f"{e.n_failed} of {e.n_failed + e.n_members} members failed at every attempt.")
