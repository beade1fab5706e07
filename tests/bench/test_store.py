from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from bgmiv.bench.files import put_new
from bgmiv.bench.plan import Plan, RunSpec, Sweep
from bgmiv.bench.row import Row
from bgmiv.bench.store import RowStore
from bgmiv.errors import StoreError

MakeRow = Callable[..., Row]

PLAN = Plan("mine", "a title", (Sweep(["demand"], [100], [0.5], ["tsls"], repeats=2),))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def test_what_is_written_is_read(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path / "new" / "store")
    row = make_row()
    assert not store.is_done(row.key)
    assert store.write(row)
    assert store.path(row.key).name == f"{row.key.run_id}.json"
    assert store.read(row.key) == row
    assert store.is_done(row.key)
    assert store.rows() == (row,)
    assert files(store.folder) == [store.path(row.key).name]


def test_evidence_is_kept(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path)
    row = make_row(evidence={"n_held_out": 100, "outcome_explained": 0.9123456789, "disagreement": None})
    store.write(row)
    read = store.read(row.key)
    assert read == row
    assert read is not None
    assert read.evidence == {"n_held_out": 100, "outcome_explained": 0.9123456789, "disagreement": None}
    assert isinstance(read.evidence["n_held_out"], int)


def test_a_row_from_before_there_was_evidence_is_read(tmp_path: Path, make_row: MakeRow) -> None:
    store, row = RowStore(tmp_path), make_row()
    content = asdict(row)
    del content["evidence"]
    put_new(store.path(row.key), "bgmiv row 2", content)
    assert store.read(row.key) == row
    assert store.rows()[0].evidence == {}
    assert store.is_done(row.key)


@pytest.mark.parametrize("change", ["less", "more"])
def test_other_fields_than_those_of_a_row_are_damage(tmp_path: Path, make_row: MakeRow, change: str) -> None:
    store, row = RowStore(tmp_path), make_row()
    content = {**asdict(row), "colour": "green"} if change == "more" else asdict(row)
    if change == "less":
        del content["seconds"]
    put_new(store.path(row.key), "bgmiv row 2", content)
    with pytest.raises(StoreError, match="fields are not those of a row"):
        store.rows()


def test_a_row_replaces_a_failed_one_and_never_an_ok_one(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path)
    assert store.write(make_row(status="failed", error="no", structural_mse=None))
    assert not store.is_done(make_row().key)
    assert store.write(make_row())
    assert not store.write(make_row(structural_mse=1.0))
    assert not store.write(make_row(status="failed", error="no", structural_mse=None))
    assert store.rows() == (make_row(),)
    assert len(files(tmp_path)) == 1


def test_a_row_replaces_a_damaged_file(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path)
    store.write(make_row())
    store.path(make_row().key).write_text("{")
    assert not store.is_done(make_row().key)
    assert store.write(make_row())
    assert store.rows() == (make_row(),)


def test_absent_row_and_absent_folder(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path / "nowhere")
    key = make_row().key
    assert store.read(key) is None
    assert store.plans() == ()
    assert store.sweep() == ()
    assert store.state([key]).missing == (key,)
    with pytest.raises(StoreError, match="not a folder"):
        store.rows()
    assert not store.folder.exists()


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="is a file"):
        RowStore(tmp_path / "file")


def test_rows_are_ordered_and_foreign_files_ignored(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path)
    rows = [make_row(n=n, seed=seed, code=code) for n in (500, 100) for seed in (1, 0) for code in ("b" * 16, "a" * 16)]
    for row in rows:
        store.write(row)
    (tmp_path / "notes.json").write_text("not a row")
    (tmp_path / ".0123456789abcdef-x.tmp").write_text("torn")
    assert [(row.n, row.seed, row.code[0]) for row in store.rows()] == [
        (n, seed, code) for n in (100, 500) for seed in (0, 1) for code in "ab"
    ]


