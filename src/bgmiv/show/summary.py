"""An analysis in text of 80 columns, and as a fragment of HTML for notebooks."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bgmiv.show.analysis import Analysis, EffectRow, MethodRow
from bgmiv.show.markup import Markup, element, joined
from bgmiv.show.words import (
    aligned,
    answer,
    clean,
    percent,
    sentence,
    share,
    shortened,
    span,
    strength_checks,
    together,
    trust,
)
from bgmiv.trust.diagnosis import Check, LinearEstimate

__all__ = ["Summary", "estimate_cells", "robust_set_text", "summary_html", "summary_text", "text_table"]

_WIDTH = 80
_NEXT = (
    "model.report('report.html') writes all of this with figures as one page; model.diagnose() has the checks; "
    "model.plot_curve() draws the curve."
)


@dataclass(frozen=True)
class Summary:
    """An analysis as a table: text where it is printed, HTML in a notebook.

    Args:
        analysis: what is shown.
    """

    analysis: Analysis

    def __str__(self) -> str:
        """The text."""
        return summary_text(self.analysis)

    def __repr__(self) -> str:
        """The text as well, for consoles."""
        return summary_text(self.analysis)

    def _repr_html_(self) -> str:
        return summary_html(self.analysis)


def summary_text(analysis: Analysis) -> str:
    """The summary in lines of at most 80 columns."""
    parts = [
        _ruled("=", shortened(analysis.title, _WIDTH)),
        _pairs(_facts(analysis)),
        _ruled("-", "Average effects"),
        _wrapped(answer(analysis, analysis.effects[0])) + "\n" if analysis.effects else "",
        _effects(analysis.effects, analysis.level),
    ]
    strong, others = strength_checks(analysis)
    if strong or analysis.diagnosis.linear:
        parts += [_ruled("-", "Strength of the instruments"), _checks(strong), _linear(analysis.diagnosis.linear)]
    if others:
        parts += [_ruled("-", "Other checks"), _checks(others)]
    if len(analysis.methods) > 1:
        parts += [_ruled("-", "The same effect by other methods"), _methods(analysis.methods, analysis.level)]
    if analysis.verdict is not None:
        reasons = [_wrapped(clean(reason), "- ", "  ") for reason in analysis.verdict.reasons]
        parts += [_ruled("-", f"Fit in held-out rows: {analysis.verdict.level}"), *reasons]
    belief = trust(analysis)
    parts += ["", _ruled("=", f"Trust: {belief.word}"), _wrapped(belief.sentence)]
    if analysis.interval_kind:
        parts.append(_wrapped(sentence(analysis.interval_kind)))
    parts += [_wrapped(_NEXT), "=" * _WIDTH]
    return "\n".join(part for part in parts if part)


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]], width: int = _WIDTH) -> str:
    """Texts in columns: the first on the left and cut to what is left of the width, the others on the right.

    >>> print(text_table(["who", "n"], [["everyone", "3,010"], ["region = south", "1,215"]], width=18))
    who              n
    everyone     3,010
    regio…south  1,215
    """
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[j]) for line in lines) for j in range(len(header))]
    first = max(width - sum(widths[1:]) - 2 * (len(widths) - 1), 9)
    shown = []
    for line in lines:
        cells = [cell.rjust(widths[j + 1]) for j, cell in enumerate(line[1:])]
        shown.append("  ".join([shortened(line[0], first).ljust(first), *cells]).rstrip())
    return "\n".join(shown)


def estimate_cells(rows: Sequence[EffectRow | MethodRow]) -> list[tuple[str, str]]:
    """The estimate and the interval of each row, with as many decimals in all of them."""
    shown = aligned([(row.estimate, row.lower, row.upper) for row in rows])
    return [
        (value, "none" if row.lower is None else f"{low} to {high}")
        for row, (value, low, high) in zip(rows, shown, strict=True)
    ]


def robust_set_text(linear: LinearEstimate) -> str:
    """A weak-instrument-robust set in words.

    >>> robust_set_text(LinearEstimate(1.0, 0.5, 0.0, 2.0, 0.5, 0.1, ((0.2, float("inf")),), 0.95))
    '0.200 to infinity'
    """
    if linear.robust_set == ((-math.inf, math.inf),):
        return "every number"
    return " or ".join(span(low, high) for low, high in linear.robust_set) or "empty: no linear effect fits"


def _facts(analysis: Analysis) -> list[tuple[str, str]]:
    question = analysis.question
    dropped = f" ({question.n_dropped:,} left out for missing values)" if question.n_dropped else ""
    facts = [
        ("Outcome", clean(question.outcome)),
        ("Treatment", clean(question.treatment)),
        ("Instruments", ", ".join(map(clean, question.instruments))),
        ("Covariates", ", ".join(map(clean, question.covariates)) or "none"),
        ("Formula", clean(question.formula)),
        ("Data", clean(question.source)),
        ("Rows", f"{question.n_rows:,}{dropped}"),
        ("Weights", clean(question.weights)),
        ("Groups", clean(question.groups)),
        ("Method", clean(analysis.method)),
        ("Seed", str(analysis.seed)),
    ]
    return [(name, text) for name, text in facts if text]


def _pairs(facts: list[tuple[str, str]]) -> str:
    lines = [_wrapped(shortened(text, 250), f"{name + ':':<13}", " " * 13) for name, text in facts]
    return "\n".join(lines)


def _effect_rows(rows: Sequence[EffectRow]) -> list[list[str]]:
    return [
        [clean(row.label), f"{row.n_rows:,}", value, interval, share(row.in_support)]
        for row, (value, interval) in zip(rows, estimate_cells(rows), strict=True)
    ]


def _effect_header(level: float) -> list[str]:
    return ["", "rows", "effect", f"{percent(level)} interval", "in support"]


def _effects(rows: Sequence[EffectRow], level: float) -> str:
    return text_table(_effect_header(level), _effect_rows(rows))


def _method_rows(rows: Sequence[MethodRow]) -> list[list[str]]:
    return [[clean(row.name), *cells] for row, cells in zip(rows, estimate_cells(rows), strict=True)]


def _methods(rows: Sequence[MethodRow], level: float) -> str:
    return text_table(["", "effect", f"{percent(level)} interval"], _method_rows(rows))


def _checks(checks: Sequence[Check]) -> str:
    lines = []
    for check in checks:
        title, value = clean(check.title), clean(check.value)
        fits = len(title) + len(value) + 2 <= _WIDTH - 11
        head, *rest = textwrap.wrap(f"{title}: {value}" if fits else title, _WIDTH - 11) or [""]
        lines += [f"{head:<{_WIDTH - 10}}{'[' + check.level + ']':>10}", *rest]
        lines += [] if fits else [_wrapped(value, "  ", "  ")]
        lines.append(_wrapped(clean(check.reading), "  ", "  "))
    return "\n".join(lines)


def _linear_rows(linear: LinearEstimate) -> list[tuple[str, str]]:
    level = percent(linear.level)
    value, error, low, high = together(linear.coefficient, linear.std_error, linear.lower, linear.upper)
    ols, ols_error = together(linear.ols, linear.ols_std_error)
    return [
        ("Linear 2SLS", f"{value} (error {error}; {level} interval {low} to {high})"),
        ("Linear OLS", f"{ols} (error {ols_error})"),
        (f"Robust set, {level}", robust_set_text(linear)),
    ]


def _linear(linear: LinearEstimate | None) -> str:
    if linear is None:
        return ""
    return "\n".join(_wrapped(text, f"{name + ':':<18}", " " * 18) for name, text in _linear_rows(linear))


def _wrapped(text: str, first: str = "", later: str = "") -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=first, subsequent_indent=later)


def _ruled(line: str, title: str) -> str:
    return f"\n{title}\n{line * _WIDTH}" if line == "-" else f"{line * _WIDTH}\n{title}\n{line * _WIDTH}"


_SCOPED = """
.bgmiv-summary { font: 14px/1.5 system-ui, sans-serif; max-width: 56rem; overflow-wrap: anywhere; }
.bgmiv-summary h3 { font-size: 1.25em; margin: 0 0 .4em; }
.bgmiv-summary h4 { font-size: 1em; margin: 1.3em 0 .3em; }
.bgmiv-summary p { margin: .4em 0; }
.bgmiv-summary table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0; }
.bgmiv-summary th, .bgmiv-summary td { padding: .25em .7em .25em 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid #8884; background: none; }
.bgmiv-summary th { font-weight: 600; }
.bgmiv-summary .n { text-align: right; white-space: nowrap; }
.bgmiv-summary .lead { font-size: 1.1em; }
.bgmiv-summary .level { font-weight: 600; white-space: nowrap; padding: .05em .5em; border: 1px solid;
  border-radius: 1em; }
.bgmiv-summary .good { color: #00795a; }
.bgmiv-summary .note { color: #5c6672; }
.bgmiv-summary .doubtful { color: #a35a00; }
.bgmiv-summary .bad { color: #c22f00; }
"""


def summary_html(analysis: Analysis) -> str:
    """The summary as a fragment of HTML with a style of its own that touches nothing else; every text is escaped."""
    belief = trust(analysis)
    parts: list[object] = [
        element("style", Markup(_SCOPED)),
        element("h3", analysis.title),
        element("p", answer(analysis, analysis.effects[0]), class_="lead") if analysis.effects else None,
        element("p", _badge(belief.level, belief.word), " ", belief.sentence),
        _html_table([], [[element("th", name), text] for name, text in _facts(analysis)]),
        element("h4", "Average effects"),
        _html_table(_effect_header(analysis.level), _effect_rows(analysis.effects), numbers=1),
    ]
    strong, others = strength_checks(analysis)
    for title, checks in (("Strength of the instruments", strong), ("Other checks", others)):
        if checks:
            parts += [element("h4", title), _html_table([], [_check_cells(check) for check in checks])]
        if checks is strong and analysis.diagnosis.linear:
            rows = [[element("th", name), text] for name, text in _linear_rows(analysis.diagnosis.linear)]
            parts.append(_html_table([], rows))
    if len(analysis.methods) > 1:
        header = ["", "effect", f"{percent(analysis.level)} interval"]
        notes = [row.note for row in analysis.methods]
        rows = [[*cells, note] for cells, note in zip(_method_rows(analysis.methods), notes, strict=True)]
        parts += [
            element("h4", "The same effect by other methods"),
            _html_table([*header, ""], rows, numbers=1, last=3),
        ]
    if analysis.verdict is not None:
        reasons = [element("li", reason) for reason in analysis.verdict.reasons]
        parts.append(element("h4", f"Fit in held-out rows: {analysis.verdict.level}"))
        parts.append(element("ul", *reasons) if reasons else None)
    if analysis.interval_kind:
        parts.append(element("p", sentence(analysis.interval_kind)))
    return element("div", *parts, class_="bgmiv-summary")


def _badge(level: str, word: str) -> Markup:
    return element("span", word, class_=f"level {level}")


def _check_cells(check: Check) -> list[Any]:
    return [element("th", check.title), check.value, _badge(check.level, check.level), check.reading]


def _html_table(header: Sequence[str], rows: Sequence[Sequence[Any]], numbers: int = 99, last: int = 99) -> Markup:
    """A table; columns from `numbers` to before `last` stand on the right, cells that are headers stay as they are."""

    def cell(tag: str, j: int, content: Any) -> Markup:
        if isinstance(content, Markup) and content.startswith("<th"):
            return content
        return element(tag, content, class_="n" if numbers <= j < last else None)

    head = element("thead", element("tr", *(cell("th", j, text) for j, text in enumerate(header)))) if header else None
    body = [element("tr", *(cell("td", j, text) for j, text in enumerate(row))) for row in rows]
    return element("table", joined(head), element("tbody", *body))
