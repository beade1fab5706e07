"""Tables of results for others: LaTeX, CSV and Excel, in which no word of the data acts as a command or a formula."""

from __future__ import annotations

import io
import math
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bgmiv._io import write_whole
from bgmiv.data.csv_file import guarded
from bgmiv.errors import MissingExtraError, printable

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LATEX_SIGNS", "Tabular"]

_NAMES = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "<": "less", ">": "greater", "|": "bar"}

LATEX_SIGNS = {sign: f"\\{sign}" for sign in "{}$&#%_"} | {
    sign: f"\\text{name}{{}}" for sign, name in (_NAMES | {'"': "quotedbl"}).items()
}
"""What stands in LaTeX for signs that it would obey."""

_LATEX = str.maketrans(LATEX_SIGNS | {"[": "{[}", "]": "{]}", "\n": " "})


class Tabular(ABC):
    """A result that is a table: as a DataFrame, and from it as LaTeX or a file.

    Example:
        >>> from bgmiv.intervals import Interval
        >>> print(Interval(2.0, 1.5, 2.5, 0.95, {"sampling": 0.25}, 0.9, name="ate_x").to_latex())
        \\begin{tabular}{lrrrrr}
        \\toprule
         & estimate & std\\_error & lower & upper & in\\_support \\\\
        \\midrule
        ate\\_x & $2$ & $0.25$ & $1.5$ & $2.5$ & $0.9$ \\\\
        \\bottomrule
        \\end{tabular}
    """

    @abstractmethod
    def to_frame(self) -> pd.DataFrame:
        """The result as a table."""

    def to_latex(self, *, digits: int = 4) -> str:
        """The table as a LaTeX tabular with the rules of booktabs; numbers have so many digits."""
        frame = _flat(self.to_frame())
        rows = [[_latex_cell(value, digits) for value in row] for row in frame.itertuples(index=False, name=None)]
        kinds = "".join("l" if any(cell[:1] != "$" and cell != "--" for cell in cells) else "r"
                        for cells in zip(*rows, strict=True)) or "l" * frame.shape[1]  # fmt: skip
        names = [_latex_cell("" if name == "index" else str(name), digits) for name in frame.columns]
        body = [" & ".join(cells) + " \\\\" for cells in (names, *rows)]
        head = [f"\\begin{{tabular}}{{{kinds}}}", "\\toprule", body[0], "\\midrule"]
        return "\n".join([*head, *body[1:], "\\bottomrule", "\\end{tabular}"])

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write the table as CSV; words that a spreadsheet would take for a formula get an apostrophe before them."""
        text = _guarded(self.to_frame()).to_csv(index=False, lineterminator="\n")
        write_whole(Path(path), text.encode("utf-8", "surrogatepass"))
        return Path(path)

    def to_excel(self, path: str | os.PathLike[str]) -> Path:
        """Write the table as a sheet of Excel, guarded as by `to_csv`.

        Raises:
            MissingExtraError: openpyxl is not installed.
        """
        content = io.BytesIO()
        try:
            _guarded(self.to_frame()).to_excel(content, index=False, engine="openpyxl")
        except ImportError:
            raise MissingExtraError("Excel files need openpyxl: pip install openpyxl") from None
        write_whole(Path(path), content.getvalue())
        return Path(path)


def _flat(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with its index as columns; one that only numbers the rows is left out."""
    import pandas as pd

    return frame if isinstance(frame.index, pd.RangeIndex) and frame.index.name is None else frame.reset_index()


def _guarded(frame: pd.DataFrame) -> pd.DataFrame:
    return _flat(frame).map(guarded).rename(columns=lambda name: guarded(str(name)))


def _latex_cell(value: Any, digits: int) -> str:
    # Numbers of NumPy as Python's.
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, str | bool) or not isinstance(value, int | float):
        return "" if value is None else printable(value).translate(_LATEX)
    return "--" if math.isnan(value) else f"${value:.{digits}g}$".replace("inf", "\\infty")
