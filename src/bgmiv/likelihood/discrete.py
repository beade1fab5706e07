"""Heads for discrete variables: Bernoulli, categorical as one-hot events, and categorical as codes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

__all__ = ["Bernoulli", "Categorical", "Levels"]


class _Discrete(ABC):
    """What discrete heads share: the cross-entropy as loss, and no spread. Draws carry no gradient."""

    @abstractmethod
    def log_prob(self, raw: Array, value: Array) -> Array: ...

    def fit_error(self, raw: Array, value: Array) -> Array:
        return -self.log_prob(raw, value)

    def spread_penalty(self, raw: Array) -> Array:
        return jnp.zeros((), raw.dtype)


@dataclass(frozen=True)
class Bernoulli(_Discrete):
    r"""Independent 0/1 coordinates with $P(x_j = 1) = \mathrm{logit}^{-1}(r_j)$.

    With `dim == 1` it is also a finite head: its support is {0, 1}.

    Example:
        >>> [round(float(p), 2) for p in jnp.exp(Bernoulli(1).log_weights(jnp.asarray([0.0])))]
        [0.5, 0.5]
    """

    dim: int = 1

    @property
    def raw_dim(self) -> int:
        return self.dim

    @property
    def support(self) -> tuple[float, ...]:
        return (0.0, 1.0)

    def log_weights(self, raw: Array) -> Array:
        return jnp.stack([jax.nn.log_sigmoid(-raw[0]), jax.nn.log_sigmoid(raw[0])])

    def log_prob(self, raw: Array, value: Array) -> Array:
        """Log-mass; values between 0 and 1 give the cross-entropy."""
        return value * jax.nn.log_sigmoid(raw) + (1.0 - value) * jax.nn.log_sigmoid(-raw)

    def mean(self, raw: Array) -> Array:
        return jax.nn.sigmoid(raw)

    def sample(self, raw: Array, key: Array, n: int) -> Array:
        return jax.random.bernoulli(key, self.mean(raw), (n, self.dim)).astype(raw.dtype)


@dataclass(frozen=True)
class Categorical(_Discrete):
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

    def sample(self, raw: Array, key: Array, n: int) -> Array:
        return jax.nn.one_hot(jax.random.categorical(key, raw, shape=(n,)), self.dim, dtype=raw.dtype)


@dataclass(frozen=True)
class Levels(_Discrete):
    r"""The code of one of `n_levels` levels, a scalar from 0 to K - 1; $P(k) = \mathrm{softmax}(r)_k$.

    `Categorical` for a variable that is summed over: a finite head, whose events are codes instead of one-hot rows.

    Example:
        >>> head = Levels(3)
        >>> head.support, round(float(head.log_prob(jnp.zeros(3), jnp.asarray([2.0]))[0]), 4)
        ((0.0, 1.0, 2.0), -1.0986)
    """

    n_levels: int

    @property
    def dim(self) -> int:
        return 1

    @property
    def raw_dim(self) -> int:
        return self.n_levels

    @property
    def support(self) -> tuple[float, ...]:
        return tuple(float(code) for code in range(self.n_levels))

    def indicators(self, value: Array) -> Array:
        """A scalar code as a one-hot row, `(n_levels,)`."""
        return (jnp.arange(self.n_levels) == value).astype(jnp.result_type(value, jnp.float32))

    def log_weights(self, raw: Array) -> Array:
        return jax.nn.log_softmax(raw)

    def log_prob(self, raw: Array, value: Array) -> Array:
        return jnp.sum(self.indicators(value[0]) * jax.nn.log_softmax(raw), keepdims=True)

    def mean(self, raw: Array) -> Array:
        """The expected code, `(1,)`: only there for the protocol, because codes are names."""
        return jnp.sum(jax.nn.softmax(raw) * jnp.arange(self.n_levels), keepdims=True)

    def sample(self, raw: Array, key: Array, n: int) -> Array:
        return jax.random.categorical(key, raw, shape=(n, 1)).astype(raw.dtype)
