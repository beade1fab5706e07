"""Axes with round numbers, over effects and curves, for the page and for matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgmiv.analysis.analysis import Analysis, Answer, Curve
from bgmiv.numerals import number

__all__ = [
    "MIN_SUPPORT",
    "Axis",
    "answer_axis",
    "axis_over",
    "curve_axes",
    "effect_axis",
    "method_curves",
    "outside_support",
]

MIN_SUPPORT = 0.5
"""Where the data show a treatment for a smaller share of the rows, a curve is drawn as an extrapolation."""

_MAX_TICKS = 7


class Axis(NamedTuple):
    """Values from `low` to `high`, and those that are named."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """Where a value lies, in per cent of the way; no further than just outside."""
        return round(min(max(100.0 * (value - self.low) / (self.high - self.low), -400.0), 500.0), 3)

    def holds(self, value: float) -> bool:
        """Whether a value lies on the axis."""
        return self.low <= value <= self.high

    @property
    def named(self) -> list[tuple[float, str]]:
        """The named values with their names."""
        texts = [number(round(tick, 12) + 0.0, 6) if abs(tick) < 1e6 else number(tick) for tick in self.ticks]
        return list(zip(self.ticks, texts, strict=True))


def axis_over(values: Iterable[float], *, margin: float = 0.06) -> Axis:
    """An axis over all of these values, with round numbers named on it."""
    finite = [float(value) for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        width = abs(low) or 1.0
        low, high = low - width / 2.0, high + width / 2.0
    gap = margin * (high - low)
    low, high = low - gap, high + gap
    power = 10.0 ** math.floor(math.log10((high - low) / (_MAX_TICKS - 1)))
    for factor in (1.0, 2.0, 2.5, 5.0, 10.0, 20.0):
        step = factor * power
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < _MAX_TICKS:
            return Axis(low, high, tuple(k * step for k in range(first, last + 1)))
    return Axis(low, high, ())


def curve_axes(analysis: Analysis) -> tuple[Axis, Axis]:
    """The axes of treatment and g: bands where the data show the treatment, and every group's estimate.

    Curves of other methods widen it by a quarter at most on each side, and bands where there are no data not at all.
    """
    first = analysis.curves[0]
    values = [_finite(first.estimate)]
    for curve in analysis.curves:
        seen = np.asarray(curve.in_support) >= MIN_SUPPORT
        ends = [curve.estimate]
        if curve is first and curve.lower:
            ends += (curve.band_lower or curve.lower, curve.band_upper or curve.upper)
        values += [_finite(np.asarray(end)[seen if seen.any() else ~seen]) for end in ends]
    shown = np.concatenate(values)
    low, high = (shown.min(), shown.max()) if len(shown) else (0.0, 0.0)
    room = 0.25 * (high - low)
    others = [np.clip(_finite(row.curve), low - room, high + room) for row in analysis.methods]
    return axis_over(first.treatment, margin=0.0), axis_over(np.concatenate([[low, high], *others]).tolist())


def _finite(values: Any) -> NDArray[np.float64]:
    numbers = np.asarray(values, np.float64)
    return numbers[np.isfinite(numbers)]


def effect_axis(rows: Sequence[Sequence[float | None]], *, zero: bool = True) -> Axis:
    """An axis over estimates, the first of each row, and ends of intervals; those far beyond the others run out."""
    known = [numbers for row in rows if len(numbers := _finite(row))]
    zeros = [0.0] if zero else []
    middles = [row[0] for row in known] + zeros
    if not known:
        return axis_over(zeros)
    widths = sorted(float(np.ptp(row)) for row in known if len(row) > 1) or [0.0]
    reach = 3.0 * max(widths[(len(widths) - 1) // 2], 0.5 * (max(middles) - min(middles)))
    values = np.concatenate([*known, zeros])
    return axis_over(np.clip(values, min(middles) - reach, max(middles) + reach) if reach > 0.0 else values)


def answer_axis(rows: Sequence[Answer]) -> Axis:
    """An axis over average effects and their intervals."""
    return effect_axis([(row.estimate, *(end for piece in row.interval.stretches for end in piece)) for row in rows])


def outside_support(curve: Curve) -> list[tuple[float, float]]:
    """The stretches of treatment that the data show for fewer than half of the rows."""
    t, above = curve.treatment, [value - MIN_SUPPORT for value in curve.in_support]
    ends = [t[0]] if above[0] < 0 else []
    for (t0, t1), (s0, s1) in zip(pairwise(t), pairwise(above), strict=True):
        if (s0 < 0) != (s1 < 0):
            ends.append(t0 + (t1 - t0) * s0 / (s0 - s1))
    ends += [t[-1]] if above[-1] < 0 else []
    return list(zip(ends[::2], ends[1::2], strict=True))


def method_curves(analysis: Analysis) -> list[tuple[int, str, tuple[float, ...]]]:
    """The other methods' curves: number, name, values; the first method is that of the analysis itself."""
    return [(i, row.name, row.curve) for i, row in enumerate(analysis.methods) if i]
