"""Queries: treatments for rows of covariates, whose encoding is computed once."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pytest

from bgmiv.data import IVData, query
from bgmiv.data.query import Query, Rows, query_along, query_at, rows_of
from bgmiv.errors import DataError

DATA = IVData.from_arrays([1.0, 2.0, 4.0], [0.5, 0.1, 0.2], instruments=[3.0, 1.0, 2.0], covariates={"a": [5, 9, 7]})
SCHEMA = DATA.schema


@dataclass
class Doubled:
    calls: list[int] = field(default_factory=list)
    encoding_key = "doubled"

    def encode(self, covariates: np.ndarray) -> tuple[np.ndarray, ...]:
        self.calls.append(len(covariates))
        return (2.0 * covariates[:, 0],)


def test_rows_are_encoded_once_and_taken_from() -> None:
    rows, encoder = Rows(np.arange(5.0)[:, None]), Doubled()
    part = rows.take([4, 2, 0]).take(np.array([True, False, True]))
    np.testing.assert_array_equal(part.encoded_by(encoder)[0], [8.0, 0.0])
    np.testing.assert_array_equal(rows.encoded_by(encoder)[0], 2.0 * np.arange(5.0))
    assert encoder.calls == [5]


def test_a_few_rows_of_very_many_are_encoded_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "_MAX_WHOLE", 10)
    rows, encoder = Rows(np.arange(30.0)[:, None]), Doubled()
    asked = Query(np.zeros((2, 1)), rows)
    for _ in range(2):
        few = asked.drawn(3).rows
        np.testing.assert_array_equal(few.encoded_by(encoder)[0], 2.0 * few.covariates[:, 0])
    assert encoder.calls == [3]
    rows.encoded_by(encoder)
    rows.take([1, 2]).encoded_by(encoder)
    assert encoder.calls == [3, 30]


@pytest.mark.parametrize("treatment", [np.array([[1.0], [2.0]]), np.array([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]])])
@pytest.mark.parametrize("max_points", [1, 4, 100])
def test_collect_and_take(treatment: np.ndarray, max_points: int) -> None:
    whole = Query(treatment, Rows(np.array([[10.0], [20.0], [30.0]]), np.array([1.0, 0.0, 2.0])))
    for asked, positions in ((whole, [0, 1, 2]), (whole.take([2, 0]), [2, 0]), (whole.positive(), [0, 2])):
        values = asked.rows.covariates[:, 0]
        found = asked.collect(lambda x, rows, values=values: x * values[rows], max_points)
        np.testing.assert_array_equal(found, [[1.0], [2.0]] * np.array([10.0, 20.0, 30.0])[positions])


def test_rows_are_drawn_in_proportion_to_their_weights_one_in_each_stratum() -> None:
    weights = np.array([0.0, 3.0, 1.0, 0.0, 6.0, 0.0])
    part, positions = Rows(np.arange(6.0)[:, None], weights).drawn(10)
    np.testing.assert_array_equal(positions, [1, 2, 4])
    np.testing.assert_array_equal(part.weights, [3.0, 1.0, 6.0])
    np.testing.assert_array_equal(part.covariates[:, 0], positions)
    whole = Rows(np.arange(1000.0)[:, None])
    _, drawn = whole.drawn(100)
    # One of every ten rows, not always the same one of them.
    np.testing.assert_array_equal(drawn // 10, np.arange(100))
    assert len(np.unique(drawn % 10)) == 10
    np.testing.assert_array_equal(Rows(np.zeros((1000, 1))).drawn(100)[1], drawn)


def test_weights_have_the_labels_of_their_rows_and_may_be_huge() -> None:
    frame = pd.DataFrame({"a": [5.0, 9.0, 7.0]}, index=[7, 8, 9])
    right, wrong = pd.Series([1.0, 2.0, 1.0], index=[7, 8, 9]), pd.Series([1.0, 2.0, 1.0])
    data = IVData.from_arrays([1.0, 2.0, 4.0], [0.5, 0.1, 0.2], instruments=[3.0, 1.0, 2.0], covariates=frame)
    for rows in (frame, data, data.take([0, 1, 2])):
        np.testing.assert_allclose(rows_of(data.schema, rows, weights=right).shares, [0.25, 0.5, 0.25])
        np.testing.assert_allclose(rows_of(data.schema, rows, weights=wrong.to_numpy()).shares, [0.25, 0.5, 0.25])
        with pytest.raises(DataError, match="different pandas indexes"):
            rows_of(data.schema, rows, weights=wrong)
    np.testing.assert_allclose(rows_of(SCHEMA, DATA, weights=[1e308] * 3).shares, 1.0 / 3.0)


def test_what_users_ask() -> None:
    assert query_at(SCHEMA, [0.1, 0.2], {"a": [1, 2]}).shape == (1, 2)
    assert query_along(SCHEMA, [0.0, 0.5], DATA).shape == (2, 3)
    np.testing.assert_allclose(rows_of(SCHEMA, [[1], [2]], weights=[1, 3]).shares, [0.25, 0.75])
    for treatments in ([], [[1.0, 2.0]]):
        with pytest.raises(DataError, match=r"treatment (has no rows|must be one column)"):
            query_along(SCHEMA, treatments, DATA)
    words = (["a", "b"], "sample_weight holds strings")
    for weights, message in (
        words,
        ([1.0], "sample_weight has 1 row but the averaged rows have 2"),
        ([-1, 2], "at least 0"),
        ([0, 0], "0 rows with a positive weight"),
    ):
        with pytest.raises(DataError, match=message):
            rows_of(SCHEMA, [[1], [2]], weights=weights)
