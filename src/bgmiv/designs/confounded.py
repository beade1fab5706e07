"""Strongly confounded designs: what ignoring the instrument costs shows on their grids.

In the original demand design a perfect regression that ignores the instrument is nearly unbiased on the grid: it
tests representation, not endogeneity. Here the disturbance that the treatment shares is large.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from scipy.stats import norm

from bgmiv.data.ivdata import IVData
from bgmiv.designs.base import StructuralGrid, check_draw, stream
from bgmiv.designs.demand import DemandDesign, demand, draw_demand
from bgmiv.errors import ConfigError

__all__ = ["BinaryConfoundedDesign", "DemandConfoundedDesign", "LinearGaussianDesign"]

_SUPPORT_COVERAGE = 0.99
_REACH = float(norm.ppf(0.5 + _SUPPORT_COVERAGE / 2.0))


class _Stream(IntEnum):
    """The spawn key of each variable; every design adds its own hundred."""

    INSTRUMENT = 0
    COVARIATE = 1
    SHOCK = 2
    NOISE = 3


_LINEAR, _BINARY = 300, 400


@dataclass(frozen=True)
class LinearGaussianDesign:
    """A line with jointly Gaussian disturbances: where 2SLS is right and every other method can be checked.

    W, V, U ~ N(0, 1), corr(U, ε) = ρ, sd(ε) = disturbance and

        X = strength · W + V + U,    Y = slope · X + covariate_effect · V + ε.

    Arguments
    ---------
    slope : β; with β = −2 and ρ = 0.9 the paper's mixture pseudo-likelihood is inconsistent.
    covariate_effect : the effect of V on the outcome.
    strength : weight of the instrument in the treatment, not zero.
    disturbance : deviation of ε.

    Example
    -------
    >>> data = LinearGaussianDesign().sample(50, rho=0.9, seed=0)
    >>> data.covariates.shape, data.instruments.shape
    ((50, 1), (50, 1))
    """

    slope: float = -2.0
    covariate_effect: float = 1.0
    strength: float = 1.0
    disturbance: float = 1.0

    def __post_init__(self) -> None:
        _check_finite(self)
        if self.strength == 0.0:
            raise ConfigError("strength is 0; the instrument must move the treatment")
        if self.disturbance < 0.0:
            raise ConfigError(f"disturbance is {self.disturbance}; choose 0 or more")

    @property
    def name(self) -> str:
        """``"linear-gaussian"``."""
        return "linear-gaussian"

    def structural(self, treatment: np.ndarray, covariate: np.ndarray) -> np.ndarray:
        """g₀(x, v) = slope · x + covariate_effect · v."""
        return self.slope * treatment + self.covariate_effect * covariate

    def sample(self, n: int, rho: float, seed: int) -> IVData:
        """``n`` rows; samples with the same seed share X, V and W whatever ``rho`` is."""
        check_draw(n, rho, seed)
        instrument, covariate, shock, noise = (stream(seed, _LINEAR + key).normal(size=n) for key in _Stream)
        treatment = self.strength * instrument + covariate + shock
        disturbance = self.disturbance * (rho * shock + np.sqrt(1.0 - rho**2) * noise)
        return _one_covariate_data(
            self.structural(treatment, covariate) + disturbance, treatment, instrument, covariate, "continuous"
        )

    def grid(self) -> StructuralGrid:
        """40 treatments × 70 covariates over the central 99% of each.

        A point is in support where the treatment lies in the central 99% of N(v, strength² + 1), its
        distribution at V = v.

        >>> grid = LinearGaussianDesign().grid()
        >>> len(grid), bool(0 < grid.in_support.mean() < 1)
        (2800, True)
        """
        spread = np.sqrt(self.strength**2 + 1.0)
        edge = _REACH * np.hypot(spread, 1.0)
        treatment, covariate = _product(np.linspace(-edge, edge, 40), np.linspace(-_REACH, _REACH, 70))
        return StructuralGrid(
            treatment=treatment,
            covariates={"covariate": covariate},
            truth=self.structural(treatment, covariate),
            in_support=np.abs(treatment - covariate) <= _REACH * spread,
        )


@dataclass(frozen=True)
class DemandConfoundedDesign:
    """The demand design with its disturbance scaled up: Y = f₀(P, T, S) + disturbance · ε.

    The price shock enters ε with weight ρ, so a regression on the observed price is biased by up to
    disturbance · ρ at a season with little other variation of the price. Everything else, grid included, is
    :class:`~bgmiv.designs.DemandDesign`.

    Example
    -------
    >>> design = DemandConfoundedDesign()
    >>> data = design.sample(100, rho=0.9, seed=0)
    >>> data.covariates.shape, len(design.grid())
    ((100, 2), 2800)
    """

    disturbance: float = 50.0

    def __post_init__(self) -> None:
        _check_finite(self)
        if self.disturbance < 0.0:
            raise ConfigError(f"disturbance is {self.disturbance}; choose 0 or more")

    @property
    def name(self) -> str:
        """``"demand-confounded"``."""
        return "demand-confounded"

    def sample(self, n: int, rho: float, seed: int) -> IVData:
        """``n`` rows: the demand design's with the same seed, the disturbance of the outcome scaled."""
        draw = draw_demand(n, rho, seed)
        structural = demand(draw.price, draw.time, draw.group)
        return IVData.from_arrays(
            {"demand": structural + self.disturbance * (draw.outcome - structural)},
            {"price": draw.price},
            instruments={"cost": draw.cost},
            covariates={"time": draw.time, "group": draw.group},
            blocks={"time": "continuous", "group": "continuous"},
            treatment_kind="continuous",
        )

    def grid(self) -> StructuralGrid:
        """The demand design's grid."""
        return DemandDesign().grid()


