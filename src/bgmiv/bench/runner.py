"""Run a plan: sample, fit, predict the grid, measure, store."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, NamedTuple

import jax
import numpy as np

from bgmiv.bench.executors import Board, Died, map_tasks
from bgmiv.bench.metrics import StructuralError, structural_error
from bgmiv.bench.plan import RunSpec
from bgmiv.bench.presets import benchmark_estimator
from bgmiv.bench.store import Row, RowStore
from bgmiv.designs import StructuralGrid, make_design
from bgmiv.errors import StoreError
from bgmiv.progress import Reporter, silent

__all__ = [
    "Clock",
    "Elapsed",
    "Evaluation",
    "Pending",
    "Query",
    "evaluate",
    "pending",
    "run_one",
    "run_plan",
    "versions",
]


class Elapsed(NamedTuple):
    """Wall-clock seconds, and seconds of processor time of all threads of this process."""

    seconds: float
    cpu_seconds: float


class Clock:
    """Measures from its construction on.

    >>> Clock().elapsed().seconds >= 0.0
    True
    """

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def elapsed(self) -> Elapsed:
        """The time since construction."""
        return Elapsed(time.perf_counter() - self._wall, time.process_time() - self._cpu)


class Pending(NamedTuple):
    """What of a plan is left to do.

    Args:
        specs: to be run: no row yet, a failed row, or a damaged file.
        done: how many have an ok row already.
        damaged: the messages of damaged files, which will be written anew.
    """

    specs: tuple[RunSpec, ...]
    done: int
    damaged: tuple[str, ...]


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    found = []
    for package in ("bgmiv", "jax", "jaxlib", "equinox", "optax", "numpy", "linearmodels"):
        try:
            found.append((package, version(package)))
        except PackageNotFoundError:
            found.append((package, "not installed"))
    return (*found, ("python", platform.python_version()))


def versions() -> dict[str, str]:
    """Versions of this package, Python and the libraries that decide the numbers.

    >>> sorted(versions())
    ['bgmiv', 'equinox', 'jax', 'jaxlib', 'linearmodels', 'numpy', 'optax', 'python']
    """
    return dict(_versions())


class Query(NamedTuple):
    """Points at which an estimate is wanted besides the grid: (m,) treatments and their covariates."""

    treatment: np.ndarray
    covariates: Mapping[str, np.ndarray]


class Evaluation(NamedTuple):
    """A row, and the estimates at the query's points: None without a query or when the fit failed."""

    row: Row
    estimates: np.ndarray | None


def run_one(spec: RunSpec, reporter: Reporter = silent) -> Row:
    """One fit, from the sample to its row.

    The times cover the fit and the grid prediction with the compilation they need, not the sampling. A fit
    that raises, or that predicts anything but finite numbers, gives a row with status ``"failed"``.

    Raises:
        ConfigError: the specification names an unknown design, method or preset.

    >>> row = run_one(RunSpec("demand", 500, 0.5, "tsls", "default", seed=0))
    >>> row.status, row.structural_mse is not None and row.structural_mse > 1000.0
    ('ok', True)
    """
    return evaluate(spec, None, reporter).row


def evaluate(spec: RunSpec, query: Query | None, reporter: Reporter = silent) -> Evaluation:
    """As :func:`run_one`, with estimates at further points (not timed)."""
    design = make_design(spec.design)
    estimator = benchmark_estimator(spec.design, spec.method, spec.preset)
    grid = design.grid()
    data = design.sample(spec.n, spec.rho, spec.seed)
    clock = Clock()
    try:
        fitted = estimator.fit(data, jax.random.key(spec.seed), reporter)
        reporter.start("grid prediction", 1)
        predicted = np.asarray(fitted.predict(grid.treatment, grid.covariates))
        reporter.advance(1, {})
        reporter.finish()
        elapsed = clock.elapsed()
        estimates = None if query is None else np.asarray(fitted.predict(query.treatment, query.covariates))
    except KeyboardInterrupt:
        # FitInterrupted is also an Exception; an interrupted fit is not a failed one.
        raise
    except Exception as error:
        return Evaluation(_row(spec, clock.elapsed(), f"{type(error).__name__}: {error}"), None)
    return Evaluation(_row(spec, elapsed, _measured(predicted, grid)), estimates)


def pending(specs: Sequence[RunSpec], store: RowStore) -> Pending:
    """Which of the specifications have no ok row in the store."""
    left: list[RunSpec] = []
    damaged: list[str] = []
    for spec in specs:
        try:
            row = store.read(spec)
        except StoreError as error:
            damaged.append(str(error))
            row = None
        if row is None or row.status != "ok":
            left.append(spec)
    return Pending(tuple(left), len(specs) - len(left), tuple(damaged))


def run_plan(specs: Sequence[RunSpec], store: RowStore, workers: int, board: Board) -> Iterator[Row]:
    """Run the specifications and store each row as it comes; gives the rows in the order they finish."""
    for outcome in map_tasks(run_one, specs, workers, board):
        if isinstance(outcome, Died):
            row = _row(specs[outcome.index], Elapsed(0.0, 0.0), str(outcome))
        else:
            row = outcome.result
        store.write(row)
        yield row


def _measured(predicted: np.ndarray, grid: StructuralGrid) -> StructuralError | str:
    """The errors, or the reason why there are none."""
    if predicted.shape != grid.truth.shape:
        return f"the grid prediction has shape {predicted.shape}, not {grid.truth.shape}"
    finite = np.isfinite(predicted)
    if not finite.all():
        return f"{int((~finite).sum())} of {len(grid)} grid predictions are not finite numbers"
    return structural_error(predicted, grid)


def _row(spec: RunSpec, elapsed: Elapsed, measured: StructuralError | str) -> Row:
    status: Literal["ok", "failed"] = "ok"
    error = ""
    errors: tuple[float | None, float | None, float | None]
    if isinstance(measured, str):
        status, error, errors = "failed", measured, (None, None, None)
    else:
        errors = (measured.all, measured.in_support, measured.outside)
    return Row(
        **asdict(spec),
        status=status,
        error=error,
        structural_mse=errors[0],
        structural_mse_in_support=errors[1],
        structural_mse_outside=errors[2],
        seconds=round(elapsed.seconds, 3),
        cpu_seconds=round(elapsed.cpu_seconds, 3),
        compile_included=True,
        versions=versions(),
        timestamp=datetime.now(UTC).isoformat(timespec="seconds"),
    )
