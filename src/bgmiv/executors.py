"""Where many fits run: this process, processes of this machine, or a Ray cluster."""

from __future__ import annotations

import logging
import math
import os
import re
import signal
import socket
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

from bgmiv.errors import BGMIVError, BGMIVWarning, ConfigError, MissingExtraError

__all__ = [
    "THREAD_VARIABLES", "Died", "Done", "Executor", "InProcess", "LocalPool", "RayCluster", "Task", "available_cores",
]  # fmt: skip

Task = Callable[[Any], Any]
"""A function of a module: `task(item) -> result`, all picklable."""

THREAD_VARIABLES = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""Each is read when its library is first imported, so they must be in the environment a process starts with."""

_ADDRESS = re.compile(r"auto|(?:ray://)?(?P<host>[^\s/]+):(?P<port>[0-9]{1,5})")
# Items that wait at a cluster start without asking here, and show an autoscaler that more nodes would help.
_QUEUED_RATIO = 2
# Seconds after which a cluster's size is looked at again, and until an address counts as dead.
_POLL_SECONDS = 5.0
# Rows are small; Ray would otherwise set aside a third of the memory.
_OBJECT_STORE_BYTES = 100_000_000


class Done(NamedTuple):
    """An item's result."""

    item: Any
    result: Any


class Died(NamedTuple):
    """An item whose processes ended without a result, as when memory ran out."""

    item: Any
    reason: str
    attempts: int


class Executor(Protocol):
    """Runs a task on items, anywhere."""

    def map(self, task: Task, items: Iterable[Any]) -> Iterator[Done | Died]:
        """Run `task` on every item and yield results as they come.

        Items are taken from the iterable only when there is room for them. An item whose process is lost is tried once
        more before it counts as died. An exception in a task is raised here. Closing the iterator, or an exception in
        the loop over it such as Ctrl-C, ends what is running.
        """


def _run(workers: _Processes | _Nodes, items: Iterable[Any]) -> Iterator[Done | Died]:
    fresh, again = ((item, 1) for item in items), deque[tuple[Any, int]]()
    running: dict[Future[Any], tuple[Any, int]] = {}
    try:
        while True:
            while len(running) < workers.room() and (entry := again.popleft() if again else next(fresh, None)):
                running[workers.submit(entry[0])] = entry
            if not running:
                return
            for future in wait(running, _POLL_SECONDS, FIRST_COMPLETED).done:
                item, attempt = running.pop(future)
                if not isinstance(future.exception(), workers.lost):
                    yield Done(item, future.result())
                elif attempt == 1:
                    again.append((item, 2))
                else:
                    lost = type(future.exception()).__name__
                    yield Died(item, f"the worker process was lost ({lost}); memory may have run out", attempt)
    finally:
        workers.close(running)


@dataclass(frozen=True)
class InProcess:
    """One item after another in the calling process: nothing to start, and debuggers see everything.

    Example:
        >>> [done.result for done in InProcess().map(lambda item: 10 * item, [1, 2])]
        [10, 20]
    """

    def map(self, task: Task, items: Iterable[Any]) -> Iterator[Done | Died]:
        return (Done(item, task(item)) for item in items)


@dataclass(frozen=True)
class LocalPool:
    """Processes of one thread on this machine; they end when the calling process ends, however it ends.

    Args:
        workers: processes at once.

    Example:
        >>> LocalPool(workers=2).workers
        2
    """

    workers: int = 1

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError(f"workers is {self.workers}; choose 1 or more")

    def map(self, task: Task, items: Iterable[Any]) -> Iterator[Done | Died]:
        return _run(_Processes(task, self.workers), items)


class _Processes:
    """Pools of one process each, so that a lost process costs one item.

    A process ends when the other end of its pipe is closed, which also happens when this process is killed.
    """

    lost = (BrokenProcessPool,)

    def __init__(self, task: Task, count: int) -> None:
        self._task, self._count = task, count
        self._pools: list[tuple[ProcessPoolExecutor, Connection, Connection]] = []
        self._last: list[Future[Any]] = []

    def room(self) -> int:
        return self._count

    def submit(self, item: Any) -> Future[Any]:
        place = next((k for k, future in enumerate(self._last) if future.done()), len(self._last))
        if place == len(self._last):
            self._last.append(Future())
            self._pools.append(_pool_of_one())
        elif isinstance(self._last[place].exception(), self.lost):
            _end(self._pools[place])
            self._pools[place] = _pool_of_one()
        # A process starts with its first item.
        with _one_thread():
            self._last[place] = self._pools[place][0].submit(self._task, item)
        return self._last[place]

    def close(self, running: Iterable[Future[Any]]) -> None:
        for pool in self._pools:
            _end(pool)


def _pool_of_one() -> tuple[ProcessPoolExecutor, Connection, Connection]:
    ours, theirs = Pipe()
    return ProcessPoolExecutor(1, get_context("spawn"), _end_with_parent, (theirs,)), ours, theirs


def _end(pool: tuple[ProcessPoolExecutor, Connection, Connection]) -> None:
    processes, ours, theirs = pool
    ours.close()
    processes.shutdown()
    theirs.close()


def _end_with_parent(pipe: Connection) -> None:
    """Make a worker process end with the other end of its pipe; nothing is ever sent to it."""

    def wait_for_end() -> None:
        with suppress(EOFError, OSError):
            pipe.recv()
        os._exit(1)

    # Ctrl-C in the terminal is for the parent to handle; it ends the workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=wait_for_end, daemon=True).start()


