"""What trained models say of rows they were not trained on: losses, means, residuals, and the evidence on a fit.

Networks integrate the outcome over a normal treatment. A residual that is skewed or has two modes makes that integral
wrong where g bends by more than a parabola over the residual's spread: nodes at the residuals' quantiles replace it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import log
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from scipy.stats import gaussian_kde, norm

from bgmiv.bgm.config import BGMIVConfig, JointTraining
from bgmiv.bgm.last_stage import LastStage
from bgmiv.bgm.latents import latents_of, structural_means
from bgmiv.bgm.model import BGMIVModel, encode_rows, iv_means, square_errors
from bgmiv.data.ivdata import IVData
from bgmiv.data.scaling import ScaledData, Scaler
from bgmiv.diagnostics.held_out import beside_simple, held_out_rows, weights_at
from bgmiv.diagnostics.moments import variance_of
from bgmiv.fitted import FitEvidence
from bgmiv.integrate import IntegrationRule, ResidualNodes, residual_nodes, rule_for
from bgmiv.likelihood import Gaussian, Levels
from bgmiv.sieve.fit import Learned
from bgmiv.training import Row, TrainingData, in_blocks, padded_size

if TYPE_CHECKING:
    from bgmiv.bgm.members import Member, TrainingRows

__all__ = [
    "MAX_EVIDENCE_ROWS", "HeldOutLosses", "LeftOutResiduals", "density_gain", "evaluate_fold", "gather_evidence",
    "learned_means", "left_out_residuals", "network_evidence", "nodes_unless_normal", "residual_rule",
]  # fmt: skip

MAX_EVIDENCE_ROWS = 1500
"""Held-out rows of all members together on which the structural function is judged."""

_MAX_EVALUATED = 2048
# A variance within this factor of its floor is one that the floor alone keeps up.
_NEAR_FLOOR = 100.0
# Instruments of other rows over which the treatment's density is averaged.
_AVERAGED_OVER = 16
# Rows whose residuals are looked at.
_MAX_RESIDUALS = 5000
# Nats a row. An exponential distribution is 0.42 from the normal one, a Laplace distribution 0.07.
_MIN_GAIN = 0.1
# A normal part of the estimated density bounds what a row in its tails can cost.
_NORMAL_PART = 0.1

Floats = NDArray[np.float64]


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


@partial(jax.jit, static_argnames="integration")
def evaluate_fold(model: BGMIVModel, integration: IntegrationRule, data: TrainingData) -> HeldOutLosses:
    """The losses on the fold of `data`, 2048 rows of it at most, at the encoder's latents."""
    rows, weights = data.held_out(min(len(data.rows.x), _MAX_EVALUATED))
    z = jax.vmap(model.covariates.encode)(rows.v)
    raw_x = jax.vmap(model.treatment_raw)(rows.w, z)
    centre = jnp.sum(weights[:, None] * z, axis=0)
    events = jax.vmap(model.outcome_event)(rows.y)
    y_mean = jnp.sum(weights[:, None] * events, axis=0)
    # The same key every time: a rule with randomness is then compared with itself.
    y_hat = iv_means(model, rule_for(integration, model.treatment_head), rows, raw_x, z, jax.random.key(0))

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
        outcome_loss=jnp.sum(weights * square_errors(model, rows.y, y_hat)),
        outcome_variance=jnp.sum(weights[:, None] * (events - y_mean) ** 2),
        treatment_score=jnp.sum(weights * informed),
        first_stage_gain=jnp.sum(weights * (informed - averaged)),
        near_floor=near_floor,
        latent_spread=jnp.mean(jnp.sqrt(jnp.sum(weights[:, None] * (z - centre) ** 2, axis=0))),
    )


def learned_means(members: Sequence[Member], integration: IntegrationRule, rows: ScaledData, scaler: Scaler) -> Learned:
    """What the networks say of each row, in units of the data."""
    size = padded_size(len(rows.x))
    means = np.stack([in_blocks(partial(_means_of, one.model, integration), tuple(rows), size) for one in members])
    left_out = np.full(means.shape[1:], np.nan)
    for member, values in zip(members, means, strict=True):
        left_out[member.held_out_rows] = values[member.held_out_rows]
    outcome = scaler.outcome.inverse
    return Learned(
        own=outcome(left_out[:, 0]),
        averaged=outcome(means[..., 0]).mean(axis=0),
        treatment=scaler.treatment.inverse(left_out[:, 1:]),
    )


