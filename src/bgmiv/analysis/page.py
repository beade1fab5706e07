"""One page that holds an analysis: nothing is loaded, nothing but its own script runs, and it works without it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bgmiv._io import check_file, remove_strays, write_whole
from bgmiv.analysis.analysis import Analysis, Curve, EffectRow, with_sets
from bgmiv.analysis.charts import curve_axes
from bgmiv.analysis.instruments import Records
from bgmiv.analysis.markup import Markup, asset, clean, element, filled
from bgmiv.analysis.sections import PICTURES, SECTIONS, direct_lines, headline
from bgmiv.distributions import student_quantile
from bgmiv.intervals import Source
from bgmiv.numerals import robust_set_text

__all__ = ["compact_factors", "payload", "report_page", "tables", "write_report"]

_N_QUANTILES = 200


def report_page(analysis: Analysis) -> str:
    """The whole page as HTML.

    Its policy lets only its own style and script act, by their hashes, and loads nothing. Every text is escaped where
    it enters an element, and the script writes texts only.
    """
    style, script = texts = [asset(name) for name in ("report.css", "report.js")]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii") for text in texts]
    sections = [(anchor, name, part) for anchor, name, make in SECTIONS if (part := make(analysis))]
    return filled(
        "page",
        style_hash=hashes[0],
        script_hash=hashes[1],
        title=analysis.title,
        style=Markup(style),
        script=Markup(script),
        links=[element("li", element("a", name, href=f"#{anchor}")) for anchor, name, _ in sections],
        headline=headline(analysis),
        sections=[element("section", section, id=anchor) for anchor, _, section in sections],
        made=f"Made by bgmiv {analysis.versions.get('bgmiv', '')} on {analysis.made}, seed {analysis.seed}",
        payload=Markup(_safe_json(payload(analysis))),
    )


def write_report(analysis: Analysis, path: str | os.PathLike[str]) -> Path:
    """Write the page to a file, whole or not at all, and give its path; raises as `check_file` does."""
    target = check_file(path)
    remove_strays(target)
    write_whole(target, report_page(analysis).encode())
    return target


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
        "quantiles": _rounded(student_quantile(0.5 + analysis.level / 2.0, dof)),
        "weak": analysis.weak,
        "units": clean(analysis.units),
        "direct": [
            {name: [_rounded(part) for part in np.atleast_2d(values)] for name, values in lines.items()}
            for lines in (direct_lines(analysis, each) for each in analysis.instruments.direct)
        ],
        "tables": {name: _table(rows) for name, rows in tables(analysis).items() if rows},
        "curves": [_curve_numbers(*both) for both in zip(analysis.curves, analysis.effects, strict=True)],
    }


def tables(analysis: Analysis) -> dict[str, Records]:
    """The numbers behind the tables and figures of the page as rows, by the names its buttons know."""
    views, linear, first = analysis.instruments, analysis.diagnosis.linear, analysis.curves[0]
    curves: Records = []
    for one in analysis.curves:
        curves += [{"method": analysis.method, "group": one.group.label} | row for row in one.records()]
    for _, other in analysis.others:
        group = first.group.label
        curves += _rows(method=other.name, group=group, treatment=first.treatment, estimate=other.curve)
    names = ("name", "estimate", "lower", "upper")
    methods = [{name: getattr(row, name) for name in names} for row in analysis.methods]
    balance: Records = []
    for each in views.balance:
        balance += _rows(instrument=each.instrument, covariate=each.covariates, difference=each.differences)
    history: Records = []
    for line in analysis.history:
        history += _rows(loss=line.name, phase=line.phase, step=line.steps, value=line.values)
    by_name = {
        "curve": curves,
        "effects": analysis.records(),
        "methods": with_sets(methods, analysis.methods),
        "linear": [] if linear is None else [asdict(linear)],
        "balance": balance,
        "direct": [asdict(each) for each in views.direct],
        "checks": analysis.diagnosis.records(),
        "data": [asdict(column) for column in analysis.question.columns],
        "history": history,
    }
    return by_name | {name: _rows(**asdict(means)) for name, means in zip(PICTURES, views.means, strict=False)}


def _rows(**columns: Any) -> Records:
    """Columns as rows; a single value is that of every row."""
    import pandas as pd

    # As objects, since texts of users need not be UTF-8.
    return pd.DataFrame(columns, dtype=object).to_dict("records")


def _table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Names of columns and their rows; numbers to ten digits, None where there is none."""

    def cell(value: Any) -> Any:
        if isinstance(value, int | float):
            return float(f"{float(value):.10g}") if math.isfinite(value) else None if math.isnan(value) else str(value)
        return None if value is None else clean(value)

    names = list(dict.fromkeys(name for row in rows for name in row))
    return {"columns": names, "rows": [[cell(row.get(name)) for name in names] for row in rows]}


def _curve_numbers(curve: Curve, effect: EffectRow) -> dict[str, Any]:
    ends = (effect.t0, effect.t1, effect.estimate, effect.lower, effect.upper, effect.in_support)
    names = ("estimate", "lower", "upper", "band_lower", "band_upper", "in_support")
    return {name: _rounded(getattr(curve, name)) for name in names} | {
        "label": clean(curve.group.label),
        "robust": robust_set_text(effect.interval.pieces) if effect.robust else "",
        # As they are: the calculator finds the effect at these treatments, to the last digit.
        "effect": _rounded(ends, digits=17),
        "treatment": curve.treatment,
        "sources": [
            {"dof": _rounded([source.dof], digits=17)[0], "factors": [_rounded(row) for row in compact_factors(source)]}
            for source in curve.sources
        ],
    }


def compact_factors(source: Source) -> np.ndarray:
    """As few curves as give the same covariance between treatments: its leading directions."""
    if not source.factors.size or not np.all(np.isfinite(source.factors)):
        return source.factors[:0]
    _, sizes, directions = np.linalg.svd(source.factors, full_matrices=False)
    kept = sizes > 1e-6 * sizes[0]
    return np.asarray(sizes[kept, None] * directions[kept])


def _rounded(values: Iterable[float | None], digits: int = 7) -> list[float | None]:
    """Numbers to so many digits; None where there is none."""
    return [float(f"{value:.{digits}g}") if value is not None and math.isfinite(value) else None for value in values]


def _safe_json(value: Any) -> str:
    """JSON for a script element: letters of markup are written by their numbers."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
