r"""The IV integral: rules that turn $p(x \mid w, z)$ into weighted treatment nodes.

Every rule gives nodes $x_m$ and log-weights $\ell_m$ for one row, and the pseudo-likelihood of
eq. iv_integrated_likelihood is always
$\log p_{\mathrm{IV}}(y \mid w, z) = \operatorname{logsumexp}_m\{\ell_m + \log p(y \mid x_m, z)\}$.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import ArrayLike

from bgmiv.arrays import TINY, Floats
from bgmiv.errors import ConfigError
from bgmiv.nn.settings import check_bounds

if TYPE_CHECKING:
    from jax import Array

    from bgmiv.likelihood import Head

__all__ = [
    "FiniteMixture", "GaussHermite", "IntegrationRule", "MonteCarlo", "ObservedTreatment", "QuasiMonteCarlo",
    "ResidualNodes", "residual_nodes", "rule_for",
]  # fmt: skip


class IntegrationRule(Protocol):
    """Gives the treatment nodes of one row."""

    def nodes(self, head: Head, raw: Array, observed: Array, key: Array) -> tuple[Array, Array]:
        """Nodes and log-weights, both of shape `(n_nodes,)`.

        Args:
            head: the treatment's head.
            raw: the treatment network's output for the row.
            observed: the row's own treatment (only `ObservedTreatment` uses it).
            key: randomness of this row and step.
        """


class _NormalRule(ABC):
    """A rule whose nodes are standard normal ones, moved to the row's mean and standard deviation."""

    @abstractmethod
    def quantiles(self, key: Array) -> tuple[ArrayLike, ArrayLike]:
        """Nodes of a standard normal treatment and their log-weights."""

    def nodes(self, head: Head, raw: Array, observed: Array, key: Array) -> tuple[Array, Array]:
        import jax.numpy as jnp

        from bgmiv.likelihood import Gaussian

        assert isinstance(head, Gaussian), "rule_for gives the rule of a discrete treatment"
        quantiles, log_weights = (jnp.asarray(values, raw.dtype) for values in self.quantiles(key))
        x = head.mean(raw) + jnp.sqrt(head.variance(raw)) * quantiles
        return x, jnp.broadcast_to(log_weights, x.shape)


@dataclass(frozen=True)
class MonteCarlo(_NormalRule):
    """Plain draws from the treatment model, with equal weights: the paper's rule, 1000 draws there.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bgmiv.likelihood import Gaussian
        >>> x, log_weights = MonteCarlo(4).nodes(Gaussian(1), jnp.zeros(2), jnp.zeros(()), jax.random.key(0))
        >>> x.shape, round(float(log_weights[0]), 4)
        ((4,), -1.3863)
    """

    n_draws: int = 1000

    def __post_init__(self) -> None:
        check_bounds(self, n_draws=1)

    def quantiles(self, key: Array) -> tuple[ArrayLike, ArrayLike]:
        import jax

        return jax.random.normal(key, (self.n_draws,)), -log(self.n_draws)


@dataclass(frozen=True)
class QuasiMonteCarlo(_NormalRule):
    r"""Stratified normal quantiles $x_m = \mu + \sigma \Phi^{-1}((m + u) / M)$ with a uniform shift $u$ a row and step.

    Unbiased as plain Monte Carlo is, with an error that falls like $1/M$ and faster instead of $1/\sqrt M$.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bgmiv.likelihood import Gaussian
        >>> x, _ = QuasiMonteCarlo(8).nodes(Gaussian(1), jnp.zeros(2), jnp.zeros(()), jax.random.key(0))
        >>> bool((jnp.diff(x) > 0).all())
        True
    """

    n_nodes: int = 64

    def __post_init__(self) -> None:
        check_bounds(self, n_nodes=1)

    def quantiles(self, key: Array) -> tuple[ArrayLike, ArrayLike]:
        import jax
        import jax.numpy as jnp
        from jax.scipy.special import ndtri

        u = (jnp.arange(self.n_nodes) + jax.random.uniform(key)) / self.n_nodes
        # In float32 a shift near 1 can round the last level to exactly 1, whose quantile is infinite.
        return ndtri(jnp.clip(u, 1e-7, 1.0 - 1e-7)), -log(self.n_nodes)


