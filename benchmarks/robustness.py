"""Kill, damage and fill the bench on purpose, in full numbers, and write what came of it to robustness.md.

python benchmarks/robustness.py              # goes on where it stopped; all of it takes the better part of an hour
python benchmarks/robustness.py --only overhead

Every part is kept in out/robustness as it is done. Remove that folder to begin anew.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import robustness_files as files
import robustness_processes as processes
from robustness_processes import CLOSED_FORM, FAILING, Toll

from bgmiv.bench.executors import InProcess
from bgmiv.bench.identity import identify_all
from bgmiv.bench.plan import Plan, Sweep
from bgmiv.bench.runner import run_plan
from bgmiv.bench.store import RowStore

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "out" / "robustness"

KILLS, DAMAGES, CONTESTS, OVERHEADS = 100, 200, 20, 3
SMALL = ("--methods", "tsls", "--n", "100", "--repeats", "2")

NEURAL = """
[[sweep]]
designs = ["demand"]
n = [100]
rho = [0.5]
methods = ["deepiv"]
repeats = 2
"""


def kept(name: str) -> list[Any]:
    """What is known of a part."""
    path = OUT / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def keep(name: str, entry: Any) -> None:
    """Add to a part."""
    with (OUT / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps(entry) + "\n")
    print(f"{time.strftime('%H:%M:%S')} {name}: {entry}", flush=True)


def plan_file(name: str, *sweeps: str) -> Path:
    """A plan of these sweeps."""
    path = OUT / f"{name}.toml"
    path.write_text("".join(sweeps))
    return path


def reference(plan: Path) -> tuple[bytes, float]:
    """The accuracy table of an uninterrupted run, and the seconds to its first fit."""
    folder = OUT / f"reference-{plan.stem}"
    with processes.bench(folder, plan) as bench:
        began = time.monotonic()
        process = bench.start()
        while not bench.starts() and process.poll() is None:
            time.sleep(0.01)
        startup = time.monotonic() - began
        bench.finish(process)
        table = processes.accuracy(bench.store)
    shutil.rmtree(folder)
    return table, startup


def kills(victim: str) -> None:
    """Kill drivers or workers at random moments, a few in each sweep; every third sweep has neural fits in it."""
    references: dict[Path, tuple[bytes, float]] = {}
    while (done := sum(entry["kills"] for entry in kept(victim))) < KILLS:
        number = len(kept(victim))
        plan = plan_file("mixed", CLOSED_FORM, NEURAL) if number % 3 == 0 else plan_file("closed", CLOSED_FORM)
        if plan not in references:
            references[plan] = reference(plan)
        folder = OUT / f"{victim}-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        with processes.bench(folder, plan) as bench:
            victims = [victim] * min(5, KILLS - done)
            toll = processes.crash(bench, victims, random.Random(f"{victim} {number}"), *references[plan])
        keep(victim, asdict(toll))
        if toll.clean:
            shutil.rmtree(folder)


def damages(name: str, how: Callable[[Path, random.Random], None]) -> None:
    """Damage rows of a finished store."""
    if kept(name):
        return
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    store = RowStore(folder)
    keys = identify_all(Plan("small", "", (Sweep(["demand"], [200], [0.5], ["tsls", "kiv"], repeats=10),)).specs)
    list(run_plan(keys, store, InProcess(), files.Quiet()))
    before = processes.accuracy(store)
    found = files.damage(store, keys, how, DAMAGES, random.Random(name))
    keep(name, {**found._asdict(), "different": int(processes.accuracy(store) != before)})
    shutil.rmtree(folder)


def injected() -> None:
    """A full disk at every step of a run, for a new store and for one whose files are replaced."""
    if kept("injected"):
        return
    for state, prepare in (("new", lambda store: None), ("replaced", files.damaged_before)):
        folder = OUT / f"injected-{state}"
        shutil.rmtree(folder, ignore_errors=True)
        refusals = list(files.fill_each_step(folder, SMALL, prepare))
        steps = Counter(refusal.step for refusal in refusals)
        faults = [fault for refusal in refusals for fault in refusal.faults]
        keep("injected", {"state": state, "steps": steps, "faults": faults})
        shutil.rmtree(folder)


def small_disks() -> None:
    """Real file systems that are too small."""
    if kept("small-disks"):
        return
    folder = OUT / "small-disks"
    options = ("--methods", "tsls", "--n", "100", "--repeats", "6")
    found = []
    for more, pages, inodes in (((), range(1, 9), range(2, 15)), (("--workers", "2"), (2, 4, 6), (8, 10, 12))):
        shutil.rmtree(folder, ignore_errors=True)
        found += files.fill_small_disks(folder, (*options, *more), pages=pages, inodes=inodes) or []
    keep("small-disks", found)


def contests() -> None:
    """Four runners that begin at once, in processes of their own or with a worker each."""
    plan = plan_file("contest", CLOSED_FORM, FAILING)
    table = None
    while len(kept("contests")) < CONTESTS:
        number = len(kept("contests"))
        folder = OUT / f"contest-{number}"
        if table is None:
            with processes.bench(OUT / "contest-reference", plan) as bench:
                bench.start(workers=0).wait()
                table = processes.accuracy(bench.store)
            shutil.rmtree(OUT / "contest-reference")
        shutil.rmtree(folder, ignore_errors=True)
        with processes.bench(folder, plan) as bench:
            toll = processes.contend(bench, table, workers=number % 2)
            by = Counter(start.worker for start in bench.starts())
        keep("contests", {**asdict(toll), "fits by each": sorted(by.values())})
        if toll.clean:
            shutil.rmtree(folder)


def overhead() -> None:
    """The wall time of 200 fits of about 0.2 s on two workers, beside half the time of the fits."""
    while len(kept("overhead")) < OVERHEADS:
        folder = OUT / "overhead"
        shutil.rmtree(folder, ignore_errors=True)
        load = os.getloadavg()[0]
        began = time.monotonic()
        subprocess.run(
            [
                Path(sys.executable).with_name("bgmiv"), "bench", "run", "--methods", "kiv", "--n", "1300",
                "--repeats", "200", "--workers", "2", "--store", folder,
            ],
            check=True, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wall = time.monotonic() - began
        seconds = [row.seconds for row in RowStore(folder).rows()]
        entry = {"wall": round(wall, 2), "fits": round(sum(seconds), 2), "ratio": round(2 * wall / sum(seconds), 3)}
        keep("overhead", {**entry, "load before": load})
        shutil.rmtree(folder)


PARTS: dict[str, Callable[[], None]] = {
    "driver": lambda: kills("driver"),
    "worker": lambda: kills("worker"),
    "truncated": lambda: damages("truncated", files.truncate),
    "flipped": lambda: damages("flipped", files.flip),
    "injected": injected,
    "small-disks": small_disks,
    "contests": contests,
    "overhead": overhead,
}


def table(header: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    rows = [f"| {' | '.join(str(value) for value in line)} |" for line in lines]
    return "\n".join([f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}", *rows])


def report() -> str:
    """All parts that are done, as Markdown."""
    lines: list[tuple[object, ...]] = []
    for name, what in (("driver", "`kill -9` of the driver"), ("worker", "`kill -9` of a worker")):
        toll = sum((Toll(**entry) for entry in kept(name)), Toll())
        lines.append((what, toll.kills, *_counts(toll), toll.redone))
    tolls = [{name: entry[name] for name in asdict(Toll())} for entry in kept("contests")]
    contest = sum((Toll(**entry) for entry in tolls), Toll())
    lines.append(("four runners begun at once", len(tolls), *_counts(contest), "-"))
    header = ("what", "times", "lost", "doubled", "torn", "left behind", "tables that differ", "redone a kill, at most")
    crashes = table(header, lines)
    damaged = table(
        ("what", "times", "not noticed", "not redone", "redone in vain", "tables that differ"),
        [
            (what, *entry.values())
            for name, what in (("truncated", "file cut off anywhere"), ("flipped", "one bit flipped anywhere"))
            for entry in kept(name)
        ],
    )
    disks = [
        (f"no space at one step, {entry['state']} files", sum(entry["steps"].values()), len(entry["faults"]))
        for entry in kept("injected")
    ]
    for found in kept("small-disks"):
        full = [entry for entry in found if entry[1] != 0]
        disks.append(("a real file system too small", len(full), sum(len(entry[3]) for entry in full)))
    times = table(
        ("wall, s", "all fits, s", "wall / (fits / 2)", "load before"),
        [(entry["wall"], entry["fits"], entry["ratio"], f"{entry['load before']:.2f}") for entry in kept("overhead")],
    )
    redone = {name: sum(entry["redone_in_all"] for entry in kept(name)) for name in ("driver", "worker")}
    return f"""# What the bench survives

