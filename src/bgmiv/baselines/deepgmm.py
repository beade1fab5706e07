r"""DeepGMM (Bennett, Kallus, Schnabel 2019): the structural function in a game against a critic of its moments.

The structural function g plays against a critic f of instruments and covariates,

$$\inf_g \sup_f\; E[f(w, v)\, r] - \tfrac14 E[f(w, v)^2\, (\tilde r^2 + \lambda)], \qquad r = y - g(x, v),$$

with $\tilde r$ the residual of the current g, held fixed. At $\lambda = 0$ this is the optimally weighted moment norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from bgmiv.baselines.members import FittedMembers, NetMember, NetworkConfig, NetworkEstimator, fit_members
from bgmiv.baselines.networks import DEFAULT_FEATURES, CovariateNet, Schedule, check_settings, step_factor
from bgmiv.data.ivdata import IVData
from bgmiv.data.scaling import Identity, RoleScaling, ScaledData, treatment_as_columns
from bgmiv.data.schema import Schema
from bgmiv.errors import ConfigError, DivergedError
from bgmiv.estimators.fitted import chosen_preset
from bgmiv.nn.settings import FeatureConfig, check_widths
from bgmiv.progress import HistoryRow, Reporter, silent
from bgmiv.training import RandomNumbers, Row, TrainingData, run_phase, training_data

__all__ = [
    "PRESETS", "Choice", "DeepGMM", "DeepGMMConfig", "DeepGMMMember", "FittedDeepGMM", "GameState", "MomentGame",
    "Player", "choose", "critic_of", "paper_preset", "residuals_of", "violation",
]  # fmt: skip


class Player(NamedTuple):
    """A network and its optimiser."""

    net: CovariateNet
    optimiser: optax.OptState


class GameState(NamedTuple):
    """Both players g and f, g's learning rate, rounds done, and what is recorded after every round.

    `snapshots` stacks g's networks; `residuals` and `critics`, `(rounds, m)`, are y - g and f on the held-out rows (the
    training rows, where none are held out), zero on padding.
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
    r"""The game's objective $\overline{f r} - \tfrac14 \overline{f^2 (\tilde r^2 + \lambda)}$, all arrays `(n,)`.

    `values` are the critic's, `reference` the residuals $\tilde r$ that weigh it, `weights` add up to one.
    """
    return jnp.sum(weights * (values * r - 0.25 * values**2 * (reference**2 + damping)))


class Choice(NamedTuple):
    """Which g was chosen: the run and the round it comes from, and its held-out violation; NaN if none was measured."""

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
    return Choice(*divmod(best, len(states[0].residuals)), float(largest[best]))


