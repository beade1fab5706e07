"""Pictures reduced to the leading principal scores of their scattering features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgmiv.data.batching import unique_rows
from bgmiv.data.principal import UNIT_DEVIATION, Projection, gram_of, projection_on
from bgmiv.data.scattering import Scattering
from bgmiv.errors import ConfigError

__all__ = ["PictureProjection", "PictureScores"]

# Features of this many pictures at once, so that memory stays bounded.
_AT_ONCE = 2048
_MOST_COMPONENTS = 256


class PictureProjection(NamedTuple):
    """Scores of each picture: the projection of its scattering features.

    Args:
        scattering: how pictures become features.
        shape: height, width and channels.
        projection: of the features.
    """

    scattering: Scattering
    shape: tuple[int, ...]
    projection: Projection

    @property
    def n_components(self) -> int:
        """Number of scores."""
        return self.projection.n_components

    def transform(self, pixels: NDArray[Any]) -> NDArray[np.float32]:
        """The scores (n, k) of flat pictures (n, d); equal pictures are looked at once."""
        unique, inverse = unique_rows(pixels)
        parts = [
            self.projection.transform(self.scattering.features(unique[start : start + _AT_ONCE], self.shape))
            for start in range(0, len(unique), _AT_ONCE)
        ]
        return np.concatenate(parts)[inverse]


@dataclass(frozen=True)
class PictureScores:
    """Keep the leading principal scores of pictures' scattering features, each divided by its deviation.

    Args:
        scattering: how pictures become features.
        components: how many scores are kept, or as many as there are pictures or features if these are fewer; None:
            twice the root of the number of pictures, 256 at most. More pictures tell more of them from noise.
        most_rows: the components are those of this many pictures at most, drawn by the seed.
        seed: of the pictures drawn.

    >>> pictures = np.random.default_rng(0).random((50, 16 * 16))
    >>> projection = PictureScores(components=5).fit(pictures, (16, 16, 1))
    >>> projection.transform(pictures[:3]).shape
    (3, 5)
    """

    scattering: Scattering = Scattering()
    components: int | None = None
    most_rows: int = 3000
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers without a meaning."""
        if (self.components is not None and self.components < 1) or self.most_rows < 2 or self.seed < 0:
            raise ConfigError(
                "picture scores need components >= 1 (or None), most_rows >= 2 and seed >= 0, got "
                f"{self.components}, {self.most_rows} and {self.seed}."
            )

    def fit(self, pixels: NDArray[Any], shape: tuple[int, ...]) -> PictureProjection:
        """Find the leading components of flat pictures (n, height · width · channels)."""
        wanted = self.components or min(round(2.0 * len(pixels) ** 0.5), _MOST_COMPONENTS)
        if len(pixels) > self.most_rows:
            rng = np.random.default_rng(self.seed)
            pixels = pixels[np.sort(rng.choice(len(pixels), self.most_rows, replace=False))]
        features = self.scattering.features(pixels, shape)
        standard = UNIT_DEVIATION.fit(features)
        gram = gram_of(features, standard)
        count = min(wanted, len(gram))
        projection = projection_on(features, standard, gram, count, whiten=True, above_noise=count)
        return PictureProjection(self.scattering, shape, projection)