Written by `make robustness` on {platform.system()} with {os.cpu_count()} cores and Python {platform.python_version()}.
The same checks in smaller numbers are part of `make test`.

## Kills and contests

Sweeps of 48 fits (2SLS and KIV at n = 200 and 1000; every third sweep also two DeepIV fits) on two workers, killed up
to five times at random moments and begun again at once. At the end the accuracy table is compared with that of an
uninterrupted run byte for byte. A row counts as lost if it was there at a kill and is gone or changed at the end, as
doubled if a run has two rows or was fitted again though nobody who was at it was killed. Left behind are temporary
files and leases that the next run does not sweep away. In all, {redone["driver"]} fits were redone for kills of
drivers, whose workers end their fits alone, and {redone["worker"]} for kills of workers. The contests are of the same
fits and two that fail.

{crashes}

## Damaged files

Rows of a finished store are damaged, a few at a time, and the bench is run again.

{damaged}

## Full disks

A fault is anything but exit code 1, a message with the file and the cure, no torn and no left-over file, and the right
rows after the same command is run again.

{table(("what", "times", "faults"), disks)}

## Overhead

200 KIV fits at n = 1300 on two workers, from the command's start to its end.

{times}
"""


def _counts(toll: Toll) -> tuple[int, ...]:
    return toll.lost, toll.doubled, toll.torn, toll.strays, toll.different


def main() -> None:
    """Do what is missing, then write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, nargs="*", help="these parts alone")
    chosen = parser.parse_args().only
    OUT.mkdir(parents=True, exist_ok=True)
    for name, part in PARTS.items():
        if chosen is None or name in chosen:
            part()
    (HERE / "robustness.md").write_text(report())


if __name__ == "__main__":
    main()
