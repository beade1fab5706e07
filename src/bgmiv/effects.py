"""Questions to a structural function: contrasts, averages, slopes and curves, and intervals for each.

Every answer is computed from g(x, v) and its factors alone, so that every method answers the same questions in the same
way. The same question has the same answer wherever it is asked: what is averaged over which rows is decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from bgmiv.arrays import Booleans, Floats
from bgmiv.data.files import Tabular
from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Query, Rows, query_at
from bgmiv.data.schema import BlockKind
from bgmiv.distributions import f_quantile
from bgmiv.errors import ConfigError, DataError
from bgmiv.fitted import MAX_FACTOR_POINTS, FittedMethod, in_parts
from bgmiv.intervals import SMOOTHING, STRENGTH, Estimate, Interval, Pieces, Source, interval_of
from bgmiv.linear_iv import LinearIV, robust_set, scaled, strength_of, union

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Average", "DoseResponse", "FitRows", "Method", "average", "average_effect", "average_effect_set",
    "contrast", "effect_of", "estimate_at", "fieller_set", "interval_at", "predict", "require_intervals",
    "slope_query",
]  # fmt: skip

Method = Literal["auto", "usual", "robust"]
"""How an average effect's interval is made; see :func:`average_effect`."""

# Beyond this many rows an average is one over rows drawn by weight, and each row's own answers are computed in parts.
_MAX_AVERAGED, _PART = 100_000, 25_000
_ARRAYS = ("estimate", "lower", "upper", "in_support", "dof")


@dataclass(frozen=True, eq=False)
class DoseResponse(Tabular):
    """The structural function along treatments.

    Attributes:
        treatment: the m treatments, numbers or levels.
        values: `(m,)` averaged over rows, or `(m, n)` for each; with a last axis of K for an outcome of K levels.

    Example:
        >>> curve = DoseResponse(np.array([0.0, 1.0]), np.array([2.0, 5.0]))
        >>> float(np.diff(curve.values)[0])
        3.0
    """

    treatment: np.ndarray
    values: Floats

    def to_frame(self) -> pd.DataFrame:
        """One row for each treatment; a column for each row of covariates, if there are several.

        Example:
            >>> DoseResponse(np.array([0.0, 1.0]), np.array([2.0, 5.0])).to_frame()["estimate"].tolist()
            [2.0, 5.0]
        """
        import pandas as pd

        index = pd.Index(self.treatment, name="treatment")
        if self.values.ndim == 1:
            return pd.DataFrame({"estimate": self.values}, index=index)
        return pd.DataFrame(self.values.reshape(len(self.values), -1), index=index)


def require_intervals(fitted: FittedMethod) -> None:
    """Refuse to give intervals of a method that gives point estimates only."""
    if not fitted.interval_kind:
        name = type(fitted).__name__.removeprefix("Fitted")
        raise ConfigError(
            f"{name} gives point estimates only. Intervals are given by BGMIV, NPIV, ControlFunction and TSLS."
        )


def predict(fitted: FittedMethod, treatment: Any, covariates: Any = None) -> Floats:
    """g at one treatment for all rows or one a row, `(n,)` or `(n, K)`."""
    return estimate_at(fitted, query_at(fitted.schema, treatment, covariates)).values[0]


def estimate_at(fitted: FittedMethod, query: Query, *, intervals: bool = False) -> Estimate:
    """g at every point of a query, `(m, n)`, with its sources of uncertainty if intervals are wanted."""
    if intervals:
        require_intervals(fitted)
        return Estimate(fitted.at(query), fitted.factors(query))
    # What is computed of covariates may be many numbers a row.
    size = _MAX_AVERAGED if len(query.rows) <= _MAX_AVERAGED else _PART
    return Estimate(np.concatenate([fitted.at(part) for _, part in in_parts(query, size)], axis=1))


def interval_at(
    fitted: FittedMethod,
    query: Query,
    level: float,
    change: Callable[[Estimate], Estimate],
    *,
    axis: int = 0,
    **shown: Any,
) -> Interval:
    """Intervals of a function of g at each row, such as a contrast, some rows at a time.

    Args:
        fitted: the fitted method.
        query: treatments and rows.
        level: of the intervals.
        change: a linear function of g at the query's m treatments, row by row.
        axis: that of the rows in what it gives; support is that of all m treatments if it is the first.
        **shown: `probability`, `labels` and `band` of `interval_of`.
    """
    m, n = query.shape
    # A uniform band is one of all rows together.
    size = n if shown.get("band") == "uniform" else MAX_FACTOR_POINTS // m
    parts = []
    for _, some in in_parts(query, size):
        inside = fitted.in_support(some)
        changed = change(estimate_at(fitted, some, intervals=True))
        parts.append(interval_of(changed, level, in_support=inside.all(axis=0) if axis == 0 else inside, **shown))
    whole: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts], axis=axis) for name in _ARRAYS
    }
    whole["std_errors"] = {
        name: np.concatenate([part.std_errors[name] for part in parts], axis=axis) for name in parts[0].std_errors
    }
    return replace(parts[0], **whole)


