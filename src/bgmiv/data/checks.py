"""Checks on single columns, with errors that name the column, count the bad rows and say the fix."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgmiv.errors import BGMIVWarning, DataError

__all__ = [
    "FloatArray",
    "check_binary",
    "check_finite",
    "common_float",
    "counted",
    "is_missing",
    "is_zero_one",
    "numeric",
    "role_label",
    "rows_text",
    "warn_user",
]

FloatArray = NDArray[np.floating[Any]]

_LARGEST = float(np.finfo(np.float32).max)
_SHOWN = 5
_TO_NUMBERS = "convert it to numbers first"


def role_label(argument: str, name: str) -> str:
    """How messages call the outcome, the treatment or an instrument.

    >>> role_label("treatment", "price"), role_label("outcome", "outcome")
    ("treatment 'price'", 'outcome')
    """
    return argument if name == argument else f"{argument} {name!r}"


def rows_text(bad: NDArray[np.bool_]) -> str:
    """Name the first few marked rows.

    >>> rows_text(np.array([False, True, True]))
    'rows 1, 2'
    """
    rows = np.flatnonzero(bad)
    shown = ", ".join(str(row) for row in rows[:_SHOWN])
    return f"row{'s' if len(rows) > 1 else ''} {shown}{', ...' if len(rows) > _SHOWN else ''}"


def counted(bad: NDArray[np.bool_], what: str) -> str:
    """Count the marked rows and name the first few.

    >>> counted(np.array([False, True, True]), "missing value")
    '2 missing values (rows 1, 2)'
    """
    total = int(bad.sum())
    return f"{total} {what}{'s' if total > 1 else ''} ({rows_text(bad)})"


def warn_user(message: str, category: type[BGMIVWarning] = BGMIVWarning) -> None:
    """Warn at the line outside this package that led here."""
    depth, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "bgmiv":
        depth, frame = depth + 1, frame.f_back
    warnings.warn(message, category, stacklevel=depth)


def is_missing(value: object) -> bool:
    """Whether an entry of an object column stands for "no value": None, NaN, NaT or pandas' NA.

    >>> is_missing(None), is_missing(float("nan")), is_missing("")
    (True, True, False)
    """
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, (float, np.floating)) and bool(np.isnan(value))


def numeric(values: NDArray[Any], label: str, advice: str = _TO_NUMBERS) -> NDArray[Any]:
    """Return `values` if its dtype is boolean, integer or float, and explain what it is otherwise.

    Args:
        values: one column, or an array of more dimensions, of any dtype.
        label: how messages call it.
        advice: what to do with a column of strings.

    >>> numeric(np.array(["a", "b"]), "covariates column 'region'")
    Traceback (most recent call last):
    ...
    bgmiv.errors.DataError: covariates column 'region' holds strings: convert it to numbers first.
    """
    kind = values.dtype.kind
    if kind in "biuf":
        return values
    if kind == "V" and values.dtype.names is None and "float" in values.dtype.name:
        return values.astype(np.float32)
    if kind in "UST":
        raise DataError(f"{label} holds strings: {advice}.")
    if kind == "c":
        raise DataError(f"{label} holds complex numbers. Pass real numbers, such as its real part.")
    if kind in "Mm":
        what = "dates or times" if kind == "M" else "time differences"
        raise DataError(f"{label} holds {what} ({values.dtype}). Convert it to a number of days, say.")
    if kind == "O":
        raise DataError(_explain_objects(values, label, advice))
    raise DataError(f"{label} has dtype {values.dtype}, which is not numeric: {_TO_NUMBERS}.")


def _explain_objects(values: NDArray[Any], label: str, advice: str) -> str:
    entries = values.reshape(len(values), -1)
    names = sorted({type(entry).__name__ for entry in entries.ravel().tolist()})
    if "str" in names:
        return f"{label} holds strings: {advice}."
    missing = np.array([any(is_missing(entry) for entry in row) for row in entries], dtype=bool)
    if missing.any():
        return _missing_message(label, missing)
    return (
        f"{label} has object dtype (entries of type {', '.join(names[:4])}): "
        f"use .astype(float) if these are numbers, otherwise {advice}."
    )


def _missing_message(label: str, bad: NDArray[np.bool_]) -> str:
    return f"{label} has {counted(bad, 'missing value')}: NaN, None or NA. Drop or fill these rows first."


def check_finite(values: FloatArray, labels: Sequence[str]) -> None:
    """Refuse missing, infinite and too large numbers in a matrix with one label a column.

    >>> check_finite(np.array([[0.0], [np.inf]]), ["outcome"])
    Traceback (most recent call last):
    ...
    bgmiv.errors.DataError: outcome has 1 infinite value (row 1). Drop or fill these rows first.
    """
    # The extremes carry NaN and infinity with them, so that clean data costs two passes and no copy.
    if values.size == 0 or (values.max() <= _LARGEST and values.min() >= -_LARGEST):
        return
    low, high = values.min(axis=0), values.max(axis=0)
    columns = np.flatnonzero(~((high <= _LARGEST) & (low >= -_LARGEST)))
    first, others = values[:, columns[0]], columns[1:]
    label = labels[columns[0]]
    if np.isnan(first).any():
        message = _missing_message(label, np.isnan(first))
    elif np.isinf(first).any():
        message = f"{label} has {counted(np.isinf(first), 'infinite value')}. Drop or fill these rows first."
    else:
        message = (
            f"{label} has {counted(np.abs(first) > _LARGEST, 'value')} beyond {_LARGEST:.1e}, "
            "which overflows single precision. Use larger units."
        )
    if len(others):
        shown = ", ".join(labels[column] for column in others[:_SHOWN])
        more = ", ..." if len(others) > _SHOWN else ""
        message += f" {len(others)} more column{'s' if len(others) > 1 else ''} affected: {shown}{more}."
    raise DataError(message)


def is_zero_one(values: NDArray[Any]) -> bool:
    """Whether every value is 0 or 1.

    >>> is_zero_one(np.array([0.0, 1.0])), is_zero_one(np.array([0.0, 0.5]))
    (True, False)
    """
    head = values[:1000]
    if not bool(((head == 0) | (head == 1)).all()):
        return False
    return bool(((values == 0) | (values == 1)).all())


def check_binary(values: NDArray[Any], label: str, otherwise: str) -> None:
    """Refuse finite values other than 0 and 1.

    >>> check_binary(np.array([0.0, 2.0]), "treatment", "Recode it.")
    Traceback (most recent call last):
    ...
    bgmiv.errors.DataError: treatment is binary but has 1 value (row 1) other than 0 and 1. Recode it.
    """
    if not is_zero_one(values):
        bad = (values != 0) & (values != 1)
        raise DataError(f"{label} is binary but has {counted(bad, 'value')} other than 0 and 1. {otherwise}")


def common_float(arrays: Sequence[NDArray[Any]]) -> np.dtype[Any]:
    """The floating dtype that holds all arrays: single precision if given so, otherwise double.

    >>> common_float([np.zeros(1, np.float32), np.zeros(1, bool)]), common_float([np.zeros(1, int)])
    (dtype('float32'), dtype('float64'))
    """
    dtypes = [array.dtype for array in arrays]
    if any(dtype.kind == "f" for dtype in dtypes) and np.result_type(np.float32, *dtypes) == np.float32:
        return np.dtype(np.float32)
    return np.dtype(np.float64)
