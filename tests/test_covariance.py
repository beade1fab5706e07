"""Linear estimates and their covariance against linearmodels, pyfixest, ivmodels and refits without each cluster."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyfixest
import pytest
from ivmodels import tests as iv_tests
from linearmodels.iv import IV2SLS, IVGMM

from bgmiv import NPIV, TSLS, load
from bgmiv.baselines.tsls import TSLSConfig
from bgmiv.covariance import errors_of, fit_linear, left_out_score
from bgmiv.data.ivdata import Covariance, IVData
from bgmiv.errors import ConfigError, DataError, FitWarning, NotIdentifiedError
from bgmiv.linear_iv import LinearIV

KINDS: tuple[Covariance, ...] = ("classical", "robust", "cluster")


class Design(NamedTuple):
    """One random data set: columns of a table, and which of them do what."""

    table: pd.DataFrame
    covariates: list[str]
    instruments: list[str]
    weights: str | None

    def data(self, covariance: Covariance, groups: list[str] | None) -> IVData:
        t = self.table
        return IVData.from_arrays(
            t["y"].to_numpy(),
            t["x"].to_numpy(),
            instruments=t[self.instruments],
            covariates=t[self.covariates] if self.covariates else None,
            blocks=dict.fromkeys(self.covariates, "continuous"),
            sample_weight=None if self.weights is None else t[self.weights].to_numpy(),
            clusters=None if groups is None else t[groups],
            covariance=covariance,
        )


def random_design(seed: int) -> Design:
    rng = np.random.default_rng(seed)
    n = int(np.exp(rng.uniform(np.log(60), np.log(3000))))
    n_numbers, n_levels, q = int(rng.integers(0, 6)), int(rng.choice([0, 3, 6])), int(rng.integers(1, 5))
    firm, year = rng.integers(0, max(n // 15, 6), size=n), rng.integers(0, int(rng.integers(6, 15)), size=n)
    shock = rng.normal(size=firm.max() + 1)[firm] + rng.normal(size=year.max() + 1)[year]
    u = rng.normal(size=n)
    table = {f"w{j}": rng.normal(size=n) + 0.3 * shock for j in range(q)}
    covariates = {f"v{j}": rng.normal(size=n) * 10.0 ** rng.integers(-3, 4) for j in range(n_numbers)}
    level = rng.integers(0, n_levels + 1, size=n)
    covariates |= {f"d{j}": (level == j).astype(float) for j in range(1, n_levels)}
    pull = sum((column / max(column.std(), 1e-9) for column in covariates.values()), np.zeros(n))
    table["x"] = sum(table.values()) + 0.2 * pull + u + 0.5 * shock
    table["y"] = table["x"] - u + 0.3 * pull + 0.5 * shock + rng.normal(size=n) * (1.0 + np.abs(table["w0"]))
    table |= covariates | {"firm": firm, "year": year, "size": rng.uniform(0.2, 3.0, size=n)}
    weights = "size" if rng.uniform() < 0.4 else None
    return Design(pd.DataFrame(table), list(covariates), [f"w{j}" for j in range(q)], weights)


def linearmodels_fit(design: Design, kind: Covariance, groups: list[str]) -> Any:
    t = design.table
    exogenous = t[design.covariates].assign(const=1.0)
    weights = None if design.weights is None else t[design.weights]
    model = IV2SLS(t["y"], exogenous, t["x"], t[design.instruments], weights=weights)
    if kind == "cluster":
        return model.fit(cov_type="clustered", clusters=t[groups], debiased=True)
    return model.fit(cov_type="unadjusted" if kind == "classical" else kind, debiased=True)


def slope_error(data: IVData) -> tuple[float, float, float]:
    with warnings.catch_warnings():
        # Two-way clusters may have to be mended.
        warnings.simplefilter("ignore", FitWarning)
        fitted = TSLSConfig().fit(data)
    return fitted.slope, float(np.sqrt(fitted.covariance[-1, -1])), fitted.dof


@pytest.mark.parametrize("seed", range(16))
def test_two_stage_least_squares_is_that_of_linearmodels(seed: int) -> None:
    design = random_design(seed)
    for kind in KINDS:
        for groups in (["firm"], ["firm", "year"]) if kind == "cluster" else (["firm"],):
            theirs = linearmodels_fit(design, kind, groups)
            scale = np.sqrt(np.abs(np.diag(theirs.cov)))
            if np.linalg.eigvalsh(theirs.cov / scale / scale[:, None])[0] < 0:
                # Ours is mended.
                continue
            slope, error, dof = slope_error(design.data(kind, groups))
            assert slope == pytest.approx(float(theirs.params["x"]), rel=1e-6)
            assert error == pytest.approx(float(theirs.std_errors["x"]), rel=1e-6), (kind, groups)
            clusters = min(design.table[name].nunique() for name in groups)
            assert dof == (clusters - 1 if kind == "cluster" else theirs.df_resid)


# pyfixest's own, of pandas' next version.
@pytest.mark.filterwarnings("ignore:The inplace keyword")
@pytest.mark.parametrize("seed", range(0, 40, 8))
def test_two_stage_least_squares_is_that_of_pyfixest(seed: int) -> None:
    design = random_design(seed)
    right = " + ".join(design.covariates) or "1"
    formula = f"y ~ {right} | x ~ {design.instruments[0]}"
    one = design._replace(instruments=design.instruments[:1])
    correction = pyfixest.ssc(k_adj=True, G_adj=True, G_df="conventional")
    vcovs: dict[Covariance, Any] = {"classical": "iid", "robust": "HC1", "cluster": {"CRV1": "firm"}}
    for kind, vcov in vcovs.items():
        # Weights of pyfixest's classical errors are rescaled otherwise, so it is asked without them.
        theirs = pyfixest.feols(formula, design.table, vcov=vcov, ssc=correction)
        slope, error, _ = slope_error(one._replace(weights=None).data(kind, ["firm"]))
        assert slope == pytest.approx(float(theirs.coef()["x"]), rel=1e-6)
        assert error == pytest.approx(float(theirs.se()["x"]), rel=1e-6), kind


def first_stage_f(design: Design, kind: Covariance) -> float:
    """linearmodels' F of the excluded instruments."""
    t, right = design.table, design.table[[*design.covariates, *design.instruments]].assign(const=1.0)
    model = IV2SLS(t["x"], right, None, None, weights=None if design.weights is None else t[design.weights])
    options = {"cluster": {"cov_type": "clustered", "clusters": t["firm"]}, "classical": {"cov_type": "unadjusted"}}
    theirs = model.fit(**options.get(kind, {"cov_type": "robust"}), debiased=True)
    b, v = theirs.params[design.instruments], theirs.cov.loc[design.instruments, design.instruments]
    return float(b @ np.linalg.solve(v, b)) / len(design.instruments)


