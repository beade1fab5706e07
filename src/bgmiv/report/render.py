"""The four faces of a table: Markdown, CSV, LaTeX and HTML."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Iterable

from bgmiv.bench.summary import Spread
from bgmiv.report import html
from bgmiv.report.table import Number, PValue, Table, Value

__all__ = ["markdown_text", "to_csv", "to_html", "to_latex", "to_markdown"]

_LONG = 45
"""Rows that a LaTeX page still holds."""

_WIDE = 7
"""Columns that a LaTeX page still holds."""

_WIDE_TEXT = 40
"""Characters from which a column of words is broken into lines."""

_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "{}$&#%_"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "[": "{[}",
    "]": "{]}",
    "±": r"$\pm$",
    "†": r"\textsuperscript{\textdagger}",
    "‡": r"\textsuperscript{\textdaggerdbl}",
    "–": "--",
    "−": "$-$",
    "×": r"$\times$",
    "ρ": r"$\rho$",
}

_MARKDOWN = {"&": "&amp;", "<": "&lt;", ">": "&gt;", **{sign: f"\\{sign}" for sign in "\\|`*_[]#~$"}}


def to_markdown(table: Table) -> str:
    """The table as Markdown, with its title and notes.

    >>> print(to_markdown(Table("t", "Errors", ("n", "2SLS"), ((100, "a|b"),), bold=frozenset({(0, 1)}))))
    **Errors**
    <BLANKLINE>
    | n | 2SLS |
    | ---: | :--- |
    | 100 | **a\\|b** |
    <BLANKLINE>
    """
    lines = [
        _markdown_line(markdown_text(text) for text in table.header),
        _markdown_line(":---" if column in table.left else "---:" for column in range(len(table.header))),
    ]
    for i, texts in enumerate(table.texts):
        shown = [markdown_text(text + table.signs(i, j)) for j, text in enumerate(texts)]
        lines.append(_markdown_line(f"**{text}**" if (i, j) in table.bold else text for j, text in enumerate(shown)))
    notes = [markdown_text(note) for note in table.footnotes]
    return "\n\n".join([f"**{markdown_text(table.title)}**", "\n".join(lines), *notes]) + "\n"


def to_csv(table: Table) -> str:
    """The numbers in full: ten significant digits, the same bytes for the same values.

    A column of spreads becomes three: mean, sd and repeats; a column with marks has their words in one more. The
    constants of the table come first. Words that a spreadsheet would take for a formula get an apostrophe before them.

    >>> spread = Spread(0.5, 0.125, 20)
    >>> print(to_csv(Table("t", "", ("n", "2SLS"), ((100, spread),), constants=(("design", "demand"),))))
    design,n,2SLS mean,2SLS sd,2SLS repeats
    demand,100,0.5,0.125,20
    <BLANKLINE>
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    spread = [any(isinstance(row[j], Spread) for row in table.rows) for j in range(len(table.header))]
    marked = [any((i, j) in table.marks for i in range(len(table.rows))) for j in range(len(table.header))]
    header = [name for name, _ in table.constants]
    for name, is_spread, is_marked in zip(table.header, spread, marked, strict=True):
        header += [f"{name} mean", f"{name} sd", f"{name} repeats"] if is_spread else [name]
        header += [f"{name} marks"] if is_marked else []
    writer.writerow([_harmless(name) for name in header])
    for i, row in enumerate(table.rows):
        line = [_harmless(value) for _, value in table.constants]
        for j, value in enumerate(row):
            line += _csv_spread(value) if spread[j] else [_csv_value(value)]
            if marked[j]:
                line.append(" ".join(mark.word for mark in table.marks.get((i, j), ())))
        writer.writerow(line)
    return file.getvalue()


