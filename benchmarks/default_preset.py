"""Studies behind BGM-IV's default preset: what each part is worth, and what holds of it.

Every finished piece is one line of default_preset.jsonl and is not done again; default-preset.md says what came of it.

    NPROC=1 python benchmarks/default_preset.py ablation   the preset without each of its parts, on development seeds
    NPROC=1 python benchmarks/default_preset.py latents    structural error by encoder, MAP and posterior mean
    NPROC=1 python benchmarks/default_preset.py cut        Algorithm 1 against its cut form
    NPROC=1 python benchmarks/default_preset.py real       real data sets beside two-stage least squares
    NPROC=1 python benchmarks/default_preset.py example    the README's first example on 20 data sets
    NPROC=1 python benchmarks/default_preset.py cold       cost with an empty and with a filled compilation cache
    python benchmarks/default_preset.py tables             all of it as Markdown
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np

from bgmiv import BGMIV, TSLS
from bgmiv.bgm.config import BGMIVConfig, LatentLayout, LatentMap, LatentPosterior, default_preset, paper_qmc_preset
from bgmiv.bgm.resolve import choose_layout
from bgmiv.data.query import Query, Rows
from bgmiv.designs import make_design
from bgmiv.designs.empirical import load_empirical
from bgmiv.diagnostics import conditions_of, moment_risk
from bgmiv.effects import predict
from bgmiv.preprocess.reduction import BlockReduction

ROWS = Path(__file__).with_suffix(".jsonl")
HELD_OUT_ROWS = 3000
HELD_OUT_OFFSET = 1000
# Rows with an instrument beyond this quantile are left to the test, as a check on extrapolation.
TAIL = 0.8

Row = dict[str, Any]
Piece = tuple[Row, Callable[[], Row]]


def done(study: str) -> list[Row]:
    """The finished pieces of a study."""
    lines = ROWS.read_text().splitlines() if ROWS.exists() else []
    return [row for row in map(json.loads, lines) if row["study"] == study]


def each(study: str, pieces: Iterable[Piece]) -> None:
    """Do the pieces that are not done yet; a piece is known by its identifying fields."""
    known = [row["piece"] for row in done(study)]
    for piece, work in pieces:
        if piece in known:
            continue
        start = time.process_time()
        row = {"study": study, "piece": piece, **work(), "cpu_seconds": round(time.process_time() - start, 1)}
        with ROWS.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


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


def error_of(fitted: Any, grid: Any) -> float:
    """Mean squared structural error as a share of the truth's variance on the grid."""
    return float(np.mean((predict(fitted, grid.treatment, grid.covariates) - grid.truth) ** 2) / np.var(grid.truth))


# Ablation -------------------------------------------------------------------------------------------------------------

ABLATION: dict[str, dict[str, Any]] = {
    "default": {},
    "latents encoded by a network, matched to the prior": {"layout": "encoded"},
    "without the partition (all latents shared)": {"layout": "shared"},
    "without networks of the parts": {"model.embedding": ()},
    "without trunks": {"model.treatment_trunk": (), "model.outcome_trunk": ()},
    "without weight decay": {"initial.weight_decay": 0.0},
    "without the last stage (networks alone)": {"last_stage": None},
    "without held-out rows (no last stage, no early stopping)": {"last_stage": None, "ensemble.held_out": 0.0},
    "one member": {"last_stage": None, "ensemble.members": 1},
}
# Columns and scores are their own latents, with nothing to generate or to encode; images have both.
IMAGE_ABLATION: dict[str, dict[str, Any]] = {
    "default": {},
    "without the generator of the covariates": {"initial.covariate_weight": 0.0},
    "without the prior of the latents": {"initial.prior_weight": 0.0},
}
ABLATIONS = {
    ("demand", 1000, 0.5): ABLATION,
    ("noisy-vector", 1000, 0.9): ABLATION,
    ("noisy-concave", 1000, 0.7): ABLATION,
    ("mnist", 1000, 0.5): IMAGE_ABLATION,
}


