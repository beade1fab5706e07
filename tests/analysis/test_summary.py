"""The summary as text and in notebooks, and how the headline is worded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bgmiv.analysis.analysis import Analysis, EffectRow
from bgmiv.analysis.markup import sentence, shortened
from bgmiv.analysis.page import report_page
from bgmiv.analysis.text import answer, cautions, checks_of, headline, summary_html, summary_text, trust
from bgmiv.diagnostics.checks import Diagnosis
from bgmiv.diagnostics.explanations import Check, Severity
from bgmiv.diagnostics.verdict import Verdict, judge
from bgmiv.fitted import FitEvidence
from bgmiv.numerals import percent, share, together

GOOD = judge(
    FitEvidence(n_held_out=100, linear_explained=0.1, flexible_explained=0.1, moment_risk=0.0, control_error=0.0)
)
DOUBTFUL = judge(FitEvidence())
FAILED = judge(FitEvidence(n_held_out=100, first_stage_gain=0.0))


@pytest.mark.parametrize("which", ["analysis", "levelled", "bare"])
def test_lines_fit_and_text_is_the_repr(which: str, request: pytest.FixtureRequest) -> None:
    analysis = request.getfixturevalue(which)
    assert str(analysis) == repr(analysis) == summary_text(analysis)
    assert max(map(len, str(analysis).splitlines())) <= 80
    assert analysis._repr_html_() == summary_html(analysis)


def test_numbers_and_texts_as_they_are_shown() -> None:
    assert [share(value) for value in (0.974, 0.9999, 0.0, 0.002)] == ["97%", ">99%", "0%", "<1%"]
    assert [percent(level) for level in (0.95, 0.995)] == ["95%", "99.5%"]
    assert together(9418.8, 6000.1, None) == ("9,419", "6,000", "n/a")
    assert shortened("the share of benefits in income", 15) == "the sha… income"
    assert sentence("the mean of lwage") == "The mean of lwage."


def test_everything_is_said(analysis: Analysis) -> None:
    text = summary_text(analysis)
    headings = ["Average effects", "Strength of the instruments", "Other checks", "other methods", "Fit on held-out"]
    places = [text.index(heading) for heading in headings]
    assert places == sorted(places)
    lines = {" ".join(line.split()) for line in text.splitlines()}
    assert {
        "all rows 3,010 0.503 0.405 to 0.601 100%",
        "33.2 for level 'high school', the weakest; critical value 23.1",
        "Robust set, 95%: 0.024 to 0.285",
        "KIV 0.370 none",
        "Rows: 3,010 (12 dropped for missing values)",
    } <= lines
    assert "linear in the treatment" in summary_html(analysis)
    for word in ("people", "everyone", "twin"):
        assert word not in text


def test_notebook_style_touches_nothing_else(analysis: Analysis) -> None:
    style = summary_html(analysis).split("<style>")[1].split("</style>")[0]
    rules = [part for block in style.split("}") for part in block.split("{")[0].split(",") if part.strip()]
    assert rules
    assert all(rule.strip().startswith(".bgmiv-summary") for rule in rules)


def test_a_method_without_intervals(bare: Analysis) -> None:
    assert "this method gives no interval" in headline(bare)
    assert "n/a" not in summary_text(bare)


CHANGE = "etting educ to 16 instead of 12"
END = "change lwage by 0.503 on average (95% interval 0.405 to 0.601)."


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (None, f"S{CHANGE} would {END}"),
        (GOOD, f"S{CHANGE} would {END}"),
        (DOUBTFUL, f"Read with caution: the held-out checks leave this fit in doubt. S{CHANGE} is estimated to {END}"),
        (
            FAILED,
            "This fit failed its held-out checks: do not use its estimate. The data do not support an estimate of the "
            f"effect of educ on lwage by BGM-IV. The linear estimate (2SLS) for s{CHANGE} is 0.526 (95% interval "
            "0.097 to 0.955).",
        ),
    ],
)
def test_the_verdict_words_the_headline(analysis: Analysis, verdict: Verdict | None, words: str) -> None:
    judged = replace(analysis, verdict=verdict)
    assert headline(judged) == words
    assert words in " ".join(summary_text(judged).split())
    page = report_page(judged)
    assert page.index('class="answer"') > page.find('class="caution') >= (0 if cautions(judged) else -1)
    without = replace(judged, methods=judged.methods[:1])
    assert ("2SLS" in headline(judged)) == (verdict is FAILED)
    assert "2SLS" not in headline(without)


NUMBERS = {"effective_f": 1.0, "critical": 23.0, "instruments": 1.0, "robust_p": 0.2, "wu_hausman_p": 0.2}


def _with_interval(row: EffectRow, **changed: Any) -> EffectRow:
    return replace(row, interval=replace(row.interval, **changed))


def _check(severity: Severity, key: str = "endogeneity") -> Check:
    return Check(key, severity, NUMBERS)


def test_weak_instruments_are_said_beside_the_interval(analysis: Analysis, bare: Analysis) -> None:
    weak = (_check("failed", "effective-f"),)
    found = cautions(replace(analysis, verdict=GOOD, diagnosis=replace(analysis.diagnosis, checks=weak)))
    assert found == [
        "The instruments are weak: the estimate may be far off, and intervals of this kind are too narrow. Rely on the "
        "weak-instrument-robust set."
    ]
    weakly = replace(analysis, verdict=GOOD, diagnosis=replace(analysis.diagnosis, checks=weak))
    assert answer(weakly) == (
        "The data do not support an estimate of the effect of educ on lwage by BGM-IV. The weak-instrument-robust 95% "
        "set for the linear effect of one unit of educ: 0.024 to 0.285."
    )
    robust = _with_interval(analysis.effects[0], method="anderson-rubin", pieces=((0.1, 0.9),))
    protected = replace(weakly, effects=(robust, *analysis.effects[1:]))
    assert answer(protected).endswith("The weak-instrument-robust 95% set for s" + CHANGE + ": 0.100 to 0.900.")
    assert "report the interval of the average effect" in cautions(protected)[0]
    # The set of the average effect takes the shape of the fit for right: of a failed fit it is not to be reported.
    both = replace(protected, verdict=FAILED)
    assert "report the interval" not in headline(both)
    assert answer(both) == answer(weakly)
    assert cautions(replace(bare, diagnosis=Diagnosis(weak))) == [
        "The instruments are weak: the estimate may be far off."
    ]
    others = cautions(replace(analysis, verdict=GOOD, diagnosis=Diagnosis((_check("failed"),))))
    assert others == ["A check failed: do not rely on this estimate."]


@pytest.mark.parametrize(
    ("severities", "verdict", "expected"),
    [
        (("good", "note"), None, "good"),
        (("good",), GOOD, "good"),
        (("good", "doubtful"), None, "doubtful"),
        (("good",), DOUBTFUL, "doubtful"),
        (("doubtful",), FAILED, "failed"),
        (("failed",), None, "failed"),
    ],
)
def test_trust_is_that_of_the_worst(
    bare: Analysis, severities: tuple[Severity, ...], verdict: Verdict | None, expected: Severity
) -> None:
    found = trust(replace(bare, diagnosis=Diagnosis(tuple(map(_check, severities))), verdict=verdict))
    assert found.severity == expected
    if expected in ("doubtful", "failed"):
        assert ("is the treatment endogenous?" in found.sentence) == (expected in severities)
        assert ("held-out rows" in found.sentence) == (verdict is not None)


def test_the_verdict_is_not_told_twice(analysis: Analysis) -> None:
    checks = Diagnosis((_check("good", "effective-f"), _check("failed", "verdict"), _check("note")))
    strength, others = checks_of(replace(analysis, diagnosis=checks))
    assert [check.key for check in (*strength, *others)] == ["effective-f", "endogeneity"]
