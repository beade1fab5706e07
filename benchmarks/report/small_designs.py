"""Small designs with closed forms: a line, the curves of the DeepGMM study, and discrete treatments and outcomes.

`bgmiv bench` has them where PYTHONPATH holds `benchmarks` and BGMIV_DESIGNS is `report`.

Those with a discrete treatment or outcome are strongly confounded: ignoring the instrument is far off. Where covariates
have bounded ranges, so that a finite sample covers them, the grids go a tenth beyond.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from scipy.special import ndtr, ndtri

from bgmiv.data.ivdata import IVData
from bgmiv.designs import DesignEntry, base, register
from bgmiv.errors import ConfigError

__all__ = [
    "CURVES",
    "BinaryConfoundedDesign",
    "BinaryOutcomeDesign",
    "BinaryTreatmentDesign",
    "CategoricalTreatmentDesign",
    "LinearGaussianDesign",
    "LowDimDesign",
]

CURVES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sin": np.sin,
    "abs": np.abs,
    "step": lambda x: np.where(x < 0.0, 1.0, 2.5),
    "linear": lambda x: x,
}
"""The structural function of each low-dimensional design; "step" is 1 below zero and 2.5 from zero on."""

_REACH = float(ndtri(0.995))
# Of the curves: the range of the instruments, and the standard deviation of the noise that nothing shares.
_BOUND, _SMALL = 3.0, 0.1
_EDGE = 2.0
_GRID_EDGE = 1.1 * _EDGE

# Spawn keys of the random streams: the first of the curves' is the instruments, the others are normal draws.
_LINEAR_KEYS = range(300, 304)
_CURVE_KEYS = range(200, 205)
# Of the discrete designs: each variable's key, to which every design adds its own multiple of a hundred.
_INSTRUMENT, _COVARIATE, _SHOCK, _NOISE, _GROUP, _SECOND_INSTRUMENT = range(6)
_BINARY_CONFOUNDED, _BINARY_TREATMENT, _CATEGORICAL_TREATMENT, _BINARY_OUTCOME = 400, 500, 600, 700

_SITES = np.array(["north", "south", "east", "west"])
_SITE_SHARES = np.array([0.4, 0.3, 0.2, 0.1])
_SITE_SHIFTS = np.array([0.0, 0.4, -0.4, 0.2])
_SITE_EFFECTS = np.array([0.0, 1.0, -0.5, 0.5])
_TREATMENTS = np.array(["none", "standard", "intensive"])


@dataclass(frozen=True)
class LinearGaussianDesign(base.AdditiveDesign):
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
    kinds: ClassVar = {"covariate": "continuous"}

    slope: float = -2.0
    covariate_effect: float = 1.0
    strength: float = 1.0
    disturbance: float = 1.0

    def structural(self, treatment: np.ndarray, covariate: np.ndarray) -> np.ndarray:
        """g₀(x, v) = slope · x + covariate_effect · v."""
        return self.slope * treatment + self.covariate_effect * covariate

    def draw(self, n: int, seed: int) -> base.Draw:
        instrument, covariate, shock, noise = base.normals(n, seed, *_LINEAR_KEYS)
        treatment = self.strength * instrument + covariate + shock
        return base.Draw(treatment, {"instrument": instrument}, {"covariate": covariate}, shock, noise)

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

    choices: ClassVar = {"curve": CURVES}

    curve: str = "sin"
    strength: float = 0.5
    confounding: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
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
        treatment = self.strength * first + (1.0 - self.strength) * confounder + _SMALL * treatment_noise
        disturbance = self.confounding * base.confounded(confounder, shock, rho)
        outcome = self.structural(treatment) + disturbance + _SMALL * outcome_noise
        instruments = {"instrument_1": first, "instrument_2": second}
        return IVData.from_arrays(outcome, treatment, instruments=instruments, treatment_kind="continuous")

    def treatment_range(self, coverage: float) -> float:
        """The b for which the treatment lies in [−b, b] with probability `coverage`.

        X is a uniform variable on (−3 strength, 3 strength) plus a normal one: P(X ≤ b) has a closed form.
        """
        # Imported here: scipy.optimize takes longer to import than all the designs.
        from scipy.optimize import brentq

        half = _BOUND * self.strength
        sd = float(np.hypot(1.0 - self.strength, _SMALL))

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


@dataclass(frozen=True)
class BinaryConfoundedDesign(base.AdditiveDesign):
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
    kinds: ClassVar = {"covariate": "continuous"}
    treatment_kind: ClassVar[str] = "binary"

    strength: float = 1.0
    covariate_strength: float = 1.5
    disturbance: float = 2.0

    def structural(self, treatment: np.ndarray, covariate: np.ndarray) -> np.ndarray:
        """g₀(x, v) = v²/2 + x (1 + 1.5 sin v)."""
        return covariate**2 / 2.0 + treatment * (1.0 + 1.5 * np.sin(covariate))

    def propensity(self, covariate: np.ndarray) -> np.ndarray:
        """P(X = 1 | V = v), over the instrument."""
        return ndtr(self.covariate_strength * covariate / np.hypot(self.strength, 1.0))

    def draw(self, n: int, seed: int) -> base.Draw:
        instrument, covariate, shock, noise = base.normals(n, seed, *(_BINARY_CONFOUNDED + key for key in range(4)))
        index = self.strength * instrument + self.covariate_strength * covariate + shock
        treatment = (index > 0.0).astype(np.float64)
        return base.Draw(treatment, {"instrument": instrument}, {"covariate": covariate}, shock, noise)

    def grid(self) -> base.StructuralGrid:
        """Both treatments × 1,400 covariates over the central 99%.

        A point is in support where its treatment has a probability of at least 0.01 at its covariate.
        """
        treatment, covariate = base.product(np.array([0.0, 1.0]), np.linspace(-_REACH, _REACH, 1400))
        taken = self.propensity(covariate)
        in_support = np.where(treatment == 1.0, taken, 1.0 - taken) >= 0.01
        return base.grid_of(self.structural, treatment, {"covariate": covariate}, in_support)


@dataclass(frozen=True)
class BinaryTreatmentDesign(base.AdditiveDesign):
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
    kinds: ClassVar = {"covariate": "continuous", "site": "categorical"}
    treatment_kind: ClassVar[str] = "binary"

    strength: float = 1.5
    disturbance: float = 1.2

    def structural(self, treatment: np.ndarray, covariate: np.ndarray, site: np.ndarray) -> np.ndarray:
        """g₀(x, v, s) = v²/2 + b(s) + x (1.5 + sin v)."""
        level = covariate**2 / 2.0 + _SITE_EFFECTS[_codes(site)]
        return level + treatment * (1.5 + np.sin(covariate))

    def draw(self, n: int, seed: int) -> base.Draw:
        keys = (_INSTRUMENT, _SHOCK, _NOISE)
        instrument, shock, noise = base.normals(n, seed, *(_BINARY_TREATMENT + key for key in keys))
        covariate = _uniform(n, seed, _BINARY_TREATMENT)
        site = base.stream(seed, _BINARY_TREATMENT + _GROUP).choice(_SITES, p=_SITE_SHARES, size=n)
        treatment = self.strength * instrument + covariate / 2.0 + _SITE_SHIFTS[_codes(site)] + shock > 0.0
        return base.Draw(treatment, {"instrument": instrument}, {"covariate": covariate, "site": site}, shock, noise)

    def grid(self) -> base.StructuralGrid:
        """Both treatments × four sites × 350 covariates from -2.2 to 2.2; in support up to ±2."""
        axis = np.linspace(-_GRID_EDGE, _GRID_EDGE, 350)
        treatment, site, covariate = base.product(np.array([0.0, 1.0]), _SITES, axis)
        covariates = {"covariate": covariate, "site": site}
        return base.grid_of(self.structural, treatment, covariates, np.abs(covariate) <= _EDGE)


@dataclass(frozen=True)
class CategoricalTreatmentDesign(base.AdditiveDesign):
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
    kinds: ClassVar = {"covariate": "continuous", "flag": "binary"}
    treatment_kind: ClassVar[str] = "categorical"

    strength: float = 2.0
    disturbance: float = 1.0

    def structural(self, treatment: np.ndarray, covariate: np.ndarray, flag: np.ndarray) -> np.ndarray:
        """g₀(x, v, f) = v²/2 + f + e(x, v)."""
        standard, intensive = 1.0 + np.sin(covariate) / 2.0, 1.5 - covariate / 2.0
        effect = np.where(treatment == "standard", standard, np.where(treatment == "intensive", intensive, 0.0))
        return covariate**2 / 2.0 + flag + effect

    def draw(self, n: int, seed: int) -> base.Draw:
        keys = (_INSTRUMENT, _SECOND_INSTRUMENT, _SHOCK, _NOISE)
        first, second, shock, noise = base.normals(n, seed, *(_CATEGORICAL_TREATMENT + key for key in keys))
        covariate = _uniform(n, seed, _CATEGORICAL_TREATMENT)
        flag = base.stream(seed, _CATEGORICAL_TREATMENT + _GROUP).uniform(size=n) < 0.4
        standard = self.strength * first + covariate / 2.0 + shock
        intensive = self.strength * second - flag / 2.0 + 1.5 * shock - 0.2
        treatment = _TREATMENTS[np.argmax(np.column_stack([np.full(n, 0.5), standard, intensive]), axis=1)]
        instruments = {"push_standard": first, "push_intensive": second}
        return base.Draw(treatment, instruments, {"covariate": covariate, "flag": flag}, shock, noise)

    def grid(self) -> base.StructuralGrid:
        """Three treatments × both flags × 466 covariates from -2.2 to 2.2; in support up to ±2."""
        axis = np.linspace(-_GRID_EDGE, _GRID_EDGE, 466)
        treatment, flag, covariate = base.product(_TREATMENTS, np.array([False, True]), axis)
        covariates = {"covariate": covariate, "flag": flag}
        return base.grid_of(self.structural, treatment, covariates, np.abs(covariate) <= _EDGE)


@dataclass(frozen=True)
class BinaryOutcomeDesign(base.CheckedSettings):
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
        base.check_draw(n, rho, seed)
        instrument, shock = base.normals(n, seed, _BINARY_OUTCOME + _INSTRUMENT, _BINARY_OUTCOME + _SHOCK)
        covariate = _uniform(n, seed, _BINARY_OUTCOME)
        treatment = self.strength * instrument + covariate / 2.0 + shock
        probability = self.structural(treatment, covariate) + rho * self.reach * (2.0 * ndtr(shock) - 1.0)
        outcome = base.stream(seed, _BINARY_OUTCOME + _NOISE).uniform(size=n) < probability
        return IVData.from_arrays(
            outcome,
            treatment,
            instruments={"instrument": instrument},
            covariates={"covariate": covariate},
            blocks={"covariate": "continuous"},
            treatment_kind="continuous",
            outcome_kind="binary",
        )

    def grid(self) -> base.StructuralGrid:
        """40 treatments × 70 covariates from -2.2 to 2.2.

        A point is in support where `|v| ≤ 2` and the treatment lies in the central 95% of its distribution at V = v.
        """
        half = float(ndtri(0.975)) * np.hypot(self.strength, 1.0)
        edge = half + _EDGE / 2.0
        treatment, covariate = base.product(np.linspace(-edge, edge, 40), np.linspace(-_GRID_EDGE, _GRID_EDGE, 70))
        in_support = (np.abs(treatment - covariate / 2.0) <= half) & (np.abs(covariate) <= _EDGE)
        return base.grid_of(self.structural, treatment, {"covariate": covariate}, in_support)


def _uniform(n: int, seed: int, design: int) -> np.ndarray:
    return base.stream(seed, design + _COVARIATE).uniform(-_EDGE, _EDGE, size=n)


def _codes(site: np.ndarray) -> np.ndarray:
    """The position of each row's site in `_SITES`."""
    return np.argmax(site[:, None] == _SITES, axis=1)


register(
    DesignEntry("binary-confounded", "Binary treatment, strongly confounded", BinaryConfoundedDesign),
    DesignEntry("binary-treatment", "Binary treatment with a categorical covariate", BinaryTreatmentDesign),
    DesignEntry("categorical-treatment", "Treatment of three levels", CategoricalTreatmentDesign),
    DesignEntry("binary-outcome", "Binary outcome", BinaryOutcomeDesign),
    DesignEntry("linear-gaussian", "Linear Gaussian design", LinearGaussianDesign),
    DesignEntry("lowdim-sin", "Low-dimensional curve: sine", partial(LowDimDesign, "sin")),
    DesignEntry("lowdim-abs", "Low-dimensional curve: absolute value", partial(LowDimDesign, "abs")),
    DesignEntry("lowdim-step", "Low-dimensional curve: step", partial(LowDimDesign, "step")),
    DesignEntry("lowdim-linear", "Low-dimensional curve: line", partial(LowDimDesign, "linear")),
)
