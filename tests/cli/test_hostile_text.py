"""Names and values of data that are written for a terminal or a spreadsheet to obey: they are shown, never acted on."""

from __future__ import annotations

import ast
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from typer.main import get_command

import bgmiv as library
from bgmiv import cli
from bgmiv.cli.main import app
from bgmiv.errors import BGMIVError, BGMIVWarning, DataError

ESCAPES = "\x1b[2J\x9b31m\x07\x08\u202e"
rng = np.random.default_rng(0)
N = 60
W, V, U = rng.normal(size=(3, N))
X = W + V + U
DOSE = np.array(["=cmd|' /C calc'!A0", "+x", f"red{ESCAPES}"])[np.digitize(W + 0.1 * V, [-0.5, 0.5])]
NAMES = {role: f"{role}{ESCAPES}" for role in ("y", "x", "w", "v", "g")}
TABLE = {
    NAMES["y"]: 2 * X + V - U,
    NAMES["x"]: X,
    NAMES["w"]: W,
    NAMES["v"]: V,
    NAMES["g"]: np.array([f"a{ESCAPES}", "b\r"])[np.arange(N) % 2],
}

# Built once: building it takes longer than most commands.
COMMAND: Any = get_command(app)


def bgmiv(*arguments: object) -> Result:
    return CliRunner().invoke(COMMAND, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def inert(text: str) -> bool:
    return not set(text) & set(ESCAPES.replace("[2J", "").replace("31m", ""))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("hostile")
    pd.DataFrame(TABLE).to_csv(place / "data.csv", index=False)
    pd.DataFrame({"y": X + V, "dose": DOSE, "w": W, "w2": W**2, "w3": U}).to_csv(place / "doses.csv", index=False)
    roles = ["--outcome", NAMES["y"], "--treatment", NAMES["x"], "--instruments", NAMES["w"]]
    roles += ["--covariates", f"{NAMES['v']},{NAMES['g']}"]
    done = bgmiv("fit", place / "data.csv", *roles, "--method", "tsls", "--out", place / "fit", "--title", ESCAPES)
    assert done.exit_code == 0, done.output
    assert inert(done.output)
    done = bgmiv(
        "fit", place / "doses.csv", "--formula", "y ~ [dose ~ w + w2 + w3]", "--method", "tsls", "--out", place / "d"
    )
    assert done.exit_code == 0, done.output
    return place


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["effect", "fit", "--t0", "0", "--t1", "1", "--by", NAMES["g"]], 0),
        (["effect", "fit", "--t0", "0", "--t1", "1", "--data", "data.csv", "--by", NAMES["g"]], 0),
        (["effect", "fit", "--t0", "0", "--t1", "1", "--by", "h"], 1),
        (["effect", "d", "--t0", "+x", "--t1", "blue"], 2),
        (["diagnose", "fit"], 0),
        (["diagnose", "fit", "--json"], 0),
        (["effect", "fit", "--t0", "0", "--t1", "1", "--json"], 0),
        (["compare", "data.csv", "--outcome", NAMES["y"], "--treatment", NAMES["x"], "--instruments", NAMES["w"]]
         + ["--methods", "tsls,tsls-noiv"], 0),
        (["fit", "data.csv", "--formula", f"`{NAMES['y']}` ~ [`x` ~ w]"], 1),
        (["fit", "data.csv", "--formula", "y ~ (\x1b\x9b) + [x ~ w]"], 1),
        (["fit", "data.csv", "--formula", f"y ~ {ESCAPES}[x ~"], 2),
        (["fit", f"data{ESCAPES}.csv", "--formula", "y ~ [x ~ w]"], 1),
        (["predict", "fit", "doses.csv", "--treatment", "1"], 1),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)  # fmt: skip
def test_nothing_acts_on_the_terminal(
    place: Path, command: list[str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    done = bgmiv(*command)
    assert done.exit_code == code, done.output
    assert inert(done.output)
    if "--json" in command and command[0] == "effect":
        assert json.loads(done.stdout)["treatment"] == NAMES["x"]


@pytest.mark.parametrize(
    "content",
    [f"a,a{ESCAPES},a{ESCAPES}\n1,2,3\n", f'a,b\n1,"2{ESCAPES}\n', f"a,b\n1,2,{ESCAPES}\n", f"a,{ESCAPES}\n1\n"],
    ids=["duplicate", "quote", "surplus", "short"],
)
def test_errors_of_files_are_inert(content: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(DataError) as caught:
        library.read_table(tmp_path / "a.csv")
    assert inert(str(caught.value))


def test_texts_of_the_library_are_inert() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        flags = {**TABLE, f"f{ESCAPES}": np.arange(N) // 2 % 2}
        model = library.TSLS().fit_table(
            flags,
            outcome=NAMES["y"],
            treatment=NAMES["x"],
            instruments=NAMES["w"],
            covariates=[NAMES["v"], NAMES["g"], f"f{ESCAPES}"],
        )
    assert any(issubclass(warning.category, BGMIVWarning) for warning in seen)
    shown = [model.analysis(), model.diagnose(), model.sensitivity(0.1), model.data_, model, *(w.message for w in seen)]
    shown.append(library.compare({f"one{ESCAPES}": model}))
    assert all(inert(str(one)) for one in shown)
    with pytest.raises(BGMIVError) as caught:
        model.predict(1.0, {"other": [1.0]})
    assert inert(str(caught.value))


def test_every_print_of_the_command_line_goes_through_one_function() -> None:
    folder = Path(cli.__file__).parent
    for file in sorted(folder.glob("*.py")):
        calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        raw = [node for node in calls if ast.unparse(node.func) in ("typer.echo", "print", "click.echo")]
        allowed = {"shared.py": 2}.get(file.name, 0)
        assert len(raw) <= allowed, f"{file.name} prints past shared.echo"


def test_words_in_a_csv_are_no_formulas_for_a_spreadsheet(place: Path, tmp_path: Path) -> None:
    plain, raw = tmp_path / "plain.csv", tmp_path / "raw.csv"
    assert bgmiv("predict", place / "d", place / "doses.csv", "--out", plain).exit_code == 0
    assert bgmiv("predict", place / "d", place / "doses.csv", "--out", raw, "--no-guard").exit_code == 0
    cells, numbers = (library.read_table(plain)[name].tolist() for name in ("treatment", "estimate"))
    assert cells == [f"'{dose}" if dose[0] in "=+" else dose for dose in DOSE]
    assert library.read_table(raw)["treatment"].tolist() == DOSE.tolist()
    assert min(numbers) < 0 < max(numbers)
