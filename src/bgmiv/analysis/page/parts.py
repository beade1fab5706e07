"""What several sections of the page are made of: badges, pairs, cards of checks, and buttons for tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bgmiv.analysis.markup import Markup, element
from bgmiv.analysis.page.charts import meter, shape_bars
from bgmiv.diagnostics.checks import Check

__all__ = ["Parts", "badge", "cards", "pairs", "tools"]

Parts = Sequence[Markup | None]

_ICONS = {
    "good": "M3 8.5l3.2 3.2L13 5",
    "note": "M8 7v5M8 4v.6",
    "doubtful": "M8 3v6.5M8 12.4v.6",
    "failed": "M4 4l8 8M12 4l-8 8",
}
_TOOLS = {"csv": "Copy as CSV", "latex": "Copy as LaTeX", "file": "Download the data"}


def badge(severity: str, word: str) -> Markup:
    """A severity as a word with an icon, so that colour is not needed to read it."""
    path = element("path", d=_ICONS[severity])
    icon = element("svg", path, viewBox="0 0 16 16", aria_hidden="true", focusable="false")
    return element("span", icon, word, class_=f"badge {severity}")


def pairs(values: Mapping[str, str], look: str) -> Markup:
    """Names with their texts."""
    cells = [(element("bdi", name), element("bdi", text)) for name, text in values.items()]
    return element("dl", *(element("div", element("dt", a), element("dd", b)) for a, b in cells), class_=look)


def tools(table: str, what: str, *, only_file: bool = False) -> Markup:
    """Buttons that copy a table of `payload`, or save it; `what` it is, for those who do not see where they stand."""
    kinds = {"file": _TOOLS["file"]} if only_file else _TOOLS
    made = [
        element("button", text, type="button", data_table=table, data_do=kind, aria_label=f"{text}: {what}")
        for kind, text in kinds.items()
    ]
    return element("div", *made, class_="tools needs-js")


def cards(checks: Sequence[Check]) -> Markup | None:
    """Checks with their readings."""
    made = []
    for check in checks:
        size = "" if len(check.value) <= 24 else " long" if len(check.value) <= 60 else " prose"
        card = element(
            "div",
            element("div", element("h3", check.title), badge(check.severity, check.severity)),
            element("p", check.value, class_=f"figure{size}"),
            meter(check) or shape_bars(check),
            element("p", check.reading),
            element("p", check.reference, class_="soft") if check.reference else None,
            class_=f"check {check.severity}",
        )
        made.append(card)
    return element("div", *made, class_="cards") if made else None
