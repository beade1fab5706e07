r"""What is left of an effect if the instruments also affect the outcome directly: plausibly exogenous instruments.

If $y - w^\top\gamma$ is what the treatment explains, every $\gamma$ gives its own estimate. The union of their
intervals, over all $\gamma$ considered possible, covers the effect at least as often as each of them. If $\gamma$ is
taken for normal instead, it adds to the variance of the estimate: the local-to-zero interval, which is shorter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtri

from bgmiv.arrays import Floats
from bgmiv.data.files import Tabular
from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Query, Rows
from bgmiv.diagnostics.checks import changes_of
from bgmiv.diagnostics.explanations import html_table, preparation_text
from bgmiv.distributions import student_quantile
from bgmiv.effects import average, contrast
from bgmiv.errors import ConfigError, DataError, printable
from bgmiv.fitted import FittedMethod
from bgmiv.intervals import check_level, interval_of
from bgmiv.linear_iv import LinearIV
from bgmiv.numerals import percent

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LinearEffect", "Sensitivity", "sensitivity"]


_MAX_FREE = 12
_TITLE = "Sensitivity to direct effects of the instruments"
_REFERENCE = "Conley, Hansen and Rossi (2012), Plausibly exogenous, Review of Economics and Statistics 94, 260-272"


@dataclass(frozen=True)
class Sensitivity(Tabular):
    """The linear effect under direct effects of the instruments.

    Args:
        instruments: their names.
        gamma: for each instrument the lowest and the highest direct effect allowed, in units of the outcome per unit of
            the instrument.
        lower, upper: ends of the union of intervals for the linear effect of one unit of treatment.
        local_lower, local_upper: ends of the local-to-zero interval, with direct effects that are normal and lie within
            those bounds with a probability of 95%.
        estimate: the linear effect without direct effects.
        breakdown: the smallest direct effect, in units of the outcome per standard deviation of the instruments, at
            which the union of intervals contains zero; 0 if it does without any.
        fit_breakdown: the same for the average effect of the fitted method; None without one.
        level: of the intervals.
        outcome_std: standard deviation of the outcome.
        prepared, labels: what was done to the columns of the regressions (see `DesignMatrix`).

    Example:
        >>> from bgmiv import TSLS
        >>> w, u, e = np.random.default_rng(0).normal(size=(3, 500))
        >>> model = TSLS().fit(2 * (w + u) - u + e, w + u, instruments=w)
        >>> found = model.sensitivity(0.5)  # the instrument may add -0.5 to 0.5 units of the outcome
        >>> bool(found.lower < found.local_lower < found.estimate < found.local_upper < found.upper)
        True
    """

    instruments: tuple[str, ...]
    gamma: tuple[tuple[float, float], ...]
    lower: float
    upper: float
    local_lower: float
    local_upper: float
    estimate: float
    breakdown: float
    fit_breakdown: float | None
    level: float
    outcome_std: float
    prepared: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def reading(self) -> str:
        """What it means for the analysis."""
        linear = "With the direct effects allowed, the data are compatible with no effect of the treatment."
        if not self.lower <= 0.0 <= self.upper:
            side = "positive" if self.lower > 0 else "negative"
            linear = f"The linear effect stays {side} under all the direct effects allowed."
        reach = "Its interval contains zero even without a direct effect."
        if self.breakdown > 0.0:
            reach = (
                f"A direct effect of {self.breakdown:.3g} units of the outcome "
                f"({self.breakdown / self.outcome_std:.2g} of its standard deviations) per standard deviation of the "
                "instruments would make the linear effect compatible with zero."
            )
        fit = ""
        if self.fit_breakdown == 0.0:
            fit = " The interval of the fitted method's average effect contains zero without a direct effect."
        elif self.fit_breakdown is not None:
            fit = f" For the average effect of the fitted method it takes about {self.fit_breakdown:.3g}."
        ask = "Ask how the instruments could affect the outcome directly, and whether by that much."
        return f"{linear} {reach}{fit} {ask} {preparation_text(self.prepared, self.labels)}".strip()

    def to_frame(self) -> pd.DataFrame:
        """One row: the direct effects allowed, estimate, ends of the union, and breakdown values."""
        import pandas as pd

        row: dict[str, float] = {}
        for name, (low, high) in zip(self.instruments, self.gamma, strict=True):
            row |= {f"{name} (min)": low, f"{name} (max)": high}
        names = ("estimate", "lower", "upper", "breakdown", "local_lower", "local_upper", "fit_breakdown")
        row |= {name: getattr(self, name) for name in names}
        return pd.DataFrame([row], index=["linear effect"], dtype=float)

    def _lines(self) -> list[tuple[str, str]]:
        pairs = zip(self.instruments, self.gamma, strict=True)
        fit = "none" if self.fit_breakdown is None else f"{self.fit_breakdown:.4g}"
        return [
            ("direct effects allowed", ", ".join(f"{name} [{low:.4g}, {high:.4g}]" for name, (low, high) in pairs)),
            ("linear effect without any", f"{self.estimate:.4g}"),
            (f"union of {percent(self.level)} intervals", f"[{self.lower:.4g}, {self.upper:.4g}]"),
            ("the same if they are normal", f"[{self.local_lower:.4g}, {self.local_upper:.4g}] (local to zero)"),
            ("breakdown, linear effect", f"{self.breakdown:.4g} per standard deviation of the instruments"),
            ("breakdown, fitted method", fit),
        ]

    def __str__(self) -> str:
        """The union of intervals, the breakdown values, and the reading."""
        lines = [f"  {name:28}{value}" for name, value in self._lines()]
        return printable("\n".join([_TITLE, *lines, "", fill(self.reading, 100), fill(f"({_REFERENCE})", 100)]))

    def _repr_html_(self) -> str:
        return html_table(_TITLE, self.reading, self._lines())


def sensitivity(
    data: IVData, gamma: Any, *, level: float = 0.95, fitted: FittedMethod | None = None, rows: Rows | None = None
) -> Sensitivity:
    r"""The union of confidence intervals over direct effects $\gamma$ of the instruments.

    The estimate is linear in $\gamma$ and the standard error is a norm of a linear function of it, so the upper end of
    the interval is convex and the lower end concave. Over a box both are extreme at its corners: the union is exact.

    For methods other than linear 2SLS, `fit_breakdown` shifts the average effect as a direct effect shifts 2SLS; a
    method without intervals borrows the width of 2SLS's. With more than 12 instruments the breakdown is found along
    the two corners that shift the estimate most.

    Args:
        data: the rows.
        gamma: the direct effects allowed, in units of the outcome per unit of the instrument: g for [-g, g] for every
            instrument; or for each instrument such a number or a pair (low, high), in a list or by name (0 for those
            not named). For a single instrument a pair is enough.
        level: of the intervals.
        fitted, rows: the fitted method, if there is one, and the covariates it is averaged over.

    Raises:
        ConfigError: gamma or level is not valid.
        DataError: there is no single linear effect, or too many instruments may have direct effects.
    """
    check_level(level)
    if not data.schema.has_one_effect:
        raise DataError(
            "sensitivity needs a single linear effect, and a treatment or an outcome with three or more levels has "
            "none. Compare two levels at a time."
        )
    bounds = _bounds(gamma, data.schema.instruments)
    linear = LinearIV.of(data)
    design = linear.design
    if not design.names:
        raise DataError("the covariates determine the instruments, so there is no effect. Pass fewer covariates.")
    effect = LinearEffect(linear, level)
    chosen = tuple(bounds[name] for name in design.names)
    box = np.asarray(chosen)
    lower, upper = effect.union(box)
    local_lower, local_upper = effect.local(box)
    fit_breakdown = None
    if fitted is not None and rows is not None:
        change = changes_of(data)[0]
        known = bool(fitted.interval_kind)
        query = Query(np.array([[change.t0], [change.t1]]), rows)
        own = interval_of(contrast(average(fitted, query, intervals=known).estimate), level)
        half = (own.upper - own.lower) / 2.0 if known else change.size * effect.half
        fit_breakdown = effect.shifted(float(own.estimate), float(half), change.size)
    return Sensitivity(
        instruments=design.names,
        gamma=chosen,
        lower=lower,
        upper=upper,
        local_lower=local_lower,
        local_upper=local_upper,
        estimate=effect.estimate,
        breakdown=effect.breakdown(),
        fit_breakdown=fit_breakdown,
        level=float(level),
        outcome_std=design.outcome_scale,
        prepared=design.prepared,
        labels=design.labels,
    )


class LinearEffect:
    """The linear effect and its interval as a function of the direct effects, in units of the data.

    Args:
        linear: the model.
        level: of the interval.
        chosen: positions of the instruments that may have direct effects; all by default.

    Attributes:
        scales: standard deviations of these instruments.
        slopes: the linear effect without direct effects, and how it changes with each.
        covariance: of these.
        dof: degrees of freedom of the covariance.
    """

    def __init__(self, linear: LinearIV, level: float, chosen: Sequence[int] | None = None) -> None:
        """Fit the outcome and the instruments."""
        design = linear.design
        some = list(range(len(design.names)) if chosen is None else chosen)
        targets = np.column_stack([design.outcomes[:, 0], design.instruments[:, some]]).T
        fits = [linear.fit(target) for target in targets]
        covariance = np.diag([fit.covariance[-1, -1] for fit in fits])
        # Covariances of the targets' slopes, by polarisation.
        for i, j in combinations(range(len(targets)), 2):
            both = linear.fit(targets[i] + targets[j]).covariance[-1, -1]
            covariance[i, j] = covariance[j, i] = (both - covariance[i, i] - covariance[j, j]) / 2.0
        self.scales = design.instrument_scale[some]
        # A direct effect is subtracted from the outcome.
        units = design.unit * np.concatenate([[1.0], -self.scales / design.outcome_scale])
        self.slopes = units * [fit.coefficients[-1] for fit in fits]
        self.covariance = covariance * np.outer(units, units)
        self.dof = fits[0].dof
        self.quantile = float(student_quantile(0.5 + level / 2.0, self.dof))
        self.estimate = float(self.slopes[0])
        self.half = self.quantile * float(np.sqrt(self.covariance[0, 0]))

    def union(self, bounds: Floats) -> tuple[float, float]:
        """The lowest and the highest end of the intervals over a box of direct effects `(q, 2)`."""
        free = int(np.sum(bounds[:, 0] < bounds[:, 1]))
        if free > _MAX_FREE:
            raise DataError(
                f"gamma allows direct effects of {free} instruments; at most {_MAX_FREE} are possible. Set the others "
                "to (0, 0)."
            )
        weights = np.array([(1.0, *corner) for corner in product(*map(np.unique, bounds))])
        centres = weights @ self.slopes
        variances = np.einsum("ij,jk,ik->i", weights, self.covariance, weights)
        halves = self.quantile * np.sqrt(np.maximum(variances, 0.0))
        return float(np.min(centres - halves)), float(np.max(centres + halves))

    def local(self, bounds: Floats) -> tuple[float, float]:
        """The interval with normal direct effects, 95% of which lie within bounds `(q, 2)`."""
        mean, spread = bounds.mean(axis=1), np.diff(bounds, axis=1)[:, 0] / (2.0 * ndtri(0.975))
        centre = self.estimate + float(self.slopes[1:] @ mean)
        half = self.quantile * float(np.sqrt(self.covariance[0, 0] + np.sum((self.slopes[1:] * spread) ** 2)))
        return centre - half, centre + half

    def breakdown(self) -> float:
        r"""The smallest direct effect per standard deviation at which the union of intervals contains zero.

        At a corner s c of the box the interval ends at zero where $(b + s\, c^\top d)^2$ is the squared quantile times
        the variance there, which is quadratic in s too.
        """
        if abs(self.estimate) <= self.half:
            return 0.0
        unit = 1.0 / self.scales
        corners = np.sign(self.slopes[1:]) * np.stack([-unit, unit])
        if len(unit) <= _MAX_FREE:
            corners = np.asarray(list(product(*np.stack([-unit, unit], axis=1))))
        products = np.outer(self.slopes, self.slopes) - self.quantile**2 * self.covariance
        square = np.einsum("ij,jk,ik->i", corners, products[1:, 1:], corners)
        half = corners @ products[1:, 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            root = np.sqrt(half**2 - square * products[0, 0])
            sizes = products[0, 0] / np.concatenate([root - half, -root - half])
        return float(np.min(sizes[sizes > 0.0], initial=np.inf))

    def shifted(self, estimate: float, half: float, change: float) -> float:
        """The same for the effect of a change of the treatment, whose interval shifts and keeps its width."""
        if abs(estimate) <= half:
            return 0.0
        reach = float(np.sum(np.abs(self.slopes[1:]) / self.scales)) * change
        return (abs(estimate) - half) / reach if reach > 0 else float("inf")


def _bounds(gamma: Any, names: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """The lowest and the highest direct effect of each instrument."""
    if isinstance(gamma, Mapping):
        unknown = [name for name in gamma if name not in names]
        if unknown:
            raise ConfigError(f"gamma names {unknown[0]!r}, which is not an instrument; use one of {', '.join(names)}.")
        entries = [gamma.get(name, 0.0) for name in names]
    elif not isinstance(gamma, list | tuple | np.ndarray):
        entries = [gamma] * len(names)
    else:
        entries = [gamma] if len(names) == 1 and len(gamma) == 2 else list(gamma)
    if len(entries) != len(names):
        raise ConfigError(
            f"gamma has {len(entries)} entries for {len(names)} instruments. Pass a number for all, or a number or a "
            "pair (low, high) for each."
        )
    return dict(zip(names, map(_pair, entries), strict=True))


def _pair(entry: Any) -> tuple[float, float]:
    try:
        values = [float(value) for value in np.ravel(entry)]
    except (TypeError, ValueError):
        values = []
    if len(values) == 1 and values[0] >= 0:
        values = [-values[0], values[0]]
    if len(values) != 2 or not np.isfinite(values).all() or values[0] > values[1]:
        raise ConfigError(f"gamma must be a number of at least 0 or a pair (low, high) per instrument, got {entry!r}.")
    return values[0], values[1]
