"""Checks on single columns, with errors that name the column, count the bad rows and say the fix."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgmiv.errors import BGMIVWarning, DataError, printable

__all__ = [
    "Array",
    "Codes",
    "Column",
    "FloatArray",
    "Floats",
    "Integers",
    "Mask",
    "Positions",
    "check_binary",
    "check_finite",
    "counted",
    "cut",
    "finite_columns",
    "first_line",
    "float_matrix",
    "is_number",
    "is_zero_one",
    "listed",
    "missing_rows",
    "name_rows",
    "name_settings",
    "naming_rows",
    "numeric",
    "plural",
    "quoted",
    "role_label",
    "row_names",
    "setting",
    "shown",
    "warn_user",
]

Array = NDArray[Any]
FloatArray = NDArray[np.floating[Any]]
Floats = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]
Codes = NDArray[np.int64]
Positions = NDArray[np.intp]
Mask = NDArray[np.bool_]

_LARGEST = float(np.finfo(np.float32).max)
_SHOWN = 5
_TO_NUMBERS = "convert it to numbers first"
# What messages call one column of a role.
_ROLES = {"instruments": "instrument", "covariates": "covariates column", "data": "column"}
# What messages call a row, and the number of each; without these, the position.
_rows: ContextVar[tuple[str, Integers | None] | None] = ContextVar("rows", default=None)


def _in_python(name: str, value: object, column: str) -> str:
    if column:
        return f"{name}[{column!r}]" if value is None else f"{name}={{{column!r}: {value!r}}}"
    return f"{name}={value!r}"


_setting: ContextVar[Callable[[str, object, str], str]] = ContextVar("setting", default=_in_python)


def setting(name: str, value: object = None, column: str = "") -> str:
    """How messages write an argument: as in Python, or in the words of the command line.

    >>> setting("missing", "drop"), setting("blocks", "binary", "age"), setting("blocks", column="age")
    ("missing='drop'", "blocks={'age': 'binary'}", "blocks['age']")
    """
    return _setting.get()(name, value, column)


def name_settings(written: Callable[[str, object, str], str]) -> None:
    """From here on messages write arguments by this function of name, value and column."""
    _setting.set(written)


class Column(NamedTuple):
    """A named column (n,), or (n, ...) for an array entry of a mapping.

    `role` is the argument it came with. It is categorical if its dtype says so; `source` is its name in the table, if
    that is another one.

    >>> Column("educ", np.arange(3), "treatment").label, Column("age", np.arange(3), "covariates").label
    ("treatment 'educ'", "covariates column 'age'")
    """

    name: str
    values: Array
    role: str = "data"
    categorical: bool = False
    source: str = ""

    @property
    def label(self) -> str:
        """How messages call it."""
        return role_label(self.role, self.name)


def role_label(role: str, name: str) -> str:
    """How messages call a column of a role."""
    if name == role:
        return role
    return f"{_ROLES.get(role, role)} {name!r}"


def listed(names: Iterable[object], max_shown: int = _SHOWN) -> str:
    """Names joined by commas, the first few if there are many."""
    texts = [str(name) for name in names]
    return ", ".join(texts[:max_shown]) + (", ..." if len(texts) > max_shown else "")


def quoted(names: Iterable[object], max_shown: int = 10) -> str:
    """Names in quotes, joined by commas, the first few if there are many."""
    return listed(map(repr, names), max_shown)


def plural(number: int, what: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{number} {what}{'s' if number != 1 else ''}"


@contextmanager
def naming_rows() -> Iterator[None]:
    """Inside it, or a function that it decorates, `name_rows` has effect, and no longer."""
    before = _rows.set(_rows.get() or ("row", None))
    try:
        yield
    finally:
        _rows.reset(before)


def name_rows(numbers: Integers, word: str = "") -> None:
    """From here on messages call the i-th row by `numbers[i]`: the line of a file, or the place among all rows.

    Numbers without a word are places among the rows that were named before, of which these are left; outside of a
    function with `naming_rows` they change nothing.
    """
    outer = _rows.get()
    if word:
        _rows.set((word, numbers))
    elif outer is not None:
        _rows.set((outer[0], numbers if outer[1] is None else outer[1][numbers]))


def row_names(marked: Mask) -> str:
    """The first few of the marked rows: `row 1`, `lines 3, 6`."""
    word, numbers = _rows.get() or ("row", None)
    if numbers is None or len(numbers) != len(marked):
        word, numbers = "row", np.arange(len(marked))
    rows = numbers[marked]
    return f"{word}{'s' if len(rows) != 1 else ''} {listed(rows.tolist())}"


def counted(marked: Mask, what: str) -> str:
    """Count the marked rows and name the first few: `2 missing values (rows 1, 4)`."""
    return f"{plural(int(marked.sum()), what)} ({row_names(marked)})"


def warn_user(message: str, category: type[Warning] = BGMIVWarning) -> None:
    """Warn at the line outside this package that led here."""
    depth, frame = 1, sys._getframe()
    # `naming_rows` calls functions of this package from contextlib.
    inside = ("bgmiv", "contextlib")
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in inside:
        depth, frame = depth + 1, frame.f_back
    warnings.warn(printable(message), category, stacklevel=depth)


def missing_rows(values: Array) -> Mask:
    """Which rows have an entry that stands for "no value": None, NaN, NaT or pandas' NA."""
    import pandas as pd

    # Pandas does not know NumPy's types of raw bytes.
    missing = pd.isna(values) if values.dtype.kind != "V" else np.zeros(values.shape, dtype=bool)
    by_row = np.asarray(missing).reshape(len(values), math.prod(values.shape[1:]))
    return np.logical_or.reduce(by_row, axis=1, dtype=bool)


