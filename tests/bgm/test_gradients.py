"""Gradients of every objective against central differences in double precision, along random directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bgmiv.bgm.config import EGM, CovariateConfig, JointTraining, LatentLayout, ModelConfig
from bgmiv.bgm.initial import critic_loss, egm_loss, joint_loss
from bgmiv.bgm.model import BGMIVModel, build_model, quasi_log_posterior
from bgmiv.data import IVData
from bgmiv.integrate import FiniteMixture, GaussHermite, IntegrationRule, QuasiMonteCarlo
from bgmiv.nn.layers import MLP
from bgmiv.nn.settings import FeatureConfig
from bgmiv.training import Row

LAYOUT = LatentLayout(1, 1, 1, 1)
N = 3


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    if hasattr(jax, "enable_x64"):
        enable = jax.enable_x64
    else:
        from jax.experimental import enable_x64 as enable  # where releases before 0.8 keep it
    with enable(True):
        yield


def _double(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


@cache
def build(binary: bool = False, blocks: bool = False, seed: int = 0) -> tuple[BGMIVModel, Row, np.ndarray]:
    """A model in double precision, some rows and their latents."""
    rng = np.random.default_rng(seed)
    n = 6
    treatment = np.arange(n) % 2 == 0 if binary else rng.normal(size=n)
    covariates: Any = rng.normal(size=(n, 2))
    kinds = {}
    if blocks:
        kinds = {"region": "categorical"}
        covariates = {
            "age": rng.normal(size=n),
            "proxy": rng.normal(size=(n, 3)),
            "region": list("nswnsw"),
            "member": np.arange(n) % 3 == 0,
        }
    data = IVData.from_arrays(
        rng.normal(size=n), treatment, instruments=rng.normal(size=(n, 2)), covariates=covariates, blocks=kinds
    )
    shapes = CovariateConfig(
        dense_hidden=(4,),
        block_encoder_hidden=(4,),
        features=FeatureConfig(vector_features=(4, 2), dropout=0.4),
        vector_decoder_hidden=(3,),
        column_decoder_hidden=(3,),
    )
    config = ModelConfig(LAYOUT, (4,), (4,), shapes)
    model = build_model(data.schema, 2, config, key=jax.random.key(seed))
    rows = Row(data.treatment[:N], data.outcome[:N], data.covariates[:N], data.instruments[:N])
    return _double(model), _double(rows), rng.normal(size=(N, LAYOUT.dim))


def check(objective: Callable[[Any], jax.Array], point: Any, step: float = 1e-5) -> None:
    """Compare the gradient at `point` with differences of the objective along three random directions."""
    leaves, tree = jax.tree.flatten(point)
    assert {leaf.dtype for leaf in leaves} == {np.dtype(np.float64)}
    rng = np.random.default_rng(1)
    width = sum(leaf.size for leaf in leaves) ** 0.5
    directions = [rng.normal(size=(3, *leaf.shape)) / width for leaf in leaves]

    @jax.jit
    def run(leaves: list[jax.Array], directions: list[jax.Array]) -> tuple[jax.Array, ...]:
        def value(leaves: list[jax.Array]) -> jax.Array:
            return objective(jax.tree.unflatten(tree, leaves))

        def moved(by: jax.Array, direction: list[jax.Array]) -> jax.Array:
            return value([leaf + by * d for leaf, d in zip(leaves, direction, strict=True)])

        at, gradient = jax.value_and_grad(value)(leaves)
        slope = sum(jnp.sum(g * d, axis=range(1, d.ndim)) for g, d in zip(gradient, directions, strict=True))
        ends = jax.vmap(jax.vmap(moved, (None, 0)), (0, None))(jnp.asarray([step, -step]), directions)
        return at, slope, (ends[0] - ends[1]) / (2.0 * step)

    at, slope, difference = run(leaves, directions)
    assert at.dtype == jnp.float64
    assert np.isfinite(at)
    assert np.abs(slope).min() > 1e-6, "a vanishing slope would make the comparison empty"
    np.testing.assert_allclose(slope, difference, rtol=1e-5)


def _sum(one: Callable[..., jax.Array], *batched: Any) -> jax.Array:
    return jnp.sum(jax.vmap(one)(*batched))


@pytest.mark.parametrize("rule", [QuasiMonteCarlo(5), GaussHermite(3)], ids=lambda rule: type(rule).__name__)
def test_quasi_log_posterior(rule: IntegrationRule) -> None:
    model, rows, z = build(blocks=True)
    keys = jax.random.split(jax.random.key(0), N)

    def one(model: BGMIVModel, row: Row, z: jax.Array, key: jax.Array) -> jax.Array:
        return quasi_log_posterior(model, rule, row, z, key, 0.5)

    check(lambda point: _sum(partial(one, point[0]), rows, point[1], keys), (model, z))


def _critic(seed: int) -> MLP:
    return _double(MLP(LAYOUT.dim, (4,), 1, key=jax.random.key(seed), activation=jnp.tanh))


@pytest.mark.parametrize("kind", ["blocks", "binary"])
def test_egm_loss(kind: str) -> None:
    binary = kind == "binary"
    model, rows, z = build(binary=binary, blocks=kind == "blocks")
    rule = FiniteMixture() if binary else GaussHermite(3)
    critic = _critic(5)
    noise = np.random.default_rng(2).uniform(size=(2 * N, model.covariates.noise_width))

    def loss(model: BGMIVModel) -> jax.Array:
        return egm_loss(model, critic, rows, z, noise, jax.random.key(0), EGM(integration=rule, spread_penalty=0.01))[0]

    check(loss, model)


def test_joint_loss() -> None:
    model, rows, _ = build(blocks=True)
    rng = np.random.default_rng(2)
    noise, directions = rng.uniform(size=(N, model.covariates.noise_width)), rng.normal(size=(2, LAYOUT.dim))

    def loss(model: BGMIVModel) -> jax.Array:
        # One node sits at the mean: with more, the loss withholds the outcome's gradient from the treatment's spread.
        rule = GaussHermite(1)
        return joint_loss(model, rows, directions, noise, jax.random.key(0), JointTraining(integration=rule))[0]

    check(loss, model)


def test_critic_loss() -> None:
    rng = np.random.default_rng(4)
    fake, real, mix = rng.normal(size=(8, LAYOUT.dim)), rng.normal(size=(8, LAYOUT.dim)), rng.uniform(size=8)
    check(lambda point: critic_loss(*point, mix, 10.0), (_critic(6), fake, real))
