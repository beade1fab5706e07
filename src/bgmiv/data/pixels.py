"""Pixels in one unit, whatever unit they come in."""

from __future__ import annotations

from bgmiv.data.checks import FloatArray, counted
from bgmiv.errors import DataError

__all__ = ["to_unit_range"]

_LIGHTEST = 255.0


def to_unit_range(pixels: FloatArray, block: str, *, integers: bool) -> None:
    """Bring the pixels of one block of images to [0, 1], in place.

    Pixels come from 0 to 255 or from 0 to 1, and both give the same numbers: if any of them exceeds 1, all are divided
    by 255, and otherwise they stay as they are. Two cases need a word: floating-point images from 0 to 255 that are
    all but black (none of the pixels passed together exceeds 1) are read as from 0 to 1, and integers that are all 0
    or 1 are refused, as they may be either.

    Args:
        pixels: (n, height · width · channels), finite.
        block: the block's name, for messages.
        integers: whether they came as integers.

    Raises:
        DataError: a pixel is below 0 or above 255, or integers are 0 and 1 only.

    >>> import numpy as np
    >>> grey, unit = np.array([[0.0, 51.0, 255.0]]), np.array([[0.0, 0.2, 1.0]])
    >>> to_unit_range(grey, "photo", integers=True)
    >>> to_unit_range(unit, "photo", integers=False)
    >>> bool((grey == unit).all())
    True
    """
    if pixels.size == 0:
        return
    lowest, highest = pixels.min(), pixels.max()
    if lowest < 0 or highest > _LIGHTEST:
        what, bad = ("below 0", pixels.min(axis=1) < 0) if lowest < 0 else ("above 255", pixels.max(axis=1) > _LIGHTEST)
        raise DataError(
            f"covariates block {block!r} holds images with pixels {what} in {counted(bad, 'row')}. Pass pixels "
            "from 0 to 255 or from 0 to 1, or declare the block as 'vector' if these are not pixels."
        )
    if integers and highest == 1:
        raise DataError(
            f"covariates block {block!r} holds images whose pixels are the integers 0 and 1, which may be black and "
            "white or two shades of black. Pass them as booleans or floats if 1 is white, or divide them by 255."
        )
    if highest > 1:
        pixels /= _LIGHTEST
