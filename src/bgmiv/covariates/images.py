"""Images: their settings, what a network sees of them, and how they are generated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from math import prod
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import ndtri

from bgmiv.data.schema import CovariateBlock
from bgmiv.errors import ConfigError
from bgmiv.likelihood import Bernoulli, Gaussian
from bgmiv.nn import MLP, Conv, Dense, TransposedConv, leaky_relu, max_pool

__all__ = [
    "ConvDecoder",
    "ConvExtractor",
    "DenseExtractor",
    "ImageConfig",
    "ImageDecoder",
    "ImageFeatures",
    "build_image_decoder",
    "build_image_features",
    "image_head",
    "rows_at_once",
]

Shape = tuple[int, int, int]

# Of numbers in one array: 128 MB.
_MOST_CELLS = 1 << 25


@dataclass(frozen=True)
class ImageConfig:
    """How image blocks are seen and generated; the defaults are the paper's.

    Args:
        features: "conv", the paper's two convolutions, or "dense", layers on the flat pixels.
        decoder: "conv", the paper's transposed convolutions, or "dense", layers to the flat pixels.
        filters: filters of the two convolutions.
        conv_features: widths of the dense layers behind them.
        dense_features: widths of the dense layers on flat pixels.
        decoder_filters: channels of the decoder's first map, and after each doubling of its sides.
        dense_decoder_hidden: hidden units of the decoder to flat pixels.
        dropout: share of pooled values dropped in training, before the dense layers of the convolutions.
        likelihood: "bernoulli", the cross-entropy of pixels between 0 and 1, or "gaussian", with one variance a row.
        weight: factor of the block's log-likelihood.
        shift: in training an image is moved by up to this many pixels either way, in both directions; what comes in
            from outside is zero.
        noise: deviation of the Gaussian noise added to pixels in training.
    """

    features: Literal["conv", "dense"] = "conv"
    decoder: Literal["conv", "dense"] = "conv"
    filters: tuple[int, int] = (64, 64)
    conv_features: tuple[int, ...] = (128, 64)
    dense_features: tuple[int, ...] = (512, 128, 64)
    decoder_filters: tuple[int, int, int] = (128, 64, 32)
    dense_decoder_hidden: tuple[int, ...] = (128, 512)
    dropout: float = 0.1
    likelihood: Literal["bernoulli", "gaussian"] = "bernoulli"
    weight: float = 1.0
    shift: int = 0
    noise: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        for name, known in (
            ("features", ("conv", "dense")),
            ("decoder", ("conv", "dense")),
            ("likelihood", ("bernoulli", "gaussian")),
        ):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} of images is '{known[0]}' or '{known[1]}', got {getattr(self, name)!r}.")
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"dropout of images must lie in [0, 1), got {self.dropout}.")
        if isinstance(self.shift, bool) or not isinstance(self.shift, int) or self.shift < 0:
            raise ConfigError(f"shift of images must be a whole number of pixels, 0 or more, got {self.shift!r}.")
        if self.noise < 0.0 or self.weight <= 0.0:
            raise ConfigError(
                f"noise of images must be at least 0 and their weight above 0, got {self.noise} and {self.weight}."
            )
        for field in fields(self):
            widths = getattr(self, field.name)
            if isinstance(widths, tuple) and (not widths or any(width < 1 for width in widths)):
                raise ConfigError(f"{field.name} of images must hold positive widths, got {widths}.")
        for name, count in (("filters", 2), ("decoder_filters", 3)):
            if len(getattr(self, name)) != count:
                raise ConfigError(f"{name} of images must hold {count} numbers, got {getattr(self, name)}.")


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
    """An extractor on the image, which is shifted and noised in training.

    Args:
        extractor: maps an image to features.
        shape: height, width and channels.
        shift, noise: as in `ImageConfig`.

    Example:
        >>> from bgmiv.data.schema import BlockKind
        >>> block = CovariateBlock("photo", BlockKind.image, ("p",), 0, 30, shape=(5, 3, 2))
        >>> features = build_image_features(block, ImageConfig(shift=1), key=jax.random.key(0))
        >>> features(jnp.ones(30), None).shape
        (64,)
    """

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


class ConvDecoder(eqx.Module):
    """From latents to a map of a quarter of the sides, doubled twice, refined, and cropped to the image.

    Args:
        latent_dim: latents.
        shape: height, width and channels of the image.
        filters: channels of the first map, and after each doubling.
    """

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
        self.doublings = (TransposedConv(first, second, key=keys[1]), TransposedConv(second, third, key=keys[2]))
        self.refinement = Conv(third, third, key=keys[3])
        self.output = Conv(third, shape[2], key=keys[4])
        self.shape = shape

    def __call__(self, z: Array) -> Array:
        """The flat logits of the pixels."""
        height, width, _ = self.shape
        h = leaky_relu(self.project(z)).reshape(-(-height // 4), -(-width // 4), -1)
        for doubling in self.doublings:
            h = leaky_relu(doubling(h))
        h = leaky_relu(self.refinement(h[:height, :width]))
        return self.output(h).ravel()


class ImageDecoder(eqx.Module):
    """Raw parameters of an image's distribution: logits, or with a `spread` the means and one raw variance."""

    net: ConvDecoder | MLP
    spread: Dense | None

    def __call__(self, z: Array) -> Array:
        """All raw parameters."""
        return self.leading(z) if self.spread is None else jnp.concatenate([self.leading(z), self.spread(z)])

    @property
    def cells(self) -> int:
        """Numbers in the largest array on the way: the patches of the refinement."""
        if isinstance(self.net, MLP):
            return 0
        return prod(self.net.shape[:2]) * prod(self.net.refinement.kernel.shape[-4:-1])

    def leading(self, z: Array) -> Array:
        """Those of the pixels alone."""
        logits = self.net(z)
        return logits if self.spread is None else jax.nn.sigmoid(logits)


