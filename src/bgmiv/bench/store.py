"""Result rows on disk: a file of lines for each design, appended one by one, and a file lock on each run going on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

from filelock import FileLock, Timeout

from bgmiv._io import append_lines, remove_strays, safe_name, write_whole, writing
from bgmiv.bench.plan import Plan, RunKey, RunSpec, Sweep, canonical_json
from bgmiv.errors import ConfigError, StoreError

__all__ = ["Contents", "Row", "RowStore", "StoreState"]

_ROW, _PLAN = "bgmiv row 4", "bgmiv plan 2"
_ADVICE = "Make room and run the same command again: all rows so far are kept."


@dataclass(frozen=True, kw_only=True)
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
    structural_mse: float | None = None
    structural_mse_in_support: float | None = None
    structural_mse_outside: float | None = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0
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
    """Everything in a store: rows in order, and what is wrong with each line that is none."""

    rows: tuple[Row, ...]
    damaged: tuple[str, ...]


class StoreState(NamedTuple):
    """Where a list of runs stands."""

    done: list[Row]
    failed: list[Row]
    running: list[RunKey]  # claimed by a live process
    missing: list[RunKey]  # neither done, failed nor running; damaged lines are among them
    damaged: tuple[str, ...]  # what is wrong with each line of the store that is no row
    other: list[Row]  # rows of the same specifications with other algorithm versions

    @property
    def left(self) -> list[RunKey]:
        """All that is not done."""
        return [*(row.key for row in self.failed), *self.running, *self.missing]


class _Line(NamedTuple):
    """A line of a file."""

    text: bytes
    content: Row | Mapping[str, Any] | None  # a row, a plan, something of another version, or None for damage
    problem: str = ""

    @property
    def row(self) -> Row | None:
        return self.content if isinstance(self.content, Row) else None


@dataclass(frozen=True)
class RowStore:
    """A folder with a file of rows for each design; each line is JSON with its own checksum.

    A line is appended by one write under a lock, so that a crash costs at most the row being written: the next writer
    drops a torn last line with a warning. Of several lines of one run the last counts. A process claims a run by a
    file lock, which the operating system releases when the process ends, however it ends.

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

    def path(self, design: str) -> Path:
        """The file with the rows of that design, whatever its settings."""
        return self.folder / f"{safe_name(design.partition(':')[0])}.jsonl"

    def claim(self, key: RunKey) -> FileLock | None:
        """Lock a run before working on it; None if another runner has it. Give it back to :meth:`release`."""
        lock = self._lock(key.run_id)
        try:
            lock.acquire(timeout=0)
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
        if not (self.folder / ".running" / f"{key.run_id}.lock").exists():
            return False
        lock = self.claim(key)
        if lock is not None:
            self.release(lock)
        return lock is None

    def write(self, *rows: Row) -> int:
        """Put rows on disk and say how many; the caller holds the claims. Ok rows that are there already stay."""
        count = 0
        for path, own in groupby(rows, lambda row: self.path(row.design)):
            with self._lock("write"):
                stored = _rows(path)
                new = [row for row in own if row.key not in stored or stored[row.key].status != "ok"]
                append_lines(path, [_encode(_ROW, asdict(row)) for row in new], _ADVICE)
            count += len(new)
        return count

    def find(self, key: RunKey) -> Row | None:
        """The row of that run; None if there is none yet, or a damaged one."""
        return _rows(self.path(key.spec.design)).get(key)

    def contents(self) -> Contents:
        """Every row, ordered by specification and versions, and what is wrong with each line that is none."""
        lines = [line for path in self._files() for line in _lines(path)]
        rows = tuple(row for _, row in sorted(_by_key(lines).items()))
        return Contents(rows, tuple(line.problem for line in lines if line.problem))

    def rows(self) -> tuple[Row, ...]:
        """Every row, ordered by specification and versions; a damaged line is a StoreError."""
        if not self.folder.is_dir():
            raise StoreError(f"{self.folder} is not a folder; name the folder given to --store")
        rows, damaged = self.contents()
        if damaged:
            raise StoreError(f"{damaged[0]}; run the bench again to replace it, and remove it: bgmiv bench gc")
        return rows

    def state(self, keys: Iterable[RunKey]) -> StoreState:
        """Where these runs stand."""
        rows, damaged = self.contents()
        by_key, wanted = {row.key: row for row in rows}, dict.fromkeys(keys)
        specs = {key.spec for key in wanted}
        stored = [by_key[key] for key in wanted if key in by_key]
        absent = [key for key in wanted if key not in by_key]
        running = [key for key in absent if self.is_claimed(key)]
        return StoreState(
            done=[row for row in stored if row.status == "ok"],
            failed=[row for row in stored if row.status != "ok"],
            running=running,
            missing=[key for key in absent if key not in running],
            damaged=damaged,
            other=[row for row in rows if row.spec in specs and row.key not in wanted],
        )

    def clean(self, unwanted: Callable[[Row], bool] = lambda row: False) -> int:
        """Remove damaged lines, rows that the function names, and what killed processes left; how many lines."""
        count = 0
        with self._lock("write"):
            for path in self._files():
                remove_strays(path)
                lines = _lines(path)
                whole = [line for line in lines if line.content is not None]
                kept = [line for line in whole if line.row is None or not unwanted(line.row)]
                if len(kept) < len(lines):
                    write_whole(path, b"".join(line.text + b"\n" for line in kept), _ADVICE)
                count += len(lines) - len(kept)
            for path in self.folder.glob(".running/*.lock"):
                with suppress(Timeout, OSError), FileLock(path, timeout=0):
                    path.unlink()
        return count

    def keep_plan(self, plan: Plan) -> None:
        """Remember what was to be run, so that reports can say what is missing."""
        path, text = self.folder / "plans.jsonl", _encode(_PLAN, asdict(plan))
        with self._lock("write"):
            if text not in [line.text for line in _lines(path)]:
                append_lines(path, [text], _ADVICE)

    def plans(self) -> tuple[Plan, ...]:
        """The plans that were run into this store, without those of other versions; damage is a StoreError."""
        plans = []
        for line in _lines(self.folder / "plans.jsonl"):
            if line.content is None:
                raise StoreError(f"{line.problem}; run its plan again to replace it, and remove it: bgmiv bench gc")
            with suppress(ConfigError, TypeError, KeyError):
                content: Any = line.content
                sweeps = tuple(Sweep(**sweep) for sweep in content["sweeps"])
                plans.append(Plan(content["name"], content["title"], sweeps))
        return tuple(sorted(plans, key=lambda plan: plan.name))

    def merge(self, other: RowStore) -> int:
        """Copy every row and plan of another store, and say how many rows were new.

        Nothing is copied if a line there is damaged, or both hold different results of the same run (StoreError).
        """
        theirs, plans = other.rows(), other.plans()
        for row in theirs:
            mine = self.find(row.key)
            if mine is not None and mine.status == row.status == "ok" and mine.structural_mse != row.structural_mse:
                raise StoreError(
                    f"{self.path(row.design)} and {other.path(row.design)} hold different results of the same run "
                    f"({row.spec}); remove the wrong one"
                )
        for plan in plans:
            self.keep_plan(plan)
        return self.write(*(row for row in theirs if row.status == "ok" or self.find(row.key) is None))

    def _lock(self, name: str) -> FileLock:
        path = self.folder / ".running" / f"{name}.lock"
        with writing(path, _ADVICE):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return FileLock(path)

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*.jsonl"))


