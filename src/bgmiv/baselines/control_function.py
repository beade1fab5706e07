"""The control function (residual inclusion): regress the treatment, then the outcome on treatment and residual.

It answers where moments are ill-posed, under a stronger assumption than the validity of the instruments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bgmiv.arrays import Floats
from bgmiv.covariance import errors_of
from bgmiv.data.ivdata import IVData
from bgmiv.errors import DataError
from bgmiv.estimators.base import SeededEstimator
from bgmiv.estimators.fitted import FittedSieve, MethodConfig, usable_rows
from bgmiv.preprocess.reduction import BlockReduction
from bgmiv.progress import Reporter, silent, task
from bgmiv.sieve.bases import ColumnBasis, SieveFunction, TreatmentBasis, column_products
from bgmiv.sieve.control import generalised_residual
from bgmiv.sieve.design_matrix import Columns, instrument_blocks
from bgmiv.sieve.first_stage import FirstStage, first_stage
from bgmiv.sieve.fit import sieve_function, warn_of_shrunk
from bgmiv.sieve.second_stage import Regression, second_stage
from bgmiv.support import LinearSupport

__all__ = [
    "ASSUMPTION", "PRESETS", "ControlFunction", "ControlFunctionConfig", "Controls", "FittedControlFunction",
]  # fmt: skip

ASSUMPTION = (
    "They rest on more than valid instruments: the errors of treatment and outcome are together independent of the "
    "instruments given the covariates, and the treatment is monotone in one unobserved error."
)
"""What estimates and intervals of the control function assume."""

_MIN_ROWS = 20
# What a term must gain to enter, as twice a log likelihood ratio.
_MIN_GAIN = 4.0
_SPLINES, _SEGMENTS = 30, 30
_SPLINES_OF_CONTROL = 8
# More instruments than these are penalised.
_MAX_FREE = 10
# How many of the smoothest spline functions of treatment and control variable take part in products.
_N_SMOOTHEST = 4
# Of the mean size of a residual.
_MIN_SIZE = 0.2
_STEP = 1e-4


@dataclass(frozen=True, eq=False)
class FittedControlFunction(FittedSieve):
    """A fitted E[Y | do(x), v] of the control function.

    Attributes:
        use_instrument: whether residuals of a first stage are included.
    """

    use_instrument: bool

    @property
    def interval_kind(self) -> str:
        """What the intervals are."""
        kind = f"Intervals from the {self.errors} covariance of the coefficients"
        bias = "the smoothing bias that is likely under the prior behind the penalties"
        if not self.use_instrument:
            return f"{kind} and {bias}."
        return f"{kind}, which allows for the estimated residuals, and {bias}. {ASSUMPTION}"


@dataclass(frozen=True)
class ControlFunctionConfig(MethodConfig):
    r"""Residual inclusion: the outcome is regressed on treatment, covariates and the residual of the treatment.

    With $x = m(w, v) + \sigma(w, v) u$ and $y = g(x, v) + e$:

    1. m is estimated by a penalised sieve, whose penalised part predicts a row by folds without it;
    2. y is regressed on functions of (x, v), of the residual r, and products of both. Those of r have mean zero over
       the rows, so that $\hat g(x, v)$ is the average over r: an estimate of $E[Y \mid do(x), v]$.

    This needs more than $E[e \mid w, v] = 0$: **(u, e) has to be independent of w given v**, and the treatment monotone
    in a single unobserved error u. Then $E[e \mid x, w, v]$ depends on r alone (and v). Where it holds, nothing is
    inverted: the second stage is a regression, and finds curves that the instruments smooth away. The average over r
    also needs every r to occur at each x, so that g is extrapolated where instruments are weak; the additive part
    carries it there. Where the errors are not separable, $E[Y \mid do(x), v]$ is what it aims at, which moments do not
    identify.

    Residuals are divided by their estimated size where the data show that it varies with the instruments: u is what is
    independent of them. For a treatment with levels they are the generalised residuals of a probit model whose
    probabilities are estimated freely, one for each level but the first; beyond two levels this is an approximation.
    They enter linearly and in products with the treatment (switching regressions).

    Terms, penalties and their choice by marginal likelihood are those of penalised sieve IV (`NPIVConfig`), with more
    splines of the treatment; treatment and residual themselves have no penalty. Standard errors are robust or
    clustered, and count that residuals are estimated. Wide blocks and images are reduced to scores first; indicators of
    categorical covariates with many levels are absorbed, as in `NPIVConfig`.

    Args:
        use_instrument: False ignores the instruments: a regression on treatment and covariates.

    Example:
        >>> from bgmiv.effects import predict
        >>> rng = np.random.default_rng(0)
        >>> w, u, noise = rng.normal(size=(3, 1000))
        >>> x = w + u
        >>> data = IVData.from_arrays(np.sin(2.0 * x) - u + 0.5 * noise, x, instruments=w)
        >>> fitted = ControlFunctionConfig().fit(data)
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

    use_instrument: bool = True

    def fit(self, data: IVData, seed: int = 0, reporter: Reporter = silent) -> FittedControlFunction:
        """Draw folds, predict the treatment on each, and regress the outcome."""
        data = usable_rows(data, "the control function", use_instrument=self.use_instrument)
        if data.n_rows < _MIN_ROWS:
            raise DataError(f"the control function needs at least {_MIN_ROWS} rows, got {data.n_rows}; pass more rows.")
        rng = np.random.default_rng([0, seed])
        reduction = BlockReduction().fit(data)
        columns = Columns.of(reduction.apply(data), rng, splines=_SPLINES, segments=_SEGMENTS)
        with task(reporter, "first stage, 1 of 2"):
            first, controls = self._first_stage(columns, rng)
        with task(reporter, "second stage, 2 of 2"):
            function = _second_stage(columns, first, controls)
        warn_of_shrunk(columns.n_shrunk)
        return FittedControlFunction(
            schema=data.schema,
            support=LinearSupport.fit(data),
            reduction=reduction,
            function=function,
            use_instrument=self.use_instrument,
            errors=errors_of(data).name,
        )

    def _first_stage(self, columns: Columns, rng: np.random.Generator) -> tuple[FirstStage, Controls]:
        """The first stage and the control variables, which are standardised where their size varies."""
        treatment = columns.treatment
        linear = treatment(columns.x)[:, : treatment.n_linear]
        if not self.use_instrument:
            return FirstStage.exogenous(linear), Controls(linear[:, :0], linear[:, :0])
        regressors = instrument_blocks(columns, rng, max_unpenalised=_MAX_FREE)(columns.w)
        first = columns.first_stage(regressors, linear, _MIN_GAIN * columns.correction)
        if treatment.levels:
            low, now, high = (
                generalised_residual(*(part * treatment.scale + treatment.shift for part in (linear, probability)))
                for probability in (first.predicted - _STEP, first.predicted, first.predicted + _STEP)
            )
            return first, Controls(now, (high - low) / (2.0 * _STEP))
        size = _residual_size(columns, first.residuals, rng)
        return first, Controls(first.residuals / size, -1.0 / size)


