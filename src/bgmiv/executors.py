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
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from multiprocessing import Pipe, connection, get_context
from typing import Any, NamedTuple, Protocol

from bgmiv.errors import BGMIVError, BGMIVWarning, ConfigError, MissingExtraError

__all__ = ["THREAD_VARIABLES", "Done", "Executor", "InProcess", "LocalPool", "RayCluster", "available_cores"]

THREAD_VARIABLES = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""Each is read when its library is first imported, so they must be in the environment a process starts with."""

_ADDRESS = re.compile(r"auto|(?:ray://)?(?P<host>[^\s/]+):(?P<port>[0-9]{1,5})")
# Seconds after which a cluster's size is looked at again, and until an address counts as dead.
_POLL_SECONDS = 5.0


class Done(NamedTuple):
    """An item with its result, or with the reason why it has none: it lost two processes, as when memory ran out."""

    item: Any
    result: Any = None
    lost: str = ""


class Executor(Protocol):
    """Runs a task on items, anywhere."""

    def map(self, task: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Done]:
        """Run `task`, a function of a module, on every item, and yield results as they come.

        Items are taken when there is room for them. One whose process is lost is tried once more. An exception in a
        task is raised here. Closing the iterator, or an exception in the loop over it such as Ctrl-C, ends all tasks.
        """


@dataclass(frozen=True)
class InProcess:
    """One item after another in the calling process: nothing to start, and debuggers see everything.

    Example:
        >>> [done.result for done in InProcess().map(lambda item: 10 * item, [1, 2])]
        [10, 20]
    """

    def map(self, task: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Done]:
        return (Done(item, task(item)) for item in items)


@dataclass(frozen=True)
class LocalPool:
    """So many processes of one thread on this machine; they end when the calling process ends, however it ends.

    Example:
        >>> LocalPool(workers=2).workers
        2
    """

    workers: int = 1

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError(f"workers is {self.workers}; choose 1 or more")

    def map(self, task: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Done]:
        # Pools of one process each: a lost process costs one item.
        pools: dict[Future[Any], ProcessPoolExecutor] = {}
        # Nothing is ever sent: workers end when our end is closed, which also happens when this process is killed.
        theirs, ours = Pipe(duplex=False)

        def submit(item: Any) -> Future[Any]:
            done = [future for future in pools if future.done()]
            pool = pools.pop(done[0]) if done else None
            if pool is None or isinstance(done[0].exception(), BrokenProcessPool):
                pool = _started(theirs)
            future = pool.submit(task, item)
            pools[future] = pool
            return future

        try:
            yield from _run(items, submit, lambda: self.workers, (BrokenProcessPool,))
        finally:
            ours.close()
            for pool in pools.values():
                pool.shutdown()
            theirs.close()


@dataclass(frozen=True)
class RayCluster:
    """Workers of a Ray cluster, on this machine or on many.

    Every node needs the same version of this package, and nothing of the caller's disk. A fit runs on one thread, as in
    a local pool, so that rows are the same. If the caller has called `ray.init`, that connection is used and left open.

    Args:
        address: `host:port` of a cluster that this machine is part of, `ray://host:port` of any other one (which needs
            `ray[client]`), or `"auto"` for the one on this machine; None starts Ray here for as long as the work takes.
        cpus: processors set aside for each item.
        gpus: graphics processors set aside for each; less than one shares them, and without any fits do not use them.
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
            raise ConfigError(f"address is {self.address!r}; give host:port, ray://host:port, or auto for one here")
        if find_spec("ray") is None:
            raise MissingExtraError("a cluster needs Ray, which is not installed: pip install 'pybgmiv[ray]'")

    def map(self, task: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Done]:
        """As of any :class:`Executor`; a cluster that cannot be reached is a BGMIVError."""
        import ray

        errors = ray.exceptions
        lost = (errors.WorkerCrashedError, errors.NodeDiedError, errors.ObjectLostError, errors.OutOfMemoryError)
        # JAX takes three quarters of a graphics processor's memory unless told that it shares it.
        memory = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.75 * min(self.gpus, 1.0):.3f}"}
        variables = dict.fromkeys(THREAD_VARIABLES, "1") | (memory if self.gpus else {"JAX_PLATFORMS": "cpu"})
        needs = {"num_cpus": self.cpus, "num_gpus": self.gpus, "runtime_env": {"env_vars": variables}}
        message = f"no node of the cluster has the {self.cpus:g} CPUs and {self.gpus:g} GPUs that each fit asks for"
        with self._connect(ray):
            if not self._fitting(ray):
                if self.address is None:
                    raise ConfigError(f"{message}: lower cpus or gpus")
                # An autoscaler may start one when it is asked.
                warnings.warn(f"{message}: waiting for one to join, lower cpus or gpus if none does", BGMIVWarning, 2)
            # Lost workers are counted below, as of any executor.
            remote: Any = ray.remote(lambda item: task(item)).options(name="bgmiv", max_retries=0, **needs)
            running: set[Any] = set()

            def submit(item: Any) -> Future[Any]:
                running.add(future := remote.remote(item).future())
                future.add_done_callback(running.discard)
                return future

            try:
                # Items that wait at the cluster start without asking here, and show an autoscaler that more would help.
                yield from _run(items, submit, lambda: 2 * max(1, self._fitting(ray)), lost)
            except errors.RayTaskError as error:
                if isinstance(error.cause, BGMIVError):
                    raise error.cause from error
                raise BGMIVError(f"a worker process failed; has every node this version of bgmiv?\n{error}") from error
            finally:
                for future in tuple(running):
                    with suppress(Exception):
                        ray.cancel(future.object_ref, force=True)

    def _fitting(self, ray: Any) -> int:
        """How many items the nodes that are up can run at once, if they are otherwise idle."""
        count, needs = 0, {"CPU": self.cpus, "GPU": self.gpus}
        for node in ray.nodes():
            if node["Alive"]:
                has = node["Resources"]
                count += int(min(has.get(name, 0.0) / need for name, need in needs.items() if need) + 1e-9)
        return count

    def _connect(self, ray: Any) -> AbstractContextManager[Any]:
        """A connection that ends with the work; the cluster goes on if it was joined."""
        if ray.is_initialized():
            return nullcontext()
        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
        if self.address is None:
            # Rows are small; Ray would otherwise set aside a third of the memory for them.
            settings |= {"num_cpus": available_cores(), "include_dashboard": False, "object_store_memory": 100_000_000}
        try:
            match = _ADDRESS.fullmatch(self.address or "auto")
            if match and match["host"]:
                # Where nothing listens Ray itself would try for minutes.
                socket.create_connection((match["host"].strip("[]"), int(match["port"])), timeout=_POLL_SECONDS).close()
            return ray.init(self.address or "local", **settings)
        except Exception as error:
            where, advice = self.address or "this machine", "start one with `ray start --head`, or check the address"
            raise BGMIVError(f"cannot join the Ray cluster at {where}: {error}; {advice}") from error


