r"""The second stage of penalised instrumental variables: its coefficients, and their robust covariance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgmiv.covariance import Errors, left_out_score, mended, tell_mended
from bgmiv.sieve.control import Observed, Sizes
from bgmiv.sieve.first_stage import FirstStage, leave_one_out_errors, one_thread, slices_of, without_folds
from bgmiv.sieve.penalties import (
    Evidence,
    Penalties,
    Posterior,
    Shape,
    SizeOf,
    average_priors,
    choose_penalties,
    penalised_solve,
    priors_of,
    ridges_of,
)
from bgmiv.sieve.sampling import PIECE, BlocksAt, PartsAt, Sampling

__all__ = ["Regression", "SecondStage", "second_stage"]

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
        sampling, smoothing: roots R `(k, r)` of two parts R Rᵀ of their covariance: the robust one; and what the priors
            leave open, the bias of penalties and the spread between the coefficients under different priors.
        strength: `(k, r)`, with the columns of `sampling`: by how much these scores change where the slope of the
            treatment's line is one unit larger, which is the noise of the first stage.
        bound: the root of the bias of penalties with each block's prior variance times its number of coefficients, so
            that the length of a row is the largest bias of coefficients that are as long as their prior says.
        penalties: of the penalised blocks.
        left_out: `(n,)` each row's outcome as predicted by coefficients of the other rows or folds, the residuals' part
            aside.
        probabilities: by averaged block, the posterior probability that it has a function.
    """

    coefficients: Floats
    sampling: Floats
    smoothing: Floats
    strength: Floats
    bound: Floats
    penalties: Penalties
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
        variances: by penalised block, the variance of its function, at the observed treatment, for coefficients of
            variance 1; None where nothing is known of how large functions can be.
        observed: the regression on the observed treatment, which tells how large functions are; None for nothing.
    """

    predicted_at: BlocksAt
    slopes_at: Callable[[Any, Floats], Floats]
    outcome: Floats
    first: FirstStage
    sampling: Sampling
    noisy: Floats | None = None
    variances: Floats | None = None
    observed: Observed | None = None

    def columns(self, rows: Any) -> list[Floats]:
        """The residuals, then the predicted regressors, times the roots of weights."""
        controls = self.first.residuals[rows, : self.first.n_controls]
        root = self.sampling.root(rows)
        return [block * root for block in (controls, *self.predicted_at(rows))]

    def covariance(
        self,
        coefficients: Floats,
        kept: NDArray[np.bool_],
        pieces: Sequence[Any],
        share: float = 1.0,
        inverse: Floats | None = None,
        correction: float = 1.0,
        *,
        strength: bool = False,
    ) -> tuple[Floats, float]:
        r"""The robust covariance of $\sum_i \phi_i \varepsilon_i$, and the variance of an error ε.

        The first stage's errors enter: with its regressors $z_i$, the inverse Q of their penalised Gram matrix, and the
        derivative $\gamma - s_i$ of $\varepsilon_i$ by $\hat f_i$, row i contributes $\phi_i \varepsilon_i +
        \sum_j \phi_j (\gamma - s_j) z_j^\top Q z_i \hat u_i$. For a linear model these are the scores of two-stage
        least squares.

        Args:
            coefficients: of all columns.
            kept: which columns are asked about.
            pieces: the rows.
            share: how many rows each of these stands for.
            inverse: that of the penalised Gram matrix of the columns asked about, for a covariance with the corrections
                of clusters, and the jackknife where it is asked for.
            correction: n / (n - k), by which all but the jackknife is multiplied.
            strength: also of the derivatives of these scores by the slope of the treatment's line,
                $-\sum_j \phi_j z_j^\top Q z_i \hat u_i$; they come after the others.
        """
        first, root = self.first, self.sampling.root
        gamma = np.zeros(first.predicted.shape[1])
        gamma[: first.n_controls] = coefficients[: first.n_controls]
        n_kept = int(kept.sum())
        crossed = [np.zeros((n_kept, int(used.sum()))) for used in first.kept]
        by_slope = np.zeros((n_kept, int(first.kept[0].sum()) if first.kept else 0))
        square, count = 0.0, 0
        for rows in pieces:
            columns, z = np.hstack(self.columns(rows)), np.hstack(first.regressors(rows)) * root(rows)
            change = gamma - self.slopes_at(rows, coefficients[first.n_controls :])
            for k, used in enumerate(first.kept):
                crossed[k] += share * (columns[:, kept] * change[:, [k]]).T @ z[:, used]
            if first.kept and strength:
                by_slope -= share * columns[:, kept].T @ z[:, first.kept[0]]
            square += float(np.sum((self.outcome[rows] * root(rows)[:, 0] - columns @ coefficients) ** 2))
            count += len(columns)
        passed = [cross @ inverse for cross, inverse in zip(crossed, first.inverses, strict=True)]
        slope_passed = by_slope @ first.inverses[0] if first.kept else by_slope

        def parts_at(rows: Any) -> list[tuple[Floats, Floats]]:
            columns, z = np.hstack(self.columns(rows)), np.hstack(first.regressors(rows)) * root(rows)
            residuals = first.residuals[rows] * root(rows)
            parts = [(columns[:, kept], self.outcome[rows] * root(rows)[:, 0] - columns @ coefficients)]
            for k, used in enumerate(first.kept):
                parts.append((z[:, used] @ passed[k].T, residuals[:, k]))
            if not strength:
                return parts
            nothing = np.zeros_like(parts[0][0])
            wide = [(np.hstack([part, nothing]), left) for part, left in parts]
            if first.kept:
                wide[1] = (np.hstack([parts[1][0], z[:, first.kept[0]] @ slope_passed.T]), residuals[:, 0])
            return wide

        if inverse is None or not self.sampling.assumed.ways:
            return share * correction * self.sampling.covariance(parts_at, pieces), square / count
        moves = [crossed, [by_slope, *(0.0 * cross for cross in crossed[1:])]][: 1 + strength]
        return self._clustered(parts_at, moves, inverse, correction), square / count

    def _clustered(self, parts_at: PartsAt, moves: list[list[Floats]], inverse: Floats, correction: float) -> Floats:
        """The covariance of the sum of scores with the corrections of clusters: CR1, or the jackknife of both stages.

        Without a cluster the first stage's coefficients change, which moves the scores, and then those of the second.
        `moves` has, for the scores and for their derivatives if asked for, how each target's coefficients move them.
        """
        first, n = self.first, self.sampling.n_rows
        size, width = len(inverse), len(moves) * len(inverse)
        middle = np.zeros((width, width))
        for way in self.sampling.assumed.ways:
            scores = np.zeros((way.n_clusters, width))
            if not way.jackknife:
                plain = self.sampling._replace(errors=Errors(ways=(way._replace(sign=1.0),)))
                pieces = [piece for fold in self.sampling.folds for piece in self.sampling.pieces(fold)]
                factor = way.n_clusters / (way.n_clusters - 1) * (n - 1) / n * correction
                middle += way.sign * factor * plain.covariance(parts_at, pieces)
                continue
            for g in range(way.n_clusters):
                own = np.flatnonzero(way.codes == g)
                gram, score = np.zeros_like(inverse), np.zeros((size, len(moves)))
                sums = [(np.zeros((len(each), len(each))), np.zeros(len(each))) for each in first.inverses]
                for start in range(0, len(own), PIECE):
                    rows = own[start : start + PIECE]
                    (columns, residuals), *_ = parts_at(rows)
                    gram += columns[:, :size].T @ columns[:, :size]
                    score[:, 0] += columns[:, :size].T @ residuals
                    z = np.hstack(first.regressors(rows)) * self.sampling.root(rows)
                    left = first.residuals[rows] * self.sampling.root(rows)
                    for k, used in enumerate(first.kept):
                        sums[k][0][:] += z[:, used].T @ z[:, used]
                        sums[k][1][:] += z[:, used].T @ left[:, k]
                for k, (own_gram, own_score) in enumerate(sums):
                    moved = first.inverses[k] @ left_out_score(own_gram, own_score, first.inverses[k])
                    for part, of_targets in enumerate(moves):
                        score[:, part] += of_targets[k] @ moved
                scores[g] = left_out_score(gram, score, inverse).T.ravel()
            middle += way.sign * (way.n_clusters - 1) / way.n_clusters * (scores.T @ scores)
        if len(self.sampling.assumed.ways) == 1:
            return middle
        positive, was_mended = mended(middle)
        if was_mended:
            tell_mended()
        return positive


@one_thread()
def second_stage(
    problem: Regression, n_linear: int, min_gain: float, averaged: Mapping[int, Sequence[Shape]] | None = None
) -> SecondStage:
    r"""Ridge regression of the outcome on predicted regressors, with its robust covariance.

    $\hat\beta = (\Phi^\top \Phi + \Lambda)^{-1} \Phi^\top y = B \Phi^\top y$ has the covariance $B M B$, with M that
    of :meth:`Regression.covariance` times n / (n - k), where k counts the effective parameters, or the jackknife's over
    clusters. A block b, kept or left
    out, whose coefficients have the prior variance $\tau_b$ adds the bias $(B \Phi^\top \Phi_b - I_b) \beta_b$, whose
    covariance the prior gives: both together cover a smooth function on average over its points (Nychka 1988). A
    block that gains too little to enter has the $\tau_b$ of the largest likelihood: that it was left out is part of the
    uncertainty.

    The priors of some blocks are averaged over instead of chosen (:func:`~bgmiv.sieve.penalties.average_priors`): where
    the data do not tell whether there is such a function, or how large it is, the coefficients are between those with
    and without it, and their covariance is the mean of the conditional ones and the spread between them.

    With a noisy version m of a regressor f, m has too small a coefficient, by its factor a in the regression of f on
    all columns, where the others have the coefficients b. So f gets $d = \beta_m / a$, and $d b$ is taken from the
    others: two-stage least squares with m as the instrument of f.

    Args:
        problem: the regression.
        n_linear: how many of its first blocks are not penalised.
        min_gain: as in :func:`~bgmiv.sieve.penalties.choose_penalties`.
        averaged: the penalised blocks whose priors are averaged over, and their shapes
            (:func:`~bgmiv.sieve.penalties.priors_of`); none if `min_gain` is infinite.
    """
    sampling = problem.sampling
    pieces = [piece for fold in sampling.folds for piece in sampling.pieces(fold)]
    sums = []
    for fold in sampling.folds:
        products: Any = 0.0
        for piece in sampling.pieces(fold):
            targets = [problem.outcome] if problem.noisy is None else [problem.outcome, problem.noisy]
            right = np.stack([target[piece] for target in targets], axis=1) * sampling.root(piece)
            columns = np.hstack([*problem.columns(piece), right])
            products = products + columns.T @ columns
        sums.append(products)
    # The first block holds the residuals.
    edges = slices_of(problem.columns(slice(0, 2)))
    blocks, size = edges[1 + n_linear :], edges[-1].stop
    total: Floats = sum(sums)
    gram, moments = total[:size, :size], total[:size, size]
    some = sampling.some_rows()

    def noise(coefficients: Floats) -> tuple[Floats, float]:
        return problem.covariance(coefficients, np.ones(size, bool), [some], sampling.n_rows / len(some))

    none = np.full(len(blocks), np.inf)
    unit = _unexplained(total[: size + 1, : size + 1], blocks, none)
    units = None if problem.variances is None else unit / np.maximum(problem.variances, _TINY)
    chosen = {} if averaged is None or not np.isfinite(min_gain) else dict(averaged)
    n_controls, observed = problem.first.n_controls, problem.observed
    sizes: Sizes | None = None

    def size_of(of_blocks: Floats) -> SizeOf | None:
        """What the regression on the observed treatment says, in which averaged blocks have no penalty."""
        nonlocal sizes
        known = of_blocks.copy()
        known[list(chosen)] = 0.0
        if observed is not None:
            sizes = observed.fit(problem.outcome, sampling, ridges_of(blocks, known, size)[n_controls:])
        if sizes is None:
            return None
        own = [slice(block.start - n_controls, block.stop - n_controls) for block in blocks]
        return partial(_block_sizes, sizes, own)

    penalties = choose_penalties(gram, moments, blocks, noise, min_gain, units=units, sizes=size_of)
    ridges = ridges_of(blocks, penalties.ridges, size)
    without = penalties.ridges.copy()
    without[list(chosen)] = np.inf
    deviation = float(np.sqrt(_unexplained(total[: size + 1, : size + 1], blocks, without)))
    shapes = [(blocks[i], of_block) for i, of_block in chosen.items()]
    joint = None
    if sizes is not None and shapes:
        places = _places([block for block, _ in shapes]) - n_controls
        joint = sizes.joint(places, deviation)
    models = _models(gram, moments, noise, ridges, shapes, deviation, joint)
    kept = np.any([np.isfinite(model.ridges) for model in models], axis=0)
    n_kept = int(kept.sum())
    inner = gram[np.ix_(kept, kept)]
    inverses = [penalised_solve(inner, np.eye(n_kept), model.ridges[kept]) for model in models]
    each = [inverse @ moments[kept] for inverse in inverses]
    shares = np.array([model.probability for model in models])
    mean = np.tensordot(shares, each, 1)
    inverse = np.tensordot(shares, inverses, 1)
    coefficients = np.zeros(size)
    coefficients[kept] = mean
    of_sieve = slice(n_controls, None)
    effective = float(np.sum((inverse * inner)[kept[:n_controls].sum() :]))
    correction = sampling.n_rows / max(sampling.n_rows - effective, 1.0)
    middle, _ = problem.covariance(coefficients, kept, pieces, 1.0, inverse, correction, strength=True)
    turned = np.zeros_like(middle)
    prior_part = np.zeros((n_kept, n_kept))
    for share, own, beta, model in zip(shares, inverses, each, models, strict=True):
        both = np.kron(np.eye(2), own)
        turned += share * both @ middle @ both.T
        prior_part += share * np.outer(beta - mean, beta - mean)
        if model.varied.any():
            # What a coefficient of each averaged column adds to the expected estimates, less itself.
            moved = own @ inner[:, model.varied[kept]] - np.eye(n_kept)[:, model.varied[kept]]
            prior_part += share * correction * (moved * model.variances[model.varied]) @ moved.T
    scores = _root(turned)

    def bias_of(block: slice, prior: float) -> Floats:
        weights = np.zeros((size, block.stop - block.start))
        weights[kept] = inverse @ gram[kept, block]
        weights[block] -= np.eye(block.stop - block.start)
        return weights * np.sqrt(max(prior, 0.0) * correction)

    fixed = [(blocks[i], prior) for i, prior in enumerate(penalties.priors) if prior > 0.0 and i not in chosen]
    shrunk = np.zeros((size, 0))
    if fixed:
        shrunk = np.hstack([bias_of(block, prior) for block, prior in fixed])
    spread = np.zeros((size, 0))
    if len(models) > 1:
        found = _root(prior_part)
        spread = np.zeros((size, found.shape[1]))
        spread[kept] = found
    means = [(block, float(np.mean(_mean_prior(models)[block]))) for i, block in enumerate(blocks) if i in chosen]
    largest = [bias_of(block, prior * (block.stop - block.start)) for block, prior in (*fixed, *means) if prior > 0.0]
    left_out = _left_out_outcomes(problem, sums, kept, inverse, mean, size)
    turn = np.eye(size)
    if problem.noisy is not None:
        m = problem.first.n_controls
        calibration = np.zeros(size)
        calibration[kept] = inverse @ total[:size, size + 1][kept]
        reliability = min(max(float(calibration[m]), _MIN_RELIABILITY), 1.0)
        turn[:, m] -= calibration / reliability
        turn[m, m] = 1.0 / reliability
    turn = turn[of_sieve]
    return SecondStage(
        coefficients=turn @ coefficients,
        sampling=turn[:, kept] @ scores[:n_kept],
        smoothing=turn @ np.hstack([shrunk, spread]),
        strength=turn[:, kept] @ scores[n_kept:],
        bound=turn @ np.hstack([np.zeros((size, 0)), *largest]),
        penalties=penalties,
        left_out=left_out,
        probabilities={
            i: float(sum(model.probability for model in models if model.variances[blocks[i]].any())) for i in chosen
        },
    )


class _Model(NamedTuple):
    """A combination of priors: its probability, the ridge of each column, and prior variances of averaged columns."""

    probability: float
    ridges: Floats
    variances: Floats

    @property
    def varied(self) -> NDArray[np.bool_]:
        """The averaged columns that have a function here."""
        return self.variances > 0.0


def _unexplained(total: Floats, blocks: Sequence[slice], ridges: Floats) -> float:
    """What columns, with the ridges of blocks, leave of the outcome's mean square, from their Gram matrix with it."""
    gram, moments, square = total[:-1, :-1], total[:-1, -1], total[-1, -1]
    coefficients = penalised_solve(gram, moments, ridges_of(blocks, ridges, len(moments)))
    left = square - 2.0 * coefficients @ moments + coefficients @ gram @ coefficients
    share = float(left) / square
    return share if share > _ROUNDING else 0.0


