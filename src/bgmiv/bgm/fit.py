"""BGM-IV: how a fit goes, from data to the fitted result."""

from __future__ import annotations

import numpy as np

from bgmiv.bgm.config import BGMIVConfig
from bgmiv.bgm.last_stage import LastStage, fit_sieve_stage
from bgmiv.bgm.network_check import left_for_networks
from bgmiv.bgm.result import FittedBGMIV, FittedWithoutNetworks
from bgmiv.covariance import errors_of
from bgmiv.data.folds import MIN_HELD_OUT
from bgmiv.data.ivdata import IVData
from bgmiv.data.schema import BlockKind, Schema
from bgmiv.errors import ConfigError, DataError
from bgmiv.estimators.fitted import check_instrument
from bgmiv.fitted import FitEvidence, Networks
from bgmiv.linear_iv import strength_of
from bgmiv.preprocess.reduction import FittedReduction
from bgmiv.progress import Reporter, silent
from bgmiv.support import LinearSupport

__all__ = ["fit_bgmiv"]

_MIN_ROWS = 50

_NOT_COVERED = (
    "members={members}, each without a share of {held_out:.3g} of the rows, leave some rows to no member, but the last "
    "stage needs a prediction of every row by a member that has not seen it. Give members=2 or more and leave held_out "
    "at None for 1 / members, or give held_out=0 for the networks alone, without the last stage."
)


def fit_bgmiv(config: BGMIVConfig, data: IVData, seed: int, reporter: Reporter = silent) -> FittedBGMIV:
    """Fit a sieve, and networks unless left-out rows say that nothing is left for them.

    Raises:
        DataError: the data cannot be fitted.
        DivergedError: every member diverged at every attempt.
    """
    _check(config, data)
    used = data if config.use_instrument else data.without_instruments()
    reduction = config.reduction.fit(used) if config.reduction else FittedReduction(used.schema, {})
    reduced = reduction.apply(used)
    sieve = _sieve(config, reduced, reporter)
    networks, left = _networks(config, used.schema, sieve, reporter)
    if networks == "trained" or sieve is None:
        # What comes before needs no JAX, whose import and programs take longer than the sieve.
        from bgmiv.bgm.train import fit_networks

        return fit_networks(config, used, reduced, reduction, sieve, seed, reporter, left)
    strength = strength_of(data, sieve.function.first_stage_f) if config.use_instrument else None
    # The explained share is of predictions without the row itself.
    evidence = FitEvidence(
        n_held_out=sieve.rows.n_rows, networks=networks, left_for_networks=left, n_penalised=sieve.fit.n_shrunk
    )
    return FittedWithoutNetworks(
        reduction.source,
        LinearSupport.fit(used),
        reduction,
        sieve.function,
        errors_of(sieve.rows).name,
        config,
        evidence=evidence.with_last_stage(sieve.explained, 0.0, sieve.function.is_linear, strength),
    )


def _check(config: BGMIVConfig, data: IVData) -> None:
    check_instrument(data, "BGMIV", use_instrument=config.use_instrument)
    ensemble = config.ensemble
    if config.last_stage is not None and not ensemble.bootstrap and not ensemble.covers:
        raise ConfigError(_NOT_COVERED.format(members=ensemble.members, held_out=ensemble.held_out))
    n_rows = data.n_rows if data.weights is None else int(np.count_nonzero(data.weights))
    if n_rows < _MIN_ROWS:
        raise DataError(f"BGMIV needs at least {_MIN_ROWS} rows, got {n_rows}. Use TSLS, or pass more rows.")
    if config.networks is False and data.schema.outcome.kind is BlockKind.categorical:
        raise DataError(
            f"the outcome has {data.schema.outcome.width} levels, which BGMIV predicts by networks only. Leave "
            "networks at 'auto', or fit one level at a time."
        )


def _sieve(config: BGMIVConfig, reduced: IVData, reporter: Reporter) -> LastStage | None:
    """The last stage without networks; None where they are the whole estimate, or where it cannot be fitted."""
    if config.last_stage is None or config.ensemble.bootstrap or reduced.schema.outcome.kind is BlockKind.categorical:
        return None
    reporter.start("sieve", 1)
    found = fit_sieve_stage(config.last_stage, reduced, use_instrument=config.use_instrument)
    reporter.advance(1, {})
    reporter.finish()
    if found is None and config.networks is False:
        raise DataError(
            "the sieve cannot be fitted, and networks=False leaves nothing else: there are too few rows, or the "
            "instruments do not identify the treatment. Use TSLS, or pass more rows or other instruments."
        )
    return found


def _networks(
    config: BGMIVConfig, schema: Schema, sieve: LastStage | None, reporter: Reporter
) -> tuple[Networks, float | None]:
    """Whether networks are trained, or why not; and what may be left for them, where that was asked.

    Schema is that of the covariates before they are reduced: of a wide block a sieve sees some scores only.
    """
    narrow = config.model.covariates.features.narrow_vector
    if sieve is None or config.networks is True or (config.networks == "auto" and _widest(schema) > narrow):
        return "trained", None
    if config.networks is False:
        return "not wanted", None
    if round(config.ensemble.held_out * sieve.rows.n_rows) < MIN_HELD_OUT:
        # None could tell whether the estimate should use them.
        return "few rows", None
    reporter.start("check for networks", 1)
    left = left_for_networks(sieve.rows, sieve.fit, use_instrument=config.use_instrument)
    reporter.advance(1, {})
    reporter.finish()
    return ("nothing left" if left <= 0.0 else "trained"), left


def _widest(schema: Schema) -> int:
    """How many columns the widest vector or image block has; 0 without any."""
    kinds = (BlockKind.vector, BlockKind.image)
    return max((block.width for block in schema.blocks if block.kind in kinds), default=0)
