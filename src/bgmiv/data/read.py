"""Files and tables of any library: columns by name, missing values, and the way to `IVData`."""

from __future__ import annotations

import difflib
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from bgmiv.data.blocks import Declaration, category_entries, covariate_label
from bgmiv.data.csv_file import CSVFormat, read_csv
from bgmiv.data.ivdata import Covariance, IVData, checked_sampling
from bgmiv.data.messages import is_missing, listed, name_rows, naming_rows, plural, row_names, setting, warn_user
from bgmiv.data.schema import RoleKind, check_are_levels, holds_words
from bgmiv.data.table import Column, Table, check_distinct, read_columns, wrapped
from bgmiv.errors import DataError, MissingExtraError

__all__ = [
    "ColumnReader",
    "Missing",
    "check_known",
    "check_no_missing",
    "column_names",
    "complete_rows",
    "from_frame",
    "is_table",
    "read_file",
    "read_table",
    "select_columns",
    "table_rows",
    "with_levels",
    "without_missing",
]

Missing = Literal["raise", "drop"]

_SHOWN = 10
_SUFFIXES = {".csv": "csv", ".csv.gz": "csv", ".parquet": "parquet", ".pq": "parquet"}
_AT_PREDICT = "Fill them, or leave such rows out of the table."


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


def read_file(file: Path, form: CSVFormat) -> tuple[Any, NDArray[np.int64] | None]:
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
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{file} cannot be read as {kind}: {first}") from error


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
class ColumnReader:
    """Picks the covariates of a fit, by name, out of later tables with other columns and another order."""

    names: tuple[str, ...]

    def covariates(self, data: Any) -> Table:
        """The covariates of a table; one without columns if the fit had none."""
        return check_no_missing(select_columns(data, self.names))


@naming_rows
def from_frame(
    data: Any,
    *,
    outcome: str,
    treatment: str,
    instruments: str | Sequence[str],
    covariates: str | Sequence[str] | None = None,
    missing: Missing = "raise",
    blocks: Mapping[str, Declaration] | None = None,
    treatment_kind: RoleKind = "auto",
    outcome_kind: RoleKind = "auto",
    sample_weight: str | None = None,
    clusters: str | Sequence[str] | None = None,
    covariance: Covariance = "auto",
) -> IVData:
    """Validated data from the named columns of a table; covariates of strings are categorical.

    Args:
        data: a pandas, polars or pyarrow table, or a mapping of names to arrays; other columns are not looked at.
        outcome, treatment, instruments, covariates: columns' names.
        missing: "raise" to refuse missing values in these columns, "drop" to leave out rows that have one.
        blocks, treatment_kind, outcome_kind, covariance: as in `IVData.from_arrays`.
        sample_weight: the name of the column of sample weights; it may be a covariate too.
        clusters: the name of the column of clusters, or two names to cluster two ways; they may be covariates or
            instruments too.
    """
    asked = {"instruments": _names(instruments, "instruments"), "covariates": _names(covariates, "covariates")}
    for argument, name in (("outcome", outcome), ("treatment", treatment)):
        if not isinstance(name, str):
            raise DataError(f"{argument} must be the name of a column of the table, got {name!r}.")
    sampling = checked_sampling(sample_weight, clusters, {"outcome": [outcome], "treatment": [treatment], **asked})
    used = (outcome, treatment, *asked["instruments"], *asked["covariates"])
    used += tuple(name for names in sampling.values() for name in names)
    table = without_missing(select_columns(data, used), missing)
    columns = {column.name: column for column in table.columns}

    def part(chosen: Iterable[Column]) -> Table:
        return Table(tuple(chosen), table.n_rows, True, table.index)

    known = part(with_levels(columns[name], blocks or ()) for name in asked["covariates"])
    return IVData.from_arrays(
        part([columns[outcome]]),
        part([columns[treatment]]),
        instruments=part(columns[name] for name in asked["instruments"]),
        covariates=known if known.columns else None,
        blocks=blocks,
        treatment_kind=treatment_kind,
        outcome_kind=outcome_kind,
        covariance=covariance,
        **{argument: part(columns[name] for name in names) for argument, names in sampling.items()},
    )


def is_table(data: Any) -> bool:
    """Whether the columns of a container have names: a data frame or a mapping."""
    return isinstance(data, Mapping) or isinstance(wrapped(data, "data"), nw.DataFrame)


def column_names(data: Any) -> tuple[str, ...]:
    """The names of a table's columns."""
    return tuple(_original_names(data))


def table_rows(data: Any) -> int:
    """How many rows a table has."""
    return select_columns(data, ()).n_rows


def check_known(name: str, known: Sequence[str]) -> None:
    """Refuse the name of a column that is not there, with those that are spelt alike."""
    if name in known:
        return
    folded = {other.casefold(): other for other in known}
    close = [folded[match] for match in difflib.get_close_matches(name.casefold(), list(folded), 3, 0.6)]
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    shown = f": {listed(map(repr, known), _SHOWN)}" if known else ""
    raise DataError(f"the table has no column {name!r}.{hint} It has {plural(len(known), 'column')}{shown}.")


def select_columns(data: Any, names: Iterable[str]) -> Table:
    """The columns of these names, each once, in this order."""
    original = _original_names(data)
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        check_known(name, tuple(original))
    if isinstance(data, Mapping):
        table = read_columns({name: data[original[name]] for name in wanted}, "data", "column")
        if not wanted and data:
            name, values = next(iter(data.items()))
            # What only numpy understands need not have a length.
            n = len(values) if hasattr(values, "__len__") else read_columns({name: values}, "data", "column").n_rows
            table = Table((), n, False)
        return table
    frame = wrapped(data, "data")
    # By place: names need not be strings.
    places = {name: i for i, name in enumerate(original)}
    table = read_columns(frame[:, [places[name] for name in wanted]].to_native(), "data", "column")
    return table._replace(n_rows=len(frame))


