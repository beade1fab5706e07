"""The EGM warm start: encoder, generators and a latent critic trained together.

One iteration is `critic_steps` Wasserstein steps of the critic on e(v) against the prior, then one joint step of
encoder and generators on: adversarial loss, reconstruction of v and of z, treatment error, IV-integrated outcome
error, and a small penalty on the raw spreads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from bgmiv.bgm.model import BGMIVModel, averaged_means, outcome_raws, square_errors
from bgmiv.integrate import GaussHermite, IntegrationRule, rule_for
from bgmiv.likelihood import Gaussian
from bgmiv.nn import MLP, adam
from bgmiv.nn.images import check_bounds, check_choice
from bgmiv.training.loop import RandomNumbers, Row, TrainingData

__all__ = ["EGM", "EGMState", "critic_loss", "egm_loss"]


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
class EGM:
    """The EGM warm start: its settings and its step; the defaults are the paper's.

    Args:
        iterations: generator steps (the authors' loop runs one more than the configured 50,000).
        batch_size: rows a batch, drawn uniformly.
        learning_rate: of both Adams (0.9, 0.99).
        critic_steps: critic steps a generator step.
        critic_hidden: hidden units of the tanh critic.
        gradient_penalty: weight of the critic's gradient penalty.
        spread_penalty: weight on the mean squared raw spreads.
        integration: nodes of the outcome's mean; `GaussHermite(1)` is the plug-in at the mean treatment, and
            `GaussHermite(8)` with `treatment_spread="residual"` what the authors' later code does.
        treatment_spread: spread of the nodes of a continuous treatment: "head", as the treatment's head has it, which
            this phase does not fit, or "residual", the root of a moving average of squared errors, at most 1.
        chunk: iterations between two reports and saves.
    """

    iterations: int = 50_001
    batch_size: int = 64
    learning_rate: float = 2e-4
    critic_steps: int = 5
    critic_hidden: tuple[int, ...] = (64, 32, 8)
    gradient_penalty: float = 10.0
    spread_penalty: float = 0.001
    integration: IntegrationRule = GaussHermite(1)
    treatment_spread: Literal["head", "residual"] = "head"
    chunk: int = 500

    name: ClassVar[str] = "EGM warm start"
    metric_names: ClassVar[tuple[str, ...]] = ("loss", "adversarial", "covariates", "latents", "treatment", "outcome")

    def __post_init__(self) -> None:
        """Refuse settings that cannot train."""
        check_bounds(self, "learning_rate", iterations=0, batch_size=2, critic_steps=1, chunk=1)
        check_choice(self, "treatment_spread", "head", "residual")

    @property
    def n_steps(self) -> int:
        """Iterations."""
        return self.iterations

    def _optimiser(self) -> optax.GradientTransformation:
        return adam(self.learning_rate)

    def init(self, model: BGMIVModel, key: Array) -> EGMState:
        """A fresh critic and fresh optimisers beside the model."""
        critic = MLP(model.layout.dim, self.critic_hidden, 1, key=key, activation=jnp.tanh)
        optimiser = self._optimiser()
        return EGMState(model, critic, optimiser.init(model), optimiser.init(critic), jnp.ones(()))

    def step(self, state: EGMState, data: TrainingData, key: Array) -> tuple[EGMState, dict[str, Array]]:
        """Critic steps, then one joint step of encoder and generators."""
        model, n = state.model, self.batch_size
        key_draws, key_nodes = jax.random.split(key)
        numbers = RandomNumbers(key_draws, self._words(model))
        critic, critic_optimiser = self._critic_steps(state, data, numbers)

        index = data.draw(numbers, n)
        rows = jax.tree.map(lambda leaf: leaf[index], data.rows)
        z = numbers.normal((n, model.layout.dim))
        noise = numbers.uniform((2 * n, model.covariates.noise_width))
        rule = rule_for(self.integration, model.treatment_head)
        residual = self.treatment_spread == "residual" and isinstance(model.treatment_head, Gaussian)
        # The smallest is far below any noise; at 0 the raw spread would not be finite.
        variance = jnp.clip(state.treatment_error, 1e-4, 1.0) if residual else None
        loss = jax.grad(egm_loss, has_aux=True)
        grads, metrics = loss(model, critic, rule, rows, z, noise, key_nodes, self.spread_penalty, variance)
        updates, model_optimiser = self._optimiser().update(grads, state.model_optimiser)
        error = 0.99 * state.treatment_error + 0.01 * metrics["treatment"]
        return EGMState(optax.apply_updates(model, updates), critic, model_optimiser, critic_optimiser, error), metrics

    def resolve(self, n_rows: int) -> EGM:
        """These settings: they do not depend on the number of rows."""
        return self

    def result(self, state: EGMState) -> BGMIVModel:
        """The model of the last step."""
        return state.model

    def _words(self, model: BGMIVModel) -> int:
        """Random words of a step: row, prior draw and dropout of every encoded row, and the critic's mixing."""
        latent, noise = model.layout.dim, model.covariates.noise_width
        return self.batch_size * (self.critic_steps * (2 + latent + noise) + 1 + latent + 2 * noise)

    def _critic_steps(self, state: EGMState, data: TrainingData, numbers: RandomNumbers) -> tuple[MLP, optax.OptState]:
        model, shape = state.model, (self.critic_steps, self.batch_size)
        n = self.critic_steps * self.batch_size
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
            grads = jax.grad(critic_loss)(critic, *batch, self.gradient_penalty)
            updates, opt_state = optimiser.update(grads, opt_state)
            return (optax.apply_updates(critic, updates), opt_state), None

        (critic, opt_state), _ = jax.lax.scan(body, (state.critic, state.critic_optimiser), batches)
        return critic, opt_state
