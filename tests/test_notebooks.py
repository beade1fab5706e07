"""What a notebook shows: a bar while a fit runs, and a table for every result."""

from __future__ import annotations

from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

DATA = """
import numpy as np
import bgmiv
w, v, u = np.random.default_rng(0).normal(size=(3, 300))
x, y = w + v + u, 2 * w + v - u
"""
# Each of these stands alone in a cell, and is a result that a user would look at.
RESULTS = (
    "model.ate_interval(t0=0.0, t1=1.0)",
    "model.dose_response([0.0, 1.0])",
    "model.dose_response_interval([0.0, 1.0])",
    "model.summary()",
    "model.diagnose()",
    "model.diagnose()['effective-f']",
    "model.sensitivity(0.1)",
    "bgmiv.compare({'NPIV': model, '2SLS': bgmiv.TSLS().fit(y, x, instruments=w, covariates=v)})",
    "bgmiv.diagnostics.verdict.judge(bgmiv.diagnostics.verdict.FitEvidence(n_held_out=9, first_stage_gain=0.0))",
)


@pytest.fixture(scope="module")
def outputs() -> list[Any]:
    """The outputs of each cell of a notebook that a fresh kernel has run."""
    fit = "model = bgmiv.NPIV(random_state=0).fit(y, x, instruments=w, covariates=v)"
    cells = [DATA, fit, "bgmiv.NPIV(random_state=0, progress=False).fit(y, x, instruments=w);", *RESULTS]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    return [cell.outputs for cell in notebook.cells]


def test_a_fit_shows_its_progress_in_one_output(outputs: list[Any]) -> None:
    (bar,) = outputs[1]
    assert bar.output_type == "display_data"
    assert "NPIV" in bar.data["text/plain"]
    assert "100%" in bar.data["text/plain"]
    assert outputs[2] == []


@pytest.mark.parametrize("k", range(len(RESULTS)), ids=RESULTS)
def test_every_result_is_a_table(outputs: list[Any], k: int) -> None:
    shown = [output for output in outputs[3 + k] if output.output_type == "execute_result"]
    assert len(shown) == 1
    assert "<table" in shown[0].data["text/html"]
