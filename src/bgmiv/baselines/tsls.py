"""Two-stage least squares: linear, or on a sieve of polynomials or splines, given or cross-validated.

The linear form is the yardstick every other method is held against.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property, partial
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np

from bgmiv.covariance import ErrorsName, LinearFit, covariance_root, errors_of, fit_linear, tell_mended
from bgmiv.data.blocks import Level
from bgmiv.data.ivdata import Covariance, IVData
from bgmiv.data.messages import FloatArray
from bgmiv.data.query import Encoded, Query
from bgmiv.data.schema import BlockKind, RoleKind, Schema
from bgmiv.data.within import LevelEffects, Within, ordinary_columns
from bgmiv.diagnostics.support import LinearSupport
from bgmiv.errors import ConfigError, DataError
from bgmiv.estimators.base import IVEstimator
from bgmiv.estimators.fitted import FittedMethod, MethodConfig, check_instrument, check_one_number
from bgmiv.intervals import Floats, Source
from bgmiv.persist.codec import unsaved
from bgmiv.progress import Reporter, silent

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PRESETS", "TSLS", "Basis", "FittedTSLS", "Indicators", "TSLSConfig"]

_MAX_POINTS = 50_000
_CV_FOLDS = 5
# Degree, kind of functions and knots of the sieves that "cv" compares, each without and with interactions.
_SIEVES = ((1, "polynomial", 1), (2, "polynomial", 1), (3, "polynomial", 1), (2, "spline", 2), (2, "spline", 4))

Columns = dict[str, np.ndarray]


class Basis(NamedTuple):
    """Powers of one variable and, for splines, truncated powers that bend it at knots.

    With t = (value − shift)/scale: t, ..., t^degree, then max(t − knot, 0)^degree for each knot.
    """

    shift: float
    scale: float
    degree: int
    knots: tuple[float, ...]

    @property
    def size(self) -> int:
        """The number of functions."""
        return self.degree + len(self.knots)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """The functions at (n,) values, (n, size)."""
        t = (np.asarray(values, dtype=np.float64) - self.shift) / self.scale
        bends = [np.maximum(t - knot, 0.0) ** self.degree for knot in self.knots]
        return np.column_stack([*(t**power for power in range(1, self.degree + 1)), *bends])


class Indicators(NamedTuple):
    """Indicators of all levels of a categorical treatment but the first, the most frequent one."""

    levels: tuple[Level, ...]

    @property
    def size(self) -> int:
        """The number of functions."""
        return len(self.levels) - 1

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """The functions at (n,) codes, (n, size)."""
        return np.asarray(values[:, None] == np.arange(1, len(self.levels)), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class FittedTSLS(FittedMethod):
    """A fitted structural function: outcome = intercept + covariates · coefficients + a part of the treatment.

    Attributes:
        schema, support: what the fit keeps of its data.
        intercept: of the regression.
        coefficients: `(p,)`, one for each flat covariate column; 0 for a categorical block's reference level.
        basis: the functions of the treatment; for a linear fit the treatment itself, or the indicators of its levels.
        treatment_coefficients: `(size of the basis, 1 + p)`: column 0 holds the main terms, column 1 + j the
            interactions with flat covariate column j.
        covariance: of all coefficients, in the order constant, covariates, treatment, interactions.
        dof: degrees of freedom of that covariance.
        errors: what it allows for: "classical", "robust" or "clustered".
        config: the settings, those chosen where they were cross-validated.
        effects: what is kept of absorbed indicators; None if none are. Their coefficients are among the others.
    """

    closed_form = True

    schema: Schema
    support: LinearSupport
    intercept: float
    coefficients: np.ndarray
    basis: Basis | Indicators
    treatment_coefficients: np.ndarray
    covariance: np.ndarray
    dof: float
    errors: ErrorsName
    config: TSLSConfig
    effects: LevelEffects | None = None
    linearmodels_fit: Callable[[], Any] | None = unsaved()

    def __post_init__(self) -> None:
        # Of a file that anyone may have written: a basis of a billion functions would be computed before it is refused.
        if self.treatment_coefficients.shape != (self.basis.size, 1 + self.schema.n_covariates):
            raise ValueError("its basis and coefficients have different sizes.")
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
        return isinstance(self.basis, Basis) and self.basis.size == 1 and not self.treatment_coefficients[:, 1:].any()

    @property
    def slope(self) -> float:
        """The effect of one unit of treatment, for a fit that is linear without interactions."""
        if self.basis.size > 1 or self.treatment_coefficients[:, 1:].any():
            raise ConfigError(
                "a sieve or a treatment of several levels has no single slope; use predict, or the coefficients in "
                "result.params"
            )
        return float(self.treatment_coefficients[0, 0])

    @property
    def interval_kind(self) -> str:
        """What the intervals are."""
        return f"Intervals from the {self.errors} covariance of the coefficients."

    def encode(self, covariates: FloatArray) -> Encoded:
        """The part of g that does not depend on the treatment, and the coefficients of its functions, by row."""
        by_covariates = self.treatment_coefficients[:, 0] + covariates @ self.treatment_coefficients[:, 1:].T
        return self.intercept + covariates @ self.coefficients, by_covariates

    def at(self, query: Query) -> Floats:
        """The structural function in units of the outcome, `(m, n)`."""
        base, slopes = query.rows.encoded_by(self)
        return query.collect(lambda x, rows: base[rows] + (self.basis(x) * slopes[rows]).sum(axis=1), _MAX_POINTS)

    def factors(self, query: Query) -> tuple[Source, ...]:
        """The sampling uncertainty, by the covariance of the coefficients."""
        effects = self.effects
        absorbed = () if effects is None else effects.names
        kept, covariates, _ = _regressors(self.schema, query.rows.covariates, absorbed)
        interactions = len(self.covariance) > 1 + len(kept) + self.basis.size
        root = covariance_root(self.covariance)

        def moved(x: FloatArray, rows: np.ndarray) -> np.ndarray:
            v, functions = covariates[rows], self.basis(x)
            parts = [np.ones((len(x), 1)), v, functions]
            parts += [functions * column[:, None] for column in v.T] if interactions else []
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
    """Two-stage least squares with a constant: linear in treatment and covariates, or a sieve in the treatment.

    Standard errors are robust to heteroskedasticity, and clustered where the data have groups, unless the data ask for
    another covariance (`IVData.from_arrays`); all have the usual small-sample corrections, and intervals t quantiles.
    Estimates and standard errors do not depend on the units of columns. Sample weights are those of weighted least
    squares; rows of weight zero are left out. The reference of a categorical block or treatment is its most frequent
    level; a treatment needs an instrument for each other level. At least twice as many rows as first-stage columns are
    needed: near that the first stage reproduces the treatment itself.

    The indicators of a categorical covariate with more than 20 levels, or more than an eighth of the rows, are
    absorbed: estimates are those with all indicators, by columns net of them (`bgmiv.data.within`). Standard errors
    then have the usual small-sample correction, which counts the levels; as in pyfixest, a covariate that is nested in
    the groups counts as one. Interactions are not with them.

    A sieve replaces the treatment by functions of it, and each instrument by the same kind of functions of itself.
    They are powers of the standardised variable, named `price[1]`, `price[2]`, ... in `result`; a variable with few
    distinct values gets as many functions as it can carry. Covariates enter linearly. Nothing is shrunk: more functions
    than the instruments can tell apart give wild curves with large standard errors.

    Cross-validation compares, over five folds, the squared errors of outcomes predicted from instruments and covariates
    alone, both stages being fitted on the other folds. Of the sieves whose mean error is above the lowest by no more
    than one standard error of the difference, the one with the fewest columns is taken.

    Args:
        degree: highest power.
        features: "polynomial"; or "spline", which adds truncated powers of that degree at knots; or "cv", which chooses
            among lines, polynomials and splines, without and with interactions, by cross-validation. Then `degree`,
            `knots` and `interactions` are not used, `FittedTSLS.config` has what was chosen, and standard errors do not
            know of the choice.
        knots: number of a spline's knots, at even quantiles.
        interactions: also multiply every function of treatment and instruments with every covariate.
        use_instrument: False ignores the instruments: ordinary least squares on the same columns.

    Example:
        >>> from bgmiv.effects import predict
        >>> rng = np.random.default_rng(0)
        >>> cost, shock = rng.normal(size=(2, 4000))
        >>> price = 2.0 + cost + shock
        >>> data = IVData.from_arrays(price**2 + shock, price, instruments=cost)
        >>> predict(TSLSConfig(degree=2).fit(data), [0.0, 2.0]).round(0) + 0.0
        array([0., 4.])
    """

    degree: int = 1
    features: Literal["polynomial", "spline", "cv"] = "polynomial"
    knots: int = 4
    interactions: bool = False
    use_instrument: bool = True

    def __post_init__(self) -> None:
        if self.degree < 1:
            raise ConfigError(f"degree must be at least 1, got {self.degree}.")
        if self.features not in ("polynomial", "spline", "cv"):
            raise ConfigError(f"features must be 'polynomial', 'spline' or 'cv', got {self.features!r}.")
        if self.knots < 1:
            raise ConfigError(f"knots must be at least 1, got {self.knots}.")

    def fit(self, data: IVData, seed: int = 0, reporter: Reporter = silent) -> FittedTSLS:
        """Fit both stages; `key` is not used, there is no randomness."""
        check_one_number(data, "two-stage least squares")
        if data.weights is not None and not data.weights.all():
            data = data.take(data.weights > 0)
        self._check_data(data)
        reporter.start("2SLS", 1)
        config = self._cross_validated(data) if self.features == "cv" else self
        within = Within.of(data.schema, data.covariates, data.weights)
        kept, covariates, names = _regressors(data.schema, data.covariates, within.names)
        basis, endogenous, instruments = config._columns(data, covariates, names)
        net = _net(within, data, covariates, endogenous, instruments)
        errors = errors_of(data)
        n_absorbed = max(within.dof(data.groups if errors.ways else None) - 1, 0)
        found = _fit_columns(*net, n_absorbed)
        reporter.advance(1, {})
        reporter.finish()

        estimates = found.coefficients
        coefficients = np.zeros(data.covariates.shape[1])
        coefficients[kept] = estimates[1 : 1 + len(kept)]
        by_term = estimates[1 + len(kept) :].reshape(-1, basis.size).T
        treatment_coefficients = np.zeros((basis.size, 1 + data.covariates.shape[1]))
        treatment_coefficients[:, 0] = by_term[:, 0]
        if config.interactions:
            treatment_coefficients[:, 1 + kept] = by_term[:, 1:]
        intercept, effects = float(estimates[0]), None
        if within:
            left = data.n_rows - within.dof(data.groups) - len(estimates) + 1
            structural = np.column_stack([covariates, *endogenous.values()])
            y = np.asarray(data.outcome, np.float64)
            effects = LevelEffects.fit(within, y, lambda rows: [structural[rows]], estimates[1:], left)
            intercept = _spread_effects(data.schema, effects, effects.own_effects(estimates[1:]), coefficients)
        return FittedTSLS(
            schema=data.schema,
            support=LinearSupport.fit(data),
            intercept=intercept,
            coefficients=coefficients,
            basis=basis,
            treatment_coefficients=treatment_coefficients,
            covariance=found.covariance,
            dof=found.dof,
            errors=errors.name,
            config=config,
            effects=effects,
            linearmodels_fit=partial(_fit_linearmodels, net[0], net[1], names, *net[2:]),
        )

    def _columns(
        self, data: IVData, covariates: np.ndarray, names: list[str]
    ) -> tuple[Basis | Indicators, Columns, list[Columns] | None]:
        """The functions of the treatment, their columns, and those of each instrument; refuses too many of them."""
        treatment = data.schema.treatment
        basis: Basis | Indicators = self._basis(data.treatment)
        if treatment.kind is BlockKind.categorical and treatment.levels:
            basis = Indicators(treatment.levels)
        endogenous = self._expand(basis, data.treatment, treatment.name, covariates, names)
        if not self.use_instrument:
            return basis, endogenous, None
        instruments = [
            self._expand(self._basis(values), values, name, covariates, names)
            for values, name in zip(data.instruments.T, data.schema.instruments, strict=True)
        ]
        _check_order(data, len(names), len(endogenous), sum(map(len, instruments)))
        return basis, endogenous, instruments

    def _cross_validated(self, data: IVData) -> TSLSConfig:
        """The settings of the sieve that cross-validation chooses."""
        within = Within.of(data.schema, data.covariates, data.weights)
        _, covariates, names = _regressors(data.schema, data.covariates, within.names)
        weights = np.ones(data.n_rows) if data.weights is None else np.asarray(data.weights, np.float64)
        groups = np.arange(data.n_rows) if data.groups is None else np.unique(data.groups, return_inverse=True)[1]
        n_groups = int(groups.max()) + 1
        if n_groups < 2:
            # No row could be predicted by rows of other groups.
            return replace(self, degree=1, features="polynomial", interactions=False)
        folds = (np.random.default_rng(0).permutation(n_groups) % _CV_FOLDS)[groups]
        found: list[tuple[TSLSConfig, int, np.ndarray]] = []
        for (degree, features, knots), interactions in product(_SIEVES, (False, True)):
            config = TSLSConfig(degree, cast(Any, features), knots, interactions, self.use_instrument)
            try:
                _, endogenous, instruments = config._columns(data, covariates, names)
            # Cross-validation cannot choose what these rows or instruments do not carry.
            except DataError:
                continue
            net, controls, endogenous, instruments = _net(within, data, covariates, endogenous, instruments)
            exogenous = np.column_stack([np.ones(data.n_rows), controls])
            x = np.column_stack([exogenous, *endogenous.values()])
            z = x
            if instruments is not None:
                z = np.column_stack([exogenous, *(column for each in instruments for column in each.values())])
            losses = weights * _left_out_errors(net.outcome, x, z, weights, folds) ** 2
            found.append((config, x.shape[1], np.bincount(groups, losses, n_groups)))
        found.sort(key=lambda entry: entry[1])
        lowest = min(found, key=lambda entry: entry[2].sum())[2] if found else None
        for config, _, losses in found:
            worse = losses - lowest
            if worse.sum() <= worse.std(ddof=1) * n_groups**0.5:
                return config
        return replace(self, degree=1, features="polynomial", interactions=False)

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

    def _basis(self, values: np.ndarray) -> Basis:
        # The plain line stays in the units of the data, so that its coefficients are the familiar ones.
        if self.degree == 1 and self.features == "polynomial":
            return Basis(0.0, 1.0, 1, ())
        values = np.asarray(values, dtype=np.float64)
        shift, scale = float(values.mean()), float(values.std())
        distinct = len(np.unique(values))
        if self.features == "polynomial" or distinct <= self.degree + self.knots:
            return Basis(shift, scale, min(self.degree, distinct - 1), ())
        quantiles = np.quantile((values - shift) / scale, np.arange(1, self.knots + 1) / (self.knots + 1))
        return Basis(shift, scale, self.degree, tuple(np.unique(quantiles).tolist()))

    def _expand(
        self, basis: Basis | Indicators, values: np.ndarray, name: str, covariates: np.ndarray, names: list[str]
    ) -> Columns:
        """The functions of one variable, then their products with each covariate in turn."""
        if isinstance(basis, Indicators):
            labels = [f"{name}={level}" for level in basis.levels[1:]]
        else:
            plain = self.degree == 1 and self.features == "polynomial"
            labels = [name] if plain else [f"{name}[{i}]" for i in range(1, basis.size + 1)]
        functions = dict(zip(labels, basis(values).T, strict=True))
        columns = dict(functions)
        for covariate, covariate_name in zip(covariates.T, names, strict=True) if self.interactions else ():
            columns |= {f"{label}:{covariate_name}": function * covariate for label, function in functions.items()}
        return columns


PRESETS = {"default": TSLSConfig}


@dataclass(eq=False, repr=False)
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
    saved_parts = (TSLSConfig, Basis, Indicators)

    # Nothing is random here.
    random_state = 0

    degree: int = 1
    features: Literal["polynomial", "spline", "cv"] = "polynomial"
    _: KW_ONLY
    knots: int = 4
    interactions: bool = False
    use_instrument: bool = True
    treatment_kind: RoleKind = "auto"
    outcome_kind: RoleKind = "auto"
    covariance: Covariance = "auto"

    def _config(self) -> TSLSConfig:
        return TSLSConfig(self.degree, self.features, self.knots, self.interactions, self.use_instrument)


def _regressors(
    schema: Schema, covariates: np.ndarray, absorbed: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Which covariates enter the regression; their columns in double precision; their names."""
    kept, names = ordinary_columns(schema, absorbed), schema.flat_names
    # Without a copy if these are all: long tables are large.
    taken = covariates[:, kept] if len(kept) < schema.n_covariates else covariates
    return np.asarray(kept, dtype=np.intp), np.asarray(taken, dtype=np.float64), [names[column] for column in kept]


