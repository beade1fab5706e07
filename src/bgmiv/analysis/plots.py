"""Figures in matplotlib, fit for a paper: told apart by shape and dashes as well as by the colours of Okabe and Ito.

Each draws an analysis on an optional `ax` and returns the axes; none opens a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bgmiv.analysis.analysis import Analysis, Answer, Curve, MethodRow
from bgmiv.analysis.charts import MIN_SUPPORT, answer_axis, outside_support
from bgmiv.analysis.markup import clean, shortened
from bgmiv.analysis.text import groups_left_out
from bgmiv.errors import ConfigError
from bgmiv.numerals import percent, share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bgmiv.analysis.compare import Comparison

__all__ = ["plot_curve", "plot_diagnosis", "plot_effects", "plot_history", "plot_methods"]

_MAIN = "#0072B2"
_SHADE = "#E4E7EB"
_STYLES: tuple[tuple[str, Any, str], ...] = (
    ("#D55E00", (0, (5, 2)), "s"),
    ("#009E73", (0, (1, 1)), "D"),
    ("#CC79A7", (0, (6, 2, 1, 2)), "^"),
    ("#E69F00", (0, (9, 2)), "v"),
    ("#555555", (0, (3, 1, 1, 1, 1, 1)), "P"),
)
_LEVELS = {"good": ("#009E73", "o"), "note": ("#888888", "_"), "doubtful": ("#E69F00", "^"), "failed": ("#D55E00", "X")}


def plot_curve(
    analysis: Analysis, *, group: str | int = 0, methods: bool | Sequence[str] = False, ax: Axes | None = None
) -> Axes:
    """The structural function along treatments with its band, hatched where the data are thin.

    A treatment with levels has dots, hollow where the data are thin, and below each level the share of rows for which
    the data show it. Other methods' curves (all of them, or those named) are of all rows.
    """
    curve = _chosen(analysis.curves, group)
    own = _axes(ax, 6.4, 4.2)
    others = _others(analysis, methods)
    if analysis.question.level_names:
        _dots(own, analysis, curve, others)
    else:
        _line(own, analysis, curve, others)
    question = analysis.question
    _name(own, f"{question.treatment}, if it were set", question.outcome_meaning, curve.group.label)
    _dress(own, "y")
    return own


def plot_effects(analysis: Analysis, *, ax: Axes | None = None) -> Axes:
    """The average effect for all rows and by group, with intervals; hollow outside of what the data show."""
    rows = analysis.effects
    own = _forest(ax, [f"{shortened(row.group.label, 36)} ({row.group.n_rows:,})" for row in rows], rows)
    _name(own, _effect_name(analysis), title=" ".join(groups_left_out(analysis)))
    return own


def plot_methods(analysis: Analysis | Comparison, *, ax: Axes | None = None) -> Axes:
    """The same average effect by every method; of an analysis or a comparison."""
    own = _forest(ax, [shortened(row.name, 40) for row in analysis.methods], analysis.methods)
    _name(own, _effect_name(analysis) if isinstance(analysis, Analysis) else analysis.asked)
    return own


def plot_diagnosis(analysis: Analysis, *, ax: Axes | None = None) -> Axes:
    """Every check in a line: its level as a mark, its title and its figure."""
    checks = analysis.diagnosis.checks
    own = _axes(ax, 7.4, 0.5 + 0.5 * len(checks))
    for i, check in enumerate(checks):
        colour, marker = _LEVELS[check.severity]
        own.plot([0.0], [i], marker=marker, color=colour, markersize=9, markeredgewidth=2.0)
    texts = [f"{shortened(check.title, 60)}\n{shortened(check.value, 60)} ({check.severity})" for check in checks]
    own.set_yticks(range(len(checks)), texts, fontsize=9, parse_math=False)
    own.set_ylim(len(checks) - 0.4, -0.6)
    own.set_xlim(-0.1, 1.0)
    own.set_xticks([])
    own.set_frame_on(False)
    return own


def plot_history(analysis: Analysis) -> Figure:
    """Losses along training, a panel for each phase; every loss is shown in units of its own standard deviation."""
    from matplotlib import pyplot as plt

    if not analysis.history:
        raise ConfigError(f"{clean(analysis.method)} has no training history: it is computed in closed form.")
    phases = [(phase, list(lines)) for phase, lines in groupby(analysis.history, key=lambda line: line.phase)]
    figure, panels = plt.subplots(1, len(phases), figsize=(4.2 * len(phases) + 0.6, 3.4), squeeze=False)
    figure.set_layout_engine("constrained")
    for panel, (phase, lines) in zip(panels[0], phases, strict=True):
        for i, line in enumerate(lines):
            values = np.ma.masked_invalid(line.values)
            shown = (values - values.mean()) / (values.std() or 1.0)
            colour, dashes, _ = _style(i)
            panel.plot(line.steps, shown, color=colour, linestyle=dashes, linewidth=1.8, label=clean(line.name))
        _name(panel, "step", title=phase)
        _dress(panel, "y")
    panels[0, 0].set_ylabel("loss, in standard deviations")
    return figure


def _style(i: int) -> tuple[str, Any, str]:
    """Colour, dashes and mark of the method or line of this number; the first is the analysis's own."""
    return _STYLES[(i - 1) % len(_STYLES)] if i else (_MAIN, "-", "D")


def _name(ax: Axes, across: str, up: str = "", title: str = "") -> None:
    """Names of axes, in which a dollar sign is no mathematics."""
    ax.set_xlabel(clean(across), parse_math=False)
    ax.set_ylabel(clean(up), parse_math=False)
    ax.set_title(clean(title), loc="left", fontsize=10.5, parse_math=False)


