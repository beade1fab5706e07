"""What a sieve is fitted to: numbers of all rows, functions of them, folds, and the regressors of the first stage."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgmiv.data.ivdata import IVData
from bgmiv.data.within import Within
from bgmiv.sieve.bases import FREE, TERMS, ColumnBasis, TreatmentBasis, column_products, sieve_columns
from bgmiv.sieve.sampling import BlocksAt

__all__ = ["MIN_ROWS_A_COLUMN", "Columns", "Learned", "draw_folds", "instrument_blocks", "stretches_of"]

Floats = NDArray[np.float64]

# A term with more columns is not offered.
_MAX_COLUMNS = 200
# A surface that also bends in the treatment is hopeless with more covariates.
_FEW_COVARIATES = 5
MIN_ROWS_A_COLUMN = 4
"""Covariates enter unpenalised while a linear model has at least this many rows for each of its columns."""
# Beyond this many rows, and with groups, predictions leave out a fold instead of a row.
_MAX_LEAVE_ONE_OUT = 20_000
_FOLDS = 20


class Learned(NamedTuple):
    """What several models, each trained without some of the rows, say of the rows of the data.

    Attributes:
        own: `(n,)` E[f(x, v) | w, v] by the model that has not seen the row.
        averaged: `(n,)` the same by all models on average, whose f is the one that predicts.
        treatment: `(n, k)` E[x | w, v] by the model that has not seen the row; for a treatment with levels the
            probabilities of all but the first.
    """

    own: Floats
    averaged: Floats
    treatment: Floats

    def take(self, rows: NDArray[Any]) -> Learned:
        """Some rows, or all in another order."""
        return Learned(*(np.asarray(part[rows], np.float64) for part in self))


class Columns(NamedTuple):
    """Numbers of all rows, the functions of them, and the indicators that all are taken net of.

    `v` has no columns of covariates that are absorbed (`bgmiv.data.within`).
    """

    data: IVData
    y: Floats
    x: Floats
    v: Floats
    w: Floats
    treatment: TreatmentBasis
    covariates: ColumnBasis
    learned: Learned | None
    within: Within

    @classmethod
    def of(cls, data: IVData, rng: np.random.Generator, *, waves: int, bends: int, segments: int = 9) -> Columns:
        """The columns of rows, wide blocks reduced, in double precision, and their bases."""
        y, x, w = (np.asarray(column, np.float64) for column in (data.outcome, data.treatment, data.instruments))
        within = Within.of(data.schema, data.covariates, data.weights)
        v = sieve_columns(data.schema, data.covariates, within.names)
        levels = max(2, data.schema.treatment.width) if data.schema.treatment.discrete else 0
        treatment = TreatmentBasis.fit(x, levels, bends, segments=segments)
        return cls(data, y, x, v, w, treatment, ColumnBasis.fit(v, rng, waves=waves), None, within)

    @property
    def weights(self) -> Floats | None:
        """Of the rows, if they have some."""
        return None if self.data.weights is None else np.asarray(self.data.weights, np.float64)

    @property
    def centre(self) -> Any:
        """What the outcome is taken net of: the absorbed indicators' part of each row, or the mean."""
        return self.y - self.within.residual(self.y) if self.within else self.y.mean()

    @property
    def scale(self) -> float:
        """The standard deviation of the rest."""
        return float(np.std(self.y - self.centre))

    @property
    def correction(self) -> float:
        """By which absorbed indicators, which neither stage counts, raise a variance."""
        n = len(self.y)
        return n / max(n - self.within.dof(self.data.groups), 1)

    @property
    def wide(self) -> bool:
        """Whether there are too many covariates for a linear model."""
        rows = len(self.y) - self.within.dof()
        return MIN_ROWS_A_COLUMN * (2 + len(self.covariates.used) + self.w.shape[1]) > rows

    @property
    def varying(self) -> NDArray[np.bool_]:
        """The covariates' lines that absorbed indicators do not determine, `(p,)`."""
        return np.any(self.within.residual(self.covariates(self.v)["lines"]) != 0.0, axis=0)

    @property
    def n_shrunk(self) -> int:
        """How many covariate columns are penalised for that."""
        return len(self.covariates.used) if self.wide else 0

    def terms(self) -> tuple[tuple[str, ...], int]:
        """The terms that have columns, and not too many; and how many of them, the first ones, are not penalised."""
        kinds = {kind: part.shape[1] for kind, part in self.covariates(self.v[:1]).items()}
        sizes = {name: term.width(self.treatment.sizes) * kinds[term.kind] for name, term in TERMS.items()}
        if len(self.covariates.moderators) > _FEW_COVARIATES:
            sizes["curves by surface"] = 0
        if self.within:
            sizes["constant"] = 0
        found = tuple(name for name, size in sizes.items() if 0 < size <= _MAX_COLUMNS or (size and name in FREE))
        return found, sum(name in FREE for name in found) - (self.wide and "covariates" in found)

    def take(self, order: NDArray[np.intp]) -> Columns:
        """The rows in another order."""
        learned = None if self.learned is None else self.learned.take(order)
        moved = {name: getattr(self, name)[order] for name in ("y", "x", "v", "w")}
        return self._replace(data=self.data.take(order), learned=learned, within=self.within.take(order), **moved)


