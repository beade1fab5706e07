r"""How wrong a curve is, by the regression of its held-out errors on the observed treatment, given a control variable.

The moments $E[y - g \mid w, v] = 0$ show g only through its mean given the instruments, so that with noise they cannot
tell a line from a curve. With the first stage's residual r as a control variable, and if confounding works through
(r, v) alone,

$$E[y - \hat g(x, v) \mid x, v, r] = (g - \hat g)(x, v) + h(r, v), \qquad E[h(r, v) \mid v] = 0:$$

what treatment and covariates say of held-out errors, given r, is an error of $\hat g$, seen with the precision of least
squares. Where confounding does not work so, a right curve can look wrong and a wrong one right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgmiv.arrays import Floats, Integers
from bgmiv.covariance import covariance_root, score_covariance
from bgmiv.data.ivdata import IVData
from bgmiv.data.within import Within
from bgmiv.diagnostics.moments import row_weights
from bgmiv.distributions import f_quantile, f_tail
from bgmiv.errors import DataError
from bgmiv.sieve.control import control_curves, generalised_residual, standardised
from bgmiv.sieve.design_matrix import Columns, instrument_blocks
from bgmiv.sieve.first_stage import FirstStage

__all__ = ["ErrorOfCurve", "errors_given_control"]


SIZE = 0.01
"""Of the test that a curve has no error."""

_SPLINES, _SEED, _MIN_GAIN = 6, 20_240, 4.0
# Functions in which errors of a curve are looked for; further ones as long as rows are many for each of them.
_ALWAYS = ("constant", "treatment", "covariates", "curve")
_FURTHER = {"slopes by covariate": 8, "covariate curves": 40, "slopes by covariate curves": 40}
_MIN_ROWS_A_COLUMN = 5
# Rows with a treatment beyond these shares do not count in the size of an error: a curve is hardly known there.
_OUTER = 0.01
# Rows of the first stage: those held out, and others.
_MAX_ROWS = 5000
_STEP, _REAL, _MIN_LEFT = 1e-4, 1e-9, 0.05
_TINY = 1e-150
# A residual with a longer tail on one side, by its 10%, 50% and 90% quantiles, is no control variable: what it is a
# function of enters the treatment through a curve. Chance adds to it, by one over the root of the rows.
_MAX_SKEWNESS, _BY_CHANCE = 0.15, 2.0


class ErrorOfCurve(NamedTuple):
    """What the regression says of the mean squared error of a curve, in squared units of the outcome.

    Attributes:
        size: an unbiased estimate of it, which may be negative.
        noise: the mean squared error of the regression itself, which is taken from the estimate.
        p_value: of the test that there is no error.
        visible: the least estimate at which that test would reject.
    """

    size: float
    noise: float
    p_value: float
    visible: float


class _Control(NamedTuple):
    """The first stage, whose residuals are the control variables, of rows in the order of its folds."""

    columns: Columns
    functions: Floats
    first: FirstStage

    def values(self, change: Floats) -> Floats:
        """The control variables where the first stage's predictions `(n, k)` are larger by some numbers `(k,)`."""
        treatment = self.columns.treatment
        residuals = self.first.residuals - change
        linear = self.functions[:, : residuals.shape[1]]
        if treatment.levels:
            both = (part * treatment.scale + treatment.shift for part in (linear, linear - residuals))
            return generalised_residual(*both)
        return standardised(residuals, linear - residuals, self.columns.linear)

    def skewed(self, rows: Integers) -> bool:
        """Whether a residual has a long tail on one side."""
        low, middle, high = np.quantile(self.values(np.zeros(1))[rows], [0.1, 0.5, 0.9], axis=0)
        most = _MAX_SKEWNESS + _BY_CHANCE / np.sqrt(len(rows))
        return bool(np.any(np.abs(low + high - 2.0 * middle) > most * (high - low)))

    def terms(self, rows: Integers) -> tuple[Floats, Floats]:
        """Functions of the control variables of rows, `(n, c)`, and their slopes by each prediction, `(k, n, c)`."""
        k = self.first.residuals.shape[1]
        changes = np.vstack([np.zeros(k), _STEP * np.eye(k)])
        moderators = self.columns.covariates.moderators
        v = self.columns.linear[rows][:, moderators]
        # All in one, so that they have the same knots.
        values = np.vstack([self.values(change)[rows] for change in changes])
        curved = self.columns.treatment.spline is not None
        curves = control_curves(values, np.tile(v, (k + 1, 1)), curved=curved)
        terms, *moved = np.split(np.hstack([values, *curves]), k + 1)
        return terms, (np.stack(moved) - terms) / _STEP

    def sought(self, rows: Integers, n_controls: int) -> Floats | None:
        """Functions of treatment and covariates in which errors are looked for; None with too few rows for them."""
        n = len(rows)
        sought = np.hstack(self.columns.blocks(_ALWAYS, self.functions)(rows))
        for name, rows_a_column in _FURTHER.items():
            (more,) = self.columns.blocks((name,), self.functions)(rows)
            if rows_a_column * (sought.shape[1] + more.shape[1] + n_controls) <= n:
                sought = np.hstack([sought, more])
        return sought if _MIN_ROWS_A_COLUMN * (sought.shape[1] + n_controls) <= n else None


