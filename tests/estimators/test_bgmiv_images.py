"""BGM-IV on a table, images and an embedding at once."""

from __future__ import annotations

from typing import Any

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


def quick(**changes: Any) -> BGMIV:
    return BGMIV(warm_start_iterations=3, members=1, random_state=0, **changes)


def test_three_kinds_of_blocks_by_default() -> None:
    model = quick()
    model.fit(Y, X, instruments=W, covariates=COVARIATES)
    fitted = model.fitted_
    # Pictures are scores by now, and text in which no component stands out is what it was.
    assert [block.width for block in fitted.reduction.schema.blocks] == [1, 10, 32]
    assert [block.shape for block in fitted.reduction.schema.blocks] == [None] * 3
    got = model.predict(0.5, {name: values[:5] for name, values in COVARIATES.items()})
    assert got.shape == (5,)
    assert np.isfinite(got).all()
    with pytest.raises(DataError, match="photo"):
        model.predict(0.5, {**COVARIATES, "photo": np.zeros((N, 8, 8, 3))})


def test_pixels_in_any_unit_give_the_same_fit() -> None:
    answers = []
    for photo in (COVARIATES["photo"], COVARIATES["photo"] / 255.0):
        covariates = {"age": AGE, "photo": photo}
        answers.append(quick().fit(Y, X, instruments=W, covariates=covariates).predict(X, covariates))
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-4, atol=1e-4)


def test_noise_is_chosen_for_wide_blocks_and_kept() -> None:
    wide = RNG.normal(size=(60, 40))
    w, u = RNG.normal(size=(2, 60))
    noises = []
    for signal in (np.zeros(60), 20.0 * wide @ RNG.normal(size=40)):
        x = w + u + signal
        fitted = quick().fit(x + u, x, instruments=w, covariates={"wide": wide}).fitted_
        noises.append(dict(fitted.config.model.covariates.block_noise)["wide"])
        assert fitted.model.covariates.encoder.features.parts[0].input_noise == noises[-1]
    assert noises[0] > noises[1]


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
