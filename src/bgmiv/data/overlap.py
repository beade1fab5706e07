"""One column must not play two roles: the same name, or the same numbers under another name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bgmiv.data.checks import FloatArray, role_label
from bgmiv.data.columns import Table
from bgmiv.data.schema import Schema
from bgmiv.errors import DataError

__all__ = ["check_names", "check_overlap", "find_equal"]

_PROBES = 64


def check_names(tables: Mapping[str, Table]) -> None:
    """Refuse a name that came with two arguments.

    >>> from bgmiv.data.columns import read_table
    >>> table = read_table({"age": [1, 2]}, "covariates", "covariate")
    >>> check_names({"instruments": table, "covariates": table})
    Traceback (most recent call last):
    ...
    bgmiv.errors.DataError: 'age' is given both as instruments and among the covariates. Drop one of them.
    """
    seen: dict[str, str] = {}
    for argument, table in tables.items():
        for name in table.names if table.named else ():
            if name in seen:
                raise DataError(f"{name!r} is given both as {seen[name]} and {_role(argument)}. Drop one of them.")
        seen.update(dict.fromkeys(table.names if table.named else (), argument))


def _role(argument: str) -> str:
    return "among the covariates" if argument == "covariates" else f"as {argument}"


def check_overlap(
    outcome: FloatArray,
    treatment: FloatArray,
    covariates: FloatArray,
    instruments: FloatArray,
    schema: Schema,
) -> None:
    """Refuse columns with the same numbers in two roles.

    >>> import numpy as np
    >>> from bgmiv.data.schema import BlockKind, Variable
    >>> schema = Schema(Variable("y", BlockKind.continuous), Variable("x", BlockKind.continuous), ("w",))
    >>> x = np.array([0.0, 1.0, 3.0])
    >>> check_overlap(x + 1, x, np.zeros((3, 0)), x[:, None], schema)
    Traceback (most recent call last):
    ...
    bgmiv.errors.DataError: instrument 'w' is identical to treatment 'x' in every row. Drop one of them.
    """
    pairs = {
        role_label("outcome", schema.outcome.name): outcome,
        role_label("treatment", schema.treatment.name): treatment,
    }
    for i, name in enumerate(schema.instruments):
        pairs[role_label("instrument", name)] = instruments[:, i]
    (first, y), (second, x), *rest = pairs.items()
    if find_equal(x, y[:, None]) is not None:
        raise DataError(f"{second} is identical to {first} in every row. Pass the right columns.")
    for label, values in rest:
        for other, column in ((first, y), (second, x)):
            if find_equal(values, column[:, None]) is not None:
                raise DataError(f"{label} is identical to {other} in every row. Drop one of them.")
    for label, values in pairs.items():
        position = find_equal(values, covariates)
        if position is not None:
            name = schema.flat_names[position]
            raise DataError(f"{label} is identical to covariates column {name!r} in every row. Drop the covariate.")


def find_equal(values: FloatArray, matrix: FloatArray) -> int | None:
    """Which column of a matrix holds the same numbers in every row; constants are not looked for.

    >>> find_equal(np.array([1.0, 2.0]), np.array([[1.0, 1.0], [1.0, 2.0]]))
    1
    """
    low, high = int(values.argmin()), int(values.argmax())
    if values[low] == values[high] or matrix.shape[1] == 0:
        return None
    dtype = np.float32 if np.float32 in (values.dtype, matrix.dtype) else np.float64
    # The two extremes rule out constant columns, the others nearly everything else.
    probes = np.unique(np.append(np.linspace(0, len(values) - 1, _PROBES).astype(np.intp), (low, high)))
    same = matrix[probes].astype(dtype) == values[probes, None].astype(dtype)
    for position in np.flatnonzero(same.all(axis=0)):
        if np.array_equal(matrix[:, position].astype(dtype), values.astype(dtype)):
            return int(position)
    return None
