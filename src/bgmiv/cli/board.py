"""Progress of several fits at once: phase, loss and time left."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import TaskID

from bgmiv.progress import fit_bars, shown_loss

__all__ = ["FitBoard"]


class FitBoard:
    """A line for each running fit, and if wanted one for all of them; plain lines where there is no terminal."""

    def __init__(self, console: Console, labels: Mapping[Any, str], *, total: bool = False) -> None:
        """Nothing is shown before the board is entered; labels name the items."""
        self._console = console
        self._labels = labels
        self._lines: dict[Any, TaskID] = {}
        self._progress = fit_bars(console, live=console.is_terminal)
        self._failed = 0
        self._total = self._progress.add_task("[bold]all fits", total=len(labels), loss="") if total else None

    def __enter__(self) -> FitBoard:
        """Start the display."""
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the display and leave the terminal as it was."""
        self._progress.stop()

    def start(self, item: Any, phase: str, total: int) -> None:
        """A phase of an item's fit begins."""
        # A line of its own for each phase: the time left must not be guessed from another phase's pace.
        self.finish(item)
        self._lines[item] = self._progress.add_task(f"{self._labels[item]} · {phase}", total=total, loss="compiling")
        self._count()

    def advance(self, item: Any, steps: int, metrics: Mapping[str, float]) -> None:
        """A phase of an item's fit moves on."""
        if item in self._lines:
            self._progress.update(self._lines[item], advance=steps, loss=shown_loss(metrics))

    def finish(self, item: Any) -> None:
        """A phase of an item's fit is over."""
        if item in self._lines:
            self._progress.remove_task(self._lines.pop(item))

    def retried(self, item: Any, reason: str) -> None:
        """An item's process was lost."""
        self.finish(item)
        self._say(f"{self._labels[item]}: {reason}; trying it again")

    def done(self, item: Any, text: str, *, failed: bool = False) -> None:
        """An item's fit is over; `text` says how it went and stays on the screen."""
        self.finish(item)
        self._failed += failed
        if self._total is not None:
            self._progress.advance(self._total)
            self._count()
        self._say(f"{self._labels[item]}: {text}")

    def _say(self, text: str) -> None:
        self._console.print(f"  {text}", highlight=False, markup=False, soft_wrap=True)

    def _count(self) -> None:
        if self._total is not None:
            failed = f", {self._failed} failed" if self._failed else ""
            self._progress.update(self._total, loss=f"{len(self._lines)} running{failed}")
