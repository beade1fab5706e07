"""One fit, or repeats of a cell together: sample, fit, predict the grid, measure."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, NamedTuple

import jax
import numpy as np

from bgmiv.bench.identity import RunKey, identify
from bgmiv.bench.metrics import StructuralError, structural_error
from bgmiv.bench.plan import RunSpec
from bgmiv.bench.presets import benchmark_estimator
from bgmiv.bench.row import Row
from bgmiv.data.ivdata import IVData
from bgmiv.designs import StructuralGrid, make_design
from bgmiv.errors import BGMIVError, ConfigError
from bgmiv.estimators.base import BatchEstimator, FittedIV
from bgmiv.progress import Reporter, silent

__all__ = [
    "Clock",
    "Elapsed",
    "Evaluation",
    "Query",
    "can_batch",
    "evaluate",
    "failed_row",
    "run_one",
    "run_together",
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
        """Start it."""
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def elapsed(self, shares: int = 1) -> Elapsed:
        """The time since construction, divided into equal shares."""
        return Elapsed((time.perf_counter() - self._wall) / shares, (time.process_time() - self._cpu) / shares)


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
    """A row, and the estimates at the query's points: None without a query or when the fit failed.

    `fitted` and `data` are there if they were to be kept and the fit did not fail.
    """

    row: Row
    estimates: np.ndarray | None
    fitted: FittedIV | None = None
    data: IVData | None = None


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


def evaluate(spec: RunSpec, query: Query | None, reporter: Reporter = silent, *, keep: bool = False) -> Evaluation:
    """As :func:`run_one`, with estimates at further points (not timed), and if wanted the fit and its data."""
    key = identify(spec)
    design = make_design(spec.design)
    estimator = benchmark_estimator(spec.design, spec.method, spec.preset)
    grid = design.grid()
    data = design.sample(spec.n, spec.rho, spec.seed)
    clock = Clock()
    try:
        fitted = estimator.fit(data, jax.random.key(spec.seed), reporter)
        predicted = _grid_prediction(fitted, grid, reporter)
        elapsed = clock.elapsed()
        estimates = None if query is None else np.asarray(fitted.predict(query.treatment, query.covariates))
    except KeyboardInterrupt:
        # FitInterrupted is also an Exception; an interrupted fit is not a failed one.
        raise
    except Exception as error:
        return Evaluation(failed_row(key, _words(error), elapsed=clock.elapsed()), None)
    row = _row(key, elapsed, _measured(predicted, grid), evidence=_evidence(fitted))
    return Evaluation(row, estimates, *((fitted, data) if keep else ()))


def can_batch(spec: RunSpec) -> bool:
    """Whether the method can train repeats of that cell together.

    >>> can_batch(RunSpec("demand", 500, 0.5, "tsls", "default", seed=0))
    False
    """
    return isinstance(benchmark_estimator(spec.design, spec.method, spec.preset), BatchEstimator)


def run_together(specs: Sequence[RunSpec], reporter: Reporter = silent) -> tuple[Row, ...]:
    """Repeats of one cell, trained together where the method can (:func:`can_batch`); a row each.

    Training together changes the order of sums, and long training amplifies the last digits: rows agree with those of
    single fits to the tolerance that the guide states, not to the digit. Times are each row's share.

    Raises:
        ConfigError: the specifications differ in more than their seed.
    """
    if len({spec.cell for spec in specs}) != 1:
        raise ConfigError("only repeats of one cell can be trained together: they may differ in nothing but the seed")
    first = specs[0]
    design, estimator = make_design(first.design), benchmark_estimator(first.design, first.method, first.preset)
    if len(specs) == 1 or not isinstance(estimator, BatchEstimator):
        return tuple(run_one(spec, reporter) for spec in specs)
    grid = design.grid()
    samples = [design.sample(spec.n, spec.rho, spec.seed) for spec in specs]
    keys = [jax.random.key(spec.seed) for spec in specs]
    results: list[StructuralError | str] = []
    evidence: list[Mapping[str, float | int | None]] = []
    clock = Clock()
    try:
        for fitted in estimator.fit_many(samples, keys, reporter):
            evidence.append({} if isinstance(fitted, BGMIVError) else _evidence(fitted))
            if isinstance(fitted, BGMIVError):
                results.append(_words(fitted))
            else:
                results.append(_measured(_grid_prediction(fitted, grid, reporter), grid))
    except KeyboardInterrupt:
        raise
    except Exception as error:
        evidence = evidence[: len(results)] + [{}] * (len(specs) - len(results))
        results += [_words(error)] * (len(specs) - len(results))
    elapsed = clock.elapsed(len(specs))
    return tuple(
        _row(identify(spec), elapsed, result, batched=len(specs), evidence=known)
        for spec, result, known in zip(specs, results, evidence, strict=True)
    )


def failed_row(key: RunKey, error: str, *, elapsed: Elapsed | None = None, attempts: int = 1) -> Row:
    """The row of a run that gave nothing."""
    return _row(key, elapsed or Elapsed(0.0, 0.0), error, attempts=attempts)


def _grid_prediction(fitted: FittedIV, grid: StructuralGrid, reporter: Reporter) -> np.ndarray:
    reporter.start("grid prediction", 1)
    try:
        predicted = np.asarray(fitted.predict(grid.treatment, grid.covariates))
        reporter.advance(1, {})
    finally:
        reporter.finish()
    return predicted


def _evidence(fitted: FittedIV) -> dict[str, float | int | None]:
    """What a method's verdict on its own fit rests on; files hold no number that is not finite."""
    verdict = getattr(fitted, "verdict", None)
    if verdict is None:
        return {}
    known = asdict(verdict.evidence)
    return {name: value if value is None or np.isfinite(value) else None for name, value in known.items()}


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _measured(predicted: np.ndarray, grid: StructuralGrid) -> StructuralError | str:
    """The errors, or the reason why there are none."""
    if predicted.shape != grid.truth.shape:
        return f"the grid prediction has shape {predicted.shape}, not {grid.truth.shape}"
    finite = np.isfinite(predicted)
    if not finite.all():
        return f"{int((~finite).sum())} of {len(grid)} grid predictions are not finite numbers"
    return structural_error(predicted, grid)


def _row(
    key: RunKey,
    elapsed: Elapsed,
    measured: StructuralError | str,
    *,
    attempts: int = 1,
    batched: int = 1,
    evidence: Mapping[str, float | int | None] | None = None,
) -> Row:
    status: Literal["ok", "failed"] = "ok"
    error = ""
    errors: tuple[float | None, ...]
    if isinstance(measured, str):
        status, error, errors = "failed", measured, (None, None, None)
    else:
        # A part of the grid without points has no error; files hold no NaN.
        errors = tuple(None if np.isnan(value) else value for value in measured)
    return Row(
        **asdict(key.spec),
        config=key.config,
        code=key.code,
        status=status,
        error=error,
        attempts=attempts,
        structural_mse=errors[0],
        structural_mse_in_support=errors[1],
        structural_mse_outside=errors[2],
        seconds=round(elapsed.seconds, 3),
        cpu_seconds=round(elapsed.cpu_seconds, 3),
        batched=batched,
        compilation_cache=jax.config.values.get("jax_compilation_cache_dir") is not None,
        versions=versions(),
        timestamp=datetime.now(UTC).isoformat(timespec="seconds"),
        evidence=evidence or {},
    )
