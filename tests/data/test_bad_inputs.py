"""Bad inputs: each error names the argument or column, counts the rows, and says the fix."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse

from bgmiv.data import BlockSpec, IVData, read_table
from bgmiv.data.ivdata import from_frame
from bgmiv.errors import DataError

N = 6
Y = np.array([1.0, 3.0, 2.0, 5.0, 4.0, 7.0])
X = np.array([0.1, 0.4, 0.2, 0.9, 0.5, 0.3])
W = np.array([2.0, 1.0, 4.0, 3.0, 6.0, 5.0])
V = np.array([[10.0, 1.5], [12.0, 0.5], [11.0, 2.5], [9.0, 3.5], [8.0, 2.0], [7.0, 1.0]])


def put(values, *rows, value):
    changed = np.array(values, dtype=float)
    changed[list(rows)] = value
    return changed


def frame(**columns):
    return pd.DataFrame({"age": V[:, 0], "score": V[:, 1], **columns})


def case(name, words, **changes):
    return pytest.param(changes, words, id=name)


ONE_ROLE = [
    case("nan outcome", ["outcome", "2 missing", "rows 1, 4", "Drop"], outcome=put(Y, 1, 4, value=np.nan)),
    case("none in list", ["outcome", "1 missing", "row 2"], outcome=[1.0, 3.0, None, 5.0, 4.0, 7.0]),
    case("inf treatment", ["treatment", "1 infinite", "row 3"], treatment=put(X, 3, value=-np.inf)),
    case("nan instrument", ["instrument_0", "1 missing", "row 0"], instruments=put(W, 0, value=np.nan)),
    case("many rows", ["6 missing", "rows 0, 1, 2, 3, 4, ..."], outcome=np.full(N, np.nan)),
    case(
        "pandas NA",
        ["price", "1 missing", "row 1"],
        treatment=pd.Series([1, None, 3, 4, 5, 6], name="price", dtype="Int64"),
    ),
    case(
        "boolean NA",
        ["treatment", "1 missing", "row 1"],
        treatment=pd.Series([True, None] * 1 + [False] * 4, dtype="boolean"),
    ),
    case("polars null", ["price", "1 missing", "row 1"], treatment=pl.Series("price", [1, None, 3, 4, 5, 6])),
    case("arrow null", ["treatment", "1 missing", "row 1"], treatment=pa.chunked_array([[1, None, 3], [4, 5, 6]])),
    case("overflow", ["outcome", "1 value", "row 5", "single precision", "units"], outcome=put(Y, 5, value=1e39)),
    case("longdouble overflow", ["outcome", "6 infinite"], outcome=np.array(Y, np.longdouble) * np.longdouble("1e400")),
    case("strings", ["outcome", "strings", "numbers"], outcome=list("abcdef")),
    case("objects", ["treatment", "object", "Decimal", "astype(float)"], treatment=[Decimal(i) for i in range(N)]),
    case("dates", ["treatment", "dates", "number of days"], treatment=np.arange(N).astype("datetime64[D]")),
    case("pandas dates", ["treatment", "dates"], treatment=pd.Series(pd.date_range("2020", periods=N, tz="UTC"))),
    case("polars times", ["treatment", "object", "time"], treatment=pl.Series([dt.time(i) for i in range(N)])),
    case("time differences", ["outcome", "time differences"], outcome=np.arange(N).astype("timedelta64[s]")),
    case("complex", ["outcome", "complex", "real"], outcome=Y + 1j),
    case("structured", ["outcome", "not numeric"], outcome=np.zeros(N, dtype=[("a", float)])),
    case("ragged", ["outcome", "different lengths"], outcome=[[1.0], [1.0, 2.0]]),
    case("masked", ["outcome", "1 masked row", "row 2"], outcome=np.ma.masked_equal(Y, 2.0)),
    case("sparse", ["instruments", "sparse", ".toarray()"], instruments=scipy.sparse.csr_array(V)),
    case("two columns", ["treatment", "one column", "(6, 2)"], treatment=V),
    case("three dimensions", ["outcome", "3 dimensions", "(6, 1, 1)"], outcome=Y[:, None, None]),
    case("scalar", ["outcome", "float", "array or a table"], outcome=1.0),
    case("no outcome", ["outcome", "NoneType"], outcome=None),
    case("lazy frame", ["treatment", "LazyFrame", ".collect()"], treatment=pl.LazyFrame({"x": X})),
    case("nested", ["treatment", "nested"], treatment=pl.Series("x", [[1.0, 2.0]] * N)),
    case(
        "too wide integers", ["treatment", "Int128", "Cast"], treatment=pl.Series("x", list(range(N)), dtype=pl.Int128)
    ),
    case(
        "category as numbers",
        ["treatment", "object", "int"],
        treatment=pd.Series([1, 2, 3, 1, 2, 3], dtype="category"),
        treatment_kind="continuous",
    ),
    case("numbers as strings", ["treatment", "strings that are numbers", "kind"], treatment=["1", "2.5", "2.5"] * 2),
    case("one level", ["treatment", "constant", "'a'"], treatment=["a"] * N),
    case("level missing", ["treatment", "1 missing", "row 1"], treatment=["a", None, "b", "a", "b", "a"]),
    case("three of two", ["outcome", "3 levels", "'categorical'"], outcome=list("aabbcc"), outcome_kind="binary"),
    case("unknown kind of outcome", ["outcome_kind", "'ordinal'", "'categorical'"], outcome_kind="ordinal"),
    case("length", ["treatment", "5 rows", "outcome", "6"], treatment=X[:5]),
    case("length of covariates", ["covariates", "5 rows", "6"], covariates=V[:5]),
    case("transposed", ["covariates", "2 rows", "6", "transposed"], covariates=V.T),
    case("empty", ["outcome", "0", "rows"], outcome=[]),
    case("constant treatment", ["treatment", "constant", "2"], treatment=np.full(N, 2.0)),
    case("constant instrument", ["instrument_1", "constant"], instruments=np.column_stack([W, np.ones(N)])),
    case("no instruments", ["instruments", "at least one"], instruments=None),
    case("instruments of no width", ["instruments", "at least one"], instruments=np.zeros((N, 0))),
    case("no instrument columns", ["instruments", "at least one"], instruments={}),
    case("deep instrument", ["instruments", "'z'", "(6, 2)"], instruments={"z": V}),
    case("string instrument", ["instrument", "'q'", "0/1 columns"], instruments={"q": list("abcabc")}),
    case(
        "index",
        ["treatment", "outcome", "indexes", "reset_index"],
        outcome=pd.Series(Y),
        treatment=pd.Series(X, index=range(1, 7)),
    ),
    case(
        "index of covariates", ["covariates", "outcome", "indexes"], outcome=pd.Series(Y), covariates=frame().iloc[::-1]
    ),
    case(
        "binary of two",
        ["treatment", "binary", "1 value", "row 2"],
        treatment=[0, 1, 2, 0, 1, 0],
        treatment_kind="binary",
    ),
    case("unknown kind", ["treatment_kind", "'auto'", "'ordinal'"], treatment_kind="ordinal"),
    case("jax nan", ["outcome", "1 missing", "row 0"], outcome=jnp.asarray(Y).at[0].set(jnp.nan)),
    case("tiny treatment", ["treatment", "constant"], treatment=X * 1e-300),
    case("constant outcome", ["outcome", "constant", "1 in every row"], outcome=np.ones(N)),
    case("generator", ["treatment", "array or a table", "generator"], treatment=(x for x in X)),
    case("set", ["outcome", "array or a table", "set"], outcome={1.0, 2.0}),
    case("text", ["outcome", "array or a table", "str"], outcome="wage"),
    case("lists in cells", ["treatment", "object", "list"], treatment=pd.Series([[1.0]] * N)),
    case("identifiers", ["treatment", "strings", "6 different ones in 6 rows"], treatment=list("abcdef")),
]

COVARIATES = [
    case("nan column", ["'score'", "1 missing", "row 3"], covariates=frame(score=put(V[:, 1], 3, value=np.nan))),
    case(
        "other columns too",
        ["'age'", "1 more column", "'score'"],
        covariates=pd.DataFrame(put(V, 0, value=np.nan), columns=["age", "score"]),
    ),
    case("inf in array", ["'covariate_1'", "1 infinite", "row 2"], covariates=np.where(V == 2.5, np.inf, V)),
    case("strings", ["'region'", "blocks={'region': 'categorical'}", "drop"], covariates=frame(region=list("nsnsns"))),
    case("strings with a gap", ["'region'", "categorical"], covariates=frame(region=["n", None] * 3)),
    case("mixed list rows", ["'covariate_1'", "strings"], covariates=[[1.0, "a"], [2.0, "b"]] * 3),
    case(
        "gap in list rows",
        ["'covariate_1'", "1 missing", "row 0"],
        covariates=[[1, None], [2, 3], [3, 1], [4, 4], [5, 2], [6, 6]],
    ),
    case("duplicated names", ["covariates", "duplicated", "age"], covariates=pd.DataFrame(V, columns=["age", "age"])),
    case("duplicated arrow names", ["duplicated", "a"], covariates=pa.table([V[:, 0], V[:, 1]], names=["a", "a"])),
    case("duplicated after naming", ["duplicated", "1"], covariates={1: V[:, 0], "1": V[:, 1]}),
    case("images without a name", ["3 dimensions", "mapping"], covariates=np.zeros((N, 2, 2))),
    case("bytes", ["'place'", "strings"], covariates={"place": np.array([b"a", b"b"] * 3)}),
    case("constant", ["'covariate_1'", "constant", "Drop"], covariates=np.column_stack([V[:, 0], np.ones(N)])),
    case("nothing for a column", ["'age'", "0 dimensions"], covariates={"age": None}),
    case("masked", ["'age'", "masked row"], covariates={"age": np.ma.masked_greater(V[:, 0], 10.0)}),
    case("five dimensions", ["'clip'", "5 dimensions"], covariates={"clip": np.zeros((N, 1, 1, 1, 1))}),
    case("scalar entry", ["'age'", "0 dimensions"], covariates={"age": 3.0}),
    case("table entry", ["'t'", "table"], covariates={"t": frame()}),
    case("mapping entry", ["'t'", "table"], covariates={"t": {"a": V[:, 0]}}),
    case("entries of two lengths", ["'b'", "2 rows", "'a'", "6"], covariates={"a": V[:, 0], "b": [1.0, 2.0]}),
    case(
        "entries of two indexes",
        ["'b'", "'a'", "indexes"],
        covariates={"a": pd.Series(V[:, 0]), "b": pd.Series(V[:, 1], index=range(6, 0, -1))},
    ),
    case("sparse entry", ["'a'", "sparse"], covariates={"a": scipy.sparse.csr_array(V)}),
    case("entry of no width", ["'a'", "no columns"], covariates={"a": np.zeros((N, 0))}),
    case(
        "nan in image",
        ["'photo[3]'", "1 missing", "row 2"],
        covariates={"photo": np.where(np.arange(N * 4).reshape(N, 2, 2) == 11, np.nan, 0)},
    ),
]

OVERLAPS = [
    case("same name", ["'age'", "treatment", "covariates"], treatment=pd.Series(X, name="age"), covariates=frame()),
    case(
        "treatment twice",
        ["'p'", "outcome", "treatment"],
        outcome=pd.Series(Y, name="p"),
        treatment=pd.Series(X, name="p"),
    ),
    case(
        "instrument by name",
        ["'age'", "instruments", "covariates"],
        instruments=frame()[["age"]] + 1,
        covariates=frame(),
    ),
    case("instrument in covariates", ["'instrument_0'", "identical", "'z'"], covariates=frame(z=W)),
    case("treatment in covariates", ["treatment", "identical", "'z'"], covariates=frame(z=X)),
    case("outcome in covariates", ["outcome", "identical", "'z'"], covariates=frame(z=Y)),
    case("in single precision", ["treatment", "identical"], covariates=np.column_stack([V, X]).astype(np.float32)),
    case("inside a vector", ["treatment", "'proxy[1]'"], covariates={"proxy": np.column_stack([W + Y, X])}),
    case("instrument is treatment", ["'instrument_0'", "identical", "treatment"], instruments=X),
    case("instrument is outcome", ["'instrument_0'", "identical", "outcome"], instruments=Y),
    case("treatment is outcome", ["treatment", "identical", "outcome"], treatment=Y),
]

DECLARATIONS = [
    case("unknown column", ["'regoin'", "age", "score"], covariates=frame(), blocks={"regoin": "categorical"}),
    case("no covariates", ["'region'", "none"], blocks={"region": "categorical"}),
    case("not a declaration", ["'age'", "BlockSpec", "3"], covariates=frame(), blocks={"age": 3}),
    case("unknown kind", ["'ordinal'", "'categorical'"], covariates=frame(), blocks={"age": "ordinal"}),
    case("a list of blocks", ["blocks must be a mapping", "list"], covariates=frame(), blocks=["age"]),
    case("binary of many", ["'age'", "6 values", "Recode"], covariates=frame(), blocks={"age": "binary"}),
    case(
        "apart",
        ["'p'", "next to each other"],
        covariates=frame(z=Y + W),
        blocks={"p": BlockSpec("vector", columns=["age", "z"])},
    ),
    case("reversed", ["'p'", "order"], covariates=frame(), blocks={"p": BlockSpec("vector", columns=["score", "age"])}),
    case(
        "declared twice",
        ["'age'", "'p'", "Keep one"],
        covariates=frame(),
        blocks={"p": BlockSpec("vector", columns=["age"]), "q": BlockSpec("vector", columns=["age"])},
    ),
    case(
        "taken name",
        ["'score'", "another name"],
        covariates=frame(),
        blocks={"score": BlockSpec("vector", columns=["age"])},
    ),
    case(
        "image without shape",
        ["'p'", "shape"],
        covariates=frame(),
        blocks={"p": BlockSpec("image", columns=["age", "score"])},
    ),
    case(
        "image of another shape",
        ["'p'", "(3, 3, 1)", "2 columns"],
        covariates=frame(),
        blocks={"p": BlockSpec("image", columns=["age", "score"], shape=(3, 3))},
    ),
    case(
        "two categorical columns",
        ["'p'", "one column"],
        covariates=frame(),
        blocks={"p": BlockSpec("categorical", columns=["age", "score"])},
    ),
    case(
        "array in a group",
        ["'proxy'", "of its own"],
        covariates={"proxy": V},
        blocks={"p": BlockSpec("vector", columns=["proxy"])},
    ),
    case(
        "missing level",
        ["'region'", "2 missing", "rows 1, 3"],
        covariates=frame(region=["n", None, "s", np.nan, "n", "s"]),
        blocks={"region": "categorical"},
    ),
    case(
        "mixed levels",
        ["'g'", "int, str", "astype(str)"],
        covariates={"g": np.array([1, "a"] * 3, dtype=object)},
        blocks={"g": "categorical"},
    ),
    case(
        "infinite level",
        ["'g'", "1 infinite", "row 0"],
        covariates={"g": [np.inf, 1.0, 2.0, 1.0, 2.0, 1.0]},
        blocks={"g": "categorical"},
    ),
    case("levels of lists", ["'g'", "list"], covariates={"g": pd.Series([[1]] * N)}, blocks={"g": "categorical"}),
    case(
        "levels of dates",
        ["'g'", "dates"],
        covariates={"g": np.arange(N).astype("datetime64[D]")},
        blocks={"g": "categorical"},
    ),
]


@pytest.mark.parametrize(("changes", "words"), ONE_ROLE + COVARIATES + OVERLAPS + DECLARATIONS)
def test_error_says_what_and_how(changes, words):
    arguments = {"outcome": Y, "treatment": X, "instruments": W, **changes}
    with pytest.raises(DataError) as caught:
        IVData.from_arrays(**arguments)
    message = str(caught.value)
    assert [word for word in words if word not in message] == [], message
    assert message.endswith("."), message


def test_one_row():
    with pytest.raises(DataError, match=r"1 row\. Pass at least two"):
        IVData.from_arrays([1.0], [2.0], instruments=[3.0])


def test_too_many_levels():
    n = 1001
    with pytest.raises(DataError, match=r"'id'.*1001 levels"):
        IVData.from_arrays(
            np.arange(n) ** 2,
            np.sin(np.arange(n)),
            instruments=np.cos(np.arange(n)),
            covariates={"id": [str(i) for i in range(n)]},
            blocks={"id": "categorical"},
        )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kind": "vector", "columns": []}, "column names"),
        ({"kind": "vector", "columns": ["a", "a"]}, "distinct"),
        ({"kind": "vector", "shape": (2, 2)}, "images only"),
        ({"kind": "image", "shape": (4,)}, "height, width"),
        ({"kind": "image", "shape": (0, 4)}, "height, width"),
    ],
)
def test_bad_block_spec(arguments, words):
    with pytest.raises(DataError, match=words):
        BlockSpec(**arguments)


# Files: what a CSV file can hold besides. Each row changes one column of a good file, from its first row on.

ROWS = 12
FILE = {
    "wage": [5.3, 5.8, 5.2, 6.4, 6.5, 6.0, 4.0, 5.9, 5.5, 5.4, 6.1, 6.6],
    "educ": [12.0, 11.2, 9.9, 14.6, 14.3, 13.0, 9.5, 13.5, 6.9, 9.8, 12.6, 12.4],
    "near": [-0.3, -0.2, -0.9, 1.1, 1.0, 0.4, -1.7, 0.5, -1.6, -0.8, 0.3, 0.6],
    "age": [20, 27, 34, 41, 48, 24, 31, 38, 45, 21, 28, 35],
    "region": ["south", "north", "north"] * 4,
    "pw": [1, 2, 3, 4] * 3,
}
NAMES = {"outcome": "wage", "treatment": "educ", "instruments": ["near"], "covariates": ["age", "region"]}

FILES = {
    "empty field": ({"wage": [""]}, {}, r"missing values in 'wage' \(1\), in 1 of 12 rows"),
    "a word among numbers": (
        {"age": ["#N/A"]},
        {},
        r"'age' holds numbers, but '#N/A' is not one: 1 value \(row 0\) to correct.*na_values=\['#N/A'\]",
    ),
    "a word among few numbers": ({"age": [".", *[1, 2] * 5, 1]}, {}, r"'age' holds numbers, but '\.' is not one"),
    "a word among instruments": ({"near": [1, "?"]}, {}, "'near' holds strings, such as '\\?' in row 1"),
    "decimal commas": (
        {"educ": [f'"{i},5"' for i in range(ROWS)]},
        {},
        "'educ' holds numbers with commas, such as '0,5'.*decimal=','",
    ),
    "identifiers": ({"region": list("abcdefghijkl")}, {}, "'region' holds strings, 12 different ones in 12 rows"),
    "negative weight": ({"pw": [-1]}, {"sample_weight": "pw"}, r"'pw': 1 negative value \(row 0\)"),
    "missing group": ({"pw": [""]}, {"clusters": "pw"}, r"missing values in 'pw' \(1\)"),
    "outcome again": ({"pw": FILE["wage"]}, {"covariates": ["pw"]}, "column 'pw' is identical to outcome 'wage'"),
    "unknown outcome": ({}, {"outcome": "wages"}, r"no column 'wages'\. Did you mean 'wage'"),
}


@pytest.mark.parametrize("name", FILES)
def test_bad_files(name, tmp_path):
    changes, arguments, message = FILES[name]
    columns = {key: [*changes.get(key, ()), *values[len(changes.get(key, ())) :]] for key, values in FILE.items()}
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    (tmp_path / "data.csv").write_text("\n".join(lines))
    with pytest.raises(DataError, match=message):
        from_frame(read_table(tmp_path / "data.csv"), **NAMES | arguments)


@pytest.mark.parametrize(("rows", "message"), [(0, "no rows"), (1, "one row")])
def test_too_few_rows_in_a_file(rows, message, tmp_path):
    pd.DataFrame(FILE).head(rows).to_csv(tmp_path / "data.csv", index=False)
    with pytest.raises(DataError, match=message):
        from_frame(read_table(tmp_path / "data.csv"), **NAMES)
