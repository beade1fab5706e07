"""The initial phase, which trains encoder and generators together: the EGM warm start, or joint training.

One iteration of EGM is `critic_steps` Wasserstein steps of the critic on e(v) against the prior, then one joint step of
encoder and generators on: adversarial loss, reconstruction of v and of z, treatment error, IV-integrated outcome error,
and a small penalty on the raw spreads.

Joint training is plain stochastic gradient descent without a critic. Covariates and treatment are matched by their
likelihoods, the outcome by its IV moment E[y | w, z], and latents, where an encoder is trained, by a sliced Wasserstein
distance to the prior. One step costs a fraction of an adversarial one. Where rows are held out, training stops early by
the IV outcome loss on them.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.scipy.special import ndtri

from bgmiv.bgm.config import EGM, JointTraining
from bgmiv.bgm.model import BGMIVModel, evaluate_fold, integrated_outcome, iv_means, square_errors
from bgmiv.estimators.members import Best, Learner
from bgmiv.likelihood import Gaussian
from bgmiv.nn.layers import MLP, adam
from bgmiv.training import Metrics, RandomNumbers, Row, TrainingData

__all__ = [
    "EGMProgram", "EGMState", "JointProgram", "JointState", "critic_loss", "egm_loss", "joint_loss",
    "sliced_distance",
]  # fmt: skip

# Evaluations before a network that predicts worse than a line is given up.
_GRACE = 3


class EGMState(NamedTuple):
    """The model and the critic in training, and the moving average of the treatment's squared error."""

    learner: Learner
    critic: Learner
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
    rows: Row,
    z: Array,
    noise: Array,
    key: Array,
    config: EGM,
    variance: Array | None = None,
) -> tuple[Array, Metrics]:
    """The joint loss of encoder and generators on one batch, and its parts; the critic is held fixed.

    `z` has as many draws from the prior as the batch has rows, `noise` the dropout noise of the batch's encodings, then
    of the draws' (`(2 n, noise_width)`), and `key` the randomness of the nodes.
    `variance` is that of the treatment in the outcome's integral; None takes the treatment head's.
    """
    covariates = model.covariates
    n = len(rows.x)

    def generated(z: Array) -> tuple[Array, Array]:
        raws = covariates.decode(z)
        return covariates.means_of(raws), covariates.spread_penalty(raws)

    expected, spreads = jax.vmap(generated)(z)
    z_hat = jax.vmap(covariates.encode)(rows.v, noise[:n])
    z_cycle = jax.vmap(covariates.encode)(expected, noise[n:])
    v_cycle = jax.vmap(covariates.decode_means)(z_hat)

    raw_x = jax.vmap(model.treatment_raw)(rows.w, z_hat)
    around = raw_x
    if variance is not None:
        around = jnp.stack([raw_x[:, 0], jnp.full(n, jnp.log(jnp.expm1(variance)))], axis=1)
    y_hat, raw_y = integrated_outcome(model, config.integration, rows, around, z_hat, key)
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
        + jnp.mean(jax.vmap(jax.vmap(model.outcome_head.spread_penalty))(raw_y))
    )
    loss = jnp.sum(jnp.stack(list(parts.values()))) + config.spread_penalty * spread
    return loss, {"loss": loss, **parts}


class EGMProgram(EGM):
    """The warm start's critic and generator steps, under its settings."""

    def _optimiser(self) -> optax.GradientTransformation:
        return adam(self.learning_rate)

    def init(self, model: BGMIVModel, key: Array) -> EGMState:
        """A fresh critic and fresh optimisers beside the model."""
        critic = MLP(model.layout.dim, self.critic_hidden, 1, key=key, activation=jnp.tanh)
        optimiser = self._optimiser()
        return EGMState(Learner.begin(model, optimiser), Learner.begin(critic, optimiser), jnp.ones(()))

    def step(self, state: EGMState, data: TrainingData, key: Array) -> tuple[EGMState, Metrics]:
        """Critic steps, then one joint step of encoder and generators."""
        model, n = state.learner.net, self.batch_size
        key_draws, key_nodes = jax.random.split(key)
        numbers = RandomNumbers(key_draws, self._words(model))
        critic = self._critic_steps(state, data, numbers)

        rows = data.at(data.draw(numbers, n))
        z = numbers.normal((n, model.layout.dim))
        noise = numbers.uniform((2 * n, model.covariates.noise_width))
        residual = self.treatment_spread == "residual" and isinstance(model.treatment_head, Gaussian)
        # The smallest is far below any noise; at 0 the raw spread would not be finite.
        variance = jnp.clip(state.treatment_error, 1e-4, 1.0) if residual else None
        loss = jax.grad(egm_loss, has_aux=True)
        grads, metrics = loss(model, critic.net, rows, z, noise, key_nodes, self, variance)
        error = 0.99 * state.treatment_error + 0.01 * metrics["treatment"]
        return EGMState(state.learner.moved(self._optimiser(), grads), critic, error), metrics

    def result(self, state: EGMState) -> BGMIVModel:
        """The model of the last step."""
        return state.learner.net

    def _words(self, model: BGMIVModel) -> int:
        """Random words of a step: row, prior draw and dropout of every encoded row, and the critic's mixing."""
        latent, noise = model.layout.dim, model.covariates.noise_width
        return self.batch_size * (self.critic_steps * (2 + latent + noise) + 1 + latent + 2 * noise)

    def _critic_steps(self, state: EGMState, data: TrainingData, numbers: RandomNumbers) -> Learner:
        model, shape = state.learner.net, (self.critic_steps, self.batch_size)
        n = self.critic_steps * self.batch_size
        # The encoder stands still during the critic's steps, so all their batches are encoded at once.
        v = data.rows.v[data.draw(numbers, n)]
        fake = jax.vmap(model.covariates.encode)(v, numbers.uniform((n, model.covariates.noise_width)))
        real = numbers.normal((n, model.layout.dim))
        batches = (fake.reshape(*shape, -1), real.reshape(*shape, -1), numbers.uniform(shape))

        def body(critic: Learner, batch: tuple[Array, Array, Array]) -> tuple[Learner, None]:
            grads = jax.grad(critic_loss)(critic.net, *batch, self.gradient_penalty)
            return critic.moved(self._optimiser(), grads), None

        return jax.lax.scan(body, state.critic, batches)[0]


