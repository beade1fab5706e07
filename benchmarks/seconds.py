"""What it costs and what it loses to train networks only where something may be left for them.

- `python benchmarks/seconds.py checks`: of samples of many designs, development seeds, the check's figure.
- `python benchmarks/seconds.py errors`: where it does not lead to networks, the error of g without and with them, as a
  share of var(g) over the design's grid. Where it does, the fit is that with `networks=True`.
- `python benchmarks/seconds.py cost`: CPU-seconds of the fits of NPIV and BGM-IV on the same samples, in turn.
- `python benchmarks/seconds.py start`: CPU-seconds of a fresh process, from its start to a written report, with an
  empty cache of compiled programs and again.
- `python benchmarks/seconds.py networks NAME=SRC ...`: CPU-seconds of a fit with networks in a fresh process, from its
  start, with an empty cache and again, and of a fit and an average effect with its interval; of versions by the folders
  of their packages, in turn.
- `python benchmarks/seconds.py show`: all figures.

Rows are appended to `seconds.jsonl`; what is there is not run again. One thread: NPROC=1 OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from bgmiv.baselines.npiv import NPIVConfig
from bgmiv.bgm.config import default_preset
from bgmiv.bgm.last_stage import LastStage
from bgmiv.bgm.network_check import left_for_networks
from bgmiv.effects import predict
from bgmiv.preprocess.reduction import BlockReduction
from bgmiv.sieve.fit import SieveConfig, fit_sieve
from report import make_design

ROWS = Path(__file__).with_suffix(".jsonl")
SEEDS = range(5000, 5010)


class Cell(NamedTuple):
    """A design, its rows, and its confounding."""

    design: str
    n: int
    rho: float


CELLS = [
    Cell("noisy-linear", 1000, 0.9), Cell("noisy-concave", 1000, 0.7), Cell("noisy-threshold", 1000, 0.9),
    Cell("noisy-heterogeneous", 1000, 0.9), Cell("noisy-interaction", 1000, 0.9), Cell("noisy-null", 1000, 0.9),
    Cell("noisy-demand", 1000, 0.9), Cell("demand", 1000, 0.5), Cell("demand-confounded", 500, 0.9),
    Cell("binary-confounded", 1000, 0.9), Cell("lowdim-sin", 1000, 0.9), Cell("lowdim-abs", 1000, 0.9),
    Cell("lowdim-step", 1000, 0.9), Cell("lowdim-linear", 1000, 0.9), Cell("semi-card-linear", 2000, 0.7),
    Cell("semi-card-concave", 2000, 0.7), Cell("semi-401ksubs-heterogeneous", 2000, 0.7),
    Cell("semi-meps-heterogeneous", 2000, 0.7), Cell("network-sin", 1000, 0.5), Cell("network-abs", 1000, 0.5),
    Cell("tabcf-a3-b5", 1000, 0.5), Cell("tabcf-a9-b11", 1000, 0.5), Cell("agmm-2dpoly", 1000, 0.5),
    Cell("agmm-sin", 1000, 0.5), Cell("agmm-step", 1000, 0.5), Cell("agmm-rand-pw", 1000, 0.5),
]  # fmt: skip

# Where networks are what the estimate is made of; they are counted among those that could be lost.
ALWAYS = ("demand", "noisy-demand", "demand-confounded")

README = """
import os, sys
import numpy as np
import bgmiv
rng = np.random.default_rng(0)
cost, season, shock = rng.normal(size=(3, 1000))
price = 5 + cost + season + shock
sales = 40 - 3 * price + 2 * np.sin(season) + 4 * shock
model = bgmiv.METHOD().fit(sales, price, instruments=cost, covariates={"season": season})
model.ate_interval(t0=5.0, t1=6.0)
model.verdict_
model.report(sys.argv[1] + "/report.html")
"""
CARD = (
    "fit", "card.csv", "--out", "card-fit", "--report", "card.html", "--formula",
    "lwage ~ exper + expersq + black + smsa + south + [educ ~ nearc4]",
)  # fmt: skip

# Designs that need networks.
FIT = """
import sys, warnings
from bgmiv import BGMIV
from bgmiv.designs import make_design
warnings.simplefilter("ignore")
data = make_design(sys.argv[1]).sample(1000, 0.5, 5000)
covariates, blocks = data.covariates, None
if covariates.shape[1] > 2:
    covariates, blocks = {"time": covariates[:, 0], "proxy": covariates[:, 1:]}, {"proxy": "vector"}
