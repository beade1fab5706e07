"""Linear two-stage least squares: the yardstick every other method is held against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bgmiv.covariance import ErrorsName, LinearFit, covariance_root, errors_of, fit_linear, tell_mended
from bgmiv.data.blocks import Level
from bgmiv.data.ivdata import Covariance, IVData
from bgmiv.data.messages import FloatArray
from bgmiv.data.query import Encoded, Query
from bgmiv.data.schema import BlockKind, RoleKind, Schema, Variable
from bgmiv.data.within import LevelEffects, Within, ordinary_columns
from bgmiv.errors import ConfigError, DataError
from bgmiv.estimators.base import IVEstimator
from bgmiv.estimators.fitted import MethodConfig, check_instrument, check_one_number
from bgmiv.fitted import FittedMethod
from bgmiv.intervals import Floats, Source
from bgmiv.persist.codec import unsaved
from bgmiv.progress import Reporter, silent
from bgmiv.support import LinearSupport

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    coefficients: np.ndarray
    treatment_coefficients: np.ndarray
    covariance: np.ndarray
    dof: float
    errors: ErrorsName
    config: TSLSConfig
    effects: LevelEffects | None = None
    linearmodels_fit: Callable[[], Any] | None = unsaved()

    def __post_init__(self) -> None:
        # Of a file that anyone may have written.
        if self.treatment_coefficients.shape != (len(_treatment_names(self.schema.treatment)),):
            raise ValueError("its treatment and coefficients have different sizes.")
        if self.effects is not None and 1 + self.effects.columns.shape[1] != len(self.covariance):
            raise ValueError("its levels and coefficients have different sizes.")

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
        return len(self.treatment_coefficients) == 1 and not _levels(self.schema.treatment)

    @property
    def slope(self) -> float:
        """The effect of one unit of treatment."""
        if len(self.treatment_coefficients) > 1:
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
        return query.collect(lambda x, rows: base[rows] + _treatment_columns(treatment, x) @ slopes, _MAX_POINTS)

    def factors(self, query: Query) -> tuple[Source, ...]:
        """The sampling uncertainty, by the covariance of the coefficients."""
        effects = self.effects
        absorbed = () if effects is None else effects.names
        _, covariates, _ = _regressors(self.schema, query.rows.covariates, absorbed)
        root = covariance_root(self.covariance)

        def moved(x: FloatArray, rows: np.ndarray) -> np.ndarray:
            parts = [np.ones((len(x), 1)), covariates[rows], _treatment_columns(self.schema.treatment, x)]
            if effects is None:
                return np.hstack(parts) @ root
            return (np.hstack(parts[1:]) - effects.means(places[rows])) @ root[1:]

        places = np.zeros((0, 0), np.int64) if effects is None else effects.places(self.schema, query.rows.covariates)
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
        check_one_number(data, "two-stage least squares")
        if data.weights is not None and not data.weights.all():
            data = data.take(data.weights > 0)
        self._check_data(data)
        reporter.start("2SLS", 1)
        within = Within.of(data.schema, data.covariates, data.weights)
        kept, covariates, names = _regressors(data.schema, data.covariates, within.names)
        endogenous, instruments = self._columns(data, len(names))
        net = _net(within, data, covariates, endogenous, instruments)
        errors = errors_of(data)
        n_absorbed = max(within.dof(data.groups if errors.ways else None) - 1, 0)
        found = _fit_columns(*net, n_absorbed)
        reporter.advance(1, {})
        reporter.finish()

        estimates = found.coefficients
        coefficients = np.zeros(data.covariates.shape[1])
        coefficients[kept] = estimates[1 : 1 + len(kept)]
        slopes, intercept, effects = estimates[1 + len(kept) :], float(estimates[0]), None
        if within:
            left = data.n_rows - within.dof(data.groups) - len(estimates) + 1
            structural = np.column_stack([covariates, endogenous])
            y = np.asarray(data.outcome, np.float64)
            effects = LevelEffects.fit(within, y, lambda rows: [structural[rows]], estimates[1:], left)
            intercept = _spread_effects(data.schema, effects, effects.own_effects(estimates[1:]), coefficients)
        return FittedTSLS(
            schema=data.schema,
            support=LinearSupport.fit(data),
            intercept=intercept,
            coefficients=coefficients,
            treatment_coefficients=slopes,
            covariance=found.covariance,
            dof=found.dof,
            errors=errors.name,
            config=self,
            effects=effects,
            linearmodels_fit=partial(_fit_linearmodels, net[0], net[1], names, *net[2:]),
        )

    def _columns(self, data: IVData, n_covariates: int) -> tuple[np.ndarray, np.ndarray | None]:
        """The columns of the treatment and of the instruments; refuses fewer of these."""
        treatment = data.schema.treatment
        endogenous = _treatment_columns(treatment, np.asarray(data.treatment, np.float64))
        if not self.use_instrument:
            return endogenous, None
        instruments = np.asarray(data.instruments, np.float64)
        (n_rows, n_instruments), n_treatments = instruments.shape, endogenous.shape[1]
        if n_instruments < n_treatments:
            raise DataError(
                f"a treatment of {len(_levels(treatment))} levels has {n_treatments} columns, and {n_instruments} of "
                "the instruments do not identify them. Pass as many instruments, or use another method."
            )
        total = 1 + n_covariates + n_instruments
        if n_treatments > 1 and 2 * total > n_rows:
            raise DataError(f"the first stage has {total} columns for {n_rows} rows; give at least {2 * total} rows.")
        return endogenous, instruments

    def _check_data(self, data: IVData) -> None:
        n_rows, n_covariates = data.covariates.shape
        check_instrument(data, "two-stage least squares", use_instrument=self.use_instrument)
        images = [block.name for block in data.schema.blocks if block.kind is BlockKind.image]
        if images:
            raise DataError(
                f"covariates block {images[0]!r} holds images, and two-stage least squares would be linear in every "
                "pixel. Pass features of the images (a few columns), or declare the block as 'vector' to use pixels as "
                "they are, or use another method"
            )
        n_instruments = data.instruments.shape[1] if self.use_instrument else 0
        within = Within.of(data.schema, data.covariates, data.weights)
        if within:
            n_covariates = len(ordinary_columns(data.schema, within.names))
        # Absorbed indicators have exact coefficients whatever the number of their rows.
        least = within.dof() + 2 * (n_covariates + n_instruments)
        if least > n_rows:
            raise DataError(
                f"two-stage least squares with {n_covariates} covariate columns, {n_instruments} instruments and "
                f"{n_rows} rows is not meaningful; give at least {least} rows, fewer columns, or use another method"
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

    fitted_class = FittedTSLS
    saved_parts = (TSLSConfig,)

    # Nothing is random here.
    random_state = 0

    use_instrument: bool = True
    treatment_kind: RoleKind = "auto"
    outcome_kind: RoleKind = "auto"
    covariance: Covariance = "auto"

    def _config(self) -> TSLSConfig:
        return TSLSConfig(self.use_instrument)


def _levels(treatment: Variable) -> tuple[Level, ...]:
    """The levels of a treatment that is neither a number nor binary."""
    return (treatment.levels or ()) if treatment.kind is BlockKind.categorical else ()


def _treatment_names(treatment: Variable) -> list[str]:
    return [f"{treatment.name}={level}" for level in _levels(treatment)[1:]] or [treatment.name]


def _treatment_columns(treatment: Variable, values: np.ndarray) -> np.ndarray:
    """The treatment, or indicators of all its levels but the first, the most frequent one; `(n, k)`."""
    levels = _levels(treatment)
    return np.asarray(values[:, None] == np.arange(1, len(levels)) if levels else values[:, None], dtype=np.float64)


def _regressors(
    schema: Schema, covariates: np.ndarray, absorbed: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Which covariates enter the regression; their columns in double precision; their names."""
    kept, names = ordinary_columns(schema, absorbed), schema.flat_names
    # Without a copy if these are all: long tables are large.
    taken = covariates[:, kept] if len(kept) < schema.n_covariates else covariates
    return np.asarray(kept, dtype=np.intp), np.asarray(taken, dtype=np.float64), [names[column] for column in kept]


