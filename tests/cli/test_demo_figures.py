from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from bgmiv.bench import Row, RunSpec, run_one
from bgmiv.cli.demo import DemandPanels, DemoResult, demand_curves, demo_files, demo_page, error_texts
from bgmiv.designs.demand import demand, price_support

PANELS = DemandPanels(times=(2.0, 5.0), groups=(1, 4, 7), n_prices=11)


@pytest.fixture(scope="module")
def row() -> Row:
    return run_one(RunSpec("demand", 200, 0.5, "tsls", "default", 3))


def test_figure_shows_truth_estimates_and_support() -> None:
    price, covariates = PANELS.query()
    truth = demand(price, covariates["time"], covariates["group"])
    figure = demand_curves(PANELS, {"bgm-iv": truth + 5.0, "new-method": truth - 5.0}, "n = 10")
    assert len(figure.axes) == 6
    for position, panel in enumerate(figure.axes):
        group, time = PANELS.groups[position // 2], PANELS.times[position % 2]
        lines = panel.get_lines()
        # Truth and two methods, each drawn faint everywhere and strong inside the support.
        assert len(lines) == 6
        np.testing.assert_allclose(lines[0].get_ydata(), demand(PANELS.price, time, group))
        np.testing.assert_allclose(lines[2].get_ydata(), demand(PANELS.price, time, group) + 5.0)
        low, high = price_support(time)
        shown = np.isfinite(np.asarray(lines[1].get_ydata(), dtype=float))
        np.testing.assert_array_equal(shown, (PANELS.price >= low) & (PANELS.price <= high))
        assert f"group {group}" in panel.get_title(loc="left")
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["truth", "BGM-IV", "new-method", "prices seen at this season (99%)"]


def test_page_and_record(row: Row) -> None:
    files = demo_files([DemoResult(row, None, None)])
    page = files["report.html"].decode()
    assert page.count("data:image/png;base64,") == 1
    assert all(text in page for text in ("seed 3", row.versions["jax"], "2SLS", "mean outcome"))
    record = json.loads(files["results.json"])
    assert record["rows"][0]["structural_mse"] == row.structural_mse
    assert 3.0e4 < record["constant_predictor"]["all"] < 3.5e4


def test_a_failed_fit_is_told_and_escaped(row: Row) -> None:
    nothing = {"structural_mse": None, "structural_mse_in_support": None, "structural_mse_outside": None}
    failed = replace(row, status="failed", error="ValueError: a < b", **nothing)
    assert "ValueError: a &lt; b" in demo_page([failed], b"\x89PNG")
    assert error_texts([failed]).iloc[0].to_list()[1] == "failed"
