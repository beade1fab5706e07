"""The image designs: the demand design with the customer group seen only as a picture of a digit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from bgmiv.data.ivdata import IVData
from bgmiv.designs.base import StructuralGrid, stream
from bgmiv.designs.demand import GROUPS, DemandDraw, demand, demand_grid, draw_demand, price_support
from bgmiv.errors import ConfigError

if TYPE_CHECKING:
    from bgmiv.designs.mnist_files import MnistImages

__all__ = ["ImageSet", "MnistDesign", "MnistHDDesign"]

ImageSet = Literal["mnist", "digits"]


class _Stream(IntEnum):
    """Spawn keys of this module's own: pictures and nuisance never share draws with S, T, C, U or η."""

    TRAINING_IMAGE = 500
    GRID_IMAGE = 501
    TRAINING_NUISANCE = 502
    GRID_NUISANCE = 503


@dataclass(frozen=True)
class MnistDesign:
    """Demand with a picture of the digit S in place of the group S.

    Every row of a sample shows a random training picture of its digit, every grid point a random test picture: no
    picture of the grid is ever trained on. Both draws are with replacement, from random streams of their own. The
    pictures are fetched when a sample or the grid is first asked for (``bgmiv data mnist`` does it beforehand).

    Arguments
    ---------
    images : "mnist", or "digits" for scikit-learn's small digits scaled up, which need no network.
    feature_seed : the seed of the grid's pictures.

    Example
    -------
    >>> design = MnistDesign(images="digits")
    >>> data = design.sample(50, rho=0.5, seed=0)
    >>> data.covariates.shape, data.schema.blocks[1].shape, design.grid().covariates["image"].shape
    ((50, 785), (28, 28, 1), (2800, 28, 28))
    """

    images: ImageSet = "mnist"
    feature_seed: int = 42

    def __post_init__(self) -> None:
        _check(self.images, self.feature_seed)

    @property
    def name(self) -> str:
        """``"mnist"``."""
        return "mnist"

    def sample(self, n: int, rho: float, seed: int) -> IVData:
        """``n`` rows: as the demand design's with the same seed, the group replaced by a training picture of it."""
        draw = draw_demand(n, rho, seed)
        return _data(draw, {"time": draw.time, "image": _training_images(self.images, draw, seed)})

    def grid(self) -> StructuralGrid:
        """The demand design's grid with a test picture at each of the 2,800 points.

        ``in_support`` speaks of price and season, as in the demand design.
        """
        return _grid(self.images, self.feature_seed)


@dataclass(frozen=True)
class MnistHDDesign:
    """:class:`MnistDesign` with independent N(0, 1) covariates appended, which decide nothing.

    Arguments
    ---------
    nuisance_dim : how many; the paper's 215 make 1,000 covariates in all.
    images : as :class:`MnistDesign`'s.
    feature_seed : the seed of the grid's pictures and nuisance covariates.

    Example
    -------
    >>> data = MnistHDDesign(images="digits").sample(50, rho=0.5, seed=0)
    >>> data.covariates.shape, [str(block.kind) for block in data.schema.blocks]
    ((50, 1000), ['continuous', 'image', 'vector'])
    """

    nuisance_dim: int = 215
    images: ImageSet = "mnist"
    feature_seed: int = 42

    def __post_init__(self) -> None:
        _check(self.images, self.feature_seed)
        if self.nuisance_dim < 1:
            raise ConfigError(f"nuisance_dim is {self.nuisance_dim}; choose 1 or more")

    @property
    def name(self) -> str:
        """``"mnist-hd"``."""
        return "mnist-hd"

    def sample(self, n: int, rho: float, seed: int) -> IVData:
        """``n`` rows: as :class:`MnistDesign`'s with the same seed, nuisance appended."""
        draw = draw_demand(n, rho, seed)
        return _data(
            draw,
            {
                "time": draw.time,
                "image": _training_images(self.images, draw, seed),
                "nuisance": stream(seed, _Stream.TRAINING_NUISANCE).normal(size=(n, self.nuisance_dim)),
            },
        )

    def grid(self) -> StructuralGrid:
        """:class:`MnistDesign`'s grid with fresh nuisance at each point."""
        plain = _grid(self.images, self.feature_seed)
        nuisance = stream(self.feature_seed, _Stream.GRID_NUISANCE).normal(size=(len(plain), self.nuisance_dim))
        return StructuralGrid(
            plain.treatment, {**plain.covariates, "nuisance": nuisance}, plain.truth, plain.in_support
        )


def _check(images: str, feature_seed: int) -> None:
    if images not in get_args(ImageSet):
        raise ConfigError(f"images is {images!r}; choose 'mnist' or 'digits'")
    if feature_seed < 0:
        raise ConfigError(f"feature_seed is {feature_seed}; choose an integer of 0 or more")


def _pictures(images: ImageSet) -> MnistImages:
    # Imported here: the other designs need neither what fetches nor what stands in.
    if images == "digits":
        from bgmiv.designs.stand_in import stand_in

        return stand_in()
    from bgmiv.designs.mnist_files import load_mnist

    return load_mnist()


def _training_images(images: ImageSet, draw: DemandDraw, seed: int) -> np.ndarray:
    pictures = _pictures(images)
    rng = stream(seed, _Stream.TRAINING_IMAGE)
    return _pick(draw.group, pictures.train_images, pictures.train_labels, rng)


def _pick(group: np.ndarray, images: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A picture of each row's digit, all of that digit equally likely; one number a row, whatever the digit."""
    chance = rng.random(len(group))
    picked = np.empty(len(group), dtype=np.intp)
    for digit in range(1, GROUPS + 1):
        rows, of_digit = group == digit, np.flatnonzero(labels == digit)
        picked[rows] = of_digit[(chance[rows] * len(of_digit)).astype(np.intp)]
    return images[picked]


def _data(draw: DemandDraw, covariates: dict[str, np.ndarray]) -> IVData:
    kinds = {"time": "continuous", "image": "image", "nuisance": "vector"}
    return IVData.from_arrays(
        {"demand": draw.outcome},
        {"price": draw.price},
        instruments={"cost": draw.cost},
        covariates=covariates,
        blocks={name: kinds[name] for name in covariates},
        treatment_kind="continuous",
    )


def _grid(images: ImageSet, feature_seed: int) -> StructuralGrid:
    price, time, group = demand_grid()
    low, high = price_support(time)
    pictures = _pictures(images)
    rng = stream(feature_seed, _Stream.GRID_IMAGE)
    return StructuralGrid(
        treatment=price,
        covariates={"time": time, "image": _pick(group, pictures.test_images, pictures.test_labels, rng)},
        truth=demand(price, time, group),
        in_support=(low <= price) & (price <= high),
    )
