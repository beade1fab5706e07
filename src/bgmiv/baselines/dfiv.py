r"""Deep feature IV: features of both stages learned by gradient steps, their linear heads solved in closed form.

Stage 1 regresses treatment features $\psi(x)$ on instrument features $\phi(w, v)$ over one half of the rows; stage 2
regresses $y$ on $\widehat{E}[\psi(x) \mid w, v] \otimes \xi(v)$ over the other half. Each loss is the minimum of a
ridge problem over its head, so its gradient is the one at the minimising head held fixed (the envelope theorem): the
only solve that is differentiated is the linear map from $\psi$ to its projection.

Reference: Xu et al., "Learning deep features in instrumental variable regression", ICLR 2021.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.scipy.linalg import cho_factor, cho_solve
from numpy.typing import NDArray

from bgmiv.data.folds import row_folds
from bgmiv.data.scaling import UNSCALED, ScaledData, treatment_as_columns
from bgmiv.data.schema import Schema
from bgmiv.errors import DataError
from bgmiv.estimators.fitted import with_given
from bgmiv.estimators.members import (
    DEFAULT_FEATURES,
    Best,
    FittedMembers,
    Learner,
    Member,
    MemberRows,
    NetworkConfig,
    NetworkEstimator,
    in_pieces,
)
from bgmiv.nn.features import BlockFeatures, build_features
from bgmiv.nn.settings import FeatureConfig, check_bounds
from bgmiv.progress import HistoryRow, Reporter
from bgmiv.training import RandomNumbers, bucket_size, pad_rows, run_once, run_phase

__all__ = [
    "DFIV", "PRESETS", "DFIVConfig", "DFIVMember", "DeepFeatures", "FeatureNet", "FeatureRows", "FeatureState",
    "FittedDFIV", "Head", "Inputs", "LayerShape", "Moments", "Networks", "Stages", "expectation", "first_stage_loss",
    "held_out_loss", "masked_features", "paper_preset", "ridge_loss", "ridge_map", "second_stage_loss", "solve_head",
    "stages_of",
]  # fmt: skip

_VARIANCE_FLOOR = 1e-5
# Updates of phi and of xi in an epoch.
_ITERATIONS = 20
_LEARNING_RATE = 1e-3
# The newest networks are kept whose held-out squared error of stage 2 is at most this many times the lowest so far;
# training stops after so many evaluations in a row beyond that.
_TOLERANCE, _PATIENCE = 1.05, 4


class LayerShape(NamedTuple):
    """One layer of a feature network: affine map, then batch normalisation and ReLU as asked.

    Attributes:
        width: number of units.
        normalise: standardise every unit over the rows, with a learned gain and offset.
        rectify: end with a ReLU.
    """

    width: int
    normalise: bool = False
    rectify: bool = True


Shapes = tuple[LayerShape, ...]


class Moments(NamedTuple):
    """Mean and variance of a layer's units over the rows it learned from, `(width,)` each."""

    mean: Array
    variance: Array


class Inputs(NamedTuple):
    """What a network sees of n rows: columns `(n, q)`, covariates `(n, p)`, and `(n,)` ones, zeros in padding."""

    columns: Array
    covariates: Array
    present: Array


class _Layer(eqx.Module):
    kernel: Array
    bias: Array
    gain: Array | None
    offset: Array | None
    rectify: bool = eqx.field(static=True)

    def __init__(self, n_in: int, shape: LayerShape, draws: RandomNumbers) -> None:
        # Uniform within one over the root of n_in, as in the study's networks.
        limit = max(n_in, 1) ** -0.5
        self.kernel = limit * (2.0 * draws.uniform((n_in, shape.width)) - 1.0)
        self.bias = limit * (2.0 * draws.uniform((shape.width,)) - 1.0)
        self.gain = jnp.ones((shape.width,)) if shape.normalise else None
        self.offset = jnp.zeros((shape.width,)) if shape.normalise else None
        self.rectify = shape.rectify


