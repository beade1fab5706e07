"""Run what is missing: claim runs of a store, hand them to an executor, keep each row as it comes."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from bgmiv.bench.evaluate import can_batch, failed_row, run_one, run_together
from bgmiv.bench.executors import Board, Died, Event, Executor
from bgmiv.bench.identity import RunKey, identify
from bgmiv.bench.row import Row
from bgmiv.bench.store import RowStore
from bgmiv.errors import BGMIVError, StoreError
from bgmiv.progress import Reporter, silent

__all__ = ["Batch", "Outcome", "batches", "run_and_keep", "run_batch", "run_plan"]

_PATIENCE = 0.5
_ATTEMPTS = 2


@dataclass(frozen=True)
class Batch:
    """Repeats of one cell that are run together, for the store in ``folder``.

    Args:
        folder: the store's.
        keys: the runs.
        failed: rows of failed fits that were there when the runner began, and are to be made anew.
    """

    folder: Path
    keys: tuple[RunKey, ...]
    failed: tuple[Row, ...] = ()

    @property
    def label(self) -> str:
        """Its name for people."""
        first, last = self.keys[0].spec, self.keys[-1].spec
        return str(first) if len(self.keys) == 1 else f"{first} to {last.seed}"


class Outcome(NamedTuple):
    """A run that has its row now, and whether this runner made it or another one."""

    row: Row
    ours: bool


def batches(keys: Iterable[RunKey], folder: Path, size: int = 1) -> tuple[Batch, ...]:
    """Runs grouped into batches of at most ``size`` repeats of a cell, where the method can train them together."""
    found: list[Batch] = []
    for _, group in groupby(keys, key=lambda key: (key.spec.cell, key.config, key.code)):
        members = tuple(group)
        step = size if size > 1 and can_batch(members[0].spec) else 1
        found += [Batch(folder, members[start : start + step]) for start in range(0, len(members), step)]
    return tuple(found)


def run_batch(batch: Batch, reporter: Reporter = silent) -> tuple[Row, ...]:
    """Rows of a batch; runs that fail are tried once more, alone.

    Raises:
        BGMIVError: the code or settings here are not those that the sweep was started with.
    """
    for key in batch.keys:
        here = identify(key.spec)
        if here != key:
            raise BGMIVError(
                f"{key.spec}: the code or settings here (code {here.code[:8]}, settings {here.config[:8]}) are not "
                f"those the sweep was started with (code {key.code[:8]}, settings {key.config[:8]}); "
                "run the same command again, with the same version everywhere"
            )
    rows = run_together([key.spec for key in batch.keys], reporter)
    return tuple(row if row.status == "ok" else _again(row, reporter) for row in rows)


def run_and_keep(batch: Batch, reporter: Reporter = silent) -> tuple[Row, ...]:
    """Claim the batch's runs, run those that nobody else has done or is doing, and store their rows.

    Returns:
        The rows made here; runs that are claimed elsewhere are left out.
    """
    store = RowStore(batch.folder)
    with store.leases().holding([key.run_id for key in batch.keys]) as mine:
        todo = _still_wanted(batch, mine, store)
        rows = run_batch(todo, reporter) if todo.keys else ()
        return tuple(row for row in rows if store.write(row))


def run_plan(
    keys: Sequence[RunKey], store: RowStore, executor: Executor, board: Board, *, batch_size: int = 1
) -> Iterator[Outcome]:
    """Run what these keys miss in the store and give each row as it comes.

    Runs that other runners are at are waited for, and taken over if their runner is gone.

    Args:
        keys: what is wanted; rows that are there already are not given again.
        store: where rows are kept.
        executor: where fits run.
        board: shown every progress event, by the key's place in ``keys``.
        batch_size: at most this many repeats of a cell are trained together.
    """
    places = {key: place for place, key in enumerate(keys)}
    before = {key: _stored(store, key) for key in keys}
    left = [key for key, row in before.items() if row is None or row.status != "ok"]
    while left:
        work = tuple(
            replace(batch, failed=tuple(row for key in batch.keys if (row := before[key]) is not None))
            for batch in batches(left, store.folder, batch_size)
        )
        moved = False
        for row in _executed(work, store, executor, board, places):
            left.remove(row.key)
            moved = True
            yield Outcome(row, ours=True)
        for key in tuple(left):
            found = _stored(store, key)
            if found is not None and found != before[key]:
                left.remove(key)
                moved = True
                yield Outcome(found, ours=False)
        if left and not moved:
            time.sleep(_PATIENCE)


@dataclass(frozen=True)
class _Relabelled:
    """A board for which item numbers of one round stand for the keys' places."""

    board: Board
    items: Sequence[Batch]
    places: Mapping[RunKey, int]

    def show(self, index: int, event: Event) -> None:
        self.board.show(self.places[self.items[index].keys[0]], event)


def _executed(
    work: Sequence[Batch], store: RowStore, executor: Executor, board: Board, places: Mapping[RunKey, int]
) -> Iterator[Row]:
    """The rows that this runner makes of the work; batches that others are at give none."""
    leases = store.leases()
    free = [batch for batch in work if not all(leases.held(key.run_id) for key in batch.keys)]
    if executor.shares_files:
        for outcome in executor.map(run_and_keep, free, _Relabelled(board, free, places)):
            if isinstance(outcome, Died):
                yield from _lost(free[outcome.index], outcome, store)
            else:
                yield from outcome.result
        return
    with leases.holding([key.run_id for batch in free for key in batch.keys]) as held:
        mine = [batch for each in free if (batch := _still_wanted(each, frozenset(held), store)).keys]
        for outcome in executor.map(run_batch, mine, _Relabelled(board, mine, places)):
            rows = _lost_rows(mine[outcome.index], outcome) if isinstance(outcome, Died) else outcome.result
            for row in rows:
                if store.write(row):
                    yield row


def _still_wanted(batch: Batch, held: Collection[str], store: RowStore) -> Batch:
    """What is left of the batch under the leases held: meanwhile another runner may have made a row, ok or failed."""
    found = {key: _stored(store, key) for key in batch.keys if key.run_id in held}
    return replace(batch, keys=tuple(key for key, row in found.items() if row is None or row in batch.failed))


def _lost(batch: Batch, died: Died, store: RowStore) -> Iterator[Row]:
    rows = {row.key.run_id: row for row in _lost_rows(batch, died)}
    # Its worker is gone, so its leases have ended; a row that it wrote before it died stays.
    with store.leases().holding(tuple(rows)) as mine:
        kept = [rows[name] if store.write(rows[name]) else _stored(store, rows[name].key) for name in mine]
    yield from (row for row in kept if row is not None)


def _stored(store: RowStore, key: RunKey) -> Row | None:
    """The row that is there; None also for a damaged one, which is to be made anew."""
    try:
        return store.read(key)
    except StoreError:
        return None


def _lost_rows(batch: Batch, died: Died) -> tuple[Row, ...]:
    return tuple(failed_row(key, died.reason, attempts=died.attempts) for key in batch.keys)


def _again(row: Row, reporter: Reporter) -> Row:
    return replace(run_one(row.spec, reporter), attempts=_ATTEMPTS)
