r"""DeepGMM (Bennett, Kallus, Schnabel 2019): the structural function in a game against a critic of its moments.

The structural function g plays against a critic f of instruments and covariates,

$$\inf_g \sup_f\; E[f(w, v)\, r] - \tfrac14 E[f(w, v)^2\, (\tilde r^2 + \lambda)], \qquad r = y - g(x, v),$$

with $\tilde r$ the residual of the current g, held fixed. At $\lambda = 0$ this is the optimally weighted moment norm.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from bgmiv.data.scaling import UNSCALED, ScaledData, treatment_as_columns
from bgmiv.data.schema import Schema
from bgmiv.estimators.fitted import with_given
from bgmiv.estimators.members import (
    DEFAULT_FEATURES,
    CovariateNet,
    FittedMembers,
    Learner,
    MemberRows,
    NetMember,
    NetworkConfig,
    NetworkEstimator,
    step_factor,
)
from bgmiv.nn.settings import FeatureConfig, Schedule, check_bounds, check_choice
from bgmiv.progress import Reporter
from bgmiv.training import RandomNumbers, Row, TrainingData, run_phase, training_data

__all__ = [
    "PRESETS", "DeepGMM", "DeepGMMConfig", "FittedDeepGMM", "GameRows", "GameState", "MomentGame", "best_round",
    "critic_of", "paper_preset", "residuals_of", "violation",
]  # fmt: skip

# The critic's learning rate as a multiple of that of g.
_CRITIC_RATE = 5.0


class GameRows(NamedTuple):
    """The rows of a game, and those on which both players are recorded: the held-out ones, or all if none are."""

    train: TrainingData
    watched: TrainingData


class GameState(NamedTuple):
    """Both players g and f, g's learning rate, rounds done, and what is recorded after every round.

    `snapshots` stacks g's networks; `residuals` and `critics`, `(rounds, m)`, are y - g and f on the watched rows, zero
    on padding.
    """

    structural: Learner
    critic: Learner
    learning_rate: Array
    round: Array
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
    r"""The game's objective $\overline{f r} - \tfrac14 \overline{f^2 (\tilde r^2 + \lambda)}$, all arrays `(n,)`.

    `values` are the critic's, `reference` the residuals $\tilde r$ that weigh it, `weights` add up to one.
    """
    return jnp.sum(weights * (values * r - 0.25 * values**2 * (reference**2 + damping)))


def best_round(state: GameState, watched: TrainingData, damping: float) -> int:
    """The round whose g has the smallest violation, judged by the critics of all rounds.

    All candidates are weighed by their mean residuals: by their own, large residuals would excuse themselves.
    """
    real = jnp.arange(len(watched.rows.x)) < watched.n
    weights, reference = real / jnp.sum(real), jnp.mean(state.residuals, axis=0)
    over_critics = jax.vmap(violation, in_axes=(0, None, None, None, None))
    over_candidates = jax.vmap(over_critics, in_axes=(None, 0, None, None, None))
    violations = over_candidates(state.critics, state.residuals, reference, weights, damping)
    return int(np.argmin(jnp.max(violations, axis=1)))


@dataclass(frozen=True)
class MomentGame:
    """The game's settings and its step, which is one round: several updates, then both players on watched rows.

    Args:
        rounds, round_updates: rounds, and updates of g a round.
        batch_size: rows a batch, drawn uniformly; None takes all rows at every update.
        learning_rate: that of g.
        critic_steps: updates of f for one of g.
        damping: the lambda of the critic's penalty.
        optimistic: optimistic Adam (Daskalakis et al. 2018), else plain Adam; both with (0.5, 0.9).
        schedule: "constant", or "cosine": both learning rates fall to zero along a cosine.
    """

    rounds: int = 60
    round_updates: int = 100
    batch_size: int | None = 128
    learning_rate: float = 1e-3
    critic_steps: int = 1
    damping: float = 0.1
    optimistic: bool = True
    schedule: Schedule = "cosine"

    def __post_init__(self) -> None:
        check_bounds(self, "learning_rate", rounds=1, round_updates=1, batch_size=2, critic_steps=1, damping=0)
        check_choice(self, "schedule", "constant", "cosine")

    name = "moment game"
    # The mean squared residual of watched rows: the players' own losses say nothing, each undoes the other's.
    metric_names = ("loss",)
    chunk = 5

    @property
    def n_steps(self) -> int:
        return self.rounds

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """That of both players, which follows their gradients upwards."""
        adam = optax.scale_by_adam(b1=0.5, b2=0.9)
        return optax.chain(adam, optax.scale_by_optimistic_gradient()) if self.optimistic else adam

    def init(self, g: CovariateNet, f: CovariateNet, watched: TrainingData) -> GameState:
        """Fresh optimisers and an empty record."""
        structural, critic = (Learner.begin(net, self.optimiser) for net in (g, f))
        rate, done = jnp.asarray(self.learning_rate, jnp.float32), jnp.zeros((), jnp.int32)
        snapshots = jax.tree.map(lambda leaf: jnp.zeros((self.rounds, *leaf.shape), leaf.dtype), g)
        empty = jnp.zeros((self.rounds, len(watched.rows.x)))
        return GameState(structural, critic, rate, done, snapshots, residuals=empty, critics=empty)

    def step(self, state: GameState, data: GameRows, key: Array) -> tuple[GameState, dict[str, Array]]:
        """One round."""
        rate = state.learning_rate * step_factor(self.schedule, state.round, self.rounds)

        def body(i: Array, players: tuple[Learner, Learner]) -> tuple[Learner, Learner]:
            return self._update(*players, data.train, jax.random.fold_in(key, i), rate)

        g, f = jax.lax.fori_loop(0, self.round_updates, body, (state.structural, state.critic))
        rows, n, at = data.watched.rows, data.watched.n, state.round
        real = jnp.arange(len(rows.x)) < n
        r = jnp.where(real, residuals_of(g.net, rows, None), 0.0)
        values = jnp.where(real, critic_of(f.net, rows, None), 0.0)
        state = state._replace(
            structural=g,
            critic=f,
            round=at + 1,
            snapshots=jax.tree.map(lambda record, leaf: record.at[at].set(leaf), state.snapshots, g.net),
            residuals=state.residuals.at[at].set(r),
            critics=state.critics.at[at].set(values),
        )
        return state, {"loss": jnp.sum(r**2) / n}

    def _update(self, g: Learner, f: Learner, data: TrainingData, key: Array, rate: Array) -> tuple[Learner, Learner]:
        """All of the critic's steps but the last, then one of both players at once."""
        n_padded = len(data.rows.x)
        size = n_padded if self.batch_size is None else self.batch_size
        draws = RandomNumbers(key, size * (1 + g.net.noise_width + f.net.noise_width))
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

        def critic_step(_: Array, f: Learner) -> Learner:
            grads, _ = jax.grad(critic_loss, has_aux=True)(f.net)
            return f.moved(self.optimiser, grads, -_CRITIC_RATE * rate)

        if self.critic_steps > 1:
            f = jax.lax.fori_loop(0, self.critic_steps - 1, critic_step, f)
        grads_f, values = jax.grad(critic_loss, has_aux=True)(f.net)
        (grads_g,) = pull(weights * values)
        return g.moved(self.optimiser, grads_g, -rate), f.moved(self.optimiser, grads_f, -_CRITIC_RATE * rate)