class FeatureNet(eqx.Module):
    """Features of rows: each covariate block through its own extractor, then layers over everything.

    Written for all rows at once, because normalisation is over rows.
    """

    blocks: BlockFeatures
    layers: tuple[_Layer, ...]

    def __init__(self, n_columns: int, blocks: BlockFeatures, shapes: Shapes, *, key: Array) -> None:
        widths = (n_columns + blocks.width, *(shape.width for shape in shapes))
        # One call of the generator: compiling one for each kernel takes longer than a small fit.
        draws = RandomNumbers(key, sum((a + 1) * b for a, b in pairwise(widths)))
        self.blocks = blocks
        self.layers = tuple(_Layer(a, shape, draws) for a, shape in zip(widths[:-1], shapes, strict=True))

    def __call__(
        self, rows: Inputs, *, moments: tuple[Moments, ...] | None = None, noise: Array | None = None
    ) -> tuple[Array, tuple[Moments, ...]]:
        """Features `(n, width)`, and the moments that the normalised layers used: the given ones, or those of the rows.

        `noise` holds `(n, noise_width)` uniform numbers, which switch the blocks' training noise on.
        """
        h = jax.vmap(self.blocks, in_axes=(0, None if noise is None else 0))(rows.covariates, noise)
        h = jnp.concatenate([rows.columns, h], axis=1)
        used: list[Moments] = []
        for layer in self.layers:
            h = h @ layer.kernel + layer.bias
            if layer.gain is not None and layer.offset is not None:
                used.append(_moments(h, rows.present) if moments is None else moments[len(used)])
                scale = layer.gain * jax.lax.rsqrt(used[-1].variance + _VARIANCE_FLOOR)
                h = h * scale + (layer.offset - used[-1].mean * scale)
            h = jax.nn.relu(h) if layer.rectify else h
        return h, tuple(used)


def _moments(h: Array, present: Array) -> Moments:
    mean = present @ h / jnp.sum(present)
    return Moments(mean, present @ (h - mean) ** 2 / jnp.sum(present))


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


def stages_of(scaled: ScaledData, key: Array, *, halves: bool, groups: NDArray[np.integer] | None = None) -> Stages:
    """Rows in random order, padded; with `halves`, stage 1 has the larger half of them, otherwise both have all.

    Halves hold whole groups, if there are two or more.
    """
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())
    order = rng.permutation(len(scaled.x))
    cut = (len(order) + 1) // 2
    first, second = (order[:cut], order[cut:]) if halves else (order, order)
    if halves and groups is not None and len(np.unique(groups)) > 1:
        half = row_folds(len(order), 2, rng, groups)[order]
        first, second = sorted([order[half == 0], order[half == 1]], key=len, reverse=True)
    padded = bucket_size(len(first), 8)

    def inputs(columns: NDArray[Any], covariates: NDArray[Any], rows: NDArray[np.integer]) -> Inputs:
        parts = columns[rows], covariates[rows], np.ones(len(rows), np.float32)
        return Inputs(*(jax.device_put(pad_rows(part, padded)) for part in parts))

    nothing = scaled.v[:, :0]
    return Stages(
        treatments=inputs(scaled.x.reshape(len(scaled.x), -1), nothing, first),
        first=inputs(scaled.w, scaled.v, first),
        second=inputs(scaled.w, scaled.v, second),
        covariates=inputs(nothing, scaled.v, second),
        y=jax.device_put(pad_rows(scaled.y[second, None], padded)),
    )


def first_stage_loss(phi: FeatureNet, noise: Array | None, targets: Array, stages: Stages, penalty: float) -> Array:
    """Stage 1's loss in phi for fixed treatment features `targets`; the penalty is a row's."""
    features = _with_constant(phi(stages.first, noise=noise)[0], stages.first.present)
    return ridge_loss(features, targets, penalty * jnp.sum(stages.first.present))


def _second_stage_features(
    xi: FeatureNet | None,
    noise: Array | None,
    expected: Array,
    stages: Stages,
    moments: tuple[Moments, ...] | None = None,
) -> Array:
    """(expected psi, 1) outer (xi, 1) of the stage-2 rows, psi-major; without covariates xi is the constant alone."""
    rows = stages.covariates
    features = expected[:, :0] if xi is None else xi(rows, moments=moments, noise=noise)[0]
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


