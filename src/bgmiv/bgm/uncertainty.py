r"""How uncertain a trained outcome generator is, by its quasi-posterior in the tangent of its weights.

Training has the outcome generator's weights $\omega$ meet $E[y - m_\omega(w, z)] = 0$, where $m_\omega(w, z)$ is the
structural mean integrated over $p(x \mid w, z)$, by least squares. Near the trained $\hat\omega$ the mean is linear in
the weights, $m_\omega \approx \hat m + J(\omega - \hat\omega)$. With a Gaussian prior of precision $n\lambda$ that is
a ridge regression, whose weights scatter with the sandwich covariance

$$A^{-1} \Big(\tfrac1{n^2} \textstyle\sum_g s_g s_g^\top\Big) A^{-1}, \qquad A = \tfrac1n J^\top J + \lambda I,
\qquad s_g = \sum_{i \in g} r_i J_i,$$

over rows, or over groups of rows that may depend on one another. The prior is as wide as training was free: λ is the
one at which rows have the mean leverage h that shows in how much larger their residuals are when they are left out,
$r_\text{out} = r / (1 - h)$, and it is residuals as they would be if left out that enter the scores.

A ridge regression is also biased: of weights that are $\omega$ from the prior's mean it takes $\lambda A^{-1} \omega$.
Under that prior, $\omega \sim N(0, \tfrac{\sigma^2}{n \lambda} I)$, with $\sigma^2$ the variance of left-out rows'
residuals. On average over such functions noise and bias together cover g (Nychka 1988), as with a sieve's penalties.

What is kept are draws: directions in the space of weights, along which predictions are differentiated. Members see the
same rows, so that the same rows' noise moves all of them: their directions are drawn together. So does one g: the
covariance of the bias is the mean of that of the members.

Reference:
    V. Chernozhukov, H. Hong (2003), An MCMC approach to classical estimation, Journal of Econometrics 115; A. Immer, M.
    Korzepa, M. Bauer (2021), Improving predictions of Bayesian neural nets via local linearization, AISTATS; D. Nychka
    (1988), Bayesian confidence intervals for smoothing splines, Journal of the American Statistical Association 83.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2
from scipy.linalg import eigh
from scipy.optimize import brentq

from bgmiv.arrays import TINY, Floats, Integers
from bgmiv.bgm.config import BGMIVConfig, LatentMap, LatentPosterior
from bgmiv.bgm.latents import latents_of
from bgmiv.bgm.members import Member, TrainingRows
from bgmiv.bgm.model import BGMIVModel, iv_means
from bgmiv.data.folds import some_rows
from bgmiv.integrate import IntegrationRule
from bgmiv.likelihood import FiniteHead
from bgmiv.support import OUTSIDE, Novelty, fit_novelty
from bgmiv.training import Row, in_blocks, padded_size, run_once

__all__ = [
    "MAX_POINTS",
    "N_DIRECTIONS",
    "PRIOR_PRECISION",
    "Directions",
    "ModelSupport",
    "fit_model_support",
    "tangent_directions",
    "tangent_factors",
]

N_DIRECTIONS = 64
"""Draws kept; their variance has as many degrees of freedom."""
PRIOR_PRECISION = 1e-3
"""λ where no rows were held out, so that nothing shows how free training was."""
MAX_POINTS = 1024
"""Points at which derivatives or densities are computed together."""

_MAX_ROWS = 1000
_AT_ONCE = 64
_LEVERAGES = (0.005, 0.8)
_PRECISIONS = (-7.0, 3.0)


class Directions(NamedTuple):
    """Draws of the members' weights around what was trained.

    Attributes:
        noise: `(members, N_DIRECTIONS, weights)` what other rows would change; a draw is one of all members.
        bias: `(members, k, weights)` what the prior takes from g; each draw is of one member.
    """

    noise: NDArray[np.float32]
    bias: NDArray[np.float32]


def tangent_directions(
    config: BGMIVConfig, rows: TrainingRows, members: Sequence[Member], *, groups: Integers | None = None
) -> Directions:
    """Draws of the members' weights around what was trained.

    A thousand rows (whole groups, as many as make that number) say how the weights scatter; all rows how much.

    Args:
        config: of the fit.
        rows: of the fit.
        members: whose outcome generators.
        groups: codes of groups whose rows may depend on one another; None where each row is its own.
    """
    n = len(rows.scaled.x)
    rng = np.random.default_rng(0)
    codes = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
    chosen = some_rows(n, _MAX_ROWS, rng, codes)[: 2 * _MAX_ROWS]
    scaled = rows.at(chosen)
    importance = rows.data.full_weights[chosen]
    importance = importance / importance.mean()
    _, place = np.unique(codes[chosen], return_inverse=True)
    multipliers = rng.normal(size=(place.max() + 1, N_DIRECTIONS))[place]
    spectra, owners = [], []
    for member in members:
        at_rows = partial(_at_rows, member.model, config.initial.integration)
        # The generators see latents in place of covariates.
        arrays = (scaled.x, scaled.y, scaled.w, latents_of(member.model, scaled.v, config.latents))
        jacobian, residuals = np.split(in_blocks(at_rows, arrays, _AT_ONCE), [-1], axis=2)
        spectra.append(_spectrum(jacobian, residuals[..., 0], importance))
        owners.append(np.isin(chosen, member.held_out_rows))
    share = len(chosen) / n
    leverage = _mean_leverage([spectrum.residuals for spectrum in spectra], owners)
    precision = PRIOR_PRECISION if leverage is None else _precision(spectra, leverage / share)
    count = -(-N_DIRECTIONS // len(members))
    draws = []
    for spectrum in spectra:
        prior = rng.normal(size=(count, spectrum.jacobian.shape[1]))
        draws.append(_draws(spectrum, precision, share, multipliers, prior))
    noise, bias = (np.stack(part) * np.sqrt(share) for part in zip(*draws, strict=True))
    return Directions(noise.astype(np.float32), bias.astype(np.float32))


class _Spectrum(NamedTuple):
    """One member at the chosen rows: the weighted Jacobian, residuals `(n, K)`, and the kernel's eigenvectors."""

    jacobian: np.ndarray
    residuals: np.ndarray
    values: np.ndarray
    vectors: np.ndarray

    def leverages(self, precision: float) -> np.ndarray:
        """Of each row and coordinate, if the chosen rows were all."""
        return np.asarray(np.einsum("ij,j,ij->i", self.vectors, self.values / (self.values + precision), self.vectors))


