"""The generative model: the latent partition, and covariate, treatment and outcome generators over one latent row."""

from __future__ import annotations

from functools import partial
from math import log
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from bgmiv.bgm.config import LatentLayout, ModelConfig
from bgmiv.bgm.covariates import CovariateModule, build_covariates
from bgmiv.data.schema import BlockKind, Schema, Variable
from bgmiv.integrate import IntegrationRule, rule_for
from bgmiv.likelihood import Bernoulli, Categorical, FiniteHead, Gaussian, Head, Levels
from bgmiv.nn.layers import MLP
from bgmiv.training import Row, TrainingData

__all__ = [
    "BGMIVModel",
    "Embedding",
    "HeldOutLosses",
    "build_model",
    "covariate_log_posterior",
    "encode_rows",
    "evaluate_fold",
    "integrated_outcome",
    "iv_means",
    "log_p_iv",
    "log_p_treatment",
    "outcome_raws",
    "quasi_log_posterior",
    "square_errors",
]

_MAX_EVALUATED = 2048
# A variance within this factor of its floor is one that the floor alone keeps up.
_NEAR_FLOOR = 100.0
# Instruments of other rows over which the treatment's density is averaged.
_AVERAGED_OVER = 16


class Embedding(eqx.Module):
    """A network for each part of the latents that treatment or outcome depend on; H and F share what it finds.

    All parts have networks of their own, so that no part sees another.
    """

    nets: tuple[MLP, ...]
    inputs: LatentLayout = eqx.field(static=True)
    outputs: LatentLayout = eqx.field(static=True)

    def __call__(self, z: Array) -> Array:
        """The outputs of one row, in the order of the latents and without the nuisance part."""
        parts = [part for part in list(self.inputs.parts.values())[:3] if part.start < part.stop]
        return jnp.concatenate([net(z[part]) for net, part in zip(self.nets, parts, strict=True)])


class BGMIVModel(eqx.Module):
    r"""The joint model of covariates, treatment and outcome given latents (eq. bgm_iv_joint_model).

    $V \sim p_\theta(v \mid z)$, $X \sim p_\phi(x \mid w, z_0, z_2)$, $Y \sim p_\omega(y \mid x, z_0, z_1)$.

    All methods are for one row; `vmap` at the call site. A treatment or an outcome of three or more levels is the code
    of its level; networks see such a treatment as indicators, and the outcome's head such an outcome.
    """

    covariates: CovariateModule
    treatment: MLP
    outcome: MLP
    layout: LatentLayout = eqx.field(static=True)
    treatment_head: Head = eqx.field(static=True)
    outcome_head: Head = eqx.field(static=True)
    treatment_trunk: MLP | None = None
    outcome_trunk: MLP | None = None
    embedding: Embedding | None = None

    def _embedded(self, z: Array) -> tuple[LatentLayout, Array]:
        """What trunks, H and F see in place of the latents of one row, and its partition."""
        return (self.layout, z) if self.embedding is None else (self.embedding.outputs, self.embedding(z))

    def treatment_raw(self, w: Array, z: Array) -> Array:
        """Raw parameters of $p_\\phi(x \\mid w, z_0, z_2)$."""
        layout, embedded = self._embedded(z)
        part = layout.for_treatment(embedded)
        features = part if self.treatment_trunk is None else self.treatment_trunk(part)
        return self.treatment(jnp.concatenate([features, w]))

    def outcome_context(self, z: Array) -> Array:
        """The latent part of F's first layer, the same for every treatment node of a row."""
        layout, embedded = self._embedded(z)
        part = layout.for_outcome(embedded)
        return self.outcome.first_context(part if self.outcome_trunk is None else self.outcome_trunk(part))

    def outcome_raw(self, context: Array, x: Array) -> Array:
        """Raw parameters of $p_\\omega(y \\mid x, z_0, z_1)$ at one treatment value."""
        head = self.treatment_head
        return self.outcome.from_context(context, head.indicators(x) if isinstance(head, Levels) else x[None])

    def outcome_event(self, y: Array) -> Array:
        """The outcome as an event of its head: itself, `(1,)`, or the indicators of its level, `(K,)`."""
        head = self.outcome_head
        return Levels(head.dim).indicators(y) if isinstance(head, Categorical) else y[None]

    def structural_mean(self, x: Array, z: Array) -> Array:
        r"""$\mu_\omega(x, z_0, z_1)$ (eq. structural_prediction): a scalar, or the `(K,)` levels' probabilities."""
        mean = self.outcome_head.mean(self.outcome_raw(self.outcome_context(z), x))
        return mean if isinstance(self.outcome_head, Categorical) else mean[0]