class Average(NamedTuple):
    """g at m treatments averaged over rows.

    Attributes:
        estimate: `(m,)`, or `(m, K)` for an outcome of K levels.
        inside: `(m, r)` whether treatments are in support, at rows that stand for all.
        shares: `(r,)` their shares of the average.
    """

    estimate: Estimate
    inside: Booleans
    shares: Floats

    @property
    def support(self) -> Floats:
        """The share of rows for which the data show each treatment, `(m,)`."""
        return self.inside @ self.shares

    def support_of(self, *treatments: int) -> float:
        """The share of rows for which the data show all of these treatments, given by position."""
        return float(self.inside[list(treatments)].all(axis=0) @ self.shares)


def average(fitted: FittedMethod, query: Query, *, intervals: bool = False) -> Average:
    """g at each of a query's treatments, averaged over its rows by their weights; rows of weight zero are left out.

    Beyond 100,000 rows so many draws in proportion to weight stand for all, and the source "rows" is what this leaves
    open; likewise for the other sources and for support beyond `max_factor_rows`.
    """
    if intervals:
        require_intervals(fitted)
    whole = query.positive()
    rows = whole.drawn(_MAX_AVERAGED)
    each = fitted.at(rows)
    values = np.tensordot(each, rows.rows.shares, axes=(1, 0))
    few = whole.drawn(fitted.max_factor_rows)
    sources = fitted.average_factors(few) if intervals else ()
    if intervals and rows is not whole:
        sources += (_rows_left_out(each - values[:, None], whole),)
    return Average(Estimate(values, sources), fitted.in_support(few), few.rows.shares)


def _rows_left_out(around: Floats, whole: Query) -> Source:
    """What an average over drawn rows leaves open about that over all, by its values around it, `(m, r, ...)`.

    With r draws of rows with shares p the variance is that of one draw over r, less what cannot vary as a row is drawn
    r p times on average.
    """
    drawn, positions = whole.rows.drawn(_MAX_AVERAGED)
    open_part = np.maximum(1.0 - _MAX_AVERAGED * whole.rows.shares[positions], 0.0)
    weighted = np.moveaxis(around, 1, -1) * np.sqrt(drawn.shares * open_part / _MAX_AVERAGED)
    flat = weighted.reshape(-1, len(positions))
    variances, vectors = np.linalg.eigh(flat @ flat.T)
    factors = np.sqrt(np.maximum(variances, 0.0))[:, None] * vectors.T
    return Source("rows", factors.reshape(-1, *weighted.shape[:-1]), np.inf)


def contrast(estimate: Estimate) -> Estimate:
    """The second of two treatments against the first: g(t1, v) - g(t0, v)."""
    return estimate.map(lambda values: values[1] - values[0])


def slope_query(fitted: FittedMethod, treatment: Any, covariates: Any, step: float) -> Query:
    r"""The two treatments $x \pm h/2$ at each row, from which $\{g(x + h/2, v) - g(x - h/2, v)\} / h$ is taken.

    Networks are piecewise linear: a step h as wide as the question is better than the smallest possible.

    Raises:
        DataError: the treatment has levels, which have no slope, or the step is not above zero.
    """
    variable = fitted.schema.treatment
    if variable.kind != BlockKind.continuous:
        raise DataError(f"treatment {variable.name!r} has levels and no slope. Ask for effect(..., t0=..., t1=...).")
    number = isinstance(step, int | float | np.number) and not isinstance(step, bool)
    if not number or not step > 0.0 or not np.isfinite(step):
        raise DataError(f"step must be a number above 0, got {step!r}.")
    centre = query_at(fitted.schema, treatment, covariates)
    x = centre.treatment[0]
    return Query(np.stack([x - step / 2.0, x + step / 2.0]), centre.rows)


class FitRows(NamedTuple):
    """The rows of a fit that uses their instruments, and their covariates with what was computed of them."""

    data: IVData
    rows: Rows

    def prefer_robust(self, fitted: FittedMethod) -> bool:
        """Whether a robust set is preferable to the usual interval of an average effect."""
        strength = strength_of(self.data, fitted.first_stage_f)
        return strength is not None and strength.usual_is_too_short


