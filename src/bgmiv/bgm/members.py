"""Members: the same model trained several times on one data set, each time without some of its rows.

Averaging members takes away much of what chance in starting weights and batches does to a fit, most of all where the
data say little. The rows a member leaves out tell when to stop, and what its estimate is worth. Members train together:
models, keys and folds have a leading member axis, and the rows are shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from bgmiv.bgm.alternating import AlternatingProgram
from bgmiv.bgm.config import EGM, Alternating, BGMIVConfig, JointTraining
from bgmiv.bgm.heldout import HeldOutLosses, evaluate_fold
from bgmiv.bgm.initial import EGMProgram, JointProgram
from bgmiv.bgm.latents import check_sampled
from bgmiv.bgm.model import BGMIVModel, build_model, encode_rows
from bgmiv.data.folds import Folds, draw_folds
from bgmiv.data.ivdata import IVData
from bgmiv.data.scaling import ScaledData, Scaler
from bgmiv.errors import DivergedError
from bgmiv.integrate import rule_for
from bgmiv.progress import HistoryRow, Reporter, silent
from bgmiv.training import Checkpoint, TrainingData, run_once, run_phase, training_data

__all__ = ["Member", "Start", "Trained", "TrainingRows", "failed", "members_of", "train", "train_members"]

# Where the key of the folds branches off from the fit's key.
_FOLDS = 1_000_001
# A member has failed whose held-out loss is beyond so many times the median of all.
_FAILED_RATIO = 3.0


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
    """Where training begins: a drawn model, scaled rows, the keys of the phases, and what a line has on held-out rows.

    Networks must go below `linear_loss` to be trained to the end (`JointState`), which EGM does not ask for.
    """

    model: BGMIVModel
    data: TrainingData
    key_initial: Array
    key_latents: Array
    key_alternate: Array
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
    start = _start(config, rows, key if n_members == 1 else jax.random.split(key, n_members))
    together = train(config.initial, config.alternating, start, reporter, checkpoint)
    members: list[Member] = []
    failure = DivergedError(config.initial.name, 0)
    for i, trained in enumerate(members_of(together) if n_members > 1 else (together,)):
        if isinstance(trained, DivergedError):
            failure = trained
            continue
        held_out = training = None
        if rows.folds.hold_out:
            held_out, training = _evaluated(config, start.data, rows.folds, i, trained.model)
        members.append(Member(trained.model, trained.history, rows.folds.rows(i), held_out, training))
    losses = [member.held_out.outcome_loss if member.held_out else 1.0 for member in members]
    kept = tuple(member for member, bad in zip(members, failed(losses), strict=True) if not bad)
    if not kept:
        if members and members[0].history:
            # The losses of training were finite: it broke in its last steps.
            last = members[0].history[-1]
            failure = DivergedError(last.phase, last.step)
        raise failure
    return kept


def failed(losses: Sequence[float]) -> np.ndarray:
    """Which members failed, from the held-out loss of each: those not finite, and those far above the median."""
    values = np.asarray(losses, np.float64)
    finite = np.isfinite(values)
    limit = _FAILED_RATIO * np.median(values[finite]) if finite.any() else 0.0
    return ~finite | (values > limit)


def _start(config: BGMIVConfig, rows: TrainingRows, keys: Array) -> Start:
    """Where training begins, for one key or for many."""
    data, folds = rows.data, rows.folds
    n_instruments, several = data.instruments.shape[1], bool(keys.ndim)
    if several:
        split = jax.vmap(partial(jax.random.split, num=4))(keys)
        drawn = [build_model(data.schema, n_instruments, config.model, key=key) for key in split[:, 0]]
        model = jax.device_put(jax.tree.map(lambda *leaves: np.stack(leaves), *drawn))
    else:
        split = jax.random.split(keys, 4)
        model = build_model(data.schema, n_instruments, config.model, key=split[0])
    for rule in (config.initial.integration, config.alternating.integration):
        rule_for(rule, model.treatment_head)
    check_sampled(model, config.latents)
    weights = None if data.weights is None else data.weights[folds.order]
    fold: Any = (folds.starts, folds.sizes)
    losses: Any = _linear_losses(config, rows)
    if not several:
        fold, losses = (int(folds.starts[0]), int(folds.sizes[0])), losses[0]
    prepared = training_data(rows.at(folds.order), config.alternating.batch_size, fold, weights)
    linear_loss = jax.device_put(np.float32(losses))
    return Start(model, prepared, split[..., 1], split[..., 2], split[..., 3], linear_loss)


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
    weights = np.ones(len(columns)) if rows.data.weights is None else np.asarray(rows.data.weights, np.float64)
    for i in range(len(losses)):
        held = np.zeros(len(columns), bool)
        held[rows.folds.rows(i)] = True
        root = np.sqrt(weights[~held])
        beta = np.linalg.lstsq(columns[~held] * root[:, None], scaled.y[~held] * root, rcond=None)[0]
        errors = (scaled.y[held] - columns[held] @ beta) ** 2
        if weights[held].any():
            losses[i] = np.average(errors, weights=weights[held])
    return losses


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
        return HeldOutLosses(*map(float, evaluate_fold(model, config.initial.integration, part)))

    return losses((start, size)), losses(trained_on)


def members_of(together: Trained) -> tuple[Trained | DivergedError, ...]:
    """Each member on its own, or the error its own fit would have raised: its first loss that is not finite."""
    # Taken apart on the host, where a slice needs no compilation.
    models = jax.tree.map(np.asarray, together.model)

    def one(i: int) -> Trained | DivergedError:
        history = []
        for row in together.history:
            # A list with one number a member, in which `run_phase` gives the metrics of several members.
            metrics: dict[str, Any] = row.metrics
            history.append(row._replace(metrics={name: float(values[i]) for name, values in metrics.items()}))
            if not np.isfinite(history[-1].metrics["loss"]):
                return DivergedError(row.phase, row.step)
        return Trained(jax.device_put(jax.tree.map(lambda leaf: leaf[i], models)), tuple(history))

    return tuple(one(i) for i in range(len(jax.tree.leaves(models)[0])))


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
    several = bool(start.key_initial.ndim)
    over: Any = jax.vmap if several else lambda function: function
    run = partial(run_phase, data=start.data, reporter=reporter, checkpoint=checkpoint)
    model, history = start.model, tuple[HistoryRow, ...]()
    if initial.iterations:
        program: Any = (EGMProgram if isinstance(initial, EGM) else JointProgram)(**vars(initial))
        keys = over(jax.random.split)(start.key_initial)
        given = keys[..., 0] if isinstance(initial, EGM) else start.linear_loss
        state, history = run(program, _begin(program, model, given, several=several), key=keys[..., 1])
        model = program.result(state)
    if alternating.epochs:
        if initial.iterations:
            latents = over(lambda model: encode_rows(model, start.data.rows.v))(model)
        else:
            n = len(start.data.rows.x)
            latents = over(lambda model, key: model.layout.sample_prior(key, n))(model, start.key_latents)
        program = AlternatingProgram(**vars(alternating))
        state, more = run(program, _begin(program, model, latents, several=several), key=start.key_alternate)
        model, history = state.model, history + more
    return Trained(model, history)


@partial(run_once, static_argnames=("program", "several"))
def _begin(
    program: EGMProgram | JointProgram | AlternatingProgram, model: BGMIVModel, given: Any, *, several: bool
) -> Any:
    """The first state of a phase, by one program: leaf by leaf its optimisers would compile dozens."""
    return jax.vmap(program.init)(model, given) if several else program.init(model, given)
