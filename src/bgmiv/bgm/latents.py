r"""Latents: how they follow from covariates alone, the structural function at them, and Adam on a table of them.

The encoder, the test-time MAP that starts from it (eq. test_time_map) and the posterior p(z | v) see neither the
instrument, the outcome nor the observed treatment.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from bgmiv.bgm.model import BGMIVModel, covariate_log_posterior, encode_rows
from bgmiv.bgm.settings import LatentMap
from bgmiv.data.scaling import unique_rows
from bgmiv.nn.layers import DECAY_1, DECAY_2, EPSILON, adam
from bgmiv.training import bucket_size, pad_rows

__all__ = [
    "LatentAdamState",
    "infer_latents",
    "init_latents",
    "latents_of",
    "padded_size",
    "step_latents",
    "structural_averages",
    "structural_means",
]

_MAX_CHAINS = 32
_MAX_ROWS = 4096
_MIN_ROWS = 64


@partial(jax.jit, static_argnames="config")
def infer_latents(model: BGMIVModel, v: Array, config: LatentMap) -> Array:
    """MAP latents of many rows under log p(z) + log p(v | z), started at the encoder."""
    z = encode_rows(model, v)
    if config.steps == 0:
        return z
    optimiser = adam(config.learning_rate)

    def loss(z: Array) -> Array:
        return -jnp.sum(jax.vmap(covariate_log_posterior, in_axes=(None, 0, 0))(model, v, z))

    def body(_: Array, carry: tuple[Array, optax.OptState]) -> tuple[Array, optax.OptState]:
        z, state = carry
        updates, state = optimiser.update(jax.grad(loss)(z), state)
        return optax.apply_updates(z, updates), state

    z, _ = jax.lax.fori_loop(0, config.steps, body, (z, optimiser.init(z)))
    return z


def padded_size(n: int, max_rows: int = _MAX_ROWS) -> int:
    """The size of the blocks in which n rows are computed, so that similar numbers of rows share a compiled program."""
    return max(min(_MIN_ROWS, max_rows), bucket_size(min(n, max_rows)))


def latents_of(model: BGMIVModel, v: np.ndarray, config: LatentMap) -> np.ndarray:
    """Latents of scaled covariate rows, `(n, d)`; equal rows are computed once."""
    unique, inverse = unique_rows(v)
    size = padded_size(len(unique), model.covariates.rows_at_once(_MAX_ROWS))
    parts = []
    for start in range(0, len(unique), size):
        some = unique[start : start + size]
        parts.append(np.asarray(infer_latents(model, jax.device_put(pad_rows(some, size)), config))[: len(some)])
    return np.concatenate(parts)[inverse]


@jax.jit
def _means(model: BGMIVModel, x: Array, z: Array) -> Array:
    return jax.vmap(model.structural_mean)(x, z)


def structural_means(model: BGMIVModel, x: np.ndarray, z: np.ndarray, size: int | None = None) -> np.ndarray:
    r"""$\mu_\omega(x, z_0, z_1)$ on the scaled outcome (eq. structural_prediction), in blocks of `size` points.

    From scaled treatments `(n,)` and latents `(n, d)`: `(n,)`, or the probabilities `(n, K)` of K levels.
    """
    size = size or padded_size(len(x))
    parts = []
    for start in range(0, len(x), size):
        some = [jax.device_put(pad_rows(values[start : start + size], size)) for values in (x, z)]
        parts.append(np.asarray(_means(model, *some))[: len(x) - start])
    return np.concatenate(parts)


def structural_averages(model: BGMIVModel, x: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """`structural_means` averaged over draws `(n, k, d)` of each point's latents."""
    n, k, d = draws.shape
    values = structural_means(model, np.repeat(x, k), draws.reshape(n * k, d))
    return values.reshape(n, k, *values.shape[1:]).mean(axis=1)


class LatentAdamState(NamedTuple):
    """Latents `(n, d)`, their first and second moments, and each row's number of updates `(n,)`."""

    z: Array
    first: Array
    second: Array
    updates: Array


def init_latents(z: Array) -> LatentAdamState:
    """Zero moments beside the latents."""
    return LatentAdamState(z, jnp.zeros_like(z), jnp.zeros_like(z), jnp.zeros(len(z), jnp.int32))


def step_latents(
    state: LatentAdamState, rows: Array, gradient: Array, learning_rate: float, *, dense: bool
) -> LatentAdamState:
    """One Adam step (0.9, 0.99) down `gradient`, `(len(rows), d)`, of the distinct `rows` of a batch.

    With `dense` the other rows take part with a zero gradient, so that their momentum goes on moving them; otherwise
    they are left alone, moments and all.
    """
    if dense:
        first = (DECAY_1 * state.first).at[rows].add((1.0 - DECAY_1) * gradient)
        second = (DECAY_2 * state.second).at[rows].add((1.0 - DECAY_2) * gradient**2)
        count = state.updates + 1
        return LatentAdamState(state.z - _step(first, second, count, learning_rate), first, second, count)
    first = DECAY_1 * state.first[rows] + (1.0 - DECAY_1) * gradient
    second = DECAY_2 * state.second[rows] + (1.0 - DECAY_2) * gradient**2
    count = state.updates[rows] + 1
    return LatentAdamState(
        state.z.at[rows].add(-_step(first, second, count, learning_rate)),
        state.first.at[rows].set(first),
        state.second.at[rows].set(second),
        state.updates.at[rows].set(count),
    )


def _step(first: Array, second: Array, count: Array, learning_rate: float) -> Array:
    t = count[:, None].astype(first.dtype)
    unbiased_first = first / (1.0 - DECAY_1**t)
    unbiased_second = second / (1.0 - DECAY_2**t)
    return learning_rate * unbiased_first / (jnp.sqrt(unbiased_second) + EPSILON)
