"""Coverage of 95% intervals: average contrasts, average derivatives, g point by point, and bands; weak instruments.

Every sample is one line of interval_coverage.jsonl and is not done again; interval_coverage.md says what came. Seeds 1
to 100 are reported and were used for no choice; choices were made on seeds from 5000 on (`--seeds 5000:5060 --rows
FILE`).

    NPROC=1 OPENBLAS_NUM_THREADS=1 python benchmarks/interval_coverage.py            the samples that are missing
    python benchmarks/interval_coverage.py --methods bgm-iv                           the same of BGM-IV itself
    python benchmarks/interval_coverage.py --methods bgm-iv --cells noisy-linear,500  one cell
    python benchmarks/interval_coverage.py tables                                     what is there as Markdown
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bgmiv import BGMIV, NPIV, TSLS
from bgmiv.designs import make_design
from bgmiv.designs.demand import demand
from bgmiv.diagnostics.linear import first_stage, linear_columns
from bgmiv.errors import BGMIVWarning

ROWS = Path(__file__).with_suffix(".jsonl")
METHODS = {"npiv": NPIV, "bgm-iv": BGMIV}
LEVEL, POINTS, DOSES = 0.95, 400, 41
SHAPES = ("linear", "concave", "threshold", "heterogeneous", "null")
CELLS = (
    *((f"noisy-{shape}", 500) for shape in SHAPES),
    ("demand-confounded", 500),
    *((f"semi-card-{shape}", 500) for shape in ("linear", "concave", "heterogeneous")),
    *((f"noisy-{shape}", 2000) for shape in ("linear", "concave", "heterogeneous")),
)
N_WEAK, WEAK_F = 500, (2.0, 5.0, 10.0, 25.0, 150.0)
# One design of the noisy ones for each of the population's F; instruments, shape.
WEAK = tuple((f, q, shape) for f in WEAK_F for q, shape in ((1, "linear"), (2, "concave")))

STRONG = (*(f"noisy-{shape}" for shape in SHAPES if shape != "threshold"), "demand-confounded")

Row = dict[str, Any]


def done(path: Path) -> list[Row]:
    """The finished samples."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def weak_design(f: float, n_instruments: int, shape: str) -> str:
    """The noisy design whose population F is f: F = 1 + n R / (q (1 - R)), with R the partial R²."""
    ratio = (f - 1.0) * n_instruments / N_WEAK
    return f"noisy-{shape}:partial_r2={ratio / (1.0 + ratio):.4g}" + (
        "" if n_instruments == 2 else f",n_instruments={n_instruments}"
    )


WEAK_DESIGNS = {weak_design(*one): one for one in WEAK}


def truth_of(design: Any, treatment: Any, covariates: np.ndarray) -> np.ndarray:
    """The structural function at treatments (one, or one a row) for rows of covariates."""
    x = np.broadcast_to(np.asarray(treatment, np.float64), len(covariates))
    structural = getattr(design, "structural", demand)
    return np.asarray(structural(x, *covariates.astype(np.float64).T), np.float64)


def drawn(name: str, n: int, seed: int) -> tuple[Any, Any, dict[str, Any]]:
    """A design, its sample, and instruments and covariates as arguments of `fit`."""
    design = make_design(name)
    data = design.sample(n, 0.9 if name.startswith("demand") else 0.7, seed)
    arguments = {
        "instruments": dict(zip(data.schema.instruments, data.instruments.T, strict=True)),
        "covariates": dict(zip(data.schema.covariate_names, data.covariates.T, strict=True)),
    }
    return design, data, arguments


