"""The networks of the methods that have some, and how they are evaluated on many rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from bgmiv.data.schema import BlockKind, Schema
from bgmiv.errors import ConfigError
from bgmiv.nn.features import BlockFeatures, build_features, rows_at_once
from bgmiv.nn.layers import Dense
from bgmiv.nn.settings import FeatureConfig, ImageConfig
from bgmiv.training import RandomNumbers, bucket_size, pad_rows

__all__ = [
    "DEFAULT_FEATURES", "MAX_ROWS", "CovariateNet", "FeatureNet", "Inputs", "LayerShape", "Moments", "Schedule",
    "check_settings", "descend", "has_wide_block", "in_pieces", "outputs_of", "step_factor",
]  # fmt: skip

DEFAULT_FEATURES = FeatureConfig(
    dropout=0.0, vector_noise=0.3, narrow_vector=32, images=ImageConfig(features="dense", shift=2, noise=0.2)
)
"""What networks see of vector and image blocks under the default presets, after their reduction to scores.

Scores of a vector block are columns, noised in training, which keeps networks from memorising rows; a wider block goes
through its own layers. Images, where they are not reduced, are seen through dense layers instead of convolutions,
shifted by up to 2 pixels and noised in training.
"""

MAX_ROWS = 4096
"""Rows evaluated together, unless convolutions would need too much memory."""
_MIN_ROWS = 64
_VARIANCE_FLOOR = 1e-5

Schedule = Literal["constant", "cosine"]


class CovariateNet(eqx.Module):
    """Dense layers with ReLU and dropout over a side input (treatment or instruments) and the covariates' features."""

    features: BlockFeatures
    layers: tuple[Dense, ...]
    output: Dense
    dropout: float = eqx.field(static=True)

    def __init__(
        self, features: BlockFeatures, n_side: int, hidden: Sequence[int], n_out: int, *, dropout: float, key: Array
    ) -> None:
        widths = (n_side + features.width, *hidden)
        *keys, key_output = jax.random.split(key, len(hidden) + 1)
        self.features = features
        self.layers = tuple(Dense(a, b, key=k) for (a, b), k in zip(pairwise(widths), keys, strict=True))
        self.output = Dense(widths[-1], n_out, key=key_output)
        self.dropout = dropout

    @classmethod
    def build(
        cls,
        schema: Schema,
        features: FeatureConfig,
        n_side: int,
        hidden: Sequence[int],
        n_out: int,
        *,
        dropout: float = 0.0,
        key: Array,
    ) -> Self:
        """A fresh network for a data set."""
        key_features, key_net = jax.random.split(key)
        blocks = build_features(schema.blocks, features, key=key_features)
        return cls(blocks, n_side, hidden, n_out, dropout=dropout, key=key_net)

    @property
    def noise_width(self) -> int:
        """Uniform numbers a row needs in training."""
        dropped = sum(layer.bias.shape[-1] for layer in self.layers) if self.dropout > 0.0 else 0
        return self.features.noise_width + dropped

    def __call__(self, side: Array, v: Array, noise: Array | None) -> Array:
        """Outputs for one row; `noise` switches dropout on."""
        return self.many(side[None], v, noise)[0]

    def many(self, sides: Array, v: Array, noise: Array | None) -> Array:
        """Outputs `(m, n_out)` for several side inputs of one row, all under the same dropout mask.

        Masks of their own would let the average over side inputs average the dropout away as well.
        """
        used = self.features.noise_width
        context = self.features(v, None if noise is None else noise[:used])
        return self.dense(sides, context, None if noise is None else noise[used:])

    def dense(self, sides: Array, context: Array, noise: Array | None) -> Array:
        """Outputs `(m, n_out)` for several side inputs of one row whose features are known."""
        h, used = jnp.concatenate([sides, jnp.broadcast_to(context, (len(sides), len(context)))], axis=1), 0
        for layer in self.layers:
            h = jax.nn.relu(layer(h))
            if noise is not None and self.dropout > 0.0:
                width = h.shape[-1]
                keep = (noise[used : used + width] >= self.dropout) / (1.0 - self.dropout)
                h, used = h * keep, used + width
        return self.output(h)


@dataclass(frozen=True)
class LayerShape:
    """One layer of a feature network: affine map, then batch normalisation and ReLU as asked.

    Args:
        width: number of units.
        normalise: standardise every unit over the rows, with a learned gain and offset.
        rectify: end with a ReLU.
    """

    width: int
    normalise: bool = False
    rectify: bool = True

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ConfigError(f"a layer needs a width of at least 1, got {self.width}.")


class Moments(NamedTuple):
    """Mean and variance of a layer's units over the rows it learned from, `(width,)` each."""

    mean: Array
    variance: Array


class Inputs(NamedTuple):
    """What a network sees of n rows: columns `(n, q)`, covariates `(n, p)`, and `(n,)` ones, zeros in padding."""

    columns: Array
    covariates: Array
    present: Array


class _Layer(eqx.Module):
    kernel: Array
    bias: Array
    gain: Array | None
    offset: Array | None
    rectify: bool = eqx.field(static=True)

    def __init__(self, n_in: int, shape: LayerShape, draws: RandomNumbers) -> None:
        # Uniform within one over the root of n_in, as in the study's networks.
        limit = max(n_in, 1) ** -0.5
        self.kernel = limit * (2.0 * draws.uniform((n_in, shape.width)) - 1.0)
        self.bias = limit * (2.0 * draws.uniform((shape.width,)) - 1.0)
        self.gain = jnp.ones((shape.width,)) if shape.normalise else None
        self.offset = jnp.zeros((shape.width,)) if shape.normalise else None
        self.rectify = shape.rectify


