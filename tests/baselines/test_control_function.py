"""The control function: its regressions against direct solves, its curve where moments fail, its standard errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

import bgmiv
from bgmiv.baselines.control_function import ASSUMPTION, ControlFunctionConfig
from bgmiv.baselines.npiv import NPIVConfig
from bgmiv.baselines.tsls import TSLSConfig
from bgmiv.data.ivdata import IVData
from bgmiv.data.query import query_along
from bgmiv.effects import average, predict
from bgmiv.errors import DataError
from bgmiv.sieve.control import generalised_residual
from bgmiv.sieve.sampling import Sampling
from report.small_designs import BinaryConfoundedDesign, CategoricalTreatmentDesign

SEED = 0


def ill_posed(seed: int, n: int = 1000, *, scale: float = 0.0, product: float = 0.0) -> tuple[IVData, np.ndarray]:
    """A sine that the first stage smooths away, and points of the central 90% of the treatment."""
    rng = np.random.default_rng(seed)
    w, (h, u, e) = rng.uniform(0.0, 3.0, n), rng.normal(size=(3, n))
    x = w + (1.0 + scale * w) * (h + u)
    y = curve(x) - 3.0 * h + product * x * h + e
    return IVData.from_arrays(y, x, instruments=w), np.linspace(*np.quantile(x, [0.05, 0.95]), 200)


def curve(x: np.ndarray) -> np.ndarray:
    return 3.0 * np.sin(2.0 * x) + 2.0 * x


def error(fitted: Any, points: np.ndarray) -> float:
    return float(np.mean((predict(fitted, points) - curve(points)) ** 2))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_curve_that_moments_cannot_see(seed: int) -> None:
    data, points = ill_posed(seed)
    own = error(ControlFunctionConfig().fit(data, SEED), points)
    assert own < 0.4
    assert own < error(NPIVConfig().fit(data, SEED), points) / 5.0
    assert own < error(ControlFunctionConfig(use_instrument=False).fit(data, SEED), points) / 3.0


def test_errors_that_are_not_separable_are_averaged_over() -> None:
    # E[Y | do(x)] is the same curve: h has mean zero.
    data, points = ill_posed(3, 4000, product=1.0)
    assert error(ControlFunctionConfig().fit(data, SEED), points) < 0.4


def test_a_residual_of_varying_size_is_standardised() -> None:
    data, points = ill_posed(0, 4000, scale=0.6)
    assert error(ControlFunctionConfig().fit(data, SEED), points) < 0.2


def linear(n: int, seed: int = 0, **more: Any) -> IVData:
    rng = np.random.default_rng(seed)
    w, v, u, e = rng.normal(size=(4, n))
    x = w + v + u
    return IVData.from_arrays(2.0 * x + v - u + e, x, instruments=w, covariates=v, **more)


def test_a_linear_world_is_that_of_two_stage_least_squares() -> None:
    data = linear(2000)
    fitted, reference = ControlFunctionConfig().fit(data, SEED), TSLSConfig().fit(data)
    query = query_along(data.schema, [0.0, 1.0], data)
    own = average(fitted, query, intervals=True).estimate
    other = average(reference, query, intervals=True).estimate
    slope, expected = (float(each.values[1] - each.values[0]) for each in (own, other))
    assert slope == pytest.approx(expected, abs=0.02)
    # The naive covariance, which takes residuals as known, would be smaller by the share of u in the error.
    one, two = (np.linalg.norm(each.sources[0].factors[:, 1] - each.sources[0].factors[:, 0]) for each in (own, other))
    assert one == pytest.approx(two, rel=0.1)
    assert ASSUMPTION in fitted.interval_kind
    assert ASSUMPTION not in ControlFunctionConfig(use_instrument=False).fit(data, SEED).interval_kind


def test_groups_widen_intervals_and_stay_in_one_fold() -> None:
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(60), 10)
    w, e = np.repeat(rng.normal(size=(2, 60)), 10, axis=1)
    x = w + rng.normal(size=600)
    errors = []
    for given in (None, groups):
        model = bgmiv.ControlFunction(random_state=0).fit(x + e, x, instruments=w, clusters=given)
        errors.append(model.ate_interval(t0=0.0, t1=1.0).std_error)
        assert ("clustered" in model.fitted_.interval_kind) == (given is not None)
    assert errors[1] > 1.5 * errors[0]
    data = IVData.from_arrays(x + e, x, instruments=w, clusters=groups)
    sampling, rows, _ = Sampling.draw(data, rng)
    held = [set(rows.groups[fold].tolist()) for fold in sampling.folds]
    assert sum(map(len, held)) == len(set.union(*held)) == 60


def test_weights_of_one_are_none_and_rows_of_weight_zero_are_left_out() -> None:
    plain, ones = linear(300), linear(300, sample_weight=np.full(300, 3.0))
    at = np.linspace(-1.0, 1.0, 5)
    expected = predict(ControlFunctionConfig().fit(plain, SEED), at, at)
    np.testing.assert_allclose(predict(ControlFunctionConfig().fit(ones, SEED), at, at), expected, rtol=1e-9)
    half = linear(300, sample_weight=(np.arange(300) < 200).astype(float))
    got = predict(ControlFunctionConfig().fit(half, SEED), at, at)
    first = ControlFunctionConfig().fit(plain.take(slice(200)), SEED)
    np.testing.assert_allclose(got, predict(first, at, at), rtol=1e-9)


def test_a_binary_treatment() -> None:
    design = BinaryConfoundedDesign()
    data, grid = design.sample(3000, 0.9, 0), design.grid()
    inside = grid.in_support & (np.abs(grid.covariates["covariate"]) < 2.0)
    errors = []
    for use_instrument in (True, False):
        fitted = ControlFunctionConfig(use_instrument=use_instrument).fit(data, SEED)
        squares = (predict(fitted, grid.treatment, grid.covariates) - grid.truth) ** 2
        errors.append(squares[inside].mean())
    assert errors[0] < errors[1] / 2.5


def test_three_levels() -> None:
    design = CategoricalTreatmentDesign()
    data, grid = design.sample(3000, 0.9, 0), design.grid()
    errors = []
    for use_instrument in (True, False):
        fitted = ControlFunctionConfig(use_instrument=use_instrument).fit(data, SEED)
        squares = (predict(fitted, grid.treatment, grid.covariates) - grid.truth) ** 2
        errors.append(squares[grid.in_support].mean())
    assert errors[0] < errors[1] / 2.0


def test_wide_blocks_are_reduced() -> None:
    rng = np.random.default_rng(0)
    w, season, u, e = rng.normal(size=(4, 800))
    proxy = season[:, None] + 0.5 * rng.normal(size=(800, 60))
    x = w + season + u
    data = IVData.from_arrays(x - 2.0 * season + u + e, x, instruments=w, covariates={"proxy": proxy})
    fitted = ControlFunctionConfig().fit(data, SEED)
    assert list(fitted.reduction.projections) == ["proxy"]
    change = np.diff(predict(fitted, [0.0, 1.0], {"proxy": proxy[:2]}) - predict(fitted, 0.0, {"proxy": proxy[:2]}))
    assert change == pytest.approx(1.0, abs=0.15)


def test_generalised_residuals_of_a_probit_model() -> None:
    u = np.random.default_rng(0).normal(size=400_000)
    index = 0.4
    residual = generalised_residual(np.array([0.0, 1.0]), np.full(2, ndtr(index)))
    np.testing.assert_allclose(residual, [u[index + u <= 0].mean(), u[index + u > 0].mean()], atol=0.005)


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(DataError, match="at least 20 rows, got 10"):
        ControlFunctionConfig().fit(linear(10), SEED)