class Head(NamedTuple):
    """Stage 2's weights, psi's features by xi's with the constants last, and moments of their normalised layers."""

    weights: Array
    treatment: tuple[Moments, ...]
    covariate: tuple[Moments, ...]


@partial(jax.jit, static_argnames="penalties")
def solve_head(networks: Networks, stages: Stages, penalties: tuple[float, float]) -> Head:
    """Stage 2's head for trained networks; the penalties of both stages are a row's."""
    psi, phi, xi = networks
    expected = expectation(phi, stages, penalties[0])(psi)
    penalty = penalties[1] * jnp.sum(stages.second.present)
    weights = ridge_map(_second_stage_features(xi, None, expected, stages), penalty)(stages.y)
    moments = () if xi is None else xi(stages.covariates)[1]
    return Head(weights.reshape(expected.shape[1] + 1, -1), psi(stages.treatments)[1], moments)


def held_out_loss(networks: Networks, stages: Stages, held_out: Stages, penalties: tuple[float, float]) -> Array:
    """The mean square of y - E[g(x, v) | w, v] on held-out rows, by stages solved on the others."""
    psi, phi, xi = networks
    head = solve_head(networks, stages, penalties)
    if phi is None:
        expected = psi(held_out.treatments, moments=head.treatment)[0]
    else:
        expected = expectation(phi, stages._replace(second=held_out.second), penalties[0])(psi)
    features = _second_stage_features(xi, None, expected, held_out, head.covariate)
    # Padding has neither features nor an outcome.
    errors = held_out.y[:, 0] - features @ head.weights.ravel()
    return jnp.sum(errors**2) / jnp.sum(held_out.second.present)


def _descend(
    loss: Callable[[FeatureNet, Array | None], Array],
    learner: Learner,
    optimiser: optax.GradientTransformation,
    count: int,
    rows: Inputs,
    key: Array,
) -> tuple[Learner, Array]:
    """The learner after `count` updates, and the loss before the last."""
    shape = (len(rows.present), learner.net.blocks.noise_width)
    size = shape[0] * shape[1]
    # Random numbers of its own for every update would cost more than its matrix products: one block serves an epoch,
    # and each update deals it out to rows and columns by another random shift.
    draws = RandomNumbers(key, size + count)
    block, shifts = draws.uniform((size,)), draws.index((count,), jnp.asarray(max(size, 1)))

    def update(i: Array, carry: tuple[Learner, Array]) -> tuple[Learner, Array]:
        shifted = jnp.roll(block, shifts[i]).reshape(shape) if size else None
        value, grads = jax.value_and_grad(loss)(carry[0].net, shifted)
        return carry[0].moved(optimiser, grads), value

    return jax.lax.fori_loop(0, count, update, (learner, jnp.zeros(())))


class FeatureRows(NamedTuple):
    """The rows that features are learned from, and those held out, if any."""

    stages: Stages
    held_out: Stages | None


class FeatureState(NamedTuple):
    """The networks of treatment, instruments and covariates in training, and the best ones if rows are held out."""

    treatment: Learner
    instrument: Learner | None
    covariate: Learner | None
    best: Best | None

    @property
    def networks(self) -> Networks:
        """The networks as they are."""
        return Networks(
            self.treatment.net, self.instrument and self.instrument.net, self.covariate and self.covariate.net
        )


