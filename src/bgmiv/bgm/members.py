"""Members: the same model trained several times on one data set, each time without some of its rows.

Averaging members takes away much of what chance in starting weights and batches does to a fit, most of all where the
data say little. The rows a member leaves out tell when to stop, and what its estimate is worth. Members train together:
models, keys and folds have a leading member axis, and the rows are shared.

Networks integrate the outcome over a normal treatment. A residual that is skewed or has two modes makes that integral
wrong where g bends by more than a parabola over the residual's spread: nodes at the residuals' quantiles replace it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bgmiv.arrays import TINY, Floats, Integers
from bgmiv.bgm.alternating import AlternatingProgram
from bgmiv.bgm.config import EGM, Alternating, BGMIVConfig, JointTraining
from bgmiv.bgm.initial import EGMProgram, JointProgram
from bgmiv.bgm.last_stage import LastStage
from bgmiv.bgm.latents import check_sampled, latents_of, structural_means
from bgmiv.bgm.model import BGMIVModel, HeldOutLosses, build_model, encode_rows, evaluate_fold, iv_means
from bgmiv.data.folds import Folds, draw_folds
from bgmiv.data.ivdata import IVData
from bgmiv.data.scaling import ScaledData, Scaler
from bgmiv.diagnostics.held_out import beside_simple, held_out_rows, weights_at
from bgmiv.diagnostics.moments import MomentRisks, variance_of
from bgmiv.distributions import normal_density
from bgmiv.errors import DivergedError
from bgmiv.fitted import FitEvidence
from bgmiv.integrate import IntegrationRule, ResidualNodes, residual_nodes, rule_for
from bgmiv.likelihood import Gaussian, Levels
from bgmiv.progress import HistoryRow, Reporter, silent
from bgmiv.sieve.fit import Learned
from bgmiv.training import Checkpoint, Row, TrainingData, in_blocks, padded_size, run_once, run_phase, training_data

__all__ = [
    "LeftOutResiduals", "Member", "Start", "Trained", "TrainingRows", "density_gain", "failed", "gather_evidence",
    "learned_means", "left_out_residuals", "members_of", "network_evidence", "nodes_unless_normal", "residual_rule",
    "train", "train_members",
]  # fmt: skip

# Where the key of the folds branches off from the fit's key.
_FOLDS = 1_000_001
# A member has failed whose held-out loss is beyond so many times the median of all.
_FAILED_RATIO = 3.0
# Held-out rows of all members together on which the structural function is judged, and whose residuals are looked at.
_MAX_EVIDENCE_ROWS, _MAX_RESIDUALS = 1500, 5000
# Nats a row. An exponential distribution is 0.42 from the normal one, a Laplace distribution 0.07.
_MIN_GAIN = 0.1
# A normal part of the estimated density bounds what a row in its tails can cost.
_NORMAL_PART = 0.1


@dataclass(frozen=True, eq=False)
class Member:
    """One trained model of a fit.

    Attributes:
        model: the trained networks.
        history: mean losses of each chunk of training.
        held_out_rows: positions of the rows this member was not trained on.
        held_out: losses on those rows after training; None without such rows.
        training: losses on as many rows it was trained on.
    """

    model: BGMIVModel
    history: tuple[HistoryRow, ...]
    held_out_rows: np.ndarray
    held_out: HeldOutLosses | None = None
    training: HeldOutLosses | None = None

    def steps_of(self, phase: str) -> int:
        """Steps of a training phase; none if it was left out."""
        return max((row.step for row in self.history if row.phase == phase), default=0)


class TrainingRows(NamedTuple):
    """Data as training sees them: their wide blocks reduced, scaled, and divided into folds."""

    data: IVData
    scaler: Scaler
    scaled: ScaledData
    folds: Folds

    @classmethod
    def of(cls, config: BGMIVConfig, data: IVData, key: Array) -> TrainingRows:
        """Scale reduced rows and draw which of them each member leaves out."""
        scaler, ensemble = config.scaling.fit(data), config.ensemble
        key = jax.random.fold_in(key, _FOLDS)
        folds = draw_folds(data.n_rows, ensemble.members, ensemble.held_out, key, data.groups)
        return cls(data, scaler, scaler.transform(data), folds)

    def at(self, positions: np.ndarray) -> ScaledData:
        """Some of the scaled rows."""
        return ScaledData(*(values[positions] for values in self.scaled))


class Start(NamedTuple):
    """Where training begins: a drawn model, scaled rows, three keys, and what a line has on held-out rows.

    The keys are those of the first phase, of latents without it, and of the second phase.

    Networks must go below `linear_loss` to be trained to the end (`JointState`), which EGM does not ask for.
    """

    model: BGMIVModel
    data: TrainingData
    keys: Array
    linear_loss: Array | None = None


class Trained(NamedTuple):
    """Where training ends: the model and the history of all phases."""

    model: BGMIVModel
    history: tuple[HistoryRow, ...]


def train_members(
    config: BGMIVConfig, rows: TrainingRows, key: Array, reporter: Reporter, checkpoint: Checkpoint | None = None
) -> tuple[Member, ...]:
    """The members that did not fail: training diverged, or their held-out loss is far above the others'.

    Raises:
        DivergedError: every member failed.
    """
    n_members = config.ensemble.members
    start = _start(config, rows, key[None] if n_members == 1 else jax.random.split(key, n_members))
    together = train(config.initial, config.alternating, start, reporter, checkpoint)
    members, losses = [], []
    for i, trained in enumerate(members_of(together) if n_members > 1 else (together,)):
        held_out = training = None
        if rows.folds.hold_out:
            held_out, training = _evaluated(config, start.data, rows.folds, i, trained.model)
        members.append(Member(trained.model, trained.history, rows.folds.rows(i), held_out, training))
        finite = np.isfinite([row.metrics["loss"] for row in trained.history]).all()
        loss = held_out.outcome_loss if held_out else 1.0
        losses.append(loss if finite else np.nan)
    kept = tuple(member for member, bad in zip(members, failed(losses), strict=True) if not bad)
    if not kept:
        phase, step, _ = together.history[-1] if together.history else (config.initial.name, 0, {})
        raise DivergedError(phase, step)
    return kept


def failed(losses: Sequence[float]) -> np.ndarray:
    """Which members failed, from the held-out loss of each: those not finite, and those far above the median."""
    values = np.asarray(losses, np.float64)
    finite = np.isfinite(values)
    limit = _FAILED_RATIO * np.median(values[finite]) if finite.any() else 0.0
    return ~finite | (values > limit)


def _start(config: BGMIVConfig, rows: TrainingRows, keys: Array) -> Start:
    """Where training begins; one member has no member axis."""
    data, folds = rows.data, rows.folds
    split = jax.vmap(partial(jax.random.split, num=4))(keys)
    drawn = [build_model(data.schema, data.instruments.shape[1], config.model, key=key) for key in split[:, 0]]
    model, own = drawn[0], 0 if len(drawn) == 1 else slice(None)
    if len(drawn) > 1:
        model = jax.device_put(jax.tree.map(lambda *leaves: np.stack(leaves), *drawn))
    for rule in (config.initial.integration, config.alternating.integration):
        rule_for(rule, model.treatment_head)
    check_sampled(model, config.latents)
    weights = None if data.weights is None else data.weights[folds.order]
    fold = (folds.starts[own], folds.sizes[own])
    prepared = training_data(rows.at(folds.order), config.alternating.batch_size, fold, weights)
    linear_loss = jax.device_put(np.float32(_linear_losses(config, rows)[own]))
    return Start(model, prepared, split[own, 1:], linear_loss)


def _linear_losses(config: BGMIVConfig, rows: TrainingRows) -> np.ndarray:
    """Held-out losses of linear regressions on instruments and covariates, one a member; infinite where of no use.

    Networks that cannot do better are not trained to the end: the last stage does without them. With wide blocks they
    may learn late; and a discrete outcome has another loss.
    """
    scaled, schema, sizes = rows.scaled, rows.data.schema, rows.folds.sizes
    losses = np.full(len(sizes), np.inf)
    if config.last_stage is None or schema.has_wide_block or not rows.folds.hold_out or schema.outcome.discrete:
        return losses
    columns = np.column_stack([np.ones(len(scaled.x)), scaled.v, scaled.w]).astype(np.float64)
    if len(columns) - sizes.max() < 4 * columns.shape[1]:
        return losses
    weights = rows.data.full_weights
    for i in range(len(losses)):
        held = np.isin(np.arange(len(columns)), rows.folds.rows(i))
        root = np.sqrt(weights[~held])
        beta = np.linalg.lstsq(columns[~held] * root[:, None], scaled.y[~held] * root, rcond=None)[0]
        errors = (scaled.y[held] - columns[held] @ beta) ** 2
        if weights[held].any():
            losses[i] = np.average(errors, weights=weights[held])
    return losses


# What training evaluates after every chunk runs twice a member here.
_losses_of_fold = partial(run_once, static_argnames="integration")(evaluate_fold)


def _evaluated(
    config: BGMIVConfig, data: TrainingData, folds: Folds, index: int, model: BGMIVModel
) -> tuple[HeldOutLosses, HeldOutLosses]:
    """Losses on the rows a member left out, and on as many of those it was trained on, next to them."""
    start, size = int(folds.starts[index]), int(folds.sizes[index])
    before, after = min(start, size), min(len(folds.order) - start - size, size)
    trained_on = (start + size, after) if after >= before else (start - before, before)

    def losses(fold: tuple[int, int]) -> HeldOutLosses:
        first, count = jax.device_put((np.int32(fold[0]), np.int32(fold[1])))
        part = data._replace(fold_start=first, fold_size=count)
        return HeldOutLosses(*map(float, _losses_of_fold(model, config.initial.integration, part)))

    return losses((start, size)), losses(trained_on)


def members_of(together: Trained) -> tuple[Trained, ...]:
    """Each member on its own."""
    # Taken apart on the host, where a slice needs no compilation.
    models = jax.tree.map(np.asarray, together.model)
    members = []
    for i in range(len(jax.tree.leaves(models)[0])):
        history = []
        for row in together.history:
            # A list with one number a member, in which `run_phase` gives the metrics of several members.
            metrics: dict[str, Any] = row.metrics
            history.append(row._replace(metrics={name: float(values[i]) for name, values in metrics.items()}))
        model = jax.device_put(jax.tree.map(operator.itemgetter(i), models))
        members.append(Trained(model, tuple(history)))
    return tuple(members)


def train(
    initial: EGM | JointTraining,
    alternating: Alternating,
    start: Start,
    reporter: Reporter = silent,
    checkpoint: Checkpoint | None = None,
) -> Trained:
    """The phases one after another, for one member or for many with a leading member axis.

    Latents of Algorithm 1 begin at e(v) for every row after an initial phase, and without one at draws from the prior.
    """
    several = start.keys.ndim > 1
    over: Any = jax.vmap if several else lambda function: function
    run = partial(run_phase, data=start.data, reporter=reporter, checkpoint=checkpoint)
    model, history = start.model, tuple[HistoryRow, ...]()
    if initial.iterations:
        program: Any = (EGMProgram if isinstance(initial, EGM) else JointProgram)(**vars(initial))
        keys = over(jax.random.split)(start.keys[..., 0])
        given: Any = keys[..., 0] if isinstance(initial, EGM) else start.linear_loss
        state, history = run(program, _begin(program, model, given, several=several), key=keys[..., 1])
        model = program.result(state)
    if alternating.epochs:
        if initial.iterations:
            latents = over(lambda model: encode_rows(model, start.data.rows.v))(model)
        else:
            shape = len(start.data.rows.x), model.layout.dim
            latents = over(lambda key: jax.random.normal(key, shape))(start.keys[..., 1])
        program = AlternatingProgram(**vars(alternating))
        state, more = run(program, _begin(program, model, latents, several=several), key=start.keys[..., 2])
        model, history = state.model, history + more
    return Trained(model, history)


@partial(run_once, static_argnames=("program", "several"))
def _begin(
    program: EGMProgram | JointProgram | AlternatingProgram, model: BGMIVModel, given: Array, *, several: bool
) -> Any:
    """The first state of a phase, by one program: leaf by leaf its optimisers would compile dozens."""
    return jax.vmap(program.init)(model, given) if several else program.init(model, given)


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


@partial(run_once, static_argnames="integration")
def _means_of(model: BGMIVModel, integration: IntegrationRule, *columns: Array) -> Array:
    """The means of the outcome and, behind it, of the treatment's columns, `(n, 1 + q)`."""
    rows, head = Row(*columns), model.treatment_head
    z = encode_rows(model, rows.v)
    raw_x = jax.vmap(model.treatment_raw)(rows.w, z)
    outcome = iv_means(model, integration, rows, raw_x, z)
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
        positions, owner = held_out_rows([member.held_out_rows for member in members], _MAX_EVIDENCE_ROWS)
        part = rows.at(positions)
        each = [structural_means(m.model, part.x, latents_of(m.model, part.v, config.latents)) for m in members]
        # What the last stage adds to the networks is the same for all members.
        values = rows.scaler.outcome.inverse(np.stack(each)) * (1.0 if last is None else last.function.weight)
        evidence = gather_evidence(
            rows.data,
            positions,
            owner,
            values,
            pairs,
            uses_instrument=config.use_instrument,
            networks_alone=last is None,
        )
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
    rows: Integers,
    owner: Integers,
    members: Floats,
    losses: Sequence[tuple[HeldOutLosses, HeldOutLosses]],
    *,
    uses_instrument: bool,
    networks_alone: bool,
) -> FitEvidence:
    """The evidence of held-out rows; averages are weighted by the data's weights.

    `members` has g of every member there, `(members, len(rows))`, in units of the outcome; for an outcome of K levels
    `(members, len(rows), K)` probabilities, of which everything is summed over indicators. `losses` has each member's
    on its held-out rows and on rows it was trained on. Unless g is that of `networks_alone`, its coefficients are from
    all rows, and its moment is left to those that hold rows out of them (`FittedBGMIV.held_out_predictions`).
    """
    n_members = len(members)
    own = members[owner, np.arange(len(rows))]
    spread = sum(variance_of(part.outcome, data.weights) for part in data.outcome_parts()) ** 0.5
    # The root mean square difference of members from their mean.
    differences = np.sum(np.var(members, axis=0).reshape(len(rows), -1), axis=1)
    disagreement = float(np.sqrt(np.average(differences, weights=weights_at(data, rows)))) / spread
    held_out, in_sample = (HeldOutLosses(*np.mean(part, axis=0).tolist()) for part in zip(*losses, strict=True))
    explained = 1.0 - held_out.outcome_loss / max(held_out.outcome_variance, TINY)
    linear = flexible = gain = None
    risks = MomentRisks()
    if uses_instrument:
        (linear, flexible, *alone), risks = beside_simple(data, rows, own if networks_alone else None)
        gain = max(linear, flexible) - max(alone) if data.schema.blocks else None
    return FitEvidence(
        n_held_out=len(rows),
        outcome_explained=explained,
        linear_explained=linear,
        flexible_explained=flexible,
        covariates_gain=gain,
        **risks._asdict(),
        outcome_gap=held_out.outcome_loss / max(in_sample.outcome_loss, TINY),
        treatment_gap=in_sample.treatment_score - held_out.treatment_score,
        first_stage_gain=held_out.first_stage_gain if uses_instrument else None,
        disagreement=disagreement if n_members > 1 else None,
        near_floor=held_out.near_floor,
        # Without covariates there is nothing for latents to carry.
        latent_spread=held_out.latent_spread if data.schema.blocks else None,
        n_members=n_members,
        discrete_outcome=data.schema.outcome.discrete,
    )


