"""The conditional-moment test: its size under the truth and its power against a confounded g."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bgmiv.data.ivdata import IVData
from bgmiv.errors import DataError
from bgmiv.trust.moment_test import moment_test


def sample(seed: int, *, n: int = 150, n_covariates: int = 2, per_group: int = 1) -> IVData:
    """Errors whose variance depends on the instrument; those of a group have a part in common."""
    rng = np.random.default_rng(seed)
    w, u = rng.normal(size=(2, n))
    groups = np.arange(n) // per_group
    if per_group > 1:
        u, w = 0.6 * u + 0.8 * rng.normal(size=n)[groups], 0.6 * w + 0.8 * rng.normal(size=n)[groups]
    u = u * (1.0 + 0.5 * np.abs(w))
    v = rng.normal(size=(n, n_covariates))
    x = w + u
    data = IVData.from_arrays(2.0 * x + v.sum(axis=1) - u, x, instruments=w, covariates=v)
    return replace(data, groups=groups) if per_group > 1 else data


def rejections(slope: float, repeats: int, per_group: int = 1) -> float:
    found = []
    for seed in range(repeats):
        data = sample(seed, per_group=per_group)
        g = slope * data.treatment + data.covariates.sum(axis=1)
        found.append(moment_test(data, g, draws=200, seed=seed).p_value <= 0.05)
    return float(np.mean(found))


@pytest.mark.parametrize("per_group", [1, 5])
def test_size_is_near_five_percent_under_the_truth(per_group: int) -> None:
    # Of 300 tests at 5%, between 2% and 9% reject with a probability above 99%.
    assert 0.02 <= rejections(2.0, 300, per_group) <= 0.09


def test_power_against_a_confounded_curve() -> None:
    # What least squares tends to here is a slope near 1.4.
    assert rejections(1.4, 50) > 0.9


def test_groups_that_are_ignored_reject_the_truth() -> None:
    found = []
    for seed in range(60):
        data = replace(sample(seed, per_group=5), groups=None)
        g = 2.0 * data.treatment + data.covariates.sum(axis=1)
        found.append(moment_test(data, g, draws=200, seed=seed).p_value <= 0.05)
    assert np.mean(found) > 0.2


def test_a_nonlinear_violation_is_seen() -> None:
    rng = np.random.default_rng(0)
    w, v, e = rng.normal(size=(3, 600))
    # No linear function of w or v sees w v, nor does a function of either alone.
    data = IVData.from_arrays(w * v + e, w + e, instruments=w, covariates=v)
    assert moment_test(data, np.zeros(600)).p_value < 0.01


def test_the_same_seed_gives_the_same_result_and_rows_are_bounded() -> None:
    data = sample(0, n=2000)
    g = 2.0 * data.treatment
    first, second = (moment_test(data, g, draws=50, seed=3) for _ in range(2))
    assert first == second
    assert first.n_rows == 1500


def test_weights_multiply_the_residuals() -> None:
    data = sample(1)
    g = 1.4 * data.treatment + data.covariates.sum(axis=1)
    plain = moment_test(data, g)
    assert moment_test(replace(data, weights=np.full(150, 7.0)), g) == plain
    uneven = replace(data, weights=np.where(np.arange(150) < 75, 1e-9, 1.0))
    assert moment_test(uneven, g).statistic != plain.statistic


@pytest.mark.parametrize("bad", [np.zeros(3), np.full(150, np.nan)])
def test_predictions_that_do_not_fit_are_refused(bad: np.ndarray) -> None:
    with pytest.raises(DataError, match="predicted must hold one finite number"):
        moment_test(sample(0), bad)
