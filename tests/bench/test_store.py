from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bgmiv.bench.plan import Plan, Sweep
from bgmiv.bench.store import Row, RowStore, _encode, _head
from bgmiv.errors import BGMIVWarning, StoreError

MakeRow = Callable[..., Row]

PLAN = Plan("mine", "a title", (Sweep(["demand"], [100], [0.5], ["tsls"], repeats=2),))
FAILED = {"status": "failed", "error": "no", "structural_mse": None}

HOLD = """
import sys
from bgmiv.bench.plan import RunSpec, RunKey
from bgmiv.bench.store import RowStore
claim = RowStore(sys.argv[1]).claim(RunKey(RunSpec("demand", 100, 0.5, "tsls", "default", 0), 1, 1))
print(claim is not None, flush=True)
sys.stdin.read()
"""


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def damage(store: RowStore, row: Row) -> None:
    """Change a digit in the row's line."""
    path = store.path(row.design)
    lines = path.read_bytes().splitlines(keepends=True)
    seed = f'"seed":{row.seed},'.encode()
    path.write_bytes(b"".join(line.replace(b'"n":100', b'"n":101') if seed in line else line for line in lines))


def test_what_is_written_is_read(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path / "new" / "store")
    row = make_row(evidence={"n_held_out": 100, "outcome_explained": 0.9123456789, "disagreement": None})
    assert store.find(row.key) is None
    assert store.write(row)
    assert store.find(row.key) == row
    assert store.rows() == (row,)
    assert files(store.folder) == ["demand.jsonl"]


def test_a_row_replaces_a_failed_or_damaged_one_and_never_an_ok_one(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path)
    store.write(make_row())
    damage(store, make_row())
    assert store.find(make_row().key) is None
    assert store.write(make_row(**FAILED))
    assert store.write(make_row())
    assert not store.write(make_row(structural_mse=1.0))
    assert not store.write(make_row(**FAILED))
    assert store.contents().rows == (make_row(),)
    # The damaged line is told until it is removed.
    assert store.clean() == 1
    assert store.rows() == (make_row(),)


def test_versions_are_part_of_a_runs_identity(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path)
    rows = [make_row(seed=seed, **{name: 2}) for seed in (1, 0) for name in ("design_version", "method_version")]
    for row in (*rows, make_row()):
        assert store.write(row)
    (tmp_path / "notes.json").write_text("not a row")
    assert store.rows() == (make_row(), rows[2], rows[3], rows[0], rows[1])


def test_absent_and_wrong_folders(tmp_path: Path, make_row: MakeRow) -> None:
    store, key = RowStore(tmp_path / "nowhere"), make_row().key
    assert (store.find(key), store.plans(), store.state([key]).missing) == (None, (), [key])
    with pytest.raises(StoreError, match="not a folder"):
        store.rows()
    assert not store.folder.exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="is a file"):
        RowStore(tmp_path / "file")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda line: b"\n", "checksum"),
        (lambda line: line[:40] + b"\n", "checksum"),
        (lambda line: line[:-1], "torn"),
        (lambda line: line[:-50], "torn"),
        (lambda line: line.replace(b"9000.0", b"1.0"), "checksum"),
        (lambda line: line.replace(b",", b", ", 1), "checksum"),
        (lambda line: line.replace(b'"sha256":"', b'"sha256":"0', 1), "checksum"),
        (lambda _: b"\xff\xfe\x00{\n", "checksum"),
        (lambda _: b"[" * 100_000 + b"\n", "checksum"),
        (lambda _: checked(b"[" * 100_000), "of another version"),
        (lambda _: checked(b'"kind":"bgmiv row 4","n":NaN}'), "of another version"),
        (lambda _: _encode("bgmiv row 4", {"seed": 0}) + b"\n", "of another version"),
        (lambda _: _encode("bgmiv row 99", {"seed": 0}) + b"\n", "of another version: this one reads 'bgmiv row 4'"),
    ],
)
def test_damage_is_noticed(tmp_path: Path, make_row: MakeRow, change: Callable[[bytes], bytes], words: str) -> None:
    store = RowStore(tmp_path)
    store.write(make_row(seed=1), make_row())
    path = store.path("demand")
    first, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + change(last))
    with pytest.raises(StoreError, match=rf"{path.name}.*{words}.*run the bench again.*bgmiv bench gc"):
        store.rows()
    rows, damaged = store.contents()
    assert rows == (make_row(seed=1),)
    assert len(damaged) == 1
    # A whole line of another version is not a damaged one, and gc keeps it.
    assert store.clean() == ("version" not in words)
    assert len(store.contents().damaged) == ("version" in words)


def checked(rest: bytes) -> bytes:
    return _head(rest) + rest + b"\n"


def test_a_torn_last_line_is_dropped_by_the_next_writer(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path)
    store.write(make_row(), make_row(seed=1))
    path = store.path("demand")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.warns(BGMIVWarning, match="torn line"):
        store.write(make_row(seed=2))
    assert store.rows() == (make_row(), make_row(seed=2))
    assert store.write(make_row(seed=1)) == 1


