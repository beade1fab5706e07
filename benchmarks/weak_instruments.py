"""Weak instruments: how often diagnose() warns, and what the usual interval and the Anderson-Rubin set hold.

One instrument, n = 500, a linear effect of 1 and errors with correlation 0.9. The population F is 1 + n π², with π the
coefficient of the instrument. Every sample is one line of weak_instruments.jsonl and is not done again.

    NPROC=1 python benchmarks/weak_instruments.py            the samples that are missing: 200 each with 2SLS
    NPROC=1 python benchmarks/weak_instruments.py bgmiv 40   the same with short fits of BGMIV on 40 samples each
    python benchmarks/weak_instruments.py tables             what is there as Markdown
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

from bgmiv import BGMIV, TSLS
from bgmiv.errors import FitWarning, WeakInstrumentWarning

ROWS = Path(__file__).with_suffix(".jsonl")
N, RHO, EFFECT, REPEATS = 500, 0.9, 1.0, 200
POPULATION_F = (1.1, 6.0, 150.0)

Row = dict[str, Any]


def done() -> list[Row]:
    """The finished samples."""
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def sample(population_f: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Outcome, treatment and instrument."""
    rng = np.random.default_rng([seed, int(10 * population_f)])
    w, u, other = rng.normal(size=(3, N))
    treatment = np.sqrt((population_f - 1.0) / N) * w + u
    return EFFECT * treatment + RHO * u + np.sqrt(1.0 - RHO**2) * other, treatment, w


def look(method: str, population_f: float, seed: int) -> Row:
    """Fit, diagnose, and keep what came of it."""
    outcome, treatment, w = sample(population_f, seed)
    model: Any = TSLS()
    if method == "bgmiv":
        model = BGMIV(members=2, iterations=200, random_state=seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", FitWarning)
        found = model.fit(outcome, treatment, instruments=w).diagnose(twin=False)
    linear = found.linear
    gain = next((check.numbers["gain"] for check in found.checks if check.key == "nonlinear-first-stage"), None)
    return {
        "warned": any(issubclass(one.category, WeakInstrumentWarning) for one in caught),
        "level": found["effective-f"].level,
        "effective_f": round(found["effective-f"].numbers["effective_f"], 4),
        "estimate": round(linear.coefficient, 5),
        "usual": bool(linear.lower <= EFFECT <= linear.upper),
        "robust": bool(any(lower <= EFFECT <= upper for lower, upper in linear.robust_set)),
        "unbounded": bool(any(np.isinf(end) for interval in linear.robust_set for end in interval)),
        "moment_p": round(found["moment-test"].numbers["p"], 5),
        "gain": gain,
    }


def pieces(method: str, repeats: int) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """All samples, the kinds in turn so that an unfinished study has some of each."""
    for seed in range(repeats):
        for population_f in POPULATION_F:
            piece = {"method": method, "f": population_f, "seed": seed}
            yield piece, lambda f=population_f, s=seed: look(method, f, s)


def run(method: str, repeats: int) -> None:
    """Do the samples that are not done yet."""
    known = {json.dumps(row["piece"]) for row in done()}
    for piece, work in pieces(method, repeats):
        if json.dumps(piece) in known:
            continue
        start = time.process_time()
        row = {"piece": piece, **work(), "cpu_seconds": round(time.process_time() - start, 2)}
        with ROWS.open("a") as file:
            file.write(json.dumps(row) + "\n")


def share(rows: list[Row], name: str) -> str:
    """A share with its count and Clopper-Pearson's interval."""
    count, total = sum(bool(row[name]) for row in rows), len(rows)
    interval = binomtest(count, total).proportion_ci()
    return f"{count / total:.1%} ({count}/{total}; {interval.low:.1%} to {interval.high:.1%})"


def tables() -> None:
    """What is there as Markdown."""
    rows = done()
    names = ("fit", "population F", "samples", "median effective F", "warned", "2SLS interval holds", "AR set holds")
    print(f"| {' | '.join(names)} | AR set unbounded |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for method in ("tsls", "bgmiv"):
        for population_f in POPULATION_F:
            some = [r for r in rows if (r["piece"]["method"], r["piece"]["f"]) == (method, population_f)]
            if some:
                median = np.median([row["effective_f"] for row in some])
                shares = " | ".join(share(some, name) for name in ("warned", "usual", "robust", "unbounded"))
                print(f"| {method} | {population_f:g} | {len(some)} | {median:.2f} | {shares} |")
    for method in ("tsls", "bgmiv"):
        spent = sum(row["cpu_seconds"] for row in rows if row["piece"]["method"] == method)
        print(f"\n{method}: {spent / 60:.1f} CPU-minutes.")


if __name__ == "__main__":
    if sys.argv[1:] == ["tables"]:
        tables()
    elif sys.argv[1:2] == ["bgmiv"]:
        run("bgmiv", int(sys.argv[2]))
    else:
        run("tsls", REPEATS)
