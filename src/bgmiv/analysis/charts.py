"""Figures of the page as SVG that fits any width, and the numbers with which its script redraws them.

Positions are in per cent, lines and letters in pixels.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

from bgmiv.analysis.analysis import Analysis, Curve, CurveSource, EffectRow, HistoryLine
from bgmiv.analysis.markup import (
    Markup,
    aligned,
    clean,
    element,
    joined,
    number,
    percent,
    robust_set_text,
    sentence,
    share,
)
from bgmiv.diagnostics.check import Check

__all__ = [
    "MARKS",
    "MIN_SUPPORT",
    "Axis",
    "ForestRow",
    "axis_over",
    "compact_factors",
    "curve_axes",
    "curve_chart",
    "effect_axis",
    "forest",
    "interval_ends",
    "level_charts",
    "meter",
    "method_curves",
    "method_look",
    "outside_support",
    "payload",
    "safe_json",
    "sample",
    "sparkline",
]

MIN_SUPPORT = 0.5
"""Where the data show a treatment for a smaller share of the rows, a curve is drawn as an extrapolation."""

MARKS = ("circle", "square", "diamond", "up", "down")
"""Shapes that tell methods apart where colours cannot."""

_MAX_TICKS = 7
_N_QUANTILES = 200
_DIGITS = 7
_STRETCHED = {"viewBox": "0 0 1000 1000", "preserveAspectRatio": "none", "width": "100%", "height": "100%"}
_SHAPES = {
    "circle": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z",
    "square": "M-4.4 -4.4h8.8v8.8h-8.8z",
    "diamond": "M0 -6l6 6l-6 6l-6 -6z",
    "up": "M0 -5.5l5.5 9.5h-11z",
    "down": "M0 5.5l5.5 -9.5h-11z",
    "left": "M-1 0l8 -4.5v9z",
    "right": "M1 0l-8 -4.5v9z",
}


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
    treatment = axis_over((t for curve in analysis.curves for t in curve.treatment), margin=0.0)
    values: list[float] = []
    for i, curve in enumerate(analysis.curves):
        seen = [value >= MIN_SUPPORT for value in curve.in_support]
        inside = seen if any(seen) else [True] * len(seen)
        ends = (curve.estimate, *(_widest(curve) if i == 0 else ()))
        values += [value for end in ends for value, shown in zip(end, inside, strict=True) if shown]
    values += analysis.curves[0].estimate
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    room = 0.25 * (high - low)
    others = [value for row in analysis.methods for value in row.curve if math.isfinite(value)]
    return treatment, axis_over([low, high, *(min(max(value, low - room), high + room) for value in others)])


def _widest(curve: Curve) -> tuple[tuple[float, ...], ...]:
    """The ends of the uniform band, or of the intervals if there is none."""
    ends = (curve.band_lower, curve.band_upper) if curve.band_lower else (curve.lower, curve.upper)
    return ends if ends[0] else ()


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
    """The stretches of treatment that the data show for fewer than half of the rows."""
    t, above = curve.treatment, [value - MIN_SUPPORT for value in curve.in_support]
    ends = [t[0]] if above[0] < 0 else []
    for (t0, t1), (s0, s1) in zip(pairwise(t), pairwise(above), strict=True):
        if (s0 < 0) != (s1 < 0):
            ends.append(t0 + (t1 - t0) * s0 / (s0 - s1))
    ends += [t[-1]] if above[-1] < 0 else []
    return list(zip(ends[::2], ends[1::2], strict=True))


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
    extra: tuple[tuple[int, float, str], ...] = ()  # marks of other methods: number, place and shape


def method_curves(analysis: Analysis) -> list[tuple[int, str, tuple[float, ...]]]:
    """The other methods' curves: number, name, values; the first method is that of the analysis itself."""
    return [(i, row.name, row.curve) for i, row in enumerate(analysis.methods) if i]


def method_look(i: int) -> str:
    """The class of style of the method of this number, from 1; there are five."""
    return f"m{(i - 1) % 5 + 1}"


def sample(i: int, levels: bool) -> Markup:
    """A short piece of a method's line, or its mark, for the legend."""
    if levels:
        drawn = element("svg", _mark(50.0, MARKS[i % len(MARKS)], method_look(i)), width=32, height=12)
    else:
        drawn = element("line", x1=1, x2=31, y1=6, y2=6, class_=f"line {method_look(i)}")
    return element("svg", drawn, class_="sample", width=32, height=12, aria_hidden="true", focusable="false")


def curve_chart(analysis: Analysis) -> Markup:
    """The curves of all groups, the first of them shown, with bands, hatched where data are thin, and other methods."""
    across, up = curve_axes(analysis)
    shades = [_shades(i, curve, across) for i, curve in enumerate(analysis.curves)]
    lines = [_curve(i, curve, across, up) for i, curve in enumerate(analysis.curves)]
    grid = analysis.curves[0].treatment
    others = [
        element("path", d=_path(grid, values, across, up), class_=f"line {method_look(i)}", data_method=i, hidden=True)
        for i, _, values in method_curves(analysis)
    ]
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


def _shades(i: int, curve: Curve, across: Axis) -> Markup:
    parts = []
    for start, end in outside_support(curve):
        x, width = across.at(start), across.at(end) - across.at(start)
        for look in ("shade", "hatched"):
            parts.append(element("rect", x=f"{x:.3f}%", y=0, width=f"{width:.3f}%", height="100%", class_=look))
    return element("g", *parts, data_curve=i, hidden=i > 0)


