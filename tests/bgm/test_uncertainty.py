"""The quasi-posterior in the tangent of the weights, where it is a regression whose covariance is known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from bgmiv.bgm import uncertainty as tangent
from bgmiv.bgm.config import BGMIVConfig, JointTraining, LatentLayout, LatentMap, ModelConfig
from bgmiv.bgm.members import Member
from bgmiv.bgm.model import BGMIVModel, build_model, encode_rows
from bgmiv.bgm.uncertainty import Directions, tangent_directions, tangent_factors
from bgmiv.data import IVData
from bgmiv.data.scaling import RoleScaling, ScaledData
from bgmiv.integrate import ObservedTreatment

N = 300


@pytest.fixture(scope="module")
def rows() -> ScaledData:
    rng = np.random.default_rng(0)
    w, v, u = rng.normal(size=(3, N))
    x = w + v + u
    # Noise that grows with the treatment: a homoskedastic covariance would be wrong.
    data = IVData.from_arrays(2.0 * x + v + rng.normal(size=N) * np.abs(x), x, instruments=w, covariates={"v": v})
    return RoleScaling().fit(data).transform(data)


@pytest.fixture(scope="module")
def linear() -> BGMIVModel:
    """An outcome generator without hidden layers: the tangent is the model itself."""
    data = IVData.from_arrays(
        [0.0, 1.0, 2.0, 5.0], [1.0, 0.0, 2.0, 7.0], instruments=[3, 1, 2, 5], covariates={"v": [1.0, 2.0, 4.0, 3.0]}
    )
    config = ModelConfig(LatentLayout(1, 1, 1, 1), outcome_hidden=())
    return build_model(data.schema, 1, config, key=jax.random.key(0))


def with_least_squares(model: BGMIVModel, rows: ScaledData) -> tuple[BGMIVModel, np.ndarray, np.ndarray]:
    """The model with its outcome mean fitted by least squares on (z0, z1, x, 1), those columns, and residuals."""
    import equinox as eqx

    z = np.asarray(encode_rows(model, rows.v))
    columns = np.column_stack([z[:, :2], rows.x, np.ones(N)])
    beta = np.linalg.lstsq(columns, rows.y, rcond=None)[0]
    first = model.outcome.outputs[0]
    fitted = eqx.tree_at(lambda d: (d.kernel, d.bias), first, (np.float32(beta[:3, None]), np.float32(beta[3:])))
    model = eqx.tree_at(lambda m: m.outcome.outputs, model, (fitted, *model.outcome.outputs[1:]))
    return model, columns, rows.y - columns @ beta


def at_rows(model: BGMIVModel, directions: np.ndarray, rows: ScaledData, z: np.ndarray) -> np.ndarray:
    return tangent_factors(model, directions, z, rows.x[:50], np.arange(50), 64).T / np.sqrt(len(directions))


def directions_of(model: BGMIVModel, rows: ScaledData, groups: np.ndarray | None = None) -> Directions:
    """Of one member that has left out no rows."""
    config = BGMIVConfig(initial=JointTraining(integration=ObservedTreatment()), latents=LatentMap(steps=0))
    none = np.zeros(0, np.int64)
    fitted_on: Any = SimpleNamespace(
        scaled=rows,
        data=SimpleNamespace(full_weights=np.ones(len(rows.x))),
        at=lambda positions: ScaledData(*(part[positions] for part in rows)),
    )
    return tangent_directions(config, fitted_on, [Member(model, (), none)], groups=groups)


def factors(model: BGMIVModel, rows: ScaledData, groups: np.ndarray | None = None) -> np.ndarray:
    z = np.asarray(encode_rows(model, rows.v))
    return at_rows(model, directions_of(model, rows, groups).noise[0], rows, z)


def sandwich(columns: np.ndarray, scores: np.ndarray) -> np.ndarray:
    bread = np.linalg.inv(columns.T @ columns)
    return np.sqrt(np.einsum("ij,jk,ik->i", columns[:50], bread @ scores.T @ scores @ bread, columns[:50]))


def test_of_a_linear_mean_it_is_the_robust_covariance(
    linear: BGMIVModel, rows: ScaledData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tangent, "PRIOR_PRECISION", 1e-7)
    monkeypatch.setattr(tangent, "N_DIRECTIONS", 2000)
    model, columns, residuals = with_least_squares(linear, rows)
    leverage = np.einsum("ij,jk,ik->i", columns, np.linalg.inv(columns.T @ columns), columns)
    found = np.sqrt(np.sum(factors(model, rows) ** 2, axis=0))
    np.testing.assert_allclose(found, sandwich(columns, columns * (residuals / (1 - leverage))[:, None]), rtol=0.12)
    groups = np.arange(N) // 10
    clustered = columns * (residuals / (1 - leverage))[:, None]
    summed = np.stack([clustered[groups == g].sum(axis=0) for g in range(N // 10)])
    found = np.sqrt(np.sum(factors(model, rows, groups=groups) ** 2, axis=0))
    np.testing.assert_allclose(found, sandwich(columns, summed), rtol=0.15)


def test_what_the_prior_takes_is_the_bias_of_a_ridge_regression(
    linear: BGMIVModel, rows: ScaledData, monkeypatch: pytest.MonkeyPatch
) -> None:
    precision = 0.2
    monkeypatch.setattr(tangent, "PRIOR_PRECISION", precision)
    monkeypatch.setattr(tangent, "N_DIRECTIONS", 2000)
    model, columns, residuals = with_least_squares(linear, rows)
    z = np.asarray(encode_rows(model, rows.v))
    directions = directions_of(model, rows)
    inverse = np.linalg.inv(columns.T @ columns / N + precision * np.eye(4))
    leverage = np.einsum("ij,jk,ik->i", columns, inverse, columns) / N
    variance = np.mean((residuals / (1 - leverage)) ** 2) / (N * precision)
    wanted = precision * np.sqrt(variance * np.einsum("ij,jk,ik->i", columns[:50], inverse @ inverse, columns[:50]))
    found = np.sqrt(np.sum(at_rows(model, directions.bias[0], rows, z) ** 2, axis=0))
    np.testing.assert_allclose(found, wanted, rtol=0.1)


def test_more_rows_of_the_same_kind_narrow_it(linear: BGMIVModel, rows: ScaledData) -> None:
    model, *_ = with_least_squares(linear, rows)
    many = ScaledData(*(np.concatenate([part] * 9) for part in rows))
    z = np.asarray(encode_rows(model, rows.v))
    one = factors(model, rows)
    directions = directions_of(model, many)
    other = at_rows(model, directions.noise[0], rows, z)
    # A third, but for 64 draws of each and for the thousand rows that the second is made of.
    assert 2.2 < np.sqrt(np.sum(one**2) / np.sum(other**2)) < 4.2


def test_left_out_residuals_set_the_prior(linear: BGMIVModel, rows: ScaledData) -> None:
    model, *_ = with_least_squares(linear, rows)
    z = np.asarray(encode_rows(model, rows.v))
    both = np.asarray(tangent._at_rows(model, ObservedTreatment(), rows.x, rows.y, rows.w, z))
    jacobian, residuals = both[..., :-1], both[..., -1]
    member = tangent._spectrum(jacobian, residuals, np.ones(N))
    for leverage in (0.006, 0.011):
        precision = tangent._precision([member], leverage)
        assert np.mean(member.leverages(precision)) == pytest.approx(leverage, rel=1e-3)
    # Residuals a tenth larger where left out: leverage 1 - 1 / 1.1.
    owners = [np.arange(N) < 150, np.arange(N) >= 150]
    pair = [np.where(owner[:, None], 1.1, 1.0) * residuals for owner in owners]
    assert tangent._mean_leverage(pair, owners) == pytest.approx(1 - 1 / 1.1, rel=1e-6)
    assert tangent._mean_leverage(pair, [np.zeros(N, bool)] * 2) is None
