"""All checks of an instrumental-variable analysis, in reading order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Query, Rows
from bgmiv.data.schema import BlockKind
from bgmiv.diagnostics.check import Check, Diagnosis, Fitted, LinearEstimate, Severity
from bgmiv.diagnostics.detail import detail_check
from bgmiv.diagnostics.linear import LinearParts, linear_parts
from bgmiv.diagnostics.moments import MAX_TESTED, moment_test
from bgmiv.diagnostics.strength import linear_strength
from bgmiv.diagnostics.verdict import FIRST_STAGE_GAIN, MOMENT_EXCESS, Limits, Verdict
from bgmiv.diagnostics.weak_iv import likelihood_ratio_set, tf_critical_value
from bgmiv.effects import Predictor, average, contrast

__all__ = ["Change", "changes_of", "diagnose"]

# The level for which critical values of the tF procedure are published.
_TF_LEVEL = 0.95


class Change(NamedTuple):
    """A change of the treatment, between numbers or codes of levels, and its label."""

    t0: float
    t1: float
    label: str


def changes_of(data: IVData) -> tuple[Change, ...]:
    """The changes compared by default: between the quartiles, from 0 to 1, or from the first level to each other.

    Quartiles are rounded to three digits: 12.3456 years is nobody's question.

    Example:
        >>> data = IVData.from_arrays([1.0, 2.0, 4.0], [0.0, 1.0, 2.0], instruments=[3.0, 1.0, 2.0])
        >>> changes_of(data)
        (Change(t0=0.5, t1=1.5, label='from 0.5 to 1.5'),)
    """
    variable = data.schema.treatment
    if variable.kind is BlockKind.continuous:
        for share in (0.25, 0.1, 0.0):
            ends = np.quantile(np.asarray(data.treatment, np.float64), [share, 1.0 - share]).tolist()
            rounded = [float(f"{end:.3g}") for end in ends]
            t0, t1 = rounded if rounded[0] < rounded[1] else ends
            if t0 < t1:
                break
        return (Change(t0, t1, f"from {t0:.4g} to {t1:.4g}"),)
    names = variable.levels or (0, 1)
    return tuple(Change(0.0, float(i), f"from {names[0]!r} to {names[i]!r}") for i in range(1, len(names)))


def diagnose(
    data: IVData, rows: Rows, fitted: Fitted, *, no_instrument: Fitted | None = None, level: float = 0.95, seed: int = 0
) -> Diagnosis:
    """Every check of `bgmiv.diagnostics.readings.CHECKS` that applies to a fit and its data, in that order."""
    parts = linear_parts(data, level)
    verdict, estimate = fitted.verdict, parts.estimate
    if estimate is not None:
        estimate = _with_sets(estimate, parts)
    checks = [
        *_strength(parts, data.schema.treatment.levels),
        _first_stage_gain(verdict),
        None if estimate is None else _robust_set(estimate),
        detail_check(fitted, data, rows, parts.columns, changes_of(data)[0], level),
        _overidentification(parts.overidentification),
        Check("endogeneity", "note", _smallest(parts.endogeneity, "robust_p")) if parts.endogeneity else None,
        _moment(fitted, data, rows, seed),
        None if no_instrument is None else _without_instrument(fitted, no_instrument, data, rows, parts),
        None if estimate is None else _comparison(fitted, data, rows, estimate),
        _latent_usage(fitted, data, rows, seed),
        None if verdict is None else _verdict(verdict),
    ]
    return Diagnosis(tuple(check for check in checks if check is not None), estimate)


def _with_sets(estimate: LinearEstimate, parts: LinearParts) -> LinearEstimate:
    """With the set of the conditional likelihood ratio test, and the tF interval."""
    tf, stage = None, parts.stages[0]
    if stage.n_instruments == 1 and estimate.level == _TF_LEVEL:
        half = tf_critical_value(stage.robust_f) * estimate.std_error
        tf = (estimate.coefficient - half, estimate.coefficient + half)
    ratio = likelihood_ratio_set(parts.columns, estimate.level)
    return replace(estimate, likelihood_ratio_set=ratio, tf=tf)


def _strength(parts: LinearParts, levels: Sequence[Any] | None) -> tuple[Check, Check]:
    """The effective F, and the robust F with the partial R²."""
    stage, columns = parts.stages[parts.weakest], parts.columns
    labels = {"level": str(levels[1 + parts.weakest])} if levels and len(parts.stages) > 1 else {}
    count = {"instruments": float(stage.n_instruments)}
    effective = {"effective_f": stage.effective_f, "critical": stage.critical, **count, **columns.prepared}
    robust = {"robust_f": stage.robust_f, "f": stage.f, "partial_r2": stage.partial_r2, **count}
    robust["clustered"] = float(bool(columns.errors.ways))
    known = linear_strength(parts)
    return (
        Check("effective-f", known.severity, effective, labels | columns.labels),
        Check("robust-f", known._replace(f=stage.robust_f).severity, robust, labels),
    )


def _first_stage_gain(verdict: Verdict | None) -> Check | None:
    """What the instruments add to the held-out log-likelihood of the treatment; None if unknown."""
    gain = None if verdict is None else verdict.evidence.first_stage_gain
    if gain is None or not np.isfinite(gain):
        return None
    return Check("nonlinear-first-stage", FIRST_STAGE_GAIN.severity(gain), {"gain": float(gain)})


def _robust_set(estimate: LinearEstimate) -> Check:
    """The Anderson-Rubin set of the linear effect."""
    found = estimate.robust_set
    unbounded = any(np.isinf(end) for interval in found for end in interval)
    numbers = {
        "intervals": float(len(found)),
        "unbounded": float(unbounded),
        "holds_zero": float(any(lower <= 0.0 <= upper for lower, upper in found)),
        "usual_lower": estimate.lower,
        "usual_upper": estimate.upper,
        "level": estimate.level,
    }
    for i, (lower, upper) in enumerate(found, start=1):
        numbers |= {f"lower_{i}": lower, f"upper_{i}": upper}
    return Check("anderson-rubin", "failed" if unbounded else "good" if found else "doubtful", numbers)


def _overidentification(tests: Sequence[dict[str, float]]) -> Check | None:
    """Whether several instruments agree; None if there are no more than needed."""
    if not tests:
        return None
    numbers = _smallest(tests, "j_p")
    numbers["sargan_p"] = _smallest(tests, "sargan_p")["sargan_p"]
    return Check("overidentification", Limits(0.05, 0.01).severity(numbers["j_p"]), numbers)


def _smallest(tests: Sequence[dict[str, float]], by: str) -> dict[str, float]:
    """The test with the smallest p-value, all multiplied by the number of tests (Bonferroni)."""
    test = min(tests, key=lambda test: test[by])
    return {name: min(1.0, value * len(tests)) if name.endswith("_p") else value for name, value in test.items()}


def _moment(fitted: Fitted, data: IVData, rows: Rows, seed: int) -> Check:
    """The test of the fitted g's conditional moment: on held-out rows, or else on those of the fit."""
    known = fitted.verdict.evidence if fitted.verdict is not None else None
    if known is not None and known.moment_p is not None and known.moment_statistic is not None:
        return _moment_check(known.moment_p, known.moment_statistic, known.n_held_out, held_out=True)
    found = fitted.held_out_predictions(data, rows, MAX_TESTED)
    if found is not None:
        some, values = found
    else:
        some = np.sort(np.random.default_rng(0).permutation(data.n_rows)[:MAX_TESTED])
        values = fitted.at(Query(data.treatment[None], rows).take(some))[0]
    if not np.isfinite(values).all():
        return Check("moment-test", "failed", {})
    outcomes, columns = data.take(some).outcome_parts(), values.reshape(len(some), -1).T
    tests = [moment_test(part, column, seed=seed) for part, column in zip(outcomes, columns, strict=True)]
    worst = min(tests, key=lambda test: test.p_value)
    p = min(1.0, worst.p_value * len(tests))
    return _moment_check(p, worst.statistic, worst.n_rows, held_out=found is not None)


