"""Odd columns, names, containers and formulas through fit and predict: the right numbers or our error, nothing else.

The numbers are the same ones in every form, so that a form that is taken must give the same estimate. What the shared
code does with them does not depend on the method: 2SLS stands for all.
"""

from __future__ import annotations

import array
import ctypes
import datetime
import decimal
import fractions
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse

from bgmiv import TSLS
from bgmiv.errors import BGMIVError

N = 60
rng = np.random.default_rng(0)
W, V, U = (rng.integers(0, top, N) for top in (60, 20, 20))
X = W // 2 + V + U
BASE: dict[Any, Any] = {"y": 3 * X // 2 + V + 20 - U, "x": X, "w": W, "v": V}
ROLES: dict[str, Any] = {"outcome": "y", "treatment": "x", "instruments": "w", "covariates": "v"}
DAY = datetime.date(2000, 1, 1)


def abc(v: np.ndarray) -> np.ndarray:
    return np.array(list("abc"))[v % 3]


def obj(values: Any) -> np.ndarray:
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


class Text(str):
    __slots__ = ()


class Real(float):
    __slots__ = ()


class OwnRules(np.ndarray):
    def __array_function__(self, *args: Any) -> Any:
        raise RuntimeError("not here")


class NoNumber(float):
    __slots__ = ()

    def __float__(self) -> float:
        raise RuntimeError("no number")


class OnlyArray:
    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.values if dtype is None else self.values.astype(dtype)


class NoArray:
    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise RuntimeError("no array")


class NoLength:
    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __getitem__(self, _: int) -> float:
        raise RuntimeError("no item")


Make = Callable[[np.ndarray], Any]
PANDAS = ["Int8", "Int16", "Int64", "UInt8", "UInt64", "Float32", "Float64"]
ARROW = ["int64", "uint8", "float", "double", "halffloat"]
NUMPY = ["i1", "u1", "i2", "f2", "f4", "f8", "g", ">f8", ">i4", "<u8", "O"]

SAME: dict[str, Make] = {
    **{f"pandas {t}": (lambda v, t=t: pd.Series(pd.array(v.tolist(), dtype=t))) for t in PANDAS},
    **{f"arrow {t}": (lambda v, t=t: pd.Series(pd.array(v.tolist(), dtype=f"{t}[pyarrow]"))) for t in ARROW},
    **{f"numpy {t}": (lambda v, t=t: v.astype(t)) for t in NUMPY},
    "pandas sparse": lambda v: pd.Series(pd.arrays.SparseArray(v.astype(float))),
    "arrow decimal": lambda v: pd.Series(map(decimal.Decimal, v.tolist()), dtype=pd.ArrowDtype(pa.decimal128(8, 2))),
    "masked array without a mask": lambda v: np.ma.array(v.astype(float)),
    "objects of a float subclass": lambda v: obj([Real(i) for i in v]),
    "objects of numbers that cannot be converted": lambda v: obj([NoNumber(i) for i in v]),
    "objects of numpy scalars": lambda v: obj([np.float32(i) for i in v]),
    "polars UInt8": lambda v: pl.Series("s", v.tolist(), dtype=pl.UInt8),
    "polars Float32": lambda v: pl.Series("s", v.tolist(), dtype=pl.Float32),
    "polars Decimal": lambda v: pl.Series("s", list(map(decimal.Decimal, v.tolist())), dtype=pl.Decimal(20, 2)),
    "pyarrow chunks": lambda v: pa.chunked_array([v[:10], v[10:]]),
    "pyarrow array": pa.array,
    "pyarrow half": lambda v: pa.chunked_array([pa.array(v.astype(np.float16))]),
    "jax": lambda v: jnp.asarray(v, dtype=jnp.float32),
    "jax bfloat16": lambda v: jnp.asarray(v, dtype=jnp.bfloat16),
    "list": lambda v: v.tolist(),
    "tuple": lambda v: tuple(v.tolist()),
    "array.array": lambda v: array.array("d", v.tolist()),
    "memoryview": lambda v: memoryview(v.astype(float)),
    "bytearray": lambda v: bytearray(v.astype(np.uint8)),
    "only an array": OnlyArray,
    "pandas index": pd.Index,
    "minus zero": lambda v: np.where(v == 0, -0.0, v),
    "an unaligned buffer": lambda v: np.frombuffer(b"\0" + v.astype(float).tobytes(), np.uint8)[1:].view(float),
    "a subclass with its own rules": lambda v: v.astype(float).view(OwnRules),
    "arrow runs": lambda v: pa.chunked_array([pa.compute.run_end_encode(pa.array(v))]),
    "arrow empty chunks": lambda v: pa.chunked_array([v[:0], v, v[:0]]),
    "ctypes": lambda v: (ctypes.c_double * N)(*v),
    "narwhals": lambda v: nw.from_native(pd.Series(v), series_only=True),
    "reversed twice": lambda v: v[::-1][::-1],
    "strided": lambda v: np.repeat(v, 2)[::2],
    "read only": lambda v: np.broadcast_to(v, (N,)),
    "column of a Fortran array": lambda v: np.asfortranarray(v[:, None])[:, 0],
}

TRUTH: dict[str, Make] = {
    "pandas boolean": lambda v: pd.Series(v % 2 == 0, dtype="boolean"),
    "arrow bool": lambda v: pd.Series(v % 2 == 0, dtype="bool[pyarrow]"),
    "numpy bool": lambda v: v % 2 == 0,
    "polars Boolean": lambda v: pl.Series("s", v % 2 == 0),
    "list of bools": lambda v: (v % 2 == 0).tolist(),
    "objects of numpy bools": lambda v: obj(list(v % 2 == 0)),
}

LEVELS: dict[str, Make] = {
    "category of ints": lambda v: pd.Series(pd.Categorical(v % 3)),
    "category in order": lambda v: pd.Series(pd.Categorical(v % 3, ordered=True, categories=[2, 1, 0])),
    "category of floats": lambda v: pd.Series(pd.Categorical((v % 3) / 2)),
    "category of words": lambda v: pd.Series(pd.Categorical(abc(v))),
    "category with unused levels": lambda v: pd.Series(pd.Categorical(v % 3, categories=range(50))),
    "arrow dictionary": lambda v: pd.Series(pd.arrays.ArrowExtensionArray(pa.array(abc(v)).dictionary_encode())),
    "polars words": lambda v: pl.Series("s", abc(v)),
    "polars Categorical": lambda v: pl.Series("s", abc(v), dtype=pl.Categorical),
    "polars Enum": lambda v: pl.Series("s", abc(v), dtype=pl.Enum(list("abc"))),
    "pyarrow dictionary": lambda v: pa.chunked_array([pa.array(abc(v)).dictionary_encode()]),
    "list of words": lambda v: abc(v).tolist(),
    "empty strings": lambda v: np.array(["", "a"])[v % 2],
    "blanks": lambda v: np.array([" ", " a"])[v % 2],
    "words with zero bytes": lambda v: obj(["a\0b" if i % 2 else "a" for i in v]),
    "a subclass of str": lambda v: obj([Text(word) for word in abc(v)]),
}

REFUSED: dict[str, Make] = {
    "pandas string of numbers": lambda v: pd.Series(v.astype(str), dtype="string"),
    "arrow string of numbers": lambda v: pd.Series(v.astype(str), dtype=pd.ArrowDtype(pa.string())),
    "numbers of another script": lambda v: np.array(["١", "٢"])[v % 2],
    "category of tuples": lambda v: pd.Series(pd.Categorical([(i,) for i in v % 3])),
    "category of dates": lambda v: pd.Series(pd.Categorical(pd.to_datetime(v % 3, unit="D"))),
    "category with missing": lambda v: pd.Series(pd.Categorical(np.where(v % 3 == 0, None, "a"))),
    "category of intervals": lambda v: pd.cut(pd.Series(v), 3),
    "period": lambda v: pd.Series(pd.PeriodIndex(pd.to_datetime(v, unit="D"), freq="D")),
    "datetime with a zone": lambda v: pd.Series(pd.to_datetime(v, unit="D", utc=True)),
    "timedelta": lambda v: pd.Series(pd.to_timedelta(v, unit="D")),
    "dates": lambda v: pd.Series([DAY + datetime.timedelta(int(i)) for i in v]),
    "Int64 with NA": lambda v: pd.Series(pd.array([None, *v[1:].tolist()], dtype="Int64")),
    "boolean with NA": lambda v: pd.Series(pd.array([None, *(v[1:] % 2 == 0).tolist()], dtype="boolean")),
    "arrow dates": lambda v: pd.Series([DAY] * N, dtype=pd.ArrowDtype(pa.date32())),
    "arrow lists": lambda v: pd.Series([[1]] * N, dtype=pd.ArrowDtype(pa.list_(pa.int64()))),
    "arrow nulls": lambda v: pd.Series([None] * N, dtype=pd.ArrowDtype(pa.null())),
    "arrow binary": lambda v: pd.Series([b"1"] * N, dtype=pd.ArrowDtype(pa.binary())),
    **{f"numpy {t}": (lambda v, t=t: v.astype(t)) for t in ["U5", "S5", "c8", "c16", "M8[D]", "m8[s]"]},
    "numpy StringDType": lambda v: v.astype(str).astype(np.dtypes.StringDType()),
    "void": lambda v: np.array([b"ab"] * N, dtype="V2"),
    "structured": lambda v: np.array([(i,) for i in v], dtype=[("a", "f8")]),
    "record array": lambda v: np.rec.array([(i,) for i in v], dtype=[("a", "f8")]),
    "masked array": lambda v: np.ma.array(v.astype(float), mask=np.arange(N) == 0),
    "words in a broken encoding": lambda v: obj(["\udcff" if i % 2 else "a" for i in v]),
    "matrix with one row": lambda v: np.matrix(v),
    "polars Int128": lambda v: pl.Series("s", v.tolist(), dtype=pl.Int128),
    "random keys": lambda v: jax.random.split(jax.random.key(0), N),
    "words that end in a zero byte": lambda v: obj(["a\0" if i % 2 else "a" for i in v]),
    "objects of Decimal": lambda v: obj(list(map(decimal.Decimal, v.tolist()))),
    "objects of Fraction": lambda v: obj([fractions.Fraction(int(i), 3) for i in v]),
    "objects of arrays": lambda v: obj([np.array(i) for i in v]),
    "objects of lists": lambda v: pd.Series([[i] for i in v]),
    "objects of dicts": lambda v: pd.Series([{"a": i} for i in v]),
    "objects of sets": lambda v: pd.Series([{i} for i in v]),
    "objects of bytes": lambda v: pd.Series([b"a", b"b"] * (N // 2)),
    "objects of functions": lambda v: pd.Series([len] * N),
    "objects of both words and numbers": lambda v: obj(["a", 1] * (N // 2)),
    "objects with None": lambda v: obj([None, *v[1:].tolist()]),
    "objects with NaT": lambda v: obj([pd.NaT, *v[1:].tolist()]),
    "huge whole numbers": lambda v: obj([10**30 + int(i) for i in v]),
    "whole numbers beyond floats": lambda v: obj([10**400 + int(i) for i in v]),
    "objects of complex": lambda v: obj([complex(i) for i in v]),
    **{
        f"polars {kind.__name__}": (lambda v, kind=kind: pl.Series("s", v.tolist()).cast(kind))
        for kind in (pl.String, pl.Date, pl.Duration, pl.Time)
    },
    "polars lists": lambda v: pl.Series("s", [[1]] * N),
    "polars arrays": lambda v: pl.Series("s", [[1, 2]] * N, dtype=pl.Array(pl.Int64, 2)),
    "polars structs": lambda v: pl.Series("s", [{"a": 1}] * N),
    "polars objects": lambda v: pl.Series("s", [object()] * N, dtype=pl.Object),
    "polars nulls": lambda v: pl.Series("s", [None] * N),
    "polars binary": lambda v: pl.Series("s", [b"a"] * N),
    "polars with null": lambda v: pl.Series("s", [None, *v[1:].tolist()]),
    "pyarrow nulls": lambda v: pa.chunked_array([pa.nulls(N)]),
    "pyarrow timestamps": lambda v: pa.chunked_array([pa.array(v, pa.timestamp("s"))]),
    "pyarrow structs": lambda v: pa.chunked_array([pa.array([{"a": 1}] * N)]),
    "pyarrow maps": lambda v: pa.chunked_array([pa.array([[("a", 1)]] * N, pa.map_(pa.string(), pa.int64()))]),
    "generator": lambda v: (i for i in v),
    "iterator": lambda v: iter(v.tolist()),
    "set": lambda v: set(v.tolist()),
    "dict": lambda v: dict(enumerate(v.tolist())),
    "bytes": lambda v: bytes(v.astype(np.uint8)),
    "str": lambda v: "a" * N,
    "None": lambda v: None,
    "a number": lambda v: 3.0,
    "a function": lambda v: len,
    "a class": lambda v: int,
    "no array": lambda v: NoArray(),
    "no length": lambda v: NoLength(),
    "sparse matrix": lambda v: scipy.sparse.csr_matrix(v[:, None]),
    "sparse array": lambda v: scipy.sparse.coo_array(v[:, None]),
    "pandas MultiIndex": lambda v: pd.MultiIndex.from_arrays([v, v]),
    "pandas frame": lambda v: pd.DataFrame({"a": v}),
    "polars frame": lambda v: pl.DataFrame({"a": v}),
    "polars lazy frame": lambda v: pl.DataFrame({"a": v}).lazy(),
    "polars expression": lambda v: pl.col("a"),
    "pandas groups": lambda v: pd.Series(v).groupby(v % 2),
    "all NaN": lambda v: np.full(N, np.nan),
    "one infinite": lambda v: np.where(np.arange(N) == 3, np.inf, v),
    "one of 1e308": lambda v: np.where(np.arange(N) == 3, 1e308, v),
    "all beyond single precision": lambda v: v * 1e39,
    "denormal": lambda v: v * 1e-320,
    "constant": lambda v: np.ones(N),
    "constant words": lambda v: np.array(["a"] * N),
    "one short": lambda v: v[1:],
    "twice as long": lambda v: np.r_[v, v],
    "empty": lambda v: v[:0],
    "one row": lambda v: v[None],
    "a column twice": lambda v: np.c_[v, v],
    "no columns": lambda v: np.zeros((N, 0)),
    "five dimensions": lambda v: np.zeros((N, 1, 1, 1, 1)),
    "no dimensions": lambda v: np.array(3.0),
    "ragged": lambda v: [[1], [1, 2]] * (N // 2),
    "list of both": lambda v: ["a", 1.0] * (N // 2),
    "list with None": lambda v: [None, *v[1:].tolist()],
    "identifiers": lambda v: np.array([f"id{i}" for i in range(N)]),
    "numbers but one": lambda v: obj([*v[:-1].astype(str), "#N/A"]),
    "percentages": lambda v: np.array([f"{i}%" for i in range(N)]),
    "thousands": lambda v: np.array([f"{i},000" for i in v]),
    "hexadecimal": lambda v: np.array([hex(i) for i in range(N)]),
}


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with warnings.catch_warnings():
        # Zeros and ones, and small samples, are warned about; what is asked here is what comes of them.
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def plain() -> TSLS:
    return TSLS().fit_table(BASE, **ROLES)


def other_role(name: str, cases: dict[str, Make]) -> str:
    return "yxw"[list(cases).index(name) % 3]


@pytest.mark.parametrize("name", SAME)
def test_the_same_numbers_in_another_form(name: str, plain: TSLS) -> None:
    for role in ("v", other_role(name, SAME)):
        found = TSLS().fit_table({**BASE, role: SAME[name](BASE[role])}, **ROLES)
        assert found.fitted_.slope == pytest.approx(plain.fitted_.slope, rel=1e-5)
    expected = plain.predict(1.0, BASE)
    np.testing.assert_allclose(plain.predict(1.0, {"v": SAME[name](V)}), expected, rtol=1e-6)


@pytest.mark.parametrize("name", TRUTH)
def test_true_and_false_are_binary(name: str, plain: TSLS) -> None:
    made, role = TRUTH[name], other_role(name, TRUTH)
    numbers = (BASE[role] % 2 == 0).astype(float)
    found = TSLS().fit_table({**BASE, role: made(BASE[role])}, **ROLES)
    kinds: dict[str, Any] = {f"{n}_kind": "binary" for n in ("treatment", "outcome") if ROLES[n] == role}
    wanted = TSLS(**kinds).fit_table({**BASE, role: numbers}, **ROLES)
    assert found.fitted_.slope == pytest.approx(wanted.fitted_.slope)
    block = TSLS().fit_table({**BASE, "v": made(V)}, **ROLES).fitted_.schema.blocks[0]
    assert str(block.kind) == "binary"
    np.testing.assert_allclose(plain.predict(1.0, {"v": made(V)}), plain.predict(1.0, {"v": 1.0 * (V % 2 == 0)}))


@pytest.mark.parametrize("name", LEVELS)
def test_words_and_categories_are_levels(name: str, plain: TSLS) -> None:
    block = TSLS().fit_table({**BASE, "v": LEVELS[name](V)}, **ROLES).fitted_.schema.blocks[0]
    assert str(block.kind) == "categorical"
    assert block.levels is not None
    assert len(block.levels) == len(set(V % (2 if len(block.levels) == 2 else 3)))
    for refused in (lambda: TSLS().fit_table({**BASE, "w": LEVELS[name](W)}, **ROLES),
                    lambda: plain.predict(1.0, {"v": LEVELS[name](V)})):  # fmt: skip
        with pytest.raises(BGMIVError):
            refused()


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_column_is_refused(name: str, plain: TSLS) -> None:
    for role in ("v", other_role(name, REFUSED)):
        with pytest.raises(BGMIVError):
            TSLS().fit_table({**BASE, role: REFUSED[name](BASE[role])}, **ROLES)
    if name not in ("constant", "denormal", "one short", "twice as long"):
        with pytest.raises(BGMIVError):
            plain.predict(1.0, {"v": REFUSED[name](V)})


NAMES: list[Any] = [
    *(
        "",
        " ",
        "a b",
        "ü",
        "名前",
        "🦄",
        "a`b",
        "``",
        "__class__",
        "np",
        "C",
        "I",
        "bs",
        "1",
        "1e5",
        "-1",
        "0",
        "y ~ x",
    ),
    *("a:b", "a+b", "I(a)", "a.b", "a[0]", "{a}", "'", '"', "\\", "\n", "\t", "\0", "\x1b[31m", "\u202e", "a" * 10_000),
    *(
        "\udcff",
        "=cmd()",
        "covariates",
        "treatment",
        "outcome",
        "instrument_0",
        "Intercept",
        "index",
        "row",
        "all rows",
    ),
    *("None", "nan", "True", "lambda", "a=b", "%s", "{}", "a,b", "<b>", "$x_1$", "_", 0, 1.5, None, True),
    *(("a", "b"), b"a", float("nan"), np.int64(3), DAY, pd.Timestamp("2000"), frozenset([1]), Text("sub")),
]
NO_NAMES = {"\udcff"}
NOT_IN_FORMULAS = {"", "``", "a`b", "1", "\\", *NO_NAMES}


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:20])
def test_names(name: Any, plain: TSLS) -> None:
    table = {key: values for key, values in BASE.items() if key != "v"} | {name: V}
    frame = pd.DataFrame(BASE)
    frame.columns = pd.Index([*list("yxw"), name], dtype=object)
    asked = [
        lambda: TSLS().fit_table(table, **{**ROLES, "covariates": [str(name)]}).predict(1.0, table),
        lambda: TSLS().fit_table(frame, **{**ROLES, "covariates": [str(name)]}).predict(1.0, frame),
        lambda: TSLS().fit_formula(f"y ~ `{name}` + [x ~ w]", table).predict(1.0, table),
    ]
    for ask, refused in zip(asked, (NO_NAMES, NO_NAMES, NOT_IN_FORMULAS), strict=True):
        if isinstance(name, str) and name in refused:
            with pytest.raises(BGMIVError):
                ask()
        else:
            np.testing.assert_allclose(ask(), plain.predict(1.0, BASE))


ROWS = pd.DataFrame({"v": V[:3], "g": ["a", "b", "a"]})
TAKEN: dict[str, Any] = {
    "list of rows": ROWS.to_numpy().tolist(),
    "dict of lists": ROWS.to_dict("list"),
    "polars": pl.from_pandas(ROWS),
    "pyarrow": pa.Table.from_pandas(ROWS),
    "index with repeats": ROWS.set_axis([0, 0, 0]),
    "a subclass": type("Mine", (pd.DataFrame,), {})(ROWS),
    "other order and more": ROWS[["g", "v"]].assign(z=object()),
    "levels as categories": ROWS.assign(g=pd.Categorical(ROWS["g"], categories=["b", "a", "z"])),
    "objects": ROWS.astype(object),
}
NOT_TAKEN: dict[str, Any] = {
    "none": None,
    "list of dicts": ROWS.to_dict("records"),
    "dict of scalars": {"v": 1, "g": "a"},
    "one row as a series": ROWS.iloc[0],
    "lazy": pl.from_pandas(ROWS).lazy(),
    "record batches": pa.Table.from_pandas(ROWS).to_reader(),
    "no rows": ROWS.iloc[:0],
    "no columns": ROWS[[]],
    "a column in the index": ROWS.set_index("v"),
    "columns of two levels": ROWS.set_axis(pd.MultiIndex.from_tuples([("v", "a"), ("g", "b")]), axis=1),
    "a file's name": "rows.csv",
    "a path": Path("rows.csv"),
    "a number": 3,
    "a generator": (row for row in [1]),
    "a zip": zip([1], ["a"], strict=True),
    "records": np.rec.array([(1, "a")], dtype=[("v", "f8"), ("g", "U1")]),
    "capitals": ROWS.rename(columns=str.upper),
    "names with blanks": ROWS.rename(columns=lambda name: f"{name} "),
    "levels as bytes": ROWS.assign(g=[b"a"] * 3),
    "levels as numbers": ROWS.assign(g=1),
    "numbers as words": ROWS.astype({"v": str}),
    "three dimensions": np.zeros((3, 2, 1)),
    "a set": frozenset([1]),
    "a class": dict,
}


@pytest.fixture(scope="module")
def levelled() -> TSLS:
    table = {**BASE, "g": np.array(["a", "b"])[np.arange(N) // 2 % 2]}
    return TSLS().fit_table(table, **{**ROLES, "covariates": ["v", "g"]})


@pytest.mark.parametrize("name", [*TAKEN, *NOT_TAKEN])
def test_tables_to_predict_for(name: str, levelled: TSLS) -> None:
    if name in TAKEN:
        np.testing.assert_allclose(levelled.predict(1.0, TAKEN[name]), levelled.predict(1.0, ROWS))
        return
    with pytest.raises(BGMIVError):
        levelled.predict(1.0, NOT_TAKEN[name])
