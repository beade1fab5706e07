"""The bench's figures: error against sample size with bands, and box plots over repeats."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from bgmiv.bench.summary import Spread
from bgmiv.report.figures import Style, method_styles
from bgmiv.report.naming import Column, Setting, column_labels, design_title, is_ablation, unit, unit_text
from bgmiv.report.paper_values import paper_values
from bgmiv.report.results import Results

__all__ = ["Series", "error_boxes", "error_lines", "series_of"]

_VARIANTS: tuple[tuple[float, Sequence[float]], ...] = ((0, (4, 1.5)), (0, (1.5, 1.5)), (0, (6, 1, 1, 1, 1, 1)))
_MARKERS = ("<", ">", "d", "p")
_HATCHES = ("", "////", "....", "xxxx")
_BOX_POINTS = 5
"""Values from which a box says more than the points themselves."""
_WIDTH = 10.0
"""Inches from which panels stand under one another."""


@dataclass(frozen=True)
class Series:
    """One method under one preset in a figure: its errors at each setting, in the table's unit.

    Args:
        label: as in the legend.
        style: of the method.
        variant: 0 for the method's first preset in the figure; later ones have other dashes, markers and hatches.
        values: the errors of all repeats, by setting.
        paper: the paper's mean and deviation, by setting.
    """

    label: str
    style: Style
    variant: int
    values: Mapping[Setting, tuple[float, ...]] = field(hash=False)
    paper: Mapping[Setting, Spread] = field(hash=False)

    @property
    def dashes(self) -> object:
        """How its line is broken."""
        return self.style.dashes if self.variant == 0 else _VARIANTS[(self.variant - 1) % len(_VARIANTS)]

    @property
    def marker(self) -> str:
        """The method's own for its first two presets, filled and open; later ones have open ones of other shapes."""
        return self.style.marker if self.variant < 2 else _MARKERS[(self.variant - 2) % len(_MARKERS)]

    @property
    def hatch(self) -> str:
        """How its boxes are filled."""
        return _HATCHES[self.variant % len(_HATCHES)]


def series_of(results: Results, design: str, columns: Sequence[Column]) -> tuple[Series, ...]:
    """The series of some columns, with the paper's values for the same settings."""
    paper = paper_values()
    styles = method_styles([column.method for column in columns])
    seen: dict[str, int] = {}
    found = []
    for column, label in column_labels(columns).items():
        variant = seen.setdefault(column.method, 0)
        seen[column.method] += 1
        settings = results.settings(design, [column])
        values = {
            setting: tuple(error / unit(design) for error in results.errors(setting, column).values())
            for setting in settings
        }
        printed = {}
        for setting in settings:
            if is_ablation(column.preset):
                if setting in paper.ablation:
                    printed[setting] = paper.ablation[setting].without
            elif column.method in paper.accuracy.get(setting, {}):
                printed[setting] = paper.accuracy[setting][column.method]
        found.append(Series(label, styles[column.method], variant, values, printed))
    return tuple(found)


def error_lines(design: str, series: Sequence[Series]) -> Figure:
    """Mean error against sample size, a panel a confounding level, both axes logarithmic.

    Bands reach one standard deviation up and down, at the lower end not below the best repeat. The paper's means are
    open stars, where it gives numbers.
    """
    settings = _settings(series)
    levels = sorted({setting.rho for setting in settings})
    figure, axes = _panels(1, len(levels), (2.5, 3.3))
    for panel, rho in zip(axes, levels, strict=True):
        here = sorted((setting for setting in settings if setting.rho == rho), key=lambda setting: setting.n)
        for one in series:
            points = [(s.n, np.asarray(one.values[s])) for s in here if one.values.get(s)]
            if points:
                _line(panel, one, points)
            for setting in here:
                if setting in one.paper:
                    _paper_star(panel, 1.1 * setting.n, one.paper[setting].mean, one.style.colour)
        panel.set_xscale("log")
        sizes = sorted({setting.n for setting in settings})
        panel.set_xlim(sizes[0] / 1.35, sizes[-1] * 1.35)
        panel.xaxis.set_major_locator(FixedLocator(sizes))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _size(value)))
        panel.set_xlabel("sample size n")
        _dress(panel, f"rho = {rho:g}")
    _finish(figure, axes, design, "mean error over repeats", _line_legend(series))
    return figure