def _moment_check(p: float, statistic: float, n_rows: int, *, held_out: bool) -> Check:
    severity: Severity = "good" if p >= 0.05 else "doubtful"
    if p < 0.01 and statistic > MOMENT_EXCESS.failed:
        severity = "failed"
    numbers = {"p": p, "statistic": statistic, "rows": float(n_rows), "held_out": float(held_out)}
    return Check("moment-test", severity, numbers)


def _average_change(fitted: Predictor, rows: Rows, change: Change) -> NDArray[np.float64]:
    """The average effect of a change of treatment: one number, or one for each level of the outcome."""
    query = Query(np.array([[change.t0], [change.t1]]), rows)
    return np.atleast_1d(contrast(average(fitted, query).estimate).values)


def _without_instrument(fitted: Fitted, other: Fitted, data: IVData, rows: Rows, parts: LinearParts) -> Check:
    """The fit against the same method without the instruments, where the two differ most."""
    pairs = [
        (float(own), float(without), change)
        for change in changes_of(data)
        for own, without in zip(*(_average_change(fit, rows, change) for fit in (fitted, other)), strict=True)
    ]
    own, without, change = max(pairs, key=lambda pair: abs(pair[0] - pair[1]))
    numbers = {"effect": own, "without_instrument": without, "difference": own - without}
    severity: Severity = "note"
    if parts.estimate is not None:
        corrected = (parts.estimate.coefficient - parts.estimate.ols) * (change.t1 - change.t0)
        numbers["linear_difference"] = corrected
        endogenous = any(test["robust_p"] < 0.05 for test in parts.endogeneity)
        strong = parts.stages[0].effective_f >= parts.stages[0].critical
        if endogenous and strong and abs(own - without) < 0.1 * abs(corrected):
            severity = "doubtful"
    return Check("no-instrument", severity, numbers, {"change": change.label})


