r"""Linear regressions of a data set, tests of their assumptions, and the strength of the instruments.

Estimates are those of `bgmiv.covariance`, tests of exogeneity those of linearmodels. With weak instruments two-stage
least squares is biased towards least squares, and its intervals are too narrow. The effective F measures this without
assuming equal error variances; the Anderson-Rubin set is valid whatever the instruments are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, eigvals, solve_triangular
from scipy.stats import chi2, ncx2
from scipy.stats import f as f_distribution
from scipy.stats import t as student

from bgmiv.covariance import (
    Clusters,
    Errors,
    LinearFit,
    coefficient_covariance,
    fit_linear,
    left_out_changes,
    score_covariance,
)
from bgmiv.data.ivdata import IVData
from bgmiv.diagnostics.check import LinearEstimate
from bgmiv.diagnostics.columns import LinearColumns, linear_columns, residuals
from bgmiv.intervals import check_level

__all__ = [
    "FirstStage", "LinearColumns", "LinearParts", "anderson_rubin_set", "critical_effective_f", "endogeneity",
    "first_stage", "linear_columns", "linear_estimate", "linear_fit", "linear_parts", "overidentification",
    "regression",
]  # fmt: skip

Floats = NDArray[np.float64]
Intervals = tuple[tuple[float, float], ...]


def regression(target: Floats, columns: LinearColumns, *, robust: bool = True) -> tuple[Floats, Floats]:
    """Coefficients of the instruments and their covariance in a regression on them and the exogenous columns.

    With `robust=False` errors are taken to have equal variances, whatever the columns say of them.
    """
    return _regression(*_net(target, columns), columns, robust=robust)


def _net(target: Floats, columns: LinearColumns) -> tuple[Floats, Floats]:
    """Instruments and target net of the exogenous columns, each row times the root of its weight."""
    root = np.ones((len(target), 1)) if columns.weights is None else np.sqrt(columns.weights)[:, None]
    net = residuals(np.column_stack([columns.instruments, target]) * root, columns.exogenous * root)
    return net[:, :-1], net[:, -1]


def _regression(w: Floats, target: Floats, columns: LinearColumns, *, robust: bool) -> tuple[Floats, Floats]:
    basis, factor = np.linalg.qr(w)
    inverse = solve_triangular(factor, np.eye(w.shape[1]))
    inner = basis.T @ target
    n_exogenous = columns.exogenous.shape[1]

    def left_out(way: Clusters) -> Floats:
        """Without a cluster the exogenous columns have other coefficients too."""
        root = np.ones((len(target), 1)) if columns.weights is None else np.sqrt(columns.weights)[:, None]
        both = np.hstack([np.linalg.qr(columns.exogenous * root)[0], basis])
        return left_out_changes(way, both, target - basis @ inner)[:, n_exogenous:]

    errors = columns.errors if robust else Errors(classical=True)
    n_parameters = n_exogenous + w.shape[1] + (columns.n_absorbed if robust else columns.absorbed)
    middle, _ = coefficient_covariance(errors, basis, target - basis @ inner, n_parameters, left_out)
    return inverse @ inner, inverse @ middle @ inverse.T


def _two_stage(columns: LinearColumns) -> Any:
    """Two-stage least squares of the outcome in standardised units: linearmodels' result."""
    from linearmodels.iv import IV2SLS

    y, x, w = columns.outcome, columns.treatment, columns.instruments
    model = IV2SLS(y, columns.exogenous, x, w, weights=columns.weights)
    return model.fit(**columns.errors.linearmodels, debiased=True)


def linear_fit(columns: LinearColumns, target: Floats, *, use_instruments: bool = True) -> LinearFit:
    """Two-stage least squares, or least squares, of a target on exogenous columns and, last, the treatment."""
    right = np.hstack([columns.exogenous, columns.treatment])
    known = np.hstack([columns.exogenous, columns.instruments]) if use_instruments else None
    return fit_linear(
        target,
        right,
        known,
        weights=columns.weights,
        errors=columns.errors,
        n_absorbed=columns.n_absorbed,
        interest=slice(columns.exogenous.shape[1], None),
    )


