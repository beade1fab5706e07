from __future__ import annotations

import numpy as np
import pytest

from bgmiv.designs import BinaryConfoundedDesign, DemandConfoundedDesign, DemandDesign, LinearGaussianDesign
from bgmiv.designs.demand import demand, draw_demand
from bgmiv.errors import ConfigError


def test_linear_gaussian_equations() -> None:
    data = LinearGaussianDesign().sample(80_000, rho=0.9, seed=0)
    x, v, w = data.treatment, data.covariates[:, 0], data.instruments[:, 0]
    u, eps = x - w - v, data.outcome + 2.0 * x - v
    assert np.corrcoef(u, eps)[0, 1] == pytest.approx(0.9, abs=0.01)
    assert eps.std() == pytest.approx(1.0, rel=0.02)
    assert u.std() == pytest.approx(1.0, rel=0.02)
    for one, two in ((w, eps), (v, eps), (w, v), (w, u), (v, u)):
        assert abs(np.corrcoef(one, two)[0, 1]) < 0.015


def test_linear_gaussian_biases_least_squares_by_the_known_amount() -> None:
    data = LinearGaussianDesign(slope=-2.0).sample(80_000, rho=0.9, seed=1)
    columns = np.column_stack([np.ones(80_000), data.treatment, data.covariates])
    slope = np.linalg.lstsq(columns, data.outcome, rcond=None)[0][1]
    # Given V, X has variance 2 and covariance 0.9 with the disturbance.
    assert slope == pytest.approx(-2.0 + 0.9 / 2.0, abs=0.02)


def test_linear_gaussian_settings_and_grid() -> None:
    design = LinearGaussianDesign(slope=3.0, covariate_effect=-1.0, strength=2.0, disturbance=0.5)
    grid = design.grid()
    np.testing.assert_allclose(grid.truth, 3.0 * grid.treatment - grid.covariates["covariate"])
    data = design.sample(100_000, 0.5, 0)
    x, v, w = data.treatment, data.covariates[:, 0], data.instruments[:, 0]
    assert (data.outcome - 3.0 * x + v).std() == pytest.approx(0.5, rel=0.02)
    assert np.cov(x, w)[0, 1] == pytest.approx(2.0, rel=0.02)
    # What the grid calls support holds 99% of the treatments.
    reach = np.abs(grid.treatment - grid.covariates["covariate"])[grid.in_support].max()
    assert (np.abs(x - v) <= reach).mean() == pytest.approx(0.99, abs=0.003)


def test_demand_confounded_scales_the_disturbance_alone() -> None:
    plain, data = draw_demand(300, 0.9, 4), DemandConfoundedDesign().sample(300, 0.9, 4)
    structural = demand(plain.price, plain.time, plain.group)
    np.testing.assert_allclose(data.outcome - structural, 50.0 * (plain.outcome - structural), atol=1e-9)
    np.testing.assert_array_equal(data.treatment, plain.price)
    np.testing.assert_array_equal(data.instruments[:, 0], plain.cost)
    same = DemandConfoundedDesign(disturbance=1.0).sample(300, 0.9, 4)
    np.testing.assert_allclose(same.outcome, DemandDesign().sample(300, 0.9, 4).outcome, rtol=1e-12)
    np.testing.assert_array_equal(DemandConfoundedDesign().grid().truth, DemandDesign().grid().truth)


def test_binary_effect_is_what_the_instrument_shows() -> None:
    design = BinaryConfoundedDesign()
    data = design.sample(1_000_000, rho=0.9, seed=0)
    v, w, x, y = data.covariates[:, 0], data.instruments[:, 0], data.treatment, data.outcome
    for centre in (-1.0, 0.0, 1.0):
        near = np.abs(v - centre) < 0.05
        wald = np.cov(y[near], w[near])[0, 1] / np.cov(x[near], w[near])[0, 1]
        assert wald == pytest.approx(1.0 + 1.5 * np.sin(centre), abs=0.3)
        naive = y[near][x[near] == 1].mean() - y[near][x[near] == 0].mean()
        assert naive - design.effect(np.array([centre]))[0] > 1.5


def test_binary_propensity_and_support() -> None:
    design = BinaryConfoundedDesign()
    data = design.sample(200_000, 0.5, 1)
    v, grid = data.covariates[:, 0], design.grid()
    for centre in (-1.5, 0.0, 0.7):
        near = np.abs(v - centre) < 0.05
        assert data.treatment[near].mean() == pytest.approx(design.propensity(np.array([centre]))[0], abs=0.02)
    untreated = (grid.treatment == 0.0) & ~grid.in_support
    treated = (grid.treatment == 1.0) & ~grid.in_support
    assert grid.covariates["covariate"][untreated].min() > 0
    assert grid.covariates["covariate"][treated].max() < 0


@pytest.mark.parametrize(
    ("design", "wrong"),
    [
        (LinearGaussianDesign, {"strength": 0.0}),
        (LinearGaussianDesign, {"slope": float("nan")}),
        (LinearGaussianDesign, {"disturbance": -1.0}),
        (DemandConfoundedDesign, {"disturbance": -1.0}),
        (DemandConfoundedDesign, {"disturbance": float("inf")}),
        (BinaryConfoundedDesign, {"strength": 0.0}),
        (BinaryConfoundedDesign, {"disturbance": -1.0}),
    ],
)
def test_bad_settings_are_refused(design: type, wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        design(**wrong)