class Controls(NamedTuple):
    """The control variables `(n, k)`, and their derivatives by the first stage's predictions."""

    values: Floats
    slopes: Floats


def _residual_size(columns: Columns, residuals: Floats, rng: np.random.Generator) -> Floats:
    """How the size of residuals depends on the instruments: its factor at each row, 1 where it does not.

    What depends on the covariates alone is left as it is: all is meant given the covariates.
    """
    own, covariates = ColumnBasis.fit(columns.w, rng, fourier_features=1), columns.covariates

    def of_covariates(rows: Any) -> list[Floats]:
        parts = covariates(columns.v[rows])
        return [parts["constant"], parts["linear"], parts["splines"]]

    def of_instruments(rows: Any) -> list[Floats]:
        parts, v = own(columns.w[rows]), covariates(columns.v[rows])["moderators"]
        curved = np.hstack([parts["splines"], parts["products"]])
        return [parts["constant"], parts["linear"], curved, column_products(parts["moderators"], v)]

    sizes, sampling = np.abs(residuals), columns.sampling
    usual = first_stage(of_covariates, sizes, sampling, _MIN_GAIN).predicted
    relative = sizes / np.maximum(usual, _MIN_SIZE * sizes.mean())
    first = first_stage(of_instruments, relative, sampling, _MIN_GAIN)
    if len(first.kept[0]) == 1:
        return np.ones_like(residuals)
    return np.clip(first.predicted, _MIN_SIZE, 1.0 / _MIN_SIZE)


