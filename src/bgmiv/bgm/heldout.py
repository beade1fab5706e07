"""What a trained model says about rows it was not trained on, and the evidence on a fit that is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import log
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bgmiv.bgm.model import BGMIVModel, encode_rows, iv_means, square_errors
from bgmiv.data.ivdata import IVData
from bgmiv.data.scaling import ScaledData, Scaler
from bgmiv.diagnostics.held_out import beside_simple, weights_at
from bgmiv.diagnostics.moments import variance_of
from bgmiv.fitted import FitEvidence
from bgmiv.integrate import IntegrationRule, rule_for
from bgmiv.likelihood import Gaussian, Levels
from bgmiv.sieve.columns import Learned
from bgmiv.training import Row, TrainingData

__all__ = ["MAX_EVIDENCE_ROWS", "HeldOutLosses", "evaluate_fold", "gather_evidence", "learned_means", "outcome_loss"]

MAX_EVIDENCE_ROWS = 1500
"""Held-out rows of all members together on which the structural function is judged."""

_MAX_EVALUATED = 2048
_PIECE = 4096
# A variance within this factor of its floor is one that the floor alone keeps up.
_NEAR_FLOOR = 100.0
# Instruments of other rows over which the treatment's density is averaged.
_AVERAGED_OVER = 16


class HeldOutLosses(NamedTuple):
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


def outcome_loss(model: BGMIVModel, integration: IntegrationRule, data: TrainingData) -> Array:
    """The mean square of y - E[y | w, z] at the encoder's latents of the fold's rows, 2048 of them at most."""
    rows, weights = data.held_out(min(len(data.rows.x), _MAX_EVALUATED))
    z = jax.vmap(model.covariates.encode)(rows.v)
    return _outcome_loss(model, integration, rows, weights, jax.vmap(model.treatment_raw)(rows.w, z), z)


def _outcome_loss(
    model: BGMIVModel, integration: IntegrationRule, rows: Row, weights: Array, raw_x: Array, z: Array
) -> Array:
    # The same key every time: a rule with randomness is then compared with itself.
    y_hat = iv_means(model, rule_for(integration, model.treatment_head), rows, raw_x, z, jax.random.key(0))
    return jnp.sum(weights * square_errors(model, rows.y, y_hat))


@partial(jax.jit, static_argnames="integration")
def evaluate_fold(model: BGMIVModel, integration: IntegrationRule, data: TrainingData) -> HeldOutLosses:
    """The losses on the fold of `data`, 2048 rows of it at most, at the encoder's latents."""
    rows, weights = data.held_out(min(len(data.rows.x), _MAX_EVALUATED))
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
    return HeldOutLosses(
        outcome_loss=_outcome_loss(model, integration, rows, weights, raw_x, z),
        outcome_variance=jnp.sum(weights[:, None] * (events - y_mean) ** 2),
        treatment_score=jnp.sum(weights * informed),
        first_stage_gain=jnp.sum(weights * (informed - averaged)),
        near_floor=near_floor,
        latent_spread=jnp.mean(jnp.sqrt(jnp.sum(weights[:, None] * (z - centre) ** 2, axis=0))),
    )


def learned_means(
    models: Sequence[BGMIVModel],
    integration: IntegrationRule,
    rows: ScaledData,
    scaler: Scaler,
    left_out: Sequence[NDArray[np.int64]],
) -> Learned:
    """What the models say of each row, in units of the data; `left_out` has the rows that each was not trained on."""
    values, treatments = [], []
    for model in models:
        outcome, treatment = _all_means(model, integration, rows)
        values.append(scaler.outcome.inverse(outcome))
        treatments.append(scaler.treatment.inverse(treatment))
    own, first = np.full(len(rows.x), np.nan), np.full(treatments[0].shape, np.nan)
    for i, positions in enumerate(left_out):
        own[positions], first[positions] = values[i][positions], treatments[i][positions]
    return Learned(own, np.mean(values, axis=0), first)


