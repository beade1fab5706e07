"""Tables in files: CSV and Parquet are read as they are written, or an error says where they are no tables.

Tables of results are written as LaTeX, CSV and Excel, in which no word of the data acts as a command or a formula.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import math
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bgmiv._io import write_whole
from bgmiv.data.messages import Codes, first_line, plural, setting
from bgmiv.errors import DataError, MissingExtraError, printable

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LATEX_SIGNS", "CSVFormat", "Tabular", "guarded", "read_csv", "read_file", "read_table"]

_MISSING = ("", "NA", "N/A", "n/a", "<NA>", "NaN", "nan", "null", "NULL", "None")
_SUFFIXES = {".csv": "csv", ".csv.gz": "csv", ".parquet": "parquet", ".pq": "parquet"}
_UTF8 = ("utf-8", "utf8", "utf_8")
# Those of UTF-32 begin with those of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
# Also in the wide forms of East Asian scripts, which spreadsheets take for the same.
_FORMULA_SIGNS = tuple("=+-@\t\r\n＝＋－＠")
_OTHER_DELIMITERS = (";", "\t", "|")

# Whole numbers up to here are exact as floating-point numbers.
_EXACT = 2**53


def read_table(
    path: str | Path,
    *,
    encoding: str = "utf-8",
    delimiter: str = ",",
    decimal: str = ".",
    na_values: str | Sequence[str] = (),
) -> Any:
    """Read a CSV or Parquet file, by the end of its name.

    Empty fields and the usual words for "no value" (NA, NaN, null, None) are missing values. In a CSV file the first
    line names the columns and every line has as many fields as it; a first column without a name holds row labels, as
    pandas and R write them, and is left out.

    Args:
        path: a file whose name ends in .csv, .csv.gz, .parquet or .pq.
        encoding: of a CSV file, such as "latin-1"; a byte order mark is left out.
        delimiter: what separates the fields of a CSV file, such as ";".
        decimal: the decimal sign of a CSV file, "." or ",".
        na_values: further words for "no value" in a CSV file, such as "." or ["-9", "#N/A"].

    Returns:
        A pandas DataFrame.

    Raises:
        DataError: the file is not there, is of another kind, or cannot be read; the message names line and column.
        MissingExtraError: the file is Parquet and pyarrow is not installed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "wages.csv")
        ...     _ = file.write_text("wage,region\\n9.5,north\\n7,south\\n")
        ...     read_table(file)
           wage region
        0   9.5  north
        1   7.0  south
    """
    words = (na_values,) if isinstance(na_values, str) else tuple(na_values)
    return read_file(Path(path), CSVFormat(encoding, delimiter, decimal, words))[0]


def read_file(file: Path, form: CSVFormat) -> tuple[Any, Codes | None]:
    """The table of a file as `read_table` gives it, and the line of each row of a CSV file."""
    kind = next((kind for suffix, kind in _SUFFIXES.items() if file.name.lower().endswith(suffix)), None)
    if kind is None:
        raise DataError(f"{file} is neither CSV nor Parquet by its name. Pass a file ending in {', '.join(_SUFFIXES)}.")
    # Path.is_file raises for a name that is too long.
    if not os.path.isfile(file):
        what = "it is a folder, a pipe or a broken link" if os.path.lexists(file) else "there is no such file"
        raise DataError(f"{file}: {what}.")
    try:
        if kind == "parquet":
            return _read_parquet(file), None
        return read_csv(file, form)
    except MissingExtraError:
        raise
    # Each library has exceptions of its own for a damaged file.
    except Exception as error:
        raise DataError(f"{file} cannot be read as {kind}: {first_line(error)}") from error


def _read_parquet(file: Path) -> Any:
    try:
        from pyarrow import parquet, types
    except ImportError:
        raise MissingExtraError(f"{file}: Parquet files need pyarrow: pip install pyarrow") from None
    table = parquet.read_table(file)
    for i, field in enumerate(table.schema):
        if types.is_decimal(field.type):
            table = table.set_column(i, field.name, table.column(i).cast("float64"))
    # What pandas wrote as its index is a column here, as in any other library.
    return table.to_pandas(ignore_metadata=True, date_as_object=False)


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
            fix = f"With {setting('decimal', ',')} fields are separated by {setting('delimiter', ';')}."
            raise DataError(f"delimiter and decimal are both ','. {fix}")


def read_csv(file: Path, form: CSVFormat) -> tuple[pd.DataFrame, Codes]:
    """The table of a file, and the line that each row begins in.

    Whole numbers, numbers and booleans are columns of these; missing values among numbers are NaN. Other columns are
    strings, or objects where booleans are missing.

    Raises:
        DataError: the file is not that of a table; the message names line and column.
    """
    import pandas as pd

    missing = {*_MISSING, *(word.strip() for word in form.na_values)}
    # Pandas reads rows that are checked and written anew in the one way that it cannot misread: by itself it would fill
    # up short lines, read over a quote that is never closed, and shift columns after a blank line of an old Mac.
    text = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
    writer = csv.writer(text)
    names: list[str] = []
    lines: list[int] = []
    for line, row in _rows(file, form):
        names = names or row
        lines.append(line)
        # Blanks may stand around the words for "no value"; around numbers pandas leaves them out itself.
        writer.writerow(["" if field.strip() in missing else field for field in row])
    options: dict[str, Any] = {
        "header": 0, "names": names, "index_col": False, "decimal": form.decimal, "skip_blank_lines": False,
        "keep_default_na": False, "na_values": list(missing), "low_memory": False,
    }  # fmt: skip
    if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1):
        # Later versions read every number exactly.
        options["float_precision"] = "round_trip"
    text.seek(0)
    table = pd.read_csv(text, **options)
    large = [name for name in table if _is_large(table[name], missing)]
    if large:
        text.seek(0)
        exact = pd.read_csv(text, dtype=dict.fromkeys(large, object), **options)
        identifiers = [name for name in large if exact[name].str.strip(" +-").str.isdigit().any()]
        table = table.assign(**{name: exact[name] for name in identifiers})
    # A first column without a name holds row labels, as pandas and R write them.
    return table.drop(columns="", errors="ignore"), np.array(lines[1:], dtype=np.int64)


def _is_large(column: pd.Series[Any], missing: set[str]) -> bool:
    """Whether a column holds whole numbers too large to be exact, which may be identifiers."""
    if column.dtype == np.float64:
        return bool((column.abs() > _EXACT).any())
    return column.dtype.kind == "O" and any(type(value) is int or value in missing for value in column.unique())


def _rows(file: Path, form: CSVFormat) -> Iterator[tuple[int, list[str]]]:
    """The number and the fields of the line that names the columns, then of every other; all have as many."""
    names: list[str] = []
    begin = 1
    with _opened(file, form) as text:
        rows = csv.reader(_lines(text), delimiter=form.delimiter, strict=True)
        try:
            for row in rows:
                if row and not names:
                    _check_names(row, f"line {begin}")
                    names = row
                if row:
                    _check_row(row, names, begin)
                    yield begin, row
                begin = rows.line_num + 1
        except csv.Error as error:
            where = f"line {begin}" if rows.line_num <= begin else f"lines {begin} to {rows.line_num}"
            fix = "Is a quote never closed, or one within a field not written twice?"
            raise DataError(f"{where}: {error}. {fix}") from None
        except UnicodeError:
            raise DataError(_undecoded(file, form.encoding)) from None
    if not names:
        raise DataError("it is empty.")


def _lines(text: io.TextIOWrapper) -> Iterator[str]:
    """The lines of a text, which hold no zero byte."""
    for number, line in enumerate(text, 1):
        if "\0" in line:
            encoding = setting("encoding", "utf-16")
            raise DataError(f"line {number} holds a zero byte: this is no text, or {encoding}.")
        yield line


def _check_row(row: Sequence[str], names: Sequence[str], line: int) -> None:
    if len(row) == len(names):
        return
    have = f"line {line} has {plural(len(row), 'field')}, and the file has {plural(len(names), 'column')}"
    if len(row) < len(names):
        raise DataError(f"{have}: it ends before column {names[len(row)]!r}.")
    raise DataError(
        f"{have}: there is no column for {row[len(names)][:80]!r} after {names[-1]!r}. Quote fields that hold the "
        "delimiter."
    )


def _check_names(names: Sequence[str], line: str) -> None:
    other = next((sign for sign in _OTHER_DELIMITERS if sign in names[0]), None)
    if len(names) == 1 and other is not None:
        raise DataError(
            f"{line} has one column, {names[0][:80]!r}: its fields seem to be separated by {other!r}. Say "
            f"{setting('delimiter', other)}."
        )
    repeated = next((name for name, count in Counter(names).items() if name and count > 1), None)
    if repeated is not None:
        places = " and ".join(str(i + 1) for i, name in enumerate(names) if name == repeated)
        raise DataError(f"{line}: columns {places} have the same name, {repeated!r}. Rename or drop them.")
    unnamed = [i for i, name in enumerate(names) if not name.strip()]
    # Row labels stand first, beside columns.
    if unnamed and (unnamed != [0] or len(names) == 1 or names[0]):
        raise DataError(f"{line}: column {unnamed[-1] + 1} has no name. Name it, or drop it.")


def _opened(file: Path, form: CSVFormat) -> io.TextIOWrapper:
    """The text of a file, plain or compressed."""
    raw: Any = _bytes(file)
    try:
        # A mark of the order of bytes may stand before it.
        encoding = "utf-8-sig" if form.encoding.lower() in _UTF8 else form.encoding
        return io.TextIOWrapper(raw, encoding=encoding, newline="")
    except (LookupError, AttributeError, ValueError):
        raw.close()
        say = setting("encoding", "latin-1")
        raise DataError(f"there is no encoding {form.encoding!r}. Say {say} or 'utf-16', say.") from None


def _bytes(file: Path) -> Any:
    return gzip.open(file) if file.name.lower().endswith(".gz") else file.open("rb")


def _undecoded(file: Path, encoding: str) -> str:
    with _bytes(file) as raw:
        start = raw.peek(4)
        if start.startswith(b"\x1f\x8b"):
            return "it is compressed by gzip. Give it a name that ends in .csv.gz."
        other = next((name for mark, name in _MARKS.items() if start.startswith(mark)), "utf-8")
        if encoding.lower() not in _UTF8 or other != "utf-8":
            return f"it is not in {encoding}. Say {setting('encoding', other)}, or the one it was saved in."
        try:
            raw.read().decode()
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            place = f"line {line} is not in UTF-8 (byte 0x{error.object[error.start]:02x})"
    return f"{place}. Say {setting('encoding', 'latin-1')}, or 'cp1252' for a file from Windows, or save it in UTF-8."


def guarded(value: object) -> object:
    """A value for a CSV file: words that a spreadsheet would take for a formula get an apostrophe before them.

    >>> guarded("=1+1"), guarded("north"), guarded(-1.5)
    ("'=1+1", 'north', -1.5)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_SIGNS) else value


