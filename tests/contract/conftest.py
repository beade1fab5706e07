"""Every method of the registry, made so small that the contract suites can fit all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from bgmiv.bgm.config import PRESETS, BGMIVConfig, default_preset
from bgmiv.estimators.base import IVEstimator
from bgmiv.registry import METHODS, find_method

TINY: dict[str, dict[str, Any]] = {
    # So many held out that a data set of 60 rows has some.
    "bgm-iv": {"members": 2, "held_out": 0.4, "iterations": 20, "batch_size": 8, "latent_layout": (1, 1, 1, 1)},
    "tsls": {},
    "npiv": {},
    "control-function": {},
    "kiv": {},
    "deepiv": {"members": 2, "epochs": 2, "batch_size": 16, "hidden": (8,)},
    "dfiv": {"members": 2, "epochs": 1},
    "deepgmm": {"members": 2, "updates": 6, "batch_size": 16, "hidden": (8,), "learning_rates": (1e-3,)},
}


@pytest.fixture(autouse=True, scope="session")
def small_networks(small: BGMIVConfig) -> Iterator[None]:
    """Small networks under the name of BGM-IV's default preset: larger ones take twice as long to compile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "default", lambda: replace(default_preset(), model=small.model))
        yield


def _tiny(method: str, **params: Any) -> IVEstimator:
    """The estimator of a method, or of its no-instrument version, with next to no training and a fixed seed."""
    estimator = find_method(method).estimator_class()
    found = TINY.get(method.removesuffix("-noiv"), {}) | {"use_instrument": not method.endswith("-noiv"), **params}
    known = estimator().get_params()
    return estimator(**{name: value for name, value in ({"random_state": 0} | found).items() if name in known})


@pytest.fixture(scope="session")
def tiny() -> Callable[..., IVEstimator]:
    """The function above: test modules cannot import one another."""
    return _tiny


@pytest.fixture(params=list(METHODS))
def method(request: pytest.FixtureRequest) -> str:
    """Each method."""
    return request.param
