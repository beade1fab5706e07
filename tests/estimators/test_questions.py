"""Questions with intervals: whose answers are known, on two-stage least squares."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Iterator
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import bgmiv
from bgmiv import NPIV, TSLS, Interval, effects
from bgmiv.bgm.config import PRESETS, BGMIVConfig
from bgmiv.data import query
from bgmiv.data.query import Encoded
from bgmiv.errors import ConfigError, DataError, FitWarning, SupportWarning, WeakInstrumentWarning
from bgmiv.fitted import FittedMethod

RNG = np.random.default_rng(0)
N = 400
W, V, U, E = RNG.normal(size=(4, N))
X = W + V + U
Y = 2.0 * X + V + 0.9 * U + 0.4 * E
AGE = {"age": V}


@pytest.fixture(scope="module")
def tsls() -> TSLS:
    return TSLS().fit(Y, X, instruments=W, covariates=AGE)


@pytest.fixture(autouse=True)
def no_figures_left() -> Iterator[None]:
    yield
    plt.close("all")


def test_intervals_of_2sls_are_those_of_linearmodels(tsls: TSLS) -> None:
    result = tsls.fitted_.result
    found = tsls.ate_interval(AGE, t0=1.0, t1=2.0)
    assert found.estimate == pytest.approx(result.params["treatment"])
    assert found.std_error == pytest.approx(result.std_errors["treatment"])
    lower, upper = found
    np.testing.assert_allclose([lower, upper], result.conf_int().loc["treatment"])
    wide, narrow = (tsls.ate_interval(AGE, t0=1.0, t1=2.0, level=level) for level in (0.99, 0.5))
    assert wide.upper > found.upper > narrow.upper > found.estimate > narrow.lower
    point = tsls.predict_interval([0.0, 1.0], {"age": [0.0, 1.0]})
    np.testing.assert_allclose(point.estimate, tsls.predict([0.0, 1.0], {"age": [0.0, 1.0]}))
    slope = tsls.marginal_effect_interval(0.5, {"age": [0.0, 1.0]}, step=0.1)
    np.testing.assert_allclose(slope.std_error, result.std_errors["treatment"])
    np.testing.assert_allclose(tsls.marginal_effect(0.5, {"age": [0.0, 1.0]}, step=0.1), slope.estimate)
    clustered = TSLS().fit(Y, X, instruments=W, covariates=AGE, clusters=np.arange(N) // 4)
    assert "clustered" in clustered.fitted_.interval_kind
    assert "robust" in tsls.fitted_.interval_kind


def test_shapes_of_every_question(tsls: TSLS) -> None:
    grid, rows = np.linspace(-2.0, 2.0, 5), {"age": V[:6]}
    curve = tsls.dose_response_interval(grid, AGE)
    np.testing.assert_allclose(curve.estimate, tsls.dose_response(grid, AGE).values)
    assert curve.to_frame().index.tolist() == grid.tolist()
    each = tsls.dose_response_interval(grid, rows, average=False)
    assert each.estimate.shape == each.lower.shape == each.in_support.shape == (5, 6)
    np.testing.assert_allclose(each.estimate, tsls.dose_response(grid, rows, average=False).values)
    own = np.linspace(0.0, 1.0, 6)
    np.testing.assert_allclose(
        tsls.effect(rows, t0=own, t1=1.0), tsls.predict(1.0, rows) - tsls.predict(own, rows), atol=1e-9
    )
    assert tsls.effect_interval(rows, t0=own, t1=1.0).estimate.shape == (6,)


def heterogeneous(n: int = 5000) -> tuple[TSLS, np.ndarray, np.ndarray]:
    """The effect of one unit is 1.6 + 3 age, age is standard normal, and older rows stand for more rows.

    With weights exp(age / 2) the mean of age is 1/2, so that the weighted average effect is 3.1 and the plain one 1.6.
    """
    rng = np.random.default_rng(5)
    w, age, u = rng.normal(size=(3, n))
    x = w + u
    y = (1.6 + 3.0 * age) * x - u
    weights = np.exp(0.5 * age)
    model = NPIV().fit(y, x, instruments=w, covariates={"age": age}, sample_weight=weights)
    return model, age, weights


def test_sample_weights_enter_every_average() -> None:
    model, age, weights = heterogeneous()
    assert model.ate(t0=0.0, t1=1.0) == pytest.approx(3.1, abs=0.12)
    assert model.ate({"age": age}, t0=0.0, t1=1.0) == pytest.approx(1.6, abs=0.12)
    weighted = model.ate(t0=0.0, t1=1.0)
    assert model.ate({"age": age}, t0=0.0, t1=1.0, sample_weight=weights) == pytest.approx(weighted)
    # Weights without covariates are other weights of the rows of the fit.
    assert model.ate(t0=0.0, t1=1.0, sample_weight=np.ones(len(age))) == pytest.approx(1.6, abs=0.12)
    assert np.diff(model.dose_response([0.0, 1.0]).values)[0] == pytest.approx(weighted)
    assert np.diff(model.dose_response_interval([0.0, 1.0]).estimate)[0] == pytest.approx(weighted)
    assert model.ate_interval(t0=0.0, t1=1.0).estimate == pytest.approx(weighted)
    # What an analysis says is what the questions say, whatever the rows.
    model, age, weights = heterogeneous(1000)
    weighted = model.ate(t0=0.0, t1=1.0)
    assert weighted == pytest.approx(np.average(model.effect({"age": age}, t0=0.0, t1=1.0), weights=weights))
    found = model.analysis(t0=0.0, t1=1.0, no_instrument=False)
    assert found.effects[0].estimate == pytest.approx(weighted)
    assert f"{weighted:.3g}" in str(model.summary(t0=0.0, t1=1.0, no_instrument=False))
    described = next(column.text for column in found.question.columns if column.name == "age")
    assert described.startswith(f"mean {np.average(age, weights=weights):.4g}, ")


def test_a_question_does_not_change_the_answer_to_another() -> None:
    def fitted() -> TSLS:
        return TSLS().fit(Y, X, instruments=W, covariates=AGE)

    fresh, asked = fitted(), fitted()
    narrow, wide = asked.analysis(level=0.9), asked.analysis(level=0.95)
    assert narrow.effects[0].upper < wide.effects[0].upper  # type: ignore[operator]
    assert wide == fresh.analysis(level=0.95)
    assert asked.analysis(level=0.9) is narrow
    asked.plot_effects(t0=-3.0, t1=3.0)
    asked.diagnose(level=0.5)
    asked.ate_interval(t0=0.0, t1=1.0, level=0.5)
    assert str(asked.summary()) == str(fresh.summary())


def test_the_same_effect_has_the_same_numbers_wherever_it_is_asked(tsls: TSLS) -> None:
    low, high = (float(value) for value in np.quantile(X, [0.25, 0.75]))
    found = tsls.ate_interval(t0=low, t1=high)
    group = np.where(V > 0.0, "old", "young")
    analysis = tsls.analysis(t0=low, t1=high, by={"half": group})
    shown = analysis.effects[0]
    assert shown.estimate == pytest.approx(found.estimate) == pytest.approx(tsls.ate(t0=low, t1=high))
    assert (shown.lower, shown.upper) == (pytest.approx(found.lower), pytest.approx(found.upper))
    assert shown.in_support == pytest.approx(found.in_support)
    default = tsls.analysis().effects[0]
    assert default.estimate == pytest.approx(tsls.ate(t0=default.t0, t1=default.t1))
    curve = tsls.dose_response_interval([low, high])
    assert curve.estimate[1] - curve.estimate[0] == pytest.approx(found.estimate)
    by_group = {row.group.label: row for row in analysis.effects[1:]}
    for level in ("old", "young"):
        row = by_group.pop(f"half = {level}")
        own = tsls.ate_interval({"age": V[group == level]}, t0=low, t1=high)
        assert row.group.n_rows == np.sum(group == level)
        assert (row.estimate, row.lower, row.upper) == (
            pytest.approx(own.estimate),
            pytest.approx(own.lower),
            pytest.approx(own.upper),
        )


@pytest.mark.parametrize(
    "ask",
    [
        lambda model: model.predict(300.0, AGE),
        lambda model: model.effect(AGE, t0=0.0, t1=300.0),
        lambda model: model.ate(t0=0.0, t1=300.0),
        lambda model: model.marginal_effect(300.0, AGE, step=1.0),
        lambda model: model.predict_interval(300.0, AGE),
        lambda model: model.effect_interval(AGE, t0=0.0, t1=300.0),
        lambda model: model.ate_interval(t0=0.0, t1=1e6),
        lambda model: model.marginal_effect_interval(300.0, AGE, step=1.0),
    ],
)
def test_extrapolation_is_a_warning_with_its_share(tsls: TSLS, ask: Any) -> None:
    with pytest.warns(SupportWarning, match=r"\d+% of the rows are in the support"):
        ask(tsls)


def test_intervals_say_where_the_data_are(tsls: TSLS) -> None:
    assert tsls.in_support(X, AGE).mean() > 0.95
    assert not tsls.in_support([9.0, 0.0], {"age": [0.0, 9.0]}).any()
    share = tsls.dose_response_interval([0.0, 30.0], AGE).in_support
    assert share[0] > 0.5
    assert share[1] == 0.0
    with pytest.warns(SupportWarning):
        assert tsls.ate_interval(t0=0.0, t1=30.0).in_support == 0.0


def test_averages_are_over_the_rows_of_the_fit_unless_others_are_given(tsls: TSLS) -> None:
    assert tsls.ate(t0=0.0, t1=1.0) == pytest.approx(tsls.ate(AGE, t0=0.0, t1=1.0))
    with pytest.raises(DataError, match="sample_weight"):
        tsls.ate(AGE, t0=0.0, t1=1.0, sample_weight=np.ones(3))


def test_intervals_of_many_rows_are_worked_out_in_parts(tsls: TSLS, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> list[Interval]:
        return [
            tsls.predict_interval(X, AGE),
            tsls.effect_interval(AGE, t0=0.0, t1=1.0),
            tsls.marginal_effect_interval(X, AGE, step=0.1),
            tsls.dose_response_interval([0.0, 1.0, 2.0], AGE, average=False),
        ]

    whole = asked()
    monkeypatch.setattr(effects, "MAX_FACTOR_POINTS", 90)
    for one, two in zip(whole, asked(), strict=True):
        for name in ("estimate", "lower", "upper", "std_error", "in_support", "dof"):
            np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-12)
        assert one.labels == two.labels


def test_points_of_many_rows_are_worked_out_in_parts(tsls: TSLS, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> list[np.ndarray]:
        curves = tsls.dose_response([0.0, 1.0, 2.0], AGE, average=False).values
        return [tsls.predict(X, AGE), tsls.effect(AGE, t0=0.0, t1=1.0), curves]

    whole = asked()
    monkeypatch.setattr(effects, "_MAX_AVERAGED", 90)
    monkeypatch.setattr(effects, "_PART", 70)
    for one, two in zip(whole, asked(), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-12)


def test_parts_that_are_done_are_let_go(tsls: TSLS, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[weakref.ref[np.ndarray]] = []
    kept = []

    def encode(self: Any, covariates: np.ndarray) -> Encoded:
        kept.append(sum(one() is not None for one in encoded))
        encoded.append(weakref.ref(covariates))
        return (np.zeros((len(covariates), 1)),)

    monkeypatch.setattr(type(tsls.fitted_), "encode", encode)
    monkeypatch.setattr(type(tsls.fitted_), "at", lambda self, query: query.rows.encoded_by(self)[0].T)
    monkeypatch.setattr(effects, "_MAX_AVERAGED", 90)
    monkeypatch.setattr(query, "_MAX_WHOLE", 90)
    monkeypatch.setattr(effects, "_PART", 50)
    tsls.predict(X, AGE)
    assert kept == [0] * (N // 50)


def test_rows_of_weight_zero_are_as_good_as_absent() -> None:
    weights = np.where(np.arange(N) % 3 == 0, 0.0, 2.0)
    used = weights > 0
    model = TSLS().fit(Y, X, instruments=W, covariates=AGE, sample_weight=weights)
    other = TSLS().fit(Y[used], X[used], instruments=W[used], covariates={"age": V[used]})
    for method in ("usual", "robust"):
        found, wanted = (one.ate_interval(t0=0.0, t1=1.0, method=method) for one in (model, other))
        assert [*found] == pytest.approx([*wanted])
    found, wanted = ({check.key: check.numbers for check in one.diagnose().checks} for one in (model, other))
    assert found["ill-posedness"]["shape_1"] == pytest.approx(wanted["ill-posedness"]["shape_1"])


def test_intervals_know_what_rows_that_stand_for_all_leave_open(monkeypatch: pytest.MonkeyPatch) -> None:
    model = NPIV().fit(Y, X, instruments=W, covariates=AGE)
    whole, curve = model.ate_interval(t0=0.0, t1=1.0), model.dose_response_interval([0.0, 1.0])
    assert "rows" not in whole.std_errors
    monkeypatch.setattr(effects, "_MAX_AVERAGED", 100)
    model = NPIV().fit(Y, X, instruments=W, covariates=AGE)
    found, thin = model.ate_interval(t0=0.0, t1=1.0), model.dose_response_interval([0.0, 1.0])
    effect = model.effect(AGE, t0=0.0, t1=1.0)[query.Rows(V[:, None]).drawn(100)[1]]
    assert found.estimate == pytest.approx(effect.mean())
    assert found.std_errors["rows"] == pytest.approx(effect.std() / 10.0 * np.sqrt(0.75))
    assert abs(found.estimate - whole.estimate) < 3.0 * found.std_errors["rows"]
    assert found.std_errors["sampling"] == whole.std_errors["sampling"]
    assert np.all(np.abs(thin.estimate - curve.estimate) < 3.0 * thin.std_errors["rows"])


def test_averages_of_a_million_rows_are_cheap() -> None:
    resource = pytest.importorskip("resource")
    model = TSLS().fit(Y, X, instruments=W, covariates=AGE)
    many = {"age": np.random.default_rng(1).normal(size=1_000_000)}
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    curve = model.dose_response(np.linspace(-1.0, 1.0, 20), many)
    effect = model.ate_interval(many, t0=0.0, t1=1.0)
    assert time.process_time() - started < 15.0
    # In kilobytes on Linux, in bytes on macOS.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000 * (
        1024 if sys.platform == "darwin" else 1
    )
    assert effect.estimate == pytest.approx(model.fitted_.slope)
    assert np.diff(curve.values) == pytest.approx(model.fitted_.slope * np.diff(curve.treatment))


def test_averages_of_columns_are_those_of_rows() -> None:
    """A sieve's covariance of an average, by its columns averaged first and by all rows."""
    rng = np.random.default_rng(4)
    v, w, u, e = rng.normal(size=(4, 600))
    x = w + 0.5 * v + u
    weights = rng.uniform(size=600)
    model = NPIV(random_state=0).fit(x**2 + x * v + v + u + e, x, instruments=w, covariates=v, sample_weight=weights)
    along = query.query_along(model.fitted_.schema, [-1.0, 0.0, 2.0], model.data_)
    fast = model.fitted_.average_factors(along)
    slow = FittedMethod.average_factors(model.fitted_, along)
    assert [source.name for source in fast] == [source.name for source in slow]
    for one, two in zip(fast, slow, strict=True):
        np.testing.assert_allclose(one.factors, two.factors, atol=1e-10 * np.abs(two.factors).max())


