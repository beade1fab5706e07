r"""Deep feature IV: features of both stages learned by gradient steps, their linear heads solved in closed form.

Stage 1 regresses treatment features $\psi(x)$ on instrument features $\phi(w, v)$ over one half of the rows; stage 2
regresses $y$ on $\widehat{E}[\psi(x) \mid w, v] \otimes \xi(v)$ over the other half. Each loss is the minimum of a
ridge problem over its head, so its gradient is the one at the minimising head held fixed (the envelope theorem):
the only solve that is differentiated is the linear map from $\psi$ to its projection.

Reference: Xu, Chen, Srinivasan, de Freitas, Doucet and Gretton, "Learning deep features in instrumental variable
regression", ICLR 2021.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
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
    "DeepFeatures", "DeepFeaturesState", "FeatureNet", "Inputs", "LayerShape", "Moments", "Networks", "Stages",
    "expectation", "first_stage_loss", "masked_features", "outer_features", "ridge", "ridge_loss",
    "second_stage_features", "second_stage_loss", "stage_data", "stages_of", "with_constant",
]  # fmt: skip

_VARIANCE_FLOOR = 1e-5


@dataclass(frozen=True)
class LayerShape:
    """One layer of a feature network: affine map, then batch normalisation and ReLU as asked.

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


def _moments(h: Array, present: Array) -> Moments:
    mean = present @ h / jnp.sum(present)
    return Moments(mean, present @ (h - mean) ** 2 / jnp.sum(present))


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

    def __init__(self, n_in: int, shape: LayerShape, draws: Draws) -> None:
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

    Example:
        >>> net = FeatureNet(1, BlockFeatures((), ()), (LayerShape(8, normalise=True),), key=jax.random.key(0))
        >>> features, _ = net(Inputs(jnp.arange(5.0)[:, None], jnp.ones((5, 0)), jnp.ones(5)))
        >>> features.shape
        (5, 8)
    """

    blocks: BlockFeatures
    layers: tuple[_Layer, ...]

    def __init__(self, n_columns: int, blocks: BlockFeatures, shapes: tuple[LayerShape, ...], *, key: Array) -> None:
        """Stack layers of the given shapes on `n_columns` plain columns and the blocks' features."""
        widths = (n_columns + blocks.width, *(shape.width for shape in shapes))
        # One call of the generator: compiling one for each kernel takes longer than a small fit.
        draws = Draws(key, sum((a + 1) * b for a, b in pairwise(widths)))
        self.blocks = blocks
        self.layers = tuple(_Layer(a, shape, draws) for a, shape in zip(widths[:-1], shapes, strict=True))

    def __call__(
        self, rows: Inputs, *, moments: tuple[Moments, ...] | None = None, noise: Array | None = None
    ) -> tuple[Array, tuple[Moments, ...]]:
        """Features `(n, width)` and the moments that the normalised layers used.

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


class Networks(NamedTuple):
    """psi(x), phi(w, v) and xi(v); without an instrument there is no phi, without covariates no xi."""

    treatment: FeatureNet
    instrument: FeatureNet | None
    covariate: FeatureNet | None


def ridge(features: Array, targets: Array, penalty: Array | float) -> Array:
    r"""The head $\arg\min_W \|T - FW\|^2 + \lambda\|W\|^2 = (F^\top F + \lambda I)^{-1} F^\top T$, by Cholesky.

    Args:
        features, targets: `(n, d)` and `(n, k)`.
        penalty: lambda, already multiplied by the number of rows.

    Example:
        >>> ridge(jnp.eye(2), jnp.ones((2, 1)), 1.0).ravel().round(3).tolist()
        [0.5, 0.5]
    """
    return _ridge_map(features, penalty)(targets)


def _ridge_map(features: Array, penalty: Array | float) -> Callable[[Array], Array]:
    """The map from targets to their head, which is linear."""
    gram = features.T @ features
    factor = cho_factor(gram + penalty * jnp.eye(len(gram), dtype=gram.dtype), lower=True)
    return lambda targets: cho_solve(factor, features.T @ targets)


def ridge_loss(features: Array, targets: Array, penalty: Array | float) -> Array:
    r"""The minimum $\min_W \|T - FW\|^2 + \lambda\|W\|^2$; its gradient is exact with the head held fixed."""
    head = jax.lax.stop_gradient(ridge(features, targets, penalty))
    return jnp.sum((targets - features @ head) ** 2) + penalty * jnp.sum(head**2)


def outer_features(left: Array, right: Array) -> Array:
    """The stage-2 features `(n, a * b)` of `left` `(n, a)` and `right` `(n, b)`, left-major.

    Column `i * b + j` is `left[:, i] * right[:, j]`; a head of shape `(a * b, 1)` reshaped to `(a, b)` therefore has
    one row a treatment feature and one column a covariate feature, the constants last in both.

    Example:
        >>> outer_features(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 5.0]])).tolist()
        [[3.0, 5.0, 6.0, 10.0]]
    """
    return (left[:, :, None] * right[:, None, :]).reshape(len(left), -1)


def masked_features(net: FeatureNet, rows: Inputs) -> Array:
    """Features without training noise, zero in padding."""
    return net(rows)[0] * rows.present[:, None]


def with_constant(features: Array, present: Array) -> Array:
    """A last column of ones, and rows of zeros where there is no row: padding drops out of every sum."""
    return jnp.concatenate([features, jnp.ones((len(features), 1), features.dtype)], axis=1) * present[:, None]


class Stages(NamedTuple):
    """What each network sees in each stage; without an instrument both stages hold all rows.

    Attributes:
        treatments: psi's inputs, stage 1.
        first, second: phi's inputs, stage 1 and stage 2.
        covariates: xi's inputs, stage 2.
        y: outcomes of stage 2, `(n, 1)`.
    """

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
    """The stages' rows, from data laid out by `stage_data`."""
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


