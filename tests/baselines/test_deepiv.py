from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from bgmiv.baselines.deepiv import (
    DeepIV,
    DeepIVConfig,
    OutcomeObjective,
    Stage,
    StageRows,
    StageState,
    TreatmentObjective,
    pair_loss,
    paper_preset,
)
from bgmiv.data.ivdata import IVData
from bgmiv.data.scaling import ScaledData
from bgmiv.data.schema import BlockKind, CovariateBlock
from bgmiv.designs import VectorProxyDesign
from bgmiv.effects import predict
from bgmiv.errors import ConfigError
from bgmiv.estimators.members import Best, CovariateNet, Learner
from bgmiv.likelihood import Bernoulli, GaussianMixture
from bgmiv.nn.settings import FeatureConfig
from bgmiv.training import Row, training_data

COLUMN = (CovariateBlock("v", BlockKind.continuous, ("v",), 0, 1),)


def small_net(dropout: float = 0.0) -> CovariateNet:
    return CovariateNet(COLUMN, FeatureConfig(), 1, (4,), 1, dropout=dropout, key=jax.random.key(3))


def stage(objective: TreatmentObjective | OutcomeObjective, **settings: Any) -> Stage:
    given = {"n_steps": 9, "batch_size": 8, "learning_rate": 1.0, "tolerance": 1.0, **settings}
    return Stage(objective, schedule="constant", weight_decay=0.0, metric_names=("loss", "held_out"), **given)


def test_two_sample_gradient_is_unbiased_and_plain_squares_are_not() -> None:
    head, objective = GaussianMixture(2), OutcomeObjective(GaussianMixture(2), n_samples=2)
    raw = jnp.asarray([-1.0, 1.5, 0.5, 0.0, 0.4, -0.4])
    row = Row(jnp.asarray(0.0), jnp.asarray(0.8), jnp.asarray([0.5]), raw)
    flat, unravel = ravel_pytree(small_net())

    def residuals(p: jax.Array, x: jax.Array) -> jax.Array:
        return row.y - unravel(p).many(x, row.v, None)[:, 0]

    def pairs(p: jax.Array, u: jax.Array) -> jax.Array:
        return objective.row_loss(unravel(p), row, None, u)

    def squares(p: jax.Array, u: jax.Array) -> jax.Array:
        return jnp.mean(residuals(p, head.at_uniforms(raw, u.reshape(-1, 2))[:, None]) ** 2)

    draws = head.at_uniforms(raw, jax.random.uniform(jax.random.key(2), (500_000, 2), minval=1e-9))[:, None]
    target = np.asarray(jax.jit(jax.grad(lambda p: jnp.mean(residuals(p, draws)) ** 2))(flat), np.float64)
    uniforms = jax.random.uniform(jax.random.key(1), (5000, 4), minval=1e-6, maxval=1.0 - 1e-6)

    def largest_z(loss: object) -> float:
        found = np.asarray(jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0)))(flat, uniforms), np.float64)
        error = found.std(axis=0) / np.sqrt(len(found))
        moves = error > 1e-9
        assert moves.sum() > 5
        return float(np.max(np.abs(found.mean(axis=0) - target)[moves] / error[moves]))

    # At most 20 parameters: a bound of 4.5 is a level of 20 * 7e-6 < 2e-4.
    assert largest_z(pairs) < 4.5
    assert largest_z(squares) > 10.0
    assert float(pair_loss(jnp.asarray([2.0, -3.0, 1.0]))) == pytest.approx((-6.0 + 2.0 - 3.0) / 3.0)


def test_binary_treatment_is_summed_exactly() -> None:
    net, head, raw = small_net(), Bernoulli(1), jnp.asarray([0.4])
    row = Row(jnp.asarray(1.0), jnp.asarray(0.3), jnp.asarray([-0.2]), raw)
    p = 1.0 / (1.0 + np.exp(-0.4))
    g0, g1 = (float(net(jnp.asarray([x]), row.v, None)[0]) for x in (0.0, 1.0))
    found = OutcomeObjective(head).row_loss(net, row, None, jnp.zeros(0))
    assert float(found) == pytest.approx((0.3 - (1.0 - p) * g0 - p * g1) ** 2, rel=1e-5)


def test_draws_of_a_row_share_their_dropout_mask() -> None:
    net = small_net(dropout=0.5)
    assert net.noise_width == 4
    noise = jnp.asarray([0.9, 0.1, 0.9, 0.9])
    together = net.many(jnp.asarray([[0.2], [0.2]]), jnp.ones(1), noise)
    assert float(together[0, 0]) == float(together[1, 0])
    assert float(together[0, 0]) != float(net(jnp.asarray([0.2]), jnp.ones(1), None)[0])


