"""The same numbers give the same data, whatever container they come in."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from bgmiv.data import IVData

rng = np.random.default_rng(0)
N = 20
COLUMNS = {
    "age": rng.integers(20, 60, N),
    "score": rng.normal(size=N),
    "black": rng.random(N) < 0.5,
    "region": rng.choice(["north", "south", "west"], N),
}
Y, X, W = rng.normal(size=(3, N))
BLOCKS = {"region": "categorical"}

TABLES = {
    "mapping": dict,
    "lists": lambda columns: {name: values.tolist() for name, values in columns.items()},
    "pandas": pd.DataFrame,
    "pandas nullable": lambda columns: pd.DataFrame(columns).convert_dtypes(),
    "pandas arrow": lambda columns: pd.DataFrame(columns).convert_dtypes(dtype_backend="pyarrow"),
    "pandas category": lambda columns: pd.DataFrame(columns).astype({"region": "category"}),
    "polars": pl.DataFrame,
    "polars category": lambda columns: pl.DataFrame(columns).with_columns(pl.col("region").cast(pl.Categorical)),
    "pyarrow": lambda columns: pa.table({name: pa.array(values) for name, values in columns.items()}),
    "mapping of series": lambda columns: {name: pl.Series(values) for name, values in columns.items()},
}


def build(covariates, **changes):
    return IVData.from_arrays(
        **{"outcome": Y, "treatment": X, "instruments": W, "covariates": covariates, "blocks": BLOCKS, **changes}
    )


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)
def test_tables_agree(make):
    reference, data = build(COLUMNS), build(make(COLUMNS))
    np.testing.assert_array_equal(data.covariates, reference.covariates)
    assert data.schema == reference.schema
    assert data.schema.covariate_names == tuple(COLUMNS)
    np.testing.assert_array_equal(data.schema.check_covariates(make(COLUMNS)), reference.covariates)


MATRICES = {
    "numpy": np.asarray,
    "fortran": np.asfortranarray,
    "lists": lambda matrix: matrix.tolist(),
    "tuples": lambda matrix: tuple(map(tuple, matrix.tolist())),
    "masked without a mask": np.ma.asarray,
    "rows of arrays": list,
}


@pytest.mark.parametrize("make", MATRICES.values(), ids=MATRICES)
def test_matrices_agree(make):
    matrix = rng.normal(size=(N, 3))
    data = build(make(matrix), blocks=None)
    np.testing.assert_array_equal(data.covariates, matrix)
    assert data.schema.covariate_names == ("covariate_0", "covariate_1", "covariate_2")
    assert not data.schema.named
    assert data.covariates.flags.c_contiguous


def test_jax_arrays_keep_single_precision():
    data = IVData.from_arrays(jnp.asarray(Y), jnp.asarray(X), instruments=jnp.asarray(W))
    assert {data.outcome.dtype, data.treatment.dtype, data.instruments.dtype} == {np.dtype(np.float32)}
    np.testing.assert_allclose(data.outcome, Y, rtol=1e-6)


def test_half_and_brain_floats_become_single():
    data = IVData.from_arrays(jnp.asarray(Y, jnp.bfloat16), X.astype(np.float16), instruments=W)
    assert data.outcome.dtype == data.treatment.dtype == np.float32


@pytest.mark.parametrize(
    ("columns", "dtype"),
    [
        ({"a": np.float32, "b": np.float32}, np.float32),
        ({"a": np.float32, "b": bool}, np.float32),
        ({"a": np.float32, "b": np.float64}, np.float64),
        ({"a": np.int8, "b": bool}, np.float64),
    ],
)
def test_precision_of_mixed_columns(columns, dtype):
    values = {name: (3 * rng.integers(0, 2, N)).astype(kind) for name, kind in columns.items()}
    assert build(values, blocks=None).covariates.dtype == dtype


NAMED = {
    "pandas series": lambda name, values: pd.Series(values, name=name),
    "pandas frame": lambda name, values: pd.DataFrame({name: values}),
    "polars series": lambda name, values: pl.Series(name, values),
    "arrow table": lambda name, values: pa.table({name: values}),
    "mapping": lambda name, values: {name: values},
}


@pytest.mark.parametrize("make", NAMED.values(), ids=NAMED)
def test_names_come_along(make):
    data = IVData.from_arrays(
        make("sales", Y), make("price", X), instruments=make("cost", W), covariates=make("age", Y + W)
    )
    schema = data.schema
    names = (schema.outcome.name, schema.treatment.name, schema.instruments, schema.covariate_names)
    assert names == ("sales", "price", ("cost",), ("age",))
    assert schema.named
    assert repr(data) == f"IVData({N} rows: sales, price, cost | age)"


UNNAMED = {
    "array": np.asarray,
    "column": lambda values: values[:, None],
    "list": list,
    "pandas series": pd.Series,
    "pandas index": pd.Index,
    "polars series": pl.Series,
    "arrow array": pa.array,
    "chunked array": lambda values: pa.chunked_array([values]),
}


@pytest.mark.parametrize("make", UNNAMED.values(), ids=UNNAMED)
def test_default_names(make):
    data = IVData.from_arrays(make(Y), make(X), instruments=make(W), covariates=make(Y + W))
    schema = data.schema
    names = (schema.outcome.name, schema.treatment.name, schema.instruments, schema.covariate_names)
    assert names == ("outcome", "treatment", ("instrument_0",), ("covariate_0",))
    assert not schema.named


def test_list_rows_keep_each_column_type():
    rows = [[age, region] for age, region in zip(range(N), COLUMNS["region"].tolist(), strict=True)]
    data = build(rows, blocks={"covariate_1": "categorical"})
    assert sorted(data.schema.blocks[1].levels) == ["north", "south", "west"]
    np.testing.assert_array_equal(data.covariates[:, 0], np.arange(N))


def test_numbered_columns_of_a_frame():
    data = build(pd.DataFrame(rng.normal(size=(N, 2))), blocks=None)
    assert data.schema.covariate_names == ("0", "1")


def test_decimal_columns_are_numbers():
    prices = pl.Series("price", X.round(2).tolist()).cast(pl.Decimal(10, 2))
    np.testing.assert_allclose(IVData.from_arrays(Y, prices, instruments=W).treatment, X.round(2))


def test_default_names_do_not_clash_with_given_ones():
    data = build({"outcome": rng.normal(size=N)}, blocks=None)
    assert data.schema.covariate_names == ("outcome",)
