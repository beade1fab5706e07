"""A table, the texts in it, and how it becomes Markdown, CSV, LaTeX or a part of a self-contained HTML page.

Pages have no scripts, load nothing from anywhere, and escape every text.
"""

from __future__ import annotations

import base64
import hashlib
import math
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path

import pandas as pd

from bgmiv._io import safe_name
from bgmiv.data.files import LATEX_SIGNS, guarded
from report.frame import FAILED, MIXED, OTHER

__all__ = [
    "DASH",
    "Table",
    "contents",
    "digits_for",
    "heading",
    "image",
    "markdown_text",
    "page",
    "paragraph",
    "spread_text",
    "to_csv",
    "to_html",
    "to_latex",
    "to_markdown",
]

DASH = "–"
"""What stands where there is no value."""

_MARKS = {
    MIXED: ("mixed", "The rows behind this cell come from several versions of libraries."),
    FAILED: ("failed", "Some fits of this cell failed; the numbers are over the others."),
    OTHER: ("other version", "Another version of the method or design than today's made the rows behind this cell."),
}
_LONG, _WIDE, _WIDE_TEXT = 45, 7, 40
"""Rows and columns that a LaTeX page holds, and characters from which a column of words is broken into lines."""

_STYLE = Path(__file__).with_name("bench.css").read_text(encoding="utf-8")

_TALL = 30
"""Rows from which a table scrolls under its header."""

_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode("ascii")
_POLICY = f"default-src 'none'; img-src data:; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'"

