from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bgmiv.baselines.dfiv import (
    DFIV,
    DeepFeatures,
    DFIVConfig,
    FeatureNet,
    FeatureRows,
    Inputs,
    LayerShape,
    Networks,
    Stages,
    expectation,
    first_stage_loss,
    held_out_loss,
    masked_features,
    paper_preset,
    ridge_loss,
    ridge_map,
    second_stage_loss,
    solve_head,
    stages_of,
)
from bgmiv.data.ivdata import IVData
from bgmiv.data.scaling import Identity, RoleScaling, ScaledData
from bgmiv.designs import DemandDesign, VectorProxyDesign
from bgmiv.effects import predict
from bgmiv.errors import ConfigError, DataError
from bgmiv.nn.settings import FeatureConfig

SMALL = DFIVConfig(
    treatment_net=(LayerShape(6), LayerShape(3, normalise=True, rectify=False)),
    instrument_net=(LayerShape(8), LayerShape(5, normalise=True, rectify=False)),
    covariate_net=(LayerShape(8, normalise=True), LayerShape(4)),
    covariates=FeatureConfig(vector_features=(6, 4), dropout=0.1, vector_noise=0.5),
    training=DeepFeatures(epochs=3),
    members=1,
    held_out=0.0,
)


HELD_OUT = jax.jit(held_out_loss, static_argnums=3)


def _rows(data: IVData, *, halves: bool = True) -> Stages:
    return stages_of(RoleScaling().fit(data).transform(data), jax.random.key(5), halves=halves)


def _networks(data: IVData, config: DFIVConfig = SMALL) -> Networks:
    return jax.jit(config.build, static_argnums=0)(data.schema, jax.random.key(1))


def _direct_solve(features: np.ndarray, targets: np.ndarray, penalty: float) -> np.ndarray:
    features, targets = np.asarray(features, np.float64), np.asarray(targets, np.float64)
    return np.linalg.solve(features.T @ features + penalty * np.eye(features.shape[1]), features.T @ targets)


def _plain_features(net: FeatureNet | None, rows: Inputs, moments_of: Inputs | None = None) -> np.ndarray:
    """Features of the real rows with a constant, normalised by the moments of other real rows."""
    count = int(rows.present.sum())
    if net is None:
        return np.ones((count, 1))
    moments = None if moments_of is None else net(moments_of)[1]
    features = np.asarray(net(rows, moments=moments)[0], np.float64)[:count]
    return np.column_stack([features, np.ones(count)])


def test_ridge_equals_a_direct_solve_and_its_loss_is_the_minimum() -> None:
    rng = np.random.default_rng(0)
    features, targets = rng.normal(size=(50, 6)), rng.normal(size=(50, 2))
    inputs = jnp.asarray(features), jnp.asarray(targets)
    head = np.asarray(ridge_map(inputs[0], 5.0)(inputs[1]))
    np.testing.assert_allclose(head, _direct_solve(features, targets, 5.0), atol=1e-5)
    lowest = np.sum((targets - features @ head) ** 2) + 5.0 * np.sum(head**2)
    assert float(ridge_loss(*inputs, 5.0)) == pytest.approx(lowest, rel=1e-5)


@pytest.mark.parametrize("use_instrument", [True, False])
def test_heads_equal_a_direct_solve(use_instrument: bool) -> None:
    data = DemandDesign().sample(301, 0.5, 0)
    config = replace(SMALL, use_instrument=use_instrument)
    data = data if use_instrument else data.without_instruments()
    stages, networks = _rows(data, halves=use_instrument), _networks(data, config)
    head = solve_head(networks, stages, config.training.penalties)
    psi = _plain_features(networks.treatment, stages.treatments)
    if use_instrument:
        phi = _plain_features(networks.instrument, stages.first)
        assert len(phi) == 151
        stage1 = _direct_solve(phi, psi[:, :-1], 0.1 * 151)
        psi_second = _plain_features(networks.instrument, stages.second, stages.first) @ stage1
        psi = np.column_stack([psi_second, np.ones(len(psi_second))])
        assert len(psi) == 150
    else:
        assert len(psi) == 301
    xi = _plain_features(networks.covariate, stages.covariates)
    features = np.einsum("ni,nj->nij", psi, xi).reshape(len(psi), -1)
    y = np.asarray(stages.y)[: len(psi)]
    stage2 = _direct_solve(features, y, 0.1 * len(psi)).reshape(4, 5)
    np.testing.assert_allclose(head.weights, stage2, atol=1e-5)


