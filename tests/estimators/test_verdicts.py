"""Verdicts of every method: from rows that neither members nor coefficients have seen, at any number of rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bgmiv
from bgmiv import BGMIV, KIV, NPIV, TSLS, ControlFunction, DeepGMM
from bgmiv.bgm.config import PRESETS, BGMIVConfig
from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Query, Rows
from bgmiv.diagnostics.moments import compared_within, cross_fits
from bgmiv.diagnostics.verdict import NOT_MEASURED
from bgmiv.errors import ConfigError, FitWarning

RNG = np.random.default_rng(0)
N = 400
W, V, U, E = RNG.normal(size=(4, N))
X = W + 0.5 * V + U
Y = X + V - U + E
ROWS: dict[str, Any] = {"instruments": W, "covariates": V}


@pytest.fixture
def small_default(small_preset: BGMIVConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(small_preset, initial=replace(small_preset.initial, iterations=12, chunk=4))
    monkeypatch.setitem(PRESETS, "default", lambda: config)


@pytest.mark.parametrize("method", [TSLS, NPIV, ControlFunction, KIV])
def test_methods_in_closed_form_are_checked_when_asked(method: Any, tmp_path: Path) -> None:
    model = method().fit(Y, X, **ROWS)
    assert model.fitted_.evidence is None
    model.save(tmp_path / "unasked")
    unasked = bgmiv.load(tmp_path / "unasked")
    assert unasked.verdict_.severity == "note"
    assert unasked.verdict_.sentence.startswith("This fit was not checked on held-out rows.")
    verdict = model.verdict_
    assert verdict.severity == "good"
    assert verdict.not_measured == ()
    assert verdict.evidence.n_held_out == N
    assert verdict.evidence.instrument_f is not None
    assert model.diagnose(no_instrument=False)["verdict"].severity == "good"
    assert model.diagnose(no_instrument=False)["moment-test"].numbers["held_out"] == 1.0
    model.save(tmp_path / "asked")
    assert bgmiv.load(tmp_path / "asked").verdict_ == verdict


def test_a_wrong_curve_is_seen_by_every_method_that_is_asked() -> None:
    """The effect is a parabola, of which a line shows nothing."""
    x = W + 0.3 * U
    model = TSLS().fit(x**2 + U, x, instruments=W)
    assert model.verdict_.severity == "failed"
    assert {"moment_p", "behind_flexible"} <= {finding.key for finding in model.verdict_.findings}


def test_weak_instruments_fail_every_method() -> None:
    x = 0.05 * W + U
    assert "instrument_f" in [finding.key for finding in TSLS().fit(x - U + E, x, instruments=W).verdict_.findings]


def test_without_instruments_nothing_is_called_good() -> None:
    verdict = NPIV(use_instrument=False, random_state=0).fit(Y, X, **ROWS).verdict_
    assert verdict.not_measured
    assert "passed" not in verdict.sentence


def test_members_predict_the_rows_they_held_out() -> None:
    model = DeepGMM(updates=4, batch_size=16, hidden=(6,), members=2, random_state=0).fit(Y, X, **ROWS)
    assert model.verdict_.evidence.n_held_out == 160
    assert model.verdict_.not_measured == ()
    whole = DeepGMM(updates=4, batch_size=16, hidden=(6,), members=1, held_out=0.0, random_state=0).fit(Y, X, **ROWS)
    assert whole.verdict_.not_measured == tuple(NOT_MEASURED.values())
    assert whole.verdict_.severity != "good"


@pytest.mark.filterwarnings("ignore::bgmiv.errors.FitWarning")
@pytest.mark.usefixtures("small_default")
def test_a_last_stage_is_checked_by_coefficients_that_have_not_seen_the_row() -> None:
    model = BGMIV(random_state=0).fit(Y, X, **ROWS)
    fitted = model.fitted_
    assert not fitted.uses_networks
    rows = Rows(model.data_.covariates)
    found = fitted.held_out_predictions(model.data_, rows, 1500)
    assert found is not None
    np.testing.assert_array_equal(found.rows, np.arange(N))
    inside = fitted.at(Query(model.data_.treatment[None], rows))[0]
    assert not np.isclose(found.values, inside, rtol=0.0, atol=1e-12).any()
    assert np.corrcoef(found.values, inside)[0, 1] > 0.99
    # A row's own outcome changes the fit, and not what is held against the row.
    changed = Y.copy()
    changed[7] += 50.0
    other = BGMIV(random_state=0).fit(changed, X, **ROWS)
    again = other.fitted_.held_out_predictions(other.data_, Rows(other.data_.covariates), 1500)
    assert again is not None
    assert again.values[7] == pytest.approx(found.values[7], abs=1e-9)
    assert abs(again.values - found.values).max() > 0.01


@pytest.mark.usefixtures("small_default")
def test_with_networks_what_is_known_is_said_and_the_no_instrument_version_is_the_same_method(
    recwarn: pytest.WarningsRecorder,
) -> None:
    model = BGMIV(networks=True, random_state=0).fit(Y, X, **ROWS)
    known = model.fitted_.evidence
    assert known is not None
    assert (known.moment_risk, known.linear_explained is None) == (None, False)
    assert not [warning for warning in recwarn if issubclass(warning.category, FitWarning)]
    assert model.verdict_.evidence.moment_risk is not None
    other = model._with_rows().without_instrument
    assert other is not None
    assert other.n_members == model.fitted_.n_members == 5
    assert (other.last_stage is None, other.config.use_instrument) == (False, False)
    assert replace(other.config, use_instrument=True, initial=model.fitted_.config.initial).ensemble == (
        model.fitted_.config.ensemble
    )


@pytest.mark.filterwarnings("ignore::bgmiv.errors.FitWarning")
@pytest.mark.usefixtures("small_default")
def test_two_members_are_the_same_estimator_and_one_is_refused() -> None:
    fitted = BGMIV(networks=True, members=2, random_state=0).fit(Y, X, **ROWS).fitted_
    assert fitted.last_stage is not None
    assert len(np.unique(np.concatenate([member.held_out_rows for member in fitted.members]))) == N
    for settings in ({"members": 1}, {"held_out": 0.1}, {"members": 3, "held_out": 0.3}):
        with pytest.raises(ConfigError, match="leave some rows to no member"):
            BGMIV(**settings).fit(Y, X, **ROWS)
    alone = BGMIV(members=1, held_out=0.0, random_state=0).fit(Y, X, **ROWS).fitted_
    assert alone.last_stage is None


def test_simple_models_are_fitted_without_the_rows_they_predict() -> None:
    data = IVData.from_arrays(Y, X, **ROWS)
    changed = replace(data, outcome=np.where(np.arange(N) == 7, 50.0, data.outcome).astype(data.outcome.dtype))
    before, after = (cross_fits(each, np.arange(N)) for each in (data, changed))
    for one, two in zip(before, after, strict=True):
        assert np.isfinite(one).all()
        assert one[7] == pytest.approx(two[7], abs=1e-9)
        assert abs(one - two).max() > 1e-3


def test_a_level_that_no_other_row_has_is_compared_within() -> None:
    region = np.where(np.arange(N) < 5, "rare", "common")
    blocks = {"region": "categorical"}
    data = IVData.from_arrays(Y, X, instruments=W, covariates={"region": region}, blocks=blocks)
    rows = np.arange(20)
    moved = compared_within(data, np.arange(20, N), rows, np.zeros(20))
    np.testing.assert_allclose(moved[:5], Y[:5].mean(), rtol=1e-6)
    np.testing.assert_array_equal(moved[5:], 0.0)
    np.testing.assert_array_equal(compared_within(data, np.arange(4, N), rows, np.zeros(20)), 0.0)
