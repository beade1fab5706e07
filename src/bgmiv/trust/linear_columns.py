"""The columns of linear regressions that look at a data set: standardised, without redundant ones, never too many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from bgmiv.data.ivdata import IVData
from bgmiv.data.schema import BlockKind
from bgmiv.errors import DataError

__all__ = ["LinearColumns", "linear_columns", "regression"]

Floats = NDArray[np.float64]

_MOST_COLUMNS = 100
_MOST_COMPONENTS = 50
# What is left of a standardised column below this share of its length is rounding.
_REDUNDANT = 1e-7


@dataclass(frozen=True, eq=False)
class LinearColumns:
    """Columns of mean 0 and deviation 1 (weighted, where there are weights).

    Attributes:
        outcome: (n,).
        treatment: (n, m); of a treatment of several levels the indicators of all but the first.
        exogenous: (n, k): a constant, and the covariates or their leading principal components.
        instruments: (n, q), without those that the others and the covariates determine.
        weights: (n,) or None.
        groups: (n,) codes or None.
        outcome_scale, treatment_scale, instrument_scale: deviations before standardising: a number, (m,) and (q,).
        names: of the instruments.
        note: what was done to the columns, in sentences; empty if nothing was.
    """

    outcome: Floats
    treatment: Floats
    exogenous: Floats
    instruments: Floats
    weights: Floats | None
    groups: NDArray[np.int64] | None
    outcome_scale: float
    treatment_scale: Floats
    instrument_scale: Floats
    names: tuple[str, ...]
    note: str

    @property
    def freedom(self) -> int:
        """Degrees of freedom of a regression on exogenous columns and instruments; with groups, their number less 1."""
        if self.groups is not None:
            return len(np.unique(self.groups)) - 1
        return len(self.outcome) - self.exogenous.shape[1] - self.instruments.shape[1]

    @property
    def errors(self) -> dict[str, Any]:
        """What linearmodels is told about the errors."""
        if self.groups is None:
            return {"cov_type": "robust"}
        return {"cov_type": "clustered", "clusters": self.groups}


def linear_columns(data: IVData) -> LinearColumns:
    """The columns for linear diagnostics of a data set.

    Covariates of more than 100 columns, or of more than a quarter of the rows, stand aside for their leading principal
    components: at most 50, and a tenth of the rows.

    Raises:
        DataError: there are no instruments, or too few rows for them, or the covariates determine the treatment.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> w, u, twice = rng.normal(size=(3, 200))
        >>> data = IVData.from_arrays(
        ...     w - u,
        ...     w + u,
        ...     instruments=w,
        ...     covariates={"age": twice, "months": 12 * twice, "scan": rng.normal(size=(200, 90))},
        ... )
        >>> columns = linear_columns(data)
        >>> columns.exogenous.shape, columns.note[:53]
        ((200, 21), '92 columns of covariates stand aside for their 20 lea')
    """
    n = data.n_rows
    weights = None if data.weights is None else np.asarray(data.weights, np.float64) / np.mean(data.weights)
    groups, notes = _groups(data)
    share = np.full(n, 1.0 / n) if weights is None else weights / weights.sum()
    kept = _without_reference(data)
    v, _, _ = _standard(np.asarray(data.covariates[:, kept], np.float64), share)
    if v.shape[1] > _MOST_COLUMNS or v.shape[1] > n / 4:
        width = v.shape[1]
        v = _components(v, share, min(_MOST_COMPONENTS, max(n // 10, 1)))
        notes.append(f"{width} columns of covariates stand aside for their {v.shape[1]} leading principal components.")
    else:
        chosen = _independent(v * np.sqrt(share)[:, None])
        if len(chosen) < v.shape[1]:
            notes.append(f"{v.shape[1] - len(chosen)} redundant columns of covariates are left out.")
        v = v[:, chosen]
    exogenous = np.hstack([np.ones((n, 1)), v])
    w, _, w_scale = _standard(np.asarray(data.instruments, np.float64), share)
    if not w.shape[1]:
        raise DataError("instruments are missing, and without them there is nothing to diagnose. Pass at least one.")
    chosen = _independent(_apart(w, exogenous, share) * np.sqrt(share)[:, None])
    names = tuple(data.schema.instruments[i] for i in chosen)
    lost = [name for i, name in enumerate(data.schema.instruments) if i not in chosen.tolist()]
    if lost:
        notes.append(f"Covariates and other instruments determine {', '.join(map(repr, lost))}, which is left out.")
    if n - exogenous.shape[1] - len(chosen) < 2:
        raise DataError(f"{n} rows are too few to diagnose {len(chosen)} instruments. Pass more rows or fewer of them.")
    treatment: Floats = np.asarray(data.schema.treatment.columns(data.treatment), np.float64)
    x, _, x_scale = _standard(treatment if treatment.shape[1] == 1 else treatment[:, 1:], share)
    if len(_independent(_apart(x, exogenous, share) * np.sqrt(share)[:, None])) < x.shape[1]:
        raise DataError("the covariates determine the treatment, so that nothing is left to instrument. Use fewer.")
    y, _, y_scale = _standard(np.asarray(data.outcome, np.float64)[:, None], share)
    return LinearColumns(
        outcome=y[:, 0],
        treatment=x,
        exogenous=exogenous,
        instruments=w[:, chosen],
        weights=weights,
        groups=groups,
        outcome_scale=float(y_scale[0]),
        treatment_scale=x_scale,
        instrument_scale=w_scale[chosen],
        names=names,
        note=" ".join(notes),
    )


def regression(target: Floats, columns: LinearColumns, *, robust: bool = True) -> tuple[Floats, Floats]:
    """Coefficients of the instruments and their covariance in a regression on them and the exogenous columns.

    By linearmodels, with its correction for small samples. Robust errors are clustered where there are groups.
    """
    from linearmodels.iv import IV2SLS

    right = np.hstack([columns.exogenous, columns.instruments])
    errors = columns.errors if robust else {"cov_type": "unadjusted"}
    found = IV2SLS(target, right, None, None, weights=columns.weights).fit(**errors, debiased=True)
    k = columns.exogenous.shape[1]
    return np.asarray(found.params, np.float64)[k:], np.asarray(found.cov, np.float64)[k:, k:]


def _groups(data: IVData) -> tuple[NDArray[np.int64] | None, list[str]]:
    groups = data.groups
    if groups is None:
        return None, []
    count = len(np.unique(groups))
    if count < data.instruments.shape[1] + 2:
        return None, [f"There are {count} groups only, too few for clustered errors: rows count as independent."]
    return np.asarray(groups, np.int64), []


def _without_reference(data: IVData) -> list[int]:
    """All flat columns but the first level of each categorical block: the levels' indicators add up to one."""
    first = {block.start for block in data.schema.blocks if block.kind is BlockKind.categorical}
    return [column for column in range(data.schema.n_covariates) if column not in first]


