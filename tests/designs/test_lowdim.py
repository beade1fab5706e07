from __future__ import annotations

import numpy as np
import pytest

from report.small_designs import LinearGaussianDesign, LowDimDesign


@pytest.mark.parametrize(
    ("curve", "values"),
    [("sin", np.sin([-1.5, 0.0, 2.0])), ("abs", [1.5, 0.0, 2.0]), ("step", [1.0, 2.5, 2.5]), ("linear", [-1.5, 0, 2])],
)
def test_curves_by_hand(curve: str, values: np.ndarray) -> None:
    np.testing.assert_allclose(LowDimDesign(curve).structural(np.array([-1.5, 0.0, 2.0])), values)


@pytest.mark.parametrize("rho", [1.0, 0.4])
def test_the_studys_equations(rho: float) -> None:
    data = LowDimDesign("linear").sample(60_000, rho, seed=0)
    x, disturbance, (first, second) = data.treatment, data.outcome - data.treatment, data.instruments.T
    for instrument in (first, second):
        assert -3 <= instrument.min() < -2.99 < 2.99 < instrument.max() <= 3
    # X − Z₁/2 is e/2 + γ, and Y − X is ρe + √(1 − ρ²)e′ + δ.
    assert (x - first / 2).std() == pytest.approx(np.hypot(0.5, 0.1), rel=0.02)
    assert disturbance.std() == pytest.approx(np.hypot(1.0, 0.1), rel=0.02)
    assert np.cov(x - first / 2, disturbance)[0, 1] == pytest.approx(0.5 * rho, rel=0.05)
    assert abs(np.corrcoef(first, disturbance)[0, 1]) < 0.02
    assert abs(np.corrcoef(second, x)[0, 1]) < 0.02


@pytest.mark.parametrize(("strength", "coverage"), [(0.2, 0.5), (1.0, 0.99)])
def test_treatment_range_covers_what_it_says(strength: float, coverage: float) -> None:
    design = LowDimDesign(strength=strength)
    inside = np.abs(design.sample(100_000, 0.5, 0).treatment) <= design.treatment_range(coverage)
    assert inside.mean() == pytest.approx(coverage, abs=0.005)


def test_linear_gaussian_equations() -> None:
    data = LinearGaussianDesign().sample(80_000, rho=0.9, seed=0)
    x, v, w = data.treatment, data.covariates[:, 0], data.instruments[:, 0]
    u, eps = x - w - v, data.outcome + 2.0 * x - v
    assert np.corrcoef(u, eps)[0, 1] == pytest.approx(0.9, abs=0.01)
    assert [eps.std(), u.std()] == pytest.approx([1.0, 1.0], rel=0.02)
    for one, two in ((w, eps), (v, eps), (w, v), (w, u), (v, u)):
        assert abs(np.corrcoef(one, two)[0, 1]) < 0.015
    # Given V, X has variance 2 and covariance 0.9 with the disturbance: the bias of least squares.
    slope = np.linalg.lstsq(np.column_stack([np.ones(80_000), x, v]), data.outcome, rcond=None)[0][1]
    assert slope == pytest.approx(-2.0 + 0.9 / 2.0, abs=0.02)


def test_linear_gaussian_settings_and_grid() -> None:
    design = LinearGaussianDesign(slope=3.0, covariate_effect=-1.0, strength=2.0, disturbance=0.5)
    grid, data = design.grid(), design.sample(100_000, 0.5, 0)
    np.testing.assert_allclose(grid.truth, 3.0 * grid.treatment - grid.covariates["covariate"])
    x, v = data.treatment, data.covariates[:, 0]
    assert (data.outcome - 3.0 * x + v).std() == pytest.approx(0.5, rel=0.02)
    # What the grid calls support holds 99% of the treatments.
    reach = np.abs(grid.treatment - grid.covariates["covariate"])[grid.in_support].max()
    assert (np.abs(x - v) <= reach).mean() == pytest.approx(0.99, abs=0.003)
