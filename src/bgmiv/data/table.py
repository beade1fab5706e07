"""Reading tables, arrays, lists and mappings into named columns, without judging their values."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from bgmiv.data.messages import counted, is_missing, listed, name_rows, plural, row_names, setting, warn_user
from bgmiv.errors import DataError

__all__ = [
    "Column",
    "ColumnReader",
    "Missing",
    "Table",
    "check_distinct",
    "check_known",
    "check_no_missing",
    "check_same_rows",
    "column_names",
    "complete_rows",
    "is_table",
    "read_column",
    "read_columns",
    "select_columns",
    "table_rows",
    "without_missing",
    "wrapped",
]

Missing = Literal["raise", "drop"]

_SHOWN = 10
_AT_PREDICT = "Fill them, or leave such rows out of the table."


class Column(NamedTuple):
    """A named column (n,), or (n, ...) for an array entry of a mapping.

    It is categorical if its dtype says so; `source` is its name in the table, if that is another one.
    """

    name: str
    values: NDArray[Any]
    categorical: bool = False
    source: str = ""


class Table(NamedTuple):
    """What a container holds: its columns, and whether their names came with it.

    `index` are pandas' row labels, `matrix` all columns at once if the container was one array.
    """

    columns: tuple[Column, ...]
    n_rows: int
    named: bool
    index: Any = None
    matrix: NDArray[Any] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names."""
        return tuple(column.name for column in self.columns)

    def part(self, names: Iterable[str]) -> Table:
        """The columns of these names, in this order, as a table of their own."""
        known = {column.name: column for column in self.columns}
        return self._replace(columns=tuple(known[name] for name in names), named=True, matrix=None)


def read_columns(values: Any, argument: str, prefix: str) -> Table:
    """The columns of an array, list, series, data frame, or mapping of names to arrays; a `Table` as it is.

    Messages call it by its `argument`; unnamed columns are `{prefix}_0`, `{prefix}_1`, ...
    """
    if isinstance(values, Table):
        return values
    if isinstance(values, Mapping):
        _check_names(values, argument)
        return _from_mapping(values, argument)
    read = wrapped(values, argument)
    if isinstance(read, nw.DataFrame):
        _check_names(read.columns, argument)
        columns = [_series_column(str(s.name), s, f"{argument} column {str(s.name)!r}") for s in read.iter_columns()]
        return Table(tuple(columns), len(read), bool(columns), _row_labels(values))
    if isinstance(read, nw.Series):
        name = "" if read.name is None else str(read.name)
        label = f"{argument} {name!r}" if name else argument
        column = _series_column(name or f"{prefix}_0", read, label)
        return Table((column,), len(column.values), bool(name), _row_labels(values))
    return _from_array(values, argument, prefix)


def read_column(values: Any, argument: str) -> tuple[Column, Table]:
    """Read a container that must hold one column; its default name is the argument's."""
    table = read_columns(values, argument, argument)
    if len(table.columns) != 1 or table.columns[0].values.ndim != 1:
        shape = (table.n_rows, len(table.columns))
        raise DataError(f"{argument} must be one column, got shape {shape}. Pass a one-dimensional array.")
    column = table.columns[0] if table.named else table.columns[0]._replace(name=argument)
    return column, table


def check_same_rows(tables: Mapping[str, Table]) -> None:
    """Refuse containers of different lengths, or with pandas indexes that do not match the first one's."""
    (first, reference), *others = tables.items()
    for argument, table in others:
        if table.n_rows != reference.n_rows:
            turned = len(table.columns) == reference.n_rows and table.matrix is not None
            fix = "It looks transposed: pass its .T." if turned else "Pass the same rows for both."
            have = f"{argument} {_has(argument)} {plural(table.n_rows, 'row')}"
            raise DataError(f"{have} but {first} {_has(first)} {reference.n_rows}. {fix}")
    indexed = [(argument, table.index) for argument, table in tables.items() if table.index is not None]
    for argument, index in indexed[1:]:
        if not index.equals(indexed[0][1]):
            raise DataError(
                f"{argument} and {indexed[0][0]} have different pandas indexes, so their rows may not match. "
                "Align them, or call .reset_index(drop=True) on both if the order is right."
            )


def _has(argument: str) -> str:
    return "have" if argument.endswith("s") else "has"


