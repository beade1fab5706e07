from __future__ import annotations

import csv
import io
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bgmiv.bench.summary import Spread
from bgmiv.report.render import to_csv, to_html, to_latex, to_markdown
from bgmiv.report.table import Mark, Number, PValue, Table, digits_for

HOSTILE = r"<script>alert('x')</script> \end{tabular}\input{/etc/passwd} a|b & 50% $x_1^2$ #~ {" + "\n=1+1 **b**"
WHOLE = Table(
    name="accuracy-demand",
    title="Errors of A & B",
    header=("rho", "n", "KIV", "BGM-IV"),
    rows=(
        ("0.1", 1000, Spread(1.23456789012345, 0.1, 20), Spread(0.5, 0.125, 20)),
        ("0.1", 5000, None, Spread(0.25, 0.0625, 18)),
        ("0.9", 1000, Spread.of([]), Spread(0.75, math.nan, 1)),
    ),
    bold=frozenset({(0, 3)}),
    marks={(1, 3): (Mark.MIXED, Mark.FAILED)},
    notes=("Over 20 repeats.",),
    constants=(("design", "demand"),),
    usual=20,
    grouped=True,
)


def hostile_table(rows: int = 1) -> Table:
    return Table(HOSTILE, HOSTILE, ("n", HOSTILE), ((1, HOSTILE),) * rows, notes=(HOSTILE,))


def latex_lines(text: str) -> list[list[str]]:
    """The cells of each line of the table's body."""
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    begun = re.findall(r"\\begin\{(\w+)\}", text)
    assert sorted(begun) == sorted(re.findall(r"\\end\{(\w+)\}", text))
    body = text.split("\\toprule\n")[1].split(r"\end{")[0]
    return [re.split(r"(?<!\\)&", line) for line in body.splitlines() if line.endswith(r" \\")]


@pytest.mark.parametrize("rows", [1, 60])
@pytest.mark.parametrize("columns", [2, 12])
def test_latex_is_balanced_and_rectangular(rows: int, columns: int) -> None:
    table = Table("t", "T", tuple(f"c{j}" for j in range(columns)), (tuple(range(columns)),) * rows)
    text = to_latex(table)
    specification = re.search(r"\\begin\{(?:tabular|longtable)\}\{@\{\}(\w+)@\{\}\}", text)
    assert specification is not None
    assert len(specification[1]) == columns
    lines = latex_lines(text)
    assert len(lines) == rows + 1
    assert {len(cells) for cells in lines} == {columns}
    assert [rule for rule in ("toprule", "midrule", "bottomrule") if text.count(rf"\{rule}") != 1] == []
    assert ("longtable" in text) == (rows == 60)


def test_latex_shows_bold_marks_and_groups() -> None:
    text = to_latex(WHOLE)
    lines = latex_lines(text)
    assert lines[1][3].strip() == r"\textbf{0.50 $\pm$ 0.12} \\"
    assert r"0.25 $\pm$ 0.06 (18)\textsuperscript{\textdagger}\textsuperscript{\textdaggerdbl}" in lines[2][3]
    assert lines[2][2].strip() == "--"
    assert text.index(r"\addlinespace") > text.index("(18)")
    assert r"\caption{Errors of A \& B. Over 20 repeats. " in text


def test_latex_escapes_every_special_character() -> None:
    text = to_latex(hostile_table())
    (line,) = latex_lines(text)[1:]
    assert len(line) == 2
    assert r"\input" not in text
    assert text.count(r"\end{tabular}") == 1
    assert r"a\textbar{}b \& 50\% \$x\_1\textasciicircum{}2\$ \#\textasciitilde{} \{" in line[1]
    assert text.isascii()
    assert to_latex(Table("t", "é 中", ("n",), ((1,),))).isascii()


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here")
def test_latex_compiles(tmp_path: Path) -> None:
    tables = "\n".join(to_latex(table) for table in (WHOLE, hostile_table(), hostile_table(60)))
    packages = r"\usepackage[T1]{fontenc}\usepackage{booktabs,longtable,graphicx}"
    text = rf"\documentclass{{article}}{packages}\begin{{document}}{tables}\end{{document}}"
    (tmp_path / "t.tex").write_text(text, encoding="utf-8")
    command = ["pdflatex", "-no-shell-escape", "-halt-on-error", "t.tex"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 0


def test_csv_numbers_parse_back() -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(WHOLE))))
    assert [line["n"] for line in lines] == ["1000", "5000", "1000"]
    assert {line["design"] for line in lines} == {"demand"}
    assert float(lines[0]["KIV mean"]) == pytest.approx(1.23456789012345, rel=1e-9)
    assert float(lines[0]["BGM-IV sd"]) == 0.125
    assert [line["BGM-IV repeats"] for line in lines] == ["20", "18", "1"]
    assert lines[1]["KIV mean"] == lines[2]["KIV mean"] == lines[2]["BGM-IV sd"] == ""
    assert [line["BGM-IV marks"] for line in lines] == ["", "mixed failed", ""]
    numbers = Table("t", "", ("p", "d"), ((PValue(1.5e-7), Number(-0.1234567, 2)),))
    (line,) = csv.DictReader(io.StringIO(to_csv(numbers)))
    assert (float(line["p"]), float(line["d"])) == (1.5e-7, -0.1234567)


def test_csv_holds_any_text_and_no_formula() -> None:
    text = to_csv(Table("t", "", ("n", "error"), ((1, 'a,"b"\nc'), (2, "=HYPERLINK(1)"))))
    lines = list(csv.DictReader(io.StringIO(text)))
    assert lines[0]["error"] == 'a,"b"\nc'
    assert lines[1]["error"] == "'=HYPERLINK(1)"


def test_markdown_keeps_its_columns_and_escapes() -> None:
    text = to_markdown(hostile_table())
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {3}
    assert "<script" not in text
    shown = to_markdown(WHOLE)
    assert "**0.50 ± 0.12**" in shown
    assert "| 0.25 ± 0.06 (18)†‡ |" in shown
    assert f"† {Mark.MIXED.footnote}" in shown
    assert "| 0.75 (1) |" in shown


def test_html_escapes_and_marks_the_best() -> None:
    class Tags(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.names.append(tag)

    tags = Tags()
    tags.feed(to_html(hostile_table()))
    assert set(tags.names) == {"p", "div", "table", "thead", "tbody", "tr", "th", "td"}
    shown = to_html(WHOLE)
    assert shown.count("<b>") == 1
    assert "<td><b>0.50 ± 0.12</b></td>" in shown
    assert shown.count('<tr class="start">') == 1


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="3 values for 2 columns"):
        Table("t", "T", ("a", "b"), ((1, 2, 3),))


@pytest.mark.parametrize(
    ("means", "digits"), [([0.58, 6.1], 2), ([0.052, 3.0], 3), ([1e-9], 6), ([], 2), ([0.0], 2), ([120.0], 2)]
)
def test_digits_follow_the_smallest_mean(means: list[float], digits: int) -> None:
    assert digits_for([Spread(mean, 0.1, 3) for mean in means]) == digits
