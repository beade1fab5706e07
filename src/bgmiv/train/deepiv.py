"""DeepIV's two stages as training programs.

Stage one fits p(x | w, v) by maximum likelihood. Stage two fits g through draws of that distribution: the draws enter
through a U-statistic, so that its gradient is unbiased for the gradient of (y - E[g(x, v) | w, v])^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jax import Array

from bgmiv.data.scaling import ScaledData
from bgmiv.errors import ConfigError
from bgmiv.likelihood import FiniteHead, GaussianMixture, Head, Levels
from bgmiv.model.objectives import Row
from bgmiv.progress import Reporter, silent
from bgmiv.train.covariate_net import CovariateNet, net_values
from bgmiv.train.draws import Draws
from bgmiv.train.history import HistoryRow
from bgmiv.train.loop import TrainingData, run_phase, training_data

__all__ = [
    "Best",
    "Objective",
    "OutcomeObjective",
    "Stage",
    "StageSettings",
    "StageState",
    "TreatmentObjective",
    "pair_loss",
    "train_stage",
    "treatment_raws",
]

# Held-out rows are few and their draws are made only once: more of them steady the comparison of epochs.
_HELD_OUT_FACTOR = 8


class Best(NamedTuple):
    """The network with the lowest held-out loss so far, that loss, and what it is measured on."""

    net: CovariateNet
    loss: Array
    held_out: TrainingData
    uniforms: Array


class StageState(NamedTuple):
    """The network in training, its optimiser, the epochs done, and the best network if rows are held out."""

    net: CovariateNet
    optimiser: optax.OptState
    epoch: Array
    best: Best | None

    @property
    def chosen(self) -> CovariateNet:
        """The best network on held-out rows, or the last one."""
        return self.net if self.best is None else self.best.net


def pair_loss(residuals: Array) -> Array:
    r"""The mean of $r_i r_j$ over all pairs of different draws, of one row's residuals $r_i = y - g(x_i)$, `(m,)`.

    For independent draws its expectation is $(y - E g)^2$ and so is that of its gradient; the plain mean of
    $r_i^2$ would add the variance of $g$. With two draws it is $(y - g(x_1))(y - g(x_2))$.

    Example:
        >>> float(pair_loss(jnp.asarray([2.0, -3.0])))
        -6.0
    """
    m = residuals.shape[0]
    return (jnp.sum(residuals) ** 2 - jnp.sum(residuals**2)) / (m * (m - 1))


class Objective(Protocol):
    """What a stage minimises: the loss of one row."""

    @property
    def name(self) -> str:
        """The phase's name."""

    @property
    def n_uniforms(self) -> int:
        """Uniform numbers that the loss of one row takes in training."""

    def row_loss(self, net: CovariateNet, row: Row, noise: Array | None, uniforms: Array) -> Array:
        """The loss of one row.

        Args:
            net: the stage's network.
            row: the observation.
            noise: dropout's uniform numbers, or None.
            uniforms: numbers that draws are made from; more of them make more draws.
        """


@dataclass(frozen=True)
class TreatmentObjective:
    """Stage one: minus the log-likelihood of the treatment given instruments and covariates.

    Args:
        head: the treatment's distribution.
    """

    head: Head = GaussianMixture()

    @property
    def name(self) -> str:
        """The phase's name."""
        return "treatment stage"

    @property
    def n_uniforms(self) -> int:
        """No draws."""
        return 0

    def row_loss(self, net: CovariateNet, row: Row, noise: Array | None, uniforms: Array) -> Array:
        """Minus the log-density of one row's treatment."""
        return -self.head.log_prob(net(row.w, row.v, noise), row.x[None])[0]