def _head_of(variable: Variable, levels: type[Head]) -> Head:
    """The distribution of a treatment or outcome; `levels` is that of three or more levels."""
    if variable.kind is BlockKind.categorical:
        return levels(variable.width)  # type: ignore[call-arg]
    return Bernoulli(1) if variable.kind is BlockKind.binary else Gaussian(1)


def build_model(schema: Schema, n_instruments: int, config: ModelConfig, *, key: Array) -> BGMIVModel:
    """Draw a model's initial parameters for a schema."""
    key_covariates, key_treatment, key_outcome = jax.random.split(key, 3)
    layout = config.layout
    embedding = _embedding(layout, config.embedding, key=jax.random.fold_in(key_covariates, 1))
    seen = layout if embedding is None else embedding.outputs
    treatment_head, outcome_head = _head_of(schema.treatment, Levels), _head_of(schema.outcome, Categorical)
    treatment_trunk, treatment_dim = _trunk(seen.treatment_dim, config.treatment_trunk, key_treatment)
    outcome_trunk, outcome_dim = _trunk(seen.outcome_dim, config.outcome_trunk, key_outcome)
    return BGMIVModel(
        covariates=build_covariates(schema.blocks, layout.dim, config.covariates, key=key_covariates),
        treatment=MLP(
            treatment_dim + n_instruments, config.treatment_hidden, treatment_head.raw_dim, key=key_treatment
        ),
        outcome=MLP(outcome_dim + schema.treatment.width, config.outcome_hidden, outcome_head.raw_dim, key=key_outcome),
        layout=layout,
        treatment_head=treatment_head,
        outcome_head=outcome_head,
        treatment_trunk=treatment_trunk,
        outcome_trunk=outcome_trunk,
        embedding=embedding,
    )


def _embedding(layout: LatentLayout, widths: tuple[int, ...], *, key: Array) -> Embedding | None:
    """Networks from the latents of each part; none without widths, or if neither treatment nor outcome has latents."""
    sizes = (layout.shared, layout.outcome_only, layout.treatment_only)
    if not widths or not any(sizes):
        return None
    outputs = [min(size, widths[-1]) for size in sizes]
    parts = zip(sizes, outputs, jax.random.split(key, 3), strict=True)
    nets = tuple(MLP(n, widths[:-1], k, key=own) for n, k, own in parts if n)
    shared, outcome_only, treatment_only = outputs
    return Embedding(nets, layout, LatentLayout(shared, outcome_only, treatment_only, 0))


def _trunk(n_in: int, widths: tuple[int, ...], key: Array) -> tuple[MLP | None, int]:
    """A network from latents to features, and their number; without widths or latents, no network and the latents."""
    if not widths or not n_in:
        return None, n_in
    return MLP(n_in, widths[:-1], widths[-1], key=jax.random.fold_in(key, 1)), widths[-1]


@jax.jit
def encode_rows(model: BGMIVModel, v: Array) -> Array:
    """The encoder's latents of many rows, without dropout."""
    size = model.covariates.rows_at_once(len(v))
    if size == len(v):
        return jax.vmap(model.covariates.encode)(v)
    return jax.lax.map(model.covariates.encode, v, batch_size=size)


