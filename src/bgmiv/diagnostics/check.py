"""Checks of a fit on one scale of severity: numbers here, sentences in `readings`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import NormalDist
from textwrap import fill
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bgmiv.data.files import Tabular
from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Rows
from bgmiv.diagnostics.readings import CHECKS, Reading, html_table
from bgmiv.effects import Predictor
from bgmiv.errors import printable
from bgmiv.numerals import percent
from bgmiv.progress import HistoryRow

if TYPE_CHECKING:
    import pandas as pd

    from bgmiv.diagnostics.verdict import Verdict

__all__ = ["SEVERITIES", "Check", "Diagnosis", "Fitted", "HeldOutPredictions", "LinearEstimate", "Severity", "worst"]

Severity = Literal["good", "note", "doubtful", "failed"]

SEVERITIES: tuple[Severity, ...] = ("good", "note", "doubtful", "failed")
"""The one scale of all checks and verdicts, best first; a note is neither for nor against a fit."""


def worst(severities: Iterable[Severity]) -> Severity:
    """The worst of these; good if there are none."""
    return max(severities, key=SEVERITIES.index, default="good")


class HeldOutPredictions(NamedTuple):
    """g at rows of a fit: their positions in the data, and values `(n,)` or `(n, K)`."""

    rows: NDArray[np.int64]
    values: NDArray[np.float64]


class Fitted(Predictor, Protocol):
    """A fitted method, as far as checks need it."""

    @property
    def history(self) -> tuple[HistoryRow, ...]:
        """Losses along training; empty for methods in closed form."""

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of the held-out rows; None for methods that hold no rows out."""

    def held_out_predictions(self, data: IVData, rows: Rows, max_rows: int) -> HeldOutPredictions | None:
        """g at rows of the fit, each by a model not trained on the row; None if every model was trained on all."""

    def latent_usage(self, data: IVData, rows: Rows, seed: int) -> dict[str, float] | None:
        """How much each part of the latents matters to treatment, outcome and covariates; None without latents."""


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Args:
        key: its fixed name, such as "effective-f".
        severity: "good", "note" (neither for nor against), "doubtful" or "failed".
        numbers: the figures, by name.
        labels: names that the sentences need, such as the level of the treatment.

    Example:
        >>> check = Check("effective-f", "doubtful", {"effective_f": 14.2, "critical": 23.1, "instruments": 1.0})
        >>> check.title, check.value
        ('Instrument strength (effective F)', '14.2; critical value 23.1')
    """

    key: str
    severity: Severity
    numbers: dict[str, float]
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> Reading:
        """Title, value, reading and reference."""
        words, reference = CHECKS[self.key]
        return Reading(*words(self.severity, self.numbers, self.labels), reference)

    @property
    def title(self) -> str:
        """What was checked."""
        return self.text.title

    @property
    def value(self) -> str:
        """The main figures as shown."""
        return self.text.value

    @property
    def reading(self) -> str:
        """What the result means for the analysis, and what to do."""
        return self.text.reading

    @property
    def reference(self) -> str:
        """Where the method is published."""
        return self.text.reference

    def _repr_html_(self) -> str:
        return html_table(self.title, [(self.severity, self.value, self.reading)], ("severity", "value", "reading"))


@dataclass(frozen=True)
class LinearEstimate:
    """The linear effect of the treatment by two-stage least squares, and its Anderson-Rubin set.

    Args:
        coefficient, std_error: of the treatment, with robust (with groups, clustered) standard errors.
        lower, upper: the usual interval at `level`.
        ols, ols_std_error: the same by least squares, without the instruments.
        robust_set: the Anderson-Rubin set at `level`: disjoint intervals in increasing order, whose ends may be
            infinite; it may be empty.
        level: of the interval and the set.
        likelihood_ratio_set: such a set by the conditional likelihood ratio test, for errors with equal variance.
        tf: the ends of 2SLS's interval with the critical value of the tF procedure; None unless there is one instrument
            and the level is 95%.

    Example:
        >>> print(LinearEstimate(2.0, 0.1, 1.8, 2.2, 1.5, 0.05, ((1.8, 2.2),), 0.95))
        Linear effect by 2SLS: 2 (standard error 0.1), 95% interval [1.8, 2.2]; by OLS: 1.5 (0.05)
    """

    coefficient: float
    std_error: float
    lower: float
    upper: float
    ols: float
    ols_std_error: float
    robust_set: tuple[tuple[float, float], ...]
    level: float
    likelihood_ratio_set: tuple[tuple[float, float], ...] = ()
    tf: tuple[float, float] | None = None

    def __str__(self) -> str:
        """The estimates in one line."""
        return (
            f"Linear effect by 2SLS: {self.coefficient:.4g} (standard error {self.std_error:.3g}), "
            f"{percent(self.level)} interval [{self.lower:.4g}, {self.upper:.4g}]; "
            f"by OLS: {self.ols:.4g} ({self.ols_std_error:.3g})"
        )

    @property
    def ols_interval(self) -> tuple[float, float]:
        """The interval of the least-squares coefficient at `level`."""
        half = NormalDist().inv_cdf(0.5 + self.level / 2.0) * self.ols_std_error
        return self.ols - half, self.ols + half

    def _repr_html_(self) -> str:
        rows = [("two-stage least squares", self.coefficient, self.std_error, self.lower, self.upper)]
        rows += [("ordinary least squares", self.ols, self.ols_std_error, *self.ols_interval)]
        rows += [("Anderson-Rubin set", math.nan, math.nan, low, high) for low, high in self.robust_set]
        texts = [
            (name, *("" if math.isnan(number) else f"{number:.4g}" for number in numbers)) for name, *numbers in rows
        ]
        header = ("", "estimate", "standard error", f"{percent(self.level)}: from", "to")
        return html_table("Linear effect", texts, header)


@dataclass(frozen=True)
class Diagnosis(Tabular):
    """All checks of a fit.

    Args:
        checks: in reading order.
        linear: the linear estimate; None if there is no single linear effect (a treatment with several levels).

    Example:
        >>> import numpy as np
        >>> from bgmiv import TSLS
        >>> w, u, e = np.random.default_rng(0).normal(size=(3, 500))
        >>> model = TSLS().fit(2 * (w + u) - u + e, w + u, instruments=w)
        >>> found = model.diagnose()
        >>> found["effective-f"].severity, found.weak_instruments
        ('good', False)
    """

    checks: tuple[Check, ...]
    linear: LinearEstimate | None = None

    @property
    def severity(self) -> Severity:
        """The severity of the worst check."""
        return worst(check.severity for check in self.checks)

    @property
    def weak_instruments(self) -> bool:
        """Whether the effective F is below its critical value."""
        return any(check.key == "effective-f" and check.severity in ("doubtful", "failed") for check in self.checks)

    def __getitem__(self, key: str) -> Check:
        """The check with this key."""
        for check in self.checks:
            if check.key == key:
                return check
        raise KeyError(key)

    def records(self) -> list[dict[str, str]]:
        """One row per check: key, title, severity, value and reading."""
        names = ("key", "title", "severity", "value", "reading")
        return [{name: getattr(check, name) for name in names} for check in self.checks]

    def to_frame(self) -> pd.DataFrame:
        """The same as a table."""
        import pandas as pd

        return pd.DataFrame(self.records(), columns=["key", "title", "severity", "value", "reading"])

    def __str__(self) -> str:
        """Every check with its value, what it means, and its reference."""
        lines = [f"Diagnosis: {self.severity}"]
        if self.linear is not None:
            lines.append(fill(str(self.linear), 80))
        for check in self.checks:
            lines += ["", fill(f"[{check.severity}] {check.title}: {check.value}", 80)]
            for part in (check.reading, f"({check.reference})"):
                lines.append(fill(part, 80, initial_indent="    ", subsequent_indent="    "))
        return printable("\n".join(lines))

    def _repr_html_(self) -> str:
        linear = () if self.linear is None else (str(self.linear),)
        rows = [(c.title, c.severity, c.value, c.reading) for c in self.checks]
        return html_table(f"Diagnosis: {self.severity}", rows, ("check", "severity", "value", "reading"), linear)
