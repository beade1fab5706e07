"""What a design is: data with a known structural function, and a grid on which estimates are judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from bgmiv.data.ivdata import IVData
from bgmiv.errors import ConfigError

__all__ = [
    "CheckedSettings",
    "Design",
    "DesignEntry",
    "StructuralGrid",
    "as_data",
    "check_draw",
    "confounded",
    "grid_of",
    "normals",
    "product",
    "stream",
]

Columns = Mapping[str, np.ndarray]

_MINIMA = {"confounding": 0.0, "disturbance": 0.0, "noise": 0.0, "feature_seed": 0, "vector_dim": 1, "nuisance_dim": 1}


@dataclass(frozen=True, eq=False)
class StructuralGrid:
    """Points at which the true structural function is known.

    Attributes:
        treatment: `(m,)`, the treatment set by intervention: numbers, or names of levels.
        covariates: name to `(m, ...)` array, the same container that the design trains with.
        truth: `(m,)`, the structural function in units of the outcome; for a binary outcome the probability of 1.
        in_support: `(m,)`, whether the design's data contain such a treatment at such covariates; elsewhere an
            estimate is an extrapolation.
    """

    treatment: np.ndarray
    covariates: Columns
    truth: np.ndarray
    in_support: np.ndarray

    def __len__(self) -> int:
        return len(self.treatment)


class Design(Protocol):
    """A simulated problem whose structural function is known."""

    @property
    def name(self) -> str:
        """The name on the command line and in result rows."""

    def sample(self, n: int, rho: float, seed: int) -> IVData:
        """Draw `n` rows at confounding level `rho`; the same arguments give the same rows.

        Samples with the same seed share all but the outcome, whatever `rho` is.
        """

    def grid(self) -> StructuralGrid:
        """The points on which structural error is measured, the same for every sample."""


class CheckedSettings:
    """Refuses settings that are not finite or too small, and an instrument that does not act."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, str):
                continue
            if not np.isfinite(value):
                raise ConfigError(f"{name} is {value}; choose a finite value")
            if name == "strength" and value == 0.0:
                raise ConfigError("strength is 0; the instrument must move the treatment")
            if name in _MINIMA and value < _MINIMA[name]:
                raise ConfigError(f"{name} is {value}; choose {_MINIMA[name]:g} or more")


@dataclass(frozen=True)
class DesignEntry:
    """A registered design."""

    name: str
    title: str  # in headings of reports
    make: Callable[[], Design]  # with the settings of the paper
    unit: float = 1.0  # what structural errors are divided by in tables and figures
    algorithm_version: int = 1  # raised when the numbers that the design draws change


def stream(seed: int, *key: int) -> np.random.Generator:
    """A separate random stream for each (seed, key).

    Streams with different keys are independent even where the seeds coincide, so that training noise, evaluation
    noise and fixed features never share draws.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def normals(n: int, seed: int, *keys: int) -> list[np.ndarray]:
    """`n` standard normal draws from the stream of each key."""
    return [stream(seed, key).normal(size=n) for key in keys]


def confounded(shock: np.ndarray, noise: np.ndarray, rho: float) -> np.ndarray:
    """The disturbance ρ · shock + √(1 − ρ²) · noise, whose correlation with the shock is ρ."""
    return rho * shock + np.sqrt(1.0 - rho**2) * noise


def product(*axes: np.ndarray) -> tuple[np.ndarray, ...]:
    """All combinations of the values of several axes, the first axis slowest."""
    return tuple(part.ravel() for part in np.meshgrid(*axes, indexing="ij"))


def as_data(
    outcome: Columns,
    treatment: Columns,
    instruments: Columns,
    covariates: Mapping[str, tuple[np.ndarray, Any]],
    **kinds: Any,
) -> IVData:
    """Named columns as data; each covariate comes with its kind, and `kinds` are those of treatment and outcome."""
    return IVData.from_arrays(
        outcome,
        treatment,
        instruments=instruments,
        covariates={name: values for name, (values, _) in covariates.items()} or None,
        blocks={name: kind for name, (_, kind) in covariates.items()} or None,
        **kinds,
    )


def grid_of(
    structural: Callable[..., np.ndarray], treatment: np.ndarray, covariates: Columns, in_support: np.ndarray
) -> StructuralGrid:
    """The grid with the truth of the structural function, whose arguments are the treatment and the covariates."""
    return StructuralGrid(treatment, covariates, structural(treatment, *covariates.values()), in_support)


def check_draw(n: int, rho: float, seed: int) -> None:
    """Refuse sizes, confounding levels and seeds that no design can draw."""
    if n < 2:
        raise ConfigError(f"n is {n}; a sample needs at least 2 rows")
    if not -1.0 <= rho <= 1.0:
        raise ConfigError(f"rho is {rho}; it is a correlation: choose a value between -1 and 1")
    if seed < 0:
        raise ConfigError(f"seed is {seed}; choose an integer of 0 or more")
