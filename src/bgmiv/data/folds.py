"""How rows are divided into folds: whole groups in each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["row_folds"]


def row_folds(
    n: int, n_folds: int, rng: np.random.Generator, groups: NDArray[np.integer] | None = None
) -> NDArray[np.intp]:
    """The fold of each of `n` rows: folds of about as many rows, whole groups in each, no more than there are groups.

    Example:
        >>> row_folds(6, 2, np.random.default_rng(0), np.array([0, 0, 0, 1, 2, 2]))
        array([0, 0, 0, 1, 1, 1])
    """
    if groups is None:
        return rng.permutation(n) % n_folds
    codes, counts = np.unique(groups, return_inverse=True, return_counts=True)[1:]
    shuffled = rng.permutation(len(counts))
    filled = np.zeros(min(n_folds, len(counts)), np.int64)
    fold_of = np.empty(len(counts), np.intp)
    # The largest first, each where there are fewest rows.
    for group in shuffled[np.argsort(-counts[shuffled], kind="stable")]:
        fold_of[group] = np.argmin(filled)
        filled[fold_of[group]] += counts[group]
    return fold_of[codes]
