"""The latent posterior by Markov chains: exact posteriors, simulation-based calibration, and what is said of failures.

Most tests use one network shape, number of rows and schedule, so that one compiled program serves them all.
"""

from __future__ import annotations

import inspect
import warnings
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from bgmiv.bgm.config import CovariateConfig, LatentLayout, LatentPosterior, ModelConfig
from bgmiv.bgm.latents import (
    LatentDraws,
    _warn_unconverged,
    latent_draws,
    sample_latents,
    structural_at_draws,
    structural_means,
)
from bgmiv.bgm.model import BGMIVModel, build_model, covariate_log_posterior
from bgmiv.data import IVData
from bgmiv.errors import BGMIVWarning
from bgmiv.nn.settings import FeatureConfig

CONFIG = LatentPosterior(n_warmup=60, n_draws=240)
ROWS = 48
KEY = jax.random.key(3)
# Far enough from a unit's kink that it never bends: a network with this bias is linear.
STRAIGHT = 10.0
A = np.asarray([[1.0, 0.3], [-0.5, 0.8]])
SHIFT = np.asarray([0.3, -0.2])


@pytest.fixture(scope="module")
def model(covariates: np.ndarray) -> BGMIVModel:
    """A drawn model with as many latents as covariates."""
    y, x, w = np.random.default_rng(0).normal(size=(3, len(covariates)))
    schema = IVData.from_arrays(y, x, instruments=w, covariates=covariates).schema
    config = ModelConfig(LatentLayout(1, 1, 0, 0), (8,), (8,), CovariateConfig(dense_hidden=(8,)))
    return build_model(schema, 1, config, key=jax.random.key(0))


def raw_spread(deviation: float) -> float:
    """The raw output whose softplus is the variance."""
    return float(np.log(np.expm1(deviation**2)))


def with_decoder(model: BGMIVModel, first: tuple[Any, Any], last: tuple[Any, Any]) -> BGMIVModel:
    """The model with these kernels and biases, `(2, 8)` and `(8, 4)`, in its covariate generator."""

    def leaves(m: BGMIVModel) -> Any:
        net = m.covariates.decoder.nets[0]
        return net.layers[0].kernel, net.layers[0].bias, net.outputs[0].kernel, net.outputs[0].bias

    return eqx.tree_at(leaves, model, tuple(jnp.asarray(part, jnp.float32) for part in (*first, *last)))


def linear(model: BGMIVModel, deviation: float) -> BGMIVModel:
    """Probabilistic PCA: v = A'z + shift + noise."""
    kernel = np.zeros((8, 4))
    kernel[:2, :2] = A
    bias = [*(SHIFT - STRAIGHT * A.sum(axis=0)), *[raw_spread(deviation)] * 2]
    return with_decoder(model, (np.eye(2, 8), np.full(8, STRAIGHT)), (kernel, bias))


def exact(v: np.ndarray, deviation: float) -> tuple[np.ndarray, np.ndarray]:
    """Posterior means and the covariance of probabilistic PCA."""
    covariance = np.linalg.inv(np.eye(2) + A @ A.T / deviation**2)
    return (v - SHIFT) @ A.T @ covariance / deviation**2, covariance


def linear_rows(deviation: float, n: int = ROWS) -> np.ndarray:
    rng = np.random.default_rng(5)
    v = rng.normal(size=(n, 2)) @ A + SHIFT + deviation * rng.normal(size=(n, 2))
    return v.astype(np.float32)


