"""The parts of the page, in the order in which they are read."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.stats import norm as normal

from bgmiv.show.analysis import Analysis, Curve, EffectRow, MethodRow
from bgmiv.show.axes import Axis, effect_axis
from bgmiv.show.charts import MARKS, ForestRow, curve_chart, forest, method_curves, method_look
from bgmiv.show.controls import contrast, legend, reader
from bgmiv.show.markup import Markup, element, joined
from bgmiv.show.summary import estimate_cells, robust_set_text
from bgmiv.show.words import (
    aligned,
    answer,
    clean,
    level_names,
    number,
    percent,
    sentence,
    share,
    shortened,
    strength_checks,
    together,
    trust,
)
from bgmiv.trust.diagnosis import Check, LinearEstimate

__all__ = ["badge", "checks", "curve", "effects", "headline", "methods", "section", "strength"]

_ICONS = {
    "good": "M3 8.5l3.2 3.2L13 5",
    "note": "M8 7v5M8 4v.6",
    "doubtful": "M8 3v6.5M8 12.4v.6",
    "bad": "M4 4l8 8M12 4l-8 8",
}
_OF_VERDICT = {"good": "good", "doubtful": "doubtful", "failed": "bad"}


def section(anchor: str, title: str, *parts: object) -> Markup:
    """A part of the page under its heading."""
    return element("section", element("h2", title), *parts, id=anchor)


def badge(level: str, word: str) -> Markup:
    """A level as a word with a sign, so that colour is not needed to read it."""
    icon = element("svg", element("path", d=_ICONS[level]), viewBox="0 0 16 16", aria_hidden="true", focusable="false")
    return element("span", icon, word, class_=f"badge {level}")


def headline(analysis: Analysis) -> Markup:
    """The answer in a sentence, how far to trust it, and what it is about at a glance."""
    question, belief = analysis.question, trust(analysis)
    first = analysis.effects[0] if analysis.effects else None
    facts = [
        ("Outcome", clean(question.outcome)),
        ("Treatment", clean(question.treatment)),
        ("Instruments", ", ".join(map(clean, question.instruments))),
        ("Covariates", _counted(question.covariates)),
        ("Rows", f"{question.n_rows:,}"),
        ("Method", clean(analysis.method)),
    ]
    return element(
        "header",
        element("p", "Instrumental-variable analysis", class_="eyebrow"),
        element("h1", analysis.title),
        element("p", answer(analysis, first), class_="answer") if first else None,
        element("p", badge(belief.level, belief.word), " ", belief.sentence, class_="trust"),
        _tiles(analysis, first),
        _listed(facts, "facts"),
        class_="top",
    )


def _counted(names: Sequence[str]) -> str:
    shown = ", ".join(shortened(name, 40) for name in names[:6])
    return f"{shown} and {len(names) - 6} more" if len(names) > 6 else shown or "none"


def _listed(pairs: Sequence[tuple[str, str]], look: str) -> Markup:
    rows = [element("div", element("dt", name), element("dd", element("bdi", text))) for name, text in pairs]
    return element("dl", *rows, class_=look)


def _tiles(analysis: Analysis, first: EffectRow | None) -> Markup | None:
    if first is None:
        return None
    value, low, high = together(first.estimate, first.lower, first.upper)
    change = f"{shortened(first.t0, 24)} → {shortened(first.t1, 24)}"
    tiles = [("Average effect", value, f"{shortened(analysis.question.treatment, 24)} {change}")]
    if first.lower is not None:
        tiles.append((f"{percent(analysis.level)} interval", f"{low} to {high}", _sources(first)))
    tiles.append(("Within the data", share(first.in_support), "of people: such as them have had both treatments"))
    strong, _ = strength_checks(analysis)
    if strong:
        tiles.append(("Instruments", shortened(strong[0].value.partition(";")[0], 20), shortened(strong[0].title, 60)))
    made = [
        element("div", element("dt", name), element("dd", text), element("dd", detail, class_="soft"))
        for name, text, detail in tiles
    ]
    return element("dl", *made, class_="tiles")


def _sources(row: EffectRow) -> str:
    parts = [f"{shortened(name, 20)} {number(value, 2)}" for name, value in row.sources.items()]
    return f"standard error: {', '.join(parts)}" if parts else ""


def curve(analysis: Analysis) -> Markup:
    """The curve with its controls, or a forest of levels, and the calculator of contrasts."""
    levels = level_names(analysis)
    others = method_curves(analysis)
    meaning, treatment = clean(analysis.question.outcome_meaning), clean(analysis.question.treatment)
    if levels:
        axis = effect_axis([point for one in analysis.curves for point in _points(one)], zero=False)
        drawn = joined(*(_levels(analysis, i, one, axis) for i, one in enumerate(analysis.curves)))
        note = "Hollow: the data show such a level for fewer than half of these people; there it is extrapolated."
        band = f" Lines are {percent(analysis.level)} intervals."
    else:
        drawn = joined(
            element("p", sentence(meaning).rstrip("."), class_="axis-name"),
            element("div", curve_chart(analysis), class_="plot"),
            element("p", f"{treatment}, if it were set", class_="axis-name across"),
            reader(analysis),
        )
        note = "Hatched: the data show such treatments for fewer than half of these people; there it is extrapolated."
        band = f" The band holds {percent(analysis.level)} intervals, point by point."
    kind = f" {sentence(analysis.interval_kind)}"
    return section(
        "curve-section",
        f"What if {shortened(treatment, 40)} were set?",
        element(
            "figure",
            legend(analysis, [(i, name) for i, name, _ in others]),
            drawn,
            element("figcaption", note + (band + kind if analysis.curves[0].lower else "")),
        ),
        contrast(analysis),
    )


def _levels(analysis: Analysis, i: int, one: Curve, axis: Axis) -> Markup:
    others = method_curves(analysis) if i == 0 else []
    names = level_names(analysis)
    rows = []
    for k, (text, point) in enumerate(zip(aligned(_points(one)), _points(one), strict=True)):
        value, low, high = point
        rows.append(
            ForestRow(
                shortened(names[k] if k < len(names) else number(one.treatment[k]), 60),
                f"within the data for {share(one.in_support[k])}",
                text[0],
                "none" if low is None else f"{text[1]} to {text[2]}",
                value,
                () if low is None or high is None else ((low, high),),
                "main" if one.in_support[k] >= 0.5 else "faint",
                extra=tuple((j, values[k], MARKS[j % len(MARKS)]) for j, _, values in others),
            )
        )
    meaning = clean(analysis.question.outcome_meaning)
    head = (sentence(meaning).rstrip("."), f"{percent(analysis.level)} interval")
    table = forest(rows, axis, caption=f"{meaning}: {clean(one.label)}", head=head, zero=False)
    return element("div", table, data_curve=i, hidden=i > 0)


def _points(one: Curve) -> list[tuple[float, float | None, float | None]]:
    if not one.lower:
        return [(value, None, None) for value in one.estimate]
    return list(zip(one.estimate, one.lower, one.upper, strict=True))


def effects(analysis: Analysis) -> Markup | None:
    """The average effect by group; nothing where there are no groups."""
    rows = analysis.effects
    if len(rows) < 2:
        return None
    places = {one.label: i for i, one in enumerate(analysis.curves)}
    lines = [
        ForestRow(
            row.label,
            f"{row.n_rows:,} rows, {share(row.in_support)} within the data",
            *cells,
            row.estimate,
            _stretch(row),
            "main" if row.in_support >= 0.5 else "faint",
            mark="diamond" if i == 0 else "circle",
            curve=places.get(row.label),
        )
        for i, (row, cells) in enumerate(zip(rows, estimate_cells(rows), strict=True))
    ]
    table = forest(lines, _row_axis(rows), caption="Average effects by group", head=_effect_head(analysis.level))
    question = analysis.question
    names = [shortened(text, 60) for text in (question.treatment, rows[0].t1, rows[0].t0, question.outcome_meaning)]
    text = "Average effect of setting {} to {} instead of {} on {}.".format(*names)
    return section("effects", "For whom?", element("p", text), table)


def _effect_head(level: float) -> tuple[str, str]:
    return "Effect", f"{percent(level)} interval"


def _stretch(row: EffectRow | MethodRow) -> tuple[tuple[float, float], ...]:
    return () if row.lower is None or row.upper is None else ((row.lower, row.upper),)


def _row_axis(rows: Sequence[EffectRow | MethodRow]) -> Axis:
    return effect_axis([(row.estimate, row.lower, row.upper) for row in rows])


def methods(analysis: Analysis) -> Markup | None:
    """The same effect by other methods; nothing where there are none."""
    rows = analysis.methods
    if len(rows) < 2:
        return None
    numbers = {name: i for i, name, _ in method_curves(analysis)}
    lines = []
    for row, cells in zip(rows, estimate_cells(rows), strict=True):
        i = numbers.get(row.name, 0)
        look, mark = (method_look(i), MARKS[i % len(MARKS)]) if i else ("main", "circle")
        lines.append(ForestRow(row.name, row.note, *cells, row.estimate, _stretch(row), look, mark))
    table = forest(lines, _row_axis(rows), caption="The effect by method", head=_effect_head(analysis.level))
    text = "The same average effect, asked of every method. Where a method without the instrument says something else, "
    return section("methods", "Other methods", element("p", text + "that difference is the confounding."), table)


def strength(analysis: Analysis) -> Markup | None:
    """The checks of the instruments, and the linear estimate with what weak instruments leave of it."""
    strong, _ = strength_checks(analysis)
    linear = analysis.diagnosis.linear
    if not strong and linear is None:
        return None
    return section(
        "strength",
        "Do the instruments move the treatment?",
        _cards(strong),
        _linear(linear) if linear is not None else None,
    )


def _linear(linear: LinearEstimate) -> Markup:
    level, wide = percent(linear.level), float(normal.ppf(0.5 + linear.level / 2.0)) * linear.ols_std_error
    texts = aligned([(linear.coefficient, linear.lower, linear.upper), (linear.ols, linear.ols_std_error, None)])
    rows = [
        ForestRow("Two-stage least squares", "straight line, robust errors", texts[0][0],
                  f"{texts[0][1]} to {texts[0][2]}", linear.coefficient, ((linear.lower, linear.upper),)),
        ForestRow("Set that weak instruments cannot mislead", "Anderson and Rubin", "", robust_set_text(linear), None,
                  linear.robust_set, "m2"),
        ForestRow("Least squares", "without the instruments", texts[1][0], f"error {texts[1][1]}", linear.ols,
                  ((linear.ols - wide, linear.ols + wide),), "m1", "square"),
    ]  # fmt: skip
    reach = [(linear.coefficient, linear.lower, linear.upper), (linear.ols, None, None)]
    axis = effect_axis([*reach, *((linear.coefficient, *pair) for pair in linear.robust_set)])
    table = forest(rows, axis, caption="Linear effect of the treatment", head=("Slope", f"{level} interval"))
    text = (
        "The linear effect of one unit of treatment, for comparison. Where the robust set is much wider than the usual "
    )
    return joined(element("h3", "If the effect were linear"), element("p", text + "interval, believe the set."), table)


def checks(analysis: Analysis) -> Markup | None:
    """The other checks, and the verdict from held-out rows."""
    _, others = strength_checks(analysis)
    verdict = analysis.verdict
    if not others and verdict is None:
        return None
    return section("checks", "Can it be believed?", _cards(others), _verdict(analysis))


def _verdict(analysis: Analysis) -> Markup | None:
    verdict = analysis.verdict
    if verdict is None:
        return None
    seen = verdict.evidence.n_held_out
    reasons = [element("li", reason) for reason in verdict.reasons]
    text = f"{seen:,} rows were left out of training to check it." if seen else "No rows were left out to check it."
    return element(
        "div",
        element("div", element("h3", "The fit in held-out rows"), badge(_OF_VERDICT[verdict.level], verdict.level)),
        element("p", text),
        element("ul", *reasons) if reasons else None,
        class_=f"check wide {_OF_VERDICT[verdict.level]}",
    )


def _cards(found: Sequence[Check]) -> Markup | None:
    if not found:
        return None
    cards = [
        element(
            "div",
            element("div", element("h3", check.title), badge(check.level, check.level)),
            element("p", check.value, class_=f"figure {_size(check.value)}"),
            _meter(check),
            element("p", check.reading),
            element("p", check.reference, class_="soft") if check.reference else None,
            class_=f"check {check.level}",
        )
        for check in found
    ]
    return element("div", *cards, class_="cards")


def _size(value: str) -> str:
    return "short" if len(value) <= 24 else "long" if len(value) <= 60 else "prose"


def _meter(check: Check) -> Markup | None:
    """A bar that shows an F statistic against the value that is wanted."""
    value, wanted = check.numbers.get("effective_f"), check.numbers.get("critical")
    if value is None or wanted is None or not (math.isfinite(value) and math.isfinite(wanted)) or wanted <= 0.0:
        return None
    way = round(min(max(50.0 * value / wanted, 0.0), 100.0), 2)
    return element(
        "svg",
        element("rect", x=0, y=4, width="100%", height=8, rx=4, class_="trough"),
        element("rect", x=0, y=4, width=f"{way}%", height=8, rx=4, class_=f"filled {check.level}"),
        element("line", x1="50%", x2="50%", y1=0, y2=16, class_="wanted"),
        element("text", f"{number(wanted)} wanted", x="50%", y=30, text_anchor="middle"),
        class_="meter",
        role="img",
        aria_label=f"{number(value)}, {number(wanted)} wanted",
    )
