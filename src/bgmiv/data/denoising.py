"""How much noise a wide block of columns bears before its rows say less of treatment and outcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["choose_noise"]

_MOST_ROWS = 4000


def choose_noise(columns: NDArray[Any], targets: NDArray[Any], levels: Sequence[float]) -> float:
    r"""Of some deviations the one at which noised columns predict the targets best.

    A linear regression on columns with Gaussian noise of deviation $\sigma$ is, over all draws of the noise, a ridge
    regression with penalty $n \sigma^2$. Levels are compared by its generalised cross-validation, summed over targets:
    columns that say nothing get the largest.

    Args:
        columns: `(n, d)`.
        targets: `(n, k)`.
        levels: deviations, in units of the columns' own.

    Returns:
        One of the levels.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> columns = rng.normal(size=(300, 40))
        >>> outcome = columns @ rng.normal(size=40) + rng.normal(size=300)
        >>> choose_noise(columns, outcome[:, None], (0.3, 1.0, 3.0))
        0.3
        >>> choose_noise(columns, rng.normal(size=(300, 1)), (0.3, 1.0, 3.0))
        3.0

    References:
        C. M. Bishop (1995), Training with noise is equivalent to Tikhonov regularization, Neural Computation 7(1).
        G. H. Golub, M. Heath, G. Wahba (1979), Generalized cross-validation as a method for choosing a good ridge
        parameter, Technometrics 21(2).
    """
    z, t = (_standard(values[:_MOST_ROWS]) for values in (columns, targets))
    n = len(z)
    # The left singular vectors and the eigenvalues of the covariance.
    left, sizes, _ = np.linalg.svd(z / np.sqrt(n), full_matrices=False)
    variances, energies = sizes**2, (left.T @ t) ** 2 / n
    scores = []
    for level in levels:
        kept = variances / (variances + level**2) if level > 0 else (variances > 0).astype(float)
        residual = np.mean(t**2, axis=0) - np.sum(energies * (1.0 - (1.0 - kept) ** 2)[:, None], axis=0)
        left_over = max(1.0 - (kept.sum() + 1.0) / n, 1e-3)
        scores.append(float(np.sum(residual)) / left_over**2)
    return float(levels[int(np.argmin(scores))])


def _standard(values: NDArray[Any]) -> NDArray[np.float64]:
    array = values.astype(np.float64)
    spread = array.std(axis=0)
    standard: NDArray[np.float64] = (array - array.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return standard
