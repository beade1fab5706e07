"""One page that holds an analysis: nothing is loaded, nothing but its own script runs, and it works without it."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import norm as normal

from bgmiv._io import check_writable, remove_strays, write_whole
from bgmiv.analysis import charts
from bgmiv.analysis.analysis import Analysis, EffectRow, MethodRow
from bgmiv.analysis.background import assumptions_section, data_section, history_section, shape_bars
from bgmiv.analysis.charts import MARKS, MIN_SUPPORT, ForestRow, effect_axis, forest, method_look
from bgmiv.analysis.markup import (
    Markup,
    aligned,
    asset,
    clean,
    element,
    number,
    percent,
    robust_set_text,
    sentence,
    share,
    shortened,
    together,
)
from bgmiv.analysis.text import answer, cautions, checks_of, estimate_cells, failed, method_note, trust
from bgmiv.diagnostics.check import Check, LinearEstimate
from bgmiv.errors import ConfigError

__all__ = ["check_path", "report_page", "write_report"]

Parts = Sequence[Markup | None]

_PAPER = "Luo and Liu, BGM-IV: an AI-powered Bayesian generative modeling approach for instrumental variable analysis."
_ICONS = {
    "good": "M3 8.5l3.2 3.2L13 5",
    "note": "M8 7v5M8 4v.6",
    "doubtful": "M8 3v6.5M8 12.4v.6",
    "failed": "M4 4l8 8M12 4l-8 8",
}


def report_page(analysis: Analysis) -> str:
    """The whole page as HTML.

    Its policy lets only its own style and script act, by their hashes, and loads nothing. Every text is escaped where
    it enters an element, and the script writes texts only.
    """
    style, script = texts = [asset(name) for name in ("report.css", "report.js")]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii") for text in texts]
    policy = (
        f"default-src 'none'; script-src 'sha256-{hashes[1]}'; style-src 'sha256-{hashes[0]}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    sections = {
        ("curve-section", "The curve"): _curve(analysis),
        ("effects", "By group"): _effects(analysis),
        ("strength", "Instruments"): _strength(analysis),
        ("checks", "Checks"): _checks(analysis),
        ("methods", "Other methods"): _methods(analysis),
        ("assumptions", "Assumptions"): assumptions_section(analysis),
        ("data", "Data"): data_section(analysis),
        ("history", "Training"): history_section(analysis),
        ("again", "Reproduce"): _again(analysis),
    }
    shown = {names: parts for names, parts in sections.items() if parts}
    links = [element("li", element("a", name, href=f"#{anchor}")) for anchor, name in shown]
    written = [element("section", *parts, id=anchor) for (anchor, _), parts in shown.items()]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", analysis.title),
        element("style", Markup(style)),
    )
    made = f"Made by bgmiv {clean(analysis.versions.get('bgmiv', ''))}".rstrip()
    foot = element("footer", element("p", f"{made}. This file is the whole page: it loads nothing."))
    nav = element("nav", element("ul", *links), aria_label="Contents")
    body = element(
        "body",
        element("a", "Skip to the curve", href="#curve-section", class_="unseen skip"),
        element("div", nav, element("main", _headline(analysis), *written, foot), class_="sheet"),
        element("script", Markup(charts.safe_json(charts.payload(analysis))), type="application/json", id="analysis"),
        element("script", Markup(script)),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def write_report(analysis: Analysis, path: str | os.PathLike[str]) -> Path:
    """Write the page to a file, whole or not at all, and give its path; raises as `check_path` does."""
    target = check_path(path)
    remove_strays(target)
    write_whole(target, report_page(analysis).encode())
    return target


def check_path(path: str | os.PathLike[str]) -> Path:
    """The path of a page to write; checked before anything slow is done.

    Raises:
        ConfigError: the path is a folder, or its folder does not exist.
        StoreError: nothing can be written there.
    """
    target = Path(path)
    if target.is_dir():
        example = str(target / "report.html")
        raise ConfigError(f"path {str(target)!r} is a folder. Name a file in it, such as {example!r}.")
    if not target.parent.is_dir():
        raise ConfigError(f"the folder {str(target.parent)!r} of path {str(target)!r} does not exist. Make it first.")
    check_writable(target.parent)
    return target


def _badge(severity: str, word: str) -> Markup:
    """A severity as a word with an icon, so that colour is not needed to read it."""
    path = element("path", d=_ICONS[severity])
    icon = element("svg", path, viewBox="0 0 16 16", aria_hidden="true", focusable="false")
    return element("span", icon, word, class_=f"badge {severity}")


def _pairs(pairs: Mapping[str, str], look: str) -> Markup:
    cells = [(element("bdi", name), element("bdi", text)) for name, text in pairs.items()]
    return element("dl", *(element("div", element("dt", a), element("dd", b)) for a, b in cells), class_=look)


def _headline(analysis: Analysis) -> Markup:
    """The answer in a sentence, how far to trust it, and what it is about at a glance."""
    question, belief = analysis.question, trust(analysis)
    names, warned = question.covariates, cautions(analysis)
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    facts = {
        "Outcome": question.outcome,
        "Treatment": question.treatment,
        "Instruments": ", ".join(question.instruments),
        "Covariates": (", ".join(shortened(name, 40) for name in names[:6]) or "none") + more,
        "Rows": f"{question.n_rows:,}",
        "Method": analysis.method,
    }
    return element(
        "header",
        element("p", "Instrumental-variable analysis", class_="eyebrow"),
        element("h1", analysis.title),
        element("p", " ".join(warned), class_=f"caution {belief.severity}") if warned else None,
        element("p", answer(analysis), class_="answer"),
        element("p", _badge(belief.severity, belief.word), " ", belief.sentence, class_="trust"),
        _tiles(analysis),
        _pairs(facts, "facts"),
        class_="top",
    )


def _tiles(analysis: Analysis) -> Markup:
    first = analysis.effects[0]
    value, low, high = together(first.estimate, first.lower, first.upper)
    change = analysis.question.change_text(first) + (", by a failed fit" if failed(analysis) else "")
    tiles = [("Average effect", value, change)]
    if first.lower is not None:
        errors = ", ".join(f"{shortened(name, 20)} {number(part, 2)}" for name, part in first.std_errors.items())
        text, detail = f"{low} to {high}", f"standard error: {errors}"
        if first.method == "anderson-rubin":
            text, detail = robust_set_text(first.pieces), "Anderson-Rubin set: the instruments are weak"
        tiles.append((f"{percent(analysis.level)} interval", text, detail))
    tiles.append(("In support", share(first.in_support), "of rows: comparable rows are observed at both values"))
    for check in checks_of(analysis)[0]:
        if "effective_f" in check.numbers:
            critical = f"effective F; critical value {number(check.numbers['critical'])}"
            tiles.append(("Instruments", number(check.numbers["effective_f"]), critical))
    made = [
        element("div", element("dt", name), element("dd", text), element("dd", detail, class_="soft"))
        for name, text, detail in tiles
    ]
    return element("dl", *made, class_="tiles")


def _curve(analysis: Analysis) -> Parts:
    """The curve with its controls, or a forest plot of levels, and the calculator of contrasts."""
    meaning, treatment = clean(analysis.question.outcome_meaning), clean(analysis.question.treatment)
    level = percent(analysis.level)
    if analysis.question.level_names:
        drawn = [charts.level_charts(analysis)]
        note = "Hollow marks: the data show this level for fewer than half of the rows, so the value is extrapolated."
        band = f"Lines are {level} intervals."
    else:
        drawn = [
            element("p", sentence(meaning).rstrip("."), class_="axis-name"),
            element("div", charts.curve_chart(analysis), class_="plot"),
            element("p", f"{treatment}, if it were set", class_="axis-name across"),
            _reader(analysis),
        ]
        note = "Hatched: the data show such treatments for fewer than half of the rows, so the curve is extrapolated."
        band = f"The light band is meant to hold the whole curve ({level}), the dark one each point of it."
    caption = f"{note} {band} {sentence(analysis.interval_kind)}" if analysis.curves[0].lower else note
    return [
        element("h2", f"What if {shortened(treatment, 40)} were set?"),
        element("figure", _legend(analysis), *drawn, element("figcaption", caption)),
        _contrast_form(analysis),
    ]


def _legend(analysis: Analysis) -> Markup | None:
    """The choice of group, and of the other methods that are drawn beside the curve."""
    parts: list[Markup] = []
    if len(analysis.curves) > 1:
        options = [
            element("option", f"{shortened(one.group.label, 60)} ({one.group.n_rows:,} rows)", value=i)
            for i, one in enumerate(analysis.curves)
        ]
        parts.append(element("label", element("span", "Averaged over"), element("select", *options, id="group")))
    others = charts.method_curves(analysis)
    if others:
        boxes = [
            (
                element("input", type="checkbox", data_toggle=i),
                charts.sample(i, bool(analysis.question.level_names)),
                element("bdi", shortened(name, 40)),
            )
            for i, name, _ in others
        ]
        labels = [element("label", *box) for box in boxes]
        parts.append(element("fieldset", element("legend", "Compare with"), *labels))
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
        (f"{percent(analysis.level)} interval", "read-interval"),
        ("in support", "read-share"),
    ]
    shown = [element("div", element("dt", name), element("dd", "", id=anchor)) for name, anchor in cells]
    return element("div", slider, element("dl", *shown, class_="readout", id="readout"), class_="needs-js reader")


def _contrast_form(analysis: Analysis) -> Markup | None:
    """Two treatments to choose, and the average effect of one against the other."""
    if len(analysis.curves[0].treatment) < 2:
        return None
    first = analysis.effects[0]
    fields = [_field(analysis, "t1", "setting it to", first.t1), _field(analysis, "t0", "instead of", first.t0)]
    return element(
        "div",
        element("h3", "Ask for another contrast"),
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


def _effects(analysis: Analysis) -> Parts:
    """The average effect by group; nothing where there are no groups."""
    rows, question = analysis.effects, analysis.question
    if len(rows) < 2:
        return []
    t0, t1 = (question.treatment_text(t) for t in (rows[0].t0, rows[0].t1))
    names = [shortened(text, 60) for text in (question.treatment, question.changed)]
    text = f"The average effect of setting {names[0]} to {t1} instead of {t0} on {names[1]}, by group of rows."
    looks = [
        {"look": "main" if row.in_support >= MIN_SUPPORT else "faint", "mark": "circle" if i else "diamond", "curve": i}
        for i, row in enumerate(rows)
    ]
    labels = [(r.group.label, f"{r.group.n_rows:,} rows, {share(r.in_support)} in support") for r in rows]
    table = _effect_forest(analysis, rows, labels, looks, "Average effects by group")
    return [element("h2", "By group"), element("p", text), table]


def _methods(analysis: Analysis) -> Parts:
    """The same effect by other methods; nothing where there are none."""
    rows = analysis.methods
    if len(rows) < 2:
        return []
    text = (
        "The same average effect by every method. Where a method without the instruments differs from the same method "
        "with them, the difference is an estimate of the confounding."
    )
    looks = [{"look": method_look(i) if i else "main", "mark": MARKS[i % len(MARKS)]} for i in range(len(rows))]
    labels = [(row.name, method_note(row)) for row in rows]
    table = _effect_forest(analysis, rows, labels, looks, "The effect by method")
    return [element("h2", "Other methods"), element("p", text), table]


def _effect_forest(
    analysis: Analysis,
    rows: Sequence[EffectRow | MethodRow],
    labels: Sequence[tuple[str, str]],
    looks: Sequence[dict[str, Any]],
    caption: str,
) -> Markup:
    lines = [
        ForestRow(*label, *cells, row.estimate, charts.interval_ends(row.lower, row.upper), **look)
        for row, label, cells, look in zip(rows, labels, estimate_cells(rows), looks, strict=True)
    ]
    axis = effect_axis([(row.estimate, row.lower, row.upper) for row in rows])
    return forest(lines, axis, caption=caption, head=("Effect", f"{percent(analysis.level)} interval"))


def _strength(analysis: Analysis) -> Parts:
    """The checks of the instruments, and the linear estimate with what weak instruments leave of it."""
    strength, linear = checks_of(analysis)[0], analysis.diagnosis.linear
    if not strength and linear is None:
        return []
    return [element("h2", "Do the instruments move the treatment?"), _cards(strength), *_linear(linear)]


def _linear(linear: LinearEstimate | None) -> Parts:
    if linear is None:
        return []
    level, wide = percent(linear.level), float(normal.ppf(0.5 + linear.level / 2.0)) * linear.ols_std_error
    ends = ((linear.coefficient, linear.lower, linear.upper), (linear.ols, linear.ols - wide, linear.ols + wide))
    (slope, low, high), (ols, ols_low, ols_high) = aligned(ends)
    rows = [
        ForestRow("Two-stage least squares", "straight line, robust standard errors", slope, f"{low} to {high}",
                  linear.coefficient, (ends[0][1:],)),
        ForestRow("Weak-instrument-robust set", "Anderson and Rubin", "", robust_set_text(linear.robust_set), None,
                  linear.robust_set, "m2"),
        ForestRow("Conditional likelihood ratio", "Moreira, for errors with equal variance", "",
                  robust_set_text(linear.likelihood_ratio_set), None, linear.likelihood_ratio_set, "m2"),
        ForestRow("Least squares", "without the instruments", ols, f"{ols_low} to {ols_high}", linear.ols,
                  (ends[1][1:],), "m1", "square"),
    ]  # fmt: skip
    axis = effect_axis([*ends, *((linear.coefficient, *pair) for pair in linear.robust_set)])
    table = forest(rows, axis, caption="Linear effect of the treatment", head=("Slope", f"{level} interval"))
    text = (
        "The linear effect of one unit of treatment, for comparison. Where the robust set is much wider than the usual "
        "interval, rely on the set."
    )
    return [element("h3", "If the effect were linear"), element("p", text), table]


def _checks(analysis: Analysis) -> Parts:
    """The other checks, and the verdict from held-out rows."""
    others, verdict = checks_of(analysis)[1], analysis.verdict
    parts = [element("h2", "Can it be trusted?"), _cards(others)]
    if verdict is None:
        return parts if others else []
    n = verdict.evidence.n_held_out
    text = f"{n:,} rows were held out of training to check the fit." if n else "No rows were held out to check the fit."
    reasons = [element("li", reason) for reason in verdict.reasons]
    held_out = element(
        "div",
        element("div", element("h3", "The fit in held-out rows"), _badge(verdict.severity, verdict.severity)),
        element("p", text),
        element("ul", *reasons) if reasons else None,
        class_=f"check wide {verdict.severity}",
    )
    return [*parts, held_out]


def _cards(checks: Sequence[Check]) -> Markup | None:
    cards = []
    for check in checks:
        size = "" if len(check.value) <= 24 else " long" if len(check.value) <= 60 else " prose"
        card = element(
            "div",
            element("div", element("h3", check.title), _badge(check.severity, check.severity)),
            element("p", check.value, class_=f"figure{size}"),
            charts.meter(check) or shape_bars(check),
            element("p", check.reading),
            element("p", check.reference, class_="soft") if check.reference else None,
            class_=f"check {check.severity}",
        )
        cards.append(card)
    return element("div", *cards, class_="cards") if cards else None


def _again(analysis: Analysis) -> Parts:
    settings = {"method": analysis.method, "seed": str(analysis.seed), **analysis.settings}
    lists = [
        element("div", element("h3", title), _pairs(values, "pairs"))
        for title, values in (("Settings", settings), ("Versions", analysis.versions))
    ]
    version = clean(analysis.versions.get("bgmiv", ""))
    install = f"Install bgmiv {version} and fit the same rows with these settings and this seed: the numbers repeat."
    cite = f"{_PAPER} " if analysis.method.startswith("BGM-IV") else ""
    return [
        element("h2", "Reproduce it"),
        element("p", install),
        element("div", *lists, class_="cards"),
        element("h3", "Cite"),
        element("p", f"{cite}bgmiv, version {version}: instrumental-variable analysis in Python."),
    ]
