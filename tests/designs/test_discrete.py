"""The discrete designs are what they say: identified by their instruments, and wrong without them."""

from __future__ import annotations

import numpy as np
import pytest

from bgmiv.data.ivdata import IVData
from bgmiv.designs import Design
from report.small_designs import (
    BinaryConfoundedDesign,
    BinaryOutcomeDesign,
    BinaryTreatmentDesign,
    CategoricalTreatmentDesign,
)

N = 200_000


def truth(design: Design, data: IVData) -> np.ndarray:
    covariate = data.covariates[:, 0]
    if isinstance(design, BinaryTreatmentDesign):
        levels = np.array(data.schema.blocks[1].levels)
        return design.structural(data.treatment, covariate, levels[data.covariates[:, 1:].argmax(axis=1)])
    if isinstance(design, CategoricalTreatmentDesign):
        levels = np.array(data.schema.treatment.levels)
        return design.structural(levels[data.treatment.astype(int)], covariate, data.covariates[:, 1])
    assert isinstance(design, BinaryConfoundedDesign | BinaryOutcomeDesign)
    return design.structural(data.treatment, covariate)


@pytest.mark.parametrize(
    "make", [BinaryConfoundedDesign, BinaryTreatmentDesign, CategoricalTreatmentDesign, BinaryOutcomeDesign]
)
def test_instruments_identify_the_truth_and_the_treatment_is_endogenous(make: type[Design]) -> None:
    data = make().sample(N, 0.9, 0)
    residuals = data.outcome - truth(make(), data)
    conditions = np.column_stack([data.instruments, data.covariates])
    for function in (np.ones_like, np.sin, np.abs, lambda c: c * conditions[:, :1]):
        products = residuals[:, None] * function(conditions)
        assert (np.abs(products.mean(axis=0)) < 4.0 * products.std(axis=0) / np.sqrt(N) + 1e-12).all()
    treatments = data.schema.treatment.columns(data.treatment)
    assert max(abs(np.corrcoef(residuals, column)[0, 1]) for column in treatments.T) > 0.1


def test_probabilities_are_probabilities() -> None:
    design = BinaryOutcomeDesign()
    grid = design.grid()
    assert grid.truth.min() - design.reach >= 0.0
    assert grid.truth.max() + design.reach <= 1.0


def test_binary_support_excludes_rare_treatments() -> None:
    grid = BinaryConfoundedDesign().grid()
    covariate = grid.covariates["covariate"]
    assert covariate[(grid.treatment == 0.0) & ~grid.in_support].min() > 0
    assert covariate[(grid.treatment == 1.0) & ~grid.in_support].max() < 0
    data = BinaryConfoundedDesign().sample(N, 0.9, 0)
    near = np.abs(data.covariates[:, 0] - 1.0) < 0.05
    propensity = BinaryConfoundedDesign().propensity(np.array([1.0]))[0]
    assert data.treatment[near].mean() == pytest.approx(propensity, abs=0.02)
