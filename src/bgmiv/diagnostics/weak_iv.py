r"""The average effect of a fit when instruments are weak: a set that is valid however little they move the treatment.

Let $\hat g$ be a fit with the average effect $\hat\theta$ of a change of treatment that is $\Delta$ on average. The
function $\hat g(x, v) + (\theta - \hat\theta)\, x / \Delta$ has the average effect θ, and the shape of the fit beyond a
straight line. So θ is kept if, that shape taken for right, the instruments do not predict y minus this function beyond
chance: the test of Anderson and Rubin for the coefficient of $x / \Delta$ in a linear model of
$y - \hat g + \hat\theta\, x / \Delta$. For a linear fit it is the usual Anderson-Rubin set.

That is the set of fits whose g is a line, and of methods without scores. The set of a sieve with a curve is that of
Fieller (:class:`_Scores`): it does not take the shape for right, and contains the usual interval.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from scipy.linalg import eigvalsh
from scipy.optimize import brentq
from scipy.stats import chi2, norm
from scipy.stats import f as f_distribution

from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Query, Rows
from bgmiv.diagnostics.columns import used_rows
from bgmiv.diagnostics.linear import Intervals, LinearColumns, anderson_rubin_set, linear_columns
from bgmiv.effects import Average, Predictor, average, contrast
from bgmiv.errors import ConfigError, DataError
from bgmiv.intervals import SMOOTHING, STRENGTH, Estimate, Floats, Interval, interval_of

__all__ = [
    "FitRows", "Method", "average_effect", "average_effect_set", "effect_of", "likelihood_ratio_set",
    "tf_critical_value",
]  # fmt: skip

Method = Literal["auto", "usual", "robust"]
"""How an average effect's interval is made; see :func:`average_effect`."""

_NODES, _LITTLE = 100, 1e-10
# √F and the critical value.
_TF = np.array([
    (2.0, 18.66), (2.1, 9.74), (2.2, 7.37), (2.3, 6.18), (2.4, 5.43), (2.5, 4.92), (2.6, 4.54), (2.7, 4.25),
    (2.8, 4.01), (2.9, 3.82), (3.0, 3.65), (3.2, 3.39), (3.4, 3.19), (3.6, 3.03), (3.8, 2.91), (4.0, 2.8), (4.5, 2.6),
    (5.0, 2.46), (5.5, 2.35), (6.0, 2.27), (7.0, 2.16), (8.0, 2.08), (9.0, 2.02), (10.3, 1.96),
])  # fmt: skip
_METHODS = ("auto", "usual", "robust")


class FitRows(NamedTuple):
    """The rows of a fit that uses their instruments, and their covariates with what was computed of them."""

    data: IVData
    rows: Rows


def average_effect(
    fitted: Predictor, query: Query, level: float, own: FitRows | None, *, method: Method = "auto", weak: bool = False
) -> Interval:
    """The average effect of the second of two treatments against the first, with an interval.

    Args:
        fitted: the fitted method.
        query: two treatments for the rows averaged over.
        level: of the interval.
        own: the rows of the fit; None if they are not known, or the fit ignores its instruments.
        method: "usual", by the method's own sources of uncertainty; "robust", the ends of the Anderson-Rubin set;
            "auto", robust where that is preferable and the set can be made, and otherwise usual.
        weak: whether it is (`bgmiv.diagnostics.strength.Strength.usual_is_too_short`).
    """
    if method not in _METHODS:
        raise ConfigError(f"method must be one of {', '.join(_METHODS)}, got {method!r}.")
    found = average(fitted, query, intervals=method != "robust" or bool(fitted.interval_kind))
    treatments = np.broadcast_to(query.treatment, query.shape) @ query.rows.shares
    size = float(treatments[1] - treatments[0])
    return effect_of(found, (0, 1), size, fitted, level, own, method=method, weak=weak)


