r"""Hamiltonian Monte Carlo on latents lifted by their noise, for posteriors as thin as the covariates are exact.

Where $v = \mu(z) + s(z)\,\eta$ with small $s$, the posterior of $z$ lies within $s$ of the surface $\mu(z) = v$: a step
along it that stays inside must be as small as $s$. The pairs $(z, \eta)$ with $\eta(z) = (v - \mu(z)) / s(z)$ have a
standard normal prior however small $s$ is, and lie on a smooth surface of their own. Moves along that surface are
leapfrog steps, projected back by Newton's method (RATTLE), of a size that does not depend on $s$.

Everything here is for one chain; `vmap` at the call site.

Reference:
    K. X. Au, M. M. Graham, A. H. Thiery (2023), Manifold lifting: scaling Markov chain Monte Carlo to the vanishing
    noise regime, Journal of the Royal Statistical Society B 85(3).
    E. Zappa, M. Holmes-Cerfon, J. Goodman (2018), Monte Carlo on manifolds: sampling densities and integrating
    functions, Communications on Pure and Applied Mathematics 71(12), for the reversed step.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import ndtri

__all__ = ["LARGEST_STEP", "LiftedInfo", "LiftedState", "LiftedTarget", "centred", "lifted_state", "lifted_step"]

_STEPS = 3
_NEWTON = 4
_CENTRINGS = 5
_JITTER = 0.2
# Of noise and latents, whose prior standard deviation is one. Single precision leaves about 1e-3 for a spread of 1e-3.
_TOLERANCE = 5e-3
LARGEST_STEP = pi / 2 / _STEPS
"""The leapfrog step at which a proposal covers a quarter of the prior's period: nearly independent of its start."""


class LiftedTarget(NamedTuple):
    r"""The density of one row's latents; every function takes latents `(d,)`.

    Attributes:
        gap: $\mu(z) - v$ and the spread $s(z) > 0$ of the part that is lifted, `(p,)` each; p may be 0.
        log_density: the whole log-density, up to a constant.
        log_other: what it has besides the prior and the lifted part, whose gradient then drives the moves; None if
            nothing.
    """

    gap: Callable[[Array], tuple[Array, Array]]
    log_density: Callable[[Array], Array]
    log_other: Callable[[Array], Array] | None = None


class LiftedState(NamedTuple):
    r"""A point of the surface.

    Attributes:
        z: the latents, `(d,)`.
        noise: $\eta(z)$, `(p,)`.
        slope: the derivative of $\mu(z) + s(z)\,\eta$ by $z$, `(p, d)`.
        spread: its derivative by $\eta$, the diagonal `(p,)`.
        energy: minus the log-density with respect to the surface's own measure.
    """

    z: Array
    noise: Array
    slope: Array
    spread: Array
    energy: Array


class LiftedInfo(NamedTuple):
    """A proposal's acceptance probability, and whether a step of it could not be projected or not be reversed."""

    acceptance: Array
    diverged: Array


def _linearised(target: LiftedTarget, z: Array, noise: Array) -> tuple[Array, Array, Array]:
    """The constraint's value at a point on or off the surface, its spread and its slope."""

    def constraint(z: Array) -> tuple[Array, tuple[Array, Array]]:
        gap, spread = target.gap(z)
        value = gap + spread * noise
        return value, (value, spread)

    if noise.size == 0:
        return noise, noise, jnp.zeros((0, z.size), z.dtype)
    jacobian = jax.jacrev if noise.size <= z.size else jax.jacfwd
    slope, (value, spread) = jacobian(constraint, has_aux=True)(z)
    return value, spread, slope


def _normal(slope: Array, spread: Array, base_slope: Array, base_spread: Array, value: Array) -> tuple[Array, Array]:
    """The move along the base point's normals that changes the constraint by `value`, to first order."""
    p, d = slope.shape
    if p <= d:
        gram = slope @ base_slope.T + jnp.diag(spread * base_spread)
        multiplier = jnp.linalg.solve(gram, value)
        return base_slope.T @ multiplier, base_spread * multiplier
    weighted = base_slope.T / (spread * base_spread)
    dz = jnp.linalg.solve(jnp.eye(d) + weighted @ slope, weighted @ value)
    return dz, (value - slope @ dz) / spread


def _tangent(dz: Array, dn: Array, slope: Array, spread: Array) -> tuple[Array, Array]:
    """A direction without its part normal to the surface."""
    if dn.size == 0:
        return dz, dn
    nz, nn = _normal(slope, spread, slope, spread, slope @ dz + spread * dn)
    return dz - nz, dn - nn


def _projected(
    target: LiftedTarget, z: Array, noise: Array, base_slope: Array, base_spread: Array
) -> tuple[Array, Array]:
    """The point of the surface that lies along the base point's normals (Newton's method; it may not be reached)."""
    if noise.size == 0:
        return z, noise

    def newton(_: int, point: tuple[Array, Array]) -> tuple[Array, Array]:
        z, noise = point
        value, spread, slope = _linearised(target, z, noise)
        dz, dn = _normal(slope, spread, base_slope, base_spread, value)
        return z - dz, noise - dn

    # A count fixed beforehand: of many chains side by side one would always keep the others waiting.
    return jax.lax.fori_loop(0, _NEWTON, newton, (z, noise))


