"""Other authors' benchmarks: their equations, the truth under intervention, and what they print."""

from __future__ import annotations

import numpy as np
import pytest

from bgmiv.designs import DESIGNS, make_design
from bgmiv.errors import ConfigError
from report.published import AGMM_CURVES, TABCF_SCENARIOS, AdversarialGMMDesign, NetworkIVDesign, TabCFDesign

N = 1_000_000


def instrumented(residual: np.ndarray, instruments: np.ndarray) -> float:
    """The largest t value of means of products with functions of the instruments."""
    found = []
    for function in (np.ones_like, np.sin, np.cos, np.square):
        products = residual[:, None] * function(instruments)
        found += (np.abs(products.mean(axis=0)) / products.std(axis=0) * np.sqrt(len(residual))).tolist()
    return max(found)


@pytest.mark.parametrize("name", [name for name in DESIGNS if name.startswith(("network-", "agmm-", "tabcf-"))])
def test_the_error_has_mean_zero_given_the_instruments_if_it_is_separable(name: str) -> None:
    design = make_design(name)
    data = design.sample(200_000, 1.0, 0)
    residual = data.outcome - design.structural(data.treatment)  # type: ignore[attr-defined]
    separable = not isinstance(design, TabCFDesign) or design.separable
    assert (instrumented(residual, data.instruments) < 4.5) == separable
    # The treatment is endogenous.
    assert abs(np.corrcoef(residual, data.treatment)[0, 1]) > 0.1
    unrelated = design.sample(200_000, 0.0, 0)
    residual = unrelated.outcome - design.structural(unrelated.treatment)  # type: ignore[attr-defined]
    assert abs(np.corrcoef(residual, unrelated.treatment)[0, 1]) < 0.01


@pytest.mark.parametrize("scenario", TABCF_SCENARIOS)
def test_the_truth_is_the_mean_outcome_under_intervention(scenario: str) -> None:
    """With rho = 0 the treatment is as good as randomised: the mean outcome at x is E[Y | do(x)]."""
    design = TabCFDesign(scenario)
    data = design.sample(N, 0.0, 1)
    edges = np.linspace(*np.quantile(data.treatment, [0.05, 0.95]), 200)
    bins = np.digitize(data.treatment, edges)
    residual = data.outcome - design.structural(data.treatment)
    count, total, squares = (np.bincount(bins, residual**power)[1:200] for power in (0, 1, 2))
    means = total / count
    assert (np.abs(means) / np.sqrt((squares / count - means**2) / count)).max() < 4.5
    assert ("identifies another" in design.estimand) == (not design.separable)


def test_the_equations_of_tabcf() -> None:
    for scenario, mean, scale in (("a3-b5", lambda z: z, 0.0), ("a9-b5", lambda z: 2.0 * z + z**2 / 4.0, 0.15)):
        design = TabCFDesign(scenario)
        data = design.sample(N, 1.0, 2)
        z = data.instruments[:, 0]
        u = (data.treatment - mean(z)) / (1.0 + scale * z)
        error = data.outcome - design.structural(data.treatment)
        # u is H + ε, and the error -3H + ε.
        assert 0.0 <= z.min() < z.max() <= 3.0
        assert [u.var(), error.var(), np.cov(u, error)[0, 1]] == pytest.approx([2.0, 10.0, -3.0], rel=0.02)
        assert abs(np.corrcoef(u, z)[0, 1]) < 0.01


def test_the_equations_of_the_network_experiment() -> None:
    data = NetworkIVDesign("linear").sample(N, 1.0, 0)
    u, error = data.treatment - data.instruments[:, 0], data.outcome - data.treatment
    assert [u.var(), error.var(), np.cov(u, error)[0, 1]] == pytest.approx([1.01, 1.01, 1.0], rel=0.02)
    np.testing.assert_array_equal(NetworkIVDesign("step").structural(np.array([-1.0, 0.0, 1.0])), [0.0, 0.0, 1.0])


@pytest.mark.parametrize(("design", "n_instruments"), [(1, 2), (2, 1), (4, 5)])
def test_the_equations_of_adversarial_gmm(design: int, n_instruments: int) -> None:
    made = AdversarialGMMDesign("linear", design=design, n_instruments=n_instruments)
    data = made.sample(N, 1.0, 0)
    assert [data.outcome.mean(), data.outcome.std()] == pytest.approx([0.0, 1.0], abs=0.02)
    z = data.instruments
    first = {1: 1.2 * (np.maximum(z[:, 0], 0.0) + np.minimum(z[:, -1], 0.0)), 2: 1.2 * z[:, 0], 4: 0.6 * z.min(axis=1)}[
        design
    ]
    u = data.treatment - first
    expected = 0.4**2 if design == 4 else 0.8**2
    assert u.var() == pytest.approx(expected + 0.01, rel=0.02)
    error = data.outcome - made.structural(data.treatment)
    assert np.corrcoef(u, error)[0, 1] > 0.95
    assert make_design(made.name) == made
    if n_instruments > 1 and design == 4:
        assert z.mean() == pytest.approx(0.5, abs=0.01)


def test_curves_by_hand() -> None:
    x = np.array([-2.0, -0.5, 0.0, 0.5, 2.0])
    by_hand = {
        "2dpoly": [6.6, 0.975, 0.0, -0.525, 0.6],
        "sigmoid": 2.0 / (1.0 + np.exp(-2.0 * x)),
        "step": [1.0, 1.0, 2.5, 2.5, 2.5],
        "3dpoly": [-1.4, 0.85, 0.0, -0.4, 8.6],
        "abspos": [0.0, 0.0, 0.0, 0.5, 2.0],
        "sqrpos": [0.0, 0.0, 0.0, 0.25, 4.0],
        "band": [0.0, 1.0, 1.0, 1.0, 0.0],
        "invband": [1.0, 0.0, 0.0, 0.0, 1.0],
        "steplinear": [2.0, 0.5, 2.0, 1.5, 0.0],
        "pwlinear": [-1.0, 0.0, 0.0, 0.0, 1.0],
    }
    for curve, values in by_hand.items():
        np.testing.assert_allclose(AGMM_CURVES[curve](x), values, err_msg=curve, atol=1e-12)
    # The random pieces join.
    fine = np.linspace(-3.0, 3.0, 60_001)
    assert np.abs(np.diff(AGMM_CURVES["rand-pw"](fine))).max() < 4.01e-4
    assert len(AGMM_CURVES) == 16


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: NetworkIVDesign("cubic"), "curve is 'cubic'; choose one of abs, step"),
        (lambda: TabCFDesign("a1-b1"), "scenario is 'a1-b1'; choose one of a3-b5"),
        (lambda: AdversarialGMMDesign("cubic"), "curve is 'cubic'"),
        (lambda: AdversarialGMMDesign(design=3), "design is 3; choose 1, 2 or 4"),
        (lambda: AdversarialGMMDesign(design=1), "design 1 needs 2 or more"),
        (lambda: AdversarialGMMDesign(strength=2.0), "strength is 2.0"),
    ],
)
def test_bad_settings_are_refused(make: object, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        make()  # type: ignore[operator]
