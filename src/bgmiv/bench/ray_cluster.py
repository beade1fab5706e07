"""Fits on a Ray cluster: the executor plug for more than one machine."""

from __future__ import annotations

import logging
import math
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from typing import Any

from bgmiv.bench.code_version import code_version
from bgmiv.bench.executors import (
    THREAD_VARIABLES,
    Advanced,
    Board,
    Died,
    Done,
    Finished,
    Retried,
    Started,
    Task,
    answer,
    available_cores,
)
from bgmiv.errors import BGMIVError, BGMIVWarning, ConfigError, MissingExtraError
from bgmiv.progress import silent

__all__ = ["RayCluster"]

_PHASE = "on the cluster"
# Work that waits at the cluster starts without asking here, and shows an autoscaler that more nodes would help.
_AHEAD = 2
# Seconds after which the cluster's size is looked at again.
_LOOK = 5.0
# Seconds in which a cluster must answer: a connection, and then a whole driver.
_CONNECT, _JOIN = 5.0, 20.0
# The smallest part of a processor that Ray counts.
_SHARE = 1e-4
# Rows are small; Ray would otherwise set aside a third of the memory.
_OBJECT_STORE = 100_000_000
_PROBE = """
import logging, os, sys
import ray
try:
    ray.init(sys.argv[1], log_to_driver=False, logging_level=logging.CRITICAL)
except Exception as error:
    sys.stdout.write(f"{type(error).__name__}: {error}")
    sys.stdout.flush()
    os._exit(1)
ray.shutdown()
"""