def _models(
    gram: Floats,
    moments: Floats,
    noise: Callable[[Floats], tuple[Floats, float]],
    ridges: Floats,
    averaged: Sequence[tuple[slice, Sequence[Shape]]],
    deviation: float,
    joint: Callable[[Floats], Posterior] | None,
) -> list[_Model]:
    """The combinations of priors of the averaged blocks that the data make likely, with the ridges of all columns."""
    size = len(moments)
    if not averaged:
        return [_Model(1.0, ridges, np.zeros(size))]
    covariance, variance = noise(penalised_solve(gram, moments, ridges))
    priors = [priors_of(shapes, deviation) for _, shapes in averaged]
    found = []
    own = _places([block for block, _ in averaged])
    evidence = Evidence.of(gram, moments, covariance, ridges, own)
    for one in average_priors(evidence, priors, joint):
        variances, penalties = np.zeros(size), ridges.copy()
        variances[own] = one.allowed
        with np.errstate(divide="ignore"):
            penalties[own] = variance / one.expected
        found.append(_Model(one.probability, penalties, variances))
    return found


def _block_sizes(sizes: Sizes, blocks: Sequence[slice], block: int, variances: Floats) -> Floats:
    return sizes.block(blocks[block], variances)


def _places(blocks: Sequence[slice]) -> NDArray[np.intp]:
    """The columns of blocks."""
    return np.concatenate([np.arange(block.start, block.stop) for block in blocks])


