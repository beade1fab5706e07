"""How much an estimate depends on what should not matter: the seed, the order of rows, and one row in a hundred.

Each data set is fitted ten times with other seeds, ten times with its rows in another order, and ten times without one
row in a hundred. Rows of `stability.jsonl` that are missing are made; `tables` prints the standard deviation of the
average effect in standard errors, and the range of the standard error in multiples of that of the first fit.

    NPROC=1 OMP_NUM_THREADS=1 python benchmarks/stability.py run
    python benchmarks/stability.py tables
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from bgmiv import BGMIV, NPIV
from bgmiv.designs import make_design
from bgmiv.designs.empirical import load_empirical

ROWS = Path(__file__).with_suffix(".jsonl")
TIMES = 10
KINDS = ("seed", "order", "without 1%")
METHODS: dict[str, Callable[[int], Any]] = {
    "NPIV": lambda seed: NPIV(random_state=seed),
    "BGMIV": lambda seed: BGMIV(random_state=seed),
}


class Source(NamedTuple):
    """A table, its formula, and the change of the treatment whose average effect is compared."""

    table: pd.DataFrame
    formula: str
    t0: Any
    t1: Any


def example() -> Source:
    """The README's."""
    rng = np.random.default_rng(0)
    cost, season, shock = rng.normal(size=(3, 1000))
    price = 5 + cost + season + shock
    sales = 40 - 3 * price + 2 * np.sin(season) + 4 * shock
    table = pd.DataFrame({"sales": sales, "price": price, "cost": cost, "season": season})
    return Source(table, "sales ~ season + [price ~ cost]", 5.0, 6.0)


def real(name: str, t0: Any, t1: Any) -> Source:
    """A real data set."""
    found = load_empirical(name)
    return Source(pd.DataFrame(found.table), found.formula, t0, t1)


def designed(name: str) -> Source:
    """A sample of 2000 rows of a design, whose covariates are numbers."""
    data = make_design(name).sample(2000, 0.7, 5000)
    covariates = {f"v{j}": column for j, column in enumerate(data.covariates.T)}
    instruments = {f"w{j}": column for j, column in enumerate(data.instruments.T)}
    table = pd.DataFrame({"y": data.outcome, "x": data.treatment, **instruments, **covariates})
    t0, t1 = np.quantile(data.treatment, [0.25, 0.75])
    return Source(table, f"y ~ {' + '.join(covariates)} + [x ~ {' + '.join(instruments)}]", float(t0), float(t1))


SOURCES: dict[str, Callable[[], Source]] = {
    "README": example,
    "card": lambda: real("card", 12.0, 16.0),
    "401ksubs": lambda: real("401ksubs", 0, 1),
    "noisy-concave": lambda: designed("noisy-concave"),
    "noisy-heterogeneous": lambda: designed("noisy-heterogeneous"),
}


def changed(table: pd.DataFrame, kind: str, number: int) -> pd.DataFrame:
    """The rows of one fit."""
    rng = np.random.default_rng(number)
    if kind == "order":
        return table.iloc[rng.permutation(len(table))].reset_index(drop=True)
    if kind == "without 1%" and number:
        return table.drop(index=table.index[rng.choice(len(table), len(table) // 100, replace=False)])
    return table


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The finished fits."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run() -> None:
    """Fit what is missing."""
    warnings.simplefilter("ignore")
    done = {(row["data"], row["method"], row["kind"], row["number"]) for row in rows_of(ROWS)}
    for name, make in SOURCES.items():
        source = make()
        for method, estimator in METHODS.items():
            for kind in KINDS:
                for number in range(TIMES):
                    if (name, method, kind, number) in done:
                        continue
                    model = estimator(number if kind == "seed" else 0)
                    model.fit_formula(source.formula, changed(source.table, kind, number))
                    found = model.ate_interval(t0=source.t0, t1=source.t1, method="usual")
                    row = {"data": name, "method": method, "kind": kind, "number": number}
                    row |= {"estimate": found.estimate, "std_error": found.std_error}
                    with ROWS.open("a") as file:
                        file.write(json.dumps(row) + "\n")


def tables() -> None:
    """What is there as Markdown."""
    fits: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows_of(ROWS):
        fits[row["data"], row["method"]][row["kind"]].append((row["estimate"], row["std_error"]))
    print(f"| data | method | estimate (standard error) | {' | '.join(KINDS)} | standard errors |")
    print("| --- " * (4 + len(KINDS)) + "|")
    for (name, method), by_kind in fits.items():
        estimate, error = by_kind["seed"][0]
        spreads = [float(np.std([one for one, _ in by_kind[kind]], ddof=1)) / error for kind in KINDS if by_kind[kind]]
        ratios = [own / error for each in by_kind.values() for _, own in each]
        cells = " | ".join(f"{spread:.3f}" for spread in spreads)
        print(
            f"| {name} | {method} | {estimate:.4g} ({error:.2g}) | {cells} | {min(ratios):.2f} to {max(ratios):.2f} |"
        )


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        run()
    elif sys.argv[1:] == ["tables"]:
        tables()
    else:
        raise SystemExit(__doc__)
