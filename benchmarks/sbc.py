"""Simulation-based calibration of the latent sampler: are ranks of true latents among posterior draws uniform?

A model is fitted shortly on the demand design. Then, many times: z ~ N(0, I), v ~ p(v | z) under the model, draws from
p(z | v) by the sampler, and the rank of every true coordinate (and of functions of z) among 63 of them. If the draws
come from the posterior, every rank from 0 to 63 is equally likely, whatever the model.

Every finished piece is one line of sbc.jsonl and is not done again; sbc.md says what came of it.

    NPROC=1 python benchmarks/sbc.py            the pieces that are missing
    python benchmarks/sbc.py tables             what is there as Markdown

Reference: S. Talts, M. Betancourt, D. Simpson, A. Vehtari, A. Gelman (2018), Validating Bayesian inference algorithms
with simulation-based calibration, arXiv:1804.06788.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import chisquare, kstest
from statsmodels.stats.multitest import multipletests

from bgmiv import BGMIV
from bgmiv.bgm.config import LatentPosterior
from bgmiv.bgm.latents import sample_latents
from bgmiv.bgm.model import BGMIVModel
from bgmiv.designs import make_design
from bgmiv.likelihood import Gaussian

FILE = Path(__file__).with_suffix(".jsonl")
KEPT, BINS = 63, 16
LAYOUTS = {"(2, 0, 0, 0)": (2, 0, 0, 0), "(1, 1, 0, 0)": (1, 1, 0, 0), "the default's": None}
CHAINS = LatentPosterior(n_warmup=150, n_draws=160)
# Layout, simulations, seed.
PIECES = [("the default's", 512, 20), ("(2, 0, 0, 0)", 512, 20), ("(2, 0, 0, 0)", 512, 21), ("(1, 1, 0, 0)", 512, 20)]

Row = dict[str, Any]


def done() -> list[Row]:
    """The finished pieces."""
    return [json.loads(line) for line in FILE.read_text().splitlines()] if FILE.exists() else []


@cache
def fitted(layout: str) -> BGMIVModel:
    """One member of the default preset, trained shortly on the demand design."""
    data = make_design("demand").sample(1000, 0.5, 1)
    model = BGMIV(latent_layout=LAYOUTS[layout], members=1, held_out=0.0, iterations=2000, random_state=1)
    config = model._config()
    member: BGMIVModel = config.fit(data, 1).members[0].model
    return member


def simulated(model: BGMIVModel, n: int, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Latents from the prior `(n, d)` and covariates given them `(n, p)`."""
    key_z, key_v = jax.random.split(key)
    z = jax.random.normal(key_z, (n, model.layout.dim))

    def covariates(z: jax.Array, key: jax.Array) -> jax.Array:
        parts = []
        for branch, raw in zip(model.covariates.branches, model.covariates.decode(z), strict=True):
            key, own = jax.random.split(key)
            if isinstance(branch.head, Gaussian):
                # A weighted log-density is that of another variance.
                share = 1.0 if branch.reduction == "sum" else 1.0 / max(branch.stop - branch.start, 1)
                deviation = jnp.sqrt(branch.head.variance(raw) / share)
                parts.append(branch.head.mean(raw) + deviation * jax.random.normal(own, (branch.head.dim,)))
            elif branch.reduction == "sum" or branch.stop - branch.start == 1:
                parts.append(branch.head.sample(raw, own, 1)[0])
            else:
                raise ValueError(f"the weighted density of {branch.head} cannot be drawn from")
        return jnp.concatenate(parts)

    return z, jax.vmap(covariates)(z, jax.random.split(key_v, n))


