"""Heads for discrete variables: Bernoulli, categorical as one-hot events, and categorical as codes."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

__all__ = ["Bernoulli", "Categorical", "Levels"]


@dataclass(frozen=True)
class Bernoulli:
    r"""Independent 0/1 coordinates with $P(x_j = 1) = \mathrm{logit}^{-1}(r_j)$.

    With `dim == 1` it is also a finite head: its support is {0, 1}.

    Example:
        >>> [round(float(p), 2) for p in jnp.exp(Bernoulli(1).log_weights(jnp.asarray([0.0])))]
        [0.5, 0.5]
    """

    dim: int = 1

    @property
    def raw_dim(self) -> int:
        """One logit a coordinate."""
        return self.dim

    @property
    def support(self) -> tuple[float, ...]:
        """The two values of a scalar event."""
        return (0.0, 1.0)

    def log_weights(self, raw: Array) -> Array:
        """Log-probabilities of 0 and 1."""
        return jnp.stack([jax.nn.log_sigmoid(-raw[0]), jax.nn.log_sigmoid(raw[0])])

    def log_prob(self, raw: Array, value: Array) -> Array:
        """Log-mass; values between 0 and 1 give the cross-entropy."""
        return value * jax.nn.log_sigmoid(raw) + (1.0 - value) * jax.nn.log_sigmoid(-raw)

    def mean(self, raw: Array) -> Array:
        """Probabilities of one."""
        return jax.nn.sigmoid(raw)

    def sample(self, raw: Array, key: Array, n: int) -> Array:
        """Draws of 0 and 1 (no gradient through them)."""
        return jax.random.bernoulli(key, self.mean(raw), (n, self.dim)).astype(raw.dtype)

    def fit_error(self, raw: Array, value: Array) -> Array:
        """Cross-entropy."""
        return -self.log_prob(raw, value)

    def spread_penalty(self, raw: Array) -> Array:
        """No spread parameter."""
        return jnp.zeros((), raw.dtype)


@dataclass(frozen=True)
class Categorical:
    r"""One of `dim` levels, as a one-hot event; $P(\text{level } k) = \mathrm{softmax}(r)_k$.

    Example:
        >>> head = Categorical(3)
        >>> round(float(head.log_prob(jnp.zeros(3), jnp.asarray([0.0, 1.0, 0.0])).sum()), 4)
        -1.0986
    """

    dim: int

    @property
    def raw_dim(self) -> int:
        """One logit a level."""
        return self.dim

    def log_prob(self, raw: Array, value: Array) -> Array:
        """Log-mass split over the levels: only the observed level's entry is not zero."""
        return value * jax.nn.log_softmax(raw)

    def mean(self, raw: Array) -> Array:
        """Level probabilities."""
        return jax.nn.softmax(raw)

    def sample(self, raw: Array, key: Array, n: int) -> Array:
        """One-hot draws (no gradient through them)."""
        return jax.nn.one_hot(jax.random.categorical(key, raw, shape=(n,)), self.dim, dtype=raw.dtype)

    def fit_error(self, raw: Array, value: Array) -> Array:
        """Cross-entropy, split over the levels."""
        return -self.log_prob(raw, value)

    def spread_penalty(self, raw: Array) -> Array:
        """No spread parameter."""
        return jnp.zeros((), raw.dtype)


@dataclass(frozen=True)
class Levels:
    r"""The code of one of `n_levels` levels, a scalar from 0 to K - 1; $P(k) = \mathrm{softmax}(r)_k$.

    It is `Categorical` for a variable that is summed over: a finite head, whose events are codes in place of one-hot
    rows.

    Example:
        >>> head = Levels(3)
        >>> head.support, round(float(head.log_prob(jnp.zeros(3), jnp.asarray([2.0]))[0]), 4)
        ((0.0, 1.0, 2.0), -1.0986)
    """

    n_levels: int

    @property
    def dim(self) -> int:
        """One coordinate, the code."""
        return 1

    @property
    def raw_dim(self) -> int:
        """One logit a level."""
        return self.n_levels

    @property
    def support(self) -> tuple[float, ...]:
        """The codes."""
        return tuple(float(code) for code in range(self.n_levels))

    def indicators(self, value: Array) -> Array:
        """A scalar code as a one-hot row, `(n_levels,)`."""
        return (jnp.arange(self.n_levels) == value).astype(jnp.result_type(value, jnp.float32))

    def log_weights(self, raw: Array) -> Array:
        """Log-probability of each code."""
        return jax.nn.log_softmax(raw)

    def log_prob(self, raw: Array, value: Array) -> Array:
        """Log-mass of the code, `(1,)`."""
        return jnp.sum(self.indicators(value[0]) * jax.nn.log_softmax(raw), keepdims=True)

    def mean(self, raw: Array) -> Array:
        """The expected code, `(1,)`; codes are names, so it is of use to nobody but the protocol."""
        return jnp.sum(jax.nn.softmax(raw) * jnp.arange(self.n_levels), keepdims=True)

    def sample(self, raw: Array, key: Array, n: int) -> Array:
        """Drawn codes, `(n, 1)` (no gradient through them)."""
        return jax.random.categorical(key, raw, shape=(n, 1)).astype(raw.dtype)

    def fit_error(self, raw: Array, value: Array) -> Array:
        """Cross-entropy."""
        return -self.log_prob(raw, value)

    def spread_penalty(self, raw: Array) -> Array:
        """No spread parameter."""
        return jnp.zeros((), raw.dtype)
