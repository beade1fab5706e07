"""A look at held-out rows against the same numbers worked out row by row."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from bgmiv.covariates import CovariateConfig
from bgmiv.data import IVData, RoleScaling
from bgmiv.integrate import GaussHermite
from bgmiv.model import BGMIVModel, LatentLayout, ModelConfig, build_model
from bgmiv.train import TrainingData, training_data
from bgmiv.train.looks import RowsLook, look_at_fold, outcome_loss

RULE = GaussHermite(3)
# In the middle, at the start, up to the last real row (padding follows), of odd size, and of a single row.
FOLDS = [(6, 8), (0, 6), (13, 7), (2, 5), (9, 1)]


def with_fold(data: TrainingData, start: int, size: int) -> TrainingData:
    return data._replace(fold_start=jnp.asarray(start, jnp.int32), fold_size=jnp.asarray(size, jnp.int32))


def look(model: BGMIVModel, data: TrainingData) -> RowsLook:
    return RowsLook(*map(float, look_at_fold(model, RULE, data)))


@jax.jit
def _row(model: BGMIVModel, v: Any, w: Any) -> Any:
    """The latents of a row, and the treatment's raw parameters under each of some instruments."""
    z = model.covariates.encode(v)
    return z, jax.vmap(model.treatment_raw, (0, None))(w, z)


@jax.jit
def _means(model: BGMIVModel, nodes: Any, z: Any) -> Any:
    return jnp.stack([model.structural_mean(x, z) for x in nodes])


def by_hand(model: BGMIVModel, data: TrainingData, start: int, size: int) -> RowsLook:
    rows = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64)[start : start + size], data.rows)
    points, weights = np.polynomial.hermite_e.hermegauss(3)
    weights /= weights.sum()
    losses, scores, gains, floors, latents = [], [], [], [], []
    for i in range(size):
        # Sixteen turns of the fold, spread evenly over it.
        others = [(i + (turn * size) // 17) % size for turn in range(1, 17)]
        z, raws = (np.asarray(part, np.float64) for part in _row(model, rows.v[i], rows.w[[i, *others]]))
        deviations = np.sqrt(np.log1p(np.exp(raws[:, 1])) + 1e-6)
        densities = norm.pdf(rows.x[i], raws[:, 0], deviations)
        nodes = raws[0, 0] + deviations[0] * points
        mean = weights @ np.asarray(_means(model, nodes.astype(np.float32), z.astype(np.float32)))
        losses.append((rows.y[i] - mean) ** 2)
        scores.append(np.log(densities[0]))
        gains.append(np.log(densities[0]) - np.log(densities[1:].mean()))
        floors.append(deviations[0] ** 2 < 1e-4)
        latents.append(z)
    return RowsLook(
        outcome_loss=np.mean(losses),
        outcome_variance=np.var(rows.y),
        treatment_score=np.mean(scores),
        first_stage_gain=np.mean(gains),
        near_floor=np.mean(floors),
        latent_spread=np.mean(np.std(latents, axis=0)),
    )


@pytest.mark.parametrize("fold", FOLDS)
def test_every_number_by_hand(tiny: Any, fold: tuple[int, int]) -> None:
    got = look(tiny.model, with_fold(tiny.data, *fold))
    expected = by_hand(tiny.model, tiny.data, *fold)
    for name, one, two in zip(RowsLook._fields, got, expected, strict=True):
        assert one == pytest.approx(two, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("fold", FOLDS)
def test_rows_outside_the_fold_and_padding_do_not_matter(tiny: Any, fold: tuple[int, int]) -> None:
    start, size = fold
    rng = np.random.default_rng(0)
    outside = ~((np.arange(24) >= start) & (np.arange(24) < start + size))

    def garbage(leaf: Any) -> Any:
        noise = 1e3 * rng.normal(size=leaf.shape)
        return jnp.where(outside.reshape(-1, *[1] * (leaf.ndim - 1)), noise.astype(np.float32), leaf)

    dirty = tiny.data._replace(rows=jax.tree.map(garbage, tiny.data.rows))
    assert look(tiny.model, with_fold(dirty, *fold)) == look(tiny.model, with_fold(tiny.data, *fold))


def test_the_rows_of_the_fold_do_matter(tiny: Any) -> None:
    before = look(tiny.model, with_fold(tiny.data, 6, 8))
    moved = tiny.data._replace(rows=tiny.data.rows._replace(y=tiny.data.rows.y.at[6].add(1.0)))
    after = look(tiny.model, with_fold(moved, 6, 8))
    assert after.outcome_loss != before.outcome_loss
    assert after._replace(outcome_loss=0.0, outcome_variance=0.0) == before._replace(
        outcome_loss=0.0, outcome_variance=0.0
    )


def test_the_loss_of_a_review_is_the_same_look(tiny: Any) -> None:
    data = with_fold(tiny.data, 6, 8)
    alone = jax.jit(outcome_loss, static_argnums=1)(tiny.model, RULE, data)
    assert float(alone) == pytest.approx(look(tiny.model, data).outcome_loss, rel=1e-6)


def test_instruments_that_move_nothing_add_nothing(tiny: Any) -> None:
    # The last input of the treatment's first layer is the instrument.
    kernel = tiny.model.treatment.layers[0].kernel
    still = eqx.tree_at(lambda m: m.treatment.layers[0].kernel, tiny.model, kernel.at[-1].set(0.0))
    assert look(still, with_fold(tiny.data, 6, 8)).first_stage_gain == pytest.approx(0.0, abs=1e-6)
    assert abs(look(tiny.model, with_fold(tiny.data, 6, 8)).first_stage_gain) > 1e-3


@pytest.mark.parametrize(("bias", "share"), [(-20.0, 1.0), (-9.3, 1.0), (-9.1, 0.0), (0.0, 0.0)])
def test_variances_that_only_their_floor_keeps_up(tiny: Any, bias: float, share: float) -> None:
    """softplus(-9.2) is 1e-4, a hundred times the floor."""
    head = tiny.model.treatment.outputs[0]
    flat = eqx.tree_at(
        lambda m: (m.treatment.outputs[0].kernel, m.treatment.outputs[0].bias),
        tiny.model,
        (head.kernel.at[:, 1].set(0.0), head.bias.at[1].set(bias)),
    )
    assert look(flat, with_fold(tiny.data, 6, 8)).near_floor == pytest.approx(share)


def test_latents_that_do_not_move_have_no_spread(tiny: Any) -> None:
    encoder = tiny.model.covariates.encoder.net
    still = eqx.tree_at(
        lambda m: m.covariates.encoder.net.outputs[0].kernel, tiny.model, jnp.zeros_like(encoder.outputs[0].kernel)
    )
    assert look(still, with_fold(tiny.data, 6, 8)).latent_spread == pytest.approx(0.0, abs=1e-6)


def test_a_binary_treatment_has_no_floor_to_stand_on() -> None:
    rng = np.random.default_rng(0)
    w, v, u = rng.normal(size=(3, 20))
    data = IVData.from_arrays(v + u, w + u > 0.0, instruments=w, covariates=v)
    config = ModelConfig(LatentLayout(1, 1, 1, 1), (8,), (8,), CovariateConfig(dense_hidden=(8,)))
    model = build_model(data.schema, 1, config, key=jax.random.key(0))
    seen = look(model, training_data(RoleScaling().fit(data).transform(data), 8, (6, 8)))
    assert seen.near_floor == 0.0
    assert np.isfinite(seen).all()
    assert seen.treatment_score < 0.0


def test_a_large_fold_is_looked_at_in_part(tiny: Any) -> None:
    """2100 rows in the fold: the first 2048 are enough, and alone decide whose instruments are exchanged."""
    rng = np.random.default_rng(0)

    def many(leaf: Any) -> np.ndarray:
        return np.asarray(leaf)[rng.integers(0, 20, size=2200)]

    rows = jax.tree.map(many, tiny.data.rows)
    data = TrainingData(rows, *(jnp.asarray(number, jnp.int32) for number in (2200, 50, 2100)))
    seen = look(tiny.model, data)
    cut = look(tiny.model, with_fold(data, 50, 2048))
    assert seen == pytest.approx(cut, rel=1e-6)
    beyond = rows._replace(y=np.where(np.arange(2200) >= 50 + 2048, np.float32(1e3), rows.y))
    assert look(tiny.model, data._replace(rows=beyond)) == seen
