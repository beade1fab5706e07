"""How large curves are, by the regression on the observed treatment."""

import numpy as np
import pytest

from bgmiv import NPIV, TSLS
from bgmiv.sieve.control import Observed, standardised
from bgmiv.sieve.penalties import BlockEvidence, Evidence, Moments, Posterior, Prior, average_priors
from bgmiv.sieve.sampling import Sampling

pytestmark = pytest.mark.filterwarnings("ignore::bgmiv.errors.WeakInstrumentWarning")


def drawn(seed: int, g, h=lambda u, x: 0.0 * u, *, n: int = 500, slope: float = 0.45) -> tuple[np.ndarray, ...]:
    """One instrument with an F of about 100 unless told; h is what else of the error depends on the treatment's."""
    rng = np.random.default_rng([seed, 7])
    w, v, u, own = rng.normal(size=(4, n))
    x = slope * w + 0.3 * v + u
    return g(x) + 0.5 * v + 0.7 * u + np.sqrt(0.51) * own + h(u, x), x, w, v


def line(x: np.ndarray) -> np.ndarray:
    return x


def cubic(x: np.ndarray) -> np.ndarray:
    return 0.5 * x + x**3 / 6.0


def test_the_posterior_is_that_of_bayes_rule() -> None:
    rng = np.random.default_rng(0)
    evidence = Evidence(rng.normal(size=5), rng.normal(size=(5, 3)))
    variances = np.array([[0.5, 0.0, 2.0], [0.1, 1.0, 0.3]])
    found = evidence.posterior(variances)
    for i, prior in enumerate(variances):
        used = prior > 0.0
        slopes = evidence.slopes[:, used]
        covariance = np.linalg.inv(slopes.T @ slopes + np.diag(1.0 / prior[used]))
        mean = covariance @ slopes.T @ evidence.signal
        np.testing.assert_allclose(found.squares[i, used], mean**2 + np.diag(covariance))
        assert not found.squares[i, ~used].any()
        total = np.eye(5) + slopes * prior[used] @ slopes.T
        log = -0.5 * np.linalg.slogdet(total)[1] - 0.5 * evidence.signal @ np.linalg.solve(total, evidence.signal)
        np.testing.assert_allclose(found.logs[i], log)


def test_a_block_alone_has_the_same_likelihood() -> None:
    rng = np.random.default_rng(1)
    columns = rng.normal(size=(80, 4))
    columns[:, 3] -= columns[:, [2]] @ np.linalg.lstsq(columns[:, [2]], columns[:, 3], rcond=None)[0]
    y = columns @ [1.0, -1.0, 0.3, 0.2] + rng.normal(size=80)
    gram = columns.T @ columns
    known = Moments(gram, columns.T @ y, gram, np.array([0.0, 0.0, np.inf, np.inf]))
    priors = np.array([0.05, 0.5])
    alone = BlockEvidence.of(known, slice(2, 4)).gains(priors) / 2.0
    joint = Evidence.of(known, np.arange(2, 4)).posterior(np.outer([0.0, *priors], np.ones(2))).logs
    np.testing.assert_allclose(alone, joint[1:] - joint[0], rtol=1e-6)


def test_the_regression_says_how_large_and_not_which() -> None:
    """Either sign of what it sees gives the same priors; the moments alone decide on the sign of the estimate."""
    rng = np.random.default_rng(2)
    slopes = rng.normal(size=(4, 2)) * 5.0
    signal = slopes @ [1.0, 0.2] + rng.normal(size=4)
    priors = [[Prior(np.zeros(2), 0.5), Prior(np.array([0.5, 0.5]), 0.5)]]
    moments = Evidence(np.zeros(3), 0.1 * rng.normal(size=(3, 2)))
    one, other = (average_priors(moments, priors, Evidence(sign * signal, slopes).posterior) for sign in (1.0, -1.0))
    assert one.shares == pytest.approx(other.shares)
    np.testing.assert_allclose(one.allowed[-1], other.allowed[-1])
    # The prior that the regression has made is for a larger first coefficient, and nearly certain.
    assert one.shares[-1] > 0.9
    assert one.allowed[-1, 0] > 4.0 * one.allowed[-1, 1]
    # Intervals allow for more than the estimate expects.
    np.testing.assert_allclose(one.allowed[-1], 2.0 * one.expected[-1])


def test_moments_overrule_what_the_regression_sees() -> None:
    """The regression sees a curve that is confounding's; instruments that are strong enough say that g has none."""
    priors = [[Prior(np.zeros(1), 0.5), Prior(np.ones(1), 0.5)]]
    regression = Evidence(np.array([40.0]), np.array([[40.0]]))
    strong, weak = (Evidence(np.zeros(1), np.array([[slope]])) for slope in (200.0, 1.0))

    def no_curve(moments: Evidence) -> float:
        found = average_priors(moments, priors, regression.posterior)
        return found.shares[~found.allowed.any(axis=1)].sum()

    assert no_curve(strong) > 0.5
    assert no_curve(weak) < 0.1