_NAMES = {
    "\\": "backslash", "~": "asciitilde", "^": "asciicircum", "<": "less", ">": "greater", "|": "bar", '"': "quotedbl",
}  # fmt: skip

LATEX_SIGNS = {sign: f"\\{sign}" for sign in "{}$&#%_"} | {sign: f"\\text{name}{{}}" for sign, name in _NAMES.items()}
"""What stands in LaTeX for signs that it would obey."""

_LATEX = str.maketrans(LATEX_SIGNS | {"[": "{[}", "]": "{]}", "\n": " "})


class Tabular(ABC):
    """A result that is a table: as a DataFrame, and from it as LaTeX or a file.

    Example:
        >>> from bgmiv.intervals import Interval
        >>> print(Interval(2.0, 1.5, 2.5, 0.95, {"sampling": 0.25}, 0.9, name="ate_x").to_latex())
        \\begin{tabular}{lrrrrr}
        \\toprule
         & estimate & std\\_error & lower & upper & in\\_support \\\\
        \\midrule
        ate\\_x & $2$ & $0.25$ & $1.5$ & $2.5$ & $0.9$ \\\\
        \\bottomrule
        \\end{tabular}
    """

    @abstractmethod
    def to_frame(self) -> pd.DataFrame:
        """The result as a table."""

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html(float_format="{:.4g}".format))

    def to_latex(self, *, digits: int = 4) -> str:
        """The table as a LaTeX tabular with the rules of booktabs; numbers have so many digits."""
        frame = _flat(self.to_frame())
        rows = [[_latex_cell(value, digits) for value in row] for row in frame.itertuples(index=False, name=None)]
        kinds = "".join("l" if any(cell[:1] != "$" and cell != "--" for cell in cells) else "r"
                        for cells in zip(*rows, strict=True)) or "l" * frame.shape[1]  # fmt: skip
        names = [_latex_cell("" if name == "index" else str(name), digits) for name in frame.columns]
        body = [" & ".join(cells) + " \\\\" for cells in (names, *rows)]
        head = [f"\\begin{{tabular}}{{{kinds}}}", "\\toprule", body[0], "\\midrule"]
        return "\n".join([*head, *body[1:], "\\bottomrule", "\\end{tabular}"])

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write the table as CSV; words that a spreadsheet would take for a formula get an apostrophe before them."""
        text = _guarded(self.to_frame()).to_csv(index=False, lineterminator="\n")
        write_whole(Path(path), text.encode("utf-8", "surrogatepass"))
        return Path(path)

    def to_excel(self, path: str | os.PathLike[str]) -> Path:
        """Write the table as a sheet of Excel, guarded as by `to_csv`.

        Raises:
            MissingExtraError: openpyxl is not installed.
        """
        content = io.BytesIO()
        try:
            _guarded(self.to_frame()).to_excel(content, index=False, engine="openpyxl")
        except ImportError:
            raise MissingExtraError("Excel files need openpyxl: pip install openpyxl") from None
        write_whole(Path(path), content.getvalue())
        return Path(path)


def _flat(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with its index as columns; one that only numbers the rows is left out."""
    import pandas as pd

    return frame if isinstance(frame.index, pd.RangeIndex) and frame.index.name is None else frame.reset_index()


def _guarded(frame: pd.DataFrame) -> pd.DataFrame:
    return _flat(frame).map(guarded).rename(columns=lambda name: guarded(str(name)))


def _latex_cell(value: Any, digits: int) -> str:
    # Numbers of NumPy as Python's.
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, str | bool) or not isinstance(value, int | float):
        return "" if value is None else printable(value).translate(_LATEX)
    return "--" if math.isnan(value) else f"${value:.{digits}g}$".replace("inf", "\\infty")
