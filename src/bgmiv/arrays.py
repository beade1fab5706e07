"""Names for the types of arrays, and the smallest number above zero."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["TINY", "Booleans", "Floats", "Integers"]

Floats = NDArray[np.float64]
"""Numbers in double precision."""

Integers = NDArray[np.int64]
"""Codes, counts and positions."""

Booleans = NDArray[np.bool_]
"""Masks."""

TINY = float(np.finfo(float).tiny)
"""The least positive number of full precision: in the place of a divisor that may be zero."""