@partial(jax.jit, static_argnames="integration")
def _means_of(model: BGMIVModel, integration: IntegrationRule, *columns: Array) -> Array:
    """The means of the outcome and, behind it, of the treatment's columns, `(n, 1 + q)`."""
    rows, head = Row(*columns), model.treatment_head
    z = encode_rows(model, rows.v)
    raw_x = jax.vmap(model.treatment_raw)(rows.w, z)
    outcome = iv_means(model, rule_for(integration, head), rows, raw_x, z, jax.random.key(0))
    treatment = jax.nn.softmax(raw_x)[:, 1:] if isinstance(head, Levels) else jax.vmap(head.mean)(raw_x)
    return jnp.column_stack([outcome, treatment])


def network_evidence(
    config: BGMIVConfig,
    data: IVData,
    rows: TrainingRows,
    members: Sequence[Member],
    last: LastStage | None,
    left: float | None,
) -> FitEvidence:
    """What the training of networks, and held-out rows, show about a fit.

    Args:
        config: of the fit.
        data: its rows.
        rows: the same as training saw them.
        members: those that did not fail.
        last: the last stage, if there is one.
        left: what may be left for networks, where that was asked.
    """
    evidence = FitEvidence(n_members=len(members))
    pairs = [(member.held_out, member.training) for member in members if member.held_out and member.training]
    if pairs:
        positions, owner = held_out_rows([member.held_out_rows for member in members], MAX_EVIDENCE_ROWS)
        part = rows.at(positions)
        each = [structural_means(m.model, part.x, latents_of(m.model, part.v, config.latents)) for m in members]
        # What the last stage adds to the networks is the same for all members.
        values = rows.scaler.outcome.inverse(np.stack(each)) * (1.0 if last is None else last.function.weight)
        options = {"uses_instrument": config.use_instrument, "networks_alone": last is None}
        evidence = gather_evidence(rows.data, positions, owner, values, pairs, **options)
    evidence = replace(
        evidence,
        n_steps=min(member.steps_of(config.initial.name) for member in members) or None,
        n_failed=config.ensemble.members - len(members),
        networks="trained",
        left_for_networks=left,
    )
    return evidence if last is None else last.added_to(evidence, config, data)


def gather_evidence(
    data: IVData,
    rows: NDArray[np.int64],
    owner: NDArray[np.int64],
    members: Floats,
    losses: Sequence[tuple[HeldOutLosses, HeldOutLosses]],
    *,
    uses_instrument: bool = True,
    networks_alone: bool = True,
) -> FitEvidence:
    """The evidence of held-out rows; averages are weighted by the data's weights.

    `members` has g of every member there, `(members, len(rows))`, in units of the outcome; for an outcome of K levels
    `(members, len(rows), K)` probabilities, of which everything is summed over indicators. `losses` has each member's
    on its held-out rows and on rows it was trained on. Unless g is that of `networks_alone`, its coefficients are from
    all rows, and its moment is left to those that hold rows out of them (`FittedBGMIV.held_out_predictions`).
    """
    n_members = len(members)
    own = members[owner, np.arange(len(rows))]
    variance = sum(variance_of(part.outcome, data.weights) for part in data.outcome_parts())
    spread = max(variance**0.5, np.finfo(float).tiny)
    held_out, in_sample = (HeldOutLosses(*np.mean(part, axis=0).tolist()) for part in zip(*losses, strict=True))
    explained = 1.0 - held_out.outcome_loss / max(held_out.outcome_variance, np.finfo(float).tiny)
    linear = flexible = gain = None
    risks: tuple[float | None, ...] = (None, None, None)
    if uses_instrument:
        (linear, flexible, *alone), comparison = beside_simple(data, rows, own if networks_alone else None)
        gain = max(linear, flexible) - max(alone) if data.schema.blocks else None
        risks = risks if comparison is None else comparison
    return FitEvidence(
        n_held_out=len(rows),
        outcome_explained=explained,
        linear_explained=linear,
        flexible_explained=flexible,
        covariates_gain=gain,
        moment_risk=risks[0],
        linear_moment_risk=risks[1],
        treatment_moment_risk=risks[2],
        outcome_gap=held_out.outcome_loss / max(in_sample.outcome_loss, np.finfo(float).tiny),
        treatment_gap=in_sample.treatment_score - held_out.treatment_score,
        first_stage_gain=held_out.first_stage_gain if uses_instrument else None,
        disagreement=_disagreement(members, weights_at(data, rows)) / spread if n_members > 1 else None,
        near_floor=held_out.near_floor,
        # Without covariates there is nothing for latents to carry.
        latent_spread=held_out.latent_spread if data.schema.blocks else None,
        n_members=n_members,
        discrete_outcome=data.schema.outcome.discrete,
    )


