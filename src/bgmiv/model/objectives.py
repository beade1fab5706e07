"""Every log-density of the paper, for one row.

A row is `(x, y, v, w)` with scalar treatment and outcome, which are codes where these have levels; `z` is its latent
state. Nothing here averages over rows or knows about optimisers.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from bgmiv.integrate import IntegrationRule, log_integral
from bgmiv.model.model import BGMIVModel

__all__ = [
    "Row",
    "covariate_log_posterior",
    "log_p_iv",
    "log_p_treatment",
    "outcome_raws",
    "quasi_log_posterior",
]


class Row(NamedTuple):
    """One observation, or a batch of them with a leading axis."""

    x: Array
    y: Array
    v: Array
    w: Array


def log_p_treatment(model: BGMIVModel, row: Row, z: Array) -> Array:
    r"""$\log p_\phi(x \mid w, z_0, z_2)$ (eq. loss_x_batch)."""
    return model.treatment_head.log_prob(model.treatment_raw(row.w, z), row.x[None])[0]


def outcome_raws(model: BGMIVModel, nodes: Array, z: Array) -> Array:
    """The outcome network at every treatment node of a row, `(n_nodes, raw_dim)`.

    The latent part of its first layer is computed once for all nodes.
    """
    context = model.outcome_context(z)
    return jax.vmap(lambda x: model.outcome_raw(context, x))(nodes)


def log_p_iv(model: BGMIVModel, rule: IntegrationRule, row: Row, z: Array, key: Array) -> Array:
    r"""$\log \int p_\omega(y \mid x, z_0, z_1)\, p_\phi(x \mid w, z_0, z_2)\, dx$ (eq. iv_integrated_likelihood)."""
    nodes, log_weights = rule.nodes(model.treatment_head, model.treatment_raw(row.w, z), row.x, key)
    raws = outcome_raws(model, nodes, z)
    event = model.outcome_event(row.y)
    # The head gives one term a coordinate of the event.
    log_densities = jax.vmap(lambda raw: jnp.sum(model.outcome_head.log_prob(raw, event)))(raws)
    return log_integral(log_weights, log_densities)


def covariate_log_posterior(model: BGMIVModel, v: Array, z: Array) -> Array:
    r"""$\log p(z) + \log p_\theta(v \mid z)$ (eq. test_time_map), up to the evidence."""
    return model.layout.log_prior(z) + model.covariates.log_prob(v, z)


def quasi_log_posterior(
    model: BGMIVModel,
    rule: IntegrationRule,
    row: Row,
    z: Array,
    key: Array,
    pzv_weight: float | Array = 1.0,
    outcome_weight: float | Array = 1.0,
) -> Array:
    r"""The latent objective (eq. latent_update_objective), up to a constant.

    $\lambda\{\log p(z) + \log p_\theta(v \mid z)\} + \log p_\phi(x \mid w, z)
    + \alpha \log p_{\mathrm{IV}}(y \mid w, z)$,
    where `pzv_weight` is $\lambda$ (0.5 in the paper's runs) and `outcome_weight` is $\alpha$ (0 while the first
    stage warms up).
    """
    return (
        pzv_weight * covariate_log_posterior(model, row.v, z)
        + log_p_treatment(model, row, z)
        + outcome_weight * log_p_iv(model, rule, row, z, key)
    )
