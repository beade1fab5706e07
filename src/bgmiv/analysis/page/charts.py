"""Figures of the page as SVG that fits any width: positions are in per cent, lines and letters in pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bgmiv.analysis.analysis import Analysis, Curve, HistoryLine
from bgmiv.analysis.axes import Axis, axis_over, curve_axes, method_curves, outside_support
from bgmiv.analysis.instruments import BinnedMeans
from bgmiv.analysis.markup import Markup, clean, element, joined
from bgmiv.analysis.page.forest import MARKS, look_of, mark
from bgmiv.diagnostics.checks import Check
from bgmiv.numerals import number

__all__ = ["Line", "binned_chart", "curve_chart", "lines_chart", "meter", "sample", "shape_bars", "sparkline"]

_STRETCHED = {"viewBox": "0 0 1000 1000", "preserveAspectRatio": "none", "width": "100%", "height": "100%"}


def sample(analysis: Analysis, i: int) -> Markup:
    """A short piece of a method's line, or its mark, for the legend."""
    look = look_of(analysis, i)
    if analysis.question.level_names:
        drawn = element("svg", mark(50.0, MARKS[i % len(MARKS)], look), width=32, height=12)
    else:
        drawn = element("line", x1=1, x2=31, y1=6, y2=6, class_=f"line {look}")
    return element("svg", drawn, class_="sample", width=32, height=12, aria_hidden="true", focusable="false")


def curve_chart(analysis: Analysis) -> Markup:
    """The curves of all groups, the first of them shown, with bands, hatched where data are thin, and other methods."""
    across, up = curve_axes(analysis)
    shades = [
        _hatched(outside_support(curve), across, data_curve=i, hidden=i > 0) for i, curve in enumerate(analysis.curves)
    ]
    lines = [_curve(i, curve, across, up) for i, curve in enumerate(analysis.curves)]
    grid = analysis.curves[0].treatment
    others = []
    for i, _, values in method_curves(analysis):
        look, hidden = look_of(analysis, i), analysis.methods[i].note != "truth"
        path = _path(grid, values, across, up)
        others.append(element("path", d=path, class_=f"line {look}", data_method=i, hidden=hidden))
    plane = element("svg", *lines, *others, class_="plane", **_STRETCHED)
    label = f"Curve of {clean(analysis.question.outcome_meaning)} along {clean(analysis.question.treatment)}"
    stroke = element("path", d="M0 8L8 0M-2 2L2 -2M6 10L10 6", class_="hatch")
    hatch = element("pattern", stroke, id="hatch", width=8, height=8, patternUnits="userSpaceOnUse")
    return element(
        "svg", element("defs", hatch), *shades, _frame(across, up), plane, element("g", class_="cursor"),
        class_="canvas", id="curve", role="img", aria_label=label,
    )  # fmt: skip


def _frame(across: Axis, up: Axis) -> Markup:
    parts: list[Markup] = []
    for tick, text in up.named:
        y = f"{100.0 - up.at(tick):.3f}%"
        parts.append(element("line", x1="0", x2="100%", y1=y, y2=y, class_="zero" if tick == 0 else "grid"))
        parts.append(element("text", text, x=-10, y=y, dy=4, text_anchor="end"))
    for tick, text in across.named:
        x = f"{across.at(tick):.3f}%"
        foot = element("line", x1=0, x2=0, y1=0, y2=5, class_="tick")
        name = element("text", text, x=0, y=20, text_anchor="middle")
        parts.append(element("svg", foot, name, x=x, y="100%", overflow="visible"))
    parts.append(element("line", x1="0", x2="100%", y1="100%", y2="100%", class_="base"))
    return element("g", *parts, class_="frame")


def _hatched(stretches: Sequence[tuple[float, float]], across: Axis, **attributes: object) -> Markup:
    parts = []
    for start, end in stretches:
        x, width = across.at(start), across.at(end) - across.at(start)
        for look in ("shade", "hatched"):
            parts.append(element("rect", x=f"{x:.3f}%", y=0, width=f"{width:.3f}%", height="100%", class_=look))
    return element("g", *parts, **attributes)


def _curve(i: int, curve: Curve, across: Axis, up: Axis) -> Markup:
    parts = []
    both = bool(curve.band_lower)
    for lower, upper, inner in ((curve.band_lower, curve.band_upper, False), (curve.lower, curve.upper, both)):
        if lower:
            area = _area(curve.treatment, lower, upper, across, up)
            parts.append(element("path", d=area, class_="band inner" if inner else "band", hidden=inner))
    parts.append(element("path", d=_path(curve.treatment, curve.estimate, across, up), class_="line faint"))
    ends = [curve.treatment[0], *(end for pair in outside_support(curve) for end in pair), curve.treatment[-1]]
    for start, stop in zip(ends[::2], ends[1::2], strict=True):
        if stop > start:
            t = [start, *(t for t in curve.treatment if start < t < stop), stop]
            values = np.interp(t, curve.treatment, curve.estimate).tolist()
            parts.append(element("path", d=_path(t, values, across, up), class_="line main"))
    return element("g", *parts, data_curve=i, hidden=i > 0)