def wrapped(values: Any, label: str) -> Any:
    """A data frame or series of any library in narwhals' clothes; anything else as it is."""
    try:
        return nw.from_native(values, eager_only=True, allow_series=True, pass_through=True)
    except nw.exceptions.DuplicateError:
        check_distinct(values.column_names if hasattr(values, "column_names") else values.columns, label)
        raise


def check_distinct(names: Iterable[Any], argument: str) -> None:
    """Refuse names of which two are the same, also if one is a number and the other a string."""
    repeated = [name for name, count in Counter(map(str, names)).items() if count > 1]
    if repeated:
        raise DataError(f"{argument}: duplicated column names, {listed(map(repr, repeated))}. Rename or drop them.")


def _check_names(names: Iterable[Any], argument: str) -> None:
    check_distinct(names, argument)
    for name in map(str, names):
        try:
            name.encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{argument}: the column name {name!r} is no text (a broken encoding). Rename it."
            ) from None


def _row_labels(values: Any) -> Any:
    index = getattr(values, "index", None)
    return index if hasattr(index, "equals") else None


def _series_column(name: str, series: nw.Series[Any], label: str) -> Column:
    if series.dtype.is_nested():
        raise DataError(f"{label} is nested ({series.dtype}). Pass {{'name': array}} with a 2-D array instead.")
    categorical = series.dtype in (nw.Categorical, nw.Enum)
    try:
        values = (series.cast(nw.Float64) if series.dtype.is_decimal() else series).to_numpy()
    # Each library has exceptions of its own, and none of them names the column.
    except Exception as error:
        raise DataError(f"{label} of type {series.dtype} cannot be read: {error}. Cast it to float.") from error
    # Levels that are numbers must not pass for measurements.
    return Column(name, values.astype(object) if categorical else values, categorical)


def _from_mapping(entries: Mapping[Any, Any], argument: str) -> Table:
    columns, tables = [], {}
    for key, entry in entries.items():
        label = f"{argument} entry {str(key)!r}"
        read = wrapped(entry, label)
        if isinstance(read, (nw.DataFrame, Mapping)):
            raise DataError(f"{label} is a table. Pass its columns as entries of their own.")
        if isinstance(read, nw.Series):
            column = _series_column(str(key), read, label)
        else:
            column = Column(str(key), _array(entry, label))
        depth = column.values.ndim
        if depth == 0 or depth > 4:
            raise DataError(f"{label} has {depth} dimensions. Pass (n,), (n, d), (n, H, W) or (n, H, W, C).")
        columns.append(column)
        tables[label] = Table((), len(column.values), False, _row_labels(entry))
    if not columns:
        return Table((), 0, False)
    check_same_rows(tables)
    index = next((table.index for table in tables.values() if table.index is not None), None)
    return Table(tuple(columns), len(columns[0].values), True, index)


def _from_array(values: Any, argument: str, prefix: str) -> Table:
    matrix = _array(values, argument)
    if matrix.ndim == 0:
        hint = " Call .collect() on it first." if hasattr(values, "collect") else " Pass an array or a table."
        raise DataError(f"{argument} must be an array or a table, got {type(values).__name__}.{hint}")
    if matrix.ndim > 2:
        images = "Pass images as an entry of a mapping, {'image': array}."
        hint = images if argument == "covariates" else "Pass one column, or a matrix of columns."
        raise DataError(f"{argument} {_has(argument)} {matrix.ndim} dimensions, shape {matrix.shape}. {hint}")
    if matrix.ndim == 1:
        matrix = matrix[:, None]
    arrays = list(matrix.T)
    if isinstance(values, (list, tuple)) and matrix.dtype.kind not in "biuf":
        # NumPy gives a list of mixed rows one dtype for all its columns; each column has its own.
        rows = values if np.ndim(values[0]) else [[value] for value in values]
        arrays = [_array(list(column), argument) for column in zip(*rows, strict=True)]
    columns = tuple(Column(f"{prefix}_{i}", array) for i, array in enumerate(arrays))
    return Table(columns, len(matrix), False, None, matrix)


