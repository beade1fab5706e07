"""The structural function at query points, batched so that memory stays bounded."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bgmiv.data.batching import bucket_size, pad_rows, unique_rows
from bgmiv.infer.latent_map import LatentMap, infer_latents
from bgmiv.model.model import BGMIVModel

__all__ = ["latents_of", "structural_means"]

_MOST_ROWS = 4096
_FEWEST_ROWS = 64


@jax.jit
def _means(model: BGMIVModel, x: Array, z: Array) -> Array:
    return jax.vmap(model.structural_mean)(x, z)


def _blocks(n: int, most: int = _MOST_ROWS) -> list[tuple[int, int, int]]:
    """Start, stop and padded size of each block of rows."""
    size = max(min(_FEWEST_ROWS, most), bucket_size(min(n, most)))
    return [(start, min(start + size, n), size) for start in range(0, n, size)]


def latents_of(model: BGMIVModel, v: np.ndarray, config: LatentMap) -> np.ndarray:
    """Latents of scaled covariate rows, `(n, d)`; equal rows are computed once.

    Dose-response queries repeat the same covariates at many treatments, and the MAP is by far the dearest part.
    """
    unique, inverse = unique_rows(v)
    parts = [
        np.asarray(infer_latents(model, jnp.asarray(pad_rows(unique[start:stop], size)), config))[: stop - start]
        for start, stop, size in _blocks(len(unique), model.covariates.rows_at_once(_MOST_ROWS))
    ]
    return np.concatenate(parts)[inverse]


def structural_means(model: BGMIVModel, x: np.ndarray, z: np.ndarray) -> np.ndarray:
    r"""$\mu_\omega(x, z_0, z_1)$ on the scaled outcome (eq. structural_prediction).

    `(n,)`, or the probabilities `(n, K)` of an outcome of K levels.
    """
    parts = [
        np.asarray(
            _means(model, jnp.asarray(pad_rows(x[start:stop], size)), jnp.asarray(pad_rows(z[start:stop], size)))
        )[: stop - start]
        for start, stop, size in _blocks(len(x))
    ]
    return np.concatenate(parts)
