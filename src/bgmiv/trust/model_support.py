"""The support of a fitted generative model: its treatment model and the density of its latents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2

from bgmiv.data.batching import bucket_size, pad_rows
from bgmiv.data.scaling import ScaledData
from bgmiv.likelihood import FiniteHead
from bgmiv.model.model import BGMIVModel
from bgmiv.trust.support import OUTSIDE, Novelty, fit_novelty

__all__ = ["ModelSupport", "Points", "fit_model_support"]

_MOST_INSTRUMENTS = 32
_MOST_ROWS = 2000
_BLOCK = 1024


class Points(NamedTuple):
    """Scaled treatments `(n,)`, and each member's latents `(n, d)`."""

    x: np.ndarray
    latents: Sequence[np.ndarray]


@dataclass(frozen=True, eq=False)
class ModelSupport:
    """Where a fit's own treatment model and latents place the data.

    Attributes:
        instruments: values that stand for all scaled instruments, `(m, q)`: the means of clusters of them.
        shares: how many rows each stands for, `(m,)`, one in sum.
        novelty: of the first member's latents.
        least: the log-density of treatments that all but a hundredth of the rows have; for a treatment of levels the
            least probability of one.
    """

    instruments: NDArray[np.float64]
    shares: NDArray[np.float64]
    novelty: Novelty
    least: float

    def inside(self, models: Sequence[BGMIVModel], points: Points) -> NDArray[np.bool_]:
        """Which points lie inside."""
        usual = self.novelty.usual(points.latents[0])
        return usual & (self.log_density(models, points) >= self.least)

    def log_density(self, models: Sequence[BGMIVModel], points: Points) -> NDArray[np.float64]:
        r"""$\log p(x \mid z)$, averaged over instruments and members, `(n,)`."""
        w, shares = jnp.asarray(self.instruments, jnp.float32), jnp.asarray(self.shares, jnp.float32)
        each = [
            _blocks(model, np.asarray(points.x, np.float32), z, w, shares)
            for model, z in zip(models, points.latents, strict=True)
        ]
        return np.asarray(np.logaddexp.reduce(each, axis=0) - log(len(each)), np.float64)


def fit_model_support(models: Sequence[BGMIVModel], scaled: ScaledData, latents: Sequence[np.ndarray]) -> ModelSupport:
    """The support of a fit on scaled rows, given each member's latents of them; from 2000 rows at most."""
    rows = np.random.default_rng(0).permutation(len(scaled.x))[:_MOST_ROWS]
    instruments, shares = _typical(np.asarray(scaled.w, np.float64)[rows])
    points = Points(scaled.x[rows], [np.asarray(z)[rows] for z in latents])
    measure = ModelSupport(instruments, shares, fit_novelty(points.latents[0]), -np.inf)
    if isinstance(models[0].treatment_head, FiniteHead):
        least = log(OUTSIDE)
    else:
        least = float(np.quantile(measure.log_density(models, points), OUTSIDE))
    return ModelSupport(instruments, shares, measure.novelty, least)


def _typical(w: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Few values that stand for all rows' instruments; a fit without instruments has one of no columns."""
    if w.shape[1] == 0:
        return np.zeros((1, 0)), np.ones(1)
    values, counts = np.unique(w, axis=0, return_counts=True)
    if len(values) <= _MOST_INSTRUMENTS:
        return values, counts / counts.sum()
    centres, labels = kmeans2(w, _MOST_INSTRUMENTS, minit="++", seed=np.random.default_rng(0), missing="warn")
    counts = np.bincount(labels, minlength=_MOST_INSTRUMENTS)
    used = counts > 0
    return np.asarray(centres[used], np.float64), counts[used] / counts.sum()


@jax.jit
def _densities(model: BGMIVModel, x: Array, z: Array, w: Array, shares: Array) -> Array:
    def one(x: Array, z: Array) -> Array:
        raws = jax.vmap(lambda w: model.treatment_raw(w, z))(w)
        logs = jax.vmap(lambda raw: model.treatment_head.log_prob(raw, x[None]))(raws)
        return jax.nn.logsumexp(logs.reshape(len(w)), b=shares)

    return jax.vmap(one)(x, z)


def _blocks(model: BGMIVModel, x: np.ndarray, z: np.ndarray, w: Array, shares: Array) -> np.ndarray:
    size = bucket_size(min(max(len(x), 64), _BLOCK))
    found = []
    for start in range(0, len(x), size):
        part = [jnp.asarray(pad_rows(np.asarray(a[start : start + size], np.float32), size)) for a in (x, z)]
        found.append(np.asarray(_densities(model, *part, w, shares))[: len(x) - start])
    return np.concatenate(found)
