"""Results as LaTeX, CSV and Excel: the numbers of `to_frame`, and words that stay words."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from bgmiv.data.files import Tabular
from bgmiv.intervals import Interval

EVIL = '=HYPERLINK("http://x")'


class Result(Tabular):
    """A table with hostile words in a cell, a name and the index."""

    def to_frame(self) -> pd.DataFrame:
        return pd.DataFrame({"effect": [0.123456, float("nan")], "@sum": [EVIL, "a_b & 50%"]}, index=["-1+1", "south"])


def test_latex() -> None:
    lines = Result().to_latex().splitlines()
    assert lines[0] == r"\begin{tabular}{lrl}"
    assert lines[2] == r" & effect & @sum \\"
    assert lines[4] == r"-1+1 & $0.1235$ & =HYPERLINK(\textquotedbl{}http://x\textquotedbl{}) \\"
    assert lines[5] == r"south & -- & a\_b \& 50\% \\"


def test_csv_and_excel_hold_no_formula(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl", reason="openpyxl is not installed (pip install -e '.[dev]')")
    from_csv = pd.read_csv(Result().to_csv(tmp_path / "a.csv"))
    from_excel = pd.read_excel(Result().to_excel(tmp_path / "a.xlsx"))
    for found in (from_csv, from_excel):
        assert list(found.columns) == ["index", "effect", "'@sum"]
        assert found["index"].tolist() == ["'-1+1", "south"]
        assert found["'@sum"].tolist() == [f"'{EVIL}", "a_b & 50%"]
        assert found["effect"][0] == 0.123456
    import openpyxl

    cells = [cell for row in openpyxl.load_workbook(tmp_path / "a.xlsx").active.iter_rows() for cell in row]
    assert "f" not in {cell.data_type for cell in cells}


def test_every_result_is_a_table(tmp_path: Path) -> None:
    found = Interval(2.0, 1.5, 2.5, 0.95, {"sampling": 0.25}, 0.9, name="ate")
    assert pd.read_csv(found.to_csv(tmp_path / "b.csv"))["upper"].tolist() == [2.5]
