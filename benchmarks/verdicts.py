"""How verdicts fit errors: of fits near the best the share called good, of bad ones the share that is flagged.

Every sample is some lines of verdicts.jsonl, one a method, and is not done again; verdicts.md says what came. Seeds 1
to 10 are reported and are used for no choice; limits were chosen on seeds from 5000 on.

    export NPROC=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
    python benchmarks/verdicts.py                                   what is missing
    python benchmarks/verdicts.py --cells noisy --seeds 1:4         some of it
    python benchmarks/verdicts.py --seeds 5000:5006 --rows FILE     development seeds
    python benchmarks/verdicts.py size --seeds 5100:5140            how often the true function is flagged
    python benchmarks/verdicts.py tables                            what is there as Markdown
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bgmiv.analysis.build import FitOnRows
from bgmiv.data.ivdata import IVData
from bgmiv.diagnostics.control import SIZE, errors_given_control
from bgmiv.diagnostics.verdict import MOMENT_EXCESS, verdict_of
from bgmiv.effects import predict
from bgmiv.errors import BGMIVWarning
from bgmiv.registry import make_config
from interval_coverage import EVERY, sample_of
from report import make_design

ROWS = Path(__file__).with_suffix(".jsonl")
SHAPES = ("linear", "concave", "threshold", "heterogeneous", "interaction", "null")
SEMI = (
    "401ksubs-heterogeneous", "401ksubs-linear", "card-concave", "card-heterogeneous", "card-linear",
    "fertility-heterogeneous", "fertility-linear", "meps-heterogeneous", "meps-linear",
)  # fmt: skip
MOMENT_METHODS = ("tsls", "npiv", "bgm-iv", "kiv")
# BGM-IV trains networks on demand-confounded, for a minute each.
CLOSED_FORM = ("tsls", "npiv", "kiv", "control-function")
# Cells of interval_coverage.py: of the 32, and those where assumptions do not hold.
COVERAGE = (
    "linear, one, F 100", "quadratic, one, F 61", "cubic, one, F 100", "concave, three, F 20", "skewed, log, F 100",
    "skewed, linear, F 100", "scale 1 to 7, three, F 45", "15 clusters, slight", "heteroskedastic, linear",
    "treatment 0/1, one, F 100",
)  # fmt: skip
BEYOND = tuple(name for name in EVERY if name.startswith("beyond"))
# Below this share of the variance of g an error is next to none, and a ratio of two such errors says little.
NEXT_TO_NONE = 0.02
SOUND, NEAR, FAR = 0.05, 1.3, 3.0

Row = dict[str, Any]
Floats = np.ndarray


class Cell(NamedTuple):
    """A design with rows and confounding, and the methods fitted; one of interval_coverage.py has no design."""

    group: str
    name: str
    n: int = 0
    rho: float = 0.0
    methods: tuple[str, ...] = (*MOMENT_METHODS, "control-function")


CELLS: tuple[Cell, ...] = (
    *(Cell("noisy", f"noisy-{shape}", 500, 0.7) for shape in SHAPES),
    *(Cell("confounded", f"lowdim-{curve}", 1000, 0.9) for curve in ("sin", "abs", "step", "linear")),
    Cell("confounded", "binary-confounded", 1000, 0.9),
    Cell("confounded", "demand-confounded", 1000, 0.9, CLOSED_FORM),
    *(Cell("coverage", name, methods=CLOSED_FORM) for name in COVERAGE),
    *(Cell("beyond", name, methods=CLOSED_FORM) for name in BEYOND),
    *(Cell("semi", f"semi-{study}", 2000, 0.7, MOMENT_METHODS) for study in SEMI),
    *(Cell("noisy 2000", f"noisy-{shape}", 2000, 0.7, MOMENT_METHODS) for shape in SHAPES),
    Cell("networks", "demand-confounded", 1000, 0.9, ("bgm-iv",)),
    *(Cell("networks", f"noisy-{shape}", 500, 0.7, ("deepiv", "dfiv", "deepgmm")) for shape in SHAPES),
)


class Sample(NamedTuple):
    """Data, and points at which the structural function is known: the design's grid, or the usual rows of a cell."""

    data: IVData
    treatment: Floats
    covariates: Any
    truth: Floats


