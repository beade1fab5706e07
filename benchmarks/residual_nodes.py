"""A treatment that is not normal given instruments and covariates: nodes at its residuals beside Gauss-Hermite ones.

The demand design with another price shock and, but for `demand`, another response to the price:

- P = 25 + (C + 3) psi(T) + scale * U, with U of mean zero and variance one: `normal`; `exponential`; `bimodal`, two
  modes at -0.97 and 0.97; `skewed`, a fifth of the rows in a mode at 1.94 and the others at -0.485, both of standard
  deviation 0.24.
- `demand`: g = 100 + (10 + P) S psi(T) - 2 P, linear in the price. `threshold`: P replaced by
  16 + 6 tanh((P - 17) / 1.5).

Errors of g are over the 2,800 points of the demand grid, as a share of var(g). `python benchmarks/residual_nodes.py
CASE SEED...` appends rows to `residual_nodes.jsonl`; `show` prints them, and `bias` the error of the integral itself.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import jax
import numpy as np

from bgmiv.bgm.config import BGMIVConfig, default_preset
from bgmiv.bgm.fitted import FittedNetworks
from bgmiv.bgm.members import density_gain, left_out_residuals, nodes_unless_normal
from bgmiv.data.ivdata import IVData
from bgmiv.data.query import query_at
from bgmiv.designs import base
from bgmiv.designs.demand import demand, demand_grid, season
from bgmiv.effects import estimate_at

ROWS = Path(__file__).with_suffix(".jsonl")
N_NODES = 16
# Streams of the demand design, and one of its own for the shock.
GROUP, TIME, COST, NOISE, SHOCK = 0, 1, 2, 4, 200


class Case(NamedTuple):
    """A response to the price, the shock's shape and standard deviation, and the number of rows."""

    response: str
    shock: str
    scale: float
    n: int


CASES = {
    "threshold-skewed": Case("threshold", "skewed", 3.0, 5000),
    "threshold-skewed-1000": Case("threshold", "skewed", 3.0, 1000),
    "threshold-exponential": Case("threshold", "exponential", 3.0, 5000),
    "threshold-bimodal": Case("threshold", "bimodal", 3.0, 5000),
    "threshold-normal": Case("threshold", "normal", 3.0, 1000),
    "demand-exponential": Case("demand", "exponential", 1.0, 1000),
    "demand-bimodal": Case("demand", "bimodal", 1.0, 1000),
    "demand-normal": Case("demand", "normal", 1.0, 1000),
}