def _spectrum(jacobian: np.ndarray, residuals: np.ndarray, importance: np.ndarray) -> _Spectrum:
    n, k, _ = jacobian.shape
    root = np.sqrt(np.repeat(importance, k))
    # In double precision: with fewer weights than rows the kernel's small eigenvalues would be those of rounding.
    j = np.asarray(jacobian, np.float64).reshape(n * k, -1) * root[:, None]
    values, vectors = eigh(j @ j.T / n)
    weighted = np.asarray(residuals, np.float64) * root.reshape(n, k)
    return _Spectrum(j, weighted, np.maximum(values, 0.0), vectors)


def _mean_leverage(residuals: Sequence[np.ndarray], owners: Sequence[np.ndarray]) -> float | None:
    """How much larger residuals are where rows were left out, on the same rows where there is more than one member."""
    if not np.any(owners):
        return None
    squares = [np.sum(values**2, axis=1) for values in residuals]
    pairs = list(zip(squares, owners, strict=True))
    out = sum(square[owner].sum() for square, owner in pairs)
    if len(pairs) > 1:
        total = np.sum(squares, axis=0)
        inside = sum((total - square)[owner].sum() / (len(pairs) - 1) for square, owner in pairs)
    else:
        inside = squares[0][~owners[0]].mean() * owners[0].sum()
    return float(np.clip(1.0 - np.sqrt(inside / max(out, TINY)), *_LEVERAGES))


