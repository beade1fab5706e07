from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bgmiv.errors import ConfigError, StoreError
from bgmiv.executors import Died, Done, InProcess, LocalPool

from .conftest import Seen

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

def die(item, reporter):
    seen = Path(item)
    if seen.name == "always" or not seen.exists():
        seen.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item

def refuse(item, reporter):
    raise StoreError(f"cannot write {item}")

def sleep(item, reporter):
    reporter.start("sleeping", 1)
    time.sleep(item)
    return os.getpid()
"""


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "executor_tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "executor_tasks", raising=False)
    return importlib.import_module("executor_tasks")


@pytest.mark.parametrize("executor", [InProcess(), LocalPool(1, threads=3)])
def test_every_item_is_done_once_and_progress_is_shown(
    tasks: ModuleType, monkeypatch: pytest.MonkeyPatch, board: Seen, executor: InProcess | LocalPool
) -> None:
    monkeypatch.setenv("NPROC", "7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found: dict[Any, Any] = {done.item: done.result for done in executor.map(tasks.square, iter([3, 4]), board)}  # type: ignore[union-attr]
    assert {item: result[0] for item, result in found.items()} == {3: 9, 4: 16}
    here = executor == InProcess()
    assert {result[1] == os.getpid() for result in found.values()} == {here}
    # Workers have their own number of threads, and the caller keeps its environment.
    assert {result[2] for result in found.values()} == {"7" if here else "3"}
    assert os.environ["NPROC"] == "7"
    assert "OMP_NUM_THREADS" not in os.environ
    for item in (3, 4):
        assert [call for call in board.calls if call[1] == item] == [
            ("start", item, "squaring", 2),
            ("advance", item, 2, {"loss": 0.5}),
            ("finish", item),
        ]


def test_a_lost_worker_costs_its_item_alone_which_is_tried_once_more(
    tasks: ModuleType, tmp_path: Path, board: Seen
) -> None:
    items = [str(tmp_path / name) for name in ("once", "always", "never")]
    Path(items[2]).touch()
    outcomes = {outcome.item: outcome for outcome in LocalPool(2).map(tasks.die, items, board)}
    assert outcomes[items[0]] == Done(items[0], items[0])
    assert outcomes[items[2]] == Done(items[2], items[2])
    died = outcomes[items[1]]
    assert isinstance(died, Died)
    assert (died.attempts, "memory may have run out" in died.reason) == (2, True)
    assert sorted(call[:2] for call in board.calls) == [("retried", items[1]), ("retried", items[0])]


def test_an_error_comes_back_as_it_is(tasks: ModuleType, board: Seen) -> None:
    with pytest.raises(StoreError, match=r"^cannot write a row$"):
        list(LocalPool(1).map(tasks.refuse, ["a row"], board))


def test_an_abandoned_loop_ends_the_workers(tasks: ModuleType, board: Seen) -> None:
    class Interrupting(Seen):
        def start(self, item: Any, phase: str, total: int) -> None:
            if item > 1:
                raise KeyboardInterrupt

    outcomes = LocalPool(1).map(tasks.sleep, [0, 600], Interrupting())
    first = next(outcomes)
    assert isinstance(first, Done)
    with pytest.raises(KeyboardInterrupt):
        next(outcomes)
    with pytest.raises(ProcessLookupError):
        os.kill(first.result, signal.SIGCONT)


def test_items_are_taken_when_there_is_room(tasks: ModuleType, board: Seen) -> None:
    taken = []

    def items() -> Any:
        for item in range(3):
            taken.append(item)
            yield item

    outcomes = InProcess().map(tasks.square, items(), board)
    next(outcomes)
    assert taken == [0]


@pytest.mark.parametrize("settings", [{"workers": 0}, {"threads": 0}])
def test_counts_below_one_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(settings))} is 0; choose 1 or more"):
        LocalPool(**settings)
