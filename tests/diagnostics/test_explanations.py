"""Checks in words: one scale of severity, and a reading for every key and severity that can occur."""

from __future__ import annotations

import pytest

from bgmiv.diagnostics.checks import Diagnosis
from bgmiv.diagnostics.explanations import CHECKS, SEVERITIES, Check, Severity, preparation_text, worst
from bgmiv.linear_iv import LinearEstimate

INF = float("inf")
_F = {"effective_f": 12.0, "critical": 19.3, "instruments": 2.0}
_ROBUST = {"robust_f": 12.0, "f": 13.0, "partial_r2": 0.04, "instruments": 2.0, "clustered": 0.0}
_SET = {"intervals": 1.0, "unbounded": 0.0, "holds_zero": 1.0, "usual_lower": 0.0, "usual_upper": 2.0, "level": 0.95}
_SET |= {"lower_1": -1.0, "upper_1": 2.0}
_J = {"j": 1.0, "j_p": 0.2, "sargan": 1.0, "sargan_p": 0.0, "dof": 1.0}
_HAUSMAN = {"robust": 4.0, "robust_p": 0.01, "wu_hausman": 4.0, "wu_hausman_p": 0.01, "durbin": 4.0, "durbin_p": 0.01}
_MOMENT = {"p": 0.002, "statistic": 0.03, "rows": 400.0, "held_out": 1.0}
_PAIR = {"effect": 2.0, "without_instrument": 1.0, "difference": 1.0, "linear_difference": 20.0}
_LINE = {"effect": 2.0, "linear": 1.0, "lower": 0.5, "upper": 1.5, "t0": 0.0, "t1": 1.0, "same": 0.0}
_DETAIL = {"visible": 2.0, "possible": 3.0, "shape_1": 0.8, "shape_2": 0.5, "shape_3": 0.1}
_CHANGE = {"change": "from 0 to 1"}

# Every key with the severities it can have, and numbers, labels and words of the reading for each.
CASES: list[tuple[str, Severity, dict[str, float], dict[str, str], str]] = [
    ("effective-f", "good", _F, {}, "strong enough"),
    ("effective-f", "doubtful", _F, {"level": "high"}, "a tenth of its worst case"),
    ("effective-f", "failed", _F, {}, "are weak"),
    ("effective-f", "failed", _F | {"instruments": 0.0}, {}, "Drop covariates"),
    ("robust-f", "good", _ROBUST, {}, "4.00% of the treatment's variance"),
    ("robust-f", "doubtful", _ROBUST, {}, "go by the effective F"),
    ("robust-f", "failed", _ROBUST | {"clustered": 1.0}, {}, "below 10"),
    ("nonlinear-first-stage", "good", {"gain": 0.3}, {}, "help to predict"),
    ("nonlinear-first-stage", "doubtful", {"gain": 0.01}, {}, "help little"),
    ("nonlinear-first-stage", "failed", {"gain": 0.0}, {}, "hardly help"),
    ("anderson-rubin", "good", _SET, {}, "contains zero. Where it is wider"),
    ("anderson-rubin", "doubtful", _SET | {"intervals": 0.0}, {}, "No linear effect agrees"),
    ("anderson-rubin", "failed", _SET | {"lower_1": -INF, "upper_1": INF}, {}, "unbounded"),
    ("ill-posedness", "good", _DETAIL, _CHANGE, "the instruments show 2 clearly"),
    ("ill-posedness", "note", _DETAIL | {"visible": 1.0}, _CHANGE, "assumption of smoothness"),
    ("ill-posedness", "good", {"visible": 1.0, "possible": 1.0, "shape_1": 0.8}, _CHANGE, "show 1 clearly"),
    ("overidentification", "good", _J, {}, "agree"),
    ("overidentification", "doubtful", _J, {}, "disagree"),
    ("overidentification", "failed", _J, {}, "disagree"),
    ("endogeneity", "note", _HAUSMAN, {}, "is endogenous"),
    ("endogeneity", "note", _HAUSMAN | {"robust_p": 0.4}, {}, "no reason to drop"),
    ("moment-test", "good", _MOMENT | {"held_out": 0.0}, {}, "rejects too rarely"),
    ("moment-test", "doubtful", _MOMENT, {}, "3.00% of the outcome's variance"),
    ("moment-test", "failed", _MOMENT, {}, "question the exclusion restriction"),
    ("moment-test", "failed", {}, {}, "not numbers"),
    ("no-instrument", "note", _PAIR, _CHANGE, "Is its size plausible?"),
    ("no-instrument", "doubtful", _PAIR, _CHANGE, "corrects by 20"),
    ("linear-comparison", "good", _LINE, _CHANGE, "agrees"),
    ("linear-comparison", "note", _LINE, _CHANGE, "look at the curve"),
    ("linear-comparison", "note", _LINE | {"same": 1.0}, _CHANGE, "itself"),
    ("linear-comparison", "doubtful", _LINE, _CHANGE, "opposite signs"),
    ("latent-usage", "note", {"shared.outcome": 0.3, "nuisance.covariates": 0.1}, {}, "observed confounding"),
    ("latent-usage", "doubtful", {"shared.outcome": 0.0}, {}, "No part affects the outcome"),
    ("verdict", "good", {"n_held_out": 400.0}, {"sentence": "This fit passed."}, "passed"),
]


