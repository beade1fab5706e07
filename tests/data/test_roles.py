"""Outcomes and treatments with levels: how they become codes, and how predictions ask for them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest

from bgmiv.data import BlockKind, IVData, RoleScaling
from bgmiv.data.query import query_at
from bgmiv.errors import DataError

N = 12
rng = np.random.default_rng(5)
Y, X, W = rng.normal(size=(3, N))
DOSE = np.array(["low", "none", "none", "high", "low", "none"] * 2)
LEVELS = ("none", "low", "high")
CODES = [1, 0, 0, 2, 1, 0] * 2


@pytest.mark.parametrize(
    "dose",
    [
        DOSE,
        DOSE.tolist(),
        DOSE.astype(object),
        pd.Series(DOSE),
        pd.Series(DOSE, dtype="category"),
        pl.Series(DOSE.tolist(), dtype=pl.Categorical),
        pl.Series(DOSE.tolist(), dtype=pl.Enum(["high", "low", "none"])),
    ],
    ids=["array", "list", "objects", "pandas", "pandas category", "polars category", "polars enum"],
)
def test_names_are_levels_by_frequency(dose):
    data = IVData.from_arrays(Y, dose, instruments=W)
    assert data.schema.treatment.kind is BlockKind.categorical
    assert data.schema.treatment.levels == LEVELS
    np.testing.assert_array_equal(data.treatment, CODES)
    outcome = IVData.from_arrays(dose, X, instruments=W).schema.outcome
    assert (outcome.kind, outcome.levels) == (BlockKind.categorical, LEVELS)


def test_numbers_are_levels_if_declared():
    numbers = np.array([10, 0, 0, 50, 10, 0] * 2)
    data = IVData.from_arrays(Y, numbers, instruments=W, treatment_kind="categorical")
    assert data.schema.treatment.levels == (0, 10, 50)
    np.testing.assert_array_equal(data.schema.check_treatment([50, 10.0], 2), [2, 1])
    assert IVData.from_arrays(Y, numbers, instruments=W).schema.treatment.kind is BlockKind.continuous


def test_two_names_are_binary():
    names = np.where(np.arange(N) % 3 == 0, "yes", "no")
    treatment = IVData.from_arrays(Y, names, instruments=W).schema.treatment
    assert (treatment.kind, treatment.levels) == (BlockKind.binary, ("no", "yes"))
    # The probability that is predicted is that of the second name, however often it is seen.
    for outcome in (names, np.where(names == "no", "yes", "no")):
        data = IVData.from_arrays(outcome, X, instruments=W)
        assert (data.schema.outcome.kind, data.schema.outcome.levels) == (BlockKind.binary, ("no", "yes"))
        np.testing.assert_array_equal(data.outcome, outcome == "yes")


@pytest.mark.parametrize("values", [np.arange(N) % 2, np.arange(N) % 2 == 1, (np.arange(N) % 2).astype(float)])
@pytest.mark.parametrize("kind", ["binary", "categorical"])
def test_zeros_and_ones_need_no_names(values, kind):
    data = IVData.from_arrays(Y, values, instruments=W, treatment_kind=kind)
    assert (data.schema.treatment.kind, data.schema.treatment.levels) == (BlockKind.binary, None)
    np.testing.assert_array_equal(data.treatment, values)


def test_levels_are_not_scaled():
    data = IVData.from_arrays(DOSE, np.roll(DOSE, 1), instruments=W)
    scaled = RoleScaling().fit(data).transform(data)
    np.testing.assert_array_equal(scaled.y, data.outcome)
    np.testing.assert_array_equal(scaled.x, data.treatment)


def test_treatments_are_asked_for_by_name():
    schema = IVData.from_arrays(Y, DOSE, instruments=W).schema
    np.testing.assert_array_equal(query_at(schema, "high").treatment, [[2]])
    np.testing.assert_array_equal(schema.check_treatment("low", 3), [1, 1, 1])
    later = pd.Series(["high", "none"], dtype="category")
    np.testing.assert_array_equal(query_at(schema, later).treatment, [[2, 0]])
    with pytest.raises(DataError, match=r"treatment.*'huge'.*1 row \(row 1\).*'none', 'low', 'high'"):
        query_at(schema, ["low", "huge"])
    with pytest.raises(DataError, match=r"treatment.*unseen.*1.*'none'"):
        query_at(schema, 1)


def test_too_many_levels():
    names = [f"shop {i % 60}" for i in range(600)]
    values = rng.normal(size=(2, 600))
    with pytest.raises(DataError, match=r"treatment has 60 levels, more than 50"):
        IVData.from_arrays(values[0], names, instruments=values[1])


def test_parts_of_an_outcome_with_levels():
    data = IVData.from_arrays(DOSE, X, instruments=W)
    parts = data.outcome_parts()
    np.testing.assert_array_equal([part.outcome for part in parts], [level == DOSE for level in LEVELS])
    assert {part.schema.outcome.kind for part in parts} == {BlockKind.binary}
    assert IVData.from_arrays(Y, X, instruments=W).outcome_parts()[0].schema.outcome.kind is BlockKind.continuous
