"""Row counts in buckets, so that a second fit of similar size reuses the compiled program."""

from __future__ import annotations

import numpy as np

__all__ = ["bucket_size", "pad_rows"]


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
    """Rows of zeros appended up to `n_padded`.

    Example:
        >>> pad_rows(np.ones(2), 3).tolist()
        [1.0, 1.0, 0.0]
    """
    missing = n_padded - len(values)
    return np.pad(values, [(0, missing)] + [(0, 0)] * (values.ndim - 1))
