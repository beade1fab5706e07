"""Kill fits, saves and reports at random moments, fill the disk under them, and count what went wrong (Linux only).

`benchmarks/robustness.py` runs this. What is killed is a forked process: the one that forks must not use JAX.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import bgmiv
from bgmiv.errors import BGMIVError

SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
# A fit of the paper's settings in small, which saves its state some hundred times.
ROWS, ITERATIONS, EPOCHS = 80, 300, 60
KILLS_A_FIT = 8
# Bytes that a file may have on a small disk.
SIZES = (0, 1, 100, 1000, 5000, 20_000, 100_000, 500_000)
_REFUSED, _FOREIGN = 3, 4


class Faults(NamedTuple):
    """What trials did.

    Attributes:
        times: kills, contests or full disks.
        lost: fits that did not end, and names that hold no model or page any more.
        torn: files that are not whole: neither the old content nor the new one.
        different: results that are not those of an undisturbed run, to the last bit.
        foreign: errors that are not bgmiv's own, or that do not come where one must.
        left_behind: files that a later run does not remove.
    """

    times: int = 0
    lost: int = 0
    torn: int = 0
    different: int = 0
    foreign: int = 0
    left_behind: int = 0

    def plus(self, **more: int) -> Faults:
        """With more of some of them."""
        return Faults(*(value + more.get(name, 0) for name, value in self._asdict().items()))


class Child:
    """A task in a forked process: its exit code is 0, 3 for an error of bgmiv, 4 for any other, or a signal's."""

    def __init__(self, task: Callable[[], object], log: Path) -> None:
        """Start it; what it raises is written to the log."""
        # A signal before the task begins would end up in a copy of what this process was doing.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        with warnings.catch_warnings():
            # JAX warns of forks; the models that are killed here are fitted without it.
            warnings.simplefilter("ignore")
            self.pid = os.fork()
        if self.pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            return
        code = 0
        try:
            # A shell's background processes ignore Ctrl-C, and so do theirs.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            task()
        except BGMIVError as error:
            log.write_text(f"{type(error).__name__}: {error}")
            code = _REFUSED
        except BaseException:
            log.write_text(traceback.format_exc())
            code = _FOREIGN
        os._exit(code)

    def wait(self, seconds: float | None = None) -> int | None:
        """Its exit code, that of a signal negative; None if it is still running after so many seconds."""
        ends = None if seconds is None else time.monotonic() + seconds
        while ends is not None and time.monotonic() < ends:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        return None if seconds is not None else os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def end(self, number: signal.Signals) -> int:
        """Send a signal and wait; a process that goes on for two minutes is a fault, and is killed."""
        os.kill(self.pid, number)
        code = self.wait(120.0)
        if code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()
            return _FOREIGN
        return code


def _is_end(code: int, number: signal.Signals, log: Path) -> bool:
    """Whether a process has ended as that signal ends one; Ctrl-C is an error of ours in training, Python else."""
    if number != signal.SIGINT or code in (0, -number):
        return code in (0, -number)
    return log.exists() and log.read_text().splitlines()[-1].startswith(("FitInterrupted", "KeyboardInterrupt"))