@dataclass(frozen=True, eq=False)
class FittedDeepGMM(FittedMembers):
    """A fitted DeepGMM; the network of a member is the chosen g, its history the watched residuals' mean squares."""

    config: DeepGMMConfig
    members: tuple[NetMember, ...]


@dataclass(frozen=True)
class DeepGMMConfig(NetworkConfig):
    """Everything that determines a fit, given data and key; the default preset as it stands.

    It differs from the paper and its public code in these ways. All roles are standardised; wide vector blocks and
    images are reduced to scores. Both learning rates fall to zero along a cosine: at constant ones the players circle,
    and the error of the last g is a matter of luck. The critic's square is weighed by residual^2 + 0.1 instead of
    residual^2: where the outcome is nearly free of noise, the optimal weights 1 / E[residual^2 | w, v] have no bound.
    Four members are averaged, each without a fifth of the rows, on which every round is a candidate, judged by the
    critics of all rounds (the paper trains twice, to choose the learning rate and then the epoch). All this was chosen
    by the held-out moment risk, see benchmarks/choose_baselines.md.

    Args:
        covariates: features of the covariate blocks.
        game: how the game is played.
        hidden, members, held_out, scaling, use_instrument: as in `DeepGMM`.
    """

    fitted_class = FittedDeepGMM

    hidden: tuple[int, ...] = (128, 64, 32)
    covariates: FeatureConfig = DEFAULT_FEATURES
    game: MomentGame = field(default_factory=MomentGame)
    held_out: float | None = field(default=0.2, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds(self, hidden=1)

    def fit_member(self, schema: Schema, rows: MemberRows, key: Array, reporter: Reporter) -> NetMember:
        """Play; with rows held out, the best of all rounds by their moments."""

        def columns(rows: ScaledData) -> ScaledData:
            rows = treatment_as_columns(rows, schema)
            # Without the instrument the treatment is its own.
            return rows if self.use_instrument else rows._replace(w=rows.x.reshape(len(rows.x), -1))

        _, key_nets, key_game = jax.random.split(key, 3)
        train, held_out, _ = rows.changed(columns)
        key_g, key_f = jax.random.split(key_nets)
        sides = ((schema.treatment.width, key_g), (train.w.shape[1], key_f))
        g, f = (CovariateNet(schema.blocks, self.covariates, n, self.hidden, 1, key=k) for n, k in sides)
        data = GameRows(training_data(train, 1), training_data(held_out or train, 1))
        state = self.game.init(g, f, data.watched)
        state, history = run_phase(self.game, state, data, key_game, reporter=reporter)
        chosen = best_round(state, data.watched, self.game.damping) if held_out else self.game.rounds - 1
        return NetMember(jax.tree.map(lambda leaf: leaf[chosen], state.snapshots), history)


def paper_preset() -> DeepGMMConfig:
    """The DFIV study's public settings for the demand design: all rows at once, five critic steps to one of g.

    20,000 updates of plain Adam (0.5, 0.9) at 5e-4 and 2.5e-3, the moment norm's own penalty alone, roles in their own
    units, the last g taken.
    """
    game = MomentGame(100, 200, None, 5e-4, critic_steps=5, damping=0.0, optimistic=False, schedule="constant")
    return DeepGMMConfig(
        covariates=FeatureConfig(), game=game, members=1, held_out=0.0, reduction=None, scaling=UNSCALED
    )


PRESETS = {"default": DeepGMMConfig, "paper": paper_preset}


@dataclass(eq=False, repr=False, kw_only=True)
class DeepGMM(NetworkEstimator):
    """DeepGMM: the deep generalised method of moments.

    The structural function g minimises, and a critic f of instruments and covariates maximises,
    E[f r] - E[f^2 r~^2] / 4 with r = outcome - g; both by optimistic Adam. The last g is kept or, with rows held out,
    the one with the smallest violation on them. `DeepGMMConfig` says where this differs from the paper.

    Args:
        preset: "default", or "paper" (the DFIV study's public settings).
        updates: updates of g in each game, in rounds of at most 100.
        batch_size: rows a batch.
        learning_rate: g's learning rate.
        hidden: hidden widths of both networks.
        damping: added to the squared residuals that weigh the critic's square.
        members: pairs of networks trained; the predictions of their g are averaged.
        held_out: share of the rows that each member holds out for the choice; 0 takes the last g. Below 20 rows a
            share nothing is held out.
        scaling: how each role is scaled.
        use_instrument: False lets the critic see the treatment in place of the instruments, as its own instrument.
        treatment_kind, outcome_kind: as in `IVData.from_arrays`; an outcome may have two levels, not more.
        random_state: the seed; None draws one and keeps it in `seed_`.
        progress: show progress bars; None shows them in notebooks only.

    Arguments left at None take the preset's value.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> w, v, u = rng.normal(size=(3, 200))
        >>> x = w + v + u
        >>> model = DeepGMM(updates=20, hidden=(8,), random_state=0)
        >>> model.fit(2 * x + v - u, x, instruments=w, covariates=v).predict(0.0, v[:3]).shape
        (3,)

    Reference:
        A. Bennett, N. Kallus, T. Schnabel (2019), Deep generalized method of moments for instrumental variable
        analysis, NeurIPS. Optimistic Adam: C. Daskalakis et al. (2018), Training GANs with optimism, ICLR.
    """

    presets = PRESETS
    fitted_class = FittedDeepGMM

    updates: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    hidden: tuple[int, ...] | None = None
    damping: float | None = None

    def _config(self) -> DeepGMMConfig:
        check_bounds(self, updates=1)
        config = super()._config()
        game = with_given(config.game, self)
        if self.updates is not None:
            rounds = -(-self.updates // 100)
            game = replace(game, rounds=rounds, round_updates=-(-self.updates // rounds))
        return replace(config, game=game)