def draw_folds(data: IVData, rng: np.random.Generator, units: NDArray[np.int64] | None = None) -> NDArray[np.intp]:
    """The fold of each row; rows of a group are in one. There is only one fold where each row is left out alone.

    Without groups, rows of a unit are in one, if units are given: net of its mean, a row contains the others' errors.
    """
    units = units if data.groups is None else data.groups
    if units is not None:
        return (rng.permutation(int(units.max()) + 1) % _FOLDS)[units]
    if data.n_rows <= _MAX_LEAVE_ONE_OUT:
        return np.zeros(data.n_rows, np.intp)
    return rng.permutation(data.n_rows) % _FOLDS


def stretches_of(folds: NDArray[np.intp]) -> list[slice]:
    """Where each fold lies once rows are sorted by it; folds without rows are left out."""
    ends = np.cumsum(np.bincount(folds)).tolist()
    return [slice(start, stop) for start, stop in pairwise([0, *ends]) if stop > start]


def instrument_blocks(
    columns: Columns, waves: int, rng: np.random.Generator, *, max_free: float = np.inf
) -> Callable[[Columns], BlocksAt]:
    """The first stage's regressors of rows in any order; the first block is not penalised.

    It holds the constant, the instruments unless there are more than `max_free`, and the covariates unless they are
    too many for the rows.
    """
    own = ColumnBasis.fit(columns.w, rng, waves=1)
    varying = columns.varying
    wide, n_v, n_w = columns.wide, len(columns.covariates.moderators), len(own.used)
    joint = ColumnBasis.fit(np.hstack([columns.w, columns.v]), rng, waves=waves, max_columns=0)

    def of(part: Columns) -> BlocksAt:
        def blocks_at(rows: Any) -> list[Floats]:
            of_w, of_v = own(part.w[rows]), part.covariates(part.v[rows])
            linear = [of_w["constant"][:, : 0 if part.within else 1]]
            few = n_w * n_v <= _MAX_COLUMNS
            crossed = column_products(of_w["moderators"], of_v["moderators"]) if few else of_v["lines"][:, :0]
            blocks = [
                np.hstack([of_w["curves"], of_w["products"]]),
                crossed,
                of_v["curves"],
                of_v["products"],
                joint(np.hstack([part.w[rows], part.v[rows]]))["waves"],
            ]
            (blocks if n_w > max_free else linear).append(of_w["lines"])
            (blocks if wide else linear).append(of_v["lines"][:, varying])
            return [np.hstack(linear), *(block for block in blocks if block.shape[1])]

        return blocks_at

    return of
