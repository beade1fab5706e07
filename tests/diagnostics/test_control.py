"""The regression of held-out errors on the treatment given a control variable: its size, what it sees, its limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bgmiv import NPIV, TSLS
from bgmiv.data.ivdata import IVData
from bgmiv.diagnostics.control import ErrorOfCurve, errors_given_control

N = 300


def draw(seed: int, *, curve: float = 0.0, strength: float = 0.7, n: int = N) -> tuple[IVData, np.ndarray, np.ndarray]:
    """y = x + curve (x² - 1) + 0.5 v + e with corr(u, e) = 0.7; also the error e, and the treatment."""
    w, v, u, own = np.random.default_rng(seed).normal(size=(4, n))
    x, e = strength * w + 0.3 * v + u, 0.7 * u + 0.7 * own
    y = x + curve * (x**2 - 1.0) + 0.5 * v + e
    return IVData.from_arrays(y, x, instruments=w, covariates={"v": v}), e, x


def error_of(data: IVData, errors: np.ndarray) -> ErrorOfCurve:
    found = errors_given_control(data, np.arange(data.n_rows), [errors])
    assert found is not None
    return found[0]


def test_the_true_function_is_rejected_as_often_as_the_test_says() -> None:
    """Its estimated error has mean zero, the noise of the first stage included: of 100 samples."""
    found = [error_of(*draw(seed)[:2]) for seed in range(100)]
    assert sum(one.p_value < 0.05 for one in found) <= 10
    sizes = np.array([one.size for one in found])
    assert abs(sizes.mean()) < 3.0 * sizes.std() / 10.0
    assert [one.p_value < 0.01 for one in found] == [one.size > one.visible for one in found]


def test_the_size_of_a_known_error_is_unbiased() -> None:
    sizes, truths = [], []
    for seed in range(40):
        data, e, x = draw(seed, n=600)
        wrong = 0.3 * (x**2 - 1.0) - 0.2 * x
        low, high = np.quantile(x, [0.01, 0.99])
        sizes.append(error_of(data, e + wrong).size)
        truths.append(np.mean(wrong[(low <= x) & (x <= high)] ** 2))
    differences = np.array(sizes) - truths
    assert abs(differences.mean()) < 3.0 * differences.std() / np.sqrt(40)
    assert np.mean(truths) > 0.1


def test_a_dependence_on_the_control_variable_is_no_error() -> None:
    data, e, x = draw(3, n=1000)
    u = x - 0.7 * np.asarray(data.instruments[:, 0]) - 0.3 * np.asarray(data.covariates[:, 0])
    v = np.asarray(data.covariates[:, 0])
    assert error_of(data, e + 2.0 * (u**2 - 1.0) + u * v).p_value > 0.05
    assert error_of(data, e + 0.3 * x).p_value < 0.01


def test_a_binary_treatment_has_the_residual_of_a_probit_model_as_its_control() -> None:
    """The raw residual would leave confounding that looks like an error of the curve."""
    rejected = []
    for seed in range(20):
        w, v, u, own = np.random.default_rng(seed).normal(size=(4, 1000))
        x = (w + 1.5 * v + u > 0.0).astype(float)
        e = 2.0 * (0.9 * u + 0.43 * own)
        data = IVData.from_arrays(e, x, instruments=w, covariates={"v": v}, treatment_kind="binary")
        rejected.append(error_of(data, e).p_value < 0.01)
        assert error_of(data, e + x * (1.0 + 1.5 * np.sin(v))).p_value < 0.001
    assert sum(rejected) <= 1


def test_weights_and_clusters_count() -> None:
    """The unit of weights does not matter, and twins in a cluster say no more than one of them."""
    data, e, x = draw(0, curve=0.4)
    errors = e + 0.4 * (x**2 - 1.0)
    alone = error_of(data, errors)
    doubled = error_of(replace(data, weights=np.full(N, 2.0)), errors)
    assert tuple(doubled) == pytest.approx(tuple(alone), rel=1e-6)
    twice = np.repeat(np.arange(N), 2)
    twins = data.take(twice)
    clustered = error_of(replace(twins, groups=twice), errors[twice])
    assert clustered.noise == pytest.approx(alone.noise, rel=0.1)
    assert error_of(twins, errors[twice]).noise == pytest.approx(0.5 * alone.noise, rel=0.1)


def test_absorbed_levels_are_taken_out() -> None:
    rng = np.random.default_rng(0)
    firm = np.repeat(np.arange(60), 10)
    effect = rng.normal(size=60)[firm]
    w, u, own = rng.normal(size=(3, 600))
    x = w + effect + u
    e = 0.7 * u + 0.7 * own
    covariates = {"firm": firm.astype(str)}
    data = IVData.from_arrays(
        x + 3.0 * effect + e, x, instruments=w, covariates=covariates, blocks={"firm": "categorical"}
    )
    assert error_of(data, e + 3.0 * effect).p_value > 0.05
    assert error_of(data, e + 3.0 * effect + 0.3 * x).p_value < 0.01


def test_it_is_not_made_where_it_could_not_tell() -> None:
    data, e, _ = draw(0, n=60)
    assert errors_given_control(data, np.arange(60), [e]) is None
    data, e, _ = draw(0)
    many = {f"v{i}": column for i, column in enumerate(np.random.default_rng(1).normal(size=(100, N)))}
    wide = IVData.from_arrays(data.outcome, data.treatment, instruments=data.instruments, covariates=many)
    assert errors_given_control(wide, np.arange(N), [e]) is None
    assert errors_given_control(replace(data, groups=np.arange(N) % 2), np.arange(N), [e]) is None


@pytest.mark.filterwarnings("ignore::bgmiv.errors.WeakInstrumentWarning")
def test_the_verdict_sees_a_curve_that_the_moments_do_not_show() -> None:
    data, _, x = draw(1, curve=0.4, strength=0.45, n=500)
    arguments = {"instruments": data.instruments, "covariates": data.covariates}
    line = TSLS().fit(data.outcome, x, **arguments).verdict_
    assert (line.evidence.visible_shapes, line.severity) == (1, "doubtful")
    assert [finding.key for finding in line.findings] == ["control_error"]
    assert "if confounding works through this variable alone" in line.sentence
    curve = NPIV().fit(data.outcome, x, **arguments).verdict_
    assert (curve.severity, curve.not_measured) == ("good", ())


def test_with_weak_instruments_the_verdict_says_that_it_was_not_made() -> None:
    data, _, x = draw(0, strength=0.1, n=500)
    with pytest.warns(match="weak"):
        model = TSLS().fit(data.outcome, x, instruments=data.instruments, covariates=data.covariates)
    assert "the error of the curve given a control variable" in model.verdict_.not_measured


def test_a_skewed_residual_is_no_control_variable() -> None:
    w, v, u, own = np.random.default_rng(0).normal(size=(4, 500))
    x, e = np.exp(0.5 * (w + 0.3 * v + u)), 0.7 * u + 0.7 * own
    data = IVData.from_arrays(x + e, x, instruments=w, covariates={"v": v})
    assert errors_given_control(data, np.arange(500), [e]) is None
    verdict = NPIV(random_state=0).fit(x + e, x, instruments=w, covariates=v).verdict_
    assert verdict.evidence.control_p is None
    assert any("control variable" in words for words in verdict.not_measured)


def test_rows_without_weight_are_as_good_as_absent() -> None:
    data, e, x = draw(0, n=600)
    used = np.arange(600) % 3 > 0
    own = np.arange(400)
    weighted = replace(data, weights=used.astype(float))
    wrong, first = e + 0.1 * x, used[own]
    found = errors_given_control(weighted, own, [wrong[own]])
    wanted = errors_given_control(data.take(np.flatnonzero(used)), np.arange(first.sum()), [wrong[own][first]])
    assert found is not None
    assert wanted is not None
    assert [*found[0]] == pytest.approx([*wanted[0]], rel=1e-6)
