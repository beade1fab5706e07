"""BGM-IV: how networks are trained, and what of them enters the estimate."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from bgmiv._io import enable_compilation_cache
from bgmiv.bgm.config import BGMIVConfig
from bgmiv.bgm.ensemble import Start, Trained, members_of, row_weights, train
from bgmiv.bgm.fitted_networks import FittedNetworks, Member, encoder_rule
from bgmiv.bgm.heldout import MAX_EVIDENCE_ROWS, HeldOutLosses, evaluate_fold, gather_evidence, learned_means
from bgmiv.bgm.last_stage import LastStage, with_networks
from bgmiv.bgm.latents import latents_of
from bgmiv.bgm.model import BGMIVModel, build_model
from bgmiv.bgm.partition import choose_layout
from bgmiv.bgm.residuals import left_out_residuals, nodes_unless_normal
from bgmiv.bgm.settings import JointTraining, ModelConfig
from bgmiv.bgm.uncertainty import fit_model_support
from bgmiv.data.folds import Folds, draw_folds
from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Query, rows_of
from bgmiv.data.scaling import ScaledData, Scaler
from bgmiv.data.schema import BlockKind, CovariateBlock, Schema
from bgmiv.diagnostics.held_out import held_out_rows
from bgmiv.errors import DivergedError
from bgmiv.fitted import FitEvidence
from bgmiv.integrate import ResidualNodes, check_rule
from bgmiv.likelihood import Gaussian
from bgmiv.linear_iv import strength_of
from bgmiv.preprocess.reduction import FittedReduction, choose_noise
from bgmiv.progress import HistoryRow, Prefixed, Reporter, silent
from bgmiv.training import Checkpoint, fingerprint, training_data

__all__ = ["fit_networks", "open_checkpoint"]

# Where the keys of folds and of repeated attempts branch off from the fit's key.
_FOLDS, _RETRIES = 1_000_001, 2_000_000
# Rows that stand for all in the fit's support; a MAP takes a thousand times as long as the encoder.
_MAX_SUPPORT_ROWS, _MAX_SUPPORT_MAPS = 2000, 500


class _Prepared(NamedTuple):
    """Data as training sees them: reduced, scaled, and divided into folds."""

    data: IVData
    reduction: FittedReduction
    scaler: Scaler
    scaled: ScaledData
    folds: Folds

    @property
    def weights(self) -> np.ndarray | None:
        """Sample weights in the order of the scaled rows."""
        return None if self.data.weights is None else self.data.weights[self.folds.order]

    @property
    def groups(self) -> np.ndarray | None:
        """Groups in the order of the scaled rows."""
        return None if self.data.groups is None else self.data.groups[self.folds.order]

    def scaled_at(self, rows: np.ndarray) -> ScaledData:
        """Scaled rows by their position in the data."""
        place = np.argsort(self.folds.order)[rows]
        return ScaledData(*(values[place] for values in self.scaled))


def fit_networks(
    config: BGMIVConfig,
    data: IVData,
    reduced: IVData,
    reduction: FittedReduction,
    sieve: LastStage | None,
    seed: int,
    reporter: Reporter = silent,
    left: float | None = None,
) -> FittedNetworks:
    """Train networks on the rows of a fit.

    Args:
        config: of the fit.
        data: the rows; without instruments where these are not used.
        reduced, reduction: the rows with their wide blocks reduced, and how.
        sieve: the last stage without networks; None if there is none.
        seed: the randomness.
        reporter: shows the progress.
        left: what may be left for networks, where that was asked.

    Raises:
        DivergedError: every member diverged at every attempt.
    """
    enable_compilation_cache()
    key, reporter = jax.random.key(seed), Prefixed(reporter, "networks: ")
    prepared = _prepare(config, reduced, reduction, key)
    if config.layout is None and config.latents_are_features:
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        layout, features = choose_layout(prepared.data, config.model.covariates.features, rng)
        covariates = replace(config.model.covariates, latent_features=features)
        config = replace(config, layout=layout, model=replace(config.model, covariates=covariates))
    config = config.resolve(prepared.data.schema, data.n_rows)
    with open_checkpoint(config, data, seed) as checkpoint:
        config = _with_block_noise(config, prepared.data)
        fitted = _trained(config, data, prepared, sieve, key, reporter, checkpoint)
        rule = _residual_rule(fitted, prepared)
        if rule is not None:
            again = replace(config, initial=replace(config.initial, integration=rule))
            fitted = _lower_loss(fitted, _trained(again, data, prepared, sieve, key, reporter))
    assert fitted.evidence is not None
    return replace(fitted, evidence=replace(fitted.evidence, networks="trained", left_for_networks=left))


def _trained(
    config: BGMIVConfig,
    data: IVData,
    prepared: _Prepared,
    sieve: LastStage | None,
    key: Array,
    reporter: Reporter,
    checkpoint: Checkpoint | None = None,
) -> FittedNetworks:
    """The fit under one rule of integration."""
    n_members = config.ensemble.members
    start = _start(config, prepared, key if n_members == 1 else jax.random.split(key, n_members))
    together = train(config.initial, config.alternating, start, reporter, checkpoint)
    trained = members_of(together) if n_members > 1 else (together,)
    return _fitted(config, data, prepared, sieve, trained, key, reporter)


def _residual_rule(fitted: FittedNetworks, prepared: _Prepared) -> ResidualNodes | None:
    """Nodes for a treatment that is not normal; None where it is, or where the estimate is not made of networks."""
    initial, members = fitted.config.initial, fitted.members
    n_nodes = initial.residual_nodes if isinstance(initial, JointTraining) else 0
    if not n_nodes or fitted.last_stage is None or not fitted.uses_networks or not fitted.config.use_instrument:
        return None
    if not isinstance(members[0].model.treatment_head, Gaussian):
        return None
    rows = prepared.scaled_at(np.arange(prepared.data.n_rows))
    left_out = [member.held_out_rows for member in members]
    residuals = left_out_residuals([member.model for member in members], rows, left_out, prepared.data.weights)
    return nodes_unless_normal(residuals, n_nodes)


def _lower_loss(one: FittedNetworks, two: FittedNetworks) -> FittedNetworks:
    """The fit that predicts the outcome of held-out rows better."""

    def loss(fitted: FittedNetworks) -> float:
        return float(np.mean([member.held_out.outcome_loss for member in fitted.members if member.held_out]))

    return two if two.uses_networks and loss(two) < loss(one) else one


def open_checkpoint(config: BGMIVConfig, data: IVData, seed: int) -> AbstractContextManager[Checkpoint | None]:
    """The checkpoint of this very fit, if the config names a folder."""
    if config.checkpoint is None:
        return nullcontext()
    arrays = (data.outcome, data.treatment, data.covariates, data.instruments, data.weights, data.groups)
    return Checkpoint(config.checkpoint, fingerprint(replace(config, checkpoint=None), data.schema, seed, *arrays))


def _prepare(config: BGMIVConfig, reduced: IVData, reduction: FittedReduction, key: Array) -> _Prepared:
    scaler, ensemble = config.scaling.fit(reduced), config.ensemble
    folds_key = jax.random.fold_in(key, _FOLDS)
    folds = draw_folds(reduced.n_rows, ensemble.members, ensemble.held_out, folds_key, reduced.groups)
    scaled = scaler.transform(reduced)
    if folds.hold_out:
        scaled = ScaledData(*(values[folds.order] for values in scaled))
    return _Prepared(reduced, reduction, scaler, scaled, folds)


def _with_block_noise(config: BGMIVConfig, data: IVData) -> BGMIVConfig:
    """The config with the training noise of wide vector blocks chosen."""
    covariates = config.model.covariates
    if not covariates.noise_levels:
        return config
    # Levels as indicators: their codes are names.
    roles = ((data.schema.treatment, data.treatment), (data.schema.outcome, data.outcome))
    targets = np.hstack([variable.columns(values) for variable, values in roles])

    def noise(block: CovariateBlock) -> float:
        return choose_noise(data.covariates[:, block.start : block.stop], targets, covariates.noise_levels)

    chosen = tuple(
        (block.name, noise(block))
        for block in data.schema.blocks
        if block.kind is BlockKind.vector and not covariates.features.is_narrow(block)
    )
    features = replace(covariates.features, block_noise=chosen)
    return replace(config, model=replace(config.model, covariates=replace(covariates, features=features)))


def _draw_model(
    keys: Array, schema: Schema, n_instruments: int, config: ModelConfig
) -> tuple[BGMIVModel, Array, Array, Array]:
    """A model and the keys of the phases, for one key or for many."""
    if keys.ndim == 0:
        key_model, *phases = jax.random.split(keys, 4)
        return build_model(schema, n_instruments, config, key=key_model), *phases
    split = jax.vmap(lambda key: jax.random.split(key, 4))(keys)
    drawn = [build_model(schema, n_instruments, config, key=key) for key in split[:, 0]]
    model = jax.device_put(jax.tree.map(lambda *leaves: np.stack(leaves), *drawn))
    return model, split[:, 1], split[:, 2], split[:, 3]


def _start(config: BGMIVConfig, prepared: _Prepared, keys: Array, members: Sequence[int] | None = None) -> Start:
    """Where training begins, for one key or for many; `members` says whose folds, by default those of all."""
    shapes = (prepared.data.schema, prepared.data.instruments.shape[1], config.model)
    model, *key_phases = _draw_model(keys, *shapes)
    check_rule(config.initial.integration, model.treatment_head)
    check_rule(config.alternating.integration, model.treatment_head)
    starts, sizes = prepared.folds.starts, prepared.folds.sizes
    if members is not None:
        starts, sizes = starts[list(members)], sizes[list(members)]
    fold = (int(starts[0]), int(sizes[0])) if keys.ndim == 0 else (starts, sizes)
    sample = prepared.weights
    weights = sample
    if config.ensemble.bootstrap:
        weights = row_weights(keys, prepared.data.n_rows, sample, prepared.groups)
    held_out = np.ones(prepared.data.n_rows) if sample is None and weights is not None else sample
    rows = training_data(prepared.scaled, config.alternating.batch_size, fold, weights, held_out)
    losses = _linear_losses(config, prepared, starts, sizes)
    linear_loss = jax.device_put(np.float32(losses[0] if keys.ndim == 0 else losses))
    return Start(model, rows, key_phases[0], key_phases[1], key_phases[2], linear_loss)


def _linear_losses(config: BGMIVConfig, prepared: _Prepared, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Held-out losses of linear regressions on instruments and covariates, one a fold; infinite where of no use.

    Networks that cannot do better are not trained to the end: the last stage does without them. With wide blocks they
    may learn late; and a discrete outcome has another loss.
    """
    none, schema = np.full(len(starts), np.inf), prepared.data.schema
    wide = any(block.kind in (BlockKind.vector, BlockKind.image) for block in schema.blocks)
    scaled = prepared.scaled
    if config.last_stage is None or wide or not prepared.folds.hold_out or schema.outcome.discrete:
        return none
    columns = np.column_stack([np.ones(len(scaled.x)), scaled.v, scaled.w]).astype(np.float64)
    if len(columns) - sizes.max() < 4 * columns.shape[1]:
        return none
    weights = np.ones(len(columns)) if prepared.weights is None else np.asarray(prepared.weights, np.float64)
    losses = []
    for start, size in zip(starts, sizes, strict=True):
        position = np.arange(len(columns))
        held = (position >= start) & (position < start + size)
        root = np.sqrt(weights[~held])
        beta = np.linalg.lstsq(columns[~held] * root[:, None], scaled.y[~held] * root, rcond=None)[0]
        errors = (scaled.y[held] - columns[held] @ beta) ** 2
        losses.append(np.average(errors, weights=weights[held]) if weights[held].any() else np.inf)
    return np.asarray(losses)