def test_weights_of_an_average_have_the_labels_of_the_fit() -> None:
    frame = pd.DataFrame({"y": Y, "x": X, "w": W, "age": V}, index=np.arange(N)[::-1])
    roles: Any = {"outcome": "y", "treatment": "x", "instruments": "w", "covariates": "age"}
    weights = pd.Series(np.exp(V), index=frame.index)
    gap = frame.copy()
    gap.iloc[3, 3] = np.nan
    with pytest.warns(UserWarning, match="dropped"):
        dropped = NPIV().fit_table(gap, missing="drop", **roles)
    for model, kept in (
        (NPIV().fit_table(frame, **roles), slice(None)),
        (NPIV().fit_formula("y ~ age + [x ~ w]", frame), slice(None)),
        (dropped, gap["age"].notna().to_numpy()),
    ):
        own = weights[kept]
        found = model.ate(t0=0.0, t1=1.0, sample_weight=own)
        assert found == pytest.approx(model.ate(t0=0.0, t1=1.0, sample_weight=own.to_numpy()))
        for wrong in (own.reset_index(drop=True), own.sort_index()):
            with pytest.raises(DataError, match="different pandas indexes"):
                model.ate(t0=0.0, t1=1.0, sample_weight=wrong)
        with pytest.raises(DataError, match="different pandas indexes"):
            model.dose_response([0.0, 1.0], frame[["age"]], sample_weight=weights.reset_index(drop=True))


