from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from bgmiv.bench.evaluate import failed_row, run_one
from bgmiv.bench.files import put_new
from bgmiv.bench.identity import identify, identify_all
from bgmiv.bench.plan import Plan, Sweep
from bgmiv.bench.store import RowStore
from bgmiv.cli.main import app

PLAN = Plan("mine", "five seeds", (Sweep(["demand"], [100], [0.5], ["tsls"], repeats=5),))


def bgmiv(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


@pytest.fixture
def store(tmp_path: Path) -> RowStore:
    """A store in every state: done, failed, running, damaged, missing, and a row of other code."""
    store = RowStore(tmp_path / "rows")
    done, failed, running, damaged, _ = identify_all(PLAN.specs)
    store.keep_plan(PLAN)
    row = run_one(done.spec)
    store.write(row)
    store.write(failed_row(failed, "DataError: [no] good"))
    store.leases().take(running.run_id)
    store.path(damaged).write_text("{")
    store.write(replace(row, code="0" * 16))
    (store.folder / f".{done.run_id}-0123456789ab.tmp").write_text("half")
    return store


def test_status_counts_every_state(store: RowStore) -> None:
    shown = bgmiv("bench", "status", store.folder)
    assert shown.exit_code == 0, shown.output
    assert "mine: five seeds" in shown.output
    lines = [line.split() for line in shown.output.splitlines()]
    # planned, done, running, failed, missing
    assert ["all", "5", "1", "1", "1", "2"] in lines
    assert "failed: demand n=100 rho=0.5 tsls seed 1: DataError: [no] good" in shown.output
    assert "damaged: " in shown.output
    assert "1 rows come from another version of the code or settings (code 00000000)" in shown.output


def test_status_of_a_named_plan(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    none = bgmiv("bench", "status", tmp_path / "rows")
    assert none.exit_code == 0
    assert "0 rows" in none.output
    assert "name one with --plan" in none.output
    named = bgmiv("bench", "status", tmp_path / "rows", "--plan", "confounded")
    assert named.exit_code == 0
    assert "confounded" in named.output
    absent = bgmiv("bench", "status", tmp_path / "rows", "--plan", "nowhere")
    assert absent.exit_code == 2
    assert "--plan" in absent.output


def test_status_names_a_damaged_plan_and_gc_removes_it(store: RowStore) -> None:
    (path,) = (store.folder / "plans").iterdir()
    path.write_text("{")
    shown = bgmiv("bench", "status", store.folder)
    assert shown.exit_code == 1
    assert str(path) in shown.output
    assert "bgmiv bench gc" in shown.output
    assert "1 damaged plans removed" in bgmiv("bench", "gc", store.folder).output
    assert not path.exists()
    assert bgmiv("bench", "status", store.folder).exit_code == 0


def test_gc_removes_what_crashes_left_and_no_row(store: RowStore) -> None:
    done = bgmiv("bench", "gc", store.folder)
    assert done.exit_code == 0, done.output
    assert "1 temporary files, 1 damaged rows and 0 damaged plans removed" in done.output
    assert [row.status for row in store.rows()] == ["ok", "ok", "failed"]
    assert len(store.leases().names()) == 1
    assert store.plans() == (PLAN,)


def test_gc_keeps_rows_in_the_format_of_another_version(store: RowStore) -> None:
    foreign = store.folder / "0123456789abcdef.json"
    put_new(foreign, "bgmiv row 99", {"a": 1})
    assert "1 rows in the format of another version are kept" in bgmiv("bench", "gc", store.folder).output
    assert foreign.exists()
    foreign.write_bytes(foreign.read_bytes().replace(b"1", b"2", 1))
    assert "kept" not in bgmiv("bench", "gc", store.folder).output
    assert not foreign.exists()


def test_gc_removes_old_and_failed_rows_when_asked(store: RowStore) -> None:
    old = bgmiv("bench", "gc", store.folder, "--other-versions")
    assert "1 rows of other versions removed" in old.output
    assert [row.key == identify(row.spec) for row in store.rows()] == [True, True]
    failed = bgmiv("bench", "gc", store.folder, "--failed")
    assert "1 failed rows removed" in failed.output
    assert [row.status for row in store.rows()] == ["ok"]


def test_show_says_that_versions_are_mixed(store: RowStore) -> None:
    bgmiv("bench", "gc", store.folder)
    shown = bgmiv("bench", "show", store.folder)
    assert shown.exit_code == 0
    assert "1 fits have rows of more than one version of the code" in shown.output
    assert "tsls seed 1 failed: DataError: [no] good" in shown.output


def test_merge(store: RowStore, tmp_path: Path) -> None:
    bgmiv("bench", "gc", store.folder)
    for _ in range(2):
        done = bgmiv("bench", "merge", tmp_path / "all", store.folder)
        assert done.exit_code == 0, done.output
    assert "0 rows added, 3 were there already" in done.output
    target = RowStore(tmp_path / "all")
    assert target.rows() == store.rows()
    assert target.plans() == (PLAN,)


def test_merge_refuses_contradiction_and_damage(store: RowStore, tmp_path: Path) -> None:
    damaged = bgmiv("bench", "merge", tmp_path / "all", store.folder)
    assert damaged.exit_code == 1
    assert "damaged" in damaged.output
    assert not (tmp_path / "all").exists()
    bgmiv("bench", "gc", store.folder)
    other = RowStore(tmp_path / "other")
    other.write(replace(store.rows()[1], structural_mse=1.0))
    refused = bgmiv("bench", "merge", store.folder, other.folder)
    assert refused.exit_code == 1
    assert "different results of the same run" in refused.output
    assert bgmiv("bench", "merge", tmp_path / "all", tmp_path / "nowhere").exit_code == 2


def test_an_empty_store(tmp_path: Path) -> None:
    assert json.loads(bgmiv("bench", "show", tmp_path, "--json").stdout) == []
    assert "No rows" in bgmiv("bench", "show", tmp_path).output
