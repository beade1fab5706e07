"""``bgmiv bench run`` and ``bgmiv bench plans``: run fits on designs whose truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bgmiv.cli.common import INTERRUPTED, at_least, blaming, numbers, reported, usable_folder, words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from bgmiv.bench.executors import Executor
    from bgmiv.bench.identity import RunKey
    from bgmiv.bench.plan import Plan, Sweep
    from bgmiv.bench.store import RowStore, StoreState

__all__ = ["chosen_plan", "plans", "run"]


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
    batch: Annotated[int, typer.Option(help="Repeats of a cell trained together, where a method can.")] = 1,
    executor: Annotated[str, typer.Option(help="local, or ray for a cluster.")] = "local",
    address: Annotated[str | None, typer.Option(help="Of the Ray cluster; auto finds a running one.")] = None,
    cpus: Annotated[float, typer.Option(help="CPUs a fit asks Ray for.")] = 1.0,
    gpus: Annotated[float, typer.Option(help="GPUs a fit asks Ray for.")] = 0.0,
    any_version: Annotated[bool, typer.Option(help="Count rows made by other versions of the code as done.")] = False,
) -> None:
    """Run fits and store one row each. Run it again to go on: rows that are there already are kept."""
    at_least(0, 0 if workers is None else workers, "--workers")
    at_least(1, 1 if threads is None else threads, "--threads")
    at_least(1, batch, "--batch")
    wanted = chosen_plan(plan, design, n, rho, methods, preset, repeats, seed, fraction)
    where = _executor(executor, workers, threads, address, cpus, gpus)
    usable_folder(store, "--store")

    from rich.console import Console

    from bgmiv.bench.identity import identify_all
    from bgmiv.bench.store import RowStore

    console = Console(stderr=True)
    rows = RowStore(store)
    rows.sweep()
    rows.keep_plan(wanted)
    keys = identify_all(wanted.specs)
    state = rows.state(keys)
    if any_version:
        known = {row.spec for row in state.other if row.status == "ok"}
        keys = tuple(key for key in keys if key.spec not in known)
        state = rows.state(keys)
    _announce(len(wanted.specs), state, console, any_version=any_version)
    try:
        left = set(state.left)
        failed = _run([key for key in keys if key in left], rows, where, batch, console)
    except KeyboardInterrupt:
        _say(console, f"Interrupted. Finished rows are kept in {store}; run the same command again to go on.")
        raise typer.Exit(INTERRUPTED) from None
    if failed:
        _say(console, f"{failed} of {len(state.left)} fits failed; run the same command again to try them again.")
        raise typer.Exit(1)


@reported
def plans() -> None:
    """List the plans that come with the package."""
    from bgmiv.bench.plan import load_plan, ready_plans

    for name in ready_plans():
        plan = load_plan(name)
        typer.echo(f"{name:14} {len(plan.specs):6} fits  {plan.title}")


def chosen_plan(
    plan: str | None,
    design: list[str] | None,
    n: list[str] | None,
    rho: list[str] | None,
    methods: list[str] | None,
    preset: list[str] | None,
    repeats: int | None,
    seed: int | None,
    fraction: float,
) -> Plan:
    """The plan that the options of ``run`` stand for; a bad one is blamed on its option."""
    sizes = numbers(n, int, "--n", "a whole number") if n else None
    levels = numbers(rho, float, "--rho", "a number") if rho else None
    if methods and not words(methods):
        raise typer.BadParameter("name at least one method", param_hint="--methods")
    if repeats is not None:
        at_least(1, repeats, "--repeats")
    if seed is not None:
        at_least(0, seed, "--seed")

    from bgmiv.bench.plan import Plan, Sweep, load_plan

    if plan is None:
        first = Sweep(["demand"], [1000], [0.5], ["bgm-iv"], repeats=repeats or 1, seed=seed or 0)
        whole = Plan("options", "from the command line", (_defined(first, design, sizes, levels, methods, preset),))
    else:
        for option, given in (("--design", design), ("--seed", seed)):
            if given is not None:
                raise typer.BadParameter(
                    "a plan says that itself; leave it out, or run without a plan", param_hint=option
                )
        with blaming("PLAN"):
            whole = load_plan(plan)
        for option, part in (
            ("--n", {"n": sizes}),
            ("--rho", {"rho": levels}),
            ("--methods", {"methods": words(methods) if methods else None}),
            ("--preset", {"presets": words(preset) if preset else None}),
        ):
            with blaming(option):
                whole = whole.part(**part)
        whole = whole.part(repeats=repeats)
    with blaming("--fraction"):
        return whole.part(fraction=fraction)


def _defined(
    sweep: Sweep,
    design: list[str] | None,
    n: list[int] | None,
    rho: list[float] | None,
    methods: list[str] | None,
    preset: list[str] | None,
) -> Sweep:
    from dataclasses import replace

    with blaming("--design"):
        sweep = replace(sweep, designs=words(design)) if design else sweep
    with blaming("--n"):
        sweep = replace(sweep, n=n) if n else sweep
    with blaming("--rho"):
        sweep = replace(sweep, rho=rho) if rho else sweep
    with blaming("--preset"):
        sweep = replace(sweep, presets=words(preset)) if preset else sweep
    with blaming("--methods"):
        return replace(sweep, methods=words(methods)) if methods else sweep


def _executor(
    name: str, workers: int | None, threads: int | None, address: str | None, cpus: float, gpus: float
) -> Executor:
    from bgmiv.bench.executors import InProcess, LocalPool

    if name == "ray":
        from bgmiv.bench.ray_cluster import RayCluster

        if workers is not None or threads is not None:
            raise typer.BadParameter("Ray decides that by --cpus; leave it out", param_hint="--workers, --threads")
        with blaming("--cpus"):
            RayCluster(cpus=cpus)
        with blaming("--gpus"):
            RayCluster(gpus=gpus)
        with blaming("--address"):
            return RayCluster(address=address, cpus=cpus, gpus=gpus)
    if name != "local":
        raise typer.BadParameter(f"there is no executor {name!r}; choose local or ray", param_hint="--executor")
    if address is not None:
        raise typer.BadParameter("an address belongs to --executor ray", param_hint="--address")
    if workers == 0:
        return InProcess()
    return LocalPool(1 if workers is None else workers, 1 if threads is None else threads)


def _announce(total: int, state: StoreState, console: Console, *, any_version: bool) -> None:
    for message in state.damaged:
        _say(console, f"Warning: {message}; its row is made anew if this plan has it.")
    if state.other:
        codes = ", ".join(sorted({row.code[:8] for row in state.other}))
        _say(
            console,
            f"Warning: {len(state.other)} rows of this plan come from other versions of the code or settings "
            f"({codes}). They are kept and not counted; --any-version counts them, and "
            "bgmiv bench gc --other-versions removes them.",
        )
    left = len(state.left)
    accepted = " (rows of any version count)" if any_version else ""
    elsewhere = f", {len(state.running)} of them running elsewhere" if state.running else ""
    _say(console, f"{total} fits: {total - left} done before{accepted}, {left} to run{elsewhere}.")


def _run(left: Sequence[RunKey], store: RowStore, executor: Executor, batch: int, console: Console) -> int:
    """Run them all; how many failed."""
    from bgmiv.bench.runner import run_plan
    from bgmiv.cli.board import FitBoard

    places = {key: place for place, key in enumerate(left)}
    failed = 0
    with FitBoard(console, [str(key.spec) for key in left], total=True) as board:
        for row, ours in run_plan(left, store, executor, board, batch_size=batch):
            failed += row.status != "ok"
            result = f"{row.structural_mse:,.1f}" if row.structural_mse is not None else f"failed: {row.error}"
            how = f"{row.seconds:.1f} s" if ours else "by another runner"
            board.done(places[row.key], f"{row.spec}: {result} ({how})", failed=row.status != "ok")
    return failed


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
