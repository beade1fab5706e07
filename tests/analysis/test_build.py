"""Analyses of real fits: what is asked is what is shown, and the same question has one number everywhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot as plt
from typer.testing import CliRunner

from bgmiv import NPIV, TSLS, compare
from bgmiv.analysis.analysis import AnalysisRequest, contrast
from bgmiv.analysis.build import groups_of
from bgmiv.analysis.page import report_page
from bgmiv.analysis.text import assumptions, summary_text
from bgmiv.cli.main import app
from bgmiv.data import IVData
from bgmiv.errors import ConfigError, DataError, WeakInstrumentWarning
from bgmiv.numerals import together

RNG = np.random.default_rng(1)
N = 240
W, V, U = RNG.normal(size=(3, N))
REGION = np.array(["north", "south", "east"])[RNG.integers(0, 3, N)]
TABLE: dict[str, Any] = {
    "cost": W,
    "price": W + V + U,
    "sales": 2.0 * (W + V + U) + V - U + (REGION == "south"),
    "age": V,
    "region": REGION,
    "member": RNG.random(N) > 0.5,
}


@pytest.fixture(scope="module")
def tsls() -> TSLS:
    return TSLS().fit_formula("sales ~ age + region + member + [price ~ cost]", TABLE)


def ends(found: Any) -> tuple[float, float, float]:
    return found.estimate, found.lower, found.upper


def test_one_question_has_one_number(tsls: TSLS) -> None:
    """Summary, page, calculator, plot, tables, stored curve, comparison and API agree to the last digit shown."""
    plt.switch_backend("agg")
    found = tsls.analysis(t0=-0.3, t1=1.7)
    asked = tsls.ate_interval(t0=-0.3, t1=1.7)
    value, low, high = texts = together(*ends(asked))
    words = f"would change sales by {value} on average (95% interval {low} to {high})."
    page = report_page(found)
    assert words in " ".join(summary_text(found).split())
    assert words in page
    assert f"<dd>{value}</dd>" in page
    fields = re.findall(r'id="t[01]" inputmode="decimal" min="[^"]+" max="[^"]+" step="any" value="([^"]+)"', page)
    assert fields == ["1.7", "-0.3"]
    start = json.loads(re.search(r'id="analysis">(.*?)</script>', page)[1])["curves"][0]["effect"]
    others = [
        ends(found.effects[0]),
        ends(contrast(found.curves[0], -0.3, 1.7, 0.95)[0]),
        ends(compare({"2SLS": tsls}, t0=-0.3, t1=1.7).methods[0]),
        ends(found.methods[0]),
        tuple(found.to_frame().loc[0, ["estimate", "lower", "upper"]]),
        (start[2], start[3], start[4]),
    ]
    for other in others:
        assert other == pytest.approx(ends(asked), rel=1e-12)
        assert together(*other) == texts
    lines = tsls.plot_effects(t0=-0.3, t1=1.7).get_lines()
    assert tuple(lines[0].get_xdata()) == ends(found.effects[0])[1:]
    assert found.effects[0].in_support == asked.in_support
    plt.close("all")


def test_groups_and_curves_are_answers_too(tsls: TSLS) -> None:
    found = tsls.analysis(t0=0.0, t1=1.0)
    labels = [row.group.label for row in found.effects]
    assert labels[0] == "all rows"
    assert sorted(labels[1:]) == ["member = 0", "member = 1", "region = east", "region = north", "region = south"]
    assert [curve.group for curve in found.curves] == [row.group for row in found.effects]
    south = next(row for row in found.effects if row.group.label == "region = south")
    asked = tsls.ate_interval({name: column[REGION == "south"] for name, column in TABLE.items()}, t0=0.0, t1=1.0)
    assert (*ends(south), south.in_support) == pytest.approx((*ends(asked), asked.in_support), rel=1e-12)
    curve = found.curves[0]
    assert {0.0, 1.0} <= set(curve.treatment)
    along = tsls.dose_response_interval(curve.treatment)
    frame = curve.to_frame()
    for name in ("estimate", "lower", "upper", "in_support"):
        np.testing.assert_allclose(frame[name], getattr(along, name), rtol=1e-12)


def test_bands_and_the_command_line_say_the_same(tmp_path: Path) -> None:
    """Of a method whose bands are more than its intervals times a factor."""
    table = {"cost": W, "price": W + 0.5 * U, "sales": (W + 0.5 * U) ** 2 - U + 0.5 * V, "age": V}
    model = NPIV(random_state=0).fit_formula("sales ~ age + [price ~ cost]", table)
    found = model.analysis(t0=0.5, t1=1.5, no_instrument=False)
    curve, frame = found.curves[0], found.curves[0].to_frame()
    along = model.dose_response_interval(curve.treatment, band="uniform")
    for name in ("lower", "upper"):
        np.testing.assert_allclose(frame[f"band_{name}"], getattr(along, name), rtol=1e-12)
    asked = model.ate_interval(t0=0.5, t1=1.5)
    value, low, high = together(*ends(asked))
    for text in (summary_text(found), report_page(found)):
        assert f"by {value} on average (95% interval {low} to {high})" in " ".join(text.split())
    assert ends(asked.to_frame().iloc[0]) == ends(asked)
    model.save(tmp_path / "fit", analysis=found)
    told = CliRunner().invoke(
        app, ["effect", str(tmp_path / "fit"), "--t0", "0.5", "--t1", "1.5"], env={"COLUMNS": "200"}
    )
    assert f"{asked.estimate:.4g} {asked.lower:.4g} to {asked.upper:.4g}" in " ".join(told.output.split())


def test_a_request_is_computed_once_and_asks_every_group_once(tsls: TSLS, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tsls.analysis()
    before, asked = type(tsls.fitted_).at, []
    monkeypatch.setattr(type(tsls.fitted_), "at", lambda own, query: asked.append(query.shape) or before(own, query))
    found = tsls.analysis(by="region", level=0.91, no_instrument=False)
    shapes = [shape for shape in asked if shape[0] == len(found.curves[0].treatment)]
    assert [n for _, n in shapes] == [curve.group.n_rows for curve in found.curves]
    assert tsls.analysis() is first is not found


def test_other_methods_are_asked_the_same(tsls: TSLS) -> None:
    other = TSLS(use_instrument=False).fit_formula("sales ~ age + region + member + [price ~ cost]", TABLE)
    both = tsls.analysis(compare={"OLS": other})
    assert both is tsls.analysis(compare={"OLS": other})
    assert [(row.name, row.note) for row in both.methods] == [
        ("2SLS", "line"),
        ("2SLS without the instrument", "no-instrument"),
        ("OLS", "line-without-instrument"),
    ]


def test_each_method_has_the_interval_of_its_own_instruments() -> None:
    """Weak instruments of one fit say nothing of another's: `analysis(compare=)`, `compare` and API agree."""
    rng = np.random.default_rng(3)
    w, u = rng.normal(size=(2, 400))
    x = w + u
    strong = TSLS().fit(2.0 * x - u, x, instruments=w)
    with pytest.warns(WeakInstrumentWarning):
        weak = TSLS().fit(2.0 * x - u, x, instruments=w + 5.0 * rng.normal(size=400))
    for main, other in ((weak, strong), (strong, weak)):
        row = main.analysis(t0=0.0, t1=1.0, no_instrument=False, compare={"other": other}).methods[-1]
        assert row.interval.method == other.ate_interval(t0=0.0, t1=1.0).method
        assert ends(row) == pytest.approx(ends(other.ate_interval(t0=0.0, t1=1.0)), rel=1e-12)


