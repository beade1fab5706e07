"""Convolutions for one image of shape (height, width, channels), written as matrix products.

Members of an ensemble have weights of their own. Under `vmap` over weights XLA's convolution becomes a grouped one,
whose gradient takes eight times as long on a CPU as that of the same products (four members, 64 filters); for a single
member it would be a quarter faster.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

__all__ = ["Conv", "TransposedConv", "max_pool"]

_SIDE = 3


def _glorot(n_in: int, n_out: int, key: Array) -> Array:
    """A Glorot-uniform kernel `(3, 3, n_in, n_out)`, as a dense layer between whole receptive fields would draw it."""
    limit = (6.0 / (_SIDE**2 * (n_in + n_out))) ** 0.5
    return jax.random.uniform(key, (_SIDE, _SIDE, n_in, n_out), minval=-limit, maxval=limit)


class Conv(eqx.Module):
    """A 3x3 convolution that keeps height and width; beyond its edges an image is zero.

    Args:
        n_in, n_out: channels.

    Example:
        >>> Conv(2, 5, key=jax.random.key(0))(jnp.ones((4, 3, 2))).shape
        (4, 3, 5)
    """

    kernel: Array
    bias: Array

    def __init__(self, n_in: int, n_out: int, *, key: Array) -> None:
        """Draw the kernel of shape `(3, 3, n_in, n_out)`."""
        self.kernel = _glorot(n_in, n_out, key)
        self.bias = jnp.zeros((n_out,))

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

    Args:
        n_in, n_out: channels.

    Example:
        >>> TransposedConv(2, 5, key=jax.random.key(0))(jnp.ones((4, 3, 2))).shape
        (8, 6, 5)
    """

    kernel: Array
    bias: Array

    def __init__(self, n_in: int, n_out: int, *, key: Array) -> None:
        """Draw the kernel of shape `(3, 3, n_in, n_out)`."""
        self.kernel = _glorot(n_in, n_out, key)
        self.bias = jnp.zeros((n_out,))

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
    """The largest of every 2x2 pixels; the last line of an odd number stands for itself.

    Example:
        >>> max_pool(jnp.arange(6.0).reshape(2, 3, 1))[..., 0].tolist()
        [[4.0, 5.0]]
    """
    height, width, channels = image.shape
    even = jnp.pad(image, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    # Maxima of slices: the gradient of a windowed reduction takes forty times as long on a CPU.
    pairs = even.reshape(-(-height // 2), 2, -1, channels)
    rows = jnp.maximum(pairs[:, 0], pairs[:, 1])
    pairs = rows.reshape(len(rows), -(-width // 2), 2, channels)
    return jnp.maximum(pairs[:, :, 0], pairs[:, :, 1])
