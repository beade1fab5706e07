"""Files and options that cannot be used: an exit code, one line that names the cause, nothing written."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner, Result
from typer.main import get_command

import bgmiv as library
from bgmiv.cli.main import app
from bgmiv.errors import DataError

FORMULA = "sales ~ season + region + [price ~ cost]"

# Built once: building it takes longer than most commands.
COMMAND: Any = get_command(app)


def bgmiv(*arguments: object) -> Result:
    return CliRunner().invoke(COMMAND, [str(argument) for argument in arguments], env={"COLUMNS": "300"})


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
        "in 'season' (1), in 1 of 60 rows (line 2). Fill them, or leave such rows out with --missing drop",
    ),
    Bad("infinity", changed("price", first("inf")), BY_FORMULA, 1, "'price' has 1 infinite value (line 2)"),
    Bad("numbers with words", changed("sales", first("many")), BY_FORMULA, 1, "outcome 'sales'"),
    Bad(
        "strings as instrument",
        changed("cost", lambda old: ["a", "b"] * 30),
        BY_NAME,
        1,
        "instrument 'cost' holds strings",
    ),
    Bad("ragged", GOOD + "1,2\n", BY_FORMULA, 1, "cannot be read as csv: line 62 has 2 fields"),
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
    Bad(
        "unknown method",
        GOOD,
        (*BY_FORMULA, "--method", "ols"),
        2,
        "for '--method': 'ols' is unknown; there are bgm-iv",
    ),
    Bad("unknown preset", GOOD, (*BY_FORMULA, "--preset", "fast"), 2, "for '--preset': 'fast' is unknown; there are"),
    Bad("unknown kind", GOOD, (*BY_FORMULA, "--kind", "season=number"), 2, "COLUMN=KIND"),
    Bad("kind of no column", GOOD, (*BY_FORMULA, "--kind", "saison=binary"), 1, "--kind saison: no covariate"),
    Bad("level", GOOD, (*BY_FORMULA, "--level", "95"), 2, "--level"),
    Bad("level that rounds to 0", GOOD, (*BY_FORMULA, "--level", "1e-300"), 2, "--level"),
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
        ("folder.csv", "folder.csv: it is a folder"),
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
    other, foreign, more_files = tmp_path / "other.csv", tmp_path / "foreign", tmp_path / "more"
    other.write_text(GOOD)
    for folder, content in ((foreign, '{"layers": 3}'), (more_files, '{"format": "bgmiv model"}')):
        folder.mkdir()
        (folder / "model.json").write_text(content)
    (more_files / "notes.txt").write_text("mine")
    refused = [
        (folder, "is not the folder of a saved model, or holds other files too")
        for folder in (full, foreign, more_files)
    ]
    for out, words in (*refused, (other, "is a file; name a folder"), (file, "is read by this command")):
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


OUTPUTS = {
    "the data": ("data.csv", "is read by this command"),
    "the data by a link": ("link.csv", "is read by this command"),
    "the data by dots": ("fit/../data.csv", "is read by this command"),
    "a file that is there": ("page.html", "page.html exists; name another file or give --overwrite"),
    "a device": ("/dev/null", "is a device or a pipe"),
    "a link to itself": ("loop.html", "or links to itself"),
    "a link to no folder": ("astray.html", "nowhere does not exist"),
}


@pytest.mark.parametrize("case", OUTPUTS)
@pytest.mark.parametrize(
    "command",
    [
        ("fit", "data.csv", "--formula", FORMULA, "--method", "tsls", "--report"),
        ("predict", "fit", "data.csv", "--treatment", "1", "--out"),
        ("report", "fit", "--out"),
    ],
    ids=lambda command: command[0],
)
def test_outputs_never_replace_inputs(
    command: tuple[str, ...], case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.csv").write_text(GOOD)
    Path("fit").mkdir()
    Path("page.html").write_text("mine")
    Path("link.csv").symlink_to("data.csv")
    Path("loop.html").symlink_to("loop.html")
    Path("astray.html").symlink_to("nowhere/page.html")
    out, words = OUTPUTS[case]
    if command[0] == "report" and "data" in case:
        out, words = "fit/model.json", "is read by this command"
    more = [] if "there" in case else ["--overwrite"]
    done = bgmiv(*command, out, *more)
    assert done.exit_code == 2
    assert words in " ".join(done.output.replace("│", " ").split())
    assert Path("data.csv").read_text() == GOOD
    assert Path("page.html").read_text() == "mine"
    assert not any(Path("fit").iterdir())


@pytest.mark.parametrize(
    ("one", "other"), [("--report", "out/page.html"), ("--checkpoint", "out"), ("--checkpoint", "out/part")]
)
def test_outputs_are_kept_apart(one: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.csv").write_text(GOOD)
    done = bgmiv("fit", "data.csv", *BY_FORMULA, "--out", "out", one, other)
    assert done.exit_code == 2
    assert "are in one place" in " ".join(done.output.replace("│", " ").split())


LATIN = ("--encoding", "latin-1")
AWKWARD: dict[str, tuple[bytes, tuple[str, ...], str]] = {
    "semicolons": (GOOD.replace(",", ";").encode(), ("--delimiter", ";"), "Say --delimiter ';'"),
    "tabs": (GOOD.replace(",", "\t").encode(), ("--delimiter", "\\t"), r"Say --delimiter '\t'"),
    "decimal commas": (
        GOOD.replace(",", ";").replace(".", ",").encode(),
        ("--delimiter", ";", "--decimal", ","),
        "Say --delimiter ';'",
    ),
    "latin-1 values": (
        GOOD.replace("north", "nörd").encode("latin-1"),
        ("--encoding", "latin-1"),
        "Say --encoding 'lat",
    ),
    "latin-1 header": (
        GOOD.replace("cost", "coût").encode("latin-1"),
        ("--encoding", "latin-1"),
        "line 1 is not in UTF-8",
    ),
    "utf-32": (GOOD.encode("utf-32"), ("--encoding", "utf-32"), "Say --encoding 'utf-32'"),
    "utf-16": (GOOD.encode("utf-16"), ("--encoding", "utf-16"), "Say --encoding 'utf-16'"),
    "a point for missing": (changed("season", first(".")).encode(), ("--na", ".", "--missing", "drop"), "--na '.'"),
    "a spreadsheet's error": (
        changed("sales", first("#N/A")).encode(),
        ("--na", "#N/A", "--missing", "drop"),
        "outcome 'sales' holds numbers, but '#N/A' is not one: 1 value (line 2) to correct",
    ),
    "a byte order mark": (b"\xef\xbb\xbf" + GOOD.encode(), (), ""),
    "NA": (changed("season", first("NA")).encode(), ("--missing", "drop"), "--missing drop"),
    "a word in brackets": (
        changed("sales", first("'[none]")).encode(),
        ("--na", "'[none]", "--missing", "drop"),
        """--na "'[none]" reads it""",
    ),
    "quoted line breaks": (GOOD.replace("north", '"no\nrth"').encode(), (), ""),
    "old Mac line ends": (GOOD.replace("\n", "\r").encode(), (), ""),
}


@pytest.mark.parametrize("case", AWKWARD)
def test_awkward_files_are_read_or_the_message_names_the_option(case: str, tmp_path: Path) -> None:
    content, options, words = AWKWARD[case]
    file = tmp_path / "data.csv"
    file.write_bytes(content)
    formula = FORMULA.replace("cost", "`coût`") if "header" in case else FORMULA
    command = ("fit", file, "--formula", formula, "--method", "tsls", "--json")
    done = bgmiv(*command, *options)
    assert done.exit_code == 0, done.output
    if words:
        refused = bgmiv(*command)
        assert refused.exit_code == 1
        assert words in refused.stderr


def test_a_file_with_surplus_fields_never_shifts_its_columns(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    header, *lines = GOOD.splitlines()
    file.write_text("\n".join([header, *(f"7,{line}" for line in lines)]))
    done = bgmiv("fit", file, *BY_FORMULA, "--method", "tsls")
    assert done.exit_code == 1
    assert "line 2 has 6 fields, and the file has 5 columns" in done.stderr


def test_messages_name_the_line_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    header, *lines = GOOD.splitlines()
    price = header.split(",").index("price")
    cells = lines[4].split(",")
    cells[price] = "inf"
    # A blank line, a line break in quotes, and a row that is left out stand before it.
    noted = [f"{header},note", f"{lines[0]},a", "", f'{lines[1]},"b\nc"', f"{lines[2]},", f"{','.join(cells)},d"]
    file.write_text("\n".join([*noted, *(f"{line},e" for line in lines[5:])]))
    assert file.read_text().splitlines()[6].endswith(",d")
    command = ("fit", file, "--outcome", "sales", "--treatment", "price", "--instruments", "cost", "--clusters", "note")
    done = bgmiv(*command, "--method", "tsls")
    assert "in 1 of 59 rows (line 6)" in done.stderr
    done = bgmiv(*command, "--method", "tsls", "--missing", "drop")
    assert "treatment 'price' has 1 infinite value (line 7)" in done.stderr


STEPS = {
    "analysis": ("bgmiv.analysis.build.diagnose", DataError("singular"), "Error: singular"),
    "report": ("bgmiv.analysis.page.write_whole", OSError(28, "No space left"), "No space left"),
    "interrupt": ("bgmiv.analysis.build.diagnose", KeyboardInterrupt(), "Interrupted"),
}


@pytest.mark.parametrize("out", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_a_fit_outlives_what_fails_after_it(
    step: str, out: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, error, words = STEPS[step]

    def fail(*_: object, **__: object) -> None:
        raise error

    file = tmp_path / "data.csv"
    file.write_text(GOOD)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(target, fail)
    folder = ("--out", tmp_path / "fit") if out else ()
    done = bgmiv("fit", file, *BY_FORMULA, "--method", "tsls", "--report", tmp_path / "page.html", *folder)
    assert done.exit_code == (130 if step == "interrupt" else 1)
    assert words in done.stderr
    named = next(line for line in done.stderr.splitlines() if line.startswith("model: ")).removeprefix("model: ")
    assert (named == str(tmp_path / "fit")) == out
    kept = library.load(named)
    effect = kept.ate({"season": [0.0], "region": ["north"]}, t0=0.0, t1=1.0)
    assert effect == pytest.approx(kept.fitted_.slope)
    assert ("ffect" in done.stdout) == (step == "report")


def test_a_fit_whose_folder_vanishes_is_saved_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, out = tmp_path / "data.csv", tmp_path / "fit"
    file.write_text(GOOD)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = library.TSLS._fit

    def then_taken(self: library.TSLS, *arguments: Any, **more: Any) -> library.TSLS:
        out.write_text("taken meanwhile")
        return before(self, *arguments, **more)

    monkeypatch.setattr(library.TSLS, "_fit", then_taken)
    done = bgmiv("fit", file, *BY_FORMULA, "--method", "tsls", "--out", out, "--level", 0.9)
    assert done.exit_code == 1
    named, error = done.stderr.splitlines()[-2:]
    assert error == f"Error: {out} is a file; give the name of a folder."
    kept = library.load(named.removeprefix("model: "))
    assert str(kept.analysis()) in done.stdout
    assert kept.analysis().level == 0.9
    assert out.read_text() == "taken meanwhile"