model = BGMIV(random_state=5000, progress=False)
model.fit(data.outcome, data.treatment, instruments=data.instruments, covariates=covariates, blocks=blocks)
assert model.fitted_.uses_networks or sys.argv[1] != "demand"
if sys.argv[2] == "interval":
    model.ate_interval(t0=15.0, t1=20.0)
"""
FITS = ("demand", "vector-proxy")


def rows() -> list[dict[str, Any]]:
    """What has been measured."""
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def keep(**row: Any) -> None:
    """Append a row."""
    with ROWS.open("a") as file:
        file.write(json.dumps(row) + "\n")


def samples(kind: str, n_seeds: int = len(SEEDS)) -> Iterator[tuple[Cell, int]]:
    """Cells and seeds that are still to be run, the first seeds of all cells first."""
    done = {(row["design"], row["n"], row["seed"]) for row in rows() if row["kind"] == kind}
    for seed in SEEDS[:n_seeds]:
        for cell in CELLS:
            if (cell.design, cell.n, seed) not in done:
                yield cell, seed


def error(fitted: Any, design: Any) -> float:
    """The mean square error of g as a share of its variance."""
    grid = design.grid()
    found = predict(fitted, grid.treatment, grid.covariates)
    return float(np.mean((found - grid.truth) ** 2) / max(np.var(grid.truth), np.finfo(float).tiny))


def checks() -> None:
    """The check of each sample: cheap, and run anew after every change of it."""
    for cell, seed in samples("check"):
        data = make_design(cell.design).sample(cell.n, cell.rho, seed)
        reduced = BlockReduction().fit(data).apply(data)
        left = left_for_networks(LastStage(reduced, fit_sieve(SieveConfig(), reduced)))
        keep(kind="check", design=cell.design, n=cell.n, seed=seed, left=left, trained=left > 0.0)


def errors() -> None:
    """The errors with and without networks, where the check has not led to networks."""
    config = default_preset()
    trained = {(row["design"], row["seed"]) for row in rows() if row["kind"] == "check" and row["trained"]}
    for cell, seed in samples("error"):
        if (cell.design, seed) in trained and cell.design not in ALWAYS:
            continue
        design = make_design(cell.design)
        data = design.sample(cell.n, cell.rho, seed)
        alone = replace(config, networks=False).fit(data, seed)
        begin = process_time()
        fitted: Any = replace(config, networks=True).fit(data, seed)
        row = {"cpu": process_time() - begin, "with": error(fitted, design), "uses": fitted.uses_networks}
        keep(kind="error", design=cell.design, n=cell.n, seed=seed, without=error(alone, design), **row)


def cost() -> None:
    """The fits of NPIV and BGM-IV in turn; where networks are trained, BGM-IV's cost is no question of this study."""
    trained = {(row["design"], row["seed"]) for row in rows() if row["kind"] == "check" and row["trained"]}
    for cell, seed in samples("cost", 5):
        if (cell.design, seed) in trained:
            continue
        data = make_design(cell.design).sample(cell.n, cell.rho, seed)
        spent = {}
        for name, config in (("npiv", NPIVConfig()), ("bgm-iv", default_preset())):
            start = process_time()
            config.fit(data, seed)
            spent[name] = process_time() - start
        keep(kind="cost", design=cell.design, n=cell.n, seed=seed, **spent)