def linear_estimate(columns: LinearColumns, level: float) -> LinearEstimate:
    """The linear effect of a treatment with one column, in units of the data."""
    two_stages = linear_fit(columns, columns.outcome)
    least_squares = linear_fit(columns, columns.outcome, use_instruments=False)
    slope, ols_slope = (float(fit.coefficients[-1]) * columns.unit for fit in (two_stages, least_squares))
    error, ols_error = (float(np.sqrt(fit.covariance[-1, -1])) * columns.unit for fit in (two_stages, least_squares))
    half = float(student.ppf(0.5 + level / 2.0, two_stages.dof)) * error
    robust_set = anderson_rubin_set(columns, level)
    return LinearEstimate(slope, error, slope - half, slope + half, ols_slope, ols_error, robust_set, float(level))


def overidentification(columns: LinearColumns) -> dict[str, float]:
    """Tests of the overidentifying restrictions, for more instruments than treatment columns.

    Sargan's, for errors with equal variance, and Hansen's J of efficient two-step GMM, robust or clustered (by CR1: it
    has no jackknife); p-values end in `_p`, and `dof` is the number of instruments beyond those needed.
    """
    w, y = _net(columns.outcome, columns)
    x = np.column_stack([_net(column, columns)[1] for column in columns.treatment.T])
    # Orthonormal instruments give the same statistics.
    z = np.linalg.qr(w)[0]
    zx, zy = z.T @ x, z.T @ y
    slopes = np.linalg.lstsq(zx, zy, rcond=None)[0]
    moments, errors = zy - zx @ slopes, y - x @ slopes
    surplus = z.shape[1] - x.shape[1]
    sargan = len(y) * _ratio(float(moments @ moments), float(errors @ errors))
    j = sargan
    if not columns.errors.classical:
        j = _efficient_j(zx, zy, score_covariance(columns.errors, z * errors[:, None]))
    found = {"sargan": sargan, "j": j}
    tail = {f"{name}_p": float(chi2.sf(value, surplus)) for name, value in found.items()}
    return found | tail | {"dof": float(surplus)}


def _efficient_j(zx: Floats, zy: Floats, covariance: Floats) -> float:
    """The smallest value over coefficients of the moments' distance from zero in terms of their covariance."""
    values, vectors = np.linalg.eigh(covariance)
    known = values > 1e-12 * max(values[-1], np.finfo(float).tiny)
    half = (vectors[:, known] / np.sqrt(values[known])).T
    left = half @ zy - half @ zx @ np.linalg.lstsq(half @ zx, half @ zy, rcond=None)[0]
    return float(left @ left)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0.0 else 0.0


def endogeneity(columns: LinearColumns) -> dict[str, float]:
    """Tests of exogeneity, for at least as many instruments as treatment columns.

    Wu-Hausman's and Durbin's, for errors with equal variance, and `robust`, Wooldridge's regression form with robust or
    clustered standard errors; p-values end in `_p`.
    """
    found = _two_stage(columns)
    # Without noise the statistics are divided by zero.
    with np.errstate(divide="ignore", invalid="ignore"):
        tests = {"wu_hausman": found.wu_hausman(), "durbin": found.durbin(), "robust": found.wooldridge_regression}
        return {name: 1.0 if np.isnan(value) else value for name, value in _statistics(tests).items()}


class FirstStage(NamedTuple):
    """The strength of the excluded instruments for one column of the treatment.

    Attributes:
        f: the F statistic for errors with equal variance.
        robust_f: the same with robust (with groups, clustered) standard errors.
        effective_f: of Montiel Olea and Pflueger; with one instrument, the robust F.
        critical: an effective F above this shows, at the 5% level, that the bias is at most a tenth of its worst case.
        partial_r2: share of the treatment's variance, after covariates, that the instruments explain.
    """

    f: float
    robust_f: float
    effective_f: float
    critical: float
    partial_r2: float
    n_instruments: int


