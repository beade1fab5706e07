"""From a file to a saved model, and what the other verbs make of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

import bgmiv as library
from bgmiv import TSLS
from bgmiv.bgm import config as bgm
from bgmiv.cli.main import app
from bgmiv.data.files import read_table
from bgmiv.errors import DivergedError

FORMULA = "sales ~ season + I(season**2) + region + [price ~ cost]"
rng = np.random.default_rng(1)
COST, SEASON, SHOCK = rng.normal(size=(3, 120))
PRICE = COST + SEASON + SHOCK
SALES = SEASON - 2 * PRICE + SHOCK
REGION = np.where(rng.random(120) < 0.5, "north", "south")


def bgmiv(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def said(done: Result) -> str:
    return " ".join(done.output.replace("│", " ").split())


def write(file: Path, **columns: object) -> Path:
    known = {"sales": SALES, "price": PRICE, "cost": COST, "season": SEASON, "region": REGION}
    table = {name: values for name, values in (known | columns).items() if values is not None}
    rows = zip(*table.values(), strict=True)
    file.write_text("\n".join([",".join(table), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return file


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def data(place: Path) -> Path:
    return write(place / "data.csv")


@pytest.fixture(scope="module")
def done(place: Path, data: Path) -> Result:
    """A fit by 2SLS: what the commands do with a folder does not depend on the method."""
    more = ["--method", "tsls", "--seed", 4, "--json", "--out", place / "fit", "--report", place / "page.html"]
    return bgmiv("fit", data, "--formula", FORMULA, *more)


@pytest.fixture(scope="module")
def folder(done: Result, place: Path) -> Path:
    assert done.exit_code == 0, done.output
    return place / "fit"


def test_fit_prints_one_json_object_and_writes_model_and_page(done: Result, folder: Path, place: Path) -> None:
    record = json.loads(done.stdout)
    assert record["model"] == str(folder)
    assert record["report"] == str(place / "page.html")
    assert (place / "page.html").read_text().startswith("<!doctype html>")
    analysis = record["analysis"]
    assert analysis["question"]["formula"] == FORMULA
    assert analysis["question"]["source"] == "data.csv"
    assert analysis["curves"][0]["group"]["label"] == "all rows"
    assert {curve["group"]["label"] for curve in analysis["curves"][1:]} == {"region = north", "region = south"}
    assert record["verdict"] == {"severity": "good", "reasons": [], "not_measured": []}


@pytest.fixture(scope="module")
def failed(place: Path, data: Path, small: bgm.BGMIVConfig) -> Iterator[tuple[Result, Path]]:
    """A training of next to nothing under the name of the default preset, which fails its held-out checks."""
    short = replace(
        small,
        initial=replace(small.initial, iterations=2, chunk=2),
        ensemble=replace(small.ensemble, members=2, held_out=0.5),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(bgm.PRESETS, "default", lambda: short)
        yield bgmiv("fit", data, "--formula", FORMULA, "--out", place / "failed", "--seed", 4), place / "failed"


@pytest.mark.parametrize(
    "command",
    [
        ["effect", "--t0", "0", "--t1", "1"],
        ["predict", "DATA", "--treatment", "0.5"],
        ["diagnose"],
        ["report", "--out", "PAGE"],
    ],
)
def test_a_failed_verdict_travels_with_every_output(
    failed: tuple[Result, Path], data: Path, tmp_path: Path, command: list[str]
) -> None:
    fit, folder = failed
    assert fit.exit_code == 3, fit.output
    assert "failed its held-out checks" in fit.stderr
    verb, *options = [str({"DATA": data, "PAGE": tmp_path / "page.html"}.get(word, word)) for word in command]
    told = bgmiv(verb, folder, *options)
    assert told.exit_code == 3
    assert "failed its held-out checks" in told.stderr
    again = ["--overwrite"] if verb == "report" else []
    record = json.loads(bgmiv(verb, folder, *options, *again, "--json").stdout)
    assert record["verdict"]["severity"] == "failed"
    assert record["verdict"]["reasons"]
    if verb == "report":
        assert "failed its held-out checks" in (tmp_path / "page.html").read_text()


def test_a_loaded_model_is_the_one_that_was_fitted(folder: Path, data: Path) -> None:
    model = library.load(folder)
    plain = TSLS().fit_formula(FORMULA, read_table(data))
    rows = {"season": SEASON[:3], "region": REGION[:3]}
    np.testing.assert_array_equal(model.predict(0.5, rows), plain.predict(0.5, rows))


def test_a_saved_model_is_replaced_only_when_told(folder: Path, data: Path) -> None:
    before = (folder / "model.json").read_bytes()
    refused = bgmiv("fit", data, "--formula", FORMULA, "--method", "tsls", "--out", folder)
    assert refused.exit_code == 2
    assert "Say --overwrite" in said(refused)
    assert (folder / "model.json").read_bytes() == before


def test_predict(folder: Path, data: Path, tmp_path: Path) -> None:
    model = library.load(folder)
    expected = model.predict_interval(1.5, {"season": SEASON, "region": REGION}, level=0.8)
    out = tmp_path / "predicted.csv"
    done = bgmiv("predict", folder, data, "--treatment", "1.5", "--level", "0.8", "--out", out)
    assert done.exit_code == 0, done.output
    assert done.stdout == ""
    found = np.genfromtxt(out, delimiter=",", names=True, dtype=None, encoding="utf-8")
    np.testing.assert_allclose(found["estimate"], expected.estimate)
    np.testing.assert_allclose(found["lower"], expected.lower)
    np.testing.assert_allclose(found["upper"], expected.upper)
    far = bgmiv("predict", folder, data, "--treatment", "1000", "--out", out, "--overwrite")
    assert "Warning: 0% of the rows are in the support" in " ".join(far.stderr.split())
    observed = json.loads(bgmiv("predict", folder, data, "--json").stdout)["rows"]
    np.testing.assert_allclose([row["treatment"] for row in observed], PRICE)
    other = write(tmp_path / "other.csv", price=None, dose=PRICE + 1)
    shifted = bgmiv("predict", folder, other, "--treatment-column", "dose")
    assert shifted.stdout.splitlines()[0] == "row,treatment,estimate,lower,upper,in_support"
    assert len(shifted.stdout.splitlines()) == 121


@pytest.mark.parametrize(
    ("columns", "options", "code", "words"),
    [
        ({"season": None}, ["--treatment", "1"], 1, "no column 'season'"),
        ({"price": None}, [], 1, "no column 'price'. Say --treatment VALUE"),
        ({"region": ["west", *REGION[1:]]}, ["--treatment", "1"], 1, "west"),
        ({"season": ["", *SEASON[1:]]}, ["--treatment", "1"], 1, "missing values in 'season'"),
        ({"season": ["inf", *SEASON[1:]]}, ["--treatment", "1"], 1, "infinite"),
        ({"season": ["warm", *SEASON[1:]]}, ["--treatment", "1"], 1, "season"),
        ({"price": ["low", *PRICE[1:]]}, [], 1, "treatment"),
        ({}, ["--treatment", "low"], 2, "'low' is not a finite number"),
        ({}, ["--treatment", "1_0"], 2, "'1_0' is not a finite number"),
        ({}, ["--treatment", "inf"], 2, "'inf' is not a finite number"),
        ({}, ["--treatment", "1", "--treatment-column", "price"], 2, "not both"),
        ({}, ["--treatment-column", "dose"], 1, "no column 'dose'"),
        ({}, ["--level", "2"], 2, "--level"),
    ],
)
def test_predict_refuses(
    folder: Path, tmp_path: Path, columns: dict[str, object], options: list[str], code: int, words: str
) -> None:
    file, out = write(tmp_path / "bad.csv", **columns), tmp_path / "predicted.csv"
    done = bgmiv("predict", folder, file, "--out", out, *options)
    assert done.exit_code == code, done.output
    assert words in said(done)
    assert "Traceback" not in done.output
    assert not out.exists()


def test_one_question_has_one_number_everywhere(folder: Path, data: Path, done: Result) -> None:
    shown = json.loads(done.stdout)["analysis"]["effects"][0]
    pair = ["--t0", shown["t0"], "--t1", shown["t1"]]
    stored = json.loads(bgmiv("effect", folder, *pair, "--json").stdout)["effects"][0]
    asked = json.loads(bgmiv("effect", folder, *pair, "--data", data, "--json").stdout)["effects"][0]
    assert stored["n_rows"] == asked["n_rows"] == 120
    for part in ("estimate", "lower", "upper", "in_support"):
        assert stored[part] == pytest.approx(shown[part], rel=1e-12)
        assert asked[part] == pytest.approx(shown[part], rel=1e-12)


def test_weights_of_the_fit_are_those_of_the_effect(tmp_path: Path) -> None:
    file = write(tmp_path / "data.csv", pw=np.where(SEASON > 0, 3.0, 1.0))
    roles = ["--formula", "sales ~ season + [price ~ cost]", "--weights", "pw", "--method", "tsls"]
    done = bgmiv("fit", file, *roles, "--out", tmp_path / "fit", "--json")
    shown = json.loads(done.stdout)["analysis"]["effects"][0]
    pair = ["--t0", shown["t0"], "--t1", shown["t1"]]
    asked = json.loads(bgmiv("effect", tmp_path / "fit", *pair, "--data", file, "--json").stdout)["effects"][0]
    assert (asked["lower"], asked["in_support"]) == pytest.approx((shown["lower"], shown["in_support"]), rel=1e-12)


def test_effect_by_group(folder: Path, data: Path) -> None:
    for more in ([], ["--data", data]):
        done = bgmiv("effect", folder, "--t0", 0, "--t1", 1, "--by", "region", "--json", *more)
        rows = json.loads(done.stdout)["effects"]
        assert {row["group"] for row in rows} == {"all rows", "region = north", "region = south"}
        mean = sum(row["estimate"] * row["n_rows"] for row in rows[1:]) / 120
        assert mean == pytest.approx(rows[0]["estimate"], rel=1e-3)
    shown = bgmiv("effect", folder, "--t0", 0, "--t1", 1, "--by", "region")
    assert "Average effect of price 1 instead of 0 on sales" in shown.stdout
    assert "region = south" in shown.stdout


def test_groups_are_those_of_the_column_and_of_no_other(tmp_path: Path) -> None:
    file = write(tmp_path / "data.csv", **{"age": REGION, "age group": np.where(SEASON > 0, "old", "young")})
    roles = ["--outcome", "sales", "--treatment", "price", "--instruments", "cost", "--covariates", "age,age group"]
    done = bgmiv("fit", file, *roles, "--method", "tsls", "--out", tmp_path / "fit")
    assert done.exit_code == 0, done.output
    told = json.loads(bgmiv("effect", tmp_path / "fit", "--t0", 0, "--t1", 1, "--by", "age", "--json").stdout)
    assert {row["group"] for row in told["effects"]} == {"all rows", "age = north", "age = south"}


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--t0", "0", "--t1", "99"], 1, "or --data DATA on the command line"),
        (["--t0", "0", "--t1", "1", "--by", "season"], 1, "stored no curves by 'season' (it has: region)"),
        (["--t0", "zero", "--t1", "1"], 2, "'zero' is not a finite number"),
        (["--t0", "0"], 2, "--t1"),
        (["--t0", "0", "--t1", "1", "--rows", "treated"], 2, "'price' is a number: no rows are the treated ones"),
        (["--t0", "0", "--t1", "1", "--level", "0"], 2, "--level"),
        (["--t0", "0", "--t1", "1", "--data", "nowhere.csv"], 1, "no such file"),
    ],
)
def test_effect_refuses(folder: Path, options: list[str], code: int, words: str) -> None:
    done = bgmiv("effect", folder, *options)
    assert done.exit_code == code, done.output
    assert words in said(done)


def test_diagnose_shows_what_the_fit_has_stored(folder: Path) -> None:
    record = json.loads(bgmiv("diagnose", folder, "--json").stdout)
    covariates = {"season": SEASON, "squared": SEASON**2, "north": REGION == "north"}
    linear = TSLS().fit(SALES, PRICE, instruments=COST, covariates=covariates)
    assert record["linear"]["coefficient"] == pytest.approx(linear.fitted_.slope)
    assert record["severity"] in ("good", "note", "doubtful", "failed")
    text = bgmiv("diagnose", folder).stdout
    assert "Linear effect by 2SLS" in text
    assert all(check["title"] in " ".join(text.split()) for check in record["checks"])


def test_report_writes_the_page_of_the_fit(folder: Path, place: Path, tmp_path: Path) -> None:
    done = bgmiv("report", folder, "--out", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "page.html").read_bytes() == (place / "page.html").read_bytes()
    assert bgmiv("report", folder, "--out", tmp_path).exit_code == 2


def test_summary_of_a_method_without_folder(data: Path) -> None:
    done = bgmiv("fit", data, "--formula", FORMULA, "--method", "tsls", "--title", "Prices and sales", "--by", "region")
    assert done.exit_code == 0, done.output
    assert "Prices and sales" in done.stdout
    assert "region = south" in done.stdout


def test_compare(data: Path) -> None:
    options = ["--formula", FORMULA, "--methods", "tsls,tsls-noiv", "--t0", 0, "--t1", 1]
    record = json.loads(bgmiv("compare", data, *options, "--json").stdout)
    assert [row["name"] for row in record["methods"]] == ["tsls", "tsls-noiv"]
    plain = TSLS().fit_formula(FORMULA, read_table(data))
    assert record["methods"][0]["estimate"] == pytest.approx(plain.fitted_.slope)
    assert "tsls-noiv" in bgmiv("compare", data, *options).stdout
    for bad, words in (
        (["--methods", "tsls,ols"], "'ols' is unknown; there are bgm-iv"),
        (["--t0", "1"], "both --t0 and --t1"),
    ):
        refused = bgmiv("compare", data, "--formula", FORMULA, *bad)
        assert refused.exit_code == 2
        assert words in said(refused)


@pytest.mark.parametrize("error", [DivergedError("egm", 5), KeyboardInterrupt()], ids=["diverged", "Ctrl-C"])
def test_compare_keeps_the_fits_that_are_done(
    error: BaseException, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(library.KIV, "_fit", fail)
    done = bgmiv("compare", data, "--formula", FORMULA, "--methods", "tsls,kiv,tsls-noiv", "--json")
    assert done.exit_code == 1
    assert "Error: kiv failed" in done.stderr
    kept = [row["name"] for row in json.loads(done.stdout)["methods"]]
    assert kept == (["tsls"] if isinstance(error, KeyboardInterrupt) else ["tsls", "tsls-noiv"])


def test_columns_by_name_missing_values_kinds_and_weights(tmp_path: Path) -> None:
    file = write(
        tmp_path / "data.csv", season=["", *SEASON[1:]], big=(PRICE > 0) * 1, pw=np.where(SEASON > 0, 2.0, 1.0)
    )
    names = ["--outcome", "sales", "--treatment", "price", "--instruments", "cost", "--covariates", "season,big"]
    more = ["--missing", "drop", "--kind", "big=binary", "--sample-weight", "pw", "--method", "tsls", "--json"]
    done = bgmiv("fit", file, *names, *more)
    assert done.exit_code == 0, done.output
    question = json.loads(done.stdout)["analysis"]["question"]
    assert (question["n_rows"], question["n_dropped"], question["weights"]) == (119, 1, "pw")
    assert {column["name"]: column["kind"] for column in question["columns"]}["big"] == "binary"
    assert "1 of 120 rows are dropped" in done.stderr
    assert done.stderr.count("Warning: ") >= 1


@pytest.mark.parametrize("by_name", [False, True])
def test_groups_by_another_column_leave_out_the_rows_that_were_dropped(tmp_path: Path, by_name: bool) -> None:
    half = np.where(np.arange(120) < 60, "first", "second")
    file = write(tmp_path / "data.csv", season=["", *SEASON[1:]], half=half)
    names = ["--outcome", "sales", "--treatment", "price", "--instruments", "cost", "--covariates", "season"]
    roles = names if by_name else ["--formula", "sales ~ season + [price ~ cost]"]
    done = bgmiv("fit", file, *roles, "--missing", "drop", "--by", "half", "--method", "tsls", "--json")
    assert done.exit_code == 0, done.output
    effects = json.loads(done.stdout)["analysis"]["effects"]
    assert {row["group"]["label"]: row["group"]["n_rows"] for row in effects} == {
        "all rows": 119,
        "half = first": 59,
        "half = second": 60,
    }


@pytest.mark.parametrize(("typed", "expected"), [("fit data.csv --method df", "dfiv"), ("fit --preset pap", "paper")])
def test_shell_completion(typed: str, expected: str) -> None:
    words = f"bgmiv {typed}"
    environment = {"_BGMIV_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = CliRunner().invoke(app, [], prog_name="bgmiv", env=environment)
    assert expected in done.stdout.split()


@pytest.mark.parametrize(
    "command",
    ["fit", "predict", "effect", "diagnose", "compare", "report", "demo", "data card", "data 401ksubs", "data mnist"],
)
def test_every_help_has_an_example(command: str) -> None:
    done = bgmiv(*command.split(), "--help")
    assert done.exit_code == 0
    assert f"Example: bgmiv {command}" in done.output


def test_the_help_lists_exit_codes() -> None:
    for command in ([], ["fit"]):
        text = said(bgmiv(*command, "--help"))
        assert all(code in text for code in ("0 fine", "1 bad data", "2 bad usage", "3 the fit failed", "130 Ctrl-C"))


def test_an_interrupted_fit_has_its_own_exit_code(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TSLS, "_fit", interrupted)
    done = bgmiv("fit", data, "--formula", FORMULA, "--method", "tsls")
    assert done.exit_code == 130
    assert done.stderr == "Interrupted.\n"
