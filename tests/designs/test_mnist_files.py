"""The files of MNIST: where they are found, how they are checked, and what an error says; small files stand in."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from bgmiv.designs import mnist
from bgmiv.designs.mnist import load_mnist, store_mnist
from bgmiv.errors import FetchError, StoreError

NAMES = tuple(mnist._FILES)
SHAPES = ((70, 28, 28), (70,), (70, 28, 28), (70,))
ARRAYS = tuple(np.arange(np.prod(shape), dtype=np.int64).reshape(shape).astype(np.uint8) % 10 for shape in SHAPES)
CONTENTS = {
    name: bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()
    for name, array in zip(NAMES, ARRAYS, strict=True)
}
PACKED = {f"{name}.gz": gzip.compress(content) for name, content in CONTENTS.items()}


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Small files with their own checksums, an empty cache, and no network."""
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENTS.items()}
    monkeypatch.setattr(mnist, "_FILES", sums)
    monkeypatch.setattr(mnist, "_MIRRORS", ("http://127.0.0.1:9/mnist", "http://127.0.0.1:9/other"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("BGMIV_DATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BGMIV_MNIST", raising=False)
    return tmp_path / "cache" / "mnist"


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folder of a server that is the second mirror."""
    folder = write(tmp_path / "served", PACKED)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(mnist, "_MIRRORS", ("http://127.0.0.1:9/mnist", f"http://127.0.0.1:{server.server_port}"))
    yield folder
    server.shutdown()
    server.server_close()


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("form", ["plain", "gz"])
def test_local_files_in_every_form(form: str, tmp_path: Path, cache: Path) -> None:
    place = write(tmp_path / "mine", PACKED if form == "gz" else CONTENTS)
    found = load_mnist(place)
    for one, two in zip(found, ARRAYS, strict=True):
        np.testing.assert_array_equal(one, two)
        assert one.dtype == np.uint8
        assert not one.flags.writeable
    assert not cache.exists()
    assert store_mnist(place) == cache
    assert sorted(path.name for path in cache.iterdir()) == sorted(NAMES)


def test_fetched_once_from_the_mirror_that_works_and_again_if_damaged(mirror: Path, cache: Path) -> None:
    np.testing.assert_array_equal(load_mnist().train_images, ARRAYS[0])
    assert {path.name for path in cache.iterdir()} == set(NAMES)
    (mirror / f"{NAMES[0]}.gz").unlink()
    np.testing.assert_array_equal(load_mnist().test_labels, ARRAYS[3])
    (cache / NAMES[1]).write_bytes(b"damaged")
    np.testing.assert_array_equal(load_mnist().train_labels, ARRAYS[1])


def test_a_wrong_file_on_a_mirror_is_refused(mirror: Path) -> None:
    (mirror / f"{NAMES[2]}.gz").write_bytes(PACKED[f"{NAMES[3]}.gz"])
    with pytest.raises(FetchError, match=r"127.0.0.1:\d+/.*\.gz has a wrong checksum"):
        load_mnist()


def test_without_a_network_the_error_says_what_to_download_and_where_to_put_it(cache: Path) -> None:
    with pytest.raises(FetchError) as caught:
        load_mnist()
    for words in (
        *PACKED,
        "127.0.0.1:9/mnist (<urlopen error [Errno 111] Connection refused>)",
        "127.0.0.1:9/other",
        str(cache),
        "--path",
    ):
        assert words in str(caught.value)


def test_bad_local_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "mine", {NAMES[0]: CONTENTS[NAMES[0]]})
    with pytest.raises(StoreError, match=rf"mine lacks {NAMES[1]} "):
        load_mnist(folder)
    write(folder, {**CONTENTS, NAMES[2]: b"other"})
    monkeypatch.setenv("BGMIV_MNIST", str(folder))
    with pytest.raises(StoreError, match=rf"{folder / NAMES[2]} has a wrong checksum: expected SHA-256 "):
        load_mnist()
    (folder / NAMES[2]).unlink()
    write(folder, {f"{NAMES[2]}.gz": PACKED[f"{NAMES[2]}.gz"][:40]})
    with pytest.raises(StoreError, match=rf"{NAMES[2]}\.gz is damaged"):
        load_mnist()


def test_an_unusable_cache_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BGMIV_DATA_CACHE", str(tmp_path / "file"))
    with pytest.raises(StoreError, match=r"file is a file; name a folder.*BGMIV_DATA_CACHE"):
        load_mnist()
