"""Critical values of uniform bands: over many entries at once, and with a bias."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

__all__ = ["biased_quantile", "largest_quantile"]

Floats = NDArray[np.float64]

# From which the largest of many t statistics is known to about a per cent.
_DRAWS, _SEED = 4000, 0
_HALVINGS = 40


def largest_quantile(factors: Floats, std_error: Floats, level: float) -> float:
    """The quantile of the largest |Z| / s over all entries, Z normal with the covariance of factors `(k, ...)`.

    Example:
        >>> independent = np.eye(10)
        >>> bool(abs(largest_quantile(independent, np.ones(10), 0.95) - 2.80) < 0.1)
        True
    """
    scaled = (factors / np.maximum(std_error, np.finfo(float).tiny)).reshape(len(factors), -1)
    draws = np.random.default_rng(_SEED).normal(size=(_DRAWS, len(factors)))
    largest = np.concatenate([np.abs(part @ scaled).max(axis=1) for part in np.array_split(draws, 50)])
    return float(np.quantile(largest, level))


def biased_quantile(bias: Floats, quantile: float) -> Floats:
    """The quantile of |N(bias, 1)| at the level at which |N(0, 1)| has this quantile (Armstrong and Kolesár 2018).

    Example:
        >>> biased_quantile(np.array([0.0, 1.0, 5.0]), 1.96).round(2)
        array([1.96, 2.65, 6.64])
    """
    level = 2.0 * ndtr(quantile) - 1.0
    low, high = np.zeros_like(bias), bias + quantile
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        enough = ndtr(middle - bias) - ndtr(-middle - bias) >= level
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.asarray(high, np.float64)
