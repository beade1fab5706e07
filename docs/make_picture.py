"""Write docs/static/curve.png, the README's picture: the figure of the marketing tutorial."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib

HERE = Path(__file__).resolve().parent

if __name__ == "__main__":
    matplotlib.use("Agg")
    names: dict[str, Any] = {}
    page = (HERE / "tutorials" / "marketing.md").read_text()
    for cell in re.findall(r"^```\{code-cell\} ipython3\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        exec(cell, names)
        if "figure" in names:
            break
    names["axes"].set_title("What are more ads worth? Simulated customers, the truth is known", fontsize=11)
    names["figure"].savefig(HERE / "static" / "curve.png", dpi=110, bbox_inches="tight")
