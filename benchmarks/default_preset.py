"""Studies behind BGM-IV's default preset: how it was chosen, and what holds of it.

Every finished piece is one line of default_preset.jsonl and is not done again; default-preset.md says what came of it.

    NPROC=1 python benchmarks/default_preset.py trials      variants by held-out criteria, on development seeds
    NPROC=1 python benchmarks/default_preset.py latents     structural error by encoder, MAP and posterior mean
    NPROC=1 python benchmarks/default_preset.py slopes      the slope of the linear-Gaussian design, true value -2
    NPROC=1 python benchmarks/default_preset.py thresholds  the same as verdicts, on development seeds
    NPROC=1 python benchmarks/default_preset.py verdicts    deliberately broken fits and their verdicts
    NPROC=1 python benchmarks/default_preset.py rows        cost as the number of rows grows
    NPROC=1 python benchmarks/default_preset.py cold        cost with an empty and with a filled compilation cache
    python benchmarks/default_preset.py tables              all of it as Markdown
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bgmiv.bgm.config import BGMIVConfig, default_preset
from bgmiv.bgm.latents import LatentMap, LatentPosterior
from bgmiv.bgm.model import LatentLayout
from bgmiv.bgm.result import FittedBGMIV
from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Query, Rows
from bgmiv.designs import make_design
from bgmiv.diagnostics import conditions_of, moment_risk
from bgmiv.effects import predict
from bgmiv.errors import BGMIVError
from bgmiv.preprocess.reduction import BlockReduction

ROWS = Path(__file__).with_suffix(".jsonl")
# Trials and thresholds use seeds from here on; reported seeds start at 1.
DEVELOPMENT = 600
HELD_OUT_ROWS = 3000
HELD_OUT_OFFSET = 1000
# Rows with an instrument beyond this quantile are left to the test, as a check on extrapolation.
TAIL = 0.8

Row = dict[str, Any]


def done() -> list[Row]:
    """The finished pieces."""
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def keep(row: Row) -> None:
    """Append a finished piece, and show it."""
    with ROWS.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def each(study: str, pieces: Iterator[tuple[Row, Callable[[], Row]]]) -> None:
    """Do the pieces that are not done yet; a piece is known by its identifying fields."""
    known = {json.dumps(row["piece"], sort_keys=True) for row in done() if row["study"] == study}
    for piece, work in pieces:
        if json.dumps(piece, sort_keys=True) in known:
            continue
        start = time.process_time()
        found = work()
        keep({"study": study, "piece": piece, **found, "cpu_seconds": round(time.process_time() - start, 1)})


def changed(config: Any, path: str, value: Any) -> Any:
    """A frozen config with the field at a dotted path replaced."""
    name, _, rest = path.partition(".")
    return replace(config, **{name: changed(getattr(config, name), rest, value) if rest else value})


def variant(changes: dict[str, Any]) -> BGMIVConfig:
    """The default preset with some fields replaced."""
    config = default_preset()
    for path, value in changes.items():
        config = changed(config, path, value)
    return config


# Trials ---------------------------------------------------------------------------------------------------------------

PROBLEMS = (("demand", 1000, 0.5), ("vector-proxy", 1000, 0.5), ("linear-gaussian", 1000, 0.9))
TRIAL_PROBLEMS = (("demand", 1000, 0.5), ("noisy-demand", 1000, 0.9))
_NO_TRUNKS: dict[str, Any] = {"model.treatment_trunk": (), "model.outcome_trunk": ()}
TRIALS: dict[str, dict[str, Any]] = {
    "default": {},
    "weight decay 0.1": {"initial.weight_decay": 0.1},
    "weight decay 2": {"initial.weight_decay": 2.0},
    "without trunks": _NO_TRUNKS,
    "the former default": {
        **_NO_TRUNKS,
        "layout": LatentLayout(8, 8, 2, 2),
        "model.covariates.dense_hidden": (64, 64, 64, 64),
        "model.covariates.dense_decoder_hidden": (64, 64),
        "initial.weight_decay": 0.1,
    },
    "latents 1, 1, 0, 0": {"layout": LatentLayout(1, 1, 0, 0)},
    "without the generator": {"initial.covariate_weight": 0.0},
    "without the prior": {"initial.prior_weight": 0.0},
    "one member": {"ensemble.members": 1},
}


def trials() -> None:
    """Variants judged on fresh rows of development seeds, within and beyond the instruments seen in training."""

    def work(design: str, n: int, rho: float, seed: int, changes: dict[str, Any]) -> Row:
        make = make_design(design)
        train, test = make.sample(int(n / 0.75), rho, seed), make.sample(HELD_OUT_ROWS, rho, seed + HELD_OUT_OFFSET)
        edge = np.quantile(np.abs(train.instruments[:, 0]), TAIL)
        train = train.take(np.flatnonzero(np.abs(train.instruments[:, 0]) < edge)[:n])
        clock = time.process_time()
        fitted = variant(changes).fit(train, jax.random.key(seed))
        fit_cpu = time.process_time() - clock
        reduced = BlockReduction().fit(train).apply(test)
        predicted = fitted.at(Query(test.treatment[None], Rows(test.covariates)))[0]
        row: Row = {"fit_cpu_seconds": round(fit_cpu, 1)}
        variance = float(np.var(test.outcome))
        beyond = np.abs(test.instruments[:, 0]) >= edge
        for name, rows in (("within", np.flatnonzero(~beyond)), ("beyond", np.flatnonzero(beyond))):
            residuals = test.outcome[rows] - predicted[rows]
            row[f"{name}_risk"] = moment_risk(residuals, conditions_of(reduced.take(rows))) / variance
            row[f"{name}_error"] = float(np.mean(residuals**2)) / variance
        return row

    def pieces() -> Iterator[tuple[Row, Callable[[], Row]]]:
        for seed in (700, 701):
            for design, n, rho in TRIAL_PROBLEMS:
                for name, changes in TRIALS.items():
                    piece = {"trial": name, "design": design, "n": n, "rho": rho, "seed": seed}
                    yield piece, lambda a=(design, n, rho, seed, changes): work(*a)

    each("trials", pieces())


# Latents --------------------------------------------------------------------------------------------------------------

CELLS = (
    ("demand", 1000, (1, 2)),
    ("vector-proxy", 1000, (1,)),
    ("demand", 5000, (1,)),
    ("vector-proxy", 5000, (1,)),
    ("vector-proxy", 10000, (1,)),
)


def latents() -> None:
    """Structural error by the way latents are found from covariates, for the first member of one and the same fit."""

    def work(design: str, n: int, seed: int) -> Row:
        make = make_design(design)
        grid = make.grid()
        fitted = default_preset().fit(make.sample(n, 0.5, seed), jax.random.key(seed))
        fitted = replace(fitted, members=fitted.members[:1])
        rules = {
            "encoder": LatentMap(steps=0),
            "MAP, the paper's": LatentMap(),
            "MAP": LatentMap(steps=1000, learning_rate=1e-2),
            "posterior mean": LatentPosterior(n_chains=2, n_warmup=100, n_draws=100),
        }
        row: Row = {}
        for name, rule in rules.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ruled = replace(fitted, config=replace(fitted.config, latents=rule))
                predicted = predict(ruled, grid.treatment, grid.covariates)
            row[name] = float(np.mean((predicted - grid.truth) ** 2)) / 1e4
        return row

    each(
        "latents",
        (
            ({"design": design, "n": n, "seed": seed}, lambda a=(design, n, seed): work(*a))
            for design, n, seeds in CELLS
            for seed in seeds
        ),
    )


# Slopes ---------------------------------------------------------------------------------------------------------------


def slope_of(fitted: FittedBGMIV, data: IVData) -> float:
    """The average effect of one more unit of treatment around the rows of a data set."""
    covariates = {name: data.covariates[:, i] for i, name in enumerate(data.schema.flat_names)}
    steps = [predict(fitted, data.treatment + step, covariates) for step in (-0.5, 0.5)]
    return float(np.mean(steps[1] - steps[0]))


def slopes() -> None:
    """The linear-Gaussian design, rho = 0.9, whose slope is -2; by ordinary regression it would be about -1.55."""

    def work(n: int, seed: int) -> Row:
        data = make_design("linear-gaussian").sample(n, 0.9, seed)
        return {"slope": slope_of(default_preset().fit(data, jax.random.key(seed)), data)}

    each("slopes", (({"n": n, "seed": s}, lambda n=n, s=s: work(n, s)) for n in (1000, 5000) for s in range(1, 6)))


# Verdicts -------------------------------------------------------------------------------------------------------------


def _shuffled(data: IVData, role: str) -> IVData:
    order = np.random.default_rng(0).permutation(data.n_rows)
    return replace(data, **{role: getattr(data, role)[order]})


def _weak(data: IVData) -> IVData:
    noise = np.random.default_rng(0).normal(size=data.instruments.shape)
    mixed = 0.05 * (data.instruments - data.instruments.mean(0)) / data.instruments.std(0) + noise
    return replace(data, instruments=mixed.astype(data.instruments.dtype))


_PLAIN = {
    "reduction": None,
    "model.covariates.features.narrow_vector": 0,
    "model.covariates.features.vector_noise": 0.0,
}
BREAKS: dict[str, tuple[Callable[[IVData], IVData], dict[str, Any]]] = {
    "random instrument": (lambda d: _shuffled(d, "instruments"), {}),
    "weak instrument": (_weak, {}),
    "shuffled outcome": (lambda d: _shuffled(d, "outcome"), {}),
    "shuffled treatment": (lambda d: _shuffled(d, "treatment"), {}),
    "shuffled covariates": (lambda d: _shuffled(d, "covariates"), {}),
    "one epoch": (lambda d: d, {"initial.iterations": 8}),
    "ten epochs": (lambda d: d, {"initial.iterations": 80}),
    "huge learning rate": (lambda d: d, {"initial.learning_rate": 1.0}),
    "100 rows": (lambda d: d.take(np.arange(100)), {}),
    "250 rows": (lambda d: d.take(np.arange(250)), {}),
    "no denoising": (lambda d: d, {**_PLAIN, "initial.covariate_weight": 0.0}),
    "latents of one number": (lambda d: d, {"layout": LatentLayout(1, 0, 0, 0)}),
}


def verdicts(study: str = "verdicts", first_seed: int = 1) -> None:
    """Fits of data or settings that are broken on purpose, beside sound ones."""

    def work(name: str, design: str, n: int, rho: float, seed: int) -> Row:
        make = make_design(design)
        spoil, changes = BREAKS.get(name, (lambda d: d, {}))
        try:
            fitted = variant(changes).fit(spoil(make.sample(n, rho, seed)), jax.random.key(seed))
        except BGMIVError as error:
            return {"level": "error", "reasons": [str(error)], "error": None}
        grid = make.grid()
        error = float(np.mean((predict(fitted, grid.treatment, grid.covariates) - grid.truth) ** 2))
        verdict = fitted.verdict
        evidence = {k: None if v is None else float(f"{v:.6g}") for k, v in vars(verdict.evidence).items()}
        return {"level": verdict.severity, "reasons": list(verdict.reasons), "error": error, "evidence": evidence}

    def pieces() -> Iterator[tuple[Row, Callable[[], Row]]]:
        problems = PROBLEMS if study == "verdicts" else (PROBLEMS[0], PROBLEMS[2])
        for i, (design, n, rho) in enumerate(problems):
            for name in ("sound", *BREAKS):
                if name == "no denoising" and design != "vector-proxy":
                    continue
                seeds = range(first_seed, first_seed + (3 if name == "sound" else 1))
                for seed in seeds:
                    piece = {"break": name, "design": design, "n": n, "rho": rho, "seed": seed + 10 * i}
                    yield piece, lambda a=(name, design, n, rho, seed + 10 * i): work(*a)

    each(study, pieces())


def thresholds() -> None:
    """The same on development seeds, where the thresholds of verdicts were settled."""
    verdicts("thresholds", DEVELOPMENT)


# Rows -----------------------------------------------------------------------------------------------------------------


def rows() -> None:
    """Processor time and memory of a whole fit with its grid prediction as the number of rows grows."""

    def work(n: int, columns: int) -> Row:
        data = make_design("demand").sample(n, 0.5, 1) if columns == 2 else _table(n, columns)
        clock = time.process_time()
        fitted = default_preset().fit(data, jax.random.key(1))
        row: Row = {"fit_cpu_seconds": round(time.process_time() - clock, 1)}
        clock = time.process_time()
        predicted = predict(fitted, data.treatment, data.covariates)
        assert np.isfinite(predicted).all()
        row["predict_cpu_seconds"] = round(time.process_time() - clock, 1)
        row["peak_gib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
        return row

    # A warm-up, so that no row pays for compilation that the others find done; row counts share few shapes.
    sizes = [(n, 2) for n in (1000, 5000, 20_000, 50_000, 200_000)] + [(1_000_000, 20)]
    each("rows", (({"n": n, "columns": c}, lambda n=n, c=c: work(n, c)) for n, c in sizes))


def _table(n: int, columns: int) -> IVData:
    rng = np.random.default_rng(0)
    v = rng.normal(size=(n, columns)).astype(np.float32)
    w, u, e = rng.normal(size=(3, n))
    x = w + v[:, 0] + np.sin(v[:, 1]) + u
    return IVData.from_arrays(np.sin(x) + v[:, 0] * x + u + 0.5 * e, x, instruments=w, covariates=v)


# Cold caches ----------------------------------------------------------------------------------------------------------

_ONE_FIT = """
import sys, time, jax
from bgmiv.designs import make_design
from bgmiv.bgm.config import default_preset
from bgmiv.effects import predict
design, n = make_design(sys.argv[1]), int(sys.argv[2])
data, grid = design.sample(n, 0.5, 1), design.grid()
clock = time.process_time()
predict(default_preset().fit(data, jax.random.key(1)), grid.treatment, grid.covariates)
print(time.process_time() - clock)
"""


def cold() -> None:
    """Processor time of a fit with its grid prediction in a new process: first with an empty cache, then again."""

    def work(design: str, n: int) -> Row:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", _ONE_FIT, design, str(n)]
            environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": folder}
            times = [
                float(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
                for _ in ("empty", "filled")
            ]
        return {"empty": round(times[0], 1), "filled": round(times[1], 1)}

    each("cold", (({"design": d, "n": n}, lambda d=d, n=n: work(d, n)) for d, n, _ in CELLS))


# Tables ---------------------------------------------------------------------------------------------------------------


def table(head: list[str], body: list[list[str]]) -> None:
    """Print a Markdown table."""
    for line in (head, ["---"] * len(head), *body):
        print("| " + " | ".join(line) + " |")
    print()


def tables() -> None:
    """All studies as Markdown."""
    found = done()
    trial = [row for row in found if row["study"] == "trials"]
    for design, n, _ in PROBLEMS:
        print(f"### {design}, n = {n}\n")
        mine = [row for row in trial if row["piece"]["design"] == design]
        measures = ("within_error", "beyond_error", "within_risk", "beyond_risk", "fit_cpu_seconds")
        body = []
        for name in dict.fromkeys(row["piece"]["trial"] for row in mine):
            same = [row for row in mine if row["piece"]["trial"] == name]
            means = [np.mean([row[measure] for row in same]) for measure in measures]
            body.append([name, *(f"{1e4 * mean:.3g}" for mean in means[:4]), f"{means[4]:.0f}", str(len(same))])
        table(["variant", "error within", "beyond", "moment risk within", "beyond", "CPU-s", "seeds"], body)
    rule = [row for row in found if row["study"] == "latents"]
    if rule:
        names = [name for name in rule[0] if name not in ("study", "piece", "cpu_seconds")]
        cells = dict.fromkeys((row["piece"]["design"], row["piece"]["n"]) for row in rule)
        body = []
        for design, n in cells:
            same = [row for row in rule if (row["piece"]["design"], row["piece"]["n"]) == (design, n)]
            body.append([design, str(n), *(f"{np.mean([r[k] for r in same]):.4f}" for k in names), str(len(same))])
        table(["design", "n", *names, "seeds"], body)
    slope = [row for row in found if row["study"] == "slopes"]
    for n in dict.fromkeys(row["piece"]["n"] for row in slope):
        values = [row["slope"] for row in slope if row["piece"]["n"] == n]
        print(f"n = {n}: slope {np.mean(values):.3f} +- {np.std(values, ddof=1):.3f}, {np.round(values, 3).tolist()}\n")
    judged = [row for row in found if row["study"] == "verdicts"]
    medians = {
        row["piece"]["design"]: float(
            np.median(
                [
                    r["error"]
                    for r in judged
                    if r["piece"]["break"] == "sound" and r["piece"]["design"] == row["piece"]["design"]
                ]
            )
        )
        for row in judged
    }
    body = []
    for row in judged:
        piece = row["piece"]
        ratio = "-" if row["error"] is None else f"{row['error'] / medians[piece['design']]:.1f}"
        body.append([piece["design"], piece["break"], ratio, row["level"], row["reasons"][0] if row["reasons"] else ""])
    table(["design", "what was done", "error / median of sound fits", "verdict", "first reason"], body)
    growth = [row for row in found if row["study"] == "rows"]
    body = [
        [
            f"{row['piece']['n']:,}",
            str(row["piece"]["columns"]),
            str(row["fit_cpu_seconds"]),
            str(row["predict_cpu_seconds"]),
            str(row["peak_gib"]),
        ]
        for row in growth
    ]
    table(["rows", "covariates", "fit, CPU-s", "predict all rows, CPU-s", "peak GiB"], body)
    costs = [row for row in found if row["study"] == "cold"]
    body = [[r["piece"]["design"], str(r["piece"]["n"]), str(r["empty"]), str(r["filled"])] for r in costs]
    table(["design", "n", "empty cache, CPU-s", "filled cache, CPU-s"], body)


STUDIES = {
    "trials": trials,
    "latents": latents,
    "slopes": slopes,
    "thresholds": thresholds,
    "verdicts": verdicts,
    "rows": rows,
    "cold": cold,
    "tables": tables,
}

if __name__ == "__main__":
    for study in sys.argv[1:] or list(STUDIES):
        STUDIES[study]()
