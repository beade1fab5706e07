"""Fits on designs whose truth is known: plans, rows, the store that keeps them, and where they run."""

from __future__ import annotations

from bgmiv.bench.evaluate import StructuralError, benchmark_config, run_one, run_plan, structural_error
from bgmiv.bench.plan import Plan, RunKey, RunSpec, Sweep, identify, load_plan, ready_plans
from bgmiv.bench.show import Summary, error_figure, read_rows
from bgmiv.bench.store import Row, RowStore
from bgmiv.executors import Executor, InProcess, LocalPool, RayCluster

__all__ = [
    "Executor",
    "InProcess",
    "LocalPool",
    "Plan",
    "RayCluster",
    "Row",
    "RowStore",
    "RunKey",
    "RunSpec",
    "StructuralError",
    "Summary",
    "Sweep",
    "benchmark_config",
    "error_figure",
    "identify",
    "load_plan",
    "read_rows",
    "ready_plans",
    "run_one",
    "run_plan",
    "structural_error",
]