def quietly(model: BGMIVModel, v: np.ndarray, config: LatentPosterior, key: jax.Array) -> LatentDraws:
    """Without a warning, where what is compared allows for the effective number of draws."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BGMIVWarning)
        return sample_latents(model, v, config, key)


def check_moments(draws: np.ndarray, ess: np.ndarray, v: np.ndarray, deviation: float, tolerance: float) -> None:
    mean, covariance = exact(v.astype(np.float64), deviation)
    flat = draws.reshape(len(v), -1, 2).astype(np.float64)
    scores = (flat.mean(axis=1) - mean) / np.sqrt(np.diag(covariance) / ess[:, None])
    assert np.mean(scores**2) < 1.3
    white = (flat - mean[:, None]) @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    moments = np.einsum("nmi,nmj->ij", white, white) / white[..., 0].size
    np.testing.assert_allclose(moments, np.eye(2), atol=tolerance)


@pytest.fixture(scope="module")
def pca_draws(model: BGMIVModel) -> LatentDraws:
    return quietly(linear(model, 0.3), linear_rows(0.3), CONFIG, KEY)


def check_pca(result: LatentDraws, deviation: float) -> None:
    assert result.draws.shape == (ROWS, 4, 240, 2)
    assert result.divergences.shape == result.rhat.shape == (ROWS,)
    assert result.divergences.sum() == 0
    # However thin the posterior, it is standard normal in the chains' coordinates: draws are nearly independent.
    assert np.median(result.ess) > 600
    assert result.acceptance.min() > 0.8
    check_moments(result.draws, result.ess, linear_rows(deviation), deviation, 0.03)


def test_the_posterior_of_probabilistic_pca_is_exact(pca_draws: LatentDraws) -> None:
    check_pca(pca_draws, 0.3)


def bent(model: BGMIVModel) -> BGMIVModel:
    """A generator that bends everywhere, and whose noise differs from place to place."""
    rng = np.random.default_rng(1)
    first, last = 0.8 * rng.normal(size=(2, 8)), 0.3 * rng.normal(size=(8, 4))
    # Two units that never bend carry the latents themselves, so that no two latents give the same covariates.
    first[:, :2], last[:2] = np.eye(2), np.eye(2, 4)
    bias = np.append([STRAIGHT, STRAIGHT], rng.normal(size=6))
    return with_decoder(model, (first, bias), (last, [-STRAIGHT, -STRAIGHT, *[raw_spread(0.1)] * 2]))


def calibration(truth: BGMIVModel, assumed: BGMIVModel, *seeds: int) -> np.ndarray:
    """P-values of uniform ranks, of each latent and of three functions of them, when rows come from `truth`."""
    # As many rows at a time as in every other test: they share one compiled program.
    ranks = np.concatenate([_ranks(truth, assumed, jax.random.key(seed)) for seed in seeds], axis=1)
    return np.asarray([chisquare(np.bincount(rank, minlength=16)).pvalue for rank in ranks])


def _ranks(truth: BGMIVModel, assumed: BGMIVModel, key: jax.Array) -> np.ndarray:
    key_z, key_v, key = jax.random.split(key, 3)
    z = jax.random.normal(key_z, (ROWS, truth.layout.dim))
    head = truth.covariates.branches[0].head
    raws = jax.vmap(truth.covariates.decode)(z)[0]
    means, variances = jax.vmap(head.mean)(raws), jax.vmap(head.variance)(raws)
    v = means + jnp.sqrt(variances) * jax.random.normal(key_v, means.shape)
    draws = quietly(assumed, np.asarray(v), CONFIG, key).draws
    # 15 draws far enough apart to be independent: ranks from 0 to 15.
    few = draws[:, :, ::64].reshape(ROWS, 16, -1)[:, 1:]
    fit = jax.jit(jax.vmap(jax.vmap(assumed.covariates.log_prob, (None, 0))))
    pairs = [(z[:, j, None], few[:, :, j]) for j in range(2)]
    pairs.append((fit(v, z[:, None]), fit(v, few)))
    mean = jax.jit(jax.vmap(jax.vmap(lambda z: assumed.structural_mean(jnp.zeros(()), z))))
    pairs.append((mean(z[:, None]), mean(few)))
    pairs.append((np.sum(np.square(z), axis=1)[:, None], np.sum(np.square(few), axis=2)))
    return np.asarray([np.sum(np.asarray(drawn) < np.asarray(true), axis=1) for true, drawn in pairs])


@pytest.mark.slow
def test_ranks_are_uniform_under_simulation(model: BGMIVModel) -> None:
    p_values = calibration(bent(model), bent(model), 11, 12, 13, 14)
    assert p_values.min() * len(p_values) > 0.05


@pytest.mark.slow
def test_the_calibration_test_sees_a_wrong_posterior(model: BGMIVModel) -> None:
    louder = eqx.tree_at(
        lambda m: m.covariates.decoder.nets[0].outputs[0].bias,
        bent(model),
        jnp.asarray([-STRAIGHT, -STRAIGHT, *[raw_spread(0.3)] * 2], jnp.float32),
    )
    assert calibration(bent(model), louder, 11, 12).min() < 1e-6


def two_modes(model: BGMIVModel, n: int) -> tuple[BGMIVModel, np.ndarray]:
    # v_0 = 0.8 |z_0|: two modes that no chain leaves.
    first = np.zeros((2, 8))
    first[0, :2], first[1, 2] = [1.0, -1.0], 1.0
    last = np.zeros((8, 4))
    last[:2, 0], last[2, 1] = 1.0, 1.0
    spread = [raw_spread(0.05)] * 2
    two = with_decoder(model, (first, [0.0, 0.0, *[STRAIGHT] * 6]), (last, [0.0, -STRAIGHT, *spread]))
    # Distinct rows, so that all tests share one compiled program.
    return two, np.asarray([1.0, 0.0], np.float32) + np.linspace(0.0, 0.01, n, dtype=np.float32)[:, None]


def test_chains_in_separate_modes_are_reported(model: BGMIVModel) -> None:
    with pytest.warns(BGMIVWarning, match=r"not converged for \d+ of 48 rows' latents: R-hat is up to .* n_draws"):
        result = sample_latents(*two_modes(model, ROWS), CONFIG, KEY)
    assert np.mean(result.rhat > 1.5) > 0.5


def test_a_share_of_rows_that_chance_explains_is_not_reported() -> None:
    rhat, ess = np.full(100, 1.002), np.full(100, 900.0)
    rhat[:10] = 1.02
    _warn_unconverged(rhat, ess, CONFIG, "rows")
    rhat[10] = np.nan
    with pytest.warns(BGMIVWarning, match="11 of 100 rows"):
        _warn_unconverged(rhat, ess, CONFIG, "rows")
    ess[:] = 399.0
    with pytest.warns(
        BGMIVWarning, match="100 of 100 rows: .* down to 399 .it should be 400 at least.*n_draws .now 240"
    ):
        _warn_unconverged(np.ones(100), ess, CONFIG, "rows")


def test_it_sees_covariates_and_nothing_else(model: BGMIVModel, pca_draws: LatentDraws) -> None:
    assert list(inspect.signature(sample_latents).parameters) == ["model", "v", "config", "key"]
    changed = eqx.tree_at(
        lambda m: (m.treatment, m.outcome),
        linear(model, 0.3),
        jax.tree.map(lambda leaf: -3.0 * leaf, (model.treatment, model.outcome)),
    )
    np.testing.assert_array_equal(quietly(changed, linear_rows(0.3), CONFIG, KEY).draws, pca_draws.draws)


def test_predictions_use_few_draws_of_each_distinct_row(model: BGMIVModel, pca_draws: LatentDraws) -> None:
    ppca, rule, x = linear(model, 0.3), replace(CONFIG, seed=3), np.linspace(-2.0, 2.0, 2 * ROWS, dtype=np.float32)
    places = np.concatenate([np.arange(ROWS), np.random.default_rng(0).permutation(ROWS)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BGMIVWarning)
        draws = latent_draws(ppca, linear_rows(0.3)[places], rule, x)
    assert draws.shape == (2 * ROWS, 256, 2)
    flat = pca_draws.draws.reshape(ROWS, 960, 2)[:, np.linspace(0, 959, 256).round().astype(int)]
    np.testing.assert_array_equal(draws, flat[places])
    means = structural_at_draws(ppca, x, draws).mean(axis=1)
    for j in (0, ROWS + 3):
        expected = structural_means(ppca, np.full(256, x[j]), draws[j]).mean()
        np.testing.assert_allclose(means[j], expected, rtol=1e-4, atol=1e-5)


def test_all_draws_of_the_structural_function_are_judged(model: BGMIVModel) -> None:
    with pytest.warns(BGMIVWarning, match=r"not converged for \d+ of 48 rows' structural function"):
        latent_draws(*two_modes(model, ROWS), CONFIG, np.zeros(3, np.float32))


def test_mixed_blocks_agree_with_integration_on_a_grid() -> None:
    rng = np.random.default_rng(0)
    n = 8
    data = IVData.from_arrays(
        rng.normal(size=n),
        rng.normal(size=n),
        instruments=rng.normal(size=n),
        covariates={
            "age": rng.normal(size=n),
            "proxy": rng.normal(size=(n, 3)),
            "member": np.arange(n) % 2,
            "region": np.arange(n) % 3,
        },
        blocks={"member": "binary", "region": "categorical"},
    )
    # Averaged blocks are tempered densities: the posterior is what the objective says, not what the heads would.
    covariates = CovariateConfig(
        FeatureConfig(vector_features=(4, 4)),
        block_encoder_hidden=(8,),
        vector_decoder_hidden=(8,),
        column_decoder_hidden=(8,),
    )
    config = ModelConfig(LatentLayout(1, 1, 0, 0), (8,), (8,), covariates)
    drawn = build_model(data.schema, 1, config, key=jax.random.key(2))
    decoder = jax.tree.map(lambda leaf: 2.5 * leaf, drawn.covariates.decoder)
    model = eqx.tree_at(lambda m: m.covariates.decoder, drawn, decoder)
    v = data.covariates.astype(np.float32)
    result = quietly(model, v, CONFIG, KEY)
    axis = np.linspace(-6.0, 6.0, 121, dtype=np.float32)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    height = np.asarray(
        jax.jit(jax.vmap(jax.vmap(covariate_log_posterior, (None, None, 0)), (None, 0, None)))(model, v, grid)
    )
    weights = np.exp(height - height.max(axis=1, keepdims=True)).astype(np.float64)
    weights /= weights.sum(axis=1, keepdims=True)
    for power in (1, 2):
        expected = weights @ grid.astype(np.float64) ** power
        variance = weights @ grid.astype(np.float64) ** (2 * power) - expected**2
        seen = np.mean(result.draws.astype(np.float64) ** power, axis=(1, 2))
        scores = (seen - expected) / np.sqrt(variance / result.ess[:, None])
        assert np.mean(scores**2) < 2.0
    # The covariates say something: what was compared is not the prior.
    assert np.abs(weights @ grid).max() > 0.5
