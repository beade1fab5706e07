r"""The within transform: columns net of the indicators of categorical covariates with many levels (fixed effects).

By the theorem of Frisch, Waugh and Lovell a regression on hundreds of indicators is one of columns that are net of
them. With one such covariate that is subtracting means by level; with several, a least-squares fit on all indicators.
Only sums by level are kept, so that memory stays small whatever the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from bgmiv.arrays import TINY
from bgmiv.data.blocks import BlockKind, CovariateBlock
from bgmiv.data.messages import Codes, FloatArray, Floats, Positions
from bgmiv.data.schema import Schema

__all__ = [
    "LevelEffects", "Within", "absorbed_blocks", "level_places", "level_slices", "ordinary_columns",
    "ordinary_covariates", "row_slices",
]  # fmt: skip

ColumnsAt = Callable[[Any], list[Floats]]
"""Columns at some rows (a slice or positions), in blocks."""

_MANY_LEVELS, _MIN_ROWS_A_LEVEL = 20, 8
_PIECE = 4096
# Directions of normalised indicators that others determine, and columns of which the indicators leave rounding alone.
_REDUNDANT = 1e-10
_ROUNDING = 1e-12
# Levels beyond these share factors of uncertainty, with random signs.
_MAX_FACTORS = 100


def absorbed_blocks(schema: Schema, n_rows: int) -> tuple[CovariateBlock, ...]:
    """The categorical covariates whose indicators are absorbed, that with the most levels first.

    They are those with more than 20 levels, or with more levels than an eighth of the rows. Fewer indicators stay
    ordinary columns, with which the treatment may interact.
    """
    many = min(_MANY_LEVELS, n_rows / _MIN_ROWS_A_LEVEL)
    chosen = [block for block in schema.blocks if block.kind is BlockKind.categorical and block.width > many]
    return tuple(sorted(chosen, key=lambda block: -block.width))


def ordinary_columns(schema: Schema, absorbed: Sequence[str] = ()) -> list[int]:
    """Positions of the covariates that are not absorbed, without the reference level of each categorical one.

    A full set of indicators adds up to the constant; its first level is the reference.
    """
    columns: list[int] = []
    for block in schema.blocks:
        if block.name not in absorbed:
            columns += range(block.start + (block.kind is BlockKind.categorical), block.stop)
    return columns


def ordinary_covariates(schema: Schema, covariates: FloatArray, absorbed: Sequence[str] = ()) -> Floats:
    """These columns in double precision, without a copy if they are all: long tables are large."""
    kept = ordinary_columns(schema, absorbed)
    return np.asarray(covariates[:, kept] if len(kept) < schema.n_covariates else covariates, np.float64)


@dataclass(frozen=True, eq=False)
class Within:
    """The projection of columns on the indicators of some categorical covariates, and what it leaves of them.

    Attributes:
        names: of the covariates, that with the most levels first; empty if nothing is absorbed.
        sizes: how many levels each has.
        places: `(n, k)` the position of each row's levels among the levels of all of them.
        weights: `(n,)`.
        counts: `(L,)` the sum of weights of each level.
        pairs: `(L_1, L - L_1)` the same of each level of the first covariate with each of the others.
        inverse: the pseudo-inverse of what the first covariate's indicators leave of the products of the others.
        rank: how many of the indicators are linearly independent, the constant among them.

    Example:
        >>> firm = np.array([[0], [0], [1], [1]])
        >>> Within.fit(("firm",), (2,), firm).residual(np.array([1.0, 3.0, 5.0, 5.0]))
        array([-1.,  1.,  0.,  0.])
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    places: Positions
    weights: Floats
    counts: Floats
    pairs: Floats
    inverse: Floats
    rank: int

    @classmethod
    def of(cls, schema: Schema, covariates: FloatArray, weights: Any = None) -> Within:
        """The transform by the covariates that are absorbed (:func:`absorbed_blocks`), perhaps none."""
        blocks = absorbed_blocks(schema, len(covariates))
        names, sizes = tuple(block.name for block in blocks), tuple(block.width for block in blocks)
        return cls.fit(names, sizes, level_places(blocks, covariates), weights)

    @classmethod
    def fit(cls, names: tuple[str, ...], sizes: tuple[int, ...], places: Positions, weights: Any = None) -> Within:
        """The transform by the places `(n, k)` of levels of covariates with so many levels, the largest first."""
        weights = np.ones(len(places)) if weights is None else np.asarray(weights, np.float64)
        n_first = sum(sizes[:1])
        indicators = _indicators(places, sum(sizes))
        counts = indicators @ weights
        products = (indicators * weights @ indicators.T).tocsr()
        pairs, rest = products[:n_first, n_first:].toarray(), products[n_first:, n_first:].toarray()
        scale = np.sqrt(np.maximum(np.diag(rest), TINY))
        left = (rest - pairs.T @ (pairs / _positive(counts[:n_first])[:, None])) / np.outer(scale, scale)
        values, vectors = np.linalg.eigh(left)
        there = values > _REDUNDANT
        root = vectors[:, there] / np.sqrt(values[there]) / scale[:, None]
        rank = np.sum(counts[:n_first] > 0.0) + np.sum(there)
        return cls(names, sizes, places, weights, counts, pairs, root @ root.T, int(rank))

    def __bool__(self) -> bool:
        """Whether anything is absorbed."""
        return bool(self.names)

    def dof(self, groups: Codes | None = None) -> int:
        """The degrees of freedom that the indicators take, that of the constant among them; 0 if there are none.

        With groups (clusters, one or several columns), a covariate each of whose levels lies in one group counts as
        one: the clustered covariance allows for its effects (the default of pyfixest and fixest).
        """
        count = self.rank
        by_column: Any = [] if groups is None else groups.reshape(len(groups), -1).T
        for column in self.places.T:
            n_levels = len(np.unique(column))
            # As many levels as pairs with a group: each level lies in one.
            if any(len(np.unique(column * (group.max() + 1) + group)) == n_levels for group in by_column):
                count -= n_levels - 1
        return count

    def residual(self, columns: Floats) -> Floats:
        """What the indicators leave of columns `(n,)` or `(n, c)`; the columns themselves if nothing is absorbed."""
        if not self:
            return columns
        matrix = columns.reshape(len(columns), -1)
        (left,) = self.net(lambda rows: [matrix[rows]])(slice(None))
        return left.reshape(columns.shape)

    def net(self, columns_at: ColumnsAt) -> ColumnsAt:
        """The columns, in blocks and by rows, net of the indicators; what is rounding of a column is exactly zero."""
        return self.split(columns_at)[1] if self else columns_at

    def split(self, columns_at: ColumnsAt) -> tuple[Floats, ColumnsAt]:
        """The coefficients of every level in the least-squares fit of columns `(L, c)`, and what that leaves.

        With one covariate coefficients are means by level. A level without rows gets the mean of the others.
        """
        sums: Any = 0.0
        squares: Any = 0.0
        for rows in row_slices(len(self.places)):
            columns = np.hstack(columns_at(rows))
            weighted = columns * self.weights[rows, None]
            squares = squares + np.sum(weighted * columns, axis=0)
            sums = sums + _indicators(self.places[rows], len(self.counts)) @ weighted
        first = self.sizes[0]
        own = sums / _positive(self.counts)[:, None]
        own[first:] = self.inverse @ (sums[first:] - self.pairs.T @ own[:first])
        own[:first] -= (self.pairs / _positive(self.counts[:first])[:, None]) @ own[first:]
        rounding = squares - np.sum(sums * own, axis=0) <= _ROUNDING * squares
        for levels in level_slices(self.sizes):
            counts = self.counts[levels]
            own[levels][counts <= 0.0] = counts @ own[levels] / counts.sum()

        def net_at(rows: Any) -> list[Floats]:
            blocks = columns_at(rows)
            left = np.hstack(blocks) - own[self.places[rows]].sum(axis=1)
            left[:, rounding] = 0.0
            return np.split(left, np.cumsum([block.shape[1] for block in blocks])[:-1], axis=1)

        return own, net_at


