"""What every design must do; a new design adds a row to CASES."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bgmiv.data.ivdata import IVData
from bgmiv.designs import (
    DESIGNS,
    BinaryConfoundedDesign,
    BinaryOutcomeDesign,
    BinaryTreatmentDesign,
    CategoricalTreatmentDesign,
    DemandConfoundedDesign,
    DemandDesign,
    Design,
    LinearGaussianDesign,
    LowDimDesign,
    MnistDesign,
    MnistHDDesign,
    VectorProxyDesign,
    make_design,
)
from bgmiv.errors import ConfigError

CASES: dict[str, Callable[[], Design]] = {
    "demand": DemandDesign,
    "vector-proxy": lambda: VectorProxyDesign(vector_dim=6),
    "mnist": lambda: MnistDesign(images="digits"),
    "mnist-hd": lambda: MnistHDDesign(nuisance_dim=4, images="digits"),
    "lowdim-sin": lambda: LowDimDesign("sin"),
    "lowdim-abs": lambda: LowDimDesign("abs"),
    "lowdim-step": lambda: LowDimDesign("step"),
    "lowdim-linear": lambda: LowDimDesign("linear"),
    "linear-gaussian": LinearGaussianDesign,
    "demand-confounded": DemandConfoundedDesign,
    "binary-confounded": BinaryConfoundedDesign,
    "binary-treatment": BinaryTreatmentDesign,
    "categorical-treatment": CategoricalTreatmentDesign,
    "binary-outcome": BinaryOutcomeDesign,
}


@pytest.fixture(params=list(CASES))
def design(request: pytest.FixtureRequest) -> Design:
    return CASES[request.param]()


def test_every_registered_design_is_in_the_suite() -> None:
    assert set(CASES) == set(DESIGNS)
    for name in DESIGNS:
        assert make_design(name).name == name == CASES[name]().name


def test_sample_is_valid_data(design: Design) -> None:
    data = design.sample(60, rho=0.5, seed=1)
    assert isinstance(data, IVData)
    assert data.n_rows == 60
    assert data.instruments.shape[0] == 60


def test_sample_is_determined_by_its_arguments(design: Design) -> None:
    one, two = design.sample(40, 0.5, 3), design.sample(40, 0.5, 3)
    for role in ("outcome", "treatment", "covariates", "instruments"):
        np.testing.assert_array_equal(getattr(one, role), getattr(two, role))
    other = design.sample(40, 0.5, 4)
    assert not np.array_equal(one.treatment, other.treatment)
    if one.covariates.size:
        assert not np.array_equal(one.covariates, other.covariates)


def test_confounding_changes_only_the_outcome(design: Design) -> None:
    weak, strong = design.sample(50, 0.1, 7), design.sample(50, 0.9, 7)
    for role in ("treatment", "covariates", "instruments"):
        np.testing.assert_array_equal(getattr(weak, role), getattr(strong, role))
    assert not np.array_equal(weak.outcome, strong.outcome)


def test_grid_is_fixed_and_its_shapes_agree(design: Design) -> None:
    grid, again = design.grid(), design.grid()
    # The paper's size, as far as it is a multiple of the number of treatments.
    n = len(grid)
    assert 2790 < n <= 2800
    assert grid.treatment.shape == grid.truth.shape == grid.in_support.shape == (n,)
    assert grid.in_support.dtype == bool
    assert 0 < grid.in_support.sum() < n
    assert np.isfinite(grid.truth).all()
    for name, values in grid.covariates.items():
        assert len(values) == n
        np.testing.assert_array_equal(values, again.covariates[name])
    np.testing.assert_array_equal(grid.truth, again.truth)


def test_grid_covariates_fit_the_training_schema(design: Design) -> None:
    data, grid = design.sample(30, 0.5, 0), design.grid()
    treatment, covariates = data.schema.check_query(grid.treatment, grid.covariates)
    assert treatment.shape == (len(grid),)
    assert covariates.shape == (len(grid), data.covariates.shape[1])


@pytest.mark.parametrize(
    ("n", "rho", "seed", "word"), [(1, 0.5, 0, "n is 1"), (50, 1.5, 0, "rho"), (50, 0.5, -1, "seed")]
)
def test_bad_arguments_are_refused(design: Design, n: int, rho: float, seed: int, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        design.sample(n, rho, seed)


def test_unknown_design_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="demand, vector-proxy"):
        make_design("airline")
