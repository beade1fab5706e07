"""An analysis put together from a fitted method: its answers, for whom, and what speaks for and against them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from platform import python_version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgmiv.data.ivdata import IVData
from bgmiv.data.schema import BlockKind
from bgmiv.effects import Answer, Uncertain, dose_response, interval_of
from bgmiv.errors import ConfigError, DataError
from bgmiv.show.analysis import (
    Analysis,
    Curve,
    CurveSource,
    EffectRow,
    HistoryLine,
    MethodRow,
)
from bgmiv.show.groups import Group, groups_of
from bgmiv.show.question import question_of
from bgmiv.trust.contrasts import default_contrast
from bgmiv.trust.diagnosis import Diagnosis

__all__ = ["build_analysis"]

_WEAK = (
    "The instruments are weak here, and intervals of this kind are then too narrow: believe the set that weak "
    "instruments cannot mislead."
)

_TWIN = "what a regression would say; two members"
_LINE = "a straight line in the treatment"

# People over whom curves are averaged, and those of them over whom their uncertainty is.
_MOST_PEOPLE, _MOST_DEVIATED = 1000, 200
_N_DOSES = 41
_PACKAGES = ("bgmiv", "jax", "equinox", "numpy", "scipy", "linearmodels")


def build_analysis(
    model: Any,
    *,
    by: Any = None,
    treatments: Any = None,
    t0: Any = None,
    t1: Any = None,
    level: float = 0.95,
    compare: Mapping[str, Any] | None = None,
    title: str | None = None,
    source: str = "",
    twin: bool = True,
) -> Analysis:
    """Everything that is shown of a fitted estimator.

    Args:
        model: a fitted estimator that still has its data.
        by: whom to show apart: names of covariates, or a mapping of names to one label a row. By default the first
            covariates of two to six levels.
        treatments: where curves are drawn; by default 41 values from the 1% to the 99% quantile, or all levels.
        t0, t1: the treatments compared; by default the quartiles, or the two most frequent levels in order.
        level: of the intervals.
        compare: other fitted estimators by name, for the same question.
        title: of the analysis.
        source: where the rows came from.
        twin: also fit the method without the instruments.
    """
    data: IVData = model.data_
    fitted = model._completed()
    doses = _doses(data, treatments)
    before, after = _contrasted(data, t0, t1)
    everyone = Group("everyone", np.arange(data.n_rows))
    groups = [everyone, *groups_of(data, by)]
    curves = tuple(_curve(model, fitted, group, doses, level) for group in groups)
    effects = tuple(_effect(model, fitted, group, before, after, level) for group in groups)
    diagnosis = model.diagnose(twin=twin, level=level)
    methods = [MethodRow(_name(model), effects[0].estimate, effects[0].lower, effects[0].upper, curves[0].estimate, "")]
    methods += _beside(model, diagnosis, everyone, doses, (before, after))
    for name, other in (compare or {}).items():
        methods = [row for row in methods if row.name != name]
        methods.append(_method(name, other, data, everyone, doses, before, after, level))
    return Analysis(
        title=title or f"The effect of {data.schema.treatment.name} on {data.schema.outcome.name}",
        question=question_of(
            data, formula=getattr(model, "formula_", ""), source=source, n_dropped=getattr(model, "n_dropped_", 0)
        ),
        method=_name(model),
        settings=_settings(model),
        level=level,
        interval_kind=_interval_kind(fitted, diagnosis.weak_instruments),
        curves=curves,
        effects=effects,
        diagnosis=diagnosis,
        verdict=getattr(fitted, "verdict", None),
        methods=tuple(methods),
        history=_history(model),
        versions=_versions(),
        seed=model.seed_,
    )


def _interval_kind(fitted: Any, weak: bool) -> str:
    if not isinstance(fitted, Uncertain):
        return ""
    return f"{fitted.interval_kind} {_WEAK}" if weak else fitted.interval_kind


def _doses(data: IVData, treatments: Any) -> NDArray[Any]:
    variable = data.schema.treatment
    if treatments is not None:
        given = np.atleast_1d(np.asarray(treatments))
        data.schema.check_treatment(given, len(given))
        return given
    if variable.levels is not None:
        return np.asarray(variable.levels)
    if variable.kind is BlockKind.binary:
        return np.asarray([0.0, 1.0])
    low, high = np.quantile(data.treatment.astype(np.float64), [0.01, 0.99])
    return np.linspace(low, high, _N_DOSES)


def _contrasted(data: IVData, t0: Any, t1: Any) -> tuple[Any, Any]:
    if (t0 is None) != (t1 is None):
        raise ConfigError("t0 and t1 are given together or not at all.")
    if t0 is not None:
        for value in (t0, t1):
            data.schema.check_treatment(value, 1)
        return t0, t1
    return default_contrast(data)


def _people(data: IVData, group: Group, most: int) -> Any:
    if not data.schema.blocks:
        return None
    rows = group.rows
    if len(rows) > most:
        # By chance, so that the order of the rows is no matter; and as in the checks, so that their numbers agree.
        rows = rows[np.sort(np.random.default_rng(0).permutation(len(rows))[:most])]
    return data.covariates[rows]


def _averaged(model: Any, fitted: Any, group: Group, doses: NDArray[Any]) -> Answer:
    """The average curve over many people, with its uncertainty over fewer of them, which hardly depends on whom."""
    data = model.data_
    _, answer = dose_response(fitted, doses, _people(data, group, _MOST_PEOPLE))
    known = isinstance(fitted, Uncertain)
    if not known:
        return answer
    _, few = dose_response(fitted, doses, _people(data, group, _MOST_DEVIATED), with_sources=True)
    return Answer(answer.values, few.sources)


def _first(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of an outcome of several levels the first is shown."""
    return values if values.ndim == 1 else values[:, 0]


