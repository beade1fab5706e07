"""Deep feature IV: closed-form heads, exact gradients, layout, and the estimator's contract."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone

from bgmiv.covariates import CovariateConfig
from bgmiv.data.ivdata import IVData
from bgmiv.data.scaling import Identity, RoleScaling
from bgmiv.designs import DemandDesign, VectorProxyDesign
from bgmiv.errors import ConfigError, DataError, NotFittedError
from bgmiv.estimators.dfiv import (
    DFIV,
    PRESETS,
    DFIVConfig,
    FittedDFIV,
    default_preset,
    paper_preset,
    solve_heads,
    without_instrument,
)
from bgmiv.train.dfiv import (
    DeepFeatures,
    FeatureNet,
    Inputs,
    LayerShape,
    Networks,
    Stages,
    expectation,
    first_stage_loss,
    masked_features,
    outer_features,
    ridge,
    ridge_loss,
    second_stage_loss,
    stage_data,
    stages_of,
)
from bgmiv.train.loop import TrainingData

SMALL = DFIVConfig(
    treatment_net=(LayerShape(6), LayerShape(3, normalise=True, rectify=False)),
    instrument_net=(LayerShape(8), LayerShape(5, normalise=True, rectify=False)),
    covariate_net=(LayerShape(8, normalise=True), LayerShape(4)),
    blocks=CovariateConfig(vector_features=(6, 4), dropout=0.1, vector_noise=0.5),
    training=DeepFeatures(epochs=3, instrument_iterations=3, covariate_iterations=2, treatment_iterations=2, chunk=2),
)

OPTIMISED = True


def _rows(data: IVData, *, halves: bool = True) -> TrainingData:
    return stage_data(RoleScaling().fit(data).transform(data), jax.random.key(5), halves=halves)


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


# Closed forms


def test_ridge_equals_a_direct_solve() -> None:
    rng = np.random.default_rng(0)
    features, targets = rng.normal(size=(300, 40)), rng.normal(size=(300, 3))
    found = ridge(jnp.asarray(features, jnp.float32), jnp.asarray(targets, jnp.float32), 30.0)
    np.testing.assert_allclose(found, _direct_solve(features, targets, 30.0), atol=1e-5)


def test_ridge_loss_is_the_minimum() -> None:
    rng = np.random.default_rng(1)
    features, targets = jnp.asarray(rng.normal(size=(50, 6))), jnp.asarray(rng.normal(size=(50, 2)))
    head = ridge(features, targets, 5.0)
    lowest = float(ridge_loss(features, targets, 5.0))
    for _ in range(5):
        other = head + 0.1 * rng.normal(size=head.shape)
        assert float(jnp.sum((targets - features @ other) ** 2) + 5.0 * jnp.sum(other**2)) > lowest


def test_outer_features_layout() -> None:
    rng = np.random.default_rng(2)
    left, right, head = rng.normal(size=(7, 3)), rng.normal(size=(7, 4)), rng.normal(size=(3, 4))
    features = np.asarray(outer_features(jnp.asarray(left), jnp.asarray(right)))
    np.testing.assert_allclose(features[:, 2 * 4 + 1], left[:, 2] * right[:, 1], rtol=1e-6)
    np.testing.assert_allclose(features @ head.ravel(), np.sum(left @ head * right, axis=1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("use_instrument", [True, False])
def test_heads_equal_a_direct_solve(use_instrument: bool) -> None:
    data = DemandDesign().sample(301, 0.5, 0)
    config = replace(SMALL, use_instrument=use_instrument)
    data = data if use_instrument else data.without_instruments()
    rows, networks = _rows(data, halves=use_instrument), _networks(data, config)
    heads = solve_heads(networks, rows, config.training)
    stages = stages_of(rows, halves=use_instrument)
    psi = _plain_features(networks.treatment, stages.treatments)
    if use_instrument:
        phi = _plain_features(networks.instrument, stages.first)
        assert len(phi) == 151
        stage1 = _direct_solve(phi, psi[:, :-1], 0.1 * 151)
        np.testing.assert_allclose(heads.stage1, stage1, atol=1e-5)
        psi_second = _plain_features(networks.instrument, stages.second, stages.first) @ stage1
        psi = np.column_stack([psi_second, np.ones(len(psi_second))])
        assert len(psi) == 150
    else:
        assert heads.stage1 is None
        assert len(psi) == 301
    xi = _plain_features(networks.covariate, stages.covariates)
    features = np.einsum("ni,nj->nij", psi, xi).reshape(len(psi), -1)
    y = np.asarray(stages.y)[: len(psi)]
    stage2 = _direct_solve(features, y, 0.1 * len(psi)).reshape(4, 5)
    np.testing.assert_allclose(heads.stage2, stage2, atol=1e-5)


def test_every_row_is_in_exactly_one_stage() -> None:
    data = DemandDesign().sample(101, 0.5, 0)
    stages = stages_of(_rows(data), halves=True)
    first = np.asarray(stages.treatments.columns)[stages.treatments.present == 1, 0]
    second = np.asarray(stages.y)[stages.second.present == 1, 0]
    assert (len(first), len(second)) == (51, 50)
    scaled = RoleScaling().fit(data).transform(data)
    rest = np.isin(scaled.x, first, invert=True)
    np.testing.assert_array_equal(np.sort(scaled.y[rest]), np.sort(second))


def test_padding_changes_nothing() -> None:
    data = DemandDesign().sample(64, 0.5, 0)
    rows = _rows(data)
    longer = TrainingData(
        jax.tree.map(lambda leaf: jnp.concatenate([jnp.pad(half, [(0, 9)] + [(0, 0)] * (leaf.ndim - 1))
                                                   for half in jnp.split(leaf, 2)]), rows.rows),
        *rows[1:],
    )  # fmt: skip
    networks = _networks(data)
    short, padded = (solve_heads(networks, each, SMALL.training) for each in (rows, longer))
    for a, b in zip(jax.tree.leaves(short), jax.tree.leaves(padded), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


# Gradients


def _in_double(networks: Networks, stages: Stages) -> tuple[Networks, Stages]:
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float64), (networks, stages))


def _check_gradient(loss: object, net: FeatureNet) -> None:
    """Directional derivatives against central differences."""
    assert callable(loss)
    loss = jax.jit(loss)
    grads = jax.jit(jax.grad(loss))(net)
    leaves, tree = jax.tree.flatten(net)
    rng = np.random.default_rng(0)
    for _ in range(4):
        direction = jax.tree.unflatten(tree, [jnp.asarray(rng.normal(size=leaf.shape)) for leaf in leaves])
        h = 1e-6
        ahead, behind = (jax.tree.map(lambda a, d, s=s: a + s * d, net, direction) for s in (h, -h))
        numeric = (float(loss(ahead)) - float(loss(behind))) / (2 * h)
        pieces = jax.tree.map(lambda g, d: jnp.sum(g * d), grads, direction)
        exact = float(jax.tree.reduce(jnp.add, pieces))
        assert exact == pytest.approx(numeric, rel=1e-5, abs=1e-6)


def test_gradients_agree_with_finite_differences() -> None:
    with jax.enable_x64(True):
        data = DemandDesign().sample(80, 0.5, 0)
        networks, stages = _in_double(_networks(data), stages_of(_rows(data), halves=True))
        psi, phi, xi = networks
        assert phi is not None
        targets = masked_features(psi, stages.treatments)
        expected = expectation(phi, stages, 0.1)
        fixed = expected(psi)
        assert targets.dtype == jnp.float64
        _check_gradient(lambda net: first_stage_loss(net, targets, stages, 0.1, None), phi)
        _check_gradient(lambda net: second_stage_loss(fixed, net, stages, 0.1, None), xi)
        _check_gradient(lambda net: second_stage_loss(expected(net), xi, stages, 0.1, None), psi)


def test_training_lowers_both_losses() -> None:
    data = DemandDesign().sample(300, 0.5, 0)
    history = replace(SMALL, training=replace(SMALL.training, epochs=20, chunk=1)).fit(data, jax.random.key(0)).history
    assert history[-1].metrics["loss"] < history[0].metrics["loss"]
    assert len(history) == 20


# The estimator


def _fit(data: IVData, config: DFIVConfig = SMALL, seed: int = 0) -> FittedDFIV:
    return config.fit(data, jax.random.key(seed))


def test_same_key_same_result_and_another_key_another() -> None:
    data, grid = DemandDesign().sample(120, 0.5, 0), DemandDesign().grid()
    first, again, other = (_fit(data, seed=s).predict(grid.treatment, grid.covariates) for s in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert first.shape == (2800,)
    assert np.isfinite(first).all()
    assert np.abs(first - other).max() > 0


def test_predictions_do_not_depend_on_the_company_of_a_row() -> None:
    data, grid = DemandDesign().sample(120, 0.5, 0), DemandDesign().grid()
    fitted = _fit(data)
    few = {name: values[:5] for name, values in grid.covariates.items()}
    np.testing.assert_allclose(
        fitted.predict(grid.treatment[:5], few),
        fitted.predict(grid.treatment, grid.covariates)[:5],
        rtol=1e-5,
    )


def test_moment_error_is_the_second_stage_error() -> None:
    data = DemandDesign().sample(120, 0.5, 0)
    fitted = _fit(data)
    rows = fitted.scaler.transform(data)
    heads, present = fitted.heads, jnp.ones(120)
    assert fitted.networks.instrument is not None
    assert fitted.networks.covariate is not None
    phi, _ = fitted.networks.instrument(Inputs(rows.w, rows.v, present), moments=heads.moments[1])
    xi, _ = fitted.networks.covariate(Inputs(rows.v[:, :0], rows.v, present), moments=heads.moments[2])
    expected = np.column_stack([phi, present]) @ heads.stage1
    features = outer_features(np.column_stack([expected, present]), np.column_stack([xi, present]))
    outcome = fitted.scaler.outcome.inverse(features @ heads.stage2.ravel())
    assert fitted.moment_error(data) == pytest.approx(np.mean((data.outcome - outcome) ** 2), rel=1e-4)


def test_recovers_a_line_that_regression_misses() -> None:
    rng = np.random.default_rng(0)
    w, u, e = rng.normal(size=(3, 2000))
    x = w + u
    data = IVData.from_arrays(2.0 * x - 2.0 * u + 0.1 * e, x, instruments=w)
    config = replace(default_preset(), training=DeepFeatures(epochs=40))
    iv = _fit(data, config)
    twin = _fit(data, without_instrument(config))
    ends = np.array([-1.5, 1.5])
    slope_iv, slope_twin = (np.ptp(each.predict(ends)) / 3.0 for each in (iv, twin))
    assert slope_iv == pytest.approx(2.0, abs=0.35)
    assert slope_twin == pytest.approx(1.0, abs=0.2)


def test_no_covariates_and_several_instruments() -> None:
    rng = np.random.default_rng(3)
    w, u = rng.normal(size=(90, 3)), rng.normal(size=90)
    x = w.sum(axis=1) + u
    fitted = _fit(IVData.from_arrays(x - u, x, instruments=w))
    assert fitted.networks.covariate is None
    assert fitted.heads.stage2.shape == (4, 1)
    assert fitted.predict([0.0, 1.0]).shape == (2,)
    assert fitted.predict(1.0).shape == (1,)


def test_binary_treatment() -> None:
    rng = np.random.default_rng(4)
    w, v, u = rng.normal(size=(3, 400))
    x = (w + u > 0).astype(float)
    data = IVData.from_arrays(3.0 * x + v - u, x, instruments=w, covariates=v, treatment_kind="binary")
    fitted = _fit(data, replace(SMALL, training=replace(SMALL.training, epochs=60)))
    effect = fitted.predict(1.0, v) - fitted.predict(0.0, v)
    assert effect.mean() == pytest.approx(3.0, abs=1.0)
    with pytest.raises(DataError, match="binary"):
        fitted.predict(0.5, v)


@pytest.mark.parametrize("use_instrument", [True, False])
def test_vector_blocks(use_instrument: bool) -> None:
    design = VectorProxyDesign(vector_dim=12)
    data, grid = design.sample(90, 0.5, 0), design.grid()
    fitted = _fit(data, replace(SMALL, use_instrument=use_instrument))
    assert np.isfinite(fitted.predict(grid.treatment, grid.covariates)).all()
    assert np.isfinite(fitted.moment_error(data))


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
    assert set(PRESETS) == {"default", "paper"}
    training = paper_preset().training
    assert (training.epochs, training.instrument_iterations, training.covariate_iterations) == (100, 20, 20)
    assert (training.treatment_iterations, training.stage1_penalty, training.stage2_penalty) == (1, 0.1, 0.1)
    assert paper_preset().scaling.outcome == Identity()
    assert default_preset().scaling == RoleScaling()


def test_twin_ignores_the_instrument() -> None:
    data = DemandDesign().sample(80, 0.5, 0)
    config = without_instrument(SMALL)
    fitted, blind = _fit(data, config), _fit(data.without_instruments(), config)
    assert fitted.networks.instrument is None
    np.testing.assert_array_equal(fitted.predict(20.0, data.covariates), blind.predict(20.0, data.covariates))


def test_user_class() -> None:
    rng = np.random.default_rng(0)
    w, v, u = rng.normal(size=(3, 60))
    model = clone(DFIV(epochs=1, stage2_penalty=0.2, random_state=0))
    with pytest.raises(NotFittedError):
        model.predict(0.0, v)
    assert model.fit(w + u, w - u, instruments=w, covariates=v).predict(0.0, v).shape == (60,)
    assert model.fitted_.config.training.stage2_penalty == 0.2
    assert model.history_[-1].step == 1
    assert repr(model) == "DFIV(epochs=1, stage2_penalty=0.2, random_state=0)"
    twin = DFIV("paper", epochs=1, scaling=RoleScaling(), use_instrument=False, random_state=0)
    assert twin.fit(w + u, w - u, instruments=w).fitted_.networks.instrument is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DFIV("other")._config(), "preset must be one of default, paper"),
        (lambda: DFIV(stage1_penalty=0.0)._config(), "stage1_penalty"),
        (lambda: DeepFeatures(epochs=-1), "epochs must be"),
        (lambda: DeepFeatures(covariate_decay=-0.1), "covariate_decay"),
        (lambda: DeepFeatures(covariate_iterations=0), "covariate_iterations must be finite and at least 1"),
        (lambda: LayerShape(0), "width of at least 1"),
        (lambda: DFIVConfig(treatment_net=()), "treatment_net needs at least one layer"),
    ],
)
def test_bad_settings(make: object, words: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigError, match=words):
        make()


def test_bad_data() -> None:
    data = DemandDesign().sample(20, 0.5, 0)
    with pytest.raises(DataError, match="needs an instrument"):
        _fit(data.without_instruments())
    with pytest.raises(DataError, match="at least 4 rows"):
        _fit(data.take(np.arange(3)))