def first_stage_loss(net: FeatureNet, targets: Array, stages: Stages, penalty: float, noise: Array | None) -> Array:
    """Stage 1's loss in phi for fixed treatment features `targets`; the penalty is a row's."""
    features = with_constant(net(stages.first, noise=noise)[0], stages.first.present)
    return ridge_loss(features, targets, penalty * jnp.sum(stages.first.present))


def second_stage_features(expected: Array, net: FeatureNet | None, stages: Stages, noise: Array | None) -> Array:
    """(expected psi, 1) outer (xi, 1) of the stage-2 rows; without covariates xi is the constant alone."""
    rows = stages.covariates
    features = expected[:, :0] if net is None else net(rows, noise=noise)[0]
    return outer_features(with_constant(expected, rows.present), with_constant(features, rows.present))


def second_stage_loss(
    expected: Array, net: FeatureNet | None, stages: Stages, penalty: float, noise: Array | None
) -> Array:
    """Stage 2's loss in the expected treatment features and in xi; the penalty is a row's."""
    features = second_stage_features(expected, net, stages, noise)
    return ridge_loss(features, stages.y, penalty * jnp.sum(stages.covariates.present))


def expectation(net: FeatureNet | None, stages: Stages, penalty: float) -> Callable[[FeatureNet], Array]:
    """The map from psi to its features' expectations at stage-2 rows; without an instrument, to the features."""
    if net is None:
        return lambda psi: masked_features(psi, stages.treatments)
    first, moments = net(stages.first)
    head = _ridge_map(with_constant(first, stages.first.present), penalty * jnp.sum(stages.first.present))
    second = with_constant(net(stages.second, moments=moments)[0], stages.second.present)
    return lambda psi: second @ head(masked_features(psi, stages.treatments))


