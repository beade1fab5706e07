"""How much of a plan has been run, and what the rest would take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
import pandas as pd

from bgmiv.bench.plan import RunSpec

__all__ = ["Filled", "family_of", "filled"]

CELL = ["design", "n", "rho", "method", "preset"]


def family_of(preset: str) -> str:
    """The family of a preset, within which methods are compared: `default`, or `paper` for `paper-qmc` as well."""
    return preset.split("-")[0]


class Filled(NamedTuple):
    """How far some runs of one family are."""

    family: str
    cells: int  # different runs but for their seeds
    filled_cells: int  # with at least one fit of today's version
    fits: int
    done: int  # by today's version
    other: int  # by another version only
    hours: float  # of one processor, for the fits not done by today's version, from the times of stored rows
    unknown: int  # fits of which no row of the same design, method and preset tells the time

    @property
    def missing(self) -> int:
        """Fits that today's version has not done."""
        return self.fits - self.done


def filled(frame: pd.DataFrame, specs: Iterable[RunSpec]) -> list[Filled]:
    """How far these runs are, by family; the rest's cost is estimated from rows at the nearest sample size.

    Args:
        frame: what :func:`read_rows` gives.
        specs: the runs.
    """
    runs = pd.DataFrame([asdict(spec) for spec in specs])
    if runs.empty:
        return []
    # Of several rows of one run, one of today's version counts.
    good = frame[frame["ok"]].sort_values("outdated", kind="stable")
    runs = runs.merge(good[[*runs.columns, "outdated"]].drop_duplicates(list(runs.columns)), how="left")
    runs["done"], runs["other"] = runs["outdated"].eq(False), runs["outdated"].eq(True)
    times = good.groupby(["design", "method", "preset", "n"])["cpu_seconds"].mean()
    parts = []
    families = runs["preset"].map(family_of)
    for family, own in sorted(runs.groupby(families), key=lambda item: item[0] == "default"):
        hours, unknown = 0.0, 0
        for (design, method, preset, n), missing in own[~own["done"]].groupby(["design", "method", "preset", "n"]):
            known = times.get((design, method, preset), pd.Series(dtype=float))
            if known.empty:
                unknown += len(missing)
                continue
            nearest = min(known.index, key=lambda size: abs(np.log(size / n)))
            hours += len(missing) * known[nearest] * n / nearest / 3600.0
        cells = own.groupby(CELL)["done"].any()
        counts = (len(cells), int(cells.sum()), len(own), int(own["done"].sum()), int(own["other"].sum()))
        parts.append(Filled(family, *counts, hours, unknown))
    return parts
