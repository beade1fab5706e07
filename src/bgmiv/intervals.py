"""Estimates with their sources of uncertainty, and the intervals and bands made of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import chndtrix, ndtr, ndtri, stdtr

from bgmiv.arrays import TINY, Floats
from bgmiv.data.files import Tabular
from bgmiv.distributions import student_quantile
from bgmiv.errors import ConfigError
from bgmiv.numerals import percent, robust_set_text

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "ANDERSON_RUBIN", "BOUND", "NO_INTERVAL", "SMOOTHING", "STRENGTH", "Band", "Estimate", "Floats", "Interval",
    "Pieces", "Source", "Sources", "biased_quantile", "check_level", "coefficient_table", "interval_of",
    "largest_quantile",
]  # fmt: skip

Pieces = tuple[tuple[float, float], ...]
"""A set of effects: disjoint intervals in increasing order, whose ends may be infinite; it may be empty."""

Band = Literal["pointwise", "uniform"]
"""Intervals that each hold their truth with the level's probability, or a band that holds all of them at once."""

SMOOTHING = "smoothing"
"""The source of the bias of smoothing, on average over the functions that its prior deems likely."""

BOUND = "largest bias"
"""Not a source of chance: the length of its factors at a point is the largest such bias there, for uniform bands."""

STRENGTH = "first stage"
"""Not a source of chance: how the factors of "sampling" move with the slope of the treatment, for robust sets."""

ANDERSON_RUBIN = "anderson-rubin"
"""The method of an interval that is a set of effects which a test robust to weak instruments keeps."""

NO_INTERVAL = "none"
"""The method of an estimate without an interval, whose ends are not numbers."""

# From which the largest of many t statistics is known to about a per cent.
_DRAWS, _SEED = 4000, 0
_FAR = 100.0


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


Sources = tuple[Source, ...]


class Estimate(NamedTuple):
    """A linear function of g's values, and where its uncertainty comes from (nothing, for some methods)."""

    values: Floats
    sources: Sources = ()

    def without(self, *names: str) -> Estimate:
        """Without these sources."""
        return self._replace(sources=tuple(source for source in self.sources if source.name not in names))

    def pointwise(self) -> Estimate:
        """With the sources alone that pointwise intervals are made of."""
        return self.without(BOUND, STRENGTH)

    def map(self, function: Callable[[Floats], Floats]) -> Estimate:
        """A linear function of these values."""
        sources = tuple(
            source._replace(factors=np.stack([function(row) for row in source.factors])) for source in self.sources
        )
        return Estimate(function(self.values), sources)


