from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bgmiv.errors import ConfigError
from bgmiv.likelihood import Gaussian, GaussianMixture, Head

N_DRAWS = 100_000
RAWS = {
    "equal components": (0.0, 0.0, 0.0, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0),
    "far apart": (-8.0, 0.5, 6.0, -1.0, 2.0, 0.0, 0.3, -1.0, 1.0),
    "one narrow, one rare": (-1.0, 0.0, 2.0, -4.0, 1.0, -3.0, 2.0, 0.0, -6.0),
}


@pytest.fixture(params=list(RAWS))
def raw(request: pytest.FixtureRequest) -> jax.Array:
    return jnp.asarray(RAWS[request.param])


@pytest.fixture(scope="module")
def head() -> GaussianMixture:
    return GaussianMixture(3)


def by_hand(raw: jax.Array, head: GaussianMixture) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mean, spread, logits = np.asarray(raw, np.float64).reshape(3, 3)
    weights = np.exp(logits - logits.max())
    return mean, np.logaddexp(0.0, spread) + head.floor, weights / weights.sum()


def test_is_a_head(head: GaussianMixture) -> None:
    assert isinstance(head, Head)
    assert (head.dim, head.raw_dim) == (1, 9)
    assert head == GaussianMixture(3)
    assert hash(head) == hash(GaussianMixture(3))


def test_density_integrates_to_one(head: GaussianMixture, raw: jax.Array) -> None:
    # Gauss-Legendre on short pieces: the narrowest component has deviation 0.02.
    nodes, weights = np.polynomial.legendre.leggauss(8)
    edges = np.linspace(-40.0, 40.0, 8001)
    half = np.diff(edges)[:, None] / 2.0
    points = (edges[:-1, None] + half * (nodes + 1.0)).ravel()
    density = np.exp(jax.vmap(lambda x: head.log_prob(raw, x[None])[0])(jnp.asarray(points, jnp.float32)))
    total = np.sum(density.astype(np.float64) * (half * weights).ravel())
    assert total == pytest.approx(1.0, abs=2e-5)


def test_density_is_the_weighted_sum(head: GaussianMixture, raw: jax.Array) -> None:
    mean, deviation, weights = by_hand(raw, head)
    points = np.linspace(-10.0, 10.0, 101)
    expected = np.sum(weights * stats.norm.pdf(points[:, None], mean, deviation), axis=1)
    found = jax.vmap(lambda x: head.log_prob(raw, x[None])[0])(jnp.asarray(points, jnp.float32))
    np.testing.assert_allclose(found, np.log(expected), rtol=2e-4, atol=2e-4)


def test_one_component_is_a_gaussian() -> None:
    mean, deviation = 0.7, 1.3
    spread = float(np.log(np.expm1(deviation - 1e-3)))
    variance = float(np.log(np.expm1(deviation**2 - 1e-6)))
    value = jnp.asarray([-0.4])
    np.testing.assert_allclose(
        GaussianMixture(1).log_prob(jnp.asarray([mean, spread, 5.0]), value),
        Gaussian(1).log_prob(jnp.asarray([mean, variance]), value),
        rtol=1e-5,
    )


def test_moments_and_draws_agree(head: GaussianMixture, raw: jax.Array) -> None:
    mean, deviation, weights = by_hand(raw, head)
    expected_mean = np.sum(weights * mean)
    expected_variance = np.sum(weights * (deviation**2 + (mean - expected_mean) ** 2))
    np.testing.assert_allclose(head.mean(raw), [expected_mean], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(head.variance(raw), [expected_variance], rtol=1e-5)

    draws = np.asarray(head.sample(raw, jax.random.key(0), N_DRAWS), np.float64)
    assert draws.shape == (N_DRAWS, 1)
    # Four standard errors: a level of 6e-5 for each of the two moments.
    centred = draws[:, 0] - expected_mean
    assert abs(centred.mean()) < 4.0 * centred.std() / np.sqrt(N_DRAWS)
    squares = centred**2
    assert abs(squares.mean() - expected_variance) < 4.0 * squares.std() / np.sqrt(N_DRAWS)

    def distribution(x: np.ndarray) -> np.ndarray:
        return np.sum(weights * stats.norm.cdf(np.asarray(x)[..., None], mean, deviation), axis=-1)

    assert stats.kstest(draws[:, 0], distribution).pvalue > 1e-4


def test_extreme_uniforms_give_finite_draws(head: GaussianMixture, raw: jax.Array) -> None:
    edge = 2.0**-24
    corners = jnp.asarray([[edge, edge], [edge, 1.0 - edge], [1.0 - edge, edge], [1.0 - edge, 1.0 - edge]])
    assert np.isfinite(head.at_uniforms(raw, corners)).all()


def test_gradients_stay_finite_far_away(head: GaussianMixture, raw: jax.Array) -> None:
    for value in (0.0, 1e3, -1e4):
        grads = jax.grad(lambda r, x=value: head.log_prob(r, jnp.asarray([x]))[0])(raw)
        assert np.isfinite(grads).all()


@pytest.mark.parametrize("bad", [{"n_components": 0}, {"floor": 0.0}])
def test_refuses_what_is_no_distribution(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        GaussianMixture(**bad)
