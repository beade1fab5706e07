"""DeepIV's two stages as training programs, and the network that both of them train.

Stage one fits p(x | w, v) by maximum likelihood. Stage two fits g through draws of that distribution: the draws enter
through a U-statistic, so that its gradient is unbiased for the gradient of (y - E[g(x, v) | w, v])^2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from bgmiv.covariates import BlockFeatures
from bgmiv.data.batching import bucket_size, pad_rows
from bgmiv.errors import ConfigError
from bgmiv.likelihood import FiniteHead, GaussianMixture, Head
from bgmiv.model.objectives import Row
from bgmiv.nn import Dense
from bgmiv.train.draws import Draws
from bgmiv.train.loop import TrainingData

__all__ = ["CovariateNet", "OutcomeStage", "StageState", "TreatmentStage", "net_values", "pair_loss", "treatment_raws"]


class CovariateNet(eqx.Module):
    """Dense layers with ReLU and dropout over a side input (treatment or instruments) and the covariates' features.

    Args:
        features: what the network sees of a covariate row.
        n_side: width of the side input.
        hidden: hidden widths.
        n_out: outputs.
        dropout: share of hidden units dropped in training.

    Example:
        >>> net = CovariateNet(BlockFeatures((), ()), 1, (8, 4), 2, dropout=0.0, key=jax.random.key(0))
        >>> net(jnp.ones(1), jnp.ones(0), None).shape
        (2,)
    """

    features: BlockFeatures
    layers: tuple[Dense, ...]
    output: Dense
    dropout: float = eqx.field(static=True)

    def __init__(
        self, features: BlockFeatures, n_side: int, hidden: Sequence[int], n_out: int, *, dropout: float, key: Array
    ) -> None:
        """Draw the layers."""
        widths = (n_side + features.width, *hidden)
        *keys, key_output = jax.random.split(key, len(hidden) + 1)
        self.features = features
        self.layers = tuple(Dense(a, b, key=k) for a, b, k in zip(widths[:-1], widths[1:], keys, strict=True))
        self.output = Dense(widths[-1], n_out, key=key_output)
        self.dropout = dropout

    @property
    def noise_width(self) -> int:
        """Uniform numbers a row needs in training."""
        dropped = sum(layer.bias.shape[-1] for layer in self.layers) if self.dropout > 0.0 else 0
        return self.features.noise_width + dropped

    def __call__(self, side: Array, v: Array, noise: Array | None) -> Array:
        """Outputs for one row; `noise` switches dropout on."""
        return self.many(side[None], v, noise)[0]

    def many(self, sides: Array, v: Array, noise: Array | None) -> Array:
        """Outputs `(m, n_out)` for several side inputs of one row, all under the same dropout mask.

        The features are computed once. Masks of their own would let the average over side inputs average the dropout
        away as well.
        """
        used = self.features.noise_width
        context = self.features(v, None if noise is None else noise[:used])
        h = jnp.concatenate([sides, jnp.broadcast_to(context, (len(sides), len(context)))], axis=1)
        for layer in self.layers:
            h = jax.nn.relu(layer(h))
            if noise is not None and self.dropout > 0.0:
                width = h.shape[-1]
                keep = (noise[used : used + width] >= self.dropout) / (1.0 - self.dropout)
                h, used = h * keep, used + width
        return self.output(h)


class StageState(NamedTuple):
    """The network, its optimiser and the epochs done."""

    net: CovariateNet
    optimiser: optax.OptState
    epoch: Array


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


@dataclass(frozen=True)
class _Epochs:
    """Settings of a stage trained by passes over the rows.

    Args:
        epochs: passes; every row is visited once in each, in a new order.
        batch_size: rows a batch.
        learning_rate: Adam's step size.
        schedule: "constant", or "cosine": it falls to zero along a cosine, epoch by epoch.
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

    @property
    def n_steps(self) -> int:
        """Epochs."""
        return self.epochs

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The loss alone."""
        return ("loss",)

    def _optimiser(self) -> optax.GradientTransformation:
        return optax.chain(optax.add_decayed_weights(self.weight_decay), optax.adam(self.learning_rate))

    def init(self, net: CovariateNet) -> StageState:
        """A fresh optimiser beside the network."""
        return StageState(net, self._optimiser().init(net), jnp.zeros((), jnp.int32))

    def _epoch(
        self,
        loss: Callable[[CovariateNet, Row, Array, Draws], Array],
        n_draws: int,
        state: StageState,
        data: TrainingData,
        key: Array,
    ) -> tuple[StageState, dict[str, Array]]:
        """One pass; `loss` gives the mean loss of weighted rows, and reads `n_draws` words a row from the draws."""
        key_order, key_batches = jax.random.split(key)
        n_padded, size, net = len(data.rows.x), self.batch_size, state.net
        # Padding rows sort behind all real ones and so only ever fill the last batch.
        rank = jnp.where(jnp.arange(n_padded) < data.n, jax.random.uniform(key_order, (n_padded,)), jnp.inf)
        order = jnp.argsort(rank)
        n_batches = -(-data.n // size)
        rate = 1.0
        if self.schedule == "cosine":
            rate = 0.5 * (1.0 + jnp.cos(jnp.pi * state.epoch / self.epochs))

        def body(i: Array, carry: tuple[CovariateNet, optax.OptState, Array]) -> tuple[Any, Any, Array]:
            net, optimiser, total = carry
            index = i * size + jnp.arange(size)
            rows = jax.tree.map(lambda leaf: leaf[order[index]], data.rows)
            real = index < data.n
            draws = Draws(jax.random.fold_in(key_batches, i), size * n_draws)
            value, grads = jax.value_and_grad(loss)(net, rows, real / jnp.sum(real), draws)
            updates, optimiser = self._optimiser().update(grads, optimiser, net)
            updates = jax.tree.map(lambda update: rate * update, updates)
            return optax.apply_updates(net, updates), optimiser, total + value

        net, optimiser, total = jax.lax.fori_loop(0, n_batches, body, (net, state.optimiser, jnp.zeros(())))
        return StageState(net, optimiser, state.epoch + 1), {"loss": total / n_batches}


@dataclass(frozen=True)
class TreatmentStage(_Epochs):
    """Stage one: the treatment's distribution given instruments and covariates, by maximum likelihood.

    Args:
        head: the treatment's distribution.
    """

    head: Head = GaussianMixture()

    @property
    def name(self) -> str:
        """The phase's name."""
        return "treatment stage"

    def step(self, state: StageState, data: TrainingData, key: Array) -> tuple[StageState, dict[str, Array]]:
        """One epoch."""
        width = state.net.noise_width

        def loss(net: CovariateNet, rows: Row, weights: Array, draws: Draws) -> Array:
            noise = draws.uniform((self.batch_size, width))
            raw = jax.vmap(net)(rows.w, rows.v, noise)
            return -jnp.sum(weights * jax.vmap(self.head.log_prob)(raw, rows.x[:, None])[:, 0])

        return self._epoch(loss, width, state, data, key)


