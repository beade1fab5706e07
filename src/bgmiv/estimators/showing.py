"""What a fitted method says about itself: diagnosis, analysis, summary, figures, and the page to show others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from bgmiv.data.ivdata import IVData
from bgmiv.errors import DataError
from bgmiv.show.analysis import Analysis

__all__ = ["Showing"]


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
        """
        self._fitted()
        asked = any(value is not None for value in (by, treatments, t0, t1, compare, title)) or level != 0.95 or source
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
        )
        return self.analysis_

    @abstractmethod
    def _fitted(self) -> Any:
        """The fitted result; raises `NotFittedError` if there is none."""
