"""Names for the types of arrays, the smallest number above zero, and means and standard deviations of columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["TINY", "Booleans", "Floats", "Integers", "means_and_spreads"]

Floats = NDArray[np.float64]
"""Numbers in double precision."""

Integers = NDArray[np.int64]
"""Codes, counts and positions."""

Booleans = NDArray[np.bool_]
"""Masks."""

TINY = float(np.finfo(float).tiny)
"""The least positive number of full precision: in the place of a divisor that may be zero."""


def means_and_spreads(columns: Floats) -> tuple[Floats, Floats]:
    """By which columns are standardised: their means, and their standard deviations, or 1 for a constant."""
    spread = columns.std(axis=0)
    return columns.mean(axis=0), np.where(spread > 0.0, spread, 1.0)