@dataclass(frozen=True, eq=False)
class LevelEffects:
    r"""What a fit keeps of absorbed indicators, so that it predicts for their levels.

    With one covariate, $g(x, v) = \bar y_l + (\Phi(x, v) - \bar\Phi_l) \beta$ at level l, where $\bar y_l$ and
    $\bar\Phi_l$ are means of its rows. Beside the noise of β this has that of the level's own mean,
    $\sigma / \sqrt{n_l}$, which is independent of it for errors of equal variance, and cancels in contrasts of
    treatments. With several covariates means become least-squares fits on all indicators, and each level has a noise
    as if it were alone.

    Attributes:
        names, sizes: of the covariates, and how many levels each has.
        outcome: `(L,)` the coefficients of the outcome.
        columns: `(L, c)` those of the structural function's columns.
        errors: `(L,)` the standard error of each level's mean.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    outcome: Floats
    columns: Floats
    errors: Floats

    @classmethod
    def fit(
        cls, within: Within, outcome: Floats, columns_at: ColumnsAt, coefficients: Floats, dof: float
    ) -> LevelEffects:
        """Of the rows of a fit: its outcomes, columns and their coefficients `(c,)`, and degrees of freedom left."""

        def both(rows: Any) -> list[Floats]:
            return [outcome[rows, None], *columns_at(rows)]

        of_levels, net_at = within.split(both)
        weights, counts, square = within.weights, within.counts, 0.0
        for rows in row_slices(len(outcome)):
            own, *others = net_at(rows)
            square += float(weights[rows] @ (own[:, 0] - np.hstack(others) @ coefficients) ** 2)
        variance = square / weights.sum() * len(outcome) / max(dof, 1.0)
        errors = np.sqrt(variance * (_indicators(within.places, len(counts)) @ weights**2)) / _positive(counts)
        # Nothing is known of a level without rows but how much levels differ.
        effects = of_levels[:, 0] - of_levels[:, 1:] @ coefficients
        for levels in level_slices(within.sizes):
            there = counts[levels] > 0.0
            errors[levels][~there] = np.hypot(np.std(effects[levels][there]), np.sqrt(variance))
        return cls(within.names, within.sizes, of_levels[:, 0], of_levels[:, 1:], errors)

    def places(self, schema: Schema, covariates: FloatArray) -> Codes:
        """The positions of rows' levels among all levels, `(n, k)`."""
        blocks = {block.name: block for block in schema.blocks}
        return level_places([blocks[name] for name in self.names], covariates).astype(np.int64)

    def own_effects(self, coefficients: Floats) -> Floats:
        """What each level adds to the structural function with these coefficients, `(L,)`."""
        return self.outcome - self.columns @ coefficients

    def means(self, places: Codes) -> Floats:
        """The part of the columns that the levels determine, `(n, c)`."""
        return self.columns[places].sum(axis=1)

    def noise(self, places: Codes, n_treatments: int) -> Floats:
        """Factors `(k, m, n)` of the noise of the levels' own means, one for each level, the same for all treatments.

        More than a hundred levels share as many factors, with signs drawn at random: the variance at a point and the
        covariance of points of one level are exact, those of averages nearly so.
        """
        distinct, factor = np.unique(places, return_inverse=True)
        signs = np.ones(len(distinct))
        if len(distinct) > _MAX_FACTORS:
            signs = np.random.default_rng(0).choice([-1.0, 1.0], len(distinct))
        values = (signs * self.errors[distinct])[factor].reshape(places.shape)
        factors = np.zeros((min(len(distinct), _MAX_FACTORS), len(places)))
        for column, value in zip(factor.reshape(places.shape).T, values.T, strict=True):
            factors[column % _MAX_FACTORS, np.arange(len(places))] += value
        return np.repeat(factors[:, None], n_treatments, axis=1)


