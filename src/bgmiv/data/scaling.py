"""Scaling of each role, fitted on training rows only and undone in predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgmiv.data.checks import warn_user
from bgmiv.data.ivdata import IVData
from bgmiv.data.schema import Schema
from bgmiv.errors import ConfigError

__all__ = [
    "Affine",
    "FixedAffine",
    "Identity",
    "RoleScaling",
    "Rule",
    "ScaledData",
    "Scaler",
    "Standardise",
    "treatment_as_columns",
]

# Rows are handled in pieces of about this many numbers, so that double precision never doubles a large input.
_PIECE = 1 << 20


class Affine(NamedTuple):
    """The map value -> (value - shift) / scale of each column, computed in double precision.

    Args:
        shift: (d,).
        scale: (d,), never zero.

    >>> price = Affine(np.array([10.0]), np.array([2.0]))
    >>> price.transform(np.array([10.0, 14.0]))
    array([0., 2.], dtype=float32)
    >>> price.inverse(np.array([0.0, 2.0]))
    array([10., 14.])
    """

    shift: NDArray[np.float64]
    scale: NDArray[np.float64]

    def transform(self, values: ArrayLike) -> NDArray[np.float32]:
        """Scale values of shape (n, d), or (n,) if d is one, to single precision."""
        array = np.asarray(values)
        scaled = np.empty(array.shape, dtype=np.float32)
        if array.ndim == 0:
            return np.asarray((array - self.shift[0]) / self.scale[0], dtype=np.float32)
        for rows in _pieces(array):
            scaled[rows] = (array[rows] - self.shift) / self.scale
        return scaled

    def inverse(self, values: ArrayLike) -> NDArray[np.float64]:
        """Bring scaled values of shape (n, d), or (n,) if d is one, back to the original units."""
        array = np.asarray(values, dtype=np.float64)
        if array.ndim == 0:
            return np.asarray(array * self.scale[0] + self.shift[0])
        return np.asarray(array * self.scale + self.shift)


def _pieces(array: NDArray[Any]) -> Iterator[slice]:
    step = max(1, _PIECE // max(1, array[:1].size))
    for start in range(0, len(array), step):
        yield slice(start, start + step)


class Rule(Protocol):
    """How the columns of a role are scaled."""

    def fit(self, values: NDArray[Any]) -> Affine:
        """Find shift and scale of each column of (n, d) values."""
        ...


@dataclass(frozen=True)
class Standardise:
    """Subtract the mean and divide by the standard deviation (divisor n) of the training rows.

    Args:
        minimum_deviation: a smaller deviation is replaced by one, as in the paper's appendix on training.

    >>> Standardise().fit(np.array([[1.0, 5.0], [3.0, 5.0]]))
    Affine(shift=array([2., 5.]), scale=array([1., 1.]))
    """

    minimum_deviation: float = 1e-6

    def __post_init__(self) -> None:
        """Refuse a minimum that would allow a division by zero."""
        if not 0 < self.minimum_deviation < np.inf:
            raise ConfigError(f"minimum_deviation must be positive and finite, got {self.minimum_deviation}.")

    def fit(self, values: NDArray[Any]) -> Affine:
        """Find the mean and the deviation of each column of (n, d) values, in two passes."""
        count = len(values)
        total, squares = np.zeros(values.shape[1]), np.zeros(values.shape[1])
        for rows in _pieces(values):
            total += values[rows].sum(axis=0, dtype=np.float64)
        mean = total / count
        for rows in _pieces(values):
            squares += np.square(values[rows] - mean).sum(axis=0)
        deviation = np.sqrt(squares / count)
        # The mean of a large constant is rounded, which would leave a deviation made of nothing.
        constant = values.min(axis=0) == values.max(axis=0)
        shift = np.where(constant, values[0], mean)
        return Affine(shift, np.where(constant | (deviation < self.minimum_deviation), 1.0, deviation))


@dataclass(frozen=True)
class FixedAffine:
    """The same given shift and scale for every column.

    >>> FixedAffine(shift=17.779, scale=3.7).fit(np.zeros((5, 1)))
    Affine(shift=array([17.779]), scale=array([3.7]))
    """

    shift: float
    scale: float

    def __post_init__(self) -> None:
        """Refuse a map that cannot be undone."""
        if not (np.isfinite(self.shift) and np.isfinite(self.scale) and self.scale > 0):
            raise ConfigError(
                f"a fixed scaling needs a finite shift and a positive scale, got {self.shift}, {self.scale}."
            )

    def fit(self, values: NDArray[Any]) -> Affine:
        """Repeat the shift and the scale for each column of (n, d) values."""
        width = values.shape[1]
        return Affine(np.full(width, float(self.shift)), np.full(width, float(self.scale)))


@dataclass(frozen=True)
class Identity:
    """Leave the values as they are.

    >>> Identity().fit(np.zeros((5, 2)))
    Affine(shift=array([0., 0.]), scale=array([1., 1.]))
    """

    def fit(self, values: NDArray[Any]) -> Affine:
        """Shift zero and scale one for each column of (n, d) values."""
        return Affine(np.zeros(values.shape[1]), np.ones(values.shape[1]))


class ScaledData(NamedTuple):
    """Scaled arrays in single precision: x (n,), y (n,), v (n, p), w (n, q)."""

    x: NDArray[np.float32]
    y: NDArray[np.float32]
    v: NDArray[np.float32]
    w: NDArray[np.float32]


def treatment_as_columns(rows: ScaledData, schema: Schema) -> ScaledData:
    """The rows with a treatment of three or more levels as (n, K) indicators; other rows as they are.

    >>> rows = ScaledData(*(np.zeros(2, np.float32),) * 4)
    >>> from bgmiv.data.schema import BlockKind, Variable
    >>> treatment = Variable("x", BlockKind.categorical, ("a", "b", "c"))
    >>> schema = Schema(Variable("y", BlockKind.continuous), treatment, ("w",))
    >>> treatment_as_columns(rows, schema).x.shape
    (2, 3)
    """
    return rows if schema.treatment.width == 1 else rows._replace(x=schema.treatment.columns(rows.x))


@dataclass(frozen=True, eq=False)
class Scaler:
    """The fitted maps of the four roles.

    >>> data = IVData.from_arrays([1.0, 3.0], [0.0, 4.0], instruments=[6.0, 2.0])
    >>> scaler = RoleScaling().fit(data)
    >>> scaler.transform(data).x
    array([-1.,  1.], dtype=float32)
    >>> scaler.outcome.inverse([-1.0, 1.0])
    array([1., 3.])
    """

    outcome: Affine
    treatment: Affine
    covariates: Affine
    instruments: Affine

    def transform(self, data: IVData) -> ScaledData:
        """Scale all four roles; data without instruments give a w of width zero."""
        instruments = self.instruments if data.instruments.shape[1] else Identity().fit(data.instruments)
        return ScaledData(
            x=self.treatment.transform(data.treatment),
            y=self.outcome.transform(data.outcome),
            v=self.covariates.transform(data.covariates),
            w=instruments.transform(data.instruments),
        )


@dataclass(frozen=True)
class RoleScaling:
    """Which rule scales which role.

    A binary or categorical outcome or treatment, binary and categorical covariates, and images (whose pixels are from
    0 to 1) are never scaled.

    >>> RoleScaling(treatment=FixedAffine(17.779, 3.7)).treatment
    FixedAffine(shift=17.779, scale=3.7)
    """

    outcome: Rule = Standardise()
    treatment: Rule = Standardise()
    covariates: Rule = Standardise()
    instruments: Rule = Standardise()

    def fit(self, data: IVData) -> Scaler:
        """Fit every role's rule on the training rows."""
        schema = data.schema
        outcome = Identity() if schema.outcome.discrete else self.outcome
        treatment = Identity() if schema.treatment.discrete else self.treatment
        left = [not block.scaled for block in schema.blocks for _ in range(block.width)]
        fitted = _fit(self.covariates, data.covariates, schema.flat_names, left)
        covariates = Affine(np.where(left, 0.0, fitted.shift), np.where(left, 1.0, fitted.scale))
        return Scaler(
            outcome=_fit(outcome, data.outcome[:, None], [schema.outcome.name]),
            treatment=_fit(treatment, data.treatment[:, None], [schema.treatment.name]),
            covariates=covariates,
            instruments=_fit(self.instruments, data.instruments, schema.instruments),
        )


def _fit(rule: Rule, values: NDArray[Any], names: Sequence[str], left: Sequence[bool] | None = None) -> Affine:
    affine = rule.fit(values)
    if not isinstance(rule, Standardise):
        return affine
    # A varying column in very small units is not scaled up by the rule, and training would not see it.
    unscaled = (affine.scale == 1.0) & (values.min(axis=0) < values.max(axis=0))
    unscaled = np.flatnonzero(unscaled if left is None else unscaled & ~np.array(left, dtype=bool))
    lost = [i for i in unscaled.tolist() if np.std(values[:, i], dtype=np.float64) < rule.minimum_deviation]
    if lost:
        listed = ", ".join(repr(names[i]) for i in lost[:5]) + (", ..." if len(lost) > 5 else "")
        warn_user(
            f"{listed}: the standard deviation is below {rule.minimum_deviation:g}, so the column is centred "
            "but not scaled and will hardly count. Use smaller units, so that its numbers are larger."
        )
    return affine
