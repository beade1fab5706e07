"""How rows were drawn, how they are split into folds, and the covariance of sums over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bgmiv.arrays import Floats, Integers
from bgmiv.covariance import ROBUST, Errors, cluster_sums, errors_of
from bgmiv.data.ivdata import IVData
from bgmiv.data.within import absorbed_blocks, level_places, level_slices

__all__ = ["PIECE", "BlocksAt", "Sampling", "Scores"]

BlocksAt = Callable[[Any], list[Floats]]
"""The regressors at some rows (a slice or positions), in blocks."""
Scores = tuple[Any, list[tuple[Floats, Floats]]]
"""Some rows, and their scores: a row's is the sum over parts of its columns `(n, p)` times its residual `(n,)`."""

PIECE = 4096
"""How many rows are in memory at a time."""

_FOLDS = 20
# Beyond this many rows, and with groups, predictions leave out a fold instead of a row.
_MAX_LEAVE_ONE_OUT = 20_000
# A robust covariance that only chooses penalties is that of this many rows; that of intervals is of all rows.
_MAX_NOISE_ROWS = 20_000


class Sampling(NamedTuple):
    """How rows were drawn, and how they are split.

    Attributes:
        weights: `(n,)`.
        groups: `(n,)` codes from 0 of rows that belong together, or None.
        folds: slices of rows, one after the other; groups lie within one. Where there is only one, every row is a
            fold of its own.
        errors: what the covariance allows for.
    """

    weights: Floats
    groups: Integers | None
    folds: Sequence[slice]
    errors: Errors = ROBUST

    @classmethod
    def draw(cls, data: IVData, rng: np.random.Generator) -> tuple[Sampling, IVData, Integers]:
        """Folds of the rows; the rows sorted by their fold, and their order.

        Rows of a group are in one fold. Without groups, rows of a level of the largest covariate that is absorbed are:
        net of its mean, a row contains the others' errors.
        """
        units, absorbed = data.groups, absorbed_blocks(data.schema, data.n_rows)
        if units is None and absorbed:
            units = level_places(absorbed[:1], data.covariates)[:, 0]
        if units is not None:
            fold = (rng.permutation(int(units.max()) + 1) % _FOLDS)[units]
        elif data.n_rows <= _MAX_LEAVE_ONE_OUT:
            fold = np.zeros(data.n_rows, np.intp)
        else:
            fold = rng.permutation(data.n_rows) % _FOLDS
        order = np.argsort(fold, kind="stable")
        folds = level_slices(np.unique(fold, return_counts=True)[1].tolist())
        rows = data.take(order)
        return cls(rows.full_weights, rows.groups, folds, errors_of(rows)), rows, order

    @property
    def n_rows(self) -> int:
        """How many there are."""
        return self.folds[-1].stop

    def root(self, rows: Any) -> Floats:
        """By which rows are multiplied, `(n, 1)`: the roots of their weights."""
        return np.sqrt(self.weights[rows])[:, None]

    def pieces(self, fold: slice | None = None) -> Iterator[slice]:
        """A fold, or all of them, in pieces of rows."""
        for each in self.folds if fold is None else (fold,):
            for start in range(each.start, each.stop, PIECE):
                yield slice(start, min(start + PIECE, each.stop))

    def columns(self, blocks_at: BlocksAt, rows: Any) -> Floats:
        """Columns that are given in blocks, side by side and times the roots of weights."""
        return np.hstack(blocks_at(rows)) * self.root(rows)

    def grams(self, blocks_at: BlocksAt) -> Floats:
        """For each fold the weighted Gram matrix of columns, `(folds, p, p)`."""
        grams = []
        for fold in self.folds:
            pieces = (self.columns(blocks_at, rows) for rows in self.pieces(fold))
            grams.append(sum(columns.T @ columns for columns in pieces))
        return np.array(grams, np.float64)

    def some_rows(self) -> Integers:
        """Evenly spread rows, or whole groups, that stand for all in a covariance."""
        if self.n_rows <= _MAX_NOISE_ROWS:
            return np.arange(self.n_rows)
        if self.groups is None:
            return np.linspace(0, self.n_rows - 1, _MAX_NOISE_ROWS).round().astype(np.intp)
        sizes = np.cumsum(np.bincount(self.groups))
        return np.flatnonzero(self.groups <= np.searchsorted(sizes, _MAX_NOISE_ROWS))

    def covariance(self, pieces: Iterable[Scores]) -> Floats:
        """Of the sum over rows of scores, which come in pieces of the rows.

        It has no small-sample correction, and CR1 in the place of the jackknife.
        """
        middle: Any = 0.0
        noise: Any = 0.0
        sums: list[Any] = [0.0] * len(self.errors.ways)
        count = 0
        for rows, parts in pieces:
            if self.errors.classical:
                left = np.column_stack([residuals for _, residuals in parts])
                stacked = np.stack([columns for columns, _ in parts])
                middle = middle + np.einsum("anp,bnq->abpq", stacked, stacked, optimize=True)
                noise = noise + left.T @ left
                count += len(left)
                continue
            scores: Any = sum(columns * residuals[:, None] for columns, residuals in parts)
            if not sums:
                middle = middle + scores.T @ scores
            for i, way in enumerate(self.errors.ways):
                sums[i] = sums[i] + cluster_sums(scores, way.codes[rows], way.n_clusters)
        if self.errors.classical:
            return np.einsum("ab,abpq->pq", noise / count, middle)
        for total, way in zip(sums, self.errors.ways, strict=True):
            middle = middle + way.sign * (total.T @ total)
        return middle
