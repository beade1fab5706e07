"""Members trained together under one compiled map are the single runs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bgmiv.integrate import GaussHermite
from bgmiv.train import Alternating, WarmStart
from bgmiv.train.phases import alternate, initial_latents, warm_start

WARM = WarmStart(iterations=6, batch_size=8, critic_steps=1, critic_hidden=(8,), integration=GaussHermite(2))
ALTERNATE = Alternating(epochs=2, batch_size=8, integration=GaussHermite(2))


def stack(*trees: Any) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def assert_close(together: Any, alone: list[Any]) -> None:
    for i, single in enumerate(alone):
        for one, two in zip(jax.tree.leaves(together), jax.tree.leaves(single), strict=True):
            np.testing.assert_allclose(one[i], two, rtol=1e-4, atol=1e-4)


def test_warm_start_with_shared_data(tiny: Any, other: Any) -> None:
    keys = jax.random.split(jax.random.key(0), 2)
    models = [tiny.model, other.model]
    together, history = warm_start(WARM, stack(*models), tiny.data, keys)
    alone = [warm_start(WARM, model, tiny.data, key) for model, key in zip(models, keys, strict=True)]
    assert_close(together, [model for model, _ in alone])
    assert len(history) == len(alone[0][1])

    latents = initial_latents(WARM, together, tiny.data, keys)
    assert_close(latents, [initial_latents(WARM, model, tiny.data, keys[0]) for model, _ in alone])


def test_alternating_with_data_of_their_own(tiny: Any, other: Any) -> None:
    keys = jax.random.split(jax.random.key(1), 2)
    parts = [tiny, other]
    data = stack(*(part.data for part in parts))
    models, latents = stack(*(part.model for part in parts)), jnp.stack([part.latents for part in parts])
    *together, _ = alternate(ALTERNATE, models, latents, data, keys)
    alone = [
        alternate(ALTERNATE, part.model, jnp.asarray(part.latents), part.data, key)[:2]
        for part, key in zip(parts, keys, strict=True)
    ]
    assert_close(tuple(together), alone)


def test_without_a_warm_start_latents_come_from_the_prior(tiny: Any) -> None:
    cold = WarmStart(iterations=0)
    model, history = warm_start(cold, tiny.model, tiny.data, jax.random.key(0))
    assert model is tiny.model
    assert history == ()
    latents = np.asarray(initial_latents(cold, model, tiny.data, jax.random.key(0)))
    assert latents.shape == (24, 4)
    assert len(np.unique(latents)) == latents.size
    np.testing.assert_array_equal(latents, initial_latents(cold, model, tiny.data, jax.random.key(0)))
