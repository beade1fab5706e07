"""What the page's script needs, as JSON that cannot end the element it stands in."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import t as student

from bgmiv.show.analysis import Analysis, Curve, CurveSource
from bgmiv.show.axes import curve_axes
from bgmiv.show.words import clean, level_names

__all__ = ["compact_deviations", "payload", "safe_json", "start_positions"]

_QUANTILES = 200
_DIGITS = 7


def payload(analysis: Analysis) -> dict[str, Any]:
    """Curves with what their uncertainty comes from, Student's quantiles, and where to begin."""
    across, up = curve_axes(analysis)
    levels = [clean(name) for name in level_names(analysis)]
    # Quantiles over 1 / freedom are smooth, so that a straight line between two of them is good to four digits.
    inverse = np.linspace(0.0, 1.0, _QUANTILES + 1)
    with np.errstate(divide="ignore"):
        quantiles = student.ppf(0.5 + analysis.level / 2.0, 1.0 / inverse)
    return {
        "level": analysis.level,
        "levels": levels,
        "across": [across.low, across.high],
        "up": [up.low, up.high],
        "quantiles": _rounded(quantiles),
        "start": start_positions(analysis),
        "curves": [_curve(curve) for curve in analysis.curves],
    }


def _curve(curve: Curve) -> dict[str, Any]:
    return {
        "label": clean(curve.label),
        "t": _rounded(curve.treatment),
        "g": _rounded(curve.estimate),
        "lower": _rounded(curve.lower),
        "upper": _rounded(curve.upper),
        "share": _rounded(curve.in_support),
        "sources": [
            {
                "freedom": source.freedom if math.isfinite(source.freedom) else None,
                "deviations": [_rounded(row) for row in compact_deviations(source)],
            }
            for source in curve.sources
        ],
    }


def compact_deviations(source: CurveSource) -> np.ndarray:
    """As few curves as give the same covariance between treatments: its leading directions.

    >>> source = CurveSource("sampling", 9.0, ((3.0, 0.0), (4.0, 0.0), (0.0, 0.0)))
    >>> np.abs(compact_deviations(source)).tolist()
    [[5.0, 0.0]]
    """
    deviations = np.asarray(source.deviations, np.float64)
    if not deviations.size or not np.all(np.isfinite(deviations)):
        return deviations[:0]
    _, sizes, directions = np.linalg.svd(deviations, full_matrices=False)
    kept = sizes > 1e-6 * sizes[0] if sizes[0] > 0 else sizes > 0
    return np.asarray(sizes[kept, None] * directions[kept])


def start_positions(analysis: Analysis) -> list[float]:
    """The two treatments of the first effect: numbers, or places among the levels."""
    grid = analysis.curves[0].treatment
    if not analysis.effects:
        return [grid[0], grid[-1]]
    levels = list(level_names(analysis))
    found = []
    for text, otherwise in zip((analysis.effects[0].t0, analysis.effects[0].t1), (grid[0], grid[-1]), strict=True):
        if levels:
            found.append(float(levels.index(text)) if text in levels else otherwise)
            continue
        try:
            value = float(text.replace(",", ""))
        except ValueError:
            value = otherwise
        found.append(min(max(value, grid[0]), grid[-1]) if math.isfinite(value) else otherwise)
    return found


def _rounded(values: Sequence[float] | np.ndarray) -> list[float | None]:
    return [float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None for value in map(float, values)]


def safe_json(value: Any) -> str:
    r"""JSON for a script element: letters of markup and of line ends are written by their numbers.

    >>> safe_json({"name": "</script>"})
    '{"name":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
