from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType

import pytest

from bgmiv.bench.executors import Advanced, Died, Done, Finished, Started, map_tasks
from bgmiv.errors import BGMIVError

# Worker processes import tasks by name, so the tasks live in a module that they can find.
TASKS = """
import os, time

def square(item, reporter):
    reporter.start("squaring", 2)
    reporter.advance(2, {"loss": 0.5})
    reporter.finish()
    return item * item, os.getpid(), os.environ["NPROC"]

def die_on_two(item, reporter):
    if item == 2:
        os._exit(9)
    return item

def fail(item, reporter):
    raise ValueError("no such number")

def sleep(item, reporter):
    reporter.start("sleeping", 1)
    time.sleep(item)
    return os.getpid()
"""


class Events:
    def __init__(self) -> None:
        self.seen: list[tuple[int, Started | Advanced | Finished]] = []

    def show(self, index: int, event: Started | Advanced | Finished) -> None:
        self.seen.append((index, event))


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "executor_tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "executor_tasks", raising=False)
    return importlib.import_module("executor_tasks")


@pytest.mark.parametrize("workers", [1, 2])
def test_every_item_is_done_once_and_progress_is_shown(tasks: ModuleType, workers: int) -> None:
    board = Events()
    outcomes = list(map_tasks(tasks.square, [3, 4, 5], workers, board))
    assert all(isinstance(outcome, Done) for outcome in outcomes)
    results = {outcome.index: outcome.result for outcome in outcomes if isinstance(outcome, Done)}
    assert {index: result[0] for index, result in results.items()} == {0: 9, 1: 16, 2: 25}
    assert {result[2] for result in results.values()} == {"1"}
    others = {result[1] for result in results.values()} - {os.getpid()}
    assert len(others) == (0 if workers == 1 else 2)
    for index in range(3):
        assert [event for i, event in board.seen if i == index] == [
            Started("squaring", 2),
            Advanced(2, {"loss": 0.5}),
            Finished(),
        ]


def test_workers_have_one_thread_and_the_parent_keeps_its_setting(
    tasks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPROC", "7")
    outcomes = list(map_tasks(tasks.square, [1, 2], 2, Events()))
    assert [outcome.result[2] for outcome in outcomes if isinstance(outcome, Done)] == ["1", "1"]
    assert os.environ["NPROC"] == "7"


def test_a_dead_worker_costs_one_item(tasks: ModuleType) -> None:
    outcomes = {outcome.index: outcome for outcome in map_tasks(tasks.die_on_two, [1, 2, 3, 4], 2, Events())}
    assert isinstance(outcomes[1], Died)
    assert "exit code 9" in str(outcomes[1])
    assert [outcomes[index].result for index in (0, 2, 3)] == [1, 3, 4]  # type: ignore[union-attr]


def test_an_exception_in_a_worker_comes_back(tasks: ModuleType) -> None:
    with pytest.raises(BGMIVError, match="no such number"):
        list(map_tasks(tasks.fail, [1, 2], 2, Events()))


def test_an_interrupt_ends_the_workers(tasks: ModuleType) -> None:
    class Interrupting(Events):
        def show(self, index: int, event: Started | Advanced | Finished) -> None:
            raise KeyboardInterrupt

    # The workers would sleep for a minute; the interrupt must not wait for them.
    with pytest.raises(KeyboardInterrupt):
        list(map_tasks(tasks.sleep, [60, 60], 2, Interrupting()))
