r"""The linear effect: two-stage least squares, the Anderson-Rubin set, and the tests of its assumptions.

Estimates, covariances and tests are those of linearmodels. The Anderson-Rubin set is found exactly from them, with
equal variances as well as with robust or clustered ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigvals
from scipy.stats import f as f_distribution
from scipy.stats import norm

from bgmiv.errors import ConfigError
from bgmiv.trust.diagnosis import LinearEstimate
from bgmiv.trust.linear_columns import LinearColumns, regression

__all__ = [
    "Endogeneity",
    "Overidentification",
    "anderson_rubin_set",
    "check_level",
    "endogeneity",
    "linear_estimate",
    "overidentification",
    "p_text",
    "set_text",
    "two_stage",
]

Floats = NDArray[np.float64]
Intervals = tuple[tuple[float, float], ...]


def check_level(level: float) -> None:
    """Refuse what is no confidence level.

    >>> check_level(95)
    Traceback (most recent call last):
    bgmiv.errors.ConfigError: level must lie between 0 and 1, such as 0.95, got 95.
    """
    if isinstance(level, bool) or not isinstance(level, int | float | np.number) or not 0.0 < level < 1.0:
        raise ConfigError(f"level must lie between 0 and 1, such as 0.95, got {level!r}.")


def two_stage(columns: LinearColumns, target: Floats | None = None) -> Any:
    """Two-stage least squares of the outcome (or another target) in standardised units: linearmodels' result."""
    from linearmodels.iv import IV2SLS

    y = columns.outcome if target is None else target
    model = IV2SLS(y, columns.exogenous, columns.treatment, columns.instruments, weights=columns.weights)
    return model.fit(**columns.errors)


def linear_estimate(columns: LinearColumns, level: float = 0.95) -> LinearEstimate:
    """The linear effect of a treatment of one column, in units of the data.

    Example:
        >>> from bgmiv.data.ivdata import IVData
        >>> from bgmiv.trust.linear_columns import linear_columns
        >>> rng = np.random.default_rng(0)
        >>> w, u = rng.normal(size=(2, 2000))
        >>> found = linear_estimate(linear_columns(IVData.from_arrays(3.0 * (w + u) - u, w + u, instruments=w)))
        >>> round(found.coefficient, 1), round(found.ols, 1), len(found.robust_set)
        (3.0, 2.5, 1)
    """
    from linearmodels.iv import IV2SLS

    check_level(level)
    unit = columns.outcome_scale / float(columns.treatment_scale[0])
    iv = two_stage(columns)
    right = np.hstack([columns.exogenous, columns.treatment])
    ols = IV2SLS(columns.outcome, right, None, None, weights=columns.weights).fit(**columns.errors)
    b, se = float(iv.params.iloc[-1]) * unit, float(iv.std_errors.iloc[-1]) * unit
    half = float(norm.ppf(0.5 + level / 2.0)) * se
    return LinearEstimate(
        coefficient=b,
        std_error=se,
        lower=b - half,
        upper=b + half,
        ols=float(ols.params.iloc[-1]) * unit,
        ols_std_error=float(ols.std_errors.iloc[-1]) * unit,
        robust_set=anderson_rubin_set(columns, level),
        level=float(level),
    )


def anderson_rubin_set(columns: LinearColumns, level: float = 0.95, *, robust: bool = True) -> Intervals:
    r"""Every linear effect b that the data do not reject, whatever the strength of the instruments.

    b is kept if the instruments do not explain y - x b beyond chance: with $m(b) = \hat\pi_y - b\,\hat\pi_x$ their
    coefficients and $V(b)$ the covariance of these, if $m(b)^\top V(b)^{-1} m(b) \le q\, F_{q, d}$. Both sides are
    quadratic in b, so that the set ends at real roots of $\det\{c V(b) - m(b) m(b)^\top\}$, a quadratic eigenvalue
    problem; no grid is involved.

    Args:
        columns: with a treatment of one column.
        level: of the set.
        robust: False for equal variances, the test of Anderson and Rubin; True for robust or clustered covariances.

    Returns:
        Disjoint intervals in rising order, in units of the data; ends may be infinite, and the set empty.

    References:
        T. W. Anderson, H. Rubin (1949), Estimation of the parameters of a single equation in a complete system of
        stochastic equations, Annals of Mathematical Statistics 20, 46-63. I. Andrews, J. H. Stock, L. Sun (2019), Weak
        instruments in instrumental variables regression, Annual Review of Economics 11, 727-753.
    """
    q = columns.instruments.shape[1]
    if q == 0:
        return ((-np.inf, np.inf),)
    y, x = columns.outcome, columns.treatment[:, 0]
    pi_y, v_y = regression(y, columns, robust=robust)
    pi_x, v_x = regression(x, columns, robust=robust)
    _, v_sum = regression(y + x, columns, robust=robust)
    cross = (v_sum - v_y - v_x) / 2.0
    freedom = columns.freedom if robust else len(y) - columns.exogenous.shape[1] - q
    critical = q * float(f_distribution.ppf(level, q, freedom))

    def kept(b: float) -> bool:
        m, v = pi_y - b * pi_x, v_y - 2.0 * b * cross + b**2 * v_x
        return bool(m @ np.linalg.lstsq(v, m, rcond=1e-13)[0] <= critical)

    ends = _breaks(
        critical * v_y - np.outer(pi_y, pi_y),
        -2.0 * critical * cross + np.outer(pi_y, pi_x) + np.outer(pi_x, pi_y),
        critical * v_x - np.outer(pi_x, pi_x),
    )
    if len(ends) == 0:
        return ((-np.inf, np.inf),) if kept(0.0) else ()
    unit = columns.outcome_scale / float(columns.treatment_scale[0])
    reach = 1.0 + float(np.ptp(ends))
    inner = [float(ends[0]) - reach, *((ends[1:] + ends[:-1]) / 2.0).tolist(), float(ends[-1]) + reach]
    outer = [-np.inf, *(ends * unit).tolist(), np.inf]
    found: list[tuple[float, float]] = []
    for lower, upper, middle in zip(outer[:-1], outer[1:], inner, strict=True):
        if kept(middle):
            joined = bool(found) and found[-1][1] == lower
            found = [*found[:-1], (found[-1][0], upper)] if joined else [*found, (lower, upper)]
    if not found and q == 1 and abs(float(pi_x[0])) > 0:
        # One instrument never rejects the estimate itself; without noise that is all that is left.
        point = float(pi_y[0] / pi_x[0]) * unit
        return ((point, point),)
    return tuple(found)


