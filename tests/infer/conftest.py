from __future__ import annotations

import jax
import numpy as np
import pytest

from bgmiv.covariates import CovariateConfig
from bgmiv.data import IVData
from bgmiv.model import BGMIVModel, LatentLayout, ModelConfig, build_model


@pytest.fixture(scope="session")
def model() -> BGMIVModel:
    """A drawn model with two covariates and four latents."""
    rng = np.random.default_rng(0)
    schema = IVData.from_arrays(
        rng.normal(size=4), rng.normal(size=4), instruments=rng.normal(size=4), covariates=rng.normal(size=(4, 2))
    ).schema
    config = ModelConfig(LatentLayout(1, 1, 1, 1), (8,), (8,), CovariateConfig(dense_hidden=(8,)))
    return build_model(schema, 1, config, key=jax.random.key(0))


@pytest.fixture(scope="session")
def covariates() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(50, 2)).astype(np.float32)
