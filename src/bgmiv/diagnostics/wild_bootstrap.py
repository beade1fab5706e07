r"""The wild restricted efficient (WRE) cluster bootstrap of two-stage least squares, for few clusters.

The test of an effect b imposes it on both equations. With $M$ the residuals of a regression on exogenous columns and
absorbed indicators, and orthonormal $Z$ that span what $M$ leaves of the instruments:

1. $u = M (y - x b)$ are the structural residuals, and $M x = Z \pi + u \rho + \text{rest}$, by least squares, the first
   stage. With u as a regressor π is as efficient as that of limited-information maximum likelihood. Its residuals are
   $r = M x - Z \pi$.
2. A draw has one weight $v_g$ for each cluster g, the same in both equations: $u^*_g = v_g u_g$, $r^*_g = v_g r_g$,
   $x^* = Z \pi + r^*$, $y^* = x^* b + u^*$.
3. Its statistic is $t^* = (b^* - b) / s^*$, by two-stage least squares of $y^*$ on $x^*$ and the exogenous columns,
   with the clustered standard error (CR1; its constant factor has no influence).
4. The p-value of b is the share of draws with $|t^*| \ge |t|$, for $t = (\hat b - b) / s$ of the data. The data are one
   of the draws, that with all weights 1.

The confidence set is every b with a p-value above one minus the level. With $a = Z^\top x^*$ and $Z_g$ the rows of
cluster g,
$$t^* = \frac{a^\top Z^\top u^*}{(\sum_g s_g^2)^{1/2}}, \quad s_g = a^\top Z_g^\top M \{u^* - x^* (b^* - b)\}.$$
All of it is linear in $Z_g^\top M_{gh} c_h$, sums over the rows of two clusters, where c is one of four columns: the
residuals of the estimate, the treatment, and what Z predicts of each. So no draw touches the rows, and a test of
another b needs a few products for each draw.

Weights are -1 or 1 (Rademacher). Fewer than ten clusters have few patterns of signs, and take Webb's six points
$\pm\sqrt{1/2}, \pm 1, \pm\sqrt{3/2}$. Where there are no more patterns than draws, each is taken once.

References:
    R. Davidson, J. G. MacKinnon (2010), Wild bootstrap tests for IV regression, Journal of Business & Economic
    Statistics 28, 128-144.
    D. Roodman, J. G. MacKinnon, M. Ø. Nielsen, M. D. Webb (2019), Fast and wild: bootstrap inference in Stata using
    boottest, Stata Journal 19, 4-60.
    M. D. Webb (2023), Reworking wild bootstrap-based inference for clustered errors, Canadian Journal of Economics 56,
    839-858.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np

from bgmiv.covariance import Clusters, cluster_sums
from bgmiv.diagnostics.columns import Floats, LinearColumns
from bgmiv.errors import DataError

__all__ = ["ClusterProducts", "WildBootstrap", "cluster_products", "draw_weights", "one_way"]

_RADEMACHER = (1.0, -1.0)
_WEBB = (1.0, -1.0, 0.5**0.5, -(0.5**0.5), 1.5**0.5, -(1.5**0.5))
_FEW_CLUSTERS = 10
_DRAWS, _FEW_DRAWS, _SEED = 9999, 999, 0
# Beyond so many instruments there are fewer draws; beyond the others memory would not suffice.
_MANY_INSTRUMENTS, _MAX_INSTRUMENTS, _MAX_CLUSTERS = 10, 50, 500
_MAX_ENTRIES = 4_000_000
# Ends that are further from the estimate than so many standard errors are infinite.
_FAR = 1e3
_HALF_NODES, _HALVINGS = 60, 24
# Equal statistics differ by rounding, and so does what an exact fit leaves of columns with standard deviation 1.
_ROUNDING, _EXACT = 1e-9, 1e-13


class ClusterProducts(NamedTuple):
    r"""What all draws have in common: sums over the rows of clusters, in the units of the columns.

    Attributes:
        estimate, std_error: of two-stage least squares, clustered, without a correction for small samples.
        pairs: `(G, G, 4 q)` entry h, g is $Z_g^\top M_{gh} c_h$ for four columns c: the residuals of the estimate, the
            treatment, and what the instruments predict of each.
        fitted: `(G, 4 q)` the sums $Z_g^\top c_g$ of the last two, and 0 for the others.
        left: `(2, 2)` the products of the first two, net of the instruments.
    """

    estimate: float
    std_error: float
    pairs: Floats
    fitted: Floats
    left: Floats


def one_way(columns: LinearColumns) -> Clusters:
    """The one way of clustering that the bootstrap draws weights for.

    Raises:
        DataError: there are none, two, or too many; or covariates are replaced by scores, so that these columns are not
            those of the fit.
    """
    ways, n_instruments = columns.errors.ways, columns.instruments.shape[1]
    if "groups_ignored" in columns.prepared:
        raise DataError(
            f"clusters: {columns.prepared['groups_ignored']:.0f} clusters are too few for method='wild' with "
            f"{n_instruments} instruments. Pass finer ones, or use method='usual'."
        )
    if not ways:
        raise DataError(
            "method='wild' draws a weight for each cluster. Fit with clusters=..., and with covariance='auto' or "
            "'cluster'; or use method='usual'."
        )
    if len(ways) > 1:
        raise DataError(
            "method='wild' needs clusters of one way. Fit with one column of clusters, or use method='usual'."
        )
    if "components" in columns.prepared:
        raise DataError(
            f"method='wild' needs the columns of the fit, and {columns.prepared['covariate_columns']:.0f} covariate "
            "columns are too many. Pass fewer covariates, or use method='usual'."
        )
    if ways[0].n_clusters > _MAX_CLUSTERS or n_instruments > _MAX_INSTRUMENTS:
        raise DataError(
            f"method='wild' takes at most {_MAX_CLUSTERS} clusters and {_MAX_INSTRUMENTS} instruments, got "
            f"{ways[0].n_clusters} and {n_instruments}. Use method='usual', which needs many clusters."
        )
    return ways[0]


def cluster_products(columns: LinearColumns) -> ClusterProducts:
    """The sums that a bootstrap of these columns needs; the rows are not needed after it."""
    codes, n_clusters = one_way(columns)[:2]
    n, q = columns.instruments.shape
    root = np.ones((n, 1)) if columns.weights is None else np.sqrt(columns.weights)[:, None]
    exogenous = np.linalg.qr(columns.exogenous * root)[0]

    def net(values: Floats) -> Floats:
        return np.asarray(values - exogenous @ (exogenous.T @ values), np.float64)

    z = np.linalg.qr(net(columns.instruments * root))[0]
    both = net(np.column_stack([columns.outcome, columns.treatment[:, 0]]) * root)
    y, x = (z.T @ both).T
    estimate = float(x @ y) / float(x @ x)
    both[:, 0] -= estimate * both[:, 1]
    four = np.hstack([both, z @ (z.T @ both)])
    left = (four[:, :2] - four[:, 2:]).T @ (four[:, :2] - four[:, 2:])

    def sums(instruments: Floats) -> Floats:
        return cluster_sums((four[:, :, None] * instruments[:, None, :]).reshape(n, 4 * q), codes, n_clusters)

    pairs = np.empty((n_clusters, n_clusters, 4 * q))
    for g in range(n_clusters):
        # Indicators that cross clusters carry the weights of other clusters into this one.
        own = np.where((codes == g)[:, None], z, 0.0)
        pairs[:, g] = sums(net(columns.net(own / root) * root))
    fitted = sums(z)
    std_error = float(np.linalg.norm(fitted[:, :q] @ x)) / float(x @ x)
    fitted[:, : 2 * q] = 0.0
    return ClusterProducts(estimate, std_error, pairs, fitted, left)


def draw_weights(n_clusters: int, draws: int = _DRAWS, seed: int = _SEED) -> Floats:
    """Weights of clusters, `(draws + 1, G)` with those of the data first; or every pattern, if these are no more.

    Example:
        >>> draw_weights(3).shape, draw_weights(12).shape, draw_weights(30).shape
        ((216, 3), (4096, 12), (10000, 30))
    """
    points = _WEBB if n_clusters < _FEW_CLUSTERS else _RADEMACHER
    if len(points) ** n_clusters <= draws:
        return np.array(list(product(points, repeat=n_clusters)))
    drawn = np.random.default_rng(seed).choice(points, size=(draws, n_clusters))
    return np.vstack([np.ones((1, n_clusters)), drawn])


class WildBootstrap(NamedTuple):
    """The draws of a bootstrap, for tests of any effect.

    Attributes:
        common: what they have in common.
        totals: `(draws, 4 q)` the sums over clusters of each draw's columns.
        squares: `(draws, q q, 16)` the sums over clusters of their products, by pairs of instruments and of columns.

    Example:
        >>> from bgmiv.data.ivdata import IVData
        >>> from bgmiv.diagnostics.columns import linear_columns
        >>> rng = np.random.default_rng(0)
        >>> state = np.repeat(np.arange(8), 50)
        >>> w, u, e = rng.normal(size=(3, 400)) + rng.normal(size=(3, 8))[:, state]
        >>> x = 2.0 * w + u
        >>> data = IVData.from_arrays(x + u + e, x, instruments=w, clusters=state)
        >>> bootstrap = WildBootstrap.of(linear_columns(data))
        >>> bootstrap.p_value(0.0) < 0.05, bootstrap.p_value(bootstrap.common.estimate)
        (True, 1.0)
        >>> [(lower, upper)] = bootstrap.kept(0.95)
        >>> bool(lower < bootstrap.common.estimate < upper)
        True
    """

    common: ClusterProducts
    totals: Floats
    squares: Floats

    @classmethod
    def of(cls, columns: LinearColumns, seed: int = _SEED) -> WildBootstrap:
        """The bootstrap of these columns."""
        common, q = cluster_products(columns), columns.instruments.shape[1]
        draws = _DRAWS if q <= _MANY_INSTRUMENTS else _FEW_DRAWS
        return cls.drawn(common, draw_weights(len(common.pairs), draws, seed))

    @classmethod
    def drawn(cls, common: ClusterProducts, weights: Floats) -> WildBootstrap:
        """The bootstrap with weights `(draws, G)`, those of the data first."""
        n_clusters, size = common.fitted.shape
        q = size // 4
        pairs = common.pairs.reshape(n_clusters, n_clusters * size)
        totals, squares = np.empty((len(weights), size)), np.empty((len(weights), q * q, 16))
        some = max(1, _MAX_ENTRIES // (n_clusters * size))
        for start in range(0, len(weights), some):
            part = slice(start, start + some)
            by_cluster = (weights[part] @ pairs).reshape(-1, n_clusters, size) - common.fitted
            totals[part] = by_cluster.sum(axis=1)
            products = (by_cluster.transpose(0, 2, 1) @ by_cluster).reshape(-1, 4, q, 4, q)
            squares[part] = products.transpose(0, 2, 4, 1, 3).reshape(-1, q * q, 16)
        return cls(common, totals, squares)

    def statistics(self, effect: float) -> Floats:
        """The t statistic of each draw, `(draws,)`, under the hypothesis of an effect in the units of the columns."""
        top, error = self._ratio(effect - self.common.estimate)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(top / error, np.float64)

    def p_value(self, effect: float) -> float:
        """The p-value of an effect in the units of the columns: the share of draws at least as far from it."""
        distance = effect - self.common.estimate
        top, error = self._ratio(distance)
        beyond = np.abs(top) * self.common.std_error >= (1.0 - _ROUNDING) * abs(distance) * error
        beyond[0] = True
        return float(np.mean(beyond))

    def _ratio(self, distance: float) -> tuple[Floats, Floats]:
        """Numerators and denominators of the statistics."""
        (e_e, e_x), (_, x_x) = self.common.left
        noise = e_e - 2.0 * distance * e_x + distance**2 * x_x
        rho = (e_x - distance * x_x) / noise if noise > 0.0 else 0.0
        # Of the four columns: the structural residuals, and the treatment of a draw.
        structural = np.array([1.0, -distance, 0.0, 0.0])
        treatment = np.array([0.0, 1.0, rho, -1.0 - rho * distance])
        totals = self.totals.reshape(len(self.totals), 4, -1)
        first_stage = np.einsum("dcq,c->dq", totals, treatment)
        top = np.sum(first_stage * np.einsum("dcq,c->dq", totals, structural), axis=1)
        strength = np.sum(first_stage**2, axis=1)
        change = top / np.maximum(strength, np.finfo(float).tiny)
        # The sum of squared scores, those of structural - change · treatment, is a quadratic function of the change.
        both = ((structural, structural), (structural, treatment), (treatment, treatment))
        by_pair = self.squares.reshape(-1, 16) @ np.column_stack([np.outer(*pair).ravel() for pair in both])
        instruments = (first_stage[:, :, None] * first_stage[:, None, :]).reshape(len(top), -1)
        constant, mixed, square = np.einsum("dp,dpk->kd", instruments, by_pair.reshape(len(top), -1, 3))
        return top, np.sqrt(np.maximum(constant - 2.0 * change * mixed + change**2 * square, 0.0))

    def kept(self, level: float) -> tuple[tuple[float, float], ...]:
        """The confidence set, as disjoint intervals in rising order in the units of the columns.

        Effects up to a thousand standard errors from the estimate are tested on a grid, and the ends found by
        bisection. Points of the grid differ by an eighth of a standard error near the estimate, and by an eighth of the
        distance to it elsewhere: a shorter piece or gap may be missed. What is kept at the last point is kept to
        infinity.
        """
        estimate, unit = self.common.estimate, self.common.std_error
        if unit <= _EXACT * max(1.0, abs(estimate)):
            return ((estimate, estimate),)

        def kept(node: float) -> bool:
            return self.p_value(estimate + unit * float(np.sinh(node))) > 1.0 - level + _ROUNDING

        nodes = np.arange(-_HALF_NODES, _HALF_NODES + 1) / _HALF_NODES * np.arcsinh(_FAR)
        inside = [kept(float(node)) for node in nodes]
        ends = [-np.inf] if inside[0] else []
        for i in np.flatnonzero(np.diff(inside)):
            low, high = float(nodes[i]), float(nodes[i + 1])
            for _ in range(_HALVINGS):
                middle = (low + high) / 2.0
                low, high = (middle, high) if kept(middle) == inside[i] else (low, middle)
            ends.append(estimate + unit * float(np.sinh((low + high) / 2.0)))
        ends += [np.inf] if inside[-1] else []
        return tuple(zip(ends[::2], ends[1::2], strict=True))
