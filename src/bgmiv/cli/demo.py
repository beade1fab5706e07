"""``bgmiv demo``: a market or a study from its rows to the page that an analyst would show."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from bgmiv.cli.options import at_least, blaming, check_preset, echo, make_model, reported, usable_folder
from bgmiv.registry import method_label

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from bgmiv.analysis.analysis import Analysis, MethodRow
    from bgmiv.bench.evaluate import StructuralError
    from bgmiv.bench.plan import RunSpec
    from bgmiv.bench.store import Row

__all__ = ["DemoResult", "constant_error", "demo", "demo_files", "error_texts", "run_spec", "with_truth"]

# The quickest first, so that both long fits run side by side; tables end with it.
_METHODS = ("tsls", "bgm-iv", "bgm-iv-noiv")
_NOTES = {"bgm-iv-noiv": "no-instrument", "tsls": "line"}


class DemoResult(NamedTuple):
    """A fit's row, and what it says of the average effect and curve.

    Methods that an analyst would show have an analysis as well; nothing but the row is known of a fit that failed.
    """

    row: Row
    answer: MethodRow | None = None
    analysis: Analysis | None = None


def run_spec(spec: RunSpec) -> DemoResult:
    """Fit and evaluate; a function of this module so that worker processes can import it."""
    from bgmiv.analysis.compare import compare
    from bgmiv.bench.evaluate import evaluate
    from bgmiv.errors import BGMIVWarning

    row, fitted, data = evaluate(spec)
    if fitted is None or data is None:
        return DemoResult(row)
    model = make_model(spec.method, spec.preset, spec.seed, {})
    model._keep(fitted, data, spec.seed)
    with warnings.catch_warnings():
        # The page says what there is to warn of.
        warnings.simplefilter("ignore", BGMIVWarning)
        answer = compare({method_label(spec.method): model}).methods[0]
        analysis = None
        if spec.method in ("bgm-iv", "tsls"):
            analysis = model.analysis(
                by="time",
                title="What would demand be if we set the price?",
                source="a simulated market",
                units="flights",
                # The no-instrument version is one of the demo's own fits.
                no_instrument=False,
            )
    return DemoResult(row, replace(answer, note=_NOTES.get(spec.method, "")), analysis)


class _Which(StrEnum):
    """What is shown; typer learned to read Literal after the lowest version that is allowed."""

    airline = "airline"
    schooling = "schooling"


@reported
def demo(
    which: Annotated[
        _Which, typer.Argument(help="airline: a simulated market whose truth is known; schooling: Card's real data.")
    ] = _Which.airline,
    n: Annotated[int, typer.Option(help="Rows to simulate.")] = 1000,
    rho: Annotated[float, typer.Option(help="Confounding: correlation of the price shock with demand.")] = 0.9,
    seed: Annotated[int, typer.Option(help="Seed of the sample and of the fits.")] = 0,
    preset: Annotated[str, typer.Option(help="Settings of the fits: default or paper.")] = "default",
    out: Annotated[Path, typer.Option(help="Folder for the pages.")] = Path("out/demo"),
) -> None:
    """Fit a simulated market, or real data on the returns to schooling, and write pages with the results.

    airline simulates demand with endogenous prices and compares BGM-IV with the same model without the instrument, with
    linear two-stage least squares and with the truth: report.html is what an analyst would have with the truth drawn
    in, results.json has the errors. schooling fits Card's data (pip install 'pybgmiv\\[data]') and writes
    schooling.html.
    """
    at_least(20, n, "--n")
    at_least(0, seed, "--seed")
    check_preset(preset)
    usable_folder(out, "--out")
    if which is _Which.schooling:
        _schooling(seed, preset, out)
    else:
        _airline(n, rho, seed, preset, out)


def _schooling(seed: int, preset: str, out: Path) -> None:
    from bgmiv.analysis.page import write_report
    from bgmiv.analysis.text import headline
    from bgmiv.cli.tables import warnings_shown
    from bgmiv.designs.empirical import load_empirical

    card = load_empirical("card")
    echo(f"Returns to schooling (Card 1995): {card.n_rows} men, seed {seed}, preset {preset}", err=True)
    model = make_model("bgm-iv", preset, seed, {})
    with warnings_shown():
        model.fit_formula(card.formula, card.table)
        asked: dict[str, Any] = {"title": "What is a year of schooling worth?", "units": "men"}
        analysis = model.analysis(by="black", t0=12, t1=16, source=f"Card (1995), from {card.source}", **asked)
    echo(headline(analysis))
    out.mkdir(parents=True, exist_ok=True)
    echo(f"wrote {write_report(analysis, out / 'schooling.html')}")


def _airline(n: int, rho: float, seed: int, preset: str, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from bgmiv._io import write_whole
    from bgmiv.bench.plan import Sweep
    from bgmiv.designs.base import check_draw

    with blaming("--rho"):
        check_draw(n, rho, seed)
    with blaming("--preset"):
        specs = Sweep(["demand-confounded"], [n], [rho], _METHODS, [preset], seed=seed).specs()
    out.mkdir(parents=True, exist_ok=True)
    progress, console = Console(stderr=True), Console()
    progress.print(
        f"[bold]Confounded airline demand[/bold]: n = {n}, rho = {rho:g}, seed {seed}, preset {preset}", highlight=False
    )
    results = _fit(specs, progress)
    table = Table(title="Mean squared error of the demand curve", title_justify="left", caption_justify="left")
    table.caption = "inside / outside: at prices that are / are not observed in that season"
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
    with FitBoard(console, len(specs)) as board:
        for outcome in LocalPool(min(2, available_cores())).map(run_spec, specs):
            if isinstance(outcome, Died):
                raise BGMIVError(f"{labels[outcome.item]}: {outcome.reason}")
            row = outcome.result.row
            text = f"done in {row.seconds:.1f} s" if row.status == "ok" else f"failed: {row.error}"
            board.done(f"{labels[row.spec]}: {text}", failed=row.status != "ok")
            found[row.spec] = outcome.result
    return [found[spec] for spec in (*specs[1:], specs[0])]


def error_texts(rows: Sequence[Row]) -> pd.DataFrame:
    """The table of errors as texts: a line for each method, and the constant prediction last."""
    import pandas as pd

    def cells(everywhere: float | None, inside: float | None, outside: float | None) -> tuple[str, ...]:
        if everywhere is None or inside is None or outside is None:
            return ("failed", "", "")
        return (f"{everywhere:,.0f}", f"{inside:,.0f}", f"{outside:,.0f}")

    lines = []
    for row in rows:
        errors = cells(row.structural_mse, row.structural_mse_in_support, row.structural_mse_outside)
        lines.append((method_label(row.method), *errors, f"{row.seconds:.1f} s"))
    lines.append(("constant (mean outcome)", *cells(*constant_error(rows[0])), ""))
    return pd.DataFrame(lines, columns=["method", "error", "inside", "outside", "time"])


def demo_files(results: Sequence[DemoResult]) -> dict[str, bytes]:
    """The files that the demo writes, by name; no page if every fit failed."""
    from bgmiv.analysis.page import report_page

    rows = [result.row for result in results]
    record = {"rows": [asdict(row) for row in rows], "constant_predictor": constant_error(rows[0])._asdict()}
    files = {"results.json": (json.dumps(record, indent=2, allow_nan=False) + "\n").encode()}
    shown = next((result.analysis for result in results if result.analysis is not None), None)
    if shown is not None:
        known = {row.name for row in shown.methods}
        others = tuple(result.answer for result in results if result.answer and result.answer.name not in known)
        shown = replace(shown, methods=(shown.methods[0], *others, *shown.methods[1:]))
        files["report.html"] = report_page(with_truth(shown, rows[0])).encode()
    return files


def with_truth(analysis: Analysis, row: Row) -> Analysis:
    """The analysis with the true average curve and effect as its last method."""
    import numpy as np

    from bgmiv.analysis.analysis import MethodRow
    from bgmiv.designs import make_design
    from bgmiv.designs.demand import demand
    from bgmiv.intervals import NO_INTERVAL, Interval

    data = make_design(row.design).sample(row.n, row.rho, row.seed)
    values = dict(zip(data.schema.flat_names, data.covariates.T, strict=True))
    first = analysis.effects[0]
    prices = np.array([first.t0, first.t1, *analysis.curves[0].treatment])
    before, after, *curve = (float(np.mean(demand(price, values["time"], values["group"]))) for price in prices)
    effect = Interval(after - before, np.nan, np.nan, analysis.level, {}, method=NO_INTERVAL)
    truth = MethodRow("the truth", effect, tuple(curve), "truth")
    return replace(analysis, methods=(*analysis.methods, truth))


def constant_error(row: Row) -> StructuralError:
    """The error of predicting the mean outcome of the sample everywhere: the scale of the problem."""
    import numpy as np

    from bgmiv.bench.evaluate import structural_error
    from bgmiv.designs import make_design

    design = make_design(row.design)
    grid = design.grid()
    mean = float(design.sample(row.n, row.rho, row.seed).outcome.mean())
    return structural_error(np.full(len(grid), mean), grid)
