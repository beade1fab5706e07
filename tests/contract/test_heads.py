"""What every head must do; a new head adds a row to CASES."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass
from functools import cache
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bgmiv.likelihood import Bernoulli, Categorical, FiniteHead, Gaussian, GaussianMixture, Head, Levels

N_DRAWS = 20_000


@dataclass(frozen=True)
class Case:
    """A head, raw parameters to try it at, and its support (None for the real line)."""

    make: Callable[[], Head]
    raw: tuple[float, ...]
    support: Callable[[], np.ndarray] | None = None


def _bits(dim: int) -> np.ndarray:
    return np.asarray(list(product([0.0, 1.0], repeat=dim)))


CASES = {
    "gaussian": Case(lambda: Gaussian(1), (0.4, -0.3)),
    "gaussian of three": Case(lambda: Gaussian(3), (0.4, -2.0, 1.0, -0.3, 0.0, 1.5)),
    "gaussian with one variance": Case(lambda: Gaussian(2, shared_variance=True), (0.4, -2.0, 0.7)),
    "mixture": Case(lambda: GaussianMixture(2), (0.4, -2.0, -0.3, 0.5, 0.2, -0.7)),
    "bernoulli": Case(lambda: Bernoulli(1), (0.8,), lambda: _bits(1)),
    "bernoulli of three": Case(lambda: Bernoulli(3), (0.8, -1.0, 0.0), lambda: _bits(3)),
    "categorical": Case(lambda: Categorical(4), (0.3, -1.0, 2.0, 0.0), lambda: np.eye(4)),
    "levels": Case(lambda: Levels(4), (0.3, -1.0, 2.0, 0.0), lambda: np.arange(4.0)[:, None]),
}
FINITE = [name for name, case in CASES.items() if isinstance(case.make(), FiniteHead) and case.make().dim == 1]


class Results(NamedTuple):
    """All that the tests look at, computed in one compiled call a head."""

    draws: np.ndarray
    other_draws: np.ndarray
    mean: np.ndarray
    log_prob: np.ndarray
    fit_error: np.ndarray
    spread_penalty: np.ndarray
    scores: np.ndarray
    masses: np.ndarray


def _points(case: Case) -> np.ndarray:
    """The whole support, or a grid on which a density can be summed, `(m, dim)`."""
    if case.support is not None:
        return case.support().astype(np.float32)
    grid = np.linspace(-25.0, 25.0, 20_001, dtype=np.float32)
    return np.repeat(grid[:, None], case.make().dim, axis=1)


@cache
def results(name: str) -> Results:
    case = CASES[name]
    head = case.make()

    @jax.jit
    def run(raw: jax.Array, points: jax.Array, key: jax.Array) -> Results:
        key, other = jax.random.split(key)
        draws = head.sample(raw, key, N_DRAWS)
        over = (None, 0)
        return Results(
            draws=draws,
            other_draws=head.sample(raw, other, N_DRAWS),
            mean=head.mean(raw),
            log_prob=jax.vmap(head.log_prob, over)(raw, draws),
            fit_error=jax.vmap(head.fit_error, over)(raw, draws),
            spread_penalty=head.spread_penalty(raw),
            scores=jax.vmap(jax.grad(lambda r, v: head.log_prob(r, v).sum()), over)(raw, draws),
            masses=jnp.exp(jax.vmap(head.log_prob, over)(raw, points)),
        )

    raw, points = np.asarray(case.raw, np.float32), _points(case)
    first, again = run(raw, points, jax.random.key(0)), run(raw, points, jax.random.key(0))
    np.testing.assert_array_equal(first.draws, again.draws)
    return Results(*(np.asarray(value) for value in first))


@pytest.fixture(params=list(CASES))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_shapes_and_types(name: str) -> None:
    head, got = CASES[name].make(), results(name)
    assert isinstance(head, Head)
    assert head.raw_dim == len(CASES[name].raw)
    assert got.mean.shape == (head.dim,)
    assert got.spread_penalty.shape == ()
    for values in (got.draws, got.log_prob, got.fit_error):
        assert values.shape == (N_DRAWS, head.dim)
    assert {values.dtype for values in got} == {np.dtype(np.float32)}


def test_is_a_frozen_hashable_value(name: str) -> None:
    head, twin = CASES[name].make(), CASES[name].make()
    assert head == twin
    assert hash(head) == hash(twin)
    with pytest.raises(FrozenInstanceError):
        head.dim = 5  # type: ignore[misc]


def test_total_probability_is_one(name: str) -> None:
    masses = results(name).masses
    if CASES[name].support is not None:
        # Coordinates are independent given raw, so a point's mass is their product.
        total = masses.prod(axis=1).sum()
        assert total == pytest.approx(1.0, abs=1e-5)
    else:
        np.testing.assert_allclose(np.trapezoid(masses, _points(CASES[name]), axis=0), 1.0, atol=1e-4)


def test_mean_is_the_mean_of_the_draws(name: str) -> None:
    got = results(name)
    standard_error = got.draws.std(axis=0) / np.sqrt(N_DRAWS)
    assert (np.abs(got.draws.mean(axis=0) - got.mean) < 4.0 * standard_error).all()


def test_draws_follow_the_density(name: str) -> None:
    # E[grad log p] = 0 only when the draws come from p; unlike a histogram it needs no bins.
    scores = results(name).scores
    standard_error = scores.std(axis=0) / np.sqrt(N_DRAWS)
    assert (np.abs(scores.mean(axis=0)) < 4.0 * standard_error + 1e-6).all()


def test_draws_depend_on_the_key(name: str) -> None:
    assert not np.array_equal(results(name).draws, results(name).other_draws)


def test_losses_are_finite_and_not_negative(name: str) -> None:
    got = results(name)
    assert np.isfinite(got.log_prob).all()
    assert (got.fit_error >= 0.0).all()
    assert got.spread_penalty >= 0.0


@pytest.mark.parametrize("name", FINITE)
def test_finite_heads_name_their_support(name: str) -> None:
    head = CASES[name].make()
    np.testing.assert_array_equal(np.asarray(head.support)[:, None], _points(CASES[name]))
    weights = np.exp(head.log_weights(jnp.asarray(CASES[name].raw)))
    np.testing.assert_allclose(weights, results(name).masses[:, 0], rtol=1e-6)
