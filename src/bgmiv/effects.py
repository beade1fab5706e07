"""Questions to a structural function: contrasts, averages, slopes and curves, and intervals for each.

Every answer is computed from g(x, v) and its factors alone, so that every method answers the same questions in the same
way. The same question has the same answer wherever it is asked: what is averaged over which rows is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm
from scipy.stats import t as student

from bgmiv.bands import biased_quantile, largest_quantile
from bgmiv.data.export import Tabular
from bgmiv.data.messages import FloatArray
from bgmiv.data.query import Encoded, Query, query_at, rows_of
from bgmiv.data.schema import BlockKind, Schema
from bgmiv.errors import ConfigError, DataError
from bgmiv.numerals import percent

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "BOUND", "ROUGHNESS", "SMOOTHING", "Average", "Band", "DoseResponse", "Estimate", "Interval", "Predictor", "Source",
    "average", "check_level", "coefficient_table", "contrast", "estimate_at", "interval_at", "interval_of", "predict",
    "require_intervals", "slope_query",
]  # fmt: skip

Floats = NDArray[np.float64]
Band = Literal["pointwise", "uniform"]
"""Intervals that each hold their truth with the level's probability, or a band that holds all of them at once."""

SMOOTHING = "smoothing"
"""The source of the bias of smoothing, on average over the functions that its prior deems likely."""

BOUND = "largest bias"
"""Not a source of chance: the length of its factors at a point is the largest such bias there, for uniform bands."""

ROUGHNESS = "roughness"
"""The source of what a rougher curve that the data do not reject would change; intervals leave it out unless asked."""

# Beyond this many rows an average is one over evenly spread rows, and each row's own answers are given in parts.
_MAX_AVERAGED = 100_000
# The uncertainty of an average, and the share of its rows in support, hardly depend on more rows than these.
_MAX_FACTOR_ROWS = 250
# Factors are many numbers a point: so many points at a time.
_MAX_FACTOR_POINTS = 50_000


class Source(NamedTuple):
    """One source of uncertainty about g at some points.

    Attributes:
        name: such as "sampling" (which rows were drawn) or "network" (how training happened to go).
        factors: `(k, ...)`: the covariance of g at two points is the sum over k of their products.
        dof: degrees of freedom of that variance.
    """

    name: str
    factors: Floats
    dof: float


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

    def encode(self, covariates: FloatArray) -> Encoded:
        """What it computes of covariates alone, an entry a row; `Rows` asks for it once."""

    def at(self, query: Query) -> Floats:
        """g in units of the outcome, `(m, n)`; for an outcome of K > 2 levels `(m, n, K)`, their probabilities."""

    def factors(self, query: Query) -> tuple[Source, ...]:
        """Independent sources of uncertainty about `at`, with factors `(k, m, n)`; none without intervals."""

    def in_support(self, query: Query) -> NDArray[np.bool_]:
        """Where the data show such a treatment at such covariates, `(m, n)`; elsewhere g is extrapolated."""


class Estimate(NamedTuple):
    """A linear function of g's values, and where its uncertainty comes from (nothing, for some methods)."""

    values: Floats
    sources: tuple[Source, ...] = ()

    def without(self, *names: str) -> Estimate:
        """Without these sources."""
        return self._replace(sources=tuple(source for source in self.sources if source.name not in names))

    def pointwise(self) -> Estimate:
        """With the sources alone that pointwise intervals are made of."""
        return self.without(BOUND, ROUGHNESS)

    def map(self, function: Callable[[Floats], Floats]) -> Estimate:
        """A linear function of these values."""
        sources = tuple(
            source._replace(factors=np.stack([function(row) for row in source.factors])) for source in self.sources
        )
        return Estimate(function(self.values), sources)