def fit(name: str, n: int, method: str, seed: int) -> Row:
    """One sample: for each interval the truth, the estimate and the ends, or the share of points that it holds."""
    design, data, arguments = drawn(name, n, seed)
    x, v = data.treatment.astype(np.float64), data.covariates
    model: Any = METHODS[method](random_state=seed).fit(data.outcome, x, **arguments)
    linear = TSLS().fit(data.outcome, x, **arguments)
    t0, t1 = np.quantile(x, [0.25, 0.75]).tolist()
    step = 0.1 * float(x.std())
    change = float(np.mean(truth_of(design, t1, v) - truth_of(design, t0, v)))
    slope = float(np.mean(truth_of(design, x + step / 2, v) - truth_of(design, x - step / 2, v)) / step)
    pair, around = {"t0": t0, "t1": t1, "level": LEVEL}, {"t0": x - step / 2, "t1": x + step / 2, "level": LEVEL}
    found = {
        "contrast": model.ate_interval(**pair, method="usual"),
        "rough": model.ate_interval(**pair, method="rough"),
        "auto": model.ate_interval(**pair),
        "tsls": linear.ate_interval(**pair, method="usual"),
    }
    slopes = model.ate_interval(**around, method="usual")
    row: Row = {key: [change, one.estimate, one.lower, one.upper] for key, one in found.items()}
    row["slope"] = [slope, *(end / step for end in (slopes.estimate, slopes.lower, slopes.upper))]
    row["used"] = found["auto"].method
    columns = linear_columns(data)
    row["f"] = round(first_stage(columns.treatment[:, 0], columns).effective_f, 3)
    function = getattr(model.fitted_, "function", None) or getattr(model.fitted_, "last_stage", None)
    row["terms"] = ["networks"] if function is None else [*function.kept[3:], *["networks"] * (function.weight != 0.0)]

    if name in WEAK_DESIGNS:
        return row
    return row | held_at_once(design, model, x, v)


def held_at_once(design: Any, model: Any, x: np.ndarray, v: np.ndarray) -> Row:
    """The shares of points of g, and of treatments of the average curve, that intervals and bands hold."""
    row: Row = {}
    grid = design.grid()
    points = np.random.default_rng(0).permutation(np.flatnonzero(grid.in_support))[:POINTS]
    asked = {key: values[points] for key, values in grid.covariates.items()}
    curve = np.linspace(*np.quantile(x, [0.05, 0.95]), DOSES)
    doses = np.array([np.mean(truth_of(design, t, v)) for t in curve])
    bands: tuple[Any, ...] = ("pointwise", "uniform")
    for band in bands:
        surface = model.predict_interval(grid.treatment[points], asked, level=LEVEL, band=band)
        average = model.dose_response_interval(curve, level=LEVEL, band=band)
        for key, interval, truth in (("g", surface, grid.truth[points]), ("curve", average, doses)):
            row[f"{key} {band}"] = float(np.mean((interval.lower <= truth) & (truth <= interval.upper)))
    return row


def pieces(cells: list[tuple[str, int]], methods: list[str], seeds: range) -> Iterator[Row]:
    """All samples, the cells in turn, so that an unfinished study has some of each."""
    for seed in seeds:
        for name, n in cells:
            for method in methods:
                yield {"design": name, "n": n, "method": method, "seed": seed}


def run(cells: list[tuple[str, int]], methods: list[str], seeds: range, path: Path) -> None:
    """Do the samples that are not done yet."""
    known = {json.dumps(row["piece"]) for row in done(path)}
    for piece in pieces(cells, methods, seeds):
        if json.dumps(piece) in known:
            continue
        start = time.process_time()
        row = {"piece": piece, **fit(piece["design"], piece["n"], piece["method"], piece["seed"])}
        row["cpu_seconds"] = round(time.process_time() - start, 2)
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def held(rows: list[Row], key: str) -> str:
    """How many intervals hold the truth."""
    inside = [low <= truth <= high for truth, _, low, high in (row[key] for row in rows)]
    return f"{sum(inside)}/{len(inside)}"


def width(rows: list[Row], key: str) -> float:
    """The median width, as a multiple of that of two-stage least squares' contrast."""
    return float(np.median([(row[key][3] - row[key][2]) / (row["tsls"][3] - row["tsls"][2]) for row in rows]))


