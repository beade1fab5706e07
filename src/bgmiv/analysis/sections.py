"""The sections of the page, in their order: what is filled into the markup of `assets/report.html`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from bgmiv.analysis.analysis import Analysis, Answer
from bgmiv.analysis.charts import (
    MIN_SUPPORT,
    ForestRow,
    answer_axis,
    axis_over,
    binned_chart,
    curve_chart,
    effect_axis,
    forest,
    level_charts,
    lines_chart,
    look_of,
    sparkline,
)  # fmt: skip
from bgmiv.analysis.instruments import Balance, DirectEffect
from bgmiv.analysis.markup import Markup, clean, element, filled, sentence, shortened
from bgmiv.analysis.text import (
    NOTES,
    answer,
    assumptions,
    cautions,
    checks_of,
    estimate_cells,
    facts,
    failed,
    groups_left_out,
    html_table,
    trust,
)  # fmt: skip
from bgmiv.diagnostics.explanations import Check
from bgmiv.linear_iv import LinearEstimate
from bgmiv.numerals import aligned, number, percent, robust_set_text, share

__all__ = ["PICTURES", "SECTIONS", "direct_lines", "headline"]

PICTURES = {"first-stage": "First stage", "reduced-form": "Reduced form"}
"""Titles of the pictures of the instruments, by the names of their tables."""

_PAPER = "Luo and Liu, BGM-IV: an AI-powered Bayesian generative modeling approach for instrumental variable analysis."
# Applied work usually takes a standardised difference above a tenth as a sign of imbalance.
_NOTABLE = 0.1
# One for each step of the slider.
_N_POINTS = 101


def headline(analysis: Analysis) -> Markup:
    """The answer in a sentence, how far to trust it, and what it is about at a glance."""
    known = facts(analysis)
    names = ("Outcome", "Treatment", "Instruments", "Covariates", sentence(analysis.units)[:-1], "Method")
    return filled(
        "headline",
        analysis=analysis,
        caution=" ".join(cautions(analysis)),
        answer=answer(analysis),
        trust=trust(analysis),
        tiles=_tiles(analysis),
        facts=_pairs({name: known[name] for name in names}, "facts"),
    )


def _tiles(analysis: Analysis) -> list[Markup]:
    first, units, change = analysis.effects[0], analysis.units, analysis.question.change_text(analysis.effects[0])
    ((value, ends),) = estimate_cells([first])
    tiles = [("Average effect", value, change + (" (failed fit)" if failed(analysis) else ""))]
    if first.lower is not None:
        robust = "Anderson-Rubin set, robust to weak instruments"
        more = robust if first.robust else f"standard error {number(float(first.interval.std_error))}"
        tiles.append((f"{percent(analysis.level)} interval", ends, more))
    tiles.append(("In support", share(first.in_support), f"of {units} have comparable {units} at both values"))
    for check in analysis.diagnosis.checks:
        if check.key == "effective-f":
            critical = f"effective F; critical value {number(check.numbers['critical'])}"
            tiles.append(("Instruments", number(check.numbers["effective_f"]), critical))
    return [filled("tile", name=name, text=text, more=more) for name, text, more in tiles]


def _pairs(values: Mapping[str, str], look: str) -> Markup:
    """Names with their texts."""
    return element("dl", *(filled("pair", name=name, text=text) for name, text in values.items()), class_=look)


def _select(name: str, options: Iterable[tuple[int, str]], anchor: str, chosen: int | None = None) -> Markup:
    """A choice among numbered options."""
    made = [element("option", text, value=i, selected=i == chosen) for i, text in options]
    return filled("select", name=name, anchor=anchor, options=made)


def _curve(analysis: Analysis) -> Markup:
    """The curve with its controls, or a forest plot of levels, and the calculator of contrasts."""
    question, curve = analysis.question, analysis.curves[0]
    level, units = percent(analysis.level), analysis.units
    if question.level_names:
        drawn = [level_charts(analysis)]
        note = f"Hollow marks are extrapolated: this level is in support for fewer than half of the {units}."
        band = f"Lines are {level} intervals."
    else:
        meaning = sentence(question.outcome_meaning).rstrip(".")
        across = f"{clean(question.treatment)}, set by intervention"
        drawn = [filled("plot", chart=curve_chart(analysis), up=meaning, across=across), _reader(analysis)]
        note = f"Hatched: the curve is extrapolated; such treatments are in support for fewer than half of the {units}."
        band = f"The shaded area is a uniform {level} band for the whole curve; pointwise intervals are narrower."
    band += " The instruments are too weak for it: it is too narrow." if analysis.weak else ""
    caption = f"{note} {band} {sentence(analysis.interval_kind)}" if curve.lower else note
    return filled(
        "section-curve",
        question=question,
        controls=_controls(analysis),
        drawn=drawn,
        caption=caption,
        contrast=_contrast_form(analysis),
    )


def _controls(analysis: Analysis) -> Markup | None:
    """The choice of group and of intervals, and of the other methods that are drawn beside the curve."""
    parts, curve = [], analysis.curves[0]
    if len(analysis.curves) > 1:
        groups = [f"{shortened(one.group.label, 60)} ({one.group.n_rows:,})" for one in analysis.curves]
        parts.append(_select("Averaged over", enumerate(groups), "group"))
    along = not analysis.question.level_names
    if curve.lower and along:
        parts.append(filled("pointwise"))
    boxes = []
    for i, row in analysis.others:
        checked = Markup(" checked") if row.note == "truth" else None
        boxes.append(filled("method-box", i=i, checked=checked, look=look_of(analysis, i), name=row.name))
    if boxes and along:
        parts.append(filled("methods-choice", boxes=boxes))
    return filled("controls", parts=parts) if parts else None


def _reader(analysis: Analysis) -> Markup:
    """A slider along the curve, and what it reads there."""
    last = len(analysis.curves[0].treatment) - 1
    level = percent(analysis.level)
    return filled("reader", last=last, start=last // 2, question=analysis.question, level=level)


def _contrast_form(analysis: Analysis) -> Markup:
    """Two treatments to choose, and the average effect of one against the other."""
    first = analysis.effects[0]
    fields = [_field(analysis, "t1", "setting it to", first.t1), _field(analysis, "t0", "instead of", first.t0)]
    return filled("contrast", fields=fields)


def _field(analysis: Analysis, name: str, role: str, value: float) -> Markup:
    levels, grid = analysis.question.level_names, analysis.curves[0].treatment
    label = f"{shortened(analysis.question.treatment, 30)}, {role}"
    if levels:
        return _select(label, enumerate(shortened(level, 60) for level in levels), name, int(value))
    # All digits, so that the script knows the treatments of the effect.
    low, high, start = (repr(t).removesuffix(".0") for t in (grid[0], grid[-1], value))
    texts = [number(grid[0]), number(grid[-1])]
    return filled("number-field", label=label, name=name, value=start, low=low, high=high, texts=texts)


def _effects(analysis: Analysis) -> Markup | None:
    """The average effect by group; nothing where there are no groups."""
    rows, question = analysis.effects, analysis.question
    if len(rows) < 2:
        return None
    drawn = []
    for i, row in enumerate(rows):
        note = f"{row.group.n_rows:,} {analysis.units}, {share(row.in_support)} in support"
        look = "main" if row.in_support >= MIN_SUPPORT else "faint"
        drawn.append((row.group.label, note, look, i))
    return filled(
        "section-effects",
        question=question,
        t0=question.treatment_text(rows[0].t0),
        t1=question.treatment_text(rows[0].t1),
        units=analysis.units,
        table=_effect_forest(analysis, rows, drawn, "Average effects by group"),
        left_out=" ".join(groups_left_out(analysis)),
    )


def _methods(analysis: Analysis) -> Markup | None:
    """The same effect by other methods; nothing where there are none."""
    rows = analysis.methods
    if len(rows) < 2:
        return None
    drawn = [(row.name, NOTES.get(row.note, ""), look_of(analysis, i), None) for i, row in enumerate(rows)]
    return filled("section-methods", table=_effect_forest(analysis, rows, drawn, "The effect by method"))


def _effect_forest(
    analysis: Analysis, effects: Sequence[Answer], drawn: Sequence[tuple[str, str, str, int | None]], caption: str
) -> Markup:
    """Effects with their labels, notes, styles, and numbers of groups."""
    rows = []
    for row, cells, (label, note, look, i) in zip(effects, estimate_cells(effects), drawn, strict=True):
        rows.append(ForestRow(label, note, *cells, row.estimate, row.interval.stretches, look, i))
    head = ("Effect", f"{percent(analysis.level)} interval")
    return forest(rows, answer_axis(effects), caption=caption, head=head)


def _strength(analysis: Analysis) -> Markup:
    """The checks of the instruments, pictures of what they move, the linear estimate, and balance."""
    checks, linear = _cards(checks_of(analysis)[0]), _linear(analysis.diagnosis.linear)
    pictures, balance = _pictures(analysis), _balance(analysis)
    return filled("section-strength", cards=checks, pictures=pictures, linear=linear, balance=balance)


def _cards(checks: Sequence[Check]) -> Markup:
    """Checks with what they mean."""
    made = []
    for check in checks:
        size = "" if len(check.value) <= 24 else " long" if len(check.value) <= 60 else " prose"
        made.append(filled("check", check=check, size=size))
    return element("div", *made, class_="cards")


def _pictures(analysis: Analysis) -> Markup | None:
    if not analysis.instruments.means:
        return None
    figures = []
    for (table, title), means in zip(PICTURES.items(), analysis.instruments.means, strict=True):
        name, along = shortened(means.name, 40), shortened(means.along, 40)
        along = along or f"{shortened(analysis.question.treatment, 40)}, predicted by the instruments"
        chart = binned_chart(means, f"{title}: {name} by {along}")
        plot = filled("plot", chart=chart, up=name, across=along)
        instrument = means.along or "the instruments"
        figures.append(filled("picture", title=title, means=means, instrument=instrument, plot=plot, table=table))
    adjusted = " adjusted for covariates" if analysis.question.covariates else ""
    return filled("pictures", adjusted=adjusted, level=percent(analysis.level), figures=figures)


def _linear(linear: LinearEstimate | None) -> Markup | None:
    if linear is None:
        return None
    iv, ols = (linear.coefficient, linear.lower, linear.upper), (linear.ols, *linear.ols_interval)
    (slope, low, high), (ols_slope, ols_low, ols_high) = aligned([iv, ols])
    robust, ratio = linear.robust_set, linear.likelihood_ratio_set
    equal = "Moreira, for errors with equal variance"
    rows = [
        ForestRow("Two-stage least squares", "robust standard errors", slope, f"{low} to {high}", iv[0], (iv[1:],)),
        ForestRow("Weak-instrument-robust set", "Anderson and Rubin", "", robust_set_text(robust), None, robust, "m2"),
        ForestRow("Conditional likelihood ratio", equal, "", robust_set_text(ratio), None, ratio, "m2"),
        ForestRow("Ordinary least squares", "without the instruments", ols_slope, f"{ols_low} to {ols_high}", ols[0],
                  (ols[1:],), "m1"),
    ]  # fmt: skip
    axis = effect_axis([iv, ols, *((linear.coefficient, *pair) for pair in robust)])
    head = ("Slope", f"{percent(linear.level)} interval")
    table = forest(rows, axis, caption="Linear effect of the treatment", head=head)
    return filled("linear", table=table)


def _balance(analysis: Analysis) -> Markup | None:
    """Whether instruments go with covariates; nothing without covariates."""
    if not analysis.instruments.balance:
        return None
    tables = [_balance_table(each) for each in analysis.instruments.balance]
    return filled("balance", tables=tables)


def _balance_table(balance: Balance) -> Markup:
    rows = []
    for name, value in zip(balance.covariates, balance.differences, strict=True):
        notable = abs(value) > _NOTABLE
        remark, look = ("imbalanced", "m1") if notable else ("", "main")
        rows.append(ForestRow(name, "", f"{value:.2f}", remark, value, (), look))
    largest = max(1.5 * _NOTABLE, *(abs(value) for value in balance.differences))
    head = "Difference of means (standard deviations)" if balance.binary else "Correlation"
    caption = f"Balance of {clean(balance.instrument)} over covariates"
    more = balance.n_covariates - len(balance.covariates)
    return filled(
        "balance-table",
        balance=balance,
        table=forest(rows, axis_over([-largest, largest]), caption=caption, head=(head, "")),
        verb="predict" if balance.p < 0.05 else "do not significantly predict",
        f=number(balance.f),
        p="p < 0.001" if balance.p < 0.001 else f"p = {balance.p:.3f}",
        rest=f" The other {more} covariate columns differ less." if more else "",
    )


def _direct(analysis: Analysis) -> Markup | None:
    """What is left of the effect if an instrument also acts on the outcome directly; with a slider."""
    direct = analysis.instruments.direct
    shown = [i for i, each in enumerate(direct) if direct_lines(analysis, each)]
    if not shown:
        return None
    choice = None
    if len(shown) > 1:
        options = [(i, shortened(direct[i].instrument, 60)) for i in shown]
        choice = filled("controls", parts=_select("Instrument", options, "direct-instrument"))
    panels = [_direct_panel(analysis, i, direct[i], hidden=i != shown[0]) for i in shown]
    return filled("section-sensitivity", analysis=analysis, choice=choice, panels=panels)


def direct_lines(analysis: Analysis, direct: DirectEffect) -> dict[str, Any]:
    """The effect and its ends along a direct effect, by 2SLS ("line") and by the fit; empty if nothing moves.

    They go as far as twice the direct effect that takes the effect away.
    """
    effect = analysis.effects[0]
    change = effect.t1 - effect.t0
    slope, estimate = direct.slope * change, effect.estimate
    at_zero = direct.interval(0.0, analysis.level)
    if not slope or not np.all(np.isfinite([slope, estimate, *at_zero])):
        return {}
    sizes = (abs(direct.breakdown(analysis.level)), abs(estimate / slope))
    possible = [size for size in sizes if 0.0 < size < math.inf]
    largest = 2.0 * min(possible, default=math.sqrt(direct.variance) / abs(direct.slope))
    gamma = largest * np.linspace(-1.0, 1.0, _N_POINTS)
    ends = [estimate]
    if not effect.robust:
        ends += [end for pair in effect.interval.stretches for end in pair if math.isfinite(pair[1] - pair[0])]
    return {
        "gamma": gamma,
        "line": [change * end for end in direct.interval(gamma, analysis.level)],
        "fit": [end + gamma * slope for end in ends],
    }


def _direct_panel(analysis: Analysis, i: int, direct: DirectEffect, *, hidden: bool) -> Markup:
    name, outcome = shortened(direct.instrument, 40), shortened(analysis.question.changed, 40)
    effect, values = analysis.question.change_text(analysis.effects[0]), direct_lines(analysis, direct)
    gamma, caption = values["gamma"], _breakdown_text(analysis, direct)
    lines = {"main": values["line"]}
    if analysis.methods[0].note != "line":
        lines = {"m2": values["line"], "main": values["fit"]}
        caption = f"Solid: {shortened(analysis.method, 40)}. Dotted: 2SLS. {caption}"
    up = axis_over([0.0, *(value for ends in lines.values() for part in ends for value in part)])
    across = axis_over(gamma, margin=0.0)
    chart = lines_chart(gamma, lines, across, up, f"Average effect of {effect} by direct effect of {name}")
    axis = f"direct effect of {name} (units of {outcome} per unit of {name})"
    plot = filled("plot", chart=chart, up=f"Average effect, {effect}", across=axis)
    unseen = Markup(" hidden") if hidden else None
    return filled("direct-panel", i=i, low=repr(up.low), high=repr(up.high), hidden=unseen, plot=plot, caption=caption)


def _breakdown_text(analysis: Analysis, direct: DirectEffect) -> str:
    breakdown = direct.breakdown(analysis.level)
    if breakdown == 0.0:
        text = "The 2SLS interval contains zero even without a direct effect."
    elif math.isinf(breakdown):
        text = "No direct effect would bring zero into the 2SLS interval."
    else:
        outcome, name = shortened(analysis.question.changed, 40), shortened(direct.instrument, 40)
        text = (
            f"The 2SLS interval reaches zero at a direct effect of {number(breakdown)}, that is, "
            f"{number(breakdown * direct.scale, 2)} units of {outcome} per standard deviation of {name}."
        )
    weak = analysis.diagnosis.weak_instruments
    return text + (" The instruments are weak: these intervals are too narrow." if weak else "")


def _checks(analysis: Analysis) -> Markup:
    """The other checks, and the verdict from held-out rows."""
    verdict, held_out = analysis.verdict, None
    if verdict is not None:
        text = "No rows were held out to check the fit."
        if n := verdict.evidence.n_held_out:
            text = f"Checked on {n:,} {analysis.units} by fits that had not seen them."
        reasons = [element("li", reason) for reason in verdict.lines]
        held_out = filled("held-out", verdict=verdict, text=text, reasons=reasons)
    return filled("section-checks", cards=_cards(checks_of(analysis)[1]), held_out=held_out)


def _assumptions(analysis: Analysis) -> Markup:
    """What is estimated, and what it rests on."""
    table = html_table([], list(assumptions(analysis).items()), class_="plain terms")
    return filled("section-assumptions", table=table)


def _data(analysis: Analysis) -> Markup:
    """Where the rows come from, how they count, and their columns."""
    columns = [(element("bdi", one.name), one.role, one.kind, one.text) for one in analysis.question.columns]
    table = html_table(["Column", "Role", "Kind", "Summary"], columns, class_="plain")
    return filled("section-data", pairs=_pairs(facts(analysis), "pairs"), table=table)


def _history(analysis: Analysis) -> Markup | None:
    """Losses along training; nothing for a method in closed form."""
    if not analysis.history:
        return None
    phases = []
    for phase, lines in groupby(analysis.history, key=lambda line: line.phase):
        cards = [filled("loss", name=line.name, drawing=sparkline(line)) for line in lines]
        phases.append(filled("phase", name=phase, cards=cards))
    return filled("section-history", phases=phases)


def _again(analysis: Analysis) -> Markup:
    """Settings, versions, the day, and what to cite."""
    settings = {"method": analysis.method, "seed": str(analysis.seed), **analysis.settings, "made on": analysis.made}
    return filled(
        "again",
        version=analysis.versions.get("bgmiv", ""),
        settings=_pairs(settings, "pairs"),
        versions=_pairs(analysis.versions, "pairs"),
        paper=f"{_PAPER} " if analysis.method.startswith("BGM-IV") else "",
    )


SECTIONS: tuple[tuple[str, str, Callable[[Analysis], Markup | None]], ...] = (
    ("curve-section", "The curve", _curve),
    ("effects", "By group", _effects),
    ("strength", "Instruments", _strength),
    ("sensitivity", "Sensitivity", _direct),
    ("checks", "Checks", _checks),
    ("methods", "Methods", _methods),
    ("assumptions", "Assumptions", _assumptions),
    ("data", "Data", _data),
    ("history", "Training", _history),
    ("again", "Reproduce", _again),
)
"""The sections in their order: anchor, name, and what makes it; None where there is nothing to say."""