@dataclass(frozen=True)
class OutcomeObjective:
    """Stage two: the squared error of g(x, v), integrated over the treatment's distribution.

    The rows' `w` holds the treatment head's raw parameters, computed once by `treatment_raws`: stage one is over, so
    they do not change. A discrete treatment is summed over exactly. Without a head g is a plain regression on the
    observed treatment, whose rows then hold columns where it has levels.

    Args:
        head: the treatment's distribution, or None for the no-IV twin.
        n_samples: draws a row and step.
    """

    head: Head | None = GaussianMixture()
    n_samples: int = 2

    def __post_init__(self) -> None:
        """Refuse settings that cannot train."""
        if self.n_samples < 2:
            raise ConfigError(f"n_samples must be at least 2 for an unbiased gradient, got {self.n_samples}.")

    @property
    def name(self) -> str:
        """The phase's name."""
        return "outcome stage"

    @property
    def n_uniforms(self) -> int:
        """Two a draw."""
        return 2 * self.n_samples if isinstance(self.head, GaussianMixture) else 0

    def row_loss(self, net: CovariateNet, row: Row, noise: Array | None, uniforms: Array) -> Array:
        """An estimate of (y - E[g(x, v) | w, v])^2 for one row, unbiased with its gradient; it may be negative."""
        if self.head is None:
            return (row.y - net(jnp.atleast_1d(row.x), row.v, noise)[0]) ** 2
        if isinstance(self.head, FiniteHead):
            support = jnp.asarray(self.head.support, row.y.dtype)[:, None]
            sides = jnp.eye(len(support)) if isinstance(self.head, Levels) else support
            values = net.many(sides, row.v, noise)[:, 0]
            return (row.y - jnp.sum(jnp.exp(self.head.log_weights(row.w)) * values)) ** 2
        if not isinstance(self.head, GaussianMixture):
            raise ConfigError(f"DeepIV draws from a Gaussian mixture or sums over a finite head, got {self.head!r}.")
        x = self.head.at_uniforms(row.w, uniforms.reshape(-1, 2))
        return pair_loss(row.y - net.many(x[:, None], row.v, noise)[:, 0])


@dataclass(frozen=True)
class StageSettings:
    """How a stage is trained: Adam over shuffled passes.

    Args:
        epochs: passes; every row is visited once in each, in a new order.
        batch_size: rows a batch.
        learning_rate: Adam's step size.
        schedule: "constant", or "cosine": the step size falls to zero along a cosine, epoch by epoch.
        weight_decay: weight of half the squared parameters beside the mean loss of a row.
        chunk: epochs between two looks of the host.
    """

    epochs: int = 300
    batch_size: int = 100
    learning_rate: float = 1e-3
    schedule: Literal["constant", "cosine"] = "constant"
    weight_decay: float = 0.0
    chunk: int = 10

    def __post_init__(self) -> None:
        """Refuse settings that cannot train."""
        if self.epochs < 0 or self.batch_size < 1 or self.chunk < 1:
            raise ConfigError(
                f"a DeepIV stage needs epochs >= 0, batch_size >= 1 and chunk >= 1, got {self.epochs}, "
                f"{self.batch_size} and {self.chunk}."
            )
        if self.learning_rate <= 0.0 or self.weight_decay < 0.0:
            raise ConfigError(
                "a DeepIV stage needs learning_rate above 0 and weight_decay at least 0, got "
                f"{self.learning_rate} and {self.weight_decay}."
            )
        if self.schedule not in ("constant", "cosine"):
            raise ConfigError(f"schedule is 'constant' or 'cosine', got {self.schedule!r}.")

    def optimiser(self) -> optax.GradientTransformation:
        """Adam with the weight decay inside the gradient, as the study's PyTorch optimiser has it."""
        return optax.chain(optax.add_decayed_weights(self.weight_decay), optax.adam(self.learning_rate))


