"""Where the data lie: known regions, with and without a model of the treatment."""

from __future__ import annotations

import numpy as np
import pytest

from bgmiv.data import IVData
from bgmiv.support import OUTSIDE, LinearSupport, fit_novelty

RNG = np.random.default_rng(0)
W, V, U = RNG.normal(size=(3, 1500))


def fitted(treatment: np.ndarray) -> LinearSupport:
    return LinearSupport.fit(IVData.from_arrays(U + W, treatment, instruments=W, covariates={"v": V}))


def test_the_support_depends_on_the_covariates() -> None:
    support = fitted(3.0 * V + U)
    assert 1.0 - 2.5 * OUTSIDE < support.inside(3.0 * V + U, V[:, None]).mean() < 1.0
    # A treatment of 6 is usual at v = 2 and unheard of at v = -2.
    covariates = [[2.0], [-2.0]]
    assert support.inside([6.0, 6.0], covariates).tolist() == [True, False]
    several = support.inside([[6.0, -6.0], [6.0, 6.0]], covariates)
    assert several.tolist() == [[True, True], [True, False]]
    assert support.inside([[6.0], [-6.0]], covariates).tolist() == [[True, False], [False, True]]


def test_a_gap_between_two_groups_is_outside() -> None:
    support = fitted(np.where(RNG.random(1500) > 0.5, 5.0, -5.0) + 0.3 * U)
    assert support.inside([5.0, 0.0, -5.0], np.zeros((3, 1))).tolist() == [True, False, True]


def test_rare_levels_are_outside() -> None:
    levels = np.where(np.arange(1500) < 5, "rare", np.where(V > 0, "one", "two"))
    data = IVData.from_arrays(U + W, levels, instruments=W, covariates={"v": V})
    names = list(data.schema.treatment.levels or ())
    codes = [[names.index(name)] for name in ("one", "two", "rare")]
    assert LinearSupport.fit(data).inside(codes, np.zeros((1, 1))).tolist() == [[True], [True], [False]]


def test_without_covariates_only_the_treatment_counts() -> None:
    found = LinearSupport.fit(IVData.from_arrays(U + W, U - W, instruments=W))
    assert found.inside([0.0, 40.0], np.zeros((2, 0))).tolist() == [True, False]


def test_wide_covariates_are_projected() -> None:
    n, p = 400, 150
    factors = RNG.normal(size=(n, 3))
    mixing = RNG.normal(size=(3, p))
    scan = 7.0 + factors @ mixing + 0.1 * RNG.normal(size=(n, p))
    x = 3.0 * factors[:, 0] + W[:n]
    data = IVData.from_arrays(U[:n], x, instruments=W[:n], covariates={"scan": scan})
    support = LinearSupport.fit(data)
    assert support.loadings.shape == (p, 50)
    assert support.inside(x, data.covariates).mean() > 1.0 - 2.5 * OUTSIDE
    place = 7.0 + np.array([[2.0, 0.0, 0.0], [-2.0, 0.0, 0.0], [30.0, 0.0, 0.0]]) @ mixing
    assert support.inside([6.0, 6.0, 90.0], place).tolist() == [True, False, False]
    # The leading components are those of a full decomposition.
    z = (data.covariates - data.covariates.mean(axis=0)) / data.covariates.std(axis=0)
    own = np.linalg.svd(support.loadings[:, :3] * data.covariates.std(axis=0)[:, None], full_matrices=False)[0]
    full = np.linalg.svd(z, full_matrices=False)[2][:3].T
    np.testing.assert_allclose(np.linalg.svd(own.T @ full)[1], 1.0, rtol=1e-4)


@pytest.mark.parametrize("width", [1, 5])
def test_distances_follow_the_shape_of_the_cloud(width: int) -> None:
    rows = RNG.normal(size=(3000, width)) * 10.0 ** np.arange(width)
    measure = fit_novelty(rows)
    assert measure.usual(rows).mean() == pytest.approx(1.0 - OUTSIDE, abs=0.001)
    assert not measure.usual(rows[:50] + 8.0 * rows.std(axis=0)).any()
