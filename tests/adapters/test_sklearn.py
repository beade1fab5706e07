"""`IVRegressor` under scikit-learn's own tools, and scikit-learn's tools on the methods themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone, is_regressor
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score, cross_validate
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from bgmiv import BGMIV, TSLS, IVRegressor
from bgmiv.diagnostics.moments import conditions_of, moment_risk
from bgmiv.errors import ConfigError, DataError, NotFittedError

rng = np.random.default_rng(3)
W, V, U = rng.normal(size=(3, 400))
X = W + V + U
Y = 2.0 * X + V - 2.0 * U
REGION = np.where(V > 0, "north", "south")
ARRAY = np.column_stack([X, W, V])
FRAME = pd.DataFrame({"price": X, "cost": W, "season": V, "region": REGION})


def quick(**params: Any) -> BGMIV:
    """Untrained: what is tested here does not depend on the training."""
    return BGMIV(iterations=0, members=2, held_out=0.0, random_state=0, **params)


def by_name(estimator: Any = None, **params: Any) -> IVRegressor:
    return IVRegressor(estimator or TSLS(), treatment="price", instruments=["cost"], **params)


def test_it_predicts_the_structural_function_at_the_observed_treatment() -> None:
    model = IVRegressor(TSLS(), treatment=0, instruments=[1]).fit(ARRAY, Y)
    plain = TSLS().fit(Y, X, instruments=W, covariates=V)
    np.testing.assert_allclose(model.predict(ARRAY), plain.predict(X, V))
    check_is_fitted(model)
    assert not hasattr(model.estimator, "fitted_")
    assert model.n_features_in_ == 3
    assert not hasattr(model, "feature_names_in_")


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
def test_tables_keep_names_and_levels(make: Any) -> None:
    frame = make(FRAME.to_dict("list"))
    model = by_name().fit(frame, Y)
    assert model.feature_names_in_.tolist() == ["price", "cost", "season", "region"]
    assert model.estimator_.data_.schema.covariate_names == ("season", "region")
    shuffled = frame[["region", "season", "cost", "price"]]
    np.testing.assert_array_equal(model.predict(frame), model.predict(shuffled))
    objects = IVRegressor(TSLS(), treatment=0, instruments=[1]).fit(FRAME.to_numpy(dtype=object), Y)
    np.testing.assert_allclose(objects.predict(FRAME.to_numpy(dtype=object)), model.predict(frame))
    assert model.score(frame, Y) == model.score(shuffled, Y)


def test_the_score_prefers_the_causal_fit_where_r2_prefers_the_confounded() -> None:
    causal, confounded = by_name(), by_name(TSLS(use_instrument=False))
    scores = [cross_val_score(model, FRAME, Y).mean() for model in (causal, confounded)]
    fits = [cross_val_score(model, FRAME, Y, scoring="r2").mean() for model in (causal, confounded)]
    assert scores[0] > -0.003 > scores[1]
    assert fits[0] < fits[1]


def test_the_score_of_an_outcome_with_levels() -> None:
    grade = np.where(Y < -2, "low", np.where(Y > 2, "top", "mid"))
    model = by_name(quick(), covariates=["season"]).fit(FRAME, grade)
    g = model.predict(FRAME)
    assert g.shape == (400, 3)
    levels = model.estimator_.fitted_.schema.outcome.levels
    seen = np.stack([grade == level for level in levels], axis=1).astype(float)
    conditions = conditions_of(model.estimator_.data_)
    risk = sum(moment_risk(seen[:, k] - g[:, k], conditions) for k in range(3))
    np.testing.assert_allclose(model.score(FRAME, grade), -risk / seen.var(axis=0).sum(), rtol=1e-6)


def test_grid_search_over_methods_and_their_arguments() -> None:
    search = GridSearchCV(by_name(), {"estimator__use_instrument": [False, True]}, cv=GroupKFold(3))
    search.fit(FRAME, pd.Series(Y, name="sales"), groups=np.arange(400) // 10)
    assert search.best_params_ == {"estimator__use_instrument": True}


def test_at_the_end_of_a_pipeline() -> None:
    named = Pipeline([("scale", StandardScaler().set_output(transform="pandas")), ("iv", by_name())])
    assert np.isfinite(cross_validate(named, FRAME.drop(columns="region"), Y, cv=2)["test_score"]).all()


def test_weights_reach_the_method() -> None:
    counts = np.where(np.arange(400) % 5 == 0, 3, 1)
    rows = np.repeat(np.arange(400), counts)
    weighted = by_name().fit(FRAME, Y, sample_weight=counts, clusters=np.arange(400) // 10)
    repeated = by_name().fit(FRAME.iloc[rows].reset_index(drop=True), Y[rows])
    np.testing.assert_allclose(weighted.predict(FRAME), repeated.predict(FRAME))
    found = cross_validate(by_name(), FRAME, Y, params={"sample_weight": counts}, return_estimator=True)
    assert all(model.estimator_.data_.weights is not None for model in found["estimator"])


def test_parameters_clone_and_repr() -> None:
    model = by_name(quick(), covariates=["season"])
    assert model.get_params(deep=True)["estimator__iterations"] == 0
    model.set_params(estimator__members=3, treatment="cost")
    copy = clone(model)
    assert copy.estimator is not model.estimator
    assert copy.estimator.get_params() == model.estimator.get_params()
    assert "members=3" in repr(model)
    assert is_regressor(model)
    assert model.__sklearn_tags__().target_tags.required


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"treatment": "prize"}, "treatment: the table has no column 'prize'. Did you mean 'price'"),
        ({"treatment": ["price", "season"]}, "treatment must be one column"),
        ({"treatment": 9}, "treatment: there is no column 9, X has 4"),
        ({"treatment": 1.5}, "names or positions of columns, got 1.5"),
        ({"covariates": ["cost"]}, "'cost' has two roles"),
        ({"estimator": object()}, "estimator must be a bgmiv method"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        by_name().set_params(**change).fit(FRAME, Y)


def test_bad_rows_are_named() -> None:
    model = by_name()
    with pytest.raises(NotFittedError, match="call fit"):
        model.predict(FRAME)
    model.fit(FRAME, Y)
    with pytest.raises(DataError, match="no column 'season'"):
        model.predict(FRAME.drop(columns="season"))
    with pytest.raises(DataError, match="X has 3 features, but IVRegressor was fitted on 4"):
        model.predict(ARRAY)
    with pytest.raises(DataError, match="two dimensions"):
        by_name().fit(X, Y)
    with pytest.raises(DataError, match="instrument 'cost' has 1 missing value"):
        model.score(FRAME.assign(cost=np.where(np.arange(400) == 3, np.nan, W)), Y)
