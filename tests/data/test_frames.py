"""Tables by column names: every library, missing values, files, and `fit_table`."""

from __future__ import annotations

import gzip
import sys
import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bgmiv
from bgmiv import TSLS
from bgmiv.data.ivdata import from_frame
from bgmiv.data.table import column_names, select_columns, without_missing
from bgmiv.errors import BGMIVWarning, DataError, MissingExtraError

rng = np.random.default_rng(0)
N = 60
COLUMNS = {
    "wage": rng.normal(size=N),
    "educ": rng.normal(size=N),
    "near": rng.normal(size=N),
    "age": rng.integers(20, 60, N),
    "black": rng.random(N) < 0.5,
    "region": rng.choice(["north", "south", "west"], N),
    "unused": rng.choice(["1", "2"], N),
}
ROLES: dict[str, Any] = {
    "outcome": "wage",
    "treatment": "educ",
    "instruments": ["near"],
    "covariates": ["age", "black", "region"],
}
TABLES = {
    "mapping": dict,
    "pandas": pd.DataFrame,
    "polars enum": lambda columns: pl.DataFrame(columns).with_columns(
        pl.col("region").cast(pl.Enum(["north", "south", "west"]))
    ),
    "pyarrow": lambda columns: pa.table({name: pa.array(values) for name, values in columns.items()}),
}


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)
def test_every_library_gives_the_same_data(make: Any) -> None:
    reference, data = from_frame(COLUMNS, **ROLES), from_frame(make(COLUMNS), **ROLES)
    assert data.schema == reference.schema
    np.testing.assert_array_equal(data.covariates, reference.covariates)
    assert [(block.name, str(block.kind)) for block in data.schema.blocks] == [
        ("age", "continuous"),
        ("black", "binary"),
        ("region", "categorical"),
    ]
    names = (data.schema.outcome.name, data.schema.treatment.name, data.schema.instruments)
    assert names == ("wage", "educ", ("near",))


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)
def test_predict_takes_the_same_columns_in_any_order_among_others(make: Any) -> None:
    model = TSLS().fit_table(COLUMNS, **ROLES)
    later = {name: values[:5] for name, values in reversed(COLUMNS.items())}
    by_hand = TSLS().fit(
        COLUMNS["wage"],
        COLUMNS["educ"],
        instruments=COLUMNS["near"],
        covariates={name: COLUMNS[name] for name in ROLES["covariates"]},
        blocks={"region": "categorical"},
    )
    expected = by_hand.predict(1.0, {name: later[name] for name in ROLES["covariates"]})
    np.testing.assert_allclose(model.predict(1.0, make(later)), expected)
    np.testing.assert_allclose(model.predict(np.ones(5), make(later)), expected)


def test_predict_refuses_unseen_levels_absent_columns_and_missing_values() -> None:
    model = TSLS().fit_table(COLUMNS, **ROLES)
    later = pd.DataFrame(COLUMNS).head(3)
    with pytest.raises(DataError, match=r"'region' has levels unseen at fit, 'east'.*known levels: .*'north'"):
        model.predict(0.0, later.assign(region="east"))
    with pytest.raises(DataError, match="no column 'age'"):
        model.predict(0.0, later.drop(columns="age"))
    with pytest.raises(DataError, match=r"missing values in 'age' \(1\).*leave such rows out of the table\.$"):
        model.predict(0.0, later.assign(age=[1.0, np.nan, 2.0]))


def test_without_covariates_a_table_only_says_how_many_rows() -> None:
    model = TSLS().fit_table(COLUMNS, outcome="wage", treatment="educ", instruments="near")
    assert model.predict(0.5, pd.DataFrame(COLUMNS).head(4)).shape == (4,)
    assert model.predict(0.5, {"age": [1, 2]}).shape == (2,)
    assert model.predict(0.5).shape == (1,)


