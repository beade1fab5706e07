r"""The covariate module: encoder $e_\psi(v)$ and generator $p_\theta(v \mid z)$ for any mix of blocks.

There is one class. A new kind of covariate is a new `Branch` made by `build_covariates`, never a new module or loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1, log, prod
from typing import Literal, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from bgmiv.bgm.config import CovariateConfig
from bgmiv.data.schema import BlockKind, CovariateBlock
from bgmiv.likelihood import Bernoulli, Categorical, Gaussian, Head
from bgmiv.nn.features import BlockFeatures, Noised, Raw, Shape, build_features, rows_at_once
from bgmiv.nn.layers import MLP, Conv, Dense, TransposedConv, leaky_relu

__all__ = [
    "Branch", "BranchNet", "ConvDecoder", "CovariateModule", "Decoder", "Encoder", "OwnLatents", "Selection",
    "build_covariates",
]  # fmt: skip


# Raw parameter of a variance of 1e-4.
_RAW_VARIANCE = log(expm1(1e-4))


class ConvDecoder(eqx.Module):
    """From latents to a map of a quarter of the sides, doubled twice, refined, and cropped to the image."""

    project: Dense
    doublings: tuple[TransposedConv, TransposedConv]
    refinement: Conv
    output: Conv
    shape: Shape = eqx.field(static=True)

    def __init__(self, latent_dim: int, shape: Shape, filters: tuple[int, int, int], *, key: Array) -> None:
        """Draw the layers."""
        keys = jax.random.split(key, 5)
        first, second, third = filters
        self.project = Dense(latent_dim, -(-shape[0] // 4) * -(-shape[1] // 4) * first, key=keys[0])
        self.doublings = (
            TransposedConv.drawn(first, second, key=keys[1]),
            TransposedConv.drawn(second, third, key=keys[2]),
        )
        self.refinement = Conv.drawn(third, third, key=keys[3])
        self.output = Conv.drawn(third, shape[2], key=keys[4])
        self.shape = shape

    def __call__(self, z: Array) -> Array:
        """The flat logits of the pixels."""
        height, width, _ = self.shape
        h = leaky_relu(self.project(z)).reshape(-(-height // 4), -(-width // 4), -1)
        for doubling in self.doublings:
            h = leaky_relu(doubling(h))
        h = leaky_relu(self.refinement(h[:height, :width]))
        return self.output(h).ravel()

    @property
    def cells(self) -> int:
        """Numbers in the largest array on the way: the patches of the refinement."""
        return prod(self.shape[:2]) * prod(self.refinement.kernel.shape[-4:-1])

    def leading(self, z: Array) -> Array:
        """All of them are needed for the mean."""
        return self(z)


class Branch(eqx.Module):
    """One block's columns in the flat covariate row, its distribution, and how its log-likelihood is weighed."""

    start: int = eqx.field(static=True)
    stop: int = eqx.field(static=True)
    head: Head = eqx.field(static=True)
    reduction: Literal["sum", "mean"] = eqx.field(static=True, default="sum")

    def of(self, v: Array) -> Array:
        """The block's part of a row."""
        return v[self.start : self.stop]


class Selection(eqx.Module):
    """Latents that are features themselves, by their positions."""

    positions: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, features: Array) -> Array:
        """The latents of one row."""
        return features[jnp.asarray(self.positions)]


class Encoder(eqx.Module):
    """Features of all blocks, and through a network the latents; or features that are the latents."""

    features: BlockFeatures
    net: MLP | Selection


class BranchNet(Protocol):
    """A network from the latents to a branch's raw head parameters."""

    def __call__(self, z: Array, /) -> Array:
        """All raw parameters."""

    def leading(self, z: Array, /) -> Array:
        """Those that the mean needs, which come first."""


class OwnLatents(eqx.Module):
    """The generator of columns that are latents themselves: each is its latent, but for a hundredth of its spread."""

    positions: tuple[int, ...] = eqx.field(static=True)
    n_variances: int = eqx.field(static=True)

    def __call__(self, z: Array) -> Array:
        """Means and raw variances."""
        return jnp.concatenate([self.leading(z), jnp.full(self.n_variances, _RAW_VARIANCE, z.dtype)])

    def leading(self, z: Array) -> Array:
        """The means."""
        return z[jnp.asarray(self.positions)]


class Decoder(eqx.Module):
    """One network a branch from the latents to the branch's raw head parameters; none for columns that are latents."""

    nets: tuple[BranchNet, ...]