def with_layout(kind: str, train: Any) -> dict[str, Any]:
    """The changes that give the latents of all covariates to the shared part, or have a network encode them."""
    reduced = default_preset().reduction.fit(train).apply(train)
    found, features = choose_layout(reduced, default_preset().model.covariates.features, np.random.default_rng(0))
    if kind == "encoded":
        return {"layout": found}
    latents = {"model.covariates.latent_features": tuple(range(len(features)))}
    return {"layout": LatentLayout(found.dim, 0, 0, 0), **latents}


def ablation() -> None:
    """Variants on development seeds: held-out criteria within and beyond the instruments seen, and the error of g."""

    def work(design: str, n: int, rho: float, seed: int, changes: dict[str, Any]) -> Row:
        make = make_design(design)
        train, test = make.sample(int(n / 0.75), rho, seed), make.sample(HELD_OUT_ROWS, rho, seed + HELD_OUT_OFFSET)
        edge = np.quantile(np.abs(train.instruments[:, 0]), TAIL)
        train = train.take(np.flatnonzero(np.abs(train.instruments[:, 0]) < edge)[:n])
        reduction = BlockReduction().fit(train)
        if "layout" in changes:
            changes = with_layout(changes["layout"], train)
        clock = time.process_time()
        fitted = variant(changes).fit(train, seed)
        row: Row = {"fit_cpu_seconds": round(time.process_time() - clock, 1), "error": error_of(fitted, make.grid())}
        predicted = fitted.at(Query(test.treatment[None], Rows(test.covariates)))[0]
        beyond, reduced = np.abs(test.instruments[:, 0]) >= edge, reduction.apply(test)
        for name, rows in (("within", np.flatnonzero(~beyond)), ("beyond", np.flatnonzero(beyond))):
            residuals = test.outcome[rows] - predicted[rows]
            risk = moment_risk(residuals, conditions_of(reduced.take(rows))) / float(np.var(test.outcome))
            row[f"{name}_risk"] = risk
        return row

    each(
        "ablation",
        (
            ({"variant": name, "design": d, "n": n, "rho": rho, "seed": s}, lambda a=(d, n, rho, s, c): work(*a))
            for s in (700, 701)
            for (d, n, rho), variants in ABLATIONS.items()
            for name, c in variants.items()
        ),
    )


# Latents --------------------------------------------------------------------------------------------------------------

CELLS = (("demand", 1000), ("vector-proxy", 1000), ("demand", 5000), ("vector-proxy", 5000), ("vector-proxy", 10000))
RULES = {
    "encoder": LatentMap(steps=0),
    "MAP": LatentMap(steps=1000, learning_rate=1e-2),
    "posterior mean": LatentPosterior(n_chains=2, n_warmup=100, n_draws=100),
}
# Of the grid's points; every one of them has latents of its own to sample.
SAMPLED_POINTS = 200


def latents() -> None:
    """Structural error by the way latents are found from covariates, for the first member of one and the same fit."""

    def work(design: str, n: int, seed: int) -> Row:
        make = make_design(design)
        grid, fitted = make.grid(), default_preset().fit(make.sample(n, 0.5, seed), seed)
        one = replace(fitted, members=fitted.members[:1], last_stage=None)
        chosen = np.linspace(0, len(grid.truth) - 1, SAMPLED_POINTS).astype(int)
        covariates = {name: values[chosen] for name, values in grid.covariates.items()}
        row: Row = {"layout": list(astuple(fitted.config.layout))}
        for name, rule in RULES.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ruled = replace(one, config=replace(one.config, latents=rule))
                predicted = predict(ruled, grid.treatment[chosen], covariates)
            row[name] = float(np.mean((predicted - grid.truth[chosen]) ** 2)) / 1e4
        return row

    each("latents", (({"design": d, "n": n, "seed": 1}, lambda a=(d, n, 1): work(*a)) for d, n in CELLS))


