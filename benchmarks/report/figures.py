"""The bench's figures: error against sample size with bands, box plots over repeats, and all cells as a heat map."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from bgmiv.bench.show import OURS, add_labels, design_title, method_order, unit_text
from bgmiv.registry import NO_INSTRUMENT, method_label, method_style
from report.frame import ABLATED
from report.printed import paper_values

__all__ = [
    "Picture", "Series", "dress_panel", "error_boxes", "error_lines", "figure_bytes", "heat_map", "make_series",
    "time_bars",
]  # fmt: skip

_DASHES: tuple[Any, ...] = ((0, (4, 1.5)), (0, (1.5, 1.5)), (0, (6, 1, 1, 1, 1, 1)))
# Of each method's first preset in a figure; the no-instrument versions have finer ones.
_METHOD_DASHES: dict[str, Any] = {
    "tsls": ":",
    "npiv": (0, (6, 2, 1, 2)),
    "control-function": (0, (5, 1, 1, 1)),
    "kiv": (0, (3, 1, 1, 1)),
    "deepiv": (0, (7, 1)),
    "dfiv": (0, (8, 2, 2, 2)),
    "deepgmm": (0, (4, 1, 1, 1, 1, 1)),
}
_FINE_DASHES = (0, (2, 2))
_MARKERS = ("<", ">", "d", "p")
_HATCHES = ("", "////", "....", "xxxx")
_STAR: dict[str, Any] = {"linestyle": "", "marker": "*", "markersize": 8, "markerfacecolor": "white"}
_MIN_BOX = 5
"""Values from which a box says more than the points themselves."""
_MAX_WIDTH = 10.0
"""Inches from which panels stand under one another."""


@dataclass(frozen=True)
class Picture:
    """A figure with the words that go with it."""

    name: str
    figure: Figure
    alternative: str
    caption: str


@dataclass(frozen=True)
class Series:
    """One method under one preset in a figure."""

    label: str  # as in the legend
    method: str
    variant: int  # 0 for the method's first preset in the figure; later ones have other dashes, markers and hatches
    errors: pd.DataFrame  # columns rho, n and mse, a row a repeat
    paper: pd.DataFrame  # the paper's means at the same settings: columns rho, n and mean

    @property
    def colour(self) -> str:
        """That of the method."""
        return method_style(self.method)[0]

    @property
    def line(self) -> dict[str, Any]:
        """How its line and its points are drawn, in panels and in the legend."""
        first, k = self.variant == 0, self.variant
        dashes = _FINE_DASHES if self.method.endswith(NO_INSTRUMENT) else _METHOD_DASHES.get(self.method, "-")
        return {
            "color": self.colour,
            "linestyle": dashes if first else _DASHES[(k - 1) % len(_DASHES)],
            "linewidth": 2.2 if self.method.removesuffix(NO_INSTRUMENT) == OURS else 1.8,
            "marker": method_style(self.method)[1] if k < 2 else _MARKERS[(k - 2) % len(_MARKERS)],
            "markerfacecolor": self.colour if first else "white",
            "markersize": 5.5,
        }

    @property
    def box(self) -> dict[str, Any]:
        """How its boxes are filled."""
        colour, hatch = self.colour, _HATCHES[self.variant % len(_HATCHES)]
        return {"facecolor": to_rgba(colour, 0.35), "edgecolor": colour, "hatch": hatch}


def make_series(rows: pd.DataFrame) -> list[Series]:
    """A series for each method and preset of one design's rows that has a result, with the paper's values beside it."""
    paper = paper_values()
    known = add_labels(rows).dropna(subset="mse")
    seen: dict[str, int] = {}
    found = []
    columns = known.groupby(["method", "preset", "label"])
    for (method, preset, label), own in sorted(columns, key=lambda item: method_order(*item[0][:2])):
        printed = paper.accuracy[paper.accuracy["method"] == method]
        if preset.endswith(ABLATED):
            # The authors' code makes one iteration when told 0: this is what they print.
            printed = paper.ablation if preset.endswith(ABLATED[1]) else paper.ablation.iloc[:0]
        printed = printed.merge(own[["design", "rho", "n"]].drop_duplicates())
        found.append(Series(label, method, seen.setdefault(method, 0), own[["rho", "n", "mse"]], printed))
        seen[method] += 1
    return found


def error_lines(design: str, series: Sequence[Series], *, title: str = "mean error over repeats") -> Figure:
    """Mean error against sample size, a panel a confounding level, both axes logarithmic.

    Bands reach one standard deviation up and down, at the lower end not below the best repeat. The paper's means are
    open stars, where it gives numbers.
    """
    sizes, levels = _settings(series)
    figure, axes = _panels(1, len(levels), (2.5, 3.3))
    for panel, rho in zip(axes, levels, strict=True):
        for one in series:
            here = one.errors[one.errors["rho"] == rho].groupby("n")["mse"].agg(["mean", "std", "min"]).fillna(0.0)
            if len(here):
                _line(panel, one, here)
            printed = one.paper[one.paper["rho"] == rho]
            _stars(panel, one, 1.1 * printed["n"], printed["mean"])
        panel.set_xscale("log")
        panel.set_xlim(sizes[0] / 1.35, sizes[-1] * 1.35)
        panel.xaxis.set_major_locator(FixedLocator(sizes))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n / 1000:g}k" if n >= 1000 else f"{n:g}"))
        panel.set_xlabel("sample size n")
        _dress(panel, f"rho = {rho:g}")
    handles = [Line2D([], [], label=_plain(one.label), **one.line) for one in series]
    _finish(figure, design, title, handles, series)
    return figure


def error_boxes(design: str, series: Sequence[Series], *, title: str = "error over repeats") -> Figure:
    """Boxes over repeats, a panel a sample size, side by side at each confounding level, on a logarithmic axis.

    Boxes hold the middle half, whiskers reach 1.5 times its width; fewer than five repeats are drawn as points. The
    paper's means are open stars, where it gives numbers.
    """
    sizes, levels = _settings(series)
    wide = max(2.6, 0.23 * len(levels) * (len(series) + 1) + 0.4)
    beside = wide * len(sizes) <= _MAX_WIDTH
    figure, axes = _panels(*((1, len(sizes), (wide, 3.4)) if beside else (len(sizes), 1, (_MAX_WIDTH, 2.3))))
    width = 0.84 / len(series)
    boxed = set()
    for panel, n in zip(axes, sizes, strict=True):
        for k, one in enumerate(series):
            shift = (k - (len(series) - 1) / 2) * width
            for rho, values in one.errors[one.errors["n"] == n].groupby("rho")["mse"]:
                if _box(panel, one, levels.index(rho) + shift, values.to_numpy(), 0.86 * width):
                    boxed.add(one.label)
            printed = one.paper[one.paper["n"] == n]
            _stars(panel, one, printed["rho"].map(levels.index) + shift + 0.4 * width, printed["mean"])
        panel.set_xticks(range(len(levels)), [f"{rho:g}" for rho in levels])
        panel.set_xlim(-0.6, len(levels) - 0.4)
        if beside or panel is axes[-1]:
            panel.set_xlabel("confounding rho")
        _dress(panel, f"n = {n}")
        panel.grid(visible=False, axis="x")
        for edge in range(1, len(levels)):
            panel.axvline(edge - 0.5, color="#D5DAE0", linewidth=0.6, zorder=0)
    handles = [
        Patch(label=_plain(one.label), **one.box)
        if one.label in boxed
        else Line2D([], [], label=_plain(one.label), **{**one.line, "linestyle": ""})
        for one in series
    ]
    _finish(figure, design, title, handles, series)
    return figure


def time_bars(times: pd.DataFrame, title: str) -> Figure:
    """Mean minutes as bars with whiskers from the least to the most; indexed by method and settings."""
    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    panel = figure.subplots()
    methods = sorted(times.index.unique("method"), key=method_order)
    lines = list(dict.fromkeys(times.index.get_level_values("settings")))
    width = 0.8 / len(lines)
    for k, line in enumerate(lines):
        here = times.xs(line, level="settings").reindex(methods)
        places = np.arange(len(methods)) + (k - (len(lines) - 1) / 2) * width
        ends = [here["mean"] - here["min"], here["max"] - here["mean"]]
        colours = [to_rgba(method_style(name)[0], (0.25, 0.6, 1.0)[k % 3]) for name in methods]
        panel.bar(places, here["mean"], 0.9 * width, yerr=ends, capsize=2, hatch=_HATCHES[k % 4], color=colours)
        for place, value in zip(places, here["max"], strict=True):
            shown = line if np.isfinite(value) else f"{line}: none"
            panel.text(place, value if np.isfinite(value) else 0.0, f" {shown}", rotation=90, ha="center", fontsize=7)
    panel.set_xticks(range(len(methods)), [method_label(name) for name in methods])
    panel.set_ylabel("minutes")
    panel.margins(y=0.2)
    dress_panel(panel, _plain(title))
    panel.grid(visible=False, axis="x")
    return figure


def heat_map(found: pd.DataFrame) -> Figure:
    """Multiples as colours, a row a cell and a column a method; white is the best method of its row."""
    height = 1.6 + 0.22 * len(found)
    figure = Figure(figsize=(3.6 + 0.72 * found.shape[1], height), layout="constrained")
    panel = figure.subplots()
    values = found.to_numpy(float)
    image = panel.imshow(values, cmap="Oranges", norm=LogNorm(1.0, 30.0), aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            colour = "white" if value > 8.0 else "#222222"
            shown = f"{value:.1f}" if value < 99.5 else f"{value:.0f}"
            panel.text(j, i, shown, ha="center", va="center", fontsize=7, color=colour)
    panel.set_xticks(range(found.shape[1]), [_plain(label) for label in found.columns], rotation=35, ha="right")
    rows = [f"{design}, n = {n}, rho = {rho:g}" for design, rho, n in found.index]
    panel.set_yticks(range(len(rows)), [_plain(row) for row in rows], fontsize=7.5)
    panel.tick_params(length=0)
    for side in panel.spines.values():
        side.set_visible(False)
    figure.colorbar(image, ax=panel, shrink=min(1.0, 3.0 / height), label="multiple of the lowest mean error")
    figure.suptitle(
        "Error of each method as a multiple of the best", fontsize=12.5, fontweight="bold", x=0.01, ha="left"
    )
    return figure


def figure_bytes(figure: Figure, kind: str = "png") -> bytes:
    """The figure as a PNG or PDF file; a PDF is the same bytes whenever it is made."""
    buffer = BytesIO()
    figure.savefig(buffer, format=kind, dpi=150, metadata={"CreationDate": None} if kind == "pdf" else None)
    return buffer.getvalue()


def dress_panel(panel: Axes, title: str) -> None:
    """The title, grid and frame that all panels have."""
    panel.set_title(title, fontsize=10.5, loc="left")
    panel.grid(color="#D5DAE0", linewidth=0.6)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def _settings(series: Sequence[Series]) -> tuple[list[int], list[float]]:
    errors = pd.concat([one.errors for one in series])
    return sorted(errors["n"].unique()), sorted(errors["rho"].unique())


def _panels(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """Panels that share their error axis; the size is of one, in inches."""
    shape = (max(5.2, size[0] * columns + 0.8), size[1] * rows + 1.2)
    figure = Figure(figsize=shape, layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    return figure, list(axes.ravel())


def _line(panel: Axes, one: Series, here: pd.DataFrame) -> None:
    """A line through the means, by sample size; here has the columns mean, std and min."""
    mean, sd = here["mean"], here["std"]
    low = np.maximum(mean - sd, here["min"])
    if len(here) > 1:
        alpha = 0.16 if one.variant == 0 else 0.08
        panel.fill_between(here.index, low, mean + sd, color=one.colour, alpha=alpha, linewidth=0, zorder=1)
    else:
        panel.errorbar(here.index, mean, [mean - low, sd], color=one.colour, capsize=3, zorder=2)
    panel.plot(here.index, mean, zorder=3, **one.line)


def _box(panel: Axes, one: Series, x: float, values: np.ndarray, width: float) -> bool:
    """A box, or the points themselves where there are few; whether it is a box."""
    if len(values) < _MIN_BOX:
        panel.plot([x] * len(values), values, **{**one.line, "linestyle": "", "markersize": 4.5})
        return False
    drawn = panel.boxplot([values], positions=[x], widths=width, manage_ticks=False, patch_artist=True)
    drawn["boxes"][0].set(**one.box)
    for artist in (*drawn["whiskers"], *drawn["caps"]):
        artist.set_color(one.colour)
    for artist in drawn["medians"]:
        artist.set(color="#111111", linewidth=1.3)
    for artist in drawn["fliers"]:
        artist.set(marker=".", markersize=3.5, markeredgecolor=one.colour, markerfacecolor=one.colour)
    return True


def _stars(panel: Axes, one: Series, x: Any, means: Any) -> None:
    """The paper's means, a little to the right, where they hide no mean that agrees with them."""
    panel.plot(x, means, color=one.colour, zorder=4, **_STAR)


def _dress(panel: Axes, title: str) -> None:
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.yaxis.set_minor_formatter(NullFormatter())
    dress_panel(panel, title)


def _finish(
    figure: Figure, design: str, what: str, handles: Sequence[Line2D | Patch], series: Sequence[Series]
) -> None:
    if any(len(one.paper) for one in series):
        handles = [*handles, Line2D([], [], label="the paper's mean", color="#555555", **_STAR)]
    axes = figure.axes
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


def _plain(text: str) -> str:
    """The text without matplotlib's formulas: a name from a file may hold dollar signs."""
    return text.replace("$", r"\$")
