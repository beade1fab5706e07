from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bgmiv.bench import evaluate, runner
from bgmiv.bench.evaluate import run_one
from bgmiv.bench.executors import Board, Died, Done, Event, InProcess, LocalPool, Task
from bgmiv.bench.identity import RunKey, identify, identify_all
from bgmiv.bench.leases import this_process
from bgmiv.bench.plan import RunSpec
from bgmiv.bench.row import Row
from bgmiv.bench.runner import Batch, batches, run_and_keep, run_batch, run_plan
from bgmiv.bench.store import RowStore
from bgmiv.errors import BGMIVError
from bgmiv.progress import silent

SPECS = [RunSpec("demand", 100, 0.5, "tsls", "default", seed) for seed in range(4)]


class Quiet:
    def show(self, index: int, event: Event) -> None:
        pass


class Seen:
    def __init__(self) -> None:
        self.indices: list[int] = []

    def show(self, index: int, event: Event) -> None:
        self.indices.append(index)


@dataclass(frozen=True)
class Elsewhere:
    """An executor whose tasks do not see the caller's files."""

    @property
    def shares_files(self) -> bool:
        return False

    def map(self, task: Task, items: Sequence[Any], board: Board) -> Iterator[Done | Died]:
        assert task is run_batch
        yield from InProcess().map(task, items, board)


@pytest.fixture
def keys() -> tuple[RunKey, ...]:
    return identify_all(SPECS)


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[RunSpec]:
    """Every fit that is started in this process; seed 3 never works."""
    started: list[RunSpec] = []
    real = evaluate.run_one

    def counted(spec: RunSpec, *rest: Any) -> Row:
        started.append(spec)
        return failing(spec) if spec.seed == 3 else real(spec, *rest)

    monkeypatch.setattr(evaluate, "run_one", counted)
    monkeypatch.setattr(runner, "run_one", counted)
    return started


def failing(spec: RunSpec) -> Row:
    return evaluate.failed_row(identify(spec), "DataError: no good")


EXECUTORS = pytest.mark.parametrize("executor", [InProcess(), Elsewhere()])


@EXECUTORS
def test_a_plan_resumes_and_tries_failures_again(
    tmp_path: Path, keys: tuple[RunKey, ...], fitted: list[RunSpec], executor: Any
) -> None:
    store = RowStore(tmp_path)
    first = list(run_plan(keys[:2], store, executor, Quiet()))
    assert [(row.seed, row.status, ours) for row, ours in first] == [(0, "ok", True), (1, "ok", True)]
    rest = list(run_plan(keys, store, executor, Quiet()))
    assert [(row.seed, row.status, row.attempts) for row, _ in rest] == [(2, "ok", 1), (3, "failed", 2)]
    # The failing one was tried twice, the others once.
    assert [spec.seed for spec in fitted] == [0, 1, 2, 3, 3]
    assert [row.seed for row, _ in run_plan(keys, store, executor, Quiet())] == [3]
    assert [spec.seed for spec in fitted] == [0, 1, 2, 3, 3, 3, 3]
    assert store.leases().names() == ()
    state = store.state(keys)
    assert [row.seed for row in state.done] == [0, 1, 2]
    assert [row.seed for row in state.failed] == [3]


