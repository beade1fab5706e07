"""Methods made so small that the contract suites can fit all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bgmiv.covariates import CovariateConfig
from bgmiv.estimators.base import Estimator
from bgmiv.estimators.bgmiv import BGMIVConfig
from bgmiv.estimators.deepgmm import DeepGMMConfig
from bgmiv.estimators.deepiv import DeepIVConfig
from bgmiv.estimators.dfiv import DFIVConfig
from bgmiv.infer import LatentMap
from bgmiv.model import ModelConfig


def _small_images(covariates: CovariateConfig) -> CovariateConfig:
    """Image networks of next to nothing, augmentation and the rest as they are."""
    images = replace(
        covariates.images, features="dense", decoder="dense", dense_features=(8,), dense_decoder_hidden=(8,)
    )
    return replace(covariates, images=images)


def _tiny(config: Estimator, *, every_phase: bool = True) -> Estimator:
    """The same rules, but networks and schedule of next to nothing; with phases that the preset leaves out, or not."""
    if isinstance(config, DeepIVConfig):
        return replace(
            config,
            hidden=(8,),
            covariates=_small_images(config.covariates),
            treatment_stage=replace(config.treatment_stage, epochs=2, batch_size=16),
            outcome_stage=replace(config.outcome_stage, epochs=2, batch_size=16),
        )
    if isinstance(config, DFIVConfig):
        return replace(
            config,
            blocks=_small_images(config.blocks),
            training=replace(config.training, epochs=2, instrument_iterations=2, covariate_iterations=2, chunk=1),
        )
    if isinstance(config, DeepGMMConfig):
        game = replace(config.game, rounds=2, round_updates=3, batch_size=16, chunk=1)
        covariates = _small_images(config.covariates)
        return replace(config, hidden=(8,), covariates=covariates, game=game, learning_rates=(1e-3,))
    if not isinstance(config, BGMIVConfig):
        return config
    shapes = CovariateConfig(
        dense_hidden=(8,),
        block_encoder_hidden=(8,),
        vector_features=(8, 4),
        vector_decoder_hidden=(8,),
        column_decoder_hidden=(8,),
    )
    ensemble = config.ensemble
    if ensemble.members > 1:
        # So many that a data set of 60 rows has held-out ones.
        ensemble = replace(ensemble, members=2, held_out=0.4)
    short = replace(
        config,
        batch_size=8,
        ensemble=ensemble,
        model=ModelConfig(treatment_hidden=(8,), outcome_hidden=(8,), covariates=_small_images(shapes)),
        warm_start=replace(config.warm_start, iterations=20, chunk=10),
    )
    if not every_phase:
        return short
    return replace(short, alternating=replace(config.alternating, epochs=2, chunk=1), latent_map=LatentMap(steps=5))


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Estimator]:
    """The function above: test modules cannot import one another."""
    return _tiny
