"""Where the data lie: known regions, with and without a model of the treatment."""

from __future__ import annotations

import numpy as np
import pytest

from bgmiv.data import IVData
from bgmiv.trust.support import OUTSIDE, LinearSupport, fit_novelty

RNG = np.random.default_rng(0)
W, V, U = RNG.normal(size=(3, 1500))


def data(treatment: np.ndarray) -> IVData:
    return IVData.from_arrays(U + W, treatment, instruments=W, covariates={"v": V})


def test_few_of_the_rows_themselves_are_outside() -> None:
    support = LinearSupport.fit(data(3.0 * V + W))
    inside = support.inside(3.0 * V + W, V[:, None])
    assert 1.0 - 2.5 * OUTSIDE < inside.mean() < 1.0


def test_what_is_usual_depends_on_the_covariates() -> None:
    support = LinearSupport.fit(data(3.0 * V + W))
    # A treatment of 6 is usual at v = 2 and unheard of at v = -2.
    assert support.inside([6.0, 6.0], [[2.0], [-2.0]]).tolist() == [True, False]


def test_a_gap_between_two_kinds_of_people_is_seen() -> None:
    treatment = np.where(RNG.random(1500) > 0.5, 5.0, -5.0) + 0.3 * U
    support = LinearSupport.fit(data(treatment))
    assert support.inside([5.0, 0.0, -5.0], np.zeros((3, 1))).tolist() == [True, False, True]


def test_rare_levels_are_outside() -> None:
    levels = np.where(np.arange(1500) < 5, "rare", np.where(V > 0, "one", "two"))
    found = IVData.from_arrays(U + W, levels, instruments=W, covariates={"v": V})
    names = list(found.schema.treatment.levels or ())
    inside = LinearSupport.fit(found).inside([names.index(name) for name in ("one", "two", "rare")], np.zeros((3, 1)))
    assert inside.tolist() == [True, True, False]


def test_without_covariates_only_the_treatment_counts() -> None:
    found = LinearSupport.fit(IVData.from_arrays(U + W, U - W, instruments=W))
    assert found.inside([0.0, 40.0], np.zeros((2, 0))).tolist() == [True, False]


@pytest.mark.parametrize("width", [1, 5])
def test_distances_follow_the_shape_of_the_cloud(width: int) -> None:
    rows = RNG.normal(size=(3000, width)) * 10.0 ** np.arange(width)
    measure = fit_novelty(rows)
    assert measure.usual(rows).mean() == pytest.approx(1.0 - OUTSIDE, abs=0.001)
    assert not measure.usual(rows[:50] + 8.0 * rows.std(axis=0)).any()
