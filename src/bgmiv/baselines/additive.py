"""Penalised regression on smooth functions: natural splines, and a ridge penalty for each group of columns.

Penalties are chosen by cross-validation on cross-products alone, so that the cost is linear in the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from bgmiv.data.messages import FloatArray

__all__ = ["Ridge", "Smooth", "draw_folds", "fit_logistic", "fit_ridge", "spline_columns"]

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]

# Penalties of a group as multiples of the number of rows, for columns with a mean square of one. The first leaves the
# group out.
_PENALTIES = (np.inf, *10.0 ** np.arange(2.0, -6.5, -1.0))
# Of columns without a penalty, so that exact linear combinations of columns do no harm.
_NO_PENALTY = 1e-9
# A variable of so many distinct values or fewer is a line.
_MAX_LINEAR = 4
_MIN_GAP = 1e-4
_MAX_SWEEPS = 4
# By how many standard errors a doubtful group has to lower the loss.
_MIN_PROOF = 2.0
_NEWTON_STEPS = 25


class Smooth(NamedTuple):
    r"""Natural cubic splines of one standardised variable $t$, linear beyond the outer knots.

    The functions $\phi_k$ have no linear part at the knots, and $\int (\sum_k b_k \phi_k'')^2 = \sum_k b_k^2$, the
    smoothest function first: a ridge penalty on their coefficients is the roughness penalty of a smoothing spline.

    Attributes:
        shift, scale: $t$ = (value - shift) / scale.
        knots: `(k,)` in units of $t$; none for a variable that enters linearly.
        values: `(k, k - 2)` of the functions at the knots.

    Example:
        >>> smooth = Smooth.fit(np.linspace(0.0, 1.0, 50), n_knots=6)
        >>> smooth(np.array([0.0, 0.5, 2.0])).shape
        (3, 5)
    """

    shift: float
    scale: float
    knots: Floats
    values: Floats

    @classmethod
    def fit(cls, values: FloatArray, n_knots: int) -> Smooth:
        """Two thirds of the knots at even quantiles, the others at even distances; none for a few distinct values."""
        values = np.asarray(values, np.float64)
        shift, spread = float(values.mean()), float(values.std())
        scale = spread if spread > 0.0 else 1.0
        t = (values - shift) / scale
        line = cls(shift, scale, np.zeros(0), np.zeros((0, 0)))
        distinct = np.unique(t)
        if n_knots < 3 or len(distinct) <= _MAX_LINEAR:
            return line
        if len(distinct) <= n_knots:
            knots = distinct
        else:
            # Quantiles alone would leave the tails of a curve to a single cubic.
            shares = np.linspace(0.0, 1.0, n_knots - n_knots // 3)
            even = distinct[0] + (distinct[-1] - distinct[0]) * (np.arange(n_knots // 3) + 0.5) / (n_knots // 3)
            knots = np.sort(np.concatenate([np.unique(np.quantile(t, shares)), even]))
        # Of knots that are nearly the same, one.
        knots = knots[np.append(True, np.diff(knots) > _MIN_GAP * (knots[-1] - knots[0]))]
        if len(knots) < 3:
            return line
        second = CubicSpline(knots, np.eye(len(knots)), bc_type="natural")(knots, 2)
        # Squares of second derivatives are quadratic between knots: Simpson's rule is exact.
        gaps, left, right = np.sqrt(np.diff(knots) / 6.0)[:, None], second[:-1], second[1:]
        stacked = np.vstack([gaps * left, gaps * (left + right), gaps * right])
        roughness, vectors = np.linalg.eigh(stacked.T @ stacked)
        return cls(shift, scale, knots, vectors[:, 2:] / np.sqrt(roughness[2:]))

    @property
    def size(self) -> int:
        """The number of functions beside the linear one."""
        return self.values.shape[1]

    def __call__(self, values: FloatArray) -> Floats:
        """The standardised variable, then the functions, `(n, 1 + size)`."""
        t = (np.asarray(values, np.float64) - self.shift) / self.scale
        if not self.size:
            return t[:, None]
        splines = CubicSpline(self.knots, self.values, bc_type="natural")
        inside = np.clip(t, self.knots[0], self.knots[-1])
        return np.column_stack([t, splines(inside) + splines(inside, 1) * (t - inside)[:, None]])


def spline_columns(smooths: Sequence[Smooth], values: FloatArray) -> tuple[Floats, Floats]:
    """Of variables `(n, d)`: the linear functions `(n, d)`, and all splines side by side."""
    made = [smooth(column) for smooth, column in zip(smooths, values.T, strict=True)]
    empty = np.zeros((len(values), 0))
    return np.hstack([empty, *(m[:, :1] for m in made)]), np.hstack([empty, *(m[:, 1:] for m in made)])


def draw_folds(n_rows: int, n_folds: int, rng: np.random.Generator, groups: NDArray[np.int64] | None) -> Integers:
    """The fold of each row, `(n,)`; rows of a group are in the same fold."""
    units = np.arange(n_rows) if groups is None else groups
    n_units = int(units.max()) + 1
    folds = np.arange(n_units) % min(n_folds, n_units)
    return np.asarray(rng.permutation(folds)[units], np.intp)


class Ridge(NamedTuple):
    """A fitted ridge regression.

    Attributes:
        coefficients: `(p,)`, zero for columns that were left out.
        penalties: `(p,)`, infinite for columns that were left out.
        out_of_fold: `(n,)` predictions, each by the coefficients of the other folds.
        loss: mean squared error of these.
    """

    coefficients: Floats
    penalties: Floats
    out_of_fold: Floats
    loss: float


class _Moments(NamedTuple):
    """Weighted cross-products of columns and target, of each fold and of all rows."""

    gram: Floats
    cross: Floats
    squares: Floats
    grams: Floats
    crosses: Floats

    def solve(self, penalties: Floats, fold: int | None = None) -> Floats:
        """Coefficients of all rows, or of all but a fold."""
        gram = self.gram if fold is None else self.gram - self.grams[fold]
        cross = self.cross if fold is None else self.cross - self.crosses[fold]
        kept = np.flatnonzero(np.isfinite(penalties))
        found = np.zeros(len(cross))
        matrix = gram[np.ix_(kept, kept)]
        matrix[np.diag_indices(len(kept))] += penalties[kept]
        found[kept] = cho_solve(cho_factor(matrix, overwrite_a=True, check_finite=False), cross[kept])
        return found

    def loss(self, penalties: Floats) -> float:
        """The mean squared error on left-out folds."""
        total = 0.0
        for fold, (gram, cross, squares) in enumerate(zip(self.grams, self.crosses, self.squares, strict=True)):
            b = self.solve(penalties, fold)
            total += float(squares - 2.0 * b @ cross + b @ gram @ b)
        return total


def _moments(columns: Floats, target: Floats, folds: Integers, weights: Floats) -> _Moments:
    total = weights.sum()
    grams, crosses, squares = [], [], []
    for fold in range(int(folds.max()) + 1):
        rows = folds == fold
        part, weight = columns[rows], weights[rows] / total
        grams.append((part * weight[:, None]).T @ part)
        crosses.append((part * weight[:, None]).T @ target[rows])
        squares.append(weight @ target[rows] ** 2)
    stacked = np.stack(grams), np.stack(crosses)
    return _Moments(stacked[0].sum(axis=0), stacked[1].sum(axis=0), np.asarray(squares), *stacked)


def fit_ridge(
    columns: Floats, target: Floats, labels: Integers, folds: Integers, weights: Floats, doubtful: Collection[int] = ()
) -> Ridge:
    """Ridge regression with a penalty for each group of columns, chosen by cross-validation one group at a time.

    A group is first left out, and taken in where left-out folds are then predicted better; a doubtful group only where
    they are by two standard errors.

    Args:
        columns: `(n, p)`.
        target: `(n,)`.
        labels: `(p,)` the group of each column, from 0; -1 for columns without a penalty.
        folds: `(n,)`.
        weights: `(n,)`.
        doubtful: groups that have to prove themselves.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(200, 3))
        >>> columns = np.column_stack([np.ones(200), x])
        >>> folds = draw_folds(200, 5, rng, None)
        >>> ridge = fit_ridge(columns, x[:, 0], np.array([-1, 0, 1, 1]), folds, np.ones(200))
        >>> ridge.coefficients.round(3) + 0.0
        array([0., 1., 0., 0.])
    """
    moments = _moments(columns, target, folds, weights)
    n_groups = int(labels.max()) + 1
    sizes = np.diag(moments.gram)
    units = np.array([max(sizes[labels == group].mean(), 1e-300) for group in range(n_groups)] + [1.0])
    chosen = np.append(np.full(n_groups, np.inf), _NO_PENALTY)

    def penalties(values: Floats) -> Floats:
        return np.asarray((values * units)[labels])

    def out_of_fold(values: Floats) -> Floats:
        found = np.empty(len(target))
        for fold in range(len(moments.grams)):
            found[folds == fold] = columns[folds == fold] @ moments.solve(penalties(values), fold)
        return found

    def t_value(group: int) -> float:
        """By how many standard errors left-out folds are predicted better with the group."""
        without = chosen.copy()
        without[group] = np.inf
        gains = (target - out_of_fold(without)) ** 2 - (target - out_of_fold(chosen)) ** 2
        mean = np.average(gains, weights=weights)
        return float(mean / (np.average((gains - mean) ** 2, weights=weights) / len(target)) ** 0.5)

    groups = list(range(n_groups))
    while True:
        chosen, best = _searched(lambda values: moments.loss(penalties(values)), chosen, groups)
        proofs = {group: t_value(group) for group in doubtful if np.isfinite(chosen[group])}
        weakest = min(proofs, key=lambda group: proofs[group], default=-1)
        if weakest < 0 or proofs[weakest] >= _MIN_PROOF:
            break
        groups.remove(weakest)
        chosen[weakest] = np.inf
    found = penalties(chosen)
    return Ridge(moments.solve(found), found * weights.sum(), out_of_fold(chosen), best)


def _searched(loss_of: Callable[[Floats], float], start: Floats, groups: Sequence[int]) -> tuple[Floats, float]:
    """Penalties that lower the loss, one group at a time until none moves, and the loss."""
    chosen, best = start, loss_of(start)
    for _ in range(_MAX_SWEEPS):
        before = chosen
        for group in groups:
            for value in _PENALTIES:
                trial = chosen.copy()
                trial[group] = value
                loss = loss_of(trial) if value != chosen[group] else best
                if loss < best * (1.0 - 1e-6):
                    best, chosen = loss, trial
        if np.array_equal(before, chosen):
            break
    return chosen, best


def fit_logistic(columns: Floats, target: Floats, ridge: Ridge, folds: Integers, weights: Floats) -> Ridge:
    """Logistic regression on the columns and with the penalties of a linear one; `out_of_fold` are probabilities of 1.

    The logistic likelihood weighs a row by p (1 - p), so that penalties are scaled by the mean of this.
    """
    kept = np.isfinite(ridge.penalties)
    z = columns[:, kept]
    share = np.average(target, weights=weights)
    penalties = ridge.penalties[kept] * share * (1.0 - share)
    # The columns without a penalty may separate few rows; the constant stays free.
    penalties[1:] += 1e-4 * weights.sum() * np.mean(z[:, 1:] ** 2, axis=0)
    out_of_fold = np.empty(len(target))
    for fold in range(int(folds.max()) + 1):
        rows = folds != fold
        b = _newton(z[rows], target[rows], weights[rows], penalties)
        out_of_fold[~rows] = expit(z[~rows] @ b)
    coefficients, found = np.zeros(columns.shape[1]), np.full(columns.shape[1], np.inf)
    coefficients[kept], found[kept] = _newton(z, target, weights, penalties), penalties
    loss = float(np.average((target - out_of_fold) ** 2, weights=weights))
    return Ridge(coefficients, found, out_of_fold, loss)


def _newton(z: Floats, target: Floats, weights: Floats, penalties: Floats) -> Floats:
    """Maximise the penalised log-likelihood; steps that do not raise it are halved."""

    def value(b: Floats) -> float:
        index = z @ b
        return float(weights @ (target * index - np.logaddexp(0.0, index)) - 0.5 * penalties @ b**2)

    b = np.zeros(z.shape[1])
    for _ in range(_NEWTON_STEPS):
        p = expit(z @ b)
        curvature = (z * (weights * p * (1.0 - p))[:, None]).T @ z + np.diag(penalties + 1e-9 * weights.sum())
        step = cho_solve(cho_factor(curvature), z.T @ (weights * (target - p)) - penalties * b)
        size, now = 1.0, value(b)
        while value(b + size * step) < now and size > 1e-6:
            size /= 2.0
        b = b + size * step
        if np.abs(size * step).max() < 1e-8:
            break
    return b
