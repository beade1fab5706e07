r"""Linear estimates and their covariance: errors of equal variance, of any, or dependent within clusters of rows.

With residuals e, effective regressors $\hat x$ (what the instruments predict of them) and
$B = (\hat X^\top \hat X)^{-1}$:

- classical: $B\, e^\top e / (n - k)$;
- robust (HC1): $B \sum_i \hat x_i \hat x_i^\top e_i^2\, B\, n / (n - k)$;
- clustered (CR1): the same with sums over clusters, times $G / (G - 1) \cdot (n - 1) / (n - k)$ for G clusters;
- jackknife over clusters (CR3): $(G - 1) / G \sum_g \delta_g \delta_g^\top$, where $\delta_g$ is what the estimate
  changes by without cluster g, both stages fitted again.

Two ways of clustering: the sum of both, less that of their intersections, each with its own correction.

References:
    A. C. Cameron, J. B. Gelbach, D. L. Miller (2011), Robust inference with multiway clustering, Journal of Business &
    Economic Statistics 29, 238-249.
    J. G. MacKinnon, M. Ø. Nielsen, M. D. Webb (2023), Fast and reliable jackknife and bootstrap methods for
    cluster-robust inference, Journal of Applied Econometrics 38, 671-694.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, lapack, qr, solve_triangular
from scipy.sparse import csr_array

from bgmiv.arrays import Floats, Integers
from bgmiv.data.ivdata import IVData
from bgmiv.data.messages import FloatArray, role_label, setting, warn_user
from bgmiv.errors import DataError, FitWarning, NotIdentifiedError

__all__ = [
    "ROBUST", "Clusters", "Errors", "ErrorsName", "LinearFit", "check_clusters", "cluster_sums",
    "coefficient_covariance", "covariance_root", "errors_of", "fit_linear", "left_out_changes", "left_out_score",
    "mended", "score_covariance",
]  # fmt: skip

ErrorsName = Literal["classical", "robust", "clustered"]

_FEW_CLUSTERS = 20
_MIN_CLUSTERS = 3
# Beyond so many the jackknife and CR1 agree, and CR1 is cheaper.
_MAX_JACKKNIFE = 50
# A column that others determine has less than this share of its length left.
_REDUNDANT = 1e-10
# Of a cluster that leaves less than this of a direction to the others, nothing is known without it.
_NEGLIGIBLE = 1e-9


class Clusters(NamedTuple):
    """One way of clustering.

    Attributes:
        codes: `(n,)` from 0, the cluster of each row.
        n_clusters: how many there are.
        sign: 1, or -1 for the intersections of two ways.
        jackknife: whether its part of the covariance is the jackknife's (CR3) rather than CR1.
    """

    codes: Integers
    n_clusters: int
    sign: float
    jackknife: bool


@dataclass(frozen=True, eq=False)
class Errors:
    """What is assumed of the errors.

    Attributes:
        classical: equal variances, and independent rows.
        ways: of clustering; none where rows are independent.
    """

    classical: bool = False
    ways: tuple[Clusters, ...] = ()

    @property
    def name(self) -> ErrorsName:
        """In a word: classical, robust or clustered."""
        return "clustered" if self.ways else "classical" if self.classical else "robust"

    def without_jackknife(self) -> Errors:
        """The same by CR1 alone."""
        return Errors(self.classical, tuple(way._replace(jackknife=False) for way in self.ways))

    def dof(self, residual: float = np.inf) -> float:
        """Degrees of freedom: those of the residuals, or the smallest number of clusters less one."""
        return float(min((way.n_clusters - 1 for way in self.ways), default=residual))


ROBUST = Errors()


def errors_of(data: IVData) -> Errors:
    """What is assumed of the errors of a data set, by its groups and the covariance that was asked for.

    Raises:
        DataError: clusters are asked for and there are none, or fewer than three.
    """
    if data.covariance in ("classical", "robust"):
        return Errors(data.covariance == "classical")
    groups, second = data.groups, data.second_groups
    if groups is None:
        if data.covariance == "cluster":
            one, other = (setting("covariance", name) for name in ("cluster", "robust"))
            raise DataError(f"{one} needs clusters: pass clusters=, or use {other}.")
        return Errors()
    labels = [groups] if second is None else [groups, second, groups * (int(second.max()) + 1) + second]
    codes = [np.unique(each, return_inverse=True)[1] for each in labels]
    counts = [int(each.max()) + 1 for each in codes]
    # Intersections are no fewer than either.
    if min(counts) < _MIN_CLUSTERS:
        raise DataError(
            f"{role_label('clusters', data.groups_name)}: {min(counts)} clusters do not tell how much estimates vary "
            f"between clusters. Pass finer ones, at least {_MIN_CLUSTERS} of them, or leave clusters out to treat rows "
            "as independent."
        )
    small = [data.covariance == "auto" and count <= _MAX_JACKKNIFE for count in counts]
    return Errors(ways=tuple(map(Clusters, codes, counts, (1.0, 1.0, -1.0), small)))


def check_clusters(data: IVData) -> None:
    """Tell of few clusters.

    Warns:
        FitWarning: there are fewer than 20.
    """
    if data.groups is None or data.covariance in ("classical", "robust"):
        return
    columns = {data.groups_name: data.groups, data.second_groups_name: data.second_groups}
    for name, codes in columns.items():
        count = 0 if codes is None else len(np.unique(codes))
        if 0 < count < _FEW_CLUSTERS:
            warn_user(
                f"{role_label('clusters', name)}: {count} clusters are few. Intervals have {count - 1} degrees of "
                "freedom, and are still too short if clusters differ much in size or in how they were treated.",
                FitWarning,
            )


def cluster_sums(scores: Floats, codes: Integers, count: int) -> Floats:
    """Sums of rows `(n, p)` over clusters, `(count, p)`."""
    entries = (np.ones(len(scores)), (codes, np.arange(len(scores))))
    return csr_array(entries, shape=(count, len(scores))) @ scores


def score_covariance(
    errors: Errors, scores: Floats, n_parameters: float = 0.0, left_out: Callable[[Clusters], Floats] | None = None
) -> Floats:
    """The covariance of the sum of scores `(n, p)` by HC1 or CR1; with `left_out`, by CR3 where errors ask for it.

    Args:
        errors: what is assumed of them; classical ones count as robust.
        scores: of each row.
        n_parameters: how many coefficients there are.
        left_out: how the coefficients change without each cluster `(G, p)`, for the jackknife.
    """
    n, k = scores.shape
    left = max(n - n_parameters, 1.0)
    if not errors.ways:
        return scores.T @ scores * (n / left)
    total = np.zeros((k, k))
    for way in errors.ways:
        count = way.n_clusters
        if way.jackknife and left_out is not None:
            sums, factor = left_out(way), (count - 1) / count
        else:
            sums, factor = cluster_sums(scores, way.codes, count), count / (count - 1) * (n - 1) / left
        total += way.sign * factor * (sums.T @ sums)
    return total


def coefficient_covariance(
    errors: Errors,
    columns: Floats,
    residuals: Floats,
    n_parameters: int,
    regressors: Floats,
    basis: Floats | None = None,
    wanted: Floats | None = None,
) -> Floats:
    """The covariance of the coefficients of orthonormal columns.

    Args:
        errors: what is assumed of them.
        columns: `(n, k)` effective regressors, orthonormal.
        residuals: `(n,)`.
        n_parameters: how many coefficients there are, others than these among them.
        regressors, basis, wanted: as in :func:`left_out_changes`, for the jackknife; the columns are the last k.
    """
    k = columns.shape[1]
    if errors.classical:
        return np.eye(k) * (residuals @ residuals / max(len(columns) - n_parameters, 1))

    def left_out(way: Clusters) -> Floats:
        return left_out_changes(way, regressors, residuals, basis, wanted)[:, -k:]

    return mended(errors, score_covariance(errors, columns * residuals[:, None], n_parameters, left_out))


def mended(errors: Errors, matrix: Floats) -> Floats:
    """A covariance without negative eigenvalues, which the difference of those of two-way clusters may have.

    Warns:
        FitWarning: that it had some.
    """
    if len(errors.ways) < 2:
        return matrix
    values, vectors = np.linalg.eigh(matrix)
    if values[0] >= -1e-12 * max(values[-1], 0.0):
        return matrix
    warn_user(
        "the covariance of two-way clusters was not positive; its negative eigenvalues are set to 0, and some standard "
        "errors may be too small. Cluster one way to compare.",
        FitWarning,
    )
    return (vectors * np.maximum(values, 0.0)) @ vectors.T


class LinearFit(NamedTuple):
    """A linear regression, by least squares or by two-stage least squares.

    Attributes:
        coefficients, covariance: of the regressors, `(k,)` and `(k, k)`.
        dof: degrees of freedom of the covariance.
    """

    coefficients: Floats
    covariance: Floats
    dof: float


def fit_linear(
    outcome: Floats,
    exogenous: Floats,
    treatment: Floats,
    instruments: Floats | None = None,
    *,
    weights: FloatArray | None = None,
    errors: Errors = ROBUST,
    n_absorbed: int = 0,
) -> LinearFit:
    """Two-stage least squares, or least squares without instruments; the units of columns do not matter.

    Regressors are the exogenous columns and, last, those of the treatment, which have to be identified without any one
    of the clusters if the jackknife is asked for.

    Args:
        outcome: `(n,)`.
        exogenous: `(n, p)`; the first column is the constant.
        treatment: `(n, m)`.
        instruments: `(n, q)`, beside the exogenous columns.
        weights: `(n,)` positive.
        errors: what is assumed of them.
        n_absorbed: coefficients of columns that were taken out of all of these before, for degrees of freedom.

    Raises:
        LinAlgError: some columns are linear combinations of others.
        NotIdentifiedError: without some cluster the effects of the treatment are not identified.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> w, u = rng.normal(size=(2, 5000, 1))
        >>> fit = fit_linear(2.0 * w[:, 0] + u[:, 0], np.ones((5000, 1)), w + u, 1e-9 * w)
        >>> fit.coefficients.round(1) + 0.0, fit.dof
        (array([0., 2.]), 4998.0)
    """
    share = np.ones(len(outcome)) if weights is None else np.asarray(weights, np.float64)
    root = np.sqrt(share)[:, None]
    x, back = _standard(np.hstack([exogenous, treatment]), share)
    x, y = x * root, np.asarray(outcome, np.float64) * root[:, 0]
    basis = None
    if instruments is None:
        effective, inner = np.linalg.qr(x)
    else:
        basis, first = np.linalg.qr(_standard(np.hstack([exogenous, instruments]), share)[0] * root)
        _check_rank(first, "instruments and covariates")
        turn, inner = np.linalg.qr(basis.T @ x)
        effective = basis @ turn
    _check_rank(inner, "regressors, or what the instruments predict of them,")
    inverse = solve_triangular(inner, np.eye(len(back)))
    beta = inverse @ (effective.T @ y)
    residuals = y - x @ beta
    n_parameters, half = len(back) + n_absorbed, back @ inverse
    wanted = half[exogenous.shape[1] :]
    wanted = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
    middle = coefficient_covariance(errors, effective, residuals, n_parameters, x @ inverse, basis, wanted)
    return LinearFit(back @ beta, half @ middle @ half.T, errors.dof(len(y) - n_parameters))


def _standard(columns: Floats, share: Floats) -> tuple[Floats, Floats]:
    """The constant, and the other columns with mean 0 and length 1; and the matrix from their coefficients to ours."""
    others = np.asarray(columns[:, 1:], np.float64)
    centre = share @ others / share.sum()
    moved = others - centre
    length = np.sqrt(share @ moved**2)
    size = np.abs(others).max(axis=0, initial=0.0) * np.sqrt(share.sum())
    if np.any(length <= 1e-13 * size):
        raise np.linalg.LinAlgError("a column is constant")
    back = np.diag(np.concatenate([[1.0 / np.sqrt(share.sum())], 1.0 / length]))
    back[0, 1:] = -centre / length
    constant = np.full((len(columns), 1), 1.0 / np.sqrt(share.sum()))
    return np.hstack([constant, moved / length]), back


def _check_rank(factor: Floats, what: str) -> None:
    """Refuse the triangular factor of columns some of which the others determine."""
    lengths = np.abs(np.diag(qr(factor, mode="r", pivoting=True)[0]))
    if len(lengths) < factor.shape[1] or lengths[-1] <= _REDUNDANT:
        raise np.linalg.LinAlgError(f"{what} do not have full column rank")


def left_out_changes(
    way: Clusters, regressors: Floats, residuals: Floats, basis: Floats | None = None, wanted: Floats | None = None
) -> Floats:
    """How the coefficients of regressors `(n, k)` change without each cluster: those of fits to the other rows.

    What the other rows do not identify is left as it is: the indicator of a cluster, say.

    Args:
        way: the clusters.
        regressors: `(n, k)`, orthonormal; with instruments, what these predict of them is.
        residuals: `(n,)` of the fit to all rows.
        basis: orthonormal columns `(n, l)` that span the instruments; None for least squares.
        wanted: `(m, k)` combinations of the coefficients that have to be identified.
    """
    order = np.argsort(way.codes, kind="stable")
    ends = np.cumsum(np.bincount(way.codes))[:-1]
    z = regressors if basis is None else basis
    right = np.column_stack([regressors, residuals])
    gram, cross = np.eye(z.shape[1]), z.T @ right
    changes = np.empty((way.n_clusters, regressors.shape[1]))
    for g, rows in enumerate(np.split(order, ends)):
        own, rest = z[rows], cross - z[rows].T @ right[rows]
        inner = gram - own.T @ own
        if basis is not None:
            first = _solve(inner, rest)
            inner, rest = rest[:, :-1].T @ first[:, :-1], rest[:, :-1].T @ first[:, -1:]
        changes[g] = _solve(inner, rest[:, -1:], wanted)[:, 0]
    return changes


def _solve(matrix: Floats, right: Floats, wanted: Floats | None = None) -> Floats:
    """The shortest solution of a symmetric system; `wanted` combinations of it have to be determined."""
    try:
        factor = cho_factor(matrix, lower=True)
        if np.diag(factor[0]).min() ** 2 > _NEGLIGIBLE:
            return cho_solve(factor, right)
    except np.linalg.LinAlgError:
        pass
    values, vectors = np.linalg.eigh(matrix)
    known = values > _NEGLIGIBLE
    if wanted is not None and np.any(np.abs(wanted @ vectors[:, ~known]) > 1e-6):
        raise NotIdentifiedError(
            "groups: without one of the clusters the effect of the treatment is not identified, so that it rests on "
            "this cluster alone. Pass finer groups, or other instruments; "
            f"{setting('covariance', 'cluster')} does not refuse it."
        )
    return vectors[:, known] @ ((vectors[:, known].T @ right) / values[known, None])


def left_out_score(gram: Floats, score: Floats, inverse: Floats) -> Floats:
    r"""A cluster's score for the jackknife: $(I - S_g B)^{-1} s_g = \Phi_g^\top (I - \Phi_g B \Phi_g^\top)^{-1} e_g$.

    B times it is what coefficients $B \Phi^\top y$ lose without the cluster, ridges as they are.

    Args:
        gram: $S_g = \Phi_g^\top \Phi_g$ of the cluster's columns, `(k, k)`.
        score: $s_g = \Phi_g^\top e_g$ `(k,)` or several `(k, m)`.
        inverse: $B$, that of the penalised Gram matrix of all rows.

    Example:
        >>> columns, errors = np.array([[1.0], [2.0]]), np.array([1.0, -1.0])
        >>> left_out_score(columns.T @ columns, columns.T @ errors, np.array([[0.1]]))
        array([-2.])
    """
    matrix = np.eye(len(gram)) - gram @ inverse
    factor, pivots, failed = lapack.dgetrf(matrix)
    if not failed and lapack.dgecon(factor, np.abs(matrix).sum(axis=0).max())[0] > _NEGLIGIBLE:
        return lapack.dgetrs(factor, pivots, score)[0]
    return np.asarray(np.linalg.lstsq(matrix, score, rcond=_NEGLIGIBLE)[0], np.float64)


def covariance_root(covariance: Floats) -> Floats:
    """R with R Rᵀ the covariance, whatever the units of its rows.

    Example:
        >>> root = covariance_root(np.diag([1e-20, 1.0]))
        >>> bool(np.allclose(root @ root.T / 1e-20, np.diag([1.0, 1e20])))
        True
    """
    scale = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    unit = np.where(scale > 0.0, scale, 1.0)
    values, vectors = np.linalg.eigh(covariance / unit / unit[:, None])
    return scale[:, None] * vectors * np.sqrt(np.maximum(values, 0.0))
