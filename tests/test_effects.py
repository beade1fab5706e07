"""Questions to a structural function whose answers are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bgmiv import effects as asked
from bgmiv.data import IVData
from bgmiv.data.schema import Schema
from bgmiv.errors import DataError


def effect(*args: Any, **options: Any) -> Any:
    return asked.effect(*args, **options).values


def average_effect(*args: Any, **options: Any) -> Any:
    return asked.average_effect(*args, **options).values


def marginal_effect(*args: Any, **options: Any) -> Any:
    return asked.marginal_effect(*args, **options).values


def dose_response(*args: Any, **options: Any) -> asked.DoseResponse:
    doses, answer = asked.dose_response(*args, **options)
    return asked.DoseResponse(doses, answer.values)


RNG = np.random.default_rng(0)
N = 40
AGE = RNG.normal(size=N)
REGION = np.array(["n", "s", "e", "s"])[RNG.integers(0, 4, N)]
TABLE: dict[str, Any] = {"age": AGE, "region": REGION}


class Known:
    """g(x, v) = x^2 age + sum of the region's codes, from the flat matrix; it counts how often it is asked."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.asked = 0

    def predict(self, treatment: Any, covariates: Any = None) -> np.ndarray:
        self.asked += 1
        x, v = self.schema.check_query(treatment, covariates)
        return x**2 * v[:, 0] + v[:, 1:] @ np.arange(v.shape[1] - 1)


@pytest.fixture
def known() -> Known:
    data = IVData.from_arrays(
        RNG.normal(size=N),
        RNG.normal(size=N),
        instruments=RNG.normal(size=N),
        covariates=TABLE,
        blocks={"region": "categorical"},
    )
    return Known(data.schema)


def test_effects_are_differences(known: Known) -> None:
    np.testing.assert_allclose(effect(known, TABLE, t0=1.0, t1=3.0), 8.0 * AGE)
    doses = RNG.normal(size=N)
    np.testing.assert_allclose(effect(known, TABLE, t0=0.0, t1=doses), doses**2 * AGE)
    assert average_effect(known, TABLE, t0=1.0, t1=3.0) == pytest.approx(8.0 * AGE.mean())


def test_slopes_of_a_square_are_exact_for_any_step(known: Known) -> None:
    for step in (0.1, 2.0):
        np.testing.assert_allclose(marginal_effect(known, 1.5, TABLE, step=step), 3.0 * AGE)
        np.testing.assert_allclose(marginal_effect(known, AGE, TABLE, step=step), 2.0 * AGE * AGE)


@pytest.mark.parametrize("step", [0.0, -1.0, float("nan"), float("inf")])
def test_a_step_is_above_zero(known: Known, step: float) -> None:
    with pytest.raises(DataError, match="step must be a number above 0"):
        marginal_effect(known, 1.0, TABLE, step=step)


def test_levels_have_no_slope() -> None:
    data = IVData.from_arrays(AGE, AGE > 0, instruments=RNG.normal(size=N), covariates={"z": RNG.normal(size=N)})
    with pytest.raises(DataError, match="levels and no slope"):
        marginal_effect(Known(data.schema), True, {"z": AGE}, step=1.0)


@pytest.mark.parametrize("most", [7, 100, 100_000])
def test_curves_are_the_predictions_whatever_is_asked_at_once(
    known: Known, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(asked, "_MOST_ROWS", most)
    doses = np.linspace(-1.0, 1.0, 5)
    curve = dose_response(known, doses, TABLE, average=False)
    expected = np.stack([known.predict(dose, TABLE) for dose in doses])
    np.testing.assert_allclose(curve.values, expected)
    np.testing.assert_array_equal(curve.treatment, doses)
    np.testing.assert_allclose(dose_response(known, doses, TABLE).values, expected.mean(axis=1))


def test_many_treatments_are_asked_for_together(known: Known) -> None:
    dose_response(known, np.linspace(0.0, 1.0, 50), TABLE)
    assert known.asked == 1


@pytest.mark.parametrize("bad", [[], np.zeros((2, 2))])
def test_treatments_are_a_row_of_values(known: Known, bad: Any) -> None:
    with pytest.raises(DataError, match="treatments have shape"):
        dose_response(known, bad, TABLE)


def test_without_covariates() -> None:
    class Square:
        schema = IVData.from_arrays(AGE, RNG.normal(size=N), instruments=RNG.normal(size=N)).schema

        def predict(self, treatment: Any, covariates: Any = None) -> np.ndarray:
            return self.schema.check_query(treatment, covariates)[0] ** 2

    g = Square()
    assert effect(g, t0=1.0, t1=2.0).tolist() == [3.0]
    assert dose_response(g, [1.0, 2.0, 3.0]).values.tolist() == [1.0, 4.0, 9.0]
    np.testing.assert_allclose(marginal_effect(g, [1.0, 2.0], step=0.5), [2.0, 4.0])


def test_levels_of_treatment_and_outcome_keep_their_places() -> None:
    arms = np.array(["none", "low", "high"])[RNG.integers(0, 3, N)]
    data = IVData.from_arrays(AGE, arms, instruments=RNG.normal(size=N), covariates={"z": AGE + 0.1})

    class Shares:
        schema = data.schema

        def predict(self, treatment: Any, covariates: Any = None) -> np.ndarray:
            codes, _ = self.schema.check_query(treatment, covariates)
            return np.eye(3)[codes.astype(int)]

    g, levels = Shares(), data.schema.treatment.levels
    curve = dose_response(g, np.array(levels), {"z": AGE})
    np.testing.assert_array_equal(curve.values, np.eye(3))
    assert average_effect(g, {"z": AGE}, t0=levels[0], t1=levels[2]).tolist() == [-1.0, 0.0, 1.0]