def test_huge_weights_are_weights() -> None:
    model = NPIV().fit(Y, X, instruments=W, covariates=AGE)
    huge = np.where(V > 0.0, 1e308, 5e307)
    assert model.ate(t0=0.0, t1=1.0, sample_weight=huge) == pytest.approx(
        model.ate(t0=0.0, t1=1.0, sample_weight=huge / 1e308)
    )


def test_the_order_of_very_many_rows_does_not_matter() -> None:
    """Every second row treated alike: rows picked at even steps would show only one kind of them."""
    model = NPIV().fit(Y + V * X, X, instruments=W, covariates=AGE)
    age = np.tile([-1.0, 1.0], 100_000)[:199_999]
    found = model.ate_interval({"age": age}, t0=0.0, t1=1.0)
    truth = model.effect({"age": [-1.0, 1.0]}, t0=0.0, t1=1.0).mean()
    assert abs(found.estimate - truth) < 3.0 * found.std_errors["rows"]
    assert found.lower < truth < found.upper


def test_a_row_with_most_of_the_weight_is_announced() -> None:
    weights = np.ones(N)
    TSLS().fit(Y, X, instruments=W, covariates=AGE, sample_weight=weights)
    weights[17] = 1e6
    with pytest.warns(FitWarning, match=r"row 17 has 100% of all weight.*count as 1 of equal weight"):
        TSLS().fit(Y, X, instruments=W, covariates=AGE, sample_weight=weights)
    weights = np.exp(0.5 * V)
    text = str(TSLS().fit(Y, X, instruments=W, covariates=AGE, sample_weight=weights).summary())
    effective = weights.sum() ** 2 / np.sum(weights**2)
    assert f"sampling weights; Kish's effective number is {effective:,.0f}" in " ".join(text.split())


