"""The last regression: with nothing but a line, with what it keeps of networks, and as part of a fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import bgmiv
from bgmiv.baselines.tsls import TSLS
from bgmiv.bgm.config import BGMIVConfig
from bgmiv.bgm.estimator import BGMIV, PRESETS, _model_draws
from bgmiv.bgm.last_stage import fit_sieve_stage, with_networks
from bgmiv.bgm.members import TrainingRows
from bgmiv.bgm.uncertainty import tangent_directions
from bgmiv.data import IVData
from bgmiv.data.query import query_at
from bgmiv.effects import estimate_at
from bgmiv.intervals import STRENGTH, interval_of
from bgmiv.sieve.fit import Learned, SieveConfig

N = 200


def table(seed: int, **roles: Any) -> IVData:
    """x and y linear in everything, with confounding."""
    rng = np.random.default_rng(seed)
    w, u, e = rng.normal(size=(3, N))
    v = rng.normal(size=(N, 2))
    x = w + v[:, 0] + u
    return IVData.from_arrays(2.0 * x + v[:, 1] - u + e, x, instruments=w, covariates=v, **roles)


def learned_from(function: np.ndarray, treatment: np.ndarray, noise: np.ndarray) -> Learned:
    return Learned(function + noise, function, treatment[:, None])


CONFIG = BGMIVConfig(last_stage=SieveConfig())


def fit(data: IVData, learned: Learned) -> Any:
    return with_networks(CONFIG, data, fit_sieve_stage(CONFIG, data), learned)


def test_useless_networks_leave_linear_two_stage_least_squares() -> None:
    data = table(0)
    rng = np.random.default_rng(1)
    learned = Learned(rng.normal(size=N), rng.normal(size=N), data.instruments.astype(np.float64))
    found = fit(data, learned).function
    assert found.is_linear
    assert found.weight == 0.0
    tsls = TSLS().fit(data.outcome, data.treatment, instruments=data.instruments, covariates=data.covariates)
    query = query_at(data.schema, data.treatment, data.covariates)
    encoded = found.encode(data.schema, data.covariates)
    # Curves and slopes by covariate keep a small probability.
    line = tsls.predict(data.treatment, data.covariates)
    assert np.std(found.at(query, encoded)[0] - line) < 0.05 * np.std(line)


def test_networks_that_know_the_curve_are_used_whatever_their_noise() -> None:
    """The weight is that of the members' mean, although every row is only known by one of them, with noise."""
    rng = np.random.default_rng(2)
    w, u, noise = rng.normal(size=(3, 2000))
    v = rng.normal(size=(2000, 4))
    curve = np.sin(3.0 * v[:, 0]) * np.cos(2.0 * v[:, 1] + 2.0 * v[:, 2])
    x = w + u
    data = IVData.from_arrays(x + 4.0 * curve * x + u, x, instruments=w, covariates=v)
    mean = w + 4.0 * curve * w
    found = fit(data, learned_from(mean, w, 0.7 * noise)).function
    assert found.terms == ("constant", "treatment", "covariates")
    assert found.weight == pytest.approx(1.0, abs=0.05)


def test_networks_that_enter_with_the_wrong_sign_are_not_used() -> None:
    """They predict rows well, but what they say of g is the opposite of it."""
    rng = np.random.default_rng(2)
    w, u = rng.normal(size=(2, 2000))
    v = rng.normal(size=(2000, 4))
    curve = np.sin(3.0 * v[:, 0]) * np.cos(2.0 * v[:, 1] + 2.0 * v[:, 2])
    x = w + u
    data = IVData.from_arrays(x + 4.0 * curve * x + u, x, instruments=w, covariates=v)
    found = fit(data, learned_from(-w - 4.0 * curve * w, w, np.zeros(2000))).function
    assert found.weight == 0.0


@pytest.mark.parametrize("networks", [True, "auto"])
def test_a_table_too_small_to_hold_rows_out_has_the_linear_estimate(
    with_last_stage: BGMIVConfig, networks: Any
) -> None:
    data = table(0).take(np.arange(50))
    fitted = replace(with_last_stage, networks=networks).fit(data, 0)
    assert not fitted.uses_networks
    tsls = TSLS().fit(data.outcome, data.treatment, instruments=data.instruments, covariates=data.covariates)
    query = query_at(data.schema, data.treatment, data.covariates)
    line = tsls.predict(data.treatment, data.covariates)
    assert np.std(fitted.at(query)[0] - line) < 0.15 * np.std(line)
    evidence = fitted.evidence
    assert evidence.networks == ("trained" if networks is True else "few rows")
    assert (evidence.n_held_out == 0) == (networks is True)


