from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bgmiv.errors import ConfigError, StoreError
from bgmiv.executors import Done, InProcess, LocalPool

# Worker processes import tasks by name, so the tasks live in a module that they can find.
TASKS = """
import os, signal, time
from pathlib import Path
from bgmiv.errors import StoreError

def square(item):
    return item * item, os.getpid(), os.environ["NPROC"]

def die(item):
    seen = Path(item)
    if seen.name == "always" or not seen.exists():
        seen.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item

def refuse(item):
    raise StoreError(f"cannot write {item}")

def sleep(item):
    time.sleep(item)
    return os.getpid()
"""


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "executor_tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "executor_tasks", raising=False)
    return importlib.import_module("executor_tasks")


@pytest.mark.parametrize("executor", [InProcess(), LocalPool(1)])
def test_every_item_is_done_once(
    tasks: ModuleType, monkeypatch: pytest.MonkeyPatch, executor: InProcess | LocalPool
) -> None:
    monkeypatch.setenv("NPROC", "7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found: dict[Any, Any] = {done.item: done.result for done in executor.map(tasks.square, iter([3, 4]))}
    assert {item: result[0] for item, result in found.items()} == {3: 9, 4: 16}
    here = executor == InProcess()
    assert {result[1] == os.getpid() for result in found.values()} == {here}
    # Workers have their own number of threads, and the caller keeps its environment.
    assert {result[2] for result in found.values()} == {"7" if here else "1"}
    assert os.environ["NPROC"] == "7"
    assert "OMP_NUM_THREADS" not in os.environ


def test_a_lost_worker_costs_its_item_alone_which_is_tried_once_more(tasks: ModuleType, tmp_path: Path) -> None:
    items = [str(tmp_path / name) for name in ("once", "always", "never")]
    Path(items[2]).touch()
    outcomes = {outcome.item: outcome for outcome in LocalPool(2).map(tasks.die, items)}
    assert outcomes[items[0]] == Done(items[0], items[0])
    assert outcomes[items[2]] == Done(items[2], items[2])
    died = outcomes[items[1]]
    assert died.result is None
    assert "memory may have run out" in died.lost


def test_an_error_comes_back_as_it_is(tasks: ModuleType) -> None:
    with pytest.raises(StoreError, match=r"^cannot write a row$"):
        list(LocalPool(1).map(tasks.refuse, ["a row"]))


def test_an_abandoned_loop_ends_the_workers(tasks: ModuleType) -> None:
    outcomes = LocalPool(2).map(tasks.sleep, [0, 600])
    first = next(outcomes)
    children = {int(pid) for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()}
    assert first.result in children
    outcomes.close()  # type: ignore[attr-defined]
    for pid in children:
        with suppress(FileNotFoundError):
            assert "multiprocessing.spawn" not in Path(f"/proc/{pid}/cmdline").read_text()


def test_items_are_taken_when_there_is_room(tasks: ModuleType) -> None:
    taken = []

    def items() -> Any:
        for item in range(3):
            taken.append(item)
            yield item

    outcomes = InProcess().map(tasks.square, items())
    next(outcomes)
    assert taken == [0]


def test_counts_below_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="workers is 0; choose 1 or more"):
        LocalPool(0)
