"""Coverage of 95% intervals: how often the truth lies in them, at points that the data show.

Every finished fit is one line of interval_coverage.jsonl and is not done again; interval_coverage.md says what came.

    NPROC=1 python benchmarks/interval_coverage.py            the fits that are missing, seeds 1 to 100
    python benchmarks/interval_coverage.py tables             what is there as Markdown
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from bgmiv import BGMIV
from bgmiv.designs import make_design
from bgmiv.designs.demand import demand
from bgmiv.errors import BGMIVWarning

ROWS = Path(__file__).with_suffix(".jsonl")
DESIGNS = ("linear-gaussian", "lowdim-sin", "demand-confounded")
N, RHO, SEEDS, LEVEL = 500, 0.9, range(1, 101), 0.95
POINTS = 400

Row = dict[str, Any]


def done() -> list[Row]:
    """The finished fits."""
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def truth_of(name: str, design: Any, treatment: float, covariates: dict[str, np.ndarray]) -> np.ndarray:
    """The structural function at one treatment for rows of covariates."""
    if name == "linear-gaussian":
        return design.structural(treatment, covariates["covariate"])
    if name == "lowdim-sin":
        return design.structural(np.asarray([treatment]))
    return demand(np.full(len(covariates["time"]), treatment), covariates["time"], covariates["group"])


def fit(name: str, seed: int) -> Row:
    """One fit, and how its intervals fared: pointwise, and for the average effect of an interquartile change."""
    design = make_design(name)
    data = design.sample(N, RHO, seed)
    covariates = dict(zip(data.schema.covariate_names, data.covariates.T, strict=True))
    model = BGMIV(random_state=seed).fit(
        data.outcome,
        data.treatment,
        instruments=dict(zip(data.schema.instruments, data.instruments.T, strict=True)),
        covariates=covariates or None,
    )
    grid = design.grid()
    inside = np.flatnonzero(grid.in_support)
    points = np.random.default_rng(0).permutation(inside)[:POINTS]
    asked = {key: values[points] for key, values in grid.covariates.items()} or None
    found = model.predict_interval(grid.treatment[points], asked, level=LEVEL)
    truth = grid.truth[points]
    held = (found.lower <= truth) & (truth <= found.upper)
    t0, t1 = np.quantile(data.treatment, [0.25, 0.75]).tolist()
    effect = model.ate_interval(covariates or None, t0=t0, t1=t1, level=LEVEL)
    change = float(np.mean(truth_of(name, design, t1, covariates) - truth_of(name, design, t0, covariates)))
    flagged = model.in_support(grid.treatment, dict(grid.covariates) or None)
    deviation = float(np.std(data.outcome))
    return {
        "covered": float(held.mean()),
        "covered_where_flagged_inside": float(held[found.in_support].mean()),
        "half_width": float(np.mean(found.upper - found.lower) / 2.0 / deviation),
        "rmse": float(np.sqrt(np.mean((found.estimate - truth) ** 2)) / deviation),
        "sampling": float(np.mean(found.sources["sampling"]) / deviation),
        "network": float(np.mean(found.sources["network"]) / deviation),
        "effect": [change, effect.estimate, effect.lower, effect.upper],
        "effect_covered": bool(effect.lower <= change <= effect.upper),
        "support_agrees": float(np.mean(flagged == grid.in_support)),
        "verdict": model.verdict_.severity,
    }


def run() -> None:
    """Do what is missing, a seed of every design in turn."""
    known = {(row["design"], row["seed"]) for row in done()}
    for seed in SEEDS:
        for name in DESIGNS:
            if (name, seed) in known:
                continue
            start = time.process_time()
            found = fit(name, seed)
            row = {"design": name, "seed": seed, "n": N, "rho": RHO, **found}
            row["cpu_seconds"] = round(time.process_time() - start, 1)
            with ROWS.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)


def tables() -> None:
    """Print what is there."""
    rows = done()
    print(
        "| design | fits | g, in support | where also flagged inside | fits below 85% | half-width | error | average "
        "effect | support flags agree |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    for name in DESIGNS:
        mine = [row for row in rows if row["design"] == name]
        if not mine:
            continue
        covered = np.asarray([row["covered"] for row in mine])
        error = covered.std(ddof=1) / np.sqrt(len(covered)) if len(covered) > 1 else np.nan
        mean = {key: float(np.mean([row[key] for row in mine])) for key in mine[0] if isinstance(mine[0][key], float)}
        effects = sum(row["effect_covered"] for row in mine)
        flagged = mean["covered_where_flagged_inside"]
        print(
            f"| {name} | {len(mine)} | {covered.mean():.1%} ± {error:.1%} | {flagged:.1%} | "
            f"{int((covered < 0.85).sum())} | {mean['half_width']:.2f} | {mean['rmse']:.2f} | {effects}/{len(mine)} | "
            f"{mean['support_agrees']:.0%} |"
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore", BGMIVWarning)
    if sys.argv[1:] == ["tables"]:
        tables()
    else:
        run()
