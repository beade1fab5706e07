"""The linear diagnostics against linearmodels, ivmodels, closed forms and published numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from linearmodels.iv import IV2SLS
from scipy.stats import f as f_distribution

from bgmiv.data.formulas import from_formula
from bgmiv.data.ivdata import IVData
from bgmiv.designs import load_empirical
from bgmiv.errors import DataError
from bgmiv.trust.diagnose import linear_parts
from bgmiv.trust.first_stage import critical_effective_f, first_stages
from bgmiv.trust.linear import (
    anderson_rubin_set,
    endogeneity,
    linear_estimate,
    overidentification,
    set_text,
)
from bgmiv.trust.linear_columns import linear_columns, regression


def simulate(strength: float = 0.5, *, n: int = 300, q: int = 1, seed: int = 0, scale: float = 1.0) -> IVData:
    rng = np.random.default_rng(seed)
    u, e = rng.normal(size=(2, n))
    v, w = rng.normal(size=(n, 2)), rng.normal(size=(n, q))
    x = strength * w.sum(axis=1) + v[:, 0] + u * (1.0 + 0.5 * np.abs(w[:, 0]))
    y = 2.0 * x + v[:, 1] - u + 0.5 * e
    return IVData.from_arrays(scale * y, 5.0 + x / scale, instruments=100.0 * w, covariates=v)


def published(name: str) -> IVData:
    data = load_empirical(name)
    return from_formula(data.formula, data.table)[0]


@pytest.mark.parametrize("q", [1, 3])
def test_first_stage_is_that_of_linearmodels(q: int) -> None:
    data = simulate(q=q)
    exogenous = np.column_stack([np.ones(data.n_rows), data.covariates])
    (found,) = first_stages(data)
    model = IV2SLS(data.outcome, exogenous, data.treatment, data.instruments)
    for robust, value in ((False, found.f), (True, found.robust_f)):
        kind = "robust" if robust else "unadjusted"
        theirs = model.fit(cov_type=kind, debiased=True).first_stage.diagnostics
        # Theirs is an F with debiased errors and a chi-square of q degrees of freedom otherwise.
        stat = float(theirs["f.stat"].iloc[0])
        assert value == pytest.approx(stat if "F" in str(theirs["f.dist"].iloc[0]) else stat / q, rel=1e-6)
    assert found.partial_r2 == pytest.approx(float(theirs["partial.rsquared"].iloc[0]), rel=1e-6)


def test_effective_f_of_one_instrument_is_its_robust_f() -> None:
    (found,) = first_stages(simulate())
    assert found.effective_f == pytest.approx(found.robust_f, rel=1e-9)
    assert found.critical == pytest.approx(23.1085, abs=1e-3)


def test_effective_f_does_not_depend_on_how_instruments_are_written() -> None:
    data = simulate(q=3)
    turned = replace(data, instruments=data.instruments @ np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0], [1.0, 0.0, 3.0]]))
    (one,), (two,) = first_stages(data), first_stages(turned)
    assert one.effective_f == pytest.approx(two.effective_f, rel=1e-8)
    assert one.critical == pytest.approx(two.critical, rel=1e-8)


def test_effective_f_by_its_definition() -> None:
    data = simulate(q=2, n=80)
    exogenous = np.column_stack([np.ones(80), data.covariates])

    def net(a: np.ndarray) -> np.ndarray:
        return a - exogenous @ np.linalg.lstsq(exogenous, a, rcond=None)[0]

    x, w = net(data.treatment), net(data.instruments)
    left, _, _ = np.linalg.svd(w, full_matrices=False)
    residuals = x - left @ (left.T @ x)
    noise = left.T @ (left * (residuals**2)[:, None]) * 80 / (80 - 5)
    (found,) = first_stages(data)
    assert found.effective_f == pytest.approx(float(x @ left @ left.T @ x / np.trace(noise)), rel=1e-8)
    assert found.critical == pytest.approx(critical_effective_f(noise), rel=1e-6)


def test_one_dominant_direction_counts_as_one_instrument() -> None:
    assert critical_effective_f(np.diag([1.0, 1e-9])) == pytest.approx(23.1085, abs=1e-3)
    assert critical_effective_f(np.eye(30)) < critical_effective_f(np.eye(3))


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_two_stage_least_squares_in_units_of_the_data(scale: float) -> None:
    data = simulate(scale=scale)
    found = linear_estimate(linear_columns(data))
    exogenous = np.column_stack([np.ones(data.n_rows), data.covariates])
    theirs = IV2SLS(data.outcome, exogenous, data.treatment, data.instruments).fit(cov_type="robust")
    assert found.coefficient == pytest.approx(float(theirs.params.iloc[-1]), rel=1e-6)
    assert found.std_error == pytest.approx(float(theirs.std_errors.iloc[-1]), rel=1e-5)
    interval = theirs.conf_int().iloc[-1]
    assert (found.lower, found.upper) == pytest.approx((interval["lower"], interval["upper"]), rel=1e-5)


@pytest.mark.parametrize("q", [1, 3])
@pytest.mark.parametrize("strength", [0.0, 0.02, 0.05, 0.5])
def test_anderson_rubin_set_is_that_of_ivmodels(strength: float, q: int) -> None:
    tests = pytest.importorskip("ivmodels.tests")
    for seed in range(4):
        data = simulate(strength, q=q, seed=seed, n=150)
        found = anderson_rubin_set(linear_columns(data), 0.9, robust=False)
        quadric = tests.inverse_anderson_rubin_test(
            data.instruments, data.treatment[:, None], data.outcome, alpha=0.1, C=data.covariates, critical_values="f"
        )
        theirs = (
            [] if quadric.is_empty() else sorted(map(tuple, quadric._boundary().reshape(-1).reshape(-1, 1).tolist()))
        )
        ends = sorted(end for interval in found for end in interval if np.isfinite(end))
        assert ends == pytest.approx([end[0] for end in theirs if np.isfinite(end[0])], rel=1e-5)
        for b in (-50.0, 0.0, 1.0, 2.0, 3.0, 50.0):
            _, p = tests.anderson_rubin_test(
                data.instruments, data.treatment[:, None], data.outcome, np.array([b]), C=data.covariates,
                critical_values="f",
            )  # fmt: skip
            assert (p >= 0.1) == any(lower <= b <= upper for lower, upper in found)


@pytest.mark.parametrize("clustered", [False, True])
def test_robust_anderson_rubin_set_inverts_the_robust_test(clustered: bool) -> None:
    columns = linear_columns(simulate(0.1, q=2, n=200))
    if clustered:
        columns = replace(columns, groups=np.arange(200) // 4)
    found = anderson_rubin_set(columns)
    unit = columns.outcome_scale / columns.treatment_scale[0]
    critical = 2 * f_distribution.ppf(0.95, 2, columns.freedom)
    for b in np.linspace(-20, 20, 41):
        m, v = regression(columns.outcome - columns.treatment[:, 0] * b / unit, columns)
        kept = m @ np.linalg.solve(v, m) <= critical
        assert kept == any(lower <= b <= upper for lower, upper in found), (b, found)


def test_anderson_rubin_set_may_be_empty() -> None:
    rng = np.random.default_rng(1)
    w, u = rng.normal(size=(400, 2)), rng.normal(size=400)
    x = w.sum(axis=1) + u
    data = IVData.from_arrays(x + 2.0 * w[:, 0] - u, x, instruments=w)
    found = linear_estimate(linear_columns(data)).robust_set
    assert found == ()
    assert set_text(found) == "empty"


def test_without_noise_the_set_is_the_estimate() -> None:
    w, u = np.random.default_rng(0).normal(size=(2, 100))
    found = linear_estimate(linear_columns(IVData.from_arrays(3.0 * (w + u), w + u, instruments=w)))
    assert found.robust_set[0] == pytest.approx((3.0, 3.0), abs=1e-5)


def test_tests_without_noise_are_numbers() -> None:
    w, u = np.random.default_rng(0).normal(size=(2, 100))
    # The instrument and the confounder are all there is.
    found = endogeneity(linear_columns(IVData.from_arrays(2.0 * w, w + u, instruments=w)))
    assert found is not None
    assert not np.isnan(list(vars(found).values())).any()


def test_mroz_is_as_in_the_textbook() -> None:
    columns = linear_columns(published("mroz"))
    over, endogenous = overidentification(columns), endogeneity(columns)
    assert over is not None
    assert endogenous is not None
    # Wooldridge, Introductory Econometrics, Examples 15.5, 15.7 and 15.8.
    assert (over.sargan, over.sargan_p) == pytest.approx((0.378, 0.539), abs=1e-3)
    assert endogenous.wu_hausman_p == pytest.approx(0.095, abs=1e-3)
    assert linear_parts(published("mroz")).stages[0].f == pytest.approx(55.4, abs=0.05)


def test_card_has_a_first_stage_f_of_about_13() -> None:
    parts = linear_parts(published("card"))
    assert parts.stages[0].f == pytest.approx(13.26, abs=0.01)
    assert parts.estimate is not None
    assert parts.estimate.coefficient == pytest.approx(0.1315, abs=5e-5)
    assert parts.overidentification == ()


def test_birth_weight_has_an_unbounded_set() -> None:
    parts = linear_parts(published("bwght"))
    assert parts.stages[0].effective_f < 1.0
    assert parts.estimate is not None
    assert parts.estimate.robust_set == ((-np.inf, np.inf),)


def test_wide_covariates_stand_aside_for_components() -> None:
    rng = np.random.default_rng(0)
    w, u = rng.normal(size=(2, 400))
    factor = rng.normal(size=(400, 3))
    x = w + factor[:, 0] + u
    wide = factor @ rng.normal(size=(3, 600)) + 0.1 * rng.normal(size=(400, 600))
    data = IVData.from_arrays(2.0 * x + 3.0 * factor[:, 0] - u, x, instruments=w, covariates={"scan": wide})
    parts = linear_parts(data)
    assert "600 columns of covariates stand aside for their 40 leading principal components" in parts.note
    assert parts.estimate is not None
    assert parts.estimate.coefficient == pytest.approx(2.0, abs=0.15)
    assert parts.stages[0].f > 100


def test_redundant_columns_are_left_out() -> None:
    data = simulate()
    twice = np.column_stack([data.covariates, data.covariates[:, 0] - data.covariates[:, 1]])
    more = IVData.from_arrays(
        data.outcome, data.treatment, instruments=np.column_stack([data.instruments, -2.0 * data.instruments]),
        covariates=twice,
    )  # fmt: skip
    columns = linear_columns(more)
    assert columns.instruments.shape[1] == 1
    assert "redundant" in columns.note
    assert "determine" in columns.note
    assert first_stages(more)[0].f == pytest.approx(first_stages(data)[0].f, rel=1e-8)


def test_instruments_that_covariates_determine_have_no_strength() -> None:
    data = simulate()
    same = IVData.from_arrays(
        data.outcome, data.treatment, instruments=data.covariates @ [1.0, 2.0], covariates=data.covariates
    )
    parts = linear_parts(same)
    assert parts.stages[0].effective_f == 0.0
    assert parts.estimate is None


def test_a_treatment_that_covariates_determine_is_refused() -> None:
    data = simulate()
    same = IVData.from_arrays(
        data.outcome, data.covariates @ [1.0, 2.0], instruments=data.instruments, covariates=data.covariates
    )
    with pytest.raises(DataError, match="covariates determine the treatment"):
        linear_parts(same)


def test_a_treatment_of_levels_has_a_first_stage_each() -> None:
    data = simulate(q=2)
    levels = np.array(["low", "middle", "high"])[np.digitize(data.treatment, [4.0, 6.0])]
    several = IVData.from_arrays(data.outcome, levels, instruments=data.instruments, covariates=data.covariates)
    parts = linear_parts(several)
    assert len(parts.stages) == len(parts.names) == 2
    assert parts.estimate is None
    assert len(parts.endogeneity) == 1


def test_weights_and_groups_reach_linearmodels() -> None:
    data = simulate(q=2, n=200)
    rng = np.random.default_rng(3)
    weights, groups = rng.uniform(0.5, 2.0, size=200), np.arange(200) // 5
    object.__setattr__(data, "weights", weights)
    object.__setattr__(data, "groups", groups)
    columns = linear_columns(data)
    found = linear_estimate(columns)
    exogenous = np.column_stack([np.ones(200), data.covariates])
    model = IV2SLS(data.outcome, exogenous, data.treatment, data.instruments, weights=weights)
    theirs = model.fit(cov_type="clustered", clusters=groups)
    assert found.coefficient == pytest.approx(float(theirs.params.iloc[-1]), rel=1e-6)
    assert found.std_error == pytest.approx(float(theirs.std_errors.iloc[-1]), rel=1e-6)
    assert columns.freedom == 39
    assert overidentification(columns) is not None
