"""What every design must do; a new design is tested by its registry entry, with smaller settings in SMALL."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from bgmiv.data.query import query_at
from bgmiv.designs import (
    DESIGNS,
    DemandConfoundedDesign,
    Design,
    MnistDesign,
    MnistHDDesign,
    NoisyDemandDesign,
    VectorProxyDesign,
    make_design,
)
from bgmiv.errors import ConfigError
from report.small_designs import BinaryConfoundedDesign, BinaryOutcomeDesign, LinearGaussianDesign, LowDimDesign

SMALL: dict[str, Design] = {
    "vector-proxy": VectorProxyDesign(vector_dim=6),
    "mnist": MnistDesign(images="digits"),
    "mnist-hd": MnistHDDesign(nuisance_dim=4, images="digits"),
    "noisy-vector": NoisyDemandDesign(proxy="vector", vector_dim=6),
    "noisy-mnist": NoisyDemandDesign(proxy="image", images="digits"),
}


@pytest.fixture(params=DESIGNS)
def design(request: pytest.FixtureRequest) -> Design:
    return SMALL.get(request.param) or make_design(request.param)


@pytest.mark.parametrize("name", DESIGNS)
def test_a_registry_entry_makes_the_design_of_its_name(name: str) -> None:
    assert DESIGNS[name].make().name == DESIGNS[name].name == name
    assert DESIGNS[name].unit in (None, 1.0, 1e4)


def test_a_sample_is_determined_by_its_arguments(design: Design) -> None:
    one, two, other = design.sample(40, 0.5, 3), design.sample(40, 0.5, 3), design.sample(40, 0.5, 4)
    strong = design.sample(40, 0.9, 3)
    assert one.n_rows == 40
    for role in ("outcome", "treatment", "covariates", "instruments"):
        values = getattr(one, role)
        np.testing.assert_array_equal(values, getattr(two, role))
        assert not values.size or not np.array_equal(values, getattr(other, role))
        # Confounding changes the outcome alone.
        assert np.array_equal(values, getattr(strong, role)) == (role != "outcome")


def test_the_grid_is_fixed_and_fits_the_training_schema(design: Design) -> None:
    grid, again = design.grid(), design.grid()
    # The paper's size, as far as it is a multiple of the number of treatments.
    n = len(grid)
    assert 2790 < n <= 2800
    assert grid.treatment.shape == grid.truth.shape == grid.in_support.shape == (n,)
    assert grid.in_support.dtype == bool
    assert 0 < grid.in_support.sum() <= n
    assert np.isfinite(grid.truth).all()
    np.testing.assert_array_equal(grid.truth, again.truth)
    for name, values in grid.covariates.items():
        np.testing.assert_array_equal(values, again.covariates[name])
    data = design.sample(30, 0.5, 0)
    query = query_at(data.schema, grid.treatment, grid.covariates)
    treatment, covariates = query.treatment[0], query.rows.covariates
    assert treatment.shape == (n,)
    assert covariates.shape == (n, data.covariates.shape[1])


def test_bad_arguments_are_refused(design: Design) -> None:
    for n, rho, seed, word in ((1, 0.5, 0, "n is 1"), (50, 1.5, 0, "rho"), (50, 0.5, -1, "seed")):
        with pytest.raises(ConfigError, match=word):
            design.sample(n, rho, seed)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (partial(LinearGaussianDesign, strength=0.0), "strength is 0; the instrument must move"),
        (partial(LinearGaussianDesign, slope=float("nan")), "slope is nan; choose a finite value"),
        (partial(DemandConfoundedDesign, disturbance=-1.0), "disturbance is -1.0; choose 0 or more"),
        (partial(BinaryConfoundedDesign, disturbance=float("inf")), "disturbance is inf"),
        (partial(BinaryOutcomeDesign, reach=0.4), "reach is 0.4; choose 0 to 0.26"),
        (partial(LowDimDesign, "cubic"), "curve is 'cubic'; choose one of sin, abs"),
        (partial(LowDimDesign, strength=1.5), "strength is 1.5; choose a value above 0 and up to 1"),
        (partial(VectorProxyDesign, vector_dim=0), "vector_dim is 0; choose 1 or more"),
        (partial(MnistHDDesign, images="letters"), "images is 'letters'; choose one of mnist, digits"),
        (partial(MnistHDDesign, feature_seed=-1), "feature_seed is -1; choose 0 or more"),
    ],
)
def test_bad_settings_are_refused(make: Callable[[], Design], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        make()


def test_unknown_design_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="demand, vector-proxy"):
        make_design("airline")


def test_importing_the_designs_is_light() -> None:
    code = (
        "import sys, bgmiv.designs as d; [d.make_design(name) for name in d.DESIGNS]; "
        "print([m for m in ('jax', 'pandas', 'sklearn', 'scipy.stats') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
