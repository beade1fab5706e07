"""Result rows on disk: one checked file a run, and leases on the runs that are going on."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import NamedTuple

from bgmiv.bench.files import TEMPORARY_SUFFIX, is_whole, put_new, put_over, read_checked
from bgmiv.bench.identity import RunKey
from bgmiv.bench.leases import Leases
from bgmiv.bench.plan import Plan, Sweep, canonical_json
from bgmiv.bench.row import Row
from bgmiv.errors import ConfigError, StoreError

__all__ = ["Contents", "Merged", "RowStore", "StoreState"]

_ROW = "bgmiv row 2"
_PLAN = "bgmiv plan 1"
_ROW_FILE = re.compile(r"[0-9a-f]{16}\.json")
_TEMPORARY = re.compile(rf"\.([0-9a-zA-Z-]+)-[0-9a-f]{{12}}{re.escape(TEMPORARY_SUFFIX)}")
_RUNNING = ".running"
_PLANS = "plans"


class Contents(NamedTuple):
    """Everything that a store holds: rows in order, and damaged files with what is wrong with each."""

    rows: tuple[Row, ...]
    damaged: tuple[tuple[Path, str], ...]


class StoreState(NamedTuple):
    """Where a list of runs stands.

    Args:
        done: their ok rows.
        failed: their failed rows.
        running: under a lease now.
        missing: neither done, failed nor running; damaged files are among them.
        damaged: what is wrong with each damaged file of the store.
        other: rows of the same specifications made by other code or settings.
    """

    done: tuple[Row, ...]
    failed: tuple[Row, ...]
    running: tuple[RunKey, ...]
    missing: tuple[RunKey, ...]
    damaged: tuple[str, ...]
    other: tuple[Row, ...]

    @property
    def left(self) -> tuple[RunKey, ...]:
        """What a runner has still to see to: all that is not done."""
        return (*(row.key for row in self.failed), *self.running, *self.missing)


class Merged(NamedTuple):
    """How many rows came over, and how many were there already."""

    added: int
    present: int


@dataclass(frozen=True)
class RowStore:
    """A folder of rows, each named by its run's :attr:`~bgmiv.bench.identity.RunKey.run_id`.

    A row is written to a temporary file, flushed to the disk and linked into place, so that a crash leaves either the
    whole row or none, and of two writers one wins. Each file carries a checksum.
    """

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))
        if self.folder.exists() and not self.folder.is_dir():
            raise StoreError(f"{self.folder} is a file; a store is a folder: choose another path")

    def path(self, key: RunKey) -> Path:
        """The file of that run's row, whether it exists or not."""
        return self.folder / f"{key.run_id}.json"

    def leases(self) -> Leases:
        """Leases of this process on runs of this store."""
        return Leases(self.folder / _RUNNING)

    def write(self, row: Row) -> bool:
        """Put the row on disk; False if an ok row of the same run is there already and stays.

        Raises:
            StoreError: it cannot be written.
        """
        path = self.path(row.key)
        content = asdict(row)
        if put_new(path, _ROW, content):
            return True
        if self._is_ok(path):
            return False
        put_over(path, _ROW, content)
        return True

    def read(self, key: RunKey) -> Row | None:
        """The row of that run, None if there is none yet.

        Raises:
            StoreError: the file is damaged.
        """
        path = self.path(key)
        return _read_row(path) if path.exists() else None

    def is_done(self, key: RunKey) -> bool:
        """Whether the run has an ok row that is not damaged."""
        path = self.path(key)
        return path.exists() and self._is_ok(path)

    def contents(self) -> Contents:
        """Every row, ordered by specification, code version and settings, and every damaged file.

        Raises:
            StoreError: the folder does not exist.
        """
        if not self.folder.is_dir():
            raise StoreError(f"{self.folder} is not a folder; name the folder given to --store")
        rows, damaged = [], []
        for path in sorted(self.folder.iterdir()):
            if _ROW_FILE.fullmatch(path.name):
                try:
                    rows.append(_read_row(path))
                except StoreError as error:
                    damaged.append((path, str(error)))
        rows.sort(key=lambda row: (row.spec, row.code, row.config))
        return Contents(tuple(rows), tuple(damaged))

    def rows(self) -> tuple[Row, ...]:
        """Every row, ordered by specification, code version and settings.

        Raises:
            StoreError: the folder does not exist, or a file is damaged.
        """
        rows, damaged = self.contents()
        if damaged:
            raise StoreError(f"{damaged[0][1]}; run the bench again to make its row anew, or remove it: bgmiv bench gc")
        return rows

    def state(self, keys: Iterable[RunKey]) -> StoreState:
        """Where these runs stand."""
        contents = self.contents() if self.folder.is_dir() else Contents((), ())
        by_id = {row.key.run_id: row for row in contents.rows}
        wanted = tuple(dict.fromkeys(keys))
        ids, specs = {key.run_id for key in wanted}, {key.spec for key in wanted}
        leased = set(self.leases().names())
        found = [by_id[key.run_id] for key in wanted if key.run_id in by_id]
        waiting = [key for key in wanted if key.run_id not in by_id]
        return StoreState(
            done=tuple(row for row in found if row.status == "ok"),
            failed=tuple(row for row in found if row.status != "ok"),
            running=tuple(key for key in waiting if key.run_id in leased),
            missing=tuple(key for key in waiting if key.run_id not in leased),
            damaged=tuple(message for _, message in contents.damaged),
            other=tuple(row for row in contents.rows if row.spec in specs and row.key.run_id not in ids),
        )

    def sweep(self) -> tuple[Path, ...]:
        """Remove temporary files whose writer is gone, and leases that have ended; the removed files."""
        if not self.folder.is_dir():
            return ()
        leases = self.leases()
        # Temporary files are only ever written under the lease of their run or under the lock.
        with leases.locked():
            folders = [folder for folder in (self.folder, self.folder / _PLANS) if folder.is_dir()]
            found = [(path, _TEMPORARY.fullmatch(path.name)) for folder in folders for path in sorted(folder.iterdir())]
            leases.sweep()
            # Asked after the files were listed: a lease taken since then has no file among them.
            live = set(leases.names())
            stray = tuple(path for path, match in found if match and match[1] not in live)
            self.remove(stray)
        return stray

    def remove(self, paths: Iterable[Path]) -> int:
        """Delete files of this store; how many there were."""
        count = 0
        for path in paths:
            if path.exists():
                path.unlink()
                count += 1
        return count

    def keep_plan(self, plan: Plan) -> None:
        """Remember what was to be run, so that reports can say what is missing."""
        content = {"name": plan.name, "title": plan.title, "sweeps": [asdict(sweep) for sweep in plan.sweeps]}
        path = self.folder / _PLANS / f"{_digest(canonical_json(content))}.json"
        with self.leases().locked():
            if not put_new(path, _PLAN, content) and not is_whole(path, _PLAN):
                put_over(path, _PLAN, content)

    def plans(self) -> tuple[Plan, ...]:
        """The plans that were run into this store; plans of other versions that cannot be read now are left out.

        Raises:
            StoreError: a file is damaged.
        """
        found = []
        for path in self._plan_files():
            try:
                content = read_checked(path, _PLAN)
            except StoreError as error:
                raise StoreError(
                    f"{error}; run its plan again to make it anew, or remove it: bgmiv bench gc"
                ) from error
            try:
                sweeps = tuple(Sweep(**sweep) for sweep in content["sweeps"])
            except (ConfigError, TypeError):
                continue
            found.append(Plan(content["name"], content["title"], sweeps))
        return tuple(sorted(found, key=lambda plan: plan.name))

    def damaged_plans(self) -> tuple[Path, ...]:
        """Files of plans that are not as they were written."""
        return tuple(path for path in self._plan_files() if not is_whole(path))

    def merge(self, other: RowStore) -> Merged:
        """Take over every row and plan of another store.

        Raises:
            StoreError: a file there is damaged, or both hold different results of the same run; nothing was taken.
        """
        theirs, plans = other.rows(), other.plans()
        added = []
        for row in theirs:
            mine = self.read(row.key)
            if mine is not None and mine.status == row.status == "ok" and _result(mine) != _result(row):
                raise StoreError(
                    f"{self.path(row.key)} and {other.path(row.key)} hold different results of the same run "
                    f"({row.spec}); remove the wrong one"
                )
            if mine is None or (mine.status != "ok" and row.status == "ok"):
                added.append(row)
        with self.leases().locked():
            for row in added:
                self.write(row)
        for plan in plans:
            self.keep_plan(plan)
        return Merged(len(added), len(theirs) - len(added))

    def _plan_files(self) -> tuple[Path, ...]:
        return tuple(sorted((self.folder / _PLANS).glob("*.json")))

    def _is_ok(self, path: Path) -> bool:
        try:
            return _read_row(path).status == "ok"
        except StoreError:
            return False


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _result(row: Row) -> tuple[float | None, ...]:
    return (row.structural_mse, row.structural_mse_in_support, row.structural_mse_outside)


def _read_row(path: Path) -> Row:
    content = read_checked(path, _ROW)
    names = {item.name for item in fields(Row)}
    if not names - {"evidence"} <= set(content) <= names:
        raise StoreError(f"{path} is damaged (its fields are not those of a row)")
    row = Row(**content)
    if row.key.run_id != path.stem:
        raise StoreError(f"{path} is damaged (its name does not match its row)")
    return row
