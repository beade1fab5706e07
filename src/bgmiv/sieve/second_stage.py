r"""The second stage of penalised instrumental variables: its coefficients, and their robust covariance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgmiv.covariance import Errors, left_out_score, mended, tell_mended
from bgmiv.intervals import BOUND, SMOOTHING, STRENGTH
from bgmiv.sieve.control import Observed, Sizes
from bgmiv.sieve.first_stage import FirstStage, LeftOut, one_thread, slices_of
from bgmiv.sieve.penalties import (
    Evidence,
    Penalties,
    Shape,
    average_priors,
    choose_penalties,
    penalised_solve,
    priors_of,
    ridges_of,
)
from bgmiv.sieve.sampling import PIECE, BlocksAt, Sampling

__all__ = ["FunctionSizes", "Regression", "SecondStage", "second_stage"]

Floats = NDArray[np.float64]

_TINY = float(np.finfo(float).tiny)
# A share of an outcome's mean square below this is what rounding leaves of an outcome without noise.
_ROUNDING = 1e-10
# Below this a noisy regressor says next to nothing of what it stands for.
_MIN_RELIABILITY = 0.25


class SecondStage(NamedTuple):
    """The coefficients of all columns, averaged over their priors; those of a block that was left out are 0.

    Attributes:
        coefficients: `(k,)`.
        roots: by the name of a source of uncertainty, roots R `(k, r)` of the parts R Rᵀ of their covariance.
            "sampling": the robust one.
            `SMOOTHING`: what the priors leave open, the bias of penalties and the spread between the coefficients under
            different priors.
            `STRENGTH`: with the columns of "sampling", by how much these scores change where the slope of the
            treatment's linear term is one unit larger, which is the noise of the first stage.
            `BOUND`: the bias of penalties with each block's prior variance times its number of coefficients, so that
            the length of a row is the largest bias of coefficients that are as long as their prior says.
        ridges: by penalised block; infinite for one that was left out.
        gains: by penalised block, as in :class:`~bgmiv.sieve.penalties.Penalties`.
        priors: by penalised block, the prior variance of its coefficients, also of one that was left out.
        left_out: `(n,)` each row's outcome as predicted by coefficients of the other rows or folds, the residuals' part
            aside.
        probabilities: by averaged block, the posterior probability that it has a function.
    """

    coefficients: Floats
    roots: dict[str, Floats]
    ridges: Floats
    gains: Floats
    priors: Floats
    left_out: Floats
    probabilities: dict[int, float]


class Regression(NamedTuple):
    r"""Regression of the outcome on regressors that the first stage has predicted, and on its residuals.

    The sieve $\Phi(f, v) \beta$ is linear in the functions f of the treatment, which the first stage predicts as
    $\hat f$ with residuals $\hat u = f - \hat f$. As $E[\hat u \mid w, v] = 0$, adding $\gamma^\top \hat u$ to the
    regression does not change what β estimates, but takes out of the error what it shares with that of the treatment.
    Outside the span of the first stage's regressors (for interactions, say) this is a gain in precision, as in
    three-stage least squares; within it nothing changes.

    Attributes:
        predicted_at: $\Phi(\hat f, v)$ in blocks, by rows.
        slopes_at: by rows and coefficients β, the derivatives of $\Phi \beta$ by f, `(n, k)`.
        outcome: `(n,)`.
        first: the first stage.
        sampling: weights, groups and folds.
        noisy: if given, the first predicted column m is a noisy version of this regressor f `(n,)`, which contains the
            rows' own errors (:func:`second_stage`).
    """

    predicted_at: BlocksAt
    slopes_at: Callable[[Any, Floats], Floats]
    outcome: Floats
    first: FirstStage
    sampling: Sampling
    noisy: Floats | None = None

    def blocks(self, rows: Any) -> list[Floats]:
        """The residuals, then the predicted regressors."""
        return [self.first.residuals[rows, : self.first.n_controls], *self.predicted_at(rows)]

    def columns(self, rows: Any) -> Floats:
        """All of them, times the roots of weights."""
        return np.hstack(self.blocks(rows)) * self.sampling.root(rows)

    def outcomes(self, rows: Any) -> Floats:
        """Times the roots of weights."""
        return self.outcome[rows] * self.sampling.root(rows)[:, 0]


class FunctionSizes(NamedTuple):
    """What is known of how large the functions of penalised blocks are.

    Attributes:
        variances: by block, the variance of its function, at the observed treatment, for coefficients of variance 1.
        averaged: the blocks whose priors are averaged over, and their shapes.
        observed: the regression on the observed treatment, which tells how large functions are; None for nothing.
    """

    variances: Floats
    averaged: Mapping[int, Sequence[Shape]]
    observed: Observed | None


class _Scores(NamedTuple):
    r"""The scores $\phi_i \varepsilon_i$ of a regression, and what the first stage's errors add to them.

    With its regressors $z_i$, the inverse Q of their penalised Gram matrix, and the derivative $\gamma - s_i$ of
    $\varepsilon_i$ by $\hat f_i$, row i contributes $\phi_i \varepsilon_i + \sum_j \phi_j (\gamma - s_j) z_j^\top Q z_i
    \hat u_i$. For a linear model these are the scores of two-stage least squares.

    Attributes:
        problem: the regression.
        coefficients: of all columns.
        kept: which columns are asked about.
        pieces: the rows, or some that stand for all.
        share: how many rows each of these stands for.
        width: how many sums there are: as many as columns, or with strength twice as many.
        moves: for each target of the first stage, how its coefficients move the sum of scores. With strength there
            come, after the scores, their derivatives by the slope of the treatment's linear term,
            $-\sum_j \phi_j z_j^\top Q z_i \hat u_i$.
        variance: of an error ε.
    """

    problem: Regression
    coefficients: Floats
    kept: NDArray[np.bool_]
    pieces: Sequence[Any]
    share: float
    width: int
    moves: list[Floats]
    variance: float

    @classmethod
    def of(
        cls,
        problem: Regression,
        coefficients: Floats,
        kept: NDArray[np.bool_],
        pieces: Sequence[Any],
        *,
        strength: bool,
    ) -> _Scores:
        """From the rows of some pieces."""
        first, root = problem.first, problem.sampling.root
        gamma = np.zeros(first.predicted.shape[1])
        gamma[: first.n_controls] = coefficients[: first.n_controls]
        size = int(kept.sum())
        width = 2 * size if strength else size
        moves = [np.zeros((width, int(used.sum()))) for used in first.kept]
        square, count = 0.0, 0
        for rows in pieces:
            columns, z = problem.columns(rows), np.hstack(first.regressors(rows)) * root(rows)
            change = gamma - problem.slopes_at(rows, coefficients[first.n_controls :])
            for k, used in enumerate(first.kept):
                moves[k][:size] += (columns[:, kept] * change[:, [k]]).T @ z[:, used]
            if strength and moves:
                moves[0][size:] -= columns[:, kept].T @ z[:, first.kept[0]]
            square += float(np.sum((problem.outcomes(rows) - columns @ coefficients) ** 2))
            count += len(columns)
        share = problem.sampling.n_rows / count
        moves = [share * each for each in moves]
        return cls(problem, coefficients, kept, pieces, share, width, moves, square / count)

    def covariance(self, errors: Errors | None = None) -> Floats:
        """Of the sum over rows, without corrections for small samples."""
        problem, first = self.problem, self.problem.first
        size = int(self.kept.sum())
        passed = [moves @ inverse for moves, inverse in zip(self.moves, first.inverses, strict=True)]

        def parts_at(rows: Any) -> list[tuple[Floats, Floats]]:
            columns, root = problem.columns(rows), problem.sampling.root(rows)
            z, left = np.hstack(first.regressors(rows)) * root, first.residuals[rows] * root
            own = np.zeros((len(columns), self.width))
            own[:, :size] = columns[:, self.kept]
            parts = [(own, problem.outcomes(rows) - columns @ self.coefficients)]
            for k, used in enumerate(first.kept):
                parts.append((z[:, used] @ passed[k].T, left[:, k]))
            return parts

        sampling = problem.sampling if errors is None else problem.sampling._replace(errors=errors)
        return self.share * sampling.covariance(parts_at, self.pieces)

    def corrected(self, inverse: Floats, correction: float) -> Floats:
        """The same with corrections: CR1 of clusters, or the jackknife of both stages.

        Args:
            inverse: that of the penalised Gram matrix of the columns asked about.
            correction: n / (n - k), by which all but the jackknife is multiplied.
        """
        errors, n = self.problem.sampling.errors, self.problem.sampling.n_rows
        if not errors.ways:
            return correction * self.covariance()
        middle: Any = 0.0
        for way in errors.ways:
            count = way.n_clusters
            if way.jackknife:
                scores = np.stack([self._without(np.flatnonzero(way.codes == g), inverse) for g in range(count)])
                middle = middle + way.sign * (count - 1) / count * (scores.T @ scores)
            else:
                factor = count / (count - 1) * (n - 1) / n * correction
                middle = middle + way.sign * factor * self.covariance(Errors(ways=(way._replace(sign=1.0),)))
        if len(errors.ways) == 1:
            return np.asarray(middle, np.float64)
        positive, was_mended = mended(middle)
        if was_mended:
            tell_mended()
        return positive

    def _without(self, cluster: NDArray[np.intp], inverse: Floats) -> Floats:
        """By how much the scores change without some rows.

        The first stage's coefficients change, which moves the scores, and then those of the second.
        """
        problem, first, size = self.problem, self.problem.first, len(inverse)
        gram, score = np.zeros_like(inverse), np.zeros(2 * size)
        grams = [np.zeros_like(each) for each in first.inverses]
        sums = [np.zeros(len(each)) for each in first.inverses]
        for start in range(0, len(cluster), PIECE):
            rows = cluster[start : start + PIECE]
            columns, root = problem.columns(rows), problem.sampling.root(rows)
            z, left = np.hstack(first.regressors(rows)) * root, first.residuals[rows] * root
            gram += columns[:, self.kept].T @ columns[:, self.kept]
            score[:size] += columns[:, self.kept].T @ (problem.outcomes(rows) - columns @ self.coefficients)
            for k, used in enumerate(first.kept):
                grams[k] += z[:, used].T @ z[:, used]
                sums[k] += z[:, used].T @ left[:, k]
        for k, own in enumerate(first.inverses):
            score += self.moves[k] @ (own @ left_out_score(grams[k], sums[k], own))
        return left_out_score(gram, score.reshape(2, size).T, inverse).T.ravel()


@one_thread()
def second_stage(
    problem: Regression, n_unpenalised: int, min_gain: float, known: FunctionSizes | None = None
) -> SecondStage:
    r"""Ridge regression of the outcome on predicted regressors, with its robust covariance.

    $\hat\beta = (\Phi^\top \Phi + \Lambda)^{-1} \Phi^\top y = B \Phi^\top y$ has the covariance $B M B$, with M that
    of its scores times n / (n - k), where k counts the effective parameters, or the jackknife's over clusters. A block
    b, kept or left out, whose coefficients have the prior variance $\tau_b$ adds the bias
    $(B \Phi^\top \Phi_b - I_b) \beta_b$, whose covariance the prior gives: both together cover a smooth function on
    average over its points (Nychka 1988). That a block was left out is part of the uncertainty.

    The priors of some blocks are averaged over instead of chosen (:func:`~bgmiv.sieve.penalties.average_priors`): where
    the data do not tell whether there is such a function, or how large it is, the coefficients are between those with
    and without it, and their covariance is the mean of the conditional ones and the spread between them.

    With a noisy version m of a regressor f, m has too small a coefficient, by its factor a in the regression of f on
    all columns, where the others have the coefficients b. So f gets $d = \beta_m / a$, and $d b$ is taken from the
    others: two-stage least squares with m as the instrument of f.

    Args:
        problem: the regression. Columns without a penalty that are all zero have the coefficient 0: net of absorbed
            indicators, covariates that do not vary within levels are zero.
        n_unpenalised: how many of its first blocks are not penalised.
        min_gain: as in :func:`~bgmiv.sieve.penalties.choose_penalties`; infinite for no penalised block at all.
        known: how large functions are; None: every prior variance is possible, and none is averaged over.
    """
    sampling, n_controls = problem.sampling, problem.first.n_controls
    targets = [problem.outcome] if problem.noisy is None else [problem.outcome, problem.noisy]

    def columns_at(rows: Any) -> list[Floats]:
        return [*problem.blocks(rows), *(target[rows, None] for target in targets)]

    grams = sampling.grams(columns_at)
    total = np.asarray(sum(grams))
    # The first block holds the residuals.
    edges = slices_of(problem.blocks(slice(0, 2)))
    blocks, size = edges[1 + n_unpenalised :], edges[-1].stop
    gram, moments = total[:size, :size], total[:size, size]
    n_outside = blocks[0].start if blocks else size
    outside = np.zeros(size)
    outside[n_controls:n_outside][np.diag(gram)[n_controls:n_outside] == 0.0] = np.inf
    some = sampling.some_rows()

    def noise(coefficients: Floats) -> tuple[Floats, float]:
        scores = _Scores.of(problem, coefficients, np.ones(size, bool), [some], strength=False)
        return scores.covariance(), scores.variance

    def unexplained(ridges: Floats) -> float:
        """What columns with the ridges of blocks leave of the outcome's mean square."""
        coefficients = penalised_solve(gram, moments, ridges_of(blocks, ridges, outside))
        square = total[size, size]
        left = square - 2.0 * coefficients @ moments + coefficients @ gram @ coefficients
        share = float(left) / square
        return share if share > _ROUNDING else 0.0

    units = None
    if known is not None:
        units = unexplained(np.full(len(blocks), np.inf)) / np.maximum(known.variances, _TINY)
    penalties = choose_penalties(gram, moments, blocks, noise, min_gain, others=outside, units=units)
    averaged = {} if known is None or not np.isfinite(min_gain) else dict(known.averaged)
    sizes = None
    if known is not None and known.observed is not None and np.isfinite(min_gain):
        # Averaged blocks have no penalty in it.
        of_blocks = penalties.ridges.copy()
        of_blocks[list(averaged)] = 0.0
        sizes = known.observed.fit(problem.outcome, sampling, ridges_of(blocks, of_blocks, outside), n_controls)
    priors = _priors(penalties, blocks, units, sizes, min_gain)
    ridges = ridges_of(blocks, penalties.ridges, outside)
    models = [_Model(1.0, ridges, np.zeros(size))]
    if averaged:
        without = penalties.ridges.copy()
        without[list(averaged)] = np.inf
        shapes = [(blocks[i], of_block) for i, of_block in averaged.items()]
        models = _models(gram, moments, penalties, ridges, shapes, np.sqrt(unexplained(without)), sizes)
    kept = np.any([np.isfinite(model.ridges) for model in models], axis=0)
    inner, n_kept = gram[np.ix_(kept, kept)], int(kept.sum())
    inverses = [penalised_solve(inner, np.eye(n_kept), model.ridges[kept]) for model in models]
    each = [inverse @ moments[kept] for inverse in inverses]
    shares = np.array([model.probability for model in models])
    mean, inverse = np.tensordot(shares, each, 1), np.tensordot(shares, inverses, 1)
    coefficients = np.zeros(size)
    coefficients[kept] = mean
    effective = float(np.sum((inverse * inner)[n_controls:]))
    correction = sampling.n_rows / max(sampling.n_rows - effective, 1.0)
    pieces = list(sampling.pieces())
    middle = _Scores.of(problem, coefficients, kept, pieces, strength=True).corrected(inverse, correction)
    turned, spread = np.zeros_like(middle), np.zeros((n_kept, n_kept))
    for share, own, beta, model in zip(shares, inverses, each, models, strict=True):
        both = np.kron(np.eye(2), own)
        turned += share * both @ middle @ both.T
        spread += share * np.outer(beta - mean, beta - mean)
        varied = model.variances > 0.0
        # What a coefficient of each averaged column adds to the expected estimates, less itself.
        moved = own @ inner[:, varied[kept]] - np.eye(n_kept)[:, varied[kept]]
        spread += share * correction * (moved * model.variances[varied]) @ moved.T

    def expanded(rows: Floats) -> Floats:
        full = np.zeros((size, rows.shape[1]))
        full[kept] = rows
        return full

    def bias_of(block: slice, prior: float) -> Floats:
        weights = expanded(inverse @ gram[kept, block])
        weights[block] -= np.eye(block.stop - block.start)
        return weights * np.sqrt(prior * correction)

    empty = np.zeros((size, 0))
    fixed = [(block, float(priors[i])) for i, block in enumerate(blocks) if i not in averaged]
    averages = np.tensordot(shares, [model.variances for model in models], 1)
    means = [(blocks[i], float(np.mean(averages[blocks[i]]))) for i in averaged]
    smoothing = [empty, *(bias_of(block, prior) for block, prior in fixed if prior > 0.0)]
    counted = [(block, prior * (block.stop - block.start)) for block, prior in fixed + means]
    bound = [empty, *(bias_of(block, prior) for block, prior in counted if prior > 0.0)]
    if len(models) > 1:
        smoothing.append(expanded(_root(spread)))
    root = _root(turned)
    turn = np.eye(size) if problem.noisy is None else _without_noise(total, kept, inverse, n_controls)
    turn = turn[n_controls:]
    return SecondStage(
        coefficients=turn @ coefficients,
        roots={
            "sampling": turn[:, kept] @ root[:n_kept],
            SMOOTHING: turn @ np.hstack(smoothing),
            BOUND: turn @ np.hstack(bound),
            STRENGTH: turn[:, kept] @ root[n_kept:],
        },
        ridges=penalties.ridges,
        gains=penalties.gains,
        priors=priors,
        left_out=_left_out_outcomes(problem, LeftOut.of(np.flatnonzero(kept), mean, inverse, size, grams)),
        probabilities={
            i: float(sum(model.probability for model in models if model.variances[blocks[i]].any())) for i in averaged
        },
    )


