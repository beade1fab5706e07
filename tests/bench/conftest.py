from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bgmiv.bench.row import Row

# What the robustness benchmark shares with the tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))


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
            "config": "c" * 16,
            "code": "d" * 16,
            "status": "ok",
            "error": "",
            "attempts": 1,
            "structural_mse": 9000.0,
            "structural_mse_in_support": 7000.0,
            "structural_mse_outside": 15000.0,
            "seconds": 0.5,
            "cpu_seconds": 0.4,
            "batched": 1,
            "compilation_cache": False,
            "versions": {"bgmiv": "0.1.0"},
            "timestamp": "2026-01-01T00:00:00+00:00",
        }
        return Row(**{**fields, **changes})

    return make