# Algorithm 1 ----------------------------------------------------------------------------------------------------------


PRINTED: dict[str, Any] = {}
CUT = {"alternating.latent_update": "cut"}
# By default there is no Algorithm 1; networks alone, so that the last stage does not hide what it does to them.
ON = {"alternating.epochs": 20, "last_stage": None}
FORMS: dict[str, tuple[Callable[[], BGMIVConfig], dict[str, Any]]] = {
    "quasi-posterior": (paper_qmc_preset, PRINTED),
    "cut": (paper_qmc_preset, CUT),
    "default without it": (default_preset, {"last_stage": None}),
    "default, quasi-posterior": (default_preset, ON),
    "default, cut": (default_preset, ON | CUT),
}
# The proxy with 5000 rows takes ten times as long.
CUT_PROBLEMS = (("demand", 1000, 0.5, 10), ("demand-confounded", 1000, 0.9, 10), ("vector-proxy", 5000, 0.5, 2))


def cut() -> None:
    """Algorithm 1 with the latents' update as printed and in its cut form, by the paper's settings and by default."""

    def work(design: str, n: int, rho: float, seed: int, form: str) -> Row:
        preset, changes = FORMS[form]
        config = preset()
        for path, value in changes.items():
            config = changed(config, path, value)
        make = make_design(design)
        return {"error": error_of(config.fit(make.sample(n, rho, seed), seed), make.grid())}

    each(
        "cut",
        (
            ({"form": form, "design": d, "rho": rho, "seed": 700 + i}, lambda a=(d, n, rho, 700 + i, form): work(*a))
            for i in range(10)
            for d, n, rho, repeats in CUT_PROBLEMS
            for form in FORMS
            if i < repeats
        ),
    )


# Real data ------------------------------------------------------------------------------------------------------------

REAL = ("card", "mroz", "meps", "401ksubs", "fertility", "cigarettes")


def real() -> None:
    """The average effect of one interquartile step beside two-stage least squares, with verdicts."""

    def work(name: str) -> Row:
        source = load_empirical(name)
        table = source.table
        outcome = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            linear = TSLS().fit_formula(source.formula, table)
            model = BGMIV(random_state=1).fit_formula(source.formula, table)
            treatment = model.data_.treatment
            low, high = np.quantile(treatment, [0.25, 0.75])
            if low == high or model.fitted_.schema.treatment.discrete:
                low, high = treatment.min(), treatment.max()
            for key, one in (("tsls", linear), ("bgm-iv", model)):
                found = one.ate_interval(t0=float(low), t1=float(high))
                outcome[key] = [float(found.estimate), float(found.std_error), float(found.lower), float(found.upper)]
        return {
            **outcome,
            "verdict": model.verdict_.severity,
            "reasons": list(model.verdict_.reasons),
            "linear": model.verdict_.evidence.linear,
            "instrument_f": model.verdict_.evidence.instrument_f,
            "layout": list(astuple(model.fitted_.config.layout)),
        }

    each("real", (({"data": name}, lambda name=name: work(name)) for name in REAL))


def example() -> None:
    """The README's first example on 20 data sets; the effect is -3."""

    def work(seed: int) -> Row:
        rng = np.random.default_rng(seed)
        cost, season, shock = rng.normal(size=(3, 1000))
        price = 5 + cost + season + shock
        sales = 40 - 3 * price + 2 * np.sin(season) + 4 * shock
        row: Row = {}
        for name, model in (("tsls", TSLS()), ("bgm-iv", BGMIV(random_state=0))):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model.fit(sales, price, instruments=cost, covariates={"season": season})
                found = model.ate_interval(t0=5.0, t1=6.0)
            row[name] = [float(found.estimate), float(found.lower), float(found.upper)]
        return row

    each("example", (({"seed": seed}, lambda seed=seed: work(seed)) for seed in range(1, 21)))


