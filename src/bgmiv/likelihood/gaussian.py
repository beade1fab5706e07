"""Gaussian head with diagonal covariance (eq. continuous_model)."""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi

import jax
import jax.numpy as jnp
from jax import Array

__all__ = ["Gaussian"]


def _softplus(x: Array) -> Array:
    # jax.nn.softplus goes through logaddexp, whose care for infinities costs twice the time; raw spreads are finite.
    return jnp.maximum(x, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


@dataclass(frozen=True)
class Gaussian:
    r"""Independent normals: $\mathcal N(\mu_j, \sigma_j^2)$, $\sigma_j^2 = \mathrm{softplus}(r_j) + 10^{-6}$.

    Args:
        dim: coordinates of one event.
        shared_variance: one variance for all coordinates (the authors' generic decoder) instead of one each.
        floor: added to every variance.

    Example:
        >>> head = Gaussian(2)
        >>> head.raw_dim
        4
        >>> head.mean(jnp.asarray([1.0, 2.0, 0.0, 0.0])).tolist()
        [1.0, 2.0]
    """

    dim: int
    shared_variance: bool = False
    floor: float = 1e-6

    @property
    def raw_dims(self) -> tuple[int, int]:
        """Means first, then raw variances."""
        return self.dim, 1 if self.shared_variance else self.dim

    @property
    def raw_dim(self) -> int:
        """Means and raw variances together."""
        return sum(self.raw_dims)

    def _parts(self, raw: Array) -> tuple[Array, Array]:
        # A split is transposed into a concatenation, two slices into padded sums, which compile to slow scalar loops.
        mean, spread = jax.lax.split(raw, self.raw_dims)
        return mean, spread

    def mean(self, raw: Array) -> Array:
        """The means; `raw` may hold them alone."""
        return raw if raw.shape[-1] == self.dim else self._parts(raw)[0]

    def variance(self, raw: Array) -> Array:
        """The variances, shape `(dim,)` or `(1,)` when shared."""
        return _softplus(self._parts(raw)[1]) + self.floor

    def log_prob(self, raw: Array, value: Array) -> Array:
        """Log-density of each coordinate."""
        mean, spread = self._parts(raw)
        variance = _softplus(spread) + self.floor
        return -0.5 * ((value - mean) ** 2 / variance + jnp.log(variance) + log(2.0 * pi))

    def sample(self, raw: Array, key: Array, n: int) -> Array:
        """Reparametrised draws: gradients flow into mean and variance."""
        noise = jax.random.normal(key, (n, self.dim), dtype=raw.dtype)
        return self.mean(raw) + jnp.sqrt(self.variance(raw)) * noise

    def fit_error(self, raw: Array, value: Array) -> Array:
        """Squared error of the mean."""
        return (value - self.mean(raw)) ** 2

    def spread_penalty(self, raw: Array) -> Array:
        """Mean square of the raw variances."""
        return jnp.sum(self._parts(raw)[1] ** 2) / max(self.raw_dims[1], 1)