@dataclass(frozen=True, eq=False)
class Interval(Tabular):
    """An estimate with its interval; unpacks to the two ends, `lower, upper = model.effect_interval(...)`.

    Attributes:
        estimate: the estimate, a number or an array.
        lower, upper: the ends of the interval, of the same shape.
        level: the confidence level, such as 0.95.
        std_errors: standard errors by source, each of the same shape.
        in_support: whether the data show what was asked about, of the same shape but for an outcome's levels; for
            averages over rows, the share of those for which they do.
        labels: what the entries are, such as treatments of a curve; empty for numbered rows.
        name: what was asked, for tables.
        dof: degrees of freedom, of the same shape.
        method: "pointwise"; "uniform" for a band that covers all entries; "anderson-rubin" for the ends of a set
            that is valid however weak the instruments are.
        pieces: of such a set, its disjoint intervals in rising order.

    Example:
        >>> found = Interval(2.0, 1.5, 2.5, 0.95, {"sampling": 0.25})
        >>> lower, upper = found
        >>> lower, upper, float(found.std_error)
        (1.5, 2.5, 0.25)
    """

    estimate: Any
    lower: Any
    upper: Any
    level: float
    std_errors: dict[str, Any]
    in_support: Any = True
    labels: tuple[Any, ...] = ()
    name: str = "estimate"
    dof: Any = np.inf
    method: str = "pointwise"
    pieces: tuple[tuple[float, float], ...] = ()

    def __iter__(self) -> Iterator[Any]:
        """The lower and the upper end."""
        return iter((self.lower, self.upper))

    @property
    def std_error(self) -> Any:
        """The standard error of all sources together."""
        return np.sqrt(sum(np.square(part) for part in self.std_errors.values()))

    def to_frame(self) -> pd.DataFrame:
        """One row for each estimate: estimate, standard error, ends of the interval, and support.

        Example:
            >>> Interval(2.0, 1.5, 2.5, 0.95, {"sampling": 0.25}, 0.9, name="ate").to_frame()["upper"].tolist()
            [2.5]
        """
        import pandas as pd

        values = np.atleast_1d(self.estimate)
        columns = {"estimate": self.estimate, "std_error": self.std_error, "lower": self.lower, "upper": self.upper}
        index = list(self.labels) or ([self.name] if np.ndim(self.estimate) == 0 else range(len(values)))
        if values.ndim == 1:
            frame = pd.DataFrame({name: np.atleast_1d(part) for name, part in columns.items()}, index=index)
            frame["in_support"] = np.broadcast_to(self.in_support, values.shape)
            return frame
        # Several levels of an outcome: one row for each estimate and level.
        pairs = pd.MultiIndex.from_product([index, range(values.shape[-1])], names=[None, "level"])
        return pd.DataFrame({name: np.ravel(part) for name, part in columns.items()}, index=pairs)

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html(float_format="{:.4g}".format))

    @property
    def __maketables_coef_table__(self) -> pd.DataFrame:
        frame = self.to_frame()
        names = [str(name) for name in frame.index]
        dof = np.ravel(np.broadcast_to(self.dof, np.shape(self.estimate)))
        return coefficient_table(names, frame["estimate"], frame["std_error"], dof)

    def __str__(self) -> str:
        """One number in a line; of many, how many there are.

        >>> print(Interval(2.0, 1.5, 2.5, 0.95, {"sampling": 0.2, "network": 0.15}, 0.9))
        2 (95% interval 1.5 to 2.5; standard error 0.25: sampling 0.2, network 0.15; 90% in support)
        """
        level = percent(self.level)
        if np.ndim(self.estimate):
            return f"{np.size(self.estimate)} estimates with {level} intervals: .estimate, .lower, .upper, .to_frame()"
        parts = ", ".join(f"{name} {value:.4g}" for name, value in self.std_errors.items())
        inside = f"; {float(self.in_support):.0%} in support" if np.ndim(self.in_support) == 0 else ""
        error = f"standard error {float(self.std_error):.4g}: {parts}"
        kind = {"uniform": "band", "anderson-rubin": "Anderson-Rubin set"}.get(self.method, "interval")
        return f"{self.estimate:.4g} ({level} {kind} {self.lower:.4g} to {self.upper:.4g}; {error}{inside})"


def coefficient_table(names: list[str], estimates: Any, std_errors: Any, dof: Any) -> pd.DataFrame:
    """Estimates as the maketables package wants them: standard errors, t and p values, 95% and 90% intervals."""
    import pandas as pd

    b, se, dof = (np.asarray(values, np.float64) for values in (estimates, std_errors, dof))
    with np.errstate(divide="ignore", invalid="ignore"):
        t = b / se
    columns = {"b": b, "se": se, "t": t, "p": 2.0 * student.sf(np.abs(t), dof)}
    for level in (95, 90):
        half = student.ppf(0.5 + level / 200.0, dof) * se
        columns |= {f"ci{level}l": b - half, f"ci{level}u": b + half}
    return pd.DataFrame(columns, index=pd.Index(names, name="Coefficient"))


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


def check_level(level: float) -> None:
    """Refuse a confidence level that is not between 0 and 1."""
    if isinstance(level, bool) or not isinstance(level, int | float | np.number) or not 0.0 < level < 1.0:
        raise ConfigError(f"level must lie between 0 and 1, such as 0.95, got {level!r}.")


