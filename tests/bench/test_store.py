from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bgmiv.bench.plan import RunSpec
from bgmiv.bench.store import Row, RowStore
from bgmiv.errors import StoreError

MakeRow = Callable[..., Row]


def test_what_is_written_is_read(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path / "new" / "store")
    row = make_row()
    path = store.write(row)
    assert path.name == f"{row.spec.run_id}.json"
    assert store.read(row.spec) == row
    assert store.rows() == (row,)
    assert [file.name for file in store.folder.iterdir()] == [path.name]


def test_a_new_row_replaces_the_old_one(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path)
    store.write(make_row(status="failed", error="no", structural_mse=None))
    store.write(make_row())
    assert store.rows() == (make_row(),)


def test_absent_row_and_absent_folder(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path / "nowhere")
    assert store.read(make_row().spec) is None
    with pytest.raises(StoreError, match="not a folder"):
        store.rows()


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="is a file"):
        RowStore(tmp_path / "file")


def test_rows_are_ordered_and_foreign_files_ignored(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path)
    rows = [make_row(n=n, seed=seed) for n in (500, 100) for seed in (1, 0)]
    for row in rows:
        store.write(row)
    (tmp_path / "notes.json").write_text("not a row")
    (tmp_path / ".0123456789abcdef-x.tmp").write_text("torn")
    assert [(row.n, row.seed) for row in store.rows()] == [(100, 0), (100, 1), (500, 0), (500, 1)]


@pytest.mark.parametrize("kept", [0, 1, 40, -2])
def test_a_torn_file_is_noticed(tmp_path: Path, make_row: MakeRow, kept: int) -> None:
    store = RowStore(tmp_path)
    path = store.write(make_row())
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(StoreError, match="damaged; delete it") as caught:
        store.rows()
    assert path.name in str(caught.value)


def test_a_changed_number_is_noticed(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path)
    path = store.write(make_row())
    path.write_text(path.read_text().replace("9000.0", "1.0"))
    with pytest.raises(StoreError, match="checksum"):
        store.read(make_row().spec)


def test_a_renamed_file_is_noticed(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path)
    path = store.write(make_row())
    path.rename(tmp_path / f"{'0' * 16}.json")
    with pytest.raises(StoreError, match="name"):
        store.rows()


def test_another_format_is_refused(tmp_path: Path, make_row: MakeRow) -> None:
    store = RowStore(tmp_path)
    path = store.write(make_row())
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(StoreError, match="format 99"):
        store.rows()


def test_a_crash_while_writing_leaves_the_old_row(
    tmp_path: Path, make_row: MakeRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RowStore(tmp_path)
    store.write(make_row())

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(StoreError, match="No space left"):
        store.write(make_row(structural_mse=1.0))
    assert store.rows() == (make_row(),)
    assert len(list(tmp_path.iterdir())) == 1


def test_row_gives_back_its_spec(make_row: MakeRow) -> None:
    assert make_row().spec == RunSpec("demand", 100, 0.5, "tsls", "default", 0)