def errors_given_control(
    data: IVData, rows: Integers, errors: Sequence[NDArray[np.floating]]
) -> list[ErrorOfCurve] | None:
    r"""What the regression of held-out errors on treatment and covariates, given control variables, says of curves.

    Control variables are the first stage's residuals, in units of their size given covariates and prediction; for a
    treatment with levels the generalised residuals of a probit model. Errors may depend on their lines, curves and
    products with covariates. With coefficients b of functions B of treatment and covariates, and their covariance V,
    robust or clustered and with the noise of the first stage, the size of the error is
    $b^\top M b - \operatorname{tr}(M V)$, where M is the mean of B Bᵀ.

    Args:
        data: the rows of the fit, wide blocks reduced.
        rows: those that were held out.
        errors: outcome minus curve there, `(n,)` for each outcome.

    Returns:
        None where it cannot be made: too few rows or clusters for the functions, or a skewed residual.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> w, u = rng.normal(size=(2, 1000))
        >>> x = w + u
        >>> data = IVData.from_arrays(x**2 + u, x, instruments=w)
        >>> line, curve = errors_given_control(data, np.arange(1000), [x**2 + u - 1.0, u])
        >>> line.p_value < 1e-6 < 0.01 < curve.p_value, round(line.size)
        (True, 6)

    References:
        W. K. Newey, J. L. Powell, F. Vella (1999), Nonparametric estimation of triangular simultaneous equations
        models, Econometrica 67(3).
        P. Kline, R. Saggio, M. Sølvsten (2020), Leave-out estimation of variance components, Econometrica 88(5).
    """
    rng = np.random.default_rng(_SEED)
    there = row_weights(data) > 0.0
    errors = [one[there[rows]] for one in errors]
    rows = rows[there[rows]]
    others = rng.permutation(np.setdiff1d(np.flatnonzero(there), rows))
    pool = np.concatenate([rows, others[: max(0, _MAX_ROWS - len(rows))]])
    try:
        columns = Columns.of(data.take(pool), rng, splines=_SPLINES)
    except DataError:
        # Fewer than three clusters.
        return None
    if columns.wide:
        return None
    treated, instruments = columns.treatment(columns.x), instrument_blocks(columns, rng)(columns.w)
    first = columns.first_stage(instruments, treated[:, : columns.treatment.n_linear], _MIN_GAIN)
    control, own = _Control(columns, treated, first), np.argsort(columns.order)[: len(rows)]
    if columns.treatment.spline is not None and control.skewed(own):
        return None
    terms, slopes = control.terms(own)
    sought = control.sought(own, terms.shape[1])
    if sought is None:
        return None
    absorbed = columns.within
    weights = row_weights(columns.data)
    within = Within.fit(absorbed.names, absorbed.sizes, absorbed.places[own], weights[own])
    known = np.column_stack([np.ones(len(own)), columns.linear[own]])
    root = np.sqrt(weights[own])[:, None]
    terms = terms - known @ np.linalg.lstsq(root * known, root * terms, rcond=None)[0]
    x = columns.x[own]
    usual = np.ones(len(own), bool)
    if columns.treatment.spline is not None:
        low, high = np.quantile(x, [_OUTER, 1.0 - _OUTER])
        usual = (low <= x) & (x <= high)
    functions, k, weights = within.residual(np.hstack([sought, terms])), sought.shape[1], weights[own]
    scale = np.sqrt(np.mean(functions**2, axis=0))
    scale = np.where(scale > 0.0, scale, 1.0)
    functions = functions / scale
    some, share = functions[usual, :k], weights[usual] / weights[usual].sum()
    size = some.T @ (share[:, None] * some)
    parts = functions, weights, size, slopes / scale[k:], control, own
    return [_error_of(within.residual(one.astype(np.float64)), *parts) for one in errors]


def _error_of(
    outcome: Floats, columns: Floats, weights: Floats, size: Floats, slopes: Floats, control: _Control, own: Integers
) -> ErrorOfCurve:
    """What least squares says of an outcome, on functions that are sought and, after these, on those of controls.

    Args:
        outcome: `(n,)` errors of a curve.
        columns: `(n, p)` the functions, of length about one each.
        weights: `(n,)`.
        size: the mean of products of the functions that are sought, `(k, k)`.
        slopes: of the functions of control variables by each of the first stage's predictions, `(m, n, p - k)`.
        control: the control variables, of more rows.
        own: positions of these rows among them.
    """
    k, first, sampling = len(size), control.first, control.columns.sampling
    regressors, weighted = np.hstack(first.regressors(slice(None))), weights[:, None] * columns
    influence = weighted @ np.linalg.pinv(columns.T @ weighted, rcond=_REAL, hermitian=True)
    beta = influence.T @ outcome
    leverage = np.minimum(np.sum(influence * columns, axis=1), 1.0 - _MIN_LEFT)
    influence = influence[:, :k]
    scores = np.zeros((len(regressors), k))
    scores[own] = influence * ((outcome - columns @ beta) / (1.0 - leverage))[:, None]
    left = first.residuals * sampling.weights[:, None]
    for j, (used, inverse) in enumerate(zip(first.kept, first.inverses, strict=True)):
        z = regressors[:, used]
        by_first = (influence * (slopes[j] @ beta[k:])[:, None]).T @ z[own] @ inverse
        scores -= (z * left[:, [j]]) @ by_first.T
    covariance = score_covariance(sampling.errors, scores)
    half = covariance_root(size)
    noise = np.maximum(np.linalg.eigvalsh(half.T @ covariance @ half), 0.0)
    total, squares = max(float(noise.sum()), _TINY), float(beta[:k] @ size @ beta[:k])
    # Satterthwaite's approximation of a sum of squares of different variances.
    dof = total**2 / max(float(noise @ noise), _TINY**2), sampling.errors.dof(len(own) - len(beta))
    return ErrorOfCurve(
        size=squares - total,
        noise=total,
        p_value=f_tail(squares / total, *dof),
        visible=total * (f_quantile(1.0 - SIZE, *dof) - 1.0),
    )