@dataclass(frozen=True)
class Stage:
    """A stage as a training program; its step is one epoch.

    Args:
        objective: what it minimises.
        settings: how.
        holds_out: whether the best epoch on held-out rows is kept.
    """

    objective: Objective
    settings: StageSettings = StageSettings()
    holds_out: bool = False

    @property
    def name(self) -> str:
        """The phase's name."""
        return self.objective.name

    @property
    def n_steps(self) -> int:
        """Epochs."""
        return self.settings.epochs

    @property
    def chunk(self) -> int:
        """Epochs between two looks of the host."""
        return self.settings.chunk

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The mean loss of a training row, and of a held-out one."""
        return ("loss", "held_out") if self.holds_out else ("loss",)

    def init(self, net: CovariateNet, held_out: TrainingData | None, key: Array) -> StageState:
        """A fresh optimiser beside the network; the draws behind the held-out loss are made once."""
        best = None
        if self.holds_out:
            assert held_out is not None
            n, words = len(held_out.rows.x), self.objective.n_uniforms * _HELD_OUT_FACTOR
            # A weakly typed infinity would come back strongly typed and compile the chunk a second time.
            start = jnp.full((), jnp.inf, jnp.float32)
            best = Best(net, start, held_out, Draws(key, n * words).uniform((n, words)))
        return StageState(net, self.settings.optimiser().init(net), jnp.zeros((), jnp.int32), best)

    def step(self, state: StageState, data: TrainingData, key: Array) -> tuple[StageState, dict[str, Array]]:
        """One pass over the rows."""
        key_order, key_batches = jax.random.split(key)
        n_padded, size = len(data.rows.x), self.settings.batch_size
        # Padding rows sort behind all real ones and so only ever fill the last batch.
        rank = jnp.where(jnp.arange(n_padded) < data.n, jax.random.uniform(key_order, (n_padded,)), jnp.inf)
        order = jnp.argsort(rank)
        n_batches = -(-data.n // size)
        rate = self._rate(state.epoch)

        def body(
            i: Array, carry: tuple[CovariateNet, optax.OptState, Array]
        ) -> tuple[CovariateNet, optax.OptState, Array]:
            net, optimiser, total = carry
            index = i * size + jnp.arange(size)
            rows = jax.tree.map(lambda leaf: leaf[order[index]], data.rows)
            real = index < data.n
            value, grads = jax.value_and_grad(self._loss)(
                net, rows, real / jnp.sum(real), jax.random.fold_in(key_batches, i)
            )
            updates, optimiser = self.settings.optimiser().update(grads, optimiser, net)
            net = optax.apply_updates(net, jax.tree.map(lambda update: rate * update, updates))
            return net, optimiser, total + value

        carry = (state.net, state.optimiser, jnp.zeros(()))
        net, optimiser, total = jax.lax.fori_loop(0, n_batches, body, carry)
        metrics, best = {"loss": total / n_batches}, state.best
        if best is not None:
            best, metrics["held_out"] = self._better(net, best)
        return StageState(net, optimiser, state.epoch + 1, best), metrics

    def _rate(self, epoch: Array) -> Array:
        if self.settings.schedule == "constant":
            return jnp.ones(())
        return 0.5 * (1.0 + jnp.cos(jnp.pi * epoch / self.settings.epochs))

    def _loss(self, net: CovariateNet, rows: Row, weights: Array, key: Array) -> Array:
        n, width, own = len(weights), net.noise_width, self.objective.n_uniforms
        draws = Draws(key, n * (width + own))
        noise, uniforms = draws.uniform((n, width)), draws.uniform((n, own))
        losses = jax.vmap(self.objective.row_loss, in_axes=(None, 0, 0, 0))(net, rows, noise, uniforms)
        return jnp.sum(weights * losses)

    def _better(self, net: CovariateNet, best: Best) -> tuple[Best, Array]:
        """The best network after this one was tried on the held-out rows, and this one's loss."""
        rows, n = best.held_out.rows, best.held_out.n
        losses = jax.vmap(self.objective.row_loss, in_axes=(None, 0, None, 0))(net, rows, None, best.uniforms)
        loss = jnp.sum(jnp.where(jnp.arange(len(losses)) < n, losses, 0.0)) / n
        kept = jax.tree.map(lambda new, old: jnp.where(loss < best.loss, new, old), net, best.net)
        return best._replace(net=kept, loss=jnp.minimum(loss, best.loss)), loss


def train_stage(
    stage: Stage,
    net: CovariateNet,
    train: ScaledData,
    held_out: ScaledData | None,
    key: Array,
    reporter: Reporter = silent,
) -> tuple[CovariateNet, tuple[HistoryRow, ...]]:
    """The stage's network after training, and its history."""
    key_init, key_run = jax.random.split(key)
    held = None if held_out is None else training_data(held_out, 1)
    state = stage.init(net, held, key_init)
    rows = training_data(train, stage.settings.batch_size)
    state, history = run_phase(stage, state, rows, key_run, reporter=reporter)
    return state.chosen, history


def treatment_raws(net: CovariateNet, rows: ScaledData) -> ScaledData:
    """The same rows with the treatment head's raw parameters in place of the instruments."""
    return rows._replace(w=net_values(net, rows.w, rows.v))
