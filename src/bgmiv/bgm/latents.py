r"""Latents from covariates alone: by the encoder, the MAP, or draws from the posterior; the structural function there.

None of them sees the instrument, the outcome or the observed treatment. The MAP starts from the encoder's latents
(eq. test_time_map). The posterior is $p(z \mid v) \propto p(z)\, p_\theta(v \mid z)$, and its chains those of
BlackJAX's NUTS, in coordinates in which it is about standard normal near where a chain starts, so that steps do not
shrink with the covariates' noise. With more latents than the covariates identify, the posterior is a thin curved sheet
of latents that give the same covariates, which no such coordinates straighten: R-hat then tells that chains have not
converged. Chains are written for one row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import ndtri

from bgmiv._io import enable_compilation_cache
from bgmiv.bgm.config import LatentMap, LatentPosterior
from bgmiv.bgm.model import BGMIVModel, covariate_log_posterior, encode_rows
from bgmiv.data.messages import warn_user
from bgmiv.data.scaling import unique_rows
from bgmiv.errors import ConfigError
from bgmiv.estimators.members import Learner
from bgmiv.nn.layers import adam
from bgmiv.training import MAX_ROWS, bucket_size, in_blocks, padded_size

__all__ = [
    "Chains", "LatentDraws", "check_sampled", "infer_latents", "latent_draws", "latents_of", "nuts_chains",
    "sample_latents", "structural_at_draws", "structural_means",
]  # fmt: skip

LogDensity = Callable[[Array], Array]

_TINY = 2.0**-24
_CANDIDATES = 8
_NEWTON_STEPS = 8
# Of NUTS: a draw takes up to two to the power of this many steps.
_MAX_DOUBLINGS = 7
_LENGTHS = (1.0, 0.5, 0.25, 0.05, 0.0)
_MAX_SAMPLED, _MIN_SAMPLED = 256, 8
# Draws of a row that predictions are made from.
_MAX_KEPT = 256
_AT_ONCE = 8
# The limits of Vehtari et al. (2021), and a share of rows beyond them that need not mean anything.
_MAX_RHAT = 1.01
_MIN_DRAWS = 100
_SHARE = 0.1


@partial(jax.jit, static_argnames="config")
def infer_latents(model: BGMIVModel, v: Array, config: LatentMap) -> Array:
    """MAP latents of many rows under log p(z) + log p(v | z), started at the encoder."""
    z = encode_rows(model, v)
    if config.steps == 0:
        return z
    optimiser = adam(config.learning_rate)

    def loss(z: Array) -> Array:
        return -jnp.sum(jax.vmap(covariate_log_posterior, in_axes=(None, 0, 0))(model, v, z))

    def step(_: Array, latents: Learner) -> Learner:
        return latents.moved(optimiser, jax.grad(loss)(latents.net))

    return jax.lax.fori_loop(0, config.steps, step, Learner.begin(z, optimiser)).net


def latents_of(model: BGMIVModel, v: np.ndarray, rule: LatentMap | LatentPosterior) -> np.ndarray:
    """Latents of scaled covariate rows, `(n, d)`; equal rows are computed once.

    Where the structural function is averaged over draws, they are the encoder's.
    """
    rule = rule if isinstance(rule, LatentMap) else LatentMap(steps=0)
    unique, inverse = unique_rows(v)
    size = padded_size(len(unique), model.covariates.rows_at_once(MAX_ROWS))
    return in_blocks(partial(infer_latents, model, config=rule), (unique,), size)[inverse]


def check_sampled(model: BGMIVModel, rule: LatentMap | LatentPosterior) -> None:
    """Refuse draws of latents that are the covariates themselves."""
    if isinstance(rule, LatentPosterior) and not model.covariates.learns_latents:
        raise ConfigError(
            "the latents of this fit are the covariates themselves, so that there is nothing to sample. Leave "
            "latents at 'encoder', or use preset='paper' for latents behind the covariates."
        )


@jax.jit
def _means(model: BGMIVModel, x: Array, z: Array) -> Array:
    return jax.vmap(model.structural_mean)(x, z)


def structural_means(model: BGMIVModel, x: np.ndarray, z: np.ndarray, size: int | None = None) -> np.ndarray:
    r"""$\mu_\omega(x, z_0, z_1)$ on the scaled outcome (eq. structural_prediction), in blocks of `size` points.

    From scaled treatments `(n,)` and latents `(n, d)`: `(n,)`, or the probabilities `(n, K)` of K levels.
    """
    return in_blocks(partial(_means, model), (x, z), size or padded_size(len(x)))


def structural_at_draws(model: BGMIVModel, x: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """`structural_means` at draws `(n, k, d)` of each point's latents, `(n, k)` or `(n, k, K)`."""
    n, k, d = draws.shape
    values = structural_means(model, np.repeat(x, k), draws.reshape(n * k, d))
    return values.reshape(n, k, *values.shape[1:])


