r"""The second stage of penalised instrumental variables: its coefficients, and their robust covariance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bgmiv.arrays import TINY, Floats, Integers
from bgmiv.covariance import Errors, left_out_score, mended
from bgmiv.intervals import BOUND, SMOOTHING, STRENGTH
from bgmiv.sieve.control import Observed
from bgmiv.sieve.first_stage import FirstStage, LeftOut, left_out_errors, one_thread, slices_of
from bgmiv.sieve.penalties import (
    Averaged,
    BlockEvidence,
    Evidence,
    Penalties,
    Prior,
    average_priors,
    choose_penalties,
    penalised_solve,
    priors_of,
    ridges_of,
)
from bgmiv.sieve.sampling import PIECE, BlocksAt, Sampling, Scores

__all__ = ["FunctionSizes", "Regression", "SecondStage", "second_stage"]


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
        left_out: `(n,)` each row's outcome as predicted by coefficients of the other rows or folds, the residuals' part
            aside.
        probabilities: by averaged block, the posterior probability that it has a function.
    """

    coefficients: Floats
    roots: dict[str, Floats]
    ridges: Floats
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
        n_controls: how many of the first stage's residuals, the first ones, are regressors.
        noisy: if given, the first predicted column m is a noisy version of this regressor f `(n,)`, which contains the
            rows' own errors (:func:`second_stage`).
    """

    predicted_at: BlocksAt
    slopes_at: Callable[[Any, Floats], Floats]
    outcome: Floats
    first: FirstStage
    sampling: Sampling
    n_controls: int = 0
    noisy: Floats | None = None

    def blocks(self, rows: Any) -> list[Floats]:
        """The predicted regressors, the residuals, the outcome, and the regressor that has a noisy version."""
        targets = [self.outcome] if self.noisy is None else [self.outcome, self.noisy]
        residuals = self.first.residuals[rows, : self.n_controls]
        return [*self.predicted_at(rows), residuals, *(target[rows, None] for target in targets)]

    def piece(self, rows: Any) -> _Piece:
        """Some rows."""
        columns, regressors = (self.sampling.columns(blocks, rows) for blocks in (self.blocks, self.first.regressors))
        return _Piece(rows, columns, regressors, self.first.residuals[rows] * self.sampling.root(rows))


class _Piece(NamedTuple):
    """Some rows of a regression, times the roots of their weights.

    Attributes:
        rows: which.
        columns: regressors, outcome, and the regressor that has a noisy version.
        instruments: regressors of the first stage.
        residuals: of the first stage, `(n, k)`.
    """

    rows: Any
    columns: Floats
    instruments: Floats
    residuals: Floats

    def errors(self, coefficients: Floats) -> Floats:
        """What these coefficients leave of the outcome."""
        size = len(coefficients)
        return self.columns[:, size] - self.columns[:, :size] @ coefficients


_Pieces = Callable[[], Iterable[_Piece]]


class FunctionSizes(NamedTuple):
    """What is known of how large the functions of penalised blocks are.

    Attributes:
        variances: by block, the variance of its function, at the observed treatment, for coefficients of variance 1.
        averaged: the blocks whose priors are averaged over, and their shapes.
        observed: the regression on the observed treatment, which tells how large functions are; None for nothing.
    """

    variances: Floats
    averaged: Mapping[int, Sequence[Prior]]
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
    kept: Integers
    pieces: _Pieces
    share: float
    width: int
    moves: list[Floats]
    variance: float

    @classmethod
    def of(
        cls, problem: Regression, coefficients: Floats, kept: Integers, pieces: _Pieces, *, strength: bool
    ) -> _Scores:
        """From the rows of some pieces."""
        first, n_terms, size = problem.first, len(coefficients) - problem.n_controls, len(kept)
        gamma = np.zeros(first.predicted.shape[1])
        gamma[: problem.n_controls] = coefficients[n_terms:]
        width = 2 * size if strength else size
        moves = [np.zeros((width, len(used))) for used in first.kept]
        square, count = 0.0, 0
        for piece in pieces():
            columns = piece.columns[:, kept]
            change = gamma - problem.slopes_at(piece.rows, coefficients[:n_terms])
            # A function without coefficients moves nothing.
            for k, used in enumerate(first.kept):
                if change[:, k].any():
                    moves[k][:size] += columns.T @ (piece.instruments[:, used] * change[:, [k]])
            if strength and moves:
                moves[0][size:] -= columns.T @ piece.instruments[:, first.kept[0]]
            square += np.sum(piece.errors(coefficients) ** 2)
            count += len(columns)
        share = problem.sampling.n_rows / count
        moves = [share * each for each in moves]
        return cls(problem, coefficients, kept, pieces, share, width, moves, square / count)

    def covariance(self, errors: Errors | None = None) -> Floats:
        """Of the sum over rows, without corrections for small samples."""
        first, sampling = self.problem.first, self.problem.sampling
        passed = {k: moves @ first.inverses[k] for k, moves in enumerate(self.moves) if moves.any()}
        if errors is not None:
            sampling = sampling._replace(errors=errors)

        def scores() -> Iterator[Scores]:
            for piece in self.pieces():
                own = np.zeros((len(piece.columns), self.width))
                own[:, : len(self.kept)] = piece.columns[:, self.kept]
                left = piece.errors(self.coefficients)
                instruments = {k: piece.instruments[:, first.kept[k]] for k in passed}
                if sampling.errors.classical:
                    moved = [(columns @ passed[k].T, piece.residuals[:, k]) for k, columns in instruments.items()]
                    yield piece.rows, [(own, left), *moved]
                    continue
                # The sum of the parts by one product, which is most of the work.
                own *= left[:, None]
                if passed:
                    weighted = [columns * piece.residuals[:, [k]] for k, columns in instruments.items()]
                    own += np.hstack(weighted) @ np.hstack(list(passed.values())).T
                yield piece.rows, [(own, np.ones(len(own)))]

        return self.share * sampling.covariance(scores())

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
                middle = middle + factor * self.covariance(Errors(ways=(way,)))
        return mended(errors, middle)

    def _without(self, cluster: Integers, inverse: Floats) -> Floats:
        """By how much the scores change without some rows.

        The first stage's coefficients change, which moves the scores, and then those of the second.
        """
        first, size = self.problem.first, len(inverse)
        gram, score = np.zeros_like(inverse), np.zeros(2 * size)
        grams = [np.zeros_like(each) for each in first.inverses]
        sums = [np.zeros(len(each)) for each in first.inverses]
        for rows in np.array_split(cluster, range(PIECE, len(cluster), PIECE)):
            piece = self.problem.piece(rows)
            columns = piece.columns[:, self.kept]
            gram += columns.T @ columns
            score[:size] += columns.T @ piece.errors(self.coefficients)
            for k, used in enumerate(first.kept):
                z = piece.instruments[:, used]
                grams[k] += z.T @ z
                sums[k] += z.T @ piece.residuals[:, k]
        for k, own in enumerate(first.inverses):
            score += self.moves[k] @ (own @ left_out_score(grams[k], sums[k], own))
        return left_out_score(gram, score.reshape(2, size).T, inverse).T.ravel()


@one_thread
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
        min_gain: as in :func:`~bgmiv.sieve.penalties.choose_penalties`.
        known: how large functions are; None: every prior variance is possible, and none is averaged over.
    """
    sampling = problem.sampling
    terms = slices_of(problem.predicted_at(slice(0, 2)))
    blocks, n_terms = terms[n_unpenalised:], terms[-1].stop
    size = n_terms + problem.n_controls
    grams = sampling.grams(problem.blocks)
    total = grams.sum(axis=0)
    gram, moments = total[:size, :size], total[:size, size]
    some = sampling.some_rows()
    sample = [problem.piece(some)]
    penalties, averaged, priors, shares, ridges, variances = _choose(
        problem, total[: size + 1, : size + 1], blocks, sample, min_gain, known
    )
    kept = np.flatnonzero(np.isfinite(ridges).any(axis=0))
    inner, identity = gram[np.ix_(kept, kept)], np.eye(len(kept))
    inverses = [penalised_solve(inner, identity, of_model[kept]) for of_model in ridges]
    each = [inverse @ moments[kept] for inverse in inverses]
    mean, inverse = np.tensordot(shares, each, 1), np.tensordot(shares, inverses, 1)
    coefficients = np.zeros(size)
    coefficients[kept] = mean
    effective = np.sum((inverse * inner)[kept < n_terms])
    correction = sampling.n_rows / max(sampling.n_rows - effective, 1.0)

    def pieces() -> Iterable[_Piece]:
        return sample if len(some) == sampling.n_rows else map(problem.piece, sampling.pieces())

    middle = _Scores.of(problem, coefficients, kept, pieces, strength=True).corrected(inverse, correction)
    turned, spread = np.zeros_like(middle), np.zeros_like(inner)
    for share, of_model, beta, variance in zip(shares, inverses, each, variances[:, kept], strict=True):
        both = np.kron(np.eye(2), of_model)
        turned += share * both @ middle @ both.T
        spread += share * np.outer(beta - mean, beta - mean)
        varied = variance > 0.0
        # What a coefficient of each averaged column adds to the expected estimates, less itself.
        moved = of_model @ inner[:, varied] - identity[:, varied]
        spread += share * correction * (moved * variance[varied]) @ moved.T
    # The same of each column, with the averaged inverse.
    bias = -np.eye(size)
    bias[kept] += inverse @ gram[kept]

    def biases(of_blocks: Sequence[tuple[slice, float]]) -> list[Floats]:
        return [bias[:, :0], *(bias[:, block] * np.sqrt(prior * correction) for block, prior in of_blocks if prior > 0)]

    fixed = [(block, priors[i]) for i, block in enumerate(blocks) if i not in averaged]
    means = [(blocks[i], np.mean(shares @ variances[:, blocks[i]])) for i in averaged]
    smoothing = biases(fixed)
    if len(shares) > 1:
        smoothing.append(np.eye(size)[:, kept] @ _root(spread))
    bound = biases([(block, prior * (block.stop - block.start)) for block, prior in fixed + means])
    turn = np.eye(size)
    if problem.noisy is not None:
        calibration = np.zeros(size)
        calibration[kept] = inverse @ total[kept, size + 1]
        reliability = min(max(calibration[0], _MIN_RELIABILITY), 1.0)
        turn[:, 0] -= calibration / reliability
        turn[0, 0] = 1.0 / reliability
    turn, root = turn[:n_terms], _root(turned)
    left_out = LeftOut.of(kept, mean, inverse, size, grams)
    n_controls = int(np.sum(kept >= n_terms))
    errors = left_out_errors([left_out], partial(sampling.columns, problem.blocks), sampling, n_controls)
    return SecondStage(
        coefficients=turn @ coefficients,
        roots={
            "sampling": turn[:, kept] @ root[: len(kept)],
            SMOOTHING: turn @ np.hstack(smoothing),
            BOUND: turn @ np.hstack(bound),
            STRENGTH: turn[:, kept] @ root[len(kept) :],
        },
        ridges=penalties.ridges,
        left_out=problem.outcome - errors[:, 0],
        probabilities={i: float(shares @ variances[:, blocks[i]].any(axis=1)) for i in averaged},
    )


