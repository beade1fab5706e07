"""Outcome and treatment from their columns: numbers as they are, levels as codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from bgmiv.data.blocks import BlockKind, Level, category_entries, ordered_levels
from bgmiv.data.messages import FloatArray, check_binary, finite_columns, is_zero_one, role_label, warn_user
from bgmiv.data.schema import Variable
from bgmiv.data.table import Column
from bgmiv.errors import DataError

__all__ = ["RoleKind", "check_are_levels", "holds_words", "read_role"]

RoleKind = Literal["auto", "continuous", "binary", "categorical"]

_MAX_LEVELS = 50


def read_role(column: Column, argument: str, declared: str) -> tuple[FloatArray, Variable]:
    """The values `(n,)` of the outcome or the treatment, and what they are.

    Numbers stay as they are. Strings and categories become codes: two levels are 0 and 1, K levels 0 to K - 1.
    `argument` is "outcome" or "treatment"; `declared` is what the user says it is, "auto" goes by the dtype.
    """
    label = role_label(argument, column.name)
    if declared not in get_args(RoleKind):
        known = ", ".join(repr(kind) for kind in get_args(RoleKind))
        raise DataError(f"{argument}_kind must be one of {known}, got {declared!r}.")
    if declared == "categorical" or (declared != "continuous" and (column.categorical or holds_words(column))):
        entries = category_entries(column, label)
        if declared == "auto" and not column.categorical:
            check_are_levels(entries, label, f"Convert it to numbers, or say {argument}_kind='categorical'.")
        values, kind, levels = _levelled(entries, argument, label, declared)
        return values, Variable(column.name, kind, levels)
    advice = f"convert it to numbers first, or say {argument}_kind='categorical'"
    values = finite_columns([column.values], [label], advice)[:, 0]
    kind = BlockKind.binary if column.values.dtype.kind == "b" else BlockKind.continuous
    if declared != "auto":
        kind = BlockKind(declared)
        if declared == "binary":
            check_binary(values, label, f"Recode it as 0 and 1, or use {argument}_kind='continuous'.")
    elif kind is BlockKind.continuous and is_zero_one(values) and values.min() < values.max():
        warn_user(
            f"{label} holds only 0 and 1 and is taken for continuous. Say {argument}_kind='binary' to model it as "
            f"binary, or {argument}_kind='continuous' to silence this warning."
        )
    return values, Variable(column.name, kind)


def holds_words(column: Column) -> bool:
    """Whether there are strings in the column."""
    values = column.values
    return values.dtype.kind in "UST" or (values.dtype.kind == "O" and any(isinstance(v, str) for v in values.ravel()))


def check_are_levels(entries: Sequence[Level], label: str, fix: str) -> None:
    """Refuse undeclared strings that look like numbers or like identifiers."""
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
    entries: Sequence[Level], argument: str, label: str, declared: str
) -> tuple[FloatArray, BlockKind, tuple[Level, ...] | None]:
    """Codes of levels; zeros and ones need no names."""
    levels = ordered_levels(entries)
    if len(levels) == 1:
        raise DataError(f"{label} is constant, {levels[0]!r} in every row, and tells nothing. Use one that varies.")
    if len(levels) > _MAX_LEVELS:
        fix = f"Group them into fewer, or pass numbers with {argument}_kind='continuous'."
        raise DataError(f"{label} has {len(levels)} levels, more than {_MAX_LEVELS}. {fix}")
    kind = BlockKind.binary if len(levels) == 2 else BlockKind.categorical
    if declared == "binary" and len(levels) > 2:
        shown = ", ".join(map(repr, levels[:5]))
        fix = f"Recode it, or say {argument}_kind='categorical'."
        raise DataError(f"{label} is binary but has {len(levels)} levels: {shown}. {fix}")
    if len(levels) == 2 and all(not isinstance(level, str) and level in (0, 1) for level in levels):
        return np.array(entries, dtype=float), kind, None
    if argument == "outcome" and len(levels) == 2:
        # What is predicted is the probability of the second level, which must not depend on how often it is seen.
        levels = tuple(sorted(levels, key=lambda level: (isinstance(level, str), level)))
    code = {level: float(i) for i, level in enumerate(levels)}
    return np.array([code[entry] for entry in entries]), kind, levels