def test_arguments_set_after_the_fit_are_those_of_the_next(tmp_path: Any) -> None:
    fit: dict[str, Any] = {"instruments": W, "covariates": AGE}
    model, other = (NPIV(random_state=0).fit(Y, X, **fit) for _ in range(2))
    model.set_params(use_instrument=False, min_gain=1e9, random_state=5)
    assert str(model.diagnose()) == str(other.diagnose())
    assert model.diagnose()["no-instrument"].numbers == other.diagnose()["no-instrument"].numbers
    assert model.ate_interval(t0=0.0, t1=1.0, method="robust").lower < 2.0
    analysis = model.analysis()
    assert analysis.settings == other.analysis().settings == {"random_state": "0"}
    assert analysis.method == "NPIV"
    model.save(tmp_path / "fit")
    again = bgmiv.load(tmp_path / "fit")
    assert again.get_params() == other.get_params()
    assert model.get_params()["min_gain"] == 1e9


def chosen(n: int = 1500) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """An effect of 1 + v, taken by those of large v who are offered it, and by nobody else."""
    rng = np.random.default_rng(8)
    v, u, e = rng.normal(size=(3, n))
    offer = rng.random(n) < 0.5
    taken = offer & (v + 0.5 * u > 0.0)
    y = (1.0 + v) * taken + v + u + 0.3 * e
    return {"outcome": y, "treatment": taken, "instruments": offer.astype(float), "covariates": {"v": v}}, taken, v


