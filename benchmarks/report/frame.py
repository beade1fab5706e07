"""Labels, marks and selections of rows that all tables and figures share."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from bgmiv.bench.show import method_order
from bgmiv.registry import NO_INSTRUMENT

__all__ = [
    "ABLATED", "FAILED", "MIXED", "OTHER", "cell_marks", "column_order", "instrumental", "libraries", "mixed_versions",
    "ranges",
]  # fmt: skip

ABLATED = ("-no-egm", "-egm0")
"""Endings of presets without their first phase: not at all, or one iteration of it, as in the authors' code."""

MIXED, FAILED, OTHER = "†", "‡", "§"
"""Marks of a cell: its rows come from several versions of libraries; some fits failed; another version of the method
or design than today's made them."""


def instrumental(frame: pd.DataFrame, design: str) -> pd.DataFrame:
    """The design's rows that stand in its accuracy table: methods that use the instrument, with all their phases."""
    own = frame[frame["design"] == design]
    return own[~own["method"].str.endswith(NO_INSTRUMENT) & ~own["preset"].str.endswith(ABLATED)]


def cell_marks(rows: pd.DataFrame) -> str:
    """The marks of a cell made of these rows."""
    marks = {MIXED: mixed_versions(rows), FAILED: not rows["ok"].all(), OTHER: rows["outdated"].any()}
    return "".join(sign for sign, holds in marks.items() if holds)


def libraries(rows: pd.DataFrame) -> pd.Series:
    """The versions of the libraries behind each row as one text."""
    return rows["versions"].map(lambda known: ", ".join(f"{name} {known[name]}" for name in sorted(known)))


def mixed_versions(rows: pd.DataFrame) -> list[str]:
    """In words, every library of which the rows of one cell have more than one version."""
    versions = rows["versions"].to_list()
    found = []
    for name in dict.fromkeys(name for version in versions for name in version):
        seeds: dict[str, list[int]] = {}
        for version, seed in zip(versions, rows["seed"], strict=True):
            seeds.setdefault(version.get(name, "not named"), []).append(seed)
        if len(seeds) > 1:
            found.append(f"{name} " + " and ".join(f"{which} (seeds {ranges(own)})" for which, own in seeds.items()))
    return found


def ranges(numbers: Sequence[int]) -> str:
    """Whole numbers in short, as in `0-2, 5, 7-8`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join("-".join(str(end) for end in part) for part in parts)


def column_order(frame: pd.DataFrame) -> list[str]:
    """The labels of a frame, each a column of a table, by method and preset."""
    columns = frame[["method", "preset", "label"]].drop_duplicates().itertuples(index=False)
    return [column.label for column in sorted(columns, key=lambda column: method_order(column.method, column.preset))]
