r"""Deep feature IV: features of both stages learned by gradient steps, their linear heads solved in closed form.

Stage 1 regresses treatment features $\psi(x)$ on instrument features $\phi(w, v)$ over one half of the rows; stage 2
regresses $y$ on $\widehat{E}[\psi(x) \mid w, v] \otimes \xi(v)$ over the other half. Each loss is the minimum of a
ridge problem over its head, so its gradient is the one at the minimising head held fixed (the envelope theorem):
nothing is differentiated through a factorisation, except the linear map from $\psi$ to its projection.

Reference: Xu, Chen, Srinivasan, de Freitas, Doucet and Gretton, "Learning deep features in instrumental variable
regression", ICLR 2021.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.scipy.linalg import cho_factor, cho_solve

from bgmiv.covariates.features import BlockFeatures
from bgmiv.data.batching import bucket_size, pad_rows
from bgmiv.data.scaling import ScaledData
from bgmiv.errors import ConfigError
from bgmiv.model.objectives import Row
from bgmiv.train.draws import Draws
from bgmiv.train.loop import TrainingData

__all__ = [
    "DeepFeatures",
    "FeatureNet",
    "Heads",
    "Inputs",
    "LayerShape",
    "Networks",
    "outer_features",
    "ridge",
    "ridge_loss",
    "solve_heads",
    "stage_data",
]

_VARIANCE_FLOOR = 1e-5


@dataclass(frozen=True)
class LayerShape:
    """One dense layer of a feature network: affine map, then batch normalisation and ReLU as asked.

    Args:
        width: number of units.
        normalise: standardise every unit over the rows, with a learned gain and offset.
        rectify: end with a ReLU.
    """

    width: int
    normalise: bool = False
    rectify: bool = True

    def __post_init__(self) -> None:
        """Refuse an empty layer."""
        if self.width < 1:
            raise ConfigError(f"a layer needs a width of at least 1, got {self.width}.")


class Moments(NamedTuple):
    """Mean and variance of a layer's units over the rows it learned from, `(width,)` each."""

    mean: Array
    variance: Array


class Inputs(NamedTuple):
    """What a feature network sees of n rows: plain columns `(n, q)`, covariates `(n, p)`, and 1 for real rows `(n,)`."""

    columns: Array
    covariates: Array
    present: Array


class FeatureLayer(eqx.Module):
    """A dense layer; `gain` and `offset` are there if it normalises."""

    kernel: Array
    bias: Array
    gain: Array | None
    offset: Array | None
    rectify: bool = eqx.field(static=True)

    def __init__(self, n_in: int, shape: LayerShape, *, key: Array) -> None:
        """Kernel and bias uniform within one over the root of `n_in`, as in the study's networks."""
        limit = max(n_in, 1) ** -0.5
        key_kernel, key_bias = jax.random.split(key)
        self.kernel = jax.random.uniform(key_kernel, (n_in, shape.width), minval=-limit, maxval=limit)
        self.bias = jax.random.uniform(key_bias, (shape.width,), minval=-limit, maxval=limit)
        self.gain = jnp.ones((shape.width,)) if shape.normalise else None
        self.offset = jnp.zeros((shape.width,)) if shape.normalise else None
        self.rectify = shape.rectify