def draw(cell: Cell, seed: int) -> Sample:
    """A cell's sample."""
    if cell.n:
        design = make_design(cell.name)
        grid = design.grid()
        data = design.sample(cell.n, cell.rho, seed)
        return Sample(data, grid.treatment, grid.covariates, np.asarray(grid.truth))
    y, x, w, v, g, groups = sample_of(cell.name, seed)
    low, high = np.quantile(x, [0.05, 0.95])
    usual = (low <= x) & (x <= high)
    data = IVData.from_arrays(y, x, instruments=w, covariates=v, clusters=groups)
    covariates = {block.name: v[usual, i] for i, block in enumerate(data.schema.blocks)}
    return Sample(data, x[usual], covariates, g(x[usual], v[usual]))


def fit(cell: Cell, sample: Sample, method: str, seed: int) -> Row:
    """The error of a method's default fit, and its verdict."""
    start, config = time.process_time(), make_config(method, "default")

    fitted = config.fit(sample.data, seed)
    error = float(np.mean((predict(fitted, sample.treatment, sample.covariates) - sample.truth) ** 2))
    verdict = verdict_of(FitOnRows(fitted, sample.data, config, seed).judged)
    known = verdict.evidence
    return {
        "error": float(f"{error:.6g}"),
        "variance": float(f"{np.var(sample.truth):.6g}"),
        "severity": verdict.severity,
        "findings": {finding.key: float(f"{finding.value:.4g}") for finding in verdict.findings},
        "not_measured": list(verdict.not_measured),
        "control": [known.control_error, known.control_p, known.control_visible],
        "f": known.instrument_f,
        "shapes": known.visible_shapes,
        "seconds": round(time.process_time() - start, 1),
    }


def key_of(row: Row) -> tuple[Any, ...]:
    """What a line is of."""
    return row["group"], row["name"], row["n"], row["method"], row["seed"]


def done(path: Path) -> list[Row]:
    """The finished lines."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def pieces(cells: list[Cell], seeds: range) -> Iterator[tuple[Cell, int]]:
    """All samples, the cells in turn, so that an unfinished study has some of each."""
    for seed in seeds:
        for cell in cells:
            yield cell, seed


def run(cells: list[Cell], seeds: range, path: Path) -> None:
    """What is not done yet; lines are written whole, so that processes can share a file."""
    for cell, seed in pieces(cells, seeds):
        finished = {key_of(row) for row in done(path)}
        wanted = [
            {"group": cell.group, "name": cell.name, "n": cell.n, "method": m, "seed": seed} for m in cell.methods
        ]
        wanted = [row for row in wanted if key_of(row) not in finished]
        if not wanted:
            continue
        sample = draw(cell, seed)
        for row in wanted:
            try:
                found = fit(cell, sample, row["method"], seed)
            except (ArithmeticError, LookupError, ValueError) as error:
                found = {"failed": f"{type(error).__name__}: {error}"}
            with path.open("a") as file:
                file.write(json.dumps(row | found) + "\n")


def size(cells: list[Cell], seeds: range) -> None:
    """How often the true function of a cell is said to be wrong by the regression given a control variable."""
    print("| cell | samples | p < 0.05 | p < 0.01 | flagged |\n| --- | --- | --- | --- | --- |")
    for cell in cells:
        found = []
        for seed in seeds:
            if cell.n and not hasattr(make_design(cell.name), "structural"):
                break
            data, truth = _with_truth(cell, seed)
            y = np.asarray(data.outcome, np.float64)
            errors = errors_given_control(data, np.arange(data.n_rows)[:1500], [(y - truth)[:1500]])
            if errors is not None:
                flagged = errors[0].p_value < SIZE and errors[0].size > MOMENT_EXCESS.doubtful * np.var(y)
                found.append((errors[0].p_value < 0.05, errors[0].p_value < 0.01, flagged))
        if found:
            shares = " | ".join(f"{share:.1%}" for share in np.mean(found, axis=0))
            print(f"| {cell.name} | {len(found)} | {shares} |", flush=True)


def _with_truth(cell: Cell, seed: int) -> tuple[IVData, Floats]:
    """Data, and the structural function at their rows."""
    if not cell.n:
        sample = sample_of(cell.name, seed)
        data = IVData.from_arrays(sample.y, sample.x, instruments=sample.w, covariates=sample.v, clusters=sample.groups)
        return data, sample.g(sample.x, sample.v)
    design: Any = make_design(cell.name)
    data = design.sample(cell.n, cell.rho, seed)
    return data, design.structural(np.asarray(data.treatment, np.float64), *np.asarray(data.covariates, np.float64).T)


def with_ratios(rows: list[Row]) -> list[Row]:
    """The lines that have a moment method's error on the same sample, with the ratio of errors."""
    best: dict[tuple[Any, ...], float] = {}
    for row in rows:
        if row["method"] in MOMENT_METHODS and "error" in row:
            sample = row["name"], row["n"], row["seed"]
            best[sample] = min(best.get(sample, np.inf), row["error"])
    found = []
    for row in rows:
        least = best.get((row["name"], row["n"], row["seed"]))
        if least is not None and "error" in row:
            scale = row["variance"] or 1.0
            found.append(row | {"ratio": row["error"] / least, "share": row["error"] / scale})
    return found


