r"""The first stage of penalised instrumental variables, at a cost linear in the rows.

Regressors are asked for by rows, and only their matrices of products are kept, so that a hundred thousand rows of some
hundreds of columns need little memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from bgmiv.sieve.penalties import Penalties, choose_penalties, penalised_solve, ridges_of
from bgmiv.sieve.sampling import BlocksAt, Sampling

__all__ = ["FirstStage", "first_stage", "leave_one_out_errors", "one_thread", "slices_of", "without_folds"]

Floats = NDArray[np.float64]

# What a row that determines its own prediction leaves of its error.
_MIN_LEFT_OUT = 1e-3


@contextmanager
def one_thread() -> Iterator[None]:
    """Hundreds of matrices this small: several threads spend their time waiting for one another."""
    with threadpool_limits(limits=1, user_api="blas"):
        yield


class FirstStage(NamedTuple):
    """What the instruments say of the targets.

    Attributes:
        predicted: `(n, k)`.
        residuals: `(n, k)` what is left of the targets.
        regressors: in blocks, by rows.
        kept: for each target, which columns of the regressors were used.
        inverses: for each target the inverse of their Gram matrix with its ridges.
        coefficients: `(columns, k)` of all regressors, from all rows.
        n_controls: how many of the residuals, the first ones, are regressors of the second stage.
    """

    predicted: Floats
    residuals: Floats
    regressors: BlocksAt
    kept: tuple[NDArray[np.bool_], ...]
    inverses: tuple[Floats, ...]
    coefficients: Floats
    n_controls: int

    @classmethod
    def exogenous(cls, targets: Floats) -> FirstStage:
        """The targets as they are, for a regression without instruments."""
        return cls(targets, np.zeros_like(targets), lambda rows: [targets[rows, :0]], (), (), targets[:0], 0)


@one_thread()
def first_stage(
    blocks_at: BlocksAt, targets: Floats, n_controls: int, sampling: Sampling, min_gain: float
) -> FirstStage:
    r"""Predict the targets by the instruments.

    The first block is a linear regression on all rows, as in two-stage least squares. What it leaves of the targets is
    regressed on what it leaves of the other blocks, with a ridge for each block and target; that part of a row's
    prediction is by the coefficients of the other rows, or of the other folds if there are several, so that it does not
    contain the row's own error.

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
    blocks = slices_of(others)
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
            found = sampling.covariance(lambda _: [(left[:, :size], errors)], [some])
            return share * found, float(np.mean(errors**2))

        return choose_penalties(total[:size, :size], total[:size, size + j], blocks, noise, min_gain, squares)

    ridges = [ridges_of(blocks, chosen(j).ridges, size) for j in range(n_targets)]
    entered = [np.isfinite(each) for each in ridges]
    solvers = [
        _LeftOut.of(total, slice(size + j, size + j + 1), np.flatnonzero(used), each[used], cleared)
        for j, (used, each) in enumerate(zip(entered, ridges, strict=True))
    ]
    predicted = np.empty_like(targets)
    for i, fold in enumerate(sampling.folds):
        for piece in sampling.pieces(fold):
            columns = np.hstack([*blocks_at(piece), targets[piece]])
            rest = (columns @ clear) * sampling.root(piece)
            fitted = [solver.predict(rest[:, : size + n_targets], i, sampling.leave_one_out) for solver in solvers]
            free = columns[:, :n_first] @ linear[:, size:]
            predicted[piece] = free + np.hstack(fitted) / sampling.root(piece)
    by_column = [np.concatenate([np.zeros(n_first), each]) for each in ridges]
    kept = tuple(np.isfinite(each) for each in by_column)
    inverses = tuple(
        penalised_solve(whole[np.ix_(used, used)], np.eye(int(used.sum())), each[used])
        for used, each in zip(kept, by_column, strict=True)
    )
    coefficients = np.zeros((n_first + size, n_targets))
    for j, (used, inverse) in enumerate(zip(kept, inverses, strict=True)):
        coefficients[used, j] = inverse @ whole[: len(used)][used, n_first + size + j]
    return FirstStage(predicted, targets - predicted, blocks_at, kept, inverses, coefficients, n_controls)


class _LeftOut(NamedTuple):
    r"""Predictions of rows by a ridge regression on the other rows, or on the other folds.

    Without fold f, $\beta_f = \beta - (B^{-1} - \Phi_f^\top \Phi_f)^{-1} \Phi_f^\top (y_f - \Phi_f \beta)$, with
    $B = (\Phi^\top \Phi + \Lambda)^{-1}$; for a fold of one row this needs no solution of its own.

    Attributes:
        used: the columns that enter.
        target: the column of the target.
        coefficients: β, `(k,)`.
        inverse: B.
        folds: $\beta_f$ of each fold, `(folds, k)`.
    """

    used: NDArray[np.intp]
    target: slice
    coefficients: Floats
    inverse: Floats
    folds: Floats

    @classmethod
    def of(
        cls, total: Floats, target: slice, used: NDArray[np.intp], ridges: Floats, grams: Sequence[Floats]
    ) -> _LeftOut:
        """From Gram matrices of the columns and the target, of all rows and of each fold."""
        inverse = penalised_solve(total[np.ix_(used, used)], np.eye(len(used)), ridges)
        coefficients = inverse @ total[used, target.start]
        return cls(used, target, coefficients, inverse, without_folds(inverse, coefficients, used, target.start, grams))

    def predict(self, rows: Floats, fold: int, leave_one_out: bool) -> Floats:
        """The target of rows of a fold, `(n, 1)`, from all their columns; rows are times the roots of weights."""
        columns, target = rows[:, self.used], rows[:, self.target]
        if not leave_one_out:
            return columns @ self.folds[fold][:, None]
        errors = target[:, 0] - columns @ self.coefficients
        return target - leave_one_out_errors(columns, self.inverse, errors)[:, None]


def leave_one_out_errors(columns: Floats, inverse: Floats, errors: Floats) -> Floats:
    """Errors of a ridge regression at rows that are each left out, from those `(n,)` of the fit to all of them."""
    leverage = np.sum((columns @ inverse) * columns, axis=1)
    return np.asarray(errors / np.maximum(1.0 - leverage, _MIN_LEFT_OUT), np.float64)


def without_folds(
    inverse: Floats, coefficients: Floats, used: NDArray[np.intp], target: int, grams: Sequence[Floats]
) -> Floats:
    """The coefficients of a ridge regression without each fold, `(folds, k)`; none where there is only one fold."""
    if len(grams) < 2 or not len(used):
        return np.tile(coefficients, (len(grams), 1))
    precision = penalised_solve(inverse, np.eye(len(used)), np.zeros(len(used)))
    found = []
    for gram in grams:
        own = gram[np.ix_(used, used)]
        errors = gram[used, target] - own @ coefficients
        found.append(coefficients - penalised_solve(precision - own, errors, np.zeros(len(used))))
    return np.stack(found)


def slices_of(blocks: Sequence[Floats]) -> list[slice]:
    """Where the columns of each block are, side by side."""
    ends = np.cumsum([0, *(block.shape[1] for block in blocks)]).tolist()
    return [slice(start, stop) for start, stop in pairwise(ends)]