def _mean_prior(models: Sequence[_Model]) -> Floats:
    return np.asarray(sum(model.probability * model.variances for model in models), np.float64)


def _left_out_outcomes(
    problem: Regression, sums: Sequence[Floats], kept: NDArray[np.bool_], inverse: Floats, mean: Floats, target: int
) -> Floats:
    """Each row's outcome by coefficients of the other rows or folds, without the residuals' part."""
    sampling, used = problem.sampling, np.flatnonzero(kept)
    n_controls = int(kept[: problem.first.n_controls].sum())
    folds = without_folds(inverse, mean, used, target, sums)
    found = np.empty(sampling.n_rows)
    for i, fold in enumerate(sampling.folds):
        for piece in sampling.pieces(fold):
            root = sampling.root(piece)
            columns = np.hstack(problem.columns(piece))[:, used]
            own = columns[:, n_controls:]
            if sampling.leave_one_out:
                errors = problem.outcome[piece] * root[:, 0] - columns @ mean
                shift = leave_one_out_errors(columns, inverse, errors)
                values = own @ mean[n_controls:] - np.sum((own @ inverse[n_controls:]) * columns, axis=1) * shift
            else:
                values = own @ folds[i][n_controls:]
            found[piece] = values / root[:, 0]
    return found


def _root(covariance: Floats) -> Floats:
    """As few columns R as have the covariance R Rᵀ."""
    values, vectors = np.linalg.eigh(covariance)
    there = values > 1e-12 * max(values[-1], np.finfo(float).tiny)
    return np.asarray(vectors[:, there] * np.sqrt(values[there]), np.float64)
