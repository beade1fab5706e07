"""Each number that speaks against a fit, by itself and from both sides of its limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bgmiv.trust.verdict import FitEvidence, Pair, Thresholds, Verdict, judge

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
)
# A number, its limits, which way is bad, and a word of the finding.
SIMPLE = {
    "first_stage_gain": ("first_stage_gain", -1, "instruments add"),
    "outcome_gap": ("outcome_gap", +1, "times larger in held-out rows"),
    "treatment_gap": ("treatment_gap", +1, "lower in held-out rows"),
    "disagreement": ("disagreement", +1, "members differ"),
    "near_floor": ("near_floor", +1, "at their floor"),
    "latent_spread": ("latent_spread", -1, "latents have a mean deviation"),
}


def levels(evidence: FitEvidence, thresholds: Thresholds | None = None) -> list[str]:
    return [finding.level for finding in judge(evidence, thresholds).findings]


def only_text(evidence: FitEvidence) -> str:
    (finding,) = judge(evidence).findings
    return finding.text


def test_nothing_against_a_good_fit() -> None:
    verdict = judge(GOOD)
    assert (verdict.level, verdict.findings, verdict.reasons) == ("good", (), ())
    assert verdict.evidence is GOOD
    assert str(verdict) == "good"


@pytest.mark.parametrize("name", list(SIMPLE))
def test_a_number_beyond_its_limits(name: str) -> None:
    limits_name, sign, words = SIMPLE[name]
    limits: Pair = getattr(Thresholds(), limits_name)
    assert sign * limits.doubtful < sign * limits.failed
    step = 1e-6 * sign
    for value, level in (
        (limits.doubtful - step, "good"),
        (limits.doubtful, "good"),
        (limits.doubtful + step, "doubtful"),
        (limits.failed, "doubtful"),
        (limits.failed + step, "failed"),
        (sign * INF, "failed"),
        (-sign * INF, "good"),
    ):
        evidence = replace(GOOD, **{name: value})
        assert judge(evidence).level == level, (value, level)
        assert levels(evidence) == ([] if level == "good" else [level])
        if level != "good":
            assert words in only_text(evidence)


def test_the_share_that_is_explained() -> None:
    # Without the yardsticks' shares nothing else depends on it.
    alone = replace(GOOD, linear_explained=None, flexible_explained=None)
    for value, level in ((0.05, "good"), (0.049, "doubtful"), (0.0, "doubtful"), (-0.01, "failed"), (-5.0, "failed")):
        evidence = replace(alone, outcome_explained=value)
        assert judge(evidence).level == level
    assert only_text(replace(alone, outcome_explained=-0.01)) == (
        "instruments and covariates explain -1.0% of the outcome's variance in held-out rows."
    )


@pytest.mark.parametrize(
    ("other", "words"), [("linear_explained", "a linear regression"), ("flexible_explained", "a kernel regression")]
)
def test_another_model_that_leaves_less_unexplained(other: str, words: str) -> None:
    base, limits = replace(GOOD, linear_explained=None, flexible_explained=None), Thresholds().behind
    assert 1.0 < limits.doubtful < limits.failed
    for ratio, level in (
        (0.1, "good"),
        (1.0, "good"),
        (limits.doubtful - 1e-6, "good"),
        (limits.doubtful + 1e-6, "doubtful"),
        (limits.failed - 1e-6, "doubtful"),
        (limits.failed + 1e-6, "failed"),
    ):
        evidence = replace(base, outcome_explained=1.0 - 0.1 * ratio, **{other: 0.9})
        assert levels(evidence) == ([] if level == "good" else [level]), ratio
    assert f"4.0 times as much of the outcome is unexplained in held-out rows as by {words}" in only_text(
        replace(base, outcome_explained=0.6, **{other: 0.9})
    )
    # Beside one that leaves nothing any fit would be infinitely far behind.
    assert judge(replace(base, outcome_explained=0.6, **{other: 1.0})).level == "good"


@pytest.mark.parametrize(
    ("other", "words"),
    [("linear_moment_risk", "linear 2SLS meets"), ("treatment_moment_risk", "a curve in the treatment alone meets")],
)
def test_a_simpler_fit_that_meets_the_moment_better(other: str, words: str) -> None:
    base = replace(GOOD, linear_moment_risk=None, treatment_moment_risk=None)
    for excess, level in ((-0.1, "good"), (0.0019, "good"), (0.0021, "doubtful"), (0.021, "failed")):
        evidence = replace(base, moment_risk=0.01 + excess, **{other: 0.01})
        assert levels(evidence) == ([] if level == "good" else [level])
        if level != "good":
            assert words in only_text(evidence)
    # An unbiased estimate below zero is no merit.
    assert judge(replace(base, moment_risk=0.001, **{other: -0.5})).level == "good"
    assert judge(replace(base, moment_risk=0.003, **{other: -0.5})).level == "doubtful"


NUMBERS = [name for name in FitEvidence.__dataclass_fields__ if not name.startswith(("n_", "discrete"))]


@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_no_number_has_failed(name: str) -> None:
    verdict = judge(replace(GOOD, **{name: NAN}))
    assert verdict.level == "failed"
    assert "nan" in verdict.reasons[0]


@pytest.mark.parametrize("name", NUMBERS)
def test_what_could_not_be_measured_is_not_held_against_a_fit(name: str) -> None:
    assert judge(replace(GOOD, **{name: None})).level == "good"


@pytest.mark.parametrize(("rows", "level"), [(0, "doubtful"), (1, "doubtful"), (39, "doubtful"), (40, "good")])
def test_too_few_held_out_rows_leave_doubt(rows: int, level: str) -> None:
    verdict = judge(replace(GOOD, n_held_out=rows))
    assert verdict.level == level
    if rows == 0:
        assert verdict.reasons == ("no rows were held out, so that the fit could not be checked.",)
    elif level != "good":
        assert verdict.reasons == (f"only {rows} rows were held out to check the fit.",)


def test_evidence_of_nothing_leaves_doubt() -> None:
    assert judge(FitEvidence()).level == "doubtful"


@pytest.mark.parametrize(
    ("failed", "kept", "level"), [(0, 1, "good"), (1, 3, "doubtful"), (2, 2, "doubtful"), (3, 1, "failed")]
)
def test_failed_members(failed: int, kept: int, level: str) -> None:
    verdict = judge(replace(GOOD, n_failed=failed, n_members=kept))
    assert verdict.level == level
    assert verdict.reasons == ((f"{failed} of 4 members failed at every attempt.",) if failed else ())


def test_the_worst_finding_is_the_verdict_and_comes_first() -> None:
    limits = Thresholds()
    evidence = replace(
        GOOD,
        n_held_out=30,
        disagreement=sum(limits.disagreement) / 2.0,
        first_stage_gain=limits.first_stage_gain.failed - 0.1,
        near_floor=sum(limits.near_floor) / 2.0,
        latent_spread=limits.latent_spread.failed / 2.0,
    )
    verdict = judge(evidence)
    assert verdict.level == "failed"
    assert [finding.level for finding in verdict.findings] == [
        "doubtful",
        "failed",
        "doubtful",
        "doubtful",
        "failed",
    ]
    assert [reason.split()[1] for reason in verdict.reasons] == ["instruments", "latents", "30", "differ", "of"]
    assert judge(replace(evidence, first_stage_gain=1.0, latent_spread=1.0)).level == "doubtful"


def test_a_verdict_reads_as_its_level_and_a_line_a_reason() -> None:
    verdict = judge(replace(GOOD, n_held_out=25, first_stage_gain=0.001))
    assert str(verdict).splitlines() == [
        "failed",
        "- the instruments add 0.001 to the treatment's held-out log-likelihood: they hardly move it.",
        "- only 25 rows were held out to check the fit.",
    ]


@pytest.mark.parametrize("changes", [{"disagreement": Pair(0.01, 0.02)}, {"fewest_held_out": 401}])
def test_other_thresholds_judge_otherwise(changes: dict[str, Any]) -> None:
    assert judge(GOOD, Thresholds(**changes)).level != "good"


def test_a_verdict_can_be_made_by_hand() -> None:
    assert Verdict("good") == Verdict("good", (), FitEvidence())


def test_a_fit_of_few_steps_cannot_be_good() -> None:
    fewest = Thresholds().fewest_steps
    assert judge(replace(GOOD, n_steps=fewest)).level == "good"
    assert levels(replace(GOOD, n_steps=fewest - 1)) == ["doubtful"]
    assert f"only {fewest - 1} steps" in only_text(replace(GOOD, n_steps=fewest - 1))


def test_covariates_that_add_nothing_are_doubtful_and_no_more() -> None:
    limit = Thresholds().covariates_gain
    assert levels(replace(GOOD, covariates_gain=limit)) == []
    assert levels(replace(GOOD, covariates_gain=None)) == []
    for gain in (0.9 * limit, -1.0):
        assert levels(replace(GOOD, covariates_gain=gain)) == ["doubtful"]
        assert "the covariates add" in only_text(replace(GOOD, covariates_gain=gain))


def test_an_outcome_with_levels_may_be_mostly_chance() -> None:
    base = replace(GOOD, linear_explained=None, flexible_explained=None)
    assert levels(replace(base, outcome_explained=0.03)) == ["doubtful"]
    assert levels(replace(base, outcome_explained=0.03, discrete_outcome=True)) == []
    assert levels(replace(base, outcome_explained=0.005, discrete_outcome=True)) == ["doubtful"]
    assert levels(replace(base, outcome_explained=-0.1, discrete_outcome=True)) == ["failed"]
