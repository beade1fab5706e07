r"""The two stages of deep feature IV for given features: their rows, their losses, and their heads in closed form.

Each loss is the minimum of a ridge problem over its head, so its gradient is the one at the minimising head held fixed
(the envelope theorem): the only solve that is differentiated is the linear map from $\psi$ to its projection.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import cho_factor, cho_solve
from numpy.typing import NDArray

from bgmiv.baselines.networks import FeatureNet, Inputs, Moments
from bgmiv.data.folds import row_folds
from bgmiv.data.scaling import ScaledData
from bgmiv.training import Row, TrainingData, bucket_size, pad_rows

__all__ = [
    "Head", "Networks", "Stages", "expectation", "first_stage_loss", "held_out_loss", "masked_features",
    "ridge_loss", "ridge_map", "second_stage_loss", "solve_head", "stage_data", "stages_of",
]  # fmt: skip


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


def stage_data(
    scaled: ScaledData, key: Array, *, halves: bool, groups: NDArray[np.integer] | None = None
) -> TrainingData:
    """Rows in random order, padded; with `halves`, stage 1 (the larger half) is in the first half of them.

    Halves hold whole groups, if there are two or more. The second one is the data's fold: stage 1 leaves it out.
    """
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())
    order = rng.permutation(len(scaled.x))
    cut = (len(order) + 1) // 2
    parts = [order[:cut], order[cut:]] if halves else [order]
    if halves and groups is not None and len(np.unique(groups)) > 1:
        half = row_folds(len(order), 2, rng, groups)[order]
        parts = sorted([order[half == 0], order[half == 1]], key=len, reverse=True)
    padded = bucket_size(len(parts[0]), 8)
    columns = (
        jax.device_put(np.concatenate([pad_rows(values[part], padded) for part in parts]))
        for values in (scaled.x, scaled.y, scaled.v, scaled.w)
    )
    fold = (padded, len(parts[1])) if halves else (0, 0)
    return TrainingData(Row(*columns), *(jax.device_put(np.int32(number)) for number in (len(order), *fold)))


def stages_of(data: TrainingData, *, halves: bool) -> Stages:
    """The stages' rows, from data laid out by `stage_data`; without halves both stages hold all rows."""
    size = len(data.rows.x) // (2 if halves else 1)
    n_first, n_second = (data.n_training, data.fold_size) if halves else (data.n, data.n)
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
def solve_head(networks: Networks, data: TrainingData, penalties: tuple[float, float]) -> Head:
    """Stage 2's head for trained networks; the penalties of both stages are a row's."""
    psi, phi, xi = networks
    stages = stages_of(data, halves=phi is not None)
    expected = expectation(phi, stages, penalties[0])(psi)
    penalty = penalties[1] * jnp.sum(stages.second.present)
    weights = ridge_map(_second_stage_features(xi, None, expected, stages), penalty)(stages.y)
    moments = () if xi is None else xi(stages.covariates)[1]
    return Head(weights.reshape(expected.shape[1] + 1, -1), psi(stages.treatments)[1], moments)


def held_out_loss(
    networks: Networks, data: TrainingData, held_out: TrainingData, penalties: tuple[float, float]
) -> Array:
    """The mean square of y - E[g(x, v) | w, v] on held-out rows, by stages solved on the rows of `data`."""
    psi, phi, xi = networks
    head, own = solve_head(networks, data, penalties), stages_of(held_out, halves=False)
    if phi is None:
        expected = psi(own.treatments, moments=head.treatment)[0]
    else:
        elsewhere = stages_of(data, halves=True)._replace(second=own.second)
        expected = expectation(phi, elsewhere, penalties[0])(psi)
    features = _second_stage_features(xi, None, expected, own, head.covariate)
    # Padding has neither features nor an outcome.
    return jnp.sum((own.y[:, 0] - features @ head.weights.ravel()) ** 2) / held_out.n
