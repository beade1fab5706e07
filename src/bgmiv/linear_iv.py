r"""The linear instrumental-variable model of a data set: its estimates, its tests, and the strength of its instruments.

With weak instruments two-stage least squares is biased towards least squares, and its intervals are too narrow. The
effective F measures this without assuming equal error variances; the Anderson-Rubin set is valid whatever the
instruments are. All of it is computed from outcome y, treatment x and orthonormal instruments Z, which are net of the
exogenous columns and made once a data set.

References:
    T. W. Anderson, H. Rubin (1949), Estimation of the parameters of a single equation in a complete system of
    stochastic equations, Annals of Mathematical Statistics 20, 46-63.
    D. S. Lee, J. McCrary, M. J. Moreira, J. Porter (2022), Valid t-ratio inference for IV, American Economic Review
    112, 3260-3290.
    A. Mikusheva (2010), Robust confidence sets in the presence of weak instruments, J. Econometrics 157, 236-247.
    J. L. Montiel Olea, C. Pflueger (2013), A robust test for weak instruments, Journal of Business & Economic
    Statistics 31, 358-369.
    M. J. Moreira (2003), A conditional likelihood ratio test for structural models, Econometrica 71, 1027-1048.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import NormalDist
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from scipy.linalg import eigvals, eigvalsh, solve_triangular
from scipy.optimize import brentq
from scipy.special import chdtr, chndtrix

from bgmiv.arrays import TINY, Floats
from bgmiv.covariance import LinearFit, coefficient_covariance, fit_linear, score_covariance
from bgmiv.data.ivdata import IVData
from bgmiv.design_matrix import DesignMatrix, design_matrix
from bgmiv.distributions import chi2_quantile, chi2_tail, f_quantile, f_tail, normal_density, student_quantile
from bgmiv.errors import DataError
from bgmiv.intervals import Pieces, check_level
from bgmiv.numerals import percent

__all__ = [
    "VERY_WEAK", "FirstStage", "LinearEstimate", "LinearIV", "Strength", "critical_effective_f", "robust_set",
    "scaled", "strength_of", "tf_critical_value", "union",
]  # fmt: skip

VERY_WEAK = 10.0
"""The old rule of thumb: below this effective F instruments have failed."""

# With one instrument the usual 5% test holds its level above this F, however endogenous the treatment is.
_STRONG = 104.7
_NODES, _LITTLE = 100, 1e-10
# The level for which critical values of the tF procedure are published.
_TF_LEVEL = 0.95
# √F and the critical value, in turns.
_TF = np.array([
    2.0, 18.66,  2.1, 9.74,  2.2, 7.37,  2.3, 6.18,  2.4, 5.43,  2.5, 4.92,  2.6, 4.54,  2.7, 4.25,
    2.8, 4.01,  2.9, 3.82,  3.0, 3.65,  3.2, 3.39,  3.4, 3.19,  3.6, 3.03,  3.8, 2.91,  4.0, 2.8,
    4.5, 2.6,  5.0, 2.46,  5.5, 2.35,  6.0, 2.27,  7.0, 2.16,  8.0, 2.08,  9.0, 2.02,  10.3, 1.96,
]).reshape(-1, 2)  # fmt: skip


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


class Strength(NamedTuple):
    """The strength of the instrument that a fit uses: the one rule by which instruments are weak, and intervals short.

    Attributes:
        f: the effective F of Montiel Olea and Pflueger in a linear first stage; or, where that is larger, of the fit's
            own cross-fitted prediction as the one instrument, without the covariates' part of it, by the number of
            instruments.
        critical: an effective F above this shows, at the 5% level, that the bias is at most a tenth of its worst case.
        n_instruments: how many there are.

    Example:
        >>> Strength(50.0, 23.1, 1).weak, Strength(50.0, 23.1, 1).usual_is_too_short
        (False, True)
    """

    f: float
    critical: float
    n_instruments: int

    @property
    def weak(self) -> bool:
        """Whether F is below its critical value."""
        return self.f < self.critical

    @property
    def usual_is_too_short(self) -> bool:
        """Whether a robust set is preferable to the usual interval: weak instruments, or one with an F below 104.7.

        With one instrument the robust set is as short as can be had, and the two agree to a few per cent above 104.7
        (Lee and others 2022). To go over to the usual interval at the critical value would cost coverage: samples with
        a large F by chance are those whose estimate is off. In the limit of many rows both together would hold in 92.5%
        at an expected F of 25 and errors with a correlation of 0.7.
        """
        return self.f < max(self.critical, _STRONG if self.n_instruments == 1 else 0.0)


def strength_of(data: IVData, fitted_f: float | None = None) -> Strength | None:
    """The strength of the instruments of a fit; None where there are none, or nothing can be computed of them.

    Args:
        data: the rows of the fit.
        fitted_f: the effective F of the first stage that the fit has used, if it knows one.
    """
    try:
        linear = LinearIV.of(data).strength
    except DataError:
        linear = None
    n_instruments = data.instruments.shape[1]
    if fitted_f is None or not n_instruments or (linear is not None and linear.f >= fitted_f):
        return linear
    return Strength(fitted_f, critical_effective_f(np.eye(n_instruments)), n_instruments)


@dataclass(frozen=True)
class LinearEstimate:
    """The linear effect of the treatment by two-stage least squares, and its Anderson-Rubin set.

    Args:
        coefficient, std_error: of the treatment, with robust (with groups, clustered) standard errors.
        lower, upper: the usual interval at `level`.
        ols, ols_std_error: the same by least squares, without the instruments.
        robust_set: the Anderson-Rubin set at `level`: disjoint intervals in increasing order, whose ends may be
            infinite; it may be empty.
        level: of the interval and the set.
        likelihood_ratio_set: such a set by the conditional likelihood ratio test, for errors with equal variance.
        tf: the ends of 2SLS's interval with the critical value of the tF procedure; None unless there is one instrument
            and the level is 95%.

    Example:
        >>> print(LinearEstimate(2.0, 0.1, 1.8, 2.2, 1.5, 0.05, ((1.8, 2.2),), 0.95))
        Linear effect by 2SLS: 2 (standard error 0.1), 95% interval [1.8, 2.2]; by OLS: 1.5 (0.05)
    """

    coefficient: float
    std_error: float
    lower: float
    upper: float
    ols: float
    ols_std_error: float
    robust_set: Pieces
    level: float
    likelihood_ratio_set: Pieces = ()
    tf: tuple[float, float] | None = None

    def __str__(self) -> str:
        """The estimates in one line."""
        return (
            f"Linear effect by 2SLS: {self.coefficient:.4g} (standard error {self.std_error:.3g}), "
            f"{percent(self.level)} interval [{self.lower:.4g}, {self.upper:.4g}]; "
            f"by OLS: {self.ols:.4g} ({self.ols_std_error:.3g})"
        )

    @property
    def ols_interval(self) -> tuple[float, float]:
        """The interval of the least-squares coefficient at `level`."""
        half = NormalDist().inv_cdf(0.5 + self.level / 2.0) * self.ols_std_error
        return self.ols - half, self.ols + half


class LinearIV:
    r"""The linear model of a data set; :meth:`of` gives the same object for the same data, so that it is made once.

    Attributes:
        design: the columns.
        instruments: Z `(n, q)`, orthonormal, net of the exogenous columns, each row times the root of its weight.
        treatment, outcomes: `(n, m)` and `(n, k)`, net of the same.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> w, u = rng.normal(size=(2, 1000))
        >>> linear = LinearIV.of(IVData.from_arrays(2.0 * (w + u) - u, w + u, instruments=w))
        >>> bool(linear.strength.f > 500.0), bool(linear.endogeneity[0]["robust_p"] < 1e-6)
        (True, True)
        >>> abs(linear.estimate(0.95).coefficient - 2.0) < 0.1
        True
    """

    def __init__(self, design: DesignMatrix) -> None:
        """Take the exogenous columns out of all others."""
        root = design.root_weights
        self.design = design
        self._exogenous = np.linalg.qr(design.exogenous * root)[0]
        self.instruments, self._factor = np.linalg.qr(self.residual(design.instruments * root))
        self.treatment = self.residual(design.treatment * root)
        self.outcomes = self.residual(design.outcomes * root)

    @classmethod
    def of(cls, data: IVData) -> LinearIV:
        """The model of these data.

        Raises:
            DataError: there are no instruments, or too few rows, or the covariates determine the treatment.
        """
        if data not in _MADE:
            _MADE[data] = cls(design_matrix(data))
        return _MADE[data]

    def residual(self, columns: Floats) -> Floats:
        """What the exogenous columns leave of others, each row times the root of its weight."""
        return columns - self._exogenous @ (self._exogenous.T @ columns)

    @property
    def n_instruments(self) -> int:
        """How many there are, beside those that others or the covariates determine."""
        return self.instruments.shape[1]

    @property
    def surplus(self) -> int:
        """The number of instruments beyond those that the columns of the treatment need; negative if they lack some."""
        return self.n_instruments - self.treatment.shape[1]

    def fit(self, target: Floats, *, use_instruments: bool = True) -> LinearFit:
        """Two-stage least squares, or least squares, of a target on exogenous columns and, last, the treatment."""
        design = self.design
        return fit_linear(
            target,
            design.exogenous,
            design.treatment,
            design.instruments if use_instruments else None,
            weights=design.weights,
            errors=design.errors,
            n_absorbed=design.absorbed_by_errors,
        )

    def estimate(self, level: float = 0.95) -> LinearEstimate | None:
        """The linear effect in units of the data, with its robust sets; None if there is no single identified one."""
        check_level(level)
        if self.surplus < 0 or not self.treatment.shape[1] == self.outcomes.shape[1] == 1:
            return None
        unit, outcome = self.design.unit, self.design.outcomes[:, 0]
        two_stages, least_squares = self.fit(outcome), self.fit(outcome, use_instruments=False)
        slope, ols_slope = (float(fit.coefficients[-1]) * unit for fit in (two_stages, least_squares))
        error, ols_error = (float(np.sqrt(fit.covariance[-1, -1])) * unit for fit in (two_stages, least_squares))
        half = float(student_quantile(0.5 + level / 2.0, two_stages.dof)) * error
        tf = None
        if self.n_instruments == 1 and level == _TF_LEVEL:
            wide = tf_critical_value(self.stages[0].robust_f) * error
            tf = (slope - wide, slope + wide)
        return LinearEstimate(
            coefficient=slope,
            std_error=error,
            lower=slope - half,
            upper=slope + half,
            ols=ols_slope,
            ols_std_error=ols_error,
            robust_set=self.anderson_rubin_set(level),
            level=float(level),
            likelihood_ratio_set=self.likelihood_ratio_set(level),
            tf=tf,
        )

    def _reduced_form(self, target: Floats) -> tuple[Floats, Floats]:
        """Coefficients of Z, and their covariance, in a regression of a target that is net of the exogenous columns."""
        coefficients = self.instruments.T @ target
        # Without a cluster the exogenous columns have other coefficients too.
        both = np.hstack([self._exogenous, self.instruments])
        covariance = coefficient_covariance(
            self.design.errors,
            self.instruments,
            target - self.instruments @ coefficients,
            both.shape[1] + self.design.absorbed_by_errors,
            both,
        )
        return coefficients, covariance

    @cached_property
    def stages(self) -> tuple[FirstStage, ...]:
        r"""The first stage of each column of the treatment.

        With $\hat\pi$ the coefficients of orthonormal instruments and V their robust covariance, the effective F is
        $\hat\pi^\top \hat\pi / \mathrm{tr}(V)$.
        """
        return tuple(self._stage(column) for column in self.treatment.T)

    def _stage(self, treatment: Floats) -> FirstStage:
        q, dof = self.n_instruments, self.design.rows_left
        if q == 0:
            return FirstStage(0.0, 0.0, 0.0, critical_effective_f(np.eye(1)), 0.0)
        coefficients, covariance = self._reduced_form(treatment)
        square, noise = float(coefficients @ coefficients), float(np.trace(covariance))
        left = float(np.sum((treatment - self.instruments @ coefficients) ** 2))
        return FirstStage(
            f=_wald(coefficients, np.eye(q) * left / dof) / q,
            robust_f=_wald(coefficients, covariance) / q,
            effective_f=square / noise if noise > 0 else np.inf,
            critical=critical_effective_f(covariance),
            partial_r2=square / (square + left),
        )

    @property
    def weakest(self) -> int:
        """The column of the treatment with the smallest effective F relative to its critical value."""
        return int(np.argmin([stage.effective_f / stage.critical for stage in self.stages]))

    @property
    def strength(self) -> Strength:
        """That of the instruments for the weakest column of the treatment."""
        stage = self.stages[self.weakest]
        return Strength(stage.effective_f, stage.critical, self.n_instruments)

    def predicted(self, treatment: Floats) -> Floats:
        """What the instruments, as they are in the data, predict of a treatment column `(n,)`, up to a constant."""
        moments = self.instruments.T @ (treatment * self.design.root_weights[:, 0])
        return self.design.instruments @ solve_triangular(self._factor, moments)

    @cached_property
    def overidentification(self) -> tuple[dict[str, float], ...]:
        """Tests of the overidentifying restrictions, one for each column of the outcome; empty without any.

        Sargan's, for errors with equal variance, and Hansen's J of efficient two-step GMM, robust or clustered (by CR1:
        it has no jackknife); p-values end in `_p`, and `dof` is the number of instruments beyond those needed.
        """
        return tuple(map(self._restrictions, self.outcomes.T)) if self.surplus > 0 else ()

    def _restrictions(self, outcome: Floats) -> dict[str, float]:
        z, x, errors = self.instruments, self.treatment, self.design.errors
        zx, zy = z.T @ x, z.T @ outcome
        slopes = np.linalg.lstsq(zx, zy, rcond=None)[0]
        moments, residuals = zy - zx @ slopes, outcome - x @ slopes
        left = float(residuals @ residuals)
        sargan = len(outcome) * float(moments @ moments) / left if left > 0.0 else 0.0
        j = sargan
        if not errors.classical:
            j = _efficient_j(zx, zy, score_covariance(errors, z * residuals[:, None]))
        p, j_p = (chi2_tail(value, self.surplus) for value in (sargan, j))
        return {"sargan": sargan, "j": j, "sargan_p": p, "j_p": j_p, "dof": float(self.surplus)}

    @cached_property
    def endogeneity(self) -> tuple[dict[str, float], ...]:
        r"""Tests of exogeneity, one for each column of the outcome; empty if instruments are fewer than treatments.

        They ask whether residuals $x - Z Z^\top x$ of the first stage say anything of y beyond x: Wu-Hausman's F and
        Durbin's chi-squared, for errors with equal variance, and `robust`, Wooldridge's Wald test of their coefficients
        with robust or clustered standard errors (CR1); p-values end in `_p`.
        """
        return tuple(map(self._exogeneity, self.outcomes.T)) if self.surplus >= 0 else ()

    def _exogeneity(self, outcome: Floats) -> dict[str, float]:
        x, errors = self.treatment, self.design.errors.without_jackknife()
        m = x.shape[1]
        n_parameters = self._exogenous.shape[1] + 2 * m
        left = max(len(outcome) - n_parameters, 1)
        basis = np.linalg.qr(np.hstack([x, x - self.instruments @ (self.instruments.T @ x)]))[0]
        coefficients = basis.T @ outcome
        own, added = outcome @ outcome - np.sum(coefficients[:m] ** 2), coefficients[m:]
        residuals = outcome - basis @ coefficients
        rest, gain = residuals @ residuals, added @ added
        covariance = coefficient_covariance(errors, basis[:, m:], residuals, n_parameters, basis)
        # Without noise the statistics are divided by zero.
        with np.errstate(divide="ignore", invalid="ignore"):
            wu_hausman, durbin = np.divide(gain / m, rest / left), np.divide(len(outcome) * gain, own)
        robust = _wald(added, covariance)
        tests = {
            "wu_hausman": wu_hausman,
            "durbin": durbin,
            "robust": robust,
            "wu_hausman_p": f_tail(wu_hausman, m, left),
            "durbin_p": chi2_tail(float(durbin), m),
            "robust_p": chi2_tail(float(robust), m),
        }
        return {name: 1.0 if np.isnan(value) else float(value) for name, value in tests.items()}

    def anderson_rubin_set(self, level: float = 0.95, *, outcome: Floats | None = None) -> Pieces:
        r"""Every linear effect b that the data do not reject, whatever the strength of the instruments.

        b is kept if the instruments do not predict y - x b beyond chance: with $m(b) = \hat\pi_y - b\,\hat\pi_x$ their
        coefficients and $V(b)$ the covariance of these, if $m(b)^\top V(b)^{-1} m(b) \le q\, F_{q, d}$.

        Args:
            level: of the set.
            outcome: `(n,)` other numbers in the place of the outcome, in any unit, of the rows that are used.

        Returns:
            The set in units of the data: of the outcome, or of these numbers, for one unit of the treatment.
        """
        q = self.n_instruments
        if q == 0:
            return ((-np.inf, np.inf),)
        y, x, unit = self.outcomes[:, 0], self.treatment[:, 0], self.design.unit
        if outcome is not None:
            root = self.design.root_weights[:, 0]
            y = self.residual(self.design.net(outcome - np.average(outcome, weights=root**2)) * root)
            scale = float(np.sqrt(np.mean(y**2))) or 1.0
            y, unit = y / scale, scale / self.design.treatment_scale
        critical = q * f_quantile(level, q, self.design.dof)
        (pi_y, v_y), (pi_x, v_x), (_, v_sum) = map(self._reduced_form, (y, x, y + x))
        return scaled(robust_set(pi_y, pi_x, (v_y, (v_sum - v_y - v_x) / 2.0, v_x), critical), unit)

    def likelihood_ratio_set(self, level: float = 0.95) -> Pieces:
        r"""Every linear effect that the conditional likelihood ratio test keeps, for errors with equal variance.

        With $\hat\Omega$ the covariance of the errors of y and x given the instruments, and $\lambda_1 \ge \lambda_2$
        the eigenvalues of $\hat\Omega^{-1} (y, x)^\top Z Z^\top (y, x)$, Moreira's statistic is $\lambda_1 - Q_T(b)$,
        and that of Anderson and Rubin $\lambda_1 + \lambda_2 - Q_T(b)$. The critical value c depends on $Q_T$ alone,
        and $Q_T + c(Q_T)$ rises in it (Mikusheva 2010): b is kept if $Q_T(b)$ is at least the C with
        $C + c(C) = \lambda_1$. So the set is that of Anderson and Rubin with the critical value
        $\lambda_1 + \lambda_2 - C$. It is never empty, and with several instruments usually shorter than theirs; with
        one both tests are the same.
        """
        q = self.n_instruments
        both = np.column_stack([self.outcomes[:, 0], self.treatment[:, 0]])
        explained = self.instruments.T @ both
        left = both - self.instruments @ explained
        omega = left.T @ left / self.design.rows_left
        # Without noise in y - x b for some b, a little keeps the matrix invertible.
        values = eigvalsh(explained.T @ explained, omega + _LITTLE * np.trace(omega) * np.eye(2))
        largest, smallest = values[1], max(values[0], 0.0)

        def beyond(c: float) -> float:
            return c + _ratio_quantile(c, q, level) - largest

        # Nothing is rejected if even Q_T = 0 is kept.
        limit = 0.0 if beyond(0.0) >= 0.0 else brentq(beyond, 0.0, largest)
        critical = min(largest - limit, _ratio_quantile(limit, q, level)) + smallest
        covariances = tuple(omega[i, j] * np.eye(q) for i, j in ((0, 0), (0, 1), (1, 1)))
        return scaled(robust_set(explained[:, 0], explained[:, 1], covariances, critical), self.design.unit)


_MADE: WeakKeyDictionary[IVData, LinearIV] = WeakKeyDictionary()


def scaled(pieces: Pieces, factor: float) -> Pieces:
    """Every number of a set times a factor, which is not zero."""
    ends = (sorted((lower * factor, upper * factor)) for lower, upper in pieces)
    return tuple(sorted((lower, upper) for lower, upper in ends))


def union(pieces: Iterable[tuple[float, float]]) -> Pieces:
    """The union of intervals as disjoint ones in increasing order.

    Example:
        >>> union([(0.0, 1.0), (3.0, 4.0), (0.5, 2.0)])
        ((0.0, 2.0), (3.0, 4.0))
    """
    disjoint: list[tuple[float, float]] = []
    for lower, upper in sorted(pieces):
        if disjoint and lower <= disjoint[-1][1]:
            disjoint[-1] = (disjoint[-1][0], max(disjoint[-1][1], upper))
        else:
            disjoint.append((lower, upper))
    return tuple(disjoint)


def robust_set(pi_y: Floats, pi_x: Floats, covariances: tuple[Floats, ...], critical: float) -> Pieces:
    r"""The b with $m(b)^\top V(b)^{-1} m(b)$ up to a critical value, where $m(b) = \pi_y - b\, \pi_x$.

    Both sides are quadratic in b, so the set ends at real roots of $\det\{c V(b) - m(b) m(b)^\top\}$, a quadratic
    eigenvalue problem; no grid is involved.

    Args:
        pi_y, pi_x: coefficients of outcome and treatment, `(q,)`.
        covariances: $V_y$, $C$ and $V_x$ of $V(b) = V_y - 2 b\, C + b^2\, V_x$, `(q, q)` each.
        critical: the value.
    """
    v_y, cross, v_x = covariances

    def kept(b: float) -> bool:
        return _wald(pi_y - b * pi_x, v_y - 2.0 * b * cross + b**2 * v_x) <= critical

    ends = _sign_changes(
        critical * v_y - np.outer(pi_y, pi_y),
        -2.0 * critical * cross + np.outer(pi_y, pi_x) + np.outer(pi_x, pi_y),
        critical * v_x - np.outer(pi_x, pi_x),
    )
    beyond = 2.0 * (1.0 + np.ptp(ends))
    middles = np.convolve([ends[0] - beyond, *ends, ends[-1] + beyond], [0.5, 0.5], "valid")
    borders = pairwise([-np.inf, *ends.tolist(), np.inf])
    pieces = union(piece for piece, middle in zip(borders, middles.tolist(), strict=True) if kept(middle))
    if not pieces and len(pi_x) == 1 and pi_x[0] != 0.0:
        # One instrument never rejects the estimate itself; without noise nothing else is left.
        point = float(pi_y[0] / pi_x[0])
        return ((point, point),)
    return pieces


def _sign_changes(a0: Floats, a1: Floats, a2: Floats) -> Floats:
    """Where det(a0 + a1 b + a2 b²) may change its sign, in increasing order.

    Real parts of complex roots are included: they split an interval needlessly, but no double root is lost. Without any
    the line is split at zero.
    """
    one, zero = np.eye(len(a0)), np.zeros_like(a0)
    left, right = np.block([[zero, one], [-a0, -a1]]), np.block([[one, zero], [zero, a2]])
    alpha, beta = eigvals(left, right, homogeneous_eigvals=True)
    finite = np.abs(beta) > 1e-13 * np.abs(alpha)
    return np.unique((alpha[finite] / beta[finite]).real) if finite.any() else np.zeros(1)


def _wald(coefficients: Floats, covariance: Floats) -> float:
    """b' V^-1 b; infinite if there is no noise."""
    if not np.diag(covariance).min() > TINY:
        return np.inf if np.abs(coefficients).max() > 0 else 0.0
    return float(coefficients @ np.linalg.lstsq(covariance, coefficients, rcond=1e-14)[0])