def _precision(members: Sequence[_Spectrum], leverage: float) -> float:
    """The prior precision at which rows have this mean leverage, or the nearest to it."""

    values = np.concatenate([member.values for member in members])

    def excess(power: float) -> float:
        return float(np.mean(values / (values + 10.0**power))) - min(leverage, _LEVERAGES[1])

    low, high = _PRECISIONS
    if excess(low) < 0.0:
        return float(10.0**low)
    return float(10.0 ** brentq(excess, low, high)) if excess(high) < 0.0 else float(10.0**high)


@partial(run_once, static_argnames="integration")
def _at_rows(model: BGMIVModel, integration: IntegrationRule, x: Array, y: Array, w: Array, z: Array) -> Array:
    """Of each row the Jacobian of the integrated mean in the outcome's weights, and its residual behind it.

    `(n, K, weights + 1)` for an outcome of K coordinates.
    """
    flat, unflatten = ravel_pytree(model.outcome)

    def one(row: Row, z: Array) -> Array:
        batch = jax.tree.map(lambda leaf: leaf[None], row)
        raw = model.treatment_raw(row.w, z)[None]

        def mean(flat: Array) -> tuple[Array, Array]:
            moved = eqx.tree_at(lambda m: m.outcome, model, unflatten(flat))
            value = jnp.atleast_1d(iv_means(moved, integration, batch, raw, z[None])[0])
            return value, value

        jacobian, value = jax.jacrev(mean, has_aux=True)(flat)
        return jnp.concatenate([jacobian, (model.outcome_event(row.y) - value)[:, None]], axis=1)

    return jax.vmap(one)(Row(x, y, jnp.zeros((len(x), 0)), w), z)


