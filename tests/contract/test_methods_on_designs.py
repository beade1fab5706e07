"""Methods on the designs of the registry: every kind of treatment, outcome and covariates that the bench has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from bgmiv.data import IVData
from bgmiv.designs import Design, MnistDesign, MnistHDDesign, VectorProxyDesign
from bgmiv.effects import predict
from bgmiv.errors import DataError
from bgmiv.estimators.base import IVEstimator
from report import make_design

# Pictures that need no network, in place of MNIST's.
IMAGES: dict[str, Design] = {
    "mnist": MnistDesign(images="digits"),
    "mnist-hd": MnistHDDesign(nuisance_dim=4, images="digits"),
}
# One design for each set of kinds. In closed form all are quick. A network compiles for seconds: the same kinds are in
# test_estimators.py and test_levels.py, and wide blocks in tests/bgm and tests/baselines/test_members.py.
KINDS = (
    *("demand", "vector-proxy", "binary-treatment", "categorical-treatment", "binary-outcome"),
    *("lowdim-sin", "noisy-concave", "semi-401ksubs-linear"),
)
QUICK = ("tsls", "npiv", "control-function", "kiv")
PAIRS = [(method, design) for method in QUICK for design in KINDS]
# Pictures are reduced by the same code for all but KIV; tests/bgm has them for BGM-IV, tests/baselines for NPIV.
PAIRS += [(method, "mnist-hd") for method in ("control-function", "kiv", "deepiv")]


class Drawn(NamedTuple):
    """A small sample of a design, and points of its grid to ask for; the truth there is left behind."""

    data: IVData
    treatments: np.ndarray
    covariates: Mapping[str, np.ndarray]


@cache
def drawn(design: str) -> Drawn:
    made = VectorProxyDesign(vector_dim=8) if design == "vector-proxy" else IMAGES.get(design) or make_design(design)
    grid = made.grid()
    # As many rows for all: designs with the same columns share their compiled programs.
    covariates = {name: values[::100] for name, values in grid.covariates.items()}
    return Drawn(made.sample(60, 0.5, 0), grid.treatment[::100], covariates)


@pytest.mark.parametrize(("method", "design"), PAIRS)
def test_one_finite_value_a_grid_point(method: str, design: str, tiny: Callable[..., IVEstimator]) -> None:
    given = drawn(design)
    fitted = tiny(method)._config().fit(given.data, 0)
    got = predict(fitted, given.treatments, given.covariates)
    assert got.shape == (28,)
    assert got.dtype == np.float64
    assert np.isfinite(got).all()


def test_least_squares_takes_no_images_and_names_the_block_and_a_way_out(tiny: Callable[..., IVEstimator]) -> None:
    with pytest.raises(DataError, match=r"'image' holds images.*features.*'vector'"):
        tiny("tsls")._config().fit(drawn("mnist").data, 0)
