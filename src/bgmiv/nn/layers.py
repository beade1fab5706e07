"""Layers for one row: dense ones, multi-layer perceptrons, and convolutions of one image (height, width, channels).

Convolutions are written as matrix products. Members of an ensemble have weights of their own. Under `vmap` over weights
XLA's convolution becomes a grouped one, whose gradient takes eight times as long on a CPU as that of the same products
(four members, 64 filters); for a single member it would be a quarter faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.flatten_util import ravel_pytree

__all__ = [
    "DECAY_1",
    "DECAY_2",
    "EPSILON",
    "MLP",
    "Conv",
    "Dense",
    "TransposedConv",
    "adam",
    "draw_kernel",
    "leaky_relu",
    "max_pool",
    "zero_bias",
]

_SIDE = 3


def leaky_relu(x: Array) -> Array:
    """LeakyReLU with the paper's slope of 0.2."""
    return jax.nn.leaky_relu(x, negative_slope=0.2)


def draw_kernel(key: Array, shape: tuple[int, ...], limit: float) -> Array:
    """Uniform numbers between -limit and limit.

    The first numbers of a longer draw are those of a shorter one. Lengths are rounded up to a power of two, 4096 at
    least, so that nearly all layers share one compiled program: one for all layers of a model takes seconds to compile.
    """
    size = prod(shape)
    numbers = _uniform(key, 1 << max(size - 1, 4095).bit_length())
    # Outside a compiled program NumPy cuts and scales: JAX would compile that for every shape.
    if isinstance(numbers, jax.core.Tracer):
        return limit * numbers[:size].reshape(shape)
    return jax.device_put(np.float32(limit) * np.asarray(numbers)[:size].reshape(shape))


@partial(jax.jit, static_argnames=("size",))
def _uniform(key: Array, size: int) -> Array:
    # Scaled after the draw, which is exact: the compiler could round a draw between other limits in two ways.
    return jax.random.uniform(key, (size,), minval=-1.0, maxval=1.0)


def zero_bias(n: int) -> Array:
    """A bias of zeros, made without a program of its own."""
    return jax.device_put(np.zeros(n, np.float32))


class Dense(eqx.Module):
    """An affine map `x @ kernel + bias` with Glorot-uniform kernel and zero bias."""

    kernel: Array
    bias: Array

    def __init__(self, n_in: int, n_out: int, *, key: Array) -> None:
        """Draw the kernel of shape `(n_in, n_out)`."""
        self.kernel = draw_kernel(key, (n_in, n_out), (6.0 / max(n_in + n_out, 1)) ** 0.5)
        self.bias = zero_bias(n_out)

    def __call__(self, x: Array) -> Array:
        """Map one row of width `n_in`."""
        return x @ self.kernel + self.bias


class MLP(eqx.Module):
    """Dense layers with an activation between them and a linear end.

    `first_context` and `from_context` let a caller compute the part of the first layer that does not change
    between evaluations (the latents, for the many treatment nodes of one row) only once.
    """

    layers: tuple[Dense, ...]
    outputs: tuple[Dense, ...]
    activation: Callable[[Array], Array] = eqx.field(static=True)

    def __init__(
        self,
        n_in: int,
        hidden: Sequence[int],
        n_out: int | tuple[int, ...],
        *,
        key: Array,
        activation: Callable[[Array], Array] = leaky_relu,
    ) -> None:
        """Build layers of widths `n_in -> hidden -> n_out`; several `n_out` are separate heads, concatenated.

        Separate heads let the compiler drop the ones a caller does not use.
        """
        heads = (n_out,) if isinstance(n_out, int) else n_out
        widths = (n_in, *hidden)
        keys = jax.random.split(key, len(hidden) + len(heads))
        self.layers = tuple(Dense(a, b, key=k) for (a, b), k in zip(pairwise(widths), keys, strict=False))
        self.outputs = tuple(Dense(widths[-1], n, key=k) for n, k in zip(heads, keys[len(hidden) :], strict=True))
        self.activation = activation

    def __call__(self, x: Array) -> Array:
        """Map one row."""
        return self._heads(self._hidden(x))

    def leading(self, x: Array) -> Array:
        """Map one row to the first head alone."""
        return self.outputs[0](self._hidden(x))

    def first_context(self, left: Array) -> Array:
        """The first layer's preactivation from the leading inputs alone (bias included)."""
        kernel, bias = self._first()
        return left @ kernel[: left.shape[-1]] + bias

    def from_context(self, context: Array, right: Array) -> Array:
        """Finish a pass begun by `first_context` with the remaining inputs."""
        kernel = self._first()[0][-right.shape[-1] :]
        # A single remaining input is an outer product: broadcasting beats a matrix product with inner width one.
        added = right * kernel[0] if right.shape[-1] == 1 else right @ kernel
        preactivation = context + added
        return self._heads(self._hidden_after_first(preactivation)) if self.layers else preactivation

    def _first(self) -> tuple[Array, Array]:
        """Kernel and bias of the layer that meets the inputs: without hidden layers, the heads side by side."""
        first = self.layers[:1] or self.outputs
        return jnp.concatenate([d.kernel for d in first], axis=1), jnp.concatenate([d.bias for d in first])

    def _hidden(self, x: Array) -> Array:
        return self._hidden_after_first(self.layers[0](x)) if self.layers else x

    def _hidden_after_first(self, preactivation: Array) -> Array:
        h = self.activation(preactivation)
        for layer in self.layers[1:]:
            h = self.activation(layer(h))
        return h

    def _heads(self, h: Array) -> Array:
        return jnp.concatenate([layer(h) for layer in self.outputs])


