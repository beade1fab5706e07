r"""How many B-splines a structural curve can have: the data-driven dimension of Chen, Christensen and Kankanala.

For sieves of dimension J in the treatment and K(J) in the instrument, let $\hat h_J(x) = \psi_J(x)^\top M_J y$ be the
two-stage least squares curve. Of dimensions that the instrument can support, the smallest is taken whose curve differs
from every richer one by no more than a bootstrap allows (Lepski's method).

Reference: X. Chen, T. Christensen, S. Kankanala (2024), Adaptive estimation and uniform confidence bands for
nonparametric structural functions and elasticities, Review of Economic Studies 92(1). arXiv:2107.11869.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import orth, svdvals

from bgmiv.sieve.bases import b_splines, quantile_knots

__all__ = ["INSTRUMENT_DEGREE", "INSTRUMENT_RATIO", "TREATMENT_DEGREE", "Dimension", "choose_dimension"]

Floats = NDArray[np.float64]

INSTRUMENT_RATIO = 4
"""Pieces of the instrument's splines for each of the treatment's."""

TREATMENT_DEGREE, INSTRUMENT_DEGREE = 3, 4
"""Of the splines."""

# The published constants: the limit 10 √n on J √log J / s, and the factor 1.1 on the critical value.
_LIMIT, _SLACK = 10.0, 1.1
_POINTS, _DRAWS = 50, 499
_NO_SIGNAL = 1e-12


class Dimension(NamedTuple):
    """The chosen dimension, and what it was chosen by.

    Attributes:
        segments: pieces of the treatment's splines; there are three functions more.
        candidates: pieces of the dimensions that were compared.
        statistics: the largest t statistic of the difference of two curves, by pair of candidates.
        critical: the bootstrap's critical value.
    """

    segments: int
    candidates: tuple[int, ...]
    statistics: dict[tuple[int, int], float]
    critical: float


def choose_dimension(
    outcome: Floats, treatment: Floats, instrument: Floats, controls: Floats, rng: np.random.Generator
) -> Dimension:
    """The dimension for one treatment and one instrument; controls `(n, p)` enter linearly.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> w, u = rng.normal(size=(2, 2000))
        >>> x = w + 0.5 * u
        >>> choose_dimension(x + u, x, w, np.zeros((2000, 0)), rng).segments
        1
    """
    n = len(outcome)
    sizes = 2 ** np.arange(max(int(np.log2(n)), 3) + 1)
    penalty = (0.1 * np.log(n)) ** 4
    demands: list[float] = []
    bases = []
    for segments in sizes.tolist():
        psi = np.hstack([_splines(treatment, treatment, segments, TREATMENT_DEGREE), controls])
        b = np.hstack([_splines(instrument, instrument, INSTRUMENT_RATIO * segments, INSTRUMENT_DEGREE), controls])
        bases.append((psi, b))
        j = segments + TREATMENT_DEGREE
        demands.append(j * np.sqrt(np.log(j)) * max(penalty, 1.0 / _smallest_singular(psi, b)))
        if len(demands) > 1 and demands[-2] <= _LIMIT * np.sqrt(n) < demands[-1]:
            bases.pop()
            break
    candidates = tuple(int(size) for size in sizes[: max(len(bases), 2)])
    grid = np.linspace(treatment.min(), treatment.max(), _POINTS)
    curves, influences = [], []
    for segments, (psi, b) in zip(candidates, bases, strict=False):
        projected = b @ (np.linalg.pinv(b.T @ b, hermitian=True) @ (b.T @ psi))
        solution = np.linalg.pinv(projected.T @ psi, hermitian=True) @ projected.T
        on_grid = _splines(treatment, grid, segments, TREATMENT_DEGREE)
        at = on_grid @ solution[: on_grid.shape[1]]
        curves.append(at @ outcome)
        influences.append(at * (outcome - psi @ (solution @ outcome)))
    alpha = min(0.5, float(np.sqrt(np.log(candidates[-1] + TREATMENT_DEGREE) / (candidates[-1] + TREATMENT_DEGREE))))
    draws = rng.normal(size=(n, _DRAWS))
    statistics: dict[tuple[int, int], float] = {}
    largest = np.zeros(_DRAWS)
    for i, j in combinations(range(len(curves)), 2):
        difference = influences[i] - influences[j]
        error = np.maximum(np.linalg.norm(difference, axis=1), np.finfo(float).tiny)
        statistics[candidates[i], candidates[j]] = float(np.max(np.abs(curves[i] - curves[j]) / error))
        largest = np.maximum(largest, np.max(np.abs(difference @ draws) / error[:, None], axis=0))
    critical = float(np.quantile(largest, 1.0 - alpha))
    agreeing = (
        size
        for size in candidates[:-1]
        if all(value <= _SLACK * critical for (small, _), value in statistics.items() if small == size)
    )
    # Never the largest one: nothing shows that it suffices.
    return Dimension(next(agreeing, candidates[max(len(candidates) - 2, 0)]), candidates, statistics, critical)


def _splines(values: Floats, points: Floats, segments: int, degree: int) -> Floats:
    return b_splines(quantile_knots(values, segments, degree), points, degree)


def _smallest_singular(psi: Floats, b: Floats) -> float:
    """Of the operator E[· | w] between the two sieves, each in its orthonormal basis."""
    left, right = (orth(columns, rcond=1e-8) for columns in (psi, b))
    if left.shape[1] < psi.shape[1] or right.shape[1] < psi.shape[1]:
        return _NO_SIGNAL
    return max(float(svdvals(left.T @ right).min()), _NO_SIGNAL)
