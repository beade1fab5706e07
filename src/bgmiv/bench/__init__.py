"""Fits on designs whose truth is known: plans, rows, the store that keeps them, and where they run."""

from __future__ import annotations

from bgmiv.bench.evaluate import run_one, run_together
from bgmiv.bench.executors import Executor, LocalPool
from bgmiv.bench.identity import RunKey, identify, identify_all
from bgmiv.bench.metrics import StructuralError, structural_error
from bgmiv.bench.plan import Plan, RunSpec, Sweep, load_plan, ready_plans
from bgmiv.bench.presets import benchmark_estimator
from bgmiv.bench.row import Row
from bgmiv.bench.runner import run_plan
from bgmiv.bench.store import RowStore

__all__ = [
    "Executor",
    "LocalPool",
    "Plan",
    "Row",
    "RowStore",
    "RunKey",
    "RunSpec",
    "StructuralError",
    "Sweep",
    "benchmark_estimator",
    "identify",
    "identify_all",
    "load_plan",
    "ready_plans",
    "run_one",
    "run_plan",
    "run_together",
    "structural_error",
]