def _fitted(
    config: BGMIVConfig,
    data: IVData,
    prepared: _Prepared,
    sieve: LastStage | None,
    trained: Sequence[Trained | DivergedError],
    key: Array,
    reporter: Reporter,
) -> FittedNetworks:
    """The result of the members that did not fail; those that did are trained again first, by themselves."""
    members = [_member(config, prepared, i, one) for i, one in enumerate(trained)]
    for attempt in range(1, config.ensemble.attempts):
        failed = np.flatnonzero(config.ensemble.failed(_losses(members))).tolist()
        if not failed or not prepared.folds.hold_out:
            break
        keys = jax.random.split(jax.random.fold_in(key, _RETRIES + attempt), len(failed))
        try:
            start = _start(config, prepared, keys, failed)
            again = members_of(train(config.initial, config.alternating, start, reporter))
        except DivergedError as error:
            again = (error,) * len(failed)
        for i, one in zip(failed, again, strict=True):
            members[i] = _member(config, prepared, i, one, attempt + 1)
    failed = config.ensemble.failed(_losses(members)).tolist()
    kept = tuple(m for m, bad in zip(members, failed, strict=True) if isinstance(m, Member) and not bad)
    if not kept:
        raise _divergence(members[0])
    models = [member.model for member in kept]
    rule = encoder_rule(config.latents)
    order = np.random.default_rng(0).permutation(prepared.data.n_rows)
    rows = prepared.scaled_at(order[: _MAX_SUPPORT_ROWS if rule.steps == 0 else _MAX_SUPPORT_MAPS])
    latents = [latents_of(model, rows.v, rule) for model in models]
    last = _last_stage(config, prepared, sieve, kept)
    fitted = FittedNetworks(
        schema=prepared.reduction.source,
        config=config,
        reduction=prepared.reduction,
        scaler=prepared.scaler,
        members=kept,
        model_support=fit_model_support(models, rows, latents),
        last_stage=None if last is None else last.function,
    )
    return replace(fitted, evidence=_evidence(fitted, data, prepared.data, last, len(members) - len(kept)))