def averages(rows: list[Row]) -> str:
    """Means over cells."""
    cells = {(row["piece"]["design"], row["piece"]["n"]): [] for row in rows}
    for row in rows:
        inside = [row[key][2] <= row[key][0] <= row[key][3] for key in ("contrast", "slope")]
        bands = [row[f"{key} uniform"] == 1.0 for key in ("g", "curve")]
        cells[row["piece"]["design"], row["piece"]["n"]].append([*inside, row["g pointwise"], *bands])
    means = np.mean([np.mean(values, axis=0) for values in cells.values()], axis=0)
    names = ("contrast", "slope", "g, point by point", "band of g", "band of the curve")
    return ", ".join(f"{name} {mean:.1%}" for name, mean in zip(names, means, strict=True))


def tables(path: Path) -> None:
    """What is there as Markdown."""
    rows = done(path)
    cells = list(dict.fromkeys((row["piece"]["method"], row["piece"]["design"], row["piece"]["n"]) for row in rows))
    head = ("method", "design", "n", "contrast", "width", "auto", "slope", "g, point by point", "g, band")
    print(f"| {' | '.join(head)} | curve, band | rough | width | announced |\n|{' --- |' * 13}")
    for method, design, n in cells:
        mine = [row for row in rows if tuple(row["piece"][k] for k in ("method", "design", "n")) == (method, design, n)]
        if design in WEAK_DESIGNS:
            continue
        points = np.mean([row["g pointwise"] for row in mine])
        bands = [sum(row[f"{key} uniform"] == 1.0 for row in mine) for key in ("g", "curve")]
        wider = sum(
            row["rough"][3] - row["rough"][2] > 1.35 * (row["contrast"][3] - row["contrast"][2]) for row in mine
        )
        print(
            f"| {method} | {design} | {n} | {held(mine, 'contrast')} | {width(mine, 'contrast'):.2f} | "
            f"{held(mine, 'auto')} | {held(mine, 'slope')} | {points:.1%} | "
            f"{bands[0]}/{len(mine)} | {bands[1]}/{len(mine)} | "
            f"{held(mine, 'rough')} | {width(mine, 'rough'):.2f} | {wider}/{len(mine)} |"
        )
    for method in METHODS:
        strong = [row for row in rows if row["piece"]["method"] == method and row["piece"]["design"] in STRONG]
        if strong:
            print(f"\n{method}, cells with a partial R² of 0.1 or more, the threshold aside: {averages(strong)}")
    print("\n| method | population F | instruments | shape | samples | median F | auto | usual | 2SLS | sets used |")
    print(f"|{' --- |' * 10}")
    for method in METHODS:
        for design, (f, q, shape) in WEAK_DESIGNS.items():
            mine = [row for row in rows if (row["piece"]["method"], row["piece"]["design"]) == (method, design)]
            if mine:
                used = sum(row["used"] == "anderson-rubin" for row in mine)
                median = np.median([row["f"] for row in mine])
                print(
                    f"| {method} | {f:g} | {q} | {shape} | {len(mine)} | {median:.1f} | {held(mine, 'auto')} | "
                    f"{held(mine, 'contrast')} | {held(mine, 'tsls')} | {used} |"
                )
    print(f"\n{sum(row['cpu_seconds'] for row in rows) / 60:.0f} CPU-minutes.")


def main() -> None:
    """Read what is asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", choices=["run", "tables"], default="run")
    parser.add_argument("--cells", nargs="*", help="such as noisy-linear,500")
    parser.add_argument("--methods", nargs="*", default=["npiv"], choices=list(METHODS))
    parser.add_argument("--seeds", default="1:101", help="the first, and one beyond the last")
    parser.add_argument("--rows", type=Path, default=ROWS)
    asked = parser.parse_args()
    if asked.what == "tables":
        return tables(asked.rows)
    cells = [*CELLS, *((name, N_WEAK) for name in WEAK_DESIGNS)]
    if asked.cells:
        cells = [(name, int(n)) for name, _, n in (cell.rpartition(",") for cell in asked.cells)]
    first, last = map(int, asked.seeds.split(":"))
    return run(cells, asked.methods, range(first, last), asked.rows)


if __name__ == "__main__":
    warnings.simplefilter("ignore", BGMIVWarning)
    main()
