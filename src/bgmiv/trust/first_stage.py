r"""How strongly the instruments move the treatment, by linear regression: F statistics and partial R².

Two-stage least squares is biased towards least squares where instruments are weak, and its intervals are too short.
The effective F of Montiel Olea and Pflueger says how much, whatever the errors' variances.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import ncx2

from bgmiv.data.ivdata import IVData
from bgmiv.trust.linear_columns import LinearColumns, linear_columns, regression

__all__ = ["FirstStage", "critical_effective_f", "first_stages", "strength_of"]

Floats = NDArray[np.float64]


class FirstStage(NamedTuple):
    """The strength of the excluded instruments for one column of the treatment.

    Attributes:
        f: the F statistic under errors of equal variance.
        robust_f: the same with robust errors, clustered where there are groups.
        effective_f: of Montiel Olea and Pflueger; the robust F if there is one instrument.
        critical: where the effective F has to be above, so that at the 5% level the bias is at most a tenth of its
            worst case.
        partial_r2: share of the treatment's variance, after covariates, that the instruments explain.
        n_instruments: how many there are.
    """

    f: float
    robust_f: float
    effective_f: float
    critical: float
    partial_r2: float
    n_instruments: int


def first_stages(data: IVData) -> tuple[FirstStage, ...]:
    """The strength of the instruments: one result, or one for each level of the treatment but the first.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> w, u = rng.normal(size=(2, 500))
        >>> strong, weak = (IVData.from_arrays(u, a * w + u, instruments=w) for a in (1.0, 0.05))
        >>> [round(first_stages(data)[0].effective_f) for data in (strong, weak)]
        [567, 2]
        >>> round(first_stages(strong)[0].critical, 1)
        23.1

    References:
        J. L. Montiel Olea, C. Pflueger (2013), A robust test for weak instruments, Journal of Business & Economic
        Statistics 31, 358-369.
    """
    columns = linear_columns(data)
    return tuple(strength_of(target, columns) for target in columns.treatment.T)


def strength_of(target: Floats, columns: LinearColumns) -> FirstStage:
    r"""The strength of the instruments for one column.

    With $\hat\pi$ the coefficients of the instruments, V their robust covariance and $Q = \tilde W^\top \tilde W$ of
    the instruments net of the exogenous columns, the effective F is $\hat\pi^\top Q \hat\pi / \mathrm{tr}(V Q)$.
    """
    q = columns.instruments.shape[1]
    if q == 0:
        return FirstStage(0.0, 0.0, 0.0, critical_effective_f(np.eye(1)), 0.0, 0)
    plain, plain_covariance = regression(target, columns, robust=False)
    coefficients, covariance = regression(target, columns)
    f = _wald(plain, plain_covariance) / q
    gram = _net_gram(columns)
    root = np.linalg.cholesky(gram)
    # The covariance of orthonormal instruments' coefficients, up to a rotation that leaves its eigenvalues alone.
    rotated = root.T @ covariance @ root
    explained, noise = float(coefficients @ gram @ coefficients), float(np.trace(rotated))
    freedom = len(target) - columns.exogenous.shape[1] - q
    return FirstStage(
        f=f,
        robust_f=_wald(coefficients, covariance) / q,
        effective_f=explained / noise if noise > 0 else float("inf"),
        critical=critical_effective_f(rotated),
        partial_r2=1.0 if np.isinf(f) else f * q / (f * q + freedom),
        n_instruments=q,
    )


def critical_effective_f(covariance: Floats, *, bias: float = 0.1, size: float = 0.05) -> float:
    r"""Where the effective F shows at level `size` that the bias is at most a share `bias` of its worst case.

    The simplified procedure of the authors: a quantile of $\chi^2_K(x K)/K$ with $x = 1/\mathrm{bias}$ and Patnaik's
    degrees of freedom
    $$K = \frac{\mathrm{tr}(V)^2 (1 + 2x)}{\mathrm{tr}(V^\top V) + 2x\, \mathrm{tr}(V) \max\mathrm{eval}(V)}.$$
    It bounds the worst case by 1 and is therefore conservative for two-stage least squares.

    Args:
        covariance: V, of the coefficients of orthonormal instruments.
        bias: the share.
        size: the level.

    Example:
        >>> [round(critical_effective_f(np.eye(q)), 1) for q in (1, 2, 3)]
        [23.1, 19.3, 17.7]
    """
    values = np.maximum(np.linalg.eigvalsh(covariance), 0.0)
    total, x = float(values.sum()), 1.0 / bias
    if total <= 0:
        values, total = np.ones(len(values)), float(len(values))
    freedom = total**2 * (1 + 2 * x) / (float(np.sum(values**2)) + 2 * x * total * float(values.max()))
    return float(ncx2.ppf(1 - size, freedom, x * freedom)) / freedom


def _net_gram(columns: LinearColumns) -> Floats:
    root = np.ones(len(columns.outcome)) if columns.weights is None else np.sqrt(columns.weights)
    exogenous, instruments = columns.exogenous * root[:, None], columns.instruments * root[:, None]
    net = instruments - exogenous @ np.linalg.lstsq(exogenous, instruments, rcond=1e-10)[0]
    return np.asarray(net.T @ net, np.float64)


def _wald(coefficients: Floats, covariance: Floats) -> float:
    """b' V^-1 b; infinite where there is no noise."""
    if not np.diag(covariance).min() > np.finfo(float).tiny:
        return float("inf") if np.abs(coefficients).max() > 0 else 0.0
    return float(coefficients @ np.linalg.lstsq(covariance, coefficients, rcond=1e-14)[0])
