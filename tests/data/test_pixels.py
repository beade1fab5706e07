"""Images: pixels from 0 to 255 or from 0 to 1, in the unit of the fit, and nothing else."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from bgmiv.data import BlockSpec, IVData, RoleScaling
from bgmiv.errors import BGMIVWarning, DataError

rng = np.random.default_rng(5)
N = 20
Y, X, W, AGE = rng.normal(size=(4, N))
GREY = rng.integers(0, 256, size=(N, 4, 3), dtype=np.uint8)
GREY[0, 0, 0] = 255


def build(images, age=AGE):
    return IVData.from_arrays(Y, X, instruments=W, covariates={"age": age, "photo": images})


UNITS = {
    "bytes": GREY,
    "wide integers": GREY.astype(np.int64),
    "floats to 255": GREY.astype(np.float64),
    "single floats to 255": GREY.astype(np.float32),
    "floats to 1": GREY / 255,
}


@pytest.mark.parametrize("images", UNITS.values(), ids=UNITS)
def test_units_give_the_same_numbers(images):
    data = build(images)
    np.testing.assert_array_equal(data.covariates[:, 1:], GREY.reshape(N, -1) / 255)
    np.testing.assert_array_equal(data.covariates[:, 0], AGE)


@pytest.mark.parametrize("age", [AGE, AGE.astype(np.float32)], ids=["double", "single"])
def test_single_precision_gives_the_same_scaled_numbers(age):
    wanted = (GREY.reshape(N, -1) / 255).astype(np.float32)
    for images in (*UNITS.values(), (GREY / 255).astype(np.float32)):
        data = build(images, age)
        scaled = RoleScaling().fit(data).transform(data)
        np.testing.assert_array_equal(scaled.v[:, 1:], wanted)


def test_the_users_array_is_not_changed():
    images = GREY.astype(np.float64)
    flat = images.reshape(N, -1)
    build(images)
    IVData.from_arrays(Y, X, instruments=W, covariates=flat, blocks={"photo": flat_spec("covariate_{}")})
    np.testing.assert_array_equal(images, GREY)


def flat_spec(name):
    return BlockSpec("image", columns=[name.format(i) for i in range(12)], shape=(4, 3))


def test_flat_columns_of_any_table_follow_the_same_rule():
    flat = GREY.reshape(N, -1)
    frame = pd.DataFrame(flat, columns=[f"p{i}" for i in range(12)])
    for table, name in ((flat, "covariate_{}"), (flat.astype(np.float64), "covariate_{}"), (frame, "p{}")):
        spec = flat_spec(name)
        data = IVData.from_arrays(Y, X, instruments=W, covariates=table, blocks={"photo": spec})
        np.testing.assert_array_equal(data.covariates, flat / 255)
        assert data.schema.blocks[0].shape == (4, 3, 1)


@pytest.mark.parametrize(("fit", "unit"), [(GREY, 1.0), (GREY / 255, 255.0)], ids=["to 255", "to 1"])
def test_the_unit_is_that_of_the_fit_whatever_is_beside_an_image(fit, unit):
    schema = build(fit).schema
    dark, bright = np.full((2, 4, 3), [[[1.0]], [[255.0]]]) / unit
    alone = schema.check_covariates({"age": [0.1], "photo": dark[None]})
    both = schema.check_covariates({"age": [0.1, 0.1], "photo": np.stack([dark, bright])})
    np.testing.assert_array_equal(alone, both[:1])
    np.testing.assert_allclose(both[:, 1], [1 / 255, 1.0])


def test_rows_given_later_in_the_other_unit():
    schema = build(GREY / 255).schema
    with pytest.raises(DataError, match=r"'photo'.*pixels below 0 or above 1 in 20 rows.*divided by 255"):
        schema.check_covariates({"age": AGE, "photo": GREY})
    schema = build(GREY).schema
    with pytest.warns(BGMIVWarning, match=r"'photo'.*from 0 to 255, so these are nearly black. Multiply them by 255"):
        flat = schema.check_covariates({"age": AGE, "photo": GREY / 255})
    np.testing.assert_allclose(flat[:, 1:], GREY.reshape(N, -1) / 255**2)


def test_each_block_has_its_own_unit():
    both = {"dark": GREY / 255, "bright": GREY}
    data = IVData.from_arrays(Y, X, instruments=W, covariates=both)
    np.testing.assert_array_equal(data.covariates[:, :12], data.covariates[:, 12:])


def test_black_and_white():
    mask = GREY > 100
    for images in (mask, mask.astype(np.float64), mask.astype(np.uint8)):
        np.testing.assert_array_equal(build(images).covariates[:, 1:], mask.reshape(N, -1))
    schema = build(GREY).schema
    for images in (mask, np.zeros_like(mask)):
        flat = schema.check_covariates({"age": AGE, "photo": images.astype(np.uint8)})
        np.testing.assert_array_equal(flat[:, 1:], images.reshape(N, -1) / 255)


WRONG = {
    "below 0": (np.where(np.arange(N)[:, None, None] == 3, -0.5, GREY / 255), "below 0 or above 1 in 1 row (row 3)"),
    "centred": (GREY / 255 - 0.5, "below 0 or above 1 in 20 rows"),
    "above 255": (GREY.astype(np.int32) + 1, "above 255"),
    "two bytes": (GREY.astype(np.uint16) * 257, "above 255"),
}


@pytest.mark.parametrize(("images", "words"), WRONG.values(), ids=WRONG)
def test_other_numbers_are_refused_with_a_way_out(images, words):
    with pytest.raises(DataError) as caught:
        build(images)
    message = str(caught.value)
    assert words in message
    assert "'photo'" in message
    assert "declare the block as 'vector'" in message
    as_vector = IVData.from_arrays(
        Y, X, instruments=W, covariates={"age": AGE, "photo": images}, blocks={"photo": "vector"}
    )
    np.testing.assert_array_equal(as_vector.covariates[:, 1:], images.reshape(N, -1))
