"""The summary as text and in notebooks, and the words it is made of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bgmiv.show.analysis import Analysis
from bgmiv.show.summary import Summary, summary_html, summary_text
from bgmiv.show.words import answer, strength_checks, trust
from bgmiv.trust.diagnosis import Check, CheckLevel, Diagnosis
from bgmiv.trust.verdict import FitEvidence, Verdict, judge


@pytest.mark.parametrize("which", ["analysis", "levelled", "bare"])
def test_lines_fit_and_text_is_the_repr(which: str, request: pytest.FixtureRequest) -> None:
    summary = Summary(request.getfixturevalue(which))
    assert str(summary) == repr(summary) == summary_text(summary.analysis)
    assert max(map(len, str(summary).splitlines())) <= 80
    assert summary._repr_html_() == summary_html(summary.analysis)


def test_everything_is_said(analysis: Analysis) -> None:
    text = summary_text(analysis)
    headings = ["Average effects", "Strength of the instruments", "Other checks", "other methods", "Fit in held-out"]
    places = [text.index(heading) for heading in headings]
    assert places == sorted(places)
    lines = {" ".join(line.split()) for line in text.splitlines()}
    assert "everyone 3,010 0.503 0.405 to 0.601 100%" in lines
    assert "Effective F of the instruments: 13.2; above 23.1 wanted [doubtful]" in lines
    assert "Robust set, 95%: 0.024 to 0.285" in lines
    assert "KIV 0.370 none" in lines
    assert "Rows: 3,010 (12 left out for missing values)" in lines
    assert "- members differ by 15% of the outcome's deviation: the fit depends on chance." in lines


def test_notebook_style_touches_nothing_else(analysis: Analysis) -> None:
    style = summary_html(analysis).split("<style>")[1].split("</style>")[0]
    rules = [part for block in style.split("}") for part in block.split("{")[0].split(",") if part.strip()]
    assert rules
    assert all(rule.strip().startswith(".bgmiv-summary") for rule in rules)


def test_a_method_without_intervals(bare: Analysis) -> None:
    assert "this method gives no interval" in answer(bare, bare.effects[0])
    assert "n/a" not in summary_text(bare)


def _check(level: CheckLevel, key: str = "endogeneity", title: str = "Test of something") -> Check:
    return Check(key, title, level, "1", "", "", {})


@pytest.mark.parametrize(
    ("levels", "verdict", "expected"),
    [
        ((), None, "note"),
        (("good", "note"), None, "good"),
        (("good",), judge(FitEvidence(n_held_out=100)), "good"),
        (("good", "doubtful"), None, "doubtful"),
        (("good",), judge(FitEvidence()), "doubtful"),
        (("doubtful",), judge(FitEvidence(n_held_out=100, first_stage_gain=0.0)), "bad"),
        (("bad",), None, "bad"),
    ],
)
def test_trust_is_that_of_the_worst(
    bare: Analysis, levels: tuple[CheckLevel, ...], verdict: Verdict | None, expected: CheckLevel
) -> None:
    found = trust(replace(bare, diagnosis=Diagnosis(tuple(map(_check, levels))), verdict=verdict))
    assert found.level == expected
    if expected in ("doubtful", "bad"):
        assert ("test of something" in found.sentence) == (expected in levels)
        assert ("held-out rows" in found.sentence) == (verdict is not None)


def test_the_verdict_is_not_told_twice(analysis: Analysis) -> None:
    checks = Diagnosis((_check("good", "effective-f"), _check("bad", "verdict"), _check("note")))
    strong, others = strength_checks(replace(analysis, diagnosis=checks))
    assert [check.key for check in (*strong, *others)] == ["effective-f", "endogeneity"]
    _, others = strength_checks(replace(analysis, diagnosis=checks, verdict=None))
    assert [check.key for check in others] == ["verdict", "endogeneity"]
