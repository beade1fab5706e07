"""The commands that fit a file: ``bgmiv fit`` and ``bgmiv compare``."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bgmiv.cli import options, tables
from bgmiv.cli.saved import read_treatment
from bgmiv.errors import BGMIVError, ModelFileError, printable

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
@tables.takes(tables.chosen_roles, "roles")
@tables.takes(tables.chosen_form, "form")
def fit(
    data: tables.Data,
    roles: tables.Roles,
    form: tables.FileFormat,
    out: Annotated[Path | None, typer.Option(help="Folder for the model and its analysis.")] = None,
    report: Annotated[Path | None, typer.Option(help="Also write the analysis as one HTML page.")] = None,
    method: Annotated[
        str, typer.Option(help=f"One of {options.method_help()}.", autocompletion=options.complete_method)
    ] = "bgm-iv",
    preset: options.Preset = "default",
    by: Annotated[list[str] | None, typer.Option(help="Columns whose levels are reported separately.")] = None,
    level: options.Level = 0.95,
    title: Annotated[str | None, typer.Option(help="Title of the analysis.")] = None,
    units: Annotated[str, typer.Option(help="What the page calls the rows, such as flights.")] = "rows",
    seed: options.Seed = 0,
    members: Annotated[
        int | None, typer.Option(help="Number of ensemble members of bgm-iv; by default that of the preset.")
    ] = None,
    networks: Annotated[
        bool | None, typer.Option(help="Whether bgm-iv trains networks; by default where something is left for them.")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Folder for the state of an unfinished fit of bgm-iv; the same command resumes it."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a saved model in --out, and the file of --report.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the analysis as one JSON object.")] = False,
) -> None:
    """Fit a causal curve to a CSV or Parquet file, save it, and report the results and whether to trust them."""
    options.check_method(method)
    options.check_preset(preset)
    options.check_level(level)
    if not units.strip():
        raise options.bad("say what the rows are called, such as flights", "--units")
    options.at_least(0, seed, "--seed")
    if members is not None:
        options.at_least(1, members, "--members")
    options.check_outputs({"--out": out, "--report": report, "--checkpoint": checkpoint}, data)
    if out is not None:
        _free_folder(out, overwrite)
    if report is not None:
        options.writable_file(report, "--report", overwrite=overwrite)

    from bgmiv.data.table import select_columns

    table = tables.read_data(data, form)
    with tables.warnings_shown():
        with options.blaming("--method"):
            own = {"members": members, "networks": networks, "checkpoint": checkpoint}
            model = options.make_model(method, preset, seed, roles.kinds, **own)
        labels = select_columns(table, options.words(by or []))
        model = tables.fitted_model(model, table, roles)
        done = _AfterFit(model)
        asked: dict[str, Any] = {"level": level, "title": title, "source": printable(data.name), "units": units}
        with done.step("the analysis of the fit"):
            done.analysis = model.analysis(by=_groups_shown(model, labels, table, roles), **asked)
        if out is not None:
            with done.step(f"saving the fit in {out}"):
                model.save(out, analysis=done.analysis, overwrite=overwrite)
                done.written["model"] = str(out)
        if report is not None and done.analysis is not None:
            from bgmiv.analysis.page import write_report

            with done.step(f"the report {report}"):
                done.written["report"] = str(write_report(done.analysis, report))
        done.rescue()
    _print(done, as_json)
    if done.failure is not None:
        options.echo(f"Error: {done.failure}", err=True)
        raise typer.Exit(done.code)
    options.exit_if_failed(model.verdict_)


class _AfterFit:
    """What is left to do with a fit, which took time and must not be lost: each step may fail by itself."""

    def __init__(self, model: IVEstimator) -> None:
        self.model = model
        self.analysis: Analysis | None = None
        self.written: dict[str, str] = {}
        self.failure: str | None = None
        self.code = 0

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            why = str(error) if isinstance(error, BGMIVError) else f"{type(error).__name__}: {error}"
            self.failure = self.failure or f"{what} failed: {why}"
            self.code = self.code or (options.INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1)

    def rescue(self) -> None:
        """Save the fit in a new folder, if a step failed and it is saved nowhere."""
        if self.failure is None or "model" in self.written:
            return
        with self.step("saving the fit"):
            folder = Path(tempfile.mkdtemp(prefix="bgmiv-")) / "fit"
            self.model.save(folder, analysis=self.analysis)
            self.written["model"] = str(folder)


def _print(done: _AfterFit, as_json: bool) -> None:
    from bgmiv.analysis.text import summary_text

    verdict, analysis = done.model.verdict_, done.analysis
    effect: dict[str, Any] = {}
    if analysis is None:
        with done.step("the average effect"):
            effect = _average_effect(done.model)
    if as_json:
        shown = {"effect": effect} if analysis is None else {"analysis": _record(analysis)}
        options.print_json({**done.written, "verdict": options.verdict_record(verdict), **shown})
    elif analysis is None:
        options.echo("\n".join(f"{name}: {value}" for name, value in effect.items()))
    else:
        options.echo(summary_text(analysis))
    for what, path in done.written.items():
        options.echo(f"{what}: {path}", err=True)


def _average_effect(model: IVEstimator) -> dict[str, Any]:
    """The one number of a fit whose analysis failed: between the quartiles of the treatment, or its first levels."""
    import numpy as np

    assert model.data_ is not None
    variable = model.fitted_.schema.treatment
    low, high = variable.levels[:2] if variable.levels else (0.0, 1.0)
    if not variable.discrete:
        low, high = (float(value) for value in np.quantile(model.data_.treatment, [0.25, 0.75]))
    effect = options.plain(model.ate(t0=low, t1=high))
    return {"treatment": variable.name, "t0": low, "t1": high, "average effect": effect}


def _groups_shown(model: IVEstimator, labels: Table, table: Any, roles: tables.Roles) -> Any:
    """What `analysis` takes as `by`: names of covariates, or labels of each row where a name is none of them."""
    if not labels.columns:
        return None
    if set(labels.names) <= set(model.fitted_.schema.covariate_names):
        return list(labels.names)
    kept = tables.rows_used(table, roles) if model.n_dropped_ else slice(None)
    return {column.name: column.values[kept] for column in labels.columns}


def _record(analysis: Analysis) -> dict[str, Any]:
    """The analysis without the factors of its curves, which only code needs."""
    record: dict[str, Any] = options.plain(analysis)
    for kind in ("effects", "methods"):
        record[kind] = options.plain([row.to_dict() for row in getattr(analysis, kind)])
    for curve in record["curves"]:
        curve.pop("sources", None)
    return record


def _free_folder(out: Path, overwrite: bool) -> None:
    """Refuse a folder that `save` would refuse once the fit is done."""
    from bgmiv.persist.folder import check_free

    options.usable_folder(out, "--out")
    try:
        check_free(out, overwrite=overwrite)
    except ModelFileError as error:
        raise options.bad(str(error), "--out") from error


@options.reported
@tables.takes(tables.chosen_roles, "roles")
@tables.takes(tables.chosen_form, "form")
def compare(
    data: tables.Data,
    roles: tables.Roles,
    form: tables.FileFormat,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            help="Methods: tsls,kiv or repeat the option; NAME-noiv ignores the instrument. "
            "By default tsls,tsls-noiv,bgm-iv.",
            autocompletion=options.complete_method,
        ),
    ] = None,
    preset: options.Preset = "default",
    t0: Annotated[str | None, typer.Option(help="Treatment to compare with; by default the lower quartile.")] = None,
    t1: Annotated[
        str | None, typer.Option(help="Treatment whose effect is wanted; by default the upper quartile.")
    ] = None,
    level: options.Level = 0.95,
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
) -> None:
    """The same average effect by several methods, side by side."""
    names = list(dict.fromkeys(options.words(methods or ["tsls,tsls-noiv,bgm-iv"])))
    if not names:
        raise options.bad("name one or more", "--methods")
    for name in names:
        options.check_method(name, "--methods")
    options.check_preset(preset)
    options.check_level(level)
    options.at_least(0, seed, "--seed")
    if (t0 is None) != (t1 is None):
        raise options.bad("give both --t0 and --t1, or none", "--t0")

    from bgmiv.analysis.compare import compare as compared

    table = tables.read_data(data, form)
    with tables.warnings_shown():
        models: dict[str, IVEstimator] = {}
        failed = ""
        for name in names:
            try:
                models[name] = tables.fitted_model(options.make_model(name, preset, seed, roles.kinds), table, roles)
            # Fits that are done took time: they are compared without this one.
            except (BGMIVError, KeyboardInterrupt) as error:
                if not models:
                    raise
                failed = failed or f"{name} failed: {error or 'interrupted'}"
                if isinstance(error, KeyboardInterrupt):
                    break
        asked: dict[str, Any] = {}
        if t0 is not None and t1 is not None:
            variable = next(iter(models.values())).fitted_.schema.treatment
            asked = {"t0": read_treatment(t0, variable, "--t0"), "t1": read_treatment(t1, variable, "--t1")}
        found: Comparison = compared(models, level=level, **asked)
    if as_json:
        options.print_json(found.to_dict())
    else:
        options.echo(str(found))
    if failed:
        options.echo(f"Error: {failed}", err=True)
        raise typer.Exit(1)
