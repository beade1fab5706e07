"""Distributions read off network outputs: what every head offers, and the heads."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from jax import Array

from bgmiv.likelihood.continuous import Gaussian, GaussianMixture
from bgmiv.likelihood.discrete import Bernoulli, Categorical, Levels

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
        """Expected value of each coordinate, shape `(dim,)`."""

    def sample(self, raw: Array, key: Array, n: int) -> Array:
        """`n` independent draws, shape `(n, dim)`."""

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