def interval_of(
    estimate: Estimate,
    level: float,
    *,
    in_support: Any = True,
    probability: bool = False,
    labels: tuple[Any, ...] = (),
    name: str = "estimate",
    band: Band = "pointwise",
    rough: bool = False,
) -> Interval:
    r"""The interval $\hat\theta \pm t\, \sqrt{\sum_j s_j^2}$, t by Satterthwaite's degrees of freedom.

    A uniform band has in the place of t the quantile c of the largest of all entries' $|Z| / s$, in draws of a normal Z
    with the covariance of the sources (times Student's quantile over the normal one). Where smoothing has a bias, an
    average over likely functions is not enough, as pointwise intervals may miss a bend at some points if they hold g at
    most: the band takes the largest bias B at each point (`BOUND`), Z is of the other sources alone, and c becomes the
    quantile of $|N(B / s, 1)|$ at the level at which $|N(0, 1)|$ has the quantile c (Armstrong and Kolesár 2018).

    The ends of a probability's interval are cut off at 0 and 1; `in_support`, `labels` and `name` are kept beside it.
    `rough` includes the source `ROUGHNESS`.

    Example:
        >>> estimate = Estimate(np.array([2.0]), (Source("sampling", np.array([[0.1]]), np.inf),))
        >>> lower, upper = interval_of(estimate, 0.95)
        >>> np.round([lower[0], upper[0]], 2).tolist()
        [1.8, 2.2]
    """
    check_level(level)
    if band not in ("pointwise", "uniform"):
        raise ConfigError(f"band must be 'pointwise' or 'uniform', got {band!r}.")
    used, bounds = estimate.pointwise(), [one for one in estimate.sources if one.name == BOUND]
    used = estimate.without(BOUND) if rough else used
    variances = {source.name: np.sum(np.square(source.factors), axis=0) for source in used.sources}
    total = np.asarray(sum(variances.values()), np.float64)
    share = np.asarray(sum(variances[source.name] ** 2 / source.dof for source in used.sources), np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        dof = np.where(share > 0, total**2 / share, np.inf)
    # Quantiles are slow, and most often all points share their degrees of freedom.
    distinct, place = np.unique(dof, return_inverse=True)
    quantile = student.ppf(0.5 + level / 2.0, distinct)[place].reshape(dof.shape)
    half = quantile * np.sqrt(total)
    if band == "uniform" and used.sources:
        chance = used.without(SMOOTHING) if bounds else used
        deviation = np.sqrt(sum(variances[source.name] for source in chance.sources))
        largest = largest_quantile(np.concatenate([source.factors for source in chance.sources]), deviation, level)
        unit = deviation * (quantile / norm.ppf(0.5 + level / 2.0))
        bias = np.sqrt(sum(np.sum(np.square(one.factors), axis=0) for one in bounds)) if bounds else 0.0 * unit
        half = unit * biased_quantile(bias / np.maximum(unit, np.finfo(float).tiny), largest)
    lower, upper = estimate.values - half, estimate.values + half
    if probability:
        lower, upper = np.clip(lower, 0.0, 1.0), np.clip(upper, 0.0, 1.0)
    errors = {source: _plain(np.sqrt(value)) for source, value in variances.items()}
    ends = (_plain(estimate.values), _plain(lower), _plain(upper))
    return Interval(*ends, float(level), errors, in_support, labels, name, _plain(dof), band)


def _plain(values: Any) -> Any:
    array = np.asarray(values)
    return float(array) if array.ndim == 0 else array


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
    starts = range(0, len(query.rows), _MAX_AVERAGED)
    parts = [query.take(slice(start, start + _MAX_AVERAGED)) for start in starts] if len(starts) > 1 else [query]
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

    errors = {
        name: np.concatenate([part.std_errors[name] for part in parts], axis=axis) for name in parts[0].std_errors
    }
    arrays = {name: joined(name) for name in ("estimate", "lower", "upper", "in_support", "dof")}
    return replace(parts[0], std_errors=errors, **arrays)


class Average(NamedTuple):
    """g at m treatments averaged over rows.

    Attributes:
        estimate: `(m,)`, or `(m, K)` for an outcome of K levels.
        inside: `(m, r)` whether treatments are in support, at the rows that stand for all.
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
    """g at each of a query's treatments, averaged over its rows by their weights.

    Beyond 100,000 rows, so many evenly spread ones stand for all, and the source "rows" is what this leaves open; for
    the other sources and for support, 250 of them.
    """
    if intervals:
        require_intervals(predictor)
    rows = query.thinned(_MAX_AVERAGED)
    each = predictor.at(rows)
    values = _averaged(each, rows.rows.shares)
    few = query.thinned(_MAX_FACTOR_ROWS)
    shares = few.rows.shares
    sources = tuple(
        source._replace(factors=np.stack([_averaged(row, shares) for row in source.factors]))
        for source in (predictor.factors(few) if intervals else ())
    )
    if intervals and rows is not query:
        sources += (_rows_left_out(each - values[:, None], rows.rows.shares, len(query.rows)),)
    return Average(Estimate(values, sources), predictor.in_support(few), shares)


def _rows_left_out(around: Floats, shares: Floats, n: int) -> Source:
    """What an average over r of n rows leaves open about that over all, by its values around it, `(m, r, ...)`."""
    weighted = np.moveaxis(around, 1, -1) * shares
    flat = weighted.reshape(-1, len(shares))
    variances, vectors = np.linalg.eigh(flat @ flat.T * (1.0 - len(shares) / n))
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
