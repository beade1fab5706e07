"""The page as text: what it holds without a script, its policy, its size, and how it is written."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bgmiv.errors import ConfigError, DataError
from bgmiv.show.analysis import Analysis, Curve, CurveSource, HistoryLine
from bgmiv.show.axes import axis_over, curve_axes, effect_axis, outside_support
from bgmiv.show.page import report_page, write_report
from bgmiv.show.payload import compact_deviations, payload, start_positions
from bgmiv.trust.diagnosis import Diagnosis


@pytest.fixture(scope="module")
def page(analysis: Analysis) -> str:
    return report_page(analysis)


def test_the_sections_are_there(page: str) -> None:
    anchors = re.findall(r'<section id="([a-z-]+)"', page)
    assert anchors == ["curve-section", "effects", "strength", "checks", "methods", "data", "history", "again"]
    assert re.findall(r'<a href="#([a-z-]+)">', page) == anchors


def test_it_says_what_was_found_and_how_far_to_trust_it(page: str) -> None:
    text = html.unescape(re.sub(r"<[^>]+>", " ", page))
    for part in (
        "Setting educ to 16 instead of 12 would change the mean of lwage by 0.503 on average",
        "read with care",
        "effective F of the instruments; the fit in held-out rows",
        "Wu-Hausman test of endogeneity",
        "Hausman (1978)",
        "members differ by 15% of the outcome's deviation",
        "BGM-IV without the instrument",
        "lwage ~ exper + black + smsa + C(region) + [educ ~ nearc4]",
        "12 rows with missing values were left out",
        "mean 13.3, deviation 2.68, from 1 to 18",
    ):
        assert part in text


def test_parts_without_content_are_left_out(bare: Analysis) -> None:
    shown = report_page(bare)
    assert re.findall(r'<section id="([a-z-]+)"', shown) == ["curve-section", "data", "again"]
    assert 'class="band"' not in shown
    assert "not checked" in shown


def test_the_policy_names_the_style_and_the_script_by_their_hashes(page: str) -> None:
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1])
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        content = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_nothing_is_loaded_and_no_text_becomes_markup_in_the_script(page: str) -> None:
    addresses = set(re.findall(r'(?:src|href)="([^"#][^"]*)"', page))
    assert addresses == {"data:,"}
    assert "http" not in re.sub(r"http-equiv|http://www\.w3\.org/2000/svg", "", page)
    for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "Function(", "fetch("):
        assert word not in page


def test_it_is_small(page: str, analysis: Analysis) -> None:
    assert len(page.encode()) < 150_000
    wide = np.random.default_rng(0).normal(size=(800, 49)).cumsum(axis=1)
    source = CurveSource("sampling", math.inf, tuple(tuple(row) for row in wide.tolist()))
    curves = tuple(replace(analysis.curves[0], label=f"group {i}", sources=(source, source)) for i in range(12))
    assert len(report_page(replace(analysis, curves=curves)).encode()) < 1_500_000


def test_fewer_deviations_give_the_same_covariance() -> None:
    wide = np.random.default_rng(0).normal(size=(300, 9)) * np.geomspace(1.0, 1e-3, 9)
    source = CurveSource("sampling", 10.0, tuple(tuple(row) for row in wide.tolist()))
    compact = compact_deviations(source)
    assert compact.shape == (9, 9)
    np.testing.assert_allclose(compact.T @ compact, wide.T @ wide, rtol=1e-9, atol=1e-9)


def test_the_static_curve_goes_through_the_estimates(page: str, analysis: Analysis) -> None:
    across, up = curve_axes(analysis)
    drawn = re.search(
        r'<g data-curve="0"><path d="([^"]+)" class="band">.*?<path d="([^"]+)" class="line faint">', page
    )
    points = np.array([pair.split() for pair in drawn[2].removeprefix("M").split("L")], float)
    t = across.low + points[:, 0] / 1000 * (across.high - across.low)
    g = up.high - points[:, 1] / 1000 * (up.high - up.low)
    np.testing.assert_allclose(t, analysis.curves[0].treatment, atol=0.01)
    np.testing.assert_allclose(g, analysis.curves[0].estimate, atol=0.002)


def test_shades_are_where_fewer_than_half_are_seen(analysis: Analysis) -> None:
    curve = analysis.curves[0]
    stretches = outside_support(curve)
    assert stretches
    for t, seen in zip(curve.treatment, curve.in_support, strict=True):
        assert any(a <= t <= b for a, b in stretches) == (seen < 0.5)
    nowhere = replace(curve, in_support=(0.0,) * len(curve.treatment))
    assert outside_support(nowhere) == [(curve.treatment[0], curve.treatment[-1])]
    report_page(replace(analysis, curves=(nowhere,)))


def test_wild_extrapolation_does_not_flatten_the_curve(analysis: Analysis) -> None:
    curve = analysis.curves[0]
    upper = tuple(u if s >= 0.5 else 1e6 for u, s in zip(curve.upper, curve.in_support, strict=True))
    methods = (*analysis.methods, replace(analysis.methods[1], name="wild", curve=(1e9,) * len(curve.treatment)))
    before = curve_axes(analysis)[1]
    after = curve_axes(replace(analysis, curves=(replace(curve, upper=upper),), methods=methods))[1]
    assert after.high - after.low < 3 * (before.high - before.low)


def test_axes_hold_odd_values() -> None:
    assert axis_over([3.0, 3.0]).low < 3.0 < axis_over([3.0, 3.0]).high
    assert axis_over([math.nan, math.inf]).low < 0.0
    assert axis_over([1e-300, 2e-300]).ticks
    axis = effect_axis([(0.1, 0.0, 0.2), (0.1, -math.inf, math.inf), (0.2, None, None), (0.1, -500.0, 900.0)])
    assert axis.high < 10.0


@pytest.mark.parametrize("value", [0.0, 1e-12, 1e12, -5.0, math.nan])
def test_odd_numbers_are_shown(analysis: Analysis, value: float) -> None:
    one = Curve("everyone", 1, (0.0,), (value,), (value,), (value,), (0.0,))
    flat = HistoryLine("loss", "p", (0, 1), (value, math.inf))
    effect = replace(analysis.effects[0], estimate=value, lower=-math.inf, upper=math.inf)
    linear = replace(analysis.diagnosis.linear, robust_set=((-math.inf, -1.0), (2.0, math.inf)))
    shown = report_page(
        replace(analysis, curves=(one,), effects=(effect,), history=(flat,), diagnosis=Diagnosis((), linear))
    )
    assert "-infinity to -1.00 or 2.00 to infinity" in html.unescape(shown)
    every = replace(linear, robust_set=((-math.inf, math.inf),))
    assert "every number" in report_page(replace(analysis, diagnosis=Diagnosis((), every)))
    empty = replace(linear, robust_set=())
    assert "empty: no linear effect fits" in report_page(replace(analysis, diagnosis=Diagnosis((), empty)))


def test_the_calculator_begins_at_the_first_effect(analysis: Analysis, levelled: Analysis) -> None:
    assert start_positions(analysis) == [12.0, 16.0]
    assert start_positions(levelled) == [0.0, 1.0]
    odd = replace(analysis.effects[0], t0="1,000", t1="the mean")
    assert start_positions(replace(analysis, effects=(odd,))) == [18.0, 18.0]
    assert start_positions(replace(analysis, effects=())) == [6.0, 18.0]
    json.dumps(payload(analysis), allow_nan=False)


def test_a_treatment_of_0_and_1_has_dots(analysis: Analysis) -> None:
    curve = Curve("everyone", 9, (0.0, 1.0), (1.0, 2.0), (0.5, 1.5), (1.5, 2.5), (1.0, 1.0))
    effect = replace(analysis.effects[0], t0="0", t1="1")
    binary = replace(analysis, curves=(curve,), effects=(effect,), methods=())
    shown = report_page(binary)
    assert 'id="curve"' not in shown
    assert '<option value="1" selected>1</option>' in shown
    assert payload(binary)["levels"] == ["0", "1"]
    assert start_positions(binary) == [0.0, 1.0]


def test_curves_that_do_not_fit_together_are_refused(analysis: Analysis) -> None:
    with pytest.raises(DataError, match="no curve"):
        report_page(replace(analysis, curves=()))
    with pytest.raises(DataError, match="'everyone' has parts of different lengths"):
        report_page(replace(analysis, curves=(replace(analysis.curves[0], upper=(1.0,)),)))


def test_writing(tmp_path: Path, bare: Analysis) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")
    assert write_report(bare, str(target)) == target
    assert target.read_text(encoding="utf-8") == report_page(bare)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(ConfigError, match=r"is a folder. Name a file in it"):
        write_report(bare, tmp_path)
    with pytest.raises(ConfigError, match=r"does not exist. Make it first"):
        write_report(bare, tmp_path / "absent" / "report.html")


def test_a_failed_write_leaves_the_old_page(tmp_path: Path, bare: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(bare, target)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("report.html", "old")]
