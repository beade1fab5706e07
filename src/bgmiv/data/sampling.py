"""How rows were sampled: weights, and groups of rows that belong together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgmiv.data.checks import FloatArray, check_finite, counted, numeric, role_label
from bgmiv.data.columns import Column
from bgmiv.data.encode import category_entries
from bgmiv.data.overlap import find_equal
from bgmiv.errors import DataError

__all__ = ["check_sampling_names", "check_sampling_values", "read_groups", "read_weights"]

# What a column may not be beside its role; clustering on a covariate or an instrument is common, and so is a covariate
# that decides the sampling.
_NOT_WEIGHTS = ("outcome", "treatment", "instruments")
_NOT_GROUPS = ("outcome", "treatment")


def read_weights(column: Column) -> FloatArray:
    """Sample weights `(n,)` of mean one: numbers of at least zero, two or more of them positive.

    >>> read_weights(Column("weights", np.array([1, 3, 0])))
    array([0.75, 2.25, 0.  ])
    """
    label = role_label("weights", column.name)
    values = np.array(numeric(column.values, label), dtype=np.float64)
    check_finite(values[:, None], [label])
    if (values < 0).any():
        raise DataError(
            f"{label}: {counted(values < 0, 'negative value')}. A weight says how many rows a row stands for: pass "
            "numbers of at least 0."
        )
    if np.count_nonzero(values) < 2:
        raise DataError(f"{label}: fewer than two rows have a positive weight. Pass weights for the rows to be used.")
    return np.asarray(values / values.max() / np.mean(values / values.max()))


def read_groups(column: Column) -> NDArray[np.int64]:
    """The group of each row `(n,)` as a code from 0, in order of appearance; there are two groups or more.

    >>> read_groups(Column("state", np.array(["ny", "ca", "ny"])))
    array([0, 1, 0])
    """
    label = role_label("groups", column.name)
    codes: dict[Any, int] = {}
    entries = category_entries(column, label)
    found = np.array([codes.setdefault(entry, len(codes)) for entry in entries], dtype=np.int64)
    if len(codes) < 2:
        raise DataError(f"{label}: every row is in one group, {entries[0]!r}. Pass at least two groups, or none.")
    return found


def check_sampling_names(weights: str | None, groups: str | None, roles: Mapping[str, Iterable[str]]) -> None:
    """Refuse the name of a column that is weights or groups and has a role that forbids it.

    >>> check_sampling_names("wage", None, {"outcome": ["wage"]})
    Traceback (most recent call last):
    ...
    bgmiv.errors.DataError: 'wage' is given both as weights and as outcome. Use another column for the weights.
    """
    for argument, name, forbidden in (("weights", weights, _NOT_WEIGHTS), ("groups", groups, _NOT_GROUPS)):
        for role in forbidden:
            if name is not None and name in roles.get(role, ()):
                raise DataError(
                    f"{name!r} is given both as {argument} and as {role}. Use another column for the {argument}."
                )


def check_sampling_values(weights: Column | None, groups: Column | None, roles: Mapping[str, FloatArray]) -> None:
    """Refuse weights or groups that are the numbers `(n, k)` of a role that forbids it.

    >>> y = np.array([1.0, 2.0, 4.0])
    >>> check_sampling_values(Column("weights", y), None, {"outcome": y[:, None]})
    Traceback (most recent call last):
    ...
    bgmiv.errors.DataError: weights: identical to the outcome in every row. Pass the right column.
    """
    for argument, column, forbidden in (("weights", weights, _NOT_WEIGHTS), ("groups", groups, _NOT_GROUPS)):
        if column is None or column.values.dtype.kind not in "biuf":
            continue
        for role in forbidden:
            if find_equal(column.values.astype(np.float64), roles.get(role, np.zeros((0, 0)))) is not None:
                label = role_label(argument, column.name)
                raise DataError(f"{label}: identical to the {role} in every row. Pass the right column.")
