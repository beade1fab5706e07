r"""The two stages of penalised instrumental variables, at a cost linear in the rows.

Regressors are asked for by rows, and only their matrices of products are kept, so that a hundred thousand rows of some
hundreds of columns need little memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from threadpoolctl import threadpool_limits

from bgmiv.sieve.penalties import Penalties, choose_penalties, penalised_solve, ridges_of

__all__ = ["FirstStage", "Regression", "Sampling", "SecondStage", "first_stage", "second_stage"]

Floats = NDArray[np.float64]
BlocksAt = Callable[[Any], list[Floats]]
"""The regressors at some rows (a slice or positions), in blocks."""

_PIECE = 4096
# A robust covariance that only chooses penalties is that of this many rows; that of intervals is of all rows.
_MAX_NOISE_ROWS = 20_000
# Below this a noisy regressor says next to nothing of what it stands for.
_MIN_RELIABILITY = 0.25


@contextmanager
def _one_thread() -> Iterator[None]:
    """Hundreds of matrices this small: several threads spend their time waiting for one another."""
    with threadpool_limits(limits=1, user_api="blas"):
        yield


class Sampling(NamedTuple):
    """How rows were drawn, and how they are split.

    Attributes:
        weights: `(n,)`, or None for one each.
        groups: `(n,)` codes from 0 of rows that belong together, or None.
        folds: stretches of rows, one after the other; groups lie within one.
    """

    weights: Floats | None
    groups: NDArray[np.int64] | None
    folds: Sequence[slice]

    @property
    def n_rows(self) -> int:
        """How many there are."""
        return self.folds[-1].stop

    def root(self, rows: Any) -> Floats:
        """By which rows are multiplied, `(n, 1)`: the roots of their weights."""
        return np.ones((1, 1)) if self.weights is None else np.sqrt(self.weights[rows])[:, None]

    def pieces(self, fold: slice) -> Iterator[slice]:
        """A fold in pieces of rows."""
        for start in range(fold.start, fold.stop, _PIECE):
            yield slice(start, min(start + _PIECE, fold.stop))

    def some_rows(self) -> NDArray[np.intp]:
        """Evenly spread rows, or whole groups, that stand for all in a covariance."""
        if self.n_rows <= _MAX_NOISE_ROWS:
            return np.arange(self.n_rows)
        if self.groups is None:
            return np.linspace(0, self.n_rows - 1, _MAX_NOISE_ROWS).round().astype(np.intp)
        sizes = np.cumsum(np.bincount(self.groups))
        return np.flatnonzero(self.groups <= np.searchsorted(sizes, _MAX_NOISE_ROWS))

    def covariance(self, scores_at: Callable[[Any], Floats], pieces: Sequence[Any]) -> Floats:
        """Of the sum of scores `(n, p)` over pieces of the rows, robust to unequal variances or clustered by groups."""
        middle: Any = 0.0
        sums: Any = 0.0
        for rows in pieces:
            scores = scores_at(rows)
            if self.groups is None:
                middle = middle + scores.T @ scores
            else:
                entries = (np.ones(len(scores)), (self.groups[rows], np.arange(len(scores))))
                sums = sums + csr_array(entries, shape=(int(self.groups.max()) + 1, len(scores))) @ scores
        return np.asarray(middle if self.groups is None else sums.T @ sums, np.float64)


class FirstStage(NamedTuple):
    """What the instruments say of the targets.

    Attributes:
        predicted: `(n, k)`.
        residuals: `(n, k)` what is left of the targets.
        regressors: in blocks, by rows.
        kept: for each target, which columns of the regressors were used.
        inverses: for each target the inverse of their Gram matrix with its ridges.
        n_controls: how many of the residuals, the first ones, are regressors of the second stage.
    """

    predicted: Floats
    residuals: Floats
    regressors: BlocksAt
    kept: tuple[NDArray[np.bool_], ...]
    inverses: tuple[Floats, ...]
    n_controls: int

    @classmethod
    def exogenous(cls, targets: Floats) -> FirstStage:
        """The targets as they are, for a regression without instruments."""
        return cls(targets, np.zeros_like(targets), lambda rows: [targets[rows, :0]], (), (), 0)


@_one_thread()
def first_stage(
    blocks_at: BlocksAt, targets: Floats, n_controls: int, sampling: Sampling, min_gain: float
) -> FirstStage:
    r"""Predict the targets by the instruments.

    The first block is a linear regression on all rows, as in two-stage least squares. What it leaves of the targets is
    regressed on what it leaves of the other blocks, with a ridge for each block and target; that part of a row's
    prediction is by the coefficients of the other folds, so that it does not contain the row's own error.

    Args:
        blocks_at: the regressors.
        targets: `(n, k)`.
        n_controls: how many residuals are regressors of the second stage.
        sampling: weights, groups and folds.
        min_gain: as in :func:`~bgmiv.sieve.penalties.choose_penalties`.
    """
    grams = []
    for fold in sampling.folds:
        gram: Any = 0.0
        for rows in sampling.pieces(fold):
            columns = np.hstack([*blocks_at(rows), targets[rows]]) * sampling.root(rows)
            gram = gram + columns.T @ columns
        grams.append(gram)
    whole = sum(grams)
    first, *others = blocks_at(slice(0, 2))
    n_first, n_targets = first.shape[1], targets.shape[1]
    blocks = _slices(others)
    size = blocks[-1].stop if blocks else 0
    linear = penalised_solve(whole[:n_first, :n_first], whole[:n_first, n_first:], np.zeros(n_first))
    # From [first block, other blocks, targets] to what the first block leaves of the latter two.
    clear = np.vstack([-linear, np.eye(size + n_targets)])
    cleared = [clear.T @ gram @ clear for gram in grams]
    total = sum(cleared)
    some = sampling.some_rows()
    left = (np.hstack([*blocks_at(some), targets[some]]) @ clear) * sampling.root(some)
    share = sampling.n_rows / len(some)
    squares = np.diag(whole)[n_first : n_first + size]

    def chosen(j: int) -> Penalties:
        def noise(coefficients: Floats) -> tuple[Floats, float]:
            errors = left[:, size + j] - left[:, :size] @ coefficients
            scores = left[:, :size] * errors[:, None]
            return share * sampling.covariance(lambda _: scores, [some]), float(np.mean(errors**2))

        return choose_penalties(total[:size, :size], total[:size, size + j], blocks, noise, min_gain, squares)

    ridges = [ridges_of(blocks, chosen(j).ridges, size) for j in range(n_targets)]
    predicted = np.empty_like(targets)
    for fold, own in zip(sampling.folds, cleared, strict=True):
        rest = total - own
        by_target = [penalised_solve(rest[:size, :size], rest[:size, size + j], ridges[j]) for j in range(n_targets)]
        penalised = np.stack(by_target, axis=1)
        coefficients = np.vstack([linear[:, size:] - linear[:, :size] @ penalised, penalised])
        for piece in sampling.pieces(fold):
            predicted[piece] = np.hstack(blocks_at(piece)) @ coefficients
    by_column = [np.concatenate([np.zeros(n_first), each]) for each in ridges]
    kept = tuple(np.isfinite(each) for each in by_column)
    inverses = tuple(
        penalised_solve(whole[np.ix_(used, used)], np.eye(int(used.sum())), each[used])
        for used, each in zip(kept, by_column, strict=True)
    )
    return FirstStage(predicted, targets - predicted, blocks_at, kept, inverses, n_controls)


class SecondStage(NamedTuple):
    """The coefficients of all columns; those of a block that was left out are 0.

    Attributes:
        coefficients: `(k,)`.
        sampling, smoothing: roots R `(k, r)` of two parts R Rᵀ of their covariance: the robust one, and the bias of
            penalties under the prior that they stand for.
        bound: the root of the latter with each block's prior variance times its number of coefficients, so that the
            length of a row is the largest bias of coefficients that are as long as their prior says.
        roughness: a root of what the roughest prior of one block that the data do not reject would add to `smoothing`.
        penalties: of the penalised blocks.
        left_out: `(n,)` each row's outcome as predicted by coefficients of the other folds, the residuals' part aside.
    """

    coefficients: Floats
    sampling: Floats
    smoothing: Floats
    bound: Floats
    roughness: Floats
    penalties: Penalties
    left_out: Floats


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

    def columns(self, rows: Any) -> list[Floats]:
        """The residuals, then the predicted regressors, times the roots of weights."""
        controls = self.first.residuals[rows, : self.first.n_controls]
        root = self.sampling.root(rows)
        return [block * root for block in (controls, *self.predicted_at(rows))]

    def covariance(
        self, coefficients: Floats, kept: NDArray[np.bool_], pieces: Sequence[Any], share: float = 1.0
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
        """
        first, root = self.first, self.sampling.root
        gamma = np.zeros(first.predicted.shape[1])
        gamma[: first.n_controls] = coefficients[: first.n_controls]
        crossed = [np.zeros((int(kept.sum()), int(used.sum()))) for used in first.kept]
        square, count = 0.0, 0
        for rows in pieces:
            columns, z = np.hstack(self.columns(rows)), np.hstack(first.regressors(rows)) * root(rows)
            change = gamma - self.slopes_at(rows, coefficients[first.n_controls :])
            for k, used in enumerate(first.kept):
                crossed[k] += share * (columns[:, kept] * change[:, [k]]).T @ z[:, used]
            square += float(np.sum((self.outcome[rows] * root(rows)[:, 0] - columns @ coefficients) ** 2))
            count += len(columns)
        passed = [cross @ inverse for cross, inverse in zip(crossed, first.inverses, strict=True)]

        def scores_at(rows: Any) -> Floats:
            columns, z = np.hstack(self.columns(rows)), np.hstack(first.regressors(rows)) * root(rows)
            scores = columns[:, kept] * (self.outcome[rows] * root(rows)[:, 0] - columns @ coefficients)[:, None]
            residuals = first.residuals[rows] * root(rows)
            for k, used in enumerate(first.kept):
                scores += (z[:, used] @ passed[k].T) * residuals[:, [k]]
            return scores

        return share * self.sampling.covariance(scores_at, pieces), square / count