def _energy(target: LiftedTarget, z: Array, slope: Array, spread: Array) -> Array:
    r"""$-\ell(z) + \frac12 \log\det(I + \eta'(z)^\top \eta'(z))$: the surface is larger than its shadow on z."""
    p, d = slope.shape
    if p <= d:
        gram = slope @ slope.T + jnp.diag(spread**2)
        stretch = jnp.linalg.slogdet(gram)[1] - 2.0 * jnp.sum(jnp.log(spread))
    else:
        stretch = jnp.linalg.slogdet(jnp.eye(d) + (slope.T / spread**2) @ slope)[1]
    return 0.5 * stretch - target.log_density(z)


def lifted_state(target: LiftedTarget, z: Array) -> LiftedState:
    """The surface's point above latents."""
    gap, spread = target.gap(z)
    noise = -gap / spread
    _, spread, slope = _linearised(target, z, noise)
    return LiftedState(z, noise, slope, spread, _energy(target, z, slope, spread))


def centred(target: LiftedTarget, z: Array) -> Array:
    """Latents near the given ones whose noise is small: a place to start from.

    Gauss-Newton steps with a normal prior around the latents, each kept if it raises the density.
    """

    def closer(i: int, best: tuple[Array, Array]) -> tuple[Array, Array]:
        z, height = best
        nothing = jnp.zeros_like(target.gap(z)[0])
        spread, slope = _linearised(target, z, nothing)[1:]
        moved = _projected(target, z, nothing, slope, spread)[0]
        moved_height = target.log_density(moved)
        better = moved_height > height
        return jnp.where(better, moved, z), jnp.where(better, moved_height, height)

    return jax.lax.fori_loop(0, _CENTRINGS, closer, (z, target.log_density(z)))[0]


def _force(target: LiftedTarget, z: Array, noise: Array) -> tuple[Array, Array]:
    # The stretch's own gradient is left out: networks of linear pieces stretch in jumps, which no gradient sees.
    pull = -z if target.log_other is None else jax.grad(target.log_other)(z) - z
    return pull, -noise


def _leapfrog(target: LiftedTarget, place: tuple[Array, ...], step_size: Array) -> tuple[tuple[Array, ...], Array]:
    """A RATTLE step of `(z, noise, slope, spread, velocities of z and noise)`, and whether it can be undone."""
    z, noise, slope, spread, uz, un = place
    fz, fn = _force(target, z, noise)
    uz, un = _tangent(uz + 0.5 * step_size * fz, un + 0.5 * step_size * fn, slope, spread)
    z1, noise1 = _projected(target, z + step_size * uz, noise + step_size * un, slope, spread)
    value, spread1, slope1 = _linearised(target, z1, noise1)
    residual = value / spread1
    uz, un = _tangent((z1 - z) / step_size, (noise1 - noise) / step_size, slope1, spread1)
    back_z, back_noise = _projected(target, z1 - step_size * uz, noise1 - step_size * un, slope1, spread1)
    errors = jnp.abs(jnp.concatenate([residual, back_z - z, back_noise - noise]))
    fz, fn = _force(target, z1, noise1)
    uz, un = _tangent(uz + 0.5 * step_size * fz, un + 0.5 * step_size * fn, slope1, spread1)
    # The noise is what the latents leave, so that rounding does not carry a chain off the surface.
    return (z1, noise1 - residual, slope1, spread1, uz, un), jnp.max(errors) < _TOLERANCE


def lifted_step(
    target: LiftedTarget, state: LiftedState, uniforms: Array, step_size: Array
) -> tuple[LiftedState, LiftedInfo]:
    """One draw: a velocity, `_STEPS` leapfrog steps, accepted or not."""
    d, p = state.z.size, state.noise.size
    velocity = ndtri(uniforms[: d + p])
    step_size = step_size * (1.0 + _JITTER * (2.0 * uniforms[-2] - 1.0))
    uz, un = _tangent(velocity[:d], velocity[d:], state.slope, state.spread)

    def body(_: int, carry: tuple[tuple[Array, ...], Array]) -> tuple[tuple[Array, ...], Array]:
        place, reversible = carry
        place, fine = _leapfrog(target, place, step_size)
        return place, reversible & fine

    start = (state.z, state.noise, state.slope, state.spread, uz, un)
    (z, noise, slope, spread, uz1, un1), reversible = jax.lax.fori_loop(0, _STEPS, body, (start, jnp.asarray(True)))
    end = LiftedState(z, noise, slope, spread, _energy(target, z, slope, spread))
    change = state.energy - end.energy + 0.5 * (uz @ uz + un @ un - uz1 @ uz1 - un1 @ un1)
    fine = reversible & jnp.isfinite(change)
    acceptance = jnp.where(fine, jnp.minimum(1.0, jnp.exp(change)), 0.0)
    accepted = uniforms[-1] < acceptance
    return jax.tree.map(lambda new, old: jnp.where(accepted, new, old), end, state), LiftedInfo(acceptance, ~fine)
