from __future__ import annotations

import numpy as np
import pytest

from bgmiv.designs import LowDimDesign, make_design
from bgmiv.designs.lowdim import CURVES
from bgmiv.errors import ConfigError


@pytest.mark.parametrize(
    ("curve", "values"),
    [("sin", np.sin([-1.5, 0.0, 2.0])), ("abs", [1.5, 0.0, 2.0]), ("step", [1.0, 2.5, 2.5]), ("linear", [-1.5, 0, 2])],
)
def test_curves_by_hand(curve: str, values: np.ndarray) -> None:
    np.testing.assert_allclose(LowDimDesign(curve).structural(np.array([-1.5, 0.0, 2.0])), values)


def test_the_studys_equations() -> None:
    data = LowDimDesign("linear").sample(60_000, rho=1.0, seed=0)
    x, y, (first, second) = data.treatment, data.outcome, data.instruments.T
    assert data.covariates.shape == (60_000, 0)
    for instrument in (first, second):
        assert -3 <= instrument.min() < -2.99
        assert 2.99 < instrument.max() <= 3
    # X − Z₁/2 is e/2 + γ, and with ρ = 1, Y − X is e + δ.
    assert (x - first / 2).std() == pytest.approx(np.hypot(0.5, 0.1), rel=0.02)
    assert (y - x).std() == pytest.approx(np.hypot(1.0, 0.1), rel=0.02)
    assert np.cov(x - first / 2, y - x)[0, 1] == pytest.approx(0.5, rel=0.02)
    assert abs(np.corrcoef(first, y - x)[0, 1]) < 0.02
    assert abs(np.corrcoef(second, x)[0, 1]) < 0.02


def test_rho_is_the_correlation_with_the_confounder() -> None:
    data = LowDimDesign("linear").sample(60_000, rho=0.4, seed=1)
    disturbance = data.outcome - data.treatment
    assert disturbance.std() == pytest.approx(np.hypot(1.0, 0.1), rel=0.02)
    shock = data.treatment - data.instruments[:, 0] / 2
    assert np.cov(shock, disturbance)[0, 1] == pytest.approx(0.4 * 0.5, rel=0.05)


def test_all_curves_share_their_draws() -> None:
    samples = [LowDimDesign(curve).sample(30, 0.7, 5) for curve in CURVES]
    for data in samples[1:]:
        np.testing.assert_array_equal(data.treatment, samples[0].treatment)


@pytest.mark.parametrize("strength", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("coverage", [0.5, 0.99])
def test_treatment_range_covers_what_it_says(strength: float, coverage: float) -> None:
    design = LowDimDesign(strength=strength)
    reach = design.treatment_range(coverage)
    inside = np.abs(design.sample(100_000, 0.5, 0).treatment) <= reach
    assert inside.mean() == pytest.approx(coverage, abs=0.005)


def test_grid_is_the_central_range() -> None:
    design = make_design("lowdim-step")
    grid = design.grid()
    assert isinstance(design, LowDimDesign)
    assert np.abs(grid.treatment).max() == pytest.approx(design.treatment_range(0.999))
    np.testing.assert_array_equal(grid.in_support, np.abs(grid.treatment) <= design.treatment_range(0.99))
    np.testing.assert_array_equal(grid.truth, design.structural(grid.treatment))


@pytest.mark.parametrize("wrong", [{"curve": "cubic"}, {"strength": 0.0}, {"confounding": float("inf")}])
def test_bad_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        LowDimDesign(**wrong)  # type: ignore[arg-type]
