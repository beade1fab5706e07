"""Airline demand with endogenous prices (Hartford et al. 2017; the paper's appendix), with group or proxy observed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from bgmiv.designs.base import AdditiveDesign, Columns, Draw, StructuralGrid, normals, product, stream

__all__ = [
    "GROUPS", "DemandConfoundedDesign", "DemandDesign", "VectorProxyDesign", "demand", "demand_grid",
    "price_support", "season",
]  # fmt: skip

GROUPS = 7

# The spawn key of each variable: no two share draws.
_GROUP, _TIME, _COST, _SHOCK, _NOISE = range(5)
_PROTOTYPE, _TRAINING_PROXY, _GRID_PROXY = range(100, 103)


def season(time: ArrayLike) -> np.ndarray:
    """The seasonal function ψ(t) = 2{(t − 5)⁴/600 + exp[−4(t − 5)²] + t/10 − 2}."""
    t = np.asarray(time, dtype=np.float64)
    return 2.0 * ((t - 5.0) ** 4 / 600.0 + np.exp(-4.0 * (t - 5.0) ** 2) + t / 10.0 - 2.0)


def demand(price: ArrayLike, time: ArrayLike, group: ArrayLike) -> np.ndarray:
    """The structural function f₀(p, t, s) = 100 + (10 + p) s ψ(t) − 2p.

    Example:
        >>> float(demand(20.0, 5.0, 1.0))
        30.0
    """
    p = np.asarray(price, dtype=np.float64)
    return 100.0 + (10.0 + p) * np.asarray(group, dtype=np.float64) * season(time) - 2.0 * p


def price_support(time: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and highest price of the central 99% of P | T = t, which is N(25 + 3ψ(t), ψ(t)² + 1)."""
    psi = season(time)
    centre = 25.0 + 3.0 * psi
    half = ndtri(0.995) * np.sqrt(psi**2 + 1.0)
    return centre - half, centre + half


def demand_grid() -> tuple[np.ndarray, ...]:
    """The evaluation grid: (price, time, group) of 20 prices × 20 times × 7 groups, price slowest."""
    return product(np.linspace(10.0, 25.0, 20), np.linspace(0.0, 10.0, 20), np.arange(1.0, GROUPS + 1.0))


@dataclass(frozen=True)
class DemandDesign(AdditiveDesign):
    """The low-dimensional demand design: the time of year and the customer group are observed.

    Y = f₀(P, T, S) + ρU + √(1 − ρ²) η. Subclasses have something in the group's place.

    Example:
        >>> design = DemandDesign()
        >>> data = design.sample(100, rho=0.5, seed=0)
        >>> data.covariates.shape, data.instruments.shape, int(design.grid().in_support.sum())
        ((100, 2), (100, 1), 2142)
    """

    roles: ClassVar = ("demand", "price")
    structural = staticmethod(demand)

    @property
    def name(self) -> str:
        """Its name."""
        return "demand"

    @property
    def disturbance(self) -> float:
        """The standard deviation of the outcome around the structural function."""
        return 1.0

    def draw(self, n: int, seed: int) -> Draw:
        """All variables of `n` rows but the outcome.

        S ~ Unif{1..7}, T ~ Unif[0, 10], C, U, η ~ N(0, 1), P = 25 + (C + 3)ψ(T) + U.

        Each variable has its own random stream, so a smaller sample is the beginning of a larger one.
        """
        group = stream(seed, _GROUP).integers(1, GROUPS + 1, size=n).astype(np.float64)
        time = stream(seed, _TIME).uniform(0.0, 10.0, size=n)
        cost, shock, noise = normals(n, seed, _COST, _SHOCK, _NOISE)
        price = 25.0 + (cost + 3.0) * season(time) + shock
        return Draw(price, {"cost": cost}, {"time": time, "group": group}, shock, noise)

    def grid(self) -> StructuralGrid:
        """The 2,800 points of `demand_grid`, with the truth.

        A point is in support where its price lies in the central 99% of prices at its season (`price_support`); the
        group does not enter the price equation.
        """
        price, time, group = demand_grid()
        low, high = price_support(time)
        covariates = self.observed({"time": time, "group": group}, None)
        return StructuralGrid(price, covariates, demand(price, time, group), (low <= price) & (price <= high))


@dataclass(frozen=True)
class DemandConfoundedDesign(DemandDesign):
    """The demand design with its disturbance scaled up: Y = f₀(P, T, S) + disturbance · ε.

    In the demand design a perfect regression that ignores the instrument is nearly unbiased on the grid: it tests
    representation, not endogeneity. Here the price shock enters the outcome with weight disturbance · ρ, so a
    regression on the observed price is biased by up to that much at a season with little other variation of the price.

    Args:
        disturbance: standard deviation of the outcome around the structural function.

    Example:
        >>> data = DemandConfoundedDesign().sample(100, rho=0.9, seed=0)
        >>> data.covariates.shape
        (100, 2)
    """

    name: ClassVar[str] = "demand-confounded"

    disturbance: float = 50.0


@dataclass(frozen=True)
class VectorProxyDesign(DemandDesign):
    """Demand with a noisy vector r = μ_S + σ η in place of the group S.

    The prototypes μ_1..μ_7 ~ N(0, I) depend on `feature_seed` only and are the same for every sample and for the
    grid. Training noise (from the sample's seed), grid noise and prototypes (both from `feature_seed`) are three
    separate random streams.

    Args:
        vector_dim: length of the proxy; the paper's is 784.
        noise: σ, the standard deviation of a proxy around its prototype; the paper's is 0.5.
        feature_seed: the seed of the prototypes and of the grid's proxies.

    Example:
        >>> design = VectorProxyDesign(vector_dim=8)
        >>> data = design.sample(50, rho=0.5, seed=0)
        >>> data.covariates.shape, design.grid().covariates["proxy"].shape
        ((50, 9), (2800, 8))
    """

    name: ClassVar[str] = "vector-proxy"

    vector_dim: int = 784
    noise: float = 0.5
    feature_seed: int = 42

    def prototypes(self) -> np.ndarray:
        """The `(7, vector_dim)` prototypes; row s − 1 belongs to group s."""
        return stream(self.feature_seed, _PROTOTYPE).normal(size=(GROUPS, self.vector_dim))

    def observed(self, covariates: Columns, seed: int | None) -> Columns:
        """The time, and a proxy of each row's group."""
        rng = stream(self.feature_seed, _GRID_PROXY) if seed is None else stream(seed, _TRAINING_PROXY)
        return {"time": covariates["time"], "proxy": self.proxy(covariates["group"], rng)}

    def proxy(self, group: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A proxy of each row's group, `(n, vector_dim)`."""
        centres = self.prototypes()[group.astype(int) - 1]
        return centres + self.noise * rng.normal(size=centres.shape)
