"""Sample weights and groups on their way into `IVData`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from bgmiv.data.formula import from_formula
from bgmiv.data.ivdata import IVData, from_frame
from bgmiv.errors import BGMIVWarning, DataError

N = 12
RNG = np.random.default_rng(0)
OUTCOME, TREATMENT, INSTRUMENT, AGE = RNG.normal(size=(4, N))
STATES = ["ny", "ca", "tx"] * (N // 3)


def table(**columns: Any) -> dict[str, Any]:
    plain = {"wage": OUTCOME, "educ": TREATMENT, "near": INSTRUMENT, "age": AGE}
    return {**plain, "pw": np.arange(1.0, N + 1), "state": STATES, **columns}


def arrays(**more: Any) -> IVData:
    return IVData.from_arrays(OUTCOME, TREATMENT, instruments=INSTRUMENT, covariates=AGE, **more)


def test_weights_have_mean_one() -> None:
    data = arrays(weights=np.arange(N))
    assert data.weights is not None
    np.testing.assert_allclose(data.weights, np.arange(N) * N / np.arange(N).sum())
    assert (data.weights_name, data.groups_name, data.groups) == ("weights", "", None)
    assert not data.weights.flags.writeable


def test_huge_weights_do_not_overflow() -> None:
    data = arrays(weights=np.full(N, 3e38))
    assert data.weights is not None
    np.testing.assert_allclose(data.weights, 1.0)


GROUPS = {
    "strings": STATES,
    "integers": [7, -3, 10**12] * 4,
    "floats": [0.5, 1.0, 2.0] * 4,
    "booleans": [True, False, False] * 4,
    "categories": pd.Series(pd.Categorical(STATES)),
    "polars": pl.Series(STATES),
}


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_groups_are_codes_of_anything(groups: Any) -> None:
    data = arrays(groups=groups)
    assert data.groups is not None
    assert data.groups.dtype == np.int64
    found = data.groups.tolist()
    assert found == ([0, 1, 1] * 4 if isinstance(groups, list) and groups[0] is True else [0, 1, 2] * 4)


def test_rows_keep_their_weights_and_groups() -> None:
    data = arrays(weights=np.arange(1, N + 1), groups=STATES)
    assert data.weights is not None
    assert data.groups is not None
    part = data.take([5, 1])
    assert part.weights is not None
    assert part.groups is not None
    np.testing.assert_array_equal(part.weights, data.weights[[5, 1]])
    np.testing.assert_array_equal(part.groups, data.groups[[5, 1]])
    assert data.without_instruments().weights is not None
    levels = IVData.from_arrays(STATES, TREATMENT, instruments=INSTRUMENT, weights=np.arange(N), groups=AGE)
    assert all(one.weights is not None and one.groups is not None for one in levels.outcome_parts())


@pytest.mark.parametrize("kind", [dict, pd.DataFrame, pl.DataFrame])
def test_columns_of_a_table_by_name(kind: Any) -> None:
    names: dict[str, Any] = {"outcome": "wage", "treatment": "educ", "instruments": "near", "covariates": ["age"]}
    data = from_frame(kind(table()), **names, weights="pw", groups="state")
    again, reader = from_formula("wage ~ age + [educ ~ near]", kind(table()), weights="pw", groups="state")
    for found in (data, again):
        np.testing.assert_allclose(found.weights, np.arange(1, N + 1) * 2 / (N + 1))
        np.testing.assert_array_equal(found.groups, [0, 1, 2] * 4)
        assert (found.weights_name, found.groups_name) == ("pw", "state")
        assert found.schema.flat_names == ("age",)
    # Later tables need neither.
    assert reader.covariates({"age": [1.0]}).names == ("age",)


def test_groups_may_be_a_covariate_or_an_instrument_and_weights_a_covariate() -> None:
    data = table(judge=np.arange(N) % 4)
    names: dict[str, Any] = {"outcome": "wage", "treatment": "educ"}
    found = from_frame(data, **names, instruments="judge", covariates=["state", "pw"], weights="pw", groups="judge")
    assert found.groups is not None
    assert found.groups.max() == 3
    assert from_frame(data, **names, instruments="near", covariates=["state"], groups="state").groups is not None


def test_missing_ones_follow_the_rule_of_the_table() -> None:
    holes = table(pw=[np.nan, *np.ones(N - 1)], state=[*STATES[:-1], None])
    names: dict[str, Any] = {"outcome": "wage", "treatment": "educ", "instruments": "near"}
    with pytest.raises(DataError, match=r"missing values in 'pw' \(1\), 'state' \(1\)"):
        from_frame(holes, **names, weights="pw", groups="state")
    with pytest.warns(BGMIVWarning, match="2 of 12 rows are dropped"):
        data = from_frame(holes, **names, weights="pw", groups="state", missing="drop")
    assert data.n_rows == N - 2
    assert data.groups is not None
    assert len(data.groups) == N - 2
    with pytest.warns(BGMIVWarning, match="1 of 12 rows are dropped"):
        data, _ = from_formula("wage ~ [educ ~ near]", holes, weights="pw", missing="drop")
    assert data.weights is not None
    assert len(data.weights) == N - 1


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "negative": ({"weights": [-1.0, *np.ones(N - 1)]}, r"weights: 1 negative value \(row 0\)"),
    "missing": ({"weights": [np.nan, *np.ones(N - 1)]}, "weights has 1 missing value"),
    "infinite": ({"weights": [np.inf, *np.ones(N - 1)]}, "weights has 1 infinite value"),
    "zeros": ({"weights": np.zeros(N)}, "fewer than two rows have a positive weight"),
    "one": ({"weights": [1.0, *np.zeros(N - 1)]}, "fewer than two rows have a positive weight"),
    "words": ({"weights": STATES}, "weights holds strings"),
    "short": ({"weights": np.ones(3)}, "weights have 3 rows but outcome has 12"),
    "wide": ({"weights": np.ones((N, 2))}, "weights must be one column"),
    "groups missing": ({"groups": [None, *STATES[1:]]}, "groups has 1 missing value"),
    "one group": ({"groups": ["ny"] * N}, "every row is in one group, 'ny'"),
    "groups short": ({"groups": STATES[:3]}, "groups have 3 rows but outcome has 12"),
    "groups of dates": ({"groups": pd.Series(pd.date_range("2020", periods=N))}, "groups holds dates"),
    "groups in three columns": ({"groups": np.zeros((N, 3))}, "groups must be one column, or two"),
    "second groups missing": ({"groups": [STATES, [None, *STATES[1:]]]}, "groups 'second groups' has 1 missing value"),
    "second groups short": ({"groups": [STATES, STATES[:3]]}, "second_groups have 3 rows but outcome has 12"),
    "second groups are the outcome": ({"groups": [STATES, OUTCOME]}, "'second groups': identical to the outcome"),
    "groups are the treatment": ({"groups": TREATMENT}, "groups: identical to the treatment"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_ones_are_refused(case: str) -> None:
    arguments, message = BAD[case]
    with pytest.raises(DataError, match=message):
        arrays(**arguments)


def test_weights_that_are_the_outcome_or_the_instrument_are_refused() -> None:
    positive = np.abs(OUTCOME) + 0.1
    with pytest.raises(DataError, match="weights: identical to the outcome"):
        IVData.from_arrays(positive, TREATMENT, instruments=INSTRUMENT, weights=positive)
    with pytest.raises(DataError, match="weights: identical to the instruments"):
        IVData.from_arrays(OUTCOME, TREATMENT, instruments=positive, weights=positive)
    named = pd.Series(positive, name="wage")
    with pytest.raises(DataError, match="'wage' is given both as weights and as outcome"):
        IVData.from_arrays(named, TREATMENT, instruments=INSTRUMENT, weights=named * 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": "wage"}, "'wage' is given both as weights and as outcome"),
        ({"weights": "educ"}, "'educ' is given both as weights and as treatment"),
        ({"weights": "near"}, "'near' is given both as weights and as instruments"),
        ({"groups": "educ"}, "'educ' is given both as groups and as treatment"),
        ({"weights": "pww"}, "no column 'pww'. Did you mean 'pw'"),
        ({"groups": 3}, "groups must be the name of a column of the table, got int"),
        ({"weights": np.ones(N)}, "weights must be the name of a column of the table, got ndarray"),
    ],
)
def test_names_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_frame(table(), outcome="wage", treatment="educ", instruments="near", **arguments)
    with pytest.raises(DataError, match=message):
        from_formula("np.exp(wage) ~ [np.exp(educ) ~ np.exp(near)]", table(), **arguments)
