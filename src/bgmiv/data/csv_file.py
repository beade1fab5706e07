"""CSV files: one reader for every installation, which reads a file as it is written or says where it cannot.

Python's `csv` module splits the lines, strictly; columns become numbers, booleans or words here, so that nothing
depends on which libraries are there. A column of numbers at first and words later is read again, as words.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgmiv.data.messages import plural
from bgmiv.errors import DataError

__all__ = ["CSVContent", "CSVFormat", "guarded", "read_csv"]

_MISSING = ("", "NA", "N/A", "n/a", "<NA>", "NaN", "nan", "null", "NULL", "None")
_UTF8 = ("utf-8", "utf8", "utf_8")
# Those of UTF-32 begin with those of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
_TRUTH = {"true": True, "false": False}
# Also in the wide forms of East Asian scripts, which spreadsheets take for the same.
_FORMULA_SIGNS = tuple("=+-@\t\r\n＝＋－＠")
_OTHER_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}

_CHUNK_CELLS = 50_000
_MAX_COLUMNS = 100_000
_MAX_LINE = 1 << 24
# Tables compress by a factor of 3 to 30.
_MAX_EXPANSION, _FREE_EXPANSION = 100, 1 << 24
# Whole numbers up to here are exact as floating-point numbers.
_EXACT = 2**53


@dataclass(frozen=True)
class CSVFormat:
    """How a CSV file is written; the arguments are those of `read_table`."""

    encoding: str = "utf-8"
    delimiter: str = ","
    decimal: str = "."
    na_values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no CSV file is written with."""
        if not isinstance(self.na_values, tuple) or not all(isinstance(word, str) for word in self.na_values):
            raise DataError(f"na_values must be a list of strings, got {self.na_values!r}.")
        if self.decimal not in (".", ","):
            raise DataError(f"decimal must be '.' or ',', got {self.decimal!r}.")
        single = isinstance(self.delimiter, str) and len(self.delimiter) == 1 and self.delimiter.isprintable()
        if not (single or self.delimiter == "\t") or self.delimiter in '" .' or self.delimiter.isalnum():
            raise DataError(f"delimiter must be one sign such as ';' or a tab, got {self.delimiter!r}.")
        if self.delimiter == self.decimal:
            raise DataError(
                "delimiter and decimal are both ','. With decimal=',' fields are separated by delimiter=';'."
            )


Chunk = tuple[str, NDArray[Any]]
"""What some rows of a column hold (whole numbers, numbers, truth, words, nothing), and their values."""


class CSVContent(NamedTuple):
    """The columns of a file, by name, and the line that each row begins in."""

    columns: dict[str, NDArray[Any]]
    lines: NDArray[np.int64]


def read_csv(file: Path, form: CSVFormat) -> CSVContent:
    """The columns of a file, and where its rows are.

    Whole numbers, numbers and booleans are arrays of these; missing values among numbers are NaN. Other columns are
    objects, strings or booleans, with None where a value is missing.

    Raises:
        DataError: the file is not that of a table; the message names line and column.
    """
    names, columns, lines = _read(file, form, frozenset())
    mixed = frozenset(i for i, chunks in enumerate(columns) if _kind(chunks) == "mixed")
    if mixed:
        _, again, _ = _read(file, form, mixed)
        columns = [again[i] if i in mixed else chunks for i, chunks in enumerate(columns)]
    # A first column without a name holds row labels, as pandas and R write them.
    named = {name: _joined(chunks) for name, chunks in zip(names, columns, strict=True) if name}
    return CSVContent(named, np.array(lines, dtype=np.int64))


