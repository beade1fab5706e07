"""The EGM warm start: encoder, generators and a latent critic trained together.

One iteration is `critic_steps` Wasserstein steps of the critic on e(v) against the prior, then one joint step of
encoder and generators on: adversarial loss, reconstruction of v and of z, treatment error, IV-integrated outcome
error, and a small penalty on the raw spreads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from bgmiv.errors import ConfigError
from bgmiv.integrate import GaussHermite, IntegrationRule, rule_for
from bgmiv.model.model import BGMIVModel
from bgmiv.model.objectives import Row, outcome_raws
from bgmiv.nn import MLP, adam
from bgmiv.train.draws import Draws
from bgmiv.train.looks import averaged_means, square_errors
from bgmiv.train.loop import TrainingData

__all__ = ["WarmStart", "WarmStartState", "critic_loss", "warm_start_loss"]


class WarmStartState(NamedTuple):
    """Model, critic and their optimisers."""

    model: BGMIVModel
    critic: MLP
    model_optimiser: optax.OptState
    critic_optimiser: optax.OptState


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


def warm_start_loss(
    model: BGMIVModel,
    critic: MLP,
    rule: IntegrationRule,
    rows: Row,
    z: Array,
    noise: Array,
    key: Array,
    spread_weight: float,
) -> tuple[Array, dict[str, Array]]:
    """The joint loss of encoder and generators on one batch, and its parts.

    Args:
        model: encoder and generators.
        critic: the latent critic, held fixed.
        rule: nodes of the outcome's mean.
        rows: the batch.
        z: as many draws from the prior.
        noise: dropout noise of the batch's encodings, then of the draws' (`(2 n, noise_width)`).
        key: randomness of the nodes.
        spread_weight: weight of the spread penalty.
    """
    covariates = model.covariates
    n = len(rows.x)
    decoded = jax.vmap(covariates.decode)(z)
    z_hat = jax.vmap(covariates.encode)(rows.v, noise[:n])
    z_cycle = jax.vmap(covariates.encode)(jax.vmap(covariates.means_of)(decoded), noise[n:])
    v_cycle = jax.vmap(covariates.decode_means)(z_hat)

    raw_x = jax.vmap(model.treatment_raw)(rows.w, z_hat)
    nodes, log_weights = jax.vmap(lambda raw, x, k: rule.nodes(model.treatment_head, raw, x, k))(
        raw_x, rows.x, jax.random.split(key, n)
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
        jnp.mean(jax.vmap(covariates.spread_penalty)(decoded))
        + jnp.mean(jax.vmap(model.treatment_head.spread_penalty)(raw_x))
        + jnp.mean(jax.vmap(jax.vmap(head.spread_penalty))(raw_y))
    )
    loss = jnp.sum(jnp.stack(list(parts.values()))) + spread_weight * spread
    return loss, {"loss": loss, **parts}


@dataclass(frozen=True)
class WarmStart:
    """The warm start's settings and its step; the defaults are the paper's.

    Args:
        iterations: generator steps (the authors' loop runs one more than the configured 50,000).
        batch_size: rows a batch, drawn uniformly.
        learning_rate: of both Adams (0.9, 0.99).
        critic_steps: critic steps a generator step.
        critic_hidden: hidden units of the tanh critic.
        gradient_penalty: weight of the critic's gradient penalty.
        spread_penalty: weight on the mean squared raw spreads.
        integration: nodes of the outcome's mean; `GaussHermite(1)` is the plug-in at the mean treatment.
        chunk: iterations between two looks of the host.
    """

    iterations: int = 50_001
    batch_size: int = 64
    learning_rate: float = 2e-4
    critic_steps: int = 5
    critic_hidden: tuple[int, ...] = (64, 32, 8)
    gradient_penalty: float = 10.0
    spread_penalty: float = 0.001
    integration: IntegrationRule = GaussHermite(8)
    chunk: int = 500

    name: ClassVar[str] = "warm start"
    metric_names: ClassVar[tuple[str, ...]] = ("loss", "adversarial", "covariates", "latents", "treatment", "outcome")

    def __post_init__(self) -> None:
        """Refuse settings that cannot train."""
        if self.iterations < 0 or self.batch_size < 2 or self.critic_steps < 1 or self.chunk < 1:
            raise ConfigError(
                "the warm start needs iterations >= 0, batch_size >= 2, critic_steps >= 1 and chunk >= 1, got "
                f"{self.iterations}, {self.batch_size}, {self.critic_steps} and {self.chunk}."
            )
        if self.learning_rate <= 0:
            raise ConfigError(f"learning_rate must be above 0, got {self.learning_rate}.")

    @property
    def n_steps(self) -> int:
        """Iterations."""
        return self.iterations

    def _optimiser(self) -> optax.GradientTransformation:
        return adam(self.learning_rate)

    def init(self, model: BGMIVModel, key: Array) -> WarmStartState:
        """A fresh critic and fresh optimisers beside the model."""
        critic = MLP(model.layout.dim, self.critic_hidden, 1, key=key, activation=jnp.tanh)
        optimiser = self._optimiser()
        return WarmStartState(model, critic, optimiser.init(model), optimiser.init(critic))

    def step(self, state: WarmStartState, data: TrainingData, key: Array) -> tuple[WarmStartState, dict[str, Array]]:
        """Critic steps, then one joint step of encoder and generators."""
        model, n = state.model, self.batch_size
        key_draws, key_nodes = jax.random.split(key)
        draws = Draws(key_draws, self._words(model))
        critic, critic_optimiser = self._critic_steps(state, data, draws)

        index = data.draw(draws, n)
        rows = jax.tree.map(lambda leaf: leaf[index], data.rows)
        z = draws.normal((n, model.layout.dim))
        noise = draws.uniform((2 * n, model.covariates.noise_width))
        rule = rule_for(self.integration, model.treatment_head)
        grads, metrics = jax.grad(warm_start_loss, has_aux=True)(
            model, critic, rule, rows, z, noise, key_nodes, self.spread_penalty
        )
        updates, model_optimiser = self._optimiser().update(grads, state.model_optimiser)
        return (
            WarmStartState(optax.apply_updates(model, updates), critic, model_optimiser, critic_optimiser),
            metrics,
        )

    def settled(self, n_rows: int) -> WarmStart:
        """These settings: they do not depend on the number of rows."""
        return self

    def result(self, state: WarmStartState) -> BGMIVModel:
        """The model of the last step."""
        return state.model

    def _words(self, model: BGMIVModel) -> int:
        """Random words of a step: row, prior draw and dropout of every encoded row, and the critic's mixing."""
        latent, noise = model.layout.dim, model.covariates.noise_width
        return self.batch_size * (self.critic_steps * (2 + latent + noise) + 1 + latent + 2 * noise)

    def _critic_steps(self, state: WarmStartState, data: TrainingData, draws: Draws) -> tuple[MLP, optax.OptState]:
        model, shape = state.model, (self.critic_steps, self.batch_size)
        n = self.critic_steps * self.batch_size
        # The encoder stands still during the critic's steps, so all their batches are encoded at once.
        v = data.rows.v[data.draw(draws, n)]
        fake = jax.vmap(model.covariates.encode)(v, draws.uniform((n, model.covariates.noise_width)))
        real = draws.normal((n, model.layout.dim))
        batches = (fake.reshape(*shape, -1), real.reshape(*shape, -1), draws.uniform(shape))
        optimiser = self._optimiser()

        def body(
            carry: tuple[MLP, optax.OptState], batch: tuple[Array, Array, Array]
        ) -> tuple[tuple[MLP, optax.OptState], None]:
            critic, opt_state = carry
            grads = jax.grad(critic_loss)(critic, *batch, self.gradient_penalty)
            updates, opt_state = optimiser.update(grads, opt_state)
            return (optax.apply_updates(critic, updates), opt_state), None

        (critic, opt_state), _ = jax.lax.scan(body, (state.critic, state.critic_optimiser), batches)
        return critic, opt_state
