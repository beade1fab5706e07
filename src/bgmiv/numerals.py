"""How numbers, intervals and sets are written, the same in texts, tables, figures and pages."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["aligned", "number", "percent", "robust_set_text", "set_text", "share", "together"]


def number(value: float | None, digits: int = 3) -> str:
    """A number to so many digits.

    >>> number(0.123456), number(1234567.0), number(-12.0), number(None), number(float("inf"))
    ('0.123', '1,234,567', '-12', 'n/a', 'infinity')
    """
    if value is None or math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return "infinity" if value > 0 else "-infinity"
    size = abs(value)
    if size and not 1e-4 <= size < 1e9:
        return f"{value:.{digits - 1}e}"
    if size >= 10**digits:
        return f"{value:,.0f}"
    return f"{float(f'{value:.{digits}g}'):g}"


def together(*values: float | None) -> tuple[str, ...]:
    """Numbers that are read together, with the decimals that their differences need."""
    return aligned([values])[0]


def set_text(lower: float | None, upper: float | None) -> str:
    """The ends of a set that may have none, or hold every number.

    >>> set_text(-math.inf, math.inf), set_text(math.nan, math.nan), set_text(0.25, math.inf)
    ('every number', 'empty', '0.250 to infinity')
    """
    if lower is None or upper is None or math.isnan(lower):
        return "empty"
    return "every number" if upper - lower == math.inf and lower == -upper else " to ".join(together(lower, upper))


def robust_set_text(pieces: Sequence[tuple[float, float]]) -> str:
    """A weak-instrument-robust set in words.

    >>> robust_set_text([(-math.inf, 1.0), (2.0, math.inf)]), robust_set_text([])
    ('-infinity to 1.00 or 2.00 to infinity', 'empty: no effect fits')
    """
    return " or ".join(set_text(*pair) for pair in pieces) or "empty: no effect fits"


def aligned(rows: Sequence[Sequence[float | None]]) -> list[tuple[str, ...]]:
    """Rows of numbers that are read together, all with the decimals that a usual row needs.

    >>> aligned([(0.503, 0.405, 0.601), (0.31, 0.27, 0.35), (0.37, None, None)])
    [('0.503', '0.405', '0.601'), ('0.310', '0.270', '0.350'), ('0.370', 'n/a', 'n/a')]
    >>> aligned([(3.0, -14.6, 20.6), (-0.0899, 0.018)])
    [('3.0', '-14.6', '20.6'), ('-0.090', '0.018')]
    """
    needed = [_decimals(row) for row in rows]
    usual = sorted(decimals for decimals in needed if decimals is not None)
    common = usual[(len(usual) - 1) // 2] if usual else None
    # A row of quite another size keeps its own: with those of the others it would show nothing, or too much.
    kept = [common if own is not None and common is not None and abs(own - common) < 2 else own for own in needed]
    return [tuple(_fixed(value, decimals) for value in row) for row, decimals in zip(rows, kept, strict=True)]


def _decimals(values: Sequence[float | None]) -> int | None:
    """How many decimals show the differences; None if some of these numbers need powers of ten."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    largest = max((abs(value) for value in finite), default=0.0)
    scale = max(finite, default=0.0) - min(finite, default=0.0) or largest
    if not scale or scale < 1e-4 or largest >= 1e9:
        return None
    return min(max(2 - math.floor(math.log10(scale)), 0), 8)


def _fixed(value: float | None, decimals: int | None) -> str:
    if value is None or not math.isfinite(value) or decimals is None or abs(value) >= 1e9:
        return number(value)
    text = f"{value:,.{decimals}f}"
    return text.lstrip("-") if not text.strip("-0.,") else text


def percent(level: float) -> str:
    """A level of intervals, such as "95%" or "99.5%"."""
    return f"{100.0 * level:.4g}%"


def share(value: float) -> str:
    """A share of rows; one that is not all is never shown as all, nor a small one as none."""
    if math.isnan(value):
        return "n/a"
    if 0.0 < value < 0.01:
        return "<1%"
    return ">99%" if 0.99 < value < 1.0 else f"{value:.0%}"
