"""Analyses made by hand, as a fit would fill them: a number as treatment, levels, and a method without intervals."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student

from bgmiv.show.analysis import (
    Analysis,
    ColumnSummary,
    Curve,
    CurveSource,
    EffectRow,
    HistoryLine,
    MethodRow,
    Question,
)
from bgmiv.trust.diagnosis import Check, CheckLevel, Diagnosis, LinearEstimate
from bgmiv.trust.verdict import FitEvidence, judge

GROUPS = (
    ("everyone", 3010, 0.0),
    ("region = south", 1215, 0.08),
    ("region = north", 1795, -0.05),
    ("black = 1", 703, 0.2),
)
LEVELS = ("none", "leaflet", "phone call", "visit at home")


def make_curve(label: str, n: int, shift: float, grid: np.ndarray, levels: bool = False) -> Curve:
    """A curve with its two sources of uncertainty, wide where the data are thin."""
    rng = np.random.default_rng(len(label))
    if levels:
        values = np.array([0.21, 0.24, 0.31, 0.36])[: len(grid)] + shift / 4
        support = np.array([1.0, 0.98, 0.74, 0.41])[: len(grid)]
        shapes = rng.normal(size=(5, len(grid)))
    else:
        values = 5.35 + 0.075 * grid + 0.22 * np.tanh((grid - 12.0) / 2.5) + shift * (grid / 12.0)
        support = np.clip(1.25 - np.abs((grid - 12.6) / 6.2) ** 3, 0.0, 1.0)
        centred = (grid - 12.6) / 4.0
        shapes = np.stack([np.ones_like(grid), centred, centred**2, 0.4 * np.sin(2.0 * centred)])
    scale = 0.035 * np.sqrt(3010 / n) * (0.3 if levels else 1.0)
    sources = (
        CurveSource("sampling", float("inf"), tuple(tuple(row) for row in (scale * shapes).tolist())),
        CurveSource("network", 7.0, tuple(tuple(row) for row in (0.4 * scale * shapes[::-1]).tolist())),
    )
    lower, upper = curve_ends(values, sources, 0.95)
    return Curve(label, n, tuple(grid.tolist()), tuple(values.tolist()), lower, upper, tuple(support.tolist()), sources)


def curve_ends(
    values: np.ndarray, sources: tuple[CurveSource, ...], level: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The ends of Student's interval at Satterthwaite's freedom."""
    parts = [np.sum(np.square(source.deviations), axis=0) for source in sources]
    total = sum(parts)
    freedom = total**2 / sum(part**2 / source.freedom for part, source in zip(parts, sources, strict=True))
    half = student.ppf(0.5 + level / 2, freedom) * np.sqrt(total)
    return tuple((values - half).tolist()), tuple((values + half).tolist())


def make_effect(curve: Curve, t0: int, t1: int, shown: tuple[str, str]) -> EffectRow:
    """The effect between two points of a curve."""
    deviations = {s.name: np.asarray(s.deviations)[:, t1] - np.asarray(s.deviations)[:, t0] for s in curve.sources}
    parts = {name: float(np.sum(d**2)) for name, d in deviations.items()}
    total = sum(parts.values())
    freedom = total**2 / sum(parts[s.name] ** 2 / s.freedom for s in curve.sources)
    half = float(student.ppf(0.975, freedom)) * total**0.5
    value = curve.estimate[t1] - curve.estimate[t0]
    spread = {name: part**0.5 for name, part in parts.items()}
    seen = min(curve.in_support[t0], curve.in_support[t1])
    return EffectRow(curve.label, curve.n_rows, *shown, value, value - half, value + half, spread, seen)


def _check(
    key: str, title: str, level: CheckLevel, value: str, reading: str, reference: str, **numbers: float
) -> Check:
    return Check(key, title, level, value, reading, reference, numbers)


