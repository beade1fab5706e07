from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from linearmodels.iv import IV2SLS

from bgmiv.baselines.tsls import Basis, TSLSConfig, _left_out_errors
from bgmiv.data.ivdata import IVData
from bgmiv.designs import DemandDesign, LowDimDesign
from bgmiv.effects import predict
from bgmiv.errors import ConfigError, DataError


def test_equals_linearmodels() -> None:
    data, grid = DemandDesign().sample(800, 0.5, 0), DemandDesign().grid()
    fitted = TSLSConfig().fit(data)
    exogenous = np.column_stack([np.ones(800), data.covariates])
    model = IV2SLS(data.outcome, exogenous, data.treatment, data.instruments)
    reference = model.fit(cov_type="robust", debiased=True)
    points = np.column_stack([np.ones(2800), grid.covariates["time"], grid.covariates["group"], grid.treatment])
    np.testing.assert_allclose(
        predict(fitted, grid.treatment, grid.covariates), points @ reference.params.to_numpy(), rtol=1e-9
    )
    np.testing.assert_allclose(fitted.result.std_errors, reference.std_errors, rtol=1e-9)
    assert list(fitted.result.params.index) == ["const", "time", "group", "price"]
    assert fitted.history == ()


@pytest.mark.parametrize("use_instrument", [True, False])
def test_equals_the_textbook_formula(use_instrument: bool) -> None:
    data = DemandDesign().sample(300, 0.5, 1)
    fitted = TSLSConfig(use_instrument=use_instrument).fit(data if use_instrument else data.without_instruments())
    x = np.column_stack([np.ones(300), data.covariates, data.treatment])
    z = np.column_stack([np.ones(300), data.covariates, data.instruments]) if use_instrument else x
    x_hat = z @ np.linalg.lstsq(z, x, rcond=None)[0]
    beta = np.linalg.lstsq(x_hat, data.outcome, rcond=None)[0]
    np.testing.assert_allclose([fitted.intercept, *fitted.coefficients, fitted.slope], beta, rtol=1e-8)


def test_first_level_of_a_category_is_the_reference() -> None:
    rng = np.random.default_rng(1)
    w, u = rng.normal(size=(2, 6000))
    region = rng.choice(["east", "north", "south"], size=6000)
    shift = np.select([region == "north", region == "south"], [5.0, -3.0], 0.0)
    x = w + u
    data = IVData.from_arrays(
        x + shift + u, x, instruments=w, covariates={"region": region}, blocks={"region": "categorical"}
    )
    fitted = TSLSConfig().fit(data)
    np.testing.assert_allclose(fitted.coefficients, [0.0, 5.0, -3.0], atol=0.15)
    at_zero = predict(fitted, [0.0, 0.0], {"region": ["east", "north"]})
    assert at_zero[1] - at_zero[0] == pytest.approx(5.0, abs=0.15)


def test_redundant_columns_name_cause_and_fix() -> None:
    rng = np.random.default_rng(2)
    w, v, u = rng.normal(size=(3, 100))
    data = IVData.from_arrays(u, w + u, instruments=w, covariates={"a": v, "b": 2.0 * v, "c": 1.0 - v})
    with pytest.raises(DataError, match=r"linear combinations.*remove the redundant columns"):
        TSLSConfig().fit(data)


@pytest.mark.parametrize(("covariates", "instruments"), [(31, 1), (12, 20)])
def test_too_many_columns_for_the_rows(covariates: int, instruments: int) -> None:
    rng = np.random.default_rng(0)
    v, w, x = (rng.normal(size=(50, width)) for width in (covariates, instruments, 1))
    data = IVData.from_arrays(x[:, 0] + rng.normal(size=50), x[:, 0], instruments=w, covariates=v)
    with pytest.raises(DataError, match=rf"{covariates} covariate columns, {instruments} instr.* at least 64 rows"):
        TSLSConfig().fit(data)
    if covariates < 25:
        TSLSConfig(use_instrument=False).fit(data)


def test_sieve_equals_linearmodels_on_the_same_columns() -> None:
    data = DemandDesign().sample(900, 0.5, 2)
    fitted = TSLSConfig(degree=2, interactions=True).fit(data)

    def columns(values: np.ndarray, train: np.ndarray, v: np.ndarray) -> np.ndarray:
        t = (values - train.mean()) / train.std()
        powers = np.column_stack([t, t**2])
        return np.column_stack([powers, powers * v[:, [0]], powers * v[:, [1]]])

    v, w = data.covariates, data.instruments[:, 0]
    exogenous = np.column_stack([np.ones(900), v])
    reference = IV2SLS(data.outcome, exogenous, columns(data.treatment, data.treatment, v), columns(w, w, v)).fit(
        cov_type="robust", debiased=True
    )
    np.testing.assert_allclose(fitted.result.params, reference.params, rtol=1e-9)
    np.testing.assert_allclose(fitted.result.std_errors, reference.std_errors, rtol=1e-9)
    grid = DemandDesign().grid()
    v = np.column_stack([grid.covariates["time"], grid.covariates["group"]])
    points = np.column_stack([np.ones(2800), v, columns(grid.treatment, data.treatment, v)])
    np.testing.assert_allclose(
        predict(fitted, grid.treatment, grid.covariates), points @ reference.params.to_numpy(), rtol=1e-9
    )
    assert list(fitted.result.params.index)[3:7] == ["price[1]", "price[2]", "price[1]:time", "price[2]:time"]