@pytest.mark.parametrize("kept", [0, 1, 40, -2, -1])
def test_a_torn_file_is_noticed(tmp_path: Path, make_row: MakeRow, kept: int) -> None:
    store = RowStore(tmp_path)
    store.write(make_row())
    store.write(make_row(seed=1))
    path = store.path(make_row().key)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(StoreError, match=r"damaged.*run the bench again.*bgmiv bench gc") as caught:
        store.rows()
    assert path.name in str(caught.value)
    rows, damaged = store.contents()
    assert rows == (make_row(seed=1),)
    assert [where for where, _ in damaged] == [path]


def test_a_changed_number_is_noticed(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path)
    store.write(make_row())
    path = store.path(make_row().key)
    path.write_text(path.read_text().replace("9000.0", "1.0"))
    with pytest.raises(StoreError, match="checksum"):
        store.read(make_row().key)


def test_a_renamed_file_is_noticed(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path)
    store.write(make_row())
    store.path(make_row().key).rename(tmp_path / f"{'0' * 16}.json")
    with pytest.raises(StoreError, match="name"):
        store.rows()


def test_another_format_is_refused(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path)
    store.write(make_row())
    path = store.path(make_row().key)
    path.write_text(json.dumps({**json.loads(path.read_text()), "kind": "bgmiv row 99"}))
    with pytest.raises(StoreError, match="bgmiv row 99"):
        store.rows()


