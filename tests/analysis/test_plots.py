"""Figures show the numbers of the analysis, on axes given or new, and open no window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from matplotlib import pyplot as plt

from bgmiv.analysis.analysis import Analysis, Group
from bgmiv.analysis.plots import plot_curve, plot_diagnosis, plot_effects, plot_history, plot_methods
from bgmiv.errors import ConfigError


@pytest.fixture(autouse=True)
def agg() -> Iterator[None]:
    before = plt.get_backend()
    plt.switch_backend("agg")
    yield
    plt.close("all")
    plt.switch_backend(before)


def test_the_curve(analysis: Analysis) -> None:
    figure, given = plt.subplots()
    ax = plot_curve(analysis, ax=given)
    assert ax is given
    (line,) = ax.get_lines()
    np.testing.assert_allclose(np.asarray(line.get_ydata(), float), analysis.curves[0].estimate)
    assert ax.get_xlabel() == "educ, if it were set"
    assert len(ax.collections) == 2
    figure.canvas.draw()


def test_groups_and_other_methods(analysis: Analysis) -> None:
    ax = plot_curve(analysis, group="black = 1")
    np.testing.assert_allclose(np.asarray(ax.get_lines()[0].get_ydata(), float), analysis.curves[3].estimate)
    labels = {line.get_label() for line in plot_curve(analysis, methods=True).get_lines()}
    assert {"BGM-IV", "2SLS", "KIV", "BGM-IV without the instrument"} <= labels
    assert len(plot_curve(analysis, methods=["KIV"]).get_lines()) == 2
    with pytest.raises(ConfigError, match=r"group must be one of 'all rows', .* got 'west'"):
        plot_curve(analysis, group="west")
    with pytest.raises(ConfigError, match="got 9"):
        plot_curve(analysis, group=9)
    with pytest.raises(ConfigError, match="methods must be among"):
        plot_curve(analysis, methods=["3SLS"])


def test_levels_are_dots(levelled: Analysis) -> None:
    ax = plot_curve(levelled, methods=True)
    dots = ax.collections[-1]
    assert dots.get_offsets()[:, 1].tolist() == list(levelled.curves[0].estimate)
    assert [face.tolist() == [1.0] * 4 for face in dots.get_facecolors()] == [False, False, False, True]
    assert [text.get_text().split("\n")[0] for text in ax.get_xticklabels()] == list(levelled.question.treatment_levels)


def test_forests(analysis: Analysis, bare: Analysis) -> None:
    ax = plot_effects(analysis)
    ends = [tuple(line.get_xdata()) for line in ax.get_lines() if len(line.get_xdata()) == 2][:-1]
    assert ends == [(row.lower, row.upper) for row in analysis.effects]
    ax = plot_methods(analysis)
    assert [text.get_text() for text in ax.get_yticklabels()] == [row.name for row in analysis.methods]
    assert len(plot_diagnosis(analysis).get_yticklabels()) == len(analysis.diagnosis.checks)
    with pytest.raises(ConfigError, match="KIV has no training history"):
        plot_history(bare)


def test_history(analysis: Analysis) -> None:
    assert [panel.get_title(loc="left") for panel in plot_history(analysis).axes] == ["warm start", "joint"]
    flat = replace(analysis.history[0], values=(1.0,) * len(analysis.history[0].steps))
    plot_history(replace(analysis, history=(flat,))).canvas.draw()


def test_names_are_never_read_as_formulas(analysis: Analysis, levelled: Analysis) -> None:
    """A dollar sign would begin mathematics, and a broken formula fail at drawing."""
    bad = r"$\frac{1$ & $x_"
    question = replace(analysis.question, treatment=bad, outcome_meaning=bad, treatment_levels=())
    odd = replace(
        analysis,
        question=question,
        method=bad,
        curves=(replace(analysis.curves[0], group=Group(bad, bad, 9)),),
        effects=(replace(analysis.effects[0], group=Group(bad, bad, 9)),),
        methods=tuple(replace(row, name=bad) for row in analysis.methods),
        history=(replace(analysis.history[0], name=bad, phase=bad),),
    )
    for ax in (plot_curve(odd, methods=True), plot_effects(odd), plot_methods(odd)):
        ax.figure.canvas.draw()
    plot_history(odd).canvas.draw()
    levels = replace(levelled, question=replace(levelled.question, treatment_levels=(bad,) * 4))
    plot_curve(levels).figure.canvas.draw()
