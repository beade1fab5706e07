"""Designs with a continuous treatment and at most one covariate: a line, and the curves of the DeepGMM study."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import ndtr, ndtri

from bgmiv.data.ivdata import IVData
from bgmiv.designs import base
from bgmiv.errors import ConfigError

__all__ = ["CURVES", "LinearGaussianDesign", "LowDimDesign"]

CURVES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sin": np.sin,
    "abs": np.abs,
    "step": lambda x: np.where(x < 0.0, 1.0, 2.5),
    "linear": lambda x: x,
}
"""The structural function of each low-dimensional design; "step" is 1 below zero and 2.5 from zero on."""

_REACH = float(ndtri(0.995))
_BOUND = 3.0
_NOISE = 0.1


# Spawn keys of the random streams: the first curve variable is the instruments, the others are normal draws.
_LINEAR_KEYS = range(300, 304)
_CURVE_KEYS = range(200, 205)


@dataclass(frozen=True)
class LinearGaussianDesign(base.CheckedSettings):
    """A line with jointly Gaussian disturbances: 2SLS is correct here, and every other method can be checked.

    W, V, U ~ N(0, 1), corr(U, ε) = ρ, sd(ε) = disturbance and

        X = strength · W + V + U,    Y = slope · X + covariate_effect · V + ε.

    Args:
        slope: β; with β = −2 and ρ = 0.9 the paper's mixture pseudo-likelihood is inconsistent.
        covariate_effect: the effect of V on the outcome.
        strength: weight of the instrument in the treatment, not zero.
        disturbance: standard deviation of ε.

    Example:
        >>> data = LinearGaussianDesign().sample(50, rho=0.9, seed=0)
        >>> data.covariates.shape, data.instruments.shape
        ((50, 1), (50, 1))
    """

    name: ClassVar[str] = "linear-gaussian"

    slope: float = -2.0
    covariate_effect: float = 1.0
    strength: float = 1.0
    disturbance: float = 1.0

    def structural(self, treatment: np.ndarray, covariate: np.ndarray) -> np.ndarray:
        """g₀(x, v) = slope · x + covariate_effect · v."""
        return self.slope * treatment + self.covariate_effect * covariate

    def sample(self, n: int, rho: float, seed: int) -> IVData:
        base.check_draw(n, rho, seed)
        instrument, covariate, shock, noise = base.normals(n, seed, *_LINEAR_KEYS)
        treatment = self.strength * instrument + covariate + shock
        return base.as_data(
            {"outcome": self.structural(treatment, covariate) + self.disturbance * base.confounded(shock, noise, rho)},
            {"treatment": treatment},
            {"instrument": instrument},
            {"covariate": (covariate, "continuous")},
            treatment_kind="continuous",
        )

    def grid(self) -> base.StructuralGrid:
        """40 treatments × 70 covariates over the central 99% of each.

        A point is in support where the treatment lies in the central 99% of N(v, strength² + 1), its distribution at
        V = v.
        """
        sd = np.sqrt(self.strength**2 + 1.0)
        edge = _REACH * np.hypot(sd, 1.0)
        treatment, covariate = base.product(np.linspace(-edge, edge, 40), np.linspace(-_REACH, _REACH, 70))
        in_support = np.abs(treatment - covariate) <= _REACH * sd
        return base.grid_of(self.structural, treatment, {"covariate": covariate}, in_support)


@dataclass(frozen=True)
class LowDimDesign(base.CheckedSettings):
    """One endogenous treatment, two instruments (the second has no effect), no covariates.

    Z₁, Z₂ ~ U(−3, 3), e, e′ ~ N(0, 1), γ, δ ~ N(0, 0.1²) and

        X = strength · Z₁ + (1 − strength) e + γ,    Y = g₀(X) + confounding · (ρ e + √(1 − ρ²) e′) + δ.

    ρ = 1 is the design of Bennett, Kallus and Schnabel (2019), in which the whole disturbance but δ is the confounder.
    The defaults are the equations printed there; the public code multiplies Z₁ and e by two in both equations and
    standardises Y.

    Args:
        curve: "sin", "abs", "step" or "linear" (`CURVES`).
        strength: weight of the first instrument in the treatment, between 0 and 1.
        confounding: standard deviation of the outcome's disturbance.

    Example:
        >>> data = LowDimDesign("abs").sample(50, rho=1.0, seed=0)
        >>> data.instruments.shape, data.covariates.shape
        ((50, 2), (50, 0))
    """

    curve: str = "sin"
    strength: float = 0.5
    confounding: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.curve not in CURVES:
            raise ConfigError(f"curve is {self.curve!r}; choose one of {', '.join(CURVES)}")
        if not 0.0 < self.strength <= 1.0:
            raise ConfigError(f"strength is {self.strength}; choose a value above 0 and up to 1")

    @property
    def name(self) -> str:
        """`"lowdim-"` and the curve."""
        return f"lowdim-{self.curve}"

    def structural(self, treatment: np.ndarray) -> np.ndarray:
        """g₀ at each treatment."""
        return CURVES[self.curve](np.asarray(treatment, dtype=np.float64))

    def sample(self, n: int, rho: float, seed: int) -> IVData:
        base.check_draw(n, rho, seed)
        first, second = base.stream(seed, _CURVE_KEYS[0]).uniform(-_BOUND, _BOUND, size=(n, 2)).T
        confounder, shock, treatment_noise, outcome_noise = base.normals(n, seed, *_CURVE_KEYS[1:])
        treatment = self.strength * first + (1.0 - self.strength) * confounder + _NOISE * treatment_noise
        disturbance = self.confounding * base.confounded(confounder, shock, rho)
        return base.as_data(
            {"outcome": self.structural(treatment) + disturbance + _NOISE * outcome_noise},
            {"treatment": treatment},
            {"instrument_1": first, "instrument_2": second},
            {},
            treatment_kind="continuous",
        )

    def treatment_range(self, coverage: float) -> float:
        """The b for which the treatment lies in [−b, b] with probability `coverage`.

        X is a uniform variable on (−3 strength, 3 strength) plus a normal one: P(X ≤ b) has a closed form.
        """
        # Imported here: scipy.optimize takes longer to import than all the designs.
        from scipy.optimize import brentq

        half = _BOUND * self.strength
        sd = float(np.hypot(1.0 - self.strength, _NOISE))

        def excess(b: float) -> float:
            x = np.array([b + half, b - half]) / sd
            # The integral of the standard normal distribution function up to x.
            upper, lower = x * ndtr(x) + np.exp(-(x**2) / 2.0) / np.sqrt(2.0 * np.pi)
            return float((upper - lower) * sd / (2.0 * half)) - (0.5 + coverage / 2.0)

        return float(brentq(excess, 0.0, half + 10.0 * sd))

    def grid(self) -> base.StructuralGrid:
        """2,800 treatments, evenly over the central 99.9% of their distribution; the central 99% is in support."""
        edge = self.treatment_range(0.999)
        treatment = np.linspace(-edge, edge, 2800)
        return base.grid_of(self.structural, treatment, {}, np.abs(treatment) <= self.treatment_range(0.99))
