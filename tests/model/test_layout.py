from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from bgmiv.errors import ConfigError
from bgmiv.model import LatentLayout


def test_the_papers_partition() -> None:
    layout = LatentLayout(2, 2, 1, 2)
    z = jnp.arange(layout.dim)
    assert (layout.dim, layout.outcome_dim, layout.treatment_dim) == (7, 4, 3)
    # (z0, z1) reach the outcome, (z0, z2) the treatment, z3 neither.
    np.testing.assert_array_equal(layout.for_outcome(z), [0, 1, 2, 3])
    np.testing.assert_array_equal(layout.for_treatment(z), [0, 1, 4])


@pytest.mark.parametrize(
    ("sizes", "outcome", "treatment"),
    [((0, 1, 1, 0), [0], [1]), ((1, 0, 0, 0), [0], [0]), ((0, 0, 0, 2), [], []), ((1, 0, 2, 0), [0], [0, 1, 2])],
)
def test_parts_may_be_empty(sizes: tuple[int, ...], outcome: list[int], treatment: list[int]) -> None:
    layout = LatentLayout(*sizes)
    z = jnp.arange(layout.dim)
    np.testing.assert_array_equal(layout.for_outcome(z), outcome)
    np.testing.assert_array_equal(layout.for_treatment(z), treatment)


def test_prior_is_standard_normal() -> None:
    layout = LatentLayout(1, 1, 1, 0)
    z = np.asarray([0.3, -2.0, 1.0], np.float32)
    assert float(jax.jit(layout.log_prior)(z)) == pytest.approx(norm.logpdf(z).sum(), rel=1e-5)
    draws = np.asarray(layout.sample_prior(jax.random.key(0), 10_000))
    assert draws.shape == (10_000, 3)
    np.testing.assert_allclose(draws.mean(axis=0), 0.0, atol=0.04)
    np.testing.assert_allclose(np.cov(draws.T), np.eye(3), atol=0.06)


@pytest.mark.parametrize("sizes", [(0, 0, 0, 0), (-1, 2, 1, 2), (1.5, 1, 1, 1), (True, 1, 1, 1)])
def test_impossible_sizes_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="latent"):
        LatentLayout(*sizes)


def test_whole_numbers_of_any_type_are_sizes() -> None:
    assert LatentLayout(*np.asarray([2, 2, 1, 2])).dim == 7