def start() -> None:
    """Fresh processes, each with an empty cache and again."""
    for method in ("BGMIV", "NPIV", "TSLS"):
        command = [sys.executable, "-c", README.replace("METHOD", method)]
        measured(f"README's example, {method}", lambda folder, command=command: [*command, folder])
    bgmiv = Path(sys.executable).with_name("bgmiv")
    measured("bgmiv --help", lambda _: [str(bgmiv), "--help"])
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([bgmiv, "data", "card", "--out", "card.csv"], cwd=folder, check=True, capture_output=True)
        card = Path(folder, "card.csv").read_bytes()
    measured("bgmiv fit card.csv", lambda _: [str(bgmiv), *CARD], {"card.csv": card})
    measured("bgmiv demo", lambda _: [str(bgmiv), "demo", "--out", "demo"])


def networks(*versions: str) -> None:
    """Fits with networks, of each version twice."""
    for design, asked in product(FITS, ("fit", "interval")):
        for _ in range(2):
            for version in versions:
                name, source = version.split("=")
                command = [sys.executable, "-c", FIT, design, asked]
                measured(f"{design} 1000, {asked}, {name}", lambda _, command=command: command, source=source)


def measured(
    name: str, command: Callable[[str], list[str]], files: Mapping[str, bytes] | None = None, source: str = ""
) -> None:
    """CPU-seconds of a process and its children, with an empty cache of compiled programs and then with a full one.

    The package is that of the folder `source`, if one is given.
    """
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"BGMIV_COMPILATION_CACHE": cache}
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        if source:
            environment["PYTHONPATH"] = source
        spent = []
        for _ in range(2):
            with tempfile.TemporaryDirectory() as folder:
                for file, content in (files or {}).items():
                    Path(folder, file).write_bytes(content)
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                subprocess.run(command(folder), cwd=folder, env=environment, check=True, capture_output=True)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    print(f"{name}: {spent[0]:.1f} CPU-s, and again {spent[1]:.1f}", flush=True)
    keep(kind="start", name=name, cold=spent[0], warm=spent[1])


def show() -> None:
    """The figures."""
    checked, compared = (pd.DataFrame([row for row in rows() if row["kind"] == kind]) for kind in ("check", "error"))
    for name, cell in checked.groupby("design"):
        known = compared[compared.design == name]
        mean = np.exp(np.log(known.without / known["with"]).mean())
        print(
            f"{name:30s} trained {cell.trained.sum():2d} of {len(cell):2d}; share left {cell.left.min():+.4f} to "
            f"{cell.left.max():+.4f}; error without / with networks {mean:.2f} ({len(known)} seeds)"
        )
    known = compared.merge(checked, on=["design", "n", "seed"], suffixes=("", "_"))
    helped = known[known["with"] < 0.9 * known.without]
    print(f"networks lower the error by a tenth in {len(helped)} of {len(known)}; lost: {(~helped.trained).sum()}")
    known["log_ratio"] = np.where(known.trained, 0.0, np.log(known.without / known["with"]))
    cells = known.groupby("design").log_ratio.mean()
    # Cells whose samples all have networks were not fitted twice.
    n_same = sum(checked.groupby("design").trained.all() & ~checked.groupby("design").size().index.isin(cells.index))
    mean = cells.sum() / (len(cells) + n_same)
    print(
        f"error of the default / with networks=True: geometric mean over {len(cells) + n_same} cells "
        f"{np.exp(mean):.3f}, worst cell {cells.idxmax()} {np.exp(cells.max()):.2f}"
    )
    costs = pd.DataFrame([row for row in rows() if row["kind"] == "cost"])
    if len(costs):
        within = costs["bgm-iv"] <= 2.0 * costs.npiv + 1.0
        ratio = (costs["bgm-iv"] / costs.npiv).median()
        print(f"BGM-IV's fit <= 2 NPIV's + 1 CPU-s in {within.sum()} of {len(costs)}; median ratio {ratio:.2f}")
    for row in rows():
        if row["kind"] == "start":
            print(f"{row['name']}: {row['cold']:.1f} CPU-s, and again {row['warm']:.1f}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    {"checks": checks, "errors": errors, "cost": cost, "start": start, "networks": networks, "show": show}[sys.argv[1]](
        *sys.argv[2:]
    )
