from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bgmiv.bench import Row

MakeCell = Callable[..., list[Row]]
NEWER = {"method_version": 9, "timestamp": "2026-03-01T00:00:00+00:00"}
"""A later row of another version of the method."""


@pytest.fixture
def make_cell(make_row: Callable[..., Row]) -> MakeCell:
    """Rows of one cell: an error a seed, None for a fit that failed."""

    def make(method: str, errors: Sequence[float | None], *, first_seed: int = 0, **changes: Any) -> list[Row]:
        rows = []
        for seed, error in enumerate(errors, first_seed):
            parts = {"structural_mse": error, "structural_mse_in_support": error, "structural_mse_outside": error}
            failed = {"status": "failed", "error": "DivergedError: not finite"} if error is None else {}
            usual = {"n": 1000, "seed": seed, "versions": {"bgmiv": "0.1.0", "jax": "0.10.2"}}
            rows.append(make_row(**{**usual, "method": method, **parts, **failed, **changes}))
        return rows

    return make
