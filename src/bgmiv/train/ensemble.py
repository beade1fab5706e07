"""Members: the same model trained several times on one data set, each time without some of its rows.

Averaging members takes away much of what chance in starting weights and batches does to a fit, most of all where the
data say little. The rows a member leaves out tell when to stop, and what its estimate is worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from bgmiv.errors import ConfigError

__all__ = ["Ensemble", "Folds"]

# With fewer held-out rows a look at them would be a throw of dice.
_FEWEST_HELD_OUT = 20
# Where the keys of the bootstrap branch off from the members' keys.
_BOOTSTRAP = 3_000_000


class Folds(NamedTuple):
    """Which rows each member leaves out.

    Attributes:
        order: (n,), the rows in the order they are laid out for training.
        starts: (members,), where each member's run of left-out rows begins in that order.
        size: how many rows each member leaves out.
    """

    order: np.ndarray
    starts: np.ndarray
    size: int

    def rows(self, member: int) -> np.ndarray:
        """The rows a member left out, as positions in the data."""
        start = self.starts[member]
        return self.order[start : start + self.size]


@dataclass(frozen=True)
class Ensemble:
    """How many members there are and what share of the rows each leaves out.

    Args:
        members: models trained; their predictions are averaged.
        held_out: share of the rows that each member leaves out; no two members leave out the same row as long as
            `members * held_out` is at most one. Below 20 rows a share nothing is left out.
        attempts: how often a member is trained at most, when training diverges or its held-out loss is beyond
            `failed_ratio` times the median of all members.
        failed_ratio: see `attempts`.
        bootstrap: weigh each member's rows by chance (the Bayesian bootstrap; whole groups of rows, where the data have
            groups), so that members differ as fits to other samples would.

    Example:
        >>> folds = Ensemble(members=4, held_out=0.1).folds(1000, jax.random.key(0))
        >>> folds.starts.tolist(), folds.size
        ([0, 250, 500, 750], 100)
    """

    members: int = 1
    held_out: float = 0.0
    attempts: int = 2
    failed_ratio: float = 3.0
    bootstrap: bool = False

    def __post_init__(self) -> None:
        """Refuse settings that cannot train."""
        if self.members < 1 or self.attempts < 1:
            raise ConfigError(f"members and attempts must be at least 1, got {self.members} and {self.attempts}.")
        if self.bootstrap and self.members < 2:
            raise ConfigError(f"the bootstrap needs members >= 2, and 20 or more to be of use, got {self.members}.")
        if not 0.0 <= self.held_out <= 0.5:
            raise ConfigError(f"held_out must lie between 0 and 0.5, got {self.held_out}.")
        if self.failed_ratio <= 1.0:
            raise ConfigError(f"failed_ratio must be above 1, got {self.failed_ratio}.")

    def folds(self, n: int, key: Array) -> Folds:
        """Draw which rows each member leaves out; rows stay in their order where none does."""
        size = round(self.held_out * n)
        if self.members * self.held_out <= 1.0:
            size = min(size, n // self.members)
        if size < _FEWEST_HELD_OUT:
            return Folds(np.arange(n), np.zeros(self.members, np.int64), 0)
        seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
        starts = (np.arange(self.members) * n) // self.members
        return Folds(np.random.default_rng(seed).permutation(n), np.minimum(starts, n - size), size)

    def row_weights(
        self, keys: Array, n: int, weights: np.ndarray | None = None, groups: np.ndarray | None = None
    ) -> np.ndarray | None:
        """How much rows count: `(n,)`, or `(members, n)` for the bootstrap; None if all count the same.

        Args:
            keys: one a member.
            n: how many rows there are.
            weights: sample weights.
            groups: codes of groups of rows that are drawn together.

        Example:
            >>> keys = jax.random.split(jax.random.key(0), 2)
            >>> Ensemble(members=2, bootstrap=True).row_weights(keys, 5, groups=np.array([0, 0, 1, 1, 1])).shape
            (2, 5)
        """
        if not self.bootstrap:
            return weights
        codes = np.arange(n) if groups is None else groups
        drawn = []
        for key in keys:
            seed = np.asarray(jax.random.key_data(jax.random.fold_in(key, _BOOTSTRAP))).ravel().tolist()
            drawn.append(np.random.default_rng(seed).exponential(size=int(codes.max()) + 1)[codes])
        return np.stack(drawn) * (1.0 if weights is None else weights)

    def failed(self, losses: np.ndarray) -> np.ndarray:
        """Which members failed, from the held-out loss of each: those not finite, and those far above the median."""
        finite = np.isfinite(losses)
        if not finite.any():
            return ~finite
        with np.errstate(invalid="ignore"):
            return ~finite | (losses > self.failed_ratio * np.median(losses[finite]))
