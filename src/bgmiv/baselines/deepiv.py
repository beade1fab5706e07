"""DeepIV (Hartford et al. 2017): a mixture-density first stage, and an outcome network trained through its draws.

Stage one fits p(x | w, v) by maximum likelihood. Stage two fits g through draws of that distribution: the draws enter
through a U-statistic, so that its gradient is unbiased for the gradient of (y - E[g(x, v) | w, v])^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import log
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from bgmiv.data.scaling import Identity, RoleScaling, ScaledData, treatment_as_columns
from bgmiv.data.schema import BlockKind, Schema
from bgmiv.estimators.members import (
    DEFAULT_FEATURES,
    Best,
    CovariateNet,
    FittedMembers,
    Learner,
    MemberRows,
    NetMember,
    NetworkConfig,
    NetworkEstimator,
    in_pieces,
    step_factor,
)
from bgmiv.likelihood import Bernoulli, FiniteHead, GaussianMixture, Head, Levels
from bgmiv.nn.settings import FeatureConfig, Schedule, check_bounds, check_choice
from bgmiv.progress import HistoryRow, Reporter
from bgmiv.training import RandomNumbers, Row, TrainingData, run_phase, training_data

__all__ = [
    "PRESETS", "DeepIV", "DeepIVConfig", "FittedDeepIV", "OutcomeObjective", "Stage", "StageRows", "StageState",
    "TreatmentObjective", "pair_loss", "paper_preset",
]  # fmt: skip

# Held-out rows are few and their draws are made only once: more of them steady the comparison of epochs.
_HELD_OUT_FACTOR = 8


def pair_loss(residuals: Array) -> Array:
    r"""The mean of $r_i r_j$ over all pairs of different draws, of one row's residuals $r_i = y - g(x_i)$, `(m,)`.

    For independent draws its expectation is $(y - E g)^2$ and so is that of its gradient; the plain mean of
    $r_i^2$ would add the variance of $g$. With two draws it is $(y - g(x_1))(y - g(x_2))$.
    """
    m = residuals.shape[0]
    return (jnp.sum(residuals) ** 2 - jnp.sum(residuals**2)) / (m * (m - 1))


@dataclass(frozen=True)
class TreatmentObjective:
    """Stage one: minus the log-likelihood of the treatment given instruments and covariates."""

    head: Head
    name = "treatment stage"
    n_uniforms = 0

    def row_loss(self, net: CovariateNet, row: Row, noise: Array | None, uniforms: Array) -> Array:
        """Minus the log-density of one row's treatment; `noise` switches dropout on."""
        return -self.head.log_prob(net(row.w, row.v, noise), row.x[None])[0]

    def limit(self, loss: Array, tolerance: float) -> Array:
        """The loss of a normal treatment's model whose variance is `tolerance` times that of one with this loss."""
        return loss + 0.5 * log(tolerance)


@dataclass(frozen=True)
class OutcomeObjective:
    """Stage two: the squared error of g(x, v), integrated over the treatment's distribution by `n_samples` draws.

    The rows' `w` holds the treatment head's raw parameters, computed once. A discrete treatment is summed over exactly.
    Without a head g is regressed on the observed treatment.
    """

    head: Head | None
    n_samples: int = 2
    name = "outcome stage"

    @property
    def n_uniforms(self) -> int:
        """Uniform numbers that the loss of one row takes in training: two a draw."""
        return 2 * self.n_samples if isinstance(self.head, GaussianMixture) else 0

    def row_loss(self, net: CovariateNet, row: Row, noise: Array | None, uniforms: Array) -> Array:
        """An estimate of (y - E[g(x, v) | w, v])^2 for one row, unbiased with its gradient; it may be negative."""
        if isinstance(self.head, GaussianMixture):
            x = self.head.at_uniforms(row.w, uniforms.reshape(-1, 2))
            return pair_loss(row.y - net.many(x[:, None], row.v, noise)[:, 0])
        if isinstance(self.head, FiniteHead):
            support = jnp.asarray(self.head.support, row.y.dtype)[:, None]
            sides = jnp.eye(len(support)) if isinstance(self.head, Levels) else support
            values = net.many(sides, row.v, noise)[:, 0]
            return (row.y - jnp.sum(jnp.exp(self.head.log_weights(row.w)) * values)) ** 2
        return (row.y - net(jnp.atleast_1d(row.x), row.v, noise)[0]) ** 2

    def limit(self, loss: Array, tolerance: float) -> Array:
        """`tolerance` times a loss; the estimate of a small one may be negative."""
        return jnp.maximum(tolerance * loss, loss / tolerance)