def _last_stage(
    config: BGMIVConfig, prepared: _Prepared, sieve: LastStage | None, members: Sequence[Member]
) -> LastStage | None:
    """The last regression, of an outcome that is a number or has two levels.

    Where rows are too few for any to be held out, nothing could tell whether networks are of use, and it does without.
    """
    data = prepared.data
    if config.last_stage is None or config.ensemble.bootstrap or data.schema.outcome.kind is BlockKind.categorical:
        return None
    learned = None
    if prepared.folds.hold_out:
        rows = prepared.scaled_at(np.arange(data.n_rows))
        models = [member.model for member in members]
        left_out = [member.held_out_rows for member in members]
        learned = learned_means(models, config.initial.integration, rows, prepared.scaler, left_out)
    return with_networks(config.last_stage, data, sieve, learned, use_instrument=config.use_instrument)


def _evidence(
    fitted: FittedNetworks, data: IVData, reduced: IVData, last: LastStage | None, n_failed: int
) -> FitEvidence:
    members, uses_instrument = fitted.members, fitted.config.use_instrument
    steps = min(member.steps_of(fitted.config.initial.name) for member in members) or None
    pairs = [(member.held_out, member.training) for member in members if member.held_out and member.training]
    found = FitEvidence(n_steps=steps, n_members=len(members), n_failed=n_failed)
    if pairs:
        rows, owner = held_out_rows([member.held_out_rows for member in members], MAX_EVIDENCE_ROWS)
        part = data.take(rows)
        values = fitted.members_at(Query(part.treatment[None], rows_of(data.schema, part)))[:, 0]
        found = gather_evidence(
            reduced, rows, owner, values, pairs, uses_instrument=uses_instrument, networks_alone=last is None
        )
        found = replace(found, n_steps=steps, n_failed=n_failed)
    if last is None:
        return found
    strength = strength_of(data, last.function.first_stage_f) if uses_instrument else None
    found = found.with_last_stage(last.explained, last.function.weight, last.function.is_linear, strength)
    return replace(found, n_penalised=last.fit.n_shrunk)


