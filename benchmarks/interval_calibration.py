"""Whether `calibrate` says how often intervals hold: what it states on single data sets against the true coverage.

Five samples of each of three designs (NPIV, 500 rows, 50 data sets drawn from each fit); the true coverage is that of
the 100 samples of interval_coverage.jsonl. A line of interval_calibration.jsonl a sample, which is not done again.

    NPROC=1 OPENBLAS_NUM_THREADS=1 python benchmarks/interval_calibration.py          the samples that are missing
    python benchmarks/interval_calibration.py tables                                  what is there as Markdown
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path

import interval_coverage as study
import numpy as np

from bgmiv import NPIV
from bgmiv.errors import BGMIVWarning

ROWS = Path(__file__).with_suffix(".jsonl")
DESIGNS, SEEDS, N, REPEATS = ("noisy-linear", "noisy-concave", "noisy-heterogeneous"), range(1, 6), 500, 50


def run() -> None:
    """Do the samples that are missing."""
    known = {(row["design"], row["seed"]) for row in study.done(ROWS)}
    for seed in SEEDS:
        for name in DESIGNS:
            if (name, seed) in known:
                continue
            start = time.process_time()
            _, data, arguments = study.drawn(name, N, seed)
            model = NPIV(random_state=seed).fit(data.outcome, data.treatment.astype(np.float64), **arguments)
            found = model.calibrate(repeats=REPEATS)
            row = {"design": name, "seed": seed, "coverage": found.coverage, "factors": found.factors}
            row |= {"failed": found.n_failed, "cpu_seconds": round(time.process_time() - start, 1)}
            with ROWS.open("a") as file:
                file.write(json.dumps(row) + "\n")


def truth(name: str) -> dict[str, float]:
    """The shares of intervals that held in the study."""
    rows = [
        row
        for row in study.done(study.ROWS)
        if row["piece"] == row["piece"] | {"design": name, "n": N, "method": "npiv"}
    ]
    banded = [row for row in rows if row.get("bands") == study.BANDS]
    return {
        "average effect": float(
            np.mean([row["contrast"][2] <= row["contrast"][0] <= row["contrast"][3] for row in rows])
        ),
        "points of g": float(np.mean([row["g pointwise"] for row in rows])),
        "band of the curve": float(np.mean([row["curve uniform"] == 1.0 for row in banded])),
    }


def tables() -> None:
    """What is there as Markdown."""
    rows = study.done(ROWS)
    print("| design | question | true | stated, by sample | mean | mean distance, points |\n|" + " --- |" * 6)
    distances: dict[str, list[float]] = {}
    for name in DESIGNS:
        for question, share in truth(name).items():
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
