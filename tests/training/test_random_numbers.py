from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kstest

from bgmiv.training import RandomNumbers

N = 20_000


@pytest.fixture(scope="module")
def drawn() -> tuple[np.ndarray, ...]:
    @jax.jit
    def run(key: jax.Array) -> tuple[jax.Array, ...]:
        numbers = RandomNumbers(key, 4 * N)
        first, normal = numbers.uniform((N,)), numbers.normal((N // 2, 2))
        return first, normal, numbers.index((N,), jnp.asarray(7)), numbers.uniform((N,))

    return tuple(np.asarray(values) for values in run(jax.random.key(0)))


def test_distributions(drawn: tuple[np.ndarray, ...]) -> None:
    uniform, normal, index, _ = drawn
    assert 0.0 < uniform.min() < uniform.max() < 1.0
    assert kstest(uniform, "uniform").pvalue > 1e-3
    assert np.isfinite(normal).all()
    assert kstest(normal.ravel(), "norm").pvalue > 1e-3
    counts = np.bincount(index, minlength=7)
    assert len(counts) == 7
    assert np.abs(counts - N / 7).max() < 4.0 * np.sqrt(N / 7)


def test_no_word_is_used_twice(drawn: tuple[np.ndarray, ...]) -> None:
    first, normal, _, last = drawn
    assert abs(np.corrcoef(first, last)[0, 1]) < 0.03
    assert abs(np.corrcoef(first, normal.ravel())[0, 1]) < 0.03


def test_asking_for_too_much_is_an_error() -> None:
    numbers = RandomNumbers(jax.random.key(0), 3)
    numbers.uniform((2,))
    with pytest.raises(ValueError, match="4 random words but drew 3"):
        numbers.uniform((2,))
