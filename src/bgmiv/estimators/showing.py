"""What a fitted method says about itself: diagnosis, analysis, summary, figures, and the page to show others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

__all__ = ["Showing"]


class Showing(ABC):
    """`diagnose`, `sensitivity`, `analysis`, `summary`, `plot_*` and `report`."""

    @abstractmethod
    def _fitted(self) -> Any:
        """The fitted result; raises `NotFittedError` if there is none."""
