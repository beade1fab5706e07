"""The paper's tables from measured rows, and how a table becomes Markdown, CSV or LaTeX."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from bgmiv.bench.report.frame import (
    FAILED,
    MIXED,
    NO_WARM_START,
    OURS,
    add_labels,
    cell_marks,
    column_order,
    design_title,
    design_unit,
    instrumental,
    paper_values,
    unit_text,
)
from bgmiv.registry import method_label

__all__ = [
    "DASH",
    "Table",
    "ablation_table",
    "accuracy_table",
    "design_table",
    "digits_for",
    "lowest",
    "markdown_text",
    "paper_accuracy_table",
    "safe_name",
    "setting_text",
    "spread_text",
    "summarise",
    "support_table",
    "to_csv",
    "to_latex",
    "to_markdown",
]

DASH = "–"
"""What stands where there is no value."""

_MARKS = {
    MIXED: ("mixed", "The rows behind this cell come from several versions of algorithms or libraries."),
    FAILED: ("failed", "Some fits of this cell failed; the numbers are over the others."),
}
_LONG, _WIDE, _WIDE_TEXT = 45, 7, 40
"""Rows and columns that a LaTeX page holds, and characters from which a column of words is broken into lines."""

_LATEX_NAMES = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "<": "less", ">": "greater", "|": "bar"}
_LATEX = str.maketrans(
    {sign: f"\\{sign}" for sign in "{}$&#%_"}
    | {sign: f"\\text{name}{{}}" for sign, name in (_LATEX_NAMES | {'"': "quotedbl"}).items()}
    | {sign: f"\\textsuperscript{{\\text{name}}}" for sign, name in {MIXED: "dagger", FAILED: "daggerdbl"}.items()}
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

    def harmless(value: object) -> object:
        return f"'{value}" if isinstance(value, str) and value.startswith(tuple("=+-@\t\r")) else value

    return str(numbers.map(harmless).to_csv(index=False, float_format="%.10g", lineterminator="\n"))


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


def safe_name(name: str) -> str:
    """A name for files and anchors: a design's name may come from a stranger's store."""
    return "".join(sign if sign.isascii() and (sign.isalnum() or sign in "-_") else "-" for sign in name)[:80]


def markdown_text(text: str) -> str:
    """The text on one line, with nothing in it that Markdown or HTML would take for its own."""
    return _one_line(text).translate(_MARKDOWN)


def _latex(text: str) -> str:
    # LaTeX stops at letters its fonts lack.
    return unicodedata.normalize("NFKD", _one_line(text).translate(_LATEX)).encode("ascii", "ignore").decode()


def _one_line(text: str) -> str:
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def summarise(rows: pd.DataFrame, by: Sequence[str], value: str = "mse") -> pd.DataFrame:
    """Mean, standard deviation and number of repeats of a column in each group, and the group's marks."""
    groups = rows.groupby(list(by), sort=False)
    cells = groups[value].agg(mean="mean", sd="std", repeats="count")
    return cells.assign(marks=[cell_marks(group) for _, group in groups])


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


def lowest(means: pd.DataFrame) -> pd.DataFrame:
    """Which means are the lowest of their row; none where fewer than two are there."""
    return means.eq(means.min(axis=1), axis=0) & (means.count(axis=1) > 1).to_numpy()[:, None]


def setting_text(settings: pd.DataFrame) -> pd.DataFrame:
    """The columns `rho` and `n` as texts."""
    return pd.DataFrame({"rho": settings["rho"].map("{:g}".format), "n": settings["n"].map(str)}, dtype=object)


def design_table(
    name: str,
    title: str,
    design: str,
    text: pd.DataFrame,
    numbers: pd.DataFrame,
    words: tuple[str, ...],
    bold: pd.DataFrame | None,
    notes: tuple[str, ...],
) -> Table:
    """A table of one design's errors: its title and its CSV file say the design and the unit."""
    title = f"{design_title(design)}{title and f', {title}'}: {unit_text(design)}"
    first = pd.DataFrame({"design": design, "MSE divided by": design_unit(design)}, numbers.index)
    return Table(name, title, text, pd.concat([first, numbers], axis=1), words, bold, notes)


def accuracy_table(frame: pd.DataFrame, design: str) -> Table | None:
    """Mean and standard deviation of the structural error for each rho and n; None if there is nothing."""
    own = instrumental(frame, design)
    if own.empty:
        return None
    own = add_labels(own)
    cells = summarise(own, ["rho", "n", "label"])
    usual, said = _repeats(cells["repeats"])
    cells["text"] = spread_text(cells, digits_for(cells["mean"]), usual) + cells["marks"]
    preset = f" Preset: {own['preset'].iloc[0]}." if own["preset"].nunique() == 1 else ""
    note = f"{said} The lowest mean of each row is bold.{preset}"
    return _wide_table(f"accuracy-{design}", "", design, cells, column_order(own), note)


