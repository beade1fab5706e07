"""``bgmiv predict``: the structural function of a saved model at the rows of a file."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bgmiv.cli.common import reported, share_between
from bgmiv.cli.output import plain, print_json, writable_file
from bgmiv.cli.roles import Data, warnings_shown
from bgmiv.cli.saved import Folder, open_model, people_of, read_treatment
from bgmiv.writing import write_whole

if TYPE_CHECKING:
    from bgmiv.estimators.bgmiv import BGMIV

__all__ = ["EPILOG", "predict"]

EPILOG = """Example: bgmiv predict card-fit new.csv --treatment 16 --out predicted.csv

Exit codes: 0 fine; 1 bad data or a bad model folder; 2 bad usage."""


@reported
def predict(
    folder: Folder,
    data: Data,
    treatment: Annotated[str | None, typer.Option(help="One treatment for all rows.")] = None,
    treatment_column: Annotated[
        str | None, typer.Option(help="The column with each row's treatment; by default the one of the fit.")
    ] = None,
    level: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    out: Annotated[Path | None, typer.Option(help="A CSV file, instead of stdout.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """What the outcome would be, on average, if each row's treatment were set: as CSV, one line a row.

    The columns are row, treatment, estimate, lower, upper and in_support: whether the data of the fit show such a
    treatment for such covariates. The file needs the covariates' columns; others are ignored.
    """
    if treatment is not None and treatment_column is not None:
        raise typer.BadParameter("give this or --treatment, not both", param_hint="--treatment-column")
    share_between(level, "--level")
    if out is not None:
        writable_file(out, "--out")

    from bgmiv.data.files import read_table_file

    with warnings_shown():
        model = open_model(folder)
        table = read_table_file(data)
        header, rows = _answers(model, table, treatment, treatment_column, level)
    if as_json:
        print_json({"rows": [dict(zip(header, row, strict=True)) for row in rows]})
    if out is None and as_json:
        return
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    if out is None:
        typer.echo(text.getvalue(), nl=False)
        return
    write_whole(out, text.getvalue().encode())
    typer.echo(f"{len(rows)} rows: {out}", err=True)


def _answers(
    model: BGMIV, table: Any, treatment: str | None, column: str | None, level: float
) -> tuple[list[str], list[list[Any]]]:
    import numpy as np

    from bgmiv.data.frames import column_names, read_columns
    from bgmiv.errors import DataError

    schema = model._fitted().schema
    variable = schema.treatment
    if treatment is not None:
        n = read_columns(table, ()).n_rows
        x = np.full(n, read_treatment(treatment, variable, "--treatment"))
    else:
        name = column or variable.name
        if column is None and name not in column_names(table):
            raise DataError(f"the file has no column {name!r}. Say --treatment VALUE, or --treatment-column COLUMN.")
        x = read_columns(table, [name]).columns[0].values
    found = model.predict_interval(x, people_of(model, table), level=level)
    shown = [plain(value) for value in x]
    levels = schema.outcome.levels if schema.outcome.width > 1 else None
    names = [f"_{each}" for each in levels] if levels else [""]
    header = ["row", "treatment", *(part + name for name in names for part in ("estimate", "lower", "upper"))]
    columns = [np.asarray(part).reshape(len(x), -1) for part in (found.estimate, found.lower, found.upper)]
    flags = np.asarray(found.in_support, dtype=bool)
    rows = [
        [i, shown[i], *(float(part[i, k]) for k in range(len(names)) for part in columns), bool(flags[i])]
        for i in range(len(x))
    ]
    return [*header, "in_support"], rows
