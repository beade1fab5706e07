from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from sklearn.base import clone

from bgmiv.covariates import BlockFeatures
from bgmiv.covariates.features import Raw
from bgmiv.data.ivdata import IVData
from bgmiv.data.scaling import ScaledData
from bgmiv.designs import DemandDesign, VectorProxyDesign
from bgmiv.errors import ConfigError, DataError, NotFittedError
from bgmiv.estimators.deepiv import DeepIV, default_preset, paper_preset
from bgmiv.likelihood import Bernoulli, GaussianMixture
from bgmiv.model.objectives import Row
from bgmiv.train.covariate_net import CovariateNet
from bgmiv.train.deepiv import OutcomeObjective, Stage, StageSettings, TreatmentObjective, pair_loss
from bgmiv.train.loop import training_data

OPTIMISED = True

# As the user class builds it, so that its test needs no compilation of its own.
TINY_ARGUMENTS = {"epochs": 2, "batch_size": 40, "hidden": (6,), "n_components": 2, "random_state": 0}
TINY = DeepIV(**TINY_ARGUMENTS)._config()


def small_net(dropout: float = 0.0) -> CovariateNet:
    return CovariateNet(BlockFeatures((Raw(1),), ((0, 1),)), 1, (4,), 1, dropout=dropout, key=jax.random.key(3))


def test_pair_loss_is_the_mean_over_pairs() -> None:
    residuals = np.asarray([0.3, -1.2, 2.0, 0.7])
    expected = np.mean([a * b for a, b in combinations(residuals, 2)])
    assert float(pair_loss(jnp.asarray(residuals))) == pytest.approx(expected, rel=1e-5)


@pytest.fixture(scope="module")
def gradients() -> dict[str, np.ndarray]:
    """Gradients of one row's loss: one a replicate from two draws, and the target's from very many."""
    head, n_replicates, n_many = GaussianMixture(2), 20_000, 2_000_000
    raw = jnp.asarray([-1.0, 1.5, 0.5, 0.0, 0.4, -0.4])
    row = Row(jnp.asarray(0.0), jnp.asarray(0.8), jnp.asarray([0.5]), raw)
    net = small_net()
    objective = OutcomeObjective(head, n_samples=2)
    flat, unravel = ravel_pytree(net)

    @jax.jit
    def two_draws(uniforms: jax.Array) -> tuple[jax.Array, jax.Array]:
        def pairs(p: jax.Array, u: jax.Array) -> jax.Array:
            return objective.row_loss(unravel(p), row, None, u)

        def squares(p: jax.Array, u: jax.Array) -> jax.Array:
            x = head.at_uniforms(raw, u.reshape(-1, 2))
            return jnp.mean((row.y - unravel(p).many(x[:, None], row.v, None)[:, 0]) ** 2)

        return tuple(jax.vmap(jax.grad(loss), in_axes=(None, 0))(flat, uniforms) for loss in (pairs, squares))

    @jax.jit
    def target(key: jax.Array) -> jax.Array:
        x = head.sample(raw, key, n_many)
        return jax.grad(lambda p: (row.y - jnp.mean(unravel(p).many(x, row.v, None)[:, 0])) ** 2)(flat)

    uniforms = jax.random.uniform(jax.random.key(1), (n_replicates, 4), minval=1e-6, maxval=1.0 - 1e-6)
    pairs, squares = two_draws(uniforms)
    return {
        "pairs": np.asarray(pairs, np.float64),
        "squares": np.asarray(squares, np.float64),
        "target": np.asarray(target(jax.random.key(2)), np.float64),
    }


def largest_deviation(found: np.ndarray, target: np.ndarray) -> float:
    """The largest |z| over parameters, where the gradient varies at all."""
    error = found.std(axis=0) / np.sqrt(len(found))
    moves = error > 1e-9
    assert moves.sum() > 5
    return float(np.max(np.abs(found.mean(axis=0) - target)[moves] / error[moves]))


def test_two_sample_gradient_is_unbiased(gradients: dict[str, np.ndarray]) -> None:
    # At most 20 parameters: a bound of 4.5 is a level of 20 * 7e-6 < 2e-4. The target's own error (1% of the
    # replicates' mean's variance) does not change it.
    assert largest_deviation(gradients["pairs"], gradients["target"]) < 4.5


def test_plain_squares_would_be_found_biased(gradients: dict[str, np.ndarray]) -> None:
    assert largest_deviation(gradients["squares"], gradients["target"]) > 20.0


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


@pytest.fixture(scope="module")
def confounded() -> IVData:
    rng = np.random.default_rng(5)
    w, v, u = rng.normal(size=(3, 1000))
    x = w + v + u
    return IVData.from_arrays(x - 2.0 * u + v, x, instruments=w, covariates=v)


def test_corrects_what_the_twin_does_not(confounded: IVData) -> None:
    settings = StageSettings(epochs=40, batch_size=50, learning_rate=5e-3, schedule="cosine", chunk=40)
    config = replace(TINY, hidden=(16,), n_components=3, treatment_stage=settings, outcome_stage=settings)
    slopes = {}
    for use_instrument in (True, False):
        fitted = replace(config, use_instrument=use_instrument).fit(confounded, jax.random.key(0))
        low, high = fitted.predict([-1.0, 1.0], np.zeros(2))
        slopes[use_instrument] = (high - low) / 2.0
    # Given v, the plain regression's slope is 1 - 2 Var(u) / Var(w + u) = 0.
    assert slopes[True] == pytest.approx(1.0, abs=0.25)
    assert slopes[False] == pytest.approx(0.0, abs=0.25)