@pytest.mark.parametrize(("key", "severity", "numbers", "labels", "words"), CASES)
def test_every_check_reads_as_sentences(
    key: str, severity: Severity, numbers: dict[str, float], labels: dict[str, str], words: str
) -> None:
    check = Check(key, severity, numbers, labels)
    assert words in check.reading
    assert check.reading.endswith((".", "?"))
    assert check.title[:1].isupper()
    assert check.value
    assert check.reference
    assert "{" not in check.title + check.value + check.reading


def test_every_key_has_readings() -> None:
    assert {case[0] for case in CASES} == set(CHECKS)


def test_one_scale_of_severity() -> None:
    assert worst([]) == "good"
    for i, severity in enumerate(SEVERITIES):
        assert worst(reversed(SEVERITIES[: i + 1])) == severity
    for severity in ("doubtful", "failed"):
        assert Diagnosis((Check("effective-f", severity, _F),)).weak_instruments
    assert not Diagnosis((Check("robust-f", "failed", _ROBUST),)).weak_instruments


def test_the_values_as_shown() -> None:
    shown = {
        (key, severity): Check(key, severity, numbers, labels).value for key, severity, numbers, labels, _ in CASES
    }
    assert shown["effective-f", "doubtful"] == "12 for level 'high', the weakest; critical value 19.3"
    assert shown["anderson-rubin", "good"] == "-1.00 to 2.00"
    assert shown["anderson-rubin", "failed"] == "every number"
    assert shown["overidentification", "good"] == "p = 0.2 (J), p < 0.001 (Sargan)"
    assert shown["latent-usage", "note"] == "shared: outcome 0.30; nuisance: covariates 0.10"


def test_a_diagnosis_is_a_table_and_text() -> None:
    checks = tuple(Check(key, severity, numbers, labels) for key, severity, numbers, labels, _ in CASES[:4])
    found = Diagnosis(checks, LinearEstimate(2.0, 0.5, 1.0, 3.0, 1.5, 0.1, ((1.0, 3.0),), 0.9))
    assert found.severity == "failed"
    assert str(found).startswith(
        "Diagnosis: failed\nLinear effect by 2SLS: 2 (standard error 0.5), 90% interval [1, 3]"
    )
    assert list(found.to_frame().columns) == ["key", "title", "severity", "value", "reading"]
    assert found.to_frame()["severity"].tolist() == [check.severity for check in checks]
    html = found._repr_html_()
    assert html.count("<tr>") == 5
    assert "&#x27;high&#x27;" in html
    with pytest.raises(KeyError, match="verdict"):
        _ = found["verdict"]


def test_what_was_done_to_the_columns() -> None:
    numbers = {"covariate_columns": 600.0, "components": 40.0, "groups_ignored": 3.0, "redundant_covariates": 2.0}
    text = preparation_text(numbers, {"dropped_instruments": "'z'"})
    assert "600 covariate columns are replaced by their 40 leading principal components" in text
    assert text.count(".") == 4
    assert preparation_text({}, {}) == ""
