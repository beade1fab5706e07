r"""Latents from covariates alone: the encoder, or the test-time MAP that starts from it (eq. test_time_map).

Neither sees the instrument, the outcome or the observed treatment.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import optax
from jax import Array

from bgmiv.errors import ConfigError
from bgmiv.model.model import BGMIVModel, encode_rows
from bgmiv.model.objectives import covariate_log_posterior
from bgmiv.nn import adam

__all__ = ["LatentMap", "infer_latents"]


@dataclass(frozen=True)
class LatentMap:
    """Settings of the test-time MAP; the defaults are the paper's.

    Args:
        steps: Adam (0.9, 0.99) steps from the encoder's latents; 0 keeps the encoder's.
        learning_rate: Adam's step size. A coordinate moves at most about `steps * learning_rate`.
    """

    steps: int = 1000
    learning_rate: float = 1e-4

    def __post_init__(self) -> None:
        """Refuse settings that cannot run."""
        if self.steps < 0 or self.learning_rate <= 0:
            raise ConfigError(
                f"the latent MAP needs steps >= 0 and learning_rate > 0, got {self.steps} and {self.learning_rate}."
            )


@partial(jax.jit, static_argnames="config")
def infer_latents(model: BGMIVModel, v: Array, config: LatentMap) -> Array:
    """MAP latents of many rows under log p(z) + log p(v | z), started at the encoder."""
    z = encode_rows(model, v)
    if config.steps == 0:
        return z
    optimiser = adam(config.learning_rate)

    def loss(z: Array) -> Array:
        return -jnp.sum(jax.vmap(covariate_log_posterior, in_axes=(None, 0, 0))(model, v, z))

    def body(_: Array, carry: tuple[Array, optax.OptState]) -> tuple[Array, optax.OptState]:
        z, state = carry
        updates, state = optimiser.update(jax.grad(loss)(z), state)
        return optax.apply_updates(z, updates), state

    z, _ = jax.lax.fori_loop(0, config.steps, body, (z, optimiser.init(z)))
    return z
