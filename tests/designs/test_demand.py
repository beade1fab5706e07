from __future__ import annotations

import math

import numpy as np
import pytest

from bgmiv.designs import DemandConfoundedDesign, DemandDesign, VectorProxyDesign
from bgmiv.designs.demand import demand, demand_grid, price_support, season


def test_season_and_demand_by_hand() -> None:
    psi = 2 * (16 / 600 + math.exp(-16) + 0.7 - 2)
    assert float(season(7.0)) == pytest.approx(psi, rel=1e-14)
    assert float(demand(20.0, 7.0, 3.0)) == pytest.approx(100 + 30 * 3 * psi - 40, rel=1e-14)


def test_equations_hold_row_by_row() -> None:
    draw, data = DemandDesign().draw(500, seed=2), DemandDesign().sample(500, rho=1.0, seed=2)
    time, group, cost = draw.covariates["time"], draw.covariates["group"], draw.instruments["cost"]
    np.testing.assert_allclose(draw.treatment, 25 + (cost + 3) * season(time) + draw.shock, rtol=1e-14)
    # With rho = 1 the disturbance is the price shock itself.
    np.testing.assert_allclose(data.outcome - demand(draw.treatment, time, group), draw.shock, atol=1e-10)
    np.testing.assert_array_equal(DemandDesign().sample(10, 1.0, 2).outcome, data.outcome[:10])


def test_distributions() -> None:
    draw, data = DemandDesign().draw(70_000, seed=0), DemandDesign().sample(70_000, 0.6, 0)
    time, group, cost = draw.covariates["time"], draw.covariates["group"], draw.instruments["cost"]
    values, counts = np.unique(group, return_counts=True)
    np.testing.assert_array_equal(values, np.arange(1, 8))
    assert np.abs(counts / 10_000 - 1).max() < 0.05
    assert 0 <= time.min() < 0.01 < 9.99 < time.max() <= 10
    disturbance = data.outcome - demand(draw.treatment, time, group)
    assert disturbance.std() == pytest.approx(1.0, abs=0.02)
    assert np.corrcoef(disturbance, draw.shock)[0, 1] == pytest.approx(0.6, abs=0.02)
    assert abs(np.corrcoef(disturbance, cost)[0, 1]) < 0.02
    assert abs(np.corrcoef(cost, draw.shock)[0, 1]) < 0.02


def test_support_covers_99_percent_of_prices_at_every_season() -> None:
    draw = DemandDesign().draw(200_000, 1)
    time = draw.covariates["time"]
    low, high = price_support(time)
    inside = (low <= draw.treatment) & (draw.treatment <= high)
    for start in range(10):
        assert inside[np.floor(time) == start].mean() == pytest.approx(0.99, abs=0.004)


def test_demand_confounded_scales_the_disturbance_alone() -> None:
    plain, data = DemandDesign().sample(300, 0.9, 4), DemandConfoundedDesign().sample(300, 0.9, 4)
    structural = demand(plain.treatment, *plain.covariates.T)
    np.testing.assert_allclose(data.outcome - structural, 50.0 * (plain.outcome - structural), atol=1e-9)
    np.testing.assert_array_equal(data.treatment, plain.treatment)
    np.testing.assert_array_equal(data.instruments, plain.instruments)
    np.testing.assert_array_equal(DemandConfoundedDesign().grid().truth, DemandDesign().grid().truth)


def test_shares_everything_but_the_group_with_demand() -> None:
    design = VectorProxyDesign(vector_dim=4)
    plain, proxy = DemandDesign().sample(80, 0.3, 9), design.sample(80, 0.3, 9)
    for role in ("outcome", "treatment", "instruments"):
        np.testing.assert_array_equal(getattr(plain, role), getattr(proxy, role))
    np.testing.assert_array_equal(plain.covariates[:, 0], proxy.covariates[:, 0])
    for part in ("treatment", "truth", "in_support"):
        np.testing.assert_array_equal(getattr(DemandDesign().grid(), part), getattr(design.grid(), part))


def test_prototypes_depend_on_the_feature_seed_alone() -> None:
    prototypes = VectorProxyDesign(vector_dim=500).prototypes()
    np.testing.assert_array_equal(prototypes, VectorProxyDesign(vector_dim=500, noise=2.0).prototypes())
    assert not np.array_equal(prototypes, VectorProxyDesign(vector_dim=500, feature_seed=1).prototypes())
    assert prototypes.std() == pytest.approx(1.0, abs=0.05)


def test_noise_around_prototypes_is_fresh_in_samples_and_on_the_grid_even_when_the_seeds_coincide() -> None:
    design = VectorProxyDesign(vector_dim=64, feature_seed=3)
    prototypes = design.prototypes()
    grid_noise = design.grid().covariates["proxy"] - prototypes[demand_grid()[2].astype(int) - 1]
    group = DemandDesign().draw(2800, seed=3).covariates["group"].astype(int)
    train_noise = design.sample(2800, 0.5, seed=3).covariates[:, 1:] - prototypes[group - 1]
    for noise in (grid_noise, train_noise):
        assert noise.std() == pytest.approx(0.5, rel=0.02)
        assert len(np.unique(noise, axis=0)) == 2800
        assert abs(np.corrcoef(noise.ravel()[: prototypes.size], prototypes.ravel())[0, 1]) < 0.15
    assert abs(np.corrcoef(grid_noise.ravel(), train_noise.ravel())[0, 1]) < 0.02
