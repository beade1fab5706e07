r"""Ridge regressions in closed form, with a penalty for each block of columns.

A ridge $\lambda_b$ on the coefficients of block b is a normal prior of variance $\sigma^2 / \lambda_b$; an infinite one
leaves the block out, and columns outside every block are not penalised. With the Gram matrix $A = \Phi^\top \Phi$ and
the moments $c = \Phi^\top y$ the coefficients are $(A + \Lambda)^{-1} c$: nothing here needs the rows themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

__all__ = [
    "Penalties",
    "Prior",
    "Shape",
    "average_priors",
    "choose_penalties",
    "penalised_solve",
    "priors_of",
    "ridges_of",
]

Floats = NDArray[np.float64]

_NEGLIGIBLE = 1e-9
# Of columns cleared of others, and of the covariance of their moments: below this share is rounding.
_REAL = 1e-8
# What is left of a standardised column given the others is rounding below this share of its variance.
_SINGULAR = 1e-12
# Ratios of prior to noise variance at which the evidence is compared, in the unit of an average column.
_RATIOS = np.exp(np.arange(-14.0, 8.01, 0.25))
_ROUNDS = 2
# Standard deviations of a function that its prior averages over, in that of the outcome beyond a linear model, and the
# half-normal scale of their prior.
_DEVIATIONS = np.geomspace(0.03, 2.4, 9)
_SCALE = 1.0
# The prior probability of a term whose prior is not averaged over; there are a dozen of them.
_OTHER = 0.2
_MAX_LOG = 500.0
# Combinations of priors that the data make less likely than this do not matter.
_MIN_PROBABILITY = 0.005


def penalised_solve(gram: Floats, moments: Floats, ridges: Floats) -> Floats:
    r"""The coefficients $(A + \Lambda)^{-1} c$, for one or several columns c.

    Args:
        gram: `(p, p)`.
        moments: `(p,)` or `(p, k)`.
        ridges: `(p,)` the diagonal of Λ; a column whose ridge is infinite has the coefficient 0.

    Example:
        >>> penalised_solve(np.diag([2.0, 3.0]), np.array([2.0, 8.0]), np.array([0.0, 1.0]))
        array([1., 2.])
    """
    kept = np.isfinite(ridges)
    found = np.zeros_like(moments)
    if kept.any():
        found[kept] = _solve(gram[np.ix_(kept, kept)] + np.diag(ridges[kept]), moments[kept])
    return found


class Penalties(NamedTuple):
    """The ridges of blocks, and what the data say for each.

    Attributes:
        ridges: by block; infinite for a block that is left out.
        gains: by block, twice the gain in log evidence when it entered; for one left out, what it would have gained.
        order: the blocks that entered, in this order.
        priors: by block, the prior variance of its coefficients with the largest likelihood; also of blocks that gain
            something but too little to enter. None may enter, and all are 0, if `min_gain` is infinite.
    """

    ridges: Floats
    gains: Floats
    order: tuple[int, ...]
    priors: Floats


def ridges_of(blocks: Sequence[slice], ridges: Floats, n_columns: int) -> Floats:
    """The ridge of each column, from that of its block; 0 outside all blocks."""
    found = np.zeros(n_columns)
    for block, ridge in zip(blocks, ridges, strict=True):
        found[block] = ridge
    return found


def choose_penalties(
    gram: Floats,
    moments: Floats,
    blocks: Sequence[slice],
    noise: Callable[[Floats], tuple[Floats, float]],
    min_gain: float = 4.0,
    squares: Floats | None = None,
    units: Floats | None = None,
) -> Penalties:
    r"""Ridges by marginal likelihood, robust to errors of unequal variance: blocks enter one by one.

    Given the other blocks at their ridges, let S and m be the Gram matrix and the moments of block b after its columns
    are cleared of all others, and M the robust covariance of m if the block does not matter. Along the eigenvectors of
    S, with eigenvalues d, a prior variance τ of the coefficients gives $m_i \sim N(0, M_{ii} + \tau d_i^2)$. The τ with
    the largest likelihood is the block's, its ridge is $\sigma^2 / \tau$. That is restricted maximum likelihood for one
    variance component, but for M, which would be $\sigma^2 S$: with errors of unequal variance, or clustered ones, the
    usual likelihood takes their pattern for signal.

    The block that gains most enters, if twice its gain in log likelihood is `min_gain` or more; all ridges are then
    adjusted; and so on. Without any signal a block gains 4 with a probability of about 2%.

    Args:
        gram, moments: `(p, p)` and `(p,)`, of all columns.
        blocks: the columns of each; columns in none of them are not penalised.
        noise: gives, for coefficients, the covariance of the moments and the variance of an error.
        min_gain: what a block must gain to enter.
        squares: `(p,)` sums of squares of the columns before others were cleared from them, which tell rounding errors
            from what is left; None if `gram` is that of the columns as they are.
        units: by block, the prior variance of coefficients at which the function is as large as what a linear model
            leaves of the outcome. Then no prior variance is much larger, and a block that is left out has its expected
            one under the prior of :func:`priors_of`. None: every variance is possible.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(500, 30))
        >>> y = x[:, 0] + 0.3 * x[:, 1:11].sum(axis=1) + rng.normal(size=500)
        >>> found = choose_penalties(x.T @ x, x.T @ y, [slice(1, 11), slice(11, 30)], lambda b: (x.T @ x, 1.0))
        >>> found.order, bool(5.0 < found.ridges[0] < 20.0)
        ((0,), True)
    """
    squares = np.diag(gram) if squares is None else squares
    rounding = [_NEGLIGIBLE * np.max(squares[block], initial=np.finfo(float).tiny) for block in blocks]

    def evidence(block: int, ridges: Floats, covariance: Floats, variance: float) -> _Evidence:
        cleared = _cleared(gram, moments, covariance, blocks, ridges, block, rounding[block])
        return _evidence(*cleared, variance, None if units is None else float(units[block]))

    none = np.zeros(len(blocks))
    found = Penalties(np.full(len(blocks), np.inf), none, (), none)
    while True:
        ridges, gains = found.ridges.copy(), found.gains.copy()
        errors = noise(penalised_solve(gram, moments, ridges_of(blocks, found.ridges, len(moments))))
        outside = [block for block in range(len(blocks)) if np.isinf(ridges[block])]
        offers = {block: evidence(block, ridges, *errors) for block in outside}
        for block in outside:
            gains[block] = offers[block].gain
        if not outside or max(gains[outside]) < min_gain:
            if np.isfinite(min_gain):
                every = [offers.get(block) or evidence(block, ridges, *errors) for block in range(len(blocks))]
                priors = np.where(np.isinf(ridges), [one.prior for one in every], errors[1] / ridges)
                found = found._replace(priors=priors)
            return found._replace(gains=gains)
        chosen = max(outside, key=lambda block: offers[block].gain)
        ridges[chosen] = offers[chosen].ridge
        found = found._replace(ridges=ridges, gains=gains, order=(*found.order, chosen))
        for block in found.order * _ROUNDS:
            ridges[block] = evidence(block, ridges, *errors).ridge


def _cleared(
    gram: Floats,
    moments: Floats,
    covariance: Floats,
    blocks: Sequence[slice],
    ridges: Floats,
    block: int,
    rounding: float,
) -> tuple[Floats, Floats, Floats]:
    """Eigenvalues above `rounding` of a block's Gram matrix given the other columns; moments along them; variances."""
    others = ridges_of(blocks, ridges, len(moments))
    others[blocks[block]] = np.inf
    kept, own = np.isfinite(others), blocks[block]
    fits = np.zeros((0, own.stop - own.start))
    if kept.any():
        fits = _solve(gram[np.ix_(kept, kept)] + np.diag(others[kept]), gram[kept, own])
    values, vectors = np.linalg.eigh(gram[own, own] - gram[own, kept] @ fits)
    there = values > rounding
    vectors = vectors[:, there]
    along = (moments[own] - fits.T @ moments[kept]) @ vectors
    weights = np.zeros((len(moments), vectors.shape[1]))
    weights[own], weights[kept] = vectors, -fits @ vectors
    used = kept.copy()
    used[own] = True
    weights = weights[used]
    return values[there], along, np.sum(weights * (covariance[np.ix_(used, used)] @ weights), axis=0)