Loss = Callable[[FeatureNet, Array | None], Array]


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
        epochs: passes.
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
    instrument_decay: float = 100.0
    covariate_decay: float = 1.0
    chunk: int = 10

    def __post_init__(self) -> None:
        """Refuse settings that cannot train."""
        for name, value in vars(self).items():
            least = 1 if name.endswith(("iterations", "chunk")) else 1e-9 if name.endswith(("penalty", "rate")) else 0
            if not least <= value < float("inf"):
                raise ConfigError(f"{name} must be finite and at least {least}, got {value}.")

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

    def _optimisers(self) -> tuple[optax.GradientTransformation, ...]:
        decays = (self.treatment_decay, self.instrument_decay, self.covariate_decay)
        return tuple(optax.chain(optax.add_decayed_weights(d), optax.adam(self.learning_rate)) for d in decays)

    def init(self, networks: Networks) -> DeepFeaturesState:
        """Fresh optimisers beside the networks."""
        first, second, third = (o.init(net) for o, net in zip(self._optimisers(), networks, strict=True))
        return DeepFeaturesState(networks, (first, second, third))

    def step(
        self, state: DeepFeaturesState, data: TrainingData, key: Array
    ) -> tuple[DeepFeaturesState, dict[str, Array]]:
        """One epoch."""
        (psi, phi, xi), (adam_psi, adam_phi, adam_xi) = state
        for_psi, for_phi, for_xi = self._optimisers()
        stages = stages_of(data, halves=phi is not None)
        key_phi, key_xi = jax.random.split(key)
        loss1 = jnp.zeros(())
        if phi is not None:
            targets = masked_features(psi, stages.treatments)
            phi, adam_phi, loss1 = _descend(
                lambda net, noise: first_stage_loss(net, targets, stages, self.stage1_penalty, noise),
                for_phi, (phi, adam_phi), self.instrument_iterations, stages.first, key_phi,
            )  # fmt: skip
        expected = expectation(phi, stages, self.stage1_penalty)
        if xi is not None:
            fixed = expected(psi)
            xi, adam_xi, _ = _descend(
                lambda net, noise: second_stage_loss(fixed, net, stages, self.stage2_penalty, noise),
                for_xi, (xi, adam_xi), self.covariate_iterations, stages.covariates, key_xi,
            )  # fmt: skip
        psi, adam_psi, loss2 = _descend(
            lambda net, _: second_stage_loss(expected(net), xi, stages, self.stage2_penalty, None),
            for_psi, (psi, adam_psi), self.treatment_iterations, stages.treatments, key,
        )  # fmt: skip
        metrics = {"loss": loss2 / jnp.sum(stages.second.present), "stage1": loss1 / jnp.sum(stages.first.present)}
        return DeepFeaturesState(Networks(psi, phi, xi), (adam_psi, adam_phi, adam_xi)), metrics


def _descend(loss: Loss, optimiser: Any, start: tuple[FeatureNet, Any], count: int, rows: Inputs, key: Array) -> Any:
    """Network and optimiser state after `count` updates, and the loss before the last."""
    shape = (len(rows.present), start[0].blocks.noise_width)
    size = shape[0] * shape[1]
    # Random numbers of its own for every update would cost more than its matrix products: one block serves an epoch,
    # and each update deals it out to rows and columns by another random shift.
    draws = Draws(key, size + count)
    block, shifts = draws.uniform((size,)), draws.index((count,), jnp.asarray(max(size, 1)))

    def update(i: Array, carry: tuple[FeatureNet, Any, Array]) -> tuple[FeatureNet, Any, Array]:
        net, state, _ = carry
        shifted = jnp.roll(block, shifts[i]).reshape(shape) if size else None
        value, grads = jax.value_and_grad(loss)(net, shifted)
        updates, state = optimiser.update(grads, state, net)
        return optax.apply_updates(net, updates), state, value

    return jax.lax.fori_loop(0, count, update, (*start, jnp.zeros(())))