def test_effects_over_treated_and_untreated_rows() -> None:
    data, taken, v = chosen()
    model = NPIV().fit(**data)
    for rows, some in (("treated", taken), ("untreated", ~taken), ("all", np.ones(len(v), bool))):
        asked: Any = {"t0": False, "t1": True, "rows": rows}
        found = model.ate_interval(**asked)
        assert found.estimate == pytest.approx(model.ate(**asked))
        assert found.estimate == pytest.approx(model.effect({"v": v[some]}, t0=False, t1=True).mean())
        assert found.lower < np.mean(1.0 + v[some]) < found.upper
    assert model.ate(t0=False, t1=True, rows="treated") > model.ate(t0=False, t1=True) + 0.4
    # Weights are those of all rows of the fit.
    weighted = model.ate(t0=False, t1=True, rows="treated", sample_weight=np.exp(v))
    wanted = np.average(model.effect({"v": v[taken]}, t0=False, t1=True), weights=np.exp(v[taken]))
    assert weighted == pytest.approx(wanted)
    row = next(row for row in model.analysis(no_instrument=False).effects if "(treated)" in row.group.label)
    assert row.estimate == pytest.approx(model.ate(t0=False, t1=True, rows="treated"))


def test_rows_by_treatment_that_there_are_not(tsls: TSLS, tmp_path: Any) -> None:
    with pytest.raises(DataError, match="is a number: no rows are the treated ones"):
        tsls.ate(t0=0.0, t1=1.0, rows="treated")
    with pytest.raises(ConfigError, match="rows must be one of"):
        tsls.ate(t0=0.0, t1=1.0, rows="compliers")  # type: ignore[arg-type]
    data, _, v = chosen(400)
    model = TSLS().fit(**data)
    with pytest.raises(DataError, match="rows of the fit"):
        model.ate({"v": v}, t0=False, t1=True, rows="treated")
    model.save(tmp_path / "fit")
    with pytest.raises(DataError, match="attach_data"):
        bgmiv.load(tmp_path / "fit").ate_interval(t0=False, t1=True, rows="untreated")


