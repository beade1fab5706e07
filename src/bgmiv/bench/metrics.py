"""How far an estimate is from the structural truth."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bgmiv.designs.base import StructuralGrid

__all__ = ["StructuralError", "structural_error"]


class StructuralError(NamedTuple):
    """Mean squared structural error in squared units of the outcome; NaN where there are no points.

    Args:
        all: over the whole grid, the number papers report.
        in_support: over points whose treatment the training data show.
        outside: over points that are extrapolations.
    """

    all: float
    in_support: float
    outside: float


def structural_error(predicted: np.ndarray, grid: StructuralGrid) -> StructuralError:
    """Mean of (ĝ(x, v) − g₀(x, v))² over the grid, and over its parts inside and outside the support.

    Args:
        predicted: (m,) estimates at the grid's points, in units of the outcome.
        grid: the points and the truth.

    >>> from bgmiv.designs import make_design
    >>> grid = make_design("demand").grid()
    >>> structural_error(grid.truth + 2.0, grid)
    StructuralError(all=4.0, in_support=4.0, outside=4.0)
    """
    squared = (np.asarray(predicted, dtype=np.float64) - grid.truth) ** 2
    return StructuralError(_mean(squared), _mean(squared[grid.in_support]), _mean(squared[~grid.in_support]))


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else float("nan")