def effect_of(
    found: Average,
    places: tuple[int, int],
    size: float,
    fitted: Predictor,
    level: float,
    own: FitRows | None,
    *,
    method: Method = "auto",
    weak: bool = False,
) -> Interval:
    """As :func:`average_effect`, of averages, the positions of two of their treatments, and the mean difference."""
    change = contrast(found.estimate.map(lambda values: values[list(places)]))
    support = found.support_of(*places)
    usual = interval_of(change, level, in_support=support, name="average effect")
    possible = own is not None and _one_effect(own.data)
    if method == "robust" and not possible:
        raise DataError(
            "the robust set needs the rows of the fit with instruments that it uses, and a single effect: a treatment "
            "and an outcome of one number or two levels. Use method='usual'."
        )
    if own is None or not possible or method == "usual" or size == 0.0 or not (change.sources or method == "robust"):
        return usual
    scores, q = _Scores.of(change, size), own.data.instruments.shape[1]
    if method == "auto" and not weak:
        return usual
    if scores is None or fitted.is_line:
        pieces = average_effect_set(fitted, own, float(usual.estimate), size, level)
    else:
        dof = min(source.dof for source in change.sources if source.name == "sampling")
        critical = q * float(f_distribution.ppf(level, q, min(dof, len(own.data.outcome) - q)))
        pieces = scores.kept(critical)
    if change.sources and not fitted.is_line:
        # What the robust set knows of the curve is not more than what the usual interval does.
        pieces = _union(pieces, ((float(usual.lower), float(usual.upper)),))
    lower, upper = (pieces[0][0], pieces[-1][1]) if pieces else (np.nan, np.nan)
    return replace(usual, lower=lower, upper=upper, method="anderson-rubin", pieces=pieces)


def average_effect_set(fitted: Predictor, own: FitRows, estimate: float, size: float, level: float) -> Intervals:
    """Every average effect of a change of treatment, `size` on average, that the data do not reject.

    Args:
        fitted: the fitted method.
        own: the rows of the fit.
        estimate: its average effect.
        size: by how much the treatment is changed.
        level: of the set.

    Returns:
        Disjoint intervals in increasing order, whose ends may be infinite; the set may be empty.
    """
    data, columns, used = own.data, linear_columns(own.data), used_rows(own.data)
    x, y = (np.asarray(values, np.float64) for values in (data.treatment, data.outcome))
    line = fitted.at(Query(data.treatment[None], own.rows))[0] - estimate / size * x
    rest = (y - line)[used]
    share = np.ones(len(rest)) if columns.weights is None else columns.weights
    rest = columns.net(rest - np.average(rest, weights=share))
    scale = float(np.sqrt(np.average(rest**2, weights=share))) or 1.0
    unit = columns.unit * scale / columns.outcome_scale
    pieces = anderson_rubin_set(replace(columns, outcome=rest / scale, outcome_scale=scale, unit=unit), level)
    return _times(pieces, size)


def _times(pieces: Intervals, size: float) -> Intervals:
    """Every number of a set, times another one."""
    ends = [sorted((lower * size, upper * size)) for lower, upper in pieces]
    return tuple((lower, upper) for lower, upper in sorted(ends))


class _Scores(NamedTuple):
    r"""The estimate $\hat\theta$ of an effect as a ratio of scores.

    Its error at a true effect θ is that of the sum of scores $a_i + (\theta - \hat\theta)\, b_i$, where b is the noise
    of the first stage, and of a bias of smoothing with variance s². So θ is kept if
    $$(\theta - \hat\theta)^2 \le c\, \{|a + (\theta - \hat\theta)\, b|^2 + s^2\},$$
    the set of Fieller, which for a linear model with one instrument is that of Anderson and Rubin. What the curve's
    prior leaves open is in s².
    """

    estimate: float
    sampling: Floats
    strength: Floats
    smoothing: float

    @classmethod
    def of(cls, change: Estimate, size: float) -> _Scores | None:
        """Those of an effect of a change of treatment; None for a method without them."""
        factors = {source.name: source.factors for source in change.sources}
        if STRENGTH not in factors or size == 0.0:
            return None
        bias = float(np.sum(np.square(factors.get(SMOOTHING, np.zeros(1)))))
        return cls(float(change.values), factors["sampling"], factors[STRENGTH] / size, bias)

    @property
    def f(self) -> float:
        """The F statistic of the treatment's prediction, as the one instrument of the effect."""
        noise = float(np.sum(np.square(self.strength)))
        return 1.0 / noise if noise > 0.0 else np.inf

    def kept(self, critical: float) -> Intervals:
        """The set, as disjoint intervals in increasing order."""
        error = float(np.sum(np.square(self.sampling))) + self.smoothing
        square = 1.0 - critical / self.f
        half = critical * float(np.sum(self.sampling * self.strength))
        discriminant = half**2 + square * critical * error
        if square > 0.0:
            root = np.sqrt(discriminant)
            ends = ((half - root) / square, (half + root) / square)
            return ((self.estimate + ends[0], self.estimate + ends[1]),)
        if discriminant <= 0.0 or square == 0.0:
            return ((-np.inf, np.inf),)
        root = np.sqrt(discriminant)
        ends = ((half + root) / square, (half - root) / square)
        return ((-np.inf, self.estimate + ends[0]), (self.estimate + ends[1], np.inf))