def _standard(values: Floats, share: Floats) -> tuple[Floats, Floats, Floats]:
    centre = share @ values
    centred = values - centre
    scale = np.sqrt(share @ centred**2)
    scale = np.where(scale > 1e-12 * np.maximum(np.abs(centre), np.finfo(float).tiny), scale, 1.0)
    return centred / scale, centre, scale


def _components(v: Floats, share: Floats, most: int) -> Floats:
    """Scores of the leading principal components, of deviation 1."""
    weighted = v * np.sqrt(share)[:, None]
    if v.shape[1] <= v.shape[0]:
        values, vectors = np.linalg.eigh(weighted.T @ weighted)
    else:
        values, left = np.linalg.eigh(weighted @ weighted.T)
        vectors = weighted.T @ left / np.sqrt(np.maximum(values, np.finfo(float).tiny))
    order = np.argsort(values)[::-1][:most]
    order = order[values[order] > 1e-10 * values[order[0]]]
    return v @ vectors[:, order] / np.sqrt(values[order])


def _apart(columns: Floats, exogenous: Floats, share: Floats) -> Floats:
    """What the exogenous columns leave of some columns."""
    root = np.sqrt(share)[:, None]
    return columns - exogenous @ np.linalg.lstsq(exogenous * root, columns * root, rcond=1e-10)[0]


def _independent(columns: Floats) -> NDArray[np.int64]:
    """Positions of columns none of which the others determine, in their order; columns have length 1 at most."""
    if not columns.shape[1]:
        return np.zeros(0, np.int64)
    factor, pivots = qr(columns, mode="r", pivoting=True)[:2]
    lengths = np.abs(np.diag(factor))
    return np.sort(pivots[: len(lengths)][lengths > _REDUNDANT]).astype(np.int64)