def test_rows_of_a_design_share_a_file_and_many_are_read_fast(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path)
    names = ["noisy-linear", "noisy-linear:r2=0.1", "../../etc/x"]
    rows = [make_row(design=name, seed=seed) for name in names for seed in range(1000)]
    assert store.write(*rows) == 3000
    assert files(tmp_path) == ["------etc-x.jsonl", "noisy-linear.jsonl"]
    start = time.process_time()
    assert len(RowStore(tmp_path).rows()) == 3000
    assert time.process_time() - start < 2.0
    assert all(store.find(row.key) == row for row in rows)


def test_a_full_disk_is_said_and_leaves_the_old_row(
    tmp_path: Path, make_row: MakeRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RowStore(tmp_path)
    store.write(make_row(**FAILED))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        for row in (make_row(), make_row(design="lowdim-sin")):
            with pytest.raises(StoreError, match=r"No space left on device\. Make room"):
                store.write(row)
    assert store.rows() == (make_row(**FAILED),)
    assert files(tmp_path) == ["demand.jsonl"]


def test_a_run_has_one_claim_which_ends_with_its_process(tmp_path: Path, make_row: MakeRow) -> None:
    store, key = RowStore(tmp_path), make_row().key
    mine = store.claim(key)
    assert mine is not None
    assert store.claim(key) is None
    assert store.is_claimed(key)
    store.release(mine)
    assert not store.is_claimed(key)
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"True\n"
        assert store.is_claimed(key)
        store.clean()
        assert store.is_claimed(key)
        process.kill()
        process.wait()
        assert not store.is_claimed(key)
        assert store.claim(key) is not None


def test_state_says_where_runs_stand(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path)
    done, failed = make_row(seed=0), make_row(seed=1, **FAILED)
    damaged, old = make_row(seed=2), make_row(seed=3, method_version=0)
    for row in (done, failed, damaged, old):
        store.write(row)
    damage(store, damaged)
    running, missing = make_row(seed=4).key, make_row(seed=3).key
    claim = store.claim(running)
    state = store.state([row.key for row in (done, failed, damaged)] + [running, missing, missing])
    assert claim is not None
    assert (state.done, state.failed, state.running) == ([done], [failed], [running])
    assert (state.missing, state.other) == ([damaged.key, missing], [old])
    assert "demand.jsonl, line 3 is damaged" in state.damaged[0]
    assert state.left == [failed.key, running, damaged.key, missing]


def test_cleaning_removes_what_killed_processes_left(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path)
    store.write(make_row(), make_row(seed=1, **FAILED))
    store.keep_plan(PLAN)
    claim = store.claim(make_row().key)
    assert claim is not None
    stray = [tmp_path / ".demand.jsonl-0123456789ab.tmp", tmp_path / ".running" / f"{'0' * 16}.lock"]
    for path in stray:
        path.write_text("")
        os.utime(path, (0, 0))
    assert store.clean() == 0
    assert not any(path.exists() for path in stray)
    assert store.is_claimed(make_row().key)
    assert store.clean(lambda row: row.status != "ok") == 1
    assert store.rows() == (make_row(),)
    assert store.plans() == (PLAN,)


def test_plans_are_kept_once_and_damage_is_repaired(tmp_path: Path) -> None:
    store, other = RowStore(tmp_path), replace(PLAN, name="another")
    for plan in (PLAN, other, PLAN):
        store.keep_plan(plan)
    assert store.plans() == (other, PLAN)
    path = tmp_path / "plans.jsonl"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(StoreError, match=r"damaged.*run its plan again.*bgmiv bench gc"):
        store.plans()
    with pytest.warns(BGMIVWarning, match="torn line"):
        store.keep_plan(other)
    store.keep_plan(PLAN)
    assert store.plans() == (other, PLAN)


def test_a_plan_of_another_version_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RowStore(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("bgmiv.bench.plan.nearest_preset", lambda method, preset: preset)
        store.keep_plan(Plan("later", "", (Sweep(["demand"], [100], [0.5], ["to-come"]),)))
    store.keep_plan(PLAN)
    assert store.plans() == (PLAN,)


def test_merging_takes_what_is_missing(tmp_path: Path, make_row: MakeRow) -> None:
    here, there = RowStore(tmp_path / "here"), RowStore(tmp_path / "there")
    for row in (make_row(seed=0), make_row(seed=1, **FAILED), make_row(seed=3)):
        here.write(row)
    for row in (make_row(seed=0, seconds=9.0), make_row(seed=1), make_row(seed=2), make_row(seed=3, **FAILED)):
        there.write(row)
    there.keep_plan(PLAN)
    assert here.merge(there) == 2
    assert here.merge(there) == 0
    assert [(row.seed, row.status, row.seconds) for row in here.rows()] == [(seed, "ok", 0.5) for seed in range(4)]
    assert here.plans() == (PLAN,)


def test_merging_refuses_contradiction_and_damage(tmp_path: Path, make_row: MakeRow) -> None:
    here, there = RowStore(tmp_path / "here"), RowStore(tmp_path / "there")
    here.write(make_row(seed=1))
    for row in (make_row(seed=0), make_row(seed=1, structural_mse=1.0)):
        there.write(row)
    with pytest.raises(StoreError, match="different results of the same run"):
        here.merge(there)
    damage(there, make_row(seed=1))
    with pytest.raises(StoreError, match="damaged"):
        here.merge(there)
    assert here.rows() == (make_row(seed=1),)
