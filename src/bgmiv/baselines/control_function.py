"""The control function (residual inclusion): regress the treatment, then the outcome on treatment and residual.

It answers where moments are ill-posed, under a stronger assumption than the validity of the instruments.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Literal, NamedTuple, get_args

import jax
import numpy as np
from jax import Array

from bgmiv.baselines.additive import Floats, Integers, draw_folds
from bgmiv.baselines.control_stages import (
    FirstStage,
    FirstStageColumns,
    SplineCurve,
    fit_curve,
    residual_size,
    spline_first_stage,
)
from bgmiv.data.ivdata import IVData
from bgmiv.data.messages import FloatArray
from bgmiv.data.query import Encoded, Query
from bgmiv.data.schema import RoleKind, Schema
from bgmiv.diagnostics.support import LinearSupport
from bgmiv.effects import Source
from bgmiv.errors import ConfigError, DataError
from bgmiv.estimators.base import IVEstimator
from bgmiv.estimators.fitted import FittedMethod, check_instrument, check_one_number
from bgmiv.preprocess.reduction import BlockReduction, FittedReduction
from bgmiv.progress import Reporter, silent

__all__ = ["ASSUMPTION", "PRESETS", "ControlFunction", "ControlFunctionConfig", "FittedControlFunction"]

ASSUMPTION = (
    "They rest on more than valid instruments: the errors of treatment and outcome are together independent of the "
    "instruments given the covariates, and the treatment is monotone in one unobserved error."
)
"""What estimates and intervals of the control function assume."""

Residual = Literal["standardised", "raw"]

_MAX_POINTS = 50_000
_N_FOLDS = 5
_MIN_ROWS = 20


@dataclass(frozen=True, eq=False)
class FittedControlFunction(FittedMethod):
    """A fitted E[Y | do(x), v] of the control function.

    Attributes:
        schema, support: what the fit keeps of its data.
        reduction: of wide blocks and images.
        curve: g of the (reduced) covariates.
        use_instrument: whether residuals of a first stage are included.
        standardised: whether residuals were divided by their size given the instruments.
        losses: mean squared errors on left-out folds, of treatment and outcome in units of their variances.
        clustered: whether the covariance is clustered by groups.
    """

    schema: Schema
    support: LinearSupport
    reduction: FittedReduction
    curve: SplineCurve
    use_instrument: bool
    standardised: bool
    losses: tuple[float, float]
    clustered: bool

    @property
    def interval_kind(self) -> str:
        """What the intervals are."""
        kind = f"the {'clustered' if self.clustered else 'robust'} covariance of the coefficients"
        if not self.use_instrument:
            return f"Intervals by {kind}, penalties taken as given."
        return f"Intervals by {kind}, which counts the estimated residuals and takes penalties as given. {ASSUMPTION}"

    def encode(self, covariates: FloatArray) -> Encoded:
        """Functions of the reduced covariates, the part of g without the treatment, and slopes of its functions."""
        reduced = np.asarray(self.reduction.transform(covariates), np.float64)
        functions = np.hstack(self.curve.covariates.parts(reduced))
        return (functions, *self.curve.encode(functions))

    def at(self, query: Query) -> Floats:
        """The structural function in units of the outcome, `(m, n)`."""
        curve, (_, base, slopes) = self.curve, query.rows.encoded_by(self)
        return query.collect(lambda x, rows: base[rows] + (curve.functions(x) * slopes[rows]).sum(axis=1), _MAX_POINTS)

    def factors(self, query: Query) -> tuple[Source, ...]:
        """The sampling uncertainty, by the covariance of the coefficients."""
        curve = self.curve
        functions, *_ = query.rows.encoded_by(self)
        values, vectors = np.linalg.eigh(curve.covariance)
        there = values > 1e-12 * values.max(initial=0.0)
        root = vectors[:, there] * np.sqrt(values[there])

        def moved(x: FloatArray, rows: np.ndarray) -> np.ndarray:
            return curve.columns(curve.functions(x), functions[rows]) @ root

        return (Source("sampling", np.moveaxis(query.collect(moved, _MAX_POINTS), -1, 0), np.inf),)


@dataclass(frozen=True)
class ControlFunctionConfig:
    r"""Residual inclusion: the outcome is regressed on treatment, covariates and the residual of the treatment.

    With $x = m(w, v) + \sigma(w, v) u$ and $y = g(x, v) + e$:

    1. m is estimated by penalised splines, and the residual of a row by folds without it;
    2. y is regressed on functions of (x, v), of the residual r, and products of both. Those of r have mean zero over
       the rows, so that $\hat g(x, v)$ is the average over r: an estimate of $E[Y \mid do(x), v]$.

    This needs more than $E[e \mid w, v] = 0$: **(u, e) has to be independent of w given v**, and the treatment monotone
    in a single unobserved error u. Then $E[e \mid x, w, v]$ depends on r alone (and v). Where it holds, nothing is
    inverted: the second stage is a regression, and finds curves that the instruments smooth away. The average over r
    also needs every r to occur at each x, so that g is extrapolated where instruments are weak; the additive part
    carries it there. Where the errors are not separable, $E[Y \mid do(x), v]$ is what it aims at, which moments do not
    identify.

    Residuals are divided by their estimated size where the data show that it varies with the instruments: u is what is
    independent of them. For a treatment with levels they are the generalised
    residuals of a probit model whose probabilities are estimated freely, one for each level but the first; beyond two
    levels this is an approximation. They enter as lines and in products with the treatment (switching regressions).

    Splines are natural cubic ones with the roughness penalty of a smoothing spline. Each group of terms has its own
    penalty, chosen by five-fold cross-validation; lines of treatment and residual have none. Standard errors are robust
    or clustered, and count that residuals are estimated. Wide blocks and images are reduced to
    scores first.

    Args:
        residual: "standardised" where their size varies with the instruments, or "raw".
        reduction: of wide vector blocks and images.
        use_instrument: False ignores the instruments: a regression on treatment and covariates.

    Example:
        >>> from bgmiv.effects import predict
        >>> rng = np.random.default_rng(0)
        >>> w, u, noise = rng.normal(size=(3, 1000))
        >>> x = w + u
        >>> data = IVData.from_arrays(np.sin(2.0 * x) - u + 0.5 * noise, x, instruments=w)
        >>> fitted = ControlFunctionConfig().fit(data, jax.random.key(0))
        >>> bool(np.abs(predict(fitted, [-1.0, 1.0]) - np.sin([-2.0, 2.0])).max() < 0.3)
        True

    References:
        W. K. Newey, J. L. Powell, F. Vella (1999), Nonparametric estimation of triangular simultaneous equations
        models, Econometrica 67(3).
        R. Blundell, J. L. Powell (2003), Endogeneity in nonparametric and semiparametric regression models, in Advances
        in Economics and Econometrics, volume II.
        G. W. Imbens, W. K. Newey (2009), Identification and estimation of triangular simultaneous equations models
        without additivity, Econometrica 77(5).
    """

    residual: Residual = "standardised"
    reduction: BlockReduction = field(default_factory=BlockReduction)
    use_instrument: bool = True

    def __post_init__(self) -> None:
        if self.residual not in get_args(Residual):
            raise ConfigError(f"residual must be one of {', '.join(get_args(Residual))}, got {self.residual!r}.")

    def without_instrument(self) -> ControlFunctionConfig:
        """The same method with its instruments ignored."""
        return replace(self, use_instrument=False)

    def fit(self, data: IVData, key: Array, reporter: Reporter = silent) -> FittedControlFunction:
        """Draw folds, predict the treatment on each, and regress the outcome."""
        check_one_number(data, "the control function")
        check_instrument(data, "the control function", use_instrument=self.use_instrument)
        if data.weights is not None and not data.weights.all():
            data = data.take(data.weights > 0)
        if data.n_rows < _MIN_ROWS:
            raise DataError(f"the control function needs at least {_MIN_ROWS} rows, got {data.n_rows}; pass more rows.")
        reporter.start("control function", 2)
        reduction = self.reduction.fit(data)
        stages = _Stages.of(reduction.apply(data), np.random.default_rng(np.asarray(jax.random.key_data(key))))
        first, sized = self._first_stage(stages) if self.use_instrument else (None, False)
        reporter.advance(1, {})
        curve, loss = stages.second(first)
        reporter.advance(1, {"loss": loss})
        reporter.finish()
        return FittedControlFunction(
            schema=data.schema,
            support=LinearSupport.fit(data),
            reduction=reduction,
            curve=curve,
            use_instrument=self.use_instrument,
            standardised=sized,
            losses=(float("nan") if first is None else first.loss, loss),
            clustered=data.groups is not None,
        )

    def _first_stage(self, stages: _Stages) -> tuple[FirstStage, bool]:
        """The control variables, and whether they are standardised."""
        first = stages.first()
        if stages.n_levels or self.residual == "raw":
            return first, False
        size = residual_size(stages.columns, first.controls[:, 0], stages.folds, stages.weights)
        return (first, False) if size is None else (first.divided(size), True)


class _Stages(NamedTuple):
    """What both stages are fitted on: treatment and outcome standardised, and the columns of the first stage."""

    treatment: Floats
    n_levels: int
    outcome: Floats
    location: float
    scale: float
    covariates: Floats
    columns: FirstStageColumns
    folds: Integers
    weights: Floats
    groups: np.ndarray | None

    @classmethod
    def of(cls, data: IVData, rng: np.random.Generator) -> _Stages:
        """The arrays of data in double precision."""
        y, v, w = (np.asarray(a, np.float64) for a in (data.outcome, data.covariates, data.instruments))
        variable = data.schema.treatment
        n_levels = (len(variable.levels) if variable.levels else 2) if variable.discrete else 0
        weights = np.ones(len(y)) if data.weights is None else np.asarray(data.weights, np.float64)
        location, scale = float(np.average(y, weights=weights)), float(y.std())
        columns = FirstStageColumns.fit(w, v)
        folds = draw_folds(len(y), _N_FOLDS, rng, data.groups)
        x = np.asarray(data.treatment, np.float64)
        return cls(x, n_levels, (y - location) / scale, location, scale, v, columns, folds, weights, data.groups)

    def first(self) -> FirstStage:
        """The control variables."""
        x = _treatment_columns(self.treatment, self.n_levels)
        discrete = self.n_levels > 0
        x = x[:, -(self.n_levels - 1) :] if discrete else (x - x.mean()) / x.std()
        return spline_first_stage(self.columns, x, self.folds, self.weights, discrete=discrete)

    def second(self, first: FirstStage | None) -> tuple[SplineCurve, float]:
        """The curve in units of the outcome, and the loss on left-out folds in units of its variance."""
        curve, loss = fit_curve(
            *(self.treatment, self.covariates, self.outcome, first),
            *(self.folds, self.weights, self.groups, self.n_levels),
        )
        coefficients = self.scale * curve.coefficients
        coefficients[0] += self.location
        return curve._replace(coefficients=coefficients, covariance=self.scale**2 * curve.covariance), loss


def _treatment_columns(treatment: FloatArray, n_levels: int) -> Floats:
    """A number or two levels as one column, more levels as indicators of all but the first."""
    if n_levels <= 2:
        return np.asarray(treatment, np.float64)[:, None]
    return np.asarray(treatment[:, None] == np.arange(1, n_levels), np.float64)


PRESETS = {"default": ControlFunctionConfig}


@dataclass(eq=False, repr=False)
class ControlFunction(IVEstimator):
    """The control function in the shape of every other estimator; `ControlFunctionConfig` explains the arguments.

    It assumes more than valid instruments: the errors of treatment and outcome are together independent of the
    instruments given the covariates, and the treatment is monotone in one unobserved error.

    `random_state` is the seed of the folds; None draws one and keeps it in `seed_`. `treatment_kind` and `outcome_kind`
    are those of `IVData.from_arrays`; an outcome may have two levels, not more.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> w, v, u = rng.normal(size=(3, 500))
        >>> x = w + v + u
        >>> model = ControlFunction(random_state=0).fit(2.0 * x + v - u, x, instruments=w, covariates=v)
        >>> round(model.ate(t0=0.0, t1=1.0), 1)
        2.0
    """

    residual: Residual = "standardised"
    _: KW_ONLY
    use_instrument: bool = True
    random_state: int | None = None
    progress: bool = False
    treatment_kind: RoleKind = "auto"
    outcome_kind: RoleKind = "auto"

    @classmethod
    def _saved_classes(cls) -> tuple[type, ...]:
        return ControlFunction, FittedControlFunction

    def _config(self) -> ControlFunctionConfig:
        return ControlFunctionConfig(self.residual, use_instrument=self.use_instrument)
