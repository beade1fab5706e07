"""``bgmiv effect``: the average effect of one treatment against another, by a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from bgmiv.cli.common import reported, share_between
from bgmiv.cli.output import print_json
from bgmiv.cli.roles import warnings_shown
from bgmiv.cli.saved import Folder, open_model, people_of, read_treatment, rows_of, stored_analysis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bgmiv.data.schema import Variable
    from bgmiv.effects import Interval
    from bgmiv.estimators.bgmiv import BGMIV
    from bgmiv.show.analysis import Analysis, Curve

__all__ = ["EPILOG", "effect"]

EPILOG = """Example: bgmiv effect card-fit --t0 12 --t1 16 --by black

Exit codes: 0 fine; 1 bad data or a bad model folder; 2 bad usage."""

_MOST_GROUPS = 50


class _Row(NamedTuple):
    who: str
    n_rows: int
    interval: Interval


@reported
def effect(
    folder: Folder,
    t0: Annotated[str, typer.Option(help="The treatment that is compared with.", show_default=False)],
    t1: Annotated[str, typer.Option(help="The treatment whose effect is asked for.", show_default=False)],
    data: Annotated[
        Path | None, typer.Option(help="The people asked about: a CSV or Parquet file. By default those of the fit.")
    ] = None,
    by: Annotated[str | None, typer.Option(help="Also for each level of this column.")] = None,
    level: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """The average effect of setting the treatment to t1 instead of t0, with an interval.

    Without --data it is read off the average curves that the fit has stored, between their points by straight lines;
    the share in support is then the smaller one of the two treatments.
    """
    share_between(level, "--level")
    with warnings_shown():
        model = open_model(folder)
        variable = model._fitted().schema.treatment
        pair = (read_treatment(t0, variable, "--t0"), read_treatment(t1, variable, "--t1"))
        if data is None:
            rows = _stored(stored_analysis(model, folder), variable, pair, by, level)
        else:
            rows = _asked(model, data, pair, by, level)
    outcome = model._fitted().schema.outcome.name
    if as_json:
        print_json(_record(rows, outcome, variable, pair, level))
    else:
        _print(rows, outcome, variable, pair, level)


def _stored(analysis: Analysis, variable: Variable, pair: tuple[Any, Any], by: str | None, level: float) -> list[_Row]:
    from bgmiv.errors import DataError

    curves = list(analysis.curves[:1])
    if by is not None:
        groups = [curve for curve in analysis.curves[1:] if curve.label.startswith(f"{by} ")]
        if not groups:
            known = ", ".join(dict.fromkeys(curve.label.split(" ")[0] for curve in analysis.curves[1:]))
            raise DataError(f"the fit has stored no curves by {by!r} (it has: {known or 'none'}). Give --data DATA.")
        curves += groups
    return [_Row(curve.label, curve.n_rows, _along(curve, variable, pair, level)) for curve in curves]


def _along(curve: Curve, variable: Variable, pair: tuple[Any, Any], level: float) -> Interval:
    """The contrast of two points of a stored curve; its deviations are interpolated as the curve is."""
    import numpy as np

    from bgmiv.effects import Answer, Source, interval_of
    from bgmiv.errors import DataError

    levels = variable.levels
    at = np.asarray([levels.index(value) if levels else value for value in pair], np.float64)
    low, high = curve.treatment[0], curve.treatment[-1]
    if at.min() < low or at.max() > high:
        raise DataError(
            f"the stored curve goes from {low:.4g} to {high:.4g} of {variable.name!r}. For other treatments give the "
            "people asked about: --data DATA."
        )

    def change(values: Sequence[float]) -> float:
        before, after = np.interp(at, curve.treatment, values)
        return float(after - before)

    sources = tuple(
        Source(source.name, np.asarray([change(row) for row in source.deviations]), source.freedom)
        for source in curve.sources
    )
    share = float(np.interp(at, curve.treatment, curve.in_support).min())
    return interval_of(Answer(np.asarray(change(curve.estimate)), sources), level, in_support=share)


def _asked(model: BGMIV, data: Path, pair: tuple[Any, Any], by: str | None, level: float) -> list[_Row]:
    import numpy as np

    from bgmiv.data.files import read_table_file
    from bgmiv.data.frames import read_columns
    from bgmiv.errors import DataError

    table = read_table_file(data)
    n = read_columns(table, ()).n_rows
    groups: list[tuple[str, Any]] = [("everyone", np.arange(n))]
    if by is not None:
        labels = read_columns(table, [by]).columns[0].values.astype(str)
        kinds = np.unique(labels)
        if len(kinds) > _MOST_GROUPS:
            raise DataError(f"column {by!r} has {len(kinds)} values. Group by one of at most {_MOST_GROUPS}.")
        groups += [(f"{by} = {kind}", np.flatnonzero(labels == kind)) for kind in kinds]
    people = people_of(model, table)
    return [
        _Row(who, len(rows), model.ate_interval(rows_of(people, rows), t0=pair[0], t1=pair[1], level=level))
        for who, rows in groups
    ]


def _record(rows: list[_Row], outcome: str, variable: Variable, pair: tuple[Any, Any], level: float) -> dict[str, Any]:
    return {
        "outcome": outcome,
        "treatment": variable.name,
        "t0": pair[0],
        "t1": pair[1],
        "level": level,
        "effects": [
            {
                "who": row.who,
                "n_rows": row.n_rows,
                "estimate": row.interval.estimate,
                "lower": row.interval.lower,
                "upper": row.interval.upper,
                "sources": row.interval.sources,
                "in_support": row.interval.in_support,
            }
            for row in rows
        ],
    }


def _print(rows: list[_Row], outcome: str, variable: Variable, pair: tuple[Any, Any], level: float) -> None:
    import numpy as np
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    title = (
        f"Average effect of {variable.name} {pair[1]:g} instead of {pair[0]:g} on {outcome}"
        if (variable.levels is None)
        else f"Average effect of {variable.name} {pair[1]} instead of {pair[0]} on {outcome}"
    )
    shown = Table(title=escape(title), title_justify="left")
    for name in ("who", "rows", "effect", f"{100 * level:g}% interval", "in support"):
        shown.add_column(name, justify="left" if name == "who" else "right")
    for row in rows:
        estimate, lower, upper = (
            ", ".join(f"{value:.4g}" for value in np.atleast_1d(part))
            for part in (row.interval.estimate, row.interval.lower, row.interval.upper)
        )
        share = f"{100 * float(row.interval.in_support):.0f}%"
        shown.add_row(escape(row.who), f"{row.n_rows:,}", estimate, f"{lower} to {upper}", share)
    Console().print(shown)
