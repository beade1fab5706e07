"""Figures of the page as SVG that fits any width: positions in per cent, lines and letters in pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bgmiv.show.analysis import Analysis, Curve, HistoryLine
from bgmiv.show.axes import Axis, axis_over, curve_axes, outside_support, tick_texts
from bgmiv.show.markup import Markup, element, joined
from bgmiv.show.words import clean, number

__all__ = ["MARKS", "ForestRow", "curve_chart", "forest", "method_curves", "method_look", "sample", "sparkline"]

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


@dataclass(frozen=True)
class ForestRow:
    """A line of a forest: who, a few words about it, texts of estimate and interval, and what is drawn.

    Args:
        label, detail: texts on the left.
        value, interval: texts on the right.
        estimate: where the mark is; None for none.
        stretches: the intervals drawn, whose ends may be infinite.
        look: a class of style: "main", "m1", ... or "faint".
        mark: one of `MARKS`.
        curve: the number of the group it stands for, if it does.
        extra: further marks of other methods: their number, where they are, and their shape.
    """

    label: str
    detail: str
    value: str
    interval: str
    estimate: float | None
    stretches: tuple[tuple[float, float], ...]
    look: str = "main"
    mark: str = "circle"
    curve: int | None = None
    extra: tuple[tuple[int, float, str], ...] = ()


def method_curves(analysis: Analysis) -> list[tuple[int, str, tuple[float, ...]]]:
    """The other methods' curves: number, name, values; the analysis' own is left out."""
    own = analysis.curves[0].estimate
    others = [row for row in analysis.methods if len(row.curve) == len(own) and row.curve != own]
    return [(i + 1, row.name, row.curve) for i, row in enumerate(others)]


def method_look(i: int) -> str:
    """The class of style of the method of this number, from 1.

    >>> method_look(1), method_look(6)
    ('m1', 'm1')
    """
    return f"m{(i - 1) % 5 + 1}"


def sample(i: int, levels: bool) -> Markup:
    """A short piece of a method's line, or its mark, for the legend."""
    if levels:
        drawn = element("svg", _mark(50.0, MARKS[i % len(MARKS)], method_look(i)), width=32, height=12)
    else:
        drawn = element("line", x1=1, x2=31, y1=6, y2=6, class_=f"line {method_look(i)}")
    return element("svg", drawn, class_="sample", width=32, height=12, aria_hidden="true", focusable="false")


def curve_chart(analysis: Analysis) -> Markup:
    """The curves of all groups, the first of them shown, with bands, shades where data are thin, and other methods."""
    across, up = curve_axes(analysis)
    shades = [_shades(i, curve, across) for i, curve in enumerate(analysis.curves)]
    lines = [_curve(i, curve, across, up) for i, curve in enumerate(analysis.curves)]
    grid = analysis.curves[0].treatment
    others = [
        element("path", d=_path(grid, values, across, up), class_=f"line {method_look(i)}", data_method=i, hidden=True)
        for i, _, values in method_curves(analysis)
    ]
    plane = element(
        "svg", *lines, *others, class_="plane", viewBox="0 0 1000 1000", preserveAspectRatio="none", width="100%",
        height="100%",
    )  # fmt: skip
    label = f"Curve of {clean(analysis.question.outcome_meaning)} along {clean(analysis.question.treatment)}"
    return element(
        "svg", _hatching(), *shades, _frame(across, up), plane, element("g", class_="cursor"),
        class_="canvas", id="curve", role="img", aria_label=label,
    )  # fmt: skip


def _hatching() -> Markup:
    stroke = element("path", d="M0 8L8 0M-2 2L2 -2M6 10L10 6", class_="hatch")
    return element("defs", element("pattern", stroke, id="hatch", width=8, height=8, patternUnits="userSpaceOnUse"))


def _frame(across: Axis, up: Axis) -> Markup:
    parts: list[Markup] = []
    for tick, text in zip(up.ticks, tick_texts(up), strict=True):
        y = f"{100.0 - up.at(tick):.3f}%"
        parts.append(element("line", x1="0", x2="100%", y1=y, y2=y, class_="zero" if tick == 0 else "grid"))
        parts.append(element("text", text, x=-10, y=y, dy=4, text_anchor="end"))
    for tick, text in zip(across.ticks, tick_texts(across), strict=True):
        x = f"{across.at(tick):.3f}%"
        foot = element("line", x1=0, x2=0, y1=0, y2=5, class_="tick")
        name = element("text", text, x=0, y=20, text_anchor="middle")
        parts.append(element("svg", foot, name, x=x, y="100%", overflow="visible"))
    parts.append(element("line", x1="0", x2="100%", y1="100%", y2="100%", class_="base"))
    return element("g", *parts, class_="frame")


def _shades(i: int, curve: Curve, across: Axis) -> Markup:
    parts = []
    for start, end in outside_support(curve):
        x, width = across.at(start), across.at(end) - across.at(start)
        for look in ("shade", "hatched"):
            parts.append(element("rect", x=f"{x:.3f}%", y=0, width=f"{width:.3f}%", height="100%", class_=look))
    return element("g", *parts, data_curve=i, hidden=i > 0)


