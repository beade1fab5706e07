r"""Deep feature IV: features of both stages learned by gradient steps, their linear heads solved in closed form.

Stage 1 regresses treatment features $\psi(x)$ on instrument features $\phi(w, v)$ over one half of the rows; stage 2
regresses $y$ on $\widehat{E}[\psi(x) \mid w, v] \otimes \xi(v)$ over the other half. Each loss is the minimum of a
ridge problem over its head, so its gradient is the one at the minimising head held fixed (the envelope theorem):
the only solve that is differentiated is the linear map from $\psi$ to its projection.

Reference: Xu et al., "Learning deep features in instrumental variable regression", ICLR 2021.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.scipy.linalg import cho_factor, cho_solve

from bgmiv.baselines.networks import (
    DEFAULT_FEATURES,
    MAX_ROWS,
    FeatureNet,
    Inputs,
    LayerShape,
    Moments,
    NetworkEstimator,
    check_settings,
    descend,
    has_wide_block,
    in_pieces,
    prepare,
)
from bgmiv.data.ivdata import IVData
from bgmiv.data.messages import FloatArray
from bgmiv.data.query import Encoded, Query
from bgmiv.data.scaling import Identity, RoleScaling, ScaledData, Scaler, treatment_as_columns
from bgmiv.data.schema import Schema
from bgmiv.diagnostics.support import LinearSupport
from bgmiv.effects import Floats
from bgmiv.errors import ConfigError, DataError
from bgmiv.estimators.fitted import FittedMethod, chosen_preset
from bgmiv.nn.batching import bucket_size, pad_rows
from bgmiv.nn.features import BlockFeatures, FeatureConfig, build_features
from bgmiv.progress import HistoryRow, Reporter, silent
from bgmiv.training.loop import Row, TrainingData, run_phase

__all__ = ["DFIV", "PRESETS", "DFIVConfig", "DeepFeatures", "FittedDFIV", "Head", "Networks", "paper_preset"]


class Networks(NamedTuple):
    """psi(x), phi(w, v) and xi(v); without an instrument there is no phi, without covariates no xi."""

    treatment: FeatureNet
    instrument: FeatureNet | None
    covariate: FeatureNet | None


def ridge_map(features: Array, penalty: Array | float) -> Callable[[Array], Array]:
    r"""The linear map from targets T to their head $\arg\min_W \|T - FW\|^2 + \lambda\|W\|^2$, by Cholesky.

    The penalty is already multiplied by the number of rows.
    """
    gram = features.T @ features
    factor = cho_factor(gram + penalty * jnp.eye(len(gram), dtype=gram.dtype), lower=True)
    return lambda targets: cho_solve(factor, features.T @ targets)


def ridge_loss(features: Array, targets: Array, penalty: Array | float) -> Array:
    r"""The minimum $\min_W \|T - FW\|^2 + \lambda\|W\|^2$; its gradient is exact with the head held fixed."""
    head = jax.lax.stop_gradient(ridge_map(features, penalty)(targets))
    return jnp.sum((targets - features @ head) ** 2) + penalty * jnp.sum(head**2)


def masked_features(net: FeatureNet, rows: Inputs) -> Array:
    """Features without training noise, zero in padding."""
    return net(rows)[0] * rows.present[:, None]


def _with_constant(features: Array, present: Array) -> Array:
    """A last column of ones, and rows of zeros where there is no row: padding drops out of every sum."""
    return jnp.concatenate([features, jnp.ones((len(features), 1), features.dtype)], axis=1) * present[:, None]


class Stages(NamedTuple):
    """What psi (stage 1), phi (both stages) and xi (stage 2) see, and stage 2's outcomes `(n, 1)`."""

    treatments: Inputs
    first: Inputs
    second: Inputs
    covariates: Inputs
    y: Array


