"""Scattering features of pictures, and their scores."""

from __future__ import annotations

import numpy as np
import pytest

from bgmiv.data import BlockKind, IVData
from bgmiv.preprocess import reduction
from bgmiv.preprocess.reduction import BlockReduction, image_scores
from bgmiv.preprocess.scattering import _bank, scattering_features

RNG = np.random.default_rng(0)
DIGITS = (16, 16, 1)


def blobs(n, size=16, seed=0):
    """Pictures of one bright spot each, at a place and of a width of its own."""
    rng = np.random.default_rng(seed)
    line = np.arange(size)
    down, right, width = rng.uniform(5, 10, n), rng.uniform(5, 10, n), rng.uniform(1.0, 2.5, n)
    squares = (line[None, :, None] - down[:, None, None]) ** 2 + (line[None, None, :] - right[:, None, None]) ** 2
    return np.exp(-squares / (2 * width[:, None, None] ** 2)).reshape(n, -1)


def convolved(picture, filter_spectrum):
    """A circular convolution as the double sum that it is."""
    kernel = np.fft.ifft2(filter_spectrum)
    height, width = picture.shape
    total = np.zeros(picture.shape, complex)
    for i in range(height):
        for j in range(width):
            total += picture[i, j] * np.roll(kernel, (i, j), axis=(0, 1))
    return total


def test_paths_are_those_of_plain_convolutions():
    picture = RNG.random((16, 16))
    bank = _bank(2, 16, 16)
    scales, directions = bank.directed.shape[:2]
    expected = [convolved(picture, bank.low)[::4, ::4].real]
    for scale in range(scales):
        for direction in range(directions):
            first = np.abs(convolved(picture, bank.directed[scale, direction]))[:: 2**scale, :: 2**scale]
            whole = np.zeros((16, 16))
            # A coarser picture is the same as one that is zero between its pixels, but for its weight.
            whole[:: 2**scale, :: 2**scale] = first * 4**scale
            expected.append(convolved(whole, bank.low)[::4, ::4].real)
            for coarser in range(scale + 1, scales):
                for other in range(directions):
                    second = np.abs(convolved(whole, bank.directed[coarser, other]))[:: 2**coarser, :: 2**coarser]
                    spread = np.zeros((16, 16))
                    spread[:: 2**coarser, :: 2**coarser] = second * 4**coarser
                    expected.append(convolved(spread, bank.low)[::4, ::4].real)
    found = scattering_features(picture.reshape(1, -1), DIGITS).reshape(-1, 4, 4)
    assert len(found) == len(expected) == 1 + 16 + 64
    # Orders of a direction are next to each other in both.
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_wavelets_have_mean_zero_and_cover_frequencies_without_amplifying():
    bank = _bank(3, 32, 32)
    assert np.abs(bank.directed[:, :, 0, 0]).max() < 1e-6
    assert bank.low[0, 0] == pytest.approx(1.0, abs=1e-6)
    power = bank.low**2 + 0.5 * np.sum(
        bank.directed**2 + np.roll(bank.directed[..., ::-1, ::-1], 1, (2, 3)) ** 2, (0, 1)
    )
    assert power.max() < 1.2


def test_a_constant_picture_has_no_scales():
    features = scattering_features(np.full((1, 256), 0.5), DIGITS).reshape(-1, 4, 4)
    np.testing.assert_allclose(features[0], 0.5, atol=1e-6)
    assert np.abs(features[1:]).max() < 1e-6


def test_a_moved_picture_changes_less_than_its_pixels():
    picture = blobs(20)
    moved = np.roll(picture.reshape(-1, 16, 16), 1, axis=2).reshape(20, -1)
    features, shifted = (scattering_features(p, DIGITS) for p in (picture, moved))
    in_features = np.linalg.norm(features - shifted) / np.linalg.norm(features)
    in_pixels = np.linalg.norm(picture - moved) / np.linalg.norm(picture)
    assert in_features < 0.75 * in_pixels


@pytest.mark.parametrize("shape", [(28, 28, 1), (16, 16, 3), (9, 7, 2), (5, 40, 1), (2, 2, 1)])
def test_any_shape(shape):
    pictures = RNG.random((3, np.prod(shape)))
    features = scattering_features(pictures, shape)
    assert (len(features), features.dtype) == (3, np.float32)
    assert np.isfinite(features).all()
    np.testing.assert_array_equal(scattering_features(pictures[1:2], shape)[0], features[1])


def test_channels_are_looked_at_one_by_one():
    pictures = RNG.random((4, 12, 12, 2))
    both = scattering_features(pictures.reshape(4, -1), (12, 12, 2)).reshape(4, 2, -1)
    for channel in range(2):
        alone = scattering_features(pictures[..., channel].reshape(4, -1), (12, 12, 1))
        np.testing.assert_allclose(both[:, channel], alone, atol=1e-6)


def test_scores_have_unit_deviation_and_are_unrelated():
    pictures = blobs(300)
    scores = image_scores(pictures, DIGITS).transform(pictures)
    np.testing.assert_allclose(np.cov(scores.T, bias=True), np.eye(35), atol=1e-3)


def test_equal_pictures_have_equal_scores_in_any_order():
    pictures = blobs(30)
    projection = image_scores(pictures, DIGITS)
    order = RNG.integers(0, 30, 100)
    np.testing.assert_array_equal(projection.transform(pictures[order]), projection.transform(pictures)[order])


def test_fewer_pictures_than_scores():
    assert image_scores(blobs(3), DIGITS).n_components == 3


def test_many_pictures_are_fitted_by_some_of_them(monkeypatch):
    pictures = blobs(200)
    monkeypatch.setattr(reduction, "_MAX_IMAGES", 150)
    assert image_scores(pictures, DIGITS).transform(pictures).shape == (200, 28)


def table(pictures, outcome):
    n = len(pictures)
    return IVData.from_arrays(
        outcome, RNG.normal(size=n), instruments=RNG.normal(size=n), covariates={"age": np.arange(n), "photo": pictures}
    )


def test_image_blocks_become_scores():
    pictures = blobs(40).reshape(40, 16, 16)
    data = table(pictures, RNG.normal(size=40))
    fitted = BlockReduction().fit(data)
    age, photo = fitted.schema.blocks
    assert (age.width, photo.width, photo.kind, photo.shape) == (1, 13, BlockKind.image, None)
    assert photo.columns[0] == "photo[pc1]"
    reduced = fitted.apply(data)
    np.testing.assert_array_equal(reduced.covariates[:, 0], data.covariates[:, 0])
    np.testing.assert_array_equal(fitted.schema.check_covariates(reduced.covariates), reduced.covariates)
    grey = fitted.transform(table((pictures * 255).round() / 255, RNG.normal(size=40)).covariates)
    whole = fitted.transform(table((pictures * 255).round().astype(np.uint8), RNG.normal(size=40)).covariates)
    np.testing.assert_allclose(grey, whole, atol=1e-5)


def test_image_blocks_may_stay():
    data = table(blobs(20).reshape(20, 16, 16), RNG.normal(size=20))
    assert BlockReduction(images=False).fit(data).apply(data) is data
