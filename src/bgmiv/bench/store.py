"""Result rows on disk: one checked file a run, written whole, and a file lock on each run that is going on."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

from filelock import FileLock, Timeout

from bgmiv._io import write_whole, writing
from bgmiv.bench.plan import Plan, RunKey, RunSpec, Sweep, canonical_json
from bgmiv.errors import ConfigError, StoreError

__all__ = ["Contents", "Merged", "Row", "RowStore", "StoreState"]

_ROW = "bgmiv row 3"
_PLAN = "bgmiv plan 1"
_ROW_FILE = re.compile(r"[0-9a-f]{16}\.json")
# A write takes milliseconds: an older temporary file is that of a process that was killed.
_STRAY_SECONDS = 600.0
_ADVICE = "Make room and run the same command again: all rows so far are kept."


@dataclass(frozen=True)
class Row:
    """The result of one fit, as it is stored.

    Args:
        design, n, rho, method, preset, seed: the specification (:class:`~bgmiv.bench.plan.RunSpec`).
        method_version, design_version: algorithm versions (:class:`~bgmiv.bench.plan.RunKey`).
        status: `"ok"` or `"failed"`.
        error: why it failed, empty when it did not.
        attempts: how often it was tried.
        structural_mse, structural_mse_in_support, structural_mse_outside: mean squared structural error over
            the grid and its parts; None when the fit failed or the part has no points.
        seconds, cpu_seconds: wall clock and processor time of fit and grid prediction together.
        compilation_cache: whether compiled programs may have come from the disk, so that the times may leave
            compilation out.
        versions: of this package, Python and the libraries that affect the numbers.
        timestamp: when the fit ended, UTC, ISO 8601.
        evidence: what the method itself measured about its fit, empty for methods that measure nothing.
        functional_errors: estimate minus truth of the design's functionals (average contrast, slope), by name.

    Example:
        >>> from bgmiv.bench import RunSpec, run_one
        >>> row = run_one(RunSpec("demand", 500, 0.5, "tsls", "default", seed=1))
        >>> row.method, row.status
        ('tsls', 'ok')
    """

    design: str
    n: int
    rho: float
    method: str
    preset: str
    seed: int
    method_version: int
    design_version: int
    status: Literal["ok", "failed"]
    error: str
    attempts: int
    structural_mse: float | None
    structural_mse_in_support: float | None
    structural_mse_outside: float | None
    seconds: float
    cpu_seconds: float
    compilation_cache: bool
    versions: Mapping[str, str] = field(hash=False)
    timestamp: str
    evidence: Mapping[str, float | int | None] = field(default_factory=dict, hash=False)
    functional_errors: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def spec(self) -> RunSpec:
        """The specification this row answers."""
        return RunSpec(self.design, self.n, self.rho, self.method, self.preset, self.seed)

    @property
    def key(self) -> RunKey:
        """The run this row answers."""
        return RunKey(self.spec, self.method_version, self.design_version)


class Contents(NamedTuple):
    """Everything in a store: rows in order, and damaged files with what is wrong with each."""

    rows: tuple[Row, ...]
    damaged: tuple[tuple[Path, str], ...]


class StoreState(NamedTuple):
    """Where a list of runs stands."""

    done: tuple[Row, ...]
    failed: tuple[Row, ...]
    running: tuple[RunKey, ...]  # claimed by a live process
    missing: tuple[RunKey, ...]  # neither done, failed nor running; damaged files are among them
    damaged: tuple[str, ...]  # what is wrong with each damaged file of the store
    other: tuple[Row, ...]  # rows of the same specifications with other algorithm versions

    @property
    def left(self) -> tuple[RunKey, ...]:
        """All that is not done."""
        return (*(row.key for row in self.failed), *self.running, *self.missing)


class Merged(NamedTuple):
    """How many rows were copied, and how many were there already."""

    added: int
    present: int


@dataclass(frozen=True)
class RowStore:
    """A folder of rows, each named by its run's `run_id`.

    A file is written to a temporary file, flushed and moved into place, so that a crash leaves the whole file or
    none. Each file carries a checksum. A process claims a run by a file lock, which the operating system releases
    when the process ends, however it ends.

    Example:
        >>> import tempfile
        >>> from bgmiv.bench import RunSpec, identify
        >>> with tempfile.TemporaryDirectory() as place:
        ...     print(RowStore(place).find(identify(RunSpec("demand", 500, 0.5, "tsls", "default", seed=1))))
        None
    """

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))
        if self.folder.exists() and not self.folder.is_dir():
            raise StoreError(f"{self.folder} is a file; a store is a folder: choose another path")

    def path(self, key: RunKey) -> Path:
        """The file of that run's row, whether it exists or not."""
        return self.folder / f"{key.run_id}.json"

    def claim(self, key: RunKey) -> FileLock | None:
        """Lock a run before working on it; None if another runner has it. Give it back to :meth:`release`."""
        path = self._lock_path(key)
        with writing(path, _ADVICE):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(path, timeout=0)
            try:
                lock.acquire()
            except Timeout:
                return None
        return lock

    def release(self, lock: FileLock) -> None:
        """End a claim."""
        # Windows does not remove a file that is open.
        with suppress(OSError):
            os.unlink(lock.lock_file)
        lock.release()

    def is_claimed(self, key: RunKey) -> bool:
        """Whether a live process has the run."""
        if not self._lock_path(key).exists():
            return False
        lock = self.claim(key)
        if lock is not None:
            self.release(lock)
        return lock is None

    def write(self, row: Row) -> bool:
        """Put the row on disk; the caller holds the run's claim.

        An ok row of the same run that is there already stays, and the answer is False.
        """
        found = self.find(row.key)
        if found is not None and found.status == "ok":
            return False
        _write(self.path(row.key), _ROW, asdict(row))
        return True

    def find(self, key: RunKey) -> Row | None:
        """The row of that run; None if there is none yet, or a damaged one."""
        try:
            return _read_row(self.path(key))
        except StoreError:
            return None

    def contents(self) -> Contents:
        """Every row, ordered by specification and versions, and every damaged file."""
        if not self.folder.is_dir():
            raise StoreError(f"{self.folder} is not a folder; name the folder given to --store")
        rows, damaged = [], []
        for path in sorted(self.folder.iterdir()):
            if _ROW_FILE.fullmatch(path.name):
                try:
                    row = _read_row(path)
                except StoreError as error:
                    damaged.append((path, str(error)))
                    continue
                rows.append(row)
        return Contents(tuple(sorted(rows, key=lambda row: row.key)), tuple(damaged))

    def rows(self) -> tuple[Row, ...]:
        """Every row, ordered by specification and versions; a damaged file is a StoreError."""
        rows, damaged = self.contents()
        if damaged:
            raise StoreError(f"{damaged[0][1]}; run the bench again to replace it, or remove it: bgmiv bench gc")
        return rows

    def state(self, keys: Iterable[RunKey]) -> StoreState:
        """Where these runs stand."""
        contents = self.contents() if self.folder.is_dir() else Contents((), ())
        by_key = {row.key: row for row in contents.rows}
        wanted = tuple(dict.fromkeys(keys))
        specs = {key.spec for key in wanted}
        found = [by_key[key] for key in wanted if key in by_key]
        waiting = {key: self.is_claimed(key) for key in wanted if key not in by_key}
        return StoreState(
            done=tuple(row for row in found if row.status == "ok"),
            failed=tuple(row for row in found if row.status != "ok"),
            running=tuple(key for key, claimed in waiting.items() if claimed),
            missing=tuple(key for key, claimed in waiting.items() if not claimed),
            damaged=tuple(message for _, message in contents.damaged),
            other=tuple(row for row in contents.rows if row.spec in specs and row.key not in set(wanted)),
        )

    def sweep(self, older_than: float = _STRAY_SECONDS) -> tuple[Path, ...]:
        """Remove and list what killed processes left behind: temporary files and locks older than so many seconds."""
        stray = []
        for path in (*self.folder.glob("**/.*.tmp"), *self.folder.glob(".running/*.lock")):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime >= older_than and _is_free(path):
                    path.unlink()
                    stray.append(path)
        return tuple(stray)

    def remove(self, paths: Iterable[Path]) -> int:
        """Delete files of this store; how many there were."""
        found = [path for path in paths if path.exists()]
        for path in found:
            path.unlink()
        return len(found)

    def keep_plan(self, plan: Plan) -> None:
        """Remember what was to be run, so that reports can say what is missing."""
        content = {"name": plan.name, "title": plan.title, "sweeps": [asdict(sweep) for sweep in plan.sweeps]}
        name = hashlib.sha256(canonical_json(content).encode()).hexdigest()[:16]
        _write(self.folder / "plans" / f"{name}.json", _PLAN, content)

    def plans(self) -> tuple[Plan, ...]:
        """The plans that were run into this store, without those of other versions; damage is a StoreError."""
        found = []
        for path in self._plan_files():
            try:
                content = _read(path, _PLAN)
            except StoreError as error:
                raise StoreError(f"{error}; run its plan again to replace it, or remove it: bgmiv bench gc") from error
            with suppress(ConfigError, TypeError):
                sweeps = tuple(Sweep(**sweep) for sweep in content["sweeps"])
                found.append(Plan(content["name"], content["title"], sweeps))
        return tuple(sorted(found, key=lambda plan: plan.name))

    def damaged_files(self) -> tuple[Path, ...]:
        """Files of rows and plans that are not as they were written; those of other formats are not damaged."""
        rows = (path for path, _ in self.contents().damaged)
        return tuple(path for path in (*rows, *self._plan_files()) if not _is_whole(path))

    def merge(self, other: RowStore) -> Merged:
        """Copy every row and plan of another store.

        Nothing is copied if a file there is damaged, or both hold different results of the same run (StoreError).
        """
        theirs, plans = other.rows(), other.plans()
        added = []
        for row in theirs:
            mine = self.find(row.key)
            if mine is not None and mine.status == row.status == "ok" and mine.structural_mse != row.structural_mse:
                raise StoreError(
                    f"{self.path(row.key)} and {other.path(row.key)} hold different results of the same run "
                    f"({row.spec}); remove the wrong one"
                )
            if mine is None or (mine.status != "ok" and row.status == "ok"):
                added.append(row)
        for row in added:
            self.write(row)
        for plan in plans:
            self.keep_plan(plan)
        return Merged(len(added), len(theirs) - len(added))

    def _lock_path(self, key: RunKey) -> Path:
        return self.folder / ".running" / f"{key.run_id}.lock"

    def _plan_files(self) -> tuple[Path, ...]:
        return tuple(sorted((self.folder / "plans").glob("*.json")))


