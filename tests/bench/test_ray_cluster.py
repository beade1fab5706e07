"""On a real cluster of two nodes, each with its own processes, on this machine."""

from __future__ import annotations

import importlib
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bgmiv.bench import ray_cluster
from bgmiv.bench.executors import THREAD_VARIABLES, Advanced, Died, Done, Event, Finished, LocalPool, Retried, Started
from bgmiv.bench.identity import identify_all
from bgmiv.bench.plan import Plan, Sweep
from bgmiv.bench.ray_cluster import RayCluster
from bgmiv.bench.runner import run_plan
from bgmiv.bench.store import RowStore
from bgmiv.errors import BGMIVError, BGMIVWarning, ConfigError, DataError, MissingExtraError

# Ray starts its processes by fork and exec, which JAX warns of once another test of this process has used it.
pytestmark = pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")

MARK = "BGMIV_TEST_CLUSTER"
NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}

# Workers import tasks by name, so the tasks live in a module that they can find.
TASKS = """
import os, time
from pathlib import Path

import ray
from bgmiv.errors import DataError

def environment(item, reporter):
    return dict(os.environ)

def square_or_fail(item, reporter):
    if item == "user":
        raise DataError("treatment is constant")
    return {1: 1, 2: 4}[item]

def die_on_two(item, reporter):
    if item == 2:
        os._exit(9)
    return item

def never_end(item, reporter):
    # Whole from the start: the process may be ended at any time.
    Path(f"{item}.part").write_text(f"{os.getpid()}")
    Path(f"{item}.part").rename(item)
    time.sleep(600)

def short_unless_doomed(item, reporter):
    folder, number = Path(item[0]), item[1]
    node, doomed = ray.get_runtime_context().get_node_id(), (folder / "doomed").read_text()
    (folder / f"{number}-{os.getpid()}").write_text(node)
    # On the node that is going to be killed nothing ever finishes, and elsewhere nothing before that one is at work.
    while node == doomed or doomed not in [path.read_text() for path in folder.glob("*-*")]:
        time.sleep(0.1)
    return number, node
"""


class Events:
    def __init__(self) -> None:
        self.seen: list[tuple[int, Event]] = []

    def show(self, index: int, event: Event) -> None:
        self.seen.append((index, event))

    def of(self, index: int) -> list[Event]:
        return [event for place, event in self.seen if place == index]


