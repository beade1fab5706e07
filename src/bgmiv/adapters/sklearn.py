"""A regressor for scikit-learn's tools: cross-validation, grid searches, pipelines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bgmiv.adapters import fitted_copy, given, named_columns, one_column, spaced_rows
from bgmiv.data.blocks import level_codes
from bgmiv.data.ivdata import IVData
from bgmiv.data.messages import finite_columns
from bgmiv.data.query import query_at
from bgmiv.data.table import check_known, is_table, read_column, read_columns
from bgmiv.diagnostics.moments import conditions_of, moment_risk
from bgmiv.errors import ConfigError, DataError, MissingExtraError, NotFittedError
from bgmiv.estimators.arguments import checked_arguments

try:
    from sklearn.base import BaseEstimator, RegressorMixin
except ImportError:  # the class still exists, to say what is missing
    BaseEstimator = RegressorMixin = None

__all__ = ["IVRegressor"]

# The cost of the moment grows with the square of its rows.
_MAX_SCORED = 4000

_BASES: tuple[Any, ...] = (RegressorMixin, BaseEstimator) if BaseEstimator is not None else (object,)

Place = str | int


class IVRegressor(*_BASES):  # type: ignore[misc]
    r"""An IV method as a regressor of `y` on one table `X` that holds treatment, instruments and covariates.

    `predict(X)` is the structural function at each row's own treatment and covariates: what the outcome would be if the
    treatment were *set* to its observed value. It is not the best prediction of `y`, which also uses that confounders
    move treatment and outcome together.

    `score(X, y)` is therefore not $R^2$, which prefers confounded fits, but the negative held-out conditional-moment
    risk $-\hat{\|E[(y - g)\, k(c, \cdot)]\|^2} / \operatorname{var}(y)$ with c the instruments and covariates
    (`bgmiv.diagnostics.moments.moment_risk`). Its expectation is 0 for the true structural function and below 0 for any
    other that the instruments can tell from it; estimates may lie a little above 0. The variance is that of the
    training rows. Higher is better, as in all of scikit-learn. Other scorers (`scoring="r2"`) work too.

    Args:
        estimator: a bgmiv method such as `BGMIV()` or `TSLS()`; it is copied, never changed.
        treatment: name or position of the treatment's column in `X`.
        instruments: names or positions of the instruments' columns.
        covariates: names or positions of the covariates' columns; None for all the others, and `[]` for none.
        blocks: declared kinds of covariates, as in `BGMIV.fit_table`; columns of an array are called x0, x1, ...

    Attributes:
        estimator_: the fitted method.
        n_features_in_, feature_names_in_: the columns of `X` at the fit.

    Raises:
        MissingExtraError: scikit-learn is not installed.

    Example:
        >>> from sklearn.model_selection import cross_val_score
        >>> from bgmiv import TSLS
        >>> rng = np.random.default_rng(0)
        >>> w, v, u = rng.normal(size=(3, 900))
        >>> x = w + v + u
        >>> y = 2 * x + v - 2 * u
        >>> columns = np.column_stack([x, w, v])
        >>> with_instrument = IVRegressor(TSLS(), treatment=0, instruments=[1])
        >>> without = IVRegressor(TSLS(use_instrument=False), treatment=0, instruments=[1])
        >>> scores = [cross_val_score(model, columns, y).mean() for model in (with_instrument, without)]
        >>> scores[0] > -0.005 > scores[1]
        np.True_
    """

    def __init__(
        self,
        estimator: Any,
        *,
        treatment: Place = 0,
        instruments: Place | Sequence[Place] = (1,),
        covariates: Place | Sequence[Place] | None = None,
        blocks: Mapping[str, Any] | None = None,
    ) -> None:
        if BaseEstimator is None:
            raise MissingExtraError("IVRegressor needs scikit-learn: pip install 'pybgmiv[sklearn]'")
        self.estimator = estimator
        self.treatment = treatment
        self.instruments = instruments
        self.covariates = covariates
        self.blocks = blocks

    @checked_arguments
    def fit(self, X: Any, y: Any, sample_weight: Any = None, clusters: Any = None) -> Self:
        """Fit a copy of the estimator.

        Args:
            X: a two-dimensional array, or a pandas or polars table.
            y: the outcome.
            sample_weight, clusters: a weight or label for each row, where the estimator takes them.
        """
        features = named_columns(X, "X", "x")
        roles = self._roles(tuple(features))
        columns = {role: {name: features[name] for name in names} for role, names in roles.items()}
        outcome = "outcome" if getattr(y, "name", None) is None else str(y.name)
        columns |= {"outcome": {outcome: one_column(y, "y")}, **given(sample_weight=sample_weight, clusters=clusters)}
        self.estimator_ = fitted_copy(self.estimator, self.blocks, columns)
        self.roles_ = roles
        self.n_features_in_ = len(features)
        if is_table(X):
            self.feature_names_in_ = np.array(list(features), dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The structural function at each row's own treatment and covariates."""
        features = self._features(X)
        return np.asarray(self.estimator_.predict(*self._query(features)))

    def score(self, X: Any, y: Any) -> float:
        """The negative conditional-moment risk on rows that the fit has not seen, as a share of the outcome's variance.

        Of more than 4000 rows, 4000 evenly spaced ones are used.
        """
        features = self._features(X)
        seen: IVData = self.estimator_.data_
        variable = seen.schema.outcome
        query = query_at(seen.schema, *self._query(features))
        names = self.roles_["instruments"]
        instruments = read_columns({name: features[name] for name in names}, "instruments")
        w = finite_columns(instruments.columns).astype(np.float64)
        (column,) = read_column(one_column(y, "y"), "outcome").columns
        if variable.levels:
            outcome = level_codes(column, variable.levels).astype(np.float64)
        else:
            outcome = finite_columns([column])[:, 0].astype(np.float64)
        data = IVData(outcome, query.treatment[0], query.rows.covariates, w, seen.schema)
        rows = spaced_rows(data.n_rows, _MAX_SCORED)
        conditions = conditions_of(data.take(rows))
        errors = variable.columns(data.outcome[rows]) - self.predict(X)[rows].reshape(len(rows), -1)
        risk = sum(moment_risk(error, conditions) for error in errors.T)
        variance = float(np.var(variable.columns(seen.outcome), axis=0, dtype=np.float64).sum())
        return -float(risk) / variance

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may ask of it: a regressor that needs `y` and also takes strings."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.sparse = False
        tags.target_tags.required = True
        return tags

    def _roles(self, names: tuple[str, ...]) -> dict[str, list[str]]:
        """The columns of each role, every column once."""
        treatment = _places(self.treatment, names, "treatment")
        if len(treatment) != 1:
            raise ConfigError(f"treatment must be one column, got {self.treatment!r}.")
        instruments = _places(self.instruments, names, "instruments")
        others = [name for name in names if name not in (*treatment, *instruments)]
        covariates = _places(others if self.covariates is None else self.covariates, names, "covariates")
        used = [*treatment, *instruments, *covariates]
        if repeated := [name for name in used if used.count(name) > 1]:
            raise ConfigError(f"the column {repeated[0]!r} has two roles. Name each column once.")
        return {"treatment": treatment, "instruments": instruments, "covariates": covariates}

    def _query(self, features: dict[str, Any]) -> tuple[Any, dict[str, Any] | None]:
        (treatment,), _, covariates = self.roles_.values()
        return features[treatment], {name: features[name] for name in covariates} or None

    def _features(self, X: Any) -> dict[str, Any]:
        """The columns of new rows, under their names at the fit."""
        if not hasattr(self, "estimator_"):
            raise NotFittedError("this IVRegressor is not fitted yet: call fit(X, y) first.")
        features = named_columns(X, "X", "x")
        if hasattr(self, "feature_names_in_") and is_table(X):
            for name in self.roles_["treatment"] + self.roles_["covariates"]:
                check_known(name, tuple(features))
        elif len(features) != self.n_features_in_:
            raise DataError(f"X has {len(features)} features, but IVRegressor was fitted on {self.n_features_in_}.")
        elif hasattr(self, "feature_names_in_"):
            features = dict(zip(self.feature_names_in_.tolist(), features.values(), strict=True))
        return features


def _places(places: Place | Sequence[Place], names: tuple[str, ...], argument: str) -> list[str]:
    """The names of columns given by name or position."""
    chosen = []
    for place in places if isinstance(places, Iterable) and not isinstance(places, str) else [places]:
        if isinstance(place, bool) or not isinstance(place, str | int | np.integer):
            raise ConfigError(f"{argument} must be names or positions of columns, got {place!r}.")
        try:
            if isinstance(place, str):
                check_known(place, names)
            chosen.append(place if isinstance(place, str) else names[place])
        except DataError as error:
            raise ConfigError(f"{argument}: {error}") from None
        except IndexError:
            raise ConfigError(f"{argument}: there is no column {place}, X has {len(names)}.") from None
    return chosen