class StageRows(NamedTuple):
    """The rows of a stage; those held out, if any, with the uniform numbers behind their loss, which are drawn once."""

    train: TrainingData
    held_out: TrainingData | None
    uniforms: Array


class StageState(NamedTuple):
    """The network in training, the epochs done, and the best network if rows are held out."""

    learner: Learner
    epoch: Array
    best: Best | None


@dataclass(frozen=True)
class Stage:
    """A stage as a training program; its step is one epoch: every row is visited once, in a new order.

    Args:
        objective: what is minimised.
        n_steps: epochs.
        batch_size, learning_rate, schedule, tolerance: as in `DeepIVConfig`.
        weight_decay: weight of half the squared parameters beside the mean loss of a row.
        metric_names: the mean loss of a training row, and of a held-out one if rows are held out.
    """

    objective: TreatmentObjective | OutcomeObjective
    n_steps: int
    batch_size: int
    learning_rate: float
    schedule: Schedule
    weight_decay: float
    tolerance: float
    metric_names: tuple[str, ...]
    chunk = 10

    @property
    def name(self) -> str:
        return self.objective.name

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam with the weight decay inside the gradient, as PyTorch has it."""
        return optax.chain(optax.add_decayed_weights(self.weight_decay), optax.adam(self.learning_rate))

    def train(
        self, net: CovariateNet, rows: MemberRows, key: Array, reporter: Reporter
    ) -> tuple[CovariateNet, tuple[HistoryRow, ...]]:
        """The network that held-out rows choose, or the last one, and its history."""
        key_init, key_run = jax.random.split(key)
        held_out, uniforms, best = None, jnp.zeros((0, 0)), None
        if rows.held_out is not None:
            held_out, best = training_data(rows.held_out, 1), Best.first(net)
            n, words = len(held_out.rows.x), self.objective.n_uniforms * _HELD_OUT_FACTOR
            uniforms = RandomNumbers(key_init, n * words).uniform((n, words))
        data = StageRows(training_data(rows.train, self.batch_size), held_out, uniforms)
        state = StageState(Learner.begin(net, self.optimiser), jnp.zeros((), jnp.int32), best)
        state, history = run_phase(self, state, data, key_run, reporter=reporter)
        return (state.learner.net if state.best is None else state.best.networks), history

    def step(self, state: StageState, data: StageRows, key: Array) -> tuple[StageState, dict[str, Array]]:
        """One pass over the rows."""
        key_order, key_batches = jax.random.split(key)
        n_padded, n, size = len(data.train.rows.x), data.train.n, self.batch_size
        # Padding rows sort behind all real ones and so only ever fill the last batch.
        rank = jnp.where(jnp.arange(n_padded) < n, jax.random.uniform(key_order, (n_padded,)), jnp.inf)
        order = jnp.argsort(rank)
        n_batches = -(-n // size)
        rate = step_factor(self.schedule, state.epoch, self.n_steps)

        def body(i: Array, carry: tuple[Learner, Array]) -> tuple[Learner, Array]:
            learner, total = carry
            index = i * size + jnp.arange(size)
            rows = jax.tree.map(lambda leaf: leaf[order[index]], data.train.rows)
            real = index < n
            own_key = jax.random.fold_in(key_batches, i)
            value, grads = jax.value_and_grad(self._loss)(learner.net, rows, real / jnp.sum(real), own_key)
            return learner.moved(self.optimiser, grads, rate), total + value

        learner, total = jax.lax.fori_loop(0, n_batches, body, (state.learner, jnp.zeros(())))
        metrics, best = {"loss": total / n_batches}, state.best
        if best is not None:
            loss = self.held_out_loss(learner.net, data)
            best = best.after(learner.net, loss, self.objective.limit(best.loss, self.tolerance))
            metrics["held_out"] = loss
        return StageState(learner, state.epoch + 1, best), metrics

    def _loss(self, net: CovariateNet, rows: Row, weights: Array, key: Array) -> Array:
        n, width, own = len(weights), net.noise_width, self.objective.n_uniforms
        draws = RandomNumbers(key, n * (width + own))
        noise, uniforms = draws.uniform((n, width)), draws.uniform((n, own))
        losses = jax.vmap(self.objective.row_loss, in_axes=(None, 0, 0, 0))(net, rows, noise, uniforms)
        return jnp.sum(weights * losses)

    def held_out_loss(self, net: CovariateNet, data: StageRows) -> Array:
        """The mean loss of a held-out row."""
        assert data.held_out is not None
        rows, n = data.held_out.rows, data.held_out.n
        losses = jax.vmap(self.objective.row_loss, in_axes=(None, 0, None, 0))(net, rows, None, data.uniforms)
        return jnp.sum(jnp.where(jnp.arange(len(losses)) < n, losses, 0.0)) / n


@dataclass(frozen=True, eq=False)
class FittedDeepIV(FittedMembers):
    """A fitted DeepIV; the network of a member is g."""

    config: DeepIVConfig
    members: tuple[NetMember, ...]


@dataclass(frozen=True)
class DeepIVConfig(NetworkConfig):
    """Everything that determines a fit, given data and key; the default preset as it stands.

    It differs from the study (`paper_preset`) in these ways. All four roles are standardised; wide vector blocks and
    images are reduced to scores. There is no dropout: in the first stage it widens the treatment's distribution, in the
    second it flattens g. The step size falls along a cosine. Four members are averaged, whose stages choose their
    epochs on a tenth of the rows, held out; with a vector or image block they take the last ones. The networks behind
    such blocks have all three hidden layers. All but this was chosen by held-out risk (benchmarks/choose_baselines.md).

    Args:
        n_components, n_samples, members, held_out, scaling, use_instrument: as in `DeepIV`.
        hidden: hidden widths of both networks; None takes the study's (128, 64, 32), or (32,) behind a wide block.
        covariates: features of the covariate blocks.
        dropout: share of hidden units dropped in training; None takes the study's 1000 / (1000 + n), at most 0.5.
        epochs, batch_size: as in `DeepIV`.
        learning_rate: Adam's step size.
        schedule: "constant", or "cosine": the step size falls to zero along a cosine, epoch by epoch.
        weight_decays: weights of half the squared parameters beside the mean loss of a row, in each stage.
        tolerance: of held-out rows, the newest network is kept whose squared error is at most this many times the
            lowest so far (for the treatment's distribution, whose variance would be); 1 keeps the best.
    """

    fitted_class = FittedDeepIV

    n_components: int = 10
    hidden: tuple[int, ...] | None = (128, 64, 32)
    covariates: FeatureConfig = DEFAULT_FEATURES
    dropout: float | None = 0.0
    epochs: int = 300
    batch_size: int = 100
    learning_rate: float = 1e-3
    schedule: Schedule = "cosine"
    weight_decays: tuple[float, float] = (1e-6, 1e-3)
    tolerance: float = 1.05
    n_samples: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds(self, "learning_rate", n_components=1, hidden=1, dropout=(0, 0.99), epochs=0, batch_size=1)
        # Of fewer than two draws no gradient is unbiased.
        check_bounds(self, weight_decays=0, tolerance=1, n_samples=2)
        check_choice(self, "schedule", "constant", "cosine")

    def fit_member(self, schema: Schema, rows: MemberRows, key: Array, reporter: Reporter) -> NetMember:
        """Fit the treatment's distribution, then the outcome through its draws."""
        _, *keys = jax.random.split(key, 5)
        n = len(rows.train.x)
        hidden, dropout = self.hidden, self.dropout
        if hidden is None:
            hidden = (32,) if schema.has_wide_block else (128, 64, 32)
        if dropout is None:
            dropout = min(1000.0 / (1000.0 + n), 0.5)
        network = partial(CovariateNet, schema.blocks, self.covariates, hidden=hidden, dropout=dropout)
        metrics = ("loss",) if rows.held_out is None else ("loss", "held_out")
        stage = partial(
            Stage,
            n_steps=self.epochs,
            batch_size=min(self.batch_size, n),
            learning_rate=self.learning_rate,
            schedule=self.schedule,
            tolerance=self.tolerance,
            metric_names=metrics,
        )
        objective = OutcomeObjective(None)
        history: tuple[HistoryRow, ...] = ()
        if self.use_instrument:
            head = self.treatment_head(schema)
            first = stage(TreatmentObjective(head), weight_decay=self.weight_decays[0])
            net = network(n_side=rows.train.w.shape[1], n_out=head.raw_dim, key=keys[0])
            net, history = first.train(net, rows, keys[1], reporter)
            rows, objective = rows.changed(partial(_with_raws, net)), OutcomeObjective(head, self.n_samples)
        else:
            rows = rows.changed(partial(treatment_as_columns, schema=schema))
        second = stage(objective, weight_decay=self.weight_decays[1])
        net = network(n_side=schema.treatment.width, n_out=1, key=keys[2])
        net, more = second.train(net, rows, keys[3], reporter)
        return NetMember(net, history + more)

    def treatment_head(self, schema: Schema) -> Head:
        """The treatment's distribution: exact if it is discrete, else a Gaussian mixture."""
        if schema.treatment.kind is BlockKind.categorical:
            return Levels(schema.treatment.width)
        return Bernoulli(1) if schema.treatment.kind is BlockKind.binary else GaussianMixture(self.n_components)


def _with_raws(net: CovariateNet, rows: ScaledData) -> ScaledData:
    """The same rows with the treatment head's raw parameters in place of the instruments."""
    return rows._replace(w=in_pieces(partial(_outputs, net), [rows.w, rows.v], net.features.cells))


@jax.jit
def _outputs(net: CovariateNet, sides: Array, v: Array) -> Array:
    return jax.vmap(net, in_axes=(0, 0, None))(sides, v, None)


def paper_preset() -> DeepIVConfig:
    """The DFIV study's public settings: 300 epochs, batches of 100, 2 draws, Adam at 1e-3, dropout 1000 / (1000 + n).

    The study decays weights by 1e-4 against the first stage's loss summed over a batch of 100, hence 1e-6 here, and by
    1e-3 in the second. Covariates and instruments stay in their units, as there; treatment and outcome are
    standardised (the study's constants for the demand design are close to that). Its second stage minimises the mean of
    (y - g(x_i))^2 over draws, which is biased; here the draws' pairs give the unbiased gradient.
    """
    return DeepIVConfig(
        hidden=None,
        covariates=FeatureConfig(),
        dropout=None,
        schedule="constant",
        tolerance=1.0,
        scaling=RoleScaling(covariates=Identity(), instruments=Identity()),
        members=1,
        held_out=0.0,
        reduction=None,
    )


PRESETS = {"default": DeepIVConfig, "paper": paper_preset}


@dataclass(eq=False, repr=False, kw_only=True)
class DeepIV(NetworkEstimator):
    """DeepIV: deep instrumental variables.

    The treatment's distribution given instruments and covariates is a mixture-density network (level probabilities for
    a discrete treatment); the structural function is a network trained through draws of it, with the unbiased
    two-sample gradient (a discrete treatment is summed over exactly).

    Args:
        preset: "default", or "paper" (the DFIV study's public settings).
        epochs: passes over the rows in each stage.
        batch_size: rows a batch in each stage.
        n_components: Gaussian components of a continuous treatment's distribution.
        n_samples: treatment draws a row and step.
        hidden: hidden widths of both networks.
        dropout: share of hidden units dropped in training.
        members: networks trained, whose predictions are averaged.
        held_out: share of the rows that each member holds out to choose its epochs; 0 takes the last ones. By default
            0.1, or 0 where there is a vector or image block. Below 20 rows a share nothing is held out.
        scaling: how each role is scaled.
        use_instrument: False learns the outcome from the observed treatment.
        treatment_kind, outcome_kind: as in `IVData.from_arrays`; an outcome may have two levels, not more.
        random_state: the seed; None draws one and keeps it in `seed_`.
        progress: show progress bars; None shows them in notebooks only.

    Arguments left at None take the preset's value.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> w, v, u = rng.normal(size=(3, 200))
        >>> x = w + v + u
        >>> model = DeepIV(epochs=2, hidden=(8,), random_state=0)
        >>> model.fit(2 * x + v - u, x, instruments=w, covariates=v).predict(0.0, v[:3]).shape
        (3,)

    Reference:
        J. Hartford et al. (2017), Deep IV: a flexible approach for counterfactual prediction, ICML. Settings: L. Xu et
        al. (2021), Learning deep features in instrumental variable regression, ICLR, and its public code.
    """

    presets = PRESETS
    fitted_class = FittedDeepIV

    epochs: int | None = None
    batch_size: int | None = None
    n_components: int | None = None
    n_samples: int | None = None
    hidden: tuple[int, ...] | None = None
    dropout: float | None = None
