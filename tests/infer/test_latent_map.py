"""Latents from covariates alone (eq. test_time_map)."""

from __future__ import annotations

import inspect
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

from bgmiv.errors import ConfigError
from bgmiv.infer import LatentMap, infer_latents, latents_of
from bgmiv.model import BGMIVModel
from bgmiv.model.objectives import covariate_log_posterior

MAP = LatentMap(steps=60, learning_rate=0.01)
# Rows land in other places of a padded block; vectorised sums then round differently, and Adam's steps keep that.
CLOSE = {"rtol": 0.0, "atol": 2e-5}


@jax.jit
def log_posterior(model: BGMIVModel, v: np.ndarray, z: np.ndarray) -> jax.Array:
    return jax.vmap(covariate_log_posterior, (None, 0, 0))(model, v, z)


def test_no_steps_is_the_encoder(model: BGMIVModel, covariates: np.ndarray) -> None:
    encoded = jax.jit(lambda m, v: jax.vmap(m.covariates.encode)(v))(model, covariates)
    np.testing.assert_allclose(latents_of(model, covariates, LatentMap(steps=0)), encoded, atol=1e-6)


def test_it_climbs_the_posterior_of_every_row(model: BGMIVModel, covariates: np.ndarray) -> None:
    start = latents_of(model, covariates, LatentMap(steps=0))
    end = latents_of(model, covariates, MAP)
    assert (np.asarray(log_posterior(model, covariates, end)) > log_posterior(model, covariates, start)).all()


def test_a_coordinate_moves_at_most_the_steps_it_was_given(model: BGMIVModel, covariates: np.ndarray) -> None:
    # Adam (0.9, 0.99) can overshoot its step size only while its two moments disagree.
    moved = np.abs(latents_of(model, covariates, MAP) - latents_of(model, covariates, LatentMap(steps=0)))
    assert 0.0 < moved.max() < 1.5 * MAP.steps * MAP.learning_rate


def test_more_steps_climb_further(model: BGMIVModel, covariates: np.ndarray) -> None:
    few = latents_of(model, covariates, MAP)
    many = latents_of(model, covariates, LatentMap(steps=2000, learning_rate=0.01))
    gain = np.asarray(log_posterior(model, covariates, many) - log_posterior(model, covariates, few))
    # A constant step size goes on circling a maximum that lies on a kink of the network.
    assert gain.min() > -0.05
    assert gain.mean() > 0.01


def test_it_sees_covariates_and_nothing_else(model: BGMIVModel, covariates: np.ndarray) -> None:
    assert list(inspect.signature(latents_of).parameters) == ["model", "v", "config"]
    assert list(inspect.signature(infer_latents).parameters) == ["model", "v", "config"]
    # Other treatment and outcome networks, as other x, y or w would leave: the latents do not notice.
    changed = eqx.tree_at(
        lambda m: (m.treatment, m.outcome),
        model,
        jax.tree.map(lambda leaf: -3.0 * leaf, (model.treatment, model.outcome)),
    )
    np.testing.assert_array_equal(latents_of(model, covariates, MAP), latents_of(changed, covariates, MAP))


def test_repeated_rows_have_the_same_latents(model: BGMIVModel, covariates: np.ndarray) -> None:
    places = np.asarray([3, 0, 3, 3, 7, 0])
    repeated = latents_of(model, covariates[places], MAP)
    np.testing.assert_array_equal(repeated[[0, 1]], repeated[[2, 5]])
    np.testing.assert_array_equal(repeated[0], repeated[3])
    np.testing.assert_allclose(repeated, latents_of(model, covariates, MAP)[places], **CLOSE)


def test_order_does_not_matter(model: BGMIVModel, covariates: np.ndarray) -> None:
    order = np.random.default_rng(0).permutation(len(covariates))
    np.testing.assert_allclose(
        latents_of(model, covariates[order], MAP), latents_of(model, covariates, MAP)[order], **CLOSE
    )


def test_one_row_is_enough(model: BGMIVModel, covariates: np.ndarray) -> None:
    np.testing.assert_allclose(latents_of(model, covariates[:1], MAP), latents_of(model, covariates, MAP)[:1], **CLOSE)


@pytest.mark.parametrize(("settings", "word"), [({"steps": -1}, "steps"), ({"learning_rate": 0.0}, "learning_rate")])
def test_impossible_settings_are_refused(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        LatentMap(**settings)