def test_between_the_points_a_stored_curve_is_read_along_lines(tsls: TSLS) -> None:
    curve = tsls.analysis(t0=0.0, t1=1.0).curves[0]
    assert not contrast(curve, curve.treatment[3], curve.treatment[9], 0.9)[1]
    between, interpolated = contrast(curve, 0.0, 0.9999, 0.95)
    assert interpolated
    assert between.estimate == pytest.approx(tsls.ate(t0=0.0, t1=0.9999))
    with pytest.raises(DataError, match="stored curve goes from"):
        contrast(curve, 0.0, 100.0, 0.95)


def test_methods_without_intervals_are_shown_without(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TSLS().fit_formula("sales ~ age + [price ~ cost]", TABLE)
    monkeypatch.setattr(type(model.fitted_), "interval_kind", "")
    found = model.analysis(no_instrument=False)
    assert found.curves[0].lower == ()
    assert found.effects[0].lower is None
    assert np.isnan(found.to_frame().loc[0, "upper"])


def test_levels_of_a_treatment_are_the_doses() -> None:
    dose = np.array(["none", "low", "high"])[np.digitize(TABLE["price"], [-1.0, 1.0])]
    model = TSLS().fit(TABLE["sales"], dose, instruments=np.column_stack([W, W**2]), covariates=V)
    found = model.analysis()
    names = found.question.treatment_levels
    assert names == tuple(model.fitted_.schema.treatment.levels)
    assert found.curves[0].treatment == (0.0, 1.0, 2.0)
    assert tuple(found.to_frame().loc[0, ["t0", "t1"]]) == names[:2]
    assert f"to {names[1]} instead of {names[0]} would" in " ".join(str(model.summary()).split())
    binary = TSLS().fit(TABLE["sales"], TABLE["price"] > 0, instruments=W).analysis()
    assert binary.question.level_names == ("0", "1")


def test_results_stand_in_one_table_with_linearmodels(tsls: TSLS) -> None:
    maketables = pytest.importorskip("maketables", reason="maketables is not installed (pip install -e '.[dev]')")
    from linearmodels.iv import IV2SLS

    exog = np.column_stack([np.ones(N), V])
    linear = IV2SLS(TABLE["sales"], exog, TABLE["price"], W).fit(cov_type="robust")
    own = TSLS().fit(TABLE["sales"], TABLE["price"], instruments=W, covariates=V)
    summary = own.summary(t0=0.0, t1=1.0)
    for mine in (summary, own.ate_interval(t0=0.0, t1=1.0)):
        table = mine.__maketables_coef_table__
        theirs = linear.params["endog"], linear.std_errors["endog"]
        assert tuple(table.iloc[0][["b", "se"]]) == pytest.approx(theirs, rel=0.02)
        shown = maketables.ETable([linear, mine]).df
        assert shown.shape[1] == 2
    text = maketables.ETable([linear, summary]).make(type="html")
    assert "treatment 0 → 1" in str(text.as_raw_html() if hasattr(text, "as_raw_html") else text)
    assert summary.__maketables_stat__("N") == N


DATA = IVData.from_arrays(
    TABLE["sales"],
    TABLE["price"],
    instruments=W,
    covariates={"age": V, "region": REGION, "proxy": RNG.normal(size=(N, 3))},
    blocks={"region": "categorical"},
)


def groups(by: Any, data: IVData = DATA) -> Any:
    return groups_of(data, AnalysisRequest.of(by=by))


def test_groups_divide_the_rows(tsls: TSLS) -> None:
    for by in ("age", "region", {"team": np.arange(N) % 3}, {"score": RNG.normal(size=N)}):
        found = groups(by)
        assert sorted(np.concatenate([rows for _, rows in found]).tolist()) == list(range(N))
        assert len(found) == 3
    assert len(groups(["age", "region"])) == 6
    few = IVData.from_arrays(TABLE["sales"], TABLE["price"], instruments=W, covariates={"schools": np.arange(N) % 4})
    assert [group.label for group, _ in groups("schools", few)] == [f"schools = {k}" for k in range(4)]
    assert [group.label for group, _ in groups({"team": ["a"] * N})] == ["team = a"]
    request = tsls.analysis(by={"team": np.arange(N) % 3}).request
    assert (request.by, request.labels) == (("team",), ())


def test_of_many_groups_the_largest_are_shown_and_counted() -> None:
    """300 levels: as a covariate, and as labels of rows."""
    codes = np.concatenate([np.arange(300), np.arange(300), np.repeat(np.arange(100, 108), 9)])
    names = np.array([f"firm {code}" for code in codes])
    w, u = np.random.default_rng(2).normal(size=(2, len(codes)))
    table = {"y": w - u, "x": w + u, "w": w, "v": u * w, "firm": names}
    model = TSLS().fit_table(table, outcome="y", treatment="x", instruments="w", covariates="v")
    many = IVData.from_arrays(w - u, w + u, instruments=w, covariates={"firm": names}, blocks={"firm": "categorical"})
    largest = {f"firm = firm {code}" for code in range(100, 108)}
    for found in (groups("firm", many), groups({"firm": names}, model.data_)):
        assert {group.label for group, _ in found} == largest
        assert {(len(rows), group.n_groups) for group, rows in found} == {(11, 300)}
    analysis = model.analysis(by={"firm": names}, no_instrument=False)
    assert len(analysis.effects) == 9
    words = "firm: the 8 largest of 300 groups."
    assert words in summary_text(analysis)
    assert words in report_page(analysis)
    plt.switch_backend("agg")
    assert model.plot_effects(by={"firm": names}, no_instrument=False).get_title(loc="left") == words
    assert all(group.n_groups == 0 for group, _ in groups("region"))


def written(file: Path, table: dict[str, Any]) -> Path:
    rows = zip(*table.values(), strict=True)
    file.write_text("\n".join([",".join(table), *(",".join(map(repr, map(float, row))) for row in rows)]))
    return file


def weak_table() -> dict[str, Any]:
    """Its Anderson-Rubin set for the effect of 0 → 1 is (-inf, 7.64] or [9.62, inf)."""
    w, v, u, e = np.random.default_rng(1).normal(size=(4, 300))
    x = 0.1 * w + 0.5 * v + u
    return {"y": 8.0 * x + v + u + 0.5 * e, "x": x, "w": w, "v": v}


def test_a_set_in_two_pieces_is_shown_in_two_pieces(tmp_path: Path) -> None:
    """Text, table, comparison, page, figure and command line."""
    table = weak_table()
    model = TSLS().fit_table(table, outcome="y", treatment="x", instruments="w", covariates="v")
    found = model.ate_interval(t0=0.0, t1=1.0)
    (_, low), (high, _) = found.pieces
    assert (found.lower, found.upper) == (-np.inf, np.inf)
    words = "-infinity to 7.64 or 9.62 to infinity"
    assert (round(low, 2), round(high, 2)) == (7.64, 9.62)
    assert words in str(found)
    analysis, compared = model.analysis(t0=0.0, t1=1.0), compare({"2SLS": model}, t0=0.0, t1=1.0)
    for frame in (found.to_frame(), analysis.to_frame(), compared.to_frame()):
        assert frame["set"].tolist() == [words]
        assert frame["lower"].tolist() == [-np.inf]
    for text in (summary_text(analysis), str(compared), report_page(analysis)):
        assert words in " ".join(text.split())
        assert "-infinity to infinity" not in text
    plt.switch_backend("agg")
    for ax in (model.plot_effects(t0=0.0, t1=1.0), model.plot_methods(t0=0.0, t1=1.0)):
        drawn = [line.get_xdata() for line in ax.get_lines() if len(line.get_xdata()) == 2]
        assert [float(drawn[0][1]), float(drawn[1][0])] == pytest.approx([low, high])
        assert ax.get_xlim()[0] < low < high < ax.get_xlim()[1]
    plt.close("all")
    model.save(tmp_path / "fit", analysis=analysis)
    file = written(tmp_path / "data.csv", table)
    for more in ([], ["--data", str(file)]):
        asked = ["effect", str(tmp_path / "fit"), "--t0", "0", "--t1", "1", *more]
        shown = CliRunner().invoke(app, asked, env={"COLUMNS": "200"}).stdout
        assert words in shown
        assert "Anderson-Rubin sets" in shown
        record = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)["effects"][0]
        assert record["pieces"][0][1] == pytest.approx(low)
        assert record["pieces"][1][0] == pytest.approx(high)
    other = CliRunner().invoke(app, [*asked[:6], "--level", "0.9"], env={"COLUMNS": "200"}).stdout
    assert "too weak for these intervals" in other


