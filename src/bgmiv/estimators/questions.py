"""The questions a user asks of a fitted method, with and without intervals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from bgmiv.data.columns import Table
from bgmiv.data.schema import BlockKind
from bgmiv.effects import (
    DoseResponse,
    Interval,
    average_effect,
    dose_response,
    effect,
    interval_of,
    marginal_effect,
    structural_values,
)

__all__ = ["Questions"]

# Rows that stand for all in a share of people.
_MOST_AVERAGED = 1000


class Questions(ABC):
    """`predict`, `effect`, `ate`, `marginal_effect`, `dose_response`, each with an `_interval`, and `in_support`."""

    @abstractmethod
    def _fitted(self) -> Any:
        """The fitted result; raises `NotFittedError` if there is none."""

    @abstractmethod
    def _completed(self) -> Any:
        """The fitted result with what intervals need."""

    @abstractmethod
    def _read(self, covariates: Any) -> Any:
        """Covariates as the fit saw them."""

    @abstractmethod
    def _support(self, treatment: Any, covariates: Any) -> np.ndarray:
        """`in_support` of covariates as the fit saw them."""

    def predict(self, treatment: Any, covariates: Any = None) -> np.ndarray:
        """The structural function at `treatment` (a value or one a row) and `covariates`, in original units.

        After a fit on a table or by a formula, `covariates` may be any table that holds the columns used.

        A treatment with levels is given by their names. For a discrete outcome this is a probability, that of 1 or of
        the second of two sorted levels; for an outcome of K levels, `(n, K)`, one column for each of
        `fitted_.schema.outcome.levels`.
        """
        return self._fitted().predict(*self._asked(treatment, covariates))

    def predict_interval(self, treatment: Any, covariates: Any = None, *, level: float = 0.95) -> Interval:
        """`predict` with an interval at each row.

        Raises:
            ConfigError: the method gives point estimates only.
        """
        x, v = self._asked(treatment, covariates)
        answer = structural_values(self._completed(), x, v, with_sources=True)
        return interval_of(answer, level, in_support=self._support(x, v), probability=self._is_probability())

    def effect(self, covariates: Any = None, *, t0: Any, t1: Any) -> np.ndarray:
        """g(t1, v) - g(t0, v) for every row: what setting the treatment to t1 instead of t0 would change."""
        return effect(self._fitted(), self._read(covariates), t0=t0, t1=t1).values

    def effect_interval(self, covariates: Any = None, *, t0: Any, t1: Any, level: float = 0.95) -> Interval:
        """`effect` with an interval at each row.

        Raises:
            ConfigError: the method gives point estimates only.
        """
        v = self._read(covariates)
        answer = effect(self._completed(), v, t0=t0, t1=t1, with_sources=True)
        return interval_of(answer, level, in_support=self._both_in_support(t0, t1, v))

    def ate(self, covariates: Any = None, *, t0: Any, t1: Any) -> Any:
        """The mean of `effect` over the rows given: a number, or one a level of the outcome."""
        mean = average_effect(self._fitted(), self._read(covariates), t0=t0, t1=t1).values
        return float(mean) if np.ndim(mean) == 0 else mean

    def ate_interval(self, covariates: Any = None, *, t0: Any, t1: Any, level: float = 0.95) -> Interval:
        """`ate` with an interval; `in_support` is the share of rows for which the data show both treatments.

        Raises:
            ConfigError: the method gives point estimates only.
        """
        v = self._read(covariates)
        answer = average_effect(self._completed(), v, t0=t0, t1=t1, with_sources=True)
        return interval_of(answer, level, in_support=float(np.mean(self._both_in_support(t0, t1, v))))

    def marginal_effect(self, treatment: Any, covariates: Any = None, *, step: float) -> np.ndarray:
        """The slope of g in the treatment at each row, over a step in units of the treatment."""
        return marginal_effect(self._fitted(), treatment, self._read(covariates), step=step).values

    def marginal_effect_interval(
        self, treatment: Any, covariates: Any = None, *, step: float, level: float = 0.95
    ) -> Interval:
        """`marginal_effect` with an interval at each row.

        Raises:
            ConfigError: the method gives point estimates only.
        """
        x, v = self._asked(treatment, covariates)
        answer = marginal_effect(self._completed(), x, v, step=step, with_sources=True)
        return interval_of(answer, level, in_support=self._support(x, v))

    def dose_response(self, treatments: Any, covariates: Any = None, *, average: bool = True) -> DoseResponse:
        """g along treatments, averaged over the rows given or for each of them."""
        doses, answer = dose_response(self._fitted(), treatments, self._read(covariates), average=average)
        return DoseResponse(doses, answer.values)

    def dose_response_interval(
        self, treatments: Any, covariates: Any = None, *, average: bool = True, level: float = 0.95
    ) -> Interval:
        """`dose_response` with an interval at each treatment.

        `in_support` is, for an average, the share of rows for which the data show the treatment.

        Raises:
            ConfigError: the method gives point estimates only.
        """
        v = self._read(covariates)
        doses, answer = dose_response(self._completed(), treatments, v, average=average, with_sources=True)
        shares = self._support_along(doses, v, average)
        return interval_of(answer, level, in_support=shares, probability=self._is_probability())

    def in_support(self, treatment: Any, covariates: Any = None) -> np.ndarray:
        """Whether the data show such a treatment at such covariates, for each row; elsewhere g is extrapolated."""
        return self._support(*self._asked(treatment, covariates))

    def _asked(self, treatment: Any, covariates: Any) -> tuple[Any, Any]:
        """Treatment and covariates of a question; without covariates a table still says how many rows there are."""
        read = self._read(covariates)
        if isinstance(read, Table) and not read.columns and (np.isscalar(treatment) or np.ndim(treatment) == 0):
            treatment = np.full(read.n_rows, treatment)
        return treatment, read

    def _both_in_support(self, t0: Any, t1: Any, v: Any) -> np.ndarray:
        return self._support(t0, v) & self._support(t1, v)

    def _support_along(self, doses: np.ndarray, v: Any, average: bool) -> np.ndarray:
        schema = self._fitted().schema
        flat = schema.check_covariates(v, n_rows=None if schema.blocks else 1)
        if average:
            flat = flat[:: -(-len(flat) // _MOST_AVERAGED)]
        rows = flat if schema.blocks else None
        flags = np.stack([self._support(dose, rows) for dose in doses])
        return flags.mean(axis=1) if average else flags

    def _is_probability(self) -> bool:
        return self._fitted().schema.outcome.kind is not BlockKind.continuous
