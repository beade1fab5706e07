"""A regressor for scikit-learn's tools: cross-validation, grid searches, pipelines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from bgmiv.adapters.columns import fit_arguments, named_columns, one_column, unused_name
from bgmiv.data.checks import check_finite, numeric
from bgmiv.data.columns import read_column
from bgmiv.data.encode import level_codes
from bgmiv.data.frames import check_known, is_table
from bgmiv.data.ivdata import IVData
from bgmiv.errors import ConfigError, DataError, MissingExtraError, NotFittedError
from bgmiv.trust.moments import conditions_of, moment_risk

try:
    from sklearn.base import BaseEstimator, RegressorMixin
except ImportError:  # the class is still there to say what is missing
    BaseEstimator = RegressorMixin = None

__all__ = ["IVRegressor"]

# The moment's cost grows with the square of its rows.
_MOST_SCORED = 4000

_BASES: tuple[Any, ...] = (RegressorMixin, BaseEstimator) if BaseEstimator is not None else (object,)

Place = str | int


class _Roles(NamedTuple):
    treatment: str
    instruments: tuple[str, ...]
    covariates: tuple[str, ...]


class IVRegressor(*_BASES):  # type: ignore[misc]
    r"""An IV method as a regressor of `y` on one table `X` that holds treatment, instruments and covariates.

    `predict(X)` is the structural function at each row's own treatment and covariates: what the outcome would be if the
    treatment were *set* to the value that is seen. It is not the best guess of `y`, which also uses that confounders
    move treatment and outcome together.

    `score(X, y)` is therefore not $R^2$, which prefers confounded fits, but the negative held-out conditional-moment
    risk $-\hat{\|E[(y - g)\, k(c, \cdot)]\|^2} / \operatorname{var}(y)$ with c the instruments and covariates
    (`bgmiv.trust.moments.moment_risk`). Its expectation is 0 for the true structural function, and below 0 for any
    other that the instruments can tell from it; estimates may lie a little above 0. The variance is that of the rows
    of the fit. Higher is better, as scikit-learn's searches want it. Other scorers (`scoring="r2"`) work too.

    Args:
        estimator: a bgmiv method such as `BGMIV()` or `TSLS()`; it is cloned, never changed.
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
        """Store the arguments; they are checked by `fit`."""
        if BaseEstimator is None:
            raise MissingExtraError(
                "IVRegressor needs scikit-learn, which is not installed: pip install 'bgmiv[sklearn]'"
            )
        self.estimator = estimator
        self.treatment = treatment
        self.instruments = instruments
        self.covariates = covariates
        self.blocks = blocks

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Fit a clone of the estimator.

        Args:
            X: a two-dimensional array, or a pandas or polars table.
            y: the outcome.
            sample_weight: a weight for each row, where the estimator takes weights.
            groups: a label for each row, where the estimator takes groups (rows that were drawn together).

        Returns:
            The fitted regressor itself.
        """
        from sklearn.base import clone

        if not (hasattr(self.estimator, "fit_table") and hasattr(self.estimator, "get_params")):
            raise ConfigError(f"estimator must be a bgmiv method such as BGMIV() or TSLS(), got {self.estimator!r}.")
        features = named_columns(X, "X", "x")
        roles = self._roles(tuple(features))
        used = (roles.treatment, *roles.instruments, *roles.covariates)
        outcome = unused_name("outcome" if getattr(y, "name", None) is None else str(y.name), features)
        data = {name: features[name] for name in used} | {outcome: one_column(y, "y")}
        model = clone(self.estimator)
        more = fit_arguments(model, data, sample_weight, groups)
        model.fit_table(
            data,
            outcome=outcome,
            treatment=roles.treatment,
            instruments=list(roles.instruments),
            covariates=list(roles.covariates),
            blocks=self.blocks,
            **more,
        )
        self._note_columns(X, features)
        self.estimator_ = model
        self.roles_ = roles
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The structural function at each row's own treatment and covariates."""
        model, features = self._fitted(X)
        asked = {name: features[name] for name in self.roles_.covariates}
        return np.asarray(model.predict(features[self.roles_.treatment], asked or None))

    def score(self, X: Any, y: Any) -> float:
        """The negative conditional-moment risk on rows that the fit has not seen, as a share of the outcome's variance.

        Of more than 4000 rows, 4000 evenly spaced ones are used.
        """
        model, _ = self._fitted(X)
        seen: IVData = model.data_
        data, predicted = self._held_out(X, y), self.predict(X)
        rows = np.unique(np.linspace(0, data.n_rows - 1, min(data.n_rows, _MOST_SCORED)).astype(int))
        conditions = conditions_of(data.take(rows))
        variable = seen.schema.outcome
        errors = variable.columns(data.outcome[rows]) - predicted[rows].reshape(len(rows), -1)
        risk = sum(moment_risk(column, conditions) for column in errors.T)
        variance = float(np.var(variable.columns(seen.outcome), axis=0, dtype=np.float64).sum())
        return -float(risk) / max(variance, np.finfo(float).tiny)

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may ask of it: a regressor that needs `y` and also takes strings."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.sparse = False
        tags.target_tags.required = True
        return tags

    def _roles(self, names: tuple[str, ...]) -> _Roles:
        treatment = _places(self.treatment, names, "treatment")
        if len(treatment) != 1:
            raise ConfigError(f"treatment must be one column, got {self.treatment!r}.")
        instruments = _places(self.instruments, names, "instruments")
        if not instruments:
            raise ConfigError("instruments are missing: name at least one column.")
        taken = {*treatment, *instruments}
        if self.covariates is None:
            covariates = tuple(name for name in names if name not in taken)
        else:
            covariates = _places(self.covariates, names, "covariates")
        everything = (*treatment, *instruments, *covariates)
        for name in everything:
            if everything.count(name) > 1:
                raise ConfigError(f"the column {name!r} has two roles. Name each column once.")
        return _Roles(treatment[0], instruments, covariates)

    def _note_columns(self, X: Any, features: Mapping[str, Any]) -> None:
        self.n_features_in_ = len(features)
        if is_table(X):
            self.feature_names_in_ = np.array(list(features), dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _fitted(self, X: Any) -> tuple[Any, dict[str, Any]]:
        if not hasattr(self, "estimator_"):
            raise NotFittedError("this IVRegressor is not fitted yet: call fit(X, y) first.")
        features = named_columns(X, "X", "x")
        if hasattr(self, "feature_names_in_") and is_table(X):
            for name in (self.roles_.treatment, *self.roles_.covariates):
                check_known(name, tuple(features))
        elif len(features) != self.n_features_in_:
            raise DataError(f"X has {len(features)} features, but IVRegressor was fitted on {self.n_features_in_}.")
        elif hasattr(self, "feature_names_in_"):
            features = dict(zip(self.feature_names_in_.tolist(), features.values(), strict=True))
        return self.estimator_, features

    def _held_out(self, X: Any, y: Any) -> IVData:
        model, features = self._fitted(X)
        schema = model.data_.schema
        asked = {name: features[name] for name in self.roles_.covariates}
        x, v = schema.check_query(*model._asked(features[self.roles_.treatment], asked or None))
        w = np.column_stack([_numbers(features[name], f"instrument {name!r}") for name in self.roles_.instruments])
        column, _ = read_column(one_column(y, "y"), "outcome")
        levels = schema.outcome.levels
        found = level_codes(column, levels, "outcome") if levels else _numbers(column.values, "outcome")
        return IVData(found.astype(np.float64), x, v, w, schema)


def _places(places: Place | Sequence[Place], names: tuple[str, ...], argument: str) -> tuple[str, ...]:
    listed = list(places) if isinstance(places, Iterable) and not isinstance(places, str) else [places]
    found = []
    for place in listed:
        if isinstance(place, int | np.integer) and not isinstance(place, bool):
            if not -len(names) <= place < len(names):
                raise ConfigError(f"{argument}: there is no column {place}, X has {len(names)}.")
            found.append(names[place])
        elif isinstance(place, str):
            if place not in names:
                try:
                    check_known(place, names)
                except DataError as error:
                    raise ConfigError(f"{argument}: {error}") from None
            found.append(place)
        else:
            raise ConfigError(f"{argument} must be names or positions of columns, got {place!r}.")
    return tuple(found)


def _numbers(values: Any, name: str) -> NDArray[np.float64]:
    array = np.asarray(numeric(read_column(values, name)[0].values, name), np.float64)
    check_finite(array[:, None], [name])
    return array
