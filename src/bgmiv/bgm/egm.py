"""The EGM warm start: encoder, generators and a latent critic trained together.

One iteration is `critic_steps` Wasserstein steps of the critic on e(v) against the prior, then one joint step of
encoder and generators on: adversarial loss, reconstruction of v and of z, treatment error, IV-integrated outcome
error, and a small penalty on the raw spreads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from bgmiv.bgm.model import BGMIVModel, averaged_means, outcome_raws, square_errors
from bgmiv.bgm.phase import Phase
from bgmiv.bgm.settings import EGM
from bgmiv.integrate import IntegrationRule, rule_for
from bgmiv.likelihood import Gaussian
from bgmiv.nn.layers import MLP, adam
from bgmiv.training import RandomNumbers, Row, TrainingData

__all__ = ["EGMProgram", "EGMState", "critic_loss", "egm_loss"]


class EGMState(NamedTuple):
    """Model, critic, their optimisers, and the moving average of the treatment's squared error."""

    model: BGMIVModel
    critic: MLP
    model_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    treatment_error: Array


def critic_loss(critic: MLP, fake: Array, real: Array, mix: Array, gradient_penalty: float) -> Array:
    r"""Wasserstein critic loss with gradient penalty.

    $\overline{D(e(v))} - \overline{D(z)} + \lambda\, \overline{(\lVert \nabla D(\hat z) \rVert - 1)^2}$ with
    $\hat z = u z + (1 - u) e(v)$.
    """

    def score(z: Array) -> Array:
        return critic(z)[0]

    scores = jax.vmap(score)(jnp.concatenate([fake, real]))
    between = mix[:, None] * real + (1.0 - mix[:, None]) * fake
    slopes = jax.vmap(jax.grad(score))(between)
    # The tiny term keeps the root's derivative finite where a slope vanishes.
    norms = jnp.sqrt(jnp.sum(slopes**2, axis=1) + 1e-12)
    n = len(fake)
    return jnp.mean(scores[:n]) - jnp.mean(scores[n:]) + gradient_penalty * jnp.mean((norms - 1.0) ** 2)


def egm_loss(
    model: BGMIVModel,
    critic: MLP,
    rule: IntegrationRule,
    rows: Row,
    z: Array,
    noise: Array,
    key: Array,
    spread_weight: float,
    variance: Array | None = None,
) -> tuple[Array, dict[str, Array]]:
    """The joint loss of encoder and generators on one batch, and its parts; the critic is held fixed.

    `z` has as many draws from the prior as the batch has rows, `noise` the dropout noise of the batch's encodings, then
    of the draws' (`(2 n, noise_width)`), and `key` the randomness of the nodes.
    `variance` is that of the treatment in the outcome's integral; None takes the treatment head's.
    """
    covariates = model.covariates
    n = len(rows.x)
    decoded = jax.vmap(covariates.decode)(z)
    # Mapped over z as well: without covariates nothing is decoded.
    expected = jax.vmap(lambda raws, _: covariates.means_of(raws))(decoded, z)
    spreads = jax.vmap(lambda raws, _: covariates.spread_penalty(raws))(decoded, z)
    z_hat = jax.vmap(covariates.encode)(rows.v, noise[:n])
    z_cycle = jax.vmap(covariates.encode)(expected, noise[n:])
    v_cycle = jax.vmap(covariates.decode_means)(z_hat)

    raw_x = jax.vmap(model.treatment_raw)(rows.w, z_hat)
    around = raw_x
    if variance is not None:
        around = jnp.stack([raw_x[:, 0], jnp.full(n, jnp.log(jnp.expm1(variance)))], axis=1)
    nodes, log_weights = jax.vmap(lambda raw, x, k: rule.nodes(model.treatment_head, raw, x, k))(
        around, rows.x, jax.random.split(key, n)
    )
    raw_y = jax.vmap(outcome_raws, in_axes=(None, 0, 0))(model, nodes, z_hat)
    head = model.outcome_head
    y_hat = averaged_means(model, log_weights, raw_y)

    parts = {
        "adversarial": -jnp.mean(jax.vmap(critic)(z_hat)),
        "covariates": jnp.mean(jax.vmap(covariates.cycle_loss)(rows.v, v_cycle)),
        "latents": jnp.mean((z - z_cycle) ** 2),
        "treatment": jnp.mean(jax.vmap(model.treatment_head.fit_error)(raw_x, rows.x[:, None])),
        "outcome": jnp.mean(square_errors(model, rows.y, y_hat)),
    }
    spread = (
        jnp.mean(spreads)
        + jnp.mean(jax.vmap(model.treatment_head.spread_penalty)(raw_x))
        + jnp.mean(jax.vmap(jax.vmap(head.spread_penalty))(raw_y))
    )
    loss = jnp.sum(jnp.stack(list(parts.values()))) + spread_weight * spread
    return loss, {"loss": loss, **parts}