def test_a_later_fit_on_arrays_forgets_the_table() -> None:
    model = TSLS().fit_table(COLUMNS, **ROLES)
    model.fit(COLUMNS["wage"], COLUMNS["educ"], instruments=COLUMNS["near"], covariates={"age": COLUMNS["age"]})
    with pytest.raises(DataError, match="which the fit had not"):
        model.predict(0.0, COLUMNS)


def test_blocks_can_still_be_declared() -> None:
    data = from_frame(
        COLUMNS | {"age": COLUMNS["age"] % 3}, **ROLES, blocks={"age": "categorical", "region": "categorical"}
    )
    assert [block.width for block in data.schema.blocks] == [3, 1, 3]
    embedded = COLUMNS | {"text": rng.normal(size=(N, 4))}
    data = from_frame(embedded, **ROLES | {"covariates": ["age", "text"]})
    assert [str(block.kind) for block in data.schema.blocks] == ["continuous", "vector"]


MISSING = {
    "pandas nan": lambda: pd.DataFrame(COLUMNS).assign(age=np.r_[np.nan, COLUMNS["age"][1:]]),
    "pandas NA": lambda: pd.DataFrame(COLUMNS).assign(age=pd.array([None, *COLUMNS["age"][1:]], dtype="Int64")),
    "pandas None": lambda: pd.DataFrame(COLUMNS).assign(age=pd.Series([None, *COLUMNS["age"][1:]], dtype=object)),
    "polars null": lambda: pl.DataFrame(COLUMNS | {"age": pl.Series([None, *COLUMNS["age"][1:].tolist()])}),
    "pyarrow null": lambda: pa.table(
        {k: pa.array(v) for k, v in COLUMNS.items()} | {"age": pa.array([None, *COLUMNS["age"][1:].tolist()])}
    ),
    "mapping": lambda: COLUMNS | {"age": [None, *COLUMNS["age"][1:].tolist()]},
}


@pytest.mark.parametrize("make", MISSING.values(), ids=MISSING)
def test_missing_values_are_named_or_dropped(make: Any) -> None:
    with pytest.raises(DataError, match=r"missing values in 'age' \(1\), in 1 of 60 rows \(row \d+\).*missing='drop'"):
        from_frame(make(), **ROLES)
    with pytest.warns(BGMIVWarning, match=r"1 of 60 rows are dropped for missing values in 'age' \(1\); 59 are left"):
        data = from_frame(make(), **ROLES, missing="drop")
    whole = from_frame(COLUMNS, **ROLES)
    np.testing.assert_array_equal(data.covariates[:, 0], whole.covariates[1:, 0])
    np.testing.assert_array_equal(data.outcome, whole.outcome[1:])
    assert str(data.schema.blocks[0].kind) == "continuous"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("region", [None, *COLUMNS["region"][1:].tolist()]),
        ("black", [None, *COLUMNS["black"][1:].tolist()]),
        ("wage", [float("nan"), *COLUMNS["wage"][1:].tolist()]),
    ],
)
@pytest.mark.parametrize("library", [pl.DataFrame, pd.DataFrame, pa.table])
def test_words_booleans_and_outcomes_may_be_missing(library: Any, name: str, values: list[Any]) -> None:
    columns = {key: list(value) for key, value in COLUMNS.items()} | {name: values}
    columns = {key: [v.item() if isinstance(v, np.generic) else v for v in value] for key, value in columns.items()}
    with pytest.warns(BGMIVWarning, match=f"'{name}'"):
        data = from_frame(library(columns), **ROLES, missing="drop")
    assert data.n_rows == N - 1
    assert [str(block.kind) for block in data.schema.blocks] == ["continuous", "binary", "categorical"]


def test_times_may_be_missing_too() -> None:
    table = select_columns(pd.DataFrame({"day": pd.to_datetime(["2020-01-01", None])}), ["day"])
    with pytest.raises(DataError, match=r"'day' \(1\)"):
        without_missing(table, "raise")


def test_the_warning_points_at_the_caller() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        TSLS().fit_table(MISSING["pandas nan"](), **ROLES, missing="drop")
    assert {warning.filename for warning in caught} == {__file__}


