"""The covariate module: which networks each kind of block gets, and what they compute on a row with all kinds."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, log_softmax
from scipy.stats import bernoulli, norm

from bgmiv.bgm.config import CovariateConfig
from bgmiv.bgm.covariates import CovariateModule, build_covariates
from bgmiv.data import BlockKind, CovariateBlock, IVData, Schema
from bgmiv.likelihood import Bernoulli, Categorical, Gaussian
from bgmiv.nn.settings import FeatureConfig, ImageConfig

LATENT = 3
BLOCKS = (
    CovariateBlock("age", BlockKind.continuous, ("age", "score"), 0, 2),
    CovariateBlock("proxy", BlockKind.vector, ("a", "b", "c", "d", "e"), 2, 7),
    CovariateBlock("member", BlockKind.binary, ("member",), 7, 8),
    CovariateBlock("region", BlockKind.categorical, ("region",), 8, 11, levels=("n", "s", "w")),
)
SMALL = {"block_encoder_hidden": (6,), "vector_decoder_hidden": (6,), "column_decoder_hidden": (5,)}
V = np.asarray([0.3, -1.0, 1.0, 0.2, -0.4, 0.0, 2.0, 1.0, 0.0, 1.0, 0.0], np.float32)
Z = np.asarray([0.5, -0.2, 1.3], np.float32)


def module(dropout: float = 0.5, **changes: Any) -> CovariateModule:
    features = FeatureConfig(vector_features=(7, 4), dropout=dropout)
    config = CovariateConfig(**{**SMALL, "features": features, **changes})
    return build_covariates(BLOCKS, LATENT, config, key=jax.random.key(0))


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
        config = CovariateConfig(dense_hidden=(4,), shared_variance=shared)
        built = build_covariates(BLOCKS[:1], LATENT, config, key=jax.random.key(0))
        got = jax.tree.map(np.asarray, _evaluate(built, v, Z))
        (raw,) = got.raws
        deviation = np.sqrt(_softplus(raw[2:]))
        # The generic likelihood is the plain density: a sum over coordinates.
        assert float(got.log_prob) == pytest.approx(norm.logpdf(v, raw[:2], deviation).sum(), rel=1e-4)
        assert len(raw) == (3 if shared else 4)


def test_without_covariates_every_term_is_zero() -> None:
    built = build_covariates((), LATENT, CovariateConfig(dense_hidden=(4,)), key=jax.random.key(0))
    got = jax.tree.map(np.asarray, _evaluate(built, np.zeros(0, np.float32), Z))
    assert got.mean.shape == (0,)
    assert got.encoded.shape == (LATENT,)
    assert float(got.log_prob) == float(got.cycle_loss) == float(got.spread_penalty) == 0.0


def schema(covariates: Any, **blocks: str) -> Schema:
    rng = np.random.default_rng(0)
    return IVData.from_arrays(
        rng.normal(size=4), rng.normal(size=4), instruments=rng.normal(size=4), covariates=covariates, blocks=blocks
    ).schema


def shapes(schema: Schema, latent_dim: int, config: CovariateConfig) -> CovariateModule:
    """The module with shapes in place of arrays: nothing is drawn or compiled."""
    return jax.eval_shape(lambda key: build_covariates(schema.blocks, latent_dim, config, key=key), jax.random.key(0))


def widths(net: Any) -> list[int]:
    return [net.layers[0].kernel.shape[0], *(layer.kernel.shape[1] for layer in (*net.layers, *net.outputs))]


def test_continuous_columns_get_the_papers_generic_networks() -> None:
    built = shapes(schema({"a": np.arange(4.0), "b": np.arange(4.0) ** 2}), 7, CovariateConfig())
    assert widths(built.encoder.net) == [2, 64, 64, 64, 64, 64, 7]
    assert [widths(net) for net in built.decoder.nets] == [[7, 64, 64, 64, 64, 64, 4]]
    assert [branch.head for branch in built.branches] == [Gaussian(2)]
    assert built.branches[0].reduction == "sum"


def test_a_vector_block_gets_the_papers_vector_networks() -> None:
    covariates = {"time": np.arange(4.0), "proxy": np.random.default_rng(1).normal(size=(4, 784))}
    built = shapes(schema(covariates), 6, CovariateConfig())
    features = built.encoder.features.parts[1]
    assert features.hidden.kernel.shape == (784, 128)
    assert features.output.kernel.shape == (128, 64)
    assert features.dropout == 0.1
    assert widths(built.encoder.net) == [65, 128, 64, 6]
    time, proxy = built.decoder.nets
    assert widths(time) == [6, 64, 1, 1]
    assert widths(proxy) == [6, 128, 64, 784, 784]
    assert [branch.head for branch in built.branches] == [Gaussian(1), Gaussian(784)]
    assert {branch.reduction for branch in built.branches} == {"mean"}


def test_every_column_kind_gets_its_head() -> None:
    covariates = {"a": np.arange(4.0), "m": [True, False, True, True], "r": ["n", "s", "w", "n"]}
    built = shapes(schema(covariates, r="categorical"), 3, CovariateConfig())
    assert [branch.head for branch in built.branches] == [Gaussian(1), Bernoulli(1), Categorical(3)]
    assert [(branch.start, branch.stop) for branch in built.branches] == [(0, 1), (1, 2), (2, 5)]


@pytest.mark.parametrize("wide", [False, True])
def test_columns_that_are_latents_are_their_own_generators_whatever_their_kind(wide: bool) -> None:
    covariates = {"a": np.arange(4.0), "m": [True, False, True, True], "r": ["n", "s", "w", "n"]}
    proxy = {"proxy": np.random.default_rng(0).normal(size=(4, 9))} if wide else {}
    config = CovariateConfig(
        FeatureConfig(vector_features=(8, 2)), latent_features=(2, 0, 1, 4, 3, 5, 6)[: 5 + 2 * wide]
    )
    of = schema({**covariates, **proxy}, r="categorical")
    built = build_covariates(of.blocks, len(config.latent_features), config, key=jax.random.key(0))
    assert not jax.tree.leaves(built.decoder.nets[:3])
    row = jnp.linspace(-1.0, 1.0, of.n_covariates)
    assert built.mean(built.encode(row))[:5].tolist() == row[:5].tolist()


def test_an_image_gets_the_papers_convolutions_and_a_vector_beside_it_the_nuisance_branch() -> None:
    rng = np.random.default_rng(1)
    covariates = {"time": np.arange(4.0), "image": rng.random((4, 28, 28)), "nuisance": rng.normal(size=(4, 215))}
    built = shapes(schema(covariates, image="image"), 6, CovariateConfig())
    time, image, nuisance = built.encoder.features.parts
    assert [layer.kernel.shape for layer in image.convolutions] == [(3, 3, 1, 64), (3, 3, 64, 64)]
    assert [layer.kernel.shape for layer in image.layers] == [(7 * 7 * 64, 128), (128, 64)]
    assert image.dropout == 0.1
    assert (image.shift, image.noise) == (0, 0.0)
    assert (nuisance.hidden.kernel.shape, nuisance.output.kernel.shape) == ((215, 64), (64, 32))
    assert (time.width, image.width, nuisance.width) == (1, 64, 32)
    assert widths(built.encoder.net) == [97, 128, 64, 6]
    _, decoder, nuisance_decoder = built.decoder.nets
    assert decoder.project.kernel.shape == (6, 7 * 7 * 128)
    assert [layer.kernel.shape[2:] for layer in decoder.doublings] == [(128, 64), (64, 32)]
    assert decoder.output.kernel.shape == (3, 3, 32, 1)
    assert widths(nuisance_decoder) == [6, 128, 64, 215, 215]
    assert [branch.head for branch in built.branches] == [Gaussian(1), Bernoulli(784), Gaussian(215)]


def test_dense_image_networks_are_an_option() -> None:
    config = CovariateConfig(FeatureConfig(images=ImageConfig(features="dense", shift=2, noise=0.2)))
    built = shapes(schema({"photo": np.random.default_rng(0).random((4, 6, 5))}), 3, config)
    (features,), (branch,) = built.encoder.features.parts, built.branches
    assert [layer.kernel.shape for layer in features.layers] == [(30, 512), (512, 128), (128, 64)]
    assert branch.head == Bernoulli(30)
    assert features.noise_width == 2 + 30
