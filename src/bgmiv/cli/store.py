"""``bgmiv bench status``, ``show``, ``gc`` and ``merge``: what a store of rows holds, and its upkeep."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bgmiv.cli.common import blaming, reported, usable_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from bgmiv.bench.identity import RunKey
    from bgmiv.bench.plan import Plan
    from bgmiv.bench.row import Row
    from bgmiv.bench.store import RowStore

__all__ = ["gc", "merge", "show", "status"]

Folder = Annotated[Path, typer.Argument(help="The folder given to --store.", metavar="DIR")]


@reported
def status(
    folder: Folder,
    plan: Annotated[str | None, typer.Option(help="A ready plan or a TOML file; else the plans run into it.")] = None,
) -> None:
    """Say what of its plans a store has, what is running, and what failed, is missing or is damaged."""
    from bgmiv.bench.identity import identify_all
    from bgmiv.bench.plan import load_plan

    store = _opened(folder)
    with blaming("--plan"):
        wanted = (load_plan(plan),) if plan else store.plans()
    if not wanted:
        typer.echo(f"{len(store.contents().rows)} rows in {folder}, and no plan: name one with --plan.")
    console = _wide_console()
    for each in wanted:
        console.print(_status_table(each, identify_all(each.specs), store))
    state = store.state(identify_all(spec for each in wanted for spec in each.specs))
    for row in state.failed:
        console.print(f"failed: {row.spec}: {row.error}", markup=False, highlight=False, soft_wrap=True)
    for message in state.damaged:
        console.print(f"damaged: {message}", markup=False, highlight=False, soft_wrap=True)
    for code, count in sorted(Counter(row.code for row in state.other).items()):
        console.print(
            f"{count} rows come from another version of the code or settings (code {code[:8]}).", highlight=False
        )


@reported
def show(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="Every row, as a JSON list.")] = False,
    rows: Annotated[bool, typer.Option("--rows", help="Also a line a fit.")] = False,
) -> None:
    """Show mean and standard deviation over seeds for each cell of a store."""
    found = _opened(folder).rows()
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
            console.print(f"{row.spec} failed: {row.error}", markup=False, highlight=False, soft_wrap=True)
    mixed = Counter(row.spec for row in found)
    twice = sum(count > 1 for count in mixed.values())
    if twice:
        console.print(
            f"{twice} fits have rows of more than one version of the code; all are counted above. "
            "bgmiv bench gc --other-versions removes the old ones.",
            highlight=False,
            soft_wrap=True,
        )


@reported
def gc(
    folder: Folder,
    other_versions: Annotated[
        bool, typer.Option(help="Also rows made by other versions of the code or settings.")
    ] = False,
    failed: Annotated[bool, typer.Option(help="Also rows of failed fits.")] = False,
) -> None:
    """Remove what crashes left behind: temporary files, ended leases, damaged files."""
    from bgmiv.bench.files import is_whole
    from bgmiv.bench.identity import identify

    store = _opened(folder)
    stray = store.sweep()
    contents = store.contents()
    rows = [path for path, _ in contents.damaged if not is_whole(path)]
    plans = store.damaged_plans()
    store.remove([*rows, *plans])
    typer.echo(f"{len(stray)} temporary files, {len(rows)} damaged rows and {len(plans)} damaged plans removed.")
    foreign = len(contents.damaged) - len(rows)
    if foreign:
        typer.echo(f"{foreign} rows in the format of another version are kept.")
    if other_versions:
        old = [row for row in contents.rows if not _is_current(row, identify)]
        typer.echo(f"{store.remove(store.path(row.key) for row in old)} rows of other versions removed.")
    if failed:
        lost = [row for row in contents.rows if row.status != "ok"]
        typer.echo(f"{store.remove(store.path(row.key) for row in lost)} failed rows removed.")


@reported
def merge(
    target: Annotated[Path, typer.Argument(help="The store that takes the rows; made if absent.")],
    sources: Annotated[list[Path], typer.Argument(help="Stores whose rows it takes.")],
) -> None:
    """Copy rows and plans of other stores into one; a run with two different results is refused."""
    from bgmiv.bench.store import RowStore

    opened = [_opened(source) for source in sources]
    into = RowStore(usable_folder(target, "TARGET"))
    for source in opened:
        merged = into.merge(source)
        typer.echo(f"{source.folder}: {merged.added} rows added, {merged.present} were there already.")


def _opened(folder: Path) -> RowStore:
    from bgmiv.bench.store import RowStore

    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is not a folder; name the one given to --store", param_hint="DIR")
    return RowStore(folder)


def _is_current(row: Row, identify: object) -> bool:
    from bgmiv.errors import ConfigError

    try:
        return identify(row.spec) == row.key  # type: ignore[operator]
    except ConfigError:
        return False


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


def _status_table(plan: Plan, keys: Sequence[RunKey], store: RowStore) -> Table:
    table = _table(f"{plan.name}: {plan.title}", "cell", "planned", "done", "running", "failed", "missing")
    cells: dict[tuple[str, int, float, str, str], list[RunKey]] = {}
    for key in keys:
        cells.setdefault(key.spec.cell, []).append(key)
    state = store.state(keys)
    done, failed = (Counter(row.spec.cell for row in rows) for rows in (state.done, state.failed))
    running, missing = (Counter(key.spec.cell for key in part) for part in (state.running, state.missing))
    for cell, members in cells.items():
        design, size, level, method, preset = cell
        table.add_row(
            f"{design} n={size} rho={level:g} {method} ({preset})",
            *(str(count) for count in (len(members), done[cell], running[cell], failed[cell], missing[cell])),
        )
    table.add_row(
        "all",
        *(
            str(count)
            for count in (len(keys), len(state.done), *map(len, (state.running, state.failed, state.missing)))
        ),
    )
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
            *("failed" if row.status != "ok" else "-" if value is None else f"{value:,.1f}" for value in errors),
            f"{row.seconds:.1f}",
            f"{row.cpu_seconds:.1f}",
        )
    return table