def _draws(
    member: _Spectrum, precision: float, share: float, multipliers: np.ndarray, prior: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    r"""One member's directions: of the noise, and of the bias.

    $A^{-1} \tfrac1n \sum_i \xi_i r_i J_i$ for each column of multipliers $\xi$, with residuals as they would be if
    their rows were left out; and $\lambda A^{-1} \omega$ for draws of $\omega$ from the prior, given as standard
    normal rows.
    """
    n, k = member.residuals.shape
    leverages = np.minimum(share * member.leverages(precision), _LEVERAGES[1])
    left_out = member.residuals.ravel() / (1.0 - leverages)

    def solved(columns: np.ndarray) -> np.ndarray:
        """$A^{-1} \tfrac1n J^\top$ of some columns, through the rows' kernel matrix."""
        weights = (member.vectors / (member.values + precision)) @ (member.vectors.T @ columns)
        return np.asarray((member.jacobian.T @ weights / n).T)

    noise = solved(left_out[:, None] * np.repeat(multipliers, k, axis=0))
    variance = float(np.mean(left_out**2)) / (n * precision)
    return noise, (prior - solved(member.jacobian @ prior.T)) * np.sqrt(variance)


@jax.jit
def _along(model: BGMIVModel, directions: Array, x: Array, z: Array) -> Array:
    """Derivatives of the structural mean along directions, `(n, directions)` or `(n, directions, K)`."""
    flat, unflatten = ravel_pytree(model.outcome)

    def means(flat: Array) -> Array:
        moved = eqx.tree_at(lambda m: m.outcome, model, unflatten(flat))
        return jax.vmap(moved.structural_mean)(x, z)

    along = jax.lax.map(lambda direction: jax.jvp(means, (flat,), (direction,))[1], directions)
    return jnp.moveaxis(along, 0, 1)


def tangent_factors(
    model: BGMIVModel, directions: NDArray[np.float32], latents: np.ndarray, x: np.ndarray, rows: np.ndarray, size: int
) -> Floats:
    """What each of a member's directions `(k, weights)` changes of its structural mean, on the scaled outcome.

    At scaled treatments `(n,)` of some rows of latents, padded to `size`, so that calls share a compiled program:
    `(n, k)`, or `(n, k, K)` for an outcome of K levels.
    """
    along = partial(_along, model, jax.device_put(directions))
    return in_blocks(along, (x, latents[rows]), size).astype(np.float64)


_MAX_INSTRUMENTS = 32
# Rows that stand for all in the fit's support; a MAP takes a thousand times as long as the encoder.
_MAX_SUPPORT_ROWS, _MAX_SUPPORT_MAPS = 2000, 500


@dataclass(frozen=True, eq=False)
class ModelSupport:
    """Where a fit's own treatment model and latents place the data.

    Attributes:
        instruments: values that stand for all scaled instruments, `(m, q)`: the means of clusters of them.
        shares: how many rows each stands for, `(m,)`, one in sum.
        novelty: of the first member's latents.
        min_log_density: the log-density of treatments that all but a hundredth of the rows exceed; for a treatment of
            levels the lowest log-probability of one.
    """

    instruments: Floats
    shares: Floats
    novelty: Novelty
    min_log_density: float

    def log_density(self, members: Sequence[Member], x: np.ndarray, latents: Sequence[np.ndarray], size: int) -> Floats:
        r"""$\log p(x \mid z)$, averaged over typical instruments and members, `(n,)`, in blocks of `size` points."""
        each = [
            in_blocks(partial(_densities, member.model, self.instruments, self.shares), (x, z), size)
            for member, z in zip(members, latents, strict=True)
        ]
        return np.asarray(np.logaddexp.reduce(each, axis=0) - log(len(each)), np.float64)


def fit_model_support(rule: LatentMap | LatentPosterior, rows: TrainingRows, members: Sequence[Member]) -> ModelSupport:
    """The support of a fit, from some of its rows and each member's latents of them."""
    most = _MAX_SUPPORT_MAPS if isinstance(rule, LatentMap) and rule.steps else _MAX_SUPPORT_ROWS
    part = rows.at(np.random.default_rng(0).permutation(rows.data.n_rows)[:most])
    latents = [latents_of(member.model, part.v, rule) for member in members]
    support = ModelSupport(*_typical(np.asarray(part.w, np.float64)), fit_novelty(latents[0]), log(OUTSIDE))
    if isinstance(members[0].model.treatment_head, FiniteHead):
        return support
    density = support.log_density(members, part.x, latents, padded_size(len(part.x), MAX_POINTS))
    return replace(support, min_log_density=float(np.quantile(density, OUTSIDE)))


def _typical(w: Floats) -> tuple[Floats, Floats]:
    """Few values that stand for all rows' instruments; a fit without instruments has one of no columns."""
    if w.shape[1] == 0:
        return np.zeros((1, 0)), np.ones(1)
    values, counts = np.unique(w, axis=0, return_counts=True)
    if len(values) <= _MAX_INSTRUMENTS:
        return values, counts / counts.sum()
    centres, labels = kmeans2(w, _MAX_INSTRUMENTS, minit="++", seed=np.random.default_rng(0), missing="warn")
    counts = np.bincount(labels, minlength=_MAX_INSTRUMENTS)
    used = counts > 0
    return np.asarray(centres[used], np.float64), counts[used] / counts.sum()


@run_once
def _densities(model: BGMIVModel, w: Array, shares: Array, x: Array, z: Array) -> Array:
    def one(x: Array, z: Array) -> Array:
        raws = jax.vmap(lambda w: model.treatment_raw(w, z))(w)
        logs = jax.vmap(lambda raw: model.treatment_head.log_prob(raw, x[None]))(raws)
        return jax.nn.logsumexp(logs.reshape(len(w)), b=shares)

    return jax.vmap(one)(x, z)