def error_boxes(design: str, series: Sequence[Series], *, title: str = "error over repeats") -> Figure:
    """Boxes over repeats, a panel a sample size, side by side at each confounding level, on a logarithmic axis.

    Boxes hold the middle half, whiskers reach 1.5 times its width; fewer than five repeats are drawn as points. The
    paper's means are open stars, where it gives numbers.
    """
    settings = _settings(series)
    sizes = sorted({setting.n for setting in settings})
    levels = sorted({setting.rho for setting in settings})
    wide = max(2.6, 0.23 * len(levels) * (len(series) + 1) + 0.4)
    beside = wide * len(sizes) <= _WIDTH
    figure, axes = _panels(*((1, len(sizes), (wide, 3.4)) if beside else (len(sizes), 1, (_WIDTH, 2.3))))
    width = 0.84 / len(series)
    for panel, n in zip(axes, sizes, strict=True):
        for place, rho in enumerate(levels):
            setting = Setting(settings[0].design, rho, n)
            for k, one in enumerate(series):
                x = place + (k - (len(series) - 1) / 2) * width
                if one.values.get(setting):
                    _box(panel, one, x, one.values[setting], 0.86 * width)
                if setting in one.paper:
                    _paper_star(panel, x + 0.4 * width, one.paper[setting].mean, one.style.colour)
        panel.set_xticks(range(len(levels)), [f"{rho:g}" for rho in levels])
        panel.set_xlim(-0.6, len(levels) - 0.4)
        if beside or panel is axes[-1]:
            panel.set_xlabel("confounding rho")
        _dress(panel, f"n = {n}")
        panel.grid(visible=False, axis="x")
        for edge in range(1, len(levels)):
            panel.axvline(edge - 0.5, color="#D5DAE0", linewidth=0.6, zorder=0)
    _finish(figure, axes, design, title, _box_legend(series))
    return figure


def _settings(series: Sequence[Series]) -> list[Setting]:
    found = sorted({setting for one in series for setting, values in one.values.items() if values})
    if not found:
        raise ValueError("no fit to draw; leave the figure out")
    return found