class FeatureNet(eqx.Module):
    """Features of rows: each covariate block through its own extractor, then layers over everything.

    Written for all rows at once, because normalisation is over rows.
    """

    blocks: BlockFeatures
    layers: tuple[_Layer, ...]

    def __init__(self, n_columns: int, blocks: BlockFeatures, shapes: tuple[LayerShape, ...], *, key: Array) -> None:
        widths = (n_columns + blocks.width, *(shape.width for shape in shapes))
        # One call of the generator: compiling one for each kernel takes longer than a small fit.
        draws = RandomNumbers(key, sum((a + 1) * b for a, b in pairwise(widths)))
        self.blocks = blocks
        self.layers = tuple(_Layer(a, shape, draws) for a, shape in zip(widths[:-1], shapes, strict=True))

    def __call__(
        self, rows: Inputs, *, moments: tuple[Moments, ...] | None = None, noise: Array | None = None
    ) -> tuple[Array, tuple[Moments, ...]]:
        """Features `(n, width)`, and the moments that the normalised layers used: the given ones, or those of the rows.

        `noise` holds `(n, noise_width)` uniform numbers, which switch the blocks' training noise on.
        """
        h = jax.vmap(self.blocks, in_axes=(0, None if noise is None else 0))(rows.covariates, noise)
        h = jnp.concatenate([rows.columns, h], axis=1)
        used: list[Moments] = []
        for layer in self.layers:
            h = h @ layer.kernel + layer.bias
            if layer.gain is not None and layer.offset is not None:
                used.append(_moments(h, rows.present) if moments is None else moments[len(used)])
                scale = layer.gain * jax.lax.rsqrt(used[-1].variance + _VARIANCE_FLOOR)
                h = h * scale + (layer.offset - used[-1].mean * scale)
            h = jax.nn.relu(h) if layer.rectify else h
        return h, tuple(used)


def _moments(h: Array, present: Array) -> Moments:
    mean = present @ h / jnp.sum(present)
    return Moments(mean, present @ (h - mean) ** 2 / jnp.sum(present))


def descend(
    loss: Callable[[FeatureNet, Array | None], Array], start: Any, optimiser: Any, count: int, rows: Inputs, key: Array
) -> Any:
    """Network and optimiser state after `count` updates from `start`, and the loss before the last."""
    shape = (len(rows.present), start[0].blocks.noise_width)
    size = shape[0] * shape[1]
    # Random numbers of its own for every update would cost more than its matrix products: one block serves an epoch,
    # and each update deals it out to rows and columns by another random shift.
    draws = RandomNumbers(key, size + count)
    block, shifts = draws.uniform((size,)), draws.index((count,), jnp.asarray(max(size, 1)))

    def update(i: Array, carry: tuple[FeatureNet, Any, Array]) -> tuple[FeatureNet, Any, Array]:
        net, state, _ = carry
        shifted = jnp.roll(block, shifts[i]).reshape(shape) if size else None
        value, grads = jax.value_and_grad(loss)(net, shifted)
        updates, state = optimiser.update(grads, state, net)
        return optax.apply_updates(net, updates), state, value

    return jax.lax.fori_loop(0, count, update, (*start, jnp.zeros(())))


def check_settings(config: object, minima: Mapping[str, float], schedule: str = "constant") -> None:
    """Refuse an unknown schedule, and settings that are not finite or below their minimum."""
    if schedule not in ("constant", "cosine"):
        raise ConfigError(f"schedule is 'constant' or 'cosine', got {schedule!r}.")
    for name, minimum in minima.items():
        if not minimum <= getattr(config, name) < float("inf"):
            raise ConfigError(f"{name} must be finite and at least {minimum}, got {getattr(config, name)}.")


def step_factor(schedule: Schedule, done: Array, total: int) -> Array:
    """The factor on the step size after `done` of `total` epochs or rounds."""
    return jnp.ones(()) if schedule == "constant" else 0.5 * (1.0 + jnp.cos(jnp.pi * done / total))


def has_wide_block(schema: Schema) -> bool:
    """Whether there is a vector or image block."""
    return any(block.kind in (BlockKind.vector, BlockKind.image) for block in schema.blocks)


def in_pieces(function: Callable[..., Array], arrays: Sequence[np.ndarray], cells: int = 0) -> np.ndarray:
    """A compiled function of rows, in pieces padded so that memory is bounded and similar sizes share a compilation.

    `cells` are the numbers in the largest array that one row needs.
    """
    n, max_rows = len(arrays[0]), rows_at_once(cells, MAX_ROWS)
    size = max(min(_MIN_ROWS, max_rows), bucket_size(min(n, max_rows)))
    parts = []
    for start in range(0, n, size):
        piece = (jax.device_put(pad_rows(values[start : start + size], size)) for values in arrays)
        parts.append(np.asarray(function(*piece))[: n - start])
    return np.concatenate(parts)


def outputs_of(net: CovariateNet, sides: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The outputs `(n, n_out)` of a network for each row."""
    return in_pieces(partial(_outputs, net), [sides, v], net.features.cells)


@jax.jit
def _outputs(net: CovariateNet, sides: Array, v: Array) -> Array:
    return jax.vmap(net, in_axes=(0, 0, None))(sides, v, None)
