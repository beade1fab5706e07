"""How strong instruments are: the one rule by which they are called weak, and intervals too short."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bgmiv.data.ivdata import IVData
from bgmiv.diagnostics.check import Severity
from bgmiv.diagnostics.linear import LinearParts, critical_effective_f, first_stage, linear_columns
from bgmiv.errors import DataError

__all__ = ["VERY_WEAK", "Strength", "linear_strength", "strength_of"]

# With one instrument the usual 5% test holds its level above this F, however endogenous the treatment is.
_STRONG = 104.7
VERY_WEAK = 10.0
"""The old rule of thumb: below this effective F instruments have failed."""


class Strength(NamedTuple):
    """The strength of the instrument that a fit uses.

    Attributes:
        f: the effective F of Montiel Olea and Pflueger in a linear first stage; or, where that is larger, of the fit's
            own cross-fitted prediction as the one instrument, without the covariates' part of it, by the number of
            instruments.
        critical: an effective F above this shows, at the 5% level, that the bias is at most a tenth of its worst case.
        n_instruments: how many there are.

    Example:
        >>> [Strength(f, 23.1, 1).severity for f in (5.0, 15.0, 50.0)], Strength(50.0, 23.1, 1).usual_is_too_short
        (['failed', 'doubtful', 'good'], True)
    """

    f: float
    critical: float
    n_instruments: int

    @property
    def severity(self) -> Severity:
        """Good at the critical value and above, failed below 10, doubtful in between."""
        if self.f >= self.critical:
            return "good"
        return "doubtful" if self.f >= VERY_WEAK else "failed"

    @property
    def weak(self) -> bool:
        """Whether F is below its critical value."""
        return self.f < self.critical

    @property
    def usual_is_too_short(self) -> bool:
        """Whether a robust set is preferable to the usual interval: weak instruments, or one with an F below 104.7.

        With one instrument the robust set is as short as can be had, and the two agree to a few per cent above 104.7
        (Lee and others 2022). To go over to the usual interval at the critical value would cost coverage: samples with
        a large F by chance are those whose estimate is off. In the limit of many rows both together would hold in 92.5%
        at an expected F of 25 and errors with a correlation of 0.7.
        """
        return self.f < max(self.critical, _STRONG if self.n_instruments == 1 else 0.0)


def linear_strength(parts: LinearParts) -> Strength:
    """That of a linear first stage, of the weakest column of the treatment."""
    stage = parts.stages[parts.weakest]
    return Strength(stage.effective_f, stage.critical, stage.n_instruments)


def strength_of(data: IVData, fitted_f: float | None = None) -> Strength | None:
    """The strength of the instruments of a fit; None where there are none, or nothing can be computed of them.

    Args:
        data: the rows of the fit.
        fitted_f: the effective F of the first stage that the fit has used, if it knows one.
    """
    try:
        columns = linear_columns(data)
    except DataError:
        columns = None
    found = None
    if columns is not None:
        stages = [first_stage(column, columns) for column in columns.treatment.T]
        weakest = min(stages, key=lambda stage: stage.effective_f / stage.critical)
        found = Strength(weakest.effective_f, weakest.critical, weakest.n_instruments)
    n_instruments = data.instruments.shape[1]
    if fitted_f is None or not n_instruments or (found is not None and found.f >= fitted_f):
        return found
    return Strength(fitted_f, critical_effective_f(np.eye(n_instruments)), n_instruments)
