"""Coverage and width of 95% intervals in 32 cells: average contrasts, slopes, curves, a subgroup and single rows.

Every sample is one line of interval_coverage.jsonl and is not done again; interval_coverage.md says what came. Seeds 1
to 100 are reported and are used for no choice; choices are made on seeds from 5000 on.

    export NPROC=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
    python benchmarks/interval_coverage.py                                    the samples that are missing
    python benchmarks/interval_coverage.py --part 1/2                         one half of them; 2/2 beside it
    python benchmarks/interval_coverage.py --cells beyond                     five more, where assumptions do not hold
    python benchmarks/interval_coverage.py --seeds 5000:5040 --cells hard --rows FILE
    python benchmarks/interval_coverage.py tables --rows FILE [--against OLD] what is there as Markdown
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bgmiv import BGMIV, NPIV, TSLS
from bgmiv.errors import BGMIVWarning

ROWS = Path(__file__).with_suffix(".jsonl")
METHODS: dict[str, Any] = {"npiv": NPIV, "bgm-iv": BGMIV}
LEVEL, DOSES, SINGLE_ROWS = 0.95, 41, 50
# What the endogenous error has in common with the outcome's.
RHO = 0.7
CONTRASTS = ("25→75%", "mean→90%", "10→50%", "one step", "0→2", "0→1")
INTERVALS = (*CONTRASTS, "slope", "subgroup")

Floats = np.ndarray
Row = dict[str, Any]


class Sample(NamedTuple):
    """Data and the structural function g(x, v)."""

    y: Floats
    x: Floats
    w: Floats
    v: Floats
    g: Callable[[Floats, Floats], Floats]
    groups: Floats | None = None


class Cell(NamedTuple):
    """A design with a number of rows; `kind` of the treatment decides which contrasts make sense."""

    draw: Callable[[np.random.Generator, int], Sample]
    n: int
    kind: str = "number"
    zero_to_two: bool = False
    linear: bool = False
    clusters: bool = False


CURVES: dict[str, Callable[[Floats], Floats]] = {
    "linear": lambda x: x,
    "slight": lambda x: x + 0.1 * x**2,
    "quadratic": lambda x: x + 0.25 * x**2,
    "bent": lambda x: x + 0.5 * x**2,
    "cubic": lambda x: 0.5 * x + x**3 / 6.0,
    "exponential": lambda x: np.exp(0.6 * x),
    "concave": lambda x: -1.5 * np.logaddexp(0.0, -2.0 * x),
    "tanh": lambda x: 2.0 * np.tanh(x),
    "steps": lambda x: 4.0 * (1.0 - np.exp(-0.7 * x)),
    "log": lambda x: 3.0 * np.log1p(x),
    "sine": lambda x: np.sin(1.5 * x),
    "threshold": lambda x: 2.0 * (x > 0.0),
}


def errors(rng: np.random.Generator, n: int, tails: float | None = None) -> tuple[Floats, Floats]:
    """The treatment's error and the outcome's, of variance one and correlation RHO; Student's t with `tails`."""
    u, own = rng.normal(size=(2, n))
    e = RHO * u + np.sqrt(1.0 - RHO**2) * own
    if tails is None:
        return u, e
    scale = np.sqrt(rng.chisquare(tails, size=n) / (tails - 2.0))
    return u / scale, e / scale


def instruments_of(rng: np.random.Generator, n: int, kind: str) -> Floats:
    """One or three normal instruments, or one that is -1 or 1."""
    if kind == "binary":
        return rng.choice([-1.0, 1.0], size=(n, 1))
    return rng.normal(size=(n, 3 if kind == "three" else 1))