def _comparison(fitted: Fitted, data: IVData, rows: Rows, estimate: LinearEstimate) -> Check:
    """The fit against linear two-stage least squares over the same change of treatment."""
    change = changes_of(data)[0]
    own = float(_average_change(fitted, rows, change)[0])
    linear, lower, upper = (
        end * (change.t1 - change.t0) for end in (estimate.coefficient, estimate.lower, estimate.upper)
    )
    same = abs(own - linear) <= 1e-6 * max(abs(linear), np.finfo(float).tiny)
    severity: Severity = "note"
    if not same and lower <= own <= upper:
        severity = "good"
    elif not same and own * linear < 0 and (lower > 0 or upper < 0):
        severity = "doubtful"
    numbers = {"effect": own, "linear": linear, "lower": lower, "upper": upper, "t0": change.t0, "t1": change.t1}
    return Check("linear-comparison", severity, numbers | {"same": float(same)}, {"change": change.label})


def _latent_usage(fitted: Fitted, data: IVData, rows: Rows, seed: int) -> Check | None:
    """How much each part of the latents is used; None for a fit without latents or covariates."""
    numbers = fitted.latent_usage(data, rows, seed)
    if not numbers:
        return None
    outcome = max((value for key, value in numbers.items() if key.endswith(".outcome")), default=0.0)
    return Check("latent-usage", "note" if outcome >= 0.01 else "doubtful", numbers)


def _verdict(verdict: Verdict) -> Check:
    """The verdict of the held-out rows, with the value of each finding, worst first."""
    numbers = {"n_held_out": float(verdict.evidence.n_held_out)}
    labels = {"start": verdict.start, "remarks": " ".join(verdict.remarks)}
    found = {finding.key: finding.value for finding in verdict.worst_first}
    return Check("verdict", verdict.severity, numbers | found, labels)
