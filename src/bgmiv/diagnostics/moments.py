r"""The conditional moment E[y - g(x, v) | w, v] = 0: how far a g is from it, and a test of it, without the truth.

Both are measured on held-out rows, from their outcomes, treatments, instruments and covariates alone. Simple models
fitted on the other rows say what a fit is to be compared with; weights count everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh
from scipy.spatial.distance import pdist, squareform

from bgmiv.arrays import TINY, Floats, Integers
from bgmiv.data.folds import row_folds
from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Rows
from bgmiv.data.scaling import RoleScaling
from bgmiv.data.schema import BlockKind
from bgmiv.errors import DataError
from bgmiv.kernels import GaussianKernel, fit_features, median_lengthscales
from bgmiv.sieve.first_stage import slices_of

__all__ = [
    "MAX_TESTED", "MomentRisks", "MomentTest", "SimpleFits", "compared_within", "conditions_of", "cross_fits",
    "explained_beyond", "moment_risk", "moment_shares", "moment_test", "moment_test_of_levels", "row_weights",
    "simple_fits", "variance_of",
]  # fmt: skip


MAX_TESTED = 1500
"""Rows used at most: the cost grows with the square of their number."""

# The simple models have few parameters.
_MAX_SIMPLE = 5000
_LANDMARKS = 300
_N_FOLDS = 5
# Of the bootstrap of the moment test.
_DRAWS = 1000
_ROUNDING = 1e-11
_LENGTHSCALES = (0.3, 1.0, 3.0)
_PENALTIES = np.logspace(-6, 0, 7)


def moment_risk(residuals: ArrayLike, conditions: Sequence[ArrayLike]) -> float:
    r"""The squared violation of $E[r \mid c] = 0$, estimated without bias on m held-out rows.

    $$\frac{1}{m (m - 1)} \sum_{i \ne j} r_i\, r_j\, k(c_i, c_j), \qquad r = y - g(x, v), \quad c = (w, v),$$

    with k a product of Gaussian kernels, one per variable, whose lengthscale is the median distance of the variable.
    Its expectation is the squared length of $E[r\, k(c, \cdot)]$: zero if $E[r \mid c] = 0$ and positive for every
    other g. The estimate itself may be negative. Its unit is the squared unit of the outcome; divided by the outcome's
    variance it can be compared between data sets.

    It cannot detect errors of g that the instruments do not reveal, and it is too small on rows that g was fitted on.

    Args:
        residuals: (m,), the outcome minus g(treatment, covariates).
        conditions: one array per variable, (m,) or (m, d): instruments and covariates, as `conditions_of` returns them.

    Raises:
        DataError: a shape does not fit or a number is not finite.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> w, u = rng.normal(size=(2, 1000))
        >>> x = w + u
        >>> y = 2.0 * x - u
        >>> true, confounded = moment_risk(y - 2.0 * x, [w]), moment_risk(y - 1.5 * x, [w])
        >>> abs(true) < 0.005 < 0.03 < confounded
        True

    Reference:
        R. Zhang, M. Imaizumi, B. Schölkopf, K. Muandet (2020), Maximum moment restriction for instrumental variable
        regression, arXiv:2010.07684.
    """
    r = _finite(residuals, "residuals")
    if r.ndim != 1 or len(r) < 2:
        raise DataError(f"residuals have shape {r.shape}. Pass one number per row, for two rows or more.")
    if not len(conditions):
        raise DataError("conditions are empty. Pass one array for each instrument and covariate.")
    columns = []
    for i, values in enumerate(conditions):
        array = _finite(values, f"conditions[{i}]")
        array = array[:, None] if array.ndim == 1 else array
        if array.ndim != 2 or array.shape[1] == 0 or len(array) != len(r):
            raise DataError(
                f"conditions[{i}] has shape {array.shape} but there are {len(r)} residuals. Pass one row for each, as "
                "(m,) or (m, d)."
            )
        columns.append(array)
    return float(_moment_risks(r[:, None], columns)[0])


def _moment_risks(residuals: Floats, conditions: Sequence[Floats]) -> Floats:
    """`moment_risk` of each column of residuals `(m, k)`, given conditions `(m, d)`."""
    c = np.concatenate(conditions, axis=1)
    kernel = GaussianKernel(median_lengthscales(c, slices_of(conditions)))
    # The kernel is 1 at distance zero, so the pairs of a row with itself add up to the sum of squares.
    pairs = np.sum(residuals * kernel.expand(c, c, residuals), axis=0) - np.sum(residuals**2, axis=0)
    return np.asarray(pairs / (len(c) * (len(c) - 1)), np.float64)


def conditions_of(data: IVData) -> list[Floats]:
    """What the moment is conditioned on: instruments and covariates, standardised, one array per variable.

    A vector, image or categorical block is one variable of several columns; other columns are one each.
    """
    scaler = RoleScaling().fit(data)
    w = (data.instruments - scaler.instruments.shift) / scaler.instruments.scale
    v = (data.covariates - scaler.covariates.shift) / scaler.covariates.scale
    parts = [w[:, [i]] for i in range(w.shape[1])]
    for block in data.schema.blocks:
        if block.kind in (BlockKind.continuous, BlockKind.binary):
            parts += [v[:, [i]] for i in range(block.start, block.stop)]
        else:
            parts.append(v[:, block.start : block.stop])
    return parts


class MomentTest(NamedTuple):
    """The result of `moment_test`: the squared violation as a share of the outcome's variance, and its p-value."""

    statistic: float
    p_value: float


