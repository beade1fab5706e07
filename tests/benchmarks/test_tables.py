from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bgmiv.bench import Plan, Row, Sweep
from bgmiv.bench.show import read_rows
from report.comparisons import accuracy_table, plan_table, support_table
from report.tables import Table, to_csv, to_html, to_latex, to_markdown

from ..conftest import MakeCell

BAD = "=a|b & 50% $x_1^2$ #~ { \\input{x} <script>é"


def texts(table: Table | None) -> list[list[str]]:
    assert table is not None
    return table.text.to_numpy().tolist()


@pytest.fixture
def rows(make_cell: MakeCell) -> list[Row]:
    rng = np.random.default_rng(1)
    found: list[Row] = []
    for rho, n in ((0.9, 1000), (0.1, 5000), (0.1, 1000)):
        for method, mean in (("bgm-iv", 5000), ("dfiv", 7000), ("tsls", 9000), ("kiv-noiv", 100)):
            errors = (mean * rng.uniform(0.5, 1.5, 5)).tolist()
            found += make_cell(method, errors, design="vector-proxy", rho=rho, n=n)
    return found


def test_accuracy_has_means_deviations_and_the_best_bold(rows: list[Row]) -> None:
    table = accuracy_table(read_rows(rows), "vector-proxy")
    assert table is not None
    assert list(table.text) == ["rho", "n", "2SLS", "DFIV", "BGM-IV"]
    assert table.text[["rho", "n"]].to_numpy().tolist() == [["0.1", "1000"], ["0.1", "5000"], ["0.9", "1000"]]
    numbers = table.numbers.set_index(["rho", "n", "method"])
    own = [r.structural_mse for r in rows if (r.method, r.rho) == ("dfiv", 0.9)]
    cell = numbers.loc[0.9, 1000, "DFIV"]
    assert (cell["mean"], cell["sd"]) == pytest.approx((np.mean(own) / 1e4, np.std(own, ddof=1) / 1e4))
    assert (cell["repeats"], cell["MSE divided by"]) == (5, 1e4)
    assert table.bold is not None
    assert table.bold.idxmax(axis=1).to_list() == numbers["mean"].unstack().idxmin(axis=1).to_list()
    assert table.notes == (
        "Mean ± standard deviation over 5 repeats. The lowest mean of each row is bold. Preset: default.",
    )


def test_the_same_rows_give_the_same_bytes(rows: list[Row]) -> None:
    other = [replace(row, seconds=row.seconds * 3, timestamp="2027-05-05T00:00:00Z") for row in reversed(rows)]
    first, second = (support_table(read_rows(found), "vector-proxy") for found in (rows, other))
    assert to_csv(first) == to_csv(second)


def test_presets_failures_and_holes(make_cell: MakeCell) -> None:
    frame = read_rows(
        [
            *make_cell("bgm-iv", [1.0, 2.0], design="lowdim-sin", preset="paper-qmc"),
            *make_cell("bgm-iv", [3.0, 4.0], design="lowdim-sin"),
            *make_cell("bgm-iv", [0.1, 0.1], design="lowdim-sin", preset="default-no-egm"),
            *make_cell("kiv", [3.0, None], design="lowdim-sin", rho=0.9),
            *make_cell("tsls", [None], design="lowdim-sin"),
        ]
    )
    table = accuracy_table(frame, "lowdim-sin")
    assert texts(table) == [
        ["0.5", "1000", "–‡", "–", "3.50 ± 0.71", "1.50 ± 0.71"],
        ["0.9", "1000", "–", "3.00 (1)‡", "–", "–"],
    ]
    assert list(table.text)[2:] == ["2SLS (default)", "KIV (default)", "BGM-IV (default)", "BGM-IV (paper-qmc)"]
    assert table.bold.to_numpy().tolist() == [[False, False, False, True], [False] * 4]
    assert table.footnotes[-1].startswith("‡ Some fits")
    assert accuracy_table(read_rows(make_cell("kiv-noiv", [1.0])), "demand") is None


def test_a_plan_is_one_table(make_cell: MakeCell) -> None:
    plan = Plan(
        "mine", "two designs", (Sweep(["lowdim-sin", "lowdim-abs"], [1000], [0.5], ["kiv", "tsls"], repeats=2),)
    )
    rows = [
        *make_cell("kiv", [3.0, 4.0], design="lowdim-sin"),
        *make_cell("tsls", [1.0, 9.0, 9.0], design="lowdim-sin"),
        *make_cell("tsls", [1.0], design="lowdim-abs", method_version=9),
    ]
    table = plan_table(read_rows(rows), plan)
    assert texts(table) == [
        ["lowdim-sin", "0.5", "1000", "5.000 ± 5.657", "3.500 ± 0.707"],
        ["lowdim-abs", "0.5", "1000", "1.000 (1)§", "–"],
    ]
    assert table.bold.to_numpy().tolist() == [[False, True], [False, False]]
    assert table.footnotes[-1].startswith("§ Another version")
    assert plan_table(read_rows(make_cell("kiv", [1.0])), plan) is None


def test_inside_and_outside(make_cell: MakeCell) -> None:
    rows = [
        *make_cell("kiv", [2e4], structural_mse_in_support=1e4, structural_mse_outside=None),
        *make_cell("kiv-noiv", [3e4], structural_mse_in_support=2e4, structural_mse_outside=9e4),
    ]
    shown = texts(support_table(read_rows(rows), "demand"))
    assert shown[0][2:] == ["KIV", "2.00", "1.00", "–"]
    assert shown[1][2:] == ["KIV without the instrument", "3.00", "2.00", "9.00"]


def bad_table(rows: int = 1, columns: int = 2) -> Table:
    text = pd.DataFrame([[BAD] * columns] * rows, columns=[f"{BAD}{j}" for j in range(columns)])
    return Table(BAD, BAD, text, text.assign(p=1.5e-7, marks="†‡§"), (f"{BAD}0",), text == BAD, (BAD,))


@pytest.mark.parametrize(("rows", "columns"), [(1, 2), (60, 12), (2, 12)])
def test_latex_is_balanced_rectangular_and_escaped(rows: int, columns: int) -> None:
    text = to_latex(bad_table(rows, columns))
    assert text.isascii()
    assert r"\input" not in text
    assert sorted(re.findall(r"\\begin\{(\w+)\}", text)) == sorted(re.findall(r"\\end\{(\w+)\}", text))
    assert ("longtable" in text) == (rows == 60)
    body = text.split("\\toprule\n")[1].split(r"\end{")[0]
    lines = [re.split(r"(?<!\\)&", line) for line in body.splitlines() if line.endswith(r" \\")]
    assert len(lines) == rows + 1
    assert {len(cells) for cells in lines} == {columns}
    assert r"\textbf{=a\textbar{}b \& 50\% \$x\_1\textasciicircum{}2\$ \#\textasciitilde{} \{" in lines[1][0]


def test_csv_markdown_and_html_escape() -> None:
    table = bad_table()
    (line,) = csv.DictReader(io.StringIO(to_csv(table)))
    assert (line[f"{BAD}0"], float(line["p"]), line["marks"]) == (f"'{BAD}", 1.5e-7, "mixed failed other version")
    markdown = to_markdown(table)
    assert "<script" not in markdown
    assert {len(re.findall(r"(?<!\\)\|", text)) for text in markdown.splitlines() if text.startswith("|")} == {3}
    html = to_html(table)
    assert "<script" not in html
    assert html.count("<b>") == 2
    assert [note[0] for note in table.footnotes[1:]] == ["†", "‡", "§"]
