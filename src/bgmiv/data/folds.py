"""Folds of rows, whole groups in each, and which rows the members of a fit hold out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bgmiv.data.messages import Integers, Positions

if TYPE_CHECKING:
    from jax import Array

__all__ = ["MIN_HELD_OUT", "Folds", "draw_folds", "row_folds", "some_rows"]

MIN_HELD_OUT = 20
"""Fewer held-out rows tell nothing, and none is held out."""


def row_folds(n: int, n_folds: int, rng: np.random.Generator, groups: Integers | None = None) -> Positions:
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


def some_rows(
    n: int, size: int, rng: np.random.Generator, groups: Integers | None = None, *, min_groups: int = 1
) -> Positions:
    """Positions of about `size` of `n` rows drawn at random, in their order: all rows of as many whole groups.

    `groups` are codes from 0 on. At least `min_groups` are taken, however large they are.

    Example:
        >>> some_rows(6, 3, np.random.default_rng(0), np.array([0, 0, 0, 1, 2, 2]))
        array([4, 5])
    """
    if n <= size:
        return np.arange(n)
    codes = np.arange(n) if groups is None else groups
    counts = np.bincount(codes)
    order = rng.permutation(len(counts))
    n_groups = np.searchsorted(np.cumsum(counts[order]), size, side="right")
    return np.flatnonzero(np.isin(codes, order[: max(min_groups, int(n_groups))]))


class Folds(NamedTuple):
    """Which rows each member leaves out: `sizes[member]` from `starts[member]` on in the training `order` of all."""

    order: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray

    @property
    def hold_out(self) -> bool:
        """Whether any row is left out."""
        return bool(self.sizes.any())

    def rows(self, member: int) -> np.ndarray:
        """The rows a member left out, as positions in the data."""
        start = self.starts[member]
        return self.order[start : start + self.sizes[member]]


def draw_folds(n: int, members: int, held_out: float, key: Array, groups: Integers | None = None) -> Folds:
    """Draw which of `n` rows each member leaves out, a share `held_out` of them, and whole `groups`.

    No two members leave out the same row as long as `members * held_out` is at most one; where it is one or more, every
    row is left out by some member. Rows stay in their order where fewer than 20 would be left out, or where all are of
    one group: then none is. Groups of unequal size make folds of unequal size, and fewer groups than folds make fewer
    folds, which members share.

    Args:
        n: how many rows.
        members: how many members.
        held_out: the share.
        key: the randomness.
        groups: `(n,)` the group of each row; None if each is its own.

    Example:
        >>> import jax
        >>> folds = draw_folds(1000, 4, 0.1, jax.random.key(0))
        >>> len(set(np.concatenate([folds.rows(member) for member in range(4)])))
        400
    """
    import jax

    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())
    none = Folds(np.arange(n), np.zeros(members, np.int64), np.zeros(members, np.int64))
    if round(held_out * n) < MIN_HELD_OUT:
        return none
    if groups is None:
        starts = (np.arange(members) * n) // members
        sizes = np.full(members, round(held_out * n))
        if abs(members * held_out - 1.0) < 1e-9:
            sizes = np.diff(starts, append=n)
        elif members * held_out < 1.0:
            sizes = np.minimum(sizes, n // members)
        if sizes.min() < MIN_HELD_OUT:
            return none
        return Folds(rng.permutation(n), np.minimum(starts, n - sizes), sizes)
    fold = row_folds(n, max(2, round(1.0 / held_out)), rng, groups)
    counts = np.bincount(fold)
    if len(counts) < 2:
        return none
    # Shuffled first, so that rows of a fold are in random order too.
    order = rng.permutation(n)
    order = order[np.argsort(fold[order], kind="stable")]
    own = np.arange(members) % len(counts) if members > len(counts) else np.arange(members) * len(counts) // members
    return Folds(order, (np.cumsum(counts) - counts)[own], counts[own])
