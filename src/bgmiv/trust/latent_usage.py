"""How much of what a BGM-IV fit says rests on each part of its latents."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bgmiv.data.ivdata import IVData
from bgmiv.likelihood import Levels
from bgmiv.model.layout import LatentLayout
from bgmiv.model.model import BGMIVModel

__all__ = ["PARTS", "latent_usage"]

PARTS = ("shared", "outcome-only", "treatment-only", "nuisance")
"""The four parts of the latents, in their order."""

_MOST_ROWS = 1000


def latent_usage(fitted: Any, data: IVData, *, seed: int = 0) -> dict[str, float]:
    """Mean change of what the fit predicts when one part of the latents is exchanged between rows.

    Args:
        fitted: a fitted BGM-IV; its first member is looked at.
        data: rows, of which 1000 at most are looked at.
        seed: of the exchange.

    Returns:
        For each part of the latents that has coordinates, `"<part>.treatment"`, `"<part>.outcome"` and
        `"<part>.covariates"`: mean absolute changes of the treatment's mean, the outcome's mean (probabilities, where
        these have levels) and the covariates' reconstruction, in deviations of each as training sees it. Empty for a
        fit without covariates, whose latents are the same in every row.
    """
    if not fitted.schema.blocks:
        return {}
    rng = np.random.default_rng(seed)
    rows = rng.permutation(data.n_rows)[:_MOST_ROWS]
    part = data.take(rows)
    model, scaler, layout = fitted.members[0].model, fitted.scaler, fitted.config.layout
    z = jnp.asarray(fitted.latents(part.covariates))
    x = jnp.asarray(scaler.treatment.transform(part.treatment))
    seen = part.instruments if fitted.config.use_instrument else part.instruments[:, :0]
    w = jnp.asarray(scaler.instruments.transform(seen))
    order = np.roll(np.arange(len(rows)), 1)
    before = _predicted(model, w, x, z)
    scales = _scales(fitted, part)
    found: dict[str, float] = {}
    for name, columns in _slices(layout).items():
        after = _predicted(model, w, x, z.at[:, columns].set(z[order, columns]))
        for target, old, new, scale in zip(("treatment", "outcome", "covariates"), before, after, scales, strict=True):
            found[f"{name}.{target}"] = float(np.mean(np.abs(np.asarray(new) - np.asarray(old)) / scale))
    return found


def _slices(layout: LatentLayout) -> dict[str, slice]:
    sizes = (layout.shared, layout.outcome_only, layout.treatment_only, layout.nuisance)
    ends = np.cumsum(sizes).tolist()
    return {name: slice(end - size, end) for name, size, end in zip(PARTS, sizes, ends, strict=True) if size}


def _scales(fitted: Any, part: IVData) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Deviations of treatment, outcome and covariates as training sees them; a probability counts as it is."""
    schema, scaler = fitted.schema, fitted.scaler
    x = np.ones(1) if schema.treatment.discrete else scaler.treatment.transform(part.treatment).std(keepdims=True)
    y = np.ones(1) if schema.outcome.discrete else scaler.outcome.transform(part.outcome).std(keepdims=True)
    v = scaler.covariates.transform(fitted.reduction.transform(part.covariates)).std(axis=0)
    return tuple(np.where(scale > 0, scale, 1.0) for scale in (x, y, v))  # type: ignore[return-value]


@jax.jit
def _predicted(model: BGMIVModel, w: Array, x: Array, z: Array) -> tuple[Array, Array, Array]:
    raw = jax.vmap(model.treatment_raw)(w, z)
    head = model.treatment_head
    treatment = jax.nn.softmax(raw) if isinstance(head, Levels) else jax.vmap(head.mean)(raw)
    outcome = jax.vmap(model.structural_mean)(x, z)
    return treatment, outcome, jax.vmap(model.covariates.mean)(z)
