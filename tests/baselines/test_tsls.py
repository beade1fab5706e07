from __future__ import annotations

import numpy as np
import pytest
from linearmodels.iv import IV2SLS

from bgmiv.baselines.tsls import TSLSConfig
from bgmiv.data.ivdata import IVData
from bgmiv.designs import DemandDesign
from bgmiv.effects import predict
from bgmiv.errors import DataError


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
