"""Where the data show what g is asked about, and where g is extrapolated.

A point (x, v) is in the support if covariates like v occur, and rows with such covariates have treatments like x. Each
is measured by a density; a point is inside if it is at least as dense as all but 1% of the fitted rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from bgmiv.arrays import TINY, Booleans, Floats, means_and_spreads
from bgmiv.data.ivdata import IVData

__all__ = ["OUTSIDE", "LinearSupport", "Novelty", "fit_novelty"]


OUTSIDE = 0.01
"""The share of the fitted rows that each of the two densities calls outside."""

_MAX_ROWS = 2000
_MAX_COLUMNS = 100
_MAX_COMPONENTS = 50
# Weight of the identity in the covariance of standardised columns: nearly collinear columns keep a finite precision.
_SHRINKAGE = 0.05
# Ends of what is inside are looked for between points so far apart, in widths of the kernel, and no further beyond the
# residuals than where a kernel falls below one residual in `_MAX_ROWS`.
_STEP, _REACH, _EXACT = 0.25, 4.0, 1e-300


@dataclass(frozen=True, eq=False)
class Novelty:
    """How far rows are from those that were fitted, as a Mahalanobis distance.

    Attributes:
        centre, spread: mean and standard deviation of each column, `(d,)`.
        precision: the inverse covariance of standardised columns, `(d, d)`.
        limit: the squared distance that all but `OUTSIDE` of the fitted rows keep within.
    """

    centre: Floats
    spread: Floats
    precision: Floats
    limit: float

    def distances(self, columns: ArrayLike) -> Floats:
        """Squared distances of rows `(n, d)`."""
        z = self.standardised(columns)
        return np.sum((z @ self.precision) * z, axis=1)

    def usual(self, columns: ArrayLike) -> Booleans:
        """Which rows are within the limit."""
        return self.distances(columns) <= self.limit

    def standardised(self, columns: ArrayLike) -> Floats:
        """Rows `(n, d)` in standard deviations from the centre."""
        return (np.asarray(columns, np.float64) - self.centre) / self.spread


def fit_novelty(columns: ArrayLike) -> Novelty:
    """The novelty measure of rows `(n, d)`."""
    values = np.asarray(columns, np.float64)
    centre, spread = means_and_spreads(values)
    z = (values - centre) / spread
    covariance = (1.0 - _SHRINKAGE) * (z.T @ z) / len(z) + _SHRINKAGE * np.eye(z.shape[1])
    known = Novelty(centre, spread, np.linalg.inv(covariance).astype(np.float64), np.inf)
    return replace(known, limit=float(np.quantile(known.distances(values), 1.0 - OUTSIDE)))


@dataclass(frozen=True, eq=False)
class LinearSupport:
    """The support by a linear model of the treatment, for methods without a treatment model of their own.

    More than 100 covariate columns are first projected on their 50 leading principal components.

    Attributes:
        loadings: of these components, `(p, k)`; `(0, 0)` for covariates taken as they are.
        novelty: of the covariates or components.
        coefficients: of the treatment on a constant and these columns standardised, `(1 + d,)`.
        residuals: of up to 2000 rows, in increasing order.
        width: of the kernel on residuals.
        min_density: the density of residuals that all but `OUTSIDE` of the rows have.
        levels: the share of each level of a discrete treatment; empty for a number.
    """

    loadings: Floats
    novelty: Novelty
    coefficients: Floats
    residuals: Floats
    width: float
    min_density: float
    levels: Floats

    @classmethod
    def fit(cls, data: IVData) -> LinearSupport:
        """The support of validated data, from 2000 of its rows at most."""
        rows = np.random.default_rng(0).permutation(data.n_rows)[:_MAX_ROWS]
        v, x = data.covariates[rows].astype(np.float64), data.treatment[rows].astype(np.float64)
        loadings = _leading_components(v) if v.shape[1] > _MAX_COLUMNS else np.zeros((0, 0))
        v = v @ loadings if loadings.size else v
        novelty = fit_novelty(v)
        columns = np.insert(novelty.standardised(v), 0, 1.0, axis=1)
        ridge = _SHRINKAGE * len(rows) * np.eye(columns.shape[1])
        ridge[0] = 0.0
        coefficients = np.linalg.solve(columns.T @ columns + ridge, columns.T @ x).astype(np.float64)
        residuals = np.sort(x - columns @ coefficients)
        width = max(1.06 * float(residuals.std()) * len(rows) ** -0.2, TINY)
        discrete = data.schema.treatment.discrete
        levels = np.bincount(x.astype(np.int64), minlength=2) / len(x) if discrete else np.zeros(0)
        support = cls(loadings, novelty, coefficients, residuals, width, 0.0, levels)
        return replace(support, min_density=float(np.quantile(support._density(residuals), OUTSIDE)))

    def inside(self, x: ArrayLike, v: ArrayLike) -> Booleans:
        """Which points lie inside: `(n,)`, or `(m, n)` for m treatments per row."""
        treatment, columns = np.asarray(x, np.float64), self._columns(np.asarray(v))
        usual = self.novelty.usual(columns)
        if len(self.levels):
            return usual & (self.levels[treatment.astype(np.int64)] >= OUTSIDE)
        residuals = treatment - np.insert(self.novelty.standardised(columns), 0, 1.0, axis=1) @ self.coefficients
        return usual & (np.searchsorted(self._ends, residuals, side="right") % 2 == 1)

    @cached_property
    def _ends(self) -> Floats:
        """Where residuals begin and end to be inside, in turns."""
        step = _STEP * self.width
        cells = np.floor(self.residuals[[0, -1]] / step) + np.array([-_REACH, _REACH]) / _STEP
        points = step * np.arange(cells[0], cells[1] + 1.0)

        def excess(residual: float) -> float:
            return self._density(np.array([residual]))[0] - self.min_density

        above = self._density(points) >= self.min_density
        changes = np.flatnonzero(above[1:] != above[:-1])
        return np.array([brentq(excess, points[i], points[i + 1], xtol=_EXACT) for i in changes])

    def _columns(self, v: NDArray[np.floating]) -> Floats:
        if not self.loadings.size:
            return v.astype(np.float64)
        return np.concatenate([part.astype(np.float64) @ self.loadings for part in _blocks(v)])

    def _density(self, residuals: Floats) -> Floats:
        gaps = ((part[:, None] - self.residuals) / self.width for part in _blocks(residuals))
        return np.concatenate([np.mean(np.exp(-0.5 * gap**2), axis=1) for gap in gaps])


def _blocks(rows: NDArray[np.floating]) -> list[NDArray[np.floating]]:
    """Many rows in blocks: not all are copied to double precision, or paired with all residuals, at once."""
    return np.array_split(rows, len(rows) // _MAX_ROWS + 1)


def _leading_components(v: Floats) -> Floats:
    """Loadings `(p, k)` of the leading principal components of standardised columns, by a randomised SVD."""
    centre, spread = means_and_spreads(v)
    # Single precision is enough for directions, and twice as fast.
    z = ((v - centre) / spread).astype(np.float32)
    k = min(_MAX_COMPONENTS, len(z) - 1)
    basis = z @ np.random.default_rng(0).standard_normal((z.shape[1], k + 10), np.float32)
    basis = z @ (z.T @ np.linalg.qr(basis)[0])
    right = np.linalg.svd(np.linalg.qr(basis)[0].T @ z, full_matrices=False)[2][:k]
    return right.T / spread[:, None]
