"""Rows given after the fit are checked against the schema of the fit."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest

from bgmiv.data import IVData
from bgmiv.data.query import query_at
from bgmiv.errors import DataError

rng = np.random.default_rng(3)
N = 12
Y, X, W = rng.normal(size=(3, N))
TABLE = pd.DataFrame(
    {
        "age": rng.normal(size=N),
        "black": np.arange(N) % 2 == 0,
        "region": ["n", "s", "w"] * 4,
        "score": rng.normal(size=N),
    }
)
PHOTOS = rng.random(size=(N, 2, 3))
PROXY = rng.normal(size=(N, 4))


def fit(covariates, **options):
    return IVData.from_arrays(Y, X, instruments=W, covariates=covariates, **options)


FITS = {
    "table": fit(TABLE, blocks={"region": "categorical"}),
    "matrix": fit(PROXY),
    "arrays": fit({"time": Y + W, "proxy": PROXY, "photo": PHOTOS}),
    "none": fit(None),
    "binary": IVData.from_arrays(Y, np.arange(N) % 2, instruments=W, treatment_kind="binary"),
}


def row(**changes):
    return pd.DataFrame({"age": [1.0], "black": [True], "region": ["s"], "score": [2.0]} | changes)


def entries(**changes):
    return {"time": [1], "proxy": PROXY[:1], "photo": PHOTOS[:1]} | changes


GOOD = {
    "one row": ("table", row(), [[1, 1, 0, 1, 0, 2]]),
    "polars": ("table", pl.from_pandas(row()), [[1, 1, 0, 1, 0, 2]]),
    "mapping": ("table", {"age": [1], "black": [1], "region": ["s"], "score": [2]}, [[1, 1, 0, 1, 0, 2]]),
    "another order": ("table", row()[["score", "age", "black", "region"]], [[1, 1, 0, 1, 0, 2]]),
    "entries in another order": (
        "arrays",
        dict(reversed(entries().items())),
        np.concatenate([[[1.0]], PROXY[:1], PHOTOS[:1].reshape(1, -1)], axis=1),
    ),
    "list row": ("table", [[1.0, True, "s", 2.0]], [[1, 1, 0, 1, 0, 2]]),
    "unnamed fit, named table": ("matrix", pd.DataFrame([[1, 2, 3, 4]], columns=list("abcd")), [[1, 2, 3, 4]]),
    "flat arrays": ("arrays", np.arange(11)[None] / 10, [np.arange(11) / 10]),
}


@pytest.mark.parametrize(("fitted", "values", "expected"), GOOD.values(), ids=GOOD)
def test_accepted(fitted, values, expected):
    np.testing.assert_array_equal(FITS[fitted].schema.check_covariates(values), expected)


@pytest.mark.parametrize("shape", [(2, 2, 3), (2, 2, 3, 1), (2, 6)])
def test_image_shapes(shape):
    schema = FITS["arrays"].schema
    photo = np.arange(12.0).reshape(shape) / 12
    flat = schema.check_covariates({"time": [0, 1], "proxy": np.zeros((2, 4)), "photo": photo})
    np.testing.assert_array_equal(flat[:, 5:], photo.reshape(2, 6))


BAD = {
    "narrow": ("matrix", np.zeros((2, 3)), ["3 columns", "4", "'covariate_3'"]),
    "one flat row": ("matrix", np.zeros(4), ["1 column", "4", "reshape(1, -1)"]),
    "narrow for named": ("table", np.zeros((2, 3)), ["3 columns", "4", "'age'"]),
    "missing": ("table", row().drop(columns=["age", "score"]), ["lack 'age', 'score'"]),
    "extra": ("table", row(id=[1]), ["'id'", "fit had not"]),
    "renamed": ("table", row().rename(columns={"age": "Age"}), ["lack 'age'", "'Age'"]),
    "absent": ("table", None, ["covariates", "'age'"]),
    "no rows": ("table", row().iloc[:0], ["no rows"]),
    "nan": ("table", row(age=[np.nan]), ["'age'", "1 missing", "row 0"]),
    "inf": ("matrix", np.full((1, 4), np.inf), ["'covariate_0'", "infinite"]),
    "unseen level": ("table", row(region=["east"]), ["'region'", "'east'", "1 row (row 0)", "'n', 's', 'w'"]),
    "level of another type": ("table", row(region=[3]), ["'region'", "3", "'n', 's', 'w'"]),
    "not binary": ("table", row(black=[0.5]), ["'black'", "binary", "row 0"]),
    "one-hot": ("table", [[1, 1, 0, 1, 0, 2]], ["6 columns", "4", "'region'"]),
    "strings": ("table", row(age=["x"]), ["'age'", "strings"]),
    "three dimensions": ("matrix", np.zeros((1, 2, 2)), ["covariates", "3 dimensions"]),
    "wide entry": ("arrays", entries(proxy=np.zeros((1, 5))), ["'proxy'", "(5,)", "(4,)"]),
    "flat entry": ("arrays", entries(proxy=[1.0]), ["'proxy'", "()", "(4,)"]),
    "deep entry": ("arrays", entries(time=[[1, 2]]), ["'time'", "(2,)", "()"]),
    "pixel below 0": ("arrays", entries(photo=-PHOTOS[:1]), ["'photo'", "below 0", "1 row (row 0)", "'vector'"]),
    "flat pixel above 1": ("arrays", np.full((1, 11), 2), ["'photo'", "above 1", "1 row (row 0)", "255"]),
    "image size": ("arrays", entries(photo=PHOTOS[:1, :1]), ["'photo'", "(1, 3)", "(2, 3)"]),
    "arrays for a matrix": ("matrix", {"a": PROXY}, ["single columns"]),
    "unwanted": ("none", np.zeros((2, 1)), ["1 column,", "had none"]),
}


@pytest.mark.parametrize(("fitted", "values", "words"), BAD.values(), ids=BAD)
def test_refused_covariates(fitted, values, words):
    with pytest.raises(DataError) as caught:
        FITS[fitted].schema.check_covariates(values)
    message = str(caught.value)
    assert [word for word in words if word not in message] == [], message


def test_row_counts():
    schema = FITS["matrix"].schema
    with pytest.raises(DataError, match="3 rows but the covariates have 2"):
        schema.check_treatment([1.0, 2.0, 3.0], n_rows=2)


@pytest.mark.parametrize("scalar", [0.5, 1, np.float32(0.5), np.array(0.5)])
def test_scalar_treatment_is_repeated(scalar):
    np.testing.assert_array_equal(FITS["matrix"].schema.check_treatment(scalar, 3), np.full(3, float(scalar)))


@pytest.mark.parametrize(
    ("fitted", "values", "words"),
    [
        ("matrix", [1.0, np.nan], "treatment.*1 missing.*row 1"),
        ("matrix", np.inf, "treatment.*infinite"),
        ("matrix", "high", "treatment.*strings"),
        ("matrix", None, "treatment.*NoneType"),
        ("matrix", np.zeros((2, 2)), r"treatment.*\(2, 2\)"),
        ("matrix", [[1.0], [1.0, 2.0]], "treatment.*different lengths"),
        ("matrix", [], "treatment.*no rows"),
        ("binary", [0.0, 0.5], "treatment.*binary.*row 1.*0 or 1"),
    ],
)
def test_refused_treatments(fitted, values, words):
    with pytest.raises(DataError, match=words):
        FITS[fitted].schema.check_treatment(values, 2)


@pytest.mark.parametrize(
    ("fitted", "treatment", "covariates", "rows"),
    [
        ("matrix", [1.0, 2.0], np.zeros((2, 4)), 2),
        ("matrix", 1.0, np.zeros((3, 4)), 3),
        ("none", [1.0, 2.0], None, 2),
        ("none", 1.0, None, 1),
        ("none", [1.0, 2.0], np.zeros((2, 0)), 2),
    ],
)
def test_query(fitted, treatment, covariates, rows):
    schema = FITS[fitted].schema
    query = query_at(schema, treatment, covariates)
    assert query.treatment.shape == (1, rows)
    assert query.rows.covariates.shape == (rows, schema.n_covariates)


@pytest.mark.parametrize(
    ("treatment", "covariates", "words"),
    [
        ([1.0, 2.0, 3.0], np.zeros((2, 4)), "covariates have 2 rows but treatment has 3"),
        (pd.Series([1.0, 2.0]), pd.DataFrame(np.zeros((2, 4)), index=[5, 6]), "indexes"),
        ([1.0, 2.0], None, "covariates are missing"),
    ],
)
def test_refused_queries(treatment, covariates, words):
    with pytest.raises(DataError, match=words):
        query_at(FITS["matrix"].schema, treatment, covariates)