def _second_stage(columns: Columns, first: FirstStage, controls: Controls) -> SieveFunction:
    """The structural function.

    Functions of the control variables have mean zero over the rows, so that their products with functions of the
    treatment and the covariates vanish in the average over the control variables: g is what is left.
    """
    sampling, n_linear = columns.sampling, columns.treatment.n_linear
    functions = columns.treatment(columns.x)
    terms, n_unpenalised = columns.terms()
    terms_at = columns.blocks(terms, functions)
    # Generalised residuals enter linearly: their mean given the treatment is what confounds.
    splines = 0 if columns.treatment.levels else _SPLINES_OF_CONTROL
    bases = [TreatmentBasis.fit(values, 0, splines) for values in controls.values.T]

    def of_controls(values: Floats) -> list[Floats]:
        """Linear terms and splines."""
        made = [basis(column) for basis, column in zip(bases, values.T, strict=True)]
        return [np.hstack([values[:, :0], *(part[:, some] for part in made)]) for some in (slice(1), slice(1, None))]

    shares = sampling.weights / sampling.weights.sum()
    centres = [shares @ part for part in of_controls(controls.values)]

    def control_blocks(rows: Any, values: Floats) -> list[Floats]:
        linear, curved = (part - centre for part, centre in zip(of_controls(values), centres, strict=True))
        x, curves = functions[rows, :n_linear], functions[rows, n_linear:][:, :_N_SMOOTHEST]
        v = columns.covariates_at(rows)["moderators"]
        products = [column_products(linear, curves), column_products(curved[:, :_N_SMOOTHEST], x)]
        return [linear, curved, column_products(linear, x), np.hstack(products), column_products(linear, v)]

    def blocks_at(rows: Any) -> list[Floats]:
        own, (linear, *others) = terms_at(rows), control_blocks(rows, controls.values[rows])
        return [*own[:n_unpenalised], linear, *own[n_unpenalised:], *others]

    widths = np.array([block.shape[1] for block in blocks_at(slice(0, 2))])
    places = np.arange(len(widths))
    structural = np.repeat((places != n_unpenalised) & (places <= len(terms)), widths)

    def slopes_at(rows: Any, beta: Floats) -> Floats:
        """How the prediction moves with those of the first stage: the control variables are estimated."""
        values, slopes, gamma = controls.values[rows], controls.slopes[rows], beta[~structural]
        derivatives, now = np.zeros((len(values), first.predicted.shape[1])), np.hstack(control_blocks(rows, values))
        for k in range(values.shape[1]):
            step = _STEP * np.eye(values.shape[1])[k] * slopes
            derivatives[:, k] = (np.hstack(control_blocks(rows, values + step)) - now) @ gamma / _STEP
        return derivatives

    problem = Regression(columns.within.net(blocks_at), slopes_at, columns.outcome, first, sampling)
    second = second_stage(problem, n_unpenalised + 1, _MIN_GAIN * columns.correction)
    n_penalised = len(terms) - n_unpenalised
    own = second._replace(
        coefficients=second.coefficients[structural],
        roots={name: root[structural] for name, root in second.roots.items()},
        ridges=second.ridges[:n_penalised],
    )
    others: Floats | float = 0.0
    if columns.within:
        # Controls have mean zero over all rows, but not at each level.
        gamma = second.coefficients[~structural]
        others = columns.scale * np.hstack(blocks_at(slice(None)))[:, ~structural] @ gamma
    return sieve_function(columns, terms, own, others=others)


PRESETS = {"default": ControlFunctionConfig}


@dataclass(eq=False, repr=False, kw_only=True)
class ControlFunction(SeededEstimator):
    """The control function in the shape of every other estimator; `ControlFunctionConfig` explains the arguments.

    It assumes more than valid instruments: the errors of treatment and outcome are together independent of the
    instruments given the covariates, and the treatment is monotone in one unobserved error.

    `random_state` is the seed of the folds; None draws one and keeps it in `seed_`. `treatment_kind` and `outcome_kind`
    and `covariance` are those of `IVData.from_arrays`; an outcome may have two levels, not more.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> w, v, u = rng.normal(size=(3, 500))
        >>> x = w + v + u
        >>> model = ControlFunction(random_state=0).fit(2.0 * x + v - u, x, instruments=w, covariates=v)
        >>> round(model.ate(t0=0.0, t1=1.0), 1)
        2.0
    """

    presets = PRESETS
    fitted_class = FittedControlFunction
