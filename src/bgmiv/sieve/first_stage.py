r"""The first stage of penalised instrumental variables, at a cost linear in the rows.

Regressors are asked for by rows, and only their matrices of products are kept, so that a hundred thousand rows of some
hundreds of columns need little memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from bgmiv.sieve.penalties import choose_penalties, penalised_solve, ridges_of
from bgmiv.sieve.sampling import BlocksAt, Sampling

__all__ = ["FirstStage", "LeftOut", "first_stage", "one_thread", "slices_of"]

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
    first, *others = blocks_at(slice(0, 2))
    n_first, n_targets, blocks = first.shape[1], targets.shape[1], slices_of(others)
    size = sum(block.shape[1] for block in others)

    def columns_at(rows: slice | NDArray[np.intp]) -> list[Floats]:
        return [*blocks_at(rows), targets[rows]]

    grams = sampling.grams(columns_at)
    whole = np.asarray(sum(grams))
    linear = penalised_solve(whole[:n_first, :n_first], whole[:n_first, n_first:], np.zeros(n_first))
    # From [first block, other blocks, targets] to what the first block leaves of the latter two.
    clear = np.vstack([-linear, np.eye(size + n_targets)])
    cleared = [clear.T @ gram @ clear for gram in grams]
    total = np.asarray(sum(cleared))
    some = sampling.some_rows()
    left = (np.hstack(columns_at(some)) @ clear) * sampling.root(some)

    def ridges_by_column(target: int) -> Floats:
        def noise(coefficients: Floats) -> tuple[Floats, float]:
            errors = left[:, target] - left[:, :size] @ coefficients
            covariance = sampling.covariance(lambda _: [(left[:, :size], errors)], [some])
            return sampling.n_rows / len(some) * covariance, float(np.mean(errors**2))

        gram, moments, squares = total[:size, :size], total[:size, target], np.diag(whole)[n_first : n_first + size]
        penalties = choose_penalties(gram, moments, blocks, noise, min_gain, squares=squares)
        return ridges_of(blocks, penalties.ridges, np.zeros(size))

    ridges = [ridges_by_column(size + j) for j in range(n_targets)]
    left_out = []
    for j, of_target in enumerate(ridges):
        used = np.flatnonzero(np.isfinite(of_target))
        inverse = penalised_solve(total[np.ix_(used, used)], np.eye(len(used)), of_target[used])
        left_out.append(LeftOut.of(used, inverse @ total[used, size + j], inverse, size + j, cleared))
    predicted = np.empty_like(targets)
    for i, fold in enumerate(sampling.folds):
        for piece in sampling.pieces(fold):
            columns, root = np.hstack(columns_at(piece)), sampling.root(piece)
            rest = (columns @ clear) * root
            fitted = [one.predict(rest, rest[:, size + j], i) for j, one in enumerate(left_out)]
            predicted[piece] = columns[:, :n_first] @ linear[:, size:] + np.column_stack(fitted) / root
    kept, inverses, coefficients = [], [], np.zeros((n_first + size, n_targets))
    for j, of_target in enumerate(ridges):
        by_column = np.concatenate([np.zeros(n_first), of_target])
        used = np.isfinite(by_column)
        inverse = penalised_solve(whole[np.ix_(used, used)], np.eye(int(used.sum())), by_column[used])
        kept.append(used)
        inverses.append(inverse)
        coefficients[used, j] = inverse @ whole[: len(used), n_first + size + j][used]
    residuals = targets - predicted
    return FirstStage(predicted, residuals, blocks_at, tuple(kept), tuple(inverses), coefficients, n_controls)


class LeftOut(NamedTuple):
    r"""Predictions of rows by a ridge regression on the other rows, or on the other folds.

    Without fold f, $\beta_f = \beta - (B^{-1} - \Phi_f^\top \Phi_f)^{-1} \Phi_f^\top (y_f - \Phi_f \beta)$, with
    $B = (\Phi^\top \Phi + \Lambda)^{-1}$; for a fold of one row this needs no solution of its own.

    Attributes:
        used: the columns that enter.
        coefficients: β, `(k,)`.
        inverse: B.
        by_fold: $\beta_f$ of each fold, `(folds, k)`; of one fold that is all rows, β.
    """

    used: NDArray[np.intp]
    coefficients: Floats
    inverse: Floats
    by_fold: Floats

    @classmethod
    def of(
        cls, used: NDArray[np.intp], coefficients: Floats, inverse: Floats, target: int, grams: Sequence[Floats]
    ) -> LeftOut:
        """From the Gram matrix of columns and target of each fold; `target` is its position."""
        by_fold = [coefficients]
        if len(grams) > 1:
            none = np.zeros(len(used))
            precision = penalised_solve(inverse, np.eye(len(used)), none)
            by_fold = []
            for gram in grams:
                own = gram[np.ix_(used, used)]
                errors = gram[used, target] - own @ coefficients
                by_fold.append(coefficients - penalised_solve(precision - own, errors, none))
        return cls(used, coefficients, inverse, np.stack(by_fold))

    def predict(self, columns: Floats, target: Floats, fold: int, n_controls: int = 0) -> Floats:
        """Of rows of a fold, `(n,)`, without the part of the first columns; rows are times the roots of weights."""
        columns = columns[:, self.used]
        controls = columns[:, :n_controls]
        if len(self.by_fold) > 1:
            return columns[:, n_controls:] @ self.by_fold[fold][n_controls:]
        leverage = np.sum((columns @ self.inverse) * columns, axis=1)
        errors = (target - columns @ self.coefficients) / np.maximum(1.0 - leverage, _MIN_LEFT_OUT)
        moved = np.sum((controls @ self.inverse[:n_controls]) * columns, axis=1) * errors
        return np.asarray(target - errors - (controls @ self.coefficients[:n_controls] - moved), np.float64)


def slices_of(blocks: Sequence[Floats]) -> list[slice]:
    """Where the columns of each block are, side by side."""
    ends = np.cumsum([0, *(block.shape[1] for block in blocks)]).tolist()
    return [slice(start, stop) for start, stop in pairwise(ends)]
