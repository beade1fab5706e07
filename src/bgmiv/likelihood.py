"""Distributions read off network outputs: what every head offers, and the heads.

Gaussian with diagonal covariance (eq. continuous_model) and Gaussian mixture for continuous variables; Bernoulli,
categorical as one-hot events and categorical as codes for discrete ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import log, pi
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import logsumexp, ndtri

__all__ = ["Bernoulli", "Categorical", "FiniteHead", "Gaussian", "GaussianMixture", "Head", "Levels"]


@runtime_checkable
class Head(Protocol):
    """A distribution over one event of `dim` coordinates, parametrised by `raw_dim` network outputs."""

    @property
    def dim(self) -> int:
        """Coordinates of one event."""

    @property
    def raw_dim(self) -> int:
        """Network outputs that parametrise it."""

    def log_prob(self, raw: Array, value: Array) -> Array:
        """Log-density (or log-mass) of each coordinate of `value`, shape `(dim,)`."""

    def mean(self, raw: Array) -> Array:
        """Expected value of each coordinate, shape `(dim,)`; the probability of each of `Levels`."""

    def fit_error(self, raw: Array, value: Array) -> Array:
        """The scale-free loss that the warm start uses per coordinate (squared error or cross-entropy)."""

    def spread_penalty(self, raw: Array) -> Array:
        """Mean square of the raw spread outputs; zero for heads without a spread."""


@runtime_checkable
class FiniteHead(Head, Protocol):
    """A head whose scalar event takes finitely many values."""

    @property
    def support(self) -> tuple[float, ...]:
        """The values."""

    def log_weights(self, raw: Array) -> Array:
        """Log-probability of each value, shape `(len(support),)`."""


class _LogLoss(ABC):
    """A head whose loss is minus its log-density, and whose spread has no penalty."""

    @abstractmethod
    def log_prob(self, raw: Array, value: Array) -> Array: ...

    def fit_error(self, raw: Array, value: Array) -> Array:
        return -self.log_prob(raw, value)

    def spread_penalty(self, raw: Array) -> Array:
        return jnp.zeros((), raw.dtype)


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
        >>> head.raw_dim, head.mean(jnp.asarray([1.0, 2.0, 0.0, 0.0])).tolist()
        (4, [1.0, 2.0])
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
        mean, spread = self._parts(raw)
        variance = _softplus(spread) + self.floor
        return -0.5 * ((value - mean) ** 2 / variance + jnp.log(variance) + log(2.0 * pi))

    def fit_error(self, raw: Array, value: Array) -> Array:
        return (value - self.mean(raw)) ** 2

    def spread_penalty(self, raw: Array) -> Array:
        return jnp.sum(self._parts(raw)[1] ** 2) / max(self.raw_dims[1], 1)


@dataclass(frozen=True)
class GaussianMixture(_LogLoss):
    r"""A scalar with density $\sum_k \pi_k\, \mathcal N(x; \mu_k, \sigma_k^2)$: a mixture density network's output.

    The raw output holds means $\mu$, raw standard deviations $r$ with
    $\sigma_k = \mathrm{softplus}(r_k) + \text{floor}$, and logits with $\pi = \mathrm{softmax}$. The floor bounds the
    density, so that a component cannot collapse on a repeated value.

    Args:
        n_components: components K.
        floor: added to every standard deviation.

    Example:
        >>> head = GaussianMixture(2)
        >>> head.raw_dim, head.mean(jnp.asarray([1.0, 3.0, 0.0, 0.0, 0.0, 0.0])).tolist()
        (6, [2.0])

    Reference:
        C. M. Bishop (1994), Mixture density networks, Aston University NCRG/94/004.
    """

    n_components: int = 10
    floor: float = 1e-3
    dim = 1

    @property
    def raw_dim(self) -> int:
        return 3 * self.n_components

    def _parts(self, raw: Array) -> tuple[Array, Array, Array]:
        """Means, standard deviations and log-weights, each `(n_components,)`; split, not sliced, as in `Gaussian`."""
        mean, spread, logits = jax.lax.split(raw, (self.n_components,) * 3)
        return mean, _softplus(spread) + self.floor, logits - logsumexp(logits)

    def log_prob(self, raw: Array, value: Array) -> Array:
        mean, sd, log_weights = self._parts(raw)
        standard = (value - mean) / sd
        return logsumexp(log_weights - 0.5 * standard**2 - jnp.log(sd) - 0.5 * log(2.0 * pi), keepdims=True)

    def mean(self, raw: Array) -> Array:
        mean, _, log_weights = self._parts(raw)
        return jnp.sum(jnp.exp(log_weights) * mean, keepdims=True)

    def at_uniforms(self, raw: Array, uniforms: Array) -> Array:
        """Draws made from given uniform numbers, `(n,)`.

        `uniforms` are `(n, 2)` numbers strictly between 0 and 1: the first of a pair chooses the component, the second
        the place in it.
        """
        mean, sd, log_weights = self._parts(raw)
        # All but the last edge: a rounding of their sum below one can then never point past the last component.
        edges = jnp.cumsum(jnp.exp(log_weights))[:-1]
        component = jnp.sum(uniforms[:, :1] >= edges, axis=1)
        return mean[component] + sd[component] * ndtri(uniforms[:, 1])


@dataclass(frozen=True)
class Bernoulli(_LogLoss):
    r"""Independent 0/1 coordinates with $P(x_j = 1) = \mathrm{logit}^{-1}(r_j)$.

    With `dim == 1` it is also a finite head: its support is {0, 1}.

    Example:
        >>> [round(float(p), 2) for p in jnp.exp(Bernoulli(1).log_weights(jnp.asarray([0.0])))]
        [0.5, 0.5]
    """

    dim: int = 1
    support = (0.0, 1.0)

    @property
    def raw_dim(self) -> int:
        return self.dim

    def log_weights(self, raw: Array) -> Array:
        return jnp.stack([jax.nn.log_sigmoid(-raw[0]), jax.nn.log_sigmoid(raw[0])])

    def log_prob(self, raw: Array, value: Array) -> Array:
        """Log-mass; values between 0 and 1 give the cross-entropy."""
        return value * jax.nn.log_sigmoid(raw) + (1.0 - value) * jax.nn.log_sigmoid(-raw)

    def mean(self, raw: Array) -> Array:
        return jax.nn.sigmoid(raw)


@dataclass(frozen=True)
class Categorical(_LogLoss):
    r"""One of `dim` levels, as a one-hot event; $P(\text{level } k) = \mathrm{softmax}(r)_k$.

    Example:
        >>> head = Categorical(3)
        >>> round(float(head.log_prob(jnp.zeros(3), jnp.asarray([0.0, 1.0, 0.0])).sum()), 4)
        -1.0986
    """

    dim: int

    @property
    def raw_dim(self) -> int:
        return self.dim

    def log_prob(self, raw: Array, value: Array) -> Array:
        """Log-mass split over the levels: only the observed level's entry is not zero."""
        return value * jax.nn.log_softmax(raw)

    def mean(self, raw: Array) -> Array:
        return jax.nn.softmax(raw)