def first_stage(target: Floats, columns: LinearColumns) -> FirstStage:
    r"""The strength of the instruments for one column of the treatment.

    With $\hat\pi$ the coefficients of the instruments, V their robust covariance and $Q = \tilde W^\top \tilde W$ of
    the instruments net of the exogenous columns, the effective F is $\hat\pi^\top Q \hat\pi / \mathrm{tr}(V Q)$.

    References:
        J. L. Montiel Olea, C. Pflueger (2013), A robust test for weak instruments, Journal of Business & Economic
        Statistics 31, 358-369.
    """
    q = columns.instruments.shape[1]
    if q == 0:
        return FirstStage(0.0, 0.0, 0.0, critical_effective_f(np.eye(1)), 0.0, 0)
    net, left = _net(target, columns)
    f = _wald(*_regression(net, left, columns, robust=False)) / q
    coefficients, covariance = _regression(net, left, columns, robust=True)
    gram = net.T @ net
    root = np.linalg.cholesky(gram)
    # The covariance of orthonormal instruments' coefficients, up to a rotation that leaves its eigenvalues alone.
    rotated = root.T @ covariance @ root
    explained, noise = float(coefficients @ gram @ coefficients), float(np.trace(rotated))
    dof = columns.rows_left()
    return FirstStage(
        f=f,
        robust_f=_wald(coefficients, covariance) / q,
        effective_f=explained / noise if noise > 0 else float("inf"),
        critical=critical_effective_f(rotated),
        partial_r2=1.0 if np.isinf(f) else f * q / (f * q + dof),
        n_instruments=q,
    )


def critical_effective_f(covariance: Floats) -> float:
    r"""The critical value of the effective F, at the 5% level, for a tenth of the worst-case bias.

    The simplified procedure of the authors: a quantile of $\chi^2_K(x K)/K$ with $x = 10$, the inverse of the bias
    tolerated, and Patnaik's degrees of freedom
    $$K = \frac{\mathrm{tr}(V)^2 (1 + 2x)}{\mathrm{tr}(V^\top V) + 2x\, \mathrm{tr}(V) \max\mathrm{eval}(V)},$$
    where V is the covariance of the coefficients of orthonormal instruments. It bounds the worst case by 1 and is
    therefore conservative for two-stage least squares.

    Example:
        >>> [round(critical_effective_f(np.eye(q)), 1) for q in (1, 2, 3)]
        [23.1, 19.3, 17.7]
    """
    values = np.maximum(np.linalg.eigvalsh(covariance), 0.0)
    total, x = float(values.sum()), 10.0
    if total <= 0:
        values, total = np.ones(len(values)), float(len(values))
    dof = total**2 * (1 + 2 * x) / (float(np.sum(values**2)) + 2 * x * total * float(values.max()))
    return float(ncx2.ppf(0.95, dof, x * dof)) / dof


def anderson_rubin_set(
    columns: LinearColumns, level: float = 0.95, *, robust: bool = True, critical: float | None = None
) -> Intervals:
    r"""Every linear effect b that the data do not reject, whatever the strength of the instruments.

    b is kept if the instruments do not predict y - x b beyond chance: with $m(b) = \hat\pi_y - b\,\hat\pi_x$ their
    coefficients and $V(b)$ the covariance of these, if $m(b)^\top V(b)^{-1} m(b) \le q\, F_{q, d}$. Both sides are
    quadratic in b, so the set ends at real roots of $\det\{c V(b) - m(b) m(b)^\top\}$, a quadratic eigenvalue problem;
    no grid is involved. With `robust=False`, equal variances are assumed, as by Anderson and Rubin. `critical` is
    what takes the place of $q\, F_{q, d}$, if given.

    Returns:
        Disjoint intervals in increasing order, in units of the data; ends may be infinite, and the set empty.

    Reference:
        T. W. Anderson, H. Rubin (1949), Estimation of the parameters of a single equation in a complete system of
        stochastic equations, Annals of Mathematical Statistics 20, 46-63.
    """
    q = columns.instruments.shape[1]
    if q == 0:
        return ((-np.inf, np.inf),)
    y, x = columns.outcome, columns.treatment[:, 0]
    pi_y, v_y = regression(y, columns, robust=robust)
    pi_x, v_x = regression(x, columns, robust=robust)
    _, v_sum = regression(y + x, columns, robust=robust)
    cross = (v_sum - v_y - v_x) / 2.0
    dof = columns.dof if robust else columns.rows_left()
    if critical is None:
        critical = q * float(f_distribution.ppf(level, q, dof))

    def kept(b: float) -> bool:
        m, v = pi_y - b * pi_x, v_y - 2.0 * b * cross + b**2 * v_x
        try:
            return bool(m @ cho_solve(cho_factor(v), m) <= critical)
        except np.linalg.LinAlgError:
            return bool(m @ np.linalg.lstsq(v, m, rcond=1e-13)[0] <= critical)

    ends = _breaks(
        critical * v_y - np.outer(pi_y, pi_y),
        -2.0 * critical * cross + np.outer(pi_y, pi_x) + np.outer(pi_x, pi_y),
        critical * v_x - np.outer(pi_x, pi_x),
    )
    if len(ends) == 0:
        return ((-np.inf, np.inf),) if kept(0.0) else ()
    reach = 1.0 + float(np.ptp(ends))
    inner = [float(ends[0]) - reach, *((ends[1:] + ends[:-1]) / 2.0).tolist(), float(ends[-1]) + reach]
    outer = [-np.inf, *(ends * columns.unit).tolist(), np.inf]
    found: list[tuple[float, float]] = []
    for lower, upper, middle in zip(outer[:-1], outer[1:], inner, strict=True):
        if kept(middle):
            joined = bool(found) and found[-1][1] == lower
            found.append((found.pop()[0] if joined else lower, upper))
    if not found and q == 1 and abs(float(pi_x[0])) > 0:
        # One instrument never rejects the estimate itself; without noise nothing else is left.
        point = float(pi_y[0] / pi_x[0]) * columns.unit
        return ((point, point),)
    return tuple(found)


