"""What can be turned on the page: the controls, and the numbers its script computes with."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import t as student

from bgmiv.analysis.analysis import Analysis, Curve, CurveSource, EffectRow
from bgmiv.analysis.charts import curve_axes, method_curves, sample
from bgmiv.analysis.markup import Markup, clean, element, number, percent, shortened

__all__ = ["compact_factors", "contrast_form", "legend", "payload", "reader", "safe_json"]

_N_QUANTILES = 200
_DIGITS = 7


def payload(analysis: Analysis) -> dict[str, Any]:
    """Curves with what their uncertainty comes from, Student's quantiles, and the effects to begin with."""
    across, up = curve_axes(analysis)
    # Quantiles over 1 / dof are smooth, so that a straight line between two of them is good to four digits.
    with np.errstate(divide="ignore"):
        dof = 1.0 / np.linspace(0.0, 1.0, _N_QUANTILES + 1)
    return {
        "level": analysis.level,
        "levels": [clean(name) for name in analysis.question.level_names],
        "across": [across.low, across.high],
        "up": [up.low, up.high],
        "quantiles": _rounded(student.ppf(0.5 + analysis.level / 2.0, dof)),
        "curves": [_curve(*both) for both in zip(analysis.curves, analysis.effects, strict=True)],
    }


def _curve(curve: Curve, effect: EffectRow) -> dict[str, Any]:
    ends = (effect.t0, effect.t1, effect.estimate, effect.lower, effect.upper, effect.in_support)
    return {
        "label": clean(curve.group.label),
        # As they are: the calculator finds the effect at these treatments, to the last digit.
        "effect": [value if value is not None and math.isfinite(value) else None for value in ends],
        "t": list(curve.treatment),
        "g": _rounded(curve.estimate),
        "lower": _rounded(curve.lower),
        "upper": _rounded(curve.upper),
        "share": _rounded(curve.in_support),
        "sources": [
            {
                "dof": source.dof if math.isfinite(source.dof) else None,
                "factors": [_rounded(row) for row in compact_factors(source)],
            }
            for source in curve.sources
        ],
    }


def compact_factors(source: CurveSource) -> np.ndarray:
    """As few curves as give the same covariance between treatments: its leading directions."""
    factors = np.asarray(source.factors, np.float64)
    if not factors.size or not np.all(np.isfinite(factors)):
        return factors[:0]
    _, sizes, directions = np.linalg.svd(factors, full_matrices=False)
    kept = sizes > 1e-6 * sizes[0] if sizes[0] > 0 else sizes > 0
    return np.asarray(sizes[kept, None] * directions[kept])


def _rounded(values: Sequence[float] | np.ndarray) -> list[float | None]:
    return [float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None for value in map(float, values)]


def safe_json(value: Any) -> str:
    """JSON for a script element: letters of markup are written by their numbers."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def legend(analysis: Analysis) -> Markup | None:
    """The choice of group, and of the other methods that are drawn beside the curve."""
    parts: list[Markup] = []
    if len(analysis.curves) > 1:
        options = [
            element("option", f"{shortened(one.group.label, 60)} ({one.group.n_rows:,} rows)", value=i)
            for i, one in enumerate(analysis.curves)
        ]
        parts.append(element("label", element("span", "Averaged over"), element("select", *options, id="group")))
    others = method_curves(analysis)
    if others:
        boxes = [
            (
                element("input", type="checkbox", data_toggle=i),
                sample(i, bool(analysis.question.level_names)),
                element("bdi", shortened(name, 40)),
            )
            for i, name, _ in others
        ]
        labels = [element("label", *box) for box in boxes]
        parts.append(element("fieldset", element("legend", "Compare with"), *labels))
    return element("div", *parts, class_="controls needs-js") if parts else None


def reader(analysis: Analysis) -> Markup:
    """A slider along the curve, and what it reads there."""
    last = len(analysis.curves[0].treatment) - 1
    treatment = shortened(analysis.question.treatment, 30)
    slider = element(
        "input", type="range", id="place", min=0, max=last, step=1, value=round(0.625 * last),
        aria_label=f"Read the curve at this {treatment}",
    )  # fmt: skip
    cells = [
        (treatment, "read-treatment"),
        (shortened(analysis.question.outcome_meaning, 40), "read-estimate"),
        (f"{percent(analysis.level)} interval", "read-interval"),
        ("in support", "read-share"),
    ]
    shown = [element("div", element("dt", name), element("dd", "", id=anchor)) for name, anchor in cells]
    return element("div", slider, element("dl", *shown, class_="readout", id="readout"), class_="needs-js reader")


def contrast_form(analysis: Analysis) -> Markup | None:
    """Two treatments to choose, and the average effect of one against the other."""
    if len(analysis.curves[0].treatment) < 2:
        return None
    first = analysis.effects[0]
    fields = [_field(analysis, "t1", "setting it to", first.t1), _field(analysis, "t0", "instead of", first.t0)]
    return element(
        "div",
        element("h3", "Ask for another contrast"),
        element("div", *fields, class_="fields"),
        element(
            "output",
            element("b", "", id="contrast-value"),
            element("span", "", id="contrast-interval"),
            element("span", "", id="contrast-share", class_="soft"),
            id="contrast",
            aria_live="polite",
        ),
        class_="contrast needs-js",
    )


def _field(analysis: Analysis, name: str, word: str, value: float) -> Markup:
    levels, grid = analysis.question.level_names, analysis.curves[0].treatment
    treatment = shortened(analysis.question.treatment, 30)
    label = element("span", f"{treatment}, {word}")
    if levels:
        shown = enumerate(shortened(level, 60) for level in levels)
        options = [element("option", text, value=i, selected=i == int(value)) for i, text in shown]
        return element("label", label, element("select", *options, id=name))
    # All digits, so that the script knows the treatments of the effect.
    low, high, start = (repr(t).removesuffix(".0") for t in (grid[0], grid[-1], value))
    ends = {"min": low, "max": high, "step": "any", "value": start}
    return element(
        "div",
        element("label", label, element("input", type="number", id=name, inputmode="decimal", **ends)),
        element("input", type="range", id=f"{name}-slide", aria_label=f"{treatment}, {word}", **ends),
        element("p", element("span", number(grid[0])), element("span", number(grid[-1])), class_="soft"),
    )
