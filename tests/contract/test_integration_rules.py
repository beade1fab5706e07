"""What every integration rule must do; a new rule adds a row to CASES."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, fields
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm

from bgmiv import integrate
from bgmiv.errors import ConfigError
from bgmiv.integrate import (
    FiniteMixture,
    GaussHermite,
    IntegrationRule,
    MonteCarlo,
    ObservedTreatment,
    QuasiMonteCarlo,
    rule_for,
)
from bgmiv.likelihood import Bernoulli, Gaussian, Head, Levels

MU, RAW_SPREAD, OBSERVED = 0.7, 0.2, 2.5
VARIANCE = float(np.log1p(np.exp(RAW_SPREAD))) + 1e-6


@dataclass(frozen=True)
class Case:
    """A rule, a head it serves, and the exact mean and variance that its nodes stand for."""

    make: Callable[[], IntegrationRule]
    head: Head
    raw: tuple[float, ...]
    n_nodes: int
    mean: float
    variance: float
    random: bool = False
    tolerance: float = 1e-5


GAUSSIAN = (Gaussian(1), (MU, RAW_SPREAD))
CASES = {
    "monte carlo": Case(lambda: MonteCarlo(1000), *GAUSSIAN, 1000, MU, VARIANCE, True, 0.2),
    "quasi monte carlo": Case(lambda: QuasiMonteCarlo(256), *GAUSSIAN, 256, MU, VARIANCE, True, 0.02),
    "gauss-hermite": Case(lambda: GaussHermite(8), *GAUSSIAN, 8, MU, VARIANCE),
    "gauss-hermite at its largest": Case(lambda: GaussHermite(180), *GAUSSIAN, 180, MU, VARIANCE),
    "plug-in": Case(lambda: GaussHermite(1), *GAUSSIAN, 1, MU, 0.0),
    "finite mixture": Case(
        lambda: FiniteMixture(), Bernoulli(1), (0.4,), 2, float(expit(0.4)), float(expit(0.4) * expit(-0.4))
    ),
    "finite mixture of levels": Case(
        lambda: FiniteMixture(), Levels(3), (0.0, float(np.log(2.0)), 0.0), 3, 1.0, 0.5, tolerance=1e-5
    ),
    "observed": Case(lambda: ObservedTreatment(), *GAUSSIAN, 1, OBSERVED, 0.0),
    "observed and binary": Case(lambda: ObservedTreatment(), Bernoulli(1), (0.4,), 1, OBSERVED, 0.0),
}


class Results(NamedTuple):
    """Nodes under four keys (the last two equal), and the slopes of their mean in the raw parameters."""

    x: np.ndarray
    log_weights: np.ndarray
    slope: np.ndarray


@cache
def results(name: str) -> Results:
    case = CASES[name]
    rule = case.make()

    @jax.jit
    def run(raw: jax.Array, observed: jax.Array, keys: jax.Array) -> Results:
        def mean(raw: jax.Array, key: jax.Array) -> jax.Array:
            x, log_weights = rule.nodes(case.head, raw, observed, key)
            return jnp.sum(jnp.exp(log_weights) * x)

        x, log_weights = jax.vmap(lambda key: rule.nodes(case.head, raw, observed, key))(keys)
        return Results(x, log_weights, jax.vmap(jax.grad(mean), (None, 0))(raw, keys))

    keys = jax.random.split(jax.random.key(0), 4)[np.asarray([0, 1, 2, 2])]
    got = run(np.asarray(case.raw, np.float32), np.float32(OBSERVED), keys)
    return Results(*(np.asarray(part) for part in got))


@pytest.fixture(params=list(CASES))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_every_rule_is_in_the_suite() -> None:
    public = {
        value
        for value in map(integrate.__dict__.get, integrate.__all__)
        if isinstance(value, type) and value is not IntegrationRule
    }
    assert {type(case.make()) for case in CASES.values()} == public


def test_nodes_and_weights_have_one_shape(name: str) -> None:
    got = results(name)
    assert got.x.shape == got.log_weights.shape == (4, CASES[name].n_nodes)
    assert got.x.dtype == got.log_weights.dtype == np.float32
    assert np.isfinite(got.x).all()


def test_weights_add_up_to_one(name: str) -> None:
    np.testing.assert_allclose(np.exp(results(name).log_weights).sum(axis=1), 1.0, rtol=1e-5)


def test_nodes_have_the_treatments_mean_and_variance(name: str) -> None:
    case, got = CASES[name], results(name)
    weights = np.exp(got.log_weights)
    mean = (weights * got.x).sum(axis=1)
    variance = (weights * (got.x - mean[:, None]) ** 2).sum(axis=1)
    np.testing.assert_allclose(mean, case.mean, atol=case.tolerance)
    np.testing.assert_allclose(variance, case.variance, atol=case.tolerance)


def test_the_key_alone_decides_the_nodes(name: str) -> None:
    x = results(name).x
    np.testing.assert_array_equal(x[2], x[3])
    assert np.array_equal(x[0], x[1]) != CASES[name].random


def test_gradients_reach_the_treatment_model(name: str) -> None:
    slope = results(name).slope
    assert np.isfinite(slope).all()
    if isinstance(CASES[name].make(), ObservedTreatment):
        np.testing.assert_array_equal(slope, 0.0)
    elif isinstance(CASES[name].head, Gaussian):
        np.testing.assert_allclose(slope[:, 0], 1.0, rtol=1e-5)
    elif isinstance(CASES[name].head, Levels):
        # The mean's slope in the logit of level k is p_k (k - mean).
        np.testing.assert_allclose(slope @ np.asarray(CASES[name].head.support), CASES[name].variance, rtol=1e-4)
    else:
        np.testing.assert_allclose(slope[:, 0], CASES[name].variance, rtol=1e-4)


def test_is_a_frozen_hashable_value(name: str) -> None:
    rule, twin = CASES[name].make(), CASES[name].make()
    assert rule == twin
    assert hash(rule) == hash(twin)
    for part in fields(rule):
        with pytest.raises(FrozenInstanceError):
            setattr(rule, part.name, 3)


@pytest.mark.parametrize("rule", [MonteCarlo, QuasiMonteCarlo, GaussHermite])
@pytest.mark.parametrize("count", [0, -5])
def test_counts_below_one_are_refused(rule: Callable[[int], IntegrationRule], count: int) -> None:
    with pytest.raises(ConfigError, match=rf"n_(draws|nodes).*at least 1.*{count}"):
        rule(count)


def test_too_many_hermite_nodes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"180.*QuasiMonteCarlo"):
        GaussHermite(181)


@pytest.mark.parametrize("rule", [QuasiMonteCarlo(4), GaussHermite(4)])
def test_continuous_rules_refuse_a_discrete_treatment(rule: IntegrationRule) -> None:
    with pytest.raises(ConfigError, match=rf"{type(rule).__name__}.*Bernoulli.*FiniteMixture"):
        rule.nodes(Bernoulli(1), jnp.zeros(1), jnp.zeros(()), jax.random.key(0))


def test_the_mixture_refuses_a_continuous_treatment() -> None:
    with pytest.raises(ConfigError, match=r"FiniteMixture.*Gaussian.*QuasiMonteCarlo"):
        FiniteMixture().nodes(Gaussian(1), jnp.zeros(2), jnp.zeros(()), jax.random.key(0))


@pytest.mark.parametrize("rule", [MonteCarlo(4), QuasiMonteCarlo(4), GaussHermite(4), FiniteMixture()])
def test_a_discrete_treatment_is_always_summed_exactly(rule: IntegrationRule) -> None:
    assert rule_for(rule, Bernoulli(1)) == FiniteMixture()


def test_the_rule_is_kept_where_it_fits() -> None:
    assert rule_for(MonteCarlo(4), Gaussian(1)) == MonteCarlo(4)
    assert rule_for(ObservedTreatment(), Bernoulli(1)) == ObservedTreatment()


def test_quasi_monte_carlo_has_one_node_a_stratum() -> None:
    x = results("quasi monte carlo").x
    edges = norm.ppf(np.arange(1, 256) / 256)
    for row in (x - MU) / np.sqrt(VARIANCE):
        assert (np.digitize(np.sort(row), edges) == np.arange(256)).all()
