"""The structural function at query points, batched so that memory stays bounded."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bgmiv.data.batching import bucket_size, pad_rows
from bgmiv.infer.latent_map import LatentMap, infer_latents
from bgmiv.model.model import BGMIVModel

__all__ = ["latents_of", "structural_means"]

_MOST_ROWS = 4096
_FEWEST_ROWS = 64


@jax.jit
def _means(model: BGMIVModel, x: Array, z: Array) -> Array:
    return jax.vmap(model.structural_mean)(x, z)


def _blocks(n: int) -> list[tuple[int, int, int]]:
    """Start, stop and padded size of each block of rows."""
    size = max(_FEWEST_ROWS, bucket_size(min(n, _MOST_ROWS)))
    return [(start, min(start + size, n), size) for start in range(0, n, size)]


def latents_of(model: BGMIVModel, v: np.ndarray, config: LatentMap) -> np.ndarray:
    """Latents of scaled covariate rows, `(n, d)`; equal rows are computed once.

    Dose-response queries repeat the same covariates at many treatments, and the MAP is by far the dearest part.
    """
    unique, inverse = _unique_rows(v)
    parts = [
        np.asarray(infer_latents(model, jnp.asarray(pad_rows(unique[start:stop], size)), config))[: stop - start]
        for start, stop, size in _blocks(len(unique))
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


def _unique_rows(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct rows in order of first appearance, and each row's place among them."""
    if v.shape[1] == 0:
        return v[:1], np.zeros(len(v), dtype=np.intp)
    packed = np.ascontiguousarray(v).view(np.dtype((np.void, v.dtype.itemsize * v.shape[1]))).ravel()
    _, first, inverse = np.unique(packed, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return v[first[order]], place[inverse]
