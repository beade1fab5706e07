"""The methods by which a fitted model shows itself: they show the analysis at hand, or ask for the one wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot as plt

from bgmiv import TSLS
from bgmiv.errors import ConfigError
from bgmiv.show.analysis import Analysis
from bgmiv.show.page import report_page
from bgmiv.show.summary import summary_text


@pytest.fixture
def model(analysis: Analysis) -> Any:
    w, u = np.random.default_rng(0).normal(size=(2, 100))
    model = TSLS().fit(2.0 * (w + u) - u, w + u, instruments=w)
    model.analysis_ = analysis
    return model


def test_the_last_analysis_is_shown_again(model: Any, analysis: Analysis, tmp_path: Path) -> None:
    assert str(model.summary()) == summary_text(analysis)
    path = model.report(tmp_path / "report.html")
    assert path.read_text(encoding="utf-8") == report_page(analysis)
    plt.switch_backend("agg")
    _, ax = plt.subplots()
    for draw in (model.plot_curve, model.plot_effects, model.plot_methods, model.plot_diagnosis):
        assert draw(ax=ax) is ax
    assert len(model.plot_history().axes) == 2
    assert model.plot_curve(group=2, methods=["KIV"]).get_title(loc="left") == "region = north"
    plt.close("all")


def test_what_is_asked_goes_to_the_analysis(
    model: Any, levelled: Analysis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(type(model), "analysis", lambda _, **given: asked.append(given) or levelled, raising=False)
    assert "Getting out the vote" in str(model.summary(by="region", level=0.9))
    model.report(tmp_path / "report.html", t0=0, t1=1)
    assert asked == [{"by": "region", "level": 0.9}, {"t0": 0, "t1": 1}]


def test_a_bad_path_is_refused_before_anything_is_computed(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("computed for nothing")

    monkeypatch.setattr(type(model), "analysis", fail, raising=False)
    with pytest.raises(ConfigError, match="is a folder"):
        model.report(tmp_path, by="region")