def numeric(column: Column, advice: str = _TO_NUMBERS) -> Array:
    """The values of booleans, integers or floats; of anything else an error, with what to do about strings."""
    values, label, kind = column.values, column.label, column.values.dtype.kind
    if kind in "biuf" or not values.size:
        return values
    if kind == "V" and values.dtype.names is None and "float" in values.dtype.name:
        return values.astype(np.float32)
    if kind == "c":
        raise DataError(f"{label} holds complex numbers. Pass real numbers, such as its real part.")
    if kind in "Mm":
        what = "dates or times" if kind == "M" else "time differences"
        raise DataError(f"{label} holds {what} ({values.dtype}). Convert it to a number of days, say.")
    if kind not in "USTO":
        raise DataError(f"{label} has dtype {values.dtype}, which is not numeric: {_TO_NUMBERS}.")
    entries = values.ravel().tolist()
    strings = [i for i, entry in enumerate(entries) if isinstance(entry, str | bytes)]
    if strings:
        first = next((i for i in strings if not is_number(entries[i])), strings[0])
        where = row_names(np.arange(len(values)) == first * len(values) // len(entries))
        raise DataError(f"{label} holds strings, such as {shown(entries[first])} in {where}: {advice}.")
    missing = missing_rows(values)
    if missing.any():
        raise DataError(_missing_message(label, missing))
    names = sorted({type(entry).__name__ for entry in entries})[:4]
    what = f"{label} has object dtype (entries of type {', '.join(names)})"
    raise DataError(f"{what}: use .astype(float) if these are numbers, otherwise {advice}.")


def cut(text: str, max_length: int = 80) -> str:
    """The beginning of a text that is too long for a message."""
    return text if len(text) <= max_length else f"{text[: max_length - 3]}..."


def first_line(error: Exception) -> str:
    """The first line of an error's message, or what kind of error it is if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def shown(entry: object) -> str:
    """An entry as messages show it, cut if it is long."""
    return cut(repr(entry))


def is_number(entry: object) -> bool:
    """Whether an entry is a number, or a text that reads as one."""
    try:
        float(entry)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False
    return not isinstance(entry, str) or "_" not in entry


def _missing_message(label: str, marked: Mask) -> str:
    return f"{label} has {counted(marked, 'missing value')}: NaN, None or NA. Drop or fill these rows first."


def check_finite(values: FloatArray, labels: Sequence[str]) -> None:
    """Refuse missing, infinite and too large numbers in a matrix with one label a column."""
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
        message += f" {plural(len(others), 'more column')} affected: {listed(labels[column] for column in others)}."
    raise DataError(message)


def is_zero_one(values: Array) -> bool:
    """Whether every value is 0 or 1."""
    # Most columns are told by their first values.
    return all(bool(((part == 0) | (part == 1)).all()) for part in (values[:1000], values[1000:]))


def check_binary(values: Array, label: str, otherwise: str) -> None:
    """Refuse finite values other than 0 and 1."""
    if not is_zero_one(values):
        marked = (values != 0) & (values != 1)
        raise DataError(f"{label} is binary but has {counted(marked, 'value')} other than 0 and 1. {otherwise}")


def finite_columns(columns: Sequence[Column], advice: str = _TO_NUMBERS) -> FloatArray:
    """Columns `(n,)` as one matrix `(n, k)` of finite numbers; `advice` is what to do with strings."""
    flat = float_matrix([numeric(column, advice)[:, None] for column in columns])
    check_finite(flat, [column.label for column in columns])
    return flat


def float_matrix(parts: Sequence[Array]) -> FloatArray:
    """Matrices of as many rows side by side, in single precision if they are given so, otherwise in double."""
    dtypes = [part.dtype for part in parts]
    single = any(dtype.kind == "f" for dtype in dtypes) and np.result_type(np.float32, *dtypes) == np.float32
    flat = np.empty((len(parts[0]), sum(part.shape[1] for part in parts)), np.float32 if single else np.float64)
    # Numbers that overflow are refused afterwards, with the name of their column.
    with np.errstate(over="ignore"):
        return np.concatenate(parts, axis=1, out=flat, casting="unsafe")