def test_every_row_is_in_exactly_one_stage() -> None:
    data = DemandDesign().sample(101, 0.5, 0)
    stages = _rows(data)
    first = np.asarray(stages.treatments.columns)[stages.treatments.present == 1, 0]
    second = np.asarray(stages.y)[stages.second.present == 1, 0]
    assert (len(first), len(second)) == (51, 50)
    scaled = RoleScaling().fit(data).transform(data)
    rest = np.isin(scaled.x, first, invert=True)
    np.testing.assert_array_equal(np.sort(scaled.y[rest]), np.sort(second))


def test_padding_changes_nothing() -> None:
    data = DemandDesign().sample(64, 0.5, 0)
    rows, networks = _rows(data), _networks(data)

    longer = jax.tree.map(lambda leaf: jnp.pad(leaf, [(0, 9)] + [(0, 0)] * (leaf.ndim - 1)), rows)
    heads = (jax.tree.leaves(solve_head(networks, each, SMALL.training.penalties)) for each in (rows, longer))
    for a, b in zip(*heads, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def _check_gradient(loss: object, net: FeatureNet) -> None:
    """Directional derivatives against central differences."""
    assert callable(loss)
    value_and_grad = jax.jit(jax.value_and_grad(loss))
    _, grads = value_and_grad(net)
    # In NumPy: JAX would compile a program for every shape.
    net, grads = jax.device_get((net, grads))
    leaves, tree = jax.tree.flatten(net)
    rng = np.random.default_rng(0)
    for _ in range(2):
        direction = jax.tree.unflatten(tree, [rng.normal(size=leaf.shape) for leaf in leaves])
        h = 1e-6
        ahead, behind = (jax.tree.map(lambda a, d, s=s: a + s * d, net, direction) for s in (h, -h))
        numeric = float(value_and_grad(ahead)[0] - value_and_grad(behind)[0]) / (2 * h)
        exact = sum(np.sum(g * d) for g, d in zip(jax.tree.leaves(grads), jax.tree.leaves(direction), strict=True))
        assert exact == pytest.approx(numeric, rel=1e-5, abs=1e-6)


def test_gradients_agree_with_finite_differences() -> None:
    with jax.enable_x64(True):
        data = DemandDesign().sample(80, 0.5, 0)
        built = _networks(data), _rows(data)
        (psi, phi, xi), stages = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), jax.device_get(built))
        assert phi is not None
        targets = jax.jit(masked_features)(psi, stages.treatments)

        def expected(net: FeatureNet) -> object:
            return expectation(phi, stages, 0.1)(net)

        fixed = jax.jit(expected)(psi)
        assert targets.dtype == jnp.float64
        _check_gradient(lambda net: first_stage_loss(net, None, targets, stages, 0.1), phi)
        _check_gradient(lambda net: second_stage_loss(net, None, fixed, stages, 0.1), xi)
        _check_gradient(lambda net: second_stage_loss(xi, None, expected(net), stages, 0.1), psi)


def test_recovers_a_line_that_regression_misses() -> None:
    rng = np.random.default_rng(0)
    w, u, e = rng.normal(size=(3, 2000))
    x = w + u
    data = IVData.from_arrays(2.0 * x - 2.0 * u + 0.1 * e, x, instruments=w)
    config = replace(DFIVConfig(), members=1, held_out=0.0, training=DeepFeatures(epochs=40))
    iv, plain = (each.fit(data, 0) for each in (config, config.without_instrument()))
    slope_iv, slope_plain = (np.ptp(predict(each, [-1.5, 1.5])) / 3.0 for each in (iv, plain))
    assert slope_iv == pytest.approx(2.0, abs=0.35)
    assert slope_plain == pytest.approx(1.0, abs=0.2)
    assert iv.history[-1].metrics["loss"] < iv.history[0].metrics["loss"]
    assert iv.members[0].networks.covariate is None
    assert iv.members[0].head.weights.shape == (5, 1)


