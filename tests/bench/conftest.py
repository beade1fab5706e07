from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bgmiv.bench.store import Row
from bgmiv.errors import ConfigError
from bgmiv.registry import find_method

# What the robustness benchmark shares with the tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))


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


@pytest.fixture
def make_row() -> Callable[..., Row]:
    def make(**changes: Any) -> Row:
        fields: dict[str, Any] = {
            "design": "demand",
            "n": 100,
            "rho": 0.5,
            "method": "tsls",
            "preset": "default",
            "seed": 0,
            "method_version": 1,
            "design_version": 1,
            "status": "ok",
            "error": "",
            "attempts": 1,
            "structural_mse": 9000.0,
            "structural_mse_in_support": 7000.0,
            "structural_mse_outside": 15000.0,
            "seconds": 0.5,
            "cpu_seconds": 0.4,
            "compilation_cache": False,
            "versions": {"bgmiv": "0.1.0"},
            "timestamp": "2026-01-01T00:00:00+00:00",
        }
        fields |= changes
        with suppress(ConfigError):
            # Of today's version, unless the test says otherwise.
            today = find_method(fields["method"]).version_of(fields["preset"])
            fields |= {"method_version": changes.get("method_version", today)}
        return Row(**fields)

    return make
