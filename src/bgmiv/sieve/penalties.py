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
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from bgmiv.arrays import TINY, Floats, Integers

__all__ = [
    "Averaged", "BlockEvidence", "Evidence", "Moments", "Penalties", "Posterior", "Prior",
    "average_priors", "choose_penalties", "penalised_solve", "priors_of", "ridges_of",
]  # fmt: skip

Noise = Callable[[Floats], tuple[Floats, float]]
"""For coefficients, the robust covariance of the moments and the variance of an error."""

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
_DENSITY = np.exp(-0.5 * (_DEVIATIONS / _SCALE) ** 2) * np.gradient(_DEVIATIONS)
_SHARES = _DENSITY / _DENSITY.sum()
# The prior probability of a term whose prior is not averaged over; there are a dozen of them.
_OTHER = 0.2
# Combinations of priors that the data make less likely than this do not matter.
_MIN_PROBABILITY = 0.005
# That a regression on the observed treatment does not tell how large functions are.
_MISLEADING = 0.05
# By which intervals allow for more than the mean squares of coefficients in that regression: where several of them go
# the same way, a contrast is further off than their prior, by which they are independent, says.
_ALLOWANCE = 2.0


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
    coefficients = np.zeros_like(moments)
    if kept.any():
        coefficients[kept] = _solve(gram[np.ix_(kept, kept)] + np.diag(ridges[kept]), moments[kept])
    return coefficients


def ridges_of(blocks: Sequence[slice], ridges: Floats, others: Floats) -> Floats:
    """The ridge of each column, from that of its block; of columns outside all blocks those in `others`, `(p,)`."""
    by_column = others.copy()
    for block, ridge in zip(blocks, ridges, strict=True):
        by_column[block] = ridge
    return by_column


class Moments(NamedTuple):
    """The moments of a regression, and their covariance.

    Attributes:
        gram, moments: `(p, p)` and `(p,)`, of all columns.
        covariance: the robust one of the moments.
        ridges: of all columns; infinite for those that are left out.
    """

    gram: Floats
    moments: Floats
    covariance: Floats
    ridges: Floats

    def cleared(self, own: slice | Integers, least: float, fits: Floats | None = None) -> tuple[Floats, ...]:
        """Some columns cleared of all others; directions in which less is left of their Gram matrix are none.

        Ridges of these columns do not count. `fits` are their coefficients on the others, `(p, k)`, if these are known.

        Returns:
            The eigenvalues and eigenvectors of what is left of their Gram matrix, what is left of the moments along
            these, and the covariance of that.
        """
        others = self.ridges.copy()
        others[own] = np.inf
        if fits is None:
            fits = penalised_solve(self.gram, self.gram[:, own], others)
        values, vectors = np.linalg.eigh(self.gram[own][:, own] - self.gram[own] @ fits)
        values, vectors = values[values > least], vectors[:, values > least]
        weights = -fits @ vectors
        weights[own] = vectors
        used = np.isfinite(others)
        used[own] = True
        noise = weights[used].T @ self.covariance[np.ix_(used, used)] @ weights[used]
        return values, vectors, weights.T @ self.moments, noise