def guarded(value: object) -> object:
    """A value for a CSV file: words that a spreadsheet would take for a formula get an apostrophe before them.

    >>> guarded("=1+1"), guarded("north"), guarded(-1.5)
    ("'=1+1", 'north', -1.5)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_SIGNS) else value


def _read(file: Path, form: CSVFormat, words: frozenset[int]) -> tuple[list[str], list[list[Chunk]], array[int]]:
    """The names, each column in chunks, and the rows' lines; columns in `words` are not taken for numbers."""
    rows = _rows(file, form)
    _, names = next(rows)
    lines = array("q")
    columns: list[list[Chunk]] = [[] for _ in names]
    missing = frozenset((*_MISSING, *(word.strip() for word in form.na_values)))
    known: list[dict[str, str]] = [{} for _ in names]
    size = max(1, _CHUNK_CELLS // len(names))
    chunk: list[list[str]] = []

    def convert() -> None:
        for i, texts in enumerate(zip(*chunk, strict=True)):
            if names[i]:
                found = None if i in words else _numbers(texts, form, missing)
                columns[i].append(found or _words(texts, missing, known[i]))
        chunk.clear()

    for line, row in rows:
        lines.append(line)
        chunk.append(row)
        if len(chunk) == size:
            convert()
    convert()
    return names, columns, lines


def _rows(file: Path, form: CSVFormat) -> Iterator[tuple[int, list[str]]]:
    """The number and the fields of the line that names the columns, then of every other; all have as many."""
    lines = _Lines(file, form)
    rows = csv.reader(lines, delimiter=form.delimiter, strict=True)
    begin = 1
    names: list[str] = []
    try:
        for row in rows:
            if row:
                if len(row) != len(names):
                    _check_row(row, names, f"line {begin}")
                    names = row
                yield begin, row
            begin = rows.line_num + 1
    except csv.Error as error:
        raise DataError(_quoting(str(error), begin, rows.line_num)) from None
    except UnicodeError:
        raise DataError(_undecoded(file, form.encoding)) from None
    if not names:
        raise DataError("it is empty.")


def _check_row(row: Sequence[str], names: Sequence[str], line: str) -> None:
    """Refuse a row that has not as many fields as the first, which names the columns."""
    if not names:
        return _check_names(row, line)
    have = f"{plural(len(row), 'field')}, and the file has {plural(len(names), 'column')}"
    if len(row) < len(names):
        raise DataError(f"{line} ends before column {names[len(row)]!r}: it has {have}.")
    extra = f"there is no column for {row[len(names)][:80]!r} after {names[-1]!r}"
    raise DataError(f"{line} has {have}: {extra}. Quote fields that hold the delimiter.")


def _check_names(names: Sequence[str], line: str) -> None:
    other = next((sign for sign in _OTHER_DELIMITERS if sign in names[0]), None)
    if len(names) == 1 and other is not None:
        what = f"its fields seem to be separated by {_OTHER_DELIMITERS[other]}"
        raise DataError(f"{line} has one column, {names[0][:80]!r}: {what}. Say delimiter={other!r}.")
    if len(names) > _MAX_COLUMNS:
        raise DataError(f"{line} has {len(names):,} columns, more than {_MAX_COLUMNS:,}.")
    repeated = next((name for name, count in Counter(names).items() if name and count > 1), None)
    if repeated is not None:
        places = " and ".join(str(i + 1) for i, name in enumerate(names) if name == repeated)
        raise DataError(f"{line}: columns {places} have the same name, {repeated!r}. Rename or drop them.")
    unnamed = [i for i, name in enumerate(names) if not name.strip()]
    # Row labels stand first, beside columns.
    if unnamed and (unnamed != [0] or len(names) == 1 or names[0]):
        place = unnamed[-1] + 1
        raise DataError(f"{line}: column {place} has no name. Name it, or drop it.")


def _quoting(error: str, begin: int, line: int) -> str:
    """What `csv` holds against the lines of one row."""
    where = f"line {begin}" if line <= begin else f"lines {begin} to {line}"
    if "limit" in error:
        return f"{where}: a field is longer than {csv.field_size_limit():,} characters. Is a quote never closed?"
    if "end of data" in error:
        return f"{where}: unexpected end of data, a quote is opened and never closed."
    if "expected after" in error:
        return f"{where}: something stands between a closing quote and the delimiter. Write a quote in a field twice."
    return f"{where}: {error}."


class _Lines:
    """The lines of a text file, plain or compressed, none longer than can be held."""

    def __init__(self, file: Path, form: CSVFormat) -> None:
        self.file, self.form = file, form

    def __iter__(self) -> Iterator[str]:
        packed = self.file.name.lower().endswith(".gz")
        allowed = max(_FREE_EXPANSION, _MAX_EXPANSION * self.file.stat().st_size)
        total = number = 0
        with gzip.open(self.file) if packed else self.file.open("rb") as raw, _decoded(raw, self.form.encoding) as text:
            while line := text.readline(_MAX_LINE):
                number += 1
                total += len(line)
                if "\0" in line:
                    raise DataError(f"line {number} holds a zero byte: this is no text, or encoding='utf-16'.")
                if len(line) == _MAX_LINE:
                    raise DataError(f"line {number} is longer than {_MAX_LINE:,} characters.")
                if packed and total > allowed:
                    raise DataError(
                        f"it unpacks to more than {_MAX_EXPANSION} times its size. Unpack it yourself if that is right."
                    )
                yield line


def _decoded(raw: Any, encoding: str) -> io.TextIOWrapper:
    try:
        marked = encoding.lower() in _UTF8 and raw.peek(3).startswith(codecs.BOM_UTF8)
        return io.TextIOWrapper(raw, encoding="utf-8-sig" if marked else encoding, newline="")
    except (LookupError, AttributeError, ValueError):
        raise DataError(f"there is no encoding {encoding!r}. Say encoding='latin-1' or 'utf-16', say.") from None


def _undecoded(file: Path, encoding: str) -> str:
    packed = file.name.lower().endswith(".gz")
    with gzip.open(file) if packed else file.open("rb") as raw:
        start = raw.read(4)
        if start.startswith(b"\x1f\x8b"):
            return "it is compressed by gzip. Give it a name that ends in .csv.gz."
        other = next((name for mark, name in _MARKS.items() if start.startswith(mark)), "utf-8")
        if encoding.lower() not in _UTF8 or other != "utf-8":
            return f"it is not in {encoding}. Say encoding={other!r}, or the one it was saved in."
        raw.seek(0)
        place, number = "it is not in UTF-8", 0
        while line := raw.readline(_MAX_LINE):
            number += 1
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                place = f"line {number} is not in UTF-8 (byte 0x{line[error.start]:02x})"
                break
    return f"{place}. Say encoding='latin-1', or 'cp1252' for a file from Windows, or save it in UTF-8."


def _numbers(texts: Sequence[str], form: CSVFormat, missing: frozenset[str]) -> Chunk | None:
    """Numbers or booleans, if all texts are that or missing."""
    joined = "".join(texts)
    # Python would read 1_000 and digits of other scripts.
    if "_" in joined or not joined.isascii() or (form.decimal == "," and "." in joined):
        return _truth(texts, missing)
    # A word for a missing value may look like a number, such as -9; else they are found by not being one.
    absent = [text.strip() in missing for text in texts] if form.na_values else []
    if form.decimal == ",":
        texts = [text.replace(",", ".") for text in texts]
    if not any(absent):
        try:
            return "whole", np.array(list(map(int, texts)), dtype=np.int64)
        except (ValueError, OverflowError):
            pass
        try:
            return _number(np.array(texts, dtype=np.float64), texts)
        except ValueError:
            absent = absent or [text.strip() in missing for text in texts]
    if all(absent):
        return "nothing", np.full(len(texts), np.nan)
    try:
        values = [np.nan if none else float(text) for text, none in zip(texts, absent, strict=True)]
    except ValueError:
        return _truth(texts, missing)
    return _number(np.array(values), texts)


def _number(values: NDArray[np.float64], texts: Sequence[str]) -> Chunk | None:
    """Numbers, unless a large whole one was rounded: it may be an identifier."""
    large = [(values[i], texts[i].strip(" +-")) for i in np.flatnonzero(np.abs(values) > _EXACT).tolist()]
    exact = all(not text.isdigit() or (len(text) < 300 and int(text) == int(abs(value))) for value, text in large)
    return ("number", values) if exact else None


def _truth(texts: Sequence[str], missing: frozenset[str]) -> Chunk | None:
    found: list[bool | None] = []
    for text in texts:
        folded = text.strip()
        value = _TRUTH.get(folded.lower())
        if value is None and folded not in missing:
            return None
        found.append(value)
    whole = None not in found
    return "truth", np.array(found, dtype=bool if whole else object)


def _words(texts: Sequence[str], missing: frozenset[str], known: dict[str, str]) -> Chunk:
    # A level is one object, however many rows have it.
    found = [None if text.strip() in missing else known.setdefault(text, text) for text in texts]
    values = np.empty(len(found), dtype=object)
    values[:] = found
    return "words", values


def _kind(chunks: Iterable[Chunk]) -> str:
    """What a column holds; "mixed" if its chunks were read as different things."""
    kinds = {kind for kind, _ in chunks} - {"nothing"}
    if kinds == {"whole", "number"}:
        large = any(len(values) and np.abs(values).max() > _EXACT for kind, values in chunks if kind == "whole")
        return "mixed" if large else "number"
    return kinds.pop() if len(kinds) == 1 else "mixed" if kinds else "nothing"


def _joined(chunks: Sequence[Chunk]) -> NDArray[Any]:
    if not chunks:
        return np.zeros(0, dtype=object)
    kind = _kind(chunks)
    parts = [values for _, values in chunks]
    if kind in ("words", "truth"):
        parts = [np.full(len(values), None) if found == "nothing" else values for found, values in chunks]
    return np.concatenate(parts)
