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

from bgmiv.covariates import CovariateConfig, build_dense
from bgmiv.data import IVData
from bgmiv.errors import BGMIVWarning, ConfigError
from bgmiv.infer import structural_means
from bgmiv.infer.latent_posterior import (
    LatentDraws,
    LatentPosterior,
    _warn_unconverged,
    posterior_structural_means,
    sample_latents,
    structural_posterior,
)
from bgmiv.model import BGMIVModel, LatentLayout, ModelConfig, build_model
from bgmiv.model.objectives import covariate_log_posterior

OPTIMISED = True

CONFIG = LatentPosterior(n_warmup=60, n_draws=240)
ROWS = 96
KEY = jax.random.key(3)
# Far enough from a unit's kink that it never bends: a network with this bias is linear.
STRAIGHT = 10.0
A = np.asarray([[1.0, 0.3], [-0.5, 0.8], [0.6, -0.9], [0.2, 0.4]])
SHIFT = np.asarray([0.3, -0.2])


def raw_spread(deviation: float) -> float:
    """The raw output whose softplus is the variance."""
    return float(np.log(np.expm1(deviation**2)))


def with_decoder(model: BGMIVModel, first: tuple[Any, Any], last: tuple[Any, Any]) -> BGMIVModel:
    """The model with these kernels and biases, `(4, 8)` and `(8, 4)`, in its covariate generator."""

    def leaves(m: BGMIVModel) -> Any:
        net = m.covariates.decoder.nets[0]
        return net.layers[0].kernel, net.layers[0].bias, net.outputs[0].kernel, net.outputs[0].bias

    return eqx.tree_at(leaves, model, tuple(jnp.asarray(part, jnp.float32) for part in (*first, *last)))


def linear(model: BGMIVModel, deviation: float) -> BGMIVModel:
    """Probabilistic PCA: v = A'z + shift + noise."""
    kernel = np.zeros((8, 4))
    kernel[:4, :2] = A
    bias = [*(SHIFT - STRAIGHT * A.sum(axis=0)), *[raw_spread(deviation)] * 2]
    return with_decoder(model, (np.eye(4, 8), np.full(8, STRAIGHT)), (kernel, bias))


def exact(v: np.ndarray, deviation: float) -> tuple[np.ndarray, np.ndarray]:
    """Posterior means and the covariance of probabilistic PCA."""
    covariance = np.linalg.inv(np.eye(4) + A @ A.T / deviation**2)
    return (v - SHIFT) @ A.T @ covariance / deviation**2, covariance


def linear_rows(deviation: float, n: int = ROWS) -> np.ndarray:
    rng = np.random.default_rng(5)
    v = rng.normal(size=(n, 4)) @ A + SHIFT + deviation * rng.normal(size=(n, 2))
    return v.astype(np.float32)