def marked(mark: str) -> list[int]:
    """Processes that were started, directly or not, with the mark in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes() and int(entry.name) != os.getpid():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def eventually(condition: Callable[[], Any], seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Ray's processes find the tasks and carry a mark of this run; none of them is left at its end."""
    folder, mark = tmp_path_factory.mktemp("tasks"), secrets.token_hex(8)
    (folder / "ray_tasks.py").write_text(TASKS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patch.setenv(MARK, mark)
        patch.delenv("RAY_ADDRESS", raising=False)
        # Otherwise Ray writes a token into the home folder.
        patch.setenv("RAY_AUTH_MODE", "disabled")
        # Ray is silenced by whoever imports it first, and here that must not be this file.
        ray_cluster._load()
        yield mark
    gone = eventually(lambda: not marked(mark))
    assert gone, f"Ray left processes behind: {[Path(f'/proc/{pid}/comm').read_text() for pid in marked(mark)]}"


@pytest.fixture(scope="module")
def cluster(environ: str) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        cluster.add_node(**NODE, num_gpus=1)
        assert len(marked(environ)) >= 4
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture(scope="module")
def tasks(environ: str) -> ModuleType:
    return importlib.import_module("ray_tasks")


@pytest.mark.slow
def test_rows_are_those_of_a_local_pool(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan("small", "", (Sweep(["demand"], [200], [0.5], ["tsls", "kiv"], repeats=3),))
    keys = identify_all(plan.specs)

    def rows(name: str, executor: LocalPool | RayCluster) -> list[dict[str, Any]]:
        store = RowStore(tmp_path / name)
        given = [outcome.row for outcome in run_plan(keys, store, executor, Events())]
        assert sorted(keys.index(row.key) for row in given) == list(range(len(keys)))
        assert sorted(given, key=lambda row: row.spec) == list(store.rows())
        assert store.leases().names() == ()
        return [
            {name: value for name, value in asdict(row).items() if name not in ("seconds", "cpu_seconds", "timestamp")}
            for row in store.rows()
        ]

    there = rows("ray", RayCluster(cluster.address))
    assert [row["status"] for row in there] == ["ok"] * 6
    monkeypatch.delenv(MARK)
    assert there == rows("pool", LocalPool())


@pytest.mark.slow
def test_without_an_address_ray_is_started_and_ended(environ: str, tasks: ModuleType) -> None:
    import ray

    before, handler = set(marked(environ)), signal.getsignal(signal.SIGTERM)
    iterator = RayCluster().map(tasks.square_or_fail, [2], Events())
    assert next(iterator) == Done(0, 4)
    assert set(marked(environ)) > before
    assert list(iterator) == []
    assert not ray.is_initialized()
    assert signal.getsignal(signal.SIGTERM) == handler
    assert eventually(lambda: set(marked(environ)) <= before)


@pytest.fixture(scope="class")
def connection(cluster: Any) -> Iterator[None]:
    import ray

    ray.init(cluster.address, log_to_driver=False, logging_level=logging.CRITICAL)
    try:
        yield
        assert ray.is_initialized()
    finally:
        ray.shutdown()


@pytest.mark.usefixtures("connection")
class TestAConnectionOfTheCaller:
    """It is used and left open, and its workers are kept between tests."""

    @pytest.mark.slow
    def test_a_worker_that_dies_is_tried_once_more(self, tasks: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
        board = Events()
        outcomes = {done.index: done for done in RayCluster().map(tasks.die_on_two, [1, 2, 3], board)}
        died = outcomes[1]
        assert isinstance(died, Died)
        assert died.attempts == 2
        assert "the worker process ended without a result" in died.reason
        assert [outcomes[index] for index in (0, 2)] == [Done(0, 1), Done(2, 3)]
        begun = [Started("on the cluster", 1), Advanced(0, {})]
        assert board.of(0) == [*begun, Finished()]
        assert board.of(1) == [*begun, Retried(died.reason), *begun]
        assert capfd.readouterr() == ("", "")

    def test_an_exception_in_a_task_comes_back(self, tasks: ModuleType) -> None:
        with pytest.raises(BGMIVError, match=r"(?s)a worker process failed.*square_or_fail.*KeyError: 3"):
            list(RayCluster().map(tasks.square_or_fail, [1, 3], Events()))
        with pytest.raises(DataError, match=r"^treatment is constant$"):
            list(RayCluster().map(tasks.square_or_fail, [2, "user"], Events()))

    def test_a_worker_with_other_code_is_refused(self, tasks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ray_cluster, "_code", lambda: "0123456789abcdef")
        with pytest.raises(BGMIVError, match="has another version of bgmiv's code"):
            next(RayCluster().map(tasks.square_or_fail, [1], Events()))

    def test_fits_have_one_thread_and_keep_off_processors_they_did_not_ask_for(self, tasks: ModuleType) -> None:
        (done,) = RayCluster().map(tasks.environment, [None], Events())
        assert isinstance(done, Done)
        assert {name: done.result[name] for name in THREAD_VARIABLES} == dict.fromkeys(THREAD_VARIABLES, "1")
        assert done.result["JAX_PLATFORMS"] == "cpu"
        (done,) = RayCluster(cpus=0.5, gpus=0.5).map(tasks.environment, [None], Events())
        assert isinstance(done, Done)
        assert done.result["CUDA_VISIBLE_DEVICES"] == "0"
        assert done.result["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.375"

    @pytest.mark.slow
    def test_a_lost_node_loses_nothing(self, cluster: Any, tasks: ModuleType, tmp_path: Path) -> None:
        doomed = cluster.add_node(**NODE)
        (tmp_path / "doomed").write_text(doomed.node_id)
        count, killed, board = 9, False, Events()
        done: list[int] = []

        def begun(number: str) -> list[str]:
            return [path.read_text() for path in sorted(tmp_path.glob(f"{number}-*"))]

        items = [(str(tmp_path), number) for number in range(count)]
        for outcome in RayCluster().map(tasks.short_unless_doomed, items, board):
            assert isinstance(outcome, Done)
            number, node = outcome.result
            assert node != doomed.node_id
            done.append(number)
            if not killed:
                (raylet,) = doomed.all_processes["raylet"]
                raylet.process.send_signal(signal.SIGKILL)
                # Its workers take a process that nobody waited for as alive.
                raylet.process.wait()
                killed = True
        assert sorted(done) == list(range(count))
        nodes = {number: begun(str(number)) for number in range(count)}
        lost = [number for number in nodes if doomed.node_id in nodes[number]]
        assert lost
        for number, where in nodes.items():
            assert len(where) == (2 if number in lost else 1)
            assert sum(isinstance(event, Retried) for event in board.of(number)) == (number in lost)

    def test_an_interrupt_ends_what_is_running(self, tasks: ModuleType, tmp_path: Path) -> None:
        files = [tmp_path / str(number) for number in range(6)]

        class Interrupting(Events):
            def show(self, index: int, event: Event) -> None:
                if index == 1 and isinstance(event, Advanced):
                    assert eventually(lambda: sum(path.exists() for path in files) >= 2)
                    raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            list(RayCluster().map(tasks.never_end, [str(path) for path in files], Interrupting()))
        pids = {int(path.read_text()) for path in files if path.exists()}
        assert len(pids) == 2
        assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))

    def test_a_node_that_is_not_there_is_waited_for_with_a_warning(self, cluster: Any, tasks: ModuleType) -> None:
        class Stopping(Events):
            def show(self, index: int, event: Event) -> None:
                raise KeyboardInterrupt

        iterator = RayCluster(cluster.address, cpus=64).map(tasks.never_end, ["x"], Stopping())
        with (
            pytest.warns(BGMIVWarning, match="no node .* has the 64 CPUs"),
            pytest.raises(KeyboardInterrupt),
        ):
            next(iterator)


def test_nothing_to_do_needs_no_cluster() -> None:
    assert list(RayCluster("127.0.0.1:1").map(len, [], Events())) == []


def test_ray_may_be_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    there = RayCluster()
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'bgmiv\[ray\]'"):
        RayCluster()
    with pytest.raises(MissingExtraError, match=r"pip install 'bgmiv\[ray\]'"):
        next(there.map(len, [1], Events()))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_an_address_where_nothing_is_fails_at_once(environ: str, host: str) -> None:
    address = f"{host}:{free_port()}"
    start = time.monotonic()
    with pytest.raises(BGMIVError, match=f"cannot reach a Ray cluster at {address}: .*ray start --head"):
        next(RayCluster(address).map(len, [1], Events()))
    assert time.monotonic() - start < 20.0


def test_something_else_at_the_address_fails_in_seconds(environ: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "_JOIN", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(BGMIVError, match=f"no Ray cluster answered at {address} within 3 seconds"):
            next(RayCluster(address).map(len, [1], Events()))


def test_a_cluster_that_is_gone_is_not_waited_for(environ: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "_JOIN", 3.0)
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port()}")
    with pytest.raises(BGMIVError, match="no Ray cluster answered at auto within 3 seconds"):
        next(RayCluster("auto").map(len, [1], Events()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cpus": 0.0}, "cpus is 0.0"),
        ({"cpus": float("nan")}, "cpus is nan"),
        ({"gpus": 1.5}, "gpus is 1.5; above 1, choose a whole number"),
        ({"gpus": -1.0}, "gpus is -1.0"),
        ({"retries": -1}, "retries is -1"),
        ({"address": "head"}, "address is 'head'; give host:port"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RayCluster(**settings)
