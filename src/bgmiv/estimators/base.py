"""The estimator plug, and the scikit-learn-shaped face that every method shows to a user."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import jax
import numpy as np
from jax import Array

from bgmiv.data.checks import warn_user
from bgmiv.data.formulas import FormulaReader, from_formula
from bgmiv.data.frames import ColumnReader, Missing, from_frame, is_table, table_rows
from bgmiv.data.ivdata import IVData
from bgmiv.data.roles import RoleKind
from bgmiv.data.schema import Schema
from bgmiv.errors import BGMIVError, ConfigError, FitWarning, NotFittedError
from bgmiv.estimators.questions import Questions
from bgmiv.estimators.showing import Showing
from bgmiv.progress import Reporter, RichReporter, silent
from bgmiv.train.history import HistoryRow
from bgmiv.trust.support import LinearSupport
from bgmiv.trust.verdict import Verdict

__all__ = [
    "BatchEstimator",
    "Estimator",
    "FittedIV",
    "IVEstimator",
    "chosen_preset",
]

C = TypeVar("C")


class FittedIV(Protocol):
    """A fitted method."""

    @property
    def schema(self) -> Schema:
        """What the method was fitted on."""

    @property
    def history(self) -> tuple[HistoryRow, ...]:
        """Training history; empty for methods in closed form."""

    def predict(self, treatment: Any, covariates: Any = None) -> np.ndarray:
        """The structural function g(treatment, covariates) in original units, `(n,)`.

        For a binary outcome it is the probability of 1 or of the second of `schema.outcome.levels`; for one of K levels
        `(n, K)`, the probability of each of `schema.outcome.levels`.
        """


class Estimator(Protocol):
    """A method: a frozen config that fits."""

    def fit(self, data: IVData, key: Array, reporter: Reporter = silent) -> FittedIV:
        """Fit on validated data with explicit randomness."""


@runtime_checkable
class BatchEstimator(Protocol):
    """The optional part of the plug: a method that can train on data sets of one shape together.

    Example:
        >>> from bgmiv.estimators.bgmiv import BGMIVConfig
        >>> isinstance(BGMIVConfig(), BatchEstimator)
        True
    """

    def fit_many(
        self, data: Sequence[IVData], keys: Sequence[Array], reporter: Reporter = silent
    ) -> tuple[FittedIV | BGMIVError, ...]:
        """What `fit` gives for each data set with its key, up to rounding, in the given order.

        A data set whose own fit would have failed has the error in its place; the others are not touched by it.

        Raises:
            DataError: the data sets differ in schema or number of rows (`check_together`).
        """


def chosen_preset(presets: Mapping[str, Callable[[], C]], name: str) -> C:
    """The config of a preset; an unknown name is an error that lists the known ones.

    Example:
        >>> chosen_preset({"default": dict}, "default")
        {}
    """
    if name not in tuple(presets):
        raise ConfigError(f"preset must be one of {', '.join(presets)}, got {name!r}.")
    return presets[name]()


class IVEstimator(Questions, Showing, ABC):
    """What users call: `fit`, `fit_table`, `from_formula`, `predict` and the other questions, `history_`, `get_params`.

    A final subclass gives `__init__` (which only stores its arguments under their own names) and `_config`.
    """

    random_state: int | None
    progress: bool
    formula_: str
    n_dropped_: int

    @abstractmethod
    def _config(self) -> Estimator:
        """The frozen config these parameters stand for; raises `ConfigError` for bad ones."""

    def fit(
        self,
        outcome: Any,
        treatment: Any,
        *,
        instruments: Any,
        covariates: Any = None,
        blocks: Any = None,
        weights: Any = None,
        groups: Any = None,
    ) -> Self:
        """Fit the structural function.

        Args:
            outcome: `(n,)` numbers or levels.
            treatment: `(n,)` numbers or levels, endogenous.
            instruments: one or several columns that move the treatment and touch the outcome only through it.
            covariates: array, frame, or mapping of names to columns (2-D entries are vector blocks).
            blocks: declared kinds of covariate columns, as in `IVData.from_arrays`.
            weights: `(n,)` sample weights, how many rows each row stands for.
            groups: `(n,)` groups of rows that are not independent of one another, for intervals and tests.

        Returns:
            The fitted estimator itself.
        """
        config = self._config()
        data = IVData.from_arrays(
            outcome,
            treatment,
            instruments=instruments,
            covariates=covariates,
            blocks=blocks,
            weights=weights,
            groups=groups,
            **self._kinds(),
        )
        return self._fit(config, data)

    def fit_table(
        self,
        data: Any,
        *,
        outcome: str,
        treatment: str,
        instruments: str | Sequence[str],
        covariates: str | Sequence[str] | None = None,
        missing: Missing = "raise",
        blocks: Any = None,
        weights: str | None = None,
        groups: str | None = None,
    ) -> Self:
        """Fit the structural function on columns of a table, by name.

        `predict` then takes any table that holds the covariates' columns.

        Args:
            data: a pandas, polars or pyarrow table, or a mapping of names to arrays.
            outcome: a column's name.
            treatment: a column's name.
            instruments: one or more columns' names.
            covariates: columns' names; strings are categorical, booleans binary.
            missing: "raise" to refuse missing values in these columns, "drop" to leave out rows that have one.
            blocks: declared kinds of covariate columns, as in `IVData.from_arrays`.
            weights: the name of the column of sample weights, how many rows each row stands for.
            groups: the name of the column of groups of rows that are not independent of one another.

        Returns:
            The fitted estimator itself.
        """
        config = self._config()
        found = from_frame(
            data,
            outcome=outcome,
            treatment=treatment,
            instruments=instruments,
            covariates=covariates,
            missing=missing,
            blocks=blocks,
            weights=weights,
            groups=groups,
            **self._kinds(),
        )
        names = tuple(name for block in found.schema.blocks for name in block.input_names)
        self._fit(config, found, ColumnReader(names))
        self.n_dropped_ = table_rows(data) - found.n_rows
        return self

    @classmethod
    def from_formula(
        cls,
        formula: str,
        data: Any,
        *,
        missing: Missing = "raise",
        blocks: Any = None,
        weights: str | None = None,
        groups: str | None = None,
        **params: Any,
    ) -> Self:
        """Fit a new estimator by a formula, such as `"lwage ~ exper + C(region) + [educ ~ nearc4]"`.

        `predict` then takes any table that holds the covariates' untransformed columns. What is set by `predict` is the
        formula's treatment: for `[np.log(price) ~ cost]` the logarithm.

        Args:
            formula: `outcome ~ covariates + [treatment ~ instruments]`; `bgmiv.data.formulas.from_formula` says what
                terms there are.
            data: a pandas, polars or pyarrow table, or a mapping of names to arrays.
            missing: "raise" to refuse missing values in the columns used, "drop" to leave out rows that have one.
            blocks: declared kinds of covariates, by the names of their terms.
            weights: the name of the column of sample weights, how many rows each row stands for.
            groups: the name of the column of groups of rows that are not independent of one another.
            **params: the estimator's arguments.

        Returns:
            A fitted estimator.
        """
        unknown = [name for name in params if name not in cls._parameter_names()]
        if unknown:
            known = ", ".join(cls._parameter_names())
            raise ConfigError(f"{cls.__name__} has no parameter '{unknown[0]}'; it has {known}.")
        model = cls(**params)
        config = model._config()
        found, reader = from_formula(
            formula, data, missing=missing, blocks=blocks, weights=weights, groups=groups, **model._kinds()
        )
        model._fit(config, found, reader)
        model.formula_, model.n_dropped_ = formula, table_rows(data) - found.n_rows
        return model

    def _kinds(self) -> dict[str, RoleKind]:
        return {name: getattr(self, name, "auto") for name in ("treatment_kind", "outcome_kind")}

    def _fit(self, config: Estimator, data: IVData, reader: ColumnReader | FormulaReader | None = None) -> Self:
        seed = self._seed()
        if self.progress:
            with RichReporter(type(self).__name__) as reporter:
                fitted = config.fit(data, jax.random.key(seed), reporter)
        else:
            fitted = config.fit(data, jax.random.key(seed))
        self.fitted_ = fitted
        self.seed_ = seed
        self.reader_ = reader
        self.data_: IVData | None = data
        # What was derived from an earlier fit.
        for name in ("support_", "analysis_", "diagnosis_", "twin_", "formula_", "n_dropped_"):
            vars(self).pop(name, None)
        self._warn(getattr(fitted, "verdict", None))
        return self

    def _warn(self, verdict: Verdict | None) -> None:
        """Say aloud what a verdict on the fit holds against it; that nothing could be checked is in the result only."""
        if verdict is not None and verdict.level != "good" and verdict.evidence.n_held_out:
            warn_user(f"the fit of this {type(self).__name__} is {verdict}", FitWarning)

    def _read(self, covariates: Any) -> Any:
        """Covariates as the fit saw them: those of a table by name, through the terms of a formula if there was one."""
        reader = getattr(self, "reader_", None)
        if reader is None or covariates is None or not is_table(covariates):
            return covariates
        return reader.covariates(covariates)

    def _support(self, treatment: Any, covariates: Any) -> np.ndarray:
        fitted = self._completed()
        x, v = fitted.schema.check_query(treatment, covariates)
        own = getattr(fitted, "inside", None)
        if own is not None:
            return own(x, v)
        if not hasattr(self, "support_"):
            assert self.data_ is not None
            self.support_ = LinearSupport.fit(self.data_)
        return self.support_.inside(x, v)

    def _completed(self) -> FittedIV:
        """The fitted result with what intervals need of the data, worked out when first asked for."""
        complete = getattr(self._fitted(), "with_uncertainty", None)
        data = getattr(self, "data_", None)
        if complete is not None and data is not None:
            self.fitted_ = complete(data)
        return self._fitted()

    @property
    def history_(self) -> tuple[HistoryRow, ...]:
        """Training history: phase, step and mean losses of each chunk."""
        return self._fitted().history

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments."""
        return {name: getattr(self, name) for name in self._parameter_names()}

    def set_params(self, **params: Any) -> Self:
        """Change constructor arguments; unknown names are an error."""
        known = self._parameter_names()
        for name, value in params.items():
            if name not in known:
                raise ConfigError(f"{type(self).__name__} has no parameter '{name}'; it has {', '.join(known)}.")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        """The arguments that differ from their defaults."""
        defaults = inspect.signature(type(self).__init__).parameters
        shown = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if repr(value) != repr(defaults[name].default)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _fitted(self) -> FittedIV:
        fitted: FittedIV | None = getattr(self, "fitted_", None)
        if fitted is None:
            raise NotFittedError(
                f"this {type(self).__name__} is not fitted yet: call fit(outcome, treatment, instruments=..., "
                "covariates=...) first."
            )
        return fitted

    def _seed(self) -> int:
        if self.random_state is None:
            return int(np.random.SeedSequence().generate_state(1)[0])
        if isinstance(self.random_state, bool) or not isinstance(self.random_state, int | np.integer):
            raise ConfigError(f"random_state must be a whole number or None, got {self.random_state!r}.")
        if not 0 <= self.random_state < 2**32:
            raise ConfigError(f"random_state must lie in [0, 2**32), got {self.random_state}.")
        return int(self.random_state)

    @classmethod
    def _parameter_names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]
