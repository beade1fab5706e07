"""``bgmiv fit``: from a file to a saved model, its analysis and a page to show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bgmiv.cli.common import FAILED_FIT, at_least, blaming, reported, share_between, usable_folder, words
from bgmiv.cli.methods import check_method, check_preset, complete_method, complete_preset, make_model
from bgmiv.cli.output import analysis_record, print_json, writable_file
from bgmiv.cli.roles import (
    Covariates,
    Data,
    Formula,
    Groups,
    Instruments,
    Kind,
    MissingValues,
    Outcome,
    Roles,
    Treatment,
    Weights,
    chosen_roles,
    fitted_model,
    rows_used,
    warnings_shown,
)

if TYPE_CHECKING:
    from bgmiv.data.columns import Table
    from bgmiv.show.analysis import Analysis

__all__ = ["EPILOG", "fit"]

EPILOG = """Example: bgmiv fit card.csv --formula 'lwage ~ exper + \\[educ ~ nearc4]' --out card-fit --report card.html

Or by names: bgmiv fit card.csv --outcome lwage --treatment educ --instruments nearc4 --covariates exper,black --out fit

Exit codes: 0 fine; 1 bad data; 2 bad usage; 3 the fit failed by held-out rows (the folder is written); 130 Ctrl-C."""


@reported
def fit(
    data: Data,
    formula: Formula = None,
    outcome: Outcome = None,
    treatment: Treatment = None,
    instruments: Instruments = None,
    covariates: Covariates = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the model and its analysis.")] = None,
    report: Annotated[Path | None, typer.Option(help="Also write the analysis as one HTML page.")] = None,
    method: Annotated[
        str, typer.Option(help="bgm-iv, tsls, kiv, deepiv, dfiv or deepgmm.", autocompletion=complete_method)
    ] = "bgm-iv",
    preset: Annotated[str, typer.Option(help="The method's settings.", autocompletion=complete_preset)] = "default",
    weights: Weights = None,
    groups: Groups = None,
    missing: MissingValues = "raise",
    kind: Kind = None,
    by: Annotated[list[str] | None, typer.Option(help="Columns whose levels are shown apart.")] = None,
    level: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    title: Annotated[str | None, typer.Option(help="Of the analysis.")] = None,
    seed: Annotated[int, typer.Option(help="Of the fit: the same seed gives the same result.")] = 0,
    members: Annotated[int | None, typer.Option(help="Models that bgm-iv averages; the preset says 4.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder that keeps an unfinished fit of bgm-iv; the same command goes on.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a saved model in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the analysis as one JSON object.")] = False,
) -> None:
    """Fit a causal curve from a CSV or Parquet file, save it, and say what came out and whether to believe it."""
    roles = chosen_roles(formula, outcome, treatment, instruments, covariates, weights, groups, missing, kind)
    check_method(method)
    check_preset(preset)
    share_between(level, "--level")
    at_least(0, seed, "--seed")
    if members is not None:
        at_least(1, members, "--members")
    if out is not None:
        _free_folder(out, overwrite)
    if report is not None:
        writable_file(report, "--report")

    from bgmiv.data.files import read_table_file
    from bgmiv.data.frames import read_columns

    table = read_table_file(data)
    with warnings_shown(roles):
        with blaming("--method"):
            model = make_model(method, preset, seed, roles.kinds, members=members, checkpoint=checkpoint)
        labels = read_columns(table, words(by or []))
        model = fitted_model(model, table, roles)
        analysis: Analysis = model.analysis(
            by=_shown_apart(model, labels, table, roles), level=level, title=title, source=data.name
        )
        if out is not None:
            _save(model, analysis, out, overwrite)
    written = _written(analysis, out, report)
    failed = analysis.verdict is not None and analysis.verdict.level == "failed"
    if as_json:
        print_json({**written, "analysis": analysis_record(analysis)})
    else:
        from bgmiv.show.summary import summary_text

        typer.echo(summary_text(analysis))
    for what, path in written.items():
        typer.echo(f"{what}: {path}", err=True)
    if failed:
        typer.echo("Held-out rows say that this fit failed; do not use it.", err=True)
        raise typer.Exit(FAILED_FIT)


def _shown_apart(model: Any, labels: Table, table: Any, roles: Roles) -> Any:
    """What `analysis` takes as `by`: names of covariates, or labels of each row where a name is none of them."""
    if not labels.columns:
        return None
    if set(labels.names) <= set(model.fitted_.schema.covariate_names):
        return list(labels.names)
    kept = rows_used(table, roles) if model.n_dropped_ else slice(None)
    return {column.name: column.values[kept] for column in labels.columns}


def _save(model: Any, analysis: Analysis, out: Path, overwrite: bool) -> None:
    """Fits of bgm-iv are kept whole, of others what was found."""
    if hasattr(model, "save"):
        model.save(out, overwrite=overwrite)
        return
    from bgmiv.show.files import save_analysis

    save_analysis(out, analysis, overwrite=overwrite)


def _free_folder(out: Path, overwrite: bool) -> None:
    usable_folder(out, "--out")
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not any((out / name).is_file() for name in ("model.json", "analysis.json")):
        raise typer.BadParameter(
            f"{out} holds something else than a saved model; name a new folder", param_hint="--out"
        )
    if not overwrite:
        raise typer.BadParameter(
            f"{out} holds a saved model; name a new folder or give --overwrite", param_hint="--out"
        )


def _written(analysis: Analysis, out: Path | None, report: Path | None) -> dict[str, str]:
    written = {} if out is None else {"model": str(out)}
    if report is not None:
        from bgmiv.show.page import write_report

        written["report"] = str(write_report(analysis, report))
    return written
