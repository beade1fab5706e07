r"""The held-out conditional moment: a measure of a structural function that needs no truth.

The structural function g is the one with $E[y - g(x, v) \mid w, v] = 0$. How far another g is from that can be measured
on rows that no one has trained on, from their outcomes, treatments, instruments and covariates alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgmiv.data.ivdata import IVData
from bgmiv.data.scaling import RoleScaling
from bgmiv.data.schema import BlockKind
from bgmiv.errors import DataError
from bgmiv.kernels import GaussianKernel, median_lengthscales

__all__ = ["conditions_of", "moment_risk"]

Floats = NDArray[np.float64]


def moment_risk(residuals: ArrayLike, conditions: Sequence[ArrayLike]) -> float:
    r"""The squared violation of $E[r \mid c] = 0$, estimated without bias on m held-out rows.

    $$\frac{1}{m (m - 1)} \sum_{i \ne j} r_i\, r_j\, k(c_i, c_j), \qquad r = y - g(x, v), \quad c = (w, v),$$

    with k a product of Gaussian kernels, one a variable, each with the median distance of its variable as lengthscale.
    Its expectation is the squared length of $E[r\, k(c, \cdot)]$: zero where $E[r \mid c] = 0$ and positive for every
    other g. As an unbiased estimate of something small it may be negative. It has the units of the outcome squared;
    divided by the outcome's variance it can be compared between data sets.

    It cannot see what the instruments do not move, and rows that g was fitted on make it too small.

    Args:
        residuals: (m,), the outcome minus g(treatment, covariates).
        conditions: one array a variable, (m,) or (m, d): the instruments and covariates, as `conditions_of` gives them.

    Raises:
        DataError: if a shape does not fit or a number is not finite.

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
        raise DataError(f"residuals have shape {r.shape}. Pass one number a row, of two rows or more.")
    columns = [_condition(values, i, len(r)) for i, values in enumerate(conditions)]
    if not columns:
        raise DataError("conditions are empty. Pass one array for each instrument and covariate.")
    ends = np.cumsum([part.shape[1] for part in columns]).tolist()
    c = np.concatenate(columns, axis=1)
    groups = [slice(end - part.shape[1], end) for end, part in zip(ends, columns, strict=True)]
    kernel = GaussianKernel(median_lengthscales(c, groups))
    # The kernel is one at distance zero, so that the pairs of a row with itself add up to the sum of squares.
    pairs = r @ kernel.expand(c, c, r) - r @ r
    return float(pairs / (len(r) * (len(r) - 1)))


def conditions_of(data: IVData) -> list[Floats]:
    """What the moment is conditioned on: instruments and covariates, standardised, one array a variable.

    A vector, image or categorical block is one variable of several columns; other columns are one each.

    Example:
        >>> data = IVData.from_arrays(
        ...     [1.0, 2.0, 4.0],
        ...     [0.5, 0.1, 0.2],
        ...     instruments=[3.0, 1.0, 2.0],
        ...     covariates={"age": [30, 40, 50], "proxy": np.eye(3)},
        ... )
        >>> [part.shape for part in conditions_of(data)]
        [(3, 1), (3, 1), (3, 3)]
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


def _finite(values: Any, label: str) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise DataError(f"{label}: {int((~np.isfinite(array)).sum())} values are missing or infinite. Leave them out.")
    return array


def _condition(values: Any, index: int, n_rows: int) -> Floats:
    label = f"conditions[{index}]"
    array = _finite(values, label)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] == 0 or len(array) != n_rows:
        raise DataError(
            f"{label} has shape {array.shape} but there are {n_rows} residuals. Pass one row for each, as (m,) or "
            "(m, d)."
        )
    return array