def test_a_crash_while_writing_leaves_the_old_row(
    tmp_path: Path, make_row: MakeRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RowStore(tmp_path)
    failed = make_row(status="failed", error="no", structural_mse=None)
    store.write(failed)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(StoreError, match="No space left on device; free some space"):
        store.write(make_row())
    assert store.rows() == (failed,)
    assert len(files(tmp_path)) == 1


def test_state_says_where_runs_stand(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path)
    done, failed = make_row(seed=0), make_row(seed=1, status="failed", error="no", structural_mse=None)
    damaged, old = make_row(seed=2), make_row(seed=3, code="e" * 16)
    for row in (done, failed, damaged, old):
        store.write(row)
    store.path(damaged.key).write_text("{")
    running, missing = make_row(seed=4).key, make_row(seed=3).key
    leases = store.leases()
    leases.take(running.run_id)
    # Its runner holds the lease for a moment longer than the row needs.
    leases.take(done.key.run_id)
    state = store.state([row.key for row in (done, failed, damaged)] + [running, missing, missing])
    assert state.done == (done,)
    assert state.failed == (failed,)
    assert state.running == (running,)
    assert state.missing == (damaged.key, missing)
    assert state.other == (old,)
    assert len(state.damaged) == 1
    assert damaged.key.run_id in state.damaged[0]
    assert state.left == (failed.key, running, damaged.key, missing)


def test_sweeping_removes_what_the_dead_left(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path)
    store.write(make_row())
    store.keep_plan(PLAN)
    leases = store.leases()
    leases.take("a" * 16)
    dead = store.leases()
    dead.holder = replace(dead.holder, started="long ago")
    dead.take("b" * 16)
    stray = [tmp_path / f".{'b' * 16}-0123456789ab.tmp", tmp_path / "plans" / f".{'c' * 16}-0123456789ab.tmp"]
    live = tmp_path / f".{'a' * 16}-0123456789ab.tmp"
    for path in (*stray, live):
        path.write_text("half")
    assert set(store.sweep()) == set(stray)
    assert live.exists()
    assert not any(path.exists() for path in stray)
    assert leases.names() == ("a" * 16,)
    assert not (leases.folder / f"{'b' * 16}.lease").exists()
    assert store.rows() == (make_row(),)
    assert store.plans() == (PLAN,)


def test_sweeping_spares_the_file_of_a_lease_taken_meanwhile(
    tmp_path: Path, make_row: MakeRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RowStore(tmp_path)
    store.write(make_row())
    worker = store.leases()
    real = type(worker).names

    def names(self: object) -> tuple[str, ...]:
        found = real(self)  # type: ignore[arg-type]
        # The next moment a worker writes the row of a run that it has just claimed.
        (tmp_path / f".{'a' * 16}-0123456789ab.tmp").write_text("half")
        return found

    monkeypatch.setattr(type(worker), "names", names)
    assert store.sweep() == ()
    assert (tmp_path / f".{'a' * 16}-0123456789ab.tmp").exists()


def test_plans_are_kept_once(tmp_path: Path) -> None:
    store = RowStore(tmp_path)
    other = replace(PLAN, name="another")
    for plan in (PLAN, other, PLAN):
        store.keep_plan(plan)
    assert store.plans() == (other, PLAN)
    assert len(files(tmp_path / "plans")) == 2


def test_a_damaged_plan_is_named_and_made_anew(tmp_path: Path) -> None:
    store = RowStore(tmp_path)
    store.keep_plan(PLAN)
    (path,) = (tmp_path / "plans").iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    assert store.damaged_plans() == (path,)
    with pytest.raises(StoreError, match=r"damaged.*run its plan again.*bgmiv bench gc"):
        store.plans()
    store.keep_plan(PLAN)
    assert store.plans() == (PLAN,)
    assert store.damaged_plans() == ()


def test_a_plan_of_another_version_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RowStore(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("bgmiv.bench.plan.method_names", lambda: ("tsls", "to-come"))
        patch.setattr("bgmiv.bench.plan.nearest_preset", lambda method, preset: preset)
        store.keep_plan(Plan("later", "", (Sweep(["demand"], [100], [0.5], ["to-come"]),)))
    store.keep_plan(PLAN)
    assert store.plans() == (PLAN,)


def test_merging_takes_what_is_missing(tmp_path: Path, make_row: MakeRow) -> None:
    here, there = RowStore(tmp_path / "here"), RowStore(tmp_path / "there")
    failed = make_row(seed=1, status="failed", error="no", structural_mse=None)
    for row in (make_row(seed=0), failed):
        here.write(row)
    for row in (make_row(seed=0, seconds=9.0), make_row(seed=1), make_row(seed=2), make_row(seed=2, code="e" * 16)):
        there.write(row)
    there.keep_plan(PLAN)
    assert here.merge(there) == (3, 1)
    assert here.merge(there) == (0, 4)
    assert [(row.seed, row.status, row.seconds) for row in here.rows()] == [
        (0, "ok", 0.5), (1, "ok", 0.5), (2, "ok", 0.5), (2, "ok", 0.5),
    ]  # fmt: skip
    assert here.plans() == (PLAN,)


def test_a_failed_row_does_not_replace_an_ok_one_when_merging(tmp_path: Path, make_row: MakeRow) -> None:
    here, there = RowStore(tmp_path / "here"), RowStore(tmp_path / "there")
    here.write(make_row())
    there.write(make_row(status="failed", error="no", structural_mse=None))
    assert here.merge(there) == (0, 1)
    assert here.rows() == (make_row(),)


def test_merging_refuses_two_results_of_a_run(tmp_path: Path, make_row: MakeRow) -> None:
    here, there = RowStore(tmp_path / "here"), RowStore(tmp_path / "there")
    here.write(make_row(seed=1))
    for row in (make_row(seed=0), make_row(seed=1, structural_mse=1.0)):
        there.write(row)
    with pytest.raises(StoreError, match="different results of the same run"):
        here.merge(there)
    assert here.rows() == (make_row(seed=1),)


@pytest.mark.parametrize("folder", [".", "plans"])
def test_merging_takes_nothing_from_a_damaged_store(tmp_path: Path, make_row: MakeRow, folder: str) -> None:
    here, there = RowStore(tmp_path / "here"), RowStore(tmp_path / "there")
    there.write(make_row(seed=0))
    there.write(make_row(seed=1))
    there.keep_plan(PLAN)
    next((there.folder / folder).glob("*.json")).write_text("{")
    with pytest.raises(StoreError, match="damaged"):
        here.merge(there)
    assert not here.folder.exists()


def test_row_gives_back_its_spec_and_key(make_row: MakeRow) -> None:
    assert make_row().spec == RunSpec("demand", 100, 0.5, "tsls", "default", 0)
    assert make_row().key == replace(make_row().key, spec=make_row().spec)
    assert (make_row().key.config, make_row().key.code) == ("c" * 16, "d" * 16)