@contextmanager
def _one_thread() -> Iterator[None]:
    """The environment in which processes start."""
    before = dict(os.environ)
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name in THREAD_VARIABLES:
            del os.environ[name]
        os.environ.update(before)


def available_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class RayCluster:
    """Workers of a Ray cluster, on this machine or on many.

    Every node needs the same version of this package, and nothing of the caller's disk. A fit runs on one thread, as
    in a local pool, so that rows are the same. If the caller has called `ray.init`, that connection is used and left
    open.

    Args:
        address: `host:port` of a cluster that this machine is part of, `ray://host:port` of any other one (which
            needs `ray[client]`), or `"auto"` for the one that runs on this machine; None starts Ray here for as
            long as the work takes.
        cpus: processors set aside for each item.
        gpus: graphics processors set aside for each; less than one shares them, and without any fits do not use them.

    Raises:
        MissingExtraError: Ray is not installed.
    """

    address: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 < self.cpus < math.inf:
            raise ConfigError(f"cpus is {self.cpus}; choose a number above 0")
        if not 0.0 <= self.gpus < math.inf or (self.gpus > 1.0 and self.gpus % 1.0):
            raise ConfigError(f"gpus is {self.gpus}; choose a number from 0 to 1, or a whole number")
        if self.address is not None and not _ADDRESS.fullmatch(self.address):
            raise ConfigError(
                f"address is {self.address!r}; give host:port, ray://host:port, or auto for the cluster on this machine"
            )
        if find_spec("ray") is None:
            raise MissingExtraError("a cluster needs Ray, which is not installed: pip install 'pybgmiv[ray]'")

    def map(self, task: Task, items: Iterable[Any]) -> Iterator[Done | Died]:
        """As of any :class:`Executor`; a cluster that cannot be reached is a BGMIVError."""
        with self._connected() as ray:
            workers = _Nodes(ray, task, self)
            if not workers.fitting():
                message = (
                    f"no node of the cluster has the {self.cpus:g} CPUs and {self.gpus:g} GPUs that each fit asks for"
                )
                if self.address is None:
                    raise ConfigError(f"{message}: lower cpus or gpus")
                # An autoscaler may start one when it is asked.
                warnings.warn(f"{message}: waiting for one to join, lower cpus or gpus if none does", BGMIVWarning, 3)
            try:
                yield from _run(workers, items)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, BGMIVError):
                    raise error.cause from error
                raise BGMIVError(f"a worker process failed; has every node this version of bgmiv?\n{error}") from error

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        import ray

        if ray.is_initialized():
            yield ray
            return
        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
        if self.address is None:
            settings |= {"num_cpus": available_cores(), "object_store_memory": _OBJECT_STORE_BYTES}
            settings["include_dashboard"] = False
        try:
            _check_reachable(self.address)
            ray.init(self.address or "local", **settings)
        except Exception as error:
            where = self.address or "this machine"
            raise BGMIVError(f"cannot join the Ray cluster at {where}: {error}") from error
        try:
            yield ray
        finally:
            # A cluster that was joined goes on; one that was started here ends.
            ray.shutdown()

    def environment(self) -> dict[str, str]:
        """What a worker process starts with."""
        variables = dict.fromkeys(THREAD_VARIABLES, "1")
        if not self.gpus:
            variables["JAX_PLATFORMS"] = "cpu"
        elif self.gpus < 1.0:
            # JAX takes three quarters of a graphics processor's memory unless told that it shares it.
            variables["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.75 * self.gpus:.3f}"
        return variables


class _Nodes:
    """The nodes of a cluster."""

    def __init__(self, ray: Any, task: Task, settings: RayCluster) -> None:
        self._ray, self._settings = ray, settings
        errors = ray.exceptions
        self.lost = (errors.WorkerCrashedError, errors.NodeDiedError, errors.ObjectLostError, errors.OutOfMemoryError)
        self._remote = ray.remote(lambda item: task(item)).options(
            name="bgmiv",
            num_cpus=settings.cpus,
            num_gpus=settings.gpus,
            # Counted here instead, as of any executor.
            max_retries=0,
            runtime_env={"env_vars": settings.environment()},
        )

    def fitting(self) -> int:
        """How many items the nodes that are up can run at once, if they are otherwise idle."""
        count, (cpus, gpus) = 0, (self._settings.cpus, self._settings.gpus)
        for node in self._ray.nodes():
            if node["Alive"]:
                has = node["Resources"]
                count += int(min(has.get("CPU", 0.0) / cpus, has.get("GPU", 0.0) / gpus if gpus else math.inf) + 1e-9)
        return count

    def room(self) -> int:
        return _QUEUED_RATIO * max(1, self.fitting())

    def submit(self, item: Any) -> Future[Any]:
        return self._remote.remote(item).future()

    def close(self, running: Iterable[Future[Any]]) -> None:
        for future in running:
            with suppress(Exception):
                self._ray.cancel(future.object_ref, force=True)  # type: ignore[attr-defined]


def _check_reachable(address: str | None) -> None:
    """Refuse an address where nothing listens; Ray itself would try for minutes."""
    match = _ADDRESS.fullmatch(address or "")
    if match is not None and match["host"]:
        try:
            socket.create_connection((match["host"].strip("[]"), int(match["port"])), timeout=_POLL_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise BGMIVError(f"{error}; start one with `ray start --head`, or check the address") from error
