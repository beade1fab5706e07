"""Which rows members leave out, which members have failed, and that members train together as they would alone."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bgmiv.bgm import members as members_module
from bgmiv.bgm.config import EGM, Alternating
from bgmiv.bgm.members import Start, members_of, train
from bgmiv.data.folds import Folds, draw_folds
from bgmiv.integrate import GaussHermite


def folds(members: int, held_out: float, n: int, seed: int = 0) -> Folds:
    return draw_folds(n, members, held_out, jax.random.key(seed))


def left_out(made: Folds, members: int) -> list[np.ndarray]:
    return [made.rows(i) for i in range(members)]


@pytest.mark.parametrize("n", [200, 301])
@pytest.mark.parametrize(("members", "held_out"), [(1, 0.5), (3, 1 / 3), (4, 0.1), (7, 1 / 7)])
def test_no_row_is_left_out_twice_while_there_are_enough(members: int, held_out: float, n: int) -> None:
    made = folds(members, held_out, n)
    rows = np.concatenate(left_out(made, members))
    assert len(np.unique(rows)) == len(rows) == made.sizes.sum()
    np.testing.assert_allclose(made.sizes, held_out * n, atol=1.0)
    if members * held_out == 1.0:
        assert len(rows) == n
    assert rows.min() >= 0
    assert rows.max() < n


@pytest.mark.parametrize(("members", "held_out"), [(3, 0.5), (12, 0.1)])
def test_beyond_that_members_share_some_and_each_still_leaves_out_as_many(members: int, held_out: float) -> None:
    made = folds(members, held_out, 500)
    rows = left_out(made, members)
    assert {len(np.unique(each)) for each in rows} == {round(held_out * 500)}
    assert len(np.unique(np.concatenate(rows))) < made.sizes.sum()


def test_rows_are_laid_out_in_random_order() -> None:
    made = folds(4, 0.1, 1000)
    np.testing.assert_array_equal(np.sort(made.order), np.arange(1000))
    # Shuffled ranks have no correlation but for 1 / sqrt(1000).
    assert abs(np.corrcoef(made.order, np.arange(1000))[0, 1]) < 0.15
    for i, start in enumerate(made.starts):
        np.testing.assert_array_equal(made.rows(i), made.order[start : start + 100])


@pytest.mark.parametrize(("held_out", "n", "size"), [(0.1, 190, 0), (0.1, 200, 20), (0.0, 10_000, 0), (0.5, 39, 20)])
def test_fewer_than_twenty_rows_are_not_left_out(held_out: float, n: int, size: int) -> None:
    made = folds(1, held_out, n)
    assert made.sizes.tolist() == [size]
    assert made.hold_out == (size > 0)
    if not size:
        np.testing.assert_array_equal(made.order, np.arange(n))
        assert len(made.rows(0)) == 0


@pytest.mark.parametrize(("members", "held_out"), [(5, 0.2), (2, 0.5), (4, 0.1), (4, 0.5), (12, 0.2)])
@pytest.mark.parametrize("n_groups", [60, 7, 3, 2])
def test_groups_are_left_out_whole(members: int, held_out: float, n_groups: int) -> None:
    rng = np.random.default_rng(0)
    # Groups of unequal size, in no order.
    groups = rng.choice(n_groups, 900, p=np.arange(1, n_groups + 1) / np.arange(1, n_groups + 1).sum())
    made = draw_folds(900, members, held_out, jax.random.key(0), groups)
    np.testing.assert_array_equal(np.sort(made.order), np.arange(900))
    for member in range(members):
        inside = np.isin(np.arange(900), made.rows(member))
        assert inside.any()
        assert not np.isin(groups[~inside], groups[inside]).any()
    if members * held_out >= 1.0:
        assert len(np.unique(np.concatenate(left_out(made, members)))) == 900
    if n_groups == 60:
        np.testing.assert_allclose(made.sizes, 900 * held_out, rtol=0.1)
        # Rows of a fold are in random order: the first ones stand for all.
        assert len(np.unique(groups[made.rows(0)][:10])) > 2


def test_rows_of_one_group_are_not_left_out() -> None:
    assert not draw_folds(900, 2, 0.5, jax.random.key(0), np.zeros(900, int)).hold_out


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
    assert np.flatnonzero(members_module.failed(losses)).tolist() == failed


WARM = EGM(iterations=6, batch_size=8, critic_steps=1, critic_hidden=(8,), integration=GaussHermite(2))
ALTERNATING = Alternating(epochs=2, batch_size=8, integration=GaussHermite(2))


def test_members_trained_together_are_the_single_runs(tiny: Any, other: Any) -> None:
    keys = jax.random.split(jax.random.key(0), (2, 3))
    starts = [
        Start(model, tiny.data, row) for model, row in zip((tiny.model, other.model), (keys[0], keys[1]), strict=True)
    ]
    models = jax.tree.map(lambda *leaves: jnp.stack(leaves), tiny.model, other.model)
    together = members_of(train(WARM, ALTERNATING, Start(models, tiny.data, keys)))
    for one, start in zip(together, starts, strict=True):
        alone = train(WARM, ALTERNATING, start)
        for a, b in zip(jax.tree.leaves(one.model), jax.tree.leaves(alone.model), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
        assert [(row.phase, row.step) for row in one.history] == [(row.phase, row.step) for row in alone.history]
        assert one.history[0].metrics["loss"] == pytest.approx(alone.history[0].metrics["loss"], rel=1e-4)


def test_without_an_initial_phase_latents_come_from_the_prior(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    start, begun = Start(tiny.model, tiny.data, keys), []
    assert train(EGM(iterations=0), Alternating(epochs=0), start) == (tiny.model, ())

    def run_nothing(program: Any, state: Any, *rest: Any, **options: Any) -> Any:
        begun.append(state)
        return state, ()

    monkeypatch.setattr(members_module, "run_phase", run_nothing)
    train(EGM(iterations=0), ALTERNATING, start)
    np.testing.assert_array_equal(begun[0].latents.z, jax.random.normal(keys[1], (24, 4)))
