"""What `bgmiv demo` shows: the demand curves, the table of errors, and the files it writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bgmiv.analysis.page import report_page
from bgmiv.bench import Row, StructuralError, structural_error
from bgmiv.bench.report import page
from bgmiv.bench.report.figures import dress_panel, figure_bytes
from bgmiv.bench.report.tables import Table
from bgmiv.cli.demo import DemoResult
from bgmiv.designs import make_design
from bgmiv.designs.demand import demand, price_support
from bgmiv.registry import PlotStyle, method_label, method_style

__all__ = ["DemandPanels", "demand_curves", "demo_files", "demo_page", "error_texts"]

_TRUTH = PlotStyle("#111111", width=4.5)
_SUPPORT = "#E9EDF2"

_QUESTION = (
    "An airline sets ticket prices knowing something about demand that the analyst does not see, so the "
    "observed relation of price and sales is not the effect of price. A cost shifter moves prices and "
    "touches demand in no other way: it is the instrument. The question is what demand would be if the "
    "price were set by intervention, for each customer group and time of year."
)
_READING = (
    "The error is the mean squared distance from the true demand function over 2,800 combinations of price, "
    "time and group. Inside and outside split these points by whether training data show such a price at "
    "such a season (the central 99%); outside, every method extrapolates. In this design the bias from "
    "confounding is small next to the surface itself (disturbances have standard deviation 1, demand varies by "
    "hundreds), so the fit without the instrument can come close: the design tests how well a method learns "
    "the surface more than how well it corrects the bias."
)


@dataclass(frozen=True)
class DemandPanels:
    """Which demand curves to draw: a panel for each group (rows) and time (columns)."""

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
        """The treatment and covariates at every point of every panel, flat, in the order of `shape`."""
        axes = np.meshgrid(np.asarray(self.groups, float), np.asarray(self.times), self.price, indexing="ij")
        group, time, price = (axis.ravel() for axis in axes)
        return price, {"time": time, "group": group}


def demand_curves(panels: DemandPanels, estimates: Mapping[str, np.ndarray], subtitle: str) -> Figure:
    """True and estimated demand over price, with the prices that training data show shaded.

    Lines are strong where the design shows such prices at that season (the central 99% of the closed form
    :func:`bgmiv.designs.demand.price_support`) and faint where the curve is an extrapolation. Each method's estimates
    are at `panels.query()`.
    """
    rows, columns, _ = panels.shape
    figure = Figure(figsize=(4.1 * columns + 0.6, 3.1 * rows + 1.5), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey="row", squeeze=False)
    curves = {name: np.asarray(values).reshape(panels.shape) for name, values in estimates.items()}
    styles = {name: method_style(name) for name in curves}
    for i, group in enumerate(panels.groups):
        for j, time in enumerate(panels.times):
            panel: Axes = axes[i, j]
            low, high = (float(edge) for edge in price_support(time))
            panel.axvspan(low, high, color=_SUPPORT, linewidth=0, zorder=0)
            inside = (panels.price >= low) & (panels.price <= high)
            _draw(panel, panels.price, demand(panels.price, time, group), _TRUTH, inside, zorder=2)
            for name, values in curves.items():
                _draw(panel, panels.price, values[i, j], styles[name], inside, zorder=3)
            dress_panel(panel, f"group {group}, time of year {time:g} of 10")
            panel.set_xlim(10.0, 25.0)
        axes[i, 0].set_ylabel("expected demand (outcome units)")
    for panel in axes[-1]:
        panel.set_xlabel("ticket price set by intervention")
    title = f"Demand if the price were set: truth and estimates\n{subtitle}"
    figure.suptitle(title, fontsize=13, fontweight="bold", x=0.01, ha="left")
    entries = {"truth": _TRUTH} | {method_label(name): style for name, style in styles.items()}
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=style.colour, linestyle=style.dashes, linewidth=style.width, label=label)
        for label, style in entries.items()
    ]
    handles.append(Patch(color=_SUPPORT, label="prices seen at this season (99%)"))
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=10)
    return figure


def _draw(
    panel: Axes, price: np.ndarray, values: np.ndarray, style: PlotStyle, inside: np.ndarray, zorder: int
) -> None:
    for part, alpha in ((values, 0.35), (np.where(inside, values, np.nan), 1.0)):
        panel.plot(
            price, part, color=style.colour, linestyle=style.dashes, linewidth=style.width, alpha=alpha, zorder=zorder
        )


def error_texts(rows: Sequence[Row]) -> pd.DataFrame:
    """The table of errors as texts: a line a method, and the constant guess last."""
    lines = [
        (
            method_label(row.method),
            *_error_cells(row.structural_mse, row.structural_mse_in_support, row.structural_mse_outside),
            f"{row.seconds:.1f} s",
        )
        for row in rows
    ]
    lines.append(("mean outcome", *_error_cells(*_constant_error(rows[0])), ""))
    return pd.DataFrame(lines, columns=["method", "error (1e4)", "error", "inside", "outside", "time"])


def demo_files(results: Sequence[DemoResult]) -> dict[str, bytes]:
    """The files that the demo writes, by name."""
    rows = [result.row for result in results]
    first = rows[0]
    subtitle = f"n = {first.n}, rho = {first.rho:g}, seed {first.seed}, preset {first.preset}"
    curves = {result.row.method: result.estimates for result in results if result.estimates is not None}
    png = figure_bytes(demand_curves(DemandPanels(), curves, subtitle))
    record = {"rows": [asdict(row) for row in rows], "constant_predictor": _constant_error(first)._asdict()}
    files = {
        "demand-curves.png": png,
        "report.html": demo_page(rows, png).encode(),
        "results.json": (json.dumps(record, indent=2, allow_nan=False) + "\n").encode(),
    }
    for result in results:
        if result.analysis is not None:
            files["analysis.html"] = report_page(result.analysis).encode()
    return files


def demo_page(rows: Sequence[Row], figure: bytes) -> str:
    """The demo's report as one self-contained page; the figure is a PNG."""
    first, texts = rows[0], error_texts(rows)
    used = ", ".join(f"{name} {number}" for name, number in first.versions.items())
    table = Table("errors", "Mean squared structural error", texts, texts, ("method",), notes=(_READING,))
    return page.page(
        "What would demand be if we set the price?",
        [
            page.paragraph(
                f"Simulated demand design: n = {first.n} rows, confounding rho = {first.rho:g}, "
                f"seed {first.seed}, preset {first.preset}.",
                note=True,
            ),
            page.heading("What was asked"),
            page.paragraph(_QUESTION),
            page.heading("How close each method came"),
            page.table(table),
            *(page.paragraph(f"{row.method} failed: {row.error}") for row in rows if row.status != "ok"),
            page.heading("The curves"),
            page.image(
                figure,
                "True and estimated demand over price for several customer groups and times of year",
                "Shaded: prices that training data show at that season. Faint lines are extrapolations.",
            ),
            page.paragraph(
                "analysis.html, beside this page, is what an analyst without the truth would show of the BGM-IV fit: "
                "the average curve with intervals, effects by group, and whether to believe them."
            ),
            page.heading("To repeat it"),
            page.paragraph(f"bgmiv demo --n {first.n} --rho {first.rho:g} --seed {first.seed} --preset {first.preset}"),
            page.paragraph(f"Made with {used}, at {first.timestamp}. Seconds include compilation.", note=True),
        ],
    )


def _error_cells(everywhere: float | None, inside: float | None, outside: float | None) -> tuple[str, ...]:
    if everywhere is None or inside is None or outside is None:
        return ("failed", "", "", "")
    return (f"{everywhere / 1e4:.4f}", f"{everywhere:,.0f}", f"{inside:,.0f}", f"{outside:,.0f}")


def _constant_error(row: Row) -> StructuralError:
    """The error of a guess that is the sample's mean outcome everywhere: the scale of the problem."""
    design = make_design(row.design)
    grid = design.grid()
    mean = float(design.sample(row.n, row.rho, row.seed).outcome.mean())
    return structural_error(np.full(len(grid), mean), grid)