@_one_thread()
def second_stage(problem: Regression, n_linear: int, min_gain: float, rough: int | None = None) -> SecondStage:
    r"""Ridge regression of the outcome on predicted regressors, with its robust covariance.

    $\hat\beta = (\Phi^\top \Phi + \Lambda)^{-1} \Phi^\top y = B \Phi^\top y$ has the covariance $B M B$, with M that
    of :meth:`Regression.covariance` times n / (n - k), where k counts the effective parameters. A block b, kept or left
    out, whose coefficients have the prior variance $\tau_b$ adds the bias $(B \Phi^\top \Phi_b - I_b) \beta_b$, whose
    covariance the prior gives: both together cover a smooth function on average over its points (Nychka 1988). A
    block that gains too little to enter has the $\tau_b$ of the largest likelihood: that it was left out is part of the
    uncertainty.

    With a noisy version m of a regressor f, m has too small a coefficient, by its factor a in the regression of f on
    all columns, where the others have the coefficients b. So f gets $d = \beta_m / a$, and $d b$ is taken from the
    others: two-stage least squares with m as the instrument of f.

    Args:
        problem: the regression.
        n_linear: how many of its first blocks are not penalised.
        min_gain: as in :func:`~bgmiv.sieve.penalties.choose_penalties`.
        rough: the penalised block of which `SecondStage.roughness` tells.
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
    edges = _slices(problem.columns(slice(0, 2)))
    blocks, size = edges[1 + n_linear :], edges[-1].stop
    total: Floats = sum(sums)
    gram, moments = total[:size, :size], total[:size, size]
    some = sampling.some_rows()

    def noise(coefficients: Floats) -> tuple[Floats, float]:
        return problem.covariance(coefficients, np.ones(size, bool), [some], sampling.n_rows / len(some))

    penalties = choose_penalties(gram, moments, blocks, noise, min_gain)
    ridges = ridges_of(blocks, penalties.ridges, size)
    kept = np.isfinite(ridges)
    coefficients = penalised_solve(gram, moments, ridges)
    middle, _ = problem.covariance(coefficients, kept, pieces)
    inner, ridges = gram[np.ix_(kept, kept)], ridges[kept]
    inverse = penalised_solve(inner, np.eye(len(ridges)), ridges)
    of_sieve = slice(problem.first.n_controls, None)
    effective = float(np.sum((inverse * inner)[of_sieve]))
    correction = sampling.n_rows / max(sampling.n_rows - effective, 1.0)
    values, vectors = np.linalg.eigh(correction * middle)

    def bias_of(block: slice, prior: float) -> Floats:
        weights = np.zeros((size, block.stop - block.start))
        weights[kept] = inverse @ gram[kept, block]
        weights[block] -= np.eye(block.stop - block.start)
        return weights * np.sqrt(max(prior, 0.0) * correction)

    pairs = [(block, prior) for block, prior in zip(blocks, penalties.priors, strict=True) if prior > 0.0]
    shrunk = [bias_of(block, prior) for block, prior in pairs]
    largest = [bias_of(block, prior * (block.stop - block.start)) for block, prior in pairs]
    jump = [] if rough is None else [bias_of(blocks[rough], penalties.roughest[rough] - penalties.priors[rough])]
    left_out = np.empty(sampling.n_rows)
    for fold, own in zip(sampling.folds, sums, strict=True):
        rest = (total - own)[:size]
        beta = penalised_solve(rest[:, :size][np.ix_(kept, kept)], rest[kept, size], ridges)[of_sieve]
        for piece in sampling.pieces(fold):
            left_out[piece] = np.hstack(problem.predicted_at(piece))[:, kept[of_sieve]] @ beta
    turn = np.eye(size)
    if problem.noisy is not None:
        m = problem.first.n_controls
        calibration = np.zeros(size)
        calibration[kept] = inverse @ total[:size, size + 1][kept]
        reliability = min(max(float(calibration[m]), _MIN_RELIABILITY), 1.0)
        turn[:, m] -= calibration / reliability
        turn[m, m] = 1.0 / reliability
    turn = turn[of_sieve]
    empty = np.zeros((size, 0))
    return SecondStage(
        coefficients=turn @ coefficients,
        sampling=turn[:, kept] @ inverse @ (vectors * np.sqrt(np.maximum(values, 0.0))),
        smoothing=turn @ np.hstack([empty, *shrunk]),
        bound=turn @ np.hstack([empty, *largest]),
        roughness=turn @ np.hstack([empty, *jump]),
        penalties=penalties,
        left_out=left_out,
    )


def _slices(blocks: Sequence[Floats]) -> list[slice]:
    ends = np.cumsum([0, *(block.shape[1] for block in blocks)]).tolist()
    return [slice(start, stop) for start, stop in pairwise(ends)]
