"""The latent partition (shared, outcome-only, treatment-only, nuisance) and its prior."""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi

import jax
import jax.numpy as jnp
from jax import Array

from bgmiv.errors import ConfigError

__all__ = ["LatentLayout"]


@dataclass(frozen=True)
class LatentLayout:
    r"""Sizes of $Z = (Z_0, Z_1, Z_2, Z_3)$ with prior $\mathcal N(0, I)$ (eq. bgm_iv_joint_model).

    Args:
        shared: $Z_0$, enters treatment and outcome.
        outcome_only: $Z_1$.
        treatment_only: $Z_2$.
        nuisance: $Z_3$, explains covariates alone.

    Example:
        >>> layout = LatentLayout(2, 2, 1, 2)
        >>> layout.dim, layout.for_outcome(jnp.arange(7)).tolist(), layout.for_treatment(jnp.arange(7)).tolist()
        (7, [0, 1, 2, 3], [0, 1, 4])
    """

    shared: int
    outcome_only: int
    treatment_only: int
    nuisance: int

    def __post_init__(self) -> None:
        """Refuse negative sizes and an empty latent space."""
        sizes = (self.shared, self.outcome_only, self.treatment_only, self.nuisance)
        if any(isinstance(size, bool) or not hasattr(size, "__index__") or size < 0 for size in sizes):
            raise ConfigError(f"latent sizes must be whole numbers of at least 0, got {sizes}.")
        if self.dim == 0:
            raise ConfigError("the latent space is empty: give at least one of the four parts a size above 0.")

    @property
    def dim(self) -> int:
        """All latent coordinates."""
        return self.shared + self.outcome_only + self.treatment_only + self.nuisance

    @property
    def outcome_dim(self) -> int:
        """Coordinates the outcome sees."""
        return self.shared + self.outcome_only

    @property
    def treatment_dim(self) -> int:
        """Coordinates the treatment sees."""
        return self.shared + self.treatment_only

    def for_outcome(self, z: Array) -> Array:
        """$(z_0, z_1)$ of one row."""
        return z[: self.outcome_dim]

    def for_treatment(self, z: Array) -> Array:
        """$(z_0, z_2)$ of one row."""
        start = self.outcome_dim
        return jnp.concatenate([z[: self.shared], z[start : start + self.treatment_only]])

    def log_prior(self, z: Array) -> Array:
        r"""$\log \mathcal N(z; 0, I)$ of one row."""
        return -0.5 * (jnp.sum(z**2) + self.dim * log(2.0 * pi))

    def sample_prior(self, key: Array, n: int) -> Array:
        """`n` draws from the prior."""
        return jax.random.normal(key, (n, self.dim))
