"""Where fits run: in this process one after another, or in several processes at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Protocol, cast

from bgmiv.errors import BGMIVError
from bgmiv.progress import Reporter

__all__ = ["Advanced", "Board", "Died", "Done", "Finished", "Started", "Task", "map_tasks"]

Task = Callable[[Any, Reporter], Any]
"""A function of a module: ``task(item, reporter) -> result``, all three picklable."""


@dataclass(frozen=True)
class Started:
    """A phase of an item's task began."""

    phase: str
    total: int


@dataclass(frozen=True)
class Advanced:
    """A phase moved on."""

    steps: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Finished:
    """A phase ended."""


@dataclass(frozen=True)
class Done:
    """An item's result."""

    index: int
    result: Any


@dataclass(frozen=True)
class Died:
    """An item whose process ended without a result, as when memory ran out."""

    index: int
    exit_code: int | None

    def __str__(self) -> str:
        return f"the worker process ended without a result (exit code {self.exit_code}); memory may have run out"


class Board(Protocol):
    """Shows the progress of many tasks: one call for each event of item ``index``."""

    def show(self, index: int, event: Started | Advanced | Finished) -> None:
        """An event of the task of that item."""
        ...


class _BoardReporter:
    """A reporter in the process of the board."""

    def __init__(self, show: Callable[[Started | Advanced | Finished], None]) -> None:
        self._show = show

    def start(self, phase: str, total: int) -> None:
        self._show(Started(phase, total))

    def advance(self, steps: int, metrics: Mapping[str, float]) -> None:
        self._show(Advanced(steps, {name: float(value) for name, value in metrics.items()}))

    def finish(self) -> None:
        self._show(Finished())


def map_tasks(task: Task, items: Sequence[Any], workers: int, board: Board) -> Iterator[Done | Died]:
    """Run ``task`` on every item and give results as they come.

    Args:
        task: a function of a module (worker processes import it by name).
        items: what to run it on.
        workers: with 1 the items run here, one after another; with more, in that many spawned processes
            of one thread each (``NPROC=1``).
        board: shown every progress event.

    Closing the iterator, or an exception such as Ctrl-C in the loop over it, ends the processes at once.

    >>> class Quiet:
    ...     def show(self, index, event): ...
    >>> [done.result for done in map_tasks(lambda item, reporter: item + 1, [1, 2], 1, Quiet())]
    [2, 3]
    """
    if workers <= 1 or len(items) <= 1:
        for index, item in enumerate(items):
            yield Done(index, task(item, _BoardReporter(partial(board.show, index))))
        return
    yield from _in_processes(task, items, min(workers, len(items)), board)


def _in_processes(task: Task, items: Sequence[Any], workers: int, board: Board) -> Iterator[Done | Died]:
    waiting = deque(enumerate(items))
    running: dict[Connection, tuple[SpawnProcess, int]] = {}

    def assign(connection: Connection, process: SpawnProcess) -> None:
        index, item = waiting.popleft()
        running[connection] = (process, index)
        # A process that is already gone shows as the end of its pipe, below.
        with suppress(OSError):
            connection.send(item)

    try:
        for _ in range(workers):
            assign(*_start(task))
        while running:
            for ready in wait(list(running)):
                connection = cast(Connection, ready)
                process, index = running[connection]
                try:
                    kind, content = connection.recv()
                except (EOFError, OSError):
                    _retire(connection, process)
                    del running[connection]
                    if waiting:
                        assign(*_start(task))
                    yield Died(index, process.exitcode)
                    continue
                if kind == "event":
                    board.show(index, content)
                elif kind == "error":
                    raise BGMIVError(f"a worker process failed:\n{content}")
                else:
                    # The next item starts before the caller looks at this result.
                    del running[connection]
                    if waiting:
                        assign(connection, process)
                    else:
                        _retire(connection, process)
                    yield Done(index, content)
    finally:
        for connection, (process, _) in running.items():
            process.terminate()
            connection.close()
        for process, _ in running.values():
            process.join()


def _retire(connection: Connection, process: SpawnProcess) -> None:
    connection.close()
    process.join()


def _start(task: Task) -> tuple[Connection, SpawnProcess]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(task, theirs), daemon=True)
    with _one_thread():
        process.start()
    theirs.close()
    return ours, process


@contextmanager
def _one_thread() -> Iterator[None]:
    # Read when JAX is imported, so it must be in the environment the new process starts with.
    before = os.environ.get("NPROC")
    os.environ["NPROC"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["NPROC"]
        else:
            os.environ["NPROC"] = before


def _serve(task: Task, connection: Connection) -> None:
    """The life of a worker: take an item, send events and the result, until the pipe closes."""
    # Ctrl-C in the terminal is the parent's to handle; it ends the workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "setsid"):
        os.setsid()
    reporter = _BoardReporter(lambda event: connection.send(("event", event)))
    try:
        while True:
            item = connection.recv()
            try:
                message = ("result", task(item, reporter))
            except Exception:
                message = ("error", traceback.format_exc())
            connection.send(message)
    except (EOFError, ConnectionError):
        return
