"""Questions with intervals: whose answers are known, and those of small fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgmiv import BGMIV, KIV, TSLS, ConfigError
from bgmiv.errors import DataError

OPTIMISED = True

RNG = np.random.default_rng(0)
N = 400
W, V, U, E = RNG.normal(size=(4, N))
X = W + V + U
Y = 2.0 * X + V + 0.9 * U + 0.4 * E
AGE = {"age": V}
GROUPS = np.arange(N) // 4


@pytest.fixture(scope="module")
def tsls() -> TSLS:
    return TSLS().fit(Y, X, instruments=W, covariates=AGE)


@pytest.fixture(scope="module")
def honest() -> BGMIV:
    """A real fit of the default preset, shortened."""
    return BGMIV(members=3, warm_start_iterations=1200, random_state=0).fit(Y, X, instruments=W, covariates=AGE)


@pytest.fixture(scope="module")
def quick() -> BGMIV:
    model = BGMIV(members=3, warm_start_iterations=20, held_out=0.0, bootstrap=True, random_state=0)
    return model.fit(Y, X, instruments=W, covariates=AGE, groups=GROUPS)


def test_of_2sls_they_are_those_of_linearmodels(tsls: TSLS) -> None:
    result = tsls.fitted_.result
    found = tsls.ate_interval(AGE, t0=1.0, t1=2.0)
    assert found.estimate == pytest.approx(result.params["treatment"])
    assert found.std_error == pytest.approx(result.std_errors["treatment"])
    lower, upper = found
    np.testing.assert_allclose([lower, upper], result.conf_int().loc["treatment"])
    wide, narrow = (tsls.ate_interval(AGE, t0=1.0, t1=2.0, level=level) for level in (0.99, 0.5))
    assert wide.upper > found.upper > narrow.upper > found.estimate > narrow.lower
    point = tsls.predict_interval([0.0, 1.0], {"age": [0.0, 1.0]})
    np.testing.assert_allclose(point.estimate, tsls.predict([0.0, 1.0], {"age": [0.0, 1.0]}))
    slope = tsls.marginal_effect_interval(0.5, {"age": [0.0, 1.0]}, step=0.1)
    np.testing.assert_allclose(slope.std_error, result.std_errors["treatment"])


def test_sieves_with_interactions_have_the_covariance_of_all_their_terms() -> None:
    model = TSLS(degree=2, interactions=True).fit(Y, X, instruments=W, covariates=AGE)
    result = model.fitted_.result
    found = model.predict_interval(0.7, {"age": [0.3]})
    values = model.fitted_.basis(np.array([0.7]))[0]
    row = np.concatenate([[1.0, 0.3], values, values * 0.3])
    assert found.std_error[0] == pytest.approx(np.sqrt(row @ result.cov.to_numpy() @ row))
    assert found.estimate[0] == pytest.approx(row @ result.params.to_numpy())


def test_a_fit_has_intervals_for_every_question(honest: BGMIV) -> None:
    grid = np.linspace(-2.0, 2.0, 5)
    curve = honest.dose_response_interval(grid, AGE)
    np.testing.assert_allclose(curve.estimate, honest.dose_response(grid, AGE).values)
    assert set(curve.sources) == {"sampling", "network"}
    assert (curve.lower < curve.estimate).all()
    assert (curve.estimate < curve.upper).all()
    total = np.sqrt(curve.sources["sampling"] ** 2 + curve.sources["network"] ** 2)
    np.testing.assert_allclose(curve.std_error, total)
    each = honest.dose_response_interval(grid, {"age": V[:6]}, average=False)
    assert each.estimate.shape == each.lower.shape == each.in_support.shape == (5, 6)
    effect = honest.effect_interval({"age": V[:6]}, t0=-1.0, t1=1.0)
    np.testing.assert_allclose(effect.estimate, honest.effect({"age": V[:6]}, t0=-1.0, t1=1.0))
    average = honest.ate_interval(AGE, t0=-1.0, t1=1.0)
    assert average.estimate == pytest.approx(honest.ate(AGE, t0=-1.0, t1=1.0))
    after, before = (honest.fitted_.deviations(t, AGE) for t in (1.0, -1.0))
    changes = [np.mean(up.deviations - down.deviations, axis=1) for up, down in zip(after, before, strict=True)]
    assert average.std_error == pytest.approx(np.sqrt(sum(np.sum(change**2) for change in changes)))


def test_the_truth_is_mostly_inside(honest: BGMIV) -> None:
    inside = honest.in_support(X, AGE)
    found = honest.predict_interval(X[inside], {"age": V[inside]})
    truth = 2.0 * X[inside] + V[inside]
    assert np.mean((found.lower <= truth) & (truth <= found.upper)) > 0.8
    # Not because they are as wide as the data.
    assert np.mean(found.upper - found.lower) < np.std(Y)


def test_far_away_is_outside_and_less_certain(honest: BGMIV) -> None:
    assert honest.in_support(X, AGE).mean() > 0.95
    assert not honest.in_support([9.0, 0.0], {"age": [0.0, 9.0]}).any()
    near, far = honest.predict_interval([0.0, 9.0], {"age": [0.0, 0.0]}).std_error
    assert far > 2.0 * near
    share = honest.dose_response_interval([0.0, 30.0], AGE).in_support
    assert share[0] > 0.5
    assert share[1] == 0.0


def test_bootstrapped_members_are_the_interval(quick: BGMIV) -> None:
    found = quick.predict_interval(0.5, AGE)
    values = quick.fitted_.predict_members(0.5, AGE)
    assert set(found.sources) == {"bootstrap"}
    np.testing.assert_allclose(found.sources["bootstrap"], values.std(axis=0, ddof=1), rtol=1e-6)
    with pytest.raises(ConfigError, match="members"):
        BGMIV(members=1, bootstrap=True).fit(Y, X, instruments=W)


def test_sensitivity_may_be_the_first_question() -> None:
    model = BGMIV(members=1, warm_start_iterations=20, held_out=0.0, random_state=0)
    found = model.fit(Y, X, instruments=W, covariates=AGE).sensitivity(0.1)
    assert found.lower < found.upper
    assert found.fit_breakdown is not None


def test_what_intervals_are_is_said_by_the_fit(quick: BGMIV, honest: BGMIV, tsls: TSLS) -> None:
    assert "bootstrapped" in quick.fitted_.interval_kind
    assert "linearised" in honest.fitted_.interval_kind
    assert "robust" in tsls.fitted_.interval_kind
    clustered = TSLS().fit(Y, X, instruments=W, covariates=AGE, groups=GROUPS)
    assert "clustered" in clustered.fitted_.interval_kind


def test_draws_are_arviz_data(quick: BGMIV) -> None:
    pytest.importorskip("arviz")
    found = quick.posterior(0.5, {"age": [0.0, 1.0]}, draws=200, chains=4, warmup=60)
    assert dict(found.posterior.sizes) == {"chain": 4, "draw": 200, "row": 2, "latent": 20}
    model = found.posterior["structural_model"].to_numpy().reshape(-1, 2)
    np.testing.assert_allclose(model.mean(axis=0), quick.predict(0.5, {"age": [0.0, 1.0]}), atol=0.2 * model.std())
    np.testing.assert_allclose(model.std(axis=0), quick.predict_interval(0.5, {"age": [0.0, 1.0]}).std_error, rtol=0.15)
    assert (found.constant_data["divergences"] == 0).all()
    with pytest.raises(ConfigError, match="member must lie between 0 and 2"):
        quick.posterior(0.5, {"age": [0.0]}, member=3)


@pytest.mark.parametrize("level", [0.0, 1.0, 95, -0.5, True, "0.9", float("nan")])
def test_levels_out_of_range_are_refused(tsls: TSLS, level: Any) -> None:
    with pytest.raises(ConfigError, match="level must lie between 0 and 1"):
        tsls.ate_interval(AGE, t0=0.0, t1=1.0, level=level)


def test_methods_with_point_estimates_say_so() -> None:
    model = KIV().fit(Y[:100], X[:100], instruments=W[:100], covariates={"age": V[:100]})
    with pytest.raises(ConfigError, match="KIV gives point estimates only"):
        model.predict_interval(0.0, {"age": [0.0]})
    assert model.in_support([0.0, 50.0], {"age": [0.0, 0.0]}).tolist() == [True, False]


def test_probabilities_stay_between_zero_and_one() -> None:
    yes = Y > 0
    model = BGMIV(members=2, warm_start_iterations=20, held_out=0.0, random_state=0)
    model.fit(yes, X > 0, instruments=W, covariates=AGE)
    found = model.predict_interval(True, AGE, level=0.999)
    assert found.lower.min() >= 0.0
    assert found.upper.max() <= 1.0
    assert model.in_support(False, {"age": [0.0]}).tolist() == [True]


def test_a_loaded_model_has_the_same_intervals_and_no_rows(quick: BGMIV, tmp_path: Path) -> None:
    quick.save(tmp_path / "fit")
    loaded = BGMIV.load(tmp_path / "fit")
    for one, other in zip(quick.predict_interval(0.3, AGE), loaded.predict_interval(0.3, AGE), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(DataError, match="holds no rows"):
        loaded.analysis(by="age")