def test_columns_that_are_not_used_are_not_looked_at() -> None:
    frame = pd.DataFrame(COLUMNS).assign(unused=np.nan, other=[[1, 2]] * N)
    assert from_frame(frame, **ROLES).n_rows == N


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outcome": "wge"}, r"no column 'wge'\. Did you mean 'wage' or 'age'\?"),
        ({"treatment": "Educ"}, r"no column 'Educ'\. Did you mean 'educ'\?"),
        ({"covariates": ["xyz"]}, r"no column 'xyz'\. It has 7 columns: 'wage'"),
        ({"covariates": ["near"]}, "'near' is given both"),
        ({"instruments": "educ"}, "'educ' is given both"),
        ({"covariates": ["age", "age"]}, "'age' twice"),
        ({"covariates": ["unused"]}, "strings that are numbers"),
        ({"instruments": []}, "instruments are missing"),
        ({"outcome": None}, "outcome must be the name"),
        ({"covariates": [3]}, "names of columns"),
        ({"missing": "fill"}, "missing must be"),
    ],
)
def test_bad_names_are_explained(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_frame(COLUMNS, **{**ROLES, **changes})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.zeros((3, 2)), "must be a pandas, polars or pyarrow table.*got ndarray"),
        (pl.DataFrame(COLUMNS).lazy(), r"\.collect\(\)"),
        (pd.DataFrame(np.zeros((2, 2)), columns=["wage", "wage"]), "duplicated column names, 'wage'"),
        ({}, "no column 'wage'"),
    ],
)
def test_what_is_no_table_is_refused(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_frame(data, **ROLES)


def test_all_rows_missing() -> None:
    with pytest.raises(DataError, match="every one of the 60 rows has a missing value: 'age'"):
        from_frame(pd.DataFrame(COLUMNS).assign(age=np.nan), **ROLES, missing="drop")


# Files

TEXT = "wage,region,flag,count\n9.5,north,true,1\n,NA,false,2\n7,south,true,\n8,west,false,3\n"


@pytest.mark.parametrize("name", ["wages.CSV", "wages.csv.gz"])
@pytest.mark.parametrize("start", ["", "\ufeff"], ids=["plain", "byte order mark"])
def test_csv(name: str, start: str, tmp_path: Path) -> None:
    file, content = tmp_path / name, (start + TEXT).encode()
    file.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    table = bgmiv.read_table(file)
    assert list(table.columns) == ["wage", "region", "flag", "count"]
    with pytest.raises(DataError, match=r"'wage' \(1\), 'region' \(1\), 'count' \(1\), in 2 of 4 rows"):
        without_missing(select_columns(table, column_names(table)), "raise")
    with pytest.warns(BGMIVWarning, match="2 of 4"):
        kept = without_missing(select_columns(table, column_names(table)), "drop")
    assert [column.values.tolist() for column in kept.columns] == [[9.5, 8.0], ["north", "west"], [True, False], [1, 3]]


def test_numbers_of_a_csv_file_are_exact(tmp_path: Path) -> None:
    numbers = rng.normal(size=500) * 10.0 ** rng.integers(-30, 30, 500)
    (tmp_path / "a.csv").write_text("a\n" + "\n".join(map(repr, numbers.tolist())))
    np.testing.assert_array_equal(bgmiv.read_table(tmp_path / "a.csv")["a"], numbers)


def test_row_labels_are_left_out(tmp_path: Path) -> None:
    frame = pd.DataFrame({"wage": [9.5, 7.0], "note": ["a, b", 'say "c"']}, index=["x", "y"])
    frame.to_csv(tmp_path / "a.csv")
    pd.testing.assert_frame_equal(bgmiv.read_table(tmp_path / "a.csv"), frame.reset_index(drop=True))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty"),
        ("a,b\n1,2\n3\n", "line 3 has 1 field, and the file has 2 columns: it ends before column 'b'"),
        ("a,b\n1,2,x\n3,4\n", "line 2 has 3 fields, and the file has 2 columns: there is no column for 'x' after 'b'"),
        ("a,b\n1,2,\n3,4,\n", "line 2 has 3 fields, and the file has 2 columns: there is no column for '' after 'b'"),
        ("a,b,\n1,2,\n3,4,\n", "line 1: column 3 has no name"),
        ("a,b,a\n1,2,3\n", "line 1: columns 1 and 3 have the same name, 'a'"),
        ('a,b\n1,"2\n3,4\n', "unexpected end of data"),
        ("a,b\n1,\xe9\n".encode("latin-1"), r"line 2 is not in UTF-8 \(byte 0xe9\)\. Say encoding='latin-1'"),
        ("a,\xe9\n1,2\n".encode("latin-1"), r"line 1 is not in UTF-8 \(byte 0xe9\)\. Say encoding='latin-1'"),
        ("a,b\n1,2\n".encode("utf-16"), "it is not in utf-8. Say encoding='utf-16'"),
        ("a,b\n1,2\n".encode("utf-16-le"), "line 1 holds a zero byte"),
        ("a;b\n1,5;2\n", "its fields seem to be separated by ';'. Say delimiter=';'"),
        ("a\tb\n1\t2\n", r"its fields seem to be separated by .*t'. Say delimiter='\\t'"),
        (",,b\n1,2,3\n", "line 1: column 2 has no name"),
        (",\n1,2\n", "line 1: column 2 has no name"),
        ('\n\na,b\n1,"x\ny"z\n', "lines 4 to 5: .* expected after .* not written twice"),
        ('a,b\n1,"' + "x" * 140_000, "line 2: field larger than field limit .131072.. Is a quote never closed"),
    ],
)
def test_damaged_csv_is_refused(text: str | bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=rf"bad\.csv cannot be read as csv: .*{message}"):
        bgmiv.read_table(file)


