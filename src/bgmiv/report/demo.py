"""What the demo says: its table, its page and its record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from bgmiv.bench.metrics import StructuralError, structural_error
from bgmiv.bench.row import Row
from bgmiv.designs import make_design
from bgmiv.report import html
from bgmiv.report.figures import METHOD_LABELS

__all__ = ["HEADER", "constant_error", "demo_page", "demo_record", "result_cells"]

HEADER = ("method", "error (1e4)", "error", "inside", "outside", "time")
"""Columns of the demo's table; errors are mean squared, on the outcome's scale."""

_QUESTION = (
    "An airline sets ticket prices knowing something about demand that the analyst does not see, so the "
    "observed relation of price and sales is not the effect of price. A cost shifter moves prices and "
    "touches demand in no other way: it is the instrument. The question is what demand would be if the "
    "price were set by intervention, for each customer group and time of year."
)
_READING = (
    "The error is the mean squared distance from the true demand function over 2,800 combinations of price, "
    "time and group. Inside and outside split these points by whether training data show such a price at "
    "such a season (the central 99%); outside, every method extrapolates. In this design the bias from "
    "confounding is small next to the surface itself (disturbances have deviation 1, demand varies by "
    "hundreds), so the fit without the instrument can come close: the design tests how well a method learns "
    "the surface more than how well it corrects the bias."
)


def constant_error(row: Row) -> StructuralError:
    """The error of a guess that is the sample's mean outcome everywhere: the scale of the problem."""
    design = make_design(row.design)
    grid = design.grid()
    mean = float(design.sample(row.n, row.rho, row.seed).outcome.mean())
    return structural_error(np.full(len(grid), mean), grid)


def result_cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The table's texts: a line a method, and the constant guess last."""
    lines = []
    for row in rows:
        label = METHOD_LABELS.get(row.method, row.method)
        errors = (row.structural_mse, row.structural_mse_in_support, row.structural_mse_outside)
        lines.append((label, *_error_cells(*errors), f"{row.seconds:.1f} s"))
    lines.append(("mean outcome", *_error_cells(*constant_error(rows[0])), ""))
    return lines


def demo_record(rows: Sequence[Row]) -> dict[str, Any]:
    """What results.json holds."""
    return {
        "rows": [asdict(row) for row in rows],
        "constant_predictor": constant_error(rows[0])._asdict(),
    }


def demo_page(rows: Sequence[Row], figure: bytes) -> str:
    """The demo's report as one self-contained page.

    Args:
        rows: one a method.
        figure: the demand curves as PNG.
    """
    first = rows[0]
    failures = [html.paragraph(f"{row.method} failed: {row.error}") for row in rows if row.status != "ok"]
    used = ", ".join(f"{name} {number}" for name, number in first.versions.items())
    return html.page(
        "What would demand be if we set the price?",
        [
            html.paragraph(
                f"Simulated demand design: n = {first.n} rows, confounding rho = {first.rho:g}, "
                f"seed {first.seed}, preset {first.preset}.",
                note=True,
            ),
            html.heading("What was asked"),
            html.paragraph(_QUESTION),
            html.heading("How close each method came"),
            html.table(HEADER, result_cells(rows)),
            *failures,
            html.paragraph(_READING, note=True),
            html.heading("The curves"),
            html.image(
                figure,
                "True and estimated demand over price for several customer groups and times of year",
                "Shaded: prices that training data show at that season. Faint lines are extrapolations.",
            ),
            html.paragraph(
                "analysis.html, beside this page, is what an analyst without the truth would show of the BGM-IV fit: "
                "the average curve with intervals, effects by group, and whether to believe them."
            ),
            html.heading("To repeat it"),
            html.paragraph(f"bgmiv demo --n {first.n} --rho {first.rho:g} --seed {first.seed} --preset {first.preset}"),
            html.paragraph(f"Made with {used}, at {first.timestamp}. Seconds include compilation.", note=True),
        ],
    )


def _error_cells(everywhere: float | None, inside: float | None, outside: float | None) -> tuple[str, ...]:
    if everywhere is None or inside is None or outside is None:
        return ("failed", "", "", "")
    return (f"{everywhere / 1e4:.4f}", f"{everywhere:,.0f}", f"{inside:,.0f}", f"{outside:,.0f}")