def _efficient_j(zx: Floats, zy: Floats, covariance: Floats) -> float:
    """The smallest value over coefficients of the moments' distance from zero in terms of their covariance."""
    values, vectors = np.linalg.eigh(covariance)
    known = values > 1e-12 * max(values[-1], TINY)
    half = (vectors[:, known] / np.sqrt(values[known])).T
    left = half @ zy - half @ zx @ np.linalg.lstsq(half @ zx, half @ zy, rcond=None)[0]
    return float(left @ left)


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
    total, x = values.sum(), 10.0
    if total <= 0:
        values, total = np.ones(len(values)), len(values)
    dof = total**2 * (1 + 2 * x) / (np.sum(values**2) + 2 * x * total * values.max())
    return float(chndtrix(0.95, dof, x * dof) / dof)


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


def _ratio_quantile(q_t: float, n_instruments: int, level: float) -> float:
    r"""The quantile of Moreira's statistic given $Q_T$.

    It is at most m where $A \le (Q_T + m) (1 - B / m)$, with A and B chi-squared of q - 1 and 1 degrees of freedom.
    """
    if n_instruments == 1:
        return chi2_quantile(level, 1)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    s, ds = (nodes + 1.0) / 2.0, weights / 2.0

    def missing(m: float) -> float:
        inside = chdtr(n_instruments - 1, (q_t + m) * (1.0 - s**2))
        return 2.0 * np.sqrt(m) * np.sum(ds * inside * normal_density(s * np.sqrt(m))) - level

    return brentq(missing, 1e-6, chi2_quantile(level, n_instruments) + 1.0)