def to_latex(table: Table) -> str:
    """The table as LaTeX with booktabs; one with many columns is scaled to the page, a long one is a longtable.

    >>> print(to_latex(Table("t", "A & B", ("n", "2SLS"), ((100, "x_1"),))))  # doctest: +ELLIPSIS
    % needs \\usepackage{booktabs}
    \\begin{table}[t]
    \\centering
    \\small
    \\caption{A \\& B.}
    ...
    """
    columns = "".join(_latex_column(table, j) for j in range(len(table.header)))
    head = f"{' & '.join(_latex(text) for text in table.header)} \\\\"
    body = []
    for i, texts in enumerate(table.texts):
        if i in table.group_starts:
            body.append("\\addlinespace")
        shown = [_latex(text + table.signs(i, j)) for j, text in enumerate(texts)]
        cells = (f"\\textbf{{{text}}}" if (i, j) in table.bold else text for j, text in enumerate(shown))
        body.append(f"{' & '.join(cells)} \\\\")
    caption = " ".join(_latex(text) for text in (f"{table.title}.", *table.footnotes))
    label = f"\\label{{tab:{_label(table.name)}}}"
    if len(table.rows) > _LONG:
        lines = [
            "% needs \\usepackage{booktabs,longtable}",
            "{\\small",
            f"\\begin{{longtable}}{{@{{}}{columns}@{{}}}}",
            f"\\caption{{{caption}}}{label}\\\\",
            *("\\toprule", head, "\\midrule", "\\endhead", "\\bottomrule", "\\endfoot"),
            *body,
            "\\end{longtable}",
            "}",
        ]
    else:
        wide = len(table.header) > _WIDE
        lines = [
            f"% needs \\usepackage{{booktabs{',graphicx' if wide else ''}}}",
            *("\\begin{table}[t]", "\\centering", "\\small", f"\\caption{{{caption}}}", label),
            "\\setlength{\\tabcolsep}{4pt}",
            *(["\\resizebox{\\linewidth}{!}{%"] if wide else []),
            f"\\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
            *("\\toprule", head, "\\midrule", *body, "\\bottomrule", "\\end{tabular}"),
            *(["}"] if wide else []),
            "\\end{table}",
        ]
    return "\n".join(lines) + "\n"


def to_html(table: Table) -> str:
    """The table as a part of a page, with its title and notes.

    >>> "a &lt; b</p>" in to_html(Table("t", "a < b", ("n",), ((1,),)))
    True
    """
    rows = [[text + table.signs(i, j) for j, text in enumerate(texts)] for i, texts in enumerate(table.texts)]
    shown = html.table(
        table.header,
        rows,
        caption=table.title,
        bold=table.bold,
        left=table.left,
        wide=frozenset(j for j in table.left if _is_wide(table, j)),
        group_starts=table.group_starts,
    )
    return shown + "".join(html.paragraph(note, note=True) for note in table.footnotes)


def markdown_text(text: str) -> str:
    """The text on one line, with nothing in it that Markdown or HTML would take for its own.

    >>> markdown_text("a_1 < b")
    'a\\\\_1 &lt; b'
    """
    return "".join(_MARKDOWN.get(sign, sign) for sign in _one_line(text))


def _markdown_line(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _latex(text: str) -> str:
    return "".join(_LATEX.get(sign) or _plain(sign) for sign in _one_line(text))


def _plain(sign: str) -> str:
    """The sign in ASCII: LaTeX stops at letters its fonts lack."""
    if sign.isascii():
        return sign
    return unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode() or "?"


def _label(name: str) -> str:
    return "".join(sign if sign.isascii() and (sign.isalnum() or sign == "-") else "-" for sign in name)


def _latex_column(table: Table, column: int) -> str:
    if column not in table.left:
        return "r"
    return "p{0.4\\linewidth}" if _is_wide(table, column) else "l"


def _is_wide(table: Table, column: int) -> bool:
    return any(len(texts[column]) > _WIDE_TEXT for texts in table.texts)


def _one_line(text: str) -> str:
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def _csv_spread(value: Value) -> list[str]:
    if not isinstance(value, Spread):
        return [_csv_value(value), "", ""]
    return [
        f"{value.mean:.10g}" if value.values else "",
        f"{value.deviation:.10g}" if value.values > 1 else "",
        str(value.values),
    ]


def _csv_value(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, Number | PValue):
        return f"{value.value:.10g}"
    return _harmless(value) if isinstance(value, str) else str(value)


def _harmless(text: str) -> str:
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
