"""One tiny problem and one small preset for all tests: compiled programs are shared between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from bgmiv.bench.store import Row
from bgmiv.bgm.config import BGMIVConfig, CovariateConfig, Ensemble, LatentLayout, ModelConfig, default_preset
from bgmiv.bgm.model import BGMIVModel, build_model
from bgmiv.data import IVData, RoleScaling
from bgmiv.errors import ConfigError
from bgmiv.registry import find_method
from bgmiv.training import TrainingData, training_data

N_ROWS, BATCH = 20, 8

MakeCell = Callable[..., list[Row]]
NEWER = {"method_version": 9, "timestamp": "2026-03-01T00:00:00+00:00"}
"""What makes a row of the bench a later one of another version of the method."""


class Tiny(NamedTuple):
    """A drawn model and 20 rows, padded to 24 for batches of 8."""

    model: BGMIVModel
    data: TrainingData
    latents: np.ndarray


def draw(seed: int) -> IVData:
    rng = np.random.default_rng(seed)
    w, v, u = rng.normal(size=(3, N_ROWS))
    x = w + v + u
    return IVData.from_arrays(x + v + 0.5 * u, x, instruments=w, covariates=v)


def make(seed: int) -> Tiny:
    data = draw(seed)
    shapes = CovariateConfig(dense_hidden=(8,))
    config = ModelConfig(LatentLayout(1, 1, 1, 1), (8,), (8,), shapes)
    model = build_model(data.schema, 1, config, key=jax.random.key(seed))
    rows = training_data(RoleScaling().fit(data).transform(data), BATCH)
    latents = np.random.default_rng(seed).normal(size=(24, 4)).astype(np.float32)
    assert rows.rows.x.shape == (24,)
    return Tiny(model, rows, latents)


@pytest.fixture(scope="session")
def tiny() -> Tiny:
    return make(0)


@pytest.fixture(scope="session")
def other() -> Tiny:
    """Another data set and another model of the same shapes."""
    return make(1)


@pytest.fixture(scope="session")
def small() -> BGMIVConfig:
    """The default preset's networks alone, tiny and with a short schedule: three members without twenty of 100 rows."""
    config = default_preset()
    features = replace(config.model.covariates.features, vector_features=(8, 4))
    covariates = replace(
        config.model.covariates,
        features=features,
        dense_hidden=(8,),
        block_encoder_hidden=(8,),
        vector_decoder_hidden=(8,),
        column_decoder_hidden=(8,),
    )
    # Every layer is one more to trace and to compile.
    model = replace(
        config.model,
        treatment_hidden=(8,),
        outcome_hidden=(8,),
        treatment_trunk=(8,),
        outcome_trunk=(8,),
        embedding=(8, 4),
        covariates=covariates,
    )
    return replace(
        config,
        batch_size=16,
        model=model,
        ensemble=Ensemble(members=3, held_out=0.2),
        initial=replace(config.initial, iterations=12, chunk=4),
        last_stage=None,
    )


@pytest.fixture(scope="session")
def small_preset(small: BGMIVConfig) -> BGMIVConfig:
    """All parts of the default preset, with small networks and few random features of the last regression."""
    config = default_preset()
    assert config.last_stage is not None
    return replace(config, model=small.model, last_stage=replace(config.last_stage, fourier_features=10))


@pytest.fixture
def make_row() -> Callable[..., Row]:
    def make(**changes: Any) -> Row:
        fields: dict[str, Any] = {
            "design": "demand",
            "n": 100,
            "rho": 0.5,
            "method": "tsls",
            "preset": "default",
            "seed": 0,
            "method_version": 1,
            "design_version": 1,
            "status": "ok",
            "error": "",
            "attempts": 1,
            "structural_mse": 9000.0,
            "structural_mse_in_support": 7000.0,
            "structural_mse_outside": 15000.0,
            "seconds": 0.5,
            "cpu_seconds": 0.4,
            "compilation_cache": False,
            "versions": {"bgmiv": "0.1.0"},
            "timestamp": "2026-01-01T00:00:00+00:00",
        }
        fields |= changes
        with suppress(ConfigError):
            # Of today's version, unless the test says otherwise.
            today = find_method(fields["method"]).version_of(fields["preset"])
            fields |= {"method_version": changes.get("method_version", today)}
        return Row(**fields)

    return make


@pytest.fixture
def make_cell(make_row: Callable[..., Row]) -> MakeCell:
    """Rows of one cell: an error a seed, None for a fit that failed."""

    def make(method: str, errors: Sequence[float | None], *, first_seed: int = 0, **changes: Any) -> list[Row]:
        rows = []
        for seed, error in enumerate(errors, first_seed):
            parts = {"structural_mse": error, "structural_mse_in_support": error, "structural_mse_outside": error}
            failed = {"status": "failed", "error": "DivergedError: not finite"} if error is None else {}
            usual = {"n": 1000, "seed": seed, "versions": {"bgmiv": "0.1.0", "jax": "0.10.2"}}
            rows.append(make_row(**{**usual, "method": method, **parts, **failed, **changes}))
        return rows

    return make
