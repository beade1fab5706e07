"""The loop itself, on a program that costs nothing to compile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from bgmiv.data.batching import bucket_size
from bgmiv.data.scaling import ScaledData
from bgmiv.errors import DivergedError, FitInterrupted
from bgmiv.model import Row
from bgmiv.train import TrainingData, run_phase, training_data


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


def rows(seed: int, n: int = 6) -> TrainingData:
    x = np.random.default_rng(seed).normal(size=n).astype(np.float32)
    return training_data(ScaledData(x, x, x[:, None], x[:, None]), 4)


def start(members: int | None = None) -> tuple[Array, Array]:
    shape = () if members is None else (members,)
    return jnp.zeros(shape), jnp.zeros(shape, jnp.int32)


@pytest.mark.parametrize("chunk", [1, 7, 23, 100])
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


def test_each_step_has_randomness_of_its_own() -> None:
    _, history = run_phase(Walk(chunk=1), start(), rows(0), jax.random.key(0))
    losses = [row.metrics["loss"] for row in history]
    assert len(set(losses)) == len(losses)


def test_the_callers_state_survives() -> None:
    state = start()
    run_phase(Walk(), state, rows(0), jax.random.key(0))
    assert float(state[0]) == 0.0


@pytest.mark.parametrize("own", [False, True], ids=["shared data", "own data"])
def test_members_are_the_single_runs(own: bool) -> None:
    keys = jax.random.split(jax.random.key(5), 3)
    parts = [rows(seed if own else 0) for seed in range(3)]
    together, history = run_phase(
        Walk(), start(3), jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts) if own else parts[0], keys
    )
    alone = [run_phase(Walk(), start(), part, key) for part, key in zip(parts, keys, strict=True)]
    np.testing.assert_allclose(together[0], [state[0] for state, _ in alone], atol=1e-6)
    for i, row in enumerate(history):
        assert row.metrics["loss"] == pytest.approx(np.mean([h[i].metrics["loss"] for _, h in alone]), rel=1e-5)


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
    with pytest.raises(DivergedError):
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


def test_buckets_grow_with_the_rows_and_are_few() -> None:
    sizes = [bucket_size(n) for n in range(1, 5000)]
    assert all(n <= size <= n * 9 / 8 + 1 for n, size in enumerate(sizes, start=1))
    assert sizes == sorted(sizes)
    assert len({bucket_size(n) for n in range(1024, 2049)}) <= 9
