"""The average effect under weak instruments: the set is Anderson and Rubin's, and it is used where it is needed."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import bgmiv
from bgmiv import NPIV, TSLS, compare
from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Query, Rows
from bgmiv.effects import FitRows, average_effect_set
from bgmiv.errors import BGMIVWarning, ConfigError, DataError, WeakInstrumentWarning
from bgmiv.fitted import FittedMethod
from bgmiv.intervals import Floats, Source
from bgmiv.linear_iv import LinearIV, strength_of

PAIR = {"t0": -0.5, "t1": 1.0}


def table(strength: float, n: int = 300, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    w, v, u, e = rng.normal(size=(4, n))
    x = strength * w + 0.5 * v + u
    return {"y": 2.0 * x + v + u + 0.5 * e, "x": x, "w": w, "v": v}


def fitted(strength: float, model: Any = None, **changes: Any) -> Any:
    data = table(strength) | changes
    arguments = {"outcome": "y", "treatment": "x", "instruments": ["w"], "covariates": ["v"]}
    return (model or TSLS()).fit_table(data, **arguments)


def test_of_a_linear_fit_it_is_the_anderson_rubin_set() -> None:
    model = fitted(0.2)
    ((lower, upper),) = LinearIV.of(model.data_).anderson_rubin_set(0.9)
    found = model.ate_interval(**PAIR, level=0.9, method="robust")
    assert (found.lower, found.upper) == pytest.approx((1.5 * lower, 1.5 * upper))
    assert found.method == "anderson-rubin"
    turned = model.ate_interval(t0=PAIR["t1"], t1=PAIR["t0"], level=0.9, method="robust")
    assert (turned.lower, turned.upper) == pytest.approx((-1.5 * upper, -1.5 * lower))


class Bent(FittedMethod):
    """The truth of a bent curve, but for its slope."""

    def __init__(self, data: IVData) -> None:
        self.schema = data.schema

    def encode(self, covariates: Any) -> tuple[()]:
        return ()

    def at(self, query: Query) -> Floats:
        return np.broadcast_to(query.treatment, query.shape) ** 2 + 7.0 * query.treatment

    def factors(self, query: Query) -> tuple[Source, ...]:
        return ()


def test_the_shape_of_a_fit_is_held_and_its_slope_is_tested() -> None:
    """Of y = x² + 2 x + u, with the curve known but for its slope, the set is that of a linear effect of 2."""
    sample = table(1.0, n=2000)
    data = IVData.from_arrays(
        sample["x"] ** 2 + sample["y"], sample["x"], instruments=sample["w"], covariates=sample["v"]
    )
    line = IVData.from_arrays(sample["y"], sample["x"], instruments=sample["w"], covariates=sample["v"])
    ((lower, upper),) = LinearIV.of(line).anderson_rubin_set()
    # From -0.5 to 1.0 the curve rises by 0.75, by its slope of 7 by 10.5.
    ((low, high),) = average_effect_set(Bent(data), FitRows(data, Rows(data.covariates)), 11.25, 1.5, 0.95)
    assert (low, high) == pytest.approx((0.75 + 1.5 * lower, 0.75 + 1.5 * upper), rel=1e-4)
    assert lower < 2.0 < upper


def test_auto_takes_the_set_where_instruments_are_weak_and_every_answer_agrees() -> None:
    strong, weak = fitted(1.0), fitted(0.1)
    assert not strength_of(strong.data_).usual_is_too_short
    assert strength_of(weak.data_).usual_is_too_short
    assert strong.ate_interval(**PAIR).method == "pointwise"
    assert strong.ate_interval(**PAIR).upper == strong.ate_interval(**PAIR, method="usual").upper
    found = weak.ate_interval(**PAIR)
    assert found.method == "anderson-rubin"
    assert found.lower < weak.ate_interval(**PAIR, method="usual").lower
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BGMIVWarning)
        analysis = weak.analysis(**PAIR)
    row, compared = analysis.effects[0], compare({"2SLS": weak}, **PAIR).methods[0]
    assert row.interval.method == found.method
    for ends in (row, compared):
        assert (ends.lower, ends.upper) == pytest.approx((found.lower, found.upper), rel=1e-10)
    assert "set robust to weak instruments" in str(analysis)
    # Without its instruments there is no such set.
    naive = fitted(0.1, TSLS(use_instrument=False))
    assert naive.ate_interval(**PAIR).method == "pointwise"
    with pytest.raises(DataError, match="instruments that it uses"):
        naive.ate_interval(**PAIR, method="robust")
    with pytest.raises(ConfigError, match="method must be one of"):
        weak.ate_interval(**PAIR, method="bootstrap")


def test_one_instrument_has_the_set_up_to_an_f_at_which_both_agree() -> None:
    """An F of 40 or so is no sign of weakness, but a rule that switches there would hold too rarely."""
    middle = fitted(0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", WeakInstrumentWarning)
        found, diagnosis = middle.ate_interval(**PAIR), middle.diagnose()
    strength = diagnosis["effective-f"].numbers
    assert strength["critical"] < strength["effective_f"] < 104.7
    assert not diagnosis.weak_instruments
    assert found.method == "anderson-rubin"
    # Of several instruments the set is longer than it has to be: the critical value decides.
    w1, w2, u = np.random.default_rng(1).normal(size=(3, 300))
    x = 0.4 * (w1 + w2) + u
    both = TSLS().fit(x + u, x, instruments=np.column_stack([w1, w2]))
    assert both.diagnose()["effective-f"].numbers["effective_f"] < 104.7
    assert both.ate_interval(**PAIR).method == "pointwise"


def test_unbounded_sets_are_shown_as_such(tmp_path: Any) -> None:
    none = fitted(0.0)
    assert none.ate_interval(**PAIR).lower == -np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BGMIVWarning)
        analysis = none.analysis(**PAIR)
        page = none.report(tmp_path / "page.html", **PAIR).read_text()
    assert "every number" in str(analysis)
    assert "Anderson-Rubin set, robust to weak instruments" in page
    none.save(tmp_path / "fit", analysis=analysis)
    again = bgmiv.load(tmp_path / "fit")
    assert again.saved_analysis_.effects[0].lower == -np.inf
    with pytest.warns(WeakInstrumentWarning, match="attach_data"):
        assert again.ate_interval(table(0.0), **PAIR).method == "pointwise"
    assert again.attach_data(table(0.0)).ate_interval(**PAIR).method == "anderson-rubin"


def test_what_may_be_left_out_widens_intervals() -> None:
    """A curve that the moments do not show, and the regression on the observed treatment does."""
    rng = np.random.default_rng(3)
    w, u, e = rng.normal(size=(3, 400))
    x = 0.4 * w + u
    y = x + 0.25 * x**2 + u + e
    model, linear = (NPIV(min_gain=gain, random_state=0).fit(y, x, instruments=w) for gain in (8.0, np.inf))
    function = model.fitted_.function
    assert 0.5 < function.probabilities["curve"] <= 1.0
    wide, narrow = (one.ate_interval(t0=0.0, t1=2.0, method="usual") for one in (model, linear))
    assert wide.upper - wide.lower > 1.2 * (narrow.upper - narrow.lower)
    assert wide.lower <= 3.0 <= wide.upper
    assert "smoothing" not in narrow.std_errors


def test_a_slight_curve_is_held_where_a_line_misses_it() -> None:
    """Too slight for the moments to choose it: the regression on the observed treatment says that it is there."""
    rng = np.random.default_rng(3)
    w, u, e = rng.normal(size=(3, 400))
    x = w + u
    y = x + 0.12 * x**2 + u + e
    model, linear = (NPIV(min_gain=gain, random_state=0).fit(y, x, instruments=w) for gain in (8.0, np.inf))
    function = model.fitted_.function
    assert function.probabilities["curve"] > 0.95
    held, missed = (one.ate_interval(t0=-1.0, t1=2.0) for one in (model, linear))
    truth = 3.0 + 0.12 * 3.0
    assert held.lower <= truth <= held.upper
    assert missed.upper < truth


def test_a_band_holds_more_than_each_interval() -> None:
    model = fitted(1.0)
    doses = np.linspace(-2.0, 2.0, 21)
    each, all_ = (model.dose_response_interval(doses, band=band) for band in ("pointwise", "uniform"))
    ratio = (all_.upper - all_.lower) / (each.upper - each.lower)
    np.testing.assert_allclose(ratio, ratio[0])
    # A line has two directions: between one interval and Scheffé's.
    assert 1.05 < ratio[0] < 2.448 / 1.96
    assert (each.method, all_.method) == ("pointwise", "uniform")
    rows = Rows(model.data_.covariates[:3])
    wide = model.predict_interval(0.5, rows.covariates, band="uniform")
    assert np.all(wide.upper > model.predict_interval(0.5, rows.covariates).upper)
    with pytest.raises(ConfigError, match="band must be"):
        model.dose_response_interval(doses, band="simultaneous")
