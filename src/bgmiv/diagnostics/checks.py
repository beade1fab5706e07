"""All checks of an instrumental-variable analysis, in reading order: numbers here, sentences in `explanations`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bgmiv.arrays import TINY, Floats
from bgmiv.data.files import Tabular
from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Query, Rows
from bgmiv.data.schema import BlockKind
from bgmiv.diagnostics.explanations import Check, Limits, Severity, html_table, worst
from bgmiv.diagnostics.ill_posedness import Shapes, visible_shapes
from bgmiv.diagnostics.moments import MAX_TESTED, moment_test_of_levels
from bgmiv.diagnostics.verdict import FIRST_STAGE_GAIN, MOMENT_EXCESS, verdict_of
from bgmiv.effects import average, contrast
from bgmiv.fitted import FitEvidence, FittedMethod, HeldOutPredictions
from bgmiv.linear_iv import VERY_WEAK, LinearEstimate, LinearIV

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Change", "Diagnosis", "changes_of", "diagnose"]

_COLUMNS = ("key", "title", "severity", "value", "reading")


@dataclass(frozen=True)
class Diagnosis(Tabular):
    """All checks of a fit.

    Args:
        checks: in reading order.
        linear: the linear estimate; None if there is no single linear effect (a treatment with several levels).

    Example:
        >>> import numpy as np
        >>> from bgmiv import TSLS
        >>> w, u, e = np.random.default_rng(0).normal(size=(3, 500))
        >>> model = TSLS().fit(2 * (w + u) - u + e, w + u, instruments=w)
        >>> diagnosis = model.diagnose()
        >>> diagnosis["effective-f"].severity, diagnosis.weak_instruments
        ('good', False)
    """

    checks: tuple[Check, ...]
    linear: LinearEstimate | None = None

    @property
    def severity(self) -> Severity:
        """The severity of the worst check."""
        return worst(check.severity for check in self.checks)

    @property
    def weak_instruments(self) -> bool:
        """Whether the effective F is below its critical value."""
        return any(check.key == "effective-f" and check.severity != "good" for check in self.checks)

    def __getitem__(self, key: str) -> Check:
        """The check with this key."""
        return {check.key: check for check in self.checks}[key]

    def records(self) -> list[dict[str, str]]:
        """One row per check: key, title, severity, value and reading."""
        return [{name: getattr(check, name) for name in _COLUMNS} for check in self.checks]

    def to_frame(self) -> pd.DataFrame:
        """The same as a table."""
        import pandas as pd

        return pd.DataFrame(self.records(), columns=list(_COLUMNS))

    def __str__(self) -> str:
        """Every check with its value, what it means, and its reference."""
        linear = "" if self.linear is None else f"\n{fill(str(self.linear), 80)}"
        return "\n\n".join([f"Diagnosis: {self.severity}{linear}", *map(str, self.checks)])

    def _repr_html_(self) -> str:
        linear = "" if self.linear is None else str(self.linear)
        rows = [record.values() for record in self.records()]
        return html_table(f"Diagnosis: {self.severity}", linear, [_COLUMNS, *rows])


class Change(NamedTuple):
    """A change of the treatment, between numbers or codes of levels, and its label."""

    t0: float
    t1: float
    label: str

    @property
    def size(self) -> float:
        """By how much the treatment changes."""
        return self.t1 - self.t0

    def effect(self, fitted: FittedMethod, rows: Rows) -> Floats:
        """Its average effect over rows: one number, or one for each level of the outcome."""
        query = Query(np.array([[self.t0], [self.t1]]), rows)
        return np.atleast_1d(contrast(average(fitted, query).estimate).values)


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
            ends = np.quantile(data.treatment.astype(np.float64), [share, 1.0 - share]).tolist()
            rounded = [float(f"{end:.3g}") for end in ends]
            t0, t1 = rounded if rounded[0] < rounded[1] else ends
            if t0 < t1:
                break
        return (Change(t0, t1, f"from {t0:.4g} to {t1:.4g}"),)
    names = variable.levels or (0, 1)
    return tuple(Change(0.0, float(i), f"from {names[0]!r} to {names[i]!r}") for i in range(1, len(names)))


def diagnose(
    data: IVData, rows: Rows, fitted: FittedMethod, *, no_instrument: FittedMethod | None, level: float, seed: int
) -> Diagnosis:
    """Every check of `bgmiv.diagnostics.explanations.CHECKS` that applies to a fit and its data, in that order."""
    linear, verdict, changes = LinearIV.of(data), verdict_of(fitted), changes_of(data)
    estimate = linear.estimate(level)
    evidence = fitted.evidence or FitEvidence()
    checks = [*_strength(linear, data.schema.treatment.levels or ())]
    gain = evidence.first_stage_gain
    if gain is not None and np.isfinite(gain):
        checks.append(Check("nonlinear-first-stage", FIRST_STAGE_GAIN.severity(gain), {"gain": float(gain)}))
    if estimate is not None:
        checks.append(_robust_set(estimate))
    shapes = visible_shapes(data)
    if shapes is not None:
        checks.append(_ill_posedness(shapes))
    if linear.overidentification:
        checks.append(_overidentification(linear.overidentification))
    if linear.endogeneity:
        checks.append(Check("endogeneity", "note", _smallest(linear.endogeneity, "robust_p")))
    checks.append(_moment(fitted, data, rows, evidence, seed))
    if no_instrument is not None:
        checks.append(_without_instrument(fitted, no_instrument, rows, linear, estimate, changes))
    if estimate is not None:
        checks.append(_comparison(fitted, rows, estimate, changes[0]))
    usage = fitted.latent_usage(data, rows, seed)
    if usage:
        used = max((change for name, change in usage.items() if name.endswith(".outcome")), default=0.0)
        checks.append(Check("latent-usage", "note" if used >= 0.01 else "doubtful", usage))
    if verdict is not None:
        numbers = {finding.key: finding.value for finding in verdict.findings}
        numbers["n_held_out"] = verdict.evidence.n_held_out
        checks.append(Check("verdict", verdict.severity, numbers, {"sentence": verdict.sentence}))
    return Diagnosis(tuple(checks), estimate)


def _strength(linear: LinearIV, levels: Sequence[object]) -> tuple[Check, Check]:
    """The effective F, and the robust F with the partial R²."""
    stage, design = linear.stages[linear.weakest], linear.design
    labels = {"level": str(levels[1 + linear.weakest])} if len(linear.stages) > 1 else {}
    count = {"instruments": linear.n_instruments}
    effective = {"effective_f": stage.effective_f, "critical": stage.critical, **count, **design.prepared}
    robust = {"robust_f": stage.robust_f, "f": stage.f, "partial_r2": stage.partial_r2, **count}
    robust["clustered"] = float(bool(design.errors.ways))
    limits = Limits(stage.critical, VERY_WEAK)
    return (
        Check("effective-f", limits.severity(stage.effective_f), effective, labels | design.labels),
        Check("robust-f", limits.severity(stage.robust_f), robust, labels),
    )


def _robust_set(estimate: LinearEstimate) -> Check:
    """The Anderson-Rubin set of the linear effect."""
    pieces = estimate.robust_set
    unbounded = bool(np.isinf(pieces).any())
    numbers = {
        "intervals": len(pieces),
        "unbounded": float(unbounded),
        "holds_zero": float(any(lower <= 0.0 <= upper for lower, upper in pieces)),
        "usual_lower": estimate.lower,
        "usual_upper": estimate.upper,
        "level": estimate.level,
    }
    for i, (lower, upper) in enumerate(pieces, start=1):
        numbers |= {f"lower_{i}": lower, f"upper_{i}": upper}
    return Check("anderson-rubin", "failed" if unbounded else "good" if pieces else "doubtful", numbers)


def _ill_posedness(shapes: Shapes) -> Check:
    """Which shapes of the curve the instruments show."""
    numbers = {"visible": float(shapes.visible), "possible": float(shapes.possible)}
    numbers |= {f"shape_{i}": float(s) for i, s in enumerate(shapes.values, start=1)}
    curved = shapes.visible >= min(2, shapes.possible)
    return Check("ill-posedness", "good" if curved else "note", numbers)


def _overidentification(tests: Sequence[dict[str, float]]) -> Check:
    """Whether several instruments agree."""
    numbers = _smallest(tests, "j_p")
    numbers["sargan_p"] = _smallest(tests, "sargan_p")["sargan_p"]
    return Check("overidentification", Limits(0.05, 0.01).severity(numbers["j_p"]), numbers)


def _smallest(tests: Sequence[dict[str, float]], by: str) -> dict[str, float]:
    """The test with the smallest p-value, all multiplied by the number of tests (Bonferroni)."""
    test = min(tests, key=lambda test: test[by])
    return {name: min(1.0, value * len(tests)) if name.endswith("_p") else value for name, value in test.items()}


def _moment(fitted: FittedMethod, data: IVData, rows: Rows, evidence: FitEvidence, seed: int) -> Check:
    """The test of the fitted g's conditional moment: on held-out rows, or else on those of the fit."""
    p, statistic, n_rows, held_out = evidence.moment_p, evidence.moment_statistic, evidence.n_held_out, True
    if p is None or statistic is None:
        predictions = fitted.held_out_predictions(data, rows, MAX_TESTED)
        held_out = predictions is not None
        if predictions is None:
            some = np.sort(np.random.default_rng(0).permutation(data.n_rows)[:MAX_TESTED])
            predictions = HeldOutPredictions(some, fitted.at(Query(data.treatment[None], rows).take(some))[0])
        if not np.isfinite(predictions.values).all():
            return Check("moment-test", "failed", {})
        statistic, p = moment_test_of_levels(data.take(predictions.rows), predictions.values, seed)
        n_rows = len(predictions.rows)
    severity: Severity = "good" if p >= 0.05 else "doubtful"
    if p < 0.01 and statistic > MOMENT_EXCESS.failed:
        severity = "failed"
    numbers = {"p": p, "statistic": statistic, "rows": n_rows, "held_out": float(held_out)}
    return Check("moment-test", severity, numbers)


