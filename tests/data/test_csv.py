"""CSV files: any bytes are a right table or our error, in bounded time and memory; and how a file may be written."""

from __future__ import annotations

import csv
import gzip
import io
import math
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bgmiv
from bgmiv.data import files
from bgmiv.errors import DataError

MISSING = {"", "NA", "N/A", "n/a", "<NA>", "NaN", "nan", "null", "NULL", "None"}

# Pieces that tear tables apart, and what cells hold.
PIECES = st.sampled_from(
    [*",;\t\n\r\"' \0\x0b\x1c\x85\u2028\ufeff", "\r\n", "a", "b", "1", "-2", "0.5", "1e9", "1e999", "inf", "NaN", "NA"]
    + ["true", "FALSE", "1_0", "٣", "9" * 19, "9" * 320, "x" * 50, '"q"', '"a\nb"', "1,5", "é", "-"]
)
TEXTS = st.lists(PIECES, max_size=40).map("".join)
FILES = st.one_of(
    st.binary(max_size=200),
    TEXTS.map(lambda text: text.encode("utf-8")),
    TEXTS.map(lambda text: f"a,b\n1,2\n{text}".encode()),
    st.lists(st.tuples(PIECES, PIECES), max_size=12).map(
        lambda rows: "\n".join(["a,b", *(f"{one},{other}" for one, other in rows)]).encode("utf-8")
    ),
    TEXTS.map(lambda text: text.encode("utf-16")),
    TEXTS.map(lambda text: text.encode("latin-1", "replace")),
)


def same(value: Any, text: str, kind: str) -> bool:
    """Whether a cell holds what its text says, by a reading of its own."""
    if text.strip() in MISSING:
        return value is None or (isinstance(value, float) and math.isnan(value))
    if kind == "O":
        return bool(value == text) or (isinstance(value, bool) and text.strip().lower() == str(value).lower())
    if kind == "b":
        return text.strip().lower() == str(value).lower()
    number = int(text) if kind in "iu" else float(text)
    return bool(value == number) or (math.isnan(value) and math.isnan(number))