class _Evidence(NamedTuple):
    """Twice the gain in log likelihood at the best prior variance, its ridge, and the variance if it is left out."""

    gain: float
    ridge: float
    prior: float


def _evidence(values: Floats, moments: Floats, noise: Floats, variance: float, unit: float | None) -> _Evidence:
    real = noise > 0.0
    values, moments, noise = values[real], moments[real], noise[real]
    if not len(values) or variance <= 0.0 or unit == 0.0:
        return _Evidence(0.0, np.inf, 0.0)

    def gains_at(priors: Floats) -> Floats:
        total = noise + priors[:, None] * values**2
        return np.asarray(np.sum(moments**2 * (1.0 / noise - 1.0 / total) - np.log(total / noise), axis=1))

    priors = _RATIOS * variance / np.mean(values)
    if unit is not None:
        priors = np.minimum(priors, _DEVIATIONS[-1] ** 2 * unit)
    gains = gains_at(priors)
    best = int(np.argmax(gains))
    gain, prior = float(gains[best]), float(priors[best])
    if unit is None:
        return _Evidence(gain, variance / prior, prior if gain > 0.0 and best > 0 else 0.0)
    # Beyond the largest of these ratios to the noise only rounding errors are left to tell.
    possible = np.minimum(_DEVIATIONS**2 * unit, priors[-1])
    odds = _OTHER * _shares() * np.exp(np.minimum(gains_at(possible) / 2.0, _MAX_LOG))
    return _Evidence(gain, variance / prior, float(odds @ possible / (1.0 - _OTHER + odds.sum())))