def additive(
    rng: np.random.Generator,
    n: int,
    curve: str,
    *,
    instruments: str = "one",
    f: float | None = None,
    slope: float = 0.0,
    covariates: int = 1,
    tails: float | None = None,
    heteroskedastic: bool = False,
    varying: float = 0.0,
    by_covariate: float = 0.0,
    treatment: Callable[[Floats], Floats] | None = None,
) -> Sample:
    """y = g(x) + 0.5 v + e, x = slope·w + 0.3 v + u, or a function of that.

    Args:
        rng, n: the generator, and the number of rows.
        curve: of `CURVES`.
        instruments: "one", "three" or "binary".
        f: the population's F, in place of `slope`: F = 1 + n slope² for independent instruments of variance one.
        slope: of each instrument.
        covariates: how many; the first one matters.
        tails: degrees of freedom of the errors' t distribution.
        heteroskedastic: errors times sqrt((1 + v²) / 2).
        varying: how much the instruments' slope changes with v.
        by_covariate: how much the effect changes with v.
        treatment: what becomes of x.
    """
    w, v = instruments_of(rng, n, instruments), rng.normal(size=(n, covariates))
    u, e = errors(rng, n, tails)
    if heteroskedastic:
        scale = np.sqrt((1.0 + v[:, 0] ** 2) / 2.0)
        u, e = u * scale, e * scale
    if f is not None:
        slope = np.sqrt((f - 1.0) / n)
    x = (slope + varying * v[:, 0]) * w.sum(axis=1) + 0.3 * v[:, 0] + u
    if treatment is not None:
        x = treatment(x)

    def g(x: Floats, v: Floats) -> Floats:
        return np.asarray(CURVES[curve](x) + by_covariate * v[:, 0] * x + 0.5 * v[:, 0])

    return Sample(g(x, v) + e, x, w, v, g)


def beyond(
    rng: np.random.Generator,
    n: int,
    curve: str,
    f: float,
    confounding: Callable[[Floats, Floats], Floats] | None = None,
) -> Sample:
    """One instrument with this F; `confounding` is what else the error has in common with the treatment's."""
    w, v = rng.normal(size=(n, 1)), rng.normal(size=(n, 1))
    u, e = errors(rng, n)
    x = np.sqrt((f - 1.0) / n) * w[:, 0] + 0.3 * v[:, 0] + u
    if confounding is not None:
        e = e + confounding(u, x)

    def g(x: Floats, v: Floats) -> Floats:
        return np.asarray(CURVES[curve](x) + 0.5 * v[:, 0])

    return Sample(g(x, v) + e, x, w, v, g)


def strength_of_sign(rng: np.random.Generator, n: int) -> Sample:
    """x = v·w + u: the instrument does nothing on average, and much given v."""
    w, v = rng.normal(size=(2, n, 1))
    u, e = errors(rng, n)
    x = v[:, 0] * w[:, 0] + u

    def g(x: Floats, v: Floats) -> Floats:
        return np.asarray(x + 0.5 * v[:, 0])

    return Sample(g(x, v) + e, x, w, v, g)