class _Choice(NamedTuple):
    """The penalties of a regression, and the combinations of priors that its estimate averages over.

    Attributes:
        penalties: of the blocks.
        averaged: the blocks whose priors are averaged over.
        priors: by block, the prior variance of its coefficients, also of one that was left out.
        shares: `(m,)` the probabilities of the combinations.
        ridges: `(m, p)` of all columns.
        variances: `(m, p)` for which intervals allow, of the averaged columns.
    """

    penalties: Penalties
    averaged: list[int]
    priors: Floats
    shares: Floats
    ridges: Floats
    variances: Floats


def _choose(
    problem: Regression,
    total: Floats,
    blocks: Sequence[slice],
    sample: Sequence[_Piece],
    min_gain: float,
    known: FunctionSizes | None,
) -> _Choice:
    """The penalties of blocks, and the priors of those that are averaged over.

    Args:
        problem: the regression.
        total: the Gram matrix of all columns and the outcome.
        blocks: the penalised columns.
        sample: rows that stand for all.
        min_gain, known: as in :func:`second_stage`.
    """
    gram, moments, square = total[:-1, :-1], total[:-1, -1], total[-1, -1]
    every = np.arange(len(moments))
    unpenalised = np.where(np.diag(gram) == 0.0, np.inf, 0.0)

    def noise(coefficients: Floats) -> tuple[Floats, float]:
        scores = _Scores.of(problem, coefficients, every, lambda: sample, strength=False)
        return scores.covariance(), scores.variance

    def unexplained(ridges: Floats) -> float:
        """What columns with the ridges of blocks leave of the outcome's mean square."""
        coefficients = penalised_solve(gram, moments, ridges_of(blocks, ridges, unpenalised))
        left = square - 2.0 * coefficients @ moments + coefficients @ gram @ coefficients
        share = left / square
        return share if share > _ROUNDING else 0.0

    units, averaged = np.full(len(blocks), np.inf), {}
    if known is not None:
        units = unexplained(np.full(len(blocks), np.inf)) / np.maximum(known.variances, TINY)
        averaged = dict(known.averaged)
    penalties = choose_penalties(gram, moments, blocks, noise, min_gain, others=unpenalised, units=units)
    observed, sizes = None if known is None else known.observed, None
    if observed is not None:
        # Averaged blocks have no penalty in it.
        of_blocks = penalties.ridges.copy()
        of_blocks[list(averaged)] = 0.0
        by_column = ridges_of(blocks, of_blocks, unpenalised)[: len(moments) - problem.n_controls]
        sizes = observed.fit(problem.outcome, problem.sampling, by_column)
    priors = penalties.variance / penalties.ridges
    for i, evidence in penalties.left_out.items():
        # Also of those that gain something but too little to enter.
        if known is None:
            priors[i] = evidence.likely(penalties.variance)
        else:
            seen = None if sizes is None else BlockEvidence.of(sizes, blocks[i])
            priors[i] = evidence.expected(penalties.variance, units[i], seen)
    models = Averaged(np.ones(1), np.zeros((1, 0)), np.zeros((1, 0)))
    own = np.concatenate([every[:0], *(every[blocks[i]] for i in averaged)])
    if averaged:
        without = penalties.ridges.copy()
        without[list(averaged)] = np.inf
        deviation = np.sqrt(unexplained(without))
        each_block = [priors_of(shapes, deviation) for shapes in averaged.values()]
        joint = None if observed is None or sizes is None else observed.joint(sizes, own, deviation)
        models = average_priors(Evidence.of(penalties.moments, own), each_block, joint)
    ridges = np.tile(penalties.moments.ridges, (len(models.shares), 1))
    variances = np.zeros_like(ridges)
    variances[:, own] = models.allowed
    with np.errstate(divide="ignore"):
        ridges[:, own] = penalties.variance / models.expected
    return _Choice(penalties, list(averaged), priors, models.shares, ridges, variances)


def _root(covariance: Floats) -> Floats:
    """As few columns R as have the covariance R Rᵀ."""
    values, vectors = np.linalg.eigh(covariance)
    there = values > 1e-12 * max(values[-1], TINY)
    return vectors[:, there] * np.sqrt(values[there])
