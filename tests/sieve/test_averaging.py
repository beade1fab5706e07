"""Averaging over priors, leaving rows out, and sets that allow for the curve."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from bgmiv import NPIV, TSLS
from bgmiv.data.query import query_along
from bgmiv.effects import average, contrast, fieller_set
from bgmiv.linear_iv import LinearIV
from bgmiv.sieve.first_stage import FirstStage, first_stage
from bgmiv.sieve.penalties import Evidence, Moments, Prior, average_priors, priors_of
from bgmiv.sieve.sampling import Sampling
from bgmiv.sieve.second_stage import Regression, second_stage


def weak_quadratic(seed: int, a: float) -> tuple[np.ndarray, ...]:
    """One instrument with an F of about 60, and a curve that it hardly shows."""
    rng = np.random.default_rng([seed, 33])
    w, v, u, own = rng.normal(size=(4, 1000))
    x = 0.245 * w + 0.3 * v + u
    return x + a * x**2 + 0.5 * v + 0.7 * u + np.sqrt(0.51) * own, x, w, v


def test_probabilities_are_those_of_bayes_rule() -> None:
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(60, 6))
    y = columns @ [1.0, -1.0, 0.4, 0.0, 0.3, -0.2] + rng.normal(size=60)
    gram, moments = columns.T @ columns, columns.T @ y
    priors = [[Prior(np.zeros(2), 0.4), Prior(np.array([0.1, 0.3]), 0.6)], [Prior(np.full(2, 0.2), 1.0)]]
    evidence = Evidence.of(Moments(gram, moments, gram, np.array([0.0, 0.0, *[np.inf] * 4])), np.arange(2, 6))
    found = average_priors(evidence, priors)
    densities = []
    for chosen in product(*priors):
        # A flat prior of the first two columns.
        variances = np.concatenate([[1e6, 1e6], *(one.variances for one in chosen)])
        density = multivariate_normal(cov=np.eye(60) + (columns * variances) @ columns.T).pdf(y)
        densities.append(density * np.prod([one.probability for one in chosen]))
    expected = np.array(densities) / np.sum(densities)
    np.testing.assert_allclose(found.shares, expected, rtol=1e-3)
    np.testing.assert_allclose(found.expected[1], [0.1, 0.3, 0.2, 0.2])
    np.testing.assert_allclose(found.allowed, found.expected)


def test_priors_of_a_block_add_up_to_one() -> None:
    found = priors_of([Prior(np.array([0.5, 0.5]), 0.4), Prior(np.array([1.0, 0.0]), 0.2)], 2.0)
    assert sum(prior.probability for prior in found) == pytest.approx(1.0)
    assert found[0].probability == pytest.approx(0.4)
    assert not found[0].variances.any()


@pytest.mark.parametrize("weighted", [False, True])
def test_a_row_is_predicted_by_the_other_rows(weighted: bool) -> None:
    rng = np.random.default_rng(0)
    n = 80
    linear, rich = np.column_stack([np.ones(n), rng.normal(size=n)]), rng.normal(size=(n, 6))
    x = rich.sum(axis=1) + rng.normal(size=n)
    w = rng.uniform(0.5, 2.0, n) if weighted else np.ones(n)
    sampling = Sampling(w, None, [slice(0, n)])
    first = first_stage(lambda rows: [linear[rows], rich[rows]], x[:, None], sampling, 4.0)
    free = np.linalg.lstsq(linear * np.sqrt(w)[:, None], np.column_stack([rich, x]) * np.sqrt(w)[:, None], rcond=None)[
        0
    ]
    left = np.column_stack([rich, x]) - linear @ free
    both = np.column_stack([linear, rich]) * np.sqrt(w)[:, None]
    ridge = np.linalg.inv(first.inverses[0])[-1, -1] - (both.T @ both)[-1, -1]
    for row in (0, 17, 79):
        others = np.arange(n) != row
        z, t, own = left[others, :6], left[others, 6], w[others]
        beta = np.linalg.solve((z.T * own) @ z + ridge * np.eye(6), (z.T * own) @ t)
        assert first.predicted[row, 0] == pytest.approx(linear[row] @ free[:, 6] + left[row, :6] @ beta)
    y = x + rng.normal(size=n)
    problem = Regression(
        lambda rows: [linear[rows], rich[rows]],
        lambda rows, beta: np.zeros((n, 1))[rows],
        y,
        FirstStage.exogenous(x[:, None]),
        sampling,
    )
    second = second_stage(problem, 1, 4.0)
    plain, diagonal = np.column_stack([linear, rich]), np.diag(np.repeat([0.0, second.ridges[0]], [2, 6]))
    for row in (3, 40):
        others = np.arange(n) != row
        z, own = plain[others], w[others]
        beta = np.linalg.solve((z.T * own) @ z + diagonal, (z.T * own) @ y[others])
        assert second.left_out[row] == pytest.approx(plain[row] @ beta)


def test_neither_seed_nor_order_of_rows_decides() -> None:
    y, x, w, v = weak_quadratic(0, 0.5)
    one = NPIV(random_state=0).fit(y, x, instruments=w, covariates=v).ate_interval(t0=0.0, t1=2.0)
    order = np.random.default_rng(1).permutation(len(y))
    moved = NPIV(random_state=5).fit(y[order], x[order], instruments=w[order], covariates=v[order])
    other = moved.ate_interval(t0=0.0, t1=2.0)
    np.testing.assert_allclose(
        [other.estimate, other.lower, other.upper], [one.estimate, one.lower, one.upper], rtol=1e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize("a", [0.25, 0.5])
def test_a_set_for_weak_instruments_allows_for_a_curve_that_they_do_not_show(a: float) -> None:
    held = 0
    for seed in range(12):
        y, x, w, v = weak_quadratic(seed, a)
        model = NPIV(random_state=0).fit(y, x, instruments=w, covariates=v)
        robust = model.ate_interval(t0=0.0, t1=2.0)
        usual = model.ate_interval(t0=0.0, t1=2.0, method="usual")
        assert robust.method == "anderson-rubin"
        assert robust.lower <= usual.lower
        assert robust.upper >= usual.upper
        held += robust.lower <= 2.0 + 4.0 * a <= robust.upper
    assert held >= 10


def test_the_scores_of_a_line_give_the_set_of_anderson_and_rubin() -> None:
    rng = np.random.default_rng(3)
    w, v, u, e = rng.normal(size=(4, 2000))
    x = 0.15 * w + v + u
    y = x + v + u + e
    model = NPIV(min_gain=np.inf).fit(y, x, instruments=w, covariates=v)
    query = query_along(model.fitted_.schema, [0.0, 1.0], model._with_rows().rows)
    change = contrast(average(model.fitted_, query, intervals=True).estimate)
    expected = LinearIV.of(model.data_).anderson_rubin_set()
    np.testing.assert_allclose(fieller_set(change, 1.0, 3.8415), expected, rtol=0.01)
    tsls = TSLS().fit(y, x, instruments=w, covariates=v)
    assert float(change.values) == pytest.approx(tsls.ate(t0=0.0, t1=1.0), rel=1e-6)


def test_strength_that_varies_with_covariates_is_seen() -> None:
    """The instrument moves the treatment not at all on average, and much given the covariate."""
    rng = np.random.default_rng(0)
    w, v, u, e = rng.normal(size=(4, 1000))
    x = v * w + u
    model = NPIV().fit(x + 0.5 * v + u + e, x, instruments=w, covariates=v)
    found = model.ate_interval(t0=0.0, t1=1.0)
    assert found.method == "pointwise"
    assert found.lower < 1.0 < found.upper
    assert found.upper - found.lower < 0.4


def test_the_shape_in_which_covariates_move_the_treatment_is_no_instrument() -> None:
    """The covariate has a slight curve in the outcome, too slight to be seen, and a strong one in the treatment."""
    errors = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        w, v, u, e = rng.normal(size=(4, 1000))
        x = 0.5 * w + v**2 + u
        y = x + 0.08 * v**2 + u + 1.5 * e
        model = NPIV().fit(y, x, instruments=w, covariates=v)
        assert "expected treatment" in model.fitted_.function.terms
        errors.append(model.ate(t0=0.0, t1=1.0) - 1.0)
    assert abs(np.mean(errors)) < 0.12
