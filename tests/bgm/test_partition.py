"""The latent partition: roles that covariates have by construction are found, and little is claimed from few rows."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bgmiv.bgm.covariates import build_dense
from bgmiv.bgm.partition import choose_layout
from bgmiv.data import IVData
from bgmiv.nn.features import FeatureConfig


def table(n: int, covariates: Any = None, seed: int = 0) -> IVData:
    """The first covariate moves treatment and outcome, the second and third the outcome alone."""
    rng = np.random.default_rng(seed)
    w, u, e = rng.normal(size=(3, n))
    v = rng.normal(size=(n, 3))
    x = w + np.sin(2.0 * v[:, 0]) + u
    y = x + v[:, 0] + np.cos(2.0 * v[:, 1]) + v[:, 2] + 0.5 * u + 0.3 * e
    return IVData.from_arrays(y, x, instruments=w, covariates=covariates(v) if covariates else v)


def layout(data: IVData, max_latents: int = 20, **features: Any) -> tuple[int, ...]:
    found, parts = choose_layout(data, FeatureConfig(**features), max_latents, np.random.default_rng(0))
    assert not parts or [size for _, size in parts] == [size for size in astuple(found) if size]
    return astuple(found)


def test_each_part_is_encoded_from_its_own_features() -> None:
    _, parts = choose_layout(table(800), FeatureConfig(), 20, np.random.default_rng(0))
    assert parts == (((0,), 1), ((1, 2), 2))
    module = build_dense(3, 3, key=jax.random.key(0), hidden=(8,), parts=parts)
    derivative = np.asarray(jax.jacobian(module.encode)(jnp.array([0.3, -0.2, 0.5])))
    np.testing.assert_array_equal(derivative != 0.0, [[True, False, False], [False, True, True], [False, True, True]])


@pytest.mark.parametrize("seed", range(3))
def test_roles_are_found(seed: int) -> None:
    assert layout(table(800, seed=seed)) == (1, 2, 0, 0)


def test_a_block_has_one_role_and_a_latent_for_each_feature() -> None:
    def blocks(v: np.ndarray) -> dict[str, np.ndarray]:
        copies = v[:, [1]] + 0.1 * np.random.default_rng(9).normal(size=(len(v), 4))
        return {"season": v[:, 0], "group": copies, "age": v[:, 2]}

    assert layout(table(800, blocks), narrow_vector=8) == (1, 5, 0, 0)
    assert layout(table(800, blocks), vector_features=(8, 2)) == (1, 3, 0, 0)


def test_shared_latents_go_first_where_there_is_no_room() -> None:
    assert layout(table(800), max_latents=1) == (1, 0, 0, 0)
    assert layout(table(800), max_latents=2) == (1, 1, 0, 0)


def test_all_are_shared_where_rows_show_nothing() -> None:
    assert layout(table(60)) == (3, 0, 0, 0)
    rng = np.random.default_rng(1)
    x, w, y = rng.normal(size=(3, 300))
    assert layout(IVData.from_arrays(y, x, instruments=w, covariates=rng.normal(size=(300, 2)))) == (2, 0, 0, 0)
    one_without = table(800, lambda v: np.column_stack([v[:, :2], rng.normal(size=len(v))]))
    assert layout(one_without) == (3, 0, 0, 0)
    assert layout(IVData.from_arrays(y, x, instruments=w)) == (1, 0, 0, 0)
