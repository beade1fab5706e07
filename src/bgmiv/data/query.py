"""A question to a fitted method: which treatments, for which rows of covariates.

Covariates are validated once and what a method computes of them (latents, features) is computed once, however many
treatments and groups of rows are asked about afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from bgmiv.data.ivdata import IVData, read_weights
from bgmiv.data.messages import Array, FloatArray, Floats, Positions
from bgmiv.data.schema import Schema, is_scalar
from bgmiv.data.table import Table, check_same_rows, read_column, read_columns

__all__ = ["Encoded", "Encoder", "Query", "Rows", "query_along", "query_at", "rows_of"]

# Up to so many rows, what a method computes of some it computes of all.
_MAX_WHOLE = 100_000
# Of the rows that stand for all: the same whenever they are asked for.
_SEED = 0

Encoded = tuple[np.ndarray, ...]
"""What a method computes of covariates: arrays whose first axis is that of the rows."""


class Encoder(Protocol):
    """What computes something of covariates that does not depend on the treatment."""

    @property
    def encoding_key(self) -> object:
        """What the computation depends on: two encoders with the same object compute the same."""

    def encode(self, covariates: FloatArray) -> Encoded:
        """Arrays with one entry a row, from the flat matrix `(n, p)`."""


class Rows:
    """Validated covariates of n rows, and what methods have computed of them.

    Args:
        covariates: the flat matrix `(n, p)`, validated.
        weights: `(n,)` how many rows of the population each row stands for; None for as many each.
        index: pandas' row labels, if the rows came with some: weights with other labels are refused.
    """

    def __init__(self, covariates: FloatArray, weights: FloatArray | None = None, index: Any = None) -> None:
        """Keep the arrays; nothing is computed yet."""
        self.covariates = covariates
        self.weights = weights
        self.index = index
        self._encoded: dict[int, tuple[object, Encoded]] = {}
        self._drawn: dict[int, tuple[Rows, Positions]] = {}
        self._origin: tuple[Rows, Array] | None = None

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.covariates)

    @property
    def shares(self) -> Floats:
        """Each row's share of a weighted average, `(n,)`."""
        weights = np.ones(len(self)) if self.weights is None else np.asarray(self.weights, np.float64)
        return weights / weights.sum()

    def take(self, index: Any) -> Rows:
        """Some of these rows, by position or mask; what was computed of them is kept."""
        positions = np.arange(len(self))[index]
        weights = None if self.weights is None else self.weights[positions]
        part = Rows(self.covariates[positions], weights, None if self.index is None else self.index[positions])
        origin, before = self._origin or (self, np.arange(len(self)))
        part._origin = (origin, before[positions])
        return part

    def drawn(self, max_rows: int) -> tuple[Rows, Positions]:
        """`max_rows` draws of the rows in proportion to their weights, as rows weighted by how often they were drawn.

        The rows are divided, in their order, into as many strata of equal weight, and one row is drawn at random in
        each: a file's order neither hides rows, as every k-th row would, nor is what it tells of them lost.
        """
        if max_rows not in self._drawn:
            jitter = np.random.default_rng(_SEED).random(max_rows)
            places = np.searchsorted(np.cumsum(self.shares), (np.arange(max_rows) + jitter) / max_rows, side="right")
            positions, counts = np.unique(np.minimum(places, len(self) - 1), return_counts=True)
            part = self.take(positions)
            part.weights = counts.astype(np.float64)
            self._drawn[max_rows] = part, positions
        return self._drawn[max_rows]

    def with_weights(self, weights: Any) -> Rows:
        """The same rows with other weights; what was computed of them is kept."""
        table = read_column(weights, "sample_weight")
        check_same_rows({"the averaged rows": self._table(), "sample_weight": table})
        same = Rows(self.covariates, read_weights(table.columns[0]), self.index)
        same._origin = self._origin or (self, np.arange(len(self)))
        return same

    def _table(self) -> Table:
        """Their number and labels, to be compared with those of something else."""
        return Table((), len(self), True, self.index)

    def encoded_by(self, encoder: Encoder) -> Encoded:
        """What the method computes of these covariates, computed once for them and all rows taken from them.

        A few rows of very many are computed by themselves.
        """
        key = encoder.encoding_key
        if self._origin is not None:
            origin, positions = self._origin
            if id(key) in origin._encoded or len(origin) <= max(_MAX_WHOLE, 2 * len(self)):
                return tuple(part[positions] for part in origin.encoded_by(encoder))
        if id(key) not in self._encoded:
            # The key is kept beside the result, so that its id stays its own.
            self._encoded[id(key)] = (key, encoder.encode(self.covariates))
        return self._encoded[id(key)][1]


