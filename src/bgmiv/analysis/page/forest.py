"""Forest plots of the page: tables whose rows draw their estimate and interval beside the numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bgmiv.analysis.analysis import Analysis
from bgmiv.analysis.axes import MIN_SUPPORT, Axis, effect_axis, method_curves
from bgmiv.analysis.markup import Markup, clean, element, joined, sentence
from bgmiv.numerals import aligned, percent, share

__all__ = ["MARKS", "ForestRow", "forest", "level_charts", "look_of", "mark"]

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
    extra: tuple[tuple[int, float, str, str], ...] = ()  # marks of other methods: number, place, shape and look


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
    unseen = [element("span", text, class_="unseen") for text in ("Row", "Drawing")]
    looks = ((unseen[0], None), (unseen[1], "bar"), (head[0], "n"), (head[1], "n"))
    names = [element("th" if text else "td", text, scope="col" if text else None, class_=look) for text, look in looks]
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
            parts.append(mark(0.0, "left", row.look))
        if high > axis.high:
            parts.append(mark(100.0, "right", row.look))
    parts += [mark(axis.at(value), shape, look, method=i) for i, value, shape, look in row.extra if axis.holds(value)]
    if row.estimate is not None and axis.holds(row.estimate):
        parts.append(mark(axis.at(row.estimate), row.mark, row.look))
    return element("svg", *parts, class_="reaches", aria_hidden="true", focusable="false")


def mark(x: float, shape: str, look: str, method: int | None = None) -> Markup:
    """A mark at so many per cent of the width; that of another method is hidden at first."""
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
                f"in support for {share(curve.in_support[k])} of {analysis.units}",
                text[0],
                "none" if low is None else f"{text[1]} to {text[2]}",
                value,
                _interval_ends(low, high),
                "main" if curve.in_support[k] >= MIN_SUPPORT else "faint",
                extra=tuple((j, values[k], MARKS[j % len(MARKS)], look_of(analysis, j)) for j, _, values in others),
            )
            for k, (text, (value, low, high)) in enumerate(zip(aligned(group), group, strict=True))
        ]
        table = forest(rows, axis, caption=f"{meaning}: {clean(curve.group.label)}", head=head, zero=False)
        charts.append(element("div", table, data_curve=i, hidden=i > 0))
    return joined(*charts)


def _interval_ends(lower: float | None, upper: float | None) -> tuple[tuple[float, float], ...]:
    """The interval that a forest plot draws; none for a method without intervals, or an empty set."""
    return () if lower is None or upper is None or math.isnan(lower) else ((lower, upper),)
