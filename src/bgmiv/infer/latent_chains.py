r"""Markov chains of one row's latents given its covariates, and what their draws are worth.

The target is $p(z \mid v) \propto p(z)\, p_\theta(v \mid z)$. Everything here is for one row; `vmap` at the call site.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import ndtri

from bgmiv.covariates import Branch
from bgmiv.infer.lifted_hmc import (
    LARGEST_STEP,
    LiftedInfo,
    LiftedState,
    LiftedTarget,
    centred,
    lifted_state,
    lifted_step,
)
from bgmiv.likelihood import Gaussian
from bgmiv.model.model import BGMIVModel
from bgmiv.model.objectives import covariate_log_posterior

__all__ = ["MOST_CHAINS", "ChainPlan", "Chains", "convergence", "lifted_chains", "nuts_chains", "posterior_target"]

_CANDIDATES = 32
MOST_CHAINS = _CANDIDATES
"""Each chain of a row starts at another candidate."""
_TINY = 2.0**-24


class ChainPlan(NamedTuple):
    """How many chains and draws, and the acceptance that step sizes are set to."""

    n_chains: int
    n_warmup: int
    n_draws: int
    acceptance: float


class Chains(NamedTuple):
    """Chains of one row; of many rows with a leading axis.

    Attributes:
        draws: `(n_chains, n_draws, d)`.
        acceptance: the mean acceptance probability.
        divergences: how many proposals broke down.
    """

    draws: Array
    acceptance: Array
    divergences: Array


def posterior_target(model: BGMIVModel, v: Array) -> LiftedTarget:
    """One row's posterior, lifted by the noise of every Gaussian block."""
    module = model.covariates
    lifted: list[tuple[int, Branch, Gaussian]] = []
    others: list[tuple[int, Branch]] = []
    for i, branch in enumerate(module.branches):
        if isinstance(branch.head, Gaussian):
            lifted.append((i, branch, branch.head))
        else:
            others.append((i, branch))

    def gap(z: Array) -> tuple[Array, Array]:
        raws, gaps, spreads = module.decode(z), [jnp.zeros(0)], [jnp.zeros(0)]
        for i, branch, head in lifted:
            # The mean over a block's coordinates is their sum with a noise that is larger by the root of their number.
            variance = head.variance(raws[i]) / branch.coordinate_weight
            gaps.append(head.mean(raws[i]) - branch.of(v))
            spreads.append(jnp.broadcast_to(jnp.sqrt(variance), (head.dim,)))
        return jnp.concatenate(gaps), jnp.concatenate(spreads)

    def log_other(z: Array) -> Array:
        raws, total = module.decode(z), jnp.zeros(())
        for i, branch in others:
            total += branch.reduce(branch.head.log_prob(raws[i], branch.of(v)))
        return total

    return LiftedTarget(gap, partial(covariate_log_posterior, model, v), log_other if others else None)


def _starts(model: BGMIVModel, target: LiftedTarget, v: Array, key: Array, n_chains: int) -> Array:
    """Of the encoder's latents and draws from the prior, brought near the covariates, the likelier: `(n_chains, d)`.

    A chain that starts in a hollow without mass never leaves it, and its R-hat is one that no number of draws mends.
    """
    # One call of the generator for both: it takes longer to compile than the rest of this function.
    uniforms = jax.random.uniform(key, (_CANDIDATES, model.layout.dim + 1), minval=_TINY, maxval=1.0 - _TINY)
    candidates = ndtri(uniforms[:, 1:]).at[0].set(model.covariates.encode(v))
    candidates = jax.vmap(partial(centred, target))(candidates)
    # Within the posterior the log-density varies by about half the dimension; flattened by the whole, starts disperse.
    heights = jax.vmap(target.log_density)(candidates) / model.layout.dim
    lottery = -jnp.log(-jnp.log(uniforms[:, 0]))
    return candidates[jax.lax.top_k(heights + lottery, n_chains)[1]]