_MARK_NAMES = {MIXED: "dagger", FAILED: "daggerdbl", OTHER: "section"}
_LATEX = str.maketrans(
    LATEX_SIGNS
    | {sign: f"\\textsuperscript{{\\text{name}}}" for sign, name in _MARK_NAMES.items()}
    | {"[": "{[}", "]": "{]}", "±": "$\\pm$", DASH: "--"}
)
_MARKDOWN = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"} | {sign: f"\\{sign}" for sign in "\\|`*_[]#~$"})


@dataclass(frozen=True)
class Table:
    """A table as it is read, and its numbers in full.

    Args:
        name: the stem of its files.
        title: what it shows, with the unit.
        text: what is shown, all texts; a new value in the first column starts a group of rows.
        numbers: what the CSV file holds; its column `marks`, if any, says which footnotes are needed.
        words: columns of `text` that hold words and stand on the left.
        bold: which cells are bold; columns that are not in it have no bold cell.
        notes: sentences under the table; the footnotes of its marks follow them.
    """

    name: str
    title: str
    text: pd.DataFrame
    numbers: pd.DataFrame
    words: tuple[str, ...] = ()
    bold: pd.DataFrame | None = None
    notes: tuple[str, ...] = ()

    @property
    def footnotes(self) -> tuple[str, ...]:
        """The notes, and a line for each kind of mark in use."""
        used = "".join(self.numbers["marks"]) if "marks" in self.numbers else ""
        return (*self.notes, *(f"{sign} {_MARKS[sign][1]}" for sign in _MARKS if sign in used))

    @property
    def lines(self) -> list[list[tuple[str, bool]]]:
        """Each row's texts, and whether each is bold."""
        bold = pd.DataFrame(False, self.text.index, self.text.columns)
        if self.bold is not None:
            bold[self.bold.columns] = self.bold
        pairs = zip(self.text.to_numpy().tolist(), bold.to_numpy().tolist(), strict=True)
        return [list(zip(texts, flags, strict=True)) for texts, flags in pairs]

    @property
    def group_starts(self) -> frozenset[int]:
        """Rows that start a new group, the first row apart."""
        first = self.text.iloc[:, 0].to_list()
        return frozenset(i for i in range(1, len(first)) if first[i] != first[i - 1])

    @property
    def wide(self) -> frozenset[str]:
        """Columns of words whose texts are broken into lines."""
        return frozenset(name for name in self.words if self.text[name].str.len().max() > _WIDE_TEXT)


def to_markdown(table: Table) -> str:
    """The table as Markdown, with its title and notes."""

    def line(texts: Iterable[str]) -> str:
        return f"| {' | '.join(texts)} |"

    lines = [
        line(map(markdown_text, table.text)),
        line(":---" if name in table.words else "---:" for name in table.text),
        *(line(f"**{markdown_text(t)}**" if bold else markdown_text(t) for t, bold in row) for row in table.lines),
    ]
    title = f"**{markdown_text(table.title)}**"
    return "\n\n".join([title, "\n".join(lines), *map(markdown_text, table.footnotes)]) + "\n"


def to_csv(table: Table) -> str:
    """The numbers with ten significant digits; the same bytes for the same values.

    Words that a spreadsheet would take for a formula get an apostrophe before them.
    """
    numbers = table.numbers.copy()
    if "marks" in numbers:
        numbers["marks"] = [" ".join(_MARKS[sign][0] for sign in signs) for signs in numbers["marks"]]
    return str(numbers.map(guarded).to_csv(index=False, float_format="%.10g", lineterminator="\n"))


def to_latex(table: Table) -> str:
    """The table as LaTeX with booktabs; one with many columns is scaled to the page, a long one is a longtable."""
    long, many, wide, starts = len(table.text) > _LONG, table.text.shape[1] > _WIDE, table.wide, table.group_starts
    kinds = ("p{0.4\\linewidth}" if name in wide else "l" if name in table.words else "r" for name in table.text)
    columns = f"{{@{{}}{''.join(kinds)}@{{}}}}"
    head = ["\\toprule", f"{' & '.join(map(_latex, table.text))} \\\\", "\\midrule"]
    body = []
    for i, row in enumerate(table.lines):
        body += ["\\addlinespace"] if i in starts else []
        body.append(" & ".join(f"\\textbf{{{_latex(t)}}}" if bold else _latex(t) for t, bold in row) + " \\\\")
    caption = " ".join(map(_latex, (f"{table.title}.", *table.footnotes)))
    caption = f"\\caption{{{caption}}}\\label{{tab:{safe_name(table.name)}}}"
    if long:
        start = ["% needs \\usepackage{booktabs,longtable}", "{\\small", f"\\begin{{longtable}}{columns}"]
        head = [f"{caption}\\\\", *head, "\\endhead", "\\bottomrule", "\\endfoot"]
        end = ["\\end{longtable}", "}"]
    else:
        start = ["% needs \\usepackage{booktabs,graphicx}", "\\begin{table}[t]", "\\centering", "\\small", caption]
        start += ["\\setlength{\\tabcolsep}{4pt}", *(["\\resizebox{\\linewidth}{!}{%"] if many else [])]
        head = [f"\\begin{{tabular}}{columns}", *head]
        end = ["\\bottomrule", "\\end{tabular}", *(["}"] if many else []), "\\end{table}"]
    return "\n".join([*start, *head, *body, *end]) + "\n"


def spread_text(cells: pd.DataFrame, digits: int, usual: int | None = None, prefix: str = "") -> pd.Series:
    """Means and standard deviations as they are read; numbers of repeats other than the usual one in brackets."""

    def text(mean: float, sd: float, repeats: int) -> str:
        if not repeats > 0:
            return DASH
        shown = f"{mean:.{digits}f} ± {sd:.{digits}f}" if repeats > 1 else f"{mean:.{digits}f}"
        return f"{shown} ({repeats:.0f})" if usual not in (None, repeats) else shown

    values = zip(cells[f"{prefix}mean"], cells[f"{prefix}sd"], cells["repeats"], strict=True)
    return pd.Series([text(*cell) for cell in values], cells.index, dtype=object)


def digits_for(means: Iterable[float], *, at_least: int = 2) -> int:
    """Digits after the point with which the smallest mean still shows two significant ones, at most six."""
    sizes = [abs(mean) for mean in means if mean != 0 and not math.isnan(mean)]
    return min(6, max(at_least, 1 - math.floor(math.log10(min(sizes))))) if sizes else at_least


def markdown_text(text: str) -> str:
    """The text on one line, with nothing in it that Markdown or HTML would take for its own."""
    return _one_line(text).translate(_MARKDOWN)


def _latex(text: str) -> str:
    # LaTeX stops at letters its fonts lack.
    return unicodedata.normalize("NFKD", _one_line(text).translate(_LATEX)).encode("ascii", "ignore").decode()


def _one_line(text: str) -> str:
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def heading(text: str, anchor: str = "") -> str:
    """A heading; with an anchor, links can lead to it."""
    name = f' id="{escape(anchor)}"' if anchor else ""
    return f"<h2{name}>{escape(text)}</h2>"


def paragraph(text: str, *, note: bool = False) -> str:
    """A paragraph; a note is set smaller and paler."""
    return f'<p class="note">{escape(text)}</p>' if note else f"<p>{escape(text)}</p>"


def contents(entries: Iterable[tuple[str, str]]) -> str:
    """A table of contents from pairs of anchor and text."""
    items = "".join(f'<li><a href="#{escape(anchor)}">{escape(text)}</a></li>' for anchor, text in entries)
    return f"<nav><ul>{items}</ul></nav>"


def to_html(shown: Table) -> str:
    """A table with its title and notes. A long one scrolls under its header."""
    wide, starts = shown.wide, shown.group_starts
    classes = [
        ' class="left wide"' if name in wide else ' class="left"' if name in shown.words else "" for name in shown.text
    ]
    head = "".join(f"<th{kind}>{escape(name)}</th>" for kind, name in zip(classes, shown.text, strict=True))
    body = ""
    for i, row in enumerate(shown.lines):
        texts = (f"<b>{escape(text)}</b>" if bold else escape(text) for text, bold in row)
        cells = "".join(f"<td{kind}>{text}</td>" for kind, text in zip(classes, texts, strict=True))
        body += ('<tr class="start">' if i in starts else "<tr>") + f"{cells}</tr>"
    title = escape(shown.title)
    frame = "scroll tall" if len(shown.text) > _TALL else "scroll"
    inner = f'<table aria-label="{title}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    # What scrolls must be reachable by keyboard.
    return "".join(
        [f'<p class="title">{title}</p><div class="{frame}" tabindex="0">{inner}</div>']
        + [paragraph(note, note=True) for note in shown.footnotes]
    )


def image(png: bytes, alternative: str, caption: str, width: int | None = None) -> str:
    """A picture inside the page itself, as a data address; never wider than the page or the width asked for."""
    data = base64.b64encode(png).decode("ascii")
    asked = "" if width is None else f' width="{width}"'
    return (
        f'<figure><img alt="{escape(alternative)}"{asked} src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def page(title: str, parts: Iterable[str]) -> str:
    """A whole page from parts made by the other functions here.

    The page's own policy forbids scripts and loading: only its one style and pictures inside it are allowed.
    """
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )
