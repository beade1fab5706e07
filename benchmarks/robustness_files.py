"""Damaged files and full disks, on purpose: what the robustness tests and the robustness benchmark share."""

from __future__ import annotations

import errno
import io
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner

from bgmiv.bench import evaluate
from bgmiv.bench.executors import InProcess
from bgmiv.bench.identity import RunKey
from bgmiv.bench.plan import RunSpec
from bgmiv.bench.row import Row
from bgmiv.bench.runner import run_plan
from bgmiv.bench.store import RowStore
from bgmiv.cli.main import app


class Quiet:
    """A board that shows nothing."""

    def show(self, index: int, event: object) -> None:
        """Show nothing."""


class Damages(NamedTuple):
    """Damaged files: how many, how many were not noticed, and fits redone too few or too many."""

    done: int
    unnoticed: int
    not_redone: int
    redone_in_vain: int


def truncate(path: Path, rng: random.Random) -> None:
    """Cut the file off anywhere."""
    os.truncate(path, rng.randrange(path.stat().st_size))


def flip(path: Path, rng: random.Random) -> None:
    """Flip any one bit of the file."""
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


@contextmanager
def fits() -> Iterator[list[RunSpec]]:
    """Every fit that this process starts."""
    started: list[RunSpec] = []
    real = evaluate.run_one

    def run_one(spec: RunSpec, *rest: Any) -> Row:
        started.append(spec)
        return real(spec, *rest)

    evaluate.run_one = run_one  # type: ignore[assignment]
    try:
        yield started
    finally:
        evaluate.run_one = real