def test_curves_under_weak_instruments_say_so() -> None:
    model = TSLS().fit_table(weak_table(), outcome="y", treatment="x", instruments="w", covariates="v")
    plt.switch_backend("agg")
    legend = model.plot_curve().get_legend()
    assert legend is not None
    assert "weak instruments: intervals too narrow" in [text.get_text() for text in legend.get_texts()]
    assert "The instruments are too weak for it: it is too narrow." in report_page(model.analysis())
    plt.close("all")


def test_a_term_of_a_formula_goes_by_its_column() -> None:
    model = TSLS().fit_formula("sales ~ C(region) + [price ~ cost]", TABLE)
    for by in ("region", "C(region)", None):
        found = groups(by, model.data_)
        assert [group.column for group, _ in found] == ["region"] * 3
        assert found[0][0].label.startswith("region = ")


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("agee", "by='agee' is no covariate of the fit. It has 'age'"),
        (DATA.schema.blocks[-1].columns[0], "vector block"),
        ({"team": ["a"]}, r"labels of shape \(1,\)"),
    ],
)
def test_groups_that_are_none(by: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        groups(by)


def test_bad_requests_are_refused(tsls: TSLS, tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="given together"):
        tsls.analysis(t0=1.0)
    with pytest.raises(DataError, match="treatment"):
        tsls.analysis(t0=1.0, t1=np.inf)
    with pytest.raises(ConfigError, match="level must lie between 0 and 1"):
        tsls.analysis(level=95)
    other = TSLS().fit_formula("sales ~ [age ~ cost]", TABLE)
    with pytest.raises(DataError, match="another outcome or treatment"):
        tsls.analysis(compare={"other": other})
    with pytest.raises(ConfigError, match="is a folder"):
        TSLS().report(tmp_path)


def test_one_sided_take_up_shows_the_mean_over_treated_rows(tmp_path: Path) -> None:
    """The effect is 1 + v, and those with a large v take what they are offered."""
    rng = np.random.default_rng(8)
    v, u, e = rng.normal(size=(3, 1500))
    offer = (rng.random(1500) < 0.5).astype(float)
    taken = offer * (v + 0.5 * u > 0.0)
    table = {"y": (1.0 + v) * taken + v + u + 0.3 * e, "plan": taken, "offer": offer, "v": v}
    model = NPIV(treatment_kind="binary").fit_table(
        table, outcome="y", treatment="plan", instruments="offer", covariates="v"
    )
    treated, everyone = model.ate(t0=0, t1=1, rows="treated"), model.ate(t0=0, t1=1)
    assert treated > everyone + 0.4
    analysis = model.analysis(no_instrument=False)
    text = assumptions(analysis)["Compliance"]
    assert "The mean over all rows carries it over to rows that are not treated" in text
    assert text in report_page(analysis)
    assert [row.estimate for row in analysis.effects[:2]] == pytest.approx([everyone, treated])
    assert [row.group.label for row in analysis.effects[1:]] == ["plan = 1 (treated)", "plan = 0 (untreated)"]
    model.save(tmp_path / "fit", analysis=analysis)
    file = written(tmp_path / "data.csv", table)
    for which, wanted in (("treated", treated), ("all", everyone)):
        for more in ([], ["--data", str(file)]):
            asked = ["effect", str(tmp_path / "fit"), "--t0", "0", "--t1", "1", "--rows", which, "--json", *more]
            (found,) = json.loads(CliRunner().invoke(app, asked).stdout)["effects"]
            assert found["estimate"] == pytest.approx(wanted)
    refused = CliRunner().invoke(app, ["effect", str(tmp_path / "fit"), "--t0", "0", "--t1", "1", "--rows", "some"])
    assert refused.exit_code == 2


def test_what_is_estimated_is_said_for_the_data_at_hand() -> None:
    """A binary instrument without which nobody is treated: the effect on the treated."""
    rng = np.random.default_rng(0)
    offered = (np.arange(400) % 2).astype(np.float64)
    taken = offered * (rng.random(400) < 0.6)
    data = {"saved": taken + rng.normal(size=400), "plan": taken, "offer": offered}
    model = TSLS(treatment_kind="binary").fit_table(data, outcome="saved", treatment="plan", instruments=["offer"])
    analysis = model.analysis(no_instrument=False)
    assert analysis.estimand.treated == pytest.approx((0.0, taken[offered == 1].mean()))
    texts = assumptions(analysis)
    assert "local average treatment effect" in texts["Binary instrument"]
    assert "the effect on the treated" in texts["Compliance"]
    assert "Ill-posedness" not in texts
    assert "for these rows, not for the population" in texts["Estimand"]
    both = TSLS().fit_table(
        data | {"cost": offered + 2.0 * taken + rng.normal(size=400)},
        outcome="saved",
        treatment="cost",
        instruments=["offer", "plan"],
    )
    texts = assumptions(both.analysis(no_instrument=False))
    assert "offer and plan affect saved only through cost" in texts["Exclusion and independence"]
    assert {"One instrument with two values", "Compliance"}.isdisjoint(texts)
    assert "Ill-posedness" in texts
