"""Whether `calibrate` says how often intervals hold: what it states on single data sets against the true coverage.

Five samples of each of three designs (NPIV, 500 rows, 50 data sets drawn from each fit); the true coverage is that of
100 samples of each design (seeds 1 to 100, version 9bb3488). A line of interval_calibration.jsonl a sample, which is
not done again.

    NPROC=1 OPENBLAS_NUM_THREADS=1 python benchmarks/interval_calibration.py          the samples that are missing
    python benchmarks/interval_calibration.py tables                                  what is there as Markdown
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np

from bgmiv import NPIV
from bgmiv.designs import make_design
from bgmiv.errors import BGMIVWarning
from interval_coverage import done

ROWS = Path(__file__).with_suffix(".jsonl")
SEEDS, N, REPEATS = range(1, 6), 500, 50
QUESTIONS = ("average effect", "points of g", "band of the curve")
# The shares of 100 samples in which the usual intervals held, by question.
TRUE = {
    "noisy-linear": (0.940, 0.971, 0.990),
    "noisy-concave": (0.990, 0.978, 0.940),
    "noisy-heterogeneous": (0.960, 0.981, 1.000),
}


def run() -> None:
    """Do the samples that are missing."""
    known = {(row["design"], row["seed"]) for row in done(ROWS)}
    for seed in SEEDS:
        for name in TRUE:
            if (name, seed) in known:
                continue
            start = time.process_time()
            data = make_design(name).sample(N, 0.7, seed)
            model = NPIV(random_state=seed).fit(
                data.outcome,
                data.treatment.astype(np.float64),
                instruments=dict(zip(data.schema.instruments, data.instruments.T, strict=True)),
                covariates=dict(zip(data.schema.covariate_names, data.covariates.T, strict=True)),
            )
            found = model.calibrate(repeats=REPEATS)
            row = {"design": name, "seed": seed, "coverage": found.coverage, "factors": found.factors}
            row |= {"failed": found.n_failed, "cpu_seconds": round(time.process_time() - start, 1)}
            with ROWS.open("a") as file:
                file.write(json.dumps(row) + "\n")


def tables() -> None:
    """What is there as Markdown."""
    rows = done(ROWS)
    print("| design | question | true | stated, by sample | mean | mean distance, points |\n|" + " --- |" * 6)
    distances: dict[str, list[float]] = {}
    for name, shares in TRUE.items():
        for question, share in zip(QUESTIONS, shares, strict=True):
            stated = [row["coverage"][question] for row in rows if row["design"] == name]
            apart = [100.0 * abs(one - share) for one in stated]
            distances.setdefault(question, []).extend(apart)
            shown = ", ".join(f"{one:.0%}" for one in stated)
            mean = f"{np.mean(stated):.1%} | {np.mean(apart):.1f}"
            print(f"| {name} | {question} | {share:.1%} | {shown} | {mean} |")
    print(
        "\nMean distance: " + ", ".join(f"{name} {np.mean(each):.1f}" for name, each in distances.items()) + " points."
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore", BGMIVWarning)
    tables() if sys.argv[1:] == ["tables"] else run()