def ranks_of(model: BGMIVModel, z: jax.Array, v: jax.Array, draws: np.ndarray) -> dict[str, np.ndarray]:
    """Ranks of coordinates and of three functions, `(n,)` each, among `KEPT` draws `(n, KEPT, d)`."""
    functions = {
        "structural mean": lambda v, z: model.structural_mean(jnp.zeros(()), z),
        "squared norm": lambda v, z: jnp.sum(z**2),
        "log p(v | z)": model.covariates.log_prob,
    }
    found = {f"z[{j}]": np.sum(draws[:, :, j] < np.asarray(z)[:, j, None], axis=1) for j in range(z.shape[1])}
    for name, function in functions.items():
        true = np.asarray(jax.jit(jax.vmap(function))(v, z))
        drawn = np.asarray(jax.jit(jax.vmap(jax.vmap(function, (None, 0))))(v, draws))
        found[name] = np.sum(drawn < true[:, None], axis=1)
    return found


def thinned(draws: np.ndarray) -> np.ndarray:
    """`KEPT` draws of all chains, equally far apart: `(n, chains, draws, d)` to `(n, KEPT, d)`."""
    n, chains, length, d = draws.shape
    each = (KEPT + 1) // chains
    apart = length // each
    return draws[:, :, apart - 1 :: apart][:, :, :each].reshape(n, chains * each, d)[:, :KEPT]


def calibrate(layout: str, n: int, seed: int) -> Row:
    """One piece: simulations, p-values of uniform ranks, and how far the chains can be trusted."""
    model = fitted(layout)
    key, key_draws = jax.random.split(jax.random.key(seed))
    z, v = simulated(model, n, key)
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = sample_latents(model, np.asarray(v), CHAINS, key_draws)
    seconds = time.process_time() - start
    ranks = ranks_of(model, z, v, thinned(result.draws))
    chi = [chisquare(np.bincount(r * BINS // (KEPT + 1), minlength=BINS)).pvalue for r in ranks.values()]
    # A rank is uniform on 64 values; spread evenly within its value it is uniform on [0, 1].
    spread = np.random.default_rng(0).uniform(size=n)
    ecdf = [kstest((r + spread) / (KEPT + 1), "uniform").pvalue for r in ranks.values()]
    return {
        "statistics": list(ranks),
        "chi_square": [round(float(p), 4) for p in chi],
        "ecdf": [round(float(p), 4) for p in ecdf],
        "holm_chi_square": round(float(multipletests(chi, method="holm")[1].min()), 4),
        "holm_ecdf": round(float(multipletests(ecdf, method="holm")[1].min()), 4),
        "mean_ranks": [round(float(r.mean()), 2) for r in ranks.values()],
        "ranks": {name: r.tolist() for name, r in ranks.items()},
        "rhat_quantiles": [round(float(q), 3) for q in np.quantile(result.rhat, [0.5, 0.95, 1.0])],
        "ess_quantiles": [round(float(q)) for q in np.quantile(result.ess, [0.0, 0.05, 0.5])],
        "acceptance": round(float(result.acceptance.mean()), 3),
        "divergences": int(result.divergences.sum()),
        "sampler_cpu_seconds": round(seconds, 1),
    }


def run() -> None:
    """Do the pieces that are not done yet."""
    known = [row["piece"] for row in done()]
    for layout, n, seed in PIECES:
        piece = {"layout": layout, "simulations": n, "seed": seed}
        if piece in known:
            continue
        row = {"piece": piece, **calibrate(layout, n, seed)}
        with FILE.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps({name: value for name, value in row.items() if name != "ranks"}), flush=True)


def tables() -> None:
    """What is there as Markdown."""
    print("| layout | simulations | seed | statistics | least p, chi-square (Holm) | least p, ECDF (Holm) ", end="")
    print("| R-hat 50%, 95%, most | ESS least, 5%, 50% | acceptance | CPU s |")
    print("| --- " * 10 + "|")
    for row in done():
        piece = row["piece"]
        cells = [
            piece["layout"],
            piece["simulations"],
            piece["seed"],
            len(row["statistics"]),
            f"{min(row['chi_square'])} ({row['holm_chi_square']})",
            f"{min(row['ecdf'])} ({row['holm_ecdf']})",
            ", ".join(map(str, row["rhat_quantiles"])),
            ", ".join(map(str, row["ess_quantiles"])),
            row["acceptance"],
            row["sampler_cpu_seconds"],
        ]
        print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    tables() if sys.argv[1:] == ["tables"] else run()
