"""Image blocks: shapes, gradients, what training changes, and blocks of other kinds beside them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bgmiv.bgm.config import CovariateConfig
from bgmiv.bgm.covariates import ConvDecoder, CovariateModule, build_covariates
from bgmiv.data import BlockKind, CovariateBlock
from bgmiv.likelihood import Bernoulli
from bgmiv.nn.features import ImageFeatures, build_features, rows_at_once
from bgmiv.nn.settings import FeatureConfig, ImageConfig

LATENT = 3


SMALL: dict[str, Any] = {"filters": (3, 4), "conv_features": (6, 5), "dense_features": (7, 5)}
FILTERS = (4, 3, 2)


def image_block(shape: tuple[int, int, int], start: int = 0) -> CovariateBlock:
    width = int(np.prod(shape))
    names = tuple(f"p{i}" for i in range(width))
    return CovariateBlock("photo", BlockKind.image, names, start, start + width, shape=shape)


def features_of(shape: tuple[int, int, int], **settings: Any) -> ImageFeatures:
    config = FeatureConfig(images=ImageConfig(**{**SMALL, **settings}))
    features = jax.jit(lambda key: build_features([image_block(shape)], config, key=key))(jax.random.key(0)).parts[0]
    assert isinstance(features, ImageFeatures)
    return features


def module(kind: str = "conv", shift: int = 0, noise: float = 0.0) -> CovariateModule:
    """A plain column, an image and an embedding."""
    blocks = (
        CovariateBlock("age", BlockKind.continuous, ("age",), 0, 1),
        image_block((6, 5, 2), 1),
        CovariateBlock("text", BlockKind.vector, ("a", "b", "c", "d"), 61, 65),
    )
    config = CovariateConfig(
        block_encoder_hidden=(6,),
        vector_decoder_hidden=(6,),
        column_decoder_hidden=(5,),
        features=FeatureConfig(
            nuisance_features=(5, 3), images=ImageConfig(**{**SMALL, "features": kind, "shift": shift, "noise": noise})
        ),
        image_filters=FILTERS,
    )
    return jax.jit(lambda key: build_covariates(blocks, LATENT, config, key=key))(jax.random.key(0))


V = np.random.default_rng(0).random(65).astype(np.float32)
Z = np.asarray([0.5, -0.2, 1.3], np.float32)


@pytest.mark.parametrize("shape", [(9, 7, 2), (1, 2, 1)])
@pytest.mark.parametrize("kind", ["conv", "dense"])
def test_any_shape_has_features_and_a_decoder(shape: tuple[int, int, int], kind: str) -> None:
    block = image_block(shape)
    config = FeatureConfig(images=ImageConfig(**{**SMALL, "features": kind, "shift": 1}))

    def built(key: jax.Array, pixels: jax.Array, noise: jax.Array) -> tuple[jax.Array, ...]:
        features = build_features([block], config, key=key)
        decoder = ConvDecoder(LATENT, shape, FILTERS, key=key)
        z = jnp.ones(LATENT)
        return features(pixels, None), features(pixels, noise[: features.noise_width]), decoder(z), decoder.leading(z)

    pixels = jax.ShapeDtypeStruct((block.width,), np.float32)
    plain, noised, raw, leading = jax.eval_shape(
        built, jax.random.key(0), pixels, jax.ShapeDtypeStruct((10_000,), np.float32)
    )
    assert plain.shape == noised.shape == (5,)
    assert raw.shape == (Bernoulli(block.width).raw_dim,)
    assert leading.shape == (block.width,)


@pytest.mark.parametrize("kind", ["conv", "dense"])
def test_gradients_are_finite_and_reach_every_layer(kind: str) -> None:
    built = module(kind, shift=1, noise=0.2)
    noise = np.random.default_rng(1).uniform(size=built.noise_width).astype(np.float32)

    def loss(module: CovariateModule) -> jax.Array:
        z = module.encode(V, noise)
        return -module.log_prob(V, z) + module.cycle_loss(V, module.decode_means(z))

    grads = jax.jit(jax.grad(loss))(built)
    for path, leaf in jax.tree_util.tree_leaves_with_path(grads):
        assert np.isfinite(leaf).all(), path
        assert np.any(np.asarray(leaf) != 0.0), path


@jax.jit
def _apply(features: ImageFeatures, pixels: jax.Array, noise: jax.Array | None) -> jax.Array:
    return features(pixels, noise)


@pytest.mark.parametrize("kind", ["conv", "dense"])
def test_training_noise_acts_only_when_given_and_is_a_function_of_it(kind: str) -> None:
    features = features_of((6, 5, 2), features=kind, shift=1, noise=0.3, dropout=0.5)
    pixels = V[:60]
    first, second = np.random.default_rng(2).uniform(0.01, 0.99, size=(2, features.noise_width)).astype(np.float32)
    plain = np.asarray(_apply(features, pixels, None))
    np.testing.assert_array_equal(_apply(features, pixels, None), plain)
    np.testing.assert_array_equal(_apply(features, pixels, first), _apply(features, pixels, first))
    assert not np.allclose(_apply(features, pixels, first), plain)
    assert not np.allclose(_apply(features, pixels, first), _apply(features, pixels, second))


def test_without_augmentation_and_dropout_no_noise_is_asked_for() -> None:
    assert features_of((6, 5, 2), dropout=0.0).noise_width == 0
    # Six by five pixels are pooled to two by two, of four filters each.
    assert features_of((6, 5, 2)).noise_width == 16
    assert features_of((6, 5, 2), features="dense").noise_width == 0
    assert features_of((6, 5, 2), features="dense", shift=2, noise=0.1).noise_width == 62


@pytest.mark.parametrize(("uniform", "moved"), [(0.01, 2), (0.3, 1), (0.5, 0), (0.7, -1), (0.99, -2)])
def test_a_shift_moves_a_single_pixel(uniform: float, moved: int) -> None:
    features = features_of((7, 6, 1), features="dense", shift=2)
    image = np.zeros((7, 6, 1), np.float32)
    image[3, 2] = 1.0
    got = np.asarray(features.augmented(jnp.asarray(image), jnp.asarray([uniform, 0.5])))
    assert np.argwhere(got[..., 0]).tolist() == [[3 + moved, 2]]
    got = np.asarray(features.augmented(jnp.asarray(image), jnp.asarray([0.5, uniform])))
    assert np.argwhere(got[..., 0]).tolist() == [[3, 2 + moved]]


@jax.jit
def _all_of(module: CovariateModule) -> tuple[Any, ...]:
    return module.encode(V), module.decode(Z), module.log_prob(V, Z), module.mean(Z)


@pytest.mark.parametrize("kind", ["conv", "dense"])
def test_a_mix_of_blocks_weighs_and_places_each(kind: str) -> None:
    built = module(kind)
    encoded, raws, log_prob, mean = _all_of(built)
    assert encoded.shape == (LATENT,)
    assert [len(raw) for raw in raws] == [2, 60, 8]
    densities = [b.head.log_prob(raw, b.of(V)) for b, raw in zip(built.branches, raws, strict=True)]
    expected = sum(float(np.mean(one)) for one in densities)
    assert float(log_prob) == pytest.approx(expected, rel=1e-4)
    pixels = np.asarray(mean)[1:61]
    assert mean.shape == (65,)
    assert ((pixels > 0.0) & (pixels < 1.0)).all()


def test_convolutions_are_evaluated_on_as_many_rows_as_memory_takes() -> None:
    paper = jax.eval_shape(
        lambda key: build_features([image_block((28, 28, 1))], FeatureConfig(), key=key), jax.random.key(0)
    )
    # Patches of the second convolution: 14 x 14 x 576 numbers a row, 128 MB in all.
    assert rows_at_once(paper.cells, 4096) == 256
    assert rows_at_once(paper.cells, 100) == 100
    assert rows_at_once(features_of((6, 5, 2), features="dense").cells, 4096) == 4096
    assert module().rows_at_once(10**9) < 10**9