@pytest.mark.parametrize(
    ("curve", "settings"), [("linear", {}), ("sin", {"degree": 3}), ("abs", {"features": "spline"})]
)
def test_sieve_finds_the_curve_under_confounding(curve: str, settings: dict[str, Any]) -> None:
    design = LowDimDesign(curve)
    data, grid = design.sample(8000, 1.0, 0), design.grid()
    errors = {}
    for use_instrument in (True, False):
        fitted = TSLSConfig(use_instrument=use_instrument, **settings).fit(data)
        squares = (predict(fitted, grid.treatment, grid.covariates) - grid.truth) ** 2
        errors[use_instrument] = squares[grid.in_support].mean()
    assert errors[True] < 0.05
    assert errors[False] > 0.4


def test_interactions_find_an_effect_that_varies() -> None:
    rng = np.random.default_rng(3)
    w, v, u = rng.normal(size=(3, 20_000))
    x = w + u
    fitted = TSLSConfig(interactions=True).fit(IVData.from_arrays((2.0 + v) * x - u, x, instruments=w, covariates=v))
    np.testing.assert_allclose(fitted.treatment_coefficients, [[2.0, 1.0]], atol=0.05)
    with pytest.raises(ConfigError, match="no single slope"):
        fitted.slope


@pytest.mark.parametrize("shape", ["line", "curve", "varying"])
def test_cross_validation_takes_the_smallest_sieve_that_predicts_as_well(shape: str) -> None:
    rng = np.random.default_rng(100)
    w, v, u, e = rng.normal(size=(4, 1000))
    x = w + u
    g = {"line": x, "curve": x + 0.5 * x**2, "varying": (1.0 + v) * x}[shape]
    data = IVData.from_arrays(g - u + e, x, instruments=w, covariates=v)
    fitted = TSLSConfig(features="cv").fit(data)
    expected = {"line": (1, False), "curve": (2, False), "varying": (1, True)}[shape]
    assert (fitted.config.degree, fitted.config.interactions) == expected
    assert fitted.config.features == "polynomial"
    same = fitted.config.fit(data)
    np.testing.assert_array_equal(predict(fitted, [0.0, 1.0], v[:2]), predict(same, [0.0, 1.0], v[:2]))


def test_left_out_errors_are_those_of_stages_fitted_on_the_other_folds() -> None:
    rng = np.random.default_rng(7)
    w, u = rng.normal(size=(2, 50))
    x, z = (np.column_stack([np.ones(50), column]) for column in (w + u, w))
    y, weights, folds = x[:, 1] + u, rng.uniform(0.5, 2.0, size=50), np.arange(50) % 5
    found = _left_out_errors(y, x, z, weights, folds)
    rest = folds != 3
    root = np.sqrt(weights[rest])[:, None]
    first = np.linalg.lstsq(root * z[rest], root * x[rest], rcond=None)[0]
    second = np.linalg.lstsq(root * (z[rest] @ first), root[:, 0] * y[rest], rcond=None)[0]
    np.testing.assert_allclose(found[~rest], (y - z @ first @ second)[~rest], rtol=1e-9)


def test_cross_validation_leaves_out_what_the_data_do_not_carry() -> None:
    rng = np.random.default_rng(8)
    w, u = rng.integers(0, 2, size=200).astype(float), rng.normal(size=200)
    data = IVData.from_arrays(u, w + u, instruments=w, groups=np.arange(200) // 4)
    fitted = TSLSConfig(features="cv").fit(data)
    assert (fitted.config.degree, fitted.config.features, fitted.errors) == (1, "polynomial", "clustered")


def test_spline_bends_at_quantiles() -> None:
    x = np.linspace(0.0, 10.0, 1001)
    basis = TSLSConfig(degree=1, features="spline", knots=3)._basis(x)
    np.testing.assert_allclose(np.array(basis.knots) * basis.scale + basis.shift, [2.5, 5.0, 7.5])
    assert basis.size == basis(x).shape[1] == 4
    np.testing.assert_allclose(Basis(0.0, 1.0, 2, (1.0,))(np.array([3.0])), [[3.0, 9.0, 4.0]])


def test_binary_variables_carry_one_function() -> None:
    rng = np.random.default_rng(4)
    w, u = rng.integers(0, 2, size=500).astype(float), rng.normal(size=500)
    x = (w + u > 0.5).astype(float)
    data = IVData.from_arrays(x + u, x, instruments=w, treatment_kind="binary")
    for features in ("polynomial", "spline"):
        fitted = TSLSConfig(degree=3, features=features).fit(data)  # type: ignore[arg-type]
        assert fitted.basis == Basis(x.mean(), x.std(), 1, ())
        effect = np.diff(predict(fitted, [0.0, 1.0]))
        np.testing.assert_allclose(effect, TSLSConfig().fit(data).slope, rtol=1e-8)


def test_sieve_with_too_few_instruments_or_rows() -> None:
    rng = np.random.default_rng(5)
    w, u = rng.integers(0, 2, size=60).astype(float), rng.normal(size=60)
    with pytest.raises(DataError, match=r"3 columns of the treatment but only 1 of the instruments"):
        TSLSConfig(degree=3).fit(IVData.from_arrays(u, w + u, instruments=w))
    data = DemandDesign().sample(40, 0.5, 0)
    with pytest.raises(DataError, match=r"27 columns for 40 rows; give at least 54 rows"):
        TSLSConfig(degree=8, interactions=True).fit(data)


@pytest.mark.parametrize("wrong", [{"degree": 0}, {"features": "fourier"}, {"knots": 0}])
def test_bad_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        TSLSConfig(**wrong)
