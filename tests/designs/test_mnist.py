"""The image designs, on the stand-in that needs no network."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from bgmiv.designs import DemandDesign, MnistDesign, MnistHDDesign
from bgmiv.designs.demand import demand_grid, draw_demand
from bgmiv.designs.stand_in import stand_in
from bgmiv.errors import ConfigError

PLAIN = MnistDesign(images="digits")
WIDE = MnistHDDesign(images="digits")


def keys(images: np.ndarray) -> list[bytes]:
    """Each picture as something to look up."""
    return [image.tobytes() for image in np.ascontiguousarray(images)]


def labels_of(images: np.ndarray, part: np.ndarray, labels: np.ndarray) -> list[int]:
    """The digit each picture shows; a picture that is not of the part is an error."""
    known = dict(zip(keys(part), labels.tolist(), strict=True))
    return [known[key] for key in keys(images)]


def pictures(covariates: np.ndarray) -> np.ndarray:
    """The pictures in a flat matrix, in bytes again."""
    return np.rint(covariates[:, 1:785] * 255).astype(np.uint8).reshape(-1, 28, 28)


def test_the_papers_settings() -> None:
    assert MnistDesign().images == MnistHDDesign().images == "mnist"
    plain, wide = PLAIN.sample(20, 0.5, 0), WIDE.sample(20, 0.5, 0)
    assert plain.covariates.shape == (20, 785)
    assert wide.covariates.shape == (20, 1000)
    assert [(block.name, str(block.kind), block.shape) for block in wide.schema.blocks] == [
        ("time", "continuous", None),
        ("image", "image", (28, 28, 1)),
        ("nuisance", "vector", None),
    ]
    assert plain.schema.blocks == wide.schema.blocks[:2]


@pytest.mark.parametrize("design", [PLAIN, WIDE], ids=["mnist", "mnist-hd"])
def test_shares_everything_but_the_group_with_demand(design: MnistDesign | MnistHDDesign) -> None:
    demand, images = DemandDesign().sample(80, 0.3, 9), design.sample(80, 0.3, 9)
    for role in ("outcome", "treatment", "instruments"):
        np.testing.assert_array_equal(getattr(demand, role), getattr(images, role))
    np.testing.assert_array_equal(demand.covariates[:, 0], images.covariates[:, 0])
    ours, theirs = design.grid(), DemandDesign().grid()
    for part in ("treatment", "truth", "in_support"):
        np.testing.assert_array_equal(getattr(ours, part), getattr(theirs, part))


def test_samples_show_training_pictures_of_their_group() -> None:
    digits = stand_in()
    shown = pictures(PLAIN.sample(3000, 0.5, 1).covariates)
    group = draw_demand(3000, 0.5, 1).group
    assert labels_of(shown, digits.train_images, digits.train_labels) == group.tolist()
    # Every training picture of a group has its turn: with 3000 rows, all but about one in ten of 943.
    wanted = np.isin(digits.train_labels, np.arange(1, 8)).sum()
    assert len(set(keys(shown))) > 0.85 * wanted


@pytest.mark.parametrize("design", [PLAIN, WIDE], ids=["mnist", "mnist-hd"])
def test_grid_shows_test_pictures_of_its_group(design: MnistDesign | MnistHDDesign) -> None:
    digits, shown = stand_in(), design.grid().covariates["image"]
    assert shown.shape == (2800, 28, 28)
    assert shown.dtype == np.uint8
    assert labels_of(shown, digits.test_images, digits.test_labels) == demand_grid()[2].tolist()
    assert not set(keys(shown)) & set(keys(digits.train_images))


def test_the_wide_design_is_the_plain_one_and_nuisance() -> None:
    plain, wide = PLAIN.sample(2000, 0.5, 3), WIDE.sample(2000, 0.5, 3)
    np.testing.assert_array_equal(wide.covariates[:, :785], plain.covariates)
    nuisance = wide.covariates[:, 785:]
    assert abs(nuisance.mean()) < 0.01
    assert nuisance.std() == pytest.approx(1.0, abs=0.01)
    # Independent of the outcome, the treatment and the instrument: nothing beyond five deviations of a correlation.
    for role in (wide.outcome, wide.treatment, wide.instruments[:, 0]):
        correlations = np.corrcoef(np.column_stack([role, nuisance]).T)[0, 1:]
        assert np.abs(correlations).max() < 5 / np.sqrt(2000)
    plain_grid, wide_grid = PLAIN.grid(), WIDE.grid()
    np.testing.assert_array_equal(plain_grid.covariates["image"], wide_grid.covariates["image"])
    assert wide_grid.covariates["nuisance"].shape == (2800, 215)
    assert len(np.unique(wide_grid.covariates["nuisance"][:, 0])) == 2800


@pytest.mark.parametrize("design", [PLAIN, WIDE], ids=["mnist", "mnist-hd"])
def test_small_sample_is_the_beginning_of_a_large_one(design: MnistDesign | MnistHDDesign) -> None:
    small, large = design.sample(10, 0.5, 5), design.sample(500, 0.5, 5)
    np.testing.assert_array_equal(small.covariates, large.covariates[:10])
    np.testing.assert_array_equal(small.outcome, large.outcome[:10])


def test_streams_are_separate_even_when_the_seeds_coincide() -> None:
    design = MnistHDDesign(images="digits", feature_seed=3)
    sample, grid = design.sample(2800, 0.5, seed=3), design.grid()
    train = sample.covariates[:, 785:]
    assert abs(np.corrcoef(train.ravel(), grid.covariates["nuisance"].ravel())[0, 1]) < 0.01
    draw = draw_demand(2800, 0.5, 3)
    for hidden in (draw.shock, draw.cost, draw.time):
        assert abs(np.corrcoef(train[:, 0], hidden)[0, 1]) < 0.1
    # How far along its digit's pictures a row's picture is: as unrelated to the other draws, and to the grid's.
    digits = stand_in()
    place = places(pictures(sample.covariates), digits.train_images, digits.train_labels)
    on_grid = places(grid.covariates["image"], digits.test_images, digits.test_labels)
    for other in (draw.time, draw.shock, train[:, 0], on_grid):
        assert abs(np.corrcoef(place, other)[0, 1]) < 0.1


def places(shown: np.ndarray, part: np.ndarray, labels: np.ndarray) -> np.ndarray:
    position = {key: i for i, key in enumerate(keys(part))}
    order = np.zeros(len(part))
    for digit in range(10):
        order[labels == digit] = np.linspace(0.0, 1.0, (labels == digit).sum())
    return np.array([order[position[key]] for key in keys(shown)])


def test_feature_seed_decides_the_grid_alone() -> None:
    other = MnistDesign(images="digits", feature_seed=1)
    assert not np.array_equal(other.grid().covariates["image"], PLAIN.grid().covariates["image"])
    np.testing.assert_array_equal(other.sample(50, 0.5, 0).covariates, PLAIN.sample(50, 0.5, 0).covariates)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (MnistDesign, {"images": "letters"}),
        (MnistDesign, {"feature_seed": -1}),
        (MnistHDDesign, {"images": "letters"}),
        (MnistHDDesign, {"nuisance_dim": 0}),
    ],
)
def test_bad_settings_are_refused(kind: type, wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        kind(**wrong)


def test_stand_in_has_every_digit_and_no_picture_in_both_parts() -> None:
    digits = stand_in()
    assert digits.train_images.shape == (1347, 28, 28)
    assert digits.test_images.shape == (450, 28, 28)
    assert not set(keys(digits.train_images)) & set(keys(digits.test_images))
    for images, labels in ((digits.train_images, digits.train_labels), (digits.test_images, digits.test_labels)):
        assert images.dtype == labels.dtype == np.uint8
        assert images.max() > 240
        assert images.min() == 0
        assert np.bincount(labels, minlength=10).min() > 30
        assert not images.flags.writeable


def test_stand_in_keeps_the_pictures() -> None:
    from sklearn.datasets import load_digits

    small = load_digits().images[:1347] / 16
    # Averages of 7 by 7 pixels against those of 2 by 2: the same light in the same places.
    scaled = stand_in().train_images.reshape(-1, 4, 7, 4, 7).mean(axis=(2, 4)) / 255
    np.testing.assert_allclose(scaled, small.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)), atol=0.2)
    assert np.corrcoef(scaled.ravel(), small.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).ravel())[0, 1] > 0.98


def test_importing_the_designs_is_light() -> None:
    code = (
        "import sys, bgmiv.designs as d; d.make_design('mnist'); d.make_design('mnist-hd'); "
        "print([m for m in ('sklearn', 'urllib.request', 'tarfile', 'jax') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
