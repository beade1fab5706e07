"""Questions to a structural function whose answers are known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student

from bgmiv.data import IVData
from bgmiv.data.query import Encoded, Query, Rows, query_along, query_at
from bgmiv.data.schema import Schema
from bgmiv.effects import average, contrast, estimate_at, predict, slope_query
from bgmiv.errors import ConfigError, DataError
from bgmiv.intervals import Estimate, Interval, Source, interval_of

RNG = np.random.default_rng(0)
N = 40
AGE = RNG.normal(size=N)
REGION = np.array(["n", "s", "e", "s"])[RNG.integers(0, 4, N)]
TABLE: dict[str, Any] = {"age": AGE, "region": REGION}
DATA = IVData.from_arrays(
    *RNG.normal(size=(2, N)), instruments=RNG.normal(size=N), covariates=TABLE, blocks={"region": "categorical"}
)


@dataclass(eq=False)
class Known:
    """g(x, v) = x^2 age + the region's code, known up to 0.1 x times one number; it counts what is encoded."""

    schema: Schema = DATA.schema
    interval_kind: str = "Known intervals."
    encoded: list[int] = field(default_factory=list)

    @property
    def encoding_key(self) -> object:
        return self

    def encode(self, covariates: np.ndarray) -> Encoded:
        self.encoded.append(len(covariates))
        return covariates[:, 0], covariates[:, 1:] @ np.arange(covariates.shape[1] - 1)

    def at(self, query: Query) -> np.ndarray:
        age, code = query.rows.encoded_by(self)
        return query.collect(lambda x, rows: x**2 * age[rows] + code[rows], max_points=7)

    def factors(self, query: Query) -> tuple[Source, ...]:
        return (Source("sampling", np.broadcast_to(0.1 * query.treatment, query.shape)[None], np.inf),)

    def in_support(self, query: Query) -> np.ndarray:
        return np.broadcast_to(np.abs(query.treatment) < 2.0, query.shape)


def pair(t0: float, t1: Any) -> Query:
    rows = query_at(DATA.schema, 0.0, TABLE).rows
    return Query(np.stack([np.full(N, t0), np.broadcast_to(t1, (N,))]), rows)


def test_contrasts_are_differences_row_by_row() -> None:
    doses = RNG.normal(size=N)
    np.testing.assert_allclose(contrast(estimate_at(Known(), pair(1.0, 3.0))).values, 8.0 * AGE)
    np.testing.assert_allclose(contrast(estimate_at(Known(), pair(0.0, doses))).values, doses**2 * AGE)


def test_curves_are_the_predictions_and_rows_are_encoded_once() -> None:
    known, doses = Known(), np.linspace(-1.0, 1.0, 5)
    query = query_along(DATA.schema, doses, TABLE)
    expected = np.stack([predict(known, dose, TABLE) for dose in doses])
    known.encoded.clear()
    np.testing.assert_allclose(estimate_at(known, query).values, expected)
    np.testing.assert_allclose(average(known, query).estimate.values, expected.mean(axis=1))
    average(known, query.take(AGE > 0.0))
    assert known.encoded == [N]


def test_averages_are_weighted_with_everything_that_belongs_to_them() -> None:
    weights = RNG.integers(0, 4, N).astype(float)
    query = query_along(DATA.schema, [1.0, 3.0], TABLE, weights=weights)
    found = average(Known(), query, intervals=True)
    each = estimate_at(Known(), query).values
    np.testing.assert_allclose(found.estimate.values, np.average(each, axis=1, weights=weights))
    np.testing.assert_allclose(found.support, [1.0, 0.0])
    assert (found.support_of(0), found.support_of(0, 1)) == (pytest.approx(1.0), 0.0)
    difference = interval_of(contrast(found.estimate), 0.95)
    assert difference.std_error == pytest.approx(0.2)
    for bad in (weights[:-1], -weights, 0.0 * weights):
        with pytest.raises(DataError, match="weights"):
            query_along(DATA.schema, [1.0], TABLE, weights=bad)