def _all_means(
    model: BGMIVModel, integration: IntegrationRule, rows: ScaledData
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    n = len(rows.x)
    size = min(n, _PIECE)
    outcome, treatment = np.empty(n), np.empty((n, max(model.treatment_head.raw_dim - 1, 1)))
    for start in range(0, n, size):
        # The last piece overlaps the one before, so that all have one size and one program.
        piece = slice(min(start, n - size), min(start, n - size) + size)
        part = Row(*(jax.device_put(values[piece]) for values in (rows.x, rows.y, rows.v, rows.w)))
        outcome[piece], treatment[piece] = _piece_means(model, integration, part)
    return outcome, treatment


@partial(jax.jit, static_argnames="integration")
def _piece_means(model: BGMIVModel, integration: IntegrationRule, rows: Row) -> tuple[Array, Array]:
    z, head = encode_rows(model, rows.v), model.treatment_head
    raw_x = jax.vmap(model.treatment_raw)(rows.w, z)
    outcome = iv_means(model, rule_for(integration, head), rows, raw_x, z, jax.random.key(0))
    treatment = jax.nn.softmax(raw_x)[:, 1:] if isinstance(head, Levels) else jax.vmap(head.mean)(raw_x)
    return outcome, treatment


def gather_evidence(
    data: IVData,
    rows: NDArray[np.int64],
    owner: NDArray[np.int64],
    members: NDArray[np.float64],
    losses: Sequence[tuple[HeldOutLosses, HeldOutLosses]],
    *,
    uses_instrument: bool = True,
    networks_alone: bool = True,
) -> FitEvidence:
    """The evidence of held-out rows on a fit; averages over rows are weighted by the data's weights.

    `members` has g of every member there, `(members, len(rows))`, in units of the outcome; for an outcome of K levels
    `(members, len(rows), K)` probabilities, of which everything is summed over indicators. `losses` has each member's
    on its held-out rows and on rows it was trained on. Unless g is that of `networks_alone`, its coefficients are from
    all rows, and its moment is left to those that hold rows out of them (`FittedBGMIV.held_out_predictions`).
    """
    n_members = len(members)
    own = members[owner, np.arange(len(rows))]
    variance = sum(variance_of(part.outcome, data.weights) for part in data.outcome_parts())
    spread = max(variance**0.5, np.finfo(float).tiny)
    away, home = (_means([pair[i] for pair in losses]) for i in (0, 1))
    explained = 1.0 - away.outcome_loss / max(away.outcome_variance, np.finfo(float).tiny)
    linear = flexible = gain = None
    risks: tuple[float | None, ...] = (None, None, None)
    if uses_instrument:
        (linear, flexible, *alone), found = beside_simple(data, rows, own if networks_alone else None)
        gain = max(linear, flexible) - max(alone) if data.schema.blocks else None
        risks = risks if found is None else found
    return FitEvidence(
        n_held_out=len(rows),
        outcome_explained=explained,
        linear_explained=linear,
        flexible_explained=flexible,
        covariates_gain=gain,
        moment_risk=risks[0],
        linear_moment_risk=risks[1],
        treatment_moment_risk=risks[2],
        outcome_gap=away.outcome_loss / max(home.outcome_loss, np.finfo(float).tiny),
        treatment_gap=home.treatment_score - away.treatment_score,
        first_stage_gain=away.first_stage_gain if uses_instrument else None,
        disagreement=_disagreement(members, weights_at(data, rows)) / spread if n_members > 1 else None,
        near_floor=away.near_floor,
        # Without covariates there is nothing for latents to carry.
        latent_spread=away.latent_spread if data.schema.blocks else None,
        n_members=n_members,
        discrete_outcome=data.schema.outcome.discrete,
    )


def _disagreement(members: NDArray[np.float64], weights: NDArray[np.floating] | None) -> float:
    """Root mean square difference of members from their mean, from `(members, m)` or `(members, m, K)`."""
    variances = np.sum(np.var(members, axis=0).reshape(members.shape[1], -1), axis=1)
    return float(np.sqrt(np.average(variances, weights=weights)))


def _means(losses: Sequence[HeldOutLosses]) -> HeldOutLosses:
    return HeldOutLosses(*(float(np.mean(values)) for values in zip(*losses, strict=True)))
