"""Algorithm 1: alternating updates of the generators and of every row's latent state.

For each mini-batch, in this order: theta on log p(v | z), phi on log p(x | w, z), omega on the IV-integrated
likelihood under the new phi, then the batch's latents on the quasi-posterior under all new parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from bgmiv.bgm.config import Alternating
from bgmiv.bgm.model import BGMIVModel, covariate_log_posterior, log_p_iv, log_p_treatment, quasi_log_posterior
from bgmiv.nn.layers import DECAY_1, DECAY_2, EPSILON, adam
from bgmiv.training import Metrics, Row, TrainingData

__all__ = ["AlternatingProgram", "AlternatingState", "LatentAdamState", "init_latents", "step_latents"]


class LatentAdamState(NamedTuple):
    """Latents `(n, d)`, their first and second moments, and each row's number of updates `(n,)`."""

    z: Array
    first: Array
    second: Array
    updates: Array


def init_latents(z: Array) -> LatentAdamState:
    """Zero moments beside the latents."""
    return LatentAdamState(z, jnp.zeros_like(z), jnp.zeros_like(z), jnp.zeros(len(z), jnp.int32))


def step_latents(
    state: LatentAdamState, rows: Array, gradient: Array, learning_rate: float, *, dense: bool
) -> LatentAdamState:
    """One Adam step (0.9, 0.99) down `gradient`, `(len(rows), d)`, of the distinct `rows` of a batch.

    With `dense` the other rows take part with a zero gradient, so that their momentum goes on moving them; otherwise
    they are left alone, moments and all.
    """
    moved: Any = slice(None) if dense else rows
    if dense:
        first = (DECAY_1 * state.first).at[rows].add((1.0 - DECAY_1) * gradient)
        second = (DECAY_2 * state.second).at[rows].add((1.0 - DECAY_2) * gradient**2)
    else:
        first = DECAY_1 * state.first[rows] + (1.0 - DECAY_1) * gradient
        second = DECAY_2 * state.second[rows] + (1.0 - DECAY_2) * gradient**2
    count = state.updates[moved] + 1
    t = count[:, None].astype(first.dtype)
    unbiased_first = first / (1.0 - DECAY_1**t)
    unbiased_second = second / (1.0 - DECAY_2**t)
    step = learning_rate * unbiased_first / (jnp.sqrt(unbiased_second) + EPSILON)
    return LatentAdamState(
        state.z.at[moved].add(-step),
        state.first.at[moved].set(first),
        state.second.at[moved].set(second),
        state.updates.at[moved].set(count),
    )


class AlternatingState(NamedTuple):
    """Model, the three generators' optimisers, and the latents with theirs."""

    model: BGMIVModel
    covariate_optimiser: optax.OptState
    treatment_optimiser: optax.OptState
    outcome_optimiser: optax.OptState
    latents: LatentAdamState


class AlternatingProgram(Alternating):
    """Algorithm 1's step, which is one epoch, under its settings."""

    def _optimiser(self) -> optax.GradientTransformation:
        return adam(self.learning_rate)

    def init(self, model: BGMIVModel, latents: Array) -> AlternatingState:
        """Fresh optimisers; `latents` has one row a (padded) data row."""
        optimiser = self._optimiser()
        return AlternatingState(
            model,
            optimiser.init(model.covariates.decoder),
            optimiser.init(model.treatment),
            optimiser.init(model.outcome),
            init_latents(latents),
        )

    def step(self, state: AlternatingState, data: TrainingData, key: Array) -> tuple[AlternatingState, Metrics]:
        """One epoch."""
        key_order, key_batches = jax.random.split(key)
        n_padded = len(data.rows.x)
        # Padding and held-out rows sort behind all others and so only ever fill the last batch.
        rank = jnp.where(data.is_training(), jax.random.uniform(key_order, (n_padded,)), jnp.inf)
        order = jnp.argsort(rank)
        n_batches = -(-data.n_training // self.batch_size)

        def body(i: Array, carry: tuple[AlternatingState, Metrics]) -> tuple[AlternatingState, Metrics]:
            state, sums = carry
            index = i * self.batch_size + jnp.arange(self.batch_size)
            real = index < data.n_training
            state, metrics = self._batch(state, data, order[index], real, jax.random.fold_in(key_batches, i))
            return state, jax.tree.map(jnp.add, sums, metrics)

        zeros = {name: jnp.zeros(()) for name in self.metric_names}
        state, sums = jax.lax.fori_loop(0, n_batches, body, (state, zeros))
        return state, jax.tree.map(lambda total: total / n_batches, sums)

    def _batch(
        self, state: AlternatingState, data: TrainingData, rows: Array, real: Array, key: Array
    ) -> tuple[AlternatingState, Metrics]:
        """The four updates of one mini-batch."""
        model = state.model
        weights = real / jnp.sum(real)
        if data.weights is not None:
            # Not the latents' objective below: every row's latent state is its own, whatever the row counts.
            weights = weights * data.weights.training[rows]
        batch, z = data.at(rows), state.latents.z[rows]
        key_outcome, key_latents = jax.random.split(key)
        keys_outcome = jax.random.split(key_outcome, self.batch_size)
        keys_latents = jax.random.split(key_latents, self.batch_size)

        def loss_v(model: BGMIVModel) -> Array:
            return -jnp.sum(weights * jax.vmap(model.covariates.log_prob)(batch.v, z))

        def loss_x(model: BGMIVModel) -> Array:
            return -jnp.sum(weights * jax.vmap(log_p_treatment, in_axes=(None, 0, 0))(model, batch, z))

        def loss_y(model: BGMIVModel) -> Array:
            log_p = jax.vmap(log_p_iv, in_axes=(None, None, 0, 0, 0))(model, self.integration, batch, z, keys_outcome)
            return -jnp.sum(weights * log_p)

        model, value_v, theta = self._update(model, lambda m: m.covariates.decoder, loss_v, state.covariate_optimiser)
        model, value_x, phi = self._update(model, lambda m: m.treatment, loss_x, state.treatment_optimiser)
        model, value_y, omega = self._update(model, lambda m: m.outcome, loss_y, state.outcome_optimiser)

        def latent_objective(z: Array) -> Array:
            def one(row: Row, z: Array, key: Array) -> Array:
                if self.latent_update == "cut":
                    return self.pzv_weight * covariate_log_posterior(model, row.v, z)
                return quasi_log_posterior(model, self.integration, row, z, key, self.pzv_weight)

            return jnp.sum(real * jax.vmap(one)(batch, z, keys_latents))

        ascent = jax.grad(latent_objective)(z)
        dense, rate = self.latent_momentum == "dense", self.latent_learning_rate
        latents = step_latents(state.latents, rows, -ascent, rate, dense=dense)
        parts = {"covariates": value_v, "treatment": value_x, "outcome": value_y}
        metrics = {"loss": value_v + value_x + value_y, **parts}
        return AlternatingState(model, theta, phi, omega, latents), metrics

    def _update(
        self,
        model: BGMIVModel,
        part: Callable[[BGMIVModel], eqx.Module],
        loss: Callable[[BGMIVModel], Array],
        opt_state: optax.OptState,
    ) -> tuple[BGMIVModel, Array, optax.OptState]:
        """One Adam step of one part of the model."""
        current = part(model)
        value, grads = jax.value_and_grad(lambda p: loss(eqx.tree_at(part, model, p)))(current)
        updates, opt_state = self._optimiser().update(grads, opt_state)
        return eqx.tree_at(part, model, optax.apply_updates(current, updates)), value, opt_state
