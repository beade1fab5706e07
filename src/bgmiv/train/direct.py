"""A warm start without a critic: encoder and generators trained by plain stochastic gradient descent.

The encoded covariates are matched to the prior by a sliced Wasserstein distance, covariates and treatment by their
likelihoods, and the outcome by its IV moment E[y | w, z]. One step costs a fraction of an adversarial one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.scipy.special import ndtri

from bgmiv.errors import ConfigError
from bgmiv.integrate import GaussHermite, IntegrationRule, rule_for
from bgmiv.model.model import BGMIVModel
from bgmiv.model.objectives import Row, outcome_raws
from bgmiv.nn import adam
from bgmiv.train.draws import Draws
from bgmiv.train.loop import TrainingData

__all__ = ["DirectStart", "DirectStartState", "direct_loss", "sliced_distance"]


class DirectStartState(NamedTuple):
    """Model and optimiser."""

    model: BGMIVModel
    optimiser: optax.OptState


def sliced_distance(z: Array, directions: Array) -> Array:
    r"""Sliced 2-Wasserstein distance of rows `z` to the standard normal.

    The mean over directions $\theta$ of $\overline{(\operatorname{sort}(z\theta)_i - \Phi^{-1}((i - 1/2)/n))^2}$.

    Args:
        z: `(n, d)`.
        directions: `(k, d)`, scaled to unit length here.

    Example:
        >>> spread = ndtri((jnp.arange(1000) + 0.5) / 1000)[:, None]
        >>> float(sliced_distance(spread, jnp.ones((1, 1)))) < 1e-6
        True
    """
    unit = directions / jnp.linalg.norm(directions, axis=1, keepdims=True)
    projected = jnp.sort(unit @ z.T, axis=1)
    n = len(z)
    return jnp.mean((projected - ndtri((jnp.arange(n) + 0.5) / n)) ** 2)


def direct_loss(
    model: BGMIVModel,
    rule: IntegrationRule,
    rows: Row,
    directions: Array,
    noise: Array,
    key: Array,
    config: DirectStart,
) -> tuple[Array, dict[str, Array]]:
    """The loss of one batch and its parts."""
    n = len(rows.x)
    z = jax.vmap(model.covariates.encode)(rows.v, noise)
    raw_x = jax.vmap(model.treatment_raw)(rows.w, z)
    # The treatment's spread is learned from the treatment alone: the outcome would widen or narrow it to fit better.
    nodes, log_weights = jax.vmap(lambda raw, x, k: rule.nodes(model.treatment_head, raw, x, k))(
        _fixed_spread(model, raw_x), rows.x, jax.random.split(key, n)
    )
    raw_y = jax.vmap(outcome_raws, in_axes=(None, 0, 0))(model, nodes, z)
    means = jax.vmap(jax.vmap(model.outcome_head.mean))(raw_y)[..., 0]
    y_hat = jnp.sum(jnp.exp(log_weights) * means, axis=1)
    parts = {
        "prior": config.prior_weight * sliced_distance(z, directions),
        "covariates": -config.covariate_weight * jnp.mean(jax.vmap(model.covariates.log_prob)(rows.v, z)),
        "treatment": -jnp.mean(jax.vmap(model.treatment_head.log_prob)(raw_x, rows.x[:, None])),
        "outcome": jnp.mean((rows.y - y_hat) ** 2),
    }
    loss = jnp.sum(jnp.stack(list(parts.values())))
    return loss, {"loss": loss, **parts}


def _fixed_spread(model: BGMIVModel, raw: Array) -> Array:
    """Raw treatment parameters through which gradients reach only the mean."""
    return jnp.concatenate([raw[:, :1], jax.lax.stop_gradient(raw[:, 1:])], axis=1)


@dataclass(frozen=True)
class DirectStart:
    """The critic-free warm start's settings and its step.

    Args:
        iterations: steps.
        batch_size: rows a batch, drawn uniformly.
        learning_rate: Adam's step size at the start; it falls to zero along a cosine.
        prior_weight: weight of the distance between encoded covariates and prior.
        covariate_weight: weight of the covariates' log-likelihood.
        n_directions: projections of the sliced distance.
        integration: nodes of the outcome's mean.
        chunk: iterations between two looks of the host.
    """

    iterations: int = 10_000
    batch_size: int = 128
    learning_rate: float = 1e-3
    prior_weight: float = 5.0
    covariate_weight: float = 0.1
    n_directions: int = 32
    integration: IntegrationRule = GaussHermite(8)
    chunk: int = 500

    name: ClassVar[str] = "warm start"
    metric_names: ClassVar[tuple[str, ...]] = ("loss", "prior", "covariates", "treatment", "outcome")

    def __post_init__(self) -> None:
        """Refuse settings that cannot train."""
        if self.iterations < 0 or self.batch_size < 2 or self.n_directions < 1 or self.chunk < 1:
            raise ConfigError(
                "the direct start needs iterations >= 0, batch_size >= 2, n_directions >= 1 and chunk >= 1, got "
                f"{self.iterations}, {self.batch_size}, {self.n_directions} and {self.chunk}."
            )
        if self.learning_rate <= 0:
            raise ConfigError(f"learning_rate must be above 0, got {self.learning_rate}.")

    @property
    def n_steps(self) -> int:
        """Iterations."""
        return self.iterations

    def _optimiser(self) -> optax.GradientTransformation:
        return adam(optax.cosine_decay_schedule(self.learning_rate, max(self.iterations, 1)))

    def init(self, model: BGMIVModel, key: Array) -> DirectStartState:
        """A fresh optimiser beside the model."""
        return DirectStartState(model, self._optimiser().init(model))

    def step(
        self, state: DirectStartState, data: TrainingData, key: Array
    ) -> tuple[DirectStartState, dict[str, Array]]:
        """One joint step of encoder and generators."""
        model, n = state.model, self.batch_size
        latent, width = model.layout.dim, model.covariates.noise_width
        key_draws, key_nodes = jax.random.split(key)
        draws = Draws(key_draws, n * (1 + width) + self.n_directions * latent)
        index = draws.index((n,), data.n)
        rows = jax.tree.map(lambda leaf: leaf[index], data.rows)
        noise = draws.uniform((n, width))
        directions = draws.normal((self.n_directions, latent))
        rule = rule_for(self.integration, model.treatment_head)
        grads, metrics = jax.grad(direct_loss, has_aux=True)(model, rule, rows, directions, noise, key_nodes, self)
        updates, optimiser = self._optimiser().update(grads, state.optimiser)
        return DirectStartState(optax.apply_updates(model, updates), optimiser), metrics
