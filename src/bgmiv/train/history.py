"""What a fit remembers of its training."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["HistoryRow"]


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
