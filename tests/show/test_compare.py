"""The same question to several fitted methods."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import bgmiv
from bgmiv import KIV, TSLS, compare
from bgmiv.errors import ConfigError, DataError
from bgmiv.show.plots import plot_methods

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
    return {"2SLS": fitted(TSLS(), table), "KIV": fitted(KIV(), table)}


def said(model: Any, *args: Any, **asked: Any) -> tuple[float, float | None, float | None]:
    """What the method itself says, with an interval if it has one."""
    try:
        found = model.ate_interval(*args, **asked)
        return found.estimate, found.lower, found.upper
    except ConfigError:
        return model.ate(*args, **asked), None, None


def test_rows_are_what_the_methods_say(models: dict[str, Any], table: dict[str, np.ndarray]) -> None:
    found = compare(models)
    low, high = (float(f"{end:.3g}") for end in np.quantile(table["x"], [0.25, 0.75]))
    for row, (name, model) in zip(found.methods, models.items(), strict=True):
        assert row.name == name
        assert (row.estimate, row.lower, row.upper) == said(model, table, t0=low, t1=high)
        np.testing.assert_allclose(row.curve, model.dose_response(found.treatments, table).values)
    assert found.n_rows == N
    assert "point estimate only" in found.methods[1].note


def test_people_and_treatments_can_be_chosen(models: dict[str, Any]) -> None:
    few = {"v": [0.0, 1.0]}
    found = compare(models, t0=0.0, t1=2.0, covariates=few, level=0.8)
    assert (found.t0, found.t1, found.level) == ("0", "2", 0.8)
    assert found.methods[0].estimate == models["2SLS"].ate(few, t0=0.0, t1=2.0)


def test_a_model_without_its_rows_needs_people_and_treatments(table: dict[str, np.ndarray]) -> None:
    model = fitted(TSLS(), table)
    model.data_ = None
    with pytest.raises(ConfigError, match="none of the models holds its rows"):
        compare({"2SLS": model})
    with pytest.raises(ConfigError, match="'2SLS' holds no rows"):
        compare({"2SLS": model}, t0=0.0, t1=1.0)
    model.data_ = fitted(TSLS(), table).data_
    whole = compare({"2SLS": model}, t0=0.0, t1=1.0, covariates=table)
    assert whole.methods[0].estimate == pytest.approx(model.ate(table, t0=0.0, t1=1.0))


def test_it_is_shown(models: dict[str, Any]) -> None:
    found = compare(models, t0=0.0, t1=2.0)
    text = str(found)
    assert text == repr(found)
    assert text.startswith("Average effect of x 2 instead of 0 on y (200 rows)")
    assert max(len(line) for line in text.splitlines()[:6]) <= 80
    assert found._repr_html_().count("<tr>") == 3
    assert json.loads(json.dumps(found.to_dict()))["methods"][0]["name"] == "2SLS"
    assert plot_methods(found).get_xlabel() == "average effect of x 2 instead of 0 on y"


def test_levels_are_compared_by_name(table: dict[str, np.ndarray]) -> None:
    model = fitted(TSLS(), table, treatment="dose", instruments=["w", "v"], covariates=None)
    found = compare({"2SLS": model})
    assert {found.t0, found.t1} < {"none", "low", "high"}
    assert found.treatments == (0.0, 1.0, 2.0)
    assert found.methods[0].estimate == model.ate(t0=found.t0, t1=found.t1)


def test_what_cannot_be_compared_is_refused(models: dict[str, Any], table: dict[str, np.ndarray]) -> None:
    with pytest.raises(ConfigError, match="at least one fitted model"):
        compare({})
    with pytest.raises(ConfigError, match="'new' is not fitted"):
        compare({"new": TSLS()})
    with pytest.raises(ConfigError, match="t0 and t1 belong together"):
        compare(models, t0=1.0)
    with pytest.raises(ConfigError, match="level must lie between 0 and 1"):
        compare(models, level=95)
    half = {name: column[: N // 2] for name, column in table.items()}
    for other, message in (
        (fitted(TSLS(), half), "different numbers of rows: '2SLS' 200, 'other' 100"),
        (fitted(TSLS(), table, outcome="v", covariates=None), "has outcome 'y' and 'other' 'v'"),
        (fitted(TSLS(), table, covariates=None), r"different covariates: \['v'\] and \[\]"),
        (fitted(TSLS(), table, instruments=["w", "y"], outcome="v", covariates=None), "outcome"),
    ):
        with pytest.raises(DataError, match=message):
            compare({"2SLS": models["2SLS"], "other": other})


def test_it_is_offered() -> None:
    assert "compare" in bgmiv.__all__
    assert bgmiv.compare is compare