@pytest.mark.parametrize("seed", range(18))
def test_first_stage_is_that_of_linearmodels(seed: int) -> None:
    design, kind = random_design(seed), KINDS[seed % 3]
    linear = LinearIV.of(design.data(kind, ["firm"]))
    assert "groups_ignored" not in linear.design.prepared
    assert linear.stages[0].robust_f == pytest.approx(first_stage_f(design, kind), rel=1e-6)


@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_anderson_rubin_sets_of_equal_variances_are_those_of_ivmodels(seed: int) -> None:
    design = random_design(seed)._replace(weights=None)
    t, found = design.table, LinearIV.of(design.data("classical", None)).anderson_rubin_set()
    others = t[design.covariates].to_numpy()
    for b in np.linspace(-1.0, 3.0, 9):
        _, p = iv_tests.anderson_rubin_test(
            t[design.instruments].to_numpy(),
            t[["x"]].to_numpy(),
            t["y"].to_numpy(),
            np.array([b]),
            C=others if others.shape[1] else None,
            critical_values="f",
        )
        assert (p >= 0.05) == any(lower <= b <= upper for lower, upper in found), (b, p, found)


@pytest.mark.parametrize("kind", KINDS)
def test_hansens_j_is_that_of_linearmodels(kind: Covariance) -> None:
    design = next(d for d in map(random_design, range(40)) if len(d.instruments) > 2 and len(d.table) > 500)
    t, weights = design.table, None if design.weights is None else design.table[design.weights]
    options = {"classical": {"weight_type": "unadjusted"}, "robust": {"weight_type": "robust"}}
    given = options.get(kind, {"weight_type": "clustered", "clusters": t["firm"]})
    model = IVGMM(
        t["y"], t[design.covariates].assign(const=1.0), t["x"], t[design.instruments], weights=weights, **given
    )
    theirs = float(model.fit().j_stat.stat)
    if kind == "cluster":
        n, g = len(t), t["firm"].nunique()
        theirs *= (g - 1) / g * n / (n - 1)
    (found,) = LinearIV.of(design.data(kind, ["firm"])).overidentification
    assert found["j"] == pytest.approx(theirs, rel=1e-6)


