"""Where tasks run: the executor plug, and the local pool of processes."""

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

from bgmiv.errors import BGMIVError, ConfigError
from bgmiv.progress import Reporter

__all__ = [
    "THREAD_VARIABLES",
    "Advanced",
    "Board",
    "Died",
    "Done",
    "Event",
    "Executor",
    "Finished",
    "InProcess",
    "LocalPool",
    "PipeReporter",
    "Retried",
    "Started",
    "Task",
    "answer",
    "available_cores",
]

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
class Retried:
    """The item's process was lost, and another one tries it again."""

    reason: str


Event = Started | Advanced | Finished | Retried


@dataclass(frozen=True)
class Done:
    """An item's result."""

    index: int
    result: Any


@dataclass(frozen=True)
class Died:
    """An item whose processes ended without a result, as when memory ran out."""

    index: int
    reason: str
    attempts: int


class Board(Protocol):
    """Shows the progress of many tasks: one call for each event of item ``index``."""

    def show(self, index: int, event: Event) -> None:
        """An event of the task of that item."""
        ...


class Executor(Protocol):
    """Runs a task on items, anywhere."""

    @property
    def shares_files(self) -> bool:
        """Whether tasks see the caller's files, and may write rows themselves."""

    def map(self, task: Task, items: Sequence[Any], board: Board) -> Iterator[Done | Died]:
        """Run ``task`` on every item and give results as they come.

        An item whose process is lost is tried once more before it counts as died. Closing the iterator, or an exception
        such as Ctrl-C in the loop over it, ends what is running.
        """
        ...


class PipeReporter:
    """A reporter whose events go to a function, as across a pipe."""

    def __init__(self, send: Callable[[Event], None]) -> None:
        """Events go to ``send``."""
        self._send = send

    def start(self, phase: str, total: int) -> None:
        """A phase begins."""
        self._send(Started(phase, total))

    def advance(self, steps: int, metrics: Mapping[str, float]) -> None:
        """A phase moves on."""
        self._send(Advanced(steps, {name: float(value) for name, value in metrics.items()}))

    def finish(self) -> None:
        """A phase ends."""
        self._send(Finished())


@dataclass(frozen=True)
class InProcess:
    """One item after another in the calling process: nothing to start, and debuggers see everything.

    >>> class Quiet:
    ...     def show(self, index, event): ...
    >>> [done.result for done in InProcess().map(lambda item, reporter: item + 1, [1, 2], Quiet())]
    [2, 3]
    """

    @property
    def shares_files(self) -> bool:
        """The same process sees the same disk."""
        return True

    def map(self, task: Task, items: Sequence[Any], board: Board) -> Iterator[Done | Died]:
        """Run ``task`` on every item and give results as they come (:class:`Executor`)."""
        for index, item in enumerate(items):
            yield Done(index, task(item, PipeReporter(partial(board.show, index))))


@dataclass(frozen=True)
class LocalPool:
    """Processes on this machine.

    A worker whose parent is killed finishes the item it is at and then ends, so that its work is not lost.

    Args:
        workers: processes at once.
        threads: threads of each; more than one is seldom faster for small networks, and changes the last digits.

    >>> LocalPool(workers=2).threads
    1
    """

    workers: int = 1
    threads: int = 1

    def __post_init__(self) -> None:
        for name in ("workers", "threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; choose 1 or more")

    @property
    def shares_files(self) -> bool:
        """Workers see the same disk."""
        return True

    def map(self, task: Task, items: Sequence[Any], board: Board) -> Iterator[Done | Died]:
        """Run ``task`` on every item and give results as they come (:class:`Executor`)."""
        waiting = deque((index, 1) for index in range(len(items)))
        running: dict[Connection, tuple[SpawnProcess, int, int]] = {}

        def assign(connection: Connection, process: SpawnProcess) -> None:
            index, attempt = waiting.popleft()
            running[connection] = (process, index, attempt)
            # A process that is already gone shows as the end of its pipe, below.
            with suppress(OSError):
                connection.send(items[index])

        try:
            for _ in range(min(self.workers, len(items))):
                assign(*self._start(task))
            while running:
                for ready in wait(list(running)):
                    connection = cast(Connection, ready)
                    process, index, attempt = running[connection]
                    try:
                        kind, content = connection.recv()
                    except (EOFError, OSError):
                        _retire(connection, process)
                        del running[connection]
                        reason = _end_of(process)
                        if attempt == 1:
                            board.show(index, Retried(reason))
                            waiting.append((index, 2))
                        if waiting:
                            assign(*self._start(task))
                        if attempt > 1:
                            yield Died(index, reason, attempt)
                        continue
                    if kind == "event":
                        board.show(index, content)
                    elif kind == "error":
                        raise content
                    else:
                        # The next item starts before the caller looks at this result.
                        del running[connection]
                        if waiting:
                            assign(connection, process)
                        else:
                            _retire(connection, process)
                        yield Done(index, content)
        finally:
            for connection, (process, _, _) in running.items():
                process.terminate()
                connection.close()
            for process, _, _ in running.values():
                process.join()

    def _start(self, task: Task) -> tuple[Connection, SpawnProcess]:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(task, theirs), daemon=True)
        with _threads(self.threads):
            process.start()
        theirs.close()
        return ours, process


def _retire(connection: Connection, process: SpawnProcess) -> None:
    connection.close()
    process.join()


def _end_of(process: SpawnProcess) -> str:
    code = process.exitcode
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        hint = "; memory may have run out" if -code == signal.SIGKILL else ""
        return f"the worker process was ended by signal {name}{hint}"
    return f"the worker process ended without a result (exit code {code})"


THREAD_VARIABLES = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""Each is read when its library is first imported, so they must be in the environment a process starts with."""


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(count)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _serve(task: Task, connection: Connection) -> None:
    """The life of a worker: take an item, send events and the result, until the pipe closes."""
    # Ctrl-C in the terminal is the parent's to handle; it ends the workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "setsid"):
        os.setsid()

    def send(event: Event) -> None:
        with suppress(OSError):
            connection.send(("event", event))

    try:
        while True:
            item = connection.recv()
            connection.send(answer(task, item, PipeReporter(send)))
    except (EOFError, OSError):
        return


def available_cores() -> int:
    """How many cores this process may use.

    >>> available_cores() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def answer(task: Task, item: Any, reporter: Reporter) -> tuple[str, Any]:
    """What a worker sends back: ``("result", value)``, or ``("error", exception)`` with words for the user."""
    try:
        return "result", task(item, reporter)
    except BGMIVError as error:
        # Meant for the user as it is; a traceback would hide the message.
        return "error", error
    except Exception:
        return "error", BGMIVError(f"a worker process failed:\n{traceback.format_exc()}")
