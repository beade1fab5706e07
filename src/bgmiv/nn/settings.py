"""Settings of what networks see of covariates, which need no network library, and checks of settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from sys import float_info
from typing import Literal

from bgmiv.data.schema import BlockKind, CovariateBlock
from bgmiv.errors import ConfigError

__all__ = ["FeatureConfig", "ImageConfig", "Schedule", "check_bounds", "check_choice"]

Schedule = Literal["constant", "cosine"]
"""How a step size changes in training: not at all, or to zero along a cosine."""


def check_bounds(config: object, *positive: str, **limits: float | tuple[float, float]) -> None:
    """Refuse fields of a config that are not finite, or out of bounds; None passes, and a tuple if all its numbers do.

    Args:
        config: has the fields.
        positive: names of fields that must be above 0.
        limits: the smallest value of a field, or the smallest and the largest.

    Example:
        >>> check_bounds(ImageConfig(dropout=0.5), dropout=(0, 0.4))
        Traceback (most recent call last):
        bgmiv.errors.ConfigError: dropout must lie between 0 and 0.4, got 0.5.
    """
    for name in (*positive, *limits):
        value, limit, rule = getattr(config, name), limits.get(name, 0), "be above 0"
        low, high = limit if isinstance(limit, tuple) else (limit, float_info.max)
        if name in limits:
            rule = f"lie between {low} and {high}" if isinstance(limit, tuple) else f"be at least {low}"
        if value == ():
            raise ConfigError(f"{name} must hold at least one number.")
        for number in value if isinstance(value, tuple) else (value,):
            if number is None or low < number <= high or (name in limits and number == low):
                continue
            raise ConfigError(f"{name} must {rule if isfinite(number) else 'be finite'}, got {value}.")


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
        check_bounds(self, filters=1, conv_features=1, dense_features=1, dropout=(0, 0.99), shift=0, noise=0)
        if len(self.filters) != 2:
            raise ConfigError(f"filters of images must hold 2 numbers, got {self.filters}.")
        if self.shift % 1:
            raise ConfigError(f"shift must be a whole number of pixels, got {self.shift}.")


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
        check_bounds(self, dropout=(0, 0.99), vector_noise=0, narrow_vector=0, score_noise=0)
        check_bounds(self, vector_features=1, nuisance_features=1, score_features=1)

    def is_narrow(self, block: CovariateBlock) -> bool:
        """Whether a block is a vector that is taken as columns."""
        return block.kind is BlockKind.vector and block.width <= self.narrow_vector
