"""One tiny problem and one small preset for all tests: compiled programs are shared between them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np
import pytest

from bgmiv.bgm.config import BGMIVConfig, default_preset
from bgmiv.bgm.covariates import CovariateConfig
from bgmiv.bgm.ensemble import Ensemble
from bgmiv.bgm.model import BGMIVModel, LatentLayout, ModelConfig, build_model
from bgmiv.data import IVData, RoleScaling
from bgmiv.training.loop import TrainingData, training_data

N_ROWS, BATCH = 20, 8


class Tiny(NamedTuple):
    """A drawn model and 20 rows, padded to 24 for batches of 8."""

    model: BGMIVModel
    data: TrainingData
    latents: np.ndarray


def draw(seed: int) -> IVData:
    rng = np.random.default_rng(seed)
    w, v, u = rng.normal(size=(3, N_ROWS))
    x = w + v + u
    return IVData.from_arrays(x + v + 0.5 * u, x, instruments=w, covariates=v)


def make(seed: int) -> Tiny:
    data = draw(seed)
    shapes = CovariateConfig(dense_hidden=(8,))
    config = ModelConfig(LatentLayout(1, 1, 1, 1), (8,), (8,), shapes)
    model = build_model(data.schema, 1, config, key=jax.random.key(seed))
    rows = training_data(RoleScaling().fit(data).transform(data), BATCH)
    latents = np.random.default_rng(seed).normal(size=(24, 4)).astype(np.float32)
    assert rows.rows.x.shape == (24,)
    return Tiny(model, rows, latents)


@pytest.fixture(scope="session")
def tiny() -> Tiny:
    return make(0)


@pytest.fixture(scope="session")
def other() -> Tiny:
    """Another data set and another model of the same shapes."""
    return make(1)


@pytest.fixture(scope="session")
def small() -> BGMIVConfig:
    """The default preset's networks alone, tiny and with a short schedule: three members without twenty of 100 rows."""
    config = default_preset()
    features = replace(config.model.covariates.features, vector_features=(8, 4))
    covariates = replace(
        config.model.covariates,
        features=features,
        dense_hidden=(8,),
        dense_decoder_hidden=(8,),
        block_encoder_hidden=(8,),
        vector_decoder_hidden=(8,),
        column_decoder_hidden=(8,),
    )
    # Every layer is one more to trace and to compile.
    model = replace(
        config.model,
        treatment_hidden=(8,),
        outcome_hidden=(8,),
        treatment_trunk=(8,),
        outcome_trunk=(8,),
        embedding=(8, 4),
        covariates=covariates,
    )
    return replace(
        config,
        batch_size=16,
        model=model,
        ensemble=Ensemble(members=3, held_out=0.2),
        initial=replace(config.initial, iterations=12, chunk=4),
        last_stage=None,
    )


@pytest.fixture(scope="session")
def small_preset(small: BGMIVConfig) -> BGMIVConfig:
    """All parts of the default preset, with small networks and few random features of the last regression."""
    config = default_preset()
    assert config.last_stage is not None
    return replace(config, model=small.model, last_stage=replace(config.last_stage, waves=10))