def level_places(blocks: Sequence[CovariateBlock], covariates: FloatArray) -> Positions:
    """Where each row's level of each block stands among the levels of all of them `(n, k)`, by the indicators."""
    places = np.zeros((len(covariates), len(blocks)), np.intp)
    first = 0
    for j, block in enumerate(blocks):
        places[:, j] = first + np.argmax(covariates[:, block.start : block.stop], axis=1)
        first += block.width
    return places


def level_slices(sizes: Sequence[int]) -> list[slice]:
    """Where the levels of each covariate are among those of all."""
    stops = np.cumsum(sizes).tolist()
    return [slice(stop - size, stop) for size, stop in zip(sizes, stops, strict=True)]


def _indicators(places: Positions, n_levels: int) -> csr_array:
    """Of every level, a row each, `(L, n)`."""
    n, k = places.shape
    return csr_array((np.ones(n * k), (places.ravel(), np.repeat(np.arange(n), k))), shape=(n_levels, n))


def row_slices(n_rows: int) -> Iterator[slice]:
    """Slices of rows, of bounded length."""
    return (slice(start, min(start + _PIECE, n_rows)) for start in range(0, n_rows, _PIECE))


def _positive(counts: Floats) -> Floats:
    return np.where(counts > 0.0, counts, 1.0)
