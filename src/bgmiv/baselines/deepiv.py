"""DeepIV (Hartford et al. 2017): a mixture-density first stage, and an outcome network trained through its draws.

Stage one fits p(x | w, v) by maximum likelihood. Stage two fits g through draws of that distribution: the draws enter
through a U-statistic, so that its gradient is unbiased for the gradient of (y - E[g(x, v) | w, v])^2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import log
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from bgmiv.baselines.members import FittedMembers, NetMember, NetworkConfig, NetworkEstimator, fit_members
from bgmiv.baselines.networks import (
    DEFAULT_FEATURES,
    CovariateNet,
    Schedule,
    check_settings,
    has_wide_block,
    outputs_of,
    step_factor,
)
from bgmiv.data.ivdata import IVData
from bgmiv.data.scaling import Identity, RoleScaling, ScaledData, treatment_as_columns
from bgmiv.data.schema import BlockKind, Schema
from bgmiv.errors import ConfigError
from bgmiv.estimators.fitted import chosen_preset
from bgmiv.likelihood import Bernoulli, FiniteHead, GaussianMixture, Head, Levels
from bgmiv.nn.settings import FeatureConfig, check_widths
from bgmiv.progress import HistoryRow, Reporter, silent
from bgmiv.training import RandomNumbers, Row, TrainingData, run_phase, training_data

__all__ = [
    "PRESETS", "Best", "DeepIV", "DeepIVConfig", "DeepIVMember", "FittedDeepIV", "OutcomeObjective", "Stage",
    "StageSettings", "StageState", "TreatmentObjective", "pair_loss", "paper_preset",
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
        if self.head is None:
            return (row.y - net(jnp.atleast_1d(row.x), row.v, noise)[0]) ** 2
        if isinstance(self.head, FiniteHead):
            support = jnp.asarray(self.head.support, row.y.dtype)[:, None]
            sides = jnp.eye(len(support)) if isinstance(self.head, Levels) else support
            values = net.many(sides, row.v, noise)[:, 0]
            return (row.y - jnp.sum(jnp.exp(self.head.log_weights(row.w)) * values)) ** 2
        assert isinstance(self.head, GaussianMixture)
        x = self.head.at_uniforms(row.w, uniforms.reshape(-1, 2))
        return pair_loss(row.y - net.many(x[:, None], row.v, noise)[:, 0])

    def limit(self, loss: Array, tolerance: float) -> Array:
        """`tolerance` times a loss; the estimate of a small one may be negative."""
        return jnp.maximum(tolerance * loss, loss / tolerance)


class Best(NamedTuple):
    """The newest network that was not clearly worse than another, the lowest loss, and what it is measured on."""

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


@dataclass(frozen=True)
class StageSettings:
    """How a network is trained: Adam over shuffled passes.

    Args:
        epochs: passes; every row is visited once in each, in a new order.
        batch_size: rows a batch.
        learning_rate: Adam's step size.
        schedule: "constant", or "cosine": the step size falls to zero along a cosine, epoch by epoch.
        weight_decay: weight of half the squared parameters beside the mean loss of a row.
        tolerance: of held-out rows, the newest network is kept whose squared error is at most this many times the
            lowest so far (for the treatment's distribution, whose variance would be); 1 keeps the best.
        chunk: epochs run on the device between two reports of progress.
    """

    epochs: int = 300
    batch_size: int = 100
    learning_rate: float = 1e-3
    schedule: Schedule = "constant"
    weight_decay: float = 0.0
    tolerance: float = 1.0
    chunk: int = 10

    def __post_init__(self) -> None:
        minima = {"epochs": 0, "batch_size": 1, "learning_rate": 1e-9, "weight_decay": 0, "tolerance": 1, "chunk": 1}
        check_settings(self, minima, self.schedule)

    def optimiser(self) -> optax.GradientTransformation:
        """Adam with the weight decay inside the gradient, as PyTorch has it."""
        return optax.chain(optax.add_decayed_weights(self.weight_decay), optax.adam(self.learning_rate))


@dataclass(frozen=True)
class Stage:
    """A stage as a training program; its step is one epoch. `holds_out` chooses the epoch on held-out rows."""

    objective: TreatmentObjective | OutcomeObjective
    settings: StageSettings = StageSettings()
    holds_out: bool = False

    @property
    def name(self) -> str:
        return self.objective.name

    @property
    def n_steps(self) -> int:
        return self.settings.epochs

    @property
    def chunk(self) -> int:
        return self.settings.chunk

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The mean loss of a training row, and of a held-out one."""
        return ("loss", "held_out") if self.holds_out else ("loss",)

    def train(
        self, net: CovariateNet, rows: ScaledData, held_out: ScaledData | None, key: Array, reporter: Reporter
    ) -> tuple[CovariateNet, tuple[HistoryRow, ...]]:
        """The network that held-out rows choose, or the last one, and its history."""
        key_init, key_run = jax.random.split(key)
        state = self.init(net, None if held_out is None else training_data(held_out, 1), key_init)
        padded = training_data(rows, self.settings.batch_size)
        state, history = run_phase(self, state, padded, key_run, reporter=reporter)
        return (state.net if state.best is None else state.best.net), history

    def init(self, net: CovariateNet, held_out: TrainingData | None, key: Array) -> StageState:
        """A fresh optimiser beside the network; the draws behind the held-out loss are made once."""
        best = None
        if held_out is not None:
            n, words = len(held_out.rows.x), self.objective.n_uniforms * _HELD_OUT_FACTOR
            # A weakly typed infinity would come back strongly typed and compile the chunk a second time.
            start = jnp.full((), jnp.inf, jnp.float32)
            best = Best(net, start, held_out, RandomNumbers(key, n * words).uniform((n, words)))
        return StageState(net, self.settings.optimiser().init(net), jnp.zeros((), jnp.int32), best)

    def step(self, state: StageState, data: TrainingData, key: Array) -> tuple[StageState, dict[str, Array]]:
        """One pass over the rows."""
        key_order, key_batches = jax.random.split(key)
        n_padded, size = len(data.rows.x), self.settings.batch_size
        # Padding rows sort behind all real ones and so only ever fill the last batch.
        rank = jnp.where(jnp.arange(n_padded) < data.n, jax.random.uniform(key_order, (n_padded,)), jnp.inf)
        order = jnp.argsort(rank)
        n_batches = -(-data.n // size)
        rate = step_factor(self.settings.schedule, state.epoch, self.settings.epochs)

        def body(i: Array, carry: tuple[CovariateNet, Any, Array]) -> tuple[CovariateNet, Any, Array]:
            net, optimiser, total = carry
            index = i * size + jnp.arange(size)
            rows = jax.tree.map(lambda leaf: leaf[order[index]], data.rows)
            real = index < data.n
            own_key = jax.random.fold_in(key_batches, i)
            value, grads = jax.value_and_grad(self._loss)(net, rows, real / jnp.sum(real), own_key)
            updates, optimiser = self.settings.optimiser().update(grads, optimiser, net)
            net = optax.apply_updates(net, jax.tree.map(lambda update: rate * update, updates))
            return net, optimiser, total + value

        start = (state.net, state.optimiser, jnp.zeros(()))
        net, optimiser, total = jax.lax.fori_loop(0, n_batches, body, start)
        metrics, best = {"loss": total / n_batches}, state.best
        if best is not None:
            best, metrics["held_out"] = self._better(net, best)
        return StageState(net, optimiser, state.epoch + 1, best), metrics

    def _loss(self, net: CovariateNet, rows: Row, weights: Array, key: Array) -> Array:
        n, width, own = len(weights), net.noise_width, self.objective.n_uniforms
        draws = RandomNumbers(key, n * (width + own))
        noise, uniforms = draws.uniform((n, width)), draws.uniform((n, own))
        losses = jax.vmap(self.objective.row_loss, in_axes=(None, 0, 0, 0))(net, rows, noise, uniforms)
        return jnp.sum(weights * losses)

    def _better(self, net: CovariateNet, best: Best) -> tuple[Best, Array]:
        """The best network after this one was tried on the held-out rows, and this one's loss."""
        rows, n = best.held_out.rows, best.held_out.n
        losses = jax.vmap(self.objective.row_loss, in_axes=(None, 0, None, 0))(net, rows, None, best.uniforms)
        loss = jnp.sum(jnp.where(jnp.arange(len(losses)) < n, losses, 0.0)) / n
        keep = loss <= self.objective.limit(best.loss, self.settings.tolerance)
        kept = jax.tree.map(lambda new, old: jnp.where(keep, new, old), net, best.net)
        return best._replace(net=kept, loss=jnp.minimum(loss, best.loss)), loss


@dataclass(frozen=True, eq=False)
class DeepIVMember(NetMember):
    """A trained DeepIV: `net` is g, and there is no `treatment_net` without the instrument."""

    treatment_net: CovariateNet | None
    net: CovariateNet
    history: tuple[HistoryRow, ...] = ()


@dataclass(frozen=True, eq=False)
class FittedDeepIV(FittedMembers):
    """A fitted DeepIV."""

    config: DeepIVConfig
    members: tuple[DeepIVMember, ...]


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
        treatment_stage, outcome_stage: how each stage is trained.
    """

    n_components: int = 10
    hidden: tuple[int, ...] | None = (128, 64, 32)
    covariates: FeatureConfig = DEFAULT_FEATURES
    dropout: float | None = 0.0
    treatment_stage: StageSettings = StageSettings(schedule="cosine", weight_decay=1e-6, tolerance=1.05)
    outcome_stage: StageSettings = StageSettings(schedule="cosine", weight_decay=1e-3, tolerance=1.05)
    n_samples: int = 2

    def __post_init__(self) -> None:
        check_widths(self, "hidden")
        super().__post_init__()
        if self.dropout is not None and not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"dropout must lie in [0, 1), got {self.dropout}.")
        if self.n_samples < 2:
            raise ConfigError(f"n_samples must be at least 2 for an unbiased gradient, got {self.n_samples}.")
        GaussianMixture(self.n_components)

    def resolved(self, schema: Schema, n_rows: int) -> DeepIVConfig:
        """The config with widths, dropout and batch sizes settled for a data set."""
        stages = (self.treatment_stage, self.outcome_stage)
        first, second = (replace(stage, batch_size=min(stage.batch_size, n_rows)) for stage in stages)
        return replace(
            self,
            hidden=self.hidden if self.hidden is not None else ((32,) if has_wide_block(schema) else (128, 64, 32)),
            dropout=min(1000.0 / (1000.0 + n_rows), 0.5) if self.dropout is None else self.dropout,
            treatment_stage=first,
            outcome_stage=second,
        )

    def fit(self, data: IVData, seed: int = 0, reporter: Reporter = silent) -> FittedDeepIV:
        """Fit all members."""
        return fit_members(FittedDeepIV, self.resolved(data.schema, data.n_rows), data, seed, reporter)

    def fit_member(
        self,
        schema: Schema,
        train: ScaledData,
        held_out: ScaledData | None,
        groups: NDArray[np.integer] | None,
        key: Array,
        reporter: Reporter,
    ) -> DeepIVMember:
        """Fit the treatment's distribution, then the outcome through its draws."""
        _, *keys = jax.random.split(key, 5)
        assert self.hidden is not None
        assert self.dropout is not None
        network = partial(CovariateNet.build, schema, self.covariates, hidden=self.hidden, dropout=self.dropout)
        treatment_net, objective, changed = None, OutcomeObjective(None), partial(treatment_as_columns, schema=schema)
        history: tuple[HistoryRow, ...] = ()
        if self.use_instrument:
            head = self.treatment_head(schema)
            first = Stage(TreatmentObjective(head), self.treatment_stage, held_out is not None)
            net = network(n_side=train.w.shape[1], n_out=head.raw_dim, key=keys[0])
            treatment_net, history = first.train(net, train, held_out, keys[1], reporter)
            changed = partial(_with_raws, treatment_net)
            objective = OutcomeObjective(head, self.n_samples)
        train, held_out = changed(train), held_out and changed(held_out)
        second = Stage(objective, self.outcome_stage, held_out is not None)
        net = network(n_side=schema.treatment.width, n_out=1, key=keys[2])
        net, more = second.train(net, train, held_out, keys[3], reporter)
        return DeepIVMember(treatment_net, net, history + more)

    def treatment_head(self, schema: Schema) -> Head:
        """The treatment's distribution: exact if it is discrete, else a Gaussian mixture."""
        if schema.treatment.kind is BlockKind.categorical:
            return Levels(schema.treatment.width)
        return Bernoulli(1) if schema.treatment.kind is BlockKind.binary else GaussianMixture(self.n_components)


def _with_raws(net: CovariateNet, rows: ScaledData) -> ScaledData:
    """The same rows with the treatment head's raw parameters in place of the instruments."""
    return rows._replace(w=outputs_of(net, rows.w, rows.v))


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
        treatment_stage=StageSettings(weight_decay=1e-6),
        outcome_stage=StageSettings(weight_decay=1e-3),
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

    fitted_class = FittedDeepIV

    preset: Literal["default", "paper"] = "default"
    epochs: int | None = None
    batch_size: int | None = None
    n_components: int | None = None
    n_samples: int | None = None
    hidden: tuple[int, ...] | None = None
    dropout: float | None = None

    def _config(self) -> DeepIVConfig:
        config = chosen_preset(PRESETS, self.preset)
        stage = self._given("epochs", "batch_size")
        return replace(
            config,
            treatment_stage=replace(config.treatment_stage, **stage),
            outcome_stage=replace(config.outcome_stage, **stage),
            use_instrument=self.use_instrument,
            **self._given("n_components", "n_samples", "hidden", "dropout", "members", "held_out", "scaling"),
        )
