"""Reading tables, arrays, lists and mappings into named columns, without judging their values."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import narwhals as nw
import numpy as np

from bgmiv.data.messages import (
    Array,
    Column,
    Mask,
    counted,
    listed,
    missing_rows,
    name_rows,
    plural,
    quoted,
    role_label,
    row_names,
    setting,
    warn_user,
)
from bgmiv.errors import DataError

__all__ = [
    "ColumnReader",
    "Missing",
    "Table",
    "check_known",
    "check_no_missing",
    "check_same_rows",
    "column_names",
    "first_index",
    "is_table",
    "read_column",
    "read_columns",
    "select_columns",
    "table_rows",
    "without_missing",
]

Missing = Literal["raise", "drop"]

# What pandas calls columns of numbers.
_NUMBERS = ("boolean", "integer", "floating", "mixed-integer-float")
_AT_PREDICT = "Fill them, or leave such rows out of the table."


class Table(NamedTuple):
    """What a container holds: its columns, and whether their names came with it; `index` are pandas' row labels."""

    columns: tuple[Column, ...]
    n_rows: int
    named: bool
    index: Any = None

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names."""
        return tuple(column.name for column in self.columns)

    @property
    def by_name(self) -> dict[str, Column]:
        """The columns by their names."""
        return {column.name: column for column in self.columns}

    def part(self, names: Iterable[str]) -> Table:
        """The columns of these names, in this order, as a table of their own."""
        known = self.by_name
        return self._replace(columns=tuple(known[name] for name in names))

    def named_at_least(self, name: str) -> Table:
        """The one column there is, under this name if it came with none."""
        return self if self.named else self._replace(columns=(self.columns[0]._replace(name=name),))


def read_columns(values: Any, argument: str) -> Table:
    """The columns of an array, list, series, data frame, or mapping of names to arrays, or of a `Table`.

    Messages call them by this argument; unnamed columns of `covariates` are `covariate_0`, `covariate_1`, ...
    """
    if isinstance(values, Table):
        return values._replace(columns=tuple(column._replace(role=argument) for column in values.columns))
    read, unnamed = _wrapped(values, argument), f"{argument.removesuffix('s')}_"
    named = True
    if isinstance(read, nw.DataFrame | Mapping):
        entries = _entries(values, argument)
    elif isinstance(read, nw.Series) and read.name not in (None, ""):
        entries = {str(read.name): read}
    else:
        named = False
        parts = [read] if isinstance(read, nw.Series) else _array_columns(values, argument)
        entries = {f"{unnamed}{i}": part for i, part in enumerate(parts)}
    columns, tables = [], {}
    for name, entry in entries.items():
        column, index = _read_entry(name, entry, argument)
        columns.append(column)
        tables[column.label] = Table((), len(column.values), named, index)
    if not columns:
        return Table((), 0 if isinstance(read, Mapping) else len(read), False)
    check_same_rows(tables)
    return Table(tuple(columns), len(columns[0].values), named, first_index(tables.values()))


def read_column(values: Any, argument: str) -> Table:
    """Read a container that must hold one column; its default name is the argument's."""
    table = read_columns(values, argument)
    if len(table.columns) != 1 or table.columns[0].values.ndim != 1:
        shape = (table.n_rows, len(table.columns))
        raise DataError(f"{argument} must be one column, got shape {shape}. Pass a one-dimensional array.")
    return table.named_at_least(argument)


def first_index(tables: Iterable[Table]) -> Any:
    """Pandas' row labels of the first table that has some."""
    return next((table.index for table in tables if table.index is not None), None)


def check_same_rows(tables: Mapping[str, Table]) -> None:
    """Refuse containers of different lengths, or with pandas indexes that do not match the first one's."""
    (first, reference), *others = tables.items()
    for argument, table in others:
        if table.n_rows != reference.n_rows:
            turned = len(table.columns) == reference.n_rows and not table.named
            fix = "It looks transposed: pass its .T." if turned else "Pass the same rows for both."
            have = f"{argument} {_has(argument)} {plural(table.n_rows, 'row')}"
            raise DataError(f"{have} but {first} {_has(first)} {reference.n_rows}. {fix}")
    indexed = [argument for argument, table in tables.items() if table.index is not None]
    for argument in indexed[1:]:
        if not tables[argument].index.equals(tables[indexed[0]].index):
            raise DataError(
                f"{argument} and {indexed[0]} have different pandas indexes, so their rows may not match. "
                "Align them, or call .reset_index(drop=True) on both if the order is right."
            )


