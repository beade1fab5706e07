"""Algorithm 1, one epoch a call: `run_phase` of a program of one epoch, so that all tests share two compilations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import Array

from bgmiv.bgm.alternating import AlternatingProgram, AlternatingState
from bgmiv.bgm.model import BGMIVModel, log_p_iv, log_p_treatment, quasi_log_posterior
from bgmiv.integrate import GaussHermite
from bgmiv.training import Row, TrainingData, run_phase

RATE, LATENT_RATE, WEIGHT, RULE = 0.05, 0.02, 0.5, GaussHermite(3)
DENSE = AlternatingProgram(
    epochs=1,
    batch_size=8,
    learning_rate=RATE,
    latent_learning_rate=LATENT_RATE,
    pzv_weight=WEIGHT,
    integration=RULE,
    latent_momentum="dense",
)


def changed(**settings: Any) -> AlternatingProgram:
    return replace(DENSE, **settings)


ROWS = changed(latent_momentum="rows")


def epoch(program: AlternatingProgram, state: AlternatingState, data: TrainingData, seed: int = 0) -> Any:
    return run_phase(program, state, data, jax.random.key(seed))


def begin(program: AlternatingProgram, tiny: Any) -> AlternatingState:
    """A fresh state, by default past the first stage's warm-up."""
    return program.init(tiny.model, jnp.asarray(tiny.latents))


def same(one: Any, two: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))


def all_changed(one: Any, two: Any) -> bool:
    return not any(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))


def first_rows(data: TrainingData, n: int) -> TrainingData:
    return data._replace(n=jnp.asarray(n, jnp.int32))


@pytest.mark.parametrize("program", [DENSE, ROWS], ids=["dense", "rows"])
def test_one_batch_changes_the_generators_and_its_own_latents(program: AlternatingProgram, tiny: Any) -> None:
    before = begin(program, tiny)
    after, _ = epoch(program, before, first_rows(tiny.data, 6))
    assert all_changed(before.model.covariates.decoder, after.model.covariates.decoder)
    assert all_changed(before.model.treatment, after.model.treatment)
    assert all_changed(before.model.outcome, after.model.outcome)
    assert same(before.model.covariates.encoder, after.model.covariates.encoder)
    moved = np.any(np.asarray(after.latents.z) != tiny.latents, axis=1)
    np.testing.assert_array_equal(moved, np.arange(24) < 6)


def _reference(state: AlternatingState, rows: Row) -> tuple[AlternatingState, dict[str, Array]]:
    """Algorithm 1 on one batch of all rows, written down again from the paper."""
    adam = optax.flatten(optax.adam(RATE, b1=0.9, b2=0.99, eps=1e-7))
    model, z, key = state.model, state.latents.z[: len(rows.x)], jax.random.key(0)

    def mean(one: Any, *batched: Any) -> Array:
        return jnp.mean(jax.vmap(one)(*batched))

    def descend(model: BGMIVModel, part: Any, loss: Any, opt_state: Any) -> Any:
        value, slope = jax.value_and_grad(lambda p: loss(eqx.tree_at(part, model, p)))(part(model))
        updates, opt_state = adam.update(slope, opt_state)
        return eqx.tree_at(part, model, optax.apply_updates(part(model), updates)), value, opt_state

    model, loss_v, theta = descend(
        model,
        lambda m: m.covariates.decoder,
        lambda m: -mean(m.covariates.log_prob, rows.v, z),
        state.covariate_optimiser,
    )
    model, loss_x, phi = descend(
        model,
        lambda m: m.treatment,
        lambda m: -mean(lambda row, z: log_p_treatment(m, row, z), rows, z),
        state.treatment_optimiser,
    )
    model, loss_y, omega = descend(
        model,
        lambda m: m.outcome,
        lambda m: -mean(lambda row, z: log_p_iv(m, RULE, row, z, key), rows, z),
        state.outcome_optimiser,
    )

    def latent_objective(z: Array, row: Row) -> Array:
        return quasi_log_posterior(model, RULE, row, z, key, WEIGHT)

    ascent = jax.vmap(jax.grad(latent_objective))(z, rows)
    latent_adam = optax.adam(LATENT_RATE, b1=0.9, b2=0.99, eps=1e-7)
    change, _ = latent_adam.update(-ascent, latent_adam.init(z))
    latents = state.latents._replace(z=z + change, first=-0.1 * ascent, second=0.01 * ascent**2)
    metrics = {"covariates": loss_v, "treatment": loss_x, "outcome": loss_y}
    return AlternatingState(model, theta, phi, omega, latents), metrics


