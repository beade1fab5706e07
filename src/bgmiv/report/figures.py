"""Figures fit for a paper; colours of Okabe and Ito, told apart by line style as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bgmiv.designs.demand import demand, price_support

__all__ = ["METHOD_LABELS", "DemandPanels", "Style", "demand_curves", "figure_pdf", "figure_png", "method_styles"]

METHOD_LABELS = {
    "bgm-iv": "BGM-IV",
    "bgm-iv-noiv": "BGM, no instrument",
    "tsls": "linear 2SLS",
    "tsls-noiv": "linear 2SLS, no instrument",
    "kiv": "KIV",
    "kiv-noiv": "KIV, no instrument",
    "deepiv": "DeepIV",
    "deepiv-noiv": "DeepIV, no instrument",
    "dfiv": "DFIV",
    "dfiv-noiv": "DFIV, no instrument",
    "deepgmm": "DeepGMM",
    "deepgmm-noiv": "DeepGMM, no instrument",
}
"""How figures and tables call each method; others go by their own names."""


class Style(NamedTuple):
    """How a method is drawn: told apart by colour, by dashes and by marker."""

    colour: str
    dashes: tuple[float, Sequence[float]] | Literal["-"]
    width: float = 2.0
    marker: str = "o"


_STYLES = {
    "bgm-iv": Style("#0072B2", "-", 2.2, "o"),
    "bgm-iv-noiv": Style("#D55E00", (0, (5, 2)), marker="X"),
    "tsls": Style("#009E73", (0, (1, 1)), 2.4, "v"),
    "kiv": Style("#CC79A7", (0, (3, 1, 1, 1)), marker="D"),
    "deepiv": Style("#56B4E9", (0, (7, 1)), marker="^"),
    "dfiv": Style("#E69F00", (0, (8, 2, 2, 2)), marker="s"),
    "deepgmm": Style("#7F7F7F", (0, (4, 1, 1, 1, 1, 1)), marker="P"),
}
_STYLES |= {
    f"{name}-noiv": _STYLES[name]._replace(dashes=(0, (2, 2)), marker="X")
    for name in ("tsls", "kiv", "deepiv", "dfiv", "deepgmm")
}
_OTHER_STYLES = (
    Style("#111111", (0, (3, 1, 1, 1)), marker="<"),
    Style("#D55E00", (0, (7, 1)), marker=">"),
)
_TRUTH = Style("#111111", "-", 4.5)
_SUPPORT = "#E9EDF2"


@dataclass(frozen=True)
class DemandPanels:
    """Which demand curves to draw: a panel for each group (rows) and time (columns).

    Example
    -------
    >>> panels = DemandPanels(times=(2.0, 5.0), groups=(1, 7), n_prices=30)
    >>> treatment, covariates = panels.query()
    >>> panels.shape, treatment.shape
    ((2, 2, 30), (120,))
    """

    times: tuple[float, ...] = (2.0, 5.0, 8.5)
    groups: tuple[int, ...] = (2, 6)
    n_prices: int = 61

    @property
    def shape(self) -> tuple[int, int, int]:
        """(groups, times, prices), the shape of one method's estimates."""
        return len(self.groups), len(self.times), self.n_prices

    @property
    def price(self) -> np.ndarray:
        """The prices of every panel: the range of the evaluation grid."""
        return np.linspace(10.0, 25.0, self.n_prices)

    def query(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The treatment and covariates at every point of every panel, flat, in the order of ``shape``."""
        axes = np.meshgrid(np.asarray(self.groups, float), np.asarray(self.times), self.price, indexing="ij")
        group, time, price = (axis.ravel() for axis in axes)
        return price, {"time": time, "group": group}


def demand_curves(panels: DemandPanels, estimates: Mapping[str, np.ndarray], *, subtitle: str = "") -> Figure:
    """True and estimated demand over price, with the prices that training data show shaded.

    Lines are strong where the design shows such prices at that season (the central 99% of the closed form
    :func:`bgmiv.designs.demand.price_support`) and faint where the curve is an extrapolation.

    Args:
        panels: which curves.
        estimates: for each method, its estimates at ``panels.query()``, flat or of ``panels.shape``.
        subtitle: a line under the title, such as the sample size and the seed.

    Returns:
        A matplotlib figure, not attached to any window.
    """
    rows, columns, _ = panels.shape
    figure = Figure(figsize=(4.1 * columns + 0.6, 3.1 * rows + 1.5), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey="row", squeeze=False)
    curves = {name: np.asarray(values).reshape(panels.shape) for name, values in estimates.items()}
    styles = method_styles(tuple(curves))
    for i, group in enumerate(panels.groups):
        for j, time in enumerate(panels.times):
            panel: Axes = axes[i, j]
            low, high = (float(edge) for edge in price_support(time))
            panel.axvspan(low, high, color=_SUPPORT, linewidth=0, zorder=0)
            _draw(panel, panels.price, demand(panels.price, time, group), _TRUTH, (low, high), zorder=2)
            for name, values in curves.items():
                _draw(panel, panels.price, values[i, j], styles[name], (low, high), zorder=3)
            _dress(panel, f"group {group}, time of year {time:g} of 10")
        axes[i, 0].set_ylabel("expected demand (outcome units)")
    for panel in axes[-1]:
        panel.set_xlabel("ticket price set by intervention")
    figure.suptitle(
        "Demand if the price were set: truth and estimates" + (f"\n{subtitle}" if subtitle else ""),
        fontsize=13,
        fontweight="bold",
        x=0.01,
        ha="left",
    )
    figure.legend(handles=_legend(styles), loc="outside lower center", ncols=5, frameon=False, fontsize=10)
    return figure


def figure_png(figure: Figure, dpi: int = 150) -> bytes:
    """The figure as PNG bytes.

    >>> figure_png(Figure(figsize=(1, 1)))[:4]
    b'\\x89PNG'
    """
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def figure_pdf(figure: Figure) -> bytes:
    """The figure as PDF bytes, without the time it was made.

    >>> figure_pdf(Figure(figsize=(1, 1)))[:4]
    b'%PDF'
    """
    buffer = BytesIO()
    figure.savefig(buffer, format="pdf", metadata={"CreationDate": None})
    return buffer.getvalue()


def method_styles(names: Sequence[str]) -> dict[str, Style]:
    """How each method is drawn, in every figure alike; methods that are not known here get styles of their own.

    >>> method_styles(["kiv"])["kiv"].marker
    'D'
    """
    others = [name for name in names if name not in _STYLES]
    extra = {name: _OTHER_STYLES[k % len(_OTHER_STYLES)] for k, name in enumerate(others)}
    return {name: _STYLES.get(name) or extra[name] for name in names}


def _draw(
    panel: Axes,
    price: np.ndarray,
    values: np.ndarray,
    style: Style,
    support: tuple[float, float],
    zorder: int,
) -> None:
    seen = np.where((price >= support[0]) & (price <= support[1]), values, np.nan)
    for part, alpha in ((values, 0.35), (seen, 1.0)):
        panel.plot(
            price,
            part,
            color=style.colour,
            linestyle=style.dashes,
            linewidth=style.width,
            alpha=alpha,
            solid_capstyle="butt",
            zorder=zorder,
        )


def _dress(panel: Axes, title: str) -> None:
    panel.set_title(title, fontsize=10.5, loc="left")
    panel.set_xlim(10.0, 25.0)
    panel.grid(color="#D5DAE0", linewidth=0.6)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def _legend(styles: Mapping[str, Style]) -> list[Line2D | Patch]:
    entries = {"truth": _TRUTH} | {METHOD_LABELS.get(name, name): style for name, style in styles.items()}
    lines: list[Line2D | Patch] = [
        Line2D([], [], color=style.colour, linestyle=style.dashes, linewidth=style.width, label=label)
        for label, style in entries.items()
    ]
    return [*lines, Patch(color=_SUPPORT, label="prices seen at this season (99%)")]