def _curve(i: int, curve: Curve, across: Axis, up: Axis) -> Markup:
    parts = []
    for lower, upper in ((curve.band_lower, curve.band_upper), (curve.lower, curve.upper)):
        if lower:
            there = _path(curve.treatment, upper, across, up)
            back = _path(curve.treatment[::-1], lower[::-1], across, up)
            parts.append(element("path", d=f"{there}L{back[1:]}Z", class_="band"))
    parts.append(element("path", d=_path(curve.treatment, curve.estimate, across, up), class_="line faint"))
    ends = [curve.treatment[0], *(end for pair in outside_support(curve) for end in pair), curve.treatment[-1]]
    for start, stop in zip(ends[::2], ends[1::2], strict=True):
        if stop > start:
            t = [start, *(t for t in curve.treatment if start < t < stop), stop]
            values = np.interp(t, curve.treatment, curve.estimate).tolist()
            parts.append(element("path", d=_path(t, values, across, up), class_="line main"))
    return element("g", *parts, data_curve=i, hidden=i > 0)


def _path(t: Sequence[float], values: Sequence[float], across: Axis, up: Axis) -> str:
    points = [
        f"{10 * across.at(a):.1f} {1000 - 10 * up.at(b):.1f}"
        for a, b in zip(t, values, strict=True)
        if math.isfinite(b)
    ]
    return "M" + "L".join(points) if points else "M0 0"


def forest(rows: Sequence[ForestRow], axis: Axis, *, caption: str, head: tuple[str, str], zero: bool = True) -> Markup:
    """A table with a drawing of every estimate and interval beside its numbers; `zero` marks no effect."""
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
    looks = (("", None), ("", "bar"), (head[0], "n"), (head[1], "n"))
    names = [element("th", text, scope="col", class_=look) for text, look in looks]
    ticks = [element("text", text, x=f"{axis.at(tick)}%", y=13, text_anchor="middle") for tick, text in axis.named]
    scale = element("td", element("svg", *ticks, class_="scale", focusable="false"), class_="bar")
    foot = element("tr", element("td"), scale, element("td"), element("td"), aria_hidden="true")
    return element(
        "table",
        element("caption", caption, class_="unseen"),
        element("thead", element("tr", *names)),
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


def level_charts(analysis: Analysis) -> Markup:
    """Forest plots of a treatment's levels, one for each group, the first of them shown."""
    points = [
        list(zip(one.estimate, one.lower, one.upper, strict=True))
        if one.lower
        else [(value, None, None) for value in one.estimate]
        for one in analysis.curves
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
                f"in support for {share(curve.in_support[k])} of rows",
                text[0],
                "none" if low is None else f"{text[1]} to {text[2]}",
                value,
                interval_ends(low, high),
                "main" if curve.in_support[k] >= MIN_SUPPORT else "faint",
                extra=tuple((j, values[k], MARKS[j % len(MARKS)]) for j, _, values in others),
            )
            for k, (text, (value, low, high)) in enumerate(zip(aligned(group), group, strict=True))
        ]
        table = forest(rows, axis, caption=f"{meaning}: {clean(curve.group.label)}", head=head, zero=False)
        charts.append(element("div", table, data_curve=i, hidden=i > 0))
    return joined(*charts)


def interval_ends(lower: float | None, upper: float | None) -> tuple[tuple[float, float], ...]:
    """The interval that a forest plot draws; none for a method without intervals, or an empty set."""
    return () if lower is None or upper is None or math.isnan(lower) else ((lower, upper),)


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


def payload(analysis: Analysis) -> dict[str, Any]:
    """Curves with what their uncertainty comes from, Student's quantiles, and the effects to begin with."""
    across, up = curve_axes(analysis)
    # Quantiles over 1 / dof are smooth, so that a straight line between two of them is good to four digits.
    with np.errstate(divide="ignore"):
        dof = 1.0 / np.linspace(0.0, 1.0, _N_QUANTILES + 1)
    return {
        "level": analysis.level,
        "levels": [clean(name) for name in analysis.question.level_names],
        "across": [across.low, across.high],
        "up": [up.low, up.high],
        "quantiles": _rounded(student.ppf(0.5 + analysis.level / 2.0, dof)),
        "weak": analysis.diagnosis.weak_instruments,
        "curves": [_curve_numbers(*both) for both in zip(analysis.curves, analysis.effects, strict=True)],
    }


def _curve_numbers(curve: Curve, effect: EffectRow) -> dict[str, Any]:
    ends = (effect.t0, effect.t1, effect.estimate, effect.lower, effect.upper, effect.in_support)
    return {
        "label": clean(curve.group.label),
        "robust": robust_set_text(effect.pieces) if effect.method == "anderson-rubin" else "",
        # As they are: the calculator finds the effect at these treatments, to the last digit.
        "effect": [value if value is not None and math.isfinite(value) else None for value in ends],
        "t": list(curve.treatment),
        "g": _rounded(curve.estimate),
        "lower": _rounded(curve.lower),
        "upper": _rounded(curve.upper),
        "share": _rounded(curve.in_support),
        "sources": [
            {
                "dof": source.dof if math.isfinite(source.dof) else None,
                "factors": [_rounded(row) for row in compact_factors(source)],
            }
            for source in curve.sources
        ],
    }


def compact_factors(source: CurveSource) -> np.ndarray:
    """As few curves as give the same covariance between treatments: its leading directions."""
    factors = np.asarray(source.factors, np.float64)
    if not factors.size or not np.all(np.isfinite(factors)):
        return factors[:0]
    _, sizes, directions = np.linalg.svd(factors, full_matrices=False)
    kept = sizes > 1e-6 * sizes[0] if sizes[0] > 0 else sizes > 0
    return np.asarray(sizes[kept, None] * directions[kept])


def _rounded(values: Sequence[float] | np.ndarray) -> list[float | None]:
    return [float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None for value in map(float, values)]


def safe_json(value: Any) -> str:
    """JSON for a script element: letters of markup are written by their numbers."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