def test_corrects_what_a_regression_does_not() -> None:
    rng = np.random.default_rng(5)
    w, v, u = rng.normal(size=(3, 1000))
    x = w + v + u
    data = IVData.from_arrays(x - 2.0 * u + v, x, instruments=w, covariates=v)
    with_iv = DeepIVConfig(
        3, (16,), epochs=40, batch_size=50, learning_rate=5e-3, weight_decays=(0.0, 0.0), members=1, held_out=0.0
    )
    # Given v, the plain regression's slope is 1 - 2 Var(u) / Var(w + u) = 0.
    for config, slope in ((with_iv, 1.0), (with_iv.without_instrument(), 0.0)):
        low, high = predict(config.fit(data, 0), [-1.0, 1.0], np.zeros(2))
        assert (high - low) / 2.0 == pytest.approx(slope, abs=0.25)


def test_the_best_held_out_epoch_is_kept() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 24)).astype(np.float32)
    rows = training_data(ScaledData((x > 0).astype(np.float32), x, np.zeros((24, 0), np.float32), w[:, None]), 8)
    program = stage(TreatmentObjective(Bernoulli(1)))
    net = CovariateNet((), FeatureConfig(), 1, (3,), 1, key=jax.random.key(0))
    state = StageState(Learner.begin(net, program.optimiser), jnp.zeros((), jnp.int32), Best.first(net))
    data, step, losses, nets = StageRows(rows, rows, jnp.zeros((24, 0))), jax.jit(program.step), [], []
    for i in range(9):
        state, metrics = step(state, data, jax.random.key(i))
        losses.append(float(metrics["held_out"]))
        nets.append(state.learner.net)
    best = int(np.argmin(losses))
    # Steps of size one jump about, so that the last epoch is not the best.
    assert best < 8
    assert jax.tree.all(jax.tree.map(np.array_equal, state.best.networks, nets[best]))


def test_the_newest_epoch_that_is_not_clearly_worse_is_kept() -> None:
    net, outcome, treatment = small_net(), OutcomeObjective(None), TreatmentObjective(GaussianMixture(1))
    # A network whose loss is 10% above the lowest so far.
    best, loss = Best.first(jax.tree.map(jnp.zeros_like, net))._replace(loss=jnp.asarray(1.0)), jnp.asarray(1.1)
    for tolerance, kept in ((1.0, False), (1.05, False), (1.2, True)):
        found = best.after(net, loss, outcome.limit(best.loss, tolerance))
        assert bool(jnp.array_equal(found.networks.output.kernel, net.output.kernel)) is kept
        assert (float(found.loss), int(found.stale)) == (1.0, 0 if kept else 1)
    # The log-density of a normal whose variance is wrong by that factor; losses of small errors may be negative.
    assert float(treatment.limit(jnp.asarray(-2.0), 1.1)) == pytest.approx(-2.0 + 0.5 * np.log(1.1))
    assert float(outcome.limit(jnp.asarray(-2.0), 1.1)) == pytest.approx(-2.0 / 1.1)


def test_vector_blocks_go_through_the_shared_features() -> None:
    design = VectorProxyDesign(vector_dim=5)
    config = DeepIV(epochs=2, batch_size=40, hidden=(6,), n_components=2, members=1, held_out=0.1)._config()
    for covariates, width in ((config.covariates, 5), (FeatureConfig(), 64)):
        fitted = replace(config, covariates=covariates).fit(design.sample(250, 0.5, 0), 0)
        assert all(set(row.metrics) == {"loss", "held_out"} for row in fitted.history)
        assert fitted.members[0].net.features.width == 1 + width


def test_presets() -> None:
    default, paper = DeepIVConfig(), paper_preset()
    assert (paper.hidden, paper.dropout, paper.n_components, paper.n_samples) == (None, None, 10, 2)
    assert (paper.epochs, paper.batch_size, paper.schedule, paper.tolerance) == (300, 100, "constant", 1.0)
    assert (paper.members, paper.held_out) == (1, 0.0)
    assert (default.members, default.held_out, default.hidden) == (4, None, (128, 64, 32))
    few = replace(paper, epochs=1).fit(VectorProxyDesign(vector_dim=3).sample(50, 0.5, 0), 0)
    net = few.members[0].net
    assert [layer.bias.shape for layer in net.layers] == [(32,)]
    assert net.dropout == 0.5


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"hidden": (0,)}, "hidden"),
        ({"dropout": 1.0}, "dropout must lie"),
        ({"n_components": 0}, "n_components must be at least 1"),
        ({"n_samples": 1}, "n_samples must be at least 2"),
        ({"epochs": -1}, "epochs must be at least 0"),
        ({"batch_size": 0}, "batch_size"),
        ({"preset": "best"}, "preset must be one of default, paper"),
    ],
)
def test_refuses_bad_settings(bad: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DeepIV(**bad)._config()
    with pytest.raises(ConfigError, match="schedule"):
        DeepIVConfig(schedule="linear")  # type: ignore[arg-type]
