"""Small models and fits that the tests of this folder share, so that each program is compiled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from bgmiv.bgm.config import BGMIVConfig, CovariateConfig, LatentLayout, ModelConfig
from bgmiv.bgm.fitted import FittedNetworks
from bgmiv.bgm.model import BGMIVModel, build_model
from bgmiv.data import IVData


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


@pytest.fixture(scope="session")
def same() -> Callable[[Any, Any], bool]:
    """Whether two trees of arrays are equal to the last bit."""

    def compare(one: Any, two: Any) -> bool:
        return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))

    return compare


def draw_proxy(seed: int = 0, outcome_scale: float = 1.0) -> IVData:
    """A hundred rows whose covariate is a wide noisy proxy of one hidden factor."""
    rng = np.random.default_rng(seed)
    w, u, hidden = rng.normal(size=(3, 100))
    proxy = 50.0 + 3.0 * (np.outer(hidden, rng.normal(size=24)) + 0.5 * rng.normal(size=(100, 24)))
    x = w + hidden + u
    y = 20.0 + 5.0 * (x + hidden + u)
    return IVData.from_arrays(outcome_scale * y, x, instruments=w, covariates={"proxy": proxy})


@pytest.fixture(scope="session")
def proxy_data() -> IVData:
    return draw_proxy()


@pytest.fixture(scope="session")
def huge_outcomes() -> IVData:
    """Outcomes so large that training on them unscaled diverges."""
    return draw_proxy(outcome_scale=1e30)


@pytest.fixture(scope="session")
def fitted(small: BGMIVConfig, proxy_data: IVData) -> FittedNetworks:
    """`small` fitted to `proxy_data` with seed 4."""
    return small.fit(proxy_data, 4)
