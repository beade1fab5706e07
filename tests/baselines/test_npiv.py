"""Penalised sieve IV: closed forms and two-stage least squares."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import multivariate_normal

import bgmiv
from bgmiv.baselines.npiv import NPIVConfig
from bgmiv.baselines.tsls import TSLSConfig
from bgmiv.data import IVData
from bgmiv.data.query import Rows, query_along, query_at
from bgmiv.designs import make_design
from bgmiv.effects import estimate_at, predict
from bgmiv.errors import ConfigError, DataError
from bgmiv.intervals import BOUND, SMOOTHING, Estimate, Source, interval_of
from bgmiv.sieve.bases import Spline
from bgmiv.sieve.first_stage import FirstStage, first_stage
from bgmiv.sieve.penalties import BlockEvidence, choose_penalties
from bgmiv.sieve.sampling import Sampling
from bgmiv.sieve.second_stage import Regression, second_stage

SEED = 0
LINEAR = NPIVConfig(min_gain=np.inf)


def _table(n: int = 400, *, seed: int = 0, **roles: object) -> IVData:
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(n, 2))
    age, u = rng.normal(size=(2, n))
    region = rng.choice(["n", "s", "w"], size=n)
    x = w @ [1.0, 0.5] + age + u
    covariates = {"age": age, "region": region}
    blocks = {"region": "categorical"}
    return IVData.from_arrays(x * (1 + age) + 2 * u, x, instruments=w, covariates=covariates, blocks=blocks, **roles)


@pytest.mark.parametrize("sampled", ["plain", "weights", "clusters"])
def test_infinite_penalties_give_two_stage_least_squares_and_its_standard_errors(sampled: str) -> None:
    rng = np.random.default_rng(1)
    roles = {"weights": {"sample_weight": rng.uniform(0.5, 2.0, 400)}, "clusters": {"clusters": np.arange(400) // 4}}
    data = _table(**roles.get(sampled, {}))
    ours, theirs = LINEAR.fit(data, SEED), TSLSConfig().fit(data)
    query = query_at(data.schema, data.treatment, Rows(data.covariates))
    np.testing.assert_allclose(ours.at(query), theirs.at(query), rtol=0, atol=1e-8)
    found, expected = (interval_of(estimate_at(f, query, intervals=True), 0.95).std_error for f in (ours, theirs))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_no_term_and_no_instrument_is_least_squares() -> None:
    data = _table()
    got = NPIVConfig(min_gain=np.inf).without_instrument().fit(data, SEED)
    expected = TSLSConfig(use_instrument=False).fit(data)
    query = query_at(data.schema, data.treatment, Rows(data.covariates))
    np.testing.assert_allclose(got.at(query), expected.at(query), atol=1e-8)


@pytest.mark.parametrize("weighted", [False, True])
def test_both_stages_are_the_direct_penalised_solves(weighted: bool) -> None:
    rng = np.random.default_rng(0)
    n = 300
    linear, rich = np.column_stack([np.ones(n), rng.normal(size=(n, 2))]), rng.normal(size=(n, 15))
    u = rng.normal(size=n)
    x = linear[:, 1] + rich[:, :5].sum(axis=1) + u
    terms = np.column_stack([x, x * linear[:, 2]])
    y = terms @ [1.0, 2.0] + u
    weights = rng.uniform(0.5, 2.0, n) if weighted else np.ones(n)
    folds = [slice(0, 100), slice(100, 200), slice(200, 300)]
    sampling = Sampling(weights, None, folds)
    first = first_stage(lambda rows: [linear[rows], rich[rows]], x[:, None], sampling, 4.0)

    def left(values: np.ndarray) -> np.ndarray:
        return (
            values
            - linear
            @ np.linalg.lstsq(linear * np.sqrt(weights)[:, None], (values.T * np.sqrt(weights)).T, rcond=None)[0]
        )

    # The ridge, from the kept inverse of the Gram matrix.
    both = np.column_stack([linear, rich]) * np.sqrt(weights)[:, None]
    ridge = np.linalg.inv(first.inverses[0])[-1, -1] - (both.T @ both)[-1, -1]
    expected = x - left(x)
    for fold in folds:
        others = np.setdiff1d(np.arange(n), np.arange(n)[fold])
        z, t, h = left(rich)[others], left(x)[others], weights[others]
        expected[fold] += left(rich)[fold] @ np.linalg.solve((z.T * h) @ z + ridge * np.eye(15), (z.T * h) @ t)
    np.testing.assert_allclose(first.predicted[:, 0], expected, atol=1e-8)

    exogenous = FirstStage.exogenous(x[:, None])
    problem = Regression(
        lambda rows: [linear[rows], rich[rows]], lambda rows, beta: np.zeros((n, 1))[rows], y, exogenous, sampling
    )
    second = second_stage(problem, 1, 4.0)
    (penalty,) = second.ridges
    diagonal = np.diag(np.repeat([0.0, penalty], [3, 15]))
    plain = np.column_stack([linear, rich])
    expected = np.linalg.solve((plain.T * weights) @ plain + diagonal, (plain.T * weights) @ y)
    np.testing.assert_allclose(second.coefficients, expected, atol=1e-8)


def test_the_bias_of_blocks_kept_and_left_out_has_the_covariance_of_its_prior() -> None:
    rng = np.random.default_rng(1)
    n = 300
    linear, first, second = np.column_stack([np.ones(n), rng.normal(size=n)]), *rng.normal(size=(2, n, 6))
    # The third block is correlated with the others, so that leaving it out moves their coefficients.
    second = second + linear[:, [1]] + 0.5 * first
    y = first @ np.full(6, 0.3) + second @ [0.1, -0.1, 0.1, -0.1, 0.1, -0.1] + rng.normal(size=n)
    sampling = Sampling(np.ones(n), None, [slice(0, 150), slice(150, 300)])
    problem = Regression(
        lambda rows: [linear[rows], first[rows], second[rows]],
        lambda rows, beta: np.zeros((n, 1))[rows],
        y,
        FirstStage.exogenous(linear[:, [1]]),
        sampling,
    )
    found = second_stage(problem, 1, 12.0)
    ridges = found.ridges
    assert np.isfinite(ridges[0])
    assert np.isinf(ridges[1])
    kept, every = np.hstack([linear, first]), np.hstack([linear, first, second])
    inverse = np.linalg.inv(kept.T @ kept + np.diag(np.repeat([0.0, ridges[0]], [2, 6])))
    # What each coefficient of the truth adds to the expected estimates, less itself.
    moved = np.vstack([inverse @ kept.T @ every, np.zeros((6, 14))]) - np.eye(14)
    correction = n / (n - np.sum(inverse * (kept.T @ kept)))
    bias = found.roots[SMOOTHING] @ found.roots[SMOOTHING].T
    of_each = [correction * moved[:, block] @ moved[:, block].T for block in (slice(2, 8), slice(8, 14))]
    priors = np.linalg.lstsq(np.column_stack([part.ravel() for part in of_each]), bias.ravel(), rcond=None)[0]
    assert priors.min() > 0.0
    np.testing.assert_allclose(bias, priors[0] * of_each[0] + priors[1] * of_each[1], atol=1e-10)
    counted = correction * moved @ np.diag(np.repeat([0.0, *(6.0 * priors)], [2, 6, 6])) @ moved.T
    np.testing.assert_allclose(found.roots[BOUND] @ found.roots[BOUND].T, counted, atol=1e-10)


def test_the_penalty_of_splines_is_their_roughness() -> None:
    rng = np.random.default_rng(0)
    spline = Spline.fit(rng.normal(size=400), 8)
    grid, step = np.linspace(spline.knots[0], spline.knots[-1], 20_001, retstep=True)
    bends = np.diff(spline(grid), n=2, axis=0) / step**2
    roughness = bends.T @ bends
    np.testing.assert_allclose(roughness, np.eye(8) * roughness[0, 0], rtol=0.02, atol=0.02 * roughness[0, 0])
    # Beyond the outer knots the functions are constant.
    np.testing.assert_allclose(np.diff(spline(np.array([5.0, 6.0, 7.0])), axis=0), 0.0, atol=1e-8)


def test_the_ridge_is_that_of_the_largest_marginal_likelihood() -> None:
    rng = np.random.default_rng(3)
    n = 120
    fixed, block = np.column_stack([np.ones(n), rng.normal(size=n)]), rng.normal(size=(n, 8))
    y = fixed @ [1.0, 2.0] + 0.4 * block @ rng.normal(size=8) + rng.normal(size=n)
    columns = np.hstack([fixed, block])
    gram = columns.T @ columns
    found = choose_penalties(gram, columns.T @ y, [slice(2, 10)], lambda _: (gram, 1.0), 0.0)
    # The likelihood of what is orthogonal to the unpenalised columns.
    free = np.linalg.svd(fixed)[0][:, 2:]
    logs = np.arange(-3.0, 8.0, 0.05)
    likelihoods = [
        multivariate_normal(cov=np.eye(n - 2) + np.exp(-r) * free.T @ block @ block.T @ free).logpdf(free.T @ y)
        for r in logs
    ]
    assert np.log(found.ridges[0]) == pytest.approx(logs[np.argmax(likelihoods)], abs=0.15)
    none = multivariate_normal(cov=np.eye(n - 2)).logpdf(free.T @ y)
    evidence = BlockEvidence.of(found.moments, slice(2, 10))
    assert evidence.best(1.0)[1] == pytest.approx(2 * (max(likelihoods) - none), rel=0.01)


def test_errors_of_unequal_variance_are_not_taken_for_signal() -> None:
    entered = {"robust": 0, "usual": 0}
    for seed in range(40):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=300)
        columns = np.column_stack([np.ones(300), x, x**2 - 1, x**3 - 3 * x])
        y = rng.normal(size=300) * (1 + x**2)
        gram, moments = columns.T @ columns, columns.T @ y

        def robust(beta: np.ndarray, columns: np.ndarray = columns, y: np.ndarray = y) -> tuple[np.ndarray, float]:
            e = y - columns @ beta
            return (columns.T * e**2) @ columns, float(np.mean(e**2))

        def usual(beta: np.ndarray, columns: np.ndarray = columns, y: np.ndarray = y) -> tuple[np.ndarray, float]:
            variance = float(np.mean((y - columns @ beta) ** 2))
            return variance * columns.T @ columns, variance

        for name, noise in (("robust", robust), ("usual", usual)):
            entered[name] += int(np.isfinite(choose_penalties(gram, moments, [slice(2, 4)], noise).ridges[0]))
    assert entered["robust"] <= 4
    assert entered["usual"] >= 12


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "most"), [("linear", 1.3), ("concave", 0.8), ("heterogeneous", 0.5)])
def test_it_beats_the_linear_model_where_the_world_is_not_linear(shape: str, most: float) -> None:
    design = make_design(f"noisy-{shape}")
    grid = design.grid()
    errors = np.zeros(2)
    for seed in (500, 501):
        data = design.sample(1000, 0.8, seed)
        for i, config in enumerate((NPIVConfig(), LINEAR)):
            got = predict(config.fit(data, seed), grid.treatment, grid.covariates)
            errors[i] += np.mean((got - grid.truth) ** 2)
    assert errors[0] < most * errors[1]


def test_a_treatment_of_three_levels_has_effects_that_depend_on_covariates() -> None:
    rng = np.random.default_rng(0)
    n = 4000
    w = rng.normal(size=(n, 2))
    v, u = rng.normal(size=(2, n))
    level = np.argmax(np.column_stack([rng.normal(size=n), 1.5 * w[:, 0] + u, 1.5 * w[:, 1]]), axis=1)
    y = np.where(level == 1, 2.0 * v, 0.0) + np.where(level == 2, 1.0, 0.0) + u
    names = np.array(["none", "low", "high"])[level]
    model = bgmiv.NPIV(random_state=0).fit(y, names, instruments=w, covariates=v)
    got = model.effect([-1.0, 1.0], t0="none", t1="low")
    np.testing.assert_allclose(got, [-2.0, 2.0], atol=0.5)
    np.testing.assert_allclose(model.effect([-1.0, 1.0], t0="none", t1="high"), 1.0, atol=0.5)
    with pytest.raises(DataError, match="instruments do not identify"):
        bgmiv.NPIV(min_gain=np.inf).fit(y, names, instruments=w[:, 0], covariates=v)


def test_wide_and_picture_covariates_are_reduced() -> None:
    rng = np.random.default_rng(0)
    n = 200
    w, u, z = rng.normal(size=(3, n))
    x = w + z + u
    structured, noise = z[:, None] + rng.normal(size=(n, 300)), rng.normal(size=(n, 150))
    pictures = np.clip(0.5 + 0.1 * structured[:, :256], 0.0, 1.0).reshape(n, 16, 16)
    for covariates in ({"proxy": structured}, {"noise": noise}, {"picture": pictures}):
        data = IVData.from_arrays(x - 2.0 * z + u, x, instruments=w, covariates=covariates)
        slopes = np.diff(NPIVConfig().fit(data, SEED).at(query_along(data.schema, [0.0, 1.0], data)), axis=0)
        assert np.isfinite(slopes).all()
        if "proxy" in covariates:
            assert slopes.mean() == pytest.approx(1.0, abs=0.4)


def test_rows_that_are_repeated_in_groups_count_once_and_weights_count_rows() -> None:
    rng = np.random.default_rng(0)
    w, v, u = rng.normal(size=(3, 300))
    x = w + v + u
    y = x + v + u
    alone = IVData.from_arrays(y, x, instruments=w, covariates=v)
    columns = [np.repeat(column, 2) for column in (y, x, w, v)]
    roles = {"instruments": columns[2], "covariates": columns[3], "clusters": np.arange(600) // 2}
    clustered = IVData.from_arrays(*columns[:2], **roles)
    query = query_along(alone.schema, [0.0, 2.0], Rows(alone.covariates[:5]))
    plain, grouped = (np.sum(LINEAR.fit(d, SEED).factors(query)[0].factors ** 2, axis=0) for d in (alone, clustered))
    # But for the corrections, with k = 3: G/(G - 1) (n - 1)/(n - k) and n/(n - k).
    np.testing.assert_allclose(grouped / (300 / 299 * 599 / 597), plain * (297 / 300), rtol=1e-8)

    weights = np.random.default_rng(0).integers(1, 4, 300)
    repeated = alone.take(np.repeat(np.arange(300), weights))
    weighted = IVData.from_arrays(
        alone.outcome,
        alone.treatment,
        instruments=alone.instruments,
        covariates=alone.covariates,
        sample_weight=weights,
    )
    np.testing.assert_allclose(LINEAR.fit(weighted, SEED).at(query), LINEAR.fit(repeated, SEED).at(query), atol=1e-8)


def test_a_band_is_wider_than_intervals_and_the_same_at_one_point() -> None:
    data = _table(600)
    fitted = NPIVConfig().fit(data, SEED)
    assert "slopes by covariate" in fitted.function.kept
    sources = fitted.factors(query_along(data.schema, [0.0], data))
    assert [source.name for source in sources] == ["sampling", "smoothing", "largest bias", "first stage"]
    one = query_along(data.schema, [1.0], Rows(data.covariates[:1]))
    many = query_along(data.schema, np.linspace(-2.0, 2.0, 30), Rows(data.covariates[:1]))
    widths = []
    for query in (one, many):
        found = estimate_at(fitted, query, intervals=True).without(BOUND)
        band, pointwise = interval_of(found, 0.95, band="uniform"), interval_of(found, 0.95)
        widths.append(((band.upper - band.lower) / (pointwise.upper - pointwise.lower)).ravel())
        np.testing.assert_allclose(band.estimate, pointwise.estimate)
    assert widths[0] == pytest.approx(1.0, abs=0.05)
    # Below the critical value for 30 independent points.
    assert 1.05 < widths[1][0] < 3.14 / 1.96
    np.testing.assert_allclose(widths[1], widths[1][0])


def test_a_band_holds_the_largest_bias_of_smoothing() -> None:
    chance, smooth, bound = np.array([[0.1, 0.1]]), np.array([[0.0, 0.2]]), np.array([[0.0, 0.6]])
    sources = [Source(name, part, np.inf) for name, part in (("sampling", chance), (SMOOTHING, smooth), (BOUND, bound))]
    found = Estimate(np.zeros(2), tuple(sources))
    _, upper = interval_of(found, 0.95, band="uniform")
    # Both entries have the same chance, and a bias of six standard errors is on one side alone.
    np.testing.assert_allclose(upper, [0.196, 0.6 + 0.1645], rtol=0.02)
    np.testing.assert_allclose(interval_of(found, 0.95).upper[1], 1.96 * np.hypot(0.1, 0.2), rtol=1e-3)


def test_no_key_decides_and_a_saved_fit_says_the_same(tmp_path: Path) -> None:
    data = _table(200)
    query = query_along(data.schema, [0.0, 1.0], Rows(data.covariates[:5]))
    first, other = (NPIVConfig().fit(data, k).at(query) for k in (0, 1))
    np.testing.assert_array_equal(first, other)
    rng = np.random.default_rng(0)
    w, v, u = rng.normal(size=(3, 300))
    model = bgmiv.NPIV(random_state=0).fit((w + u) ** 2 + u, w + u, instruments=w, covariates=v)
    model.save(tmp_path / "fit")
    loaded = bgmiv.load(tmp_path / "fit")
    np.testing.assert_array_equal(loaded.predict(0.5, v[:5]), model.predict(0.5, v[:5]))
    assert loaded.fitted_.function.penalties == model.fitted_.function.penalties


def test_what_cannot_be_fitted_is_refused() -> None:
    rng = np.random.default_rng(0)
    w, v, u = rng.normal(size=(3, 100))
    x = w + u
    with pytest.raises(DataError, match="instruments do not identify"):
        LINEAR.fit(IVData.from_arrays(x + u, x, instruments=2.0 * v + 1.0, covariates=v), SEED)
    with pytest.raises(DataError, match="at least 30 rows, got 12"):
        NPIVConfig().fit(IVData.from_arrays(u[:12], x[:12], instruments=w[:12]), SEED)
    for refused, why in (({"min_gain": -1.0}, "min_gain"), ({"fourier_features": 0}, "fourier_features")):
        with pytest.raises(ConfigError, match=why):
            NPIVConfig(**refused)
