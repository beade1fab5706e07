"""Axes, for all figures; and those of the page as SVG that fits any width, with positions in per cent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgmiv.analysis.analysis import Analysis, Answer, Curve, HistoryLine
from bgmiv.analysis.instruments import BinnedMeans
from bgmiv.analysis.markup import Markup, clean, element, filled, joined, sentence
from bgmiv.numerals import aligned, number, percent, share

__all__ = [
    "MIN_SUPPORT", "Axis", "ForestRow", "answer_axis", "axis_over", "binned_chart", "curve_axes", "curve_chart",
    "effect_axis", "forest", "level_charts", "lines_chart", "look_of", "outside_support", "sparkline",
]  # fmt: skip

Values = Sequence[float]

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
    for step in power * np.array([1.0, 2.0, 2.5, 5.0, 10.0, 20.0]):
        ticks = step * np.arange(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
        if len(ticks) <= _MAX_TICKS:
            break
    return Axis(low, high, tuple(ticks.tolist()))


def curve_axes(analysis: Analysis) -> tuple[Axis, Axis]:
    """The axes of treatment and g: bands where the data show the treatment, and every group's estimate.

    Curves of other methods widen it by a quarter at most on each side, and bands where there are no data not at all.
    """
    first = analysis.curves[0]
    values: list[Any] = [curve.estimate for curve in analysis.curves]
    seen = np.asarray(first.in_support) >= MIN_SUPPORT
    if first.lower:
        values += [np.asarray(first.band_lower)[seen], np.asarray(first.band_upper)[seen]]
    shown = _finite(np.concatenate(values))
    low, high = (shown.min(), shown.max()) if len(shown) else (0.0, 0.0)
    room = 0.25 * (high - low)
    others = [np.clip(_finite(row.curve), low - room, high + room) for row in analysis.methods]
    return axis_over(first.treatment, margin=0.0), axis_over(np.concatenate([[low, high], *others]))


def _finite(values: Any) -> NDArray[np.float64]:
    numbers = np.asarray(values, np.float64)
    return numbers[np.isfinite(numbers)]


def effect_axis(rows: Sequence[Sequence[float | None]], *, zero: bool = True) -> Axis:
    """An axis over estimates, the first of each row, and ends of intervals; those far beyond the others run out."""
    known = [numbers for row in rows if len(numbers := _finite(row))]
    zeros = [0.0] if zero or not known else []
    middles = [row[0] for row in known] + zeros
    widths = sorted(float(np.ptp(row)) for row in known if len(row) > 1) or [0.0]
    reach = 3.0 * max(widths[(len(widths) - 1) // 2], 0.5 * (max(middles) - min(middles)))
    values = np.concatenate([*known, zeros])
    return axis_over(np.clip(values, min(middles) - reach, max(middles) + reach))


def answer_axis(rows: Sequence[Answer]) -> Axis:
    """An axis over average effects and their intervals."""
    return effect_axis([(row.estimate, *(end for piece in row.interval.stretches for end in piece)) for row in rows])


def outside_support(curve: Curve) -> list[tuple[float, float]]:
    """The stretches of treatment that the data show for fewer than half of the rows, halfway to the next point."""
    t, outside = np.asarray(curve.treatment), np.asarray(curve.in_support) < MIN_SUPPORT
    borders = np.concatenate([t[:1], (t[:-1] + t[1:]) / 2.0, t[-1:]])
    ends = borders[np.diff(outside, prepend=False, append=False)].tolist()
    return list(zip(ends[::2], ends[1::2], strict=True))


def look_of(analysis: Analysis, i: int) -> str:
    """The class of style of the method of this number: the analysis's own is 0, others take turns at five."""
    if analysis.methods[i].note == "truth":
        return "truth"
    return f"m{(i - 1) % 5 + 1}" if i else "main"


class _Plane(NamedTuple):
    """Two axes, and what is drawn between them."""

    across: Axis
    up: Axis

    def x(self, value: float) -> str:
        return f"{self.across.at(value):.3f}%"

    def y(self, value: float) -> str:
        return f"{100.0 - self.up.at(value):.3f}%"

    def path(self, t: Values, values: Values) -> str:
        pairs = [(a, b) for a, b in zip(t, values, strict=True) if math.isfinite(b)]
        points = [f"{10 * self.across.at(a):.1f} {1000 - 10 * self.up.at(b):.1f}" for a, b in pairs]
        return "M" + "L".join(points) if points else "M0 0"

    def line(self, t: Values, values: Values, look: str, **attributes: object) -> Markup:
        return element("path", d=self.path(t, values), class_=f"line {look}", **attributes)

    def band(self, t: Values, lower: Values, upper: Values, look: str, *, hidden: bool = False) -> Markup:
        area = f"{self.path(t, upper)}L{self.path(t[::-1], lower[::-1])[1:]}Z"
        return element("path", d=area, class_=f"band {look}", hidden=hidden)

    def frame(self) -> Markup:
        """Lines at round numbers, and the numbers."""
        ticks = [
            filled("tick-up", y=self.y(tick), look="grid" if tick else "zero", text=text)
            for tick, text in self.up.named
        ]
        ticks += [filled("tick-across", x=self.x(tick), text=text) for tick, text in self.across.named]
        return filled("frame", ticks=ticks)

    def chart(self, label: str, lines: list[Markup], dots: list[Markup] | None = None) -> Markup:
        """A small chart of lines, which are stretched with it, and dots, which are not."""
        return filled("chart", label=label, frame=self.frame(), lines=filled("stretched", drawn=lines), dots=dots)