def _union(*sets: Intervals) -> Intervals:
    """The union of sets, each of intervals, as disjoint ones in increasing order.

    >>> _union(((0.0, 1.0), (3.0, 4.0)), ((0.5, 2.0),))
    ((0.0, 2.0), (3.0, 4.0))
    """
    found: list[tuple[float, float]] = []
    for lower, upper in sorted(piece for one in sets for piece in one):
        if found and lower <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], upper))
        else:
            found.append((lower, upper))
    return tuple(found)


def tf_critical_value(f: float) -> float:
    """The 5% critical value of the t statistic of 2SLS with one instrument, given the first stage's robust F.

    It is infinite below 4 and 1.96 from 106 on; in between the published table is read along straight lines in √F,
    which is on the safe side.

    Reference:
        D. S. Lee, J. McCrary, M. J. Moreira, J. Porter (2022), Valid t-ratio inference for IV, American Economic Review
        112, 3260-3290, table 3.

    Example:
        >>> round(tf_critical_value(10.0), 2), tf_critical_value(3.0), tf_critical_value(200.0)
        (3.44, inf, 1.96)
    """
    return float(np.interp(np.sqrt(f), _TF[:, 0], _TF[:, 1])) if f >= 4.0 else np.inf


def likelihood_ratio_set(columns: LinearColumns, level: float = 0.95) -> Intervals:
    r"""Every linear effect that the conditional likelihood ratio test keeps, for errors with equal variance.

    With $\hat\Omega$ the covariance of the errors of y and x given the instruments, and $\lambda_1 \ge \lambda_2$ the
    eigenvalues of $\hat\Omega^{-1} (y, x)^\top P (y, x)$, Moreira's statistic is $\lambda_1 - Q_T(b)$, and that of
    Anderson and Rubin $\lambda_1 + \lambda_2 - Q_T(b)$. The critical value c depends on $Q_T$ alone, and
    $Q_T + c(Q_T)$ rises in it (Mikusheva 2010): b is kept if $Q_T(b)$ is at least the C with $C + c(C) = \lambda_1$. So
    the set is that of Anderson and Rubin with the critical value $\lambda_1 + \lambda_2 - C$. It is never empty, and
    with several instruments usually shorter than theirs; with one both tests are the same.

    References:
        M. J. Moreira (2003), A conditional likelihood ratio test for structural models, Econometrica 71, 1027-1048.
        A. Mikusheva (2010), Robust confidence sets in the presence of weak instruments, J. Econometrics 157, 236-247.
    """
    q = columns.instruments.shape[1]
    if q == 0:
        return ((-np.inf, np.inf),)
    known, both = (
        np.hstack([columns.exogenous, columns.instruments]),
        np.column_stack([columns.outcome, columns.treatment]),
    )
    root = np.ones((len(both), 1)) if columns.weights is None else np.sqrt(columns.weights)[:, None]
    left, inner = (
        root * both - root * part @ np.linalg.lstsq(root * part, root * both, rcond=None)[0]
        for part in (columns.exogenous, known)
    )
    omega = inner.T @ inner / columns.rows_left()
    # Without noise in y - x b for some b, a little keeps the matrix invertible.
    omega += _LITTLE * np.trace(omega) * np.eye(2)
    values = eigvalsh(left.T @ left - inner.T @ inner, omega)
    largest, smallest = float(values[1]), max(float(values[0]), 0.0)

    def beyond(c: float) -> float:
        return c + _ratio_quantile(c, q, level) - largest

    # Nothing is rejected if even Q_T = 0 is kept.
    limit = 0.0 if beyond(0.0) >= 0.0 else float(brentq(beyond, 0.0, largest))
    critical = min(largest - limit, _ratio_quantile(limit, q, level)) + smallest
    return anderson_rubin_set(columns, level, robust=False, critical=critical)


def _ratio_quantile(q_t: float, n_instruments: int, level: float) -> float:
    r"""The quantile of Moreira's statistic given $Q_T$.

    It is at most m where $A \le (Q_T + m) (1 - B / m)$, with A and B chi-squared of q - 1 and 1 degrees of freedom.
    """
    if n_instruments == 1:
        return float(chi2.ppf(level, 1))
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    s, ds = (nodes + 1.0) / 2.0, weights / 2.0

    def missing(m: float) -> float:
        inside = chi2.cdf((q_t + m) * (1.0 - s**2), n_instruments - 1)
        return float(2.0 * np.sqrt(m) * np.sum(ds * inside * norm.pdf(s * np.sqrt(m)))) - level

    return float(brentq(missing, 1e-6, float(chi2.ppf(level, n_instruments)) + 1.0))


def _one_effect(data: IVData) -> bool:
    schema = data.schema
    return bool(schema.instruments) and schema.treatment.width == 1 and schema.outcome.width == 1
