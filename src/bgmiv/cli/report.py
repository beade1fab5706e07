"""``bgmiv bench report``: the paper's tables and figures from the rows of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bgmiv.cli.common import blaming, reported, usable_folder, words

__all__ = ["report"]


@reported
def report(
    folder: Annotated[Path, typer.Argument(help="The folder given to --store.", metavar="DIR")],
    out: Annotated[Path, typer.Option(help="Folder for the page, the tables and the figures; made if absent.")],
    plan: Annotated[
        list[str] | None,
        typer.Option(help="Say what is missing from this plan (a name or a TOML file), not from those of the store."),
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(help="Compare BGM-IV with these methods only: repeat it or list them, kiv,dfiv."),
    ] = None,
) -> None:
    """Write the tables and figures of a store, and one page with all of them.

    Tables are Markdown, CSV and LaTeX, figures PNG and PDF; index.html needs nothing else. A store that is not
    complete gives a report that says what is missing.
    """
    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is not a folder; name the one given to --store", param_hint="DIR")
    usable_folder(out, "--out")

    from bgmiv.bench.plan import load_plan
    from bgmiv.bench.store import RowStore
    from bgmiv.report.bench_page import bench_report, report_files
    from bgmiv.report.files import write_all

    store = RowStore(folder)
    with blaming("--plan"):
        plans = tuple(load_plan(name) for name in plan) if plan else store.plans()
    rows = store.rows()
    if not rows:
        typer.echo(f"No rows in {folder} yet, so there is nothing to report; bgmiv bench run makes them.", err=True)
        raise typer.Exit(1)
    with blaming("--baseline"):
        made = bench_report(rows, plans, words(baseline or []))
    for path in write_all(out, report_files(made)):
        typer.echo(f"wrote {path}")
