from __future__ import annotations

import math

import numpy as np
import pytest

from bgmiv.designs.demand import DemandDesign, demand, draw_demand, price_support, season


def test_season_by_hand() -> None:
    # t = 7: (2)^4/600 + exp(-16) + 0.7 - 2, doubled.
    assert float(season(7.0)) == pytest.approx(2 * (16 / 600 + math.exp(-16) + 0.7 - 2), rel=1e-14)


def test_demand_by_hand() -> None:
    # 100 + (10 + 20) * 3 * psi(7) - 40
    assert float(demand(20.0, 7.0, 3.0)) == pytest.approx(60 + 90 * float(season(7.0)), rel=1e-14)


def test_equations_hold_row_by_row() -> None:
    draw = draw_demand(500, rho=1.0, seed=2)
    np.testing.assert_allclose(draw.price, 25 + (draw.cost + 3) * season(draw.time) + draw.shock, rtol=1e-14)
    # With rho = 1 the disturbance is the price shock itself.
    np.testing.assert_allclose(draw.outcome - demand(draw.price, draw.time, draw.group), draw.shock, atol=1e-10)


def test_distributions() -> None:
    draw = draw_demand(70_000, rho=0.6, seed=0)
    values, counts = np.unique(draw.group, return_counts=True)
    np.testing.assert_array_equal(values, np.arange(1, 8))
    assert np.abs(counts / 10_000 - 1).max() < 0.05
    assert 0 <= draw.time.min() < 0.01
    assert 9.99 < draw.time.max() <= 10
    disturbance = draw.outcome - demand(draw.price, draw.time, draw.group)
    assert disturbance.std() == pytest.approx(1.0, abs=0.02)
    assert np.corrcoef(disturbance, draw.shock)[0, 1] == pytest.approx(0.6, abs=0.02)
    assert abs(np.corrcoef(disturbance, draw.cost)[0, 1]) < 0.02
    assert abs(np.corrcoef(draw.cost, draw.shock)[0, 1]) < 0.02


def test_small_sample_is_the_beginning_of_a_large_one() -> None:
    small, large = draw_demand(10, 0.5, 5), draw_demand(1000, 0.5, 5)
    np.testing.assert_array_equal(small.outcome, large.outcome[:10])


def test_grid_axes() -> None:
    grid = DemandDesign().grid()
    np.testing.assert_allclose(np.unique(grid.treatment), np.linspace(10, 25, 20))
    np.testing.assert_allclose(np.unique(grid.covariates["time"]), np.linspace(0, 10, 20))
    np.testing.assert_array_equal(np.unique(grid.covariates["group"]), np.arange(1, 8))
    points = np.column_stack([grid.treatment, grid.covariates["time"], grid.covariates["group"]])
    assert len(np.unique(points, axis=0)) == 2800


def test_constant_predictor_scores_as_known() -> None:
    design = DemandDesign()
    grid = design.grid()
    mean = design.sample(10_000, 0.5, 0).outcome.mean()
    assert np.mean((mean - grid.truth) ** 2) == pytest.approx(3.26e4, rel=0.01)


def test_support_covers_99_percent_of_prices_at_every_season() -> None:
    draw = draw_demand(200_000, 0.5, 1)
    low, high = price_support(draw.time)
    inside = (low <= draw.price) & (draw.price <= high)
    for start in range(10):
        at_season = (draw.time >= start) & (draw.time < start + 1)
        assert inside[at_season].mean() == pytest.approx(0.99, abs=0.004)


def test_support_of_the_grid_follows_price_and_season() -> None:
    grid = DemandDesign().grid()
    low, high = price_support(grid.covariates["time"])
    np.testing.assert_array_equal(grid.in_support, (grid.treatment >= low) & (grid.treatment <= high))
    peak = np.isclose(grid.covariates["time"], grid.covariates["time"][(9 * 7)]) & (grid.treatment == 10.0)
    assert not grid.in_support[peak].any()
