"""Two-stage least squares, by linearmodels: linear, or on a sieve of polynomials or splines.

The linear form is the yardstick every other method is held against.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from bgmiv.data.blocks import Level
from bgmiv.data.ivdata import IVData
from bgmiv.data.roles import RoleKind
from bgmiv.data.schema import BlockKind, Schema
from bgmiv.effects import Source
from bgmiv.errors import ConfigError, DataError
from bgmiv.estimators.base import IVEstimator
from bgmiv.estimators.checks import check_one_number
from bgmiv.progress import Reporter, silent

if TYPE_CHECKING:
    import jax
    import pandas as pd

__all__ = ["TSLS", "Basis", "FittedTSLS", "Indicators", "TSLSConfig"]


class Basis(NamedTuple):
    """Powers of one variable and, for splines, truncated powers that bend it at knots.

    With t = (value − shift)/scale: t, ..., t^degree, then max(t − knot, 0)^degree for each knot.

    >>> Basis(0.0, 1.0, 2, (1.0,))(np.array([3.0]))
    array([[3., 9., 4.]])
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
    """Indicators of all levels of a categorical treatment but the first, the most frequent one.

    >>> Indicators(("none", "low", "high"))(np.array([0.0, 2.0]))
    array([[0., 0.],
           [0., 1.]])
    """

    levels: tuple[Level, ...]

    @property
    def size(self) -> int:
        """The number of functions."""
        return len(self.levels) - 1

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """The functions at (n,) codes, (n, size)."""
        return np.asarray(values[:, None] == np.arange(1, len(self.levels)), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class FittedTSLS:
    """A fitted structural function: outcome = intercept + covariates · coefficients + a part of the treatment.

    Attributes
    ----------
    schema : the columns the fit was made from.
    intercept : float.
    coefficients : (p,) array, one per flat covariate column; 0 for a categorical block's reference level.
    basis : the functions of the treatment; for a linear fit the treatment itself, or the indicators of its levels.
    treatment_coefficients : (size of the basis, 1 + p) array: column 0 holds the main terms, column 1 + j the
        interactions with flat covariate column j.
    result : the linearmodels result, with standard errors, ``first_stage`` and every test it offers.
    history : empty; there is nothing to iterate.
    """

    schema: Schema
    intercept: float
    coefficients: np.ndarray
    basis: Basis | Indicators
    treatment_coefficients: np.ndarray
    result: Any
    history: tuple[()] = ()

    @property
    def slope(self) -> float:
        """The effect of one unit of treatment, for a fit that is linear without interactions."""
        if self.basis.size > 1 or self.treatment_coefficients[:, 1:].any():
            raise ConfigError(
                "a sieve or a treatment of several levels has no single slope; use predict, or the coefficients in "
                "result.params"
            )
        return float(self.treatment_coefficients[0, 0])

    def predict(self, treatment: Any, covariates: Any = None) -> np.ndarray:
        """The structural function at each row, (m,), in units of the outcome."""
        x, v = self.schema.check_query(treatment, covariates)
        by_covariates = self.treatment_coefficients[:, 0] + v @ self.treatment_coefficients[:, 1:].T
        return self.intercept + v @ self.coefficients + (self.basis(x) * by_covariates).sum(axis=1)

    @property
    def interval_kind(self) -> str:
        """What the intervals are."""
        clustered = "clustered" in str(self.result.cov_type).lower()
        return f"Intervals by the {'clustered' if clustered else 'robust'} covariance of the coefficients."

    def deviations(self, treatment: Any, covariates: Any = None) -> tuple[Source, ...]:
        """The sampling uncertainty of `predict`, by the covariance of the coefficients."""
        x, v = self.schema.check_query(treatment, covariates)
        kept, _ = _regressors(self.schema)
        functions = self.basis(x)
        parts = [np.ones((len(x), 1)), v[:, kept], functions]
        if len(self.result.params) > 1 + len(kept) + self.basis.size:
            parts += [functions * v[:, [column]] for column in kept]
        values, vectors = np.linalg.eigh(np.asarray(self.result.cov, np.float64))
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return (Source("sampling", (np.hstack(parts) @ root).T, np.inf),)


@dataclass(frozen=True)
class TSLSConfig:
    """Two-stage least squares with a constant: linear in treatment and covariates, or a sieve in the treatment.

    Standard errors are robust to heteroskedasticity, and clustered where the data have groups. Sample weights are those
    of weighted least squares; rows of weight zero are left out. The first level of a categorical block, the most
    frequent one, is its reference; so it is with a categorical treatment, which needs an instrument for each other
    level. Needs at least twice as many rows as columns of the first stage: near that the first stage reproduces the
    treatment instead of its instrumented part.

    A sieve replaces the treatment by functions of it, and each instrument by the same kind of functions of itself,
    so that there are as many instruments as endogenous columns. They are powers of the standardised variable, named
    ``price[1]``, ``price[2]``, ... in ``result``; a variable with few distinct values gets as many functions as it can
    carry. Covariates enter linearly. Nothing is shrunk: more functions than the instruments can tell apart give wild
    curves with large standard errors, so keep the degree and the knots few.

    Arguments
    ---------
    degree : highest power.
    features : "polynomial"; or "spline", which adds truncated powers of that degree at knots.
    knots : number of a spline's knots, at even quantiles.
    interactions : also multiply every function of treatment and instruments with every covariate.
    use_instrument : False gives the no-IV twin, ordinary least squares on the same columns.

    Example
    -------
    >>> rng = np.random.default_rng(0)
    >>> cost, shock = rng.normal(size=(2, 4000))
    >>> price = 2.0 + cost + shock
    >>> data = IVData.from_arrays(1.0 - 0.5 * price + shock, price, instruments=cost)
    >>> round(TSLSConfig().fit(data).slope, 1)
    -0.5
    >>> curved = IVData.from_arrays(price**2 + shock, price, instruments=cost)
    >>> TSLSConfig(degree=2).fit(curved).predict([0.0, 2.0]).round(0) + 0.0
    array([0., 4.])
    """

    degree: int = 1
    features: Literal["polynomial", "spline"] = "polynomial"
    knots: int = 4
    interactions: bool = False
    use_instrument: bool = True

    def __post_init__(self) -> None:
        """Refuse settings that cannot act."""
        if self.degree < 1:
            raise ConfigError(f"degree must be at least 1, got {self.degree}.")
        if self.features not in ("polynomial", "spline"):
            raise ConfigError(f"features must be 'polynomial' or 'spline', got {self.features!r}.")
        if self.knots < 1:
            raise ConfigError(f"knots must be at least 1, got {self.knots}.")

    @property
    def name(self) -> str:
        """``"tsls"``."""
        return "tsls"

    def fit(self, data: IVData, key: jax.Array | None = None, reporter: Reporter = silent) -> FittedTSLS:
        """Fit by linearmodels' ``IV2SLS``; ``key`` is not used, there is no randomness."""
        check_one_number(data, "two-stage least squares")
        if data.weights is not None and not data.weights.all():
            data = data.take(data.weights > 0)
        self._check_data(data)
        reporter.start("2SLS", 1)
        kept, names = _regressors(data.schema)
        covariates = np.asarray(data.covariates[:, kept], dtype=np.float64)
        basis = self._treatment_basis(data)
        endogenous = self._expand(basis, data.treatment, data.schema.treatment.name, covariates, names)
        instruments = None
        if self.use_instrument:
            instruments = self._instruments(data, covariates, names)
            _check_order(data, len(names), endogenous, instruments)
        result = _fit_linearmodels(data, covariates, names, endogenous, instruments)
        reporter.advance(1, {})
        reporter.finish()

        estimates = np.asarray(result.params, dtype=np.float64)
        coefficients = np.zeros(data.covariates.shape[1])
        coefficients[kept] = estimates[1 : 1 + len(kept)]
        by_term = estimates[1 + len(kept) :].reshape(-1, basis.size).T
        treatment_coefficients = np.zeros((basis.size, 1 + data.covariates.shape[1]))
        treatment_coefficients[:, 0] = by_term[:, 0]
        if self.interactions:
            treatment_coefficients[:, 1 + kept] = by_term[:, 1:]
        return FittedTSLS(
            schema=data.schema,
            intercept=float(estimates[0]),
            coefficients=coefficients,
            basis=basis,
            treatment_coefficients=treatment_coefficients,
            result=result,
        )

    def _check_data(self, data: IVData) -> None:
        n_rows, n_covariates = data.covariates.shape
        if self.use_instrument and data.instruments.shape[1] == 0:
            raise DataError("two-stage least squares needs an instrument; pass at least one in instruments=")
        images = [block.name for block in data.schema.blocks if block.kind is BlockKind.image]
        if images:
            raise DataError(
                f"covariates block {images[0]!r} holds images, and two-stage least squares would be linear in every "
                "pixel. Pass features of the images (a few columns), or declare the block as 'vector' to use pixels as "
                "they are, or use another method"
            )
        if 2 * n_covariates > n_rows:
            raise DataError(
                f"two-stage least squares with {n_covariates} covariate columns and {n_rows} rows is not "
                f"meaningful; give at least {2 * n_covariates} rows, fewer covariates, or use another method"
            )

    def _treatment_basis(self, data: IVData) -> Basis | Indicators:
        variable = data.schema.treatment
        if variable.kind is BlockKind.categorical and variable.levels:
            return Indicators(variable.levels)
        return self._basis(data.treatment)

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

    def _instruments(self, data: IVData, covariates: np.ndarray, names: list[str]) -> pd.DataFrame:
        import pandas as pd

        parts = []
        for values, name in zip(data.instruments.T, data.schema.instruments, strict=True):
            parts.append(self._expand(self._basis(values), values, name, covariates, names))
        return pd.concat(parts, axis=1)

    def _expand(
        self, basis: Basis | Indicators, values: np.ndarray, name: str, covariates: np.ndarray, names: list[str]
    ) -> pd.DataFrame:
        """The functions of one variable, then their products with each covariate in turn."""
        import pandas as pd

        functions = basis(values)
        if isinstance(basis, Indicators):
            labels = [f"{name}={level}" for level in basis.levels[1:]]
        else:
            plain = self.degree == 1 and self.features == "polynomial"
            labels = [name] if plain else [f"{name}[{i}]" for i in range(1, basis.size + 1)]
        columns = dict(zip(labels, functions.T, strict=True))
        for covariate, covariate_name in zip(covariates.T, names, strict=True) if self.interactions else ():
            for label, function in zip(labels, functions.T, strict=True):
                columns[f"{label}:{covariate_name}"] = function * covariate
        return pd.DataFrame(columns)


class TSLS(IVEstimator):
    """Two-stage least squares in the shape of every other estimator; `TSLSConfig` explains the arguments.

    `treatment_kind` and `outcome_kind` are those of `IVData.from_arrays`.

    Example
    -------
    >>> rng = np.random.default_rng(0)
    >>> cost, shock = rng.normal(size=(2, 4000))
    >>> price = 2.0 + cost + shock
    >>> model = TSLS().fit(1.0 - 0.5 * price + shock, price, instruments=cost)
    >>> model.predict([0.0, 10.0]).round(0)
    array([ 1., -4.])
    """

    # No randomness, and nothing to wait for.
    random_state = 0
    progress = False

    def __init__(
        self,
        degree: int = 1,
        features: Literal["polynomial", "spline"] = "polynomial",
        *,
        knots: int = 4,
        interactions: bool = False,
        use_instrument: bool = True,
        treatment_kind: RoleKind = "auto",
        outcome_kind: RoleKind = "auto",
    ) -> None:
        """Store the arguments; they are checked by `fit`."""
        self.treatment_kind = treatment_kind
        self.outcome_kind = outcome_kind
        self.degree = degree
        self.features = features
        self.knots = knots
        self.interactions = interactions
        self.use_instrument = use_instrument

    def _config(self) -> TSLSConfig:
        return TSLSConfig(self.degree, self.features, self.knots, self.interactions, self.use_instrument)


def _regressors(schema: Schema) -> tuple[np.ndarray, list[str]]:
    """The flat covariate columns that enter the regression, and their names."""
    # A full set of level indicators adds up to the constant; the first level is the reference.
    reference = {block.start for block in schema.blocks if block.kind is BlockKind.categorical}
    kept = [column for column in range(schema.n_covariates) if column not in reference]
    return np.asarray(kept, dtype=np.intp), [schema.flat_names[column] for column in kept]


def _check_order(data: IVData, n_covariates: int, endogenous: pd.DataFrame, instruments: pd.DataFrame) -> None:
    n_treatments, n_instruments = endogenous.shape[1], instruments.shape[1]
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


def _fit_linearmodels(
    data: IVData, covariates: np.ndarray, names: list[str], endogenous: pd.DataFrame, instruments: pd.DataFrame | None
) -> Any:
    import pandas as pd  # a dependency of linearmodels; slow to import, so only here
    from linearmodels.iv import IV2SLS

    exogenous = pd.DataFrame(covariates, columns=names)
    exogenous.insert(0, _constant_name(names), 1.0)
    outcome = pd.Series(np.asarray(data.outcome, dtype=np.float64), name=data.schema.outcome.name)
    try:
        if instruments is None:
            model = IV2SLS(outcome, pd.concat([exogenous, endogenous], axis=1), None, None, weights=data.weights)
        else:
            model = IV2SLS(outcome, exogenous, endogenous, instruments, weights=data.weights)
        if data.groups is not None:
            return model.fit(cov_type="clustered", clusters=data.groups)
        return model.fit(cov_type="robust")
    except (ValueError, np.linalg.LinAlgError) as error:
        raise DataError(
            f"two-stage least squares cannot be computed: {error}. Some columns are exact linear "
            "combinations of others (a repeated column, a constant one, indicators that add up to 1, or an "
            "instrument that the covariates determine): remove the redundant columns. Or a column's numbers are very "
            "large or very small beside 1: change its units"
        ) from error


def _constant_name(names: list[str]) -> str:
    name = "const"
    while name in names:
        name = f"_{name}"
    return name