def _net(
    within: Within, data: IVData, covariates: np.ndarray, endogenous: np.ndarray, instruments: np.ndarray | None
) -> tuple[IVData, np.ndarray, np.ndarray, np.ndarray | None]:
    """The outcome and all columns net of absorbed indicators; as they are if there are none."""
    if not within:
        return data, covariates, endogenous, instruments
    outcome = within.residual(np.asarray(data.outcome, np.float64))
    excluded = None if instruments is None else within.residual(instruments)
    return replace(data, outcome=outcome), within.residual(covariates), within.residual(endogenous), excluded


def _spread_effects(schema: Schema, effects: LevelEffects, own: np.ndarray, coefficients: np.ndarray) -> float:
    """Set the coefficients of absorbed indicators, relative to each first level; their sum is the intercept."""
    intercept, start = 0.0, 0
    blocks = {block.name: block for block in schema.blocks}
    for name, size in zip(effects.names, effects.sizes, strict=True):
        block, of_levels = blocks[name], own[start : start + size]
        coefficients[block.start : block.stop] = of_levels - of_levels[0]
        intercept += float(of_levels[0])
        start += size
    return intercept


def _fit_columns(
    data: IVData, covariates: np.ndarray, endogenous: np.ndarray, instruments: np.ndarray | None, n_absorbed: int
) -> LinearFit:
    """Constant, covariates and treatment in this order; refuses columns that others determine."""
    exogenous = np.column_stack([np.ones(data.n_rows), covariates])
    x = np.column_stack([exogenous, endogenous])
    z = None if instruments is None else np.column_stack([exogenous, instruments])
    y = np.asarray(data.outcome, np.float64)
    weights = None if data.weights is None else np.asarray(data.weights, np.float64)
    treatments = slice(exogenous.shape[1], None)
    try:
        found = fit_linear(y, x, z, weights=weights, errors=errors_of(data), n_absorbed=n_absorbed, interest=treatments)
    except np.linalg.LinAlgError as error:
        raise DataError(
            f"two-stage least squares cannot be computed: {error}. Some columns are exact linear "
            "combinations of others (a repeated column, a constant one, indicators that add up to 1, or an "
            "instrument that the covariates determine): remove the redundant columns."
        ) from error
    if found.mended:
        tell_mended()
    return found


def _fit_linearmodels(
    data: IVData, covariates: np.ndarray, names: list[str], endogenous: np.ndarray, instruments: np.ndarray | None
) -> Any:
    import pandas as pd  # a dependency of linearmodels; slow to import, so only here
    from linearmodels.iv import IV2SLS

    constant = "const"
    while constant in names:
        constant = f"_{constant}"
    # linearmodels makes six copies of its own.
    exogenous = pd.DataFrame(covariates, columns=names, copy=False)
    exogenous.insert(0, constant, 1.0)
    treatments = pd.DataFrame(endogenous, columns=_treatment_names(data.schema.treatment))
    outcome = pd.Series(np.asarray(data.outcome, dtype=np.float64), name=data.schema.outcome.name)
    if instruments is None:
        model = IV2SLS(outcome, pd.concat([exogenous, treatments], axis=1), None, None, weights=data.weights)
    else:
        excluded = pd.DataFrame(instruments, columns=list(data.schema.instruments))
        model = IV2SLS(outcome, exogenous, treatments, excluded, weights=data.weights)
    return model.fit(**errors_of(data).linearmodels, debiased=True)