def _net(
    within: Within, data: IVData, covariates: np.ndarray, endogenous: Columns, instruments: list[Columns] | None
) -> tuple[IVData, np.ndarray, Columns, list[Columns] | None]:
    """The outcome and all columns net of absorbed indicators; as they are if there are none."""
    if not within:
        return data, covariates, endogenous, instruments

    def net(columns: Columns) -> Columns:
        left = within.residual(np.column_stack(list(columns.values())))
        return dict(zip(columns, left.T, strict=True))

    outcome = within.residual(np.asarray(data.outcome, np.float64))
    excluded = None if instruments is None else [net(columns) for columns in instruments]
    return replace(data, outcome=outcome), within.residual(covariates), net(endogenous), excluded


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


def _check_order(data: IVData, n_covariates: int, n_treatments: int, n_instruments: int) -> None:
    levels = data.schema.treatment.levels
    if n_instruments < n_treatments and levels and len(levels) > 2:
        raise DataError(
            f"a treatment of {len(levels)} levels has {n_treatments} columns, and {n_instruments} of the instruments "
            "do not identify them. Pass as many instruments, raise the degree, or use another method."
        )
    if n_instruments < n_treatments:
        raise DataError(
            f"the sieve has {n_treatments} columns of the treatment but only {n_instruments} of the instruments, which "
            "take too few distinct values; lower the degree, or use fewer knots"
        )
    total = 1 + n_covariates + n_instruments
    if n_treatments > 1 and 2 * total > data.n_rows:
        raise DataError(
            f"the sieve's first stage has {total} columns for {data.n_rows} rows; give at least {2 * total} rows, or "
            "lower the degree, use fewer knots, or leave out the interactions"
        )