def _has(argument: str) -> str:
    return "have" if argument.endswith("s") else "has"


def _wrapped(values: Any, label: str) -> Any:
    """A data frame or series of any library in narwhals' clothes; anything else as it is."""
    try:
        return nw.from_native(values, eager_only=True, allow_series=True, pass_through=True)
    except nw.exceptions.DuplicateError:
        _check_distinct(getattr(values, "column_names", None) or values.columns, label)
        raise


def _check_distinct(names: Iterable[Any], argument: str) -> None:
    """Refuse names of which two are the same, also if one is a number and the other a string."""
    repeated = [name for name, count in Counter(map(str, names)).items() if count > 1]
    if repeated:
        raise DataError(f"{argument}: duplicated column names, {quoted(repeated)}. Rename or drop them.")


def _entries(data: Any, argument: str = "data") -> dict[str, Any]:
    """The columns of a table as they are, by the text of their names."""
    table = _wrapped(data, argument)
    if isinstance(table, nw.DataFrame):
        entries = dict(zip(table.columns, table.iter_columns(), strict=True))
    elif isinstance(table, Mapping):
        entries = dict(table)
    else:
        hint = " Call .collect() on it first." if hasattr(data, "collect") else ""
        raise DataError(
            "data must be a pandas, polars or pyarrow table, or a mapping of names to columns, "
            f"got {type(data).__name__}.{hint}"
        )
    _check_distinct(entries, argument)
    return {str(name): entry for name, entry in entries.items()}


def _read_entry(name: str, entry: Any, argument: str) -> tuple[Column, Any]:
    """A column that is a series, an array or a list, and its pandas row labels."""
    label = role_label(argument, name)
    try:
        name.encode()
    except UnicodeEncodeError:
        raise DataError(f"{argument}: the column name {name!r} is no text (a broken encoding). Rename it.") from None
    read = _wrapped(entry, label)
    if isinstance(read, nw.DataFrame | Mapping):
        raise DataError(f"{label} is a table. Pass its columns as entries of their own.")
    if not isinstance(read, nw.Series):
        array = _array(entry, label)
        if not 1 <= array.ndim <= 4:
            raise DataError(f"{label} has {array.ndim} dimensions. Pass (n,), (n, d), (n, H, W) or (n, H, W, C).")
        return Column(name, array, argument), None
    if read.dtype.is_nested():
        raise DataError(f"{label} is nested ({read.dtype}). Pass {{'name': array}} with a 2-D array instead.")
    try:
        values = (read.cast(nw.Float64) if read.dtype.is_decimal() else read).to_numpy()
    # Each library has exceptions of its own, and none of them names the column.
    except Exception as error:
        raise DataError(f"{label} of type {read.dtype} cannot be read: {error}. Cast it to float.") from error
    # Levels that are numbers must not pass for measurements.
    categorical = read.dtype in (nw.Categorical, nw.Enum)
    column = Column(name, values.astype(object) if categorical else values, argument, categorical)
    return column, nw.maybe_get_index(read)


def _array_columns(values: Any, argument: str) -> list[Any]:
    """The columns of an array or a list, arrays or lists themselves."""
    matrix = _array(values, argument)
    if matrix.ndim == 0:
        hint = " Call .collect() on it first." if hasattr(values, "collect") else " Pass an array or a table."
        raise DataError(f"{argument} must be an array or a table, got {type(values).__name__}.{hint}")
    if matrix.ndim > 2:
        hint = "Pass one column, or a matrix of columns."
        if argument == "covariates":
            hint = "Pass images as an entry of a mapping, {'image': array}."
        raise DataError(f"{argument} {_has(argument)} {matrix.ndim} dimensions, shape {matrix.shape}. {hint}")
    if matrix.ndim == 1:
        return [values if isinstance(values, list | tuple) else matrix]
    if isinstance(values, list | tuple) and matrix.dtype.kind not in "biuf":
        # NumPy gives a list of mixed rows one dtype for all its columns; each column has its own.
        return [list(column) for column in zip(*values, strict=True)]
    return list(matrix.T)


def _array(values: Any, label: str) -> Array:
    if hasattr(values, "toarray") and hasattr(values, "nnz"):
        raise DataError(f"{label} is a sparse matrix. Pass its .toarray().")
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        ragged = isinstance(error, ValueError) and isinstance(values, list | tuple)
        fix = "has rows of different lengths. Make them equal." if ragged else f"is not an array: {error}"
        raise DataError(f"{label} {fix}") from error
    # Of NumPy's subclasses only the mask matters.
    mask = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else np.zeros(0)
    if mask.any():
        rows = np.any(mask.reshape(len(mask), -1), axis=1)
        raise DataError(f"{label} has {counted(rows, 'masked row')}. Drop or fill these rows first.")
    return array