def available_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run(
    items: Iterable[Any],
    submit: Callable[[Any], Future[Any]],
    room: Callable[[], int],
    lost: tuple[type[BaseException], ...],
) -> Iterator[Done]:
    """Submit items while there is room for them; those with a lost process twice."""
    fresh, running = iter(items), dict[Future[Any], tuple[Any, int]]()
    while True:
        for item in islice(fresh, max(0, room() - len(running))):
            running[submit(item)] = item, 1
        if not running:
            return
        for future in wait(running, _POLL_SECONDS, FIRST_COMPLETED).done:
            item, attempt = running.pop(future)
            error = future.exception()
            if not isinstance(error, lost):
                yield Done(item, future.result())
            elif attempt == 1:
                running[submit(item)] = item, 2
            else:
                reason = f"the worker process was lost ({type(error).__name__}); memory may have run out"
                yield Done(item, lost=reason)


def _started(pipe: connection.Connection) -> ProcessPoolExecutor:
    """A pool of one process, which has started in an environment for one thread and ends with the pipe's other end."""
    pool, before = ProcessPoolExecutor(1, get_context("spawn"), _end_with, (pipe,)), dict(os.environ)
    try:
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
        pool.submit(os.getpid)
    finally:
        for name in THREAD_VARIABLES:
            del os.environ[name]
        os.environ.update(before)
    return pool


def _end_with(pipe: connection.Connection) -> None:
    def wait_for_end() -> None:
        connection.wait([pipe])
        os._exit(1)

    # Ctrl-C in the terminal is for the parent to handle; it ends the workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=wait_for_end, daemon=True).start()
