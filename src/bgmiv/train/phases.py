"""The phases of a fit as single calls, for one member or many."""

from __future__ import annotations

from typing import Any

import jax
from jax import Array

from bgmiv.model.model import BGMIVModel, encode_rows
from bgmiv.progress import Reporter, silent
from bgmiv.train.alternating import Alternating
from bgmiv.train.checkpoint import Checkpoint
from bgmiv.train.direct import DirectStart
from bgmiv.train.egm import WarmStart
from bgmiv.train.history import HistoryRow
from bgmiv.train.loop import TrainingData, run_phase

__all__ = ["WarmStartProgram", "alternate", "initial_latents", "over_members", "warm_start"]


def over_members(function: Any, key: Array, *shared: bool) -> Any:
    """`function` itself for one key, or mapped over the member axis of many.

    Args:
        function: takes the arguments described by `shared`, then a key.
        key: one key or one a member.
        shared: for each leading argument, whether members share it.
    """
    if key.ndim == 0:
        return function
    return jax.vmap(function, in_axes=(*(None if s else 0 for s in shared), 0))


WarmStartProgram = WarmStart | DirectStart
"""Either kind of warm start."""


def warm_start(
    config: WarmStartProgram,
    model: BGMIVModel,
    data: TrainingData,
    key: Array,
    reporter: Reporter = silent,
    checkpoint: Checkpoint | None = None,
) -> tuple[BGMIVModel, tuple[HistoryRow, ...]]:
    """The model after the EGM phase, and its history."""
    if config.iterations == 0:
        return model, ()
    keys = jax.vmap(jax.random.split)(key) if key.ndim else jax.random.split(key)
    key_init, key_run = (keys[:, 0], keys[:, 1]) if key.ndim else (keys[0], keys[1])
    state = over_members(config.init, key, False)(model, key_init)
    state, history = run_phase(config, state, data, key_run, reporter=reporter, checkpoint=checkpoint)
    return state.model, history


def initial_latents(config: WarmStartProgram, model: BGMIVModel, data: TrainingData, key: Array) -> Array:
    """e(v) for every row after a warm start, else draws from the prior."""
    own_data = data.n.ndim == 1

    def one(model: BGMIVModel, v: Array, key: Array) -> Array:
        if config.iterations == 0:
            return model.layout.sample_prior(key, len(v))
        return encode_rows(model, v)

    return over_members(one, key, False, not own_data)(model, data.rows.v, key)


def alternate(
    config: Alternating,
    model: BGMIVModel,
    latents: Array,
    data: TrainingData,
    key: Array,
    reporter: Reporter = silent,
    checkpoint: Checkpoint | None = None,
) -> tuple[BGMIVModel, Array, tuple[HistoryRow, ...]]:
    """Model and latents after Algorithm 1, and its history."""
    if config.epochs == 0:
        return model, latents, ()
    init = config.init if key.ndim == 0 else jax.vmap(config.init)
    state, history = run_phase(config, init(model, latents), data, key, reporter=reporter, checkpoint=checkpoint)
    return state.model, state.latents.z, history
