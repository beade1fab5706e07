"""Whether to believe an instrumental-variable analysis: all checks together, in the order in which they are read."""

from __future__ import annotations

from typing import Any

from bgmiv.data.checks import warn_user
from bgmiv.data.ivdata import IVData
from bgmiv.errors import WeakInstrumentWarning
from bgmiv.trust.diagnosis import Check, Diagnosis
from bgmiv.trust.first_stage import strength_of
from bgmiv.trust.fit_checks import comparison_check, gain_check, moment_check, twin_check, usage_check, verdict_check
from bgmiv.trust.linear import check_level, endogeneity, linear_estimate, overidentification
from bgmiv.trust.linear_checks import (
    LinearParts,
    endogeneity_check,
    overidentification_check,
    robust_set_check,
    strength_checks,
)
from bgmiv.trust.linear_columns import linear_columns

__all__ = ["diagnose", "linear_parts"]


def linear_parts(data: IVData, level: float = 0.95) -> LinearParts:
    """What linear regressions say about a data set.

    A treatment of several levels has a first stage each and no single linear effect; an outcome of several levels is
    tested indicator by indicator.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> w, u = rng.normal(size=(2, 500))
        >>> found = linear_parts(IVData.from_arrays(w - u, w + u, instruments=w))
        >>> found.weakest, found.overidentification
        (0, ())
    """
    check_level(level)
    sets = [linear_columns(part) for part in data.outcome_parts()]
    first = sets[0]
    identified = first.instruments.shape[1] >= first.treatment.shape[1]
    single = identified and first.treatment.shape[1] == 1 and len(sets) == 1
    over = [overidentification(columns) for columns in sets] if identified else []
    endogenous = [endogeneity(columns) for columns in sets] if identified else []
    variable = data.schema.treatment
    return LinearParts(
        stages=tuple(strength_of(target, first) for target in first.treatment.T),
        names=tuple(map(str, variable.levels[1:])) if variable.width > 1 and variable.levels else (variable.name,),
        estimate=linear_estimate(first, level) if single else None,
        overidentification=tuple(test for test in over if test is not None),
        endogeneity=tuple(test for test in endogenous if test is not None),
        note=first.note,
        clustered=first.groups is not None,
    )


def diagnose(data: IVData, fitted: Any, *, twin: Any = None, level: float = 0.95, seed: int = 0) -> Diagnosis:
    """Every check that applies to a fit and the data it was made from.

    Warns with `WeakInstrumentWarning` if the effective F is below its critical value.

    Args:
        data: the rows of the fit.
        fitted: the fitted method.
        twin: the same method fitted without the instruments, if there is one.
        level: of intervals and sets.
        seed: of the moment test's bootstrap.

    Returns:
        The diagnosis. The keys of its checks: effective-f, robust-f, nonlinear-first-stage, anderson-rubin,
        overidentification, endogeneity, moment-test, twin, linear-comparison, latent-usage and verdict, without those
        that do not apply.

    Example:
        >>> import numpy as np
        >>> from bgmiv import TSLS
        >>> rng = np.random.default_rng(0)
        >>> w, u = rng.normal(size=(2, 500))
        >>> model = TSLS().fit(2.0 * (w + u) - u, w + u, instruments=w)
        >>> [check.key for check in diagnose(model.data_, model.fitted_).checks]
        ['effective-f', 'robust-f', 'anderson-rubin', 'endogeneity', 'moment-test', 'linear-comparison']
    """
    parts = linear_parts(data, level)
    verdict = getattr(fitted, "verdict", None)
    checks: list[Check | None] = [*strength_checks(parts)]
    if verdict is not None:
        checks.append(gain_check(verdict))
    if parts.estimate is not None:
        checks.append(robust_set_check(parts.estimate))
    checks += [overidentification_check(parts.overidentification), endogeneity_check(parts.endogeneity)]
    checks.append(moment_check(fitted, data, seed))
    if twin is not None:
        checks.append(twin_check(fitted, twin, data, parts))
    if parts.estimate is not None:
        checks.append(comparison_check(fitted, data, parts.estimate))
    if verdict is not None:
        checks += [usage_check(fitted, data, seed), verdict_check(verdict)]
    found = Diagnosis(tuple(check for check in checks if check is not None), parts.estimate)
    if found.weak_instruments:
        stage = parts.stages[parts.weakest]
        warn_user(
            f"the instruments are weak: their effective F is {stage.effective_f:.3g}, and {stage.critical:.3g} or more "
            "is wanted. Estimates and intervals cannot be relied on; diagnose() says more, and its Anderson-Rubin set "
            "holds all the same.",
            WeakInstrumentWarning,
        )
    return found
