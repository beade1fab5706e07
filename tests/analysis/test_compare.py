"""The same question to several fitted methods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgmiv import TSLS, compare, load
from bgmiv.analysis.plots import plot_methods
from bgmiv.errors import ConfigError, DataError, NotFittedError

N = 200


@pytest.fixture(scope="module")
def table() -> dict[str, np.ndarray]:
    w, v, u = np.random.default_rng(0).normal(size=(3, N))
    x = w + v + u
    dose = np.where(w + u > 0.6, "high", np.where(w + u > -0.6, "low", "none"))
    return {"y": 2.0 * x + v - u, "x": x, "w": w, "v": v, "dose": dose}


def fitted(model: Any, table: dict[str, np.ndarray], **roles: Any) -> Any:
    asked = {"outcome": "y", "treatment": "x", "instruments": "w", "covariates": "v"} | roles
    return model.fit_table(table, **asked)


@pytest.fixture(scope="module")
def models(table: dict[str, np.ndarray]) -> dict[str, Any]:
    return {"2SLS": fitted(TSLS(), table), "OLS": fitted(TSLS(use_instrument=False), table)}


def test_rows_are_what_the_methods_say(models: dict[str, Any], table: dict[str, np.ndarray]) -> None:
    found = compare(models)
    low, high = (float(f"{end:.3g}") for end in np.quantile(table["x"], [0.25, 0.75]))
    assert (found.t0, found.t1, found.n_rows) == (low, high, N)
    frame = found.to_frame()
    for row, (name, model) in zip(found.methods, models.items(), strict=True):
        asked = model.ate_interval(t0=low, t1=high)
        assert row.name == name
        assert (row.estimate, row.lower, row.upper) == pytest.approx((asked.estimate, *asked), rel=1e-12)
        assert tuple(frame.loc[name, ["estimate", "lower", "upper"]]) == (row.estimate, row.lower, row.upper)
        np.testing.assert_allclose(row.curve, model.dose_response(found.treatments).values)


def test_methods_without_intervals_have_none(table: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted(TSLS(), table)
    monkeypatch.setattr(type(model.fitted_), "interval_kind", "")
    found = compare({"KIV": model}, t0=0.0, t1=1.0)
    assert found.methods[0].lower is None
    assert "KIV: not checked in held-out rows; point estimate only" in str(found)


def test_a_model_without_its_rows_needs_rows_and_treatments(table: dict[str, np.ndarray], tmp_path: Path) -> None:
    fitted(TSLS(), table).save(tmp_path / "model")
    model = load(tmp_path / "model")
    with pytest.raises(ConfigError, match="no model holds its rows"):
        compare({"2SLS": model})
    with pytest.raises(ConfigError, match="'2SLS' was loaded and holds no rows"):
        compare({"2SLS": model}, t0=0.0, t1=1.0)
    whole = compare({"2SLS": model}, t0=0.0, t1=1.0, covariates=table)
    assert whole.methods[0].estimate == pytest.approx(model.ate(table, t0=0.0, t1=1.0))


def test_it_is_shown(models: dict[str, Any]) -> None:
    few = {"v": [0.0, 1.0]}
    found = compare(models, t0=0.0, t1=2.0, covariates=few, level=0.8)
    assert found.methods[0].estimate == models["2SLS"].ate(few, t0=0.0, t1=2.0)
    text = str(found)
    assert "80% interval" in text
    assert text == repr(found)
    assert text.startswith("Average effect of x 2 instead of 0 on y (200 rows)")
    assert max(len(line) for line in text.splitlines()[:6]) <= 80
    assert found._repr_html_().count("<tr>") == 3
    assert json.loads(json.dumps(found.to_dict()))["methods"][0]["name"] == "2SLS"
    assert plot_methods(found).get_xlabel() == "average effect of x 2 instead of 0 on y"


def test_levels_are_compared_by_name(table: dict[str, np.ndarray]) -> None:
    model = fitted(TSLS(), table, treatment="dose", instruments=["w", "v"], covariates=None)
    found = compare({"2SLS": model})
    assert found.treatments == (0.0, 1.0, 2.0)
    t0, t1 = found.treatment_levels[:2]
    assert found.asked == f"average effect of dose {t1} instead of {t0} on y"
    assert found.methods[0].estimate == pytest.approx(model.ate(t0=t0, t1=t1))


def test_what_cannot_be_compared_is_refused(models: dict[str, Any], table: dict[str, np.ndarray]) -> None:
    with pytest.raises(ConfigError, match="at least one fitted model"):
        compare({})
    with pytest.raises(NotFittedError, match="not fitted yet"):
        compare({"new": TSLS()})
    with pytest.raises(ConfigError, match="t0 and t1 are given together"):
        compare(models, t0=1.0)
    with pytest.raises(ConfigError, match="level must lie between 0 and 1"):
        compare(models, level=95)
    half = {name: column[: N // 2] for name, column in table.items()}
    for other, message in (
        (fitted(TSLS(), half), "different numbers of rows: '2SLS' 200, 'other' 100"),
        (fitted(TSLS(), table, outcome="v", covariates=None), r"different outcome: \['y'\] and \['v'\]"),
        (fitted(TSLS(), table, covariates=None), r"different covariates: \['v'\] and \[\]"),
        (fitted(TSLS(), table, instruments=["w", "y"], outcome="v", covariates=None), "outcome"),
    ):
        with pytest.raises(DataError, match=message):
            compare({"2SLS": models["2SLS"], "other": other})