def _member(
    config: BGMIVConfig, prepared: _Prepared, index: int, trained: Trained | DivergedError, attempts: int = 1
) -> Member | DivergedError:
    if isinstance(trained, DivergedError):
        return trained
    held_out = training = None
    if prepared.folds.hold_out:
        held_out, training = _evaluated(config, prepared, index, trained.model)
    rows = prepared.folds.rows(index)
    return Member(trained.model, trained.history, rows, held_out, training, attempts)


def _evaluated(
    config: BGMIVConfig, prepared: _Prepared, index: int, model: BGMIVModel
) -> tuple[HeldOutLosses, HeldOutLosses]:
    """Losses on the rows a member left out, and on as many of those it was trained on, next to them."""
    folds = prepared.folds
    n, start, size = len(folds.order), int(folds.starts[index]), int(folds.sizes[index])
    before, after = min(start, size), min(n - start - size, size)
    trained_on = (start + size, after) if after >= before else (start - before, before)
    weights = prepared.weights
    data = training_data(prepared.scaled, config.alternating.batch_size, (0, 0), weights, weights)
    found = []
    for fold in ((start, size), trained_on):
        first, count = jax.device_put((np.int32(fold[0]), np.int32(fold[1])))
        part = data._replace(fold_start=first, fold_size=count)
        found.append(HeldOutLosses(*map(float, evaluate_fold(model, config.initial.integration, part))))
    return found[0], found[1]


def _divergence(member: Member | DivergedError) -> DivergedError:
    """Why a member failed; one whose losses are all finite but not those of held-out rows broke in its last steps."""
    if isinstance(member, DivergedError):
        return member
    last = member.history[-1] if member.history else HistoryRow("held-out rows", 0, {})
    return DivergedError(last.phase, last.step)


def _losses(members: Sequence[Member | DivergedError]) -> np.ndarray:
    """Held-out losses; of members without held-out rows only whether they diverged is known."""
    return np.asarray(
        [np.inf if isinstance(m, DivergedError) else (m.held_out.outcome_loss if m.held_out else 1.0) for m in members]
    )
