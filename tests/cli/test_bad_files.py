"""Files and options that cannot be used: an exit code, one line that names the cause, nothing written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from bgmiv.cli.main import app

FORMULA = "sales ~ season + region + [price ~ cost]"


def bgmiv(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "300"})


def table(n: int = 60) -> dict[str, list[object]]:
    rng = np.random.default_rng(0)
    cost, season, shock = rng.normal(size=(3, n))
    price = cost + season + shock
    return {
        "sales": (season - 2 * price + shock).tolist(),
        "price": price.tolist(),
        "cost": cost.tolist(),
        "season": season.tolist(),
        "region": ["north" if value > 0 else "south" for value in rng.normal(size=n)],
    }


def csv(columns: dict[str, list[object]]) -> str:
    rows = zip(*columns.values(), strict=True)
    return "\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n"


def changed(column: str, change: Callable[[list[object]], list[object]]) -> str:
    columns = table()
    columns[column] = change(columns[column])
    return csv(columns)


def first(value: object) -> Callable[[list[object]], list[object]]:
    return lambda values: [value, *values[1:]]


class Bad(NamedTuple):
    """What is in the file, the options besides, and what comes of it."""

    name: str
    content: str | bytes
    options: tuple[str, ...]
    code: int
    words: str


GOOD = csv(table())
BY_NAME = ("--outcome", "sales", "--treatment", "price", "--instruments", "cost")
FITS = [
    Bad("missing column", GOOD, ("--formula", "sales ~ seasons + [price ~ cost]"), 1, "no column 'seasons'. Did you mean 'season'"),
    Bad("missing column by name", GOOD, (*BY_NAME, "--covariates", "season,regions"), 1, "no column 'regions'"),
    Bad("empty field", changed("season", first("")), ("--formula", FORMULA), 1, "missing values in 'season' (1), in 1 of 60 rows. Fill them, or leave such rows out with --missing drop"),
    Bad("NaN", changed("sales", first("NaN")), ("--formula", FORMULA), 1, "missing values in 'sales'"),
    Bad("infinity", changed("price", first("inf")), ("--formula", FORMULA), 1, "'price' has 1 infinite value (row 0)"),
    Bad("infinite covariate", changed("season", first("-inf")), ("--formula", FORMULA), 1, "'season' has 1 infinite value"),
    Bad("constant treatment", changed("price", lambda old: [3.0] * len(old)), ("--formula", FORMULA), 1, "treatment 'price' is constant"),
    Bad("constant instrument", changed("cost", lambda old: [3.0] * len(old)), ("--formula", FORMULA), 1, "'cost' is constant"),
    Bad("numbers with words", changed("sales", first("many")), ("--formula", FORMULA), 1, "outcome 'sales'"),
    Bad("strings as instrument", changed("cost", lambda old: ["a", "b"] * 30), BY_NAME, 1, "instruments column 'cost' holds strings"),
    Bad("words as numbers", changed("season", lambda old: [f"{i}x" for i in range(60)]), ("--formula", FORMULA), 1, "'season'"),
    Bad("huge numbers", changed("price", first(1e300)), ("--formula", FORMULA), 1, "overflows single precision"),
    Bad("ragged", GOOD + "1,2\n", ("--formula", FORMULA), 1, "cannot be read as csv"),
    Bad("duplicated header", GOOD.replace("season", "cost", 1), ("--formula", "sales ~ [price ~ cost]"), 1, "duplicated column names, cost"),
    Bad("empty file", "", ("--formula", FORMULA), 1, "cannot be read as csv"),
    Bad("header only", "sales,price,cost,season,region\n", ("--formula", FORMULA), 1, "no rows"),
    Bad("one row", "\n".join(GOOD.splitlines()[:2]), BY_NAME, 1, "one row"),
    Bad("binary garbage", b"\x00\xff\xfe\x80" * 50, ("--formula", FORMULA), 1, ""),
    Bad("same column twice", GOOD, ("--formula", "sales ~ cost + [price ~ cost]"), 1, "cost"),
    Bad("outcome as covariate", GOOD, ("--formula", "sales ~ sales + [price ~ cost]"), 1, "sales"),
    Bad("formula without bracket", GOOD, ("--formula", "sales ~ season"), 2, "no bracket"),
    Bad("formula half open", GOOD, ("--formula", "sales ~ season + [price ~ cost"), 2, "never closed"),
    Bad("formula that calls", GOOD, ("--formula", "sales ~ __import__('os').getcwd() + [price ~ cost]"), 1, "formula"),
    Bad("no roles", GOOD, (), 2, "say who is who"),
    Bad("no treatment", GOOD, ("--outcome", "sales", "--instruments", "cost"), 2, "--treatment"),
    Bad("both ways", GOOD, ("--formula", FORMULA, "--outcome", "sales"), 2, "not both"),
    Bad("unknown method", GOOD, ("--formula", FORMULA, "--method", "ols"), 2, "'ols' is no method; there are bgm-iv"),
    Bad("unknown preset", GOOD, ("--formula", FORMULA, "--preset", "fast"), 2, "'fast' is no preset"),
    Bad("unknown missing", GOOD, ("--formula", FORMULA, "--missing", "fill"), 2, "'fill' is neither raise nor drop"),
    Bad("unknown kind", GOOD, ("--formula", FORMULA, "--kind", "season=number"), 2, "COLUMN=KIND"),
    Bad("kind of no column", GOOD, ("--formula", FORMULA, "--kind", "saison=binary"), 1, "saison"),
    Bad("level", GOOD, ("--formula", FORMULA, "--level", "95"), 2, "--level"),
    Bad("seed", GOOD, ("--formula", FORMULA, "--seed", "-1"), 2, "--seed"),
    Bad("members", GOOD, ("--formula", FORMULA, "--members", "0"), 2, "--members"),
    Bad("unknown weights", GOOD, ("--formula", FORMULA, "--weights", "pw"), 1, "no column 'pw'"),
    Bad("negative weights", GOOD, ("--formula", FORMULA, "--weights", "season"), 1, "season"),
    Bad("unknown by", GOOD, ("--formula", FORMULA, "--by", "sex"), 1, "no column 'sex'"),
    Bad("report in no folder", GOOD, ("--formula", FORMULA, "--report", "nowhere/page.html"), 2, "nowhere"),
    Bad("members of tsls", GOOD, ("--formula", FORMULA, "--method", "tsls", "--members", "2"), 2, "--members"),
]  # fmt: skip


@pytest.mark.parametrize("bad", FITS, ids=lambda bad: bad.name)
def test_fit_refuses_and_writes_nothing(bad: Bad, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "data.csv"
    file.write_bytes(bad.content if isinstance(bad.content, bytes) else bad.content.encode())
    folder = () if "--method" in bad.options else ("--out", "fit")
    done = bgmiv("fit", "data.csv", *folder, *bad.options)
    text = " ".join(done.output.replace("│", " ").split())
    assert done.exit_code == bad.code, text
    assert bad.words in text
    assert "Traceback" not in text
    assert isinstance(done.exception, SystemExit)
    if bad.code == 1:
        assert done.stderr.startswith("Error: ")
        assert done.stderr.count("\n") == 1
        assert done.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["data.csv"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent.csv", "absent.csv: there is no such file"),
        ("folder.csv", "folder.csv: there is no such file"),
        ("notes.txt", "neither CSV nor Parquet by its name"),
        ("data.parquet", "cannot be read as parquet"),
    ],
)
def test_files_that_are_none(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for file in ("notes.txt", "data.parquet"):
        (tmp_path / file).write_text(GOOD)
    done = bgmiv("fit", tmp_path / name, "--formula", FORMULA, "--out", tmp_path / "fit")
    assert done.exit_code == 1
    assert words in done.stderr
    assert not (tmp_path / "fit").exists()


def test_folders_that_may_not_be_written(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text(GOOD)
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.txt").write_text("years of work")
    for out, words in ((full, "something else than a saved model"), (file, "is a file; name a folder")):
        for more in ([], ["--overwrite"]):
            done = bgmiv("fit", file, "--formula", FORMULA, "--out", out, *more)
            assert done.exit_code == 2
            assert words in " ".join(done.output.replace("│", " ").split())
    assert (full / "thesis.txt").read_text() == "years of work"
    done = bgmiv("fit", file, "--formula", FORMULA, "--method", "tsls", "--out", tmp_path / "new")
    assert done.exit_code == 2
    assert "fits of tsls are not saved" in " ".join(done.output.replace("│", " ").split())


@pytest.mark.parametrize(
    "command",
    [
        ("predict", "{folder}", "{file}"),
        ("effect", "{folder}", "--t0", "0", "--t1", "1"),
        ("diagnose", "{folder}"),
        ("report", "{folder}", "--out", "{page}"),
    ],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize("kind", ["absent", "empty", "other", "damaged"])
def test_folders_that_hold_no_model(command: tuple[str, ...], kind: str, tmp_path: Path) -> None:
    folder, file, page = tmp_path / "fit", tmp_path / "data.csv", tmp_path / "page.html"
    file.write_text(GOOD)
    if kind != "absent":
        folder.mkdir()
    if kind == "other":
        (folder / "notes.txt").write_text("x")
    if kind == "damaged":
        (folder / "model.json").write_text('{"format": "bgmiv-model", ')
    done = bgmiv(*(part.format(folder=folder, file=file, page=page) for part in command))
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: ")
    assert str(folder) in done.stderr
    assert done.stdout == ""
    assert not page.exists()
