"""What a fitted method says about itself: diagnosis, analysis, summary, figures, and the page to show others."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bgmiv.show import plots
from bgmiv.show.analysis import Analysis
from bgmiv.show.page import check_path, write_report
from bgmiv.show.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Showing"]


class Showing(ABC):
    """`diagnose`, `sensitivity`, `analysis`, `summary`, `plot_*` and `report`."""

    @abstractmethod
    def _fitted(self) -> Any:
        """The fitted result; raises `NotFittedError` if there is none."""

    if TYPE_CHECKING:

        def analysis(self, **asked: Any) -> Analysis:
            """All that is shown of this fit, as plain numbers and texts."""

    def summary(self, **asked: Any) -> Summary:
        """The fit at a glance: average effects, strength of the instruments, checks, verdict.

        Args:
            **asked: as in `analysis`: `by`, `t0`, `t1`, `level`, `compare`, ...

        Returns:
            Text where it is printed, a table in a notebook.
        """
        return Summary(self._shown(asked))

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
        return write_report(self._shown(asked), target)

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
        return plots.plot_curve(self._shown(asked), group=group, methods=methods, ax=ax)

    def plot_effects(self, *, ax: Axes | None = None, **asked: Any) -> Axes:
        """Average effects for everyone and by group, with intervals."""
        return plots.plot_effects(self._shown(asked), ax=ax)

    def plot_methods(self, *, ax: Axes | None = None, **asked: Any) -> Axes:
        """The same average effect by this and other methods."""
        return plots.plot_methods(self._shown(asked), ax=ax)

    def plot_diagnosis(self, *, ax: Axes | None = None, **asked: Any) -> Axes:
        """The checks of this fit, a line each."""
        return plots.plot_diagnosis(self._shown(asked), ax=ax)

    def plot_history(self, **asked: Any) -> Figure:
        """Losses along training."""
        return plots.plot_history(self._shown(asked))

    def _shown(self, asked: dict[str, Any]) -> Analysis:
        """The analysis asked for; the last one, if nothing is asked."""
        last: Analysis | None = vars(self).get("analysis_")
        return last if last is not None and not asked else self.analysis(**asked)
