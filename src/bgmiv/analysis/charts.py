"""Figures of the page as SVG that fits any width: positions are in per cent, lines and letters in pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bgmiv.analysis.analysis import Analysis, Curve, HistoryLine
from bgmiv.analysis.axes import MIN_SUPPORT, Axis, axis_over, curve_axes, effect_axis, method_curves, outside_support
from bgmiv.analysis.instruments import BinnedMeans
from bgmiv.analysis.markup import Markup, clean, element, filled, joined, sentence
from bgmiv.diagnostics.explanations import Check
from bgmiv.numerals import aligned, number, percent, share

__all__ = [
    "MARKS", "ForestRow", "Line", "binned_chart", "curve_chart", "forest", "level_charts", "lines_chart", "look_of",
    "meter", "sample", "shape_bars", "sparkline",
]  # fmt: skip

MARKS = ("circle", "square", "diamond", "up", "down")
"""Shapes that tell methods apart where colours cannot."""

_SHAPES = {
    "circle": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z",
    "square": "M-4.4 -4.4h8.8v8.8h-8.8z",
    "diamond": "M0 -6l6 6l-6 6l-6 -6z",
    "up": "M0 -5.5l5.5 9.5h-11z",
    "down": "M0 5.5l5.5 -9.5h-11z",
    "left": "M-1 0l8 -4.5v9z",
    "right": "M1 0l-8 -4.5v9z",
}


def look_of(analysis: Analysis, i: int) -> str:
    """The class of style of the method of this number: the analysis's own is 0, others take turns at five."""
    if i == 0:
        return "main"
    return "truth" if analysis.methods[i].note == "truth" else f"m{(i - 1) % 5 + 1}"


def sample(analysis: Analysis, i: int) -> Markup:
    """A short piece of a method's line, or its mark, for the legend."""
    look = look_of(analysis, i)
    drawn = filled("sample-line", look=look)
    if analysis.question.level_names:
        drawn = filled("sample-mark", mark=_mark(50.0, MARKS[i % len(MARKS)], look))
    return filled("sample", drawn=drawn)


class _Plane(NamedTuple):
    """Two axes, and what is drawn between them."""

    across: Axis
    up: Axis

    def x(self, value: float) -> str:
        return f"{self.across.at(value):.3f}%"

    def y(self, value: float) -> str:
        return f"{100.0 - self.up.at(value):.3f}%"

    def path(self, t: Sequence[float], values: Sequence[float]) -> str:
        pairs = [(a, b) for a, b in zip(t, values, strict=True) if math.isfinite(b)]
        points = [f"{10 * self.across.at(a):.1f} {1000 - 10 * self.up.at(b):.1f}" for a, b in pairs]
        return "M" + "L".join(points) if points else "M0 0"

    def line(self, t: Sequence[float], values: Sequence[float], look: str, **attributes: object) -> Markup:
        return element("path", d=self.path(t, values), class_=f"line {look}", **attributes)

    def band(
        self, t: Sequence[float], lower: Sequence[float], upper: Sequence[float], look: str, *, hidden: bool = False
    ) -> Markup:
        area = f"{self.path(t, upper)}L{self.path(t[::-1], lower[::-1])[1:]}Z"
        return element("path", d=area, class_=f"band {look}".rstrip(), hidden=hidden)

    def hatched(self, stretches: Sequence[tuple[float, float]], **attributes: object) -> Markup:
        parts = []
        for start, end in stretches:
            width = f"{self.across.at(end) - self.across.at(start):.3f}%"
            parts.append(filled("hatched", x=self.x(start), width=width))
        return element("g", *parts, **attributes)

    def frame(self) -> Markup:
        """Lines at round numbers, and the numbers."""
        ticks = []
        for tick, text in self.up.named:
            ticks.append(filled("tick-up", y=self.y(tick), look="zero" if tick == 0 else "grid", text=text))
        for tick, text in self.across.named:
            ticks.append(filled("tick-across", x=self.x(tick), text=text))
        return filled("frame", ticks=ticks)


def curve_chart(analysis: Analysis) -> Markup:
    """The curves of all groups, the first of them shown, with bands, hatched where data are thin, and other methods."""
    plane, curves = _Plane(*curve_axes(analysis)), analysis.curves
    shades = [plane.hatched(outside_support(curve), data_curve=i, hidden=i > 0) for i, curve in enumerate(curves)]
    lines = [element("g", *_curve(curve, plane), data_curve=i, hidden=i > 0) for i, curve in enumerate(curves)]
    for i, _, values in method_curves(analysis):
        hidden = analysis.methods[i].note != "truth"
        lines.append(plane.line(curves[0].treatment, values, look_of(analysis, i), data_method=i, hidden=hidden))
    return filled(
        "curve-chart",
        label=f"Curve of {clean(analysis.question.outcome_meaning)} along {clean(analysis.question.treatment)}",
        shades=shades,
        frame=plane.frame(),
        lines=filled("stretched", drawn=lines),
    )


