"""BGM-IV: how a fit goes, from data to the fitted result."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from bgmiv._io import enable_compilation_cache
from bgmiv.bgm.config import BGMIVConfig
from bgmiv.bgm.last_stage import FittedBGMIV, FittedWithoutNetworks, LastStage, fit_sieve_stage, with_networks
from bgmiv.bgm.network_check import left_for_networks
from bgmiv.covariance import errors_of
from bgmiv.data.folds import MIN_HELD_OUT
from bgmiv.data.ivdata import IVData
from bgmiv.data.messages import warn_user
from bgmiv.data.schema import BlockKind, Schema
from bgmiv.errors import ConfigError, DataError, FitWarning
from bgmiv.estimators.fitted import check_instrument
from bgmiv.fitted import FitEvidence, Networks
from bgmiv.preprocess.reduction import reduced_rows
from bgmiv.progress import Reporter, silent, task
from bgmiv.support import LinearSupport

if TYPE_CHECKING:
    from bgmiv.bgm.members import Member
    from bgmiv.training import Checkpoint

__all__ = ["fit_bgmiv", "open_checkpoint"]

_MIN_ROWS = 50


def fit_bgmiv(config: BGMIVConfig, data: IVData, seed: int, reporter: Reporter = silent) -> FittedBGMIV:
    """Fit a sieve, and networks unless left-out rows say that nothing is left for them.

    Raises:
        ConfigError: settings contradict one another or the data.
        DataError: the data cannot be fitted.
        DivergedError: every member diverged.
    """
    _check(config, data)
    if data.schema.outcome.kind is BlockKind.categorical:
        # The last stage is that of an outcome that is a number or has two levels.
        config = replace(config, last_stage=None)
    used = data if config.use_instrument else data.without_instruments()
    reduction, reduced = reduced_rows(config.reduction, used, reporter)

    # None where networks are the whole estimate, or where it cannot be fitted.
    sieve = None
    if config.last_stage is not None:
        reporter.stage("sieve")
        sieve = fit_sieve_stage(config, reduced, reporter=reporter)
    networks, left = _networks(config, used.schema, sieve, reporter)
    if sieve is not None and networks != "trained":
        # The explained share is of predictions without the row itself.
        evidence = FitEvidence(n_held_out=sieve.rows.n_rows, networks=networks, left_for_networks=left)
        evidence = sieve.added_to(evidence, config, data)
        return FittedWithoutNetworks(
            reduction.source,
            LinearSupport.fit(used),
            reduction,
            sieve.function,
            errors_of(sieve.rows).name,
            config,
            evidence=evidence,
        )

    reporter.stage("networks")
    with task(reporter, "preparation"):
        # What comes before needs no JAX, whose import and programs take longer than the sieve.
        import jax

        from bgmiv.bgm.fitted import FittedNetworks
        from bgmiv.bgm.members import TrainingRows, learned_means, network_evidence, residual_rule, train_members
        from bgmiv.bgm.resolve import resolve
        from bgmiv.bgm.uncertainty import fit_model_support, tangent_directions

        enable_compilation_cache()
        key = jax.random.key(seed)
        rows = TrainingRows.of(config, reduced, key)
        config = resolve(config, reduced, np.random.default_rng(np.asarray(jax.random.key_data(key))))

    def train(config: BGMIVConfig, checkpoint: Checkpoint | None = None) -> tuple[tuple[Member, ...], LastStage | None]:
        members = train_members(config, rows, key, reporter, checkpoint)
        if config.last_stage is None or not rows.folds.hold_out:
            # Without held-out rows nothing could tell whether networks are of use.
            return members, sieve
        with task(reporter, "last stage"):
            learned = learned_means(members, config.initial.integration, rows.scaled, rows.scaler)
            return members, with_networks(config, rows.data, sieve, learned)

    with open_checkpoint(config, used, seed) as checkpoint:
        members, last = train(config, checkpoint)
        nodes = residual_rule(config, rows, members) if last is not None and last.function.weight else None
        if nodes is not None:
            again = replace(config, initial=replace(config.initial, integration=nodes))
            other, other_last = train(again)
            if other_last is not None and other_last.function.weight and _mean_loss(other) < _mean_loss(members):
                config, members, last = again, other, other_last

    directions = None
    with task(reporter, "intervals and evidence"):
        if last is None or last.function.weight:
            _warn_of_second_groups(data)
            directions = tangent_directions(config, rows, members, groups=data.groups if errors_of(data).ways else None)
        return FittedNetworks(
            schema=used.schema,
            config=config,
            reduction=reduction,
            scaler=rows.scaler,
            members=members,
            model_support=fit_model_support(config.latents, rows, members),
            directions=directions,
            last_stage=None if last is None else last.function,
            evidence=network_evidence(config, used, rows, members, last, left),
        )


def _check(config: BGMIVConfig, data: IVData) -> None:
    check_instrument(data, "BGMIV", use_instrument=config.use_instrument)
    ensemble = config.ensemble
    if config.last_stage is not None and ensemble.members * ensemble.held_out < 1.0 - 1e-9:
        raise ConfigError(
            f"members={ensemble.members}, each without a share of {ensemble.held_out:.3g} of the rows, leave some rows "
            "to no member, but the last stage needs a prediction of every row by a member that has not seen it. Give "
            "members=2 or more and leave held_out at None for 1 / members, or give held_out=0 for the networks alone, "
            "without the last stage."
        )
    n_rows = data.n_rows if data.weights is None else int(np.count_nonzero(data.weights))
    if n_rows < _MIN_ROWS:
        raise DataError(f"BGMIV needs at least {_MIN_ROWS} rows, got {n_rows}. Use TSLS, or pass more rows.")
    if config.networks is False and data.schema.outcome.kind is BlockKind.categorical:
        raise DataError(
            f"the outcome has {data.schema.outcome.width} levels, which BGMIV predicts by networks only. Leave "
            "networks at 'auto', or fit one level at a time."
        )


def _networks(
    config: BGMIVConfig, schema: Schema, sieve: LastStage | None, reporter: Reporter
) -> tuple[Networks, float | None]:
    """Whether networks are trained, or why not; and what may be left for them, where that was asked.

    Schema is that of the covariates before they are reduced: of a wide block a sieve sees some scores only.
    """
    if sieve is None and config.networks is False:
        raise DataError(
            "the sieve cannot be fitted, and networks=False leaves nothing else: there are too few rows, or the "
            "instruments do not identify the treatment. Use TSLS, or pass more rows or other instruments."
        )
    narrow, several = config.model.covariates.features.narrow_vector, (BlockKind.vector, BlockKind.image)
    wide = any(block.width > narrow for block in schema.blocks if block.kind in several)
    if sieve is None or config.networks is True or (config.networks == "auto" and wide):
        return "trained", None
    if config.networks is False:
        return "not wanted", None
    if round(config.ensemble.held_out * sieve.rows.n_rows) < MIN_HELD_OUT:
        # None could tell whether the estimate should use them.
        return "few rows", None
    reporter.stage("networks")
    with task(reporter, "check"):
        left = left_for_networks(sieve, use_instrument=config.use_instrument)
    return ("nothing left" if left <= 0.0 else "trained"), left


def open_checkpoint(config: BGMIVConfig, data: IVData, seed: int) -> AbstractContextManager[Checkpoint | None]:
    """The checkpoint of this very fit, if the config names a folder."""
    from bgmiv.training import Checkpoint, fingerprint

    if config.checkpoint is None:
        return nullcontext()
    arrays = (data.outcome, data.treatment, data.covariates, data.instruments, data.weights, data.groups)
    return Checkpoint(config.checkpoint, fingerprint(replace(config, checkpoint=None), data.schema, seed, *arrays))


def _mean_loss(members: Sequence[Member]) -> float:
    """The members' mean error in predicting the outcome of held-out rows."""
    return float(np.mean([member.held_out.outcome_loss for member in members if member.held_out]))


def _warn_of_second_groups(data: IVData) -> None:
    if data.second_groups is not None:
        warn_user(
            f"what the networks add to intervals is clustered by {data.groups_name!r} alone, not by "
            f"{data.second_groups_name!r}. NPIV and TSLS cluster two ways throughout.",
            FitWarning,
        )
