"""The discrete designs are what they say: identified by their instruments, and wrong without them."""

from __future__ import annotations

import numpy as np
import pytest

from bgmiv.data.ivdata import IVData
from bgmiv.designs import BinaryOutcomeDesign, BinaryTreatmentDesign, CategoricalTreatmentDesign, Design
from bgmiv.errors import ConfigError

N = 200_000
DESIGNS: dict[str, Design] = {
    "binary treatment": BinaryTreatmentDesign(),
    "categorical treatment": CategoricalTreatmentDesign(),
    "binary outcome": BinaryOutcomeDesign(),
}


def truth(design: Design, data: IVData) -> np.ndarray:
    covariate = data.covariates[:, 0]
    if isinstance(design, BinaryTreatmentDesign):
        levels = np.array(data.schema.blocks[1].levels)
        return design.structural(data.treatment, covariate, levels[data.covariates[:, 1:].argmax(axis=1)])
    if isinstance(design, CategoricalTreatmentDesign):
        levels = np.array(data.schema.treatment.levels)
        return design.structural(levels[data.treatment.astype(int)], covariate, data.covariates[:, 1])
    assert isinstance(design, BinaryOutcomeDesign)
    return design.structural(data.treatment, covariate)


@pytest.fixture(scope="module", params=list(DESIGNS))
def drawn(request: pytest.FixtureRequest) -> tuple[Design, IVData]:
    design = DESIGNS[request.param]
    return design, design.sample(N, 0.9, 0)


def test_residuals_have_mean_zero_given_instruments_and_covariates(drawn: tuple[Design, IVData]) -> None:
    design, data = drawn
    residuals = data.outcome - truth(design, data)
    conditions = np.column_stack([data.instruments, data.covariates])
    for function in (lambda c: np.ones_like(c), np.sin, np.abs, lambda c: c * conditions[:, :1]):
        products = residuals[:, None] * function(conditions)
        assert (np.abs(products.mean(axis=0)) < 4.0 * products.std(axis=0) / np.sqrt(N) + 1e-12).all()


def test_a_regression_without_the_instruments_is_far_off(drawn: tuple[Design, IVData]) -> None:
    """Means of the outcome in cells of treatment and covariates, the regression no sample size mends."""
    design, data = drawn
    if isinstance(design, BinaryOutcomeDesign):
        treatments = [np.abs(data.treatment - level) < 0.1 for level in (-1.5, 1.5)]
    else:
        treatments = [data.treatment == code for code in range(len(data.schema.treatment.levels or (0, 1)))]
        base = (data.schema.treatment.levels or ("none",)).index("none")
        treatments = [treatments[base], *treatments[:base], *treatments[base + 1 :]]
    cells = np.unique(
        np.round(data.covariates * [4.0, *[1.0] * (data.covariates.shape[1] - 1)]), axis=0, return_inverse=True
    )[1]
    for taken in treatments[1:]:
        contrasts = []
        for values in (data.outcome, truth(design, data)):
            means = [
                np.bincount(cells, values * chosen) / np.maximum(np.bincount(cells, chosen), 1)
                for chosen in (taken, treatments[0])
            ]
            contrasts.append(np.average(means[0] - means[1], weights=np.bincount(cells)))
        assert contrasts[0] / contrasts[1] > 1.5


def test_probabilities_are_probabilities() -> None:
    design = BinaryOutcomeDesign()
    grid = design.grid()
    assert grid.truth.min() - design.reach >= 0.0
    assert grid.truth.max() + design.reach <= 1.0
    with pytest.raises(ConfigError, match="reach"):
        BinaryOutcomeDesign(reach=0.4)


@pytest.mark.parametrize("make", [BinaryTreatmentDesign, CategoricalTreatmentDesign, BinaryOutcomeDesign])
def test_an_instrument_must_act(make: type) -> None:
    with pytest.raises(ConfigError, match="strength"):
        make(strength=0.0)
    with pytest.raises(ConfigError, match="finite"):
        make(strength=np.inf)
