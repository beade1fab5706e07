"""Choose the default settings of the baselines by a held-out criterion that needs no truth.

Each variant is fitted on development seeds and judged by `bgmiv.diagnostics.moment_risk` on a fresh sample of the same
design, divided by that sample's outcome variance. A finished fit is one line of choose_baselines.jsonl and is not run
again; choose_baselines.md says what came of it.

    NPROC=1 python benchmarks/choose_baselines.py
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy.stats import rankdata

from bgmiv.baselines import deepgmm, deepiv, kiv
from bgmiv.baselines.deepgmm import MomentGame
from bgmiv.baselines.deepiv import StageSettings
from bgmiv.data.scaling import RoleScaling
from bgmiv.designs import make_design
from bgmiv.diagnostics import conditions_of, moment_risk
from bgmiv.effects import predict
from bgmiv.errors import BGMIVError
from bgmiv.nn.features import FeatureConfig

ROWS = Path(__file__).with_suffix(".jsonl")
SEEDS = (300, 301, 302)
# (design, n, rho)
PROBLEMS = (("demand", 1000, 0.5), ("demand-confounded", 1000, 0.9), ("linear-gaussian", 1000, 0.9))
WIDE = ("vector-proxy", 1000, 0.5)
WIDE_SEEDS = {"kiv": SEEDS[:1], "deepiv": SEEDS, "deepgmm": SEEDS}
RANGE_SEEDS = range(300, 315)
HELD_OUT_ROWS = 2000
HELD_OUT_OFFSET = 1000

# The defaults before this choice, written out so that the script means the same whatever the defaults are now.
_NOISED = FeatureConfig(dropout=0.0, vector_noise=1.0)
_DEEPIV = deepiv.DeepIVConfig(
    hidden=(128, 64, 32),
    covariates=_NOISED,
    dropout=0.0,
    treatment_stage=StageSettings(schedule="cosine", weight_decay=1e-6),
    outcome_stage=StageSettings(schedule="cosine", weight_decay=1e-3),
    holdout=0.1,
)
_CONSTANT_STAGES = {
    "treatment_stage": StageSettings(weight_decay=1e-6),
    "outcome_stage": StageSettings(weight_decay=1e-3),
}
_GAME = MomentGame(rounds=60, batch_size=128, critic_steps=1, damping=0.1, optimistic=True, schedule="cosine")
_DEEPGMM = deepgmm.DeepGMMConfig(covariates=_NOISED, game=_GAME, learning_rates=(1e-3, 5e-4), holdout=0.2)


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
        "constant step size": Variant(lambda: replace(_DEEPIV, **_CONSTANT_STAGES), 3),
        "last epoch": Variant(lambda: replace(_DEEPIV, holdout=0.0), 3),
        "last epoch, constant step size": Variant(lambda: replace(_DEEPIV, holdout=0.0, **_CONSTANT_STAGES), 2),
        "paper, standardised": Variant(lambda: replace(deepiv.paper_preset(), scaling=RoleScaling()), 1),
        "paper": Variant(deepiv.paper_preset, 0),
    },
    "deepgmm": {
        "current": Variant(lambda: _DEEPGMM, 4),
        "constant step size": Variant(lambda: replace(_DEEPGMM, game=replace(_GAME, schedule="constant")), 3),
        "one learning rate": Variant(lambda: replace(_DEEPGMM, learning_rates=(1e-3,)), 3),
        "no damping": Variant(lambda: replace(_DEEPGMM, game=replace(_GAME, damping=0.0)), 3),
        "last round": Variant(lambda: replace(_DEEPGMM, learning_rates=(1e-3,), holdout=0.0), 2),
        "last round, no damping": Variant(
            lambda: replace(_DEEPGMM, learning_rates=(1e-3,), holdout=0.0, game=replace(_GAME, damping=0.0)), 1
        ),
        "paper, 4000 updates": Variant(_paper_game, 0),
    },
}

Key = tuple[str, str, str, int]


def measure(method: str, variant: str, problem: tuple[str, int, float], seed: int) -> dict[str, Any]:
    """One fit and its held-out risk."""
    name, n, rho = problem
    design = make_design(name)
    train, held_out = design.sample(n, rho, seed), design.sample(HELD_OUT_ROWS, rho, seed + HELD_OUT_OFFSET)
    make = VARIANTS[method][variant].make
    start = time.process_time()
    row = {"method": method, "variant": variant, "design": name, "n": n, "rho": rho, "seed": seed}
    try:
        fitted = make().fit(train, jax.random.key(seed))
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


def ensure(
    rows: dict[Key, dict[str, Any]], method: str, variant: str, problem: tuple[str, int, float], seed: int
) -> None:
    """Run the fit unless it is there."""
    key = (method, variant, problem[0], seed)
    if key not in rows:
        rows[key] = measure(method, variant, problem, seed)
        with ROWS.open("a") as file:
            file.write(json.dumps(rows[key]) + "\n")


def fits() -> Iterator[tuple[tuple[str, int, float], int]]:
    """Problems and seeds."""
    for problem in PROBLEMS:
        for seed in SEEDS:
            yield problem, seed


def risk(rows: dict[Key, dict[str, Any]], key: Key) -> float:
    """A failed fit ranks last."""
    found = rows[key]["risk"]
    return float("inf") if found is None else float(found)


def choose(rows: dict[Key, dict[str, Any]], method: str) -> str:
    """Print the method's table and give the variant that the rule takes.

    The best has the lowest mean rank of risk. Another is not told apart from it if their mean ranks differ by no more
    than one standard error of the difference, fit by fit; of these the one with the fewest departures is taken.
    """
    names = list(VARIANTS[method])
    risks = np.array([[risk(rows, (method, name, problem[0], seed)) for name in names] for problem, seed in fits()])
    ranks = rankdata(risks, axis=1)
    mean = ranks.mean(axis=0)
    best = int(np.argmin(mean))
    behind = ranks - ranks[:, [best]]
    error = behind.std(axis=0, ddof=1) / np.sqrt(len(ranks))
    level = behind.mean(axis=0) <= error
    chosen = min(np.flatnonzero(level), key=lambda i: (VARIANTS[method][names[i]].departures, mean[i]))
    by_design = risks.reshape(len(PROBLEMS), len(SEEDS), -1).mean(axis=1)
    print(f"\n{method}: mean rank, ranks behind the best, 1e4 x mean risk by design (relative to the first variant's)")
    for i, name in enumerate(names):
        cells = [
            f"{1e4 * now:9.2f} ({now / first:5.2f})"
            for now, first in zip(by_design[:, i], by_design[:, 0], strict=True)
        ]
        mark = "chosen" if i == chosen else "level" if level[i] else ""
        print(f"  {name:32s} {mean[i]:5.2f}  {behind[:, i].mean():5.2f} +- {error[i]:4.2f}  {' '.join(cells)}  {mark}")
    return names[int(chosen)]


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
                fitted = settings.make().fit(data, jax.random.key(seed))
                predicted = predict(fitted, treatment, data.covariates)
                beyond = np.maximum(predicted - data.outcome.max(), data.outcome.min() - predicted)
                far.append(float(beyond.max() / data.outcome.std()))
            print(f"  {name:18s} {variant:28s} {np.median(far):7.2f} {max(far):8.2f} {sum(x > 3 for x in far):3d}")


def main() -> None:
    """Run what is missing, print the tables."""
    rows = load()
    chosen = {}
    for method, variants in VARIANTS.items():
        for problem, seed in fits():
            for variant in variants:
                ensure(rows, method, variant, problem, seed)
        chosen[method] = choose(rows, method)
    print(f"\n{WIDE[0]}: 1e4 x risk by seed")
    for method, variant in chosen.items():
        check_wide(rows, method, variant)
    check_range()


if __name__ == "__main__":
    main()