def average_effect(
    fitted: FittedMethod, query: Query, level: float, own: FitRows | None, *, method: Method = "auto"
) -> Interval:
    """The average effect of the second of two treatments against the first, with an interval.

    Args:
        fitted: the fitted method.
        query: two treatments for the rows averaged over.
        level: of the interval.
        own: the rows of the fit; None if they are not known, or the fit ignores its instruments.
        method: "usual", by the method's own sources of uncertainty; "robust", the ends of the Anderson-Rubin set;
            "auto", robust where that is preferable (`bgmiv.linear_iv.Strength.usual_is_too_short`) and the set can be
            made, and otherwise usual.
    """
    if method not in get_args(Method):
        raise ConfigError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}.")
    averages = average(fitted, query, intervals=method != "robust" or bool(fitted.interval_kind))
    treatments = np.broadcast_to(query.treatment, query.shape) @ query.rows.shares
    size = float(treatments[1] - treatments[0])
    return effect_of(averages, (0, 1), size, fitted, level, own, method=method)


def effect_of(
    averages: Average,
    places: tuple[int, int],
    size: float,
    fitted: FittedMethod,
    level: float,
    own: FitRows | None,
    *,
    method: Method = "auto",
) -> Interval:
    """As :func:`average_effect`, of averages, the positions of two of their treatments, and the mean difference."""
    change = contrast(averages.estimate.map(lambda values: values[list(places)]))
    support = averages.support_of(*places)
    usual = interval_of(change, level, in_support=support, name="average effect")
    if own is None or not own.data.schema.instruments or not fitted.schema.has_one_effect:
        if method == "robust":
            raise DataError(
                "the robust set needs the rows of the fit with instruments that it uses, and a single effect: a "
                "treatment and an outcome of one number or two levels. Use method='usual'."
            )
        return usual
    wanted = method == "robust" or (method == "auto" and bool(change.sources) and own.prefer_robust(fitted))
    if not wanted or size == 0.0:
        return usual
    if fitted.is_line or not any(source.name == STRENGTH for source in change.sources):
        pieces = average_effect_set(fitted, own, float(usual.estimate), size, level)
    else:
        n, q = own.data.instruments.shape
        dof = min(source.dof for source in change.sources if source.name == "sampling")
        pieces = fieller_set(change, size, q * f_quantile(level, q, min(dof, n - q)))
    if change.sources and not fitted.is_line:
        # What the robust set knows of the curve is not more than what the usual interval does.
        pieces = union([*pieces, *usual.stretches])
    return usual.with_set(pieces)


def average_effect_set(fitted: FittedMethod, own: FitRows, estimate: float, size: float, level: float) -> Pieces:
    r"""Every average effect of a change of treatment that the data do not reject, if the fit's shape is right.

    Let $\hat g$ be a fit with the average effect $\hat\theta$ of a change of treatment that is $\Delta$ on average.
    The function $\hat g(x, v) + (\theta - \hat\theta)\, x / \Delta$ has the average effect θ, and the shape of the fit
    beyond a straight line. So θ is kept if the instruments do not predict y minus this function beyond chance: the
    test of
    Anderson and Rubin for the coefficient of $x / \Delta$ in a linear model of
    $y - \hat g + \hat\theta\, x / \Delta$. For a linear fit it is the usual Anderson-Rubin set.

    Args:
        fitted: the fitted method.
        own: the rows of the fit.
        estimate: its average effect.
        size: by how much the treatment is changed, on average.
        level: of the set.
    """
    data, linear = own.data, LinearIV.of(own.data)
    x, y = (values.astype(np.float64) for values in (data.treatment, data.outcome))
    line = fitted.at(Query(data.treatment[None], own.rows))[0] - estimate / size * x
    return scaled(linear.anderson_rubin_set(level, outcome=(y - line)[linear.design.rows]), size)


def fieller_set(change: Estimate, size: float, critical: float) -> Pieces:
    r"""A robust set of an effect that is a ratio of scores, which takes no shape of the curve for right.

    The error of the estimate $\hat\theta$ at a true effect θ is that of the sum of scores
    $a_i + (\theta - \hat\theta)\, b_i$, where b is the noise of the first stage, and of a bias of smoothing with
    variance s². So θ is kept if
    $$(\theta - \hat\theta)^2 \le c\, \{|a + (\theta - \hat\theta)\, b|^2 + s^2\},$$
    the set of Fieller, which for a linear model with one instrument is that of Anderson and Rubin. What the curve's
    prior leaves open is in s².

    Args:
        change: the estimate, with the sources "sampling" (a) and `STRENGTH` (b times `size`).
        size: by how much the treatment is changed, on average.
        critical: c.
    """
    factors = {source.name: source.factors for source in change.sources}
    estimate, sampling, strength = float(change.values), factors["sampling"], factors[STRENGTH] / size
    error = np.sum(sampling**2) + np.sum(factors.get(SMOOTHING, np.zeros(1)) ** 2)
    # Of the distance from the estimate, in standard errors.
    unit, one = np.sqrt(error) or 1.0, np.ones((1, 1))
    known = error / unit**2, -np.sum(sampling / unit * strength), np.sum(strength**2)
    pieces = robust_set(np.zeros(1), np.ones(1), tuple(value * one for value in known), critical)
    return tuple((estimate + lower * unit, estimate + upper * unit) for lower, upper in pieces)
