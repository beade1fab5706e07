"""The commands that fit a file: ``bgmiv fit`` and ``bgmiv compare``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit, Option

from bgmiv.cli.saved import read_treatment
from bgmiv.cli.shared import (
    METHOD_CHOICE,
    AsJson,
    ColumnRoles,
    Data,
    Level,
    Listed,
    Overwrite,
    Preset,
    Seed,
    check_outputs,
    column_roles,
    csv_format,
    echo,
    exit_if_failed,
    make_model,
    naming_option,
    option_error,
    print_json,
    print_result,
    read_data,
    split_commas,
    usable_folder,
    warnings_shown,
    with_options,
    writable_file,
)
from bgmiv.errors import BGMIVError, printable
from bgmiv.registry import METHODS

if TYPE_CHECKING:
    from bgmiv.analysis.analysis import Analysis
    from bgmiv.data.table import Table
    from bgmiv.estimators.base import IVEstimator

__all__ = ["compare", "fit"]


@with_options(form=csv_format, roles=column_roles)
def fit(
    data: Data,
    roles: ColumnRoles,
    form: Any,
    out: Annotated[Path | None, Option(help="Folder for the model and its analysis.")] = None,
    report: Annotated[Path | None, Option(help="Also write the analysis as one HTML page.")] = None,
    method: Annotated[str, Option(help=f"One of {', '.join(METHODS)}.", **METHOD_CHOICE)] = "bgm-iv",
    preset: Preset = "default",
    by: Annotated[Listed, Option(help="Columns whose levels are reported separately.")] = None,
    level: Level = 0.95,
    title: Annotated[str | None, Option(help="Title of the analysis.")] = None,
    units: Annotated[str, Option(help="What the page calls the rows, such as flights.")] = "rows",
    seed: Seed = 0,
    members: Annotated[
        int | None, Option(help="Number of ensemble members of bgm-iv; by default that of the preset.", min=1)
    ] = None,
    networks: Annotated[
        bool | None, Option(help="Whether bgm-iv trains networks; by default where something is left for them.")
    ] = None,
    checkpoint: Annotated[
        Path | None, Option(help="Folder for the state of an unfinished fit of bgm-iv; the same command resumes it.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Fit a causal curve to a CSV or Parquet file, save it, and report the results and whether to trust them."""
    if not units.strip():
        raise option_error("say what the rows are called, such as flights", "--units")
    check_outputs({"--out": out, "--report": report, "--checkpoint": checkpoint}, data)
    from bgmiv.analysis.page import write_report
    from bgmiv.data.table import select_columns
    from bgmiv.persist.folder import check_free

    if out is not None:
        # What `save` would refuse once the fit is done.
        with naming_option("--out"):
            check_free(usable_folder(out, "--out"), overwrite=overwrite)
    if report is not None:
        writable_file(report, "--report", overwrite=overwrite)
    table = read_data(data, form)
    with warnings_shown():
        with naming_option("--method"):
            own = {"members": members, "networks": networks, "checkpoint": checkpoint}
            model = make_model(method, preset, seed, roles.settings, **own)
        labels = select_columns(table, split_commas(by))
        roles.fit(model, table)
        analysis, written = None, dict[str, Any]()
        try:
            groups = _groups_shown(model, labels)
            source = printable(data.name)
            analysis = model.analysis(by=groups, level=level, title=title, source=source, units=units)
            if not as_json:
                echo(analysis)
            if out is not None:
                model.save(out, analysis=analysis, overwrite=overwrite)
                written["model"] = out
            if report is not None:
                written["report"] = write_report(analysis, report)
        except (Exception, KeyboardInterrupt):
            # The fit took time and must not be lost.
            if not written:
                # Where the analysis failed, nothing has been tried with --out yet.
                folder = out if analysis is None else None
                folder = folder or Path(tempfile.mkdtemp(prefix="bgmiv-")) / "fit"
                model.save(folder, analysis=analysis, overwrite=overwrite)
                written["model"] = folder
            raise
        finally:
            for what, path in written.items():
                echo(f"{what}: {path}", err=True)
    if as_json:
        print_result({**written, "analysis": _record(analysis)}, model.verdict_)
    exit_if_failed(model.verdict_)


def _groups_shown(model: IVEstimator, labels: Table) -> Any:
    """What `analysis` takes as `by`: names of covariates, or labels of each row where a name is none of them."""
    if not labels.columns:
        return None
    if set(labels.names) <= set(model.fitted_.schema.covariate_names):
        return list(labels.names)
    # A table read from a file numbers its rows, and the data of the fit keep the numbers of theirs.
    kept = model._with_rows().data.index
    return {column.name: column.values[kept] for column in labels.columns}


def _record(analysis: Analysis) -> dict[str, Any]:
    """The analysis without the factors of its curves, which only code needs."""
    curves = [{name: part for name, part in vars(curve).items() if name != "sources"} for curve in analysis.curves]
    return vars(analysis) | {"curves": curves}


@with_options(form=csv_format, roles=column_roles)
def compare(
    data: Data,
    roles: ColumnRoles,
    form: Any,
    methods: Annotated[
        Listed,
        Option(
            help="Methods: tsls,kiv or repeat the option; NAME-noiv ignores the instrument. "
            "By default tsls,tsls-noiv,bgm-iv.",
            **METHOD_CHOICE,
        ),
    ] = None,
    preset: Preset = "default",
    t0: Annotated[str | None, Option(help="Treatment to compare with; by default the lower quartile.")] = None,
    t1: Annotated[str | None, Option(help="Treatment whose effect is wanted; by default the upper quartile.")] = None,
    level: Level = 0.95,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """The same average effect by several methods, side by side."""
    if methods == []:
        raise option_error("name one or more", "--methods")
    if (t0 is None) != (t1 is None):
        raise option_error("give both --t0 and --t1, or none", "--t0")

    from bgmiv.analysis.compare import compare as compared

    table = read_data(data, form)
    with warnings_shown():
        models: dict[str, IVEstimator] = {}
        failure = ""
        for name in dict.fromkeys(methods or ("tsls", "tsls-noiv", "bgm-iv")):
            try:
                models[name] = roles.fit(make_model(name, preset, seed, roles.settings), table)
            # Fits that are done took time: they are compared without this one.
            except (BGMIVError, KeyboardInterrupt) as error:
                if not models:
                    raise
                failure = failure or f"{name} failed: {error or 'interrupted'}"
                if isinstance(error, KeyboardInterrupt):
                    break
        variable = next(iter(models.values())).fitted_.schema.treatment
        given = {"t0": t0, "t1": t1}.items()
        asked = {name: read_treatment(text, variable, f"--{name}") for name, text in given if text is not None}
        comparison = compared(models, level=level, **asked)
    if as_json:
        print_json(comparison)
    else:
        echo(str(comparison))
    if failure:
        echo(f"Error: {failure}", err=True)
        raise Exit(1)
