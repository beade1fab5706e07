"""The loop itself, on a program that costs nothing to compile."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from bgmiv import training
from bgmiv.data.scaling import ScaledData
from bgmiv.errors import DivergedError, FitInterrupted
from bgmiv.training import RandomNumbers, Row, TrainingData, run_phase, training_data


@dataclass(frozen=True)
class Walk:
    """A random walk around the rows' mean; its loss is infinite from step `breaks_at` on."""

    n_steps: int = 23
    chunk: int = 5
    breaks_at: int = 1_000_000

    @property
    def name(self) -> str:
        return "walk"

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("loss", "step")

    def step(self, state: tuple[Array, Array], data: TrainingData, key: Array) -> tuple[Any, dict[str, Array]]:
        z, t = state
        centre = jnp.sum(jnp.where(jnp.arange(len(data.rows.x)) < data.n, data.rows.x, 0.0)) / data.n
        z = 0.9 * z + 0.1 * centre + jax.random.normal(key)
        loss = jnp.where(t >= self.breaks_at, jnp.inf, jnp.abs(z))
        return (z, t + 1), {"loss": loss, "step": t.astype(jnp.float32)}


@dataclass
class Spy:
    """A reporter that writes down what it is told."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    interrupt_after: int | None = None

    def start(self, phase: str, total: int) -> None:
        self.calls.append(("start", phase, total))

    def advance(self, steps: int, metrics: Mapping[str, float]) -> None:
        self.calls.append(("advance", steps, dict(metrics)))
        if len(self.calls) == self.interrupt_after:
            raise KeyboardInterrupt

    def finish(self) -> None:
        self.calls.append(("finish",))


def rows(seed: int, n: int = 6, fold: tuple[Any, Any] = (0, 0)) -> TrainingData:
    x = np.random.default_rng(seed).normal(size=n).astype(np.float32)
    return training_data(ScaledData(x, x, x[:, None], x[:, None]), 4, fold)


def start(members: int | None = None) -> tuple[Array, Array]:
    shape = () if members is None else (members,)
    return jnp.zeros(shape), jnp.zeros(shape, jnp.int32)


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_chunks_do_not_change_the_result(chunk: int) -> None:
    key = jax.random.key(3)
    whole, _ = run_phase(Walk(), start(), rows(0), key)
    cut, history = run_phase(Walk(chunk=chunk), start(), rows(0), key)
    np.testing.assert_array_equal(whole[0], cut[0])
    assert [row.step for row in history] == [*range(chunk, 23, chunk), 23]


def test_history_holds_the_means_of_each_chunk() -> None:
    _, history = run_phase(Walk(), start(), rows(0), jax.random.key(0))
    assert [row.phase for row in history] == ["walk"] * 5
    assert [row.metrics["step"] for row in history] == [2.0, 7.0, 12.0, 17.0, 21.0]
    assert all(isinstance(value, float) for row in history for value in row.metrics.values())


def test_the_callers_state_survives() -> None:
    state = start()
    run_phase(Walk(), state, rows(0), jax.random.key(0))
    assert float(state[0]) == 0.0


def test_chunks_share_one_program_also_with_pythons_numbers_in_the_first_state() -> None:
    before = training._run_chunk._cache_size()
    # No other test has a phase of this length.
    run_phase(Walk(n_steps=29), (jnp.asarray(1.0), jnp.zeros((), jnp.int32)), rows(1), jax.random.key(0))
    assert training._run_chunk._cache_size() == before + 1


def test_members_are_the_single_runs() -> None:
    keys = jax.random.split(jax.random.key(5), 3)
    together, history = run_phase(Walk(), start(3), rows(0), keys)
    alone = [run_phase(Walk(), start(), rows(0), key) for key in keys]
    np.testing.assert_allclose(together[0], [state[0] for state, _ in alone], atol=1e-6)
    for i, row in enumerate(history):
        assert row.metrics["loss"] == pytest.approx([own[i].metrics["loss"] for _, own in alone], rel=1e-5)


def test_reporter_hears_every_chunk() -> None:
    spy = Spy()
    run_phase(Walk(), start(), rows(0), jax.random.key(0), reporter=spy)
    assert spy.calls[0] == ("start", "walk", 23)
    assert [call[1] for call in spy.calls[1:-1]] == [5, 5, 5, 5, 3]
    assert set(spy.calls[1][2]) == {"loss", "step"}
    assert spy.calls[-1] == ("finish",)


def test_interruption_ends_the_report_and_says_how_to_go_on() -> None:
    spy = Spy(interrupt_after=3)
    with pytest.raises(FitInterrupted, match=r"'walk'.*checkpoint") as caught:
        run_phase(Walk(), start(), rows(0), jax.random.key(0), reporter=spy)
    assert isinstance(caught.value, KeyboardInterrupt)
    assert spy.calls[-1] == ("finish",)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT as in a terminal: a shell starts background jobs with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_that_was_dropped_ends_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    def dropped(*_: Any) -> None:
        # As Python does where JAX's function runs in the middle of a garbage collection.
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    spy, before = Spy(), signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(spy, "advance", dropped)
    with pytest.raises(FitInterrupted, match="after step 5;"):
        run_phase(Walk(), start(), rows(0), jax.random.key(0), reporter=spy)
    assert signal.getsignal(signal.SIGINT) is before


def test_divergence_is_an_error_that_names_phase_and_step() -> None:
    spy = Spy()
    with pytest.raises(DivergedError, match=r"'walk' by step 10") as caught:
        run_phase(Walk(breaks_at=7), start(), rows(0), jax.random.key(0), reporter=spy)
    assert (caught.value.phase, caught.value.step) == ("walk", 10)
    assert spy.calls[-1] == ("finish",)


def test_one_diverging_member_does_not_stop_the_others() -> None:
    program, keys = Walk(breaks_at=30), jax.random.split(jax.random.key(0), 2)
    z, t = start(2)
    (_, steps), _ = run_phase(program, (z, t.at[0].set(20)), rows(0), keys)
    np.testing.assert_array_equal(steps, [43, 23])
    with pytest.raises(DivergedError, match="'walk' by step"):
        run_phase(program, (z, t + 20), rows(0), keys)


def test_no_steps_is_no_work() -> None:
    state, history = run_phase(replace(Walk(), n_steps=0), start(), rows(0), jax.random.key(0))
    assert float(state[0]) == 0.0
    assert history == ()


@pytest.mark.parametrize(("n", "batch"), [(6, 4), (20, 8), (1000, 64), (5000, 32), (2, 2)])
def test_rows_are_padded_to_whole_batches(n: int, batch: int) -> None:
    values = np.arange(1.0, n + 1.0, dtype=np.float32)
    data = training_data(ScaledData(values, -values, values[:, None], np.zeros((n, 0), np.float32)), batch)
    padded = len(data.rows.x)
    assert padded % batch == 0
    assert n <= padded <= n * 9 / 8 + batch
    assert int(data.n) == n
    np.testing.assert_array_equal(data.rows.x[:n], values)
    np.testing.assert_array_equal(data.rows.y[n:], 0.0)
    assert data.rows.w.shape == (padded, 0)
    assert isinstance(data.rows, Row)


FOLDS = [(0, 3), (4, 3), (8, 3), (0, 5), (3, 1)]


class TestHeldOutRows:
    """Eleven rows, padded to twelve."""

    @pytest.mark.parametrize("fold", FOLDS)
    def test_draws_hit_every_other_row_and_never_the_fold(self, fold: tuple[int, int]) -> None:
        data = rows(0, 11, fold)
        drawn = np.asarray(data.draw(RandomNumbers(jax.random.key(0), 2000), 2000))
        others = np.setdiff1d(np.arange(11), np.arange(fold[0], sum(fold)))
        np.testing.assert_array_equal(np.unique(drawn), others)
        counts = np.bincount(drawn, minlength=11)[others]
        # Six deviations of a fair draw.
        assert np.abs(counts - 2000 / len(others)).max() < 6 * (2000 / len(others)) ** 0.5
        assert int(data.n_training) == len(others)
        np.testing.assert_array_equal(np.flatnonzero(data.is_training()), others)

    @pytest.mark.parametrize("start", [0, 5, 11])
    def test_without_a_fold_draws_are_those_of_all_rows(self, start: int) -> None:
        data = rows(0, 11, (start, 0))
        drawn = data.draw(RandomNumbers(jax.random.key(3), 500), 500)
        np.testing.assert_array_equal(drawn, RandomNumbers(jax.random.key(3), 500).index((500,), jnp.asarray(11)))
        np.testing.assert_array_equal(data.is_training(), np.arange(len(data.rows.x)) < 11)
        _, weights = data.held_out(4)
        np.testing.assert_array_equal(weights, 0.0)

    @pytest.mark.parametrize("fold", FOLDS)
    @pytest.mark.parametrize("most", [2, 12])
    def test_the_fold_with_weights_that_add_up_to_one(self, fold: tuple[int, int], most: int) -> None:
        data, (start, size) = rows(0, 11, fold), fold
        held_out, weights = data.held_out(most)
        count = min(most, size)
        np.testing.assert_allclose(weights, np.where(np.arange(most) < count, 1.0 / count, 0.0), rtol=1e-6)
        np.testing.assert_array_equal(held_out.x[:count], data.rows.x[start : start + count])
        np.testing.assert_array_equal(held_out.v[:count], data.rows.v[start : start + count])
        assert np.isfinite(held_out.x).all()


@dataclass(frozen=True)
class Watched:
    """Batches whose mean is kept if it is the largest so far; `patience` smaller ones in a row end it."""

    n_steps: int = 40
    chunk: int = 2
    patience: int = 2

    @property
    def name(self) -> str:
        return "watched"

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("loss",)

    def step(self, state: Any, data: TrainingData, key: Array) -> tuple[Any, dict[str, Array]]:
        mean = jnp.mean(data.rows.x[data.draw(RandomNumbers(key, 3), 3)])
        return {**state, "now": mean, "t": state["t"] + 1}, {"loss": mean}

    def evaluate(self, state: Any, data: TrainingData) -> Any:
        better = state["now"] > state["best"]
        held_out, weights = data.held_out(4)
        return {
            **state,
            "best": jnp.maximum(state["now"], state["best"]),
            "stale": jnp.where(better, 0, state["stale"] + 1),
            "evaluated": jnp.sum(weights * held_out.x),
        }

    def stopped(self, state: Any) -> Array:
        return state["stale"] >= self.patience


def unseen(members: int | None = None) -> dict[str, Array]:
    shape = () if members is None else (members,)
    counts = {name: jnp.zeros(shape, jnp.int32) for name in ("t", "stale")}
    return {"now": jnp.zeros(shape), "best": jnp.full(shape, -jnp.inf), "evaluated": jnp.zeros(shape), **counts}


class TestEarlyStopping:
    def test_they_end_a_phase_early_and_keep_the_best(self) -> None:
        data, key, spy = rows(0, 11, (4, 3)), jax.random.key(1), Spy()
        state, history = run_phase(Watched(), unseen(), data, key, reporter=spy)
        seen = [
            float(jnp.mean(data.rows.x[data.draw(RandomNumbers(jax.random.fold_in(key, t), 3), 3)])) for t in range(40)
        ]
        best, stale, done = -np.inf, 0, 0
        while stale < 2 and done < 40:
            done += 2
            stale = 0 if seen[done - 1] > best else stale + 1
            best = max(best, seen[done - 1])
        assert done < 40, "the example must stop early"
        assert [row.step for row in history] == list(range(2, done + 1, 2))
        assert int(state["t"]) == done
        assert float(state["best"]) == pytest.approx(best)
        assert float(state["evaluated"]) == pytest.approx(float(jnp.mean(data.rows.x[4:7])), rel=1e-5)
        assert [call[0] for call in spy.calls] == ["start", *["advance"] * (done // 2), "finish"]

    def test_without_reason_to_stop_all_steps_are_done(self) -> None:
        state, history = run_phase(Watched(patience=99, n_steps=7), unseen(), rows(0, 11, (4, 3)), jax.random.key(1))
        assert int(state["t"]) == history[-1].step == 7

    def test_members_with_folds_of_their_own_are_the_single_runs(self) -> None:
        keys, starts, sizes = jax.random.split(jax.random.key(2), 3), [0, 4, 8], [3, 2, 3]
        program = Watched(patience=99)
        together, _ = run_phase(program, unseen(3), rows(0, 11, (starts, sizes)), keys)
        for i, fold in enumerate(zip(starts, sizes, strict=True)):
            alone, _ = run_phase(program, unseen(), rows(0, 11, fold), keys[i])
            for name, value in alone.items():
                np.testing.assert_allclose(together[name][i], value, rtol=1e-6, err_msg=name)
        # Another fold is another run.
        other, _ = run_phase(program, unseen(), rows(0, 11, (4, 2)), keys[0])
        assert float(other["evaluated"]) != float(together["evaluated"][0])
