"""Readings of the linear diagnostics: strength of the instruments, the robust set, and tests of assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bgmiv.trust.diagnosis import Check, CheckLevel, LinearEstimate
from bgmiv.trust.first_stage import FirstStage
from bgmiv.trust.linear import Endogeneity, Overidentification, p_text, set_text

__all__ = [
    "WEAK",
    "LinearParts",
    "endogeneity_check",
    "overidentification_check",
    "robust_set_check",
    "strength_checks",
]

WEAK = 10.0
"""An F below this is the old rule of thumb for weak instruments."""

_MOP = "Montiel Olea and Pflueger (2013), Journal of Business & Economic Statistics 31, 358-369"
_STAIGER = (
    "Staiger and Stock (1997), Econometrica 65, 557-586; Andrews, Stock and Sun (2019), Annual Review of Economics 11"
)
_AR = "Anderson and Rubin (1949), Annals of Mathematical Statistics 20, 46-63"
_J = "Sargan (1958), Econometrica 26, 393-415; Hansen (1982), Econometrica 50, 1029-1054"
_HAUSMAN = "Durbin (1954); Wu (1973), Econometrica 41; Hausman (1978), Econometrica 46; Wooldridge (1995)"


class LinearParts(NamedTuple):
    """What linear regressions say about a data set.

    Attributes:
        stages: the first stage, for each column of the treatment.
        names: what these columns are called; one, or the treatment's levels but the first.
        estimate: the linear effect; None where there is none.
        overidentification, endogeneity: tests, one for each column of the outcome; empty where they do not apply.
        note: what was done to the columns.
        clustered: whether rows come in groups.
    """

    stages: tuple[FirstStage, ...]
    names: tuple[str, ...]
    estimate: LinearEstimate | None
    overidentification: tuple[Overidentification, ...]
    endogeneity: tuple[Endogeneity, ...]
    note: str
    clustered: bool

    @property
    def weakest(self) -> int:
        """The column of the treatment with the smallest effective F against what it should be."""
        return int(np.argmin([stage.effective_f / stage.critical for stage in self.stages]))


def strength_checks(parts: LinearParts) -> tuple[Check, Check]:
    """The effective F, and the robust F with the partial R²."""
    stage = parts.stages[parts.weakest]
    where = f" of level {parts.names[parts.weakest]!r}, the weakest" if len(parts.stages) > 1 else ""
    errors = "clustered" if parts.clustered else "robust"
    effective = Check(
        "effective-f",
        "Strength of the instruments (effective F)",
        _strength(stage.effective_f, stage.critical),
        f"{stage.effective_f:.3g}{where}; above {stage.critical:.3g} wanted",
        _effective_reading(stage, parts.note),
        _MOP,
        {"effective_f": stage.effective_f, "critical": stage.critical},
    )
    robust = Check(
        "robust-f",
        f"First-stage F with {errors} errors",
        _strength(stage.robust_f, stage.critical),
        f"{stage.robust_f:.3g}{where}; partial R² {stage.partial_r2:.3g}",
        _robust_reading(stage),
        _STAIGER,
        {
            "robust_f": stage.robust_f,
            "f": stage.f,
            "partial_r2": stage.partial_r2,
            "instruments": float(stage.n_instruments),
        },
    )
    return effective, robust


def _strength(f: float, critical: float) -> CheckLevel:
    if not f >= WEAK:
        return "bad"
    return "doubtful" if f < critical else "good"


def _effective_reading(stage: FirstStage, note: str) -> str:
    level = _strength(stage.effective_f, stage.critical)
    if stage.n_instruments == 0:
        text = (
            "The covariates determine the instruments: nothing is left of them to move the treatment. Drop covariates."
        )
    elif level == "bad":
        text = (
            "The instruments hardly move the treatment. Estimates lean towards what ordinary regression says, their "
            "intervals are too short, and a flexible method does no better. Rely on the Anderson-Rubin set alone, or "
            "find stronger instruments."
        )
    elif level == "doubtful":
        text = (
            "The instruments move the treatment, but the data do not show that the bias of two-stage least squares is "
            "below a tenth of its worst case. Read the Anderson-Rubin set beside every interval."
        )
    else:
        text = "The instruments move the treatment strongly enough for the usual estimates and intervals."
    return f"{text} {note}".strip()


def _robust_reading(stage: FirstStage) -> str:
    level = _strength(stage.robust_f, stage.critical)
    text = {
        "bad": "Below 10, the rule of thumb for instruments too weak to rely on.",
        "doubtful": "Above the rule of thumb of 10, and below what the effective F asks for.",
    }.get(level, "The instruments explain the treatment beyond doubt.")
    text += f" They explain {stage.partial_r2:.2%} of what covariates leave of the treatment."
    if stage.n_instruments > 1:
        text += " With several instruments the effective F is the one to go by."
    return text


def robust_set_check(estimate: LinearEstimate) -> Check:
    """The Anderson-Rubin set of the linear effect."""
    found, share = estimate.robust_set, f"{estimate.level:.0%}"
    unbounded = any(np.isinf(end) for interval in found for end in interval)
    holds_zero = any(lower <= 0.0 <= upper for lower, upper in found)
    level: CheckLevel = "good"
    if not found:
        level = "doubtful"
        text = (
            "No linear effect agrees with all instruments at once: one of them acts on the outcome directly, or the "
            "effect is not linear. See the overidentification test."
        )
    elif unbounded:
        level = "bad"
        text = (
            "The set is unbounded: with instruments this weak the data do not limit the effect, whatever other "
            "intervals say. Find stronger instruments."
        )
    else:
        text = "A set for the linear effect that holds however weak the instruments are. "
        text += "It contains zero." if holds_zero else "It does not contain zero."
        if found[0][0] < estimate.lower or found[-1][1] > estimate.upper:
            text += " Where it is wider than the usual interval, believe this one."
    numbers = {"intervals": float(len(found)), "unbounded": float(unbounded), "holds_zero": float(holds_zero)}
    if found and not unbounded:
        numbers |= {"lower": found[0][0], "upper": found[-1][1]}
    title = f"Linear effect, {share} set robust to weak instruments (Anderson-Rubin)"
    return Check("anderson-rubin", title, level, set_text(found), text, _AR, numbers)


def overidentification_check(tests: Sequence[Overidentification]) -> Check | None:
    """Whether several instruments agree; None if there are no more than needed."""
    if not tests:
        return None
    # The outcome's indicators are tested one by one, and the smallest p-value pays for their number.
    worst = min(tests, key=lambda test: test.j_p)
    p, sargan_p = (min(1.0, value * len(tests)) for value in (worst.j_p, min(test.sargan_p for test in tests)))
    level: CheckLevel = "good" if p >= 0.05 else ("doubtful" if p >= 0.01 else "bad")
    text = (
        "The instruments agree on the linear effect. That does not show that they are valid: they may share a fault."
        if level == "good"
        else "The instruments disagree on the linear effect: one of them acts on the outcome directly, or the effect "
        "is not linear or differs between people. Ask which instrument is the least credible, and fit without it."
    )
    return Check(
        "overidentification",
        "Do the instruments agree? (Hansen's J, Sargan)",
        level,
        f"p {p_text(p)} (J), {p_text(sargan_p)} (Sargan)",
        text,
        _J,
        {"j": worst.j, "j_p": p, "sargan": worst.sargan, "sargan_p": sargan_p, "freedom": float(worst.freedom)},
    )


def endogeneity_check(tests: Sequence[Endogeneity]) -> Check | None:
    """Whether the treatment is endogenous in the linear model; None if the instruments are too few to say."""
    if not tests:
        return None
    worst = min(tests, key=lambda test: test.robust_p)
    p, wu_p, durbin_p = (min(1.0, v * len(tests)) for v in (worst.robust_p, worst.wu_hausman_p, worst.durbin_p))
    text = (
        "Ordinary regression and two-stage least squares differ by more than chance: the treatment is endogenous, and "
        "instruments are needed."
        if p < 0.05
        else "Ordinary regression and two-stage least squares do not differ by more than chance. Either there is "
        "little confounding, or the instruments are too weak to show it; this is no reason to give them up."
    )
    return Check(
        "endogeneity",
        "Is the treatment endogenous? (Wu-Hausman, Durbin, Wooldridge)",
        "note",
        f"p {p_text(p)} (robust), p {p_text(wu_p)} (Wu-Hausman)",
        text,
        _HAUSMAN,
        {
            "robust": worst.robust,
            "robust_p": p,
            "wu_hausman": worst.wu_hausman,
            "wu_hausman_p": wu_p,
            "durbin": worst.durbin,
            "durbin_p": durbin_p,
        },
    )
