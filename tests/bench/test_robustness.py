"""Kills, damage, full disks and several runners at once, in small numbers; `make robustness` has the full counts."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import robustness_files as files
import robustness_processes as processes
from robustness_processes import Start, Toll

from bgmiv.bench.executors import InProcess
from bgmiv.bench.identity import identify_all
from bgmiv.bench.plan import Plan, Sweep
from bgmiv.bench.runner import run_plan
from bgmiv.bench.store import RowStore

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")

SMALL = ("--methods", "tsls", "--n", "100", "--repeats")


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "small.toml"
    path.write_text(processes.CLOSED_FORM)
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, plan_file: Path) -> bytes:
    """The accuracy table of an uninterrupted run."""
    with processes.bench(tmp_path_factory.mktemp("reference"), plan_file) as bench:
        bench.finish()
        assert len(bench.starts()) == len(bench.plan.specs) == 48
        return processes.accuracy(bench.store)


@LINUX
@pytest.mark.slow
def test_kills_cost_no_row(tmp_path: Path, plan_file: Path, reference: bytes) -> None:
    rng = random.Random(1)
    victims = ["driver", "worker"] * 2
    total = Toll()
    while victims:
        with processes.bench(tmp_path / str(len(victims)), plan_file) as bench:
            toll = processes.crash(bench, victims, rng, reference, startup=3.0)
        assert toll.clean, toll
        total += toll
        victims = victims[max(1, toll.kills) :]
    assert total.kills >= 3
    assert total.redone_in_all <= total.kills


@LINUX
@pytest.mark.slow
def test_runners_at_once_do_no_run_twice(tmp_path: Path, plan_file: Path) -> None:
    both = tmp_path / "both.toml"
    both.write_text(processes.CLOSED_FORM.replace("repeats = 12", "repeats = 6") + processes.FAILING)
    tables = []
    for trial in range(2):
        with processes.bench(tmp_path / str(trial), both) as bench:
            toll = processes.contend(bench, b"")
            # No table to compare with: two failed rows make every exit code 1.
            tables.append(processes.accuracy(bench.store))
            assert toll == Toll(different=1), (toll, bench.output())
            assert len({start.driver for start in bench.starts()}) == 1
            assert len({start.worker for start in bench.starts()}) > 1
            assert sum(row.status == "failed" for row in bench.store.rows()) == 2
    assert tables[0] == tables[1]


def test_what_a_kill_costs_is_told_from_what_nobody_needed() -> None:
    starts = [Start(11, 1, "a"), Start(12, 1, "b"), Start(13, 1, "a"), Start(21, 2, "b"), Start(22, 2, "b")]
    assert processes.redone(starts, killed=[11, 1]) == {11: 1, 1: 1, None: 1}


@pytest.mark.parametrize("how", [files.truncate, files.flip])
def test_damage_is_noticed_and_costs_those_runs_alone(
    tmp_path: Path, how: Callable[[Path, random.Random], None]
) -> None:
    store = RowStore(tmp_path)
    plan = Plan("small", "", (Sweep(["demand"], [100], [0.5], ["tsls", "kiv"], repeats=4),))
    keys = identify_all(plan.specs)
    list(run_plan(keys, store, InProcess(), files.Quiet()))
    before = processes.accuracy(store)
    assert files.damage(store, keys, how, 40, random.Random(2)) == (40, 0, 0, 0)
    assert processes.accuracy(store) == before


@pytest.mark.parametrize(("state", "repeats", "least"), [("new", "2", 40), ("damaged", "1", 30)])
def test_a_full_disk_is_told_at_every_step(tmp_path: Path, state: str, repeats: str, least: int) -> None:
    prepare = files.damaged_before if state == "damaged" else lambda store: None
    refusals = list(files.fill_each_step(tmp_path, (*SMALL, repeats), prepare))
    assert [(refusal.step, refusal.words, refusal.faults) for refusal in refusals if refusal.faults] == []
    wanted = {"create", "write", "flush", "fsync", "open", "replace" if state == "damaged" else "link"}
    assert wanted <= {refusal.step for refusal in refusals}
    assert len(refusals) > least


@LINUX
def test_a_disk_that_is_too_small(tmp_path: Path) -> None:
    found = files.fill_small_disks(tmp_path, (*SMALL, "2"), pages=[1, 2, 3, 4, 100], inodes=[2, 4, 6, 8])
    if found is None:
        pytest.skip("no file system can be mounted here")
    assert [entry for entry in found if entry[3]] == []
    assert {code for _, code, _, _ in found} == {0, 1}
