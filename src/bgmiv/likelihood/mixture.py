"""Gaussian-mixture head for one continuous variable: the mixture-density network's output (Bishop 1994)."""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import logsumexp, ndtri

from bgmiv.errors import ConfigError

__all__ = ["GaussianMixture"]


@dataclass(frozen=True)
class GaussianMixture:
    r"""A scalar with density $\sum_k \pi_k\, \mathcal N(x; \mu_k, \sigma_k^2)$.

    The raw output holds means $\mu$, raw deviations $r$ with $\sigma_k = \mathrm{softplus}(r_k) + \text{floor}$, and
    logits with $\pi = \mathrm{softmax}$. The floor bounds the density, so that a component cannot collapse on a
    repeated value.

    Args:
        n_components: components K.
        floor: added to every deviation.

    Example:
        >>> head = GaussianMixture(2)
        >>> head.raw_dim
        6
        >>> head.mean(jnp.asarray([1.0, 3.0, 0.0, 0.0, 0.0, 0.0])).tolist()
        [2.0]

    Reference:
        C. M. Bishop (1994), Mixture density networks, Aston University NCRG/94/004.
    """

    n_components: int = 10
    floor: float = 1e-3

    def __post_init__(self) -> None:
        """Refuse what is no distribution."""
        if self.n_components < 1:
            raise ConfigError(f"n_components must be at least 1, got {self.n_components}.")
        if not self.floor > 0.0:
            raise ConfigError(f"floor must be above 0, got {self.floor}.")

    @property
    def dim(self) -> int:
        """One coordinate."""
        return 1

    @property
    def raw_dims(self) -> tuple[int, int, int]:
        """Means, raw deviations and logits."""
        return self.n_components, self.n_components, self.n_components

    @property
    def raw_dim(self) -> int:
        """Network outputs in all."""
        return sum(self.raw_dims)

    def parts(self, raw: Array) -> tuple[Array, Array, Array]:
        """Means, deviations and log-weights, each `(n_components,)`."""
        # A split is transposed into a concatenation, slices into padded sums, which compile to slow scalar loops.
        mean, spread, logits = jax.lax.split(raw, self.raw_dims)
        deviation = jnp.maximum(spread, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(spread))) + self.floor
        return mean, deviation, logits - logsumexp(logits)

    def log_prob(self, raw: Array, value: Array) -> Array:
        """Log-density, `(1,)`."""
        mean, deviation, log_weights = self.parts(raw)
        standard = (value - mean) / deviation
        return logsumexp(log_weights - 0.5 * standard**2 - jnp.log(deviation) - 0.5 * log(2.0 * pi), keepdims=True)

    def mean(self, raw: Array) -> Array:
        """The weighted mean of the components' means, `(1,)`."""
        mean, _, log_weights = self.parts(raw)
        return jnp.sum(jnp.exp(log_weights) * mean, keepdims=True)

    def variance(self, raw: Array) -> Array:
        """Variance within components plus variance between their means, `(1,)`."""
        mean, deviation, log_weights = self.parts(raw)
        weights = jnp.exp(log_weights)
        return jnp.sum(weights * (deviation**2 + (mean - jnp.sum(weights * mean)) ** 2), keepdims=True)

    def at_uniforms(self, raw: Array, uniforms: Array) -> Array:
        """Draws made from given uniform numbers, `(n,)`.

        Args:
            raw: the network's output.
            uniforms: `(n, 2)` numbers strictly between 0 and 1; the first of a pair chooses the component, the second
                the place in it.
        """
        mean, deviation, log_weights = self.parts(raw)
        # All but the last edge: a rounding of their sum below one can then never point past the last component.
        edges = jnp.cumsum(jnp.exp(log_weights))[:-1]
        component = jnp.sum(uniforms[:, :1] >= edges, axis=1)
        return mean[component] + deviation[component] * ndtri(uniforms[:, 1])

    def sample(self, raw: Array, key: Array, n: int) -> Array:
        """`n` draws, `(n, 1)`; gradients flow into the chosen components' means and deviations, not the weights."""
        tiny = 2.0**-24
        return self.at_uniforms(raw, jax.random.uniform(key, (n, 2), raw.dtype, tiny, 1.0 - tiny))[:, None]

    def fit_error(self, raw: Array, value: Array) -> Array:
        """Squared error of the mean."""
        return (value - self.mean(raw)) ** 2

    def spread_penalty(self, raw: Array) -> Array:
        """Mean square of the raw deviations."""
        return jnp.mean(jax.lax.split(raw, self.raw_dims)[1] ** 2)
