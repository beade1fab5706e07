"""What a user asks of a fitted method: effects with intervals, checks, and the analysis to read and to show others."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

import numpy as np

from bgmiv._io import check_file, check_process
from bgmiv.analysis import plots
from bgmiv.analysis.analysis import Analysis, AnalysisArguments, AnalysisRequest
from bgmiv.analysis.build import FitOnRows
from bgmiv.analysis.page import write_report
from bgmiv.arrays import Floats
from bgmiv.data.formula import FormulaReader
from bgmiv.data.ivdata import IVData
from bgmiv.data.messages import warn_user
from bgmiv.data.query import Query, Rows, query_along, query_at, rows_of
from bgmiv.data.table import ColumnReader, Table, is_table
from bgmiv.diagnostics.checks import Diagnosis
from bgmiv.diagnostics.sensitivity import Sensitivity, sensitivity
from bgmiv.diagnostics.verdict import Verdict, verdict_of
from bgmiv.effects import DoseResponse, Method, average_effect, contrast, estimate_at, interval_at, slope_query
from bgmiv.effects import average as average_over
from bgmiv.errors import ConfigError, DataError, NotFittedError, SupportWarning, WeakInstrumentWarning
from bgmiv.estimators.arguments import checked_arguments, unknown_argument
from bgmiv.estimators.calibration import Calibration, calibrate
from bgmiv.executors import Executor, InProcess
from bgmiv.fitted import FittedMethod
from bgmiv.intervals import ANDERSON_RUBIN, Band, Estimate, Interval, check_level, interval_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["WEAK_NOTE", "QuestionsMixin", "RandomState", "WhichRows"]

WhichRows = Literal["all", "treated", "untreated"]
"""The rows of the fit that are averaged over: all, those that have the treatment t1, or those that have t0."""

RandomState = int | np.random.Generator | np.random.SeedSequence | None
"""Where the seed of a fit comes from."""

WEAK_NOTE = "The instruments are too weak for this interval: it is too narrow."
"""Of intervals that do not allow for weak instruments."""

# Below this share of rows in support a point estimate is given with a warning.
_MIN_SUPPORT, _MAX_SUPPORT_ROWS = 0.5, 250

_NO_ROWS = (
    "this model was loaded and holds no rows, which this question needs. Give them with attach_data(table), or ask "
    "before saving."
)


class QuestionsMixin:
    """`predict`, `effect`, `ate`, `marginal_effect`, `dose_response`, each with an `_interval`, and `in_support`.

    Averages (`ate`, `dose_response`) are taken over the rows of the fit unless other covariates are given. Beyond
    100,000 rows so many, drawn in proportion to weight, stand for all; what this leaves open is the standard error
    "rows" of an interval. Their intervals are for the rows at hand: what other rows of the same population would have
    as covariates does not enter. Intervals raise `ConfigError` for a method that gives point estimates only. Where the
    instruments are weak, those that are too narrow for it say so in `note`.
    """

    fitted_: FittedMethod
    data_: IVData | None
    reader_: ColumnReader | FormulaReader | None
    sampling_: dict[str, str]
    """Names of the columns of weights and clusters, where there are any: "weights", "groups", "second_groups"."""
    random_state: RandomState = 0
    """Without meaning where nothing is random."""
    progress: bool | None = None
    saved_analysis_: Analysis | None = None
    """The analysis that a loaded model was saved with."""
    _on_rows: FitOnRows | None = None

    def _fitted(self) -> FittedMethod:
        """The fitted result."""
        if not hasattr(self, "fitted_"):
            raise NotFittedError(
                f"this {type(self).__name__} is not fitted yet: call fit(outcome, treatment, instruments=..., "
                "covariates=...) first."
            )
        if self.fitted_.compiled:
            check_process()
        return self.fitted_

    def _read(self, covariates: Any) -> Any:
        """Covariates as the fit saw them: those of a table by name, through the terms of a formula if there was one."""
        reader = self.reader_
        if reader is None or covariates is None or not is_table(covariates):
            return covariates
        return reader.covariates(covariates)

    def _with_rows(self) -> FitOnRows:
        """The fit with its rows; raises `DataError` if this is a loaded model without any."""
        self._fitted()
        if self._on_rows is None:
            raise DataError(_NO_ROWS)
        return self._on_rows

    def _weak(self) -> bool:
        """Whether the instruments of these rows are so weak that an average effect has a robust set."""
        known = self._on_rows or self.saved_analysis_
        return known is not None and known.weak

    def predict(self, treatment: Any, covariates: Any = None) -> Floats:
        """The structural function at `treatment` (a value or one a row) and `covariates`, in original units.

        After a fit on a table or by a formula, `covariates` may be any table that holds the columns used.

        A treatment with levels is given by their names. For a discrete outcome this is a probability, that of 1 or of
        the second of two sorted levels; for an outcome of K levels, `(n, K)`, one column for each of
        `fitted_.schema.outcome.levels`.

        Warns:
            SupportWarning: most rows lie where the data show nothing, so that the answer is an extrapolation.
        """
        return self._of_rows(self._query_at(treatment, covariates), _first)

    @checked_arguments
    def predict_interval(
        self, treatment: Any, covariates: Any = None, *, level: float = 0.95, band: Band = "pointwise"
    ) -> Interval:
        """`predict` with an interval at each row, or with a uniform band that holds g at all rows at once."""
        query, discrete = self._query_at(treatment, covariates), self._fitted().schema.outcome.discrete
        return self._interval_of_rows(query, _first, level, probability=discrete, band=band)

    @checked_arguments
    def effect(self, covariates: Any = None, *, t0: Any, t1: Any) -> Floats:
        """g(t1, v) - g(t0, v) for every row: what setting the treatment to t1 instead of t0 would change.

        Args:
            covariates: the rows; by default those of the fit.
            t0, t1: a treatment for all rows or one a row.
        """
        return self._of_rows(self._query_pair(t0, t1, covariates), contrast)

    @checked_arguments
    def effect_interval(self, covariates: Any = None, *, t0: Any, t1: Any, level: float = 0.95) -> Interval:
        """`effect` with an interval at each row."""
        return self._interval_of_rows(self._query_pair(t0, t1, covariates), contrast, level)

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
        averages = average_over(self._fitted(), query)
        self._warn_share(averages.support_of(0, 1))
        mean = contrast(averages.estimate).values
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
        own = None if self._on_rows is None else self._on_rows.instrumented
        fitted = self._fitted()
        if own is None and method == "auto" and self._weak():
            warn_user(
                "the instruments are too weak for this interval: it is too narrow, and a loaded model has no rows for "
                "the robust set. Give them with attach_data(table).",
                WeakInstrumentWarning,
            )
        interval = average_effect(fitted, query, level, own, method=method)
        self._warn_share(float(interval.in_support))
        # Where the robust set could have been given and was not, the usual interval is good enough.
        judged = method == "auto" and own is not None and fitted.schema.has_one_effect
        return replace(interval, note="") if judged else self._noted(interval)

    @checked_arguments
    def marginal_effect(self, treatment: Any, covariates: Any = None, *, step: float) -> Floats:
        """The slope of g in the treatment at each row, over a step in units of the treatment."""
        query = slope_query(self._fitted(), treatment, self._read(covariates), step)
        return self._of_rows(query, contrast) / step

    @checked_arguments
    def marginal_effect_interval(
        self, treatment: Any, covariates: Any = None, *, step: float, level: float = 0.95
    ) -> Interval:
        """`marginal_effect` with an interval at each row."""
        query = slope_query(self._fitted(), treatment, self._read(covariates), step)
        return self._interval_of_rows(query, lambda pair: contrast(pair).map(lambda change: change / step), level)

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
        shown = np.atleast_1d(treatments)
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
        fitted = self._fitted()
        labels = tuple(np.atleast_1d(treatments).tolist())
        shown: dict[str, Any] = {"probability": fitted.schema.outcome.discrete, "labels": labels, "band": band}
        if not average:
            return self._noted(
                interval_at(fitted, query, level, lambda estimate: estimate, axis=1, **shown), "treatment", "row"
            )
        averages = average_over(fitted, query, intervals=True)
        return self._noted(interval_of(averages.estimate, level, in_support=averages.support, **shown), "treatment")

    def in_support(self, treatment: Any, covariates: Any = None) -> Floats:
        """Whether the data show such a treatment at such covariates, for each row; elsewhere g is extrapolated."""
        return self._fitted().in_support(self._query_at(treatment, covariates))[0]

    def analysis(self, **request: Unpack[AnalysisArguments]) -> Analysis:
        """The numbers that summaries, figures, pages and saved models show.

        The same arguments give the same analysis, whatever was asked before. A loaded model without rows has only the
        analysis it was saved with: ask for it without arguments.

        Args:
            by: which groups to show: names of covariates, or a mapping of names to one label a row. By default the
                first covariates of two to six levels.
            treatments: where curves are drawn; by default 41 values from the 1% to the 99% quantile, or all levels.
            t0, t1: the treatments compared; by default the quartiles, or the two most frequent levels.
            level: of the intervals; by default 0.95.
            compare: other fitted estimators by name, for the same question.
            title, source: of the analysis, and where the rows came from.
            no_instrument: also fit the method without the instruments, which takes as long again; by default True.
            units: what the rows are called, such as "flights"; by default "rows".

        Raises:
            DataError: this is a loaded model without rows, and it was not saved with this analysis.
        """
        for name in request:
            if name not in AnalysisArguments.__annotations__:
                raise unknown_argument("analysis", name, AnalysisArguments.__annotations__)
        given: dict[str, Any] = {name: value for name, value in request.items() if value is not None}
        others = {str(name): other._with_rows() for name, other in given.get("compare", {}).items()}
        asked = AnalysisRequest.of(**given)
        saved = None if self._on_rows else self.saved_analysis_
        if saved is not None and (not given or replace(asked, labels=()) == saved.request):
            return saved
        return self._with_rows().analysis(asked, others)

    @property
    def verdict_(self) -> Verdict:
        """What held-out rows say of the fit, and why; worked out when first asked for.

        Methods in closed form are fitted again without some of the rows. A loaded model has the verdict that it was
        saved with; one that was saved before anybody asked says that it was not checked, until `attach_data` gives it
        rows.
        """
        fitted = self._fitted() if self._on_rows is None else self._on_rows.judged
        return verdict_of(fitted) or Verdict("note")

    def diagnose(self, *, no_instrument: bool | None = None, level: float | None = None) -> Diagnosis:
        """Check what supports a causal reading of this fit and what contradicts it; print the result to read it.

        Strength of the instruments, a set for the linear effect that is valid under weak instruments, tests of
        overidentification and endogeneity, a test of the fitted curve on held-out rows, the same method without the
        instruments, linear two-stage least squares, the verdict, and for BGMIV what the latents are used for.
        `docs/diagnostics.md` explains each.

        Args:
            no_instrument: also fit the method without the instruments, which takes as long again; by default True.
            level: of intervals and sets; by default 0.95.

        Raises:
            DataError: this is a loaded model without rows, and it was not saved with this diagnosis.

        Example:
            >>> from bgmiv import TSLS
            >>> rng = np.random.default_rng(0)
            >>> w, u = rng.normal(size=(2, 500))
            >>> diagnosis = TSLS().fit(2.0 * (w + u) - u, w + u, instruments=w).diagnose()
            >>> diagnosis["effective-f"].severity
            'good'
        """
        if level is not None:
            check_level(level)
        saved = None if self._on_rows else self.saved_analysis_
        if saved and no_instrument in (None, saved.request.no_instrument) and level in (None, saved.level):
            return saved.diagnosis
        wanted = no_instrument is None or bool(no_instrument)
        return self._with_rows().diagnosis(no_instrument=wanted, level=0.95 if level is None else float(level))

    def sensitivity(self, gamma: Any, *, level: float = 0.95) -> Sensitivity:
        """What is left of the effect if the instruments also act on the outcome directly.

        Args:
            gamma: the direct effects that seem possible, in units of the outcome for one unit of the instrument: g for
                [-g, g], whatever the instrument; or for each instrument such a number or a pair (low, high), in a list
                or by name. For a single instrument the pair alone will do.
            level: of the intervals.

        Returns:
            The union of intervals for the linear effect, and how large a direct effect lets the data allow zero.

        Example:
            >>> from bgmiv import TSLS
            >>> rng = np.random.default_rng(0)
            >>> w, u = rng.normal(size=(2, 500))
            >>> union = TSLS().fit(2.0 * (w + u) - u, w + u, instruments=w).sensitivity(0.2)
            >>> round(union.lower, 1), round(union.upper, 1)
            (1.7, 2.3)
        """
        own = self._with_rows()
        return sensitivity(own.data, gamma, level=level, fitted=own.fitted, rows=own.rows)

    def calibrate(
        self,
        *,
        repeats: int = 50,
        t0: Any = None,
        t1: Any = None,
        level: float = 0.95,
        executor: Executor | None = None,
    ) -> Calibration:
        """How often the intervals hold on data sets like this one, and by how much to widen them if they do not.

        Data sets are drawn from the fit (`bgmiv.estimators.calibration` says how) with its g as the truth, at the same
        instruments, covariates and number of rows, and are fitted with the same arguments. What is found is conditional
        on that model. It takes as long as `repeats` fits.

        Args:
            repeats: how many data sets.
            t0, t1: the treatments of the average effect; by default the quartiles, or the first two levels.
            level: of the intervals, which are those that the methods give by default.
            executor: where fits run: by default this process; `bgmiv.executors.LocalPool(2)` for two local ones,
                `bgmiv.executors.RayCluster(...)` for a cluster.

        Returns:
            The coverage of the average effect, of points of g and of the uniform band of the average curve;
            `widened(interval)` applies what it takes to an interval of this fit.

        Raises:
            ConfigError: this is a method without intervals, or an argument cannot be used.
            DataError: this is a loaded model without rows, or the fit ignores its instruments.

        Example:
            >>> from bgmiv import TSLS
            >>> rng = np.random.default_rng(0)
            >>> w, u = rng.normal(size=(2, 200))
            >>> model = TSLS().fit(2.0 * (w + u) - u, w + u, instruments=w)
            >>> calibration = model.calibrate(repeats=20)
            >>> 0.8 <= calibration.coverage["average effect"] <= 1.0
            True
        """
        return calibrate(self._with_rows(), t0, t1, repeats=repeats, level=level, executor=executor or InProcess())

    def summary(self, **request: Unpack[AnalysisArguments]) -> Analysis:
        """The fit at a glance: average effects, strength of the instruments, checks, verdict.

        The arguments are those of `analysis`, which it returns: text where it is printed, tables in a notebook, and a
        column of a maketables table.
        """
        return self.analysis(**request)

    def report(self, path: str | os.PathLike[str], **request: Unpack[AnalysisArguments]) -> Path:
        """Write one page that holds the whole analysis and can be sent to others: interactive, and without a network.

        Args:
            path: of the file, such as "report.html"; its folder must exist.
            **request: as in `analysis`.

        Raises:
            ConfigError: the path is a folder, or its folder does not exist.
            StoreError: nothing can be written there.
        """
        target = check_file(path)
        return write_report(self.analysis(**request), target)

    def plot_curve(
        self,
        *,
        group: str | int = 0,
        methods: bool | Sequence[str] = False,
        ax: Axes | None = None,
        **request: Unpack[AnalysisArguments],
    ) -> Axes:
        """The structural function along treatments, with its band, and shaded where there are few data.

        Args:
            group: the label or the number of a group of `by`; all rows by default.
            methods: also curves of other methods, all or those named.
            ax: matplotlib axes to draw on; new ones by default.
            **request: as in `analysis`.
        """
        return plots.plot_curve(self.analysis(**request), group=group, methods=methods, ax=ax)

    def plot_effects(self, *, ax: Axes | None = None, **request: Unpack[AnalysisArguments]) -> Axes:
        """Average effects over all rows and by group, with intervals."""
        return plots.plot_effects(self.analysis(**request), ax=ax)

    def plot_methods(self, *, ax: Axes | None = None, **request: Unpack[AnalysisArguments]) -> Axes:
        """The same average effect by this and other methods."""
        return plots.plot_methods(self.analysis(**request), ax=ax)

    def plot_diagnosis(self, *, ax: Axes | None = None, **request: Unpack[AnalysisArguments]) -> Axes:
        """The checks of this fit, a line each."""
        return plots.plot_diagnosis(self.analysis(**request), ax=ax)

    def plot_history(self, **request: Unpack[AnalysisArguments]) -> Figure:
        """Losses along training: a figure, since each phase of training has axes of its own."""
        return plots.plot_history(self.analysis(**request))

    def _query_at(self, treatment: Any, covariates: Any) -> Query:
        """One treatment a row; without covariates a table still says how many rows there are."""
        schema, read = self._fitted().schema, self._read(covariates)
        if isinstance(read, Table) and not read.columns and np.ndim(treatment) == 0:
            treatment = np.full(read.n_rows, treatment)
        return query_at(schema, treatment, read)

    def _query_pair(self, t0: Any, t1: Any, covariates: Any, weights: Any = None) -> Query:
        """Two treatments for every row, each one for all rows or one a row."""
        if np.ndim(t0) == 0 and np.ndim(t1) == 0:
            return self._query_along([t0, t1], covariates, weights)
        rows = self._rows(covariates, weights, n_rows=max(np.size(t0), np.size(t1)))
        schema = self._fitted().schema
        return Query(np.stack([schema.check_treatment(t, len(rows)) for t in (t0, t1)]), rows)

    def _query_average(self, t0: Any, t1: Any, covariates: Any, weights: Any, rows: WhichRows) -> Query:
        """Two treatments for the rows that are averaged over."""
        if rows not in get_args(WhichRows):
            raise ConfigError(f"rows must be one of {', '.join(map(repr, get_args(WhichRows)))}, got {rows!r}.")
        if rows == "all":
            return self._query_pair(t0, t1, covariates, weights)
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
        query = self._query_pair(t0, t1, None, weights)
        wanted = query.treatment[1 if rows == "treated" else 0, 0]
        chosen = np.flatnonzero(self.data_.treatment == wanted)
        if not len(chosen):
            raise DataError(f"no row of the fit has the treatment {(t1 if rows == 'treated' else t0)!r}.")
        # Without covariates one row stands for all.
        return query.take(chosen) if schema.blocks else query

    def _query_along(self, treatments: Any, covariates: Any, weights: Any = None) -> Query:
        return query_along(self._fitted().schema, treatments, self._rows(covariates, weights))

    def _rows(self, covariates: Any, weights: Any = None, *, n_rows: int = 1) -> Rows:
        """The rows asked about: those given, or those of the fit."""
        schema, own = self._fitted().schema, self._on_rows
        if covariates is None and schema.blocks and own is not None:
            return rows_of(schema, own.rows, weights=weights)
        return rows_of(schema, self._read(covariates), n_rows=n_rows, weights=weights)

    def _of_rows(self, query: Query, change: Callable[[Estimate], Estimate]) -> Floats:
        """A function of g at each row, with a warning where most are extrapolations."""
        few = query.drawn(_MAX_SUPPORT_ROWS)
        self._warn_share(float(np.mean(self._fitted().in_support(few) @ few.rows.shares)))
        return change(estimate_at(self._fitted(), query)).values

    def _interval_of_rows(
        self, query: Query, change: Callable[[Estimate], Estimate], level: float, **shown: Any
    ) -> Interval:
        """The same with an interval at each row."""
        interval = interval_at(self._fitted(), query, level, change, **shown)
        self._warn_share(float(np.mean(interval.in_support)))
        return self._noted(interval, "row")

    def _noted(self, interval: Interval, *axes: str) -> Interval:
        """With the names of its axes, and a note where weak instruments make it too narrow."""
        outcome = self._fitted().schema.outcome
        levels = tuple(outcome.levels or ()) if outcome.width > 1 else ()
        note = WEAK_NOTE if interval.method != ANDERSON_RUBIN and self._weak() else ""
        return replace(interval, note=note, axes=(*axes, "level") if levels else axes, levels=levels)

    def _warn_share(self, share: float) -> None:
        if share < _MIN_SUPPORT:
            warn_user(
                f"{share:.0%} of the rows are in the support of the data at these treatments: elsewhere the answer is "
                "an extrapolation. in_support(...) says where.",
                SupportWarning,
            )


def _first(estimate: Estimate) -> Estimate:
    return estimate.map(lambda values: values[0])
