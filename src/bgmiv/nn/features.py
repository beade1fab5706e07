"""Feature extractors: what a network sees of a covariate row, block by block, and their settings."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import ndtri

from bgmiv.data.schema import BlockKind, CovariateBlock
from bgmiv.nn.layers import Conv, Dense, max_pool
from bgmiv.nn.settings import FeatureConfig, ImageConfig

__all__ = [
    "BlockFeatures",
    "ConvExtractor",
    "DenseExtractor",
    "Features",
    "ImageFeatures",
    "Noised",
    "Raw",
    "Shape",
    "VectorFeatures",
    "build_features",
    "feature_widths",
    "rows_at_once",
]  # fmt: skip

Shape = tuple[int, int, int]
"""Height, width and channels of an image."""

# Of numbers in one array: 128 MB.
_MAX_CELLS = 1 << 25
# Dropout rate in the features of images that were reduced to scores.
_SCORE_DROPOUT = 0.5


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
    """The block as it is."""

    width: int = eqx.field(static=True)

    @property
    def noise_width(self) -> int:
        """No training noise."""
        return 0

    def __call__(self, block: Array, noise: Array | None) -> Array:
        """The identity."""
        return block


class Noised(eqx.Module):
    """The block as it is, with Gaussian noise of standard deviation `noise` in training."""

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


def _stack(widths: tuple[int, ...], key: Array) -> tuple[Dense, ...]:
    keys = jax.random.split(key, len(widths) - 1)
    return tuple(Dense(a, b, key=k) for a, b, k in zip(widths[:-1], widths[1:], keys, strict=True))


def _through(layers: tuple[Dense, ...], h: Array) -> Array:
    for layer in layers[:-1]:
        h = jax.nn.relu(layer(h))
    return layers[-1](h)


class ConvExtractor(eqx.Module):
    """Two 3x3 convolutions, each with ReLU and max pooling, dropout, and dense layers with ReLU between them."""

    convolutions: tuple[Conv, Conv]
    layers: tuple[Dense, ...]
    noise_width: int = eqx.field(static=True)
    dropout: float = eqx.field(static=True)

    def __init__(self, shape: Shape, config: ImageConfig, *, key: Array) -> None:
        """Draw the layers for images of a shape."""
        key_first, key_second, key_layers = jax.random.split(key, 3)
        first, second = config.filters
        self.convolutions = (Conv(shape[2], first, key=key_first), Conv(first, second, key=key_second))
        pooled = -(-shape[0] // 4) * -(-shape[1] // 4) * second
        self.layers = _stack((pooled, *config.conv_features), key_layers)
        self.noise_width = pooled if config.dropout > 0.0 else 0
        self.dropout = config.dropout

    def __call__(self, image: Array, noise: Array | None) -> Array:
        """Features of one image."""
        for convolution in self.convolutions:
            image = max_pool(jax.nn.relu(convolution(image)))
        h = image.ravel()
        if noise is not None and self.noise_width:
            h = jnp.where(noise >= self.dropout, h / (1.0 - self.dropout), 0.0)
        return _through(self.layers, h)


class DenseExtractor(eqx.Module):
    """Dense layers on the flat pixels, with ReLU between them."""

    layers: tuple[Dense, ...]

    def __init__(self, shape: Shape, config: ImageConfig, *, key: Array) -> None:
        """Draw the layers for images of a shape."""
        self.layers = _stack((prod(shape), *config.dense_features), key)

    @property
    def noise_width(self) -> int:
        """No dropout."""
        return 0

    def __call__(self, image: Array, noise: Array | None) -> Array:
        """Features of one image."""
        return _through(self.layers, image.ravel())


class ImageFeatures(eqx.Module):
    """An extractor on the image, which is shifted and noised in training as `ImageConfig` says."""

    extractor: ConvExtractor | DenseExtractor
    shape: Shape = eqx.field(static=True)
    shift: int = eqx.field(static=True)
    noise: float = eqx.field(static=True)

    @property
    def width(self) -> int:
        """Number of features."""
        return self.extractor.layers[-1].bias.shape[-1]

    @property
    def noise_width(self) -> int:
        """The extractor's numbers, then two for the shift and one a pixel for the noise, each if it acts."""
        return self.extractor.noise_width + 2 * (self.shift > 0) + prod(self.shape) * (self.noise > 0.0)

    @property
    def cells(self) -> int:
        """Numbers in the largest array on the way: the patches of the second convolution."""
        if isinstance(self.extractor, DenseExtractor):
            return prod(self.shape)
        return (
            -(-self.shape[0] // 2) * -(-self.shape[1] // 2) * prod(self.extractor.convolutions[1].kernel.shape[-4:-1])
        )

    def __call__(self, block: Array, noise: Array | None) -> Array:
        """Features of one row's flat pixels; `noise` switches shift, noise and dropout on."""
        image = block.reshape(self.shape)
        if noise is None:
            return self.extractor(image, None)
        dropped = self.extractor.noise_width
        return self.extractor(self.augmented(image, noise[dropped:]), noise[:dropped])

    def augmented(self, image: Array, noise: Array) -> Array:
        """The image as it is seen in training, from `noise_width` uniform numbers without the extractor's."""
        if self.shift > 0:
            around = (self.shift, self.shift)
            start = jnp.floor((2 * self.shift + 1) * noise[:2]).astype(jnp.int32)
            image = jax.lax.dynamic_slice(
                jnp.pad(image, (around, around, (0, 0))), (start[0], start[1], jnp.zeros((), jnp.int32)), self.shape
            )
        if self.noise > 0.0:
            image = image + self.noise * ndtri(noise[-image.size :]).reshape(self.shape)
        return image


class BlockFeatures(eqx.Module):
    """The features of all blocks of a row, concatenated: one extractor and one span of columns a block."""

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

    @property
    def cells(self) -> int:
        """Numbers in the largest array that an image needs on the way; 0 without images."""
        return max((part.cells for part in self.parts if isinstance(part, ImageFeatures)), default=0)

    def __call__(self, v: Array, noise: Array | None) -> Array:
        """The features of one row; `noise` switches training noise on."""
        found, used = [], 0
        for part, (start, stop) in zip(self.parts, self.spans, strict=True):
            own = None if noise is None else noise[used : used + part.noise_width]
            found.append(part(v[start:stop], own))
            used += part.noise_width
        return jnp.concatenate(found) if found else jnp.zeros((0,), v.dtype)

    def noised(self, v: Array, noise: Array) -> Array:
        """The row with the training noise of blocks that are seen as they are."""
        used = 0
        for part, (start, stop) in zip(self.parts, self.spans, strict=True):
            if isinstance(part, Noised):
                v = v.at[start:stop].set(part(v[start:stop], noise[used : used + part.noise_width]))
            used += part.noise_width
        return v


def _features(block: CovariateBlock, config: FeatureConfig, key: Array, *, beside_image: bool) -> Features:
    if block.holds_pixels:
        assert block.shape is not None
        height, width, channels = block.shape
        extractor = ConvExtractor if config.images.features == "conv" else DenseExtractor
        shape = (height, width, channels)
        return ImageFeatures(extractor(shape, config.images, key=key), shape, config.images.shift, config.images.noise)
    if block.kind is BlockKind.image:
        hidden, width = config.score_features
        dropout, noise = _SCORE_DROPOUT, config.score_noise
        return VectorFeatures(block.width, hidden, width, dropout=dropout, input_noise=noise, key=key)
    if config.is_narrow(block):
        return Noised(block.width, config.vector_noise)
    if block.kind is BlockKind.vector:
        hidden, width = (config.nuisance_features if beside_image else None) or config.vector_features
        noise = dict(config.block_noise).get(block.name, config.vector_noise)
        return VectorFeatures(block.width, hidden, width, dropout=config.dropout, input_noise=noise, key=key)
    return Raw(block.width)


def build_features(blocks: Sequence[CovariateBlock], config: FeatureConfig, *, key: Array) -> BlockFeatures:
    """One feature extractor a block; every method with networks sees covariates through these."""
    keys = jax.random.split(key, max(len(blocks), 1))
    image = any(block.kind is BlockKind.image for block in blocks)
    return BlockFeatures(
        tuple(_features(block, config, k, beside_image=image) for block, k in zip(blocks, keys, strict=False)),
        tuple((block.start, block.stop) for block in blocks),
    )


def feature_widths(blocks: Sequence[CovariateBlock], config: FeatureConfig) -> tuple[int, ...]:
    """How many features networks see of each of these blocks."""
    built = eqx.filter_eval_shape(lambda key: build_features(blocks, config, key=key), jax.random.key(0))
    return tuple(part.width for part in built.parts)


def rows_at_once(cells: int, max_rows: int) -> int:
    """How many rows may be evaluated together: `max_rows`, or fewer where images would need too much memory.

    `cells` are the numbers in the largest array that one row needs.
    """
    # A power of two, so that similar sizes share a compilation.
    return min(max_rows, 1 << max(_MAX_CELLS // max(cells, 1), 1).bit_length() - 1)