@dataclass(frozen=True)
class RayCluster:
    """Workers of a Ray cluster, on this machine or on many.

    Every node needs this package at the same version of the code; a worker that has another one says so. Nothing of the
    caller's disk is needed there. A fit runs on one thread, as in a local pool, so that rows are the same. If the
    caller has called ``ray.init``, that connection is used and left open.

    Args:
        address: ``host:port`` of a cluster that this machine is part of, ``ray://host:port`` of any other one (which
            needs ``ray[client]``), or ``"auto"`` for the one that runs on this machine; None starts Ray here for as
            long as the work takes.
        cpus: processors set aside for each item.
        gpus: graphics processors set aside for each; less than one shares them, and without any fits stay off them.
        retries: how often an item is tried again when its worker or its node is lost.

    Raises:
        MissingExtraError: Ray is not installed.

    >>> RayCluster(cpus=2.0).shares_files
    False
    """

    address: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    retries: int = 1

    def __post_init__(self) -> None:
        if not _SHARE <= self.cpus < math.inf:
            raise ConfigError(f"cpus is {self.cpus}; choose a number above 0")
        if self.gpus and not _SHARE <= self.gpus < math.inf:
            raise ConfigError(f"gpus is {self.gpus}; choose 0 or more")
        if self.gpus > 1.0 and self.gpus % 1.0:
            raise ConfigError(f"gpus is {self.gpus}; above 1, choose a whole number")
        if self.retries < 0:
            raise ConfigError(f"retries is {self.retries}; choose 0 or more")
        if self.address is not None and not _ADDRESS.fullmatch(self.address):
            raise ConfigError(
                f"address is {self.address!r}; give host:port, ray://host:port, or auto for the cluster on this machine"
            )
        # Said before any work is claimed.
        if find_spec("ray") is None:
            raise _missing()

    @property
    def shares_files(self) -> bool:
        """Nodes may be other machines, with other disks."""
        return False

    def map(self, task: Task, items: Sequence[Any], board: Board) -> Iterator[Done | Died]:
        """Run ``task`` on every item and give results as they come (:class:`~bgmiv.bench.executors.Executor`).

        Progress is what can be seen from here: an item's start, about when the cluster has room for it, and its end.

        Raises:
            BGMIVError: the cluster cannot be reached, or a task raised something.
        """
        if not items:
            return
        with self._connected() as ray:
            try:
                yield from self._results(ray, task, items, board)
            except ray.exceptions.RayError as error:
                raise BGMIVError(f"Ray failed: {_COLOURS.sub('', str(error))}") from error

    def _results(self, ray: Any, task: Task, items: Sequence[Any], board: Board) -> Iterator[Done | Died]:
        if not self._room(ray):
            self._complain(ray)
        code = _code()
        submit = ray.remote(_work).options(
            name="bgmiv",
            num_cpus=self.cpus,
            num_gpus=self.gpus,
            # Counted here instead: Ray's own count says nothing when an item is tried again.
            max_retries=0,
            runtime_env={"env_vars": self._environment()},
        )
        waiting = deque((index, 1) for index in range(len(items)))
        running: dict[Any, tuple[int, int]] = {}
        shown: set[int] = set()
        try:
            while waiting or running:
                room = max(1, self._room(ray))
                while waiting and len(running) < _AHEAD * room:
                    index, attempt = waiting.popleft()
                    running[submit.remote(task, items[index], code)] = (index, attempt)
                # The cluster takes them in this order.
                for index, _ in islice(running.values(), room):
                    if index not in shown:
                        shown.add(index)
                        board.show(index, Started(_PHASE, 1))
                        board.show(index, Advanced(0, {}))
                ready, _ = ray.wait(list(running), num_returns=1, timeout=_LOOK)
                for reference in ready:
                    index, attempt = running.pop(reference)
                    kind, content = _answered(ray, reference)
                    if kind == "error":
                        raise content
                    if kind == "result":
                        board.show(index, Finished())
                        yield Done(index, content)
                    elif attempt > self.retries:
                        yield Died(index, content, attempt)
                    else:
                        board.show(index, Retried(content))
                        shown.discard(index)
                        waiting.append((index, attempt + 1))
        finally:
            for reference in running:
                with suppress(Exception):
                    ray.cancel(reference, force=True)

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        ray = _load()
        if ray.is_initialized():
            yield ray
            return
        try:
            with _handler_kept(signal.SIGTERM):
                self._connect(ray)
            yield ray
        finally:
            # A cluster that was joined goes on; one that was started here ends.
            ray.shutdown()

    def _connect(self, ray: Any) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
        try:
            if self.address is None:
                ray.init(
                    "local",
                    num_cpus=available_cores(),
                    object_store_memory=_OBJECT_STORE,
                    include_dashboard=False,
                    **quiet,
                )
            else:
                _reach(self.address)
                ray.init(self.address, **quiet)
        except BGMIVError:
            raise
        except Exception as error:
            where = "start Ray on this machine" if self.address is None else f"join the Ray cluster at {self.address}"
            raise BGMIVError(f"cannot {where}: {error}") from error

    def _room(self, ray: Any) -> int:
        """How many items the nodes that are up can run at once, were they free."""
        return sum(self._fitting(*node) for node in _nodes(ray))

    def _fitting(self, cpus: float, gpus: float) -> int:
        by_cpus = _times(cpus, self.cpus)
        return min(by_cpus, _times(gpus, self.gpus)) if self.gpus else by_cpus

    def _complain(self, ray: Any) -> None:
        cpus, gpus = max(_nodes(ray), default=(0.0, 0.0))
        message = (
            f"no node of the cluster has the {self.cpus:g} CPUs and {self.gpus:g} GPUs that each fit asks for; "
            f"the largest has {cpus:g} and {gpus:g}"
        )
        if self.address is None:
            raise ConfigError(f"{message}: lower cpus or gpus")
        # An autoscaler may start one when it is asked.
        message += ": waiting for one to join, lower cpus or gpus if none does"
        warnings.warn(message, BGMIVWarning, stacklevel=4)

    def _environment(self) -> dict[str, str]:
        found = dict.fromkeys(THREAD_VARIABLES, "1")
        if not self.gpus:
            found["JAX_PLATFORMS"] = "cpu"
        elif self.gpus < 1.0:
            # JAX takes three quarters of a graphics processor's memory unless told that it shares it.
            found["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.75 * self.gpus:.3f}"
        return found


_ADDRESS = re.compile(r"auto|(?:ray://)?(?P<host>[^\s/]+):(?P<port>[0-9]{1,5})")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def _work(task: Task, item: Any, code: str) -> tuple[str, Any]:
    """What a worker does with an item."""
    if _code() != code:
        return "error", BGMIVError(
            f"the worker on {platform.node()} has another version of bgmiv's code; install this one on every node"
        )
    return answer(task, item, silent)


def _code() -> str:
    # This module reaches everything that decides a row.
    return code_version(["bgmiv.bench.evaluate"])


def _answered(ray: Any, reference: Any) -> tuple[str, Any]:
    """What the worker answered, or ``"lost"`` and the reason when it or its node is gone."""
    errors = ray.exceptions
    try:
        return ray.get(reference)
    except errors.OutOfMemoryError:
        return "lost", "Ray ended the worker process because its node was running out of memory"
    except (errors.NodeDiedError, errors.ObjectLostError):
        return "lost", "the node of its worker was lost"
    except errors.WorkerCrashedError:
        return "lost", "the worker process ended without a result; memory may have run out"
    except errors.LocalRayletDiedError as error:
        raise BGMIVError("the Ray node on this machine is gone, and the cluster with it; start it again") from error
    except errors.RayError as error:
        if "No module named 'bgmiv" in str(error):
            raise BGMIVError("a node of the cluster has no bgmiv; install this version on every node") from error
        raise


def _reach(address: str) -> None:
    """Refuse an address where no cluster answers; Ray itself would try for minutes."""
    hint = "start one with `ray start --head`, or check the address"
    match = _ADDRESS.fullmatch(address)
    if match is not None and match["host"]:
        try:
            socket.create_connection((match["host"].strip("[]"), int(match["port"])), timeout=_CONNECT).close()
        except (OSError, OverflowError) as error:
            raise BGMIVError(f"cannot reach a Ray cluster at {address}: {error}; {hint}") from error
    # Something answers. Only a driver finds out whether it is Ray, of the same version, and lets us in: one that can be
    # ended when it takes too long.
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _PROBE, address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_JOIN,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BGMIVError(
            f"no Ray cluster answered at {address} within {_JOIN:g} seconds; {hint}; "
            "one that asks for a token needs RAY_AUTH_MODE=token"
        ) from None
    if tried.returncode:
        reason = tried.stdout.strip() or f"exit code {tried.returncode}"
        raise BGMIVError(f"cannot join the Ray cluster at {address}: {reason}")


def _load() -> Any:
    variable = "RAY_DEDUP_LOGS_SKIP_REGEX"
    mine = variable not in os.environ
    if mine:
        # Read at the first import: Ray prints pages about each lost worker, which are reported here in one line.
        os.environ[variable] = "."
    try:
        import ray
    except ImportError as error:
        raise _missing() from error
    finally:
        if mine:
            del os.environ[variable]
    return ray


def _missing() -> MissingExtraError:
    return MissingExtraError("a cluster needs Ray, which is not installed: pip install 'bgmiv[ray]'")


def _nodes(ray: Any) -> list[tuple[float, float]]:
    """CPUs and GPUs of each node that is up."""
    found = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [(has.get("CPU", 0.0), has.get("GPU", 0.0)) for has in found]


def _times(whole: float, part: float) -> int:
    return math.floor(whole / part + 1e-9)


@contextmanager
def _handler_kept(number: int) -> Iterator[None]:
    """Put back the signal's handler: ``ray.init`` sets its own, which prints traces of the machine code."""
    before = signal.getsignal(number)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(number, before)
