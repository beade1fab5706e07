"""Gaussian kernels and finite features that reproduce them, in double precision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack, solve_triangular
from scipy.spatial.distance import cdist, pdist

__all__ = ["GaussianKernel", "KernelFeatures", "fit_features", "kernel_pieces", "median_lengthscales"]

Floats = NDArray[np.float64]

# Exact differences up to this width; beyond it the matrix-product form, which is many times faster.
_DIRECT_WIDTH = 16
# A kernel matrix of landmarks is factored until what is left of its unit diagonal falls below this.
_TOLERANCE = 1e-12
# Medians over more rows change nothing that matters and cost the square of their number.
_MEDIAN_ROWS = 2000
# So many kernel entries are computed together (128 MB).
_PIECE = 1 << 24


def median_lengthscales(values: Floats, groups: Sequence[slice]) -> Floats:
    """The median heuristic: each column's median distance between two rows over its group of columns, (d,).

    Where more than half of the distances are zero (a binary column), the median of the others is taken. Of the rows,
    which are in random order, the first 2,000 are used.

    Example:
        >>> median_lengthscales(np.array([[0.0, 1.0], [1.0, 1.0], [3.0, 5.0]]), [slice(0, 1), slice(1, 2)])
        array([2., 4.])
    """
    scales = np.ones(values.shape[1])
    for group in groups:
        chosen = np.ascontiguousarray(values[:_MEDIAN_ROWS, group])
        if chosen.shape[1] == 1:
            low, high = chosen.min(), chosen.max()
            if ((chosen == low) | (chosen == high)).all():
                # An indicator has one distance, and there may be hundreds of them.
                scales[group] = high - low or 1.0
                continue
        if chosen.shape[1] <= _DIRECT_WIDTH:
            squares = pdist(chosen, "sqeuclidean")
        else:
            squares = _square_distances(chosen, chosen)[np.triu_indices(len(chosen), 1)]
        distances = np.sqrt(squares)
        median = np.median(distances)
        if median == 0.0 and distances.any():
            median = np.median(distances[distances > 0.0])
        scales[group] = median if median > 0.0 else 1.0
    return scales


@dataclass(frozen=True, eq=False)
class GaussianKernel:
    """k(a, b) = exp(−½ Σⱼ (aⱼ − bⱼ)²/ℓⱼ²) with the lengthscale ℓⱼ of each column.

    Example:
        >>> GaussianKernel(np.array([1.0, 2.0]))(np.array([[0.0, 0.0]]), np.array([[0.0, 2.0]])).round(4)
        array([[0.6065]])
    """

    lengthscales: Floats

    def __call__(self, a: Floats, b: Floats) -> Floats:
        """The kernel matrix (len(a), len(b))."""
        matrix = _square_distances(a / self.lengthscales, b / self.lengthscales)
        matrix *= -0.5
        return np.exp(matrix, out=matrix)

    def expand(self, values: Floats, points: Floats, weights: Floats) -> Floats:
        """The function Σᵢ weightᵢ k(pointᵢ, ·) at (m, d) values, (m,)."""
        return np.concatenate(
            [self(values[rows], points) @ weights for rows in kernel_pieces(len(values), len(points))]
        )


@dataclass(frozen=True, eq=False)
class KernelFeatures:
    """Features φ with φ(a)·φ(b) = k(a, b) on the span of some points (Nyström's map; exact at the points).

    φ(a) = C⁻¹ k(points, a), where C = `factor` is the lower Cholesky factor of the points' kernel matrix.
    """

    kernel: GaussianKernel
    points: Floats
    factor: Floats

    def __call__(self, values: Floats) -> Floats:
        """The features of (m, d) values, (m, number of points)."""
        features = np.empty((len(values), len(self.points)))
        for rows in kernel_pieces(len(values), len(self.points)):
            inner = self.kernel(self.points, values[rows])
            features[rows] = solve_triangular(self.factor, inner, lower=True, overwrite_b=True, check_finite=False).T
        return features

    def weights(self, coefficients: Floats) -> Floats:
        """The weights a of the points for which Σᵢ aᵢ k(pointᵢ, ·) = φ(·)·coefficients."""
        return solve_triangular(self.factor, coefficients, lower=True, trans="T", check_finite=False)


def fit_features(kernel: GaussianKernel, values: Floats, landmarks: int) -> tuple[KernelFeatures, Floats]:
    """Features spanned by the first `landmarks` rows (in random order: a uniform sample), and Φ (n, r) of all rows.

    With no more rows than landmarks this is exact: the pivoted Cholesky factor K = ΦΦᵀ of the whole kernel matrix,
    stopped where the diagonal of the rest is below 1e-12, the rounding of K itself. Otherwise it is Nyström's
    approximation.
    """
    chosen = values[:landmarks]
    packed, pivots, rank, _ = lapack.dpstrf(kernel(chosen, chosen), tol=_TOLERANCE, lower=1, overwrite_a=1)
    order = pivots - 1
    factor = np.tril(packed[:rank, :rank])
    features = KernelFeatures(kernel, np.ascontiguousarray(chosen[order[:rank]]), factor)
    if len(values) > landmarks:
        return features, features(values)
    phi = np.empty((len(chosen), rank))
    phi[order] = np.tril(packed[:, :rank])
    return features, phi


def kernel_pieces(n_rows: int, n_points: int) -> Iterator[slice]:
    """Rows whose kernel with so many points is computed together."""
    step = max(1, _PIECE // max(1, n_points))
    for start in range(0, n_rows, step):
        yield slice(start, start + step)


def _square_distances(a: Floats, b: Floats) -> Floats:
    if a.shape[1] <= _DIRECT_WIDTH:
        return cdist(a, b, "sqeuclidean")
    # Around a common centre the subtraction of large squares loses fewer digits.
    centre = b.mean(axis=0)
    a, b = a - centre, b - centre
    squares = a @ b.T
    squares *= -2.0
    squares += np.einsum("ij,ij->i", a, a)[:, None]
    squares += np.einsum("ij,ij->i", b, b)[None, :]
    return np.maximum(squares, 0.0, out=squares)
