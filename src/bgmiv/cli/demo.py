"""``bgmiv demo``: simulate confounded airline demand, fit it three ways, and show what came out."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from bgmiv.cli.options import at_least, blaming, reported, usable_folder
from bgmiv.registry import PlotStyle, method_label, method_style

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import pandas as pd
    from matplotlib.figure import Figure
    from rich.console import Console

    from bgmiv.analysis.analysis import Analysis
    from bgmiv.bench.evaluate import StructuralError
    from bgmiv.bench.plan import RunSpec
    from bgmiv.bench.store import Row
    from bgmiv.data.ivdata import IVData
    from bgmiv.estimators.fitted import FittedMethod
    from bgmiv.progress import Reporter

__all__ = ["DemandPanels", "DemoResult", "demand_curves", "demo", "demo_files", "demo_page", "error_texts", "run_spec"]

# The quickest first, so that both long fits run side by side; tables end with it.
_METHODS = ("tsls", "bgm-iv", "bgm-iv-noiv")
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
    "such a season (the central 99%); outside, every method extrapolates. What the airline knows moves price and "
    "demand together (the disturbance of demand has a standard deviation of 50): the fit that ignores the instrument "
    "takes that for an effect of the price, and a straight line misses that groups and seasons respond differently."
)


class DemoResult(NamedTuple):
    """A fit's row and its estimates at the points of the figure; of BGM-IV also what an analyst would show."""

    row: Row
    estimates: np.ndarray | None
    analysis: Analysis | None


def run_spec(spec: RunSpec, reporter: Reporter) -> DemoResult:
    """Fit and evaluate; a function of this module so that worker processes can import it."""
    from bgmiv.bench.evaluate import evaluate
    from bgmiv.effects import predict

    row, fitted, data = evaluate(spec, reporter)
    if fitted is None or data is None:
        return DemoResult(row, None, None)
    estimates = predict(fitted, *DemandPanels().query())
    return DemoResult(row, estimates, _analysis(spec, fitted, data, reporter) if spec.method == "bgm-iv" else None)


def _analysis(spec: RunSpec, fitted: FittedMethod, data: IVData, reporter: Reporter) -> Analysis:
    from bgmiv import BGMIV
    from bgmiv.errors import BGMIVWarning

    model = BGMIV(spec.preset, random_state=spec.seed)  # type: ignore[arg-type]
    model._keep(fitted, data, spec.seed)
    reporter.start("analysis", 1)
    with warnings.catch_warnings():
        # The page says what there is to warn of.
        warnings.simplefilter("ignore", BGMIVWarning)
        analysis = model.analysis(
            by="time",
            title="What would demand be if we set the price?",
            source="simulated airline demand",
            # The no-instrument version is one of the demo's own fits.
            no_instrument=False,
        )
    reporter.finish()
    return analysis


@reported
def demo(
    n: Annotated[int, typer.Option(help="Rows to simulate.")] = 1000,
    rho: Annotated[float, typer.Option(help="Confounding: correlation of the price shock with demand.")] = 0.9,
    seed: Annotated[int, typer.Option(help="Seed of the sample and of the fits.")] = 0,
    preset: Annotated[str, typer.Option(help="Settings of the fits: default or paper.")] = "default",
    out: Annotated[Path, typer.Option(help="Folder for the figure and the report.")] = Path("out/demo"),
) -> None:
    """Simulate airline demand with endogenous prices, fit it, and draw the demand curves.

    Compares BGM-IV with the same model without the instrument and with linear two-stage least squares,
    and writes demand-curves.png, report.html, results.json, and analysis.html, the interactive page of an analysis.
    """
    from rich.console import Console
    from rich.table import Table

    from bgmiv._io import write_whole
    from bgmiv.bench.plan import Sweep
    from bgmiv.designs.base import check_draw

    at_least(20, n, "--n")
    at_least(0, seed, "--seed")
    with blaming("--rho"):
        check_draw(n, rho, seed)
    with blaming("--preset"):
        specs = Sweep(["demand-confounded"], [n], [rho], _METHODS, [preset], seed=seed).specs()
    usable_folder(out, "--out").mkdir(parents=True, exist_ok=True)

    progress, console = Console(stderr=True), Console()
    progress.print(
        f"[bold]Confounded airline demand[/bold]: n = {n}, rho = {rho:g}, seed {seed}, preset {preset}", highlight=False
    )
    results = _fit(specs, progress)
    table = Table(title="Mean squared structural error", title_justify="left", caption_justify="left")
    table.caption = "inside, outside: grid points whose price training data show, or do not show, at their season"
    texts = error_texts([result.row for result in results])
    for name in texts:
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=name != "method")
    for cells in texts.itertuples(index=False):
        table.add_row(*cells)
    console.print(table)
    for name, content in demo_files(results).items():
        write_whole(out / name, content)
        console.print(f"wrote {out / name}", highlight=False, markup=False, soft_wrap=True)
    if any(result.row.status != "ok" for result in results):
        raise typer.Exit(1)


