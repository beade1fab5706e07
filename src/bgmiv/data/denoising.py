"""How much noise a wide block of columns bears before its rows say less of treatment and outcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["choose_noise"]

_MOST_ROWS = 4000
# Of the largest variance: what is less is none.
_ROUNDING = 1e-10


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
    # Variances along the principal directions, and what of each target lies along their scores; by the smaller of both
    # matrices of products, as blocks may be wider than there are rows.
    if z.shape[1] <= n:
        variances, directions = np.linalg.eigh(z.T @ z / n)
        scores_of = z @ directions / np.sqrt(n * np.maximum(variances, np.finfo(float).tiny))
    else:
        variances, scores_of = np.linalg.eigh(z @ z.T / n)
    there = variances > _ROUNDING * variances.max(initial=0.0)
    variances, energies = variances[there], (scores_of.T @ t)[there] ** 2 / n
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
