"""``bgmiv bench``: run fits on designs whose truth is known, and show the stored rows."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bgmiv.cli.common import INTERRUPTED, at_least, blaming, numbers, reported, usable_folder, words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from bgmiv.bench.plan import RunSpec
    from bgmiv.bench.store import Row, RowStore

__all__ = ["bench_app", "run", "show"]

bench_app = typer.Typer(help="Fits on designs whose truth is known: run them, show the rows.", no_args_is_help=True)


@bench_app.command("run")
@reported
def run(
    store: Annotated[Path, typer.Option(help="Folder for the rows; made if absent.")],
    design: Annotated[str, typer.Option(help="demand or vector-proxy.")] = "demand",
    n: Annotated[list[str] | None, typer.Option(help="Sample sizes: repeat it or list them, 1000,5000.")] = None,
    rho: Annotated[list[str] | None, typer.Option(help="Confounding levels: repeat or list.")] = None,
    methods: Annotated[list[str] | None, typer.Option(help="bgm-iv, bgm-iv-noiv, tsls: repeat or list.")] = None,
    preset: Annotated[str, typer.Option(help="default or paper.")] = "default",
    repeats: Annotated[int, typer.Option(help="Fits a cell, with consecutive seeds.")] = 1,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    workers: Annotated[int, typer.Option(help="Processes at once, one thread each.")] = 1,
) -> None:
    """Run fits and store one row each. Run it again to go on: rows that are there already are kept."""
    at_least(1, repeats, "--repeats")
    at_least(0, seed, "--seed")
    at_least(1, workers, "--workers")
    specs = _plan(design, n or ["1000"], rho or ["0.5"], methods or ["bgm-iv"], preset, repeats, seed)
    usable_folder(store, "--store")

    from rich.console import Console

    from bgmiv.bench.runner import pending
    from bgmiv.bench.store import RowStore

    console = Console(stderr=True)
    left = pending(specs, RowStore(store))
    for message in left.damaged:
        console.print(f"Warning: {message}; running it again now.", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{len(specs)} fits: {left.done} done before, {len(left.specs)} to run.", highlight=False)
    try:
        failed = _run(left.specs, RowStore(store), workers, console)
    except KeyboardInterrupt:
        console.print(
            f"Interrupted. Finished rows are kept in {store}; run the same command again to go on.",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    if failed:
        console.print(
            f"{failed} of {len(left.specs)} fits failed; run the same command again to try them again.",
            highlight=False,
        )
        raise typer.Exit(1)


@bench_app.command("show")
@reported
def show(
    folder: Annotated[Path, typer.Argument(help="The folder given to --store.", metavar="DIR")],
    as_json: Annotated[bool, typer.Option("--json", help="Every row, as a JSON list.")] = False,
    rows: Annotated[bool, typer.Option("--rows", help="Also a line a fit.")] = False,
) -> None:
    """Show mean and standard deviation over seeds for each cell of a store."""
    from bgmiv.bench.store import RowStore

    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is not a folder; name the one given to --store", param_hint="DIR")
    found = RowStore(folder).rows()
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in found], indent=2, allow_nan=False))
        return
    if not found:
        typer.echo(f"No rows in {folder} yet; bgmiv bench run --store {folder} makes them.")
        return

    console = _wide_console()
    for (design, preset), members in _groups(found).items():
        console.print(_cell_table(f"{design}, preset {preset}", members))
        if rows:
            console.print(_row_table(members))
    for row in found:
        if row.status != "ok":
            console.print(f"{_label(row.spec)} failed: {row.error}", markup=False, highlight=False, soft_wrap=True)


def _plan(
    design: str, n: list[str], rho: list[str], methods: list[str], preset: str, repeats: int, seed: int
) -> tuple[RunSpec, ...]:
    sizes = numbers(n, int, "--n", "a whole number")
    levels = numbers(rho, float, "--rho", "a number")
    names = words(methods)
    if not names:
        raise typer.BadParameter("name at least one method", param_hint="--methods")

    from bgmiv.bench.plan import make_plan
    from bgmiv.designs import make_design
    from bgmiv.designs.base import check_draw
    from bgmiv.estimators.registry import make_estimator

    with blaming("--design"):
        make_design(design)
    with blaming("--n"):
        for size in sizes:
            check_draw(size, 0.0, seed)
    with blaming("--rho"):
        for level in levels:
            check_draw(sizes[0], level, seed)
    with blaming("--preset"):
        make_estimator("tsls", preset)
    with blaming("--methods"):
        return make_plan(design=design, n=sizes, rho=levels, methods=names, preset=preset, repeats=repeats, seed=seed)


def _run(specs: Sequence[RunSpec], store: RowStore, workers: int, console: Console) -> int:
    """Run them all; how many failed."""
    from bgmiv.bench.runner import run_plan
    from bgmiv.cli.board import FitBoard

    failed = 0
    labels = [_label(spec) for spec in specs]
    with FitBoard(console, labels, total=True) as board:
        for row in run_plan(specs, store, workers, board):
            failed += row.status != "ok"
            result = f"{row.structural_mse:,.1f}" if row.structural_mse is not None else f"failed: {row.error}"
            board.done(specs.index(row.spec), f"{_label(row.spec)}: {result} ({row.seconds:.1f} s)")
    return failed


def _label(spec: RunSpec) -> str:
    return f"{spec.design} n={spec.n} rho={spec.rho:g} {spec.method} seed {spec.seed}"


def _wide_console() -> Console:
    from rich.console import Console

    console = Console()
    # A file or a pipe has no width of its own; a narrow guess would cut numbers off.
    return console if console.is_terminal else Console(width=max(console.width, 120))


def _groups(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.design, row.preset), []).append(row)
    return groups


def _table(title: str, *columns: str) -> Table:
    from rich.table import Table

    # No box and narrow gaps: the widest row must fit a terminal of 80 columns.
    table = Table(title=f"\n{title}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for position, name in enumerate(columns):
        table.add_column(name, justify="left" if position == 0 else "right", no_wrap=True)
    return table


def _cell_table(name: str, rows: Sequence[Row]) -> Table:
    from bgmiv.bench.summary import summarise

    table = _table(
        f"{name}: structural error (MSE / 1e4), mean ± deviation over seeds",
        *("method", "n", "rho", "ok", "all", "inside", "outside", "sec", "CPU s"),
    )
    for cell in summarise(rows):
        inside, outside = (part.scaled(1e-4) for part in (cell.in_support, cell.outside))
        table.add_row(
            cell.method,
            str(cell.n),
            f"{cell.rho:g}",
            f"{cell.fits - cell.failed}/{cell.fits}",
            str(cell.all.scaled(1e-4)),
            *("-" if part.values == 0 else f"{part.mean:.4f}" for part in (inside, outside)),
            *("-" if part.values == 0 else f"{part.mean:.1f}" for part in (cell.seconds, cell.cpu_seconds)),
        )
    return table


def _row_table(rows: Sequence[Row]) -> Table:
    table = _table(
        "each fit, on the raw scale", *("method", "n", "rho", "seed", "all", "inside", "outside", "sec", "CPU s")
    )
    for row in rows:
        errors = (row.structural_mse, row.structural_mse_in_support, row.structural_mse_outside)
        table.add_row(
            row.method,
            str(row.n),
            f"{row.rho:g}",
            str(row.seed),
            *("failed" if value is None else f"{value:,.1f}" for value in errors),
            f"{row.seconds:.1f}",
            f"{row.cpu_seconds:.1f}",
        )
    return table
