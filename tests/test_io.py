"""Writing whole files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bgmiv._io import write_whole
from bgmiv.errors import StoreError

pytestmark = pytest.mark.quick


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    file, link = tmp_path / "data" / "page.html", tmp_path / "link.html"
    file.parent.mkdir()
    file.write_text("old")
    link.symlink_to(file)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert file.read_text() == "new"


def test_a_name_with_a_zero_byte_is_our_error() -> None:
    with pytest.raises(StoreError, match="cannot be written: embedded null"):
        write_whole(Path("a\0b"), b"new")


def test_a_pipe_is_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(StoreError, match="is no file, and is not replaced"):
        write_whole(pipe, b"new")
    assert pipe.is_fifo()
