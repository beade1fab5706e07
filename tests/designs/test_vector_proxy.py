from __future__ import annotations

import numpy as np
import pytest

from bgmiv.designs import DemandDesign, VectorProxyDesign
from bgmiv.designs.demand import demand_grid, draw_demand
from bgmiv.errors import ConfigError


def test_the_papers_settings() -> None:
    design = VectorProxyDesign()
    assert (design.vector_dim, design.noise) == (784, 0.5)
    data = design.sample(20, 0.5, 0)
    assert data.covariates.shape == (20, 785)
    assert [block.kind for block in data.schema.blocks] == ["continuous", "vector"]


def test_shares_everything_but_the_group_with_demand() -> None:
    plain, proxy = DemandDesign().sample(80, 0.3, 9), VectorProxyDesign(vector_dim=4).sample(80, 0.3, 9)
    for role in ("outcome", "treatment", "instruments"):
        np.testing.assert_array_equal(getattr(plain, role), getattr(proxy, role))
    np.testing.assert_array_equal(plain.covariates[:, 0], proxy.covariates[:, 0])
    np.testing.assert_array_equal(DemandDesign().grid().truth, VectorProxyDesign(vector_dim=4).grid().truth)
    np.testing.assert_array_equal(DemandDesign().grid().in_support, VectorProxyDesign(vector_dim=4).grid().in_support)


def test_proxy_is_prototype_plus_noise() -> None:
    design = VectorProxyDesign(vector_dim=50, noise=0.5)
    data, draw = design.sample(2000, 0.5, 1), draw_demand(2000, 0.5, 1)
    residual = data.covariates[:, 1:] - design.prototypes()[draw.group.astype(int) - 1]
    assert residual.std() == pytest.approx(0.5, rel=0.02)
    assert abs(residual.mean()) < 0.01


def test_without_noise_the_proxy_is_the_prototype() -> None:
    design = VectorProxyDesign(vector_dim=5, noise=0.0)
    group = demand_grid()[2].astype(int)
    np.testing.assert_array_equal(design.grid().covariates["proxy"], design.prototypes()[group - 1])


def test_prototypes_depend_on_the_feature_seed_alone() -> None:
    design = VectorProxyDesign(vector_dim=500)
    np.testing.assert_array_equal(design.prototypes(), VectorProxyDesign(vector_dim=500, noise=2.0).prototypes())
    assert not np.array_equal(design.prototypes(), VectorProxyDesign(vector_dim=500, feature_seed=1).prototypes())
    assert design.prototypes().shape == (7, 500)
    assert design.prototypes().std() == pytest.approx(1.0, abs=0.05)


def test_noise_streams_are_separate_even_when_the_seeds_coincide() -> None:
    design = VectorProxyDesign(vector_dim=64, feature_seed=3)
    group = demand_grid()[2].astype(int)
    grid_noise = (design.grid().covariates["proxy"] - design.prototypes()[group - 1]) / design.noise
    draw = draw_demand(2800, 0.5, seed=3)
    sample = design.sample(2800, 0.5, seed=3).covariates[:, 1:]
    train_noise = (sample - design.prototypes()[draw.group.astype(int) - 1]) / design.noise
    prototypes = design.prototypes().ravel()
    for one, two in (
        (grid_noise, train_noise),
        (grid_noise.ravel()[: prototypes.size], prototypes),
        (train_noise.ravel()[: prototypes.size], prototypes),
    ):
        assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < 0.15


def test_every_grid_point_has_a_proxy_of_its_own() -> None:
    proxy = VectorProxyDesign(vector_dim=3).grid().covariates["proxy"]
    assert len(np.unique(proxy, axis=0)) == 2800


@pytest.mark.parametrize("wrong", [{"vector_dim": 0}, {"noise": -0.1}, {"noise": float("nan")}, {"feature_seed": -1}])
def test_bad_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        VectorProxyDesign(**wrong)  # type: ignore[arg-type]
