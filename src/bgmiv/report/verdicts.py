"""What methods thought of their own fits, beside what the truth says about them."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import Any

from bgmiv.bench.row import Row
from bgmiv.report.naming import column_labels
from bgmiv.report.results import Results
from bgmiv.report.table import Table
from bgmiv.trust.verdict import FitEvidence, Level, judge

__all__ = ["BAD_RATIO", "level_of", "verdict_table"]

BAD_RATIO = 3.0
"""A fit is called bad here if its structural error is more than this many times its cell's median."""


def level_of(row: Row) -> Level | None:
    """The verdict on a stored fit under today's thresholds; None without evidence from held-out rows."""
    if not row.evidence.get("n_held_out"):
        return None
    known: dict[str, Any] = {k: v for k, v in row.evidence.items() if k in FitEvidence.__dataclass_fields__}
    return judge(FitEvidence(**known)).level


def verdict_table(results: Results) -> Table | None:
    """Verdicts by cell, and how they agree with the structural error; None if no row has any."""
    rows = []
    for setting, part in results.cells.items():
        for column, fits in part.items():
            judged = [
                (level, row.structural_mse)
                for row in fits
                if (level := level_of(row)) is not None and row.structural_mse is not None
            ]
            if not judged:
                continue
            usual = median(error for _, error in judged)
            counts = Counter(level for level, _ in judged)
            bad = [level for level, error in judged if error > BAD_RATIO * usual]
            caught = sum(level != "good" for level in bad)
            alarms = sum(level != "good" for level, _ in judged) - caught
            rows.append(
                (
                    *(setting.design, f"{setting.rho:g}", setting.n, column_labels([column])[column], column.preset),
                    *(len(judged), counts["good"], counts["doubtful"], counts["failed"], len(bad), caught, alarms),
                )
            )
    if not rows:
        return None
    return Table(
        name="verdicts",
        title="Verdicts that fits passed on themselves from held-out rows",
        header=(
            *("design", "rho", "n", "method", "preset", "fits", "good", "doubtful", "failed"),
            *(f"error above {BAD_RATIO:g} medians", "of these flagged", "others flagged"),
        ),
        rows=tuple(rows),
        notes=(
            "A verdict needs no truth: it rests on rows that training left out. Beside it stands how many fits have a "
            f"structural error above {BAD_RATIO:g} times the median of their cell, and how many of these were flagged "
            "(doubtful or failed).",
        ),
        grouped=True,
    )
