"""Kill runners and workers of the bench, and fits, damage files, and write the counts to robustness.md (Linux only).

python benchmarks/robustness.py             # some minutes on two cores
python benchmarks/robustness.py fits        # only that section (bench, fits or scale); the others stay as they are
"""

from __future__ import annotations

import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bgmiv.bench import InProcess, LocalPool, Row, RowStore, RunKey, RunSpec, Sweep, identify, run_plan
from bgmiv.errors import BGMIVWarning

HERE = Path(__file__).resolve().parent
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
KILLS = {"driver": 40, "worker": 20}
CONTESTS, DAMAGES = 5, 100
# Every fit takes about a tenth of a second, so that kills at random moments hit all stages of it.
SIZE, REPEATS, WORKERS = 20_000, 40, 2
_PATIENCE = 1800.0


@dataclass(frozen=True)
class Counts:
    """What a trial did to a store.

    Args:
        times: kills, contests or damaged lines.
        lost: runs without an ok row at the end, and rows that were there at a kill and are gone or changed at the end.
        doubled: rows beyond one a run, and runs that were stored more than once.
        damaged: lines that are not whole at the end.
        left_behind: worker processes that outlive their runner by ten seconds, and temporary files and locks that
            outlast a sweep of the store.
        different: runs whose error is not that of an undisturbed run, to the last digit.
    """

    times: int = 0
    lost: int = 0
    doubled: int = 0
    damaged: int = 0
    left_behind: int = 0
    different: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(mine + theirs for mine, theirs in zip(self.values, other.values, strict=True)))

    @property
    def values(self) -> tuple[int, ...]:
        """All of them, in order."""
        return tuple(asdict(self).values())

    @property
    def faults(self) -> int:
        """How much went wrong."""
        return sum(self.values[1:])


def run_keys(n: int, repeats: int) -> tuple[RunKey, ...]:
    """The runs of a sweep of 2SLS on the demand design."""
    return tuple(identify(spec) for spec in Sweep(["demand"], [n], [0.5], ["tsls"], repeats=repeats).specs())


def drive(folder: Path, n: int, repeats: int, workers: int) -> None:
    """Be a runner: run the sweep into the folder's store and log each run that this process stores."""
    rows = []
    with (folder / "log").open("a", buffering=1) as log:
        for row, ours in run_plan(run_keys(n, repeats), RowStore(folder / "rows"), LocalPool(workers)):
            rows.append(row)
            if ours and row.status == "ok":
                log.write(f"{os.getpid()} {row.seed}\n")
    sys.exit(any(row.status != "ok" for row in rows))


