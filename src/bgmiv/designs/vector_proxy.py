"""The vector-proxy design: the demand design with the customer group seen only through a noisy vector."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from bgmiv.data.ivdata import IVData
from bgmiv.designs.base import StructuralGrid, stream
from bgmiv.designs.demand import GROUPS, demand, demand_grid, draw_demand, price_support
from bgmiv.errors import ConfigError

__all__ = ["VectorProxyDesign"]


class _Stream(IntEnum):
    """Spawn keys, apart from the demand design's: a proxy never shares draws with S, T, C, U or η."""

    PROTOTYPE = 100
    TRAINING_NOISE = 101
    GRID_NOISE = 102


@dataclass(frozen=True)
class VectorProxyDesign:
    """Demand with a proxy r = μ_S + σ η in place of the group S.

    The prototypes μ_1..μ_7 ~ N(0, I) come from ``feature_seed`` alone and are the same for every sample
    and for the grid. Training noise (from the sample's seed), grid noise and prototypes (both from
    ``feature_seed``) are three separate random streams.

    Arguments
    ---------
    vector_dim : length of the proxy; the paper's is 784.
    noise : σ, the deviation of a proxy around its prototype; the paper's is 0.5.
    feature_seed : the seed of the prototypes and of the grid's proxies.

    Example
    -------
    >>> design = VectorProxyDesign(vector_dim=8)
    >>> data = design.sample(50, rho=0.5, seed=0)
    >>> data.covariates.shape, design.grid().covariates["proxy"].shape
    ((50, 9), (2800, 8))
    """

    vector_dim: int = 784
    noise: float = 0.5
    feature_seed: int = 42

    def __post_init__(self) -> None:
        if self.vector_dim < 1:
            raise ConfigError(f"vector_dim is {self.vector_dim}; choose 1 or more")
        if not (np.isfinite(self.noise) and self.noise >= 0.0):
            raise ConfigError(f"noise is {self.noise}; choose a finite value of 0 or more")
        if self.feature_seed < 0:
            raise ConfigError(f"feature_seed is {self.feature_seed}; choose an integer of 0 or more")

    @property
    def name(self) -> str:
        """``"vector-proxy"``."""
        return "vector-proxy"

    def prototypes(self) -> np.ndarray:
        """The (7, vector_dim) prototypes; row s − 1 belongs to group s."""
        return stream(self.feature_seed, _Stream.PROTOTYPE).normal(size=(GROUPS, self.vector_dim))

    def sample(self, n: int, rho: float, seed: int) -> IVData:
        """``n`` rows: as the demand design's with the same seed, the group replaced by its proxy."""
        draw = draw_demand(n, rho, seed)
        proxy = self._proxy(draw.group, stream(seed, _Stream.TRAINING_NOISE))
        return IVData.from_arrays(
            {"demand": draw.outcome},
            {"price": draw.price},
            instruments={"cost": draw.cost},
            covariates={"time": draw.time, "proxy": proxy},
            blocks={"time": "continuous", "proxy": "vector"},
            treatment_kind="continuous",
        )

    def grid(self) -> StructuralGrid:
        """The demand design's grid with a fresh proxy at each of the 2,800 points.

        ``in_support`` speaks of price and season, as in the demand design.
        """
        price, time, group = demand_grid()
        low, high = price_support(time)
        return StructuralGrid(
            treatment=price,
            covariates={
                "time": time,
                "proxy": self._proxy(group, stream(self.feature_seed, _Stream.GRID_NOISE)),
            },
            truth=demand(price, time, group),
            in_support=(low <= price) & (price <= high),
        )

    def _proxy(self, group: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        centres = self.prototypes()[group.astype(int) - 1]
        return centres + self.noise * rng.normal(size=centres.shape)