def refits(data: IVData, codes: np.ndarray) -> np.ndarray:
    """Coefficients of constant, covariates and treatment without each cluster."""
    found = []
    for g in np.unique(codes):
        fitted = TSLSConfig().fit(replace(data.take(codes != g), covariance="robust"))
        found.append([fitted.intercept, *fitted.coefficients, fitted.slope])
    return np.asarray(found)


@pytest.mark.parametrize("seed", [1, 3, 5, 8, 13])
def test_the_jackknife_refits_without_each_cluster(seed: int) -> None:
    design = random_design(seed)
    data = design.data("auto", ["year"])
    fitted = TSLSConfig().fit(data)
    assert data.groups is not None
    count = int(data.groups.max()) + 1
    changes = refits(data, data.groups) - [fitted.intercept, *fitted.coefficients, fitted.slope]
    wanted = (count - 1) / count * changes.T @ changes
    scale = np.sqrt(np.diag(wanted))
    np.testing.assert_allclose(fitted.covariance / scale / scale[:, None], wanted / scale / scale[:, None], atol=1e-8)
    assert fitted.dof == count - 1


def test_the_jackknife_of_a_ridge_refits_without_a_cluster() -> None:
    rng = np.random.default_rng(0)
    columns, y, ridge = rng.normal(size=(50, 4)), rng.normal(size=50), np.diag([0.0, 1.0, 3.0, 3.0])
    inverse = np.linalg.inv(columns.T @ columns + ridge)
    beta, own = inverse @ columns.T @ y, slice(0, 8)
    score = columns[own].T @ (y[own] - columns[own] @ beta)
    rest = slice(8, None)
    refit = np.linalg.solve(columns[rest].T @ columns[rest] + ridge, columns[rest].T @ y[rest])
    found = inverse @ left_out_score(columns[own].T @ columns[own], score, inverse)
    np.testing.assert_allclose(beta - found, refit, rtol=1e-10)