def _axes(given: Axes | None, width: float, height: float) -> Axes:
    """The axes given, or new ones of this size."""
    if given is not None:
        return given
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(width, height))
    figure.set_layout_engine("constrained")
    return axes


def _chosen(curves: Sequence[Curve], group: str | int) -> Curve:
    labels = [curve.group.label for curve in curves]
    known = dict(enumerate(curves)) | dict(zip(labels, curves, strict=True))
    if group not in known:
        raise ConfigError(f"group must be one of {', '.join(map(repr, labels))} or its number, got {group!r}.")
    return known[group]


def _others(analysis: Analysis, methods: bool | Sequence[str]) -> list[tuple[int, MethodRow]]:
    if isinstance(methods, bool):
        return analysis.others if methods else []
    wanted = set(methods)
    known = {row.name for _, row in analysis.others}
    if not wanted <= known:
        listed = ", ".join(map(repr, sorted(known))) or "none"
        raise ConfigError(f"methods must be among {listed}, got {', '.join(map(repr, sorted(wanted - known)))}.")
    return [(i, row) for i, row in analysis.others if row.name in wanted]


def _line(ax: Axes, analysis: Analysis, curve: Curve, others: list[tuple[int, MethodRow]]) -> None:
    t, level = curve.treatment, percent(analysis.level)
    for start, end in outside_support(curve):
        ax.axvspan(start, end, facecolor=_SHADE, edgecolor="#B8BEC6", hatch="////", linewidth=0, zorder=0)
    look: dict[str, Any] = {"color": _MAIN, "linewidth": 0, "zorder": 2}
    if curve.lower:
        label = f"{level} band of the whole curve"
        ax.fill_between(t, curve.band_lower, curve.band_upper, label=label, alpha=0.14, **look)
        ax.fill_between(t, curve.lower, curve.upper, label=f"{level} interval", alpha=0.22, **look)
        _tell_weak(ax, analysis)
    ax.plot(t, curve.estimate, color=_MAIN, linewidth=2.4, label=clean(analysis.method), zorder=4)
    for i, row in others:
        colour, dashes, _ = _style(i)
        ax.plot(t, row.curve, color=colour, linestyle=dashes, linewidth=1.9, label=clean(row.name))
    ax.set_xlim(t[0], t[-1])


def _dots(ax: Axes, analysis: Analysis, curve: Curve, others: list[tuple[int, MethodRow]]) -> None:
    places = range(len(curve.estimate))
    if curve.lower:
        ax.vlines(places, curve.lower, curve.upper, color=_MAIN, linewidth=2.0)
        _tell_weak(ax, analysis)
    faces = [_MAIN if seen >= MIN_SUPPORT else "white" for seen in curve.in_support]
    ax.scatter(places, curve.estimate, 49, faces, edgecolors=_MAIN, zorder=3, label=clean(analysis.method))
    for i, row in others:
        colour, _, marker = _style(i)
        beside = np.arange(len(row.curve)) + 0.1 * i
        ax.plot(beside, row.curve, marker=marker, color=colour, linestyle="none", markersize=6, label=clean(row.name))
    levels = zip(analysis.question.level_names, curve.in_support, strict=True)
    ax.set_xticks(places, [f"{shortened(name, 18)}\n({share(seen)})" for name, seen in levels], parse_math=False)
    ax.set_xlim(-0.5, len(places) - 0.5)


def _tell_weak(ax: Axes, analysis: Analysis) -> None:
    """A line in the legend where weak instruments make the intervals of a curve too narrow."""
    if analysis.weak:
        ax.plot([], [], linestyle="none", label="weak instruments: intervals too narrow")


def _forest(given: Axes | None, labels: Sequence[str], rows: Sequence[Answer]) -> Axes:
    axis, ax = answer_axis(rows), _axes(given, 6.4, 0.9 + 0.42 * len(rows))
    for i, row in enumerate(rows):
        for piece in row.interval.stretches:
            # A set without an end runs out of the axis.
            ends = np.clip(piece, 2.0 * axis.low - axis.high, 2.0 * axis.high - axis.low)
            ax.plot(ends, [i, i], color=_MAIN, linewidth=2.0, solid_capstyle="round")
        face = "white" if row.in_support < MIN_SUPPORT else _MAIN
        ax.plot([row.estimate], [i], marker="o" if i else "D", color=_MAIN, markerfacecolor=face, markersize=7)
    ax.axvline(0.0, color="#888888", linewidth=0.9, linestyle=(0, (2, 2)), zorder=0)
    ax.set_xlim(axis.low, axis.high)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_yticks(range(len(rows)), list(labels), parse_math=False)
    ax.tick_params(axis="y", length=0)
    _dress(ax, "x")
    ax.spines["left"].set_visible(False)
    return ax


def _effect_name(analysis: Analysis) -> str:
    change = analysis.question.change_text(analysis.effects[0])
    return f"effect on {shortened(analysis.question.changed, 40)} of {change}"


def _dress(ax: Axes, grid: Literal["x", "y"]) -> None:
    """A quiet grid, no box, and a legend of what has a name."""
    ax.grid(axis=grid, color="#DDE1E6", linewidth=0.6)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        made = ax.legend(handles, [shortened(label, 40) for label in labels], frameon=False, fontsize=9)
        for text in made.get_texts():
            text.set_parse_math(False)
