"""Readings of a fit itself: its moment, its twin without the instruments, linear 2SLS, its latents and its verdict."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgmiv.data.ivdata import IVData
from bgmiv.trust.contrasts import Change, changes_of
from bgmiv.trust.diagnosis import Check, CheckLevel, LinearEstimate
from bgmiv.trust.latent_usage import PARTS, latent_usage
from bgmiv.trust.linear import p_text
from bgmiv.trust.linear_checks import LinearParts
from bgmiv.trust.moment_test import moment_test
from bgmiv.trust.verdict import Thresholds, Verdict

__all__ = [
    "average_change",
    "comparison_check",
    "gain_check",
    "held_out_values",
    "moment_check",
    "structural_at",
    "twin_check",
    "usage_check",
    "verdict_check",
]

Floats = NDArray[np.float64]

_MOST_ROWS = 1000
_MOST_TESTED = 1500
_BGMIV = "Bayesian generative modelling for instrumental variables (BGM-IV); the guide's page on diagnostics"


def structural_at(fitted: Any, data: IVData, treatment: NDArray[Any], *, members: bool = False) -> Floats:
    """g at rows of data with other treatments, numbers or codes of levels, one a row; of each member, if asked."""
    levels = data.schema.treatment.levels
    asked = np.asarray(levels, dtype=object)[treatment.astype(np.int64)] if levels else treatment
    ask = fitted.predict_members if members else fitted.predict
    return np.asarray(ask(asked, data.covariates if data.schema.blocks else None), np.float64)


def average_change(fitted: Any, data: IVData, change: Change) -> Floats:
    """The average effect of a change over 1000 rows at most: a number, or one a level of the outcome."""
    if data.n_rows > _MOST_ROWS:
        data = data.take(np.sort(np.random.default_rng(0).permutation(data.n_rows)[:_MOST_ROWS]))
    before, after = (structural_at(fitted, data, np.full(data.n_rows, t)) for t in (change.t0, change.t1))
    return np.asarray(np.average(after - before, axis=0, weights=data.weights), np.float64)


def held_out_values(fitted: Any, data: IVData) -> tuple[NDArray[np.int64], Floats, bool]:
    """Rows, g there, and whether each was predicted by a member that had left it out.

    Without such rows all are taken.
    """
    members = getattr(fitted, "members", ())
    parts = [np.asarray(member.held_out_rows, np.int64) for member in members]
    if not parts or not all(len(part) for part in parts):
        rows = np.arange(data.n_rows)
        if data.n_rows > _MOST_TESTED:
            rows = np.sort(np.random.default_rng(0).permutation(data.n_rows)[:_MOST_TESTED])
        part = data.take(rows)
        return rows, structural_at(fitted, part, part.treatment), False
    share = max(1, _MOST_TESTED // len(parts))
    owner = np.concatenate([np.full(len(part[:share]), i) for i, part in enumerate(parts)])
    rows, first = np.unique(np.concatenate([part[:share] for part in parts]), return_index=True)
    taken = data.take(rows)
    values = structural_at(fitted, taken, taken.treatment, members=True)
    return rows, values[owner[first], np.arange(len(rows))], True


def moment_check(fitted: Any, data: IVData, seed: int) -> Check:
    """The conditional-moment test of the fitted g."""
    rows, values, held_out = held_out_values(fitted, data)
    outcomes = data.take(rows).outcome_parts()
    columns = values.reshape(len(rows), -1).T
    if not np.isfinite(values).all():
        text = "The fit predicts values that are not numbers: it has failed. Fit again with another seed."
        return Check("moment-test", _MOMENT_TITLE, "bad", "not a number", text, _MOMENT, {})
    tests = [moment_test(part, column, seed=seed) for part, column in zip(outcomes, columns, strict=True)]
    worst = min(tests, key=lambda test: test.p_value)
    p = min(1.0, worst.p_value * len(tests))
    level: CheckLevel = "good" if p >= 0.05 else "doubtful"
    if p < 0.01 and worst.statistic > Thresholds().moment_excess.failed:
        level = "bad"
    if level == "good":
        text = "Instruments and covariates do not predict what the curve leaves of the outcome, as it should be."
    else:
        text = (
            "Instruments or covariates predict what the curve leaves of the outcome: the curve is off by more than "
            f"chance, by {max(worst.statistic, 0.0):.2%} of the outcome's variance. Train longer or give more rows; if "
            "that does not help, doubt the exclusion of the instruments. With many rows small faults are seen as well."
        )
    text += (
        "" if held_out else " These rows were fitted on, so that the test finds too little: a good result says less."
    )
    numbers = {"p": p, "statistic": worst.statistic, "rows": float(worst.n_rows), "held_out": float(held_out)}
    which = "held-out rows" if held_out else "rows of the fit"
    return Check("moment-test", _MOMENT_TITLE, level, f"p {p_text(p)} ({worst.n_rows} {which})", text, _MOMENT, numbers)


_MOMENT_TITLE = "Does the curve meet its moment, E[outcome - g | instruments, covariates] = 0?"
_MOMENT = "Zhang et al. (2020), Maximum moment restriction, arXiv:2010.07684; Delgado et al. (2006), wild bootstrap"


def gain_check(verdict: Verdict) -> Check | None:
    """What the instruments add to the held-out log-likelihood of the treatment, in any form; None if unknown."""
    gain = verdict.evidence.first_stage_gain
    if gain is None or not np.isfinite(gain):
        return None
    limits = Thresholds().first_stage_gain
    level: CheckLevel = "bad" if gain < limits.failed else ("doubtful" if gain < limits.doubtful else "good")
    text = {
        "bad": "In held-out rows the instruments tell next to nothing about the treatment, in any form the fit found.",
        "doubtful": "In held-out rows the instruments tell little about the treatment.",
        "good": "The instruments help to predict the treatment of held-out rows.",
        "note": "",
    }[level]
    if level != "good":
        text += " The causal curve then rests on little; find stronger instruments, or give more rows."
    title = "Strength of the instruments, in any form (held-out gain in log-likelihood)"
    return Check("nonlinear-first-stage", title, level, f"{gain:.3g} a row", text, _BGMIV, {"gain": float(gain)})


def twin_check(fitted: Any, twin: Any, data: IVData, parts: LinearParts) -> Check:
    """The fit against the same method without the instruments."""
    own, other, change = _widest(fitted, twin, data)
    numbers = {"effect": own, "twin": other, "difference": own - other}
    level: CheckLevel = "note"
    text = (
        f"Over a change of treatment {change.label} the average effect is {own:.4g} with the instruments and "
        f"{other:.4g} without them. The difference is what the instruments correct; is it plausible as confounding?"
    )
    if parts.estimate is not None:
        corrected = (parts.estimate.coefficient - parts.estimate.ols) * (change.t1 - change.t0)
        numbers["linear_difference"] = corrected
        endogenous = any(test.robust_p < 0.05 for test in parts.endogeneity)
        strong = parts.stages[0].effective_f >= parts.stages[0].critical
        if endogenous and strong and abs(own - other) < 0.1 * abs(corrected):
            level = "doubtful"
            text += f" Linear 2SLS corrects by {corrected:.4g}: this fit may have missed the confounding. Train longer."
    title = "With and without the instruments"
    return Check("twin", title, level, f"{own:.4g} against {other:.4g}", text, _BGMIV, numbers)


def _widest(fitted: Any, other: Any, data: IVData) -> tuple[float, float, Change]:
    """The average effects of two fits where they differ most, over changes of treatment and levels of the outcome."""
    found = []
    for change in changes_of(data):
        one, two = (np.atleast_1d(average_change(fit, data, change)) for fit in (fitted, other))
        i = int(np.argmax(np.abs(one - two)))
        found.append((float(one[i]), float(two[i]), change))
    return max(found, key=lambda pair: abs(pair[0] - pair[1]))


def comparison_check(fitted: Any, data: IVData, estimate: LinearEstimate) -> Check:
    """The fit against linear two-stage least squares over the same change of treatment."""
    change = changes_of(data)[0]
    width = change.t1 - change.t0
    own, linear = float(average_change(fitted, data, change)), estimate.coefficient * width
    lower, upper = estimate.lower * width, estimate.upper * width
    level: CheckLevel = "note"
    if abs(own - linear) <= 1e-6 * max(abs(linear), np.finfo(float).tiny):
        text = "This fit is linear two-stage least squares itself."
    elif lower <= own <= upper:
        level, text = "good", "On average the fit agrees with linear two-stage least squares, within its interval."
    else:
        text = (
            "On average the fit disagrees with linear two-stage least squares. That is expected where effects bend or "
            "differ between people, because the linear estimate weighs them otherwise; look at the curve for it. A "
            "straight curve that disagrees is a warning."
        )
        if own * linear < 0 and (lower > 0 or upper < 0):
            level = "doubtful"
            text = "The fit and linear two-stage least squares have opposite signs. Find out why before using either."
    text = f"Over a change {change.label}: {own:.4g}, and by 2SLS {linear:.4g} [{lower:.4g}, {upper:.4g}]. {text}"
    numbers = {"effect": own, "linear": linear, "lower": lower, "upper": upper, "t0": change.t0, "t1": change.t1}
    value = f"{own:.4g} against {linear:.4g}"
    return Check("linear-comparison", "Against linear two-stage least squares", level, value, text, _LINEAR, numbers)


_LINEAR = "Angrist and Imbens (1995), Journal of the American Statistical Association 90, 431-442"


def usage_check(fitted: Any, data: IVData, seed: int) -> Check | None:
    """How much each part of the latents is used; None for a fit without covariates."""
    numbers = latent_usage(fitted, data, seed=seed)
    if not numbers:
        return None
    texts = []
    for part in PARTS:
        used = {key.partition(".")[2]: value for key, value in numbers.items() if key.startswith(f"{part}.")}
        if used:
            texts.append(f"{part}: " + ", ".join(f"{target} {value:.2f}" for target, value in used.items()))
    outcome = max((value for key, value in numbers.items() if key.endswith(".outcome")), default=0.0)
    level: CheckLevel = "note" if outcome >= 0.01 else "doubtful"
    text = (
        "Mean changes of what the fit predicts, in deviations, when a part of the latents is exchanged between people. "
    )
    text += (
        "The shared part carries observed confounding; a part with changes near zero is not needed."
        if level == "note"
        else "No part moves the outcome: the curve is the same for all. If people differ, train longer."
    )
    return Check("latent-usage", "What the latents are used for", level, "; ".join(texts), text, _BGMIV, numbers)


def verdict_check(verdict: Verdict) -> Check:
    """The verdict of held-out rows on the fit."""
    level: CheckLevel = "bad" if verdict.level == "failed" else verdict.level
    text = {
        "good": "Held-out rows speak for this fit.",
        "doubtful": "Held-out rows raise doubts: ",
        "failed": "Held-out rows speak against this fit; do not use it: ",
    }[verdict.level] + " ".join(verdict.reasons)
    numbers = {"held_out": float(verdict.evidence.n_held_out), "findings": float(len(verdict.findings))}
    return Check("verdict", "Verdict of held-out rows on the fit", level, verdict.level, text, _BGMIV, numbers)