def moment_test(data: IVData, predicted: Floats, *, seed: int = 0) -> MomentTest:
    r"""Test $E[y - g(x, v) \mid w, v] = 0$ on rows that g was not fitted on.

    $$T = \frac{1}{|P|} \sum_{(i, j) \in P} r_i\, r_j\, k(c_i, c_j),$$

    over pairs P of different rows (with groups, of different groups). k is the mean of three kernels: one of the
    instruments, one of all variables, and the mean of one per covariate, because a product over many variables is
    insensitive to each. Weights multiply the residuals. The null distribution comes from a wild bootstrap: residuals
    change their signs at random, all rows of a group together. g is taken as known: with enough rows every error of g
    counts as a violation, however small. On rows that g was fitted on the test rejects too rarely.

    Args:
        data: rows that g was not fitted on, `MAX_TESTED` at most.
        predicted: g at these rows, `(n,)`, finite.
        seed: of the bootstrap.

    Raises:
        DataError: there are fewer than three groups.

    References:
        That of `moment_risk`, and M. A. Delgado, M. A. Domínguez, P. Lavergne (2006), Consistent tests of conditional
        moment restrictions, Annales d'Économie et de Statistique 81, 33-67.
    """
    y, weights = data.outcome.astype(np.float64), row_weights(data)
    residuals = weights * (y - predicted)
    codes = np.arange(len(y)) if data.groups is None else np.unique(data.groups, return_inverse=True)[1]
    n_groups = int(codes.max()) + 1
    if n_groups < 3:
        raise DataError(f"the moment test needs at least three groups of rows, got {n_groups}.")
    pairs = codes[:, None] != codes[None, :]
    matrix = np.where(pairs, _kernel(data), 0.0)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(_DRAWS, n_groups))[:, codes] * residuals
    statistic = float(residuals @ matrix @ residuals)
    null = np.einsum("ij,ij->i", signs @ matrix, signs)
    # Signs that equal or mirror the observed ones give the same number up to rounding.
    as_large = int(np.sum(null >= statistic - 1e-9 * abs(statistic)))
    scale = variance_of(y, data.weights) * float(weights @ pairs @ weights)
    return MomentTest(statistic / scale, (1.0 + as_large) / (1.0 + _DRAWS))


def moment_test_of_levels(data: IVData, predicted: Floats, seed: int) -> MomentTest:
    """`moment_test` of g `(n,)`; of an outcome's K levels `(n, K)` the smallest p-value, times K (Bonferroni)."""
    columns = predicted.reshape(data.n_rows, -1).T
    tests = [moment_test(part, column, seed=seed) for part, column in zip(data.outcome_parts(), columns, strict=True)]
    worst = min(tests, key=lambda test: test.p_value)
    return worst._replace(p_value=min(1.0, worst.p_value * len(tests)))


def row_weights(data: IVData) -> Floats:
    """The rows' weights, with mean 1."""
    return Rows(data.covariates, data.weights).shares * data.n_rows


def variance_of(values: NDArray[np.floating], weights: NDArray[np.floating] | None) -> float:
    """The variance of some numbers, weighted if there are weights; never zero, so that shares of it are numbers."""
    return max(float(np.cov(values.astype(np.float64), aweights=weights, ddof=0)), TINY)


def _kernel(data: IVData) -> Floats:
    """The kernel of `moment_test` between different rows; the diagonal is 0."""
    parts, q = conditions_of(data), data.instruments.shape[1]
    n_pairs = data.n_rows * (data.n_rows - 1) // 2
    instruments, together, covariates = np.ones(n_pairs), np.ones(n_pairs), np.zeros(n_pairs)
    # One part and each pair once: there may be thousands of covariates.
    for number, part in enumerate(parts):
        scaled = part / median_lengthscales(part, [slice(0, part.shape[1])])
        kernel = np.exp(-0.5 * pdist(scaled, "sqeuclidean"))
        together *= kernel
        if number < q:
            instruments *= kernel
        else:
            covariates += kernel
    if len(parts) > q:
        instruments = (instruments + together + covariates / (len(parts) - q)) / 3.0
    return squareform(instruments, checks=False)


