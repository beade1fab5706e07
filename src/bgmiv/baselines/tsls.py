"""Linear two-stage least squares: the yardstick every other method is held against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from bgmiv.arrays import Floats, Integers
from bgmiv.covariance import ErrorsName, LinearFit, covariance_root, errors_of, fit_linear
from bgmiv.data.ivdata import IVData
from bgmiv.data.messages import FloatArray
from bgmiv.data.query import Encoded, Query
from bgmiv.data.schema import BlockKind, Schema
from bgmiv.data.within import LevelEffects, Within, level_slices, ordinary_columns, ordinary_covariates
from bgmiv.errors import ConfigError, DataError
from bgmiv.estimators.base import IVEstimator
from bgmiv.estimators.fitted import MethodConfig, usable_rows
from bgmiv.fitted import FittedMethod
from bgmiv.intervals import Source, Sources
from bgmiv.persist.codec import unsaved
from bgmiv.progress import Reporter, silent, task
from bgmiv.support import LinearSupport

__all__ = ["PRESETS", "TSLS", "FittedTSLS", "TSLSConfig"]

_MAX_POINTS = 50_000


@dataclass(frozen=True, eq=False)
class FittedTSLS(FittedMethod):
    """A fitted structural function: outcome = intercept + covariates · coefficients + treatment · its coefficients.

    Attributes:
        schema, support: what the fit keeps of its data.
        intercept: of the regression.
        coefficients: `(p,)`, one for each flat covariate column; 0 for a categorical block's reference level.
        treatment_coefficients: of the treatment; of a categorical one, a coefficient for each level but the first.
        covariance: of all coefficients, in the order constant, covariates, treatment.
        dof: degrees of freedom of that covariance.
        errors: what it allows for: "classical", "robust" or "clustered".
        config: the settings.
        effects: what is kept of absorbed indicators; None if none are. Their coefficients are among the others.
    """

    closed_form = True

    schema: Schema
    support: LinearSupport
    intercept: float
    coefficients: Floats
    treatment_coefficients: Floats
    covariance: Floats
    dof: float
    errors: ErrorsName
    config: TSLSConfig
    effects: LevelEffects | None = None
    linearmodels_fit: Callable[[], Any] | None = unsaved()

    @cached_property
    def result(self) -> Any:
        """linearmodels' result, with `first_stage` and every test it offers; None in a fit that was loaded.

        Its standard errors are those of this fit, with the same small-sample corrections, except that it has CR1 where
        this fit has the jackknife over clusters.
        """
        return None if self.linearmodels_fit is None else self.linearmodels_fit()

    @property
    def is_line(self) -> bool:
        """Whether there is one slope for all rows."""
        return len(self.treatment_coefficients) == 1

    @property
    def slope(self) -> float:
        """The effect of one unit of treatment."""
        if not self.is_line:
            raise ConfigError(
                "a treatment of several levels has no single slope; use predict, or the coefficients in result.params"
            )
        return float(self.treatment_coefficients[0])

    @property
    def interval_kind(self) -> str:
        """What the intervals are."""
        return f"Intervals from the {self.errors} covariance of the coefficients."

    def encode(self, covariates: FloatArray) -> Encoded:
        """The part of g that does not depend on the treatment, by row."""
        return (self.intercept + covariates @ self.coefficients,)

    def at(self, query: Query) -> Floats:
        """The structural function in units of the outcome, `(m, n)`."""
        (base,) = query.rows.encoded_by(self)
        treatment, slopes = self.schema.treatment, self.treatment_coefficients
        return query.collect(lambda x, rows: base[rows] + treatment.regressors(x) @ slopes, _MAX_POINTS)

    def factors(self, query: Query) -> Sources:
        """The sampling uncertainty, by the covariance of the coefficients."""
        effects, treatment, values = self.effects, self.schema.treatment, query.rows.covariates
        covariates = ordinary_covariates(self.schema, values, () if effects is None else effects.names)
        root = covariance_root(self.covariance)
        places = np.zeros((0, 0), np.int64) if effects is None else effects.places(self.schema, values)

        def moved(x: FloatArray, rows: Integers) -> Floats:
            own = np.hstack([covariates[rows], treatment.regressors(x)])
            if effects is None:
                return np.hstack([np.ones((len(x), 1)), own]) @ root
            return (own - effects.means(places[rows])) @ root[1:]

        factors = np.moveaxis(query.collect(moved, _MAX_POINTS), -1, 0)
        if effects is not None:
            factors = np.concatenate([factors, effects.noise(places, len(query.treatment))])
        return (Source("sampling", factors, self.dof),)


@dataclass(frozen=True)
class TSLSConfig(MethodConfig):
    """Two-stage least squares with a constant, linear in treatment and covariates; `NPIV` is its sieve.

    Standard errors are robust to heteroskedasticity, and clustered where the data have groups, unless the data ask for
    another covariance (`IVData.from_arrays`); all have the usual small-sample corrections, and intervals t quantiles.
    Estimates and standard errors do not depend on the units of columns. Sample weights are those of weighted least
    squares; rows of weight zero are left out. The reference of a categorical block or treatment is its most frequent
    level; a treatment needs an instrument for each other level. At least twice as many rows as first-stage columns are
    needed: near that the first stage reproduces the treatment itself.

    The indicators of a categorical covariate with more than 20 levels, or more than an eighth of the rows, are
    absorbed: estimates are those with all indicators, by columns net of them (`bgmiv.data.within`). Standard errors
    then have the usual small-sample correction, which counts the levels; as in pyfixest, a covariate that is nested in
    the groups counts as one.

    Args:
        use_instrument: False ignores the instruments: ordinary least squares on the same columns.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> cost, shock = rng.normal(size=(2, 4000))
        >>> price = 2.0 + cost + shock
        >>> data = IVData.from_arrays(2.0 * price + shock, price, instruments=cost)
        >>> round(TSLSConfig().fit(data).slope, 1)
        2.0
    """

    use_instrument: bool = True

    def fit(self, data: IVData, seed: int = 0, reporter: Reporter = silent) -> FittedTSLS:
        """Fit both stages; `seed` is not used, there is no randomness."""
        data = usable_rows(data, "two-stage least squares", use_instrument=self.use_instrument)
        schema, within = data.schema, Within.of(data.schema, data.covariates, data.weights)
        kept = ordinary_columns(schema, within.names)
        self._check(data, within, len(kept))
        outcome = data.outcome.astype(np.float64)
        covariates = ordinary_covariates(schema, data.covariates, within.names)
        treatments = schema.treatment.regressors(data.treatment)
        columns = _Columns(
            covariates=within.residual(covariates),
            treatments=within.residual(treatments),
            instruments=within.residual(data.instruments.astype(np.float64)) if self.use_instrument else None,
        )
        errors = errors_of(data)
        n_absorbed = max(within.dof(data.groups if errors.ways else None) - 1, 0)
        net_outcome = within.residual(outcome)
        with task(reporter, "2SLS"):
            regression = _regression(data, net_outcome, columns, n_absorbed)

        estimates = regression.coefficients
        coefficients = np.zeros(schema.n_covariates)
        coefficients[kept] = estimates[1 : 1 + len(kept)]
        intercept, effects = float(estimates[0]), None
        if within:
            left = data.n_rows - within.dof(data.groups) - len(estimates) + 1
            structural = np.column_stack([covariates, treatments])
            effects = LevelEffects.fit(within, outcome, lambda rows: [structural[rows]], estimates[1:], left)
            intercept = _spread_effects(schema, effects, effects.own_effects(estimates[1:]), coefficients)
        return FittedTSLS(
            schema=schema,
            support=LinearSupport.fit(data),
            intercept=intercept,
            coefficients=coefficients,
            treatment_coefficients=estimates[1 + len(kept) :],
            covariance=regression.covariance,
            dof=regression.dof,
            errors=errors.name,
            config=self,
            effects=effects,
            linearmodels_fit=partial(_fit_linearmodels, data, net_outcome, columns, kept),
        )

    def _check(self, data: IVData, within: Within, n_covariates: int) -> None:
        images = [block.name for block in data.schema.blocks if block.kind is BlockKind.image]
        if images:
            raise DataError(
                f"covariates block {images[0]!r} holds images, and two-stage least squares would be linear in every "
                "pixel. Pass features of the images (a few columns), or declare the block as 'vector' to use pixels as "
                "they are, or use another method"
            )
        n_instruments = data.instruments.shape[1] if self.use_instrument else 0
        n_treatments = max(data.schema.treatment.width - 1, 1)
        if self.use_instrument and n_instruments < n_treatments:
            raise DataError(
                f"a treatment of {n_treatments + 1} levels has {n_treatments} columns, and {n_instruments} of the "
                "instruments do not identify them. Pass as many instruments, or use another method."
            )
        # Absorbed indicators have exact coefficients whatever the number of their rows.
        least = within.dof() + 2 * (n_covariates + n_instruments)
        if least > data.n_rows:
            raise DataError(
                f"two-stage least squares with {n_covariates} covariate columns, {n_instruments} instruments and "
                f"{data.n_rows} rows is not meaningful; give at least {least} rows, fewer columns, or use another "
                "method"
            )


PRESETS = {"default": TSLSConfig}


@dataclass(eq=False, repr=False, kw_only=True)
class TSLS(IVEstimator):
    """Two-stage least squares in the shape of every other estimator; `TSLSConfig` explains the arguments.

    `treatment_kind`, `outcome_kind` and `covariance` are those of `IVData.from_arrays`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> cost, shock = rng.normal(size=(2, 4000))
        >>> price = 2.0 + cost + shock
        >>> model = TSLS().fit(1.0 - 0.5 * price + shock, price, instruments=cost)
        >>> model.predict([0.0, 10.0]).round(0)
        array([ 1., -4.])
    """

    presets = PRESETS
    fitted_class = FittedTSLS
    saved_parts = (TSLSConfig,)


class _Columns(NamedTuple):
    """Columns of the regression, net of absorbed indicators; there are no instruments in ordinary least squares."""

    covariates: Floats
    treatments: Floats
    instruments: Floats | None


def _spread_effects(schema: Schema, effects: LevelEffects, own: Floats, coefficients: Floats) -> float:
    """Set the coefficients of absorbed indicators, relative to each first level; their sum is the intercept."""
    intercept = 0.0
    blocks = {block.name: block for block in schema.blocks}
    for name, levels in zip(effects.names, level_slices(effects.sizes), strict=True):
        block, of_levels = blocks[name], own[levels]
        coefficients[block.start : block.stop] = of_levels - of_levels[0]
        intercept += float(of_levels[0])
    return intercept


def _regression(data: IVData, outcome: Floats, columns: _Columns, n_absorbed: int) -> LinearFit:
    """Constant, covariates and treatment in this order; refuses columns that others determine."""
    exogenous = np.column_stack([np.ones(data.n_rows), columns.covariates])
    try:
        return fit_linear(
            outcome,
            exogenous,
            columns.treatments,
            columns.instruments,
            weights=data.weights,
            errors=errors_of(data),
            n_absorbed=n_absorbed,
        )
    except np.linalg.LinAlgError as error:
        raise DataError(
            f"two-stage least squares cannot be computed: {error}. Some columns are exact linear "
            "combinations of others (a repeated column, a constant one, indicators that add up to 1, or an "
            "instrument that the covariates determine): remove the redundant columns."
        ) from error


def _fit_linearmodels(data: IVData, outcome: Floats, columns: _Columns, kept: Sequence[int]) -> Any:
    import pandas as pd  # a dependency of linearmodels; slow to import, so only here
    from linearmodels.iv import IV2SLS

    schema, constant = data.schema, "const"
    names = [schema.flat_names[column] for column in kept]
    while constant in names:
        constant = f"_{constant}"
    # linearmodels makes six copies of its own.
    exogenous = pd.DataFrame(columns.covariates, columns=names, copy=False)
    exogenous.insert(0, constant, 1.0)
    treatment = schema.treatment
    treatment_names = [f"{treatment.name}={level}" for level in (treatment.levels or ())[1:]]
    if treatment.width == 1:
        treatment_names = [treatment.name]
    treatments = pd.DataFrame(columns.treatments, columns=treatment_names)
    parts = (pd.concat([exogenous, treatments], axis=1), None, None)
    if columns.instruments is not None:
        parts = (exogenous, treatments, pd.DataFrame(columns.instruments, columns=list(schema.instruments)))
    model = IV2SLS(pd.Series(outcome, name=schema.outcome.name), *parts, weights=data.weights)
    errors = errors_of(data)
    options: dict[str, Any] = {"cov_type": "unadjusted" if errors.classical else "robust"}
    if errors.ways:
        # Intersections are its own.
        options = {"cov_type": "clustered", "clusters": np.column_stack([way.codes for way in errors.ways[:2]])}
    return model.fit(**options, debiased=True)
