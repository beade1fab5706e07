from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from bgmiv.bench import evaluate
from bgmiv.bench.evaluate import failed_row, run_one
from bgmiv.bench.plan import Plan, RunSpec, Sweep, identify, ready_plans
from bgmiv.bench.store import Row, RowStore
from bgmiv.cli.main import app

TSLS = ("--n", 100, "--methods", "tsls")
PLAN = Plan("mine", "five seeds", (Sweep(["demand"], [100], [0.5], ["tsls"], repeats=5),))
PLAN_FILE = """
title = "two sizes"

[[sweep]]
designs = ["demand"]
n = [100, 200]
rho = [0.5]
methods = ["tsls"]
repeats = 2
"""


def bgmiv(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def run(store: Path, *arguments: object) -> Result:
    """A run in this process: no worker to wait for."""
    return bgmiv("bench", "run", "--workers", 0, "--store", store, *arguments)


def rows_of(store: Path) -> list[dict[str, Any]]:
    shown = bgmiv("bench", "show", store, "--json")
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)


@pytest.fixture
def store(tmp_path: Path) -> RowStore:
    """A store with runs in every state: done, failed, damaged, missing, and a row of another version."""
    store = RowStore(tmp_path / "rows")
    done, failed, damaged, *_ = [identify(spec) for spec in PLAN.specs]
    store.keep_plan(PLAN)
    row = run_one(done.spec)
    store.write(row)
    store.write(failed_row(failed, "DataError: [no] good"), failed_row(damaged, "cut off"))
    path = store.path("demand")
    path.write_bytes(path.read_bytes().replace(b"cut off", b"cut"))
    store.write(replace(row, method_version=0))
    return store


def test_run_then_show(tmp_path: Path) -> None:
    done = run(tmp_path, "--design", "demand", "--n", "100,200", "--rho", 0.1, "--rho", 0.9, "--methods", "tsls",
               "--repeats", 2, "--seed", 5)  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "8 fits: 0 done before, 8 to run" in done.output
    rows = rows_of(tmp_path)
    assert len(rows) == 8
    assert {row["seed"] for row in rows} == {5, 6}
    table = bgmiv("bench", "show", tmp_path)
    assert table.output.count("tsls") == 4
    assert "structural MSE / 1e4" in table.output


def test_a_second_run_has_nothing_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(tmp_path, *TSLS).exit_code == 0
    monkeypatch.setattr(evaluate, "run_one", lambda *_: pytest.fail("it ran again"))
    again = run(tmp_path, *TSLS)
    assert again.exit_code == 0
    assert "1 done before, 0 to run" in again.output


def test_a_failed_fit_is_kept_and_reported(tmp_path: Path) -> None:
    done = run(tmp_path, "--design", "vector-proxy", *TSLS)
    assert done.exit_code == 1
    assert "1 of 1 fits failed; run the same command again" in done.output
    (row,) = rows_of(tmp_path)
    assert row["status"] == "failed"
    assert "785 covariate columns" in row["error"]
    assert "failed" in bgmiv("bench", "show", tmp_path).output


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(spec: RunSpec) -> object:
        if spec.seed == 1:
            raise KeyboardInterrupt
        return run_one(spec)

    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "run_one", interrupted)
        stopped = run(tmp_path, *TSLS, "--repeats", 3)
    assert stopped.exit_code == 130
    assert "run the same command again to go on" in stopped.output
    again = run(tmp_path, *TSLS, "--repeats", 3)
    assert "1 done before, 2 to run" in again.output
    assert again.exit_code == 0


def test_a_run_repairs_damage_and_does_not_count_other_versions(store: RowStore) -> None:
    strict = run(store.folder, *TSLS, "--repeats", 3)
    assert strict.exit_code == 0
    assert "damaged" in strict.output
    assert "1 rows come from other algorithm versions" in strict.output
    assert "1 done before, 2 to run" in strict.output
    assert [(row.seed, row.status) for row in store.contents().rows] == [(0, "ok"), (0, "ok"), (1, "ok"), (2, "ok")]


def test_a_plan_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(PLAN_FILE)
    done = run(tmp_path / "rows", tmp_path / "mine.toml", "--n", 100, "--repeats", 1)
    assert done.exit_code == 0, done.output
    assert [(row["n"], row["seed"]) for row in rows_of(tmp_path / "rows")] == [(100, 0)]
    done = run(tmp_path / "rows", tmp_path / "mine.toml", "--repeats", 1)
    assert "2 fits: 1 done before, 1 to run" in done.output


