"""Rows that are drawn in proportion to weights."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bgmiv.data.scaling import ScaledData
from bgmiv.errors import DataError
from bgmiv.training import RandomNumbers, TrainingData, _member_axes, training_data

N = 11
WEIGHTS = np.array([0.0, 1.0, 2.0, 0.5, 4.0, 0.0, 1.0, 1.0, 3.0, 0.25, 0.0])


def rows(weights: Any, fold: tuple[Any, Any] = (0, 0)) -> TrainingData:
    x = np.arange(1.0, N + 1.0, dtype=np.float32)
    return training_data(ScaledData(x, x, x[:, None], x[:, None]), 4, fold, weights)


def is_close(drawn: np.ndarray, weights: np.ndarray) -> None:
    """No row of weight zero, and every other as often as six deviations of its share allow."""
    counts = np.bincount(drawn, minlength=N)
    assert len(counts) == N
    expected = len(drawn) * weights / weights.sum()
    assert not counts[weights == 0].any()
    assert (np.abs(counts - expected) <= 6 * np.sqrt(expected)).all()
    seen = weights > 0
    statistic = np.sum((counts[seen] - expected[seen]) ** 2 / expected[seen])
    # The 0.9999 quantile of chi-squared with 10 degrees of freedom.
    assert statistic < 35.6


@pytest.mark.parametrize("fold", [(0, 0), (0, 3), (4, 3), (8, 3)])
def test_draws_follow_the_weights_and_never_hit_the_fold(fold: tuple[int, int]) -> None:
    drawn = np.asarray(rows(WEIGHTS, fold).draw(RandomNumbers(jax.random.key(0), 20_000), 20_000))
    left = np.where((np.arange(N) >= fold[0]) & (np.arange(N) < sum(fold)), 0.0, WEIGHTS)
    is_close(drawn, left)


@pytest.mark.parametrize("word", [0, 1, 2**31, 2**32 - 2, 2**32 - 1])
def test_every_word_draws_a_row_with_a_weight(word: int) -> None:
    class Fixed(RandomNumbers):
        def words(self, shape: tuple[int, ...]) -> jax.Array:
            return jnp.full(shape, word, jnp.uint32)

    for weights in (WEIGHTS, np.ones(N), np.where(np.arange(N) == 3, 1.0, 1e-30)):
        (drawn,) = np.asarray(rows(weights).draw(Fixed(jax.random.key(0), 1), 1))
        assert weights[drawn] > 0


def test_members_with_folds_of_their_own() -> None:
    starts = np.array([0, 4, 8])
    data = rows(WEIGHTS, (starts, np.full(3, 3)))
    keys = jax.random.split(jax.random.key(2), 3)

    def draw(data: TrainingData, key: jax.Array) -> jax.Array:
        return data.draw(RandomNumbers(key, 20_000), 20_000)

    drawn = np.asarray(jax.vmap(draw, in_axes=(_member_axes(data), 0))(data, keys))
    for i in range(3):
        is_close(drawn[i], np.where((np.arange(N) >= starts[i]) & (np.arange(N) < starts[i] + 3), 0.0, WEIGHTS))


def test_shared_weights_with_folds_of_their_own() -> None:
    data = rows(WEIGHTS, (np.array([0, 8]), np.array([3, 3])))
    assert data.weights is not None
    assert data.weights.limits.shape == (2, len(data.rows.x))
    axes = _member_axes(data)
    assert (axes.weights.limits, axes.weights.training, axes.weights.held_out) == (0, 0, None)
    np.testing.assert_allclose(data.weights.training.sum(axis=1), 8.0, rtol=1e-6)


def test_held_out_rows_are_weighted_by_sample_weights_only() -> None:
    held_out, weights = rows(WEIGHTS, (3, 3)).held_out(8)
    np.testing.assert_allclose(weights, [0.5 / 4.5, 4.0 / 4.5, 0, 0, 0, 0, 0, 0], rtol=1e-6)
    np.testing.assert_array_equal(held_out.x[:3], [4, 5, 6])
    _, weights = rows(None, (3, 3)).held_out(4)
    np.testing.assert_allclose(weights, [1 / 3, 1 / 3, 1 / 3, 0], rtol=1e-6)
    _, weights = rows(WEIGHTS, (10, 1)).held_out(4)
    np.testing.assert_array_equal(weights, 0.0)


def test_training_rows_without_weight_are_refused() -> None:
    only = np.where(np.arange(N) < 3, 1.0, 0.0)
    with pytest.raises(DataError, match="left for training all have weight zero"):
        rows(only, (0, 3))
