"""The rows a report stands on: the newest of each run, put into cells, and what is mixed in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from bgmiv.bench.row import Row
from bgmiv.bench.summary import Spread
from bgmiv.report.naming import Column, Setting, column_order, design_order, ranges
from bgmiv.report.table import Mark

__all__ = ["Results", "cell_marks", "mixture", "pair_marks", "spread_of"]


@dataclass(frozen=True)
class Results:
    """Rows by design, setting and column, in the order of the paper's tables.

    Args:
        cells: for each setting and column, one row a seed, by seed: of several rows of one run (made by several
            versions of the code) the newest.
        superseded: rows that a newer row of the same run replaces; no table uses them.

    Example
    -------
    >>> Results.of([]).designs
    ()
    """

    cells: Mapping[Setting, Mapping[Column, tuple[Row, ...]]] = field(hash=False)
    superseded: tuple[Row, ...]

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Results:
        """Keep the newest row of each specification; the order of the rows does not matter."""
        newest: dict[tuple[Setting, Column, int], Row] = {}
        superseded = []
        for row in sorted(rows, key=lambda row: (_instant(row.timestamp), row.code, row.config)):
            place = (Setting(row.design, row.rho, row.n), Column(row.method, row.preset), row.seed)
            if place in newest:
                superseded.append(newest[place])
            newest[place] = row
        cells: dict[Setting, dict[Column, list[Row]]] = {}
        for setting, column, seed in sorted(newest, key=_place_order):
            cells.setdefault(setting, {}).setdefault(column, []).append(newest[setting, column, seed])
        return cls(
            {setting: {column: tuple(found) for column, found in part.items()} for setting, part in cells.items()},
            tuple(superseded),
        )

    @property
    def designs(self) -> tuple[str, ...]:
        """Every design with a row."""
        return tuple(dict.fromkeys(setting.design for setting in self.cells))

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every row in use."""
        return tuple(row for part in self.cells.values() for found in part.values() for row in found)

    def settings(self, design: str, columns: Iterable[Column] | None = None) -> tuple[Setting, ...]:
        """The design's settings; of those given columns if any are given."""
        wanted = None if columns is None else set(columns)
        return tuple(
            setting
            for setting, part in self.cells.items()
            if setting.design == design and (wanted is None or wanted & set(part))
        )

    def columns(self, design: str, keep: Callable[[Column], bool] = lambda _: True) -> tuple[Column, ...]:
        """The design's columns that are to be kept."""
        found = {column for setting in self.settings(design) for column in self.cells[setting] if keep(column)}
        return tuple(sorted(found, key=column_order))

    def fits(self, setting: Setting, column: Column) -> tuple[Row, ...]:
        """The rows of one cell, none if there is no such cell."""
        return self.cells.get(setting, {}).get(column, ())

    def errors(self, setting: Setting, column: Column) -> dict[int, float]:
        """The structural error of each seed whose fit did not fail."""
        return {
            row.seed: row.structural_mse
            for row in self.fits(setting, column)
            if row.status == "ok" and row.structural_mse is not None
        }


def spread_of(values: Iterable[float | None], scale: float = 1.0) -> Spread:
    """Mean and standard deviation in units of the scale.

    >>> str(spread_of([1e4, 3e4], 1e4))
    '2.0000 ± 1.4142'
    """
    return Spread.of(values).scaled(1.0 / scale)


def cell_marks(rows: Sequence[Row]) -> tuple[Mark, ...]:
    """What must be said about a cell made of these rows: mixed versions, failed fits."""
    marks = []
    if mixture(rows):
        marks.append(Mark.MIXED)
    if any(row.status != "ok" for row in rows):
        marks.append(Mark.FAILED)
    return tuple(marks)


def pair_marks(results: Results, setting: Setting, *columns: Column | None) -> tuple[Mark, ...]:
    """The marks of any of these columns at a setting; also mixed if their libraries differ.

    Each method has a code version of its own, so those are compared only within a column.
    """
    sides = [results.fits(setting, column) for column in columns if column is not None]
    marks = {mark for rows in sides for mark in cell_marks(rows)}
    if len({tuple(sorted(row.versions.items())) for rows in sides for row in rows}) > 1:
        marks.add(Mark.MIXED)
    return tuple(mark for mark in Mark if mark in marks)


def mixture(rows: Sequence[Row]) -> tuple[str, ...]:
    """In words, everything of which these rows of one cell have more than one version; empty if there is none."""
    libraries = sorted({name for row in rows for name in row.versions})
    aspects: list[tuple[str, Callable[[Row], str]]] = [
        ("code", lambda row: row.code),
        ("settings", lambda row: row.config),
        *((name, _version_of(name)) for name in libraries),
    ]
    found = []
    for name, aspect in aspects:
        seeds: dict[str, list[int]] = {}
        for row in sorted(rows, key=lambda row: row.seed):
            seeds.setdefault(aspect(row), []).append(row.seed)
        if len(seeds) > 1:
            parts = (f"{version} (seeds {ranges(members)})" for version, members in seeds.items())
            found.append(f"{name} " + " and ".join(parts))
    return tuple(found)


def _version_of(name: str) -> Callable[[Row], str]:
    return lambda row: row.versions.get(name, "not named")


def _instant(timestamp: str) -> datetime:
    try:
        instant = datetime.fromisoformat(timestamp)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def _place_order(place: tuple[Setting, Column, int]) -> tuple[object, ...]:
    setting, column, seed = place
    return (design_order(setting.design), setting.rho, setting.n, column_order(column), seed)
