"""What a method may refuse in data that others take."""

from __future__ import annotations

from bgmiv.data.ivdata import IVData
from bgmiv.errors import DataError

__all__ = ["check_no_weights"]


def check_no_weights(data: IVData, method: str) -> None:
    """Refuse sample weights, for a method that cannot honour them.

    Raises:
        DataError: the data have weights; the message says what to do.

    Example:
        >>> data = IVData.from_arrays([1, 2, 4], [5.0, 1.0, 2.0], instruments=[3, 1, 2], weights=[1, 2, 1])
        >>> check_no_weights(data, "KIV")
        Traceback (most recent call last):
        bgmiv.errors.DataError: KIV does not take sample weights (weights). Leave them out, or use BGMIV or TSLS.
    """
    if data.weights is not None:
        raise DataError(
            f"{method} does not take sample weights ({data.weights_name}). Leave them out, or use BGMIV or TSLS."
        )
