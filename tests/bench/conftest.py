from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


class Seen:
    """A board that remembers its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def start(self, item: Any, phase: str, total: int) -> None:
        self.calls.append(("start", item, phase, total))

    def advance(self, item: Any, steps: int, metrics: Mapping[str, float]) -> None:
        self.calls.append(("advance", item, steps, metrics))

    def finish(self, item: Any) -> None:
        self.calls.append(("finish", item))

    def retried(self, item: Any, reason: str) -> None:
        self.calls.append(("retried", item, reason))


@pytest.fixture
def board() -> Seen:
    return Seen()
