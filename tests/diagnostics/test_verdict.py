"""Each measurement of a fit, alone and on both sides of its limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bgmiv.diagnostics.verdict import FINDINGS, NOT_MEASURED, Verdict, judge
from bgmiv.fitted import FitEvidence
from bgmiv.linear_iv import Strength

NAN, INF = float("nan"), float("inf")
GOOD = FitEvidence(
    n_held_out=400,
    outcome_explained=0.9,
    linear_explained=0.85,
    flexible_explained=0.88,
    covariates_gain=0.3,
    moment_risk=0.001,
    linear_moment_risk=0.002,
    treatment_moment_risk=0.003,
    outcome_gap=1.2,
    treatment_gap=0.1,
    first_stage_gain=0.5,
    disagreement=0.05,
    near_floor=0.0,
    latent_spread=0.9,
    n_steps=3000,
    n_members=4,
    instrument_critical=23.1,
    control_error=0.001,
    control_p=0.5,
    control_visible=0.2,
)
# The linear and the kernel regression explain nothing.
ALONE = replace(GOOD, linear_explained=-9.0, flexible_explained=-9.0)
_NOT_JUDGED = (
    "n_", "discrete", "network", "left_for", "linear", "moment_statistic", "visible", "shapes", "instrument_critical",
    "control_visible",
)  # fmt: skip
MEASURED = [name for name in FitEvidence.__dataclass_fields__ if not name.startswith(_NOT_JUDGED)]
MEASURED += ["linear_explained", "linear_moment_risk"]


def found(evidence: FitEvidence) -> list[tuple[str, str]]:
    return [(finding.key, finding.severity) for finding in judge(evidence).findings]


def test_a_good_fit_has_no_findings() -> None:
    verdict = judge(GOOD)
    assert verdict == Verdict("good", (), GOOD)
    assert (verdict.reasons, str(verdict)) == ((), "good\n- This fit passed its held-out checks.")
    assert verdict.sentence == "This fit passed its held-out checks."


@pytest.mark.parametrize(
    ("name", "doubtful", "failed"),
    [
        ("first_stage_gain", 0.02, 0.005),
        ("instrument_f", 23.1, 10.0),
        ("outcome_gap", 4.0, 15.0),
        ("treatment_gap", 1.0, 4.0),
        ("disagreement", 0.12, 0.35),
        ("near_floor", 0.05, 0.5),
        ("latent_spread", 0.4, 0.1),
    ],
)
def test_a_number_beyond_its_limits(name: str, doubtful: float, failed: float) -> None:
    sign = 1.0 if failed > doubtful else -1.0
    for value, severity in (
        (-sign * INF, "good"),
        (doubtful, "good"),
        (doubtful + 1e-6 * sign, "doubtful"),
        (failed, "doubtful"),
        (failed + 1e-6 * sign, "failed"),
        (sign * INF, "failed"),
    ):
        assert found(replace(GOOD, **{name: value})) == ([] if severity == "good" else [(name, severity)])


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        ({"outcome_explained": 0.05}, "good"),
        ({"outcome_explained": 0.03}, "doubtful"),
        ({"outcome_explained": -0.01}, "failed"),
        # Most of an outcome with levels is noise.
        ({"outcome_explained": 0.03, "discrete_outcome": True}, "good"),
        ({"outcome_explained": 0.005, "discrete_outcome": True}, "doubtful"),
        # Much noise: a ratio of unexplained shares near 1, and little of what can be explained.
        ({"outcome_explained": 0.13, "linear_explained": 0.17}, "good"),
        ({"outcome_explained": 0.12, "linear_explained": 0.17}, "doubtful"),
        ({"outcome_explained": 0.07, "flexible_explained": 0.3}, "failed"),
        ({"outcome_explained": 0.05, "flexible_explained": 0.019}, "good"),
        ({"outcome_explained": 0.88, "linear_explained": 0.9}, "good"),
        ({"outcome_explained": 0.87, "linear_explained": 0.9}, "doubtful"),
        ({"outcome_explained": 0.6, "flexible_explained": 0.9}, "failed"),
        # A model that explains everything is no benchmark.
        ({"outcome_explained": 0.6, "flexible_explained": 1.0}, "good"),
        ({"covariates_gain": -1.0}, "doubtful"),
        ({"moment_risk": 0.0035}, "good"),
        ({"moment_risk": 0.0045}, "doubtful"),
        ({"moment_risk": 0.03}, "failed"),
        # A risk below zero counts as zero.
        ({"moment_risk": 0.003, "linear_moment_risk": -0.5}, "doubtful"),
        ({"moment_p": 0.01}, "good"),
        ({"moment_p": 0.009}, "doubtful"),
        # An error that is told from chance, and large enough to matter; never more than doubtful by itself.
        ({"control_error": 0.5, "control_p": 0.01}, "good"),
        ({"control_error": 0.002, "control_p": 0.0}, "good"),
        ({"control_error": 0.0021, "control_p": 0.009}, "doubtful"),
        ({"control_error": 5.0, "control_p": 0.0}, "doubtful"),
        ({"control_error": 0.5, "control_p": NAN}, "failed"),
        ({"n_held_out": 40}, "good"),
        ({"n_held_out": 39}, "doubtful"),
        ({"n_steps": 500}, "good"),
        ({"n_steps": 499}, "doubtful"),
        ({"n_failed": 2, "n_members": 2}, "doubtful"),
        ({"n_failed": 3, "n_members": 1}, "failed"),
    ],
)
def test_other_measurements(changes: dict[str, Any], severity: str) -> None:
    assert judge(replace(ALONE, **changes)).severity == severity


@pytest.mark.parametrize("name", MEASURED)
def test_not_a_number_fails_and_not_measured_is_no_fault_but_said(name: str) -> None:
    verdict = judge(replace(GOOD, **{name: NAN}))
    assert verdict.severity == "failed"
    assert "is not a number" in verdict.reasons[0]
    without = judge(replace(GOOD, **{name: None}))
    assert without.severity == ("note" if name in NOT_MEASURED else "good")
    assert without.not_measured == ((NOT_MEASURED[name],) if name in NOT_MEASURED else ())
    assert ("passed" in without.sentence) == (name not in NOT_MEASURED)


def test_a_fit_is_not_called_good_by_checks_that_were_not_made() -> None:
    verdict = judge(FitEvidence(n_held_out=400, outcome_explained=0.9, instrument_f=100.0))
    assert verdict.severity == "note"
    assert verdict.sentence == (
        "No held-out check that could be made speaks against this fit. Not measured on held-out rows: the comparison "
        "with a linear regression, the comparison with a kernel regression, the moment condition, the error of the "
        "curve given a control variable."
    )
    assert Verdict("note").sentence.startswith("This fit was not checked on held-out rows. Not measured")


@pytest.mark.parametrize(
    ("visible", "shapes", "severity", "words"),
    [
        (0, 7, "note", "could not have shown any curvature: of 7 shapes of a curve they show 0 clearly"),
        (1, 7, "note", "does not say that the effect is linear"),
        (3, 7, "good", "A linear model is enough here"),
        (None, None, "good", "no interaction"),
    ],
)
def test_a_line_is_enough_where_a_curve_could_have_been_seen(
    visible: int | None, shapes: int | None, severity: str, words: str
) -> None:
    verdict = judge(replace(GOOD, linear=True, visible_shapes=visible, shapes=shapes))
    assert verdict.severity == severity
    assert words in verdict.sentence
    assert ("is enough" in verdict.sentence) == (visible == 3)


@pytest.mark.parametrize(("error", "severity"), [(0.1, "good"), (0.101, "note"), (None, "note")])
def test_a_line_is_enough_where_the_regression_given_a_control_variable_could_have_shown_a_curve(
    error: float | None, severity: str
) -> None:
    verdict = judge(replace(GOOD, linear=True, visible_shapes=1, shapes=7, control_visible=error))
    assert verdict.severity == severity
    assert ("if confounding works through what the first stage leaves" in verdict.sentence) == (severity == "good")
    assert ("a curve that misses 10.0% of the outcome's variance would" in verdict.sentence) == (severity == "good")
    assert ("This does not say that the effect is linear" in verdict.sentence) == (severity == "note")


def test_the_worst_finding_comes_first() -> None:
    verdict = judge(replace(GOOD, n_held_out=25, first_stage_gain=0.001))
    assert [finding.severity for finding in verdict.findings] == ["doubtful", "failed"]
    assert str(verdict).splitlines() == [
        "failed",
        "- The instruments hardly help to predict the treatment of held-out rows (log-likelihood gain 0.001 per row).",
        "- Only 25 rows were held out to check the fit.",
    ]
    assert verdict.sentence == (
        "This fit failed its held-out checks; do not use it. The instruments hardly help to predict the treatment of "
        "held-out rows (log-likelihood gain 0.001 per row). Only 25 rows were held out to check the fit."
    )
    assert judge(FitEvidence()).sentence == (
        "This fit is doubtful. No rows were held out, so the fit could not be checked. Not measured on held-out rows: "
        "the comparison with a linear regression, the comparison with a kernel regression, the moment condition, the "
        "error of the curve given a control variable."
    )
    html = verdict._repr_html_()
    assert html.startswith("<p><b>Held-out checks: failed</b>")
    assert html.count("<tr>") == 2


def test_every_finding_has_a_text() -> None:
    """Everything that can go wrong at once gives one finding of every key."""
    bad = FitEvidence(
        1, -1.0, 0.5, 0.5, 0.0, 1.0, 0.0, 0.0, 99.0, 99.0, 0.0, 9.0, 1.0, 0.0, n_steps=1, n_members=1, n_failed=3
    )
    bad = replace(bad, instrument_f=1.0, n_penalised=40, moment_p=0.001, control_error=0.1, control_p=0.0)
    findings = judge(bad).findings
    assert [finding.key for finding in findings] == list(FINDINGS)
    assert {finding.severity for finding in findings} == {"doubtful", "failed"}
    for finding in findings:
        assert "{" not in finding.text
        assert finding.text.endswith(".")


def test_the_last_regression_is_judged_by_itself() -> None:
    """Networks that do not enter the estimate cannot spoil it; a line that is enough is said to be."""
    networks = replace(GOOD, outcome_gap=99.0, treatment_gap=99.0, near_floor=1.0, latent_spread=0.0, n_steps=1)
    linear = networks.with_last_stage(0.02, 0.0, True, Strength(40.0, 23.1, 1))
    linear = replace(linear, linear_explained=0.02, flexible_explained=0.02, visible_shapes=2, shapes=7)
    assert judge(linear).severity == "good"
    assert judge(linear).sentence.startswith("This fit passed its held-out checks. A linear model is enough here")
    used = networks.with_last_stage(0.9, 0.8, False, Strength(40.0, 23.1, 1))
    assert {key for key, _ in found(used)} == {"steps", "treatment_gap", "near_floor", "latent_spread"}
    weak = judge(replace(linear, instrument_f=4.0))
    assert "Anderson-Rubin" in weak.sentence
