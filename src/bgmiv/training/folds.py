"""Which rows the members of a fit hold out."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jax import Array

__all__ = ["Folds", "draw_folds"]

# Fewer held-out rows than these tell nothing.
_MIN_HELD_OUT = 20


class Folds(NamedTuple):
    """Which rows each member leaves out: `size` rows from `starts[member]` on in the training `order` of all rows."""

    order: np.ndarray
    starts: np.ndarray
    size: int

    def rows(self, member: int) -> np.ndarray:
        """The rows a member left out, as positions in the data."""
        start = self.starts[member]
        return self.order[start : start + self.size]


def draw_folds(n: int, members: int, held_out: float, key: Array) -> Folds:
    """Draw which of `n` rows each member leaves out, a share `held_out` of them.

    No two members leave out the same row as long as `members * held_out` is at most one. Rows stay in their order where
    fewer than 20 would be left out: then none is.

    Example:
        >>> folds = draw_folds(1000, 4, 0.1, jax.random.key(0))
        >>> len(set(np.concatenate([folds.rows(member) for member in range(4)])))
        400
    """
    size = round(held_out * n)
    if members * held_out <= 1.0:
        size = min(size, n // members)
    if size < _MIN_HELD_OUT:
        return Folds(np.arange(n), np.zeros(members, np.int64), 0)
    seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
    starts = (np.arange(members) * n) // members
    return Folds(np.random.default_rng(seed).permutation(n), np.minimum(starts, n - size), size)
