"""Odd CSV files, paths and formulas through the command line: the right numbers or one line that says why not."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from typer.main import get_command

from bgmiv import TSLS, read_table
from bgmiv.cli.main import app

N = 60
rng = np.random.default_rng(0)
W, V, U = (rng.integers(0, top, N) for top in (60, 20, 20))
X = W // 2 + V + U
BASE = {"y": (3 * X // 2 + V + 20 - U).tolist(), "x": X.tolist(), "w": W.tolist(), "v": V.tolist()}
SLOPE = TSLS().fit_table(BASE, outcome="y", treatment="x", instruments="w", covariates="v").fitted_.slope
NAMES = ("--outcome", "y", "--treatment", "x", "--instruments", "w", "--covariates", "v", "--method", "tsls")


def text(columns: dict[str, list[object]]) -> str:
    return (
        "\n".join([",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]) + "\n"
    )


GOOD = text(BASE)
HEAD, *LINES = GOOD.splitlines()


def cells(change: Callable[[str], str]) -> str:
    return "\n".join([HEAD, *(",".join(map(change, line.split(","))) for line in LINES)])


def column(change: Callable[[int, int], object], name: str = "v") -> str:
    return text({**BASE, name: [change(i, value) for i, value in enumerate(BASE[name])]})


def one(word: str, name: str = "v") -> str:
    return column(lambda i, value: word if i == 2 else value, name)


def headed(names: str) -> str:
    return "\n".join([names, *LINES])


READ: dict[str, str | bytes] = {
    "no last line end": GOOD[:-1],
    "Windows line ends": GOOD.replace("\n", "\r\n"),
    "old Mac line ends": GOOD.replace("\n", "\r"),
    "mixed line ends": HEAD + "\r\n" + "\n".join(LINES),
    "turned line ends": GOOD.replace("\n", "\n\r"),
    "blank lines": "\n\n" + GOOD.replace("\n", "\n\n"),
    "all quoted": cells(lambda c: f'"{c}"'),
    "blanks around": cells(lambda c: f" {c} "),
    "tabs before": cells(lambda c: f"\t{c}"),
    "signs": cells(lambda c: f"+{c}"),
    "exponents": cells(lambda c: f"{float(c):E}"),
    "decimals": cells(lambda c: f"{c}.0"),
    "a point after": cells(lambda c: f"{c}."),
    "zeros before": cells(lambda c: f"00{c}"),
    "400 decimals": column(lambda i, v: f"{v}.{'0' * 400}"),
    "a byte order mark": "\ufeff" + GOOD,
    "utf-7 letters": GOOD.encode("utf-7"),
    "row labels": "\n".join(["," + HEAD, *(f"{i},{line}" for i, line in enumerate(LINES))]),
    "a quoted header": headed('"y","x","w","v"'),
    "2000 more columns": "\n".join(
        [HEAD + "".join(f",c{i}" for i in range(2000)), *(line + ",1" * 2000 for line in LINES)]
    ),
    "a long unused cell": "\n".join([HEAD + ",note", *(f'{line},"{"x" * 9000}\n"' for line in LINES)]),
}

BAD: dict[str, str | bytes] = {
    "a line of blanks": GOOD + "   \n",
    "only a header": HEAD,
    "one row": f"{HEAD}\n{LINES[0]}",
    "two rows": "\n".join([HEAD, *LINES[:2]]),
    "single quotes": cells(lambda c: f"'{c}'"),
    "percentages": cells(lambda c: f"{c}%"),
    "dollars": cells(lambda c: f"${c}"),
    "underscores": cells(lambda c: f"{c}_0"),
    "hexadecimal": cells(lambda c: hex(int(c))),
    "digits of another script": cells(lambda c: c.translate({48 + i: 0xFF10 + i for i in range(10)})),
    "hard blanks": cells(lambda c: f"{c}\xa0"),
    "thousands": cells(lambda c: f'"1,{int(c):03d}"'),
    "Fortran's exponents": cells(lambda c: f"{c}d0"),
    **{f"{word} in the outcome": one(word, "y") for word in ("inf", "-Infinity", "1e999", "nan", "NAN", "-nan")},
    **{f"{word!r} in a covariate": one(word) for word in ("NA", "None", "", " ", "-", ".", "?", "#N/A", "x", '"a,b"')},
    "an error of a spreadsheet": one("#DIV/0!", "x"),
    "a word at the end": column(lambda i, v: "x" if i == N - 1 else v),
    "dates": column(lambda i, v: f"2020-01-{i + 1:02d}"),
    "JSON": column(lambda i, v: '"{""a"": 1}"'),
    "whole numbers that floats round": column(lambda i, v: 10**20 + v),
    "denormal numbers": column(lambda i, v: f"{v}e-320"),
    "a constant": column(lambda i, v: 1),
    "an empty column": column(lambda i, v: ""),
    "two byte order marks": "\ufeff\ufeff" + GOOD,
    **{name: GOOD.encode(name) for name in ("utf-16", "utf-16-be", "utf-32", "cp500")},
    "latin-1 in the header": GOOD.replace("v", "ü", 1).encode("latin-1"),
    "latin-1 at the end": (GOOD + "é").encode("latin-1"),
    "gzip": gzip.compress(GOOD.encode()),
    "zip": b"PK\x03\x04" + bytes(50),
    "a picture": b"\x89PNG\r\n\x1a\n\0\0",
    "a PDF": b"%PDF-1.4\n%\xe2\xe3",
    "a web page": "<html><body>404</body></html>",
    "a JSON file": '{"a": [1,2]}',
    "Parquet": b"PAR1aaaaPAR1",
    "a zero byte": GOOD.replace("1", "\0", 1),
    "an end of file": GOOD + "\x1a",
    **{f"lines ended by {sign!a}": GOOD.replace("\n", sign) for sign in ("\x85", "\u2028", "\x0b", "\x0c\n")},
    **{f"fields parted by {sign!r}": GOOD.replace(",", sign) for sign in (";", "\t", "|", " ", ":")},
    "Excel's line": "sep=;\n" + GOOD.replace(",", ";"),
    "a comment": "# made by me\n" + GOOD,
    "a line of units": "\n".join([HEAD, "cm,kg,s,m", *LINES]),
    "a line of totals": GOOD + "Total,1,2,3\n",
    "a footer": GOOD + "source: me\n",
    "a short line": GOOD + "1,2\n",
    "a long line": GOOD + "1,2,3,4,5\n",
    "a short header": headed("y,x,w"),
    "commas after": "\n".join(f"{line}," for line in (HEAD, *LINES)),
    "commas after rows": "\n".join([HEAD, *(f"{line}," for line in LINES)]),
    "a name twice": headed("y,x,w,w"),
    "a name in capitals": headed("y,x,w,V"),
    "a blank name": headed("y,x,w, "),
    "no header": "\n".join(LINES),
    "blanks in the header": headed("y, x, w, v"),
    "a line break in a name": headed('y,x,w,"v\n"'),
    "a quote never closed": GOOD + '"1,2,3,4\n',
    "a quote before all": '"' + GOOD,
    "a quote inside": GOOD + '1,2,3,4"\n',
    "a quote and more": GOOD + '1,2,3,"4"x\n',
    "an escaped quote": GOOD + '1,2,3,"\\""\n',
    **{f"only {sign!a}": sign for sign in ("", "\n", ",", ",,,\n", '"', "\ufeff", "   ", "\r", "y")},
    "the header again": GOOD + GOOD,
}

PATHS_READ = [
    *("my data.csv", "dàtá 名.csv", "🦄.csv", "a\nb.csv", "D.CSV", "a.b.csv", ".csv", "%s.csv", "{x}.csv", "a'b\".csv"),
    *("*.csv", "~.csv", "a" * 251 + ".csv", os.fsdecode(b"\xff.csv"), "\x1b[31m.csv", "sub/d.csv", "sub/../d.csv"),
    *("-d.csv", "d.csv.gz", "link.csv", "d.CSV.GZ"),
]
PATHS_BAD = [
    "d.txt",
    "d",
    "d.tsv",
    "d.xlsx",
    "d.csv.bz2",
    "d.zip",
    "d.csv ",
    "none.csv",
    "a" * 300 + ".csv",
    "folder.csv",
    "loop.csv",
    "pipe.csv",
    "d.json",
]

# Built once: building it takes longer than most commands.
COMMAND: Any = get_command(app)


def bgmiv(*arguments: str) -> Result:
    return CliRunner().invoke(COMMAND, list(arguments), env={"COLUMNS": "200"})


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def write(file: str, content: str | bytes) -> None:
    data = content.encode() if isinstance(content, str) else content
    Path(file).write_bytes(gzip.compress(data) if file.lower().endswith(".gz") else data)


def check_refused(done: Result) -> None:
    assert done.exit_code == 1, done.output
    assert isinstance(done.exception, SystemExit)
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize("name", READ)
def test_files_that_are_read_rightly(name: str) -> None:
    write("d.csv", READ[name])
    found = TSLS().fit_table(read_table("d.csv"), outcome="y", treatment="x", instruments="w", covariates="v")
    assert found.fitted_.slope == pytest.approx(SLOPE)


@pytest.mark.parametrize("name", BAD)
def test_files_that_are_refused(name: str) -> None:
    write("d.csv", BAD[name])
    check_refused(bgmiv("fit", "d.csv", *NAMES))


@pytest.mark.parametrize("name", PATHS_READ, ids=ascii)
def test_paths_that_are_read(name: str) -> None:
    Path("sub").mkdir()
    if name == "link.csv":
        write("real.csv", GOOD)
        Path(name).symlink_to("real.csv")
    else:
        write(name, GOOD)
    assert read_table(name).to_dict("list") == BASE


@pytest.mark.parametrize("name", PATHS_BAD)
def test_paths_that_are_refused(name: str) -> None:
    Path("folder.csv").mkdir()
    Path("loop.csv").symlink_to("loop.csv")
    os.mkfifo("pipe.csv")
    special = ("folder.csv", "loop.csv", "pipe.csv")
    if name not in ("none.csv", "a" * 300 + ".csv", *special):
        write(name, GOOD)
    done = bgmiv("fit", *NAMES, "--", name)
    check_refused(done)
    assert ("a folder, a pipe or a broken link" in done.stderr) == (name in special)


def test_a_compressed_file_says_so() -> None:
    Path("d.csv").write_bytes(gzip.compress(GOOD.encode()))
    assert "Give it a name that ends in .csv.gz" in bgmiv("fit", *NAMES, "d.csv").stderr


def test_an_odd_path_all_the_way() -> None:
    name = os.fsdecode(b"\xff \n\x1b[31m.csv")
    write(name, GOOD)
    done = bgmiv("fit", *NAMES, "--out", "a b\n", "--report", "ü .html", "--json", "--", name)
    assert done.exit_code == 0, done.output
    effect = json.loads(done.stdout)["analysis"]["effects"][0]
    assert effect["estimate"] / (effect["t1"] - effect["t0"]) == pytest.approx(SLOPE)
    assert bgmiv("predict", "a b\n", name, "--out", "p .csv").exit_code == 0
    assert len(read_table("p .csv")) == N


DEEP = "(" * 500 + "v" + ")" * 500
FORMULAS_FIT = [
    *("v + v", "(v)", "((((v))))", DEEP, "{v}", "{v+1}", "`v`", "v\n ", "2:v", "I(-v)", "center(v)", "scale(v)", "v^2"),
    *("1 + v", "I(v*2)", "np.clip(v, 0, 99)", "v/v", "I(" + "(" * 150 + "v" + ")" * 150 + ")"),
]
FORMULAS_BAD = [
    *(
        "I(" + "-" * 3000 + "v)",
        "+",
        "v +",
        "v * ",
        "-",
        "2",
        "v**0",
        "v**-1",
        "v**1.5",
        "v**v",
        "log(-v-1)",
        "I(v/0)",
        "I(v//0)",
    ),
    *("I(v & w)", "I(~v)", "I(v < 'a')", "bs(v, df=-4)", "bs(v, df=4.5)", "bs(v, df='a')", "bs(v, knots=[1e308])"),
    *("poly(v, -1)", "poly(v, 90)", "cr(v, df=1)", "scale(v*0)", "np.where(v>3)", "np.power(v, 1e9)", "Q('v')"),
    *("np.exp(np.exp(np.exp(v)))", "I(v*" + "9" * 5000 + ")", "v %in% w", "v # x", "v; v", "λ", "v\0", "hashed(v)"),
    *(
        "lag(v)",
        "I(v if v else v)",
        "I(v := 3)",
        "I(f'{v}')",
        "I(v.shape)",
        "I(v[0])",
        "I(1/v)",
        "I(" + "-" * 3000 + "v)",
    ),
    *(
        "x",
        "np.log(x)",
        "y",
        "[v ~ w]",
        "v | w",
        "v ~ w",
        "v ~",
        "(v",
        "v)",
        "'v'",
        "`v",
        "0 + v",
        "v - 1",
        "np.random(v)",
    ),
]


@pytest.mark.parametrize("terms", [*FORMULAS_FIT, *FORMULAS_BAD], ids=lambda terms: ascii(terms)[:30])
def test_formulas(terms: str) -> None:
    formula = f"y ~ {terms} + [x ~ w]"
    if terms in FORMULAS_FIT:
        assert TSLS().fit_formula(formula, BASE).fitted_.slope == pytest.approx(SLOPE)
        return
    write("d.csv", GOOD)
    done = bgmiv("fit", "d.csv", "--formula", formula, "--method", "tsls")
    assert done.exit_code in (1, 2), done.output
    assert isinstance(done.exception, SystemExit)
    assert done.stdout == ""