@given(content=FILES)
@settings(max_examples=4 * settings.default.max_examples)
def test_any_bytes_are_a_right_table_or_our_error(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "any.csv"
    file.write_bytes(content)
    try:
        found = files.read_csv(file, files.CSVFormat())[0]
    except DataError:
        return
    text = content.decode("utf-8-sig")
    names, *rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    assert list(found) == [name for name in names if name]
    for name, values in found.items():
        cells = [row[names.index(name)] for row in rows]
        assert len(values) == len(cells)
        assert all(same(v, c, values.dtype.kind) for v, c in zip(values.tolist(), cells, strict=True)), (name, cells)


@given(content=st.binary(max_size=100), name=st.sampled_from(["a.csv", "a.csv.gz", "a.parquet", "a.pq"]))
def test_any_file_is_a_table_or_our_error(content: bytes, name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    try:
        table = bgmiv.read_table(file)
    except DataError:
        return
    assert len(table.columns) > 0


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("line.csv", b"a,b\n1," + b"9" * (1 << 25), "line 2: field larger than field limit"),
        ("columns.csv", b"," * 200_000, "line 1: column 200001 has no name"),
        ("zeros.csv.gz", gzip.compress(bytes(1 << 20)), "holds a zero byte"),
        ("short.csv.gz", gzip.compress(b"a,b\n1,2\n")[:-6], "cannot be read as csv"),
        ("quote.csv", b'a,b\n1,"' + b"x\n" * 1_000_000, "field limit .131072.. Is a quote never closed"),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value else "",
)
def test_time_and_memory_are_bounded(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    begin = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=message):
            bgmiv.read_table(file)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.process_time() - begin < 10
    assert peak < 200_000_000


COLUMNS: dict[str, list[Any]] = {"price": [1.5, -2.25, 1000.0], "café": ["à", "b c", "ü;,"], "n": [1, 2, 3]}


@pytest.mark.parametrize("encoding", ["utf-8", "UTF-8", "latin-1", "cp1252", "utf-16", "utf-8-sig", "iso8859_15"])
@pytest.mark.parametrize(("delimiter", "decimal"), [(",", "."), (";", ","), ("\t", "."), ("|", ",")])
def test_the_ways_a_file_may_be_written(encoding: str, delimiter: str, decimal: str, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    with file.open("w", encoding=encoding, newline="") as text:
        writer = csv.writer(text, delimiter=delimiter)
        writer.writerow(COLUMNS)
        for row in zip(*COLUMNS.values(), strict=True):
            writer.writerow([str(value).replace(".", decimal) if isinstance(value, float) else value for value in row])
    found = bgmiv.read_table(file, encoding=encoding, delimiter=delimiter, decimal=decimal)
    assert found.to_dict("list") == COLUMNS


def test_words_for_missing_values(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("a,b,c,d\n1,.,x,true\n-9,2.5,NA,\n3, ,.,false\n")
    found = bgmiv.read_table(file, na_values=[".", "-9"])
    np.testing.assert_array_equal(found["a"], [1.0, np.nan, 3.0])
    np.testing.assert_array_equal(found["b"], [np.nan, 2.5, np.nan])
    assert found["c"].isna().tolist() == [False, True, True]
    assert found["d"].tolist()[::2] == [True, False]
    assert bgmiv.read_table(file, na_values=".")["a"].tolist() == [1, -9, 3]


def test_a_column_that_turns_out_to_be_words_keeps_its_first_cells(tmp_path: Path) -> None:
    rows = 30_000
    texts = [f"{i:05d}" for i in range(rows)]
    texts[-1] = "x01"
    (tmp_path / "a.csv").write_text("code,n\n" + "".join(f"{text},{i}\n" for i, text in enumerate(texts)))
    found = bgmiv.read_table(tmp_path / "a.csv")
    assert found["code"].tolist() == texts
    assert found["n"].dtype == np.int64


@pytest.mark.parametrize("other", ["", "0.5"])
def test_identifiers_are_not_rounded(other: str, tmp_path: Path) -> None:
    text = f"id,n\n12345678901234567,1\n12345678901234568,2\n{other},3\n"
    (tmp_path / "a.csv").write_text(text)
    found = bgmiv.read_table(tmp_path / "a.csv")["id"]
    assert found.tolist()[:2] == ["12345678901234567", "12345678901234568"]


def test_quoted_line_breaks_are_read_at_any_size(tmp_path: Path) -> None:
    notes = ["two\nlines\r\n" + "x" * 100_000, "b", 'say "c", d']
    with (tmp_path / "a.csv").open("w", newline="") as text:
        csv.writer(text).writerows([["n", "note"], *enumerate(notes * 30)])
    assert bgmiv.read_table(tmp_path / "a.csv")["note"].tolist() == notes * 30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"encoding": "latin-0"}, "there is no encoding 'latin-0'"),
        ({"encoding": "zlib"}, "there is no encoding 'zlib'"),
        ({"encoding": None}, "there is no encoding None"),
        ({"encoding": "utf-16"}, r"it is not in utf-16\. Say encoding='utf-8'"),
        ({"delimiter": ";;"}, "delimiter must be one sign"),
        ({"delimiter": '"'}, "delimiter must be one sign"),
        ({"delimiter": "\n"}, "delimiter must be one sign"),
        ({"delimiter": "1"}, "delimiter must be one sign"),
        ({"delimiter": ""}, "delimiter must be one sign"),
        ({"decimal": ","}, "both ','"),
        ({"decimal": "·"}, "decimal must be"),
        ({"na_values": [3]}, "na_values must be a list of strings"),
    ],
    ids=str,
)
def test_bad_arguments(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,c\n1,2,3\n")
    with pytest.raises(DataError, match=message):
        bgmiv.read_table(tmp_path / "a.csv", **arguments)