def _left_out_errors(
    outcome: np.ndarray, x: np.ndarray, z: np.ndarray, weights: np.ndarray, folds: np.ndarray
) -> np.ndarray:
    """What instruments and covariates z leave of each row's outcome, both stages fitted on the other folds."""
    roots = np.sqrt(weights)[:, None]
    x, z = (columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300) for columns in (x, z))
    y, errors = np.asarray(outcome, np.float64), np.empty(len(x))
    for fold in range(_CV_FOLDS):
        rest, own = folds != fold, folds == fold
        first = np.linalg.lstsq(roots[rest] * z[rest], roots[rest] * x[rest], rcond=None)[0]
        fitted = roots[rest] * (z[rest] @ first)
        second = np.linalg.lstsq(fitted, roots[rest, 0] * y[rest], rcond=None)[0]
        errors[own] = y[own] - z[own] @ first @ second
    return errors


def _fit_columns(
    data: IVData, covariates: np.ndarray, endogenous: Columns, instruments: list[Columns] | None, n_absorbed: int
) -> LinearFit:
    """Constant, covariates and treatment in this order; refuses columns that others determine."""
    exogenous = np.column_stack([np.ones(data.n_rows), covariates])
    x, z = np.column_stack([exogenous, *endogenous.values()]), None
    if instruments is not None:
        z = np.column_stack([exogenous, *(column for each in instruments for column in each.values())])
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
    data: IVData, covariates: np.ndarray, names: list[str], endogenous: Columns, instruments: list[Columns] | None
) -> Any:
    import pandas as pd  # a dependency of linearmodels; slow to import, so only here
    from linearmodels.iv import IV2SLS

    constant = "const"
    while constant in names:
        constant = f"_{constant}"
    # linearmodels makes six copies of its own.
    exogenous = pd.DataFrame(covariates, columns=names, copy=False)
    exogenous.insert(0, constant, 1.0)
    treatments = pd.DataFrame(endogenous)
    outcome = pd.Series(np.asarray(data.outcome, dtype=np.float64), name=data.schema.outcome.name)
    if instruments is None:
        model = IV2SLS(outcome, pd.concat([exogenous, treatments], axis=1), None, None, weights=data.weights)
    else:
        excluded = pd.concat([pd.DataFrame(columns) for columns in instruments], axis=1)
        model = IV2SLS(outcome, exogenous, treatments, excluded, weights=data.weights)
    return model.fit(**errors_of(data).linearmodels, debiased=True)