def test_a_clusters_own_indicator_is_left_as_it_is() -> None:
    """Without the cluster nothing is known of it; the effect of the treatment is that of the other clusters."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(8), 40)
    w, u, e = rng.normal(size=(3, 320))
    x = w + u
    y = x - u + e + groups
    dummies = (groups[:, None] == np.arange(1, 8)).astype(float)
    data = IVData.from_arrays(
        y,
        x,
        instruments=w,
        covariates=dummies,
        blocks=dict.fromkeys([f"covariate_{j}" for j in range(7)], "continuous"),
        clusters=groups,
    )
    within = [column - np.bincount(groups, column)[groups] / 40 for column in (y, x, w)]
    fitted = TSLSConfig().fit(data)
    slopes = [
        within[2][groups != g] @ within[0][groups != g] / (within[2][groups != g] @ within[1][groups != g])
        for g in range(8)
    ]
    wanted = 7 / 8 * np.sum((np.asarray(slopes) - fitted.slope) ** 2)
    assert fitted.covariance[-1, -1] == pytest.approx(wanted, rel=1e-8)


def test_an_effect_that_rests_on_one_cluster_is_refused() -> None:
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(6), 30)
    w = np.where(groups == 2, rng.integers(0, 2, size=180), 0.0)
    x = w + rng.normal(size=180)
    with pytest.raises(NotIdentifiedError, match="without one of the clusters"):
        TSLSConfig().fit(IVData.from_arrays(x + rng.normal(size=180), x, instruments=w, clusters=groups))


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("covariance", [None, *KINDS])
def test_units_of_a_covariate_do_not_matter(scale: float, covariance: Covariance | None) -> None:
    rng = np.random.default_rng(0)
    w, v, u, e = rng.normal(size=(4, 500))
    x = w + v + u
    groups = np.arange(500) // 20 if covariance in (None, "cluster") else None
    kind: Covariance = covariance or "auto"
    errors = []
    for unit in (1.0, scale):
        model = TSLS(covariance=kind).fit(x + v - u + e, x, instruments=w, covariates={"v": unit * v}, clusters=groups)
        found = model.ate_interval(t0=0.0, t1=1.0, method="usual")
        level = model.predict_interval([0.5], {"v": [unit]})
        errors.append([found.estimate, found.std_error, level.lower[0], level.upper[0]])
    np.testing.assert_allclose(errors[1], errors[0], rtol=1e-7)


def clustered_sample(seed: int, n_clusters: int = 8, size: int = 60) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_clusters), size)
    of_w, of_x, of_y = rng.normal(size=(3, n_clusters))[:, groups]
    w, v, u, e = rng.normal(size=(4, n_clusters * size))
    w = w + of_w
    x = w + v + 0.5 * of_x + u
    return {"y": x + 0.5 * v + 0.5 * of_y + e - 0.5 * u, "x": x, "w": w, "v": v, "groups": groups}


def covers(model: Any, columns: dict[str, np.ndarray]) -> bool:
    roles = {"instruments": columns["w"], "covariates": {"v": columns["v"]}, "clusters": columns["groups"]}
    model.fit(columns["y"], columns["x"], **roles)
    lower, upper = model.ate_interval(t0=0.0, t1=1.0, method="usual")
    return bool(lower <= 1.0 <= upper)


@pytest.mark.filterwarnings("ignore::bgmiv.errors.FitWarning")
def test_intervals_of_eight_clusters_hold_the_truth() -> None:
    held = sum(covers(TSLS(), clustered_sample(seed)) for seed in range(100))
    assert held >= 92


@pytest.mark.filterwarnings("ignore::bgmiv.errors.FitWarning")
def test_a_sieve_that_is_a_line_has_the_errors_of_two_stage_least_squares() -> None:
    """With the jackknife too, up to how the first stage's part is moved without a cluster."""
    columns = clustered_sample(0, n_clusters=12)
    roles = {"instruments": columns["w"], "covariates": {"v": columns["v"]}}
    for kind, groups in (("classical", None), ("robust", None), ("cluster", "groups"), ("auto", "groups")):
        given = roles | {"clusters": None if groups is None else columns[groups]}
        both = [
            model.fit(columns["y"], columns["x"], **given).ate_interval(t0=0.0, t1=1.0, method="usual")
            for model in (TSLS(covariance=kind), NPIV(min_gain=np.inf, covariance=kind, random_state=0))
        ]
        errors = [found.std_errors["sampling"] for found in both]
        assert errors[1] == pytest.approx(errors[0], rel=0.05 if kind == "auto" else 0.01), kind


