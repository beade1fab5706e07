from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from bgmiv.covariates import CovariateConfig, CovariateModule, ImageConfig, build_covariates
from bgmiv.data import IVData, Schema
from bgmiv.errors import ConfigError
from bgmiv.likelihood import Bernoulli, Categorical, Gaussian


def schema(covariates: Any, **blocks: str) -> Schema:
    rng = np.random.default_rng(0)
    return IVData.from_arrays(
        rng.normal(size=4), rng.normal(size=4), instruments=rng.normal(size=4), covariates=covariates, blocks=blocks
    ).schema


def shapes(schema: Schema, latent_dim: int, config: CovariateConfig) -> CovariateModule:
    """The module with shapes in place of arrays: nothing is drawn or compiled."""
    return jax.eval_shape(lambda key: build_covariates(schema, latent_dim, config, key=key), jax.random.key(0))


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


def test_shared_variance_is_passed_on() -> None:
    covariates = {"a": np.arange(4.0), "b": np.arange(4.0) ** 2}
    built = shapes(schema(covariates), 3, CovariateConfig(shared_variance=True))
    assert built.branches[0].head == Gaussian(2, shared_variance=True)


def test_an_image_gets_the_papers_convolutions_and_a_vector_beside_it_the_nuisance_branch() -> None:
    rng = np.random.default_rng(1)
    covariates = {"time": np.arange(4.0), "image": rng.random((4, 28, 28)), "nuisance": rng.normal(size=(4, 215))}
    built = shapes(schema(covariates, image="image"), 6, CovariateConfig())
    time, image, nuisance = built.encoder.features.parts
    assert [layer.kernel.shape for layer in image.extractor.convolutions] == [(3, 3, 1, 64), (3, 3, 64, 64)]
    assert [layer.kernel.shape for layer in image.extractor.layers] == [(7 * 7 * 64, 128), (128, 64)]
    assert image.extractor.dropout == 0.1
    assert (image.shift, image.noise) == (0, 0.0)
    assert (nuisance.hidden.kernel.shape, nuisance.output.kernel.shape) == ((215, 64), (64, 32))
    assert (time.width, image.width, nuisance.width) == (1, 64, 32)
    assert widths(built.encoder.net) == [97, 128, 64, 6]
    _, decoder, nuisance_decoder = built.decoder.nets
    assert decoder.net.project.kernel.shape == (6, 7 * 7 * 128)
    assert [layer.kernel.shape[2:] for layer in decoder.net.doublings] == [(128, 64), (64, 32)]
    assert decoder.net.output.kernel.shape == (3, 3, 32, 1)
    assert widths(nuisance_decoder) == [6, 128, 64, 215, 215]
    assert [branch.head for branch in built.branches] == [Gaussian(1), Bernoulli(784), Gaussian(215)]


def test_the_nuisance_branch_is_an_option_and_only_beside_images() -> None:
    rng = np.random.default_rng(1)
    beside = {"image": rng.random((4, 6, 6)), "proxy": rng.normal(size=(4, 40))}
    built = shapes(schema(beside, image="image"), 3, CovariateConfig(nuisance_features=None))
    assert built.encoder.features.parts[1].hidden.kernel.shape == (40, 128)
    alone = shapes(schema({"proxy": beside["proxy"]}), 3, CovariateConfig())
    assert alone.encoder.features.parts[0].hidden.kernel.shape == (40, 128)


def test_dense_image_networks_are_an_option() -> None:
    images = ImageConfig(features="dense", decoder="dense", likelihood="gaussian", weight=2.0, shift=2, noise=0.2)
    built = shapes(schema({"photo": np.random.default_rng(0).random((4, 6, 5))}), 3, CovariateConfig(images=images))
    (features,), (decoder,), (branch,) = built.encoder.features.parts, built.decoder.nets, built.branches
    assert [layer.kernel.shape for layer in features.extractor.layers] == [(30, 512), (512, 128), (128, 64)]
    assert widths(decoder.net) == [3, 128, 512, 30]
    assert decoder.spread.kernel.shape == (3, 1)
    assert (branch.head, branch.weight) == (Gaussian(30, shared_variance=True), 2.0)
    assert features.noise_width == 2 + 30


def test_images_never_take_the_dense_path() -> None:
    covariates = {"a": np.arange(4.0), "photo": np.random.default_rng(0).random((4, 3, 3))}
    built = shapes(schema(covariates), 3, CovariateConfig(narrow_vector=32))
    assert len(built.branches) == 2


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"features": "wavelet"}, "features"),
        ({"decoder": "none"}, "decoder"),
        ({"likelihood": "poisson"}, "likelihood"),
        ({"filters": (0, 4)}, "filters"),
        ({"filters": (4,)}, "filters"),
        ({"dense_features": ()}, "dense_features"),
        ({"decoder_filters": (4, 4)}, "decoder_filters"),
        ({"dropout": 1.0}, "dropout"),
        ({"shift": 1.5}, "shift"),
        ({"shift": -1}, "shift"),
        ({"noise": -0.1}, "noise"),
        ({"weight": 0.0}, "weight"),
    ],
)
def test_image_settings_that_cannot_be_built_are_refused(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        ImageConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"dropout": 1.0}, "dropout"),
        ({"dropout": -0.1}, "dropout"),
        ({"dense_hidden": (8, 0)}, "dense_hidden"),
        ({"block_encoder_hidden": (0,)}, "block_encoder_hidden"),
        ({"vector_features": (0, 4)}, "vector_features"),
        ({"vector_decoder_hidden": (-1,)}, "vector_decoder_hidden"),
        ({"column_decoder_hidden": (0,)}, "column_decoder_hidden"),
        ({"block_reduction": "median"}, "block_reduction"),
    ],
)
def test_what_cannot_be_built_is_refused(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        CovariateConfig(**settings)
