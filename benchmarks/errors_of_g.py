"""Errors of g by NPIV on the noisy, paper and low-dimensional designs, this version beside an earlier one.

Samples of seeds 5000 to 5009, which both versions share; the error is the mean square over the points of the design's
grid that are in support, as a share of the variance of g there. Rows of `errors_of_g.jsonl` that are missing are made
under a label; for an earlier version's rows, run it with the Python of a checkout (before version 7 of BGM-IV `fit`
takes a key of JAX in the place of the seed).

    NPROC=1 OMP_NUM_THREADS=1 python benchmarks/errors_of_g.py run LABEL
    python benchmarks/errors_of_g.py tables OLD NEW
    python benchmarks/errors_of_g.py confirm OLD NEW      seeds 5010 to 5019, of some cells
"""

from __future__ import annotations

import json
import math
import sys
import time
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

ROWS = Path(__file__).with_suffix(".jsonl")
SEEDS, CONFIRMED = range(5000, 5010), range(5010, 5020)
NOISY = ("linear", "concave", "heterogeneous", "threshold", "interaction", "null")
LOW_DIMENSIONAL = ("sin", "step", "abs", "linear")
CELLS = [
    *((f"noisy-{shape}", 1000, 0.5) for shape in NOISY),
    *((f"lowdim-{shape}", 1000, 0.9) for shape in LOW_DIMENSIONAL),
    ("binary-confounded", 1000, 0.9),
    ("demand-confounded", 1000, 0.9),
    ("demand", 1000, 0.5),
    ("demand", 5000, 0.5),
    ("linear-gaussian", 1000, 0.5),
]


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The finished samples."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(label: str) -> None:
    """Fit what is missing."""
    from bgmiv.baselines.npiv import NPIVConfig
    from bgmiv.effects import predict
    from report import make_design

    warnings.simplefilter("ignore")
    done = {(row["label"], row["cell"], row["n"], row["seed"]) for row in rows_of(ROWS)}
    for name, n, rho in CELLS:
        design = make_design(name)
        grid = design.grid()
        inside = np.asarray(grid.in_support, bool)
        truth = np.asarray(grid.truth, np.float64)[inside]
        for seed in SEEDS:
            if (label, name, n, seed) in done:
                continue
            data = design.sample(n, rho, seed)
            start = time.process_time()
            fitted = NPIVConfig().fit(data, 0)
            spent = time.process_time() - start
            values = np.asarray(predict(fitted, grid.treatment, grid.covariates), np.float64)[inside]
            # The effect of `noisy-null` is zero; its g varies with covariates.
            error = float(np.mean((values - truth) ** 2) / np.var(truth))
            row = {"label": label, "cell": name, "n": n, "seed": seed, "error": error, "cpu": round(spent, 2)}
            with ROWS.open("a") as file:
                file.write(json.dumps(row) + "\n")


def tables(old: str, new: str, used: range) -> None:
    """Mean errors by cell, their ratio, and the geometric mean of ratios."""
    errors: dict[tuple[str, int], dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows_of(ROWS):
        if row["seed"] in used:
            errors[row["cell"], row["n"]][row["label"]][row["seed"]] = row["error"]
    print(f"| cell | n | seeds | {old} | {new} | ratio |\n| --- | --- | --- | --- | --- | --- |")
    ratios = []
    for (name, n), by_label in errors.items():
        seeds = sorted(by_label[old].keys() & by_label[new].keys())
        if not seeds:
            continue
        before, now = (np.mean([by_label[label][seed] for seed in seeds]) for label in (old, new))
        ratios.append(now / before)
        print(f"| {name} | {n} | {len(seeds)} | {before:.4f} | {now:.4f} | {now / before:.2f} |")
    print(
        f"\nGeometric mean of {len(ratios)} ratios: {math.exp(np.mean(np.log(ratios))):.3f}; largest {max(ratios):.2f}."
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"] and len(sys.argv) == 3:
        run(sys.argv[2])
    elif sys.argv[1:2] in (["tables"], ["confirm"]) and len(sys.argv) == 4:
        tables(*sys.argv[2:], SEEDS if sys.argv[1] == "tables" else CONFIRMED)
    else:
        raise SystemExit(__doc__)
