"""Sweeps as processes, killed on purpose: what the robustness tests and the robustness benchmark share."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from bgmiv.bench.plan import Plan, canonical_json, load_plan
from bgmiv.bench.store import RowStore
from bgmiv.report.render import to_csv
from bgmiv.report.results import Results
from bgmiv.report.tables import support_table

# Two sweeps of real fits, small enough to be run again and again.
CLOSED_FORM = """
[[sweep]]
designs = ["demand"]
n = [200, 1000]
rho = [0.5]
methods = ["tsls", "kiv"]
repeats = 12
"""
# 2SLS fails with more columns than rows: a failed run is not to be done again by each runner either.
FAILING = """
[[sweep]]
designs = ["vector-proxy"]
n = [100]
rho = [0.5]
methods = ["tsls"]
repeats = 2
"""

# Loaded by every Python process of a sweep: writes down each fit as it starts, with the process and its parent.
PLUGIN = """
import importlib.util, os, sys

PARENT = os.getppid()

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name != "bgmiv.bench.evaluate":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def loaded(module):
            load(module)
            fit = module.run_one

            def run_one(run, *rest):
                log = os.open(os.environ["STARTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                os.write(log, f"{os.getpid()} {PARENT} {run}\\n".encode())
                os.close(log)
                return fit(run, *rest)

            module.run_one = run_one

        spec.loader.exec_module = loaded
        return spec

sys.meta_path.insert(0, Watch())
"""

# A runner that is ready before it begins, so that several begin at once.
AT_ONCE = """
import sys, time
from pathlib import Path
import bgmiv.bench.runner, bgmiv.cli.board
from bgmiv.cli.main import app
ready, go = map(Path, sys.argv[1:3])
ready.touch()
while not go.exists():
    time.sleep(0.001)
app(sys.argv[3:])
"""

_PATIENCE = 900.0
_ONE_THREAD = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Start(NamedTuple):
    """A fit that was started: by which worker, of which driver, for which run."""

    worker: int
    driver: int
    run: str


@dataclass(frozen=True)
class Toll:
    """What kills did to sweeps.

    Args:
        kills: processes killed.
        lost: runs without a row at the end, and rows that were there at a kill and had gone or changed at the end.
        doubled: rows beyond one a run, and fits started again although no process that was at them was killed.
        torn: damaged files, seen right after a kill or at the end.
        strays: temporary files and leases that outlast a sweep of the store.
        different: sweeps whose accuracy table is not that of an uninterrupted run, byte for byte.
        redone: the most fits started again for one kill.
        redone_in_all: fits started again.
    """

    kills: int = 0
    lost: int = 0
    doubled: int = 0
    torn: int = 0
    strays: int = 0
    different: int = 0
    redone: int = 0
    redone_in_all: int = 0

    def __add__(self, other: Toll) -> Toll:
        added = {name: value + getattr(other, name) for name, value in asdict(self).items()}
        return Toll(**{**added, "redone": max(self.redone, other.redone)})

    @property
    def clean(self) -> bool:
        """Nothing lost, doubled, torn, left behind or different, and at most one fit redone a kill."""
        return not (self.lost or self.doubled or self.torn or self.strays or self.different) and self.redone <= 1


def accuracy(store: RowStore) -> bytes:
    """The accuracy table, canonically: one line a run in the order of the runs, and the report's table as CSV."""
    rows = store.rows()
    lines = [
        canonical_json(
            {
                "run": str(row.spec),
                "errors": [row.structural_mse, row.structural_mse_in_support, row.structural_mse_outside],
                "status": row.status,
            }
        )
        for row in rows
    ]
    results = Results.of(rows)
    return "\n".join([*lines, *(to_csv(support_table(results, design)) for design in results.designs)]).encode()


@dataclass
class Bench:
    """``bgmiv bench run`` of a plan's file into a store, as processes whose fits are counted."""

    folder: Path
    plan_file: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "plugin").mkdir(parents=True, exist_ok=True)
        (self.folder / "plugin" / "sitecustomize.py").write_text(PLUGIN)

    @property
    def store(self) -> RowStore:
        """Where its rows go."""
        return RowStore(self.folder / "rows")

    @property
    def plan(self) -> Plan:
        """What it runs."""
        return load_plan(self.plan_file)

    def start(self, workers: int = 2) -> subprocess.Popen[bytes]:
        """Start it, or go on with it."""
        return self._open([str(Path(sys.executable).with_name("bgmiv")), *self._arguments(workers)])

    def start_at_once(self, runners: int, workers: int = 0) -> list[subprocess.Popen[bytes]]:
        """Start several that begin at the same moment."""
        go, ready = self.folder / "go", [self.folder / f"ready-{number}" for number in range(runners)]
        started = [
            self._open([sys.executable, "-c", AT_ONCE, str(path), str(go), *self._arguments(workers)]) for path in ready
        ]
        ends = time.monotonic() + _PATIENCE
        while not all(path.exists() for path in ready) and time.monotonic() < ends:
            time.sleep(0.01)
        go.touch()
        return started

    def finish(self, process: subprocess.Popen[bytes] | None = None, workers: int = 2) -> None:
        """Wait for it, and run it again while fits have failed."""
        for _ in range(5):
            process = process or self.start(workers)
            if process.wait(_PATIENCE) == 0:
                return
            process = None
        raise RuntimeError(f"the sweep does not end well:\n{self.output()}")

    def starts(self) -> list[Start]:
        """Every fit so far, in order."""
        log = self.folder / "starts"
        lines = [line.split(" ", 2) for line in log.read_text().splitlines()] if log.exists() else []
        return [Start(int(worker), int(driver), run) for worker, driver, run in lines]

    def output(self) -> str:
        """The end of what it said."""
        return (self.folder / "output").read_text()[-4000:]

    def _arguments(self, workers: int) -> list[str]:
        return ["bench", "run", str(self.plan_file), "--store", str(self.folder / "rows"), "--workers", str(workers)]

    def _open(self, command: list[str]) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **dict.fromkeys(_ONE_THREAD, "1"), "STARTS": str(self.folder / "starts")}
        paths = [str(self.folder / "plugin"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        with (self.folder / "output").open("ab") as output:
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        self.processes.append(process)
        return process


@contextmanager
def bench(folder: Path, plan_file: Path) -> Iterator[Bench]:
    """A bench whose processes end with the body."""
    made = Bench(folder, plan_file)
    try:
        yield made
    finally:
        for process in made.processes:
            if process.poll() is None:
                for number in (*_workers(process.pid), process.pid):
                    _kill(number)
                process.wait()


def crash(bench: Bench, victims: Sequence[str], rng: random.Random, reference: bytes, startup: float) -> Toll:
    """Run one sweep, killing drivers and workers at random moments, until it is done; what that cost.

    Args:
        bench: with an empty store.
        victims: ``"driver"`` or ``"worker"``, one a kill; those left over when the sweep ends are not counted.
        rng: draws the moments.
        reference: the accuracy table of an uninterrupted run.
        startup: seconds a driver takes to its first fit.
    """
    killed: list[int] = []
    torn = 0
    seen: dict[Path, bytes] = {}
    process = bench.start()
    for victim in victims:
        _wait_for_a_moment(bench, process, rng, startup)
        number = process.pid if victim == "driver" else _choose_worker(process, rng)
        if process.poll() is not None or number is None:
            break
        _kill(number)
        killed.append(number)
        if victim == "driver":
            process.wait()
        torn += len(bench.store.contents().damaged) if bench.store.folder.is_dir() else 0
        seen.update(_ok_files(bench.store))
        if victim == "driver":
            # At once: workers of the killed driver may still be at their fits.
            process = bench.start()
    bench.finish(process)
    return Toll(kills=len(killed), torn=torn) + _audit(bench, killed, seen, reference)


def contend(bench: Bench, reference: bytes, runners: int = 4, workers: int = 0) -> Toll:
    """Several runners on one store at once; the toll counts fits that more than one of them did."""
    for process in bench.start_at_once(runners, workers):
        process.wait(_PATIENCE)
    return _audit(bench, [], {}, reference)


def redone(starts: Sequence[Start], killed: Sequence[int]) -> Counter[int | None]:
    """Fits that were started again, by the kill that cost them; None where no kill did."""
    causes: Counter[int | None] = Counter()
    for run in {start.run for start in starts}:
        for first, _ in pairwise(start for start in starts if start.run == run):
            causes[next((number for number in (first.worker, first.driver) if number in killed), None)] += 1
    return causes


def _audit(bench: Bench, killed: Sequence[int], seen: dict[Path, bytes], reference: bytes) -> Toll:
    store = bench.store
    rows, damaged = store.contents()
    planned = bench.plan.specs
    store.sweep()
    strays = [path for path in store.folder.rglob("*") if path.suffix in (".tmp", ".lease")]
    causes = redone(bench.starts(), killed)
    # A fit that fails is tried twice by the worker that is at it.
    unexplained = causes.pop(None, 0) - sum(row.attempts - 1 for row in rows if row.status == "failed")
    gone = sum(not path.exists() or path.read_bytes() != content for path, content in seen.items())
    return Toll(
        lost=len(set(planned) - {row.spec for row in rows}) + gone,
        doubled=len(rows) - len({row.spec for row in rows}) + max(0, unexplained),
        torn=len(damaged),
        strays=len(strays),
        different=int(damaged != () or accuracy(store) != reference),
        redone=max(causes.values(), default=0),
        redone_in_all=causes.total(),
    )


def _wait_for_a_moment(bench: Bench, process: subprocess.Popen[bytes], rng: random.Random, startup: float) -> None:
    """Any time while processes start, or, three times of four, any time while fits run."""
    if rng.random() < 0.25:
        with suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0.0, startup))
        return
    wanted = len(bench.starts()) + rng.randint(1, 6)
    while len(bench.starts()) < wanted and process.poll() is None:
        time.sleep(0.002)
    time.sleep(rng.uniform(0.0, 0.15))


def _choose_worker(process: subprocess.Popen[bytes], rng: random.Random) -> int | None:
    while process.poll() is None:
        found = _workers(process.pid)
        if found:
            return rng.choice(found)
        time.sleep(0.01)
    return None


def _workers(driver: int) -> list[int]:
    """Its worker processes that are alive."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            state, parent, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(parent) == driver and state != "Z" and b"spawn_main" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return sorted(found)


def _ok_files(store: RowStore) -> dict[Path, bytes]:
    rows = store.contents().rows if store.folder.is_dir() else ()
    return {(path := store.path(row.key)): path.read_bytes() for row in rows if row.status == "ok"}


def _kill(number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)