# Cold caches ----------------------------------------------------------------------------------------------------------

_ONE_FIT = """
import sys, time, jax
from bgmiv.designs import make_design
from bgmiv.bgm.config import default_preset
from bgmiv.effects import predict
design, n = make_design(sys.argv[1]), int(sys.argv[2])
data, grid = design.sample(n, 0.5, 1), design.grid()
clock = time.process_time()
predict(default_preset().fit(data, 1), grid.treatment, grid.covariates)
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

    each("cold", (({"design": d, "n": n}, lambda d=d, n=n: work(d, n)) for d, n in CELLS))


# Tables ---------------------------------------------------------------------------------------------------------------


def table(head: list[str], body: Iterable[Iterable[object]]) -> None:
    """Print a Markdown table."""
    for line in (head, ["---"] * len(head), *body):
        print("| " + " | ".join(map(str, line)) + " |")
    print()


def tables() -> None:
    """All studies as Markdown."""
    rows = done("ablation")
    body = []
    for name in dict.fromkeys(row["piece"]["variant"] for row in rows):
        cells = []
        for design, _, _ in ABLATIONS:
            same = [r for r in rows if r["piece"]["variant"] == name and r["piece"]["design"] == design]
            if not same:
                cells.append("")
                continue
            errors = ", ".join(f"{r['error']:.4f}" for r in same)
            risks = " / ".join(f"{1e4 * np.mean([r[k] for r in same]):.1f}" for k in ("within_risk", "beyond_risk"))
            cells.append(f"{errors} ({risks})")
        body.append([name, *cells])
    table(["variant", *(design for design, _, _ in ABLATIONS)], body)
    table(
        ["design", "n", "layout", *RULES],
        (
            [r["piece"]["design"], r["piece"]["n"], r["layout"], *(f"{r[name]:.4f}" for name in RULES)]
            for r in done("latents")
        ),
    )
    rows = done("cut")
    body = []
    for form in FORMS:
        cells = []
        for design, *_ in CUT_PROBLEMS:
            errors = [r["error"] for r in rows if (r["piece"]["form"], r["piece"]["design"]) == (form, design)]
            cells.append(f"{np.mean(errors):.4f} ± {np.std(errors, ddof=1):.4f} ({len(errors)})" if errors[1:] else "")
        body.append([form, *cells])
    table(["Algorithm 1", *(design for design, *_ in CUT_PROBLEMS)], body)
    table(
        ["data", "F", "2SLS (standard error)", "BGM-IV [95% interval]", "line", "verdict"],
        (
            [
                r["piece"]["data"],
                "" if r["instrument_f"] is None else f"{r['instrument_f']:.0f}",
                "{:.3g} ({:.2g})".format(*r["tsls"][:2]),
                "{0:.3g} [{2:.3g}, {3:.3g}]".format(*r["bgm-iv"]),
                r["linear"],
                r["verdict"],
            ]
            for r in done("real")
        ),
    )
    for name in ("tsls", "bgm-iv"):
        found = np.array([row[name] for row in done("example")])
        if len(found):
            rmse, held = np.sqrt(np.mean((found[:, 0] + 3.0) ** 2)), np.sum((found[:, 1] <= -3) & (found[:, 2] >= -3))
            print(f"README's example, {name}: RMSE {rmse:.3f}, {held} of {len(found)} intervals hold -3\n")
    table(
        ["design", "n", "empty cache, CPU-s", "filled cache, CPU-s"],
        ([r["piece"]["design"], r["piece"]["n"], r["empty"], r["filled"]] for r in done("cold")),
    )


STUDIES = {
    "ablation": ablation,
    "latents": latents,
    "cut": cut,
    "real": real,
    "example": example,
    "cold": cold,
    "tables": tables,
}

if __name__ == "__main__":
    for study in sys.argv[1:] or list(STUDIES):
        STUDIES[study]()
