"""Small pictures of digits that need no network: a stand-in for MNIST."""

from __future__ import annotations

from functools import cache

import numpy as np

from bgmiv.designs.mnist_files import MnistImages
from bgmiv.errors import MissingExtraError

__all__ = ["stand_in"]

_SIDE = 28
_TEST_PICTURES = 450


@cache
def stand_in() -> MnistImages:
    """scikit-learn's 1,797 digits of 8×8 pixels, scaled to 28×28 between pixels; the last 450 are the test part.

    For tests and for machines that reach nothing: the pictures are fewer and plainer than MNIST's, and errors measured
    on them say nothing about MNIST.

    Raises
    ------
    MissingExtraError : scikit-learn is not installed.

    Example
    -------
    >>> digits = stand_in()
    >>> digits.train_images.shape, digits.test_images.shape, digits.train_images.dtype
    ((1347, 28, 28), (450, 28, 28), dtype('uint8'))
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtraError(
            "images='digits' needs scikit-learn, whose digits it shows: pip install scikit-learn"
        ) from error
    digits = load_digits()
    weights = _between(digits.images.shape[1], _SIDE)
    grey = weights @ (digits.images * (255.0 / 16.0)) @ weights.T
    images, labels = np.rint(grey).astype(np.uint8), digits.target.astype(np.uint8)
    for array in (images, labels):
        array.setflags(write=False)
    return MnistImages(
        images[:-_TEST_PICTURES], labels[:-_TEST_PICTURES], images[-_TEST_PICTURES:], labels[-_TEST_PICTURES:]
    )


def _between(few: int, many: int) -> np.ndarray:
    """The (many, few) weights of linear interpolation between the centres of pixels."""
    position = np.clip((np.arange(many) + 0.5) * few / many - 0.5, 0.0, few - 1.0)
    return np.maximum(0.0, 1.0 - np.abs(position[:, None] - np.arange(few)))