class CovariateModule(eqx.Module):
    """Encoder and generator of the covariates; all methods are for one row."""

    encoder: Encoder
    decoder: Decoder
    branches: tuple[Branch, ...]

    @property
    def learns_latents(self) -> bool:
        """Whether the encoder has weights; without any, latents are covariates as they are."""
        return bool(jax.tree.leaves(self.encoder))

    @property
    def noise_width(self) -> int:
        """Uniform numbers that `encode` takes a row in training."""
        return self.encoder.features.noise_width

    def rows_at_once(self, max_rows: int) -> int:
        """How many rows may be encoded or decoded together: `max_rows`, or fewer with convolutions."""
        decoded = (net.cells for net in self.decoder.nets if isinstance(net, ConvDecoder))
        return rows_at_once(max((self.encoder.features.cells, *decoded)), max_rows)

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
            terms = branch.head.log_prob(raw, branch.of(v))
            total += jnp.mean(terms) if branch.reduction == "mean" and terms.size else jnp.sum(terms)
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
        pairs = zip(self.branches, raws, strict=True)
        losses = [jnp.mean(branch.head.fit_error(raw, branch.of(v))) for branch, raw in pairs]
        return jnp.mean(jnp.stack(losses)) if losses else jnp.zeros(())

    def spread_penalty(self, raws: tuple[Array, ...]) -> Array:
        """Sum over branches of the heads' spread penalties."""
        penalties = [branch.head.spread_penalty(raw) for branch, raw in zip(self.branches, raws, strict=True)]
        return jnp.sum(jnp.stack(penalties)) if penalties else jnp.zeros(())


def _block_branch(
    block: CovariateBlock, own: tuple[int, ...], latent_dim: int, config: CovariateConfig, key: Array
) -> tuple[Branch, BranchNet]:
    """The distribution of one block, and the network that leads to it; columns that are `own` latents have none."""
    head: Head
    net: BranchNet
    if own:
        head, net = Gaussian(block.width), OwnLatents(own, block.width)
    elif block.holds_pixels:
        assert block.shape is not None
        height, width, channels = block.shape
        key_net, _ = jax.random.split(key)
        head = Bernoulli(block.width)
        net = ConvDecoder(latent_dim, (height, width, channels), config.image_filters, key=key_net)
    elif block.kind in (BlockKind.binary, BlockKind.categorical):
        head = (Bernoulli if block.kind is BlockKind.binary else Categorical)(block.width)
        net = MLP(latent_dim, config.column_decoder_hidden, head.raw_dim, key=key)
    else:
        column = block.kind is BlockKind.continuous
        gaussian = head = Gaussian(block.width, shared_variance=config.shared_variance and column)
        hidden = config.column_decoder_hidden if column else config.vector_decoder_hidden
        net = MLP(latent_dim, hidden, gaussian.raw_dims, key=key)
    return Branch(block.start, block.stop, head, config.block_reduction), net


def build_covariates(
    blocks: Sequence[CovariateBlock], latent_dim: int, config: CovariateConfig, *, key: Array
) -> CovariateModule:
    """Encoder and generator: one network each way over all columns, or features and a decoder branch of each block.

    The former is the paper's generic module, for continuous columns and narrow vectors. Columns that are latents
    themselves are generated as numbers, also those with levels.
    """
    latent_features = config.latent_features
    # Which latent each feature is.
    places = tuple(sorted(range(len(latent_features)), key=latent_features.__getitem__))
    columns = {BlockKind.continuous, *((BlockKind.binary, BlockKind.categorical) if places else ())}
    parts: list[tuple[Branch, BranchNet]] = []
    if all(config.features.is_narrow(block) or block.kind in columns for block in blocks):
        key_net, key_decoder = jax.random.split(key)
        features, hidden = build_features(blocks, config.features, key=key), config.dense_hidden
        if blocks and all(isinstance(part, Raw) for part in features.parts):
            # Columns as they are make one piece.
            features = BlockFeatures((Raw(features.width),), ((0, features.width),))
        # Without columns nothing is generated: latents are then the encoder's constant.
        if blocks:
            head = Gaussian(features.width, shared_variance=config.shared_variance)
            own = OwnLatents(places, head.raw_dims[1])
            net = own if places else MLP(latent_dim, hidden, head.raw_dim, key=key_decoder)
            parts.append((Branch(0, features.width, head), net))
    else:
        key_features, key_net, *keys = jax.random.split(key, 2 + len(blocks))
        features, hidden = build_features(blocks, config.features, key=key_features), config.block_encoder_hidden
        for block, seen, key_decoder in zip(blocks, features.parts, keys, strict=True):
            as_they_are = places[: seen.width] if isinstance(seen, Raw | Noised) else ()
            parts.append(_block_branch(block, as_they_are, latent_dim, config, key_decoder))
            places = places[seen.width :]
    encode = Selection(latent_features) if latent_features else MLP(features.width, hidden, latent_dim, key=key_net)
    branches, nets = zip(*parts, strict=True) if parts else ((), ())
    return CovariateModule(Encoder(features, encode), Decoder(nets), branches)
