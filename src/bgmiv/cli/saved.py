"""What the verbs on a saved model share: opening it, reading treatments, and its columns in a new file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from bgmiv.data.columns import Table
    from bgmiv.data.schema import Variable
    from bgmiv.estimators.bgmiv import BGMIV
    from bgmiv.show.analysis import Analysis

__all__ = ["Folder", "open_model", "people_of", "read_treatment", "rows_of", "stored_analysis"]

Folder = Annotated[Path, typer.Argument(help="The folder of a saved model.", show_default=False)]


def open_model(folder: Path) -> BGMIV:
    """A saved model, which takes its covariates by name from any table.

    Raises:
        ModelFileError: the folder holds no saved model.
    """
    from bgmiv import BGMIV
    from bgmiv.data.frames import ColumnReader
    from bgmiv.errors import ModelFileError

    if not folder.is_dir():
        raise ModelFileError(
            f"{folder} is no folder of a saved model. Make one with: bgmiv fit DATA ... --out {folder}"
        )
    model = BGMIV.load(folder)
    if getattr(model, "reader_", None) is None:
        names = tuple(name for block in model._fitted().schema.blocks for name in block.input_names)
        model.reader_ = ColumnReader(names)
    return model


def stored_analysis(model: BGMIV, folder: Path) -> Analysis:
    """The analysis a model was saved with.

    Raises:
        ModelFileError: it was saved without one.
    """
    from bgmiv.errors import ModelFileError

    found: Analysis | None = getattr(model, "analysis_", None)
    if found is None:
        raise ModelFileError(
            f"{folder} holds a model without its analysis. Fit again with: bgmiv fit DATA ... --out DIR"
        )
    return found


def read_treatment(text: str, variable: Variable, option: str) -> Any:
    """A treatment as the fit knows it: a number, 0 or 1, or one of its levels."""
    levels = variable.levels
    if levels is not None:
        found = next((level for level in levels if str(level) == text), None)
        if found is None:
            known = ", ".join(str(level) for level in levels[:10])
            raise typer.BadParameter(f"{text!r} is no level of {variable.name!r}; there are {known}", param_hint=option)
        return found
    if variable.discrete and text.lower() in ("true", "false"):
        return float(text.lower() == "true")
    try:
        value = float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number", param_hint=option) from None
    if variable.discrete and value not in (0.0, 1.0):
        raise typer.BadParameter(f"{variable.name!r} is 0 or 1, got {text}", param_hint=option)
    if not abs(value) < float("inf"):
        raise typer.BadParameter(f"{text!r} is not finite", param_hint=option)
    return value


def people_of(model: BGMIV, table: Any) -> Table | None:
    """The covariates of a new file's rows, as the fit saw them; None if it had none."""
    found: Table = model._read(table)
    return found if model._fitted().schema.blocks else None


def rows_of(people: Table | None, rows: Any) -> Table | None:
    """Some of the rows."""
    if people is None:
        return None
    columns = tuple(column._replace(values=column.values[rows]) for column in people.columns)
    return people._replace(columns=columns, n_rows=len(columns[0].values), index=None, matrix=None)