@dataclass(frozen=True)
class BinaryConfoundedDesign:
    """A treatment taken or not, chosen by those who fare differently anyway.

    W, V, U ~ N(0, 1), corr(U, ε) = ρ, sd(ε) = disturbance and

        X = 1{strength · W + covariate_strength · V + U > 0},    Y = V²/2 + X (1 + 1.5 sin V) + ε.

    The effect 1 + 1.5 sin v helps above v ≈ −0.73 and harms below.

    Arguments
    ---------
    strength : weight of the instrument in the latent index, not zero.
    covariate_strength : weight of the covariate in the latent index.
    disturbance : deviation of ε.

    Example
    -------
    >>> data = BinaryConfoundedDesign().sample(50, rho=0.9, seed=0)
    >>> sorted(set(data.treatment.tolist())), data.schema.treatment.kind.value
    ([0.0, 1.0], 'binary')
    """

    strength: float = 1.0
    covariate_strength: float = 1.5
    disturbance: float = 2.0

    def __post_init__(self) -> None:
        _check_finite(self)
        if self.strength == 0.0:
            raise ConfigError("strength is 0; the instrument must move the treatment")
        if self.disturbance < 0.0:
            raise ConfigError(f"disturbance is {self.disturbance}; choose 0 or more")

    @property
    def name(self) -> str:
        """``"binary-confounded"``."""
        return "binary-confounded"

    def effect(self, covariate: np.ndarray) -> np.ndarray:
        """The effect of the treatment at each covariate, 1 + 1.5 sin v."""
        return 1.0 + 1.5 * np.sin(covariate)

    def structural(self, treatment: np.ndarray, covariate: np.ndarray) -> np.ndarray:
        """g₀(x, v) = v²/2 + x (1 + 1.5 sin v)."""
        return covariate**2 / 2.0 + treatment * self.effect(covariate)

    def propensity(self, covariate: np.ndarray) -> np.ndarray:
        """P(X = 1 | V = v), over the instrument.

        >>> BinaryConfoundedDesign().propensity(np.array([0.0]))
        array([0.5])
        """
        return norm.cdf(self.covariate_strength * covariate / np.hypot(self.strength, 1.0))

    def sample(self, n: int, rho: float, seed: int) -> IVData:
        """``n`` rows; samples with the same seed share X, V and W whatever ``rho`` is."""
        check_draw(n, rho, seed)
        instrument, covariate, shock, noise = (stream(seed, _BINARY + key).normal(size=n) for key in _Stream)
        index = self.strength * instrument + self.covariate_strength * covariate + shock
        treatment = (index > 0.0).astype(np.float64)
        disturbance = self.disturbance * (rho * shock + np.sqrt(1.0 - rho**2) * noise)
        return _one_covariate_data(
            self.structural(treatment, covariate) + disturbance, treatment, instrument, covariate, "binary"
        )

    def grid(self) -> StructuralGrid:
        """Both treatments × 1,400 covariates over the central 99%.

        A point is in support where at least one in a hundred at its covariate has its treatment.

        >>> grid = BinaryConfoundedDesign().grid()
        >>> len(grid), bool(0 < grid.in_support.mean() < 1)
        (2800, True)
        """
        treatment, covariate = _product(np.array([0.0, 1.0]), np.linspace(-_REACH, _REACH, 1400))
        taken = self.propensity(covariate)
        return StructuralGrid(
            treatment=treatment,
            covariates={"covariate": covariate},
            truth=self.structural(treatment, covariate),
            in_support=np.where(treatment == 1.0, taken, 1.0 - taken) >= 1.0 - _SUPPORT_COVERAGE,
        )


def _one_covariate_data(
    outcome: np.ndarray, treatment: np.ndarray, instrument: np.ndarray, covariate: np.ndarray, kind: str
) -> IVData:
    return IVData.from_arrays(
        {"outcome": outcome},
        {"treatment": treatment},
        instruments={"instrument": instrument},
        covariates={"covariate": covariate},
        blocks={"covariate": "continuous"},
        treatment_kind="binary" if kind == "binary" else "continuous",
    )


def _product(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.meshgrid(first, second, indexing="ij")
    return a.ravel(), b.ravel()


def _check_finite(design: object) -> None:
    for name, value in vars(design).items():
        if not np.isfinite(value):
            raise ConfigError(f"{name} is {value}; choose a finite value")
