from __future__ import annotations

from functools import partial

import jax
import numpy as np
import optax
import pytest

from bgmiv.train.latent_adam import LatentAdamState, init_latents, step_latents

N, D, RATE = 6, 3, 0.05
BATCHES = [np.asarray(rows) for rows in ([0, 3], [1, 5], [3, 1], [4, 0])]


@partial(jax.jit, static_argnames="dense")
def step(state: LatentAdamState, rows: np.ndarray, gradient: np.ndarray, dense: bool) -> LatentAdamState:
    return step_latents(state, rows, gradient, RATE, dense=dense)


@pytest.fixture(scope="module")
def latents() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)


@pytest.fixture(scope="module")
def gradients() -> list[np.ndarray]:
    return list(np.random.default_rng(1).normal(size=(len(BATCHES), 2, D)).astype(np.float32))


def test_dense_is_adam_on_the_whole_table(latents: np.ndarray, gradients: list[np.ndarray]) -> None:
    optimiser = optax.adam(RATE, b1=0.9, b2=0.99, eps=1e-7)
    state, z, adam = init_latents(latents), latents, optimiser.init(latents)
    update = jax.jit(optimiser.update)
    for rows, gradient in zip(BATCHES, gradients, strict=True):
        state = step(state, rows, gradient, True)
        table = np.zeros((N, D), np.float32)
        table[rows] = gradient
        change, adam = update(table, adam)
        z = z + np.asarray(change)
        np.testing.assert_allclose(state.z, z, rtol=0, atol=1e-6)
    # Row 2 never had a gradient; row 3's momentum goes on after its last batch.
    np.testing.assert_array_equal(state.z[2], latents[2])


def test_dense_momentum_moves_rows_outside_the_batch(latents: np.ndarray, gradients: list[np.ndarray]) -> None:
    first = step(init_latents(latents), BATCHES[0], gradients[0], True)
    second = step(first, BATCHES[1], gradients[1], True)
    moved = np.any(np.asarray(second.z) != np.asarray(first.z), axis=1)
    np.testing.assert_array_equal(moved, [True, True, False, True, False, True])


def test_rows_leaves_all_others_untouched(latents: np.ndarray, gradients: list[np.ndarray]) -> None:
    state = init_latents(latents)
    for rows, gradient in zip(BATCHES, gradients, strict=True):
        after = step(state, rows, gradient, False)
        others = np.setdiff1d(np.arange(N), rows)
        for old, new in zip(state, after, strict=True):
            np.testing.assert_array_equal(np.asarray(new)[others], np.asarray(old)[others])
        assert np.all(np.asarray(after.z)[rows] != np.asarray(state.z)[rows])
        state = after
    np.testing.assert_array_equal(state.updates, [2, 2, 0, 2, 1, 1])


def test_rows_is_an_adam_of_its_own_for_every_row(latents: np.ndarray, gradients: list[np.ndarray]) -> None:
    state = init_latents(latents)
    for rows, gradient in zip(BATCHES, gradients, strict=True):
        state = step(state, rows, gradient, False)
    optimiser = optax.adam(RATE, b1=0.9, b2=0.99, eps=1e-7)
    update = jax.jit(optimiser.update)
    for row in range(N):
        z, adam = latents[row], optimiser.init(latents[row])
        for rows, gradient in zip(BATCHES, gradients, strict=True):
            if row in rows:
                change, adam = update(gradient[list(rows).index(row)], adam)
                z = z + np.asarray(change)
        np.testing.assert_allclose(state.z[row], z, rtol=0, atol=1e-6)


def test_both_rules_agree_on_a_batch_of_all_rows(latents: np.ndarray) -> None:
    gradient = np.random.default_rng(2).normal(size=(N, D)).astype(np.float32)
    rows = np.asarray([5, 0, 2, 1, 4, 3])
    dense, own = init_latents(latents), init_latents(latents)
    for _ in range(3):
        dense, own = step(dense, rows, gradient, True), step(own, rows, gradient, False)
    np.testing.assert_allclose(dense.z, own.z, rtol=0, atol=1e-6)