def test_a_fit_that_works_the_second_time_is_ok(
    tmp_path: Path, keys: tuple[RunKey, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "run_one", lambda spec, *_: failing(spec))
    (outcome,) = run_plan(keys[:1], RowStore(tmp_path), InProcess(), Quiet())
    assert (outcome.row.status, outcome.row.attempts) == ("ok", 2)


@EXECUTORS
def test_a_damaged_row_alone_is_made_anew(
    tmp_path: Path, keys: tuple[RunKey, ...], fitted: list[RunSpec], executor: Any
) -> None:
    store = RowStore(tmp_path)
    before = {row.seed: row.structural_mse for row, _ in run_plan(keys[:3], store, executor, Quiet())}
    store.path(keys[1]).write_text("{")
    ((row, ours),) = run_plan(keys[:3], store, executor, Quiet())
    assert (row.seed, ours) == (1, True)
    assert row.structural_mse == before[1]
    assert [spec.seed for spec in fitted] == [0, 1, 2, 1]
    assert len(store.rows()) == 3


def test_workers_give_the_same_rows(tmp_path: Path, keys: tuple[RunKey, ...]) -> None:
    outcomes = list(run_plan(keys[:3], RowStore(tmp_path), LocalPool(2), Quiet()))
    assert all(ours for _, ours in outcomes)
    assert {row.seed: row.structural_mse for row, _ in outcomes} == {
        spec.seed: run_one(spec).structural_mse for spec in SPECS[:3]
    }
    assert len(RowStore(tmp_path).rows()) == 3


@EXECUTORS
def test_runs_of_other_runners_are_waited_for(
    tmp_path: Path,
    keys: tuple[RunKey, ...],
    fitted: list[RunSpec],
    monkeypatch: pytest.MonkeyPatch,
    executor: Any,
) -> None:
    store = RowStore(tmp_path)
    other = store.leases()
    other.take(keys[0].run_id)
    theirs = run_one(SPECS[0])
    fitted.clear()
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            store.write(theirs)
            other.give_back(keys[0].run_id)

    monkeypatch.setattr(runner.time, "sleep", wait)
    board = Seen()
    outcomes = list(run_plan(keys[:2], store, executor, board))
    assert [(row.seed, ours) for row, ours in outcomes] == [(1, True), (0, False)]
    assert outcomes[1].row == theirs
    assert [spec.seed for spec in fitted] == [1]
    assert len(waits) == 3
    # The second key's progress is shown in its own place although it was the first to run.
    assert set(board.indices) == {1}


@EXECUTORS
def test_runs_of_a_dead_runner_are_taken_over(
    tmp_path: Path, keys: tuple[RunKey, ...], fitted: list[RunSpec], executor: Any
) -> None:
    store = RowStore(tmp_path)
    dead = store.leases()
    dead.holder = replace(this_process(), started="long ago")
    dead.take(keys[0].run_id)
    outcomes = list(run_plan(keys[:1], store, executor, Quiet()))
    assert [(row.seed, ours) for row, ours in outcomes] == [(0, True)]
    assert len(fitted) == 1


@EXECUTORS
def test_what_another_runner_did_meanwhile_is_not_done_again(
    tmp_path: Path,
    keys: tuple[RunKey, ...],
    fitted: list[RunSpec],
    monkeypatch: pytest.MonkeyPatch,
    executor: Any,
) -> None:
    """Another runner makes an ok row and a failed row between this runner's look and its claim."""
    store = RowStore(tmp_path)
    theirs = [run_one(SPECS[0]), failing(SPECS[3])]
    fitted.clear()
    real = store.leases().__class__.take

    def late(self: Any, name: str) -> bool:
        for row in theirs:
            store.write(row)
        return real(self, name)

    monkeypatch.setattr(store.leases().__class__, "take", late)
    outcomes = list(run_plan([keys[0], keys[3]], store, executor, Quiet()))
    assert [(row, ours) for row, ours in outcomes] == [(row, False) for row in theirs]
    assert fitted == []


def test_rows_of_other_code_do_not_count(tmp_path: Path, keys: tuple[RunKey, ...], fitted: list[RunSpec]) -> None:
    store = RowStore(tmp_path)
    old = replace(run_one(SPECS[0]), code="0" * 16)
    store.write(old)
    fitted.clear()
    ((row, _),) = run_plan(keys[:1], store, InProcess(), Quiet())
    assert row.key == keys[0]
    assert len(fitted) == 1
    assert store.state(keys[:1]).other == (old,)
    assert len(store.rows()) == 2


@EXECUTORS
def test_code_that_changed_since_the_start_is_an_error(tmp_path: Path, keys: tuple[RunKey, ...], executor: Any) -> None:
    store = RowStore(tmp_path)
    with pytest.raises(BGMIVError, match=r"code or settings here.*run the same command again"):
        list(run_plan([replace(keys[0], code="0" * 16)], store, executor, Quiet()))
    assert store.rows() == ()
    assert store.leases().names() == ()


def test_a_lost_worker_gives_a_failed_row(tmp_path: Path, keys: tuple[RunKey, ...]) -> None:
    @dataclass(frozen=True)
    class Dying(InProcess):
        def map(self, task: Task, items: Sequence[Any], board: Board) -> Iterator[Done | Died]:
            yield Died(0, "the worker process was ended by signal SIGKILL", 2)
            # This one wrote its row before it died.
            task(items[1], silent)
            yield Died(1, "the worker process was ended by signal SIGKILL", 2)

    store = RowStore(tmp_path)
    outcomes = list(run_plan(keys[:2], store, Dying(), Quiet()))
    assert [(row.seed, row.status) for row, _ in outcomes] == [(0, "failed"), (1, "ok")]
    assert (outcomes[0].row.attempts, outcomes[0].row.error) == (2, "the worker process was ended by signal SIGKILL")
    assert [row.status for row in store.rows()] == ["failed", "ok"]
    assert store.leases().names() == ()


def test_progress_is_shown_by_the_keys_place(tmp_path: Path, keys: tuple[RunKey, ...]) -> None:
    store = RowStore(tmp_path)
    list(run_plan(keys[:2], store, InProcess(), Quiet()))
    board = Seen()
    list(run_plan(keys[:3], store, InProcess(), board))
    assert set(board.indices) == {2}


def test_batches_hold_repeats_of_one_cell(
    tmp_path: Path, keys: tuple[RunKey, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = identify(replace(SPECS[0], n=200))
    single = batches([*keys, other], tmp_path, size=3)
    assert [len(batch.keys) for batch in single] == [1] * 5
    assert single[0].label == "demand n=100 rho=0.5 tsls seed 0"
    monkeypatch.setattr(runner, "can_batch", lambda spec: True)
    together = batches([*keys, other], tmp_path, size=3)
    assert [batch.keys for batch in together] == [keys[:3], keys[3:], (other,)]
    assert together[0].label == "demand n=100 rho=0.5 tsls seed 0 to 2"


def test_of_a_batch_only_what_is_free_is_run(tmp_path: Path, keys: tuple[RunKey, ...], fitted: list[RunSpec]) -> None:
    store = RowStore(tmp_path)
    store.leases().take(keys[1].run_id)
    store.write(run_one(SPECS[0]))
    fitted.clear()
    rows = run_and_keep(Batch(tmp_path, keys[:3]))
    assert [row.seed for row in rows] == [2]
    assert [spec.seed for spec in fitted] == [2]
