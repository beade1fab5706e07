from __future__ import annotations

import jax
import numpy as np
from scipy.special import expit, softmax
from scipy.stats import bernoulli

from bgmiv.likelihood import Bernoulli, Categorical, FiniteHead, Gaussian


def test_bernoulli_is_the_logistic_one_and_takes_shares_as_values() -> None:
    head, raw = Bernoulli(3), np.asarray([-2.0, 0.0, 3.0], np.float32)
    mean, log_prob, of_shares = jax.jit(lambda r, v, s: (head.mean(r), head.log_prob(r, v), head.log_prob(r, s)))(
        raw, np.asarray([1.0, 0.0, 1.0], np.float32), np.full(3, 0.3, np.float32)
    )
    np.testing.assert_allclose(mean, expit(raw), rtol=1e-6)
    np.testing.assert_allclose(log_prob, bernoulli.logpmf([1, 0, 1], expit(raw)), rtol=1e-5)
    np.testing.assert_allclose(of_shares, 0.3 * np.log(expit(raw)) + 0.7 * np.log(expit(-raw)), rtol=1e-5)


def test_sure_things_and_their_gradients_stay_finite() -> None:
    @jax.jit
    @jax.vmap
    def run(logit: jax.Array) -> tuple[jax.Array, ...]:
        raw = logit[None]
        bernoulli = [jax.value_and_grad(lambda r, v=v: Bernoulli(1).log_prob(r, v)[0])(raw) for v in (0.0, 1.0)]
        levels = jax.numpy.stack([logit, -logit])
        categorical = Categorical(2).log_prob(levels, np.asarray([0.0, 1.0], np.float32))
        return *(part for pair in bernoulli for part in pair), Bernoulli(1).log_weights(raw), categorical

    for result in run(np.asarray([-1e4, -100.0, 100.0, 1e4], np.float32)):
        assert np.isfinite(result).all()


def test_categorical_is_the_softmax() -> None:
    head, raw = Categorical(3), np.asarray([0.5, -1.0, 2.0], np.float32)
    event = np.asarray([0.0, 1.0, 0.0], np.float32)
    mean, log_prob = jax.jit(lambda r, v: (head.mean(r), head.log_prob(r, v)))(raw, event)
    np.testing.assert_allclose(mean, softmax(raw), rtol=1e-5)
    np.testing.assert_allclose(log_prob, [0.0, np.log(softmax(raw)[1]), 0.0], rtol=1e-5)


def test_only_a_scalar_with_few_values_is_a_finite_head() -> None:
    assert isinstance(Bernoulli(1), FiniteHead)
    assert not isinstance(Gaussian(1), FiniteHead)
    assert not isinstance(Categorical(3), FiniteHead)
