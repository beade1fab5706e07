"""What the treatment's model leaves of it in held-out rows: whether that is normal, and integration nodes if not.

Networks integrate the outcome over a normal treatment. A residual that is skewed or has two modes makes that integral
wrong where g bends by more than a parabola over the residual's spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray
from scipy.stats import gaussian_kde, norm

from bgmiv.bgm.model import BGMIVModel, encode_rows
from bgmiv.data.scaling import ScaledData
from bgmiv.integrate import ResidualNodes, residual_nodes
from bgmiv.likelihood import Gaussian

__all__ = ["LeftOutResiduals", "density_gain", "left_out_residuals", "nodes_unless_normal"]

Floats = NDArray[np.float64]

_MAX_ROWS = 5000
# Nats a row. An exponential distribution is 0.42 from the normal one, a Laplace distribution 0.07.
_MIN_GAIN = 0.1
# A normal part of the estimated density bounds what a row in its tails can cost.
_NORMAL_PART = 0.1


class LeftOutResiduals(NamedTuple):
    """Standardised residuals of held-out rows.

    Attributes:
        values: (x - E[x | w, z]) / sd[x | w, z] by the member that left the row out.
        member: which that is.
        weights: of the rows.
    """

    values: Floats
    member: NDArray[np.int64]
    weights: Floats


@jax.jit
def _standardised(model: BGMIVModel, v: Array, w: Array, x: Array) -> Array:
    head = model.treatment_head
    assert isinstance(head, Gaussian)
    raw = jax.vmap(model.treatment_raw)(w, encode_rows(model, v))
    spread = jax.vmap(head.variance)(raw)[:, 0] ** 0.5
    return (x - jax.vmap(head.mean)(raw)[:, 0]) / spread


def left_out_residuals(
    models: Sequence[BGMIVModel],
    rows: ScaledData,
    left_out: Sequence[NDArray[np.int64]],
    weights: NDArray[np.floating] | None = None,
) -> LeftOutResiduals:
    """The residuals of up to 5000 rows; `left_out` has the rows that each model was not trained on."""
    most = max(_MAX_ROWS // max(len(models), 1), 1)
    values, member = [], []
    chosen = [positions[:most] for positions in left_out]
    for i, (model, positions) in enumerate(zip(models, chosen, strict=True)):
        part = [jax.device_put(columns[positions]) for columns in (rows.v, rows.w, rows.x)]
        values.append(np.asarray(_standardised(model, *part), np.float64))
        member.append(np.full(len(positions), i))
    counted = np.concatenate(chosen)
    own = np.ones(len(counted)) if weights is None else np.asarray(weights, np.float64)[counted]
    return LeftOutResiduals(np.concatenate(values), np.concatenate(member), own)


def density_gain(residuals: LeftOutResiduals) -> float:
    """By how much the residuals' estimated density exceeds the normal one, in mean log density of held-out rows.

    Both are fitted to the residuals of all members but one and evaluated at those of the one. The density is a kernel
    estimate, nine parts of ten, and the normal one.
    """
    gains = np.zeros(len(residuals.values))
    for member in np.unique(residuals.member):
        own = residuals.member == member
        other, weights = residuals.values[~own], residuals.weights[~own]
        centre = np.average(other, weights=weights)
        spread = np.sqrt(np.average((other - centre) ** 2, weights=weights))
        normal = norm.pdf(residuals.values[own], centre, spread)
        density = gaussian_kde(other, weights=weights)(residuals.values[own])
        gains[own] = np.log((1.0 - _NORMAL_PART) * density / np.maximum(normal, 1e-300) + _NORMAL_PART)
    return float(np.average(gains, weights=residuals.weights))


def nodes_unless_normal(residuals: LeftOutResiduals, n_nodes: int) -> ResidualNodes | None:
    """Integration nodes at the residuals' quantiles; None if the normal density describes them nearly as well."""
    if len(np.unique(residuals.member)) < 2 or density_gain(residuals) < _MIN_GAIN:
        return None
    return residual_nodes(residuals.values, n_nodes, residuals.weights)
