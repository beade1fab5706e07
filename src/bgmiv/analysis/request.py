"""What is asked of an analysis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from bgmiv.errors import ConfigError
from bgmiv.intervals import check_level

__all__ = ["AnalysisArguments", "AnalysisRequest"]


class AnalysisArguments(TypedDict, total=False):
    """The arguments of an estimator's `analysis`, and of all that shows one; None stands for the default."""

    by: str | Sequence[str] | Mapping[str, Any] | None
    treatments: Any
    t0: Any
    t1: Any
    level: float | None
    compare: Mapping[str, Any] | None
    title: str | None
    source: str | None
    no_instrument: bool | None
    units: str | None


@dataclass(frozen=True)
class AnalysisRequest:
    """Everything that decides what an analysis of a fit holds; equal requests have equal answers.

    The fields are the arguments of `analysis`, where None stands for the default. `compare` has only the names of the
    other methods. `labels` has one label a row for names in `by` that are no covariates; analyses do not keep them.
    `units` is what the rows are called, such as "flights".
    """

    by: tuple[str, ...] | None = None
    treatments: tuple[Any, ...] | None = None
    t0: Any = None
    t1: Any = None
    level: float = 0.95
    no_instrument: bool = True
    title: str = ""
    source: str = ""
    compare: tuple[str, ...] = ()
    labels: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    units: str = "rows"

    @classmethod
    def of(
        cls,
        *,
        by: Any = None,
        treatments: Any = None,
        t0: Any = None,
        t1: Any = None,
        level: float = 0.95,
        no_instrument: bool = True,
        title: str | None = None,
        source: str = "",
        compare: Any = (),
        units: str = "rows",
    ) -> AnalysisRequest:
        """A request from arguments as users give them; `by` may be a mapping of names to one label a row.

        Raises:
            ConfigError: only one of t0 and t1 is given, the level is not between 0 and 1, or the units have no name.

        Example:
            >>> AnalysisRequest.of(by="region", level=0.9) == AnalysisRequest.of(by=["region"], level=0.9)
            True
        """
        check_level(level)
        if (t0 is None) != (t1 is None):
            raise ConfigError("t0 and t1 are given together or not at all.")
        if not isinstance(units, str) or not units.strip():
            raise ConfigError(f"units must be what the rows are called, such as 'flights', got {units!r}.")
        labels: tuple[tuple[str, tuple[Any, ...]], ...] = ()
        if isinstance(by, Mapping):
            labels = tuple((str(name), tuple(np.asarray(values).tolist())) for name, values in by.items())
        names = None if by is None else (by,) if isinstance(by, str) else tuple(map(str, by))
        doses = None if treatments is None else tuple(np.atleast_1d(np.asarray(treatments)).tolist())
        t0, t1 = (value.item() if isinstance(value, np.generic) else value for value in (t0, t1))
        others = tuple(map(str, compare))
        words = (title or "", str(source), others, labels, units.strip())
        return cls(names, doses, t0, t1, float(level), bool(no_instrument), *words)
