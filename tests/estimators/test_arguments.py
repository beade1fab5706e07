"""Old names of arguments work with a warning, and errors of wrong ones name the right one."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from bgmiv import BGMIV, NPIV, TSLS
from bgmiv.errors import ArgumentError

RNG = np.random.default_rng(0)
W, U, V = RNG.normal(size=(3, 80))
X = 2.0 * W + U
Y = 2.0 * X - U + V
WEIGHT, FIRM = np.linspace(0.5, 2.0, 80), np.arange(80) // 2
TABLE = {"y": Y, "x": X, "w": W, "v": V, "pw": WEIGHT, "firm": FIRM}
ROLES: dict[str, Any] = {"outcome": "y", "treatment": "x", "instruments": "w", "covariates": "v"}


def model() -> TSLS:
    return TSLS().fit(Y, X, instruments=W, covariates={"v": V}, sample_weight=WEIGHT, clusters=FIRM)


def old(call: Any, *args: Any, **given: Any) -> Any:
    """Call it, and expect one warning for each old name."""
    names = {"weights": "sample_weight", "groups": "clusters"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FutureWarning)
        found = call(*args, **given)
    told = [str(one.message) for one in caught if one.category is FutureWarning]
    assert told == [f"{name}= is now {names[name]}=; the old name will go." for name in given if name in names]
    return found


def test_the_old_names_of_sampling_arguments_work_with_a_warning() -> None:
    wanted = model().ate_interval(t0=0.0, t1=1.0)
    fits = [
        old(TSLS().fit, Y, X, instruments=W, covariates={"v": V}, weights=WEIGHT, groups=FIRM),
        old(TSLS().fit_table, TABLE, **ROLES, weights="pw", groups="firm"),
        old(TSLS().fit_formula, "y ~ v + [x ~ w]", TABLE, weights="pw", groups="firm"),
    ]
    for fit in fits:
        found = fit.ate_interval(t0=0.0, t1=1.0)
        assert (found.estimate, found.lower) == pytest.approx((wanted.estimate, wanted.lower))
    asked = {"t0": 0.0, "t1": 1.0, "sample_weight": WEIGHT}
    renamed = {"t0": 0.0, "t1": 1.0, "weights": WEIGHT}
    assert old(fits[0].ate, **renamed) == fits[0].ate(**asked)
    assert old(fits[0].ate_interval, **renamed).lower == fits[0].ate_interval(**asked).lower
    for name in ("dose_response", "dose_response_interval"):
        old(getattr(fits[0], name), [0.0, 1.0], weights=WEIGHT)


@pytest.mark.parametrize("order", [("sample_weight", "weights"), ("weights", "sample_weight")])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_both_names_of_one_argument_are_refused(order: tuple[str, str]) -> None:
    with pytest.raises(ArgumentError, match="both sample_weight= and weights="):
        TSLS().fit(Y, X, instruments=W, **dict.fromkeys(order, WEIGHT))


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"instrument": W}, r"fit has no argument 'instrument'\. Did you mean 'instruments'\?"),
        ({"instruments": W, "covariate": V}, "Did you mean 'covariates'"),
        ({"instruments": W, "controls": V}, "Did you mean 'covariates'"),
        ({"instruments": W, "cluster": FIRM}, "Did you mean 'clusters'"),
        ({"instruments": W, "qqq": V}, "fit has no argument 'qqq'. It has outcome, treatment, instruments, cov"),
    ],
)
def test_a_wrong_name_is_told_the_right_one(given: dict[str, Any], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        TSLS().fit(Y, X, **given)


def test_roles_by_position_are_told_their_names() -> None:
    with pytest.raises(ArgumentError, match=r"by position\. Name the other arguments: instruments=\.\.\., covariates="):
        TSLS().fit(Y, X, W, V)  # type: ignore[call-arg,misc]


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: TSLS(degree=2), r"TSLS has no argument 'degree': it is linear\. NPIV\(\) fits a curve"),
        (lambda: NPIV(seed=1), "Did you mean 'random_state'"),
        (lambda: BGMIV("paper"), "BGMIV takes its arguments by name, such as preset='paper'"),
        (lambda: model().summary(levels=0.9), "analysis has no argument 'levels'. Did you mean 'level'"),
    ],
)
def test_constructors_and_reports_explain_wrong_arguments(make: Any, match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        make()


def test_an_effect_without_covariates_is_that_of_the_rows_of_the_fit() -> None:
    fit = model()
    np.testing.assert_array_equal(fit.effect(t0=0.0, t1=1.0), fit.effect({"v": V}, t0=0.0, t1=1.0))
    assert fit.effect_interval(t0=0.0, t1=1.0).estimate.shape == (80,)
