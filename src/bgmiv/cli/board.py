"""Progress of several fits at once: phase, loss and time left."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import TaskID

from bgmiv.bench.executors import Advanced, Event, Retried, Started
from bgmiv.progress import fit_bars, shown_loss

__all__ = ["FitBoard"]


class FitBoard:
    """A line for each running fit, and one for all of them; plain lines where there is no terminal.

    Args:
        console: where to show it.
        labels: the name of each item, by index.
        total: whether to show a line for all fits together.
    """

    def __init__(self, console: Console, labels: Sequence[str], *, total: bool = False) -> None:
        """Nothing is shown before the board is entered."""
        self._console = console
        self._labels = labels
        self._live = console.is_terminal
        self._lines: dict[int, TaskID] = {}
        self._progress = fit_bars(console, live=self._live)
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

    def show(self, index: int, event: Event) -> None:
        """An event of the fit of that index."""
        if isinstance(event, Started):
            self._start(index, event)
        elif isinstance(event, Advanced) and index in self._lines:
            self._progress.update(self._lines[index], advance=event.steps, loss=shown_loss(event.metrics))
        elif isinstance(event, Retried):
            self._close(index)
            self._say(f"{self._labels[index]}: {event.reason}; trying it again")

    def done(self, index: int, text: str, *, failed: bool = False) -> None:
        """The fit of that index is over; ``text`` says how it went and stays on the screen."""
        self._close(index)
        self._failed += failed
        if self._total is not None:
            self._progress.advance(self._total)
            self._count()
        self._say(text)

    def _close(self, index: int) -> None:
        if index in self._lines:
            self._progress.remove_task(self._lines.pop(index))

    def _say(self, text: str) -> None:
        self._console.print(f"  {text}", highlight=False, markup=False, soft_wrap=True)

    def _count(self) -> None:
        if self._total is not None:
            failed = f", {self._failed} failed" if self._failed else ""
            self._progress.update(self._total, loss=f"{len(self._lines)} running{failed}")

    def _start(self, index: int, event: Started) -> None:
        description = f"{self._labels[index]} · {event.phase}"
        if not self._live:
            # A log wants one line a fit, not one a phase.
            return
        # A line of its own for each phase: the time left must not be guessed from another phase's pace.
        self._close(index)
        self._lines[index] = self._progress.add_task(description, total=event.total, loss="compiling")
        self._count()
