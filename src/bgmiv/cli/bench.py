"""`bgmiv bench`: run fits on designs whose truth is known, and show, report and look after their stored rows."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bgmiv.cli.options import INTERRUPTED, at_least, bad, blaming, echo, numbers, reported, usable_folder, words
from bgmiv.errors import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd
    from rich.console import Console
    from rich.table import Table

    from bgmiv.bench.plan import Plan, RunKey
    from bgmiv.bench.store import Row, RowStore, StoreState
    from bgmiv.executors import Executor

__all__ = ["gc", "merge", "plans", "report", "run", "show", "status"]

Folder = Annotated[Path, typer.Argument(help="The folder given to --store.", metavar="DIR")]


@reported
def run(
    store: Annotated[Path, typer.Option(help="Folder for the rows; made if absent.")],
    plan: Annotated[
        str | None,
        typer.Argument(help="A ready plan (bgmiv bench plans) or a TOML file; without it the options say all."),
    ] = None,
    design: Annotated[list[str] | None, typer.Option(help="Designs: repeat it or list them; demand.")] = None,
    n: Annotated[list[str] | None, typer.Option(help="Sample sizes, 1000,5000; with a plan: only these.")] = None,
    rho: Annotated[list[str] | None, typer.Option(help="Confounding levels; with a plan: only these.")] = None,
    methods: Annotated[list[str] | None, typer.Option(help="Methods, bgm-iv,tsls; with a plan: only these.")] = None,
    preset: Annotated[list[str] | None, typer.Option(help="Presets, default,paper; with a plan: only these.")] = None,
    repeats: Annotated[int | None, typer.Option(help="Fits a cell; with a plan: at most this many.")] = None,
    seed: Annotated[int | None, typer.Option(help="The first seed, without a plan; 0.")] = None,
    fraction: Annotated[float, typer.Option(help="Share of a plan's repeats, rounded up.")] = 1.0,
    workers: Annotated[int | None, typer.Option(help="Processes at once, 1; 0 runs in this one.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of each process; 1.")] = None,
    executor: Annotated[str, typer.Option(help="local, or ray for a cluster.")] = "local",
    address: Annotated[str | None, typer.Option(help="Address of the Ray cluster; auto finds a running one.")] = None,
    cpus: Annotated[float, typer.Option(help="CPUs a fit asks Ray for.")] = 1.0,
    gpus: Annotated[float, typer.Option(help="GPUs a fit asks Ray for.")] = 0.0,
    any_version: Annotated[bool, typer.Option(help="Count rows of other algorithm versions as done.")] = False,
) -> None:
    """Run fits and store one row each. The same command resumes: rows that exist are kept."""
    for option, minimum, given in (
        ("--workers", 0, workers),
        ("--threads", 1, threads),
        ("--repeats", 1, repeats),
        ("--seed", 0, seed),
    ):
        if given is not None:
            at_least(minimum, given, option)
    lists = {"--design": design, "--n": n, "--rho": rho, "--preset": preset, "--methods": methods}
    wanted = _chosen_plan(plan, lists, repeats, seed, fraction)
    where = _executor(executor, workers, threads, address, cpus, gpus)
    usable_folder(store, "--store")

    from rich.console import Console

    from bgmiv.bench.evaluate import run_plan
    from bgmiv.bench.plan import identify
    from bgmiv.bench.store import RowStore
    from bgmiv.progress import FitBoard

    console = Console(stderr=True)
    rows = RowStore(store)
    rows.keep_plan(wanted)
    keys = [identify(spec) for spec in wanted.specs]
    state = rows.state(keys)
    if any_version:
        known = {row.spec for row in state.other if row.status == "ok"}
        state = rows.state(key for key in keys if key.spec not in known)
    _announce(len(keys), state, console, any_version=any_version)
    left = [key for key in keys if key in set(state.left)]
    failed = 0
    try:
        with FitBoard(console, len(left)) as board:
            for row, ours in run_plan(left, rows, where):
                failed += row.status != "ok"
                result = f"{row.structural_mse:,.1f}" if row.structural_mse is not None else f"failed: {row.error}"
                how = f"{row.seconds:.1f} s" if ours else "by another runner"
                board.done(f"{row.spec}: {result} ({how})", failed=row.status != "ok")
    except KeyboardInterrupt:
        _say(console, f"Interrupted. Finished rows are kept in {store}; run the same command again to go on.")
        raise typer.Exit(INTERRUPTED) from None
    if failed:
        _say(console, f"{failed} of {len(left)} fits failed; run the same command again to try them again.")
        raise typer.Exit(1)


@reported
def plans(
    store: Annotated[
        Path | None, typer.Option(help="Say what of each plan is missing there, and what it costs.")
    ] = None,
) -> None:
    """List the plans that come with the package; with a store, the fits missing and the CPU-hours they need.

    Hours are of one processor of the machine that made the store's rows, from their times; fits of which no row tells
    are counted beside. Fits under the paper's settings and by default presets are listed apart.
    """
    from bgmiv.bench.plan import load_plan, ready_plans

    if store is None:
        for name in ready_plans():
            plan = load_plan(name)
            echo(f"{name:16} {len(plan.specs):6} fits  {plan.title}")
        return
    from bgmiv.bench.show import filled, read_rows

    frame = read_rows(_opened(store).rows())
    table = _table("plans", "plan", "presets", "fits", "done", "missing", "CPU-hours", "no estimate for")
    for name in ready_plans():
        for one in filled(frame, load_plan(name).specs):
            counts = (one.fits, one.done, one.missing, f"{one.hours:.3g}", one.unknown)
            table.add_row(name, one.family, *map(str, counts))
    _wide_console().print(table)


@reported
def status(
    folder: Folder,
    plan: Annotated[str | None, typer.Option(help="A ready plan or a TOML file; else the plans run into it.")] = None,
) -> None:
    """Show the progress of a store: what is done or running, and what failed, is missing or is damaged."""
    from bgmiv.bench.plan import identify, load_plan

    store = _opened(folder)
    with blaming("--plan"):
        wanted = (load_plan(plan),) if plan else store.plans()
    if not wanted:
        echo(f"{len(store.contents().rows)} rows in {folder}, and no plan: name one with --plan.")
    console = _wide_console()
    for each in wanted:
        console.print(_status_table(each, [identify(spec) for spec in each.specs], store))
    state = store.state(identify(spec) for each in wanted for spec in each.specs)
    for row in state.failed:
        _say(console, f"failed: {row.spec}: {row.error}")
    for message in state.damaged:
        _say(console, f"damaged: {message}")
    if state.other:
        _say(console, f"{len(state.other)} rows come from other algorithm versions.")


@reported
def show(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="Every row, as a JSON list.")] = False,
    rows: Annotated[bool, typer.Option("--rows", help="Also a line a fit.")] = False,
) -> None:
    """Show mean and standard deviation over seeds for each cell of a store."""
    found = _opened(folder).rows()
    if as_json:
        echo(json.dumps([asdict(row) for row in found], indent=2, allow_nan=False))
        return
    if not found:
        echo(f"No rows in {folder} yet; bgmiv bench run --store {folder} makes them.")
        return
    from bgmiv.bench.show import Summary, read_rows

    console = _wide_console()
    for (design, preset), cells in Summary(read_rows(found)).to_frame().groupby(["design", "preset"], sort=False):
        console.print(_cell_table(design, preset, cells))
        if rows:
            console.print(_row_table([row for row in found if (row.design, row.preset) == (design, preset)]))
    for row in found:
        if row.status != "ok":
            _say(console, f"{row.spec} failed: {row.error}")
    if twice := sum(count > 1 for count in Counter(row.spec for row in found).values()):
        _say(
            console,
            f"{twice} fits have rows of more than one algorithm version; means use one of them, today's if any. "
            "bgmiv bench gc --other-versions removes the old ones.",
        )


@reported
def report(
    folder: Folder, out: Annotated[Path, typer.Option(help="Folder for the table and the figures; made if absent.")]
) -> None:
    """Write the table of a store, as CSV and LaTeX, and a figure of each design, as PNG and PDF."""
    store = _opened(folder)
    usable_folder(out, "--out")

    from io import BytesIO

    from bgmiv._io import safe_name, write_whole
    from bgmiv.bench.show import Summary, error_figure, read_rows

    frame = read_rows(store.rows())
    if frame.empty:
        echo(f"No rows in {folder} yet, so there is nothing to report; bgmiv bench run makes them.", err=True)
        raise typer.Exit(1)
    table = Summary(frame)
    table.to_csv(out / "table.csv")
    files = {"table.tex": table.to_latex().encode()}
    for design in frame["design"].unique():
        figure = error_figure(frame, design)
        for kind in ("png", "pdf"):
            figure.savefig(content := BytesIO(), format=kind, dpi=150)
            files[f"{safe_name(design)}.{kind}"] = content.getvalue()
    for name, written in files.items():
        write_whole(out / name, written)
    for name in ("table.csv", *files):
        echo(f"wrote {out / name}")


@reported
def gc(
    folder: Folder,
    other_versions: Annotated[bool, typer.Option(help="Also rows of other algorithm versions.")] = False,
    failed: Annotated[bool, typer.Option(help="Also rows of failed fits.")] = False,
) -> None:
    """Remove what crashes left behind: temporary files, locks, damaged lines."""
    store = _opened(folder)
    echo(f"{store.clean()} damaged lines removed.")
    if foreign := store.contents().damaged:
        echo(f"{len(foreign)} lines of another version are kept.")
    if other_versions:
        echo(f"{store.clean(lambda row: not _is_current(row))} rows of other versions removed.")
    if failed:
        echo(f"{store.clean(lambda row: row.status != 'ok')} failed rows removed.")


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
        added = into.merge(source)
        echo(f"{source.folder}: {added} rows added, {len(source.rows()) - added} were there already.")


def _chosen_plan(
    plan: str | None, lists: Mapping[str, list[str] | None], repeats: int | None, seed: int | None, fraction: float
) -> Plan:
    """The plan that the options of `run` stand for; the error for a bad one names its option."""
    chosen: dict[str, Any] = {option: words(values) for option, values in lists.items() if values}
    for option, convert, kind in (("--n", int, "a whole number"), ("--rho", float, "a number")):
        if option in chosen:
            chosen[option] = numbers(chosen[option], convert, option, kind)
    if chosen.get("--methods") == []:
        raise bad("name at least one method", "--methods")

    from bgmiv.bench.plan import Plan, Sweep, load_plan

    names = {"--design": "designs", "--n": "n", "--rho": "rho", "--preset": "presets", "--methods": "methods"}
    if plan is None:
        sweep = Sweep(["demand"], [1000], [0.5], ["bgm-iv"], repeats=repeats or 1, seed=seed or 0)
        for option, values in chosen.items():
            with blaming(option):
                sweep = replace(sweep, **{names[option]: values})
        whole = Plan("options", "from the command line", (sweep,))
    else:
        for option, given in (("--design", chosen.get("--design")), ("--seed", seed)):
            if given is not None:
                raise bad("the plan sets it; leave it out, or run without a plan", option)
        with blaming("PLAN"):
            whole = load_plan(plan)
        for option, values in chosen.items():
            with blaming(option):
                whole = whole.part(**{names[option]: values})
        whole = whole.part(repeats=repeats)
    with blaming("--fraction"):
        return whole.part(fraction=fraction)


def _executor(
    name: str, workers: int | None, threads: int | None, address: str | None, cpus: float, gpus: float
) -> Executor:
    from bgmiv.executors import InProcess, LocalPool, RayCluster

    if name == "ray":
        if workers is not None or threads is not None:
            raise bad("Ray decides that by --cpus; leave it out", "--workers, --threads")
        with blaming("--address, --cpus, --gpus"):
            return RayCluster(address=address, cpus=cpus, gpus=gpus)
    if name != "local":
        raise bad(f"there is no executor {name!r}; choose local or ray", "--executor")
    if address is not None:
        raise bad("an address belongs to --executor ray", "--address")
    return InProcess() if workers == 0 else LocalPool(workers or 1, threads or 1)


def _announce(total: int, state: StoreState, console: Console, *, any_version: bool) -> None:
    for message in state.damaged:
        _say(console, f"Warning: {message}; if this plan has the run, it is run again.")
    if state.other:
        _say(
            console,
            f"Warning: {len(state.other)} rows of this plan come from other algorithm versions. They are kept and not "
            "counted; --any-version counts them, and bgmiv bench gc --other-versions removes them.",
        )
    left = len(state.left)
    accepted = " (rows of any version count)" if any_version else ""
    elsewhere = f", {len(state.running)} of them running elsewhere" if state.running else ""
    _say(console, f"{total} fits: {total - left} done before{accepted}, {left} to run{elsewhere}.")


def _say(console: Console, text: str) -> None:
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def _opened(folder: Path) -> RowStore:
    from bgmiv.bench.store import RowStore

    if not folder.is_dir():
        raise bad(f"{folder} is not a folder; name the one given to --store", "DIR")
    return RowStore(folder)


def _is_current(row: Row) -> bool:
    from bgmiv.bench.plan import identify
    from bgmiv.errors import ConfigError

    try:
        return identify(row.spec) == row.key
    except ConfigError:
        return False


def _wide_console() -> Console:
    from rich.console import Console

    console = Console()
    # A file or a pipe has no width of its own; a narrow guess would cut numbers off.
    return console if console.is_terminal else Console(width=max(console.width, 120))


def _table(title: str, *columns: str) -> Table:
    from rich.table import Table

    # No box and narrow gaps: the widest row must fit a terminal of 80 columns.
    table = Table(title=printable(f"\n{title}"), title_justify="left", box=None, padding=(0, 2, 0, 0))
    for position, name in enumerate(columns):
        table.add_column(name, justify="left" if position == 0 else "right", no_wrap=True)
    return table


def _status_table(plan: Plan, keys: Sequence[RunKey], store: RowStore) -> Table:
    table = _table(f"{plan.name}: {plan.title}", "cell", "planned", "done", "running", "failed", "missing")
    state = store.state(keys)
    parts = (keys, state.done, state.running, state.failed, state.missing)
    counts = [Counter(each.spec.cell for each in part) for part in parts]
    for cell in counts[0]:
        design, size, level, method, preset = cell
        name = f"{design} n={size} rho={level:g} {method} ({preset})"
        table.add_row(printable(name), *(str(count[cell]) for count in counts))
    table.add_row("all", *(str(len(part)) for part in parts))
    return table


def _cell_table(design: str, preset: str, cells: pd.DataFrame) -> Table:
    from bgmiv.bench.show import unit_text

    table = _table(
        f"{design}, preset {preset}: {unit_text(design)}, mean ± standard deviation over seeds",
        *("method", "n", "rho", "ok", "all", "inside", "outside", "sec", "CPU s"),
    )
    for cell in cells.itertuples():
        error = f"{cell.mean:.4f} ± {cell.sd:.4f}" if cell.sd == cell.sd else f"{cell.mean:.4f}"
        parts = (f"{cell.inside:.4f}", f"{cell.outside:.4f}", f"{cell.seconds:.1f}", f"{cell.cpu_seconds:.1f}")
        texts = ("-" if text == "nan" else text for text in (error, *parts))
        done = f"{cell.fits - cell.failed}/{cell.fits}"
        table.add_row(printable(cell.method), str(cell.n), f"{cell.rho:g}", done, *texts)
    return table


def _row_table(rows: Sequence[Row]) -> Table:
    table = _table(
        "each fit, on the raw scale", *("method", "n", "rho", "seed", "all", "inside", "outside", "sec", "CPU s")
    )
    for row in rows:
        errors = (row.structural_mse, row.structural_mse_in_support, row.structural_mse_outside)
        table.add_row(
            *(printable(row.method), str(row.n), f"{row.rho:g}", str(row.seed)),
            *("failed" if row.status != "ok" else "-" if value is None else f"{value:,.1f}" for value in errors),
            *(f"{row.seconds:.1f}", f"{row.cpu_seconds:.1f}"),
        )
    return table
