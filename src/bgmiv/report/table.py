"""One kind of table for every report: values, which of them are bold, and what must be said about them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from bgmiv.bench.summary import Spread

__all__ = ["DASH", "Mark", "Number", "PValue", "Table", "Value", "digits_for"]

DASH = "–"
"""What stands where there is no value."""


class Number(NamedTuple):
    """A number that is shown with its own count of digits after the point.

    >>> str(Number(5.8567, 2))
    '5.86'
    """

    value: float
    digits: int

    def __str__(self) -> str:
        return f"{self.value:.{self.digits}f}"


class PValue(NamedTuple):
    """A p-value, shown as the paper shows them.

    >>> str(PValue(0.01234)), str(PValue(1.234e-6)), str(PValue(0.0))
    ('0.0123', '1.23e-06', '0')
    """

    value: float

    def __str__(self) -> str:
        return f"{self.value:.4f}" if self.value >= 1e-4 else "0" if self.value == 0 else f"{self.value:.2e}"


Value: TypeAlias = str | int | Number | PValue | Spread | None


class Mark(Enum):
    """What must be said about a single cell: a sign, a word for files of numbers, and the footnote."""

    MIXED = ("†", "mixed", "The rows behind this cell come from several versions of the code, settings or libraries.")
    FAILED = ("‡", "failed", "Some fits of this cell failed; the numbers are over the others.")

    def __init__(self, sign: str, word: str, footnote: str) -> None:
        self.sign, self.word, self.footnote = sign, word, footnote


@dataclass(frozen=True)
class Table:
    """A table before it is Markdown, CSV, LaTeX or HTML.

    Args:
        name: the stem of its files.
        title: what it shows, with the unit.
        header: a text a column.
        rows: a value a column; None where there is none.
        bold: positions (row, column) of the best values.
        marks: what must be said about single cells, by position.
        notes: sentences under it; the footnotes of its marks follow them by themselves.
        constants: what is the same in every row, such as the design: columns in CSV only.
        digits: digits after the point of spreads.
        column_digits: the same for single columns that differ.
        usual: the number of values that a note gives; spreads with another number show theirs in brackets.
        grouped: whether a new value in the first column starts a new group of rows.

    Raises:
        ValueError: a row has another length than the header.

    Example
    -------
    >>> table = Table("t", "Errors", ("n", "2SLS"), ((100, Spread(0.5, 0.125, 20)),), digits=3)
    >>> table.texts
    (('100', '0.500 ± 0.125'),)
    """

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    bold: frozenset[tuple[int, int]] = frozenset()
    marks: Mapping[tuple[int, int], tuple[Mark, ...]] = field(default_factory=dict, hash=False)
    notes: tuple[str, ...] = ()
    constants: tuple[tuple[str, str], ...] = ()
    digits: int = 2
    column_digits: Mapping[int, int] = field(default_factory=dict, hash=False)
    usual: int | None = None
    grouped: bool = False

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(f"a row of table {self.name!r} has {len(row)} values for {len(self.header)} columns")

    @property
    def texts(self) -> tuple[tuple[str, ...], ...]:
        """Every value as it is read, without marks."""
        return tuple(tuple(self._text(value, j) for j, value in enumerate(row)) for row in self.rows)

    def signs(self, row: int, column: int) -> str:
        """The signs of the marks of one cell."""
        return "".join(mark.sign for mark in self.marks.get((row, column), ()))

    @property
    def footnotes(self) -> tuple[str, ...]:
        """The notes, and a line for each kind of mark in use."""
        used = {mark for marks in self.marks.values() for mark in marks}
        return (*self.notes, *(f"{mark.sign} {mark.footnote}" for mark in Mark if mark in used))

    @property
    def left(self) -> frozenset[int]:
        """Columns of words, which stand on the left; numbers stand on the right."""
        return frozenset(
            column
            for column in range(len(self.header))
            if any(isinstance(row[column], str) for row in self.rows)
            and all(isinstance(row[column], str | None) for row in self.rows)
        )

    @property
    def group_starts(self) -> frozenset[int]:
        """Rows that start a new group, the first row apart."""
        if not self.grouped:
            return frozenset()
        return frozenset(i for i in range(1, len(self.rows)) if self.rows[i][0] != self.rows[i - 1][0])

    def _text(self, value: Value, column: int) -> str:
        if value is None:
            return DASH
        if not isinstance(value, Spread):
            return str(value)
        if value.values == 0:
            return DASH
        digits = self.column_digits.get(column, self.digits)
        shown = f"{value.mean:.{digits}f}"
        if value.values > 1:
            shown += f" ± {value.deviation:.{digits}f}"
        return f"{shown} ({value.values})" if self.usual not in (None, value.values) else shown


def digits_for(spreads: list[Spread], *, least: int = 2, most: int = 6) -> int:
    """Digits after the point with which the smallest mean still shows two significant ones.

    >>> digits_for([Spread(0.58, 0.14, 20)]), digits_for([Spread(0.0213, 0.01, 20)])
    (2, 3)
    """
    means = [abs(spread.mean) for spread in spreads if spread.values and spread.mean != 0]
    if not means:
        return least
    return min(most, max(least, 1 - math.floor(math.log10(min(means)))))