class Chains(NamedTuple):
    """Draws `(n_chains, n_draws, d)` of one row, their mean acceptance probability, and proposals that broke down."""

    draws: Array
    acceptance: Array
    divergences: Array


class _Start(NamedTuple):
    """Where a chain starts, and the root of the covariance that the log-density's curvature has there."""

    z: Array
    root: Array


def _climb(log_density: LogDensity, z: Array) -> _Start:
    """Newton's method from a point towards a mode; a step that does not climb is shortened or left out."""

    def root_at(z: Array) -> Array:
        values, vectors = jnp.linalg.eigh(-jax.hessian(log_density)(z))
        # The prior alone has a precision of one.
        return vectors / jnp.sqrt(jnp.maximum(jnp.abs(values), 1.0))

    def step(_: int, z: Array) -> Array:
        root = root_at(z)
        candidates = z + jnp.asarray(_LENGTHS)[:, None] * (root @ (root.T @ jax.grad(log_density)(z)))
        heights = jax.vmap(log_density)(candidates)
        return candidates[jnp.argmax(jnp.where(jnp.isfinite(heights), heights, -jnp.inf))]

    z = jax.lax.fori_loop(0, _NEWTON_STEPS, step, z)
    return _Start(z, root_at(z))


def _starts(model: BGMIVModel, log_density: LogDensity, v: Array, key: Array, n_chains: int) -> _Start:
    """Near the modes that are found from the encoder's latents and from draws from the prior, the likelier rather.

    A chain that starts in a hollow without mass never leaves it, and its R-hat is one that no number of draws mends.
    """
    # One call of the generator for all: it takes longer to compile than the rest of this function.
    shape = (max(_CANDIDATES, n_chains), 2 * model.layout.dim + 1)
    uniforms = jax.random.uniform(key, shape, minval=_TINY, maxval=1.0 - _TINY)
    lottery, prior, apart = jnp.split(uniforms, (1, 1 + model.layout.dim), axis=1)
    candidates = ndtri(prior).at[0].set(model.covariates.encode(v))
    modes = jax.vmap(partial(_climb, log_density))(candidates)
    # Within the posterior the log-density varies by about half the dimension; flattened by the whole, starts disperse.
    heights = jax.vmap(log_density)(modes.z) / model.layout.dim
    chosen = jax.lax.top_k(heights - jnp.log(-jnp.log(lottery[:, 0])), n_chains)[1]
    z, root = modes.z[chosen], modes.root[chosen]
    return _Start(z + jnp.einsum("cij,cj->ci", root, ndtri(apart[chosen])), root)


