"""The network of the methods that regress on covariates directly, and how it is evaluated on many rows."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bgmiv.covariates import BlockFeatures, rows_at_once
from bgmiv.data.batching import bucket_size, pad_rows
from bgmiv.data.scaling import ScaledData
from bgmiv.nn import Dense

__all__ = ["CovariateNet", "net_values", "split_rows"]


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


def split_rows(rows: ScaledData, share: float, key: Array) -> tuple[ScaledData, ScaledData | None]:
    """Training rows and held-out rows, at random; at least one of each, or none held out if the share is 0."""
    n = len(rows.x)
    if share == 0.0 or n < 2:
        return rows, None
    n_held = min(max(round(share * n), 1), n - 1)
    order = np.asarray(jax.random.permutation(key, n))
    # In their own order: training shuffles them anyway, and memory is read forwards.
    parts = np.sort(order[n_held:]), np.sort(order[:n_held])
    train, held_out = (ScaledData(*(values[part] for values in rows)) for part in parts)
    return train, held_out


@jax.jit
def _values(net: CovariateNet, sides: Array, v: Array) -> Array:
    return jax.vmap(net, in_axes=(0, 0, None))(sides, v, None)


def net_values(net: CovariateNet, sides: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The network's outputs `(n, n_out)` outside training, in blocks so that memory stays bounded."""
    n = len(sides)
    most = rows_at_once(net.features.parts, 4096)
    size = max(min(64, most), bucket_size(min(n, most)))
    parts = []
    for start in range(0, n, size):
        stop = min(start + size, n)
        block = (jnp.asarray(pad_rows(values[start:stop], size)) for values in (sides, v))
        parts.append(np.asarray(_values(net, *block))[: stop - start])
    return np.concatenate(parts)
