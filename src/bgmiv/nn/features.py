"""Feature extractors: what a network sees of a covariate row, block by block, and their settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import ndtri

from bgmiv.data.schema import BlockKind, CovariateBlock
from bgmiv.nn.layers import Conv, Dense, max_pool
from bgmiv.nn.settings import FeatureConfig, ImageConfig

__all__ = [
    "BlockFeatures", "Features", "ImageFeatures", "Noised", "Raw", "Shape", "VectorFeatures", "build_features",
    "feature_widths", "rows_at_once",
]  # fmt: skip

Shape = tuple[int, int, int]
"""Height, width and channels of an image."""

# Of numbers in one array: 128 MB.
_MAX_CELLS = 1 << 25
# Dropout rate in the features of images that were reduced to scores.
_SCORE_DROPOUT = 0.5


class Raw(eqx.Module):
    """The block as it is."""

    width: int = eqx.field(static=True)

    noise_width = 0

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

    @property
    def noise_width(self) -> int:
        """One number a hidden unit if units are dropped, and one a column if the input is noised."""
        dropped = self.hidden.bias.shape[-1] if self.dropout > 0.0 else 0
        return dropped + (self.n_in if self.input_noise > 0.0 else 0)

    def __call__(self, block: Array, noise: Array | None) -> Array:
        """Features of one row, with dropout and input noise when noise is given."""
        if noise is not None and self.input_noise > 0.0:
            block = block + self.input_noise * ndtri(noise[-self.n_in :])
        h = jax.nn.relu(self.hidden(block))
        if noise is not None and self.dropout > 0.0:
            h = jnp.where(noise[: h.shape[-1]] >= self.dropout, h / (1.0 - self.dropout), 0.0)
        return self.output(h)


class ImageFeatures(eqx.Module):
    """Two 3x3 convolutions, each with ReLU and max pooling, and dropout; then dense layers with ReLU between them.

    Without convolutions the dense layers are on the flat pixels. In training an image is shifted and noised.
    """

    convolutions: tuple[Conv, ...]
    layers: tuple[Dense, ...]
    shape: Shape = eqx.field(static=True)
    dropout: float = eqx.field(static=True)
    shift: int = eqx.field(static=True)
    noise: float = eqx.field(static=True)

    def __init__(self, shape: Shape, config: ImageConfig, *, key: Array) -> None:
        """Draw the layers for images of a shape."""
        self.shape, self.shift, self.noise = shape, config.shift, config.noise
        self.convolutions, self.dropout = (), 0.0
        widths = (prod(shape), *config.dense_features)
        if config.features == "conv":
            (height, width, channels), (first, second) = shape, config.filters
            key_first, key_second, key = jax.random.split(key, 3)
            self.convolutions = (Conv.drawn(channels, first, key=key_first), Conv.drawn(first, second, key=key_second))
            self.dropout = config.dropout
            widths = (-(-height // 4) * -(-width // 4) * second, *config.conv_features)
        keys = jax.random.split(key, len(widths) - 1)
        self.layers = tuple(Dense(a, b, key=k) for (a, b), k in zip(pairwise(widths), keys, strict=True))

    @property
    def width(self) -> int:
        """Number of features."""
        return self.layers[-1].bias.shape[-1]

    @property
    def _n_dropped(self) -> int:
        return self.layers[0].kernel.shape[-2] if self.dropout > 0.0 else 0

    @property
    def noise_width(self) -> int:
        """Numbers for dropout, two for the shift and one a pixel for the noise, each if it acts."""
        return self._n_dropped + 2 * (self.shift > 0) + prod(self.shape) * (self.noise > 0.0)

    @property
    def cells(self) -> int:
        """Numbers in the largest array on the way: the patches of the second convolution."""
        if not self.convolutions:
            return prod(self.shape)
        return -(-self.shape[0] // 2) * -(-self.shape[1] // 2) * prod(self.convolutions[1].kernel.shape[-4:-1])

    def __call__(self, block: Array, noise: Array | None) -> Array:
        """Features of one row's flat pixels; `noise` switches shift, noise and dropout on."""
        image, dropped = block.reshape(self.shape), self._n_dropped
        if noise is not None:
            image = self.augmented(image, noise[dropped:])
        for convolution in self.convolutions:
            image = max_pool(jax.nn.relu(convolution(image)))
        h = image.ravel()
        if noise is not None and dropped:
            h = jnp.where(noise[:dropped] >= self.dropout, h / (1.0 - self.dropout), 0.0)
        for layer in self.layers[:-1]:
            h = jax.nn.relu(layer(h))
        return self.layers[-1](h)

    def augmented(self, image: Array, noise: Array) -> Array:
        """The image as it is seen in training, from `noise_width` uniform numbers without those of dropout."""
        if self.shift > 0:
            around = (self.shift, self.shift)
            down, right = jnp.floor((2 * self.shift + 1) * noise[:2]).astype(jnp.int32)
            padded = jnp.pad(image, (around, around, (0, 0)))
            image = jax.lax.dynamic_slice(padded, (down, right, jnp.zeros((), jnp.int32)), self.shape)
        if self.noise > 0.0:
            image = image + self.noise * ndtri(noise[-image.size :]).reshape(self.shape)
        return image


Features = Raw | Noised | VectorFeatures | ImageFeatures
"""Maps one row's block to features; `noise_width` uniform numbers switch its training noise on, None leaves it off."""


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
        values = [part(v[columns], own) for part, columns, own in self._each(noise)]
        return jnp.concatenate(values) if values else jnp.zeros((0,), v.dtype)

    def noised(self, v: Array, noise: Array) -> Array:
        """The row with the training noise of blocks that are seen as they are."""
        for part, columns, own in self._each(noise):
            if isinstance(part, Noised):
                v = v.at[columns].set(part(v[columns], own))
        return v

    def _each(self, noise: Array | None) -> Iterator[tuple[Features, slice, Array | None]]:
        """Each extractor with its columns and its part of the noise."""
        used = 0
        for part, span in zip(self.parts, self.spans, strict=True):
            yield part, slice(*span), None if noise is None else noise[used : used + part.noise_width]
            used += part.noise_width


def _features(block: CovariateBlock, config: FeatureConfig, key: Array, *, beside_image: bool) -> Features:
    if block.holds_pixels:
        assert block.shape is not None
        height, width, channels = block.shape
        return ImageFeatures((height, width, channels), config.images, key=key)
    if config.is_narrow(block):
        return Noised(block.width, config.vector_noise)
    if block.kind is BlockKind.image:
        hidden, width = config.score_features
        dropout, noise = _SCORE_DROPOUT, config.score_noise
    elif block.kind is BlockKind.vector:
        hidden, width = (config.nuisance_features if beside_image else None) or config.vector_features
        dropout, noise = config.dropout, dict(config.block_noise).get(block.name, config.vector_noise)
    else:
        return Raw(block.width)
    key_hidden, key_output = jax.random.split(key)
    layers = Dense(block.width, hidden, key=key_hidden), Dense(hidden, width, key=key_output)
    return VectorFeatures(*layers, block.width, width, dropout, noise)


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
