"""A round through the package with the lowest versions it allows: `make lowest` runs this in an environment of its own.

Only what a plain install has is imported; the dev extras would bring newer versions.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import bgmiv
from bgmiv.registry import METHODS

QUICK = {
    "bgm-iv": {"iterations": 4, "members": 2, "random_state": 0},
    "deepiv": {"members": 1, "epochs": 2, "hidden": (8,), "random_state": 0},
    "dfiv": {"members": 1, "epochs": 1, "random_state": 0},
    "deepgmm": {"members": 1, "updates": 6, "hidden": (8,), "random_state": 0},
}
FORMULA = "y ~ C(region) + bs(age, df=4) + [x ~ w]"


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    w, age, u = rng.normal(size=(3, 300))
    x = w + age + u
    region = rng.choice(["north", "south", "west"], 300)
    return pd.DataFrame({"y": 2.0 * x + age - u, "x": x, "w": w, "age": age, "region": region})


@pytest.mark.parametrize("name", METHODS)
def test_every_method_fits_answers_and_is_saved(name: str, table: pd.DataFrame, tmp_path: Path) -> None:
    estimator = METHODS[name].estimator_class()
    model = estimator(**QUICK.get(name, {}))
    columns = {"outcome": "y", "treatment": "x", "instruments": "w", "covariates": ["age"]}
    model.fit_table(table, **columns)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(bgmiv.load(tmp_path / "model").predict(0.5, table), model.predict(0.5, table))
    if model.fitted_.interval_kind:
        assert np.isfinite(model.ate_interval(t0=0.0, t1=1.0).std_error)


def test_formulas_diagnoses_and_pages(table: pd.DataFrame, tmp_path: Path) -> None:
    model = bgmiv.TSLS().fit_formula(FORMULA, table)
    assert "Average effect" in str(model.summary())
    assert model.report(tmp_path / "report.html").stat().st_size > 10_000
    assert len(model.dose_response([0.0, 1.0]).to_frame()) == 2
    model.plot_curve()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["fit", "--help"],
        ["bench", "run", "--help"],
        ["fit", "data.csv", "--formula", FORMULA, "--method", "tsls", "--out", "model", "--report", "r.html"],
        ["predict", "model", "data.csv"],
        ["effect", "model", "--t0", "0", "--t1", "1"],
        ["report", "model"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_the_command_line(arguments: list[str], table: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "command-line"
    folder.mkdir(exist_ok=True)
    table.to_csv(folder / "data.csv", index=False)
    command = [str(Path(sys.executable).with_name("bgmiv")), *arguments]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=os.environ)
    assert found.returncode == 0, found.stderr
    assert "Traceback" not in found.stderr
