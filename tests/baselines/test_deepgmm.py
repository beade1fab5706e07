from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bgmiv.baselines.deepgmm import (
    DeepGMM,
    DeepGMMConfig,
    GameRows,
    MomentGame,
    best_round,
    critic_of,
    paper_preset,
    residuals_of,
    violation,
)
from bgmiv.data.ivdata import IVData
from bgmiv.data.scaling import ScaledData
from bgmiv.designs import VectorProxyDesign
from bgmiv.effects import predict
from bgmiv.errors import ConfigError, DivergedError
from bgmiv.estimators.members import CovariateNet
from bgmiv.nn.settings import FeatureConfig
from bgmiv.training import TrainingData, training_data

TINY = DeepGMMConfig(hidden=(6,), game=MomentGame(rounds=2, round_updates=3, batch_size=16), members=1, held_out=0.2)


def net(seed: int) -> CovariateNet:
    return CovariateNet((), FeatureConfig(), 1, (4,), 1, key=jax.random.key(seed))


def rows(n: int) -> TrainingData:
    rng = np.random.default_rng(0)
    x, y, w = rng.normal(size=(3, n)).astype(np.float32)
    return training_data(ScaledData(x, y, np.zeros((n, 0), np.float32), w[:, None]), 1)


def test_violation_formula() -> None:
    f, r, other = np.random.default_rng(0).normal(size=(3, 50))
    expected = np.mean(f * r) - 0.25 * np.mean(f**2 * (other**2 + 0.3))
    found = violation(*map(jnp.asarray, (f, r, other)), jnp.full(50, 0.02), 0.3)
    assert float(found) == pytest.approx(expected, rel=1e-4)


def test_optimistic_adam_is_the_published_one() -> None:
    updates_of = MomentGame().optimiser
    adam = optax.scale_by_adam(b1=0.5, b2=0.9)
    params = jnp.zeros(3)
    state, plain_state = updates_of.init(params), adam.init(params)
    before = None
    for seed in range(3):
        grads = jax.random.normal(jax.random.key(seed), (3,))
        found, state = updates_of.update(grads, state)
        plain, plain_state = adam.update(grads, plain_state)
        expected = plain if before is None else 2.0 * plain - before
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        before = plain


def test_one_update_follows_both_players_gradients() -> None:
    data, g, f = rows(32), net(0), net(1)
    game = MomentGame(rounds=1, round_updates=1, batch_size=None, optimistic=False, schedule="constant", damping=0.2)
    state, _ = jax.jit(game.step)(jax.jit(game.init)(g, f, data), GameRows(data, data), jax.random.key(0))
    weights = np.full(32, 1.0 / 32.0, np.float32)

    @jax.jit
    def slopes(g: CovariateNet, f: CovariateNet) -> tuple[CovariateNet, CovariateNet]:
        r, values = residuals_of(g, data.rows, None), critic_of(f, data.rows, None)
        slope_g = jax.grad(lambda p: violation(values, residuals_of(p, data.rows, None), r, weights, 0.2))(g)
        slope_f = jax.grad(lambda p: violation(critic_of(p, data.rows, None), r, r, weights, 0.2))(f)
        return slope_g, slope_f

    slope_g, slope_f = slopes(g, f)
    # Adam's first step is the gradient's sign times the learning rate; the critic climbs, five times as fast.
    for before, after, slope, rate in ((g, state.structural.net, slope_g, -1e-3), (f, state.critic.net, slope_f, 5e-3)):
        for old, new, grad in zip(*map(jax.tree.leaves, (before, after, slope)), strict=True):
            old, new, grad = map(np.asarray, (old, new, grad))
            expected = np.where(np.abs(grad) > 1e-5, rate * np.sign(grad), new - old)
            np.testing.assert_allclose(new - old, expected, rtol=2e-2, atol=1e-6)


def test_choice_is_the_smallest_worst_violation() -> None:
    game = MomentGame(rounds=3, round_updates=1, batch_size=8)
    signal = np.sign(np.arange(40) % 2 - 0.5)
    noise = np.sign(np.arange(40) // 2 % 2 - 0.5)

    residuals = np.stack([scale * signal + noise for scale in (0.9, 0.1, -0.8)])
    critics = np.stack([signal, -signal, noise * signal])
    state = game.init(net(0), net(1), rows(40))
    state = state._replace(residuals=jnp.asarray(residuals), critics=jnp.asarray(critics))
    assert best_round(state, rows(40), damping=0.0) == 1


@pytest.fixture(scope="module")
def confounded() -> IVData:
    rng = np.random.default_rng(5)
    w, u = rng.normal(size=(2, 1000))
    x = w + u
    return IVData.from_arrays(x - 2.0 * u, x, instruments=w)


def test_corrects_what_a_regression_does_not(confounded: IVData) -> None:
    config = replace(TINY, hidden=(16,), game=MomentGame(rounds=20, round_updates=50, learning_rate=2e-3))
    low, high = predict(config.fit(confounded, 0), [-1.0, 1.0])
    assert (high - low) / 2.0 > 0.6
    # The plain regression's slope is 1 - 2 Var(u) / Var(w + u) = 0.
    low, high = predict(config.without_instrument().fit(confounded, 0), [-1.0, 1.0])
    assert abs(high - low) / 2.0 < 0.3


def test_without_held_out_rows_the_last_round_is_taken(confounded: IVData) -> None:
    fitted = replace(TINY, held_out=0.0).fit(confounded, 0)
    shorter = replace(fitted.config, game=replace(TINY.game, rounds=1, schedule="constant"))
    longer = replace(fitted.config, game=replace(TINY.game, rounds=2, schedule="constant"))
    assert predict(shorter.fit(confounded, 0), [0.0]) != predict(longer.fit(confounded, 0), [0.0])
    assert len(fitted.history) == 1


def test_a_game_that_diverges_is_an_error(confounded: IVData) -> None:
    with pytest.raises(DivergedError, match="training diverged in phase"):
        replace(TINY, game=replace(TINY.game, learning_rate=1e30)).fit(confounded, 0)


def test_vector_blocks_and_critic_steps_over_all_rows() -> None:
    game = MomentGame(rounds=1, round_updates=2, batch_size=None, critic_steps=3)
    settings = replace(TINY, game=game, covariates=FeatureConfig())
    fitted = settings.fit(VectorProxyDesign(vector_dim=5).sample(80, 0.5, 0), 0)
    assert fitted.members[0].net.features.width == 1 + 64
    assert np.isfinite(fitted.history[-1].metrics["loss"])


def test_presets() -> None:
    default, paper = DeepGMMConfig(), paper_preset()
    assert (default.members, default.held_out, default.game.learning_rate) == (4, 0.2, 1e-3)
    assert paper.game.rounds * paper.game.round_updates == 20_000
    assert (paper.game.critic_steps, paper.game.batch_size, paper.game.damping) == (5, None, 0.0)
    assert paper.game.learning_rate == 5e-4


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"hidden": (0,)}, "hidden"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"held_out": 1.0}, "held_out"),
        ({"updates": 0}, "updates must be at least 1"),
        ({"batch_size": 1}, "batch_size must be at least 2"),
        ({"damping": -1.0}, "damping must be at least 0, got -1.0"),
        ({"preset": "best"}, "preset must be one of default, paper"),
    ],
)
def test_refuses_bad_settings(bad: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DeepGMM(**bad)._config()