@dataclass(frozen=True)
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
            that is valid however weak the instruments are; "none" for a method without intervals, whose ends are not
            numbers.
        pieces: of such a set, its disjoint intervals in rising order; `lower` and `upper` are the outermost ends.
        note: what has to be known of this interval, such as that it is too narrow; empty if nothing.
        axes: names of the axes of arrays, such as ("treatment", "row"); "level" are those of an outcome.
        levels: names of the outcome's levels, if there is such an axis.

    Example:
        >>> found = Interval(2.0, 1.5, 2.5, 0.95, {"sampling": 0.25})
        >>> lower, upper = found
        >>> lower, upper, float(found.std_error)
        (1.5, 2.5, 0.25)
    """

    estimate: float | Floats
    lower: float | Floats
    upper: float | Floats
    level: float
    std_errors: dict[str, float | Floats]
    in_support: bool | float | NDArray[Any] = True
    labels: tuple[Any, ...] = ()
    name: str = "estimate"
    dof: float | Floats = np.inf
    method: str = "pointwise"
    pieces: Pieces = ()
    note: str = ""
    axes: tuple[str, ...] = ()
    levels: tuple[Any, ...] = ()

    def __iter__(self) -> Iterator[Any]:
        """The lower and the upper end."""
        return iter((self.lower, self.upper))

    @property
    def std_error(self) -> Any:
        """The standard error of all sources together; not a number for a method without intervals."""
        if self.method == NO_INTERVAL:
            return np.nan
        return np.sqrt(sum(np.square(part) for part in self.std_errors.values()))

    @property
    def stretches(self) -> Pieces:
        """The disjoint intervals of one number, in rising order; none where there is no interval, or an empty set."""
        if self.pieces or np.isnan(self.lower):
            return self.pieces
        return ((float(self.lower), float(self.upper)),)

    @property
    def set_text(self) -> str:
        """The set in words where two ends do not tell it, an empty one or one of several pieces; else no words."""
        told = self.method != ANDERSON_RUBIN or len(self.pieces) == 1
        return "" if told else robust_set_text(self.pieces)

    def with_set(self, pieces: Pieces) -> Interval:
        """The same estimate with a set that is robust to weak instruments in the place of its interval."""
        lower, upper = (pieces[0][0], pieces[-1][1]) if pieces else (np.nan, np.nan)
        return replace(self, lower=lower, upper=upper, method=ANDERSON_RUBIN, pieces=pieces)

    def to_dict(self) -> dict[str, Any]:
        """What is kept of an interval of one number in a record of plain values; ends that do not exist are None."""
        names = ("estimate", "lower", "upper", "std_errors", "in_support", "dof", "method", "pieces")
        record = {name: getattr(self, name) for name in names}
        return record | ({"lower": None, "upper": None} if self.method == NO_INTERVAL else {})

    def to_frame(self) -> pd.DataFrame:
        """One row for each estimate: estimate, standard error, ends of the interval, and support.

        A set that two ends do not tell is in a column `set`, what has to be known of the interval in a column `note`.

        Example:
            >>> Interval(2.0, 1.5, 2.5, 0.95, {"sampling": 0.25}, 0.9, name="ate").to_frame()["upper"].tolist()
            [2.5]
        """
        import pandas as pd

        shape = np.shape(self.estimate)
        parts = {"estimate": self.estimate, "std_error": self.std_error, "lower": self.lower, "upper": self.upper}
        inside = np.asarray(self.in_support)
        # Support does not depend on an outcome's levels.
        inside = inside[..., None] if 0 < inside.ndim < len(shape) else inside
        parts["in_support"] = inside
        columns = {name: np.ravel(np.broadcast_to(part, shape)) for name, part in parts.items()}
        frame = pd.DataFrame(columns, index=self._index(shape))
        if not shape and self.set_text:
            frame["set"] = self.set_text
        if self.note:
            frame["note"] = self.note
        return frame

    def _index(self, shape: tuple[int, ...]) -> pd.Index:
        """Labels of the estimates, all axes of arrays together."""
        import pandas as pd

        if not shape:
            return pd.Index([self.name])
        each: list[Any] = [range(size) for size in shape]
        if self.labels:
            each[0] = list(self.labels)
        if self.levels:
            each[-1] = list(self.levels)
        names = self.axes or (None,) * len(shape)
        return pd.Index(each[0], name=names[0]) if len(shape) == 1 else pd.MultiIndex.from_product(each, names=names)

    @property
    def __maketables_coef_table__(self) -> pd.DataFrame:
        frame = self.to_frame()
        names = [", ".join(map(str, name)) if isinstance(name, tuple) else str(name) for name in frame.index]
        dof = np.ravel(np.broadcast_to(self.dof, np.shape(self.estimate)))
        return coefficient_table(names, frame["estimate"], frame["std_error"], dof)

    def __str__(self) -> str:
        """One number in a line; of many, how many there are.

        >>> print(Interval(2.0, 1.5, 2.5, 0.95, {"sampling": 0.2, "network": 0.15}, 0.9))
        2 (95% interval 1.5 to 2.5; standard error 0.25: sampling 0.2, network 0.15; 90% in support)
        >>> two = ((-np.inf, 0.3), (1.2, np.inf))
        >>> print(Interval(2.0, -np.inf, np.inf, 0.95, {"s": 0.4}, 1.0, method="anderson-rubin", pieces=two))
        2 (95% Anderson-Rubin set -infinity to 0.300 or 1.20 to infinity; standard error 0.4: s 0.4; 100% in support)
        """
        level, note = percent(self.level), f" {self.note}" if self.note else ""
        if np.ndim(self.estimate):
            text = f"{np.size(self.estimate)} estimates with {level} intervals: .estimate, .lower, .upper, .to_frame()"
            return f"{text}.{note}" if note else text
        parts = ", ".join(f"{name} {value:.4g}" for name, value in self.std_errors.items())
        inside = f"; {float(self.in_support):.0%} in support" if np.ndim(self.in_support) == 0 else ""
        error = f"standard error {float(self.std_error):.4g}: {parts}"
        kind = {"uniform": "band", ANDERSON_RUBIN: "Anderson-Rubin set"}.get(self.method, "interval")
        ends = self.set_text or f"{self.lower:.4g} to {self.upper:.4g}"
        return f"{self.estimate:.4g} ({level} {kind} {ends}; {error}{inside}){note}"


def coefficient_table(names: list[str], estimates: Any, std_errors: Any, dof: Any) -> pd.DataFrame:
    """Estimates as the maketables package wants them: standard errors, t and p values, 95% and 90% intervals."""
    import pandas as pd

    b, se, dof = (np.asarray(values, np.float64) for values in (estimates, std_errors, dof))
    with np.errstate(divide="ignore", invalid="ignore"):
        t = b / se
    columns = {"b": b, "se": se, "t": t, "p": 2.0 * stdtr(dof, -np.abs(t))}
    for level in (95, 90):
        half = student_quantile(0.5 + level / 200.0, dof) * se
        columns |= {f"ci{level}l": b - half, f"ci{level}u": b + half}
    return pd.DataFrame(columns, index=pd.Index(names, name="Coefficient"))


def check_level(level: float) -> None:
    """Refuse a confidence level that is not between 0 and 1."""
    # Quantiles are taken at 0.5 + level / 2, which may round to 0.5.
    if not isinstance(level, int | float | np.number) or not 0.5 < 0.5 + level / 2.0 < 1.0:
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
) -> Interval:
    r"""The interval $\hat\theta \pm t\, \sqrt{\sum_j s_j^2}$, t by Satterthwaite's degrees of freedom.

    A uniform band has in the place of t the quantile c of the largest of all entries' $|Z| / s$, in draws of a normal Z
    with the covariance of the sources (times Student's quantile over the normal one). Where smoothing has a bias, an
    average over likely functions is not enough, as pointwise intervals may miss curvature at some points if they hold g
    at most: the band takes the largest bias B at each point (`BOUND`), Z is of the other sources alone, and c becomes
    the quantile of $|N(B / s, 1)|$ at the level at which $|N(0, 1)|$ has the quantile c (Armstrong and Kolesár 2018).

    The ends of a probability's interval are cut off at 0 and 1; `in_support`, `labels` and `name` are kept beside it.

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
    variances = {source.name: np.sum(np.square(source.factors), axis=0) for source in used.sources}
    total = np.asarray(sum(variances.values()), np.float64)
    share = np.asarray(sum(variances[source.name] ** 2 / source.dof for source in used.sources), np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        dof = np.where(share > 0, total**2 / share, np.inf)
    # Quantiles are slow, and most often all points share their degrees of freedom.
    distinct, place = np.unique(dof, return_inverse=True)
    quantile = student_quantile(0.5 + level / 2.0, distinct)[place].reshape(dof.shape)
    half = quantile * np.sqrt(total)
    if band == "uniform" and used.sources:
        chance = used.without(SMOOTHING) if bounds else used
        deviation = np.sqrt(sum(variances[source.name] for source in chance.sources))
        largest = largest_quantile(np.concatenate([source.factors for source in chance.sources]), deviation, level)
        unit = deviation * (quantile / ndtri(0.5 + level / 2.0))
        bias = sum((np.linalg.norm(one.factors, axis=0) for one in bounds), 0.0 * unit)
        half = unit * biased_quantile(bias / np.maximum(unit, TINY), largest)
    lower, upper = estimate.values - half, estimate.values + half
    if probability:
        lower, upper = np.clip(lower, 0.0, 1.0), np.clip(upper, 0.0, 1.0)
    errors = {source: _plain(np.sqrt(value)) for source, value in variances.items()}
    ends = (_plain(estimate.values), _plain(lower), _plain(upper))
    return Interval(*ends, float(level), errors, in_support, labels, name, _plain(dof), band)


def _plain(values: Any) -> Any:
    array = np.asarray(values)
    return float(array) if array.ndim == 0 else array


def largest_quantile(factors: Floats, std_error: Floats, level: float) -> float:
    """The quantile of the largest |Z| / s over all entries, Z normal with the covariance of factors `(k, ...)`.

    Example:
        >>> independent = np.eye(10)
        >>> bool(abs(largest_quantile(independent, np.ones(10), 0.95) - 2.80) < 0.1)
        True
    """
    scaled = (factors / np.maximum(std_error, TINY)).reshape(len(factors), -1)
    # Factors are known up to a rotation; the symmetric root of the covariance depends on no such choice.
    _, sizes, directions = np.linalg.svd(scaled, full_matrices=False)
    draws = np.random.default_rng(_SEED).normal(size=(_DRAWS, scaled.shape[1])) @ (directions.T * sizes)
    largest = np.concatenate([np.abs(part @ directions).max(axis=1) for part in np.array_split(draws, 50)])
    return np.quantile(largest, level)


def biased_quantile(bias: Floats, quantile: float) -> Floats:
    """The quantile of |N(bias, 1)| at the level at which |N(0, 1)| has this quantile (Armstrong and Kolesár 2018).

    Example:
        >>> biased_quantile(np.array([0.0, 1.0, 5.0]), 1.96).round(2)
        array([1.96, 2.65, 6.64])
    """
    beyond = 2.0 * ndtr(-quantile)
    # Further from zero one side alone counts, and the distribution fails.
    near = np.minimum(bias, _FAR)
    return bias - near + np.sqrt(chndtrix(1.0 - beyond, 1, near**2))