def test_residuals_of_varying_size_are_made_alike() -> None:
    rng = np.random.default_rng(3)
    w, v, u = rng.normal(size=(3, 2000))
    mean = np.exp(0.5 * w)
    found = standardised((mean * u)[:, None], mean[:, None], v[:, None])[:, 0]
    assert np.corrcoef(found, u)[0, 1] > 0.99 > np.corrcoef(mean * u, u)[0, 1]


def test_with_few_rows_it_says_nothing() -> None:
    rng = np.random.default_rng(4)
    columns = rng.normal(size=(20, 6))
    observed = Observed(lambda rows: [columns[rows, 3:]], columns[:, :1], columns[:, 1:3], Prior(np.ones(2), 0.5))
    sampling = Sampling(np.ones(20), None, [slice(0, 20)])
    assert observed.fit(columns[:, 0], sampling, np.zeros(3)) is None
    assert observed.fit(columns[:, 0], sampling, np.array([0.0, np.inf, np.inf])) is not None


def test_an_interval_is_short_for_a_line_and_long_for_a_curve_that_instruments_do_not_show() -> None:
    """To the moments both look alike: the probability of a curve was 0.33 and 0.30."""
    held, widths = 0, {}
    for g in (line, cubic):
        ratios = []
        for seed in range(5):
            y, x, w, v = drawn(seed, g)
            t0, t1 = np.quantile(x, [0.25, 0.75])
            interval = NPIV(random_state=0).fit(y, x, instruments=w, covariates=v).ate_interval(t0=t0, t1=t1)
            linear = TSLS().fit(y, x, instruments=w, covariates=v).ate_interval(t0=t0, t1=t1, method="usual")
            held += interval.lower <= g(t1) - g(t0) <= interval.upper
            ratios.append((interval.upper - interval.lower) / (linear.upper - linear.lower))
        widths[g.__name__] = np.median(ratios)
    assert held >= 9
    assert widths["line"] < 1.35
    assert widths["cubic"] > 2.0


def test_curved_confounding_does_not_bend_a_line() -> None:
    """With g a line and an error that is curved in the treatment's, the interval holds and the estimate stays."""
    errors = []
    for seed in range(5):
        y, x, w, v = drawn(seed, line, lambda u, x: 0.4 * (u**2 - 1.0))
        interval = NPIV(random_state=0).fit(y, x, instruments=w, covariates=v).ate_interval(t0=0.0, t1=1.5)
        assert interval.lower <= 1.5 <= interval.upper
        errors.append(float(interval.estimate) - 1.5)
    assert abs(np.mean(errors)) < 0.25


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_units_of_the_outcome_do_not_matter(scale: float) -> None:
    y, x, w, v = drawn(1, cubic)
    groups = np.arange(500) // 5
    weights = np.linspace(0.5, 2.0, 500)
    one, other = (
        NPIV(random_state=0).fit(values, x, instruments=w, covariates=v, clusters=groups, sample_weight=weights)
        for values in (y, scale * y)
    )
    first, second = (model.ate_interval(t0=0.0, t1=1.0) for model in (one, other))
    np.testing.assert_allclose(second.upper - second.lower, scale * (first.upper - first.lower), rtol=1e-5)


def test_absorbed_levels_change_nothing_but_the_levels() -> None:
    """Indicators as columns and as absorbed effects give the same probability of a curve."""
    rng = np.random.default_rng(5)
    y, x, w, v = drawn(2, cubic, n=600)
    firm = rng.integers(0, 30, 600)
    model = NPIV(random_state=0).fit_table(
        {"y": y + firm / 10.0, "x": x, "w": w, "v": v, "firm": [f"f{i}" for i in firm]},
        outcome="y", treatment="x", instruments="w", covariates=["v", "firm"],
    )  # fmt: skip
    plain = NPIV(random_state=0).fit(y, x, instruments=w, covariates=v)
    both = [one.fitted_.function.probabilities["curve"] for one in (model, plain)]
    assert min(both) > 0.9


def test_mean_squares_of_no_likelihood_are_not_divided_by_zero() -> None:
    priors = [[Prior(np.zeros(1), 0.5), Prior(np.ones(1), 0.5)]]
    moments = Evidence(np.zeros(1), np.ones((1, 1)))
    found = average_priors(moments, priors, lambda _: Posterior(np.array([0.0, -2000.0]), np.array([[0.0], [1.0]])))
    assert found.shares.sum() == pytest.approx(1.0)


def test_only_smooth_functions_may_be_hidden() -> None:
    """Moments that ask for a large function, of which the regression sees nothing, get it if it is a smooth one."""
    moments = Evidence(np.array([30.0]), np.ones((1, 1)))
    regression = Evidence(np.zeros(1), np.array([[40.0]]))

    def largest(smooth: bool) -> float:
        priors = [[Prior(np.zeros(1), 0.5), Prior(np.full(1, 900.0), 0.5, smooth)]]
        return average_priors(moments, priors, regression.posterior).allowed.max()

    assert largest(smooth=True) == 900.0
    assert largest(smooth=False) < 0.01
