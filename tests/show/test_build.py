"""Analyses of real fits: what is asked is what is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgmiv import BGMIV, KIV, TSLS
from bgmiv.data import IVData
from bgmiv.errors import ConfigError, DataError
from bgmiv.show.contrast import contrast
from bgmiv.show.groups import groups_of

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
FORMULA = "sales ~ age + region + member + [price ~ cost]"


@pytest.fixture(scope="module")
def tsls() -> TSLS:
    return TSLS.from_formula(FORMULA, TABLE)


@pytest.fixture(scope="module")
def fit() -> BGMIV:
    return BGMIV.from_formula(FORMULA, TABLE, members=2, warm_start_iterations=20, random_state=0)


def test_curves_and_effects_are_the_answers_to_the_same_questions(tsls: TSLS) -> None:
    found = tsls.analysis(t0=0.0, t1=1.0)
    labels = [row.label for row in found.effects]
    assert labels[0] == "everyone"
    assert sorted(labels[1:]) == ["member = 0", "member = 1", "region = east", "region = north", "region = south"]
    assert [curve.label for curve in found.curves] == labels
    expected = tsls.ate_interval(TABLE, t0=0.0, t1=1.0)
    row = found.effects[0]
    assert (row.estimate, row.lower, row.upper) == pytest.approx(
        (expected.estimate, expected.lower, expected.upper), rel=1e-5
    )
    curve = found.curves[0]
    answer = tsls.dose_response_interval(curve.treatment, TABLE)
    np.testing.assert_allclose(curve.estimate, answer.estimate, rtol=1e-5)
    # The average over some people stands for that over all.
    np.testing.assert_allclose(np.subtract(curve.upper, curve.lower), answer.upper - answer.lower, rtol=0.1)
    assert found.question.formula == FORMULA
    assert {column.role for column in found.question.columns} == {"outcome", "treatment", "instrument", "covariate"}


def test_a_contrast_can_be_read_off_the_stored_curve(tsls: TSLS) -> None:
    found = tsls.analysis(t0=0.0, t1=1.0)
    asked = contrast(found.curves[0], 0.0, 1.0, 0.95)
    row = found.effects[0]
    assert (asked.estimate, asked.lower, asked.upper) == pytest.approx((row.estimate, row.lower, row.upper), rel=1e-3)
    with pytest.raises(DataError, match="stored curve goes from"):
        contrast(found.curves[0], 0.0, 100.0, 0.95)


def test_everything_is_kept_with_a_saved_model(fit: BGMIV, tmp_path: Path) -> None:
    found = fit.analysis(compare={"2SLS": TSLS.from_formula(FORMULA, TABLE)}, title="Prices & <sales>")
    names = [row.name for row in found.methods]
    assert names == ["BGM-IV", "BGM-IV without the instrument", "least squares", "2SLS"]
    given = found.methods[-1]
    assert len(given.curve) == len(found.curves[0].treatment)
    assert found.settings["members"] == "2"
    fit.save(tmp_path / "fit")
    loaded = BGMIV.load(tmp_path / "fit")
    assert loaded.analysis() == found
    assert loaded.diagnose() == found.diagnosis
    np.testing.assert_array_equal(loaded.predict(1.0, TABLE), fit.predict(1.0, TABLE))
    for old, new in zip(fit.ate_interval(TABLE, t0=0, t1=1), loaded.ate_interval(TABLE, t0=0, t1=1), strict=True):
        assert old == new


def test_the_line_of_2sls_is_drawn_without_being_asked_for(fit: BGMIV, tsls: TSLS) -> None:
    found = fit.analysis(t0=0.0, t1=1.0)
    row = next(row for row in found.methods if row.name == "2SLS")
    expected = tsls.ate_interval(TABLE, t0=0.0, t1=1.0)
    assert (row.estimate, row.lower, row.upper) == pytest.approx(
        (expected.estimate, expected.lower, expected.upper), rel=1e-3
    )
    np.testing.assert_allclose(row.curve, tsls.dose_response(found.curves[0].treatment, TABLE).values, rtol=1e-3)


def test_methods_without_intervals_are_shown_without() -> None:
    model = KIV.from_formula("sales ~ age + [price ~ cost]", {name: column[:80] for name, column in TABLE.items()})
    found = model.analysis()
    assert found.curves[0].lower == ()
    assert found.effects[0].lower is None
    assert found.interval_kind == ""


def test_levels_of_a_treatment_are_the_doses() -> None:
    dose = np.array(["none", "low", "high"])[np.digitize(TABLE["price"], [-1.0, 1.0])]
    model = BGMIV(members=1, warm_start_iterations=10, held_out=0.0, random_state=0)
    model.fit(TABLE["sales"], dose, instruments=np.column_stack([W, W**2]), covariates=V)
    found = model.analysis()
    assert found.question.treatment_levels == tuple(model.fitted_.schema.treatment.levels)
    assert found.curves[0].treatment == (0.0, 1.0, 2.0)
    assert found.effects[0].t0 == str(model.fitted_.schema.treatment.levels[0])


DATA = IVData.from_arrays(
    TABLE["sales"],
    TABLE["price"],
    instruments=W,
    covariates={"age": V, "region": REGION, "proxy": RNG.normal(size=(N, 3))},
    blocks={"region": "categorical"},
)


def test_groups_divide_the_rows() -> None:
    for by in ("age", "region", {"team": np.arange(N) % 3}, {"score": RNG.normal(size=N)}):
        groups = groups_of(DATA, by)
        assert sorted(np.concatenate([group.rows for group in groups]).tolist()) == list(range(N))
        assert len(groups) == 3
    assert len(groups_of(DATA, ["age", "region"])) == 6
    assert [group.label for group in groups_of(DATA, {"team": ["a"] * N})] == ["team = a"]


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("agee", "by='agee' is no covariate of the fit. It has 'age'"),
        ("proxy_0", "vector block"),
        ({"team": ["a"]}, r"labels of shape \(1,\)"),
        ({"name": np.arange(N).astype(str)}, "at most 8 groups"),
    ],
)
def test_groups_that_are_none(by: Any, message: str) -> None:
    if by == "proxy_0":
        by = DATA.schema.blocks[-1].columns[0]
    with pytest.raises(DataError, match=message):
        groups_of(DATA, by)


def test_bad_treatments_are_refused(tsls: TSLS) -> None:
    with pytest.raises(ConfigError, match="given together"):
        tsls.analysis(t0=1.0)
    with pytest.raises(DataError, match="treatment"):
        tsls.analysis(t0=1.0, t1=np.inf)
    other = TSLS.from_formula("sales ~ [age ~ cost]", TABLE)
    with pytest.raises(DataError, match="another outcome or treatment"):
        tsls.analysis(compare={"other": other})