def log_p_treatment(model: BGMIVModel, row: Row, z: Array) -> Array:
    r"""$\log p_\phi(x \mid w, z_0, z_2)$ (eq. loss_x_batch)."""
    return model.treatment_head.log_prob(model.treatment_raw(row.w, z), row.x[None])[0]


def outcome_raws(model: BGMIVModel, nodes: Array, z: Array) -> Array:
    """The outcome network at every treatment node of a row, `(n_nodes, raw_dim)`.

    The latent part of its first layer is computed once for all nodes.
    """
    context = model.outcome_context(z)
    return jax.vmap(lambda x: model.outcome_raw(context, x))(nodes)


def _nodes(model: BGMIVModel, rule: IntegrationRule, raw_x: Array, observed: Array, key: Array) -> tuple[Array, Array]:
    """Treatments over which the outcome of a row is integrated, and their log-weights."""
    head = model.treatment_head
    return rule_for(rule, head).nodes(head, raw_x, observed, key)


def log_p_iv(model: BGMIVModel, rule: IntegrationRule, row: Row, z: Array, key: Array) -> Array:
    r"""$\log \int p_\omega(y \mid x, z_0, z_1)\, p_\phi(x \mid w, z_0, z_2)\, dx$ (eq. iv_integrated_likelihood)."""
    nodes, log_weights = _nodes(model, rule, model.treatment_raw(row.w, z), row.x, key)
    raws = outcome_raws(model, nodes, z)
    event = model.outcome_event(row.y)
    # The head gives one term a coordinate of the event.
    log_densities = jax.vmap(lambda raw: jnp.sum(model.outcome_head.log_prob(raw, event)))(raws)
    return jax.nn.logsumexp(log_weights + log_densities)


def covariate_log_posterior(model: BGMIVModel, v: Array, z: Array) -> Array:
    r"""$\log p(z) + \log p_\theta(v \mid z)$ (eq. test_time_map), up to the evidence."""
    return model.layout.log_prior(z) + model.covariates.log_prob(v, z)


def quasi_log_posterior(
    model: BGMIVModel, rule: IntegrationRule, row: Row, z: Array, key: Array, pzv_weight: float
) -> Array:
    r"""The latent objective (eq. latent_update_objective), up to a constant.

    $\lambda\{\log p(z) + \log p_\theta(v \mid z)\} + \log p_\phi(x \mid w, z)
    + \log p_{\mathrm{IV}}(y \mid w, z)$,
    where `pzv_weight` is $\lambda$ (0.5 in the paper's runs).
    """
    return (
        pzv_weight * covariate_log_posterior(model, row.v, z)
        + log_p_treatment(model, row, z)
        + log_p_iv(model, rule, row, z, key)
    )


def iv_means(
    model: BGMIVModel, rule: IntegrationRule, rows: Row, raw_x: Array, z: Array, key: Array | None = None
) -> Array:
    """The moment E[y | w, z] of each row under the model: `(n,)`, or `(n, K)` for an outcome of K levels.

    Without a key a rule with randomness has the same numbers every time: it is then compared with itself.
    """
    key = jax.random.key(0) if key is None else key
    # The treatment's spread is learned from the treatment alone: the outcome would widen or narrow it to fit better.
    return integrated_outcome(model, rule, rows, _fixed_spread(model.treatment_head, raw_x), z, key)[0]


def integrated_outcome(
    model: BGMIVModel, rule: IntegrationRule, rows: Row, raw_x: Array, z: Array, key: Array
) -> tuple[Array, Array]:
    """The outcome's means over treatments with these raw parameters, and its raw parameters at the nodes."""
    nodes, log_weights = jax.vmap(partial(_nodes, model, rule))(raw_x, rows.x, jax.random.split(key, len(rows.x)))
    raw_y = jax.vmap(outcome_raws, in_axes=(None, 0, 0))(model, nodes, z)
    means, weights = jax.vmap(jax.vmap(model.outcome_head.mean))(raw_y), jnp.exp(log_weights)
    if isinstance(model.outcome_head, Categorical):
        return jnp.sum(weights[..., None] * means, axis=1), raw_y
    return jnp.sum(weights * means[..., 0], axis=1), raw_y


