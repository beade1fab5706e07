r"""DeepGMM's game as a training program, and the held-out choice among the functions it passes through.

The structural function g plays against a critic f of instruments and covariates,

$$\inf_g \sup_f\; E[f(w, v)\, r] - \tfrac14 E[f(w, v)^2\, (\tilde r^2 + \lambda)], \qquad r = y - g(x, v),$$

with $\tilde r$ the residual of the current g, held fixed. At $\lambda = 0$ this is the optimally weighted moment norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from bgmiv.errors import ConfigError
from bgmiv.model.objectives import Row
from bgmiv.train.covariate_net import CovariateNet
from bgmiv.train.draws import Draws
from bgmiv.train.loop import TrainingData

__all__ = ["Choice", "GameState", "MomentGame", "Player", "choose", "critic_of", "last", "residuals_of", "violation"]


class Player(NamedTuple):
    """A network and its optimiser."""

    net: CovariateNet
    optimiser: optax.OptState


class GameState(NamedTuple):
    """Both players, the learning rate, and what was seen on held-out rows at the end of every round.

    Attributes:
        structural, critic: the players g and f.
        learning_rate: g's.
        round: rounds done.
        held_out: rows that no player trains on (or the training rows, where none are held out).
        snapshots: g's network after every round, stacked.
        residuals: y - g on the held-out rows after every round, `(rounds, m)`; zero on padding.
        critics: f on the held-out rows after every round, `(rounds, m)`.
    """

    structural: Player
    critic: Player
    learning_rate: Array
    round: Array
    held_out: TrainingData
    snapshots: CovariateNet
    residuals: Array
    critics: Array


def residuals_of(g: CovariateNet, rows: Row, noise: Array | None) -> Array:
    """y - g(x, v) of each row, `(n,)`."""
    sides = rows.x.reshape(len(rows.x), -1)
    return rows.y - jax.vmap(g, in_axes=(0, 0, None if noise is None else 0))(sides, rows.v, noise)[:, 0]


def critic_of(f: CovariateNet, rows: Row, noise: Array | None) -> Array:
    """f(w, v) of each row, `(n,)`."""
    return jax.vmap(f, in_axes=(0, 0, None if noise is None else 0))(rows.w, rows.v, noise)[:, 0]


def violation(values: Array, r: Array, reference: Array, weights: Array, damping: float) -> Array:
    r"""The game's objective $\overline{f r} - \tfrac14 \overline{f^2 (\tilde r^2 + \lambda)}$.

    Args:
        values: the critic's, `(n,)`.
        r: residuals, `(n,)`.
        reference: the residuals $\tilde r$ that weigh the critic, `(n,)`.
        weights: `(n,)`, adding up to one.
        damping: the $\lambda$.

    Example:
        >>> one = jnp.ones(2)
        >>> float(violation(one, one, one, 0.5 * one, 0.0))
        0.75
    """
    return jnp.sum(weights * (values * r - 0.25 * values**2 * (reference**2 + damping)))


class Choice(NamedTuple):
    """The chosen g: its network, the run and the round it comes from, and its held-out violation."""

    net: CovariateNet
    run: int
    round: int
    violation: float


def choose(states: Sequence[GameState], damping: float) -> Choice:
    """The g with the smallest held-out violation, judged by the critics of all rounds of all runs.

    All candidates are weighed by their mean residuals: by their own, large residuals would excuse themselves.
    """
    m = len(states[0].held_out.rows.x)
    real = jnp.arange(m) < states[0].held_out.n
    residuals = jnp.concatenate([state.residuals for state in states])
    critics = jnp.concatenate([state.critics for state in states])
    weights, reference = real / jnp.sum(real), jnp.mean(residuals, axis=0)
    over_critics = jax.vmap(violation, in_axes=(0, None, None, None, None))
    over_candidates = jax.vmap(over_critics, in_axes=(None, 0, None, None, None))
    largest = np.asarray(jnp.max(over_candidates(critics, residuals, reference, weights, damping), axis=1))
    best = int(np.argmin(largest))
    run, at = divmod(best, len(states[0].residuals))
    return Choice(_snapshot(states[run], at), run, at, float(largest[best]))


def last(state: GameState) -> Choice:
    """The g of the last round, whatever its violation."""
    at = len(state.residuals) - 1
    return Choice(_snapshot(state, at), 0, at, float("nan"))


def _snapshot(state: GameState, at: int) -> CovariateNet:
    return jax.tree.map(lambda leaf: leaf[at], state.snapshots)


@dataclass(frozen=True)
class MomentGame:
    """The game's settings and its step, which is one round: several updates, then a look at the held-out rows.

    Args:
        rounds: rounds.
        round_updates: updates of g a round.
        batch_size: rows a batch, drawn uniformly; None takes all rows at every update.
        critic_steps: updates of f for one of g.
        critic_rate: f's learning rate as a multiple of g's.
        damping: the lambda of the critic's penalty.
        optimistic: optimistic Adam (Daskalakis et al. 2018), else plain Adam; both with (0.5, 0.9).
        schedule: "constant", or "cosine": both learning rates fall to zero along a cosine.
        chunk: rounds between two looks of the host.
    """

    rounds: int = 60
    round_updates: int = 100
    batch_size: int | None = 128
    critic_steps: int = 1
    critic_rate: float = 5.0
    damping: float = 0.1
    optimistic: bool = True
    schedule: Literal["constant", "cosine"] = "cosine"
    chunk: int = 5

    def __post_init__(self) -> None:
        """Refuse settings that cannot train."""
        counts = (self.rounds, self.round_updates, self.critic_steps, self.chunk)
        if min(counts) < 1 or (self.batch_size is not None and self.batch_size < 2):
            raise ConfigError(
                "the moment game needs rounds, round_updates, critic_steps and chunk >= 1 and batch_size >= 2 or None, "
                f"got {', '.join(map(str, counts))} and {self.batch_size}."
            )
        if self.critic_rate <= 0.0 or self.damping < 0.0:
            raise ConfigError(
                f"the moment game needs critic_rate above 0 and damping at least 0, got {self.critic_rate} and "
                f"{self.damping}."
            )
        if self.schedule not in ("constant", "cosine"):
            raise ConfigError(f"schedule is 'constant' or 'cosine', got {self.schedule!r}.")

    @property
    def name(self) -> str:
        """The phase's name."""
        return "moment game"

    @property
    def n_steps(self) -> int:
        """Rounds."""
        return self.rounds

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The mean squared held-out residual: the players' own losses say nothing, each undoes the other's."""
        return ("loss",)

    def _optimiser(self) -> optax.GradientTransformation:
        adam = optax.scale_by_adam(b1=0.5, b2=0.9)
        return optax.chain(adam, optax.scale_by_optimistic_gradient()) if self.optimistic else adam

    def init(self, g: CovariateNet, f: CovariateNet, held_out: TrainingData, learning_rate: float) -> GameState:
        """Fresh optimisers and an empty record."""
        optimiser, m = self._optimiser(), len(held_out.rows.x)
        return GameState(
            structural=Player(g, optimiser.init(g)),
            critic=Player(f, optimiser.init(f)),
            learning_rate=jnp.asarray(learning_rate, jnp.float32),
            round=jnp.zeros((), jnp.int32),
            held_out=held_out,
            snapshots=jax.tree.map(lambda leaf: jnp.zeros((self.rounds, *leaf.shape), leaf.dtype), g),
            residuals=jnp.zeros((self.rounds, m)),
            critics=jnp.zeros((self.rounds, m)),
        )

    def step(self, state: GameState, data: TrainingData, key: Array) -> tuple[GameState, dict[str, Array]]:
        """One round."""
        rate = state.learning_rate
        if self.schedule == "cosine":
            rate = rate * 0.5 * (1.0 + jnp.cos(jnp.pi * state.round / self.rounds))

        def body(i: Array, players: tuple[Player, Player]) -> tuple[Player, Player]:
            return self._update(*players, data, jax.random.fold_in(key, i), rate)

        g, f = jax.lax.fori_loop(0, self.round_updates, body, (state.structural, state.critic))
        rows, n = state.held_out.rows, state.held_out.n
        real = jnp.arange(len(rows.x)) < n
        r = jnp.where(real, residuals_of(g.net, rows, None), 0.0)
        values = jnp.where(real, critic_of(f.net, rows, None), 0.0)
        at = state.round
        state = state._replace(
            structural=g,
            critic=f,
            round=at + 1,
            snapshots=jax.tree.map(lambda record, leaf: record.at[at].set(leaf), state.snapshots, g.net),
            residuals=state.residuals.at[at].set(r),
            critics=state.critics.at[at].set(values),
        )
        return state, {"loss": jnp.sum(r**2) / n}

    def _update(self, g: Player, f: Player, data: TrainingData, key: Array, rate: Array) -> tuple[Player, Player]:
        """All of the critic's steps but the last, then one of both players at once."""
        n_padded = len(data.rows.x)
        size = n_padded if self.batch_size is None else self.batch_size
        width = g.net.noise_width + f.net.noise_width
        draws = Draws(key, size * (1 + width))
        index = draws.index((size,), data.n)
        if self.batch_size is None:
            rows, weights = data.rows, (jnp.arange(n_padded) < data.n) / data.n
        else:
            rows, weights = jax.tree.map(lambda leaf: leaf[index], data.rows), jnp.full((size,), 1.0 / size)
        noise_g, noise_f = draws.uniform((size, g.net.noise_width)), draws.uniform((size, f.net.noise_width))
        # Each player holds the other fixed; the critic's weighting uses the residuals of g as it is.
        r, pull = jax.vjp(lambda net: residuals_of(net, rows, noise_g), g.net)

        def critic_loss(net: CovariateNet) -> tuple[Array, Array]:
            values = critic_of(net, rows, noise_f)
            return -violation(values, r, r, weights, self.damping), values

        def critic_step(_: Array, f: Player) -> Player:
            grads, _ = jax.grad(critic_loss, has_aux=True)(f.net)
            return self._apply(f, grads, self.critic_rate * rate)

        if self.critic_steps > 1:
            f = jax.lax.fori_loop(0, self.critic_steps - 1, critic_step, f)
        grads_f, values = jax.grad(critic_loss, has_aux=True)(f.net)
        (grads_g,) = pull(weights * values)
        return self._apply(g, grads_g, rate), self._apply(f, grads_f, self.critic_rate * rate)

    def _apply(self, player: Player, grads: CovariateNet, rate: Array) -> Player:
        updates, optimiser = self._optimiser().update(grads, player.optimiser)
        net = optax.apply_updates(player.net, jax.tree.map(lambda update: -rate * update, updates))
        return Player(net, optimiser)
