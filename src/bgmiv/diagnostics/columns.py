"""The columns of a data set that its linear regressions and tests are made of.

Covariates of very many rows are never copied as a whole: what is computed of them is computed piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from bgmiv.covariance import Errors, errors_of
from bgmiv.data.ivdata import IVData
from bgmiv.data.schema import BlockKind
from bgmiv.errors import DataError

__all__ = ["LinearColumns", "linear_columns", "residuals", "used_rows"]

Floats = NDArray[np.float64]
Pieces = Callable[[slice], Floats]

_MAX_COLUMNS = 100
_MAX_COMPONENTS = 50
# Beyond so many rows covariates are partialled out first; degrees of freedom then leave them out, which no digit shows.
_MAX_FULL, _PIECE = 100_000, 20_000
# What is left of a standardised column below this share of its length is rounding.
_REDUNDANT = 1e-7


@dataclass(frozen=True, eq=False)
class LinearColumns:
    """Columns with mean 0 and standard deviation 1 (weighted, if there are weights).

    Attributes:
        outcome: (n,).
        treatment: (n, m); for a treatment with several levels the indicators of all but the first.
        exogenous: (n, k): a constant, and the covariates or their leading principal components.
        instruments: (n, q), without those that the others and the covariates determine.
        weights: (n,) or None.
        errors: what is assumed of them: independent, or clustered.
        outcome_scale, instrument_scale: their standard deviations in the data: a number, and (q,).
        unit: what a coefficient of 1 on the first treatment column is in units of the data.
        names: of the instruments.
        prepared, labels: what was done to the columns, for `bgmiv.diagnostics.readings.preparation_text`.
    """

    outcome: Floats
    treatment: Floats
    exogenous: Floats
    instruments: Floats
    weights: Floats | None
    errors: Errors
    outcome_scale: float
    instrument_scale: Floats
    unit: float
    names: tuple[str, ...]
    prepared: dict[str, float]
    labels: dict[str, str]

    @property
    def dof(self) -> float:
        """Degrees of freedom of a regression on exogenous columns and instruments; with groups, their number less 1."""
        return self.errors.dof(len(self.outcome) - self.exogenous.shape[1] - self.instruments.shape[1])


def used_rows(data: IVData) -> Any:
    """An index of the rows of `linear_columns`: those of weight 0 tell nothing, and linearmodels refuses them."""
    return slice(None) if data.weights is None or data.weights.all() else data.weights > 0


def linear_columns(data: IVData) -> LinearColumns:
    """The columns for linear diagnostics of a data set.

    If the covariates have more than 100 columns, or more than a quarter of the number of rows, their leading principal
    components replace them: at most 50, and at most a tenth of the number of rows.

    Raises:
        DataError: there are no instruments, or too few rows for them, or the covariates determine the treatment.
    """
    data = data.take(used_rows(data))
    n = data.n_rows
    weights = None if data.weights is None else np.asarray(data.weights, np.float64) / np.mean(data.weights)
    share = np.full(n, 1.0 / n) if weights is None else weights / weights.sum()
    prepared: dict[str, float] = {}
    exogenous = _exogenous(data, share, prepared)
    if not data.instruments.shape[1]:
        raise DataError("instruments are missing, and nothing can be diagnosed without them. Pass at least one.")
    treatment = data.schema.treatment.columns(data.treatment)
    w, w_scale = _standard(data.instruments, share)
    x, x_scale = _standard(treatment if treatment.shape[1] == 1 else treatment[:, 1:], share)
    y, y_scale = _standard(data.outcome[:, None], share)
    # All rows' sums of squares and products, in as many rows as there are columns.
    few = _factor(lambda rows: np.hstack([w[rows], x[rows], y[rows], exogenous(rows)]), share)
    few_w, few_x, few_y, few_v = np.split(few, np.cumsum([w.shape[1], x.shape[1], 1]), axis=1)
    chosen = _independent(residuals(few_w, few_v))
    if n - few_v.shape[1] - len(chosen) < 2:
        raise DataError(f"{n} rows are too few to diagnose {len(chosen)} instruments. Pass more rows or fewer of them.")
    names = tuple(data.schema.instruments[i] for i in chosen)
    dropped = [repr(name) for name in data.schema.instruments if name not in names]
    if len(_independent(residuals(few_x, few_v))) < x.shape[1]:
        raise DataError("the covariates determine the treatment, so nothing is left to instrument. Pass fewer of them.")
    w, few_w = w[:, chosen], few_w[:, chosen]
    if n > _MAX_FULL:
        # By the theorem of Frisch, Waugh and Lovell: a regression on 50 columns would cost 50 times as much.
        for columns, of_few in ((y, few_y), (x, few_x), (w, few_w)):
            slopes = _slopes(of_few, few_v)
            for rows in _pieces(n):
                columns[rows] -= exogenous(rows) @ slopes
    n_groups = np.inf if data.groups is None else len(np.unique(data.groups))
    if n_groups < max(3, data.instruments.shape[1] + 2) and data.covariance in ("auto", "cluster"):
        prepared["groups_ignored"] = float(n_groups)
        data = replace(data, covariance="robust")
    return LinearColumns(
        outcome=y[:, 0],
        treatment=x,
        exogenous=np.ones((n, 1)) if n > _MAX_FULL else exogenous(slice(None)),
        instruments=w,
        weights=weights,
        errors=errors_of(data),
        outcome_scale=float(y_scale[0]),
        instrument_scale=w_scale[chosen],
        unit=float(y_scale[0] / x_scale[0]),
        names=names,
        prepared=prepared,
        labels={"dropped_instruments": ", ".join(dropped)} if dropped else {},
    )


def residuals(columns: Floats, given: Floats) -> Floats:
    """What least squares on other columns leaves of some."""
    return np.asarray(columns - given @ _slopes(columns, given), np.float64)


def _slopes(columns: Floats, given: Floats) -> Floats:
    return np.asarray(np.linalg.lstsq(given, columns, rcond=1e-10)[0], np.float64)


def _exogenous(data: IVData, share: Floats, prepared: dict[str, float]) -> Pieces:
    """The exogenous columns of any rows; what was done to them is added to `prepared`."""
    # The indicators of a categorical block add up to one: the first of each is left out.
    reference = {block.start for block in data.schema.blocks if block.kind is BlockKind.categorical}
    kept = [column for column in range(data.schema.n_covariates) if column not in reference]
    chosen: Any = kept if reference else slice(None)
    n = data.n_rows
    centre, scale = _moments(lambda rows: np.asarray(data.covariates[rows, chosen], np.float64), share)

    def standard(rows: slice) -> Floats:
        return (np.asarray(data.covariates[rows, chosen], np.float64) - centre) / scale

    few = _factor(standard, share)
    if len(kept) > _MAX_COLUMNS or len(kept) > n / 4:
        directions = _components(few, min(_MAX_COMPONENTS, max(n // 10, 1)))
        prepared |= {"covariate_columns": float(len(kept)), "components": float(directions.shape[1])}
        return lambda rows: _with_constant(standard(rows) @ directions)
    independent = _independent(few)
    if len(independent) < len(kept):
        prepared["redundant_covariates"] = float(len(kept) - len(independent))
    return lambda rows: _with_constant(standard(rows)[:, independent])


def _with_constant(columns: Floats) -> Floats:
    return np.hstack([np.ones((len(columns), 1)), columns])


def _pieces(n: int) -> Iterator[slice]:
    return (slice(start, start + _PIECE) for start in range(0, n, _PIECE))


def _factor(columns: Pieces, share: Floats) -> Floats:
    """Columns of fewer rows with the same weighted sums of squares and products: the R of a QR decomposition."""
    found: Floats | None = None
    for rows in _pieces(len(share)):
        weighted = columns(rows) * np.sqrt(share[rows])[:, None]
        both = weighted if found is None else np.vstack([found, weighted])
        found = np.asarray(np.linalg.qr(both, mode="r"), np.float64) if len(both) > both.shape[1] else both
    return np.zeros((0, 0)) if found is None else found


def _moments(columns: Pieces, share: Floats) -> tuple[Floats, Floats]:
    """Means and standard deviations; 1 in the place of the deviation of a constant."""
    centre = sum(share[rows] @ columns(rows) for rows in _pieces(len(share)))
    scale = np.sqrt(sum(share[rows] @ (columns(rows) - centre) ** 2 for rows in _pieces(len(share))))
    constant = scale <= 1e-12 * np.maximum(np.abs(centre), np.finfo(float).tiny)
    return np.asarray(centre, np.float64), np.where(constant, 1.0, scale)


def _standard(columns: NDArray[np.floating], share: Floats) -> tuple[Floats, Floats]:
    """Columns with mean 0 and standard deviation 1 (constant ones as they are, but centred), and these deviations."""
    values = np.asarray(columns, np.float64)
    centre, scale = _moments(lambda rows: values[rows], share)
    return (values - centre) / scale, scale


def _components(columns: Floats, max_components: int) -> Floats:
    """The directions of the leading principal components, for scores with standard deviation 1."""
    if columns.shape[1] <= columns.shape[0]:
        values, vectors = np.linalg.eigh(columns.T @ columns)
    else:
        values, left = np.linalg.eigh(columns @ columns.T)
        vectors = columns.T @ left / np.sqrt(np.maximum(values, np.finfo(float).tiny))
    order = np.argsort(values)[::-1][:max_components]
    order = order[values[order] > 1e-10 * values[order[0]]]
    return np.asarray(vectors[:, order] / np.sqrt(values[order]), np.float64)


def _independent(columns: Floats) -> NDArray[np.int64]:
    """Positions of columns none of which the others determine, in order; columns have length 1 at most."""
    if not columns.shape[1]:
        return np.zeros(0, np.int64)
    factor, pivots = qr(columns, mode="r", pivoting=True)[:2]
    lengths = np.abs(np.diag(factor))
    return np.sort(pivots[: len(lengths)][lengths > _REDUNDANT]).astype(np.int64)
