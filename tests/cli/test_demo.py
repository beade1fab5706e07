from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from bgmiv import TSLS
from bgmiv.bench import RunSpec, run_one
from bgmiv.bgm.config import PRESETS, BGMIVConfig
from bgmiv.cli.demo import with_truth
from bgmiv.cli.main import app
from bgmiv.data import FixedAffine, RoleScaling
from bgmiv.designs import make_design
from bgmiv.designs.demand import demand
from bgmiv.errors import DivergedError
from bgmiv.estimators.base import IVEstimator


def bgmiv(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "100"})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, small: BGMIVConfig) -> BGMIVConfig:
    """Short fits of small networks."""
    monkeypatch.setitem(PRESETS, "default", lambda: small)
    return small


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_demo_writes_pages_and_record(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "demo"
    done = bgmiv("demo", "--n", 200, "--rho", 0.25, "--seed", 4, "--out", out)
    assert done.exit_code == 0, done.output
    names = ["report.html", "results.json"]
    assert sorted(path.name for path in out.iterdir()) == names
    record = json.loads((out / "results.json").read_text())
    assert (record["n"], record["rho"], record["seed"]) == (200, 0.25, 4)
    assert list(record["errors"]) == ["BGM-IV", "BGM-IV without the instrument", "2SLS"]
    page = (out / "report.html").read_text()
    assert "Content-Security-Policy" in page
    assert "BGM-IV without the instrument" in page
    assert "flights" in page
    assert page.count('class="line truth"') == 2  # the curve and its legend
    for words in ("BGM-IV", "BGM-IV without the instrument", "2SLS", "inside", "outside"):
        assert words in done.output


def test_a_failed_fit_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: BGMIVConfig
) -> None:
    huge = replace(quick, scaling=RoleScaling(outcome=FixedAffine(0.0, 1e-30)))
    monkeypatch.setitem(PRESETS, "default", lambda: huge)
    done = bgmiv("demo", "--n", 200, "--out", tmp_path)
    assert done.exit_code == 1
    assert "diverged" in done.output
    record = json.loads((tmp_path / "results.json").read_text())
    row = run_one(RunSpec("demand-confounded", 200, 0.9, "tsls", "default", 0))
    assert record["errors"]["2SLS"]["all"] == row.structural_mse
    assert list(record["errors"]) == ["2SLS"]
    page = (tmp_path / "report.html").read_text()
    assert len(page) < 600_000
    assert "2SLS" in page


def test_without_any_fit_there_is_an_exit_code_and_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise DivergedError("joint training", 20)

    monkeypatch.setattr(IVEstimator, "_fit", fail)
    done = bgmiv("demo", "--n", 200, "--out", tmp_path)
    assert done.exit_code == 1
    assert done.output.count("failed: ") == 3
    assert isinstance(done.exception, SystemExit)
    assert list(tmp_path.iterdir()) == []


def test_the_truth_is_the_average_over_the_rows() -> None:
    data = make_design("demand-confounded").sample(200, 0.5, 3)
    analysis = TSLS()._fit(data).analysis()
    truth = with_truth(analysis, data).methods[-1]
    values = dict(zip(data.schema.flat_names, data.covariates.T, strict=True))
    first = analysis.effects[0]
    ends = [np.mean(demand(price, values["time"], values["group"])) for price in (first.t0, first.t1)]
    assert truth.estimate == pytest.approx(ends[1] - ends[0])
    assert len(truth.curve) == len(analysis.curves[0].treatment)
    assert truth.note == "truth"


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--n", "5", "Invalid value"),
        ("--rho", "2", "Invalid value"),
        ("--rho", "nan", "Invalid value"),
        ("--seed", "-3", "Invalid value"),
        ("--preset", "fast", "default, paper"),
    ],
)
def test_bad_options_name_the_option_and_write_nothing(tmp_path: Path, option: str, value: str, words: str) -> None:
    out = tmp_path / "demo"
    done = bgmiv("demo", "--out", out, option, value)
    text = " ".join(done.output.replace("│", " ").split())
    assert done.exit_code == 2, text
    assert option in text
    assert words in text
    assert not out.exists()


def test_out_must_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done = bgmiv("demo", "--out", tmp_path / "file")
    assert done.exit_code == 2
    assert "--out" in done.output
