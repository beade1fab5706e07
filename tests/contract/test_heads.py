"""What every head must do; a new head adds a row to CASES."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bgmiv.likelihood import Bernoulli, Categorical, FiniteHead, Gaussian, GaussianMixture, Head, Levels


@dataclass(frozen=True)
class Case:
    """A head, raw parameters to try it at, and its support (None for the real line)."""

    head: Head
    raw: tuple[float, ...]
    support: np.ndarray | None = None


def _bits(dim: int) -> np.ndarray:
    return np.asarray(list(product([0.0, 1.0], repeat=dim)))


CASES = {
    "gaussian": Case(Gaussian(1), (0.4, -0.3)),
    "gaussian of three": Case(Gaussian(3), (0.4, -2.0, 1.0, -0.3, 0.0, 1.5)),
    "gaussian with one variance": Case(Gaussian(2, shared_variance=True), (0.4, -2.0, 0.7)),
    "mixture": Case(GaussianMixture(2), (0.4, -2.0, -0.3, 0.5, 0.2, -0.7)),
    "bernoulli": Case(Bernoulli(1), (0.8,), _bits(1)),
    "bernoulli of three": Case(Bernoulli(3), (0.8, -1.0, 0.0), _bits(3)),
    "categorical": Case(Categorical(4), (0.3, -1.0, 2.0, 0.0), np.eye(4)),
    "levels": Case(Levels(4), (0.3, -1.0, 2.0, 0.0), np.arange(4.0)[:, None]),
}
FINITE = [name for name, case in CASES.items() if isinstance(case.head, FiniteHead) and case.head.dim == 1]


class Results(NamedTuple):
    """All that the tests look at, computed in one compiled call a head; the last three at its points."""

    mean: np.ndarray
    spread_penalty: np.ndarray
    log_prob: np.ndarray
    fit_error: np.ndarray
    slopes: np.ndarray


def _points(case: Case) -> np.ndarray:
    """The whole support, or a grid on which a density can be summed, `(m, dim)`."""
    if case.support is not None:
        return case.support.astype(np.float32)
    return np.repeat(np.linspace(-25.0, 25.0, 20_001, dtype=np.float32)[:, None], case.head.dim, axis=1)


@cache
def results(name: str) -> Results:
    head = CASES[name].head

    @jax.jit
    def run(raw: jax.Array, points: jax.Array) -> Results:
        over = (None, 0)
        return Results(
            mean=head.mean(raw),
            spread_penalty=head.spread_penalty(raw),
            log_prob=jax.vmap(head.log_prob, over)(raw, points),
            fit_error=jax.vmap(head.fit_error, over)(raw, points),
            slopes=jax.vmap(jax.grad(lambda r, v: head.log_prob(r, v).sum()), over)(raw, points),
        )

    found = run(np.asarray(CASES[name].raw, np.float32), _points(CASES[name]))
    return Results(*(np.asarray(value) for value in found))


@pytest.fixture(params=list(CASES))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_shapes_types_and_finite_losses(name: str) -> None:
    head, got = CASES[name].head, results(name)
    assert isinstance(head, Head)
    assert isinstance(hash(head), int)
    assert head.raw_dim == len(CASES[name].raw)
    assert got.mean.shape == (head.n_levels if isinstance(head, Levels) else head.dim,)
    assert got.spread_penalty.shape == ()
    for values in (got.log_prob, got.fit_error):
        assert values.shape == _points(CASES[name]).shape
    assert {values.dtype for values in got} == {np.dtype(np.float32)}
    assert np.isfinite(got.log_prob).all()
    assert np.isfinite(got.slopes).all()
    assert got.spread_penalty >= 0.0


def test_probabilities_sum_to_one_and_have_the_mean(name: str) -> None:
    case, got = CASES[name], results(name)
    points, masses = _points(case), np.exp(got.log_prob.astype(np.float64))
    if case.support is None:
        np.testing.assert_allclose(np.trapezoid(masses, points, axis=0), 1.0, atol=1e-4)
        np.testing.assert_allclose(np.trapezoid(masses * points, points, axis=0), got.mean, atol=1e-4)
        return
    # Coordinates are independent given raw, so a point's mass is their product.
    joint = masses.prod(axis=1)
    assert joint.sum() == pytest.approx(1.0, abs=1e-5)
    expected = joint if isinstance(case.head, Levels) else joint @ points
    np.testing.assert_allclose(got.mean, expected, atol=1e-5)
    # And so has the density at parameters nearby: the mean slope is zero.
    np.testing.assert_allclose(joint @ got.slopes, 0.0, atol=1e-5)


@pytest.mark.parametrize("name", FINITE)
def test_finite_heads_name_their_support(name: str) -> None:
    head = CASES[name].head
    assert isinstance(head, FiniteHead)
    np.testing.assert_array_equal(np.asarray(head.support)[:, None], _points(CASES[name]))
    weights = np.exp(head.log_weights(jnp.asarray(CASES[name].raw)))
    np.testing.assert_allclose(weights, np.exp(results(name).log_prob[:, 0]), rtol=1e-6)