def stage_data(scaled: ScaledData, key: Array, *, halves: bool) -> TrainingData:
    """Rows in random order, padded; with `halves`, stage 1 (the larger half) is in the first half of them."""
    seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
    order = np.random.default_rng(seed).permutation(len(scaled.x))
    cut = (len(order) + 1) // 2
    parts = (order[:cut], order[cut:]) if halves else (order,)
    padded = bucket_size(len(parts[0]), 8)
    columns = (
        jnp.asarray(np.concatenate([pad_rows(values[part], padded) for part in parts]))
        for values in (scaled.x, scaled.y, scaled.v, scaled.w)
    )
    return TrainingData(Row(*columns), *jnp.asarray([len(order), 0, 0], jnp.int32))


def stages_of(data: TrainingData, *, halves: bool) -> Stages:
    """The stages' rows, from data laid out by `stage_data`; without halves both stages hold all rows."""
    size = len(data.rows.x) // (2 if halves else 1)
    n_first = (data.n + 1) // 2 if halves else data.n
    n_second = data.n - n_first if halves else data.n
    first, second = (jax.tree.map(lambda leaf, s=s: leaf[s:][:size], data.rows) for s in (0, size if halves else 0))
    kind = data.rows.x.dtype
    in_first, in_second = ((jnp.arange(size) < n).astype(kind) for n in (n_first, n_second))
    return Stages(
        treatments=Inputs(first.x.reshape(len(first.x), -1), first.v[:, :0], in_first),
        first=Inputs(first.w, first.v, in_first),
        second=Inputs(second.w, second.v, in_second),
        covariates=Inputs(second.w[:, :0], second.v, in_second),
        y=second.y[:, None],
    )


def first_stage_loss(phi: FeatureNet, noise: Array | None, targets: Array, stages: Stages, penalty: float) -> Array:
    """Stage 1's loss in phi for fixed treatment features `targets`; the penalty is a row's."""
    features = _with_constant(phi(stages.first, noise=noise)[0], stages.first.present)
    return ridge_loss(features, targets, penalty * jnp.sum(stages.first.present))


def _second_stage_features(xi: FeatureNet | None, noise: Array | None, expected: Array, stages: Stages) -> Array:
    """(expected psi, 1) outer (xi, 1) of the stage-2 rows, psi-major; without covariates xi is the constant alone."""
    rows = stages.covariates
    features = expected[:, :0] if xi is None else xi(rows, noise=noise)[0]
    left, right = _with_constant(expected, rows.present), _with_constant(features, rows.present)
    return (left[:, :, None] * right[:, None, :]).reshape(len(left), -1)


def second_stage_loss(
    xi: FeatureNet | None, noise: Array | None, expected: Array, stages: Stages, penalty: float
) -> Array:
    """Stage 2's loss in xi and in the expected treatment features; the penalty is a row's."""
    features = _second_stage_features(xi, noise, expected, stages)
    return ridge_loss(features, stages.y, penalty * jnp.sum(stages.covariates.present))


def expectation(net: FeatureNet | None, stages: Stages, penalty: float) -> Callable[[FeatureNet], Array]:
    """The map from psi to its features' expectations at stage-2 rows; without an instrument, to the features."""
    if net is None:
        return lambda psi: masked_features(psi, stages.treatments)
    first, moments = net(stages.first)
    head = ridge_map(_with_constant(first, stages.first.present), penalty * jnp.sum(stages.first.present))
    second = _with_constant(net(stages.second, moments=moments)[0], stages.second.present)
    return lambda psi: second @ head(masked_features(psi, stages.treatments))


