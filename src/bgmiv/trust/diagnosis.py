"""What is known for and against a causal reading of a fit: checks with a plain-language reading each."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import fill
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

    @property
    def weak_instruments(self) -> bool:
        """Whether the instruments are too weak to rely on: the effective F is below its critical value.

        >>> Diagnosis(()).weak_instruments
        False
        """
        return any(check.key == "effective-f" and check.level in ("doubtful", "bad") for check in self.checks)

    def __str__(self) -> str:
        """A table of the checks, then what each means.

        >>> print(Diagnosis((Check("robust-f", "First-stage F", "bad", "3.1", "Too weak.", "Someone (1997)", {}),)))
        Diagnosis: bad
        <BLANKLINE>
        First-stage F  bad  3.1
        <BLANKLINE>
        First-stage F: bad
          Too weak.
          (Someone (1997))
        """
        title, level = (max((len(getattr(c, name)) for c in self.checks), default=0) for name in ("title", "level"))
        lines = [f"Diagnosis: {self.level}", ""]
        if self.linear is not None:
            lines += [_linear_text(self.linear), ""]
        lines += [f"{check.title:{title}}  {check.level:{level}}  {check.value}" for check in self.checks]
        for check in self.checks:
            lines += ["", f"{check.title}: {check.level}", *_wrapped(check.reading), *_wrapped(f"({check.reference})")]
        return "\n".join(lines)

    def __getitem__(self, key: str) -> Check:
        """The check of this key."""
        for check in self.checks:
            if check.key == key:
                return check
        raise KeyError(key)


def _linear_text(estimate: LinearEstimate) -> str:
    return (
        f"Linear effect by 2SLS {estimate.coefficient:.4g} (standard error {estimate.std_error:.3g}), "
        f"{estimate.level:.0%} interval [{estimate.lower:.4g}, {estimate.upper:.4g}]; "
        f"by least squares {estimate.ols:.4g} ({estimate.ols_std_error:.3g})"
    )


def _wrapped(text: str) -> list[str]:
    return fill(text, 100, initial_indent="  ", subsequent_indent="  ").splitlines()