def _curve(i: int, curve: Curve, across: Axis, up: Axis) -> Markup:
    parts = []
    if curve.lower:
        there = _path(curve.treatment, curve.upper, across, up)
        back = _path(curve.treatment[::-1], curve.lower[::-1], across, up)
        parts.append(element("path", d=f"{there}L{back[1:]}Z", class_="band"))
    parts.append(element("path", d=_path(curve.treatment, curve.estimate, across, up), class_="line faint"))
    ends = [curve.treatment[0], *(end for pair in outside_support(curve) for end in pair), curve.treatment[-1]]
    for start, stop in zip(ends[::2], ends[1::2], strict=True):
        if stop > start:
            between = [t for t in curve.treatment if start < t < stop]
            t = (start, *between, stop)
            values = np.interp(t, curve.treatment, curve.estimate)
            parts.append(element("path", d=_path(t, values.tolist(), across, up), class_="line main"))
    return element("g", *parts, data_curve=i, hidden=i > 0)


def _path(t: Sequence[float], values: Sequence[float], across: Axis, up: Axis) -> str:
    points = [
        f"{10 * across.at(a):.1f} {1000 - 10 * up.at(b):.1f}"
        for a, b in zip(t, values, strict=True)
        if math.isfinite(b)
    ]
    return "M" + "L".join(points) if points else "M0 0"


def forest(rows: Sequence[ForestRow], axis: Axis, *, caption: str, head: tuple[str, str], zero: bool = True) -> Markup:
    """A table with a drawing of every estimate and interval beside its numbers.

    Args:
        rows: its lines.
        axis: of estimates.
        caption: what it shows, for those who hear it.
        head: names of the columns of estimates and intervals.
        zero: mark no effect.
    """
    bars = [
        element(
            "tr",
            element("th", element("bdi", row.label), element("small", row.detail) if row.detail else None, scope="row"),
            element("td", _bar(row, axis, zero), class_="bar"),
            element("td", row.value, class_="n value"),
            element("td", row.interval, class_="n"),
            data_row=row.curve,
        )
        for row in rows
    ]
    names = [element("th", text, scope="col", class_=look) for text, look in (("", None), ("", "bar"))]
    numbers = [element("th", text, scope="col", class_="n") for text in head]
    foot = element(
        "tr",
        element("td"),
        element("td", _scale(axis), class_="bar"),
        element("td"),
        element("td"),
        aria_hidden="true",
    )
    return element(
        "table",
        element("caption", caption, class_="unseen"),
        element("thead", element("tr", *names, *numbers)),
        element("tbody", *bars),
        element("tfoot", foot),
        class_="forest",
    )


def _bar(row: ForestRow, axis: Axis, zero: bool) -> Markup:
    parts: list[Markup] = []
    if zero and axis.holds(0.0):
        x = f"{axis.at(0.0)}%"
        parts.append(element("line", x1=x, x2=x, y1=0, y2="100%", class_="zero"))
    for low, high in row.stretches:
        start, end = max(axis.at(low), 0.0), min(axis.at(high), 100.0)
        parts.append(element("line", x1=f"{start}%", x2=f"{end}%", y1="50%", y2="50%", class_=f"reach {row.look}"))
        if low < axis.low:
            parts.append(_mark(0.0, "left", row.look))
        if high > axis.high:
            parts.append(_mark(100.0, "right", row.look))
    parts += [
        _mark(axis.at(value), mark, method_look(i), method=i) for i, value, mark in row.extra if axis.holds(value)
    ]
    if row.estimate is not None and axis.holds(row.estimate):
        parts.append(_mark(axis.at(row.estimate), row.mark, row.look))
    return element("svg", *parts, class_="reaches", aria_hidden="true", focusable="false")


def _mark(x: float, shape: str, look: str, method: int | None = None) -> Markup:
    path = element("path", d=_SHAPES[shape], class_=f"mark {look}")
    return element("svg", path, x=f"{x}%", y="50%", overflow="visible", data_method=method, hidden=method is not None)


def _scale(axis: Axis) -> Markup:
    parts = [
        element("text", text, x=f"{axis.at(tick)}%", y=13, text_anchor="middle")
        for tick, text in zip(axis.ticks, tick_texts(axis), strict=True)
    ]
    return element("svg", *parts, class_="scale", focusable="false")


def sparkline(line: HistoryLine) -> Markup:
    """One loss along training, on a scale of powers where it falls far."""
    pairs = [(step, value) for step, value in zip(line.steps, line.values, strict=True) if math.isfinite(value)]
    if not pairs:
        return element("p", "no finite value", class_="soft")
    values = [value for _, value in pairs]
    powers = min(values) > 0.0 and max(values) > 30.0 * min(values)
    heights = [math.log(value) for value in values] if powers else values
    across, up = axis_over([step for step, _ in pairs], margin=0.0), axis_over(heights)
    path = element("path", d=_path([step for step, _ in pairs], heights, across, up), class_="line main thin")
    plane = element("svg", path, viewBox="0 0 1000 1000", preserveAspectRatio="none", width="100%", height="100%")
    label = f"from {number(values[0])} to {number(values[-1])}" + (", on a scale of powers" if powers else "")
    drawing = element("svg", plane, class_="spark", role="img", aria_label=f"{clean(line.name)}: {label}")
    return joined(drawing, element("p", label, class_="soft"))
