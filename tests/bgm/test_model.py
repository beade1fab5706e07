"""The latent partition, and the paper's log-densities, each against a computation from scratch."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from bgmiv.bgm.config import CovariateConfig, LatentLayout, ModelConfig
from bgmiv.bgm.model import (
    BGMIVModel,
    build_model,
    covariate_log_posterior,
    log_p_iv,
    log_p_treatment,
    outcome_raws,
    quasi_log_posterior,
)
from bgmiv.data import IVData
from bgmiv.integrate import GaussHermite, ObservedTreatment
from bgmiv.likelihood import Bernoulli, Gaussian
from bgmiv.training import Row

LAYOUT = LatentLayout(1, 2, 1, 1)
ROW = Row(*(np.asarray(value, np.float32) for value in (0.7, -0.4, [0.3, -1.2], [1.5, 0.2])))
Z = np.asarray([0.5, -0.3, 0.8, 1.1, -0.6], np.float32)
RULE = GaussHermite(5)


def schema(treatment: Any = None, outcome: Any = None) -> Any:
    rng = np.random.default_rng(0)
    return IVData.from_arrays(
        rng.normal(size=4) if outcome is None else outcome,
        rng.normal(size=4) if treatment is None else treatment,
        instruments=rng.normal(size=(4, 2)),
        covariates=rng.normal(size=(4, 2)),
    ).schema


@pytest.fixture(scope="module")
def model() -> BGMIVModel:
    config = ModelConfig(LAYOUT, (4,), (4,), CovariateConfig(dense_hidden=(4,)))
    return build_model(schema(), 2, config, key=jax.random.key(3))


class Values(NamedTuple):
    raw_x: Any
    raws_y: Any
    raws_one_by_one: Any
    structural: Any
    treatment: Any
    iv: Any
    observed: Any
    posterior: Any
    prior: Any
    covariates: Any
    quasi: Any
    weighted: Any


NODES = np.linspace(-2.0, 2.0, 5, dtype=np.float32)


@pytest.fixture(scope="module")
def values(model: BGMIVModel) -> Values:
    @jax.jit
    def run(model: BGMIVModel, row: Row, z: jax.Array, key: jax.Array) -> Values:
        return Values(
            raw_x=model.treatment_raw(row.w, z),
            raws_y=outcome_raws(model, NODES, z),
            raws_one_by_one=jnp.stack([model.outcome(jnp.append(LAYOUT.for_outcome(z), x)) for x in NODES]),
            structural=jax.vmap(model.structural_mean, (0, None))(jnp.asarray(NODES), z),
            treatment=log_p_treatment(model, row, z),
            iv=log_p_iv(model, RULE, row, z, key),
            observed=log_p_iv(model, ObservedTreatment(), row, z, key),
            posterior=covariate_log_posterior(model, row.v, z),
            prior=model.layout.log_prior(z),
            covariates=model.covariates.log_prob(row.v, z),
            quasi=quasi_log_posterior(model, RULE, row, z, key, 1.0),
            weighted=quasi_log_posterior(model, RULE, row, z, key, 0.5),
        )

    return jax.tree.map(np.asarray, run(model, ROW, Z, jax.random.key(0)))


def _deviation(raw: np.ndarray) -> np.ndarray:
    return np.sqrt(np.log1p(np.exp(raw)) + 1e-6)


def test_treatment_likelihood(values: Values) -> None:
    mean, spread = values.raw_x
    assert values.treatment == pytest.approx(norm.logpdf(ROW.x, mean, _deviation(spread)), rel=1e-5)


def test_the_first_layer_is_shared_between_nodes_without_changing_anything(values: Values) -> None:
    np.testing.assert_allclose(values.raws_y, values.raws_one_by_one, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(values.structural, values.raws_y[:, 0])


def test_iv_likelihood_is_the_quadrature(model: BGMIVModel, values: Values) -> None:
    mean, spread = values.raw_x.astype(np.float64)
    points, weights = np.polynomial.hermite_e.hermegauss(5)
    nodes = mean + _deviation(spread) * points
    raws = np.asarray(jax.jit(outcome_raws)(model, nodes.astype(np.float32), Z))
    densities = norm.logpdf(ROW.y, raws[:, 0], _deviation(raws[:, 1]))
    assert values.iv == pytest.approx(logsumexp(densities, b=weights / weights.sum()), rel=1e-4)


def test_latent_objective_weighs_its_terms(values: Values) -> None:
    assert values.quasi == pytest.approx(values.posterior + values.treatment + values.iv, rel=1e-5)
    assert values.weighted == pytest.approx(0.5 * values.posterior + values.treatment + values.iv, rel=1e-5)


def test_each_density_sees_only_its_own_latents(model: BGMIVModel) -> None:
    @jax.jit
    def slopes(model: BGMIVModel, z: jax.Array) -> tuple[jax.Array, ...]:
        key = jax.random.key(0)
        return (
            jax.grad(lambda z: log_p_treatment(model, ROW, z))(z),
            jax.grad(lambda z: log_p_iv(model, ObservedTreatment(), ROW, z, key))(z),
            jax.grad(lambda z: log_p_iv(model, RULE, ROW, z, key))(z),
        )

    treatment, outcome, iv = slopes(model, Z)
    # Layout (1, 2, 1, 1): z0 | z1 z1 | z2 | z3.
    np.testing.assert_array_equal(np.asarray(treatment) != 0.0, [True, False, False, True, False])
    np.testing.assert_array_equal(np.asarray(outcome) != 0.0, [True, True, True, False, False])
    np.testing.assert_array_equal(np.asarray(iv) != 0.0, [True, True, True, True, False])


def test_heads_follow_the_schema() -> None:
    flags = [True, False, True, False]
    for treatment, outcome in ((None, None), (flags, None), (None, flags)):
        built = jax.eval_shape(
            lambda key, t=treatment, o=outcome: build_model(schema(t, o), 2, ModelConfig(), key=key), jax.random.key(0)
        )
        assert built.treatment_head == (Gaussian(1) if treatment is None else Bernoulli(1))
        assert built.outcome_head == (Gaussian(1) if outcome is None else Bernoulli(1))


def test_the_papers_partition() -> None:
    layout = LatentLayout(2, 2, 1, 2)
    z = jnp.arange(layout.dim)
    assert (layout.dim, layout.outcome_dim, layout.treatment_dim) == (7, 4, 3)
    # (z0, z1) reach the outcome, (z0, z2) the treatment, z3 neither.
    np.testing.assert_array_equal(layout.for_outcome(z), [0, 1, 2, 3])
    np.testing.assert_array_equal(layout.for_treatment(z), [0, 1, 4])


@pytest.mark.parametrize(
    ("sizes", "outcome", "treatment"),
    [((0, 1, 1, 0), [0], [1]), ((1, 0, 0, 0), [0], [0]), ((0, 0, 0, 2), [], []), ((1, 0, 2, 0), [0], [0, 1, 2])],
)
def test_parts_may_be_empty(sizes: tuple[int, ...], outcome: list[int], treatment: list[int]) -> None:
    layout = LatentLayout(*sizes)
    z = jnp.arange(layout.dim)
    np.testing.assert_array_equal(layout.for_outcome(z), outcome)
    np.testing.assert_array_equal(layout.for_treatment(z), treatment)


def test_prior_is_standard_normal() -> None:
    layout = LatentLayout(1, 1, 1, 0)
    z = np.asarray([0.3, -2.0, 1.0], np.float32)
    assert float(jax.jit(layout.log_prior)(z)) == pytest.approx(norm.logpdf(z).sum(), rel=1e-5)