def test_the_best_held_out_epoch_is_kept() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 24)).astype(np.float32)
    rows = training_data(ScaledData(x, x, np.zeros((24, 0), np.float32), w[:, None]), 8)
    head = Bernoulli(1)
    stage = Stage(TreatmentObjective(head), StageSettings(epochs=9, batch_size=8, learning_rate=1.0), holds_out=True)
    net = CovariateNet(BlockFeatures((), ()), 1, (3,), 1, dropout=0.0, key=jax.random.key(0))
    rows = rows._replace(rows=rows.rows._replace(x=(rows.rows.x > 0).astype(jnp.float32)))
    state, step, losses, nets = stage.init(net, rows, jax.random.key(1)), jax.jit(stage.step), [], []
    for i in range(9):
        state, metrics = step(state, rows, jax.random.key(i))
        losses.append(float(metrics["held_out"]))
        nets.append(state.net)
    best = int(np.argmin(losses))
    # Steps of size one jump about, so that the last epoch is not the best.
    assert best < 8
    assert jax.tree.all(jax.tree.map(np.array_equal, state.chosen, nets[best]))


def test_repeats_by_seed(confounded: IVData) -> None:
    first, again = (TINY.fit(confounded, jax.random.key(1)) for _ in range(2))
    np.testing.assert_array_equal(first.predict(0.5, np.ones(3)), again.predict(0.5, np.ones(3)))
    assert [row.phase for row in first.history] == ["treatment stage", "outcome stage"]
    assert all(set(row.metrics) == {"loss"} for row in first.history)
    other = TINY.fit(confounded, jax.random.key(2))
    assert not np.array_equal(first.predict(0.5, np.ones(3)), other.predict(0.5, np.ones(3)))


def test_binary_treatment_several_instruments_no_covariates() -> None:
    rng = np.random.default_rng(1)
    w, u = rng.normal(size=(120, 2)), rng.normal(size=120)
    x = (w[:, 0] + u > 0.0).astype(float)
    data = IVData.from_arrays(x + u, x, instruments=w, treatment_kind="binary")
    fitted = TINY.fit(data, jax.random.key(0))
    assert fitted.predict([0.0, 1.0]).shape == (2,)
    assert [row.metrics["loss"] >= 0.0 for row in fitted.history] == [True] * 2


def test_vector_blocks_go_through_the_shared_features() -> None:
    design = VectorProxyDesign(vector_dim=5)
    fitted = TINY.fit(design.sample(80, 0.5, 0), jax.random.key(0))
    assert all(set(row.metrics) == {"loss", "held_out"} for row in fitted.history)
    assert fitted.treatment_net is not None
    assert fitted.treatment_net.features.width == fitted.outcome_net.features.width == 1 + 64
    grid = design.grid()
    assert np.isfinite(fitted.predict(grid.treatment, grid.covariates)).all()


def test_presets() -> None:
    data = DemandDesign().sample(1000, 0.5, 0)
    paper = paper_preset().resolved(data.schema, 1000)
    assert (paper.hidden, paper.dropout, paper.n_components, paper.n_samples) == ((128, 64, 32), 0.5, 10, 2)
    assert paper.resolved(data.schema, 9000).dropout == 0.5
    assert paper_preset().resolved(data.schema, 9000).dropout == pytest.approx(0.1)
    assert (paper.outcome_stage.epochs, paper.outcome_stage.batch_size) == (300, 100)
    wide = VectorProxyDesign(vector_dim=3).sample(50, 0.5, 0).schema
    assert paper_preset().resolved(wide, 50).hidden == (32,)
    assert paper_preset().resolved(wide, 50).outcome_stage.batch_size == 50
    assert default_preset().resolved(data.schema, 1000).holdout == paper.holdout == 0.0
    assert default_preset().resolved(wide, 50).holdout == 0.1
    assert default_preset().resolved(wide, 50).hidden == (128, 64, 32)


@pytest.mark.parametrize(
    "bad",
    [
        {"hidden": (0,)},
        {"dropout": 1.0},
        {"n_components": 0},
        {"n_samples": 1},
        {"epochs": -1},
        {"batch_size": 0},
        {"preset": "best"},
    ],
)
def test_refuses_bad_settings(bad: dict[str, object]) -> None:
    rng = np.random.default_rng(0)
    w, u = rng.normal(size=(2, 30))
    with pytest.raises(ConfigError):
        DeepIV(**bad).fit(u, w + u, instruments=w)


def test_needs_an_instrument() -> None:
    with pytest.raises(DataError, match="needs an instrument"):
        TINY.fit(DemandDesign().sample(50, 0.5, 0).without_instruments(), jax.random.key(0))


def test_user_class(confounded: IVData) -> None:
    model = DeepIV(**TINY_ARGUMENTS)
    with pytest.raises(NotFittedError):
        model.predict(0.0, [0.0])
    assert repr(clone(model)) == repr(model)
    model.fit(
        confounded.outcome,
        confounded.treatment,
        instruments=confounded.instruments,
        covariates=confounded.covariates,
    )
    assert model.predict(0.0, np.zeros((4, 1))).shape == (4,)
    assert model.history_[-1].phase == "outcome stage"
