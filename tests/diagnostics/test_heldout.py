"""The simple models that a fit is compared with, against least squares, linearmodels and closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from linearmodels.iv import IV2SLS
from scipy.spatial.distance import cdist, pdist

from bgmiv.data import IVData
from bgmiv.diagnostics import conditions_of, moment_risk
from bgmiv.diagnostics.moments import moment_shares, simple_fits

N = 300


def draw(n: int = N, n_covariates: int = 2, n_instruments: int = 2) -> IVData:
    rng = np.random.default_rng(0)
    w, v, u = rng.normal(size=(n, n_instruments)), rng.normal(size=(n, n_covariates)), rng.normal(size=n)
    x = 20.0 + w.sum(axis=1) + 0.5 * v.sum(axis=1) + u
    y = 100.0 + 3.0 * x + v.sum(axis=1) - 2.0 * u + 0.1 * rng.normal(size=n)
    return IVData.from_arrays(y, x, instruments=w, covariates=v if n_covariates else None)


def split(n: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(7).permutation(n)
    return order[n // 4 :], order[: n // 4]


@pytest.mark.parametrize(("n_covariates", "n_instruments"), [(0, 1), (3, 1), (1, 3)])
def test_linear_fits_are_those_of_least_squares_and_linearmodels(n_covariates: int, n_instruments: int) -> None:
    data = draw(n_covariates=n_covariates, n_instruments=n_instruments)
    train, held_out = split(N)
    got = simple_fits(data, train, held_out)
    x, y = data.treatment.astype(float), data.outcome.astype(float)
    w, v = data.instruments.astype(float), data.covariates.astype(float)
    one = np.ones((N, 1))

    exogenous = np.hstack([one, w, v])
    beta = np.linalg.solve(exogenous[train].T @ exogenous[train], exogenous[train].T @ y[train])
    np.testing.assert_allclose(got.outcome, exogenous[held_out] @ beta, rtol=1e-6)

    fitted = IV2SLS(y[train], np.hstack([one, v])[train], x[train], w[train]).fit()
    regressors = np.hstack([one, v, x[:, None]])
    np.testing.assert_allclose(got.structural, regressors[held_out] @ fitted.params.to_numpy(), rtol=1e-6)


def test_the_curve_in_the_treatment_alone_is_two_stage_least_squares_on_powers() -> None:
    data = draw()
    train, held_out = split(N)
    x, y, w = (column.astype(float) for column in (data.treatment, data.outcome, data.instruments))
    x = (x - x[train].mean()) / x[train].std()
    powers = np.column_stack([x, x**2, x**3])
    instruments = np.hstack([w, w**2, w**3])
    fitted = IV2SLS(y[train], np.ones((len(train), 1)), powers[train], instruments[train]).fit()
    expected = np.column_stack([np.ones(N), powers])[held_out] @ fitted.params.to_numpy()
    np.testing.assert_allclose(simple_fits(data, train, held_out).treatment_only, expected, rtol=1e-5)


def test_the_kernel_regression_is_the_one_with_the_least_cross_validated_error() -> None:
    data = draw(n=100, n_covariates=1, n_instruments=1)
    train, held_out = split(100)
    columns = np.hstack([data.instruments, data.covariates]).astype(float)
    columns = (columns - columns[train].mean(axis=0)) / columns[train].std(axis=0)
    y = data.outcome.astype(float)
    centre, n = y[train].mean(), len(train)
    medians = [np.median(pdist(columns[train][:, [i]])) for i in range(2)]
    best, expected = np.inf, np.zeros(len(held_out))
    for factor in (0.3, 1.0, 3.0):
        scaled = columns / (factor * np.asarray(medians))
        within = np.exp(-0.5 * cdist(scaled[train], scaled[train], "sqeuclidean"))
        across = np.exp(-0.5 * cdist(scaled[held_out], scaled[train], "sqeuclidean"))
        for penalty in 10.0 ** np.arange(-6.0, 1.0):
            inverse = np.linalg.inv(within + n * penalty * np.eye(n))
            left = np.eye(n) - within @ inverse
            score = np.sum((left @ (y[train] - centre)) ** 2) / np.trace(left) ** 2
            if score < best:
                best, expected = score, centre + across @ inverse @ (y[train] - centre)
    np.testing.assert_allclose(simple_fits(data, train, held_out).flexible, expected, rtol=1e-4)


def test_held_out_outcomes_are_not_used() -> None:
    data = draw()
    train, held_out = split(N)
    changed = data.outcome.copy()
    changed[held_out] = 1e6
    lying = replace(data, outcome=changed)
    for one, two in zip(simple_fits(data, train, held_out), simple_fits(lying, train, held_out), strict=True):
        np.testing.assert_array_equal(one, two)


def test_any_number_of_columns_gives_finite_predictions() -> None:
    found = simple_fits(draw(n=80, n_covariates=200), *split(80))
    assert np.isfinite(found).all()


def test_columns_that_say_nothing_new_change_nothing() -> None:
    """A copy of a column, one that never varies in training, and the powers of a binary treatment."""
    rng = np.random.default_rng(0)
    w, v, u = rng.normal(size=(3, N))
    x = w + v + u > 0.0
    y = 2.0 * x + v + u
    train, held_out = split(N)
    flag = np.zeros(N)
    flag[held_out[:3]] = 2.0
    plain = IVData.from_arrays(y, x, instruments=w, covariates={"v": v})
    more = {"v": v, "copy": 3.0 * v, "flag": flag}
    doubled = IVData.from_arrays(y, x, instruments=w, covariates=more, blocks={"flag": "continuous"})
    one, two = simple_fits(plain, train, held_out), simple_fits(doubled, train, held_out)
    for name in ("outcome", "structural", "treatment_only"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-5, atol=1e-6)
    # Distances count a copied column twice.
    assert np.isfinite(two.flexible).all()


def test_moment_shares_are_moment_risks_over_the_variance() -> None:
    data = draw()
    train, held_out = split(N)
    simple = simple_fits(data, train, held_out)
    predicted = simple.outcome + 1.0
    got = moment_shares(data, held_out, predicted, simple)
    conditions, y = conditions_of(data.take(held_out)), data.outcome[held_out].astype(float)
    for share, values in zip(got, (predicted, simple.structural, simple.treatment_only), strict=True):
        expected = moment_risk(y - values, conditions) / np.var(data.outcome)
        assert share == pytest.approx(expected, rel=1e-5)
    # Predictions that are not numbers have no risk.
    predicted[5] = np.inf
    broken = moment_shares(data, held_out, predicted, simple)
    assert np.isnan(broken.moment_risk)
    assert broken[1:] == got[1:]


def test_instruments_alone_know_nothing_of_covariates() -> None:
    rng = np.random.default_rng(5)
    w, v = rng.normal(size=(2, 300))
    data = IVData.from_arrays(w + 3.0 * v, w + 0.1 * rng.normal(size=300), instruments=w, covariates=v)
    train, held_out = np.arange(200), np.arange(200, 300)
    fits = simple_fits(data, train, held_out)
    y = data.outcome[held_out]
    both = (fits.flexible, fits.linear_instruments, fits.flexible_instruments)
    left = [np.mean((y - values) ** 2) / np.var(y) for values in both]
    assert left[0] < 0.05
    assert 0.7 < min(left[1:]) <= max(left[1:]) < 1.2


def test_a_weight_of_two_is_a_row_twice() -> None:
    data = draw(n=120, n_covariates=1, n_instruments=1)
    train, held_out = split(120)
    counts = np.ones(120, int)
    counts[train[::2]] = 2
    repeated = np.repeat(np.arange(120), counts)
    weighted = replace(data, weights=counts / counts.mean())
    again = data.take(np.concatenate([np.repeat(train, counts[train]), held_out]))
    one = simple_fits(weighted, train, held_out)
    two = simple_fits(again, np.arange(counts[train].sum()), np.arange(counts[train].sum(), len(repeated)))
    for name in ("outcome", "linear_instruments", "structural", "treatment_only"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-6)
    # Cross-validation takes repeated rows for new ones, so the kernel regression has no such form.
    plain = simple_fits(replace(data, weights=np.ones(120)), train, held_out)
    np.testing.assert_allclose(plain.flexible, simple_fits(data, train, held_out).flexible, rtol=1e-9)