@dataclass
class Trial:
    """Runners of one sweep on one store, as processes.

    Args:
        folder: for the store, the log and the output.
        n, repeats: of the sweep.
        workers: of each runner.
    """

    folder: Path
    n: int = SIZE
    repeats: int = REPEATS
    workers: int = WORKERS
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def store(self) -> RowStore:
        """Where its rows go."""
        return RowStore(self.folder / "rows")

    def start(self) -> subprocess.Popen[bytes]:
        """Start a runner."""
        arguments = [str(self.folder), str(self.n), str(self.repeats), str(self.workers)]
        with (self.folder / "output").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, __file__, "drive", *arguments], stdout=output, stderr=output, env=os.environ
            )
        self.processes.append(process)
        return process

    def finish(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for a runner, and start another one as long as fits have failed."""
        for _ in range(5):
            if process.wait(_PATIENCE) == 0:
                return
            process = self.start()
        raise RuntimeError(f"the sweep does not end well:\n{(self.folder / 'output').read_text()[-4000:]}")

    def ok_rows(self) -> set[Row]:
        """The ok rows that are on disk now."""
        rows = self.store.contents().rows if self.store.folder.is_dir() else ()
        return {row for row in rows if row.status == "ok"}

    def log(self) -> list[tuple[int, int]]:
        """Process and seed of every run that was stored."""
        lines = (self.folder / "log").read_text().splitlines()
        return [(int(pid), int(seed)) for pid, seed in (line.split() for line in lines)]

    def audit(self, seen: Set[Row], reference: Mapping[RunSpec, float | None]) -> Counts:
        """What is wrong with the store at the end."""
        rows, damaged = self.store.contents()
        stored = Counter(seed for _, seed in self.log())
        self.store.clean()
        left = [*self.store.folder.glob(".*.tmp"), *self.store.folder.glob(".running/*")]
        left = [path for path in left if path.stem != "write"]
        found = {row.spec: row.structural_mse for row in rows if row.status == "ok"}
        gone = seen - set(rows)
        return Counts(
            lost=len(set(reference) - set(found)) + len(gone),
            doubled=len(rows) - len({row.spec for row in rows}) + stored.total() - len(stored),
            damaged=len(damaged),
            left_behind=len(left),
            different=sum(reference[spec] != error for spec, error in found.items()),
        )


@contextmanager
def trial(folder: Path, **settings: int) -> Iterator[Trial]:
    """A trial in a new folder whose processes end with the body."""
    folder.mkdir(parents=True)
    made = Trial(folder, **settings)
    try:
        yield made
    finally:
        for process in made.processes:
            process.kill()
            process.wait()


def reference(folder: Path, **settings: int) -> dict[RunSpec, float | None]:
    """The error of each run of an undisturbed sweep."""
    with trial(folder, **settings) as made:
        made.finish(made.start())
        return {row.spec: row.structural_mse for row in made.store.rows()}


def crash(made: Trial, victim: str, kills: int, rng: random.Random, errors: Mapping[RunSpec, float | None]) -> Counts:
    """Run one sweep to its end, ending its runner by a signal, or killing a worker, after every few rows.

    Args:
        made: with an empty store.
        victim: `"driver"` or `"worker"`.
        kills: at most this many; the sweep may end before.
        rng: draws the moments.
        errors: of an undisturbed sweep.
    """
    counts = Counts()
    seen: set[Row] = set()
    process = made.start()
    while counts.times < kills and _wait_for_rows(made, process, rng):
        workers = _workers(process.pid)
        if victim == "driver":
            process.send_signal(rng.choice(SIGNALS))
            process.wait(_PATIENCE)
        elif workers:
            _kill(rng.choice(workers))
        counts += Counts(times=1)
        seen |= made.ok_rows()
        if victim == "driver":
            counts += Counts(left_behind=_survivors(workers))
            process = made.start()
    made.finish(process)
    return counts + made.audit(seen, errors)


def contend(made: Trial, runners: int, errors: Mapping[RunSpec, float | None]) -> Counts:
    """Several runners on one store at once."""
    for process in [made.start() for _ in range(runners)]:
        process.wait(_PATIENCE)
    return Counts(times=1) + made.audit(set(), errors)


def damage(store: RowStore, keys: Sequence[RunKey], times: int, rng: random.Random) -> Counts:
    """Cut off the file of rows, or flip one bit of it, and run the bench again; unnoticed damage counts as lost."""
    list(run_plan(keys, store, InProcess()))
    errors = {row.spec: row.structural_mse for row in store.rows()}
    path, counts = store.path("demand"), Counts()
    for number in range(times):
        content = bytearray(path.read_bytes())
        place = rng.randrange(len(content))
        if number % 2:
            del content[place:]
        else:
            content[place] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        # A cut between two lines leaves whole lines; what is missing is run again.
        noticed = bool(store.contents().damaged) or content[-1:] in (b"", b"\n")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BGMIVWarning)
            list(run_plan(keys, store, InProcess()))
        store.clean()
        rows, damaged = store.contents()
        different = sum(errors[row.spec] != row.structural_mse for row in rows)
        counts += Counts(1, lost=len(keys) - len(rows) + (not noticed), damaged=len(damaged), different=different)
    return counts


def _wait_for_rows(made: Trial, process: subprocess.Popen[bytes], rng: random.Random) -> bool:
    """Wait for a few more rows and a random moment; False if the runner ended."""
    wanted = len(made.ok_rows()) + rng.randint(1, 3)
    while process.poll() is None:
        if len(made.ok_rows()) >= wanted:
            time.sleep(rng.uniform(0.0, 0.1))
            return process.poll() is None
        time.sleep(0.005)
    return False


def _workers(driver: int) -> list[int]:
    """Its worker processes that are alive."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            state, parent, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(parent) == driver and state != "Z" and b"spawn_main" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return sorted(found)


def _survivors(workers: Sequence[int]) -> int:
    ends = time.monotonic() + 10.0
    while (alive := [pid for pid in workers if _is_alive(pid)]) and time.monotonic() < ends:
        time.sleep(0.02)
    return len(alive)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _table(lines: Sequence[tuple[str, Sequence[int]]]) -> str:
    return "\n".join(f"| {what} | {' | '.join(map(str, values))} |" for what, values in lines)


def _fits_section() -> str:
    import robustness_fits as fits

    table = _table([(what, fits.run_trial(what)) for what in fits.TRIALS])
    return f"""## Fits, saved models and reports

A *signal* is SIGKILL, SIGINT or SIGTERM in turn, at a random moment. Fits are BGM-IV with the paper's settings in small
(n = {fits.ROWS}, {fits.ITERATIONS} + {fits.EPOCHS} steps, the state saved after every few), each interrupted up to
{fits.KILLS_A_FIT} times; models and reports are those of 2SLS, written over and over. A disk is full from the first,
the second, ... step of writing on, or lets no file grow beyond {fits.SIZES[0]} to {fits.SIZES[-1]:,} bytes: of a model,
a report, a checkpoint and a row of the bench. *Lost*: fits that do not end, names without a model. *Torn*: files that
are neither the old nor the new one. *Different*: predictions that are not those of an undisturbed run to the last bit.
*Foreign*: errors that are not bgmiv's own, or that do not come.
*Left behind*: files that the next run does not remove.

| what | times | lost | torn | different | foreign | left behind |
| --- | --- | --- | --- | --- | --- | --- |
{table}
"""


def _bench_section(lines: Sequence[tuple[str, Counts]], shares: Sequence[Sequence[int]]) -> str:
    table = _table([(what, counts.values) for what, counts in lines])
    each = "; ".join(", ".join(str(count) for count in share) for share in shares)
    return f"""## The bench

Sweeps of {REPEATS} fits (2SLS, demand design, n = {SIZE:,}) on {WORKERS} workers, killed after every few rows at random
moments and started again at once. *Lost*: runs without a row at the end, and rows that were there at a kill and are
gone or changed at the end. *Doubled*: rows beyond one a run, and runs stored more than once. *Damaged*: lines that
are not whole at the end. *Left behind*: workers that outlive their runner, and temporary files and locks that
`bgmiv bench gc` does not remove. *Different*: errors that are not those of an undisturbed sweep to the last digit.
Damaged lines are noticed by their checksum and their fits run again; damage that is not noticed would count as lost.

| what | times | lost | doubled | damaged | left behind | different |
| --- | --- | --- | --- | --- | --- | --- |
{table}

The four runners shared the work: rows made by each, by contest: {each}.
"""


def _scale_section() -> str:
    import robustness_scale as scale

    return f"""## Long and wide tables

CPU-seconds on one thread, and memory at its peak beyond what the process had when it was asked (the data are there),
for the default settings; compilation counts. `dose_response` has 20 treatments, `predict` every row; the first interval
looks for weak instruments; the report comes after the diagnosis, which fits the no-instrument version. An empty cell
was not measured.

{scale.tables(scale.measurements())}
"""


def _write(sections: Mapping[str, str]) -> None:
    """Write the page; a section that was not run stays as it is."""
    path, headings = HERE / "robustness.md", {"bench": "## The bench", "fits": "## Fits, saved models and reports"}
    headings["scale"] = "## Long and wide tables"
    old = path.read_text() if path.exists() else ""
    parts = {name: old[old.index(title) :].split("\n## ")[0] for name, title in headings.items() if title in old}
    parts |= sections
    body = "\n\n".join(parts[name].strip() for name in headings if name in parts)
    path.write_text(f"""# What the bench and fits survive

Written by `make robustness` on {platform.system()} with {os.cpu_count()} cores and Python {platform.python_version()}.
`make test-slow` does the same in smaller numbers.

{body}
""")


def main(*names: str) -> None:
    """Do all of it, or the sections named, and write the report."""
    if not names or "bench" in names:
        _write({"bench": _bench()})
    if not names or "fits" in names:
        _write({"fits": _fits_section()})
    if not names or "scale" in names:
        _write({"scale": _scale_section()})


def _bench() -> str:
    lines = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        errors = reference(folder / "reference")
        for victim, what in (("driver", "a signal to the runner"), ("worker", "`kill -9` of a worker")):
            counts, number = Counts(), 0
            while counts.times < KILLS[victim]:
                with trial(folder / f"{victim}-{number}") as made:
                    rng = random.Random(f"{victim} {number}")
                    counts += crash(made, victim, min(7, KILLS[victim] - counts.times), rng, errors)
                print(f"{time.strftime('%H:%M:%S')} {victim} {number}: {counts}", flush=True)
                shutil.rmtree(made.folder)
                number += 1
            lines.append((what, counts))
        contests, shares = Counts(), []
        for number in range(CONTESTS):
            with trial(folder / f"contest-{number}", workers=1) as made:
                contests += contend(made, 4, errors)
                shares.append(sorted(Counter(pid for pid, _ in made.log()).values()))
        print(f"{time.strftime('%H:%M:%S')} contests: {contests}", flush=True)
        lines.append(("four runners at once", contests))
        damages = damage(RowStore(folder / "damage"), run_keys(200, 10), DAMAGES, random.Random(0))
        lines.append(("file of rows cut off, or one bit flipped", damages))
    return _bench_section(lines, shares)


if __name__ == "__main__":
    if sys.argv[1:2] == ["drive"]:
        drive(Path(sys.argv[2]), *map(int, sys.argv[3:6]))
    else:
        main(*sys.argv[1:])
