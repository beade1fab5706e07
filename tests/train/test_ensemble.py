"""Which rows members leave out, and which members have failed."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from bgmiv.errors import ConfigError
from bgmiv.train.ensemble import Ensemble, Folds


def folds(members: int, held_out: float, n: int, seed: int = 0) -> Folds:
    return Ensemble(members=members, held_out=held_out).folds(n, jax.random.key(seed))


def left_out(made: Folds, members: int) -> list[np.ndarray]:
    return [made.rows(i) for i in range(members)]


SHARES = [(1, 0.1), (1, 0.5), (2, 0.5), (3, 1 / 3), (4, 0.1), (4, 0.25), (10, 0.1), (6, 1 / 6), (7, 1 / 7)]


@pytest.mark.parametrize("n", [200, 299, 301, 1000])
@pytest.mark.parametrize(("members", "held_out"), SHARES)
def test_no_row_is_left_out_twice_while_there_are_enough(members: int, held_out: float, n: int) -> None:
    made = folds(members, held_out, n)
    rows = np.concatenate(left_out(made, members))
    assert len(np.unique(rows)) == len(rows) == members * made.size
    assert made.size == pytest.approx(held_out * n, abs=1.0)
    assert rows.min() >= 0
    assert rows.max() < n


@pytest.mark.parametrize(("members", "held_out"), [(3, 0.5), (5, 0.4), (12, 0.1)])
def test_beyond_that_members_share_some_and_each_still_leaves_out_as_many(members: int, held_out: float) -> None:
    made = folds(members, held_out, 500)
    rows = left_out(made, members)
    assert {len(np.unique(each)) for each in rows} == {round(held_out * 500)}
    assert len(np.unique(np.concatenate(rows))) < members * made.size


def test_rows_are_laid_out_in_random_order() -> None:
    made = folds(4, 0.1, 1000)
    np.testing.assert_array_equal(np.sort(made.order), np.arange(1000))
    # Shuffled ranks have no correlation but for 1 / sqrt(1000).
    assert abs(np.corrcoef(made.order, np.arange(1000))[0, 1]) < 0.15
    for i, start in enumerate(made.starts):
        np.testing.assert_array_equal(made.rows(i), made.order[start : start + 100])


def test_the_key_decides() -> None:
    one, same, other = folds(4, 0.1, 400), folds(4, 0.1, 400), folds(4, 0.1, 400, seed=1)
    np.testing.assert_array_equal(one.order, same.order)
    assert not np.array_equal(one.order, other.order)
    np.testing.assert_array_equal(one.starts, other.starts)


@pytest.mark.parametrize(("held_out", "n", "size"), [(0.1, 190, 0), (0.1, 200, 20), (0.0, 10_000, 0), (0.5, 39, 20)])
def test_fewer_than_twenty_rows_are_not_left_out(held_out: float, n: int, size: int) -> None:
    made = folds(1, held_out, n)
    assert made.size == size
    if not size:
        np.testing.assert_array_equal(made.order, np.arange(n))
        assert len(made.rows(0)) == 0


@pytest.mark.parametrize(
    ("losses", "failed"),
    [
        ([1.0, 1.0, 1.0, 1.0], []),
        ([1.0, 1.1, 0.9, 3.2], [3]),
        ([1.0, 1.1, 0.9, 3.1], []),
        ([1.0, np.nan, 1.0, 1.0], [1]),
        ([np.inf, 1.0, 1.0, 50.0], [0, 3]),
        ([np.inf, np.nan], [0, 1]),
        ([7.0], []),
        ([np.nan], [0]),
        # Of two the median is their mean: one of them would have to be beyond three times that.
        ([0.01, 100.0], []),
    ],
)
def test_failed_members_are_not_finite_or_far_above_the_median(losses: list[float], failed: list[int]) -> None:
    found = Ensemble(members=len(losses), failed_ratio=3.0).failed(np.asarray(losses))
    assert found.dtype == bool
    assert np.flatnonzero(found).tolist() == failed


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"members": 0}, "members"),
        ({"attempts": 0}, "attempts"),
        ({"held_out": -0.1}, "held_out"),
        ({"held_out": 0.6}, "held_out"),
        ({"held_out": float("nan")}, "held_out"),
        ({"failed_ratio": 1.0}, "failed_ratio"),
    ],
)
def test_settings_that_cannot_train_are_refused(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Ensemble(**settings)
