"""Choose the default settings of the baselines by a held-out criterion that needs no truth.

Each variant is fitted on development seeds and judged by `bgmiv.diagnostics.moment_risk` on a fresh sample of the same
design, divided by that sample's outcome variance. A finished fit is one line of choose_baselines.jsonl and is not run
again; choose_baselines.md says what came of it.

    NPROC=1 python benchmarks/choose_baselines.py
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from bgmiv.baselines import deepgmm, deepiv, dfiv, kiv
from bgmiv.baselines.deepgmm import MomentGame
from bgmiv.data.scaling import RoleScaling
from bgmiv.diagnostics import conditions_of, moment_risk
from bgmiv.effects import predict
from bgmiv.errors import BGMIVError
from bgmiv.nn.settings import FeatureConfig, ImageConfig
from bgmiv.preprocess.reduction import BlockReduction
from report import make_design

ROWS = Path(__file__).with_suffix(".jsonl")
SEEDS = (300, 301, 302)
# (design, n, rho)
PROBLEMS = (("demand", 1000, 0.5), ("demand-confounded", 1000, 0.9), ("linear-gaussian", 1000, 0.9))
WIDE = ("vector-proxy", 1000, 0.5)
WIDE_SEEDS = {"kiv": SEEDS[:1], "deepiv": SEEDS, "deepgmm": SEEDS}
RANGE_SEEDS = range(300, 315)
# More where the outcome is mostly noise.
HELD_OUT_ROWS, NOISY_HELD_OUT_ROWS = 2000, 6000
HELD_OUT_OFFSET = 1000
# An unbiased estimate of a small risk may be negative.
_MIN_RISK = 1e-7

# The defaults before this choice, written out so that the script means the same whatever the defaults are now.
_NOISED = FeatureConfig(dropout=0.0, vector_noise=1.0)
_DEEPIV = deepiv.DeepIVConfig(
    hidden=(128, 64, 32),
    covariates=_NOISED,
    dropout=0.0,
    schedule="cosine",
    weight_decays=(1e-6, 1e-3),
    tolerance=1.0,
    members=1,
    held_out=0.1,
    reduction=None,
)
_GAME = MomentGame(rounds=60, batch_size=128, critic_steps=1, damping=0.1, optimistic=True, schedule="cosine")
_DEEPGMM = deepgmm.DeepGMMConfig(covariates=_NOISED, game=_GAME, members=1, held_out=0.2, reduction=None)


@dataclass(frozen=True)
class Variant:
    """Settings of a method.

    Args:
        make: builds the config.
        departures: in how many ways it departs from the published settings; of variants that the criterion does not
            tell apart, the one with the fewest is taken.
    """

    make: Callable[[], Any]
    departures: int


def _paper_game() -> deepgmm.DeepGMMConfig:
    config = deepgmm.paper_preset()
    return replace(config, game=replace(config.game, rounds=20))


VARIANTS: dict[str, dict[str, Variant]] = {
    "kiv": {
        "current (1 standard error)": Variant(lambda: kiv.KIVConfig(standard_errors=1.0), 2),
        "0.5 standard errors": Variant(lambda: kiv.KIVConfig(standard_errors=0.5), 2),
        "minimiser": Variant(lambda: kiv.KIVConfig(standard_errors=0.0), 1),
        "paper": Variant(kiv.paper_preset, 0),
    },
    "deepiv": {
        "current": Variant(lambda: _DEEPIV, 4),
        "dropout of the study": Variant(lambda: replace(_DEEPIV, dropout=None), 3),
        "constant step size": Variant(lambda: replace(_DEEPIV, schedule="constant"), 3),
        "last epoch": Variant(lambda: replace(_DEEPIV, held_out=0.0), 3),
        "last epoch, constant step size": Variant(lambda: replace(_DEEPIV, held_out=0.0, schedule="constant"), 2),
        "paper, standardised": Variant(lambda: replace(deepiv.paper_preset(), scaling=RoleScaling()), 1),
        "paper": Variant(deepiv.paper_preset, 0),
    },
    "deepgmm": {
        "current": Variant(lambda: _DEEPGMM, 4),
        "constant step size": Variant(lambda: replace(_DEEPGMM, game=replace(_GAME, schedule="constant")), 3),
        "no damping": Variant(lambda: replace(_DEEPGMM, game=replace(_GAME, damping=0.0)), 3),
        "last round": Variant(lambda: replace(_DEEPGMM, held_out=0.0), 2),
        "last round, no damping": Variant(lambda: replace(_DEEPGMM, held_out=0.0, game=replace(_GAME, damping=0.0)), 1),
        "paper, 4000 updates": Variant(_paper_game, 0),
    },
}

# What BGM-IV's default has as well: several members, held-out stopping, scores of wide blocks.
TABLES = (("demand", 1000, 0.5), ("noisy-concave", 1000, 0.8))
_VECTOR, _NOISY_VECTOR = ("vector-proxy", 1000, 0.5), ("noisy-vector", 1000, 0.8)
WIDES = {"deepiv": (_VECTOR, _NOISY_VECTOR), "dfiv": (_VECTOR,), "deepgmm": (_VECTOR,)}
_IMAGES = ImageConfig(features="dense", shift=2, noise=0.2)
_RAW = FeatureConfig(dropout=0.0, vector_noise=1.0, images=_IMAGES)
_SCORES = FeatureConfig(dropout=0.0, vector_noise=0.3, narrow_vector=32, images=_IMAGES)
_SINGLE: dict[str, Any] = {
    "deepiv": replace(_DEEPIV, covariates=_RAW, tolerance=1.05, held_out=0.0),
    "dfiv": dfiv.DFIVConfig(covariates=replace(_RAW, dropout=0.1), members=1, held_out=0.0, reduction=None),
    "deepgmm": replace(_DEEPGMM, covariates=_RAW, held_out=0.0),
}
_HELD_OUT = {"deepiv": 0.1, "dfiv": 0.1, "deepgmm": 0.2}


def _footing(method: str, members: int, held_out: float, *, scores: bool = False) -> Any:
    """The single fit's settings with members, held-out rows and scores."""
    config = replace(_SINGLE[method], members=members, held_out=held_out)
    return replace(config, reduction=BlockReduction(), covariates=_SCORES) if scores else config


