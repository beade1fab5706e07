"""Every method of the registry, made so small that the contract suites can fit all of them, and small problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest

from bgmiv.bgm.config import PRESETS, BGMIVConfig
from bgmiv.estimators.base import IVEstimator
from bgmiv.registry import METHODS, find_method

TINY: dict[str, dict[str, Any]] = {
    # Two members: so many rows are held out that a data set of 60 has some.
    "bgm-iv": {"networks": True, "members": 2, "iterations": 20, "batch_size": 8, "latent_layout": (1, 1, 1, 1)},
    "tsls": {},
    "npiv": {},
    "control-function": {},
    "kiv": {},
    "deepiv": {"members": 2, "epochs": 2, "batch_size": 16, "hidden": (8,)},
    "dfiv": {"members": 2, "epochs": 1},
    "deepgmm": {"members": 2, "updates": 6, "batch_size": 16, "hidden": (8,)},
}


N = 60


@dataclass(frozen=True)
class Problem:
    """Arguments of `fit` and of `predict`."""

    outcome: np.ndarray
    treatment: np.ndarray
    instruments: np.ndarray
    covariates: Any = None
    blocks: Mapping[str, str] = field(default_factory=dict)
    query: Any = None
    weights: Any = None

    @property
    def treatments(self) -> np.ndarray:
        return self.treatment[:7]

    def fit(self, model: IVEstimator) -> IVEstimator:
        roles = {"instruments": self.instruments, "covariates": self.covariates, "sample_weight": self.weights}
        return model.fit(self.outcome, self.treatment, blocks=self.blocks or None, **roles)


def _one_covariate() -> Problem:
    rng = np.random.default_rng(0)
    w, v, u = rng.normal(size=(3, N))
    x = 5.0 + w + v + u
    return Problem(100.0 + 10.0 * (x + v + u), x, w, v, query=v[:7])


def _vector_and_category() -> Problem:
    rng = np.random.default_rng(1)
    w = rng.normal(size=(N, 2))
    season, u = rng.normal(size=(2, N))
    region = rng.choice(["n", "s", "w"], size=N)
    x = w @ [1.0, -0.5] + season + u
    covariates = {"proxy": rng.normal(size=(N, 12)) + season[:, None], "region": region}
    query = {name: values[:7] for name, values in covariates.items()}
    return Problem(x - season + u, x, w, covariates, {"region": "categorical"}, query)


def _binary_without_covariates(*, binary_outcome: bool = False) -> Problem:
    rng = np.random.default_rng(2)
    w, u = rng.normal(size=(2, N))
    x = w + u > 0.0
    y = 2.0 * x + u
    return Problem(np.where(y > 1.0, "yes", "no") if binary_outcome else y, x, w)


PROBLEMS = {
    "one covariate": _one_covariate(),
    "two instruments, vector and category": _vector_and_category(),
    "binary, no covariates": _binary_without_covariates(),
    "binary, no covariates, binary outcome": _binary_without_covariates(binary_outcome=True),
}


@pytest.fixture(autouse=True, scope="module")
def small_networks(small_preset: BGMIVConfig) -> Iterator[None]:
    """Small networks under the name of BGM-IV's default preset: larger ones take twice as long to compile.

    Not for the session: tests of other folders that follow in the same process fit the preset as users get it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "default", lambda: small_preset)
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


@pytest.fixture(scope="session")
def fitted() -> Callable[..., IVEstimator]:
    """Tiny fits by method and problem, each made once."""
    return cache(lambda method, problem="one covariate": PROBLEMS[problem].fit(_tiny(method)))