def curve_chart(analysis: Analysis) -> Markup:
    """The curves of all groups, the first of them shown, with bands, hatched where data are thin, and other methods."""
    plane, curves = _Plane(*curve_axes(analysis)), analysis.curves
    shades, lines = [], []
    for i, curve in enumerate(curves):
        hatched = []
        for ends in outside_support(curve):
            start, end = map(plane.across.at, ends)
            hatched.append(filled("hatched", x=f"{start:.3f}%", width=f"{end - start:.3f}%"))
        shades.append(element("g", *hatched, data_curve=i, hidden=i > 0))
        lines.append(element("g", *_curve(curve, plane), data_curve=i, hidden=i > 0))
    for i, row in analysis.others:
        hidden = row.note != "truth"
        lines.append(plane.line(curves[0].treatment, row.curve, look_of(analysis, i), data_method=i, hidden=hidden))
    return filled(
        "curve-chart",
        label=f"Curve of {clean(analysis.question.outcome_meaning)} along {clean(analysis.question.treatment)}",
        shades=shades,
        frame=plane.frame(),
        lines=filled("stretched", drawn=lines),
    )


def _curve(curve: Curve, plane: _Plane) -> list[Markup]:
    """The curve and its bands."""
    t, parts = curve.treatment, []
    if curve.lower:
        parts.append(plane.band(t, curve.band_lower, curve.band_upper, "outer"))
        parts.append(plane.band(t, curve.lower, curve.upper, "inner", hidden=True))
    return [*parts, plane.line(t, curve.estimate, "main")]


def lines_chart(place: Values, lines: Mapping[str, Sequence[Values]], across: Axis, up: Axis, label: str) -> Markup:
    """Lines by their classes of style, each with the ends of its band behind them, if it has one."""
    plane = _Plane(across, up)
    drawn = [plane.band(place, ends[0], ends[1], look) for look, (_, *ends) in lines.items() if ends]
    drawn += [plane.line(place, values, look) for look, (values, *_) in lines.items()]
    return plane.chart(label, drawn)


def binned_chart(means: BinnedMeans, label: str) -> Markup:
    """Means in bins as dots with their intervals, and the line of the linear regression."""
    across, up = axis_over(means.place), axis_over([*means.lower, *means.upper, *means.fitted])
    plane, dots = _Plane(across, up), []
    for place, *ends in zip(means.place, means.upper, means.mean, means.lower, strict=True):
        top, y, bottom = map(plane.y, ends)
        dots.append(filled("mean", x=plane.x(place), y=y, bottom=bottom, top=top))
    return plane.chart(label, [plane.line(means.place, means.fitted, "m1")], dots)


def sparkline(line: HistoryLine) -> Markup:
    """One loss along training."""
    steps, values = line.steps, line.values
    path = _Plane(axis_over(steps, margin=0.0), axis_over(values)).line(steps, values, "main thin")
    label = f"from {number(values[0])} to {number(values[-1])}"
    return filled("spark", name=line.name, label=label, line=filled("stretched", drawn=path))


@dataclass(frozen=True)
class ForestRow:
    """A line of a forest plot: texts on the left and on the right of the drawing, and what is drawn."""

    label: str
    note: str
    value: str
    interval: str
    estimate: float | None  # where the mark is, if there is one
    stretches: tuple[tuple[float, float], ...]  # the intervals, whose ends may be infinite
    look: str = "main"  # a class of style: "main", "m1", ... or "faint"
    curve: int | None = None  # the number of the group it stands for, if it does


def forest(rows: Sequence[ForestRow], axis: Axis, *, caption: str, head: tuple[str, str]) -> Markup:
    """A table with a drawing of every estimate and interval beside its numbers, and a line at zero."""
    lines = []
    for row in rows:
        group = None if row.curve is None else Markup(f' data-row="{row.curve:d}"')
        lines.append(filled("forest-row", group=group, row=row, drawing=_bar(row, axis)))
    ticks = [element("text", text, x=f"{axis.at(tick)}%", y=13, text_anchor="middle") for tick, text in axis.named]
    return filled("forest", caption=caption, head=head, rows=lines, ticks=ticks)


def _bar(row: ForestRow, axis: Axis) -> list[Markup]:
    parts = []
    if axis.holds(0.0):
        parts.append(filled("zero", x=f"{axis.at(0.0)}%"))
    for low, high in row.stretches:
        start, end = max(axis.at(low), 0.0), min(axis.at(high), 100.0)
        parts.append(filled("reach", start=start, end=end, look=row.look))
    if row.estimate is not None and axis.holds(row.estimate):
        parts.append(filled("mark", x=axis.at(row.estimate), look=row.look))
    return parts


def level_charts(analysis: Analysis) -> Markup:
    """Forest plots of a treatment's levels, one for each group, the first of them shown."""
    numbers = [[(at["estimate"], at["lower"], at["upper"]) for at in curve.records()] for curve in analysis.curves]
    axis = effect_axis([row for group in numbers for row in group], zero=False)
    meaning = clean(analysis.question.outcome_meaning)
    head = (sentence(meaning).rstrip("."), f"{percent(analysis.level)} interval")
    charts = []
    for i, curve in enumerate(analysis.curves):
        rows = []
        for at, (text, low, high) in zip(curve.records(), aligned(numbers[i]), strict=True):
            name, seen = analysis.question.treatment_text(at["treatment"]), at["in_support"]
            note = f"in support for {share(seen)} of {analysis.units}"
            look = "main" if seen >= MIN_SUPPORT else "faint"
            interval, ends = (f"{low} to {high}", ((at["lower"], at["upper"]),)) if curve.lower else ("none", ())
            rows.append(ForestRow(name, note, text, interval, at["estimate"], ends, look))
        table = forest(rows, axis, caption=f"{meaning}: {clean(curve.group.label)}", head=head)
        charts.append(element("div", table, data_curve=i, hidden=i > 0))
    return joined(*charts)
