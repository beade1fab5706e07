"""What every head must do; a new head adds a row to CASES."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bgmiv.likelihood import Bernoulli, Categorical, FiniteHead, Gaussian, Head


@dataclass(frozen=True)
class Case:
    """A head, raw parameters to try it at, and its support (None for the real line)."""

    head: Head
    raw: tuple[float, ...]
    support: Callable[[], np.ndarray] | None


def _bits(dim: int) -> np.ndarray:
    return np.asarray(list(product([0.0, 1.0], repeat=dim)))


CASES = {
    "gaussian": Case(Gaussian(1), (0.4, -0.3), None),
    "gaussian of three": Case(Gaussian(3), (0.4, -2.0, 1.0, -0.3, 0.0, 1.5), None),
    "gaussian with one variance": Case(Gaussian(2, shared_variance=True), (0.4, -2.0, 0.7), None),
    "bernoulli": Case(Bernoulli(1), (0.8,), lambda: _bits(1)),
    "bernoulli of three": Case(Bernoulli(3), (0.8, -1.0, 0.0), lambda: _bits(3)),
    "categorical": Case(Categorical(4), (0.3, -1.0, 2.0, 0.0), lambda: np.eye(4)),
}


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def _draws(case: Case, n: int) -> np.ndarray:
    return np.asarray(case.head.sample(jnp.asarray(case.raw), jax.random.key(0), n))


def test_shapes_and_types(case: Case) -> None:
    head, raw = case.head, jnp.asarray(case.raw)
    assert isinstance(head, Head)
    assert head.raw_dim == len(case.raw)
    value = head.sample(raw, jax.random.key(0), 1)[0]
    assert head.sample(raw, jax.random.key(0), 5).shape == (5, head.dim)
    for result in (head.log_prob(raw, value), head.mean(raw), head.fit_error(raw, value)):
        assert result.shape == (head.dim,)
        assert result.dtype == jnp.float32
    assert head.spread_penalty(raw).shape == ()


def test_is_a_frozen_hashable_value(case: Case) -> None:
    assert hash(case.head) == hash(CASES[next(k for k, c in CASES.items() if c is case)].head)
    with pytest.raises(FrozenInstanceError):
        case.head.dim = 5  # type: ignore[misc]


def test_total_probability_is_one(case: Case) -> None:
    raw = jnp.asarray(case.raw)
    if case.support is not None:
        logs = [case.head.log_prob(raw, jnp.asarray(value)).sum() for value in case.support()]
        assert np.exp(logs).sum() == pytest.approx(1.0, abs=1e-5)
        return
    grid = jnp.linspace(-25.0, 25.0, 20_001)
    values = jnp.broadcast_to(grid[:, None], (len(grid), case.head.dim))
    density = np.exp(jax.vmap(case.head.log_prob, in_axes=(None, 0))(raw, values))
    np.testing.assert_allclose(np.trapezoid(density, grid, axis=0), 1.0, atol=1e-4)


def test_mean_is_the_mean_of_the_draws(case: Case) -> None:
    draws = _draws(case, 20_000)
    standard_error = draws.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(axis=0) - case.head.mean(jnp.asarray(case.raw))) < 4.0 * standard_error).all()


def test_draws_follow_the_density(case: Case) -> None:
    # The entropy two ways: from the draws' own log-densities and from another set of draws' histogram would need
    # bins; the score identity E[grad log p] = 0 needs none and fails if draws and density disagree.
    raw = jnp.asarray(case.raw)
    score = jax.vmap(jax.grad(lambda r, v: case.head.log_prob(r, v).sum()), in_axes=(None, 0))
    scores = np.asarray(score(raw, jnp.asarray(_draws(case, 20_000))))
    standard_error = scores.std(axis=0) / np.sqrt(len(scores))
    assert (np.abs(scores.mean(axis=0)) < 4.0 * standard_error + 1e-6).all()


def test_draws_depend_on_the_key_alone(case: Case) -> None:
    raw = jnp.asarray(case.raw)
    one, same, other = (np.asarray(case.head.sample(raw, jax.random.key(s), 50)) for s in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_maps_over_rows(case: Case) -> None:
    raws = jnp.stack([jnp.asarray(case.raw), jnp.zeros(case.head.raw_dim)])
    values = jnp.asarray(_draws(case, 2))
    mapped = jax.vmap(case.head.log_prob)(raws, values)
    np.testing.assert_allclose(mapped[1], case.head.log_prob(raws[1], values[1]), rtol=1e-6)


def test_spread_penalty_is_not_negative(case: Case) -> None:
    assert float(case.head.spread_penalty(jnp.asarray(case.raw))) >= 0.0


def test_finite_heads_name_their_support(case: Case) -> None:
    if not isinstance(case.head, FiniteHead) or case.head.dim != 1:
        pytest.skip("not a scalar with finitely many values")
    raw = jnp.asarray(case.raw)
    values = jnp.asarray(case.head.support)[:, None]
    np.testing.assert_allclose(
        case.head.log_weights(raw), jax.vmap(case.head.log_prob, in_axes=(None, 0))(raw, values)[:, 0]
    )