@dataclass(frozen=True, eq=False)
class Query:
    """m treatments for each of n rows.

    Args:
        treatment: `(m, n)`, or `(m, 1)` for treatments that are the same for every row; numbers, or codes of levels.
        rows: the rows of covariates.
    """

    treatment: FloatArray
    rows: Rows

    @property
    def shape(self) -> tuple[int, int]:
        """Treatments and rows (m, n)."""
        return len(self.treatment), len(self.rows)

    def collect(self, function: Callable[[FloatArray, Positions], np.ndarray], max_points: int) -> np.ndarray:
        """The values `(m, n, ...)` of a function of treatments and row positions.

        It is asked for at most `max_points` of the m · n points at a time, the rows of the first treatment first.
        """
        m, n = self.shape
        parts = []
        for start in range(0, m * n, max_points):
            which, rows = np.divmod(np.arange(start, min(start + max_points, m * n)), n)
            columns = np.zeros_like(rows) if self._shared else rows
            parts.append(np.asarray(function(self.treatment[which, columns], rows)))
        flat = np.concatenate(parts)
        return flat.reshape(m, n, *flat.shape[1:])

    def take(self, index: Any) -> Query:
        """The same treatments for some of the rows."""
        positions = np.arange(len(self.rows))[index]
        return self._at(self.rows.take(positions), positions)

    def positive(self) -> Query:
        """The same treatments for the rows with a weight above zero."""
        weights = self.rows.weights
        return self if weights is None or (weights > 0.0).all() else self.take(weights > 0.0)

    def drawn(self, max_rows: int) -> Query:
        """The same treatments for rows drawn in proportion to their weights, if there are more than `max_rows`."""
        return self if len(self.rows) <= max_rows else self._at(*self.rows.drawn(max_rows))

    def _at(self, rows: Rows, positions: Positions) -> Query:
        return Query(self.treatment if self._shared else self.treatment[:, positions], rows)

    @property
    def _shared(self) -> bool:
        """Whether all rows have the same treatments."""
        return self.treatment.shape[1] == 1


def rows_of(schema: Schema, covariates: Any, *, n_rows: int = 1, weights: Any = None) -> Rows:
    """Rows from covariates as `predict` takes them or from the data of a fit; `Rows` as they are.

    `n_rows` is how many there are for a fit without covariates. `weights`, if given, take the place of those that rows
    have.
    """
    if isinstance(covariates, Rows):
        rows = covariates
    elif isinstance(covariates, IVData):
        rows = Rows(covariates.covariates, covariates.weights, covariates.index)
    else:
        table = None if covariates is None else read_columns(covariates, "covariates")
        flat = schema.check_covariates(table, n_rows)
        rows = Rows(flat, index=None if table is None else table.index)
    return rows if weights is None else rows.with_weights(weights)


def query_at(schema: Schema, treatment: Any, covariates: Any = None) -> Query:
    """One treatment a row, or one for all rows, as `predict` takes them."""
    if is_scalar(treatment):
        rows = rows_of(schema, covariates)
        return Query(schema.check_treatment(treatment, len(rows))[None], rows)
    table = read_column(treatment, "treatment")
    values = schema.check_treatment(table, table.n_rows)
    rows = rows_of(schema, covariates, n_rows=table.n_rows)
    if schema.blocks:
        check_same_rows({"treatment": table, "covariates": rows._table()})
    return Query(values[None], rows)


def query_along(schema: Schema, treatments: Any, covariates: Any = None, *, weights: Any = None) -> Query:
    """The same m treatments (numbers or levels) for every row; one row for a fit without covariates."""
    table = read_column([treatments] if is_scalar(treatments) else treatments, "treatment")
    rows = rows_of(schema, covariates, weights=weights)
    return Query(schema.check_treatment(table, table.n_rows)[:, None], rows)