def test_ready_plans_are_listed() -> None:
    listed = bgmiv("bench", "plans").output.splitlines()
    assert [line.split()[0] for line in listed] == list(ready_plans())
    assert all(int(line.split()[1]) > 0 for line in listed)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--n", "many"), "n holds 'many'; it takes a whole number"),
        (("--n", "1"), "at least 2 rows"),
        (("--n", ","), "n must be a list with at least one entry"),
        (("--rho", "nan"), "between -1 and 1"),
        (("--design", "airline"), "demand, vector-proxy"),
        (("--methods", "ols"), "bgm-iv"),
        (("--methods", ","), "methods must be a list with at least one entry"),
        (("--preset", "fast"), "default, paper"),
        (("--repeats", "0"), "Invalid value for '--repeats'"),
        (("--seed", "-1"), "Invalid value for '--seed'"),
        (("--workers", "-1"), "Invalid value for '--workers'"),
        (("--executor", "cloud"), "'cloud' is unknown; there are local, ray"),
        (("--address", "auto"), "belongs to --executor ray"),
        (("--executor", "ray", "--cpus", "0"), "cpus is 0.0"),
        (("nowhere.toml",), "no plan 'nowhere.toml'"),
        (("paper/table-1", "--seed", "3"), "the plan sets it"),
        (("paper/table-1", "--design", "demand"), "the plan sets it"),
        (("paper/table-1", "--n", "77"), "has no n 77; it has 1000, 5000, 10000"),
    ],
)
def test_bad_options_are_named_and_write_nothing(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = bgmiv("bench", "run", "--store", tmp_path / "rows", *arguments)
    text = " ".join(done.output.replace("│", " ").split())
    assert done.exit_code == 2, text
    assert words in text
    assert not (tmp_path / "rows").exists()


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "rows"):
        done = run(folder, *TSLS)
        assert done.exit_code == 2
        assert "--store" in done.output
    for verb in ("show", "status", "gc"):
        assert bgmiv("bench", verb, tmp_path / "file").exit_code == 2


def test_status_counts_every_state(store: RowStore, tmp_path: Path) -> None:
    claim = store.claim(identify(PLAN.specs[3]))
    shown = bgmiv("bench", "status", store.folder)
    assert claim is not None
    assert shown.exit_code == 0, shown.output
    assert "mine: five seeds" in shown.output
    # planned, done, running, failed, missing
    assert ["all", "5", "1", "1", "1", "2"] in [line.split() for line in shown.output.splitlines()]
    assert "failed: demand n=100 rho=0.5 tsls seed 1: DataError: [no] good" in shown.output
    assert "damaged: " in shown.output
    assert "1 rows come from other algorithm versions" in shown.output
    assert "noisy" in bgmiv("bench", "status", store.folder, "--plan", "noisy").output
    assert bgmiv("bench", "status", store.folder, "--plan", "nowhere").exit_code == 2


def test_gc_removes_damage_and_on_request_old_and_failed_rows(store: RowStore) -> None:
    (store.folder / "plans.jsonl").write_text("{\n")
    assert "bgmiv bench gc" in bgmiv("bench", "status", store.folder).output
    done = bgmiv("bench", "gc", store.folder)
    assert "2 damaged lines removed" in done.output
    assert [row.status for row in store.rows()] == ["ok", "ok", "failed"]
    shown = bgmiv("bench", "show", store.folder).output
    assert "tsls seed 1 failed: DataError: [no] good" in shown
    assert "1 rows of other versions removed" in bgmiv("bench", "gc", store.folder, "--other-versions").output
    assert "1 failed rows removed" in bgmiv("bench", "gc", store.folder, "--failed").output
    assert [row.key for row in store.rows()] == [identify(PLAN.specs[0])]


def test_merge(store: RowStore, tmp_path: Path) -> None:
    damaged = bgmiv("bench", "merge", tmp_path / "all", store.folder)
    assert damaged.exit_code == 1
    assert "damaged" in damaged.output
    bgmiv("bench", "gc", store.folder)
    for words in ("3 rows added, 0 were there already", "0 rows added, 3 were there already"):
        assert words in bgmiv("bench", "merge", tmp_path / "all", store.folder).output
    assert RowStore(tmp_path / "all").rows() == store.rows()
    assert RowStore(tmp_path / "all").plans() == (PLAN,)
    assert bgmiv("bench", "merge", tmp_path / "all", tmp_path / "nowhere").exit_code == 2


def test_an_empty_store(tmp_path: Path) -> None:
    assert json.loads(bgmiv("bench", "show", tmp_path, "--json").stdout) == []
    assert "No rows" in bgmiv("bench", "show", tmp_path).output
    assert "0 rows" in bgmiv("bench", "status", tmp_path).output


def test_report_writes_a_table_and_a_figure_a_design(tmp_path: Path, make_cell: Callable[..., list[Row]]) -> None:
    store, hostile = RowStore(tmp_path / "rows"), "../../<script>\\input{x} =a"
    for row in (*make_cell("kiv", [1.0, 2.0]), *make_cell("tsls", [3.0]), *make_cell(hostile, [1.0], design=hostile)):
        store.write(row)
    out = tmp_path / "out"
    done = bgmiv("bench", "report", store.folder, "--out", out)
    assert done.exit_code == 0, done.output
    written = list(out.iterdir())
    assert all(f"wrote {path}" in done.output for path in written)
    names = {"table.csv", "table.tex", "demand.png", "demand.pdf"}
    assert {path.name for path in written if not path.name.startswith("-")} == names
    assert len(written) == 6
    assert (out / "table.csv").read_text().count("demand") == 2
    assert r"\input{x}" not in (out / "table.tex").read_text()


def test_report_refuses_before_it_writes(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "file").write_text("x")
    done = bgmiv("bench", "report", tmp_path / "rows", "--out", tmp_path / "out")
    assert (done.exit_code, "No rows in" in done.output) == (1, True)
    assert bgmiv("bench", "report", tmp_path / "absent", "--out", tmp_path / "out").exit_code == 2
    assert bgmiv("bench", "report", tmp_path / "rows", "--out", tmp_path / "file").exit_code == 2
    assert not (tmp_path / "out").exists()