@pytest.mark.parametrize("kind", ["number", "levels of the treatment", "levels of the outcome"])
def test_weak_instruments_are_told_once_and_by_every_interval(
    kind: str, small: BGMIVConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRESETS, "default", lambda: small)
    rng = np.random.default_rng(1)
    w, w2, v, u = rng.normal(size=(4, 300))
    x, y = 0.1 * (w + w2) + u, u + v + rng.normal(size=300)
    third = np.array(["a", "b", "c"])
    x, y = (
        third[np.digitize(x, [-0.5, 0.5])] if kind == "levels of the treatment" else x,
        third[np.digitize(y, [-1.0, 1.0])] if kind == "levels of the outcome" else y,
    )
    method: Any = TSLS() if kind != "levels of the outcome" else bgmiv.BGMIV(iterations=0, epochs=0)
    with pytest.warns(WeakInstrumentWarning, match="too weak for usual intervals") as caught:
        model = method.fit(y, x, instruments=np.column_stack([w, w2]), covariates={"v": v})
    assert sum(one.category is WeakInstrumentWarning for one in caught) == 1
    pair = {"t0": "a", "t1": "b"} if kind == "levels of the treatment" else {"t0": -0.5, "t1": 0.5}
    rows = {"v": v[:5]}
    intervals = [
        model.effect_interval(rows, **pair),
        model.predict_interval(pair["t1"], rows),
        model.dose_response_interval([pair["t0"], pair["t1"]]),
        model.dose_response_interval([pair["t0"], pair["t1"]], rows, average=False),
        model.ate_interval(**pair, method="usual"),
    ]
    if kind == "number":
        intervals.append(model.marginal_effect_interval(0.0, rows, step=0.1))
        assert model.ate_interval(**pair).method == "anderson-rubin"
        assert model.ate_interval(**pair).note == ""
    else:
        intervals.append(model.ate_interval(**pair))
    for found in intervals:
        assert "too narrow" in found.note
        assert found.note in str(found)
        assert len(found.to_frame()) == np.size(found.estimate)


def test_strong_instruments_are_told_by_nobody(tsls: TSLS, recwarn: pytest.WarningsRecorder) -> None:
    TSLS().fit(Y, X, instruments=W, covariates=AGE)
    assert not [one for one in recwarn if one.category is WeakInstrumentWarning]
    assert tsls.predict_interval(0.0, AGE).note == ""
    frame = tsls.dose_response_interval([0.0, 1.0], {"age": V[:2]}, average=False).to_frame()
    assert frame.index.tolist() == [(0.0, 0), (0.0, 1), (1.0, 0), (1.0, 1)]
    assert list(frame.columns) == ["estimate", "std_error", "lower", "upper", "in_support"]
