"""Probabilities and quantiles, by `scipy.special`: importing `scipy.stats` takes as long as a whole 2SLS fit."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import chdtrc, chdtri, fdtrc, fdtri, stdtrit

__all__ = ["chi2_quantile", "chi2_tail", "f_quantile", "f_tail", "normal_density", "student_quantile"]


def student_quantile(probability: float, dof: Any) -> Any:
    """Quantiles of Student's t.

    Example:
        >>> student_quantile(0.975, np.array([5.0, np.inf])).round(2)
        array([2.57, 1.96])
    """
    return stdtrit(dof, probability)


def f_quantile(probability: float, n: float, dof: float) -> float:
    """A quantile of the F distribution."""
    return float(fdtri(n, dof, probability))


def f_tail(f: float, n: float, dof: float) -> float:
    """The probability beyond f of the F distribution.

    Example:
        >>> round(f_tail(3.84, 1, 1e6), 3), f_tail(-1e-12, 1, 10)
        (0.05, 1.0)
    """
    # Rounding may leave a statistic just below zero.
    return float(fdtrc(n, dof, np.maximum(f, 0.0)))


def chi2_quantile(probability: float, dof: float) -> float:
    """A quantile of the chi-squared distribution."""
    return float(chdtri(dof, 1.0 - probability))


def chi2_tail(x: float, dof: float) -> float:
    """The probability beyond x of the chi-squared distribution.

    Example:
        >>> round(chi2_tail(3.84, 1), 3), chi2_tail(np.inf, 1)
        (0.05, 0.0)
    """
    return float(chdtrc(dof, np.maximum(x, 0.0)))


def normal_density(x: Any) -> Any:
    """The density of the standard normal distribution."""
    return np.exp(-0.5 * np.square(x)) / np.sqrt(2.0 * np.pi)
