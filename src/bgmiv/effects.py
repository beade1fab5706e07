"""Questions to a structural function: contrasts, averages, slopes and curves, and intervals for each.

Every answer is computed from g(x, v) and its factors alone, so that every method answers the same questions in the same
way. The same question has the same answer wherever it is asked: what is averaged over which rows is decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bgmiv.data.files import Tabular
from bgmiv.data.messages import FloatArray
from bgmiv.data.query import Encoded, Query, query_at, rows_of
from bgmiv.data.schema import BlockKind, Schema
from bgmiv.errors import ConfigError, DataError
from bgmiv.intervals import Estimate, Floats, Interval, Source, interval_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Average", "DoseResponse", "Predictor", "average", "average_in_parts", "contrast", "estimate_at", "interval_at",
    "predict", "require_intervals", "slope_query",
]  # fmt: skip

# Beyond this many rows an average is one over rows drawn by weight, and each row's own answers are computed in parts.
_MAX_AVERAGED, _PART = 100_000, 25_000
# Factors are many numbers a point: so many points at a time.
_MAX_FACTOR_POINTS = 50_000


class Predictor(Protocol):
    """A fitted method, as far as questions need it."""

    @property
    def schema(self) -> Schema:
        """Names and kinds of the training data."""

    @property
    def interval_kind(self) -> str:
        """What its intervals are, in a sentence or two; empty for a method that gives point estimates only."""

    @property
    def encoding_key(self) -> object:
        """What `encode` depends on; results with the same object share what was encoded."""

    @property
    def first_stage_f(self) -> float | None:
        """The effective F of the first stage that the fit has used; None if it is a linear one, or is not known."""

    @property
    def is_line(self) -> bool:
        """Whether the data leave hardly a doubt that g is linear in the treatment with one slope for all rows."""

    def encode(self, covariates: FloatArray) -> Encoded:
        """What it computes of covariates alone, an entry a row; `Rows` asks for it once."""

    def at(self, query: Query) -> Floats:
        """g in units of the outcome, `(m, n)`; for an outcome of K > 2 levels `(m, n, K)`, their probabilities."""

    def factors(self, query: Query) -> tuple[Source, ...]:
        """Independent sources of uncertainty about `at`, with factors `(k, m, n)`; none without intervals."""

    def average_factors(self, query: Query) -> tuple[Source, ...]:
        """The same of weighted averages of `at` over the rows, with factors `(k, m)`."""

    @property
    def max_factor_rows(self) -> int:
        """How many rows the uncertainty of an average, and the share of it in support, are computed of at most."""

    def in_support(self, query: Query) -> NDArray[np.bool_]:
        """Where the data show such a treatment at such covariates, `(m, n)`; elsewhere g is extrapolated."""


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

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html(float_format="{:.4g}".format))


def require_intervals(predictor: Predictor) -> None:
    """Refuse to give intervals of a method that gives point estimates only."""
    if not predictor.interval_kind:
        name = type(predictor).__name__.removeprefix("Fitted")
        raise ConfigError(
            f"{name} gives point estimates only. Intervals are given by BGMIV, NPIV, ControlFunction and TSLS."
        )


def predict(predictor: Predictor, treatment: Any, covariates: Any = None) -> Floats:
    """g at one treatment for all rows or one a row, `(n,)` or `(n, K)`."""
    return np.asarray(estimate_at(predictor, query_at(predictor.schema, treatment, covariates)).values[0])


def estimate_at(predictor: Predictor, query: Query, *, intervals: bool = False) -> Estimate:
    """g at every point of a query, `(m, n)`, with its sources of uncertainty if intervals are wanted."""
    if intervals:
        require_intervals(predictor)
        return Estimate(predictor.at(query), predictor.factors(query))
    # What is computed of covariates may be many numbers a row.
    n = len(query.rows)
    if n <= _MAX_AVERAGED:
        return Estimate(predictor.at(query))
    parts = (query.take(slice(start, start + _PART)) for start in range(0, n, _PART))
    return Estimate(np.concatenate([predictor.at(part) for part in parts], axis=1))


def interval_at(
    predictor: Predictor,
    query: Query,
    level: float,
    change: Callable[[Estimate], Estimate],
    *,
    axis: int = 0,
    **shown: Any,
) -> Interval:
    """Intervals of a function of g at each row, such as a contrast, some rows at a time.

    Args:
        predictor, query, level: of whom, what, and how sure.
        change: a linear function of g at the query's m treatments, row by row.
        axis: that of the rows in what it gives; support is that of all m treatments if it is the first.
        **shown: `probability`, `labels` and `band` of `interval_of`.
    """
    m, n = query.shape
    # A uniform band is one of all rows together.
    size = n if shown.get("band") == "uniform" else max(1, _MAX_FACTOR_POINTS // m)
    parts = []
    for start in range(0, max(n, 1), max(size, 1)):
        some = query.take(slice(start, start + size)) if n > size else query
        inside = predictor.in_support(some)
        found = change(estimate_at(predictor, some, intervals=True))
        parts.append(interval_of(found, level, in_support=inside.all(axis=0) if axis == 0 else inside, **shown))
    if len(parts) == 1:
        return parts[0]

    def joined(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts], axis=axis)

    errors: dict[str, float | Floats] = {
        name: np.concatenate([part.std_errors[name] for part in parts], axis=axis) for name in parts[0].std_errors
    }
    arrays = {name: joined(name) for name in ("estimate", "lower", "upper", "in_support", "dof")}
    return replace(parts[0], std_errors=errors, **arrays)


class Average(NamedTuple):
    """g at m treatments averaged over rows.

    Attributes:
        estimate: `(m,)`, or `(m, K)` for an outcome of K levels.
        inside: `(m, r)` whether treatments are in support, at rows that stand for all.
        shares: `(r,)` their shares of the average.
    """

    estimate: Estimate
    inside: NDArray[np.bool_]
    shares: Floats

    @property
    def support(self) -> Floats:
        """The share of rows for which the data show each treatment, `(m,)`."""
        return np.asarray(self.inside @ self.shares, np.float64)

    def support_of(self, *treatments: int) -> float:
        """The share of rows for which the data show all of these treatments, given by position."""
        return float(self.inside[list(treatments)].all(axis=0) @ self.shares)


def average(predictor: Predictor, query: Query, *, intervals: bool = False) -> Average:
    """g at each of a query's treatments, averaged over its rows by their weights; rows of weight zero are left out.

    Beyond 100,000 rows so many draws in proportion to weight stand for all, and the source "rows" is what this leaves
    open; likewise for the other sources and for support beyond `max_factor_rows`.
    """
    if intervals:
        require_intervals(predictor)
    whole = query.positive()
    rows = whole.drawn(_MAX_AVERAGED)
    each = predictor.at(rows)
    values = _averaged(each, rows.rows.shares)
    few = whole.drawn(predictor.max_factor_rows)
    sources = predictor.average_factors(few) if intervals else ()
    if intervals and rows is not whole:
        sources += (_rows_left_out(each - values[:, None], whole),)
    return Average(Estimate(values, sources), predictor.in_support(few), few.rows.shares)


def average_in_parts(factors: Callable[[Query], tuple[Source, ...]], query: Query) -> tuple[Source, ...]:
    """Factors `(k, m, n)` of a query's rows as those of weighted averages `(k, m)`, some rows at a time."""
    m, n = query.shape
    size, shares = max(1, _MAX_FACTOR_POINTS // m), query.rows.shares
    total: tuple[Source, ...] = ()
    for start in range(0, n, size):
        some = slice(start, start + size)
        found = factors(query if n <= size else query.take(some))
        part = [np.stack([_averaged(row, shares[some]) for row in source.factors]) for source in found]
        before = [source.factors for source in total] or [np.zeros(1)] * len(part)
        total = tuple(
            source._replace(factors=one + other) for source, one, other in zip(found, part, before, strict=True)
        )
    return total


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


def _averaged(values: Floats, shares: Floats) -> Floats:
    """The weighted mean over the second axis of `(m, n, ...)`."""
    return np.asarray(np.tensordot(values, shares, axes=(1, 0)), np.float64)


def contrast(estimate: Estimate) -> Estimate:
    """The second of two treatments against the first: g(t1, v) - g(t0, v)."""
    return estimate.map(lambda values: np.asarray(values[1] - values[0]))


def slope_query(predictor: Predictor, treatment: Any, covariates: Any, step: float) -> Query:
    r"""The two treatments $x \pm h/2$ at each row, from which $\{g(x + h/2, v) - g(x - h/2, v)\} / h$ is taken.

    Networks are piecewise linear: a step h as wide as the question is better than the smallest possible.

    Raises:
        DataError: the treatment has levels, which have no slope, or the step is not above zero.
    """
    variable = predictor.schema.treatment
    if variable.kind != BlockKind.continuous:
        raise DataError(f"treatment {variable.name!r} has levels and no slope. Ask for effect(..., t0=..., t1=...).")
    number = isinstance(step, int | float | np.number) and not isinstance(step, bool)
    if not number or not step > 0.0 or not np.isfinite(step):
        raise DataError(f"step must be a number above 0, got {step!r}.")
    centre = query_at(predictor.schema, treatment, covariates)
    x = centre.treatment[0]
    return Query(np.stack([x - step / 2.0, x + step / 2.0]), rows_of(predictor.schema, centre.rows))