class LinearParts(NamedTuple):
    """The linear regressions of a data set.

    Attributes:
        columns: of these regressions, with the first column of the outcome.
        stages: the first stage of each column of the treatment.
        estimate: the linear effect; None if there is no single one.
        overidentification, endogeneity: tests, one for each column of the outcome; empty if they do not apply.
    """

    columns: LinearColumns
    stages: tuple[FirstStage, ...]
    estimate: LinearEstimate | None
    overidentification: tuple[dict[str, float], ...]
    endogeneity: tuple[dict[str, float], ...]

    @property
    def weakest(self) -> int:
        """The column of the treatment with the smallest effective F relative to its critical value."""
        return int(np.argmin([stage.effective_f / stage.critical for stage in self.stages]))


def linear_parts(data: IVData, level: float = 0.95) -> LinearParts:
    """Run the linear regressions of a data set.

    A treatment with several levels has a first stage for each and no single linear effect; an outcome with several
    levels is tested indicator by indicator.
    """
    check_level(level)
    sets = [linear_columns(part) for part in data.outcome_parts()]
    first = sets[0]
    surplus = first.instruments.shape[1] - first.treatment.shape[1]
    single = surplus >= 0 and first.treatment.shape[1] == 1 and len(sets) == 1
    return LinearParts(
        columns=first,
        stages=tuple(first_stage(column, first) for column in first.treatment.T),
        estimate=linear_estimate(first, level) if single else None,
        overidentification=tuple(map(overidentification, sets)) if surplus > 0 else (),
        endogeneity=tuple(map(endogeneity, sets)) if surplus >= 0 else (),
    )


def _breaks(a0: Floats, a1: Floats, a2: Floats) -> Floats:
    """Where det(a0 + a1 b + a2 b²) may change its sign, in increasing order.

    Real parts of complex roots are included: they split an interval needlessly, but no double root is lost.
    """
    one, zero = np.eye(len(a0)), np.zeros_like(a0)
    left, right = np.block([[zero, one], [-a0, -a1]]), np.block([[one, zero], [zero, a2]])
    alpha, beta = eigvals(left, right, homogeneous_eigvals=True)
    finite = np.abs(beta) > 1e-13 * np.abs(alpha)
    return np.unique((alpha[finite] / beta[finite]).real)


def _wald(coefficients: Floats, covariance: Floats) -> float:
    """b' V^-1 b; infinite if there is no noise."""
    if not np.diag(covariance).min() > np.finfo(float).tiny:
        return float("inf") if np.abs(coefficients).max() > 0 else 0.0
    return float(coefficients @ np.linalg.lstsq(covariance, coefficients, rcond=1e-14)[0])


def _statistics(tests: dict[str, Any]) -> dict[str, float]:
    """Statistics and p-values of linearmodels' tests."""
    found = {name: float(test.stat) for name, test in tests.items()}
    return found | {f"{name}_p": float(test.pval) for name, test in tests.items()}
