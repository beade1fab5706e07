from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bgmiv
from bgmiv.data.query import Query, Rows
from bgmiv.errors import ConfigError, DataError
from bgmiv.estimators.calibration import Calibration, _generator, _ratio
from bgmiv.executors import LocalPool
from bgmiv.intervals import Interval


def _arrays(n: int = 150, *, levels: bool = False) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    w, v, u, e = rng.normal(size=(4, n))
    x = w + 0.5 * v + u
    y = 2.0 * x + v - 2.0 * u + e
    if levels:
        # So noisy that a linear probability stays within 0 and 1.
        x, y = (x > 0.0).astype(float), (y + 8.0 * e > 0.0).astype(float)
    return {"outcome": y, "treatment": x, "instruments": w, "covariates": v}


@pytest.fixture(scope="module")
def model() -> bgmiv.TSLS:
    return bgmiv.TSLS().fit(**_arrays(), clusters=np.repeat(np.arange(30), 5))


def test_a_drawn_data_set_has_the_errors_of_the_fit_with_one_sign_a_group(model: bgmiv.TSLS) -> None:
    data = model.data_
    assert data is not None
    fitted, draw = model.fitted_, _generator(model.fitted_, data)
    first, second = draw(np.random.default_rng(1)), draw(np.random.default_rng(2))
    np.testing.assert_array_equal(first.covariates, data.covariates)
    np.testing.assert_array_equal(first.instruments, data.instruments)
    assert not np.array_equal(first.treatment, second.treatment)
    moved, again = (~np.isclose(one.treatment, data.treatment, atol=1e-5) for one in (first, second))
    # All of a group or none, about half of them.
    assert set(np.bincount(data.groups[moved], minlength=30)) == {0, 5}
    assert 0.2 < moved.mean() < 0.8

    def errors(some: Any) -> np.ndarray:
        return some.outcome - fitted.at(Query(some.treatment[None], Rows(some.covariates)))[0]

    signs = np.where(moved, -1.0, 1.0)
    np.testing.assert_allclose(errors(first), signs * errors(data), atol=1e-4)
    # Where both draws have the other sign the treatment is the same: the first stage's prediction less its residual.
    both = moved & again
    np.testing.assert_allclose(first.treatment[both], second.treatment[both], atol=1e-6)


def test_levels_are_drawn_by_ranks() -> None:
    model = bgmiv.TSLS(treatment_kind="binary", outcome_kind="binary").fit(**_arrays(600, levels=True))
    data = model.data_
    assert data is not None
    draws = [_generator(model.fitted_, data)(np.random.default_rng(seed)) for seed in range(20)]
    for name in ("treatment", "outcome"):
        found = np.stack([getattr(one, name) for one in draws])
        assert set(np.unique(found)) == {0.0, 1.0}
        assert found.mean() == pytest.approx(getattr(data, name).mean(), abs=0.04)
        assert not np.array_equal(found[0], found[1])
    # The instrument still moves the treatment.
    slope = [np.polyfit(one.instruments[:, 0], one.treatment, 1)[0] for one in (data, *draws)]
    assert np.mean(slope[1:]) == pytest.approx(slope[0], rel=0.15)


def test_it_runs_in_other_processes(model: bgmiv.TSLS) -> None:
    whole, other = model.calibrate(repeats=3), model.calibrate(repeats=3, executor=LocalPool(1))
    for name, ratios in whole.ratios.items():
        np.testing.assert_allclose(other.ratios[name], ratios)


def test_intervals_of_a_right_model_hold_and_narrow_ones_are_widened() -> None:
    model = bgmiv.TSLS().fit(**_arrays(300))
    found = model.calibrate(repeats=60, t0=0.0, t1=1.0)
    assert 0.87 <= found.coverage["average effect"] <= 1.0
    assert 0.87 <= found.coverage["points of g"] <= 1.0
    assert "Conditional on the model" in str(found)
    assert "from 0.0 to 1.0" in str(found)
    narrow = Calibration(
        0.95, "", {name: [[2.0 * r for r in one] for one in each] for name, each in found.ratios.items()}, 0
    )
    interval = model.ate_interval(t0=0.0, t1=1.0, method="usual")
    factor = narrow.factors["average effect"]
    assert 1.5 < factor < 2.7
    wide = narrow.widened(interval)
    assert wide.upper - wide.lower == pytest.approx(factor * (interval.upper - interval.lower))
    assert "times as wide" in str(narrow)
    band = model.dose_response_interval([0.0, 1.0], band="uniform")
    assert (narrow.widened(band).upper > band.upper).all()
    assert narrow.to_frame().loc["points of g", "factor"] == narrow.factors["points of g"]


def test_what_cannot_be_calibrated_is_refused(model: bgmiv.TSLS, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="repeats must be"):
        model.calibrate(repeats=1)
    with pytest.raises(ConfigError, match="t0 and t1 are given together"):
        model.calibrate(t0=1.0)
    with pytest.raises(ConfigError, match="point estimates only"):
        bgmiv.KIV(random_state=0).fit(**_arrays(60)).calibrate()
    with pytest.raises(DataError, match="ignores its instruments"):
        bgmiv.TSLS(use_instrument=False).fit(**_arrays(60)).calibrate()
    model.save(tmp_path / "fit")
    with pytest.raises(DataError, match="attach_data"):
        bgmiv.load(tmp_path / "fit").calibrate()
    found = Calibration(0.95, "", {"average effect": [[1.0]]}, 0)
    with pytest.raises(ConfigError, match="calibration is of"):
        found.widened(Interval(1.0, 0.0, 2.0, 0.9, {}, name="average effect"))
    with pytest.raises(ConfigError, match="Anderson-Rubin set is not widened"):
        found.widened(Interval(1.0, 0.0, 2.0, 0.95, {}, name="average effect", method="anderson-rubin"))


def test_what_is_measured_is_the_default_interval() -> None:
    """With weak instruments that is the robust set, and the usual interval has a line of its own."""
    rng = np.random.default_rng(3)
    w, u, e = rng.normal(size=(3, 250))
    x = 0.15 * w + u
    model = bgmiv.TSLS().fit(x + u + 0.2 * e, x, instruments=w)
    assert model.ate_interval(t0=0.0, t1=1.0).method == "anderson-rubin"
    found = model.calibrate(repeats=40)
    assert found.coverage["average effect"] >= 0.85
    assert found.ratios["average effect"] != found.ratios["average effect, usual interval"]
    assert found.n_robust == 40
    assert "40 were Anderson-Rubin sets" in str(found)
    widened = found.widened(model.ate_interval(t0=0.0, t1=1.0, method="usual"))
    assert widened.upper >= model.ate_interval(t0=0.0, t1=1.0, method="usual").upper


def test_sets_without_a_width_hold_or_do_not() -> None:
    two = ((-np.inf, 0.3), (1.2, np.inf))
    for pieces, ends, ratios in (
        (two, (-np.inf, np.inf), {0.0: 0.0, 0.5: np.inf, 2.0: 0.0}),
        ((), (np.nan, np.nan), {0.0: np.inf}),
        (((1.0, 3.0),), (1.0, 3.0), {2.0: 0.0, 3.0: 1.0, 4.0: 2.0}),
    ):
        interval = Interval(1.0, *ends, 0.95, {"sampling": 0.2}, method="anderson-rubin", pieces=pieces)
        assert {truth: _ratio(interval, truth) for truth in ratios} == ratios