def test_beyond_so_many_rows_evenly_spread_ones_stand_for_all() -> None:
    rows = Rows(np.column_stack([np.linspace(0.0, 1.0, 1000), np.zeros((1000, 3))]))
    found = average(Known(), Query(np.array([[1.0]]), rows), intervals=True)
    assert found.inside.shape == (1, 250)
    assert found.estimate.values[0] == pytest.approx(0.5)


@pytest.mark.parametrize("step", [0.1, 2.0])
def test_slopes_of_a_square_are_exact_for_any_step(step: float) -> None:
    for x in (1.5, AGE):
        query = slope_query(Known(), x, TABLE, step)
        np.testing.assert_allclose(contrast(estimate_at(Known(), query)).values / step, 2.0 * x * AGE)


@pytest.mark.parametrize("step", [0.0, -1.0, float("nan"), float("inf"), True])
def test_a_step_is_above_zero(step: float) -> None:
    with pytest.raises(DataError, match="step must be a number above 0"):
        slope_query(Known(), 1.0, TABLE, step)


def test_levels_have_no_slope() -> None:
    data = IVData.from_arrays(AGE, AGE > 0, instruments=RNG.normal(size=N), covariates={"z": RNG.normal(size=N)})
    with pytest.raises(DataError, match="levels and no slope"):
        slope_query(Known(data.schema), True, {"z": AGE}, 1.0)


@pytest.mark.parametrize("bad", [[], np.zeros((2, 2))])
def test_treatments_are_a_row_of_values(bad: Any) -> None:
    with pytest.raises(DataError, match="treatments have shape"):
        query_along(DATA.schema, bad, TABLE)


def test_levels_of_treatment_and_outcome_keep_their_places() -> None:
    arms = np.array(["none", "low", "high"])[RNG.integers(0, 3, N)]
    data = IVData.from_arrays(AGE, arms, instruments=RNG.normal(size=N), covariates={"z": AGE + 0.1})

    class Shares(Known):
        def at(self, query: Query) -> np.ndarray:
            return query.collect(lambda x, rows: np.eye(3)[x.astype(int)], max_points=7)

    levels = np.array(data.schema.treatment.levels)
    found = average(Shares(data.schema), query_along(data.schema, levels, {"z": AGE})).estimate
    np.testing.assert_allclose(found.values, np.eye(3))
    np.testing.assert_allclose(contrast(Estimate(found.values[[0, 2]])).values, [-1.0, 0.0, 1.0])


def test_intervals_add_the_variances_of_their_sources() -> None:
    sources = (Source("sampling", np.array([[3.0], [0.0]]), np.inf), Source("network", np.array([[4.0]]), 3.0))
    found = interval_of(Estimate(np.array([1.0]), sources), 0.95)
    assert found.std_error[0] == pytest.approx(5.0)
    # Satterthwaite: 25^2 / (16^2 / 3) degrees of freedom.
    assert found.upper[0] == pytest.approx(1.0 + 5.0 * student.ppf(0.975, 25.0**2 / (16.0**2 / 3.0)))
    assert set(found.std_errors) == {"sampling", "network"}
    shares = interval_of(Estimate(np.array([0.5]), sources), 0.95, probability=True)
    assert (shares.lower[0], shares.upper[0]) == (0.0, 1.0)


@pytest.mark.parametrize("level", [0.0, 1.0, 95, -0.5, True, "0.9", float("nan")])
def test_levels_out_of_range_are_refused(level: Any) -> None:
    with pytest.raises(ConfigError, match="level must lie between 0 and 1"):
        interval_of(Estimate(np.zeros(1)), level)


def test_a_method_without_intervals_is_named() -> None:
    with pytest.raises(ConfigError, match="Known gives point estimates only"):
        average(Known(interval_kind=""), pair(0.0, 1.0), intervals=True)


def test_intervals_are_tables() -> None:
    one = Interval(2.0, 1.5, 2.5, 0.95, {"sampling": 0.25}, 0.9, name="ate")
    assert one.to_frame().loc["ate"].tolist() == [2.0, 0.25, 1.5, 2.5, 0.9]
    levels = Interval(
        np.zeros((2, 3)), np.zeros((2, 3)), np.ones((2, 3)), 0.9, {"s": np.ones((2, 3))}, labels=("a", "b")
    )
    assert levels.to_frame().index.tolist()[:2] == [("a", 0), ("a", 1)]
