"""The change of treatment that is asked about when nobody says which."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bgmiv.data.ivdata import IVData
from bgmiv.data.schema import BlockKind

__all__ = ["Change", "changes_of", "default_contrast"]


class Change(NamedTuple):
    """A change of the treatment.

    Attributes:
        t0, t1: numbers, or codes of levels.
        label: in words.
    """

    t0: float
    t1: float
    label: str


def changes_of(data: IVData) -> tuple[Change, ...]:
    """The changes that effects are compared over: the quartiles, 0 and 1, or each level and the first.

    Quartiles are rounded to three digits: nobody asks for the effect of 12.3456 years.

    Example:
        >>> data = IVData.from_arrays([1.0, 2.0, 4.0], [0.0, 1.0, 2.0], instruments=[3.0, 1.0, 2.0])
        >>> changes_of(data)
        (Change(t0=0.5, t1=1.5, label='from 0.5 to 1.5'),)
    """
    variable = data.schema.treatment
    if variable.kind is BlockKind.continuous:
        for share in (0.25, 0.1, 0.0):
            ends = np.quantile(np.asarray(data.treatment, np.float64), [share, 1.0 - share]).tolist()
            rounded = [float(f"{end:.3g}") for end in ends]
            t0, t1 = rounded if rounded[0] < rounded[1] else ends
            if t0 < t1:
                break
        return (Change(t0, t1, f"from {t0:.4g} to {t1:.4g}"),)
    names = variable.levels or (0, 1)
    return tuple(Change(0.0, float(i), f"from {names[0]!r} to {names[i]!r}") for i in range(1, len(names)))


def default_contrast(data: IVData) -> tuple[Any, Any]:
    """The first of these changes, with levels by name.

    Example:
        >>> kinds = ["low", "high", "low", "low", "high", "low"]
        >>> data = IVData.from_arrays([1, 2, 4, 3, 5, 6], kinds, instruments=[3, 1, 2, 4, 6, 5])
        >>> default_contrast(data)
        ('low', 'high')
    """
    change, levels = changes_of(data)[0], data.schema.treatment.levels
    return (levels[0], levels[1]) if levels else (change.t0, change.t1)
