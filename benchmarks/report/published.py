"""Benchmarks that other authors wrote, from their definitions.

`bgmiv bench` has them where PYTHONPATH holds `benchmarks` and BGMIV_DESIGNS is `report`.

ρ = 1 is each benchmark as published. Otherwise the confounder of the outcome has the correlation ρ with that of the
treatment, and all else stays: the structural function does not depend on ρ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import ClassVar

import numpy as np
from scipy.special import exp1, expit

from bgmiv.data.ivdata import IVData
from bgmiv.designs import DesignEntry, base, register
from bgmiv.errors import ConfigError

__all__ = ["AGMM_CURVES", "NETWORK_CURVES", "TABCF_SCENARIOS", "AdversarialGMMDesign", "NetworkIVDesign", "TabCFDesign"]

Curve = Callable[[np.ndarray], np.ndarray]

NETWORK_CURVES: dict[str, Curve] = {
    "abs": np.abs,
    "step": lambda t: (t > 0.0).astype(np.float64),
    "sin": np.sin,
    "linear": lambda t: t,
}
"""The functions of the network IV experiment."""

TABCF_SCENARIOS = tuple(f"{first}-{second}" for second in ("b5", "b4", "b11") for first in ("a3", "a9"))
"""First and second stages of the TabCF study."""

# Spawn keys of the random streams.
_NETWORK, _TABCF, _AGMM = 1000, 1010, 1020
_NOISE = 0.1


@dataclass(frozen=True)
class NetworkIVDesign(base.CheckedSettings):
    """The network IV experiment of Kremer et al. (2022, 2023).

    Z₁, Z₂ ~ U(−3, 3), e, e′ ~ N(0, 1), γ, δ ~ N(0, 0.1²) and

        X = Z₁ + e + γ,    Y = f(X) + ρ e + √(1 − ρ²) e′ + δ.

    Source: repository HeinerKremer/conditional-moment-restrictions, commit e0bc41d, experiments/exp_network_iv.py.

    Args:
        curve: f, one of `NETWORK_CURVES`: `|x|`, 1{x > 0}, sin x or x.

    Example:
        >>> NetworkIVDesign("abs").sample(50, rho=1.0, seed=0).instruments.shape
        (50, 2)
    """

    choices: ClassVar = {"curve": NETWORK_CURVES}

    curve: str = "abs"

    @property
    def name(self) -> str:
        """`"network-"` and the curve."""
        return f"network-{self.curve}"

    def structural(self, treatment: np.ndarray) -> np.ndarray:
        """f at each treatment."""
        return NETWORK_CURVES[self.curve](np.asarray(treatment, np.float64))

    def sample(self, n: int, rho: float, seed: int) -> IVData:
        base.check_draw(n, rho, seed)
        instruments, treatment, shock = self._draw(n, seed)
        other, noise = base.normals(n, seed, _NETWORK + 3, _NETWORK + 4)
        error = base.confounded(shock, other, rho) + _NOISE * noise
        return _as_data(self.structural(treatment) + error, treatment, instruments)

    def _draw(self, n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        instruments = base.stream(seed, _NETWORK).uniform(-3.0, 3.0, size=(n, 2))
        shock, noise = base.normals(n, seed, _NETWORK + 1, _NETWORK + 2)
        return instruments, instruments[:, 0] + shock + _NOISE * noise, shock

    def grid(self) -> base.StructuralGrid:
        """2,800 fresh treatments of the same distribution, as the authors evaluate."""
        return base.grid_of(self.structural, self._draw(base.GRID_ROWS, base.GRID_SEED)[1])


@dataclass(frozen=True)
class TabCFDesign(base.CheckedSettings):
    r"""Scenarios of the TabCF study: one instrument, no covariates, a confounder of both stages.

    Z ~ U(0, 3); H, H′, ε_x, ε ~ N(0, 1); $H_\rho = \rho H + \sqrt{1 - \rho^2} H'$. The first stages are

    - a3: X = Z + H + ε_x;
    - a9: X = 2Z + Z²/4 + (1 + 0.15 Z)(H + ε_x),

    and the second stages, with the truth E[Y | do(x)],

    - b5: $Y = 3 \sin 2X + 2X - 3 H_\rho + \varepsilon$; the truth $3 \sin 2x + 2x$. Errors are separable;
    - b4: $Y = 0.2\,(5.5 + 2X + 3 H_\rho + \varepsilon)$ where X ≤ 1, else
      $\log\{(2X + H_\rho)^2 + \varepsilon^2\}$; the truth $0.2\,(5.5 + 2x)$, else $\log 4x^2 + E_1(2 x^2)$, the mean
      logarithm of a noncentral chi-square variable;
    - b11: $Y = 1 + 2X + \cos 2X + X H_\rho - H_\rho + \varepsilon$; the truth $1 + 2x + \cos 2x$.

    Source: repository GepingChen/TabCF, commit fc4d2e5, tabcf_core/dgp.py and tabcf_core/dgp_test_utils.py.

    Args:
        scenario: one of `TABCF_SCENARIOS`.

    Example:
        >>> TabCFDesign("a3-b11").separable, TabCFDesign("a3-b5").separable
        (False, True)
    """

    choices: ClassVar = {"scenario": TABCF_SCENARIOS}

    scenario: str = "a3-b5"

    @property
    def name(self) -> str:
        """`"tabcf-"` and the scenario."""
        return f"tabcf-{self.scenario}"

    @property
    def separable(self) -> bool:
        """Whether the outcome is a function of the treatment plus an error."""
        return self.scenario.endswith("b5")

    @property
    def estimand(self) -> str:
        """What the truth is, and whether moments identify it."""
        if self.separable:
            return "E[Y | do(x)], which is what the moment E[Y - g(X) | Z] = 0 identifies."
        return "E[Y | do(x)]; errors are not separable, and the moment E[Y - g(X) | Z] = 0 identifies another function."

    def structural(self, treatment: np.ndarray) -> np.ndarray:
        """E[Y | do(x)] at each treatment."""
        x = np.asarray(treatment, np.float64)
        second = self.scenario.split("-")[1]
        if second == "b5":
            return 3.0 * np.sin(2.0 * x) + 2.0 * x
        if second == "b11":
            return 1.0 + 2.0 * x + np.cos(2.0 * x)
        above = np.maximum(x, 1.0)
        return np.where(x <= 1.0, 0.2 * (5.5 + 2.0 * x), np.log(4.0 * above**2) + exp1(2.0 * above**2))

    def sample(self, n: int, rho: float, seed: int) -> IVData:
        base.check_draw(n, rho, seed)
        instrument, x, shock = self._draw(n, seed)
        other, noise = base.normals(n, seed, _TABCF + 3, _TABCF + 4)
        h = base.confounded(shock, other, rho)
        second = self.scenario.split("-")[1]
        if second == "b5":
            outcome = 3.0 * np.sin(2.0 * x) + 2.0 * x - 3.0 * h + noise
        elif second == "b11":
            outcome = 1.0 + 2.0 * x + np.cos(2.0 * x) + x * h - h + noise
        else:
            logarithm = np.log(np.maximum((2.0 * x + h) ** 2 + noise**2, 1e-8))
            outcome = np.where(x <= 1.0, 0.2 * (5.5 + 2.0 * x + 3.0 * h + noise), logarithm)
        return _as_data(outcome, x, instrument[:, None])

    def _draw(self, n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        z = base.stream(seed, _TABCF).uniform(0.0, 3.0, size=n)
        shock, noise = base.normals(n, seed, _TABCF + 1, _TABCF + 2)
        if self.scenario.startswith("a3"):
            return z, z + shock + noise, shock
        return z, 2.0 * z + 0.25 * z**2 + (1.0 + 0.15 * z) * (shock + noise), shock

    def grid(self) -> base.StructuralGrid:
        """Fresh treatments between their 5% and 95% quantiles, as the authors evaluate: 2,800 of 10,000."""
        treatments = np.sort(self._draw(10_000, base.GRID_SEED)[1])[500:9500]
        return base.grid_of(self.structural, treatments[np.linspace(0, 8999, base.GRID_ROWS).astype(np.intp)])


def _random_pieces(x: np.ndarray) -> np.ndarray:
    """One draw of the authors' piecewise linear function: five pieces with slopes in (−4, 4), bends in (−2, 2)."""
    bends = np.array([-1.4, -0.3, 0.5, 1.2])
    slopes = np.array([1.5, -2.5, 3.0, -1.0, 2.0])
    corners = np.concatenate([[-2.0], bends])
    starts = 0.5 + np.concatenate([[0.0], np.cumsum(slopes[:-1] * np.diff(corners))])
    piece = np.searchsorted(bends, x)
    return starts[piece] + slopes[piece] * (x - corners[piece])