def _curve(curve: Curve, plane: _Plane) -> list[Markup]:
    """Bands, a faint line, and a strong one over it where the data show the treatment."""
    t, parts = curve.treatment, []
    if curve.band_lower:
        parts.append(plane.band(t, curve.band_lower, curve.band_upper, ""))
    if curve.lower:
        both = bool(curve.band_lower)
        parts.append(plane.band(t, curve.lower, curve.upper, "inner" if both else "", hidden=both))
    parts.append(plane.line(t, curve.estimate, "faint"))
    ends = [t[0], *(end for pair in outside_support(curve) for end in pair), t[-1]]
    for start, stop in zip(ends[::2], ends[1::2], strict=True):
        if stop > start:
            inside = [start, *(place for place in t if start < place < stop), stop]
            parts.append(plane.line(inside, np.interp(inside, t, curve.estimate).tolist(), "main"))
    return parts


class Line(NamedTuple):
    """A line of a chart: its class of style, places and values, and the ends of its band, if it has one."""

    look: str
    place: Sequence[float]
    values: Sequence[float]
    lower: Sequence[float] = ()
    upper: Sequence[float] = ()


def lines_chart(lines: Sequence[Line], across: Axis, up: Axis, label: str) -> Markup:
    """Lines with their bands behind them."""
    plane = _Plane(across, up)
    drawn = [plane.band(line.place, line.lower, line.upper, line.look) for line in lines if len(line.lower)]
    drawn += [plane.line(line.place, line.values, line.look) for line in lines]
    return filled("chart", label=label, frame=plane.frame(), lines=filled("stretched", drawn=drawn), dots=None)


def binned_chart(means: BinnedMeans, label: str) -> Markup:
    """Means in bins as dots with their intervals, and the line of the linear regression."""
    across, up = axis_over(means.place, margin=0.08), axis_over([*means.lower, *means.upper, *means.fitted])
    if len(means.place) <= 3:
        across = Axis(across.low, across.high, means.place)
    plane, dots = _Plane(across, up), []
    for row in means.records():
        top, y, bottom = (plane.y(row[name]) for name in ("upper", "mean", "lower"))
        dots.append(filled("mean", x=plane.x(row["place"]), y=y, bottom=bottom, top=top))
    line = filled("stretched", drawn=plane.line(means.place, means.fitted, "m1"))
    return filled("chart", label=label, frame=plane.frame(), lines=line, dots=dots)


def sparkline(line: HistoryLine) -> Markup:
    """One loss along training, on a log scale where it falls far."""
    pairs = [(step, value) for step, value in zip(line.steps, line.values, strict=True) if math.isfinite(value)]
    if not pairs:
        return element("p", "no finite value", class_="soft")
    steps, values = zip(*pairs, strict=True)
    log_scale = min(values) > 0.0 and max(values) > 30.0 * min(values)
    heights = [math.log(value) for value in values] if log_scale else values
    path = _Plane(axis_over(steps, margin=0.0), axis_over(heights)).line(steps, heights, "main thin")
    label = f"from {number(values[0])} to {number(values[-1])}" + (", on a log scale" if log_scale else "")
    return filled("spark", name=line.name, label=label, line=filled("stretched", drawn=path))


def meter(check: Check) -> Markup | None:
    """A bar that shows an F statistic against its critical value."""
    value, critical = (check.numbers.get(name, math.nan) for name in ("effective_f", "critical"))
    if not (math.isfinite(value) and math.isfinite(critical) and critical > 0.0):
        return None
    width = round(min(max(50.0 * value / critical, 0.0), 100.0), 2)
    label = f"critical value {number(critical)}"
    return filled("meter", value=number(value), label=label, width=width, severity=check.severity)


def shape_bars(check: Check) -> Markup | None:
    """Bars of the singular values that a check of ill-posedness has."""
    values = [value for name, value in check.numbers.items() if name.startswith("shape_")]
    if not values:
        return None
    bars = [
        filled("shape", y=14 * i, width=f"{100 * value:.2f}", severity=check.severity) for i, value in enumerate(values)
    ]
    listed = ", ".join(f"{value:.2f}" for value in values)
    return filled("shapes", listed=listed, height=14 * len(values), bars=bars)