def _is_free(path: Path) -> bool:
    """Whether nobody holds the lock; a file that is no lock is always free."""
    if path.suffix != ".lock":
        return True
    try:
        with FileLock(path, timeout=0):
            return True
    except Timeout:
        return False


def _encode(kind: str, content: Mapping[str, Any]) -> bytes:
    checksum = hashlib.sha256(f"{kind}\n{canonical_json(content)}".encode()).hexdigest()
    stored = {"kind": kind, "content": content, "sha256": checksum}
    return (json.dumps(stored, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _write(path: Path, kind: str, content: Mapping[str, Any]) -> None:
    write_whole(path, _encode(kind, content), _ADVICE)


def _read(path: Path, wanted: str | None = None) -> dict[str, Any]:
    """The content of a file of the wanted kind, or of any if None; else a StoreError says what is wrong."""
    try:
        found = path.read_bytes()
        stored = json.loads(found)
        kind: str = stored["kind"]
        content: dict[str, Any] = stored["content"]
        # A flipped bit can also hide in white space, so the whole text is compared.
        whole = found == _encode(kind, content)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise StoreError(f"{path} is damaged (not a file of a store)") from error
    if not whole:
        raise StoreError(f"{path} is damaged (its checksum does not match)")
    if wanted not in (None, kind):
        raise StoreError(f"{path} holds {kind!r}; this version reads {wanted!r}")
    return content


def _is_whole(path: Path) -> bool:
    try:
        _read(path)
    except StoreError:
        return False
    return True


def _read_row(path: Path) -> Row:
    content = _read(path, _ROW)
    names = {item.name for item in fields(Row)}
    if not names - {"evidence", "functional_errors"} <= set(content) <= names:
        raise StoreError(f"{path} is damaged (its fields are not those of a row)")
    row = Row(**content)
    if row.key.run_id != path.stem:
        raise StoreError(f"{path} is damaged (its name does not match its row)")
    return row
