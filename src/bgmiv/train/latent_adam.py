"""Adam on the table of latent states, of which each step sees only a batch of rows."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from bgmiv.nn.adam import DECAY_1, DECAY_2, EPSILON

__all__ = ["LatentAdamState", "init_latents", "step_latents"]


class LatentAdamState(NamedTuple):
    """Latents `(n, d)`, their first and second moments, and each row's number of updates `(n,)`."""

    z: Array
    first: Array
    second: Array
    updates: Array


def init_latents(z: Array) -> LatentAdamState:
    """Zero moments beside the latents.

    Example:
        >>> init_latents(jnp.ones((3, 2))).updates.tolist()
        [0, 0, 0]
    """
    return LatentAdamState(z, jnp.zeros_like(z), jnp.zeros_like(z), jnp.zeros(len(z), jnp.int32))


def step_latents(
    state: LatentAdamState, rows: Array, gradient: Array, learning_rate: float, *, dense: bool
) -> LatentAdamState:
    """One Adam step (0.9, 0.99) down `gradient`, which belongs to `rows`.

    Args:
        state: the table.
        rows: distinct row numbers of the batch.
        gradient: their gradients, `(len(rows), d)`.
        learning_rate: Adam's step size.
        dense: the other rows take part with a zero gradient, so that their momentum goes on moving them; otherwise
            they are left alone, moments and all.

    Example:
        >>> state = step_latents(init_latents(jnp.zeros((2, 1))), jnp.asarray([1]), jnp.ones((1, 1)), 0.1, dense=False)
        >>> [round(float(value), 3) for value in state.z[:, 0]]
        [0.0, -0.1]
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
