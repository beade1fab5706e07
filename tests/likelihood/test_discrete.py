from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, softmax
from scipy.stats import bernoulli

from bgmiv.likelihood import Bernoulli, Categorical, FiniteHead, Gaussian


def test_bernoulli_is_the_logistic_one() -> None:
    raw, value = jnp.asarray([-2.0, 0.0, 3.0]), jnp.asarray([1.0, 0.0, 1.0])
    head = Bernoulli(3)
    np.testing.assert_allclose(head.mean(raw), expit([-2.0, 0.0, 3.0]), rtol=1e-6)
    np.testing.assert_allclose(
        head.log_prob(raw, value), bernoulli.logpmf([1, 0, 1], expit([-2.0, 0.0, 3.0])), rtol=1e-5
    )
    np.testing.assert_allclose(head.fit_error(raw, value), -head.log_prob(raw, value))


def test_bernoulli_takes_probabilities_as_values() -> None:
    head, raw, share = Bernoulli(1), jnp.asarray([0.4]), 0.3
    cross_entropy = share * np.log(expit(0.4)) + (1 - share) * np.log(expit(-0.4))
    np.testing.assert_allclose(head.log_prob(raw, jnp.asarray([share])), [cross_entropy], rtol=1e-5)


@pytest.mark.parametrize("logit", [-1e4, -100.0, 100.0, 1e4])
def test_sure_things_stay_finite(logit: float) -> None:
    head, raw = Bernoulli(1), jnp.asarray([logit])
    for value in (0.0, 1.0):
        assert np.isfinite(head.log_prob(raw, jnp.asarray([value]))).all()
        assert np.isfinite(jax.grad(lambda r, v=value: head.log_prob(r, jnp.asarray([v]))[0])(raw)).all()
    assert np.isfinite(head.log_weights(raw)).all()
    one_hot = jnp.asarray([0.0, 1.0])
    assert np.isfinite(Categorical(2).log_prob(jnp.asarray([logit, -logit]), one_hot)).all()


def test_categorical_is_the_softmax() -> None:
    head, raw = Categorical(3), jnp.asarray([0.5, -1.0, 2.0])
    np.testing.assert_allclose(head.mean(raw), softmax([0.5, -1.0, 2.0]), rtol=1e-5)
    np.testing.assert_allclose(
        head.log_prob(raw, jnp.asarray([0.0, 1.0, 0.0])), [0.0, np.log(softmax([0.5, -1.0, 2.0])[1]), 0.0],
        rtol=1e-5,
    )  # fmt: skip


def test_categorical_draws_are_one_hot_with_the_right_shares() -> None:
    draws = np.asarray(Categorical(3).sample(jnp.asarray([0.5, -1.0, 2.0]), jax.random.key(0), 20_000))
    np.testing.assert_array_equal(draws.sum(axis=1), 1.0)
    np.testing.assert_array_equal(np.unique(draws), [0.0, 1.0])
    np.testing.assert_allclose(draws.mean(axis=0), softmax([0.5, -1.0, 2.0]), atol=0.02)


def test_only_a_scalar_with_few_values_is_a_finite_head() -> None:
    assert isinstance(Bernoulli(1), FiniteHead)
    assert not isinstance(Gaussian(1), FiniteHead)
    assert not isinstance(Categorical(3), FiniteHead)
