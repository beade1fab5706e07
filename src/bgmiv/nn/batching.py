"""Rows by the batch: counts in buckets, so that a second fit of similar size reuses the compiled program."""

from __future__ import annotations

import numpy as np

__all__ = ["bucket_size", "pad_rows", "unique_rows"]


def bucket_size(n: int, multiple: int = 1) -> int:
    """The padded row count: eight sizes to an octave, at most an eighth above `n`, then up to a multiple.

    Example:
        >>> bucket_size(1000), bucket_size(1020), bucket_size(5000), bucket_size(5000, multiple=32)
        (1024, 1024, 5120, 5120)
    """
    step = max(1, 2 ** (max(n, 1).bit_length() - 4))
    padded = -(-n // step) * step
    return -(-padded // multiple) * multiple


def pad_rows(values: np.ndarray, n_padded: int) -> np.ndarray:
    """Rows of zeros appended up to `n_padded`."""
    return np.pad(values, [(0, n_padded - len(values))] + [(0, 0)] * (values.ndim - 1))


def unique_rows(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct rows in order of first appearance, and each row's place among them.

    Example:
        >>> rows, places = unique_rows(np.array([[1.0, 2.0], [0.0, 0.0], [1.0, 2.0]]))
        >>> rows.tolist(), places.tolist()
        ([[1.0, 2.0], [0.0, 0.0]], [0, 1, 0])
    """
    if v.shape[1] == 0:
        return v[:1], np.zeros(len(v), dtype=np.intp)
    packed = np.ascontiguousarray(v).view(np.dtype((np.void, v.dtype.itemsize * v.shape[1]))).ravel()
    _, first, inverse = np.unique(packed, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return v[first[order]], place[inverse]
