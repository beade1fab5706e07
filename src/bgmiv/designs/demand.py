"""The demand design: airline demand with endogenous prices (Hartford et al. 2017; the paper's appendix)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm

from bgmiv.data.ivdata import IVData
from bgmiv.designs.base import StructuralGrid, check_draw, stream

__all__ = [
    "GROUPS",
    "DemandDesign",
    "DemandDraw",
    "demand",
    "demand_grid",
    "draw_demand",
    "price_support",
    "season",
]

GROUPS = 7
_SUPPORT_COVERAGE = 0.99


class _Stream(IntEnum):
    """The spawn key of each variable: none shares draws with another."""

    GROUP = 0
    TIME = 1
    COST = 2
    SHOCK = 3
    NOISE = 4


class DemandDraw(NamedTuple):
    """One sample with everything in it, seen and unseen; every field is an (n,) array."""

    group: np.ndarray
    time: np.ndarray
    cost: np.ndarray
    shock: np.ndarray
    price: np.ndarray
    outcome: np.ndarray


def season(time: ArrayLike) -> np.ndarray:
    """The seasonal function ψ(t) = 2{(t − 5)⁴/600 + exp[−4(t − 5)²] + t/10 − 2}.

    >>> float(season(5.0))
    -1.0
    """
    t = np.asarray(time, dtype=np.float64)
    return 2.0 * ((t - 5.0) ** 4 / 600.0 + np.exp(-4.0 * (t - 5.0) ** 2) + t / 10.0 - 2.0)


def demand(price: ArrayLike, time: ArrayLike, group: ArrayLike) -> np.ndarray:
    """The structural function f₀(p, t, s) = 100 + (10 + p) s ψ(t) − 2p.

    >>> float(demand(20.0, 5.0, 1.0))
    30.0
    """
    p = np.asarray(price, dtype=np.float64)
    return 100.0 + (10.0 + p) * np.asarray(group, dtype=np.float64) * season(time) - 2.0 * p


def price_support(time: ArrayLike, coverage: float = _SUPPORT_COVERAGE) -> tuple[np.ndarray, np.ndarray]:
    """The central range of prices that the design shows at a season.

    P = 25 + (C + 3)ψ(T) + U with C, U standard normal, so P | T = t is N(25 + 3ψ(t), ψ(t)² + 1). The
    range is the central ``coverage`` of that distribution: a closed form that depends on no sample.

    Returns
    -------
    (lowest, highest) price, arrays of the shape of ``time``.

    >>> low, high = price_support(5.0)
    >>> round(float(low), 2), round(float(high), 2)
    (18.36, 25.64)
    """
    psi = season(time)
    centre = 25.0 + 3.0 * psi
    reach = norm.ppf(0.5 + coverage / 2.0) * np.sqrt(psi**2 + 1.0)
    return centre - reach, centre + reach


def draw_demand(n: int, rho: float, seed: int) -> DemandDraw:
    """Draw the demand design with its hidden shock.

    S ~ Unif{1..7}, T ~ Unif[0, 10], C, U, η ~ N(0, 1), ε = ρU + √(1 − ρ²) η,
    P = 25 + (C + 3)ψ(T) + U, Y = f₀(P, T, S) + ε.

    Each variable has a random stream of its own: samples with the same seed share S, T, C and U whatever
    ``rho`` is, and a smaller sample is the beginning of a larger one.

    >>> weak, strong = draw_demand(5, 0.1, seed=3), draw_demand(5, 0.9, seed=3)
    >>> bool((weak.price == strong.price).all()), bool((weak.outcome == strong.outcome).all())
    (True, False)
    """
    check_draw(n, rho, seed)
    group = stream(seed, _Stream.GROUP).integers(1, GROUPS + 1, size=n).astype(np.float64)
    time = stream(seed, _Stream.TIME).uniform(0.0, 10.0, size=n)
    cost = stream(seed, _Stream.COST).normal(size=n)
    shock = stream(seed, _Stream.SHOCK).normal(size=n)
    noise = stream(seed, _Stream.NOISE).normal(size=n)
    price = 25.0 + (cost + 3.0) * season(time) + shock
    disturbance = rho * shock + np.sqrt(1.0 - rho**2) * noise
    return DemandDraw(group, time, cost, shock, price, demand(price, time, group) + disturbance)


def demand_grid() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The evaluation grid: (price, time, group) of 20 prices × 20 times × 7 groups, price slowest.

    >>> price, time, group = demand_grid()
    >>> len(price), float(price.min()), float(price.max()), float(group[1])
    (2800, 10.0, 25.0, 2.0)
    """
    axes = np.meshgrid(
        np.linspace(10.0, 25.0, 20),
        np.linspace(0.0, 10.0, 20),
        np.arange(1.0, GROUPS + 1.0),
        indexing="ij",
    )
    price, time, group = (axis.ravel() for axis in axes)
    return price, time, group


@dataclass(frozen=True)
class DemandDesign:
    """The low-dimensional demand design: the time of year and the customer group are observed.

    Example
    -------
    >>> design = DemandDesign()
    >>> data = design.sample(100, rho=0.5, seed=0)
    >>> data.n_rows, data.covariates.shape, data.instruments.shape
    (100, (100, 2), (100, 1))
    """

    @property
    def name(self) -> str:
        """``"demand"``."""
        return "demand"

    def sample(self, n: int, rho: float, seed: int) -> IVData:
        """``n`` rows: outcome Y, treatment P, instrument C, covariates T and S (both continuous)."""
        draw = draw_demand(n, rho, seed)
        return IVData.from_arrays(
            {"demand": draw.outcome},
            {"price": draw.price},
            instruments={"cost": draw.cost},
            covariates={"time": draw.time, "group": draw.group},
            blocks={"time": "continuous", "group": "continuous"},
            treatment_kind="continuous",
        )

    def grid(self) -> StructuralGrid:
        """The 2,800 points of :func:`demand_grid`.

        A point is in support where its price lies in the central 99% of prices at its season
        (:func:`price_support`); the group does not enter the price equation.

        >>> int(DemandDesign().grid().in_support.sum())
        2142
        """
        price, time, group = demand_grid()
        low, high = price_support(time)
        return StructuralGrid(
            treatment=price,
            covariates={"time": time, "group": group},
            truth=demand(price, time, group),
            in_support=(low <= price) & (price <= high),
        )