def test_order_of_the_four_updates(tiny: Any) -> None:
    program = DENSE
    before, rows = begin(program, tiny), jax.tree.map(lambda leaf: leaf[:8], tiny.data.rows)
    after, (history,) = epoch(program, before, first_rows(tiny.data, 8))
    expected, metrics = jax.jit(_reference)(before, rows)
    for part in ("model", "covariate_optimiser", "treatment_optimiser", "outcome_optimiser"):
        got, wanted = (jax.tree.leaves(getattr(state, part)) for state in (after, expected))
        for one, two in zip(got, wanted, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5, err_msg=part)
    for part in ("z", "first", "second"):
        np.testing.assert_allclose(
            getattr(after.latents, part)[:8], getattr(expected.latents, part), rtol=1e-4, atol=1e-5, err_msg=part
        )
    for name, value in metrics.items():
        assert history.metrics[name] == pytest.approx(float(value), rel=1e-4)


@pytest.mark.parametrize("program", [DENSE, ROWS], ids=["dense", "rows"])
def test_padding_never_matters(program: AlternatingProgram, tiny: Any) -> None:
    rng = np.random.default_rng(0)
    padded = jax.tree.map(lambda leaf: leaf.at[20:].set(1e3 * rng.normal(size=leaf[20:].shape)), tiny.data.rows)
    garbage = tiny.latents.copy()
    garbage[20:] = 1e3
    clean, dirty = begin(program, tiny), begin(program, tiny._replace(latents=garbage))
    for seed in range(2):
        clean, _ = epoch(program, clean, tiny.data, seed)
        dirty, _ = epoch(program, dirty, tiny.data._replace(rows=padded), seed)
    assert same(clean.model, dirty.model)
    np.testing.assert_array_equal(clean.latents.z[:20], dirty.latents.z[:20])


@pytest.mark.parametrize("program", [DENSE, ROWS], ids=["dense", "rows"])
def test_rows_held_out_are_never_visited(program: AlternatingProgram, tiny: Any) -> None:
    fold = slice(4, 10)
    held = tiny.data._replace(fold_start=jnp.asarray(4, jnp.int32), fold_size=jnp.asarray(6, jnp.int32))
    garbage = held._replace(rows=jax.tree.map(lambda leaf: leaf.at[fold].set(1e3), held.rows))
    # 14 rows are two batches an epoch; held-out rows and padding fill up the second.
    states = [begin(program, tiny), begin(program, tiny)]
    for seed in range(2):
        states = [epoch(program, state, data, seed)[0] for state, data in zip(states, (held, garbage), strict=True)]
    assert same(states[0].model, states[1].model)
    np.testing.assert_array_equal(states[0].latents.z, states[1].latents.z)
    np.testing.assert_array_equal(states[0].latents.z[fold], tiny.latents[fold])
    others = np.setdiff1d(np.arange(20), np.arange(20)[fold])
    assert (np.asarray(states[0].latents.z)[others] != tiny.latents[others]).any(axis=1).all()


def test_every_row_is_visited_once_an_epoch_in_a_new_order(tiny: Any) -> None:
    one, _ = epoch(ROWS, begin(ROWS, tiny), tiny.data, seed=0)
    np.testing.assert_array_equal(one.latents.updates[:20], 1)
    other, _ = epoch(ROWS, begin(ROWS, tiny), tiny.data, seed=1)
    assert not same(one.model.outcome, other.model.outcome)


def test_cut_latents_see_neither_treatment_nor_outcome(tiny: Any) -> None:
    program, rows = changed(latent_update="cut"), tiny.data.rows
    other = tiny.data._replace(rows=rows._replace(x=rows.x + 1.0, y=2.0 * rows.y))
    one, two = (epoch(program, begin(program, tiny), data)[0] for data in (tiny.data, other))
    assert not same(one.model.outcome, two.model.outcome)
    assert same(one.latents, two.latents)
    assert not np.array_equal(one.latents.z, tiny.latents)
