"""`IVRegressor` under scikit-learn's own tools, and scikit-learn's tools on the methods themselves."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone, is_regressor
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score, cross_validate
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted

from bgmiv import BGMIV, TSLS, IVRegressor
from bgmiv.errors import ConfigError, DataError, NotFittedError
from bgmiv.trust.moments import conditions_of, moment_risk

rng = np.random.default_rng(3)
W, V, U = rng.normal(size=(3, 400))
X = W + V + U
Y = 2.0 * X + V - 2.0 * U
REGION = np.where(V > 0, "north", "south")
ARRAY = np.column_stack([X, W, V])
FRAME = pd.DataFrame({"price": X, "cost": W, "season": V, "region": REGION})


def quick(**params: Any) -> BGMIV:
    return BGMIV(warm_start_iterations=20, members=1, held_out=0.0, random_state=0, **params)


def by_name(estimator: Any = None, **params: Any) -> IVRegressor:
    return IVRegressor(estimator or TSLS(), treatment="price", instruments=["cost"], **params)


def test_it_predicts_the_structural_function_at_the_observed_treatment() -> None:
    model = IVRegressor(TSLS(), treatment=0, instruments=[1]).fit(ARRAY, Y)
    plain = TSLS().fit(Y, X, instruments=W, covariates=V)
    np.testing.assert_allclose(model.predict(ARRAY), plain.predict(X, V))
    check_is_fitted(model)
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
    assert model.score(frame, Y) == model.score(shuffled, Y)


def test_arrays_of_objects_are_read_by_column() -> None:
    model = IVRegressor(TSLS(), treatment=0, instruments=[1]).fit(FRAME.to_numpy(dtype=object), Y)
    np.testing.assert_allclose(model.predict(FRAME.to_numpy(dtype=object)), by_name().fit(FRAME, Y).predict(FRAME))


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


def test_grid_search_over_the_methods_own_arguments() -> None:
    # One shape of data, so that one program is compiled: folds of as many rows as the last fit.
    folds = [(np.arange(200), np.arange(200, 400)), (np.arange(200, 400), np.arange(200))]
    regressor = by_name(quick(), covariates=["season"])
    search = GridSearchCV(regressor, {"estimator__random_state": [1, 2]}, cv=folds, refit=False).fit(FRAME, Y)
    scores = search.cv_results_["mean_test_score"]
    assert search.cv_results_["param_estimator__random_state"].tolist() == [1, 2]
    assert scores[0] != scores[1]
    best = clone(regressor).set_params(**search.best_params_).fit(FRAME[:200], Y[:200])
    assert best.score(FRAME[200:], Y[200:]) == search.cv_results_["split0_test_score"][search.best_index_]


def test_grid_search_over_methods() -> None:
    search = GridSearchCV(by_name(), {"estimator": [TSLS(use_instrument=False), TSLS()]}, cv=3).fit(FRAME, Y)
    assert search.best_params_["estimator"].use_instrument


def test_at_the_end_of_a_pipeline() -> None:
    scaled = Pipeline([("scale", StandardScaler()), ("iv", IVRegressor(TSLS(), treatment=0, instruments=[1]))])
    np.testing.assert_allclose(
        scaled.fit(ARRAY, Y).predict(ARRAY), scaled.named_steps["iv"].fit(ARRAY, Y).predict(ARRAY)
    )
    named = Pipeline([("scale", StandardScaler().set_output(transform="pandas")), ("iv", by_name())])
    assert np.isfinite(cross_validate(named, FRAME.drop(columns="region"), Y, cv=2)["test_score"]).all()


def test_grouped_folds() -> None:
    scores = cross_val_score(
        by_name(), FRAME, pd.Series(Y, name="sales"), cv=GroupKFold(4), groups=np.arange(400) // 10
    )
    assert np.isfinite(scores).all()


def test_weights_reach_the_method() -> None:
    counts = np.where(np.arange(400) % 5 == 0, 3, 1)
    rows = np.repeat(np.arange(400), counts)
    weighted = by_name().fit(FRAME, Y, sample_weight=counts, groups=np.arange(400) // 10)
    repeated = by_name().fit(FRAME.iloc[rows].reset_index(drop=True), Y[rows])
    np.testing.assert_allclose(weighted.predict(FRAME), repeated.predict(FRAME))
    found = cross_validate(by_name(), FRAME, Y, params={"sample_weight": counts}, return_estimator=True)
    assert all(model.estimator_.data_.weights is not None for model in found["estimator"])


def test_parameters_clone_and_repr() -> None:
    model = by_name(quick(), covariates=["season"])
    params = model.get_params(deep=True)
    assert params["estimator__warm_start_iterations"] == 20
    assert set(model.get_params(deep=False)) == {"estimator", "treatment", "instruments", "covariates", "blocks"}
    model.set_params(estimator__members=3, treatment="cost")
    assert model.estimator.members == 3
    twin = clone(model)
    assert twin.estimator is not model.estimator
    assert repr(twin) == repr(model)
    assert "members=3" in repr(model)
    assert "IVRegressor" in estimator_html_repr(model)
    with pytest.raises(ValueError, match="Invalid parameter 'depth'"):
        model.set_params(depth=2)
    assert is_regressor(model)
    assert model.__sklearn_tags__().target_tags.required


def test_scikit_learn_clones_the_method_itself() -> None:
    model = quick().set_params(members=2)
    twin = clone(model)
    assert twin is not model
    assert twin.get_params() == model.get_params()
    assert repr(twin) == "BGMIV(members=2, held_out=0.0, warm_start_iterations=20, random_state=0)"


def test_the_estimator_given_is_not_fitted() -> None:
    model = by_name()
    model.fit(FRAME, Y)
    assert not hasattr(model.estimator, "fitted_")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"treatment": "prize"}, "treatment: the table has no column 'prize'. Did you mean 'price'"),
        ({"treatment": ["price", "season"]}, "treatment must be one column"),
        ({"treatment": 9}, "treatment: there is no column 9, X has 4"),
        ({"treatment": 1.5}, "names or positions of columns, got 1.5"),
        ({"instruments": []}, "instruments are missing"),
        ({"instruments": ["price"]}, "'price' has two roles"),
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


def test_without_scikit_learn_the_message_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = sys.modules['sklearn.base'] = None\n"
        "import bgmiv\n"
        "try:\n    bgmiv.IVRegressor(None)\n"
        "except bgmiv.errors.MissingExtraError as error:\n    print(error)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "bgmiv[sklearn]" in shown.stdout