@dataclass(frozen=True)
class ForestRow:
    """A line of a forest plot: texts on the left and on the right of the drawing, and what is drawn."""

    label: str
    detail: str
    value: str
    interval: str
    estimate: float | None  # where the mark is, if there is one
    stretches: tuple[tuple[float, float], ...]  # the intervals, whose ends may be infinite
    look: str = "main"  # a class of style: "main", "m1", ... or "faint"
    mark: str = "circle"  # one of `MARKS`
    curve: int | None = None  # the number of the group it stands for, if it does
    extra: tuple[tuple[int, float], ...] = ()  # other methods' marks: number and place


def forest(
    rows: Sequence[ForestRow], axis: Axis, *, caption: str, head: tuple[str, str], analysis: Analysis | None = None
) -> Markup:
    """A table with a drawing of every estimate and interval beside its numbers.

    With an `analysis`, rows are levels of its treatment; without one they are effects, and a line marks zero.
    """
    lines = [
        filled(
            "forest-row",
            group=None if row.curve is None else Markup(f' data-row="{row.curve:d}"'),
            label=row.label,
            detail=row.detail,
            drawing=_bar(row, axis, analysis),
            value=row.value,
            interval=row.interval,
        )
        for row in rows
    ]
    ticks = [element("text", text, x=f"{axis.at(tick)}%", y=13, text_anchor="middle") for tick, text in axis.named]
    effect, interval = head
    last = element("th", interval, scope="col", class_="n") if interval else element("td", class_="n")
    return filled("forest", caption=caption, effect=effect, interval=last, rows=lines, ticks=ticks)


def _bar(row: ForestRow, axis: Axis, analysis: Analysis | None) -> list[Markup]:
    parts = []
    if analysis is None and axis.holds(0.0):
        parts.append(filled("zero", x=f"{axis.at(0.0)}%"))
    for low, high in row.stretches:
        start, end = max(axis.at(low), 0.0), min(axis.at(high), 100.0)
        parts.append(filled("reach", start=start, end=end, look=row.look))
        if low < axis.low:
            parts.append(_mark(0.0, "left", row.look))
        if high > axis.high:
            parts.append(_mark(100.0, "right", row.look))
    for i, value in row.extra:
        if analysis is not None and axis.holds(value):
            parts.append(_mark(axis.at(value), MARKS[i % len(MARKS)], look_of(analysis, i), method=i))
    if row.estimate is not None and axis.holds(row.estimate):
        parts.append(_mark(axis.at(row.estimate), row.mark, row.look))
    return parts


def _mark(x: float, shape: str, look: str, method: int | None = None) -> Markup:
    """A mark at so many per cent of the width; that of another method is hidden at first."""
    hidden = None if method is None else Markup(f' data-method="{method:d}" hidden')
    return filled("mark", x=x, method=hidden, shape=_SHAPES[shape], look=look)


def level_charts(analysis: Analysis) -> Markup:
    """Forest plots of a treatment's levels, one for each group, the first of them shown."""
    unknown = (math.nan,) * len(analysis.curves[0].treatment)
    points = [
        list(zip(one.estimate, one.lower or unknown, one.upper or unknown, strict=True)) for one in analysis.curves
    ]
    axis = effect_axis([point for group in points for point in group], zero=False)
    meaning = clean(analysis.question.outcome_meaning)
    head = (sentence(meaning).rstrip("."), f"{percent(analysis.level)} interval")
    charts = []
    for i, (curve, group) in enumerate(zip(analysis.curves, points, strict=True)):
        others = method_curves(analysis) if i == 0 else []
        rows = [
            ForestRow(
                analysis.question.treatment_text(curve.treatment[k]),
                f"in support for {share(curve.in_support[k])} of {analysis.units}",
                text,
                f"{low} to {high}" if curve.lower else "none",
                curve.estimate[k],
                ((curve.lower[k], curve.upper[k]),) if curve.lower else (),
                "main" if curve.in_support[k] >= MIN_SUPPORT else "faint",
                extra=tuple((j, values[k]) for j, _, values in others),
            )
            for k, (text, low, high) in enumerate(aligned(group))
        ]
        table = forest(rows, axis, caption=f"{meaning}: {clean(curve.group.label)}", head=head, analysis=analysis)
        charts.append(element("div", table, data_curve=i, hidden=i > 0))
    return joined(*charts)