def test_networks_that_know_too_few_rows_are_not_used() -> None:
    data = table(0)
    own = np.where(np.arange(N) < 0.4 * N, 1.0, np.nan)
    found, without = fit(data, Learned(own, own, own[:, None])), fit_sieve_stage(CONFIG, data)
    assert without is not None
    assert found.function.weight == 0.0
    np.testing.assert_array_equal(found.function.coefficients, without.function.coefficients)


def test_what_no_first_stage_identifies_is_left_to_the_networks() -> None:
    """A treatment of three levels, and an instrument that moves only one of them."""
    rng = np.random.default_rng(0)
    w = rng.integers(0, 2, N).astype(np.float64)
    level = np.where((w > 0) ^ (rng.random(N) < 0.1), 1, 2 * rng.integers(0, 2, N))
    data = IVData.from_arrays(level + rng.normal(size=N), level, instruments=w, treatment_kind="categorical")
    constant = np.full((N, 2), 0.3)
    assert fit(data, Learned(np.zeros(N), np.zeros(N), constant)) is None


@pytest.fixture
def with_last_stage(small: BGMIVConfig, monkeypatch: pytest.MonkeyPatch) -> BGMIVConfig:
    config = replace(small, last_stage=SieveConfig(), networks=True, ensemble=replace(small.ensemble, held_out=1 / 3))
    monkeypatch.setitem(PRESETS, "default", lambda: config)
    return config


@pytest.mark.usefixtures("with_last_stage")
@pytest.mark.filterwarnings("ignore::bgmiv.errors.FitWarning")
def test_a_fit_carries_it_along(proxy_data: IVData, tmp_path: Path) -> None:
    model = BGMIV(networks=True, random_state=0)
    model._fit(proxy_data)
    fitted = model.fitted_
    assert fitted.last_stage is not None
    query = query_at(fitted.schema, proxy_data.treatment[:9], {"proxy": proxy_data.covariates[:9]})
    model.save(tmp_path / "model")
    again = bgmiv.load(tmp_path / "model")
    np.testing.assert_array_equal(again.fitted_.at(query), fitted.at(query))
    used = replace(fitted, last_stage=replace(fitted.last_stage, weight=0.5))
    plain = replace(fitted, last_stage=None)
    assert used.uses_networks
    np.testing.assert_allclose(
        used.at(query), fitted.at(query) + (0.5 - fitted.last_stage.weight) * plain.at(query), rtol=1e-6
    )
    rows = TrainingRows.of(fitted.config, fitted.reduction.apply(proxy_data), jax.random.key(0))
    completed = replace(used, directions=tangent_directions(fitted.config, rows, fitted.members))
    names = [source.name for source in completed.factors(query)]
    assert names[0] == "sampling"
    assert names[-3:] == ["weights", "shrinkage", "network"]
    # What only bands and robust sets know of is no part of the draws of g.
    roots = used.last_stage.roots
    strong = replace(used.last_stage, roots=roots | {STRENGTH: np.full_like(roots["sampling"], 1e3)})
    completed = replace(completed, last_stage=strong)
    spread = _model_draws(completed, query, 2, 1000, 0).std(axis=(0, 1))
    wanted = interval_of(estimate_at(completed, query, intervals=True), 0.95).std_error[0]
    np.testing.assert_allclose(spread, wanted, rtol=0.1)


@pytest.mark.filterwarnings("ignore::bgmiv.errors.FitWarning")
def test_levels_weights_groups_and_no_instrument(with_last_stage: BGMIVConfig) -> None:
    rng = np.random.default_rng(0)
    w, u = rng.normal(size=(2, 100))
    level = np.digitize(w + u, [-0.5, 0.5])
    y = level + u
    weights = np.where(np.arange(100) < 10, 0.0, 1.0)
    data = IVData.from_arrays(
        y, level, instruments=np.column_stack([w, w**2]), covariates=u**2, treatment_kind="categorical",
        sample_weight=weights, clusters=np.arange(100) // 4,
    )  # fmt: skip
    for config in (with_last_stage, with_last_stage.without_instrument()):
        fitted = config.fit(data, 0)
        assert fitted.last_stage is not None
        values = fitted.at(query_at(fitted.schema, [0, 1, 2], u[:3] ** 2))
        assert np.all(np.isfinite(values))
        assert (fitted.evidence.instrument_f is None) == (not config.use_instrument)
