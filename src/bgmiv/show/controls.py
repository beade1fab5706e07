"""What a reader can turn on the page: the group, other methods, the place on the curve, and the contrast."""

from __future__ import annotations

from collections.abc import Sequence

from bgmiv.show.analysis import Analysis
from bgmiv.show.charts import sample
from bgmiv.show.markup import Markup, element
from bgmiv.show.payload import start_positions
from bgmiv.show.words import level_names, number, percent, shortened

__all__ = ["contrast", "legend", "reader"]


def legend(analysis: Analysis, others: Sequence[tuple[int, str]]) -> Markup | None:
    """The choice of group, and of the other methods that are drawn beside the curve."""
    parts: list[Markup] = []
    if len(analysis.curves) > 1:
        options = [
            element("option", f"{shortened(one.label, 60)} ({one.n_rows:,} rows)", value=i)
            for i, one in enumerate(analysis.curves)
        ]
        parts.append(element("label", element("span", "Averaged over"), element("select", *options, id="group")))
    if others:
        boxes = [
            element(
                "label",
                element("input", type="checkbox", data_toggle=i),
                sample(i, bool(level_names(analysis))),
                element("bdi", shortened(name, 40)),
            )
            for i, name in others
        ]
        parts.append(element("fieldset", element("legend", "Compare with"), *boxes))
    return element("div", *parts, class_="controls needs-js") if parts else None


def reader(analysis: Analysis) -> Markup:
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
        ("within the data for", "read-share"),
    ]
    shown = [element("div", element("dt", name), element("dd", "", id=anchor)) for name, anchor in cells]
    return element("div", slider, element("dl", *shown, class_="readout", id="readout"), class_="needs-js reader")


def contrast(analysis: Analysis) -> Markup | None:
    """Two treatments to choose, and the average effect of one against the other."""
    grid = analysis.curves[0].treatment
    if len(grid) < 2:
        return None
    names = ("t0", "t1")
    words = ("instead of", "setting it to")
    places = dict(zip(names, start_positions(analysis), strict=True))
    fields = [_field(analysis, name, word, places[name]) for name, word in zip(names, words, strict=True)]
    return element(
        "div",
        element("h3", "Ask for another contrast"),
        element("div", *reversed(fields), class_="fields"),
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


def _field(analysis: Analysis, name: str, word: str, place: float) -> Markup:
    levels = level_names(analysis)
    treatment = shortened(analysis.question.treatment, 30)
    label = element("span", f"{treatment}, {word}")
    if levels:
        options = [
            element("option", shortened(level, 60), value=i, selected=i == int(place)) for i, level in enumerate(levels)
        ]
        return element("label", label, element("select", *options, id=name))
    grid = analysis.curves[0].treatment
    ends = {"min": f"{grid[0]:.7g}", "max": f"{grid[-1]:.7g}", "step": "any", "value": f"{place:.7g}"}
    return element(
        "div",
        element("label", label, element("input", type="number", id=name, inputmode="decimal", **ends)),
        element("input", type="range", id=f"{name}-slide", aria_label=f"{treatment}, {word}", **ends),
        element("p", element("span", number(grid[0])), element("span", number(grid[-1])), class_="soft"),
    )
