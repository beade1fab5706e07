"""The image designs, on scikit-learn's digits, which need no network."""

from __future__ import annotations

import numpy as np
import pytest

from bgmiv.designs import DemandDesign, MnistDesign, MnistHDDesign
from bgmiv.designs.demand import demand_grid
from bgmiv.designs.mnist import digits

PLAIN = MnistDesign(images="digits")
WIDE = MnistHDDesign(images="digits")


def keys(images: np.ndarray) -> list[bytes]:
    """Each image as something to look up."""
    return [image.tobytes() for image in np.ascontiguousarray(images)]


def labels_of(images: np.ndarray, part: np.ndarray, labels: np.ndarray) -> list[int]:
    """The digit of each image; an image that is not in the part is an error."""
    known = dict(zip(keys(part), labels.tolist(), strict=True))
    return [known[key] for key in keys(images)]


def images_of(covariates: np.ndarray) -> np.ndarray:
    """The images in a flat matrix, as bytes."""
    return np.rint(covariates[:, 1:785] * 255).astype(np.uint8).reshape(-1, 28, 28)


def test_samples_are_demand_with_training_images_of_the_group() -> None:
    demand, data = DemandDesign().sample(3000, 0.3, 9), PLAIN.sample(3000, 0.3, 9)
    for role in ("outcome", "treatment", "instruments"):
        np.testing.assert_array_equal(getattr(demand, role), getattr(data, role))
    np.testing.assert_array_equal(demand.covariates[:, 0], data.covariates[:, 0])
    images = images_of(data.covariates)
    assert labels_of(images, digits().train_images, digits().train_labels) == demand.covariates[:, 1].tolist()
    # Of 1347 images about 940 show a digit from 1 to 7, each drawn 3 times on average.
    assert len(set(keys(images))) > 0.85 * np.isin(digits().train_labels, range(1, 8)).sum()


def test_the_grid_is_demands_with_test_images_of_the_group() -> None:
    grid, demand = PLAIN.grid(), DemandDesign().grid()
    for part in ("treatment", "truth", "in_support"):
        np.testing.assert_array_equal(getattr(grid, part), getattr(demand, part))
    images = grid.covariates["image"]
    assert labels_of(images, digits().test_images, digits().test_labels) == demand_grid()[2].tolist()
    other = MnistDesign(images="digits", feature_seed=1)
    assert not np.array_equal(other.grid().covariates["image"], images)
    np.testing.assert_array_equal(other.sample(50, 0.5, 0).covariates, PLAIN.sample(50, 0.5, 0).covariates)


def test_the_wide_design_is_the_plain_one_and_nuisance() -> None:
    plain, wide = PLAIN.sample(2000, 0.5, 3), WIDE.sample(2000, 0.5, 3)
    np.testing.assert_array_equal(wide.covariates[:, :785], plain.covariates)
    nuisance = wide.covariates[:, 785:]
    assert nuisance.std() == pytest.approx(1.0, abs=0.01)
    # Independent of outcome, treatment and instrument: no correlation beyond five standard errors.
    for role in (wide.outcome, wide.treatment, wide.instruments[:, 0]):
        assert np.abs(np.corrcoef(np.column_stack([role, nuisance]).T)[0, 1:]).max() < 5 / np.sqrt(2000)
    grid = WIDE.grid().covariates
    np.testing.assert_array_equal(PLAIN.grid().covariates["image"], grid["image"])
    assert len(np.unique(grid["nuisance"][:, 0])) == 2800


def test_digits_keep_their_shape_and_no_image_is_in_both_parts() -> None:
    from sklearn.datasets import load_digits

    found = digits()
    assert not set(keys(found.train_images)) & set(keys(found.test_images))
    assert min(np.bincount(labels, minlength=10).min() for labels in (found.train_labels, found.test_labels)) > 30
    # Averages of 7 by 7 pixels against those of 2 by 2: the same light in the same places.
    original = (load_digits().images[:1347] / 16).reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4))
    scaled = found.train_images.reshape(-1, 4, 7, 4, 7).mean(axis=(2, 4)) / 255
    np.testing.assert_allclose(scaled, original, atol=0.2)