CHECKS = (
    _check(
        "effective-f",
        "Effective F of the instruments",
        "doubtful",
        "13.2; above 23.1 wanted",
        "Below 23.1, where the bias of two-stage least squares stays under a tenth of the worst case. Read the robust "
        "set beside the usual interval.",
        "Montiel Olea and Pflueger (2013)",
        effective_f=13.2,
        critical=23.1,
    ),
    _check(
        "nonlinear-first-stage",
        "What the instruments add to the treatment in held-out rows",
        "good",
        "0.041 a row",
        "Knowing the instruments makes held-out treatments more likely, so that they do move it.",
        "held-out log-likelihood",
    ),
    _check(
        "endogeneity",
        "Wu-Hausman test of endogeneity",
        "note",
        "p = 0.28",
        "The linear estimates with and without the instruments do not differ by more than chance.",
        "Hausman (1978)",
    ),
    _check(
        "moment-test",
        "Held-out test of the fitted curve's moments",
        "good",
        "p = 0.61",
        "What the curve leaves over does not depend on the instruments in rows it has not seen.",
        "Bierens (1990)",
    ),
)


@pytest.fixture(scope="session")
def analysis() -> Analysis:
    """Returns to schooling, with groups, other methods and a history."""
    grid = np.linspace(6.0, 18.0, 49)
    curves = tuple(make_curve(label, n, shift, grid) for label, n, shift in GROUPS)
    effects = tuple(make_effect(curve, 24, 40, ("12", "16")) for curve in curves)
    first = effects[0]
    linear = 6.2 + 0.1315 * (grid - 12.6)
    naive = 6.2 + 0.0747 * (grid - 12.6)
    methods = (
        MethodRow("BGM-IV", first.estimate, first.lower, first.upper, curves[0].estimate, "the method of this page"),
        MethodRow("2SLS", 0.526, 0.097, 0.955, tuple(linear.tolist()), "straight in the treatment"),
        MethodRow(
            "BGM-IV without the instrument", 0.31, 0.27, 0.35, tuple(naive.tolist()), "what a regression would say"
        ),
        MethodRow("KIV", 0.37, None, None, tuple((naive + 0.03 * np.sin(grid)).tolist()), "point estimate only"),
    )
    steps = tuple(range(0, 4000, 100))
    decay = np.exp(-np.asarray(steps) / 900.0)
    noise = np.random.default_rng(0).normal(size=(4, len(steps)))
    history = tuple(
        HistoryLine(name, phase, steps, tuple((floor + size * decay + 0.02 * size * noise[i]).tolist()))
        for i, (name, phase, floor, size) in enumerate(
            (
                ("latent critic", "warm start", 0.1, 2.0),
                ("cycle", "warm start", 0.4, 3.0),
                ("treatment", "alternating", 0.9, 0.8),
                ("outcome", "alternating", 0.52, 0.6),
            )
        )
    )
    names = ("exper", "black", "smsa", "region")
    question = Question(
        outcome="lwage",
        treatment="educ",
        instruments=("nearc4",),
        covariates=names,
        outcome_meaning="the mean of lwage",
        treatment_levels=(),
        formula="lwage ~ exper + black + smsa + C(region) + [educ ~ nearc4]",
        source="card.csv",
        n_rows=3010,
        n_dropped=12,
        weights="",
        groups="",
        columns=(
            ColumnSummary("lwage", "outcome", "continuous", "mean 6.26, deviation 0.444, from 4.61 to 7.78"),
            ColumnSummary("educ", "treatment", "continuous", "mean 13.3, deviation 2.68, from 1 to 18"),
            ColumnSummary("nearc4", "instrument", "binary", "1 in 68% of rows"),
            ColumnSummary("exper", "covariate", "continuous", "mean 8.86, deviation 4.14, from 0 to 23"),
            ColumnSummary("black", "covariate", "binary", "1 in 23% of rows"),
            ColumnSummary("smsa", "covariate", "binary", "1 in 71% of rows"),
            ColumnSummary("region", "covariate", "categorical", "9 levels: 666 (21%), 665 (18%), 663 (14%), ..."),
        ),
    )
    evidence = FitEvidence(n_held_out=602, outcome_explained=0.27, linear_explained=0.26, first_stage_gain=0.041)
    ar_set = ((0.0242, 0.2850),)
    return Analysis(
        title="Returns to schooling",
        question=question,
        method="BGM-IV",
        settings={"members": "8", "held_out": "0.2", "preset": "'default'"},
        level=0.95,
        interval_kind="quasi-posterior: sampling of rows and chance in training together.",
        curves=curves,
        effects=effects,
        diagnosis=Diagnosis(CHECKS, LinearEstimate(0.1315, 0.0548, 0.0241, 0.2389, 0.0747, 0.0035, ar_set, 0.95)),
        verdict=judge(replace(evidence, disagreement=0.15)),
        methods=methods,
        history=history,
        versions={"bgmiv": "0.1.0", "jax": "0.9.0", "numpy": "2.3.1", "python": "3.12.4"},
        seed=7,
    )