AGMM_CURVES: dict[str, Curve] = {
    "abs": np.abs,
    "2dpoly": lambda x: -1.5 * x + 0.9 * x**2,
    "sigmoid": lambda x: 2.0 * expit(2.0 * x),
    "sin": np.sin,
    "frequent-sin": lambda x: np.sin(3.0 * x),
    "abs-sqrt": lambda x: np.sqrt(np.abs(x)),
    "step": lambda x: np.where(x < 0.0, 1.0, 2.5),
    "3dpoly": lambda x: -1.5 * x + 0.9 * x**2 + x**3,
    "linear": lambda x: x,
    "rand-pw": _random_pieces,
    "abspos": lambda x: np.maximum(x, 0.0),
    "sqrpos": lambda x: np.maximum(x, 0.0) ** 2,
    "band": lambda x: (np.abs(x) <= 0.75).astype(np.float64),
    "invband": lambda x: (np.abs(x) > 0.75).astype(np.float64),
    "steplinear": lambda x: 2.0 * (x >= 0.0) - x,
    "pwlinear": lambda x: (x + 1.0) * (x <= -1.0) + (x - 1.0) * (x >= 1.0),
}
"""The functions of the AdversarialGMM study, under the authors' names; `rand-pw` is one draw of theirs."""


@dataclass(frozen=True)
class AdversarialGMMDesign(base.CheckedSettings):
    """The sixteen curves of the AdversarialGMM study (Dikkala, Lewis, Mackey and Syrgkanis 2020).

    U, U′, ν, ε ~ N(0, 1), s the strength, and Z standard normal but in design 4, where its mean is 0.5:

    - design 1: X = 2s max(Z₁, 0) + 2s min(Z₂, 0) + 2(1 − s) U + 0.1 ν;
    - design 2: X = 2s Z₁ + 2(1 − s) U + 0.1 ν;
    - design 4: X = s min(Z) + (1 − s) U + 0.1 ν,

    and Y = f(X) + 2(ρ U + √(1 − ρ²) U′) + 0.1 ε, standardised by mean and standard deviation of the population at ρ = 1
    (the authors standardise each sample by its own).

    Source: repository microsoft/AdversarialGMM, commit b6279d3, mliv/dgps.py; design 2 with strength 0.6, one
    instrument, n = 2000 and errors at 1000 fresh treatments is montecarlo/ivconfig_one_z_one_t_paper_n_2000_gamma_6.py.

    Args:
        curve: f, one of `AGMM_CURVES`.
        design: 1, 2 or 4.
        strength: s, above 0 and up to 1.
        n_instruments: how many there are; design 1 uses two of them, design 2 one, design 4 all.

    Example:
        >>> AdversarialGMMDesign("band", design=4, n_instruments=5).name
        'agmm-band:design=4,n_instruments=5'
    """

    choices: ClassVar = {"curve": AGMM_CURVES}

    curve: str = "abs"
    design: int = 2
    strength: float = 0.6
    n_instruments: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.design not in (1, 2, 4):
            raise ConfigError(f"design is {self.design}; choose 1, 2 or 4")
        if not 0.0 < self.strength <= 1.0:
            raise ConfigError(f"strength is {self.strength}; choose a value above 0 and up to 1")
        fewest = 2 if self.design == 1 else 1
        if self.n_instruments < fewest:
            raise ConfigError(f"n_instruments is {self.n_instruments}; design {self.design} needs {fewest} or more")

    @property
    def name(self) -> str:
        """`"agmm-"`, the curve, and the other settings that are not the usual ones."""
        return base.name_with_settings(f"agmm-{self.curve}", self, AdversarialGMMDesign(self.curve))

    def structural(self, treatment: np.ndarray) -> np.ndarray:
        """f at each treatment, in units of the standardised outcome."""
        shift, scale = _agmm_units(self)
        return (AGMM_CURVES[self.curve](np.asarray(treatment, np.float64)) - shift) / scale

    def sample(self, n: int, rho: float, seed: int) -> IVData:
        base.check_draw(n, rho, seed)
        instruments, treatment, shock = self.draw(n, seed)
        other, noise = base.normals(n, seed, _AGMM + 3, _AGMM + 4)
        error = 2.0 * base.confounded(shock, other, rho) + _NOISE * noise
        return _as_data(self.structural(treatment) + error / _agmm_units(self)[1], treatment, instruments)

    def draw(self, n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Instruments, treatment and confounder of `n` rows."""
        z = base.stream(seed, _AGMM).normal(size=(n, self.n_instruments)) + (0.5 if self.design == 4 else 0.0)
        shock, noise = base.normals(n, seed, _AGMM + 1, _AGMM + 2)
        s, rest = self.strength, 1.0 - self.strength
        if self.design == 1:
            x = 2.0 * s * (np.maximum(z[:, 0], 0.0) + np.minimum(z[:, 1], 0.0)) + 2.0 * rest * shock
        elif self.design == 2:
            x = 2.0 * s * z[:, 0] + 2.0 * rest * shock
        else:
            x = s * z.min(axis=1) + rest * shock
        return z, x + _NOISE * noise, shock

    def grid(self) -> base.StructuralGrid:
        """2,800 fresh treatments of the same distribution, as the authors evaluate."""
        return base.grid_of(self.structural, self.draw(base.GRID_ROWS, base.GRID_SEED)[1])


@cache
def _agmm_units(design: AdversarialGMMDesign) -> tuple[float, float]:
    """Mean and standard deviation of the outcome at ρ = 1, from 200,000 rows."""
    _, x, shock = design.draw(base.REFERENCE_ROWS, base.REFERENCE_SEED)
    outcome = AGMM_CURVES[design.curve](x) + 2.0 * shock
    return float(outcome.mean()), float(np.sqrt(outcome.var() + _NOISE**2))


def _as_data(outcome: np.ndarray, treatment: np.ndarray, instruments: np.ndarray) -> IVData:
    names = [f"instrument_{i}" for i in range(1, instruments.shape[1] + 1)]
    columns = dict(zip(names, instruments.T, strict=True))
    return IVData.from_arrays(outcome, treatment, instruments=columns, treatment_kind="continuous")


register(
    *(
        DesignEntry(f"network-{curve}", f"Network IV of Kremer et al.: {curve}", partial(NetworkIVDesign, curve))
        for curve in NETWORK_CURVES
    ),
    *(
        DesignEntry(f"tabcf-{scenario}", f"TabCF scenario {scenario.upper()}", partial(TabCFDesign, scenario))
        for scenario in TABCF_SCENARIOS
    ),
    *(
        DesignEntry(f"agmm-{curve}", f"AdversarialGMM curve: {curve}", partial(AdversarialGMMDesign, curve))
        for curve in AGMM_CURVES
    ),
)
