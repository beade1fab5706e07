r"""How often the intervals of a fit hold, on data drawn from the fit itself.

The fitted g stands for the truth, and rows keep their instruments, covariates, weights and groups. With $\hat m(w, v)$
a penalised sieve regression of the treatment, $\hat u = x - \hat m$ and $\hat e = y - \hat g(x, v)$, a new data set is

$$x^* = \hat m(w, v) + \eta \hat u, \qquad y^* = \hat g(x^*, v) + \eta \hat e,$$

with one random sign η a row, or a group, for both errors: they stay as dependent on one another, as unequal and as
clustered as they are (the wild bootstrap of Davidson and MacKinnon 2010). For a treatment or an outcome with levels the
error is a rank U, uniform between the cumulative probabilities that enclose the observed level; a sign of -1 makes it
1 - U. A fitted probability below 0 or above 1 counts as that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bgmiv.analysis.analysis import AnalysisRequest
from bgmiv.analysis.build import FitOnRows, grid_of
from bgmiv.arrays import TINY, Floats, Integers
from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Query, Rows
from bgmiv.data.schema import BlockKind
from bgmiv.diagnostics.checks import changes_of
from bgmiv.effects import Average, FitRows, average, effect_of, estimate_at, require_intervals
from bgmiv.errors import BGMIVError, ConfigError, DataError
from bgmiv.executors import Executor
from bgmiv.fitted import FittedMethod, MethodConfig
from bgmiv.intervals import ANDERSON_RUBIN, Estimate, Interval, interval_of
from bgmiv.numerals import percent
from bgmiv.preprocess.reduction import BlockReduction
from bgmiv.sieve.fit import SieveConfig, fit_sieve

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Calibration", "calibrate"]

EFFECT, POINTS, CURVE = "average effect", "points of g", "band of the curve"
USUAL, ROBUST = "average effect, usual interval", "robust set"
_DOSES, _MAX_POINTS = 21, 250

Ratios = dict[str, list[float]]
"""By question, how far the truth was from the middle of the intervals of one data set, in their half widths; and
whether the default interval of the average effect was a robust set."""


_Repeat = tuple[int, IVData, int]
"""The number of a data set, the data set, and the seed of its fit."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """How often intervals covered the truth on data sets drawn from a fit; print it to read it.

    This is conditional on the model: if g, the exclusion of the instruments or the errors are not as fitted, the
    intervals of the data at hand may hold less often.

    Attributes:
        level: of the intervals.
        label: the change of treatment whose average effect was asked for.
        ratios: by question, an entry a data set: the distances of the truth from the middle of intervals in half their
            widths; an interval holds where it is 1 or less. Of the average effect and of the curve's uniform band
            there is one (the largest along the curve), of points of g one each. The average effect has the interval
            that `ate_interval` gives by default; where that is a robust set, of no or infinite width or in pieces, 0
            or infinity say whether it holds. If it was one in some data set, the usual interval has a line of its own.
        n_failed: data sets that could not be fitted, which are left out.
        n_robust: data sets in which the default was a robust set.

    Example:
        >>> calibration = Calibration(0.9, "from 0 to 1", {"average effect": [[0.5], [0.8], [1.2], [0.3]]}, 0)
        >>> calibration.coverage["average effect"], calibration.factors["average effect"]
        (0.75, 1.2)
    """

    level: float
    label: str
    ratios: Mapping[str, list[list[float]]]
    n_failed: int
    n_robust: int = 0

    @property
    def repeats(self) -> int:
        """On how many data sets."""
        return len(next(iter(self.ratios.values())))

    @property
    def coverage(self) -> dict[str, float]:
        """By question, the share of intervals that held the truth."""
        return {name: float(np.mean(np.asarray(values) <= 1.0)) for name, values in self.ratios.items()}

    @property
    def std_errors(self) -> dict[str, float]:
        """Of `coverage`, from the spread between data sets."""
        each = {name: np.mean(np.asarray(values) <= 1.0, axis=1) for name, values in self.ratios.items()}
        # That all held in m data sets does not show that all would: as if one more had not.
        least = np.sqrt(self.repeats) / (self.repeats + 1.0) ** 1.5
        return {name: float(np.std(part) / np.sqrt(len(part)) or least) for name, part in each.items()}

    @property
    def factors(self) -> dict[str, float]:
        """By question, by what intervals have to be multiplied to hold as often as their level says; 1 at least."""
        return {
            name: max(1.0, float(np.quantile(np.ravel(values), self.level, method="inverted_cdf")))
            for name, values in self.ratios.items()
        }

    def widened(self, interval: Interval) -> Interval:
        """An interval of the same fit, times the factor of its kind; unchanged where intervals cover often enough.

        Raises:
            ConfigError: the interval is of another level, or the set of a test, which has no standard error.

        Example:
            >>> calibration = Calibration(0.95, "from 0 to 1", {"average effect": [[0.5], [1.5]]}, 0)
            >>> calibration.widened(Interval(2.0, 1.0, 3.0, 0.95, {"sampling": 0.5}, name="average effect")).upper
            3.5
        """
        if interval.level != self.level:
            raise ConfigError(f"the calibration is of {self.level:g} intervals, and this one has {interval.level:g}.")
        if interval.method == ANDERSON_RUBIN:
            raise ConfigError("an Anderson-Rubin set is not widened. Use ate_interval(method='usual').")
        effect = USUAL if USUAL in self.ratios else EFFECT
        kind = CURVE if interval.method == "uniform" else effect if interval.name == EFFECT else POINTS
        factor = self.factors[kind]
        lower, upper = (interval.estimate + factor * (end - interval.estimate) for end in interval)
        return replace(interval, lower=lower, upper=upper)

    def to_frame(self) -> pd.DataFrame:
        """One row for each question: coverage, its standard error, and the factor."""
        import pandas as pd

        columns = {"coverage": self.coverage, "std_error": self.std_errors, "factor": self.factors}
        return pd.DataFrame(columns)

    def __str__(self) -> str:
        """How often intervals covered the truth, by how much to widen them, and what this depends on."""
        lines = [f"On {self.repeats} data sets like yours {percent(self.level)} intervals covered"]
        for name, share in self.coverage.items():
            shown = f"{name} ({self.label})" if name in (EFFECT, USUAL) else name
            more = f"; they would in {percent(self.level)} if {self.factors[name]:.2f} times as wide"
            more = more if share < self.level and np.isfinite(self.factors[name]) else ""
            more += f"; {self.n_robust} were Anderson-Rubin sets" if name == EFFECT and self.n_robust else ""
            lines.append(f"  {shown}: in {share:.0%} of them (standard error {self.std_errors[name]:.1%}){more}")
        lines.append("Conditional on the model: the fitted g was the truth, and errors were those of the fit.")
        return "\n".join(lines + [f"{self.n_failed} more could not be fitted."] * (self.n_failed > 0))


def calibrate(own: FitOnRows, t0: Any, t1: Any, *, repeats: int, level: float, executor: Executor) -> Calibration:
    """Fit data sets drawn from a fit, and see how often intervals hold its g.

    Args:
        own: the fit and its rows.
        t0, t1: the treatments of the average effect to ask for; None for the quartiles or the first two levels.
        repeats: how many data sets.
        level: of the intervals.
        executor: where fits run.

    Raises:
        ConfigError: the method has no intervals, or an argument cannot be used.
        DataError: the fit ignores its instruments, or the outcome has three or more levels.
    """
    asked = AnalysisRequest.of(t0=t0, t1=t1, level=level)
    if not isinstance(repeats, int) or repeats < 2:
        raise ConfigError(f"repeats must be a whole number of 2 or more, got {repeats!r}.")
    fitted, data, seed, config = own.fitted, own.data, own.seed, own.refit_config
    require_intervals(fitted)
    if not own.use_instrument:
        raise DataError("this fit ignores its instruments. Calibrate one that uses them.")
    grid = grid_of(data.schema, data, asked)
    if data.schema.outcome.width > 1:
        raise DataError(f"outcome {data.schema.outcome.name!r} has three or more levels; calibrate one at a time.")
    doses = np.concatenate([[grid.t0, grid.t1], _curve_doses(data)])
    averages, points = _answers(fitted, own.rows, doses, data.treatment)
    values = averages.estimate.values
    truth = {EFFECT: values[1] - values[0], POINTS: points.values, CURVE: values[2:]}
    draw = _generator(fitted, data)

    def items() -> Iterator[_Repeat]:
        for number in range(repeats):
            yield number, draw(np.random.default_rng([seed, number])), (seed + number + 1) % 2**32

    task = partial(_run, config, doses, truth, data.treatment, level)
    done = sorted(executor.map(task, items()), key=lambda one: one.item[0])
    held = [one.result for one in done if one.result is not None]
    if not held:
        raise BGMIVError("none of the data sets drawn from this fit could be fitted again.")
    n_robust = round(sum(one[ROBUST][0] for one in held))
    names = (EFFECT, USUAL, POINTS, CURVE) if n_robust else (EFFECT, POINTS, CURVE)
    ratios = {name: [one[name] for one in held] for name in names}
    label = changes_of(data)[0].label if t0 is None else f"from {t0} to {t1}"
    return Calibration(level, label, ratios, repeats - len(held), n_robust)


def _run(
    config: MethodConfig, doses: Floats, truth: dict[str, Floats], observed: NDArray[Any], level: float, item: _Repeat
) -> Ratios | None:
    """Fit one data set, and ask of it what is asked of all; None if that cannot be done."""
    _, data, seed = item
    try:
        fitted = config.fit(data, seed)
    except BGMIVError:
        return None
    own, size = FitRows(data, Rows(data.covariates, data.weights)), doses[1] - doses[0]
    averages, points = _answers(fitted, own.rows, doses, observed)
    default, usual = (
        effect_of(averages, (0, 1), size, fitted, level, own, method=method) for method in ("auto", "usual")
    )
    curve = averages.estimate.map(lambda values: values[2:])
    return {
        EFFECT: [_ratio(default, float(truth[EFFECT]))],
        USUAL: [_ratio(usual, float(truth[EFFECT]))],
        POINTS: _ratios(interval_of(points, level), truth[POINTS]).tolist(),
        CURVE: [float(_ratios(interval_of(curve, level, band="uniform"), truth[CURVE]).max())],
        ROBUST: [float(default.method == ANDERSON_RUBIN)],
    }


def _ratios(interval: Interval, truth: Floats) -> Floats:
    lower, upper = (np.ravel(end) for end in interval)
    half = np.maximum((upper - lower) / 2.0, TINY)
    return np.abs((lower + upper) / 2.0 - np.ravel(truth)) / half


def _ratio(interval: Interval, truth: float) -> float:
    """Of an average effect: of a set that is no interval with a width, 0 if it holds the truth and infinity if not."""
    if len(interval.stretches) == 1 and np.isfinite(interval.upper - interval.lower):
        return float(_ratios(interval, np.asarray(truth))[0])
    return 0.0 if any(low <= truth <= high for low, high in interval.stretches) else np.inf


def _curve_doses(data: IVData) -> Floats:
    """The treatments of the curve."""
    if data.schema.treatment.kind is BlockKind.continuous:
        ends = np.quantile(data.treatment.astype(np.float64), [0.05, 0.95])
        return np.linspace(ends[0], ends[1], _DOSES)
    return np.arange(float(max(2, data.schema.treatment.width)))


def _answers(fitted: FittedMethod, rows: Rows, doses: Floats, observed: NDArray[Any]) -> tuple[Average, Estimate]:
    """What is asked of every data set, at the rows and treatments of the data at hand: averages, and points of g."""
    averages = average(fitted, Query(doses[:, None], rows), intervals=True)
    return averages, estimate_at(fitted, Query(observed[None], rows).drawn(_MAX_POINTS), intervals=True)


def _generator(fitted: FittedMethod, data: IVData) -> Callable[[np.random.Generator], IVData]:
    """Draws data sets."""
    first = fit_sieve(SieveConfig(), BlockReduction().fit(data).apply(data))
    n, rows = data.n_rows, Rows(data.covariates, data.weights)
    units = np.arange(n) if data.groups is None else data.groups
    observed = data.treatment.astype(np.float64)
    discrete = data.schema.treatment.discrete
    # The first stage is that of standardised columns.
    unexplained = first.residuals * first.function.treatment.scale
    if discrete:
        others = np.clip(data.schema.treatment.regressors(observed) - unexplained, 0.0, 1.0)
        chances = np.column_stack([np.maximum(1.0 - others.sum(axis=1), 0.0), others])
        ends = np.cumsum(chances / chances.sum(axis=1, keepdims=True), axis=1)
    else:
        left = unexplained[:, 0]

    def structural(x: Floats) -> Floats:
        return fitted.at(Query(x[None], rows))[0]

    errors = data.outcome.astype(np.float64) - structural(observed)

    def draw(rng: np.random.Generator) -> IVData:
        signs = rng.choice([-1.0, 1.0], int(units.max()) + 1)[units]
        x = _redrawn(observed.astype(np.intp), ends, ends, rng, signs) if discrete else observed - left + signs * left
        if data.schema.outcome.discrete:
            before, after = (
                np.column_stack([np.clip(structural(each), 0.0, 1.0), np.ones(n)]) for each in (observed, x)
            )
            y = 1.0 - _redrawn((data.outcome < 0.5).astype(np.intp), before, after, rng, signs)
        else:
            y = structural(x) + signs * errors
        return replace(data, treatment=x.astype(data.treatment.dtype), outcome=y.astype(data.outcome.dtype))

    return draw


def _redrawn(codes: Integers, before: Floats, after: Floats, rng: np.random.Generator, signs: Floats) -> Floats:
    """The codes that ranks U have under the cumulative probabilities `(n, K)` after; 1 - U for a sign of -1.

    U is uniform within what the probabilities before give to each row's code.
    """
    rows = np.arange(len(codes))
    low = np.where(codes > 0, before[rows, codes - 1], 0.0)
    ranks = low + rng.random(len(codes)) * (before[rows, codes] - low)
    ranks = np.where(signs > 0.0, ranks, 1.0 - ranks)
    return np.minimum(np.sum(ranks[:, None] > after, axis=1), after.shape[1] - 1.0)
