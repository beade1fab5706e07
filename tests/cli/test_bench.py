from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from bgmiv.bench import runner
from bgmiv.cli.main import app


def bgmiv(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def test_run_then_show(tmp_path: Path) -> None:
    store = tmp_path / "rows"
    done = bgmiv(
        "bench", "run", "--design", "demand", "--n", "100,200", "--rho", 0.1, "--rho", 0.9,
        "--methods", "tsls", "--repeats", 2, "--seed", 5, "--store", store,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "8 fits: 0 done before, 8 to run" in done.output
    shown = bgmiv("bench", "show", store, "--json")
    rows = json.loads(shown.stdout)
    assert len(rows) == 8
    wanted = {"design", "n", "rho", "method", "preset", "seed", "structural_mse", "structural_mse_in_support"}
    assert wanted | {"seconds", "cpu_seconds", "status", "versions"} <= set(rows[0])
    assert {row["seed"] for row in rows} == {5, 6}

    table = bgmiv("bench", "show", store)
    assert table.exit_code == 0
    assert table.output.count("tsls") == 4
    assert "±" in table.output
    assert bgmiv("bench", "show", store, "--rows").output.count("tsls") == 12


def test_a_second_run_has_nothing_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("bench", "run", "--n", 100, "--methods", "tsls", "--store", tmp_path)
    assert bgmiv(*arguments).exit_code == 0
    monkeypatch.setattr(runner, "run_one", lambda *_: pytest.fail("it ran again"))
    again = bgmiv(*arguments)
    assert again.exit_code == 0
    assert "1 done before, 0 to run" in again.output


def test_a_failed_fit_is_kept_and_reported(tmp_path: Path) -> None:
    done = bgmiv("bench", "run", "--design", "vector-proxy", "--n", 100, "--methods", "tsls", "--store", tmp_path)
    assert done.exit_code == 1
    assert "1 of 1 fits failed" in done.output
    (row,) = json.loads(bgmiv("bench", "show", tmp_path, "--json").stdout)
    assert row["status"] == "failed"
    assert "785 covariate columns" in row["error"]
    assert "failed" in bgmiv("bench", "show", tmp_path, "--rows").output


def test_a_damaged_row_is_run_again(tmp_path: Path) -> None:
    arguments = ("bench", "run", "--n", 100, "--methods", "tsls", "--store", tmp_path)
    bgmiv(*arguments)
    (path,) = tmp_path.glob("*.json")
    path.write_text("{")
    shown = bgmiv("bench", "show", tmp_path)
    assert shown.exit_code == 1
    assert "damaged; delete it" in shown.output
    again = bgmiv(*arguments)
    assert again.exit_code == 0
    assert "damaged" in again.output
    assert bgmiv("bench", "show", tmp_path).exit_code == 0


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    real = runner.run_one

    def interrupted(spec: runner.RunSpec, reporter: object) -> object:
        if len(seeds) == 1:
            raise KeyboardInterrupt
        seeds.append(spec.seed)
        return real(spec)

    arguments = ("bench", "run", "--n", 100, "--methods", "tsls", "--repeats", 3, "--store", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(runner, "run_one", interrupted)
        stopped = bgmiv(*arguments)
    assert stopped.exit_code == 130
    assert "run the same command again to go on" in stopped.output
    assert len(list(tmp_path.glob("*.json"))) == 1
    again = bgmiv(*arguments)
    assert "1 done before, 2 to run" in again.output
    assert again.exit_code == 0


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
        ("--workers", "0", "0 is too small; choose 1 or more"),
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
        done = bgmiv("bench", "run", "--methods", "tsls", "--n", 100, "--store", store)
        assert done.exit_code == 2
        assert "--store" in done.output
    assert bgmiv("bench", "show", tmp_path / "file").exit_code == 2


def test_an_empty_store(tmp_path: Path) -> None:
    assert json.loads(bgmiv("bench", "show", tmp_path, "--json").stdout) == []
    assert "No rows" in bgmiv("bench", "show", tmp_path).output
