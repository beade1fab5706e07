"""Runs that a store is missing, on any executor."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from filelock import FileLock

from bgmiv.bench.evaluate import failed_row, run_one
from bgmiv.bench.plan import RunKey, identify
from bgmiv.bench.store import Row, RowStore
from bgmiv.errors import BGMIVError
from bgmiv.executors import Board, Done, Executor
from bgmiv.progress import Reporter

__all__ = ["Outcome", "run_key", "run_plan"]

_WAIT_SECONDS = 0.5


class Outcome(NamedTuple):
    """A run that has its row now, and whether this runner made it or another one."""

    row: Row
    ours: bool


def run_key(key: RunKey, reporter: Reporter) -> Row:
    """One fit of a sweep, wherever it runs; other algorithms than the sweep was started with are a BGMIVError."""
    here = identify(key.spec)
    if here != key:
        raise BGMIVError(
            f"{key.spec}: the algorithm versions here (method {here.method_version}, design {here.design_version}) are "
            f"not those the sweep was started with (method {key.method_version}, design {key.design_version}); install "
            "the same version of bgmiv everywhere and run the same command again"
        )
    return run_one(key.spec, reporter)


def run_plan(keys: Sequence[RunKey], store: RowStore, executor: Executor, board: Board) -> Iterator[Outcome]:
    """Run what the store does not have and yield each row as it comes.

    Runs that other runners have claimed are waited for, and taken over if their runner dies.

    Example:
        >>> import tempfile
        >>> from rich.console import Console
        >>> from bgmiv.bench import InProcess, RunSpec, identify
        >>> from bgmiv.progress import FitBoard
        >>> keys = [identify(RunSpec("demand", 500, 0.5, "tsls", "default", seed=seed)) for seed in (1, 2)]
        >>> board = FitBoard(Console(stderr=True), dict.fromkeys(keys, "2SLS"))
        >>> with tempfile.TemporaryDirectory() as place:
        ...     [found.row.status for found in run_plan(keys, RowStore(place), InProcess(), board)]
        ['ok', 'ok']
    """
    before = {key: store.find(key) for key in keys}
    left = dict.fromkeys(key for key, row in before.items() if row is None or row.status != "ok")
    claims: dict[RunKey, FileLock] = {}

    def claimed() -> Iterator[RunKey]:
        """Claim run after run as the executor asks for them, without those that others have claimed or finished."""
        for key in tuple(left):
            lock = store.claim(key)
            if lock is None:
                continue
            # Looked up under the claim: another runner may have finished it a moment ago.
            if store.find(key) != before[key]:
                store.release(lock)
                continue
            claims[key] = lock
            yield key

    while left:
        count = len(left)
        try:
            for outcome in executor.map(run_key, claimed(), board):
                key = outcome.item
                row = outcome.result if isinstance(outcome, Done) else failed_row(key, outcome.reason, outcome.attempts)
                store.write(row)
                store.release(claims.pop(key))
                del left[key]
                yield Outcome(row, ours=True)
        finally:
            while claims:
                store.release(claims.popitem()[1])
        for key in tuple(left):
            found = store.find(key)
            if found is not None and found != before[key]:
                del left[key]
                yield Outcome(found, ours=False)
        if len(left) == count:
            time.sleep(_WAIT_SECONDS)
