"""One fit: draw the sample, fit, predict on the grid, measure the distance from the truth; and all fits of a plan."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock

from bgmiv._version import versions
from bgmiv.analysis.build import FitOnRows
from bgmiv.bench.plan import RunKey, RunSpec, identify
from bgmiv.bench.store import Row, RowStore
from bgmiv.data.scaling import FixedAffine, Identity, RoleScaling
from bgmiv.designs import StructuralGrid, make_design
from bgmiv.effects import predict
from bgmiv.errors import BGMIVError
from bgmiv.executors import Executor
from bgmiv.fitted import FittedMethod
from bgmiv.registry import NO_INSTRUMENT, make_config

__all__ = [
    "PAPER_FIXED_SCALING",
    "Outcome",
    "StructuralError",
    "benchmark_config",
    "failed_row",
    "functional_errors",
    "run_key",
    "run_one",
    "run_plan",
    "structural_error",
]

PAPER_FIXED_SCALING = RoleScaling(
    outcome=FixedAffine(-292.1, 158.0),
    treatment=FixedAffine(17.779, 3.7),
    covariates=Identity(),
    instruments=Identity(),
)
"""The paper's scaling for its high-dimensional designs: x ↦ (x − 17.779)/3.7 and y ↦ (y + 292.1)/158."""

_FIXED_SCALING_DESIGNS = ("vector-proxy", "mnist", "mnist-hd")
_WAIT_SECONDS = 0.5
_LIBRARIES = ("jax", "jaxlib", "equinox", "optax", "numpy", "linearmodels")


class StructuralError(NamedTuple):
    """Mean squared structural error in squared units of the outcome; NaN where there are no points.

    Args:
        all: over the whole grid, the number papers report.
        in_support: over points whose treatment the training data show.
        outside: over points that are extrapolations.

    Example:
        >>> StructuralError(all=0.2, in_support=0.1, outside=0.6).in_support
        0.1
    """

    all: float
    in_support: float
    outside: float


def structural_error(predicted: np.ndarray, grid: StructuralGrid) -> StructuralError:
    """Mean of (ĝ(x, v) − g₀(x, v))² over the grid, and over its parts inside and outside the support.

    Args:
        predicted: (m,) estimates at the grid's points, in units of the outcome.
        grid: the points and the truth.

    Example:
        >>> grid = make_design("demand").grid()
        >>> structural_error(grid.truth + 2.0, grid)
        StructuralError(all=4.0, in_support=4.0, outside=4.0)
    """
    squared = (np.asarray(predicted, dtype=np.float64) - grid.truth) ** 2
    parts = (squared, squared[grid.in_support], squared[~grid.in_support])
    return StructuralError(*(float(part.mean()) if part.size else float("nan") for part in parts))


def functional_errors(fitted: FittedMethod, grid: StructuralGrid) -> dict[str, float]:
    """Estimate minus truth of the grid's functionals, by name."""
    errors = {}
    for name, one in grid.functionals.items():
        change = predict(fitted, one.t1, grid.covariates) - predict(fitted, one.t0, grid.covariates)
        errors[name] = float(np.mean(change) / one.scale - one.truth)
    return errors


def benchmark_config(design: str, method: str, preset: str = "default") -> Any:
    """The config of a method's preset as the benchmark of that design runs it.

    The only difference from `bgmiv.registry.make_config`: with the paper's presets the vector-proxy and image
    designs use the paper's fixed scaling (:data:`PAPER_FIXED_SCALING`).

    Example:
        >>> benchmark_config("vector-proxy", "bgm-iv", "paper").scaling == PAPER_FIXED_SCALING
        True
    """
    config = make_config(method, preset)
    fixed = design in _FIXED_SCALING_DESIGNS and preset.startswith("paper")
    ours = method.removesuffix(NO_INSTRUMENT) == "bgm-iv"
    return replace(config, scaling=PAPER_FIXED_SCALING) if fixed and ours else config


