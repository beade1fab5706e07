"""All checks together: which appear, in which order, what they say, and when they warn."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bgmiv import BGMIV, KIV, TSLS
from bgmiv.data.ivdata import IVData
from bgmiv.designs import load_empirical
from bgmiv.errors import DataError, FitWarning, NotFittedError, WeakInstrumentWarning
from bgmiv.persist import Codec
from bgmiv.trust.contrasts import changes_of
from bgmiv.trust.diagnose import diagnose
from bgmiv.trust.diagnosis import Check, Diagnosis, LinearEstimate
from bgmiv.trust.fit_checks import gain_check, held_out_values, verdict_check
from bgmiv.trust.verdict import FitEvidence, judge

ORDER = [
    "effective-f", "robust-f", "nonlinear-first-stage", "anderson-rubin", "overidentification", "endogeneity",
    "moment-test", "twin", "linear-comparison", "latent-usage", "verdict",
]  # fmt: skip
LEVELS = np.array(["low", "middle", "high"])


def sample(strength: float = 1.0, *, n: int = 300, q: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    u = rng.normal(size=n)
    w, v = rng.normal(size=(n, q)), rng.normal(size=(n, 2))
    x = strength * w.sum(axis=1) + v[:, 0] + u
    return {"outcome": 2.0 * x + v[:, 1] - u, "treatment": x, "instruments": w, "covariates": v}


@pytest.fixture(scope="module")
def fitted() -> Iterator[BGMIV]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        yield BGMIV(warm_start_iterations=20, members=2, random_state=0).fit(**sample())


@pytest.fixture(scope="module")
def diagnosis(fitted: BGMIV) -> Diagnosis:
    return fitted.diagnose()


def test_bgmiv_has_every_check_in_order(diagnosis: Diagnosis) -> None:
    assert [check.key for check in diagnosis.checks] == ORDER
    for check in diagnosis.checks:
        assert check.reading.endswith((".", "?")), check
        assert check.reference
        assert check.value
        assert all(np.isfinite(value) for value in check.numbers.values()), check


def test_the_diagnosis_reads_as_text(diagnosis: Diagnosis) -> None:
    text = str(diagnosis)
    assert text.startswith(f"Diagnosis: {diagnosis.level}")
    for check in diagnosis.checks:
        assert check.title in text
        assert " ".join(check.reading.split()[:3]) in " ".join(text.split())


def test_the_diagnosis_can_be_saved(diagnosis: Diagnosis) -> None:
    codec = Codec({"diagnosis": Diagnosis, "check": Check, "linear": LinearEstimate}, {})
    assert codec.decode(codec.encode(diagnosis), Diagnosis) == diagnosis


def test_latents_are_used_where_the_model_lets_them(diagnosis: Diagnosis) -> None:
    used = diagnosis["latent-usage"].numbers
    assert used["outcome-only.treatment"] == used["treatment-only.outcome"] == used["nuisance.outcome"] == 0.0
    assert used["shared.outcome"] > 0
    assert used["shared.treatment"] > 0
    assert used["nuisance.covariates"] > 0


def test_held_out_rows_are_predicted_by_who_left_them_out(fitted: BGMIV) -> None:
    assert fitted.data_ is not None
    rows, values, held_out = held_out_values(fitted.fitted_, fitted.data_)
    assert held_out
    everyone = fitted.fitted_.predict_members(fitted.data_.treatment[rows], fitted.data_.covariates[rows])
    for i, row in enumerate(rows):
        (owner,) = [j for j, member in enumerate(fitted.fitted_.members) if row in member.held_out_rows]
        assert values[i] == pytest.approx(everyone[owner, i])


def test_the_diagnosis_is_kept_until_the_next_fit(fitted: BGMIV, diagnosis: Diagnosis) -> None:
    assert fitted.diagnose() is diagnosis
    assert fitted.diagnosis_ is diagnosis
    model = TSLS().fit(**sample())
    first = model.diagnose()
    model.fit(**sample(seed=1))
    assert not hasattr(model, "diagnosis_")
    assert model.diagnose() is not first
    assert model.diagnose(level=0.9).linear != model.diagnose().linear


def test_a_saved_model_says_that_it_has_no_rows(fitted: BGMIV) -> None:
    loaded = BGMIV()
    loaded.fitted_, loaded.seed_ = fitted.fitted_, 0
    with pytest.raises(DataError, match="not in a saved model"):
        loaded.diagnose()
    with pytest.raises(DataError, match="not in a saved model"):
        loaded.sensitivity(0.1)
    with pytest.raises(NotFittedError):
        BGMIV().diagnose()


@pytest.mark.parametrize("strength", [0.0, 0.08])
def test_weak_instruments_are_announced(strength: float) -> None:
    model = TSLS().fit(**sample(strength, q=1))
    with pytest.warns(WeakInstrumentWarning, match="effective F is"):
        found = model.diagnose(twin=False)
    assert found.weak_instruments
    assert found["effective-f"].level == found["robust-f"].level == "bad"
    assert "Anderson-Rubin set" in found["effective-f"].reading


def test_an_effective_f_between_ten_and_its_critical_value_is_doubtful() -> None:
    card = load_empirical("card")
    model = TSLS.from_formula(card.formula, card.table)
    with pytest.warns(WeakInstrumentWarning):
        found = model.diagnose(twin=False)
    assert found["effective-f"].level == "doubtful"
    assert found["robust-f"].numbers["f"] == pytest.approx(13.26, abs=0.01)
    assert found["anderson-rubin"].level == "good"


def test_birth_weight_is_announced_as_weak_and_unbounded() -> None:
    data = load_empirical("bwght")
    with pytest.warns(WeakInstrumentWarning):
        found = TSLS.from_formula(data.formula, data.table).diagnose()
    assert found["effective-f"].level == "bad"
    assert found["anderson-rubin"].value == "every number"
    assert found["anderson-rubin"].level == "bad"
    assert found.linear is not None
    assert found.linear.robust_set == ((-np.inf, np.inf),)


def test_strong_and_valid_instruments_are_good() -> None:
    found = TSLS().fit(**sample(n=600)).diagnose()
    assert not found.weak_instruments
    assert found.level == "note"
    assert "fitted on" in found["moment-test"].reading
    twin = found["twin"].numbers
    assert twin["difference"] == pytest.approx(twin["linear_difference"], rel=1e-6)


def test_an_instrument_that_acts_directly_is_found() -> None:
    data = sample(n=600)
    data["outcome"] = data["outcome"] + data["instruments"][:, 0]
    found = TSLS().fit(**data).diagnose(twin=False)
    assert found["overidentification"].level == "bad"
    assert found["anderson-rubin"].value == "empty"
    assert found["moment-test"].numbers["p"] < 0.05


def test_levels_of_the_treatment() -> None:
    data = sample(n=400)
    several = TSLS().fit(**data | {"treatment": LEVELS[np.digitize(data["treatment"], [-1.0, 1.0])]})
    assert several.data_ is not None
    assert len(changes_of(several.data_)) == 2
    found = several.diagnose()
    assert found.linear is None
    assert "the weakest" in found["effective-f"].value
    assert found["twin"].numbers["difference"] != 0.0
    binary = TSLS().fit(**data | {"treatment": data["treatment"] > 0}).diagnose(twin=False)
    assert binary.linear is not None
    assert binary.linear.coefficient > 2.0
    assert binary["linear-comparison"].numbers["t1"] == 1.0


class Frequencies:
    """The simplest curve of an outcome of several levels: how often each occurs."""

    def __init__(self, data: IVData) -> None:
        self.schema = data.schema
        self.shares = np.bincount(data.outcome.astype(int)) / data.n_rows

    def predict(self, treatment: np.ndarray, covariates: Any = None) -> np.ndarray:
        return np.tile(self.shares, (len(treatment), 1))


def test_levels_of_the_outcome() -> None:
    data = IVData.from_arrays(**sample(n=400) | {"outcome": LEVELS[np.digitize(sample(n=400)["outcome"], [-2.0, 2.0])]})
    found = diagnose(data, Frequencies(data), twin=Frequencies(data))
    assert found.linear is None
    assert found["moment-test"].level != "good"
    assert found["endogeneity"].numbers["robust_p"] < 0.05
    assert found["twin"].numbers["difference"] == 0.0


def test_a_method_without_evidence_or_twin_skips_these() -> None:
    found = KIV().fit(**sample(n=200)).diagnose(twin=False)
    assert [check.key for check in found.checks] == [
        key for key in ORDER if key not in ("nonlinear-first-stage", "twin", "latent-usage", "verdict")
    ]


def test_readings_follow_the_evidence() -> None:
    weak = judge(FitEvidence(n_held_out=400, outcome_explained=0.9, first_stage_gain=0.001))
    check = gain_check(weak)
    assert check is not None
    assert check.level == "bad"
    assert verdict_check(weak).level == "bad"
    assert "do not use it" in verdict_check(weak).reading
    assert gain_check(judge(FitEvidence())) is None
    assert verdict_check(judge(FitEvidence(n_held_out=400))).level == "good"
