r"""The average effect of a fit when instruments are weak: a set that is valid however little they move the treatment.

Let $\hat g$ be a fit with the average effect $\hat\theta$ of a change of treatment that is $\Delta$ on average. The
function $\hat g(x, v) + (\theta - \hat\theta)\, x / \Delta$ has the average effect θ, and the shape of the fit beyond a
straight line. So θ is kept if, that shape taken for right, the instruments do not predict y minus this function beyond
chance: the test of Anderson and Rubin for the coefficient of $x / \Delta$ in a linear model of
$y - \hat g + \hat\theta\, x / \Delta$. For a linear fit it is the usual Anderson-Rubin set.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Query, Rows
from bgmiv.diagnostics.linear import Intervals, anderson_rubin_set, first_stage, linear_columns
from bgmiv.effects import Average, Interval, Predictor, average, contrast, interval_of
from bgmiv.errors import ConfigError, DataError

__all__ = ["Method", "average_effect", "average_effect_set", "effect_of", "has_weak_instruments"]

Method = Literal["auto", "usual", "rough", "robust"]
"""How an average effect's interval is made; see :func:`average_effect`."""

_METHODS = ("auto", "usual", "rough", "robust")


def has_weak_instruments(data: IVData) -> bool:
    """Whether some column of the treatment has an effective F below its critical value."""
    columns = linear_columns(data)
    stages = [first_stage(column, columns) for column in columns.treatment.T]
    return any(stage.effective_f < stage.critical for stage in stages)


def average_effect(
    fitted: Predictor, query: Query, level: float, data: IVData | None, *, method: Method = "auto", weak: bool = False
) -> Interval:
    """The average effect of the second of two treatments against the first, with an interval.

    Args:
        fitted: the fitted method.
        query: two treatments for the rows averaged over.
        level: of the interval.
        data: the rows of the fit; None if they are not known, or the fit ignores its instruments.
        method: "usual", by the method's own sources of uncertainty; "rough", the same with what the roughest curve that
            the data do not reject would add; "robust", the ends of the Anderson-Rubin set; "auto", robust where
            instruments are weak and the set can be made, and otherwise usual.
        weak: whether instruments are weak.
    """
    if method not in _METHODS:
        raise ConfigError(f"method must be one of {', '.join(_METHODS)}, got {method!r}.")
    found = average(fitted, query, intervals=method != "robust" or bool(fitted.interval_kind))
    treatments = np.broadcast_to(query.treatment, query.shape) @ query.rows.shares
    size = float(treatments[1] - treatments[0])
    return effect_of(found, (0, 1), size, fitted, level, data, method=method, weak=weak)


def effect_of(
    found: Average,
    places: tuple[int, int],
    size: float,
    fitted: Predictor,
    level: float,
    data: IVData | None,
    *,
    method: Method = "auto",
    weak: bool = False,
) -> Interval:
    """As :func:`average_effect`, of averages, the positions of two of their treatments, and the mean difference."""
    change = contrast(found.estimate.map(lambda values: values[list(places)]))
    support = found.support_of(*places)
    usual = interval_of(change, level, in_support=support, name="average effect", rough=method == "rough")
    possible = data is not None and _one_effect(data)
    if method == "robust" and not possible:
        raise DataError(
            "the robust set needs the rows of the fit with instruments that it uses, and a single effect: a treatment "
            "and an outcome of one number or two levels. Use method='usual'."
        )
    if (
        data is None
        or not possible
        or method in ("usual", "rough")
        or (method == "auto" and not (weak and change.sources))
    ):
        return usual
    pieces = average_effect_set(fitted, data, float(usual.estimate), size, level)
    lower, upper = (pieces[0][0], pieces[-1][1]) if pieces else (np.nan, np.nan)
    return replace(usual, lower=lower, upper=upper, method="anderson-rubin")


def average_effect_set(fitted: Predictor, data: IVData, estimate: float, size: float, level: float) -> Intervals:
    """Every average effect of a change of treatment, `size` on average, that the data do not reject.

    Args:
        fitted: the fitted method.
        data: the rows of the fit.
        estimate: its average effect.
        size: by how much the treatment is changed.
        level: of the set.

    Returns:
        Disjoint intervals in increasing order, whose ends may be infinite; the set may be empty.
    """
    columns = linear_columns(data)
    x = np.asarray(data.treatment, np.float64)
    line = fitted.at(Query(data.treatment[None], Rows(data.covariates)))[0] - estimate / size * x
    rest = np.asarray(data.outcome, np.float64) - line
    share = np.ones(len(rest)) if columns.weights is None else columns.weights
    rest = rest - np.average(rest, weights=share)
    scale = float(np.sqrt(np.average(rest**2, weights=share))) or 1.0
    unit = columns.unit * scale / columns.outcome_scale
    pieces = anderson_rubin_set(replace(columns, outcome=rest / scale, outcome_scale=scale, unit=unit), level)
    ends = [sorted((lower * size, upper * size)) for lower, upper in pieces]
    return tuple((lower, upper) for lower, upper in sorted(ends))


def _one_effect(data: IVData) -> bool:
    schema = data.schema
    return bool(schema.instruments) and schema.treatment.width == 1 and schema.outcome.width == 1
