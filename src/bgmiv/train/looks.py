"""What a trained model says about rows, most of all rows it was not trained on."""

from __future__ import annotations

from functools import partial
from math import log
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from bgmiv.integrate import IntegrationRule, rule_for
from bgmiv.likelihood import Categorical, FiniteHead, Gaussian, Head
from bgmiv.model.model import BGMIVModel
from bgmiv.model.objectives import Row, outcome_raws
from bgmiv.train.loop import TrainingData

__all__ = ["RowsLook", "averaged_means", "iv_means", "look_at_fold", "outcome_loss", "square_errors"]

_MOST_LOOKED_AT = 2048
# A variance within this factor of its floor is one that the floor alone keeps up.
_NEAR_FLOOR = 100.0
# Instruments of other rows over which the treatment's density is averaged.
_AVERAGED_OVER = 16


class RowsLook(NamedTuple):
    """Means over rows, in units of the scaled variables; arrays on the way, plain numbers once kept.

    Attributes:
        outcome_loss: of (y - E[y | w, z])^2, summed over the indicators of an outcome of several levels.
        outcome_variance: of y, likewise.
        treatment_score: log p(x | w, z).
        first_stage_gain: by how much that exceeds log p(x | z), the instruments averaged out over those of other rows.
        near_floor: share of rows whose treatment variance is kept up by its floor alone.
        latent_spread: of the standard deviations of the latent coordinates.
    """

    outcome_loss: Any
    outcome_variance: Any
    treatment_score: Any
    first_stage_gain: Any
    near_floor: Any
    latent_spread: Any


def iv_means(model: BGMIVModel, rule: IntegrationRule, rows: Row, raw_x: Array, z: Array, key: Array) -> Array:
    """The moment E[y | w, z] of each row under the model: `(n,)`, or `(n, K)` for an outcome of K levels."""
    # The treatment's spread is learned from the treatment alone: the outcome would widen or narrow it to fit better.
    nodes, log_weights = jax.vmap(lambda raw, x, k: rule.nodes(model.treatment_head, raw, x, k))(
        _fixed_spread(model.treatment_head, raw_x), rows.x, jax.random.split(key, len(rows.x))
    )
    raw_y = jax.vmap(outcome_raws, in_axes=(None, 0, 0))(model, nodes, z)
    return averaged_means(model, log_weights, raw_y)


def averaged_means(model: BGMIVModel, log_weights: Array, raw_y: Array) -> Array:
    """The outcome's means of each row, averaged over its nodes: `(n,)`, or `(n, K)` for an outcome of K levels."""
    means, weights = jax.vmap(jax.vmap(model.outcome_head.mean))(raw_y), jnp.exp(log_weights)
    if isinstance(model.outcome_head, Categorical):
        return jnp.sum(weights[..., None] * means, axis=1)
    return jnp.sum(weights * means[..., 0], axis=1)


def square_errors(model: BGMIVModel, y: Array, y_hat: Array) -> Array:
    """(y - E[y | w, z])^2 of each row, `(n,)`; summed over the levels' indicators where the outcome has levels."""
    if isinstance(model.outcome_head, Categorical):
        return jnp.sum((jax.vmap(model.outcome_event)(y) - y_hat) ** 2, axis=1)
    return (y - y_hat) ** 2


def _fixed_spread(head: Head, raw: Array) -> Array:
    """Raw treatment parameters through which gradients reach only the mean; a discrete treatment has no spread."""
    if isinstance(head, FiniteHead):
        return raw
    return jnp.concatenate([raw[:, :1], jax.lax.stop_gradient(raw[:, 1:])], axis=1)


def outcome_loss(model: BGMIVModel, integration: IntegrationRule, data: TrainingData) -> Array:
    """The mean square of y - E[y | w, z] at the encoder's latents of the fold's rows, 2048 of them at most."""
    rows, weights = data.held_out(min(len(data.rows.x), _MOST_LOOKED_AT))
    z = jax.vmap(model.covariates.encode)(rows.v)
    return _outcome_loss(model, integration, rows, weights, jax.vmap(model.treatment_raw)(rows.w, z), z)


def _outcome_loss(
    model: BGMIVModel, integration: IntegrationRule, rows: Row, weights: Array, raw_x: Array, z: Array
) -> Array:
    # The same key at every look: a rule with randomness is then compared with itself.
    y_hat = iv_means(model, rule_for(integration, model.treatment_head), rows, raw_x, z, jax.random.key(0))
    return jnp.sum(weights * square_errors(model, rows.y, y_hat))


@partial(jax.jit, static_argnames="integration")
def look_at_fold(model: BGMIVModel, integration: IntegrationRule, data: TrainingData) -> RowsLook:
    """A look at the fold of `data`, 2048 rows of it at most, at the encoder's latents."""
    rows, weights = data.held_out(min(len(data.rows.x), _MOST_LOOKED_AT))
    z = jax.vmap(model.covariates.encode)(rows.v)
    raw_x = jax.vmap(model.treatment_raw)(rows.w, z)
    centre = jnp.sum(weights[:, None] * z, axis=0)
    events = jax.vmap(model.outcome_event)(rows.y)
    y_mean = jnp.sum(weights[:, None] * events, axis=0)

    def scores(w: Array) -> Array:
        raw = jax.vmap(model.treatment_raw)(w, z)
        return jax.vmap(model.treatment_head.log_prob)(raw, rows.x[:, None])[:, 0]

    # Rows are in random order, so that turning the fold gives every row the instruments of an unrelated one.
    size = jnp.minimum(data.fold_size, len(rows.x))
    turns = size * jnp.arange(1, _AVERAGED_OVER + 1) // (_AVERAGED_OVER + 1)
    others = (jnp.arange(len(rows.x)) + turns[:, None]) % jnp.maximum(size, 1)
    averaged = jax.nn.logsumexp(jax.vmap(lambda index: scores(rows.w[index]))(others), axis=0) - log(_AVERAGED_OVER)
    informed = scores(rows.w)
    near_floor = jnp.zeros(())
    if isinstance(model.treatment_head, Gaussian):
        variances = jax.vmap(model.treatment_head.variance)(raw_x)[:, 0]
        near_floor = jnp.sum(weights * (variances < _NEAR_FLOOR * model.treatment_head.floor))
    return RowsLook(
        outcome_loss=_outcome_loss(model, integration, rows, weights, raw_x, z),
        outcome_variance=jnp.sum(weights[:, None] * (events - y_mean) ** 2),
        treatment_score=jnp.sum(weights * informed),
        first_stage_gain=jnp.sum(weights * (informed - averaged)),
        near_floor=near_floor,
        latent_spread=jnp.mean(jnp.sqrt(jnp.sum(weights[:, None] * (z - centre) ** 2, axis=0))),
    )