def is_table(data: Any) -> bool:
    """Whether the columns of a container have names: a data frame or a mapping."""
    return isinstance(_wrapped(data, "data"), nw.DataFrame | Mapping)


def column_names(data: Any) -> tuple[str, ...]:
    """The names of a table's columns."""
    return tuple(_entries(data))


def table_rows(data: Any) -> int:
    """How many rows a table has."""
    first = next(iter(_entries(data).values()), ())
    return len(first) if isinstance(first, nw.Series) else len(_array(first, "data"))


def check_known(name: str, known: Sequence[str]) -> None:
    """Refuse the name of a column that is not there, with those that are spelt alike."""
    if name in known:
        return
    folded = {other.casefold(): other for other in known}
    close = [folded[match] for match in difflib.get_close_matches(name.casefold(), list(folded), 3, 0.6)]
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    shown = f": {quoted(known)}" if known else ""
    raise DataError(f"the table has no column {name!r}.{hint} It has {plural(len(known), 'column')}{shown}.")


def select_columns(data: Any, names: Iterable[str]) -> Table:
    """The columns of these names, each once, in this order."""
    entries = _entries(data)
    wanted = tuple(dict.fromkeys(names))
    for name in wanted:
        check_known(name, tuple(entries))
    if not wanted:
        return Table((), table_rows(data), named=False)
    return read_columns({name: entries[name] for name in wanted}, "data")


def check_no_missing(table: Table, fix: str = _AT_PREDICT) -> Table:
    """The table, or an error that counts its missing values."""
    missing, where = _missing_values(table)
    if missing.any():
        rows = f"{int(missing.sum())} of {table.n_rows} rows ({row_names(missing)})"
        raise DataError(f"there are missing values in {where}, in {rows}. {fix}")
    return table._replace(columns=tuple(map(_with_plain_numbers, table.columns)))


def without_missing(table: Table, missing: Missing) -> Table:
    """The table for a fit: without the rows in which a value is missing, or an error that counts them."""
    if missing not in get_args(Missing):
        raise DataError(f"missing must be 'raise' or 'drop', got {missing!r}.")
    incomplete, where = _missing_values(table)
    if missing == "drop" and incomplete.any():
        kept = np.flatnonzero(~incomplete)
        if not len(kept):
            raise DataError(f"every one of the {table.n_rows} rows has a missing value: {where}. Use fewer columns.")
        warn_user(
            f"{table.n_rows - len(kept)} of {table.n_rows} rows are dropped for missing values in {where}; "
            f"{len(kept)} are left."
        )
        name_rows(kept)
        columns = tuple(column._replace(values=column.values[kept]) for column in table.columns)
        index = None if table.index is None else table.index[kept]
        table = Table(columns, len(kept), table.named, index)
    table = check_no_missing(table, f"Fill them, or leave such rows out with {setting('missing', 'drop')}.")
    if table.n_rows < 2:
        raise DataError(f"the table has {'one row' if table.n_rows else 'no rows: it is empty'}. Pass at least two.")
    return table


def _missing_values(table: Table) -> tuple[Mask, str]:
    """Which rows have a missing value, and how many there are in which columns."""
    masks = {column.name: missing_rows(column.values) for column in table.columns}
    counts = [f"{name!r} ({int(mask.sum())})" for name, mask in masks.items() if mask.any()]
    rows = np.logical_or.reduce([np.zeros(table.n_rows, dtype=bool), *masks.values()])
    return rows, listed(counts, 10)


def _with_plain_numbers(column: Column) -> Column:
    """The column, with numbers that a library gave as objects, because some were missing, as numbers."""
    import pandas as pd

    values = column.values
    if column.categorical or values.dtype.kind != "O" or pd.api.types.infer_dtype(values) not in _NUMBERS:
        return column
    return column._replace(values=pd.Series(values).infer_objects().to_numpy())


@dataclass(frozen=True)
class ColumnReader:
    """Picks the covariates of a fit, by name, out of later tables with other columns and another order."""

    names: tuple[str, ...]

    def covariates(self, data: Any) -> Table:
        """The covariates of a table; one without columns if the fit had none."""
        return check_no_missing(select_columns(data, self.names))
