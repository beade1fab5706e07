"""Scaling: the paper's rule, exact inverses, and what is left alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bgmiv.data import Affine, FixedAffine, Identity, IVData, RoleScaling, Standardise
from bgmiv.errors import BGMIVWarning, ConfigError

rng = np.random.default_rng(4)
N = 200
MATRICES = hnp.arrays(
    np.float64, st.tuples(st.integers(2, 30), st.integers(1, 4)), elements=st.floats(-1e3, 1e3, allow_subnormal=False)
)
RULES = [Standardise(), FixedAffine(17.779, 3.7), Identity()]


@given(MATRICES, st.sampled_from(RULES))
def test_round_trip(values, rule):
    affine = rule.fit(values)
    scaled = affine.transform(values)
    assert scaled.dtype == np.float32
    # Single precision keeps 24 bits of the scaled value.
    tolerance = 2.0**-23 * (np.abs(values - affine.shift) + np.abs(values) * 1e-8) + 1e-30
    assert (np.abs(affine.inverse(scaled) - values) <= tolerance).all()


@given(MATRICES)
def test_standardise_gives_zero_mean_and_unit_deviation(values):
    affine = Standardise().fit(values)
    scaled = affine.transform(values).astype(np.float64)
    np.testing.assert_allclose(scaled.mean(axis=0), 0.0, atol=1e-4)
    deviation = values.std(axis=0)
    clear = deviation > 1e-5
    np.testing.assert_allclose(scaled.std(axis=0)[clear], 1.0, atol=1e-4)
    assert (affine.scale[deviation < 1e-7] == 1.0).all()


@pytest.mark.parametrize("value", [0.0, 0.1, 1e20, -3e38])
def test_constant_columns_become_exact_zeros(value):
    values = np.full((1001, 1), value)
    affine = Standardise().fit(values)
    assert (affine.transform(values) == 0).all()
    assert affine.scale == 1.0


def test_large_offset_keeps_its_digits():
    values = 1e9 + rng.normal(size=(N, 1))
    scaled = Standardise().fit(values).transform(values)
    np.testing.assert_allclose(scaled, (values - values.mean()) / values.std(), atol=1e-5)


def test_pieces_agree_with_the_whole():
    values = rng.normal(3.0, 2.0, size=(300_001, 7)).astype(np.float32)
    affine = Standardise().fit(values)
    np.testing.assert_allclose(affine.shift, values.mean(axis=0, dtype=np.float64), rtol=1e-12)
    np.testing.assert_allclose(affine.scale, values.std(axis=0, dtype=np.float64), rtol=1e-12)
    whole = ((values - affine.shift) / affine.scale).astype(np.float32)
    np.testing.assert_array_equal(affine.transform(values), whole)


def test_shapes():
    affine = Affine(np.array([1.0]), np.array([2.0]))
    for shape in [(), (5,), (5, 1), (0,), (0, 1)]:
        assert affine.transform(np.ones(shape)).shape == shape
        assert affine.inverse(np.ones(shape)).shape == shape
    empty = Standardise().fit(np.zeros((5, 0)))
    assert empty.transform(np.zeros((5, 0))).shape == (5, 0)


def mixed(**changes):
    arguments = {
        "outcome": rng.normal(5.0, 3.0, N),
        "treatment": rng.normal(-2.0, 0.5, N),
        "instruments": rng.normal(1.0, 4.0, (N, 2)),
        "covariates": {
            "age": rng.normal(40.0, 10.0, N),
            "black": np.arange(N) % 4 == 0,
            "region": np.arange(N) % 3,
            "proxy": rng.normal(100.0, 7.0, (N, 5)),
        },
        "blocks": {"region": "categorical"},
    }
    return IVData.from_arrays(**arguments | changes)


def test_roles_are_scaled_and_zeros_and_ones_are_not():
    data = mixed()
    scaled = RoleScaling().fit(data).transform(data)
    assert {array.dtype for array in scaled} == {np.dtype(np.float32)}
    for array in (scaled.x, scaled.y, scaled.w, scaled.v[:, [0]], scaled.v[:, 5:]):
        np.testing.assert_allclose(array.mean(axis=0), 0.0, atol=1e-5)
        np.testing.assert_allclose(array.std(axis=0), 1.0, atol=1e-5)
    np.testing.assert_array_equal(scaled.v[:, 1:5], data.covariates[:, 1:5])
    assert (scaled.x.shape, scaled.y.shape, scaled.v.shape, scaled.w.shape) == ((N,), (N,), (N, 10), (N, 2))


@pytest.mark.parametrize("rule", [Standardise(), FixedAffine(3.0, 2.0)])
def test_pixels_are_left_alone_without_a_word(rule):
    images = rng.random((N, 2, 2))
    # A pixel that hardly varies is no column in unhappy units.
    images[:, 0, 0] = 0.5 + 1e-9 * rng.random(N)
    data = mixed(covariates={"age": rng.normal(40.0, 10.0, N), "photo": images}, blocks=None)
    scaled = RoleScaling(covariates=rule).fit(data).transform(data)
    np.testing.assert_array_equal(scaled.v[:, 1:], images.reshape(N, 4).astype(np.float32))
    assert not np.array_equal(scaled.v[:, 0], data.covariates[:, 0].astype(np.float32))


@pytest.mark.parametrize("rule", [Standardise(), FixedAffine(3.0, 2.0)])
def test_binary_outcome_and_treatment_are_left_alone(rule):
    data = mixed(outcome=rng.random(N) < 0.5, treatment=rng.random(N) < 0.5)
    scaled = RoleScaling(outcome=rule, treatment=rule).fit(data).transform(data)
    np.testing.assert_array_equal(scaled.x, data.treatment)
    np.testing.assert_array_equal(scaled.y, data.outcome)


def test_the_demand_designs_fixed_scaling():
    data = mixed()
    rules = RoleScaling(
        outcome=FixedAffine(-292.1, 158.0),
        treatment=FixedAffine(17.779, 3.7),
        covariates=Identity(),
        instruments=Identity(),
    )
    scaled = rules.fit(data).transform(data)
    np.testing.assert_allclose(scaled.y, (data.outcome + 292.1) / 158.0, rtol=1e-5)
    np.testing.assert_allclose(scaled.x, (data.treatment - 17.779) / 3.7, rtol=1e-5)
    np.testing.assert_array_equal(scaled.v, data.covariates.astype(np.float32))


def test_new_rows_use_the_training_rows_scaling():
    data = mixed()
    scaler = RoleScaling().fit(data.take(slice(0, 50)))
    np.testing.assert_allclose(scaler.treatment.shift, data.treatment[:50].mean())
    np.testing.assert_allclose(
        scaler.transform(data).x, (data.treatment - scaler.treatment.shift) / scaler.treatment.scale, rtol=1e-5
    )


def test_without_instruments_or_covariates():
    data = mixed(covariates=None, blocks=None).without_instruments()
    scaled = RoleScaling().fit(data).transform(data)
    assert (scaled.v.shape, scaled.w.shape) == ((N, 0), (N, 0))


def test_tiny_units_warn_by_name():
    data = mixed(treatment=rng.normal(size=N) * 1e-9)
    with pytest.warns(BGMIVWarning, match=r"'treatment'.*below 1e-06.*units") as caught:
        RoleScaling().fit(data)
    assert caught[0].filename == __file__


def test_settings():
    assert RoleScaling() == RoleScaling()
    assert hash(RoleScaling()) == hash(RoleScaling())
    for wrong, words in (
        (lambda: FixedAffine(0.0, 0.0), "a positive scale, got 0.0, 0.0"),
        (lambda: FixedAffine(np.nan, 1.0), "a finite shift and a positive scale, got nan, 1.0"),
        (lambda: Standardise(0.0), "min_std must be positive and finite, got 0.0"),
    ):
        with pytest.raises(ConfigError, match=words):
            wrong()
