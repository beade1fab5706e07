"""What the data show of the instruments: how treatment and outcome move along them, their balance, direct effects."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgmiv.covariance import LinearFit, fit_linear
from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Rows
from bgmiv.data.schema import BlockKind
from bgmiv.design_matrix import DesignMatrix
from bgmiv.diagnostics.sensitivity import LinearEffect
from bgmiv.distributions import f_tail, student_quantile
from bgmiv.linear_iv import LinearIV

__all__ = [
    "Balance", "BinnedMeans", "DirectEffect", "InstrumentViews", "Numbers", "Records", "instrument_views",
]  # fmt: skip

Floats = NDArray[np.float64]
Numbers = tuple[float, ...]
Records = list[dict[str, Any]]

_MAX_BINS, _BIN_ROWS = 20, 25
_MAX_VALUES = 12
_MAX_DRAWN = 100_000
_MAX_INSTRUMENTS = 5
_MAX_BALANCE = 12
_PLAIN = (BlockKind.continuous, BlockKind.binary, BlockKind.categorical)


@dataclass(frozen=True)
class BinnedMeans:
    """Means of a column in bins along the instruments, at average covariates, and the line of a linear regression.

    Args:
        name, along: what is averaged, and along what: an instrument, or empty for what several together predict of the
            treatment.
        place: the mean along the axis in each bin, rising.
        mean, lower, upper: the mean in each bin given the covariates, and the ends of its interval.
        fitted: the linear regression on the instruments and covariates there.
        n_rows: rows in each bin.
    """

    name: str
    along: str
    place: Numbers
    mean: Numbers
    lower: Numbers
    upper: Numbers
    fitted: Numbers
    n_rows: tuple[int, ...]


@dataclass(frozen=True)
class Balance:
    """Whether an instrument goes with covariates.

    Args:
        instrument: its name.
        binary: whether it has two values. Differences are then between the covariates' means at the two, in standard
            deviations; else they are correlations.
        covariates, differences: those that differ most, first.
        n_covariates: how many were compared.
        f, p: the test that all covariates together do not predict the instrument, robust or clustered.
    """

    instrument: str
    binary: bool
    covariates: tuple[str, ...]
    differences: Numbers
    n_covariates: int
    f: float
    p: float


@dataclass(frozen=True)
class DirectEffect:
    """The linear effect of one unit of treatment as a function of a direct effect of an instrument on the outcome.

    With a direct effect of g units of the outcome for one unit of the instrument it is `estimate + g * slope`, and its
    variance `variance + 2 g * covariance + g² * slope_variance`.

    Args:
        instrument: its name.
        scale: its standard deviation.
        estimate, slope, variance, covariance, slope_variance: as above.
        dof: degrees of freedom of the variances.
    """

    instrument: str
    scale: float
    estimate: float
    slope: float
    variance: float
    covariance: float
    slope_variance: float
    dof: float = math.inf

    def interval(self, gamma: Any, level: float) -> tuple[Any, Any, Any]:
        """The linear effect at a direct effect or at several, and the ends of its interval."""
        centre = self.estimate + gamma * self.slope
        variance = self.variance + 2.0 * gamma * self.covariance + gamma**2 * self.slope_variance
        half = self._quantile(level) * np.sqrt(np.maximum(variance, 0.0))
        return centre, centre - half, centre + half

    def _quantile(self, level: float) -> float:
        return float(student_quantile(0.5 + level / 2.0, self.dof))

    def breakdown(self, level: float) -> float:
        """The smallest direct effect, by size, at which the interval holds zero; infinite if none does.

        Example:
            >>> DirectEffect("w", 1.0, 2.0, -1.0, 0.25, 0.0, 0.0).breakdown(0.95)
            1.02...
        """
        square = self._quantile(level) ** 2
        coefficients = (
            self.slope**2 - square * self.slope_variance,
            2.0 * (self.estimate * self.slope - square * self.covariance),
            self.estimate**2 - square * self.variance,
        )
        if coefficients[2] <= 0.0:
            return 0.0
        roots = np.roots(coefficients)
        return float(min(roots[np.isreal(roots)].real, key=abs, default=math.inf))


@dataclass(frozen=True)
class InstrumentViews:
    """Means along the instruments of the treatment and of the outcome, balance, and direct effects; each may be empty.

    Args:
        means: the treatment (the first stage), then the outcome (the reduced form).
        balance: of the first instruments.
        direct: of the first instruments.
    """

    means: tuple[BinnedMeans, ...] = ()
    balance: tuple[Balance, ...] = ()
    direct: tuple[DirectEffect, ...] = ()


def instrument_views(data: IVData, level: float, *, linear: bool) -> InstrumentViews:
    """What is drawn of the instruments of a data set; `linear` is whether there is a single linear effect.

    Pictures and balance are those of at most 100,000 evenly spread rows.
    """
    model = LinearIV.of(data)
    columns = model.design
    if not columns.names:
        return InstrumentViews()
    few = range(min(len(columns.names), _MAX_INSTRUMENTS))
    direct = tuple(_direct_effect(model, level, j) for j in few) if linear else ()
    used = data if data.weights is None else data.take(data.weights > 0)
    if used.n_rows > _MAX_DRAWN:
        used = used.take(np.linspace(0, used.n_rows - 1, _MAX_DRAWN).astype(np.int64))
        model = LinearIV.of(used)
        columns = model.design
    raw = [data.schema.instruments.index(name) for name in columns.names]
    w = np.asarray(used.instruments, np.float64)[:, raw]
    treatment = used.schema.treatment
    x = np.asarray(treatment.columns(used.treatment)[:, min(treatment.width - 1, 1)], np.float64)
    y = np.asarray(used.outcome_parts()[0].outcome, np.float64)
    along, place = columns.names[0], w[:, 0]
    if len(columns.names) > 1:
        along, place = "", float(np.average(x, weights=columns.weights)) + model.predicted(x)
    names = [variable.name for variable in (treatment, used.schema.outcome)]
    if treatment.levels:
        names[0] = f"share with {treatment.name} = {treatment.levels[1]}"
    if used.schema.outcome.width > 1 and used.schema.outcome.levels:
        names[1] = f"share with {names[1]} = {used.schema.outcome.levels[0]}"
    means = (_binned(names[0], along, x, place, columns, level), _binned(names[1], along, y, place, columns, level))
    # Covariates that have a meaning by themselves.
    blocks = [block for block in used.schema.blocks if block.kind in _PLAIN]
    plain = [j for block in blocks for j in range(block.start, block.stop)]
    if not plain or columns.exogenous.shape[1] < 2:
        return InstrumentViews(means, (), direct)
    return InstrumentViews(means, tuple(_balance(used, plain, j, w[:, j], columns) for j in few), direct)


def _direct_effect(model: LinearIV, level: float, j: int) -> DirectEffect:
    effect = LinearEffect(model, level, [j])
    (variance, covariance), (_, slope_variance) = effect.covariance.tolist()
    name, scale = model.design.names[j], float(effect.scales[0])
    slope = float(effect.slopes[1])
    return DirectEffect(name, scale, effect.estimate, slope, variance, covariance, slope_variance, effect.dof)


def _least_squares(target: Floats, right: Floats, columns: DesignMatrix) -> LinearFit:
    """By CR1 where rows are clustered: pictures do not need the jackknife."""
    errors = columns.errors.without_jackknife()
    return fit_linear(target, right[:, :1], right[:, 1:], weights=columns.weights, errors=errors)


def _binned(name: str, along: str, values: Floats, place: Floats, columns: DesignMatrix, level: float) -> BinnedMeans:
    """By a regression on indicators of the bins and the covariates, whose mean is zero: not on residuals of either."""
    edges = np.unique(place)
    if len(edges) > _MAX_VALUES:
        n_bins = int(np.clip(len(values) // _BIN_ROWS, 2, _MAX_BINS))
        edges = np.quantile(place, np.linspace(0.0, 1.0, n_bins + 1)[1:-1])
    _, codes = np.unique(np.searchsorted(edges, place), return_inverse=True)
    bins, weights = np.eye(int(codes.max()) + 1)[codes], columns.weights
    places = (weights * place) @ bins / (weights @ bins)

    def regression(on: Floats) -> LinearFit:
        """On some columns and the covariates; net of what was partialled out of these, at its mean."""
        left, right = values, on
        if columns.absorbed:
            left, right = (columns.net(part) + np.average(part, axis=0, weights=weights) for part in (left, right))
        right = np.column_stack([np.ones(len(values)), right, columns.exogenous[:, 1:]])
        return _least_squares(left, right, columns)

    # The first bin is the constant, and the others are differences from it.
    fit, line, k = regression(bins[:, 1:]), regression(place), bins.shape[1]
    levels = np.eye(k)
    levels[:, 0] = 1.0
    mean, variances = levels @ fit.coefficients[:k], levels @ fit.covariance[:k, :k] @ levels.T
    constant, slope = line.coefficients[:2].tolist()
    # Where a bin's mean is exact, rounding may leave less than nothing.
    errors = np.sqrt(np.maximum(np.diag(variances), 0.0))
    half = float(student_quantile(0.5 + level / 2.0, fit.dof)) * errors
    numbers = (places, mean, mean - half, mean + half, constant + slope * places, np.bincount(codes))
    return BinnedMeans(name, along, *(tuple(part.tolist()) for part in numbers))


def _balance(data: IVData, plain: list[int], j: int, raw: Floats, columns: DesignMatrix) -> Balance:
    """Of the instrument of this number, over some of the covariates' columns."""
    v, share = np.asarray(data.covariates[:, plain], np.float64), Rows(data.covariates, data.weights).shares
    standard = columns.instruments[:, j]
    values = np.unique(raw)
    binary = len(values) == 2
    if binary:
        low, high = (_moments(v, share * (raw == value)) for value in values)
        scale = np.sqrt((low[1] + high[1]) / 2.0)
        gap = high[0] - low[0]
    else:
        mean, variance = _moments(v, share)
        scale, gap = np.sqrt(variance), (share * standard) @ (v - mean)
    differences = np.divide(gap, scale, out=np.zeros_like(gap), where=scale > 0)
    fit = _least_squares(standard, columns.exogenous, columns)
    b, cov = fit.coefficients[1:], fit.covariance[1:, 1:]
    f = float(b @ np.linalg.lstsq(cov, b, rcond=1e-12)[0]) / len(b)
    order = np.argsort(-np.abs(differences))[:_MAX_BALANCE]
    flat = data.schema.flat_names
    return Balance(
        instrument=columns.names[j],
        binary=binary,
        covariates=tuple(flat[plain[i]] for i in order),
        differences=tuple(differences[order].tolist()),
        n_covariates=len(plain),
        f=f,
        p=f_tail(f, len(b), max(columns.dof, 1)),
    )


def _moments(values: Floats, share: Floats) -> tuple[Floats, Floats]:
    share = share / share.sum()
    mean = share @ values
    return mean, share @ (values - mean) ** 2