def _disagreement(members: Floats, weights: NDArray[np.floating] | None) -> float:
    """Root mean square difference of members from their mean, from `(members, m)` or `(members, m, K)`."""
    variances = np.sum(np.var(members, axis=0).reshape(members.shape[1], -1), axis=1)
    return float(np.sqrt(np.average(variances, weights=weights)))


class LeftOutResiduals(NamedTuple):
    """Standardised residuals of held-out rows.

    Attributes:
        values: (x - E[x | w, z]) / sd[x | w, z] by the member that left the row out.
        member: which that is.
        weights: of the rows.
    """

    values: Floats
    member: NDArray[np.int64]
    weights: Floats


@jax.jit
def _standardised(model: BGMIVModel, v: Array, w: Array, x: Array) -> Array:
    head = model.treatment_head
    assert isinstance(head, Gaussian)
    raw = jax.vmap(model.treatment_raw)(w, encode_rows(model, v))
    spread = jax.vmap(head.variance)(raw)[:, 0] ** 0.5
    return (x - jax.vmap(head.mean)(raw)[:, 0]) / spread


def left_out_residuals(
    members: Sequence[Member], rows: ScaledData, weights: NDArray[np.floating] | None = None
) -> LeftOutResiduals:
    """The residuals of up to 5000 of the rows that members were not trained on."""
    positions, owner = held_out_rows([member.held_out_rows for member in members], _MAX_RESIDUALS)
    values = np.empty(len(positions))
    for i, member in enumerate(members):
        own = positions[owner == i]
        part = [columns[own] for columns in (rows.v, rows.w, rows.x)]
        values[owner == i] = in_blocks(partial(_standardised, member.model), part, padded_size(len(own)))
    counted = np.ones(len(positions)) if weights is None else np.asarray(weights, np.float64)[positions]
    return LeftOutResiduals(values, owner, counted)


def density_gain(residuals: LeftOutResiduals) -> float:
    """By how much the residuals' estimated density exceeds the normal one, in mean log density of held-out rows.

    Both are fitted to the residuals of all members but one and evaluated at those of the one. The density is a kernel
    estimate, nine parts of ten, and the normal one.
    """
    gains = np.zeros(len(residuals.values))
    for member in np.unique(residuals.member):
        own = residuals.member == member
        other, weights = residuals.values[~own], residuals.weights[~own]
        centre = np.average(other, weights=weights)
        spread = np.sqrt(np.average((other - centre) ** 2, weights=weights))
        normal = norm.pdf(residuals.values[own], centre, spread)
        density = gaussian_kde(other, weights=weights)(residuals.values[own])
        gains[own] = np.log((1.0 - _NORMAL_PART) * density / np.maximum(normal, 1e-300) + _NORMAL_PART)
    return float(np.average(gains, weights=residuals.weights))


def nodes_unless_normal(residuals: LeftOutResiduals, n_nodes: int) -> ResidualNodes | None:
    """Integration nodes at the residuals' quantiles; None if the normal density describes them nearly as well."""
    if len(np.unique(residuals.member)) < 2 or density_gain(residuals) < _MIN_GAIN:
        return None
    return residual_nodes(residuals.values, n_nodes, residuals.weights)


def residual_rule(config: BGMIVConfig, rows: TrainingRows, members: Sequence[Member]) -> ResidualNodes | None:
    """Nodes for a treatment that is not normal; None where it is, or where the config asks for none."""
    n_nodes = config.initial.residual_nodes if isinstance(config.initial, JointTraining) else 0
    if not n_nodes or not config.use_instrument or not isinstance(members[0].model.treatment_head, Gaussian):
        return None
    return nodes_unless_normal(left_out_residuals(members, rows.scaled, rows.data.weights), n_nodes)