def test_held_out_loss_is_that_of_both_stages_solved_elsewhere() -> None:
    data = DemandDesign().sample(360, 0.5, 0)
    scaled = RoleScaling().fit(data).transform(data)
    train, held_out = (ScaledData(*(values[part] for values in scaled)) for part in (slice(300), slice(300, 360)))
    stages, own = (stages_of(part, jax.random.key(5), halves=h) for part, h in ((train, True), (held_out, False)))
    networks, training = _networks(data), SMALL.training
    head = solve_head(networks, stages, training.penalties)
    psi = _plain_features(networks.treatment, stages.treatments)[:, :-1]
    stage1 = _direct_solve(_plain_features(networks.instrument, stages.first), psi, 0.1 * len(psi))
    expected = _plain_features(networks.instrument, own.second, stages.first) @ stage1
    xi = _plain_features(networks.covariate, own.covariates, stages.covariates)
    predicted = np.einsum("ni,ij,nj->n", np.column_stack([expected, np.ones(60)]), head.weights, xi)
    errors = np.asarray(own.y)[:60, 0] - predicted
    assert float(HELD_OUT(networks, stages, own, training.penalties)) == pytest.approx(np.mean(errors**2), rel=1e-4)


def test_the_newest_networks_that_are_not_clearly_worse_are_kept_and_training_stops() -> None:
    data = DemandDesign().sample(200, 0.5, 0)
    training, networks = SMALL.training, _networks(data)
    rows = FeatureRows(_rows(data), _rows(data, halves=False))
    evaluate = jax.jit(training.evaluate)
    first = evaluate(training.init(networks, hold_out=True), rows)
    assert first.best is not None
    assert float(first.best.loss) == pytest.approx(float(HELD_OUT(networks, *rows, training.penalties)))
    slightly, clearly = (first._replace(best=first.best._replace(loss=first.best.loss * x)) for x in (0.97, 0.9))
    assert int(evaluate(slightly, rows).best.stale) == 0
    for _ in range(4):
        assert not bool(training.stopped(clearly))
        clearly = evaluate(clearly, rows)
    assert bool(training.stopped(clearly))


def test_binary_treatment() -> None:
    rng = np.random.default_rng(4)
    w, v, u = rng.normal(size=(3, 400))
    x = (w + u > 0).astype(float)
    data = IVData.from_arrays(3.0 * x + v - u, x, instruments=w, covariates=v, treatment_kind="binary")
    fitted = replace(SMALL, training=replace(SMALL.training, epochs=60)).fit(data, 0)
    effect = predict(fitted, 1.0, v) - predict(fitted, 0.0, v)
    assert effect.mean() == pytest.approx(3.0, abs=1.0)


def test_the_study_has_one_layer_after_a_vector_block() -> None:
    vector, plain = VectorProxyDesign(vector_dim=12).sample(20, 0.5, 0), DemandDesign().sample(20, 0.5, 0)
    networks = jax.eval_shape(lambda: paper_preset().build(vector.schema, jax.random.key(0)))
    for net, width in ((networks.instrument, 66), (networks.covariate, 65)):
        assert net is not None
        assert [layer.kernel.shape for layer in net.layers] == [(width, 32)]
    networks = jax.eval_shape(lambda: paper_preset().build(plain.schema, jax.random.key(0)))
    assert networks.instrument is not None
    assert [layer.kernel.shape for layer in networks.instrument.layers] == [(3, 128), (128, 64), (64, 32)]
    assert [layer.kernel.shape for layer in networks.treatment.layers] == [(1, 16), (16, 1)]


def test_presets() -> None:
    training = paper_preset().training
    assert (training.epochs, training.stage1_penalty, training.stage2_penalty) == (100, 0.1, 0.1)
    assert paper_preset().scaling.outcome == Identity()
    assert DFIVConfig().scaling == RoleScaling()


def test_user_class() -> None:
    assert DFIV(stage2_penalty=0.2)._config().training.stage2_penalty == 0.2
    assert DFIV(preset="paper", scaling=RoleScaling())._config() == replace(paper_preset(), scaling=RoleScaling())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DFIV(preset="other")._config(), "preset must be one of default, paper"),
        (lambda: DFIV(stage1_penalty=0.0)._config(), "stage1_penalty"),
        (lambda: DeepFeatures(epochs=-1), "epochs must be"),
        (lambda: DeepFeatures(covariate_decay=-0.1), "covariate_decay"),
    ],
)
def test_bad_settings(make: object, words: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigError, match=words):
        make()


def test_needs_two_rows_in_each_stage() -> None:
    with pytest.raises(DataError, match="at least 4 rows"):
        SMALL.fit(DemandDesign().sample(3, 0.5, 0), 0)