def _area(t: Sequence[float], lower: Sequence[float], upper: Sequence[float], across: Axis, up: Axis) -> str:
    return f"{_path(t, upper, across, up)}L{_path(t[::-1], lower[::-1], across, up)[1:]}Z"


def _path(t: Sequence[float], values: Sequence[float], across: Axis, up: Axis) -> str:
    points = [
        f"{10 * across.at(a):.1f} {1000 - 10 * up.at(b):.1f}"
        for a, b in zip(t, values, strict=True)
        if math.isfinite(b)
    ]
    return "M" + "L".join(points) if points else "M0 0"


def meter(check: Check) -> Markup | None:
    """A bar that shows an F statistic against its critical value."""
    value, critical = check.numbers.get("effective_f"), check.numbers.get("critical")
    if value is None or critical is None or not (math.isfinite(value) and math.isfinite(critical)) or critical <= 0.0:
        return None
    way = round(min(max(50.0 * value / critical, 0.0), 100.0), 2)
    return element(
        "svg",
        element("rect", x=0, y=4, width="100%", height=8, rx=4, class_="trough"),
        element("rect", x=0, y=4, width=f"{way}%", height=8, rx=4, class_=f"filled {check.severity}"),
        element("line", x1="50%", x2="50%", y1=0, y2=16, class_="critical"),
        element("text", f"critical value {number(critical)}", x="50%", y=30, text_anchor="middle"),
        class_="meter",
        role="img",
        aria_label=f"{number(value)}, critical value {number(critical)}",
    )


def sparkline(line: HistoryLine) -> Markup:
    """One loss along training, on a log scale where it falls far."""
    pairs = [(step, value) for step, value in zip(line.steps, line.values, strict=True) if math.isfinite(value)]
    if not pairs:
        return element("p", "no finite value", class_="soft")
    values = [value for _, value in pairs]
    log_scale = min(values) > 0.0 and max(values) > 30.0 * min(values)
    heights = [math.log(value) for value in values] if log_scale else values
    across, up = axis_over([step for step, _ in pairs], margin=0.0), axis_over(heights)
    path = element("path", d=_path([step for step, _ in pairs], heights, across, up), class_="line main thin")
    plane = element("svg", path, **_STRETCHED)
    label = f"from {number(values[0])} to {number(values[-1])}" + (", on a log scale" if log_scale else "")
    drawing = element("svg", plane, class_="spark", role="img", aria_label=f"{clean(line.name)}: {label}")
    return joined(drawing, element("p", label, class_="soft"))


def shape_bars(check: Check) -> Markup | None:
    """Bars of the singular values that a check of detail has."""
    values = [value for name, value in check.numbers.items() if name.startswith("shape_")]
    if not values:
        return None
    bars = [
        element("rect", x=0, y=14 * i, width=f"{100 * value:.2f}%", height=10, rx=3, class_=f"filled {check.severity}")
        for i, value in enumerate(values)
    ]
    label = f"Singular values: {', '.join(f'{value:.2f}' for value in values)}"
    return element("svg", *bars, class_="shapes", role="img", aria_label=label, height=14 * len(values))


def binned_chart(means: BinnedMeans, label: str) -> Markup:
    """Means in bins as dots with their intervals, and the line of the linear regression."""
    across, up = axis_over(means.place, margin=0.08), axis_over([*means.lower, *means.upper, *means.fitted])
    if len(means.place) <= 3:
        across = Axis(across.low, across.high, means.place)
    dots = []
    for place, mean, low, high in zip(means.place, means.mean, means.lower, means.upper, strict=True):
        x, y, bottom, top = f"{across.at(place)}%", *(f"{100.0 - up.at(value):.3f}%" for value in (mean, low, high))
        dots.append(element("line", x1=x, x2=x, y1=bottom, y2=top, class_="whisker"))
        dots.append(element("circle", cx=x, cy=y, r=4, class_="dot"))
    plane = element(
        "svg", element("path", d=_path(means.place, means.fitted, across, up), class_="line m1"), **_STRETCHED
    )
    return element("svg", _frame(across, up), plane, *dots, class_="canvas small", role="img", aria_label=label)


class Line(NamedTuple):
    """A line of a chart: its class of style, places and values, and the ends of its band, if it has one."""

    look: str
    place: Sequence[float]
    values: Sequence[float]
    lower: Sequence[float] = ()
    upper: Sequence[float] = ()


def lines_chart(
    lines: Sequence[Line], across: Axis, up: Axis, label: str, outside: Sequence[tuple[float, float]] = ()
) -> Markup:
    """Lines with their bands behind them; `outside` is hatched."""
    bands = [
        element("path", d=_area(line.place, line.lower, line.upper, across, up), class_=f"band {line.look}")
        for line in lines
        if len(line.lower)
    ]
    paths = [
        element("path", d=_path(line.place, line.values, across, up), class_=f"line {line.look}") for line in lines
    ]
    plane = element("svg", *bands, *paths, **_STRETCHED)
    parts = (_hatched(outside, across), _frame(across, up), plane, element("g", class_="cursor"))
    return element("svg", *parts, class_="canvas small", role="img", aria_label=label)