@dataclass(frozen=True)
class EGMProgram(Phase[EGM]):
    """The warm start's critic and generator steps, under its settings."""

    def _optimiser(self) -> optax.GradientTransformation:
        return adam(self.settings.learning_rate)

    def init(self, model: BGMIVModel, key: Array) -> EGMState:
        """A fresh critic and fresh optimisers beside the model."""
        critic = MLP(model.layout.dim, self.settings.critic_hidden, 1, key=key, activation=jnp.tanh)
        optimiser = self._optimiser()
        return EGMState(model, critic, optimiser.init(model), optimiser.init(critic), jnp.ones(()))

    def step(self, state: EGMState, data: TrainingData, key: Array) -> tuple[EGMState, dict[str, Array]]:
        """Critic steps, then one joint step of encoder and generators."""
        model, n = state.model, self.settings.batch_size
        key_draws, key_nodes = jax.random.split(key)
        numbers = RandomNumbers(key_draws, self._words(model))
        critic, critic_optimiser = self._critic_steps(state, data, numbers)

        index = data.draw(numbers, n)
        rows = jax.tree.map(lambda leaf: leaf[index], data.rows)
        z = numbers.normal((n, model.layout.dim))
        noise = numbers.uniform((2 * n, model.covariates.noise_width))
        rule = rule_for(self.settings.integration, model.treatment_head)
        residual = self.settings.treatment_spread == "residual" and isinstance(model.treatment_head, Gaussian)
        # The smallest is far below any noise; at 0 the raw spread would not be finite.
        variance = jnp.clip(state.treatment_error, 1e-4, 1.0) if residual else None
        loss = jax.grad(egm_loss, has_aux=True)
        grads, metrics = loss(model, critic, rule, rows, z, noise, key_nodes, self.settings.spread_penalty, variance)
        updates, model_optimiser = self._optimiser().update(grads, state.model_optimiser)
        error = 0.99 * state.treatment_error + 0.01 * metrics["treatment"]
        return EGMState(optax.apply_updates(model, updates), critic, model_optimiser, critic_optimiser, error), metrics

    def result(self, state: EGMState) -> BGMIVModel:
        """The model of the last step."""
        return state.model

    def _words(self, model: BGMIVModel) -> int:
        """Random words of a step: row, prior draw and dropout of every encoded row, and the critic's mixing."""
        latent, noise = model.layout.dim, model.covariates.noise_width
        return self.settings.batch_size * (self.settings.critic_steps * (2 + latent + noise) + 1 + latent + 2 * noise)

    def _critic_steps(self, state: EGMState, data: TrainingData, numbers: RandomNumbers) -> tuple[MLP, optax.OptState]:
        model, shape = state.model, (self.settings.critic_steps, self.settings.batch_size)
        n = self.settings.critic_steps * self.settings.batch_size
        # The encoder stands still during the critic's steps, so all their batches are encoded at once.
        v = data.rows.v[data.draw(numbers, n)]
        fake = jax.vmap(model.covariates.encode)(v, numbers.uniform((n, model.covariates.noise_width)))
        real = numbers.normal((n, model.layout.dim))
        batches = (fake.reshape(*shape, -1), real.reshape(*shape, -1), numbers.uniform(shape))
        optimiser = self._optimiser()

        def body(
            carry: tuple[MLP, optax.OptState], batch: tuple[Array, Array, Array]
        ) -> tuple[tuple[MLP, optax.OptState], None]:
            critic, opt_state = carry
            grads = jax.grad(critic_loss)(critic, *batch, self.settings.gradient_penalty)
            updates, opt_state = optimiser.update(grads, opt_state)
            return (optax.apply_updates(critic, updates), opt_state), None

        (critic, opt_state), _ = jax.lax.scan(body, (state.critic, state.critic_optimiser), batches)
        return critic, opt_state
