from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bgmiv.bench.executors import Advanced, Died, Done, Event, Finished, InProcess, LocalPool, Retried, Started
from bgmiv.errors import BGMIVError, ConfigError, StoreError

# Worker processes import tasks by name, so the tasks live in a module that they can find.
TASKS = """
import os, signal, time
from pathlib import Path
from bgmiv.errors import StoreError

def square(item, reporter):
    reporter.start("squaring", 2)
    reporter.advance(2, {"loss": 0.5})
    reporter.finish()
    return item * item, os.getpid(), os.environ["NPROC"]

def die_on_two(item, reporter):
    if item == 2:
        os._exit(9)
    return item

def killed_the_first_time(item, reporter):
    seen = Path(item)
    if not seen.exists():
        seen.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item

def fail(item, reporter):
    raise ValueError("no such number")

def refuse(item, reporter):
    raise StoreError(f"cannot write {item}")

def sleep(item, reporter):
    reporter.start("sleeping", 1)
    time.sleep(item)
    return os.getpid()
"""


class Events:
    def __init__(self) -> None:
        self.seen: list[tuple[int, Event]] = []

    def show(self, index: int, event: Event) -> None:
        self.seen.append((index, event))


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "executor_tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "executor_tasks", raising=False)
    return importlib.import_module("executor_tasks")


@pytest.mark.parametrize(("executor", "processes"), [(InProcess(), 0), (LocalPool(1), 1), (LocalPool(2), 2)])
def test_every_item_is_done_once_and_progress_is_shown(
    tasks: ModuleType, monkeypatch: pytest.MonkeyPatch, executor: InProcess | LocalPool, processes: int
) -> None:
    monkeypatch.setenv("NPROC", "1")
    board = Events()
    outcomes = list(executor.map(tasks.square, [3, 4, 5], board))
    assert all(isinstance(outcome, Done) for outcome in outcomes)
    results: dict[int, Any] = {outcome.index: outcome.result for outcome in outcomes if isinstance(outcome, Done)}
    assert {index: result[0] for index, result in results.items()} == {0: 9, 1: 16, 2: 25}
    assert {result[2] for result in results.values()} == {"1"}
    others = {result[1] for result in results.values()} - {os.getpid()}
    # Of two workers the first to start may have done everything before the second was there.
    assert len(others) in {min(1, processes), processes}
    for index in range(3):
        assert [event for i, event in board.seen if i == index] == [
            Started("squaring", 2),
            Advanced(2, {"loss": 0.5}),
            Finished(),
        ]


def test_workers_have_their_threads_and_the_parent_keeps_its_setting(
    tasks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPROC", "7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    outcomes = list(LocalPool(workers=1, threads=3).map(tasks.square, [1], Events()))
    assert [outcome.result[2] for outcome in outcomes if isinstance(outcome, Done)] == ["3"]
    assert os.environ["NPROC"] == "7"
    assert "OMP_NUM_THREADS" not in os.environ


def test_an_item_whose_worker_dies_twice_costs_one_item(tasks: ModuleType) -> None:
    board = Events()
    outcomes = {outcome.index: outcome for outcome in LocalPool(2).map(tasks.die_on_two, [1, 2, 3, 4], board)}
    died = outcomes[1]
    assert isinstance(died, Died)
    assert died.attempts == 2
    assert "exit code 9" in died.reason
    assert [outcomes[index].result for index in (0, 2, 3)] == [1, 3, 4]  # type: ignore[union-attr]
    assert [(index, "exit code 9" in event.reason) for index, event in board.seen if isinstance(event, Retried)] == [
        (1, True)
    ]


def test_an_item_whose_worker_is_killed_is_tried_again(tasks: ModuleType, tmp_path: Path) -> None:
    board = Events()
    item = str(tmp_path / "seen")
    assert list(LocalPool(1).map(tasks.killed_the_first_time, [item], board)) == [Done(0, item)]
    ((index, event),) = board.seen
    assert index == 0
    assert isinstance(event, Retried)
    assert "signal SIGKILL; memory may have run out" in event.reason


@pytest.mark.parametrize("executor", [InProcess(), LocalPool(1)])
def test_an_exception_in_a_task_comes_back(tasks: ModuleType, executor: InProcess | LocalPool) -> None:
    with pytest.raises((BGMIVError, ValueError), match="no such number"):
        list(executor.map(tasks.fail, [1, 2], Events()))


def test_an_error_meant_for_the_user_comes_back_as_it_is(tasks: ModuleType) -> None:
    with pytest.raises(StoreError) as caught:
        list(LocalPool(1).map(tasks.refuse, ["a row"], Events()))
    assert str(caught.value) == "cannot write a row"


def test_an_interrupt_ends_the_workers(tasks: ModuleType) -> None:
    class Interrupting(Events):
        def show(self, index: int, event: Event) -> None:
            raise KeyboardInterrupt

    # The workers would sleep for a minute; the interrupt must not wait for them.
    with pytest.raises(KeyboardInterrupt):
        list(LocalPool(2).map(tasks.sleep, [60, 60], Interrupting()))


def test_an_abandoned_loop_ends_the_workers(tasks: ModuleType) -> None:
    outcomes = LocalPool(2).map(tasks.sleep, [0, 600], Events())
    first = next(outcomes)
    assert isinstance(first, Done)
    outcomes.close()  # type: ignore[attr-defined]
    with pytest.raises(ProcessLookupError):
        os.kill(first.result, signal.SIGCONT)


@pytest.mark.parametrize("settings", [{"workers": 0}, {"threads": 0}])
def test_counts_below_one_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(settings))} is 0; choose 1 or more"):
        LocalPool(**settings)


def test_no_items_start_no_process(tasks: ModuleType) -> None:
    assert list(LocalPool(2).map(tasks.square, [], Events())) == []
