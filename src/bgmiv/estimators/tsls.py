"""Linear two-stage least squares, by linearmodels: the yardstick every other method is held against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bgmiv.data.ivdata import IVData
from bgmiv.data.schema import BlockKind, Schema
from bgmiv.errors import DataError
from bgmiv.estimators.base import IVEstimator
from bgmiv.progress import Reporter, silent

if TYPE_CHECKING:
    import jax

__all__ = ["TSLS", "FittedTSLS", "TSLSConfig"]


@dataclass(frozen=True, eq=False)
class FittedTSLS:
    """A fitted line: outcome = intercept + slope · treatment + covariates · coefficients.

    Attributes
    ----------
    schema : the columns the fit was made from.
    intercept, slope : floats.
    coefficients : (p,) array, one per flat covariate column; 0 for a categorical block's reference level.
    result : the linearmodels result, with standard errors, ``first_stage`` and every test it offers.
    history : empty; there is nothing to iterate.
    """

    schema: Schema
    intercept: float
    slope: float
    coefficients: np.ndarray
    result: Any
    history: tuple[()] = ()

    def predict(self, treatment: Any, covariates: Any = None) -> np.ndarray:
        """The structural function at each row, (m,), in units of the outcome."""
        x, v = self.schema.check_query(treatment, covariates)
        return self.intercept + self.slope * x + v @ self.coefficients


@dataclass(frozen=True)
class TSLSConfig:
    """Two-stage least squares, linear in treatment and covariates, with a constant.

    Standard errors are robust to heteroskedasticity. The first level of a categorical block is its
    reference. Needs at least twice as many rows as covariate columns: below that the first stage
    reproduces the treatment instead of its instrumented part.

    Example
    -------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> cost, shock = rng.normal(size=(2, 4000))
    >>> price = 2.0 + cost + shock
    >>> data = IVData.from_arrays(1.0 - 0.5 * price + shock, price, instruments=cost)
    >>> round(TSLSConfig().fit(data).slope, 1)
    -0.5
    """

    @property
    def name(self) -> str:
        """``"tsls"``."""
        return "tsls"

    def fit(self, data: IVData, key: jax.Array | None = None, reporter: Reporter = silent) -> FittedTSLS:
        """Fit by linearmodels' ``IV2SLS``; ``key`` is not used, there is no randomness."""
        _check_size(data)
        reporter.start("2SLS", 1)
        kept, names = _regressors(data.schema)
        result = _fit_linearmodels(data, kept, names)
        reporter.advance(1, {})
        reporter.finish()
        estimates = np.asarray(result.params, dtype=np.float64)
        coefficients = np.zeros(data.covariates.shape[1])
        coefficients[kept] = estimates[1:-1]
        return FittedTSLS(
            schema=data.schema,
            intercept=float(estimates[0]),
            slope=float(estimates[-1]),
            coefficients=coefficients,
            result=result,
        )


class TSLS(IVEstimator):
    """Linear two-stage least squares in the shape of every other estimator.

    Example
    -------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> cost, shock = rng.normal(size=(2, 4000))
    >>> price = 2.0 + cost + shock
    >>> model = TSLS().fit(1.0 - 0.5 * price + shock, price, instruments=cost)
    >>> model.predict([0.0, 10.0]).round(0)
    array([ 1., -4.])
    """

    # Two-stage least squares has no settings: no randomness, and nothing to wait for.
    random_state = 0
    progress = False

    def __init__(self) -> None:
        """Nothing to set."""

    def _config(self) -> TSLSConfig:
        return TSLSConfig()


def _check_size(data: IVData) -> None:
    n_rows, n_covariates = data.covariates.shape
    if data.instruments.shape[1] == 0:
        raise DataError("two-stage least squares needs an instrument; pass at least one in instruments=")
    if 2 * n_covariates > n_rows:
        raise DataError(
            f"two-stage least squares with {n_covariates} covariate columns and {n_rows} rows is not "
            f"meaningful; give at least {2 * n_covariates} rows, fewer covariates, or use another method"
        )


def _regressors(schema: Schema) -> tuple[np.ndarray, list[str]]:
    """The flat covariate columns that enter the regression, and their names."""
    # A full set of level indicators adds up to the constant; the first level is the reference.
    reference = {block.start for block in schema.blocks if block.kind is BlockKind.categorical}
    kept = [column for column in range(schema.n_covariates) if column not in reference]
    return np.asarray(kept, dtype=np.intp), [schema.flat_names[column] for column in kept]


def _fit_linearmodels(data: IVData, kept: np.ndarray, names: list[str]) -> Any:
    import pandas as pd  # a dependency of linearmodels; slow to import, so only here
    from linearmodels.iv import IV2SLS

    schema = data.schema
    exogenous = pd.DataFrame(np.asarray(data.covariates[:, kept], dtype=np.float64), columns=names)
    exogenous.insert(0, _constant_name(names), 1.0)
    instruments = pd.DataFrame(np.asarray(data.instruments, dtype=np.float64), columns=list(schema.instruments))
    try:
        model = IV2SLS(
            pd.Series(np.asarray(data.outcome, dtype=np.float64), name=schema.outcome.name),
            exogenous,
            pd.Series(np.asarray(data.treatment, dtype=np.float64), name=schema.treatment.name),
            instruments,
        )
        return model.fit(cov_type="robust")
    except (ValueError, np.linalg.LinAlgError) as error:
        raise DataError(
            f"two-stage least squares cannot be computed: {error}. Some columns are exact linear "
            "combinations of others (a repeated column, a constant one, indicators that add up to 1, or an "
            "instrument that the covariates determine); remove the redundant columns"
        ) from error


def _constant_name(names: list[str]) -> str:
    name = "const"
    while name in names:
        name = f"_{name}"
    return name