def _columns(seed: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    w, v, u = rng.normal(size=(3, ROWS))
    x = w + v + u
    return {"y": 2 * x + v - u, "x": x, "w": w, "v": v}


def fit_with_checkpoint(folder: Path, answer: Path) -> None:
    """Fit with a state saved after every chunk, and write what the fit predicts."""

    from bgmiv import training
    from bgmiv.bgm.config import CovariateConfig, ModelConfig
    from bgmiv.effects import predict

    training._SECONDS_BETWEEN_SAVES = 0.0
    table = _columns()
    data = bgmiv.data.IVData.from_arrays(table["y"], table["x"], instruments=table["w"], covariates=table["v"])
    made = bgmiv.BGMIV(
        preset="paper-qmc", batch_size=16, epochs=EPOCHS, iterations=ITERATIONS, random_state=0
    )._config()
    shapes = CovariateConfig(dense_hidden=(8,))
    config = replace(
        made,
        model=ModelConfig(treatment_hidden=(8,), outcome_hidden=(8,), covariates=shapes),
        initial=replace(made.initial, chunk=5),
        alternating=replace(made.alternating, chunk=1),
        checkpoint=str(folder),
    )
    fitted = config.fit(data, 5)
    answer.write_bytes(predict(fitted, table["x"], table["v"]).tobytes())


def kill_fits(folder: Path, kills: int, rng: random.Random) -> Faults:
    """Fits with a checkpoint, each killed a few times at random moments and started again."""
    expected, seconds = _undisturbed(folder)
    answer, log, found = folder / "answer", folder / "log", Faults()
    while found.times < kills:
        place = folder / f"checkpoint-{found.times}"
        answer.unlink(missing_ok=True)
        task = partial(fit_with_checkpoint, place, answer)
        for _ in range(KILLS_A_FIT):
            child = Child(task, log)
            if child.wait(rng.uniform(0.0, seconds)) is not None:
                break
            number = SIGNALS[found.times % len(SIGNALS)]
            found = found.plus(times=1, foreign=int(not _is_end(child.end(number), number, log)))
        code = Child(task, log).wait()
        damaged = code == _REFUSED and "damaged" in log.read_text()
        found = found.plus(lost=int(code != 0), torn=int(damaged))
        if answer.exists():
            found = found.plus(different=int(answer.read_bytes() != expected))
        found = found.plus(left_behind=len(list(place.iterdir())) if place.exists() else 0)
    return found


@cache
def _undisturbed(folder: Path) -> tuple[bytes, float]:
    """What an undisturbed fit predicts, and how long one takes once its programs are compiled."""
    answer = folder / "expected"
    for _ in range(2):
        began = time.monotonic()
        child = Child(lambda: fit_with_checkpoint(folder / "undisturbed", answer), folder / "log")
        if child.wait() != 0:
            raise RuntimeError((folder / "log").read_text())
    return answer.read_bytes(), time.monotonic() - began


def share_checkpoint(folder: Path, contests: int, rng: random.Random) -> Faults:
    """Two processes with one checkpoint: one fits, the other is refused or comes when the first is done."""
    expected, seconds = _undisturbed(folder)
    found = Faults()
    for number in range(contests):
        place = folder / f"shared-{number}"
        answers = [folder / f"answer-{number}-{i}" for i in range(2)]
        children = []
        for i, answer in enumerate(answers):
            log = folder / f"log-{i}"
            children.append(Child(lambda place=place, answer=answer: fit_with_checkpoint(place, answer), log))
            time.sleep(rng.uniform(0.0, seconds / 4))
        codes = [child.wait() for child in children]
        different = sum(answer.exists() and answer.read_bytes() != expected for answer in answers)
        foreign = sum(code not in (0, _REFUSED) for code in codes)
        left = len(list(place.iterdir())) if place.exists() else 0
        lost = int(0 not in codes)
        found = found.plus(times=1, lost=lost, different=different, foreign=foreign, left_behind=left)
    return found


@cache
def _models() -> tuple[Any, Any]:
    """Two small fits that are told apart by what they predict."""
    table = _columns()
    covariates = {"v": table["v"]}
    return tuple(
        bgmiv.TSLS().fit(scale * table["y"], table["x"], instruments=table["w"], covariates=covariates)
        for scale in (1.0, 2.0)
    )  # type: ignore[return-value]


def _saved(folder: Path, first: int = 0) -> None:
    """Save the two models in turn, for ever."""
    models = _models()
    while True:
        models[first % 2].save(folder, overwrite=True)
        first += 1


def _look_at_model(folder: Path) -> dict[str, int]:
    try:
        model = bgmiv.load(folder)
    except BGMIVError:
        return {"lost": 1}
    given = {"v": np.zeros(3)}
    known = [one.predict(0.5, given) for one in _models()]
    return {"different": int(not any(np.array_equal(model.predict(0.5, given), one) for one in known))}


def kill_saves(folder: Path, kills: int, rng: random.Random) -> Faults:
    """Saves over a saved model, killed at random moments."""
    place, log, found = folder / "model", folder / "log", Faults()
    _models()[0].save(place)
    for i in range(kills):
        child = Child(lambda i=i: _saved(place, i), log)
        child.wait(rng.uniform(0.0, 0.3))
        number = SIGNALS[i % len(SIGNALS)]
        fine = _is_end(child.end(number), number, log)
        found = found.plus(times=1, foreign=int(not fine), **_look_at_model(place))
    # The next save removes what is older than ten minutes.
    for left in folder.glob(".model.*"):
        os.utime(left, (0, 0))
    _models()[0].save(place, overwrite=True)
    return found.plus(left_behind=len(list(folder.glob(".model.*"))))


def share_model(folder: Path, contests: int, rng: random.Random) -> Faults:
    """Two processes save to one folder, over and over, while it is read."""
    place, found = folder / "model", Faults()
    _models()[0].save(place)
    for _ in range(contests):
        children = [Child(lambda i=i: _saved(place, i), folder / f"log-{i}") for i in range(2)]
        ends = time.monotonic() + 1.0
        while time.monotonic() < ends:
            found = found.plus(**_look_at_model(place))
            time.sleep(rng.uniform(0.0, 0.01))
        codes = [child.end(signal.SIGKILL) for child in children]
        found = found.plus(times=1, foreign=sum(code != -signal.SIGKILL for code in codes))
    return found


@cache
def _pages() -> tuple[Any, ...]:
    return tuple(model.analysis() for model in _models())


def _written(path: Path) -> None:
    from bgmiv.analysis.page import write_report

    while True:
        for analysis in _pages():
            write_report(analysis, path)


def kill_reports(folder: Path, kills: int, rng: random.Random) -> Faults:
    """Reports written over a report, killed at random moments."""
    from bgmiv.analysis.page import report_page, write_report

    path, log, found = folder / "report.html", folder / "log", Faults()
    pages = [report_page(analysis).encode() for analysis in _pages()]
    path.write_bytes(pages[0])
    for i in range(kills):
        child = Child(lambda: _written(path), log)
        child.wait(rng.uniform(0.0, 0.3))
        number = SIGNALS[i % len(SIGNALS)]
        fine = _is_end(child.end(number), number, log)
        found = found.plus(times=1, foreign=int(not fine), torn=int(path.read_bytes() not in pages))
    for left in folder.glob(".report*"):
        os.utime(left, (0, 0))
    write_report(_pages()[0], path)
    return found.plus(left_behind=len(list(folder.glob(".report*"))))


@contextmanager
def full_disk(step: int) -> Iterator[Callable[[], bool]]:
    """The disk is full from the given step of writing on; gives whether that step was reached."""
    taken: list[str] = []
    originals = {name: getattr(os, name) for name in ("mkdir", "fsync", "replace", "rename")}

    def failing(name: str) -> Callable[..., Any]:
        def run(*given: Any, **more: Any) -> Any:
            taken.append(name)
            if len(taken) >= step:
                raise OSError(28, "No space left on device")
            return originals[name](*given, **more)

        return run

    try:
        for name in originals:
            setattr(os, name, failing(name))
        yield lambda: len(taken) >= step
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


@contextmanager
def small_disk(size: int) -> Iterator[Callable[[], bool]]:
    """No file may grow beyond so many bytes: the system itself refuses, in the middle of a write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        yield lambda: False
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def fill_disk(folder: Path, *_: Any) -> Faults:
    """A disk that is full from the first, the second, ... step or byte on: a model, a page, a state, a row."""
    found = Faults()
    for task in _writers(folder).values():
        for disk in (*map(full_disk, range(1, 30)), *map(small_disk, SIZES)):
            before, failed = _content(folder), True
            with disk as reached:
                try:
                    task()
                    failed = False
                except BGMIVError:
                    pass
                except Exception:
                    traceback.print_exc()
                    found = found.plus(foreign=1)
                happened = failed or reached()
            after = _content(folder)
            # Removing what is old may fail in silence once the new file stands.
            torn = int(failed and {key: value for key, value in after.items() if key in before} != before)
            found = found.plus(
                times=int(happened), torn=torn, left_behind=len(set(after) - set(before)) if failed else 0
            )
    return found


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}


def _writers(folder: Path) -> dict[str, Callable[[], object]]:
    from bgmiv import training
    from bgmiv.analysis.page import write_report
    from bgmiv.bench import RowStore, identify, run_plan
    from bgmiv.bench.plan import Sweep
    from bgmiv.executors import InProcess

    training._SECONDS_BETWEEN_SAVES = 0.0

    keys = (identify(spec) for spec in Sweep(["demand"], [100], [0.5], ["tsls"], repeats=100).specs())

    def save_state() -> None:
        with suppress(KeyboardInterrupt), training.Checkpoint(folder / "state", "a") as checkpoint:
            checkpoint.save("a", next(steps), {"a": np.ones(3000)}, [], last=False)
            raise KeyboardInterrupt

    steps = count()
    _models()[0].save(folder / "model")
    write_report(_pages()[0], folder / "report.html")
    save_state()
    return {
        "model": lambda: _models()[1].save(folder / "model", overwrite=True),
        "page": lambda: write_report(_pages()[1], folder / "report.html"),
        "state": save_state,
        "row": lambda: list(run_plan([next(keys)], RowStore(folder / "rows"), InProcess())),
    }


def ordinary_user(folder: Path, *_: Any) -> Faults:
    """All of it by a user who may write nothing at home; every refusal there is an error of ours."""
    home = folder / "home"
    home.mkdir()
    (home / "closed").mkdir(mode=0o000)
    home.chmod(0o500)
    # The superuser may write anywhere by capabilities, which this takes away.
    as_user = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("XDG", "JAX", "BGMIV"))}
    script = Path(__file__).with_name("robustness_user.py")
    command = [*as_user, sys.executable, "-W", "ignore", str(script), str(folder)]
    result = subprocess.run(command, env=variables | {"HOME": str(home)}, capture_output=True, text=True, check=False)
    if result.returncode:
        print(result.stderr[-2000:], file=sys.stderr)
    home.chmod(0o700)
    (home / "closed").chmod(0o700)
    return Faults(times=1, foreign=int(result.returncode != 0))


Trial = Callable[[Path, int, random.Random], Faults]
TRIALS: dict[str, tuple[Trial, int]] = {
    "a signal during `fit` with a checkpoint": (kill_fits, 40),
    "a signal during `save(overwrite=True)`": (kill_saves, 20),
    "a signal during `report`": (kill_reports, 20),
    "two fits with one checkpoint": (share_checkpoint, 5),
    "two processes that save to one folder, and one that reads it": (share_model, 5),
    "a full disk at each step of writing": (fill_disk, 1),
    "a user who may not write at home": (ordinary_user, 1),
}


def run_trial(what: str, times: int | None = None) -> Faults:
    """A trial in a new process and a new folder."""
    command = [sys.executable, __file__, what, str(times or TRIALS[what][1])]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = Faults(*json.loads(result.stdout.splitlines()[-1]))
    print(f"{time.strftime('%H:%M:%S')} {what}: {found}", flush=True)
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(TRIALS[sys.argv[1]][0](Path(name), int(sys.argv[2]), random.Random(sys.argv[1]))))
