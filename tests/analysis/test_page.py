"""The page as text: what it holds without a script, its policy, its size, and how it is written."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bgmiv.analysis.analysis import Analysis, AnalysisRequest, ColumnSummary, Curve, Group, HistoryLine
from bgmiv.analysis.charts import axis_over, curve_axes, effect_axis, outside_support
from bgmiv.analysis.page import compact_factors, payload, report_page, tables, write_report
from bgmiv.diagnostics.checks import Diagnosis
from bgmiv.diagnostics.verdict import judge
from bgmiv.errors import ConfigError, DataError, StoreError
from bgmiv.fitted import FitEvidence
from bgmiv.intervals import Source


@pytest.fixture(scope="module")
def page(analysis: Analysis) -> str:
    return report_page(analysis)


def test_the_sections_are_there(page: str, bare: Analysis) -> None:
    anchors = re.findall(r'<section id="([a-z-]+)"', page)
    assert anchors == [
        "curve-section", "effects", "strength", "sensitivity", "checks", "methods", "assumptions", "data", "history",
        "again",
    ]  # fmt: skip
    assert re.findall(r'<a href="#([a-z-]+)">', page) == anchors
    shown = report_page(bare)
    found = re.findall(r'<section id="([a-z-]+)"', shown)
    assert found == ["curve-section", "strength", "checks", "assumptions", "data", "again"]
    assert 'class="band' not in shown


def test_it_says_on_how_many_rows_the_fit_was_checked(analysis: Analysis) -> None:
    assert "Checked on 602 " in report_page(analysis)
    unchecked = report_page(replace(analysis, verdict=judge(FitEvidence())))
    assert "No rows were held out to check the fit." in unchecked
    assert "Checked on" not in unchecked


def test_it_says_what_was_found_and_how_far_to_trust_it(page: str) -> None:
    text = html.unescape(re.sub(r"<[^>]+>", " ", page))
    for part in (
        "Setting educ to 16 instead of 12 is estimated to change lwage by 0.503 on average",
        "read with caution",
        "In doubt: the fit on held-out rows. Each check says what it means and what to do.",
        "of rows have comparable rows at both values",
        "Is the treatment endogenous?",
        "p = 0.61 (602 held-out rows)",
        "BGM-IV without the instrument",
        "the same method as a regression, without the instruments",
        "lwage ~ exper + black + C(region) + [educ ~ nearc4]",
        "3,010 (12 dropped for missing values)",
        "mean 13.3, standard deviation 2.68, from 1 to 18",
    ):
        assert part in text
    for word in ("people", "everyone", "twin"):
        assert word not in text


def test_only_its_own_style_and_script_act_and_nothing_is_loaded(page: str) -> None:
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1])
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        content = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert set(re.findall(r'(?:src|href)="([^"#][^"]*)"', page)) == {"data:,"}
    assert "http" not in re.sub(r"http-equiv|http://www\.w3\.org/2000/svg", "", page)
    for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "Function(", "fetch("):
        assert word not in page


def test_it_is_small(page: str, analysis: Analysis) -> None:
    assert len(page.encode()) < 200_000
    wide = np.random.default_rng(0).normal(size=(800, 49)).cumsum(axis=1)
    source = Source("sampling", wide, math.inf)
    curves = (replace(analysis.curves[0], sources=(source, source)),) * 12
    many = replace(analysis, curves=curves, effects=analysis.effects[:1] * 12)
    assert len(report_page(many).encode()) < 1_500_000


def test_rows_go_by_the_name_of_the_user(analysis: Analysis) -> None:
    page = report_page(replace(analysis, request=replace(analysis.request, units="men")))
    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    for part in (
        "Data card.csv Men 3,010 (12 dropped for missing values)",
        "of men have comparable men at both values",
    ):
        assert part in text
    with pytest.raises(ConfigError, match="units must be what the rows are called, such as 'flights', got ' '"):
        AnalysisRequest.of(units=" ")


def test_instruments_are_shown(page: str) -> None:
    text = html.unescape(re.sub(r"<[^>]+>", " ", page))
    for part in (
        "First stage: educ by nearc4",
        "Reduced form: lwage by nearc4",
        "Difference of means (standard deviations)",
        "Together the covariates predict the instrument: F = 76.6, p < 0.001",
        "The other 6 covariate columns differ less.",
        "The 2SLS interval reaches zero at a direct effect of 0.0",
    ):
        assert part in text
    assert page.count('class="dot"') == 4


def test_the_numbers_behind_tables_and_figures(analysis: Analysis) -> None:
    """Every button has its table, and each number of a figure is in the table."""
    found = tables(analysis)
    assert set(re.findall(r'data-table="([a-z-]+)"', report_page(analysis))) == set(found)
    assert len(found["curve"]) == (len(analysis.curves) + len(analysis.methods) - 1) * len(analysis.curves[0].treatment)
    assert [row["band_upper"] for row in found["curve"][:49]] == list(analysis.curves[0].band_upper)
    embedded = payload(analysis)["tables"]
    assert embedded["curve"]["columns"][:3] == ["method", "group", "treatment"]
    assert embedded["methods"]["rows"][3] == ["KIV", 0.37, None, None]
    assert found["effects"] == analysis.to_frame().to_dict("records")


def test_fewer_factors_give_the_same_covariance() -> None:
    wide = np.random.default_rng(0).normal(size=(300, 9)) * np.geomspace(1.0, 1e-3, 9)
    compact = compact_factors(Source("sampling", wide, 10.0))
    assert compact.shape == (9, 9)
    np.testing.assert_allclose(compact.T @ compact, wide.T @ wide, rtol=1e-9, atol=1e-9)


def test_the_static_curve_goes_through_the_estimates(page: str, analysis: Analysis) -> None:
    across, up = curve_axes(analysis)
    lines = r'<path d="([^"]+)" class="band outer">.*?<path d="([^"]+)" class="line main">'
    drawn = re.search(f'<g data-curve="0">{lines}', page)
    points = np.array([pair.split() for pair in drawn[2].removeprefix("M").split("L")], float)
    t = across.low + points[:, 0] / 1000 * (across.high - across.low)
    g = up.high - points[:, 1] / 1000 * (up.high - up.low)
    np.testing.assert_allclose(t, analysis.curves[0].treatment, atol=0.01)
    np.testing.assert_allclose(g, analysis.curves[0].estimate, atol=0.002)


def test_shades_are_where_fewer_than_half_are_seen(analysis: Analysis) -> None:
    curve = analysis.curves[0]
    stretches = outside_support(curve)
    for t, seen in zip(curve.treatment, curve.in_support, strict=True):
        assert any(a <= t <= b for a, b in stretches) == (seen < 0.5)
    nowhere = replace(curve, in_support=(0.0,) * len(curve.treatment))
    assert outside_support(nowhere) == [(curve.treatment[0], curve.treatment[-1])]


def test_wild_extrapolation_does_not_flatten_the_curve(analysis: Analysis) -> None:
    curve, before = analysis.curves[0], curve_axes(analysis)[1]
    upper = tuple(u if s >= 0.5 else 1e6 for u, s in zip(curve.upper, curve.in_support, strict=True))
    methods = (*analysis.methods, replace(analysis.methods[1], name="wild", curve=(1e9,) * len(curve.treatment)))
    wild = replace(analysis, curves=(replace(curve, upper=upper), *analysis.curves[1:]), methods=methods)
    after = curve_axes(wild)[1]
    assert after.high - after.low < 3 * (before.high - before.low)


def test_axes_hold_odd_values() -> None:
    assert axis_over([3.0, 3.0]).low < 3.0 < axis_over([3.0, 3.0]).high
    assert axis_over([math.nan, math.inf]).low < 0.0
    assert axis_over([1e-300, 2e-300]).ticks
    assert [text for _, text in axis_over([0.0, 1.0], margin=0.0).named] == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    axis = effect_axis([(0.1, 0.0, 0.2), (0.1, -math.inf, math.inf), (0.2, None, None), (0.1, -500.0, 900.0)])
    assert axis.high < 10.0


@pytest.mark.parametrize("value", [0.0, 1e-12, 1e12, -5.0, math.nan])
def test_odd_numbers_are_shown(analysis: Analysis, value: float) -> None:
    one = Curve(Group("", "all rows", 1), (12.0, 16.0), *((value,) * 2,) * 3, (0.0, 0.0), (), *((value,) * 2,) * 2)
    flat = HistoryLine("loss", "p", (0, 1), (value, math.inf))
    interval = replace(analysis.effects[0].interval, estimate=value, lower=-math.inf, upper=math.inf)
    effect = replace(analysis.effects[0], interval=interval)
    methods = (replace(analysis.methods[0], curve=(value,) * 2),)
    odd = replace(analysis, curves=(one,), effects=(effect,), history=(flat,), methods=methods)
    sets = {
        "-infinity to -1.00 or 2.00 to infinity": ((-math.inf, -1.0), (2.0, math.inf)),
        "every number": ((-math.inf, math.inf),),
        "empty: no effect fits": (),
    }
    for text, robust in sets.items():
        linear = replace(analysis.diagnosis.linear, robust_set=robust)
        assert text in report_page(replace(odd, diagnosis=Diagnosis((), linear)))


def test_a_treatment_of_0_and_1_has_dots_and_a_number_has_none(analysis: Analysis) -> None:
    curve = Curve(
        Group("", "all rows", 9), (0.0, 1.0), (1.0, 2.0), (0.5, 1.5), (1.5, 2.5), (1.0, 1.0), (), (0.0, 1.0), (2.0, 3.0)
    )
    effect = replace(analysis.effects[0], t0=0.0, t1=1.0)
    methods = (replace(analysis.methods[0], curve=curve.estimate),)
    number = replace(analysis, curves=(curve,), effects=(effect,), methods=methods)
    assert 'id="curve"' in report_page(number)
    columns = (ColumnSummary("educ", "treatment", "binary", ""),)
    binary = replace(number, question=replace(number.question, columns=columns))
    assert 'id="curve"' not in report_page(binary)
    assert '<option value="1" selected>1</option>' in report_page(binary)
    assert payload(binary)["levels"] == ["0", "1"]
    json.dumps(payload(binary), allow_nan=False)


def test_parts_that_do_not_belong_together_are_refused(analysis: Analysis, levelled: Analysis) -> None:
    """As in a model file that someone has changed."""
    other_treatments = "curves, effects and methods of an analysis have different treatments"
    for change, message in (
        (lambda: replace(analysis, curves=()), "needs a curve for all rows"),
        (
            lambda: replace(analysis, effects=(replace(analysis.effects[0], t1=99.0), *analysis.effects[1:])),
            other_treatments,
        ),
        (lambda: replace(analysis, methods=(replace(analysis.methods[0], curve=(1.0,)),)), other_treatments),
        (lambda: replace(levelled, question=replace(levelled.question, treatment_levels=("one",))), other_treatments),
    ):
        with pytest.raises(DataError, match=message):
            change()


def test_writing(tmp_path: Path, bare: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")
    with monkeypatch.context() as patched:
        patched.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            write_report(bare, target)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("report.html", "old")]
    assert write_report(bare, str(target)) == target
    assert target.read_text(encoding="utf-8") == report_page(bare)
    with pytest.raises(ConfigError, match=r"is a folder. Name a file in it"):
        write_report(bare, tmp_path)
    with pytest.raises(ConfigError, match=r"does not exist. Make it first"):
        write_report(bare, tmp_path / "absent" / "report.html")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is a device or a pipe"):
        write_report(bare, tmp_path / "pipe")
    with pytest.raises(StoreError, match="name too long"):
        write_report(bare, tmp_path / ("a" * 300))
