"""Time and memory of fits and questions on tables that are long or wide (Linux only); `robustness.py scale` runs this.

Every method has a process of its own for each table, so that memory is its own. What was measured is kept in
robustness_scale.jsonl; only what is missing there is run.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import bgmiv
from bgmiv.errors import BGMIVError
from bgmiv.registry import METHODS

METHOD_NAMES = ("tsls", "npiv", "bgm-iv")
ROWS = Path(__file__).with_name("robustness_scale.jsonl")
MAX_CPU = 3600


class Shape(NamedTuple):
    """The numbers of rows, covariates and instruments of a table."""

    rows: int
    covariates: int
    instruments: int

    def __str__(self) -> str:
        """In words.

        >>> print(Shape(1000, 2, 1))
        1,000 rows, 2 covariates, 1 instrument
        """
        counts = ((self.rows, "row"), (self.covariates, "covariate"), (self.instruments, "instrument"))
        return ", ".join(f"{count:,} {noun}{'s' * (count != 1)}" for count, noun in counts)


SHAPES = (Shape(1_000_000, 50, 1), Shape(5000, 2000, 1), Shape(1000, 2000, 1), Shape(5000, 5, 500), Shape(400, 5, 500))


class Cost(NamedTuple):
    """What something took.

    Attributes:
        what: the question.
        cpu: seconds of all threads.
        extra: megabytes beyond what the process had when it was asked, at most.
        said: a number of the answer, or the error.
    """

    what: str
    cpu: float
    extra: float
    said: str


def table(shape: Shape) -> dict[str, np.ndarray]:
    """A confounded table with an effect of 2, R² of about a half, and covariates that do not all matter."""
    rng = np.random.default_rng(0)
    n, p, k = shape
    v, w, u = rng.normal(size=(n, p)), rng.normal(size=(n, k)), rng.normal(size=n)
    shift = v[:, :5].sum(axis=1) / np.sqrt(5.0)
    x = w[:, : min(k, 10)].sum(axis=1) / np.sqrt(min(k, 10)) + 0.5 * shift + u + rng.normal(size=n)
    y = 2.0 * x + shift - 2.0 * u + 2.0 * rng.normal(size=n)
    return {"outcome": y, "treatment": x, "instruments": w, "covariates": v}


def _memory(field: str) -> float:
    text = Path("/proc/self/status").read_text()
    return float(text.split(f"{field}:")[1].split()[0]) / 1024.0


def measured(what: str, task: Callable[[], Any]) -> tuple[Cost, Any]:
    """The cost of a task, and what it returned (None for a refusal)."""
    # 5 sets the peak back to what is in use now.
    Path("/proc/self/clear_refs").write_text("5")
    before, began = _memory("VmRSS"), time.process_time()
    try:
        found = task()
        said = f"{found:.3g}" if isinstance(found, float) else ""
    except BGMIVError as error:
        found, said = None, f"{type(error).__name__}: {error}"
    return Cost(what, time.process_time() - began, _memory("VmHWM") - before, said), found


def costs(name: str, shape: Shape) -> Iterator[Cost]:
    """What a method takes on that table: the fit, and one question after another."""
    data = table(shape)
    model = METHODS[name].estimator_class()()
    if hasattr(model, "random_state"):
        model.random_state = 0
    cost, fitted = measured("fit", lambda: model.fit(**data))
    yield cost
    if fitted is None:
        return
    x, v = data["treatment"], data["covariates"]
    low, high = (float(value) for value in np.quantile(x, [0.25, 0.75]))
    doses = np.quantile(x, np.linspace(0.05, 0.95, 20))
    with tempfile.TemporaryDirectory() as folder:
        questions: dict[str, Callable[[], Any]] = {
            "predict": lambda: float(np.mean(model.predict(x, v))),
            "dose_response": lambda: float(np.ptp(model.dose_response(doses).values)),
            "ate_interval": lambda: float(model.ate_interval(t0=low, t1=high).estimate / (high - low)),
            "diagnose": lambda: model.diagnose(),
            "report": lambda: model.report(Path(folder) / "report.html"),
            "save": lambda: model.save(Path(folder) / "model"),
            "load": lambda: bgmiv.load(Path(folder) / "model"),
        }
        for what, task in questions.items():
            yield measured(what, task)[0]


def run(name: str, shape: Shape) -> list[Cost]:
    """The costs in a process of its own, as far as it came in an hour of CPU time."""
    command = [sys.executable, __file__, name, *map(str, shape), str(MAX_CPU)]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    found = [Cost(*json.loads(line)) for line in result.stdout.splitlines()]
    return found + [Cost("stopped", 0.0, 0.0, f"exit code {result.returncode}")] * bool(result.returncode)


def measurements() -> dict[tuple[Shape, str], list[Cost]]:
    """All costs: those in the file, and those that are missing there, which are measured and added to it."""
    lines = [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []
    found = {(Shape(*line["shape"]), line["method"]): [Cost(*cost) for cost in line["costs"]] for line in lines}
    for shape in SHAPES:
        for name in METHOD_NAMES:
            if (shape, name) not in found:
                found[shape, name] = run(name, shape)
                with ROWS.open("a") as file:
                    file.write(json.dumps({"shape": shape, "method": name, "costs": found[shape, name]}) + "\n")
                print(f"{time.strftime('%H:%M:%S')} {name}, {shape}", flush=True)
    return found


def tables(found: Mapping[tuple[Shape, str], Sequence[Cost]]) -> str:
    """A table for each shape: CPU-seconds and megabytes by question and method; refusals below it."""
    parts = []
    for shape in SHAPES:
        costs = {name: {cost.what: cost for cost in found.get((shape, name), ())} for name in METHOD_NAMES}
        refused = {f"`{name}`: {cost.said}" for name in METHOD_NAMES for cost in costs[name].values() if _refused(cost)}
        questions = list(dict.fromkeys(what for name in METHOD_NAMES for what in costs[name]))
        head = f"| {shape} | {' | '.join(METHOD_NAMES)} |\n| --- |{' --- |' * len(METHOD_NAMES)}"
        rows = [
            f"| {what} | {' | '.join(_cell(costs[name].get(what)) for name in METHOD_NAMES)} |" for what in questions
        ]
        parts.append("\n".join([head, *rows]) + "".join(f"\n\n{text}" for text in sorted(refused)))
    return "\n\n".join(parts)


def _refused(cost: Cost) -> bool:
    return "Error: " in cost.said or cost.what == "stopped"


def _cell(cost: Cost | None) -> str:
    if cost is None:
        return ""
    return "refused" if _refused(cost) else f"{cost.cpu:.3g} s, {max(cost.extra, 0.0):,.0f} MB"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[5]),) * 2)
    for each in costs(sys.argv[1], Shape(*map(int, sys.argv[2:5]))):
        print(json.dumps(each), flush=True)
