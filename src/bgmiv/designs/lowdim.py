"""Curves of one treatment: the low-dimensional designs of the DeepGMM study (Bennett, Kallus, Schnabel 2019)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from bgmiv.data.ivdata import IVData
from bgmiv.designs.base import StructuralGrid, check_draw, stream
from bgmiv.errors import ConfigError

__all__ = ["CURVES", "LowDimDesign"]

CURVES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sin": np.sin,
    "abs": np.abs,
    "step": lambda x: np.where(x < 0.0, 1.0, 2.5),
    "linear": lambda x: x,
}
"""The structural function of each design; "step" is 1 below zero and 2.5 from zero on."""

_GRID_SIZE = 2800
_GRID_COVERAGE = 0.999
_SUPPORT_COVERAGE = 0.99
_BOUND = 3.0
_NOISE = 0.1


class _Stream(IntEnum):
    """The spawn key of each variable."""

    INSTRUMENTS = 200
    CONFOUNDER = 201
    OUTCOME_SHOCK = 202
    TREATMENT_NOISE = 203
    OUTCOME_NOISE = 204


@dataclass(frozen=True)
class LowDimDesign:
    """One endogenous treatment, two instruments (the second is idle), no covariates.

    Z₁, Z₂ ~ U(−3, 3), e, e′ ~ N(0, 1), γ, δ ~ N(0, 0.1²) and

        X = strength · Z₁ + (1 − strength) e + γ,    Y = g₀(X) + confounding · (ρ e + √(1 − ρ²) e′) + δ.

    ρ = 1 is the study's design, in which the whole disturbance but δ is the confounder. The defaults are the
    equations printed in the study; its public code multiplies Z₁ and e by two in both equations and standardises Y.

    Arguments
    ---------
    curve : "sin", "abs", "step" or "linear" (:data:`CURVES`).
    strength : weight of the first instrument in the treatment, between 0 and 1.
    confounding : deviation of the outcome's disturbance.

    Example
    -------
    >>> data = LowDimDesign("abs").sample(50, rho=1.0, seed=0)
    >>> data.instruments.shape, data.covariates.shape
    ((50, 2), (50, 0))
    """

    curve: str = "sin"
    strength: float = 0.5
    confounding: float = 1.0

    def __post_init__(self) -> None:
        if self.curve not in CURVES:
            raise ConfigError(f"curve is {self.curve!r}; choose one of {', '.join(CURVES)}")
        if not 0.0 < self.strength <= 1.0:
            raise ConfigError(f"strength is {self.strength}; choose a value above 0 and up to 1")
        if not (np.isfinite(self.confounding) and self.confounding >= 0.0):
            raise ConfigError(f"confounding is {self.confounding}; choose a finite value of 0 or more")

    @property
    def name(self) -> str:
        """``"lowdim-"`` and the curve."""
        return f"lowdim-{self.curve}"

    def structural(self, treatment: np.ndarray) -> np.ndarray:
        """g₀ at each treatment."""
        return CURVES[self.curve](np.asarray(treatment, dtype=np.float64))

    def sample(self, n: int, rho: float, seed: int) -> IVData:
        """``n`` rows; samples with the same seed share X, Z, e, e′ and δ whatever ``rho`` is."""
        check_draw(n, rho, seed)
        instruments = stream(seed, _Stream.INSTRUMENTS).uniform(-_BOUND, _BOUND, size=(n, 2))
        confounder = stream(seed, _Stream.CONFOUNDER).normal(size=n)
        shock = stream(seed, _Stream.OUTCOME_SHOCK).normal(size=n)
        treatment = self.strength * instruments[:, 0] + (1.0 - self.strength) * confounder
        treatment = treatment + _NOISE * stream(seed, _Stream.TREATMENT_NOISE).normal(size=n)
        disturbance = self.confounding * (rho * confounder + np.sqrt(1.0 - rho**2) * shock)
        noise = _NOISE * stream(seed, _Stream.OUTCOME_NOISE).normal(size=n)
        return IVData.from_arrays(
            {"outcome": self.structural(treatment) + disturbance + noise},
            {"treatment": treatment},
            instruments={"instrument_1": instruments[:, 0], "instrument_2": instruments[:, 1]},
            treatment_kind="continuous",
        )

    def treatment_range(self, coverage: float) -> float:
        """The b for which the design's treatment lies in [−b, b] with probability ``coverage``.

        X is a uniform variable on (−3 strength, 3 strength) plus a normal one: P(X ≤ b) has a closed form.

        >>> round(LowDimDesign().treatment_range(0.99), 2)
        2.26
        """
        half = _BOUND * self.strength
        deviation = float(np.hypot(1.0 - self.strength, _NOISE))

        def excess(b: float) -> float:
            low, high = (b - half) / deviation, (b + half) / deviation
            upper = high * norm.cdf(high) + norm.pdf(high)
            lower = low * norm.cdf(low) + norm.pdf(low)
            return float((upper - lower) * deviation / (2.0 * half)) - (0.5 + coverage / 2.0)

        return float(brentq(excess, 0.0, half + 10.0 * deviation))

    def grid(self) -> StructuralGrid:
        """2,800 evenly spaced treatments over the central 99.9% of their distribution; the central 99% is in support.

        >>> grid = LowDimDesign().grid()
        >>> len(grid), dict(grid.covariates)
        (2800, {})
        """
        reach = self.treatment_range(_GRID_COVERAGE)
        treatment = np.linspace(-reach, reach, _GRID_SIZE)
        return StructuralGrid(
            treatment=treatment,
            covariates={},
            truth=self.structural(treatment),
            in_support=np.abs(treatment) <= self.treatment_range(_SUPPORT_COVERAGE),
        )
