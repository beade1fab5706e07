"""Fits on a Ray cluster: the executor for more than one machine."""

from __future__ import annotations

import logging
import math
import re
import socket
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from bgmiv.errors import BGMIVError, BGMIVWarning, ConfigError, MissingExtraError
from bgmiv.executors import THREAD_VARIABLES, Board, Died, Done, Task, WorkQueue, available_cores
from bgmiv.progress import silent

__all__ = ["RayCluster"]

_ADDRESS = re.compile(r"auto|(?:ray://)?(?P<host>[^\s/]+):(?P<port>[0-9]{1,5})")
# Items that wait at the cluster start without asking here, and show an autoscaler that more nodes would help.
_QUEUED_RATIO = 2
# Seconds after which the cluster's size is looked at again.
_POLL_SECONDS = 5.0
_CONNECT_SECONDS = 5.0
# Rows are small; Ray would otherwise set aside a third of the memory.
_OBJECT_STORE_BYTES = 100_000_000


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

    def map(self, task: Task, items: Iterable[Any], board: Board) -> Iterator[Done | Died]:
        """Run `task` on every item and yield results as they come (:class:`~bgmiv.executors.Executor`).

        Of an item's progress only its start and end are shown. A cluster that cannot be reached and an exception in a
        task are raised as a BGMIVError.
        """
        with self._connected() as ray:
            self._check_room(ray)
            errors = ray.exceptions
            lost = (errors.WorkerCrashedError, errors.NodeDiedError, errors.ObjectLostError, errors.OutOfMemoryError)
            submit = ray.remote(_call).options(
                name="bgmiv",
                num_cpus=self.cpus,
                num_gpus=self.gpus,
                # Counted here instead: Ray says nothing when it tries an item again.
                max_retries=0,
                runtime_env={"env_vars": self._environment()},
            )
            queue = WorkQueue(items, board)
            running: dict[Any, tuple[Any, int]] = {}
            try:
                while True:
                    while len(running) < _QUEUED_RATIO * max(1, self._room(ray)) and (entry := queue.take()):
                        running[submit.remote(task, entry[0])] = entry
                        board.start(entry[0], "on the cluster", 1)
                    if not running:
                        return
                    ready, _ = ray.wait(list(running), num_returns=1, timeout=_POLL_SECONDS)
                    for reference in ready:
                        item, attempt = running.pop(reference)
                        try:
                            result = ray.get(reference)
                        except lost as error:
                            reason = f"the worker process or its node was lost ({type(error).__name__})"
                            yield from queue.lost(item, attempt, reason)
                        except errors.RayTaskError as error:
                            raise _cause(error) from error
                        else:
                            board.finish(item)
                            yield Done(item, result)
            finally:
                for reference in running:
                    with suppress(Exception):
                        ray.cancel(reference, force=True)

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        import ray

        if ray.is_initialized():
            yield ray
            return
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
        try:
            if self.address is None:
                size: dict[str, Any] = {"num_cpus": available_cores(), "object_store_memory": _OBJECT_STORE_BYTES}
                ray.init("local", include_dashboard=False, **size, **quiet)
            else:
                _check_reachable(self.address)
                ray.init(self.address, **quiet)
        except Exception as error:
            where = "start Ray on this machine" if self.address is None else f"join the Ray cluster at {self.address}"
            raise BGMIVError(f"cannot {where}: {error}") from error
        try:
            yield ray
        finally:
            # A cluster that was joined goes on; one that was started here ends.
            ray.shutdown()

    def _room(self, ray: Any) -> int:
        """How many items the nodes that are up can run at once, if they are otherwise idle."""
        count = 0
        for node in ray.nodes():
            if node["Alive"]:
                cpus, gpus = (node["Resources"].get(kind, 0.0) for kind in ("CPU", "GPU"))
                count += int(min(cpus / self.cpus, gpus / self.gpus if self.gpus else math.inf) + 1e-9)
        return count

    def _check_room(self, ray: Any) -> None:
        if self._room(ray):
            return
        message = f"no node of the cluster has the {self.cpus:g} CPUs and {self.gpus:g} GPUs that each fit asks for"
        if self.address is None:
            raise ConfigError(f"{message}: lower cpus or gpus")
        # An autoscaler may start one when it is asked.
        warnings.warn(f"{message}: waiting for one to join, lower cpus or gpus if none does", BGMIVWarning, 4)

    def _environment(self) -> dict[str, str]:
        found = dict.fromkeys(THREAD_VARIABLES, "1")
        if not self.gpus:
            found["JAX_PLATFORMS"] = "cpu"
        elif self.gpus < 1.0:
            # JAX takes three quarters of a graphics processor's memory unless told that it shares it.
            found["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.75 * self.gpus:.3f}"
        return found


def _call(task: Task, item: Any) -> Any:
    return task(item, silent)


def _cause(error: Any) -> BGMIVError:
    """What to raise for an exception in a task; messages for users come back as they are."""
    if isinstance(error.cause, BGMIVError):
        return error.cause
    if "No module named 'bgmiv" in str(error):
        return BGMIVError("a node of the cluster has no bgmiv; install this version on every node")
    return BGMIVError(f"a worker process failed:\n{error}")


def _check_reachable(address: str) -> None:
    """Refuse an address where nothing listens; Ray itself would try for minutes."""
    match = _ADDRESS.fullmatch(address)
    if match is not None and match["host"]:
        try:
            socket.create_connection((match["host"].strip("[]"), int(match["port"])), timeout=_CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise BGMIVError(f"{error}; start one with `ray start --head`, or check the address") from error