FOOTINGS: dict[str, dict[str, Variant]] = {
    method: {
        "1 member": Variant(partial(_footing, method, 1, 0.0), 0),
        "4 members": Variant(partial(_footing, method, 4, 0.0), 1),
        "4 members, held out": Variant(partial(_footing, method, 4, share), 2),
    }
    for method, share in _HELD_OUT.items()
}
WIDE_FOOTINGS: dict[str, dict[str, Variant]] = {
    method: {
        "scores, 1 member": Variant(partial(_footing, method, 1, 0.0, scores=True), 0),
        "scores, 4 members": Variant(partial(_footing, method, 4, 0.0, scores=True), 1),
        "scores, 4 members, held out": Variant(partial(_footing, method, 4, share, scores=True), 2),
    }
    for method, share in _HELD_OUT.items()
}

Key = tuple[str, str, str, int]
Problem = tuple[str, int, float]
Study = dict[str, dict[str, Variant]]


def measure(method: str, variant: str, problem: Problem, seed: int) -> dict[str, Any]:
    """One fit and its held-out risk."""
    name, n, rho = problem
    design = make_design(name)
    rows = NOISY_HELD_OUT_ROWS if name.startswith("noisy") else HELD_OUT_ROWS
    train, held_out = design.sample(n, rho, seed), design.sample(rows, rho, seed + HELD_OUT_OFFSET)
    studies = (VARIANTS, FOOTINGS, WIDE_FOOTINGS)
    make = next(study[method][variant] for study in studies if variant in study.get(method, {})).make
    start = time.process_time()
    row = {"method": method, "variant": variant, "design": name, "n": n, "rho": rho, "seed": seed}
    try:
        fitted = make().fit(train, seed)
        residuals = held_out.outcome - predict(fitted, held_out.treatment, held_out.covariates)
        risk = moment_risk(residuals, conditions_of(held_out)) / float(held_out.outcome.var())
    except BGMIVError as error:
        return {**row, "risk": None, "error": str(error)}
    return {**row, "risk": risk, "cpu_seconds": round(time.process_time() - start, 1)}


def load() -> dict[Key, dict[str, Any]]:
    """The finished fits; a line that a crash cut short is left out."""
    rows = {}
    for line in ROWS.read_text().splitlines() if ROWS.exists() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        rows[row["method"], row["variant"], row["design"], row["seed"]] = row
    return rows


def ensure(rows: dict[Key, dict[str, Any]], method: str, variant: str, problem: Problem, seed: int) -> None:
    """Run the fit unless it is there."""
    key = (method, variant, problem[0], seed)
    if key not in rows:
        rows[key] = measure(method, variant, problem, seed)
        with ROWS.open("a") as file:
            file.write(json.dumps(rows[key]) + "\n")


def fits(problems: Sequence[Problem]) -> Iterator[tuple[Problem, int]]:
    """Problems and seeds."""
    for problem in problems:
        for seed in SEEDS:
            yield problem, seed


def risk(rows: dict[Key, dict[str, Any]], key: Key) -> float:
    """A failed fit ranks last."""
    found = rows[key]["risk"]
    return float("inf") if found is None else float(found)


