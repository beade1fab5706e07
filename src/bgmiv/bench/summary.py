"""Rows of the same cell put together: means and standard deviations over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bgmiv.bench.row import Row

__all__ = ["Cell", "Spread", "summarise"]


class Spread(NamedTuple):
    """Mean and standard deviation of numbers, and how many there were; NaN where there are too few.

    >>> str(Spread.of([1.0, 3.0]).scaled(0.5)), str(Spread.of([1.0])), str(Spread.of([]))
    ('1.0000 ± 0.7071', '1.0000', '-')
    """

    mean: float
    deviation: float
    values: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread:
        """The spread of the values that are there; the deviation is the sample's (n − 1)."""
        known = np.array([value for value in values if value is not None], dtype=np.float64)
        mean = float(known.mean()) if known.size else float("nan")
        deviation = float(known.std(ddof=1)) if known.size > 1 else float("nan")
        return cls(mean, deviation, known.size)

    def scaled(self, factor: float) -> Spread:
        """The spread in other units."""
        return Spread(self.mean * factor, self.deviation * factor, self.values)

    def __str__(self) -> str:
        if self.values == 0:
            return "-"
        return f"{self.mean:.4f}" if self.values == 1 else f"{self.mean:.4f} ± {self.deviation:.4f}"


@dataclass(frozen=True)
class Cell:
    """All seeds of one design, size, confounding level, method and preset; spreads are over ok rows."""

    design: str
    method: str
    preset: str
    n: int
    rho: float
    fits: int
    failed: int
    all: Spread
    in_support: Spread
    outside: Spread
    seconds: Spread
    cpu_seconds: Spread


def summarise(rows: Sequence[Row]) -> tuple[Cell, ...]:
    """One cell for each design, size, confounding level, method and preset, in the order of the rows."""
    cells: dict[tuple[str, str, str, int, float], list[Row]] = {}
    for row in rows:
        cells.setdefault((row.design, row.method, row.preset, row.n, row.rho), []).append(row)
    return tuple(_cell(name, members) for name, members in cells.items())


def _cell(name: tuple[str, str, str, int, float], members: Sequence[Row]) -> Cell:
    good = [row for row in members if row.status == "ok"]
    return Cell(
        *name,
        fits=len(members),
        failed=len(members) - len(good),
        all=Spread.of(row.structural_mse for row in good),
        in_support=Spread.of(row.structural_mse_in_support for row in good),
        outside=Spread.of(row.structural_mse_outside for row in good),
        seconds=Spread.of(row.seconds for row in good),
        cpu_seconds=Spread.of(row.cpu_seconds for row in good),
    )
