"""The structural function at many points (eq. structural_prediction)."""

from __future__ import annotations

import jax
import numpy as np

from bgmiv.infer import LatentMap, latents_of, structural_means
from bgmiv.model import BGMIVModel

MAP = LatentMap(steps=60, learning_rate=0.01)
N = 20_000


def test_it_is_the_outcome_networks_mean(model: BGMIVModel) -> None:
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=70).astype(np.float32), rng.normal(size=(70, 4)).astype(np.float32)
    inputs = np.column_stack([z[:, :2], x])
    expected = jax.jit(lambda m, rows: jax.vmap(m.outcome)(rows)[:, 0])(model, inputs)
    np.testing.assert_allclose(structural_means(model, x, z), expected, rtol=1e-5, atol=1e-6)


def test_only_shared_and_outcome_latents_matter(model: BGMIVModel) -> None:
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=70).astype(np.float32), rng.normal(size=(70, 4)).astype(np.float32)
    other = z.copy()
    other[:, 2:] = 9.0
    np.testing.assert_array_equal(structural_means(model, x, z), structural_means(model, x, other))


def test_many_rows_agree_with_small_pieces(model: BGMIVModel) -> None:
    rng = np.random.default_rng(2)
    x, v = rng.normal(size=N).astype(np.float32), rng.normal(size=(N, 2)).astype(np.float32)
    z = latents_of(model, v, MAP)
    y = structural_means(model, x, z)
    assert z.shape == (N, 4)
    assert y.shape == (N,)
    for piece in (slice(0, 37), slice(4090, 4100), slice(N - 200, N)):
        small = latents_of(model, v[piece], MAP)
        np.testing.assert_allclose(z[piece], small, rtol=0, atol=2e-5)
        np.testing.assert_allclose(y[piece], structural_means(model, x[piece], small), rtol=0, atol=1e-4)


def test_a_million_treatments_at_one_row_cost_one_latent_search(model: BGMIVModel) -> None:
    v = np.broadcast_to(np.asarray([0.3, -0.4], np.float32), (1_000_000, 2))
    z = latents_of(model, v, MAP)
    assert z.shape == (1_000_000, 4)
    np.testing.assert_array_equal(z, np.broadcast_to(z[0], z.shape))
    np.testing.assert_allclose(z[:1], latents_of(model, v[:1], MAP), rtol=0, atol=2e-5)


def test_without_covariates_all_rows_share_their_latents(model: BGMIVModel) -> None:
    from bgmiv.covariates import build_dense

    bare = BGMIVModel(
        build_dense(0, 4, key=jax.random.key(0), hidden=(8,)),
        model.treatment,
        model.outcome,
        model.layout,
        model.treatment_head,
        model.outcome_head,
    )
    z = latents_of(bare, np.zeros((5, 0), np.float32), MAP)
    assert z.shape == (5, 4)
    assert np.isfinite(z).all()
    np.testing.assert_array_equal(z, np.broadcast_to(z[0], z.shape))