def _rows(path: Path) -> Mapping[RunKey, Row]:
    """The rows of a file, read again if it has changed."""
    with suppress(FileNotFoundError):
        state = path.stat()
        return _rows_of(path, (state.st_ino, state.st_size, state.st_mtime_ns))
    return {}


@lru_cache(maxsize=16)
def _rows_of(path: Path, state: tuple[int, ...]) -> Mapping[RunKey, Row]:
    return _by_key(_lines(path))


def _by_key(lines: Iterable[_Line]) -> dict[RunKey, Row]:
    return {line.row.key: line.row for line in lines if line.row}


def _encode(kind: str, content: Mapping[str, Any]) -> bytes:
    rest = canonical_json({"kind": kind, **content}).encode()[1:]
    return _head(rest) + rest


def _head(rest: bytes) -> bytes:
    """The beginning of a line, with the checksum of all that follows."""
    return b'{"sha256":"%s",' % hashlib.sha256(rest).hexdigest()[:16].encode()


def _lines(path: Path) -> list[_Line]:
    """The lines of a file, none if there is no such file."""
    if not path.exists():
        return []
    *texts, last = path.read_bytes().split(b"\n")
    lines = [_line(text, f"{path}, line {number}") for number, text in enumerate(texts, 1)]
    return [*lines, _Line(last, None, f"{path} is damaged: its last line is torn")] if last else lines


def _line(text: bytes, where: str) -> _Line:
    rest = text[len(_head(b"")) :]
    if text != _head(rest) + rest:
        return _Line(text, None, f"{where} is damaged: its checksum does not match")
    with suppress(ValueError, RecursionError, TypeError, KeyError, OverflowError):
        content = json.loads(b"{" + rest)
        kind = content.pop("kind")
        if kind == _PLAN:
            return _Line(text, content)
        if kind == _ROW and {(row := Row(**content)).key}:
            return _Line(text, row)
    return _Line(text, {}, f"{where} is of another version: this one reads {_ROW!r}")