def _priors(
    penalties: Penalties, blocks: Sequence[slice], units: Floats | None, sizes: Sizes | None, min_gain: float
) -> Floats:
    """The prior variances of the blocks' coefficients, also of those that gain something but too little to enter."""
    priors = penalties.variance / penalties.ridges
    if np.isinf(min_gain):
        return priors
    for i, evidence in penalties.left_out.items():
        if units is None:
            priors[i] = evidence.likely(penalties.variance)
        else:
            seen = None if sizes is None else partial(sizes.likelihoods, blocks[i])
            priors[i] = evidence.expected(penalties.variance, float(units[i]), seen)
    return priors


class _Model(NamedTuple):
    """A combination of priors: its probability, the ridge of each column, and prior variances of averaged columns."""

    probability: float
    ridges: Floats
    variances: Floats


def _models(
    gram: Floats,
    moments: Floats,
    penalties: Penalties,
    ridges: Floats,
    averaged: Sequence[tuple[slice, Sequence[Shape]]],
    deviation: float,
    sizes: Sizes | None,
) -> list[_Model]:
    """The combinations of priors of the averaged blocks that the data make likely, with the ridges of all columns."""
    own = np.concatenate([np.arange(block.start, block.stop) for block, _ in averaged])
    priors = [priors_of(shapes, deviation) for _, shapes in averaged]
    evidence = Evidence.of(gram, moments, penalties.covariance, ridges, own)
    models = []
    for one in average_priors(evidence, priors, None if sizes is None else sizes.joint(own, deviation)):
        variances, by_column = np.zeros(len(moments)), ridges.copy()
        variances[own] = one.allowed
        with np.errstate(divide="ignore"):
            by_column[own] = penalties.variance / one.expected
        models.append(_Model(one.probability, by_column, variances))
    return models