def complete_rows(data: Any, names: Iterable[str]) -> NDArray[np.bool_]:
    """Which rows of a table have a value in each of these columns: those that `missing="drop"` keeps."""
    return ~_missing_values(select_columns(data, names))[0]


def check_no_missing(table: Table, fix: str = _AT_PREDICT) -> Table:
    """The table, or an error that counts its missing values."""
    bad, where = _missing_values(table)
    if bad.any():
        rows = f"{int(bad.sum())} of {table.n_rows} rows ({row_names(bad)})"
        raise DataError(f"there are missing values in {where}, in {rows}. {fix}")
    return _with_plain_numbers(table)


def without_missing(table: Table, missing: Missing) -> Table:
    """The table for a fit: without the rows in which a value is missing, or an error that counts them."""
    if missing not in get_args(Missing):
        raise DataError(f"missing must be 'raise' or 'drop', got {missing!r}.")
    if missing == "drop":
        table = _complete(table)
    fix = f"Fill them, or leave such rows out with {setting('missing', 'drop')}."
    table = check_no_missing(table, fix)
    if table.n_rows < 2:
        raise DataError(f"the table has {'one row' if table.n_rows else 'no rows: it is empty'}. Pass at least two.")
    return table


def _complete(table: Table) -> Table:
    bad, where = _missing_values(table)
    if not bad.any():
        return table
    left = int((~bad).sum())
    if left == 0:
        raise DataError(f"every one of the {table.n_rows} rows has a missing value: {where}. Use fewer columns.")
    warn_user(f"{int(bad.sum())} of {table.n_rows} rows are dropped for missing values in {where}; {left} are left.")
    name_rows(np.flatnonzero(~bad))
    kept = tuple(column._replace(values=column.values[~bad]) for column in table.columns)
    return Table(kept, left, table.named, None if table.index is None else table.index[~bad])


def _missing_values(table: Table) -> tuple[NDArray[np.bool_], str]:
    """Which rows have a missing value, and how many there are in which columns."""
    masks = {column.name: _missing_rows(column.values) for column in table.columns}
    counts = [f"{name!r} ({int(mask.sum())})" for name, mask in masks.items() if mask.any()]
    where = ", ".join(counts[:_SHOWN])
    where += f" and {len(counts) - _SHOWN} more columns" if len(counts) > _SHOWN else ""
    return np.logical_or.reduce([np.zeros(table.n_rows, dtype=bool), *masks.values()]), where


def _missing_rows(values: NDArray[Any]) -> NDArray[np.bool_]:
    kind = values.dtype.kind
    if kind in "fc":
        bad = np.isnan(values)
    elif kind in "Mm":
        bad = np.isnat(values)
    elif kind in "OT":
        bad = np.array([is_missing(entry) for entry in values.ravel().tolist()], dtype=bool).reshape(values.shape)
    else:
        return np.zeros(len(values), dtype=bool)
    return np.asarray(bad.any(axis=tuple(range(1, bad.ndim))))


def _with_plain_numbers(table: Table) -> Table:
    """The table, with numbers that a library gave as objects, because some were missing, as numbers."""

    def plain(column: Column) -> Column:
        if column.categorical or column.values.dtype.kind != "O" or column.values.ndim > 1 or len(column.values) == 0:
            return column
        entries = column.values.tolist()
        numbers = all(isinstance(entry, bool | int | float | np.number | np.bool_) for entry in entries)
        try:
            return column._replace(values=np.array(entries)) if numbers else column
        # A subclass of numbers may do as it likes; the column is then refused by its name.
        except Exception:
            return column

    return table._replace(columns=tuple(map(plain, table.columns)))


def with_levels(column: Column, declared: Container[str]) -> Column:
    """The covariate, known as categorical if it holds undeclared strings that are no numbers or identifiers."""
    if column.name in declared or column.categorical or column.values.ndim != 1 or not holds_words(column):
        return column
    label = covariate_label(column.name)
    fix = f"Convert it to numbers, or declare it with {setting('blocks', 'categorical', column.name)}."
    check_are_levels(category_entries(column, label), label, fix)
    return column._replace(categorical=True)


def _original_names(data: Any) -> dict[str, Any]:
    if isinstance(data, Mapping):
        check_distinct(data, "data")
        return {str(name): name for name in data}
    frame = wrapped(data, "data")
    if not isinstance(frame, nw.DataFrame):
        hint = " Call .collect() on it first." if hasattr(data, "collect") else ""
        raise DataError(
            "data must be a pandas, polars or pyarrow table, or a mapping of names to columns, got "
            f"{type(data).__name__}.{hint}"
        )
    check_distinct(frame.columns, "data")
    return {str(name): name for name in frame.columns}


def _names(names: str | Sequence[str] | None, argument: str) -> tuple[str, ...]:
    if names is None:
        return ()
    listed = (names,) if isinstance(names, str) else tuple(names)
    for name in listed:
        if not isinstance(name, str):
            raise DataError(f"{argument} must be names of columns of the table, got {name!r} among them.")
        if listed.count(name) > 1:
            raise DataError(f"{argument} name the column {name!r} twice. Name it once.")
    return listed
