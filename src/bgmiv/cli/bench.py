"""`bgmiv bench`: run fits on designs whose truth is known, and show, report and look after their stored rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from bgmiv.cli.shared import (
    Listed,
    choice,
    echo,
    naming_option,
    option_error,
    print_json,
    print_table,
    split_commas,
    usable_folder,
)
from bgmiv.executors import Executor, InProcess, LocalPool, RayCluster

if TYPE_CHECKING:
    from bgmiv.bench.plan import Plan
    from bgmiv.bench.store import RowStore, StoreState
__all__ = ["gc", "merge", "plans", "report", "run", "show", "status"]

Folder = Annotated[Path, Argument(help="The folder given to --store.", metavar="DIR")]


def run(
    store: Annotated[Path, Option(help="Folder for the rows; made if absent.")],
    plan: Annotated[
        str | None, Argument(help="A ready plan (bgmiv bench plans) or a TOML file; without it the options say all.")
    ] = None,
    design: Annotated[Listed, Option(help="Designs: repeat it or list them; demand.")] = None,
    n: Annotated[Listed, Option(help="Sample sizes, 1000,5000; with a plan: only these.")] = None,
    rho: Annotated[Listed, Option(help="Confounding levels; with a plan: only these.")] = None,
    methods: Annotated[Listed, Option(help="Methods, bgm-iv,tsls; with a plan: only these.")] = None,
    preset: Annotated[Listed, Option(help="Presets, default,paper; with a plan: only these.")] = None,
    repeats: Annotated[int | None, Option(help="Fits a cell; with a plan: at most this many.", min=1)] = None,
    seed: Annotated[int | None, Option(help="The first seed, without a plan; 0.", min=0)] = None,
    workers: Annotated[int | None, Option(help="Processes at once, 1; 0 runs in this one.", min=0)] = None,
    executor: Annotated[str, Option(help="local, or ray for a cluster.", **choice(("local", "ray")))] = "local",
    address: Annotated[str | None, Option(help="Address of the Ray cluster; auto finds a running one.")] = None,
    cpus: Annotated[float, Option(help="CPUs a fit asks Ray for.")] = 1.0,
    gpus: Annotated[float, Option(help="GPUs a fit asks Ray for.")] = 0.0,
) -> None:
    """Run fits and store one row each. The same command resumes: rows that exist are kept."""
    lists = {"designs": design, "n": n, "rho": rho, "presets": preset, "methods": methods}
    wanted = _chosen_plan(plan, lists, repeats, seed)
    where = _executor(executor, workers, address, cpus, gpus)
    usable_folder(store, "--store")

    from bgmiv.bench.evaluate import run_plan
    from bgmiv.bench.store import RowStore

    rows = RowStore(store)
    rows.keep_plan(wanted)
    state = rows.state(wanted.keys)
    _echo_problems(state)
    left = len(state.left)
    elsewhere = f", {len(state.running)} of them running elsewhere" if state.running else ""
    echo(f"{len(state.done) + left} fits: {len(state.done)} done before, {left} to run{elsewhere}.", err=True)
    failed = 0
    try:
        for number, (row, ours) in enumerate(run_plan(state.left, rows, where), start=1):
            failed += row.status != "ok"
            result = f"failed: {row.error}" if row.structural_mse is None else f"{row.structural_mse:,.1f}"
            maker = f"{row.seconds:.1f} s" if ours else "by another runner"
            echo(f"  {number} of {left}: {row.spec}: {result} ({maker})", err=True)
    except KeyboardInterrupt:
        advice = f"Interrupted. Finished rows are kept in {store}; run the same command again to go on."
        raise KeyboardInterrupt(advice) from None
    if failed:
        echo(f"{failed} of {left} fits failed; run the same command again to try them again.", err=True)
        raise Exit(1)


def plans() -> None:
    """List the plans that come with the package; bgmiv bench status --plan says what of one is missing in a store."""
    from bgmiv.bench.plan import load_plan, ready_plans

    for name in ready_plans():
        plan = load_plan(name)
        echo(f"{name:16} {len(plan.specs):6} fits  {plan.title}")


def status(
    folder: Folder,
    plan: Annotated[str | None, Option(help="A ready plan or a TOML file; else the plans run into it.")] = None,
) -> None:
    """Show the progress of a store: what is done or running, and what failed, is missing or is damaged."""
    from bgmiv.bench.plan import load_plan

    store = _opened(folder)
    with naming_option("--plan"):
        wanted = (load_plan(plan),) if plan else store.plans()
    if not wanted:
        echo(f"{len(store.contents().rows)} rows in {folder}, and no plan: name one with --plan.")
    for each in wanted:
        _print_status(each, store)
    state = store.state(key for each in wanted for key in each.keys)
    for row in state.failed:
        echo(f"failed: {row.spec}: {row.error}")
    _echo_problems(state)


def show(folder: Folder, as_json: Annotated[bool, Option("--json", help="Every row, as a JSON list.")] = False) -> None:
    """Show mean and standard deviation over seeds for each cell of a store."""
    stored = _opened(folder).rows()
    if as_json:
        print_json(stored)
        return
    if not stored:
        echo(f"No rows in {folder} yet; bgmiv bench run --store {folder} makes them.")
        return
    from bgmiv.bench.show import Summary, read_rows, unit_text

    names = ["method", "n", "rho", "fits", "failed", "mean", "sd", "inside", "outside", "seconds", "outdated"]
    for (design, preset), cells in Summary(read_rows(stored)).to_frame().groupby(["design", "preset"], sort=False):
        title = f"{design}, preset {preset}: {unit_text(design)}, over seeds"
        print_table(title, names, cells[names].itertuples(index=False))
    for row in stored:
        if row.status != "ok":
            echo(f"{row.spec} failed: {row.error}")


def report(
    folder: Folder, out: Annotated[Path, Option(help="Folder for the table and the figures; made if absent.")]
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
        raise Exit(1)
    table = Summary(frame)
    table.to_csv(out / "table.csv")
    write_whole(out / "table.tex", table.to_latex().encode())
    names = ["table.csv", "table.tex"]
    for design in frame["design"].unique():
        figure = error_figure(frame, design)
        for kind in ("png", "pdf"):
            figure.savefig(content := BytesIO(), format=kind, dpi=150)
            names.append(f"{safe_name(design)}.{kind}")
            write_whole(out / names[-1], content.getvalue())
    for name in names:
        echo(f"wrote {out / name}")


def gc(
    folder: Folder,
    other_versions: Annotated[bool, Option(help="Also rows of other algorithm versions.")] = False,
    failed: Annotated[bool, Option(help="Also rows of failed fits.")] = False,
) -> None:
    """Remove what crashes left behind: temporary files, locks, damaged lines."""
    from bgmiv.bench.plan import todays_key

    store = _opened(folder)
    echo(f"{store.clean()} damaged lines removed.")
    if other_versions:
        echo(f"{store.clean(lambda row: row.key != todays_key(row.spec))} rows of other versions removed.")
    if failed:
        echo(f"{store.clean(lambda row: row.status != 'ok')} failed rows removed.")


def merge(
    target: Annotated[Path, Argument(help="The store that takes the rows; made if absent.")],
    sources: Annotated[list[Path], Argument(help="Stores whose rows it takes.")],
) -> None:
    """Copy rows and plans of other stores into one; a run with two different results is refused."""
    from bgmiv.bench.store import RowStore

    opened = [_opened(source) for source in sources]
    into = RowStore(usable_folder(target, "TARGET"))
    for source in opened:
        added = into.merge(source)
        echo(f"{source.folder}: {added} rows added, {len(source.rows()) - added} were there already.")


def _chosen_plan(plan: str | None, lists: Mapping[str, Listed], repeats: int | None, seed: int | None) -> Plan:
    """The plan that the options of `run` stand for; the error for a bad one names what it is about."""
    from bgmiv.bench.plan import Plan, Sweep, load_plan

    given: dict[str, Any] = {
        name: [_number(text) for text in split_commas(texts)] for name, texts in lists.items() if texts
    }
    if plan is None:
        usual: dict[str, Any] = {"designs": ["demand"], "n": [1000], "rho": [0.5], "methods": ["bgm-iv"]}
        with naming_option("--design, --n, --rho, --methods, --preset"):
            sweep = Sweep(**usual | given, repeats=repeats or 1, seed=seed or 0)
        return Plan("options", "from the command line", (sweep,))
    for option, value in (("--design", lists["designs"]), ("--seed", seed)):
        if value not in (None, []):
            raise option_error("the plan sets it; leave it out, or run without a plan", option)
    with naming_option("PLAN, --n, --rho, --methods, --preset"):
        return load_plan(plan).part(repeats=repeats, **given)


def _number(text: str) -> int | float | str:
    """A number if it reads as one; what must be a number is checked with the plan."""
    for convert in (int, float):
        with suppress(ValueError):
            return convert(text)
    return text


def _executor(name: str, workers: int | None, address: str | None, cpus: float, gpus: float) -> Executor:
    if name == "ray":
        if workers is not None:
            raise option_error("Ray decides that by --cpus; leave it out", "--workers")
        with naming_option("--address, --cpus, --gpus"):
            return RayCluster(address=address, cpus=cpus, gpus=gpus)
    if address is not None:
        raise option_error("an address belongs to --executor ray", "--address")
    return InProcess() if workers == 0 else LocalPool(workers or 1)


def _echo_problems(state: StoreState) -> None:
    for message in state.damaged:
        echo(f"damaged: {message}; if a plan has the run, it is run again.", err=True)
    if state.other:
        echo(
            f"{len(state.other)} rows come from other algorithm versions. They are kept and not counted; "
            "bgmiv bench gc --other-versions removes them.",
            err=True,
        )


def _opened(folder: Path) -> RowStore:
    from bgmiv.bench.store import RowStore

    if not folder.is_dir():
        raise option_error(f"{folder} is not a folder; name the one given to --store", "DIR")
    return RowStore(folder)


def _print_status(plan: Plan, store: RowStore) -> None:
    state = store.state(plan.keys)
    parts: tuple[list[Any], ...] = (plan.keys, state.done, state.running, state.failed, state.missing)
    counts = [Counter(each.spec.cell for each in part) for part in parts]
    lines: list[tuple[object, ...]] = []
    for cell in counts[0]:
        design, size, level, method, preset = cell
        lines.append((f"{design} n={size} rho={level:g} {method} ({preset})", *(count[cell] for count in counts)))
    lines.append(("all", *map(len, parts)))
    print_table(f"{plan.name}: {plan.title}", ("cell", "planned", "done", "running", "failed", "missing"), lines)