@dataclass(frozen=True)
class DeepFeatures:
    """The schedule of deep feature IV; one step is one epoch over all rows.

    An epoch first updates phi with psi fixed, 20 times, then xi with phi and psi fixed, 20 times, then psi with phi and
    xi fixed, once. Every update solves the heads anew.

    Args:
        epochs: passes.
        stage1_penalty, stage2_penalty: ridge penalties of the heads, a row.
        instrument_decay, covariate_decay: factors of half the squared weights of phi and xi in the losses, which are
            sums over rows.
    """

    epochs: int = 100
    stage1_penalty: float = 0.1
    stage2_penalty: float = 0.1
    instrument_decay: float = 100.0
    covariate_decay: float = 1.0

    def __post_init__(self) -> None:
        check_bounds(self, "stage1_penalty", "stage2_penalty", epochs=0, instrument_decay=0, covariate_decay=0)

    name = "deep features"
    metric_names = ("loss", "stage1")
    chunk = 10

    @property
    def n_steps(self) -> int:
        return self.epochs

    @property
    def penalties(self) -> tuple[float, float]:
        """Those of both stages."""
        return self.stage1_penalty, self.stage2_penalty

    def _optimisers(self) -> tuple[optax.GradientTransformation, ...]:
        decays = (0.0, self.instrument_decay, self.covariate_decay)
        return tuple(optax.chain(optax.add_decayed_weights(d), optax.adam(_LEARNING_RATE)) for d in decays)

    def init(self, networks: Networks, *, hold_out: bool = False) -> FeatureState:
        """Fresh optimisers beside the networks."""
        (psi, phi, xi), (for_psi, for_phi, for_xi) = networks, self._optimisers()
        return FeatureState(
            treatment=Learner.begin(psi, for_psi),
            instrument=None if phi is None else Learner.begin(phi, for_phi),
            covariate=None if xi is None else Learner.begin(xi, for_xi),
            best=Best.first(networks) if hold_out else None,
        )

    def step(self, state: FeatureState, data: FeatureRows, key: Array) -> tuple[FeatureState, dict[str, Array]]:
        """One epoch; the metrics are the losses a row of stage 2 and of stage 1."""
        psi, phi, xi, best = state
        stages, (for_psi, for_phi, for_xi) = data.stages, self._optimisers()
        key_phi, key_xi = jax.random.split(key)
        loss1 = jnp.zeros(())
        if phi is not None:
            targets = masked_features(psi.net, stages.treatments)
            loss = partial(first_stage_loss, targets=targets, stages=stages, penalty=self.stage1_penalty)
            phi, loss1 = _descend(loss, phi, for_phi, _ITERATIONS, stages.first, key_phi)
        expected = expectation(phi and phi.net, stages, self.stage1_penalty)
        loss = partial(second_stage_loss, stages=stages, penalty=self.stage2_penalty)
        if xi is not None:
            loss_xi = partial(loss, expected=expected(psi.net))
            xi, _ = _descend(loss_xi, xi, for_xi, _ITERATIONS, stages.covariates, key_xi)

        def loss_psi(net: FeatureNet, _: Array | None) -> Array:
            return loss(xi and xi.net, None, expected=expected(net))

        psi, loss2 = _descend(loss_psi, psi, for_psi, 1, stages.treatments, key)
        metrics = {"loss": loss2 / jnp.sum(stages.second.present), "stage1": loss1 / jnp.sum(stages.first.present)}
        return FeatureState(psi, phi, xi, best), metrics

    def evaluate(self, state: FeatureState, data: FeatureRows) -> FeatureState:
        """Keep the networks unless their held-out loss is clearly above the lowest so far."""
        if state.best is None or data.held_out is None:
            return state
        loss = held_out_loss(state.networks, data.stages, data.held_out, self.penalties)
        return state._replace(best=state.best.after(state.networks, loss, _TOLERANCE * state.best.loss))

    def stopped(self, state: FeatureState) -> Array:
        """Whether so many evaluations brought nothing."""
        return jnp.zeros((), bool) if state.best is None else state.best.stale >= _PATIENCE


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