class BlockEvidence(NamedTuple):
    r"""What the moments say of one block given the others at their ridges, along the eigenvectors of its Gram matrix.

    With S and m the Gram matrix and the moments of the block after its columns are cleared of all others, and M the
    robust covariance of m if the block does not matter, a prior variance τ of the coefficients gives
    $m_i \sim N(0, M_{ii} + \tau d_i^2)$ along the eigenvectors of S, with eigenvalues d.

    Attributes:
        values, moments, noise: d, m and the diagonal of M.
    """

    values: Floats
    moments: Floats
    noise: Floats

    @classmethod
    def of(cls, known: Moments, own: slice, squares: Floats | None = None, fits: Floats | None = None) -> BlockEvidence:
        """Of the moments of all columns.

        Args:
            known: these moments.
            own: the columns of the block.
            squares: `(p,)` sums of squares of the columns, which tell rounding errors from what is left of them; None:
                they are those of the Gram matrix.
            fits: the coefficients of all columns on those that are kept, `(p, p)`, where the block is left out.
        """
        squares = np.diag(known.gram) if squares is None else squares
        least = _NEGLIGIBLE * np.max(squares[own], initial=TINY)
        left = None if fits is None else fits[:, own]
        values, _, moments, covariance = known.cleared(own, least, left)
        noise = np.diag(covariance)
        real = noise > 0.0
        return cls(values[real], moments[real], noise[real])

    def gains(self, priors: Floats) -> Floats:
        """Twice the gains in log likelihood of prior variances `(m,)`."""
        total = self.noise + priors[:, None] * self.values**2
        gains = self.moments**2 * (1.0 / self.noise - 1.0 / total) - np.log(total / self.noise)
        return np.sum(gains, axis=1)

    def best(self, variance: float, unit: float = np.inf) -> tuple[float, float]:
        """The prior variance of the largest likelihood, 0 where nothing is left of the block, and twice its gain.

        Args:
            variance: of an error.
            unit: the prior variance at which the function is as large as what a linear model leaves of the outcome;
                no variance much larger is possible.
        """
        priors = self._possible(variance, unit)
        if not len(priors):
            return 0.0, 0.0
        gains = self.gains(priors)
        best = int(np.argmax(gains))
        return priors[best], gains[best]

    def likely(self, variance: float) -> float:
        """The prior variance of a block that is left out: that of the largest likelihood if it gains anything."""
        prior, gain = self.best(variance)
        return prior if gain > 0.0 and prior > self._possible(variance, np.inf)[0] else 0.0

    def expected(self, variance: float, unit: float, seen: BlockEvidence | None = None) -> float:
        """The posterior mean of the prior variance of a block that is left out, under the prior of :func:`priors_of`.

        Args:
            variance, unit: as in :meth:`best`.
            seen: what else is known of the size of the coefficients.
        """
        priors = self._possible(variance, unit)
        if not len(priors):
            return 0.0
        # Beyond the largest of the ratios to the noise only rounding errors are left to tell.
        possible = np.minimum(_DEVIATIONS**2 * unit, priors[-1])
        shares = np.append(1.0 - _OTHER, _OTHER * _SHARES)
        logs = np.append(0.0, self.gains(possible) / 2.0)
        if seen is not None:
            known = np.append(0.0, seen.gains(possible) / 2.0)
            likelihoods = np.exp(known - known.max())
            logs = logs + np.log((1.0 - _MISLEADING) * likelihoods + _MISLEADING * (shares @ likelihoods))
        odds = shares * np.exp(logs - logs.max())
        return odds[1:] @ possible / odds.sum()

    def _possible(self, variance: float, unit: float) -> Floats:
        if not len(self.values) or variance <= 0.0 or unit == 0.0:
            return np.zeros(0)
        return np.minimum(_RATIOS * variance / np.mean(self.values), _DEVIATIONS[-1] ** 2 * unit)


class Penalties(NamedTuple):
    """The ridges of blocks, and what the data say for each.

    Attributes:
        ridges: by block; infinite for a block that is left out.
        moments: with these ridges, and the covariance at them.
        variance: of an error.
        left_out: what the moments say of the blocks that are left out.
    """

    ridges: Floats
    moments: Moments
    variance: float
    left_out: dict[int, BlockEvidence]


