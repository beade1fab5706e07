"""What every integration rule must do; a new rule adds a row to CASES."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm

from bgmiv.errors import ConfigError
from bgmiv.integrate import (
    FiniteMixture,
    GaussHermite,
    IntegrationRule,
    MonteCarlo,
    ObservedTreatment,
    QuasiMonteCarlo,
    ResidualNodes,
    rule_for,
)
from bgmiv.likelihood import Bernoulli, Gaussian, Head, Levels

MU, RAW_SPREAD, OBSERVED = 0.7, 0.2, 2.5
VARIANCE = float(np.log1p(np.exp(RAW_SPREAD))) + 1e-6


@dataclass(frozen=True)
class Case:
    """A rule, a head it serves, and the exact mean and variance that its nodes stand for."""

    rule: IntegrationRule
    head: Head
    raw: tuple[float, ...]
    n_nodes: int
    mean: float
    variance: float
    random: bool = False
    tolerance: float = 1e-5


GAUSSIAN = (Gaussian(1), (MU, RAW_SPREAD))
BINARY = (Bernoulli(1), (0.4,))
CASES = {
    "monte carlo": Case(MonteCarlo(1000), *GAUSSIAN, 1000, MU, VARIANCE, True, 0.2),
    "quasi monte carlo": Case(QuasiMonteCarlo(256), *GAUSSIAN, 256, MU, VARIANCE, True, 0.02),
    "gauss-hermite": Case(GaussHermite(8), *GAUSSIAN, 8, MU, VARIANCE),
    "gauss-hermite at its largest": Case(GaussHermite(180), *GAUSSIAN, 180, MU, VARIANCE),
    "plug-in": Case(GaussHermite(1), *GAUSSIAN, 1, MU, 0.0),
    "residuals": Case(ResidualNodes((-0.5, -0.5, -0.5, -0.5, 2.0)), *GAUSSIAN, 5, MU, VARIANCE),
    "finite mixture": Case(FiniteMixture(), *BINARY, 2, float(expit(0.4)), float(expit(0.4) * expit(-0.4))),
    "finite mixture of levels": Case(FiniteMixture(), Levels(3), (0.0, float(np.log(2.0)), 0.0), 3, 1.0, 0.5),
    "observed": Case(ObservedTreatment(), *GAUSSIAN, 1, OBSERVED, 0.0),
    "observed and binary": Case(ObservedTreatment(), *BINARY, 1, OBSERVED, 0.0),
}


class Results(NamedTuple):
    """Nodes under four keys (the last two equal), and the slopes of their mean in the raw parameters."""

    x: np.ndarray
    log_weights: np.ndarray
    slope: np.ndarray


@cache
def results(name: str) -> Results:
    case = CASES[name]

    @jax.jit
    def run(raw: jax.Array, observed: jax.Array, keys: jax.Array) -> Results:
        def mean(raw: jax.Array, key: jax.Array) -> jax.Array:
            x, log_weights = case.rule.nodes(case.head, raw, observed, key)
            return jnp.sum(jnp.exp(log_weights) * x)

        x, log_weights = jax.vmap(lambda key: case.rule.nodes(case.head, raw, observed, key))(keys)
        return Results(x, log_weights, jax.vmap(jax.grad(mean), (None, 0))(raw, keys))

    keys = jax.random.split(jax.random.key(0), 4)[np.asarray([0, 1, 2, 2])]
    got = run(np.asarray(case.raw, np.float32), np.float32(OBSERVED), keys)
    return Results(*(np.asarray(part) for part in got))


@pytest.fixture(params=list(CASES))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_nodes_have_the_treatments_mean_and_variance(name: str) -> None:
    case, (x, log_weights, _) = CASES[name], results(name)
    assert isinstance(hash(case.rule), int)
    assert x.shape == log_weights.shape == (4, case.n_nodes)
    assert x.dtype == log_weights.dtype == np.float32
    assert np.isfinite(x).all()
    weights = np.exp(log_weights)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-5)
    mean = (weights * x).sum(axis=1)
    np.testing.assert_allclose(mean, case.mean, atol=case.tolerance)
    np.testing.assert_allclose((weights * (x - mean[:, None]) ** 2).sum(axis=1), case.variance, atol=case.tolerance)


def test_the_key_alone_decides_the_nodes(name: str) -> None:
    x = results(name).x
    np.testing.assert_array_equal(x[2], x[3])
    assert np.array_equal(x[0], x[1]) != CASES[name].random


def test_gradients_reach_the_treatment_model(name: str) -> None:
    case, slope = CASES[name], results(name).slope
    assert np.isfinite(slope).all()
    if isinstance(case.rule, ObservedTreatment):
        np.testing.assert_array_equal(slope, 0.0)
    elif isinstance(case.head, Gaussian):
        np.testing.assert_allclose(slope[:, 0], 1.0, rtol=1e-5)
    elif isinstance(case.head, Levels):
        # The mean's slope in the logit of level k is p_k (k - mean).
        np.testing.assert_allclose(slope @ np.asarray(case.head.support), case.variance, rtol=1e-4)
    else:
        np.testing.assert_allclose(slope[:, 0], case.variance, rtol=1e-4)


@pytest.mark.parametrize(
    ("rule", "name"), [(MonteCarlo, "n_draws"), (QuasiMonteCarlo, "n_nodes"), (GaussHermite, "n_nodes")]
)
def test_bad_counts_are_refused(rule: Callable[[int], IntegrationRule], name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}.*at least 1.*-5"):
        rule(-5)
    with pytest.raises(ConfigError, match=r"180.*QuasiMonteCarlo"):
        GaussHermite(181)


def test_a_sum_over_a_continuous_treatment_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"FiniteMixture.*Gaussian.*QuasiMonteCarlo"):
        rule_for(FiniteMixture(), Gaussian(1))


def test_a_discrete_treatment_is_always_summed_exactly() -> None:
    for rule in (MonteCarlo(4), QuasiMonteCarlo(4), GaussHermite(4), FiniteMixture()):
        assert rule_for(rule, Bernoulli(1)) == FiniteMixture()
    assert rule_for(MonteCarlo(4), Gaussian(1)) == MonteCarlo(4)
    assert rule_for(ObservedTreatment(), Bernoulli(1)) == ObservedTreatment()


def test_quasi_monte_carlo_has_one_node_a_stratum() -> None:
    edges = norm.ppf(np.arange(1, 256) / 256)
    for row in (results("quasi monte carlo").x - MU) / np.sqrt(VARIANCE):
        assert (np.digitize(np.sort(row), edges) == np.arange(256)).all()
