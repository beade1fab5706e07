from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.base import clone

from bgmiv.bench.metrics import structural_error
from bgmiv.covariates import BlockFeatures
from bgmiv.data.ivdata import IVData
from bgmiv.data.scaling import ScaledData
from bgmiv.designs import DemandDesign, VectorProxyDesign
from bgmiv.errors import ConfigError, DataError, DivergedError, NotFittedError
from bgmiv.estimators.deepgmm import DeepGMM, default_preset, paper_preset
from bgmiv.train.covariate_net import CovariateNet
from bgmiv.train.deepgmm import GameState, MomentGame, choose, critic_of, last, residuals_of, violation
from bgmiv.train.loop import TrainingData, training_data

OPTIMISED = True

# As the user class builds it, so that its test needs no compilation of its own.
TINY_ARGUMENTS = {"updates": 6, "hidden": (6,), "batch_size": 16, "learning_rates": (1e-3,), "random_state": 0}
TINY = DeepGMM(**TINY_ARGUMENTS)._config()
TINY = replace(TINY, game=replace(TINY.game, rounds=2, round_updates=3), holdout=0.2)


def net(seed: int) -> CovariateNet:
    return CovariateNet(BlockFeatures((), ()), 1, (4,), 1, dropout=0.0, key=jax.random.key(seed))


def rows(n: int) -> TrainingData:
    rng = np.random.default_rng(0)
    x, y, w = rng.normal(size=(3, n)).astype(np.float32)
    return training_data(ScaledData(x, y, np.zeros((n, 0), np.float32), w[:, None]), 1)


def test_violation_formula() -> None:
    rng = np.random.default_rng(0)
    f, r, other = rng.normal(size=(3, 50))
    expected = np.mean(f * r) - 0.25 * np.mean(f**2 * (other**2 + 0.3))
    assert float(violation(*map(jnp.asarray, (f, r, other)), jnp.full(50, 0.02), 0.3)) == pytest.approx(
        expected, rel=1e-4
    )


def test_optimistic_adam_is_the_published_one() -> None:
    updates_of = MomentGame()._optimiser()
    adam = optax.scale_by_adam(b1=0.5, b2=0.9)
    params = jnp.zeros(3)
    state, plain_state = updates_of.init(params), adam.init(params)
    before = None
    for seed in range(4):
        grads = jax.random.normal(jax.random.key(seed), (3,))
        found, state = updates_of.update(grads, state)
        plain, plain_state = adam.update(grads, plain_state)
        expected = plain if before is None else 2.0 * plain - before
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        before = plain


def test_one_update_follows_both_players_gradients() -> None:
    data, g, f = rows(32), net(0), net(1)
    game = MomentGame(rounds=1, round_updates=1, batch_size=None, optimistic=False, schedule="constant", damping=0.2)
    state, _ = jax.jit(game.step)(game.init(g, f, data, 1e-3), data, jax.random.key(0))
    weights = jnp.full(32, 1.0 / 32.0)
    r, values = residuals_of(g, data.rows, None), critic_of(f, data.rows, None)
    slope_g = jax.grad(lambda p: violation(values, residuals_of(p, data.rows, None), r, weights, 0.2))(g)
    slope_f = jax.grad(lambda p: violation(critic_of(p, data.rows, None), r, r, weights, 0.2))(f)
    # Adam's first step is the gradient's sign times the learning rate; the critic climbs, five times as fast.
    for before, after, slope, rate in (
        (g, state.structural.net, slope_g, -1e-3),
        (f, state.critic.net, slope_f, 5e-3),
    ):
        for old, new, grad in zip(*map(jax.tree.leaves, (before, after, slope)), strict=True):
            expected = jnp.where(jnp.abs(grad) > 1e-5, rate * jnp.sign(grad), new - old)
            np.testing.assert_allclose(new - old, expected, rtol=2e-2, atol=1e-6)