class TrainingState(NamedTuple):
    """Networks and one optimiser state each."""

    networks: Networks
    optimisers: tuple[optax.OptState, ...]


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
        chunk: epochs run on the device between two reports of progress.
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

    def __post_init__(self) -> None:
        minima = {"epochs": 0, "instrument_decay": 0, "covariate_decay": 0, "chunk": 1, "learning_rate": 1e-9}
        minima |= {f"{net}_iterations": 1 for net in ("instrument", "covariate", "treatment")}
        check_settings(self, minima | {"stage1_penalty": 1e-9, "stage2_penalty": 1e-9})

    name = "deep features"
    metric_names = ("loss", "stage1")

    @property
    def n_steps(self) -> int:
        return self.epochs

    def _optimisers(self) -> tuple[optax.GradientTransformation, ...]:
        decays = (0.0, self.instrument_decay, self.covariate_decay)
        return tuple(optax.chain(optax.add_decayed_weights(d), optax.adam(self.learning_rate)) for d in decays)

    def init(self, networks: Networks) -> TrainingState:
        """Fresh optimisers beside the networks."""
        optimisers = zip(self._optimisers(), networks, strict=True)
        return TrainingState(networks, tuple(optimiser.init(net) for optimiser, net in optimisers))

    def step(self, state: TrainingState, data: TrainingData, key: Array) -> tuple[TrainingState, dict[str, Array]]:
        """One epoch; the metrics are the losses a row of stage 2 and of stage 1."""
        (psi, phi, xi), (adam_psi, adam_phi, adam_xi) = state
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
        return TrainingState(Networks(psi, phi, xi), (adam_psi, adam_phi, adam_xi)), metrics


class Head(NamedTuple):
    """Stage 2's weights, psi's features by xi's with the constants last, and moments of their normalised layers."""

    weights: Array
    treatment: tuple[Moments, ...]
    covariate: tuple[Moments, ...]


@partial(jax.jit, static_argnames="config")
def solve_head(networks: Networks, data: TrainingData, config: DeepFeatures) -> Head:
    """Stage 2's head for trained networks."""
    psi, phi, xi = networks
    stages = stages_of(data, halves=phi is not None)
    expected = expectation(phi, stages, config.stage1_penalty)(psi)
    penalty = config.stage2_penalty * jnp.sum(stages.second.present)
    weights = ridge_map(_second_stage_features(xi, None, expected, stages), penalty)(stages.y)
    moments = () if xi is None else xi(stages.covariates)[1]
    return Head(weights.reshape(expected.shape[1] + 1, -1), psi(stages.treatments)[1], moments)


@dataclass(frozen=True, eq=False)
class FittedDFIV(FittedMethod):
    """A fitted deep feature IV: its networks, and the closed-form head of stage 2."""

    config: DFIVConfig
    schema: Schema
    support: LinearSupport
    scaler: Scaler
    networks: Networks
    head: Head
    history: tuple[HistoryRow, ...] = ()

    def encode(self, covariates: FloatArray) -> Encoded:
        """The features xi(v) of each row."""
        v = self.scaler.covariates.transform(covariates)
        if self.networks.covariate is None:
            return (np.zeros((len(v), 0), np.float32),)
        return (in_pieces(partial(_covariate_features, self.networks.covariate, self.head), [v]),)

    def at(self, query: Query) -> Floats:
        """The structural function in units of the outcome, `(m, n)`."""
        (xi,) = query.rows.encoded_by(self)
        structural = partial(_structural, self.networks.treatment, self.head)

        def values(x: FloatArray, rows: np.ndarray) -> np.ndarray:
            columns = self.schema.treatment.columns(self.scaler.treatment.transform(x))
            return in_pieces(structural, [columns, xi[rows]])

        return self.scaler.outcome.inverse(query.collect(values, MAX_ROWS))


@jax.jit
def _covariate_features(net: FeatureNet, head: Head, v: Array) -> Array:
    return net(Inputs(v[:, :0], v, jnp.ones(len(v))), moments=head.covariate)[0]


@jax.jit
def _structural(net: FeatureNet, head: Head, x: Array, xi: Array) -> Array:
    """`(psi(x), 1) weights (xi, 1)` for every row."""
    psi, _ = net(Inputs(x, x[:, :0], jnp.ones(len(x))), moments=head.treatment)
    weights = psi @ head.weights[:-1] + head.weights[-1]
    return jnp.sum(weights[:, :-1] * xi, axis=1) + weights[:, -1]


Shapes = tuple[LayerShape, ...]

_INSTRUMENT: Shapes = (LayerShape(128), LayerShape(64), LayerShape(32, normalise=True, rectify=False))
_COVARIATE: Shapes = (LayerShape(128), LayerShape(32, normalise=True), LayerShape(16))
# What the study puts after a vector block's own two layers.
_AFTER_VECTOR: Shapes = (LayerShape(32, normalise=True),)


