"""The commands on a saved model: ``bgmiv predict``, ``effect``, ``diagnose`` and ``report``."""

from __future__ import annotations

import sys
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer import Argument, Option

from bgmiv._io import write_whole
from bgmiv.cli.shared import (
    AsJson,
    Data,
    Level,
    Overwrite,
    check_outputs,
    choice,
    csv_format,
    echo,
    exit_if_failed,
    option_error,
    print_result,
    print_table,
    read_data,
    warnings_shown,
    with_options,
    writable_file,
)
from bgmiv.errors import DataError, ModelFileError, WeakInstrumentWarning
from bgmiv.numerals import percent

if TYPE_CHECKING:
    from bgmiv.analysis.analysis import Analysis
    from bgmiv.data.schema import Variable
    from bgmiv.estimators.base import IVEstimator
    from bgmiv.intervals import Interval

__all__ = ["diagnose", "effect", "predict", "read_treatment", "report"]

Folder = Annotated[Path, Argument(help="The folder of a saved model.", show_default=False)]

_MAX_GROUPS = 50


@with_options(form=csv_format)
def predict(
    folder: Folder,
    data: Data,
    form: Any,
    treatment: Annotated[str | None, Option(help="One treatment for all rows.")] = None,
    treatment_column: Annotated[
        str | None, Option(help="The column with each row's treatment; by default the one of the fit.")
    ] = None,
    level: Level = 0.95,
    out: Annotated[Path | None, Option(help="A CSV file, instead of stdout.")] = None,
    overwrite: Overwrite = False,
    guard: Annotated[
        bool, Option(help="In the CSV, an apostrophe before words that a spreadsheet would take for a formula.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Predict the mean outcome of each row if its treatment were set; writes CSV, one line per row.

    The columns are row, treatment, estimate, lower, upper (for methods with intervals) and in_support: whether the data
    of the fit show such a treatment at such covariates. The file needs the covariates' columns; others are ignored.
    """
    if treatment is not None and treatment_column is not None:
        raise option_error("give this or --treatment, not both", "--treatment-column")
    if out is not None:
        check_outputs({"--out": out}, folder, data)
        writable_file(out, "--out", overwrite=overwrite)

    from bgmiv.data.files import guarded

    with warnings_shown():
        model = _open(folder)
        rows = _predictions(model, read_data(data, form), treatment, treatment_column, level)
    if as_json:
        print_result({"rows": rows.to_dict("records")}, model.verdict_)
    text = (rows.map(guarded) if guard else rows).to_csv(index=False)
    if out is not None:
        write_whole(out, text.encode("utf-8", "surrogatepass"))
        echo(f"{len(rows)} rows: {out}", err=True)
    elif not as_json:
        # A pipe gets the values as they are.
        (echo if sys.stdout.isatty() else typer.echo)(text, nl=False)
    exit_if_failed(model.verdict_)


def _predictions(model: IVEstimator, table: Any, treatment: str | None, column: str | None, level: float) -> Any:
    """A table with one line for each row of the file's."""
    import numpy as np
    import pandas as pd

    from bgmiv.data.messages import warn_user
    from bgmiv.data.table import column_names, table_rows

    schema = model.fitted_.schema
    if treatment is not None:
        x = np.full(table_rows(table), read_treatment(treatment, schema.treatment, "--treatment"))
    else:
        name = column or schema.treatment.name
        if column is None and name not in column_names(table):
            raise DataError(f"the file has no column {name!r}. Say --treatment VALUE, or --treatment-column COLUMN.")
        x = _column(table, name)
    covariates = table if schema.blocks else None
    if model.fitted_.interval_kind:
        interval = model.predict_interval(x, covariates, level=level)
        parts = {"estimate": interval.estimate, "lower": interval.lower, "upper": interval.upper}
        inside = interval.in_support
        if interval.note:
            warn_user(interval.note, WeakInstrumentWarning)
    else:
        parts = {"estimate": model.predict(x, covariates)}
        inside = model.in_support(x, covariates)
    columns: dict[str, Any] = {"row": np.arange(len(x)), "treatment": x}
    levels = schema.outcome.levels or ()
    for k, ending in enumerate([f"_{level}" for level in levels] if schema.outcome.width > 1 else [""]):
        for part, values in parts.items():
            columns[part + ending] = np.asarray(values).reshape(len(x), -1)[:, k]
    return pd.DataFrame({**columns, "in_support": np.asarray(inside, bool)})


def _column(table: Any, name: str) -> Any:
    from bgmiv.data.table import select_columns

    return select_columns(table, [name]).columns[0].values


class _Row(NamedTuple):
    group: str
    n_rows: int
    interval: Interval
    interpolated: bool = False


@with_options(form=csv_format)
def effect(
    folder: Folder,
    form: Any,
    t0: Annotated[str, Option(help="Treatment to compare with.", show_default=False)],
    t1: Annotated[str, Option(help="Treatment whose effect is wanted.", show_default=False)],
    data: Annotated[
        Path | None, Option(help="CSV or Parquet file with the rows to average over; by default those of the fit.")
    ] = None,
    by: Annotated[str | None, Option(help="Also for each level of this column.")] = None,
    rows: Annotated[
        str,
        Option(
            help="all, treated (whose treatment is t1) or untreated (t0): the rows to average over.",
            **choice(("all", "treated", "untreated")),
        ),
    ] = "all",
    sample_weight: Annotated[
        str | None,
        Option(
            "--sample-weight",
            "--weights",
            help="The column of sample weights in --data; by default that of the fit, if there.",
        ),
    ] = None,
    level: Level = 0.95,
    as_json: AsJson = False,
) -> None:
    """The average effect of setting the treatment to t1 instead of t0, with an interval.

    Without --data it comes from the stored average curves: exact at their points, which include the treatments of the
    summary, and interpolated linearly between them.
    """
    with warnings_shown():
        model = _open(folder)
        variable, outcome = model.fitted_.schema.treatment, model.fitted_.schema.outcome.name
        pair = (read_treatment(t0, variable, "--t0"), read_treatment(t1, variable, "--t1"))
        if rows != "all" and not variable.discrete:
            raise option_error(f"{variable.name!r} is a number: no rows are the {rows} ones", "--rows")
        if data is None:
            effects = _stored_effects(_analysis(model, folder), variable, pair, by, rows, level)
        else:
            table = read_data(data, form)
            effects = _effects_of_rows(model, table, pair, by, rows, sample_weight, level)
    if as_json:
        record = {"outcome": outcome, "treatment": variable.name, "t0": pair[0], "t1": pair[1], "level": level}
        parts = [
            {
                "group": row.group,
                "n_rows": row.n_rows,
                **row.interval.to_dict(),
                "note": row.interval.note,
                "interpolated": row.interpolated,
            }
            for row in effects
        ]
        print_result({**record, "effects": parts}, model.verdict_)
    else:
        _print_effects(effects, outcome, variable, pair, level)
    exit_if_failed(model.verdict_)


def _stored_effects(
    analysis: Analysis, variable: Variable, pair: tuple[Any, Any], by: str | None, rows: str, level: float
) -> list[_Row]:
    from bgmiv.analysis.analysis import contrast
    from bgmiv.estimators.questions import WEAK_NOTE
    from bgmiv.intervals import ANDERSON_RUBIN

    levels = variable.levels
    t0, t1 = (float(levels.index(value) if levels else value) for value in pair)
    curves = list(analysis.curves[:1])
    if rows != "all":
        wanted = t1 if rows == "treated" else t0
        curves = [curve for curve in analysis.curves if curve.group.treatment == wanted]
        if not curves or by is not None:
            raise DataError(f"the fit has stored no curves of the {rows} rows{' by group' if by else ''}. Give --data.")
    if by is not None:
        curves += [curve for curve in analysis.curves if curve.group.column == by]
        if len(curves) == 1:
            known = ", ".join(dict.fromkeys(curve.group.column for curve in analysis.curves[1:]))
            raise DataError(f"the fit has stored no curves by {by!r} (it has: {known or 'none'}). Give --data DATA.")
    # The summary's contrast is stored: its share of rows with both treatments in support (else it is at most that), and
    # its ends, which may be those of a robust set.
    stored = {row.group: row.interval for row in analysis.effects if (row.t0, row.t1) == (t0, t1)}
    effects = []
    for curve in curves:
        interval, interpolated = contrast(curve, t0, t1, level)
        shown = stored.get(curve.group, interval)
        interval = shown if level == shown.level else replace(interval, in_support=shown.in_support)
        if analysis.weak and interval.method != ANDERSON_RUBIN:
            interval = replace(interval, note=WEAK_NOTE)
        effects.append(_Row(curve.group.label, curve.group.n_rows, interval, interpolated))
    return effects


def _effects_of_rows(
    model: IVEstimator, table: Any, pair: tuple[Any, Any], by: str | None, which: str, weight: str | None, level: float
) -> list[_Row]:
    import numpy as np

    from bgmiv.data.query import rows_of
    from bgmiv.data.table import column_names, table_rows

    n, schema = table_rows(table), model.fitted_.schema
    kept = np.arange(n)
    if which != "all":
        observed = schema.check_treatment(_column(table, schema.treatment.name), n)
        wanted = pair[1] if which == "treated" else pair[0]
        kept = np.flatnonzero(observed == schema.check_treatment(wanted, 1)[0])
        if not len(kept):
            raise DataError(f"the file has no {which} rows: none has the treatment {wanted!r}.")
    groups = {f"{which} rows": kept}
    if by is not None:
        labels = _column(table, by).astype(str)
        levels = np.unique(labels)
        if len(levels) > _MAX_GROUPS:
            raise DataError(f"column {by!r} has {len(levels)} values. Group by one of at most {_MAX_GROUPS}.")
        groups |= {f"{by} = {level}": kept[labels[kept] == level] for level in levels}
    of_fit = model.sampling_.get("weights")
    if weight is None and of_fit in column_names(table):
        weight = of_fit
    weights = None if weight is None else _column(table, weight)
    rows = rows_of(schema, model._read(table), n_rows=n, weights=weights)
    if _holds_rows_of(model, table):
        model.attach_data(table)
    return [
        _Row(group, len(members), model.ate_interval(rows.take(members), t0=pair[0], t1=pair[1], level=level))
        for group, members in groups.items()
        if len(members)
    ]


def _holds_rows_of(model: IVEstimator, table: Any) -> bool:
    """Whether a robust set is wanted, and these are the rows of the fit, of which it is made: their F is the same."""
    import numpy as np

    from bgmiv.estimators.saved import data_again
    from bgmiv.linear_iv import LinearIV

    saved = model.saved_analysis_
    if saved is None or not saved.weak:
        return False
    try:
        data = data_again(model.fitted_.schema, model.sampling_, model.formula_, table, model.covariance)
        effective_f = LinearIV.of(data).stages[0].effective_f
    except DataError:
        return False
    return bool(np.isclose(effective_f, saved.diagnosis["effective-f"].numbers["effective_f"], rtol=1e-6))


def _print_effects(rows: list[_Row], outcome: str, variable: Variable, pair: tuple[Any, Any], level: float) -> None:
    import numpy as np

    from bgmiv.intervals import ANDERSON_RUBIN

    lines = []
    for row in rows:
        ends = (row.interval.estimate, row.interval.lower, row.interval.upper)
        estimate, lower, upper = (", ".join(f"{value:.4g}" for value in np.atleast_1d(part)) for part in ends)
        interval = row.interval.set_text or f"{lower} to {upper}"
        lines.append((row.group, f"{row.n_rows:,}", estimate, interval, f"{float(row.interval.in_support):.0%}"))
    notes = []
    if any(row.interval.method == ANDERSON_RUBIN for row in rows):
        notes.append("Intervals are Anderson-Rubin sets, which are robust to weak instruments.")
    if any(row.interval.note for row in rows):
        notes.append(
            "The instruments are too weak for these intervals, which are too narrow:\n"
            "give --data with the rows of the fit."
        )
    if any(row.interpolated for row in rows):
        notes.append("Interpolated between points of the stored curve; --data DATA computes the exact value.")
    t0, t1 = (value if variable.levels else f"{value:g}" for value in pair)
    print_table(
        f"Average effect of {variable.name} {t1} instead of {t0} on {outcome}",
        ("group", "rows", "effect", f"{percent(level)} interval", "in support"),
        lines,
        caption="\n".join(notes),
    )


def diagnose(folder: Folder, as_json: AsJson = False) -> None:
    """Show the stored checks of a fit, each with what it means: instruments, moments, the linear estimate."""
    model = _open(folder)
    analysis = _analysis(model, folder)
    if as_json:
        diagnosis = analysis.diagnosis
        names = ("key", "severity", "title", "value", "reading", "reference", "numbers")
        checks = [{name: getattr(check, name) for name in names} for check in diagnosis.checks]
        record = {"severity": diagnosis.severity, "checks": checks, "linear": diagnosis.linear}
        print_result(record, model.verdict_)
    else:
        echo(analysis.diagnosis)
    exit_if_failed(model.verdict_)


def report(
    folder: Folder,
    out: Annotated[Path, Option(help="The HTML file.")] = Path("report.html"),
    overwrite: Overwrite = False,
    show: Annotated[bool, Option("--open", help="Open it in the browser.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the analysis of a saved model as one self-contained HTML page, to be sent, printed or opened offline."""
    check_outputs({"--out": out}, folder)
    writable_file(out, "--out", overwrite=overwrite)

    from bgmiv.analysis.page import write_report

    model = _open(folder)
    analysis = _analysis(model, folder)
    written = write_report(analysis, out)
    if as_json:
        print_result({"report": written}, model.verdict_)
    else:
        echo(f"report: {written}")
    if show:
        import webbrowser

        webbrowser.open(written.absolute().as_uri())
    exit_if_failed(model.verdict_)


def _open(folder: Path) -> IVEstimator:
    """A saved model, which reads its covariates by name from any table.

    Raises:
        ModelFileError: the folder holds no saved model.
    """
    from bgmiv.estimators.saved import column_reader
    from bgmiv.registry import load

    if not folder.is_dir():
        raise ModelFileError(
            f"{folder} is no folder of a saved model. Make one with: bgmiv fit DATA ... --out {folder}"
        )
    model = load(folder)
    if model.reader_ is None:
        model.reader_ = column_reader(model.fitted_.schema)
    return model


def _analysis(model: IVEstimator, folder: Path) -> Analysis:
    if model.saved_analysis_ is None:
        raise ModelFileError(
            f"{folder} holds a model without its analysis. Fit again with: bgmiv fit DATA ... --out DIR"
        )
    return model.saved_analysis_


def read_treatment(text: str, variable: Variable, option: str) -> Any:
    """A treatment as the fit knows it: a number, 0 or 1, or one of its levels."""
    from bgmiv.data.messages import is_number

    if variable.levels is not None:
        levels = {str(level): level for level in variable.levels}
        if text not in levels:
            known = ", ".join([*levels][:10])
            raise option_error(f"{text!r} is no level of {variable.name!r}; there are {known}", option)
        return levels[text]
    if variable.discrete and text.lower() in ("true", "false"):
        return float(text.lower() == "true")
    # As in files: Python would read 1_000 and digits of other scripts.
    if not (text.isascii() and is_number(text) and isfinite(float(text))):
        raise option_error(f"{text!r} is not a finite number", option)
    value = float(text)
    if variable.discrete and value not in (0.0, 1.0):
        raise option_error(f"{variable.name!r} is 0 or 1, got {text}", option)
    return value