def _shares() -> Floats:
    """Prior probabilities of the standard deviations of a function."""
    density = np.exp(-0.5 * (_DEVIATIONS / _SCALE) ** 2) * np.gradient(_DEVIATIONS)
    return np.asarray(density / density.sum(), np.float64)


class Prior(NamedTuple):
    """Prior variances of the coefficients of a block `(k,)`, all 0 where it has no function, and their probability."""

    variances: Floats
    probability: float


class Shape(NamedTuple):
    """How the prior variance of a function is shared among its coefficients, and the probability of this share.

    Attributes:
        variances: `(k,)`, such that the variance of the function is 1.
        probability: those of a block's shapes add up to less than 1; what is left is the probability of no function.
    """

    variances: Floats
    probability: float


def priors_of(shapes: Sequence[Shape], deviation: float) -> list[Prior]:
    """Priors of a block: no function, or one of each shape whose standard deviation has a half-normal prior.

    Args:
        shapes: of the function.
        deviation: the standard deviation of the outcome beyond a linear model, in units of which the prior is.
    """
    none = 1.0 - sum(shape.probability for shape in shapes)
    found = [Prior(np.zeros_like(shapes[0].variances), none)]
    for shape in shapes:
        pairs = zip((_DEVIATIONS * deviation) ** 2, _shares(), strict=True)
        found += [Prior(variance * shape.variances, float(share) * shape.probability) for variance, share in pairs]
    return found


def average_priors(
    gram: Floats,
    moments: Floats,
    covariance: Floats,
    ridges: Floats,
    blocks: Sequence[slice],
    priors: Sequence[Sequence[Prior]],
) -> list[tuple[float, Floats]]:
    r"""Posterior probabilities of all combinations of the blocks' priors, and the prior variances of their columns.

    With S and m the Gram matrix and the moments of the blocks after their columns are cleared of all others, and M the
    robust covariance of m if they do not matter, prior variances T give $m \sim N(0, M + S T S)$.

    Args:
        gram, moments, covariance: of all columns, and the covariance of the moments.
        ridges: `(p,)` of all columns; those of the blocks do not count.
        blocks: the columns of each block.
        priors: those of each block.

    Returns:
        Pairs of a probability and `(k,)` variances of the columns of all blocks, in their order; unlikely ones are left
        out.
    """
    own = np.concatenate([np.arange(block.start, block.stop) for block in blocks])
    others = np.isfinite(ridges)
    others[own] = False
    fits = np.zeros((0, len(own)))
    if others.any():
        fits = _solve(gram[np.ix_(others, others)] + np.diag(ridges[others]), gram[np.ix_(others, own)])
    left = gram[np.ix_(own, own)] - gram[np.ix_(own, others)] @ fits
    values, vectors = np.linalg.eigh(left)
    vectors = vectors[:, values > _REAL * max(np.max(np.diag(gram)[own]), np.finfo(float).tiny)]
    weights = np.zeros((len(moments), vectors.shape[1]))
    weights[own], weights[others] = vectors, -fits @ vectors
    noise = weights.T @ covariance @ weights
    variances, axes = np.linalg.eigh(noise)
    real = variances > _REAL * max(np.max(variances, initial=0.0), np.finfo(float).tiny)
    whiten = axes[:, real].T / np.sqrt(variances[real])[:, None]
    signal, seen = whiten @ (weights.T @ moments), whiten @ vectors.T @ left
    combined, logs = [], []
    for chosen in product(*priors):
        prior = np.concatenate([one.variances for one in chosen])
        total = np.eye(len(signal)) + (seen * prior) @ seen.T
        factor = np.linalg.cholesky(total)
        standard = np.linalg.solve(factor, signal)
        log_likelihood = -np.sum(np.log(np.diag(factor))) - 0.5 * float(standard @ standard)
        logs.append(log_likelihood + sum(np.log(one.probability) for one in chosen))
        combined.append(prior)
    probabilities = np.exp(np.asarray(logs) - np.max(logs))
    probabilities /= probabilities.sum()
    likely = probabilities >= _MIN_PROBABILITY
    total_likely = float(probabilities[likely].sum())
    return [(float(probabilities[i]) / total_likely, combined[i]) for i in np.flatnonzero(likely)]


def _solve(matrix: Floats, right: Floats) -> Floats:
    size = np.sqrt(np.maximum(np.diag(matrix), np.finfo(float).tiny))
    matrix = matrix / np.outer(size, size)
    right = right / (size if right.ndim == 1 else size[:, None])
    try:
        factor = cho_factor(matrix)
        regular = np.diag(factor[0]).min() ** 2 > _SINGULAR
    except LinAlgError:
        regular = False
    # With columns that are combinations of others: the shortest of the coefficients that fit equally well.
    found = cho_solve(factor, right) if regular else np.linalg.pinv(matrix, rcond=_SINGULAR, hermitian=True) @ right
    return np.asarray(found / (size if right.ndim == 1 else size[:, None]), np.float64)
