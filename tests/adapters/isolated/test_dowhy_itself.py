"""DoWhy's own `CausalModel` with bgmiv's methods: `make adapters` runs this in an environment of its own."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from bgmiv import BGMIV, KIV, TSLS
from bgmiv.errors import ConfigError, DataError

with warnings.catch_warnings():
    # What DoWhy and its dependencies warn of is not ours to judge.
    warnings.simplefilter("ignore")
    dowhy = pytest.importorskip("dowhy")
    from bgmiv.adapters.dowhy import DoWhyEstimator
pd = pytest.importorskip("pandas")

pytestmark = pytest.mark.filterwarnings("ignore")
OPTIMISED = True

METHOD = "iv.bgmiv.adapters.dowhy.DoWhyEstimator"
rng = np.random.default_rng(2)
N = 1000
COST, SEASON, SHOCK = rng.normal(size=(3, N))
PRICE = COST + SEASON + SHOCK
SALES = -3.0 * PRICE + SEASON + 4.0 * SHOCK + 0.5 * rng.normal(size=N)
DATA = pd.DataFrame(
    {"cost": COST, "season": SEASON, "price": PRICE, "sales": SALES, "region": np.where(rng.random(N) < 0.5, "n", "s")}
)


def causal_model(data: Any = DATA, **more: Any) -> Any:
    return dowhy.CausalModel(
        data, treatment="price", outcome="sales", instruments=["cost"], common_causes=["season"], **more
    )


def estimate(model: Any, estimator: Any, **options: Any) -> Any:
    params = {"estimator": estimator, **options.pop("params", {})}
    estimand = model.identify_effect(proceed_when_unidentifiable=True)
    return model.estimate_effect(estimand, method_name=METHOD, method_params=params, **options)


def test_two_stage_least_squares_through_dowhy() -> None:
    found = estimate(causal_model(), TSLS(), control_value=0.0, treatment_value=2.0)
    plain = TSLS().fit_table(DATA, outcome="sales", treatment="price", instruments="cost", covariates="season")
    assert found.value == pytest.approx(2.0 * plain.fitted_.slope)
    assert isinstance(found.estimator, DoWhyEstimator)
    assert found.estimator.fitted.data_.schema.covariate_names == ("season",)
    assert "bgmiv.TSLS" in str(found)
    assert found.estimator.do(1.0) - found.estimator.do(0.0) == pytest.approx(plain.fitted_.slope)


def test_intervals_errors_and_tests_are_the_methods_own() -> None:
    found = estimate(causal_model(), TSLS(), confidence_intervals=True, test_significance=True)
    plain = found.estimator.fitted.ate_interval(DATA, t0=0, t1=1)
    assert found.get_confidence_intervals() == (pytest.approx(plain.lower), pytest.approx(plain.upper))
    assert plain.lower < -3.0 < plain.upper
    assert found.get_standard_error() == pytest.approx(plain.std_error)
    assert found.test_stat_significance()["p_value"] < 1e-6
    assert "95.0% confidence interval" in str(found)


def test_methods_without_intervals_are_bootstrapped_by_dowhy() -> None:
    found = estimate(causal_model(DATA[:150]), KIV(random_state=0), params={"num_simulations": 5})
    lower, upper = found.get_confidence_intervals()
    assert lower < upper


def test_bgm_iv_through_dowhy() -> None:
    model = BGMIV(random_state=0, members=2, iterations=800)
    found = estimate(causal_model(), model, control_value=-1.0, treatment_value=1.0)
    assert found.value == pytest.approx(-6.0, abs=1.2)
    assert not hasattr(model, "fitted_")


def test_effect_modifiers_and_target_units() -> None:
    model = causal_model(effect_modifiers=["region"])
    found = estimate(model, TSLS(), target_units=lambda data: data["region"] == "n")
    assert set(found.estimator.fitted.data_.schema.covariate_names) == {"season", "region"}
    assert len(found.cate_estimates) == (DATA["region"] == "n").sum()
    assert found.conditional_estimates.index.tolist() == ["n"]
    others = estimate(model, TSLS(), target_units=DATA[:10])
    assert len(others.cate_estimates) == 10
    treated = causal_model(DATA.assign(price=PRICE > 0))
    assert len(estimate(treated, TSLS(), target_units="att").cate_estimates) == (PRICE > 0).sum()


def test_refuters_refit_it() -> None:
    model = causal_model()
    estimand = model.identify_effect(proceed_when_unidentifiable=True)
    found = model.estimate_effect(estimand, method_name=METHOD, method_params={"estimator": TSLS()})
    subset = model.refute_estimate(estimand, found, method_name="data_subset_refuter", num_simulations=3)
    assert subset.new_effect == pytest.approx(found.value, abs=0.3)


def test_bad_questions_are_named() -> None:
    with pytest.raises(ConfigError, match="estimator must be a bgmiv method"):
        estimate(causal_model(), object())
    with pytest.raises(ConfigError, match="no row has the treatment 1"):
        estimate(causal_model(), TSLS(), target_units="att")
    with pytest.raises(ConfigError, match="target_units must be"):
        estimate(causal_model(), TSLS(), target_units="all")
    with pytest.raises(DataError, match="no column 'seasons'"):
        estimate(causal_model(), TSLS(), params={"covariates": ["seasons"]})
    chosen = estimate(causal_model(), TSLS(), params={"covariates": ["region"]})
    assert chosen.estimator.fitted.data_.schema.covariate_names == ("region",)
    without = dowhy.CausalModel(DATA, treatment="price", outcome="sales", common_causes=["season"])
    estimand = without.identify_effect(proceed_when_unidentifiable=True)
    with pytest.raises(ConfigError, match="no instruments"):
        DoWhyEstimator(estimand, TSLS()).fit(DATA)
