from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bgmiv.bench.store import Row


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
            "status": "ok",
            "error": "",
            "structural_mse": 9000.0,
            "structural_mse_in_support": 7000.0,
            "structural_mse_outside": 15000.0,
            "seconds": 0.5,
            "cpu_seconds": 0.4,
            "compile_included": True,
            "versions": {"bgmiv": "0.1.0"},
            "timestamp": "2026-01-01T00:00:00+00:00",
        }
        return Row(**{**fields, **changes})

    return make