@dataclass(frozen=True)
class OutcomeStage(_Epochs):
    """Stage two: the structural function g(x, v), trained through the treatment's distribution.

    The rows' `w` holds the treatment head's raw parameters, computed once by `treatment_raws`: stage one is over, so
    they do not change. A discrete treatment is summed over exactly. Without a head g is a plain regression on the
    observed treatment.

    Args:
        head: the treatment's distribution, or None for the no-IV twin.
        n_samples: draws a row and step.
    """

    head: Head | None = GaussianMixture()
    n_samples: int = 2

    def __post_init__(self) -> None:
        """Refuse settings that cannot train."""
        # Zero-argument super() does not work in every dataclass form; naming the base is plain.
        _Epochs.__post_init__(self)
        if self.n_samples < 2:
            raise ConfigError(f"n_samples must be at least 2 for an unbiased gradient, got {self.n_samples}.")

    @property
    def name(self) -> str:
        """The phase's name."""
        return "outcome stage"

    def step(self, state: StageState, data: TrainingData, key: Array) -> tuple[StageState, dict[str, Array]]:
        """One epoch."""
        width = state.net.noise_width
        n_uniforms = 2 * self.n_samples if isinstance(self.head, GaussianMixture) else 0

        def loss(net: CovariateNet, rows: Row, weights: Array, draws: Draws) -> Array:
            noise = draws.uniform((self.batch_size, width))
            uniforms = draws.uniform((self.batch_size, n_uniforms))
            return jnp.sum(weights * jax.vmap(self.row_loss, in_axes=(None, 0, 0, 0))(net, rows, uniforms, noise))

        return self._epoch(loss, width + n_uniforms, state, data, key)

    def row_loss(self, net: CovariateNet, row: Row, uniforms: Array, noise: Array | None) -> Array:
        """An estimate of (y - E[g(x, v) | w, v])^2 for one row, with an unbiased gradient.

        Args:
            net: g.
            row: the observation; `w` holds the treatment head's raw parameters.
            uniforms: `(2 * n_samples,)` numbers that the draws are made from.
            noise: dropout's numbers, or None.
        """
        if self.head is None:
            return (row.y - net(row.x[None], row.v, noise)[0]) ** 2
        if isinstance(self.head, FiniteHead):
            support = jnp.asarray(self.head.support, row.y.dtype)
            values = net.many(support[:, None], row.v, noise)[:, 0]
            return (row.y - jnp.sum(jnp.exp(self.head.log_weights(row.w)) * values)) ** 2
        if not isinstance(self.head, GaussianMixture):
            raise ConfigError(f"DeepIV draws from a Gaussian mixture or sums over a finite head, got {self.head!r}.")
        x = self.head.at_uniforms(row.w, uniforms.reshape(self.n_samples, 2))
        return pair_loss(row.y - net.many(x[:, None], row.v, noise)[:, 0])


@jax.jit
def _values(net: CovariateNet, sides: Array, v: Array) -> Array:
    return jax.vmap(net, in_axes=(0, 0, None))(sides, v, None)


def treatment_raws(net: CovariateNet, data: TrainingData) -> TrainingData:
    """The same rows with the treatment head's raw parameters in place of the instruments."""
    return data._replace(rows=data.rows._replace(w=_values(net, data.rows.w, data.rows.v)))


def net_values(net: CovariateNet, sides: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The network's outputs `(n, n_out)`, in blocks so that memory stays bounded."""
    n = len(sides)
    size = max(64, bucket_size(min(n, 4096)))
    parts = []
    for start in range(0, n, size):
        stop = min(start + size, n)
        block = (jnp.asarray(pad_rows(values[start:stop], size)) for values in (sides, v))
        parts.append(np.asarray(_values(net, *block))[: stop - start])
    return np.concatenate(parts)