def _shape_of(block: CovariateBlock) -> Shape:
    assert block.shape is not None
    height, width, channels = block.shape
    return height, width, channels


def build_image_features(block: CovariateBlock, config: ImageConfig, *, key: Array) -> ImageFeatures:
    """What a network sees of an image block."""
    shape = _shape_of(block)
    extractor = ConvExtractor if config.features == "conv" else DenseExtractor
    return ImageFeatures(extractor(shape, config, key=key), shape, config.shift, config.noise)


def image_head(block: CovariateBlock, config: ImageConfig) -> Bernoulli | Gaussian:
    """The distribution of an image's pixels."""
    return Bernoulli(block.width) if config.likelihood == "bernoulli" else Gaussian(block.width, shared_variance=True)


def build_image_decoder(block: CovariateBlock, latent_dim: int, config: ImageConfig, *, key: Array) -> ImageDecoder:
    """The generator of an image block."""
    key_net, key_spread = jax.random.split(key)
    net: ConvDecoder | MLP
    if config.decoder == "conv":
        net = ConvDecoder(latent_dim, _shape_of(block), config.decoder_filters, key=key_net)
    else:
        net = MLP(latent_dim, config.dense_decoder_hidden, block.width, key=key_net)
    return ImageDecoder(net, Dense(latent_dim, 1, key=key_spread) if config.likelihood == "gaussian" else None)


def rows_at_once(parts: Iterable[Any], most: int) -> int:
    """How many rows may be evaluated together: `most`, or fewer where convolutions would need too much memory.

    Args:
        parts: features or decoders of all blocks.
        most: the answer without convolutions.

    Example:
        >>> rows_at_once((), 4096)
        4096
    """
    cells = max((part.cells for part in parts if isinstance(part, ImageFeatures | ImageDecoder)), default=0)
    # A power of two, so that similar sizes share a compilation.
    return min(most, 1 << max(_MOST_CELLS // max(cells, 1), 1).bit_length() - 1)
