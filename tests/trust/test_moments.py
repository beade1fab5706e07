from __future__ import annotations

from math import exp
from typing import Any

import numpy as np
import pytest

from bgmiv.data.ivdata import IVData
from bgmiv.designs import DemandConfoundedDesign, VectorProxyDesign
from bgmiv.designs.demand import demand
from bgmiv.errors import DataError
from bgmiv.trust import conditions_of, moment_risk


def double_loop(residuals: np.ndarray, conditions: list[np.ndarray]) -> float:
    """The definition, one pair at a time."""
    m = len(residuals)
    scales = [
        np.median([np.linalg.norm(values[i] - values[j]) for i in range(m) for j in range(i)]) for values in conditions
    ]
    total = 0.0
    for i in range(m):
        for j in range(m):
            if i != j:
                squares = [
                    float(np.sum((values[i] - values[j]) ** 2)) / scale**2
                    for values, scale in zip(conditions, scales, strict=True)
                ]
                total += residuals[i] * residuals[j] * exp(-0.5 * sum(squares))
    return total / (m * (m - 1))


@pytest.mark.parametrize("width", [3, 40])
def test_equals_a_double_loop(width: int) -> None:
    rng = np.random.default_rng(0)
    residuals, w, v = rng.normal(size=(3, 60))
    block = rng.normal(3.0, 1.0, size=(60, width))
    expected = double_loop(residuals, [w, v, block])
    assert moment_risk(residuals, [w, v[:, None], block]) == pytest.approx(expected, rel=1e-10)


def draw(seed: int, m: int = 120) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """y = sin x + v + u, with u in the treatment too."""
    w, v, u = np.random.default_rng(seed).normal(size=(3, m))
    x = w + v + u
    return np.sin(x) + v + u, x, w, v


def test_zero_on_average_under_the_truth_and_positive_under_a_confounded_function() -> None:
    true, confounded = [], []
    for seed in range(400):
        y, x, w, v = draw(seed)
        true.append(moment_risk(y - np.sin(x) - v, [w, v]))
        # E[u | x, v] = (x - v) / 2 is what a regression without the instrument adds.
        confounded.append(moment_risk(y - np.sin(x) - v - 0.5 * (x - v), [w, v]))
    assert abs(np.mean(true)) < 4.0 * np.std(true) / 20.0
    assert min(true) < 0.0 < max(true)
    # The plain average over all pairs, rows with themselves among them, would be about 1/m: far outside that bound.
    assert np.mean(true) + 1.0 / 120.0 > 4.0 * np.std(true) / 20.0
    assert np.mean(confounded) > 20.0 * np.std(confounded) / 20.0
    assert np.mean(confounded) > 10.0 * abs(np.mean(true))


def test_the_true_demand_function_beats_a_biased_one() -> None:
    data = DemandConfoundedDesign().sample(1500, 0.9, 0)
    time, group = data.covariates.T
    residuals = data.outcome - demand(data.treatment, time, group)
    conditions = conditions_of(data)
    assert abs(moment_risk(residuals, conditions)) < 2.0
    assert moment_risk(residuals + 5.0 * (data.treatment - data.treatment.mean()), conditions) > 10.0


def test_units_of_conditions_do_not_matter_and_those_of_residuals_do() -> None:
    y, x, w, v = draw(0)
    once = moment_risk(y - x, [w, v])
    assert moment_risk(y - x, [100.0 * w - 7.0, 0.01 * v]) == pytest.approx(once, rel=1e-10)
    assert moment_risk(3.0 * (y - x), [w, v]) == pytest.approx(9.0 * once, rel=1e-10)


def test_conditions_are_instruments_and_covariates_and_nothing_else() -> None:
    data = VectorProxyDesign(vector_dim=6).sample(80, 0.5, 0)
    cost, time, proxy = conditions_of(data)
    assert proxy.shape == (80, 6)
    np.testing.assert_allclose(proxy.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(proxy.std(axis=0), 1.0)
    np.testing.assert_allclose(cost[:, 0], (data.instruments[:, 0] - data.instruments.mean()) / data.instruments.std())
    np.testing.assert_allclose(np.corrcoef(time[:, 0], data.covariates[:, 0])[0, 1], 1.0)


def test_a_category_is_one_variable_in_its_own_units() -> None:
    rng = np.random.default_rng(0)
    w, u = rng.normal(size=(2, 30))
    data = IVData.from_arrays(
        u,
        w + u,
        instruments=w,
        covariates={"region": rng.choice(["n", "s", "w"], size=30), "old": rng.random(30) > 0.5},
        blocks={"region": "categorical", "old": "binary"},
    )
    _, region, old = conditions_of(data)
    assert region.shape == (30, 3)
    assert set(np.unique(region)) == set(np.unique(old)) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("residuals", "conditions", "words"),
    [
        ([1.0], [[1.0]], "residuals have shape"),
        (np.ones((4, 1)), [np.ones(4)], "residuals have shape"),
        ([1.0, np.nan, 2.0], [np.arange(3.0)], "residuals: 1 values are missing"),
        (np.ones(3), [], "conditions are empty"),
        (np.ones(3), [np.arange(3.0), [1.0, np.inf, np.nan]], r"conditions\[1\]: 2 values"),
        (np.ones(3), [np.arange(4.0)], r"conditions\[0\] has shape \(4, 1\) but there are 3 residuals"),
        (np.ones(3), [np.ones((3, 0))], r"conditions\[0\] has shape \(3, 0\)"),
        (np.ones(3), [np.ones((3, 2, 2))], r"conditions\[0\] has shape \(3, 2, 2\)"),
    ],
)
def test_bad_input_is_refused(residuals: Any, conditions: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        moment_risk(residuals, conditions)
