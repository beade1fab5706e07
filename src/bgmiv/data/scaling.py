"""Scaling of each role, fitted on training rows only and undone in predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgmiv.data.ivdata import IVData
from bgmiv.data.messages import Array, Floats, listed, warn_user
from bgmiv.data.schema import Schema
from bgmiv.errors import ConfigError

__all__ = [
    "UNSCALED",
    "Affine",
    "FixedAffine",
    "Identity",
    "RoleScaling",
    "Rule",
    "ScaledData",
    "Scaler",
    "Standardise",
    "row_pieces",
    "treatment_as_columns",
    "unique_rows",
]

# Rows are handled in pieces of about this many numbers, so that double precision never doubles a large input.
_PIECE = 1 << 20

Singles = NDArray[np.float32]


class Affine(NamedTuple):
    """The map value -> (value - shift) / scale of each of d columns, computed in double precision.

    >>> price = Affine(np.array([10.0]), np.array([2.0]))
    >>> price.transform(np.array([10.0, 14.0]))
    array([0., 2.], dtype=float32)
    >>> price.inverse(np.array([0.0, 2.0]))
    array([10., 14.])
    """

    shift: Floats
    scale: Floats

    def transform(self, values: ArrayLike) -> Singles:
        """Scale values of shape (n, d), or (n,) if d is one, to single precision."""
        array = np.atleast_1d(values)
        scaled = np.empty(array.shape, dtype=np.float32)
        for rows in row_pieces(array):
            scaled[rows] = (array[rows] - self.shift) / self.scale
        return scaled.reshape(np.shape(values))

    def inverse(self, values: ArrayLike) -> Floats:
        """Bring scaled values of shape (n, d), or (n,) if d is one, back to the original units."""
        array = np.asarray(values, dtype=np.float64)
        return np.asarray(array * self.scale + self.shift).reshape(array.shape)


def row_pieces(array: Array) -> Iterator[slice]:
    """Slices of rows, each of bounded size."""
    step = max(1, _PIECE // max(1, array[:1].size))
    for start in range(0, len(array), step):
        yield slice(start, start + step)


def unique_rows(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct rows in order of first appearance, and each row's place among them.

    Example:
        >>> rows, places = unique_rows(np.array([[1.0, 2.0], [0.0, 0.0], [1.0, 2.0]]))
        >>> rows.tolist(), places.tolist()
        ([[1.0, 2.0], [0.0, 0.0]], [0, 1, 0])
    """
    if v.shape[1] == 0:
        return v[:1], np.zeros(len(v), dtype=np.intp)
    packed = np.ascontiguousarray(v).view(f"V{v.dtype.itemsize * v.shape[1]}").ravel()
    _, first, inverse = np.unique(packed, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return v[first[order]], np.argsort(order)[inverse]


class Rule(Protocol):
    """How the columns of a role are scaled."""

    def fit(self, values: Array) -> Affine:
        """Find shift and scale of each column of (n, d) values."""


@dataclass(frozen=True)
class Standardise:
    """Subtract the mean and divide by the standard deviation (divisor n) of the training rows.

    Args:
        min_std: a smaller standard deviation is replaced by one, as in the paper's appendix on training.

    >>> Standardise().fit(np.array([[1.0, 5.0], [3.0, 5.0]]))
    Affine(shift=array([2., 5.]), scale=array([1., 1.]))
    """

    min_std: float = 1e-6

    def __post_init__(self) -> None:
        """Refuse a division by zero."""
        if not 0 < self.min_std < np.inf:
            raise ConfigError(f"min_std must be positive and finite, got {self.min_std}.")

    def fit(self, values: Array) -> Affine:
        """Find the mean and the standard deviation of each column of (n, d) values, in two passes."""
        mean = values.mean(axis=0, dtype=np.float64)
        squares = sum(np.square(values[rows] - mean).sum(axis=0) for rows in row_pieces(values))
        std = np.sqrt(squares / len(values))
        # The mean of a large constant is rounded, which would leave a standard deviation made of nothing.
        constant = values.min(axis=0) == values.max(axis=0)
        shift = np.where(constant, values[0], mean)
        return Affine(shift, np.where(constant | (std < self.min_std), 1.0, std))


@dataclass(frozen=True)
class FixedAffine:
    """The same given shift and scale for every column.

    Args:
        shift, scale: the map is value -> (value - shift) / scale.

    Example:
        >>> FixedAffine(shift=10.0, scale=2.0).fit(np.array([[10.0], [14.0]])).transform(np.array([14.0]))
        array([2.], dtype=float32)
    """

    shift: float
    scale: float

    def __post_init__(self) -> None:
        """Refuse a map that cannot be undone."""
        if not (np.isfinite(self.shift) and np.isfinite(self.scale) and self.scale > 0):
            raise ConfigError(
                f"a fixed scaling needs a finite shift and a positive scale, got {self.shift}, {self.scale}."
            )

    def fit(self, values: Array) -> Affine:
        """Repeat the shift and the scale for each column of (n, d) values."""
        width = values.shape[1]
        return Affine(np.full(width, float(self.shift)), np.full(width, float(self.scale)))


@dataclass(frozen=True)
class Identity:
    """Leave the values as they are.

    Example:
        >>> Identity().fit(np.array([[10.0], [14.0]])).transform(np.array([14.0]))
        array([14.], dtype=float32)
    """

    def fit(self, values: Array) -> Affine:
        """Shift zero and scale one for each column of (n, d) values."""
        return FixedAffine(0.0, 1.0).fit(values)


class ScaledData(NamedTuple):
    """Scaled arrays in single precision: x (n,), y (n,), v (n, p), w (n, q)."""

    x: Singles
    y: Singles
    v: Singles
    w: Singles


def treatment_as_columns(rows: ScaledData, schema: Schema) -> ScaledData:
    """The rows with a treatment of three or more levels as (n, K) indicators; other rows as they are."""
    return rows if schema.treatment.width == 1 else rows._replace(x=schema.treatment.columns(rows.x))


@dataclass(frozen=True, eq=False)
class Scaler:
    """The fitted maps of the four roles."""

    outcome: Affine
    treatment: Affine
    covariates: Affine
    instruments: Affine

    def transform(self, data: IVData) -> ScaledData:
        """Scale all four roles; data without instruments give a w of width zero."""
        return ScaledData(
            x=self.treatment.transform(data.treatment),
            y=self.outcome.transform(data.outcome),
            v=self.covariates.transform(data.covariates),
            w=self.instruments.transform(data.instruments),
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
        y, x = schema.outcome, schema.treatment
        scaled = [block.scaled for block in schema.blocks for _ in range(block.width)]
        return Scaler(
            outcome=_fit(self.outcome, data.outcome[:, None], [y.name], [not y.discrete]),
            treatment=_fit(self.treatment, data.treatment[:, None], [x.name], [not x.discrete]),
            covariates=_fit(self.covariates, data.covariates, schema.flat_names, scaled),
            instruments=_fit(self.instruments, data.instruments, schema.instruments, [True] * len(schema.instruments)),
        )


UNSCALED = RoleScaling(Identity(), Identity(), Identity(), Identity())
"""Every role in its own units."""


def _fit(rule: Rule, values: Array, names: Sequence[str], scaled: Sequence[bool]) -> Affine:
    """The rule's map of the columns that are scaled, and the identity of the others."""
    fitted = rule.fit(values)
    affine = Affine(np.where(scaled, fitted.shift, 0.0), np.where(scaled, fitted.scale, 1.0))
    if not isinstance(rule, Standardise):
        return affine
    # A varying column in very small units is not scaled up by the rule, and training would not see it.
    unscaled = np.array(scaled, dtype=bool) & (affine.scale == 1.0) & (values.min(axis=0) < values.max(axis=0))
    lost = [i for i in np.flatnonzero(unscaled).tolist() if np.std(values[:, i], dtype=np.float64) < rule.min_std]
    if lost:
        warn_user(
            f"{listed(repr(names[i]) for i in lost)}: the standard deviation is below {rule.min_std:g}, so the column "
            "is centred but not scaled and will hardly count. Use smaller units, so that its numbers are larger."
        )
    return affine