def _finite(values: Any, label: str) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise DataError(f"{label}: {int((~np.isfinite(array)).sum())} values are missing or infinite. Leave them out.")
    return array


class SimpleFits(NamedTuple):
    """Predictions of held-out rows by models fitted on the training rows, each (m,).

    Attributes:
        outcome, flexible: linear regression of the outcome on instruments and covariates, and kernel ridge regression
            of the same (beyond 300 rows by Nyström's approximation).
        linear_instruments, flexible_instruments: the same on instruments alone.
        structural: linear 2SLS of the outcome on treatment and covariates.
        treatment_only: 2SLS of the outcome on a cubic in the treatment (or indicators of its levels), instrumented by
            cubics in the instruments.
    """

    outcome: Floats
    flexible: Floats
    linear_instruments: Floats
    flexible_instruments: Floats
    structural: Floats
    treatment_only: Floats


class MomentRisks(NamedTuple):
    """Moment risks on held-out rows as shares of the outcome's variance, by their names in `FitEvidence`.

    They are those of a fit, of linear 2SLS, and of a cubic in the treatment alone; None where they are not asked for.
    """

    moment_risk: float | None = None
    linear_moment_risk: float | None = None
    treatment_moment_risk: float | None = None


def simple_fits(data: IVData, train: Integers, held_out: Integers) -> SimpleFits:
    """Fit the simple models on some rows and predict others.

    They only serve as benchmarks of prediction, so minimum-norm least squares is enough for any number of columns.
    """
    weights = row_weights(data)
    treatment = data.schema.treatment.columns(data.treatment)
    w, x, v = (_standard(a, train, weights) for a in (data.instruments, treatment, data.covariates))
    one, root = np.ones((data.n_rows, 1)), np.sqrt(weights)
    y = data.outcome.astype(np.float64)

    def two_stage(columns: Floats, instruments: Floats) -> Floats:
        left, right, target = ((a * root[:, None])[train] for a in (columns, instruments, y[:, None]))
        return columns[held_out] @ _coefficients(right @ _coefficients(right, left), target[:, 0])

    columns = np.hstack([w, v])
    kernel = _kernel_of(columns[train])
    both = _regressions(y, columns, kernel, root, train, held_out)
    of_instruments = both
    if v.shape[1]:
        kernel = GaussianKernel(kernel.lengthscales[: w.shape[1]])
        of_instruments = _regressions(y, w, kernel, root, train, held_out)
    structural = two_stage(np.hstack([one, x, v]), np.hstack([one, w, v]))
    cubics = [np.hstack([one, a, a**2, a**3]) for a in (x, w)]
    return SimpleFits(*both, *of_instruments, structural, two_stage(*cubics))


def _kernel_of(columns: Floats) -> GaussianKernel:
    """With the median distance of each column."""
    return GaussianKernel(median_lengthscales(columns, [slice(i, i + 1) for i in range(columns.shape[1])]))


def _regressions(
    y: Floats, columns: Floats, kernel: GaussianKernel, root: Floats, train: Integers, held_out: Integers
) -> tuple[Floats, Floats]:
    """Predictions of held-out rows by a linear and a kernel ridge regression.

    Lengthscales, in multiples of those of the kernel, and penalty by generalised cross-validation on the training rows.
    `root` holds the square roots of the weights: rows, targets and the kernel matrix are multiplied by them.
    """
    linear = np.column_stack([np.ones(len(columns)), columns])
    beta = _coefficients((linear * root[:, None])[train], (root * y)[train])
    scale = root[train]
    centre = np.average(y[train], weights=scale**2)
    target = scale * (y[train] - centre)
    best, predicted = np.inf, np.zeros(len(held_out))
    for factor in _LENGTHSCALES:
        features, phi = fit_features(GaussianKernel(kernel.lengthscales * factor), columns[train], _LANDMARKS)
        weighted = scale[:, None] * phi
        values, vectors = eigh(weighted.T @ weighted)
        # Directions of rounding have no moments of their own.
        there = values > _ROUNDING * values[-1]
        values, vectors = values[there], vectors[:, there]
        moments = vectors.T @ (weighted.T @ target)
        for penalty in _PENALTIES * len(train):
            shrunk = penalty / (values + penalty)
            left = target @ target - np.sum(moments**2 / values * (1.0 - shrunk**2))
            score = left / (len(train) - np.sum(1.0 - shrunk)) ** 2
            if score < best:
                best = score
                predicted = features(columns[held_out]) @ (vectors @ (moments / (values + penalty)))
    # Beyond the training rows a smooth function can go anywhere.
    return linear[held_out] @ beta, np.clip(centre + predicted, y[train].min(), y[train].max())


