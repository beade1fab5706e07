"""The one channel through which long work tells how far it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

__all__ = [
    "HistoryRow", "Reporter", "RichReporter", "SilentReporter", "fit_bars", "mean_history", "shown_loss", "silent",
]  # fmt: skip


class HistoryRow(NamedTuple):
    """Means over one chunk of steps (and over members, where several train together).

    Attributes:
        phase: the training phase.
        step: the step at the chunk's end.
        metrics: mean losses by name.
    """

    phase: str
    step: int
    metrics: dict[str, float]


def mean_history(histories: Sequence[tuple[HistoryRow, ...]]) -> tuple[HistoryRow, ...]:
    """The histories of several members as one: means of each chunk, as far as all of them trained.

    Example:
        >>> mean_history([(HistoryRow("a", 1, {"loss": 1.0}),), (HistoryRow("a", 1, {"loss": 3.0}),)])
        (HistoryRow(phase='a', step=1, metrics={'loss': 2.0}),)
    """
    found = []
    for rows in zip(*histories, strict=False):
        means = {name: sum(row.metrics[name] for row in rows) / len(rows) for name in rows[0].metrics}
        found.append(HistoryRow(rows[0].phase, rows[0].step, means))
    return tuple(found)


class Reporter(Protocol):
    """What a training phase calls at its start, at every chunk's end and at its end."""

    def start(self, phase: str, total: int) -> None:
        """A phase of `total` steps begins."""

    def advance(self, steps: int, metrics: Mapping[str, float]) -> None:
        """`steps` more steps are done; `metrics` are their means."""

    def finish(self) -> None:
        """The phase is over, whether whole or interrupted."""


class SilentReporter:
    """Reports nothing: the default of the library."""

    def start(self, phase: str, total: int) -> None: ...

    def advance(self, steps: int, metrics: Mapping[str, float]) -> None: ...

    def finish(self) -> None: ...


silent = SilentReporter()


def fit_bars(console: Console, *, live: bool = True) -> Progress:
    """Terminal bars of training phases; each task carries a `loss` field."""
    from rich import progress
    from rich.progress import TextColumn

    return progress.Progress(
        TextColumn("{task.description}"),
        progress.BarColumn(bar_width=28),
        progress.TaskProgressColumn(),
        TextColumn("{task.fields[loss]}", style="dim"),
        progress.TimeElapsedColumn(),
        TextColumn("left", style="dim"),
        progress.TimeRemainingColumn(),
        console=console,
        disable=not live,
    )


def shown_loss(metrics: Mapping[str, float]) -> str:
    """The loss as bars show it, such as "loss 0.1235"."""
    return f"loss {metrics['loss']:.4g}" if "loss" in metrics else ""


class RichReporter:
    """A live terminal bar with phase, loss and time left; use it as a context manager.

    Example:
        >>> with RichReporter("demand") as reporter:
        ...     reporter.start("warm start", 10)
        ...     reporter.advance(10, {"loss": 0.5})
        ...     reporter.finish()
    """

    def __init__(self, label: str = "") -> None:
        """`label` stands before the phase's name."""
        from rich.console import Console

        self._label = f"{label}: " if label else ""
        self._task: TaskID | None = None
        self._progress = fit_bars(Console(stderr=True))

    def __enter__(self) -> RichReporter:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def start(self, phase: str, total: int) -> None:
        self._task = self._progress.add_task(self._label + phase, total=total, loss="compiling")

    def advance(self, steps: int, metrics: Mapping[str, float]) -> None:
        if self._task is not None:
            self._progress.update(self._task, advance=steps, loss=shown_loss(metrics))

    def finish(self) -> None:
        """Leave the bar as it stands."""
        self._task = None
