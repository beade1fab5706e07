"""What a fitted method says about itself: diagnosis, analysis, summary, figures, and the page to show others."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bgmiv.analysis import plots
from bgmiv.analysis.analysis import Analysis, AnalysisRequest
from bgmiv.analysis.build import Subject, build_analysis
from bgmiv.analysis.page import check_path, write_report
from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Rows
from bgmiv.diagnostics.checks import Change, Diagnosis, changes_of, diagnose
from bgmiv.diagnostics.sensitivity import Sensitivity, sensitivity
from bgmiv.effects import FitRows, require_intervals
from bgmiv.errors import ConfigError, DataError
from bgmiv.estimators.calibration import Calibration, calibrate
from bgmiv.estimators.fitted import MethodConfig, judge_fit
from bgmiv.estimators.questions import QuestionsMixin
from bgmiv.executors import Executor, InProcess
from bgmiv.fitted import FittedMethod
from bgmiv.intervals import check_level
from bgmiv.linear_iv import strength_of
from bgmiv.progress import reporter_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FitCache", "ReportingMixin"]

_NO_ROWS = (
    "this model was loaded and holds no rows, which this question needs. Give them with attach_data(table), or ask "
    "before saving."
)


class FitCache:
    """What was worked out of one fit, by what was asked; a new fit has a new one."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.rows: Rows | None = None
        self.weak: bool | None = None
        self.judged = False
        self.no_instrument: tuple[FittedMethod | None] | None = None
        self.diagnoses: dict[tuple[bool, float], Diagnosis] = {}
        self.subject: Subject | None = None
        self.analyses: dict[tuple[AnalysisRequest | Subject, ...], Analysis] = {}


