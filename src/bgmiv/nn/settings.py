"""What networks see of covariates: settings alone, which need no network library."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from bgmiv.data.schema import BlockKind, CovariateBlock
from bgmiv.errors import ConfigError

__all__ = ["FeatureConfig", "ImageConfig", "check_bounds", "check_choice", "check_widths"]


def check_widths(config: object, *names: str, what: str = "") -> None:
    """Refuse layers without units in these fields of a config; `what` it describes stands in the message."""
    for name in names:
        widths = getattr(config, name)
        if widths is not None and any(width < 1 for width in widths):
            raise ConfigError(f"{name}{what} must hold positive widths, got {widths}.")


def check_bounds(config: object, *positive: str, **minima: float) -> None:
    """Refuse fields of a config that are not above 0 or below their minimum; None passes."""
    for name in positive:
        if getattr(config, name) <= 0:
            raise ConfigError(f"{name} must be above 0, got {getattr(config, name)}.")
    for name, minimum in minima.items():
        value = getattr(config, name)
        if value is not None and value < minimum:
            raise ConfigError(f"{name} must be at least {minimum}, got {value}.")


def check_choice(config: object, name: str, *choices: str) -> None:
    """Refuse a field that is none of the choices."""
    if getattr(config, name) not in choices:
        raise ConfigError(f"{name} is {' or '.join(map(repr, choices))}, got {getattr(config, name)!r}.")


@dataclass(frozen=True)
class ImageConfig:
    """How networks see image blocks; the defaults are the paper's.

    Args:
        features: "conv", the paper's two convolutions, or "dense", layers on the flat pixels.
        filters: filters of the two convolutions.
        conv_features: widths of the dense layers behind them.
        dense_features: widths of the dense layers on flat pixels.
        dropout: share of pooled values dropped in training, before the dense layers of the convolutions.
        shift: in training an image is moved by up to this many pixels either way, in both directions; what comes in
            from outside is zero.
        noise: standard deviation of the Gaussian noise added to pixels in training.
    """

    features: Literal["conv", "dense"] = "conv"
    filters: tuple[int, int] = (64, 64)
    conv_features: tuple[int, ...] = (128, 64)
    dense_features: tuple[int, ...] = (512, 128, 64)
    dropout: float = 0.1
    shift: int = 0
    noise: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        check_choice(self, "features", "conv", "dense")
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"dropout of images must lie in [0, 1), got {self.dropout}.")
        if isinstance(self.shift, bool) or not isinstance(self.shift, int) or self.shift < 0:
            raise ConfigError(f"shift of images must be a whole number of pixels, 0 or more, got {self.shift!r}.")
        check_bounds(self, noise=0)
        if len(self.filters) != 2:
            raise ConfigError(f"filters of images must hold 2 numbers, got {self.filters}.")
        for name in ("conv_features", "dense_features"):
            if not getattr(self, name):
                raise ConfigError(f"{name} of images must hold positive widths, got ().")
        check_widths(self, "filters", "conv_features", "dense_features", what=" of images")


@dataclass(frozen=True)
class FeatureConfig:
    """How networks see covariates; the defaults are the paper's.

    Args:
        vector_features: hidden and output width of a vector block's features.
        dropout: dropout rate in the vector features.
        vector_noise: standard deviation of the Gaussian noise added to a vector block before it is encoded in training.
        block_noise: the same for vector blocks by name, in place of `vector_noise`.
        narrow_vector: vector blocks up to this width are taken as columns (with their noise), as continuous ones are.
        images: how image blocks are seen.
        nuisance_features: hidden and output width of a vector block's features beside an image block (the paper's
            MNIST-HD); None: `vector_features` there as well.
        score_features: hidden and output width of the features of images that were reduced to scores.
        score_noise: standard deviation of the Gaussian noise added to scores before they are encoded in training. Few
            outputs, dropout and much noise keep the encoder from memorising pictures.
    """

    vector_features: tuple[int, int] = (128, 64)
    dropout: float = 0.1
    vector_noise: float = 0.0
    block_noise: tuple[tuple[str, float], ...] = ()
    narrow_vector: int = 0
    images: ImageConfig = field(default_factory=ImageConfig)
    nuisance_features: tuple[int, int] | None = (64, 32)
    score_features: tuple[int, int] = (128, 4)
    score_noise: float = 0.7

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"dropout must lie in [0, 1), got {self.dropout}.")
        check_bounds(self, vector_noise=0, narrow_vector=0, score_noise=0)
        if any(noise < 0.0 for _, noise in self.block_noise):
            raise ConfigError(f"block_noise must be at least 0, got {self.block_noise}.")
        check_widths(self, "vector_features", "nuisance_features", "score_features")

    def is_narrow(self, block: CovariateBlock) -> bool:
        """Whether a block is a vector that is taken as columns."""
        return block.kind is BlockKind.vector and block.width <= self.narrow_vector