def _breaks(a0: Floats, a1: Floats, a2: Floats) -> Floats:
    """Where det(a0 + a1 b + a2 b²) may change its sign, in rising order.

    Real parts of complex roots are among them: they divide an interval needlessly, and a double root is not lost.
    """
    q, zero = len(a0), np.zeros_like(a0)
    left = np.block([[zero, np.eye(q)], [-a0, -a1]])
    right = np.block([[np.eye(q), zero], [zero, a2]])
    alpha, beta = eigvals(left, right, homogeneous_eigvals=True)
    finite = np.abs(beta) > 1e-13 * np.abs(alpha)
    return np.unique((alpha[finite] / beta[finite]).real)


def p_text(p: float) -> str:
    """A p-value as it is written.

    >>> p_text(0.0), p_text(0.0123)
    ('< 0.001', '= 0.0123')
    """
    return "< 0.001" if p < 0.001 else f"= {p:.3g}"


def set_text(intervals: Intervals) -> str:
    """A set of numbers as it is written.

    >>> set_text(((-float("inf"), 1.0), (2.5, float("inf"))))
    '(-inf, 1] and [2.5, inf)'
    >>> set_text(()), set_text(((-float("inf"), float("inf")),))
    ('empty', 'every number')
    """
    if not intervals:
        return "empty"
    if intervals == ((-np.inf, np.inf),):
        return "every number"
    texts = []
    for lower, upper in intervals:
        start = "(-inf" if np.isinf(lower) else f"[{lower:.4g}"
        texts.append(f"{start}, " + ("inf)" if np.isinf(upper) else f"{upper:.4g}]"))
    return " and ".join(texts)


@dataclass(frozen=True)
class Overidentification:
    """Whether several instruments agree on the effect.

    Args:
        sargan, sargan_p: Sargan's test, for errors of equal variance.
        j, j_p: Hansen's J of efficient GMM, robust or clustered.
        freedom: instruments beyond those needed.
    """

    sargan: float
    sargan_p: float
    j: float
    j_p: float
    freedom: int


def overidentification(columns: LinearColumns) -> Overidentification | None:
    """Tests of the overidentifying restrictions; None if there are none."""
    from linearmodels.iv import IVGMM

    freedom = columns.instruments.shape[1] - columns.treatment.shape[1]
    if freedom < 1:
        return None
    sargan = two_stage(columns).sargan
    kind: dict[str, Any] = {"weight_type": columns.errors["cov_type"]}
    if columns.groups is not None:
        kind["clusters"] = columns.groups
    model: Any = IVGMM(
        columns.outcome, columns.exogenous, columns.treatment, columns.instruments, weights=columns.weights, **kind
    )
    j = model.fit(**columns.errors).j_stat
    return Overidentification(float(sargan.stat), float(sargan.pval), float(j.stat), float(j.pval), freedom)


@dataclass(frozen=True)
class Endogeneity:
    """Whether the treatment is exogenous after all.

    Args:
        wu_hausman, wu_hausman_p: the F test, for errors of equal variance.
        durbin, durbin_p: Durbin's form of it.
        robust, robust_p: Wooldridge's regression form with robust or clustered errors.
    """

    wu_hausman: float
    wu_hausman_p: float
    durbin: float
    durbin_p: float
    robust: float
    robust_p: float


def endogeneity(columns: LinearColumns) -> Endogeneity | None:
    """Tests of exogeneity; None if there are fewer instruments than columns of the treatment."""
    if columns.instruments.shape[1] < columns.treatment.shape[1]:
        return None
    found = two_stage(columns)
    # Without noise the statistics are divided by zero.
    with np.errstate(divide="ignore", invalid="ignore"):
        wu, durbin, robust = found.wu_hausman(), found.durbin(), found.wooldridge_regression
        numbers = [float(number) for test in (wu, durbin, robust) for number in (test.stat, test.pval)]
    return Endogeneity(*(1.0 if np.isnan(p) else p for p in numbers))
