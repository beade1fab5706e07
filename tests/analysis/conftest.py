"""Analyses made by hand, as a fit would fill them: a number as treatment, levels, and a method without intervals."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgmiv.analysis.analysis import (
    Analysis,
    AnalysisRequest,
    ColumnSummary,
    Curve,
    EffectRow,
    Group,
    HistoryLine,
    MethodRow,
    Question,
    contrast,
)
from bgmiv.analysis.instruments import Balance, BinnedMeans, DirectEffect, InstrumentViews
from bgmiv.diagnostics.checks import Diagnosis
from bgmiv.diagnostics.explanations import Check
from bgmiv.diagnostics.verdict import judge
from bgmiv.fitted import FitEvidence
from bgmiv.intervals import NO_INTERVAL, Estimate, Interval, Source, interval_of
from bgmiv.linear_iv import LinearEstimate

GROUPS = (
    (Group("", "all rows", 3010), 0.0),
    (Group("region", "region = south", 1215), 0.08),
    (Group("region", "region = north", 1795), -0.05),
    (Group("black", "black = 1", 703), 0.2),
)
LEVELS = ("none", "leaflet", "phone call", "visit at home")


def _curve(group: Group, values: np.ndarray, support: np.ndarray, grid: np.ndarray, shapes: np.ndarray) -> Curve:
    """A curve with two sources of uncertainty."""
    scale = 0.035 * np.sqrt(3010 / group.n_rows)
    factors = {"sampling": (scale * shapes, np.inf), "network": (0.4 * scale * shapes[::-1], 7.0)}
    sources = tuple(Source(name, rows, dof) for name, (rows, dof) in factors.items())
    ends, band = (interval_of(Estimate(values, sources), 0.95, band=kind) for kind in ("pointwise", "uniform"))
    inner = (tuple(part.tolist()) for part in (grid, values, ends.lower, ends.upper, support))
    return Curve(group, *inner, sources, tuple(band.lower.tolist()), tuple(band.upper.tolist()))


def _effect(curve: Curve, t0: float, t1: float) -> EffectRow:
    return EffectRow(curve.group, t0, t1, contrast(curve, t0, t1, 0.95)[0])


def usual(estimate: float, lower: float, upper: float) -> Interval:
    """A method's interval."""
    return Interval(estimate, lower, upper, 0.95, {"sampling": (upper - lower) / 3.92})


def point(estimate: float) -> Interval:
    """The answer of a method without intervals."""
    return Interval(estimate, math.nan, math.nan, 0.95, {}, method=NO_INTERVAL)


CHECKS = (
    Check("effective-f", "good", {"effective_f": 33.2, "critical": 23.1, "instruments": 2.0}, {"level": "high school"}),
    Check("nonlinear-first-stage", "good", {"gain": 0.041}),
    Check("endogeneity", "note", {"robust_p": 0.28, "wu_hausman_p": 0.31}),
    Check("moment-test", "good", {"p": 0.61, "statistic": 0.001, "held_out": 1.0, "rows": 602.0}),
)


@pytest.fixture(scope="session")
def analysis() -> Analysis:
    """Returns to schooling, with groups, other methods and a history."""
    grid = np.linspace(6.0, 18.0, 49)
    centred = (grid - 12.6) / 4.0
    support = np.clip(1.25 - np.abs((grid - 12.6) / 6.2) ** 3, 0.0, 1.0)
    shapes = np.stack([np.ones_like(grid), centred, centred**2, 0.4 * np.sin(2.0 * centred)])
    values = 5.35 + 0.075 * grid + 0.22 * np.tanh((grid - 12.0) / 2.5)
    curves = tuple(_curve(group, values + shift * (grid / 12.0), support, grid, shapes) for group, shift in GROUPS)
    effects = tuple(_effect(curve, 12.0, 16.0) for curve in curves)
    line, naive = (tuple((6.2 + slope * (grid - 12.6)).tolist()) for slope in (0.1315, 0.0747))
    methods = (
        MethodRow("BGM-IV", effects[0].interval, curves[0].estimate, "", "doubtful", 602),
        MethodRow("2SLS", usual(0.526, 0.097, 0.955), line, "line"),
        MethodRow("BGM-IV without the instrument", usual(0.31, 0.27, 0.35), naive, "no-instrument"),
        MethodRow("KIV", point(0.37), tuple((np.asarray(naive) + 0.03 * np.sin(grid)).tolist())),
    )
    steps = tuple(range(0, 4000, 100))
    losses = tuple((0.5 + np.exp(-np.asarray(steps) / 900.0)).tolist())
    phases = {"latent critic": "warm start", "cycle": "warm start", "treatment": "joint", "outcome": "joint"}
    columns = (
        ColumnSummary("lwage", "outcome", "continuous", "mean 6.26, standard deviation 0.444, from 4.61 to 7.78"),
        ColumnSummary("educ", "treatment", "continuous", "mean 13.3, standard deviation 2.68, from 1 to 18"),
    )
    question = Question(
        "lwage", "educ", ("nearc4",), ("exper", "black", "region"), "the mean of lwage", (),
        "lwage ~ exper + black + C(region) + [educ ~ nearc4]", "card.csv", 3010, 12, "", "", columns,
    )  # fmt: skip
    ends = ((6.23, 6.275), (6.21, 6.26), (6.25, 6.29), (6.23, 6.275), (957, 2053))
    stage = ((13.0, 13.4), (12.9, 13.3), (13.1, 13.5), (13.0, 13.4), (957, 2053))
    views = InstrumentViews(
        (BinnedMeans("educ", "nearc4", (0.0, 1.0), *stage), BinnedMeans("lwage", "nearc4", (0.0, 1.0), *ends)),
        (Balance("nearc4", True, ("region=south", "black", "exper"), (-0.48, -0.16, 0.02), 9, 76.6, 2e-9),),
        (DirectEffect("nearc4", 0.466, 0.1315, -3.08, 0.0029, -0.08, 2.4),),
    )
    evidence = FitEvidence(n_held_out=602, outcome_explained=0.27, linear_explained=0.26, disagreement=0.15)
    return Analysis(
        request=AnalysisRequest(by=("region", "black"), t0=12, t1=16),
        title="Returns to schooling",
        question=question,
        method="BGM-IV",
        settings={"members": "8", "preset": "'default'"},
        level=0.95,
        interval_kind="quasi-posterior: sampling of rows and chance in training together.",
        curves=curves,
        effects=effects,
        diagnosis=Diagnosis(
            CHECKS, LinearEstimate(0.1315, 0.0548, 0.0241, 0.2389, 0.0747, 0.0035, ((0.0242, 0.2850),), 0.95)
        ),
        verdict=judge(evidence),
        methods=methods,
        history=tuple(HistoryLine(name, phase, steps, losses) for name, phase in phases.items()),
        versions={"bgmiv": "0.1.0", "numpy": "2.3.1"},
        seed=7,
        instruments=views,
        made="2026-11-17",
    )