def _array(values: Any, label: str) -> NDArray[Any]:
    if hasattr(values, "toarray") and hasattr(values, "nnz"):
        raise DataError(f"{label} is a sparse matrix. Pass its .toarray().")
    try:
        # Of NumPy's subclasses only the mask matters; np.matrix would keep two dimensions for ever.
        array = values if isinstance(values, np.ma.MaskedArray) else np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        ragged = "inhomogeneous" in str(error)
        fix = "has rows of different lengths. Make them equal." if ragged else f"is not an array: {error}"
        raise DataError(f"{label} {fix}") from error
    if not isinstance(array, np.ma.MaskedArray):
        return array
    mask = np.ma.getmaskarray(array)
    if mask.any():
        rows = np.asarray(mask.reshape(len(mask), -1).any(axis=1))
        raise DataError(f"{label} has {counted(rows, 'masked row')}. Drop or fill these rows first.")
    return np.asarray(array.data)


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
    if not isinstance(data, Mapping):
        frame = wrapped(data, "data")
        # By place: names need not be strings.
        places = [list(original).index(name) for name in wanted]
        return read_columns(frame[:, places].to_native(), "data", "column")._replace(n_rows=len(frame))
    # Without any column wanted, one says how many rows there are.
    read = read_columns({name: data[original[name]] for name in wanted or list(original)[:1]}, "data", "column")
    return read.part(wanted)


def _original_names(data: Any) -> dict[str, Any]:
    """The names of a table's columns as they are, by their text."""
    if isinstance(data, Mapping):
        names = list(data)
    else:
        frame = wrapped(data, "data")
        if not isinstance(frame, nw.DataFrame):
            hint = " Call .collect() on it first." if hasattr(data, "collect") else ""
            what = "data must be a pandas, polars or pyarrow table, or a mapping of names to columns"
            raise DataError(f"{what}, got {type(data).__name__}.{hint}")
        names = list(frame.columns)
    check_distinct(names, "data")
    return {str(name): name for name in names}


def complete_rows(data: Any, names: Iterable[str]) -> NDArray[np.bool_]:
    """Which rows of a table have a value in each of these columns: those that `missing="drop"` keeps."""
    return ~_missing_values(select_columns(data, names))[0]


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
        dropped = f"{table.n_rows - len(kept)} of {table.n_rows} rows are dropped for missing values in {where}"
        warn_user(f"{dropped}; {len(kept)} are left.")
        name_rows(kept)
        table = Table(
            tuple(column._replace(values=column.values[kept]) for column in table.columns),
            len(kept),
            table.named,
            None if table.index is None else table.index[kept],
        )
    table = check_no_missing(table, f"Fill them, or leave such rows out with {setting('missing', 'drop')}.")
    if table.n_rows < 2:
        raise DataError(f"the table has {'one row' if table.n_rows else 'no rows: it is empty'}. Pass at least two.")
    return table


def _missing_values(table: Table) -> tuple[NDArray[np.bool_], str]:
    """Which rows have a missing value, and how many there are in which columns."""
    masks = {column.name: _missing_rows(column.values) for column in table.columns}
    counts = [f"{name!r} ({int(mask.sum())})" for name, mask in masks.items() if mask.any()]
    more = f" and {len(counts) - _SHOWN} more columns" if len(counts) > _SHOWN else ""
    rows = np.logical_or.reduce([np.zeros(table.n_rows, dtype=bool), *masks.values()])
    return rows, ", ".join(counts[:_SHOWN]) + more


def _missing_rows(values: NDArray[Any]) -> NDArray[np.bool_]:
    match values.dtype.kind:
        case "f" | "c":
            missing = np.isnan(values)
        case "M" | "m":
            missing = np.isnat(values)
        case "O" | "T":
            missing = np.array(list(map(is_missing, values.ravel().tolist())), dtype=bool).reshape(values.shape)
        case _:
            return np.zeros(len(values), dtype=bool)
    return np.asarray(missing.reshape(len(values), -1).any(axis=1)) if missing.size else np.zeros(len(values), bool)


def _with_plain_numbers(column: Column) -> Column:
    """The column, with numbers that a library gave as objects, because some were missing, as numbers."""
    if column.categorical or column.values.dtype.kind != "O" or column.values.ndim > 1 or len(column.values) == 0:
        return column
    entries = column.values.tolist()
    numbers = all(isinstance(entry, bool | int | float | np.number | np.bool_) for entry in entries)
    try:
        return column._replace(values=np.array(entries)) if numbers else column
    # A subclass of numbers may do as it likes; the column is then refused by its name.
    except Exception:
        return column


@dataclass(frozen=True)
class ColumnReader:
    """Picks the covariates of a fit, by name, out of later tables with other columns and another order."""

    names: tuple[str, ...]

    def covariates(self, data: Any) -> Table:
        """The covariates of a table; one without columns if the fit had none."""
        return check_no_missing(select_columns(data, self.names))
