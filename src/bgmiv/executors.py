"""Where fits run: the executor protocol, this process or a pool of local ones."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

from bgmiv.errors import ConfigError
from bgmiv.progress import Reporter

__all__ = [
    "THREAD_VARIABLES",
    "Board",
    "Died",
    "Done",
    "Executor",
    "InProcess",
    "LocalPool",
    "Relay",
    "Task",
    "WorkQueue",
    "available_cores",
]

Task = Callable[[Any, Reporter], Any]
"""A function of a module: `task(item, reporter) -> result`, all picklable; items are hashable."""

THREAD_VARIABLES = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""Each is read when its library is first imported, so they must be in the environment a process starts with."""

# Seconds between reads of the progress of worker processes; a result is seen at once.
_POLL_SECONDS = 0.1
_LOST = "the worker process ended without a result; memory may have run out"


class Done(NamedTuple):
    """An item's result."""

    item: Any
    result: Any


class Died(NamedTuple):
    """An item whose processes ended without a result, as when memory ran out."""

    item: Any
    reason: str
    attempts: int


class Board(Protocol):
    """Shows the progress of many items: the calls of a reporter, with the item."""

    def start(self, item: Any, phase: str, total: int) -> None:
        """A phase of `total` steps begins."""

    def advance(self, item: Any, steps: int, metrics: Mapping[str, float]) -> None:
        """`steps` more steps are done."""

    def finish(self, item: Any) -> None:
        """The phase is over."""

    def retried(self, item: Any, reason: str) -> None:
        """The item's process was lost, and another one tries it again."""


class Executor(Protocol):
    """Runs a task on items, anywhere."""

    def map(self, task: Task, items: Iterable[Any], board: Board) -> Iterator[Done | Died]:
        """Run `task` on every item and yield results as they come.

        Items are taken from the iterable only when there is room for them. An item whose process is lost is tried once
        more before it counts as died. Closing the iterator, or an exception in the loop over it such as Ctrl-C, ends
        what is running.
        """


class WorkQueue:
    """The items of one call of :meth:`Executor.map`; an item whose process is lost is tried once more."""

    def __init__(self, items: Iterable[Any], board: Board) -> None:
        """Items are taken one by one; the board is told of those that are tried again."""
        self._fresh = ((item, 1) for item in items)
        self._again: deque[tuple[Any, int]] = deque()
        self._board = board

    def take(self) -> tuple[Any, int] | None:
        """The next item and the number of this attempt; None if there is none."""
        return self._again.popleft() if self._again else next(self._fresh, None)

    def lost(self, item: Any, attempt: int, reason: str) -> Iterator[Died]:
        """The process of this attempt was lost: nothing if the item is tried again."""
        if attempt > 1:
            yield Died(item, reason, attempt)
        else:
            self._board.retried(item, reason)
            self._again.append((item, attempt + 1))


class Relay:
    """A reporter that hands each call to a function: its name, then its arguments."""

    def __init__(self, send: Callable[..., None]) -> None:
        """Calls go to `send`."""
        self._send = send

    def start(self, phase: str, total: int) -> None:
        self._send("start", phase, total)

    def advance(self, steps: int, metrics: Mapping[str, float]) -> None:
        self._send("advance", steps, {name: float(value) for name, value in metrics.items()})

    def finish(self) -> None:
        self._send("finish")


@dataclass(frozen=True)
class InProcess:
    """One item after another in the calling process: nothing to start, and debuggers see everything.

    Example:
        >>> from rich.console import Console
        >>> from bgmiv.progress import FitBoard
        >>> board = FitBoard(Console(stderr=True), {1: "one", 2: "two"})
        >>> [done.result for done in InProcess().map(lambda item, reporter: 10 * item, [1, 2], board)]
        [10, 20]
    """

    def map(self, task: Task, items: Iterable[Any], board: Board) -> Iterator[Done | Died]:
        for item in items:
            reporter = Relay(lambda name, *args, item=item: getattr(board, name)(item, *args))
            yield Done(item, task(item, reporter))


@dataclass(frozen=True)
class LocalPool:
    """Processes on this machine; they end when the calling process ends, however it ends.

    Args:
        workers: processes at once.
        threads: threads of each; more than one is rarely faster for small networks, and changes the last digits.

    Example:
        >>> LocalPool(workers=2).threads
        1
    """

    workers: int = 1
    threads: int = 1

    def __post_init__(self) -> None:
        for name in ("workers", "threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; choose 1 or more")

    def map(self, task: Task, items: Iterable[Any], board: Board) -> Iterator[Done | Died]:
        queue = WorkQueue(items, board)
        idle: list[_Worker] = []
        running: dict[Future[Any], tuple[_Worker, Any, int]] = {}
        try:
            while True:
                while len(running) < self.workers and (entry := queue.take()):
                    worker = idle.pop() if idle else _Worker()
                    with _threads(self.threads):
                        running[worker.submit(task, entry[0])] = (worker, *entry)
                if not running:
                    return
                done, _ = wait(running, _POLL_SECONDS, FIRST_COMPLETED)
                for worker, item, _ in running.values():
                    worker.relay(item, board)
                for future in done:
                    worker, item, attempt = running.pop(future)
                    if isinstance(future.exception(), BrokenProcessPool):
                        worker.end()
                        yield from queue.lost(item, attempt, _LOST)
                    else:
                        idle.append(worker)
                        yield Done(item, future.result())
        finally:
            for worker in (*idle, *(entry[0] for entry in running.values())):
                worker.end()


class _Worker:
    """One process and a pipe to it.

    Progress comes back through the pipe. The process ends when the other end of the pipe is closed, which also
    happens when this process is killed. A pool of one process each, so that a lost process costs one item.
    """

    def __init__(self) -> None:
        self._pipe, self._theirs = Pipe()
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), _begin, (self._theirs,))

    def submit(self, task: Task, item: Any) -> Future[Any]:
        return self._pool.submit(_call, task, item)

    def relay(self, item: Any, board: Board) -> None:
        with suppress(EOFError, OSError):
            while self._pipe.poll():
                name, *args = self._pipe.recv()
                getattr(board, name)(item, *args)

    def end(self) -> None:
        self._pipe.close()
        self._pool.shutdown()
        self._theirs.close()


_parent: Connection | None = None


def _begin(pipe: Connection) -> None:
    """Prepare a worker process."""
    global _parent
    # Ctrl-C in the terminal is for the parent to handle; it ends the workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _parent = pipe
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()


def _end_with_parent(pipe: Connection) -> None:
    # Nothing is ever sent to a worker: this waits for the end of the pipe.
    with suppress(EOFError, OSError):
        pipe.recv()
    os._exit(1)


def _call(task: Task, item: Any) -> Any:
    def send(*event: Any) -> None:
        assert _parent is not None
        with suppress(OSError):
            _parent.send(event)

    return task(item, Relay(send))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """The environment in which processes start."""
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(count)))
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


def available_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
