"""Discrete treatments and outcomes: structural contrasts and probabilities against the truth of the designs.

Every finished piece is one line of discrete.jsonl and is not done again; discrete.md says what came of it.

    NPROC=1 python benchmarks/discrete.py            the fits that are missing, seeds 1 to 3
    python benchmarks/discrete.py tables             what is there as Markdown
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

from bgmiv.designs import StructuralGrid
from bgmiv.diagnostics.verdict import judge
from bgmiv.effects import predict
from bgmiv.registry import make_config
from report import make_design

ROWS = Path(__file__).with_suffix(".jsonl")
N, RHO, SEEDS = 5000, 0.9, (1, 2, 3)
PIECES = [
    ("binary-outcome", "bgm-iv"),
    ("binary-treatment", "bgm-iv"),
    ("categorical-treatment", "bgm-iv"),
    ("binary-treatment", "bgm-iv-noiv"),
    ("categorical-treatment", "bgm-iv-noiv"),
    ("binary-outcome", "bgm-iv-noiv"),
]

Row = dict[str, Any]


def done() -> list[Row]:
    """The finished pieces."""
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def each(pieces: Iterator[tuple[Row, Callable[[], Row]]]) -> None:
    """Do the pieces that are not done yet; a piece is known by its identifying fields."""
    known = [row["piece"] for row in done()]
    for piece, work in pieces:
        if piece in known:
            continue
        start = time.process_time()
        found = work()
        row = {"piece": piece, **found, "cpu_seconds": round(time.process_time() - start, 1)}
        with ROWS.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


def contrasts(grid: StructuralGrid, predicted: np.ndarray) -> dict[str, float]:
    """Error of each level's contrast with the first, averaged over the grid's covariates, as a share of the truth."""
    first, *others = dict.fromkeys(grid.treatment.tolist())
    found = {}
    for level in others:
        own, base = grid.treatment == level, grid.treatment == first
        estimate, truth = (values[own].mean() - values[base].mean() for values in (predicted, grid.truth))
        found[str(level)] = round(float(estimate / truth - 1.0), 4)
    return found


def fit(design: str, method: str, seed: int) -> Row:
    """One fit, its errors and its verdict."""
    made = make_design(design)
    grid = made.grid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted: Any = make_config(method).fit(made.sample(N, RHO, seed), seed)
    predicted = predict(fitted, grid.treatment, grid.covariates)
    square = (predicted - grid.truth) ** 2
    row: Row = {"rmse_in_support": round(float(np.sqrt(square[grid.in_support].mean())), 4)}
    if design != "binary-outcome":
        row["contrast_errors"] = contrasts(grid, predicted)
    return {**row, "verdict": judge(fitted.evidence).severity, "reasons": list(judge(fitted.evidence).reasons)}


def pieces() -> Iterator[tuple[Row, Callable[[], Row]]]:
    """Seed by seed, so that an unfinished run has something of everything."""
    for seed in SEEDS:
        for design, method in PIECES:
            piece = {"design": design, "method": method, "seed": seed, "n": N, "rho": RHO}
            yield piece, lambda d=design, m=method, s=seed: fit(d, m, s)


def tables() -> str:
    """What is there, a line for each design and method."""
    lines = [
        "| design | method | seed | contrast errors | RMSE in support | verdict |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    order = {pair: i for i, pair in enumerate(PIECES)}
    for row in sorted(done(), key=lambda r: (order[r["piece"]["design"], r["piece"]["method"]], r["piece"]["seed"])):
        piece = row["piece"]
        errors = ", ".join(f"{level}: {error:+.1%}" for level, error in row.get("contrast_errors", {}).items())
        cells = (piece["design"], piece["method"], piece["seed"], errors, row["rmse_in_support"], row["verdict"])
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:] == ["tables"]:
        print(tables())
    else:
        each(pieces())
