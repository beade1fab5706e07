"""A phase of training as the training loop runs it: settings, and the steps of a subclass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from bgmiv.bgm.settings import EGM, Alternating, JointTraining

__all__ = ["Phase"]

S = TypeVar("S", EGM, JointTraining, Alternating)


@dataclass(frozen=True)
class Phase(Generic[S]):
    """What `bgmiv.training.run_phase` reads of a phase; a final subclass gives `init` and `step`."""

    settings: S

    @property
    def name(self) -> str:
        """The phase's name, as progress and history show it."""
        return self.settings.name

    @property
    def n_steps(self) -> int:
        """Steps of the whole phase."""
        return self.settings.n_steps

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the step's metrics."""
        return self.settings.metric_names

    @property
    def chunk(self) -> int:
        """Steps of a compiled chunk."""
        return self.settings.chunk
