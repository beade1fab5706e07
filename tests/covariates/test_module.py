"""The covariate module on a row with one block of every kind."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, log_softmax
from scipy.stats import bernoulli, norm

from bgmiv.covariates import CovariateConfig, CovariateModule, build_blocks, build_dense
from bgmiv.data import BlockKind, CovariateBlock

LATENT = 3
BLOCKS = (
    CovariateBlock("age", BlockKind.continuous, ("age", "score"), 0, 2),
    CovariateBlock("proxy", BlockKind.vector, ("a", "b", "c", "d", "e"), 2, 7),
    CovariateBlock("member", BlockKind.binary, ("member",), 7, 8),
    CovariateBlock("region", BlockKind.categorical, ("region",), 8, 11, levels=("n", "s", "w")),
)
SMALL = {
    "block_encoder_hidden": (6,),
    "vector_features": (7, 4),
    "vector_decoder_hidden": (6,),
    "column_decoder_hidden": (5,),
}
V = np.asarray([0.3, -1.0, 1.0, 0.2, -0.4, 0.0, 2.0, 1.0, 0.0, 1.0, 0.0], np.float32)
Z = np.asarray([0.5, -0.2, 1.3], np.float32)


def module(**changes: Any) -> CovariateModule:
    config = CovariateConfig(**{**SMALL, "dropout": 0.5, **changes})
    return build_blocks(BLOCKS, LATENT, config, key=jax.random.key(0))


class Evaluated(NamedTuple):
    raws: tuple[Any, ...]
    log_prob: Any
    mean: Any
    cycle_loss: Any
    spread_penalty: Any
    encoded: Any
    encoded_without_drops: Any
    encoded_all_dropped: Any


@jax.jit
def _evaluate(module: CovariateModule, v: jax.Array, z: jax.Array) -> Evaluated:
    raws = module.decode(z)
    return Evaluated(
        raws,
        module.log_prob(v, z),
        module.mean(z),
        module.cycle_loss(v, raws),
        module.spread_penalty(raws),
        module.encode(v),
        module.encode(v, jnp.ones(module.noise_width)),
        module.encode(v, jnp.zeros(module.noise_width)),
    )


def evaluate(module: CovariateModule) -> Evaluated:
    return jax.tree.map(np.asarray, _evaluate(module, V, Z))


@pytest.fixture(scope="module")
def mean_module() -> Evaluated:
    return evaluate(module(block_reduction="mean"))


@pytest.fixture(scope="module")
def sum_module() -> Evaluated:
    return evaluate(module(block_reduction="sum"))


def _softplus(raw: np.ndarray) -> np.ndarray:
    return np.log1p(np.exp(raw.astype(np.float64))) + 1e-6


def _densities(raws: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """Each block's log-densities, a coordinate each, from scratch."""
    age, proxy, member, region = raws
    return [
        norm.logpdf(V[:2], age[:2], np.sqrt(_softplus(age[2:]))),
        norm.logpdf(V[2:7], proxy[:5], np.sqrt(_softplus(proxy[5:]))),
        bernoulli.logpmf(V[7:8], expit(member)),
        V[8:] * log_softmax(region),
    ]


def test_shapes(mean_module: Evaluated) -> None:
    assert [len(raw) for raw in mean_module.raws] == [4, 10, 1, 3]
    assert mean_module.mean.shape == V.shape
    assert mean_module.encoded.shape == (LATENT,)
    assert mean_module.log_prob.shape == mean_module.cycle_loss.shape == mean_module.spread_penalty.shape == ()


def test_log_prob_averages_or_adds_a_blocks_coordinates(mean_module: Evaluated, sum_module: Evaluated) -> None:
    mean, total = _densities(mean_module.raws), _densities(sum_module.raws)
    assert float(mean_module.log_prob) == pytest.approx(sum(block.mean() for block in mean), rel=1e-4)
    assert float(sum_module.log_prob) == pytest.approx(sum(block.sum() for block in total), rel=1e-4)


def test_mean_is_a_flat_row_of_the_heads_means(mean_module: Evaluated) -> None:
    age, proxy, member, region = mean_module.raws
    chances = np.exp(log_softmax(region))
    np.testing.assert_allclose(
        mean_module.mean, np.concatenate([age[:2], proxy[:5], expit(member), chances]), rtol=1e-5
    )


def test_cycle_loss_weighs_blocks_equally(mean_module: Evaluated) -> None:
    densities, raws = _densities(mean_module.raws), mean_module.raws
    parts = [
        np.mean((V[:2] - raws[0][:2]) ** 2),
        np.mean((V[2:7] - raws[1][:5]) ** 2),
        -densities[2].mean(),
        -densities[3].mean(),
    ]
    assert float(mean_module.cycle_loss) == pytest.approx(np.mean(parts), rel=1e-4)


def test_spread_penalty_adds_the_blocks_with_a_spread(mean_module: Evaluated) -> None:
    age, proxy, _, _ = mean_module.raws
    assert float(mean_module.spread_penalty) == pytest.approx(np.mean(age[2:] ** 2) + np.mean(proxy[5:] ** 2), rel=1e-4)


def test_dropout_acts_only_when_noise_is_given(mean_module: Evaluated) -> None:
    # Rate one half, nothing dropped: the kept units are doubled, so the vector's features change.
    assert not np.allclose(mean_module.encoded, mean_module.encoded_without_drops)
    assert not np.allclose(mean_module.encoded_without_drops, mean_module.encoded_all_dropped)
    without = evaluate(module(dropout=0.0))
    np.testing.assert_array_equal(without.encoded, without.encoded_without_drops)


def test_noise_is_asked_for_only_where_units_are_dropped() -> None:
    assert module().noise_width == 7
    assert module(dropout=0.0).noise_width == 0


def test_dropout_keeps_the_features_mean() -> None:
    built = module(dropout=0.3)
    features, block = built.encoder.features.parts[1], V[2:7]
    noise = np.random.default_rng(0).uniform(size=(20_000, 7)).astype(np.float32)
    dropped, kept = jax.jit(lambda f, n: (jax.vmap(lambda row: f(block, row))(n), f(block, None)))(features, noise)
    standard_error = np.asarray(dropped).std(axis=0) / np.sqrt(len(noise))
    assert (np.abs(np.mean(dropped, axis=0) - kept) < 4.0 * standard_error).all()


def test_dense_module_is_one_gaussian_over_all_columns() -> None:
    v = np.asarray([0.3, -1.0], np.float32)
    for shared in (False, True):
        built = build_dense(2, LATENT, key=jax.random.key(0), hidden=(4,), shared_variance=shared)
        got = jax.tree.map(np.asarray, _evaluate(built, v, Z))
        (raw,) = got.raws
        deviation = np.sqrt(_softplus(raw[2:]))
        # The generic likelihood is the plain density: a sum over coordinates.
        assert float(got.log_prob) == pytest.approx(norm.logpdf(v, raw[:2], deviation).sum(), rel=1e-4)
        assert len(raw) == (3 if shared else 4)


def test_without_covariates_every_term_is_zero() -> None:
    built = build_dense(0, LATENT, key=jax.random.key(0), hidden=(4,))
    got = jax.tree.map(np.asarray, _evaluate(built, np.zeros(0, np.float32), Z))
    assert got.mean.shape == (0,)
    assert got.encoded.shape == (LATENT,)
    assert float(got.log_prob) == float(got.cycle_loss) == float(got.spread_penalty) == 0.0
