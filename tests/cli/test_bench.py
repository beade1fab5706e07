from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from bgmiv.bench import evaluate
from bgmiv.bench.identity import identify
from bgmiv.bench.plan import RunSpec, ready_plans
from bgmiv.bench.store import RowStore
from bgmiv.cli.main import app

PLAN = """
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


def test_run_then_show(tmp_path: Path) -> None:
    store = tmp_path / "rows"
    done = run(
        store, "--design", "demand", "--n", "100,200", "--rho", 0.1, "--rho", 0.9,
        "--methods", "tsls", "--repeats", 2, "--seed", 5,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "8 fits: 0 done before, 8 to run" in done.output
    rows = rows_of(store)
    assert len(rows) == 8
    wanted = {"design", "n", "rho", "method", "preset", "seed", "structural_mse", "structural_mse_in_support"}
    assert wanted | {"seconds", "cpu_seconds", "status", "versions", "config", "code", "attempts"} <= set(rows[0])
    assert {row["seed"] for row in rows} == {5, 6}

    table = bgmiv("bench", "show", store)
    assert table.exit_code == 0
    assert table.output.count("tsls") == 4
    assert "±" in table.output
    assert bgmiv("bench", "show", store, "--rows").output.count("tsls") == 12


def test_worker_processes_give_the_same_rows(tmp_path: Path) -> None:
    arguments = ("--n", 100, "--methods", "tsls", "--repeats", 2)
    done = bgmiv("bench", "run", "--workers", 2, "--store", tmp_path / "workers", *arguments)
    assert done.exit_code == 0, done.output
    run(tmp_path / "here", *arguments)
    workers, here = (
        [(row["seed"], row["structural_mse"]) for row in rows_of(tmp_path / name)] for name in ("workers", "here")
    )
    assert workers == here


def test_a_second_run_has_nothing_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (tmp_path, "--n", 100, "--methods", "tsls")
    assert run(*arguments).exit_code == 0
    monkeypatch.setattr(evaluate, "run_one", lambda *_: pytest.fail("it ran again"))
    again = run(*arguments)
    assert again.exit_code == 0
    assert "1 done before, 0 to run" in again.output


def test_a_failed_fit_is_kept_and_reported(tmp_path: Path) -> None:
    done = run(tmp_path, "--design", "vector-proxy", "--n", 100, "--methods", "tsls")
    assert done.exit_code == 1
    assert "1 of 1 fits failed; run the same command again" in done.output
    (row,) = rows_of(tmp_path)
    assert (row["status"], row["attempts"]) == ("failed", 2)
    assert "785 covariate columns" in row["error"]
    assert "failed" in bgmiv("bench", "show", tmp_path, "--rows").output


def test_a_damaged_row_is_run_again(tmp_path: Path) -> None:
    arguments = (tmp_path, "--n", 100, "--methods", "tsls")
    run(*arguments)
    (path,) = tmp_path.glob("*.json")
    path.write_text("{")
    shown = bgmiv("bench", "show", tmp_path)
    assert shown.exit_code == 1
    assert "damaged" in shown.output
    assert "run the bench again" in shown.output
    again = run(*arguments)
    assert again.exit_code == 0
    assert "damaged" in again.output
    assert "0 done before, 1 to run" in again.output
    assert bgmiv("bench", "show", tmp_path).exit_code == 0


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    real = evaluate.run_one

    def interrupted(spec: RunSpec, reporter: object) -> object:
        if len(seeds) == 1:
            raise KeyboardInterrupt
        seeds.append(spec.seed)
        return real(spec)

    arguments = (tmp_path, "--n", 100, "--methods", "tsls", "--repeats", 3)
    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "run_one", interrupted)
        stopped = run(*arguments)
    assert stopped.exit_code == 130
    assert "run the same command again to go on" in stopped.output
    assert len(list(tmp_path.glob("*.json"))) == 1
    again = run(*arguments)
    assert "1 done before, 2 to run" in again.output
    assert again.exit_code == 0


def test_rows_of_other_versions_count_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (tmp_path, "--n", 100, "--methods", "tsls", "--repeats", 2)
    store = RowStore(tmp_path)
    spec = RunSpec("demand", 100, 0.5, "tsls", "default", 0)
    store.write(replace(evaluate.run_one(spec), code="0" * 16))
    any_version = run(*arguments, "--any-version")
    assert "1 done before (rows of any version count), 1 to run" in any_version.output
    assert [row.seed for row in store.rows()] == [0, 1]
    strict = run(*arguments)
    assert "1 rows of this plan come from other versions of the code or settings (00000000)" in strict.output
    assert "bgmiv bench gc --other-versions" in strict.output
    assert "1 done before, 1 to run" in strict.output
    assert [(row.seed, row.key == identify(row.spec)) for row in store.rows()] == [(0, False), (0, True), (1, True)]


def test_a_plan_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(PLAN)
    done = run(tmp_path / "rows", tmp_path / "mine.toml", "--n", 100, "--fraction", 0.5)
    assert done.exit_code == 0, done.output
    assert [(row["n"], row["seed"]) for row in rows_of(tmp_path / "rows")] == [(100, 0)]
    done = run(tmp_path / "rows", tmp_path / "mine.toml", "--repeats", 1)
    assert "2 fits: 1 done before, 1 to run" in done.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere.toml",), "no plan 'nowhere.toml'"),
        (("demand", "--seed", "3"), "a plan says that itself"),
        (("demand", "--design", "demand"), "a plan says that itself"),
        (("demand", "--n", "77"), "has no n 77; it has 1000, 5000, 10000"),
        (("demand", "--methods", "ols"), "has no methods ols"),
        (("demand", "--fraction", "0"), "fraction is 0.0"),
    ],
)
def test_a_plan_or_part_that_is_not_there(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = run(tmp_path / "rows", *arguments)
    assert done.exit_code == 2
    assert words in " ".join(done.output.replace("│", " ").split())
    assert not (tmp_path / "rows").exists()


def test_ready_plans_are_listed() -> None:
    listed = bgmiv("bench", "plans")
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.output.splitlines()] == list(ready_plans())
    assert all(int(line.split()[1]) > 0 for line in listed.output.splitlines())


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--n", "many", "'many' is not a whole number"),
        ("--n", "1", "at least 2 rows"),
        ("--n", ",", "give a whole number"),
        ("--rho", "1.5", "between -1 and 1"),
        ("--rho", "nan", "between -1 and 1"),
        ("--rho", "half", "'half' is not a number"),
        ("--design", "airline", "demand, vector-proxy"),
        ("--methods", "ols", "bgm-iv"),
        ("--preset", "fast", "default, paper"),
        ("--repeats", "0", "0 is too small; choose 1 or more"),
        ("--seed", "-1", "-1 is too small; choose 0 or more"),
        ("--workers", "-1", "-1 is too small; choose 0 or more"),
        ("--threads", "0", "0 is too small; choose 1 or more"),
        ("--batch", "0", "0 is too small; choose 1 or more"),
        ("--executor", "cloud", "choose local or ray"),
        ("--address", "auto", "belongs to --executor ray"),
    ],
)
def test_bad_options_name_the_option_and_write_nothing(tmp_path: Path, option: str, value: str, words: str) -> None:
    store = tmp_path / "rows"
    done = bgmiv("bench", "run", "--methods", "tsls", "--store", store, option, value)
    text = " ".join(done.output.replace("│", " ").split())
    assert done.exit_code == 2, text
    assert option in text
    assert words in text
    assert not store.exists()


def test_an_empty_list_of_methods(tmp_path: Path) -> None:
    done = bgmiv("bench", "run", "--methods", ",", "--store", tmp_path / "rows")
    assert done.exit_code == 2
    assert "name at least one method" in done.output


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for store in (tmp_path / "file", tmp_path / "file" / "rows"):
        done = run(store, "--methods", "tsls", "--n", 100)
        assert done.exit_code == 2
        assert "--store" in done.output
    for verb in ("show", "status", "gc"):
        assert bgmiv("bench", verb, tmp_path / "file").exit_code == 2