def clustered(rng: np.random.Generator, n: int, curve: str, *, n_clusters: int, unequal: bool) -> Sample:
    """Half of the instrument's variance and of the errors' is between clusters, whose sizes go up to tenfold."""
    if unequal:
        shares = np.linspace(1.0, 10.0, n_clusters)
        groups = np.repeat(np.arange(n_clusters), np.floor(n * shares / shares.sum()).astype(int))
    else:
        groups = np.repeat(np.arange(n_clusters), n // n_clusters)
    n = len(groups)
    between_u, between_e = errors(rng, n_clusters)
    u, e = errors(rng, n)
    u = np.sqrt(0.5) * (between_u[groups] + u)
    e = np.sqrt(0.5) * (between_e[groups] + e)
    w = np.sqrt(0.5) * (rng.normal(size=n_clusters)[groups] + rng.normal(size=n))
    v = rng.normal(size=(n, 1))
    x = w + 0.3 * v[:, 0] + u

    def g(x: Floats, v: Floats) -> Floats:
        return np.asarray(CURVES[curve](x) + 0.5 * v[:, 0])

    return Sample(g(x, v) + e, x, w[:, None], v, g, groups)


def levels(low: int, high: int, middle: float, spread: float) -> Callable[[Floats], Floats]:
    """Rounded to whole numbers from `low` to `high`."""
    return lambda x: np.clip(np.round(middle + spread * x), low, high)


def _cell(n: int, curve: str, *, kind: str = "number", zero_to_two: bool = False, **settings: Any) -> Cell:
    linear = curve == "linear" and not settings.get("by_covariate")
    return Cell(partial(additive, curve=curve, **settings), n, kind, zero_to_two, linear)


def _clusters(n: int, curve: str, n_clusters: int, *, unequal: bool = True) -> Cell:
    draw = partial(clustered, curve=curve, n_clusters=n_clusters, unequal=unequal)
    return Cell(draw, n, linear=curve == "linear", clusters=True)


CELLS: dict[str, Cell] = {
    # Where intervals were seen to fail.
    "quadratic, one, F 61": _cell(1000, "quadratic", slope=0.245, zero_to_two=True),
    "slight, R² 0.33": _cell(500, "slight", slope=0.7, covariates=2, zero_to_two=True),
    "tanh, t(3) errors": _cell(500, "tanh", slope=0.7, covariates=2, tails=3.0, zero_to_two=True),
    "bent, binary, F 246": _cell(500, "bent", instruments="binary", slope=0.7, zero_to_two=True),
    "x = v·w + u": Cell(strength_of_sign, 1000, linear=True),
    "levels 0 to 5, F 1500": _cell(1000, "steps", slope=1.25, treatment=levels(0, 5, 2.5, 0.75), kind="levels"),
    "8 clusters of 60": _clusters(480, "linear", 8, unequal=False),
    # Instruments by strength and number.
    "linear, one, F 20": _cell(500, "linear", f=20.0),
    "linear, one, F 100": _cell(500, "linear", f=100.0),
    "linear, three, F 45": _cell(500, "linear", instruments="three", f=45.0),
    "linear, binary, F 20": _cell(500, "linear", instruments="binary", f=20.0),
    "exponential, one, F 45": _cell(500, "exponential", f=45.0),
    "concave, one, F 45": _cell(500, "concave", f=45.0),
    "cubic, one, F 100": _cell(500, "cubic", f=100.0),
    "cubic, one, F 1000": _cell(500, "cubic", f=1000.0),
    "exponential, one, F 1000": _cell(300, "exponential", f=1000.0),
    "concave, three, F 20": _cell(500, "concave", instruments="three", f=20.0),
    "slight, three, F 100": _cell(500, "slight", instruments="three", f=100.0),
    "exponential, three, F 1000": _cell(1000, "exponential", instruments="three", f=1000.0),
    "slight, binary, F 45": _cell(1000, "slight", instruments="binary", f=45.0),
    "exponential, binary, F 1000": _cell(1000, "exponential", instruments="binary", f=1000.0),
    # Treatments and errors.
    "scale 1 to 7, three, F 45": _cell(
        500, "steps", instruments="three", f=50.0, treatment=levels(1, 7, 4.0, 1.3), kind="levels"
    ),
    "skewed, log, F 100": _cell(500, "log", f=260.0, treatment=lambda x: np.exp(0.7 * x)),
    "skewed, linear, F 100": _cell(500, "linear", f=260.0, treatment=lambda x: np.exp(0.7 * x)),
    "heteroskedastic, linear": _cell(500, "linear", f=1000.0, heteroskedastic=True),
    "heteroskedastic, concave": _cell(500, "concave", instruments="three", f=100.0, heteroskedastic=True),
    "strength varies, quadratic": _cell(500, "quadratic", slope=0.4, varying=0.5),
    "effect by covariate": _cell(500, "linear", f=1000.0, by_covariate=0.5),
    # Clusters of unequal size.
    "15 clusters, slight": _clusters(600, "slight", 15),
    "40 clusters, exponential": _clusters(800, "exponential", 40),
    # A binary treatment whose effect changes with v.
    "treatment 0/1, one, F 100": _cell(
        500, "linear", f=130.0, by_covariate=0.8, treatment=lambda x: (x > 0.0).astype(float), kind="binary"
    ),
    "treatment 0/1, binary, F 45": _cell(
        1000,
        "linear",
        instruments="binary",
        f=70.0,
        by_covariate=0.8,
        treatment=lambda x: (x > 0.0).astype(float),
        kind="binary",
    ),
}
# Where what the intervals assume does not hold, or a curve is rougher than they expect. They are not among the 32.
BEYOND: dict[str, Cell] = {
    "beyond: curved confounding": Cell(
        partial(beyond, curve="linear", f=100.0, confounding=lambda u, x: 0.4 * (u**2 - 1.0)), 500, linear=True
    ),
    "beyond: effects vary with u": Cell(
        partial(beyond, curve="linear", f=100.0, confounding=lambda u, x: 0.5 * (u * x - 1.0)), 500, linear=True
    ),
    "beyond: a hidden curve": Cell(
        partial(beyond, curve="quadratic", f=100.0, confounding=lambda u, x: -0.5 * (u * x - 1.0)), 500
    ),
    "beyond: sine, F 1000": Cell(partial(beyond, curve="sine", f=1000.0), 1000),
    "beyond: threshold, F 250": Cell(partial(beyond, curve="threshold", f=250.0), 1000),
}
EVERY = CELLS | BEYOND
HARD = (
    "quadratic, one, F 61",
    "slight, R² 0.33",
    "tanh, t(3) errors",
    "bent, binary, F 246",
    "levels 0 to 5, F 1500",
    "8 clusters of 60",
    "concave, one, F 45",
    "cubic, one, F 1000",
)
assert len(CELLS) <= 36
assert set(HARD) <= set(CELLS)


def sample_of(name: str, seed: int) -> Sample:
    """A cell's sample; seeds of different cells have nothing in common."""
    cell = EVERY[name]
    return cell.draw(np.random.default_rng([seed, zlib.crc32(name.encode())]), cell.n)


def contrasts_of(cell: Cell, x: Floats) -> dict[str, tuple[float, float]]:
    """The pairs of treatments asked about; of a scale whole steps, and the lowest one, where curves bend most."""
    if cell.kind == "binary":
        return {"0→1": (0.0, 1.0)}
    ten, quarter, half, three_quarters, ninety = np.quantile(x, [0.1, 0.25, 0.5, 0.75, 0.9])
    mean = float(x.mean())
    pairs = {"25→75%": (quarter, three_quarters), "mean→90%": (mean, ninety), "10→50%": (ten, half)}
    if cell.kind == "levels":
        pairs["one step"] = (float(x.min()), float(x.min()) + 1.0)
        pairs = {name: (np.round(low), np.round(high)) for name, (low, high) in pairs.items()}
    if cell.zero_to_two:
        pairs["0→2"] = (0.0, 2.0)
    return {name: (float(low), float(high)) for name, (low, high) in pairs.items() if low < high}


def effective_f(sample: Sample) -> float:
    """The effective F: the instruments' squared joint effect by its robust or clustered expectation under none."""
    exog = np.column_stack([np.ones(len(sample.x)), sample.v])
    both = np.column_stack([sample.x, sample.w])
    both = both - exog @ np.linalg.lstsq(exog, both, rcond=None)[0]
    # Columns of w that are orthonormal: the numerator is then a sum of squares.
    w = np.linalg.qr(both[:, 1:])[0]
    effects = w.T @ both[:, 0]
    scores = w * (both[:, 0] - w @ effects)[:, None]
    if sample.groups is not None:
        scores = np.stack([scores[sample.groups == group].sum(axis=0) for group in np.unique(sample.groups)])
    return float(effects @ effects / np.sum(scores**2))


def entry(truth: float, found: Any, divisor: float = 1.0) -> list[float]:
    """Truth, estimate, lower and upper end, and whether the interval, or a piece of the set, holds the truth."""
    estimate, lower, upper = (float(value) / divisor for value in (found.estimate, found.lower, found.upper))
    pieces = [(low / divisor, high / divisor) for low, high in found.pieces] or [(lower, upper)]
    held = any(low <= truth <= high for low, high in pieces)
    return [float(f"{value:.6g}") for value in (truth, estimate, lower, upper, held)]


def fit(name: str, method: str, seed: int) -> Row:
    """One sample: for each interval of one fit the truth, the estimate, the ends and whether it holds the truth."""
    cell, sample = EVERY[name], sample_of(name, seed)
    y, x, w, v, g, groups = sample
    start = time.process_time()
    model = METHODS[method](random_state=seed).fit(y, x, instruments=w, covariates=v, clusters=groups)
    fit_seconds = time.process_time() - start
    linear = TSLS().fit(y, x, instruments=w, covariates=v, clusters=groups)
    row: Row = {"default": {}, "usual": {}, "tsls": {}, "f": round(effective_f(sample), 3)}
    pairs = contrasts_of(cell, x)
    for label, (t0, t1) in pairs.items():
        pair: dict[str, Any] = {"t0": t0, "t1": t1, "level": LEVEL}
        truth = float(np.mean(g(np.full(len(x), t1), v) - g(np.full(len(x), t0), v)))
        row["default"][label] = entry(truth, model.ate_interval(**pair))
        row["usual"][label] = entry(truth, model.ate_interval(**pair, method="usual"))
        row["tsls"][label] = entry(truth, linear.ate_interval(**pair, method="usual"))
    row["default"] |= slope(cell, sample, model) | subgroup(sample, model, next(iter(pairs.values())))
    row["infinite"] = [key for key, one in row["default"].items() if math.isinf(one[3] - one[2])]
    row |= bands(cell, sample, model) | single_rows(sample, model, pairs)
    function = getattr(model.fitted_, "function", None) or getattr(model.fitted_, "last_stage", None)
    row["terms"] = [
        term for term in getattr(function, "kept", ()) if term not in ("constant", "treatment", "covariates")
    ]
    row["fit_seconds"] = round(fit_seconds, 2)
    row["cpu_seconds"] = round(time.process_time() - start, 2)
    return row


def slope(cell: Cell, sample: Sample, model: Any) -> Row:
    """The average derivative, of a treatment that is a number."""
    if cell.kind != "number":
        return {}
    x, v = sample.x, sample.v
    step = 0.1 * float(x.std())
    low, high = x - step / 2, x + step / 2
    truth = float(np.mean(sample.g(high, v) - sample.g(low, v))) / step
    return {"slope": entry(truth, model.ate_interval(t0=low, t1=high, level=LEVEL), step)}


def subgroup(sample: Sample, model: Any, pair: tuple[float, float]) -> Row:
    """The average effect in the rows whose first covariate is above its median."""
    v = sample.v[sample.v[:, 0] > np.median(sample.v[:, 0])]
    t0, t1 = pair
    truth = float(np.mean(sample.g(np.full(len(v), t1), v) - sample.g(np.full(len(v), t0), v)))
    return {"subgroup": entry(truth, model.ate_interval(v, t0=t0, t1=t1, level=LEVEL))}


def bands(cell: Cell, sample: Sample, model: Any) -> Row:
    """The shares of treatments at which the average curve's intervals and its uniform band hold the truth."""
    doses = np.unique(sample.x)
    if cell.kind == "number":
        doses = np.linspace(*np.quantile(sample.x, [0.05, 0.95]), DOSES)
    truth = np.array([np.mean(sample.g(np.full(len(sample.v), dose), sample.v)) for dose in doses])
    row = {}
    for band in ("pointwise", "uniform"):
        found = model.dose_response_interval(doses, level=LEVEL, band=band)
        row[f"curve {band}"] = round(float(np.mean((found.lower <= truth) & (truth <= found.upper))), 4)
    return row


def single_rows(sample: Sample, model: Any, pairs: dict[str, tuple[float, float]]) -> Row:
    """The share of the first rows whose own effect, from the mean to the 90% quantile, is held."""
    t0, t1 = pairs.get("mean→90%", next(iter(pairs.values())))
    v = sample.v[:SINGLE_ROWS]
    truth = sample.g(np.full(len(v), t1), v) - sample.g(np.full(len(v), t0), v)
    found = model.effect_interval(v, t0=t0, t1=t1, level=LEVEL)
    return {"rows": round(float(np.mean((found.lower <= truth) & (truth <= found.upper))), 4)}


def done(path: Path) -> list[Row]:
    """The finished samples."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def pieces(cells: list[str], method: str, seeds: range) -> Iterator[Row]:
    """All samples, the cells in turn, so that an unfinished study has some of each."""
    for seed in seeds:
        for name in cells:
            yield {"cell": name, "method": method, "seed": seed}


def run(cells: list[str], method: str, seeds: range, path: Path, part: tuple[int, int]) -> None:
    """Do the samples of this part that are not done yet; lines are written whole: processes can share a file."""
    known = {json.dumps(row["piece"]) for row in done(path)}
    mine, parts = part
    for number, piece in enumerate(pieces(cells, method, seeds)):
        if number % parts != mine - 1 or json.dumps(piece) in known:
            continue
        row = {"piece": piece, **fit(piece["cell"], method, piece["seed"])}
        with path.open("a") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def by_cell(path: Path, method: str, seeds: range, cells: list[str]) -> dict[str, list[Row]]:
    """The finished samples of each cell, in the order of `CELLS`."""
    found: dict[str, list[Row]] = {name: [] for name in cells}
    for row in done(path):
        piece = row["piece"]
        if piece["method"] == method and piece["seed"] in seeds and piece["cell"] in found:
            found[piece["cell"]].append(row)
    return {name: mine for name, mine in found.items() if mine}


def held(rows: list[Row], kind: str, label: str) -> list[float]:
    """Of each sample that has this interval, whether it holds the truth."""
    return [row[kind][label][4] for row in rows if label in row[kind]]


def counted(values: list[float]) -> str:
    """Such as 95/100; nothing where nothing was asked."""
    return f"{sum(values):.0f}/{len(values)}" if values else ""


def widths(rows: list[Row], kind: str, label: str) -> dict[int, float]:
    """Width by seed."""
    return {row["piece"]["seed"]: row[kind][label][3] - row[kind][label][2] for row in rows if label in row[kind]}


def median_ratio(ours: dict[int, float], theirs: dict[int, float]) -> float:
    """The median over the samples that both have of the ratio of widths, infinite ones left out; NaN without any."""
    ratios = [ours[seed] / theirs[seed] for seed in ours if seed in theirs]
    finite = [ratio for ratio in ratios if math.isfinite(ratio) and ratio > 0.0]
    return float(np.median(finite)) if finite else math.nan


def geometric_mean(values: list[float]) -> float:
    """Of those that are numbers."""
    return float(np.exp(np.nanmean(np.log(values)))) if values else math.nan


def markdown(head: tuple[str, ...], lines: list[list[str]]) -> None:
    """Print a table."""
    print(f"\n| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for line in lines:
        print(f"| {' | '.join(line)} |")


def print_coverage(cells: dict[str, list[Row]]) -> None:
    """How often the default interval holds, by cell and question."""
    lines = []
    for name, mine in cells.items():
        counts = [counted(held(mine, "default", label)) for label in INTERVALS]
        uniform = counted([float(row["curve uniform"] == 1.0) for row in mine])
        shares = [f"{np.mean([row[key] for row in mine]):.0%}" for key in ("curve pointwise", "rows")]
        infinite = str(sum(bool(row["infinite"]) for row in mine))
        f = f"{np.median([row['f'] for row in mine]):.0f}"
        lines.append([name, str(EVERY[name].n), f, *counts, uniform, *shares, infinite])
    head = ("cell", "n", "median F", *INTERVALS, "curve, band", "curve, pointwise", "rows", "infinite")
    markdown(head, lines)


def print_widths(cells: dict[str, list[Row]]) -> None:
    """The default interval's width in multiples of two-stage least squares', and the coverage of others."""
    lines = []
    for name, mine in cells.items():
        line = [name]
        for label in CONTRASTS:
            ratio = median_ratio(widths(mine, "default", label), widths(mine, "tsls", label))
            line.append("" if math.isnan(ratio) else f"{ratio:.2f}")
        for kind in ("usual", "tsls"):
            every = [value for label in CONTRASTS for value in held(mine, kind, label)]
            line.append(f"{np.mean(every):.0%}")
        line.append(f"{np.median([row['fit_seconds'] for row in mine]):.1f}")
        lines.append(line)
    markdown(("cell: width by 2SLS's", *CONTRASTS, "usual holds", "2SLS holds", "fit, CPU-seconds"), lines)


def print_summary(cells: dict[str, list[Row]]) -> None:
    """Pooled coverage, the cells that fall short, and widths where the truth is linear."""
    print()
    for kind in ("default", "usual", "tsls"):
        every = [value for mine in cells.values() for label in CONTRASTS for value in held(mine, kind, label)]
        print(f"- Average contrasts, {kind}: {np.mean(every):.1%} of {len(every)} intervals hold.")
    for label in ("slope", "subgroup"):
        every = [value for mine in cells.values() for value in held(mine, "default", label)]
        print(f"- {label.capitalize()}: {np.mean(every):.1%}.")
    rows = [row for mine in cells.values() for row in mine]
    shares = {key: np.mean([row[key] for row in rows]) for key in ("curve pointwise", "rows")}
    uniform = np.mean([row["curve uniform"] == 1.0 for row in rows])
    print(f"- Uniform band of the curve: {uniform:.1%}; its points: {shares['curve pointwise']:.1%}.")
    print(f"- Effects of single rows: {shares['rows']:.1%}.")
    short = []
    for name, mine in cells.items():
        for label in CONTRASTS:
            values = held(mine, "default", label)
            if values and np.mean(values) < 0.91:
                short.append(f"{name}, {label} ({counted(values)})")
    print(f"- Below 91%: {'; '.join(short) or 'none'}.")
    for title, labels in (("25→75%", CONTRASTS[:1]), ("one-sided contrasts", CONTRASTS[1:3])):
        linear = [
            median_ratio(widths(mine, "default", label), widths(mine, "tsls", label))
            for name, mine in cells.items()
            if EVERY[name].linear and not EVERY[name].clusters
            for label in labels
        ]
        if linear:
            print(
                f"- Linear cells, clusters aside, {title}: width by 2SLS's {geometric_mean(linear):.2f} (mean), "
                f"{np.nanmax(linear):.2f} (largest)."
            )
    minutes = sum(row["cpu_seconds"] for row in rows) / 60
    print(f"- {len(rows)} samples, {minutes:.0f} CPU-minutes.")


def print_against(cells: dict[str, list[Row]], old: dict[str, list[Row]]) -> None:
    """Widths by those of an older file, where that one held in at least 93%; clusters aside."""
    lines, ratios = [], []
    for name, mine in cells.items():
        for label in CONTRASTS:
            before = held(old.get(name, []), "default", label)
            if not before:
                continue
            ratio = median_ratio(widths(mine, "default", label), widths(old[name], "default", label))
            counts = np.mean(before) >= 0.93 and not EVERY[name].clusters
            if counts:
                ratios.append(ratio)
            now = counted(held(mine, "default", label))
            lines.append([name, label, counted(before), now, f"{ratio:.2f}", "yes" if counts else ""])
    markdown(("cell", "contrast", "held before", "held now", "width by before", "counts"), lines)
    print(f"\n- Width by before, where that held in 93% or more, clusters aside: {geometric_mean(ratios):.2f}.")


def tables(cells: dict[str, list[Row]], old: dict[str, list[Row]] | None) -> None:
    """What is there as Markdown."""
    if not cells:
        raise SystemExit("there are no such rows")
    print_coverage(cells)
    print_widths(cells)
    print_summary(cells)
    if old is not None:
        print_against(cells, old)


def chosen_cells(names: list[str] | None) -> list[str]:
    """All cells, those called hard, or the ones whose names are given or begin so."""
    if not names:
        return list(CELLS)
    if names == ["hard"]:
        return list(HARD)
    found = [cell for cell in EVERY if any(cell.startswith(name) for name in names)]
    unknown = [name for name in names if not any(cell.startswith(name) for cell in EVERY)]
    if unknown:
        raise SystemExit(f"no cell begins with {', '.join(unknown)}; there are: {'; '.join(EVERY)}")
    return found


def main() -> None:
    """Read what is asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["run", "tables"], default="run")
    parser.add_argument("--cells", nargs="*", help='names, or their beginnings; "hard" for the eight of development')
    parser.add_argument("--method", default="npiv", choices=list(METHODS))
    parser.add_argument("--seeds", default="1:101", help="the first, and one beyond the last")
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--part", default="1/1", help="such as 1/2: every second sample, beginning with the first")
    parser.add_argument("--against", type=Path, help="with tables: rows of an older version, to compare widths")
    asked = parser.parse_args()
    first, last = map(int, asked.seeds.split(":"))
    seeds, cells = range(first, last), chosen_cells(asked.cells)
    if asked.what == "tables":
        of_file = partial(by_cell, method=asked.method, seeds=seeds, cells=cells)
        return tables(of_file(asked.rows), None if asked.against is None else of_file(asked.against))
    mine, parts = map(int, asked.part.split("/"))
    return run(cells, asked.method, seeds, asked.rows, (mine, parts))


if __name__ == "__main__":
    # Warnings of weak instruments and of support are what many cells are about.
    warnings.simplefilter("ignore", BGMIVWarning)
    main()
