"""Designs with a discrete treatment or outcome, strongly confounded: ignoring the instrument is far off.

Where covariates have bounded ranges, so that a finite sample covers them, the grids go a tenth beyond.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import ndtr, ndtri

from bgmiv.data.ivdata import IVData
from bgmiv.designs.base import (
    CheckedSettings,
    StructuralGrid,
    as_data,
    check_draw,
    confounded,
    grid_of,
    normals,
    product,
    stream,
)
from bgmiv.errors import ConfigError

__all__ = ["BinaryConfoundedDesign", "BinaryOutcomeDesign", "BinaryTreatmentDesign", "CategoricalTreatmentDesign"]

_EDGE = 2.0
_GRID_EDGE = 1.1 * _EDGE


# The spawn key of each variable; every design adds its own multiple of a hundred.
_INSTRUMENT, _COVARIATE, _SHOCK, _NOISE, _GROUP, _SECOND_INSTRUMENT = range(6)
_BINARY_CONFOUNDED, _BINARY_TREATMENT, _CATEGORICAL_TREATMENT, _BINARY_OUTCOME = 400, 500, 600, 700

_SITES = np.array(["north", "south", "east", "west"])
_SITE_SHARES = np.array([0.4, 0.3, 0.2, 0.1])
_SITE_SHIFTS = np.array([0.0, 0.4, -0.4, 0.2])
_SITE_EFFECTS = np.array([0.0, 1.0, -0.5, 0.5])
_TREATMENTS = np.array(["none", "standard", "intensive"])


@dataclass(frozen=True)
class BinaryConfoundedDesign(CheckedSettings):
    """A binary treatment whose uptake depends on what also moves the outcome.

    W, V, U ~ N(0, 1), corr(U, ε) = ρ, sd(ε) = disturbance and

        X = 1{strength · W + covariate_strength · V + U > 0},    Y = V²/2 + X (1 + 1.5 sin V) + ε.

    The effect 1 + 1.5 sin v is positive above v ≈ −0.73 and negative just below.

    Args:
        strength: weight of the instrument in the latent index, not zero.
        covariate_strength: weight of the covariate in the latent index.
        disturbance: standard deviation of ε.

    Example:
        >>> data = BinaryConfoundedDesign().sample(50, rho=0.9, seed=0)
        >>> sorted(set(data.treatment.tolist())), data.schema.treatment.kind.value
        ([0.0, 1.0], 'binary')
    """

    name: ClassVar[str] = "binary-confounded"

    strength: float = 1.0
    covariate_strength: float = 1.5
    disturbance: float = 2.0

    def structural(self, treatment: np.ndarray, covariate: np.ndarray) -> np.ndarray:
        """g₀(x, v) = v²/2 + x (1 + 1.5 sin v)."""
        return covariate**2 / 2.0 + treatment * (1.0 + 1.5 * np.sin(covariate))

    def propensity(self, covariate: np.ndarray) -> np.ndarray:
        """P(X = 1 | V = v), over the instrument."""
        return ndtr(self.covariate_strength * covariate / np.hypot(self.strength, 1.0))

    def sample(self, n: int, rho: float, seed: int) -> IVData:
        check_draw(n, rho, seed)
        instrument, covariate, shock, noise = normals(n, seed, *(_BINARY_CONFOUNDED + key for key in range(4)))
        index = self.strength * instrument + self.covariate_strength * covariate + shock
        treatment = (index > 0.0).astype(np.float64)
        return as_data(
            {"outcome": self.structural(treatment, covariate) + self.disturbance * confounded(shock, noise, rho)},
            {"treatment": treatment},
            {"instrument": instrument},
            {"covariate": (covariate, "continuous")},
            treatment_kind="binary",
        )

    def grid(self) -> StructuralGrid:
        """Both treatments × 1,400 covariates over the central 99%.

        A point is in support where its treatment has a probability of at least 0.01 at its covariate.
        """
        reach = float(ndtri(0.995))
        treatment, covariate = product(np.array([0.0, 1.0]), np.linspace(-reach, reach, 1400))
        taken = self.propensity(covariate)
        in_support = np.where(treatment == 1.0, taken, 1.0 - taken) >= 0.01
        return grid_of(self.structural, treatment, {"covariate": covariate}, in_support)


@dataclass(frozen=True)
class BinaryTreatmentDesign(CheckedSettings):
    """A binary treatment, with a continuous and a categorical covariate.

    W, U ~ N(0, 1), V ~ U(-2, 2), a site S of four, corr(U, ε) = ρ, sd(ε) = disturbance and

        X = 1{strength · W + V/2 + a(S) + U > 0},    Y = V²/2 + b(S) + X (1.5 + sin V) + ε.

    Args:
        strength: weight of the instrument in the latent index, not zero.
        disturbance: standard deviation of ε.

    Example:
        >>> data = BinaryTreatmentDesign().sample(50, rho=0.9, seed=0)
        >>> data.schema.treatment.kind.value, [block.kind.value for block in data.schema.blocks]
        ('binary', ['continuous', 'categorical'])
    """

    name: ClassVar[str] = "binary-treatment"

    strength: float = 1.5
    disturbance: float = 1.2

    def structural(self, treatment: np.ndarray, covariate: np.ndarray, site: np.ndarray) -> np.ndarray:
        """g₀(x, v, s) = v²/2 + b(s) + x (1.5 + sin v)."""
        level = covariate**2 / 2.0 + _SITE_EFFECTS[_codes(site)]
        return level + treatment * (1.5 + np.sin(covariate))

    def sample(self, n: int, rho: float, seed: int) -> IVData:
        check_draw(n, rho, seed)
        instrument, shock, noise = normals(n, seed, *(_BINARY_TREATMENT + key for key in (_INSTRUMENT, _SHOCK, _NOISE)))
        covariate = _uniform(n, seed, _BINARY_TREATMENT)
        site = stream(seed, _BINARY_TREATMENT + _GROUP).choice(_SITES, p=_SITE_SHARES, size=n)
        treatment = self.strength * instrument + covariate / 2.0 + _SITE_SHIFTS[_codes(site)] + shock > 0.0
        outcome = self.structural(treatment, covariate, site) + self.disturbance * confounded(shock, noise, rho)
        return as_data(
            {"outcome": outcome},
            {"treatment": treatment},
            {"instrument": instrument},
            {"covariate": (covariate, "continuous"), "site": (site, "categorical")},
            treatment_kind="binary",
        )

    def grid(self) -> StructuralGrid:
        """Both treatments × four sites × 350 covariates from -2.2 to 2.2; in support up to ±2."""
        axis = np.linspace(-_GRID_EDGE, _GRID_EDGE, 350)
        treatment, site, covariate = product(np.array([0.0, 1.0]), _SITES, axis)
        covariates = {"covariate": covariate, "site": site}
        return grid_of(self.structural, treatment, covariates, np.abs(covariate) <= _EDGE)


@dataclass(frozen=True)
class CategoricalTreatmentDesign(CheckedSettings):
    """A treatment of three levels, two of which have an instrument each; one covariate is binary.

    W₁, W₂, U ~ N(0, 1), V ~ U(-2, 2), a flag F with P(F) = 0.4, corr(U, ε) = ρ, sd(ε) = disturbance. The treatment is
    the one with the highest of the utilities

        none: 0.5,    standard: strength · W₁ + V/2 + U,    intensive: strength · W₂ − F/2 + 1.5 U − 0.2,

    and Y = V²/2 + F + e(X, V) + ε with e = 0 for none, 1 + sin(V)/2 for standard and 1.5 − V/2 for intensive.

    Args:
        strength: weight of the instruments in the utilities, not zero.
        disturbance: standard deviation of ε.

    Example:
        >>> data = CategoricalTreatmentDesign().sample(500, rho=0.9, seed=0)
        >>> sorted(data.schema.treatment.levels), data.instruments.shape
        (['intensive', 'none', 'standard'], (500, 2))
    """

    name: ClassVar[str] = "categorical-treatment"

    strength: float = 2.0
    disturbance: float = 1.0

    def structural(self, treatment: np.ndarray, covariate: np.ndarray, flag: np.ndarray) -> np.ndarray:
        """g₀(x, v, f) = v²/2 + f + e(x, v)."""
        standard, intensive = 1.0 + np.sin(covariate) / 2.0, 1.5 - covariate / 2.0
        effect = np.where(treatment == "standard", standard, np.where(treatment == "intensive", intensive, 0.0))
        return covariate**2 / 2.0 + flag + effect

    def sample(self, n: int, rho: float, seed: int) -> IVData:
        check_draw(n, rho, seed)
        keys = (_INSTRUMENT, _SECOND_INSTRUMENT, _SHOCK, _NOISE)
        first, second, shock, noise = normals(n, seed, *(_CATEGORICAL_TREATMENT + key for key in keys))
        covariate = _uniform(n, seed, _CATEGORICAL_TREATMENT)
        flag = stream(seed, _CATEGORICAL_TREATMENT + _GROUP).uniform(size=n) < 0.4
        standard = self.strength * first + covariate / 2.0 + shock
        intensive = self.strength * second - flag / 2.0 + 1.5 * shock - 0.2
        treatment = _TREATMENTS[np.argmax(np.column_stack([np.full(n, 0.5), standard, intensive]), axis=1)]
        disturbance = self.disturbance * confounded(shock, noise, rho)
        return as_data(
            {"outcome": self.structural(treatment, covariate, flag) + disturbance},
            {"treatment": treatment},
            {"push_standard": first, "push_intensive": second},
            {"covariate": (covariate, "continuous"), "flag": (flag, "binary")},
            treatment_kind="categorical",
        )

    def grid(self) -> StructuralGrid:
        """Three treatments × both flags × 466 covariates from -2.2 to 2.2; in support up to ±2."""
        axis = np.linspace(-_GRID_EDGE, _GRID_EDGE, 466)
        treatment, flag, covariate = product(_TREATMENTS, np.array([False, True]), axis)
        covariates = {"covariate": covariate, "flag": flag}
        return grid_of(self.structural, treatment, covariates, np.abs(covariate) <= _EDGE)


@dataclass(frozen=True)
class BinaryOutcomeDesign(CheckedSettings):
    """A binary outcome of a continuous treatment.

    W, U ~ N(0, 1), V ~ U(-2, 2), X = strength · W + V/2 + U and

        P(Y = 1 | X, V, U) = g₀(X, V) + ρ · reach · (2Φ(U) − 1),    g₀(x, v) = ½ + 0.19 tanh(x) + 0.05 sin(2v).

    The confounder moves the probability up and down and cancels on average, so that E[Y − g₀(X, V) | W, V] = 0: g₀ is
    both the probability under an intervention and what the instrument identifies.

    Args:
        strength: weight of the instrument in the treatment, not zero.
        reach: the largest shift of the probability; probabilities stay within 0 and 1 up to 0.26.

    Example:
        >>> data = BinaryOutcomeDesign().sample(50, rho=0.9, seed=0)
        >>> data.schema.outcome.kind.value, sorted(set(data.outcome.tolist()))
        ('binary', [0.0, 1.0])
    """

    name: ClassVar[str] = "binary-outcome"

    strength: float = 1.0
    reach: float = 0.26

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.reach <= 0.26:
            raise ConfigError(f"reach is {self.reach}; choose 0 to 0.26, so that probabilities stay within 0 and 1")

    def structural(self, treatment: np.ndarray, covariate: np.ndarray) -> np.ndarray:
        """g₀(x, v) = ½ + 0.19 tanh(x) + 0.05 sin(2v), the probability of 1."""
        return 0.5 + 0.19 * np.tanh(treatment) + 0.05 * np.sin(2.0 * covariate)

    def sample(self, n: int, rho: float, seed: int) -> IVData:
        check_draw(n, rho, seed)
        instrument, shock = normals(n, seed, _BINARY_OUTCOME + _INSTRUMENT, _BINARY_OUTCOME + _SHOCK)
        covariate = _uniform(n, seed, _BINARY_OUTCOME)
        treatment = self.strength * instrument + covariate / 2.0 + shock
        probability = self.structural(treatment, covariate) + rho * self.reach * (2.0 * ndtr(shock) - 1.0)
        return as_data(
            {"outcome": stream(seed, _BINARY_OUTCOME + _NOISE).uniform(size=n) < probability},
            {"treatment": treatment},
            {"instrument": instrument},
            {"covariate": (covariate, "continuous")},
            treatment_kind="continuous",
            outcome_kind="binary",
        )

    def grid(self) -> StructuralGrid:
        """40 treatments × 70 covariates from -2.2 to 2.2.

        A point is in support where |v| ≤ 2 and the treatment lies in the central 95% of its distribution at V = v.
        """
        half = float(ndtri(0.975)) * np.hypot(self.strength, 1.0)
        edge = half + _EDGE / 2.0
        treatment, covariate = product(np.linspace(-edge, edge, 40), np.linspace(-_GRID_EDGE, _GRID_EDGE, 70))
        in_support = (np.abs(treatment - covariate / 2.0) <= half) & (np.abs(covariate) <= _EDGE)
        return grid_of(self.structural, treatment, {"covariate": covariate}, in_support)


def _uniform(n: int, seed: int, design: int) -> np.ndarray:
    return stream(seed, design + _COVARIATE).uniform(-_EDGE, _EDGE, size=n)


def _codes(site: np.ndarray) -> np.ndarray:
    """The position of each row's site in `_SITES`."""
    return np.argmax(site[:, None] == _SITES, axis=1)
