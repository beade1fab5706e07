r"""The first stage of penalised instrumental variables, at a cost linear in the rows.

Regressors are asked for by rows, and only their matrices of products are kept, so that a hundred thousand rows of some
hundreds of columns need little memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from bgmiv.arrays import Floats, Integers
from bgmiv.data.within import level_slices
from bgmiv.sieve.penalties import choose_penalties, penalised_solve, ridges_of
from bgmiv.sieve.sampling import BlocksAt, Sampling

__all__ = ["FirstStage", "LeftOut", "first_stage", "left_out_errors", "one_thread", "slices_of"]


# What a row that determines its own prediction leaves of its error.
_MIN_LEFT_OUT = 1e-3

_F = TypeVar("_F")

one_thread: Callable[[_F], _F] = threadpool_limits.wrap(limits=1, user_api="blas")
"""For hundreds of matrices this small: several threads spend their time waiting for one another."""


class FirstStage(NamedTuple):
    """What the instruments say of the targets.

    Attributes:
        predicted: `(n, k)`.
        residuals: `(n, k)` what is left of the targets.
        regressors: in blocks, by rows.
        kept: for each target, the positions of the regressors that were used.
        inverses: for each target the inverse of their Gram matrix with its ridges.
        coefficients: `(columns, k)` of all regressors, from all rows.
    """

    predicted: Floats
    residuals: Floats
    regressors: BlocksAt
    kept: tuple[Integers, ...]
    inverses: tuple[Floats, ...]
    coefficients: Floats

    @classmethod
    def exogenous(cls, targets: Floats) -> FirstStage:
        """The targets as they are, for a regression without instruments."""
        return cls(targets, np.zeros_like(targets), lambda rows: [targets[rows, :0]], (), (), targets[:0])


@one_thread
def first_stage(blocks_at: BlocksAt, targets: Floats, sampling: Sampling, min_gain: float) -> FirstStage:
    r"""Predict the targets by the instruments.

    The first block is a linear regression on all rows, as in two-stage least squares. What it leaves of the targets is
    regressed on what it leaves of the other blocks, with a ridge for each block and target; that part of a row's
    prediction is by the coefficients of the other rows, or of the other folds if there are several, so that it does not
    contain the row's own error.

    Args:
        blocks_at: the regressors.
        targets: `(n, k)`.
        sampling: weights, groups and folds.
        min_gain: as in :func:`~bgmiv.sieve.penalties.choose_penalties`.
    """
    first, *others = blocks_at(slice(0, 2))
    n_first, n_targets, blocks = first.shape[1], targets.shape[1], slices_of(others)
    size = sum(block.shape[1] for block in others)

    def columns_at(rows: slice | Integers) -> list[Floats]:
        return [*blocks_at(rows), targets[rows]]

    grams = sampling.grams(columns_at)
    whole = grams.sum(axis=0)
    linear = penalised_solve(whole[:n_first, :n_first], whole[:n_first, n_first:], np.zeros(n_first))
    # From [first block, other blocks, targets] to what the first block leaves of the latter two.
    clear = np.vstack([-linear, np.eye(size + n_targets)])
    cleared = clear.T @ grams @ clear
    total = cleared.sum(axis=0)
    gram, squares = total[:size, :size], np.diag(whole)[n_first : n_first + size]
    some = sampling.some_rows()
    left = sampling.columns(columns_at, some) @ clear

    def ridges_of_target(target: int) -> Floats:
        def noise(coefficients: Floats) -> tuple[Floats, float]:
            errors = left[:, target] - left[:, :size] @ coefficients
            covariance = sampling.covariance([(some, [(left[:, :size], errors)])])
            return sampling.n_rows / len(some) * covariance, float(np.mean(errors**2))

        penalties = choose_penalties(gram, total[:size, target], blocks, noise, min_gain, squares=squares)
        return ridges_of(blocks, penalties.ridges, np.zeros(size))

    left_out, kept, inverses, coefficients = [], [], [], np.zeros((n_first + size, n_targets))
    for j in range(n_targets):
        ridges = ridges_of_target(size + j)
        used = np.flatnonzero(np.isfinite(ridges))
        inverse = penalised_solve(total[np.ix_(used, used)], np.eye(len(used)), ridges[used])
        left_out.append(LeftOut.of(used, inverse @ total[used, size + j], inverse, size + j, cleared))
        ridges = np.concatenate([np.zeros(n_first), ridges])
        used = np.flatnonzero(np.isfinite(ridges))
        kept.append(used)
        inverses.append(penalised_solve(whole[np.ix_(used, used)], np.eye(len(used)), ridges[used]))
        coefficients[used, j] = inverses[j] @ whole[used, n_first + size + j]
    residuals = left_out_errors(left_out, lambda rows: sampling.columns(columns_at, rows) @ clear, sampling)
    return FirstStage(targets - residuals, residuals, blocks_at, tuple(kept), tuple(inverses), coefficients)


class LeftOut(NamedTuple):
    r"""Predictions of rows by a ridge regression on the other rows, or on the other folds.

    Without fold f, $\beta_f = \beta - (B^{-1} - \Phi_f^\top \Phi_f)^{-1} \Phi_f^\top (y_f - \Phi_f \beta)$, with
    $B = (\Phi^\top \Phi + \Lambda)^{-1}$; for a fold of one row this needs no solution of its own.

    Attributes:
        used: the columns that enter.
        coefficients: β, `(k,)`.
        inverse: B.
        target: the position of the target among the columns.
        by_fold: $\beta_f$ of each fold, `(folds, k)`; None where every row is a fold of its own.
    """

    used: Integers
    coefficients: Floats
    inverse: Floats
    target: int
    by_fold: Floats | None

    @classmethod
    def of(cls, used: Integers, coefficients: Floats, inverse: Floats, target: int, grams: Floats) -> LeftOut:
        """From the Gram matrices of columns and target of each fold."""
        if len(grams) == 1:
            return cls(used, coefficients, inverse, target, None)
        none = np.zeros(len(used))
        precision = penalised_solve(inverse, np.eye(len(used)), none)
        by_fold = []
        for gram in grams:
            own = gram[np.ix_(used, used)]
            moved = penalised_solve(precision - own, gram[used, target] - own @ coefficients, none)
            by_fold.append(coefficients - moved)
        return cls(used, coefficients, inverse, target, np.array(by_fold))

    def errors(self, columns: Floats, fold: int, n_controls: int = 0) -> Floats:
        """The target of rows of a fold less its prediction, `(n,)`, in which the last columns have no part."""
        target, columns = columns[:, self.target], columns[:, self.used]
        n_used = len(self.used) - n_controls
        if self.by_fold is not None:
            return target - columns[:, :n_used] @ self.by_fold[fold, :n_used]
        leverage = np.sum((columns @ self.inverse) * columns, axis=1)
        errors = (target - columns @ self.coefficients) / np.maximum(1.0 - leverage, _MIN_LEFT_OUT)
        controls = columns[:, n_used:]
        moved = np.sum((controls @ self.inverse[n_used:]) * columns, axis=1) * errors
        return errors + controls @ self.coefficients[n_used:] - moved


def left_out_errors(
    fits: Sequence[LeftOut], columns_at: Callable[[slice], Floats], sampling: Sampling, n_controls: int = 0
) -> Floats:
    """Those of the targets of some fits to the same columns, which come times the roots of weights, `(n, k)`."""
    errors = np.empty((sampling.n_rows, len(fits)))
    for i, fold in enumerate(sampling.folds):
        for rows in sampling.pieces(fold):
            columns = columns_at(rows)
            own = [fit.errors(columns, i, n_controls) for fit in fits]
            errors[rows] = np.column_stack(own) / sampling.root(rows)
    return errors


def slices_of(blocks: Sequence[Floats]) -> list[slice]:
    """Where the columns of each block are, side by side."""
    return level_slices([block.shape[1] for block in blocks])