def _panels(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """Panels that share their error axis; the size is of one, in inches."""
    shape = (max(5.2, size[0] * columns + 0.8), size[1] * rows + 1.2)
    figure = Figure(figsize=shape, layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    return figure, list(axes.ravel())


def _line(panel: Axes, one: Series, points: Sequence[tuple[int, np.ndarray]]) -> None:
    sizes = [n for n, _ in points]
    means = np.array([values.mean() for _, values in points])
    deviations = np.array([values.std(ddof=1) if values.size > 1 else 0.0 for _, values in points])
    low = np.maximum(means - deviations, [values.min() for _, values in points])
    if len(points) > 1:
        panel.fill_between(
            sizes,
            low,
            means + deviations,
            color=one.style.colour,
            alpha=0.16 if one.variant == 0 else 0.08,
            linewidth=0,
            zorder=1,
        )
    else:
        panel.errorbar(sizes, means, [means - low, deviations], color=one.style.colour, capsize=3, zorder=2)
    panel.plot(
        sizes,
        means,
        color=one.style.colour,
        linestyle=one.dashes,
        linewidth=one.style.width,
        marker=one.marker,
        markersize=5.5,
        markerfacecolor=one.style.colour if one.variant == 0 else "white",
        zorder=3,
    )


def _box(panel: Axes, one: Series, x: float, values: Sequence[float], width: float) -> None:
    colour = one.style.colour
    if len(values) < _BOX_POINTS:
        face = colour if one.variant == 0 else "white"
        panel.plot([x] * len(values), values, one.marker, color=colour, markerfacecolor=face, markersize=4.5)
        return
    (box,) = panel.boxplot(
        [values],
        positions=[x],
        widths=width,
        manage_ticks=False,
        patch_artist=True,
        boxprops={"facecolor": to_rgba(colour, 0.35), "edgecolor": colour, "linewidth": 1.0},
        medianprops={"color": "#111111", "linewidth": 1.3},
        whiskerprops={"color": colour, "linewidth": 1.0},
        capprops={"color": colour, "linewidth": 1.0},
        flierprops={"marker": ".", "markersize": 3.5, "markeredgecolor": colour, "markerfacecolor": colour},
    )["boxes"]
    box.set_hatch(one.hatch)


def _paper_star(panel: Axes, x: float, mean: float, colour: str) -> None:
    """A star; callers put it a little to the right, where it hides no mean that agrees with it."""
    panel.plot([x], [mean], "*", markersize=8, markerfacecolor="white", markeredgecolor=colour, zorder=4)


def _dress(panel: Axes, title: str) -> None:
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.set_title(title, fontsize=10.5, loc="left")
    panel.grid(color="#D5DAE0", linewidth=0.6)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def _finish(figure: Figure, axes: Sequence[Axes], design: str, what: str, handles: Sequence[Line2D | Patch]) -> None:
    for panel in axes:
        place = panel.get_subplotspec()
        if place is not None and place.is_first_col():
            panel.set_ylabel(unit_text(design))
    low, high = axes[0].get_ylim()
    if high / low < 10:
        # Within one decade a logarithmic axis has no tick of its own.
        axes[0].yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:.2g}"))
    title = textwrap.fill(f"{design_title(design)}: {what}", int(8.5 * figure.get_figwidth()))
    figure.suptitle(_plain(title), fontsize=12.5, fontweight="bold", x=0.01, ha="left")
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, int(figure.get_figwidth() / (0.75 + 0.085 * longest)))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=9.5)


def _line_legend(series: Sequence[Series]) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = [
        Line2D(
            [],
            [],
            color=one.style.colour,
            linestyle=one.dashes,  # type: ignore[arg-type]
            linewidth=one.style.width,
            marker=one.marker,
            markersize=5.5,
            markerfacecolor=one.style.colour if one.variant == 0 else "white",
            label=_plain(one.label),
        )
        for one in series
    ]
    return [*handles, *_paper_legend(series)]


def _box_legend(series: Sequence[Series]) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = []
    for one in series:
        drawn = any(len(values) >= _BOX_POINTS for values in one.values.values())
        handles.append(_box_handle(one) if drawn else _point_handle(one))
    return [*handles, *_paper_legend(series)]


def _box_handle(one: Series) -> Patch:
    face, edge = to_rgba(one.style.colour, 0.35), one.style.colour
    return Patch(facecolor=face, edgecolor=edge, hatch=one.hatch, label=_plain(one.label))


def _point_handle(one: Series) -> Line2D:
    face = one.style.colour if one.variant == 0 else "white"
    return Line2D(
        [], [], linestyle="", marker=one.marker, color=one.style.colour, markerfacecolor=face,
        label=_plain(one.label),
    )  # fmt: skip


def _paper_legend(series: Sequence[Series]) -> list[Line2D]:
    if not any(one.paper for one in series):
        return []
    star = Line2D([], [], linestyle="", marker="*", markersize=10, markerfacecolor="white", markeredgecolor="#555555")
    star.set_label("the paper's mean")
    return [star]


def _size(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def _plain(text: str) -> str:
    """The text without matplotlib's formulas: a name from a file may hold dollar signs."""
    return text.replace("$", r"\$")