def choose_penalties(
    gram: Floats,
    moments: Floats,
    blocks: Sequence[slice],
    noise: Noise,
    min_gain: float = 4.0,
    *,
    squares: Floats | None = None,
    others: Floats | float = 0.0,
    units: Floats | float = np.inf,
) -> Penalties:
    r"""Ridges by marginal likelihood, robust to errors of unequal variance: blocks enter one by one.

    The prior variance τ with the largest likelihood (:class:`BlockEvidence`) is a block's, its ridge is
    $\sigma^2 / \tau$. That is restricted maximum likelihood for one variance component, but for the covariance of the
    moments, which would be $\sigma^2 S$: with errors of unequal variance, or clustered ones, the usual likelihood takes
    their pattern for signal.

    The block that gains most enters, if twice its gain in log likelihood is `min_gain` or more; all ridges are then
    adjusted; and so on. Without any signal a block gains 4 with a probability of about 2%.

    Args:
        gram, moments: `(p, p)` and `(p,)`, of all columns.
        blocks: the columns of each.
        noise: of the moments, for coefficients.
        min_gain: what a block must gain to enter.
        squares: `(p,)` sums of squares of the columns before others were cleared from them; None if `gram` is that of
            the columns as they are.
        others: `(p,)` the ridges of columns in none of the blocks; by default they are not penalised.
        units: by block, as in :meth:`BlockEvidence.best`; by default every variance is possible.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(500, 30))
        >>> y = x[:, 0] + 0.3 * x[:, 1:11].sum(axis=1) + rng.normal(size=500)
        >>> found = choose_penalties(x.T @ x, x.T @ y, [slice(1, 11), slice(11, 30)], lambda b: (x.T @ x, 1.0))
        >>> np.isfinite(found.ridges), bool(5.0 < found.ridges[0] < 20.0)
        (array([ True, False]), True)
    """
    others, units = np.broadcast_to(others, len(moments)), np.broadcast_to(units, len(blocks))
    ridges, gains = np.full(len(blocks), np.inf), np.zeros(len(blocks))
    entered: list[int] = []
    while True:
        by_column = ridges_of(blocks, ridges, others)
        covariance, variance = noise(penalised_solve(gram, moments, by_column))
        known = Moments(gram, moments, covariance, by_column)
        left_out, priors = {}, np.zeros(len(blocks))
        # One factorisation for all blocks that are left out.
        fits = penalised_solve(gram, gram, by_column)
        for i in np.flatnonzero(np.isinf(ridges)).tolist():
            left_out[i] = BlockEvidence.of(known, blocks[i], squares, fits)
            priors[i], gains[i] = left_out[i].best(variance, units[i])
        chosen = max(left_out, key=lambda block: gains[block], default=None)
        if chosen is None or priors[chosen] == 0.0 or gains[chosen] < min_gain:
            return Penalties(ridges, known, variance, left_out)
        ridges[chosen] = variance / priors[chosen]
        entered.append(chosen)
        for i in entered * _ROUNDS:
            known = known._replace(ridges=ridges_of(blocks, ridges, others))
            prior, _ = BlockEvidence.of(known, blocks[i], squares).best(variance, units[i])
            ridges[i] = variance / prior if prior else np.inf


class Prior(NamedTuple):
    """Prior variances of the coefficients of a block, all 0 where it has no function.

    A function's shape is its prior whose variance is 1.

    Attributes:
        variances: `(k,)`.
        probability: of this prior. Those of a block's shapes add up to less than 1: what is left is the probability of
            no function.
        smooth: only functions that are smooth may be hidden from a regression on the observed treatment.
    """

    variances: Floats
    probability: float
    smooth: bool = True


def priors_of(shapes: Sequence[Prior], deviation: float, step: int = 1) -> list[Prior]:
    """Priors of a block: no function, or one of each shape whose standard deviation has a half-normal prior.

    Args:
        shapes: of the function.
        deviation: the standard deviation of the outcome beyond a linear model, in units of which the prior is.
        step: 2 for every other size.
    """
    none = 1.0 - sum(shape.probability for shape in shapes)
    priors = [Prior(np.zeros_like(shapes[0].variances), none)]
    sizes, shares = (_DEVIATIONS * deviation)[::step] ** 2, _SHARES[::step]
    for shape in shapes:
        for size, share in zip(sizes, shares / shares.sum(), strict=True):
            priors.append(Prior(size * shape.variances, share * shape.probability, shape.smooth))
    return priors


class Evidence(NamedTuple):
    r"""What a regression says of the coefficients of some columns, cleared of all others: $s \sim N(D \beta, I)$.

    Attributes:
        signal: s, `(r,)`.
        slopes: D, `(r, k)`.
    """

    signal: Floats
    slopes: Floats

    @classmethod
    def of(cls, known: Moments, own: Integers) -> Evidence:
        """Of the moments of all columns, for some of these."""
        values, vectors, moments, noise = known.cleared(own, _REAL * max(np.max(np.diag(known.gram)[own]), TINY))
        variances, axes = np.linalg.eigh(noise)
        real = variances > _REAL * max(np.max(variances, initial=0.0), TINY)
        whiten = axes[:, real].T / np.sqrt(variances[real])[:, None]
        return cls(whiten @ moments, (whiten * values) @ vectors.T)

    def posterior(self, variances: Floats) -> Posterior:
        """Given prior variances `(m, k)` of the coefficients."""
        n, (m, _) = len(self.signal), variances.shape
        total = np.eye(n) + (self.slopes * variances[:, None, :]) @ self.slopes.T
        factor = np.linalg.cholesky(total)
        both = np.column_stack([self.signal, self.slopes])
        standard = np.linalg.solve(factor, np.broadcast_to(both, (m, *both.shape)))
        signal, slopes = standard[:, :, 0], standard[:, :, 1:]
        logs = -np.sum(np.log(np.diagonal(factor, axis1=1, axis2=2)), axis=1) - 0.5 * np.sum(signal**2, axis=1)
        means = variances * np.einsum("mr,mrk->mk", signal, slopes)
        left = variances - variances**2 * np.sum(slopes**2, axis=1)
        return Posterior(logs, means**2 + np.maximum(left, 0.0))


