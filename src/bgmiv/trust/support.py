r"""Where the data show what g is asked about, and where it is extrapolated.

A point (x, v) is inside the support if both hold: covariates like v occur, and people with such covariates have
treatments like x. Each is measured by a density, and inside is what is at least as dense as the sparsest hundredth of
the rows that were fitted on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgmiv.data.ivdata import IVData
from bgmiv.data.schema import Schema

__all__ = ["OUTSIDE", "LinearSupport", "Novelty", "fit_novelty"]

Floats = NDArray[np.float64]

OUTSIDE = 0.01
"""The share of the rows themselves that each of the two densities calls outside."""

_MOST_ROWS = 2000
# Weight of the identity in the covariance of standardised columns: it keeps columns that nearly agree apart.
_SHRINKAGE = 0.05


@dataclass(frozen=True, eq=False)
class Novelty:
    """How far columns are from where they were, as a Mahalanobis distance.

    Attributes:
        centre, spread: of each column, `(d,)`.
        precision: the inverse covariance of standardised columns, `(d, d)`.
        limit: the squared distance that all but `OUTSIDE` of the rows keep within.
    """

    centre: Floats
    spread: Floats
    precision: Floats
    limit: float

    def distances(self, columns: ArrayLike) -> Floats:
        """Squared distances of rows `(n, d)`."""
        z = (np.asarray(columns, np.float64) - self.centre) / self.spread
        return np.asarray(np.einsum("ij,jk,ik->i", z, self.precision, z), np.float64)

    def usual(self, columns: ArrayLike) -> NDArray[np.bool_]:
        """Which rows are no further off than nearly all rows were."""
        return self.distances(columns) <= self.limit


def fit_novelty(columns: ArrayLike) -> Novelty:
    """The novelty measure of rows `(n, d)`.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(1000, 2))
        >>> fit_novelty(rows).usual([[0.0, 0.0], [6.0, 0.0]]).tolist()
        [True, False]
    """
    values = np.asarray(columns, np.float64)
    centre, spread = values.mean(axis=0), values.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    z = (values - centre) / spread
    covariance = (1.0 - _SHRINKAGE) * (z.T @ z) / max(len(z), 1) + _SHRINKAGE * np.eye(z.shape[1])
    measure = Novelty(centre, spread, np.linalg.inv(covariance), np.inf)
    limit = float(np.quantile(measure.distances(values), 1.0 - OUTSIDE)) if z.shape[1] else np.inf
    return Novelty(centre, spread, measure.precision, limit)


@dataclass(frozen=True, eq=False)
class LinearSupport:
    """The support by a linear model of the treatment: what a method without a treatment model of its own has.

    Attributes:
        schema: of the data.
        novelty: of the covariates.
        coefficients: of the treatment on a constant and standardised covariates, `(1 + p,)`.
        residuals: of some rows, in rising order.
        width: of the kernel on residuals.
        least: the density of residuals that all but `OUTSIDE` of the rows have.
        levels: how often each level of a discrete treatment occurs; empty for a number.
    """

    schema: Schema
    novelty: Novelty
    coefficients: Floats
    residuals: Floats
    width: float
    least: float
    levels: Floats

    @classmethod
    def fit(cls, data: IVData) -> LinearSupport:
        """The support of validated data, from 2000 of its rows at most.

        Example:
            >>> rng = np.random.default_rng(0)
            >>> w, v, u = rng.normal(size=(3, 1000))
            >>> data = IVData.from_arrays(u, v + w, instruments=w, covariates={"age": v})
            >>> LinearSupport.fit(data).inside([0.0, 9.0, 0.0], [[0.0], [0.0], [9.0]]).tolist()
            [True, False, False]
        """
        rows = np.random.default_rng(0).permutation(data.n_rows)[:_MOST_ROWS]
        v, x = data.covariates[rows].astype(np.float64), data.treatment[rows].astype(np.float64)
        novelty = fit_novelty(v)
        columns = _with_constant(novelty, v)
        ridge = np.sqrt(_SHRINKAGE * len(rows)) * np.eye(columns.shape[1])
        ridge[0] = 0.0
        target = np.concatenate([x, np.zeros(columns.shape[1])])
        coefficients = np.linalg.lstsq(np.vstack([columns, ridge]), target, rcond=None)[0]
        residuals = np.sort(x - columns @ coefficients)
        width = max(1.06 * float(residuals.std()) * len(rows) ** -0.2, np.finfo(float).tiny)
        variable = data.schema.treatment
        levels = np.bincount(x.astype(np.int64), minlength=2) / len(x) if variable.discrete else np.zeros(0)
        found = cls(data.schema, novelty, coefficients, residuals, width, 0.0, levels)
        least = float(np.quantile(found._density(residuals), OUTSIDE))
        return cls(data.schema, novelty, coefficients, residuals, width, least, levels)

    def inside(self, x: ArrayLike, v: ArrayLike) -> NDArray[np.bool_]:
        """Which rows of treatments `(n,)` (codes of levels) and flat covariates `(n, p)` lie inside."""
        treatment, covariates = np.asarray(x, np.float64), np.asarray(v, np.float64)
        usual = self.novelty.usual(covariates) if covariates.shape[1] else np.ones(len(treatment), bool)
        if len(self.levels):
            return usual & (self.levels[treatment.astype(np.int64)] >= OUTSIDE)
        residuals = treatment - _with_constant(self.novelty, covariates) @ self.coefficients
        return usual & (self._density(residuals) >= self.least)

    def _density(self, residuals: Floats) -> Floats:
        # Row by row in blocks: all pairs at once would not fit for many rows.
        found = np.empty(len(residuals))
        for start in range(0, len(residuals), _MOST_ROWS):
            part = residuals[start : start + _MOST_ROWS]
            gaps = (part[:, None] - self.residuals) / self.width
            found[start : start + _MOST_ROWS] = np.mean(np.exp(-0.5 * gaps**2), axis=1)
        return found


def _with_constant(novelty: Novelty, v: Floats) -> Floats:
    return np.hstack([np.ones((len(v), 1)), (v - novelty.centre) / novelty.spread])
