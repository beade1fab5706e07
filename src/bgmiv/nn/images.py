"""Images: convolutions for one image of shape (height, width, channels), and feature extractors made of them.

Convolutions are written as matrix products. Members of an ensemble have weights of their own. Under `vmap` over weights
XLA's convolution becomes a grouped one, whose gradient takes eight times as long on a CPU as that of the same products
(four members, 64 filters); for a single member it would be a quarter faster.
"""

from __future__ import annotations

from math import prod

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import ndtri

from bgmiv.nn.mlp import Dense, draw_kernel, zero_bias
from bgmiv.nn.settings import ImageConfig

__all__ = [
    "Conv", "ConvExtractor", "DenseExtractor", "ImageFeatures", "Shape", "TransposedConv",
    "max_pool",
]  # fmt: skip

Shape = tuple[int, int, int]
"""Height, width and channels."""

_SIDE = 3


def _glorot(n_in: int, n_out: int, key: Array) -> Array:
    """A Glorot-uniform kernel `(3, 3, n_in, n_out)`, as a dense layer between whole receptive fields would draw it."""
    limit = (6.0 / (_SIDE**2 * (n_in + n_out))) ** 0.5
    return draw_kernel(key, (_SIDE, _SIDE, n_in, n_out), limit)


class Conv(eqx.Module):
    """A 3x3 convolution that keeps height and width; beyond its edges an image is zero."""

    kernel: Array
    bias: Array

    def __init__(self, n_in: int, n_out: int, *, key: Array) -> None:
        """Draw the kernel of shape `(3, 3, n_in, n_out)`."""
        self.kernel = _glorot(n_in, n_out, key)
        self.bias = zero_bias(n_out)

    def __call__(self, image: Array) -> Array:
        """Map one image."""
        height, width, channels = image.shape
        padded = jnp.pad(image, ((1, 1), (1, 1), (0, 0)))
        patches = [padded[i : i + height, j : j + width] for i in range(_SIDE) for j in range(_SIDE)]
        return jnp.concatenate(patches, axis=-1) @ self.kernel.reshape(_SIDE**2 * channels, -1) + self.bias


class TransposedConv(eqx.Module):
    r"""A transposed 3x3 convolution of stride 2, which doubles height and width.

    Every pixel is spread over the 3x3 pixels from twice its place on: $y_{2i+a,\,2j+b} \mathrel{+}= x_{ij} k_{ab}$;
    what falls beyond the last row and column is dropped.
    """

    kernel: Array
    bias: Array

    def __init__(self, n_in: int, n_out: int, *, key: Array) -> None:
        """Draw the kernel of shape `(3, 3, n_in, n_out)`."""
        self.kernel = _glorot(n_in, n_out, key)
        self.bias = zero_bias(n_out)

    def __call__(self, image: Array) -> Array:
        """Map one image."""
        height, width, channels = image.shape
        weights = jnp.moveaxis(self.kernel, 2, 0).reshape(channels, -1)
        spread = (image @ weights).reshape(height, width, _SIDE, _SIDE, -1)
        rows = _interleave(spread[:, :, 0], spread[:, :, 1], spread[:, :, 2], axis=0)
        return _interleave(rows[:, :, 0], rows[:, :, 1], rows[:, :, 2], axis=1) + self.bias


def _interleave(first: Array, second: Array, third: Array, axis: int) -> Array:
    """Lines 2i of `first`, and of `third` one pixel on, and lines 2i + 1 of `second`."""
    before = [(1, 0) if i == axis else (0, 0) for i in range(third.ndim)]
    size = third.shape[axis]
    moved = jax.lax.slice_in_dim(jnp.pad(third, before), 0, size, axis=axis)
    lines = jnp.stack([first + moved, second], axis=axis + 1)
    return lines.reshape(*first.shape[:axis], 2 * size, *first.shape[axis + 1 :])


def max_pool(image: Array) -> Array:
    """The largest of every 2x2 pixels; the last line of an odd number stands for itself."""
    height, width, channels = image.shape
    even = jnp.pad(image, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    # Maxima of slices: the gradient of a windowed reduction takes forty times as long on a CPU.
    pairs = even.reshape(-(-height // 2), 2, -1, channels)
    rows = jnp.maximum(pairs[:, 0], pairs[:, 1])
    pairs = rows.reshape(len(rows), -(-width // 2), 2, channels)
    return jnp.maximum(pairs[:, :, 0], pairs[:, :, 1])


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
