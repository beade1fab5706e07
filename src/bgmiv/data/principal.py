"""Principal scores of columns: what is stored of them, and how they are found without large matrices."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh

from bgmiv.data.scaling import Affine, Standardise, _pieces
from bgmiv.errors import DataError

__all__ = ["UNIT_DEVIATION", "Projection", "gram_of", "leading_loadings", "projection_on"]

UNIT_DEVIATION = Standardise(minimum_deviation=float(np.finfo(np.float64).tiny))
"""Units must not matter, so that a column counts however small its numbers are."""


class Projection(NamedTuple):
    """Scores of each row: ((values - mean) / scale) @ basis, computed in double precision.

    The basis carries the scaling of the scores, so that `mean`, `scale` and `basis` are all there is to store.

    Args:
        mean: (d,) of the columns.
        scale: (d,) standard deviations, one for a constant column.
        basis: (d, k), each component's loadings divided by the deviation of its score.
        explained: share of the standardised columns' variance that the k scores hold.
        above_noise: how many components exceed noise; zero where the one that is kept does not.

    >>> pair = Projection(np.zeros(2), np.ones(2), np.array([[0.5], [0.5]]), explained=1.0, above_noise=1)
    >>> pair.transform([[1.0, 1.0], [2.0, 4.0]])
    array([[1.],
           [3.]], dtype=float32)
    """

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    basis: NDArray[np.float64]
    explained: float
    above_noise: int

    @property
    def n_components(self) -> int:
        """Number of scores k, one or more."""
        return self.basis.shape[1]

    @property
    def structured(self) -> bool:
        """Whether the columns share anything beyond what unrelated columns share by chance."""
        return self.above_noise > 0

    def transform(self, values: ArrayLike) -> NDArray[np.float32]:
        """The scores (n, k) of values (n, d), the fitted rows or new ones."""
        array = np.asarray(values)
        if array.ndim != 2 or array.shape[1] != len(self.mean):
            raise DataError(f"values have shape {array.shape}. Pass (n, {len(self.mean)}), the columns of the fit.")
        scores = np.empty((len(array), self.n_components), dtype=np.float32)
        for rows in _pieces(array):
            scores[rows] = ((array[rows] - self.mean) / self.scale) @ self.basis
        return scores


def gram_of(values: NDArray[Any], standard: Affine) -> NDArray[np.float64]:
    """ZᵀZ/n, or ZZᵀ/n if that is smaller; their eigenvalues other than zero are the same."""
    n_rows, width = values.shape
    gram = np.zeros((min(n_rows, width),) * 2)
    if width <= n_rows:
        for rows in _pieces(values):
            z = (values[rows] - standard.shift) / standard.scale
            gram += z.T @ z
    else:
        for columns in _pieces(values.T):
            z = (values[:, columns] - standard.shift[columns]) / standard.scale[columns]
            gram += z @ z.T
    return gram / n_rows


def leading_loadings(
    values: NDArray[Any], standard: Affine, gram: NDArray[np.float64], count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The largest eigenvalues (k,) and their unit loadings (d, k); zeros where the columns do not vary."""
    n_rows, width = values.shape
    eigenvalues, vectors = eigh(gram, subset_by_index=[len(gram) - count, len(gram) - 1])
    eigenvalues, vectors = np.maximum(eigenvalues[::-1], 0.0), vectors[:, ::-1]
    if width <= n_rows:
        # Rounding would let a constant column in, which has no deviation to tame later rows that differ.
        loadings = np.where(np.diag(gram)[:, None] > 0, vectors, 0.0)
    else:
        loadings = np.empty((width, count))
        lengths = np.sqrt(n_rows * np.where(eigenvalues > 0, eigenvalues, 1.0))
        for columns in _pieces(values.T):
            z = (values[:, columns] - standard.shift[columns]) / standard.scale[columns]
            loadings[columns] = z.T @ vectors / lengths
    # Either sign is an eigenvector: the largest loading is made positive, the first of those that tie.
    size = np.abs(loadings)
    first = np.argmax(size >= size.max(axis=0) * (1.0 - 1e-6), axis=0)
    return eigenvalues, loadings * np.where(loadings[first, np.arange(count)] < 0, -1.0, 1.0)


def projection_on(
    values: NDArray[Any], standard: Affine, gram: NDArray[np.float64], count: int, *, whiten: bool, above_noise: int
) -> Projection:
    """The projection of values (n, d) on their `count` leading components.

    Args:
        values: the rows whose components they are.
        standard: their standardisation.
        gram: their `gram_of`.
        count: how many.
        whiten: divide each score by its own deviation, or all by the root mean square of these.
        above_noise: how many are known to exceed noise.
    """
    eigenvalues, loadings = leading_loadings(values, standard, gram, count)
    variances = eigenvalues if whiten else np.full_like(eigenvalues, eigenvalues.mean())
    total = float(np.trace(gram))
    return Projection(
        mean=standard.shift,
        scale=standard.scale,
        basis=loadings / np.sqrt(np.where(variances > 0, variances, 1.0)),
        explained=min(1.0, float(eigenvalues.sum()) / total) if total else 0.0,
        above_noise=above_noise,
    )
