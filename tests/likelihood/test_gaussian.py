from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from bgmiv.likelihood import Gaussian


def test_log_density_is_the_normal_one() -> None:
    raw = jnp.asarray([0.0, 1.0, -2.0, -1.0, 0.0, 3.0])
    value = np.asarray([0.3, -4.0, -2.0])
    deviation = np.sqrt(np.log1p(np.exp([-1.0, 0.0, 3.0])) + 1e-6)
    np.testing.assert_allclose(
        jax.jit(Gaussian(3).log_prob)(raw, value), norm.logpdf(value, [0.0, 1.0, -2.0], deviation), rtol=1e-5
    )


def test_variance_is_softplus_and_a_floor() -> None:
    raw = jnp.asarray([0.0, 0.0, 0.0, -50.0, 0.0, 80.0])
    np.testing.assert_allclose(jax.jit(Gaussian(3).variance)(raw), [1e-6, np.log(2.0) + 1e-6, 80.0], rtol=1e-5)
    np.testing.assert_allclose(jax.jit(Gaussian(3, floor=0.5).variance)(raw)[0], 0.5, rtol=1e-5)


def test_shared_variance_is_one_for_all() -> None:
    head = Gaussian(3, shared_variance=True)
    assert head.raw_dim == 4
    shared = jax.jit(head.log_prob)(jnp.asarray([1.0, 2.0, 3.0, 0.7]), jnp.zeros(3))
    one_each = jax.jit(Gaussian(3).log_prob)(jnp.asarray([1.0, 2.0, 3.0, 0.7, 0.7, 0.7]), jnp.zeros(3))
    np.testing.assert_allclose(shared, one_each, rtol=1e-6)


def test_extremes_and_their_gradients_are_finite() -> None:
    head = Gaussian(1)
    spreads, values = np.meshgrid([-1e4, -100.0, 0.0, 100.0, 1e4], [-1e4, 0.0, 1e4])
    raws = np.stack([np.full(15, 0.5), spreads.ravel()], axis=1).astype(np.float32)
    value_and_grad = jax.value_and_grad(lambda raw, value: head.log_prob(raw, value[None])[0])
    log_prob, slope = jax.jit(jax.vmap(value_and_grad))(raws, values.ravel().astype(np.float32))
    assert np.isfinite(log_prob).all()
    assert np.isfinite(slope).all()


def test_draws_carry_gradients_into_mean_and_variance() -> None:
    head, raw = Gaussian(1), np.asarray([0.5, 0.2], np.float32)

    def draws(raw: jax.Array) -> jax.Array:
        return head.sample(raw, jax.random.key(0), 4)[:, 0]

    sample, slope = jax.jit(lambda r: (draws(r), jax.jacobian(draws)(r)))(raw)
    variance = np.log1p(np.exp(0.2)) + 1e-6
    noise = (np.asarray(sample) - 0.5) / np.sqrt(variance)
    np.testing.assert_allclose(slope[:, 0], 1.0)
    # d sqrt(softplus(r)) / dr = sigmoid(r) / (2 sqrt(softplus(r)))
    np.testing.assert_allclose(slope[:, 1], noise / (2.0 * np.sqrt(variance)) / (1.0 + np.exp(-0.2)), rtol=1e-4)


def test_warm_start_terms() -> None:
    head, raw = Gaussian(2), jnp.asarray([1.0, 2.0, 3.0, -1.0])
    error, penalty = jax.jit(lambda r, v: (head.fit_error(r, v), head.spread_penalty(r)))(raw, np.asarray([0.0, 5.0]))
    np.testing.assert_allclose(error, [1.0, 9.0])
    assert float(penalty) == pytest.approx(5.0)


def test_nothing_to_model_has_no_penalty() -> None:
    assert float(jax.jit(Gaussian(0).spread_penalty)(jnp.zeros(0))) == 0.0
