"""What the adapters share: arrays and tables of other libraries as named columns."""

from __future__ import annotations

import inspect
from collections.abc import Container, Mapping
from typing import Any

import numpy as np

from bgmiv.data.columns import read_table
from bgmiv.data.frames import column_names, is_table
from bgmiv.errors import ConfigError, DataError

__all__ = ["fit_arguments", "named_columns", "one_column", "unused_name"]


def named_columns(values: Any, argument: str, prefix: str) -> dict[str, Any]:
    """The columns of a table or of an array by name; those of an array are called `{prefix}0`, `{prefix}1`, ...

    >>> list(named_columns(np.zeros((3, 2)), "X", "x"))
    ['x0', 'x1']
    """
    if is_table(values):
        # Duplicated names are refused, with a message that lists them.
        read_table(values, argument, "column")
        return {name: _column(values, name) for name in column_names(values)}
    if hasattr(values, "toarray") and hasattr(values, "nnz"):
        raise DataError(f"{argument} is a sparse matrix. Pass its .toarray().")
    array = np.asarray(values)
    if array.ndim != 2:
        raise DataError(f"{argument} must have two dimensions, got shape {array.shape}. Pass one row a unit.")
    columns = [array[:, i] for i in range(array.shape[1])]
    if array.dtype.kind == "O":
        # Arrays of mixed columns are arrays of objects; each column has a type of its own.
        columns = [np.asarray(column.tolist()) for column in columns]
    return {f"{prefix}{i}": column for i, column in enumerate(columns)}


def _column(table: Any, name: str) -> Any:
    """A column with its type, which an array of the whole table may not keep."""
    if isinstance(table, Mapping):
        return {str(key): value for key, value in table.items()}[name]
    if hasattr(table, "iloc"):
        return table.iloc[:, [str(other) for other in table.columns].index(name)]
    return table[name]


def one_column(values: Any, argument: str) -> Any:
    """A column, also one given as a matrix or table of one column.

    >>> one_column(np.zeros((3, 1)), "Y").shape
    (3,)
    """
    shape = getattr(values, "shape", None) or np.shape(values)
    if len(shape) < 2:
        return values
    columns = list(named_columns(values, argument, argument).values()) if len(shape) == 2 else []
    if len(columns) != 1:
        raise DataError(f"{argument} must be one column, got shape {tuple(shape)}.")
    return columns[0]


def unused_name(name: str, taken: Container[str]) -> str:
    """The name, with as many underscores as it needs to be new.

    >>> unused_name("outcome", {"outcome"})
    'outcome_'
    """
    while name in taken:
        name += "_"
    return name


def fit_arguments(model: Any, data: dict[str, Any], weights: Any, groups: Any) -> dict[str, str]:
    """Put weights and groups beside the columns, and name them as arguments of `fit_table`.

    Raises:
        ConfigError: the method takes none.
    """
    more = {}
    for argument, values in (("weights", weights), ("groups", groups)):
        if values is None:
            continue
        if argument not in inspect.signature(model.fit_table).parameters:
            raise ConfigError(f"{type(model).__name__} takes no {argument}. Leave them out.")
        more[argument] = unused_name(argument, data)
        data[more[argument]] = values
    return more