def test_few_clusters_are_told_and_two_refused() -> None:
    columns = clustered_sample(0)
    roles = {"instruments": columns["w"], "covariates": {"v": columns["v"]}}
    with pytest.warns(FitWarning, match=r"clusters 'state': 8 clusters are few"):
        TSLS().fit(columns["y"], columns["x"], clusters=pd.Series(columns["groups"], name="state"), **roles)
    for model in (TSLS(), NPIV(random_state=0)):
        with (
            pytest.warns(FitWarning, match="2 clusters are few"),
            pytest.raises(DataError, match="clusters: 2 clusters"),
        ):
            model.fit(columns["y"], columns["x"], clusters=columns["groups"] // 4, **roles)
    with pytest.raises(DataError, match="covariance='cluster' needs clusters"):
        TSLS(covariance="cluster").fit(columns["y"], columns["x"], **roles)
    with pytest.raises(ConfigError, match="covariance must be one of auto, classical, robust, cluster"):
        TSLS(covariance="hc3").fit(columns["y"], columns["x"], **roles)  # type: ignore[arg-type]


class TestTwoWays:
    TABLE = random_design(2).table

    def fit(self, groups: Any, **more: Any) -> TSLS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            model = TSLS(covariance="cluster", **more)
            return model.fit_table(self.TABLE, outcome="y", treatment="x", instruments="w0", clusters=groups)

    def test_by_arrays_tables_and_formulas(self) -> None:
        t, wanted = self.TABLE, self.fit(["firm", "year"])
        fits = [self.fit(["year", "firm"])]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            for groups in ([t["firm"], t["year"]], t[["firm", "year"]], [t["firm"].to_list(), t["year"].to_list()]):
                fits.append(TSLS(covariance="cluster").fit(t["y"], t["x"], instruments=t["w0"], clusters=groups))
            formula = TSLS(covariance="cluster").fit_formula("y ~ 1 + [x ~ w0]", t, clusters=["firm", "year"])
        for model in (*fits, formula):
            np.testing.assert_allclose(model.fitted_.covariance, wanted.fitted_.covariance, rtol=1e-10)
            assert model.data_ is not None
            assert model.data_.second_groups is not None
            assert model.data_.groups is not None
            assert model.data_.groups.max() <= model.data_.second_groups.max()
        assert wanted.sampling_ == {"groups": "year", "second_groups": "firm"}

    def test_rows_keep_both(self) -> None:
        data = self.fit(["firm", "year"]).data_
        assert data is not None
        assert data.second_groups is not None
        np.testing.assert_array_equal(data.take([3, 1]).second_groups, data.second_groups[[3, 1]])

    def test_a_saved_model_takes_rows_with_both_again(self, tmp_path: Any) -> None:
        model = self.fit(["firm", "year"])
        model.save(tmp_path / "fit")
        again = load(tmp_path / "fit")
        again.attach_data(self.TABLE)
        assert again.data_.second_groups_name == "firm"
        assert again.data_.covariance == "cluster"
        assert again.fitted_.dof == model.fitted_.dof
        assert again.fitted_.result is None

    def test_a_matrix_that_is_not_positive_is_mended_and_said(self) -> None:
        # Four rows, one in each pair of clusters, and scores that cancel in each row and column but one.
        rng = np.random.default_rng(0)
        for seed in range(200):
            rng = np.random.default_rng(seed)
            a, b = np.divmod(np.arange(9), 3)
            x, y = rng.normal(size=(9, 3)), rng.normal(size=9)
            data = IVData.from_arrays(y, x[:, 0], instruments=x[:, 1])
            errors = errors_of(replace(data, covariance="cluster", groups=a, second_groups=b))
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                found = fit_linear(y, np.ones((9, 1)), x, errors=errors)
            assert np.linalg.eigvalsh(found.covariance)[0] >= -1e-12 * np.abs(found.covariance).max()
            if told:
                break
        assert "not positive" in str(told[0].message)

    @pytest.mark.parametrize(
        ("groups", "words"),
        [
            (["firm", "year", "w0"], "one column, or two to cluster two ways"),
            (["firm", "firm"], "clusters name the column 'firm' twice"),
            ([1, 2], "clusters must be names of columns of the table, got 1 among them"),
        ],
    )
    def test_other_columns_are_refused(self, groups: list[Any], words: str) -> None:
        with pytest.raises(DataError, match=words):
            self.fit(groups)