def paper_accuracy_table(frame: pd.DataFrame, design: str) -> Table | None:
    """The paper's own values for the rows of the accuracy table; None where the paper gives no numbers."""
    paper = paper_values()
    settings = instrumental(frame, design)[["design", "rho", "n"]].drop_duplicates()
    found = paper.accuracy.merge(settings)
    if found.empty:
        return None
    labels = found["method"].map(method_label)
    cells = found.assign(label=labels, text=spread_text(found, 2)).set_index(["rho", "n", "label"])
    source = paper.sources.get(("accuracy", design)) or paper.sources["ablation", design]
    note = (
        f"As printed in the paper (table {source}), mean ± standard deviation over {found['repeats'].iloc[0]} repeats."
    )
    cells = cells[["mean", "sd", "repeats", "text"]]
    return _wide_table(f"accuracy-{design}-paper-values", "the paper's values", design, cells, labels.unique(), note)


def _wide_table(name: str, title: str, design: str, cells: pd.DataFrame, labels: Sequence[str], note: str) -> Table:
    """A column a method from cells indexed by rho, n and label."""
    columns = list(labels)
    texts, means = (cells[part].unstack("label").reindex(columns=columns).reset_index() for part in ("text", "mean"))
    shown = pd.concat([setting_text(texts), texts[columns].fillna(DASH)], axis=1)
    numbers = cells.drop(columns="text").reset_index().rename(columns={"label": "method"})
    return design_table(name, title, design, shown, numbers, ("rho",), lowest(means[columns]), (note,))


def ablation_table(frame: pd.DataFrame, design: str) -> Table | None:
    """BGM-IV with its warm start and without it, beside the paper's ablation; None if nothing ran without it."""
    own = frame[(frame["design"] == design) & (frame["method"] == OURS)]
    without = own["preset"].str.endswith(NO_WARM_START)
    if not without.any():
        return None
    own = own.assign(preset=own["preset"].str.removesuffix(NO_WARM_START), without=without).sort_values(
        "preset", kind="stable"
    )
    setting = ["design", "rho", "n"]
    ablated, full = (summarise(own[own["without"] == which], ["preset", *setting]) for which in (True, False))
    paper = paper_values()
    printed = paper.accuracy[paper.accuracy["method"] == OURS].merge(paper.ablation[setting])
    settings = ablated.index.droplevel("preset")
    beside = [part.set_index(setting).reindex(settings).set_axis(ablated.index) for part in (printed, paper.ablation)]
    measured = {"BGM-IV": full.reindex(ablated.index), "BGM-IV (EGM=0)": ablated}
    return _cell_table(
        f"ablation-{design}",
        "the warm start's ablation",
        measured,
        "EGM=0: the same settings, with no step of the warm start.",
        dict(zip(("paper: BGM-IV", "paper: BGM-IV (EGM=0)"), beside, strict=True)),
        bold=lowest(pd.DataFrame({name: part["mean"] for name, part in measured.items()})).reset_index(drop=True),
    )


def support_table(frame: pd.DataFrame, design: str) -> Table:
    """Error everywhere, inside and outside the training support, a row for each setting and method."""
    own = add_labels(frame[frame["design"] == design]).rename(columns={"method": "name", "label": "method"})
    columns = {"everywhere": "mse", "inside": "inside", "outside": "outside"}
    parts = {name: summarise(own, ["design", "rho", "n", "method"], value) for name, value in columns.items()}
    parts |= {name: parts[name].assign(marks="") for name in ("inside", "outside")}
    return _cell_table(
        f"support-{design}",
        "inside and outside the training support",
        parts,
        "Inside: points of the evaluation grid such as training data show; outside, every method extrapolates.",
    )


def _cell_table(
    name: str,
    title: str,
    measured: Mapping[str, pd.DataFrame],
    note: str,
    printed: Mapping[str, pd.DataFrame] | None = None,
    bold: pd.DataFrame | None = None,
) -> Table:
    """A row for each entry of an index, a column for each frame of cells; printed ones have the paper's two digits."""
    every = pd.concat(measured.values())
    usual, said = _repeats(every["repeats"])
    digits = digits_for(every["mean"])
    texts = {column: spread_text(part, digits, usual) + part["marks"].fillna("") for column, part in measured.items()}
    texts |= {column: spread_text(part, 2, usual) for column, part in (printed or {}).items()}
    shown = pd.DataFrame(texts)
    keys = shown.index.to_frame(index=False)
    design = keys.pop("design").iloc[0]
    keys = keys.assign(**setting_text(keys))
    numbers = pd.concat({**measured, **(printed or {})}, names=["column"]).droplevel("design")
    numbers = numbers[["mean", "sd", "repeats", "marks"]].fillna({"marks": "", "repeats": 0}).astype({"repeats": int})
    text, words = pd.concat([keys, shown.reset_index(drop=True)], axis=1), tuple(name for name in keys if name != "n")
    return design_table(name, title, design, text, numbers.reset_index(), words, bold, (f"{said} {note}",))


def _repeats(numbers: pd.Series) -> tuple[int | None, str]:
    """The usual number of repeats, and the sentence that says what the cells show."""
    counts = numbers[numbers > 0].astype(int).value_counts()
    if counts.empty:
        return None, "There is no fit to average."
    usual = int(counts[counts == counts.max()].index.max())
    said = f"Mean ± standard deviation over {usual} repeats" if usual > 1 else "One repeat, so no standard deviation"
    return usual, said + (", or over as many as stand in brackets." if len(counts) > 1 else ".")