@dataclass(frozen=True)
class Levels(_LogLoss):
    r"""The code of one of `n_levels` levels, a scalar from 0 to K - 1; $P(k) = \mathrm{softmax}(r)_k$.

    `Categorical` for a variable that is summed over: a finite head, whose events are codes instead of one-hot rows.

    Example:
        >>> head = Levels(3)
        >>> head.support, round(float(head.log_prob(jnp.zeros(3), jnp.asarray([2.0]))[0]), 4)
        ((0.0, 1.0, 2.0), -1.0986)
    """

    n_levels: int
    dim = 1

    @property
    def raw_dim(self) -> int:
        return self.n_levels

    @property
    def support(self) -> tuple[float, ...]:
        return tuple(map(float, range(self.n_levels)))

    def indicators(self, value: Array) -> Array:
        """A scalar code as a one-hot row, `(n_levels,)`."""
        return (jnp.arange(self.n_levels) == value).astype(jnp.result_type(value, jnp.float32))

    def log_weights(self, raw: Array) -> Array:
        return jax.nn.log_softmax(raw)

    def log_prob(self, raw: Array, value: Array) -> Array:
        return jnp.sum(self.indicators(value[0]) * jax.nn.log_softmax(raw), keepdims=True)

    def mean(self, raw: Array) -> Array:
        """The levels' probabilities, `(n_levels,)`: codes are names, which have no mean."""
        return jax.nn.softmax(raw)
