r"""A test of the conditional moment: are the residuals y - g(x, v) of rows mean zero given instruments and covariates?

The structural function has $E[y - g(x, v) \mid w, v] = 0$. The statistic is the squared violation of `moment_risk`,
with a kernel that also looks at the instruments alone and at each covariate alone, because a product over many
variables sees little of any. Its distribution under the hypothesis comes from a wild bootstrap: residuals change their
signs at random, all rows of a group together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgmiv.data.ivdata import IVData
from bgmiv.errors import DataError
from bgmiv.kernels import GaussianKernel, median_lengthscales
from bgmiv.trust.moments import conditions_of

__all__ = ["MomentTest", "moment_test"]

Floats = NDArray[np.float64]

_MOST_ROWS = 1500


@dataclass(frozen=True)
class MomentTest:
    """The test's result.

    Args:
        statistic: the squared violation, as a share of the outcome's variance; about zero under the hypothesis.
        p_value: the share of bootstrap draws with a violation as large.
        n_rows: rows looked at.
    """

    statistic: float
    p_value: float
    n_rows: int


def moment_test(data: IVData, predicted: ArrayLike, *, draws: int = 1000, seed: int = 0) -> MomentTest:
    r"""Test $E[y - g(x, v) \mid w, v] = 0$ on rows that g was not fitted on.

    $$T = \frac{1}{|P|} \sum_{(i, j) \in P} r_i\, r_j\, k(c_i, c_j),$$

    over pairs P of different rows, of different groups where there are groups. k is the mean of three kernels: one of
    the instruments, one of all variables, and the mean of one a covariate. Weights, if there are any, multiply the
    residuals. g is taken as known: an error of g itself counts as a violation, however little it matters, once there
    are rows enough to see it. On rows that g was fitted on the test rejects too rarely.

    Args:
        data: the rows, with one outcome.
        predicted: g at these rows, (n,). At most 1500 rows are looked at, chosen at random.
        draws: of the bootstrap.
        seed: of its random signs.

    Raises:
        DataError: predictions do not fit the rows or are not finite, or there are fewer than three groups.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> w, u = rng.normal(size=(2, 300))
        >>> data = IVData.from_arrays(2.0 * (w + u) - u, w + u, instruments=w)
        >>> moment_test(data, 2.0 * data.treatment).p_value > 0.05
        True
        >>> moment_test(data, 1.5 * data.treatment).p_value < 0.01
        True

    References:
        R. Zhang, M. Imaizumi, B. Schölkopf, K. Muandet (2020), Maximum moment restriction for instrumental variable
        regression, arXiv:2010.07684. M. A. Delgado, M. A. Domínguez, P. Lavergne (2006), Consistent tests of
        conditional moment restrictions, Annales d'Économie et de Statistique 81, 33-67.
    """
    values = np.asarray(predicted, np.float64)
    if values.shape != (data.n_rows,) or not np.isfinite(values).all():
        raise DataError(f"predicted must hold one finite number for each of {data.n_rows} rows, got {values.shape}.")
    rng = np.random.default_rng(seed)
    if data.n_rows > _MOST_ROWS:
        rows = np.sort(rng.permutation(data.n_rows)[:_MOST_ROWS])
        data, values = data.take(rows), values[rows]
    y = np.asarray(data.outcome, np.float64)
    residuals = y - values
    weights = data.weights
    if weights is not None:
        residuals = residuals * np.asarray(weights, np.float64) / np.mean(weights)
    groups = data.groups
    codes = np.arange(len(y)) if groups is None else np.unique(groups, return_inverse=True)[1]
    n_groups = int(codes.max()) + 1
    if n_groups < 3:
        raise DataError(f"a test of the moment needs three groups of rows or more, got {n_groups}.")
    pairs = codes[:, None] != codes[None, :]
    matrix = np.where(pairs, _kernel(data), 0.0)
    signs = rng.choice(np.array([-1.0, 1.0]), size=(draws, n_groups))[:, codes] * residuals
    found = float(residuals @ matrix @ residuals)
    null = np.einsum("ij,ij->i", signs @ matrix, signs)
    # Signs that equal or mirror the observed ones give the same number but for rounding.
    as_large = int(np.sum(null >= found - 1e-9 * abs(found)))
    scale = max(float(np.var(y)), np.finfo(float).tiny) * float(pairs.sum())
    return MomentTest(found / scale, (1.0 + as_large) / (1.0 + draws), len(y))


def _kernel(data: IVData) -> Floats:
    parts, q = conditions_of(data), data.instruments.shape[1]
    instruments = np.ones((data.n_rows, data.n_rows))
    for part in parts[:q]:
        instruments *= _gaussian(part)
    if len(parts) == q:
        return instruments
    covariates, together = np.zeros_like(instruments), instruments.copy()
    # One matrix at a time: there may be hundreds of covariates.
    for part in parts[q:]:
        matrix = _gaussian(part)
        covariates += matrix
        together *= matrix
    return (instruments + together + covariates / (len(parts) - q)) / 3.0


def _gaussian(values: Floats) -> Floats:
    kernel = GaussianKernel(median_lengthscales(values, [slice(0, values.shape[1])]))
    return kernel(values, values)
