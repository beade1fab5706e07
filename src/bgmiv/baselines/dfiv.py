r"""Deep feature IV: features of both stages learned by gradient steps, their linear heads solved in closed form.

Stage 1 regresses treatment features $\psi(x)$ on instrument features $\phi(w, v)$ over one half of the rows; stage 2
regresses $y$ on $\widehat{E}[\psi(x) \mid w, v] \otimes \xi(v)$ over the other half (`dfiv_stages`).

Reference: Xu et al., "Learning deep features in instrumental variable regression", ICLR 2021.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from bgmiv.baselines.dfiv_stages import (
    Head,
    Networks,
    expectation,
    first_stage_loss,
    held_out_loss,
    masked_features,
    second_stage_loss,
    solve_head,
    stage_data,
    stages_of,
)
from bgmiv.baselines.members import FittedMembers, Member, NetworkConfig, NetworkEstimator, fit_members
from bgmiv.baselines.networks import (
    DEFAULT_FEATURES,
    FeatureNet,
    Inputs,
    LayerShape,
    check_settings,
    descend,
    has_wide_block,
    in_pieces,
)
from bgmiv.data.ivdata import IVData
from bgmiv.data.scaling import Identity, RoleScaling, ScaledData, treatment_as_columns
from bgmiv.data.schema import Schema
from bgmiv.errors import ConfigError, DataError
from bgmiv.estimators.fitted import chosen_preset
from bgmiv.nn.features import BlockFeatures, build_features
from bgmiv.nn.settings import FeatureConfig
from bgmiv.progress import HistoryRow, Reporter, silent
from bgmiv.training import TrainingData, run_once, run_phase

__all__ = [
    "DFIV", "PRESETS", "Best", "DFIVConfig", "DFIVMember", "DeepFeatures", "FittedDFIV", "TrainingState",
    "paper_preset",
]  # fmt: skip


class Best(NamedTuple):
    """The newest networks that were not clearly worse than others, and the evaluations since; the lowest held-out loss.

    `held_out` is what it is measured on, laid out by `stage_data` without halves.
    """

    networks: Networks
    loss: Array
    stale: Array
    held_out: TrainingData


class TrainingState(NamedTuple):
    """Networks, one optimiser state each, and the best networks if rows are held out."""

    networks: Networks
    optimisers: tuple[optax.OptState, ...]
    best: Best | None = None


@dataclass(frozen=True)
class DeepFeatures:
    """The schedule of deep feature IV; one step is one epoch over all rows.

    An epoch first updates phi with psi fixed, then xi with phi and psi fixed, then psi with phi and xi fixed. Every
    update solves the heads anew. The penalties are multiplied by the stage's number of rows.

    Args:
        epochs: passes.
        instrument_iterations, covariate_iterations, treatment_iterations: updates of phi, xi and psi in an epoch.
        stage1_penalty, stage2_penalty: ridge penalties of the heads, a row.
        learning_rate: Adam's step size for all networks.
        instrument_decay, covariate_decay: factors of half the squared weights of phi and xi in the losses, which are
            sums over rows.
        chunk: epochs run on the device between two reports of progress, and between two evaluations on held-out rows.
        tolerance: with rows held out, the newest networks are kept whose held-out squared error of stage 2 is at most
            this many times the lowest so far.
        patience: evaluations in a row beyond that, after which training stops.
    """

    epochs: int = 100
    instrument_iterations: int = 20
    covariate_iterations: int = 20
    treatment_iterations: int = 1
    stage1_penalty: float = 0.1
    stage2_penalty: float = 0.1
    learning_rate: float = 1e-3
    instrument_decay: float = 100.0
    covariate_decay: float = 1.0
    chunk: int = 10
    tolerance: float = 1.05
    patience: int = 4

    def __post_init__(self) -> None:
        minima = {"epochs": 0, "instrument_decay": 0, "covariate_decay": 0, "chunk": 1, "learning_rate": 1e-9}
        minima |= {f"{net}_iterations": 1 for net in ("instrument", "covariate", "treatment")}
        minima |= {"tolerance": 1, "patience": 1, "stage1_penalty": 1e-9, "stage2_penalty": 1e-9}
        check_settings(self, minima)

    name = "deep features"
    metric_names = ("loss", "stage1")

    @property
    def n_steps(self) -> int:
        return self.epochs

    @property
    def penalties(self) -> tuple[float, float]:
        """Those of both stages."""
        return self.stage1_penalty, self.stage2_penalty

    def _optimisers(self) -> tuple[optax.GradientTransformation, ...]:
        decays = (0.0, self.instrument_decay, self.covariate_decay)
        return tuple(optax.chain(optax.add_decayed_weights(d), optax.adam(self.learning_rate)) for d in decays)

    def init(self, networks: Networks, held_out: TrainingData | None = None) -> TrainingState:
        """Fresh optimisers beside the networks."""
        optimisers = zip(self._optimisers(), networks, strict=True)
        start = jnp.full((), jnp.inf, jnp.float32), jnp.zeros((), jnp.int32)
        best = None if held_out is None else Best(networks, *start, held_out)
        return TrainingState(networks, tuple(optimiser.init(net) for optimiser, net in optimisers), best)

    def step(self, state: TrainingState, data: TrainingData, key: Array) -> tuple[TrainingState, dict[str, Array]]:
        """One epoch; the metrics are the losses a row of stage 2 and of stage 1."""
        (psi, phi, xi), (adam_psi, adam_phi, adam_xi), best = state
        for_psi, for_phi, for_xi = self._optimisers()
        stages = stages_of(data, halves=phi is not None)
        key_phi, key_xi = jax.random.split(key)
        loss1 = jnp.zeros(())
        if phi is not None:
            targets = masked_features(psi, stages.treatments)
            loss = partial(first_stage_loss, targets=targets, stages=stages, penalty=self.stage1_penalty)
            start, count = (phi, adam_phi), self.instrument_iterations
            phi, adam_phi, loss1 = descend(loss, start, for_phi, count, stages.first, key_phi)
        expected = expectation(phi, stages, self.stage1_penalty)
        loss = partial(second_stage_loss, stages=stages, penalty=self.stage2_penalty)
        if xi is not None:
            start, count = (xi, adam_xi), self.covariate_iterations
            loss_xi = partial(loss, expected=expected(psi))
            xi, adam_xi, _ = descend(loss_xi, start, for_xi, count, stages.covariates, key_xi)
        start, count = (psi, adam_psi), self.treatment_iterations
        psi, adam_psi, loss2 = descend(
            lambda net, _: loss(xi, None, expected=expected(net)), start, for_psi, count, stages.treatments, key
        )
        metrics = {"loss": loss2 / jnp.sum(stages.second.present), "stage1": loss1 / jnp.sum(stages.first.present)}
        return TrainingState(Networks(psi, phi, xi), (adam_psi, adam_phi, adam_xi), best), metrics

    def evaluate(self, state: TrainingState, data: TrainingData) -> TrainingState:
        """Keep the networks unless their held-out loss is clearly above the lowest so far."""
        best = state.best
        if best is None:
            return state
        loss = held_out_loss(state.networks, data, best.held_out, self.penalties)
        keep = loss <= self.tolerance * best.loss
        kept = jax.tree.map(lambda new, old: jnp.where(keep, new, old), state.networks, best.networks)
        stale = jnp.where(keep, 0, best.stale + 1)
        return state._replace(best=Best(kept, jnp.minimum(loss, best.loss), stale, best.held_out))

    def stopped(self, state: TrainingState) -> Array:
        """Whether `patience` evaluations brought nothing."""
        return jnp.zeros((), bool) if state.best is None else state.best.stale >= self.patience


@dataclass(frozen=True, eq=False)
class DFIVMember(Member):
    """A trained deep feature IV: its networks, and the closed-form head of stage 2."""

    networks: Networks
    head: Head
    history: tuple[HistoryRow, ...] = ()

    def encode(self, v: np.ndarray) -> np.ndarray:
        """The features xi(v) of each row."""
        if self.networks.covariate is None:
            return np.zeros((len(v), 0), np.float32)
        return in_pieces(partial(_covariate_features, self.networks.covariate, self.head), [v])

    def structural(self, x: np.ndarray, encoded: np.ndarray) -> np.ndarray:
        """Treatment features by covariate features by the head."""
        return in_pieces(partial(_structural, self.networks.treatment, self.head), [x, encoded])


@jax.jit
def _covariate_features(net: FeatureNet, head: Head, v: Array) -> Array:
    return net(Inputs(v[:, :0], v, jnp.ones(len(v))), moments=head.covariate)[0]


@jax.jit
def _structural(net: FeatureNet, head: Head, x: Array, xi: Array) -> Array:
    """`(psi(x), 1) weights (xi, 1)` for every row."""
    psi, _ = net(Inputs(x, x[:, :0], jnp.ones(len(x))), moments=head.treatment)
    weights = psi @ head.weights[:-1] + head.weights[-1]
    return jnp.sum(weights[:, :-1] * xi, axis=1) + weights[:, -1]


@dataclass(frozen=True, eq=False)
class FittedDFIV(FittedMembers):
    """A fitted DFIV."""

    config: DFIVConfig
    members: tuple[DFIVMember, ...]


Shapes = tuple[LayerShape, ...]

_INSTRUMENT: Shapes = (LayerShape(128), LayerShape(64), LayerShape(32, normalise=True, rectify=False))
_COVARIATE: Shapes = (LayerShape(128), LayerShape(32, normalise=True), LayerShape(16))
# What the study puts after a vector block's own two layers.
_AFTER_VECTOR: Shapes = (LayerShape(32, normalise=True),)


@dataclass(frozen=True)
class DFIVConfig(NetworkConfig):
    """Everything that determines a fit, given data and key; the default preset as it stands.

    That one differs from the study (`paper_preset`) in these ways. Chosen by stage 2's error on held-out rows: every
    role is standardised; psi has four features of unit variance in place of one of any size, so that a penalty means
    the same in any units; phi and xi have much stronger weight decay; a vector block is followed by the same layers as
    plain columns. Chosen by the held-out moment risk (benchmarks/choose_baselines.md): wide vector blocks and images
    are reduced to scores, and four members are averaged, each stopped early by a tenth of the rows, which it holds out
    (none with a vector or image block).

    Args:
        treatment_net: layers of psi(x).
        instrument_net, covariate_net: layers of phi(w, v) and xi(v) after the covariate blocks' features; None takes
            the study's, which has a single layer after a vector or image block.
        blocks: extractors of vector and image blocks, one set in phi and one in xi.
        training: the schedule, penalties and optimisers.
        members, held_out, scaling, use_instrument: as in `DFIV`.
    """

    treatment_net: Shapes = (LayerShape(16), LayerShape(4, normalise=True, rectify=False))
    instrument_net: Shapes | None = _INSTRUMENT
    covariate_net: Shapes | None = _COVARIATE
    blocks: FeatureConfig = DEFAULT_FEATURES
    training: DeepFeatures = field(default_factory=DeepFeatures)

    def __post_init__(self) -> None:
        super().__post_init__()
        if () in (self.treatment_net, self.instrument_net, self.covariate_net):
            raise ConfigError("treatment_net, instrument_net and covariate_net need at least one layer each.")

    def build(self, schema: Schema, key: Array) -> Networks:
        """Fresh networks for a data set."""
        wide = has_wide_block(schema)
        key_psi, key_phi, key_phi_blocks, key_xi, key_xi_blocks = jax.random.split(key, 5)
        phi = xi = None
        if self.use_instrument:
            blocks = build_features(schema.blocks, self.blocks, key=key_phi_blocks)
            shapes = self.instrument_net or (_AFTER_VECTOR if wide else _INSTRUMENT)
            phi = FeatureNet(len(schema.instruments), blocks, shapes, key=key_phi)
        if schema.blocks:
            blocks = build_features(schema.blocks, self.blocks, key=key_xi_blocks)
            xi = FeatureNet(0, blocks, self.covariate_net or (_AFTER_VECTOR if wide else _COVARIATE), key=key_xi)
        psi = FeatureNet(schema.treatment.width, BlockFeatures((), ()), self.treatment_net, key=key_psi)
        return Networks(psi, phi, xi)

    def fit(self, data: IVData, seed: int = 0, reporter: Reporter = silent) -> FittedDFIV:
        """Fit all members."""
        if data.n_rows < 4:
            raise DataError(f"DFIV needs at least 4 rows, two for each stage; there are {data.n_rows}.")
        return fit_members(FittedDFIV, self, data, seed, reporter)

    def fit_member(
        self,
        schema: Schema,
        train: ScaledData,
        held_out: ScaledData | None,
        groups: NDArray[np.integer] | None,
        key: Array,
        reporter: Reporter,
    ) -> DFIVMember:
        """Split the rows between the stages, learn the features, solve the head."""
        key_networks, key_rows, key_run = jax.random.split(key, 3)
        rows = stage_data(treatment_as_columns(train, schema), key_rows, halves=self.use_instrument, groups=groups)
        watched = held_out and stage_data(treatment_as_columns(held_out, schema), key_rows, halves=False)
        state = _start(self, schema, key_networks, watched)
        state, history = run_phase(self.training, state, rows, key_run, reporter=reporter)
        networks = state.networks if state.best is None else state.best.networks
        return DFIVMember(networks, solve_head(networks, rows, self.training.penalties), history)


@partial(run_once, static_argnames=("config", "schema"))
def _start(config: DFIVConfig, schema: Schema, key: Array, held_out: TrainingData | None) -> TrainingState:
    return config.training.init(config.build(schema, key), held_out)


def paper_preset() -> DFIVConfig:
    """The study's public settings: inputs as they come, one treatment feature, almost no weight decay.

    Three things differ from its code: normalised layers use the moments of all training rows at the current weights;
    vector and image blocks go through this package's extractors (every update convolves all rows at once: images need
    gigabytes and a GPU); and the updates of one epoch share a block of dropout draws, dealt out anew each time.
    """
    return DFIVConfig(
        treatment_net=(LayerShape(16), LayerShape(1, rectify=False)),
        instrument_net=None,
        covariate_net=None,
        blocks=FeatureConfig(),
        training=DeepFeatures(instrument_decay=0.0, covariate_decay=0.1),
        members=1,
        held_out=0.0,
        reduction=None,
        scaling=RoleScaling(Identity(), Identity(), Identity(), Identity()),
    )


PRESETS = {"default": DFIVConfig, "paper": paper_preset}


@dataclass(eq=False, repr=False, kw_only=True)
class DFIV(NetworkEstimator):
    """Deep feature instrumental-variable regression (Xu et al., ICLR 2021).

    Args:
        preset: "default", or "paper" (the study's public settings, on inputs as they come).
        epochs: passes of feature updates.
        stage1_penalty, stage2_penalty: ridge penalties of the stages' heads, a row.
        members: sets of networks trained, whose predictions are averaged.
        held_out: share of the rows that each member holds out to stop early; 0 trains to the last epoch. By default
            0.1, or 0 where there is a vector or image block. Below 20 rows a share nothing is held out.
        scaling: how each role is scaled; by default every role is standardised.
        use_instrument: False regresses the outcome on treatment and covariates directly.
        treatment_kind, outcome_kind: as in `IVData.from_arrays`; an outcome may have two levels, not more.
        random_state: the seed; None draws one and keeps it in `seed_`.
        progress: show progress bars; None shows them in notebooks only.

    Arguments left at None take the preset's value.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> w, v, u = rng.normal(size=(3, 200))
        >>> x = w + v + u
        >>> model = DFIV(epochs=2, random_state=0)
        >>> model.fit(2 * x + v - u, x, instruments=w, covariates=v).predict(0.0, v[:3]).shape
        (3,)
    """

    fitted_class = FittedDFIV

    preset: Literal["default", "paper"] = "default"
    epochs: int | None = None
    stage1_penalty: float | None = None
    stage2_penalty: float | None = None

    def _config(self) -> DFIVConfig:
        config = chosen_preset(PRESETS, self.preset)
        training = replace(config.training, **self._given("epochs", "stage1_penalty", "stage2_penalty"))
        given = self._given("members", "held_out", "scaling")
        return replace(config, training=training, use_instrument=self.use_instrument, **given)