def _fit(specs: Sequence[RunSpec], console: Console) -> list[DemoResult]:
    """Fit in as many processes as there are cores, at most two: 2SLS is done in a moment."""
    from bgmiv.errors import BGMIVError
    from bgmiv.executors import Died, LocalPool, available_cores
    from bgmiv.progress import FitBoard

    labels = {spec: method_label(spec.method) for spec in specs}
    found: dict[RunSpec, DemoResult] = {}
    with FitBoard(console, labels) as board:
        for outcome in LocalPool(min(2, available_cores())).map(run_spec, specs, board):
            if isinstance(outcome, Died):
                raise BGMIVError(f"{labels[outcome.item]}: {outcome.reason}")
            row = outcome.result.row
            board.done(row.spec, f"done in {row.seconds:.1f} s" if row.status == "ok" else f"failed: {row.error}")
            found[row.spec] = outcome.result
    return [found[spec] for spec in (*specs[1:], specs[0])]


class DemandPanels(NamedTuple):
    """Which demand curves to draw: a panel for each group (rows) and time (columns)."""

    times: tuple[float, ...] = (2.0, 5.0, 8.5)
    groups: tuple[int, ...] = (2, 6)
    n_prices: int = 61

    @property
    def price(self) -> np.ndarray:
        """The prices of every panel: the range of the evaluation grid."""
        import numpy as np

        return np.linspace(10.0, 25.0, self.n_prices)

    def query(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The treatment and covariates at every point of every panel, flat: by group, then time, then price."""
        import numpy as np

        from bgmiv.designs.base import product

        group, time, price = product(np.asarray(self.groups, float), np.asarray(self.times), self.price)
        return price, {"time": time, "group": group}


def demand_curves(panels: DemandPanels, estimates: Mapping[str, np.ndarray], subtitle: str) -> Figure:
    """True and estimated demand over price, with the prices that training data show shaded.

    Lines are strong where the design shows such prices at that season (the central 99% of the closed form
    :func:`bgmiv.designs.demand.price_support`) and faint where the curve is an extrapolation. Each method's estimates
    are at `panels.query()`.
    """
    import numpy as np
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from bgmiv.bench.report.figures import dress_panel
    from bgmiv.designs.demand import demand, price_support

    rows, columns, price = len(panels.groups), len(panels.times), panels.price
    figure = Figure(figsize=(4.1 * columns + 0.6, 3.1 * rows + 1.5), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey="row", squeeze=False)
    shape = (rows, columns, panels.n_prices)
    curves = {name: np.asarray(values).reshape(shape) for name, values in estimates.items()}
    styles = {"truth": _TRUTH} | {method_label(name): method_style(name) for name in curves}
    looks = [{"color": style.colour, "linestyle": style.dashes, "linewidth": style.width} for style in styles.values()]
    for i, group in enumerate(panels.groups):
        for j, time in enumerate(panels.times):
            panel = axes[i, j]
            low, high = (float(edge) for edge in price_support(time))
            panel.axvspan(low, high, color=_SUPPORT, linewidth=0, zorder=0)
            inside = (price >= low) & (price <= high)
            lines = [demand(price, time, group), *(values[i, j] for values in curves.values())]
            for k, (values, look) in enumerate(zip(lines, looks, strict=True)):
                for part, alpha in ((values, 0.35), (np.where(inside, values, np.nan), 1.0)):
                    panel.plot(price, part, alpha=alpha, zorder=3 if k else 2, **look)
            dress_panel(panel, f"group {group}, time of year {time:g} of 10")
            panel.set_xlim(10.0, 25.0)
        axes[i, 0].set_ylabel("expected demand (outcome units)")
    for panel in axes[-1]:
        panel.set_xlabel("ticket price set by intervention")
    title = f"Demand if the price were set: truth and estimates\n{subtitle}"
    figure.suptitle(title, fontsize=13, fontweight="bold", x=0.01, ha="left")
    handles: list[Line2D | Patch] = [
        Line2D([], [], label=label, **look) for label, look in zip(styles, looks, strict=True)
    ]
    handles.append(Patch(color=_SUPPORT, label="prices seen at this season (99%)"))
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=10)
    return figure


def error_texts(rows: Sequence[Row]) -> pd.DataFrame:
    """The table of errors as texts: a line a method, and the constant guess last."""
    import pandas as pd

    def cells(everywhere: float | None, inside: float | None, outside: float | None) -> tuple[str, ...]:
        if everywhere is None or inside is None or outside is None:
            return ("failed", "", "", "")
        return (f"{everywhere / 1e4:.4f}", f"{everywhere:,.0f}", f"{inside:,.0f}", f"{outside:,.0f}")

    lines = []
    for row in rows:
        errors = cells(row.structural_mse, row.structural_mse_in_support, row.structural_mse_outside)
        lines.append((method_label(row.method), *errors, f"{row.seconds:.1f} s"))
    lines.append(("mean outcome", *cells(*_constant_error(rows[0])), ""))
    return pd.DataFrame(lines, columns=["method", "error (1e4)", "error", "inside", "outside", "time"])


def demo_files(results: Sequence[DemoResult]) -> dict[str, bytes]:
    """The files that the demo writes, by name."""
    from bgmiv.analysis.page import report_page
    from bgmiv.bench.report.figures import figure_bytes

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
    from bgmiv.bench.report import tables

    first, texts = rows[0], error_texts(rows)
    used = ", ".join(f"{name} {number}" for name, number in first.versions.items())
    table = tables.Table("errors", "Mean squared structural error", texts, texts, ("method",), notes=(_READING,))
    return tables.page(
        "What would demand be if we set the price?",
        [
            tables.paragraph(
                f"Simulated, strongly confounded airline demand: n = {first.n} rows, confounding rho = {first.rho:g}, "
                f"seed {first.seed}, preset {first.preset}.",
                note=True,
            ),
            tables.heading("What was asked"),
            tables.paragraph(_QUESTION),
            tables.heading("How close each method came"),
            tables.to_html(table),
            *(tables.paragraph(f"{row.method} failed: {row.error}") for row in rows if row.status != "ok"),
            tables.heading("The curves"),
            tables.image(
                figure,
                "True and estimated demand over price for several customer groups and times of year",
                "Shaded: prices that training data show at that season. Faint lines are extrapolations.",
            ),
            tables.paragraph(
                "analysis.html, beside this page, is what an analyst without the truth would show of the BGM-IV fit: "
                "the average curve with intervals, effects by group, and whether to believe them."
            ),
            tables.heading("To repeat it"),
            tables.paragraph(
                f"bgmiv demo --n {first.n} --rho {first.rho:g} --seed {first.seed} --preset {first.preset}"
            ),
            tables.paragraph(f"Made with {used}, at {first.timestamp}. Seconds include compilation.", note=True),
        ],
    )


def _constant_error(row: Row) -> StructuralError:
    """The error of a guess that is the sample's mean outcome everywhere: the scale of the problem."""
    import numpy as np

    from bgmiv.bench.evaluate import structural_error
    from bgmiv.designs import make_design

    design = make_design(row.design)
    grid = design.grid()
    mean = float(design.sample(row.n, row.rho, row.seed).outcome.mean())
    return structural_error(np.full(len(grid), mean), grid)
