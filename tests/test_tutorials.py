"""Two tutorials run on fewer rows and with small networks; `make docs` runs all of them as they are printed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest

from bgmiv.bgm.config import PRESETS, BGMIVConfig

TUTORIALS = Path(__file__).resolve().parent.parent / "docs" / "tutorials"

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default::bgmiv.errors.BGMIVWarning")]


@pytest.fixture(autouse=True)
def small_networks(small_preset: BGMIVConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "default", lambda: small_preset)
    matplotlib.use("Agg")


def run(name: str, place: Path, monkeypatch: pytest.MonkeyPatch, smaller: Mapping[str, str]) -> dict[str, Any]:
    """Run the cells of a page one after another, with texts replaced to make it small; the names they define."""
    monkeypatch.chdir(place)
    page, text = TUTORIALS / f"{name}.md", (TUTORIALS / f"{name}.md").read_text()
    for printed, used in smaller.items():
        assert text.count(printed) == 1
        text = text.replace(printed, used)
    names: dict[str, Any] = {"__name__": "__main__"}
    for found in re.finditer(r"^```\{code-cell\} ipython3\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        # Errors then point at lines of the page.
        exec(compile("\n" * (text[: found.start()].count("\n") + 1) + found[1], str(page), "exec"), names)
    return names


def test_schooling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = "BGMIV(random_state=0).fit_formula(card.formula, card.table)"
    fifth = "BGMIV(random_state=0, members=5, iterations=30).fit_formula(card.formula, fifth)"
    fifth = "{name: column[::5] for name, column in card.table.items()}".join(fifth.rsplit("fifth", 1))
    # One member holds out too few rows for a last stage.
    left = run("schooling", tmp_path, monkeypatch, {fit: fifth, "print(model.fitted_.last_stage.kept)": ""})
    assert left["linear"].fitted_.slope == pytest.approx(0.1315, abs=5e-5)
    ((low, high),) = left["checks"].linear.robust_set
    assert (round(low, 3), round(high, 2)) == (0.028, 0.28)
    assert left["checks"]["effective-f"].severity == "doubtful"
    assert (tmp_path / "schooling.html").stat().st_size > 10_000
    assert [curve.group.label for curve in left["analysis"].curves] == ["all rows", "black = 0", "black = 1"]


def test_marketing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smaller = {"n = 3000": "n = 420", "BGMIV(random_state=0)": "BGMIV(random_state=0, members=2, iterations=100)"}
    left = run("marketing", tmp_path, monkeypatch, smaller)
    assert left["errors"]["regression"] > 2 * left["errors"]["2SLS"]
    assert np.isfinite(left["errors"]["BGM-IV"])
    assert len(left["axes"].lines) == 4
    assert (tmp_path / "marketing.html").stat().st_size > 10_000