class FeatureNet(eqx.Module):
    """Features of rows: each covariate block through its own extractor, then dense layers over everything.

    Written for all rows at once, because normalisation is over rows.

    Example:
        >>> net = FeatureNet(1, BlockFeatures((), ()), (LayerShape(8, normalise=True),), key=jax.random.key(0))
        >>> rows = Inputs(jnp.ones((5, 1)), jnp.ones((5, 0)), jnp.ones(5))
        >>> net(rows)[0].shape
        (5, 8)
    """

    blocks: BlockFeatures
    layers: tuple[FeatureLayer, ...]

    def __init__(self, n_columns: int, blocks: BlockFeatures, shapes: tuple[LayerShape, ...], *, key: Array) -> None:
        """Stack layers of the given shapes on `n_columns` plain columns and the blocks' features."""
        widths = (n_columns + blocks.width, *(shape.width for shape in shapes))
        keys = jax.random.split(key, len(shapes))
        self.blocks = blocks
        self.layers = tuple(FeatureLayer(a, s, key=k) for a, s, k in zip(widths[:-1], shapes, keys, strict=True))

    @property
    def width(self) -> int:
        """Number of features."""
        return int(self.layers[-1].bias.shape[-1])

    def __call__(
        self, rows: Inputs, *, moments: tuple[Moments, ...] | None = None, noise: Array | None = None
    ) -> tuple[Array, tuple[Moments, ...]]:
        """Features `(n, width)` and the moments its normalised layers used.

        Args:
            rows: the rows.
            moments: those of the rows the network learns from; None takes them from these very rows.
            noise: `(n, noise_width)` uniform numbers that switch the blocks' training noise on.
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
    n = jnp.sum(present)
    mean = present @ h / n
    return Moments(mean, present @ (h - mean) ** 2 / n)


class Networks(NamedTuple):
    """psi(x), phi(w, v) and xi(v); without an instrument there is no phi, without covariates no xi."""

    treatment: FeatureNet
    instrument: FeatureNet | None
    covariate: FeatureNet | None


def ridge(features: Array, targets: Array, penalty: Array | float) -> Array:
    r"""The head $\arg\min_W \|T - FW\|^2 + \lambda\|W\|^2 = (F^\top F + \lambda I)^{-1} F^\top T$, by Cholesky.

    Args:
        features: `(n, d)`.
        targets: `(n, k)`.
        penalty: lambda, already multiplied by the number of rows.

    Example:
        >>> ridge(jnp.eye(2), jnp.ones((2, 1)), 1.0).ravel().tolist()
        [0.5, 0.5]
    """
    return cho_solve(_gram_factor(features, penalty), features.T @ targets)


def _gram_factor(features: Array, penalty: Array | float) -> tuple[Array, bool]:
    gram = features.T @ features
    factor, lower = cho_factor(gram + penalty * jnp.eye(len(gram), dtype=gram.dtype), lower=True)
    return factor, bool(lower)


def ridge_loss(features: Array, targets: Array, penalty: Array | float) -> Array:
    r"""The minimum of the ridge problem, $\min_W \|T - FW\|^2 + \lambda\|W\|^2$.

    Its gradient in features and targets is exact with the minimising head held fixed.
    """
    head = jax.lax.stop_gradient(ridge(features, targets, penalty))
    return jnp.sum((targets - features @ head) ** 2) + penalty * jnp.sum(head**2)


def with_constant(features: Array, present: Array) -> Array:
    """A last column of ones, and rows of zeros where there is no row: padding drops out of every sum."""
    return jnp.concatenate([features, jnp.ones((len(features), 1), features.dtype)], axis=1) * present[:, None]


def outer_features(left: Array, right: Array) -> Array:
    """The stage-2 features `(n, a * b)` of `left` `(n, a)` and `right` `(n, b)`, left-major.

    Column `i * b + j` is `left[:, i] * right[:, j]`; a head of shape `(a * b, 1)` reshaped to `(a, b)` therefore has
    one row a treatment feature and one column a covariate feature, the constants last in both.

    Example:
        >>> outer_features(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 5.0]])).tolist()
        [[3.0, 5.0, 6.0, 10.0]]
    """
    return (left[:, :, None] * right[:, None, :]).reshape(len(left), -1)


class Heads(NamedTuple):
    """Everything beside the networks that a fitted model needs.

    Attributes:
        stage1: `(d + 1, k)`, instrument features and a constant to treatment features; None without an instrument.
        stage2: `(k + 1, m + 1)`, see `outer_features`.
        instrument_moments, covariate_moments: of the networks' normalised layers.
    """

    stage1: Array | None
    stage2: Array
    instrument_moments: tuple[Moments, ...]
    covariate_moments: tuple[Moments, ...]


class Stages(NamedTuple):
    """Rows and row counts of both stages; the same rows twice without an instrument."""

    first: Row
    second: Row
    first_present: Array
    second_present: Array

    @property
    def treatments(self) -> Inputs:
        """psi's inputs: stage-1 rows."""
        return Inputs(self.first.x[:, None], self.first.v[:, :0], self.first_present)

    @property
    def first_instruments(self) -> Inputs:
        """phi's inputs in stage 1."""
        return Inputs(self.first.w, self.first.v, self.first_present)

    @property
    def second_instruments(self) -> Inputs:
        """phi's inputs in stage 2."""
        return Inputs(self.second.w, self.second.v, self.second_present)

    @property
    def covariates(self) -> Inputs:
        """xi's inputs: stage-2 rows."""
        return Inputs(self.second.w[:, :0], self.second.v, self.second_present)


def stage_data(scaled: ScaledData, key: Array, *, halves: bool) -> TrainingData:
    """Rows in random order, padded; with `halves`, stage 1 fills the first half of the padded rows.

    Stage 1 gets the larger half of an odd number of rows.
    """
    seed = np.random.SeedSequence(np.asarray(jax.random.key_data(key)).ravel().tolist())
    order = np.random.default_rng(seed).permutation(len(scaled.x))
    cut = (len(order) + 1) // 2
    parts = (order[:cut], order[cut:]) if halves else (order,)
    padded = bucket_size(len(parts[0]), 8)
    rows = Row(
        *(
            jnp.asarray(np.concatenate([pad_rows(values[part], padded) for part in parts]))
            for values in (scaled.x, scaled.y, scaled.v, scaled.w)
        )
    )
    return TrainingData(rows, jnp.asarray(len(order), jnp.int32))


