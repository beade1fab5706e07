"""What a fitted method says about itself: diagnosis, analysis, summary, figures, and the page to show others."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from bgmiv.data.ivdata import IVData
from bgmiv.effects import Uncertain, average_effect, interval_of
from bgmiv.errors import DataError
from bgmiv.progress import RichReporter
from bgmiv.show import plots
from bgmiv.show.analysis import Analysis
from bgmiv.show.page import check_path, write_report
from bgmiv.show.summary import Summary
from bgmiv.trust.contrasts import changes_of
from bgmiv.trust.diagnose import diagnose
from bgmiv.trust.diagnosis import Diagnosis
from bgmiv.trust.fit_checks import average_change
from bgmiv.trust.linear import check_level
from bgmiv.trust.sensitivity import AverageEffect, Sensitivity, sensitivity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Showing"]

# A twin is compared, not used: two members show as much as four.
_TWIN_MEMBERS = 2
_MOST_ROWS = 1000


class Showing(ABC):
    """`diagnose`, `sensitivity`, `analysis`, `summary`, `plot_*` and `report`."""

    data_: IVData | None
    analysis_: Analysis

    def analysis(
        self,
        *,
        by: Any = None,
        treatments: Any = None,
        t0: Any = None,
        t1: Any = None,
        level: float = 0.95,
        compare: Mapping[str, Any] | None = None,
        title: str | None = None,
        source: str = "",
        twin: bool = True,
    ) -> Analysis:
        """Everything that summaries, figures, pages and saved models show, worked out once and kept in `analysis_`.

        Called with arguments it is worked out anew; a loaded model has the one it was saved with.

        Args:
            by: whom to show apart: names of covariates, or a mapping of names to one label a row. By default the first
                covariates of two to six levels.
            treatments: where curves are drawn; by default 41 values from the 1% to the 99% quantile, or all levels.
            t0, t1: the treatments compared; by default the quartiles, or the two most frequent levels.
            level: of the intervals.
            compare: other fitted estimators by name, for the same question.
            title: of the analysis.
            source: where the rows came from.
            twin: also fit the method without the instruments, as `diagnose` does.
        """
        self._fitted()
        asked = (
            any(value is not None for value in (by, treatments, t0, t1, compare, title))
            or level != 0.95
            or source
            or not twin
        )
        if hasattr(self, "analysis_") and not asked:
            return self.analysis_
        if self.data_ is None:
            raise DataError(
                "a saved model holds no rows, so that its analysis cannot be made anew. Fit again, or use the analysis "
                "it was saved with."
            )
        from bgmiv.show.build import build_analysis

        self.analysis_ = build_analysis(
            self,
            by=by,
            treatments=treatments,
            t0=t0,
            t1=t1,
            level=level,
            compare=compare,
            title=title,
            source=source,
            twin=twin,
        )
        return self.analysis_

    @abstractmethod
    def _fitted(self) -> Any:
        """The fitted result; raises `NotFittedError` if there is none."""

    @abstractmethod
    def _completed(self) -> Any:
        """The fitted result with what intervals need."""

    @abstractmethod
    def _config(self) -> Any:
        """The frozen config of the method."""

    @abstractmethod
    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments."""

    def diagnose(self, *, twin: bool = True, level: float = 0.95) -> Diagnosis:
        """Look for what speaks for and against a causal reading of this fit; print the result to read it.

        Strength of the instruments, a set for the linear effect that weak instruments do not harm, tests of
        overidentification and endogeneity, a test of the fitted curve on held-out rows, the same method without the
        instruments, linear two-stage least squares, and for BGMIV what the latents are used for and the verdict.
        `docs/diagnostics.md` explains each. The result is kept until the next fit.

        Args:
            twin: also fit the method without the instruments, which takes about as long as the fit.
            level: of intervals and sets.

        Warns:
            WeakInstrumentWarning: the effective F is below its critical value.

        Raises:
            DataError: this is a saved model, which holds no rows, and no diagnosis was saved with it.

        Example:
            >>> from bgmiv import TSLS
            >>> rng = np.random.default_rng(0)
            >>> w, u = rng.normal(size=(2, 500))
            >>> found = TSLS().fit(2.0 * (w + u) - u, w + u, instruments=w).diagnose()
            >>> found["effective-f"].level, found["twin"].value
            ('good', '3.42 against 2.637')
        """
        fitted = self._fitted()
        data: IVData | None = getattr(self, "data_", None)
        if data is None:
            saved: Diagnosis | None = getattr(getattr(self, "analysis_", None), "diagnosis", None)
            if saved is None:
                raise DataError(_NO_ROWS)
            return saved
        check_level(level)
        asked = (bool(twin), float(level))
        if not hasattr(self, "diagnosis_") or getattr(self, "_diagnosed", None) != asked:
            seed = int(getattr(self, "seed_", 0))
            self.twin_ = other = self._twin(data, seed) if twin else None
            self.diagnosis_: Diagnosis = diagnose(data, fitted, twin=other, level=level, seed=seed)
            self._diagnosed = asked
        return self.diagnosis_

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
            DataError: treatment or outcome has three or more levels, or this is a saved model, which holds no rows.

        Example:
            >>> from bgmiv import TSLS
            >>> rng = np.random.default_rng(0)
            >>> w, u = rng.normal(size=(2, 500))
            >>> found = TSLS().fit(2.0 * (w + u) - u, w + u, instruments=w).sensitivity(0.2)
            >>> round(found.lower, 1), round(found.upper, 1)
            (1.7, 2.3)
        """
        fitted = self._completed()
        data: IVData | None = getattr(self, "data_", None)
        if data is None:
            raise DataError(_NO_ROWS)
        single = data.schema.treatment.width == 1 and data.schema.outcome.width == 1
        effect = _effect_of(fitted, data, level) if single else None
        return sensitivity(data, gamma, level=level, effect=effect)

    def _twin(self, data: IVData, seed: int) -> Any:
        """The same method fitted without the instruments; None if it cannot be, or this one ignores them already."""
        params = self.get_params()
        if not params.get("use_instrument", False):
            return None
        changed: dict[str, Any] = {"use_instrument": False, "bootstrap": False, "progress": False, "checkpoint": None}
        if "members" in params:
            own = len(getattr(self._fitted(), "members", ())) or _TWIN_MEMBERS
            changed["members"] = min(_TWIN_MEMBERS, own)
        params |= {name: value for name, value in changed.items() if name in params}
        config, key = type(self)(**params)._config(), jax.random.key(seed)
        if not getattr(self, "progress", False):
            return config.fit(data, key)
        with RichReporter(f"{type(self).__name__} without the instruments") as reporter:
            return config.fit(data, key, reporter)

    def summary(self, **asked: Any) -> Summary:
        """The fit at a glance: average effects, strength of the instruments, checks, verdict.

        Args:
            **asked: as in `analysis`: `by`, `t0`, `t1`, `level`, `compare`, ...

        Returns:
            Text where it is printed, a table in a notebook.
        """
        return Summary(self.analysis(**asked))

    def report(self, path: str | os.PathLike[str], **asked: Any) -> Path:
        """Write one page that holds the whole analysis and can be sent to others: interactive, and without a network.

        Args:
            path: of the file, such as "report.html"; its folder must exist.
            **asked: as in `analysis`.

        Returns:
            The path.

        Raises:
            ConfigError: the path is a folder, or its folder does not exist.
        """
        target = check_path(path)
        return write_report(self.analysis(**asked), target)

    def plot_curve(
        self, *, group: str | int = 0, methods: bool | Sequence[str] = False, ax: Axes | None = None, **asked: Any
    ) -> Axes:
        """The structural function along treatments, with its band and shaded where the data are thin.

        Args:
            group: the label or the number of a group of `by`; everyone by default.
            methods: also curves of other methods, all or those named.
            ax: matplotlib axes to draw on; new ones by default.
            **asked: as in `analysis`.
        """
        return plots.plot_curve(self.analysis(**asked), group=group, methods=methods, ax=ax)

    def plot_effects(self, *, ax: Axes | None = None, **asked: Any) -> Axes:
        """Average effects for everyone and by group, with intervals."""
        return plots.plot_effects(self.analysis(**asked), ax=ax)

    def plot_methods(self, *, ax: Axes | None = None, **asked: Any) -> Axes:
        """The same average effect by this and other methods."""
        return plots.plot_methods(self.analysis(**asked), ax=ax)

    def plot_diagnosis(self, *, ax: Axes | None = None, **asked: Any) -> Axes:
        """The checks of this fit, a line each."""
        return plots.plot_diagnosis(self.analysis(**asked), ax=ax)

    def plot_history(self, **asked: Any) -> Figure:
        """Losses along training."""
        return plots.plot_history(self.analysis(**asked))


_NO_ROWS = (
    "the rows of the data are not in a saved model, and they are needed here. Fit again on them, or diagnose before "
    "saving."
)


def _effect_of(fitted: Any, data: IVData, level: float) -> AverageEffect:
    """The average effect of an interquartile change of treatment, with an interval if the method has one."""
    change = changes_of(data)[0]
    width = change.t1 - change.t0
    uncertain: bool = isinstance(fitted, Uncertain)
    if not uncertain:
        return AverageEffect(width, float(average_change(fitted, data, change)))
    if data.n_rows > _MOST_ROWS:
        data = data.take(np.sort(np.random.default_rng(0).permutation(data.n_rows)[:_MOST_ROWS]))
    levels = data.schema.treatment.levels
    t0, t1 = (levels[int(t)] for t in change[:2]) if levels else change[:2]
    asked = average_effect(fitted, data.covariates if data.schema.blocks else None, t0=t0, t1=t1, with_sources=True)
    found = interval_of(asked, level)
    return AverageEffect(width, float(found.estimate), float(found.lower), float(found.upper))