class Averaged(NamedTuple):
    """The combinations of priors that an estimate averages over.

    Attributes:
        shares: `(m,)` their posterior probabilities.
        expected: `(m, k)` prior variances of the columns of all blocks, in their order, on which the estimate rests.
        allowed: `(m, k)` those for which intervals allow.
    """

    shares: Floats
    expected: Floats
    allowed: Floats


class Posterior(NamedTuple):
    """Given each of several priors: its log likelihood `(m,)`, and the mean squares `(m, k)` of the coefficients."""

    logs: Floats
    squares: Floats


def average_priors(
    evidence: Evidence, priors: Sequence[Sequence[Prior]], seen: Callable[[Floats], Posterior] | None = None
) -> Averaged:
    r"""Posterior probabilities of all combinations of the blocks' priors, and the prior variances of their columns.

    Where a regression tells how large functions are, all combinations in which the same blocks have functions become
    one, whose prior variances are the mean squares of the coefficients in that regression; intervals allow for twice as
    much. The combinations of smooth functions as they are keep the probability `_MISLEADING`: that confounding hides
    these from the regression. To hide a rough one it would have to copy every turn of it.

    Args:
        evidence: of the moments.
        priors: those of each block.
        seen: what the regression gives for prior variances `(m, k)`, if there is one.

    Returns:
        The combinations; unlikely ones are left out.
    """
    combinations = list(product(*priors))
    variances = np.array([np.concatenate([one.variances for one in chosen]) for chosen in combinations])
    shares = np.array([np.prod([one.probability for one in chosen]) for chosen in combinations])
    allowed = variances
    if seen is not None:
        posterior = seen(variances)
        likely = shares * np.exp(posterior.logs - posterior.logs.max())
        has_function = [[bool(one.variances.any()) for one in chosen] for chosen in combinations]
        groups, group_of = np.unique(has_function, axis=0, return_inverse=True)
        weights = (np.ravel(group_of) == np.arange(len(groups))[:, None]) * likely / likely.sum()
        totals = weights.sum(axis=1)
        sizes = weights @ posterior.squares / np.maximum(totals, TINY)[:, None]
        variances, allowed = np.vstack([variances, sizes]), np.vstack([variances, _ALLOWANCE * sizes])
        hidden = shares * [all(one.smooth for one in chosen) for chosen in combinations]
        shares = np.concatenate([_MISLEADING * hidden / hidden.sum(), (1.0 - _MISLEADING) * totals])
    with np.errstate(divide="ignore"):
        logs = np.log(shares) + evidence.posterior(allowed).logs
    probabilities = np.exp(logs - np.max(logs))
    probabilities /= probabilities.sum()
    kept = probabilities >= _MIN_PROBABILITY
    return Averaged(probabilities[kept] / probabilities[kept].sum(), variances[kept], allowed[kept])


def _solve(matrix: Floats, right: Floats) -> Floats:
    size = np.sqrt(np.maximum(np.diag(matrix), TINY))
    matrix, right = matrix / np.outer(size, size), (right.T / size).T
    try:
        factor = cho_factor(matrix)
        regular = np.diag(factor[0]).min() ** 2 > _SINGULAR
    except LinAlgError:
        regular = False
    # With columns that are combinations of others: the shortest of the coefficients that fit equally well.
    solved = cho_solve(factor, right) if regular else np.linalg.pinv(matrix, rcond=_SINGULAR, hermitian=True) @ right
    return (solved.T / size).T