def test_choice_is_the_smallest_worst_violation() -> None:
    data = rows(40)
    game = MomentGame(rounds=3, round_updates=1, batch_size=8)
    signal = np.sign(np.arange(40) % 2 - 0.5)
    noise = np.sign(np.arange(40) // 2 % 2 - 0.5)

    def state(*scales: float) -> GameState:
        residuals = np.stack([scale * signal + noise for scale in scales])
        fresh = game.init(net(0), net(1), data, 1e-3)
        marked = jax.tree.map(lambda leaf: leaf + jnp.arange(3.0).reshape(3, *[1] * (leaf.ndim - 1)), fresh.snapshots)
        return fresh._replace(
            snapshots=marked,
            residuals=jnp.asarray(residuals, jnp.float32),
            critics=jnp.asarray(np.stack([signal, -signal, noise * signal]), jnp.float32),
        )

    choice = choose([state(0.9, 0.5, -0.8), state(0.6, 0.1, 0.3)], damping=0.0)
    assert (choice.run, choice.round) == (1, 1)
    assert all((leaf == 1.0).all() for leaf in jax.tree.leaves(choice.net))
    assert last(state(0.0, 0.0, 1.0)).round == 2


@pytest.fixture(scope="module")
def confounded() -> IVData:
    rng = np.random.default_rng(5)
    w, u = rng.normal(size=(2, 1000))
    x = w + u
    return IVData.from_arrays(x - 2.0 * u, x, instruments=w)


def test_corrects_what_the_twin_does_not(confounded: IVData) -> None:
    config = replace(TINY, hidden=(16,), game=MomentGame(rounds=20, round_updates=50, chunk=20), learning_rates=(2e-3,))
    slopes = {}
    for use_instrument in (True, False):
        fitted = replace(config, use_instrument=use_instrument).fit(confounded, jax.random.key(0))
        low, high = fitted.predict([-1.0, 1.0])
        slopes[use_instrument] = (high - low) / 2.0
    # The plain regression's slope is 1 - 2 Var(u) / Var(w + u) = 0.
    assert slopes[True] > 0.6
    assert abs(slopes[False]) < 0.3


def test_beats_the_constant_predictor_on_the_demand_grid() -> None:
    grid = DemandDesign().grid()
    config = replace(TINY, hidden=(32, 16), game=MomentGame(rounds=10, round_updates=60, chunk=10))
    fitted = config.fit(DemandDesign().sample(600, 0.5, 0), jax.random.key(0))
    error = structural_error(fitted.predict(grid.treatment, grid.covariates), grid).all
    assert error < 0.6 * np.var(grid.truth)


def test_repeats_by_seed_and_pools_learning_rates(confounded: IVData) -> None:
    config = replace(TINY, learning_rates=(1e-3, 1e-4))
    first, again = (config.fit(confounded, jax.random.key(1)) for _ in range(2))
    np.testing.assert_array_equal(first.predict([0.5, 1.0]), again.predict([0.5, 1.0]))
    assert len(first.history) == 2
    assert {row.phase for row in first.history} == {"moment game"}
    assert np.isfinite(first.choice.violation)


def test_a_diverged_run_is_left_out_unless_all_diverge(confounded: IVData) -> None:
    assert replace(TINY, learning_rates=(1e30, 1e-3)).fit(confounded, jax.random.key(0)).choice.run == 0
    with pytest.raises(DivergedError):
        replace(TINY, learning_rates=(1e30,)).fit(confounded, jax.random.key(0))


def test_binary_treatment_and_several_instruments_without_a_holdout() -> None:
    rng = np.random.default_rng(1)
    w, u = rng.normal(size=(120, 2)), rng.normal(size=120)
    x = (w[:, 0] + u > 0.0).astype(float)
    data = IVData.from_arrays(x + u, x, instruments=w, treatment_kind="binary")
    fitted = replace(TINY, holdout=0.0, learning_rates=(1e-3, 1e-4)).fit(data, jax.random.key(0))
    assert fitted.choice.round == 1
    # Nothing could choose between two games, so one is played.
    assert len(fitted.history) == 1
    assert fitted.predict([0.0, 1.0]).shape == (2,)


def test_vector_blocks_and_critic_steps_over_all_rows() -> None:
    design = VectorProxyDesign(vector_dim=5)
    game = MomentGame(rounds=1, round_updates=2, batch_size=None, critic_steps=3)
    fitted = replace(TINY, game=game).fit(design.sample(80, 0.5, 0), jax.random.key(0))
    assert fitted.choice.net.features.width == 1 + 64
    grid = design.grid()
    assert np.isfinite(fitted.predict(grid.treatment, grid.covariates)).all()


def test_rows_are_held_out_by_default_only_with_vector_blocks() -> None:
    wide, narrow = (design.sample(50, 0.5, 0).schema for design in (VectorProxyDesign(vector_dim=3), DemandDesign()))
    assert default_preset().held_out_share(narrow) == 0.0
    assert default_preset().held_out_share(wide) == 0.2
    assert replace(default_preset(), holdout=0.3).held_out_share(narrow) == 0.3
    assert paper_preset().held_out_share(wide) == 0.0


def test_paper_preset_is_the_study() -> None:
    config = paper_preset()
    assert config.game.rounds * config.game.round_updates == 20_000
    assert (config.game.critic_steps, config.game.batch_size, config.game.damping) == (5, None, 0.0)
    assert config.learning_rates == (5e-4,)


@pytest.mark.parametrize(
    "bad",
    [
        {"hidden": (0,)},
        {"learning_rates": ()},
        {"learning_rates": (0.0,)},
        {"holdout": 1.0},
        {"updates": 0},
        {"batch_size": 1},
        {"damping": -1.0},
        {"preset": "best"},
    ],
)
def test_refuses_bad_settings(bad: dict[str, object]) -> None:
    rng = np.random.default_rng(0)
    w, u = rng.normal(size=(2, 30))
    with pytest.raises(ConfigError):
        DeepGMM(**bad).fit(u, w + u, instruments=w)


def test_needs_an_instrument() -> None:
    with pytest.raises(DataError, match="needs an instrument"):
        TINY.fit(DemandDesign().sample(50, 0.5, 0).without_instruments(), jax.random.key(0))


def test_user_class(confounded: IVData) -> None:
    model = DeepGMM(**TINY_ARGUMENTS)
    with pytest.raises(NotFittedError):
        model.predict(0.0)
    assert repr(clone(model)) == repr(model)
    model.fit(confounded.outcome, confounded.treatment, instruments=confounded.instruments)
    assert model.predict([0.0, 1.0]).shape == (2,)
    assert model.history_[-1].phase == "moment game"