class JointState(NamedTuple):
    """The model in training, and the best one on held-out rows.

    Attributes:
        learner: the model and its optimiser.
        best: the best model; simply the newest where no rows are held out.
        evaluations: how many there were.
        linear_loss: what a linear regression on instruments and covariates has on the same rows; infinite for none.
    """

    learner: Learner
    best: Best
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
    return jnp.mean((projected - ndtri((place + 0.5) / n)[ranks]) ** 2)


def joint_loss(
    model: BGMIVModel, rows: Row, directions: Array, noise: Array, key: Array, config: JointTraining
) -> tuple[Array, Metrics]:
    """The loss of one batch and its parts."""
    z = jax.vmap(model.covariates.encode)(rows.v, noise)
    raw_x = jax.vmap(model.treatment_raw)(rows.w, z)
    y_hat = iv_means(model, config.integration, rows, raw_x, z, key)
    # The generator explains what the encoder has seen. Were it to explain the row without the noise, it would shrink
    # towards the mean, and the MAP would overshoot the encoder's latents to make up for it.
    seen = jax.vmap(model.covariates.encoder.features.noised)(rows.v, noise)
    trained = model.covariates.learns_latents
    parts = {
        # Without an encoder to train the latents are as far from the prior as they are.
        "prior": config.prior_weight * sliced_distance(z, directions) if trained else jnp.zeros(()),
        "covariates": -config.covariate_weight * jnp.mean(jax.vmap(model.covariates.log_prob)(seen, z)),
        "treatment": -jnp.mean(jax.vmap(model.treatment_head.log_prob)(raw_x, rows.x[:, None])),
        "outcome": jnp.mean(square_errors(model, rows.y, y_hat)),
    }
    loss = jnp.sum(jnp.stack(list(parts.values())))
    return loss, {"loss": loss, **parts}


class JointProgram(JointTraining):
    """Joint training's step and its early stopping, under its settings."""

    def _optimiser(self) -> optax.GradientTransformation:
        schedule = optax.cosine_decay_schedule(self.learning_rate, max(self.n_steps, 1))
        return adam(schedule, weight_decay=self.weight_decay, decayed=_generator_kernels)

    def init(self, model: BGMIVModel, linear_loss: Array) -> JointState:
        """A fresh optimiser beside the model."""
        learner = Learner.begin(model, self._optimiser())
        return JointState(learner, Best.first(model), jnp.zeros((), jnp.int32), linear_loss)

    def step(self, state: JointState, data: TrainingData, key: Array) -> tuple[JointState, Metrics]:
        """One joint step of encoder and generators."""
        model, n = state.learner.net, self.batch_size
        latent, width = model.layout.dim, model.covariates.noise_width
        key_draws, key_nodes = jax.random.split(key)
        numbers = RandomNumbers(key_draws, n * (1 + width) + self.n_directions * latent)
        rows = data.at(data.draw(numbers, n))
        noise = numbers.uniform((n, width))
        directions = numbers.normal((self.n_directions, latent))
        loss = jax.grad(joint_loss, has_aux=True)
        grads, metrics = loss(model, rows, directions, noise, key_nodes, self)
        return state._replace(learner=state.learner.moved(self._optimiser(), grads)), metrics

    def evaluate(self, state: JointState, data: TrainingData) -> JointState:
        """Keep the model unless its IV outcome loss on held-out rows is clearly above the lowest so far."""
        model, best = state.learner.net, state.best
        loss = evaluate_fold(model, self.integration, data).outcome_loss
        # Training goes on for a reason: what a few held-out rows say must be clear to stop before its end.
        # The loss of a discrete outcome is mostly its own chance, of which every share hides what can be learned.
        tolerance = self.tolerance if isinstance(model.outcome_head, Gaussian) else 1.0
        limit = jnp.where(data.fold_size == 0, jnp.inf, tolerance * best.loss)
        after = state._replace(best=best.after(model, loss, limit), evaluations=state.evaluations + 1)
        # A member that has stopped is still trained while others go on; it is left as a run of its own would leave it.
        over = self.stopped(state)
        return jax.tree.map(lambda old, new: jnp.where(over, old, new), state, after)

    def stopped(self, state: JointState) -> Array:
        """Whether `patience` evaluations brought nothing, or the first three none that is better than a line's."""
        hopeless = (state.evaluations >= _GRACE) & (state.best.loss > state.linear_loss)
        return (state.best.stale >= self.patience) | hopeless

    def result(self, state: JointState) -> BGMIVModel:
        """The best model on held-out rows."""
        return state.best.networks


def _generator_kernels(model: BGMIVModel) -> BGMIVModel:
    """Which parameters decay: the kernels of H and F, and of what leads from the latents to them."""
    kernels = jax.tree.map(lambda leaf: leaf.ndim > 1, model)
    return eqx.tree_at(lambda m: m.covariates, kernels, jax.tree.map(lambda _: False, model.covariates))
