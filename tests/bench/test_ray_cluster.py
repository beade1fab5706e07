"""On a Ray of one processor that is started once on this machine."""

from __future__ import annotations

import importlib
import logging
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bgmiv.bench.evaluate import run_plan
from bgmiv.bench.plan import RunSpec, identify
from bgmiv.bench.store import RowStore
from bgmiv.errors import BGMIVError, BGMIVWarning, ConfigError, DataError, MissingExtraError
from bgmiv.executors import THREAD_VARIABLES, Done, InProcess, RayCluster

# Ray starts its processes by fork and exec, which JAX warns of once another test of this process has used it.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")]

# Workers import tasks by name, so the tasks live in a module that they can find.
TASKS = """
import os, time
from pathlib import Path
from bgmiv.errors import DataError

def environment(item):
    return dict(os.environ)

def square(item):
    if item == "user":
        raise DataError("treatment is constant")
    return {1: 1, 2: 4}[item]

def die_on_two(item):
    if item == 2:
        os._exit(9)
    return item

def never_end(item):
    Path(item).write_text(f"{os.getpid()}")
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The tasks, on a connection of the caller: it is used and left open."""
    import ray

    folder = tmp_path_factory.mktemp("tasks")
    (folder / "ray_tasks.py").write_text(TASKS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", ":".join([str(folder), *sys.path]))
        patch.syspath_prepend(folder)
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
        ray.init("local", num_cpus=1, num_gpus=1, object_store_memory=80_000_000, include_dashboard=False, **quiet)
        try:
            yield importlib.import_module("ray_tasks")
            assert ray.is_initialized()
        finally:
            ray.shutdown()


@pytest.mark.slow
def test_rows_are_those_of_the_calling_process(tasks: ModuleType, tmp_path: Path) -> None:
    key = identify(RunSpec("demand", 200, 0.5, "tsls", "default", 0))
    here, there = (
        [outcome.row for outcome in run_plan([key], RowStore(tmp_path / name), executor)]
        for name, executor in (("here", InProcess()), ("ray", RayCluster()))
    )
    assert there == list(RowStore(tmp_path / "ray").rows())
    assert [row.key for row in there] == [key]
    assert there[0].structural_mse == pytest.approx(here[0].structural_mse, rel=1e-9)


@pytest.mark.slow
def test_a_worker_that_dies_is_tried_once_more(tasks: ModuleType) -> None:
    outcomes = {outcome.item: outcome for outcome in RayCluster().map(tasks.die_on_two, [1, 2, 3])}
    assert "the worker process was lost" in outcomes[2].lost
    assert [outcomes[item] for item in (1, 3)] == [Done(1, 1), Done(3, 3)]


@pytest.mark.slow
def test_an_exception_in_a_task_comes_back(tasks: ModuleType) -> None:
    with pytest.raises(BGMIVError, match=r"(?s)a worker process failed.*KeyError: 3"):
        list(RayCluster().map(tasks.square, [1, 3]))
    with pytest.raises(DataError, match=r"^treatment is constant$"):
        list(RayCluster().map(tasks.square, [2, "user"]))


@pytest.mark.slow
def test_fits_have_one_thread_and_stay_off_graphics_processors(tasks: ModuleType) -> None:
    (done,) = RayCluster().map(tasks.environment, [None])
    assert {name: done.result[name] for name in THREAD_VARIABLES} == dict.fromkeys(THREAD_VARIABLES, "1")
    assert done.result["JAX_PLATFORMS"] == "cpu"
    (shared,) = RayCluster(gpus=0.5).map(tasks.environment, [None])
    assert shared.result["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.375"


@pytest.mark.slow
def test_room_that_is_not_there(tasks: ModuleType) -> None:
    with pytest.raises(ConfigError, match=r"no node .* has the 64 CPUs"):
        next(RayCluster(cpus=64).map(tasks.square, [1]))

    def items() -> Iterator[int]:
        raise KeyboardInterrupt
        yield 1

    waiting = RayCluster("127.0.0.1:1", cpus=64).map(tasks.square, items())
    with pytest.warns(BGMIVWarning, match="waiting for one to join"), pytest.raises(KeyboardInterrupt):
        next(waiting)


@pytest.mark.slow
def test_closing_the_loop_ends_what_is_running(tasks: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "process"

    def items() -> Iterator[str]:
        yield str(file)
        while not file.exists() or not file.read_text():
            time.sleep(0.05)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(RayCluster().map(tasks.never_end, items()))
    process = Path(f"/proc/{file.read_text()}")
    ends = time.monotonic() + 30.0
    while process.exists() and time.monotonic() < ends:
        time.sleep(0.05)
    assert not process.exists()


def test_ray_may_be_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bgmiv.executors.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'pybgmiv\[ray\]'"):
        RayCluster()


def test_an_address_where_nothing_is_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(BGMIVError, match=f"cannot join the Ray cluster at {address}: .*ray start --head"):
        next(RayCluster(address).map(len, [1]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cpus": 0.0}, "cpus is 0.0"),
        ({"cpus": float("nan")}, "cpus is nan"),
        ({"gpus": 1.5}, "gpus is 1.5; choose a number from 0 to 1, or a whole number"),
        ({"gpus": -1.0}, "gpus is -1.0"),
        ({"address": "head"}, "address is 'head'; give host:port"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RayCluster(**settings)
