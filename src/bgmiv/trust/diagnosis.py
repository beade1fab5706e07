"""What is known for and against a causal reading of a fit: checks with a plain-language reading each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Check", "CheckLevel", "Diagnosis", "LinearEstimate"]

CheckLevel = Literal["good", "note", "doubtful", "bad"]

_ORDER: tuple[CheckLevel, ...] = ("good", "note", "doubtful", "bad")


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Args:
        key: a short name that does not change, such as "effective-f".
        title: what was looked at, in words.
        level: "good", "note" (says nothing for or against), "doubtful" or "bad".
        value: the figure as it is shown.
        reading: what it means for the analyst, in a sentence or two.
        reference: where it comes from.
        numbers: the figures behind it, by name.
    """

    key: str
    title: str
    level: CheckLevel
    value: str
    reading: str
    reference: str
    numbers: dict[str, float]


@dataclass(frozen=True)
class LinearEstimate:
    """The linear effect of the treatment by two-stage least squares, and what weak instruments leave of it.

    Args:
        coefficient, std_error: of the treatment, with robust errors (clustered, where there are groups).
        lower, upper: the usual interval at `level`.
        ols, ols_std_error: the same without the instruments.
        robust_set: the Anderson-Rubin set at `level`, disjoint intervals in rising order; ends may be infinite, and the
            set may be empty.
        level: of intervals and set.
    """

    coefficient: float
    std_error: float
    lower: float
    upper: float
    ols: float
    ols_std_error: float
    robust_set: tuple[tuple[float, float], ...]
    level: float


@dataclass(frozen=True)
class Diagnosis:
    """All that was looked at.

    Args:
        checks: in the order in which they are read.
        linear: the linear estimate; None where there is no single linear effect (a treatment of several levels).
    """

    checks: tuple[Check, ...]
    linear: LinearEstimate | None = None

    @property
    def level(self) -> CheckLevel:
        """That of the worst check.

        >>> Diagnosis(()).level
        'good'
        """
        return _ORDER[max((_ORDER.index(check.level) for check in self.checks), default=0)]

    def __getitem__(self, key: str) -> Check:
        """The check of this key."""
        for check in self.checks:
            if check.key == key:
                return check
        raise KeyError(key)