def _stages(data: TrainingData, halves: bool) -> Stages:
    if not halves:
        present = (jnp.arange(len(data.rows.x)) < data.n).astype(data.rows.x.dtype)
        return Stages(data.rows, data.rows, present, present)
    size = len(data.rows.x) // 2
    place = jnp.arange(size)
    first, second = (jax.tree.map(lambda leaf, s=s: leaf[s : s + size], data.rows) for s in (0, size))
    n_first = (data.n + 1) // 2
    kind = data.rows.x.dtype
    return Stages(first, second, (place < n_first).astype(kind), (place < data.n - n_first).astype(kind))


class DeepFeaturesState(NamedTuple):
    """Networks and one optimiser state each."""

    networks: Networks
    optimisers: tuple[optax.OptState, optax.OptState, optax.OptState]


@dataclass(frozen=True)
class DeepFeatures:
    """The schedule of deep feature IV; one step is one epoch over all rows.

    An epoch first updates phi with psi fixed, then xi with phi and psi fixed, then psi with phi and xi fixed. Every
    update solves the heads anew. The penalties are multiplied by the stage's number of rows.

    Args:
        epochs: epochs.
        instrument_iterations, covariate_iterations, treatment_iterations: updates of phi, xi and psi in an epoch.
        stage1_penalty, stage2_penalty: ridge penalties of the heads, a row.
        learning_rate: Adam's step size for all networks.
        treatment_decay, instrument_decay, covariate_decay: factors of half the squared weights added to the losses,
            which are sums over rows.
        chunk: epochs between two looks of the host.
    """

    epochs: int = 100
    instrument_iterations: int = 20
    covariate_iterations: int = 20
    treatment_iterations: int = 1
    stage1_penalty: float = 0.1
    stage2_penalty: float = 0.1
    learning_rate: float = 1e-3
    treatment_decay: float = 0.0
    instrument_decay: float = 0.0
    covariate_decay: float = 0.1
    chunk: int = 10

    def __post_init__(self) -> None:
        """Refuse settings that cannot train."""
        for name in ("epochs", "instrument_iterations", "covariate_iterations", "treatment_iterations"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be at least 0, got {getattr(self, name)}.")
        if self.stage1_penalty <= 0 or self.stage2_penalty <= 0 or self.learning_rate <= 0:
            raise ConfigError(
                "stage1_penalty, stage2_penalty and learning_rate must be above 0, got "
                f"{self.stage1_penalty}, {self.stage2_penalty} and {self.learning_rate}."
            )
        for name in ("treatment_decay", "instrument_decay", "covariate_decay"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be at least 0, got {getattr(self, name)}.")
        if self.chunk < 1:
            raise ConfigError(f"chunk must be at least 1, got {self.chunk}.")

    @property
    def name(self) -> str:
        """The phase's name."""
        return "deep features"

    @property
    def n_steps(self) -> int:
        """Epochs."""
        return self.epochs

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Losses a row of stage 2 (the loss) and of stage 1."""
        return ("loss", "stage1")

    def _optimiser(self, decay: float) -> optax.GradientTransformation:
        adam = optax.adam(self.learning_rate)
        return optax.chain(optax.add_decayed_weights(decay), adam) if decay > 0 else adam

    def _optimisers(self) -> tuple[optax.GradientTransformation, ...]:
        return tuple(
            self._optimiser(decay) for decay in (self.treatment_decay, self.instrument_decay, self.covariate_decay)
        )

    def init(self, networks: Networks) -> DeepFeaturesState:
        """Fresh optimisers beside the networks."""
        first, second, third = (o.init(net) for o, net in zip(self._optimisers(), networks, strict=True))
        return DeepFeaturesState(networks, (first, second, third))

    def step(
        self, state: DeepFeaturesState, data: TrainingData, key: Array
    ) -> tuple[DeepFeaturesState, dict[str, Array]]:
        """One epoch."""
        (psi, phi, xi), (adam_psi, adam_phi, adam_xi) = state
        treatment_optimiser, instrument_optimiser, covariate_optimiser = self._optimisers()
        stages = _stages(data, phi is not None)
        n_first, n_second = jnp.sum(stages.first_present), jnp.sum(stages.second_present)
        penalty = self.stage2_penalty * n_second
        y = stages.second.y[:, None]
        key_phi, key_xi = jax.random.split(key)
        first_loss = jnp.zeros(())

        if phi is not None:
            targets = _present(psi, stages.treatments)

            def stage1(net: FeatureNet, noise: Array | None) -> Array:
                features, _ = net(stages.first_instruments, noise=noise)
                features = with_constant(features, stages.first_present)
                return ridge_loss(features, targets, self.stage1_penalty * n_first)

            phi, adam_phi, first_loss = _descend(
                stage1, instrument_optimiser, phi, adam_phi, self.instrument_iterations, len(targets), key_phi
            )
        expected = _expectation(phi, stages, self.stage1_penalty * n_first)

        if xi is not None:
            left = with_constant(expected(psi), stages.second_present)

            def stage2(net: FeatureNet, noise: Array | None) -> Array:
                right, _ = net(stages.covariates, noise=noise)
                return ridge_loss(outer_features(left, with_constant(right, stages.second_present)), y, penalty)

            xi, adam_xi, _ = _descend(
                stage2, covariate_optimiser, xi, adam_xi, self.covariate_iterations, len(y), key_xi
            )
        right = _covariate_features(xi, stages.covariates)

        def outcome(net: FeatureNet, noise: Array | None) -> Array:
            left = with_constant(expected(net), stages.second_present)
            return ridge_loss(outer_features(left, right), y, penalty)

        psi, adam_psi, loss = _descend(
            outcome, treatment_optimiser, psi, adam_psi, self.treatment_iterations, len(y), key
        )
        metrics = {"loss": loss / n_second, "stage1": first_loss / n_first}
        return DeepFeaturesState(Networks(psi, phi, xi), (adam_psi, adam_phi, adam_xi)), metrics


def _present(net: FeatureNet, rows: Inputs) -> Array:
    """Features without training noise, zero where there is no row."""
    return net(rows)[0] * rows.present[:, None]


def _covariate_features(net: FeatureNet | None, rows: Inputs) -> Array:
    """xi(v) and a constant; the constant alone without covariates."""
    features = jnp.zeros((len(rows.present), 0)) if net is None else net(rows)[0]
    return with_constant(features, rows.present)


def _expectation(net: FeatureNet | None, stages: Stages, penalty: Array) -> Callable[[FeatureNet], Array]:
    """The map from a treatment network to its features' conditional expectations at stage-2 rows.

    It is linear in the features, and the features themselves without an instrument.
    """
    if net is None:
        return lambda psi: _present(psi, stages.treatments)
    first, moments = net(stages.first_instruments)
    second, _ = net(stages.second_instruments, moments=moments)
    first = with_constant(first, stages.first_present)
    second = with_constant(second, stages.second_present)
    factor = _gram_factor(first, penalty)
    return lambda psi: second @ cho_solve(factor, first.T @ _present(psi, stages.treatments))


def _descend(
    loss: Callable[[FeatureNet, Array | None], Array],
    optimiser: optax.GradientTransformation,
    net: FeatureNet,
    state: optax.OptState,
    count: int,
    n_rows: int,
    key: Array,
) -> tuple[FeatureNet, optax.OptState, Array]:
    """`count` updates of one network; the loss before the last."""
    width = net.blocks.noise_width

    def update(i: Array, carry: tuple[FeatureNet, Any, Array]) -> tuple[FeatureNet, Any, Array]:
        net, state, _ = carry
        noise = Draws(jax.random.fold_in(key, i), n_rows * width).uniform((n_rows, width)) if width else None
        value, grads = jax.value_and_grad(loss)(net, noise)
        updates, state = optimiser.update(grads, state, net)
        return optax.apply_updates(net, updates), state, value

    return jax.lax.fori_loop(0, count, update, (net, state, jnp.zeros(())))


@partial(jax.jit, static_argnames="config")
def solve_heads(networks: Networks, data: TrainingData, config: DeepFeatures) -> Heads:
    """Both heads for trained networks, with the moments that prediction needs."""
    psi, phi, xi = networks
    stages = _stages(data, phi is not None)
    n_first, n_second = jnp.sum(stages.first_present), jnp.sum(stages.second_present)
    stage1, instrument_moments = None, ()
    if phi is not None:
        features, instrument_moments = phi(stages.first_instruments)
        features = with_constant(features, stages.first_present)
        stage1 = ridge(features, _present(psi, stages.treatments), config.stage1_penalty * n_first)
    expected = _expectation(phi, stages, config.stage1_penalty * n_first)(psi)
    left = with_constant(expected, stages.second_present)
    right = _covariate_features(xi, stages.covariates)
    stage2 = ridge(outer_features(left, right), stages.second.y[:, None], config.stage2_penalty * n_second)
    covariate_moments = () if xi is None else xi(stages.covariates)[1]
    return Heads(stage1, stage2.reshape(left.shape[1], right.shape[1]), instrument_moments, covariate_moments)
