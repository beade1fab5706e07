"""The tutorials run as they are printed, at a small size and with small networks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgmiv.bgm.config import PRESETS, BGMIVConfig

TUTORIALS = Path(__file__).resolve().parent.parent / "docs" / "tutorials"

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default::bgmiv.errors.BGMIVWarning")]


@pytest.fixture(autouse=True)
def small_networks(small_preset: BGMIVConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "default", lambda: small_preset)


def run(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the blocks of a page one after another; the names they define."""
    monkeypatch.setenv("BGMIV_TUTORIAL_SIZE", "small")
    monkeypatch.chdir(place)
    page = TUTORIALS / f"{name}.md"
    names: dict[str, Any] = {"__name__": "__main__"}
    for found in re.finditer(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE):
        line = page.read_text()[: found.start()].count("\n") + 1
        # Errors then point at lines of the page.
        exec(compile("\n" * line + found[1], str(page), "exec"), names)
    return names


def test_schooling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = run("schooling", tmp_path, monkeypatch)
    assert left["linear"].fitted_.slope == pytest.approx(0.1315, abs=5e-5)
    ((low, high),) = left["checks"].linear.robust_set
    assert (round(low, 3), round(high, 2)) == (0.028, 0.28)
    assert left["checks"]["effective-f"].severity == "doubtful"
    assert (tmp_path / "schooling.html").stat().st_size > 10_000
    assert [curve.group.label for curve in left["analysis"].curves] == ["all rows", "black = 0", "black = 1"]


def test_marketing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = run("marketing", tmp_path, monkeypatch)
    assert left["errors"]["regression"] > 2 * left["errors"]["2SLS"]
    assert np.isfinite(left["errors"]["BGM-IV"])
    assert (tmp_path / "marketing.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "marketing.html").stat().st_size > 10_000


def test_every_tutorial_is_run_here() -> None:
    assert {page.stem for page in TUTORIALS.glob("*.md")} == {"schooling", "marketing"}