class _Kernel(eqx.Module):
    """The weights of a 3x3 convolution, drawn as a dense layer between whole receptive fields would draw them."""

    kernel: Array
    bias: Array

    @classmethod
    def drawn(cls, n_in: int, n_out: int, *, key: Array) -> Self:
        """With a Glorot-uniform kernel of shape `(3, 3, n_in, n_out)`."""
        limit = (6.0 / (_SIDE**2 * (n_in + n_out))) ** 0.5
        return cls(draw_kernel(key, (_SIDE, _SIDE, n_in, n_out), limit), zero_bias(n_out))


class Conv(_Kernel):
    """A 3x3 convolution that keeps height and width; beyond its edges an image is zero."""

    def __call__(self, image: Array) -> Array:
        """Map one image."""
        height, width, channels = image.shape
        padded = jnp.pad(image, ((1, 1), (1, 1), (0, 0)))
        patches = [padded[i : i + height, j : j + width] for i in range(_SIDE) for j in range(_SIDE)]
        return jnp.concatenate(patches, axis=-1) @ self.kernel.reshape(_SIDE**2 * channels, -1) + self.bias


class TransposedConv(_Kernel):
    r"""A transposed 3x3 convolution of stride 2, which doubles height and width.

    Every pixel is spread over the 3x3 pixels from twice its place on: $y_{2i+a,\,2j+b} \mathrel{+}= x_{ij} k_{ab}$;
    what falls beyond the last row and column is dropped.
    """

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
    height, width, _ = image.shape
    even = jnp.pad(image, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    # Maxima of slices: the gradient of a windowed reduction takes forty times as long on a CPU.
    rows = jnp.maximum(even[::2], even[1::2])
    return jnp.maximum(rows[:, ::2], rows[:, 1::2])


DECAY_1, DECAY_2, EPSILON = 0.9, 0.99, 1e-7


def adam(
    learning_rate: float | optax.Schedule, *, weight_decay: float = 0.0, decayed: Callable[[Any], Any] | None = None
) -> optax.GradientTransformation:
    """Adam with the decays of the paper's appendix B and the epsilon of the authors' framework.

    A `weight_decay` above zero also shrinks parameters by this share of the step size (AdamW): those for which the
    tree that `decayed` makes of the parameters is true, or all.
    """
    moments = optax.scale_by_adam(b1=DECAY_1, b2=DECAY_2, eps=EPSILON)

    # One vector of all parameters is a smaller program than an array for each. `optax.flatten` does not take a network
    # without parameters.
    def init(parameters: optax.Params) -> optax.OptState:
        return moments.init(ravel_pytree(parameters)[0])

    def update(gradients: optax.Updates, state: optax.OptState, _: Any = None) -> tuple[optax.Updates, optax.OptState]:
        flat, unflatten = ravel_pytree(gradients)
        flat, state = moments.update(flat, state)
        return unflatten(flat), state

    steps = [optax.GradientTransformation(init, update)]
    if weight_decay > 0.0:
        steps.append(optax.add_decayed_weights(weight_decay, decayed))
    return optax.chain(*steps, optax.scale_by_learning_rate(learning_rate))