@dataclass(frozen=True)
class GaussHermite(_NormalRule):
    """Gauss-Hermite quadrature: exact for polynomials in x up to degree `2 * n_nodes - 1`, no randomness.

    `GaussHermite(1)` is the plug-in at the mean treatment.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bgmiv.likelihood import Gaussian
        >>> x, _ = GaussHermite(1).nodes(Gaussian(1), jnp.asarray([3.0, 0.0]), jnp.zeros(()), jax.random.key(0))
        >>> float(x[0])
        3.0
    """

    n_nodes: int = 8

    def __post_init__(self) -> None:
        check_bounds(self, n_nodes=1)
        # Beyond, weights underflow.
        if self.n_nodes > 180:
            raise ConfigError(f"GaussHermite is stable up to 180 nodes, got {self.n_nodes}; use QuasiMonteCarlo.")

    def quantiles(self, key: Array) -> tuple[ArrayLike, ArrayLike]:
        points, weights = np.polynomial.hermite_e.hermegauss(self.n_nodes)
        return points, np.log(weights / weights.sum())


@dataclass(frozen=True)
class ResidualNodes(_NormalRule):
    """Nodes at given standardised residuals of the treatment, with equal weights: for one that is not normal.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bgmiv.likelihood import Gaussian
        >>> rule = ResidualNodes((-1.0, 1.0))
        >>> x, _ = rule.nodes(Gaussian(1), jnp.asarray([3.0, 0.0]), jnp.zeros(()), jax.random.key(0))
        >>> float(x.mean())
        3.0
    """

    points: tuple[float, ...]

    def quantiles(self, key: Array) -> tuple[ArrayLike, ArrayLike]:
        return self.points, -log(len(self.points))


def residual_nodes(residuals: Floats, n_nodes: int, weights: Floats) -> ResidualNodes:
    """Nodes from residuals: means of groups of equal weight in their order, moved to mean zero and variance one.

    Example:
        >>> residual_nodes(np.array([-3.0, -1.0, 1.0, 3.0]), 2, np.ones(4)).points
        (-1.0, 1.0)
    """
    order = np.argsort(residuals)
    values, counted = residuals[order], weights[order]
    levels = (np.cumsum(counted) - 0.5 * counted) / counted.sum()
    group = np.minimum((levels * n_nodes).astype(int), n_nodes - 1)
    totals = np.bincount(group, counted, n_nodes)
    points = np.bincount(group, counted * values, n_nodes)[totals > 0] / totals[totals > 0]
    points = (points - points.mean()) / max(points.std(), TINY)
    return ResidualNodes(tuple(points.tolist()))


@dataclass(frozen=True)
class FiniteMixture:
    """The exact sum over a discrete treatment's values.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bgmiv.likelihood import Bernoulli
        >>> x, _ = FiniteMixture().nodes(Bernoulli(1), jnp.zeros(1), jnp.zeros(()), jax.random.key(0))
        >>> x.tolist()
        [0.0, 1.0]
    """

    def nodes(self, head: Head, raw: Array, observed: Array, key: Array) -> tuple[Array, Array]:
        import jax.numpy as jnp

        from bgmiv.likelihood import FiniteHead

        assert isinstance(head, FiniteHead), "rule_for refuses a continuous treatment"
        return jnp.asarray(head.support, raw.dtype), head.log_weights(raw)


@dataclass(frozen=True)
class ObservedTreatment:
    """No integral: the outcome is learned at the observed treatment, as if it were not endogenous.

    This is the likelihood of a model without an instrument, kept to show what the correction does.
    """

    def nodes(self, head: Head, raw: Array, observed: Array, key: Array) -> tuple[Array, Array]:
        import jax.numpy as jnp

        return observed[None], jnp.zeros((1,), raw.dtype)


def rule_for(rule: IntegrationRule, head: Head) -> IntegrationRule:
    """The rule itself, or the exact sum when the treatment is discrete and a continuous rule was configured.

    Raises:
        ConfigError: an exact sum was configured for a continuous treatment.
    """
    from bgmiv.likelihood import FiniteHead

    if isinstance(head, FiniteHead):
        return rule if isinstance(rule, ObservedTreatment) else FiniteMixture()
    if isinstance(rule, FiniteMixture):
        raise ConfigError(
            f"FiniteMixture needs a discrete treatment, but this treatment's head is {type(head).__name__}; use "
            "QuasiMonteCarlo() or GaussHermite() for a continuous one."
        )
    return rule