def run_one(spec: RunSpec) -> Row:
    """One fit, from the sample to its row.

    The times cover the fit and the grid prediction with the compilation they need, not the sampling. A fit
    that raises, or whose predictions are not all finite, gives a row with status `"failed"`.

    Raises:
        ConfigError: the specification names an unknown design, method or preset.

    Example:
        >>> row = run_one(RunSpec("demand", 500, 0.5, "tsls", "default", seed=0))
        >>> row.status, row.structural_mse > 0
        ('ok', True)
    """
    key, design = identify(spec), make_design(spec.design)
    config = benchmark_config(spec.design, spec.method, spec.preset)
    grid = design.grid()
    data = design.sample(spec.n, spec.rho, spec.seed)
    began = (time.perf_counter(), time.process_time())
    try:
        fitted = config.fit(data, spec.seed)
        predicted = predict(fitted, grid.treatment, grid.covariates)
        times = _since(began)
        averages = functional_errors(fitted, grid)
        if count := int((~np.isfinite(predicted)).sum()):
            raise ValueError(f"{count} of {len(grid)} grid predictions are not finite")
        fitted = FitOnRows(fitted, data, config, spec.seed).judged
    except KeyboardInterrupt:
        # FitInterrupted is also an Exception; an interrupted fit is not a failed one.
        raise
    except Exception as error:
        return replace(failed_row(key, f"{type(error).__name__}: {error}"), **_since(began))
    # A part of the grid without points has no error; files hold finite numbers only.
    errors = [None if np.isnan(error) else error for error in structural_error(predicted, grid)]
    return replace(
        failed_row(key, ""),
        status="ok",
        structural_mse=errors[0],
        structural_mse_in_support=errors[1],
        structural_mse_outside=errors[2],
        evidence=_evidence(fitted),
        functional_errors=averages,
        **times,
    )


def failed_row(key: RunKey, error: str, attempts: int = 1) -> Row:
    """The row of a run that gave no result."""
    jax = sys.modules.get("jax")
    return Row(
        **asdict(key.spec),
        method_version=key.method_version,
        design_version=key.design_version,
        status="failed",
        error=error,
        attempts=attempts,
        # A fit without JAX has no programs to keep.
        compilation_cache=jax is not None and jax.config.values.get("jax_compilation_cache_dir") is not None,
        versions={"python": platform.python_version()} | versions(*_LIBRARIES),
        timestamp=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _since(began: tuple[float, float]) -> dict[str, Any]:
    """The times of a row."""
    wall, cpu = began
    return {"seconds": round(time.perf_counter() - wall, 3), "cpu_seconds": round(time.process_time() - cpu, 3)}


def _evidence(fitted: FittedMethod) -> dict[str, float | int | None]:
    """The measurements behind a method's verdict on its own fit; files hold finite numbers only."""
    if fitted.evidence is None:
        return {}
    known = asdict(fitted.evidence)
    # Why networks were not trained is a text; how much may have been left for them is the number behind it.
    known.pop("networks")
    return {name: value if value is None or np.isfinite(value) else None for name, value in known.items()}


class Outcome(NamedTuple):
    """A run that has its row now, and whether this runner made it or another one."""

    row: Row
    ours: bool


def run_key(key: RunKey) -> Row:
    """One fit of a sweep, wherever it runs; other algorithms than the sweep was started with are a BGMIVError."""
    here = identify(key.spec)
    if here != key:
        raise BGMIVError(
            f"{key.spec}: the algorithm versions here (method {here.method_version}, design {here.design_version}) are "
            f"not those the sweep was started with (method {key.method_version}, design {key.design_version}); install "
            "the same version of bgmiv everywhere and run the same command again"
        )
    return run_one(key.spec)


def run_plan(keys: Sequence[RunKey], store: RowStore, executor: Executor) -> Iterator[Outcome]:
    """Run what the store does not have and yield each row as it comes.

    Runs that other runners have claimed are waited for, and taken over if their runner dies.

    Example:
        >>> import tempfile
        >>> from bgmiv.bench import InProcess, RunSpec, identify
        >>> keys = [identify(RunSpec("demand", 500, 0.5, "tsls", "default", seed=seed)) for seed in (1, 2)]
        >>> with tempfile.TemporaryDirectory() as place:
        ...     [outcome.row.status for outcome in run_plan(keys, RowStore(place), InProcess())]
        ['ok', 'ok']
    """
    before = {key: store.find(key) for key in keys}
    left = dict.fromkeys(key for key, row in before.items() if row is None or row.status != "ok")
    claims: dict[RunKey, FileLock] = {}

    def claimed() -> Iterator[RunKey]:
        """Claim run after run as the executor asks for them, without those that others have claimed or finished."""
        for key in tuple(left):
            lock = store.claim(key)
            if lock is None:
                continue
            # Looked up under the claim: another runner may have finished it a moment ago.
            if store.find(key) != before[key]:
                store.release(lock)
                continue
            claims[key] = lock
            yield key

    while left:
        count = len(left)
        try:
            for outcome in executor.map(run_key, claimed()):
                key = outcome.item
                row = failed_row(key, outcome.lost, attempts=2) if outcome.lost else outcome.result
                store.write(row)
                store.release(claims.pop(key))
                del left[key]
                yield Outcome(row, ours=True)
        finally:
            while claims:
                store.release(claims.popitem()[1])
        for key in tuple(left):
            theirs = store.find(key)
            if theirs is not None and theirs != before[key]:
                del left[key]
                yield Outcome(theirs, ours=False)
        if len(left) == count:
            time.sleep(_WAIT_SECONDS)