def draw_shock(shape: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """The price shock, of mean zero and variance one."""
    if shape == "normal":
        return rng.normal(size=n)
    if shape == "exponential":
        return rng.exponential(size=n) - 1.0
    share = 0.5 if shape == "bimodal" else 0.2
    right = rng.uniform(size=n) < share
    centre = np.where(right, np.sqrt((1.0 - share) / share), -np.sqrt(share / (1.0 - share)))
    return 0.97 * centre + np.sqrt(1.0 - 0.97**2) * rng.normal(size=n)


def structural(response: str, price: np.ndarray, time: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The function g."""
    shown = 16.0 + 6.0 * np.tanh((price - 17.0) / 1.5) if response == "threshold" else price
    return demand(shown, time, group)


def sample(case: Case, seed: int, rho: float = 0.5) -> IVData:
    """Rows of a case; the time, the group, the cost and the noise are those of the demand design."""
    n = case.n
    group = base.stream(seed, GROUP).integers(1, 8, size=n).astype(np.float64)
    time = base.stream(seed, TIME).uniform(0.0, 10.0, size=n)
    cost, noise = base.normals(n, seed, COST, NOISE)
    shock = draw_shock(case.shock, n, base.stream(seed, SHOCK))
    price = 25.0 + (cost + 3.0) * season(time) + case.scale * shock
    outcome = structural(case.response, price, time, group) + base.confounded(shock, noise, rho)
    known, kinds = {"time": time, "group": group}, {"time": "continuous", "group": "continuous"}
    return IVData.from_arrays(
        {"demand": outcome},
        {"price": price},
        instruments={"cost": cost},
        covariates=known,
        blocks=kinds,
        treatment_kind="continuous",
    )


def error(fitted: FittedNetworks, case: Case) -> float:
    """The mean square error over the grid as a share of var(g)."""
    price, time, group = demand_grid()
    truth = structural(case.response, price, time, group)
    query = query_at(fitted.schema, price, np.column_stack([time, group]))
    found = estimate_at(fitted, query, intervals=False).values[0]
    return float(np.mean((found - truth) ** 2) / truth.var())


def described(fitted: FittedNetworks, case: Case) -> dict[str, float]:
    """Error, held-out loss of the outcome and the networks' weight in the last stage."""
    losses = [member.held_out.outcome_loss for member in fitted.members if member.held_out]
    weight = 0.0 if fitted.last_stage is None else fitted.last_stage.weight
    return {"error": error(fitted, case), "held_out_loss": float(np.mean(losses)), "weight": float(weight)}


def measured(name: str, seed: int) -> dict[str, Any]:
    """One sample fitted with the usual nodes and, where residuals are not normal, with theirs, as the default does."""
    case = CASES[name]
    data, key = sample(case, seed), jax.random.key(seed)
    config: BGMIVConfig = default_preset()
    config = replace(
        config,
        initial=replace(config.initial, residual_nodes=0),
        ensemble=replace(config.ensemble, held_out=1.0 / config.ensemble.members),
    )
    begun = process_time()
    first = config.fit(data, key)
    row: dict[str, Any] = {"case": name, "seed": seed, "usual": described(first, case), "kept": "usual"}
    row["usual"]["cpu"] = process_time() - begun
    scaled = first.scaler.transform(first.reduction.apply(data))
    residuals = left_out_residuals(first.members, scaled, data.full_weights)
    row["density_gain"] = density_gain(residuals)
    rule = nodes_unless_normal(residuals, N_NODES)
    if rule is None:
        return row
    begun = process_time()
    second = replace(config, initial=replace(config.initial, integration=rule)).fit(data, key)
    row["residual"] = described(second, case)
    row["residual"]["cpu"] = process_time() - begun
    if row["residual"]["held_out_loss"] < row["usual"]["held_out_loss"]:
        row["kept"] = "residual"
    return row


def bias() -> None:
    """The error of E[g | w, v] with three Gauss-Hermite nodes for the true g, as a share of its variance."""
    points, weights = np.polynomial.hermite_e.hermegauss(3)
    for name, case in CASES.items():
        rng = np.random.default_rng(0)
        time, group, cost = rng.uniform(0.0, 10.0, 4000), rng.integers(1, 8, 4000), rng.normal(size=4000)
        shocks = np.sort(draw_shock(case.shock, 400_000, rng))[500::1000]
        mean = 25.0 + (cost + 3.0) * season(time)
        true = np.mean([structural(case.response, mean + case.scale * u, time, group) for u in shocks], axis=0)
        at = [structural(case.response, mean + case.scale * point, time, group) for point in points]
        found = np.tensordot(weights / weights.sum(), np.stack(at), 1)
        print(f"{name:24} {np.var(found - true) / np.var(true):.4f}")


def show() -> None:
    """The rows, and the mean ratio of errors by case."""
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()]
    for name in CASES:
        ratios = []
        for row in (row for row in rows if row["case"] == name):
            usual, other = row["usual"], row.get("residual", row["usual"])
            kept = row[row["kept"]]
            ratios.append(kept["error"] / usual["error"])
            print(
                f"{name:24} {row['seed']} gain {row['density_gain']:.3f} usual {usual['error']:.4f} "
                f"residual {other['error']:.4f} kept {row['kept']}: {ratios[-1]:.2f}"
            )
        if ratios:
            print(f"{name:24} mean ratio {np.mean(ratios):.2f}")


if __name__ == "__main__":
    command, *seeds = sys.argv[1:]
    if command == "bias":
        bias()
    elif command == "show":
        show()
    else:
        for seed in seeds:
            with ROWS.open("a") as file:
                file.write(json.dumps(measured(command, int(seed))) + "\n")
