r"""Penalised sieve instrumental variables: a line, and as much curvature and interaction as the data show."""

from __future__ import annotations

from dataclasses import dataclass

from bgmiv.covariance import errors_of
from bgmiv.data.ivdata import IVData
from bgmiv.data.messages import plural
from bgmiv.errors import DataError
from bgmiv.estimators.base import SeededEstimator
from bgmiv.estimators.fitted import FittedSieve, MethodConfig, usable_rows
from bgmiv.preprocess.reduction import BlockReduction
from bgmiv.progress import Reporter, silent
from bgmiv.sieve.fit import SieveConfig, fit_sieve, min_rows, warn_of_shrunk
from bgmiv.support import LinearSupport

__all__ = ["NPIV", "PRESETS", "FittedNPIV", "NPIVConfig"]


@dataclass(frozen=True, eq=False)
class FittedNPIV(FittedSieve):
    """A fitted NPIV."""

    @property
    def interval_kind(self) -> str:
        """What the intervals are."""
        return (
            f"Intervals from the {self.errors} covariance of the sieve's coefficients, and from the curves and "
            "interactions that the data do not rule out, of a size that the regression on the observed treatment tells."
        )


@dataclass(frozen=True)
class NPIVConfig(SieveConfig, MethodConfig):
    r"""Penalised sieve IV: $g(x, v) = a + b x + c^\top v + \sum_t \Phi_t(x, v) \beta_t$, the linear part not penalised.

    Each term t is a product of functions of the treatment (x itself; a spline without its linear part, or every
    function of the levels of a treatment with three to eight values) and of the covariates (linear terms; splines of
    each; products of two; random Fourier features of all, a general surface). So $E[\Phi_t(x, v) \mid w, v]$ needs
    regressions of the few functions of the treatment alone. Redundant columns are left out; which of two levels is
    called 0 and the sign of a column do not matter; an indicator of fewer than ten rows has a linear term alone.

    *First stage*: each function of the treatment on w and v, linearly, and on penalised splines, products and random
    Fourier features of (w, v). The penalised part of a row's prediction is by the other rows, so that it does not
    contain the row's own error; the linear part is that of two-stage least squares. What such functions of the
    covariates alone say of this prediction is a regressor of the second stage: only what instruments add to covariates
    identifies the effect. *Second stage*: ridge regression of the outcome on the terms' predictions and on the
    treatment's residual, which makes interactions more precise and is no assumption on how the errors depend on one
    another (`bgmiv.sieve.second_stage.Regression`). In both stages terms enter one by one, each with a ridge of its
    own, as long as a marginal likelihood that is robust to errors of unequal variance gains enough
    (`bgmiv.sieve.penalties.choose_penalties`). The curve of the treatment and slopes that vary with covariates are
    not chosen: the estimate is an average over prior variances of both, none among them, by their posterior
    probabilities (`bgmiv.sieve.second_stage.second_stage`). How large they may be, not which they are, the
    regression on the observed treatment tells (`bgmiv.sieve.control`). Without any term (`min_gain` infinite) the
    estimate is that of linear two-stage least squares, exactly. Nothing is random.

    The indicators of a categorical covariate with more than 20 levels, or more than an eighth of the rows, are
    absorbed: they have no penalty, and all columns of both stages are taken net of them (`bgmiv.data.within`).
    Functions of the treatment do not interact with them. Linear terms of others have no penalty up to a quarter of
    the rows; beyond that they are penalised, and a `FitWarning` says so.

    Wide vector blocks and images are reduced to scores first. Sample weights are those of weighted least squares;
    groups stay in one of 20 folds, as rows do beyond 20,000 of them, and cluster the covariance.

    Args:
        min_gain, fourier_features: as in `bgmiv.sieve.fit.SieveConfig`.
        use_instrument: False ignores the instruments: penalised regression on treatment and covariates.

    Example:
        >>> import numpy as np
        >>> from bgmiv.effects import predict
        >>> rng = np.random.default_rng(0)
        >>> w, u = rng.normal(size=(2, 4000))
        >>> x = w + u
        >>> data = IVData.from_arrays(x**2 + 2.0 * u, x, instruments=w)
        >>> found = predict(NPIVConfig().fit(data), [0.0, 1.0, 2.0])
        >>> bool(np.abs(found - [0.0, 1.0, 4.0]).max() < 0.6)
        True

    References:
        W. K. Newey, J. L. Powell (2003), Instrumental variable estimation of nonparametric models, Econometrica 71(5).
        S. N. Wood (2017), Generalized additive models, 2nd edition, CRC Press.
    """

    use_instrument: bool = True

    def fit(self, data: IVData, seed: int = 0, reporter: Reporter = silent) -> FittedNPIV:
        """Fit both stages; nothing is drawn by the seed."""
        data = usable_rows(data, "NPIV", use_instrument=self.use_instrument)
        n_instruments = data.instruments.shape[1]
        least = min_rows(n_instruments)
        if data.n_rows < least:
            raise DataError(
                f"NPIV with {plural(n_instruments, 'instrument')} needs at least {least} rows, got {data.n_rows}: with "
                "fewer it cannot tell a curve from chance. Use TSLS, or pass more rows."
            )
        reduction = BlockReduction().fit(data)
        fit = fit_sieve(self, reduction.apply(data), use_instrument=self.use_instrument, reporter=reporter)
        warn_of_shrunk(fit.n_shrunk)
        return FittedNPIV(data.schema, LinearSupport.fit(data), reduction, fit.function, errors_of(data).name)


PRESETS = {"default": NPIVConfig}


@dataclass(eq=False, repr=False, kw_only=True)
class NPIV(SeededEstimator):
    """Penalised sieve instrumental variables, with robust intervals; `NPIVConfig` explains the method.

    Args:
        min_gain: what a term must gain to enter, as twice a log likelihood ratio; infinite for the linear fit.
        use_instrument: False ignores the instruments: penalised regression.
        treatment_kind, outcome_kind: as in `IVData.from_arrays`; an outcome may have two levels, not more.
        covariance: what standard errors and tests allow for, as in `IVData.from_arrays`.
        random_state: kept in `seed_`; nothing is random in a fit, `calibrate` and bootstraps of checks draw by it.
        progress: show progress bars; None shows them in notebooks only.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> w, v, u = rng.normal(size=(3, 1000))
        >>> x = w + v + u
        >>> model = NPIV(random_state=0).fit(x * v + u, x, instruments=w, covariates=v)
        >>> model.effect([-1.0, 0.0, 1.0], t0=0.0, t1=1.0).round(0) + 0.0
        array([-1.,  0.,  1.])
    """

    presets = PRESETS
    fitted_class = FittedNPIV

    min_gain: float = 4.0
