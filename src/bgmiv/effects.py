"""Questions to a structural function: contrasts, averages, derivatives and curves, and intervals for each.

Everything is computed from g(x, v) and its deviations alone, so that every method answers the same questions. Many
treatments are asked for together: what a method computes of covariates it computes once a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from bgmiv.data.schema import BlockKind, Schema
from bgmiv.errors import ConfigError, DataError

__all__ = [
    "Answer",
    "DoseResponse",
    "Interval",
    "Source",
    "Structural",
    "Uncertain",
    "average_effect",
    "dose_response",
    "effect",
    "interval_of",
    "marginal_effect",
    "structural_values",
    "uncertain",
]

Floats = NDArray[np.float64]

_MOST_ROWS = 100_000
_FEWEST_AVERAGED = 50


class Structural(Protocol):
    """A fitted method: the structural function and the names and kinds of its data."""

    @property
    def schema(self) -> Schema:
        """Names and kinds of the training data."""

    def predict(self, treatment: Any, covariates: Any = None) -> np.ndarray:
        """g at one treatment for all rows or one a row."""


class Source(NamedTuple):
    """One source of uncertainty about g at n points.

    Attributes:
        name: such as "sampling" (which rows were drawn) or "network" (how training happened to go).
        deviations: `(k, n)` or `(k, n, K)`: the covariance of g at two points is the sum over k of their products.
        freedom: degrees of freedom of that variance.
    """

    name: str
    deviations: Floats
    freedom: float

    def map(self, function: Callable[[Floats], Floats]) -> Source:
        """The deviations of a linear function of g's values."""
        return self._replace(deviations=np.stack([function(row) for row in self.deviations]))


@runtime_checkable
class Uncertain(Protocol):
    """A fitted method that knows how uncertain it is.

    One whose deviations are dear has a number `most_points`: averages over people are then as uncertain as averages
    over so many of them, evenly spread.
    """

    @property
    def interval_kind(self) -> str:
        """What its intervals are, in a sentence or two."""

    def deviations(self, treatment: Any, covariates: Any = None) -> tuple[Source, ...]:
        """Independent sources of uncertainty about `predict` at the same points."""


class Answer(NamedTuple):
    """A linear function of g's values, with what is known of its uncertainty (nothing, for some methods)."""

    values: Floats
    sources: tuple[Source, ...]

    def map(self, function: Callable[[Floats], Floats]) -> Answer:
        """A linear function of these values."""
        return Answer(function(self.values), tuple(source.map(function) for source in self.sources))

    def minus(self, other: Answer) -> Answer:
        """The difference to other values of the same function."""
        pairs = zip(self.sources, other.sources, strict=True)
        return Answer(
            self.values - other.values,
            tuple(one._replace(deviations=one.deviations - two.deviations) for one, two in pairs),
        )


@dataclass(frozen=True, eq=False)
class Interval:
    """An estimate with its interval; unpacks to the two ends, `lower, upper = model.effect_interval(...)`.

    Attributes:
        estimate: what was asked.
        lower, upper: the ends of the interval, of the same shape.
        level: the share of such intervals that is meant to hold the truth.
        sources: standard deviations by where they come from, each of the same shape.
        in_support: whether the data show what was asked about, of the same shape but for an outcome's levels; for
            averages over people, the share of those for whom they do.
    """

    estimate: Any
    lower: Any
    upper: Any
    level: float
    sources: dict[str, Any]
    in_support: Any = True

    def __iter__(self) -> Iterator[Any]:
        """The lower and the upper end."""
        return iter((self.lower, self.upper))

    @property
    def std_error(self) -> Any:
        """The standard deviation of all sources together."""
        return np.sqrt(sum(np.square(part) for part in self.sources.values()))

    def __str__(self) -> str:
        """One number in a line; of many, how many there are.

        >>> print(Interval(2.0, 1.5, 2.5, 0.95, {"sampling": 0.2, "network": 0.15}, 0.9))
        2 (95% interval 1.5 to 2.5; standard error 0.25: sampling 0.2, network 0.15; in support 90%)
        """
        level = f"{self.level * 100:.4g}%"
        if np.ndim(self.estimate):
            return f"{np.size(self.estimate)} estimates with {level} intervals: .estimate, .lower, .upper"
        parts = ", ".join(f"{name} {value:.4g}" for name, value in self.sources.items())
        inside = f"; in support {float(self.in_support):.0%}" if np.ndim(self.in_support) == 0 else ""
        error = f"standard error {float(self.std_error):.4g}: {parts}"
        return f"{self.estimate:.4g} ({level} interval {self.lower:.4g} to {self.upper:.4g}; {error}{inside})"


