"""Adapters to scikit-learn, EconML and DoWhy, and what they share. None of these is needed to import this package."""

from __future__ import annotations

from collections.abc import Container, Mapping
from copy import deepcopy
from typing import Any

import narwhals as nw
import numpy as np

from bgmiv.data.table import is_table, read_columns
from bgmiv.errors import ConfigError, DataError

__all__ = ["fit_arguments", "matrix_columns", "named_columns", "one_column", "unfitted_copy", "unused_name"]


def named_columns(values: Any, argument: str, prefix: str) -> dict[str, Any]:
    """The columns of a table or array by name; those of an array are called `{prefix}0`, `{prefix}1`, ..."""
    if is_table(values):
        # This refuses duplicated names, with a message that lists them.
        read_columns(values, argument)
        if isinstance(values, Mapping):
            return {str(name): column for name, column in values.items()}
        # Column by column: an array of the whole table need not keep the type of each.
        frame = nw.from_native(values, eager_only=True)
        return {str(series.name): series.to_native() for series in frame.iter_columns()}
    if hasattr(values, "toarray") and hasattr(values, "nnz"):
        raise DataError(f"{argument} is a sparse matrix. Pass its .toarray().")
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


def unused_name(name: str, taken: Container[str]) -> str:
    """The name, with underscores appended until it is new."""
    while name in taken:
        name += "_"
    return name


def unfitted_copy(estimator: Any) -> Any:
    """A bgmiv method with the same arguments, or `BGMIV()` for None."""
    if estimator is None:
        from bgmiv import BGMIV

        return BGMIV()
    if not (hasattr(estimator, "fit_table") and hasattr(estimator, "get_params")):
        raise ConfigError(f"estimator must be a bgmiv method such as BGMIV() or TSLS(), got {estimator!r}.")
    return type(estimator)(**deepcopy(estimator.get_params(deep=False)))


def fit_arguments(data: dict[str, Any], sample_weight: Any, clusters: Any) -> dict[str, str]:
    """Add weights and clusters, where given, to the columns, and name them as arguments of `fit_table`."""
    names = {}
    for argument, values in (("sample_weight", sample_weight), ("clusters", clusters)):
        if values is not None:
            names[argument] = unused_name(argument, data)
            data[names[argument]] = values
    return names