@pytest.fixture(scope="session")
def levelled(analysis: Analysis) -> Analysis:
    """A treatment with levels, and a probability as outcome."""
    grid = np.arange(4.0)
    curves = tuple(make_curve(label, n, shift, grid, levels=True) for label, n, shift in GROUPS[:3])
    effects = tuple(make_effect(curve, 0, 1, (LEVELS[0], LEVELS[1])) for curve in curves)
    first = effects[0]
    methods = (
        MethodRow("BGM-IV", first.estimate, first.lower, first.upper, curves[0].estimate, ""),
        MethodRow("2SLS", 0.05, 0.01, 0.09, (0.2, 0.25, 0.29, 0.4), ""),
    )
    question = replace(
        analysis.question,
        outcome="voted",
        treatment="contact",
        outcome_meaning="the probability that voted = yes",
        treatment_levels=LEVELS,
        formula="",
    )
    return replace(
        analysis,
        title="Getting out the vote",
        question=question,
        curves=curves,
        effects=effects,
        methods=methods,
        diagnosis=Diagnosis(CHECKS[:1]),
        verdict=None,
    )


@pytest.fixture(scope="session")
def bare(analysis: Analysis) -> Analysis:
    """As little as there can be: point estimates, one group, nothing checked."""
    curve = replace(analysis.curves[0], lower=(), upper=(), sources=())
    effect = replace(analysis.effects[0], lower=None, upper=None, sources={})
    return replace(
        analysis,
        method="KIV",
        settings={},
        interval_kind="",
        curves=(curve,),
        effects=(effect,),
        diagnosis=Diagnosis(()),
        verdict=None,
        methods=(),
        history=(),
    )


@pytest.fixture(scope="session")
def payloads() -> list[str]:
    """Markup, scripts, quotes, entities, templates, separators and odd letters that a name may hold."""
    return json.loads(Path(__file__).with_name("payloads.json").read_text(encoding="utf-8"))


def _is_fixed(name: str, value: Any) -> bool:
    """Words and keys of our own, which no user gives."""
    return name == "numbers" or (isinstance(value, str) and (name in ("level", "key") or value == ""))


def _poisoned(value: Any, payload: str, seen: dict[str, str]) -> Any:
    if isinstance(value, str):
        return seen.setdefault(value, f"{payload}{len(seen)}")
    if isinstance(value, dict):
        return {_poisoned(k, payload, seen): _poisoned(v, payload, seen) for k, v in value.items()}
    if hasattr(value, "_fields"):
        parts = {n: getattr(value, n) for n in value._fields}
        return value._replace(**{n: _poisoned(v, payload, seen) for n, v in parts.items() if not _is_fixed(n, v)})
    if isinstance(value, tuple):
        return tuple(_poisoned(v, payload, seen) for v in value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: getattr(value, f.name) for f in fields(value)}
        return replace(value, **{n: _poisoned(v, payload, seen) for n, v in parts.items() if not _is_fixed(n, v)})
    return value


@pytest.fixture(scope="session")
def poisoned() -> Any:
    """A function that puts a payload into every text of an analysis; equal texts stay equal, others differ."""
    return lambda analysis, payload: _poisoned(analysis, payload, {})
