"""The latent partition: roles that covariates have by construction are found, and little is claimed from few rows."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bgmiv.bgm.config import BGMIVConfig, CovariateConfig, JointTraining, LatentLayout, ModelConfig
from bgmiv.bgm.model import build_model
from bgmiv.bgm.resolve import choose_layout, resolve
from bgmiv.data import IVData
from bgmiv.nn.settings import FeatureConfig


def table(n: int, covariates: Any = None, seed: int = 0) -> IVData:
    """The first covariate moves treatment and outcome, the second and third the outcome alone."""
    rng = np.random.default_rng(seed)
    w, u, e = rng.normal(size=(3, n))
    v = rng.normal(size=(n, 3))
    x = w + np.sin(2.0 * v[:, 0]) + u
    y = x + v[:, 0] + np.cos(2.0 * v[:, 1]) + v[:, 2] + 0.5 * u + 0.3 * e
    return IVData.from_arrays(y, x, instruments=w, covariates=covariates(v) if covariates else v)


def layout(data: IVData, **features: Any) -> tuple[int, ...]:
    found, positions = choose_layout(data, FeatureConfig(**features), np.random.default_rng(0))
    assert sorted(positions) == list(range(found.dim if data.schema.blocks else 0))
    return astuple(found)


def test_latents_are_features_in_the_order_of_their_parts() -> None:
    def swapped(v: np.ndarray) -> np.ndarray:
        return v[:, [1, 0, 2]]

    found, positions = choose_layout(table(800, swapped), FeatureConfig(), np.random.default_rng(0))
    assert (astuple(found), positions) == ((1, 2, 0, 0), (1, 0, 2))
    config = ModelConfig(found, embedding=(8, 20), covariates=CovariateConfig(latent_features=positions))
    model = build_model(table(800, swapped).schema, 1, config, key=jax.random.key(0))
    assert not model.covariates.learns_latents
    z = model.covariates.encode(jnp.array([0.3, -0.2, 0.5]))
    np.testing.assert_array_equal(z, np.float32([-0.2, 0.3, 0.5]))
    np.testing.assert_array_equal(model.covariates.mean(z), np.float32([0.3, -0.2, 0.5]))
    (head,) = (branch.head for branch in model.covariates.branches)
    np.testing.assert_allclose(head.variance(model.covariates.decode(z)[0]), 1e-4, rtol=0.02)
    assert astuple(model.embedding.outputs) == (1, 2, 0, 0)
    treatment = np.asarray(jax.jacobian(lambda z: model.treatment_raw(jnp.zeros(1), z))(z))
    np.testing.assert_array_equal(np.any(treatment != 0.0, axis=0), [True, False, False])
    outcome = np.asarray(jax.jacobian(lambda z: model.structural_mean(jnp.zeros(()), z))(z))
    assert np.all(outcome != 0.0)


def test_the_embedding_of_many_latents_has_a_bounded_width() -> None:
    config = ModelConfig(LatentLayout(7, 3, 1, 2), embedding=(8, 5), treatment_trunk=(4,), outcome_trunk=(4,))
    model = build_model(table(20).schema, 1, config, key=jax.random.key(0))
    assert astuple(model.embedding.outputs) == (5, 3, 1, 0)
    assert model.embedding(jnp.zeros(13)).shape == (9,)
    alone = build_model(table(20).schema, 1, replace(config, layout=LatentLayout(0, 0, 0, 2)), key=jax.random.key(0))
    assert alone.embedding is None
    assert np.isfinite(alone.structural_mean(jnp.zeros(()), jnp.zeros(2)))


@pytest.mark.parametrize("seed", range(3))
def test_roles_are_found(seed: int) -> None:
    assert layout(table(800, seed=seed)) == (1, 2, 0, 0)


def test_a_block_has_one_role_and_a_latent_for_each_feature() -> None:
    def blocks(v: np.ndarray) -> dict[str, np.ndarray]:
        copies = v[:, [1]] + 0.1 * np.random.default_rng(9).normal(size=(len(v), 4))
        return {"season": v[:, 0], "group": copies, "age": v[:, 2]}

    assert layout(table(800, blocks), narrow_vector=8) == (1, 5, 0, 0)
    assert layout(table(800, blocks), vector_features=(8, 2)) == (1, 3, 0, 0)


def test_all_are_shared_where_rows_show_nothing() -> None:
    assert layout(table(60)) == (3, 0, 0, 0)
    rng = np.random.default_rng(1)
    x, w, y = rng.normal(size=(3, 300))
    assert layout(IVData.from_arrays(y, x, instruments=w, covariates=rng.normal(size=(300, 2)))) == (2, 0, 0, 0)
    one_without = table(800, lambda v: np.column_stack([v[:, :2], rng.normal(size=len(v))]))
    assert layout(one_without) == (3, 0, 0, 0)
    assert layout(IVData.from_arrays(y, x, instruments=w)) == (1, 0, 0, 0)


def test_iterations_left_open_grow_with_the_root_of_the_rows() -> None:
    config = BGMIVConfig(initial=JointTraining(iterations=None))
    for n, iterations in ((50, 3000), (4000, 6000)):
        initial = resolve(config, table(n), np.random.default_rng(0)).initial
        assert (initial.iterations, initial.chunk) == (iterations, iterations // 10)
