"""Settings that cannot be built, trained or run are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from bgmiv.bgm.config import Ensemble, LatentLayout, LatentPosterior
from bgmiv.errors import ConfigError
from bgmiv.nn.settings import FeatureConfig, ImageConfig

REFUSED: dict[type, dict[str, tuple[Any, ...]]] = {
    Ensemble: {"held_out": (-0.1, 0.6, float("nan"))},
    LatentPosterior: {"n_chains": (1, 33), "n_warmup": (0,), "n_draws": (2.5,), "seed": (-1,), "acceptance": (1.0,)},
    ImageConfig: {
        "features": ("wavelet",),
        "filters": ((0, 4), (4,)),
        "dense_features": ((),),
        "dropout": (1.0,),
        "shift": (1.5,),
        "noise": (-0.1,),
    },
    FeatureConfig: {"dropout": (1.0,), "vector_noise": (-0.1,), "vector_features": ((0, 4),)},
}


@pytest.mark.parametrize("config", REFUSED, ids=lambda config: config.__name__)
def test_impossible_settings_are_refused_by_name(config: type) -> None:
    for name, values in REFUSED[config].items():
        for value in values:
            with pytest.raises(ConfigError, match=name):
                config(**{name: value})


@pytest.mark.parametrize("sizes", [(0, 0, 0, 0), (-1, 2, 1, 2), (1.5, 1, 1, 1), (True, 1, 1, 1)])
def test_impossible_latent_sizes_are_refused(sizes: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError, match="latent"):
        LatentLayout(*sizes)