def _curve(model: Any, fitted: Any, group: Group, doses: NDArray[Any], level: float) -> Curve:
    answer = _averaged(model, fitted, group, doses).map(_first)
    people = _people(model.data_, group, _MOST_DEVIATED)
    shares = [float(np.mean(model._support(dose, people))) for dose in doses]
    numbers = model.data_.schema.check_treatment(doses, len(doses))
    if not answer.sources:
        return Curve(group.label, len(group.rows), _plain(numbers), _plain(answer.values), (), (), _plain(shares))
    found = interval_of(answer, level, probability=model.data_.schema.outcome.discrete)
    sources = tuple(
        CurveSource(source.name, float(source.freedom), tuple(_plain(row) for row in source.deviations))
        for source in answer.sources
    )
    ends = (_plain(found.lower), _plain(found.upper))
    return Curve(group.label, len(group.rows), _plain(numbers), _plain(answer.values), *ends, _plain(shares), sources)


def _effect(model: Any, fitted: Any, group: Group, t0: Any, t1: Any, level: float) -> EffectRow:
    pair = np.asarray([t0, t1])
    change = _averaged(model, fitted, group, pair).map(_first).map(lambda values: values[1:] - values[:1])
    people = _people(model.data_, group, _MOST_DEVIATED)
    both = model._support(t0, people) & model._support(t1, people)
    known = bool(change.sources)
    found = interval_of(change, level)
    return EffectRow(
        label=group.label,
        n_rows=len(group.rows),
        t0=_shown(t0),
        t1=_shown(t1),
        estimate=_digits(change.values[0]),
        lower=_digits(found.lower[0]) if known else None,
        upper=_digits(found.upper[0]) if known else None,
        sources={name: _digits(value[0]) for name, value in found.sources.items()},
        in_support=_digits(float(np.mean(both))),
    )


def _beside(
    model: Any, diagnosis: Diagnosis, everyone: Group, doses: NDArray[Any], asked: tuple[Any, Any]
) -> list[MethodRow]:
    """What the diagnosis has fitted beside the method: its twin without the instruments, and straight lines."""
    data, twin, linear = model.data_, getattr(model, "twin_", None), diagnosis.linear
    people = _people(data, everyone, _MOST_PEOPLE)
    rows = []
    if twin is not None:
        (_, along), (_, pair) = (dose_response(twin, at, people) for at in (doses, np.asarray(asked)))
        low, high = _first(pair.values)
        name = f"{_name(model)} without the instrument"
        rows.append(MethodRow(name, _digits(high - low), None, None, _plain(_first(along.values)), _TWIN))
    if linear is None or data.schema.outcome.width > 1 or _name(model).startswith("2SLS"):
        return rows
    x = data.schema.check_treatment(doses, len(doses))
    t0, t1 = data.schema.check_treatment(np.asarray(asked), 2)
    centre = [float(np.average(values, weights=data.weights)) for values in (data.treatment, data.outcome)]
    lines = (
        ("2SLS", linear.coefficient, sorted((linear.lower * (t1 - t0), linear.upper * (t1 - t0))), _LINE),
        ("least squares", linear.ols, None, f"{_LINE}; ignores the instruments"),
    )
    for name, slope, ends, note in lines:
        lower, upper = (None, None) if ends is None else (_digits(ends[0]), _digits(ends[1]))
        curve = centre[1] + slope * (x - centre[0])
        rows.append(MethodRow(name, _digits(slope * (t1 - t0)), lower, upper, _plain(curve), note))
    return rows


def _method(
    name: str, other: Any, data: IVData, everyone: Group, doses: NDArray[Any], t0: Any, t1: Any, level: float
) -> MethodRow:
    found = other._completed()
    if found.schema.treatment != data.schema.treatment or found.schema.outcome.name != data.schema.outcome.name:
        raise DataError(f"{name!r} was fitted on another outcome or treatment. Compare fits of the same columns.")
    curve = _averaged(other, found, everyone, doses).map(_first)
    change = _effect(other, found, everyone, t0, t1, level)
    return MethodRow(name, change.estimate, change.lower, change.upper, _plain(curve.values), "")


def _history(model: Any) -> tuple[HistoryLine, ...]:
    lines: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in model.history_:
        for name, value in row.metrics.items():
            lines.setdefault((name, row.phase), []).append((int(row.step), _digits(value)))
    return tuple(
        HistoryLine(name, phase, tuple(step for step, _ in points), tuple(value for _, value in points))
        for (name, phase), points in lines.items()
    )


def _settings(model: Any) -> dict[str, str]:
    import inspect

    defaults = inspect.signature(type(model).__init__).parameters
    return {
        name: repr(value)[:200]
        for name, value in model.get_params().items()
        if name not in ("checkpoint", "progress") and repr(value) != repr(defaults[name].default)
    }


def _versions() -> dict[str, str]:
    found = {"Python": python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "from source"
    return found


def _name(model: Any) -> str:
    name = type(model).__name__
    shown = {"BGMIV": "BGM-IV", "TSLS": "2SLS"}.get(name, name)
    return shown if getattr(model, "use_instrument", True) else f"{shown} without the instrument"


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, int | float | np.number) else str(value)


def _digits(value: Any) -> float:
    """Six significant digits: what is shown and stored needs no more."""
    return float(f"{float(value):.6g}")


def _plain(values: Any) -> tuple[float, ...]:
    return tuple(_digits(value) for value in np.asarray(values, np.float64))