@dataclass(frozen=True)
class DFIVConfig:
    """Everything that determines a fit, given data and key; the default preset as it stands.

    That one differs from the study (`paper_preset`) in five ways, each chosen by stage 2's error on held-out rows:
    every role is standardised; psi has four features of unit variance in place of one of any size, so that a penalty
    means the same in any units; phi and xi have much stronger weight decay; a vector block is followed by the same
    layers as plain columns; and vector blocks are noised in training. How images are seen was chosen by no comparison.

    Args:
        treatment_net: layers of psi(x).
        instrument_net, covariate_net: layers of phi(w, v) and xi(v) after the covariate blocks' features; None takes
            the study's, which has a single layer after a vector or image block.
        blocks: extractors of vector and image blocks, one set in phi and one in xi.
        training: the schedule, penalties and optimisers.
        scaling, use_instrument: as in `DFIV`.
    """

    treatment_net: Shapes = (LayerShape(16), LayerShape(4, normalise=True, rectify=False))
    instrument_net: Shapes | None = _INSTRUMENT
    covariate_net: Shapes | None = _COVARIATE
    blocks: FeatureConfig = replace(DEFAULT_FEATURES, dropout=0.1)
    training: DeepFeatures = field(default_factory=DeepFeatures)
    scaling: RoleScaling = field(default_factory=RoleScaling)
    use_instrument: bool = True

    def __post_init__(self) -> None:
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

    def without_instrument(self) -> DFIVConfig:
        """The same method with its instruments ignored."""
        return replace(self, use_instrument=False)

    def fit(self, data: IVData, key: Array, reporter: Reporter = silent) -> FittedDFIV:
        """Scale, split the rows between the stages, learn the features, solve the head."""
        if data.n_rows < 4:
            raise DataError(f"DFIV needs at least 4 rows, two for each stage; there are {data.n_rows}.")
        key_networks, key_rows, key_run = jax.random.split(key, 3)
        scaler, scaled = prepare(data, "DFIV", self.scaling, use_instrument=self.use_instrument)
        rows = stage_data(treatment_as_columns(scaled, data.schema), key_rows, halves=self.use_instrument)
        state = _start(self, data.schema, key_networks)
        state, history = run_phase(self.training, state, rows, key_run, reporter=reporter)
        head = solve_head(state.networks, rows, self.training)
        return FittedDFIV(self, data.schema, LinearSupport.fit(data), scaler, state.networks, head, history)


@partial(jax.jit, static_argnames=("config", "schema"))
def _start(config: DFIVConfig, schema: Schema, key: Array) -> TrainingState:
    return config.training.init(config.build(schema, key))


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
        scaling=RoleScaling(Identity(), Identity(), Identity(), Identity()),
    )


PRESETS = {"default": DFIVConfig, "paper": paper_preset}


@dataclass(eq=False, repr=False)
class DFIV(NetworkEstimator):
    """Deep feature instrumental-variable regression (Xu et al., ICLR 2021).

    Args:
        preset: "default", or "paper" (the study's public settings, on inputs as they come).
        epochs: passes of feature updates.
        stage1_penalty, stage2_penalty: ridge penalties of the stages' heads, a row.
        scaling: how each role is scaled; by default every role is standardised.
        use_instrument: False regresses the outcome on treatment and covariates directly.
        treatment_kind, outcome_kind: as in `IVData.from_arrays`; an outcome may have two levels, not more.
        random_state: the seed; None draws one and keeps it in `seed_`.
        progress: show progress bars on the terminal.

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
    _: KW_ONLY
    epochs: int | None = None
    stage1_penalty: float | None = None
    stage2_penalty: float | None = None

    def _config(self) -> DFIVConfig:
        config = chosen_preset(PRESETS, self.preset)
        training = replace(config.training, **self._given("epochs", "stage1_penalty", "stage2_penalty"))
        config = replace(config, training=training, use_instrument=self.use_instrument)
        return config if self.scaling is None else replace(config, scaling=self.scaling)