def tables(path: Path) -> None:
    """What is there as Markdown."""
    rows = with_ratios(done(path))
    usual = [row for row in rows if row["group"] not in ("beyond", "coverage")]
    noticed = [row for row in usual if row["ratio"] <= NEAR or row["share"] > NEXT_TO_NONE]

    def of(*methods: str) -> Callable[[Row], bool]:
        return lambda row: row["method"] in methods

    print("| fits | within 1.3 | of them good | between | of them good | above 3 | of them flagged |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    groups = list(dict.fromkeys(row["group"] for row in usual))
    for group in groups:
        _line(group, [row for row in usual if row["group"] == group])
    for method in dict.fromkeys(row["method"] for row in usual):
        _line(f"all of {method}", list(filter(of(method), usual)))
    _line("**all**", usual)
    _line("all, but errors below 0.02 of var(g) above 3", noticed)
    _line("all, had the regression not been made", [_without_control(row) for row in usual])
    for group in ("coverage", "beyond"):
        for name in dict.fromkeys(row["name"] for row in rows if row["group"] == group):
            _line(name, [row for row in rows if row["name"] == name])
    print("\nFits with an error below 0.05 of var(g), and how many only the regression flags:\n")
    print("| cell | fits | flagged by it alone | flagged |\n| --- | --- | --- | --- |")
    for name in dict.fromkeys(row["name"] for row in rows):
        sound = [row for row in rows if row["name"] == name and row["share"] < SOUND]
        alone = sum(set(row["findings"]) == {"control_error"} for row in sound)
        flagged = sum(row["severity"] in ("doubtful", "failed") for row in sound)
        print(f"| {name} | {len(sound)} | {alone} | {flagged} |")
    print("\nFits within 1.3 that are not good, and fits above 3 that are not flagged:\n")
    print(
        "| cell | n | seed | method | ratio | error / var(g) | verdict | findings | given control: share, p, visible |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in usual:
        flagged = row["severity"] in ("doubtful", "failed")
        if (row["ratio"] <= NEAR and row["severity"] != "good") or (row["ratio"] > FAR and not flagged):
            control = ", ".join("-" if value is None else f"{value:.2g}" for value in row["control"])
            told = ", ".join(row["findings"]) or ", ".join(row["not_measured"]) or "-"
            parts = [row[name] for name in ("name", "n", "seed", "method")]
            parts += [f"{row['ratio']:.1f}", f"{row['share']:.3f}", row["severity"], told, control]
            print(f"| {' | '.join(map(str, parts))} |")


def _without_control(row: Row) -> Row:
    """The line as it would be without the regression given a control variable."""
    return row | {"severity": "good"} if set(row["findings"]) == {"control_error"} else row


def _line(label: str, rows: list[Row]) -> None:
    near = [row["severity"] for row in rows if row["ratio"] <= NEAR]
    between = [row["severity"] for row in rows if NEAR < row["ratio"] <= FAR]
    far = [row["severity"] for row in rows if row["ratio"] > FAR]
    n_flagged = sum(severity in ("doubtful", "failed") for severity in far)
    parts = [len(near), _share(near.count("good"), near), len(between), _share(between.count("good"), between)]
    print(f"| {label} | {' | '.join(map(str, parts))} | {len(far)} | {_share(n_flagged, far)} |")


def _share(count: int, of: list[str]) -> str:
    return f"{count} ({count / len(of):.0%})" if of else ""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="run", choices=("run", "tables", "size"))
    parser.add_argument("--cells", default="", help="groups, separated by commas")
    parser.add_argument("--seeds", default="1:11")
    parser.add_argument("--rows", type=Path, default=ROWS)
    asked = parser.parse_args()
    warnings.simplefilter("ignore", BGMIVWarning)
    wanted = asked.cells.split(",") if asked.cells else [cell.group for cell in CELLS]
    cells = [cell for cell in CELLS if cell.group in wanted]
    seeds = range(*map(int, asked.seeds.split(":")))
    if asked.what == "tables":
        tables(asked.rows)
    elif asked.what == "size":
        size(cells, seeds)
    else:
        run(cells, seeds, asked.rows)


if __name__ == "__main__":
    main()
