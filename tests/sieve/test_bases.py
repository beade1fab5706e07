"""Functions of variables with few values: any function of ordered levels, penalised by its roughness."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.interpolate import CubicSpline

import bgmiv
from bgmiv.data import IVData
from bgmiv.sieve.bases import ColumnBasis, Spline

LEVELS = np.array([0.0, 1.0, 2.0, 4.0, 9.0])
CURVE = np.array([0.0, 2.0, 3.2, 4.0, 4.5, 4.7])


def test_functions_of_levels_are_uncorrelated_and_as_large_as_they_are_smooth() -> None:
    rng = np.random.default_rng(0)
    # The last level is rare.
    x = rng.choice(LEVELS, size=20_000, p=[0.3, 0.3, 0.2, 0.1999, 0.0001])
    spline = Spline.fit(x, 6)
    functions = spline(x)
    assert functions.shape[1] == len(LEVELS) - 2
    moments = np.column_stack([np.ones(len(x)), x, functions]).T @ functions / len(x)
    np.testing.assert_allclose(moments[:2], 0.0, atol=1e-8)
    np.testing.assert_allclose(moments[2:], np.diag(np.diag(moments[2:])), atol=1e-8)
    beta = rng.normal(size=(3, 4))
    bends = CubicSpline(LEVELS, spline(LEVELS) @ beta, bc_type="natural").derivative(2)
    grid, step = np.linspace(0.0, 9.0, 90_001, retstep=True)
    roughness = np.sum(bends(grid) ** 2, axis=0) * step
    np.testing.assert_allclose(roughness / np.sum(beta**2, axis=0), roughness[0] / np.sum(beta[:, 0] ** 2), rtol=1e-3)
    # Straight between levels, constant beyond them.
    np.testing.assert_allclose(spline(np.array([3.0, -5.0])), [spline(LEVELS[2:4]).mean(axis=0), spline(LEVELS)[0]])
    # With constant and line they give any function of the levels.
    every = np.column_stack([np.ones(5), LEVELS, spline(LEVELS)])
    assert np.linalg.matrix_rank(every) == 5


def test_covariates_of_few_values_have_curves_and_two_values_none() -> None:
    rng = np.random.default_rng(0)
    columns = np.column_stack([rng.normal(size=500), rng.integers(0, 5, 500), rng.integers(0, 2, 500)]).astype(float)
    basis = ColumnBasis.fit(columns, rng)
    assert [(j, spline.rotation.shape[1]) for j, spline in basis.splines] == [(0, 8), (1, 3)]
    # Too many for all of them: curves of numbers come first.
    many = np.column_stack([rng.normal(size=(500, 25)), rng.integers(0, 6, (500, 10))])
    assert [j for j, _ in ColumnBasis.fit(many, rng).splines] == list(range(25))


def _scale(seed: int, n: int = 1000) -> tuple[IVData, np.ndarray]:
    rng = np.random.default_rng(seed)
    w, v, u, e = rng.normal(size=(4, n))
    x = np.clip(np.round(1.5 * w + 0.3 * v + 0.8 * u + 2.5), 0, 5)
    y = CURVE[x.astype(int)] + 0.5 * v + 0.7 * u + 0.7 * e
    return IVData.from_arrays(y, x, instruments=w, covariates=v), v


@pytest.mark.slow
def test_the_effects_of_single_steps_of_a_scale_are_within_their_intervals() -> None:
    steps = np.array([(0, 1), (2, 3), (4, 5), (0, 5)])
    truth = CURVE[steps[:, 1]] - CURVE[steps[:, 0]]
    hits, errors = 0, np.zeros(len(steps))
    for seed in range(12):
        data, v = _scale(seed)
        model = bgmiv.NPIV(random_state=seed).fit(
            data.outcome, data.treatment, instruments=data.instruments, covariates=v
        )
        for i, (low, high) in enumerate(steps.tolist()):
            found = model.ate_interval(t0=float(low), t1=float(high))
            hits += found.lower <= truth[i] <= found.upper
            errors[i] += (model.ate(t0=float(low), t1=float(high)) - truth[i]) / 12
    assert hits >= 43
    # A line is off by 1.1 in the first step.
    assert np.abs(errors).max() < 0.3


def test_the_control_function_bends_over_levels_too() -> None:
    data, v = _scale(0, 3000)
    roles = {"instruments": data.instruments, "covariates": v}
    model = bgmiv.ControlFunction(random_state=0).fit(data.outcome, data.treatment, **roles)
    got = [model.ate(t0=low, t1=low + 1.0) for low in range(5)]
    np.testing.assert_allclose(got, np.diff(CURVE), atol=0.5)


def test_a_saved_curve_over_levels_says_the_same(tmp_path: Path) -> None:
    data, v = _scale(1)
    model = bgmiv.NPIV(random_state=0).fit(data.outcome, data.treatment, instruments=data.instruments, covariates=v)
    assert "curve" in model.fitted_.function.kept
    model.save(tmp_path / "fit")
    points = np.array([0.0, 0.5, 3.0, 5.0, 7.0])
    np.testing.assert_array_equal(
        bgmiv.load(tmp_path / "fit").predict(points, np.zeros(5)), model.predict(points, np.zeros(5))
    )
