"""The pages of the demo: the truth drawn in, and without it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from bgmiv.bench import RunSpec
from bgmiv.cli.demo import DemoResult, demo_files, error_texts, run_spec, with_truth
from bgmiv.designs import make_design
from bgmiv.designs.demand import demand


@pytest.fixture(scope="module")
def result() -> DemoResult:
    return run_spec(RunSpec("demand-confounded", 200, 0.5, "tsls", "default", 3))


def test_the_truth_is_the_average_over_the_rows(result: DemoResult) -> None:
    truth = with_truth(result.analysis, result.row).methods[-1]
    data = make_design("demand-confounded").sample(200, 0.5, 3)
    values = dict(zip(data.schema.flat_names, data.covariates.T, strict=True))
    first = result.analysis.effects[0]
    ends = [np.mean(demand(price, values["time"], values["group"])) for price in (first.t0, first.t1)]
    assert truth.estimate == pytest.approx(ends[1] - ends[0])
    assert len(truth.curve) == len(result.analysis.curves[0].treatment)
    assert truth.note == "truth"


def test_pages_and_record(result: DemoResult) -> None:
    files = demo_files([result])
    page = files["report.html"].decode()
    assert len(page) < 600_000
    assert page.count('class="line truth"') == 2  # the curve and its legend
    assert all(text in page for text in ("2SLS", "the truth", "flights"))
    record = json.loads(files["results.json"])
    assert record["rows"][0]["structural_mse"] == result.row.structural_mse


def test_a_failed_fit_is_told(result: DemoResult) -> None:
    nothing = {"structural_mse": None, "structural_mse_in_support": None, "structural_mse_outside": None}
    failed = replace(result.row, method="bgm-iv", status="failed", error="ValueError: a < b", **nothing)
    assert "ValueError: a < b" in demo_files([DemoResult(failed), result])["results.json"].decode()
    assert set(demo_files([DemoResult(failed)])) == {"results.json"}
    assert error_texts([failed])[0][1] == "failed"
