"""``bgmiv demo``: simulate the demand design, fit it three ways, and show what came out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from bgmiv.cli.common import at_least, blaming, reported, usable_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from bgmiv.bench.evaluate import Evaluation, Query
    from bgmiv.bench.plan import RunSpec
    from bgmiv.progress import Reporter
    from bgmiv.show.analysis import Analysis

__all__ = ["METHODS", "DemoResult", "DemoTask", "demo", "run_task"]

METHODS = ("tsls", "bgm-iv", "bgm-iv-noiv")


class DemoTask(NamedTuple):
    """One fit of the demo and the points of its curves."""

    spec: RunSpec
    query: Query


class DemoResult(NamedTuple):
    """What came of one fit; of BGM-IV also the analysis that an analyst would show."""

    evaluation: Evaluation
    analysis: Analysis | None


def run_task(task: DemoTask, reporter: Reporter) -> DemoResult:
    """Fit and evaluate; a function of this module so that worker processes can import it."""
    from bgmiv.bench.evaluate import evaluate

    evaluation = evaluate(task.spec, task.query, reporter, keep=task.spec.method == "bgm-iv")
    analysis = None if evaluation.fitted is None else _analysed(task.spec, evaluation, reporter)
    return DemoResult(evaluation._replace(fitted=None, data=None), analysis)


def _analysed(spec: RunSpec, evaluation: Evaluation, reporter: Reporter) -> Analysis:
    import warnings

    from bgmiv import BGMIV
    from bgmiv.errors import BGMIVWarning

    model = BGMIV(spec.preset, random_state=spec.seed)  # type: ignore[arg-type]
    assert evaluation.fitted is not None
    model.fitted_, model.data_, model.seed_ = evaluation.fitted, evaluation.data, spec.seed
    reporter.start("analysis", 1)
    with warnings.catch_warnings():
        # The page says what there is to warn of.
        warnings.simplefilter("ignore", BGMIVWarning)
        analysis = model.analysis(
            by="time",
            title="What would demand be if we set the price?",
            source="the simulated demand design",
            # The twin is one of the demo's own fits.
            twin=False,
        )
    reporter.advance(1, {})
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

    from bgmiv.bench.plan import Sweep
    from bgmiv.designs.base import check_draw

    at_least(20, n, "--n")
    at_least(0, seed, "--seed")
    with blaming("--rho"):
        check_draw(n, rho, seed)
    with blaming("--preset"):
        specs = Sweep(["demand"], [n], [rho], METHODS, [preset], seed=seed).specs()
    usable_folder(out, "--out").mkdir(parents=True, exist_ok=True)

    progress = Console(stderr=True)
    progress.print(f"[bold]Demand design[/bold]: n = {n}, rho = {rho:g}, seed {seed}, preset {preset}", highlight=False)
    results = _fit(specs, progress)
    evaluations = [result.evaluation for result in results]
    written = _write(evaluations, next((result.analysis for result in results if result.analysis), None), out)
    _print(evaluations, written, Console())
    if any(evaluation.row.status != "ok" for evaluation in evaluations):
        raise typer.Exit(1)


def _fit(specs: Sequence[RunSpec], console: Console) -> list[DemoResult]:
    """Fit in as many processes as there are cores, at most two: 2SLS is done in a moment."""
    from bgmiv.bench.evaluate import Query
    from bgmiv.bench.executors import Died, LocalPool, available_cores
    from bgmiv.cli.board import FitBoard
    from bgmiv.errors import BGMIVError
    from bgmiv.report.figures import METHOD_LABELS, DemandPanels

    labels = [METHOD_LABELS[spec.method] for spec in specs]
    tasks = [DemoTask(spec, Query(*DemandPanels().query())) for spec in specs]
    found: dict[int, DemoResult] = {}
    with FitBoard(console, labels) as board:
        for outcome in LocalPool(min(2, available_cores())).map(run_task, tasks, board):
            if isinstance(outcome, Died):
                raise BGMIVError(f"{labels[outcome.index]}: {outcome.reason}")
            row = outcome.result.evaluation.row
            state = f"done in {row.seconds:.1f} s" if row.status == "ok" else f"failed: {row.error}"
            board.done(outcome.index, f"{labels[outcome.index]}: {state}")
            found[outcome.index] = outcome.result
    return [found[index] for index in _shown_order(len(specs))]


def _shown_order(n_specs: int) -> list[int]:
    # METHODS starts with the quickest so that both long fits run side by side; tables end with it.
    return [*range(1, n_specs), 0]


def _write(evaluations: Sequence[Evaluation], analysis: Analysis | None, out: Path) -> list[Path]:
    from bgmiv.report.demo import demo_page, demo_record
    from bgmiv.report.figures import DemandPanels, demand_curves, figure_png
    from bgmiv.report.files import write_all

    rows = [evaluation.row for evaluation in evaluations]
    curves = {
        evaluation.row.method: evaluation.estimates
        for evaluation in evaluations
        if evaluation.row.status == "ok" and evaluation.estimates is not None
    }
    first = rows[0]
    png = figure_png(
        demand_curves(
            DemandPanels(),
            curves,
            subtitle=f"n = {first.n}, rho = {first.rho:g}, seed {first.seed}, preset {first.preset}",
        )
    )
    files = {
        "demand-curves.png": png,
        "report.html": demo_page(rows, png).encode(),
        "results.json": (json.dumps(demo_record(rows), indent=2, allow_nan=False) + "\n").encode(),
    }
    if analysis is not None:
        from bgmiv.show.page import report_page

        files["analysis.html"] = report_page(analysis).encode()
    return list(write_all(out, files))


def _print(evaluations: Sequence[Evaluation], written: Sequence[Path], console: Console) -> None:
    from rich.table import Table

    from bgmiv.report.demo import HEADER, result_cells

    table = Table(title="Mean squared structural error", title_justify="left", caption_justify="left")
    table.caption = "inside, outside: grid points whose price training data show, or do not show, at their season"
    for position, name in enumerate(HEADER):
        table.add_column(name, justify="left" if position == 0 else "right", no_wrap=True)
    for cells in result_cells([evaluation.row for evaluation in evaluations]):
        table.add_row(*cells)
    console.print(table)
    for path in written:
        console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
