from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from bgmiv.bench.files import put_new, put_over, read_checked
from bgmiv.errors import StoreError

KIND = "test 1"


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.json"
    assert put_new(path, KIND, {"a": 0.1, "b": [1, None, "é"]})
    assert read_checked(path, KIND) == {"a": 0.1, "b": [1, None, "é"]}
    assert entries(path.parent) == ["file.json"]


def test_of_two_writers_the_first_wins(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    assert put_new(path, KIND, {"a": 1})
    assert not put_new(path, KIND, {"a": 2})
    assert read_checked(path, KIND) == {"a": 1}
    assert entries(tmp_path) == ["file.json"]


def test_put_over_replaces(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    put_over(path, KIND, {"a": 1})
    put_over(path, KIND, {"a": 2})
    assert read_checked(path, KIND) == {"a": 2}
    assert entries(tmp_path) == ["file.json"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.EMLINK])
def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "file.json"
    assert put_new(path, KIND, {"a": 1})
    assert not put_new(path, KIND, {"a": 2})
    assert read_checked(path, KIND) == {"a": 1}
    assert entries(tmp_path) == ["file.json"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "not a file of a store"),
        ('{"kind": "test 1"}', "not a file of a store"),
        ('{"content": {}, "kind": "test 2", "sha256": ""}', "holds 'test 2'; this version reads 'test 1'"),
        ('{"content": [], "kind": "test 1", "sha256": ""}', "checksum"),
        ('{"content": {"a": NaN}, "kind": "test 1", "sha256": ""}', "checksum"),
        ('{"content": {"a": 1e999}, "kind": "test 1", "sha256": ""}', "checksum"),
    ],
)
def test_what_was_not_written_here_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(StoreError, match=words) as caught:
        read_checked(path, KIND)
    assert str(path) in str(caught.value)


def test_bytes_that_are_no_text_are_damage(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(StoreError, match="damaged"):
        read_checked(tmp_path / "file.json", KIND)


def test_the_same_values_in_another_form_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    put_new(path, KIND, {"a": 1})
    path.write_text(json.dumps(json.loads(path.read_text())))
    with pytest.raises(StoreError, match="not as it was written"):
        read_checked(path, KIND)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot read .*nowhere.json: No such file"):
        read_checked(tmp_path / "nowhere.json", KIND)


def test_what_json_cannot_hold_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        put_new(tmp_path / "file.json", KIND, {"a": float("nan")})
    assert entries(tmp_path) == []
