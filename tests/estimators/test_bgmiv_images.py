"""BGM-IV on a table, images and an embedding at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from bgmiv import BGMIV
from bgmiv.covariates import CovariateConfig, ImageConfig
from bgmiv.data import IVData
from bgmiv.errors import DataError
from bgmiv.estimators.bgmiv import BGMIVConfig
from bgmiv.model import LatentLayout

N = 24
RNG = np.random.default_rng(0)
W, AGE, U = RNG.normal(size=(3, N))
X = W + AGE + U
Y = 2.0 * X + AGE - U
COVARIATES: dict[str, Any] = {
    "age": AGE,
    "photo": RNG.integers(0, 256, size=(N, 16, 16, 3)),
    "text": RNG.normal(size=(N, 32)),
}


@pytest.fixture(autouse=True, scope="module")
def quick_compilation() -> Iterator[None]:
    """Much is compiled here and little run: XLA's optimisations would cost more than they give."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def test_three_kinds_of_blocks_through_the_papers_networks() -> None:
    model = BGMIV(
        preset="paper-qmc", warm_start_iterations=3, epochs=1, batch_size=4, latents="encoder", random_state=0
    )
    model.fit(Y, X, instruments=W, covariates=COVARIATES)
    fitted = model.fitted_
    parts = fitted.model.covariates.encoder.features.parts
    assert [part.width for part in parts] == [1, 64, 32]
    assert fitted.config.layout == LatentLayout(2, 1, 1, 2)
    got = model.predict(0.5, {name: values[:5] for name, values in COVARIATES.items()})
    assert got.shape == (5,)
    assert np.isfinite(got).all()
    with pytest.raises(DataError, match="photo"):
        model.predict(0.5, {**COVARIATES, "photo": np.zeros((N, 8, 8, 3))})


@pytest.mark.parametrize("kind", ["image", "vector"])
def test_the_papers_layout_and_batch_size(kind: str) -> None:
    data = IVData.from_arrays(Y, X, instruments=W, covariates={"photo": RNG.random((N, 9))}, blocks={"photo": "vector"})
    if kind == "image":
        data = IVData.from_arrays(Y, X, instruments=W, covariates={"photo": RNG.random((N, 3, 3))})
    config = BGMIVConfig().resolved(data.schema, 5000)
    assert (config.layout, config.batch_size) == (LatentLayout(2, 1, 1, 2), 32)


def test_the_papers_networks_see_images_as_they_are() -> None:
    images = CovariateConfig().images
    assert images == ImageConfig(features="conv", decoder="conv", shift=0, noise=0.0, dropout=0.1)