def lifted_chains(model: BGMIVModel, v: Array, key: Array, plan: ChainPlan) -> Chains:
    """Chains of `lifted_step`; they share a step size, set by dual averaging."""
    # Imported where it is used: it would add a third to the time of importing this package.
    from blackjax.adaptation.step_size import dual_averaging_adaptation

    target = posterior_target(model, v)
    starts = _starts(model, target, v, jax.random.fold_in(key, 0), plan.n_chains)
    states = jax.vmap(partial(lifted_state, target))(starts)
    width = states.z.shape[1] + states.noise.shape[1] + 2
    init, update, _ = dual_averaging_adaptation(plan.acceptance)

    def draw(carry: tuple[LiftedState, Any], i: Array) -> tuple[tuple[LiftedState, Any], tuple[Array, LiftedInfo]]:
        states, tuning = carry
        warming = i <= plan.n_warmup
        log_step = jnp.where(warming, tuning.log_step_size, tuning.log_step_size_avg)
        step_size = jnp.minimum(jnp.exp(log_step), LARGEST_STEP)
        shape, key_draw = (plan.n_chains, width), jax.random.fold_in(key, i)
        uniforms = jax.random.uniform(key_draw, shape, minval=_TINY, maxval=1.0 - _TINY)
        states, info = jax.vmap(partial(lifted_step, target), (0, 0, None))(states, uniforms, step_size)
        updated = update(tuning, jnp.mean(info.acceptance))
        tuning = jax.tree.map(lambda new, old: jnp.where(warming, new, old), updated, tuning)
        return (states, tuning), (states.z, info)

    # Warm-up and draws in one loop: two would take twice as long to compile.
    numbers = jnp.arange(1, plan.n_warmup + plan.n_draws + 1)
    _, (z, info) = jax.lax.scan(draw, (states, init(LARGEST_STEP)), numbers)
    z, info = jax.tree.map(lambda kept: kept[plan.n_warmup :], (z, info))
    return Chains(jnp.swapaxes(z, 0, 1), jnp.mean(info.acceptance), jnp.sum(info.diverged))


def nuts_chains(model: BGMIVModel, v: Array, key: Array, plan: ChainPlan) -> Chains:
    """Chains of BlackJAX's NUTS; each sets its own step size and diagonal metric by window adaptation."""
    import blackjax

    target = posterior_target(model, v)
    starts = _starts(model, target, v, jax.random.fold_in(key, 0), plan.n_chains)

    def chain(start: Array, key: Array) -> tuple[Array, Array, Array]:
        key_warmup, key_draws = jax.random.split(key)
        warmup = blackjax.window_adaptation(
            blackjax.nuts,
            target.log_density,
            target_acceptance_rate=plan.acceptance,
            adaptation_info_fn=lambda *_: None,
        )
        (state, parameters), _ = warmup.run(key_warmup, start, num_steps=plan.n_warmup)
        nuts = blackjax.nuts(target.log_density, **parameters)

        def draw(state: Any, key: Array) -> tuple[Any, tuple[Array, Array, Array]]:
            state, info = nuts.step(key, state)
            return state, (state.position, info.acceptance_rate, info.is_divergent)

        return jax.lax.scan(draw, state, jax.random.split(key_draws, plan.n_draws))[1]

    z, acceptance, diverged = jax.vmap(chain)(starts, jax.random.split(jax.random.fold_in(key, 1), plan.n_chains))
    return Chains(z, jnp.mean(acceptance), jnp.sum(diverged))


def convergence(values: Array) -> tuple[Array, Array]:
    """R-hat and bulk effective number of draws of one quantity, from `(n_chains, n_draws)`.

    R-hat is rank-normalised, split and folded. A quantity that never varies has an R-hat of 1 and as many effective
    draws as draws.

    Example:
        >>> rhat, ess = jax.jit(convergence)(jax.random.normal(jax.random.key(0), (4, 100)))
        >>> bool(rhat < 1.03), bool(ess > 200)
        (True, True)

    Reference:
        A. Vehtari, A. Gelman, D. Simpson, B. Carpenter, P.-C. Bürkner (2021), Rank-normalization, folding, and
        localization: an improved R-hat for assessing convergence of MCMC, Bayesian Analysis 16(2).
    """
    from blackjax.diagnostics import ess_bulk, rhat

    still = jnp.all(values == values[0, 0])
    return jnp.where(still, 1.0, rhat(values)), jnp.where(still, 1.0 * values.size, ess_bulk(values))
