"""Axes of the figures on a page: where a value lies, in per cent, and which values are named."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from bgmiv.show.analysis import Analysis, Curve
from bgmiv.show.words import number

__all__ = ["Axis", "axis_over", "curve_axes", "effect_axis", "outside_support", "tick_texts"]

_SEEN = 0.5
"""Where the data show a treatment to fewer people than this share, a curve is drawn as an extrapolation."""


class Axis(NamedTuple):
    """Values from `low` to `high`, and those that are named."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """Where a value lies, in per cent of the way; no further than just outside.

        >>> Axis(0.0, 4.0, ()).at(1.0)
        25.0
        """
        return round(min(max(100.0 * (value - self.low) / (self.high - self.low), -400.0), 500.0), 3)

    def holds(self, value: float) -> bool:
        """Whether a value lies on the axis."""
        return self.low <= value <= self.high


def axis_over(values: Iterable[float], *, margin: float = 0.06, most: int = 7) -> Axis:
    """An axis over all of these values, with round numbers named on it.

    >>> axis_over([0.0, 10.0], margin=0.0).ticks
    (0.0, 2.0, 4.0, 6.0, 8.0, 10.0)
    """
    finite = [float(value) for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        width = abs(low) or 1.0
        low, high = low - width / 2.0, high + width / 2.0
    gap = margin * (high - low)
    low, high = low - gap, high + gap
    return Axis(low, high, _ticks(low, high, most))


def _ticks(low: float, high: float, most: int) -> tuple[float, ...]:
    rough = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    for factor in (1.0, 2.0, 2.5, 5.0, 10.0, 20.0):
        step = factor * power
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first + 1 <= most:
            return tuple(k * step for k in range(first, last + 1))
    return ()


def tick_texts(axis: Axis) -> list[str]:
    """The named values as texts.

    >>> tick_texts(axis_over([0.0, 1.0], margin=0.0))
    ['0', '0.2', '0.4', '0.6', '0.8', '1']
    """
    return [number(round(tick, 12) + 0.0, 6) if abs(tick) < 1e6 else number(tick) for tick in axis.ticks]


def curve_axes(analysis: Analysis) -> tuple[Axis, Axis]:
    """The axes of treatment and g: bands where the data show the treatment, and every group's estimate.

    Curves of other methods widen it by a quarter at most on each side, and bands where there are no data not at all.
    """
    treatment = axis_over((t for curve in analysis.curves for t in curve.treatment), margin=0.0)
    values: list[float] = []
    for i, curve in enumerate(analysis.curves):
        seen = [share >= _SEEN for share in curve.in_support]
        inside = seen if any(seen) else [True] * len(seen)
        ends = (curve.estimate, *((curve.lower, curve.upper) if i == 0 and curve.lower else ()))
        values += [value for end in ends for value, shown in zip(end, inside, strict=True) if shown]
    values += analysis.curves[0].estimate
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    room = 0.25 * (high - low)
    others = [value for row in analysis.methods for value in row.curve if math.isfinite(value)]
    return treatment, axis_over([low, high, *(min(max(value, low - room), high + room) for value in others)])


def effect_axis(rows: Sequence[tuple[float | None, float | None, float | None]], *, zero: bool = True) -> Axis:
    """An axis over estimates and ends of intervals; those far beyond the others run out of it."""
    finite = [[value for value in row if value is not None and math.isfinite(value)] for row in rows]
    anchors = [row for row in finite if row]
    values = [value for row in anchors for value in row] + ([0.0] if zero else [])
    if anchors:
        widths = sorted(max(row) - min(row) for row in anchors if len(row) > 1) or [0.0]
        middles = [row[0] for row in anchors] + ([0.0] if zero else [])
        reach = 3.0 * max(widths[(len(widths) - 1) // 2], 0.5 * (max(middles) - min(middles)))
        if reach > 0.0:
            values = [min(max(value, min(middles) - reach), max(middles) + reach) for value in values]
    return axis_over(values)


def outside_support(curve: Curve) -> list[tuple[float, float]]:
    """The stretches of treatment that the data show to fewer than half of these people.

    >>> outside_support(Curve("everyone", 3, (0.0, 1.0, 2.0), (1.0, 1.0, 1.0), (), (), (1.0, 1.0, 0.0)))
    [(1.5, 2.0)]
    """
    t, share = np.asarray(curve.treatment), np.asarray(curve.in_support) - _SEEN
    stretches: list[tuple[float, float]] = []
    start = t[0] if share[0] < 0 else None
    for i in range(1, len(t)):
        if (share[i] < 0) == (share[i - 1] < 0):
            continue
        crossing = float(t[i - 1] + (t[i] - t[i - 1]) * share[i - 1] / (share[i - 1] - share[i]))
        if start is None:
            start = crossing
        else:
            stretches.append((float(start), crossing))
            start = None
    if start is not None:
        stretches.append((float(start), float(t[-1])))
    return stretches
