"""The design matrix of a data set: the columns that its linear regressions and tests are made of.

Covariates of very many rows are never copied as a whole: what is computed of them is computed piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from bgmiv.arrays import TINY, Floats, Integers
from bgmiv.covariance import Errors, errors_of
from bgmiv.data.ivdata import IVData
from bgmiv.data.within import Within, ordinary_columns, row_slices
from bgmiv.errors import DataError
from bgmiv.preprocess.reduction import BlockReduction

__all__ = ["DesignMatrix", "design_matrix"]

Pieces = Callable[[slice], Floats]

# From these on, in number or as a share of the rows, vector blocks and images are replaced by scores, as in the fits.
_MAX_COLUMNS, _MAX_SHARE = 100, 0.25
# Of the rows that absorbed indicators leave, the share that other covariates may take.
_MAX_CARRIED = 0.5
_MAX_COMPONENTS = 50
# Beyond so many rows, or entries of all rows, covariates are partialled out first.
_MAX_FULL, _MAX_ENTRIES = 100_000, 10_000_000
# What is left of a standardised column below this share of its length is rounding.
_REDUNDANT = 1e-7


@dataclass(frozen=True, eq=False)
class DesignMatrix:
    """Columns with mean 0 and standard deviation 1 (weighted, if there are weights).

    Attributes:
        outcomes: (n, k); for an outcome of several levels the indicator of each.
        treatment: (n, m); for a treatment with several levels the indicators of all but the first.
        exogenous: (n, p): a constant, and the covariates or their leading principal components; the constant alone
            where covariates are partialled out.
        instruments: (n, q), without those that the others and the covariates determine.
        weights: (n,), with mean 1.
        errors: what is assumed of them: independent, or clustered.
        outcome_scale, treatment_scale, instrument_scale: their standard deviations in the data: of the first column of
            outcome and treatment, and (q,).
        names: of the instruments.
        rows: an index of the rows that were used: those of weight 0 tell nothing.
        prepared, labels: what was done to the columns, for `bgmiv.diagnostics.explanations.preparation_text`.
        absorbed: degrees of freedom of what all columns are net of: indicators of categorical covariates with many
            levels (`bgmiv.data.within`), and covariates of very many rows.
        absorbed_by_errors: the same as the covariance counts them. Where it is clustered by the groups, a categorical
            covariate that is nested in the groups does not count (pyfixest's default).
        net: what is left of other columns of the rows, `(n,)` or `(n, c)`, if the same is taken out of them.
    """

    outcomes: Floats
    treatment: Floats
    exogenous: Floats
    instruments: Floats
    weights: Floats
    errors: Errors
    outcome_scale: float
    treatment_scale: float
    instrument_scale: Floats
    names: tuple[str, ...]
    rows: Any
    prepared: dict[str, float]
    labels: dict[str, str]
    absorbed: int
    absorbed_by_errors: int
    net: Callable[[Floats], Floats]

    @property
    def unit(self) -> float:
        """What a coefficient of 1 on the first treatment column is in units of the data."""
        return self.outcome_scale / self.treatment_scale

    @property
    def root_weights(self) -> Floats:
        """The root of each row's weight, `(n, 1)`."""
        return np.sqrt(self.weights)[:, None]

    @property
    def rows_left(self) -> int:
        """The rows less the coefficients of a regression on exogenous columns and instruments, absorbed ones too."""
        return len(self.outcomes) - self.exogenous.shape[1] - self.absorbed - self.instruments.shape[1]

    @property
    def dof(self) -> float:
        """Degrees of freedom of a regression on exogenous columns and instruments; with groups, their number less 1."""
        return self.errors.dof(self.rows_left)


def design_matrix(data: IVData) -> DesignMatrix:
    """The columns for linear regressions of a data set.

    They are those of the fits. Indicators of categorical covariates with many levels (`bgmiv.data.within`) are
    partialled out of all of them and counted in the degrees of freedom. Where there are more than 100 other covariate
    columns, or more than a quarter of the number of rows, vector blocks are replaced by the scores that fits use. Other
    columns are taken as they are up to half of the rows; beyond that, and for images, leading principal components
    replace all of them: at most 50, and at most a tenth of the number of rows.

    Raises:
        DataError: there are no instruments, or too few rows for them, or the covariates determine the treatment.
    """
    used = slice(None) if data.weights is None or data.weights.all() else data.weights > 0
    data = data.take(used)
    n = data.n_rows
    if not data.instruments.shape[1]:
        raise DataError("instruments are missing, and nothing can be diagnosed without them. Pass at least one.")
    share = data.full_weights / data.full_weights.sum()
    prepared: dict[str, float] = {}
    within = Within.of(data.schema, data.covariates, data.weights)
    if within:
        prepared |= {"absorbed": len(within.names), "absorbed_levels": sum(within.sizes)}
    exogenous = _exogenous(data, within, share, prepared)
    w, w_scale = _standard(data.instruments, share)
    x, x_scale = _standard(data.schema.treatment.regressors(data.treatment), share)
    y, y_scale = _standard(np.column_stack([part.outcome for part in data.outcome_parts()]), share)
    net: Callable[[Floats], Floats] = within.residual
    w, x, y = net(w), net(x), net(y)
    # All rows' sums of squares and products, in as many rows as there are columns.
    few = _factor(lambda rows: np.hstack([w[rows], x[rows], exogenous(rows)]), share)
    few_w, few_x, few_v = np.split(few, np.cumsum([w.shape[1], x.shape[1]]), axis=1)
    chosen = _independent(_residuals(few_w, few_v))
    absorbed, clustered = (max(count - 1, 0) for count in (within.dof(), within.dof(data.groups)))
    n_exogenous = few_v.shape[1]
    if n - n_exogenous - absorbed - len(chosen) < 2:
        raise DataError(f"{n} rows are too few to diagnose {len(chosen)} instruments. Pass more rows or fewer of them.")
    if len(_independent(_residuals(few_x, few_v))) < x.shape[1]:
        raise DataError("the covariates determine the treatment, so nothing is left to instrument. Pass fewer of them.")
    names = tuple(data.schema.instruments[i] for i in chosen)
    dropped = [repr(name) for name in data.schema.instruments if name not in names]
    n_groups = np.inf if data.groups is None else len(np.unique(data.groups))
    if n_groups < max(3, data.instruments.shape[1] + 2) and data.covariance in ("auto", "cluster"):
        prepared["groups_ignored"] = n_groups
        data = replace(data, covariance="robust")
    if n > _MAX_FULL or n * n_exogenous > _MAX_ENTRIES:
        # By the theorem of Frisch, Waugh and Lovell: a regression on 50 columns would cost 50 times as much.
        net = _partialled_out(within, exogenous, few_v, share)
        absorbed, clustered = absorbed + n_exogenous - 1, clustered + n_exogenous - 1
        n_exogenous = 1
        w, x, y = net(w), net(x), net(y)
    errors = errors_of(data)
    return DesignMatrix(
        outcomes=y,
        treatment=x,
        exogenous=np.ones((n, 1)) if n_exogenous == 1 else exogenous(slice(None)),
        instruments=w[:, chosen],
        weights=share * n,
        errors=errors,
        outcome_scale=float(y_scale[0]),
        treatment_scale=float(x_scale[0]),
        instrument_scale=w_scale[chosen],
        names=names,
        rows=used,
        prepared=prepared,
        labels={"dropped_instruments": ", ".join(dropped)} if dropped else {},
        absorbed=absorbed,
        absorbed_by_errors=clustered if errors.ways else absorbed,
        net=net,
    )


def _partialled_out(within: Within, exogenous: Pieces, few_v: Floats, share: Floats) -> Callable[[Floats], Floats]:
    """What takes indicators and exogenous columns out of others, which are met piece by piece."""
    n = len(share)
    inverse = np.linalg.pinv(few_v.T @ few_v, rcond=1e-13, hermitian=True)

    def net(columns: Floats) -> Floats:
        left = np.array(within.residual(columns.reshape(n, -1)), np.float64)
        # The second time takes out what rounding left.
        for _ in range(2):
            slopes = inverse @ sum(exogenous(rows).T @ (share[rows, None] * left[rows]) for rows in row_slices(n))
            for rows in row_slices(n):
                left[rows] -= exogenous(rows) @ slopes
        return left.reshape(columns.shape)

    return net


def _residuals(columns: Floats, given: Floats) -> Floats:
    """What least squares on other columns leaves of some."""
    return columns - given @ np.linalg.lstsq(given, columns, rcond=1e-10)[0]


def _exogenous(data: IVData, within: Within, share: Floats, prepared: dict[str, float]) -> Pieces:
    """The exogenous columns of any rows; what was done to them is added to `prepared`."""
    n = data.n_rows
    n_columns = len(ordinary_columns(data.schema, within.names))
    if n_columns > min(_MAX_COLUMNS, _MAX_SHARE * n):
        reduction = BlockReduction(images=False).fit(data)
        reduced = {block.name for block in data.schema.blocks if block.name in reduction.projections}
        if reduced:
            scores = sum(reduction.projections[name].n_components for name in reduced)
            wide = sum(block.width for block in data.schema.blocks if block.name in reduced)
            prepared |= {"covariate_columns": wide, "components": scores}
            data = reduction.apply(data)
    kept = ordinary_columns(data.schema, within.names)
    chosen: Any = kept if len(kept) < data.schema.n_covariates else slice(None)
    centre, scale = _moments(lambda rows: data.covariates[rows, chosen].astype(np.float64), share)

    def standard(rows: Any) -> Floats:
        return (data.covariates[rows, chosen].astype(np.float64) - centre) / scale

    net = within.net(lambda rows: [standard(rows)])
    few = _factor(lambda rows: net(rows)[0], share)
    pixels = any(block.holds_pixels for block in data.schema.blocks)
    most = min(_MAX_COLUMNS, _MAX_SHARE * n) if pixels else _MAX_CARRIED * (n - within.dof())
    if len(kept) > most:
        directions = _components(few, min(_MAX_COMPONENTS, max(n // 10, 1)))
        prepared |= {"covariate_columns": len(kept), "components": directions.shape[1]}
        return lambda rows: np.insert(net(rows)[0] @ directions, 0, 1.0, axis=1)
    if len(kept) > _MAX_SHARE * (n - within.dof()):
        prepared["many_covariates"] = len(kept)
    independent = _independent(few)
    if len(independent) < len(kept):
        prepared["redundant_covariates"] = len(kept) - len(independent)
    return lambda rows: np.insert(net(rows)[0][:, independent], 0, 1.0, axis=1)


def _factor(columns: Pieces, share: Floats) -> Floats:
    """Columns of fewer rows with the same weighted sums of squares and products: the R of a QR decomposition."""
    factor: Floats | None = None
    for rows in row_slices(len(share)):
        weighted = columns(rows) * np.sqrt(share[rows])[:, None]
        both = weighted if factor is None else np.vstack([factor, weighted])
        factor = np.linalg.qr(both)[1] if len(both) > both.shape[1] else both
    return np.zeros((0, 0)) if factor is None else factor


def _moments(columns: Pieces, share: Floats) -> tuple[Floats, Floats]:
    """Means and standard deviations; 1 in the place of the deviation of a constant."""
    centre: Any = sum(share[rows] @ columns(rows) for rows in row_slices(len(share)))
    scale = np.sqrt(sum(share[rows] @ (columns(rows) - centre) ** 2 for rows in row_slices(len(share))))
    constant = scale <= 1e-12 * np.maximum(np.abs(centre), TINY)
    return centre, np.where(constant, 1.0, scale)


def _standard(columns: NDArray[np.floating], share: Floats) -> tuple[Floats, Floats]:
    """Columns with mean 0 and standard deviation 1 (constant ones as they are, but centred), and these deviations."""
    values = np.asarray(columns, np.float64)
    centre, scale = _moments(lambda rows: values[rows], share)
    return (values - centre) / scale, scale


def _components(columns: Floats, max_components: int) -> Floats:
    """The directions of the leading principal components, for scores with standard deviation 1."""
    lengths, directions = np.linalg.svd(columns, full_matrices=False)[1:]
    count = min(max_components, int(np.sum(lengths**2 > 1e-10 * lengths[0] ** 2)))
    return (directions[:count] / lengths[:count, None]).T


def _independent(columns: Floats) -> Integers:
    """Positions of columns none of which the others determine, in order; columns have length 1 at most."""
    if not columns.shape[1]:
        return np.zeros(0, np.int64)
    factor, pivots = qr(columns, mode="r", pivoting=True)[:2]
    lengths = np.abs(np.diag(factor))
    return np.sort(pivots[: len(lengths)][lengths > _REDUNDANT]).astype(np.int64)