def square_errors(model: BGMIVModel, y: Array, y_hat: Array) -> Array:
    """(y - E[y | w, z])^2 of each row, `(n,)`; summed over the levels' indicators where the outcome has levels."""
    if isinstance(model.outcome_head, Categorical):
        return jnp.sum((jax.vmap(model.outcome_event)(y) - y_hat) ** 2, axis=1)
    return (y - y_hat) ** 2


def _fixed_spread(head: Head, raw: Array) -> Array:
    """Raw treatment parameters through which gradients reach only the mean; a discrete treatment has no spread."""
    if isinstance(head, FiniteHead):
        return raw
    return jnp.concatenate([raw[:, :1], jax.lax.stop_gradient(raw[:, 1:])], axis=1)


class HeldOutLosses(NamedTuple):
    """Means over rows, in units of the scaled variables; arrays on the way, plain numbers once kept.

    Attributes:
        outcome_loss: of (y - E[y | w, z])^2, summed over the indicators of an outcome of several levels.
        outcome_variance: of y, likewise.
        treatment_score: log p(x | w, z).
        first_stage_gain: by how much that exceeds log p(x | z), the instruments averaged out over those of other rows.
        near_floor: share of rows whose treatment variance is kept up by its floor alone.
        latent_spread: of the standard deviations of the latent coordinates.
    """

    outcome_loss: Any
    outcome_variance: Any
    treatment_score: Any
    first_stage_gain: Any
    near_floor: Any
    latent_spread: Any


@partial(jax.jit, static_argnames="integration")
def evaluate_fold(model: BGMIVModel, integration: IntegrationRule, data: TrainingData) -> HeldOutLosses:
    """The losses on the fold of `data`, 2048 rows of it at most, at the encoder's latents."""
    rows, weights = data.held_out(min(len(data.rows.x), _MAX_EVALUATED))
    z = jax.vmap(model.covariates.encode)(rows.v)
    raw_x = jax.vmap(model.treatment_raw)(rows.w, z)
    centre = jnp.sum(weights[:, None] * z, axis=0)
    events = jax.vmap(model.outcome_event)(rows.y)
    y_mean = jnp.sum(weights[:, None] * events, axis=0)
    y_hat = iv_means(model, integration, rows, raw_x, z)

    def scores(raw: Array) -> Array:
        return jax.vmap(model.treatment_head.log_prob)(raw, rows.x[:, None])[:, 0]

    def scores_with(others: Array) -> Array:
        return scores(jax.vmap(model.treatment_raw)(rows.w[others], z))

    # Rows are in random order, so that turning the fold gives every row the instruments of an unrelated one.
    size = jnp.minimum(data.fold_size, len(rows.x))
    turns = size * jnp.arange(1, _AVERAGED_OVER + 1) // (_AVERAGED_OVER + 1)
    others = (jnp.arange(len(rows.x)) + turns[:, None]) % jnp.maximum(size, 1)
    averaged = jax.nn.logsumexp(jax.vmap(scores_with)(others), axis=0) - log(_AVERAGED_OVER)
    informed = scores(raw_x)
    near_floor = jnp.zeros(())
    if isinstance(model.treatment_head, Gaussian):
        variances = jax.vmap(model.treatment_head.variance)(raw_x)[:, 0]
        near_floor = jnp.sum(weights * (variances < _NEAR_FLOOR * model.treatment_head.floor))
    return HeldOutLosses(
        outcome_loss=jnp.sum(weights * square_errors(model, rows.y, y_hat)),
        outcome_variance=jnp.sum(weights[:, None] * (events - y_mean) ** 2),
        treatment_score=jnp.sum(weights * informed),
        first_stage_gain=jnp.sum(weights * (informed - averaged)),
        near_floor=near_floor,
        latent_spread=jnp.mean(jnp.sqrt(jnp.sum(weights[:, None] * (z - centre) ** 2, axis=0))),
    )