def _without_noise(total: Floats, kept: NDArray[np.bool_], inverse: Floats, first: int) -> Floats:
    """Turns the coefficients of all columns into those with the regressor in the place of its noisy version."""
    size = len(kept)
    calibration = np.zeros(size)
    calibration[kept] = inverse @ total[:size, size + 1][kept]
    reliability = min(max(float(calibration[first]), _MIN_RELIABILITY), 1.0)
    turn = np.eye(size)
    turn[:, first] -= calibration / reliability
    turn[first, first] = 1.0 / reliability
    return turn


def _left_out_outcomes(problem: Regression, left_out: LeftOut) -> Floats:
    """Each row's outcome by coefficients of the other rows or folds, without the residuals' part."""
    sampling = problem.sampling
    predicted = np.empty(sampling.n_rows)
    for i, fold in enumerate(sampling.folds):
        for piece in sampling.pieces(fold):
            values = left_out.predict(problem.columns(piece), problem.outcomes(piece), i, problem.first.n_controls)
            predicted[piece] = values / sampling.root(piece)[:, 0]
    return predicted


def _root(covariance: Floats) -> Floats:
    """As few columns R as have the covariance R Rᵀ."""
    values, vectors = np.linalg.eigh(covariance)
    there = values > 1e-12 * max(values[-1], _TINY)
    return np.asarray(vectors[:, there] * np.sqrt(values[there]), np.float64)