class ReportingMixin(QuestionsMixin):
    """`diagnose`, `sensitivity`, `analysis`, `summary`, `plot_*` and `report`."""

    seed_: int
    formula_: str
    n_dropped_: int
    fit_params_: dict[str, Any]
    progress: bool | None
    saved_analysis_: Analysis | None = None
    """The analysis that a loaded model was saved with."""
    _cache: FitCache

    @abstractmethod
    def _config(self) -> MethodConfig:
        """The frozen config of the method."""

    @abstractmethod
    def _changed(self, given: dict[str, Any]) -> dict[str, Any]:
        """Those of these arguments that differ from their defaults."""

    def analysis(
        self,
        *,
        by: Any = None,
        treatments: Any = None,
        t0: Any = None,
        t1: Any = None,
        level: float | None = None,
        compare: Mapping[str, Any] | None = None,
        title: str | None = None,
        source: str | None = None,
        no_instrument: bool | None = None,
        units: str | None = None,
    ) -> Analysis:
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
            title: of the analysis.
            source: where the rows came from.
            no_instrument: also fit the method without the instruments, which takes about as long as the fit. By default
                True.
            units: what the rows are called, such as "flights"; by default "rows".

        Raises:
            DataError: this is a loaded model without rows, and it was not saved with this analysis.
        """
        others = {str(name): other._subject() for name, other in (compare or {}).items()}
        given: dict[str, Any] = {"by": by, "treatments": treatments, "t0": t0, "t1": t1, "level": level}
        given |= {"compare": others or None, "title": title, "source": source, "no_instrument": no_instrument}
        given["units"] = units
        given = {name: value for name, value in given.items() if value is not None}
        request = AnalysisRequest.of(**given)
        self._fitted()
        if self.data_ is None:
            saved = self.saved_analysis_
            if saved is None or (given and replace(request, labels=()) != saved.request):
                raise DataError(_NO_ROWS)
            return saved
        key = (request, *others.values())
        if key not in self._cache.analyses:
            diagnosis = self.diagnose(no_instrument=request.no_instrument, level=request.level)
            no_instrument_fit = self._no_instrument_fit() if request.no_instrument else None
            found = build_analysis(request, self._subject(), diagnosis, no_instrument_fit, others)
            self._cache.analyses[key] = found
        return self._cache.analyses[key]

    def _instrumented_rows(self) -> FitRows | None:
        rows = self._fit_rows()
        if self.data_ is None or rows is None or not self.fit_params_.get("use_instrument", True):
            return None
        return FitRows(self.data_, rows)

    def _weak(self) -> bool:
        if self._cache.weak is None:
            own, saved = self._instrumented_rows(), self.saved_analysis_
            known = self.data_ is None and saved is not None and saved.weak
            if own is not None:
                strength = strength_of(own.data, self._fitted().first_stage_f)
                known = strength is not None and strength.usual_is_too_short
            self._cache.weak = known
        return self._cache.weak

    def _judged(self) -> FittedMethod:
        """The fitted result with all that held-out rows say of it."""
        fitted, rows = self._fitted(), self._fit_rows()
        if self.data_ is None or rows is None or self._cache.judged:
            return fitted
        config, seed = type(self)(**self.fit_params_)._config(), self.seed_
        used = self.fit_params_.get("use_instrument", True)
        self.fitted_ = judge_fit(
            fitted, self.data_, rows, lambda part: config.fit(part, seed), use_instrument=used, seed=seed
        )
        self._cache.judged = True
        return self.fitted_

    def _subject(self) -> Subject:
        """The fitted method with what an analysis shows of it; the same object for the same fit."""
        self._judged()
        fitted, rows = self._completed(), self._fit_rows()
        if self.data_ is None or rows is None:
            raise DataError(_NO_ROWS)
        if self._cache.subject is None or self._cache.subject.fitted is not fitted:
            self._cache.subject = Subject(
                fitted=fitted,
                data=self.data_,
                rows=rows,
                estimator=type(self).__name__,
                settings={name: repr(value)[:200] for name, value in self._changed(self.fit_params_).items()},
                seed=self.seed_,
                use_instrument=self.fit_params_.get("use_instrument", True),
                formula=self.formula_,
                n_dropped=self.n_dropped_,
            )
        return self._cache.subject

    def diagnose(self, *, no_instrument: bool | None = None, level: float | None = None) -> Diagnosis:
        """Check what supports a causal reading of this fit and what contradicts it; print the result to read it.

        Strength of the instruments, a set for the linear effect that is valid under weak instruments, tests of
        overidentification and endogeneity, a test of the fitted curve on held-out rows, the same method without the
        instruments, linear two-stage least squares, the verdict, and for BGMIV what the latents are used for.
        `docs/diagnostics.md` explains each.

        Args:
            no_instrument: also fit the method without the instruments, which takes about as long as the fit. By default
                True.
            level: of intervals and sets; by default 0.95.

        Raises:
            DataError: this is a loaded model without rows, and it was not saved with this diagnosis.

        Example:
            >>> import numpy as np
            >>> from bgmiv import TSLS
            >>> rng = np.random.default_rng(0)
            >>> w, u = rng.normal(size=(2, 500))
            >>> found = TSLS().fit(2.0 * (w + u) - u, w + u, instruments=w).diagnose()
            >>> found["effective-f"].severity
            'good'
        """
        if level is not None:
            check_level(level)
        self._fitted()
        if self.data_ is None:
            saved = self.saved_analysis_
            if saved is None or no_instrument not in (None, saved.request.no_instrument):
                raise DataError(_NO_ROWS)
            if level not in (None, saved.level):
                raise DataError(_NO_ROWS)
            return saved.diagnosis
        asked = (no_instrument is None or bool(no_instrument), 0.95 if level is None else float(level))
        if asked not in self._cache.diagnoses:
            rows = self._fit_rows()
            assert rows is not None
            other = self._no_instrument_fit() if asked[0] else None
            self._judged()
            found = diagnose(self.data_, rows, self._completed(), no_instrument=other, level=asked[1], seed=self.seed_)
            self._cache.diagnoses[asked] = found
        return self._cache.diagnoses[asked]

    def sensitivity(self, gamma: Any, *, level: float = 0.95) -> Sensitivity:
        """What is left of the effect if the instruments also act on the outcome directly.

        Args:
            gamma: the direct effects that seem possible, in units of the outcome for one unit of the instrument: g for
                [-g, g], whatever the instrument; or for each instrument such a number or a pair (low, high), in a list
                or by name. For a single instrument the pair alone will do.
            level: of the intervals.

        Returns:
            The union of intervals for the linear effect, and how large a direct effect has to be before zero is among
            the effects that the data allow; for this method's average effect as well.

        Raises:
            ConfigError: gamma or level cannot be read.
            DataError: treatment or outcome has three or more levels, or this is a loaded model without rows.

        Example:
            >>> import numpy as np
            >>> from bgmiv import TSLS
            >>> rng = np.random.default_rng(0)
            >>> w, u = rng.normal(size=(2, 500))
            >>> found = TSLS().fit(2.0 * (w + u) - u, w + u, instruments=w).sensitivity(0.2)
            >>> round(found.lower, 1), round(found.upper, 1)
            (1.7, 2.3)
        """
        fitted, rows = self._completed(), self._fit_rows()
        if self.data_ is None or rows is None:
            raise DataError(_NO_ROWS)
        return sensitivity(self.data_, gamma, level=level, fitted=fitted, rows=rows)

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
            DataError: this is a loaded model without rows, it ignores its instruments, or its outcome has three or more
                levels.

        Example:
            >>> import numpy as np
            >>> from bgmiv import TSLS
            >>> rng = np.random.default_rng(0)
            >>> w, u = rng.normal(size=(2, 200))
            >>> model = TSLS().fit(2.0 * (w + u) - u, w + u, instruments=w)
            >>> found = model.calibrate(repeats=20)
            >>> 0.8 <= found.coverage["average effect"] <= 1.0
            True
        """
        check_level(level)
        if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 2:
            raise ConfigError(f"repeats must be a whole number of 2 or more, got {repeats!r}.")
        fitted, own = self._completed(), self._instrumented_rows()
        require_intervals(fitted)
        if own is None:
            raise DataError(_NO_ROWS if self.data_ is None else "this fit ignores its instruments; calibrate one with.")
        change = changes_of(own.data)[0]
        if (t0 is None) != (t1 is None):
            raise ConfigError("give both t0 and t1, or neither.")
        if t0 is not None:
            first, last = (float(fitted.schema.check_treatment(t, 1)[0]) for t in (t0, t1))
            change = Change(first, last, f"from {t0} to {t1}")
        params = dict(self.fit_params_)
        params |= {name: value for name, value in {"progress": False, "checkpoint": None}.items() if name in params}
        return calibrate(
            type(self)(**params)._config(),
            fitted,
            own.data,
            change,
            repeats=repeats,
            level=level,
            seed=self.seed_,
            executor=InProcess() if executor is None else executor,
        )

    def _no_instrument_fit(self) -> FittedMethod | None:
        """The same method fitted without the instruments; None if this one ignores them already."""
        assert self.data_ is not None
        if self._cache.no_instrument is None:
            self._cache.no_instrument = (self._fit_without_instrument(self.data_),)
        return self._cache.no_instrument[0]

    def _fit_without_instrument(self, data: IVData) -> FittedMethod | None:
        params = dict(self.fit_params_)
        if not params.get("use_instrument", False):
            return None
        changed: dict[str, Any] = {"use_instrument": False, "progress": False, "checkpoint": None}
        evidence = self.fitted_.evidence
        if evidence is not None and evidence.networks not in (None, "trained"):
            # The two are compared: nothing but the instruments may differ between them.
            changed["networks"] = False
        params |= {name: value for name, value in changed.items() if name in params}
        config = type(self)(**params)._config()
        with reporter_for(self.progress, f"{type(self).__name__} (no instrument)") as reporter:
            return config.fit(data, self.seed_, reporter)

    def summary(self, **request: Any) -> Analysis:
        """The fit at a glance: average effects, strength of the instruments, checks, verdict.

        Args:
            **request: as in `analysis`: `by`, `t0`, `t1`, `level`, `compare`, ...

        Returns:
            The analysis, which is text where it is printed, tables in a notebook, and a column of a maketables table.
        """
        return self.analysis(**request)

    def report(self, path: str | os.PathLike[str], **request: Any) -> Path:
        """Write one page that holds the whole analysis and can be sent to others: interactive, and without a network.

        Args:
            path: of the file, such as "report.html"; its folder must exist.
            **request: as in `analysis`.

        Returns:
            The path.

        Raises:
            ConfigError: the path is a folder, or its folder does not exist.
            StoreError: nothing can be written there.
        """
        target = check_path(path)
        return write_report(self.analysis(**request), target)

    def plot_curve(
        self, *, group: str | int = 0, methods: bool | Sequence[str] = False, ax: Axes | None = None, **request: Any
    ) -> Axes:
        """The structural function along treatments, with its band, and shaded where there are few data.

        Args:
            group: the label or the number of a group of `by`; all rows by default.
            methods: also curves of other methods, all or those named.
            ax: matplotlib axes to draw on; new ones by default.
            **request: as in `analysis`.
        """
        return plots.plot_curve(self.analysis(**request), group=group, methods=methods, ax=ax)

    def plot_effects(self, *, ax: Axes | None = None, **request: Any) -> Axes:
        """Average effects over all rows and by group, with intervals."""
        return plots.plot_effects(self.analysis(**request), ax=ax)

    def plot_methods(self, *, ax: Axes | None = None, **request: Any) -> Axes:
        """The same average effect by this and other methods."""
        return plots.plot_methods(self.analysis(**request), ax=ax)

    def plot_diagnosis(self, *, ax: Axes | None = None, **request: Any) -> Axes:
        """The checks of this fit, a line each."""
        return plots.plot_diagnosis(self.analysis(**request), ax=ax)

    def plot_history(self, **request: Any) -> Figure:
        """Losses along training."""
        return plots.plot_history(self.analysis(**request))
