"""The linear regressions and the strength of instruments against linearmodels, ivmodels and published numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from linearmodels.iv import IV2SLS
from scipy.stats import f as f_distribution
from scipy.stats import t as student

from bgmiv import design_matrix
from bgmiv.data import within
from bgmiv.data.formula import from_formula
from bgmiv.data.ivdata import Covariance, IVData
from bgmiv.designs import load_empirical
from bgmiv.errors import DataError
from bgmiv.linear_iv import FirstStage, LinearIV, critical_effective_f


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


def test_rows_of_weight_zero_tell_nothing() -> None:
    data = simulate()
    weights = np.where(np.arange(300) % 3 == 0, 0.0, 2.0)
    found, wanted = (LinearIV.of(one) for one in (replace(data, weights=weights), data.take(weights > 0)))
    assert found.estimate().coefficient == pytest.approx(wanted.estimate().coefficient)
    assert found.stages[0].effective_f == pytest.approx(wanted.stages[0].effective_f)


@pytest.mark.parametrize(("scale", "clustered"), [(1e4, False), (1e-2, True)])
def test_two_stage_least_squares_is_that_of_linearmodels(scale: float, clustered: bool) -> None:
    data = simulate(scale=scale, q=2)
    errors = {"cov_type": "robust", "debiased": True}
    if clustered:
        weights, groups = np.random.default_rng(3).uniform(0.5, 2.0, size=300), np.arange(300) // 5
        data = replace(data, weights=weights, groups=groups)
        errors |= {"cov_type": "clustered", "clusters": groups}
    linear = LinearIV.of(data)
    found = linear.estimate(0.95)
    exogenous = np.column_stack([np.ones(data.n_rows), data.covariates])
    # Beside a constant, a treatment of 5 ± 0.0001 would cost linearmodels more digits than are compared.
    centred = data.treatment - data.treatment.mean()
    theirs = IV2SLS(data.outcome, exogenous, centred, data.instruments, weights=data.weights).fit(**errors)
    assert found.coefficient == pytest.approx(float(theirs.params.iloc[-1]), rel=1e-6)
    assert found.std_error == pytest.approx(float(theirs.std_errors.iloc[-1]), rel=1e-5)
    # With clusters linearmodels keeps the degrees of freedom of the rows.
    half = float(student.ppf(0.975, 59 if clustered else 296)) * found.std_error
    assert (found.lower, found.upper) == pytest.approx((found.coefficient - half, found.coefficient + half), rel=1e-9)
    assert linear.design.dof == (59 if clustered else 295)
    assert linear.overidentification[0]["dof"] == 1.0


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("kind", "theirs"), [("classical", "unadjusted"), ("robust", "robust"), ("cluster", "clustered")]
)
def test_endogeneity_tests_are_those_of_linearmodels(kind: Covariance, theirs: str, weighted: bool) -> None:
    rng = np.random.default_rng(3)
    weights, groups = rng.uniform(0.5, 2.0, size=300) if weighted else None, rng.integers(0, 60, size=300)
    data = replace(simulate(q=3), weights=weights, groups=groups, covariance=kind)
    exogenous = np.column_stack([np.ones(300), data.covariates])
    model = IV2SLS(data.outcome, exogenous, data.treatment, data.instruments, weights=weights)
    options = {"clusters": groups} if kind == "cluster" else {}
    fit = model.fit(cov_type=theirs, debiased=True, **options)
    (found,) = LinearIV.of(data).endogeneity
    tests = {"wu_hausman": fit.wu_hausman(), "durbin": fit.durbin(), "robust": fit.wooldridge_regression}
    for name, test in tests.items():
        assert (found[name], found[f"{name}_p"]) == pytest.approx((float(test.stat), float(test.pval)), rel=1e-8)


def test_few_groups_are_ignored() -> None:
    few = LinearIV.of(replace(simulate(q=2), groups=np.arange(300) // 150)).design
    assert few.errors.ways == ()
    assert few.prepared == {"groups_ignored": 2.0}


def test_tests_without_noise_are_numbers() -> None:
    w, u = np.random.default_rng(0).normal(size=(2, 100))
    # The instrument and the confounder are all there is.
    (found,) = LinearIV.of(IVData.from_arrays(2.0 * w, w + u, instruments=w)).endogeneity
    assert not np.isnan(list(found.values())).any()


def test_wide_vector_blocks_are_replaced_by_the_scores_of_the_fits() -> None:
    rng = np.random.default_rng(0)
    w, u = rng.normal(size=(2, 200))
    factor = rng.normal(size=(200, 3))
    x = w + factor[:, 0] + u
    wide = factor @ rng.normal(size=(3, 110)) + 0.1 * rng.normal(size=(200, 110))
    data = IVData.from_arrays(2.0 * x + 3.0 * factor[:, 0] - u, x, instruments=w, covariates={"scan": wide})
    parts = LinearIV.of(data)
    assert parts.design.prepared == {"covariate_columns": 110.0, "components": 3.0}
    assert parts.estimate().coefficient == pytest.approx(2.0, abs=0.25)
    assert parts.stages[0].f > 50


@pytest.mark.parametrize(
    "sampled", [{}, {"sample_weight": np.arange(300) % 4 + 0.5}, {"clusters": np.arange(300) // 3}]
)
def test_covariates_of_very_many_rows_are_partialled_out(sampled: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    data = simulate(q=2)
    roles = {"instruments": data.instruments, "covariates": data.covariates}
    data = IVData.from_arrays(data.outcome, data.treatment, **roles, **sampled)
    whole = LinearIV.of(data)
    monkeypatch.setattr(design_matrix, "_MAX_FULL", 299)
    monkeypatch.setattr(within, "_PIECE", 70)
    part = LinearIV(design_matrix.design_matrix(data))
    assert part.design.exogenous.shape[1] == 1
    for name in ("coefficient", "ols"):
        assert getattr(part.estimate(), name) == pytest.approx(getattr(whole.estimate(), name), rel=1e-8)
    for name in ("std_error", "ols_std_error"):
        own, wanted = (getattr(each.estimate(), name) for each in (part, whole))
        assert own == pytest.approx(wanted, rel=1e-8)
    # Two degrees of freedom of 297.
    assert part.stages[0] == pytest.approx(whole.stages[0], rel=0.01)
    assert part.overidentification[0] == pytest.approx(whole.overidentification[0], rel=0.03)
    assert part.endogeneity[0] == pytest.approx(whole.endogeneity[0], rel=0.03)


def test_redundant_columns_are_left_out() -> None:
    data = simulate()
    covariates = np.column_stack([data.covariates, data.covariates[:, 0] - data.covariates[:, 1]])
    instruments = np.column_stack([data.instruments, -2.0 * data.instruments])
    more = IVData.from_arrays(data.outcome, data.treatment, instruments=instruments, covariates=covariates)
    columns = LinearIV.of(more).design
    assert columns.instruments.shape[1] == 1
    assert columns.prepared == {"redundant_covariates": 1.0}
    assert columns.labels["dropped_instruments"].startswith("'instrument")
    assert LinearIV.of(more).stages[0].f == pytest.approx(LinearIV.of(data).stages[0].f, rel=1e-8)


def test_covariates_that_determine_instruments_or_treatment() -> None:
    data = simulate()
    v, determined = data.covariates, data.covariates @ [1.0, 2.0]
    parts = LinearIV.of(IVData.from_arrays(data.outcome, data.treatment, instruments=determined, covariates=v))
    assert parts.stages[0].effective_f == 0.0
    assert parts.estimate() is None
    with pytest.raises(DataError, match="covariates determine the treatment"):
        LinearIV.of(replace(data, treatment=determined))


def test_published_numbers() -> None:
    mroz = LinearIV.of(published("mroz"))
    # Wooldridge, Introductory Econometrics, Examples 15.5, 15.7 and 15.8.
    (over,), (endogenous,) = mroz.overidentification, mroz.endogeneity
    assert (over["sargan"], over["sargan_p"]) == pytest.approx((0.378, 0.539), abs=1e-3)
    assert endogenous["wu_hausman_p"] == pytest.approx(0.095, abs=1e-3)
    assert mroz.stages[0].f == pytest.approx(55.4, abs=0.05)
    card = LinearIV.of(published("card"))
    assert card.stages[0].f == pytest.approx(13.26, abs=0.01)
    assert card.estimate().coefficient == pytest.approx(0.1315, abs=5e-5)
    assert card.overidentification == ()
    weak = LinearIV.of(published("bwght"))
    assert weak.stages[0].effective_f < 1.0
    assert weak.estimate().robust_set == ((-np.inf, np.inf),)


def stage(data: IVData) -> FirstStage:
    return LinearIV.of(data).stages[0]


@pytest.mark.parametrize("q", [1, 3])
def test_first_stage_is_that_of_linearmodels(q: int) -> None:
    data = simulate(q=q)
    exogenous = np.column_stack([np.ones(data.n_rows), data.covariates])
    found = stage(data)
    model = IV2SLS(data.outcome, exogenous, data.treatment, data.instruments)
    for robust, value in ((False, found.f), (True, found.robust_f)):
        kind = "robust" if robust else "unadjusted"
        theirs = model.fit(cov_type=kind, debiased=True).first_stage.diagnostics
        # Theirs is an F with debiased errors and a chi-square of q degrees of freedom otherwise.
        stat = float(theirs["f.stat"].iloc[0])
        assert value == pytest.approx(stat if "F" in str(theirs["f.dist"].iloc[0]) else stat / q, rel=1e-6)
    assert found.partial_r2 == pytest.approx(float(theirs["partial.rsquared"].iloc[0]), rel=1e-6)


def test_effective_f_of_one_instrument_is_its_robust_f() -> None:
    found = stage(simulate())
    assert found.effective_f == pytest.approx(found.robust_f, rel=1e-9)
    assert found.critical == pytest.approx(23.1085, abs=1e-3)
    # So does a dominant direction of several.
    assert critical_effective_f(np.diag([1.0, 1e-9])) == pytest.approx(23.1085, abs=1e-3)
    assert critical_effective_f(np.eye(30)) < critical_effective_f(np.eye(3))


def test_effective_f_does_not_depend_on_how_instruments_are_written() -> None:
    data = simulate(q=3)
    turned = replace(data, instruments=data.instruments @ np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0], [1.0, 0.0, 3.0]]))
    one, two = stage(data), stage(turned)
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
    found = stage(data)
    assert found.effective_f == pytest.approx(float(x @ left @ left.T @ x / np.trace(noise)), rel=1e-8)
    assert found.critical == pytest.approx(critical_effective_f(noise), rel=1e-6)


@pytest.mark.parametrize(("strength", "q"), [(0.0, 1), (0.0, 3), (0.05, 3), (0.5, 1)])
def test_anderson_rubin_set_is_that_of_ivmodels(strength: float, q: int) -> None:
    tests = pytest.importorskip("ivmodels.tests")
    data = simulate(strength, q=q, n=150)
    found = LinearIV.of(replace(data, covariance="classical")).anderson_rubin_set(0.9)
    theirs = data.instruments, data.treatment[:, None], data.outcome
    options = {"C": data.covariates, "critical_values": "f"}
    quadric = tests.inverse_anderson_rubin_test(*theirs, alpha=0.1, **options)
    boundary = np.zeros(0) if quadric.is_empty() else np.sort(quadric._boundary().ravel())
    ends = sorted(end for interval in found for end in interval if np.isfinite(end))
    assert ends == pytest.approx(boundary[np.isfinite(boundary)].tolist(), rel=1e-5)
    for b in (-50.0, 0.0, 1.0, 2.0, 3.0, 50.0):
        _, p = tests.anderson_rubin_test(*theirs, np.array([b]), **options)
        assert (p >= 0.1) == any(lower <= b <= upper for lower, upper in found)


@pytest.mark.parametrize(("strength", "q"), [(0.0, 1), (0.02, 3), (0.1, 2), (0.5, 3)])
def test_likelihood_ratio_set_is_that_of_ivmodels(strength: float, q: int) -> None:
    tests = pytest.importorskip("ivmodels.tests")
    data = simulate(strength, q=q, n=150)
    found = LinearIV.of(data).likelihood_ratio_set(0.9)
    theirs = data.instruments, data.treatment[:, None], data.outcome
    held = []
    for b in (-50.0, -2.0, 0.0, 1.0, 1.5, 1.8, 2.0, 2.2, 2.5, 3.0, 5.0, 50.0):
        _, p = tests.conditional_likelihood_ratio_test(*theirs, np.array([b]), C=data.covariates)
        held.append(any(lower <= b <= upper for lower, upper in found))
        assert (p >= 0.1) == held[-1], (b, p, found)
    assert any(held)


@pytest.mark.parametrize("covariance", ["robust", "cluster", "auto"])
def test_robust_anderson_rubin_set_inverts_the_robust_test(covariance: Covariance) -> None:
    data = simulate(0.1, q=2, n=200)
    if covariance != "robust":
        data = replace(data, groups=np.arange(200) // 4, covariance=covariance)
    linear = LinearIV.of(data)
    found, critical = linear.anderson_rubin_set(), float(f_distribution.ppf(0.95, 2, linear.design.dof))
    for b in np.linspace(-20, 20, 41):
        # The instruments' F in a regression of y - x b on them.
        rest = replace(data, treatment=data.outcome - b * data.treatment, outcome=data.treatment)
        kept = LinearIV.of(rest).stages[0].robust_f <= critical
        assert kept == any(lower <= b <= upper for lower, upper in found), (b, found)


def test_anderson_rubin_set_may_be_empty() -> None:
    rng = np.random.default_rng(1)
    w, u = rng.normal(size=(400, 2)), rng.normal(size=400)
    x = w.sum(axis=1) + u
    data = IVData.from_arrays(x + 2.0 * w[:, 0] - u, x, instruments=w)
    assert LinearIV.of(data).anderson_rubin_set() == ()


def test_without_noise_the_set_is_the_estimate() -> None:
    w, u = np.random.default_rng(0).normal(size=(2, 100))
    found = LinearIV.of(IVData.from_arrays(3.0 * (w + u), w + u, instruments=w)).anderson_rubin_set()
    assert found[0] == pytest.approx((3.0, 3.0), abs=1e-5)