def nuts_chains(model: BGMIVModel, v: Array, key: Array, plan: LatentPosterior) -> Chains:
    """Chains of BlackJAX's NUTS; each sets its own step size by dual averaging."""
    # Imported where they are used: they would add a third to the time of importing this package.
    from blackjax.adaptation.step_size import dual_averaging_adaptation
    from blackjax.mcmc import nuts

    log_density = partial(covariate_log_posterior, model, v)
    starts = _starts(model, log_density, v, jax.random.fold_in(key, 0), plan.n_chains)
    init, update, _ = dual_averaging_adaptation(plan.acceptance)
    step, metric = nuts.build_kernel(), jnp.ones(model.layout.dim)

    def chain(start: _Start, key: Array) -> tuple[Array, ...]:
        def whitened(u: Array) -> Array:
            return log_density(start.z + start.root @ u)

        def draw(carry: tuple[Any, Any], i: Array) -> tuple[tuple[Any, Any], tuple[Array, Array, Array]]:
            state, tuning = carry
            warming = i < plan.n_warmup
            size = jnp.exp(jnp.where(warming, tuning.log_step_size, tuning.log_step_size_avg))
            state, info = step(jax.random.fold_in(key, i), state, whitened, size, metric, _MAX_DOUBLINGS)
            updated = update(tuning, info.acceptance_rate)
            tuning = jax.tree.map(lambda new, old: jnp.where(warming, new, old), updated, tuning)
            position = start.z + start.root @ state.position
            return (state, tuning), (position, info.acceptance_rate, info.is_divergent)

        begun = nuts.init(jnp.zeros_like(start.z), whitened), init(1.0)
        # Warm-up and draws in one loop: two would take twice as long to compile.
        _, found = jax.lax.scan(draw, begun, jnp.arange(plan.n_warmup + plan.n_draws))
        return tuple(values[plan.n_warmup :] for values in found)

    z, acceptance, diverged = jax.vmap(chain)(starts, jax.random.split(jax.random.fold_in(key, 1), plan.n_chains))
    return Chains(z, jnp.mean(acceptance), jnp.sum(diverged))


class LatentDraws(NamedTuple):
    """Draws of n rows' latents, and how far they can be trusted.

    Attributes:
        draws: `(n, n_chains, n_draws, d)`.
        acceptance: mean acceptance probability, `(n,)`.
        divergences: proposals that broke down, of all chains, `(n,)`.
        rhat: the largest R-hat of a row's latent coordinates, `(n,)`: how far chains disagree; up to 1.01 is fine.
        ess: the smallest bulk effective number of draws of a row's latent coordinates, `(n,)`.
    """

    draws: np.ndarray
    acceptance: np.ndarray
    divergences: np.ndarray
    rhat: np.ndarray
    ess: np.ndarray


@partial(jax.jit, static_argnames="plan")
def _chains(model: BGMIVModel, v: Array, keys: Array, plan: LatentPosterior) -> Chains:
    return jax.vmap(lambda v, key: nuts_chains(model, v, key, plan))(v, keys)


@jax.jit
def _judged(values: Array) -> tuple[Array, Array]:
    """The largest R-hat and the smallest effective number of draws of each row's quantities, the last axis.

    R-hat is rank-normalised, split and folded. A quantity that never varies has an R-hat of 1 and as many effective
    draws as draws.

    Reference:
        A. Vehtari, A. Gelman, D. Simpson, B. Carpenter, P.-C. Bürkner (2021), Rank-normalization, folding, and
        localization: an improved R-hat for assessing convergence of MCMC, Bayesian Analysis 16(2).
    """
    from blackjax.diagnostics import ess_bulk, rhat

    def one(quantity: Array) -> tuple[Array, Array]:
        still = jnp.all(quantity == quantity[0, 0])
        return jnp.where(still, 1.0, rhat(quantity)), jnp.where(still, 1.0 * quantity.size, ess_bulk(quantity))

    def worst(values: Array) -> tuple[Array, Array]:
        rhats, sizes = jax.vmap(one, in_axes=2)(values)
        return jnp.max(rhats), jnp.min(sizes)

    return jax.lax.map(worst, values, batch_size=_AT_ONCE)


@jax.jit
def _judged_structural(model: BGMIVModel, x: Array, draws: Array) -> tuple[Array, Array]:
    """The same of the structural function at treatments `x`, which does not depend on all latents."""

    def one(draws: Array) -> Array:
        at = jax.vmap(jax.vmap(jax.vmap(model.structural_mean, (0, None)), (None, 0)), (None, 0))
        return at(x, draws).reshape(*draws.shape[:2], -1)

    return _judged(jax.lax.map(one, draws, batch_size=_AT_ONCE))


