"""Gaussian and mixture heads against closed forms; `tests/contract/test_heads.py` has what all heads must do."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bgmiv.likelihood import Gaussian, GaussianMixture

MIXTURE = GaussianMixture(3)
RAWS = {
    "equal components": (0.0, 0.0, 0.0, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0),
    "far apart": (-8.0, 0.5, 6.0, -1.0, 2.0, 0.0, 0.3, -1.0, 1.0),
    "one narrow, one rare": (-1.0, 0.0, 2.0, -4.0, 1.0, -3.0, 2.0, 0.0, -6.0),
}


def test_the_gaussian_density_and_variance() -> None:
    raw, value = jnp.asarray([0.0, 1.0, -2.0, -1.0, 0.0, 3.0]), np.asarray([0.3, -4.0, -2.0])
    sd = np.sqrt(np.log1p(np.exp([-1.0, 0.0, 3.0])) + 1e-6)
    expected = stats.norm.logpdf(value, [0.0, 1.0, -2.0], sd)
    np.testing.assert_allclose(jax.jit(Gaussian(3).log_prob)(raw, value), expected, rtol=1e-5)
    spreads = jnp.asarray([0.0, 0.0, 0.0, -50.0, 0.0, 80.0])
    np.testing.assert_allclose(jax.jit(Gaussian(3).variance)(spreads), [1e-6, np.log(2.0) + 1e-6, 80.0], rtol=1e-5)
    np.testing.assert_allclose(jax.jit(Gaussian(3, floor=0.5).variance)(spreads)[0], 0.5, rtol=1e-5)


def test_shared_variance_is_one_for_all() -> None:
    shared = jax.jit(Gaussian(3, shared_variance=True).log_prob)(jnp.asarray([1.0, 2.0, 3.0, 0.7]), jnp.zeros(3))
    one_each = jax.jit(Gaussian(3).log_prob)(jnp.asarray([1.0, 2.0, 3.0, 0.7, 0.7, 0.7]), jnp.zeros(3))
    np.testing.assert_allclose(shared, one_each, rtol=1e-6)


def test_extremes_and_their_gradients_are_finite() -> None:
    spreads, values = np.meshgrid([-1e4, -100.0, 0.0, 100.0, 1e4], [-1e4, 0.0, 1e4])
    raws = np.stack([np.full(15, 0.5), spreads.ravel()], axis=1).astype(np.float32)
    value_and_grad = jax.value_and_grad(lambda raw, value: Gaussian(1).log_prob(raw, value[None])[0])
    for found in jax.jit(jax.vmap(value_and_grad))(raws, values.ravel().astype(np.float32)):
        assert np.isfinite(found).all()
    mixture_grad = jax.jit(jax.vmap(jax.grad(lambda raw, value: MIXTURE.log_prob(raw, value[None])[0]), (None, 0)))
    for raw in RAWS.values():
        assert np.isfinite(mixture_grad(jnp.asarray(raw), jnp.asarray([0.0, 1e3, -1e4]))).all()


def test_warm_start_terms() -> None:
    head, raw = Gaussian(2), jnp.asarray([1.0, 2.0, 3.0, -1.0])
    error, penalty = jax.jit(lambda r, v: (head.fit_error(r, v), head.spread_penalty(r)))(raw, np.asarray([0.0, 5.0]))
    np.testing.assert_allclose(error, [1.0, 9.0])
    assert float(penalty) == pytest.approx(5.0)
    assert float(jax.jit(Gaussian(0).spread_penalty)(jnp.zeros(0))) == 0.0


@pytest.mark.parametrize("raw", RAWS.values(), ids=RAWS)
def test_the_mixture_is_the_weighted_sum(raw: tuple[float, ...]) -> None:
    mean, spread, logits = np.reshape(raw, (3, 3))
    sd, weights = np.logaddexp(0.0, spread) + MIXTURE.floor, np.exp(logits) / np.exp(logits).sum()

    @jax.jit
    def run(raw: jax.Array, points: jax.Array, corners: jax.Array) -> tuple[jax.Array, ...]:
        log_prob = jax.vmap(lambda x: MIXTURE.log_prob(raw, x[None])[0])(points)
        draws = MIXTURE.at_uniforms(
            raw, jax.random.uniform(jax.random.key(0), (100_000, 2), minval=edge, maxval=1.0 - edge)
        )
        return log_prob, MIXTURE.mean(raw), draws, MIXTURE.at_uniforms(raw, corners)

    points, edge = np.linspace(-10.0, 10.0, 101), 2.0**-24
    corners = jnp.asarray([[edge, edge], [edge, 1.0 - edge], [1.0 - edge, edge], [1.0 - edge, 1.0 - edge]])
    log_prob, found_mean, draws, extreme = run(jnp.asarray(raw), points.astype(np.float32), corners)
    expected = np.sum(weights * stats.norm.pdf(points[:, None], mean, sd), axis=1)
    np.testing.assert_allclose(log_prob, np.log(expected), rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(found_mean, [np.sum(weights * mean)], rtol=1e-5, atol=1e-6)
    assert np.isfinite(extreme).all()

    def distribution(x: np.ndarray) -> np.ndarray:
        return np.sum(weights * stats.norm.cdf(np.asarray(x)[..., None], mean, sd), axis=-1)

    assert stats.kstest(np.asarray(draws, np.float64), distribution).pvalue > 1e-4
