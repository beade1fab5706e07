"""Joint training of encoder and generators by plain stochastic gradient descent, without a critic.

Covariates and treatment are matched by their likelihoods, the outcome by its IV moment E[y | w, z], and latents, where
an encoder is trained, by a sliced Wasserstein distance to the prior. One step costs a fraction of an adversarial one.
Where rows are held out, training stops early by the IV outcome loss on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.scipy.special import ndtri

from bgmiv.bgm.heldout import outcome_loss
from bgmiv.bgm.model import BGMIVModel, iv_means, square_errors
from bgmiv.bgm.phase import Phase
from bgmiv.bgm.settings import JointTraining
from bgmiv.integrate import IntegrationRule, rule_for
from bgmiv.likelihood import Gaussian
from bgmiv.nn.layers import adam
from bgmiv.training import RandomNumbers, Row, TrainingData

__all__ = ["JointProgram", "JointState", "joint_loss", "sliced_distance"]

# Evaluations before a network that predicts worse than a line is given up.
_GRACE = 3


class JointState(NamedTuple):
    """Model and optimiser, and the best model on held-out rows.

    Attributes:
        best: the newest model that was not clearly worse than another; simply the newest where no rows are held out.
        best_loss: the lowest held-out loss.
        stale: evaluations since `best` was found.
        evaluations: all of them.
        linear_loss: what a linear regression on instruments and covariates has on the same rows; infinite for none.
    """

    model: BGMIVModel
    optimiser: optax.OptState
    best: BGMIVModel
    best_loss: Array
    stale: Array
    evaluations: Array
    linear_loss: Array


def sliced_distance(z: Array, directions: Array) -> Array:
    r"""Sliced 2-Wasserstein distance of rows `z` to the standard normal.

    The mean over directions $\theta$, scaled to unit length, of
    $\overline{(\operatorname{sort}(z\theta)_i - \Phi^{-1}((i - 1/2)/n))^2}$.
    """
    unit = directions / jnp.linalg.norm(directions, axis=1, keepdims=True)
    projected = unit @ z.T
    n = len(z)
    # Ranks by counting the rows below, equal rows in their order, one row at a time. On a CPU a compiled sort, and the
    # scatter of its gradient, took half of a step; comparing all pairs at once takes twice as long as this.
    fixed, place = jax.lax.stop_gradient(projected), jnp.arange(n)

    def count(i: Array, ranks: Array) -> Array:
        value = fixed[:, i, None]
        return ranks + ((value < fixed) | ((value == fixed) & (i < place)))

    ranks = jax.lax.fori_loop(0, n, count, jnp.zeros(fixed.shape, jnp.int32))
    return jnp.mean((projected - ndtri((jnp.arange(n) + 0.5) / n)[ranks]) ** 2)


def _prior_distance(model: BGMIVModel, z: Array, directions: Array) -> Array:
    """The distance to the prior; none where there is no encoder to train."""
    return sliced_distance(z, directions) if model.covariates.learns_latents else jnp.zeros(())


def joint_loss(
    model: BGMIVModel,
    rule: IntegrationRule,
    rows: Row,
    directions: Array,
    noise: Array,
    key: Array,
    config: JointTraining,
) -> tuple[Array, dict[str, Array]]:
    """The loss of one batch and its parts."""
    z = jax.vmap(model.covariates.encode)(rows.v, noise)
    raw_x = jax.vmap(model.treatment_raw)(rows.w, z)
    y_hat = iv_means(model, rule, rows, raw_x, z, key)
    # The generator explains what the encoder has seen. Were it to explain the row without the noise, it would shrink
    # towards the mean, and the MAP would overshoot the encoder's latents to make up for it.
    seen = jax.vmap(model.covariates.encoder.features.noised)(rows.v, noise)
    parts = {
        "prior": config.prior_weight * _prior_distance(model, z, directions),
        "covariates": -config.covariate_weight * jnp.mean(jax.vmap(model.covariates.log_prob)(seen, z)),
        "treatment": -jnp.mean(jax.vmap(model.treatment_head.log_prob)(raw_x, rows.x[:, None])),
        "outcome": jnp.mean(square_errors(model, rows.y, y_hat)),
    }
    loss = jnp.sum(jnp.stack(list(parts.values())))
    return loss, {"loss": loss, **parts}


@dataclass(frozen=True)
class JointProgram(Phase[JointTraining]):
    """Joint training's step and its early stopping, under its settings."""

    def _optimiser(self) -> optax.GradientTransformation:
        schedule = optax.cosine_decay_schedule(self.settings.learning_rate, max(self.settings.n_steps, 1))
        return adam(schedule, weight_decay=self.settings.weight_decay, decayed=_generator_kernels)

    def init(self, model: BGMIVModel, key: Array) -> JointState:
        """A fresh optimiser beside the model."""
        none, zero = jnp.asarray(jnp.inf), jnp.zeros((), jnp.int32)
        return JointState(model, self._optimiser().init(model), model, none, zero, zero, none)

    def step(self, state: JointState, data: TrainingData, key: Array) -> tuple[JointState, dict[str, Array]]:
        """One joint step of encoder and generators."""
        model, n = state.model, self.settings.batch_size
        latent, width = model.layout.dim, model.covariates.noise_width
        key_draws, key_nodes = jax.random.split(key)
        numbers = RandomNumbers(key_draws, n * (1 + width) + self.settings.n_directions * latent)
        index = data.draw(numbers, n)
        rows = jax.tree.map(lambda leaf: leaf[index], data.rows)
        noise = numbers.uniform((n, width))
        directions = numbers.normal((self.settings.n_directions, latent))
        rule = rule_for(self.settings.integration, model.treatment_head)
        loss = jax.grad(joint_loss, has_aux=True)
        grads, metrics = loss(model, rule, rows, directions, noise, key_nodes, self.settings)
        updates, optimiser = self._optimiser().update(grads, state.optimiser, model)
        return state._replace(model=optax.apply_updates(model, updates), optimiser=optimiser), metrics

    def evaluate(self, state: JointState, data: TrainingData) -> JointState:
        """Keep the model unless its IV outcome loss on held-out rows is clearly above the lowest so far."""
        model = state.model
        loss = outcome_loss(model, self.settings.integration, data)
        # Training goes on for a reason: what a few held-out rows say must be clear to stop before its end.
        # The loss of a discrete outcome is mostly its own chance, of which every share hides what can be learned.
        tolerance = self.settings.tolerance if isinstance(model.outcome_head, Gaussian) else 1.0
        keep = (loss <= tolerance * state.best_loss) | (data.fold_size == 0)
        # A member that has stopped is still trained while others go on; it is left as a run of its own would leave it.
        over = self.stopped(state)
        keep = keep & ~over
        return state._replace(
            best=jax.tree.map(lambda new, old: jnp.where(keep, new, old), model, state.best),
            best_loss=jnp.where(over, state.best_loss, jnp.minimum(loss, state.best_loss)),
            stale=jnp.where(keep, 0, jnp.where(over, state.stale, state.stale + 1)),
            evaluations=jnp.where(over, state.evaluations, state.evaluations + 1),
        )

    def stopped(self, state: JointState) -> Array:
        """Whether `patience` evaluations brought nothing, or the first three none that is better than a line's."""
        hopeless = (state.evaluations >= _GRACE) & (state.best_loss > state.linear_loss)
        return (state.stale >= self.settings.patience) | hopeless

    def result(self, state: JointState) -> BGMIVModel:
        """The best model on held-out rows."""
        return state.best


def _generator_kernels(model: BGMIVModel) -> BGMIVModel:
    """Which parameters decay: the kernels of H and F, and of what leads from the latents to them."""

    def generators(model: BGMIVModel) -> tuple[object, ...]:
        return model.treatment, model.outcome, model.treatment_trunk, model.outcome_trunk, model.embedding

    chosen = jax.tree.map(lambda leaf: False, model)
    kernels = jax.tree.map(lambda leaf: leaf.ndim > 1, generators(model))
    return eqx.tree_at(generators, chosen, kernels, is_leaf=lambda leaf: leaf is None)
