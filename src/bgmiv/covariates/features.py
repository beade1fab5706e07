"""Feature extractors: what a network sees of a covariate row, block by block."""

from __future__ import annotations

from typing import Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import ndtri

from bgmiv.nn import Dense

__all__ = ["BlockFeatures", "Features", "Noised", "Raw", "VectorFeatures"]


class Features(Protocol):
    """Maps one row's block to features; uniform noise switches dropout on."""

    @property
    def width(self) -> int:
        """Number of features."""

    @property
    def noise_width(self) -> int:
        """Uniform numbers a row needs in training."""

    def __call__(self, block: Array, noise: Array | None) -> Array:
        """The features of one row; `noise` holds `noise_width` uniform numbers, or is None outside training."""


class Raw(eqx.Module):
    """The block as it is.

    Example:
        >>> Raw(2)(jnp.ones(2), None).tolist()
        [1.0, 1.0]
    """

    width: int = eqx.field(static=True)

    @property
    def noise_width(self) -> int:
        """No training noise."""
        return 0

    def __call__(self, block: Array, noise: Array | None) -> Array:
        """The identity."""
        return block


class Noised(eqx.Module):
    """The block as it is, with Gaussian noise of deviation `noise` in training.

    Example:
        >>> Noised(2, 0.3)(jnp.ones(2), None).tolist()
        [1.0, 1.0]
    """

    width: int = eqx.field(static=True)
    noise: float = eqx.field(static=True)

    @property
    def noise_width(self) -> int:
        """One number a column if it is noised."""
        return self.width if self.noise > 0.0 else 0

    def __call__(self, block: Array, noise: Array | None) -> Array:
        """The block, moved in training."""
        return block if noise is None or self.noise == 0.0 else block + self.noise * ndtri(noise)


class VectorFeatures(eqx.Module):
    """The paper's vector block: dense, ReLU, dropout, dense (784 -> 128 -> 64 there).

    In training, dropout and Gaussian input noise keep the encoder from memorising single rows of a wide block.

    Args:
        n_in, n_hidden, n_out: widths.
        dropout: share of hidden units dropped in training.
        input_noise: deviation of the noise added to the block in training.

    Example:
        >>> features = VectorFeatures(10, 8, 4, dropout=0.1, key=jax.random.key(0))
        >>> features(jnp.ones(10), None).shape
        (4,)
    """

    hidden: Dense
    output: Dense
    n_in: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    dropout: float = eqx.field(static=True)
    input_noise: float = eqx.field(static=True)

    def __init__(
        self, n_in: int, n_hidden: int, n_out: int, *, dropout: float, input_noise: float = 0.0, key: Array
    ) -> None:
        """Build both layers."""
        key_hidden, key_output = jax.random.split(key)
        self.hidden = Dense(n_in, n_hidden, key=key_hidden)
        self.output = Dense(n_hidden, n_out, key=key_output)
        self.n_in = n_in
        self.width = n_out
        self.dropout = dropout
        self.input_noise = input_noise

    @property
    def noise_width(self) -> int:
        """One number a hidden unit if units are dropped, and one a column if the input is noised."""
        dropped = self.hidden.bias.shape[-1] if self.dropout > 0.0 else 0
        return dropped + (self.n_in if self.input_noise > 0.0 else 0)

    def __call__(self, block: Array, noise: Array | None) -> Array:
        """Features of one row, with dropout and input noise when noise is given."""
        if noise is None:
            return self.output(jax.nn.relu(self.hidden(block)))
        if self.input_noise > 0.0:
            block = block + self.input_noise * ndtri(noise[-self.n_in :])
        h = jax.nn.relu(self.hidden(block))
        if self.dropout > 0.0:
            h = jnp.where(noise[: h.shape[-1]] >= self.dropout, h / (1.0 - self.dropout), 0.0)
        return self.output(h)


class BlockFeatures(eqx.Module):
    """The features of all blocks of a row, concatenated.

    Args:
        parts: one extractor a block.
        spans: each block's first column and the one past its last.

    Example:
        >>> BlockFeatures((Raw(1), Raw(2)), ((0, 1), (1, 3)))(jnp.arange(3.0), None).tolist()
        [0.0, 1.0, 2.0]
    """

    parts: tuple[Features, ...]
    spans: tuple[tuple[int, int], ...] = eqx.field(static=True)

    @property
    def width(self) -> int:
        """Features of a row."""
        return sum(part.width for part in self.parts)

    @property
    def noise_width(self) -> int:
        """Uniform numbers a row needs in training."""
        return sum(part.noise_width for part in self.parts)

    def __call__(self, v: Array, noise: Array | None) -> Array:
        """The features of one row; `noise` switches training noise on."""
        found, used = [], 0
        for part, (start, stop) in zip(self.parts, self.spans, strict=True):
            own = None if noise is None else noise[used : used + part.noise_width]
            found.append(part(v[start:stop], own))
            used += part.noise_width
        return jnp.concatenate(found) if found else jnp.zeros((0,), v.dtype)
