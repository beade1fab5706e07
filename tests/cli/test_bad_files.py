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
BY_FORMULA = ("--formula", FORMULA)
BY_NAME = ("--outcome", "sales", "--treatment", "price", "--instruments", "cost")
FITS = [
    Bad(
        "missing column",
        GOOD,
        ("--formula", "sales ~ seasons + [price ~ cost]"),
        1,
        "no column 'seasons'. Did you mean 'season'",
    ),
    Bad(
        "empty field",
        changed("season", first("")),
        BY_FORMULA,
        1,
        "in 'season' (1), in 1 of 60 rows. Fill them, or leave such rows out with --missing drop",
    ),
    Bad("infinity", changed("price", first("inf")), BY_FORMULA, 1, "'price' has 1 infinite value (row 0)"),
    Bad("numbers with words", changed("sales", first("many")), BY_FORMULA, 1, "outcome 'sales'"),
    Bad(
        "strings as instrument",
        changed("cost", lambda old: ["a", "b"] * 30),
        BY_NAME,
        1,
        "instruments column 'cost' holds strings",
    ),
    Bad("ragged", GOOD + "1,2\n", BY_FORMULA, 1, "cannot be read as csv: line 62 ends before column 'cost'"),
    Bad(
        "duplicated header",
        GOOD.replace("season", "cost", 1),
        ("--formula", "sales ~ [price ~ cost]"),
        1,
        "columns 3 and 4 have the same name, 'cost'",
    ),
    Bad("empty file", "", BY_FORMULA, 1, "cannot be read as csv"),
    Bad("binary garbage", b"\x00\xff\xfe\x80" * 50, BY_FORMULA, 1, ""),
    Bad("formula without bracket", GOOD, ("--formula", "sales ~ season"), 2, "no bracket"),
    Bad("formula that calls", GOOD, ("--formula", "sales ~ __import__('os').getcwd() + [price ~ cost]"), 1, "formula"),
    Bad("no roles", GOOD, (), 2, "say which column is which"),
    Bad("both ways", GOOD, (*BY_FORMULA, "--outcome", "sales"), 2, "not both"),
    Bad("unknown method", GOOD, (*BY_FORMULA, "--method", "ols"), 2, "unknown method 'ols'; there are bgm-iv"),
    Bad("unknown preset", GOOD, (*BY_FORMULA, "--preset", "fast"), 2, "unknown preset 'fast'; there are"),
    Bad("unknown kind", GOOD, (*BY_FORMULA, "--kind", "season=number"), 2, "COLUMN=KIND"),
    Bad("kind of no column", GOOD, (*BY_FORMULA, "--kind", "saison=binary"), 1, "saison"),
    Bad("level", GOOD, (*BY_FORMULA, "--level", "95"), 2, "--level"),
    Bad("members", GOOD, (*BY_FORMULA, "--members", "0"), 2, "--members"),
    Bad("unknown by", GOOD, (*BY_FORMULA, "--by", "sex"), 1, "no column 'sex'"),
    Bad("report in no folder", GOOD, (*BY_FORMULA, "--report", "nowhere/page.html"), 2, "nowhere"),
    Bad("members of tsls", GOOD, (*BY_FORMULA, "--method", "tsls", "--members", "2"), 2, "--members"),
]


@pytest.mark.parametrize("bad", FITS, ids=lambda bad: bad.name)
def test_fit_refuses_and_writes_nothing(bad: Bad, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "data.csv"
    file.write_bytes(bad.content if isinstance(bad.content, bytes) else bad.content.encode())
    method = () if {"--method", "--preset", "--members"} & set(bad.options) else ("--method", "tsls")
    done = bgmiv("fit", "data.csv", "--out", "fit", *method, *bad.options)
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
    done = bgmiv("fit", tmp_path / name, "--formula", FORMULA, "--method", "tsls", "--out", tmp_path / "fit")
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


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("absent", ("predict", "{folder}", "{file}")),
        ("empty", ("effect", "{folder}", "--t0", "0", "--t1", "1")),
        ("other", ("diagnose", "{folder}")),
        ("damaged", ("report", "{folder}", "--out", "{page}")),
        ("damaged", ("predict", "{folder}", "{file}")),
    ],
    ids=str,
)
def test_folders_that_hold_no_model(kind: str, command: tuple[str, ...], tmp_path: Path) -> None:
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