def quietly(model: BGMIVModel, v: np.ndarray, config: LatentPosterior, key: jax.Array) -> LatentDraws:
    """Without a warning, where what is compared allows for the effective number of draws."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BGMIVWarning)
        return sample_latents(model, v, config, key)


def check_moments(draws: np.ndarray, ess: np.ndarray, v: np.ndarray, deviation: float, tolerance: float) -> None:
    mean, covariance = exact(v.astype(np.float64), deviation)
    flat = draws.reshape(len(v), -1, 4).astype(np.float64)
    scores = (flat.mean(axis=1) - mean) / np.sqrt(np.diag(covariance) / ess[:, None])
    assert np.mean(scores**2) < 1.3
    white = (flat - mean[:, None]) @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    moments = np.einsum("nmi,nmj->ij", white, white) / white[..., 0].size
    np.testing.assert_allclose(moments, np.eye(4), atol=tolerance)


@pytest.fixture(scope="module")
def pca_draws(model: BGMIVModel) -> LatentDraws:
    return sample_latents(linear(model, 0.3), linear_rows(0.3), CONFIG, KEY)


def check_pca(result: LatentDraws, deviation: float) -> None:
    assert result.draws.shape == (ROWS, 4, 240, 4)
    assert result.divergences.shape == result.rhat.shape == (ROWS,)
    assert result.rhat_of is None
    assert result.divergences.sum() == 0
    # However thin the posterior, a proposal covers a quarter of a period: draws are nearly independent.
    assert np.median(result.ess) > 600
    assert result.acceptance.min() > 0.8
    check_moments(result.draws, result.ess, linear_rows(deviation), deviation, 0.03)


def test_the_posterior_of_probabilistic_pca_is_exact(pca_draws: LatentDraws) -> None:
    check_pca(pca_draws, 0.3)


def test_a_thin_posterior_is_as_exact(model: BGMIVModel) -> None:
    check_pca(sample_latents(linear(model, 0.02), linear_rows(0.02), CONFIG, KEY), 0.02)


def test_nuts_agrees(model: BGMIVModel) -> None:
    v = linear_rows(0.3, 16)
    result = quietly(linear(model, 0.3), v, LatentPosterior("nuts", n_chains=2, n_warmup=80, n_draws=300), KEY)
    check_moments(result.draws, result.ess, v, 0.3, 0.06)


def bent(model: BGMIVModel) -> BGMIVModel:
    """A generator that bends everywhere, and whose noise differs from place to place."""
    rng = np.random.default_rng(1)
    last = rng.normal(size=(8, 4)) * [0.6, 0.6, 0.3, 0.3]
    return with_decoder(
        model, (rng.normal(size=(4, 8)), rng.normal(size=8)), (last, [0.0, 0.0, *[raw_spread(0.1)] * 2])
    )


def calibration(truth: BGMIVModel, assumed: BGMIVModel, *seeds: int) -> np.ndarray:
    """P-values of uniform ranks, of each latent and of three functions of them, when rows come from `truth`."""
    # As many rows at a time as in every other test: they share one compiled program.
    ranks = np.concatenate([_ranks(truth, assumed, jax.random.key(seed)) for seed in seeds], axis=1)
    return np.asarray([chisquare(np.bincount(rank, minlength=16)).pvalue for rank in ranks])


def _ranks(truth: BGMIVModel, assumed: BGMIVModel, key: jax.Array) -> np.ndarray:
    key_z, key_v, key = jax.random.split(key, 3)
    z = truth.layout.sample_prior(key_z, ROWS)
    head = truth.covariates.branches[0].head
    raws = jax.vmap(truth.covariates.decode)(z)[0]
    v = jax.vmap(lambda raw, k: head.sample(raw, k, 1)[0])(raws, jax.random.split(key_v, ROWS))
    draws = quietly(assumed, np.asarray(v), CONFIG, key).draws
    # 15 draws far enough apart to be independent: ranks from 0 to 15.
    few = draws[:, :, ::64].reshape(ROWS, 16, -1)[:, 1:]
    fit = jax.jit(jax.vmap(jax.vmap(assumed.covariates.log_prob, (None, 0))))
    pairs = [(z[:, j, None], few[:, :, j]) for j in range(4)]
    pairs.append((fit(v, z[:, None]), fit(v, few)))
    mean = jax.jit(jax.vmap(jax.vmap(lambda z: assumed.structural_mean(jnp.zeros(()), z))))
    pairs.append((mean(z[:, None]), mean(few)))
    pairs.append((np.sum(np.square(z), axis=1)[:, None], np.sum(np.square(few), axis=2)))
    return np.asarray([np.sum(np.asarray(drawn) < np.asarray(true), axis=1) for true, drawn in pairs])


def test_ranks_are_uniform_under_simulation(model: BGMIVModel) -> None:
    p_values = calibration(bent(model), bent(model), 11, 12, 13)
    assert p_values.min() * len(p_values) > 0.05


def test_the_calibration_test_sees_a_wrong_posterior(model: BGMIVModel) -> None:
    louder = eqx.tree_at(
        lambda m: m.covariates.decoder.nets[0].outputs[0].bias,
        bent(model),
        jnp.asarray([0.0, 0.0, *[raw_spread(0.3)] * 2], jnp.float32),
    )
    assert calibration(bent(model), louder, 11).min() < 1e-6


def test_chains_in_separate_modes_are_reported(model: BGMIVModel) -> None:
    # v_0 = 0.8 |z_0|: two modes that no chain leaves.
    first = np.zeros((4, 8))
    first[0, :2], first[1, 2] = [1.0, -1.0], 1.0
    last = np.zeros((8, 4))
    last[:2, 0], last[2, 1] = 1.0, 1.0
    spread = [raw_spread(0.05)] * 2
    two = with_decoder(model, (first, [0.0, 0.0, *[STRAIGHT] * 6]), (last, [0.0, -STRAIGHT, *spread]))
    v = np.tile(np.asarray([1.0, 0.0], np.float32), (ROWS, 1))
    with pytest.warns(
        BGMIVWarning, match=r"not converged for \d+ of 96 rows' latents: R-hat is up to .* n_draws"
    ) as seen:
        result = sample_latents(two, v, CONFIG, KEY, of=lambda z: z[1] + z[0] ** 2)
    # What does not tell the modes apart has converged.
    assert len(seen) == 1
    assert result.rhat_of is not None
    assert np.mean(result.rhat > 1.5) > 0.5
    assert np.mean(result.rhat_of > 1.01) < 0.1
    assert result.ess_of is not None
    assert np.median(result.ess_of) > 10 * np.median(result.ess)


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


def test_the_same_key_gives_the_same_draws(model: BGMIVModel, pca_draws: LatentDraws) -> None:
    first = pca_draws.draws
    assert len(np.unique(first[..., 0])) > 0.5 * first[..., 0].size
    # Neither do a row's draws depend on the rows beside it.
    again = sample_latents(linear(model, 0.3), linear_rows(0.3)[:90], CONFIG, KEY).draws
    np.testing.assert_array_equal(first[:90], again)
    assert not np.any(first == sample_latents(linear(model, 0.3), linear_rows(0.3), CONFIG, jax.random.key(4)).draws)


def test_it_sees_covariates_and_nothing_else(model: BGMIVModel, pca_draws: LatentDraws) -> None:
    assert list(inspect.signature(sample_latents).parameters) == ["model", "v", "config", "key", "of"]
    changed = eqx.tree_at(
        lambda m: (m.treatment, m.outcome),
        linear(model, 0.3),
        jax.tree.map(lambda leaf: -3.0 * leaf, (model.treatment, model.outcome)),
    )
    np.testing.assert_array_equal(sample_latents(changed, linear_rows(0.3), CONFIG, KEY).draws, pca_draws.draws)


def test_the_structural_mean_is_exact_where_all_is_linear(model: BGMIVModel) -> None:
    # mu(x, z) = 0.7 z_0 - 1.2 z_1 + 0.5 x
    outcome = model.outcome
    kernel = np.zeros(outcome.outputs[0].kernel.shape)
    kernel[:3, 0] = 0.7, -1.2, 0.5
    straight = eqx.tree_at(
        lambda net: (net.layers[0].kernel, net.layers[0].bias, net.outputs[0].kernel, net.outputs[0].bias),
        outcome,
        tuple(jnp.asarray(p, jnp.float32) for p in (np.eye(3, 8), np.full(8, STRAIGHT), kernel, [0.0, 0.0])),
    )
    ppca = eqx.tree_at(lambda m: m.outcome, linear(model, 0.3), straight)
    rows, x = linear_rows(0.3), np.linspace(-2.0, 2.0, 200).astype(np.float32)
    v = rows[np.arange(200) % ROWS]
    posterior = structural_posterior(ppca, x, v, CONFIG, KEY)
    mean, covariance = exact(v.astype(np.float64), 0.3)
    weights = np.asarray([0.7, -1.2, 0.0, 0.0])
    deviation = np.sqrt(weights @ covariance @ weights)
    scores = (posterior.means - (mean @ weights + 0.5 * x)) / (deviation / np.sqrt(posterior.ess))
    assert np.mean(scores**2) < 1.4
    np.testing.assert_allclose(posterior.deviations, deviation, rtol=0.15)
    assert posterior.rhat.max() < 1.03


def test_structural_means_average_the_draws_of_each_distinct_row(model: BGMIVModel, pca_draws: LatentDraws) -> None:
    ppca, rows = linear(model, 0.3), linear_rows(0.3)
    places = np.random.default_rng(0).permutation(np.arange(300) % ROWS)
    places = np.concatenate([np.arange(ROWS), places])
    x = np.random.default_rng(1).normal(size=len(places)).astype(np.float32)
    means = posterior_structural_means(ppca, x, rows[places], CONFIG, KEY)
    draws = pca_draws.draws.reshape(ROWS, -1, 4)
    for i in (0, 50, 99, 395):
        at = draws[places[i]]
        expected = structural_means(ppca, np.full(len(at), x[i], np.float32), at).mean()
        np.testing.assert_allclose(means[i], expected, rtol=1e-4, atol=1e-5)
    rule = replace(CONFIG, seed=3)
    np.testing.assert_array_equal(rule.structural_means(ppca, x, rows[places]), means)


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
        vector_features=(4, 4), block_encoder_hidden=(8,), vector_decoder_hidden=(8,), column_decoder_hidden=(8,)
    )
    config = ModelConfig(LatentLayout(1, 1, 0, 0), (8,), (8,), covariates)
    drawn = build_model(data.schema, 1, config, key=jax.random.key(2))
    decoder = jax.tree.map(lambda leaf: 2.5 * leaf, drawn.covariates.decoder)
    model = eqx.tree_at(lambda m: m.covariates.decoder, drawn, decoder)
    v = data.covariates.astype(np.float32)
    result = quietly(model, v, LatentPosterior(n_warmup=100, n_draws=400), KEY)
    axis = np.linspace(-6.0, 6.0, 241, dtype=np.float32)
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


def test_without_covariates_the_posterior_is_the_prior(model: BGMIVModel) -> None:
    bare = eqx.tree_at(
        lambda m: m.covariates,
        model,
        build_dense(0, 4, key=jax.random.key(0), hidden=(8,)),
        is_leaf=lambda x: x is None,
    )
    result = sample_latents(bare, np.zeros((1, 0), np.float32), CONFIG, KEY)
    flat = result.draws.reshape(-1, 4)
    np.testing.assert_allclose(flat.mean(axis=0), 0.0, atol=4.0 / np.sqrt(result.ess[0]))
    np.testing.assert_allclose(flat.std(axis=0), 1.0, atol=0.15)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"sampler": "mala"}, "sampler"),
        ({"n_chains": 1}, "n_chains"),
        ({"n_chains": 33}, "n_chains"),
        ({"n_warmup": 0}, "n_warmup"),
        ({"n_draws": 2.5}, "n_draws"),
        ({"seed": -1}, "seed"),
        ({"target_acceptance": 1.0}, "target_acceptance"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        LatentPosterior(**settings)
