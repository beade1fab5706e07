"""``bgmiv diagnose``: what speaks for and against a saved fit."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from bgmiv.cli.common import reported
from bgmiv.cli.output import plain, print_json
from bgmiv.cli.saved import Folder, open_model, stored_analysis

if TYPE_CHECKING:
    from bgmiv.show.analysis import Analysis

__all__ = ["EPILOG", "diagnose"]

EPILOG = """Example: bgmiv diagnose card-fit

Exit codes: 0 fine, whatever the checks say; 1 a bad model folder; 2 bad usage."""

_WIDTH = 80


@reported
def diagnose(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """The checks of a fit as it has stored them, each with a reading: instruments, moments, the linear estimate."""
    analysis = stored_analysis(open_model(folder), folder)
    if as_json:
        verdict = analysis.verdict
        print_json(
            {
                "level": analysis.diagnosis.level,
                "checks": plain(analysis.diagnosis.checks),
                "linear": plain(analysis.diagnosis.linear),
                "verdict": None if verdict is None else {"level": verdict.level, "reasons": verdict.reasons},
            }
        )
    else:
        typer.echo(_text(analysis))


def _text(analysis: Analysis) -> str:
    lines = []
    for check in analysis.diagnosis.checks:
        lines += [f"[{check.level}] {check.title}: {check.value}"]
        lines += textwrap.wrap(check.reading, _WIDTH, initial_indent="    ", subsequent_indent="    ")
        if check.reference:
            lines += textwrap.wrap(f"({check.reference})", _WIDTH, initial_indent="    ", subsequent_indent="    ")
    linear = analysis.diagnosis.linear
    if linear is not None:
        sets = " or ".join(f"{low:.4g} to {high:.4g}" for low, high in linear.robust_set) or "empty"
        lines += [
            f"Linear two-stage least squares: {linear.coefficient:.4f} ({linear.std_error:.4f}), "
            f"{100 * linear.level:g}% interval {linear.lower:.4g} to {linear.upper:.4g}",
            f"    Least squares without the instruments: {linear.ols:.4f} ({linear.ols_std_error:.4f})",
            f"    Anderson-Rubin set, which weak instruments do not mislead: {sets}",
        ]
    if analysis.verdict is not None:
        lines.append(f"Fit in held-out rows: {analysis.verdict.level}")
        for reason in analysis.verdict.reasons:
            lines += textwrap.wrap(reason, _WIDTH, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)
