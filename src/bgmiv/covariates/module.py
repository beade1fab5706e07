r"""The covariate module: encoder $e_\psi(v)$ and generator $p_\theta(v \mid z)$ for any mix of blocks.

There is one class. A new kind of covariate is a new `Branch` made in `build.py`, never a new module or loop.
"""

from __future__ import annotations

from typing import Literal, Protocol

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from bgmiv.covariates.features import BlockFeatures
from bgmiv.covariates.images import rows_at_once
from bgmiv.likelihood import Head
from bgmiv.nn import MLP

__all__ = ["Branch", "BranchNet", "CovariateModule", "Decoder", "Encoder"]


class Branch(eqx.Module):
    """One block's place in the flat covariate row, its head and how its coordinates are weighed.

    Attributes:
        start, stop: the block's columns.
        head: the block's distribution.
        reduction: whether its log-likelihood is the sum or the mean over its coordinates.
        weight: factor of that sum or mean.
    """

    start: int = eqx.field(static=True)
    stop: int = eqx.field(static=True)
    head: Head = eqx.field(static=True)
    reduction: Literal["sum", "mean"] = eqx.field(static=True, default="sum")
    weight: float = eqx.field(static=True, default=1.0)

    def of(self, v: Array) -> Array:
        """The block's part of a row."""
        return v[self.start : self.stop]

    def reduce(self, terms: Array) -> Array:
        """Add or average the coordinates, weighted."""
        reduced = jnp.sum(terms) if self.reduction == "sum" or terms.size == 0 else jnp.mean(terms)
        return reduced if self.weight == 1.0 else self.weight * reduced

    @property
    def coordinate_weight(self) -> float:
        """What each coordinate's log-density is multiplied by."""
        return self.weight / (1 if self.reduction == "sum" else max(self.stop - self.start, 1))


class Encoder(eqx.Module):
    """Features of all blocks through one MLP to the latents."""

    features: BlockFeatures
    net: MLP


class BranchNet(Protocol):
    """A network from the latents to a branch's raw head parameters."""

    def __call__(self, z: Array, /) -> Array:
        """All raw parameters."""

    def leading(self, z: Array, /) -> Array:
        """Those that the mean needs, which come first."""


class Decoder(eqx.Module):
    """One network a branch from the latents to the branch's raw head parameters."""

    nets: tuple[BranchNet, ...]


class CovariateModule(eqx.Module):
    """Encoder and generator of the covariates; all methods are for one row.

    Example:
        >>> import jax
        >>> from bgmiv.covariates import build_dense
        >>> module = build_dense(3, 2, key=jax.random.key(0))
        >>> z = module.encode(jnp.ones(3))
        >>> z.shape, module.mean(z).shape
        ((2,), (3,))
    """

    encoder: Encoder
    decoder: Decoder
    branches: tuple[Branch, ...]

    @property
    def noise_width(self) -> int:
        """Uniform numbers that `encode` takes a row in training."""
        return self.encoder.features.noise_width

    def rows_at_once(self, most: int) -> int:
        """How many rows may be encoded or decoded together: `most`, or fewer with convolutions."""
        return rows_at_once((*self.encoder.features.parts, *self.decoder.nets), most)

    def encode(self, v: Array, noise: Array | None = None) -> Array:
        """Latents of one row; `noise_width` uniform numbers switch training noise on."""
        return self.encoder.net(self.encoder.features(v, noise))

    def decode(self, z: Array) -> tuple[Array, ...]:
        """Raw head parameters of each branch."""
        return tuple(net(z) for net in self.decoder.nets)

    def decode_means(self, z: Array) -> tuple[Array, ...]:
        """Raw parameters of each branch without the spreads, for callers that need means alone."""
        return tuple(net.leading(z) for net in self.decoder.nets)

    def log_prob(self, v: Array, z: Array) -> Array:
        r"""$\log p_\theta(v \mid z)$, each branch weighed by its reduction."""
        total = jnp.zeros((), z.dtype)
        for branch, raw in zip(self.branches, self.decode(z), strict=True):
            total += branch.reduce(branch.head.log_prob(raw, branch.of(v)))
        return total

    def means_of(self, raws: tuple[Array, ...]) -> Array:
        """Expected covariates from raw parameters, as a flat row."""
        means = [branch.head.mean(raw) for branch, raw in zip(self.branches, raws, strict=True)]
        return jnp.concatenate(means) if means else jnp.zeros((0,))

    def mean(self, z: Array) -> Array:
        r"""$\mu_\theta(z)$ as a flat row."""
        return self.means_of(self.decode_means(z))

    def cycle_loss(self, v: Array, raws: tuple[Array, ...]) -> Array:
        """Reconstruction error of a row, from either decode: the mean over branches of the mean over coordinates."""
        losses = [
            jnp.mean(branch.head.fit_error(raw, branch.of(v))) for branch, raw in zip(self.branches, raws, strict=True)
        ]
        return jnp.mean(jnp.stack(losses)) if losses else jnp.zeros(())

    def spread_penalty(self, raws: tuple[Array, ...]) -> Array:
        """Sum over branches of the heads' spread penalties."""
        penalties = [branch.head.spread_penalty(raw) for branch, raw in zip(self.branches, raws, strict=True)]
        return jnp.sum(jnp.stack(penalties)) if penalties else jnp.zeros(())
