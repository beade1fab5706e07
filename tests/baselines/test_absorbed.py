"""Categorical covariates with many levels, in every interval and check, against pyfixest and means taken by hand."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyfixest
import pytest
from linearmodels.iv import IV2SLS

from bgmiv import NPIV, TSLS, ControlFunction
from bgmiv.data.formula import from_formula
from bgmiv.errors import FitWarning
from bgmiv.linear_iv import LinearIV

FORMULA = "y ~ C(firm) + [x ~ w]"


def panel(n_firms: int = 300, n_years: int = 4, seed: int = 0, *, slope: float = -1.0) -> pd.DataFrame:
    """Treatment and outcome share an effect of the firm; the instrument varies within firms."""
    rng = np.random.default_rng(seed)
    firm = np.repeat(np.arange(n_firms), n_years)
    year = np.tile(np.arange(n_years), n_firms)
    w, v, u, e, share = rng.normal(size=(5, len(firm)))
    own = 2.0 * rng.normal(size=n_firms)[firm]
    x = own + 0.2 * w + 0.2 * v + 0.1 * year + u
    y = slope * x + 3.0 * own + 0.5 * v + 0.7 * u + 0.7 * e
    columns = {"y": y, "x": x, "w": w, "v": v, "weight": np.exp(0.5 * share)}
    return pd.DataFrame(columns | {"firm": firm.astype(str), "year": year.astype(str)})


def pyfixest_fit(formula: str, table: pd.DataFrame, vcov: Any = "hetero", weights: str | None = None) -> Any:
    with warnings.catch_warnings():
        # Of pandas, about its own calls.
        warnings.simplefilter("ignore")
        # It drops rows that are alone at their level by default; they do not change an estimate.
        return pyfixest.feols(formula, table, vcov=vcov, weights=weights, fixef_rm="none")


def demeaned(table: pd.DataFrame) -> pd.DataFrame:
    numbers = ["y", "x", "w", "v"]
    return table[numbers] - table.groupby("firm")[numbers].transform("mean")


@pytest.mark.parametrize("n_firms", [3, 30, 300, 1000])
def test_tsls_and_first_stage_are_those_of_pyfixest(n_firms: int) -> None:
    table = panel(n_firms, n_years=200 if n_firms == 3 else 4)
    theirs = pyfixest_fit("y ~ v | firm | x ~ w", table)
    model = TSLS().fit_formula("y ~ v + C(firm) + [x ~ w]", table)
    found = model.ate_interval(t0=0.0, t1=1.0, method="usual")
    assert found.estimate == pytest.approx(theirs.coef()["x"], rel=1e-8)
    # Three indicators are ordinary columns.
    assert found.std_error == pytest.approx(theirs.se()["x"], rel=1e-2 if n_firms == 3 else 1e-8)
    assert (model.fitted_.effects is None) == (n_firms == 3)
    first = LinearIV.of(model.data_).stages[0]
    assert first.robust_f == pytest.approx(pyfixest_fit("x ~ v + w | firm", table).tstat()["w"] ** 2, rel=1e-8)
    assert first.f == pytest.approx(pyfixest_fit("x ~ v + w | firm", table, "iid").tstat()["w"] ** 2, rel=1e-8)
    residuals = table["y"].to_numpy() - model.predict(table["x"].to_numpy(), table)
    assert residuals == pytest.approx(theirs.resid(), abs=1e-8)


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_two_absorbed_covariates_weights_and_clusters_are_those_of_pyfixest(clustered: bool, weighted: bool) -> None:
    rng = np.random.default_rng(1)
    table = panel(40, 30).sample(frac=0.6, random_state=0)
    table["y"] += 2.0 * rng.normal(size=30)[table["year"].astype(int)]
    vcov = {"CRV1": "firm"} if clustered else "hetero"
    weights = "weight" if weighted else None
    theirs = pyfixest_fit("y ~ v | firm + year | x ~ w", table, vcov, weights)
    roles = {"sample_weight": weights, "clusters": "firm" if clustered else None}
    # Of 40 firms the default is the jackknife.
    kind = TSLS(covariance="cluster" if clustered else "robust")
    model = kind.fit_formula("y ~ v + C(firm) + C(year) + [x ~ w]", table, **roles)
    found = model.ate_interval(t0=0.0, t1=1.0, method="usual")
    assert found.estimate == pytest.approx(theirs.coef()["x"], rel=1e-6)
    # It takes means out in turn, up to 1e-8.
    assert found.std_error == pytest.approx(theirs.se()["x"], rel=1e-6)
    dummies = pd.get_dummies(table[["firm", "year"]]).to_numpy(np.float64)[:, 1:]
    exogenous = np.column_stack([np.ones(len(table)), table["v"], np.delete(dummies, 39, axis=1)])
    by_dummies = IV2SLS(
        table["y"], exogenous, table["x"], table["w"], weights=table[weights] if weights else None
    ).fit()
    fitted = by_dummies.fitted_values.to_numpy()[:, 0]
    assert model.predict(table["x"].to_numpy(), table) == pytest.approx(fitted, abs=1e-8)
    first = pyfixest_fit("x ~ v + w | firm + year", table, vcov, weights)
    robust = LinearIV.of(model.data_).stages[0].robust_f
    assert robust == pytest.approx(first.tstat()["w"] ** 2, rel=1e-6)


def test_linear_checks_are_those_of_columns_demeaned_by_hand() -> None:
    table = panel()
    data = from_formula(FORMULA, table)[0]
    linear = LinearIV.of(data)
    by_hand = LinearIV.of(from_formula("y ~ [x ~ w]", demeaned(table))[0])
    ((lower, upper),) = linear.anderson_rubin_set()
    ((shorter, longer),) = by_hand.anderson_rubin_set()
    # By hand the 299 degrees of freedom are forgotten.
    assert 1.1 < (upper - lower) / (longer - shorter) < 1.25
    assert (linear.design.absorbed, linear.design.prepared["absorbed_levels"]) == (299, 300.0)
    few = panel(40)
    diagnosed = TSLS().fit_formula(FORMULA, few).diagnose(no_instrument=False).linear
    for estimate, rows in ((linear.estimate(), table), (diagnosed, few)):
        theirs = pyfixest_fit("y ~ 1 | firm | x ~ w", rows)
        assert estimate is not None
        assert estimate.coefficient == pytest.approx(theirs.coef()["x"], rel=1e-8)
        assert estimate.std_error == pytest.approx(theirs.se()["x"], rel=1e-8)


@pytest.mark.slow
def test_npiv_holds_the_slope_of_a_panel() -> None:
    usual, robust, widths, errors = 0, 0, [], []
    for seed in range(9):
        table = panel(seed=seed)
        model = NPIV(random_state=0).fit_formula(FORMULA, table)
        lower, upper = model.ate_interval(t0=0.0, t1=1.0, method="usual")
        low, high = model.ate_interval(t0=0.0, t1=1.0, method="robust")
        usual += lower <= -1.0 <= upper
        robust += low <= -1.0 <= high
        ((shorter, longer),) = LinearIV.of(from_formula("y ~ [x ~ w]", demeaned(table))[0]).anderson_rubin_set()
        widths.append((high - low) / (longer - shorter))
        errors.append(model.ate(t0=0.0, t1=1.0) + 1.0)
    assert usual >= 8
    assert robust >= 8
    # By hand, 299 degrees of freedom are forgotten, and that the curve may not be a line.
    assert 1.0 < np.median(widths) < 1.8
    assert abs(np.mean(errors)) < 0.15


@pytest.mark.parametrize("method", [NPIV, ControlFunction])
def test_a_sieve_is_net_of_two_absorbed_covariates(method: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = panel(60, 30)
    table["y"] += 2.0 * rng.normal(size=30)[table["year"].astype(int)] + 0.5 * table["x"] * table["v"]
    model = method(random_state=0).fit_formula("y ~ v + C(firm) + C(year) + [x ~ w]", table, sample_weight="weight")
    rows = table.iloc[[0, 500, 1700]]
    found = model.effect_interval(rows, t0=0.0, t1=1.0)
    errors = found.estimate - (-1.0 + 0.5 * rows["v"].to_numpy())
    assert np.abs(errors / found.std_error).max() < 2.5
    # Slopes by covariate are known better than their level.
    assert np.ptp(errors) < 0.1
    assert "slopes by covariate" in model.fitted_.function.kept
    # What g leaves of the outcome is unrelated to firms and years.
    left = table["y"] - model.predict(table["x"].to_numpy(), table)
    shares = table["weight"] / table["weight"].sum()
    assert float(left @ shares) == pytest.approx(0.0, abs=0.2)
    assert left.groupby(table["firm"]).mean().abs().max() < 0.8
    model.save(tmp_path / "model")
    again = method.load(tmp_path / "model")
    assert np.array_equal(again.predict(1.0, rows), model.predict(1.0, rows))
    for one, other in zip(again.predict_interval(1.0, rows), model.predict_interval(1.0, rows), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("method", [NPIV, ControlFunction])
def test_a_covariate_that_does_not_vary_within_levels_changes_nothing_but_slopes(method: Any) -> None:
    table = panel()
    table["z"] = np.random.default_rng(5).normal(size=300)[table["firm"].astype(int)]
    without = method(random_state=0).fit_formula(FORMULA, table).ate_interval(t0=0.0, t1=1.0, method="usual")
    found = method(random_state=0).fit_formula("y ~ z + C(firm) + [x ~ w]", table)
    interval = found.ate_interval(t0=0.0, t1=1.0, method="usual")
    assert interval.estimate == pytest.approx(without.estimate, abs=0.3 * without.std_error)
    assert 0.8 < interval.std_error / without.std_error < 1.3
    assert np.isfinite(found.predict_interval(1.0, table.iloc[:5]).std_error).all()


def test_intervals_of_the_function_have_the_noise_of_the_level() -> None:
    table = panel(30, 8)
    theirs = pyfixest_fit("y ~ x + v + C(firm)", table, "iid")
    query = table.iloc[::8]
    for model in (TSLS(use_instrument=False), NPIV(min_gain=np.inf, use_instrument=False, random_state=0)):
        model.fit_formula("y ~ v + C(firm) + [x ~ w]", table)
        found = model.predict_interval(query["x"].to_numpy(), query)
        assert found.estimate == pytest.approx(theirs.predict()[::8], abs=1e-6)
        design = theirs._X[::8]
        wanted = np.sqrt(np.einsum("ij,jk,ik->i", design, theirs._vcov, design))
        assert found.std_error == pytest.approx(wanted, rel=0.05)


def test_a_binary_treatment_and_one_year_of_most_firms_fit() -> None:
    table = panel(80, 4).iloc[40:]
    table = pd.concat([table, table.iloc[:1].assign(firm="alone")])
    table["x"] = (table["x"] > table.groupby("firm")["x"].transform("mean")).astype(bool)
    for method in (NPIV(random_state=0), ControlFunction(random_state=0)):
        model = method.fit_formula(FORMULA, table)
        assert np.isfinite(list(model.ate_interval(t0=False, t1=True, method="usual"))).all()


def test_penalised_numeric_covariates_are_said() -> None:
    rng = np.random.default_rng(0)
    w, u, e = rng.normal(size=(3, 120))
    columns = {f"v{i}": rng.normal(size=120) for i in range(40)}
    table = pd.DataFrame({"y": w + 2.0 * u + e, "x": w + u, "w": w} | columns)
    formula = f"y ~ {' + '.join(columns)} + [x ~ w]"
    for method in (NPIV(random_state=0), ControlFunction(random_state=0)):
        with pytest.warns(FitWarning, match="the 40 covariate columns are more than a quarter of the rows"):
            method.fit_formula(formula, table)
    text = TSLS().fit_formula(formula, table).diagnose(no_instrument=False)["effective-f"].reading
    assert "The 40 covariate columns are more than a quarter of the rows" in text
