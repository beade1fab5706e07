"""Latents from covariates alone (eq. test_time_map), the structural function at them, and Adam on a table of them."""

from __future__ import annotations

import inspect
from functools import partial

import equinox as eqx
import jax
import numpy as np
import optax
import pytest

from bgmiv.bgm.alternating import LatentAdamState, init_latents, step_latents
from bgmiv.bgm.config import CovariateConfig, LatentMap
from bgmiv.bgm.covariates import build_covariates
from bgmiv.bgm.latents import latents_of, structural_means
from bgmiv.bgm.model import BGMIVModel, covariate_log_posterior

MAP = LatentMap(steps=60, learning_rate=0.01)
# Rows land in other places of a padded block; vectorised sums then round differently, and Adam's steps keep that.
CLOSE = {"rtol": 0.0, "atol": 2e-5}


@jax.jit
def log_posterior(model: BGMIVModel, v: np.ndarray, z: np.ndarray) -> jax.Array:
    return jax.vmap(covariate_log_posterior, (None, 0, 0))(model, v, z)


def test_no_steps_is_the_encoder(model: BGMIVModel, covariates: np.ndarray) -> None:
    encoded = jax.jit(lambda m, v: jax.vmap(m.covariates.encode)(v))(model, covariates)
    np.testing.assert_allclose(latents_of(model, covariates, LatentMap(steps=0)), encoded, atol=1e-6)


def test_it_climbs_the_posterior_of_every_row(model: BGMIVModel, covariates: np.ndarray) -> None:
    start = latents_of(model, covariates, LatentMap(steps=0))
    end = latents_of(model, covariates, MAP)
    assert (np.asarray(log_posterior(model, covariates, end)) > log_posterior(model, covariates, start)).all()


def test_it_sees_covariates_and_nothing_else(model: BGMIVModel, covariates: np.ndarray) -> None:
    assert list(inspect.signature(latents_of).parameters) == ["model", "v", "rule"]
    # Other treatment and outcome networks, as other x, y or w would leave: the latents do not notice.
    changed = eqx.tree_at(
        lambda m: (m.treatment, m.outcome),
        model,
        jax.tree.map(lambda leaf: -3.0 * leaf, (model.treatment, model.outcome)),
    )
    np.testing.assert_array_equal(latents_of(model, covariates, MAP), latents_of(changed, covariates, MAP))


def test_repeated_rows_have_the_same_latents(model: BGMIVModel, covariates: np.ndarray) -> None:
    places = np.asarray([3, 0, 3, 3, 7, 0])
    repeated = latents_of(model, covariates[places], MAP)
    np.testing.assert_array_equal(repeated[[0, 1]], repeated[[2, 5]])
    np.testing.assert_array_equal(repeated[0], repeated[3])
    np.testing.assert_allclose(repeated, latents_of(model, covariates, MAP)[places], **CLOSE)


def test_it_is_the_outcome_networks_mean(model: BGMIVModel) -> None:
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=70).astype(np.float32), rng.normal(size=(70, 4)).astype(np.float32)
    inputs = np.column_stack([z[:, :2], x])
    expected = jax.jit(lambda m, rows: jax.vmap(m.outcome)(rows)[:, 0])(model, inputs)
    np.testing.assert_allclose(structural_means(model, x, z), expected, rtol=1e-5, atol=1e-6)


def test_many_rows_agree_with_small_pieces(model: BGMIVModel) -> None:
    rng = np.random.default_rng(2)
    x, v = rng.normal(size=9000).astype(np.float32), rng.normal(size=(9000, 2)).astype(np.float32)
    z = latents_of(model, v, MAP)
    y = structural_means(model, x, z)
    assert z.shape == (9000, 4)
    assert y.shape == (9000,)
    for piece in (slice(0, 37), slice(4090, 4100), slice(8800, 9000)):
        small = latents_of(model, v[piece], MAP)
        np.testing.assert_allclose(z[piece], small, rtol=0, atol=2e-5)
        np.testing.assert_allclose(y[piece], structural_means(model, x[piece], small), rtol=0, atol=1e-4)


def test_without_covariates_all_rows_share_their_latents(model: BGMIVModel) -> None:
    bare = BGMIVModel(
        build_covariates((), 4, CovariateConfig(dense_hidden=(8,)), key=jax.random.key(0)),
        model.treatment,
        model.outcome,
        model.layout,
        model.treatment_head,
        model.outcome_head,
    )
    z = latents_of(bare, np.zeros((5, 0), np.float32), MAP)
    assert z.shape == (5, 4)
    assert np.isfinite(z).all()
    np.testing.assert_array_equal(z, np.broadcast_to(z[0], z.shape))


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
