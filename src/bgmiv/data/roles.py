"""Outcome and treatment from their columns: numbers as they are, levels as codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from bgmiv.data.blocks import BlockKind, Level
from bgmiv.data.checks import (
    FloatArray,
    check_binary,
    check_finite,
    common_float,
    is_zero_one,
    numeric,
    role_label,
    warn_user,
)
from bgmiv.data.columns import Column
from bgmiv.data.encode import category_entries, level_codes, ordered_levels
from bgmiv.data.schema import Variable
from bgmiv.errors import DataError

__all__ = ["RoleKind", "check_are_levels", "holds_words", "read_role"]

RoleKind = Literal["auto", "continuous", "binary", "categorical"]

_MOST_LEVELS = 50


def read_role(column: Column, argument: str, declared: str) -> tuple[FloatArray, Variable]:
    """The values `(n,)` of the outcome or the treatment, and what they are.

    Numbers stay as they are. Strings and categories become codes: two levels are 0 and 1, K levels 0 to K - 1.

    Args:
        column: the column.
        argument: "outcome" or "treatment".
        declared: what the user says it is; "auto" goes by the dtype.

    >>> column = Column("dose", np.array(["low", "none", "none", "high"]))
    >>> values, variable = read_role(column, "treatment", "categorical")
    >>> values, variable.levels
    (array([1., 0., 0., 2.]), ('none', 'low', 'high'))
    """
    label = role_label(argument, column.name)
    if declared not in get_args(RoleKind):
        known = ", ".join(repr(kind) for kind in get_args(RoleKind))
        raise DataError(f"{argument}_kind must be one of {known}, got {declared!r}.")
    words = holds_words(column)
    if declared == "categorical" or (declared != "continuous" and (words or column.categorical)):
        entries = category_entries(column, label)
        if declared == "auto" and not column.categorical:
            fix = f"Convert it to numbers, or say {argument}_kind='categorical'."
            check_are_levels(entries, label, fix)
        return _levelled(column, entries, argument, label, declared)
    advice = f"convert it to numbers first, or say {argument}_kind='categorical'"
    array = numeric(column.values, label, advice)
    with np.errstate(over="ignore"):
        values = np.array(array, dtype=common_float([array]))
    check_finite(values[:, None], [label])
    return values, Variable(column.name, _number_kind(array.dtype.kind == "b", values, argument, label, declared))


def holds_words(column: Column) -> bool:
    """Whether there are strings in the column.

    >>> holds_words(Column("region", np.array(["s", None], dtype=object)))
    True
    """
    values = column.values
    return values.dtype.kind in "UST" or (values.dtype.kind == "O" and any(isinstance(v, str) for v in values.ravel()))


def check_are_levels(entries: Sequence[Level], label: str, fix: str) -> None:
    """Refuse undeclared strings that look like numbers or like identifiers.

    >>> check_are_levels(["1", "2", "1", "2"], "treatment", "Convert it.")
    Traceback (most recent call last):
    ...
    bgmiv.errors.DataError: treatment holds strings that are numbers. Convert it.
    """
    levels = set(entries)
    if all(_is_number(level) for level in levels):
        raise DataError(f"{label} holds strings that are numbers. {fix}")
    if 2 * len(levels) > len(entries):
        raise DataError(f"{label} holds strings, {len(levels)} different ones in {len(entries)} rows. {fix}")


def _is_number(level: Level) -> bool:
    try:
        float(level)
    except ValueError:
        return False
    return True


def _levelled(
    column: Column, entries: Sequence[Level], argument: str, label: str, declared: str
) -> tuple[FloatArray, Variable]:
    levels = ordered_levels(entries)
    if len(levels) == 1:
        raise DataError(f"{label} is constant, {levels[0]!r} in every row, and tells nothing. Use one that varies.")
    if len(levels) > _MOST_LEVELS:
        raise DataError(
            f"{label} has {len(levels)} levels, more than {_MOST_LEVELS}. Group them into fewer, or pass numbers with "
            f"{argument}_kind='continuous'."
        )
    if len(levels) > 2:
        if declared == "binary":
            shown = ", ".join(map(repr, levels[:5]))
            raise DataError(
                f"{label} is binary but has {len(levels)} levels: {shown}. Recode it, or say "
                f"{argument}_kind='categorical'."
            )
        return level_codes(column, levels, label).astype(float), Variable(column.name, BlockKind.categorical, levels)
    if all(not isinstance(level, str) and level in (0, 1) for level in levels):
        return np.array(entries, dtype=float), Variable(column.name, BlockKind.binary)
    if argument == "outcome":
        # What is predicted is the probability of the second level, which must not depend on how often it is seen.
        levels = tuple(sorted(levels, key=lambda level: (isinstance(level, str), level)))
    return level_codes(column, levels, label).astype(float), Variable(column.name, BlockKind.binary, levels)


def _number_kind(boolean: bool, values: FloatArray, argument: str, label: str, declared: str) -> BlockKind:
    if declared == "binary":
        check_binary(values, label, f"Recode it as 0 and 1, or use {argument}_kind='continuous'.")
    if declared != "auto":
        return BlockKind(declared)
    if boolean:
        return BlockKind.binary
    if is_zero_one(values) and values.min() < values.max():
        warn_user(
            f"{label} holds only 0 and 1 and is taken for continuous. Say {argument}_kind='binary' to model it as "
            f"binary, or {argument}_kind='continuous' to silence this warning."
        )
    return BlockKind.continuous
