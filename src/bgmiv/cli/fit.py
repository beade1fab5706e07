"""The commands that fit a file: ``bgmiv fit`` and ``bgmiv compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bgmiv.cli import options
from bgmiv.cli.saved import read_treatment

if TYPE_CHECKING:
    from bgmiv.analysis.analysis import Analysis
    from bgmiv.analysis.compare import Comparison
    from bgmiv.data.table import Table
    from bgmiv.estimators.base import IVEstimator

__all__ = ["COMPARE_EPILOG", "EPILOG", "compare", "fit"]

EPILOG = """Example: bgmiv fit card.csv --formula 'lwage ~ exper + \\[educ ~ nearc4]' --out card-fit --report card.html

Or by names: bgmiv fit card.csv --outcome lwage --treatment educ --instruments nearc4 --covariates exper,black --out fit

Exit codes: 0 fine; 1 bad data; 2 bad usage; 3 the fit failed its held-out checks (files are written); 130 Ctrl-C."""

COMPARE_EPILOG = """Example: bgmiv compare card.csv --formula 'lwage ~ exper + \\[educ ~ nearc4]' --methods tsls,bgm-iv

Exit codes: 0 fine; 1 bad data; 2 bad usage; 130 Ctrl-C."""


@options.reported
@options.takes_roles
def fit(
    data: options.Data,
    roles: options.Roles,
    out: Annotated[Path | None, typer.Option(help="Folder for the model and its analysis.")] = None,
    report: Annotated[Path | None, typer.Option(help="Also write the analysis as one HTML page.")] = None,
    method: Annotated[
        str, typer.Option(help=f"One of {options.method_help()}.", autocompletion=options.complete_method)
    ] = "bgm-iv",
    preset: Annotated[
        str, typer.Option(help="The method's settings.", autocompletion=options.complete_preset)
    ] = "default",
    by: Annotated[list[str] | None, typer.Option(help="Columns whose levels are shown separately.")] = None,
    level: options.Level = 0.95,
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
    options.check_method(method)
    options.check_preset(preset)
    options.check_level(level)
    options.at_least(0, seed, "--seed")
    if members is not None:
        options.at_least(1, members, "--members")
    if out is not None:
        _free_folder(out, overwrite)
    if report is not None:
        options.writable_file(report, "--report")

    from bgmiv.data.read import read_table, select_columns

    table = read_table(data)
    with options.warnings_shown(roles):
        with options.blaming("--method"):
            model = options.make_model(method, preset, seed, roles.kinds, members=members, checkpoint=checkpoint)
        labels = select_columns(table, options.words(by or []))
        model = options.fitted_model(model, table, roles)
        groups_shown = _groups_shown(model, labels, table, roles)
        analysis: Analysis = model.analysis(by=groups_shown, level=level, title=title, source=data.name)
        if out is not None:
            model.save(out, analysis=analysis, overwrite=overwrite)
    written = _written(analysis, out, report)
    if as_json:
        options.print_json(
            {**written, "verdict": options.verdict_record(analysis.verdict), "analysis": _record(analysis)}
        )
    else:
        from bgmiv.analysis.text import summary_text

        typer.echo(summary_text(analysis))
    for what, path in written.items():
        typer.echo(f"{what}: {path}", err=True)
    options.exit_if_failed(analysis.verdict)


def _groups_shown(model: IVEstimator, labels: Table, table: Any, roles: options.Roles) -> Any:
    """What `analysis` takes as `by`: names of covariates, or labels of each row where a name is none of them."""
    if not labels.columns:
        return None
    if set(labels.names) <= set(model.fitted_.schema.covariate_names):
        return list(labels.names)
    kept = options.rows_used(table, roles) if model.n_dropped_ else slice(None)
    return {column.name: column.values[kept] for column in labels.columns}


def _record(analysis: Analysis) -> dict[str, Any]:
    """The analysis without the factors of its curves, which only code needs."""
    record: dict[str, Any] = options.plain(analysis)
    for curve in record["curves"]:
        curve.pop("sources", None)
    return record


def _free_folder(out: Path, overwrite: bool) -> None:
    options.usable_folder(out, "--out")
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not (out / "model.json").is_file():
        raise options.bad(f"{out} holds something else than a saved model; name a new folder", "--out")
    if not overwrite:
        raise options.bad(f"{out} holds a saved model; name a new folder or give --overwrite", "--out")


def _written(analysis: Analysis, out: Path | None, report: Path | None) -> dict[str, str]:
    written = {} if out is None else {"model": str(out)}
    if report is not None:
        from bgmiv.analysis.page import write_report

        written["report"] = str(write_report(analysis, report))
    return written


@options.reported
@options.takes_roles
def compare(
    data: options.Data,
    roles: options.Roles,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            help="Names, tsls,kiv or the option repeated; NAME-noiv ignores the instrument. "
            "By default tsls,tsls-noiv,bgm-iv.",
            autocompletion=options.complete_method,
        ),
    ] = None,
    preset: Annotated[
        str, typer.Option(help="The methods' settings.", autocompletion=options.complete_preset)
    ] = "default",
    t0: Annotated[str | None, typer.Option(help="The treatment that is compared with; by default a quartile.")] = None,
    t1: Annotated[str | None, typer.Option(help="The treatment whose effect is asked for, likewise.")] = None,
    level: options.Level = 0.95,
    seed: Annotated[int, typer.Option(help="Of the fits.")] = 0,
    as_json: options.AsJson = False,
) -> None:
    """The same average effect by several methods, side by side."""
    names = list(dict.fromkeys(options.words(methods or ["tsls,tsls-noiv,bgm-iv"])))
    for name in names:
        options.check_method(name, "--methods")
    options.check_preset(preset)
    options.check_level(level)
    options.at_least(0, seed, "--seed")
    if (t0 is None) != (t1 is None):
        raise options.bad("give both --t0 and --t1, or none", "--t0")

    from bgmiv.analysis.compare import compare as compared
    from bgmiv.data.read import read_table

    table = read_table(data)
    with options.warnings_shown(roles):
        models = {
            name: options.fitted_model(options.make_model(name, preset, seed, roles.kinds), table, roles)
            for name in names
        }
        asked: dict[str, Any] = {}
        if t0 is not None and t1 is not None:
            variable = next(iter(models.values())).fitted_.schema.treatment
            asked = {"t0": read_treatment(t0, variable, "--t0"), "t1": read_treatment(t1, variable, "--t1")}
        found: Comparison = compared(models, level=level, **asked)
    if as_json:
        options.print_json(found.to_dict())
    else:
        typer.echo(str(found))
