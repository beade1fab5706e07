"""Questions to a structural function whose answers are known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student

from bgmiv import effects
from bgmiv.data import IVData
from bgmiv.data.query import Encoded, Query, Rows, query_along, query_at
from bgmiv.data.schema import Schema
from bgmiv.effects import average, contrast, estimate_at, predict, slope_query
from bgmiv.errors import ConfigError, DataError
from bgmiv.fitted import FittedMethod
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
    max_factor_rows: int = 20_000

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

    average_factors = FittedMethod.average_factors

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
        with pytest.raises(DataError, match="sample_weight"):
            query_along(DATA.schema, [1.0], TABLE, weights=bad)


class ByAge(Known):
    """Known up to a number times age, inside the support for the young."""

    def factors(self, query: Query) -> tuple[Source, ...]:
        return (Source("sampling", np.broadcast_to(query.rows.covariates[:, 0], query.shape)[None], np.inf),)

    def in_support(self, query: Query) -> np.ndarray:
        return np.broadcast_to(query.rows.covariates[:, 0] < 0.5, query.shape)


def rows_by_age(age: np.ndarray, weights: np.ndarray | None = None) -> Rows:
    return Rows(np.column_stack([age, np.zeros((len(age), 3))]), weights)


def test_all_rows_say_how_uncertain_an_average_is(monkeypatch: pytest.MonkeyPatch) -> None:
    age = RNG.uniform(size=1000)
    # None of a few evenly spread rows has weight, and rows without weight have no part in anything.
    weights = np.where(np.arange(1000) % 4 == 1, RNG.uniform(size=1000), 0.0)
    age[weights == 0.0] = np.nan
    query = Query(np.array([[1.0]]), rows_by_age(age, weights))
    monkeypatch.setattr("bgmiv.fitted.MAX_FACTOR_POINTS", 90)
    found, used = average(ByAge(), query, intervals=True), weights > 0.0
    mean = np.average(age[used], weights=weights[used])
    assert found.estimate.values[0] == pytest.approx(mean)
    assert interval_of(found.estimate, 0.95).std_error[0] == pytest.approx(mean)
    assert found.support[0] == pytest.approx(np.average(age[used] < 0.5, weights=weights[used]))


def test_rows_drawn_by_weight_stand_for_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "_MAX_AVERAGED", 400)
    # A pattern with the period that every k-th row of these would have, and a row with a third of all weight.
    age = np.where(np.arange(4000) % 10 == 0, 0.0, 1.0) + 0.01 * RNG.normal(size=4000)
    weights = RNG.uniform(size=4000)
    weights[7] = 0.5 * weights.sum()
    rows = rows_by_age(age, weights)
    truth = np.average(age, weights=weights)
    found = average(ByAge(max_factor_rows=400), Query(np.array([[1.0]]), rows), intervals=True)
    errors = interval_of(found.estimate, 0.95).std_errors
    assert abs(found.estimate.values[0] - truth) < 3.0 * errors["rows"][0]
    assert errors["rows"][0] == pytest.approx(np.sqrt(2.0 / 3.0 * 0.09 / 400.0), rel=0.4)
    assert errors["sampling"][0] == pytest.approx(truth, rel=0.05)
    again = average(ByAge(max_factor_rows=400), Query(np.array([[1.0]]), rows_by_age(age, weights)))
    assert again.estimate.values[0] == found.estimate.values[0]
    drawn, positions = rows.drawn(400)
    assert drawn.shares[positions == 7] == pytest.approx(1.0 / 3.0, abs=0.01)


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
    with pytest.raises(DataError, match=r"treatment (has no rows|must be one column)"):
        query_along(DATA.schema, bad, TABLE)


def test_levels_of_treatment_and_outcome_keep_their_places() -> None:
    arms = np.array(["none", "low", "high"])[RNG.integers(0, 3, N)]
    data = IVData.from_arrays(RNG.normal(size=N), arms, instruments=RNG.normal(size=N), covariates={"z": AGE})

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


TWO = ((-np.inf, 0.3), (1.2, np.inf))


@pytest.mark.parametrize(
    ("pieces", "ends", "text", "told"),
    [
        (TWO, (-np.inf, np.inf), "-infinity to 0.300 or 1.20 to infinity", True),
        ((), (np.nan, np.nan), "empty: no effect fits", True),
        (((0.5, np.inf),), (0.5, np.inf), "0.5 to inf", False),
    ],
)
def test_a_set_is_told_with_its_pieces(pieces: Any, ends: Any, text: str, told: bool) -> None:
    found = Interval(2.0, *ends, 0.95, {"sampling": 0.25}, method="anderson-rubin", pieces=pieces)
    assert f"Anderson-Rubin set {text};" in str(found)
    assert found.stretches == pieces
    frame = found.to_frame()
    assert frame.get("set", pd.Series([""])).tolist() == [text if told else ""]
    assert "-inf to inf" not in str(found)
    assert (text in found._repr_html_()) == told


def test_every_axis_of_intervals_has_its_labels() -> None:
    """Curves of each row: treatments by rows, and for an outcome of levels these too."""
    values = np.arange(6.0).reshape(2, 3)
    inside = values > 1.0
    curves = Interval(
        values, values, values, 0.9, {"s": values}, inside, (0.5, 1.5), axes=("treatment", "row")
    ).to_frame()
    assert curves.index.names == ["treatment", "row"]
    assert curves.index.tolist()[:4] == [(0.5, 0), (0.5, 1), (0.5, 2), (1.5, 0)]
    assert curves["in_support"].tolist() == inside.ravel().tolist()
    many = np.repeat(values[..., None], 2, axis=-1)
    names: Any = {"axes": ("treatment", "row", "level"), "levels": ("no", "yes")}
    levels = Interval(many, many, many, 0.9, {"s": many}, inside, (0.5, 1.5), **names).to_frame()
    assert levels.index.tolist()[:3] == [(0.5, 0, "no"), (0.5, 0, "yes"), (0.5, 1, "no")]
    assert levels["in_support"].tolist() == np.repeat(inside, 2).tolist()


def test_what_has_to_be_known_of_an_interval_is_told() -> None:
    for value in (2.0, np.ones(3)):
        found = Interval(value, value, value, 0.95, {"s": value}, note="It is too narrow.")
        assert str(found).endswith("It is too narrow.")
        assert set(found.to_frame()["note"]) == {"It is too narrow."}
