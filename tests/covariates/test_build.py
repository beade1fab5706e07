from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from bgmiv.covariates import CovariateConfig, CovariateModule, build_covariates
from bgmiv.data import IVData, Schema
from bgmiv.errors import ConfigError, DataError
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


def test_images_are_refused_with_a_way_out() -> None:
    images = np.random.default_rng(0).random(size=(4, 2, 2))
    with pytest.raises(DataError, match=r"'photo'.*images.*'vector'"):
        shapes(schema({"photo": images}), 3, CovariateConfig())


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
