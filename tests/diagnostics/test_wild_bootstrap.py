"""The wild cluster bootstrap of two-stage least squares: equal to one that fits every draw row by row."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bgmiv
from bgmiv import KIV, NPIV, TSLS
from bgmiv.diagnostics.columns import linear_columns
from bgmiv.diagnostics.linear import linear_fit
from bgmiv.diagnostics.wild_bootstrap import WildBootstrap, cluster_products, draw_weights, one_way
from bgmiv.errors import ConfigError, DataError
from bgmiv.estimators.base import IVEstimator
from bgmiv.intervals import Floats, Interval

PAIR = {"t0": 0.0, "t1": 2.0}
# Few clusters, and instruments that are weak by the rule for one of them.
pytestmark = pytest.mark.filterwarnings("ignore:.*clusters are few", "ignore:.*too weak")


def table(n_clusters: int = 5, size: int = 12, strength: float = 1.0, seed: int = 0) -> dict[str, Any]:
    """Clusters with a part of instruments and errors in common; `region` lies in them, `year` crosses them."""
    rng = np.random.default_rng(seed)
    state = np.repeat(np.arange(n_clusters), size)
    n = len(state)
    w, w2, v, u, e = rng.normal(size=(5, n)) + rng.normal(size=(5, n_clusters))[:, state]
    x = strength * (w + 0.3 * w2) + 0.5 * v + u
    region = np.array([f"{g}-{i % 5}" for i, g in enumerate(state)])
    year = np.array([f"y{i}" for i in rng.integers(0, 8, n)])
    y = 1.5 * x + v + u + 0.5 * e
    return {"y": y, "x": x, "w": w, "w2": w2, "v": v, "state": state, "region": region, "year": year,
            "weight": rng.uniform(0.2, 3.0, n)}  # fmt: skip


def fitted(data: dict[str, Any], model: IVEstimator | None = None, **changes: Any) -> Any:
    arguments: dict[str, Any] = {"outcome": "y", "treatment": "x", "instruments": ["w"], "covariates": ["v"]}
    arguments |= {"clusters": "state"} | changes
    return (model or TSLS()).fit_table(data, **arguments)


def dummies(levels: Any) -> Floats:
    return np.asarray(levels[:, None] == np.unique(levels)[None, 1:], np.float64)


def two_stages(y: Floats, x: Floats, exogenous: Floats, w: Floats, groups: Any) -> tuple[float, float]:
    """The slope of x and its clustered standard error, without a correction for small samples."""
    known = np.hstack([exogenous, w])
    hat = known @ np.linalg.lstsq(known, np.column_stack([exogenous, x]), rcond=None)[0]
    beta = np.linalg.lstsq(hat, y, rcond=None)[0]
    scores = hat * (y - np.column_stack([exogenous, x]) @ beta)[:, None]
    sums = np.stack([scores[groups == g].sum(axis=0) for g in np.unique(groups)])
    bread = np.linalg.pinv(hat.T @ hat)
    return float(beta[-1]), float(np.sqrt((bread @ sums.T @ sums @ bread)[-1, -1]))


def reference(
    y: Floats, x: Floats, exogenous: Floats, w: Floats, groups: Any, b: float, signs: Floats, weights: Floats | None
) -> tuple[Floats, float]:
    """The statistics of all draws and the statistic of the data, by fits to rows."""
    root = np.ones(len(y)) if weights is None else np.sqrt(weights)
    y, x, exogenous, w = y * root, x * root, exogenous * root[:, None], w * root[:, None]
    gamma = np.linalg.lstsq(exogenous, y - x * b, rcond=None)[0]
    u = y - x * b - exogenous @ gamma
    first = np.linalg.lstsq(np.column_stack([exogenous, w, u]), x, rcond=None)[0]
    mean = np.column_stack([exogenous, w]) @ first[:-1]
    found = []
    for pattern in signs:
        by_row = pattern[groups]
        drawn_x = mean + by_row * (x - mean)
        drawn_y = drawn_x * b + exogenous @ gamma + by_row * u
        slope, error = two_stages(drawn_y, drawn_x, exogenous, w, groups)
        found.append((slope - b) / error)
    slope, error = two_stages(y, x, exogenous, w, groups)
    return np.array(found), (slope - b) / error


@pytest.mark.parametrize("instruments", [["w"], ["w", "w2"]])
@pytest.mark.parametrize("fixed", [(), ("region",), ("year",), ("region", "year")])
@pytest.mark.parametrize("weighted", [False, True])
def test_every_draw_is_that_of_fits_to_rows(instruments: list[str], fixed: tuple[str, ...], weighted: bool) -> None:
    data = table()
    model = fitted(
        data, instruments=instruments, covariates=["v", *fixed], sample_weight="weight" if weighted else None
    )
    columns = linear_columns(model.data_)
    # Levels beyond an eighth of the rows are absorbed.
    assert columns.prepared.get("absorbed", 0.0) == len(fixed)
    signs = np.array(list(product([1.0, -1.0], repeat=5)))
    bootstrap = WildBootstrap.drawn(cluster_products(columns), signs)
    constant = np.ones((len(data["y"]), 1))
    exogenous = np.column_stack([constant, data["v"], *(dummies(data[name]) for name in fixed)])
    w = np.column_stack([data[name] for name in instruments])
    for b in (-1.0, 1.0, 2.5, 40.0):
        rows = (data["y"], data["x"], exogenous, w, data["state"], b, signs, data["weight"] if weighted else None)
        expected, statistic = reference(*rows)
        np.testing.assert_allclose(bootstrap.statistics(b / columns.unit), expected, rtol=1e-6)
        share = float(np.mean(np.abs(expected) >= abs(statistic) * (1.0 - 1e-9)))
        assert bootstrap.p_value(b / columns.unit) == pytest.approx(share)


def test_the_interval_is_where_the_p_value_passes_the_level() -> None:
    model = fitted(table(8, 30))
    found = model.ate_interval(**PAIR, level=0.9, method="wild")
    columns = linear_columns(model.data_)
    bootstrap = WildBootstrap.of(columns)
    unit = 2.0 * columns.unit
    for end, outwards in ((found.lower, -1.0), (found.upper, 1.0)):
        inside, outside = ((end + step * outwards * 1e-4) / unit for step in (-1.0, 1.0))
        assert bootstrap.p_value(inside) > 0.1 >= bootstrap.p_value(outside)
    assert found.method == "wild bootstrap"
    assert found.pieces == ((found.lower, found.upper),)
    usual = model.ate_interval(**PAIR, level=0.9, method="usual")
    assert (found.estimate, found.std_error, found.dof) == (usual.estimate, usual.std_error, usual.dof)
    turned = model.ate_interval(t0=2.0, t1=0.0, level=0.9, method="wild")
    assert (turned.lower, turned.upper) == pytest.approx((-found.upper, -found.lower))


@pytest.mark.parametrize(
    ("n_clusters", "n_draws"), [(3, 6**3), (5, 6**5), (8, 10_000), (10, 2**10), (13, 2**13), (14, 10_000)]
)
def test_weights_are_all_patterns_where_these_are_few(n_clusters: int, n_draws: int) -> None:
    weights = draw_weights(n_clusters)
    assert len(weights) == n_draws
    assert (weights[0] == 1.0).all()
    assert len(np.unique(weights)) == (6 if n_clusters < 10 else 2)
    if n_draws < 10_000:
        assert len(np.unique(weights, axis=0)) == n_draws
    assert np.mean(weights[1:]) == pytest.approx(0.0, abs=0.01)
    assert np.mean(weights**2) == pytest.approx(1.0, abs=0.01)


def test_units_do_not_matter() -> None:
    data = table(8, 30)
    scales = {"y": 1e-6, "x": 1e5, "w": 1e3, "v": 1e-4}
    other = data | {name: 7.0 + data[name] * scale for name, scale in scales.items()}
    found = fitted(data).ate_interval(t0=0.0, t1=1.0, method="wild")
    scaled = fitted(other).ate_interval(t0=0.0, t1=1e5, method="wild")
    assert (1e6 * scaled.lower, 1e6 * scaled.upper) == pytest.approx((found.lower, found.upper), rel=1e-5)


def test_with_many_clusters_it_is_the_usual_interval() -> None:
    model = fitted(table(200, 10, seed=1))
    lower, upper = model.ate_interval(**PAIR, method="wild")
    usual = model.ate_interval(**PAIR, method="usual")
    width = usual.upper - usual.lower
    assert (lower, upper) == pytest.approx((usual.lower, usual.upper), abs=0.05 * width)


def test_the_statistic_of_the_data_is_that_of_the_clustered_covariance() -> None:
    model = fitted(table(8, 30), TSLS(covariance="cluster"))
    columns = linear_columns(model.data_)
    common = cluster_products(columns)
    both = linear_fit(columns, columns.outcome)
    correction = 8 / 7 * 239 / 237
    assert common.estimate == pytest.approx(both.coefficients[-1])
    assert common.std_error * np.sqrt(correction) == pytest.approx(np.sqrt(both.covariance[-1, -1]))
    # The first draw is the data.
    statistic = WildBootstrap.of(columns).statistics(common.estimate + common.std_error)[0]
    assert statistic == pytest.approx(-1.0)


def test_the_same_seed_gives_the_same_interval() -> None:
    data = table(8, 30)
    first, second = (fitted(data).ate_interval(**PAIR, method="wild") for _ in range(2))
    assert first.pieces == second.pieces
    columns = linear_columns(fitted(data).data_)
    sets = [WildBootstrap.of(columns, seed).kept(0.95) for seed in (3, 3, 4)]
    assert sets[0] == sets[1] != sets[2]
    assert sets[0][0] == pytest.approx(sets[2][0], rel=0.1)


def test_instruments_that_do_nothing_leave_the_set_unbounded() -> None:
    found = fitted(table(8, 30, strength=0.0)).ate_interval(**PAIR, method="wild")
    assert (found.lower, found.upper) == (-np.inf, np.inf)
    assert found.pieces[0][0] == -np.inf
    assert "method='robust'" in found.note


def test_a_set_in_pieces_is_told() -> None:
    pieces = ((-np.inf, 0.0), (1.0, 2.0))
    found = Interval(1.5, -np.inf, 2.0, 0.95, {"sampling": 0.2}, 1.0, method="wild bootstrap", pieces=pieces)
    assert "95% wild bootstrap set -infinity to 0 or 1 to 2" in str(found).replace(".00", "")
    assert found.to_frame()["set"].item() == "(-inf, 0] or [1, 2]"


def test_pieces_are_where_the_p_value_says(monkeypatch: pytest.MonkeyPatch) -> None:
    bootstrap = WildBootstrap.of(linear_columns(fitted(table(5)).data_))
    estimate, unit = bootstrap.common.estimate, bootstrap.common.std_error

    def p_value(self: WildBootstrap, effect: float) -> float:
        t = (effect - estimate) / unit
        return 1.0 if t < -4.0 or abs(t) < 2.0 else 0.0

    monkeypatch.setattr(WildBootstrap, "p_value", p_value)
    (far, near) = bootstrap.kept(0.95)
    assert far == (-np.inf, pytest.approx(estimate - 4.0 * unit))
    assert near == pytest.approx((estimate - 2.0 * unit, estimate + 2.0 * unit))


def test_an_exact_fit_has_a_point() -> None:
    data = table(8, 30)
    found = fitted(data | {"y": 3.0 * data["x"]}).ate_interval(t0=0.0, t1=1.0, method="wild")
    assert (found.lower, found.upper) == pytest.approx((3.0, 3.0))


def test_a_binary_treatment_has_one_effect() -> None:
    data = table(8, 30)
    model = fitted(data | {"x": np.where(data["x"] > 0.0, "yes", "no")})
    lower, upper = model.ate_interval(t0="no", t1="yes", method="wild")
    assert lower < model.ate(t0="no", t1="yes") < upper


@pytest.mark.parametrize(
    ("model", "changes", "error", "message"),
    [
        (None, {"clusters": None}, DataError, "clusters="),
        (TSLS(covariance="robust"), {}, DataError, "covariance='auto'"),
        (None, {"clusters": ["state", "year"]}, DataError, "one column of clusters"),
        (TSLS(use_instrument=False), {}, DataError, "instruments"),
        (NPIV(), {}, ConfigError, "TSLS"),
        (KIV(random_state=0), {}, ConfigError, "TSLS"),
    ],
)  # fmt: skip
def test_what_it_does_not_do_is_said(
    model: IVEstimator | None, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as found:
        fitted(table(8, 30), model, **changes).ate_interval(**PAIR, method="wild")
    assert "method='wild'" in str(found.value)
    assert "method='usual'" in str(found.value)


def test_a_loaded_fit_needs_its_rows(tmp_path: Path) -> None:
    data = table(8, 30)
    model = fitted(data)
    model.save(tmp_path / "fit")
    loaded: Any = bgmiv.load(tmp_path / "fit")
    with pytest.raises(DataError, match="attach_data"):
        loaded.ate_interval(data, **PAIR, method="wild")
    loaded.attach_data(data)
    assert loaded.ate_interval(**PAIR, method="wild").pieces == model.ate_interval(**PAIR, method="wild").pieces


def test_columns_that_are_not_those_of_the_fit_are_refused() -> None:
    columns = linear_columns(fitted(table(8, 30)).data_)
    with pytest.raises(DataError, match="300 covariate columns are too many"):
        one_way(replace(columns, prepared={"components": 20.0, "covariate_columns": 300.0}))
    with pytest.raises(DataError, match="3 clusters are too few"):
        one_way(linear_columns(fitted(table(3, 30), instruments=["w", "w2"]).data_))


def test_too_many_clusters_and_a_missing_method_are_refused() -> None:
    with pytest.raises(DataError, match="at most 500 clusters"):
        fitted(table(501, 3)).ate_interval(**PAIR, method="wild")
    with pytest.raises(ConfigError, match="auto, usual, robust, wild"):
        fitted(table(8, 30)).ate_interval(**PAIR, method="wilder")


def test_rows_of_weight_zero_have_no_part() -> None:
    data = table(8, 30)
    weights = np.where(np.arange(240) % 3 == 0, 0.0, data["weight"])
    kept = {name: values[weights > 0.0] for name, values in (data | {"weight": weights}).items()}
    both = [fitted(each, sample_weight="weight") for each in (data | {"weight": weights}, kept)]
    first, second = (model.ate_interval(**PAIR, method="wild") for model in both)
    assert (first.lower, first.upper) == pytest.approx((second.lower, second.upper))
