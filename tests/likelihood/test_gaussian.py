from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from bgmiv.likelihood import Gaussian


def test_log_density_is_the_normal_one() -> None:
    head = Gaussian(3)
    raw = jnp.asarray([0.0, 1.0, -2.0, -1.0, 0.0, 3.0])
    value = np.asarray([0.3, -4.0, -2.0])
    deviation = np.sqrt(np.log1p(np.exp([-1.0, 0.0, 3.0])) + 1e-6)
    np.testing.assert_allclose(
        head.log_prob(raw, jnp.asarray(value)), norm.logpdf(value, [0.0, 1.0, -2.0], deviation), rtol=1e-5
    )


def test_variance_is_softplus_and_a_floor() -> None:
    raw = jnp.asarray([0.0, 0.0, 0.0, -50.0, 0.0, 80.0])
    np.testing.assert_allclose(Gaussian(3).variance(raw), [1e-6, np.log(2.0) + 1e-6, 80.0], rtol=1e-5)
    np.testing.assert_allclose(Gaussian(3, floor=0.5).variance(raw)[0], 0.5, rtol=1e-5)


def test_shared_variance_is_one_for_all() -> None:
    head = Gaussian(3, shared_variance=True)
    raw = jnp.asarray([1.0, 2.0, 3.0, 0.7])
    assert head.raw_dim == 4
    one_each = Gaussian(3).log_prob(jnp.asarray([1.0, 2.0, 3.0, 0.7, 0.7, 0.7]), jnp.zeros(3))
    np.testing.assert_allclose(head.log_prob(raw, jnp.zeros(3)), one_each, rtol=1e-6)
    assert head.sample(raw, jax.random.key(0), 5).shape == (5, 3)


@pytest.mark.parametrize("spread", [-1e4, -100.0, 0.0, 100.0, 1e4])
@pytest.mark.parametrize("value", [-1e4, 0.0, 1e4])
def test_extremes_and_their_gradients_are_finite(spread: float, value: float) -> None:
    head = Gaussian(1)

    def log_prob(raw: jax.Array) -> jax.Array:
        return head.log_prob(raw, jnp.asarray([value]))[0]

    raw = jnp.asarray([0.5, spread])
    assert np.isfinite(log_prob(raw))
    assert np.isfinite(jax.grad(log_prob)(raw)).all()


def test_draws_carry_gradients_into_mean_and_variance() -> None:
    head, raw, key = Gaussian(1), jnp.asarray([0.5, 0.2]), jax.random.key(0)
    slope = jax.jacobian(lambda r: head.sample(r, key, 4)[:, 0])(raw)
    np.testing.assert_allclose(slope[:, 0], 1.0)
    noise = (head.sample(raw, key, 4)[:, 0] - 0.5) / jnp.sqrt(head.variance(raw)[0])
    expected = noise * 0.5 / jnp.sqrt(head.variance(raw)[0]) * jax.nn.sigmoid(0.2)
    np.testing.assert_allclose(slope[:, 1], expected, rtol=1e-4)


def test_warm_start_terms() -> None:
    head, raw = Gaussian(2), jnp.asarray([1.0, 2.0, 3.0, -1.0])
    np.testing.assert_allclose(head.fit_error(raw, jnp.asarray([0.0, 5.0])), [1.0, 9.0])
    assert float(head.spread_penalty(raw)) == pytest.approx(5.0)