_INSTRUMENT: Shapes = (LayerShape(128), LayerShape(64), LayerShape(32, normalise=True, rectify=False))
_COVARIATE: Shapes = (LayerShape(128), LayerShape(32, normalise=True), LayerShape(16))


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
        instrument_net, covariate_net: layers of phi(w, v) and xi(v) after the covariate blocks' features.
        after_vector: layers in place of both where there is a vector or image block; None: the same.
        covariates: extractors of vector and image blocks, one set in phi and one in xi.
        training: the schedule, penalties and optimisers.
        members, held_out, scaling, use_instrument: as in `DFIV`.
    """

    fitted_class = FittedDFIV

    treatment_net: Shapes = (LayerShape(16), LayerShape(4, normalise=True, rectify=False))
    instrument_net: Shapes = _INSTRUMENT
    covariate_net: Shapes = _COVARIATE
    after_vector: Shapes | None = None
    covariates: FeatureConfig = DEFAULT_FEATURES
    training: DeepFeatures = field(default_factory=DeepFeatures)

    def build(self, schema: Schema, key: Array) -> Networks:
        """Fresh networks for a data set."""
        shapes = self.after_vector if schema.has_wide_block else None
        key_psi, key_phi, key_phi_blocks, key_xi, key_xi_blocks = jax.random.split(key, 5)
        phi = xi = None
        if self.use_instrument:
            blocks = build_features(schema.blocks, self.covariates, key=key_phi_blocks)
            phi = FeatureNet(len(schema.instruments), blocks, shapes or self.instrument_net, key=key_phi)
        if schema.blocks:
            blocks = build_features(schema.blocks, self.covariates, key=key_xi_blocks)
            xi = FeatureNet(0, blocks, shapes or self.covariate_net, key=key_xi)
        psi = FeatureNet(schema.treatment.width, BlockFeatures((), ()), self.treatment_net, key=key_psi)
        return Networks(psi, phi, xi)

    def fit_member(self, schema: Schema, rows: MemberRows, key: Array, reporter: Reporter) -> DFIVMember:
        """Split the rows between the stages, learn the features, solve the head."""
        if len(rows.train.x) < 4:
            raise DataError(f"DFIV needs at least 4 rows, two for each stage; there are {len(rows.train.x)}.")
        key_networks, key_rows, key_run = jax.random.split(key, 3)
        train, held_out, groups = rows.changed(partial(treatment_as_columns, schema=schema))
        stages = stages_of(train, key_rows, halves=self.use_instrument, groups=groups)
        watched = None if held_out is None else stages_of(held_out, key_rows, halves=False)
        state = _start(self, schema, key_networks, hold_out=watched is not None)
        state, history = run_phase(self.training, state, FeatureRows(stages, watched), key_run, reporter=reporter)
        networks = state.networks if state.best is None else state.best.networks
        return DFIVMember(networks, solve_head(networks, stages, self.training.penalties), history)


@partial(run_once, static_argnames=("config", "schema", "hold_out"))
def _start(config: DFIVConfig, schema: Schema, key: Array, *, hold_out: bool) -> FeatureState:
    return config.training.init(config.build(schema, key), hold_out=hold_out)


def paper_preset() -> DFIVConfig:
    """The study's public settings: inputs as they come, one treatment feature, almost no weight decay.

    Three things differ from its code: normalised layers use the moments of all training rows at the current weights;
    vector and image blocks go through this package's extractors (every update convolves all rows at once: images need
    gigabytes and a GPU); and the updates of one epoch share a block of dropout draws, dealt out anew each time.
    """
    return DFIVConfig(
        treatment_net=(LayerShape(16), LayerShape(1, rectify=False)),
        after_vector=(LayerShape(32, normalise=True),),
        covariates=FeatureConfig(),
        training=DeepFeatures(instrument_decay=0.0, covariate_decay=0.1),
        members=1,
        held_out=0.0,
        reduction=None,
        scaling=UNSCALED,
    )


PRESETS = {"default": DFIVConfig, "paper": paper_preset}


@dataclass(eq=False, repr=False, kw_only=True)
class DFIV(NetworkEstimator):
    """Deep feature instrumental-variable regression (Xu et al., ICLR 2021).

    Arguments left at None take the preset's value.

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

    Example:
        >>> rng = np.random.default_rng(0)
        >>> w, v, u = rng.normal(size=(3, 200))
        >>> x = w + v + u
        >>> model = DFIV(epochs=2, random_state=0)
        >>> model.fit(2 * x + v - u, x, instruments=w, covariates=v).predict(0.0, v[:3]).shape
        (3,)
    """

    presets = PRESETS
    fitted_class = FittedDFIV

    epochs: int | None = None
    stage1_penalty: float | None = None
    stage2_penalty: float | None = None

    def _config(self) -> DFIVConfig:
        config = super()._config()
        return replace(config, training=with_given(config.training, self))
