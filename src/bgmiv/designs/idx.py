"""The IDX format of the MNIST files: a header of big-endian numbers, then bytes."""

from __future__ import annotations

import struct

import numpy as np

from bgmiv.errors import StoreError

__all__ = ["pack_idx", "unpack_idx"]

# Two zero bytes, the code of unsigned bytes, the number of dimensions.
_UNSIGNED_BYTES = 0x08


def pack_idx(values: np.ndarray) -> bytes:
    """An array of unsigned bytes as the content of an IDX file.

    >>> pack_idx(np.array([5, 0, 4], dtype=np.uint8)).hex(" ")
    '00 00 08 01 00 00 00 03 05 00 04'
    """
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, _UNSIGNED_BYTES, values.ndim, *values.shape)
    return header + values.astype(np.uint8, casting="safe").tobytes()


def unpack_idx(content: bytes, name: str) -> np.ndarray:
    """The array in an IDX file of unsigned bytes, read-only.

    Args:
        content: of the file, decompressed.
        name: how messages call it.

    Raises:
        StoreError: it is not such a file, or cut short.

    >>> unpack_idx(pack_idx(np.eye(2, dtype=np.uint8)), "eye").tolist()
    [[1, 0], [0, 1]]
    """
    if len(content) < 4 or content[:3] != bytes((0, 0, _UNSIGNED_BYTES)):
        raise StoreError(f"{name} is not an IDX file of unsigned bytes")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise StoreError(f"{name} is cut short: its header is not whole")
    shape = struct.unpack(f">{content[3]}I", content[4:start])
    values = np.frombuffer(content, dtype=np.uint8, offset=start)
    if values.size != int(np.prod(shape, dtype=np.int64)):
        raise StoreError(f"{name} holds {values.size} values, but its header says {shape}")
    return values.reshape(shape)