def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "wages.parquet"
    prices = pa.array([Decimal(i) / 4 for i in range(N)], pa.decimal128(8, 2))
    pq.write_table(TABLES["pyarrow"](COLUMNS).append_column("price", prices), file)
    table = bgmiv.read_table(file)
    np.testing.assert_array_equal(from_frame(table, **ROLES).covariates, from_frame(COLUMNS, **ROLES).covariates)
    np.testing.assert_array_equal(table["price"], np.arange(N) / 4)
    pd.DataFrame(COLUMNS).set_index("region").to_parquet(tmp_path / "index.pq")
    assert from_frame(bgmiv.read_table(tmp_path / "index.pq"), **ROLES).n_rows == N
    (tmp_path / "bad.parquet").write_text("no parquet")
    with pytest.raises(DataError, match=r"bad\.parquet cannot be read as parquet"):
        bgmiv.read_table(tmp_path / "bad.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="pip install pyarrow"):
        bgmiv.read_table(file)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"neither CSV nor Parquet.*\.csv, \.csv\.gz, \.parquet, \.pq"):
        bgmiv.read_table(tmp_path / "wages.xlsx")
    with pytest.raises(DataError, match="no such file"):
        bgmiv.read_table(tmp_path / "wages.csv")


def test_columns_whose_names_are_numbers() -> None:
    wanted = TSLS().fit(COLUMNS["wage"], COLUMNS["educ"], instruments=COLUMNS["near"], covariates=COLUMNS["age"])
    frame = pd.DataFrame(np.column_stack([COLUMNS[name] for name in ("wage", "educ", "near", "age")]))
    found = TSLS().fit_table(frame, outcome="0", treatment="1", instruments="2", covariates=["3"])
    assert found.fitted_.slope == pytest.approx(wanted.fitted_.slope)
    with pytest.raises(DataError, match="the table has no column '4'"):
        TSLS().fit_table(frame, outcome="4", treatment="1", instruments="2")
    with pytest.raises(DataError, match="duplicated column names, '0'"):
        TSLS().fit_table(frame.set_axis([0, "0", 1, 2], axis=1), outcome="0", treatment="1", instruments="2")
