from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bgmiv.bench.row import Row

MakeCell = Callable[..., list[Row]]


def a_row(**changes: Any) -> Row:
    fields: dict[str, Any] = {
        "design": "demand",
        "n": 1000,
        "rho": 0.5,
        "method": "bgm-iv",
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
        "seconds": 5.0,
        "cpu_seconds": 4.0,
        "batched": 1,
        "compilation_cache": False,
        "versions": {"bgmiv": "0.1.0", "jax": "0.10.2"},
        "timestamp": "2026-01-01T00:00:00+00:00",
    }
    return Row(**{**fields, **changes})


@pytest.fixture
def make_cell() -> MakeCell:
    """Rows of one cell: an error a seed, None for a fit that failed."""

    def make(method: str, errors: Sequence[float | None], *, first_seed: int = 0, **changes: Any) -> list[Row]:
        rows = []
        for seed, error in enumerate(errors, first_seed):
            parts = {"structural_mse": error, "structural_mse_in_support": error, "structural_mse_outside": error}
            failed = {"status": "failed", "error": "DivergedError: not finite"} if error is None else {}
            rows.append(a_row(**{"method": method, "seed": seed, **parts, **failed, **changes}))
        return rows

    return make
