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
    data = arrays(sample_weight=np.arange(N))
    assert data.weights is not None
    np.testing.assert_allclose(data.weights, np.arange(N) * N / np.arange(N).sum())
    assert (data.weights_name, data.groups_name, data.groups) == ("sample_weight", "", None)
    assert not data.weights.flags.writeable


def test_huge_weights_do_not_overflow() -> None:
    data = arrays(sample_weight=np.full(N, 3e38))
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
    data = arrays(clusters=groups)
    assert data.groups is not None
    assert data.groups.dtype == np.int64
    found = data.groups.tolist()
    assert found == ([0, 1, 1] * 4 if isinstance(groups, list) and groups[0] is True else [0, 1, 2] * 4)


def test_rows_keep_their_weights_and_groups() -> None:
    data = arrays(sample_weight=np.arange(1, N + 1), clusters=STATES)
    assert data.weights is not None
    assert data.groups is not None
    part = data.take([5, 1])
    assert part.weights is not None
    assert part.groups is not None
    np.testing.assert_array_equal(part.weights, data.weights[[5, 1]])
    np.testing.assert_array_equal(part.groups, data.groups[[5, 1]])
    assert data.without_instruments().weights is not None
    levels = IVData.from_arrays(STATES, TREATMENT, instruments=INSTRUMENT, sample_weight=np.arange(N), clusters=AGE)
    assert all(one.weights is not None and one.groups is not None for one in levels.outcome_parts())


@pytest.mark.parametrize("kind", [dict, pd.DataFrame, pl.DataFrame])
def test_columns_of_a_table_by_name(kind: Any) -> None:
    names: dict[str, Any] = {"outcome": "wage", "treatment": "educ", "instruments": "near", "covariates": ["age"]}
    data = from_frame(kind(table()), **names, sample_weight="pw", clusters="state")
    again, reader = from_formula("wage ~ age + [educ ~ near]", kind(table()), sample_weight="pw", clusters="state")
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
    found = from_frame(
        data, **names, instruments="judge", covariates=["state", "pw"], sample_weight="pw", clusters="judge"
    )
    assert found.groups is not None
    assert found.groups.max() == 3
    assert from_frame(data, **names, instruments="near", covariates=["state"], clusters="state").groups is not None


def test_missing_ones_follow_the_rule_of_the_table() -> None:
    holes = table(pw=[np.nan, *np.ones(N - 1)], state=[*STATES[:-1], None])
    names: dict[str, Any] = {"outcome": "wage", "treatment": "educ", "instruments": "near"}
    with pytest.raises(DataError, match=r"missing values in 'pw' \(1\), 'state' \(1\)"):
        from_frame(holes, **names, sample_weight="pw", clusters="state")
    with pytest.warns(BGMIVWarning, match="2 of 12 rows are dropped"):
        data = from_frame(holes, **names, sample_weight="pw", clusters="state", missing="drop")
    assert data.n_rows == N - 2
    assert data.groups is not None
    assert len(data.groups) == N - 2
    with pytest.warns(BGMIVWarning, match="1 of 12 rows are dropped"):
        data, _ = from_formula("wage ~ [educ ~ near]", holes, sample_weight="pw", missing="drop")
    assert data.weights is not None
    assert len(data.weights) == N - 1


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "negative": ({"sample_weight": [-1.0, *np.ones(N - 1)]}, r"sample_weight: 1 negative value \(row 0\)"),
    "missing": ({"sample_weight": [np.nan, *np.ones(N - 1)]}, "sample_weight has 1 missing value"),
    "infinite": ({"sample_weight": [np.inf, *np.ones(N - 1)]}, "sample_weight has 1 infinite value"),
    "zeros": ({"sample_weight": np.zeros(N)}, "row.? with a positive weight, at least 2 needed"),
    "one": ({"sample_weight": [1.0, *np.zeros(N - 1)]}, "row.? with a positive weight, at least 2 needed"),
    "words": ({"sample_weight": STATES}, "sample_weight holds strings"),
    "short": ({"sample_weight": np.ones(3)}, "sample_weight has 3 rows but outcome has 12"),
    "wide": ({"sample_weight": np.ones((N, 2))}, "sample_weight must be one column"),
    "groups missing": ({"clusters": [None, *STATES[1:]]}, "clusters has 1 missing value"),
    "one group": ({"clusters": ["ny"] * N}, "every row is in one cluster, 'ny'"),
    "groups short": ({"clusters": STATES[:3]}, "clusters have 3 rows but outcome has 12"),
    "groups of dates": ({"clusters": pd.Series(pd.date_range("2020", periods=N))}, "clusters holds dates"),
    "groups in three columns": ({"clusters": np.zeros((N, 3))}, "clusters must be one column, or two"),
    "second groups missing": (
        {"clusters": [STATES, [None, *STATES[1:]]]},
        "clusters 'second clusters' has 1 missing value",
    ),
    "second groups short": ({"clusters": [STATES, STATES[:3]]}, "second clusters have 3 rows but outcome has 12"),
    "second groups are the outcome": ({"clusters": [STATES, OUTCOME]}, "'second clusters' is identical to outcome"),
    "groups are the treatment": ({"clusters": TREATMENT}, "clusters is identical to treatment"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_ones_are_refused(case: str) -> None:
    arguments, message = BAD[case]
    with pytest.raises(DataError, match=message):
        arrays(**arguments)


def test_weights_that_are_the_outcome_or_the_instrument_are_refused() -> None:
    positive = np.abs(OUTCOME) + 0.1
    with pytest.raises(DataError, match="sample_weight is identical to outcome"):
        IVData.from_arrays(positive, TREATMENT, instruments=INSTRUMENT, sample_weight=positive)
    with pytest.raises(DataError, match="sample_weight is identical to instrument"):
        IVData.from_arrays(OUTCOME, TREATMENT, instruments=positive, sample_weight=positive)
    named = pd.Series(positive, name="wage")
    with pytest.raises(DataError, match="'wage' is given both as sample_weight and as outcome"):
        IVData.from_arrays(named, TREATMENT, instruments=INSTRUMENT, sample_weight=named * 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sample_weight": "wage"}, "'wage' is given both as sample_weight and as outcome"),
        ({"sample_weight": "educ"}, "'educ' is given both as sample_weight and as treatment"),
        ({"sample_weight": "near"}, "'near' is given both as sample_weight and as instruments"),
        ({"clusters": "educ"}, "'educ' is given both as clusters and as treatment"),
        ({"sample_weight": "pww"}, "no column 'pww'. Did you mean 'pw'"),
        ({"clusters": 3}, "clusters must be names of columns of the table, got"),
        ({"sample_weight": np.ones(N)}, "sample_weight must be names of columns of the table, got"),
    ],
)
def test_names_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_frame(table(), outcome="wage", treatment="educ", instruments="near", **arguments)
    with pytest.raises(DataError, match=message):
        from_formula("np.exp(wage) ~ [np.exp(educ) ~ np.exp(near)]", table(), **arguments)