@dataclass(frozen=True)
class MomentGame:
    """The game's settings and its step, which is one round: several updates, then both players on held-out rows.

    Args:
        rounds, round_updates: rounds, and updates of g a round.
        batch_size: rows a batch, drawn uniformly; None takes all rows at every update.
        critic_steps: updates of f for one of g.
        critic_rate: f's learning rate as a multiple of g's.
        damping: the lambda of the critic's penalty.
        optimistic: optimistic Adam (Daskalakis et al. 2018), else plain Adam; both with (0.5, 0.9).
        schedule: "constant", or "cosine": both learning rates fall to zero along a cosine.
        chunk: rounds between two reports of progress.
    """

    rounds: int = 60
    round_updates: int = 100
    batch_size: int | None = 128
    critic_steps: int = 1
    critic_rate: float = 5.0
    damping: float = 0.1
    optimistic: bool = True
    schedule: Schedule = "cosine"
    chunk: int = 5

    def __post_init__(self) -> None:
        minima = {"rounds": 1, "round_updates": 1, "critic_steps": 1, "critic_rate": 1e-9, "damping": 0, "chunk": 1}
        check_settings(self, minima, self.schedule)
        if self.batch_size is not None and self.batch_size < 2:
            raise ConfigError(f"batch_size must be at least 2, or None for all rows, got {self.batch_size}.")

    name = "moment game"
    # The mean squared held-out residual: the players' own losses say nothing, each undoes the other's.
    metric_names = ("loss",)

    @property
    def n_steps(self) -> int:
        return self.rounds

    def _optimiser(self) -> optax.GradientTransformation:
        adam = optax.scale_by_adam(b1=0.5, b2=0.9)
        return optax.chain(adam, optax.scale_by_optimistic_gradient()) if self.optimistic else adam

    def init(self, g: CovariateNet, f: CovariateNet, held_out: TrainingData, learning_rate: float) -> GameState:
        """Fresh optimisers and an empty record."""
        structural, critic = (Player(net, self._optimiser().init(net)) for net in (g, f))
        rate, done = jnp.asarray(learning_rate, jnp.float32), jnp.zeros((), jnp.int32)
        snapshots = jax.tree.map(lambda leaf: jnp.zeros((self.rounds, *leaf.shape), leaf.dtype), g)
        empty = jnp.zeros((self.rounds, len(held_out.rows.x)))
        return GameState(structural, critic, rate, done, held_out, snapshots, residuals=empty, critics=empty)

    def step(self, state: GameState, data: TrainingData, key: Array) -> tuple[GameState, dict[str, Array]]:
        """One round."""
        rate = state.learning_rate * step_factor(self.schedule, state.round, self.rounds)

        def body(i: Array, players: tuple[Player, Player]) -> tuple[Player, Player]:
            return self._update(*players, data, jax.random.fold_in(key, i), rate)

        g, f = jax.lax.fori_loop(0, self.round_updates, body, (state.structural, state.critic))
        rows, n, at = state.held_out.rows, state.held_out.n, state.round
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

    def _update(self, g: Player, f: Player, data: TrainingData, key: Array, rate: Array) -> tuple[Player, Player]:
        """All of the critic's steps but the last, then one of both players at once."""
        n_padded = len(data.rows.x)
        size = n_padded if self.batch_size is None else self.batch_size
        width = g.net.noise_width + f.net.noise_width
        draws = RandomNumbers(key, size * (1 + width))
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


@dataclass(frozen=True, eq=False)
class DeepGMMMember(NetMember):
    """A trained DeepGMM: the chosen g is `net`, and `choice` says where it comes from.

    `history` has the held-out residuals' mean squares of each chunk of each run.
    """

    net: CovariateNet
    choice: Choice
    history: tuple[HistoryRow, ...] = ()