def _run_chains(
    model: BGMIVModel,
    v: np.ndarray,
    config: LatentPosterior,
    key: Array,
    summarise: Callable[[Chains], tuple[Array | np.ndarray, ...]],
) -> list[np.ndarray]:
    """What `summarise` makes of the chains of all rows, in blocks small enough for memory."""
    enable_compilation_cache()
    # Chains of any seed share a compiled program.
    plan = replace(config, seed=0)
    size = max(_MIN_SAMPLED, bucket_size(min(len(v), _MAX_SAMPLED)))
    blocks = []
    for start in range(0, len(v), size):
        stop = min(start + size, len(v))
        # A row's key is that of its place, whatever rows are beside it. The filling keeps blocks of similar size in
        # one compiled program.
        rows = np.minimum(np.arange(start, start + size), stop - 1)
        keys = jax.vmap(partial(jax.random.fold_in, key))(rows)
        parts = summarise(_chains(model, jax.device_put(v[rows]), keys, plan))
        blocks.append([np.asarray(part)[: stop - start] for part in parts])
    return [np.concatenate(parts) for parts in zip(*blocks, strict=True)]


def _warn_unconverged(rhat: np.ndarray, ess: np.ndarray, config: LatentPosterior, what: str) -> None:
    """Warn of chains that disagree or have too few effective draws, unless few rows have them."""
    minimum = _MIN_DRAWS * config.n_chains
    # A comparison with NaN is false: what cannot be judged is not converged.
    bad = ~((rhat <= _MAX_RHAT) & (ess >= minimum))
    if bad.sum() > _SHARE * len(bad):
        warn_user(
            f"the latent posterior's chains have not converged for {bad.sum()} of {len(bad)} {what}: R-hat is up to "
            f"{np.max(rhat):.3f} (it should be {_MAX_RHAT} at most) and the effective number of draws down to "
            f"{np.min(ess):.0f} (it should be {minimum} at least). Raise n_draws (now {config.n_draws}) or n_warmup "
            f"(now {config.n_warmup})."
        )


def sample_latents(model: BGMIVModel, v: np.ndarray, config: LatentPosterior, key: Array) -> LatentDraws:
    r"""Draws from $p(z \mid v)$ for scaled covariate rows `(n, p)`; the same key gives the same draws.

    Chains start at the encoder's latents and at draws from the prior, moved to where they make the covariates likely.

    Warns:
        BGMIVWarning: more than one row in ten has an R-hat above 1.01 or fewer than 100 effective draws a chain.
    """
    parts = _run_chains(model, v, config, key, lambda chains: (*chains, *_judged(chains.draws)))
    result = LatentDraws(*parts)
    _warn_unconverged(result.rhat, result.ess, config, "rows' latents")
    return result


def latent_draws(model: BGMIVModel, v: np.ndarray, config: LatentPosterior, x: np.ndarray) -> np.ndarray:
    """Draws to predict from, `(n, k, d)`: 256 a row at most, evenly spread; equal rows have the same draws.

    All draws are judged, by the structural function at the deciles 1, 5 and 9 of the scaled treatments `x`.

    Warns:
        BGMIVWarning: as `sample_latents`, of the structural function. Latents that it does not depend on do not count.
    """
    unique, inverse = unique_rows(v)
    at = jax.device_put(np.quantile(x, (0.1, 0.5, 0.9), method="nearest"))
    total = config.n_chains * config.n_draws
    chosen = np.linspace(0, total - 1, min(_MAX_KEPT, total)).round().astype(int)

    def summarise(chains: Chains) -> tuple[Array | np.ndarray, ...]:
        n, *_, d = chains.draws.shape
        kept = np.asarray(chains.draws).reshape(n, total, d)[:, chosen]
        return kept, *_judged_structural(model, at, chains.draws)

    draws, rhat, ess = _run_chains(model, unique, config, jax.random.key(config.seed), summarise)
    _warn_unconverged(rhat, ess, config, "rows' structural function")
    return draws[inverse]
