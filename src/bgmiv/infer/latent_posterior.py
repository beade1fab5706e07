r"""The latent posterior given covariates alone, $p(z \mid v) \propto p(z)\, p_\theta(v \mid z)$, by Markov chains.

It sees neither the instrument, the outcome nor the observed treatment. As a rule there are more latent coordinates than
covariates: the posterior is then a fibre of latents that give the same covariates, as thin as the covariates are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bgmiv.compilation import enable_compilation_cache
from bgmiv.data.batching import bucket_size, pad_rows, unique_rows
from bgmiv.data.checks import warn_user
from bgmiv.errors import ConfigError
from bgmiv.infer.latent_chains import MOST_CHAINS, ChainPlan, Chains, convergence, lifted_chains, nuts_chains
from bgmiv.infer.structural import structural_means
from bgmiv.likelihood import Categorical
from bgmiv.model.model import BGMIVModel

__all__ = [
    "LatentDraws",
    "LatentPosterior",
    "StructuralPosterior",
    "posterior_structural_means",
    "sample_latents",
    "structural_posterior",
]

_SAMPLERS = {"lifted": lifted_chains, "nuts": nuts_chains}
_ACCEPTANCES = {"lifted": 0.6, "nuts": 0.8}
_MOST_ROWS, _FEWEST_ROWS = 256, 8
_MOST_POINTS, _FEWEST_POINTS = 1024, 16
_AT_ONCE = 8
# The limits of Vehtari et al. (2021), and a share of rows beyond them that need not mean anything.
_LARGEST_RHAT = 1.01
_FEWEST_DRAWS = 100
_SHARE = 0.1


@dataclass(frozen=True)
class LatentPosterior:
    """Settings of the latent posterior's chains.

    Args:
        sampler: "lifted" is Hamiltonian Monte Carlo in latents and noise together, whose steps do not shrink with the
            covariates' noise; "nuts" is BlackJAX's. Where covariates pin latents down, "lifted" gives ten to a hundred
            times the effective draws a second; with a noisy block of hundreds of columns "nuts" gives five times as
            many.
        n_chains: chains a row; they start apart, so that their agreement means something.
        n_warmup: draws a chain in which step sizes (and NUTS' metric) are set; they are not kept.
        n_draws: draws kept a chain.
        target_acceptance: the share of proposals that step sizes are set to accept; None: 0.6 for "lifted", 0.8 for
            "nuts".
        seed: the randomness of `structural_means`, which is given no key.

    Example:
        >>> LatentPosterior(n_draws=200).n_chains
        4
    """

    sampler: Literal["lifted", "nuts"] = "lifted"
    n_chains: int = 4
    n_warmup: int = 150
    n_draws: int = 500
    target_acceptance: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse settings that cannot run, or whose draws could not be judged."""
        if self.sampler not in _SAMPLERS:
            raise ConfigError(f"sampler is 'lifted' or 'nuts', got {self.sampler!r}.")
        for name, least in (("n_chains", 2), ("n_warmup", 20), ("n_draws", 4), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
                raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}.")
        if self.n_chains > MOST_CHAINS:
            raise ConfigError(f"n_chains must be at most {MOST_CHAINS}, got {self.n_chains}.")
        if self.target_acceptance is not None and not 0.0 < self.target_acceptance < 1.0:
            raise ConfigError(f"target_acceptance must lie between 0 and 1, got {self.target_acceptance}.")

    @property
    def plan(self) -> ChainPlan:
        """The same for the chains."""
        acceptance = _ACCEPTANCES[self.sampler] if self.target_acceptance is None else self.target_acceptance
        return ChainPlan(self.n_chains, self.n_warmup, self.n_draws, acceptance)

    def structural_means(self, model: BGMIVModel, x: np.ndarray, v: np.ndarray) -> np.ndarray:
        """`posterior_structural_means` with the key of `seed`, `(n,)`."""
        return posterior_structural_means(model, x, v, self, jax.random.key(self.seed))

    def structural_draws(self, model: BGMIVModel, x: np.ndarray, v: np.ndarray, count: int) -> np.ndarray:
        """The structural function at `count` draws of each row's latents, `(count, n)` or `(count, n, K)`.

        Equal rows of covariates have the same draws; those of different rows are independent.
        """
        unique, inverse = unique_rows(v)
        draws = sample_latents(model, unique, self, jax.random.key(self.seed)).draws
        flat = draws.reshape(len(unique), -1, draws.shape[-1])
        chosen = np.linspace(0, flat.shape[1] - 1, count).round().astype(int)
        return np.stack([structural_means(model, x, flat[inverse, i]) for i in chosen])


@dataclass(frozen=True, eq=False)
class LatentDraws:
    """Draws of n rows' latents, and how far they can be trusted.

    Attributes:
        draws: `(n, n_chains, n_draws, d)`.
        acceptance: mean acceptance probability, `(n,)`.
        divergences: proposals that broke down, of all chains, `(n,)`.
        rhat: the largest R-hat of a row's latent coordinates, `(n,)`: how far chains disagree; up to 1.01 is fine.
        ess: the smallest bulk effective number of draws of a row's latent coordinates, `(n,)`.
        rhat_of, ess_of: the same of the function given to `sample_latents`, `(n,)`; None without one.
    """

    draws: np.ndarray
    acceptance: np.ndarray
    divergences: np.ndarray
    rhat: np.ndarray
    ess: np.ndarray
    rhat_of: np.ndarray | None = None
    ess_of: np.ndarray | None = None


class StructuralPosterior(NamedTuple):
    r"""The structural function under the latent posterior at n points, on the scaled outcome.

    Every field is `(n,)`, or `(n, K)` for an outcome of K levels.

    Attributes:
        means: posterior means of $\mu_\omega(x, z_0, z_1)$.
        deviations: its posterior standard deviations: what the covariates leave open about the latents. How uncertain
            the networks themselves are is not in them.
        rhat, ess: R-hat and bulk effective number of draws of $\mu_\omega(x, z_0, z_1)$.
    """

    means: np.ndarray
    deviations: np.ndarray
    rhat: np.ndarray
    ess: np.ndarray


@partial(jax.jit, static_argnames=("sampler", "plan"))
def _chains(model: BGMIVModel, v: Array, keys: Array, sampler: str, plan: ChainPlan) -> Chains:
    return jax.vmap(lambda v, key: _SAMPLERS[sampler](model, v, key, plan))(v, keys)


def _blocks(model: BGMIVModel, v: np.ndarray, config: LatentPosterior, key: Array) -> Iterator[tuple[int, int, Chains]]:
    """Blocks of rows small enough for memory: the first row, the one past the last, and chains of these and of filling.

    The filling keeps blocks of similar size in one compiled program.
    """
    enable_compilation_cache()
    size = max(_FEWEST_ROWS, bucket_size(min(len(v), _MOST_ROWS)))
    for start in range(0, len(v), size):
        stop = min(start + size, len(v))
        # A row's key is that of its place, whatever rows are beside it.
        rows = np.minimum(np.arange(start, start + size), stop - 1)
        keys = jax.vmap(partial(jax.random.fold_in, key))(rows)
        yield start, stop, _chains(model, jnp.asarray(v[rows]), keys, config.sampler, config.plan)


@partial(jax.jit, static_argnames="of")
def _judged(draws: Array, of: Callable[[Array], Array] | None) -> tuple[Array, Array]:
    """The largest R-hat and the smallest effective number of draws of each row's latents, or of a function of them."""

    def one(draws: Array) -> tuple[Array, Array]:
        values = draws if of is None else jax.vmap(jax.vmap(of))(draws)
        rhats, sizes = jax.vmap(convergence, in_axes=2)(values.reshape(*draws.shape[:2], -1))
        return jnp.max(rhats), jnp.min(sizes)

    return jax.lax.map(one, draws, batch_size=_AT_ONCE)


def _warn_unconverged(rhat: np.ndarray, ess: np.ndarray, config: LatentPosterior, what: str) -> None:
    """Warn of chains that disagree or have too few effective draws, unless few rows have them."""
    fewest = _FEWEST_DRAWS * config.n_chains
    # A comparison with NaN is false: what cannot be judged is not converged.
    good: np.ndarray = (rhat <= _LARGEST_RHAT) & (ess >= fewest)
    bad = np.asarray(~good.reshape(len(rhat), -1).all(axis=1))
    if bad.sum() > _SHARE * len(bad):
        warn_user(
            f"the latent posterior's chains have not converged for {bad.sum()} of {len(bad)} {what}: R-hat is up to "
            f"{np.max(rhat):.3f} (it should be {_LARGEST_RHAT} at most) and the effective number of draws down to "
            f"{np.min(ess):.0f} (it should be {fewest} at least). Raise n_draws (now {config.n_draws}) or n_warmup "
            f"(now {config.n_warmup})."
        )


def sample_latents(
    model: BGMIVModel,
    v: np.ndarray,
    config: LatentPosterior,
    key: Array,
    of: Callable[[Array], Array] | None = None,
) -> LatentDraws:
    r"""Draws from $p(z \mid v)$ for scaled covariate rows `(n, p)`; the same key gives the same draws.

    Chains start at the encoder's latents and at draws from the prior, moved to where they make the covariates likely.

    Args:
        model: the fitted model.
        v: scaled covariates.
        config: the sampler and its settings.
        key: the randomness.
        of: a function of one row's latents `(d,)` whose convergence is judged too, such as the structural mean at the
            treatments of interest. It is compiled anew for each function object.

    Warns:
        BGMIVWarning: more than one row in ten has an R-hat above 1.01 or fewer than 100 effective draws a chain.
    """
    blocks: list[tuple[np.ndarray, ...]] = []
    for start, stop, chains in _blocks(model, v, config, key):
        judged = _judged(chains.draws, None) + (() if of is None else _judged(chains.draws, of))
        blocks.append(tuple(np.asarray(part)[: stop - start] for part in (*chains, *judged)))
    result = LatentDraws(*(np.concatenate(parts) for parts in zip(*blocks, strict=True)))
    _warn_unconverged(result.rhat, result.ess, config, "rows' latents")
    if result.rhat_of is not None and result.ess_of is not None:
        _warn_unconverged(result.rhat_of, result.ess_of, config, "rows' functions of the latents")
    return result


@jax.jit
def _summaries(model: BGMIVModel, x: Array, places: Array, draws: Array) -> Array:
    """Mean, deviation, R-hat and effective draws of points whose latents are at `draws[place]`.

    `(n, 4)`, or `(n, 4, K)` for an outcome of K levels.
    """

    def summary(values: Array) -> Array:
        return jnp.stack([jnp.mean(values), jnp.std(values), *convergence(values)])

    def one(point: tuple[Array, Array]) -> Array:
        x, place = point
        values = jax.vmap(jax.vmap(lambda z: model.structural_mean(x, z)))(draws[place])
        return summary(values) if values.ndim == 2 else jax.vmap(summary, in_axes=2, out_axes=1)(values)

    return jax.lax.map(one, (x, places), batch_size=_AT_ONCE)


def structural_posterior(
    model: BGMIVModel, x: np.ndarray, v: np.ndarray, config: LatentPosterior, key: Array
) -> StructuralPosterior:
    r"""The posterior of $\mu_\omega(x, z_0, z_1)$ given covariates alone; equal rows of covariates are sampled once.

    Args:
        model: the fitted model.
        x: scaled treatments, `(n,)`.
        v: scaled covariates, `(n, p)`.
        config: the sampler and its settings.
        key: the randomness; the same key gives the same result.

    Warns:
        BGMIVWarning: at more than one point in ten, chains disagree about the structural function or have too few
            effective draws of it. Latents that it does not depend on are not judged.
    """
    unique, inverse = unique_rows(v)
    head = model.outcome_head
    levels = (head.dim,) if isinstance(head, Categorical) else ()
    summaries = np.empty((len(x), len(StructuralPosterior._fields), *levels), dtype=np.float32)
    for start, stop, chains in _blocks(model, unique, config, key):
        points = np.flatnonzero((inverse >= start) & (inverse < stop))
        size = max(_FEWEST_POINTS, bucket_size(min(len(points), _MOST_POINTS)))
        for first in range(0, len(points), size):
            chosen = points[first : first + size]
            x_chosen, places = (jnp.asarray(pad_rows(part[chosen], size)) for part in (x, inverse - start))
            summaries[chosen] = _summaries(model, x_chosen, places, chains.draws)[: len(chosen)]
    result = StructuralPosterior(*np.moveaxis(summaries, 1, 0))
    _warn_unconverged(result.rhat, result.ess, config, "points of the structural function")
    return result


def posterior_structural_means(
    model: BGMIVModel, x: np.ndarray, v: np.ndarray, config: LatentPosterior, key: Array
) -> np.ndarray:
    r"""The means of `structural_posterior`: $E[\mu_\omega(x, z_0, z_1) \mid v]$ on the scaled outcome."""
    return structural_posterior(model, x, v, config, key).means
