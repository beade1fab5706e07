"""Designs with a discrete treatment or outcome, strongly confounded and with known truth.

Covariates have bounded ranges, so that a finite sample covers them; the grids go a tenth beyond.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from scipy.stats import norm

from bgmiv.data.ivdata import IVData
from bgmiv.designs.base import StructuralGrid, check_draw, stream
from bgmiv.errors import ConfigError

__all__ = ["BinaryOutcomeDesign", "BinaryTreatmentDesign", "CategoricalTreatmentDesign"]

_EDGE = 2.0
_BEYOND = 1.1
_REACH = float(norm.ppf(0.975))


class _Stream(IntEnum):
    """The spawn key of each variable; every design adds its own hundred."""

    INSTRUMENT = 0
    COVARIATE = 1
    SHOCK = 2
    NOISE = 3
    GROUP = 4
    SECOND_INSTRUMENT = 5


_BINARY_TREATMENT, _CATEGORICAL_TREATMENT, _BINARY_OUTCOME = 500, 600, 700


@dataclass(frozen=True)
class BinaryTreatmentDesign:
    """A treatment taken or not, with a continuous and a categorical covariate.

    W, U ~ N(0, 1), V ~ U(-2, 2), a site S of four, corr(U, ε) = ρ, sd(ε) = disturbance and

        X = 1{strength · W + V/2 + a(S) + U > 0},    Y = V²/2 + b(S) + X (1.5 + sin V) + ε.

    Arguments
    ---------
    strength : weight of the instrument in the latent index, not zero.
    disturbance : deviation of ε.

    Example
    -------
    >>> data = BinaryTreatmentDesign().sample(50, rho=0.9, seed=0)
    >>> data.schema.treatment.kind.value, [block.kind.value for block in data.schema.blocks]
    ('binary', ['continuous', 'categorical'])
    """

    strength: float = 1.5
    disturbance: float = 1.2

    def __post_init__(self) -> None:
        _check_settings(self.strength, self.disturbance)

    @property
    def name(self) -> str:
        """``"binary-treatment"``."""
        return "binary-treatment"

    def structural(self, treatment: np.ndarray, covariate: np.ndarray, site: np.ndarray) -> np.ndarray:
        """g₀(x, v, s) = v²/2 + b(s) + x (1.5 + sin v)."""
        level = covariate**2 / 2.0 + _at(site, _SITE_EFFECTS)
        return level + treatment * (1.5 + np.sin(covariate))

    def sample(self, n: int, rho: float, seed: int) -> IVData:
        """``n`` rows; samples with the same seed share X, V, S and W whatever ``rho`` is."""
        check_draw(n, rho, seed)
        draws = {key: stream(seed, _BINARY_TREATMENT + key) for key in _Stream}
        instrument, shock, noise = (
            draws[key].normal(size=n) for key in (_Stream.INSTRUMENT, _Stream.SHOCK, _Stream.NOISE)
        )
        covariate = draws[_Stream.COVARIATE].uniform(-_EDGE, _EDGE, size=n)
        site = draws[_Stream.GROUP].choice(list(_SITES), p=list(_SITES.values()), size=n)
        index = self.strength * instrument + covariate / 2.0 + _at(site, _SITE_SHIFTS) + shock
        treatment = index > 0.0
        disturbance = self.disturbance * (rho * shock + np.sqrt(1.0 - rho**2) * noise)
        return IVData.from_arrays(
            {"outcome": self.structural(treatment, covariate, site) + disturbance},
            {"treatment": treatment},
            instruments={"instrument": instrument},
            covariates={"covariate": covariate, "site": site},
            blocks={"covariate": "continuous", "site": "categorical"},
            treatment_kind="binary",
        )

    def grid(self) -> StructuralGrid:
        """Both treatments × four sites × 350 covariates from -2.2 to 2.2; in support up to ±2.

        >>> len(BinaryTreatmentDesign().grid())
        2800
        """
        edge = _BEYOND * _EDGE
        treatment, site, covariate = _product(
            np.array([0.0, 1.0]), np.array(list(_SITES)), np.linspace(-edge, edge, 350)
        )
        return StructuralGrid(
            treatment=treatment,
            covariates={"covariate": covariate, "site": site},
            truth=self.structural(treatment, covariate, site),
            in_support=np.abs(covariate) <= _EDGE,
        )


@dataclass(frozen=True)
class CategoricalTreatmentDesign:
    """One of three treatments, each of two pushed by an instrument of its own; one covariate is yes or no.

    W₁, W₂, U ~ N(0, 1), V ~ U(-2, 2), a flag F with P(F) = 0.4, corr(U, ε) = ρ, sd(ε) = disturbance. The treatment is
    the one with the highest of the utilities

        none: 0.5,    standard: strength · W₁ + V/2 + U,    intensive: strength · W₂ − F/2 + 1.5 U − 0.2,

    and Y = V²/2 + F + e(X, V) + ε with e = 0 for none, 1 + sin(V)/2 for standard and 1.5 − V/2 for intensive.

    Arguments
    ---------
    strength : weight of the instruments in the utilities, not zero.
    disturbance : deviation of ε.

    Example
    -------
    >>> data = CategoricalTreatmentDesign().sample(500, rho=0.9, seed=0)
    >>> sorted(data.schema.treatment.levels), data.instruments.shape
    (['intensive', 'none', 'standard'], (500, 2))
    """

    strength: float = 2.0
    disturbance: float = 1.0

    def __post_init__(self) -> None:
        _check_settings(self.strength, self.disturbance)

    @property
    def name(self) -> str:
        """``"categorical-treatment"``."""
        return "categorical-treatment"

    def effect(self, treatment: np.ndarray, covariate: np.ndarray) -> np.ndarray:
        """What a treatment does beside none."""
        standard, intensive = 1.0 + np.sin(covariate) / 2.0, 1.5 - covariate / 2.0
        return np.where(treatment == "standard", standard, np.where(treatment == "intensive", intensive, 0.0))

    def structural(self, treatment: np.ndarray, covariate: np.ndarray, flag: np.ndarray) -> np.ndarray:
        """g₀(x, v, f) = v²/2 + f + e(x, v)."""
        return covariate**2 / 2.0 + flag + self.effect(treatment, covariate)

    def sample(self, n: int, rho: float, seed: int) -> IVData:
        """``n`` rows; samples with the same seed share everything but the outcome whatever ``rho`` is."""
        check_draw(n, rho, seed)
        draws = {key: stream(seed, _CATEGORICAL_TREATMENT + key) for key in _Stream}
        normal = (_Stream.INSTRUMENT, _Stream.SECOND_INSTRUMENT, _Stream.SHOCK, _Stream.NOISE)
        first, second, shock, noise = (draws[key].normal(size=n) for key in normal)
        covariate = draws[_Stream.COVARIATE].uniform(-_EDGE, _EDGE, size=n)
        flag = draws[_Stream.GROUP].uniform(size=n) < 0.4
        standard = self.strength * first + covariate / 2.0 + shock
        intensive = self.strength * second - flag / 2.0 + 1.5 * shock - 0.2
        treatment = _TREATMENTS[np.argmax(np.column_stack([np.full(n, 0.5), standard, intensive]), axis=1)]
        disturbance = self.disturbance * (rho * shock + np.sqrt(1.0 - rho**2) * noise)
        return IVData.from_arrays(
            {"outcome": self.structural(treatment, covariate, flag) + disturbance},
            {"treatment": treatment},
            instruments={"push_standard": first, "push_intensive": second},
            covariates={"covariate": covariate, "flag": flag},
            blocks={"covariate": "continuous", "flag": "binary"},
            treatment_kind="categorical",
        )

    def grid(self) -> StructuralGrid:
        """Three treatments × both flags × 466 covariates from -2.2 to 2.2; in support up to ±2.

        >>> len(CategoricalTreatmentDesign().grid())
        2796
        """
        edge = _BEYOND * _EDGE
        treatment, flag, covariate = _product(_TREATMENTS, np.array([False, True]), np.linspace(-edge, edge, 466))
        return StructuralGrid(
            treatment=treatment,
            covariates={"covariate": covariate, "flag": flag},
            truth=self.structural(treatment, covariate, flag),
            in_support=np.abs(covariate) <= _EDGE,
        )


@dataclass(frozen=True)
class BinaryOutcomeDesign:
    """A yes-or-no outcome of a continuous treatment.

    W, U ~ N(0, 1), V ~ U(-2, 2), X = strength · W + V/2 + U and

        P(Y = 1 | X, V, U) = g₀(X, V) + ρ · reach · (2Φ(U) − 1),    g₀(x, v) = ½ + 0.19 tanh(x) + 0.05 sin(2v).

    The confounder moves the probability up and down and cancels on average, so that E[Y − g₀(X, V) | W, V] = 0: g₀ is
    both the probability under an intervention and what the instrument identifies.

    Arguments
    ---------
    strength : weight of the instrument in the treatment, not zero.
    reach : the largest shift of the probability; probabilities stay within 0 and 1 up to 0.26.

    Example
    -------
    >>> data = BinaryOutcomeDesign().sample(50, rho=0.9, seed=0)
    >>> data.schema.outcome.kind.value, sorted(set(data.outcome.tolist()))
    ('binary', [0.0, 1.0])
    """

    strength: float = 1.0
    reach: float = 0.26

    def __post_init__(self) -> None:
        _check_settings(self.strength, self.reach)
        if self.reach > 0.26:
            raise ConfigError(f"reach is {self.reach}; choose at most 0.26, so that probabilities stay within 0 and 1")

    @property
    def name(self) -> str:
        """``"binary-outcome"``."""
        return "binary-outcome"

    def structural(self, treatment: np.ndarray, covariate: np.ndarray) -> np.ndarray:
        """g₀(x, v) = ½ + 0.19 tanh(x) + 0.05 sin(2v), the probability of 1."""
        return 0.5 + 0.19 * np.tanh(treatment) + 0.05 * np.sin(2.0 * covariate)

    def sample(self, n: int, rho: float, seed: int) -> IVData:
        """``n`` rows; samples with the same seed share X, V and W whatever ``rho`` is."""
        check_draw(n, rho, seed)
        draws = {key: stream(seed, _BINARY_OUTCOME + key) for key in _Stream}
        instrument, shock = (draws[key].normal(size=n) for key in (_Stream.INSTRUMENT, _Stream.SHOCK))
        covariate = draws[_Stream.COVARIATE].uniform(-_EDGE, _EDGE, size=n)
        treatment = self.strength * instrument + covariate / 2.0 + shock
        shift = rho * self.reach * (2.0 * norm.cdf(shock) - 1.0)
        outcome = draws[_Stream.NOISE].uniform(size=n) < self.structural(treatment, covariate) + shift
        return IVData.from_arrays(
            {"outcome": outcome},
            {"treatment": treatment},
            instruments={"instrument": instrument},
            covariates={"covariate": covariate},
            blocks={"covariate": "continuous"},
            treatment_kind="continuous",
            outcome_kind="binary",
        )

    def grid(self) -> StructuralGrid:
        """40 treatments × 70 covariates from -2.2 to 2.2.

        A point is in support where |v| ≤ 2 and the treatment lies in the central 95% of its distribution at V = v.

        >>> grid = BinaryOutcomeDesign().grid()
        >>> len(grid), bool(0 < grid.in_support.mean() < 1)
        (2800, True)
        """
        edge, spread = _BEYOND * _EDGE, np.hypot(self.strength, 1.0)
        reach = _REACH * spread + _EDGE / 2.0
        treatment, covariate = _product(np.linspace(-reach, reach, 40), np.linspace(-edge, edge, 70))
        usual = np.abs(treatment - covariate / 2.0) <= _REACH * spread
        return StructuralGrid(
            treatment=treatment,
            covariates={"covariate": covariate},
            truth=self.structural(treatment, covariate),
            in_support=usual & (np.abs(covariate) <= _EDGE),
        )


_SITES = {"north": 0.4, "south": 0.3, "east": 0.2, "west": 0.1}
_SITE_SHIFTS = {"north": 0.0, "south": 0.4, "east": -0.4, "west": 0.2}
_SITE_EFFECTS = {"north": 0.0, "south": 1.0, "east": -0.5, "west": 0.5}
_TREATMENTS = np.array(["none", "standard", "intensive"])


def _at(names: np.ndarray, values: dict[str, float]) -> np.ndarray:
    return np.asarray([values[name] for name in names.tolist()])


def _product(*axes: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(part.ravel() for part in np.meshgrid(*axes, indexing="ij"))


def _check_settings(strength: float, spread: float) -> None:
    if not np.isfinite([strength, spread]).all():
        raise ConfigError(f"a design needs finite settings, got {strength} and {spread}")
    if strength == 0.0:
        raise ConfigError("strength is 0; the instrument must move the treatment")
    if spread < 0.0:
        raise ConfigError(f"the disturbance's size is {spread}; choose 0 or more")