@pytest.fixture(scope="session")
def levelled(analysis: Analysis) -> Analysis:
    """A treatment with levels, and a probability as outcome."""
    grid, support = np.arange(4.0), np.array([1.0, 0.98, 0.74, 0.41])
    shapes = 0.3 * np.random.default_rng(0).normal(size=(5, 4))
    values = np.array([0.21, 0.24, 0.31, 0.36])
    curves = tuple(_curve(group, values + shift / 4, support, grid, shapes) for group, shift in GROUPS[:3])
    effects = tuple(_effect(curve, 0.0, 1.0) for curve in curves)
    methods = (
        MethodRow("BGM-IV", effects[0].interval, curves[0].estimate),
        MethodRow("2SLS", usual(0.05, 0.01, 0.09), (0.2, 0.25, 0.29, 0.4), "line"),
    )
    columns = (
        ColumnSummary("voted", "outcome", "binary", "yes 21%, no 79%"),
        ColumnSummary("contact", "treatment", "categorical", "none 60%, leaflet 40%"),
    )
    names = {"outcome": "voted", "treatment": "contact", "outcome_meaning": "the probability that voted is yes"}
    question = replace(analysis.question, **names, treatment_levels=LEVELS, formula="", columns=columns)
    parts = {"question": question, "curves": curves, "effects": effects, "methods": methods, "verdict": None}
    parts["instruments"] = InstrumentViews()
    return replace(analysis, title="Getting out the vote", diagnosis=Diagnosis(CHECKS[:1]), **parts)


@pytest.fixture(scope="session")
def bare(analysis: Analysis) -> Analysis:
    """As little as there can be: point estimates, one group, nothing checked."""
    curve = replace(analysis.curves[0], lower=(), upper=(), sources=())
    effect = replace(analysis.effects[0], interval=point(analysis.effects[0].estimate))
    curve = replace(curve, band_lower=(), band_upper=())
    nothing = {
        "instruments": InstrumentViews(),
        "diagnosis": Diagnosis(()),
        "verdict": None,
        "methods": (),
        "history": (),
        "settings": {},
    }
    return replace(analysis, method="KIV", interval_kind="", curves=(curve,), effects=(effect,), **nothing)


@pytest.fixture(scope="session")
def payloads() -> list[str]:
    """Markup, scripts, quotes, entities, templates, separators and odd letters that a name may hold."""
    return json.loads(Path(__file__).with_name("payloads.json").read_text(encoding="utf-8"))


# Words and keys of our own, which no user gives.
_FIXED = ("numbers", "severity", "key", "role", "kind", "note")


def _poisoned(value: Any, payload: str, seen: dict[str, str]) -> Any:
    if isinstance(value, str):
        return seen.setdefault(value, f"{payload}{len(seen)}") if value else value
    if isinstance(value, dict):
        return {_poisoned(k, payload, seen): _poisoned(v, payload, seen) for k, v in value.items()}
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(_poisoned(v, payload, seen) for v in value)
    if is_dataclass(value) or hasattr(value, "_fields"):
        names = value._fields if hasattr(value, "_fields") else [f.name for f in fields(value)]
        changed = {n: _poisoned(getattr(value, n), payload, seen) for n in names if n not in (*_FIXED, "labels")}
        if isinstance(value, Check):
            changed["labels"] = {key: _poisoned(text, payload, seen) for key, text in value.labels.items()}
        return value._replace(**changed) if hasattr(value, "_fields") else replace(value, **changed)
    return value


@pytest.fixture(scope="session")
def poisoned() -> Any:
    """A function that puts a payload into every text of an analysis; equal texts stay equal, others differ."""
    return lambda analysis, payload: _poisoned(analysis, payload, {})
