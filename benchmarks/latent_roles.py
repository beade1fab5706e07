"""Do BGM-IV's latents separate shared, outcome-only, treatment-only and nuisance variation, as the paper says?

    NPROC=1 python benchmarks/latent_roles.py paper-qmc 1000 1   preset, rows, seed: the fits not done yet, a row each
    python benchmarks/latent_roles.py tables                     all rows as a table in latent_roles.md

In each design the parts of the covariates of each role are known. After a fit, each part is regressed
on each block of latents in fresh rows, by kernel ridge regression; the score is the cross-validated share of the part's
variance that the block explains. Every finished fit is one line of latent_roles.jsonl and is not done again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import ortho_group
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import cross_val_predict

from bgmiv._io import write_whole
from bgmiv.data.ivdata import IVData
from bgmiv.designs import DemandDesign, make_design
from bgmiv.registry import make_config

ROWS = Path(__file__).with_suffix(".jsonl")
BLOCKS = ("shared", "outcome-only", "treatment-only", "nuisance")
FRESH = 1500
FRESH_OFFSET = 10_000


class Sample(NamedTuple):
    """Data, and the parts of their covariates by what they do; a part that the design lacks is absent."""

    data: IVData
    parts: dict[str, np.ndarray]


def _known(n: int, seed: int, sizes: tuple[int, int, int, int], show: Callable[[np.ndarray], Any]) -> Sample:
    """Standard normal factors of known roles; `show` says what of them is observed."""
    rng = np.random.default_rng([seed, 77])
    factors = rng.normal(size=(n, sum(sizes)))
    parts = dict(zip(BLOCKS, np.split(factors, np.cumsum(sizes)[:-1], axis=1), strict=True))
    shared, outcome, treatment = (parts[name] for name in BLOCKS[:3])
    instrument, shock, noise = rng.normal(size=(3, n))
    x = instrument + np.sin(shared.sum(axis=1)) + treatment.sum(axis=1) + shock
    y = x * (1.0 + 0.5 * shared[:, 0]) - 0.2 * x**2 + outcome.sum(axis=1) + shared.sum(axis=1)
    y = y + 0.7 * shock + 0.3 * noise
    data = IVData.from_arrays(y, x, instruments=instrument, covariates=show(factors))
    return Sample(data, parts)


def separate(n: int, seed: int) -> Sample:
    """Seven covariates, each of one role: the partition can be read off the columns."""
    return _known(n, seed, (2, 2, 1, 2), lambda factors: {f"v{i}": column for i, column in enumerate(factors.T)})


def mixed(n: int, seed: int) -> Sample:
    """The same seven factors behind a rotation: every covariate is a mixture of all roles."""
    turn = ortho_group.rvs(7, random_state=7)
    return _known(n, seed, (2, 2, 1, 2), lambda f: {f"v{i}": column for i, column in enumerate((f @ turn).T)})


def proxy(n: int, seed: int) -> Sample:
    """Six factors behind 60 noisy columns: a vector block, with the paper's partition for one."""
    loadings = np.random.default_rng(7).normal(size=(6, 60))
    noise = 0.5 * np.random.default_rng([seed, 78]).normal(size=(n, 60))
    return _known(n, seed, (2, 1, 1, 2), lambda factors: {"proxy": factors @ loadings + noise})


def demand(name: str) -> Callable[[int, int], Sample]:
    """A design of the paper: the season moves price and demand, the group demand alone."""

    def sample(n: int, seed: int) -> Sample:
        covariates = DemandDesign().draw(n, seed).covariates
        parts = {"shared": covariates["time"][:, None], "outcome-only": covariates["group"][:, None]}
        return Sample(make_design(name).sample(n, 0.5, seed), parts)

    return sample


DESIGNS = {
    "separate": separate,
    "mixed": mixed,
    "proxy": proxy,
    "demand": demand("demand"),
    "vector-proxy": demand("vector-proxy"),
}


def explained(part: np.ndarray, block: np.ndarray) -> float:
    """The cross-validated share of the part's variance that the block explains, 0 at least."""
    if block.shape[1] == 0:
        return 0.0
    inputs = (block - block.mean(axis=0)) / (block.std(axis=0) + 1e-9)
    targets = (part - part.mean(axis=0)) / part.std(axis=0)
    best = max(
        float(
            1.0
            - np.mean((targets - cross_val_predict(KernelRidge(alpha=a, kernel="rbf", gamma=g), inputs, targets)) ** 2)
        )
        for a in (0.01, 1.0)
        for g in (0.1 / inputs.shape[1], 1.0 / inputs.shape[1])
    )
    return round(max(best, 0.0), 3)


def done() -> list[dict[str, Any]]:
    """The rows so far."""
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def run(preset: str, n: int, seed: int, names: list[str]) -> None:
    """Fit the designs that have no row of this preset, size and seed yet."""
    for name in names:
        piece = {"design": name, "preset": preset, "n": n, "seed": seed}
        if any(row["piece"] == piece for row in done()):
            continue
        start = time.process_time()
        fitted = make_config("bgm-iv", preset).fit(DESIGNS[name](n, seed).data, seed)
        fresh = DESIGNS[name](FRESH, seed + FRESH_OFFSET)
        layout = astuple(fitted.config.layout)
        z = np.split(np.asarray(fitted.latents(fresh.data), np.float64), np.cumsum(layout)[:-1], axis=1)
        every = np.concatenate(z, axis=1)
        blocks = {**dict(zip(BLOCKS, z, strict=True)), "all latents": every}
        scores = {
            part: {block: explained(values, held) for block, held in blocks.items()}
            for part, values in fresh.parts.items()
        }
        row = {"piece": piece, "layout": layout, "explained": scores}
        row["cpu_seconds"] = round(time.process_time() - start, 1)
        with ROWS.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


def tables() -> None:
    """Put a line a design, preset and part, means over seeds, into latent_roles.md."""
    columns = [*BLOCKS, "all latents"]
    lines = [f"| design | preset | n | seeds | layout | part | {' | '.join(columns)} |"]
    lines.append("| --- " * (6 + len(columns)) + "|")
    rows = done()
    keys = dict.fromkeys(tuple(row["piece"][name] for name in ("design", "preset", "n")) for row in rows)
    for key in sorted(keys, key=lambda key: (list(DESIGNS).index(key[0]), *key[1:])):
        own = [row for row in rows if tuple(row["piece"][name] for name in ("design", "preset", "n")) == key]
        layouts = "; ".join(dict.fromkeys(str(tuple(row["layout"])) for row in own))
        for part in own[0]["explained"]:
            means = {block: np.mean([row["explained"][part][block] for row in own]) for block in columns}
            shown = [f"**{mean:.2f}**" if block == part else f"{mean:.2f}" for block, mean in means.items()]
            lines.append(f"| {' | '.join(map(str, key))} | {len(own)} | {layouts} | {part} | {' | '.join(shown)} |")
    page = ROWS.with_suffix(".md")
    before, rest = page.read_text().split("<!-- tables -->\n")
    after = rest.split("<!-- /tables -->\n")[1]
    text = "\n".join(["<!-- tables -->", "", *lines, "", "<!-- /tables -->", ""])
    write_whole(page, f"{before}{text}{after}".encode())


if __name__ == "__main__":
    if sys.argv[1:] == ["tables"]:
        tables()
    else:
        run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] or list(DESIGNS))
