"""The moment form of the outcome: consistent where the mixture of the paper is not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from bgmiv.integrate import IntegrationRule
from bgmiv.likelihood import Gaussian
from bgmiv.model.model import BGMIVModel
from bgmiv.model.objectives import Row, log_p_iv, outcome_raws

__all__ = ["log_p_moment"]


def log_p_moment(model: BGMIVModel, rule: IntegrationRule, row: Row, z: Array, key: Array) -> Array:
    r"""$\log \mathcal N(y;\, \int \mu_\omega(x, z)\, p_\phi(x \mid w, z)\, dx,\, s^2(w, z))$.

    $s^2$ is the mean of the outcome's variances over the treatment. The mixture of eq. iv_integrated_likelihood spreads
    the structural mean over the treatment's noise and so counts $\beta^2 \sigma_x^2$ as part of the outcome's variance;
    where disturbance and treatment noise cancel in the outcome it is pulled to a flatter curve. The mean of y given the
    instrument is the same integral in both, and here nothing but it is matched. For an outcome that is not Gaussian
    the two are one.
    """
    head = model.outcome_head
    if not isinstance(head, Gaussian):
        return log_p_iv(model, rule, row, z, key)
    nodes, log_weights = rule.nodes(model.treatment_head, model.treatment_raw(row.w, z), row.x, key)
    raws, weights = outcome_raws(model, nodes, z), jnp.exp(log_weights)
    mean = weights @ jax.vmap(head.mean)(raws)[:, 0]
    variance = weights @ jax.vmap(head.variance)(raws)[:, 0]
    return -0.5 * ((row.y - mean) ** 2 / variance + jnp.log(2.0 * jnp.pi * variance))
