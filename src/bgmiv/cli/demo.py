"""``bgmiv demo``: simulate the demand design, fit it three ways, and show what came out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from bgmiv.cli.options import at_least, blaming, reported, usable_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from rich.console import Console

    from bgmiv.analysis.analysis import Analysis
    from bgmiv.bench.evaluate import Evaluation
    from bgmiv.bench.plan import RunSpec
    from bgmiv.bench.store import Row
    from bgmiv.progress import Reporter

__all__ = ["DemoResult", "demo", "run_spec"]

# The quickest first, so that both long fits run side by side; tables end with it.
_METHODS = ("tsls", "bgm-iv", "bgm-iv-noiv")


class DemoResult(NamedTuple):
    """A fit's row and its estimates at the points of the figure; of BGM-IV also what an analyst would show."""

    row: Row
    estimates: np.ndarray | None
    analysis: Analysis | None


def run_spec(spec: RunSpec, reporter: Reporter) -> DemoResult:
    """Fit and evaluate; a function of this module so that worker processes can import it."""
    from bgmiv.bench.evaluate import Points, evaluate
    from bgmiv.cli.demo_figures import DemandPanels

    found = evaluate(spec, Points(*DemandPanels().query()), reporter, keep=spec.method == "bgm-iv")
    return DemoResult(found.row, found.estimates, _analysis(spec, found, reporter))


def _analysis(spec: RunSpec, evaluation: Evaluation, reporter: Reporter) -> Analysis | None:
    import warnings

    from bgmiv import BGMIV
    from bgmiv.errors import BGMIVWarning

    if evaluation.fitted is None or evaluation.data is None:
        return None
    model = BGMIV(spec.preset, random_state=spec.seed)  # type: ignore[arg-type]
    model._keep(evaluation.fitted, evaluation.data, spec.seed)
    reporter.start("analysis", 1)
    with warnings.catch_warnings():
        # The page says what there is to warn of.
        warnings.simplefilter("ignore", BGMIVWarning)
        analysis = model.analysis(
            by="time",
            title="What would demand be if we set the price?",
            source="the simulated demand design",
            # The no-instrument version is one of the demo's own fits.
            no_instrument=False,
        )
    reporter.finish()
    return analysis


@reported
def demo(
    n: Annotated[int, typer.Option(help="Rows to simulate.")] = 1000,
    rho: Annotated[float, typer.Option(help="Confounding: correlation of the price shock with demand.")] = 0.5,
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
    from bgmiv.cli.demo_figures import demo_files, error_texts
    from bgmiv.designs.base import check_draw

    at_least(20, n, "--n")
    at_least(0, seed, "--seed")
    with blaming("--rho"):
        check_draw(n, rho, seed)
    with blaming("--preset"):
        specs = Sweep(["demand"], [n], [rho], _METHODS, [preset], seed=seed).specs()
    usable_folder(out, "--out").mkdir(parents=True, exist_ok=True)

    progress, console = Console(stderr=True), Console()
    progress.print(f"[bold]Demand design[/bold]: n = {n}, rho = {rho:g}, seed {seed}, preset {preset}", highlight=False)
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
    from bgmiv.bench.executors import Died, LocalPool, available_cores
    from bgmiv.cli.board import FitBoard
    from bgmiv.errors import BGMIVError
    from bgmiv.registry import method_label

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
