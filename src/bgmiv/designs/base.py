"""What a design is: data with a known structural function, and a grid to be judged on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bgmiv.data.ivdata import IVData
from bgmiv.errors import ConfigError

__all__ = ["Design", "StructuralGrid", "check_draw", "stream"]


@dataclass(frozen=True, eq=False)
class StructuralGrid:
    """Points at which the true structural function is known.

    Attributes
    ----------
    treatment : (m,) array, the treatment set by intervention: numbers, or names of levels.
    covariates : mapping of name to (m,) or (m, d) array, the same container the design trains with.
    truth : (m,) array, the structural function at each point, in units of the outcome; for a binary outcome the
        probability of 1.
    in_support : (m,) bool array, whether training data of the design show such a treatment at such
        covariates; elsewhere any estimate is an extrapolation.

    Example
    -------
    >>> from bgmiv.designs import make_design
    >>> grid = make_design("demand").grid()
    >>> len(grid), sorted(grid.covariates)
    (2800, ['group', 'time'])
    """

    treatment: np.ndarray
    covariates: Mapping[str, np.ndarray]
    truth: np.ndarray
    in_support: np.ndarray

    def __len__(self) -> int:
        return len(self.treatment)


class Design(Protocol):
    """A simulated problem whose structural function is known."""

    @property
    def name(self) -> str:
        """The name on the command line and in result rows."""
        ...

    def sample(self, n: int, rho: float, seed: int) -> IVData:
        """Draw ``n`` rows at confounding level ``rho``; the same arguments give the same rows."""
        ...

    def grid(self) -> StructuralGrid:
        """The points on which structural error is measured, the same for every sample."""
        ...


def stream(seed: int, *key: int) -> np.random.Generator:
    """A random stream of its own for each (seed, key).

    Streams with different keys are independent even where the seeds coincide, so that training noise,
    evaluation noise and fixed features can never share draws.

    >>> bool(stream(0, 1).normal() == stream(0, 2).normal())
    False
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def check_draw(n: int, rho: float, seed: int) -> None:
    """Refuse sizes, confounding levels and seeds that no design can draw.

    >>> check_draw(1000, 1.5, 0)
    Traceback (most recent call last):
    bgmiv.errors.ConfigError: rho is 1.5; it is a correlation: choose a value between -1 and 1
    """
    if n < 2:
        raise ConfigError(f"n is {n}; a sample needs at least 2 rows")
    if not -1.0 <= rho <= 1.0:
        raise ConfigError(f"rho is {rho}; it is a correlation: choose a value between -1 and 1")
    if seed < 0:
        raise ConfigError(f"seed is {seed}; choose an integer of 0 or more")
