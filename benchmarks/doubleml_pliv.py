"""The interval of a constant effect on DoubleML's partially linear IV design, beside DoubleML's own.

The design is that of an example of DoubleML: `make_pliv_CHS2015(alpha=0.5, n_obs=500, dim_x=20, dim_z=1)`,
100 samples. DoubleML runs in an environment of its own (Python with `doubleml`, nothing of bgmiv), with cross-validated
lasso, linear regression and the random forests of that example (on the first samples alone: they are slow). A line of
doubleml_pliv.jsonl a sample and estimator: estimate, lower, upper. Finished ones are not done again.

    python benchmarks/doubleml_pliv.py theirs SAMPLES.npz       in the environment with doubleml; writes the samples too
    python benchmarks/doubleml_pliv.py ours SAMPLES.npz         in that of bgmiv
    python benchmarks/doubleml_pliv.py tables
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROWS = Path(__file__).with_suffix(".jsonl")
N, REPEATS, ALPHA, DIM, LEVEL, FORESTS = 500, 100, 0.5, 20, 0.95, 30

Found = tuple[float, float, float]


def done() -> list[dict[str, Any]]:
    """The finished fits."""
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def run(methods: dict[str, Callable[[np.ndarray], Found]], samples: np.ndarray) -> None:
    """Do the fits that are missing, the samples in turn."""
    known = {(row["method"], row["sample"]) for row in done()}
    for sample in range(REPEATS):
        for name, fit in methods.items():
            if (name, sample) in known or ("forest" in name and sample >= FORESTS):
                continue
            start = time.process_time()
            estimate, lower, upper = map(float, fit(samples[sample]))
            row = {"method": name, "sample": sample, "estimate": estimate, "lower": lower, "upper": upper}
            with ROWS.open("a") as file:
                file.write(json.dumps(row | {"cpu_seconds": round(time.process_time() - start, 2)}) + "\n")


def theirs(path: Path) -> None:
    """DoubleML, and the samples: columns y, d, z, then the covariates."""
    import doubleml
    from doubleml.plm.datasets import make_pliv_CHS2015
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.linear_model import LassoCV, LinearRegression

    def sample(seed: int) -> np.ndarray:
        np.random.seed(seed)  # noqa: NPY002 - the design draws from NumPy's global state
        frame = make_pliv_CHS2015(N, alpha=ALPHA, dim_x=DIM, dim_z=1, return_type="DataFrame")
        first = ["y", "d", next(name for name in frame if name.startswith("Z"))]
        return frame[first + [name for name in frame if name not in first]].to_numpy(np.float64)

    def fit(learner: Any, columns: np.ndarray) -> Found:
        np.random.seed(0)  # noqa: NPY002 - so does its sample splitting
        x, (y, d, z) = columns[:, 3:], columns[:, :3].T
        data = doubleml.DoubleMLData.from_arrays(x, y, d, z)
        model = doubleml.DoubleMLPLIV(data, ml_l=learner, ml_m=learner, ml_r=learner).fit()
        lower, upper = model.confint(level=LEVEL).iloc[0]
        return model.coef[0], lower, upper

    forest = RandomForestRegressor(n_estimators=100, max_features=20, max_depth=5, min_samples_leaf=2, random_state=0)
    learners = {"lasso": LassoCV(), "linear regression": LinearRegression(), "random forests": forest}
    samples = np.stack([sample(seed) for seed in range(REPEATS)])
    np.savez_compressed(path, samples=samples)
    run({f"DoubleML, {name}": lambda c, one=one: fit(one, c) for name, one in learners.items()}, samples)


def ours(path: Path) -> None:
    """Methods of bgmiv."""
    from bgmiv import NPIV, TSLS

    def fit(model: Any, columns: np.ndarray) -> Found:
        model.fit(columns[:, 0], columns[:, 1], instruments=columns[:, 2], covariates=columns[:, 3:])
        found = model.ate_interval(t0=0.0, t1=1.0, level=LEVEL)
        return found.estimate, found.lower, found.upper

    methods = {"NPIV": NPIV(random_state=0), "TSLS": TSLS()}
    with np.load(path) as file:
        run({name: lambda c, one=one: fit(one, c) for name, one in methods.items()}, file["samples"])


def tables() -> None:
    """What is there as Markdown."""
    rows = done()
    print("| method | samples | held | median width | bias | RMSE | CPU-seconds a fit |\n|" + " --- |" * 7)
    for name in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == name]
        held = sum(row["lower"] <= ALPHA <= row["upper"] for row in mine)
        width = np.median([row["upper"] - row["lower"] for row in mine])
        errors = np.array([row["estimate"] - ALPHA for row in mine])
        spent = np.mean([row["cpu_seconds"] for row in mine])
        numbers = f"{width:.4f} | {errors.mean():+.4f} | {np.sqrt(np.mean(errors**2)):.4f} | {spent:.1f}"
        print(f"| {name} | {len(mine)} | {held / len(mine):.0%} | {numbers} |")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    what, *paths = sys.argv[1:]
    {"theirs": theirs, "ours": ours, "tables": tables}[what](*map(Path, paths))
