"""Effects read off a stored curve."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgmiv.effects import Answer, Interval, Source, interval_of
from bgmiv.errors import DataError
from bgmiv.show.analysis import Curve

__all__ = ["contrast"]


def contrast(curve: Curve, t0: float, t1: float, level: float) -> Interval:
    """The average effect of t1 against t0, both as the curve has them, between its points by straight lines.

    `in_support` is the smaller one of the two treatments' shares. A method without intervals has one of no width and
    no sources.

    Raises:
        DataError: a treatment lies outside the curve.

    Example:
        >>> line = Curve("everyone", 10, (0.0, 1.0, 2.0), (0.0, 2.0, 4.0), (), (), (1.0, 1.0, 0.5))
        >>> found = contrast(line, 0.5, 1.5, 0.95)
        >>> found.estimate, found.in_support
        (2.0, 0.75)
    """
    at = np.asarray([t0, t1], np.float64)
    low, high = curve.treatment[0], curve.treatment[-1]
    if at.min() < low or at.max() > high:
        raise DataError(
            f"the stored curve goes from {low:.4g} to {high:.4g}. For other treatments, give the people asked about."
        )

    def change(values: Any) -> NDArray[np.float64]:
        before, after = np.interp(at, curve.treatment, values)
        return np.asarray(after - before)

    sources = tuple(
        Source(source.name, np.asarray([change(row) for row in source.deviations]), source.freedom)
        for source in curve.sources
    )
    share = float(np.interp(at, curve.treatment, curve.in_support).min())
    return interval_of(Answer(change(curve.estimate), sources), level, in_support=share)