def interval_of(answer: Answer, level: float, *, in_support: Any = True, probability: bool = False) -> Interval:
    r"""The interval $\hat\theta \pm t\, \sqrt{\sum_j s_j^2}$, t Student's quantile at Satterthwaite's freedom.

    Args:
        answer: the estimate and its sources.
        level: between 0 and 1.
        in_support: kept beside it.
        probability: cut the ends off at 0 and 1.

    Example:
        >>> answer = Answer(np.array([2.0]), (Source("sampling", np.array([[0.1]]), np.inf),))
        >>> lower, upper = interval_of(answer, 0.95)
        >>> np.round([lower[0], upper[0]], 2).tolist()
        [1.8, 2.2]
    """
    _check_level(level)
    variances = {source.name: np.sum(np.square(source.deviations), axis=0) for source in answer.sources}
    total = np.asarray(sum(variances.values()), np.float64)
    share = np.asarray(sum(variances[source.name] ** 2 / source.freedom for source in answer.sources), np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = np.where(share > 0, total**2 / share, np.inf)
    half = student.ppf(0.5 + level / 2.0, freedom) * np.sqrt(total)
    lower, upper = answer.values - half, answer.values + half
    if probability:
        lower, upper = np.clip(lower, 0.0, 1.0), np.clip(upper, 0.0, 1.0)
    deviations = {name: _plain(np.sqrt(value)) for name, value in variances.items()}
    return Interval(_plain(answer.values), _plain(lower), _plain(upper), float(level), deviations, in_support)


def uncertain(g: Structural) -> Uncertain:
    """The method as one with intervals.

    Raises:
        ConfigError: it has none; the message says which have.
    """
    if isinstance(g, Uncertain):
        return g
    raise ConfigError(
        f"{type(g).__name__.removeprefix('Fitted')} gives point estimates only. Intervals are given by BGMIV and TSLS."
    )


def _check_level(level: float) -> None:
    if isinstance(level, bool) or not isinstance(level, int | float | np.number) or not 0.0 < level < 1.0:
        raise ConfigError(f"level must lie between 0 and 1, such as 0.95, got {level!r}.")


def _plain(values: Any) -> Any:
    array = np.asarray(values)
    return float(array) if array.ndim == 0 else array


def structural_values(g: Structural, treatment: Any, covariates: Any = None, with_sources: bool = False) -> Answer:
    """g at one treatment for all rows or one a row, and if asked how uncertain it is."""
    values = np.asarray(g.predict(treatment, covariates), np.float64)
    return Answer(values, uncertain(g).deviations(treatment, covariates) if with_sources else ())


@dataclass(frozen=True, eq=False)
class DoseResponse:
    """The structural function along treatments.

    Attributes:
        treatment: the m treatments, numbers or levels.
        values: `(m,)` averaged over people, or `(m, n)` for each; with a last axis of K for an outcome of K levels.
    """

    treatment: np.ndarray
    values: Floats


def effect(g: Structural, covariates: Any = None, *, t0: Any, t1: Any, with_sources: bool = False) -> Answer:
    """g(t1, v) - g(t0, v) for every row of covariates: what setting the treatment to t1 instead of t0 would change.

    Args:
        g: the fitted method.
        covariates: the people asked about; None for a fit without covariates.
        t0, t1: a treatment for all rows or one a row.
        with_sources: also how uncertain it is.

    Example:
        >>> from bgmiv import TSLS
        >>> rng = np.random.default_rng(0)
        >>> w, u = rng.normal(size=(2, 500))
        >>> model = TSLS().fit(3.0 * (w + u) - u, w + u, instruments=w)
        >>> round(float(effect(model.fitted_, t0=0.0, t1=2.0).values[0]))
        6
    """
    return structural_values(g, t1, covariates, with_sources).minus(structural_values(g, t0, covariates, with_sources))


def average_effect(g: Structural, covariates: Any = None, *, t0: Any, t1: Any, with_sources: bool = False) -> Answer:
    """The mean of `effect` over rows: a number, or one a level of the outcome."""

    def average(rows: Floats) -> Floats:
        return np.asarray(np.mean(rows, axis=0))

    if with_sources:
        uncertain(g)
    found = effect(g, covariates, t0=t0, t1=t1).map(average)
    if not with_sources:
        return found
    schema = g.schema
    flat = schema.check_covariates(covariates, n_rows=None if schema.blocks else 1)
    scalar = all(np.ndim(value) == 0 for value in (t0, t1))
    few = _thinned(g, flat, 2) if scalar and schema.blocks else covariates
    return Answer(found.values, effect(g, few, t0=t0, t1=t1, with_sources=True).map(average).sources)


def _thinned(g: Structural, rows: NDArray[Any], n_doses: int) -> NDArray[Any]:
    """Rows enough for the uncertainty of an average, where a method says that all would take long."""
    most = getattr(g, "most_points", None)
    if most is None:
        return rows
    wanted = min(max(most // n_doses, _FEWEST_AVERAGED), most // 2)
    return rows[:: -(-len(rows) // wanted)]


def marginal_effect(
    g: Structural, treatment: Any, covariates: Any = None, *, step: float, with_sources: bool = False
) -> Answer:
    r"""The slope $\{g(x + h/2, v) - g(x - h/2, v)\} / h$ at each row's treatment.

    Args:
        g: the fitted method.
        treatment: one for all rows or one a row.
        covariates: the people asked about.
        step: h, in units of the treatment. Networks are made of straight pieces: a step as wide as the question is
            better than the smallest possible.
        with_sources: also how uncertain it is.

    Raises:
        DataError: the treatment has levels, which have no slope, or the step is not above zero.
    """
    variable = g.schema.treatment
    if variable.kind != BlockKind.continuous:
        raise DataError(f"treatment {variable.name!r} has levels and no slope. Ask for effect(..., t0=..., t1=...).")
    number = isinstance(step, int | float | np.number) and not isinstance(step, bool)
    if not number or not step > 0.0 or not np.isfinite(step):
        raise DataError(f"step must be a number above 0, got {step!r}.")
    centre, v = g.schema.check_query(treatment, covariates)
    asked = v if g.schema.blocks else None
    change = effect(g, asked, t0=centre - step / 2.0, t1=centre + step / 2.0, with_sources=with_sources)
    return change.map(lambda rows: rows / step)


def dose_response(
    g: Structural, treatments: Any, covariates: Any = None, *, average: bool = True, with_sources: bool = False
) -> tuple[np.ndarray, Answer]:
    """g along treatments, averaged over rows of covariates or for each of them.

    Args:
        g: the fitted method.
        treatments: the treatments asked for, `(m,)`.
        covariates: the people asked about, n rows.
        average: the mean over people, or everyone's own curve.
        with_sources: also how uncertain it is.

    Returns:
        The treatments, and `(m,)` or `(m, n)` values of g.

    Example:
        >>> from bgmiv import TSLS
        >>> rng = np.random.default_rng(0)
        >>> w, v, u = rng.normal(size=(3, 500))
        >>> x = w + v + u
        >>> model = TSLS().fit(2.0 * x + v - u, x, instruments=w, covariates={"age": v})
        >>> _, curve = dose_response(model.fitted_, [0.0, 1.0], {"age": v})
        >>> round(float(curve.values[1] - curve.values[0]), 1)
        2.0
    """
    if with_sources:
        uncertain(g)
    doses = np.atleast_1d(np.asarray(treatments))
    if doses.ndim != 1 or not len(doses):
        raise DataError(f"treatments have shape {doses.shape}. Pass one or more values in a row.")
    schema = g.schema
    flat = schema.check_covariates(covariates, n_rows=None if schema.blocks else 1)
    doses_of = _along(g, doses, flat, average=average, with_sources=with_sources and not average)
    if average and with_sources:
        few = _thinned(g, flat, len(doses)) if schema.blocks else flat
        doses_of = Answer(doses_of.values, _along(g, doses, few, average=True, with_sources=True).sources)
    return doses, doses_of


def _along(g: Structural, doses: NDArray[Any], flat: NDArray[Any], *, average: bool, with_sources: bool) -> Answer:
    n, blocks = len(flat), g.schema.blocks
    at_once = max(1, _MOST_ROWS // n)
    found: list[Answer] = []
    for start in range(0, len(doses), at_once):
        some = doses[start : start + at_once]
        rows = np.tile(flat, (len(some), 1)) if blocks else None

        def curves(values: Floats, m: int = len(some)) -> Floats:
            each = values.reshape(m, n, *values.shape[1:])
            return each.mean(axis=1) if average else each

        found.append(structural_values(g, np.repeat(some, n), rows, with_sources).map(curves))
    return _joined(found)


def _joined(parts: Sequence[Answer]) -> Answer:
    values = np.concatenate([part.values for part in parts])
    sources = tuple(
        sources[0]._replace(deviations=np.concatenate([source.deviations for source in sources], axis=1))
        for sources in zip(*(part.sources for part in parts), strict=True)
    )
    return Answer(values, sources)
