"""Constructors: every kind of covariate table becomes the same `CovariateModule`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

import jax
from jax import Array

from bgmiv.covariates.features import BlockFeatures, Features, Noised, Raw, VectorFeatures
from bgmiv.covariates.images import ImageConfig, build_image_decoder, build_image_features, image_head
from bgmiv.covariates.module import Branch, BranchNet, CovariateModule, Decoder, Encoder
from bgmiv.data.schema import BlockKind, CovariateBlock, Schema
from bgmiv.errors import ConfigError
from bgmiv.likelihood import Bernoulli, Categorical, Gaussian, Head
from bgmiv.nn import MLP

__all__ = ["CovariateConfig", "build_blocks", "build_covariates", "build_dense", "build_features"]


@dataclass(frozen=True)
class CovariateConfig:
    """Shapes and weights of the covariate networks; the defaults are the paper's.

    Args:
        dense_hidden: hidden units of encoder and generator when all covariates are plain continuous columns.
        block_encoder_hidden: hidden units of the encoder after the blocks' features.
        vector_features: hidden and output width of a vector block's features.
        vector_decoder_hidden: hidden units of a vector block's decoder branch.
        column_decoder_hidden: hidden units of a column block's decoder branch.
        dropout: dropout rate in the vector features.
        vector_noise: deviation of the Gaussian noise added to a vector block before it is encoded in training.
        noise_levels: of these deviations a fit chooses one for each vector block wider than `narrow_vector`
            (`bgmiv.data.denoising`); none: `vector_noise`.
        block_noise: names of vector blocks and the deviations chosen for them.
        narrow_vector: vector blocks up to this width are taken as columns (with their noise), as continuous ones are,
            so that a table of such blocks gets the dense networks.
        dense_decoder_hidden: hidden units of the generator then; None: those of the encoder.
        shared_variance: one variance for all continuous columns (the authors' code) instead of one each (the paper).
        block_reduction: "mean" weighs each block's log-likelihood as one coordinate (the authors' code for vectors,
            so that a scalar block weighs as much as a wide one); "sum" is the plain density.
        images: how image blocks are seen and generated.
        nuisance_features: hidden and output width of a vector block's features beside an image block (the paper's
            MNIST-HD); None: `vector_features` there as well.
        score_features: hidden and output width of the features of images that were reduced to scores.
        score_dropout: dropout rate in them.
        score_noise: deviation of the Gaussian noise added to scores before they are encoded in training. Few outputs,
            dropout and much noise keep the encoder from memorising pictures.
    """

    dense_hidden: tuple[int, ...] = (64, 64, 64, 64, 64)
    block_encoder_hidden: tuple[int, ...] = (128, 64)
    vector_features: tuple[int, int] = (128, 64)
    vector_decoder_hidden: tuple[int, ...] = (128, 64)
    column_decoder_hidden: tuple[int, ...] = (64,)
    dropout: float = 0.1
    vector_noise: float = 0.0
    noise_levels: tuple[float, ...] = ()
    block_noise: tuple[tuple[str, float], ...] = ()
    narrow_vector: int = 0
    dense_decoder_hidden: tuple[int, ...] | None = None
    shared_variance: bool = False
    block_reduction: Literal["sum", "mean"] = "mean"
    images: ImageConfig = field(default_factory=ImageConfig)
    nuisance_features: tuple[int, int] | None = (64, 32)
    score_features: tuple[int, int] = (128, 4)
    score_dropout: float = 0.5
    score_noise: float = 0.7

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        for name in ("dropout", "score_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"{name} must lie in [0, 1), got {getattr(self, name)}.")
        for name in ("vector_noise", "narrow_vector", "score_noise"):
            if getattr(self, name) < 0.0:
                raise ConfigError(f"{name} must be at least 0, got {getattr(self, name)}.")
        if self.block_reduction not in ("sum", "mean"):
            raise ConfigError(f"block_reduction is 'sum' or 'mean', got {self.block_reduction!r}.")
        if any(level < 0.0 for level in (*self.noise_levels, *(noise for _, noise in self.block_noise))):
            raise ConfigError(f"noise_levels must be at least 0, got {self.noise_levels} and {self.block_noise}.")
        for entry in fields(self):
            widths = getattr(self, entry.name)
            if entry.name in ("noise_levels", "block_noise"):
                continue
            if isinstance(widths, tuple) and any(width < 1 for width in widths):
                raise ConfigError(f"{entry.name} must hold positive widths, got {widths}.")


def build_dense(
    n_covariates: int,
    latent_dim: int,
    *,
    key: Array,
    hidden: Sequence[int] = (64, 64, 64, 64, 64),
    decoder_hidden: Sequence[int] | None = None,
    shared_variance: bool = False,
    features: BlockFeatures | None = None,
) -> CovariateModule:
    """The paper's generic module: one MLP each way over all columns together.

    Args:
        n_covariates, latent_dim: columns and latents.
        key: draws the weights.
        hidden: hidden units of the encoder.
        decoder_hidden: hidden units of the generator; None: those of the encoder.
        shared_variance: one variance for all columns instead of one each.
        features: what the encoder sees, of `n_covariates` columns; None: the columns as they are.

    Example:
        >>> build_dense(2, 7, key=jax.random.key(0)).branches[0].head.raw_dim
        4
    """
    key_encoder, key_decoder = jax.random.split(key)
    head = Gaussian(n_covariates, shared_variance=shared_variance)
    # Without covariates there is no block to describe: latents are then the encoder's constant.
    spans = ((0, n_covariates),) if n_covariates else ()
    return CovariateModule(
        encoder=Encoder(
            features or BlockFeatures(tuple(Raw(n_covariates) for _ in spans), spans),
            MLP(n_covariates, hidden, latent_dim, key=key_encoder),
        ),
        decoder=Decoder(tuple(MLP(latent_dim, decoder_hidden or hidden, head.raw_dim, key=key_decoder) for _ in spans)),
        branches=tuple(Branch(*span, head) for span in spans),
    )


def _features(block: CovariateBlock, config: CovariateConfig, key: Array, *, beside_image: bool) -> Features:
    if block.holds_pixels:
        return build_image_features(block, config.images, key=key)
    if block.kind is BlockKind.image:
        return VectorFeatures(
            block.width,
            *config.score_features,
            dropout=config.score_dropout,
            input_noise=config.score_noise,
            key=key,
        )
    if block.kind is BlockKind.vector and block.width <= config.narrow_vector:
        return Noised(block.width, config.vector_noise)
    if block.kind is BlockKind.vector:
        hidden, width = (config.nuisance_features if beside_image else None) or config.vector_features
        noise = dict(config.block_noise).get(block.name, config.vector_noise)
        return VectorFeatures(block.width, hidden, width, dropout=config.dropout, input_noise=noise, key=key)
    return Raw(block.width)


def build_features(blocks: Sequence[CovariateBlock], config: CovariateConfig, *, key: Array) -> BlockFeatures:
    """One feature extractor a block; every method with networks sees covariates through these.

    Example:
        >>> block = CovariateBlock("proxy", BlockKind.vector, ("p0", "p1"), 0, 2)
        >>> build_features([block], CovariateConfig(), key=jax.random.key(0)).width
        64
    """
    keys = jax.random.split(key, max(len(blocks), 1))
    image = any(block.kind is BlockKind.image for block in blocks)
    return BlockFeatures(
        tuple(_features(block, config, k, beside_image=image) for block, k in zip(blocks, keys, strict=False)),
        tuple((block.start, block.stop) for block in blocks),
    )


def _head(block: CovariateBlock, config: CovariateConfig) -> Head:
    if block.kind is BlockKind.binary:
        return Bernoulli(block.width)
    if block.kind is BlockKind.categorical:
        return Categorical(block.width)
    if block.holds_pixels:
        return image_head(block, config.images)
    return Gaussian(block.width, shared_variance=config.shared_variance and block.kind is BlockKind.continuous)


def _decoder(block: CovariateBlock, head: Head, latent_dim: int, config: CovariateConfig, key: Array) -> BranchNet:
    if block.holds_pixels:
        return build_image_decoder(block, latent_dim, config.images, key=key)
    wide = block.kind in (BlockKind.vector, BlockKind.image)
    hidden = config.vector_decoder_hidden if wide else config.column_decoder_hidden
    return MLP(latent_dim, hidden, head.raw_dims if isinstance(head, Gaussian) else head.raw_dim, key=key)


def build_blocks(
    blocks: Sequence[CovariateBlock], latent_dim: int, config: CovariateConfig, *, key: Array
) -> CovariateModule:
    """A module with one feature extractor and one decoder branch a block.

    Example:
        >>> block = CovariateBlock("proxy", BlockKind.vector, ("p0", "p1"), 0, 2)
        >>> build_blocks([block], 3, CovariateConfig(), key=jax.random.key(0)).encoder.net.layers[0].kernel.shape
        (64, 128)
    """
    key_features, key_net, *keys = jax.random.split(key, 2 + len(blocks))
    features = build_features(blocks, config, key=key_features)
    branches, decoders = [], []
    for block, key_decoder in zip(blocks, keys, strict=True):
        head = _head(block, config)
        weight = config.images.weight if block.holds_pixels else 1.0
        branches.append(Branch(block.start, block.stop, head, config.block_reduction, weight))
        decoders.append(_decoder(block, head, latent_dim, config, key_decoder))
    return CovariateModule(
        encoder=Encoder(features, MLP(features.width, config.block_encoder_hidden, latent_dim, key=key_net)),
        decoder=Decoder(tuple(decoders)),
        branches=tuple(branches),
    )


def build_covariates(schema: Schema, latent_dim: int, config: CovariateConfig, *, key: Array) -> CovariateModule:
    """Dense when every covariate is a continuous column or in a narrow vector, else one branch a block."""
    narrow = [b.kind is BlockKind.vector and b.width <= config.narrow_vector for b in schema.blocks]
    if all(is_narrow or b.kind is BlockKind.continuous for b, is_narrow in zip(schema.blocks, narrow, strict=True)):
        return build_dense(
            schema.n_covariates,
            latent_dim,
            key=key,
            hidden=config.dense_hidden,
            decoder_hidden=config.dense_decoder_hidden,
            shared_variance=config.shared_variance,
            features=build_features(schema.blocks, config, key=key) if any(narrow) else None,
        )
    return build_blocks(schema.blocks, latent_dim, config, key=key)