def damage(
    store: RowStore, keys: Sequence[RunKey], how: Callable[[Path, random.Random], None], times: int, rng: random.Random
) -> Damages:
    """Damage files of a finished store, a few at a time, and run the bench again after each few."""
    total = Damages(0, 0, 0, 0)
    while total.done < times:
        chosen = rng.sample(list(keys), min(rng.randint(1, len(keys) // 2), times - total.done))
        for key in chosen:
            how(store.path(key), rng)
        noticed = {path for path, _ in store.contents().damaged}
        with fits() as started:
            list(run_plan(keys, store, InProcess(), Quiet()))
        hit = {key.spec for key in chosen}
        total = Damages(
            total.done + len(chosen),
            total.unnoticed + sum(store.path(key) not in noticed for key in chosen),
            total.not_redone + len(hit - set(started)),
            total.redone_in_vain + len(started) - len(hit & set(started)),
        )
    return total


class FullDisk:
    """Inside it, steps that need space under a folder are counted; the disk is full at one of them.

    Steps are the calls that can answer that there is no space: making a file or a folder, writing, flushing, linking
    and replacing. Opening what is there already needs none.

    Args:
        folder: what lies on the disk.
        at: the step at which it is full, from 1 on.
        lasting: whether it stays full from then on.
    """

    def __init__(self, folder: Path, at: int, *, lasting: bool) -> None:
        """Nothing is changed before it is entered."""
        self.folder, self.at, self.lasting = folder, at, lasting
        self.steps: list[str] = []
        self._real: dict[str, Any] = {}

    @property
    def struck(self) -> bool:
        """Whether the step was reached."""
        return len(self.steps) >= self.at

    def __enter__(self) -> FullDisk:
        """Put the counted calls in place."""
        self._real = {name: getattr(os, name) for name in ("open", "mkdir", "fsync", "link", "replace")}
        self._real["file"] = io.open
        os.open, os.mkdir, os.fsync = self._open, self._mkdir, self._fsync  # type: ignore[assignment]
        os.link, os.replace, io.open = self._link, self._replace, self._file  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        """Put the real ones back."""
        io.open = self._real.pop("file")
        for name, real in self._real.items():
            setattr(os, name, real)

    def step(self, name: str, path: Any = None) -> bool:
        """Count a step; whether there is no space for it."""
        if path is not None and not str(path).startswith(str(self.folder)):
            return False
        self.steps.append(name)
        return len(self.steps) == self.at or (self.lasting and len(self.steps) > self.at)

    def _open(self, path: Any, flags: int, *rest: Any, **options: Any) -> int:
        is_new = flags & os.O_CREAT and not os.path.lexists(path)
        if (is_new or os.path.isdir(path)) and self.step("open", path):
            raise full(path)
        return self._real["open"](path, flags, *rest, **options)

    def _mkdir(self, path: Any, *rest: Any, **options: Any) -> None:
        if not os.path.lexists(path) and self.step("mkdir", path):
            raise full(path)
        self._real["mkdir"](path, *rest, **options)

    def _fsync(self, descriptor: int) -> None:
        if self.step("fsync"):
            raise full()
        self._real["fsync"](descriptor)

    def _link(self, source: Any, target: Any) -> None:
        if self.step("link", target):
            raise full(source)
        self._real["link"](source, target)

    def _replace(self, source: Any, target: Any) -> None:
        if self.step("replace", target):
            raise full(source)
        self._real["replace"](source, target)

    def _file(self, path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if mode.startswith("r") or not str(path).startswith(str(self.folder)):
            return self._real["file"](path, mode, *rest, **options)
        if not os.path.lexists(path) and self.step("create", path):
            raise full(path)
        return _File(self._real["file"](path, mode, *rest, **options), self)


class _File:
    """A file on a disk that may be full: half of what does not fit is written."""

    def __init__(self, file: Any, disk: FullDisk) -> None:
        self._file, self._disk = file, disk

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: Any) -> int:
        if self._disk.step("write"):
            self._file.write(data[: len(data) // 2])
            self._file.flush()
            raise full()
        return self._file.write(data)

    def flush(self) -> None:
        if self._disk.step("flush"):
            raise full()
        self._file.flush()


def full(path: Any = None) -> OSError:
    """What a call answers when there is no space."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), None if path is None else str(path))


class Refusal(NamedTuple):
    """A run on a full disk: the step, its exit code and words, and what was wrong with it, if anything."""

    step: str
    code: int
    words: str
    faults: tuple[str, ...]


def fill_each_step(folder: Path, options: Sequence[str], prepare: Callable[[Path], None]) -> Iterator[Refusal]:
    """Run the bench on a disk that is full at its first step, then at its second, and so on, for good or once."""
    expected = folder / _EXPECTED
    _bench(expected, options)
    for lasting in (True, False):
        for at in count(1):
            store = folder / f"{'lasting' if lasting else 'once'}-{at}"
            prepare(store)
            with FullDisk(store, at, lasting=lasting) as disk:
                code, words = _bench(store, options)
            if not disk.struck:
                break
            yield Refusal(disk.steps[at - 1], code, words, _faults(store, expected, options, code, words))


def _bench(store: Path, options: Sequence[str]) -> tuple[int, str]:
    # In this process, unless the options say otherwise.
    done = CliRunner().invoke(app, ["bench", "run", "--workers", "0", "--store", str(store), *options])
    raised = "" if done.exception is None or isinstance(done.exception, SystemExit) else repr(done.exception)
    return done.exit_code, done.output + raised


def _results(store: RowStore) -> list[tuple[object, ...]]:
    return [(row.spec, row.status, row.structural_mse) for row in store.rows()]


def _faults(store: Path, expected: Path, options: Sequence[str], code: int, words: str) -> tuple[str, ...]:
    found = []
    if code != 1:
        found.append(f"exit code {code}")
    text = words.replace("\n", "")
    if not (
        f"Error: cannot write {store}" in text
        and "No space left on device; free some space and run the same command again" in text
    ):
        found.append("the message does not name the file and the cure")
    if store.is_dir():
        was_damaged = {path for path, _ in RowStore(store).contents().damaged} - set(_prepared(store))
        found += [f"torn: {path}" for path in was_damaged]
        # A worker that is ended when another one finds the disk full leaves its lease to the next run's sweep.
        found += _left_behind(store) if "--workers" not in options else []
    again, later = _bench(store, options)
    if again != 0:
        found.append(f"it does not go on: {later}")
    elif _results(RowStore(store)) != _results(RowStore(expected)):
        found.append("other rows after going on")
    return (*found, *_left_behind(store))


def _left_behind(store: Path) -> list[str]:
    return [f"left behind: {path}" for path in store.rglob("*") if path.suffix in (".tmp", ".lease")]


_EXPECTED, _BEFORE = "expected", ".damaged-before"


def damaged_before(store: Path) -> None:
    """A preparation: a store whose rows and plans are all damaged, so that files are replaced and not made."""
    shutil.copytree(store.parent / _EXPECTED, store)
    paths = [*store.glob("*.json"), *(store / "plans").glob("*.json")]
    for path in paths:
        os.truncate(path, path.stat().st_size // 2)
    store.with_suffix(_BEFORE).write_text(json.dumps([str(path) for path in paths]))


def _prepared(store: Path) -> list[Path]:
    list_file = store.with_suffix(_BEFORE)
    return [Path(name) for name in json.loads(list_file.read_text())] if list_file.exists() else []


def fill_small_disks(folder: Path, options: Sequence[str], *, pages: Sequence[int], inodes: Sequence[int]) -> Any:
    """Run the bench on real file systems too small for it, in a name space of its own; None where that is not allowed.

    Returns:
        One entry a file system: its size, the exit code, what was wrong.
    """
    inside = ["unshare", "--map-root-user", "--mount"]
    try:
        allowed = subprocess.run([*inside, "mount", "-t", "tmpfs", "bgmiv", "/mnt"], capture_output=True, check=False)
    except FileNotFoundError:
        return None
    if allowed.returncode != 0:
        return None
    order = json.dumps({"folder": str(folder), "options": list(options), "pages": list(pages), "inodes": list(inodes)})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run(
        [*inside, sys.executable, "-c", "import robustness_files; robustness_files.on_small_disks()"],
        input=order, capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def on_small_disks() -> None:
    """The inside of :func:`fill_small_disks`: reads the order from standard input, prints the answer."""
    order = json.loads(sys.stdin.read())
    folder, options = Path(order["folder"]), order["options"]
    expected, mounted = folder / _EXPECTED, folder / "disk"
    mounted.mkdir(parents=True)
    _bench(expected, options)
    found = []
    for size in [*(f"size={4 * pages}k" for pages in order["pages"]), *(f"nr_inodes={n}" for n in order["inodes"])]:
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "bgmiv", str(mounted)], check=True)
        try:
            store = mounted / "rows"
            code, words = _bench(store, options)
            if code == 0:
                found.append((size, code, words[-500:], []))
                continue
            subprocess.run(["mount", "-o", "remount,size=16m,nr_inodes=1000", str(mounted)], check=True)
            found.append((size, code, words[-500:], _faults(store, expected, options, code, words)))
        finally:
            subprocess.run(["umount", str(mounted)], check=True)
    sys.stdout.write("\n" + json.dumps(found) + "\n")
