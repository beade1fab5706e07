from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bgmiv.bench import evaluate
from bgmiv.bench.evaluate import failed_row, run_one, run_plan
from bgmiv.bench.plan import RunKey, RunSpec, identify
from bgmiv.bench.store import Row, RowStore
from bgmiv.errors import BGMIVError
from bgmiv.executors import Done, InProcess, LocalPool

KEYS = tuple(identify(RunSpec("demand", 100, 0.5, "tsls", "default", seed)) for seed in range(4))


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds that were fitted; seed 3 fails."""
    seeds: list[int] = []

    def run(spec: RunSpec) -> Row:
        seeds.append(spec.seed)
        return failed_row(identify(spec), "no good") if spec.seed == 3 else run_one(spec)

    monkeypatch.setattr(evaluate, "run_one", run)
    return seeds


def run(store: RowStore, keys: Iterable[RunKey]) -> list[tuple[int, str, bool]]:
    outcomes = run_plan(tuple(keys), store, InProcess())
    return [(row.seed, row.status, ours) for row, ours in outcomes]


def test_what_is_missing_failed_or_damaged_is_run_and_no_more(tmp_path: Path, fitted: list[int]) -> None:
    store = RowStore(tmp_path)
    assert run(store, KEYS) == [(0, "ok", True), (1, "ok", True), (2, "ok", True), (3, "failed", True)]
    before = store.rows()
    fitted.clear()
    path = store.path("demand")
    path.write_bytes(path.read_bytes().replace(b'"seed":1,', b'"seed":9,'))
    assert run(store, KEYS) == [(1, "ok", True), (3, "failed", True)]
    assert fitted == [1, 3]
    assert store.clean() == 1
    assert [row.structural_mse for row in store.rows()] == [row.structural_mse for row in before]
    assert [path.stem for path in tmp_path.glob(".running/*")] in ([], ["write"])


def test_rows_of_other_versions_do_not_count(tmp_path: Path, fitted: list[int]) -> None:
    store = RowStore(tmp_path)
    old = replace(run_one(KEYS[0].spec), method_version=0)
    store.write(old)
    assert run(store, KEYS[:1]) == [(0, "ok", True)]
    assert store.state(KEYS[:1]).other == [old]


def test_workers_give_the_same_rows(tmp_path: Path) -> None:
    outcomes = list(run_plan(KEYS[:2], RowStore(tmp_path), LocalPool(1)))
    errors = {key: run_one(key.spec).structural_mse for key in KEYS[:2]}
    assert {row.key: row.structural_mse for row, _ in outcomes} == errors
    assert len(RowStore(tmp_path).rows()) == 2


def test_runs_of_another_runner_are_waited_for(
    tmp_path: Path, fitted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RowStore(tmp_path)
    claim, waits = store.claim(KEYS[0]), []
    assert claim is not None

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            store.write(run_one(KEYS[0].spec))
            store.release(claim)

    monkeypatch.setattr(evaluate.time, "sleep", wait)
    assert run(store, KEYS[:2]) == [(1, "ok", True), (0, "ok", False)]
    assert fitted == [1]


def test_runs_of_a_dead_runner_are_taken_over(
    tmp_path: Path, fitted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RowStore(tmp_path)
    claim = store.claim(KEYS[0])
    assert claim is not None
    # What the system does when a process dies: the lock ends, its file stays.
    monkeypatch.setattr(evaluate.time, "sleep", lambda _: claim.release())
    assert run(store, KEYS[:1]) == [(0, "ok", True)]


def test_what_another_runner_finishes_meanwhile_is_not_run_again(
    tmp_path: Path, fitted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RowStore(tmp_path)
    theirs = [run_one(KEYS[0].spec), failed_row(KEYS[3], "no good")]
    real = RowStore.claim

    def late(self: RowStore, key: RunKey) -> Any:
        for row in theirs:
            store.write(row)
        return real(self, key)

    monkeypatch.setattr(RowStore, "claim", late)
    assert run(store, [KEYS[0], KEYS[3]]) == [(0, "ok", False), (3, "failed", False)]
    assert fitted == []


def test_other_algorithms_than_at_the_start_are_an_error(tmp_path: Path) -> None:
    store = RowStore(tmp_path)
    with pytest.raises(BGMIVError, match=r"algorithm versions here \(method 1, design 1\).*\(method 9, design 1\)"):
        run(store, [replace(KEYS[0], method_version=9)])
    assert store.rows() == ()
    assert [path.stem for path in tmp_path.glob(".running/*")] in ([], ["write"])


def test_a_lost_worker_gives_a_failed_row(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Dying(InProcess):
        def map(self, task: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Done]:
            for item in items:
                yield Done(item, lost="the worker process ended")

    ((row, _),) = run_plan(KEYS[:1], RowStore(tmp_path), Dying())
    assert (row.status, row.attempts, row.error) == ("failed", 2, "the worker process ended")
    assert RowStore(tmp_path).rows() == (row,)
