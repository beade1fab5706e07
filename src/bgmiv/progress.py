"""The one channel through which long work tells how far it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Self

__all__ = [
    "HistoryRow", "Reporter", "RichReporter", "in_notebook", "mean_history", "reporter_for", "silent", "task",
]  # fmt: skip


class HistoryRow(NamedTuple):
    """Means over one chunk of steps (and over members, where several train together)."""

    phase: str
    step: int  # at the chunk's end
    metrics: dict[str, float]  # mean losses by name


def mean_history(histories: Sequence[tuple[HistoryRow, ...]]) -> tuple[HistoryRow, ...]:
    """The histories of several members as one: means of each chunk, as far as all of them trained.

    Example:
        >>> mean_history([(HistoryRow("a", 1, {"loss": 1.0}),), (HistoryRow("a", 1, {"loss": 3.0}),)])
        (HistoryRow(phase='a', step=1, metrics={'loss': 2.0}),)
    """
    chunks = []
    for rows in zip(*histories, strict=False):
        means = {name: sum(row.metrics[name] for row in rows) / len(rows) for name in rows[0].metrics}
        chunks.append(rows[0]._replace(metrics=means))
    return tuple(chunks)


class Reporter:
    """What a training phase calls at its start, at every chunk's end and at its end; this one reports nothing."""

    def stage(self, name: str) -> None:
        """All phases that follow belong to this stage of the fit, until the next one."""

    def start(self, phase: str, total: int) -> None:
        """A phase of `total` steps begins."""

    def advance(self, steps: int, metrics: Mapping[str, float]) -> None:
        """`steps` more steps are done; `metrics` are their means."""

    def finish(self) -> None:
        """The phase is over, whether whole or interrupted."""


silent = Reporter()


@contextmanager
def task(reporter: Reporter, name: str) -> Iterator[None]:
    """Report what is done in the context as a phase of one step."""
    reporter.start(name, 1)
    try:
        yield
        reporter.advance(1, {})
    finally:
        reporter.finish()


def in_notebook() -> bool:
    """Whether this is the process of a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class RichReporter(Reporter):
    """A live bar with phase, loss and time left, on the terminal or below a notebook's cell; a context manager.

    In a notebook one output is replaced as the fit goes on, which needs no widgets.

    Example:
        >>> with RichReporter("demand") as reporter:
        ...     reporter.start("warm start", 10)
        ...     reporter.advance(10, {"loss": 0.5})
        ...     reporter.finish()
    """

    def __init__(self, label: str = "") -> None:
        """`label` stands before the phase's name."""
        from rich.console import Console
        from rich.progress import Progress, TextColumn

        self._notebook = in_notebook()
        console = Console(width=100, color_system=None, force_jupyter=False) if self._notebook else Console(stderr=True)
        # Phase, bar, share and time left, then the loss.
        columns = (*Progress.get_default_columns(), TextColumn("{task.fields[loss]}", style="dim"))
        self._progress = Progress(*columns, console=console, disable=self._notebook)
        self._label = f"{label}: " if label else ""
        self._stage = ""
        self._output: Any = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def stage(self, name: str) -> None:
        """The stage's name stands before those of its phases."""
        self._stage = f"{name}: "

    def start(self, phase: str, total: int) -> None:
        """Add a bar for the phase."""
        self._progress.add_task(self._label + self._stage + phase, total=total, loss="")
        self._show()

    def advance(self, steps: int, metrics: Mapping[str, float]) -> None:
        """Move the bar, and show the loss."""
        loss = f"loss {metrics['loss']:.4g}" if "loss" in metrics else ""
        # The newest bar is that of the phase.
        self._progress.update(self._progress.tasks[-1].id, advance=steps, loss=loss)
        self._show()

    def finish(self) -> None:
        """Fill the bar of a phase that stopped early; leave that of an interrupted one as it stands."""
        task = self._progress.tasks[-1]
        if sys.exc_info()[0] is None and task.completed > 0 and not task.finished:
            self._progress.update(task.id, total=task.completed, loss="stopped early")
            self._show()

    def _show(self) -> None:
        """Draw all bars anew in the one output of a notebook's cell."""
        if not self._notebook:
            return
        from IPython.display import display

        with self._progress.console.capture() as drawn:
            self._progress.console.print(self._progress)
        content = {"text/plain": drawn.get().rstrip()}
        if self._output is None:
            self._output = display(content, raw=True, display_id=True)
        else:
            self._output.update(content, raw=True)


def reporter_for(progress: bool | None, label: str) -> AbstractContextManager[Reporter]:
    """The reporter of a fit: bars if they are wanted, by default in notebooks only, where a silent fit looks stuck.

    Example:
        >>> with reporter_for(None, "BGMIV") as reporter:
        ...     type(reporter).__name__
        'Reporter'
    """
    wanted = in_notebook() if progress is None else progress
    return RichReporter(label) if wanted else nullcontext(silent)