@dataclass(frozen=True, eq=False)
class FittedDeepGMM(FittedMembers):
    """A fitted DeepGMM."""

    config: DeepGMMConfig
    members: tuple[DeepGMMMember, ...]


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
        hidden, learning_rates, members, held_out, scaling, use_instrument: as in `DeepGMM`.
    """

    hidden: tuple[int, ...] = (128, 64, 32)
    covariates: FeatureConfig = DEFAULT_FEATURES
    game: MomentGame = field(default_factory=MomentGame)
    learning_rates: tuple[float, ...] = (1e-3,)
    held_out: float | None = field(default=0.2, kw_only=True)

    def __post_init__(self) -> None:
        check_widths(self, "hidden")
        super().__post_init__()
        if not self.learning_rates or min(self.learning_rates) <= 0.0:
            raise ConfigError(f"learning_rates must hold positive numbers, got {self.learning_rates}.")

    def fit(self, data: IVData, seed: int = 0, reporter: Reporter = silent) -> FittedDeepGMM:
        """Fit all members."""
        return fit_members(FittedDeepGMM, self, data, seed, reporter)

    def fit_member(
        self,
        schema: Schema,
        train: ScaledData,
        held_out: ScaledData | None,
        groups: NDArray[np.integer] | None,
        key: Array,
        reporter: Reporter,
    ) -> DeepGMMMember:
        """Play; with rows held out, one game a learning rate and the best of all rounds by their moments.

        A game that diverges is left out unless all do.
        """
        _, key_nets, key_game = jax.random.split(key, 3)
        train, watched = (self._columns(rows, schema) for rows in (train, held_out or train))
        key_g, key_f = jax.random.split(key_nets)
        sides = ((schema.treatment.width, key_g), (train.w.shape[1], key_f))
        g, f = (CovariateNet.build(schema, self.covariates, n, self.hidden, 1, key=k) for n, k in sides)
        played = training_data(train, 1)
        states: list[GameState] = []
        history: tuple[HistoryRow, ...] = ()
        failure: DivergedError | None = None
        # Without held-out rows nothing could choose among several.
        for learning_rate in self.learning_rates if held_out else self.learning_rates[:1]:
            state = self.game.init(g, f, training_data(watched, 1), learning_rate)
            try:
                state, more = run_phase(self.game, state, played, key_game, reporter=reporter)
            except DivergedError as error:
                failure = error
                continue
            states.append(state)
            history += more
        if failure is not None and not states:
            raise failure
        choice = Choice(0, self.game.rounds - 1, float("nan"))
        if held_out is not None:
            choice = choose(states, self.game.damping)
        net = jax.tree.map(lambda leaf: leaf[choice.round], states[choice.run].snapshots)
        return DeepGMMMember(net, choice, history)

    def _columns(self, rows: ScaledData, schema: Schema) -> ScaledData:
        """Levels of the treatment as columns; without the instrument the treatment is its own."""
        rows = treatment_as_columns(rows, schema)
        return rows if self.use_instrument else rows._replace(w=rows.x.reshape(len(rows.x), -1))


def paper_preset() -> DeepGMMConfig:
    """The DFIV study's public settings for the demand design: all rows at once, five critic steps to one of g.

    20,000 updates of plain Adam (0.5, 0.9) at 5e-4 and 2.5e-3, the moment norm's own penalty alone, roles in their own
    units, the last g taken.
    """
    unscaled = RoleScaling(Identity(), Identity(), Identity(), Identity())
    game = MomentGame(100, 200, None, critic_steps=5, damping=0.0, optimistic=False, schedule="constant")
    return DeepGMMConfig(
        covariates=FeatureConfig(),
        game=game,
        learning_rates=(5e-4,),
        members=1,
        held_out=0.0,
        reduction=None,
        scaling=unscaled,
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
        learning_rates: g's learning rates, a game each; held-out rows choose among all rounds of all games.
        hidden: hidden widths of both networks.
        damping: added to the squared residuals that weigh the critic's square.
        members: pairs of networks trained; the predictions of their g are averaged.
        held_out: share of the rows that each member holds out for the choice; 0 takes the last g of the first learning
            rate. Below 20 rows a share nothing is held out.
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
        >>> model = DeepGMM(updates=20, hidden=(8,), learning_rates=(1e-3,), random_state=0)
        >>> model.fit(2 * x + v - u, x, instruments=w, covariates=v).predict(0.0, v[:3]).shape
        (3,)

    Reference:
        A. Bennett, N. Kallus, T. Schnabel (2019), Deep generalized method of moments for instrumental variable
        analysis, NeurIPS. Optimistic Adam: C. Daskalakis et al. (2018), Training GANs with optimism, ICLR.
    """

    fitted_class = FittedDeepGMM

    preset: Literal["default", "paper"] = "default"
    updates: int | None = None
    batch_size: int | None = None
    learning_rates: tuple[float, ...] | None = None
    hidden: tuple[int, ...] | None = None
    damping: float | None = None

    def _config(self) -> DeepGMMConfig:
        config = chosen_preset(PRESETS, self.preset)
        game = self._given("batch_size", "damping")
        if self.updates is not None:
            if self.updates < 1:
                raise ConfigError(f"updates must be at least 1, got {self.updates}.")
            game["rounds"] = -(-self.updates // 100)
            game["round_updates"] = -(-self.updates // game["rounds"])
        return replace(
            config,
            game=replace(config.game, **game),
            use_instrument=self.use_instrument,
            **self._given("learning_rates", "hidden", "members", "held_out", "scaling"),
        )
