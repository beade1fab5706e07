"""Fits on designs whose truth is known: plans, rows, and the store that keeps them."""

from __future__ import annotations

from bgmiv.bench.metrics import StructuralError, structural_error
from bgmiv.bench.plan import RunSpec, make_plan
from bgmiv.bench.presets import benchmark_estimator
from bgmiv.bench.runner import pending, run_one, run_plan
from bgmiv.bench.store import Row, RowStore

__all__ = [
    "Row",
    "RowStore",
    "RunSpec",
    "StructuralError",
    "benchmark_estimator",
    "make_plan",
    "pending",
    "run_one",
    "run_plan",
    "structural_error",
]