def _without_instrument(
    fitted: FittedMethod,
    other: FittedMethod,
    rows: Rows,
    linear: LinearIV,
    estimate: LinearEstimate | None,
    changes: Sequence[Change],
) -> Check:
    """The fit against the same method without the instruments, where the two differ most."""
    pairs = [
        (float(own), float(without), change)
        for change in changes
        for own, without in zip(change.effect(fitted, rows), change.effect(other, rows), strict=True)
    ]
    own, without, change = max(pairs, key=lambda pair: abs(pair[0] - pair[1]))
    numbers = {"effect": own, "without_instrument": without, "difference": own - without}
    severity: Severity = "note"
    if estimate is not None:
        corrected = (estimate.coefficient - estimate.ols) * change.size
        numbers["linear_difference"] = corrected
        endogenous = any(test["robust_p"] < 0.05 for test in linear.endogeneity)
        if endogenous and not linear.strength.weak and abs(own - without) < 0.1 * abs(corrected):
            severity = "doubtful"
    return Check("no-instrument", severity, numbers, {"change": change.label})


def _comparison(fitted: FittedMethod, rows: Rows, estimate: LinearEstimate, change: Change) -> Check:
    """The fit against linear two-stage least squares over the same change of treatment."""
    own = float(change.effect(fitted, rows)[0])
    linear, lower, upper = (end * change.size for end in (estimate.coefficient, estimate.lower, estimate.upper))
    same = abs(own - linear) <= 1e-6 * max(abs(linear), TINY)
    severity: Severity = "note"
    if not same and lower <= own <= upper:
        severity = "good"
    elif not same and own * linear < 0 and (lower > 0 or upper < 0):
        severity = "doubtful"
    numbers = {"effect": own, "linear": linear, "lower": lower, "upper": upper, "t0": change.t0, "t1": change.t1}
    return Check("linear-comparison", severity, numbers | {"same": float(same)}, {"change": change.label})
