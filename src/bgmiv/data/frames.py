"""Tables of any library, their columns by name: selection, missing values, and the way to `IVData`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from bgmiv.data.checks import is_missing, warn_user
from bgmiv.data.columns import Column, Table, read_table
from bgmiv.data.encode import category_entries, covariate_label
from bgmiv.data.files import read_table_file
from bgmiv.data.ivdata import IVData
from bgmiv.data.layout import Declaration
from bgmiv.data.roles import RoleKind, check_are_levels, holds_words
from bgmiv.data.sampling import check_sampling_names
from bgmiv.errors import DataError

__all__ = [
    "ColumnReader",
    "Missing",
    "check_enough",
    "check_known",
    "checked_sampling",
    "column_names",
    "complete_rows",
    "from_frame",
    "is_table",
    "read_columns",
    "read_table_file",
    "table_rows",
    "with_levels",
    "without_missing",
]

Missing = Literal["raise", "drop"]

_SHOWN = 10


@dataclass(frozen=True)
class ColumnReader:
    """Picks the covariates of a fit out of later tables, which may hold other columns and another order.

    Args:
        names: the covariates' columns.

    >>> ColumnReader(("age",)).covariates({"wage": [1.0], "age": [30]}).names
    ('age',)
    """

    names: tuple[str, ...]

    def covariates(self, data: Any) -> Table:
        """The covariates of a table; one without columns if the fit had none."""
        return without_missing(read_columns(data, self.names), "raise")


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
    weights: str | None = None,
    groups: str | None = None,
) -> IVData:
    """Validated data from the named columns of a table; other columns are not looked at.

    Covariates of strings are categorical.

    Args:
        data: a pandas, polars or pyarrow table, or a mapping of names to arrays.
        outcome: a column's name.
        treatment: a column's name.
        instruments: one or more columns' names.
        covariates: columns' names; None for none.
        missing: "raise" to refuse missing values in these columns, "drop" to leave out rows that have one.
        blocks: kinds that the dtypes do not tell, as in `IVData.from_arrays`.
        treatment_kind: as in `IVData.from_arrays`.
        outcome_kind: as in `IVData.from_arrays`.
        weights: the name of the column of sample weights; it may be a covariate too.
        groups: the name of the column of groups; it may be a covariate or an instrument too.

    Raises:
        DataError: if the data cannot be used; the message names the column and the fix.

    >>> table = {"wage": [9.0, 7.0, 8.0, 5.0], "educ": [12, 16, 11, 9], "near": [0, 3, 2, 1], "region": list("nssn")}
    >>> from_frame(table, outcome="wage", treatment="educ", instruments="near", covariates=["region"])
    IVData(4 rows: wage, educ, near | region)
    """
    _check_missing(missing)
    asked = {"instruments": _names(instruments, "instruments"), "covariates": _names(covariates, "covariates")}
    for argument, name in (("outcome", outcome), ("treatment", treatment)):
        if not isinstance(name, str):
            raise DataError(f"{argument} must be the name of a column of the table, got {name!r}.")
    sampling = checked_sampling(weights, groups, {"outcome": [outcome], "treatment": [treatment], **asked})
    used = (outcome, treatment, *asked["instruments"], *asked["covariates"], *sampling.values())
    table = without_missing(read_columns(data, used), missing)
    check_enough(table)
    columns = {column.name: column for column in table.columns}

    def part(names: Iterable[str]) -> Table:
        return Table(tuple(columns[name] for name in names), table.n_rows, True)

    declared = set(blocks or ())
    plain = part(asked["covariates"]).columns
    levels = tuple(column if column.name in declared else with_levels(column) for column in plain)
    return IVData.from_arrays(
        part([outcome]),
        part([treatment]),
        instruments=part(asked["instruments"]),
        covariates=Table(levels, table.n_rows, True) if levels else None,
        blocks=blocks,
        treatment_kind=treatment_kind,
        outcome_kind=outcome_kind,
        **{argument: part([name]) for argument, name in sampling.items()},
    )


def check_enough(table: Table) -> None:
    """Refuse a table for a fit that has fewer than two rows.

    >>> check_enough(Table((), 1, False))
    Traceback (most recent call last):
    ...
    bgmiv.errors.DataError: the table has one row. Pass at least two.
    """
    if table.n_rows < 2:
        raise DataError(f"the table has {'one row' if table.n_rows else 'no rows: it is empty'}. Pass at least two.")


def checked_sampling(weights: str | None, groups: str | None, roles: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """The columns of sample weights and of groups by argument, those that are given.

    >>> checked_sampling("pw", None, {"outcome": ["wage"]})
    {'weights': 'pw'}
    """
    given = {name: column for name, column in (("weights", weights), ("groups", groups)) if column is not None}
    for argument, name in given.items():
        if not isinstance(name, str):
            raise DataError(f"{argument} must be the name of a column of the table, got {type(name).__name__}.")
    check_sampling_names(weights, groups, roles)
    return given


def is_table(data: Any) -> bool:
    """Whether the columns of a container have names: a data frame or a mapping.

    >>> is_table({"age": [30]}), is_table(np.zeros((1, 1)))
    (True, False)
    """
    return isinstance(data, Mapping) or isinstance(_wrapped(data), nw.DataFrame)


def column_names(data: Any) -> tuple[str, ...]:
    """The names of a table's columns.

    Raises:
        DataError: it is no table.

    >>> column_names({"age": [30], "wage": [1.0]})
    ('age', 'wage')
    """
    return tuple(_original_names(data))


def table_rows(data: Any) -> int:
    """How many rows a table has.

    >>> table_rows({"age": [30, 40], "wage": [1.0, 2.0]})
    2
    """
    names = column_names(data)
    return read_columns(data, names[:1]).n_rows if names else 0


def check_known(name: str, known: Sequence[str]) -> None:
    """Refuse the name of a column that is not there, with those that are spelt alike.

    >>> check_known("educc", ["wage", "educ"])
    Traceback (most recent call last):
    ...
    bgmiv.errors.DataError: the table has no column 'educc'. Did you mean 'educ'? It has 2 columns: 'wage', 'educ'.
    """
    if name in known:
        return
    folded = {other.casefold(): other for other in known}
    close = [folded[match] for match in difflib.get_close_matches(name.casefold(), list(folded), 3, 0.6)]
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    shown = ", ".join(map(repr, known[:_SHOWN])) + (", ..." if len(known) > _SHOWN else "")
    count = f"{len(known)} column{'s' if len(known) != 1 else ''}"
    raise DataError(f"the table has no column {name!r}.{hint} It has {count}{': ' + shown if known else ''}.")


def read_columns(data: Any, names: Iterable[str]) -> Table:
    """The columns of these names, each once, in this order.

    Raises:
        DataError: the container is no table, or has no such column.

    >>> read_columns({"age": [30], "wage": [1.0]}, ["wage"]).names
    ('wage',)
    """
    original = _original_names(data)
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        check_known(name, tuple(original))
    if isinstance(data, Mapping):
        table = read_table({name: data[original[name]] for name in wanted}, "data", "column")
        if not wanted and data:
            table = Table((), len(next(iter(data.values()))), False)
        return table
    frame = _wrapped(data)
    table = read_table(frame.select([original[name] for name in wanted]).to_native(), "data", "column")
    return table._replace(n_rows=len(frame))


def complete_rows(data: Any, names: Iterable[str]) -> NDArray[np.bool_]:
    """Which rows of a table have a value in each of these columns: those that `missing="drop"` keeps.

    >>> complete_rows({"age": [30.0, float("nan")], "wage": [9.0, 7.0]}, ["age", "wage"])
    array([ True, False])
    """
    table = read_columns(data, tuple(names))
    return ~np.logical_or.reduce([_missing_rows(column.values) for column in table.columns])


def without_missing(table: Table, missing: Missing) -> Table:
    """The table without the rows in which a value is missing, or an error that counts them.

    >>> without_missing(read_columns({"age": [30.0, float("nan")]}, ["age"]), "raise")
    Traceback (most recent call last):
    ...
    bgmiv.errors.DataError: there are missing values in 'age' (1), in 1 of 2 rows. Fill them, or leave such rows out
    with missing='drop'.
    """
    _check_missing(missing)
    masks = {column.name: _missing_rows(column.values) for column in table.columns}
    counts = {name: int(mask.sum()) for name, mask in masks.items() if mask.any()}
    if not counts:
        return table._replace(columns=tuple(_plain(column) for column in table.columns))
    bad = np.logical_or.reduce([masks[name] for name in counts])
    where = ", ".join(f"{name!r} ({count})" for name, count in list(counts.items())[:_SHOWN])
    where += f" and {len(counts) - _SHOWN} more columns" if len(counts) > _SHOWN else ""
    if missing == "raise":
        raise DataError(
            f"there are missing values in {where}, in {int(bad.sum())} of {table.n_rows} rows. Fill them, or leave "
            "such rows out with missing='drop'."
        )
    left = int((~bad).sum())
    if left == 0:
        raise DataError(f"every one of the {table.n_rows} rows has a missing value: {where}. Use fewer columns.")
    warn_user(f"{int(bad.sum())} of {table.n_rows} rows are dropped for missing values in {where}; {left} are left.")
    kept = tuple(_plain(column._replace(values=column.values[~bad])) for column in table.columns)
    return Table(kept, left, table.named, None if table.index is None else table.index[~bad])


def with_levels(column: Column) -> Column:
    """The column, known as categorical if it holds strings.

    Raises:
        DataError: the strings look like numbers or like identifiers.

    >>> with_levels(Column("region", np.array(["n", "s", "n", "s"]))).categorical
    True
    """
    if column.categorical or column.values.ndim != 1 or not holds_words(column):
        return column
    label = covariate_label(column.name)
    fix = f"Convert it to numbers, or declare it with blocks={{{column.name!r}: 'categorical'}}."
    check_are_levels(category_entries(column, label), label, fix)
    return column._replace(categorical=True)


def _wrapped(data: Any) -> Any:
    try:
        return nw.from_native(data, eager_only=True, pass_through=True)
    except nw.exceptions.DuplicateError:
        read_table(data, "data", "column")
        raise


def _original_names(data: Any) -> dict[str, Any]:
    if isinstance(data, Mapping):
        names = list(data)
    else:
        frame = _wrapped(data)
        if not isinstance(frame, nw.DataFrame):
            hint = " Call .collect() on it first." if hasattr(data, "collect") else ""
            raise DataError(
                "data must be a pandas, polars or pyarrow table, or a mapping of names to columns, got "
                f"{type(data).__name__}.{hint}"
            )
        names = list(frame.columns)
    return {str(name): name for name in names}


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


def _check_missing(missing: str) -> None:
    if missing not in get_args(Missing):
        raise DataError(f"missing must be 'raise' or 'drop', got {missing!r}.")


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
    return np.asarray(bad.reshape(len(values), -1).any(axis=1) if values.ndim > 1 else bad)


def _plain(column: Column) -> Column:
    """Numbers that a library gave as objects, because some were missing, as numbers."""
    if column.categorical or column.values.dtype.kind != "O" or column.values.ndim > 1 or len(column.values) == 0:
        return column
    entries = column.values.tolist()
    if all(isinstance(entry, bool | int | float | np.number | np.bool_) for entry in entries):
        return column._replace(values=np.array(entries))
    return column
