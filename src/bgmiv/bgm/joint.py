"""Joint training of encoder and generators by plain stochastic gradient descent, without a critic.

Covariates and treatment are matched by their likelihoods, the outcome by its IV moment E[y | w, z], and latents, where
an encoder is trained, by a sliced Wasserstein distance to the prior. One step costs a fraction of an adversarial one.
Where rows are held out, training stops early by the IV outcome loss on them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.scipy.special import ndtri

from bgmiv.bgm.heldout import outcome_loss
from bgmiv.bgm.model import BGMIVModel, iv_means, square_errors
from bgmiv.errors import ConfigError
from bgmiv.integrate import GaussHermite, IntegrationRule, rule_for
from bgmiv.likelihood import Gaussian
from bgmiv.nn.images import check_bounds
from bgmiv.nn.mlp import adam
from bgmiv.training.loop import RandomNumbers, Row, TrainingData

__all__ = ["JointState", "JointTraining", "joint_loss", "sliced_distance"]

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
class JointTraining:
    """Joint training: its settings and its step.

    Args:
        iterations: steps; None resolves them and `chunk` by the number of rows (`resolve`).
        batch_size: rows a batch, drawn uniformly.
        learning_rate: Adam's step size at the start; it falls to zero along a cosine.
        prior_weight: weight of the distance between encoded covariates and prior, where an encoder is trained.
        covariate_weight: weight of the covariates' log-likelihood.
        n_directions: projections of the sliced distance.
        weight_decay: decoupled decay of the kernels of H and F, and of all networks between latents and these, as a
            share of the step size.
        integration: nodes of the outcome's mean.
        residual_nodes: how many quantiles of the treatment's residuals take their place, in a second training, where
            held-out residuals are not normal (`bgmiv.bgm.residuals`); 0 for never.
        chunk: iterations between two reports, and between two evaluations on held-out rows where there are any.
        tolerance: a model is clearly worse than another if its held-out loss is more than this many times the other's;
            with a discrete outcome, if it is higher at all.
        patience: evaluations in a row that are clearly worse than the best one, after which training stops.
    """

    iterations: int | None = 10_000
    batch_size: int = 128
    learning_rate: float = 1e-3
    prior_weight: float = 5.0
    covariate_weight: float = 0.1
    n_directions: int = 32
    weight_decay: float = 0.0
    integration: IntegrationRule = GaussHermite(8)
    residual_nodes: int = 0
    chunk: int = 500
    tolerance: float = 1.05
    patience: int = 4

    name: ClassVar[str] = "joint training"
    metric_names: ClassVar[tuple[str, ...]] = ("loss", "prior", "covariates", "treatment", "outcome")

    def __post_init__(self) -> None:
        """Refuse settings that cannot train."""
        check_bounds(self, "learning_rate", iterations=0, batch_size=2, n_directions=1, chunk=1)
        check_bounds(self, weight_decay=0, patience=1, tolerance=1, residual_nodes=0)

    @property
    def n_steps(self) -> int:
        """Iterations."""
        if self.iterations is None:
            raise ConfigError("the iterations of joint training are still open: call resolve(n_rows) first.")
        return self.iterations

    def resolve(self, n_rows: int) -> JointTraining:
        """With iterations left open: 3000 up to 1000 rows, beyond that growing like their square root, 30,000 at most.

        More rows allow for more detail, and need fewer passes for it; ten evaluations are spread over the iterations.
        """
        if self.iterations is not None:
            return self
        iterations = int(min(max(3000.0 * (n_rows / 1000.0) ** 0.5, 3000.0), 30_000.0))
        return replace(self, iterations=iterations, chunk=iterations // 10)

    def _optimiser(self) -> optax.GradientTransformation:
        schedule = optax.cosine_decay_schedule(self.learning_rate, max(self.n_steps, 1))
        return adam(schedule, weight_decay=self.weight_decay, decayed=_generator_kernels)

    def init(self, model: BGMIVModel, key: Array) -> JointState:
        """A fresh optimiser beside the model."""
        none, zero = jnp.asarray(jnp.inf), jnp.zeros((), jnp.int32)
        return JointState(model, self._optimiser().init(model), model, none, zero, zero, none)

    def step(self, state: JointState, data: TrainingData, key: Array) -> tuple[JointState, dict[str, Array]]:
        """One joint step of encoder and generators."""
        model, n = state.model, self.batch_size
        latent, width = model.layout.dim, model.covariates.noise_width
        key_draws, key_nodes = jax.random.split(key)
        numbers = RandomNumbers(key_draws, n * (1 + width) + self.n_directions * latent)
        index = data.draw(numbers, n)
        rows = jax.tree.map(lambda leaf: leaf[index], data.rows)
        noise = numbers.uniform((n, width))
        directions = numbers.normal((self.n_directions, latent))
        rule = rule_for(self.integration, model.treatment_head)
        loss = jax.grad(joint_loss, has_aux=True)
        grads, metrics = loss(model, rule, rows, directions, noise, key_nodes, self)
        updates, optimiser = self._optimiser().update(grads, state.optimiser, model)
        return state._replace(model=optax.apply_updates(model, updates), optimiser=optimiser), metrics

    def evaluate(self, state: JointState, data: TrainingData) -> JointState:
        """Keep the model unless its IV outcome loss on held-out rows is clearly above the lowest so far."""
        model = state.model
        loss = outcome_loss(model, self.integration, data)
        # Training goes on for a reason: what a few held-out rows say must be clear to stop before its end.
        # The loss of a discrete outcome is mostly its own chance, of which every share hides what can be learned.
        tolerance = self.tolerance if isinstance(model.outcome_head, Gaussian) else 1.0
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
        return (state.stale >= self.patience) | hopeless

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
