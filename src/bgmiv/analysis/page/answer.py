"""Sections of the page that answer: headline, curve and calculator, effects by group, other methods, and the checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bgmiv.analysis.analysis import Analysis, EffectRow, MethodRow
from bgmiv.analysis.axes import MIN_SUPPORT, effect_axis, method_curves
from bgmiv.analysis.markup import Markup, clean, element, sentence, shortened
from bgmiv.analysis.page.charts import curve_chart, sample
from bgmiv.analysis.page.forest import MARKS, ForestRow, forest, level_charts, look_of
from bgmiv.analysis.page.parts import Parts, badge, cards, pairs, tools
from bgmiv.analysis.text import answer, cautions, checks_of, estimate_cells, failed, groups_left_out, method_note, trust
from bgmiv.intervals import ANDERSON_RUBIN
from bgmiv.numerals import number, percent, robust_set_text, share, together

__all__ = ["checks_section", "curve_section", "effects_section", "headline", "methods_section"]


def headline(analysis: Analysis) -> Markup:
    """The answer in a sentence, how far to trust it, and what it is about at a glance."""
    question, belief = analysis.question, trust(analysis)
    names, warned = question.covariates, cautions(analysis)
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    facts = {
        "Outcome": question.outcome,
        "Treatment": question.treatment,
        "Instruments": ", ".join(question.instruments),
        "Covariates": (", ".join(shortened(name, 40) for name in names[:6]) or "none") + more,
        sentence(analysis.units)[:-1]: f"{question.n_rows:,}",
        "Method": analysis.method,
    }
    return element(
        "header",
        element("p", "Instrumental-variable analysis", class_="eyebrow"),
        element("h1", analysis.title),
        element("p", " ".join(warned), class_=f"caution {belief.severity}") if warned else None,
        element("p", answer(analysis), class_="answer"),
        element("p", badge(belief.severity, belief.word), " ", belief.sentence, class_="trust"),
        _tiles(analysis),
        pairs(facts, "facts"),
        class_="top",
    )


def _tiles(analysis: Analysis) -> Markup:
    first, units = analysis.effects[0], analysis.units
    value, low, high = together(first.estimate, first.lower, first.upper)
    change = analysis.question.change_text(first) + (" (failed fit)" if failed(analysis) else "")
    tiles = [("Average effect", value, change)]
    if first.lower is not None:
        errors = ", ".join(
            f"{shortened(name, 20)} {number(float(part), 2)}" for name, part in first.interval.std_errors.items()
        )
        text, detail = f"{low} to {high}", f"standard error: {errors}"
        if first.interval.method == ANDERSON_RUBIN:
            text, detail = robust_set_text(first.interval.pieces), "Anderson-Rubin set, robust to weak instruments"
        tiles.append((f"{percent(analysis.level)} interval", text, detail))
    tiles.append(("In support", share(first.in_support), f"of {units} have comparable {units} at both values"))
    for check in checks_of(analysis)[0]:
        if "effective_f" in check.numbers:
            critical = f"effective F; critical value {number(check.numbers['critical'])}"
            tiles.append(("Instruments", number(check.numbers["effective_f"]), critical))
    made = [
        element("div", element("dt", name), element("dd", text), element("dd", detail, class_="soft"))
        for name, text, detail in tiles
    ]
    return element("dl", *made, class_="tiles")


def curve_section(analysis: Analysis) -> Parts:
    """The curve with its controls, or a forest plot of levels, and the calculator of contrasts."""
    meaning, treatment = clean(analysis.question.outcome_meaning), clean(analysis.question.treatment)
    level, units = percent(analysis.level), analysis.units
    if analysis.question.level_names:
        drawn = [level_charts(analysis)]
        note = f"Hollow marks are extrapolated: this level is in support for fewer than half of the {units}."
        band = f"Lines are {level} intervals."
    else:
        drawn = [
            element("p", sentence(meaning).rstrip("."), class_="axis-name"),
            element("div", curve_chart(analysis), class_="plot"),
            element("p", f"{treatment}, set by intervention", class_="axis-name across"),
            _reader(analysis),
        ]
        note = f"Hatched: the curve is extrapolated; such treatments are in support for fewer than half of the {units}."
        band = f"The shaded area shows pointwise {level} intervals."
        if analysis.curves[0].band_lower:
            band = f"The shaded area is a uniform {level} band for the whole curve; pointwise intervals are narrower."
    band += " The instruments are too weak for it: it is too narrow." if analysis.weak else ""
    caption = f"{note} {band} {sentence(analysis.interval_kind)}" if analysis.curves[0].lower else note
    return [
        element("h2", f"What if {shortened(treatment, 40)} were set?"),
        element("figure", _legend(analysis), *drawn, element("figcaption", caption)),
        tools("curve", "the curve", only_file=True),
        _contrast_form(analysis),
    ]


def _legend(analysis: Analysis) -> Markup | None:
    """The choice of group and of intervals, and of the other methods that are drawn beside the curve."""
    parts: list[Markup] = []
    levelled = bool(analysis.question.level_names)
    if len(analysis.curves) > 1:
        options = [
            element("option", f"{shortened(one.group.label, 60)} ({one.group.n_rows:,})", value=i)
            for i, one in enumerate(analysis.curves)
        ]
        parts.append(element("label", element("span", "Averaged over"), element("select", *options, id="group")))
    if analysis.curves[0].band_lower and analysis.curves[0].lower and not levelled:
        box = element("input", type="checkbox", id="pointwise")
        parts.append(element("label", box, "Pointwise intervals"))
    boxes = []
    for i, name, _ in method_curves(analysis):
        box = element("input", type="checkbox", data_toggle=i, checked=analysis.methods[i].note == "truth")
        boxes.append(element("label", box, sample(analysis, i), element("bdi", shortened(name, 40))))
    if boxes:
        parts.append(element("fieldset", element("legend", "Compare with"), *boxes))
    return element("div", *parts, class_="controls needs-js") if parts else None


def _reader(analysis: Analysis) -> Markup:
    """A slider along the curve, and what it reads there."""
    last = len(analysis.curves[0].treatment) - 1
    treatment = shortened(analysis.question.treatment, 30)
    slider = element(
        "input", type="range", id="place", min=0, max=last, step=1, value=round(0.625 * last),
        aria_label=f"Read the curve at this {treatment}",
    )  # fmt: skip
    cells = [
        (treatment, "read-treatment"),
        (shortened(analysis.question.outcome_meaning, 40), "read-estimate"),
        (f"{percent(analysis.level)} {'band' if analysis.curves[0].band_lower else 'interval'}", "read-interval"),
        ("in support", "read-share"),
    ]
    shown = [
        element("div", element("dt", name, id=f"{anchor}-name"), element("dd", "", id=anchor)) for name, anchor in cells
    ]
    return element("div", slider, element("dl", *shown, class_="readout", id="readout"), class_="needs-js reader")


def _contrast_form(analysis: Analysis) -> Markup | None:
    """Two treatments to choose, and the average effect of one against the other."""
    if len(analysis.curves[0].treatment) < 2:
        return None
    first = analysis.effects[0]
    fields = [_field(analysis, "t1", "setting it to", first.t1), _field(analysis, "t0", "instead of", first.t0)]
    return element(
        "div",
        element("h3", "Compute another contrast"),
        element("div", *fields, class_="fields"),
        element(
            "output",
            element("b", "", id="contrast-value"),
            element("span", "", id="contrast-interval"),
            element("span", "", id="contrast-share", class_="soft"),
            id="contrast",
            aria_live="polite",
        ),
        class_="contrast needs-js",
    )


def _field(analysis: Analysis, name: str, word: str, value: float) -> Markup:
    levels, grid = analysis.question.level_names, analysis.curves[0].treatment
    treatment = shortened(analysis.question.treatment, 30)
    label = element("span", f"{treatment}, {word}")
    if levels:
        shown = enumerate(shortened(level, 60) for level in levels)
        options = [element("option", text, value=i, selected=i == int(value)) for i, text in shown]
        return element("label", label, element("select", *options, id=name))
    # All digits, so that the script knows the treatments of the effect.
    low, high, start = (repr(t).removesuffix(".0") for t in (grid[0], grid[-1], value))
    ends = {"min": low, "max": high, "step": "any", "value": start}
    return element(
        "div",
        element("label", label, element("input", type="number", id=name, inputmode="decimal", **ends)),
        element("input", type="range", id=f"{name}-slide", aria_label=f"{treatment}, {word}", **ends),
        element("p", element("span", number(grid[0])), element("span", number(grid[-1])), class_="soft"),
    )


def effects_section(analysis: Analysis) -> Parts:
    """The average effect by group; nothing where there are no groups."""
    rows, question = analysis.effects, analysis.question
    if len(rows) < 2:
        return []
    t0, t1 = (question.treatment_text(t) for t in (rows[0].t0, rows[0].t1))
    names = [shortened(text, 60) for text in (question.treatment, question.changed)]
    text = f"Average effect on {names[1]} of setting {names[0]} to {t1} instead of {t0}, by group of {analysis.units}."
    if all(math.isclose(row.estimate, rows[0].estimate, rel_tol=1e-4) for row in rows):
        text += " The fit found no differences between groups."
    looks = [
        {"look": "main" if row.in_support >= MIN_SUPPORT else "faint", "mark": "circle" if i else "diamond", "curve": i}
        for i, row in enumerate(rows)
    ]
    labels = [(r.group.label, f"{r.group.n_rows:,} {analysis.units}, {share(r.in_support)} in support") for r in rows]
    table = _effect_forest(analysis, rows, labels, looks, "Average effects by group")
    cut = groups_left_out(analysis)
    less = element("p", " ".join(cut), class_="soft") if cut else None
    return [element("h2", "By group"), element("p", text), table, less, tools("effects", "effects by group")]


def methods_section(analysis: Analysis) -> Parts:
    """The same effect by other methods; nothing where there are none."""
    rows = analysis.methods
    if len(rows) < 2:
        return []
    text = (
        "The same average effect by every method. The difference between a method and its version without the "
        "instruments is an estimate of the confounding bias."
    )
    looks = [{"look": look_of(analysis, i), "mark": MARKS[i % len(MARKS)]} for i in range(len(rows))]
    labels = [(row.name, method_note(row)) for row in rows]
    table = _effect_forest(analysis, rows, labels, looks, "The effect by method")
    return [element("h2", "Methods side by side"), element("p", text), table, tools("methods", "effects by method")]


def _effect_forest(
    analysis: Analysis,
    rows: Sequence[EffectRow | MethodRow],
    labels: Sequence[tuple[str, str]],
    looks: Sequence[dict[str, Any]],
    caption: str,
) -> Markup:
    lines = [
        ForestRow(*label, *cells, row.estimate, row.interval.stretches, **look)
        for row, label, cells, look in zip(rows, labels, estimate_cells(rows), looks, strict=True)
    ]
    axis = effect_axis([(row.estimate, *(end for piece in row.interval.stretches for end in piece)) for row in rows])
    return forest(lines, axis, caption=caption, head=("Effect", f"{percent(analysis.level)} interval"))


def checks_section(analysis: Analysis) -> Parts:
    """The other checks, and the verdict from held-out rows."""
    others, verdict = checks_of(analysis)[1], analysis.verdict
    parts = [element("h2", "Can the fit be trusted?"), cards(others), tools("checks", "all checks")]
    if verdict is None:
        return parts if others else []
    n = verdict.evidence.n_held_out
    text = f"{n:,} {analysis.units} were held out of training to check the fit."
    if n == analysis.question.n_rows:
        text = f"The fit is an ensemble: each of the {n:,} {analysis.units} is checked by a member not trained on it."
    elif not n:
        text = "No rows were held out to check the fit."
    reasons = [element("li", reason) for reason in verdict.lines]
    held_out = element(
        "div",
        element("div", element("h3", "Fit on held-out rows"), badge(verdict.severity, verdict.severity)),
        element("p", text),
        element("ul", *reasons),
        class_=f"check wide {verdict.severity}",
    )
    return [*parts, held_out]