class LeftOutResiduals(NamedTuple):
    """Standardised residuals of held-out rows.

    Attributes:
        values: (x - E[x | w, z]) / sd[x | w, z] by the member that left the row out.
        member: which that is.
        weights: of the rows.
    """

    values: Floats
    member: Integers
    weights: Floats


@run_once
def _standardised(model: BGMIVModel, v: Array, w: Array, x: Array) -> Array:
    head = model.treatment_head
    assert isinstance(head, Gaussian)
    raw = jax.vmap(model.treatment_raw)(w, encode_rows(model, v))
    spread = jax.vmap(head.variance)(raw)[:, 0] ** 0.5
    return (x - jax.vmap(head.mean)(raw)[:, 0]) / spread


def left_out_residuals(members: Sequence[Member], rows: ScaledData, weights: Floats) -> LeftOutResiduals:
    """The residuals of up to 5000 of the rows that members were not trained on."""
    positions, owner = held_out_rows([member.held_out_rows for member in members], _MAX_RESIDUALS)
    values = np.empty(len(positions))
    for i, member in enumerate(members):
        own = positions[owner == i]
        part = [columns[own] for columns in (rows.v, rows.w, rows.x)]
        values[owner == i] = in_blocks(partial(_standardised, member.model), part, padded_size(len(own)))
    return LeftOutResiduals(values, owner, weights[positions])


def density_gain(residuals: LeftOutResiduals) -> float:
    """By how much the residuals' estimated density exceeds the normal one, in mean log density of held-out rows.

    Both are fitted to the residuals of all members but one and evaluated at those of the one. The density is a kernel
    estimate, nine parts of ten, and the normal one.
    """
    gains = np.zeros(len(residuals.values))
    for member in np.unique(residuals.member):
        own = residuals.member == member
        values, other = residuals.values[own], residuals.values[~own]
        shares = residuals.weights[~own] / residuals.weights[~own].sum()
        centre = shares @ other
        spread = np.sqrt(shares @ (other - centre) ** 2)
        normal = normal_density((values - centre) / spread) / spread
        # The bandwidth is Scott's, of as many rows as count.
        concentration = shares @ shares
        width = spread / np.sqrt(1.0 - concentration) * concentration**0.2
        density = normal_density((values[:, None] - other) / width) @ shares / width
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
    return nodes_unless_normal(left_out_residuals(members, rows.scaled, rows.data.full_weights), n_nodes)
