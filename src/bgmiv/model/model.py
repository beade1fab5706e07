"""The generative model: covariate, treatment and outcome generators over one latent row."""

from __future__ import annotations

from dataclasses import dataclass, field

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from bgmiv.covariates import CovariateConfig, CovariateModule, build_covariates
from bgmiv.data.schema import BlockKind, Schema, Variable
from bgmiv.errors import ConfigError
from bgmiv.likelihood import Bernoulli, Categorical, Gaussian, Head, Levels
from bgmiv.model.layout import LatentLayout
from bgmiv.nn import MLP

__all__ = ["BGMIVModel", "ModelConfig", "build_model", "encode_rows"]


@dataclass(frozen=True)
class ModelConfig:
    """Shapes of the generators; the defaults are the paper's.

    Args:
        layout: the latent partition.
        treatment_hidden: hidden units of H.
        outcome_hidden: hidden units of F.
        covariates: shapes of E and G.
    """

    layout: LatentLayout = field(default_factory=lambda: LatentLayout(2, 2, 1, 2))
    treatment_hidden: tuple[int, ...] = (64, 32, 8)
    outcome_hidden: tuple[int, ...] = (64, 32, 8)
    covariates: CovariateConfig = field(default_factory=CovariateConfig)

    def __post_init__(self) -> None:
        """Refuse widths below one."""
        for name in ("treatment_hidden", "outcome_hidden"):
            if any(width < 1 for width in getattr(self, name)):
                raise ConfigError(f"{name} must hold positive widths, got {getattr(self, name)}.")


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

    def treatment_raw(self, w: Array, z: Array) -> Array:
        """Raw parameters of $p_\\phi(x \\mid w, z_0, z_2)$."""
        return self.treatment(jnp.concatenate([self.layout.for_treatment(z), w]))

    def outcome_context(self, z: Array) -> Array:
        """The latent part of F's first layer, the same for every treatment node of a row."""
        return self.outcome.first_context(self.layout.for_outcome(z))

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


def _treatment_head(variable: Variable) -> Head:
    if variable.kind is BlockKind.categorical:
        return Levels(variable.width)
    return Bernoulli(1) if variable.kind is BlockKind.binary else Gaussian(1)


def _outcome_head(variable: Variable) -> Head:
    if variable.kind is BlockKind.categorical:
        return Categorical(variable.width)
    return Bernoulli(1) if variable.kind is BlockKind.binary else Gaussian(1)


def build_model(schema: Schema, n_instruments: int, config: ModelConfig, *, key: Array) -> BGMIVModel:
    """Draw a model's initial parameters for a schema."""
    key_covariates, key_treatment, key_outcome = jax.random.split(key, 3)
    layout = config.layout
    treatment_head, outcome_head = _treatment_head(schema.treatment), _outcome_head(schema.outcome)
    return BGMIVModel(
        covariates=build_covariates(schema, layout.dim, config.covariates, key=key_covariates),
        treatment=MLP(
            layout.treatment_dim + n_instruments,
            config.treatment_hidden,
            treatment_head.raw_dim,
            key=key_treatment,
        ),
        outcome=MLP(
            layout.outcome_dim + schema.treatment.width,
            config.outcome_hidden,
            outcome_head.raw_dim,
            key=key_outcome,
        ),
        layout=layout,
        treatment_head=treatment_head,
        outcome_head=outcome_head,
    )


@jax.jit
def encode_rows(model: BGMIVModel, v: Array) -> Array:
    """The encoder's latents of many rows, without dropout."""
    size = model.covariates.rows_at_once(len(v))
    if size == len(v):
        return jax.vmap(model.covariates.encode)(v)
    return jax.lax.map(model.covariates.encode, v, batch_size=size)
