"""Twenty awkward CSV files: each is read rightly, or refused with the option that fixes it, and then read rightly."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner, Result
from typer.main import get_command

from bgmiv import TSLS
from bgmiv.cli.main import app

N = 40
RNG = np.random.default_rng(0)
W, V, U = (np.round(values, 2) for values in RNG.normal(size=(3, N)))
X = np.round(W + V + U, 2)
Y = np.round(2.0 * X + V - U, 2)
TABLE: dict[str, Any] = {"y": Y, "x": X, "w": W, "v": V, "town": np.where(np.arange(N) % 3 == 0, "Orléans", "Lyon")}
ROLES = ("--outcome", "y", "--treatment", "x", "--instruments", "w", "--covariates", "v,town")
SLOPE = TSLS().fit_table(TABLE, outcome="y", treatment="x", instruments="w", covariates=["v", "town"]).fitted_.slope
COMMAND: Any = get_command(app)


def lines(sep: str = ",", decimal: str = ".", **changes: Any) -> str:
    columns = TABLE | changes
    rows = [list(columns), *zip(*(map(str, column) for column in columns.values()), strict=True)]
    return "".join(
        sep.join(cell.replace(".", decimal) if i else cell for cell in row) + "\n" for i, row in enumerate(rows)
    )


def holed(word: str) -> str:
    """The file with one row more, in which v is missing."""
    return lines() + f"1.0,2.0,3.0,{word},Lyon\n"


class File(NamedTuple):
    """What is in a file; the option that an error names, none if it is read at once; and further options it takes."""

    name: str
    content: str | bytes
    fix: str = ""
    more: tuple[str, ...] = ()


DROP = ("--missing", "drop")
FLAGS = (np.arange(N) % 2).astype(int)
FILES = [
    File("semicolons", lines(";"), "--delimiter ';'"),
    File("semicolons and decimal commas", lines(";", ","), "--delimiter ';'", ("--decimal", ",")),
    File("decimal commas, once the delimiter is said", lines(";", ","), "--decimal ','", ("--delimiter", ";")),
    File("tabs", lines("\t"), "--delimiter '\\t'"),
    File("bars", lines("|"), "--delimiter '|'"),
    File("byte order mark", "\ufeff" + lines()),
    File("byte order mark and semicolons", "\ufeff" + lines(";"), "--delimiter ';'"),
    File("latin-1", lines().encode("latin-1"), "--encoding 'latin-1'"),
    File("Windows", lines().replace("Lyon", "Œuf").encode("cp1252"), "", ("--encoding", "cp1252")),
    File("UTF-16", lines().encode("utf-16"), "--encoding 'utf-16'"),
    File("NA", holed("NA"), "--missing drop"),
    File("an empty field", holed(""), "--missing drop"),
    File("a full stop", holed("."), "--na '.'", DROP),
    File("minus nine in words", holed("none given"), "--na 'none given'", DROP),
    File("a spreadsheet's error", holed("#DIV/0!"), "--na '#DIV/0!'", DROP),
    File("old Mac line ends", lines().replace("\n", "\r")),
    File("quoted fields", re.sub(r"[^,\n]+", r'"\g<0>"', lines())),
    File("row labels", "".join(f"{i},{row}\n" if i else f",{row}\n" for i, row in enumerate(lines().splitlines()))),
    File("a column of 0 and 1", lines(v=FLAGS), "", ()),
    File("a treatment of 1 and 2", lines(x=1 + FLAGS), "", ()),
]
SAME = [file for file in FILES if file.name not in ("a column of 0 and 1", "a treatment of 1 and 2", "Windows")]


def bgmiv(*options: str) -> Result:
    arguments = ("fit", "d.csv", *ROLES, "--method", "tsls", "--json", *options)
    return CliRunner().invoke(COMMAND, list(arguments), env={"COLUMNS": "300"})


def read(done: Result) -> dict[str, Any]:
    # 3 says that the file was read and the fit failed its checks, which some of these small tables do.
    assert done.exit_code in (0, 3), done.output
    return json.loads(done.stdout)["analysis"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(file: File) -> None:
    Path("d.csv").write_bytes(file.content.encode() if isinstance(file.content, str) else file.content)


def test_there_are_twenty() -> None:
    assert len({file.name for file in FILES}) == 20


@pytest.mark.parametrize("file", SAME, ids=lambda file: file.name)
def test_read_rightly_or_with_the_option_that_is_named(file: File) -> None:
    write(file)
    done = bgmiv(*file.more)
    if file.fix:
        assert done.exit_code in (1, 2), done.output
        assert file.fix in done.stderr
        done = bgmiv(*shlex.split(file.fix), *file.more)
    effect = read(done)["effects"][0]
    assert effect["estimate"] / (effect["t1"] - effect["t0"]) == pytest.approx(SLOPE)


def test_zeros_and_ones_are_binary_in_one_line() -> None:
    write(next(file for file in FILES if file.name == "a column of 0 and 1"))
    done = bgmiv()
    assert [column["kind"] for column in read(done)["question"]["columns"] if column["name"] == "v"] == ["binary"]
    notes = [line for line in done.stderr.splitlines() if "0 and 1" in line]
    assert len(notes) == 1
    assert notes[0].startswith("Note: taken as binary")
    assert "--kind v=continuous" in notes[0]


def test_a_treatment_of_1_and_2_is_asked_about() -> None:
    write(next(file for file in FILES if file.name == "a treatment of 1 and 2"))
    done = bgmiv()
    assert "treatment 'x' has two values only, 1 and 2" in done.stderr
    assert "--kind x=categorical" in done.stderr
    asked = read(bgmiv("--kind", "x=categorical"))
    assert sorted(asked["question"]["treatment_levels"]) == ["1", "2"]


def test_another_page_of_codes_is_read_once_it_is_said() -> None:
    write(next(file for file in FILES if file.name == "Windows"))
    refused = bgmiv()
    assert refused.exit_code == 1
    assert "'cp1252' for a file from Windows" in refused.stderr
    assert "Œuf" in str(read(bgmiv("--encoding", "cp1252"))["question"]["columns"])
