from __future__ import annotations

import numpy as np
import pytest
from linearmodels.iv import IV2SLS
from sklearn.base import clone

from bgmiv.data.ivdata import IVData
from bgmiv.designs import DemandDesign, VectorProxyDesign
from bgmiv.errors import DataError, NotFittedError
from bgmiv.estimators.tsls import TSLS, TSLSConfig


def test_equals_linearmodels() -> None:
    data, grid = DemandDesign().sample(800, 0.5, 0), DemandDesign().grid()
    fitted = TSLSConfig().fit(data)
    exogenous = np.column_stack([np.ones(800), data.covariates])
    reference = IV2SLS(data.outcome, exogenous, data.treatment, data.instruments).fit(cov_type="robust")
    points = np.column_stack([np.ones(2800), grid.covariates["time"], grid.covariates["group"], grid.treatment])
    np.testing.assert_allclose(
        fitted.predict(grid.treatment, grid.covariates), points @ reference.params.to_numpy(), rtol=1e-9
    )
    np.testing.assert_allclose(fitted.result.std_errors, reference.std_errors, rtol=1e-9)
    assert list(fitted.result.params.index) == ["const", "time", "group", "price"]
    assert fitted.history == ()


def test_equals_the_textbook_formula() -> None:
    data = DemandDesign().sample(400, 0.5, 1)
    fitted = TSLSConfig().fit(data)
    z = np.column_stack([np.ones(400), data.covariates, data.instruments])
    x = np.column_stack([np.ones(400), data.covariates, data.treatment])
    x_hat = z @ np.linalg.lstsq(z, x, rcond=None)[0]
    beta = np.linalg.lstsq(x_hat, data.outcome, rcond=None)[0]
    np.testing.assert_allclose([fitted.intercept, *fitted.coefficients, fitted.slope], beta, rtol=1e-8)


def test_several_instruments_and_no_covariates() -> None:
    rng = np.random.default_rng(0)
    w = rng.normal(size=(5000, 2))
    u = rng.normal(size=5000)
    x = w @ [1.0, -0.5] + u
    fitted = TSLSConfig().fit(IVData.from_arrays(3.0 + 2.0 * x - u, x, instruments=w))
    assert fitted.slope == pytest.approx(2.0, abs=0.05)
    np.testing.assert_allclose(fitted.predict(1.0), [fitted.intercept + fitted.slope])


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
    at_zero = fitted.predict([0.0, 0.0], {"region": ["east", "north"]})
    assert at_zero[1] - at_zero[0] == pytest.approx(5.0, abs=0.15)


def test_redundant_columns_name_cause_and_fix() -> None:
    rng = np.random.default_rng(2)
    w, v, u = rng.normal(size=(3, 100))
    data = IVData.from_arrays(u, w + u, instruments=w, covariates={"a": v, "b": 2.0 * v, "c": 1.0 - v})
    with pytest.raises(DataError, match=r"linear combinations.*remove the redundant columns"):
        TSLSConfig().fit(data)


def test_too_many_covariates_for_the_rows() -> None:
    data = VectorProxyDesign(vector_dim=30).sample(50, 0.5, 0)
    with pytest.raises(DataError, match=r"31 covariate columns and 50 rows.*at least 62 rows"):
        TSLSConfig().fit(data)


def test_needs_an_instrument() -> None:
    data = DemandDesign().sample(50, 0.5, 0).without_instruments()
    with pytest.raises(DataError, match=r"needs an instrument"):
        TSLSConfig().fit(data)


def test_user_class() -> None:
    data = DemandDesign().sample(300, 0.5, 0)
    covariates = {"time": data.covariates[:, 0], "group": data.covariates[:, 1]}
    model = TSLS()
    with pytest.raises(NotFittedError):
        model.predict(20.0, covariates)
    model.fit(data.outcome, data.treatment, instruments=data.instruments, covariates=covariates)
    np.testing.assert_allclose(
        model.predict(20.0, covariates), TSLSConfig().fit(data).predict(20.0, covariates), rtol=1e-12
    )
    assert repr(model) == "TSLS()"
    assert clone(model).get_params() == {}
