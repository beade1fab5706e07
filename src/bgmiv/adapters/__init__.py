"""Adapters to scikit-learn, EconML and DoWhy, and what they share. None of these is needed to import this package."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from bgmiv.data.table import is_table, read_columns
from bgmiv.errors import ConfigError, DataError

__all__ = ["fitted_copy", "given", "matrix_columns", "named_columns", "one_column", "spaced_rows", "unfitted_copy"]


def named_columns(values: Any, argument: str, prefix: str) -> dict[str, Any]:
    """The columns of a table or array by name; those of an array are called `{prefix}0`, `{prefix}1`, ..."""
    # This refuses duplicated names and sparse matrices, with a message that says so.
    read_columns(values, argument)
    if is_table(values):
        # Column by column: an array of the whole table need not keep the type of each.
        mapping = isinstance(values, Mapping)
        columns = values if mapping else nw.from_native(values, eager_only=True).to_dict(as_series=True)
        return {str(name): nw.to_native(column, pass_through=True) for name, column in columns.items()}
    array = np.asarray(values)
    if array.ndim != 2:
        raise DataError(f"{argument} must have two dimensions, got shape {array.shape}. Pass one row a unit.")
    columns = list(array.T)
    if array.dtype.kind == "O":
        # Arrays of mixed columns are arrays of objects; each column has its own type.
        columns = [np.asarray(column.tolist()) for column in columns]
    return {f"{prefix}{i}": column for i, column in enumerate(columns)}


def matrix_columns(values: Any, name: str) -> dict[str, Any]:
    """The named columns of a matrix, or of one column."""
    if values is None:
        return {}
    shape = getattr(values, "shape", None) or np.shape(values)
    return named_columns(np.asarray(values)[:, None] if len(shape) == 1 else values, name, name)


def one_column(values: Any, argument: str) -> Any:
    """A single column, also one given as a matrix or table of one column."""
    shape = getattr(values, "shape", None) or np.shape(values)
    if len(shape) < 2:
        return values
    columns = list(named_columns(values, argument, argument).values()) if len(shape) == 2 else []
    if len(columns) != 1:
        raise DataError(f"{argument} must be one column, got shape {tuple(shape)}.")
    return columns[0]


def unfitted_copy(estimator: Any) -> Any:
    """A bgmiv method with the same arguments, or `BGMIV()` for None."""
    if estimator is None:
        from bgmiv import BGMIV

        return BGMIV()
    if not (hasattr(estimator, "fit_table") and hasattr(estimator, "get_params")):
        raise ConfigError(f"estimator must be a bgmiv method such as BGMIV() or TSLS(), got {estimator!r}.")
    return type(estimator)(**deepcopy(estimator.get_params(deep=False)))


def fitted_copy(estimator: Any, blocks: Mapping[str, Any] | None, roles: Mapping[str, Mapping[str, Any]]) -> Any:
    """A copy of a bgmiv method, fitted on columns by their roles; equal names of columns are told apart."""
    data: dict[str, Any] = {}
    names: dict[str, Any] = {}
    for role, columns in roles.items():
        names[role] = []
        for name, values in columns.items():
            while name in data:
                name += "_"
            data[name] = values
            names[role].append(name)
        if role not in ("instruments", "covariates"):
            (names[role],) = names[role]
    return unfitted_copy(estimator).fit_table(data, blocks=blocks, **names)


def spaced_rows(n_rows: int, max_rows: int) -> NDArray[np.int64]:
    """The positions of at most `max_rows` rows, evenly spaced from the first to the last."""
    return np.linspace(0, n_rows - 1, min(n_rows, max_rows)).astype(np.int64)


def given(**columns: Any) -> dict[str, dict[str, Any]]:
    """Roles of one column each, without those that are None."""
    return {role: {role: values} for role, values in columns.items() if values is not None}
