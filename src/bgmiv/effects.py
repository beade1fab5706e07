"""Questions to a structural function: contrasts, averages, derivatives and curves.

Everything is computed from g(x, v) alone, so that every method answers the same questions. Many treatments are asked
for together: what a method computes of covariates it computes once a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bgmiv.data.schema import BlockKind, Schema
from bgmiv.errors import DataError

__all__ = ["DoseResponse", "Structural", "average_effect", "dose_response", "effect", "marginal_effect"]

Floats = NDArray[np.float64]

_MOST_ROWS = 100_000


class Structural(Protocol):
    """A fitted method: the structural function and the names and kinds of its data."""

    @property
    def schema(self) -> Schema:
        """Names and kinds of the training data."""

    def predict(self, treatment: Any, covariates: Any = None) -> np.ndarray:
        """g at one treatment for all rows or one a row."""


@dataclass(frozen=True, eq=False)
class DoseResponse:
    """The structural function along treatments.

    Attributes:
        treatment: the m treatments, numbers or levels.
        values: `(m,)` averaged over people, or `(m, n)` for each; with a last axis of K for an outcome of K levels.
    """

    treatment: np.ndarray
    values: Floats


def effect(g: Structural, covariates: Any = None, *, t0: Any, t1: Any) -> Floats:
    """g(t1, v) - g(t0, v) for every row of covariates: what setting the treatment to t1 instead of t0 would change.

    Args:
        g: the fitted method.
        covariates: the people asked about; None for a fit without covariates.
        t0, t1: a treatment for all rows or one a row.

    Example:
        >>> from bgmiv import TSLS
        >>> rng = np.random.default_rng(0)
        >>> w, u = rng.normal(size=(2, 500))
        >>> model = TSLS().fit(3.0 * (w + u) - u, w + u, instruments=w)
        >>> round(float(effect(model.fitted_, t0=0.0, t1=2.0)[0]))
        6
    """
    after, before = (np.asarray(g.predict(t, covariates), np.float64) for t in (t1, t0))
    return after - before


def average_effect(g: Structural, covariates: Any = None, *, t0: Any, t1: Any) -> Any:
    """The mean of `effect` over rows: a number, or one a level of the outcome."""
    mean = np.mean(effect(g, covariates, t0=t0, t1=t1), axis=0)
    return float(mean) if mean.ndim == 0 else mean


def marginal_effect(g: Structural, treatment: Any, covariates: Any = None, *, step: float) -> Floats:
    r"""The slope $\{g(x + h/2, v) - g(x - h/2, v)\} / h$ at each row's treatment.

    Args:
        g: the fitted method.
        treatment: one for all rows or one a row.
        covariates: the people asked about.
        step: h, in units of the treatment. Networks are made of straight pieces: a step as wide as the question is
            better than the smallest possible.

    Raises:
        DataError: the treatment has levels, which have no slope, or the step is not above zero.
    """
    variable = g.schema.treatment
    if variable.kind != BlockKind.continuous:
        raise DataError(f"treatment {variable.name!r} has levels and no slope. Ask for effect(..., t0=..., t1=...).")
    if not step > 0.0 or not np.isfinite(step):
        raise DataError(f"step must be a number above 0, got {step!r}.")
    centre, v = g.schema.check_query(treatment, covariates)
    asked = v if g.schema.blocks else None
    return effect(g, asked, t0=centre - step / 2.0, t1=centre + step / 2.0) / step


def dose_response(g: Structural, treatments: Any, covariates: Any = None, *, average: bool = True) -> DoseResponse:
    """g along treatments, averaged over rows of covariates or for each of them.

    Args:
        g: the fitted method.
        treatments: the treatments asked for, `(m,)`.
        covariates: the people asked about, n rows.
        average: the mean over people, or everyone's own curve.

    Example:
        >>> from bgmiv import TSLS
        >>> rng = np.random.default_rng(0)
        >>> w, v, u = rng.normal(size=(3, 500))
        >>> x = w + v + u
        >>> model = TSLS().fit(2.0 * x + v - u, x, instruments=w, covariates={"age": v})
        >>> curve = dose_response(model.fitted_, [0.0, 1.0], {"age": v})
        >>> round(float(curve.values[1] - curve.values[0]), 1)
        2.0
    """
    doses = np.atleast_1d(np.asarray(treatments))
    if doses.ndim != 1 or not len(doses):
        raise DataError(f"treatments have shape {doses.shape}. Pass one or more values in a row.")
    schema = g.schema
    flat = schema.check_covariates(covariates, n_rows=None if schema.blocks else 1)
    n = len(flat)
    at_once = max(1, _MOST_ROWS // n)
    found = []
    for start in range(0, len(doses), at_once):
        some = doses[start : start + at_once]
        rows = np.tile(flat, (len(some), 1)) if schema.blocks else None
        values = np.asarray(g.predict(np.repeat(some, n), rows), np.float64)
        curves = values.reshape(len(some), n, *values.shape[1:])
        found.append(curves.mean(axis=1) if average else curves)
    return DoseResponse(doses, np.concatenate(found))
