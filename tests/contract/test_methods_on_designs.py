"""Every method fits every design of the registry, but for images and least squares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import jax
import numpy as np
import pytest

from bgmiv.data import IVData
from bgmiv.designs import Design, MnistDesign, MnistHDDesign, VectorProxyDesign, design_names, make_design
from bgmiv.errors import DataError
from bgmiv.estimators.base import Estimator
from bgmiv.estimators.registry import make_estimator, method_names

# Pictures that need no network, in place of MNIST's.
IMAGES: dict[str, Design] = {
    "mnist": MnistDesign(images="digits"),
    "mnist-hd": MnistHDDesign(nuisance_dim=4, images="digits"),
}
# Least squares would be linear in every pixel and refuses.
REFUSES_IMAGES = ("tsls", "tsls-noiv")
# Compilation takes seconds, and the blocks of "mnist" are among those of "mnist-hd".
SEES_PLAIN_IMAGES = ("kiv", "kiv-noiv", "deepgmm")
# A network's twin is the same code with another integral: two kinds of treatment try it.
TWINS_SEE = ("demand", "categorical-treatment")


def tried(method: str, design: str) -> bool:
    if method.endswith("-noiv") and not method.startswith(("kiv", "tsls")):
        return design in TWINS_SEE
    if design not in IMAGES:
        return True
    return method not in REFUSES_IMAGES if design == "mnist-hd" else method in SEES_PLAIN_IMAGES


PAIRS = [(method, design) for design in design_names() for method in method_names() if tried(method, design)]


class Drawn(NamedTuple):
    """A small sample of a design, and points of its grid to ask for; the truth there is left behind."""

    data: IVData
    treatments: np.ndarray
    covariates: Mapping[str, np.ndarray]


@cache
def drawn(design: str, *, narrow: bool) -> Drawn:
    wide = design == "vector-proxy"
    made = VectorProxyDesign(vector_dim=8) if wide and narrow else IMAGES.get(design) or make_design(design)
    grid = made.grid()
    return Drawn(
        # As many rows for all: designs with the same columns share their compiled programs.
        made.sample(40 if wide else 60, 0.5, 0),
        grid.treatment[::100],
        {name: values[::100] for name, values in grid.covariates.items()},
    )


def drawn_for(method: str, design: str) -> Drawn:
    # Least squares refuses more columns than half the rows.
    return drawn(design, narrow=method.startswith("tsls"))


Predict = Callable[[str, Drawn], np.ndarray]
Prediction = Callable[[str, str], np.ndarray]


@pytest.fixture(scope="module")
def predict(tiny: Callable[..., Estimator]) -> Predict:
    """Fits, and predicts at the points."""

    def run(method: str, given: Drawn) -> np.ndarray:
        # Compilation is nearly all the time here, and phases beyond the preset's are in test_estimators.py.
        config = tiny(make_estimator(method), every_phase=False)
        return config.fit(given.data, jax.random.key(0)).predict(given.treatments, given.covariates)

    return run


@pytest.fixture(scope="module")
def prediction(predict: Predict) -> Prediction:
    """The same by method and design, made once."""
    return cache(lambda method, design: predict(method, drawn_for(method, design)))


@pytest.mark.parametrize(("method", "design"), PAIRS)
def test_one_finite_value_a_grid_point(method: str, design: str, prediction: Prediction) -> None:
    got = prediction(method, design)
    assert got.shape == (28,)
    assert got.dtype == np.float64
    assert np.isfinite(got).all()


@pytest.mark.parametrize(("method", "design"), PAIRS)
def test_the_same_key_gives_the_same_predictions(
    method: str, design: str, predict: Predict, prediction: Prediction
) -> None:
    given = drawn_for(method, design)
    np.testing.assert_array_equal(predict(method, given), prediction(method, design))


@pytest.mark.parametrize(("method", "design"), [pair for pair in PAIRS if pair[1] != "binary-outcome"])
def test_predictions_are_in_the_units_of_the_outcome(
    method: str, design: str, predict: Predict, prediction: Prediction
) -> None:
    given = drawn_for(method, design)
    changed = replace(given.data, outcome=1000.0 * given.data.outcome - 7.0)
    expected = 1000.0 * prediction(method, design) - 7.0
    got = predict(method, given._replace(data=changed))
    np.testing.assert_allclose(got, expected, atol=1e-3 * changed.outcome.std())


@pytest.mark.parametrize("method", REFUSES_IMAGES)
def test_a_method_that_takes_no_images_names_the_block_and_a_way_out(method: str) -> None:
    with pytest.raises(DataError, match=r"'image' holds images.*features.*'vector'"):
        make_estimator(method).fit(drawn("mnist", narrow=False).data, jax.random.key(0))


@pytest.mark.parametrize("method", method_names())
def test_an_outcome_of_several_levels_has_probabilities_or_is_refused_with_a_way_out(
    method: str, predict: Predict
) -> None:
    given = drawn("categorical-treatment", narrow=False)
    levels = np.array(["low", "middle", "high"])[np.digitize(given.data.outcome, [0.0, 2.0])]
    read = IVData.from_arrays(levels, np.arange(len(levels)), instruments=np.sin(np.arange(len(levels))))
    outcome = replace(given.data.schema, outcome=read.schema.outcome)
    given = given._replace(data=replace(given.data, outcome=read.outcome, schema=outcome))
    if not method.startswith("bgm-iv"):
        with pytest.raises(DataError, match=r"3 levels.*outcome == level.*BGMIV"):
            predict(method, given)
        return
    got = predict(method, given)
    assert got.shape == (28, 3)
    np.testing.assert_allclose(got.sum(axis=1), 1.0, atol=1e-5)