def moment_shares(data: IVData, held_out: Integers, predicted: Floats, simple: SimpleFits) -> MomentRisks:
    """Held-out moment risks of a fit and of the simple models."""
    part = data.take(held_out)
    conditions = conditions_of(part)
    y, weights = part.outcome.astype(np.float64), row_weights(part)
    variance = variance_of(data.outcome, data.weights)

    values = np.stack([predicted, simple.structural, simple.treatment_only], axis=1)
    residuals = weights[:, None] * (y[:, None] - values)
    # Predictions that are not numbers have no risk; the verdict reports them.
    finite = np.isfinite(residuals).all(axis=0)
    risks = _moment_risks(np.where(finite, residuals, 0.0), conditions) / variance
    return MomentRisks(*np.where(finite, risks, np.nan).tolist())


def _standard(values: NDArray[np.floating], train: Integers, weights: Floats) -> Floats:
    array, shares = values.astype(np.float64), weights[train] / weights[train].sum()
    centre = shares @ array[train]
    spread = np.sqrt(shares @ (array[train] - centre) ** 2)
    return (array - centre) / np.where(spread > 0, spread, 1.0)


def _coefficients(columns: Floats, target: Floats) -> Floats:
    return np.asarray(np.linalg.lstsq(columns, target, rcond=1e-8)[0], np.float64)


def cross_fits(data: IVData, rows: Integers) -> SimpleFits:
    """The simple models' predictions of some rows, fitted without the rows' own fold: five folds of whole groups.

    Beside these rows as many others are used as 5000 in all allow, so that there are rows to fit on at any number.
    """
    rng = np.random.default_rng(0)
    others = rng.permutation(np.setdiff1d(np.arange(data.n_rows), rows))
    pool = np.concatenate([rows, others[: max(0, _MAX_SIMPLE - len(rows))]])
    predicted = np.full((len(SimpleFits._fields), len(rows)), np.nan)
    for others, fold in _folds(data.take(pool), rng):
        train, own = pool[others], fold[fold < len(rows)]
        if len(own):
            values = np.stack(simple_fits(data, train, rows[own]))
            predicted[:, own] = compared_within(data, train, rows[own], values)
    return SimpleFits(*predicted)


def _folds(data: IVData, rng: np.random.Generator) -> Iterator[tuple[Integers, Integers]]:
    """The other rows of each of five folds, whole groups, in random order, and those of the fold."""
    fold = row_folds(data.n_rows, _N_FOLDS, rng, data.groups)
    for each in range(int(fold.max()) + 1):
        others = rng.permutation(np.flatnonzero(fold != each))
        if len(others):
            yield others, np.flatnonzero(fold == each)


def compared_within(data: IVData, train: Integers, rows: Integers, values: Floats) -> Floats:
    """Predictions `(..., n)` of rows, whose level of a category no training row has shifted to that level's mean.

    The effect of such a level is not to be had from other rows; so outcome and prediction are compared within it.
    """
    y, values = data.outcome[rows].astype(np.float64), values.copy()
    weights = row_weights(data)[rows]
    for block in data.schema.blocks:
        if block.kind is not BlockKind.categorical:
            continue
        columns = data.covariates[:, block.start : block.stop]
        unseen = ~columns[train].any(axis=0) & columns[rows].any(axis=0)
        for column in columns[rows][:, unseen].T:
            own = column.astype(bool)
            if weights[own].any():
                values[..., own] += np.average(y[own] - values[..., own], axis=-1, weights=weights[own])[..., None]
    return values


def explained_beyond(data: IVData, rows: Integers, residuals: Floats) -> float:
    """What instruments and covariates explain of residuals of some rows, by regressions fitted without their fold.

    The better of a linear and a kernel regression, in squared units of the residuals; 0 where neither explains any.
    """
    part = data.take(rows)
    weights = row_weights(part)
    root, predicted = np.sqrt(weights), np.zeros((2, len(rows)))
    for train, own in _folds(part, np.random.default_rng(0)):
        columns = np.hstack([_standard(a, train, weights) for a in (part.instruments, part.covariates)])
        predicted[:, own] = _regressions(residuals, columns, _kernel_of(columns[train]), root, train, own)
    gains = np.average(residuals**2 - (residuals - predicted) ** 2, axis=1, weights=weights)
    return max(float(gains.max()), 0.0)
