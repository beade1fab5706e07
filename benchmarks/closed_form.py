"""What the closed-form methods cost as rows grow: CPU-seconds of a fit, its predictions and its average effect.

- `python benchmarks/closed_form.py run [PYTHON]`: NPIV beside linearmodels' IV2SLS, and beside DoubleML's PLIV with
  lasso if a PYTHON that has `doubleml` is given. Each fit is a process of its own; imports are not counted.
- `python benchmarks/closed_form.py show`: a table.

Rows are appended to `closed_form.jsonl`; what is there is not run again. One thread: NPROC=1 OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

ROWS = Path(__file__).with_suffix(".jsonl")
SIZES = (1_000, 10_000, 100_000, 1_000_000)
N_COVARIATES = 5


def sample(n: int) -> tuple[np.ndarray, ...]:
    """Outcome, treatment, instrument and covariates; the effect is 1 a unit, so that all methods are right."""
    rng = np.random.default_rng(0)
    w, u, noise = rng.normal(size=(3, n))
    v = rng.normal(size=(n, N_COVARIATES))
    x = w + v[:, 0] + 0.5 * v[:, 1] ** 2 + u
    y = x + np.sin(v[:, 0]) + v[:, 2] + u + noise
    return y, x, w, v


def npiv(n: int) -> dict[str, float]:
    """Penalised sieve, with the robust interval of the average effect."""
    from bgmiv import NPIV

    y, x, w, v = sample(n)
    start = process_time()
    model = NPIV(random_state=0).fit(y, x, instruments=w, covariates=v)
    fitted = process_time()
    model.predict(x, v)
    predicted = process_time()
    interval = model.ate_interval(t0=0.0, t1=1.0)
    spent = {"fit": fitted - start, "predict": predicted - fitted, "average": process_time() - predicted}
    return spent | {"effect": float(interval.estimate), "error": float(interval.std_error)}


def two_stages(n: int) -> dict[str, float]:
    """linearmodels' two-stage least squares with a robust covariance; its average effect is the coefficient."""
    from linearmodels.iv import IV2SLS

    y, x, w, v = sample(n)
    exogenous = np.column_stack([np.ones(n), v])
    start = process_time()
    model = IV2SLS(y, exogenous, x, w).fit(cov_type="robust")
    fitted = process_time()
    model.predict(exogenous, x)
    predicted = process_time()
    spent = {"fit": fitted - start, "predict": predicted - fitted}
    effect, error = float(model.params["endog"]), float(model.std_errors["endog"])
    return spent | {"average": process_time() - predicted, "effect": effect, "error": error}


def partially_linear(n: int) -> dict[str, float]:
    """DoubleML's partially linear model with lasso, five folds; it estimates one coefficient and predicts nothing."""
    import doubleml
    from sklearn.linear_model import LassoCV

    y, x, w, v = sample(n)
    data = doubleml.DoubleMLData.from_arrays(v, y, x, w)
    np.random.seed(0)  # noqa: NPY002 - DoubleML draws its folds by the global state
    start = process_time()
    model = doubleml.DoubleMLPLIV(data, LassoCV(), LassoCV(), LassoCV(), n_folds=5).fit()
    effect, error = float(model.coef[0]), float(model.se[0])
    return {"fit": process_time() - start, "effect": effect, "error": error}


METHODS: dict[str, Callable[[int], dict[str, float]]] = {
    "NPIV": npiv, "linearmodels IV2SLS": two_stages, "DoubleML PLIV, lasso": partially_linear,
}  # fmt: skip


def rows() -> list[dict[str, Any]]:
    """What has been measured."""
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def run(other_python: str | None = None) -> None:
    """All methods at all sizes, the small ones first."""
    done = {(row["method"], row["n"]) for row in rows()}
    for n in SIZES:
        for method in METHODS:
            python = other_python if method.startswith("DoubleML") else sys.executable
            if python is None or (method, n) in done:
                continue
            command = [python, __file__, "one", method, str(n)]
            found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            print(method, n, found, flush=True)
            with ROWS.open("a") as file:
                file.write(json.dumps({"method": method, "n": n, **json.loads(found)}) + "\n")


def one(method: str, n: str) -> None:
    """One method at one size, as JSON; the memory is the whole process's at its largest."""
    spent = METHODS[method](int(n))
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({name: round(value, 4) for name, value in spent.items()} | {"megabytes": round(megabytes)}))


def show() -> None:
    """The table of docs/running.md."""
    print("| rows | method | fit | predictions | average effect | memory, MB |\n|---|---|---|---|---|---|")
    for row in rows():
        parts = [f"{row[name]:.2f}" if name in row else "" for name in ("fit", "predict", "average")]
        print(f"| {row['n']:,} | {row['method']} | {' | '.join(parts)} | {row['megabytes']:,} |")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    {"run": run, "one": one, "show": show}[sys.argv[1]](*sys.argv[2:])