def choose(rows: dict[Key, dict[str, Any]], method: str, study: Study, problems: Sequence[Problem]) -> str:
    """Run what is missing, print the method's table and give the variant that the rule takes.

    The best has the lowest mean rank of risk. Another is not told apart from it if their mean ranks differ by no more
    than one standard error of the difference, fit by fit; of these the one with the fewest departures is taken.
    """
    names = list(study[method])
    for problem, seed in fits(problems):
        for name in names:
            ensure(rows, method, name, problem, seed)
    risks = np.array([[risk(rows, (method, name, p[0], seed)) for name in names] for p, seed in fits(problems)])
    ranks = rankdata(risks, axis=1)
    mean = ranks.mean(axis=0)
    best = int(np.argmin(mean))
    behind = ranks - ranks[:, [best]]
    error = behind.std(axis=0, ddof=1) / np.sqrt(len(ranks))
    level = behind.mean(axis=0) <= error
    chosen = min(np.flatnonzero(level), key=lambda i: (study[method][names[i]].departures, mean[i]))
    by_design = risks.reshape(len(problems), len(SEEDS), -1).mean(axis=1)
    print(f"\n{method}: mean rank, ranks behind the best, 1e4 x mean risk by design (relative to the first variant's)")
    for i, name in enumerate(names):
        cells = [
            f"{1e4 * now:9.2f} ({now / first:5.2f})"
            for now, first in zip(by_design[:, i], by_design[:, 0], strict=True)
        ]
        mark = "chosen" if i == chosen else "level" if level[i] else ""
        print(f"  {name:32s} {mean[i]:5.2f}  {behind[:, i].mean():5.2f} +- {error[i]:4.2f}  {' '.join(cells)}  {mark}")
    return names[int(chosen)]


def compare(rows: dict[Key, dict[str, Any]], method: str, study: Study, problems: Sequence[Problem]) -> None:
    """Run what is missing and print how risks compare with the first variant's: geometric means, by design and of all.

    The best has the lowest mean logarithm. Another is not told apart from it if it is behind by no more than one
    standard error of the difference, fit by fit; of these the one with the lowest risk on the noisy design is taken.
    """
    names = list(study[method])
    for problem, seed in fits(problems):
        for name in names:
            ensure(rows, method, name, problem, seed)
    risks = np.array([[risk(rows, (method, name, p[0], seed)) for name in names] for p, seed in fits(problems)])
    logs = np.log(np.maximum(risks, _MIN_RISK))
    behind = logs - logs[:, [int(np.argmin(logs.mean(axis=0)))]]
    error = behind.std(axis=0, ddof=1) / np.sqrt(len(logs))
    by_design = logs.reshape(len(problems), len(SEEDS), -1).mean(axis=1)
    noisy = [i for i, problem in enumerate(problems) if problem[0].startswith("noisy")]
    deciding = by_design[noisy].mean(axis=0) if noisy else logs.mean(axis=0)
    level = behind.mean(axis=0) <= error
    chosen = min(np.flatnonzero(level), key=lambda i: deciding[i])
    print(
        f"\n{method}: risk relative to the first variant's, log behind the best, geometric mean of 1e4 x risk by design"
    )
    for i, name in enumerate(names):
        cells = " ".join(f"{1e4 * np.exp(value):9.3f}" for value in by_design[:, i])
        mark = "chosen" if i == chosen else "level" if level[i] else ""
        relative = np.exp(np.mean(logs[:, i] - logs[:, 0]))
        print(f"  {name:32s} {relative:5.2f}  {behind[:, i].mean():5.2f} +- {error[i]:4.2f}  {cells}  {mark}")


def check_wide(rows: dict[Key, dict[str, Any]], method: str, chosen: str) -> None:
    """The chosen settings and the former ones on the wide design."""
    former = next(iter(VARIANTS[method]))
    for variant in dict.fromkeys((former, chosen)):
        for seed in WIDE_SEEDS[method]:
            ensure(rows, method, variant, WIDE, seed)
        cells = [f"{1e4 * risk(rows, (method, variant, WIDE[0], seed)):9.2f}" for seed in WIDE_SEEDS[method]]
        print(f"  {method:8s} {variant:32s} {' '.join(cells)}")


def check_range() -> None:
    """How far each of KIV's rules predicts outside the range of the outcomes it was fitted on, treatments shuffled.

    The moment cannot see what the instruments do not move; an estimate that explodes there still shows in this.
    """
    print(
        "\nkiv: farthest prediction outside the outcome's range in standard deviations: median, largest, fits beyond 3"
    )
    for name, n, rho in (*PROBLEMS, ("binary-confounded", 1000, 0.9)):
        for variant, settings in VARIANTS["kiv"].items():
            far = []
            for seed in RANGE_SEEDS:
                data = make_design(name).sample(n, rho, seed)
                treatment = np.random.default_rng(seed).permutation(data.treatment)
                fitted = settings.make().fit(data, seed)
                predicted = predict(fitted, treatment, data.covariates)
                beyond = np.maximum(predicted - data.outcome.max(), data.outcome.min() - predicted)
                far.append(float(beyond.max() / data.outcome.std()))
            print(f"  {name:18s} {variant:28s} {np.median(far):7.2f} {max(far):8.2f} {sum(x > 3 for x in far):3d}")


def main() -> None:
    """Run what is missing, print the tables."""
    rows = load()
    chosen = {}
    for method in VARIANTS:
        chosen[method] = choose(rows, method, VARIANTS, PROBLEMS)
    print(f"\n{WIDE[0]}: 1e4 x risk by seed")
    for method, variant in chosen.items():
        check_wide(rows, method, variant)
    for method in FOOTINGS:
        compare(rows, method, FOOTINGS, TABLES)
        compare(rows, method, WIDE_FOOTINGS, WIDES[method])
    check_range()


if __name__ == "__main__":
    main()
