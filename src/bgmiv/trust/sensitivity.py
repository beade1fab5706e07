r"""What is left of an effect if the instruments also act on the outcome directly: plausibly exogenous instruments.

Exclusion says that the instruments touch the outcome only through the treatment. If instead $y - w^\top\gamma$ is what
the treatment explains, every $\gamma$ gives its own estimate; the union of the intervals over all $\gamma$ that an
analyst finds possible holds the effect at least as often as each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from bgmiv.data.ivdata import IVData
from bgmiv.errors import ConfigError, DataError
from bgmiv.trust.linear import check_level, two_stage
from bgmiv.trust.linear_columns import LinearColumns, linear_columns

__all__ = ["AverageEffect", "Sensitivity", "sensitivity"]

Floats = NDArray[np.float64]

_MOST_CORNERS = 12
_MANY = 1e12


class AverageEffect(NamedTuple):
    """A method's average effect of some change of the treatment.

    Attributes:
        change: of the treatment, in its units.
        estimate: of the effect.
        lower, upper: its interval; None for a method without intervals.
    """

    change: float
    estimate: float
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True)
class Sensitivity:
    """The linear effect under direct effects of the instruments.

    Args:
        gamma: for each instrument the lowest and the highest direct effect allowed, in units of the outcome for one
            unit of the instrument.
        lower, upper: ends of the union of intervals for the linear effect of one unit of treatment.
        estimate: the linear effect without direct effects.
        breakdown: the smallest direct effect, in units of the outcome for one deviation of the instruments, with which
            the union of intervals holds zero; 0 if it does without any.
        fit_breakdown: the same for the average effect of the fitted method; None if it was not asked for.
        level: of the intervals.
        reading: what it means.
        reference: where it comes from.
    """

    gamma: tuple[tuple[float, float], ...]
    lower: float
    upper: float
    estimate: float
    breakdown: float
    fit_breakdown: float | None
    level: float
    reading: str
    reference: str = "Conley, Hansen and Rossi (2012), Plausibly exogenous, Review of Economics and Statistics 94"

    def __str__(self) -> str:
        """The union of intervals, the breakdown values, and the reading."""
        bounds = ", ".join(f"[{low:.4g}, {high:.4g}]" for low, high in self.gamma)
        lines = [
            "Sensitivity to direct effects of the instruments",
            f"  direct effects allowed      {bounds}",
            f"  linear effect without any   {self.estimate:.4g}",
            f"  {f'union of {self.level:.0%} intervals':28}[{self.lower:.4g}, {self.upper:.4g}]",
            f"  breakdown, linear effect    {self.breakdown:.4g} for one deviation of the instruments",
        ]
        if self.fit_breakdown is not None:
            lines.append(f"  breakdown, fitted method    {self.fit_breakdown:.4g} for one deviation of the instruments")
        return "\n".join([*lines, "", fill(self.reading, 100), fill(f"({self.reference})", 100)])


def sensitivity(data: IVData, gamma: Any, *, level: float = 0.95, effect: AverageEffect | None = None) -> Sensitivity:
    r"""The union of confidence intervals over direct effects $\gamma$ of the instruments.

    For a given $\gamma$ the estimate is linear in it and the standard error a norm of something linear, so that the
    upper end of the interval is convex and the lower end concave: over a box both are extreme at its corners, which
    makes the union exact.

    For another method than linear 2SLS the breakdown is that of its average effect, moved as a direct effect moves
    2SLS; without an interval of its own it borrows the width of 2SLS's. With more than 12 instruments the breakdown is
    found along the two corners that move the estimate most.

    Args:
        data: the rows.
        gamma: g for [-g, g], whatever the instrument; or for each instrument such a number or a pair (low, high), in a
            list or by name, those not named having none. For a single instrument the pair alone will do. In units of
            the outcome for one unit of the instrument.
        level: of the intervals.
        effect: of the fitted method, if there is one.

    Raises:
        ConfigError: gamma or level cannot be read.
        DataError: there is no single linear effect, or too many instruments may have direct effects.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> w, u = rng.normal(size=(2, 1000))
        >>> data = IVData.from_arrays(3.0 * (w + u) - u, w + u, instruments=w)
        >>> found = sensitivity(data, 0.5)
        >>> round(found.lower, 1), round(found.upper, 1), round(found.breakdown, 1)
        (2.4, 3.5, 2.9)
    """
    check_level(level)
    if data.schema.treatment.width > 1 or data.schema.outcome.width > 1:
        raise DataError("a treatment or an outcome of three or more levels has no single linear effect to be changed.")
    bounds = _bounds(gamma, data.schema.instruments)
    columns = linear_columns(data)
    if not columns.names:
        raise DataError(
            "the covariates determine the instruments: there is no effect whose sensitivity could be asked."
        )
    of = _Line(columns, level)
    chosen = [bounds[name] for name in columns.names]
    lower, upper = of.union(np.asarray(chosen))
    per_deviation = of.breakdown()
    fit = None
    if effect is not None:
        width = abs(effect.change) * of.half()
        if effect.lower is not None and effect.upper is not None:
            width = (effect.upper - effect.lower) / 2.0
        fit = of.moved(effect.estimate, width, abs(effect.change))
    reading = _reading(lower, upper, per_deviation, fit, columns.outcome_scale, columns.note)
    return Sensitivity(tuple(chosen), lower, upper, of.estimate, per_deviation, fit, float(level), reading)


class _Line:
    """The interval of the linear effect as a function of the direct effects."""

    def __init__(self, columns: LinearColumns, level: float) -> None:
        self.unit = columns.outcome_scale / float(columns.treatment_scale[0])
        self.deviations, self.outcome_scale = columns.instrument_scale, columns.outcome_scale
        # Direct effects of standardised instruments on the standardised outcome.
        self.inner = columns.instrument_scale / columns.outcome_scale
        targets = [columns.outcome, *columns.instruments.T]
        self.slopes, self.covariance = _joint(columns, targets)
        self.quantile = float(norm.ppf(0.5 + level / 2.0))
        self.estimate = float(self.slopes[0]) * self.unit

    def half(self) -> float:
        """Half the width of the interval without direct effects."""
        return self.quantile * float(np.sqrt(self.covariance[0, 0])) * self.unit

    def ends(self, corners: Floats) -> tuple[float, float]:
        """The lowest and the highest end of the intervals at direct effects `(c, q)`."""
        weights = np.hstack([np.ones((len(corners), 1)), -corners * self.inner])
        centres = weights @ self.slopes
        variances = np.einsum("ij,jk,ik->i", weights, self.covariance, weights)
        halves = self.quantile * np.sqrt(np.maximum(variances, 0.0))
        return float(np.min(centres - halves)) * self.unit, float(np.max(centres + halves)) * self.unit

    def union(self, bounds: Floats) -> tuple[float, float]:
        free = int(np.sum(bounds[:, 0] < bounds[:, 1]))
        if free > _MOST_CORNERS:
            raise DataError(
                f"{free} instruments may have direct effects, and {_MOST_CORNERS} are the most that can be looked at. "
                "Allow fewer: give the others (0, 0)."
            )
        return self.ends(np.asarray(list(product(*(sorted({low, high}) for low, high in bounds.tolist())))))

    def breakdown(self) -> float:
        """The smallest direct effect for one deviation at which the union of intervals holds zero."""
        if abs(self.estimate) <= self.half():
            return 0.0

        def holds_zero(size: float) -> bool:
            reach = size / self.deviations
            if len(reach) > _MOST_CORNERS:
                lower, upper = self.ends(np.sign(self.slopes[1:]) * np.stack([-reach, reach]))
            else:
                lower, upper = self.union(np.stack([-reach, reach], axis=1))
            return lower <= 0.0 <= upper

        low, high = 0.0, 1e-3 * self.outcome_scale
        while not holds_zero(high):
            high *= 2.0
            if high > _MANY * self.outcome_scale:
                return float("inf")
        for _ in range(50):
            middle = (low + high) / 2.0
            low, high = (low, middle) if holds_zero(middle) else (middle, high)
        return high

    def moved(self, estimate: float, half: float, change: float) -> float:
        """The same for an effect of a change of the treatment, whose interval moves and keeps its width."""
        if abs(estimate) <= half:
            return 0.0
        reach = float(np.sum(np.abs(self.slopes[1:]) * self.inner / self.deviations)) * self.unit * change
        return (abs(estimate) - half) / reach if reach > 0 else float("inf")


def _joint(columns: LinearColumns, targets: list[Floats]) -> tuple[Floats, Floats]:
    """2SLS slopes of several outcomes and their joint covariance, by polarisation of single ones."""
    slopes, size = [], len(targets)
    covariance = np.zeros((size, size))
    for i, target in enumerate(targets):
        found = two_stage(columns, target)
        slopes.append(float(found.params.iloc[-1]))
        covariance[i, i] = float(found.cov.iloc[-1, -1])
    for i in range(size):
        for j in range(i):
            both = float(two_stage(columns, targets[i] + targets[j]).cov.iloc[-1, -1])
            covariance[i, j] = covariance[j, i] = (both - covariance[i, i] - covariance[j, j]) / 2.0
    return np.asarray(slopes), covariance


def _bounds(gamma: Any, names: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    if isinstance(gamma, Mapping):
        unknown = [name for name in gamma if name not in names]
        if unknown:
            raise ConfigError(f"gamma names {unknown[0]!r}, which is no instrument; there are {', '.join(names)}.")
        return {name: _pair(gamma.get(name, 0.0)) for name in names}
    entries = list(gamma) if isinstance(gamma, list | tuple | np.ndarray) else None
    if entries is None:
        return dict.fromkeys(names, _pair(gamma))
    if len(names) == 1 and len(entries) == 2:
        return {names[0]: _pair(entries)}
    if len(entries) != len(names):
        raise ConfigError(
            f"gamma has {len(entries)} entries for {len(names)} instruments. Pass a number for all, or a number or a "
            "pair (low, high) for each."
        )
    return {name: _pair(entry) for name, entry in zip(names, entries, strict=True)}


def _pair(entry: Any) -> tuple[float, float]:
    try:
        values = [float(value) for value in np.ravel(entry)]
    except (TypeError, ValueError):
        values = []
    if len(values) == 1 and values[0] >= 0:
        values = [-values[0], values[0]]
    if len(values) != 2 or not np.isfinite(values).all() or values[0] > values[1]:
        raise ConfigError(f"gamma must be a number of at least 0 or a pair (low, high), got {entry!r}.")
    return values[0], values[1]


def _reading(lower: float, upper: float, breakdown: float, fit: float | None, spread: float, note: str) -> str:
    if lower <= 0.0 <= upper:
        text = "With the direct effects allowed, the data are compatible with no effect of the treatment."
    else:
        side = "positive" if lower > 0 else "negative"
        text = f"The linear effect stays {side} under all the direct effects allowed."
    if breakdown == 0.0:
        text += " Its interval holds zero even without a direct effect."
    else:
        text += (
            f" It takes a direct effect of {breakdown:.3g} units of the outcome ({breakdown / spread:.2g} of its "
            "deviations) for one deviation of the instruments to make the linear effect compatible with zero."
        )
    if fit is not None and fit > 0.0:
        text += f" For the average effect of the fitted method it takes about {fit:.3g}."
    if fit == 0.0:
        text += " The interval of the fitted method's average effect holds zero without a direct effect."
    text += " Ask what else the instruments could do to the outcome, and whether it could be that much."
    return f"{text} {note}".strip()
