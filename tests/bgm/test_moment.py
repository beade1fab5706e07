"""The moment form of the outcome: a closed form where everything is linear and Gaussian, and what it is for."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from scipy.stats import norm

from bgmiv.bgm.model import BGMIVModel, build_model, log_p_iv, log_p_moment
from bgmiv.bgm.settings import CovariateConfig, LatentLayout, ModelConfig
from bgmiv.data import IVData
from bgmiv.integrate import FiniteMixture, GaussHermite, IntegrationRule
from bgmiv.training.loop import Row

LAYOUT = LatentLayout(1, 1, 1, 1)
ROW = Row(*(np.asarray(value, np.float32) for value in (0.7, -0.4, [0.3], [1.5])))
Z = np.asarray([0.5, -0.3, 0.8, 1.1], np.float32)
KEY = jax.random.key(0)


@cache
def build(outcome: Any = None, treatment: Any = None, hidden: tuple[int, ...] = ()) -> BGMIVModel:
    """A drawn model, by default without hidden layers: every mean and raw variance is then linear."""
    numbers = [0.1, 0.5, -0.2, 0.9]
    data = IVData.from_arrays(
        [0.3, -0.8, 0.6, 0.2] if outcome is None else outcome,
        numbers if treatment is None else treatment,
        instruments=[1.0, 2.0, 4.0, 3.0],
        covariates=[0.0, 1.0, 3.0, 2.0],
    )
    config = ModelConfig(LAYOUT, hidden, hidden, CovariateConfig(dense_hidden=(2,)))
    return build_model(data.schema, 1, config, key=jax.random.key(3))


@partial(jax.jit, static_argnums=1)
def both(model: BGMIVModel, rule: IntegrationRule, row: Row, z: Array) -> tuple[Array, Array]:
    """The moment form and the mixture."""
    return log_p_moment(model, rule, row, z, KEY), log_p_iv(model, rule, row, z, KEY)


def softplus_inverse(variance: float) -> float:
    return float(np.log(np.expm1(variance - 1e-6)))


def linear(treatment: Any, s2: float, outcome: Any, sigma2: float) -> BGMIVModel:
    """x | w, z of variance s2 and y | x, z of variance sigma2, with given slopes in (z0, z2, w) and (z0, z1, x)."""
    model = build()

    def net(mlp: Any, slopes: Any, variance: float) -> Any:
        kernel = jnp.stack([jnp.asarray(slopes, jnp.float32), jnp.zeros(3)], axis=1)
        bias = jnp.asarray([0.25, softplus_inverse(variance)], jnp.float32)
        return eqx.tree_at(lambda m: (m.outputs[0].kernel, m.outputs[0].bias), mlp, (kernel, bias))

    nets = net(model.treatment, treatment, s2), net(model.outcome, outcome, sigma2)
    return eqx.tree_at(lambda m: (m.treatment, m.outcome), model, nets)


SLOPES_X, SLOPES_Y, S2, SIGMA2 = (0.6, -0.4, 0.9), (0.3, 0.8, -1.7), 0.8, 0.3


def means(row: Row, z: np.ndarray) -> tuple[float, float]:
    m = 0.25 + float(np.dot(SLOPES_X, [z[0], z[2], row.w[0]]))
    return m, 0.25 + float(np.dot(SLOPES_Y, [z[0], z[1], m]))


@pytest.mark.parametrize("n_nodes", [1, 5])
def test_linear_and_gaussian_it_is_the_normal_around_the_mean_of_y(n_nodes: int) -> None:
    model = linear(SLOPES_X, S2, SLOPES_Y, SIGMA2)
    got, _ = both(model, GaussHermite(n_nodes), ROW, jnp.asarray(Z))
    _, mean = means(ROW, Z)
    assert float(got) == pytest.approx(norm.logpdf(ROW.y, mean, SIGMA2**0.5), rel=1e-4)


def test_the_mixture_spreads_the_mean_over_the_treatments_noise() -> None:
    model = linear(SLOPES_X, S2, SLOPES_Y, SIGMA2)
    _, mean = means(ROW, Z)
    wide = (SLOPES_Y[2] ** 2 * S2 + SIGMA2) ** 0.5
    _, mixture = both(model, GaussHermite(60), ROW, jnp.asarray(Z))
    assert float(mixture) == pytest.approx(norm.logpdf(ROW.y, mean, wide), rel=1e-3)


@pytest.mark.parametrize("treatment", [None, (True, False, True, False)], ids=["continuous", "binary"])
@pytest.mark.parametrize("y", [0.0, 1.0])
def test_for_a_binary_outcome_the_two_are_one(treatment: Any, y: float) -> None:
    model, z = build((True, False, False, True), treatment, hidden=(4,)), jnp.asarray(Z)
    rule = GaussHermite(3) if treatment is None else FiniteMixture()
    row = ROW._replace(y=np.float32(y), x=np.float32(1.0))
    moment, mixture = both(model, rule, row, z)
    assert float(moment) == float(mixture) < 0.0


def test_it_finds_the_slope_where_the_mixture_does_not() -> None:
    """y = 2 x - 1.5 u with x = w + u: noise and disturbance cancel, and the mixture sees too little variance for 2."""
    rng = np.random.default_rng(0)
    w, u = rng.normal(size=(2, 2000)).astype(np.float32)
    x = w + u
    y = 2.0 * x - 1.5 * u
    rows, z = Row(x, y, np.zeros((2000, 1), np.float32), w[:, None]), jnp.zeros(4)
    base = linear((0.0, 0.0, 1.0), 1.0, (0.0, 0.0, 0.0), 1.0)
    base = eqx.tree_at(lambda m: m.treatment.outputs[0].bias, base, base.treatment.outputs[0].bias.at[0].set(0.0))

    slopes = np.linspace(0.0, 3.0, 31, dtype=np.float32)
    spreads = np.asarray([softplus_inverse(s2) for s2 in (0.01, 0.1, 0.25, 0.5, 1.0, 2.0)], np.float32)

    @jax.jit
    def fits(slope: Array, spread: Array) -> Array:
        net = base.outcome.outputs[0]
        parts = net.kernel.at[2, 0].set(slope), jnp.stack([jnp.zeros(()), spread])
        model = eqx.tree_at(lambda m: (m.outcome.outputs[0].kernel, m.outcome.outputs[0].bias), base, parts)
        one_row = jax.vmap(lambda row: jnp.stack(both(model, GaussHermite(9), row, z)))
        return jnp.mean(one_row(rows), axis=0)

    values = np.asarray([[fits(slope, spread) for spread in spreads] for slope in slopes])
    moment, mixture = (slopes[values[..., i].max(axis=1).argmax()] for i in (0, 1))
    assert moment == pytest.approx(2.0, abs=0.11)
    assert mixture < 1.5
