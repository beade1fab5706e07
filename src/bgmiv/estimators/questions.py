"""The questions a user asks of a fitted method, with and without intervals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np

from bgmiv.data.ivdata import IVData
from bgmiv.data.messages import warn_user
from bgmiv.data.query import Query, Rows, query_along, query_at, rows_of
from bgmiv.data.schema import Schema
from bgmiv.data.table import Table
from bgmiv.effects import DoseResponse, FitRows, Method, average_effect, contrast, estimate_at, interval_at, slope_query
from bgmiv.effects import average as average_over
from bgmiv.errors import ConfigError, DataError, SupportWarning, WeakInstrumentWarning
from bgmiv.estimators.arguments import checked_arguments
from bgmiv.fitted import FittedMethod
from bgmiv.intervals import ANDERSON_RUBIN, Band, Estimate, Interval, interval_of

__all__ = ["WEAK_NOTE", "QuestionsMixin", "WhichRows"]

WhichRows = Literal["all", "treated", "untreated"]
"""The rows of the fit that are averaged over: all, those that have the treatment t1, or those that have t0."""

WEAK_NOTE = "The instruments are too weak for this interval: it is too narrow."
"""Of intervals that do not allow for weak instruments."""

# Below this share of rows in support a point estimate is given with a warning.
_MIN_SUPPORT = 0.5
_MAX_SUPPORT_ROWS = 250


class QuestionsMixin(ABC):
    """`predict`, `effect`, `ate`, `marginal_effect`, `dose_response`, each with an `_interval`, and `in_support`.

    Averages (`ate`, `dose_response`) are taken over the rows of the fit unless other covariates are given. Beyond
    100,000 rows so many, drawn in proportion to weight, stand for all; what this leaves open is the standard error
    "rows" of an interval. Their intervals are for the rows at hand: what other rows of the same population would have
    as covariates does not enter. Intervals raise `ConfigError` for a method that gives point estimates only. Where the
    instruments are weak, those that are too narrow for it say so in `note`.
    """

    data_: IVData | None

    @abstractmethod
    def _fitted(self) -> FittedMethod:
        """The fitted result; raises `NotFittedError` if there is none."""

    @abstractmethod
    def _completed(self) -> FittedMethod:
        """The fitted result with what intervals need."""

    @abstractmethod
    def _instrumented_rows(self) -> FitRows | None:
        """The rows of the fit, if the estimator still has them and uses their instruments."""

    @abstractmethod
    def _weak(self) -> bool:
        """Whether the instruments of these rows are so weak that an average effect has a robust set."""

    @abstractmethod
    def _read(self, covariates: Any) -> Any:
        """Covariates as the fit saw them."""

    @abstractmethod
    def _fit_rows(self) -> Rows | None:
        """The rows of the fit, if the estimator still has them."""

    def predict(self, treatment: Any, covariates: Any = None) -> np.ndarray:
        """The structural function at `treatment` (a value or one a row) and `covariates`, in original units.

        After a fit on a table or by a formula, `covariates` may be any table that holds the columns used.

        A treatment with levels is given by their names. For a discrete outcome this is a probability, that of 1 or of
        the second of two sorted levels; for an outcome of K levels, `(n, K)`, one column for each of
        `fitted_.schema.outcome.levels`.

        Warns:
            SupportWarning: most rows lie where the data show nothing, so that the answer is an extrapolation.
        """
        query = self._query_at(treatment, covariates)
        self._warn_outside(query)
        return np.asarray(estimate_at(self._fitted(), query).values[0])

    def predict_interval(
        self, treatment: Any, covariates: Any = None, *, level: float = 0.95, band: Band = "pointwise"
    ) -> Interval:
        """`predict` with an interval at each row, or with a uniform band that holds g at all rows at once."""
        query = self._query_at(treatment, covariates)
        fitted = self._completed()
        shown: dict[str, Any] = {"probability": _is_probability(fitted.schema), "band": band}
        return self._of_rows(interval_at(fitted, query, level, _first, **shown))

    def effect(self, covariates: Any = None, *, t0: Any, t1: Any) -> np.ndarray:
        """g(t1, v) - g(t0, v) for every row: what setting the treatment to t1 instead of t0 would change."""
        query = self._query_pair(t0, t1, covariates)
        self._warn_outside(query)
        return contrast(estimate_at(self._fitted(), query)).values

    def effect_interval(self, covariates: Any = None, *, t0: Any, t1: Any, level: float = 0.95) -> Interval:
        """`effect` with an interval at each row."""
        return self._of_rows(interval_at(self._completed(), self._query_pair(t0, t1, covariates), level, contrast))

    @checked_arguments
    def ate(
        self, covariates: Any = None, *, t0: Any, t1: Any, sample_weight: Any = None, rows: WhichRows = "all"
    ) -> Any:
        """The mean of `effect` over rows: a number, or one a level of the outcome.

        Args:
            covariates: the rows averaged over; by default those of the fit, with its sample weights.
            t0, t1: a treatment for all rows or one a row.
            sample_weight: sampling weights, how many rows of the population each row stands for.
            rows: "treated" for the rows of the fit whose treatment is t1, "untreated" for those whose treatment is t0;
                for a treatment with levels.

        Raises:
            DataError: treated or untreated rows are asked for, and the treatment is a number, other covariates are
                given, or this is a loaded model without rows.
        """
        query = self._query_average(t0, t1, covariates, sample_weight, rows)
        found = average_over(self._fitted(), query)
        self._warn_share(found.support_of(0, 1))
        mean = contrast(found.estimate).values
        return float(mean) if np.ndim(mean) == 0 else mean

    @checked_arguments
    def ate_interval(
        self,
        covariates: Any = None,
        *,
        t0: Any,
        t1: Any,
        sample_weight: Any = None,
        rows: WhichRows = "all",
        level: float = 0.95,
        method: Method = "auto",
    ) -> Interval:
        """`ate` with an interval; `in_support` is the share of rows for which the data show both treatments.

        It is an interval for the mean over these rows, not over the population that they were drawn from.

        Args:
            covariates, t0, t1, sample_weight, rows: as in `ate`.
            level: of the interval.
            method: "usual", by the method's own standard errors; "robust", the ends of an Anderson-Rubin set, which are
                valid however weak the instruments are and may be infinite; "auto" takes the robust set where the
                effective F is below its critical value (with one instrument, below 104.7), and the usual interval
                elsewhere. The interval's `method` says which it is.

        Warns:
            SupportWarning: most rows lie where the data show nothing, so that the answer is an extrapolation.
            WeakInstrumentWarning: the robust set is wanted, and this is a loaded model without the rows of it.
        """
        query = self._query_average(t0, t1, covariates, sample_weight, rows)
        own, fitted, weak = self._instrumented_rows(), self._completed(), self._weak()
        if weak and own is None and method == "auto":
            warn_user(
                "the instruments are too weak for this interval: it is too narrow, and a loaded model has no rows for "
                "the robust set. Give them with attach_data(table).",
                WeakInstrumentWarning,
            )
        found = average_effect(fitted, query, level, own, method=method, weak=weak)
        self._warn_share(float(found.in_support))
        # Where the robust set could have been given and was not, the usual interval is good enough.
        schema = fitted.schema
        judged = method == "auto" and own is not None and schema.treatment.width == schema.outcome.width == 1
        return replace(found, note="") if judged else self._noted(found)

    def marginal_effect(self, treatment: Any, covariates: Any = None, *, step: float) -> np.ndarray:
        """The slope of g in the treatment at each row, over a step in units of the treatment."""
        query = self._query_slope(treatment, covariates, step)
        self._warn_outside(query)
        return contrast(estimate_at(self._fitted(), query)).values / step

    def marginal_effect_interval(
        self, treatment: Any, covariates: Any = None, *, step: float, level: float = 0.95
    ) -> Interval:
        """`marginal_effect` with an interval at each row."""
        query = self._query_slope(treatment, covariates, step)
        return self._of_rows(
            interval_at(
                self._completed(), query, level, lambda found: contrast(found).map(lambda values: values / step)
            )
        )

    @checked_arguments
    def dose_response(
        self, treatments: Any, covariates: Any = None, *, average: bool = True, sample_weight: Any = None
    ) -> DoseResponse:
        """g along treatments, averaged over rows or for each of them.

        Args:
            treatments: `(m,)` numbers or levels.
            covariates: the rows; by default those of the fit, with its sample weights.
            average: the mean over rows, or each row's own curve.
            sample_weight: sampling weights, how many rows of the population each row stands for.
        """
        query = self._query_along(treatments, covariates, sample_weight)
        shown = np.atleast_1d(np.asarray(treatments))
        if not average:
            return DoseResponse(shown, estimate_at(self._fitted(), query).values)
        return DoseResponse(shown, average_over(self._fitted(), query).estimate.values)

    @checked_arguments
    def dose_response_interval(
        self,
        treatments: Any,
        covariates: Any = None,
        *,
        average: bool = True,
        sample_weight: Any = None,
        level: float = 0.95,
        band: Band = "pointwise",
    ) -> Interval:
        """`dose_response` with an interval at each treatment, or with a uniform band that holds the whole curve.

        `in_support` is, for an average, the share of rows for which the data show the treatment.
        """
        query = self._query_along(treatments, covariates, sample_weight)
        fitted = self._completed()
        labels = tuple(np.atleast_1d(np.asarray(treatments)).tolist())
        shown: dict[str, Any] = {"probability": _is_probability(fitted.schema), "labels": labels, "band": band}
        if not average:
            return self._noted(
                interval_at(fitted, query, level, lambda found: found, axis=1, **shown), "treatment", "row"
            )
        found = average_over(fitted, query, intervals=True)
        return self._noted(interval_of(found.estimate, level, in_support=found.support, **shown), "treatment")

    def in_support(self, treatment: Any, covariates: Any = None) -> np.ndarray:
        """Whether the data show such a treatment at such covariates, for each row; elsewhere g is extrapolated."""
        return self._fitted().in_support(self._query_at(treatment, covariates))[0]

    def _query_at(self, treatment: Any, covariates: Any) -> Query:
        """One treatment a row; without covariates a table still says how many rows there are."""
        schema, read = self._fitted().schema, self._read(covariates)
        if isinstance(read, Table) and not read.columns and np.ndim(treatment) == 0:
            treatment = np.full(read.n_rows, treatment)
        return query_at(schema, treatment, read)

    def _query_pair(self, t0: Any, t1: Any, covariates: Any, weights: Any = None, *, of_fit: bool = False) -> Query:
        """Two treatments for every row, each one for all rows or one a row."""
        if np.ndim(t0) == 0 and np.ndim(t1) == 0:
            return self._query_along([t0, t1], covariates, weights, of_fit=of_fit)
        rows = self._rows(covariates, weights, of_fit=of_fit, n_rows=max(np.size(t0), np.size(t1)))
        schema = self._fitted().schema
        return Query(np.stack([schema.check_treatment(t, len(rows)) for t in (t0, t1)]), rows)

    def _query_average(self, t0: Any, t1: Any, covariates: Any, weights: Any, rows: WhichRows) -> Query:
        """Two treatments for the rows that are averaged over."""
        if rows not in get_args(WhichRows):
            raise ConfigError(f"rows must be one of {', '.join(map(repr, get_args(WhichRows)))}, got {rows!r}.")
        if rows == "all":
            return self._query_pair(t0, t1, covariates, weights, of_fit=True)
        schema = self._fitted().schema
        if not schema.treatment.discrete:
            raise DataError(
                f"treatment {schema.treatment.name!r} is a number: no rows are the {rows} ones. Give the rows that you "
                "mean as covariates."
            )
        if covariates is not None or np.ndim(t0) or np.ndim(t1):
            raise DataError(f"rows={rows!r} is for the rows of the fit, and one t0 and t1. Leave covariates out.")
        if self.data_ is None:
            raise DataError(f"rows={rows!r} needs the rows of the fit. Give them with attach_data(table).")
        query = self._query_pair(t0, t1, None, weights, of_fit=True)
        wanted = query.treatment[1 if rows == "treated" else 0, 0]
        chosen = np.flatnonzero(np.asarray(self.data_.treatment) == wanted)
        if not len(chosen):
            raise DataError(f"no row of the fit has the treatment {(t1 if rows == 'treated' else t0)!r}.")
        # Without covariates one row stands for all.
        return query.take(chosen) if schema.blocks else query

    def _query_along(self, treatments: Any, covariates: Any, weights: Any = None, *, of_fit: bool = True) -> Query:
        return query_along(self._fitted().schema, treatments, self._rows(covariates, weights, of_fit=of_fit))

    def _query_slope(self, treatment: Any, covariates: Any, step: float) -> Query:
        return slope_query(self._fitted(), treatment, self._read(covariates), step)

    def _rows(self, covariates: Any, weights: Any, *, of_fit: bool, n_rows: int = 1) -> Rows:
        """The rows asked about: those given, or those of the fit."""
        schema = self._fitted().schema
        if covariates is None and of_fit and schema.blocks:
            own = self._fit_rows()
            if own is not None:
                return rows_of(schema, own, weights=weights)
        return rows_of(schema, self._read(covariates), n_rows=None if schema.blocks else n_rows, weights=weights)

    def _warn_outside(self, query: Query) -> None:
        few = query.drawn(_MAX_SUPPORT_ROWS)
        self._warn_share(float(np.mean(self._fitted().in_support(few) @ few.rows.shares)))

    def _of_rows(self, found: Interval) -> Interval:
        """Intervals of single rows, with a warning where most are extrapolations."""
        self._warn_share(float(np.mean(found.in_support)))
        return self._noted(found, "row")

    def _noted(self, found: Interval, *axes: str) -> Interval:
        """With the names of its axes, and a note where weak instruments make it too narrow."""
        outcome = self._fitted().schema.outcome
        levels = tuple(outcome.levels or ()) if outcome.width > 1 else ()
        note = WEAK_NOTE if found.method != ANDERSON_RUBIN and self._weak() else ""
        return replace(found, note=note, axes=(*axes, "level") if levels else axes, levels=levels)

    def _warn_share(self, share: float) -> None:
        if share < _MIN_SUPPORT:
            warn_user(
                f"{share:.0%} of the rows are in the support of the data at these treatments: elsewhere the answer is "
                "an extrapolation. in_support(...) says where.",
                SupportWarning,
            )


def _first(estimate: Estimate) -> Estimate:
    return estimate.map(lambda values: values[0])


def _is_probability(schema: Schema) -> bool:
    return schema.outcome.discrete
