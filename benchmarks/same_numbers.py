"""Whether a change of the code changes numbers: every method on five small designs, before and after.

    python benchmarks/same_numbers.py before.jsonl                       # at the version before
    python benchmarks/same_numbers.py after.jsonl --against before.jsonl # at the version after, with the differences

Estimates, ends of intervals, evidence and the numbers of the summary's checks are written, a line for each fit; a run
that was interrupted goes on where it stopped. A difference is relative to the larger of the number and the standard
deviation of the outcome. It runs with older versions of the package too, from a folder outside the repository.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import bgmiv

TOLERANCE = 1e-6


class Design(NamedTuple):
    """Arguments of `fit`, and two treatments to compare."""

    arguments: dict[str, Any]
    t0: float
    t1: float


def line(rng: np.random.Generator) -> Design:
    """Two instruments, three covariates of which one is categorical, and a linear effect."""
    n = 300
    w, v = rng.normal(size=(n, 2)), rng.normal(size=(n, 2))
    region = rng.choice(["east", "north", "west"], n)
    u = rng.normal(size=n)
    x = w @ [0.7, 0.4] + v[:, 0] + 0.5 * (region == "north") + u
    y = 0.5 * x + v @ [1.0, -0.5] + u + rng.normal(size=n)
    covariates = {"age": v[:, 0], "size": v[:, 1], "region": region}
    arguments = {"outcome": y, "treatment": x, "instruments": w, "covariates": covariates}
    return Design(arguments | {"blocks": {"region": "categorical"}}, -0.5, 1.5)


def curve(rng: np.random.Generator) -> Design:
    """One instrument, one covariate, and a curve that depends on it."""
    n = 300
    w, v, u = rng.normal(size=(3, n))
    x = 1.2 * w + 0.5 * v + u
    y = np.where(x > 0, x, 0.3 * x) * (1 + 0.4 * v) + u + 0.5 * rng.normal(size=n)
    return Design({"outcome": y, "treatment": x, "instruments": w, "covariates": v}, -1.0, 1.0)


def binary(rng: np.random.Generator) -> Design:
    """A binary treatment and sampling weights."""
    n = 400
    w, v, u = rng.normal(size=(3, n))
    x = (w + 0.3 * v + u > 0).astype(float)
    y = (1 + 0.5 * v) * x + v + u + rng.normal(size=n)
    weights = rng.uniform(0.5, 2.0, n)
    return Design({"outcome": y, "treatment": x, "instruments": w, "covariates": v, "weights": weights}, 0.0, 1.0)


def clusters(rng: np.random.Generator) -> Design:
    """Thirty clusters, two instruments and a treatment of five levels."""
    n = 360
    cluster = np.arange(n) % 30
    w, v = rng.normal(size=(n, 2)), rng.normal(size=n)
    u = rng.normal(size=n) + 0.5 * rng.normal(size=30)[cluster]
    x = np.clip(np.round(2 + w @ [0.8, 0.5] + 0.5 * u), 0, 4)
    y = np.sqrt(x) + 0.5 * v + u + rng.normal(size=n)
    return Design({"outcome": y, "treatment": x, "instruments": w, "covariates": v, "clusters": cluster}, 1.0, 3.0)


def wide(rng: np.random.Generator) -> Design:
    """A block of forty proxies of two factors."""
    n = 300
    factors = rng.normal(size=(n, 2))
    proxies = factors @ rng.normal(size=(2, 40)) + rng.normal(size=(n, 40))
    w, u = rng.normal(size=(2, n))
    x = w + factors[:, 0] + u
    y = x + factors[:, 1] ** 2 + u + rng.normal(size=n)
    arguments = {"outcome": y, "treatment": x, "instruments": w, "covariates": {"proxies": proxies}}
    return Design(arguments, -1.0, 1.0)


DESIGNS: dict[str, Callable[[np.random.Generator], Design]] = {
    function.__name__: function for function in (line, curve, binary, clusters, wide)
}

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "2SLS": ("TSLS", {}),
    "sieve": ("NPIV", {}),
    "control function": ("ControlFunction", {}),
    "BGM-IV": ("BGMIV", {}),
    "BGM-IV with networks": ("BGMIV", {"networks": True, "members": 3, "iterations": 300}),
    "BGM-IV, networks alone": ("BGMIV", {"networks": True, "members": 1, "held_out": 0.0, "iterations": 200}),
    "BGM-IV as in the paper": ("BGMIV", {"preset": "paper-qmc", "iterations": 200, "epochs": 2}),
    "KIV": ("KIV", {}),
    "DeepIV": ("DeepIV", {}),
    "DFIV": ("DFIV", {}),
    "DeepGMM": ("DeepGMM", {}),
}

OLD_NAMES = {"weights": ("sample_weight", "weights"), "clusters": ("clusters", "groups")}


def fitted(method: str, design: Design) -> Any:
    """A fit of one method, with the argument names of the version at hand."""
    name, settings = METHODS[method]
    method_class = getattr(bgmiv, name)
    if "random_state" in inspect.signature(method_class).parameters:
        settings = settings | {"random_state": 0}
    model = method_class(**settings)
    known = inspect.signature(model.fit).parameters
    renamed = {
        next((name for name in OLD_NAMES.get(argument, ()) if name in known), argument): value
        for argument, value in design.arguments.items()
    }
    try:
        return model.fit(**renamed)
    except bgmiv.DataError:
        # KIV takes no weights.
        return model.fit(**{name: value for name, value in renamed.items() if name not in OLD_NAMES["weights"]})


def numbers(model: Any, design: Design) -> Iterator[tuple[str, Any]]:
    """What an analyst reads, by name."""
    t0, t1 = design.t0, design.t1
    yield "average effect", model.ate(t0=t0, t1=t1)
    yield "curve", model.dose_response([t0, t1]).values
    for kind in ("auto", "usual", "robust"):
        try:
            interval = model.ate_interval(t0=t0, t1=t1, method=kind)
        except bgmiv.ConfigError:
            continue
        yield f"average effect, {kind}", [interval.estimate, interval.lower, interval.upper]
    try:
        band = model.dose_response_interval([t0, t1], band="uniform")
    except bgmiv.ConfigError:
        pass
    else:
        yield "uniform band", [band.lower, band.upper]
    for name, value in sorted(vars(model.verdict_.evidence).items()):
        if isinstance(value, int | float):
            yield f"evidence: {name}", value
    for check in model.diagnose().checks:
        yield f"check: {check.key}", check.severity
        for name, value in check.numbers.items():
            yield f"check: {check.key}, {name}", value


def measure(name: str, method: str) -> dict[str, Any]:
    """The numbers of one method on one design."""
    design = DESIGNS[name](np.random.default_rng(list(DESIGNS).index(name)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = fitted(method, design)
        kept = {key: np.asarray(value).tolist() for key, value in numbers(model, design)}
    return {"design": name, "method": method, "scale": float(np.std(design.arguments["outcome"])), "numbers": kept}


def difference(one: Any, other: Any, scale: float) -> float:
    """The largest relative difference of two entries; infinite where they are not of one shape."""
    if isinstance(one, str) or isinstance(other, str):
        return 0.0 if one == other else np.inf
    a, b = np.asarray(one, float), np.asarray(other, float)
    if a.shape != b.shape:
        return np.inf
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        relative = np.abs(a - b) / np.maximum(np.maximum(np.abs(a), np.abs(b)), scale)
    return float(np.max(np.where(same, 0.0, np.nan_to_num(relative, nan=np.inf)), initial=0.0))


def compare(row: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """The entries that both have and that differ."""
    lines = []
    for key in sorted(row["numbers"].keys() & before["numbers"].keys()):
        moved = difference(row["numbers"][key], before["numbers"][key], row["scale"])
        if moved > TOLERANCE:
            lines.append(f"{key}: {before['numbers'][key]} -> {row['numbers'][key]} ({moved:.1e})")
    return lines


def read(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Rows by design and method."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {(row["design"], row["method"]): row for row in rows}


def main() -> None:
    """Measure what is missing, then compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--against", type=Path)
    given = parser.parse_args()
    done, before = read(given.rows), read(given.against) if given.against else {}
    n_moved = n_compared = 0
    for name in DESIGNS:
        for method in METHODS:
            if (name, method) not in done:
                done[name, method] = measure(name, method)
                with given.rows.open("a") as file:
                    file.write(json.dumps(done[name, method]) + "\n")
            if (name, method) in before:
                moved = compare(done[name, method], before[name, method])
                n_compared += len(done[name, method]["numbers"].keys() & before[name, method]["numbers"].keys())
                n_moved += len(moved)
                for text in moved:
                    print(f"{name}, {method}: {text}")
    if before:
        print(f"{n_compared} numbers compared, {n_moved} differ by more than {TOLERANCE:g}")
    sys.exit(bool(n_moved))


if __name__ == "__main__":
    main()
