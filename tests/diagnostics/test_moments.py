"""The conditional moment: its risk against the definition, and the size and power of its test."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from typing import Any

import numpy as np
import pytest

from bgmiv.data.ivdata import IVData
from bgmiv.diagnostics.moments import conditions_of, moment_risk, moment_test
from bgmiv.errors import DataError


def double_loop(residuals: np.ndarray, conditions: list[np.ndarray]) -> float:
    """The definition, one pair at a time."""
    m = len(residuals)
    pairs = [(i, j) for i in range(m) for j in range(i)]
    scales = [np.median([np.linalg.norm(values[i] - values[j]) for i, j in pairs]) for values in conditions]
    total = 0.0
    for i, j in pairs:
        squares = [
            np.sum((values[i] - values[j]) ** 2) / scale**2 for values, scale in zip(conditions, scales, strict=True)
        ]
        total += 2.0 * residuals[i] * residuals[j] * exp(-0.5 * sum(squares))
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
    for seed in range(100):
        y, x, w, v = draw(seed)
        true.append(moment_risk(y - np.sin(x) - v, [w, v]))
        # E[u | x, v] = (x - v) / 2 is what a regression without the instrument adds.
        confounded.append(moment_risk(y - np.sin(x) - v - 0.5 * (x - v), [w, v]))
    assert abs(np.mean(true)) < 4.0 * np.std(true) / 100.0**0.5
    assert min(true) < 0.0 < max(true)
    # The plain average over all pairs, rows with themselves among them, would be about 1/m: far outside that bound.
    assert np.mean(true) + 1.0 / 120.0 > 4.0 * np.std(true) / 100.0**0.5
    assert np.mean(confounded) > 9.0 * np.std(confounded) / 100.0**0.5
    assert np.mean(confounded) > 10.0 * abs(np.mean(true))


def test_units_of_conditions_do_not_matter_and_those_of_residuals_do() -> None:
    y, x, w, v = draw(0)
    once = moment_risk(y - x, [w, v])
    assert moment_risk(y - x, [100.0 * w - 7.0, 0.01 * v]) == pytest.approx(once, rel=1e-10)
    assert moment_risk(3.0 * (y - x), [w, v]) == pytest.approx(9.0 * once, rel=1e-10)


def test_a_category_is_one_variable_in_its_own_units() -> None:
    rng = np.random.default_rng(0)
    w, u = rng.normal(size=(2, 30))
    covariates = {"region": rng.choice(["n", "s", "w"], size=30), "old": rng.random(30) > 0.5}
    blocks = {"region": "categorical", "old": "binary"}
    data = IVData.from_arrays(u, w + u, instruments=w, covariates=covariates, blocks=blocks)
    cost, region, old = conditions_of(data)
    np.testing.assert_allclose(cost[:, 0], (w - w.mean()) / w.std(), rtol=1e-5, atol=1e-6)
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
        (np.ones(3), [np.ones((3, 2, 2))], r"conditions\[0\] has shape \(3, 2, 2\)"),
    ],
)
def test_bad_input_is_refused(residuals: Any, conditions: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        moment_risk(residuals, conditions)


def sample(seed: int, *, n: int = 150, per_group: int = 1) -> IVData:
    """Errors whose variance depends on the instrument; those of a group have a part in common."""
    rng = np.random.default_rng(seed)
    w, u = rng.normal(size=(2, n))
    groups = np.arange(n) // per_group
    if per_group > 1:
        u, w = 0.6 * u + 0.8 * rng.normal(size=n)[groups], 0.6 * w + 0.8 * rng.normal(size=n)[groups]
    u = u * (1.0 + 0.5 * np.abs(w))
    v = rng.normal(size=(n, 2))
    x = w + u
    data = IVData.from_arrays(2.0 * x + v.sum(axis=1) - u, x, instruments=w, covariates=v)
    return replace(data, groups=groups) if per_group > 1 else data


def rejections(slope: float, repeats: int, per_group: int = 1, *, ignored: bool = False) -> float:
    found = []
    for seed in range(repeats):
        data = sample(seed, per_group=per_group)
        data = replace(data, groups=None) if ignored else data
        g = slope * data.treatment + data.covariates.sum(axis=1)
        found.append(moment_test(data, g, seed=seed).p_value <= 0.05)
    return float(np.mean(found))


@pytest.mark.parametrize("per_group", [1, 5])
def test_size_is_near_five_percent_under_the_truth(per_group: int) -> None:
    # Of 100 tests at 5%, between 1 and 10 reject with a probability of 98%.
    assert 0.01 <= rejections(2.0, 100, per_group) <= 0.1


def test_power_against_a_confounded_curve() -> None:
    # What least squares tends to here is a slope near 1.4.
    assert rejections(1.4, 20) > 0.9
    # Groups that are ignored reject the truth.
    assert rejections(2.0, 40, per_group=5, ignored=True) > 0.2


def test_a_nonlinear_violation_is_seen() -> None:
    rng = np.random.default_rng(0)
    w, v, e = rng.normal(size=(3, 600))
    # No linear function of w or v sees w v, nor does a function of either alone.
    data = IVData.from_arrays(w * v + e, w + e, instruments=w, covariates=v)
    assert moment_test(data, np.zeros(600)).p_value < 0.01


def test_weights_multiply_the_residuals() -> None:
    data, weights = sample(1), np.random.default_rng(0).uniform(0.1, 2.0, size=150)
    g = 1.8 * data.treatment + data.covariates.sum(axis=1)
    scaled = moment_test(replace(data, outcome=g + weights * (data.outcome - g)), g)
    assert moment_test(replace(data, weights=7.0 * weights), g).p_value == scaled.p_value
    assert moment_test(replace(data, weights=np.full(150, 7.0)), g) == pytest.approx(moment_test(data, g), rel=1e-12)
