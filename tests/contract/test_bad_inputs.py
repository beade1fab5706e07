"""Bad inputs through a method: errors of the data come through `fit`, and questions are checked against the fit.

What each error of the data says is tested in tests/data/test_bad_inputs.py, once for all methods.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from bgmiv import BGMIV, KIV, TSLS
from bgmiv.errors import BGMIVWarning, ConfigError, DataError, WeakInstrumentWarning
from bgmiv.estimators.base import IVEstimator

N = 60
RNG = np.random.default_rng(0)
W, V, U = RNG.normal(size=(3, N))
X = W + V + U
Y = 2.0 * X + V - U
REGION = np.where(np.arange(N) % 3, "north", "south")

# Changes of `fit(outcome, treatment, instruments=..., covariates=...)`, and what the message must match.
FIT: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"outcome": np.where(np.arange(N) == 2, np.nan, Y)}, r"outcome has 1 missing value \(row 2\)"),
    "constant treatment": ({"treatment": np.ones(N)}, "treatment is constant, 1 in every row"),
    "short covariates": ({"covariates": V[1:]}, "covariates have 59 rows but outcome has 60"),
    "treatment as instrument": ({"instruments": X}, "'instrument_0' is identical to treatment"),
    "words": ({"covariates": {"place": REGION}}, "'place' holds strings.*blocks="),
    "no instruments": ({"instruments": None}, "instruments are missing"),
    "unknown block": ({"covariates": {"age": V}, "blocks": {"regoin": "categorical"}}, "'regoin'"),
    "negative weight": ({"sample_weight": -np.ones(N)}, "sample_weight: 60 negative values"),
    "one group": ({"clusters": np.zeros(N)}, "clusters: every row is in one cluster"),
}

SETTINGS: dict[str, tuple[Callable[..., IVEstimator], dict[str, Any], str]] = {
    "unknown preset": (BGMIV, {"preset": "best"}, "preset must be one of .*'best'"),
    "unknown kind of treatment": (TSLS, {"treatment_kind": "ordinal"}, "treatment_kind must be one of .*'ordinal'"),
    "unknown kind of outcome": (TSLS, {"outcome_kind": "counts"}, "outcome_kind must be one of .*'counts'"),
    "binary treatment of many values": (TSLS, {"treatment_kind": "binary"}, "treatment is binary but has"),
    "negative seed": (KIV, {"random_state": -1}, r"random_state must be None, a whole number .* got -1"),
    "seed with a fraction": (KIV, {"random_state": 0.5}, r"random_state must be None, a whole number .* got 0\.5"),
    "true as seed": (KIV, {"random_state": True}, r"random_state must be None, a whole number .* got True"),
}

AGE = V[:2]
GOOD = pd.DataFrame({"age": AGE, "region": ["north", "south"]})

# Questions to a model fitted on the table above, and what the message must match.
ASK: dict[str, tuple[Callable[[IVEstimator], Any], str]] = {
    "no covariates": (lambda m: m.predict(1.0), "covariates are missing.*'age', 'region'"),
    "column absent": (lambda m: m.predict(1.0, GOOD[["age"]]), "no column 'region'"),
    "other column": (
        lambda m: m.predict(1.0, GOOD.rename(columns={"age": "aeg"})),
        "no column 'age'. Did you mean 'aeg'",
    ),
    "array too wide": (lambda m: m.predict(1.0, np.zeros((2, 5))), "covariates have 5 columns but the fit had 2"),
    "array too narrow": (lambda m: m.predict(1.0, np.zeros((2, 1))), "covariates have 1 column but the fit had 2"),
    "unseen level": (
        lambda m: m.predict(1.0, GOOD.replace("south", "east")),
        "'region' has levels unseen at fit, 'east'",
    ),
    "level missing": (lambda m: m.predict(1.0, GOOD.replace("south", None)), r"missing values in 'region' \(1\)"),
    "number for a level": (lambda m: m.predict(1.0, GOOD.assign(region=1)), "'region' has levels unseen at fit, 1"),
    "level for a number": (lambda m: m.predict(1.0, GOOD.assign(age="old")), "'age' holds strings"),
    "covariate missing": (lambda m: m.predict(1.0, GOOD.assign(age=np.nan)), r"missing values in 'age' \(2\)"),
    "covariate infinite": (lambda m: m.predict(1.0, GOOD.assign(age=np.inf)), "'age' has 2 infinite values"),
    "covariate huge": (lambda m: m.predict(1.0, GOOD.assign(age=1e300)), "'age' has 2 values .* beyond"),
    "covariate complex": (lambda m: m.predict(1.0, GOOD.assign(age=1j)), "'age' holds complex numbers"),
    "covariate of dates": (lambda m: m.predict(1.0, GOOD.assign(age=pd.Timestamp("2020"))), "'age' holds dates"),
    "duplicated columns": (lambda m: m.predict(1.0, pd.concat([GOOD, GOOD], axis=1)), "duplicated column names"),
    "sparse covariates": (lambda m: m.predict(1.0, scipy.sparse.eye(2)), "covariates is a sparse matrix"),
    "ragged covariates": (
        lambda m: m.predict(1.0, [[1.0, "north"], [2.0]]),
        "covariates has rows of different lengths",
    ),
    "no rows": (lambda m: m.predict(1.0, GOOD.iloc[:0]), "covariates have no rows"),
    "treatment missing": (lambda m: m.predict([1.0, np.nan], GOOD), r"treatment has 1 missing value \(row 1\)"),
    "treatment not there": (lambda m: m.predict(None, GOOD), "treatment must be .*NoneType"),
    "treatment infinite": (lambda m: m.predict(np.inf, GOOD), "treatment has .* infinite"),
    "treatment huge": (lambda m: m.predict(1e300, GOOD), "treatment has .* beyond"),
    "treatment in words": (lambda m: m.predict("high", GOOD), "treatment holds strings"),
    "treatment complex": (lambda m: m.predict(1j, GOOD), "treatment holds complex numbers"),
    "treatment too long": (lambda m: m.predict([1.0, 2.0, 3.0], GOOD), "covariates have 2 rows but treatment has 3"),
    "treatment of no rows": (lambda m: m.predict([], GOOD), "treatment has no rows"),
    "treatment in two columns": (
        lambda m: m.predict(np.zeros((2, 2)), GOOD),
        r"treatment must be one column.*\(2, 2\)",
    ),
    "ragged treatments": (
        lambda m: m.dose_response([[1.0, 2.0], 3.0], GOOD),
        "treatment has rows of different lengths",
    ),
    "treatment as a generator": (lambda m: m.predict((x for x in X), GOOD), "treatment must be .*generator"),
    "treatment masked": (lambda m: m.predict(np.ma.masked_equal([1.0, 2.0], 1.0), GOOD), "treatment has 1 masked row"),
    "treatment with another index": (
        lambda m: m.predict(pd.Series([1.0, 2.0], index=[5, 6]), GOOD),
        "covariates and treatment have different pandas indexes",
    ),
    "effect from missing": (lambda m: m.effect(GOOD, t0=np.nan, t1=1.0), "missing"),
    "effect of words": (lambda m: m.effect(GOOD, t0=0.0, t1="much"), "strings"),
    "slope over nothing": (lambda m: m.marginal_effect(1.0, GOOD, step=0.0), "step must be a number above 0, got 0.0"),
    "slope over less": (lambda m: m.marginal_effect(1.0, GOOD, step=-1.0), "step must be a number above 0, got -1.0"),
    "slope over NaN": (lambda m: m.marginal_effect(1.0, GOOD, step=np.nan), "step must be a number above 0, got nan"),
    "slope over words": (
        lambda m: m.marginal_effect(1.0, GOOD, step="small"),
        "step must be a number above 0, got 'small'",
    ),
    "no doses": (lambda m: m.dose_response([], GOOD), "treatment has no rows"),
    "doses in a matrix": (
        lambda m: m.dose_response(np.zeros((2, 2)), GOOD),
        r"treatment must be one column, got shape \(2, 2\)",
    ),
    "dose missing": (lambda m: m.dose_response([0.0, np.nan], GOOD), "missing"),
    "level above one": (lambda m: m.predict_interval(1.0, GOOD, level=95), "level must lie between 0 and 1.*got 95"),
    "level of one": (
        lambda m: m.ate_interval(GOOD, t0=0.0, t1=1.0, level=1.0),
        "level must lie between 0 and 1.*got 1.0",
    ),
    "level NaN": (lambda m: m.predict_interval(1.0, GOOD, level=np.nan), "level must lie between 0 and 1.*got nan"),
    "level in words": (
        lambda m: m.predict_interval(1.0, GOOD, level="95%"),
        "level must lie between 0 and 1.*got '95%'",
    ),
}


@pytest.fixture(scope="module")
def fitted() -> IVEstimator:
    data = {"y": Y, "x": X, "w": W, "age": V, "region": REGION}
    return TSLS().fit_table(data, outcome="y", treatment="x", instruments="w", covariates=["age", "region"])


@pytest.mark.parametrize("case", FIT)
def test_arguments_of_fit(case: str) -> None:
    changes, message = FIT[case]
    with pytest.raises(DataError, match=message):
        TSLS().fit(**{"outcome": Y, "treatment": X, "instruments": W, **changes})


@pytest.mark.parametrize("case", SETTINGS)
def test_settings(case: str) -> None:
    method, settings, message = SETTINGS[case]
    with pytest.raises((ConfigError, DataError), match=message):
        method(**settings).fit(Y, X, instruments=W)


@pytest.mark.parametrize("case", ASK)
def test_questions(fitted: IVEstimator, case: str) -> None:
    ask, message = ASK[case]
    with pytest.raises((DataError, ConfigError), match=message):
        ask(fitted)


def test_columns_in_another_order_and_more_of_them_are_understood(fitted: IVEstimator) -> None:
    more = GOOD[["region", "age"]].assign(other=1.0)
    np.testing.assert_array_equal(fitted.predict(1.0, more), fitted.predict(1.0, GOOD))


@pytest.mark.parametrize("unit", [1e-30, 1e-8, 1e8, 1e30])
def test_units_far_from_one_are_handled(unit: float) -> None:
    """The linear fit is that of the same data in other units."""
    plain = TSLS().fit(Y, X, instruments=W).predict([0.0, 1.0])
    for scaled, at in (({"outcome": Y * unit}, 1.0), ({"treatment": X * unit}, unit), ({"instruments": W * unit}, 1.0)):
        arguments = {"outcome": Y, "treatment": X, "instruments": W, **scaled}
        found = TSLS().fit(**arguments).predict(np.array([0.0, 1.0]) * at)
        np.testing.assert_allclose(found / (unit if "outcome" in scaled else 1.0), plain, rtol=1e-4)


def test_small_units_of_a_network_are_complained_about() -> None:
    with pytest.warns(BGMIVWarning, match="'treatment': the standard deviation is below 1e-06.*smaller units"):
        KIV(random_state=0).fit(Y, X * 1e-9, instruments=W)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", WeakInstrumentWarning)
        found = KIV(random_state=0).fit(Y * 1e20, X * 1e20, instruments=W * 1e20).predict([0.0, 1e20])
    np.testing.assert_allclose(
        found * 1e-20, KIV(random_state=0).fit(Y, X, instruments=W).predict([0.0, 1.0]), rtol=1e-4
    )
